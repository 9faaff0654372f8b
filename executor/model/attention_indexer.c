/*
 * executor/model/attention_indexer.c - sparse attention's indexer [DeepSeek-V3.2 2512.02556 section 2.1], without the
 * kernels' tricks:
 *
 *   qI = cq Wq (of latents; else x Wq),  kI = LayerNorm(x Wk),  w = x Ww;   chosen = the largest I (indexer.h)
 *
 * The first elements of the indexer's heads are rotated, as many as of the layer's own.  Attention then has chosen keys alone.
 *
 * Training.  As in the paper's sparse stage the indexer reads x and cq as constants, and learns from KL(p || softmax(I))
 * over the chosen keys, which is not part of the loss that is reported; of several layers each has its own.  It is a
 * mean over the tokens of the global batch, with factor 1: the paper names none.  The rest of the model learns from its loss alone, whose
 * gradient does not pass through the choice.
 *
 * Every tp rank has the whole indexer and computes it for all rows, so that all choose the same keys; p is a sum over
 * the heads of all tp ranks.  The keys of all slices lie behind attention's in the layer's memory.
 * Over cp ranks such layers are refused (lacks.c): the report does not say how its keys and their gradients are
 * exchanged there.
 */
#include "executor/model/attention_parts.h"

static int64_t
query_columns(const ExecWidths *w)
{
    return w->arch.indexer.n_heads * w->arch.indexer.head_dim;
}

/* Whether its queries come from the queries' latent. */
static bool
reads_latent(const ExecWidths *w)
{
    return model_has_mla(&w->arch) && w->arch.mla.q_lora_rank > 0;
}

void
exec_attention_index_add(ExecLayoutBuilder *b)
{
    const ExecWidths *w = b->w;
    const ModelIndexer *indexer = &w->arch.indexer;
    const int64_t input = reads_latent(w) ? w->arch.mla.q_lora_rank : w->hidden;

    if (!exec_attention_has_indexer(w))
        return;
    exec_layout_add_weight(b, "index_q.weight", EXEC_LAYER_TENSOR(index_q_weight),
                           exec_shard_whole(input, query_columns(w)), EXEC_SHARE_OWN, b->deviation);
    exec_layout_add_weight(b, "index_k.weight", EXEC_LAYER_TENSOR(index_k_weight),
                           exec_shard_whole(w->hidden, indexer->head_dim), EXEC_SHARE_OWN,
                           b->deviation);
    exec_layout_add_norm(b, "index_k_norm.gain", EXEC_LAYER_TENSOR(index_k_gain),
                         exec_shard_whole(1, indexer->head_dim), EXEC_SHARE_OWN, EXEC_INIT_ONE);
    exec_layout_add_norm(b, "index_k_norm.shift", EXEC_LAYER_TENSOR(index_k_shift),
                         exec_shard_whole(1, indexer->head_dim), EXEC_SHARE_OWN, EXEC_INIT_ZERO);
    exec_layout_add_weight(b, "index_weights.weight", EXEC_LAYER_TENSOR(index_weights),
                           exec_shard_whole(w->hidden, indexer->n_heads), EXEC_SHARE_OWN,
                           b->deviation);
}

/* --- what lies in the blocks --- */

void
exec_attention_index_cut(const ExecLayerShape *shape, ExecMixerCutters *c, ExecAttentionTensors *t)
{
    const ExecWidths *w = shape->widths;
    const ModelIndexer *indexer = &w->arch.indexer;
    const int64_t rows = exec_slice_rows(&shape->slice), keys = rows * indexer->head_dim;
    const int64_t backward = exec_is_backward(shape) ? rows : 0;

    if (!exec_attention_has_indexer(w))
        return;
    t->index_q = exec_cut(&c->inputs, rows * query_columns(w));
    t->index_raw_k = exec_cut(&c->inputs, keys);
    t->index_k = exec_cut(&c->inputs, exec_is_sliced(shape) ? 0 : keys);
    t->index_weight = exec_cut(&c->inputs, rows * indexer->n_heads);
    t->index_sums = exec_cut_words(&c->inputs, 2 * rows);
    t->chosen = exec_cut_words(&c->inputs, rows * exec_attention_n_chosen(w));
    t->d_index_q = exec_cut(&c->kept, rows * query_columns(w));
    t->d_index_k = exec_cut(&c->kept, keys);
    t->d_index_weight = exec_cut(&c->kept, rows * indexer->n_heads);
    t->share = exec_cut_words(&c->scratch, backward * exec_attention_n_chosen(w));
    t->d_index_sums = exec_cut_words(&c->scratch, 2 * backward);
    t->d_index_k_sum =
        exec_cut_words(&c->scratch, exec_is_sliced(shape) ? 0 : backward * indexer->head_dim);
}

int64_t
exec_attention_index_memory_bytes(const ExecLayerShape *shape, bool gradient)
{
    const ExecWidths *w = shape->widths;

    return w->seq_len * shape->slice.sequences * w->arch.indexer.head_dim *
           dtype_bytes(gradient ? DTYPE_FP32 : w->storage);
}

/* Behind K and V, or their gradients, of whole sequences. */
static void *
index_memory(const ExecLayer *layer, void *memory, Dtype type)
{
    const ExecWidths *w = layer->widths;

    return (char *)memory +
           exec_padded_bytes(w->seq_len * layer->slice.sequences * w->kv_width * dtype_bytes(type));
}

/* Elements of the keys before this slice's. */
static int64_t
own_at(const ExecLayer *layer)
{
    return layer->slice.context * layer->slice.sequences * layer->widths->arch.indexer.head_dim;
}

/* All keys up to the slice's end. */
static void *
keys_of(const ExecLayer *layer, const ExecAttentionTensors *t)
{
    return layer->memory == NULL ? t->index_k
                                 : index_memory(layer, layer->memory, layer->widths->storage);
}

/* --- products --- */

static ExecLinear
queries_linear(const ExecLayer *layer)
{
    const ExecWidths *w = layer->widths;
    const ModelMla *mla = &w->arch.mla;
    ExecLinear q = exec_layer_linear(layer, reads_latent(w) ? mla->q_lora_rank : w->hidden,
                                     query_columns(w), &layer->tensors->index_q_weight, NULL);

    q.x_stride = reads_latent(w) ? mla->q_lora_rank + mla->kv_lora_rank + mla->qk_rope_head_dim : 0;
    return q;
}

static ExecLinear
key_linear(const ExecLayer *layer)
{
    return exec_layer_linear(layer, layer->widths->hidden, layer->widths->arch.indexer.head_dim,
                             &layer->tensors->index_k_weight, NULL);
}

static ExecLinear
weights_linear(const ExecLayer *layer)
{
    return exec_layer_linear(layer, layer->widths->hidden, layer->widths->arch.indexer.n_heads,
                             &layer->tensors->index_weights, NULL);
}

static ExecGroupNorm
norm_of(const ExecLayer *layer, const ExecAttentionTensors *t)
{
    const int64_t dim = layer->widths->arch.indexer.head_dim;

    return (ExecGroupNorm){
        .rows = exec_slice_rows(&layer->slice),
        .groups = 1,
        .cols = dim,
        .n = dim,
        .centred = true,
        .epsilon = layer->widths->norm_epsilon,
        .x = t->index_raw_k,
        .x_stride = dim,
        .gain = layer->tensors->index_k_gain.weight,
        .shift = layer->tensors->index_k_shift.weight,
        .sums = t->index_sums,
    };
}

/* Turns queries and this slice's keys, or their gradients back. */
static void
rotate(const ExecLayer *layer, void *q, void *k, bool inverse)
{
    const ModelIndexer *indexer = &layer->widths->arch.indexer;

    exec_attention_rotate(layer, indexer->n_heads, indexer->head_dim, query_columns(layer->widths),
                          inverse, q);
    exec_attention_rotate(layer, 1, indexer->head_dim, indexer->head_dim, inverse, k);
}

static ExecIndexer
indexer_of(const ExecLayer *layer, const ExecAttentionTensors *t)
{
    const ModelIndexer *indexer = &layer->widths->arch.indexer;

    return (ExecIndexer){
        .n_heads = indexer->n_heads,
        .head_dim = indexer->head_dim,
        .n_chosen = exec_attention_n_chosen(layer->widths),
        .q = t->index_q,
        .k = keys_of(layer, t),
        .weight = t->index_weight,
        .chosen = t->chosen,
    };
}

void
exec_attention_index_forward(const ExecLayer *layer, const ExecAttentionTensors *t,
                             const void *x_all)
{
    ExecBackend *backend = layer->backend;
    const ExecWidths *w = layer->widths;

    if (!exec_attention_has_indexer(w))
        return;
    const ExecLinear q = queries_linear(layer), k = key_linear(layer);
    const ExecLinear weights = weights_linear(layer);
    const ExecGroupNorm norm = norm_of(layer, t);
    const ExecAttention attention = exec_attention_of(layer, t);
    const ExecIndexer indexer = indexer_of(layer, t);
    void *own =
        layer->memory == NULL ? t->index_k : exec_at(backend, keys_of(layer, t), own_at(layer));
    exec_linear_forward(backend, &q, reads_latent(w) ? t->latents : x_all, NULL, t->index_q);
    exec_linear_forward(backend, &k, x_all, NULL, t->index_raw_k);
    exec_linear_forward(backend, &weights, x_all, NULL, t->index_weight);
    backend->ops->group_norm_sums(backend, &norm);
    backend->ops->group_norm_forward(backend, &norm, own, norm.cols);
    rotate(layer, t->index_q, own, false);
    backend->ops->index_choose(backend, &attention, &indexer);
}

void
exec_attention_index_backward(const ExecLayer *layer, const ExecAttentionTensors *t)
{
    ExecBackend *backend = layer->backend;
    const ExecBackendOps *ops = backend->ops;
    const ExecWidths *w = layer->widths;
    const ExecLayerTensors *p = layer->tensors;
    const int64_t rows = exec_slice_rows(&layer->slice);

    if (!exec_attention_has_indexer(w))
        return;
    const int64_t n_keys = rows * w->arch.indexer.head_dim;
    const ExecGroupNorm norm = norm_of(layer, t);
    const ExecAttention attention = exec_attention_of(layer, t);
    const ExecIndexer indexer = indexer_of(layer, t);
    float *sum = t->d_index_k_sum;
    if (layer->d_memory != NULL)
        sum = index_memory(layer, layer->d_memory, DTYPE_FP32);
    else
        ops->zero(backend, (size_t)n_keys * sizeof *sum, sum);
    ops->attention_shares(backend, &attention, t->share);
    exec_comm_all_reduce(layer->comm, EXEC_DIM_TP, DTYPE_FP32, rows * indexer.n_chosen, t->share);
    ops->index_backward(backend, &attention, &indexer,
                        &(ExecIndexerGradients){.share = t->share,
                                                .factor = layer->loss_factor,
                                                .dq = t->d_index_q,
                                                .d_weight = t->d_index_weight,
                                                .dk = sum});
    /* All later slices have added to these keys. */
    ops->to_storage(backend, n_keys, layer->d_memory == NULL ? sum : sum + own_at(layer),
                    t->d_index_k);
    rotate(layer, t->d_index_q, t->d_index_k, true);
    ops->group_norm_backward_sums(backend, &norm, t->d_index_k, norm.cols, t->d_index_sums);
    ops->group_norm_backward(backend, &norm, t->d_index_sums, t->d_index_k, norm.cols,
                             p->index_k_gain.gradient, p->index_k_shift.gradient);
}

void
exec_attention_index_weight(const ExecLayer *layer, const ExecAttentionTensors *t,
                            const void *x_all)
{
    ExecBackend *backend = layer->backend;
    const ExecWidths *w = layer->widths;

    if (!exec_attention_has_indexer(w))
        return;
    const ExecLinear q = queries_linear(layer), k = key_linear(layer);
    const ExecLinear weights = weights_linear(layer);
    exec_linear_weight(backend, &q, reads_latent(w) ? t->latents : x_all, t->d_index_q);
    exec_linear_weight(backend, &k, x_all, t->d_index_k);
    exec_linear_weight(backend, &weights, x_all, t->d_index_weight);
}
