#include "executor/model/attention.h"

#include <math.h>

#include "executor/model/layout_build.h"
#include "executor/model/linear.h"

/* --- parameters --- */

/* K/V heads are split over tp like those of q, or replicated where there are fewer than tp. */
static ExecShard
kv_shard(const ExecLayoutBuilder *b, int64_t rows)
{
    const ModelArch *arch = &b->w->arch;
    const int64_t kv = arch->n_kv_heads * arch->head_dim;
    const int64_t first = b->o->tp_index * arch->n_kv_heads / b->w->tp;
    ExecShard shard = exec_shard_whole(rows, 2 * kv);

    shard.n_runs = 2;
    for (int64_t i = 0; i < 2; i++) {
        shard.runs[i].begin = i * kv + first * arch->head_dim;
        shard.runs[i].n = b->w->kv_width;
    }
    return shard;
}

static void
add_parameters(ExecLayoutBuilder *b)
{
    const ExecWidths *w = b->w;
    const ExecShare share = w->arch.n_kv_heads < w->tp ? EXEC_SHARE_KV : EXEC_SHARE_OWN;
    const int64_t q = w->tp * w->q_width, index = b->o->tp_index;

    exec_layout_add_weight(b, "q.weight", EXEC_LAYER_TENSOR(q_weight),
                           exec_shard_columns(w->hidden, q, 1, index, w->tp), EXEC_SHARE_OWN,
                           b->deviation);
    exec_layout_add_weight(b, "kv.weight", EXEC_LAYER_TENSOR(kv_weight), kv_shard(b, w->hidden),
                           share, b->deviation);
    if (w->arch.qkv_bias) {
        exec_layout_add_bias(b, "q.bias", EXEC_LAYER_TENSOR(q_bias),
                             exec_shard_columns(1, q, 1, index, w->tp), EXEC_SHARE_OWN);
        exec_layout_add_bias(b, "kv.bias", EXEC_LAYER_TENSOR(kv_bias), kv_shard(b, 1), share);
    }
    exec_layout_add_weight(b, "proj.weight", EXEC_LAYER_TENSOR(proj_weight),
                           exec_shard_rows(q, w->hidden, index * w->q_width, w->q_width),
                           EXEC_SHARE_OWN, b->projection);
    if (model_has_proj_bias(&w->arch))
        exec_layout_add_bias(b, "proj.bias", EXEC_LAYER_TENSOR(proj_bias),
                             exec_shard_whole(1, w->hidden), EXEC_SHARE_OWN);
}

/* --- what lies in the blocks --- */

typedef struct {
    void *q;           /* [rows, q_width] */
    void *own_kv;      /* [rows, 2 kv_width] this slice's K columns, then V; in layer->memory where
                        there are several slices */
    void *attention;   /* [rows, q_width] */
    float *lse;        /* [rows, n_heads] */
    void *d_q;         /* [rows, q_width] */
    void *d_kv;        /* [rows, 2 kv_width] */
    void *d_attention; /* [rows, q_width] */
    void *kv;          /* [seq_len, sequences, 2 kv_width] of all ranks; cp > 1 only */
    float *d_kv_sum;   /* its gradient */
    void *ring;        /* either in the order in which cp ranks exchange it */
} Tensors;

/* With recompute selective, what lies between q, k, v and attention's output is not kept. */
static Tensors
cut_tensors(const ExecLayerShape *shape, ExecMixerCutters *c)
{
    const ExecWidths *w = shape->widths;
    const int64_t rows = exec_slice_rows(&shape->slice), lse = rows * w->n_heads;
    const bool forward = exec_is_forward(shape), backward = exec_is_backward(shape);
    const bool core_again = shape->recompute == PLAN_RECOMPUTE_SELECTIVE;
    const int64_t all = w->cp == 1 ? 0 : w->seq_len * shape->slice.sequences * 2 * w->kv_width;
    Tensors t;

    t.attention = exec_cut(&c->products, rows * w->q_width);
    t.q = exec_cut(&c->inputs, rows * w->q_width);
    t.own_kv = exec_cut(&c->inputs, exec_is_sliced(shape) ? 0 : rows * 2 * w->kv_width);
    t.d_q = exec_cut(&c->kept, rows * w->q_width);
    t.d_kv = exec_cut(&c->kept, rows * 2 * w->kv_width);
    t.d_attention = exec_cut(&c->scratch, backward ? rows * w->q_width : 0);
    t.lse = core_again ? exec_cut_words(&c->scratch, forward || backward ? lse : 0)
                       : exec_cut_words(&c->inputs, lse);
    t.kv = exec_cut(&c->scratch, forward || backward ? all : 0);
    t.d_kv_sum = exec_cut_words(&c->scratch, backward ? all : 0);
    t.ring = exec_cut(&c->scratch, forward || backward ? all : 0);
    return t;
}

static void
cut(const ExecLayerShape *shape, ExecMixerCutters *cutters)
{
    cut_tensors(shape, cutters);
}

/* K and V of this rank's tokens of whole sequences, or the sums of their gradients in fp32. */
static int64_t
memory_bytes(const ExecLayerShape *shape, bool gradient)
{
    const ExecWidths *w = shape->widths;

    if (!exec_is_sliced(shape))
        return 0;
    return w->seq_len / w->cp * shape->slice.sequences * 2 * w->kv_width *
           dtype_bytes(gradient ? DTYPE_FP32 : w->storage);
}

/* Where this slice's rows begin in layer->memory and layer->d_memory. */
static int64_t
own_at(const ExecLayer *layer)
{
    const ExecSlice *s = &layer->slice;

    return s->own_context * s->sequences * 2 * layer->widths->kv_width;
}

/* @kept  nullable in F */
static Tensors
tensors_of(const ExecLayer *layer, void *kept)
{
    const ExecLayerShape shape = exec_layer_shape(layer);
    ExecMixerCutters cutters = exec_mixer_cutters(layer, kept);
    Tensors t = cut_tensors(&shape, &cutters);

    if (exec_is_sliced(&shape))
        t.own_kv = exec_at(layer->backend, layer->memory, own_at(layer));
    return t;
}

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

/* Copies K and V from the order in which the ranks exchange them (t->ring: rank after rank, each with its chunks of
 * slice after slice) to the order of the sequence, or @back their gradients, which are rounded to the storage. */
static void
reorder(const ExecLayer *layer, const Tensors *t, bool back)
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
own_kv(const ExecLayer *layer, const Tensors *t)
{
    return layer->memory != NULL ? layer->memory : t->own_kv;
}

/* K and V of all tokens up to the slice's end, in order: this rank's, or gathered over cp. */
static const void *
kv_gather(const ExecLayer *layer, const Tensors *t)
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
kv_reduce(const ExecLayer *layer, const Tensors *t, int64_t *n_own)
{
    int64_t begin;
    const int64_t n = ring_elements(layer, &begin, n_own);

    reorder(layer, t, true);
    exec_comm_reduce_scatter(layer->comm, EXEC_DIM_CP, layer->backend->storage, n, t->ring);
    return exec_at(layer->backend, t->ring, begin);
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
attention_of(const ExecLayer *layer, const Tensors *t, const ExecChunk *chunk, int64_t row,
             const void *kv)
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
        .q = exec_at(backend, t->q, row * w->q_width),
        .k = kv,
        .v = exec_at(backend, kv, w->kv_width),
        .kv_stride = 2 * w->kv_width,
        .out = exec_at(backend, t->attention, row * w->q_width),
        .lse = t->lse + row * w->n_heads,
    };
}

/* --- the core --- */

/* Scores, softmax and its product with V, of all chunks; or with @g (nullable), whose members are those of the first
 * row, the gradients of q, k and v from that of attention's output. */
static void
each_chunk(const ExecLayer *layer, const Tensors *t, const void *kv,
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
            gradients.dout = exec_at(backend, g->dout, row * w->q_width);
            gradients.dq = exec_at(backend, g->dq, row * w->q_width);
            backend->ops->attention_backward(backend, &attention, &gradients);
        }
        row += chunks[i].n * layer->slice.sequences;
    }
}

static void
forward(const ExecLayer *layer, const void *x, const void *residual, void *y)
{
    const ExecLinear q = q_of(layer), kv = kv_of(layer), proj = proj_of(layer);
    const Tensors t = tensors_of(layer, NULL);

    x = exec_gather_rows(layer, x);
    exec_linear_forward(layer->backend, &q, x, NULL, t.q);
    exec_linear_forward(layer->backend, &kv, x, NULL, t.own_kv);
    rotate(layer, t.q, t.own_kv, false);
    each_chunk(layer, &t, kv_gather(layer, &t), NULL);
    exec_row_split_forward(layer, &proj, t.attention, residual, y);
}

/* To the gradients of q, and of this slice's K and V.  With several slices these are summed in
 * layer->d_memory, and over cp ranks in t->d_kv_sum, in fp32. */
static void
core_backward(const ExecLayer *layer, const Tensors *t)
{
    ExecBackend *backend = layer->backend;
    const ExecBackendOps *ops = backend->ops;
    float *slices = layer->d_memory;
    const bool gathers = layer->widths->cp > 1, sums = gathers || slices != NULL;
    const int64_t kv_width = layer->widths->kv_width, n = token_elements(layer);
    const void *kv = kv_gather(layer, t);
    float *sum = gathers ? t->d_kv_sum : slices;
    int64_t n_own = layer->slice.own_tokens * n;

    if (layer->recompute == PLAN_RECOMPUTE_SELECTIVE)
        each_chunk(layer, t, kv, NULL);
    if (gathers)
        ops->zero(backend, (size_t)((layer->slice.context + layer->slice.tokens) * n) * sizeof *sum,
                  sum);
    each_chunk(layer, t, kv,
               &(ExecAttentionGradients){
                   .dout = t->d_attention,
                   .dq = t->d_q,
                   .dk = sums ? sum : t->d_kv,
                   .dv = sums ? (void *)(sum + kv_width) : exec_at(backend, t->d_kv, kv_width),
                   .sums = sums,
               });
    if (gathers) {
        const void *own = kv_reduce(layer, t, &n_own);
        if (slices == NULL)
            ops->copy(backend, (size_t)exec_storage_bytes(backend, n_own), own, t->d_kv);
        else /* each is the sum of a column of one row */
            ops->bias_backward(backend, 1, n_own, own, n_own, slices);
    }
    if (slices != NULL)
        ops->to_storage(backend, layer->slice.own_tokens * n, slices + own_at(layer), t->d_kv);
}

static void *
backward(const ExecLayer *layer, void *kept, const void *dy)
{
    const ExecLinear q = q_of(layer), kv = kv_of(layer), proj = proj_of(layer);
    const Tensors t = tensors_of(layer, kept);
    void *dx = layer->scratch->partial;

    exec_linear_backward(layer->backend, &proj, dy, false, NULL, t.d_attention);
    core_backward(layer, &t);
    rotate(layer, t.d_q, t.d_kv, true);
    exec_linear_backward(layer->backend, &q, t.d_q, false, NULL, dx);
    exec_linear_backward(layer->backend, &kv, t.d_kv, true, NULL, dx);
    return exec_reduce_rows(layer, dx);
}

static void
weight(const ExecLayer *layer, const void *x, void *kept, const void *dy)
{
    const ExecLinear q = q_of(layer), kv = kv_of(layer), proj = proj_of(layer);
    const Tensors t = tensors_of(layer, kept);

    exec_linear_weight(layer->backend, &proj, t.attention, dy);
    x = exec_gather_rows(layer, x);
    exec_linear_weight(layer->backend, &q, x, t.d_q);
    exec_linear_weight(layer->backend, &kv, x, t.d_kv);
}

const ExecMixer exec_mixer_attention = {
    .add_parameters = add_parameters,
    .cut = cut,
    .memory_bytes = memory_bytes,
    .forward = forward,
    .backward = backward,
    .weight = weight,
};
