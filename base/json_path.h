/*
 * base/json_path.h - how messages say where in a JSON text something is.  Private to base/json*.c.
 *
 *     FILE:LINE:COLUMN: $.path.to[3].key: what is wrong
 *
 * Nothing here trusts its input: names, keys and messages are escaped and cut.
 */
#ifndef BASE_JSON_PATH_H
#define BASE_JSON_PATH_H

#include <glib.h>
#include <stddef.h>

G_BEGIN_DECLS

/* Appends .key or, when it is no plain word, ["key"], escaped and cut. */
void json_path_append_key(GString *path, const char *key, size_t n_bytes);

/* Counts from 1; columns count characters, not bytes. */
void json_path_locate(const char *text, size_t offset, size_t *line, size_t *column);

/* Returns: (owned) the JSON_ERROR_INVALID of the form above. */
GError *json_path_error(const char *name, const char *text, size_t offset, const char *path,
                        const char *message);

G_END_DECLS

#endif /* BASE_JSON_PATH_H */
