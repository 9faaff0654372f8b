#include "executor/model/state_parts.h"

#include <math.h>

#include "executor/model/layout_build.h"

/* --- shapes --- */

/* The columns of every part; those of conv are the first ones. */
static void
set_parts(ExecStateShape *s)
{
    const ModelStateWidths *w = &s->w;
    const bool narrow = s->rank > 0;

    switch (s->mixer) {
    case MODEL_MIXER_MAMBA:
        s->n[EXEC_STATE_VALUES] = s->n[EXEC_STATE_GATE] = w->values;
        break;
    case MODEL_MIXER_CONV:
        s->n[EXEC_STATE_VALUES] = s->n[EXEC_STATE_GATE] = s->n[EXEC_STATE_INNER] = w->values;
        break;
    default:
        s->n[EXEC_STATE_QUERIES] = s->n[EXEC_STATE_KEYS] = w->keys;
        s->n[EXEC_STATE_VALUES] = w->values;
        s->n[EXEC_STATE_GATE] = narrow ? 0 : w->values;
        s->n[EXEC_STATE_DECAYS] = narrow ? 0 : s->n_gates;
        s->n[EXEC_STATE_RATES] = s->mixer == MODEL_MIXER_MAMBA2 ? 0 : s->n_rates;
    }
    for (int part = 1; part < EXEC_STATE_PARTS; part++)
        s->at[part] = s->at[part - 1] + s->n[part - 1];
}

/* How a mixer computes. */
static void
set_kind(ExecStateShape *s)
{
    const ModelStateWidths *w = &s->w;

    s->scans = true;
    switch (s->mixer) {
    case MODEL_MIXER_KDA:
        s->n_channels = s->key_dim;
        /* fallthrough */
    case MODEL_MIXER_DELTA_NET:
        s->delta = true;
        s->gate = s->mixer == MODEL_MIXER_KDA ? EXEC_GATE_SIGMOID : EXEC_GATE_SILU;
        s->n_groups = w->heads;
        s->n_gates = w->heads * s->n_channels;
        s->n_rates = w->heads;
        break;
    case MODEL_MIXER_MAMBA2:
        s->gate = EXEC_GATE_SILU;
        s->gate_first = true;
        s->n_groups = s->n_key_heads;
        s->n_gates = s->n_rates = w->heads;
        break;
    case MODEL_MIXER_MAMBA:
        s->by_value = true;
        s->gate = EXEC_GATE_SILU;
        s->n_key_heads = s->value_dim = 1;
        s->n_gates = s->n_rates = w->heads;
        break;
    case MODEL_MIXER_LIGHTNING:
        s->fixed = s->sums_groups = true;
        s->gate = EXEC_GATE_SIGMOID;
        s->n_groups = 1;
        break;
    default:
        s->gate = EXEC_GATE_PLAIN;
        s->scans = false;
        break;
    }
    if (w->norm == 0)
        s->n_groups = 0;
    if (s->n_groups > 0)
        s->group_cols = w->values / s->n_groups * (s->sums_groups ? s->tp : 1);
}

ExecStateShape
exec_state_shape(const ExecWidths *widths)
{
    const ModelState *state = &widths->arch.state;
    ExecStateShape s = {
        .mixer = model_state_mixer(&widths->arch),
        .w = model_state_widths(&widths->arch, widths->tp),
        .tp = widths->tp,
        .n_key_heads = state->n_key_heads / widths->tp,
        .key_dim = state->key_dim,
        .value_dim = state->value_dim,
        .taps = state->conv,
        .n_channels = 1,
    };

    s.rank = s.w.up_rows;
    set_kind(&s);
    s.convolves = s.taps > 0 || s.by_value;
    s.inner_norms = s.by_value && state->inner_norms;
    set_parts(&s);
    return s;
}

/* --- parameters --- */

/* This rank's part of each of the first @n_parts parts of the input's product. */
static ExecShard
parts_shard(const ExecLayoutBuilder *b, const ExecStateShape *s, int64_t rows, int n_parts)
{
    ExecShard shard = exec_shard_whole(rows, 0);

    shard.n_runs = 0;
    for (int part = 0; part < n_parts; part++) {
        if (s->n[part] == 0)
            continue;
        shard.runs[shard.n_runs].begin = shard.cols + b->o->tp_index * s->n[part];
        shard.runs[shard.n_runs++].n = s->n[part];
        shard.cols += s->n[part] * s->tp;
    }
    return shard;
}

/* This rank's @n of the columns of a matrix. */
static ExecShard
columns_shard(const ExecLayoutBuilder *b, int64_t rows, int64_t n)
{
    return exec_shard_columns(rows, n * b->w->tp, 1, b->o->tp_index, b->w->tp);
}

static void
add_narrow(ExecLayoutBuilder *b, const ExecStateShape *s)
{
    const ModelStateWidths *w = &s->w;
    /* torch's Linear: even in 1 / sqrt(inputs) [its code, and Mamba's]. */
    const double steps = s->by_value ? 1.0 / sqrt(3.0 * (double)s->rank) : b->deviation;

    /* Each tp rank adds what its own heads make of these rows. */
    if (w->down > 0)
        exec_layout_add_weight(b, "state_down.weight", EXEC_LAYER_TENSOR(state_down_weight),
                               exec_shard_whole(b->w->hidden, w->down), EXEC_SHARE_TP,
                               b->deviation);
    if (w->middle > 0)
        exec_layout_add_weight(
            b, "state_middle.weight", EXEC_LAYER_TENSOR(state_middle_weight),
            exec_shard_rows(w->values * s->tp, w->middle, b->o->tp_index * w->values, w->values),
            EXEC_SHARE_OWN, b->deviation);
    if (s->rank == 0)
        return;
    exec_layout_add_weight(b, "state_steps.weight", EXEC_LAYER_TENSOR(state_steps_weight),
                           columns_shard(b, s->rank, s->n_gates), EXEC_SHARE_OWN, steps);
    if (w->down > 0)
        exec_layout_add_weight(b, "state_gate.weight", EXEC_LAYER_TENSOR(state_gate_weight),
                               columns_shard(b, s->rank, w->values), EXEC_SHARE_OWN, b->deviation);
}

ExecStateInner
exec_state_inner(const ExecStateShape *s, int number)
{
    const ExecStateInner inner[EXEC_STATE_INNER_NORMS] = {
        {"state_steps_norm.gain", 0, s->rank, EXEC_LAYER_TENSOR(state_inner_gain[0])},
        {"state_keys_norm.gain", s->rank, s->key_dim, EXEC_LAYER_TENSOR(state_inner_gain[1])},
        {"state_queries_norm.gain", s->rank + s->key_dim, s->key_dim,
         EXEC_LAYER_TENSOR(state_inner_gain[2])},
    };

    return inner[number];
}

static void
add_vectors(ExecLayoutBuilder *b, const ExecStateShape *s)
{
    const int64_t heads = s->w.heads;

    if (s->by_value)
        exec_layout_add_norm(
            b, "state_a_log", EXEC_LAYER_TENSOR(state_a_log),
            exec_shard_rows(heads * s->tp, s->key_dim, b->o->tp_index * heads, heads),
            EXEC_SHARE_OWN, EXEC_INIT_COUNT);
    else if (s->n_gates > 0)
        exec_layout_add_norm(b, "state_a_log", EXEC_LAYER_TENSOR(state_a_log),
                             columns_shard(b, 1, heads), EXEC_SHARE_OWN, EXEC_INIT_RATE);
    if (s->n_gates > 0)
        exec_layout_add_norm(b, "state_step_bias", EXEC_LAYER_TENSOR(state_step_bias),
                             columns_shard(b, 1, s->n_gates), EXEC_SHARE_OWN, EXEC_INIT_STEP);
    if (s->by_value || s->mixer == MODEL_MIXER_MAMBA2)
        exec_layout_add_norm(b, "state_skip", EXEC_LAYER_TENSOR(state_skip),
                             columns_shard(b, 1, heads), EXEC_SHARE_OWN, EXEC_INIT_ONE);
    /* Every tp rank sees all of the middle, and all of its gradient. */
    for (int i = 0; s->inner_norms && i < EXEC_STATE_INNER_NORMS; i++) {
        const ExecStateInner inner = exec_state_inner(s, i);
        exec_layout_add_norm(b, inner.name, inner.member, exec_shard_whole(1, inner.n),
                             EXEC_SHARE_OWN, EXEC_INIT_ONE);
    }
    if (s->n_groups == 0)
        return;
    /* One gain for all heads is everybody's; else each rank has its columns'. */
    const bool shared = s->w.norm < s->w.values;
    exec_layout_add_norm(b, "state_norm.gain", EXEC_LAYER_TENSOR(state_norm_gain),
                         shared ? exec_shard_whole(1, s->w.norm) : columns_shard(b, 1, s->w.norm),
                         shared ? EXEC_SHARE_TP : EXEC_SHARE_OWN, EXEC_INIT_ONE);
}

void
exec_state_add_parameters(ExecLayoutBuilder *b)
{
    const ModelState *state = &b->w->arch.state;
    const ExecStateShape s = exec_state_shape(b->w);
    const int64_t values = s.w.values;
    const double taps = 1.0 / sqrt(3.0 * (double)s.taps);

    exec_layout_add_weight(b, "state_in.weight", EXEC_LAYER_TENSOR(state_in_weight),
                           parts_shard(b, &s, b->w->hidden, EXEC_STATE_PARTS), EXEC_SHARE_OWN,
                           b->deviation);
    if (state->bias)
        exec_layout_add_bias(b, "state_in.bias", EXEC_LAYER_TENSOR(state_in_bias),
                             parts_shard(b, &s, 1, EXEC_STATE_PARTS), EXEC_SHARE_OWN);
    add_narrow(b, &s);
    if (s.taps > 0)
        exec_layout_add_taps(b, "state_conv.weight", EXEC_LAYER_TENSOR(state_conv_weight),
                             parts_shard(b, &s, s.taps, EXEC_STATE_GATE), taps);
    if (s.taps > 0 && state->conv_bias)
        exec_layout_add_norm(b, "state_conv.bias", EXEC_LAYER_TENSOR(state_conv_bias),
                             parts_shard(b, &s, 1, EXEC_STATE_GATE), EXEC_SHARE_OWN,
                             EXEC_INIT_ZERO);
    add_vectors(b, &s);
    exec_layout_add_weight(
        b, "state_out.weight", EXEC_LAYER_TENSOR(state_out_weight),
        exec_shard_rows(values * s.tp, b->w->hidden, b->o->tp_index * values, values),
        EXEC_SHARE_OWN, b->projection);
    if (state->bias)
        exec_layout_add_bias(b, "state_out.bias", EXEC_LAYER_TENSOR(state_out_bias),
                             exec_shard_whole(1, b->w->hidden), EXEC_SHARE_OWN);
}

/* --- blocks --- */

ExecStateTensors
exec_state_cut(const ExecLayerShape *shape, ExecMixerCutters *c)
{
    const ExecStateShape s = exec_state_shape(shape->widths);
    const ModelStateWidths *w = &s.w;
    const int64_t rows = exec_slice_rows(&shape->slice), values = rows * w->values;
    const int64_t convolved = s.convolves ? rows * w->conv : 0;
    const int64_t narrow_gates = s.rank > 0 ? rows * s.n_gates : 0;
    const int64_t narrow_values = w->down > 0 ? values : 0;
    const int64_t middle = rows * (w->down + w->middle);
    const bool backward = exec_is_backward(shape), runs = backward || exec_is_forward(shape);
    const bool scan_again = exec_is_again(shape, PLAN_MODULE_CORE_ATTENTION);
    const int64_t handed =
        shape->widths->cp > 1 ? exec_state_handed(&s, shape->slice.sequences) : 0;
    ExecStateTensors t = {0};

    t.result = exec_cut(&c->products, values);
    t.middle = exec_cut(&c->products, middle);
    t.raw_middle = s.inner_norms ? exec_cut(&c->inputs, middle) : t.middle;
    t.inner_sums = exec_cut_words(&c->inputs, s.inner_norms ? EXEC_STATE_INNER_NORMS * rows : 0);
    t.in = exec_cut(&c->inputs, rows * w->in);
    t.convolved = exec_cut(s.by_value ? &c->products : &c->inputs, convolved);
    t.gate = exec_cut(&c->inputs, narrow_values);
    t.decays = exec_cut_words(&c->inputs, s.by_value ? 0 : rows * s.n_gates);
    t.rates = exec_cut_words(&c->inputs, rows * s.n_rates);
    t.squares = exec_cut_words(&c->inputs, rows * s.n_groups);
    t.starts = exec_cut_words(&c->inputs, EXEC_STATE_PIECES * handed);
    t.scanned = !s.scans     ? t.convolved
                : scan_again ? exec_cut(&c->scratch, runs ? values : 0)
                             : exec_cut(&c->inputs, values);
    t.d_in = exec_cut(&c->kept, rows * w->in);
    t.d_middle = exec_cut(&c->kept, middle);
    t.d_steps = exec_cut(&c->kept, narrow_gates);
    t.d_gate = exec_cut(&c->kept, narrow_values);
    t.steps = exec_cut(&c->scratch, runs ? narrow_gates : 0);
    t.fixed = exec_cut_words(&c->scratch, runs && s.fixed ? w->heads : 0);
    t.d_result = exec_cut(&c->scratch, backward ? values : 0);
    t.d_convolved = exec_cut(&c->scratch, backward ? convolved : 0);
    t.d_decays = exec_cut_words(&c->scratch, backward && !s.by_value ? rows * s.n_gates : 0);
    t.d_rates = exec_cut_words(&c->scratch, backward ? rows * s.n_rates : 0);
    t.dots = exec_cut_words(&c->scratch, backward ? rows * s.n_groups : 0);
    t.end = exec_cut_words(&c->scratch, runs ? handed : 0);
    t.d_state = exec_cut_words(&c->scratch, backward ? handed : 0);
    t.d_inner_sums = exec_cut_words(&c->scratch, backward && s.inner_norms ? rows : 0);
    return t;
}

int64_t
exec_state_handed_scan(const ExecStateShape *s, int64_t sequences)
{
    return s->scans ? sequences * s->w.heads * s->key_dim * s->value_dim : 0;
}

int64_t
exec_state_handed(const ExecStateShape *s, int64_t sequences)
{
    const int64_t before = s->taps > 0 ? (s->taps - 1) * sequences * s->w.conv : 0;

    return exec_state_handed_scan(s, sequences) + before;
}
