/*
 * executor/device/backend_cpu.c - matrix products by OpenBLAS, attention as matrix products, and
 * vector loops for the rest (loops_cpu.c).
 *
 * Attention takes blocks of query rows against all keys up to the block's end: three products and
 * a softmax forward, five products backward, and the masked half is skipped but for the block's own
 * triangle.  Scalar attention costs more than all else at 1024 tokens.
 */
#include "executor/device/backend_host.h"
#include "executor/device/blas.h"
#include "executor/device/loops_cpu.h"

#include <stdlib.h>

/* Query rows per block: at 1024 keys a block of scores is 256 KiB, a quarter of an L2 cache, and
 * a product of 64 rows still runs at 9/10 of sgemm's rate. */
#define BLOCK_ROWS 64

typedef struct {
    const ExecBlas *blas;
    float *scratch; /* (owned) */
    int64_t n_scratch;
} CpuState;

/* Scratch for @n floats; small beside the activations, so running out of memory aborts. */
static float *
scratch(ExecBackend *backend, int64_t n)
{
    CpuState *state = backend->state;

    if (n > state->n_scratch) {
        free(state->scratch);
        state->n_scratch = n + n / 4;
        state->scratch = aligned_alloc(64, ((size_t)state->n_scratch * sizeof(float) + 63) & ~63ul);
        if (state->scratch == NULL)
            g_error("no memory for %" G_GINT64_FORMAT " floats of scratch", state->n_scratch);
    }
    return state->scratch;
}

static inline void
sgemm(ExecBackend *backend, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
      float alpha, const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
      int64_t ldc)
{
    const CpuState *state = backend->state;

    state->blas->sgemm(EXEC_BLAS_ROW_MAJOR, trans_a ? EXEC_BLAS_TRANS : EXEC_BLAS_NO_TRANS,
                       trans_b ? EXEC_BLAS_TRANS : EXEC_BLAS_NO_TRANS, (int)m, (int)n, (int)k,
                       alpha, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
}

/* OpenBLAS scales C in a pass of its own when beta is not 1; so bias and residual are written into
 * C first and the product is added, which costs no more than beta = 0 alone. */
static void
gemm(ExecBackend *backend, const ExecGemm *g)
{
    if (g->m == 0 || g->n == 0)
        return;
    if (g->bias != NULL || g->residual != NULL)
        exec_cpu_fill_rows(g->m, g->n, g->bias, g->residual, g->c, g->ldc);
    sgemm(backend, g->trans_a, g->trans_b, g->m, g->n, g->k, 1.0f, g->a, g->lda, g->b, g->ldb,
          g->accumulate || g->bias != NULL || g->residual != NULL ? 1.0f : 0.0f, g->c, g->ldc);
}

static void
norm_backward(ExecBackend *backend, const ExecNorm *norm, const void *dy, void *dx, float *dgain,
              float *dshift)
{
    exec_cpu_norm_backward(norm, dy, dx, dgain, dshift, scratch(backend, 2 * norm->cols));
}

static void
cross_entropy_stats(ExecBackend *backend, const ExecCrossEntropy *entropy, float *stats)
{
    exec_cpu_cross_entropy_stats(entropy, stats, scratch(backend, entropy->vocab));
}

/* One (sequence, head) as strided matrices. */
typedef struct {
    const float *q, *k, *v;
    float *out, *lse;
    int64_t at_q, at_kv; /* where q, out and k, v begin in the whole tensors */
    int64_t q_stride, kv_stride, lse_stride;
} Head;

static Head
head_of(const ExecAttention *a, int64_t sequence, int64_t head)
{
    const int64_t at_q = (sequence * a->n_heads + head) * a->head_dim;
    const int64_t at_kv =
        sequence * a->kv_stride + head / (a->n_heads / a->n_kv_heads) * a->head_dim;

    return (Head){
        .at_q = at_q,
        .at_kv = at_kv,
        .q = (const float *)a->q + at_q,
        .k = (const float *)a->k + at_kv,
        .v = (const float *)a->v + at_kv,
        .out = (float *)a->out + at_q,
        .lse = a->lse + sequence * a->n_heads + head,
        .q_stride = a->sequences * a->n_heads * a->head_dim,
        .kv_stride = a->sequences * a->kv_stride,
        .lse_stride = a->sequences * a->n_heads,
    };
}

static void
head_forward(ExecBackend *backend, const ExecAttention *a, const Head *h, float *score)
{
    for (int64_t begin = 0; begin < a->tokens; begin += BLOCK_ROWS) {
        const int64_t rows = MIN(BLOCK_ROWS, a->tokens - begin);
        const int64_t keys = a->context + begin + rows;
        sgemm(backend, false, true, rows, keys, a->head_dim, 1.0f, h->q + begin * h->q_stride,
              h->q_stride, h->k, h->kv_stride, 0.0f, score, keys);
        exec_cpu_softmax(rows, keys, a->context + begin, a->scale, score,
                         h->lse + begin * h->lse_stride, h->lse_stride);
        sgemm(backend, false, false, rows, a->head_dim, keys, 1.0f, score, keys, h->v, h->kv_stride,
              0.0f, h->out + begin * h->q_stride, h->q_stride);
    }
}

static void
attention_forward(ExecBackend *backend, const ExecAttention *a)
{
    float *score = scratch(backend, BLOCK_ROWS * (a->context + a->tokens));

    for (int64_t b = 0; b < a->sequences; b++)
        for (int64_t head = 0; head < a->n_heads; head++) {
            const Head h = head_of(a, b, head);
            head_forward(backend, a, &h, score);
        }
}

/* dV += P^T dO; dP = dO V^T; dS = P (dP - rowsum(dO O)); dQ = scale dS K; dK += scale dS^T Q. */
static void
head_backward(ExecBackend *backend, const ExecAttention *a, const Head *h, const float *dout,
              float *dq, float *dk, float *dv, float *score, float *dscore)
{
    for (int64_t begin = 0; begin < a->tokens; begin += BLOCK_ROWS) {
        const int64_t rows = MIN(BLOCK_ROWS, a->tokens - begin);
        const int64_t keys = a->context + begin + rows;
        const int64_t at = begin * h->q_stride;
        sgemm(backend, false, true, rows, keys, a->head_dim, 1.0f, h->q + at, h->q_stride, h->k,
              h->kv_stride, 0.0f, score, keys);
        sgemm(backend, false, true, rows, keys, a->head_dim, 1.0f, dout + at, h->q_stride, h->v,
              h->kv_stride, 0.0f, dscore, keys);
        exec_cpu_softmax_backward(rows, keys, a->context + begin, a->scale, a->head_dim,
                                  h->lse + begin * h->lse_stride, h->lse_stride, h->out + at,
                                  dout + at, h->q_stride, score, dscore);
        sgemm(backend, true, false, keys, a->head_dim, rows, 1.0f, score, keys, dout + at,
              h->q_stride, 1.0f, dv, h->kv_stride);
        sgemm(backend, false, false, rows, a->head_dim, keys, 1.0f, dscore, keys, h->k,
              h->kv_stride, 0.0f, dq + at, h->q_stride);
        sgemm(backend, true, false, keys, a->head_dim, rows, 1.0f, dscore, keys, h->q + at,
              h->q_stride, 1.0f, dk, h->kv_stride);
    }
}

static void
attention_backward(ExecBackend *backend, const ExecAttention *a, const ExecAttentionGradients *g)
{
    const int64_t n = BLOCK_ROWS * (a->context + a->tokens);
    float *score = scratch(backend, 2 * n);

    for (int64_t b = 0; b < a->sequences; b++)
        for (int64_t head = 0; head < a->n_heads; head++) {
            const Head h = head_of(a, b, head);
            head_backward(backend, a, &h, (const float *)g->dout + h.at_q, (float *)g->dq + h.at_q,
                          (float *)g->dk + h.at_kv, (float *)g->dv + h.at_kv, score, score + n);
        }
}

/* --- slots that need no state --- */

static void
add(ExecBackend *backend, int64_t n, const void *x, void *y)
{
    exec_cpu_add(n, x, y);
}

static void
scale(ExecBackend *backend, int64_t n, float factor, float *x)
{
    exec_cpu_scale(n, factor, x);
}

static void
bias_backward(ExecBackend *backend, int64_t rows, int64_t cols, const void *dy, int64_t stride,
              float *db)
{
    exec_cpu_column_sums(rows, cols, dy, stride, db);
}

static void
norm_forward(ExecBackend *backend, const ExecNorm *norm, void *y)
{
    exec_cpu_norm_forward(norm, y);
}

static void
gelu_forward(ExecBackend *backend, int64_t n, const void *x, void *y)
{
    exec_cpu_gelu_forward(n, x, y);
}

static void
gelu_backward(ExecBackend *backend, int64_t n, const void *x, void *dy)
{
    exec_cpu_gelu_backward(n, x, dy);
}

static void
swiglu_forward(ExecBackend *backend, int64_t rows, int64_t width, const void *x, void *y)
{
    exec_cpu_swiglu_forward(rows, width, x, y);
}

static void
swiglu_backward(ExecBackend *backend, int64_t rows, int64_t width, const void *x, const void *dy,
                void *dx)
{
    exec_cpu_swiglu_backward(rows, width, x, dy, dx);
}

static void
cross_entropy(ExecBackend *backend, const ExecCrossEntropy *entropy)
{
    *entropy->loss = exec_cpu_cross_entropy(entropy);
}

static void
adamw(ExecBackend *backend, int64_t n, float *master, void *weights, const float *grad, float *m,
      float *v, const ExecAdamw *constants)
{
    exec_cpu_adamw(n, master, grad, m, v, constants);
}

/* --- lifecycle --- */

static char *
describe(const ExecBackend *backend)
{
    const CpuState *state = backend->state;

    return g_strdup_printf("%s, 1 thread per rank", state->blas->description);
}

static int64_t
workspace_bytes(const ExecBackend *backend)
{
    const CpuState *state = backend->state;

    return state->n_scratch * (int64_t)sizeof(float);
}

static void
close_cpu(ExecBackend *backend)
{
    CpuState *state = backend->state;

    free(state->scratch);
    g_free(state);
    g_free(backend);
}

static const ExecBackendOps ops = {
    EXEC_HOST_MEMORY_SLOTS,
    EXEC_OWN_SLOTS,
    EXEC_HOST_FP32_SLOTS,
    .describe = describe,
    .workspace_bytes = workspace_bytes,
    .close = close_cpu,
};

ExecBackend *
exec_backend_cpu_open(const ExecBackendOptions *options, GError **error)
{
    const ExecBlas *blas = exec_blas_open(error);
    if (blas == NULL)
        return NULL;
    ExecBackend *backend = g_new0(ExecBackend, 1);
    CpuState *state = g_new0(CpuState, 1);

    state->blas = blas;
    backend->ops = &ops;
    backend->state = state;
    return backend;
}
