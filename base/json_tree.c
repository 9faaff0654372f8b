#include "base/json_tree.h"

#include <cjson/cJSON.h>
#include <string.h>

#include "base/text.h"

/* Keys asked for in vain that one object remembers for suggestions. */
#define MAX_ABSENT 256
/* A message names at most so many missing keys after the first. */
#define MAX_ALSO_MISSING 20

/* --- positions and errors --- */

bool
json_tree_has(const JsonDoc *doc, const JsonValue *value)
{
    uintptr_t at = (uintptr_t)value;

    return at >= (uintptr_t)doc->values && at < (uintptr_t)(doc->values + doc->n_values);
}

GString *
json_tree_path(const JsonValue *value)
{
    const JsonValue *chain[JSON_MAX_DEPTH + 1];
    size_t n = 0;
    GString *path = g_string_new("$");

    for (const JsonValue *v = value; v->up != 0; v -= v->up)
        chain[n++] = v;
    while (n > 0) {
        const JsonValue *v = chain[--n];

        if (v->key_offset != JSON_SCAN_NO_KEY) {
            json_path_append_key(path, v->item->string, strlen(v->item->string));
        } else {
            size_t index = 0;

            for (const JsonValue *w = v - v->up + 1; w < v; w += w->n_nodes)
                index++;
            g_string_append_printf(path, "[%zu]", index);
        }
    }
    return path;
}

void
json_tree_set_error(JsonDoc *doc, size_t offset, const char *path, const char *message)
{
    g_clear_error(&doc->error);
    doc->missing_in = NULL;
    doc->error = json_path_error(doc->name, doc->text, offset, path, message);
}

void
json_fail(JsonDoc *doc, const JsonValue *value, const char *format, ...)
{
    va_list args;

    g_return_if_fail(doc != NULL && format != NULL);

    if (doc->error != NULL)
        return;
    va_start(args, format);
    g_autofree char *message = g_strdup_vprintf(format, args);
    va_end(args);
    if (value != NULL && json_tree_has(doc, value)) {
        g_autoptr(GString) path = json_tree_path(value);

        json_tree_set_error(doc, value->offset, path->str, message);
    } else {
        g_autofree char *shown_name = text_escape(doc->name, JSON_MAX_MESSAGE_BYTES);
        g_autofree char *shown = text_escape(message, JSON_MAX_MESSAGE_BYTES);

        doc->error = g_error_new(JSON_ERROR, JSON_ERROR_INVALID, "%s: %s", shown_name, shown);
    }
}

/* Returns: (owned) the value in few words. */
static char *
describe(const JsonDoc *doc, const JsonValue *value)
{
    const char *literal = doc->text + value->offset;
    size_t n = json_scan_number_length(literal);
    g_autofree char *shown = NULL;

    switch (value->item->type & 0xff) {
    case cJSON_Object:
        return g_strdup("an object");
    case cJSON_Array:
        return g_strdup("an array");
    case cJSON_String:
        shown = text_escape(value->item->valuestring, 48);
        return g_strdup_printf("\"%s\"", shown);
    case cJSON_Number:
        return g_strdup_printf("%.*s%s", (int)MIN(n, 40), literal, n > 40 ? "..." : "");
    case cJSON_True:
        return g_strdup("true");
    case cJSON_False:
        return g_strdup("false");
    default:
        return g_strdup("null");
    }
}

void
json_tree_fail_expected(JsonDoc *doc, const JsonValue *value, const char *what)
{
    if (doc->error != NULL)
        return;
    g_autofree char *got = describe(doc, value);
    json_fail(doc, value, "expected %s, got %s", what, got);
}

void
json_tree_fail_missing(JsonDoc *doc, const JsonValue *object, const char *key)
{
    const bool is_first = doc->error == NULL;

    if ((!is_first && (doc->missing_in == NULL || doc->n_also_missing >= MAX_ALSO_MISSING)) ||
        !json_tree_has(doc, object) || !json_is_object(object))
        return;
    if (is_first) {
        doc->missing_in = object;
        doc->missing_key = g_string_chunk_insert_const(doc->keys, key);
        doc->n_also_missing = 0;
        g_string_set_size(doc->also_missing, 0);
    } else {
        g_autoptr(GString) other = json_tree_path(object);
        json_path_append_key(other, key, strlen(key));
        g_auto(GStrv) known = g_strsplit(doc->also_missing->str, " ", -1);
        g_autofree char *with_comma = g_strconcat(other->str, ",", NULL);
        if ((doc->missing_in == object && strcmp(doc->missing_key, key) == 0) ||
            g_strv_contains((const char *const *)known, other->str) ||
            g_strv_contains((const char *const *)known, with_comma))
            return;
        g_string_append_printf(doc->also_missing, "%s%s",
                               doc->n_also_missing++ == 0 ? "; also missing: " : ", ", other->str);
    }
    const JsonValue *first = doc->missing_in;
    g_autoptr(GString) path = json_tree_path(first);
    json_path_append_key(path, doc->missing_key, strlen(doc->missing_key));
    g_autofree char *message = g_strconcat("missing key", doc->also_missing->str, NULL);
    json_tree_set_error(doc, first->offset, path->str, message);
    doc->missing_in = first;
}

/* --- looking up --- */

const JsonValue *
json_tree_find(const JsonDoc *doc, const JsonValue *object, const char *key)
{
    size_t low = 0;
    size_t high = object->n_children;

    if (!json_tree_is_big(object)) {
        for (const JsonValue *v = json_first(object); v != NULL; v = json_next(v)) {
            if (strcmp(v->item->string, key) == 0)
                return v;
        }
        return NULL;
    }
    /* the key, if present, is in sorted[low..high) */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const JsonValue *v = object + doc->sorted[object->sorted + middle];
        int order = strcmp(key, v->item->string);

        if (order == 0)
            return v;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

static void
note_absent(JsonDoc *doc, const JsonValue *object, const char *key)
{
    GPtrArray *keys = g_hash_table_lookup(doc->absent, object);

    if (keys == NULL) {
        keys = g_ptr_array_new();
        g_hash_table_insert(doc->absent, (gpointer)object, keys);
    }
    if (keys->len < MAX_ABSENT)
        g_ptr_array_add(keys, g_string_chunk_insert_const(doc->keys, key));
}

const JsonValue *
json_tree_ask(JsonDoc *doc, const JsonValue *object, const char *key)
{
    g_return_val_if_fail(doc != NULL && object != NULL && key != NULL, NULL);

    if (!json_is_object(object)) {
        json_tree_fail_expected(doc, object, "an object");
        return NULL;
    }
    const JsonValue *member = json_tree_find(doc, object, key);
    if (member != NULL)
        doc->values[member - doc->values].asked = true;
    else if (json_tree_has(doc, object))
        note_absent(doc, object, key);
    return member;
}

/* Returns: (owned) GPtrArray of (borrowed) keys, NULL-terminated: those not found first. */
static GPtrArray *
asked_keys(const JsonDoc *doc, const JsonValue *object)
{
    GPtrArray *keys = g_ptr_array_new();
    const GPtrArray *absent = g_hash_table_lookup(doc->absent, object);

    for (size_t i = 0; absent != NULL && i < absent->len; i++)
        g_ptr_array_add(keys, absent->pdata[i]);
    for (const JsonValue *v = json_first(object); v != NULL; v = json_next(v)) {
        if (v->asked)
            g_ptr_array_add(keys, v->item->string);
    }
    g_ptr_array_add(keys, NULL);
    return keys;
}

/* Reports the first member that nobody asked for.  @only  (nullable) just one whose nearest asked
 * key this is. */
static void
fail_unknown(JsonDoc *doc, const JsonValue *object, const char *only)
{
    g_autoptr(GPtrArray) keys = NULL;

    for (const JsonValue *v = json_first(object); v != NULL; v = json_next(v)) {
        if (v->asked)
            continue;
        if (keys == NULL)
            keys = asked_keys(doc, object);
        const char *nearest = text_nearest(v->item->string, (const char *const *)keys->pdata);
        if (only != NULL && g_strcmp0(nearest, only) != 0)
            continue;
        g_autoptr(GString) path = json_tree_path(v);
        g_autofree char *message =
            nearest == NULL ? g_strdup("unknown key")
                            : g_strdup_printf("unknown key; did you mean \"%s\"?", nearest);
        json_tree_set_error(doc, v->key_offset, path->str, message);
        return;
    }
}

void
json_object_end(JsonDoc *doc, const JsonValue *object)
{
    g_return_if_fail(doc != NULL && object != NULL);

    if (!json_is_object(object))
        json_tree_fail_expected(doc, object, "an object");
    else if (doc->error == NULL)
        fail_unknown(doc, object, NULL);
    else if (doc->missing_in == object)
        fail_unknown(doc, object, doc->missing_key);
    g_hash_table_remove(doc->absent, object);
}
