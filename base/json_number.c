/* The numbers of base/json.h, from the text: cJSON rounds them. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/json_doc.h"

/* "an integer from 1 to 8", ">= 1", ...; (owned). */
static char *
describe_int64_range(int64_t min, int64_t max)
{
    if (min <= -JSON_MAX_INT && max >= JSON_MAX_INT)
        return g_strdup("an integer");
    if (max >= JSON_MAX_INT)
        return g_strdup_printf("an integer >= %" G_GINT64_FORMAT, min);
    if (min <= -JSON_MAX_INT)
        return g_strdup_printf("an integer <= %" G_GINT64_FORMAT, max);
    return g_strdup_printf("an integer from %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT, min, max);
}

/* Reads a plain integer of at most 2^53; false for anything else. */
static bool
read_integer(const char *literal, int64_t *value)
{
    bool is_negative = *literal == '-';
    const char *p = literal + is_negative;
    int64_t magnitude = 0;

    for (; g_ascii_isdigit(*p); p++) {
        if (magnitude > JSON_MAX_INT / 10)
            return false;
        magnitude = magnitude * 10 + (*p - '0');
    }
    if (*p == '.' || *p == 'e' || *p == 'E' || magnitude > JSON_MAX_INT)
        return false;
    *value = is_negative ? -magnitude : magnitude;
    return true;
}

/* Reads 1e9 and 8.0 too, which are integers to anyone but a type system. */
static bool
read_integral(const char *literal, int64_t *value)
{
    const char *after = literal + (*literal == '-');
    double number;

    if (read_integer(literal, value))
        return true;
    after += strspn(after, "0123456789");
    if (*after != '.' && *after != 'e' && *after != 'E')
        return false;
    number = g_ascii_strtod(literal, NULL);
    if (number != nearbyint(number) || fabs(number) >= (double)JSON_MAX_INT)
        return false;
    *value = (int64_t)number;
    return true;
}

/* Records why @value is no integer in the range. */
static void
fail_int64(JsonDoc *doc, const JsonValue *value, int64_t min, int64_t max)
{
    g_autofree char *range = describe_int64_range(min, max);
    g_autofree char *expected = NULL;
    double number = 0;

    if (json_is_number(value))
        number = g_ascii_strtod(doc->text + value->offset, NULL);
    if (number >= (double)JSON_MAX_INT && max >= JSON_MAX_INT)
        expected = g_strdup_printf("%s, at most 2^53", range);
    else if (number <= -(double)JSON_MAX_INT && min <= -JSON_MAX_INT)
        expected = g_strdup_printf("%s, at least -2^53", range);
    json_doc_fail_expected(doc, value, expected != NULL ? expected : range);
}

int64_t
json_value_int64(JsonDoc *doc, const JsonValue *value, int64_t min, int64_t max)
{
    int64_t result;

    g_return_val_if_fail(doc != NULL && value != NULL && min <= max, min);

    if (json_is_number(value) && read_integral(doc->text + value->offset, &result) &&
        result >= min && result <= max)
        return result;
    if (doc->error == NULL)
        fail_int64(doc, value, min, max);
    return min;
}

double
json_doc_harmless(double min, double max)
{
    if (min > -DBL_MAX)
        return min;
    return max < 0 ? max : 0;
}

/* "a number > 0", ...; (owned).  The least positive numbers stand for an open bound at 0. */
static char *
describe_double_range(double min, double max)
{
    bool is_open = min == DBL_MIN || min == DBL_TRUE_MIN;
    g_autofree char *low = is_open || !isfinite(min) ? g_strdup("0") : json_format_double(min);
    g_autofree char *high = isfinite(max) ? json_format_double(max) : NULL;
    const char *relation = is_open ? ">" : ">=";

    if (min <= -DBL_MAX && max >= DBL_MAX)
        return g_strdup("a number");
    if (max >= DBL_MAX)
        return g_strdup_printf("a number %s %s", relation, low);
    if (min <= -DBL_MAX)
        return g_strdup_printf("a number <= %s", high);
    if (is_open)
        return g_strdup_printf("a number > 0 and <= %s", high);
    return g_strdup_printf("a number from %s to %s", low, high);
}

double
json_value_double(JsonDoc *doc, const JsonValue *value, double min, double max)
{
    g_autofree char *expected = NULL;

    g_return_val_if_fail(doc != NULL && value != NULL && min <= max, min);

    if (json_is_number(value)) {
        double number = g_ascii_strtod(doc->text + value->offset, NULL);

        if (number >= min && number <= max)
            return number;
    }
    if (doc->error == NULL) {
        expected = describe_double_range(min, max);
        json_doc_fail_expected(doc, value, expected);
    }
    return json_doc_harmless(min, max);
}
