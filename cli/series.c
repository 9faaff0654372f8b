#include "cli/series.h"

#include <stdbool.h>
#include <string.h>

#include "base/text.h"
#include "base/units.h"

/* Always false. */
static bool
fail(GError **error, const char *part, const char *expected)
{
    g_autofree char *shown = text_escape(part, 64);

    g_set_error(error, UNITS_ERROR, UNITS_ERROR_INVALID, "\"%s\": expected %s", shown, expected);
    return false;
}

static bool
add(GArray *numbers, int64_t n, GError **error)
{
    if (numbers->len >= SERIES_MAX) {
        g_set_error(error, UNITS_ERROR, UNITS_ERROR_INVALID, "more than %d numbers", SERIES_MAX);
        return false;
    }
    g_array_append_val(numbers, n);
    return true;
}

/* A..B:+STEP or A..B:xFACTOR; @dots is where the dots are. */
static bool
add_range(GArray *numbers, const char *part, const char *dots, int64_t min, int64_t max,
          GError **error)
{
    static const char expected[] = "a range such as 64..1024:x2 or 64..512:+64";
    const char *colon = strchr(dots, ':');
    int64_t first, last, step;

    if (colon == NULL || (colon[1] != 'x' && colon[1] != '+'))
        return fail(error, part, expected);
    g_autofree char *low = g_strndup(part, (size_t)(dots - part));
    g_autofree char *high = g_strndup(dots + 2, (size_t)(colon - dots - 2));
    const bool is_factor = colon[1] == 'x';
    if (!units_parse_int64(low, "the first number of a range", min, max, &first, error) ||
        !units_parse_int64(high, "the last number of a range", min, max, &last, error) ||
        !units_parse_int64(colon + 2, is_factor ? "its factor" : "its step", is_factor ? 2 : 1, max,
                           &step, error))
        return false;
    if (last < first)
        return fail(error, part, "a range that ascends");
    for (int64_t n = first; n <= last;) {
        if (!add(numbers, n, error))
            return false;
        if (is_factor ? __builtin_mul_overflow(n, step, &n) : __builtin_add_overflow(n, step, &n))
            break;
    }
    return true;
}

static int
compare(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? -1 : x > y;
}

static GArray *
ascending(GArray *numbers)
{
    GArray *unique = g_array_new(FALSE, FALSE, sizeof(int64_t));

    g_array_sort(numbers, compare);
    for (guint i = 0; i < numbers->len; i++) {
        const int64_t n = g_array_index(numbers, int64_t, i);

        if (i == 0 || n != g_array_index(numbers, int64_t, i - 1))
            g_array_append_val(unique, n);
    }
    return unique;
}

GArray *
series_parse(const char *text, int64_t min, int64_t max, GError **error)
{
    g_auto(GStrv) parts = g_strsplit(text, ",", -1);
    g_autoptr(GArray) numbers = g_array_new(FALSE, FALSE, sizeof(int64_t));

    for (size_t i = 0; parts[i] != NULL; i++) {
        const char *dots = strstr(parts[i], "..");
        int64_t n;

        if (dots != NULL
                ? !add_range(numbers, parts[i], dots, min, max, error)
                : !units_parse_int64(parts[i], "a number of the list", min, max, &n, error) ||
                      !add(numbers, n, error))
            return NULL;
    }
    if (numbers->len == 0) {
        fail(error, text, "a number");
        return NULL;
    }
    return ascending(numbers);
}
