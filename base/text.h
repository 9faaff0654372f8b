/*
 * base/text.h - the nearest of a list of names ("did you mean"), and text that is safe to print.
 *
 * Damerau-Levenshtein distance (optimal string alignment: a transposition counts 1), in bytes,
 * blind to case and to - against _; accepted up to max(2, length / 3) if the two have anything
 * in common.
 *
 * Thread-safety: all functions are pure.
 */
#pragma once

#include <glib.h>
#include <stddef.h>

G_BEGIN_DECLS

/*
 * Returns: (borrowed, nullable) the member of @candidates nearest to @name, or NULL when none is
 * near; among equally near ones the first.  Names beyond 128 bytes are near to nothing.
 * @candidates  NULL-terminated.
 * Cost: O(n_candidates * length^2).
 */
const char *text_nearest(const char *name, const char *const *candidates);

/*
 * Returns: (owned) `: did you mean "X"?` or "" when nothing is near; appended to messages.
 */
char *text_suggestion(const char *name, const char *const *candidates);

/*
 * Returns: (owned) valid UTF-8 of at most @max_bytes bytes: @text with invalid bytes (\xff),
 * control characters (\n, \x1b) and invisible or direction-changing ones (\u202e) escaped; when it
 * is too long it is cut between characters and ends in "...".  Quotes and backslashes stay as they
 * are.
 */
char *text_escape(const char *text, size_t max_bytes);

G_END_DECLS
