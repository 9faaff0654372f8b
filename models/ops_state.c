#include "models/ops_list.h"

#include <math.h>

#include "base/real.h"

/*
 * The scan of a mixer with a state, in chunks of L tokens, of one head with key size k and value
 * size v  [2405.21060 6, 2412.06464 3.3]; 2 FLOPs for each multiply-add, by token:
 *   scores within the chunk and their values    2 L k + 2 L v, of which half is needed
 *   what the state before the chunk gives        2 k v
 *   what the chunk adds to the state             2 k v
 * Delta rules first solve for what is written: scores among keys (2 L k), the inverse of a
 * triangular matrix (L L / 3), keys and values by it (2 L k + 2 L v, half of it), and what the state
 * already has (2 k v).
 * A chunk that is not full costs as much as a full one, by token.  Mamba's first version has no chunks: a channel's state of k numbers decays, takes in and gives
 * out, 6 k.  A gated convolution has no scan.
 */
static double
scan_flops(const ModelArch *arch)
{
    const ModelState *s = &arch->state;
    const double k = (double)s->key_dim, v = (double)s->value_dim;
    const double l = (double)s->chunk;

    switch (model_state_mixer(arch)) {
    case MODEL_MIXER_MAMBA:
        return 6.0 * k;
    case MODEL_MIXER_CONV:
        return 0.0;
    case MODEL_MIXER_DELTA_NET:
    case MODEL_MIXER_KDA:
        return l * (k + v) + 4.0 * k * v + l * k + l * l / 3.0 + l * (k + v) + 2.0 * k * v;
    default:
        return l * (k + v) + 4.0 * k * v;
    }
}

/*
 * Bytes that the kernels of Mamba-2's scan move, forward or backward (cost-model.md 2.7): mamba_ssm runs
 * five of them forward, and these again and nine more backward.  The states of all chunks, in fp32,
 * pass through memory @n_states times; and each head's blocks read keys, queries and values of
 * their chunk @n_tiles times, though heads of a group share keys and queries.  @heads  that are scanned
 * over all tokens, by this rank or while it waits for others.
 */
static double
mamba2_scan_bytes(const OpsList *list, double heads, double chunk_states, double n_tiles,
                  double n_states)
{
    const ModelState *s = &list->arch->state;
    const double tile = list->e * (double)(s->key_dim + s->value_dim);

    return n_tiles * (double)list->shape->batch * (double)list->shape->tokens * heads * tile +
           n_states * chunk_states;
}

#define MAMBA2_FORWARD_STATES 4.0 /* written, passed on (read and written), read */
#define MAMBA2_BACKWARD_STATES                                                                     \
    12.0 /* these again; gradients written, passed on with the states, read by three */
#define MAMBA2_FORWARD_TILES 8.0 /* both by three measured runs, cost-model.md 2.7 */
#define MAMBA2_BACKWARD_TILES 24.0

/* Rows before the slice that its convolution reads. */
static double
before_elements(const OpsList *list, const ModelStateWidths *w)
{
    const int64_t taps = list->arch->state.conv;

    return taps > 0 ? (double)(taps - 1) * (double)list->shape->batch * (double)w->conv : 0.0;
}

/* Of the scan and the convolution, in fp32, of all heads: each rank has two pieces of the sequence, which wait for
 * each other. */
static void
add_state_pass(OpsList *list, const ModelStateWidths *w)
{
    const ModelState *s = &list->arch->state;
    const double state = 4.0 * (double)list->shape->batch * (double)w->heads * (double)s->key_dim *
                         (double)s->value_dim;

    if (model_passes_states(list->shape))
        ops_add_collective(
            list, "state_pass", MODEL_GROUP_CP, MODEL_COMM_RING_EXCHANGE, MODEL_COMM_RING_EXCHANGE,
            2.0 * (double)list->shape->cp * (state + 4.0 * before_elements(list, w)));
}

/* Tokens of all heads become all tokens of some heads, before the convolution: everything that the first
 * products gave, keys and queries as often as there are ranks without a group of their own.  Mamba-2's
 * gates, values, B, C and time steps go one by one  [Megatron-Core: mamba_context_parallel.py].
 * Returns: how many exchanges there are; @columns  of them all. */
static int
add_split_of_heads(OpsList *list, const ModelStateWidths *w, double *columns)
{
    const bool one_by_one = model_state_mixer(list->arch) == MODEL_MIXER_MAMBA2;
    const double groups = (double)MAX(1, list->arch->state.n_key_heads / list->shape->tp);
    const double keys = (double)w->keys * real_max(1.0, (double)list->shape->cp / groups);
    const double parts[] = {(double)w->values, (double)w->values, keys, keys, (double)w->rates};

    *columns = (double)(w->in + w->up) + 2.0 * (keys - (double)w->keys);
    if (!one_by_one)
        ops_add_head_exchange(list, "heads_split", *columns);
    for (size_t i = 0; one_by_one && i < G_N_ELEMENTS(parts); i++)
        ops_add_head_exchange(list, "heads_split", parts[i]);
    return one_by_one ? (int)G_N_ELEMENTS(parts) : 1;
}

/*
 * The way back, and what Megatron-Core copies on both: before an exchange the parts of the ranks are put
 * one behind the other; after it what came is joined, and tokens are put in their order, since attention
 * has dealt them out in zigzag; the result is put in attention's order again.
 */
static void
add_merge_of_heads(OpsList *list, const ModelStateWidths *w, int n_split, double columns)
{
    const double bytes = list->rows * list->e * (3.0 * columns + 2.0 * (double)w->values);

    ops_add_head_exchange(list, "heads_merge", (double)w->values);
    if (list->shape->cp > 1)
        ops_add_memory(list, "heads_copies", 2.0 * bytes, 2.0 * bytes, 0.0, n_split + 4,
                       n_split + 4);
}

static void
add_scan(OpsList *list, const ModelStateWidths *w)
{
    const ModelArch *arch = list->arch;
    const ModelState *s = &arch->state;
    const ModelShape *shape = list->shape;
    const bool passes = model_passes_states(shape);
    const double cp = passes ? 1.0 : (double)shape->cp;
    const double all = passes ? (double)shape->cp : 1.0; /* ranks, of which one is at work */
    const double heads = (double)w->heads / cp;
    const double batch = (double)shape->batch;
    const bool is_mamba = arch->mixer == MODEL_MIXER_MAMBA;
    /* Queries and keys, values, decays and rates in fp32; the result. */
    const double columns = 2.0 * (double)w->keys + (double)w->values;
    const double in = list->rows * (columns * list->e + 4.0 * (double)(w->gates + w->rates));
    const double out = list->rows * (double)w->values * list->e;
    const double state = 4.0 * batch * heads * (double)s->key_dim * (double)s->value_dim;
    const double n_chunks = is_mamba ? 1.0 : ceil((double)shape->tokens / (double)s->chunk);
    ModelOp *op = ops_add(list, "scan", MODEL_OP_SCAN);

    op->count = ops_bytes(real_max(1.0, batch * heads));
    op->m = shape->tokens;
    op->n = s->chunk;
    op->k = s->key_dim;
    op->forward_flops = batch * heads * (double)shape->tokens * scan_flops(arch);
    op->backward_flops = 2.0 * op->forward_flops;
    /* The state of each chunk is written and read again. */
    op->forward_bytes = ops_bytes(all * (in + out) + 2.0 * n_chunks * state);
    op->backward_bytes = ops_bytes(all * (2.0 * in + out) + 4.0 * n_chunks * state);
    if (model_state_mixer(arch) == MODEL_MIXER_MAMBA2) {
        op->forward_bytes = ops_bytes(mamba2_scan_bytes(
            list, heads, n_chunks * state, MAMBA2_FORWARD_TILES, MAMBA2_FORWARD_STATES));
        op->backward_bytes = ops_bytes(mamba2_scan_bytes(
            list, heads, n_chunks * state, MAMBA2_BACKWARD_TILES, MAMBA2_BACKWARD_STATES));
    }
    /* What it reads is kept by what made it; its result here, and the state that the slice begins
     * with, as K and V are, for all slices together. */
    if (shape->context > 0)
        op->saved_kv_bytes = op->saved_state_bytes =
            ops_bytes(state + 4.0 * before_elements(list, w));
    const double starts = passes ? 2.0 * (state + 4.0 * before_elements(list, w)) : 0.0;
    op->saved_bytes = ops_bytes(out + starts + (double)op->saved_kv_bytes);
    op->n_kernels_forward = is_mamba ? 1 : 4;
    op->n_kernels_backward = is_mamba ? 1 : 8;
    op->core_attention = true;
}

/* Whether the scan reads another tensor than the first product wrote: a convolution's result, or, of
 * Mamba, whose values a product reads, too, that of SiLU alone. */
static bool
has_conv(const ModelArch *arch, const ModelStateWidths *w)
{
    return arch->state.conv > 0 || w->middle > 0;
}

/* The convolution of every channel over a few tokens, with its activation. */
static void
add_conv(OpsList *list, const ModelStateWidths *w)
{
    const ModelState *s = &list->arch->state;
    const double bytes = list->rows * (double)w->conv * list->e;

    if (!has_conv(list->arch, w))
        return;
    /* Its input is kept, and its result, which the scan reads. */
    ModelOp *op = ops_add_memory(list, "conv", 2.0 * bytes, 4.0 * bytes, 2.0 * bytes, 1, 2);
    op->weight_bytes =
        ops_bytes((double)w->conv * (double)(s->conv + (s->conv_bias ? 1 : 0)) * list->e);
    op->stored_operands = true;
    if (w->middle > 0) /* a product reads the result */
        op->saved_for_weight_bytes = ops_bytes(bytes);
    if (list->arch->mixer == MODEL_MIXER_CONV && list->shape->context > 0) {
        op->saved_kv_bytes = op->saved_state_bytes = ops_bytes(4.0 * before_elements(list, w));
        op->saved_bytes = ops_bytes(2.0 * bytes + (double)op->saved_kv_bytes);
    }
}

/* Products through a narrow middle: of the layer's input, which all tp ranks compute (KDA). */
static void
add_narrow(OpsList *list, const ModelStateWidths *w)
{
    if (w->down == 0)
        return;
    ops_add_gemm(list, "mixer_down", list->rows, list->arch->hidden, w->down, false);
    ModelOp *up = ops_add_gemm(list, "mixer_up", list->rows, w->up_rows, w->up, false);
    ops_keep_input(list, up, list->rows * (double)w->down);
    /* The gate of the result. */
    up->saved_bytes = ops_bytes((double)up->saved_bytes + list->rows * (double)w->values * list->e);
}

/* Mamba's: of the values, after the convolution; a sum over tp ranks makes the middle whole. */
static void
add_steps(OpsList *list, const ModelStateWidths *w)
{
    if (w->middle == 0)
        return;
    ops_add_gemm(list, "mixer_middle", list->rows, w->values, w->middle, false);
    ops_add_collective(list, "mixer_middle_sum", MODEL_GROUP_TP, MODEL_COMM_ALL_REDUCE,
                       MODEL_COMM_ALL_REDUCE, list->rows * (double)w->middle * list->e);
    if (list->arch->state.inner_norms) { /* of time steps, B and C by themselves */
        const double bytes = list->rows * (double)w->middle * list->e;
        ops_add_memory(list, "mixer_inner_norms", 2.0 * bytes, 3.0 * bytes,
                       bytes + 12.0 * list->rows, 3, 6);
    }
    ModelOp *steps = ops_add_gemm(list, "mixer_steps", list->rows, w->up_rows, w->up, false);
    ops_keep_input(list, steps, list->rows * (double)w->middle);
}

/* The result's norm and its gate, in one kernel where both are. */
static void
add_gated_norm(OpsList *list, const ModelStateWidths *w)
{
    const double bytes = list->rows * (double)w->values * list->e;
    const bool is_normed = w->norm > 0;
    /* What it reads is kept by what made it. */
    ModelOp *op =
        ops_add_memory(list, "mixer_norm", 3.0 * bytes, 5.0 * bytes, 0.0, 1, is_normed ? 2 : 1);

    op->weight_bytes = ops_bytes(((double)w->norm + (double)w->vectors) * list->e);
    op->stored_operands = true;
}

void
ops_add_state_mixer(OpsList *list, bool keeps_input)
{
    const ModelArch *arch = list->arch;
    const ModelState *s = &arch->state;
    const ModelStateWidths w = model_state_widths(arch, list->shape->tp);
    const ModelMixer mixer = model_state_mixer(arch);

    ops_add_tp_input(list, "mixer_input", arch->hidden);
    ModelOp *in = ops_add_gemm(list, "mixer_in", list->rows, arch->hidden, w.in, s->bias);
    if (keeps_input)
        ops_keep_input(list, in, list->local_rows * (double)arch->hidden);
    /* What the convolution does not take over: gates; without one, everything.  And what becomes of
     * these, in fp32. */
    const double kept = (double)(w.in - (has_conv(arch, &w) ? w.conv : 0)) * list->e +
                        4.0 * (double)(w.gates + w.rates);
    in->saved_bytes = ops_bytes((double)in->saved_bytes + list->rows * kept);
    add_narrow(list, &w);
    ops_add_tp_input_again(list, "mixer_input_again", arch->hidden);
    const bool exchanges = mixer != MODEL_MIXER_CONV && !model_passes_states(list->shape);
    double columns = 0.0;
    const int n_split = exchanges ? add_split_of_heads(list, &w, &columns) : 0;
    add_conv(list, &w);
    add_steps(list, &w);
    if (mixer != MODEL_MIXER_CONV)
        add_scan(list, &w);
    if (exchanges)
        add_merge_of_heads(list, &w, n_split, columns);
    add_state_pass(list, &w);
    add_gated_norm(list, &w);
    ModelOp *out = ops_add_gemm(list, "mixer_out", list->rows, w.values, arch->hidden, s->bias);
    ops_keep_input(list, out, list->rows * (double)w.values);
    ops_add_tp_output(list, "mixer_output", arch->hidden, out);
}
