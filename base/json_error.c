/* Positions in a document and its first error. */
#include <cjson/cJSON.h>
#include <string.h>

#include "base/json_doc.h"
#include "base/json_path.h"
#include "base/text.h"

bool
json_doc_holds(const JsonDoc *doc, const JsonValue *value)
{
    uintptr_t at = (uintptr_t)value;

    return at >= (uintptr_t)doc->values && at < (uintptr_t)(doc->values + doc->n_values);
}

GString *
json_doc_path(const JsonValue *value)
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
json_doc_set_error(JsonDoc *doc, size_t offset, const char *path, const char *message)
{
    g_clear_error(&doc->error);
    doc->missing_in = NULL;
    doc->error = json_path_error(doc->name, doc->text, offset, path, message);
}

void
json_fail(JsonDoc *doc, const JsonValue *value, const char *format, ...)
{
    g_autofree char *message = NULL;
    va_list args;

    g_return_if_fail(doc != NULL && format != NULL);

    if (doc->error != NULL)
        return;
    va_start(args, format);
    message = g_strdup_vprintf(format, args);
    va_end(args);
    if (value != NULL && json_doc_holds(doc, value)) {
        g_autoptr(GString) path = json_doc_path(value);

        json_doc_set_error(doc, value->offset, path->str, message);
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
json_doc_fail_expected(JsonDoc *doc, const JsonValue *value, const char *what)
{
    g_autofree char *got = NULL;

    if (doc->error != NULL)
        return;
    got = describe(doc, value);
    json_fail(doc, value, "expected %s, got %s", what, got);
}

void
json_doc_fail_missing(JsonDoc *doc, const JsonValue *object, const char *key)
{
    g_autoptr(GString) path = NULL;

    if (doc->error != NULL || !json_doc_holds(doc, object) || !json_is_object(object))
        return;
    path = json_doc_path(object);
    json_path_append_key(path, key, strlen(key));
    json_doc_set_error(doc, object->offset, path->str, "missing key");
    doc->missing_in = object;
    doc->missing_key = g_string_chunk_insert_const(doc->keys, key);
}
