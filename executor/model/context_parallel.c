#include "executor/model/context_parallel.h"

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

/* Copies tokens between the order of the sequence (@whole) and that of the ranks (@ring: rank after
 * rank, each with its chunks of slice after slice). */
static void
reorder(const ExecLayer *layer, void *whole, void *ring, bool to_ring)
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
                void *a = exec_at(backend, whole, (context + chunks[i].begin) * n);
                void *b = exec_at(backend, ring, at * n);
                backend->ops->copy(backend, (size_t)exec_storage_bytes(backend, chunks[i].n * n),
                                   to_ring ? a : b, to_ring ? b : a);
                at += chunks[i].n;
            }
            context += slice->lengths[s];
        }
    }
}

/* Elements of all ranks, and where this rank's lie in the ring's order. */
static int64_t
ring_elements(const ExecLayer *layer, int64_t *begin, int64_t *n_own)
{
    const ExecSlice *slice = &layer->slice;
    const int64_t n = (slice->context + slice->tokens) * token_elements(layer);

    *n_own = exec_comm_chunk(layer->comm, EXEC_DIM_CP, n, begin);
    return n;
}

const void *
exec_kv_gather(const ExecLayer *layer)
{
    ExecBackend *backend = layer->backend;
    int64_t begin, n_own;

    if (layer->widths->cp == 1)
        return layer->kv;
    const int64_t n = ring_elements(layer, &begin, &n_own);
    backend->ops->copy(backend, (size_t)exec_storage_bytes(backend, n_own), layer->kv,
                       exec_at(backend, layer->scratch->ring, begin));
    exec_comm_all_gather(layer->comm, EXEC_DIM_CP, backend->storage, n, layer->scratch->ring);
    reorder(layer, layer->scratch->kv, layer->scratch->ring, false);
    return layer->scratch->kv;
}

void
exec_kv_reduce(const ExecLayer *layer)
{
    ExecBackend *backend = layer->backend;
    int64_t begin, n_own;
    const int64_t n = ring_elements(layer, &begin, &n_own);

    reorder(layer, layer->scratch->d_kv, layer->scratch->ring, true);
    exec_comm_reduce_scatter(layer->comm, EXEC_DIM_CP, backend->storage, n, layer->scratch->ring);
    backend->ops->add(backend, n_own, exec_at(backend, layer->scratch->ring, begin), layer->d_kv);
}
