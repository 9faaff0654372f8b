/*
 * executor/run/data.h - training data: sequences of tokens that depend only on seed, step and
 * index.
 *
 * A text file has one token per byte.  A file whose name ends in ".bin" has tokens of two bytes,
 * little-endian.  Without a file tokens are made from the seed: a noisy arithmetic progression, so
 * that there is something to learn.  Sequence @index of @step begins at a pseudo-random token of
 * the file, the same whatever the degrees, the slices or the order of reading.
 *
 * Files are hostile: one that is empty, too short, no regular file, has tokens beyond the
 * vocabulary, or becomes shorter while it is read, is EXEC_ERROR_DATA and named.  One that the
 * system cannot open or read is a G_FILE_ERROR.
 *
 * Threads: all ranks may read at once (pread).
 */
#pragma once

#include "executor/device/backend.h"

typedef struct ExecData ExecData;

/*
 * Returns: (owned) the data; NULL on an error.  Tokens of files up to EXEC_DATA_SCAN_BYTES are
 * checked here, those of larger ones when they are read.
 *
 * @path     (nullable) NULL: synthetic tokens
 * @n_ahead  how many tokens beyond seq_len belong to a sequence: 1, the target of its last one, and
 *           one for each MTP module
 */
ExecData *exec_data_open(const char *path, int64_t vocab, int64_t seq_len, int64_t n_ahead,
                         uint64_t seed, GError **error);
void exec_data_free(ExecData *data);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecData, exec_data_free)

#define EXEC_DATA_SCAN_BYTES (INT64_C(256) * 1024 * 1024)

/* @tokens  (out) seq_len + n_ahead tokens: the inputs are the first seq_len, and the targets, with
 * n_ahead 1, the last. */
bool exec_data_sequence(const ExecData *data, int64_t step, int64_t index, int32_t *tokens,
                        GError **error);
