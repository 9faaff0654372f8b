#include "executor/model/moe.h"

#include <string.h>

#include "executor/model/linear.h"

/* --- what lies in the blocks --- */

/* The routing block. */
typedef struct {
    int32_t *expert; /* [n_rows, top_k] */
    float *weight;   /* [n_rows, top_k] p */
    int32_t *slot;   /* [n_rows, top_k] where the choice lies among the rows that are sent */
    int32_t *row;    /* [n_sent] which row was sent there */
    int32_t *choice; /* [n_sent] for which choice: row * top_k + k */
    float *scores;   /* [n_rows, n_experts]; NULL where the factors alone give their gradient */
} Routing;

/* The experts' block and that of their products (x, active). */
typedef struct {
    int32_t *arrived; /* [n_received] where the i-th row by expert lies among those that arrived */
    int32_t *inverse; /* [n_received] of that permutation */
    float *weight;    /* [n_received] p, ordered by expert like all that follows */
    void *up;         /* [n_received, expert_up] */
    void *x;          /* [n_received, expert_input] */
    void *active; /* [n_received, expert_hidden] scaled by p; where backward makes it again, in a
                         * block of its own */
    void *stored; /* [n_received] p in the storage, where biases are multiplied with it */
    void *latent; /* [n_rows, expert_input] sums of results, where experts are latent */
} Experts;

/* The kept block. */
typedef struct {
    void *d_out;    /* [n_received, expert_input] gradient of the experts' outputs */
    void *d_up;     /* [n_received, expert_up] */
    void *d_scores; /* [n_rows, n_experts] */
    void *d_rows;   /* latent: [n_rows, hidden] gradient of the rows' results */
    void *d_latent; /* latent: [n_rows, expert_input] gradient of what is sent */
} Kept;

static bool
is_latent(const ExecWidths *w)
{
    return w->arch.experts.latent > 0;
}

/* Whether factors are the softmax over the chosen, as they are. */
static bool
has_plain_factors(const ExecWidths *w)
{
    return w->router_scores == EXEC_ROUTER_SOFTMAX && w->router_scale >= 1.0f &&
           w->router_scale <= 1.0f;
}

static Routing
cut_routing(const ExecWidths *w, const ExecMoe *moe, ExecCutter *cutter)
{
    Routing r = {0};

    r.expert = exec_cut_words(cutter, moe->n_sent);
    r.weight = exec_cut_words(cutter, moe->n_sent);
    r.slot = exec_cut_words(cutter, moe->n_sent);
    r.row = exec_cut_words(cutter, moe->n_sent);
    r.choice = exec_cut_words(cutter, moe->n_sent);
    if (!has_plain_factors(w))
        r.scores = exec_cut_words(cutter, moe->n_rows * w->n_experts);
    return r;
}

static Routing
routing_of(const ExecWidths *w, const ExecMoe *moe)
{
    return cut_routing(w, moe, &(ExecCutter){.block = moe->routing.data});
}

static Experts
cut_experts(const ExecWidths *w, const ExecMoe *moe, ExecCutter *experts, ExecCutter *products)
{
    const int64_t n = moe->n_received;
    Experts x = {0};

    x.arrived = exec_cut_words(experts, n);
    x.inverse = exec_cut_words(experts, n);
    x.weight = exec_cut_words(experts, n);
    x.up = exec_cut(experts, n * w->expert_up);
    x.x = exec_cut(products, n * w->expert_input);
    x.active = moe->repeats_active ? moe->active.data : exec_cut(products, n * w->expert_hidden);
    if (model_has_expert_bias(&w->arch))
        x.stored = exec_cut(products, n);
    if (is_latent(w))
        x.latent = exec_cut(products, moe->n_rows * w->expert_input);
    return x;
}

static Experts
experts_of(const ExecWidths *w, const ExecMoe *moe)
{
    return cut_experts(w, moe, &(ExecCutter){.block = moe->experts.data, .storage = w->storage},
                       &(ExecCutter){.block = moe->products.data, .storage = w->storage});
}

static Kept
cut_kept(const ExecWidths *w, const ExecMoe *moe, ExecCutter *cutter)
{
    Kept kept = {0};

    kept.d_out = exec_cut(cutter, moe->n_received * w->expert_input);
    kept.d_up = exec_cut(cutter, moe->n_received * w->expert_up);
    kept.d_scores = exec_cut(cutter, moe->n_rows * w->n_experts);
    if (is_latent(w)) {
        kept.d_rows = exec_cut(cutter, moe->n_rows * w->hidden);
        kept.d_latent = exec_cut(cutter, moe->n_rows * w->expert_input);
    }
    return kept;
}

static Kept
kept_of(const ExecWidths *w, const ExecMoe *moe)
{
    return cut_kept(w, moe, &(ExecCutter){.block = moe->kept.data, .storage = w->storage});
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
    exec_pool_give(pool, &moe->active);
    exec_pool_give(pool, &moe->kept);
    g_free(moe->sent);
    g_free(moe->received);
    g_free(moe->expert_begin);
    *moe = (ExecMoe){0};
}

/* Takes a block of the pool unless it is taken already.  False once anything of this rank's step
 * has failed: then sizes mean nothing. */
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

/* --- which rows go where --- */

/* How many rows this rank routes, and from which of its rows on: its own, or its share of those
 * that all tp ranks have. */
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

/* What the feed-forward reads of these rows. */
static void *
own_input(const ExecLayer *layer)
{
    int64_t begin;

    own_rows(layer, &begin);
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
static ExecRoute
route_of(const ExecLayer *layer)
{
    const ExecWidths *w = layer->widths;
    const Routing r = routing_of(w, layer->moe);

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

    moe->n_rows = own_rows(layer, &begin);
    moe->n_sent = moe->n_rows * w->top_k;
    ExecCutter size = {0};
    cut_routing(w, moe, &size);
    if (!take(layer, TRACE_MEMORY_ACTIVATIONS, size.n_bytes, &moe->routing) ||
        !take(layer, TRACE_MEMORY_WORKSPACE, moe->n_rows * w->n_experts * 4, &scores))
        return false;
    const Routing r = routing_of(w, moe);
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
                           .bias = layer->tensors->router_bias.weight,
                       });
    if (w->balance_experts)
        balance(layer, scores.data);
    backend->ops->route(backend, moe->n_rows, w->n_experts, w->top_k, scores.data, r.expert,
                        r.weight);
    if (!has_plain_factors(w)) {
        const ExecRoute route = route_of(layer);
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
    const Routing r = routing_of(w, moe);
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

/* Rows arrive ordered by (rank, expert), and the experts read them by (expert, rank): fills in the
 * permutation. */
static void
sort_arrivals(const ExecLayer *layer, const int64_t *counts)
{
    const ExecWidths *w = layer->widths;
    const ExecMoe *moe = layer->moe;
    const Experts x = experts_of(w, moe);
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
static bool
plan_routes(const ExecLayer *layer)
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
    cut_experts(w, moe, &experts, &products);
    if (!take(layer, TRACE_MEMORY_ACTIVATIONS, experts.n_bytes, &moe->experts) ||
        !take(layer, TRACE_MEMORY_ACTIVATIONS, products.n_bytes, &moe->products))
        return false;
    sort_arrivals(layer, counts);
    return true;
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
    if (!take(layer, TRACE_MEMORY_WORKSPACE, 2 * n_bytes, &exchange->block))
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
                                     experts_of(layer->widths, layer->moe).arrived, exchange->in,
                                     y);
}

/* Sends @x [own rows, expert_input] to the experts: @y [n_received, expert_input] ordered by
 * expert. */
static void
send_rows(const ExecLayer *layer, const Exchange *exchange, const void *x, void *y)
{
    send_to_experts(layer, exchange,
                    exec_storage_bytes(layer->backend, layer->widths->expert_input),
                    routing_of(layer->widths, layer->moe).row, x, y);
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
                  experts_of(w, moe).inverse, y);
    backend->ops->sum_rows(backend, moe->n_rows, w->expert_input, w->top_k, routing_of(w, moe).slot,
                           exchange->in, x);
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

/* --- the experts themselves --- */

/* Expert @e's rows of a matrix [n_received, cols]. */
static void *
expert_rows(const ExecLayer *layer, const void *x, int64_t e, int64_t cols)
{
    return exec_at(layer->backend, x, layer->moe->expert_begin[e] * cols);
}

/* Row @e of @all, whose rows have @n elements; of NULL NULL. */
static ExecTensor
part_of(const ExecLayer *layer, const ExecTensor *all, int64_t e, int64_t n)
{
    return (ExecTensor){
        .weight = all->weight == NULL ? NULL : exec_at(layer->backend, all->weight, e * n),
        .gradient = all->gradient == NULL ? NULL : all->gradient + e * n,
    };
}

/* A product of expert @e; @tensors  (out) its weights and biases, which the product points to.  The
 * biases of the second product are multiplied with p: add_second_biases(). */
static ExecLinear
expert_linear(const ExecLayer *layer, int64_t e, bool down, ExecTensor tensors[2])
{
    const ExecWidths *w = layer->widths;
    const ExecTensor *all =
        down ? &layer->tensors->experts_down_weight : &layer->tensors->experts_up_weight;
    const int64_t inputs = down ? w->expert_hidden : w->expert_input;
    const int64_t cols = down ? w->expert_input : w->expert_up;

    tensors[0] = part_of(layer, all, e, inputs * cols);
    tensors[1] = down ? (ExecTensor){0} : part_of(layer, &layer->tensors->experts_up_bias, e, cols);
    return (ExecLinear){
        .rows = layer->moe->expert_begin[e + 1] - layer->moe->expert_begin[e],
        .inputs = inputs,
        .cols = cols,
        .weight = &tensors[0],
        .bias = &tensors[1],
    };
}

/* What a product of the experts is part of. */
typedef enum {
    FORWARD,  /* @from  inputs, @to  outputs */
    BACKWARD, /* @from  gradients of the outputs, @to  those of the inputs */
    WEIGHT,   /* @from  inputs, @to  gradients of the outputs, which are read too */
} Pass;

/* Computes the up or down product of every expert with its rows. */
static void
each_expert(const ExecLayer *layer, Pass pass, bool down, const void *from, void *to)
{
    for (int64_t e = 0; e < layer->widths->n_local_experts; e++) {
        ExecTensor tensors[2];
        const ExecLinear linear = expert_linear(layer, e, down, tensors);
        const bool backward = pass == BACKWARD;
        void *x = expert_rows(layer, from, e, backward ? linear.cols : linear.inputs);
        void *y = expert_rows(layer, to, e, backward ? linear.inputs : linear.cols);
        switch (pass) {
        case FORWARD:
            exec_linear_forward(layer->backend, &linear, x, NULL, y);
            break;
        case BACKWARD:
            exec_linear_backward(layer->backend, &linear, x, false, NULL, y);
            break;
        case WEIGHT:
            exec_linear_weight(layer->backend, &linear, x, y);
            break;
        }
    }
}

/* The biases of the experts' second products, as products with one row: y += p b.  WEIGHT: @y is
 * the gradient of the experts' results, and that of b is added up.  BACKWARD: so is that of p to
 * @d_weight. */
static void
second_biases(const ExecLayer *layer, Pass pass, void *y, float *d_weight)
{
    const ExecWidths *w = layer->widths;
    const int64_t cols = w->expert_input;
    const Experts x = experts_of(w, layer->moe);

    for (int64_t e = 0; x.stored != NULL && e < w->n_local_experts; e++) {
        const ExecTensor bias = part_of(layer, &layer->tensors->experts_down_bias, e, cols);
        const int64_t begin = layer->moe->expert_begin[e];
        const int64_t rows = layer->moe->expert_begin[e + 1] - begin;
        const ExecLinear linear = {.rows = rows, .inputs = 1, .cols = cols, .weight = &bias};
        void *of_rows = expert_rows(layer, y, e, cols);
        const void *p = exec_at(layer->backend, x.stored, begin);
        if (pass == WEIGHT)
            exec_linear_weight(layer->backend, &linear, p, of_rows);
        else
            exec_gemm(layer->backend, &(ExecGemm){
                                          .accumulate = true,
                                          .c_fp32 = pass == BACKWARD,
                                          .m = rows,
                                          .n = pass == BACKWARD ? 1 : cols,
                                          .k = pass == BACKWARD ? cols : 1,
                                          .a = pass == BACKWARD ? of_rows : p,
                                          .lda = pass == BACKWARD ? cols : 1,
                                          .b = bias.weight,
                                          .ldb = pass == BACKWARD ? 1 : cols,
                                          .c = pass == BACKWARD ? d_weight + begin : of_rows,
                                          .ldc = pass == BACKWARD ? 1 : cols,
                                      });
    }
}

/* Makes what the second products read, of the results of the first ones.  False once anything has
 * failed. */
static bool
activate_experts(const ExecLayer *layer)
{
    ExecMoe *moe = layer->moe;
    const int64_t f = layer->widths->expert_hidden, n = moe->n_received;
    ExecBackend *backend = layer->backend;

    if (moe->repeats_active &&
        !take(layer, TRACE_MEMORY_ACTIVATIONS, exec_storage_bytes(backend, n * f), &moe->active))
        return false;
    const Experts x = experts_of(layer->widths, moe);
    exec_activate(backend, layer->widths->activation, n, f, x.up, x.active);
    backend->ops->scale_rows(backend, n, f, x.weight, x.active);
    return true;
}

static void
experts_forward(const ExecLayer *layer, void *y)
{
    const ExecMoe *moe = layer->moe;
    ExecBackend *backend = layer->backend;
    Experts x = experts_of(layer->widths, moe);

    each_expert(layer, FORWARD, false, x.x, x.up);
    if (!activate_experts(layer))
        return;
    x = experts_of(layer->widths, moe);
    each_expert(layer, FORWARD, true, x.active, y);
    exec_pool_give(layer->pool, &layer->moe->active);
    if (x.stored != NULL)
        backend->ops->to_storage(backend, moe->n_received, x.weight, x.stored);
    second_biases(layer, FORWARD, y, NULL);
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
    if (!take(layer, TRACE_MEMORY_WORKSPACE, n_bytes, shares))
        return false;
    backend->ops->zero(backend, (size_t)n_bytes, shares->data);
    own_rows(layer, &begin);
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
    if (is_latent(layer->widths)) {
        const ExecLinear up = latent_linear(layer, true);
        const Experts x = experts_of(layer->widths, layer->moe);
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

    if (!is_latent(layer->widths))
        return own_input(layer);
    const ExecLinear down = latent_linear(layer, false);
    if (!take(layer, TRACE_MEMORY_WORKSPACE, exec_storage_bytes(backend, down.rows * down.cols),
              block))
        return NULL;
    exec_linear_forward(backend, &down, own_input(layer), NULL, block->data);
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
    if (!plan_routes(layer) || !exchange_take(layer, &exchange))
        return;
    const Routing r = routing_of(w, layer->moe);
    const Experts x = experts_of(w, layer->moe);
    ExecBlock narrow = {0};
    const void *rows = rows_to_send(layer, &narrow);
    if (rows != NULL) {
        send_to_experts(layer, &exchange, sizeof *x.weight, r.choice, r.weight, x.weight);
        send_rows(layer, &exchange, rows, x.x);
    }
    exec_pool_give(layer->pool, &narrow);
    /* The rows are with their experts: the buffers of the exchange are free for the results. */
    ExecBlock results = {0};
    if (take(layer, TRACE_MEMORY_WORKSPACE,
             exec_storage_bytes(backend, layer->moe->n_received * w->expert_input), &results)) {
        experts_forward(layer, results.data);
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
    if (!take(layer, TRACE_MEMORY_WORKSPACE, cut_scratch(layer, s), &s->block))
        return false;
    cut_scratch(layer, s);
    return true;
}

/* Computes kept.d_up, s->d_x and s->d_weight from kept.d_out.  With u = d_out Wdown^T: the gradient
 * of p is u . swiglu, and that of swiglu is p u. */
static void
experts_backward(const ExecLayer *layer, const Scratch *s)
{
    const ExecWidths *w = layer->widths;
    const Experts x = experts_of(w, layer->moe);
    const Kept kept = kept_of(w, layer->moe);
    const int64_t f = w->expert_hidden, n = layer->moe->n_received;
    ExecBackend *backend = layer->backend;
    void *active = kept.d_up; /* the activation lies there until d_up is computed */

    each_expert(layer, BACKWARD, true, kept.d_out, s->d_active);
    exec_activate(backend, w->activation, n, f, x.up, active);
    backend->ops->dot_rows(backend, n, f, s->d_active, active, s->d_weight);
    second_biases(layer, BACKWARD, kept.d_out, s->d_weight);
    backend->ops->scale_rows(backend, n, f, x.weight, s->d_active);
    exec_activate_backward(backend, w->activation, n, f, x.up, s->d_active, kept.d_up);
    each_expert(layer, BACKWARD, false, kept.d_up, s->d_x);
}

/* Sends the gradient of p back to its rows, and computes that of their scores. */
static void
route_backward(const ExecLayer *layer, const Scratch *s)
{
    const ExecWidths *w = layer->widths;
    const ExecMoe *moe = layer->moe;
    const Routing r = routing_of(w, moe);
    ExecBackend *backend = layer->backend;

    exchange_rows(layer, &s->exchange, sizeof *s->d_weight, true, experts_of(w, moe).inverse,
                  s->d_weight);
    backend->ops->gather_rows(backend, moe->n_sent, 4, r.slot, s->exchange.in, s->d_choice);
    if (!has_plain_factors(w)) {
        const ExecRoute route = route_of(layer);
        backend->ops->route_factors_backward(backend, &route, s->d_choice,
                                             kept_of(w, moe).d_scores);
        return;
    }
    backend->ops->route_backward(backend, moe->n_rows, w->n_experts, w->top_k, r.expert, r.weight,
                                 s->d_choice, kept_of(w, moe).d_scores);
}

/* Adds the gradient of norm2's rows through experts and router to @total [local rows, hidden]. */
static void
backward_into(const ExecLayer *layer, const Scratch *s, const void *d, void *total)
{
    const ExecWidths *w = layer->widths;
    ExecBackend *backend = layer->backend;
    const Kept kept = kept_of(w, layer->moe);
    const ExecLinear router = router_of(layer);
    ExecBlock shares;
    int64_t begin;
    void *own;

    own_rows(layer, &begin);
    const void *d_own = exec_at(backend, d, begin * w->hidden);
    if (is_latent(w)) {
        const ExecLinear up = latent_linear(layer, true);
        backend->ops->copy(backend, (size_t)exec_storage_bytes(backend, up.rows * up.cols), d_own,
                           kept.d_rows);
        exec_linear_backward(backend, &up, d_own, false, NULL, kept.d_latent);
        d_own = kept.d_latent;
    }
    send_rows(layer, &s->exchange, d_own, kept.d_out);
    experts_backward(layer, s);
    route_backward(layer, s);
    if (!begin_sum(layer, total, &shares, &own))
        return;
    if (is_latent(w)) {
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
    cut_kept(w, layer->moe, &size);
    if (take(layer, TRACE_MEMORY_ACTIVATIONS, size.n_bytes, &layer->moe->kept) &&
        scratch_take(layer, &s))
        backward_into(layer, &s, d, total);
    exec_pool_give(layer->pool, &s.block);
    exec_pool_give(layer->pool, &s.exchange.block);
    /* What it is made of goes back before W. */
    if (layer->op == SCHEDULE_OP_BACKWARD_INPUT && layer->moe->repeats_active &&
        layer->comm->error == NULL)
        activate_experts(layer);
    return total;
}

void
exec_moe_weight(const ExecLayer *layer, const void *in, const void *d_up, const void *d_down)
{
    const ExecWidths *w = layer->widths;

    if (w->ffn_hidden > 0)
        exec_mlp_weight(layer, in, d_up, d_down);
    if (layer->comm->error != NULL || (layer->op == SCHEDULE_OP_BACKWARD &&
                                       layer->moe->repeats_active && !activate_experts(layer)))
        return;
    const Experts x = experts_of(w, layer->moe);
    const Kept kept = kept_of(w, layer->moe);
    const ExecLinear router = router_of(layer);
    each_expert(layer, WEIGHT, false, x.x, kept.d_up);
    each_expert(layer, WEIGHT, true, x.active, kept.d_out);
    second_biases(layer, WEIGHT, kept.d_out, NULL);
    if (is_latent(w)) {
        const ExecLinear down = latent_linear(layer, false), up = latent_linear(layer, true);
        exec_linear_weight(layer->backend, &down, own_input(layer), kept.d_latent);
        exec_linear_weight(layer->backend, &up, x.latent, kept.d_rows);
    }
    exec_linear_weight(layer->backend, &router, own_input(layer), kept.d_scores);
    exec_pool_give(layer->pool, &layer->moe->kept);
}
