#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Longer names get no suggestion: nobody types them, and the distance is quadratic. */
#define MAX_NAME_LENGTH 128

/* Upper and lower case, and - and _, are the same slip of the finger. */
static char
fold(char c)
{
    return c == '_' ? '-' : g_ascii_tolower(c);
}

static size_t
min3(size_t a, size_t b, size_t c)
{
    size_t ab = a < b ? a : b;

    return ab < c ? ab : c;
}

/* Both lengths are at most MAX_NAME_LENGTH. */
static size_t
distance(const char *a, size_t n_a, const char *b, size_t n_b)
{
    size_t rows[3][MAX_NAME_LENGTH + 1];
    size_t *before = rows[0];
    size_t *above = rows[1];
    size_t *row = rows[2];

    for (size_t j = 0; j <= n_b; j++)
        above[j] = j;
    /* above[j] and before[j]: distance of the first i - 1 and i - 2 letters of a to the first j of
     * b */
    for (size_t i = 1; i <= n_a; i++) {
        size_t *recycled = before;

        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            char x = fold(a[i - 1]);
            char y = fold(b[j - 1]);

            row[j] = min3(above[j] + 1, row[j - 1] + 1, above[j - 1] + (x != y));
            if (i > 1 && j > 1 && x == fold(b[j - 2]) && fold(a[i - 2]) == y &&
                before[j - 2] + 1 < row[j])
                row[j] = before[j - 2] + 1;
        }
        before = above;
        above = row;
        row = recycled;
    }
    return above[n_b];
}

const char *
text_nearest(const char *name, const char *const *candidates)
{
    const char *nearest = NULL;
    size_t n_name;
    size_t best;

    g_return_val_if_fail(name != NULL && candidates != NULL, NULL);

    n_name = strlen(name);
    if (n_name == 0 || n_name > MAX_NAME_LENGTH)
        return NULL;
    best = (n_name / 3 > 2 ? n_name / 3 : 2) + 1;
    for (size_t i = 0; candidates[i] != NULL; i++) {
        size_t n = strlen(candidates[i]);
        size_t longer = n > n_name ? n : n_name;
        size_t d;

        if (n > MAX_NAME_LENGTH)
            continue;
        d = distance(name, n_name, candidates[i], n);
        /* d < longer: at least one letter in common, or every two-letter name would be near */
        if (d < best && d < longer) {
            best = d;
            nearest = candidates[i];
        }
    }
    return nearest;
}

char *
text_suggestion(const char *name, const char *const *candidates)
{
    const char *nearest = text_nearest(name, candidates);

    return nearest == NULL ? g_strdup("") : g_strdup_printf(": did you mean \"%s\"?", nearest);
}

/* Whether a terminal shows it as itself: no control, no invisible or text-reversing character. */
static bool
is_printable(gunichar c)
{
    switch (g_unichar_type(c)) {
    case G_UNICODE_CONTROL:
    case G_UNICODE_FORMAT:
    case G_UNICODE_SURROGATE:
    case G_UNICODE_UNASSIGNED:
    case G_UNICODE_PRIVATE_USE:
    case G_UNICODE_LINE_SEPARATOR:
    case G_UNICODE_PARAGRAPH_SEPARATOR:
        return false;
    default:
        return true;
    }
}

/* Appends what stands for the character at @text; returns how many bytes of @text that was. */
static size_t
escape_one(GString *out, const char *text)
{
    gunichar c = g_utf8_get_char_validated(text, -1);
    size_t n_bytes;

    if (c == (gunichar)-1 || c == (gunichar)-2) {
        g_string_append_printf(out, "\\x%02x", (unsigned)(unsigned char)*text);
        return 1;
    }
    n_bytes = (size_t)(g_utf8_next_char(text) - text);
    if (c == '\n')
        g_string_append(out, "\\n");
    else if (c == '\t')
        g_string_append(out, "\\t");
    else if (c == '\r')
        g_string_append(out, "\\r");
    else if (is_printable(c))
        g_string_append_len(out, text, (gssize)n_bytes);
    else if (c < 0x80)
        g_string_append_printf(out, "\\x%02x", (unsigned)c);
    else
        g_string_append_printf(out, "\\u%04x", (unsigned)c);
    return n_bytes;
}

char *
text_escape(const char *text, size_t max_bytes)
{
    static const char ellipsis[] = "...";
    GString *out;
    size_t fits = 0; /* how much of out leaves room for the ellipsis */

    g_return_val_if_fail(text != NULL, NULL);

    out = g_string_new(NULL);
    for (const char *p = text; *p != 0 && out->len <= max_bytes;) {
        p += escape_one(out, p);
        if (out->len + strlen(ellipsis) <= max_bytes)
            fits = out->len;
    }
    if (out->len > max_bytes) {
        g_string_truncate(out, fits);
        if (fits + strlen(ellipsis) <= max_bytes)
            g_string_append(out, ellipsis);
    }
    return g_string_free(out, FALSE);
}
