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
 *         {"kv_lora_rank", JSON_FIELD_INT, OF(kv_lora_rank), 1, 1024},
 *         {"q_lora_rank", JSON_FIELD_INT, OF(q_lora_rank), 0, 1024, JSON_FIELD_OPTIONAL},
 *         {.key = NULL},
 *     };
 *
 * Keys are read and written in the order of the rows.  Messages and numbers are those of
 * base/json.h.  A row that does not fit its member is a bug that nothing here can see.
 *
 * Errors: recorded in the document, as json.h says.  Thread-safety: tables are constants.
 */
#ifndef BASE_JSON_FIELDS_H
#define BASE_JSON_FIELDS_H

#include "base/json.h"

G_BEGIN_DECLS

typedef enum {
    JSON_FIELD_INT, /* an integer of 1 (unsigned), 4 or 8 bytes; an enum where the row has names */
    JSON_FIELD_DOUBLE, /* a double */
    JSON_FIELD_BOOL,   /* a bool */
    JSON_FIELD_NS,     /* an int64_t of nanoseconds; the file has seconds */
    JSON_FIELD_TEXT,   /* a char * that the struct owns; reading frees what was there */
    JSON_FIELD_LENT,   /* a const char * that is valid as long as the document */
    JSON_FIELD_CHARS,  /* a char array, longer texts are cut; the empty text is null in the file */
    JSON_FIELD_OBJECT, /* a struct: the row has its table; written on one line */
} JsonFieldType;

enum {
    JSON_FIELD_OPTIONAL = 1, /* may be absent: then the member keeps the value that it had */
    JSON_FIELD_NULLABLE = 2, /* may be null: then the member becomes NaN, NULL or "" */
    JSON_FIELD_SPARSE = 4,   /* is not written while the member has its usual value */
};

/* One key.  Rows are written as in the example above; a row whose key is NULL ends a table. */
typedef struct JsonField {
    const char *key;
    JsonFieldType type;
    size_t offset, size; /* of the member; size 0: the value is checked and not kept */
    double min, max;     /* of numbers, both inclusive, as in json_int64() and json_double() */
    unsigned flags;      /* any of JSON_FIELD_OPTIONAL, ... */
    double usual;        /* of SPARSE numbers; NaN equals NaN.  Usual texts are NULL. */
    /* (NULL-terminated) The words of an enum in its order; of a LENT text, those that it may be. */
    const char *const *names;
    /* (NULL-terminated) The member is an array of the row's type, the value an object with these
     * keys, one for each element. */
    const char *const *keys;
    const struct JsonField *fields; /* of JSON_FIELD_OBJECT */
} JsonField;

/* The place of @member in struct @type, as the third entry of a row. */
#define JSON_FIELD_OF(type, member)                                                                \
    .offset = offsetof(type, member), .size = sizeof(((type *)0)->member)

/* Reads the members that @fields names from @object into the struct at @record. */
void json_fields_read(JsonDoc *doc, const JsonValue *object, const JsonField *fields, void *record);

/* The same, and then other keys of @object are errors: json_object_end(). */
void json_fields_read_object(JsonDoc *doc, const JsonValue *object, const JsonField *fields,
                             void *record);

/* Appends a struct to @rows for each object in @array, read so, until the first error.  The members
 * that the table does not name, and optional keys that are absent, are 0. */
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

G_END_DECLS

#endif /* BASE_JSON_FIELDS_H */
