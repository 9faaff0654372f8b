/*
 * base/json.h - strict JSON in, byte-stable JSON out.
 *
 * The only module that meets cJSON.  cJSON alone accepts 31 of 188 invalid documents, finds keys
 * without regard to case, keeps duplicates and rounds integers silently; so a strict RFC 8259 scan
 * runs first.  It refuses what cJSON would let pass, limits depth, size and number of values, and
 * remembers where every value stands, so that each message names file, line, column and JSON path:
 *
 *     model.json:3:17: $.hiden: unknown key; did you mean "hidden"?
 *
 * Reading (json.c; documents json_build.c; errors, object ends json_tree.c) is sticky: getters never fail at the call; the first thing wrong is remembered
 * in the document and json_doc_finish() reports it; of missing keys all that were asked for.  A parser is thus a plain list of getters:
 *
 *     g_autoptr(JsonDoc) doc = json_doc_load(path, error);
 *     if (doc == NULL)
 *         return NULL;
 *     const JsonValue *root = json_doc_root(doc, "degas-model", 1);
 *     arch->n_layers = json_int64(doc, root, "n_layers", 1, 100000);
 *     arch->tied = json_bool_or(doc, root, "tied_embeddings", true);
 *     json_object_end(doc, root);              // keys that nobody asked for are errors
 *     return json_doc_finish(doc, error);
 *
 * After an error getters return harmless values (the minimum, the fallback, "", an empty array).
 *
 * Writing (json_writer.c) does not use cJSON (it does not round-trip doubles): JsonWriter keeps
 * keys in the order of the calls and prints the shortest decimal that reads back to the same
 * double.
 *
 * Errors: JSON_ERROR_INVALID for content, JSON_ERROR_MEMORY, G_FILE_ERROR for reading.
 * Thread-safety: a document belongs to one thread.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JSON_ERROR (json_error_quark())
GQuark json_error_quark(void);

typedef enum {
    JSON_ERROR_INVALID, /* not JSON, or not what was asked for */
    JSON_ERROR_MEMORY,  /* there is not enough for the values of a document */
} JsonError;

#define JSON_MAX_DEPTH 64
#define JSON_MAX_BYTES (64u * 1024 * 1024)
#define JSON_MAX_VALUES 5000000
#define JSON_MAX_INT (INT64_C(1) << 53) /* integer getters refuse what is beyond, either way */

/* A parsed document.  Opaque; see json_tree.h. */
typedef struct JsonDoc JsonDoc;
/* One value in it; (borrowed) from the document. */
typedef struct JsonValue JsonValue;

/* Reads and scans a file, by its name JSON or YAML (json_yaml.h); "-" is standard input.  In files
 * with a "model_type", which transformers has written, Infinity is read as null.  NULL on JSON_ERROR
 * or G_FILE_ERROR. */
JsonDoc *json_doc_load(const char *path, GError **error);

/*
 * Reads the built-in file FOLDER/NAME.json (base/embedded.h), or where there is none the file
 * @name. Where that does not exist either, the G_FILE_ERROR_NOENT says @missing ("no such model")
 * and suggests the nearest built-in name.
 */
JsonDoc *json_doc_load_builtin(const char *folder, const char *name, const char *missing,
                               GError **error);

/* As json_doc_load(), from memory; @name stands for the file in messages. */
JsonDoc *json_doc_parse(const char *name, const char *text, size_t n_bytes, GError **error);

void json_doc_free(JsonDoc *doc);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(JsonDoc, json_doc_free)

/* The outermost value, after checking that it is an object with "format": @format and 1 <=
 * "version" <= @version.  @format NULL skips the check (foreign files). */
const JsonValue *json_doc_root(JsonDoc *doc, const char *format, int64_t version);

/* The file's name as given. */
const char *json_doc_name(const JsonDoc *doc);

/* (nullable) the value of "format" in the outermost object, to tell kinds of files apart. */
const char *json_doc_format(const JsonDoc *doc);

/* Whether anything has gone wrong so far. */
bool json_doc_failed(const JsonDoc *doc);

/* False, with the first error, if anything went wrong since the document was parsed. */
bool json_doc_finish(JsonDoc *doc, GError **error);

/* Records an error at @value (nullable: the document), unless one is recorded already. */
void json_fail(JsonDoc *doc, const JsonValue *value, const char *format, ...) G_GNUC_PRINTF(3, 4);

/* --- members of an object: required, or with a fallback when absent (null counts as present) ---
 */

/* Whether @object has the key; this does not count as asking for it. */
bool json_has(const JsonDoc *doc, const JsonValue *object, const char *key);
int64_t json_int64(JsonDoc *doc, const JsonValue *object, const char *key, int64_t min,
                   int64_t max);
int64_t json_int64_or(JsonDoc *doc, const JsonValue *object, const char *key, int64_t min,
                      int64_t max, int64_t fallback);
double json_double(JsonDoc *doc, const JsonValue *object, const char *key, double min, double max);
double json_double_or(JsonDoc *doc, const JsonValue *object, const char *key, double min,
                      double max, double fallback);
bool json_bool(JsonDoc *doc, const JsonValue *object, const char *key);
bool json_bool_or(JsonDoc *doc, const JsonValue *object, const char *key, bool fallback);
/* (borrowed) never NULL. */
const char *json_string(JsonDoc *doc, const JsonValue *object, const char *key);
/* (borrowed) @fallback when absent. */
const char *json_string_or(JsonDoc *doc, const JsonValue *object, const char *key,
                           const char *fallback);
/* The index of the string in @names (NULL-terminated); else an error that suggests the nearest. */
int json_enum(JsonDoc *doc, const JsonValue *object, const char *key, const char *const *names);
int json_enum_or(JsonDoc *doc, const JsonValue *object, const char *key, const char *const *names,
                 int fallback);
/* (borrowed) never NULL: after an error an empty object or array. */
const JsonValue *json_object(JsonDoc *doc, const JsonValue *object, const char *key);
const JsonValue *json_array(JsonDoc *doc, const JsonValue *object, const char *key);
/* (borrowed, nullable) NULL when absent or null. */
const JsonValue *json_object_or_null(JsonDoc *doc, const JsonValue *object, const char *key);
const JsonValue *json_array_or_null(JsonDoc *doc, const JsonValue *object, const char *key);
/* (borrowed, nullable) any kind of value. */
const JsonValue *json_member(JsonDoc *doc, const JsonValue *object, const char *key);

/* Records an error at the first key of @object that no getter above has asked for, and suggests the
 * nearest one that was asked for.  If the error so far is a missing key of this object and an
 * unknown key is near it, the unknown key is reported instead. */
void json_object_end(JsonDoc *doc, const JsonValue *object);
/* Counts as asking for a member whose value is not needed. */
void json_ignore(JsonDoc *doc, const JsonValue *object, const char *key);

/* --- elements --- */

size_t json_length(const JsonValue *array);
/* for (v = json_first(a); v != NULL; v = json_next(v)); works for objects' members too. */
const JsonValue *json_first(const JsonValue *array);
const JsonValue *json_next(const JsonValue *value);
/* The head of such a loop that also ends when @doc has failed. */
#define JSON_EACH(v, array, doc)                                                                   \
    for (const JsonValue *v = json_first(array); v != NULL && !json_doc_failed(doc);               \
         v = json_next(v))
/* (borrowed, nullable) the key of an object's member. */
const char *json_key(const JsonValue *member);
bool json_is_object(const JsonValue *value);
bool json_is_array(const JsonValue *value);
bool json_is_string(const JsonValue *value);
bool json_is_number(const JsonValue *value);
bool json_is_null(const JsonValue *value);
int64_t json_value_int64(JsonDoc *doc, const JsonValue *value, int64_t min, int64_t max);
double json_value_double(JsonDoc *doc, const JsonValue *value, double min, double max);
const char *json_value_string(JsonDoc *doc, const JsonValue *value);

/* --- writing --- */

/* Builds a document in memory.  Opaque; see json_writer.c. */
typedef struct JsonWriter JsonWriter;

/* Two-space indentation; an array opened with json_write_array_inline() (and all inside it) stays
 * on one line. */
JsonWriter *json_writer_new(void);
/* One line throughout: for JSON Lines. */
JsonWriter *json_writer_new_compact(void);
void json_writer_free(JsonWriter *writer);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(JsonWriter, json_writer_free)

/* @key is NULL inside arrays and for the outermost value. */
void json_write_object(JsonWriter *writer, const char *key);
void json_write_object_inline(JsonWriter *writer, const char *key);
void json_write_object_end(JsonWriter *writer);
void json_write_array(JsonWriter *writer, const char *key);
void json_write_array_inline(JsonWriter *writer, const char *key);
void json_write_array_end(JsonWriter *writer);
void json_write_int64(JsonWriter *writer, const char *key, int64_t value);
/* As json_format_double(); NaN and infinities become null. */
void json_write_double(JsonWriter *writer, const char *key, double value);
void json_write_bool(JsonWriter *writer, const char *key, bool value);
/* @value NULL becomes null; each byte that is not UTF-8 becomes U+FFFD. */
void json_write_string(JsonWriter *writer, const char *key, const char *value);
void json_write_null(JsonWriter *writer, const char *key);
/* @json must be one valid JSON value; copied verbatim. */
void json_write_raw(JsonWriter *writer, const char *key, const char *json);

/* Returns: (owned) the text with a final newline; the writer is empty afterwards.  @n_bytes
 * (nullable). */
char *json_writer_steal(JsonWriter *writer, size_t *n_bytes);

/* Returns: (owned) the shortest decimal of a finite double that reads back to the same bits; fixed
 * from 1e-5 up to 1e17, with an exponent beyond. */
char *json_format_double(double value);
