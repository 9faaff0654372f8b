/* The slots of indexer.h, for backends in host memory. */
#include "executor/device/indexer.h"

#include <math.h>
#include <stdlib.h>

#include "executor/device/backend_host.h"
#include "executor/device/cores.h"
#include "executor/device/recurrence_host.h"

typedef struct {
    ExecBackend *backend;
    const ExecAttention *a;
    const ExecIndexer *ix;
    const ExecIndexerGradients *g;
    float *share; /* of exec_host_attention_shares() */
} Work;

/* --- scores --- */

/* One row's queries and weights. */
typedef struct {
    float *q, *w;
} Row;

static void
load_row(const Work *work, int64_t row, Row *r)
{
    const ExecIndexer *ix = work->ix;
    const Dtype storage = work->backend->storage;

    exec_row_load(storage, ix->q, row * ix->n_heads * ix->head_dim, ix->n_heads * ix->head_dim,
                  r->q);
    exec_row_load(storage, ix->weight, row * ix->n_heads, ix->n_heads, r->w);
}

static double
scale_of(const ExecIndexer *ix)
{
    return 1.0 / sqrt((double)(ix->n_heads * ix->head_dim));
}

static double
product(int64_t n, const float *x, const float *y)
{
    double sum = 0.0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    return sum;
}

/* Key @s of sequence @b. */
static void
load_key(const Work *work, int64_t s, int64_t b, float *k)
{
    const ExecIndexer *ix = work->ix;

    exec_row_load(work->backend->storage, ix->k, (s * work->a->sequences + b) * ix->head_dim,
                  ix->head_dim, k);
}

static double
score_of(const ExecIndexer *ix, const Row *r, const float *k)
{
    double score = 0.0;

    for (int64_t j = 0; j < ix->n_heads; j++)
        score += (double)r->w[j] * fmax(product(ix->head_dim, r->q + j * ix->head_dim, k), 0.0);
    return score * scale_of(ix);
}

/* --- the choice --- */

typedef struct {
    double score;
    int32_t key;
} Candidate;

static int
by_score(const void *x, const void *y)
{
    const Candidate *a = x, *b = y;

    if (a->score > b->score || a->score < b->score)
        return a->score > b->score ? -1 : 1;
    return a->key < b->key ? -1 : 1;
}

static int
by_key(const void *x, const void *y)
{
    return ((const Candidate *)x)->key < ((const Candidate *)y)->key ? -1 : 1;
}

static void
choose_rows(int64_t begin, int64_t end, void *user_data)
{
    const Work *work = user_data;
    const ExecAttention *a = work->a;
    const ExecIndexer *ix = work->ix;
    const int64_t n_q = ix->n_heads * ix->head_dim, most = a->context + a->tokens;
    g_autofree float *room = g_new(float, (size_t)(n_q + ix->n_heads + ix->head_dim));
    g_autofree Candidate *candidates = g_new(Candidate, (size_t)most);
    Row r = {room, room + n_q};
    float *k = room + n_q + ix->n_heads;

    for (int64_t row = begin; row < end; row++) {
        const int64_t t = row / a->sequences, first = exec_attention_first_key(a, t);
        const int64_t n = a->context + t + 1 - first, n_chosen = MIN(n, ix->n_chosen);
        load_row(work, row, &r);
        for (int64_t i = 0; i < n; i++) {
            load_key(work, first + i, row % a->sequences, k);
            candidates[i] = (Candidate){score_of(ix, &r, k), (int32_t)(first + i)};
        }
        if (n > n_chosen)
            qsort(candidates, (size_t)n, sizeof *candidates, by_score);
        qsort(candidates, (size_t)n_chosen, sizeof *candidates, by_key);
        for (int64_t i = 0; i < ix->n_chosen; i++)
            ix->chosen[row * ix->n_chosen + i] = i < n_chosen ? candidates[i].key : -1;
    }
}

void
exec_host_index_choose(ExecBackend *backend, const ExecAttention *attention,
                       const ExecIndexer *indexer)
{
    exec_share_out(backend->n_threads, attention->tokens * attention->sequences, choose_rows,
                   &(Work){.backend = backend, .a = attention, .ix = indexer});
}

/* --- what attention makes of it --- */

/* The probability of key @s for head @h of row @row, by the log-sum-exp that forward has left. */
static double
probability(const Work *work, int64_t row, int64_t h, int64_t s, float *q, float *k)
{
    const ExecAttention *a = work->a;
    const Dtype storage = work->backend->storage;
    const int64_t at = row * a->n_heads + h, own = a->context + row / a->sequences;

    exec_row_load(storage, a->q, at * a->head_dim, a->head_dim, q);
    exec_row_load(storage, a->k,
                  (s * a->sequences + row % a->sequences) * a->kv_stride +
                      h / (a->n_heads / a->n_kv_heads) * a->head_dim,
                  a->head_dim, k);
    double score = (double)a->scale * product(a->head_dim, q, k);
    if (a->cap > 0.0f)
        score = (double)a->cap * tanh(score / (double)a->cap);
    return exp(score - exec_attention_slope(a, h) * (double)(own - s) - (double)a->lse[at]);
}

static void
share_rows(int64_t begin, int64_t end, void *user_data)
{
    const Work *work = user_data;
    const ExecAttention *a = work->a;
    g_autofree float *room = g_new(float, (size_t)(2 * a->head_dim));

    for (int64_t row = begin; row < end; row++)
        for (int64_t i = 0; i < a->n_chosen; i++) {
            const int32_t s = a->chosen[row * a->n_chosen + i];
            double sum = 0.0;
            for (int64_t h = 0; s >= 0 && h < a->n_heads; h++)
                sum += probability(work, row, h, s, room, room + a->head_dim);
            work->share[row * a->n_chosen + i] = (float)sum;
        }
}

void
exec_host_attention_shares(ExecBackend *backend, const ExecAttention *attention, float *share)
{
    exec_share_out(backend->n_threads, attention->tokens * attention->sequences, share_rows,
                   &(Work){.backend = backend, .a = attention, .share = share});
}

/* --- gradients --- */

/* From the scores of the row's @n chosen keys to their gradients: softmax(I) - p. */
static void
divergence(const ExecIndexerGradients *g, const float *share, int64_t n, double *score)
{
    double largest = -INFINITY, sum = 0.0, shares = 0.0;

    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, score[i]);
    for (int64_t i = 0; i < n; i++) {
        sum += exp(score[i] - largest);
        shares += (double)share[i];
    }
    for (int64_t i = 0; i < n; i++)
        score[i] = (double)g->factor * (exp(score[i] - largest) / sum - (double)share[i] / shares);
}

/* Of one row with @n chosen keys @k, whose scores' gradients are @d. */
static void
row_backward(const Work *work, int64_t row, const Row *r, int64_t n, const double *d,
             const float *k)
{
    const ExecAttention *a = work->a;
    const ExecIndexer *ix = work->ix;
    const Dtype storage = work->backend->storage;
    const int64_t dim = ix->head_dim;
    const int32_t *chosen = ix->chosen + row * ix->n_chosen;
    g_autofree double *dq = g_new(double, (size_t)dim);
    g_autofree float *rounded = g_new(float, (size_t)dim);

    for (int64_t j = 0; j < ix->n_heads; j++) {
        const float *q = r->q + j * dim;
        double dw = 0.0;
        for (int64_t c = 0; c < dim; c++)
            dq[c] = 0.0;
        for (int64_t i = 0; i < n; i++) {
            const double x = product(dim, q, k + i * dim), slope = d[i] * scale_of(ix);
            float *dk = work->g->dk + (chosen[i] * a->sequences + row % a->sequences) * dim;
            if (x <= 0.0)
                continue;
            dw += slope * x;
            for (int64_t c = 0; c < dim; c++) {
                dq[c] += slope * (double)r->w[j] * (double)k[i * dim + c];
                dk[c] += (float)(slope * (double)r->w[j] * (double)q[c]);
            }
        }
        for (int64_t c = 0; c < dim; c++)
            rounded[c] = (float)dq[c];
        exec_row_store(storage, rounded, dim, work->g->dq, (row * ix->n_heads + j) * dim);
        rounded[0] = (float)dw;
        exec_row_store(storage, rounded, 1, work->g->d_weight, row * ix->n_heads + j);
    }
}

/* Rows of a sequence add to the same keys. */
static void
sequences_backward(int64_t begin, int64_t end, void *user_data)
{
    const Work *work = user_data;
    const ExecAttention *a = work->a;
    const ExecIndexer *ix = work->ix;
    const int64_t n_q = ix->n_heads * ix->head_dim;
    g_autofree float *room = g_new(float, (size_t)(n_q + ix->n_heads));
    g_autofree float *keys = g_new(float, (size_t)(ix->n_chosen * ix->head_dim));
    g_autofree double *score = g_new(double, (size_t)ix->n_chosen);
    Row r = {room, room + n_q};

    for (int64_t b = begin; b < end; b++)
        for (int64_t t = 0; t < a->tokens; t++) {
            const int64_t row = t * a->sequences + b;
            const int32_t *chosen = ix->chosen + row * ix->n_chosen;
            int64_t n = 0;
            load_row(work, row, &r);
            for (; n < ix->n_chosen && chosen[n] >= 0; n++) {
                load_key(work, chosen[n], b, keys + n * ix->head_dim);
                score[n] = score_of(ix, &r, keys + n * ix->head_dim);
            }
            divergence(work->g, work->g->share + row * ix->n_chosen, n, score);
            row_backward(work, row, &r, n, score, keys);
        }
}

void
exec_host_index_backward(ExecBackend *backend, const ExecAttention *attention,
                         const ExecIndexer *indexer, const ExecIndexerGradients *gradients)
{
    exec_share_out(backend->n_threads, attention->sequences, sequences_backward,
                   &(Work){backend, attention, indexer, gradients, NULL});
}
