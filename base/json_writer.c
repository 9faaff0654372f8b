/* The writing half of base/json.h. */
#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Deeper documents could not be read back. */
#define MAX_DEPTH JSON_MAX_DEPTH

/* %.*e of a double: sign, 17 digits, point, e-308, NUL, and room. */
#define NUMBER_SIZE 48

typedef struct {
    bool is_object;
    bool is_inline;
    bool has_items;
} Level;

struct JsonWriter {
    GString *text;
    bool is_compact;
    bool is_complete; /* the outermost value is written */
    Level levels[MAX_DEPTH];
    unsigned depth;
};

static JsonWriter *
writer_new(bool is_compact)
{
    JsonWriter *writer = g_new0(JsonWriter, 1);

    writer->text = g_string_new(NULL);
    writer->is_compact = is_compact;
    return writer;
}

JsonWriter *
json_writer_new(void)
{
    return writer_new(false);
}

JsonWriter *
json_writer_new_compact(void)
{
    return writer_new(true);
}

void
json_writer_free(JsonWriter *writer)
{
    if (writer == NULL)
        return;
    g_string_free(writer->text, TRUE);
    g_free(writer);
}

/* --- numbers --- */

/* Lays out @digits (first digit, then those after the point) times 10^@exponent like %g does, but
 * with one threshold for every precision, so that equal magnitudes look alike. */
static char *
lay_out(bool is_negative, const char *digits, int exponent)
{
    GString *out = g_string_new(is_negative ? "-" : "");
    int n = (int)strlen(digits);

    if (exponent < -5 || exponent > 16) {
        g_string_append_c(out, digits[0]);
        if (n > 1)
            g_string_append_printf(out, ".%s", digits + 1);
        g_string_append_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        g_string_append_printf(out, "0.%.*s%s", -exponent - 1, "0000", digits);
    } else if (n <= exponent + 1) {
        g_string_append_printf(out, "%s%.*s", digits, exponent + 1 - n, "0000000000000000");
    } else {
        g_string_append_printf(out, "%.*s.%s", exponent + 1, digits, digits + exponent + 1);
    }
    return g_string_free(out, FALSE);
}

/* Splits %.{n_digits - 1}e of @magnitude into its digits and its exponent. */
static void
split(double magnitude, int n_digits, char digits[NUMBER_SIZE], int *exponent)
{
    char format[16];
    char text[NUMBER_SIZE];
    const char *e;
    size_t n = 0;

    g_snprintf(format, sizeof(format), "%%.%de", n_digits - 1);
    g_ascii_formatd(text, sizeof(text), format, magnitude);
    e = strchr(text, 'e');
    for (const char *p = text; p < e; p++) {
        if (*p != '.')
            digits[n++] = *p;
    }
    digits[n] = 0;
    *exponent = (int)g_ascii_strtoll(e + 1, NULL, 10);
}

/* Whether @digits read as d.ddd times 10^@exponent are @magnitude to the last bit. */
static bool
reads_back(const char *digits, int exponent, double magnitude)
{
    char text[NUMBER_SIZE];

    g_snprintf(text, sizeof(text), "%c.%se%d", digits[0], digits[1] ? digits + 1 : "0", exponent);
    return g_ascii_strtod(text, NULL) == magnitude;
}

/* Adds 1 to the last of @digits.  Below a power of two doubles lie twice as dense, so that the
 * nearest decimal may read back to a neighbour while the next one up does not [Steele and White
 * 1990]. */
static void
increment(char *digits, int *exponent)
{
    size_t i = strlen(digits);

    while (i > 0 && digits[i - 1] == '9')
        digits[--i] = '0';
    if (i > 0) {
        digits[i - 1]++;
    } else {
        digits[0] = '1';
        ++*exponent;
    }
}

char *
json_format_double(double value)
{
    double magnitude = fabs(value);
    char digits[NUMBER_SIZE] = "";
    int exponent = 0;
    size_t n;
    /* 15 digits survive any normal double, so that fewer cannot be needed: zeros are cut below. */
    int first = magnitude < 0x1p-1022 ? 1 : 15;

    g_return_val_if_fail(isfinite(value), NULL);

    for (int n_digits = first; n_digits <= 17; n_digits++) {
        split(magnitude, n_digits, digits, &exponent);
        if (reads_back(digits, exponent, magnitude))
            break;
        increment(digits, &exponent);
        if (reads_back(digits, exponent, magnitude))
            break;
    }
    for (n = strlen(digits); n > 1 && digits[n - 1] == '0'; n--)
        digits[n - 1] = 0;
    return lay_out(signbit(value) != 0, digits, exponent);
}

/* --- strings --- */

static void
append_string(GString *out, const char *text)
{
    static const char escapes[] = "\"\\\b\f\n\r\t";
    static const char letters[] = "\"\\bfnrt";
    const char *bad = NULL;

    g_utf8_validate(text, -1, &bad);
    g_string_append_c(out, '"');
    /* bad: the first byte at or after p that is not UTF-8, or the end */
    for (const char *p = text; *p != 0; p++) {
        const char *escape = strchr(escapes, *p);

        if (p == bad) {
            g_string_append(out, "\\ufffd");
            g_utf8_validate(p + 1, -1, &bad);
        } else if (escape != NULL) {
            g_string_append_c(out, '\\');
            g_string_append_c(out, letters[escape - escapes]);
        } else if ((unsigned char)*p < 0x20 || *p == 0x7f) {
            g_string_append_printf(out, "\\u%04x", (unsigned)*p);
        } else {
            g_string_append_c(out, *p);
        }
    }
    g_string_append_c(out, '"');
}

/* --- structure --- */

static void
new_line(JsonWriter *writer)
{
    g_string_append_c(writer->text, '\n');
    for (unsigned i = 0; i < writer->depth; i++)
        g_string_append(writer->text, "  ");
}

/* Writes what stands before a value.  False, with a warning, if no value may stand here. */
static bool
begin_value(JsonWriter *writer, const char *key)
{
    g_return_val_if_fail(writer != NULL, false);

    if (writer->depth == 0) {
        g_return_val_if_fail(!writer->is_complete && key == NULL, false);
        writer->is_complete = true;
        return true;
    }
    Level *level = &writer->levels[writer->depth - 1];
    g_return_val_if_fail(level->is_object == (key != NULL), false);
    if (level->has_items)
        g_string_append(writer->text, level->is_inline && !writer->is_compact ? ", " : ",");
    if (!level->is_inline)
        new_line(writer);
    level->has_items = true;
    if (key != NULL) {
        append_string(writer->text, key);
        g_string_append(writer->text, writer->is_compact ? ":" : ": ");
    }
    return true;
}

static void
begin_container(JsonWriter *writer, const char *key, bool is_object, bool is_inline)
{
    if (!begin_value(writer, key))
        return;
    g_assert(writer->depth < MAX_DEPTH);
    bool is_inside_inline = writer->depth > 0 && writer->levels[writer->depth - 1].is_inline;
    writer->levels[writer->depth++] = (Level){
        .is_object = is_object,
        .is_inline = is_inline || is_inside_inline || writer->is_compact,
    };
    g_string_append_c(writer->text, is_object ? '{' : '[');
}

static void
end_container(JsonWriter *writer, bool is_object)
{
    g_return_if_fail(writer != NULL && writer->depth > 0);

    const Level *level = &writer->levels[writer->depth - 1];
    g_return_if_fail(level->is_object == is_object);
    writer->depth--;
    if (level->has_items && !level->is_inline)
        new_line(writer);
    g_string_append_c(writer->text, is_object ? '}' : ']');
}

void
json_write_object(JsonWriter *writer, const char *key)
{
    begin_container(writer, key, true, false);
}

void
json_write_object_inline(JsonWriter *writer, const char *key)
{
    begin_container(writer, key, true, true);
}

void
json_write_object_end(JsonWriter *writer)
{
    end_container(writer, true);
}

void
json_write_array(JsonWriter *writer, const char *key)
{
    begin_container(writer, key, false, false);
}

void
json_write_array_inline(JsonWriter *writer, const char *key)
{
    begin_container(writer, key, false, true);
}

void
json_write_array_end(JsonWriter *writer)
{
    end_container(writer, false);
}

/* --- values --- */

void
json_write_raw(JsonWriter *writer, const char *key, const char *json)
{
    g_return_if_fail(json != NULL && *json != 0);

    if (begin_value(writer, key))
        g_string_append(writer->text, json);
}

void
json_write_null(JsonWriter *writer, const char *key)
{
    json_write_raw(writer, key, "null");
}

void
json_write_bool(JsonWriter *writer, const char *key, bool value)
{
    json_write_raw(writer, key, value ? "true" : "false");
}

void
json_write_int64(JsonWriter *writer, const char *key, int64_t value)
{
    if (begin_value(writer, key))
        g_string_append_printf(writer->text, "%" G_GINT64_FORMAT, value);
}

void
json_write_double(JsonWriter *writer, const char *key, double value)
{
    g_autofree char *number = isfinite(value) ? json_format_double(value) : NULL;

    json_write_raw(writer, key, number != NULL ? number : "null");
}

void
json_write_string(JsonWriter *writer, const char *key, const char *value)
{
    if (value == NULL)
        json_write_null(writer, key);
    else if (begin_value(writer, key))
        append_string(writer->text, value);
}

char *
json_writer_steal(JsonWriter *writer, size_t *n_bytes)
{
    g_return_val_if_fail(writer != NULL && writer->depth == 0 && writer->is_complete, NULL);

    GString *text = writer->text;
    g_string_append_c(text, '\n');
    if (n_bytes != NULL)
        *n_bytes = text->len;
    writer->text = g_string_new(NULL);
    writer->is_complete = false;
    return g_string_free(text, FALSE);
}
