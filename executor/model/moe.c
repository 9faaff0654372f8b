#include "executor/model/moe.h"

#include "executor/model/linear.h"
#include "executor/model/moe_route.h"

/* Of the kept block. */
typedef struct {
    void *d_out;    /* [n_received, hidden] gradient of the experts' outputs */
    void *d_up;     /* [n_received, 2 expert_hidden] */
    void *d_scores; /* [n_rows, n_experts] */
} Kept;

static int64_t
kept_bytes(const ExecWidths *w, const ExecMoe *moe)
{
    const int64_t e = dtype_bytes(w->storage);

    return exec_moe_padded(moe->n_received * w->hidden, e) +
           exec_moe_padded(2 * moe->n_received * w->expert_hidden, e) +
           exec_moe_padded(moe->n_rows * w->n_experts, e);
}

static Kept
kept_of(const ExecWidths *w, const ExecMoe *moe)
{
    const int64_t e = dtype_bytes(w->storage);
    char *at = moe->kept.data;
    Kept kept;

    kept.d_out = exec_moe_cut(&at, moe->n_received * w->hidden, e);
    kept.d_up = exec_moe_cut(&at, 2 * moe->n_received * w->expert_hidden, e);
    kept.d_scores = exec_moe_cut(&at, moe->n_rows * w->n_experts, e);
    return kept;
}

static ExecLinear
router_of(const ExecLayer *layer)
{
    return (ExecLinear){
        .rows = layer->moe->n_rows,
        .inputs = layer->widths->hidden,
        .cols = layer->widths->n_experts,
        .weight = &layer->tensors->router_weight,
    };
}

/* --- the experts themselves --- */

/* Expert @e's rows of a matrix [n_received, cols]. */
static void *
expert_rows(const ExecLayer *layer, const void *x, int64_t e, int64_t cols)
{
    return exec_at(layer->backend, x, layer->moe->expert_begin[e] * cols);
}

/* Product of expert @e; @tensor has the room of its weights. */
static ExecLinear
expert_linear(const ExecLayer *layer, int64_t e, bool down, ExecTensor *tensor)
{
    const ExecWidths *w = layer->widths;
    const ExecTensor *all =
        down ? &layer->tensors->experts_down_weight : &layer->tensors->experts_up_weight;
    const int64_t inputs = down ? w->expert_hidden : w->hidden;
    const int64_t cols = down ? w->hidden : 2 * w->expert_hidden;

    *tensor = (ExecTensor){
        .weight = exec_at(layer->backend, all->weight, e * inputs * cols),
        .gradient = all->gradient + e * inputs * cols,
    };
    return (ExecLinear){
        .rows = layer->moe->expert_begin[e + 1] - layer->moe->expert_begin[e],
        .inputs = inputs,
        .cols = cols,
        .weight = tensor,
    };
}

static void
experts_forward(const ExecLayer *layer, void *y)
{
    const ExecWidths *w = layer->widths;
    const ExecMoe *moe = layer->moe;
    const ExecMoeExperts x = exec_moe_experts(w, moe);
    const int64_t f = w->expert_hidden;
    ExecBackend *backend = layer->backend;
    ExecTensor tensor;

    for (int64_t e = 0; e < w->n_local_experts; e++) {
        const ExecLinear up = expert_linear(layer, e, false, &tensor);
        exec_linear_forward(backend, &up, expert_rows(layer, x.x, e, w->hidden), NULL,
                            expert_rows(layer, x.up, e, 2 * f));
    }
    backend->ops->swiglu_forward(backend, moe->n_received, f, x.up, x.active);
    backend->ops->scale_rows(backend, moe->n_received, f, x.weight, x.active);
    for (int64_t e = 0; e < w->n_local_experts; e++) {
        const ExecLinear down = expert_linear(layer, e, true, &tensor);
        exec_linear_forward(backend, &down, expert_rows(layer, x.active, e, f), NULL,
                            expert_rows(layer, y, e, w->hidden));
    }
}

/* Results of this rank's rows, added to @y [local rows, hidden]; shares of the tp ranks are
 * gathered. */
static void
merge(const ExecLayer *layer, const ExecMoeWagon *wagon, const void *results, void *y)
{
    const ExecWidths *w = layer->widths;
    ExecBackend *backend = layer->backend;
    const int64_t n = exec_slice_rows(&layer->slice) * w->hidden;
    ExecBlock whole = {0};
    int64_t begin;

    if (w->tp == 1 || w->sequence_parallel) {
        exec_moe_return_rows(layer, wagon, results, y);
        return;
    }
    exec_moe_own_rows(layer, &begin);
    if (!exec_moe_take(layer, TRACE_MEMORY_WORKSPACE, exec_storage_bytes(backend, n), &whole))
        return;
    backend->ops->zero(backend, (size_t)exec_storage_bytes(backend, n), whole.data);
    exec_moe_return_rows(layer, wagon, results, exec_at(backend, whole.data, begin * w->hidden));
    exec_comm_all_gather(layer->comm, EXEC_DIM_TP, w->storage, n, whole.data);
    backend->ops->add(backend, n, whole.data, y);
    exec_pool_give(layer->pool, &whole);
}

void
exec_moe_forward(const ExecLayer *layer, void *y)
{
    const ExecWidths *w = layer->widths;
    ExecBackend *backend = layer->backend;
    const int64_t n_local = exec_local_rows(w, exec_slice_rows(&layer->slice)) * w->hidden;
    ExecMoeWagon wagon;

    if (w->shared_hidden > 0)
        exec_mlp_forward(layer, y);
    else
        backend->ops->copy(backend, (size_t)exec_storage_bytes(backend, n_local), layer->a.x2, y);
    if (!exec_moe_plan_routes(layer) || !exec_moe_wagon_take(layer, &wagon))
        return;
    exec_moe_send_weights(layer, &wagon);
    exec_moe_send_rows(layer, &wagon, exec_moe_own_input(layer), exec_moe_experts(w, layer->moe).x);
    /* The way there is done: its buffers hold the results. */
    ExecBlock results = {0};
    if (exec_moe_take(layer, TRACE_MEMORY_WORKSPACE,
                      exec_storage_bytes(backend, layer->moe->n_received * w->hidden), &results)) {
        experts_forward(layer, results.data);
        merge(layer, &wagon, results.data, y);
    }
    exec_pool_give(layer->pool, &results);
    exec_pool_give(layer->pool, &wagon.block);
}

/* --- backward --- */

/* Lives inside one backward. */
typedef struct {
    ExecMoeWagon wagon;
    ExecBlock block;
    void *d_active;  /* [n_received, expert_hidden] */
    void *d_x;       /* [n_received, hidden]: in d_active's place, which is done with by then */
    float *d_weight; /* [n_received] */
    float *d_choice; /* [n_rows, top_k] */
} Scratch;

static bool
scratch_take(const ExecLayer *layer, Scratch *s)
{
    const ExecWidths *w = layer->widths;
    const ExecMoe *moe = layer->moe;
    const int64_t n = moe->n_received, e = dtype_bytes(w->storage);
    const int64_t widest = MAX(w->expert_hidden, w->hidden);
    const int64_t n_bytes =
        exec_moe_padded(n * widest, e) + exec_moe_padded(n, 4) + exec_moe_padded(moe->n_sent, 4);

    *s = (Scratch){0};
    if (!exec_moe_wagon_take(layer, &s->wagon) ||
        !exec_moe_take(layer, TRACE_MEMORY_WORKSPACE, n_bytes, &s->block))
        return false;
    char *at = s->block.data;
    s->d_active = s->d_x = exec_moe_cut(&at, n * widest, e);
    s->d_weight = exec_moe_cut(&at, n, 4);
    s->d_choice = exec_moe_cut(&at, moe->n_sent, 4);
    return true;
}

/* From kept.d_out to kept.d_up, s->d_x and s->d_weight.  With u = d_out Wdown^T: dp = u . swiglu,
 * the gradient of swiglu is p u. */
static void
experts_backward(const ExecLayer *layer, const Scratch *s)
{
    const ExecWidths *w = layer->widths;
    const ExecMoe *moe = layer->moe;
    const ExecMoeExperts x = exec_moe_experts(w, moe);
    const Kept kept = kept_of(w, moe);
    const int64_t f = w->expert_hidden, n = moe->n_received;
    ExecBackend *backend = layer->backend;
    ExecTensor tensor;
    void *active = kept.d_up; /* until that is written */

    for (int64_t e = 0; e < w->n_local_experts; e++) {
        const ExecLinear down = expert_linear(layer, e, true, &tensor);
        exec_linear_backward(backend, &down, expert_rows(layer, kept.d_out, e, w->hidden), false,
                             NULL, expert_rows(layer, s->d_active, e, f));
    }
    backend->ops->swiglu_forward(backend, n, f, x.up, active);
    backend->ops->dot_rows(backend, n, f, s->d_active, active, s->d_weight);
    backend->ops->scale_rows(backend, n, f, x.weight, s->d_active);
    backend->ops->swiglu_backward(backend, n, f, x.up, s->d_active, kept.d_up);
    for (int64_t e = 0; e < w->n_local_experts; e++) {
        const ExecLinear up = expert_linear(layer, e, false, &tensor);
        exec_linear_backward(backend, &up, expert_rows(layer, kept.d_up, e, 2 * f), false, NULL,
                             expert_rows(layer, s->d_x, e, w->hidden));
    }
}

/* dp back to its rows, then the gradient of their scores. */
static void
route_backward(const ExecLayer *layer, const Scratch *s)
{
    const ExecWidths *w = layer->widths;
    const ExecMoe *moe = layer->moe;
    const ExecMoeRouting r = exec_moe_routing(moe);
    ExecBackend *backend = layer->backend;

    backend->ops->gather_rows(backend, moe->n_received, 4, exec_moe_experts(w, moe).inverse,
                              s->d_weight, s->wagon.out);
    exec_moe_exchange_rows(layer, 4, true, s->wagon.out, s->wagon.in);
    backend->ops->gather_rows(backend, moe->n_sent, 4, r.slot, s->wagon.in, s->d_choice);
    backend->ops->route_backward(backend, moe->n_rows, w->n_experts, w->top_k, r.expert, r.weight,
                                 s->d_choice, kept_of(w, moe).d_scores);
}

/* Adds the gradient of norm2's rows through experts and router to @total [local rows, hidden]. */
static void
backward_into(const ExecLayer *layer, const Scratch *s, const void *d, void *total)
{
    const ExecWidths *w = layer->widths;
    ExecBackend *backend = layer->backend;
    const int64_t n = exec_slice_rows(&layer->slice) * w->hidden;
    const bool shares = w->tp > 1 && !w->sequence_parallel;
    const Kept kept = kept_of(w, layer->moe);
    const ExecLinear router = router_of(layer);
    ExecBlock whole = {0};
    int64_t begin;

    exec_moe_own_rows(layer, &begin);
    exec_moe_send_rows(layer, &s->wagon, exec_at(backend, d, begin * w->hidden), kept.d_out);
    experts_backward(layer, s);
    route_backward(layer, s);
    if (shares &&
        !exec_moe_take(layer, TRACE_MEMORY_WORKSPACE, exec_storage_bytes(backend, n), &whole))
        return;
    if (shares)
        backend->ops->zero(backend, (size_t)exec_storage_bytes(backend, n), whole.data);
    void *own = shares ? exec_at(backend, whole.data, begin * w->hidden) : total;
    exec_moe_return_rows(layer, &s->wagon, s->d_x, own);
    exec_linear_backward(backend, &router, kept.d_scores, true, NULL, own);
    if (!shares)
        return;
    exec_comm_all_gather(layer->comm, EXEC_DIM_TP, w->storage, n, whole.data);
    backend->ops->add(backend, n, whole.data, total);
    exec_pool_give(layer->pool, &whole);
}

const void *
exec_moe_backward(const ExecLayer *layer, void *d_up, const void *d, const void *dy)
{
    const ExecWidths *w = layer->widths;
    ExecBackend *backend = layer->backend;
    const int64_t n_local = exec_local_rows(w, exec_slice_rows(&layer->slice)) * w->hidden;
    void *total = layer->scratch->partial;
    Scratch s = {0};

    if (w->shared_hidden > 0)
        total = exec_mlp_backward(layer, d_up, dy);
    else
        backend->ops->zero(backend, (size_t)exec_storage_bytes(backend, n_local), total);
    if (exec_moe_take(layer, TRACE_MEMORY_ACTIVATIONS, kept_bytes(w, layer->moe),
                      &layer->moe->kept) &&
        scratch_take(layer, &s))
        backward_into(layer, &s, d, total);
    exec_pool_give(layer->pool, &s.block);
    exec_pool_give(layer->pool, &s.wagon.block);
    return total;
}

void
exec_moe_weight(const ExecLayer *layer, const void *d_up, const void *d_down)
{
    const ExecWidths *w = layer->widths;
    ExecTensor tensor;

    if (w->shared_hidden > 0)
        exec_mlp_weight(layer, d_up, d_down);
    if (layer->comm->error != NULL)
        return;
    const ExecMoeExperts x = exec_moe_experts(w, layer->moe);
    const Kept kept = kept_of(w, layer->moe);
    const ExecLinear router = router_of(layer);
    for (int64_t e = 0; e < w->n_local_experts; e++) {
        const ExecLinear up = expert_linear(layer, e, false, &tensor);
        exec_linear_weight(layer->backend, &up, expert_rows(layer, x.x, e, w->hidden),
                           expert_rows(layer, kept.d_up, e, up.cols));
        const ExecLinear down = expert_linear(layer, e, true, &tensor);
        exec_linear_weight(layer->backend, &down, expert_rows(layer, x.active, e, w->expert_hidden),
                           expert_rows(layer, kept.d_out, e, w->hidden));
    }
    exec_linear_weight(layer->backend, &router, exec_moe_own_input(layer), kept.d_scores);
    exec_pool_give(layer->pool, &layer->moe->kept);
}
