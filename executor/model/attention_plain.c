/*
 * executor/model/attention_plain.c - queries, keys and values as products of a layer's input, normed
 * and rotated.
 */
#include "executor/model/attention_parts.h"

/* --- parameters --- */

/* K/V heads are split over tp like those of q, or replicated where there are fewer than tp.  Of each
 * head there are @k elements and, in a second run of columns, @v. */
static ExecShard
kv_shard(const ExecLayoutBuilder *b, int64_t rows, int64_t k, int64_t v)
{
    const ExecWidths *w = b->w;
    const int64_t heads = w->arch.n_kv_heads, first = b->o->tp_index * heads / w->tp;
    ExecShard shard = exec_shard_whole(rows, heads * (k + v));

    shard.n_runs = v > 0 ? 2 : 1;
    shard.runs[0].begin = first * k;
    shard.runs[0].n = w->n_kv_heads * k;
    shard.runs[1].begin = heads * k + first * v;
    shard.runs[1].n = w->n_kv_heads * v;
    return shard;
}

/* The scale, or @shift, of the norm of queries or of @keys.  One of all heads sees the heads of every
 * tp rank. */
static void
add_qk_norm(ExecLayoutBuilder *b, const char *name, size_t member, bool keys, bool shift)
{
    const ExecWidths *w = b->w;
    const ExecInit init = shift ? EXEC_INIT_ZERO : EXEC_INIT_ONE;
    const int64_t d = w->head_dim;

    if (w->arch.qk_norm_kind == MODEL_QK_NORM_HEAD)
        exec_layout_add_norm(b, name, member, exec_shard_whole(1, d), EXEC_SHARE_TP, init);
    else if (keys)
        exec_layout_add_norm(b, name, member, kv_shard(b, 1, d, 0),
                             w->arch.n_kv_heads < w->tp ? EXEC_SHARE_KV : EXEC_SHARE_OWN, init);
    else
        exec_layout_add_norm(b, name, member,
                             exec_shard_columns(1, w->tp * w->q_width, 1, b->o->tp_index, w->tp),
                             EXEC_SHARE_OWN, init);
}

/* Such models as have LayerNorms with shifts by name have them here, too (models/parameters.c). */
static bool
qk_norm_shifts(const ModelArch *arch)
{
    return arch->qk_norm_kind == MODEL_QK_NORM_HEAD && arch->norm == MODEL_NORM_LAYER;
}

static void
add_parameters(ExecLayoutBuilder *b)
{
    const ExecWidths *w = b->w;
    const ExecShare share = w->arch.n_kv_heads < w->tp ? EXEC_SHARE_KV : EXEC_SHARE_OWN;
    const int64_t q = w->tp * w->q_width, index = b->o->tp_index, d = w->head_dim, v = w->v_dim;

    exec_layout_add_weight(b, "q.weight", EXEC_LAYER_TENSOR(q_weight),
                           exec_shard_columns(w->hidden, q, 1, index, w->tp), EXEC_SHARE_OWN,
                           b->deviation);
    exec_layout_add_weight(b, "kv.weight", EXEC_LAYER_TENSOR(kv_weight),
                           kv_shard(b, w->hidden, d, v), share, b->deviation);
    if (w->arch.qkv_bias) {
        exec_layout_add_bias(b, "q.bias", EXEC_LAYER_TENSOR(q_bias),
                             exec_shard_columns(1, q, 1, index, w->tp), EXEC_SHARE_OWN);
        exec_layout_add_bias(b, "kv.bias", EXEC_LAYER_TENSOR(kv_bias), kv_shard(b, 1, d, v), share);
    }
    if (!w->arch.qk_norm || w->arch.qk_norm_kind == MODEL_QK_NORM_PLAIN)
        return;
    add_qk_norm(b, "q_norm.gain", EXEC_LAYER_TENSOR(q_norm_gain), false, false);
    add_qk_norm(b, "k_norm.gain", EXEC_LAYER_TENSOR(k_norm_gain), true, false);
    if (!qk_norm_shifts(&w->arch))
        return;
    add_qk_norm(b, "q_norm.shift", EXEC_LAYER_TENSOR(q_norm_shift), false, true);
    add_qk_norm(b, "k_norm.shift", EXEC_LAYER_TENSOR(k_norm_shift), true, true);
}

/* --- norms of queries and keys --- */

/* Without its tensors. */
static ExecGroupNorm
norm_shape(const ExecWidths *w, int64_t rows, bool keys)
{
    const bool row = w->arch.qk_norm_kind == MODEL_QK_NORM_ROW;
    const int64_t heads = keys ? w->n_kv_heads : w->n_heads, width = heads * w->head_dim;

    return (ExecGroupNorm){
        .rows = rows,
        .groups = row ? 1 : heads,
        .cols = row ? width : w->head_dim,
        /* Heads of K that several ranks have count once for each, in the sums and here. */
        .n = row ? width * w->tp : w->head_dim,
        .centred = model_norm(&w->arch) != MODEL_NORM_RMS,
        .epsilon = w->norm_epsilon,
        .x_stride = width,
        .gain_step = w->arch.qk_norm_kind == MODEL_QK_NORM_HEADS ? w->head_dim : 0,
    };
}

static void
cut(const ExecLayerShape *shape, ExecMixerCutters *c, ExecAttentionTensors *t)
{
    const ExecWidths *w = shape->widths;
    const int64_t rows = exec_slice_rows(&shape->slice);
    const ExecGroupNorm q = norm_shape(w, rows, false), k = norm_shape(w, rows, true);

    t->d_kv = exec_cut(&c->kept, rows * w->kv_width);
    if (!w->arch.qk_norm)
        return;
    t->raw_q = exec_cut(&c->inputs, rows * w->q_width);
    t->raw_k = exec_cut(&c->inputs, rows * w->k_width);
    t->q_sums = exec_cut_words(&c->inputs, exec_group_norm_n_sums(&q));
    t->k_sums = exec_cut_words(&c->inputs, exec_group_norm_n_sums(&k));
    t->d_sums = exec_cut_words(
        &c->scratch,
        exec_is_backward(shape) ? MAX(exec_group_norm_n_sums(&q), exec_group_norm_n_sums(&k)) : 0);
}

static ExecGroupNorm
norm_of(const ExecLayer *layer, const ExecAttentionTensors *t, bool keys)
{
    const ExecLayerTensors *p = layer->tensors;
    ExecGroupNorm norm = norm_shape(layer->widths, exec_slice_rows(&layer->slice), keys);

    norm.x = keys ? t->raw_k : t->raw_q;
    norm.gain = keys ? p->k_norm_gain.weight : p->q_norm_gain.weight;
    norm.shift = keys ? p->k_norm_shift.weight : p->q_norm_shift.weight;
    norm.sums = keys ? t->k_sums : t->q_sums;
    return norm;
}

/* Adds up what tp ranks have of whole rows. */
static void
sum_over_ranks(const ExecLayer *layer, const ExecGroupNorm *norm, float *sums)
{
    if (layer->widths->arch.qk_norm_kind == MODEL_QK_NORM_ROW)
        exec_comm_all_reduce(layer->comm, EXEC_DIM_TP, DTYPE_FP32, exec_group_norm_n_sums(norm),
                             sums);
}

/* @y  queries, or K's columns of K and V, @stride elements between rows */
static void
norm_forward(const ExecLayer *layer, const ExecAttentionTensors *t, bool keys, void *y,
             int64_t stride)
{
    const ExecGroupNorm norm = norm_of(layer, t, keys);

    layer->backend->ops->group_norm_sums(layer->backend, &norm);
    sum_over_ranks(layer, &norm, norm.sums);
    layer->backend->ops->group_norm_forward(layer->backend, &norm, y, stride);
}

static void
norm_backward(const ExecLayer *layer, const ExecAttentionTensors *t, bool keys, void *d,
              int64_t stride)
{
    const ExecLayerTensors *p = layer->tensors;
    const ExecGroupNorm norm = norm_of(layer, t, keys);

    layer->backend->ops->group_norm_backward_sums(layer->backend, &norm, d, stride, t->d_sums);
    sum_over_ranks(layer, &norm, t->d_sums);
    layer->backend->ops->group_norm_backward(
        layer->backend, &norm, t->d_sums, d, stride,
        keys ? p->k_norm_gain.gradient : p->q_norm_gain.gradient,
        keys ? p->k_norm_shift.gradient : p->q_norm_shift.gradient);
}

/* --- products --- */

static bool
reads_all(const ExecWidths *w)
{
    return true;
}

static ExecLinear
q_of(const ExecLayer *layer)
{
    return exec_layer_linear(layer, layer->widths->hidden, layer->widths->q_width,
                             &layer->tensors->q_weight, &layer->tensors->q_bias);
}

static ExecLinear
kv_of(const ExecLayer *layer)
{
    return exec_layer_linear(layer, layer->widths->hidden, layer->widths->kv_width,
                             &layer->tensors->kv_weight, &layer->tensors->kv_bias);
}

/* Turns q and this slice's K by their positions, or their gradients back. */
static void
rotate(const ExecLayer *layer, void *q, void *kv, bool inverse)
{
    const ExecWidths *w = layer->widths;

    exec_attention_rotate(layer, w->n_heads, w->head_dim, w->q_width, inverse, q);
    exec_attention_rotate(layer, w->n_kv_heads, w->head_dim, w->kv_width, inverse, kv);
}

static void
forward(const ExecLayer *layer, const ExecAttentionTensors *t, const void *x, const void *x_all)
{
    ExecBackend *backend = layer->backend;
    const ExecWidths *w = layer->widths;
    const ExecLinear q = q_of(layer), kv = kv_of(layer);

    exec_linear_forward(backend, &q, x_all, NULL, w->arch.qk_norm ? t->raw_q : t->q);
    exec_linear_forward(backend, &kv, x_all, NULL, t->own_kv);
    if (w->arch.qk_norm) {
        const ExecBlocks k = {.rows = q.rows,
                              .blocks = 1,
                              .cols = w->k_width,
                              .from_stride = w->kv_width,
                              .to_stride = w->k_width};
        backend->ops->copy_blocks(backend, &k, t->own_kv, t->raw_k);
        norm_forward(layer, t, false, t->q, w->q_width);
        norm_forward(layer, t, true, t->own_kv, w->kv_width);
    }
    rotate(layer, t->q, t->own_kv, false);
}

static void
backward(const ExecLayer *layer, const ExecAttentionTensors *t, void *dx)
{
    const ExecWidths *w = layer->widths;
    const ExecLinear q = q_of(layer), kv = kv_of(layer);

    rotate(layer, t->d_q, t->d_kv, true);
    if (w->arch.qk_norm) {
        norm_backward(layer, t, false, t->d_q, w->q_width);
        norm_backward(layer, t, true, t->d_kv, w->kv_width);
    }
    exec_linear_backward(layer->backend, &q, t->d_q, false, NULL, dx);
    exec_linear_backward(layer->backend, &kv, t->d_kv, true, NULL, dx);
}

static void
weight(const ExecLayer *layer, const ExecAttentionTensors *t, const void *x, const void *x_all)
{
    const ExecLinear q = q_of(layer), kv = kv_of(layer);

    exec_linear_weight(layer->backend, &q, x_all, t->d_q);
    exec_linear_weight(layer->backend, &kv, x_all, t->d_kv);
}

const ExecQueries exec_attention_plain = {
    .reads_all = reads_all,
    .add_parameters = add_parameters,
    .cut = cut,
    .forward = forward,
    .backward = backward,
    .weight = weight,
};
