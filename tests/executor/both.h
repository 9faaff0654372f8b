/*
 * tests/executor/both.h - the same tensors in the storage of two backends, one of them known to be
 * right, and how far they are apart.
 *
 * A shape that is wrong does not stop the test: it prints tensor, shape, distance, the first bad
 * element and how many are NaN, the other shapes follow, and the test fails at its end.  Neither
 * does a shape whose kernels fail: the backends are opened again for the next one.  Where that is
 * impossible, or the program crashes or hangs, the last line "shape: NAME" says in which one, and
 * with DEGAS_TEST_AFTER=NAME another process begins behind it (scripts/gpu_check.sh does so).
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

#define ATTENTION_VARIABLE "DEGAS_CUDA_ATTENTION"

typedef struct {
    ExecBackend *of[2];
    /* (nullable) with which attention kernels two cuda backends are opened, the right one first;
     * NULL: the reference, and cuda as the environment says */
    const char *attention[2];
    Dtype storage;
    GPtrArray *pairs; /* of Pair (owned) */
    GString *shape;   /* the one that is being checked */
    bool failed;      /* a kernel of this shape did: nothing of it is compared */
} Both;

/* Fails the test, not the program, and says of which shape. */
G_GNUC_PRINTF(2, 3)
static inline void
both_fail(const Both *both, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *text = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    g_test_message("mismatch: %s: %s", both->shape->str, text);
    g_test_fail();
}

static inline void
both_synchronize(Both *both)
{
    for (int i = 0; i < 2; i++) {
        g_autoptr(GError) error = NULL;
        if (both->of[i]->ops->synchronize(both->of[i], &error) || both->failed)
            continue;
        both->failed = true;
        both_fail(both, "%s", error->message);
    }
}

/* Releases the tensors of a shape. */
static inline void
both_release(Both *both)
{
    for (guint i = 0; i < both->pairs->len; i++) {
        Pair *pair = both->pairs->pdata[i];
        for (int j = 0; j < 2; j++)
            both->of[j]->ops->release(both->of[j], pair->of[j]);
    }
    g_ptr_array_set_size(both->pairs, 0);
    both_synchronize(both);
}

static inline void
both_close(Both *both)
{
    both_release(both);
    g_ptr_array_unref(both->pairs);
    g_string_free(both->shape, TRUE);
    for (int i = 0; i < 2; i++)
        exec_backend_close(both->of[i]);
}

static inline const char *
both_kind(const Both *both, int i)
{
    return i == 0 && both->attention[0] == NULL ? "reference" : "cuda";
}

/* A device that cannot be opened ends the program. */
static inline void
both_open(Both *both, Dtype storage)
{
    both->storage = storage;
    both->failed = false;
    both->pairs = g_ptr_array_new_with_free_func(g_free);
    both->shape = g_string_new("opening");
    for (int i = 0; i < 2; i++) {
        g_autoptr(GError) error = NULL;
        if (both->attention[i] != NULL)
            g_setenv(ATTENTION_VARIABLE, both->attention[i], TRUE);
        both->of[i] = exec_backend_open(both_kind(both, i), 0, storage, &error);
        if (both->attention[i] != NULL)
            g_unsetenv(ATTENTION_VARIABLE);
        g_assert_no_error(error);
    }
}

/* Begins the next shape: that of @op at the @n @values, with what the caller calls them.  Returns
 * whether it is to be checked: not if it is before, or is itself, the one behind which
 * DEGAS_TEST_AFTER says to begin. */
static inline bool
both_begin(Both *both, const char *op, const char *names, const int64_t *values, size_t n)
{
    static bool is_behind;
    const char *after = g_getenv("DEGAS_TEST_AFTER");

    if (both->failed) {
        both_close(both);
        both_open(both, both->storage);
    } else {
        both_release(both);
    }
    g_string_printf(both->shape, "%s (%s) = (", op, names);
    for (size_t i = 0; i < n; i++)
        g_string_append_printf(both->shape, "%s%" G_GINT64_FORMAT, i == 0 ? "" : ", ", values[i]);
    g_string_append_printf(both->shape, ") in %s", dtype_names[both->storage]);
    if (after != NULL && !is_behind) {
        is_behind = strcmp(after, both->shape->str) == 0;
        return false;
    }
    g_test_message("shape: %s", both->shape->str);
    return true;
}

#define both_shape(both, op, ...)                                                                  \
    both_begin(both, op, #__VA_ARGS__, (const int64_t[]){__VA_ARGS__},                             \
               G_N_ELEMENTS(((const int64_t[]){__VA_ARGS__})))

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

/* Returns: (owned) what the backend @i has of @pair, in fp32. */
static inline float *
read_back(Both *both, int i, const Pair *pair, bool stored)
{
    ExecBackend *backend = both->of[i];
    float *host = g_new0(float, (size_t)MAX(pair->n, 1));
    const size_t n_bytes = (size_t)pair->n * sizeof *host;
    void *wide = backend->ops->alloc(backend, MAX(n_bytes, 4), "test", NULL);

    if (stored)
        backend->ops->from_storage(backend, pair->n, pair->of[i], wide);
    else
        backend->ops->copy(backend, n_bytes, pair->of[i], wide);
    backend->ops->download(backend, n_bytes, wide, host);
    both_synchronize(both);
    backend->ops->release(backend, wide);
    return host;
}

/* Of a tensor that is too far from what is right: where it begins to be so, and where it is worst.
 */
static inline void
tell_mismatch(const Both *both, const char *tensor, const float *actual, const float *expected,
              int64_t n, double tolerance)
{
    int64_t n_nan = 0, first = -1, worst = 0;
    double norm = 0, most = -1;

    for (int64_t i = 0; i < n; i++)
        norm += pow((double)expected[i], 2);
    for (int64_t i = 0; i < n; i++) {
        const double scale = fmax(fabs((double)expected[i]), sqrt(norm / (double)n));
        const double off = fabs((double)actual[i] - (double)expected[i]);
        n_nan += isnan(off);
        if (first < 0 && !(off <= tolerance * scale))
            first = i;
        if (!(off <= most) && !isnan(most)) {
            most = off;
            worst = i;
        }
    }
    if (first < 0) /* all are a little off */
        first = worst;
    both_fail(both,
              "%s: distance %.3g > %.3g; first bad index %" G_GINT64_FORMAT " of %" G_GINT64_FORMAT
              " (%.9g instead of %.9g), worst %" G_GINT64_FORMAT
              " (%.9g instead of %.9g), %" G_GINT64_FORMAT " NaN",
              tensor, distance(actual, expected, n), tolerance, first, n, (double)actual[first],
              (double)expected[first], worst, (double)actual[worst], (double)expected[worst],
              n_nan);
}

/*
 * Relative L2 distance of what both computed.  Both round once from fp32 or better: bf16 results
 * differ where that rounding falls the other way, at most 2^-7 of an element; fp32 ones by the
 * order of sums.
 */
#define check_pair(both, pair, stored, fp32_tolerance)                                             \
    check_tensor(both, #pair, pair, stored, fp32_tolerance)

static inline void
check_tensor(Both *both, const char *tensor, const Pair *pair, bool stored, double fp32_tolerance)
{
    if (both->failed)
        return;
    g_autofree float *expected = read_back(both, 0, pair, stored);
    g_autofree float *actual = read_back(both, 1, pair, stored);
    const double tolerance =
        stored && both->storage == DTYPE_BF16 ? 0x1p-7 + fp32_tolerance : fp32_tolerance;

    if (!both->failed && !(distance(actual, expected, pair->n) <= tolerance))
        tell_mismatch(both, tensor, actual, expected, pair->n, tolerance);
}

/* Runs @check in both formats, cuda against the reference. */
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
