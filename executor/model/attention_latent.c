/*
 * executor/model/attention_latent.c - queries, keys and values through latents [DeepSeek-V2
 * 2405.04434 section 2.1], decompressed for every token:
 *
 *   cq = norm(x Wq_down), q = cq Wq_up (or q = x Wq);  (c, r) = x Wkv_down, c = norm(c);
 *   of every head  k = (c Wk_up, r),  v = c Wv_up;  r, and as many of the last elements of q's
 *   heads, are rotated
 *
 * Every tp rank has the whole down-projections and makes its local rows of latents; with sequence
 * parallelism these are gathered, and the sums over tp of their gradients scattered.
 */
#include "executor/model/attention_parts.h"

/* --- widths --- */

/* Columns of latents: queries', keys' and values', the rotated part of keys. */
static int64_t
latent_width(const ExecWidths *w)
{
    const ModelMla *mla = &w->arch.mla;

    return mla->q_lora_rank + mla->kv_lora_rank + mla->qk_rope_head_dim;
}

/* Columns that the decompression makes of a row. */
static int64_t
kv_up_width(const ExecWidths *w)
{
    return w->n_heads * (w->arch.mla.qk_nope_head_dim + w->v_dim);
}

static bool
reads_all(const ExecWidths *w)
{
    return w->arch.mla.q_lora_rank == 0;
}

/* --- parameters --- */

static void
add_parameters(ExecLayoutBuilder *b)
{
    const ExecWidths *w = b->w;
    const ModelMla *mla = &w->arch.mla;
    const int64_t index = b->o->tp_index, q = w->tp * w->q_width;
    const int64_t down = mla->kv_lora_rank + mla->qk_rope_head_dim;
    const int64_t nope = w->n_heads * mla->qk_nope_head_dim;
    /* Of tp ranks that see the same rows each has the whole gradient. */
    const ExecShare share = w->sequence_parallel ? EXEC_SHARE_TP : EXEC_SHARE_OWN;
    ExecShard up = exec_shard_whole(mla->kv_lora_rank, w->tp * kv_up_width(w));

    up.n_runs = 2;
    up.runs[0].begin = index * nope;
    up.runs[0].n = nope;
    up.runs[1].begin = w->tp * nope + index * w->v_width;
    up.runs[1].n = w->v_width;
    if (mla->q_lora_rank > 0) {
        exec_layout_add_weight(b, "q_down.weight", EXEC_LAYER_TENSOR(q_down_weight),
                               exec_shard_whole(w->hidden, mla->q_lora_rank), share, b->deviation);
        exec_layout_add_norm(b, "q_latent_norm.gain", EXEC_LAYER_TENSOR(q_latent_gain),
                             exec_shard_whole(1, mla->q_lora_rank), share, EXEC_INIT_ONE);
        exec_layout_add_weight(b, "q_up.weight", EXEC_LAYER_TENSOR(q_weight),
                               exec_shard_columns(mla->q_lora_rank, q, 1, index, w->tp),
                               EXEC_SHARE_OWN, b->deviation);
    } else {
        exec_layout_add_weight(b, "q.weight", EXEC_LAYER_TENSOR(q_weight),
                               exec_shard_columns(w->hidden, q, 1, index, w->tp), EXEC_SHARE_OWN,
                               b->deviation);
    }
    exec_layout_add_weight(b, "kv_down.weight", EXEC_LAYER_TENSOR(kv_down_weight),
                           exec_shard_whole(w->hidden, down), share, b->deviation);
    exec_layout_add_norm(b, "kv_latent_norm.gain", EXEC_LAYER_TENSOR(kv_latent_gain),
                         exec_shard_whole(1, mla->kv_lora_rank), share, EXEC_INIT_ONE);
    exec_layout_add_weight(b, "kv_up.weight", EXEC_LAYER_TENSOR(kv_up_weight), up, EXEC_SHARE_OWN,
                           b->deviation);
    exec_attention_norms_add(b);
    if (!w->arch.qkv_bias)
        return;
    if (mla->q_lora_rank > 0)
        exec_layout_add_bias(b, "q_down.bias", EXEC_LAYER_TENSOR(q_down_bias),
                             exec_shard_whole(1, mla->q_lora_rank), share);
    exec_layout_add_bias(b, "kv_down.bias", EXEC_LAYER_TENSOR(kv_down_bias),
                         exec_shard_whole(1, down), share);
}

/* --- what lies in the blocks --- */

static void
cut(const ExecLayerShape *shape, ExecMixerCutters *c, ExecAttentionTensors *t)
{
    const ExecWidths *w = shape->widths;
    const int64_t rows = exec_slice_rows(&shape->slice), local = exec_local_rows(w, rows);
    const int64_t width = latent_width(w), up = rows * kv_up_width(w), kv = rows * w->kv_width;
    const bool backward = exec_is_backward(shape), forward = exec_is_forward(shape);

    t->raw_latent = exec_cut(&c->inputs, local * width);
    t->latent_sums[0] = exec_cut_words(&c->inputs, local);
    t->latent_sums[1] = exec_cut_words(&c->inputs, local);
    t->latent = exec_cut(&c->products, local * width);
    t->d_kv_up = exec_cut(&c->kept, up);
    t->d_latent = exec_cut(&c->kept, local * width);
    /* A second forward is over when the gradients come. */
    t->d_kv = t->kv_up = exec_cut(&c->scratch, backward ? MAX(kv, up) : forward ? up : 0);
    t->d_latent_sums = exec_cut_words(&c->scratch, backward ? local : 0);
    t->latents = w->sequence_parallel ? exec_cut(&c->scratch, rows * width) : t->latent;
    t->d_latents =
        w->sequence_parallel ? exec_cut(&c->scratch, backward ? rows * width : 0) : t->d_latent;
    exec_attention_norms_cut(shape, c, t);
}

/* --- products --- */

static ExecLinear
q_of(const ExecLayer *layer)
{
    const ExecWidths *w = layer->widths;
    const int64_t rank = w->arch.mla.q_lora_rank;
    ExecLinear q = exec_layer_linear(layer, rank > 0 ? rank : w->hidden, w->q_width,
                                     &layer->tensors->q_weight, NULL);

    q.x_stride = rank > 0 ? latent_width(w) : 0;
    return q;
}

static ExecLinear
kv_up_of(const ExecLayer *layer)
{
    const ExecWidths *w = layer->widths;
    ExecLinear up = exec_layer_linear(layer, w->arch.mla.kv_lora_rank, kv_up_width(w),
                                      &layer->tensors->kv_up_weight, NULL);

    up.x_stride = latent_width(w);
    return up;
}

/* The projection down to the @keys' latent and the rotated part, or to the queries': local rows. */
static ExecLinear
down_of(const ExecLayer *layer, bool keys)
{
    const ExecWidths *w = layer->widths;
    const ModelMla *mla = &w->arch.mla;
    const ExecLayerTensors *p = layer->tensors;

    return (ExecLinear){
        .rows = exec_local_rows(w, exec_slice_rows(&layer->slice)),
        .inputs = w->hidden,
        .cols = keys ? mla->kv_lora_rank + mla->qk_rope_head_dim : mla->q_lora_rank,
        .weight = keys ? &p->kv_down_weight : &p->q_down_weight,
        .bias = keys ? &p->kv_down_bias : &p->q_down_bias,
        .y_stride = latent_width(w),
    };
}

/* Where the columns of the keys' and values' latent begin in @latent; and those of the rotated part.
 */
static void *
kv_at(const ExecLayer *layer, const void *latent)
{
    return exec_at(layer->backend, latent, layer->widths->arch.mla.q_lora_rank);
}

static void *
rope_at(const ExecLayer *layer, const void *latent)
{
    return exec_at(layer->backend, kv_at(layer, latent), layer->widths->arch.mla.kv_lora_rank);
}

static ExecGroupNorm
norm_of(const ExecLayer *layer, const ExecAttentionTensors *t, bool keys)
{
    const ExecWidths *w = layer->widths;
    const ModelMla *mla = &w->arch.mla;
    const int64_t cols = keys ? mla->kv_lora_rank : mla->q_lora_rank;

    return (ExecGroupNorm){
        .rows = exec_local_rows(w, exec_slice_rows(&layer->slice)),
        .groups = 1,
        .cols = cols,
        .n = cols,
        .epsilon = w->norm_epsilon,
        .x = keys ? kv_at(layer, t->raw_latent) : t->raw_latent,
        .x_stride = latent_width(w),
        .gain = keys ? layer->tensors->kv_latent_gain.weight : layer->tensors->q_latent_gain.weight,
        .sums = t->latent_sums[keys],
    };
}

/* --- forward --- */

/* Local rows of one of the two latents, normed. */
static void
latent_forward(const ExecLayer *layer, const ExecAttentionTensors *t, const void *x, bool keys)
{
    ExecBackend *backend = layer->backend;
    const ExecLinear down = down_of(layer, keys);
    const ExecGroupNorm norm = norm_of(layer, t, keys);
    const int64_t width = latent_width(layer->widths);

    exec_linear_forward(backend, &down, x, NULL, (void *)(uintptr_t)norm.x);
    backend->ops->group_norm_sums(backend, &norm);
    backend->ops->group_norm_forward(backend, &norm, keys ? kv_at(layer, t->latent) : t->latent,
                                     width);
}

/* Local rows of all tp ranks: t->latents. */
static void
gather(const ExecLayer *layer, const ExecAttentionTensors *t)
{
    const ExecWidths *w = layer->widths;
    const int64_t n = exec_slice_rows(&layer->slice) * latent_width(w);
    int64_t begin;

    if (!w->sequence_parallel)
        return;
    const int64_t n_own = exec_comm_chunk(layer->comm, EXEC_DIM_TP, n, &begin);
    layer->backend->ops->copy(layer->backend, (size_t)exec_storage_bytes(layer->backend, n_own),
                              t->latent, exec_at(layer->backend, t->latents, begin));
    exec_comm_all_gather(layer->comm, EXEC_DIM_TP, w->storage, n, t->latents);
}

/* Blocks of columns of the rows of K and V: those of keys that are not rotated, the rotated ones of
 * every head, or all of the values. */
typedef enum {
    NOPE,
    ROPE,
    VALUES,
} Columns;

/* From kv_up, or the rotated part in latents, to K and V; or with @back the other way. */
static ExecBlocks
blocks_of(const ExecLayer *layer, Columns columns, bool back)
{
    const ExecWidths *w = layer->widths;
    const ModelMla *mla = &w->arch.mla;
    const int64_t up = kv_up_width(w), rows = exec_slice_rows(&layer->slice);
    const ExecBlocks b =
        columns == VALUES ? (ExecBlocks){rows, 1, w->v_width, up, 0, w->kv_width, 0}
        : columns == NOPE
            ? (ExecBlocks){rows,
                           w->n_heads,
                           mla->qk_nope_head_dim,
                           up,
                           mla->qk_nope_head_dim,
                           w->kv_width,
                           w->head_dim}
            : (ExecBlocks){rows,        w->n_heads, mla->qk_rope_head_dim, latent_width(w), 0,
                           w->kv_width, w->head_dim};

    if (!back)
        return b;
    return (ExecBlocks){b.rows,    b.blocks,      b.cols,     b.to_stride,
                        b.to_step, b.from_stride, b.from_step};
}

/* The part of the heads of q that is rotated. */
static void
rotate_q(const ExecLayer *layer, void *q, bool inverse)
{
    const ExecWidths *w = layer->widths;

    exec_attention_rotate(layer, w->n_heads, w->head_dim, w->q_width, inverse,
                          exec_at(layer->backend, q, w->arch.mla.qk_nope_head_dim));
}

/* Makes q, k and v of the latents of all rows. */
static void
decompress(const ExecLayer *layer, const ExecAttentionTensors *t, const void *x_all)
{
    ExecBackend *backend = layer->backend;
    const ExecWidths *w = layer->widths;
    const ModelMla *mla = &w->arch.mla;
    const ExecLinear q = q_of(layer), up = kv_up_of(layer);
    const ExecBlocks nope = blocks_of(layer, NOPE, false), rope = blocks_of(layer, ROPE, false);
    const ExecBlocks values = blocks_of(layer, VALUES, false);
    const int64_t nope_columns = w->n_heads * mla->qk_nope_head_dim;
    void *queries = w->arch.qk_norm ? t->raw_q : t->q;

    exec_linear_forward(backend, &q, mla->q_lora_rank > 0 ? t->latents : x_all, NULL, queries);
    rotate_q(layer, queries, false);
    exec_linear_forward(backend, &up, kv_at(layer, t->latents), NULL, t->kv_up);
    backend->ops->copy_blocks(backend, &nope, t->kv_up, t->own_kv);
    backend->ops->copy_blocks(backend, &rope, rope_at(layer, t->latents),
                              exec_at(backend, t->own_kv, mla->qk_nope_head_dim));
    backend->ops->copy_blocks(backend, &values, exec_at(backend, t->kv_up, nope_columns),
                              exec_at(backend, t->own_kv, w->k_width));
    exec_attention_norms_forward(layer, t);
}

/* Turns the part of the latents of all rows that is rotated. */
static void
rotate_latents(const ExecLayer *layer, const ExecAttentionTensors *t)
{
    const ExecWidths *w = layer->widths;

    exec_attention_rotate(layer, 1, w->arch.mla.qk_rope_head_dim, latent_width(w), false,
                          rope_at(layer, t->latents));
}

static void
forward(const ExecLayer *layer, const ExecAttentionTensors *t, const void *x, const void *x_all)
{
    const ExecWidths *w = layer->widths;
    const int64_t width = latent_width(w);
    const ExecBlocks own = {exec_local_rows(w, exec_slice_rows(&layer->slice)),
                            1,
                            w->arch.mla.qk_rope_head_dim,
                            width,
                            0,
                            width,
                            0};

    if (w->arch.mla.q_lora_rank > 0)
        latent_forward(layer, t, x, false);
    latent_forward(layer, t, x, true);
    layer->backend->ops->copy_blocks(layer->backend, &own, rope_at(layer, t->raw_latent),
                                     rope_at(layer, t->latent));
    gather(layer, t);
    rotate_latents(layer, t);
    decompress(layer, t, x_all);
}

/* The latents are kept, as they are before they are gathered: where they are not, they were turned in
 * their place. */
static void
repeat(const ExecLayer *layer, const ExecAttentionTensors *t, const void *x_all)
{
    gather(layer, t);
    if (layer->widths->sequence_parallel)
        rotate_latents(layer, t);
    decompress(layer, t, x_all);
}

/* --- backward --- */

/* The gradients of latents, to t->d_latent: the norms' are turned to those of the products. */
static void
backward(const ExecLayer *layer, const ExecAttentionTensors *t, void *dx)
{
    ExecBackend *backend = layer->backend;
    const ExecWidths *w = layer->widths;
    const ModelMla *mla = &w->arch.mla;
    const ExecLinear q = q_of(layer), up = kv_up_of(layer);
    const ExecBlocks nope = blocks_of(layer, NOPE, true), rope = blocks_of(layer, ROPE, true);
    const ExecBlocks values = blocks_of(layer, VALUES, true);
    const int64_t width = latent_width(w), nope_columns = w->n_heads * mla->qk_nope_head_dim;

    exec_attention_norms_backward(layer, t);
    rotate_q(layer, t->d_q, true);
    exec_linear_backward(backend, &q, t->d_q, false, NULL,
                         mla->q_lora_rank > 0 ? t->d_latents : dx);
    backend->ops->copy_blocks(backend, &nope, t->d_kv, t->d_kv_up);
    backend->ops->copy_blocks(backend, &values, exec_at(backend, t->d_kv, w->k_width),
                              exec_at(backend, t->d_kv_up, nope_columns));
    exec_linear_backward(backend, &up, t->d_kv_up, false, NULL, kv_at(layer, t->d_latents));
    backend->ops->sum_blocks(backend, &rope, exec_at(backend, t->d_kv, mla->qk_nope_head_dim),
                             rope_at(layer, t->d_latents));
    exec_attention_rotate(layer, 1, mla->qk_rope_head_dim, width, true,
                          rope_at(layer, t->d_latents));
}

/* Sums the gradients of latents over tp: t->d_latent. */
static void
reduce(const ExecLayer *layer, const ExecAttentionTensors *t)
{
    const ExecWidths *w = layer->widths;
    const int64_t n = exec_slice_rows(&layer->slice) * latent_width(w);
    int64_t begin;

    if (!w->sequence_parallel) {
        exec_comm_all_reduce(layer->comm, EXEC_DIM_TP, w->storage, n, t->d_latent);
        return;
    }
    const int64_t n_own = exec_comm_chunk(layer->comm, EXEC_DIM_TP, n, &begin);
    exec_comm_reduce_scatter(layer->comm, EXEC_DIM_TP, w->storage, n, t->d_latents);
    layer->backend->ops->copy(layer->backend, (size_t)exec_storage_bytes(layer->backend, n_own),
                              exec_at(layer->backend, t->d_latents, begin), t->d_latent);
}

static void
latent_backward(const ExecLayer *layer, const ExecAttentionTensors *t, bool keys, void *dx,
                bool adds)
{
    const ExecBackendOps *ops = layer->backend->ops;
    const ExecLayerTensors *p = layer->tensors;
    const ExecLinear down = down_of(layer, keys);
    const ExecGroupNorm norm = norm_of(layer, t, keys);
    void *d = keys ? kv_at(layer, t->d_latent) : t->d_latent;

    ops->group_norm_backward_sums(layer->backend, &norm, d, down.y_stride, t->d_latent_sums);
    ops->group_norm_backward(layer->backend, &norm, t->d_latent_sums, d, down.y_stride,
                             keys ? p->kv_latent_gain.gradient : p->q_latent_gain.gradient, NULL);
    exec_linear_backward(layer->backend, &down, d, adds, NULL, dx);
}

static void
backward_rows(const ExecLayer *layer, const ExecAttentionTensors *t, void *dx, bool adds)
{
    const bool has_q = layer->widths->arch.mla.q_lora_rank > 0;

    reduce(layer, t);
    if (has_q)
        latent_backward(layer, t, false, dx, adds);
    latent_backward(layer, t, true, dx, adds || has_q);
}

static void
weight(const ExecLayer *layer, const ExecAttentionTensors *t, const void *x, const void *x_all)
{
    const bool has_q = layer->widths->arch.mla.q_lora_rank > 0;
    const ExecLinear q = q_of(layer), up = kv_up_of(layer);
    const ExecLinear q_down = down_of(layer, false), kv_down = down_of(layer, true);

    gather(layer, t);
    exec_linear_weight(layer->backend, &q, has_q ? t->latents : x_all, t->d_q);
    exec_linear_weight(layer->backend, &up, kv_at(layer, t->latents), t->d_kv_up);
    if (has_q)
        exec_linear_weight(layer->backend, &q_down, x, t->d_latent);
    exec_linear_weight(layer->backend, &kv_down, x, kv_at(layer, t->d_latent));
}

const ExecQueries exec_attention_latent = {
    .reads_all = reads_all,
    .add_parameters = add_parameters,
    .cut = cut,
    .forward = forward,
    .repeat = repeat,
    .backward = backward,
    .backward_rows = backward_rows,
    .weight = weight,
};
