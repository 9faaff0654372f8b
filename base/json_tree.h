/*
 * base/json_tree.h - the tree of a JsonDoc: where its values stand, the error that it remembers, and the members of
 * its objects.
 *
 * Private to base/json.c (the getters), json_build.c (which makes documents) and json_tree.c.
 */
#pragma once

#include "base/json_scan.h"

/* Objects with more members are searched by bisection, others in order. */
#define JSON_TREE_SMALL_OBJECT 16

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

/* Whether @value is of this document: getters return others after an error. */
bool json_tree_has(const JsonDoc *doc, const JsonValue *value);

/* Returns: (owned) $.path.to[3].value */
GString *json_tree_path(const JsonValue *value);

/* --- errors --- */

/* Records @message at @path, @offset bytes into the text, in place of an earlier error. */
void json_tree_set_error(JsonDoc *doc, size_t offset, const char *path, const char *message);

/* Records "expected WHAT, got ..." at @value. */
void json_tree_fail_expected(JsonDoc *doc, const JsonValue *value, const char *what);

/* Records that @key must be in @object, beside other missing keys. */
void json_tree_fail_missing(JsonDoc *doc, const JsonValue *object, const char *key);

/* --- members --- */

/* Whether the document has an index of the members of @value. */
static inline bool
json_tree_is_big(const JsonValue *value)
{
    return json_is_object(value) && value->n_children > JSON_TREE_SMALL_OBJECT;
}

/* Returns: (borrowed, nullable) the member; no trace is left.  @object is an object. */
const JsonValue *json_tree_find(const JsonDoc *doc, const JsonValue *object, const char *key);

/* Returns: (borrowed, nullable) the member, marked as asked for; NULL when absent, which is noted
 * for suggestions, or when @object is none, which is an error. */
const JsonValue *json_tree_ask(JsonDoc *doc, const JsonValue *object, const char *key);
