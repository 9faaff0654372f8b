/*
 * executor/model/cutter.h - ExecCutter cuts tensors off a block of memory, one after the other.
 *
 * Without a block it only counts: the same code that says where the tensors lie says how many bytes
 * a block for them needs.  Every tensor begins at a cache line.
 */
#ifndef EXECUTOR_MODEL_CUTTER_H
#define EXECUTOR_MODEL_CUTTER_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"

typedef struct {
    char *block;     /* (borrowed, nullable) NULL: tensors are NULL, and bytes are counted */
    int64_t n_bytes; /* cut so far, the padding included */
    Dtype storage;
} ExecCutter;

/* @n_bytes up to whole cache lines of 64 bytes. */
static inline int64_t
exec_padded_bytes(int64_t n_bytes)
{
    return (n_bytes + 63) / 64 * 64;
}

static inline void *
exec_cut_bytes(ExecCutter *cutter, int64_t n_bytes)
{
    void *tensor = cutter->block == NULL ? NULL : cutter->block + cutter->n_bytes;

    cutter->n_bytes += exec_padded_bytes(n_bytes);
    return tensor;
}

/* A tensor of @n elements of the storage. */
static inline void *
exec_cut(ExecCutter *cutter, int64_t n)
{
    return exec_cut_bytes(cutter, n * dtype_bytes(cutter->storage));
}

/* A tensor of @n values of four bytes: float or int32_t. */
static inline void *
exec_cut_words(ExecCutter *cutter, int64_t n)
{
    return exec_cut_bytes(cutter, 4 * n);
}

#endif /* EXECUTOR_MODEL_CUTTER_H */
