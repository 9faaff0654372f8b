#include "schedule/zb_bound.h"

/* --- chains --- */

static int32_t
chain_of(const ZbProblem *problem, int32_t rank, int32_t chunk, int step)
{
    return (rank * problem->v + chunk) * ZB_N_STEPS + step;
}

/* Ops of one (rank, chunk) that may hold @bytes_each at the same time. */
static int32_t
room_for(const ZbProblem *problem, int32_t rank, int64_t bytes_each)
{
    const int64_t by_bytes = bytes_each <= 0 ? INT64_MAX : problem->limit_bytes[rank] / bytes_each;

    return (int32_t)MIN(by_bytes, problem->m);
}

static void
set_chunk(ZbBound *bound, int32_t rank, int32_t chunk, bool relaxed)
{
    const ZbProblem *problem = bound->problem;
    const ZbOp *f = zb_op(problem, rank, zb_type(SCHEDULE_OP_FORWARD, chunk));
    const ZbOp *b = zb_op(problem, rank, zb_type(SCHEDULE_OP_BACKWARD, chunk));
    const ZbOp *i = zb_op(problem, rank, zb_type(SCHEDULE_OP_BACKWARD_INPUT, chunk));
    const ZbOp *w = zb_op(problem, rank, zb_type(SCHEDULE_OP_BACKWARD_WEIGHT, chunk));
    const int32_t first = chain_of(problem, rank, chunk, ZB_F);
    ZbChain *chains = &bound->chains[first];
    const int64_t input_ns = relaxed ? MIN(i->ns, b->ns) : i->ns;
    const int64_t both_ns = relaxed ? MIN(i->ns + w->ns, b->ns) : i->ns + w->ns;
    const int64_t stored = -w->end_bytes, all = f->begin_bytes;

    chains[ZB_F] = (ZbChain){rank, f->ns, f->message_ns, -1, -1, 0};
    chains[ZB_I] = (ZbChain){rank, input_ns, i->message_ns, -1, -1, 0};
    chains[ZB_W] = (ZbChain){rank, both_ns - input_ns, 0, -1, -1, 0};
    const int32_t until_weight = room_for(problem, rank, MIN(stored, all));
    const int32_t until_input = room_for(problem, rank, all);
    if (until_weight <= until_input) {
        chains[ZB_F].limit_by = first + ZB_W;
        chains[ZB_F].room = until_weight;
    } else {
        chains[ZB_F].limit_by = first + ZB_I;
        chains[ZB_F].room = until_input;
    }
    chains[ZB_I].limit_by = first + ZB_W;
    /* B never holds more than its F did. */
    chains[ZB_I].room = room_for(problem, rank, relaxed ? MIN(stored, all) : stored);
}

/* Fills in_order, previous and next: F down the chain of stages, I up, W. */
static void
link_chains(ZbBound *bound)
{
    const ZbProblem *problem = bound->problem;
    const Schedule placed = {
        .n_ranks = problem->p,
        .n_chunks = problem->v,
        .placement = SCHEDULE_PLACEMENT_V,
    };
    const int32_t n = problem->p * problem->v;
    int32_t last = -1;

    for (int32_t j = 0; j < 3 * n; j++) {
        const int step = j < n ? ZB_F : j < 2 * n ? ZB_I : ZB_W;
        const int32_t stage = step == ZB_I ? 2 * n - 1 - j : j % n;
        const int32_t rank = schedule_rank_of_stage(&placed, stage, 0);
        const int32_t chunk = schedule_chunk_of_stage(&placed, stage, 0);
        const int32_t chain = chain_of(problem, rank, chunk, step);
        bound->in_order[j] = chain;
        bound->previous[chain] = step == ZB_W ? chain - 1 : last;
        if (step != ZB_W && last >= 0)
            bound->chains[last].next = chain;
        last = chain;
    }
}

/* Invariant: the tails of all ops k + 1 and above are known, and those of op k that come later in
 * a micro-batch's way. */
static void
set_tails(ZbBound *bound)
{
    const int64_t m = bound->problem->m;

    for (int64_t i = 0; i < bound->n_chains * m; i++)
        bound->tail_ns[i] = INT64_MIN / 4;
    for (int64_t k = m - 1; k >= 0; k--)
        for (int32_t j = bound->n_chains - 1; j >= 0; j--) {
            const int32_t c = bound->in_order[j];
            const ZbChain *chain = &bound->chains[c];
            int64_t tail = MAX(bound->tail_ns[c * m + k], bound->offset_ns[chain->rank]);
            if (k + 1 < m)
                tail = MAX(tail, bound->tail_ns[c * m + k + 1] + chain->ns);
            if (chain->next >= 0)
                tail = MAX(tail, bound->tail_ns[chain->next * m + k] +
                                     bound->chains[chain->next].ns + chain->message_ns);
            if (c % ZB_N_STEPS == ZB_I)
                tail = MAX(tail, bound->tail_ns[(c + 1) * m + k] + bound->chains[c + 1].ns);
            bound->tail_ns[c * m + k] = tail;
            /* Hand on to the op that frees the memory of this one. */
            if (chain->limit_by >= 0 && k >= chain->room) {
                int64_t *freeing = &bound->tail_ns[chain->limit_by * m + k - chain->room];
                *freeing = MAX(*freeing, tail + chain->ns);
            }
        }
}

bool
zb_bound_init(ZbBound *bound, const ZbProblem *problem, ScheduleObjective objective, bool relaxed,
              GError **error)
{
    const int32_t n = problem->p * problem->v * ZB_N_STEPS;
    const size_t n_ops = (size_t)n * (size_t)problem->m;

    *bound = (ZbBound){
        .problem = problem,
        .n_chains = n,
        .chains = g_new0(ZbChain, (size_t)n),
        .in_order = g_new0(int32_t, (size_t)n),
        .previous = g_new0(int32_t, (size_t)n),
        .offset_ns = g_new0(int64_t, (size_t)problem->p),
        .tail_ns = g_try_malloc_n(n_ops, sizeof(int64_t)),
        .head_ns = g_try_malloc_n(n_ops, sizeof(int64_t)),
    };
    if (bound->tail_ns == NULL || bound->head_ns == NULL) {
        zb_bound_clear(bound);
        return schedule_refuse(
            error, LIMIT, "schedule zb-auto: no memory for the bounds of %d ranks", problem->p);
    }
    for (int32_t r = 0; r < problem->p; r++) {
        bound->offset_ns[r] = objective == SCHEDULE_OBJECTIVE_SPAN ? -problem->first_ns[r] : 0;
        for (int32_t c = 0; c < problem->v; c++)
            set_chunk(bound, r, c, relaxed);
    }
    link_chains(bound);
    set_tails(bound);
    return true;
}

void
zb_bound_clear(ZbBound *bound)
{
    g_clear_pointer(&bound->chains, g_free);
    g_clear_pointer(&bound->in_order, g_free);
    g_clear_pointer(&bound->previous, g_free);
    g_clear_pointer(&bound->offset_ns, g_free);
    g_clear_pointer(&bound->tail_ns, g_free);
    g_clear_pointer(&bound->head_ns, g_free);
}

/* --- bounds --- */

/* Invariant: the heads of all ops below k are known, and those of op k earlier in its way. */
static void
set_heads(ZbBound *bound, const ZbState *state)
{
    const int64_t m = bound->problem->m;
    int64_t first = m;

    for (int32_t c = 0; c < bound->n_chains; c++)
        first = MIN(first, state->done[c]);
    for (int64_t k = first; k < m; k++)
        for (int32_t j = 0; j < bound->n_chains; j++) {
            const int32_t c = bound->in_order[j];
            const int32_t done = state->done[c];
            const ZbChain *chain = &bound->chains[c];
            if (k < done) {
                g_assert(state->end_ns != NULL); /* NULL only where nothing is done */
                bound->head_ns[c * m + k] = state->end_ns[c * m + k] - chain->ns;
                continue;
            }
            int64_t head = state->free_ns[chain->rank];
            if (k > done)
                head = MAX(head, bound->head_ns[c * m + k - 1] + chain->ns);
            const int32_t previous = bound->previous[c];
            if (previous >= 0)
                head = MAX(head,
                           bound->head_ns[previous * m + k] + bound->chains[previous].ns +
                               (c % ZB_N_STEPS == ZB_W ? 0 : bound->chains[previous].message_ns));
            if (chain->limit_by >= 0 && k - chain->room >= state->done[chain->limit_by])
                head = MAX(head, bound->head_ns[chain->limit_by * m + k - chain->room] +
                                     bound->chains[chain->limit_by].ns);
            bound->head_ns[c * m + k] = head;
        }
}

/* Jackson's preemptive schedule.  Heads grow and tails fall along a chain, so only the first op of
 * each that is left competes. */
static int64_t
rank_bound(const ZbBound *bound, const ZbState *state, int32_t rank)
{
    const int64_t m = bound->problem->m;
    const int32_t n = bound->problem->v * ZB_N_STEPS, first = rank * n;
    int32_t next[ZB_MAX_CHUNKS * ZB_N_STEPS];
    int64_t left[ZB_MAX_CHUNKS * ZB_N_STEPS];
    int64_t now = state->free_ns[rank], answer = now + bound->offset_ns[rank];

    for (int32_t j = 0; j < n; j++) {
        next[j] = state->done[first + j];
        left[j] = bound->chains[first + j].ns;
    }
    for (;;) {
        int32_t best = -1;
        int64_t best_tail = INT64_MIN, then = INT64_MAX;
        for (int32_t j = 0; j < n; j++) {
            if (next[j] == m)
                continue;
            const int64_t i = (first + j) * m + next[j];
            if (bound->head_ns[i] > now) {
                then = MIN(then, bound->head_ns[i]);
            } else if (bound->tail_ns[i] > best_tail) {
                best = j;
                best_tail = bound->tail_ns[i];
            }
        }
        if (best < 0 && then == INT64_MAX)
            return answer;
        if (best < 0) {
            now = then;
        } else if (left[best] <= then - now) {
            now += left[best];
            answer = MAX(answer, now + best_tail);
            next[best]++;
            left[best] = bound->chains[first + best].ns;
        } else {
            left[best] -= then - now;
            now = then;
        }
    }
}

int64_t
zb_bound_ns(ZbBound *bound, const ZbState *state, int64_t *sum_ns)
{
    int64_t answer = 0, sum = 0;

    set_heads(bound, state);
    for (int32_t r = 0; r < bound->problem->p; r++) {
        const int64_t own = rank_bound(bound, state, r);
        answer = MAX(answer, own);
        sum += own / bound->problem->p;
    }
    if (sum_ns != NULL)
        *sum_ns = sum;
    return answer;
}

int64_t
zb_bound_root_ns(ZbBound *bound)
{
    const size_t n_chains = (size_t)bound->n_chains;
    g_autofree int32_t *done = g_new0(int32_t, n_chains);
    g_autofree int64_t *free_ns = g_new0(int64_t, (size_t)bound->problem->p);
    const ZbState state = {done, free_ns, NULL};

    return zb_bound_ns(bound, &state, NULL);
}
