/*
 * executor/run/data.h - training data: sequences of tokens that depend on seed, step and index only.
 *
 * A text file is one token per byte; a file whose name ends in ".bin" holds little-endian uint16
 * tokens; no file means synthetic tokens (a noisy arithmetic progression, so that there is
 * something to learn).  Sequence @index of @step begins at a pseudo-random token of the file, the
 * same whatever the degrees, slices or order of reading.
 *
 * Files are hostile: empty, too short, no regular file, tokens beyond the vocabulary, truncated
 * while they are read: EXEC_ERROR_DATA naming the file; G_FILE_ERROR where the system cannot open
 * or read it.
 *
 * Thread-safety: reading is safe from all ranks at once (pread).
 */
#ifndef EXECUTOR_RUN_DATA_H
#define EXECUTOR_RUN_DATA_H

#include "executor/device/backend.h"

G_BEGIN_DECLS

typedef struct ExecData ExecData;

/*
 * @path  (nullable) NULL: synthetic.
 * All tokens of files up to EXEC_DATA_SCAN_BYTES are checked here, of larger ones when they are
 * read.
 */
ExecData *exec_data_open(const char *path, int64_t vocab, int64_t seq_len, uint64_t seed,
                         GError **error);
void exec_data_free(ExecData *data);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecData, exec_data_free)

#define EXEC_DATA_SCAN_BYTES (INT64_C(256) * 1024 * 1024)

/* Tokens the source holds; INT64_MAX when synthetic. */
int64_t exec_data_n_tokens(const ExecData *data);

/* @tokens  (out) seq_len + 1: inputs are [0, seq_len), targets [1, seq_len]. */
bool exec_data_sequence(const ExecData *data, int64_t step, int64_t index, int32_t *tokens,
                        GError **error);

G_END_DECLS

#endif /* EXECUTOR_RUN_DATA_H */
