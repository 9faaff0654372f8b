/*
 * executor/model/attention_plain.c - queries, keys and values as products of a layer's input, normed
 * and rotated.
 */
#include "executor/model/attention_parts.h"

/* --- parameters --- */

ExecShard
exec_attention_kv_shard(const ExecLayoutBuilder *b, int64_t rows, int64_t k, int64_t v)
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
                           exec_attention_kv_shard(b, w->hidden, d, v), share, b->deviation);
    if (w->arch.qkv_bias) {
        exec_layout_add_bias(b, "q.bias", EXEC_LAYER_TENSOR(q_bias),
                             exec_shard_columns(1, q, 1, index, w->tp), EXEC_SHARE_OWN);
        exec_layout_add_bias(b, "kv.bias", EXEC_LAYER_TENSOR(kv_bias),
                             exec_attention_kv_shard(b, 1, d, v), share);
    }
    exec_attention_norms_add(b);
}

/* --- products --- */

static void
cut(const ExecLayerShape *shape, ExecMixerCutters *c, ExecAttentionTensors *t)
{
    t->d_kv = exec_cut(&c->kept, exec_slice_rows(&shape->slice) * shape->widths->kv_width);
    exec_attention_norms_cut(shape, c, t);
}

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
    exec_attention_norms_forward(layer, t);
    rotate(layer, t->q, t->own_kv, false);
}

static void
backward(const ExecLayer *layer, const ExecAttentionTensors *t, void *dx)
{
    const ExecLinear q = q_of(layer), kv = kv_of(layer);

    rotate(layer, t->d_q, t->d_kv, true);
    exec_attention_norms_backward(layer, t);
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
