/*
 * tests/executor/states.h - small models with mixers that have a state, and these mixers' forward pass
 * written again from their definitions, in double, one token at a time.
 *
 * Gated delta net [Yang et al. 2412.06464 equation 10]; KDA [2510.26692 equations 1 and 10]; Mamba-2
 * [Dao and Gu 2405.21060 and its code], alone and beside attention [Falcon-H1 2507.22448]; Mamba [Gu and
 * Dao 2312.00752 algorithm 2], with norms inside [Jamba 2403.19887]; lightning attention
 * [2501.08313 and its code]; short gated convolution [LFM2's code].
 */
#pragma once

#include "tests/executor/plain.h"

enum {
    STATES_N = 12,
    STATES_HEADS_N = 7, /* the first ones have 8 heads with vectors of their own */
    STATES_MAX = 256    /* columns of anything */
};

/* Makes the @which-th of STATES_N mixers of the model's. */
static inline void
states_set(ModelArch *arch, int which)
{
    static const struct {
        ModelMixer mixer;
        ModelState state;
    } states[STATES_N] = {
        {MODEL_MIXER_DELTA_NET, {8, 4, 8, 3, .conv = 3, .chunk = 8}},
        {MODEL_MIXER_DELTA_NET, {8, 8, 9, 4, .chunk = 8, .bias = true}},
        {MODEL_MIXER_KDA, {8, 4, 8, 3, .conv = 4, .chunk = 8, .conv_bias = true}},
        {MODEL_MIXER_KDA, {8, 8, 9, 3, .conv = 2, .rank = 3, .chunk = 8}},
        {MODEL_MIXER_MAMBA2, {8, 4, 3, 5, .conv = 4, .conv_bias = true, .chunk = 8}},
        {MODEL_MIXER_MAMBA2, {8, 4, 6, 4, .conv = 2, .bias = true, .no_norm = true, .chunk = 8}},
        {MODEL_MIXER_ATTENTION_MAMBA2, {8, 4, 4, 3, .conv = 3, .conv_bias = true, .chunk = 8}},
        {MODEL_MIXER_MAMBA, {20, 20, 5, 1, .conv = 4, .rank = 3, .conv_bias = true, .chunk = 8}},
        {MODEL_MIXER_MAMBA, {20, 20, 5, 1, .conv = 3, .rank = 4, .inner_norms = true, .chunk = 8}},
        {MODEL_MIXER_MAMBA, {20, 20, 4, 1, .rank = 3, .chunk = 8}},
        {MODEL_MIXER_LIGHTNING, {4, 4, 6, 5, .chunk = 8}},
        {MODEL_MIXER_CONV, {16, 16, 1, 1, .conv = 3, .bias = true, .chunk = 8}},
    };

    arch->mixer = states[which].mixer;
    arch->state = states[which].state;
}

/* A model with layers of that mixer and of attention by turns, the first of the mixer.  A norm of a
 * few values that are nearly zero, as a first token's may be, blows up their rounding errors: its
 * epsilon is no smaller than that.  The kinds are valid until the next call. */
static inline void
states_mix(ModelArch *arch, int which)
{
    static ModelArch kinds[2];
    static uint8_t pattern[] = {0, 1};

    arch->norm_epsilon = 1e-2;
    kinds[0] = kinds[1] = *arch;
    kinds[0].name = (char *)"state";
    kinds[1].name = (char *)"attention";
    kinds[0].experts = kinds[1].experts = (ModelExperts){0};
    states_set(&kinds[0], which);
    arch->n_kinds = 2;
    arch->kinds = kinds;
    arch->pattern = pattern;
    arch->n_pattern = G_N_ELEMENTS(pattern);
    model_arch_settle(arch);
}

static inline double
states_silu(double x)
{
    return x / (1 + exp(-x));
}

static inline double
states_softplus(double x)
{
    return log1p(exp(x));
}

/* The layer's mixer at work on one sequence. */
typedef struct {
    const ModelArch *arch;
    const ExecModel *model;
    int64_t layer, n_tokens;
    double (*in)[STATES_MAX];        /* [n_tokens] the first product's rows */
    double state[STATES_MAX][16][8]; /* [head][key][value] */
} States;

static inline const float *
states_weight(const States *s, const char *name)
{
    return plain_weight(s->model, s->layer, name);
}

/* Column @c of the convolution's result at token @t; without one, SiLU alone. */
static inline double
states_convolved(const States *s, int64_t t, int64_t c)
{
    const ModelState *state = &s->arch->state;
    const float *taps = states_weight(s, "state_conv.weight");
    const float *bias = states_weight(s, "state_conv.bias");
    const int64_t channels = model_state_widths(s->arch, 1).conv;
    double sum = bias != NULL ? (double)bias[c] : 0;

    if (state->conv == 0)
        return states_silu(s->in[t][c]);
    for (int64_t j = 0; j < state->conv; j++) {
        const int64_t at = t - (state->conv - 1) + j;
        if (at >= 0)
            sum += (double)taps[j * channels + c] * s->in[at][c] *
                   (s->arch->mixer == MODEL_MIXER_CONV ? s->in[at][2 * channels + c] : 1);
    }
    return s->arch->mixer == MODEL_MIXER_CONV ? sum : states_silu(sum);
}

/* What a head reads at a token. */
typedef struct {
    double q[16], k[16], v[8];
    double decay[16]; /* a number up to 1 of every channel of a key */
    double rate;
} StatesToken;

static inline void
states_normalise(double *x, int64_t n, double scale)
{
    double square = 0;

    for (int64_t i = 0; i < n; i++)
        square += x[i] * x[i];
    for (int64_t i = 0; i < n; i++)
        x[i] *= scale / sqrt(square + 1e-6);
}

/* Delta net, KDA, Mamba-2 and lightning: queries, keys, values, gate, decays, rates side by side. */
static inline void
states_read(const States *s, int64_t t, int64_t head, StatesToken *x)
{
    const ModelArch *arch = s->arch;
    const ModelState *state = &arch->state;
    const int64_t keys = state->n_key_heads * state->key_dim;
    const int64_t values = state->n_heads * state->value_dim;
    const int64_t key = head / (state->n_heads / state->n_key_heads) * state->key_dim;
    const bool kda = arch->mixer == MODEL_MIXER_KDA;
    const int64_t n_decays = kda ? state->key_dim : 1;
    int64_t gates = 2 * keys + 2 * values; /* the first column of the decays */
    double decays[STATES_MAX], middle[STATES_MAX];
    const float *a_log = states_weight(s, "state_a_log");
    const float *step_bias = states_weight(s, "state_step_bias");

    for (int64_t i = 0; i < state->key_dim; i++) {
        x->q[i] = states_convolved(s, t, key + i);
        x->k[i] = states_convolved(s, t, keys + key + i);
    }
    for (int64_t i = 0; i < state->value_dim; i++)
        x->v[i] = states_convolved(s, t, 2 * keys + head * state->value_dim + i);
    if (arch->mixer == MODEL_MIXER_LIGHTNING) {
        const double factor = 1 - (double)s->layer / ((double)arch->n_layers - 1 + 1e-5) + 1e-5;
        for (int64_t i = 0; i < state->key_dim; i++)
            x->decay[i] =
                exp(-factor * pow(pow(2, 8.0 / (double)state->n_heads), -(double)(head + 1)));
        x->rate = 1;
        return;
    }
    if (kda && state->rank > 0) {
        gates = 2 * keys + values;
        for (int64_t i = 0; i < 2 * state->rank; i++)
            middle[i] = s->in[t][STATES_MAX - 2 * state->rank + i];
        plain_linear(middle, states_weight(s, "state_steps.weight"), NULL, state->rank,
                     state->n_heads * n_decays, decays);
    } else {
        for (int64_t i = 0; i < state->n_heads * n_decays; i++)
            decays[i] = s->in[t][gates + i];
        gates += state->n_heads * n_decays;
    }
    for (int64_t i = 0; i < state->key_dim; i++) {
        const int64_t at = head * n_decays + (kda ? i : 0);
        const double step = states_softplus(decays[at] + (double)step_bias[at]);
        x->decay[i] = exp(-exp((double)a_log[head]) * step);
        x->rate = step;
    }
    if (model_state_mixer(arch) == MODEL_MIXER_MAMBA2)
        return;
    x->rate = 1 / (1 + exp(-s->in[t][gates + head]));
    states_normalise(x->q, state->key_dim, 1 / sqrt((double)state->key_dim));
    states_normalise(x->k, state->key_dim, 1);
}

static inline void
states_read_mamba(const States *s, int64_t t, int64_t head, StatesToken *x)
{
    const ModelState *state = &s->arch->state;
    const int64_t middle_n = state->rank + 2 * state->key_dim;
    double values[STATES_MAX], middle[STATES_MAX], steps[STATES_MAX];

    for (int64_t i = 0; i < state->n_heads; i++)
        values[i] = states_convolved(s, t, i);
    plain_linear(values, states_weight(s, "state_middle.weight"), NULL, state->n_heads, middle_n,
                 middle);
    if (state->inner_norms) {
        plain_norm_in_place(s->arch, false, states_weight(s, "state_steps_norm.gain"), NULL,
                            state->rank, middle);
        plain_norm_in_place(s->arch, false, states_weight(s, "state_keys_norm.gain"), NULL,
                            state->key_dim, middle + state->rank);
        plain_norm_in_place(s->arch, false, states_weight(s, "state_queries_norm.gain"), NULL,
                            state->key_dim, middle + state->rank + state->key_dim);
    }
    plain_linear(middle, states_weight(s, "state_steps.weight"), NULL, state->rank, state->n_heads,
                 steps);
    x->v[0] = values[head];
    x->rate = states_softplus(steps[head] + (double)states_weight(s, "state_step_bias")[head]);
    for (int64_t i = 0; i < state->key_dim; i++) {
        const double a = exp((double)states_weight(s, "state_a_log")[head * state->key_dim + i]);
        x->decay[i] = exp(-a * x->rate);
        x->k[i] = middle[state->rank + i];
        x->q[i] = middle[state->rank + state->key_dim + i];
    }
}

/* The head's state takes in a token; @y  what it gives out. */
static inline void
states_step(States *s, int64_t head, const StatesToken *x, double *y)
{
    const ModelState *state = &s->arch->state;
    const bool delta = s->arch->mixer == MODEL_MIXER_DELTA_NET || s->arch->mixer == MODEL_MIXER_KDA;
    const float *skip = states_weight(s, "state_skip");

    for (int64_t i = 0; i < state->value_dim; i++) {
        double old = 0;
        y[i] = skip != NULL ? (double)skip[head] * x->v[i] : 0;
        for (int64_t c = 0; c < state->key_dim; c++) {
            s->state[head][c][i] *= x->decay[c];
            old += delta ? s->state[head][c][i] * x->k[c] : 0;
        }
        for (int64_t c = 0; c < state->key_dim; c++) {
            s->state[head][c][i] += x->rate * x->k[c] * (x->v[i] - old);
            y[i] += s->state[head][c][i] * x->q[c];
        }
    }
}

/* The gate's columns of token @t. */
static inline void
states_gate(const States *s, int64_t t, double *gate)
{
    const ModelState *state = &s->arch->state;
    const ModelStateWidths w = model_state_widths(s->arch, 1);
    const bool own = s->arch->mixer == MODEL_MIXER_MAMBA || s->arch->mixer == MODEL_MIXER_CONV;
    const int64_t first = own ? w.values : 2 * w.keys + w.values;

    if (s->arch->mixer == MODEL_MIXER_KDA && state->rank > 0) {
        plain_linear(&s->in[t][STATES_MAX - state->rank], states_weight(s, "state_gate.weight"),
                     NULL, state->rank, w.values, gate);
        return;
    }
    memcpy(gate, &s->in[t][first], (size_t)w.values * sizeof *gate);
}

/* RMSNorm of groups of @width columns, with a gain of each column or the same for every group. */
static inline void
states_norm(const States *s, int64_t width, double *y)
{
    const ModelStateWidths w = model_state_widths(s->arch, 1);
    const float *gain = states_weight(s, "state_norm.gain");

    for (int64_t at = 0; w.norm > 0 && at < w.values; at += width) {
        double square = 0;
        for (int64_t i = at; i < at + width; i++)
            square += y[i] * y[i] / (double)width;
        for (int64_t i = at; i < at + width; i++)
            y[i] *= (double)gain[i % w.norm] / sqrt(square + s->arch->norm_epsilon);
    }
}

/* From what the heads give out to what the last product reads. */
static inline void
states_result(const States *s, int64_t t, double *y)
{
    const ModelState *state = &s->arch->state;
    const int64_t values = model_state_widths(s->arch, 1).values;
    const ModelMixer mixer = model_state_mixer(s->arch);
    double gate[STATES_MAX];

    states_gate(s, t, gate);
    for (int64_t i = 0; i < values; i++)
        if (mixer == MODEL_MIXER_KDA || mixer == MODEL_MIXER_LIGHTNING)
            gate[i] = 1 / (1 + exp(-gate[i]));
        else if (mixer != MODEL_MIXER_CONV)
            gate[i] = states_silu(gate[i]);
    if (mixer != MODEL_MIXER_MAMBA2)
        states_norm(s, mixer == MODEL_MIXER_LIGHTNING ? values : state->value_dim, y);
    for (int64_t i = 0; i < values; i++)
        y[i] *= gate[i];
    if (mixer == MODEL_MIXER_MAMBA2)
        states_norm(s, values / state->n_key_heads, y);
}

/* x += mixer(norm1(x)), attention beside it and all */
static inline void
states_mixer(const ModelArch *arch, const ExecModel *model, int64_t layer, int64_t n_tokens,
             double x[][PLAIN_MAX])
{
    const ModelState *state = &arch->state;
    const ModelStateWidths w = model_state_widths(arch, 1);
    double normed[PLAIN_MAX][PLAIN_MAX], beside[PLAIN_MAX][PLAIN_MAX] = {{0}};
    double y[STATES_MAX], out[PLAIN_MAX];
    g_autofree States *s = g_new0(States, 1);
    g_autofree void *rows = g_new0(double, (size_t)n_tokens *STATES_MAX);

    s->arch = arch;
    s->model = model;
    s->layer = layer;
    s->n_tokens = n_tokens;
    s->in = rows;
    for (int64_t t = 0; t < n_tokens; t++) {
        double *a = normed[t];
        plain_norm(arch, model, layer, "norm1", x[t], a);
        plain_linear(a, states_weight(s, "state_in.weight"), states_weight(s, "state_in.bias"),
                     arch->hidden, w.in, s->in[t]);
        if (w.down > 0) /* at the row's end */
            plain_linear(a, states_weight(s, "state_down.weight"), NULL, arch->hidden, w.down,
                         s->in[t] + STATES_MAX - w.down);
    }
    if (model_has_attention(arch))
        plain_attention(arch, model, layer, n_tokens, normed, beside);
    for (int64_t t = 0; t < n_tokens; t++) {
        for (int64_t head = 0; head < state->n_heads; head++) {
            StatesToken token;
            if (arch->mixer == MODEL_MIXER_CONV) {
                y[head] = states_convolved(s, t, head);
                continue;
            }
            if (arch->mixer == MODEL_MIXER_MAMBA)
                states_read_mamba(s, t, head, &token);
            else
                states_read(s, t, head, &token);
            states_step(s, head, &token, y + head * state->value_dim);
        }
        states_result(s, t, y);
        plain_linear(y, states_weight(s, "state_out.weight"), states_weight(s, "state_out.bias"),
                     w.values, arch->hidden, out);
        for (int64_t i = 0; i < arch->hidden; i++)
            x[t][i] += out[i] + beside[t][i];
    }
}

/* The mean loss over the tokens of one sequence, as plain_loss() has it, of a model whose layers all
 * have such a mixer and an MLP. */
static inline double
states_loss(const ModelArch *arch, const ExecModel *model, const int32_t *tokens, int64_t n_tokens)
{
    const float *table = plain_weight(model, -1, "embedding.token");
    const float *head = arch->tied_embeddings ? table : plain_weight(model, -1, "head.weight");
    double x[PLAIN_MAX][PLAIN_MAX], a[PLAIN_MAX], b[PLAIN_MAX], loss = 0;

    for (int64_t t = 0; t < n_tokens; t++)
        for (int64_t i = 0; i < arch->hidden; i++)
            x[t][i] = (double)table[tokens[t] * arch->hidden + i];
    for (int64_t l = 0; l < arch->n_layers; l++) {
        states_mixer(arch, model, l, n_tokens, x);
        for (int64_t t = 0; t < n_tokens; t++) {
            plain_norm(arch, model, l, "norm2", x[t], a);
            plain_feed_forward(arch, model, l, a, b);
            for (int64_t i = 0; i < arch->hidden; i++)
                x[t][i] += b[i];
        }
    }
    for (int64_t t = 0; t < n_tokens; t++) {
        double logits[PLAIN_MAX] = {0}, sum = 0;
        plain_norm(arch, model, -1, "norm", x[t], a);
        for (int64_t v = 0; v < arch->vocab; v++) {
            for (int64_t i = 0; i < arch->hidden; i++)
                logits[v] += a[i] * (double)head[v * arch->hidden + i];
            sum += exp(logits[v]);
        }
        loss += (log(sum) - logits[tokens[t + 1]]) / (double)n_tokens;
    }
    return loss;
}
