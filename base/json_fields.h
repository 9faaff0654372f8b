/*
 * base/json_fields.h - tables that say once how the members of a struct stand in a JSON object.
 *
 * A row names a key, its type and bounds, and the member of the struct that holds its value; the
 * same table reads the object and writes it, so that a key is spelled in one place.  What a table
 * cannot say (a member that follows from others, a check of two members against each other) stays
 * in the code beside it:
 *
 *     #define OF(member) JSON_FIELD_OF(ModelMla, member)
 *     static const JsonField mla_fields[] = {
 *         {"kv_lora_rank", OF(kv_lora_rank), 1, 1024},
 *         {"q_lora_rank", OF(q_lora_rank), 0, 1024, JSON_OPTIONAL},
 *         {.key = NULL},
 *     };
 *
 * Keys are read and written in the order of the rows.  Messages and numbers are those of
 * base/json.h.  The
 * type of a row follows from the member, so that the two cannot contradict each other.
 *
 * Errors: recorded in the document, as json.h says.  Thread-safety: tables are constants.
 */
#pragma once

#include "base/json.h"

typedef enum {
    JSON_INT,    /* an integer of 1 (unsigned), 4 or 8 bytes; an enum where the row has names */
    JSON_DOUBLE, /* a double */
    JSON_BOOL,   /* a bool */
    JSON_NS,     /* an int64_t of nanoseconds; the file has seconds */
    JSON_TEXT,   /* a char * that the struct owns; reading frees what was there */
    JSON_LENT,   /* a const char * that is valid as long as the document */
    JSON_LENTS,  /* an array of such texts, then NULL; a list of fewer than the array's length */
    JSON_CHARS,  /* a char array, longer texts are cut; the empty text is null in the file */
    JSON_OBJECT, /* a struct: the row has its table; written on one line */
} JsonType;

enum {
    JSON_OPTIONAL = 1, /* may be absent: then the member keeps the value that it had */
    JSON_NULLABLE = 2, /* may be null: then the member becomes NaN, NULL or "" */
    JSON_SPARSE = 4,   /* is not written while the member has its usual value */
    /* a number may be a text with its unit, as on the command line: of bytes, bytes or FLOPs per
     * second, or seconds, as the row's key ends */
    JSON_WITH_UNIT = 8,
};

/* One key.  Rows are written as in the example above; a row whose key is NULL ends a table. */
typedef struct JsonField {
    const char *key;
    JsonType type;
    size_t offset, size; /* of the member; size 0: the value is checked and not kept */
    double min, max;     /* of numbers, both inclusive, as in json_int64() and json_double() */
    unsigned flags;      /* any of JSON_OPTIONAL, ... */
    double usual;        /* of numbers; NaN equals NaN.  Usual texts are NULL. */
    /* (NULL-terminated) The words of an enum in its order; of a LENT text, those that it may be. */
    const char *const *names;
    /* (NULL-terminated) The member is an array of the row's type, the value an object with these
     * keys, one for each element. */
    const char *const *keys;
    const struct JsonField *fields; /* of JSON_OBJECT */
} JsonField;

/* The second entry of a row: type, place and size of @member of struct @type.  The type of the
 * row is that of the member: a struct is JSON_OBJECT. */
#define JSON_FIELD_OF(type, member)                                                                \
    JSON_FIELD_AS(JSON_FIELD_TYPE(&((type *)0)->member), type, member)

/* The same with the row's type given: for JSON_NS, and for arrays. */
#define JSON_FIELD_AS(json_type, struct_type, member)                                              \
    .type = json_type, .offset = offsetof(struct_type, member),                                    \
    .size = sizeof(((struct_type *)0)->member)

#define JSON_FIELD_TYPE(pointer)                                                                   \
    _Generic(pointer, int64_t *: JSON_INT, uint64_t *: JSON_INT, int32_t *: JSON_INT,              \
             uint32_t *: JSON_INT, uint8_t *: JSON_INT, double *: JSON_DOUBLE, bool *: JSON_BOOL,  \
             char **: JSON_TEXT, const char **: JSON_LENT, default: JSON_OBJECT)

/* Reads the members that @fields names from @object into the struct at @record. */
void json_fields_read(JsonDoc *doc, const JsonValue *object, const JsonField *fields, void *record);

/* The same, and then other keys of @object are errors: json_object_end(). */
void json_fields_read_object(JsonDoc *doc, const JsonValue *object, const JsonField *fields,
                             void *record);

/* Appends a struct to @rows for each object in @array, read so, until the first error.  Members
 * whose keys are absent have their usual values, those that the table does not name are 0. */
void json_fields_read_rows(JsonDoc *doc, const JsonValue *array, const JsonField *fields,
                           GArray *rows);

/* Writes the members into the object that is open in @writer. */
void json_fields_write(JsonWriter *writer, const JsonField *fields, const void *record);

/* Writes them as an object of their own, on one line, under @key (NULL in arrays). */
void json_fields_write_object(JsonWriter *writer, const char *key, const JsonField *fields,
                              const void *record);

/* Writes all structs in @rows so, one on each line of an array under @key. */
void json_fields_write_rows(JsonWriter *writer, const char *key, const JsonField *fields,
                            const GArray *rows);

/* The value of an INT or BOOL member. */
int64_t json_field_int64(const JsonField *field, const void *record);
