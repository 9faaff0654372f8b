/*
 * tests/executor/tensors.h - numbers and attention shapes for the tests of backends.
 */
#pragma once

#include "executor/device/backend.h"

#include <math.h>
#include <string.h>

#include "executor/model/random.h"

static inline ExecBackend *
open_or_skip(const char *name)
{
    g_autoptr(GError) error = NULL;
    ExecBackend *backend = exec_backend_open(name, 0, DTYPE_FP32, &error);

    if (backend == NULL)
        g_test_skip(error->message);
    return backend;
}

/* Normal numbers of deviation @scale, the same for equal @name. */
static inline float *
numbers(const char *name, int64_t n, float scale)
{
    const uint64_t key = exec_random_key(7, name);
    float *x = g_new(float, (size_t)MAX(n, 1));

    for (int64_t i = 0; i < n; i++)
        x[i] = scale * exec_random_normal(key, (uint64_t)i);
    return x;
}

static inline float *
copy_of(const float *x, int64_t n)
{
    return g_memdup2(x, (size_t)n * sizeof *x);
}

/* Relative L2 distance. */
static inline double
distance(const float *actual, const float *expected, int64_t n)
{
    double difference = 0, norm = 0;

    for (int64_t i = 0; i < n; i++) {
        difference += pow((double)actual[i] - (double)expected[i], 2);
        norm += pow((double)expected[i], 2);
    }
    return norm == 0 ? sqrt(difference) : sqrt(difference / norm);
}

static inline double
dot(const float *x, const float *y, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    return sum;
}

/* One shape's tensors; rows [token, sequence]. */
typedef struct {
    ExecAttention a;
    float *q, *kv, *out, *lse, *dout, *dq, *dkv;
    int64_t n_q, n_kv;
} Attention;

static inline Attention
attention_new(int64_t sequences, int64_t heads, int64_t kv_heads, int64_t d, int64_t tokens,
              int64_t context)
{
    const int64_t kv_width = kv_heads * d;
    Attention t = {
        .n_q = tokens * sequences * heads * d,
        .n_kv = (context + tokens) * sequences * 2 * kv_width,
    };

    t.q = numbers("q", t.n_q, 1);
    t.kv = numbers("kv", t.n_kv, 1);
    t.out = g_new0(float, (size_t)t.n_q);
    t.lse = g_new0(float, (size_t)(tokens * sequences * heads));
    t.dout = numbers("dout", t.n_q, 1);
    t.dq = numbers("garbage", t.n_q, 1);
    t.dkv = numbers("dkv", t.n_kv, 1);
    t.a = (ExecAttention){
        .sequences = sequences,
        .n_heads = heads,
        .n_kv_heads = kv_heads,
        .head_dim = d,
        .tokens = tokens,
        .context = context,
        .scale = (float)(1.0 / sqrt((double)d)),
        .q = t.q,
        .k = t.kv,
        .v = t.kv + kv_width,
        .kv_stride = 2 * kv_width,
        .out = t.out,
        .lse = t.lse,
    };
    return t;
}

static inline void
attention_clear(Attention *t)
{
    g_free(t->q);
    g_free(t->kv);
    g_free(t->out);
    g_free(t->lse);
    g_free(t->dout);
    g_free(t->dq);
    g_free(t->dkv);
}

static inline void
attention_run(ExecBackend *backend, Attention *t)
{
    const ExecAttentionGradients g = {
        .dout = t->dout,
        .dq = t->dq,
        .dk = t->dkv,
        .dv = t->dkv + t->a.n_kv_heads * t->a.head_dim,
    };

    backend->ops->attention_forward(backend, &t->a);
    backend->ops->attention_backward(backend, &t->a, &g);
}

static const int64_t attention_shapes[][6] = {
    /* sequences, heads, kv heads, head size, tokens, context */
    {1, 1, 1, 4, 1, 0},   {1, 2, 2, 8, 5, 0},   {3, 2, 1, 7, 9, 4},
    {2, 4, 2, 16, 3, 40}, {1, 1, 1, 32, 64, 1}, {2, 1, 1, 16, 130, 17},
};

/* Rounding of a sum of k products in fp32, each term of the same size: the error grows like a
 * random walk, sqrt(k) eps / 2 relative to the sum's scale; 4 for its tail and the operands' own
 * rounding. */
static inline double
sum_tolerance(int64_t k)
{
    return 4.0 * 6.0e-8 * sqrt((double)k + 16.0);
}
