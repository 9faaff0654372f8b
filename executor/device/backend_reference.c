/*
 * executor/device/backend_reference.c - plain loops: always built, obvious, never fast.
 *
 * The oracle of every other backend, so every sum is taken in double and rounded once; what another
 * backend differs by is its own rounding.
 *
 * With threads it is what a straightforward trainer with parallel loops does, and the baseline of
 * the speed bench: rows, columns or heads are shared out, every number is computed by one thread in
 * the same order, so the bits do not depend on how many there are.
 */
#include "executor/device/backend_host.h"

#include <math.h>
#include <string.h>

#include "executor/device/cores.h"
#include "executor/device/recurrence_host.h"
#include "executor/device/vector.h"

/* Rows and columns of C at a time: 128 sums in double, which AVX-512 keeps in 16 of its 32
 * registers. */
#define ROWS 4
#define BLOCK 32

/* sum[r][j] += a[r][p] b[p][j] for all p in order; element p of row r is
 * a[r * row_stride + p * stride]. */
EXEC_CLONES EXEC_VECTORIZE static void
add_products(int64_t k, const float *a, int64_t row_stride, int64_t stride,
             const double (*restrict b)[BLOCK], double (*restrict sum)[BLOCK])
{
    double kept[ROWS][BLOCK]; /* in registers */

    memcpy(kept, sum, sizeof kept);
    for (int64_t p = 0; p < k; p++)
        for (int64_t r = 0; r < ROWS; r++) {
            const double factor = (double)a[r * row_stride + p * stride];
            for (int64_t j = 0; j < BLOCK; j++)
                kept[r][j] += factor * b[p][j];
        }
    memcpy(sum, kept, sizeof kept);
}

/* What element (@row, @col) of C begins with. */
static double
initial(const ExecGemm *g, int64_t row, int64_t col)
{
    const float *bias = g->bias, *residual = g->residual;
    double sum = g->accumulate ? (double)((const float *)g->c)[row * g->ldc + col] : 0.0;

    if (bias != NULL)
        sum += (double)bias[col];
    if (residual != NULL)
        sum += (double)residual[row * g->ldc + col];
    return sum;
}

/* Columns [begin, begin + n) of C; @b holds those of B as doubles, zero beyond n. */
static void
gemm_columns(const ExecGemm *g, const double (*b)[BLOCK], int64_t begin, int64_t n)
{
    const int64_t row_stride = g->trans_a ? 1 : g->lda, stride = g->trans_a ? g->lda : 1;

    for (int64_t i = 0, rows; i < g->m; i += rows) {
        rows = g->m - i >= ROWS ? ROWS : 1;
        double sum[ROWS][BLOCK] = {0};
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = 0; j < n; j++)
                sum[r][j] = initial(g, i + r, begin + j);
        /* A row without enough neighbours stands for them too. */
        add_products(g->k, (const float *)g->a + i * row_stride, rows == ROWS ? row_stride : 0,
                     stride, b, sum);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = 0; j < n; j++)
                ((float *)g->c)[(i + r) * g->ldc + begin + j] = (float)sum[r][j];
    }
}

/* Blocks [first, end) of C's columns. */
static void
gemm_blocks(int64_t first, int64_t end, void *user_data)
{
    const ExecGemm *g = user_data;
    const int64_t row_stride = g->trans_b ? 1 : g->ldb, stride = g->trans_b ? g->ldb : 1;
    g_autofree double(*b)[BLOCK] = g_malloc0_n((size_t)MAX(g->k, 1), sizeof *b);

    for (int64_t begin = first * BLOCK; begin < MIN(end * BLOCK, g->n); begin += BLOCK) {
        const int64_t n = MIN(BLOCK, g->n - begin);
        for (int64_t p = 0; p < g->k; p++)
            for (int64_t j = 0; j < BLOCK; j++)
                b[p][j] = j < n
                              ? (double)((const float *)g->b)[p * row_stride + (begin + j) * stride]
                              : 0.0;
        gemm_columns(g, (const double(*)[BLOCK])b, begin, n);
    }
}

/* Products are added in the order of k, whatever the block. */
static void
gemm(ExecBackend *backend, const ExecGemm *g)
{
    ExecGemm shared = *g;

    exec_share_out(backend->n_threads, (g->n + BLOCK - 1) / BLOCK, gemm_blocks, &shared);
}

static void
add(ExecBackend *backend, int64_t n, const void *x, void *y)
{
    const float *from = x;
    float *to = y;

    for (int64_t i = 0; i < n; i++)
        to[i] += from[i];
}

static void
bias_backward(ExecBackend *backend, int64_t rows, int64_t cols, const void *dy, int64_t stride,
              float *db)
{
    for (int64_t j = 0; j < cols; j++) {
        double sum = (double)db[j];
        for (int64_t i = 0; i < rows; i++)
            sum += (double)((const float *)dy)[i * stride + j];
        db[j] = (float)sum;
    }
}

/* Element @j of z = (x - mean) rstd. */
static inline double
normal(const ExecNorm *norm, int64_t row, int64_t j)
{
    const double mean = norm->mean != NULL ? (double)norm->mean[row] : 0.0;

    return ((double)((const float *)norm->x)[row * norm->cols + j] - mean) *
           (double)norm->rstd[row];
}

static void
norm_forward(ExecBackend *backend, const ExecNorm *norm, void *y)
{
    const int64_t cols = norm->cols;
    const float *gain = norm->gain, *shift = norm->shift;

    for (int64_t i = 0; i < norm->rows; i++) {
        const float *row = (const float *)norm->x + i * cols;
        float *to = (float *)y + i * cols;
        double m = 0, squares = 0;
        for (int64_t j = 0; norm->mean != NULL && j < cols; j++)
            m += (double)row[j] / (double)cols;
        for (int64_t j = 0; j < cols; j++)
            squares += ((double)row[j] - m) * ((double)row[j] - m);
        const double r = 1.0 / sqrt(squares / (double)cols + (double)norm->epsilon);
        for (int64_t j = 0; j < cols; j++)
            to[j] = (float)(((double)row[j] - m) * r * (gain != NULL ? (double)gain[j] : 1.0) +
                            (shift != NULL ? (double)shift[j] : 0.0));
        if (norm->mean != NULL)
            norm->mean[i] = (float)m;
        norm->rstd[i] = (float)r;
    }
}

/* With z = (x - mean) rstd and g = dy gain: dx = rstd (g - mean(g) - z mean(g z)), the means over
 * the row; RMSNorm has no mean to follow, so mean(g) drops out. */
static void
norm_backward(ExecBackend *backend, const ExecNorm *norm, const void *dy_storage, void *dx_storage,
              float *dgain, float *dshift)
{
    const int64_t rows = norm->rows, cols = norm->cols;
    const float *gain = norm->gain, *dy = dy_storage;
    float *dx = dx_storage;

    for (int64_t i = 0; i < rows; i++) {
        double sum_g = 0, sum_gz = 0;
        for (int64_t j = 0; j < cols; j++) {
            const double g = (double)dy[i * cols + j] * (gain != NULL ? (double)gain[j] : 1.0);
            sum_g += norm->mean != NULL ? g : 0.0;
            sum_gz += g * normal(norm, i, j);
        }
        for (int64_t j = 0; j < cols; j++) {
            const double g = (double)dy[i * cols + j] * (gain != NULL ? (double)gain[j] : 1.0);
            dx[i * cols + j] +=
                (float)((double)norm->rstd[i] *
                        (g - sum_g / (double)cols - normal(norm, i, j) * sum_gz / (double)cols));
        }
    }
    for (int64_t j = 0; dgain != NULL && j < cols; j++) {
        double sum_gain = (double)dgain[j], sum_shift = dshift != NULL ? (double)dshift[j] : 0.0;
        for (int64_t i = 0; i < rows; i++) {
            sum_gain += (double)dy[i * cols + j] * normal(norm, i, j);
            sum_shift += (double)dy[i * cols + j];
        }
        dgain[j] = (float)sum_gain;
        if (dshift != NULL)
            dshift[j] = (float)sum_shift;
    }
}

/* sqrt(2/pi) of GELU's tanh form [Hendrycks and Gimpel 1606.08415]. */
static const double gelu_c = 0.79788456080286535588;

typedef struct {
    const float *x;
    float *y; /* becomes gelu(x), or is multiplied by gelu'(x) */
    bool backward;
} Elements;

static void
gelu_elements(int64_t begin, int64_t end, void *user_data)
{
    const Elements *e = user_data;

    for (int64_t i = begin; i < end; i++) {
        const double v = (double)e->x[i];
        const double t = tanh(gelu_c * (v + 0.044715 * v * v * v));
        const double slope = gelu_c * (1.0 + 3.0 * 0.044715 * v * v);
        e->y[i] =
            e->backward
                ? (float)((double)e->y[i] * (0.5 * (1.0 + t) + 0.5 * v * (1.0 - t * t) * slope))
                : (float)(0.5 * v * (1.0 + t));
    }
}

static void
gelu_forward(ExecBackend *backend, int64_t n, const void *x, void *y)
{
    exec_share_out(backend->n_threads, n, gelu_elements, &(Elements){.x = x, .y = y});
}

static void
gelu_backward(ExecBackend *backend, int64_t n, const void *x, void *dy)
{
    exec_share_out(backend->n_threads, n, gelu_elements,
                   &(Elements){.x = x, .y = dy, .backward = true});
}

static void
swiglu_forward(ExecBackend *backend, int64_t rows, int64_t width, const void *x, void *y)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < width; j++) {
            const float *row = (const float *)x + i * 2 * width;
            const double gate = (double)row[j], up = (double)row[width + j];
            ((float *)y)[i * width + j] = (float)(gate / (1.0 + exp(-gate)) * up);
        }
}

/* silu' = s + gate s (1 - s), s the sigmoid of gate. */
static void
swiglu_backward(ExecBackend *backend, int64_t rows, int64_t width, const void *x, const void *dy,
                void *dx)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < width; j++) {
            const float *row = (const float *)x + i * 2 * width;
            float *to = (float *)dx + i * 2 * width;
            const double gate = (double)row[j], up = (double)row[width + j];
            const double d = (double)((const float *)dy)[i * width + j];
            const double s = 1.0 / (1.0 + exp(-gate));
            to[j] = (float)(d * up * (s + gate * s * (1.0 - s)));
            to[width + j] = (float)(d * gate * s);
        }
}

/* Returns the sum of exp(logit - largest) of row @i. */
static double
row_sum(const ExecCrossEntropy *e, int64_t i, double *largest)
{
    const float *row = (const float *)e->logits + i * e->stride;
    double sum = 0;

    *largest = -INFINITY;
    for (int64_t j = 0; j < e->vocab; j++)
        *largest = fmax(*largest, (double)row[j]);
    for (int64_t j = 0; j < e->vocab; j++)
        sum += exp((double)row[j] - *largest);
    return sum;
}

static void
cross_entropy_stats(ExecBackend *backend, const ExecCrossEntropy *e, float *stats)
{
    for (int64_t i = 0; i < e->rows; i++) {
        const float *row = (const float *)e->logits + i * e->stride;
        const int64_t target = e->target[i] - e->first;
        double largest;
        stats[e->rows + i] = (float)row_sum(e, i, &largest);
        stats[i] = (float)largest;
        stats[2 * e->rows + i] = target >= 0 && target < e->vocab ? row[target] : 0.0f;
    }
}

typedef struct {
    const ExecCrossEntropy *entropy;
    double *row_loss;
} Loss;

static void
cross_entropy_rows(int64_t begin, int64_t end, void *user_data)
{
    const Loss *loss = user_data;
    const ExecCrossEntropy *e = loss->entropy;

    for (int64_t i = begin; i < end; i++) {
        float *row = (float *)e->logits + i * e->stride;
        double lse, target, largest;
        if (e->stats != NULL)
            exec_host_merge_stats(e, i, &lse, &target);
        else {
            const double sum = row_sum(e, i, &largest);
            lse = largest + log(sum);
            target = (double)row[e->target[i] - e->first];
        }
        loss->row_loss[i] = lse - target;
        for (int64_t j = 0; j < e->vocab; j++)
            row[j] = (float)((double)e->factor * (exp((double)row[j] - lse) -
                                                  (e->first + j == e->target[i] ? 1.0 : 0.0)));
        memset(row + e->vocab, 0, (size_t)(e->stride - e->vocab) * sizeof *row);
    }
}

static void
cross_entropy(ExecBackend *backend, const ExecCrossEntropy *e)
{
    g_autofree double *row_loss = g_new(double, (size_t)e->rows);

    exec_share_out(backend->n_threads, e->rows, cross_entropy_rows,
                   &(Loss){.entropy = e, .row_loss = row_loss});
    *e->loss = 0;
    for (int64_t i = 0; i < e->rows; i++)
        *e->loss += row_loss[i];
}

typedef struct {
    const ExecAdamwPart *part;
    const ExecAdamw *constants;
} Update;

static void
adamw_elements(int64_t begin, int64_t end, void *user_data)
{
    const Update *u = user_data;
    const ExecAdamw *c = u->constants;
    float *master = u->part->master, *grad = u->part->grad, *m = u->part->m, *v = u->part->v;
    const double decay = u->part->decays ? (double)c->weight_decay : 0.0;
    const double correct1 = 1.0 - pow((double)c->beta1, (double)c->step);
    const double correct2 = 1.0 - pow((double)c->beta2, (double)c->step);
    const double rate = (double)c->learning_rate;
    const float factor = c->factor != NULL ? *c->factor : 1.0f;

    for (int64_t i = begin; i < end; i++) {
        const float clipped = factor * grad[i];
        const double g = (double)clipped;
        const double m_new = (double)c->beta1 * (double)m[i] + (1.0 - (double)c->beta1) * g;
        const double v_new = (double)c->beta2 * (double)v[i] + (1.0 - (double)c->beta2) * g * g;
        const double step = m_new / correct1 / (sqrt(v_new / correct2) + (double)c->epsilon);
        const double old = (double)master[i];
        master[i] = (float)(old - rate * decay * old - rate * step);
        m[i] = (float)m_new;
        v[i] = (float)v_new;
        grad[i] = 0;
    }
}

static void
adamw(ExecBackend *backend, int64_t n_parts, const ExecAdamwPart *parts, const ExecAdamw *constants)
{
    for (const ExecAdamwPart *p = parts; p < parts + n_parts; p++)
        exec_share_out(backend->n_threads, p->n, adamw_elements, &(Update){p, constants});
}

/* --- attention as its definition says, row by row --- */

/* The number of head @h of row @t of sequence @b. */
static inline int64_t
head_at(const ExecAttention *a, int64_t t, int64_t b, int64_t h)
{
    return (t * a->sequences + b) * a->n_heads + h;
}

/* Where in K, or in V, whose heads are @width wide, that head's row of token @t begins. */
static inline int64_t
key_at(const ExecAttention *a, int64_t t, int64_t b, int64_t h, int64_t width)
{
    return (t * a->sequences + b) * a->kv_stride + h / (a->n_heads / a->n_kv_heads) * width;
}

/* A head's row: what it sees, its probabilities, and how its scores follow q . k. */
typedef struct {
    int64_t first, end; /* keys */
    double *p, *slope;  /* of key j at [j] */
    double lse, sink;   /* sink: its probability */
} Row;

static void
probabilities(const ExecAttention *a, int64_t t, int64_t b, int64_t h, Row *row)
{
    const float *q = (const float *)a->q + head_at(a, t, b, h) * a->head_dim;
    const double cap = (double)a->cap, slope = exec_attention_slope(a, h);
    const int32_t *chosen = exec_attention_chosen(a, t, b);
    double largest = -INFINITY, sum = 0;
    int64_t next = 0;

    row->first = exec_attention_first_key(a, t);
    row->end = a->context + t + 1;
    for (int64_t j = row->first; j < row->end; j++) {
        const float *k = (const float *)a->k + key_at(a, j, b, h, a->head_dim);
        double s = 0;
        for (int64_t i = 0; i < a->head_dim; i++)
            s += (double)q[i] * (double)k[i];
        s *= (double)a->scale;
        const double bent = cap > 0 ? tanh(s / cap) : 0.0;
        row->slope[j] = (double)a->scale * (1 - bent * bent);
        row->p[j] = (cap > 0 ? cap * bent : s) + slope * (double)(j - row->end + 1);
        if (exec_attention_is_hidden(chosen, a->n_chosen, j, &next))
            row->p[j] = -INFINITY;
        largest = fmax(largest, row->p[j]);
    }
    const double sink = a->sink != NULL ? (double)((const float *)a->sink)[h] : -INFINITY;
    largest = fmax(largest, sink);
    for (int64_t j = row->first; j < row->end; j++)
        sum += exp(row->p[j] - largest);
    row->lse = largest + log(sum + exp(sink - largest));
    row->sink = exp(sink - row->lse);
    for (int64_t j = row->first; j < row->end; j++)
        row->p[j] = exp(row->p[j] - row->lse);
}

static void
attention_row(const ExecAttention *a, int64_t t, int64_t b, int64_t h, Row *row)
{
    const int64_t d = exec_attention_v_dim(a);
    float *out = (float *)a->out + head_at(a, t, b, h) * d;

    probabilities(a, t, b, h, row);
    for (int64_t i = 0; i < d; i++) {
        double value = 0;
        for (int64_t j = row->first; j < row->end; j++)
            value += row->p[j] * (double)((const float *)a->v)[key_at(a, j, b, h, d) + i];
        out[i] = (float)value;
    }
    a->lse[head_at(a, t, b, h)] = (float)row->lse;
}

/* With p the row's probabilities: dp_j = dout . v_j, ds_j = p_j (dp_j - sum_i p_i dp_i), which is
 * the gradient of score j, and of the sink, whose dp is 0; dq = sum_j s'_j ds_j k_j,
 * dk_j += s'_j ds_j q, s' the scores' derivatives by q . k; dv_j += p_j dout. */
static void
attention_row_backward(const ExecAttention *a, const ExecAttentionGradients *g, int64_t t,
                       int64_t b, int64_t h, Row *row, double *ds)
{
    const int64_t d = exec_attention_v_dim(a), at = head_at(a, t, b, h);
    const float *q = (const float *)a->q + at * a->head_dim;
    const float *dout = (const float *)g->dout + at * d;
    float *to = (float *)g->dq + at * a->head_dim, *dk = g->dk, *dv = g->dv;
    double weighted = 0;

    probabilities(a, t, b, h, row);
    const double *p = row->p;
    for (int64_t j = row->first; j < row->end; j++) {
        const float *v = (const float *)a->v + key_at(a, j, b, h, d);
        ds[j] = 0;
        for (int64_t i = 0; i < d; i++)
            ds[j] += (double)dout[i] * (double)v[i];
        weighted += p[j] * ds[j];
    }
    for (int64_t j = row->first; j < row->end; j++) {
        float *to_v = dv + key_at(a, j, b, h, d);
        ds[j] = p[j] * (ds[j] - weighted) * row->slope[j];
        for (int64_t i = 0; i < d; i++)
            to_v[i] = (float)((double)to_v[i] + p[j] * (double)dout[i]);
    }
    for (int64_t i = 0; i < a->head_dim; i++) {
        double dq = 0;
        for (int64_t j = row->first; j < row->end; j++) {
            const int64_t at_k = key_at(a, j, b, h, a->head_dim) + i;
            dq += ds[j] * (double)((const float *)a->k)[at_k];
            dk[at_k] = (float)((double)dk[at_k] + ds[j] * (double)q[i]);
        }
        to[i] = (float)dq;
    }
    ds[row->end] = -row->sink * weighted;
}

/* Pairs (sequence, K and V head): the heads of a pair share rows of dK and dV. */
typedef struct {
    const ExecAttention *attention;
    const ExecAttentionGradients *gradients; /* NULL: forward */
    double *dsink;                           /* (nullable) [sequences, n_heads]; added to */
} Work;

static void
attention_pairs(int64_t begin, int64_t end, void *user_data)
{
    const Work *work = user_data;
    const ExecAttention *a = work->attention;
    const int64_t group = a->n_heads / a->n_kv_heads;
    const size_t n = (size_t)(a->context + a->tokens);
    g_autofree double *p = g_new(double, n);
    g_autofree double *slope = g_new(double, n);
    g_autofree double *ds = g_new(double, n + 1);
    Row row = {.p = p, .slope = slope};

    for (int64_t pair = begin; pair < end; pair++)
        for (int64_t t = 0; t < a->tokens; t++)
            for (int64_t i = 0; i < group; i++) {
                const int64_t b = pair / a->n_kv_heads, h = pair % a->n_kv_heads * group + i;
                if (work->gradients == NULL) {
                    attention_row(a, t, b, h, &row);
                    continue;
                }
                attention_row_backward(a, work->gradients, t, b, h, &row, ds);
                if (work->dsink != NULL)
                    work->dsink[b * a->n_heads + h] += ds[row.end];
            }
}

static void
attention_forward(ExecBackend *backend, const ExecAttention *a)
{
    exec_share_out(backend->n_threads, a->sequences * a->n_kv_heads, attention_pairs,
                   &(Work){.attention = a});
}

static void
attention_backward(ExecBackend *backend, const ExecAttention *a, const ExecAttentionGradients *g)
{
    const int64_t n = g->dsink != NULL ? a->sequences * a->n_heads : 0;
    g_autofree double *dsink = g_new0(double, (size_t)n);

    exec_host_begin_gradients(a, g);
    exec_share_out(backend->n_threads, a->sequences * a->n_kv_heads, attention_pairs,
                   &(Work){.attention = a, .gradients = g, .dsink = dsink});
    for (int64_t i = 0; i < n; i++)
        g->dsink[i % a->n_heads] = (float)((double)g->dsink[i % a->n_heads] + dsink[i]);
}

/* --- lifecycle --- */

static char *
describe(const ExecBackend *backend)
{
    const int n = backend->n_threads;

    return g_strdup_printf("reference loops, %d thread%s per rank", n, n > 1 ? "s" : "");
}

static void
close_reference(ExecBackend *backend)
{
    g_free(backend);
}

static const ExecBackendOps ops = {
    EXEC_HOST_MEMORY_SLOTS,     EXEC_OWN_SLOTS,          EXEC_HOST_FP32_SLOTS,
    EXEC_HOST_RECURRENCE_SLOTS, EXEC_HOST_INDEXER_SLOTS, .describe = describe,
    .close = close_reference,
};

ExecBackend *
exec_backend_reference_open(const ExecBackendOptions *options, GError **error)
{
    ExecBackend *backend = g_new0(ExecBackend, 1);

    backend->n_threads = MAX(options->n_threads, 1);
    backend->ops = &ops;
    return backend;
}
