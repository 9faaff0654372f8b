/*
 * cli/request/batch.h - many simulations from one file: a request on each line, a report on each line.
 *
 * A line is a JSON object: "id" (string or integer), "model" and "cluster" (a name, a path or an
 * object), and the flags of `degas simulate` as keys with '_' for '-'.  Its report has the same
 * "id"; a line that fails gives {"id":...,"error":"..."} and the others go on.  Reports stand in
 * the order of the lines, whatever the number of threads.
 */
#ifndef CLI_REQUEST_BATCH_H
#define CLI_REQUEST_BATCH_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

G_BEGIN_DECLS

/*
 * Reads @path ("-": standard input).
 * @threads  >= 1.
 * Returns: (owned) the reports, one line each; NULL on G_FILE_ERROR only.
 */
char *batch_run(const char *path, int64_t threads, size_t *n_bytes, GError **error);

G_END_DECLS

#endif /* CLI_REQUEST_BATCH_H */
