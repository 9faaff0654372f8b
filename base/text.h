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

/*
 * Returns: (borrowed, nullable) the member of @candidates nearest to @name, or NULL when none is
 * near; among equally near ones the first.  Names beyond 128 bytes are near to nothing.
 * @candidates  NULL-terminated.
 * Cost: O(n_candidates * length^2).
 */
const char *text_nearest(const char *name, const char *const *candidates);

/*
 * The names in a table, as the functions above want them.
 *
 * @names   where they are kept for the rest of the program; *names is NULL before the first call
 * @first   the name in the table's first row; rows lie @row_bytes apart
 * Returns: (borrowed) NULL-terminated.  Any number of threads may call it at once.  Here, since plugins have
 * tables of names but not text.c.
 */
static inline const char *const *
text_names(const char *const **names, const char *const *first, size_t row_bytes, size_t n_rows)
{
    if (g_once_init_enter(names)) {
        const char **list = g_new0(const char *, n_rows + 1);
        for (size_t i = 0; i < n_rows; i++)
            list[i] = *(const char *const *)((const char *)first + i * row_bytes);
        g_once_init_leave(names, list);
    }
    return *names;
}

/* Returns: (owned) `: did you mean "X" or "Y"?` with up to three names: those that contain @name,
 * else the nearest, where they are equally near; "" where there are none.  Appended to messages. */
char *text_suggestion(const char *name, const char *const *candidates);

/*
 * Returns: (owned) valid UTF-8 of at most @max_bytes bytes: @text with invalid bytes (\xff),
 * control characters (\n, \x1b) and invisible or direction-changing ones (\u202e) escaped; when it
 * is too long it is cut between characters and ends in "...".  Quotes and backslashes stay as they
 * are.
 */
char *text_escape(const char *text, size_t max_bytes);

/* Returns: (owned) text_escape() of @text, to stand in a cell of a Markdown table: no character of it
 * begins a tag, a link, code or another cell. */
char *text_markdown(const char *text, size_t max_bytes);
