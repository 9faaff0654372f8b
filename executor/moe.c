#include "executor/moe.h"

#include <string.h>

#include "executor/linear.h"

/* --- views --- */

/* Of the routing block. */
typedef struct {
    int32_t *expert; /* [n_rows, top_k] */
    float *weight;   /* [n_rows, top_k] p */
    int32_t *slot;   /* [n_rows, top_k] where the choice lies among what is sent */
    int32_t *row;    /* [n_sent] which row that is */
    int32_t *choice; /* [n_sent] and which choice: row * top_k + k */
} Routing;

/* Of the experts' block. */
typedef struct {
    int32_t *arrived; /* [n_received] where the i-th by expert lies among what arrived */
    int32_t *place;   /* [n_received] the inverse */
    float *weight;    /* [n_received] p, by expert like all that follows */
    void *x;          /* [n_received, hidden] */
    void *up;         /* [n_received, 2 expert_hidden] */
    void *active;     /* [n_received, expert_hidden] scaled by p */
} Experts;

/* Of the kept block. */
typedef struct {
    void *d_out;    /* [n_received, hidden] gradient of the experts' outputs */
    void *d_up;     /* [n_received, 2 expert_hidden] */
    void *d_scores; /* [n_rows, n_experts] */
} Kept;

/* Cuts @n elements of @bytes off a block, or counts them while @at is an offset from NULL. */
static void *
cut(char **at, int64_t n, int64_t bytes)
{
    void *piece = *at;

    *at += (n * bytes + 63) / 64 * 64;
    return piece;
}

static int64_t
padded(int64_t n, int64_t bytes)
{
    return (n * bytes + 63) / 64 * 64;
}

static int64_t
routing_bytes(const ExecMoe *moe)
{
    return 5 * padded(moe->n_sent, 4);
}

static Routing
routing_of(const ExecMoe *moe)
{
    char *at = moe->routing.data;
    Routing r;

    r.expert = cut(&at, moe->n_sent, 4);
    r.weight = cut(&at, moe->n_sent, 4);
    r.slot = cut(&at, moe->n_sent, 4);
    r.row = cut(&at, moe->n_sent, 4);
    r.choice = cut(&at, moe->n_sent, 4);
    return r;
}

static int64_t
experts_bytes(const ExecWidths *w, int64_t n)
{
    const int64_t e = dtype_bytes(w->storage);

    return 3 * padded(n, 4) + padded(n * w->hidden, e) + padded(2 * n * w->expert_hidden, e) +
           padded(n * w->expert_hidden, e);
}

static Experts
experts_of(const ExecWidths *w, const ExecMoe *moe)
{
    const int64_t n = moe->n_received, e = dtype_bytes(w->storage);
    char *at = moe->experts.data;
    Experts x;

    x.arrived = cut(&at, n, 4);
    x.place = cut(&at, n, 4);
    x.weight = cut(&at, n, 4);
    x.x = cut(&at, n * w->hidden, e);
    x.up = cut(&at, 2 * n * w->expert_hidden, e);
    x.active = cut(&at, n * w->expert_hidden, e);
    return x;
}

static int64_t
kept_bytes(const ExecWidths *w, const ExecMoe *moe)
{
    const int64_t e = dtype_bytes(w->storage);

    return padded(moe->n_received * w->hidden, e) +
           padded(2 * moe->n_received * w->expert_hidden, e) +
           padded(moe->n_rows * w->n_experts, e);
}

static Kept
kept_of(const ExecWidths *w, const ExecMoe *moe)
{
    const int64_t e = dtype_bytes(w->storage);
    char *at = moe->kept.data;
    Kept kept;

    kept.d_out = cut(&at, moe->n_received * w->hidden, e);
    kept.d_up = cut(&at, 2 * moe->n_received * w->expert_hidden, e);
    kept.d_scores = cut(&at, moe->n_rows * w->n_experts, e);
    return kept;
}

void
exec_moe_clear(ExecMoe *moe, ExecPool *pool)
{
    exec_pool_give(pool, &moe->routing);
    exec_pool_give(pool, &moe->experts);
    exec_pool_give(pool, &moe->kept);
    g_free(moe->sent);
    g_free(moe->received);
    g_free(moe->expert_begin);
    *moe = (ExecMoe){0};
}

/* False once anything of this rank's step has failed: then sizes mean nothing. */
static bool
take(const ExecLayer *layer, TraceMemoryOwner owner, int64_t n_bytes, ExecBlock *block)
{
    GError *error = NULL;

    if (layer->comm->error != NULL)
        return false;
    if (block->data == NULL && !exec_pool_take(layer->pool, owner, n_bytes, block, &error))
        exec_comm_fail(layer->comm, error);
    return layer->comm->error == NULL;
}

/* --- which rows, where to --- */

/* The rows that this rank routes: its own, or its share of those that all tp ranks have. */
static int64_t
own_rows(const ExecLayer *layer, int64_t *begin)
{
    const int64_t rows = exec_slice_rows(&layer->slice);

    if (layer->widths->sequence_parallel) {
        *begin = 0;
        return exec_local_rows(layer->widths, rows);
    }
    return exec_comm_chunk(layer->comm, EXEC_DIM_TP, rows, begin);
}

/* n2 of the rows that this rank routes. */
static void *
own_input(const ExecLayer *layer)
{
    int64_t begin;

    own_rows(layer, &begin);
    return exec_at(layer->backend, layer->a.norm2, begin * layer->widths->hidden);
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

/* Scores, choices and p of this rank's rows. */
static bool
choose(const ExecLayer *layer)
{
    const ExecWidths *w = layer->widths;
    ExecMoe *moe = layer->moe;
    ExecBackend *backend = layer->backend;
    ExecBlock scores = {0};
    int64_t begin;

    moe->n_rows = own_rows(layer, &begin);
    moe->n_sent = moe->n_rows * w->top_k;
    if (!take(layer, TRACE_MEMORY_ACTIVATIONS, routing_bytes(moe), &moe->routing) ||
        !take(layer, TRACE_MEMORY_WORKSPACE, moe->n_rows * w->n_experts * 4, &scores))
        return false;
    const Routing r = routing_of(moe);
    exec_gemm(backend, &(ExecGemm){
                           .c_fp32 = true,
                           .m = moe->n_rows,
                           .n = w->n_experts,
                           .k = w->hidden,
                           .a = own_input(layer),
                           .lda = w->hidden,
                           .b = layer->tensors->router_weight.weight,
                           .ldb = w->n_experts,
                           .c = scores.data,
                           .ldc = w->n_experts,
                       });
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
    const Routing r = routing_of(moe);
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
    if (!take(layer, TRACE_MEMORY_WORKSPACE, 2 * (int64_t)n_bytes, &block))
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
    const Experts x = experts_of(w, moe);
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
    layer->backend->ops->upload(layer->backend, n * sizeof *place, place, x.place);
}

/* Fills in layer->moe but for the rows themselves. */
static bool
plan_routes(const ExecLayer *layer)
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
    if (!take(layer, TRACE_MEMORY_ACTIVATIONS, experts_bytes(w, moe->n_received), &moe->experts))
        return false;
    sort_arrivals(layer, counts);
    return true;
}

/* --- moving rows --- */

/* Rows of @row_bytes from where they are routed to their experts, or @back. */
static void
exchange_rows(const ExecLayer *layer, int64_t row_bytes, bool back, const void *out, void *in)
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

/* Two buffers, one for each side of an exchange. */
typedef struct {
    ExecBlock block;
    void *out, *in;
} Wagon;

static bool
wagon_take(const ExecLayer *layer, Wagon *wagon)
{
    const ExecMoe *moe = layer->moe;
    const int64_t n = MAX(moe->n_sent, moe->n_received) * layer->widths->hidden;
    const int64_t n_bytes = padded(n, dtype_bytes(layer->widths->storage));

    *wagon = (Wagon){0};
    if (!take(layer, TRACE_MEMORY_WORKSPACE, 2 * n_bytes, &wagon->block))
        return false;
    wagon->out = wagon->block.data;
    wagon->in = (char *)wagon->out + n_bytes;
    return true;
}

/* @x [own rows, hidden] to the experts: @y [n_received, hidden] by expert. */
static void
send_rows(const ExecLayer *layer, const Wagon *wagon, const void *x, void *y)
{
    const ExecMoe *moe = layer->moe;
    ExecBackend *backend = layer->backend;
    const int64_t row_bytes = exec_storage_bytes(backend, layer->widths->hidden);

    backend->ops->gather_rows(backend, moe->n_sent, row_bytes, routing_of(moe).row, x, wagon->out);
    exchange_rows(layer, row_bytes, false, wagon->out, wagon->in);
    backend->ops->gather_rows(backend, moe->n_received, row_bytes,
                              experts_of(layer->widths, moe).arrived, wagon->in, y);
}

/* @y [n_received, hidden] by expert, back: added to @x [own rows, hidden]. */
static void
return_rows(const ExecLayer *layer, const Wagon *wagon, const void *y, void *x)
{
    const ExecMoe *moe = layer->moe;
    const ExecWidths *w = layer->widths;
    ExecBackend *backend = layer->backend;
    const int64_t row_bytes = exec_storage_bytes(backend, w->hidden);

    backend->ops->gather_rows(backend, moe->n_received, row_bytes, experts_of(w, moe).place, y,
                              wagon->out);
    exchange_rows(layer, row_bytes, true, wagon->out, wagon->in);
    backend->ops->sum_rows(backend, moe->n_rows, w->hidden, w->top_k, routing_of(moe).slot,
                           wagon->in, x);
}

/* p of the rows, to the experts' side. */
static void
send_weights(const ExecLayer *layer, const Wagon *wagon)
{
    const ExecMoe *moe = layer->moe;
    const Routing r = routing_of(moe);
    const Experts x = experts_of(layer->widths, moe);
    ExecBackend *backend = layer->backend;

    backend->ops->gather_rows(backend, moe->n_sent, 4, r.choice, r.weight, wagon->out);
    exchange_rows(layer, 4, false, wagon->out, wagon->in);
    backend->ops->gather_rows(backend, moe->n_received, 4, x.arrived, wagon->in, x.weight);
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
    const Experts x = experts_of(w, moe);
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
merge(const ExecLayer *layer, const Wagon *wagon, const void *results, void *y)
{
    const ExecWidths *w = layer->widths;
    ExecBackend *backend = layer->backend;
    const int64_t n = exec_slice_rows(&layer->slice) * w->hidden;
    ExecBlock whole = {0};
    int64_t begin;

    if (w->tp == 1 || w->sequence_parallel) {
        return_rows(layer, wagon, results, y);
        return;
    }
    own_rows(layer, &begin);
    if (!take(layer, TRACE_MEMORY_WORKSPACE, exec_storage_bytes(backend, n), &whole))
        return;
    backend->ops->zero(backend, (size_t)exec_storage_bytes(backend, n), whole.data);
    return_rows(layer, wagon, results, exec_at(backend, whole.data, begin * w->hidden));
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
    Wagon wagon;

    if (w->shared_hidden > 0)
        exec_mlp_forward(layer, y);
    else
        backend->ops->copy(backend, (size_t)exec_storage_bytes(backend, n_local), layer->a.x2, y);
    if (!plan_routes(layer) || !wagon_take(layer, &wagon))
        return;
    send_weights(layer, &wagon);
    send_rows(layer, &wagon, own_input(layer), experts_of(w, layer->moe).x);
    /* The way there is done: its buffers hold the results. */
    ExecBlock results = {0};
    if (take(layer, TRACE_MEMORY_WORKSPACE,
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
    Wagon wagon;
    ExecBlock block;
    void *d_active, *active; /* [n_received, expert_hidden] */
    void *d_x;               /* [n_received, hidden] */
    float *d_weight;         /* [n_received] */
    float *d_choice;         /* [n_rows, top_k] */
} Scratch;

static bool
scratch_take(const ExecLayer *layer, Scratch *s)
{
    const ExecWidths *w = layer->widths;
    const ExecMoe *moe = layer->moe;
    const int64_t n = moe->n_received, e = dtype_bytes(w->storage);
    const int64_t n_bytes = 2 * padded(n * w->expert_hidden, e) + padded(n * w->hidden, e) +
                            padded(n, 4) + padded(moe->n_sent, 4);

    *s = (Scratch){0};
    if (!wagon_take(layer, &s->wagon) || !take(layer, TRACE_MEMORY_WORKSPACE, n_bytes, &s->block))
        return false;
    char *at = s->block.data;
    s->d_active = cut(&at, n * w->expert_hidden, e);
    s->active = cut(&at, n * w->expert_hidden, e);
    s->d_x = cut(&at, n * w->hidden, e);
    s->d_weight = cut(&at, n, 4);
    s->d_choice = cut(&at, moe->n_sent, 4);
    return true;
}

/* From kept.d_out to kept.d_up, s->d_x and s->d_weight.  With u = d_out Wdown^T: dp = u . swiglu,
 * the gradient of swiglu is p u. */
static void
experts_backward(const ExecLayer *layer, const Scratch *s)
{
    const ExecWidths *w = layer->widths;
    const ExecMoe *moe = layer->moe;
    const Experts x = experts_of(w, moe);
    const Kept kept = kept_of(w, moe);
    const int64_t f = w->expert_hidden, n = moe->n_received;
    ExecBackend *backend = layer->backend;
    ExecTensor tensor;

    for (int64_t e = 0; e < w->n_local_experts; e++) {
        const ExecLinear down = expert_linear(layer, e, true, &tensor);
        exec_linear_backward(backend, &down, expert_rows(layer, kept.d_out, e, w->hidden), false,
                             NULL, expert_rows(layer, s->d_active, e, f));
    }
    backend->ops->swiglu_forward(backend, n, f, x.up, s->active);
    backend->ops->dot_rows(backend, n, f, s->d_active, s->active, s->d_weight);
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
    const Routing r = routing_of(moe);
    ExecBackend *backend = layer->backend;

    backend->ops->gather_rows(backend, moe->n_received, 4, experts_of(w, moe).place, s->d_weight,
                              s->wagon.out);
    exchange_rows(layer, 4, true, s->wagon.out, s->wagon.in);
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

    own_rows(layer, &begin);
    send_rows(layer, &s->wagon, exec_at(backend, d, begin * w->hidden), kept.d_out);
    experts_backward(layer, s);
    route_backward(layer, s);
    if (shares && !take(layer, TRACE_MEMORY_WORKSPACE, exec_storage_bytes(backend, n), &whole))
        return;
    if (shares)
        backend->ops->zero(backend, (size_t)exec_storage_bytes(backend, n), whole.data);
    void *own = shares ? exec_at(backend, whole.data, begin * w->hidden) : total;
    return_rows(layer, &s->wagon, s->d_x, own);
    exec_linear_backward(backend, &router, kept.d_scores, true, NULL, own);
    if (!shares)
        return;
    exec_comm_all_gather(layer->comm, EXEC_DIM_TP, w->storage, n, whole.data);
    backend->ops->add(backend, n, whole.data, total);
    exec_pool_give(layer->pool, &whole);
}

const void *
exec_moe_backward(const ExecLayer *layer, void *d_up, const void *d)
{
    const ExecWidths *w = layer->widths;
    ExecBackend *backend = layer->backend;
    const int64_t n_local = exec_local_rows(w, exec_slice_rows(&layer->slice)) * w->hidden;
    void *total = layer->scratch->partial;
    Scratch s = {0};

    if (w->shared_hidden > 0)
        total = exec_mlp_backward(layer, d_up, d);
    else
        backend->ops->zero(backend, (size_t)exec_storage_bytes(backend, n_local), total);
    if (take(layer, TRACE_MEMORY_ACTIVATIONS, kept_bytes(w, layer->moe), &layer->moe->kept) &&
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
    const Experts x = experts_of(w, layer->moe);
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
    exec_linear_weight(layer->backend, &router, own_input(layer), kept.d_scores);
    exec_pool_give(layer->pool, &layer->moe->kept);
}
