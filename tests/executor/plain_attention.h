/*
 * tests/executor/plain_attention.h - attention of every kind written again from its definition, in
 * double, one token at a time: a part of plain.h.
 *
 * Windows: Mistral 2310.06825.  Chunks: Llama 4.  Sinks: gpt-oss 2508.10925.  Soft caps: Gemma 2
 * 2408.00118.  ALiBi: Press et al. 2108.12409.  Rotation: Su et al. 2104.09864.  Norms of queries
 * and keys: Henry et al. 2010.04245, OLMo 2 2501.00656.  Gates: Qiu et al. 2505.06708.  Latents:
 * DeepSeek-V2 2405.04434.  Sparse: DeepSeek-V3.2 2512.02556 equations 1 to 4.
 */
#pragma once

#include <math.h>

#include "executor/model/model.h"

#define PLAIN_MAX 64

static inline const float *
plain_weight(const ExecModel *model, int64_t layer, const char *name)
{
    char full[64];

    if (layer < 0)
        g_strlcpy(full, name, sizeof full);
    else
        g_snprintf(full, sizeof full, "layer.%d.%s", (int)layer, name);
    const ExecParameter *p = exec_model_find(model, full);
    return p == NULL ? NULL : (const float *)model->weights.data + p->offset;
}

/* y[n] = x[k] W[k,n] + b */
static inline void
plain_linear(const double *x, const float *w, const float *b, int64_t k, int64_t n, double *y)
{
    for (int64_t j = 0; j < n; j++) {
        y[j] = b != NULL ? (double)b[j] : 0;
        for (int64_t i = 0; i < k; i++)
            y[j] += x[i] * (double)w[i * n + j];
    }
}

/* x[n] normed in place, LayerNorm if @centred; without a gain it is 1. */
static inline void
plain_norm_in_place(const ModelArch *arch, bool centred, const float *gain, const float *shift,
                    int64_t n, double *x)
{
    double mean = 0, variance = 0;

    for (int64_t i = 0; centred && i < n; i++)
        mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        variance += (x[i] - mean) * (x[i] - mean) / (double)n;
    for (int64_t i = 0; i < n; i++)
        x[i] = (x[i] - mean) / sqrt(variance + arch->norm_epsilon) *
                   (gain != NULL ? (double)gain[i] : 1) +
               (shift != NULL ? (double)shift[i] : 0);
}

/* Of the first @n elements of a head, (x[i], x[i + n/2]) as a complex number times
 * exp(sqrt(-1) t theta_i). */
static inline void
plain_rotate(const ModelArch *arch, int64_t n, int64_t t, double *x)
{
    if (model_positions(arch) != MODEL_POSITIONS_ROTARY)
        return;
    for (int64_t i = 0; i < n / 2; i++) {
        const double angle = (double)t / pow(arch->rope_base, 2.0 * (double)i / (double)n);
        const double re = x[i] * cos(angle) - x[i + n / 2] * sin(angle);
        const double im = x[i] * sin(angle) + x[i + n / 2] * cos(angle);
        x[i] = re;
        x[i + n / 2] = im;
    }
}

/* One token's heads; of sparse attention what the indexer makes its queries of, these, its key and its heads'
 * weights. */
typedef struct {
    double q[PLAIN_MAX], k[PLAIN_MAX], v[PLAIN_MAX];
    double input[PLAIN_MAX], index_q[PLAIN_MAX], index_k[PLAIN_MAX], index_w[PLAIN_MAX];
} PlainToken;

/* Of forward passes since it was last set: the sum over layers and tokens of what indexers learn from. */
static double plain_divergence;

static inline void
plain_qk_norm(const ModelArch *arch, const ExecModel *model, int64_t layer, const char *which,
              int64_t heads, double *x)
{
    g_autofree char *gain = g_strconcat(which, ".gain", NULL);
    g_autofree char *shift = g_strconcat(which, ".shift", NULL);
    const float *g = plain_weight(model, layer, gain), *s = plain_weight(model, layer, shift);
    const bool centred = model_norm(arch) != MODEL_NORM_RMS;
    const int64_t d = arch->head_dim;

    if (!arch->qk_norm)
        return;
    if (arch->qk_norm_kind == MODEL_QK_NORM_ROW) {
        plain_norm_in_place(arch, centred, g, s, heads * d, x);
        return;
    }
    for (int64_t h = 0; h < heads; h++)
        plain_norm_in_place(arch, centred,
                            g != NULL && arch->qk_norm_kind == MODEL_QK_NORM_HEADS ? g + h * d : g,
                            s, d, x + h * d);
}

static inline void
plain_qkv(const ModelArch *arch, const ExecModel *model, int64_t layer, const double *x, int64_t t,
          PlainToken *token)
{
    const int64_t d = arch->head_dim, k = arch->n_kv_heads * d;
    const int64_t v = arch->n_kv_heads * model_v_dim(arch);
    const int64_t rotated = arch->rotary_dim > 0 ? arch->rotary_dim : d;
    double kv[2 * PLAIN_MAX];

    memcpy(token->input, x, (size_t)arch->hidden * sizeof *x);
    plain_linear(x, plain_weight(model, layer, "q.weight"), plain_weight(model, layer, "q.bias"),
                 arch->hidden, arch->n_heads * d, token->q);
    plain_linear(x, plain_weight(model, layer, "kv.weight"), plain_weight(model, layer, "kv.bias"),
                 arch->hidden, k + v, kv);
    memcpy(token->k, kv, (size_t)k * sizeof *kv);
    memcpy(token->v, kv + k, (size_t)v * sizeof *kv);
    plain_qk_norm(arch, model, layer, "q_norm", arch->n_heads, token->q);
    plain_qk_norm(arch, model, layer, "k_norm", arch->n_kv_heads, token->k);
    for (int64_t h = 0; h < arch->n_heads; h++)
        plain_rotate(arch, rotated, t, token->q + h * d);
    for (int64_t h = 0; h < arch->n_kv_heads; h++)
        plain_rotate(arch, rotated, t, token->k + h * d);
}

/* Every head's key is its own part and one that all have; queries rotate their last elements.  Where
 * heads are normed, it is what scores are made of. */
static inline void
plain_latent_qkv(const ModelArch *arch, const ExecModel *model, int64_t layer, const double *x,
                 int64_t t, PlainToken *token)
{
    const ModelMla *m = &arch->mla;
    const int64_t n = arch->n_heads, nope = m->qk_nope_head_dim, rope = m->qk_rope_head_dim;
    double q[PLAIN_MAX], c[PLAIN_MAX], kv[2 * PLAIN_MAX];

    if (m->q_lora_rank > 0) {
        plain_linear(x, plain_weight(model, layer, "q_down.weight"),
                     plain_weight(model, layer, "q_down.bias"), arch->hidden, m->q_lora_rank, q);
        plain_norm_in_place(arch, false, plain_weight(model, layer, "q_latent_norm.gain"), NULL,
                            m->q_lora_rank, q);
        plain_linear(q, plain_weight(model, layer, "q_up.weight"), NULL, m->q_lora_rank,
                     n * (nope + rope), token->q);
        memcpy(token->input, q, (size_t)m->q_lora_rank * sizeof *q);
    } else {
        memcpy(token->input, x, (size_t)arch->hidden * sizeof *x);
        plain_linear(x, plain_weight(model, layer, "q.weight"), NULL, arch->hidden,
                     n * (nope + rope), token->q);
    }
    plain_linear(x, plain_weight(model, layer, "kv_down.weight"),
                 plain_weight(model, layer, "kv_down.bias"), arch->hidden, m->kv_lora_rank + rope,
                 c);
    plain_norm_in_place(arch, false, plain_weight(model, layer, "kv_latent_norm.gain"), NULL,
                        m->kv_lora_rank, c);
    plain_rotate(arch, rope, t, c + m->kv_lora_rank);
    plain_linear(c, plain_weight(model, layer, "kv_up.weight"), NULL, m->kv_lora_rank,
                 n * (nope + m->v_head_dim), kv);
    for (int64_t h = 0; h < n; h++) {
        plain_rotate(arch, rope, t, token->q + h * (nope + rope) + nope);
        for (int64_t i = 0; i < nope + rope; i++)
            token->k[h * (nope + rope) + i] =
                i < nope ? kv[h * nope + i] : c[m->kv_lora_rank + i - nope];
        for (int64_t i = 0; i < m->v_head_dim; i++)
            token->v[h * m->v_head_dim + i] = kv[n * nope + h * m->v_head_dim + i];
    }
    plain_qk_norm(arch, model, layer, "q_norm", n, token->q);
    plain_qk_norm(arch, model, layer, "k_norm", n, token->k);
}

/* Whether the query of token @t sees the key of token @j. */
static inline bool
plain_sees(const ModelArch *arch, int64_t t, int64_t j)
{
    return j <= t && (arch->window == 0 || t - j < arch->window) &&
           (arch->chunk == 0 || t / arch->chunk == j / arch->chunk);
}

/* What is added to the score of a key for each token that it is away, in powers of two: the number
 * of heads in tests is one. */
static inline double
plain_alibi(const ModelArch *arch, int64_t head)
{
    g_assert((arch->n_heads & (arch->n_heads - 1)) == 0);
    return model_positions(arch) == MODEL_POSITIONS_ALIBI
               ? exp2(-8.0 * (double)(head + 1) / (double)arch->n_heads)
               : 0;
}

static inline void
plain_index(const ModelArch *arch, const ExecModel *model, int64_t layer, const double *x,
            int64_t t, PlainToken *token)
{
    const int64_t n = arch->indexer.n_heads, d = arch->indexer.head_dim;
    const int64_t rotated = model_has_mla(arch)    ? arch->mla.qk_rope_head_dim
                            : arch->rotary_dim > 0 ? arch->rotary_dim
                                                   : arch->head_dim;
    const bool latent = model_has_mla(arch) && arch->mla.q_lora_rank > 0;

    plain_linear(token->input, plain_weight(model, layer, "index_q.weight"), NULL,
                 latent ? arch->mla.q_lora_rank : arch->hidden, n * d, token->index_q);
    plain_linear(x, plain_weight(model, layer, "index_k.weight"), NULL, arch->hidden, d,
                 token->index_k);
    plain_linear(x, plain_weight(model, layer, "index_weights.weight"), NULL, arch->hidden, n,
                 token->index_w);
    plain_norm_in_place(arch, true, plain_weight(model, layer, "index_k_norm.gain"),
                        plain_weight(model, layer, "index_k_norm.shift"), d, token->index_k);
    for (int64_t h = 0; h < n; h++)
        plain_rotate(arch, rotated, t, token->index_q + h * d);
    plain_rotate(arch, rotated, t, token->index_k);
}

/* Sets @score [j] of the keys that token @t sees, and to -infinity where it does not, or where top_k others are
 * larger, or as large and before it.  Without an indexer all are 0. */
static inline void
plain_choose(const ModelArch *arch, const PlainToken *tokens, int64_t t, double *score)
{
    const ModelIndexer *ix = &arch->indexer;
    double all[PLAIN_MAX];

    for (int64_t j = 0; j <= t; j++) {
        all[j] = plain_sees(arch, t, j) ? 0 : -INFINITY;
        for (int64_t h = 0; h < ix->n_heads; h++) {
            double product = 0;
            for (int64_t i = 0; i < ix->head_dim; i++)
                product += tokens[t].index_q[h * ix->head_dim + i] * tokens[j].index_k[i];
            all[j] += tokens[t].index_w[h] * fmax(product, 0) /
                      sqrt((double)(ix->n_heads * ix->head_dim));
        }
    }
    for (int64_t j = 0; j <= t; j++) {
        int64_t n_before = 0;
        for (int64_t i = 0; i <= t; i++)
            n_before += all[i] > all[j] || (i < j && !(all[i] < all[j]));
        score[j] = ix->n_heads > 0 && n_before >= ix->top_k ? -INFINITY : all[j];
    }
}

/* Adds the divergence of the softmax of @score from @p, both over @n keys, divided by its sum. */
static inline void
plain_diverge(const double *p, const double *score, int64_t n)
{
    double sum = 0, shares = 0;

    for (int64_t j = 0; j < n; j++) {
        sum += exp(score[j]);
        shares += p[j];
    }
    for (int64_t j = 0; j < n; j++)
        if (p[j] > 0)
            plain_divergence += p[j] / shares * (log(p[j] / shares) - score[j] + log(sum));
}

static inline void
plain_scores_and_values(const ModelArch *arch, const float *sinks, const PlainToken *tokens,
                        int64_t t, double *out)
{
    double index[PLAIN_MAX], shares[PLAIN_MAX] = {0};
    const int64_t d = arch->head_dim, v = model_v_dim(arch);
    const double scale = arch->attention_scale > 0 ? arch->attention_scale : 1 / sqrt((double)d);

    plain_choose(arch, tokens, t, index);
    for (int64_t h = 0; h < arch->n_heads; h++) {
        const int64_t kv_head = h * arch->n_kv_heads / arch->n_heads;
        double weights[PLAIN_MAX] = {0}, sum = sinks != NULL ? exp((double)sinks[h]) : 0;
        for (int64_t j = 0; j <= t; j++) {
            double score = 0;
            if (!isfinite(index[j]))
                continue;
            for (int64_t i = 0; i < d; i++)
                score += scale * tokens[t].q[h * d + i] * tokens[j].k[kv_head * d + i];
            if (arch->attention_cap > 0)
                score = arch->attention_cap * tanh(score / arch->attention_cap);
            weights[j] = exp(score - plain_alibi(arch, h) * (double)(t - j));
            sum += weights[j];
        }
        for (int64_t i = 0; i < v; i++) {
            out[h * v + i] = 0;
            for (int64_t j = 0; j <= t; j++)
                out[h * v + i] += weights[j] / sum * tokens[j].v[kv_head * v + i];
        }
        for (int64_t j = 0; j <= t; j++)
            shares[j] += weights[j] / sum;
    }
    if (arch->indexer.n_heads > 0)
        plain_diverge(shares, index, t + 1);
}

/* y[t] = attention of the normed tokens @x, without the residual. */
static inline void
plain_attention(const ModelArch *arch, const ExecModel *model, int64_t layer, int64_t n_tokens,
                double x[][PLAIN_MAX], double y[][PLAIN_MAX])
{
    const int64_t v = model_v_dim(arch), out_width = arch->n_heads * v;
    PlainToken tokens[PLAIN_MAX];

    for (int64_t t = 0; t < n_tokens; t++) {
        (model_has_mla(arch) ? plain_latent_qkv : plain_qkv)(arch, model, layer, x[t], t,
                                                             &tokens[t]);
        if (arch->indexer.n_heads > 0)
            plain_index(arch, model, layer, x[t], t, &tokens[t]);
    }
    for (int64_t t = 0; t < n_tokens; t++) {
        double out[PLAIN_MAX], gate[PLAIN_MAX];
        plain_scores_and_values(arch, plain_weight(model, layer, "sinks"), tokens, t, out);
        if (arch->output_gate != MODEL_OUTPUT_GATE_NONE) {
            plain_linear(x[t], plain_weight(model, layer, "gate.weight"),
                         plain_weight(model, layer, "gate.bias"), arch->hidden,
                         arch->n_heads * model_gate_columns(arch), gate);
            for (int64_t i = 0; i < out_width; i++)
                out[i] /= 1 + exp(-gate[model_gate_columns(arch) == 1 ? i / v : i]);
        }
        plain_linear(out, plain_weight(model, layer, "proj.weight"),
                     plain_weight(model, layer, "proj.bias"), out_width, arch->hidden, y[t]);
    }
}
