/*
 * schedule/zb_beam.c - the bounded search of zb-auto.
 *
 * Orders are built op by op: of all ops whose inputs are there take the one that could end first,
 * at time C on rank r; one of r's ops that could start before C comes next.  All active orders can
 * be built so, and one of them is optimal  [Giffler, Thompson 1960].  Of the partial orders with
 * as many ops, those with the best bounds live on  [beam search, Ow, Morton 1988].  If none was
 * ever dropped for lack of room, the answer is proven; but where two chunks share the memory, or an
 * I takes more than it frees, it can pay to wait with an F, and active orders are not all that
 * matter.
 */
#include "schedule/zb_bound.h"

#include <string.h>

#include "base/order.h"

/* Work of one bound per op that is left, in visits of zb_evaluate(). */
#define VISITS_PER_OP 3

/* More than this buys nothing that local search would not find cheaper. */
#define MAX_WIDTH 4096

typedef struct {
    int64_t bound_ns, sum_ns;
    uint64_t hash; /* of everything that what follows depends on */
    int32_t parent, chain;
} Child;

/* How an order of a generation came to be. */
typedef struct {
    int32_t parent, chain;
} Step;

typedef struct {
    const ZbProblem *problem; /* (borrowed) */
    ZbBound *bound;           /* (borrowed) */
    size_t state_size;        /* int64_t words of a state */
    GPtrArray *now, *next;    /* of (owned) int64_t *: states of a generation */
    GArray *children;         /* of Child */
    GPtrArray *steps;         /* of (owned) GArray of Step: by generation */
    bool dropped;             /* some state was, for lack of room, or is never reached */
} Beam;

/* A state is one block: done (as int64_t room), free, end. */
static ZbState
state_at(const Beam *beam, int64_t *block)
{
    const int32_t n = beam->bound->n_chains;

    return (ZbState){
        .done = (int32_t *)block,
        .free_ns = block + (n + 1) / 2,
        .end_ns = block + (n + 1) / 2 + beam->problem->p,
    };
}

/* --- what can come next --- */

/* Whether memory lets the next op of @chain run. */
static bool
has_room(const Beam *beam, const ZbState *state, int32_t chain)
{
    const ZbProblem *problem = beam->problem;
    const int32_t rank = beam->bound->chains[chain].rank;
    const int step = chain % ZB_N_STEPS;
    int64_t bytes = 0;

    if (step == ZB_W)
        return true;
    for (int c = 0; c < problem->v; c++) {
        const int32_t *done = &state->done[(rank * problem->v + c) * ZB_N_STEPS];
        const bool here = chain / ZB_N_STEPS % problem->v == c;
        const int64_t held = done[ZB_F] + (here && step == ZB_F);
        const int64_t back = done[ZB_I] + (here && step == ZB_I);
        bytes += (held - back) * zb_op(problem, rank, zb_type(SCHEDULE_OP_FORWARD, c))->begin_bytes;
        bytes -= (back - done[ZB_W]) *
                 zb_op(problem, rank, zb_type(SCHEDULE_OP_BACKWARD_WEIGHT, c))->end_bytes;
    }
    return bytes <= problem->limit_bytes[rank];
}

/* Earliest start of the next op of @chain, or -1 if it cannot be next. */
static int64_t
start_of(const Beam *beam, const ZbState *state, int32_t chain)
{
    const ZbBound *bound = beam->bound;
    const int32_t k = state->done[chain], previous = bound->previous[chain];
    int64_t ns = state->free_ns[bound->chains[chain].rank];

    if (k == beam->problem->m || (previous >= 0 && state->done[previous] <= k) ||
        !has_room(beam, state, chain))
        return -1;
    if (previous >= 0)
        ns = MAX(ns, state->end_ns[(int64_t)previous * beam->problem->m + k] +
                         (chain % ZB_N_STEPS == ZB_W ? 0 : bound->chains[previous].message_ns));
    return ns;
}

static void
run(const Beam *beam, ZbState *state, int32_t chain, int64_t start_ns)
{
    const ZbChain *c = &beam->bound->chains[chain];
    const int64_t end_ns = start_ns + c->ns;

    state->end_ns[(int64_t)chain * beam->problem->m + state->done[chain]++] = end_ns;
    state->free_ns[c->rank] = end_ns;
}

static uint64_t
mix(uint64_t hash, uint64_t value)
{
    return random_at(hash ^ (value * UINT64_C(0xff51afd7ed558ccd)), 0);
}

/* Counts, when ranks are free, and messages that are under way or not yet taken. */
static uint64_t
hash_of(const Beam *beam, const ZbState *state)
{
    const ZbBound *bound = beam->bound;
    const int64_t m = beam->problem->m;
    uint64_t hash = 0;

    for (int32_t r = 0; r < beam->problem->p; r++)
        hash = mix(hash, (uint64_t)state->free_ns[r]);
    for (int32_t c = 0; c < bound->n_chains; c++) {
        const ZbChain *chain = &bound->chains[c];
        hash = mix(hash, (uint64_t)state->done[c]);
        if (chain->next < 0)
            continue;
        const int64_t free_ns = state->free_ns[bound->chains[chain->next].rank];
        for (int64_t k = state->done[chain->next]; k < state->done[c]; k++)
            hash = mix(hash, (uint64_t)MAX(free_ns, state->end_ns[c * m + k] + chain->message_ns));
    }
    return hash;
}

/* Appends the children of state @parent whose bound is below @below_ns. */
static void
branch(Beam *beam, int32_t parent, int64_t below_ns)
{
    const ZbBound *bound = beam->bound;
    const int32_t n_rank = beam->problem->v * ZB_N_STEPS;
    ZbState state = state_at(beam, g_ptr_array_index(beam->now, (guint)parent));
    int64_t first_end = INT64_MAX;
    int32_t rank = -1;

    for (int32_t c = 0; c < bound->n_chains; c++) {
        const int64_t start = start_of(beam, &state, c);
        if (start >= 0 && start + bound->chains[c].ns < first_end) {
            first_end = start + bound->chains[c].ns;
            rank = bound->chains[c].rank;
        }
    }
    if (rank < 0)
        return; /* two chunks that wait for each other's memory */
    for (int32_t c = rank * n_rank; c < (rank + 1) * n_rank; c++) {
        const int64_t start = start_of(beam, &state, c);
        if (start < 0 || (start >= first_end && start + bound->chains[c].ns > first_end))
            continue;
        const int64_t free_ns = state.free_ns[rank];
        Child child = {.parent = parent, .chain = c};
        run(beam, &state, c, start);
        child.bound_ns = zb_bound_ns(beam->bound, &state, &child.sum_ns);
        child.hash = hash_of(beam, &state);
        state.done[c]--;
        state.free_ns[rank] = free_ns;
        if (child.bound_ns < below_ns)
            g_array_append_val(beam->children, child);
    }
}

/* --- generations --- */

static gint
compare_children(gconstpointer a, gconstpointer b)
{
    const Child *x = a, *y = b;

    ORDER_BY(x->bound_ns, y->bound_ns);
    ORDER_BY(x->sum_ns, y->sum_ns);
    ORDER_BY(x->hash, y->hash);
    ORDER_BY(x->parent, y->parent);
    return ORDER(x->chain, y->chain);
}

/* The best @width different children become the next generation. */
static void
select_children(Beam *beam, int64_t width)
{
    GArray *steps = g_array_new(FALSE, FALSE, sizeof(Step));
    uint64_t last = 0;

    g_array_sort(beam->children, compare_children);
    for (guint i = 0; i < beam->children->len; i++) {
        const Child *child = &g_array_index(beam->children, Child, i);
        const Step step = {child->parent, child->chain};
        if (i > 0 && child->hash == last)
            continue;
        if (steps->len == width) {
            beam->dropped = true;
            break;
        }
        last = child->hash;
        g_array_append_val(steps, step);
        if (beam->next->len < steps->len)
            g_ptr_array_add(beam->next, g_new(int64_t, beam->state_size));
        int64_t *block = g_ptr_array_index(beam->next, steps->len - 1);
        memcpy(block, g_ptr_array_index(beam->now, (guint)child->parent),
               beam->state_size * sizeof(int64_t));
        ZbState state = state_at(beam, block);
        run(beam, &state, child->chain, start_of(beam, &state, child->chain));
    }
    g_ptr_array_add(beam->steps, steps);
    GPtrArray *old = beam->now;
    beam->now = beam->next;
    beam->next = old;
}

static void
write_order(const Beam *beam, ZbOrder *order)
{
    static const ScheduleOpKind kinds[ZB_N_STEPS] = {
        SCHEDULE_OP_FORWARD, SCHEDULE_OP_BACKWARD_INPUT, SCHEDULE_OP_BACKWARD_WEIGHT};
    const ZbProblem *problem = beam->problem;
    int32_t at = 0;

    for (int32_t r = 0; r < problem->p; r++)
        order->length[r] = problem->max_length;
    g_autofree int64_t *n = g_memdup2(order->length, (size_t)problem->p * sizeof(int64_t));
    for (guint i = beam->steps->len; i > 0; i--) {
        const GArray *steps = g_ptr_array_index(beam->steps, i - 1);
        const Step step = g_array_index(steps, Step, (guint)at);
        const int32_t rank = beam->bound->chains[step.chain].rank;
        zb_order_rank(order, problem, rank)[--n[rank]] =
            zb_type((int)kinds[step.chain % ZB_N_STEPS], step.chain / ZB_N_STEPS % problem->v);
        at = step.parent;
    }
}

/* States that may live on when @left ops are to come and so much work. */
static int64_t
width_for(int64_t left, int64_t work)
{
    /* Two children each; the bounds get cheaper towards the end. */
    const int64_t one = MAX(1, left * (left + 1) * VISITS_PER_OP);

    return MIN(work / one, MAX_WIDTH);
}

/* Whether some active order is optimal: where only the next F of the same chunk may have to wait
 * for memory that an op takes.  Else it can pay to leave memory, and time, unused for another. */
static bool
is_job_shop(const ZbProblem *problem)
{
    for (int32_t r = 0; r < problem->p; r++)
        if (zb_op(problem, r, zb_type(SCHEDULE_OP_BACKWARD_INPUT, 0))->end_bytes > 0)
            return false;
    return problem->v == 1;
}

ZbBeamResult
zb_beam(const ZbProblem *problem, ZbBound *bound, ZbOrder *order, int64_t below_ns, int64_t *work)
{
    const size_t n = (size_t)bound->n_chains;
    const int64_t n_ops = problem->p * problem->max_length;
    Beam beam = {
        .problem = problem,
        .bound = bound,
        .state_size = (n + 1) / 2 + (size_t)problem->p + n * (size_t)problem->m,
        .dropped = !is_job_shop(problem),
    };
    ZbBeamResult result = ZB_BEAM_NOTHING;

    if (width_for(n_ops, *work) < 1)
        return result;
    beam.now = g_ptr_array_new_with_free_func(g_free);
    beam.next = g_ptr_array_new_with_free_func(g_free);
    beam.steps = g_ptr_array_new_with_free_func((GDestroyNotify)g_array_unref);
    beam.children = g_array_new(FALSE, FALSE, sizeof(Child));
    g_ptr_array_add(beam.now, g_new0(int64_t, beam.state_size));
    int64_t n_states = 1, left = n_ops;
    for (; left > 0 && n_states > 0; left--) {
        g_array_set_size(beam.children, 0);
        for (int32_t i = 0; i < n_states; i++)
            branch(&beam, i, below_ns);
        *work -= (int64_t)beam.children->len * left * VISITS_PER_OP;
        select_children(&beam, MAX(1, width_for(left, *work)));
        n_states = ((GArray *)g_ptr_array_index(beam.steps, beam.steps->len - 1))->len;
    }
    if (n_states > 0) {
        write_order(&beam, order);
        result = ZB_BEAM_BETTER;
    } else if (!beam.dropped) {
        result = ZB_BEAM_NONE_EXISTS;
    }
    g_ptr_array_unref(beam.now);
    g_ptr_array_unref(beam.next);
    g_ptr_array_unref(beam.steps);
    g_array_unref(beam.children);
    return result;
}
