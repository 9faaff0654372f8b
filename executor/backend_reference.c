/*
 * executor/backend_reference.c - plain loops: always built, obvious, never fast.
 *
 * The oracle of every other backend, so every sum is taken in double and rounded once; what another
 * backend differs by is its own rounding.
 */
#include "executor/backend_host.h"

#include <math.h>

#include "executor/vector.h"

static inline float
at(const float *x, bool transposed, int64_t row, int64_t col, int64_t stride)
{
    return transposed ? x[col * stride + row] : x[row * stride + col];
}

/* Columns of C at a time. */
#define BLOCK 64

/* sum[j] += a[p] b[p][j] for all p in order; @a's elements are @stride apart. */
EXEC_CLONES EXEC_VECTORIZE static void
add_products(int64_t k, const float *a, int64_t stride, const double (*restrict b)[BLOCK],
             double *restrict sum)
{
    for (int64_t p = 0; p < k; p++) {
        const double factor = (double)a[p * stride];
        for (int64_t j = 0; j < BLOCK; j++)
            sum[j] += factor * b[p][j];
    }
}

/* Columns [begin, begin + n) of C; @b holds those of B as doubles, zero beyond n. */
static void
gemm_columns(const ExecGemm *g, const double (*b)[BLOCK], int64_t begin, int64_t n)
{
    for (int64_t i = 0; i < g->m; i++) {
        float *c = g->c + i * g->ldc + begin;
        double sum[BLOCK] = {0};
        for (int64_t j = 0; j < n; j++) {
            sum[j] = g->accumulate ? (double)c[j] : 0.0;
            if (g->bias != NULL)
                sum[j] += (double)g->bias[begin + j];
            if (g->residual != NULL)
                sum[j] += (double)g->residual[i * g->ldc + begin + j];
        }
        add_products(g->k, g->trans_a ? g->a + i : g->a + i * g->lda, g->trans_a ? g->lda : 1, b,
                     sum);
        for (int64_t j = 0; j < n; j++)
            c[j] = (float)sum[j];
    }
}

/* Products are added in the order of k, whatever the block. */
static void
gemm(ExecBackend *backend, const ExecGemm *g)
{
    g_autofree double(*b)[BLOCK] = g_malloc0_n((size_t)MAX(g->k, 1), sizeof *b);

    for (int64_t begin = 0; begin < g->n; begin += BLOCK) {
        const int64_t n = MIN(BLOCK, g->n - begin);
        for (int64_t p = 0; p < g->k; p++)
            for (int64_t j = 0; j < BLOCK; j++)
                b[p][j] = j < n ? (double)at(g->b, g->trans_b, p, begin + j, g->ldb) : 0.0;
        gemm_columns(g, (const double(*)[BLOCK])b, begin, n);
    }
}

static void
add(ExecBackend *backend, int64_t n, const float *x, float *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}

static void
scale(ExecBackend *backend, int64_t n, float factor, float *x)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= factor;
}

static void
bias_backward(ExecBackend *backend, int64_t rows, int64_t cols, const float *dy, int64_t stride,
              float *db)
{
    for (int64_t j = 0; j < cols; j++) {
        double sum = (double)db[j];
        for (int64_t i = 0; i < rows; i++)
            sum += (double)dy[i * stride + j];
        db[j] = (float)sum;
    }
}

static void
layernorm_forward(ExecBackend *backend, int64_t rows, int64_t cols, const float *x,
                  const float *gain, const float *shift, float *y, float *mean, float *rstd)
{
    for (int64_t i = 0; i < rows; i++) {
        const float *row = x + i * cols;
        double sum = 0, squares = 0;
        for (int64_t j = 0; j < cols; j++)
            sum += (double)row[j];
        const double m = sum / (double)cols;
        for (int64_t j = 0; j < cols; j++)
            squares += ((double)row[j] - m) * ((double)row[j] - m);
        const double r = 1.0 / sqrt(squares / (double)cols + (double)EXEC_LAYERNORM_EPSILON);
        for (int64_t j = 0; j < cols; j++)
            y[i * cols + j] =
                (float)(((double)row[j] - m) * r * (double)gain[j] + (double)shift[j]);
        mean[i] = (float)m;
        rstd[i] = (float)r;
    }
}

/*
 * With z = (x - mean) rstd and g = dy gain: dx = rstd (g - mean(g) - z mean(g z)), the means over
 * the row [Ba et al. 1607.06450].
 */
static void
layernorm_backward(ExecBackend *backend, int64_t rows, int64_t cols, const float *x,
                   const float *gain, const float *mean, const float *rstd, const float *dy,
                   float *dx, float *dgain, float *dshift)
{
    for (int64_t i = 0; i < rows; i++) {
        const double m = (double)mean[i], r = (double)rstd[i];
        double sum_g = 0, sum_gz = 0;
        for (int64_t j = 0; j < cols; j++) {
            const double g = (double)dy[i * cols + j] * (double)gain[j];
            sum_g += g;
            sum_gz += g * ((double)x[i * cols + j] - m) * r;
        }
        for (int64_t j = 0; j < cols; j++) {
            const double g = (double)dy[i * cols + j] * (double)gain[j];
            const double z = ((double)x[i * cols + j] - m) * r;
            dx[i * cols + j] += (float)(r * (g - sum_g / (double)cols - z * sum_gz / (double)cols));
        }
    }
    for (int64_t j = 0; j < cols; j++) {
        double sum_gain = (double)dgain[j], sum_shift = (double)dshift[j];
        for (int64_t i = 0; i < rows; i++) {
            const double z = ((double)x[i * cols + j] - (double)mean[i]) * (double)rstd[i];
            sum_gain += (double)dy[i * cols + j] * z;
            sum_shift += (double)dy[i * cols + j];
        }
        dgain[j] = (float)sum_gain;
        dshift[j] = (float)sum_shift;
    }
}

/* sqrt(2/pi) of GELU's tanh form [Hendrycks and Gimpel 1606.08415]. */
static const double gelu_c = 0.79788456080286535588;

static void
gelu_forward(ExecBackend *backend, int64_t n, const float *x, float *y)
{
    for (int64_t i = 0; i < n; i++) {
        const double v = (double)x[i];
        y[i] = (float)(0.5 * v * (1.0 + tanh(gelu_c * (v + 0.044715 * v * v * v))));
    }
}

static void
gelu_backward(ExecBackend *backend, int64_t n, const float *x, float *dy)
{
    for (int64_t i = 0; i < n; i++) {
        const double v = (double)x[i];
        const double t = tanh(gelu_c * (v + 0.044715 * v * v * v));
        const double slope = gelu_c * (1.0 + 3.0 * 0.044715 * v * v);
        dy[i] = (float)((double)dy[i] * (0.5 * (1.0 + t) + 0.5 * v * (1.0 - t * t) * slope));
    }
}

/* Where head @h of row @t of sequence @b begins in q, out and their gradients. */
static inline int64_t
query_at(const ExecAttention *a, int64_t t, int64_t b, int64_t h)
{
    return ((t * a->sequences + b) * a->n_heads + h) * a->head_dim;
}

static inline int64_t
key_at(const ExecAttention *a, int64_t t, int64_t b, int64_t h)
{
    return (t * a->sequences + b) * a->kv_stride + h / (a->n_heads / a->n_kv_heads) * a->head_dim;
}

/* score[j] = scale * q . k_j for the keys that row @t sees; returns how many. */
static int64_t
scores(const ExecAttention *a, int64_t t, int64_t b, int64_t h, double *score)
{
    const float *q = a->q + query_at(a, t, b, h);
    const int64_t n = a->context + t + 1;

    for (int64_t j = 0; j < n; j++) {
        const float *k = a->k + key_at(a, j, b, h);
        double sum = 0;
        for (int64_t i = 0; i < a->head_dim; i++)
            sum += (double)q[i] * (double)k[i];
        score[j] = sum * (double)a->scale;
    }
    return n;
}

static void
attention_row(const ExecAttention *a, int64_t t, int64_t b, int64_t h, double *score)
{
    const int64_t n = scores(a, t, b, h, score);
    float *out = a->out + query_at(a, t, b, h);
    double largest = -INFINITY, sum = 0;

    for (int64_t j = 0; j < n; j++)
        largest = fmax(largest, score[j]);
    for (int64_t j = 0; j < n; j++)
        sum += exp(score[j] - largest);
    const double lse = largest + log(sum);
    for (int64_t j = 0; j < n; j++)
        score[j] = exp(score[j] - lse);
    for (int64_t i = 0; i < a->head_dim; i++) {
        double value = 0;
        for (int64_t j = 0; j < n; j++)
            value += score[j] * (double)a->v[key_at(a, j, b, h) + i];
        out[i] = (float)value;
    }
    a->lse[(t * a->sequences + b) * a->n_heads + h] = (float)lse;
}

static void
attention_forward(ExecBackend *backend, const ExecAttention *a)
{
    g_autofree double *score = g_new(double, (size_t)(a->context + a->tokens));

    for (int64_t t = 0; t < a->tokens; t++)
        for (int64_t b = 0; b < a->sequences; b++)
            for (int64_t h = 0; h < a->n_heads; h++)
                attention_row(a, t, b, h, score);
}

/*
 * With p the row's probabilities: dp_j = dout . v_j, ds_j = p_j (dp_j - sum_i p_i dp_i),
 * dq = scale sum_j ds_j k_j, dk_j += scale ds_j q, dv_j += p_j dout.
 */
static void
attention_row_backward(const ExecAttention *a, const ExecAttentionGradients *g, int64_t t,
                       int64_t b, int64_t h, double *score, double *dp)
{
    const int64_t n = scores(a, t, b, h, score);
    const int64_t at_q = query_at(a, t, b, h);
    double largest = -INFINITY, sum = 0, weighted = 0;

    for (int64_t j = 0; j < n; j++)
        largest = fmax(largest, score[j]);
    for (int64_t j = 0; j < n; j++)
        sum += exp(score[j] - largest);
    for (int64_t j = 0; j < n; j++) {
        const float *v = a->v + key_at(a, j, b, h);
        score[j] = exp(score[j] - largest) / sum;
        dp[j] = 0;
        for (int64_t i = 0; i < a->head_dim; i++)
            dp[j] += (double)g->dout[at_q + i] * (double)v[i];
        weighted += score[j] * dp[j];
    }
    for (int64_t i = 0; i < a->head_dim; i++) {
        double dq = 0;
        for (int64_t j = 0; j < n; j++) {
            const int64_t at_k = key_at(a, j, b, h) + i;
            const double ds = score[j] * (dp[j] - weighted) * (double)a->scale;
            dq += ds * (double)a->k[at_k];
            g->dk[at_k] = (float)((double)g->dk[at_k] + ds * (double)a->q[at_q + i]);
            g->dv[at_k] = (float)((double)g->dv[at_k] + score[j] * (double)g->dout[at_q + i]);
        }
        g->dq[at_q + i] = (float)dq;
    }
}

static void
attention_backward(ExecBackend *backend, const ExecAttention *a, const ExecAttentionGradients *g)
{
    const size_t n = (size_t)(a->context + a->tokens);
    g_autofree double *score = g_new(double, n);
    g_autofree double *dp = g_new(double, n);

    for (int64_t t = 0; t < a->tokens; t++)
        for (int64_t b = 0; b < a->sequences; b++)
            for (int64_t h = 0; h < a->n_heads; h++)
                attention_row_backward(a, g, t, b, h, score, dp);
}

static double
cross_entropy(ExecBackend *backend, int64_t rows, int64_t vocab, const int32_t *target,
              float factor, float *logits)
{
    double loss = 0;

    for (int64_t i = 0; i < rows; i++) {
        float *row = logits + i * vocab;
        double largest = (double)row[0], sum = 0;
        for (int64_t j = 1; j < vocab; j++)
            largest = fmax(largest, (double)row[j]);
        for (int64_t j = 0; j < vocab; j++)
            sum += exp((double)row[j] - largest);
        loss += largest + log(sum) - (double)row[target[i]];
        for (int64_t j = 0; j < vocab; j++)
            row[j] = (float)((double)factor *
                             (exp((double)row[j] - largest) / sum - (j == target[i] ? 1.0 : 0.0)));
    }
    return loss;
}

static void
adamw(ExecBackend *backend, int64_t n, float *param, const float *grad, float *m, float *v,
      const ExecAdamw *c)
{
    const double correct1 = 1.0 - pow((double)c->beta1, (double)c->step);
    const double correct2 = 1.0 - pow((double)c->beta2, (double)c->step);
    const double rate = (double)c->learning_rate;

    for (int64_t i = 0; i < n; i++) {
        const double g = (double)grad[i];
        const double m_new = (double)c->beta1 * (double)m[i] + (1.0 - (double)c->beta1) * g;
        const double v_new = (double)c->beta2 * (double)v[i] + (1.0 - (double)c->beta2) * g * g;
        const double step = m_new / correct1 / (sqrt(v_new / correct2) + (double)c->epsilon);
        const double old = (double)param[i];
        param[i] = (float)(old - rate * (double)c->weight_decay * old - rate * step);
        m[i] = (float)m_new;
        v[i] = (float)v_new;
    }
}

static char *
describe(const ExecBackend *backend)
{
    return g_strdup("reference loops, 1 thread per rank");
}

static void
close_reference(ExecBackend *backend)
{
    g_free(backend);
}

static const ExecBackendOps ops = {
    .name = "reference",
    .alloc = exec_host_alloc,
    .release = exec_host_release,
    .upload = exec_host_move,
    .download = exec_host_move,
    .synchronize = exec_host_synchronize,
    .zero = exec_host_zero,
    .copy = exec_host_copy,
    .add = add,
    .scale = scale,
    .gemm = gemm,
    .bias_backward = bias_backward,
    .layernorm_forward = layernorm_forward,
    .layernorm_backward = layernorm_backward,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .embedding_forward = exec_host_embedding_forward,
    .embedding_backward = exec_host_embedding_backward,
    .cross_entropy = cross_entropy,
    .adamw = adamw,
    .describe = describe,
    .close = close_reference,
};

ExecBackend *
exec_backend_reference_open(GError **error)
{
    ExecBackend *backend = g_new0(ExecBackend, 1);

    backend->ops = &ops;
    return backend;
}
