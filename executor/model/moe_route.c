#include "executor/model/moe_route.h"

#include <string.h>

/* --- views --- */

static int64_t
routing_bytes(const ExecMoe *moe)
{
    return 5 * exec_moe_padded(moe->n_sent, 4);
}

ExecMoeRouting
exec_moe_routing(const ExecMoe *moe)
{
    char *at = moe->routing.data;
    ExecMoeRouting r;

    r.expert = exec_moe_cut(&at, moe->n_sent, 4);
    r.weight = exec_moe_cut(&at, moe->n_sent, 4);
    r.slot = exec_moe_cut(&at, moe->n_sent, 4);
    r.row = exec_moe_cut(&at, moe->n_sent, 4);
    r.choice = exec_moe_cut(&at, moe->n_sent, 4);
    return r;
}

static int64_t
experts_bytes(const ExecWidths *w, int64_t n)
{
    const int64_t e = dtype_bytes(w->storage);

    return 3 * exec_moe_padded(n, 4) + exec_moe_padded(2 * n * w->expert_hidden, e);
}

static int64_t
products_bytes(const ExecWidths *w, int64_t n)
{
    const int64_t e = dtype_bytes(w->storage);

    return exec_moe_padded(n * w->hidden, e) + exec_moe_padded(n * w->expert_hidden, e);
}

ExecMoeExperts
exec_moe_experts(const ExecWidths *w, const ExecMoe *moe)
{
    const int64_t n = moe->n_received, e = dtype_bytes(w->storage);
    char *at = moe->experts.data, *products = moe->products.data;
    ExecMoeExperts x = {0};

    x.x = exec_moe_cut(&products, n * w->hidden, e);
    x.active = exec_moe_cut(&products, n * w->expert_hidden, e);
    if (at == NULL)
        return x;
    x.arrived = exec_moe_cut(&at, n, 4);
    x.inverse = exec_moe_cut(&at, n, 4);
    x.weight = exec_moe_cut(&at, n, 4);
    x.up = exec_moe_cut(&at, 2 * n * w->expert_hidden, e);
    return x;
}

void
exec_moe_clear_inputs(ExecMoe *moe, ExecPool *pool)
{
    exec_pool_give(pool, &moe->routing);
    exec_pool_give(pool, &moe->experts);
}

void
exec_moe_clear(ExecMoe *moe, ExecPool *pool)
{
    exec_moe_clear_inputs(moe, pool);
    exec_pool_give(pool, &moe->products);
    exec_pool_give(pool, &moe->kept);
    g_free(moe->sent);
    g_free(moe->received);
    g_free(moe->expert_begin);
    *moe = (ExecMoe){0};
}

bool
exec_moe_take(const ExecLayer *layer, TraceMemoryOwner owner, int64_t n_bytes, ExecBlock *block)
{
    GError *error = NULL;

    if (layer->comm->error != NULL)
        return false;
    if (block->data == NULL && !exec_pool_take(layer->pool, owner, n_bytes, block, &error))
        exec_comm_fail(layer->comm, error);
    return layer->comm->error == NULL;
}

/* --- which rows, where to --- */

int64_t
exec_moe_own_rows(const ExecLayer *layer, int64_t *begin)
{
    const int64_t rows = exec_slice_rows(&layer->slice);

    if (layer->widths->sequence_parallel) {
        *begin = 0;
        return exec_local_rows(layer->widths, rows);
    }
    return exec_comm_chunk(layer->comm, EXEC_DIM_TP, rows, begin);
}

void *
exec_moe_own_input(const ExecLayer *layer)
{
    int64_t begin;

    exec_moe_own_rows(layer, &begin);
    return exec_at(layer->backend, layer->a.norm2, begin * layer->widths->hidden);
}

/* In place of the router's scores: row i's choices are experts i top_k, i top_k + 1, ..., as likely
 * as each other. */
static void
balance(const ExecLayer *layer, void *scores)
{
    const ExecWidths *w = layer->widths;
    const int64_t n_rows = layer->moe->n_rows;
    const size_t n = (size_t)(n_rows * w->n_experts);
    g_autofree float *even = g_new0(float, MAX(n, 1));

    for (int64_t i = 0; i < n_rows * w->top_k; i++)
        even[i / w->top_k * w->n_experts + i % w->n_experts] = 1;
    layer->backend->ops->upload(layer->backend, n * sizeof *even, even, scores);
}

/* Scores, choices and p of this rank's rows. */
static bool
choose(const ExecLayer *layer)
{
    const ExecWidths *w = layer->widths;
    ExecMoe *moe = layer->moe;
    ExecBackend *backend = layer->backend;
    ExecBlock scores = {0};
    int64_t begin;

    moe->n_rows = exec_moe_own_rows(layer, &begin);
    moe->n_sent = moe->n_rows * w->top_k;
    if (!exec_moe_take(layer, TRACE_MEMORY_ACTIVATIONS, routing_bytes(moe), &moe->routing) ||
        !exec_moe_take(layer, TRACE_MEMORY_WORKSPACE, moe->n_rows * w->n_experts * 4, &scores))
        return false;
    const ExecMoeRouting r = exec_moe_routing(moe);
    exec_gemm(backend, &(ExecGemm){
                           .c_fp32 = true,
                           .m = moe->n_rows,
                           .n = w->n_experts,
                           .k = w->hidden,
                           .a = exec_moe_own_input(layer),
                           .lda = w->hidden,
                           .b = layer->tensors->router_weight.weight,
                           .ldb = w->n_experts,
                           .c = scores.data,
                           .ldc = w->n_experts,
                       });
    if (w->balance_experts)
        balance(layer, scores.data);
    backend->ops->route(backend, moe->n_rows, w->n_experts, w->top_k, scores.data, r.expert,
                        r.weight);
    exec_pool_give(layer->pool, &scores);
    return true;
}

/* Sorts the choices by expert, stable: @slot, @row and @choice; @begin (out) [n_experts + 1]. */
static bool
sort_choices(const ExecLayer *layer, int64_t *begin)
{
    const ExecWidths *w = layer->widths;
    const ExecMoe *moe = layer->moe;
    ExecBackend *backend = layer->backend;
    const ExecMoeRouting r = exec_moe_routing(moe);
    const size_t n = (size_t)moe->n_sent, n_bytes = n * sizeof(int32_t);
    g_autofree int32_t *expert = g_new(int32_t, MAX(n, 1)), *slot = g_new(int32_t, MAX(n, 1));
    g_autofree int32_t *row = g_new(int32_t, MAX(n, 1)), *choice = g_new(int32_t, MAX(n, 1));
    g_autofree int64_t *next = g_new0(int64_t, (size_t)w->n_experts + 1);

    backend->ops->download(backend, n_bytes, r.expert, expert);
    if (!backend->ops->synchronize(backend, &layer->comm->error))
        return false;
    memset(begin, 0, ((size_t)w->n_experts + 1) * sizeof *begin);
    for (size_t i = 0; i < n; i++)
        begin[expert[i] + 1]++;
    for (int64_t e = 0; e < w->n_experts; e++)
        begin[e + 1] += begin[e];
    memcpy(next, begin, ((size_t)w->n_experts + 1) * sizeof *next);
    for (size_t i = 0; i < n; i++) {
        slot[i] = (int32_t)next[expert[i]]++;
        row[slot[i]] = (int32_t)((int64_t)i / w->top_k);
        choice[slot[i]] = (int32_t)i;
    }
    backend->ops->upload(backend, n_bytes, slot, r.slot);
    backend->ops->upload(backend, n_bytes, row, r.row);
    backend->ops->upload(backend, n_bytes, choice, r.choice);
    return true;
}

/* Tells every rank how many rows come to each of its experts.  @counts  (out) [ep, n_local]. */
static bool
exchange_counts(const ExecLayer *layer, const int64_t *begin, int64_t *counts)
{
    const ExecWidths *w = layer->widths;
    ExecBackend *backend = layer->backend;
    const int32_t ep = layer->comm->groups[EXEC_DIM_EP].n;
    const size_t n_bytes = (size_t)w->n_experts * sizeof *counts;
    g_autofree int64_t *lengths = g_new(int64_t, (size_t)ep);
    ExecBlock block = {0};

    for (int64_t e = 0; e < w->n_experts; e++)
        counts[e] = begin[e + 1] - begin[e];
    for (int32_t i = 0; i < ep; i++)
        lengths[i] = w->n_local_experts * (int64_t)sizeof *counts;
    if (!exec_moe_take(layer, TRACE_MEMORY_WORKSPACE, 2 * (int64_t)n_bytes, &block))
        return false;
    char *out = block.data, *in = out + n_bytes;
    backend->ops->upload(backend, n_bytes, counts, out);
    exec_comm_all_to_all(
        layer->comm, EXEC_DIM_EP,
        &(ExecExchange){.out = out, .out_bytes = lengths, .in = in, .in_bytes = lengths});
    backend->ops->download(backend, n_bytes, in, counts);
    const bool ok =
        layer->comm->error == NULL && backend->ops->synchronize(backend, &layer->comm->error);
    exec_pool_give(layer->pool, &block);
    return ok;
}

/* What arrives lies by (rank, expert); the experts want it by (expert, rank). */
static void
sort_arrivals(const ExecLayer *layer, const int64_t *counts)
{
    const ExecWidths *w = layer->widths;
    const ExecMoe *moe = layer->moe;
    const ExecMoeExperts x = exec_moe_experts(w, moe);
    const size_t n = (size_t)moe->n_received;
    const int64_t n_local = w->n_local_experts;
    const int32_t ep = layer->comm->groups[EXEC_DIM_EP].n;
    g_autofree int32_t *arrived = g_new(int32_t, MAX(n, 1)), *place = g_new(int32_t, MAX(n, 1));
    int64_t to = 0;

    for (int64_t e = 0; e < n_local; e++)
        for (int32_t rank = 0; rank < ep; rank++) {
            int64_t from = moe->received[rank];
            for (int64_t before = 0; before < e; before++)
                from += counts[rank * n_local + before];
            for (int64_t i = 0; i < counts[rank * n_local + e]; i++, to++, from++) {
                arrived[to] = (int32_t)from;
                place[from] = (int32_t)to;
            }
        }
    layer->backend->ops->upload(layer->backend, n * sizeof *arrived, arrived, x.arrived);
    layer->backend->ops->upload(layer->backend, n * sizeof *place, place, x.inverse);
}

bool
exec_moe_plan_routes(const ExecLayer *layer)
{
    const ExecWidths *w = layer->widths;
    ExecMoe *moe = layer->moe;
    const int32_t ep = layer->comm->groups[EXEC_DIM_EP].n;
    const int64_t n_local = w->n_local_experts;
    g_autofree int64_t *begin = g_new(int64_t, (size_t)w->n_experts + 1);
    g_autofree int64_t *counts = g_new(int64_t, (size_t)w->n_experts);

    if (!choose(layer) || !sort_choices(layer, begin) || !exchange_counts(layer, begin, counts))
        return false;
    moe->sent = g_new0(int64_t, (size_t)ep + 1);
    moe->received = g_new0(int64_t, (size_t)ep + 1);
    moe->expert_begin = g_new0(int64_t, (size_t)n_local + 1);
    for (int32_t rank = 0; rank < ep; rank++) {
        moe->sent[rank + 1] = begin[(rank + 1) * n_local];
        moe->received[rank + 1] = moe->received[rank];
        for (int64_t e = 0; e < n_local; e++) {
            moe->received[rank + 1] += counts[rank * n_local + e];
            moe->expert_begin[e + 1] += counts[rank * n_local + e];
        }
    }
    for (int64_t e = 0; e < n_local; e++)
        moe->expert_begin[e + 1] += moe->expert_begin[e];
    moe->n_received = moe->received[ep];
    if (!exec_moe_take(layer, TRACE_MEMORY_ACTIVATIONS, experts_bytes(w, moe->n_received),
                       &moe->experts) ||
        !exec_moe_take(layer, TRACE_MEMORY_ACTIVATIONS, products_bytes(w, moe->n_received),
                       &moe->products))
        return false;
    sort_arrivals(layer, counts);
    return true;
}

/* --- moving rows --- */

void
exec_moe_exchange_rows(const ExecLayer *layer, int64_t row_bytes, bool back, const void *out,
                       void *in)
{
    const ExecMoe *moe = layer->moe;
    const int32_t ep = layer->comm->groups[EXEC_DIM_EP].n;
    g_autofree int64_t *sent = g_new(int64_t, (size_t)ep), *received = g_new(int64_t, (size_t)ep);

    for (int32_t i = 0; i < ep; i++) {
        sent[i] = (moe->sent[i + 1] - moe->sent[i]) * row_bytes;
        received[i] = (moe->received[i + 1] - moe->received[i]) * row_bytes;
    }
    exec_comm_all_to_all(layer->comm, EXEC_DIM_EP,
                         &(ExecExchange){.out = out,
                                         .out_bytes = back ? received : sent,
                                         .in = in,
                                         .in_bytes = back ? sent : received});
}

bool
exec_moe_wagon_take(const ExecLayer *layer, ExecMoeWagon *wagon)
{
    const ExecMoe *moe = layer->moe;
    const int64_t n = MAX(moe->n_sent, moe->n_received) * layer->widths->hidden;
    const int64_t n_bytes = exec_moe_padded(n, dtype_bytes(layer->widths->storage));

    *wagon = (ExecMoeWagon){0};
    if (!exec_moe_take(layer, TRACE_MEMORY_WORKSPACE, 2 * n_bytes, &wagon->block))
        return false;
    wagon->out = wagon->block.data;
    wagon->in = (char *)wagon->out + n_bytes;
    return true;
}

void
exec_moe_send_rows(const ExecLayer *layer, const ExecMoeWagon *wagon, const void *x, void *y)
{
    const ExecMoe *moe = layer->moe;
    ExecBackend *backend = layer->backend;
    const int64_t row_bytes = exec_storage_bytes(backend, layer->widths->hidden);

    backend->ops->gather_rows(backend, moe->n_sent, row_bytes, exec_moe_routing(moe).row, x,
                              wagon->out);
    exec_moe_exchange_rows(layer, row_bytes, false, wagon->out, wagon->in);
    backend->ops->gather_rows(backend, moe->n_received, row_bytes,
                              exec_moe_experts(layer->widths, moe).arrived, wagon->in, y);
}

void
exec_moe_return_rows(const ExecLayer *layer, const ExecMoeWagon *wagon, const void *y, void *x)
{
    const ExecMoe *moe = layer->moe;
    const ExecWidths *w = layer->widths;
    ExecBackend *backend = layer->backend;
    const int64_t row_bytes = exec_storage_bytes(backend, w->hidden);

    backend->ops->gather_rows(backend, moe->n_received, row_bytes, exec_moe_experts(w, moe).inverse,
                              y, wagon->out);
    exec_moe_exchange_rows(layer, row_bytes, true, wagon->out, wagon->in);
    backend->ops->sum_rows(backend, moe->n_rows, w->hidden, w->top_k, exec_moe_routing(moe).slot,
                           wagon->in, x);
}

void
exec_moe_send_weights(const ExecLayer *layer, const ExecMoeWagon *wagon)
{
    const ExecMoe *moe = layer->moe;
    const ExecMoeRouting r = exec_moe_routing(moe);
    const ExecMoeExperts x = exec_moe_experts(layer->widths, moe);
    ExecBackend *backend = layer->backend;

    backend->ops->gather_rows(backend, moe->n_sent, 4, r.choice, r.weight, wagon->out);
    exec_moe_exchange_rows(layer, 4, false, wagon->out, wagon->in);
    backend->ops->gather_rows(backend, moe->n_received, 4, x.arrived, wagon->in, x.weight);
}
