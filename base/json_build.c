#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "base/embedded.h"
#include "base/file.h"
#include "base/json_tree.h"
#include "base/json_yaml.h"
#include "base/text.h"

/* cJSON stores where it failed in a variable of the process. */
G_LOCK_DEFINE_STATIC(cjson);

/* Returns: (owned, nullable) the text with every number that cJSON's buffer cannot hold replaced by
 * 0; the getters read numbers from the original. */
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

    if (scan->n_long_numbers > 0) {
        copy = without_long_numbers(text, n_bytes, scan);
        if (copy == NULL)
            return NULL;
    }
    G_LOCK(cjson);
    cJSON *tree = cJSON_ParseWithLengthOpts(copy != NULL ? copy : text, n_bytes, NULL, false);
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
    g_autoptr(GString) path = json_tree_path(second);
    size_t line;
    size_t column;

    json_path_locate(doc->text, first->key_offset, &line, &column);
    g_autofree char *message =
        g_strdup_printf("duplicate key; first at line %zu, column %zu", line, column);
    json_tree_set_error(doc, second->key_offset, path->str, message);
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

/* False without memory.  Duplicates are left in doc->error. */
static bool
index_objects(JsonDoc *doc)
{
    uint32_t n_sorted = 0;

    for (size_t i = 0; i < doc->n_values; i++) {
        if (json_tree_is_big(&doc->values[i])) {
            doc->values[i].sorted = n_sorted;
            n_sorted += doc->values[i].n_children;
        }
    }
    doc->sorted = g_try_malloc_n((size_t)n_sorted + 1, sizeof(uint32_t));
    if (doc->sorted == NULL)
        return false;
    for (size_t i = 0; i < doc->n_values && doc->error == NULL; i++) {
        const JsonValue *value = &doc->values[i];

        if (json_tree_is_big(value))
            index_big_object(doc, value, doc->sorted + value->sorted);
        else if (json_is_object(value))
            check_small_object(doc, value);
    }
    return true;
}

/* Puts null in the place of Infinity and -Infinity, outside of strings: what Python writes into the
 * config.json of models with a state. */
static void
replace_infinities(char *text)
{
    static const char *const words[] = {"-Infinity", "Infinity"};
    bool is_string = false;

    for (char *at = text; *at != '\0'; at++) {
        if (is_string && *at == '\\' && at[1] != '\0')
            at++;
        else if (*at == '"')
            is_string = !is_string;
        for (size_t i = 0; i < G_N_ELEMENTS(words) && !is_string; i++) {
            const size_t length = strlen(words[i]);
            if (strncmp(at, words[i], length) == 0) {
                memset(at, ' ', length);
                memcpy(at, "null", strlen("null"));
            }
        }
    }
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
    doc->also_missing = g_string_new(NULL);
    if (strstr(text, "\"model_type\"") != NULL)
        replace_infinities(text);
    if (!json_scan(&scan, text, n_bytes)) {
        GError *fault =
            json_path_error(doc->name, text, scan.fault_offset, scan.fault_path, scan.fault);

        if (scan.lacks_memory)
            fault->code = JSON_ERROR_MEMORY;
        g_propagate_error(error, fault);
        json_scan_clear(&scan);
        return NULL;
    }
    doc->values = g_steal_pointer(&scan.values);
    doc->n_values = scan.n_values;
    scan.values = doc->values;
    doc->tree = parse_tree(text, n_bytes, &scan);
    if (doc->tree == NULL || !join_tree(doc) || !index_objects(doc)) {
        g_set_error(error, JSON_ERROR, JSON_ERROR_MEMORY,
                    "%s: out of memory for the values of this file", doc->name);
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
    if (json_yaml_is_name(path)) {
        g_autofree char *yaml = text;

        text = json_yaml_convert(path, yaml, n_bytes, &n_bytes, error);
        if (text == NULL)
            return NULL;
    }
    return parse(path, text, n_bytes, error);
}

JsonDoc *
json_doc_parse(const char *name, const char *text, size_t n_bytes, GError **error)
{
    g_autofree char *shown = NULL;
    char *copy = NULL;

    g_return_val_if_fail(name != NULL && (text != NULL || n_bytes == 0), NULL);

    const bool fits = n_bytes <= JSON_MAX_BYTES;
    if (fits)
        copy = g_try_malloc(n_bytes + 1);
    if (copy == NULL) {
        shown = text_escape(name, JSON_MAX_MESSAGE_BYTES);
        g_set_error(error, JSON_ERROR, fits ? JSON_ERROR_MEMORY : JSON_ERROR_INVALID,
                    "%s: larger than the limit of %u bytes, or than memory", shown, JSON_MAX_BYTES);
        return NULL;
    }
    if (n_bytes > 0)
        memcpy(copy, text, n_bytes);
    copy[n_bytes] = 0;
    return parse(name, copy, n_bytes, error);
}

JsonDoc *
json_doc_load_builtin(const char *folder, const char *name, const char *missing, GError **error)
{
    g_autofree char *prefix = g_strconcat(folder, "/", NULL);
    g_autofree char *path = g_strconcat(prefix, name, ".json", NULL);
    const EmbeddedFile *file = embedded_find(path);
    GError *local = NULL;
    JsonDoc *doc = file == NULL ? json_doc_load(name, &local)
                                : json_doc_parse(file->path, file->text,
                                                 (size_t)(file->end - file->text), &local);

    if (g_error_matches(local, G_FILE_ERROR, G_FILE_ERROR_NOENT)) {
        g_autoptr(GPtrArray) names = embedded_names(prefix, ".json");
        g_autofree char *shown = text_escape(name, 200);

        g_clear_error(&local);
        g_ptr_array_add(names, NULL);
        g_autofree char *suggestion = text_suggestion(name, (const char *const *)names->pdata);
        g_set_error(error, G_FILE_ERROR, G_FILE_ERROR_NOENT, "%s: %s%s", shown, missing,
                    suggestion);
    } else if (local != NULL) {
        g_propagate_error(error, local);
    }
    return doc;
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
    if (doc->also_missing != NULL)
        g_string_free(doc->also_missing, TRUE);
    g_clear_error(&doc->error);
    g_clear_pointer(&doc->absent, g_hash_table_unref);
    g_clear_pointer(&doc->keys, g_string_chunk_free);
    g_free(doc);
}
