/*
 * tests/executor/both.h - the same tensors in the storage of two backends, the reference and cuda,
 * and how far they are apart.
 */
#pragma once

#include <math.h>

#include "executor/device/backend.h"
#include "tests/executor/emulated.h"
#include "tests/executor/tensors.h"

/* The same numbers for both backends, rounded to the storage. */
typedef struct {
    int64_t n;
    void *of[2]; /* reference, cuda */
} Pair;

typedef struct {
    ExecBackend *of[2];
    Dtype storage;
    GPtrArray *pairs; /* of Pair (owned) */
} Both;

static inline bool
both_open(Both *both, Dtype storage)
{
    static const char *const names[] = {"reference", "cuda"};

    both->storage = storage;
    both->pairs = g_ptr_array_new_with_free_func(g_free);
    for (int i = 0; i < 2; i++) {
        g_autoptr(GError) error = NULL;
        both->of[i] = exec_backend_open(names[i], 0, storage, &error);
        g_assert_no_error(error);
    }
    return true;
}

static inline void
both_close(Both *both)
{
    for (guint i = 0; i < both->pairs->len; i++) {
        Pair *pair = both->pairs->pdata[i];
        for (int j = 0; j < 2; j++)
            both->of[j]->ops->release(both->of[j], pair->of[j]);
    }
    g_ptr_array_unref(both->pairs);
    for (int i = 0; i < 2; i++) {
        g_autoptr(GError) error = NULL;
        both->of[i]->ops->synchronize(both->of[i], &error);
        g_assert_no_error(error);
        exec_backend_close(both->of[i]);
    }
}

/* @n_bytes of @data on both. */
static inline Pair *
pair_of_bytes(Both *both, const void *data, size_t n_bytes)
{
    Pair *pair = g_new0(Pair, 1);

    for (int i = 0; i < 2; i++) {
        g_autoptr(GError) error = NULL;
        pair->of[i] = both->of[i]->ops->alloc(both->of[i], n_bytes, "test", &error);
        g_assert_no_error(error);
        both->of[i]->ops->upload(both->of[i], n_bytes, data, pair->of[i]);
    }
    g_ptr_array_add(both->pairs, pair);
    return pair;
}

/* Normal numbers in fp32. */
static inline Pair *
pair_fp32(Both *both, const char *name, int64_t n, float deviation)
{
    g_autofree float *x = numbers(name, n, deviation);
    Pair *pair = pair_of_bytes(both, x, (size_t)MAX(n, 1) * sizeof *x);

    pair->n = n;
    return pair;
}

/* The same in storage. */
static inline Pair *
pair_stored(Both *both, const char *name, int64_t n, float deviation)
{
    const Pair *fp32 = pair_fp32(both, name, n, deviation);
    Pair *pair = pair_fp32(both, name, n, deviation);

    for (int i = 0; i < 2; i++)
        both->of[i]->ops->to_storage(both->of[i], n, fp32->of[i], pair->of[i]);
    return pair;
}

static inline float *
read_back(ExecBackend *backend, const void *x, int64_t n, bool stored)
{
    float *host = g_new(float, (size_t)MAX(n, 1));
    g_autoptr(GError) error = NULL;
    const size_t n_bytes = (size_t)n * sizeof *host;
    void *wide = backend->ops->alloc(backend, MAX(n_bytes, 4), "test", NULL);

    if (stored)
        backend->ops->from_storage(backend, n, x, wide);
    else
        backend->ops->copy(backend, n_bytes, x, wide);
    backend->ops->download(backend, n_bytes, wide, host);
    backend->ops->synchronize(backend, &error);
    g_assert_no_error(error);
    backend->ops->release(backend, wide);
    return host;
}

/*
 * Relative L2 distance of what both computed.  Both round once from fp32 or better: bf16 results
 * differ where that rounding falls the other way, at most 2^-7 of an element; fp32 ones by the
 * order of sums.
 */
static inline void
check_pair(Both *both, const Pair *pair, bool stored, double fp32_tolerance)
{
    g_autofree float *expected = read_back(both->of[0], pair->of[0], pair->n, stored);
    g_autofree float *actual = read_back(both->of[1], pair->of[1], pair->n, stored);
    const double tolerance =
        stored && both->storage == DTYPE_BF16 ? 0x1p-7 + fp32_tolerance : fp32_tolerance;

    g_assert_cmpfloat(distance(actual, expected, pair->n), <=, tolerance);
}

/* Runs @check in both formats. */
static inline void
in_both_formats(void (*check)(Both *both))
{
    static const Dtype formats[] = {DTYPE_FP32, DTYPE_BF16};

    if (!emulated_gpu_or_skip())
        return;
    for (size_t i = 0; i < G_N_ELEMENTS(formats); i++) {
        Both both = {0};
        both_open(&both, formats[i]);
        check(&both);
        both_close(&both);
    }
}

#define EACH(both, i, backend)                                                                     \
    for (int i = 0; i < 2; i++)                                                                    \
        for (ExecBackend *backend = (both)->of[i]; backend != NULL; backend = NULL)
