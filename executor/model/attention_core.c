#include <math.h>

#include "executor/model/attention_parts.h"

void
exec_attention_cut_core(const ExecLayerShape *shape, ExecMixerCutters *c, ExecAttentionTensors *t)
{
    const ExecWidths *w = shape->widths;
    const int64_t rows = exec_slice_rows(&shape->slice), lse = rows * w->n_heads;
    const bool forward = exec_is_forward(shape), backward = exec_is_backward(shape);
    const int64_t all = w->cp == 1 ? 0 : w->seq_len * shape->slice.sequences * w->kv_width;

    /* With recompute selective, what lies between q, k, v and attention's output is not kept. */
    if (exec_is_again(shape, PLAN_MODULE_CORE_ATTENTION))
        t->lse = exec_cut_words(&c->scratch, forward || backward ? lse : 0);
    else
        t->lse = exec_cut_words(&c->inputs, lse);
    t->kv = exec_cut(&c->scratch, forward || backward ? all : 0);
    t->d_kv_sum = exec_cut_words(&c->scratch, backward ? all : 0);
    t->ring = exec_cut(&c->scratch, forward || backward ? all : 0);
}

/* --- context parallelism --- */

/* Elements of one token's K and V. */
static int64_t
token_elements(const ExecLayer *layer)
{
    return layer->slice.sequences * layer->widths->kv_width;
}

/* Copies K and V from the order in which the ranks exchange them (t->ring: rank after rank, each with its chunks of
 * slice after slice) to the order of the sequence, or @back their gradients, which are rounded to the storage. */
static void
reorder(const ExecLayer *layer, const ExecAttentionTensors *t, bool back)
{
    const ExecSlice *slice = &layer->slice;
    ExecBackend *backend = layer->backend;
    const int64_t n = token_elements(layer), cp = layer->widths->cp;
    int64_t at = 0;

    for (int64_t rank = 0; rank < cp; rank++) {
        int64_t context = 0;
        for (int32_t s = 0; s <= slice->index; s++) {
            ExecChunk chunks[2];
            const int n_chunks = exec_slice_chunks(slice->lengths[s], cp, rank, chunks);
            for (int i = 0; i < n_chunks; i++) {
                const int64_t whole = (context + chunks[i].begin) * n, n_piece = chunks[i].n * n;
                void *ring = exec_at(backend, t->ring, at * n);
                if (back)
                    backend->ops->to_storage(backend, n_piece, t->d_kv_sum + whole, ring);
                else
                    backend->ops->copy(backend, (size_t)exec_storage_bytes(backend, n_piece), ring,
                                       exec_at(backend, t->kv, whole));
                at += chunks[i].n;
            }
            context += slice->lengths[s];
        }
    }
}

/* Returns: the elements of all ranks' K and V; @begin, @n_own  (out) which of them, in the order of
 * the ring, are this rank's. */
static int64_t
ring_elements(const ExecLayer *layer, int64_t *begin, int64_t *n_own)
{
    const ExecSlice *slice = &layer->slice;
    const int64_t n = (slice->context + slice->tokens) * token_elements(layer);

    *n_own = exec_comm_chunk(layer->comm, EXEC_DIM_CP, n, begin);
    return n;
}

/* Those of this rank. */
static const void *
own_kv(const ExecLayer *layer, const ExecAttentionTensors *t)
{
    return layer->memory != NULL ? layer->memory : t->own_kv;
}

/* K and V of all tokens up to the slice's end, in order: this rank's, or gathered over cp. */
static const void *
kv_gather(const ExecLayer *layer, const ExecAttentionTensors *t)
{
    ExecBackend *backend = layer->backend;
    int64_t begin, n_own;

    if (layer->widths->cp == 1)
        return own_kv(layer, t);
    const int64_t n = ring_elements(layer, &begin, &n_own);
    backend->ops->copy(backend, (size_t)exec_storage_bytes(backend, n_own), own_kv(layer, t),
                       exec_at(backend, t->ring, begin));
    exec_comm_all_gather(layer->comm, EXEC_DIM_CP, backend->storage, n, t->ring);
    reorder(layer, t, false);
    return t->kv;
}

/* The sum over the ranks of the gradients in t->d_kv_sum.  Returns: (borrowed) this rank's @n_own
 * elements of it, in t->ring. */
static const void *
kv_reduce(const ExecLayer *layer, const ExecAttentionTensors *t, int64_t *n_own)
{
    int64_t begin;
    const int64_t n = ring_elements(layer, &begin, n_own);

    reorder(layer, t, true);
    exec_comm_reduce_scatter(layer->comm, EXEC_DIM_CP, layer->backend->storage, n, t->ring);
    return exec_at(layer->backend, t->ring, begin);
}

/* --- the core --- */

/* Attention of chunk @chunk, whose rows begin at @row, against @kv of the whole sequence. */
static ExecAttention
attention_of(const ExecLayer *layer, const ExecAttentionTensors *t, const ExecChunk *chunk,
             int64_t row, const void *kv)
{
    const ExecWidths *w = layer->widths;
    const ExecBackend *backend = layer->backend;

    return (ExecAttention){
        .sequences = layer->slice.sequences,
        .n_heads = w->n_heads,
        .n_kv_heads = w->n_kv_heads,
        .head_dim = w->head_dim,
        .tokens = chunk->n,
        .context = layer->slice.context + chunk->begin,
        .scale = w->arch.attention_scale > 0.0 ? (float)w->arch.attention_scale
                                               : 1.0f / sqrtf((float)w->head_dim),
        .q = exec_at(backend, t->q, row * w->q_width),
        .k = kv,
        .v = exec_at(backend, kv, w->k_width),
        .kv_stride = w->kv_width,
        .out = exec_at(backend, t->attention, row * w->out_width),
        .lse = t->lse + row * w->n_heads,
        .v_dim = w->v_dim,
        .window = w->arch.window,
        .chunk = w->arch.chunk,
        .cap = (float)w->arch.attention_cap,
        .alibi_heads = model_positions(&w->arch) == MODEL_POSITIONS_ALIBI ? w->arch.n_heads : 0,
        .first_head = layer->comm->groups[EXEC_DIM_TP].index * w->n_heads,
        .sink = layer->tensors->sinks.weight,
        .chosen = t->chosen == NULL ? NULL : t->chosen + row * exec_attention_n_chosen(w),
        .n_chosen = exec_attention_n_chosen(w),
    };
}

ExecAttention
exec_attention_of(const ExecLayer *layer, const ExecAttentionTensors *t)
{
    const ExecChunk whole = {0, layer->slice.tokens};

    return attention_of(layer, t, &whole, 0, own_kv(layer, t));
}

/* Scores, softmax and its product with V, of all chunks; or with @g (nullable), whose members are those of the first
 * row, the gradients of q, k and v from that of attention's output. */
static void
each_chunk(const ExecLayer *layer, const ExecAttentionTensors *t, const void *kv,
           const ExecAttentionGradients *g)
{
    ExecBackend *backend = layer->backend;
    const ExecWidths *w = layer->widths;
    ExecChunk chunks[2];
    int64_t row = 0;
    const int n = exec_slice_chunks(layer->slice.tokens, w->cp,
                                    layer->comm->groups[EXEC_DIM_CP].index, chunks);

    for (int i = 0; i < n; i++) {
        const ExecAttention attention = attention_of(layer, t, &chunks[i], row, kv);
        if (g == NULL) {
            backend->ops->attention_forward(backend, &attention);
        } else {
            ExecAttentionGradients gradients = *g;
            gradients.dout = exec_at(backend, g->dout, row * w->out_width);
            gradients.dq = exec_at(backend, g->dq, row * w->q_width);
            backend->ops->attention_backward(backend, &attention, &gradients);
        }
        row += chunks[i].n * layer->slice.sequences;
    }
}

void
exec_attention_core_forward(const ExecLayer *layer, const ExecAttentionTensors *t)
{
    each_chunk(layer, t, kv_gather(layer, t), NULL);
}

/* To the gradients of q, and of this slice's K and V.  With several slices these are summed in
 * layer->d_memory, and over cp ranks in t->d_kv_sum, in fp32. */
void
exec_attention_core_backward(const ExecLayer *layer, const ExecAttentionTensors *t)
{
    ExecBackend *backend = layer->backend;
    const ExecBackendOps *ops = backend->ops;
    float *slices = layer->d_memory;
    const bool gathers = layer->widths->cp > 1, sums = gathers || slices != NULL;
    const int64_t k_width = layer->widths->k_width, n = token_elements(layer);
    const void *kv = kv_gather(layer, t);
    float *sum = gathers ? t->d_kv_sum : slices;
    int64_t n_own = layer->slice.own_tokens * n;

    if (layer->again >> PLAN_MODULE_CORE_ATTENTION & 1)
        each_chunk(layer, t, kv, NULL);
    if (gathers)
        ops->zero(backend, (size_t)((layer->slice.context + layer->slice.tokens) * n) * sizeof *sum,
                  sum);
    each_chunk(layer, t, kv,
               &(ExecAttentionGradients){
                   .dout = t->d_attention,
                   .dq = t->d_q,
                   .dk = sums ? sum : t->d_kv,
                   .dv = sums ? (void *)(sum + k_width) : exec_at(backend, t->d_kv, k_width),
                   .sums = sums,
                   .dsink = layer->tensors->sinks.gradient,
               });
    if (gathers) {
        const void *own = kv_reduce(layer, t, &n_own);
        if (slices == NULL)
            ops->copy(backend, (size_t)exec_storage_bytes(backend, n_own), own, t->d_kv);
        else /* each is the sum of a column of one row */
            ops->bias_backward(backend, 1, n_own, own, n_own, slices);
    }
    if (slices != NULL)
        ops->to_storage(backend, layer->slice.own_tokens * n, slices + exec_attention_own_at(layer),
                        t->d_kv);
}
