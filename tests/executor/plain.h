/*
 * tests/executor/plain.h - the models' forward pass written again from their definitions, in
 * double, one token at a time: the oracle of the layer code.
 *
 * GPT-2 [Radford et al. 2019; its released code]; Llama [Touvron et al. 2302.13971, 2307.09288];
 * Mixtral [Jiang et al. 2401.04088]; and what models/arch.h says of other blocks.
 */
#pragma once

#include <math.h>
#include <string.h>

#include "executor/model/random.h"
#include "tests/executor/plain_attention.h"

/* Initial weights are so small that attention is nearly uniform and its gradients vanish beside the others': spreads
 * everything out. */
static inline void
spread_weights(ExecModel *model)
{
    for (guint i = 0; i < exec_model_n_parameters(model); i++) {
        const ExecParameter *p = exec_model_parameter(model, i);
        const uint64_t key = exec_random_key(3, p->name);
        for (int64_t j = 0; j < p->n; j++) {
            float *w = (float *)model->weights.data + p->offset + j;
            *w +=
                (p->init == EXEC_INIT_NORMAL ? 0.4f : 0.2f) * exec_random_normal(key, (uint64_t)j);
        }
    }
}

/* The norm of @name of a layer, or of an end (@layer -1). */
static inline void
plain_norm(const ModelArch *arch, const ExecModel *model, int64_t layer, const char *name,
           const double *x, double *y)
{
    const int64_t n = arch->hidden;
    g_autofree char *gain_name = g_strconcat(name, ".gain", NULL);
    g_autofree char *shift_name = g_strconcat(name, ".shift", NULL);
    const float *gain = plain_weight(model, layer, gain_name);
    const float *shift = plain_weight(model, layer, shift_name);
    double mean = 0, variance = 0;

    for (int64_t i = 0; model_norm(arch) != MODEL_NORM_RMS && i < n; i++)
        mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        variance += (x[i] - mean) * (x[i] - mean) / (double)n;
    for (int64_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) / sqrt(variance + arch->norm_epsilon) *
                   (gain != NULL ? (double)gain[i] : 1) +
               (shift != NULL ? (double)shift[i] : 0);
}

static inline double
plain_gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / G_PI) * (x + 0.044715 * pow(x, 3))));
}

static inline double
plain_curve(ModelActivation activation, double x)
{
    switch (activation) {
    case MODEL_ACTIVATION_SWIGLU:
    case MODEL_ACTIVATION_SILU:
        return x / (1 + exp(-x));
    case MODEL_ACTIVATION_GEGLU:
    case MODEL_ACTIVATION_GELU:
        return plain_gelu(x);
    case MODEL_ACTIVATION_RELU2:
        return x > 0 ? x * x : 0;
    default:
        return x > 0 ? x : 0;
    }
}

/* f(x Wup) Wdown, or (f(x Wgate) x Wup) Wdown; @f wide. */
static inline void
plain_mlp(const ModelArch *arch, const float *const w[4], int64_t f, const double *x, double *y)
{
    const bool gated = model_is_gated(arch);
    double u[2 * PLAIN_MAX];

    plain_linear(x, w[0], w[1], arch->hidden, gated ? 2 * f : f, u);
    for (int64_t i = 0; i < f; i++)
        u[i] = plain_curve(model_activation(arch), u[i]) * (gated ? u[f + i] : 1);
    plain_linear(u, w[2], w[3], f, arch->hidden, y);
}

/* The factor of every expert for a row of @scores; 0: it is not chosen. */
static inline void
plain_factors(const ModelExperts *experts, const double *scores, double *factor)
{
    double share[PLAIN_MAX], sum = 0, all = 0;

    memset(factor, 0, (size_t)experts->n_experts * sizeof *factor);
    for (int64_t e = 0; e < experts->n_experts; e++) {
        share[e] = experts->router_scores == MODEL_ROUTER_SIGMOID ? 1 / (1 + exp(-scores[e]))
                                                                  : exp(scores[e]);
        all += share[e];
    }
    for (int64_t k = 0; k < experts->top_k; k++) {
        int64_t best = -1;
        for (int64_t e = 0; e < experts->n_experts; e++)
            if (factor[e] <= 0 && (best < 0 || scores[e] > scores[best]))
                best = e;
        factor[best] = experts->router_scale * share[best];
        sum += share[best];
    }
    for (int64_t e = 0; e < experts->n_experts; e++)
        factor[e] /= experts->router_scores == MODEL_ROUTER_SOFTMAX_ALL ? all : sum;
}

/* Row @e of @weight, whose rows have @n elements; of NULL NULL. */
static inline const float *
plain_part(const float *weight, int64_t e, int64_t n)
{
    return weight == NULL ? NULL : weight + e * n;
}

/* The shared experts' result, times a sigmoid of its own where they have a gate. */
static inline void
plain_shared(const ModelArch *arch, const ExecModel *model, int64_t layer, const double *x,
             double *y)
{
    const float *const w[4] = {plain_weight(model, layer, "shared_up.weight"),
                               plain_weight(model, layer, "shared_up.bias"),
                               plain_weight(model, layer, "shared_down.weight"),
                               plain_weight(model, layer, "shared_down.bias")};
    const float *gate = plain_weight(model, layer, "shared_gate.weight");
    double one[PLAIN_MAX], score = 0;

    plain_mlp(arch, w, model_shared_hidden(&arch->experts), x, one);
    for (int64_t i = 0; gate != NULL && i < arch->hidden; i++)
        score += x[i] * (double)gate[i];
    for (int64_t i = 0; i < arch->hidden; i++)
        y[i] += gate != NULL ? one[i] / (1 + exp(-score)) : one[i];
}

/* Shared experts, and the top_k best of the others times their factors; narrow ones see a product
 * of the row, and their sum is widened. */
static inline void
plain_experts(const ModelArch *arch, const ExecModel *model, int64_t layer, const double *x,
              double *y)
{
    const ModelExperts *experts = &arch->experts;
    const int64_t f = experts->ffn_hidden, n_up = model_is_gated(arch) ? 2 * f : f;
    ModelArch narrow = *arch;
    double score[PLAIN_MAX], factor[PLAIN_MAX], one[PLAIN_MAX], in[PLAIN_MAX], sum[PLAIN_MAX] = {0};

    if (experts->latent > 0)
        narrow.hidden = experts->latent;
    const int64_t h = narrow.hidden;
    plain_linear(x, plain_weight(model, layer, "router.weight"),
                 plain_weight(model, layer, "router.bias"), arch->hidden, experts->n_experts,
                 score);
    plain_factors(experts, score, factor);
    memcpy(in, x, sizeof in);
    if (experts->latent > 0)
        plain_linear(x, plain_weight(model, layer, "latent_down.weight"), NULL, arch->hidden, h,
                     in);
    for (int64_t e = 0; e < experts->n_experts; e++) {
        const float *const w[4] = {
            plain_part(plain_weight(model, layer, "experts_up.weight"), e, h * n_up),
            plain_part(plain_weight(model, layer, "experts_up.bias"), e, n_up),
            plain_part(plain_weight(model, layer, "experts_down.weight"), e, f * h),
            plain_part(plain_weight(model, layer, "experts_down.bias"), e, h)};
        if (factor[e] <= 0)
            continue;
        plain_mlp(&narrow, w, f, in, one);
        for (int64_t i = 0; i < h; i++)
            sum[i] += factor[e] * one[i];
    }
    memcpy(y, sum, (size_t)h * sizeof *y);
    if (experts->latent > 0)
        plain_linear(sum, plain_weight(model, layer, "latent_up.weight"), NULL, h, arch->hidden, y);
    if (experts->n_shared > 0)
        plain_shared(arch, model, layer, x, y);
}

static inline void
plain_feed_forward(const ModelArch *arch, const ExecModel *model, int64_t layer, const double *x,
                   double *y)
{
    const float *const w[4] = {
        plain_weight(model, layer, "mlp_up.weight"), plain_weight(model, layer, "mlp_up.bias"),
        plain_weight(model, layer, "mlp_down.weight"), plain_weight(model, layer, "mlp_down.bias")};

    if (arch->experts.n_experts > 0)
        plain_experts(arch, model, layer, x, y);
    else
        plain_mlp(arch, w, arch->ffn_hidden, x, y);
}

/* Attention of all tokens' @a; @b the results. */
static inline void
plain_mixer(const ModelArch *arch, const ExecModel *model, int64_t layer, int64_t n_tokens,
            double a[][PLAIN_MAX], double b[][PLAIN_MAX])
{
    plain_attention(arch, model, layer, n_tokens, a, b);
}

/* One half of a layer: y += s post(half(pre(x))), of all tokens. */
static inline void
plain_half(const ModelArch *arch, const ExecModel *model, int64_t layer, int64_t n_tokens,
           bool mixer, double x[][PLAIN_MAX], double y[][PLAIN_MAX])
{
    /* The only norm of such a block is that of the mixer's input, which both read. */
    const bool one = arch->blocks == MODEL_BLOCKS_PARALLEL_ONE_NORM;
    double a[PLAIN_MAX][PLAIN_MAX], b[PLAIN_MAX][PLAIN_MAX], c[PLAIN_MAX];

    for (int64_t t = 0; t < n_tokens; t++) {
        memcpy(a[t], x[t], sizeof a[t]);
        if (arch->norm_place != MODEL_NORM_PLACE_POST)
            plain_norm(arch, model, layer, mixer || one ? "norm1" : "norm2", x[t], a[t]);
        if (!mixer)
            plain_feed_forward(arch, model, layer, a[t], b[t]);
    }
    if (mixer)
        plain_mixer(arch, model, layer, n_tokens, a, b);
    for (int64_t t = 0; t < n_tokens; t++) {
        memcpy(c, b[t], sizeof c);
        if (arch->norm_place != MODEL_NORM_PLACE_PRE)
            plain_norm(arch, model, layer, mixer ? "post_norm1" : "post_norm2", b[t], c);
        for (int64_t i = 0; i < arch->hidden; i++)
            y[t][i] += (arch->residual_scale > 0 ? arch->residual_scale : 1) * c[i];
    }
}

static inline void
plain_layer(const ModelArch *whole, const ExecModel *model, int64_t layer, int64_t n_tokens,
            double x[][PLAIN_MAX])
{
    const ModelArch one = model_layer_arch(whole, layer), *arch = &one;
    double input[PLAIN_MAX][PLAIN_MAX];

    memcpy(input, x, (size_t)n_tokens * sizeof input[0]);
    if (arch->mixer != MODEL_MIXER_NONE)
        plain_half(arch, model, layer, n_tokens, true, input, x);
    if (arch->blocks == MODEL_BLOCKS_SERIAL)
        memcpy(input, x, (size_t)n_tokens * sizeof input[0]);
    if (arch->ffn != MODEL_FFN_NONE)
        plain_half(arch, model, layer, n_tokens, false, input, x);
}

/* The embedding's row of @token. */
static inline void
plain_embed(const ModelArch *arch, const ExecModel *model, int32_t token, double *x)
{
    const float *table = plain_weight(model, -1, "embedding.token");

    for (int64_t i = 0; i < arch->hidden; i++)
        x[i] = (double)table[token * arch->hidden + i] *
               (arch->embedding_scale > 0 ? arch->embedding_scale : 1);
}

/* -log of the probability that the head gives @target, from @y, which is normed. */
static inline double
plain_row_loss(const ModelArch *arch, const ExecModel *model, const double *y, int32_t target)
{
    const float *head =
        plain_weight(model, -1, arch->tied_embeddings ? "embedding.token" : "head.weight");
    const float *bias = plain_weight(model, -1, "head.bias");
    double sum = 0, of_target = 0;

    for (int64_t v = 0; v < arch->vocab; v++) {
        double logit = bias != NULL ? (double)bias[v] : 0;
        for (int64_t i = 0; i < arch->hidden; i++)
            logit += y[i] * (double)head[v * arch->hidden + i];
        logit *= arch->logits_scale > 0 ? arch->logits_scale : 1;
        if (arch->logits_cap > 0)
            logit = arch->logits_cap * tanh(logit / arch->logits_cap);
        sum += exp(logit);
        if (v == target)
            of_target = logit;
    }
    return log(sum) - of_target;
}

/* MTP module @k [DeepSeek-V3 2412.19437 section 2.2, equations 21 to 23]: @h becomes its result. */
static inline void
plain_module(const ModelArch *arch, const ExecModel *model, int64_t k, const int32_t *tokens,
             int64_t n_tokens, double h[][PLAIN_MAX])
{
    const int64_t layer = arch->n_layers + k, n = arch->hidden;
    const float *proj = plain_weight(model, layer, "mtp_proj.weight");
    double e[PLAIN_MAX], joined[2 * PLAIN_MAX], y[PLAIN_MAX];

    for (int64_t t = 0; t < n_tokens; t++) {
        plain_embed(arch, model, tokens[t + k + 1], e);
        plain_norm(arch, model, layer, "mtp_hidden_norm", h[t], joined);
        plain_norm(arch, model, layer, "mtp_embedding_norm", e, joined + n);
        plain_linear(joined, proj, NULL, 2 * n, n, h[t]);
    }
    plain_layer(arch, model, layer, n_tokens, h);
    for (int64_t t = 0; t < n_tokens; t++)
        plain_norm(arch, model, layer, "mtp_final_norm", memcpy(y, h[t], sizeof y), h[t]);
}

/* Mean loss over the tokens of one sequence; with MTP modules plus the mean of theirs times their
 * factor. */
static inline double
plain_loss(const ModelArch *arch, const ExecModel *model, const int32_t *tokens, int64_t n_tokens)
{
    const float *position = plain_weight(model, -1, "embedding.position");
    double x[PLAIN_MAX][PLAIN_MAX], y[PLAIN_MAX], loss = 0;

    for (int64_t t = 0; t < n_tokens; t++) {
        plain_embed(arch, model, tokens[t], x[t]);
        for (int64_t i = 0; position != NULL && i < arch->hidden; i++)
            x[t][i] += (double)position[t * arch->hidden + i];
        if (arch->embedding_norm)
            plain_norm(arch, model, -1, "embedding_norm", memcpy(y, x[t], sizeof y), x[t]);
    }
    for (int64_t l = 0; l < arch->n_layers; l++)
        plain_layer(arch, model, l, n_tokens, x);
    for (int64_t t = 0; t < n_tokens; t++) {
        memcpy(y, x[t], sizeof y);
        if (!arch->no_final_norm)
            plain_norm(arch, model, -1, "norm", x[t], y);
        loss += plain_row_loss(arch, model, y, tokens[t + 1]) / (double)n_tokens;
    }
    for (int64_t k = 0; k < arch->mtp.n; k++) {
        const double factor = (arch->mtp.loss_factor > 0 ? arch->mtp.loss_factor : 0.1) /
                              (double)(arch->mtp.n * n_tokens);
        plain_module(arch, model, k, tokens, n_tokens, x);
        for (int64_t t = 0; t < n_tokens; t++)
            loss += factor * plain_row_loss(arch, model, x[t], tokens[t + k + 2]);
    }
    return loss;
}
