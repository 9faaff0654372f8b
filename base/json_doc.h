/*
 * base/json_doc.h - what a JsonDoc is made of.  Private to base/json*.c.
 *
 * The tree is cJSON's; JsonValue (json_scan.h) adds positions.  values[] is in pre-order, so that
 * the first child of v is v + 1, its next sibling v + v->n_nodes and its parent v - v->up.
 */
#ifndef BASE_JSON_DOC_H
#define BASE_JSON_DOC_H

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/json_scan.h"

G_BEGIN_DECLS

/* Objects with more members are searched by bisection, others in order. */
#define JSON_SMALL_OBJECT 16
/* Of what an error shows of a name or a message. */
#define JSON_MAX_MESSAGE_BYTES 2000

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
    GHashTable
        *absent; /* object -> GPtrArray of the keys that were asked for in vain; lookup only */
    GStringChunk *keys; /* owns those keys */
};

/* Returns: (borrowed, nullable) the member; no trace is left.  @object is an object. */
const JsonValue *json_doc_lookup(const JsonDoc *doc, const JsonValue *object, const char *key);

/*
 * Returns: (borrowed, nullable) the member, marked as asked for; NULL when absent, which is noted
 * for suggestions, or when @object is none, which is an error.
 */
const JsonValue *json_doc_ask(JsonDoc *doc, const JsonValue *object, const char *key);

/* Whether @value is of this document: getters return others after an error. */
bool json_doc_holds(const JsonDoc *doc, const JsonValue *value);

/* Returns: (owned) $.path.to[3].value */
GString *json_doc_path(const JsonValue *value);

/* Records @message at @path, @offset bytes into the text, in place of an earlier error. */
void json_doc_set_error(JsonDoc *doc, size_t offset, const char *path, const char *message);

/* Records that @key must be in @object. */
void json_doc_fail_missing(JsonDoc *doc, const JsonValue *object, const char *key);

/* Records "expected WHAT, got ..." at @value. */
void json_doc_fail_expected(JsonDoc *doc, const JsonValue *value, const char *what);

/* What a failed getter returns: finite and in range. */
double json_doc_harmless(double min, double max);

G_END_DECLS

#endif /* BASE_JSON_DOC_H */
