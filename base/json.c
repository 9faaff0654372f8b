#include "base/json.h"

#include <cjson/cJSON.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/embedded.h"
#include "base/file.h"
#include "base/json_scan.h"
#include "base/json_yaml.h"
#include "base/text.h"

G_DEFINE_QUARK(json_error, json_error)

/* Objects with more members are searched by bisection, others in order. */
#define SMALL_OBJECT 16
/* Keys asked for in vain that one object remembers for suggestions. */
#define MAX_ABSENT 256
/* A message names at most so many missing keys after the first. */
#define MAX_ALSO_MISSING 20

/* The tree is cJSON's; JsonValue (json_scan.h) adds positions.  values[] is in pre-order, so that
 * the first child of v is v + 1, its next sibling v + v->n_nodes and its parent v - v->up. */
struct JsonDoc {
    char *name;
    char *text; /* kept for numbers, which cJSON rounds, and for positions */
    struct cJSON *tree;
    JsonValue *values;
    size_t n_values;
    uint32_t *sorted; /* members of big objects, as distances from the object, by key */
    GError *error;    /* (nullable) the first one */
    /* When that error is a missing key: an unknown key of the same object may be the reason. */
    const JsonValue *missing_in;
    const char *missing_key;
    GString *also_missing; /* (nullable) the paths of other missing keys, with commas between */
    int n_also_missing;
    GHashTable
        *absent; /* object -> GPtrArray of the keys that were asked for in vain; lookup only */
    GStringChunk *keys; /* owns those keys */
};

static bool
is_type(const JsonValue *value, int type)
{
    return (value->item->type & 0xff) == type;
}

/* --- positions and errors --- */

/* Whether @value is of this document: getters return others after an error. */
static bool
is_inside(const JsonDoc *doc, const JsonValue *value)
{
    uintptr_t at = (uintptr_t)value;

    return at >= (uintptr_t)doc->values && at < (uintptr_t)(doc->values + doc->n_values);
}

/* Returns: (owned) $.path.to[3].value */
static GString *
path_of(const JsonValue *value)
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

/* Records @message at @path, @offset bytes into the text, in place of an earlier error. */
static void
set_error(JsonDoc *doc, size_t offset, const char *path, const char *message)
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
    if (value != NULL && is_inside(doc, value)) {
        g_autoptr(GString) path = path_of(value);

        set_error(doc, value->offset, path->str, message);
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

/* Records "expected WHAT, got ..." at @value. */
static void
fail_expected(JsonDoc *doc, const JsonValue *value, const char *what)
{
    if (doc->error != NULL)
        return;
    g_autofree char *got = describe(doc, value);
    json_fail(doc, value, "expected %s, got %s", what, got);
}

/* Records that @key must be in @object, beside other missing keys. */
static void
fail_missing(JsonDoc *doc, const JsonValue *object, const char *key)
{
    const bool is_first = doc->error == NULL;

    if ((!is_first && (doc->missing_in == NULL || doc->n_also_missing >= MAX_ALSO_MISSING)) ||
        !is_inside(doc, object) || !json_is_object(object))
        return;
    if (is_first) {
        doc->missing_in = object;
        doc->missing_key = g_string_chunk_insert_const(doc->keys, key);
        doc->n_also_missing = 0;
        g_string_set_size(doc->also_missing, 0);
    } else {
        g_autoptr(GString) other = path_of(object);
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
    g_autoptr(GString) path = path_of(first);
    json_path_append_key(path, doc->missing_key, strlen(doc->missing_key));
    g_autofree char *message = g_strconcat("missing key", doc->also_missing->str, NULL);
    set_error(doc, first->offset, path->str, message);
    doc->missing_in = first;
}

/* --- looking up --- */

static bool
is_big_object(const JsonValue *value)
{
    return json_is_object(value) && value->n_children > SMALL_OBJECT;
}

/* Returns: (borrowed, nullable) the member; no trace is left.  @object is an object. */
static const JsonValue *
find_member(const JsonDoc *doc, const JsonValue *object, const char *key)
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

/* Returns: (borrowed, nullable) the member, marked as asked for; NULL when absent, which is noted
 * for suggestions, or when @object is none, which is an error. */
static const JsonValue *
ask_member(JsonDoc *doc, const JsonValue *object, const char *key)
{
    g_return_val_if_fail(doc != NULL && object != NULL && key != NULL, NULL);

    if (!json_is_object(object)) {
        fail_expected(doc, object, "an object");
        return NULL;
    }
    const JsonValue *member = find_member(doc, object, key);
    if (member != NULL)
        doc->values[member - doc->values].asked = true;
    else if (is_inside(doc, object))
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
        g_autoptr(GString) path = path_of(v);
        g_autofree char *message =
            nearest == NULL ? g_strdup("unknown key")
                            : g_strdup_printf("unknown key; did you mean \"%s\"?", nearest);
        set_error(doc, v->key_offset, path->str, message);
        return;
    }
}

void
json_object_end(JsonDoc *doc, const JsonValue *object)
{
    g_return_if_fail(doc != NULL && object != NULL);

    if (!json_is_object(object))
        fail_expected(doc, object, "an object");
    else if (doc->error == NULL)
        fail_unknown(doc, object, NULL);
    else if (doc->missing_in == object)
        fail_unknown(doc, object, doc->missing_key);
    g_hash_table_remove(doc->absent, object);
}

/* --- building --- */

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
    g_autoptr(GString) path = path_of(second);
    size_t line;
    size_t column;

    json_path_locate(doc->text, first->key_offset, &line, &column);
    g_autofree char *message =
        g_strdup_printf("duplicate key; first at line %zu, column %zu", line, column);
    set_error(doc, second->key_offset, path->str, message);
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

/* --- numbers: from the text, as cJSON rounds them --- */

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

    if (read_integer(literal, value))
        return true;
    after += strspn(after, "0123456789");
    if (*after != '.' && *after != 'e' && *after != 'E')
        return false;
    double number = g_ascii_strtod(literal, NULL);
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
    fail_expected(doc, value, expected != NULL ? expected : range);
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

/* What a failed getter returns: finite and in range. */
static double
harmless_double(double min, double max)
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
        fail_expected(doc, value, expected);
    }
    return harmless_double(min, max);
}

/* What getters return after an error; not inside any document. */
static const cJSON empty_object_item = {.type = cJSON_Object};
static const cJSON empty_array_item = {.type = cJSON_Array};
static const JsonValue empty_object = {.item = &empty_object_item, .n_nodes = 1};
static const JsonValue empty_array = {.item = &empty_array_item, .n_nodes = 1};

/* --- the document --- */

const char *
json_doc_name(const JsonDoc *doc)
{
    g_return_val_if_fail(doc != NULL, "");

    return doc->name;
}

const char *
json_doc_format(const JsonDoc *doc)
{
    g_return_val_if_fail(doc != NULL, NULL);

    if (!json_is_object(doc->values))
        return NULL;
    const JsonValue *format = find_member(doc, doc->values, "format");
    return format != NULL && json_is_string(format) ? format->item->valuestring : NULL;
}

bool
json_doc_failed(const JsonDoc *doc)
{
    g_return_val_if_fail(doc != NULL, true);

    return doc->error != NULL;
}

bool
json_doc_finish(JsonDoc *doc, GError **error)
{
    g_return_val_if_fail(doc != NULL, false);

    if (doc->error == NULL)
        return true;
    g_propagate_error(error, g_error_copy(doc->error));
    return false;
}

const JsonValue *
json_doc_root(JsonDoc *doc, const char *format, int64_t version)
{
    g_return_val_if_fail(doc != NULL, &empty_object);

    const JsonValue *root = doc->values;
    if (format == NULL)
        return root;
    if (!json_is_object(root)) {
        fail_expected(doc, root, "an object");
        return &empty_object;
    }
    const JsonValue *member = ask_member(doc, root, "format");
    if (member == NULL) {
        fail_missing(doc, root, "format");
    } else if (!json_is_string(member) || strcmp(member->item->valuestring, format) != 0) {
        g_autofree char *expected = g_strdup_printf("\"%s\"", format);

        fail_expected(doc, member, expected);
    }
    member = ask_member(doc, root, "version");
    if (member == NULL) {
        fail_missing(doc, root, "version");
    } else {
        int64_t found = json_value_int64(doc, member, 1, JSON_MAX_INT);

        if (found > version)
            json_fail(doc, member,
                      "version %" G_GINT64_FORMAT
                      " is newer than this program, which reads up to %" G_GINT64_FORMAT,
                      found, version);
    }
    return root;
}

/* --- values --- */

const char *
json_value_string(JsonDoc *doc, const JsonValue *value)
{
    g_return_val_if_fail(doc != NULL && value != NULL, "");

    if (json_is_string(value))
        return value->item->valuestring;
    fail_expected(doc, value, "a string");
    return "";
}

static bool
value_bool(JsonDoc *doc, const JsonValue *value)
{
    if (!is_type(value, cJSON_True) && !is_type(value, cJSON_False))
        fail_expected(doc, value, "true or false");
    return is_type(value, cJSON_True);
}

/* --- members --- */

/* The member, or NULL with an error. */
static const JsonValue *
require(JsonDoc *doc, const JsonValue *object, const char *key)
{
    const JsonValue *member = ask_member(doc, object, key);

    if (member == NULL)
        fail_missing(doc, object, key);
    return member;
}

bool
json_has(const JsonDoc *doc, const JsonValue *object, const char *key)
{
    g_return_val_if_fail(doc != NULL && object != NULL && key != NULL, false);

    return json_is_object(object) && find_member(doc, object, key) != NULL;
}

const JsonValue *
json_member(JsonDoc *doc, const JsonValue *object, const char *key)
{
    return ask_member(doc, object, key);
}

void
json_ignore(JsonDoc *doc, const JsonValue *object, const char *key)
{
    ask_member(doc, object, key);
}

int64_t
json_int64(JsonDoc *doc, const JsonValue *object, const char *key, int64_t min, int64_t max)
{
    const JsonValue *member = require(doc, object, key);

    return member == NULL ? min : json_value_int64(doc, member, min, max);
}

int64_t
json_int64_or(JsonDoc *doc, const JsonValue *object, const char *key, int64_t min, int64_t max,
              int64_t fallback)
{
    const JsonValue *member = ask_member(doc, object, key);

    return member == NULL ? fallback : json_value_int64(doc, member, min, max);
}

double
json_double(JsonDoc *doc, const JsonValue *object, const char *key, double min, double max)
{
    const JsonValue *member = require(doc, object, key);

    return member == NULL ? harmless_double(min, max) : json_value_double(doc, member, min, max);
}

double
json_double_or(JsonDoc *doc, const JsonValue *object, const char *key, double min, double max,
               double fallback)
{
    const JsonValue *member = ask_member(doc, object, key);

    return member == NULL ? fallback : json_value_double(doc, member, min, max);
}

bool
json_bool(JsonDoc *doc, const JsonValue *object, const char *key)
{
    const JsonValue *member = require(doc, object, key);

    return member != NULL && value_bool(doc, member);
}

bool
json_bool_or(JsonDoc *doc, const JsonValue *object, const char *key, bool fallback)
{
    const JsonValue *member = ask_member(doc, object, key);

    return member == NULL ? fallback : value_bool(doc, member);
}

const char *
json_string(JsonDoc *doc, const JsonValue *object, const char *key)
{
    const JsonValue *member = require(doc, object, key);

    return member == NULL ? "" : json_value_string(doc, member);
}

const char *
json_string_or(JsonDoc *doc, const JsonValue *object, const char *key, const char *fallback)
{
    const JsonValue *member = ask_member(doc, object, key);

    return member == NULL ? fallback : json_value_string(doc, member);
}

/* The index of the value in @names; an error and @otherwise when it is none of them. */
static int
value_enum(JsonDoc *doc, const JsonValue *value, const char *const *names, int otherwise)
{
    for (int i = 0; json_is_string(value) && names[i] != NULL; i++) {
        if (strcmp(names[i], value->item->valuestring) == 0)
            return i;
    }
    if (doc->error != NULL)
        return otherwise;
    g_autoptr(GString) expected = g_string_new(NULL);
    for (int i = 0; names[i] != NULL; i++)
        g_string_append_printf(expected, "%s\"%s\"",
                               i == 0                 ? ""
                               : names[i + 1] == NULL ? " or "
                                                      : ", ",
                               names[i]);
    const char *nearest =
        json_is_string(value) ? text_nearest(value->item->valuestring, names) : NULL;
    if (nearest != NULL) {
        g_autofree char *shown = text_escape(value->item->valuestring, 48);

        json_fail(doc, value, "expected %s, got \"%s\"; did you mean \"%s\"?", expected->str, shown,
                  nearest);
    } else {
        fail_expected(doc, value, expected->str);
    }
    return otherwise;
}

int
json_enum(JsonDoc *doc, const JsonValue *object, const char *key, const char *const *names)
{
    const JsonValue *member = require(doc, object, key);

    g_return_val_if_fail(names != NULL, 0);

    return member == NULL ? 0 : value_enum(doc, member, names, 0);
}

int
json_enum_or(JsonDoc *doc, const JsonValue *object, const char *key, const char *const *names,
             int fallback)
{
    const JsonValue *member = ask_member(doc, object, key);

    g_return_val_if_fail(names != NULL, fallback);

    return member == NULL ? fallback : value_enum(doc, member, names, fallback);
}

/* @member if it is what was asked for, else @otherwise, with an error unless it is absent. */
static const JsonValue *
accept(JsonDoc *doc, const JsonValue *member, bool is_right, const char *what,
       const JsonValue *otherwise)
{
    if (member != NULL && !is_right)
        fail_expected(doc, member, what);
    return is_right ? member : otherwise;
}

const JsonValue *
json_object(JsonDoc *doc, const JsonValue *object, const char *key)
{
    const JsonValue *member = require(doc, object, key);

    return accept(doc, member, json_is_object(member), "an object", &empty_object);
}

const JsonValue *
json_array(JsonDoc *doc, const JsonValue *object, const char *key)
{
    const JsonValue *member = require(doc, object, key);

    return accept(doc, member, json_is_array(member), "an array", &empty_array);
}

const JsonValue *
json_object_or_null(JsonDoc *doc, const JsonValue *object, const char *key)
{
    const JsonValue *member = ask_member(doc, object, key);

    if (json_is_null(member))
        return NULL;
    return accept(doc, member, json_is_object(member), "an object or null", NULL);
}

const JsonValue *
json_array_or_null(JsonDoc *doc, const JsonValue *object, const char *key)
{
    const JsonValue *member = ask_member(doc, object, key);

    if (json_is_null(member))
        return NULL;
    return accept(doc, member, json_is_array(member), "an array or null", NULL);
}

/* --- elements --- */

size_t
json_length(const JsonValue *array)
{
    g_return_val_if_fail(array != NULL, 0);

    return array->n_children;
}

const JsonValue *
json_first(const JsonValue *array)
{
    g_return_val_if_fail(array != NULL, NULL);

    return array->n_children > 0 ? array + 1 : NULL;
}

const JsonValue *
json_next(const JsonValue *value)
{
    g_return_val_if_fail(value != NULL, NULL);

    return value->item->next != NULL ? value + value->n_nodes : NULL;
}

const char *
json_key(const JsonValue *member)
{
    g_return_val_if_fail(member != NULL, NULL);

    return member->item->string;
}

bool
json_is_object(const JsonValue *value)
{
    return value != NULL && is_type(value, cJSON_Object);
}

bool
json_is_array(const JsonValue *value)
{
    return value != NULL && is_type(value, cJSON_Array);
}

bool
json_is_string(const JsonValue *value)
{
    return value != NULL && is_type(value, cJSON_String);
}

bool
json_is_number(const JsonValue *value)
{
    return value != NULL && is_type(value, cJSON_Number);
}

bool
json_is_null(const JsonValue *value)
{
    return value != NULL && is_type(value, cJSON_NULL);
}
