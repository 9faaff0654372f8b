/*
 * base/text.h - "did you mean": the nearest of a list of names.
 *
 * Damerau-Levenshtein distance (a transposition counts 1), accepted up to max(2, length / 3).
 * Also: quoting of hostile text before it reaches a terminal.
 *
 * Thread-safety: all functions are pure.
 */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <glib.h>
#include <stddef.h>

G_BEGIN_DECLS

/*
 * Returns: (borrowed, nullable) the member of @candidates nearest to @name, or NULL when none is
 * near; among equally near ones the first.
 * @candidates  NULL-terminated.
 * Cost: O(n_candidates * length^2).
 */
const char *text_nearest(const char *name, const char *const *candidates);

/*
 * Returns: (owned) `: did you mean "X"?` or "" when nothing is near; appended to messages.
 */
char *text_suggestion(const char *name, const char *const *candidates);

/* Returns: (owned) @text with control bytes and invalid UTF-8 escaped, cut at @max_bytes. */
char *text_escape(const char *text, size_t max_bytes);

G_END_DECLS

#endif /* BASE_TEXT_H */
