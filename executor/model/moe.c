#include "executor/model/moe.h"

#include "executor/model/linear.h"
#include "executor/model/moe_experts.h"
#include "executor/model/moe_parts.h"
#include "executor/model/moe_routes.h"

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
    exec_pool_give(pool, &moe->active);
    exec_pool_give(pool, &moe->kept);
    g_free(moe->sent);
    g_free(moe->received);
    g_free(moe->expert_begin);
    *moe = (ExecMoe){0};
}

/* --- moving rows --- */

/* Two buffers, one for each side of an exchange between the ranks of ep. */
typedef struct {
    ExecBlock block;
    void *out, *in;
} Exchange;

/* Sends @row_bytes of every row of @x, in the order of @order, from where it is routed to its
 * expert's rank; or @back.  They arrive in exchange->in. */
static void
exchange_rows(const ExecLayer *layer, const Exchange *exchange, int64_t row_bytes, bool back,
              const int32_t *order, const void *x)
{
    const ExecMoe *moe = layer->moe;
    const int32_t ep = layer->comm->groups[EXEC_DIM_EP].n;
    g_autofree int64_t *sent = g_new(int64_t, (size_t)ep), *received = g_new(int64_t, (size_t)ep);

    layer->backend->ops->gather_rows(layer->backend, back ? moe->n_received : moe->n_sent,
                                     row_bytes, order, x, exchange->out);
    for (int32_t i = 0; i < ep; i++) {
        sent[i] = (moe->sent[i + 1] - moe->sent[i]) * row_bytes;
        received[i] = (moe->received[i + 1] - moe->received[i]) * row_bytes;
    }
    exec_comm_exchange(layer->comm, EXEC_DIM_EP,
                       &(ExecExchange){.out = exchange->out,
                                       .out_bytes = back ? received : sent,
                                       .in = exchange->in,
                                       .in_bytes = back ? sent : received});
}

static bool
exchange_take(const ExecLayer *layer, Exchange *exchange)
{
    const ExecMoe *moe = layer->moe;
    const int64_t n = MAX(moe->n_sent, moe->n_received) * layer->widths->expert_input;
    const int64_t n_bytes = exec_padded_bytes(n * dtype_bytes(layer->widths->storage));

    *exchange = (Exchange){0};
    if (!exec_moe_take(layer, TRACE_MEMORY_WORKSPACE, 2 * n_bytes, &exchange->block))
        return false;
    exchange->out = exchange->block.data;
    exchange->in = (char *)exchange->out + n_bytes;
    return true;
}

/* Sends @row_bytes of every row of @x, in the order of @order, to the experts: @y ordered by
 * expert. */
static void
send_to_experts(const ExecLayer *layer, const Exchange *exchange, int64_t row_bytes,
                const int32_t *order, const void *x, void *y)
{
    exchange_rows(layer, exchange, row_bytes, false, order, x);
    layer->backend->ops->gather_rows(layer->backend, layer->moe->n_received, row_bytes,
                                     exec_moe_experts(layer->widths, layer->moe).arrived,
                                     exchange->in, y);
}

/* Sends @x [own rows, expert_input] to the experts: @y [n_received, expert_input] ordered by
 * expert. */
static void
send_rows(const ExecLayer *layer, const Exchange *exchange, const void *x, void *y)
{
    send_to_experts(layer, exchange,
                    exec_storage_bytes(layer->backend, layer->widths->expert_input),
                    exec_moe_routing(layer->widths, layer->moe).row, x, y);
}

/* Sends @y [n_received, expert_input] ordered by expert back, and adds it to @x [own rows,
 * expert_input]. */
static void
return_rows(const ExecLayer *layer, const Exchange *exchange, const void *y, void *x)
{
    const ExecMoe *moe = layer->moe;
    const ExecWidths *w = layer->widths;
    ExecBackend *backend = layer->backend;

    exchange_rows(layer, exchange, exec_storage_bytes(backend, w->expert_input), true,
                  exec_moe_experts(w, moe).inverse, y);
    backend->ops->sum_rows(backend, moe->n_rows, w->expert_input, w->top_k,
                           exec_moe_routing(w, moe).slot, exchange->in, x);
}

static ExecLinear
router_of(const ExecLayer *layer)
{
    return (ExecLinear){
        .rows = layer->moe->n_rows,
        .inputs = layer->widths->hidden,
        .cols = layer->widths->n_experts,
        .weight = &layer->tensors->router_weight,
        .bias = &layer->tensors->router_bias,
    };
}

/* The product that makes the narrow rows of latent experts, or the one that widens their sums. */
static ExecLinear
latent_linear(const ExecLayer *layer, bool widens)
{
    const ExecWidths *w = layer->widths;

    return (ExecLinear){
        .rows = layer->moe->n_rows,
        .inputs = widens ? w->expert_input : w->hidden,
        .cols = widens ? w->hidden : w->expert_input,
        .weight = widens ? &layer->tensors->latent_up : &layer->tensors->latent_down,
    };
}

/* A sum over the rows that this rank routes, which is added to @total [local rows, hidden].  Where
 * every tp rank routes a share of the same rows, the shares are summed in a block of their own and
 * gathered.  @own  (out) where to add the rows that this rank routes. */
static bool
begin_sum(const ExecLayer *layer, void *total, ExecBlock *shares, void **own)
{
    const ExecWidths *w = layer->widths;
    ExecBackend *backend = layer->backend;
    const int64_t n_bytes = exec_storage_bytes(backend, exec_slice_rows(&layer->slice) * w->hidden);
    int64_t begin;

    *shares = (ExecBlock){0};
    *own = total;
    if (w->tp == 1 || w->sequence_parallel)
        return true;
    if (!exec_moe_take(layer, TRACE_MEMORY_WORKSPACE, n_bytes, shares))
        return false;
    backend->ops->zero(backend, (size_t)n_bytes, shares->data);
    exec_moe_own_rows(layer, &begin);
    *own = exec_at(backend, shares->data, begin * w->hidden);
    return true;
}

static void
end_sum(const ExecLayer *layer, void *total, ExecBlock *shares)
{
    const int64_t n = exec_slice_rows(&layer->slice) * layer->widths->hidden;

    if (shares->data == NULL)
        return;
    exec_comm_all_gather(layer->comm, EXEC_DIM_TP, layer->widths->storage, n, shares->data);
    layer->backend->ops->add(layer->backend, n, shares->data, total);
    exec_pool_give(layer->pool, shares);
}

static void
add_results(const ExecLayer *layer, const Exchange *exchange, const void *results, void *y)
{
    ExecBlock shares;
    void *own;

    if (!begin_sum(layer, y, &shares, &own))
        return;
    if (exec_moe_is_latent(layer->widths)) {
        const ExecLinear up = latent_linear(layer, true);
        const ExecMoeExperts x = exec_moe_experts(layer->widths, layer->moe);
        ExecBackend *backend = layer->backend;
        backend->ops->zero(backend, (size_t)exec_storage_bytes(backend, up.rows * up.inputs),
                           x.latent);
        return_rows(layer, exchange, results, x.latent);
        exec_linear_add(backend, &up, x.latent, own);
    } else {
        return_rows(layer, exchange, results, own);
    }
    end_sum(layer, y, &shares);
}

/* What this rank sends of its rows: themselves, or @block (out), which is taken, made of them. */
static const void *
rows_to_send(const ExecLayer *layer, ExecBlock *block)
{
    ExecBackend *backend = layer->backend;

    if (!exec_moe_is_latent(layer->widths))
        return exec_moe_own_input(layer);
    const ExecLinear down = latent_linear(layer, false);
    if (!exec_moe_take(layer, TRACE_MEMORY_WORKSPACE,
                       exec_storage_bytes(backend, down.rows * down.cols), block))
        return NULL;
    exec_linear_forward(backend, &down, exec_moe_own_input(layer), NULL, block->data);
    return block->data;
}

void
exec_moe_forward(const ExecLayer *layer, const void *in, const void *residual, void *y)
{
    const ExecWidths *w = layer->widths;
    ExecBackend *backend = layer->backend;
    const int64_t n_local = exec_local_rows(w, exec_slice_rows(&layer->slice)) * w->hidden;
    Exchange exchange;

    if (w->ffn_hidden > 0)
        exec_shared_forward(layer, in, residual, y);
    else if (residual != NULL)
        backend->ops->copy(backend, (size_t)exec_storage_bytes(backend, n_local), residual, y);
    else
        backend->ops->zero(backend, (size_t)exec_storage_bytes(backend, n_local), y);
    if (!exec_moe_plan_routes(layer) || !exchange_take(layer, &exchange))
        return;
    const ExecMoeRouting r = exec_moe_routing(w, layer->moe);
    const ExecMoeExperts x = exec_moe_experts(w, layer->moe);
    ExecBlock narrow = {0};
    const void *rows = rows_to_send(layer, &narrow);
    if (rows != NULL) {
        send_to_experts(layer, &exchange, sizeof *x.weight, r.choice, r.weight, x.weight);
        send_rows(layer, &exchange, rows, x.x);
    }
    exec_pool_give(layer->pool, &narrow);
    /* The rows are with their experts: the buffers of the exchange are free for the results. */
    ExecBlock results = {0};
    if (exec_moe_take(layer, TRACE_MEMORY_WORKSPACE,
                      exec_storage_bytes(backend, layer->moe->n_received * w->expert_input),
                      &results)) {
        exec_moe_experts_forward(layer, results.data);
        add_results(layer, &exchange, results.data, y);
    }
    exec_pool_give(layer->pool, &results);
    exec_pool_give(layer->pool, &exchange.block);
}

/* --- backward --- */

/* What lives during one backward. */
typedef struct {
    Exchange exchange;
    ExecBlock block;
    void *d_active; /* [n_received, expert_hidden] */
    void *d_x; /* [n_received, expert_input]: in the memory of d_active, which is not needed then */
    float *d_weight; /* [n_received] */
    float *d_choice; /* [n_rows, top_k] */
} Scratch;

/* Sets the pointers of @s into its block.  Returns: the block's bytes. */
static int64_t
cut_scratch(const ExecLayer *layer, Scratch *s)
{
    const ExecWidths *w = layer->widths;
    const ExecMoe *moe = layer->moe;
    ExecCutter cutter = {.block = s->block.data, .storage = w->storage};

    s->d_active = s->d_x =
        exec_cut(&cutter, moe->n_received * MAX(w->expert_hidden, w->expert_input));
    s->d_weight = exec_cut_words(&cutter, moe->n_received);
    s->d_choice = exec_cut_words(&cutter, moe->n_sent);
    return cutter.n_bytes;
}

static bool
scratch_take(const ExecLayer *layer, Scratch *s)
{
    *s = (Scratch){0};
    if (!exchange_take(layer, &s->exchange))
        return false;
    if (!exec_moe_take(layer, TRACE_MEMORY_WORKSPACE, cut_scratch(layer, s), &s->block))
        return false;
    cut_scratch(layer, s);
    return true;
}

/* Sends the gradient of p back to its rows, and computes that of their scores. */
static void
route_backward(const ExecLayer *layer, const Scratch *s)
{
    const ExecWidths *w = layer->widths;
    const ExecMoe *moe = layer->moe;
    const ExecMoeRouting r = exec_moe_routing(w, moe);
    ExecBackend *backend = layer->backend;

    exchange_rows(layer, &s->exchange, sizeof *s->d_weight, true, exec_moe_experts(w, moe).inverse,
                  s->d_weight);
    backend->ops->gather_rows(backend, moe->n_sent, 4, r.slot, s->exchange.in, s->d_choice);
    if (!exec_moe_has_plain_factors(w)) {
        const ExecRoute route = exec_moe_route(layer);
        backend->ops->route_factors_backward(backend, &route, s->d_choice,
                                             exec_moe_kept(w, moe).d_scores);
        return;
    }
    backend->ops->route_backward(backend, moe->n_rows, w->n_experts, w->top_k, r.expert, r.weight,
                                 s->d_choice, exec_moe_kept(w, moe).d_scores);
}

/* Adds the gradient of norm2's rows through experts and router to @total [local rows, hidden]. */
static void
backward_into(const ExecLayer *layer, const Scratch *s, const void *d, void *total)
{
    const ExecWidths *w = layer->widths;
    ExecBackend *backend = layer->backend;
    const ExecMoeKept kept = exec_moe_kept(w, layer->moe);
    const ExecLinear router = router_of(layer);
    ExecBlock shares;
    int64_t begin;
    void *own;

    exec_moe_own_rows(layer, &begin);
    const void *d_own = exec_at(backend, d, begin * w->hidden);
    if (exec_moe_is_latent(w)) {
        const ExecLinear up = latent_linear(layer, true);
        backend->ops->copy(backend, (size_t)exec_storage_bytes(backend, up.rows * up.cols), d_own,
                           kept.d_rows);
        exec_linear_backward(backend, &up, d_own, false, NULL, kept.d_latent);
        d_own = kept.d_latent;
    }
    send_rows(layer, &s->exchange, d_own, kept.d_out);
    exec_moe_experts_backward(layer, s->d_active, s->d_x, s->d_weight);
    route_backward(layer, s);
    if (!begin_sum(layer, total, &shares, &own))
        return;
    if (exec_moe_is_latent(w)) {
        const ExecLinear down = latent_linear(layer, false);
        backend->ops->zero(backend, (size_t)exec_storage_bytes(backend, down.rows * down.cols),
                           kept.d_latent);
        return_rows(layer, &s->exchange, s->d_x, kept.d_latent);
        exec_linear_backward(backend, &down, kept.d_latent, true, NULL, own);
    } else {
        return_rows(layer, &s->exchange, s->d_x, own);
    }
    exec_linear_backward(backend, &router, kept.d_scores, true, NULL, own);
    end_sum(layer, total, &shares);
}

void *
exec_moe_backward(const ExecLayer *layer, void *d_up, const void *d, const void *dy)
{
    const ExecWidths *w = layer->widths;
    ExecBackend *backend = layer->backend;
    const int64_t n_local = exec_local_rows(w, exec_slice_rows(&layer->slice)) * w->hidden;
    void *total = layer->scratch->partial;
    Scratch s = {0};

    if (w->ffn_hidden > 0)
        total = exec_mlp_backward(layer, d_up, dy);
    else
        backend->ops->zero(backend, (size_t)exec_storage_bytes(backend, n_local), total);
    ExecCutter size = {.storage = w->storage};
    exec_moe_cut_kept(w, layer->moe, &size);
    if (exec_moe_take(layer, TRACE_MEMORY_ACTIVATIONS, size.n_bytes, &layer->moe->kept) &&
        scratch_take(layer, &s))
        backward_into(layer, &s, d, total);
    exec_pool_give(layer->pool, &s.block);
    exec_pool_give(layer->pool, &s.exchange.block);
    /* What it is made of goes back before W. */
    if (layer->op == SCHEDULE_OP_BACKWARD_INPUT && layer->moe->repeats_active &&
        layer->comm->error == NULL)
        exec_moe_activate(layer);
    return total;
}

void
exec_moe_weight(const ExecLayer *layer, const void *in, const void *d_up, const void *d_down)
{
    const ExecWidths *w = layer->widths;

    if (w->ffn_hidden > 0)
        exec_mlp_weight(layer, in, d_up, d_down);
    if (layer->comm->error != NULL || (layer->op == SCHEDULE_OP_BACKWARD &&
                                       layer->moe->repeats_active && !exec_moe_activate(layer)))
        return;
    const ExecMoeExperts x = exec_moe_experts(w, layer->moe);
    const ExecMoeKept kept = exec_moe_kept(w, layer->moe);
    const ExecLinear router = router_of(layer);
    exec_moe_experts_weight(layer);
    if (exec_moe_is_latent(w)) {
        const ExecLinear down = latent_linear(layer, false), up = latent_linear(layer, true);
        exec_linear_weight(layer->backend, &down, exec_moe_own_input(layer), kept.d_latent);
        exec_linear_weight(layer->backend, &up, x.latent, kept.d_rows);
    }
    exec_linear_weight(layer->backend, &router, exec_moe_own_input(layer), kept.d_scores);
    exec_pool_give(layer->pool, &layer->moe->kept);
}
