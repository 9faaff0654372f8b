/*
 * base/embedded.h - files compiled into the program: built-in models, clusters, plot scripts.
 *
 * The build packs the listed files of the source tree (Makefile: EMBEDDED) with their paths, so
 * that the program needs no data directory.  Knows nothing of their contents.
 *
 * Thread-safety: read-only data.
 */
#pragma once

#include <glib.h>
#include <stddef.h>

/* One file: path relative to the source root, and its NUL-terminated bytes. */
typedef struct {
    const char *path;
    const char *text;
    const char *end; /* text + n_bytes; *end == 0 */
} EmbeddedFile;

/* All files, sorted by path. */
const EmbeddedFile *embedded_files(size_t *n_files);

/* Returns: (borrowed, nullable) the file at exactly @path, e.g. "models/gpt3-175b.json". */
const EmbeddedFile *embedded_find(const char *path);

/* Returns: (owned) GPtrArray of (owned) names: the paths below @prefix that end in @suffix, both
 * cut off, sorted; e.g. ("models/", ".json"). */
GPtrArray *embedded_names(const char *prefix, const char *suffix);
