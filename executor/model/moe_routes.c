#include "executor/model/moe_routes.h"

#include <string.h>

#include "executor/model/linear.h"
#include "executor/model/moe_parts.h"

/* How many rows this rank routes, and from which of its rows on: its own, or its share of those
 * that all tp ranks have. */
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

/* What the feed-forward reads of these rows. */
void *
exec_moe_own_input(const ExecLayer *layer)
{
    int64_t begin;

    exec_moe_own_rows(layer, &begin);
    return exec_at(layer->backend, layer->a.in[1], begin * layer->widths->hidden);
}

/* Replaces the router's scores: row i's choices are experts i top_k, i top_k + 1, ... (modulo their
 * number), with equal p. */
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

/* How the factors p are made, where they are not the softmax over the chosen. */
ExecRoute
exec_moe_route(const ExecLayer *layer)
{
    const ExecWidths *w = layer->widths;
    const ExecMoeRouting r = exec_moe_routing(w, layer->moe);

    return (ExecRoute){
        .rows = layer->moe->n_rows,
        .n_experts = w->n_experts,
        .top_k = w->top_k,
        .kind = w->router_scores,
        .scale = w->router_scale,
        .scores = r.scores,
        .expert = r.expert,
        .weight = r.weight,
    };
}

/* Computes scores, choices and p of the rows that this rank routes. */
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
    ExecCutter size = {0};
    exec_moe_cut_routing(w, moe, &size);
    if (!exec_moe_take(layer, TRACE_MEMORY_ACTIVATIONS, size.n_bytes, &moe->routing) ||
        !exec_moe_take(layer, TRACE_MEMORY_WORKSPACE, moe->n_rows * w->n_experts * 4, &scores))
        return false;
    const ExecMoeRouting r = exec_moe_routing(w, moe);
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
                           .bias = layer->tensors->router_bias.weight,
                       });
    if (w->balance_experts)
        balance(layer, scores.data);
    backend->ops->route(backend, moe->n_rows, w->n_experts, w->top_k, scores.data, r.expert,
                        r.weight);
    if (!exec_moe_has_plain_factors(w)) {
        const ExecRoute route = exec_moe_route(layer);
        backend->ops->copy(backend, (size_t)(moe->n_rows * w->n_experts) * sizeof(float),
                           scores.data, r.scores);
        backend->ops->route_factors(backend, &route);
    }
    exec_pool_give(layer->pool, &scores);
    return true;
}

/* Sorts the choices by expert, and of one expert by row: fills in slot, row and choice of the
 * routing block.  @begin  (out) [n_experts + 1] where each expert's begin. */
static bool
sort_choices(const ExecLayer *layer, int64_t *begin)
{
    const ExecWidths *w = layer->widths;
    const ExecMoe *moe = layer->moe;
    ExecBackend *backend = layer->backend;
    const ExecMoeRouting r = exec_moe_routing(w, moe);
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

/* Tells every rank of the ep group how many rows will come to each of its experts.  @counts  (out)
 * [ep, n_local_experts] from whom, and to which expert here. */
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

/* Rows arrive ordered by (rank, expert), and the experts read them by (expert, rank): fills in the
 * permutation. */
static void
sort_arrivals(const ExecLayer *layer, const int64_t *counts)
{
    const ExecWidths *w = layer->widths;
    const ExecMoe *moe = layer->moe;
    const ExecMoeExperts x = exec_moe_experts(w, moe);
    const size_t n = (size_t)moe->n_received;
    const int64_t n_local = w->n_local_experts;
    const int32_t ep = layer->comm->groups[EXEC_DIM_EP].n;
    g_autofree int32_t *arrived = g_new(int32_t, MAX(n, 1)), *inverse = g_new(int32_t, MAX(n, 1));
    int64_t to = 0;

    for (int64_t e = 0; e < n_local; e++)
        for (int32_t rank = 0; rank < ep; rank++) {
            int64_t from = moe->received[rank];
            for (int64_t before = 0; before < e; before++)
                from += counts[rank * n_local + before];
            for (int64_t i = 0; i < counts[rank * n_local + e]; i++, to++, from++) {
                arrived[to] = (int32_t)from;
                inverse[from] = (int32_t)to;
            }
        }
    layer->backend->ops->upload(layer->backend, n * sizeof *arrived, arrived, x.arrived);
    layer->backend->ops->upload(layer->backend, n * sizeof *inverse, inverse, x.inverse);
}

/* Decides where rows go: fills in layer->moe and its blocks, but for the rows themselves. */
bool
exec_moe_plan_routes(const ExecLayer *layer)
{
    const ExecWidths *w = layer->widths;
    ExecMoe *moe = layer->moe;
    const int32_t ep = layer->comm->groups[EXEC_DIM_EP].n;
    const int64_t n_local = w->n_local_experts;
    g_autofree int64_t *begin = g_new(int64_t, (size_t)w->n_experts + 1);
    g_autofree int64_t *counts = g_new(int64_t, (size_t)w->n_experts);
    const ExecLayerShape shape = exec_layer_shape(layer);

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
    moe->repeats_active = exec_is_again(&shape, PLAN_MODULE_MOE_ACTIVATION);
    ExecCutter experts = {.storage = w->storage}, products = experts;
    exec_moe_cut_experts(w, moe, &experts, &products);
    if (!exec_moe_take(layer, TRACE_MEMORY_ACTIVATIONS, experts.n_bytes, &moe->experts) ||
        !exec_moe_take(layer, TRACE_MEMORY_ACTIVATIONS, products.n_bytes, &moe->products))
        return false;
    sort_arrivals(layer, counts);
    return true;
}
