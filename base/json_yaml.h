/*
 * base/json_yaml.h - YAML in, as JSON: files that people write by hand, with comments.
 *
 * The part of YAML that is JSON in another notation: mappings with texts as keys, sequences and
 * scalars.  A plain scalar is a number, true, false or null where JSON would say so ("~" and
 * nothing: null), else a text.  Anchors, aliases, tags and several documents are refused; what JSON
 * refuses (duplicate keys, depth) base/json.h refuses as in JSON.
 *
 * Errors: JSON_ERROR_INVALID with file and line.  Thread-safety: no globals.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>

/* Whether a file of this name is read as YAML: it ends in .yaml or .yml. */
bool json_yaml_is_name(const char *path);

/*
 * Returns: (owned, nullable) the JSON of the YAML @text, NUL-terminated; NULL on JSON_ERROR_INVALID.
 * Every value stands on the line, and where there is room in the column, in which it stands in
 * @text, so that messages about the JSON are right for the file.
 * @name  stands for the file in messages.
 */
char *json_yaml_convert(const char *name, const char *text, size_t n_bytes, size_t *n_json,
                        GError **error);
