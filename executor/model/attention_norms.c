/*
 * executor/model/attention_norms.c - norms of queries and keys [Henry et al. 2010.04245, OLMo 2
 * 2501.00656]: of products before they are rotated, and of what latents are decompressed to, whose
 * rotated part all heads share, behind the rotation.
 */
#include "executor/model/attention_parts.h"

/* --- parameters --- */

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
        exec_layout_add_norm(b, name, member, exec_attention_kv_shard(b, 1, d, 0),
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

void
exec_attention_norms_add(ExecLayoutBuilder *b)
{
    const ExecWidths *w = b->w;

    if (!w->arch.qk_norm || w->arch.qk_norm_kind == MODEL_QK_NORM_PLAIN)
        return;
    add_qk_norm(b, "q_norm.gain", EXEC_LAYER_TENSOR(q_norm_gain), false, false);
    add_qk_norm(b, "k_norm.gain", EXEC_LAYER_TENSOR(k_norm_gain), true, false);
    if (!qk_norm_shifts(&w->arch))
        return;
    add_qk_norm(b, "q_norm.shift", EXEC_LAYER_TENSOR(q_norm_shift), false, true);
    add_qk_norm(b, "k_norm.shift", EXEC_LAYER_TENSOR(k_norm_shift), true, true);
}

/* --- what lies in the blocks --- */

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

void
exec_attention_norms_cut(const ExecLayerShape *shape, ExecMixerCutters *c, ExecAttentionTensors *t)
{
    const ExecWidths *w = shape->widths;
    const int64_t rows = exec_slice_rows(&shape->slice);
    const ExecGroupNorm q = norm_shape(w, rows, false), k = norm_shape(w, rows, true);

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

/* --- both --- */

void
exec_attention_norms_forward(const ExecLayer *layer, const ExecAttentionTensors *t)
{
    const ExecWidths *w = layer->widths;
    const ExecBlocks k = {.rows = exec_slice_rows(&layer->slice),
                          .blocks = 1,
                          .cols = w->k_width,
                          .from_stride = w->kv_width,
                          .to_stride = w->k_width};

    if (!w->arch.qk_norm)
        return;
    layer->backend->ops->copy_blocks(layer->backend, &k, t->own_kv, t->raw_k);
    norm_forward(layer, t, false, t->q, w->q_width);
    norm_forward(layer, t, true, t->own_kv, w->kv_width);
}

void
exec_attention_norms_backward(const ExecLayer *layer, const ExecAttentionTensors *t)
{
    const ExecWidths *w = layer->widths;

    if (!w->arch.qk_norm)
        return;
    norm_backward(layer, t, false, t->d_q, w->q_width);
    norm_backward(layer, t, true, t->d_kv, w->kv_width);
}
