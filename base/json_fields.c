#include "base/json_fields.h"

#include <math.h>
#include <string.h>

#include "base/units.h"

static int64_t
get_int(const JsonField *field, const char *member, size_t size)
{
    if (field->type == JSON_BOOL)
        return *(const bool *)member;
    if (size == sizeof(int64_t))
        return *(const int64_t *)(const void *)member;
    return size == 1 ? *(const uint8_t *)member : *(const int32_t *)(const void *)member;
}

static void
set_int(char *member, size_t size, int64_t value)
{
    if (size == sizeof(int64_t))
        *(int64_t *)(void *)member = value;
    else if (size == 1)
        *(uint8_t *)member = (uint8_t)value;
    else if (size != 0)
        *(int32_t *)(void *)member = (int32_t)value;
}

int64_t
json_field_int64(const JsonField *field, const void *record)
{
    g_return_val_if_fail(field != NULL && record != NULL, 0);

    return get_int(field, (const char *)record + field->offset, field->size);
}

/* --- reading --- */

static void
set_none(const JsonField *field, char *member)
{
    if (field->type == JSON_DOUBLE)
        *(double *)(void *)member = NAN;
    else if (field->type == JSON_TEXT)
        g_clear_pointer((char **)(void *)member, g_free);
    else if (field->type == JSON_CHARS)
        *member = 0;
}

/* A list of at most @n texts. */
static void
read_texts(JsonDoc *doc, const JsonValue *array, const char **texts, size_t n)
{
    size_t i = 0;

    for (const JsonValue *v = json_first(array); v != NULL && i < n; v = json_next(v))
        texts[i++] = json_value_string(doc, v);
    if (json_length(array) > n)
        json_fail(doc, array, "expected at most %zu names", n);
}

/* What a number counts, by the end of its key. */
static UnitsKind
unit_of(const char *key)
{
    return g_str_has_suffix(key, "flops_per_s")   ? UNITS_KIND_FLOPS
           : g_str_has_suffix(key, "bytes_per_s") ? UNITS_KIND_BYTES_PER_S
           : g_str_has_suffix(key, "bytes")       ? UNITS_KIND_BYTES
                                                  : UNITS_KIND_S;
}

/* Reads a text with a unit into @member, an int64_t or a double. */
static void
read_with_unit(JsonDoc *doc, const JsonValue *value, const JsonField *field, char *member,
               size_t size)
{
    g_autoptr(GError) error = NULL;
    double number = 0;
    int64_t bytes = 0;
    const char *text = json_value_string(doc, value);
    const bool is_right = field->type == JSON_INT
                              ? units_parse_bytes(text, &bytes, &error)
                              : units_parse(text, unit_of(field->key), &number, &error);

    if (!is_right)
        json_fail(doc, value, "%s", error->message);
    else if (field->type == JSON_INT ? (double)bytes < field->min || (double)bytes > field->max
                                     : number < field->min || number > field->max)
        json_fail(doc, value, "%s is not from %g to %g", text, field->min, field->max);
    else if (field->type == JSON_INT)
        set_int(member, size, bytes);
    else
        *(double *)(void *)member = number;
}

/* Reads @key, which must be there, into @member of @size bytes. */
static void
read_value(JsonDoc *doc, const JsonValue *object, const char *key, const JsonField *field,
           char *member, size_t size)
{
    const char *text;

    if ((field->flags & JSON_WITH_UNIT) != 0 && json_is_string(json_member(doc, object, key))) {
        read_with_unit(doc, json_member(doc, object, key), field, member, size);
        return;
    }
    switch (field->type) {
    case JSON_INT:
        set_int(member, size,
                field->names != NULL
                    ? json_enum(doc, object, key, field->names)
                    : json_int64(doc, object, key, (int64_t)field->min, (int64_t)field->max));
        return;
    case JSON_DOUBLE:
        *(double *)(void *)member = json_double(doc, object, key, field->min, field->max);
        return;
    case JSON_BOOL:
        *(bool *)member = json_bool(doc, object, key);
        return;
    case JSON_NS:
        *(int64_t *)(void *)member =
            units_ns_from_s(json_double(doc, object, key, field->min, field->max));
        return;
    case JSON_TEXT:
        set_none(field, member);
        *(char **)(void *)member = g_strdup(json_string(doc, object, key));
        return;
    case JSON_LENT:
        text = json_string(doc, object, key);
        if (size != 0)
            *(const char **)(void *)member = text;
        if (field->names != NULL)
            json_enum(doc, object, key, field->names);
        return;
    case JSON_LENTS:
        read_texts(doc, json_array(doc, object, key), (const char **)(void *)member,
                   size / sizeof(char *) - 1);
        return;
    case JSON_CHARS:
        g_strlcpy(member, json_string(doc, object, key), size);
        return;
    default:
        json_fields_read_object(doc, json_object(doc, object, key), field->fields, member);
    }
}

/* As above; the key may be absent or null where the row says so. */
static void
read_member(JsonDoc *doc, const JsonValue *object, const char *key, const JsonField *field,
            char *member, size_t size)
{
    const bool is_optional = (field->flags & JSON_OPTIONAL) != 0;
    const JsonValue *value = !is_optional || field->type != JSON_OBJECT
                                 ? json_member(doc, object, key)
                                 : json_object_or_null(doc, object, key);

    if (value == NULL && is_optional)
        return;
    if (json_is_null(value) && (field->flags & JSON_NULLABLE) != 0)
        set_none(field, member);
    else
        read_value(doc, object, key, field, member, size);
}

void
json_fields_read(JsonDoc *doc, const JsonValue *object, const JsonField *fields, void *record)
{
    g_return_if_fail(doc != NULL && object != NULL && fields != NULL && record != NULL);

    for (const JsonField *field = fields; field->key != NULL; field++) {
        char *member = (char *)record + field->offset;

        if (field->keys == NULL) {
            read_member(doc, object, field->key, field, member, field->size);
            continue;
        }
        const JsonValue *inner = json_object(doc, object, field->key);
        const size_t n = g_strv_length((char **)(void *)field->keys);
        for (size_t i = 0; i < n; i++)
            read_member(doc, inner, field->keys[i], field, member + i * (field->size / n),
                        field->size / n);
        json_object_end(doc, inner);
    }
}

void
json_fields_read_object(JsonDoc *doc, const JsonValue *object, const JsonField *fields,
                        void *record)
{
    json_fields_read(doc, object, fields, record);
    json_object_end(doc, object);
}

void
json_fields_read_rows(JsonDoc *doc, const JsonValue *array, const JsonField *fields, GArray *rows)
{
    const guint size = g_array_get_element_size(rows);

    JSON_EACH (v, array, doc) {
        if (!json_is_object(v)) {
            json_fail(doc, v, "expected an object");
            return;
        }
        g_array_set_size(rows, rows->len + 1);
        char *row = rows->data + (size_t)(rows->len - 1) * size;
        memset(row, 0, size);
        for (const JsonField *field = fields; field->key != NULL; field++) {
            if (field->type == JSON_INT)
                set_int(row + field->offset, field->size, (int64_t)field->usual);
            else if (field->type == JSON_DOUBLE)
                *(double *)(void *)(row + field->offset) = field->usual;
        }
        json_fields_read_object(doc, v, fields, row);
    }
}

/* --- writing --- */

static bool
is_usual(const JsonField *field, const char *member, size_t size)
{
    if (field->type == JSON_TEXT || field->type == JSON_LENT)
        return *(char *const *)(const void *)member == NULL;
    if (field->type != JSON_DOUBLE)
        return get_int(field, member, size) == (int64_t)field->usual;
    const double value = *(const double *)(const void *)member;
    return value == field->usual || (isnan(value) && isnan(field->usual));
}

static void
write_value(JsonWriter *writer, const char *key, const JsonField *field, const char *member,
            size_t size)
{
    switch (field->type) {
    case JSON_INT:
        if (field->names != NULL)
            json_write_string(writer, key, field->names[get_int(field, member, size)]);
        else
            json_write_int64(writer, key, get_int(field, member, size));
        return;
    case JSON_DOUBLE:
        json_write_double(writer, key, *(const double *)(const void *)member);
        return;
    case JSON_BOOL:
        json_write_bool(writer, key, *(const bool *)member);
        return;
    case JSON_NS:
        json_write_double(writer, key, units_s_from_ns(*(const int64_t *)(const void *)member));
        return;
    case JSON_TEXT:
    case JSON_LENT:
        json_write_string(writer, key, *(char *const *)(const void *)member);
        return;
    case JSON_LENTS:
        json_write_array_inline(writer, key);
        for (char *const *text = (char *const *)(const void *)member; *text != NULL; text++)
            json_write_string(writer, NULL, *text);
        json_write_array_end(writer);
        return;
    case JSON_CHARS:
        json_write_string(writer, key, *member == 0 ? NULL : member);
        return;
    default:
        json_fields_write_object(writer, key, field->fields, member);
    }
}

static void
write_field(JsonWriter *writer, const char *key, const JsonField *field, const char *member,
            size_t size)
{
    if ((field->flags & JSON_SPARSE) == 0 || !is_usual(field, member, size))
        write_value(writer, key, field, member, size);
}

void
json_fields_write(JsonWriter *writer, const JsonField *fields, const void *record)
{
    g_return_if_fail(writer != NULL && fields != NULL && record != NULL);

    for (const JsonField *field = fields; field->key != NULL; field++) {
        const char *member = (const char *)record + field->offset;

        if (field->keys == NULL) {
            write_field(writer, field->key, field, member, field->size);
            continue;
        }
        const size_t n = g_strv_length((char **)(void *)field->keys);
        json_write_object_inline(writer, field->key);
        for (size_t i = 0; i < n; i++)
            write_field(writer, field->keys[i], field, member + i * (field->size / n),
                        field->size / n);
        json_write_object_end(writer);
    }
}

void
json_fields_write_object(JsonWriter *writer, const char *key, const JsonField *fields,
                         const void *record)
{
    json_write_object_inline(writer, key);
    json_fields_write(writer, fields, record);
    json_write_object_end(writer);
}

void
json_fields_write_rows(JsonWriter *writer, const char *key, const JsonField *fields,
                       const GArray *rows)
{
    const guint size = g_array_get_element_size((GArray *)rows);

    json_write_array(writer, key);
    for (guint i = 0; i < rows->len; i++)
        json_fields_write_object(writer, NULL, fields, rows->data + (size_t)i * size);
    json_write_array_end(writer);
}
