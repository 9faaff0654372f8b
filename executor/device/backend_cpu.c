/*
 * executor/device/backend_cpu.c - matrix products by OpenBLAS, attention as matrix products, and
 * vector loops (vector.h) for everything else.
 *
 * Attention takes blocks of query rows against all keys up to the block's end: three products and
 * a softmax forward, five products backward, and the masked half is skipped but for the block's own
 * triangle.  Scalar attention costs more than all else at 1024 tokens.
 *
 * Sums run over 16 lanes that are added pairwise at the end, and what does not fill a vector is
 * added after them one by one: a fixed order, equal bits on every run of one machine.
 */
#include "executor/device/backend_host.h"
#include "executor/device/blas.h"
#include "executor/device/recurrence_host.h"
#include "executor/device/vector.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const ExecBlas *blas;
    ExecScratch scratch;
} CpuState;

/* Scratch for @n floats; small beside the activations, so running out of memory aborts. */
static float *
scratch(ExecBackend *backend, int64_t n)
{
    return exec_host_scratch(&((CpuState *)backend->state)->scratch, n);
}

/* --- elementwise --- */

EXEC_CLONES static void
add(ExecBackend *backend, int64_t n, const void *x, void *y)
{
    for (int64_t i = 0; i < n; i += EXEC_LANES) {
        ExecVec a, b;
        exec_vec_load(&a, (const float *)x + i, n - i);
        exec_vec_load(&b, (float *)y + i, n - i);
        b += a;
        exec_vec_store(&b, (float *)y + i, n - i);
    }
}

EXEC_INLINE void
scale_row(int64_t n, float factor, float *x)
{
    for (int64_t i = 0; i < n; i += EXEC_LANES) {
        ExecVec v;
        exec_vec_load(&v, x + i, n - i);
        v *= factor;
        exec_vec_store(&v, x + i, n - i);
    }
}

/* gelu(x) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3): the tanh form without tanh's
 * cancellation for negative x. */
#define GELU_C 0.79788456080286535588f
#define GELU_CUBE 0.044715f

EXEC_INLINE void
gelu_sigmoid(const ExecVec *x, ExecVec *sigmoid)
{
    ExecVec e = *x * (1.0f + GELU_CUBE * (*x * *x)) * (-2.0f * GELU_C);

    exec_vec_exp(&e);
    *sigmoid = 1.0f / (1.0f + e);
}

EXEC_CLONES static void
gelu_forward(ExecBackend *backend, int64_t n, const void *x, void *y)
{
    for (int64_t i = 0; i < n; i += EXEC_LANES) {
        ExecVec v, s;
        exec_vec_load(&v, (const float *)x + i, n - i);
        gelu_sigmoid(&v, &s);
        s *= v;
        exec_vec_store(&s, (float *)y + i, n - i);
    }
}

EXEC_CLONES static void
gelu_backward(ExecBackend *backend, int64_t n, const void *x, void *dy)
{
    for (int64_t i = 0; i < n; i += EXEC_LANES) {
        ExecVec v, s, d;
        exec_vec_load(&v, (const float *)x + i, n - i);
        exec_vec_load(&d, (float *)dy + i, n - i);
        gelu_sigmoid(&v, &s);
        d *= s + v * s * (1.0f - s) * (2.0f * GELU_C) * (1.0f + 3.0f * GELU_CUBE * (v * v));
        exec_vec_store(&d, (float *)dy + i, n - i);
    }
}

/* Up to 16 elements, of @n that are left: @a becomes silu(gate) up, or with @dy (nullable) the
 * gradient of gate, and @b that of up. */
EXEC_INLINE void
swiglu_lanes(const float *gate, const float *up, const float *dy, int64_t n, float *a, float *b)
{
    ExecVec g, u, d, e, out;

    exec_vec_load(&g, gate, n);
    exec_vec_load(&u, up, n);
    e = -g;
    exec_vec_exp(&e);
    const ExecVec s = 1.0f / (1.0f + e);
    if (dy == NULL) {
        out = g * s * u;
        exec_vec_store(&out, a, n);
        return;
    }
    exec_vec_load(&d, dy, n);
    out = d * u * (s + g * s * (1.0f - s));
    exec_vec_store(&out, a, n);
    out = d * g * s;
    exec_vec_store(&out, b, n);
}

EXEC_CLONES static void
swiglu_forward(ExecBackend *backend, int64_t rows, int64_t width, const void *x_storage,
               void *y_storage)
{
    const float *x = x_storage;
    float *y = y_storage;

    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i += EXEC_LANES)
            swiglu_lanes(x + 2 * r * width + i, x + (2 * r + 1) * width + i, NULL, width - i,
                         y + r * width + i, NULL);
}

EXEC_CLONES static void
swiglu_backward(ExecBackend *backend, int64_t rows, int64_t width, const void *x_storage,
                const void *dy_storage, void *dx_storage)
{
    const float *x = x_storage, *dy = dy_storage;
    float *dx = dx_storage;

    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i += EXEC_LANES)
            swiglu_lanes(x + 2 * r * width + i, x + (2 * r + 1) * width + i, dy + r * width + i,
                         width - i, dx + 2 * r * width + i, dx + (2 * r + 1) * width + i);
}

/* --- rows --- */

EXEC_INLINE float
dot(int64_t n, const float *x, const float *y)
{
    ExecVec sum = {0}, a, b;
    int64_t i = 0;

    for (; i < exec_vec_whole(n); i += EXEC_LANES) {
        exec_vec_load(&a, x + i, EXEC_LANES);
        exec_vec_load(&b, y + i, EXEC_LANES);
        sum += a * b;
    }
    float total = exec_vec_sum(&sum);
    for (; i < n; i++)
        total += x[i] * y[i];
    return total;
}

/* exp(scale x - shift) in place; the sum of the results.  Columns from @n on are left alone. */
EXEC_INLINE float
exp_row(int64_t n, float scale, float shift, float *x)
{
    ExecVec sum = {0}, v;
    int64_t i = 0;

    for (; i < exec_vec_whole(n); i += EXEC_LANES) {
        exec_vec_load(&v, x + i, EXEC_LANES);
        v = v * scale - shift;
        exec_vec_exp(&v);
        exec_vec_store(&v, x + i, EXEC_LANES);
        sum += v;
    }
    float total = exec_vec_sum(&sum);
    if (i < n) {
        exec_vec_load(&v, x + i, n - i);
        v = v * scale - shift;
        exec_vec_exp(&v);
        exec_vec_store(&v, x + i, n - i);
        for (; i < n; i++)
            total += x[i];
    }
    return total;
}

EXEC_INLINE float
row_largest(int64_t n, const float *x)
{
    ExecVec largest, v;
    int64_t i = 0;

    exec_vec_load_part(&largest, x, MIN(n, EXEC_LANES), -INFINITY);
    for (; i < exec_vec_whole(n); i += EXEC_LANES) {
        exec_vec_load(&v, x + i, EXEC_LANES);
        exec_vec_raise(&largest, &v);
    }
    float result = exec_vec_largest(&largest);
    for (; i < n; i++)
        result = x[i] > result ? x[i] : result;
    return result;
}

/* Four vectors of columns at a time, so that the sums stay in registers over all rows. */
EXEC_CLONES static void
bias_backward(ExecBackend *backend, int64_t rows, int64_t cols, const void *dy_storage,
              int64_t stride, float *db)
{
    const float *dy = dy_storage;
    int64_t i = 0;

    for (; i + 4 * EXEC_LANES <= cols; i += 4 * EXEC_LANES) {
        ExecVec sum[4] = {{0}, {0}, {0}, {0}}, term;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t part = 0; part < 4; part++) {
                exec_vec_load(&term, dy + r * stride + i + part * EXEC_LANES, EXEC_LANES);
                sum[part] += term;
            }
        for (int64_t part = 0; part < 4; part++) {
            exec_vec_load(&term, db + i + part * EXEC_LANES, EXEC_LANES);
            term += sum[part];
            exec_vec_store(&term, db + i + part * EXEC_LANES, EXEC_LANES);
        }
    }
    for (; i < cols; i++) {
        float sum = 0;
        for (int64_t r = 0; r < rows; r++)
            sum += dy[r * stride + i];
        db[i] += sum;
    }
}

/* Sum of x, or of (x - mean)^2 when @squares. */
EXEC_INLINE float
row_sum(int64_t cols, const float *x, float mean, bool squares)
{
    ExecVec sum = {0}, v;
    int64_t i = 0;

    for (; i < exec_vec_whole(cols); i += EXEC_LANES) {
        exec_vec_load(&v, x + i, EXEC_LANES);
        if (squares) {
            v -= mean;
            v *= v;
        }
        sum += v;
    }
    float total = exec_vec_sum(&sum);
    for (; i < cols; i++)
        total += squares ? (x[i] - mean) * (x[i] - mean) : x[i];
    return total;
}

/* The norm's gains, or ones in @room. */
static const float *
gains(const ExecNorm *norm, float *room)
{
    for (int64_t i = 0; norm->gain == NULL && i < norm->cols; i++)
        room[i] = 1.0f;
    return norm->gain != NULL ? norm->gain : room;
}

EXEC_CLONES static void
norm_forward(ExecBackend *backend, const ExecNorm *norm, void *y)
{
    const int64_t cols = norm->cols;
    const float *gain = gains(norm, scratch(backend, cols)), *shift = norm->shift;

    for (int64_t r = 0; r < norm->rows; r++) {
        const float *from = (const float *)norm->x + r * cols;
        float *to = (float *)y + r * cols;
        const float m = norm->mean != NULL ? row_sum(cols, from, 0.0f, false) / (float)cols : 0.0f;
        const float s = 1.0f / sqrtf(row_sum(cols, from, m, true) / (float)cols + norm->epsilon);
        for (int64_t i = 0; i < cols; i += EXEC_LANES) {
            ExecVec v, g, b = {0};
            exec_vec_load(&v, from + i, cols - i);
            exec_vec_load(&g, gain + i, cols - i);
            if (shift != NULL)
                exec_vec_load(&b, shift + i, cols - i);
            v = (v - m) * s * g + b;
            exec_vec_store(&v, to + i, cols - i);
        }
        if (norm->mean != NULL)
            norm->mean[r] = m;
        norm->rstd[r] = s;
    }
}

/* Sums of g and g z of a row (see backend_reference.c), and the parameters' sums on the way. */
EXEC_INLINE void
norm_row_sums(int64_t cols, const float *x, const float *gain, float m, float s, const float *dy,
              float *gain_sum, float *shift_sum, float *sum_g, float *sum_gz)
{
    ExecVec g_total = {0}, gz_total = {0};
    int64_t i = 0;

    for (; i < exec_vec_whole(cols); i += EXEC_LANES) {
        ExecVec v, w, d, a, b;
        exec_vec_load(&v, x + i, EXEC_LANES);
        exec_vec_load(&w, gain + i, EXEC_LANES);
        exec_vec_load(&d, dy + i, EXEC_LANES);
        exec_vec_load(&a, gain_sum + i, EXEC_LANES);
        exec_vec_load(&b, shift_sum + i, EXEC_LANES);
        const ExecVec z = (v - m) * s;
        const ExecVec g = d * w;
        a += d * z;
        b += d;
        exec_vec_store(&a, gain_sum + i, EXEC_LANES);
        exec_vec_store(&b, shift_sum + i, EXEC_LANES);
        g_total += g;
        gz_total += g * z;
    }
    *sum_g = exec_vec_sum(&g_total);
    *sum_gz = exec_vec_sum(&gz_total);
    for (; i < cols; i++) {
        const float z = (x[i] - m) * s;
        gain_sum[i] += dy[i] * z;
        shift_sum[i] += dy[i];
        *sum_g += dy[i] * gain[i];
        *sum_gz += dy[i] * gain[i] * z;
    }
}

EXEC_CLONES static void
norm_backward(ExecBackend *backend, const ExecNorm *norm, const void *dy, void *dx, float *dgain,
              float *dshift)
{
    float *sums = scratch(backend, 3 * norm->cols);
    const int64_t cols = norm->cols;
    const float *gain = gains(norm, sums + 2 * cols);

    memset(sums, 0, 2 * (size_t)cols * sizeof *sums);
    for (int64_t r = 0; r < norm->rows; r++) {
        const float *from = (const float *)norm->x + r * cols, *d = (const float *)dy + r * cols;
        const float m = norm->mean != NULL ? norm->mean[r] : 0.0f, s = norm->rstd[r];
        float *to = (float *)dx + r * cols;
        float mean_g = 0, mean_gz = 0;
        norm_row_sums(cols, from, gain, m, s, d, sums, sums + cols, &mean_g, &mean_gz);
        mean_g = norm->mean != NULL ? mean_g / (float)cols : 0.0f;
        mean_gz /= (float)cols;
        for (int64_t i = 0; i < cols; i += EXEC_LANES) {
            ExecVec v, w, e, old;
            exec_vec_load(&v, from + i, cols - i);
            exec_vec_load(&w, gain + i, cols - i);
            exec_vec_load(&e, d + i, cols - i);
            exec_vec_load(&old, to + i, cols - i);
            old += s * (e * w - mean_g - (v - m) * s * mean_gz);
            exec_vec_store(&old, to + i, cols - i);
        }
    }
    if (dgain != NULL)
        add(backend, cols, sums, dgain);
    if (dshift != NULL)
        add(backend, cols, sums + cols, dshift);
}

/* --- loss and optimizer --- */

EXEC_CLONES static void
cross_entropy_stats(ExecBackend *backend, const ExecCrossEntropy *e, float *stats)
{
    float *row = scratch(backend, e->vocab);

    for (int64_t r = 0; r < e->rows; r++) {
        const float *logits = (const float *)e->logits + r * e->stride;
        const int64_t target = e->target[r] - e->first;
        const float largest = row_largest(e->vocab, logits);
        memcpy(row, logits, (size_t)e->vocab * sizeof *row);
        stats[r] = largest;
        stats[e->rows + r] = exp_row(e->vocab, 1.0f, largest, row);
        stats[2 * e->rows + r] = target >= 0 && target < e->vocab ? logits[target] : 0.0f;
    }
}

EXEC_CLONES static void
cross_entropy(ExecBackend *backend, const ExecCrossEntropy *e)
{
    double loss = 0;

    for (int64_t r = 0; r < e->rows; r++) {
        float *row = (float *)e->logits + r * e->stride;
        const int64_t target = e->target[r] - e->first;
        if (e->stats == NULL) {
            const float largest = row_largest(e->vocab, row);
            const double wanted = (double)row[target];
            const float sum = exp_row(e->vocab, 1.0f, largest, row);
            scale_row(e->vocab, e->factor / sum, row);
            loss += (double)largest + log((double)sum) - wanted;
        } else {
            double lse, wanted;
            exec_host_merge_stats(e, r, &lse, &wanted);
            exp_row(e->vocab, 1.0f, (float)lse, row);
            scale_row(e->vocab, e->factor, row);
            loss += lse - wanted;
        }
        if (target >= 0 && target < e->vocab)
            row[target] -= e->factor;
        memset(row + e->vocab, 0, (size_t)(e->stride - e->vocab) * sizeof *row);
    }
    *e->loss = loss;
}

/* Plain loop: square root and division are one instruction each when vectorised. */
EXEC_CLONES EXEC_VECTORIZE static void
adamw_elements(int64_t n, float *restrict param, float *restrict grad, float *restrict m,
               float *restrict v, bool decays, const ExecAdamw *c)
{
    const double decay = decays ? (double)c->weight_decay : 0.0;
    const float beta1 = c->beta1, beta2 = c->beta2, epsilon = c->epsilon;
    const float scale1 = (float)(1.0 / (1.0 - pow((double)beta1, (double)c->step)));
    const float scale2 = (float)(1.0 / (1.0 - pow((double)beta2, (double)c->step)));
    const float rate = c->learning_rate * scale1;
    const float keep = (float)(1.0 - (double)c->learning_rate * decay);
    const float factor = c->factor != NULL ? *c->factor : 1.0f;

    for (int64_t i = 0; i < n; i++) {
        const float g = factor * grad[i];
        m[i] = beta1 * m[i] + (1.0f - beta1) * g;
        v[i] = beta2 * v[i] + (1.0f - beta2) * g * g;
        param[i] = param[i] * keep - rate * m[i] / (sqrtf(v[i] * scale2) + epsilon);
        grad[i] = 0;
    }
}

static void
adamw(ExecBackend *backend, int64_t n_parts, const ExecAdamwPart *parts, const ExecAdamw *constants)
{
    for (const ExecAdamwPart *p = parts; p < parts + n_parts; p++)
        adamw_elements(p->n, p->master, p->grad, p->m, p->v, p->decays, constants);
}

/* --- products --- */

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

/* c[row] = bias + residual[row], either of them optional. */
EXEC_CLONES static void
fill_rows(int64_t rows, int64_t cols, const float *bias, const float *residual, float *c,
          int64_t ldc)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < cols; i += EXEC_LANES) {
            ExecVec sum = {0}, term;
            if (bias != NULL)
                exec_vec_load(&sum, bias + i, cols - i);
            if (residual != NULL) {
                exec_vec_load(&term, residual + r * ldc + i, cols - i);
                sum += term;
            }
            exec_vec_store(&sum, c + r * ldc + i, cols - i);
        }
}

/* OpenBLAS scales C in a pass of its own when beta is not 1; so bias and residual are written into
 * C first and the product is added, which costs no more than beta = 0 alone. */
static void
gemm(ExecBackend *backend, const ExecGemm *g)
{
    if (g->m == 0 || g->n == 0)
        return;
    if (g->bias != NULL || g->residual != NULL)
        fill_rows(g->m, g->n, g->bias, g->residual, g->c, g->ldc);
    sgemm(backend, g->trans_a, g->trans_b, g->m, g->n, g->k, 1.0f, g->a, g->lda, g->b, g->ldb,
          g->accumulate || g->bias != NULL || g->residual != NULL ? 1.0f : 0.0f, g->c, g->ldc);
}

/* --- attention --- */

/* Query rows per block: at 1024 keys a block of scores is 256 KiB, a quarter of an L2 cache, and
 * a product of 64 rows still runs at 9/10 of sgemm's rate. */
#define BLOCK_ROWS 64

/* tanh(x): below 1/4 its Taylor polynomial of degree 9, whose remainder is below 1e-8 of it. */
EXEC_INLINE void
vec_tanh(ExecVec *x)
{
    const ExecVec v = *x, square = v * v;
    ExecVec e = 2.0f * v;

    exec_vec_exp(&e);
    const ExecVec wide = 1.0f - 2.0f / (1.0f + e);
    ExecVec p = square * (62.0f / 2835.0f) - 17.0f / 315.0f;
    p = p * square + 2.0f / 15.0f;
    p = p * square - 1.0f / 3.0f;
    const ExecVec narrow = v + v * square * p;
    const ExecIntVec is_narrow = square < 0.0625f;
    *x = (ExecVec)(((ExecIntVec)narrow & is_narrow) | ((ExecIntVec)wide & ~is_narrow));
}

/* What bends scores between their product and the softmax; @key is the key of x[0] less the row's
 * own.  x becomes what exp() is taken of but for the shift; @slope (nullable) becomes the
 * derivative by q . k. */
EXEC_INLINE void
bend_row(const ExecAttention *a, int64_t n, float alibi, int64_t key, float *x, float *slope)
{
    const ExecVec lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

    for (int64_t i = 0; i < n; i += EXEC_LANES) {
        ExecVec v, d = {0};
        exec_vec_load(&v, x + i, n - i);
        v *= a->scale;
        d += a->scale;
        if (a->cap > 0.0f) {
            v *= 1.0f / a->cap;
            vec_tanh(&v);
            d *= 1.0f - v * v;
            v *= a->cap;
        }
        v += alibi * (lanes + (float)(key + i));
        exec_vec_store(&v, x + i, n - i);
        if (slope != NULL)
            exec_vec_store(&d, slope + i, n - i);
    }
}

/* One (sequence, head) as strided matrices. */
typedef struct {
    const float *q, *k, *v;
    float *out, *lse;
    int64_t at_q, at_out, at_k, at_v; /* where they begin in the whole tensors */
    int64_t q_stride, out_stride, kv_stride, lse_stride;
    int64_t v_dim, sequence;
    float alibi, sink;
    bool bends; /* scores are more than scaled */
} Head;

static Head
head_of(const ExecAttention *a, int64_t sequence, int64_t head)
{
    const int64_t v_dim = exec_attention_v_dim(a), at = sequence * a->n_heads + head;
    const int64_t kv_head = head / (a->n_heads / a->n_kv_heads);
    const int64_t at_kv = sequence * a->kv_stride, heads = a->sequences * a->n_heads;

    return (Head){
        .at_q = at * a->head_dim,
        .at_out = at * v_dim,
        .at_k = at_kv + kv_head * a->head_dim,
        .at_v = at_kv + kv_head * v_dim,
        .q = (const float *)a->q + at * a->head_dim,
        .k = (const float *)a->k + at_kv + kv_head * a->head_dim,
        .v = (const float *)a->v + at_kv + kv_head * v_dim,
        .out = (float *)a->out + at * v_dim,
        .lse = a->lse + at,
        .q_stride = heads * a->head_dim,
        .out_stride = heads * v_dim,
        .kv_stride = a->sequences * a->kv_stride,
        .lse_stride = heads,
        .v_dim = v_dim,
        .sequence = sequence,
        .alibi = (float)exec_attention_slope(a, head),
        .sink = a->sink != NULL ? ((const float *)a->sink)[head] : -INFINITY,
        .bends = a->cap > 0.0f || a->alibi_heads > 0,
    };
}

/* Rows [begin, begin + n) of a slice, and the keys [first, first + cols) that any of them sees. */
typedef struct {
    int64_t begin, n, first, cols;
} Block;

/* The block of rows from @begin on; it ends with the chunk of its first row. */
static Block
block_of(const ExecAttention *a, int64_t begin)
{
    Block b = {.begin = begin, .n = MIN(BLOCK_ROWS, a->tokens - begin)};

    if (a->chunk > 0)
        b.n = MIN(b.n, a->chunk - (a->context + begin) % a->chunk);
    b.first = exec_attention_first_key(a, begin);
    b.cols = a->context + begin + b.n - b.first;
    return b;
}

/* The columns [*from, *end) of the block that its row @r sees; the others of @x become 0. */
EXEC_INLINE float *
seen(const ExecAttention *a, const Block *b, int64_t r, float *x, int64_t *n)
{
    const int64_t from = exec_attention_first_key(a, b->begin + r) - b->first;
    const int64_t end = a->context + b->begin + r + 1 - b->first;
    float *row = x + r * b->cols;

    memset(row, 0, (size_t)from * sizeof *row);
    memset(row + end, 0, (size_t)(b->cols - end) * sizeof *row);
    *n = end - from;
    return row + from;
}

/* A score whose exponential is 0. */
#define HIDDEN (-1e30f)

/* Hides of the @n scores at @row, which are those of row @r of the block, what the indexer has not chosen. */
static void
hide(const ExecAttention *a, const Head *h, const Block *b, int64_t r, int64_t n, float *row)
{
    const int32_t *chosen = exec_attention_chosen(a, b->begin + r, h->sequence);
    const int64_t first = exec_attention_first_key(a, b->begin + r);
    int64_t next = 0;

    for (int64_t i = 0; chosen != NULL && i < n; i++)
        if (exec_attention_is_hidden(chosen, a->n_chosen, first + i, &next))
            row[i] = HIDDEN;
}

/* Rows of scores become probabilities; keys that a row does not see get 0. */
EXEC_CLONES static void
softmax(const ExecAttention *a, const Head *h, const Block *b, float *score)
{
    const float scale = h->bends ? 1.0f : a->scale;

    for (int64_t r = 0; r < b->n; r++) {
        int64_t n;
        float *row = seen(a, b, r, score, &n);
        if (h->bends)
            bend_row(a, n, h->alibi, 1 - n, row, NULL);
        hide(a, h, b, r, n, row);
        float shift = row_largest(n, row) * scale;
        shift = h->sink > shift ? h->sink : shift;
        const float sum =
            exp_row(n, scale, shift, row) + (a->sink != NULL ? expf(h->sink - shift) : 0.0f);
        scale_row(n, 1.0f / sum, row);
        h->lse[(b->begin + r) * h->lse_stride] = shift + logf(sum);
    }
}

/* score (q k) becomes P = exp(bent score - lse); dscore (dO V^T) becomes
 * slope P (dscore - rowsum(dO O)), the gradient of q k.  @slope  room for a row.
 * Returns: the gradient of the sink, whose dscore is 0. */
EXEC_CLONES static double
softmax_backward(const ExecAttention *a, const Head *h, const Block *b, const float *dout,
                 float *score, float *dscore, float *slope)
{
    const float scale = h->bends ? 1.0f : a->scale;
    double dsink = 0;

    for (int64_t r = 0; r < b->n; r++) {
        const int64_t at = (b->begin + r) * h->out_stride;
        const float shift = h->lse[(b->begin + r) * h->lse_stride];
        const float delta = dot(h->v_dim, h->out + at, dout + at);
        int64_t n;
        float *p = seen(a, b, r, score, &n), *dp = seen(a, b, r, dscore, &n);
        if (h->bends)
            bend_row(a, n, h->alibi, 1 - n, p, slope);
        hide(a, h, b, r, n, p);
        for (int64_t i = 0; i < n; i += EXEC_LANES) {
            ExecVec x, y, d = {0};
            exec_vec_load(&x, p + i, n - i);
            exec_vec_load(&y, dp + i, n - i);
            if (h->bends)
                exec_vec_load(&d, slope + i, n - i);
            else
                d += scale;
            x = x * scale - shift;
            exec_vec_exp(&x);
            y = (y - delta) * x * d;
            exec_vec_store(&x, p + i, n - i);
            exec_vec_store(&y, dp + i, n - i);
        }
        if (a->sink != NULL)
            dsink -= exp((double)h->sink - (double)shift) * (double)delta;
    }
    return dsink;
}

/* Elements of the largest block of scores. */
static int64_t
most_scores(const ExecAttention *a)
{
    int64_t keys = a->context + a->tokens;

    if (a->window > 0)
        keys = MIN(keys, a->window - 1 + BLOCK_ROWS);
    if (a->chunk > 0)
        keys = MIN(keys, a->chunk);
    return MIN(BLOCK_ROWS, a->tokens) * keys;
}

static void
head_forward(ExecBackend *backend, const ExecAttention *a, const Head *h, float *score)
{
    for (Block b = block_of(a, 0); b.begin < a->tokens; b = block_of(a, b.begin + b.n)) {
        sgemm(backend, false, true, b.n, b.cols, a->head_dim, 1.0f, h->q + b.begin * h->q_stride,
              h->q_stride, h->k + b.first * h->kv_stride, h->kv_stride, 0.0f, score, b.cols);
        softmax(a, h, &b, score);
        sgemm(backend, false, false, b.n, h->v_dim, b.cols, 1.0f, score, b.cols,
              h->v + b.first * h->kv_stride, h->kv_stride, 0.0f, h->out + b.begin * h->out_stride,
              h->out_stride);
    }
}

static void
attention_forward(ExecBackend *backend, const ExecAttention *a)
{
    float *score = scratch(backend, most_scores(a));

    for (int64_t b = 0; b < a->sequences; b++)
        for (int64_t head = 0; head < a->n_heads; head++) {
            const Head h = head_of(a, b, head);
            head_forward(backend, a, &h, score);
        }
}

/* dV += P^T dO; dP = dO V^T; dS = P (dP - rowsum(dO O)); dQ = scale dS K; dK += scale dS^T Q.
 * @dout to @dv are the head's; @score has room for two blocks and a row.  Returns: the gradient of
 * the head's sink. */
static double
head_backward(ExecBackend *backend, const ExecAttention *a, const Head *h, const float *dout,
              float *dq, float *dk, float *dv, float *score)
{
    const int64_t most = most_scores(a);
    float *dscore = score + most;
    double dsink = 0;

    for (Block b = block_of(a, 0); b.begin < a->tokens; b = block_of(a, b.begin + b.n)) {
        const int64_t at = b.begin * h->q_stride, at_kv = b.first * h->kv_stride;
        const float *d = dout + b.begin * h->out_stride;
        sgemm(backend, false, true, b.n, b.cols, a->head_dim, 1.0f, h->q + at, h->q_stride,
              h->k + at_kv, h->kv_stride, 0.0f, score, b.cols);
        sgemm(backend, false, true, b.n, b.cols, h->v_dim, 1.0f, d, h->out_stride, h->v + at_kv,
              h->kv_stride, 0.0f, dscore, b.cols);
        dsink += softmax_backward(a, h, &b, dout, score, dscore, dscore + most);
        sgemm(backend, true, false, b.cols, h->v_dim, b.n, 1.0f, score, b.cols, d, h->out_stride,
              1.0f, dv + at_kv, h->kv_stride);
        sgemm(backend, false, false, b.n, a->head_dim, b.cols, 1.0f, dscore, b.cols, h->k + at_kv,
              h->kv_stride, 0.0f, dq + at, h->q_stride);
        sgemm(backend, true, false, b.cols, a->head_dim, b.n, 1.0f, dscore, b.cols, h->q + at,
              h->q_stride, 1.0f, dk + at_kv, h->kv_stride);
    }
    return dsink;
}

static void
attention_backward(ExecBackend *backend, const ExecAttention *a, const ExecAttentionGradients *g)
{
    const int64_t row = a->cap > 0.0f || a->alibi_heads > 0 ? a->context + a->tokens : 0;
    float *score = scratch(backend, 2 * most_scores(a) + row);

    exec_host_begin_gradients(a, g);
    for (int64_t b = 0; b < a->sequences; b++)
        for (int64_t head = 0; head < a->n_heads; head++) {
            const Head h = head_of(a, b, head);
            const double dsink = head_backward(backend, a, &h, (const float *)g->dout + h.at_out,
                                               (float *)g->dq + h.at_q, (float *)g->dk + h.at_k,
                                               (float *)g->dv + h.at_v, score);
            if (g->dsink != NULL)
                g->dsink[head] += (float)dsink;
        }
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

    return exec_host_scratch_bytes(&state->scratch);
}

static void
close_cpu(ExecBackend *backend)
{
    CpuState *state = backend->state;

    free(state->scratch.data);
    g_free(state);
    g_free(backend);
}

static const ExecBackendOps ops = {
    EXEC_HOST_MEMORY_SLOTS,
    EXEC_OWN_SLOTS,
    EXEC_HOST_RECURRENCE_SLOTS,
    EXEC_HOST_INDEXER_SLOTS,
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
    backend->n_threads = 1;
    return backend;
}
