#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Longer names get no suggestion: nobody types them, and the distance is quadratic. */
#define MAX_NAME_LENGTH 128
/* How many names are suggested at the most. */
#define MAX_SUGGESTIONS 3

/* Upper and lower case, and - and _, are the same slip of the finger. */
static char
fold(char c)
{
    return c == '_' ? '-' : g_ascii_tolower(c);
}

/* The distance if it is below @limit, otherwise a number that is not.  Both lengths are at most MAX_NAME_LENGTH. */
static size_t
distance(const char *a, size_t n_a, const char *b, size_t n_b, size_t limit)
{
    size_t rows[3][MAX_NAME_LENGTH + 1];
    size_t *before = rows[0];
    size_t *above = rows[1];
    size_t *row = rows[2];
    size_t least_above = 0;
    char folded[MAX_NAME_LENGTH];

    for (size_t j = 0; j < n_b; j++)
        folded[j] = fold(b[j]);
    for (size_t j = 0; j <= n_b; j++)
        above[j] = j;
    /* above[j] and before[j]: distance of the first i - 1 and i - 2 letters of a to the first j of
     * b.  No row goes below the least number of the two before it. */
    for (size_t i = 1; i <= n_a; i++) {
        const char x = fold(a[i - 1]), last = i > 1 ? fold(a[i - 2]) : 0;
        size_t *recycled = before;
        size_t least = i;

        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            const char y = folded[j - 1];

            row[j] = MIN(MIN(above[j], row[j - 1]) + 1, above[j - 1] + (x != y));
            if (i > 1 && j > 1 && x == folded[j - 2] && last == y && before[j - 2] + 1 < row[j])
                row[j] = before[j - 2] + 1;
            least = MIN(least, row[j]);
        }
        if (MIN(least, least_above) >= limit)
            return limit;
        least_above = least;
        before = above;
        above = row;
        row = recycled;
    }
    return above[n_b];
}

/* How far a name may be from what was typed, and not be. */
static size_t
too_far(size_t n_name)
{
    return n_name == 0 || n_name > MAX_NAME_LENGTH ? 0 : MAX(n_name / 3, 2) + 1;
}

/* The distance to @candidate; SIZE_MAX where it is not below @limit, and where they have no letter in
 * common, or every two-letter name would be near. */
static size_t
distance_to(const char *name, size_t n_name, const char *candidate, size_t limit)
{
    const size_t n = strlen(candidate);

    /* Names of other lengths are at least as far apart. */
    if (n > MAX_NAME_LENGTH || MAX(n, n_name) - MIN(n, n_name) >= limit)
        return SIZE_MAX;
    const size_t d = distance(name, n_name, candidate, n, limit);
    return d < MIN(limit, MAX(n, n_name)) ? d : SIZE_MAX;
}

const char *
text_nearest(const char *name, const char *const *candidates)
{
    const char *nearest = NULL;

    g_return_val_if_fail(name != NULL && candidates != NULL, NULL);
    const size_t n_name = strlen(name);
    size_t best = too_far(n_name);
    for (size_t i = 0; best > 0 && candidates[i] != NULL; i++) {
        const size_t d = distance_to(name, n_name, candidates[i], best);
        if (d < best) {
            best = d;
            nearest = candidates[i];
        }
    }
    return nearest;
}

/* Shorter names are in others by chance. */
#define LEAST_WITHIN 6

/* Whether @candidate contains @name, a part of some length. */
static bool
contains(const char *candidate, const char *name, size_t n_name)
{
    if (n_name < 3 || n_name > MAX_NAME_LENGTH)
        return false;
    for (const char *c = candidate; *c != 0; c++) {
        size_t i = 0;
        while (i < n_name && c[i] != 0 && fold(c[i]) == fold(name[i]))
            i++;
        if (i == n_name)
            return true;
    }
    return false;
}

/* What may be the name in what others call it: without an owner before it and "8x" of a number of devices. */
static const char *
without_frame(const char *name)
{
    const char *slash = strrchr(name, '/'), *begin = slash == NULL ? name : slash + 1;
    const size_t n_digits = strspn(begin, "0123456789");

    return n_digits > 0 && (begin[n_digits] == 'x' || begin[n_digits] == 'X') ? begin + n_digits + 1
                                                                              : begin;
}

/* (owned) Letters and digits of @name alone, in small letters. */
static char *
without_separators(const char *name)
{
    GString *text = g_string_new(NULL);

    for (; *name != 0; name++)
        if (g_ascii_isalnum(*name))
            g_string_append_c(text, g_ascii_tolower(*name));
    return g_string_free(text, FALSE);
}

/* (nullable) The longest of @candidates that is in @name, separators aside: llama3-8b in "Meta-Llama-3-8B". */
static const char *
longest_within(const char *name, const char *const *candidates)
{
    g_autofree char *plain = without_separators(name);
    const char *longest = NULL;

    for (size_t i = 0; candidates[i] != NULL; i++) {
        g_autofree char *candidate = without_separators(candidates[i]);

        if (strlen(candidate) >= LEAST_WITHIN && strstr(plain, candidate) != NULL &&
            (longest == NULL || strlen(candidates[i]) > strlen(longest)))
            longest = candidates[i];
    }
    return longest;
}

char *
text_suggestion(const char *name, const char *const *candidates)
{
    const char *frameless = without_frame(name), *within;
    g_autoptr(GString) text = g_string_new(NULL);
    const char *nearest = text_nearest(name, candidates);
    const size_t n_name = strlen(name);
    const size_t best = nearest == NULL ? 0 : distance_to(name, n_name, nearest, SIZE_MAX);
    bool is_part = false;

    for (size_t i = 0; candidates[i] != NULL; i++)
        is_part |= contains(candidates[i], name, n_name);
    for (size_t i = 0, n = 0; candidates[i] != NULL && n < MAX_SUGGESTIONS; i++) {
        if (is_part ? !contains(candidates[i], name, n_name)
                    : nearest == NULL || distance_to(name, n_name, candidates[i], best + 1) != best)
            continue;
        g_string_append_printf(text, "%s\"%s\"", n++ == 0 ? ": did you mean " : " or ",
                               candidates[i]);
    }
    if (text->len == 0 && frameless != name && *frameless != 0)
        return text_suggestion(frameless, candidates);
    if (text->len == 0 && (within = longest_within(name, candidates)) != NULL)
        g_string_append_printf(text, ": did you mean \"%s\"", within);
    return g_strconcat(text->str, text->len > 0 ? "?" : "", NULL);
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

    if (c == (gunichar)-1 || c == (gunichar)-2) {
        g_string_append_printf(out, "\\x%02x", (unsigned)(unsigned char)*text);
        return 1;
    }
    size_t n_bytes = (size_t)(g_utf8_next_char(text) - text);
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

char *
text_markdown(const char *text, size_t max_bytes)
{
    g_autofree char *safe = text_escape(text, max_bytes);
    GString *out = g_string_new(NULL);

    for (const char *p = safe; *p != 0; p++) {
        if (*p == '&' || *p == '<')
            g_string_append(out, *p == '&' ? "&amp;" : "&lt;");
        else if (strchr("[`|\\", *p) != NULL)
            g_string_append_printf(out, "\\%c", *p);
        else
            g_string_append_c(out, *p);
    }
    return g_string_free(out, FALSE);
}
