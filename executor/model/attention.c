#include "executor/model/attention.h"

#include <math.h>

#include "executor/model/linear.h"

/* --- context parallelism --- */

int
exec_slice_chunks(int64_t tokens, int64_t cp, int64_t index, ExecChunk chunks[2])
{
    const int64_t half = tokens / (2 * cp);

    if (cp == 1 || tokens % (2 * cp) != 0) {
        chunks[0] = (ExecChunk){index * (tokens / cp), tokens / cp};
        return 1;
    }
    chunks[0] = (ExecChunk){index * half, half};
    chunks[1] = (ExecChunk){(2 * cp - 1 - index) * half, half};
    return 2;
}

/* Elements of one token's K and V. */
static int64_t
token_elements(const ExecLayer *layer)
{
    return layer->slice.sequences * 2 * layer->widths->kv_width;
}

/* Copies K and V from the order in which the ranks exchange them (scratch->ring: rank after rank, each with its chunks of
 * slice after slice) to the order of the sequence, or @back their gradients, which are rounded to the storage. */
static void
reorder(const ExecLayer *layer, bool back)
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
                void *ring = exec_at(backend, layer->scratch->ring, at * n);
                if (back)
                    backend->ops->to_storage(backend, n_piece, layer->scratch->d_kv + whole, ring);
                else
                    backend->ops->copy(backend, (size_t)exec_storage_bytes(backend, n_piece), ring,
                                       exec_at(backend, layer->scratch->kv, whole));
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

/* K and V of all tokens up to the slice's end, in order: layer->kv, or gathered over cp. */
static const void *
kv_gather(const ExecLayer *layer)
{
    ExecBackend *backend = layer->backend;
    int64_t begin, n_own;

    if (layer->widths->cp == 1)
        return layer->kv;
    const int64_t n = ring_elements(layer, &begin, &n_own);
    backend->ops->copy(backend, (size_t)exec_storage_bytes(backend, n_own), layer->kv,
                       exec_at(backend, layer->scratch->ring, begin));
    exec_comm_all_gather(layer->comm, EXEC_DIM_CP, backend->storage, n, layer->scratch->ring);
    reorder(layer, false);
    return layer->scratch->kv;
}

/* The sum over the ranks of the gradients in scratch->d_kv.  Returns: (borrowed) this rank's @n_own elements of it, in
 * scratch->ring. */
static const void *
kv_reduce(const ExecLayer *layer, int64_t *n_own)
{
    int64_t begin;
    const int64_t n = ring_elements(layer, &begin, n_own);

    reorder(layer, true);
    exec_comm_reduce_scatter(layer->comm, EXEC_DIM_CP, layer->backend->storage, n,
                             layer->scratch->ring);
    return exec_at(layer->backend, layer->scratch->ring, begin);
}

/* --- products --- */

static ExecLinear
q_of(const ExecLayer *layer)
{
    return exec_layer_linear(layer, layer->widths->hidden, layer->widths->q_width,
                             &layer->tensors->q_weight, &layer->tensors->q_bias);
}

static ExecLinear
kv_of(const ExecLayer *layer)
{
    return exec_layer_linear(layer, layer->widths->hidden, 2 * layer->widths->kv_width,
                             &layer->tensors->kv_weight, &layer->tensors->kv_bias);
}

static ExecLinear
proj_of(const ExecLayer *layer)
{
    return exec_layer_linear(layer, layer->widths->q_width, layer->widths->hidden,
                             &layer->tensors->proj_weight, &layer->tensors->proj_bias);
}

/* Where this slice's rows begin in kv and d_kv. */
static int64_t
own_at(const ExecLayer *layer)
{
    const ExecSlice *s = &layer->slice;

    return s->own_context * s->sequences * 2 * layer->widths->kv_width;
}

/* Turns q and this slice's K by their positions, or their gradients back. */
static void
rotate(const ExecLayer *layer, void *q, void *k, bool inverse)
{
    const ExecWidths *w = layer->widths;
    ExecRope rope = {
        .rows = exec_slice_rows(&layer->slice),
        .sequences = layer->slice.sequences,
        .n_heads = w->n_heads,
        .head_dim = w->head_dim,
        .stride = w->q_width,
        .inverse = inverse,
        .position = layer->positions,
        .turns = layer->turns,
    };

    if (!w->rotary)
        return;
    layer->backend->ops->rope(layer->backend, &rope, q);
    rope.n_heads = w->n_kv_heads;
    rope.stride = 2 * w->kv_width;
    layer->backend->ops->rope(layer->backend, &rope, k);
}

/* Attention of chunk @chunk, whose rows begin at @row, against @kv of the whole sequence. */
static ExecAttention
attention_of(const ExecLayer *layer, const ExecChunk *chunk, int64_t row, const void *kv)
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
        .scale = 1.0f / sqrtf((float)w->head_dim),
        .q = exec_at(backend, layer->a.q, row * w->q_width),
        .k = kv,
        .v = exec_at(backend, kv, w->kv_width),
        .kv_stride = 2 * w->kv_width,
        .out = exec_at(backend, layer->a.attention, row * w->q_width),
        .lse = layer->a.lse + row * w->n_heads,
    };
}

/* --- the core --- */

/* Scores, softmax and its product with V, of all chunks; or with @g (nullable), whose members are those of the first
 * row, the gradients of q, k and v from that of attention's output. */
static void
each_chunk(const ExecLayer *layer, const void *kv, const ExecAttentionGradients *g)
{
    ExecBackend *backend = layer->backend;
    const ExecWidths *w = layer->widths;
    ExecChunk chunks[2];
    int64_t row = 0;
    const int n = exec_slice_chunks(layer->slice.tokens, w->cp,
                                    layer->comm->groups[EXEC_DIM_CP].index, chunks);

    for (int i = 0; i < n; i++) {
        const ExecAttention attention = attention_of(layer, &chunks[i], row, kv);
        if (g == NULL) {
            backend->ops->attention_forward(backend, &attention);
        } else {
            ExecAttentionGradients gradients = *g;
            gradients.dout = exec_at(backend, g->dout, row * w->q_width);
            gradients.dq = exec_at(backend, g->dq, row * w->q_width);
            backend->ops->attention_backward(backend, &attention, &gradients);
        }
        row += chunks[i].n * layer->slice.sequences;
    }
}

void
exec_attention_forward(const ExecLayer *layer)
{
    const ExecLinear q = q_of(layer), kv = kv_of(layer), proj = proj_of(layer);
    const void *x = exec_gather_rows(layer, layer->a.norm1);
    void *own_kv = exec_at(layer->backend, layer->kv, own_at(layer));

    exec_linear_forward(layer->backend, &q, x, NULL, layer->a.q);
    exec_linear_forward(layer->backend, &kv, x, NULL, own_kv);
    rotate(layer, layer->a.q, own_kv, false);
    each_chunk(layer, kv_gather(layer), NULL);
    exec_row_split_forward(layer, &proj, layer->a.attention, layer->x, layer->a.x2);
}

/* To the gradients of q, and of this slice's K and V.  With several slices these are summed in layer->d_kv, and over
 * cp ranks in scratch->d_kv, in fp32. */
static void
core_backward(const ExecLayer *layer, const ExecLayerKept *kept)
{
    ExecBackend *backend = layer->backend;
    const ExecBackendOps *ops = backend->ops;
    const bool gathers = layer->widths->cp > 1, sums = gathers || layer->d_kv != NULL;
    const int64_t kv_width = layer->widths->kv_width, n = token_elements(layer);
    const void *kv = kv_gather(layer);
    float *sum = gathers ? layer->scratch->d_kv : layer->d_kv;
    int64_t n_own = layer->slice.own_tokens * n;

    if (layer->core_again)
        each_chunk(layer, kv, NULL);
    if (gathers)
        ops->zero(backend, (size_t)((layer->slice.context + layer->slice.tokens) * n) * sizeof *sum,
                  sum);
    each_chunk(layer, kv,
               &(ExecAttentionGradients){
                   .dout = layer->scratch->d_attention,
                   .dq = kept->d_q,
                   .dk = sums ? sum : kept->d_kv,
                   .dv = sums ? (void *)(sum + kv_width) : exec_at(backend, kept->d_kv, kv_width),
                   .sums = sums,
               });
    if (gathers) {
        const void *own = kv_reduce(layer, &n_own);
        if (layer->d_kv == NULL)
            ops->copy(backend, (size_t)exec_storage_bytes(backend, n_own), own, kept->d_kv);
        else /* each is the sum of a column of one row */
            ops->bias_backward(backend, 1, n_own, own, n_own, layer->d_kv);
    }
    if (layer->d_kv != NULL)
        ops->to_storage(backend, layer->slice.own_tokens * n, layer->d_kv + own_at(layer),
                        kept->d_kv);
}

const void *
exec_attention_backward(const ExecLayer *layer, const ExecLayerKept *kept, const void *dy)
{
    const ExecLinear q = q_of(layer), kv = kv_of(layer), proj = proj_of(layer);
    const ExecLayerScratch *scratch = layer->scratch;

    exec_linear_backward(layer->backend, &proj, dy, false, NULL, scratch->d_attention);
    core_backward(layer, kept);
    rotate(layer, kept->d_q, kept->d_kv, true);
    exec_linear_backward(layer->backend, &q, kept->d_q, false, NULL, scratch->partial);
    exec_linear_backward(layer->backend, &kv, kept->d_kv, true, NULL, scratch->partial);
    return exec_reduce_rows(layer, scratch->partial);
}

void
exec_attention_weight(const ExecLayer *layer, const ExecLayerKept *kept, const void *d_proj)
{
    const ExecLinear q = q_of(layer), kv = kv_of(layer), proj = proj_of(layer);

    exec_linear_weight(layer->backend, &proj, layer->a.attention, d_proj);
    const void *x = exec_gather_rows(layer, layer->a.norm1);
    exec_linear_weight(layer->backend, &q, x, kept->d_q);
    exec_linear_weight(layer->backend, &kv, x, kept->d_kv);
}
