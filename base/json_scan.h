/*
 * base/json_scan.h - the strict scan of a JSON text, which runs before cJSON: RFC 8259 and our
 * limits.
 *
 * Private to base/json*.c.  It records where every value stands, in the order in which it begins,
 * which is also the pre-order of cJSON's tree, so that a tree node and its position share an index.
 *
 * Cost: one pass; about 40 bytes per value.  Recursion is at most JSON_MAX_DEPTH deep.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"

struct cJSON;

/* key_offset of a value that is no member of an object. */
#define JSON_SCAN_NO_KEY UINT32_MAX

/* Numbers beyond this many characters do not fit cJSON 1.7's buffer (64 with the NUL). */
#define JSON_SCAN_LONG_NUMBER 63

/* One value; values stand in one array, each followed by all that is inside it. */
struct JsonValue {
    const struct cJSON *item; /* (borrowed) set after the scan */
    uint32_t offset;          /* of its first byte */
    uint32_t key_offset;      /* of its key's opening quote, or JSON_SCAN_NO_KEY */
    uint32_t n_nodes;         /* itself and all inside it */
    uint32_t n_children;
    uint32_t up;     /* how far before this one its parent stands; 0 for the outermost */
    uint32_t sorted; /* of a big object: where its members begin in JsonDoc.sorted */
    bool asked;      /* a getter has read this member */
};

/* What a scan found out; zero before. */
typedef struct {
    JsonValue *values; /* (owned) */
    size_t n_values;
    size_t n_long_numbers; /* longer than JSON_SCAN_LONG_NUMBER */
    size_t fault_offset;   /* after a failure: where, */
    char *fault_path;      /* (owned) inside which value, */
    char *fault;           /* (owned) and what is wrong */
    bool lacks_memory;     /* that is all that is wrong */
} JsonScan;

/* Scans a whole text.  Returns false with the fault members set.  @text must be NUL-terminated
 * beyond @n_bytes; of UTF-8, at most JSON_MAX_BYTES.  Duplicate keys are not looked for: that needs
 * decoded keys. */
bool json_scan(JsonScan *scan, const char *text, size_t n_bytes);
void json_scan_clear(JsonScan *scan);

/* How many characters a number is long. */
size_t json_scan_number_length(const char *number);

/* Of what an error shows of a name or a message. */
#define JSON_MAX_MESSAGE_BYTES 2000

/* --- how messages say where something is: FILE:LINE:COLUMN: $.path.to[3].key: what is wrong ---
 *
 * Nothing here trusts its input: names, keys and messages are escaped and cut.
 */

/* Appends .key or, when it is no plain word, ["key"], escaped and cut. */
void json_path_append_key(GString *path, const char *key, size_t n_bytes);

/* Counts from 1; columns count characters, not bytes. */
void json_path_locate(const char *text, size_t offset, size_t *line, size_t *column);

/* Returns: (owned) the JSON_ERROR_INVALID of the form above. */
GError *json_path_error(const char *name, const char *text, size_t offset, const char *path,
                        const char *message);
