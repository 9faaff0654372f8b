#include "executor/device/reference_attention.h"

#include <math.h>

#include "executor/device/cores.h"

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
    const float *q = (const float *)a->q + query_at(a, t, b, h);
    const int64_t n = a->context + t + 1;

    for (int64_t j = 0; j < n; j++) {
        const float *k = (const float *)a->k + key_at(a, j, b, h);
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
    float *out = (float *)a->out + query_at(a, t, b, h);
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
            value += score[j] * (double)((const float *)a->v)[key_at(a, j, b, h) + i];
        out[i] = (float)value;
    }
    a->lse[(t * a->sequences + b) * a->n_heads + h] = (float)lse;
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
    const float *q = (const float *)a->q + query_at(a, t, b, h);
    const float *dout = (const float *)g->dout + query_at(a, t, b, h);
    float *to = (float *)g->dq + query_at(a, t, b, h), *dk = g->dk, *dv = g->dv;
    double largest = -INFINITY, sum = 0, weighted = 0;

    for (int64_t j = 0; j < n; j++)
        largest = fmax(largest, score[j]);
    for (int64_t j = 0; j < n; j++)
        sum += exp(score[j] - largest);
    for (int64_t j = 0; j < n; j++) {
        const float *v = (const float *)a->v + key_at(a, j, b, h);
        score[j] = exp(score[j] - largest) / sum;
        dp[j] = 0;
        for (int64_t i = 0; i < a->head_dim; i++)
            dp[j] += (double)dout[i] * (double)v[i];
        weighted += score[j] * dp[j];
    }
    for (int64_t i = 0; i < a->head_dim; i++) {
        double dq = 0;
        for (int64_t j = 0; j < n; j++) {
            const int64_t at_k = key_at(a, j, b, h) + i;
            const double ds = score[j] * (dp[j] - weighted) * (double)a->scale;
            dq += ds * (double)((const float *)a->k)[at_k];
            dk[at_k] = (float)((double)dk[at_k] + ds * (double)q[i]);
            dv[at_k] = (float)((double)dv[at_k] + score[j] * (double)dout[i]);
        }
        to[i] = (float)dq;
    }
}

/* Pairs (sequence, K and V head): the heads of a pair share rows of dK and dV. */
typedef struct {
    const ExecAttention *attention;
    const ExecAttentionGradients *gradients; /* NULL: forward */
} Work;

static void
attention_pairs(int64_t begin, int64_t end, void *user_data)
{
    const Work *work = user_data;
    const ExecAttention *a = work->attention;
    const int64_t group = a->n_heads / a->n_kv_heads;
    const size_t n = (size_t)(a->context + a->tokens);
    g_autofree double *score = g_new(double, n);
    g_autofree double *dp = g_new(double, n);

    for (int64_t pair = begin; pair < end; pair++)
        for (int64_t t = 0; t < a->tokens; t++)
            for (int64_t i = 0; i < group; i++) {
                const int64_t b = pair / a->n_kv_heads, h = pair % a->n_kv_heads * group + i;
                if (work->gradients == NULL)
                    attention_row(a, t, b, h, score);
                else
                    attention_row_backward(a, work->gradients, t, b, h, score, dp);
            }
}

void
exec_reference_attention_forward(int n_threads, const ExecAttention *a)
{
    exec_share_out(n_threads, a->sequences * a->n_kv_heads, attention_pairs,
                   &(Work){.attention = a});
}

void
exec_reference_attention_backward(int n_threads, const ExecAttention *a,
                                  const ExecAttentionGradients *g)
{
    exec_share_out(n_threads, a->sequences * a->n_kv_heads, attention_pairs,
                   &(Work){.attention = a, .gradients = g});
}
