#include "base/json.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_doc.h"
#include "base/json_path.h"
#include "base/json_scan.h"
#include "base/text.h"

G_DEFINE_QUARK(json_error, json_error)

/* Keys asked for in vain that one object remembers for suggestions. */
#define MAX_ABSENT 256

/* cJSON stores where it failed in a variable of the process. */
G_LOCK_DEFINE_STATIC(cjson);

/* --- building --- */

/*
 * Returns: (owned, nullable) the text with every number that cJSON's buffer cannot hold replaced by
 * 0; the getters read numbers from the original.
 */
static char *
without_long_numbers(const char *text, size_t n_bytes, const JsonScan *scan)
{
    char *copy = g_try_malloc(n_bytes + 1);

    if (copy == NULL)
        return NULL;
    memcpy(copy, text, n_bytes + 1);
    for (size_t i = 0; i < scan->n_values; i++) {
        char *at = copy + scan->values[i].offset;
        size_t n = *at == '-' || g_ascii_isdigit(*at) ? json_scan_number_length(at) : 0;

        if (n > JSON_SCAN_LONG_NUMBER) {
            memset(at, ' ', n);
            *at = '0';
        }
    }
    return copy;
}

/* Returns: (owned, nullable) NULL without memory. */
static cJSON *
parse_tree(const char *text, size_t n_bytes, const JsonScan *scan)
{
    g_autofree char *copy = NULL;
    cJSON *tree;

    if (scan->n_long_numbers > 0) {
        copy = without_long_numbers(text, n_bytes, scan);
        if (copy == NULL)
            return NULL;
    }
    G_LOCK(cjson);
    tree = cJSON_ParseWithLengthOpts(copy != NULL ? copy : text, n_bytes, NULL, false);
    G_UNLOCK(cjson);
    return tree;
}

/* Gives every scanned value its node; false if the two disagree, which would be a bug in one. */
static bool
join_tree(JsonDoc *doc)
{
    const cJSON *parents[JSON_MAX_DEPTH + 1];
    const cJSON *node = doc->tree;
    size_t depth = 0;
    size_t i = 0;

    /* node: the i-th in pre-order; parents[0..depth): the containers it is inside */
    while (node != NULL) {
        if (i == doc->n_values ||
            (doc->values[i].key_offset != JSON_SCAN_NO_KEY) != (node->string != NULL && depth > 0))
            return false;
        doc->values[i++].item = node;
        if (node->child != NULL) {
            if (depth == JSON_MAX_DEPTH)
                return false;
            parents[depth++] = node;
            node = node->child;
            continue;
        }
        while (depth > 0 && node->next == NULL)
            node = parents[--depth];
        node = depth > 0 ? node->next : NULL;
    }
    return i == doc->n_values;
}

static const char *
key_at(const JsonValue *object, uint32_t distance)
{
    return (object + distance)->item->string;
}

/* By key, then by position. */
static int
compare_members(const void *a, const void *b, void *user_data)
{
    const JsonValue *object = user_data;
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    int order = strcmp(key_at(object, x), key_at(object, y));

    return order != 0 ? order : (x > y) - (x < y);
}

static void
fail_duplicate(JsonDoc *doc, const JsonValue *first, const JsonValue *second)
{
    g_autoptr(GString) path = json_doc_path(second);
    g_autofree char *message = NULL;
    size_t line;
    size_t column;

    json_path_locate(doc->text, first->key_offset, &line, &column);
    message = g_strdup_printf("duplicate key; first at line %zu, column %zu", line, column);
    json_doc_set_error(doc, second->key_offset, path->str, message);
}

/* Two members of the same key are an error. */
static void
check_small_object(JsonDoc *doc, const JsonValue *object)
{
    for (const JsonValue *a = json_first(object); a != NULL; a = json_next(a)) {
        for (const JsonValue *b = json_first(object); b != a; b = json_next(b)) {
            if (strcmp(a->item->string, b->item->string) == 0) {
                fail_duplicate(doc, b, a);
                return;
            }
        }
    }
}

/* As above; also fills the object's index, @sorted. */
static void
index_big_object(JsonDoc *doc, const JsonValue *object, uint32_t *sorted)
{
    size_t n = 0;

    for (const JsonValue *v = json_first(object); v != NULL; v = json_next(v))
        sorted[n++] = (uint32_t)(v - object);
    qsort_r(sorted, n, sizeof(*sorted), compare_members, (void *)object);
    for (size_t i = 1; i < n && doc->error == NULL; i++) {
        if (strcmp(key_at(object, sorted[i - 1]), key_at(object, sorted[i])) == 0)
            fail_duplicate(doc, object + sorted[i - 1], object + sorted[i]);
    }
}

static bool
is_big_object(const JsonValue *value)
{
    return json_is_object(value) && value->n_children > JSON_SMALL_OBJECT;
}

/* False without memory.  Duplicates are left in doc->error. */
static bool
index_objects(JsonDoc *doc)
{
    uint32_t n_sorted = 0;

    for (size_t i = 0; i < doc->n_values; i++) {
        if (is_big_object(&doc->values[i])) {
            doc->values[i].sorted = n_sorted;
            n_sorted += doc->values[i].n_children;
        }
    }
    doc->sorted = g_try_malloc_n((size_t)n_sorted + 1, sizeof(uint32_t));
    if (doc->sorted == NULL)
        return false;
    for (size_t i = 0; i < doc->n_values && doc->error == NULL; i++) {
        const JsonValue *value = &doc->values[i];

        if (is_big_object(value))
            index_big_object(doc, value, doc->sorted + value->sorted);
        else if (json_is_object(value))
            check_small_object(doc, value);
    }
    return true;
}

/* @text  (owned) NUL-terminated; taken. */
static JsonDoc *
parse(const char *name, char *text, size_t n_bytes, GError **error)
{
    g_autoptr(JsonDoc) doc = g_new0(JsonDoc, 1);
    JsonScan scan;

    doc->name = g_strdup(strcmp(name, "-") == 0 ? "(standard input)" : name);
    doc->text = text;
    doc->absent = g_hash_table_new_full(NULL, NULL, NULL, (GDestroyNotify)g_ptr_array_unref);
    doc->keys = g_string_chunk_new(256);
    if (!json_scan(&scan, text, n_bytes)) {
        g_propagate_error(error, json_path_error(doc->name, text, scan.fault_offset,
                                                 scan.fault_path, scan.fault));
        json_scan_clear(&scan);
        return NULL;
    }
    doc->values = g_steal_pointer(&scan.values);
    doc->n_values = scan.n_values;
    scan.values = doc->values;
    doc->tree = parse_tree(text, n_bytes, &scan);
    if (doc->tree == NULL || !join_tree(doc) || !index_objects(doc)) {
        g_propagate_error(error, json_path_error(doc->name, text, 0, "$",
                                                 "out of memory for the values of this file"));
        return NULL;
    }
    if (!json_doc_finish(doc, error))
        return NULL;
    return g_steal_pointer(&doc);
}

JsonDoc *
json_doc_load(const char *path, GError **error)
{
    char *text;
    size_t n_bytes;

    g_return_val_if_fail(path != NULL, NULL);

    if (!file_read_max(path, JSON_MAX_BYTES, &text, &n_bytes, error))
        return NULL;
    return parse(path, text, n_bytes, error);
}

JsonDoc *
json_doc_parse(const char *name, const char *text, size_t n_bytes, GError **error)
{
    g_autofree char *shown = NULL;
    char *copy = NULL;

    g_return_val_if_fail(name != NULL && (text != NULL || n_bytes == 0), NULL);

    if (n_bytes <= JSON_MAX_BYTES)
        copy = g_try_malloc(n_bytes + 1);
    if (copy == NULL) {
        shown = text_escape(name, JSON_MAX_MESSAGE_BYTES);
        g_set_error(error, JSON_ERROR, JSON_ERROR_INVALID,
                    "%s: larger than the limit of %u bytes, or than memory", shown, JSON_MAX_BYTES);
        return NULL;
    }
    if (n_bytes > 0)
        memcpy(copy, text, n_bytes);
    copy[n_bytes] = 0;
    return parse(name, copy, n_bytes, error);
}

void
json_doc_free(JsonDoc *doc)
{
    if (doc == NULL)
        return;
    cJSON_Delete(doc->tree);
    g_free(doc->name);
    g_free(doc->text);
    g_free(doc->values);
    g_free(doc->sorted);
    g_clear_error(&doc->error);
    g_clear_pointer(&doc->absent, g_hash_table_unref);
    g_clear_pointer(&doc->keys, g_string_chunk_free);
    g_free(doc);
}

/* --- looking up --- */

const JsonValue *
json_doc_lookup(const JsonDoc *doc, const JsonValue *object, const char *key)
{
    size_t low = 0;
    size_t high = object->n_children;

    if (!is_big_object(object)) {
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
json_doc_ask(JsonDoc *doc, const JsonValue *object, const char *key)
{
    const JsonValue *member;

    g_return_val_if_fail(doc != NULL && object != NULL && key != NULL, NULL);

    if (!json_is_object(object)) {
        json_doc_fail_expected(doc, object, "an object");
        return NULL;
    }
    member = json_doc_lookup(doc, object, key);
    if (member != NULL)
        doc->values[member - doc->values].asked = true;
    else if (json_doc_holds(doc, object))
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

/*
 * Reports the first member that nobody asked for.  @only  (nullable) just one whose nearest asked
 * key this is.
 */
static void
fail_unknown(JsonDoc *doc, const JsonValue *object, const char *only)
{
    g_autoptr(GPtrArray) keys = NULL;

    for (const JsonValue *v = json_first(object); v != NULL; v = json_next(v)) {
        const char *nearest;
        g_autofree char *message = NULL;
        g_autoptr(GString) path = NULL;

        if (v->asked)
            continue;
        if (keys == NULL)
            keys = asked_keys(doc, object);
        nearest = text_nearest(v->item->string, (const char *const *)keys->pdata);
        if (only != NULL && g_strcmp0(nearest, only) != 0)
            continue;
        path = json_doc_path(v);
        message = nearest == NULL ? g_strdup("unknown key")
                                  : g_strdup_printf("unknown key; did you mean \"%s\"?", nearest);
        json_doc_set_error(doc, v->key_offset, path->str, message);
        return;
    }
}

void
json_object_end(JsonDoc *doc, const JsonValue *object)
{
    g_return_if_fail(doc != NULL && object != NULL);

    if (!json_is_object(object))
        json_doc_fail_expected(doc, object, "an object");
    else if (doc->error == NULL)
        fail_unknown(doc, object, NULL);
    else if (doc->missing_in == object)
        fail_unknown(doc, object, doc->missing_key);
    g_hash_table_remove(doc->absent, object);
}
