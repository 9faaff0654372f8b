/*
 * schedule/zb_greedy.c - the list scheduler of zb-auto  [after 2401.10241 section 3.1].
 *
 * Time goes forward over all ranks.  A rank that is free takes
 *   an I or F whose message is there (which of them first: the policy), F only as far as the
 *   policy's number of F ahead of their I, and the memory, allow;
 *   else a W, if memory keeps an F waiting, or if the policy's share of it fits before the next
 *   message that is known to come;
 *   else it waits.
 *
 * With two chunks, memory could fill up with F of chunk 0 whose chunk 1 then has no room.  So an F
 * of chunk 0 leaves room for one F of chunk 1, unless one of those is held already.  Then the
 * oldest micro-batch of a rank can always go on: either its chunk 1 is held and will be freed, or
 * nothing younger took its room.
 */
#include "schedule/zb_order.h"

#include <string.h>

#define NEVER INT64_MAX

/* --- policies --- */

void
zb_policy_copy(ZbPolicy *to, const ZbPolicy *from, const ZbProblem *problem)
{
    void *ranks = to->ranks;

    *to = *from;
    to->ranks = memcpy(ranks, from->ranks, (size_t)problem->p * sizeof *from->ranks);
}

/* --- state --- */

typedef struct {
    int32_t forwards[ZB_MAX_CHUNKS], inputs[ZB_MAX_CHUNKS], weights[ZB_MAX_CHUNKS];
    int64_t bytes;
    int64_t free_ns; /* end of its last op */
} Rank;

typedef struct {
    const ZbProblem *problem; /* (borrowed) */
    const ZbPolicy *policy;   /* (borrowed) */
    ZbTimes *times;           /* (borrowed) messages, as zb_evaluate() leaves them */
    ZbOrder *order;           /* (borrowed) */
    Rank *ranks;              /* (owned) */
    int64_t *wake_ns;         /* (owned) [rank] when it decides next, or NEVER */
    int32_t *first;           /* (owned) tournament: [n_leaves + rank] are leaves, [1] the winner */
    int32_t n_leaves;
} State;

static inline bool
earlier(const State *s, int32_t a, int32_t b)
{
    return s->wake_ns[a] < s->wake_ns[b] || (s->wake_ns[a] == s->wake_ns[b] && a < b);
}

static void
set_wake(State *s, int32_t rank, int64_t ns)
{
    s->wake_ns[rank] = ns;
    for (int32_t i = (s->n_leaves + rank) / 2; i > 0; i /= 2) {
        const int32_t a = s->first[2 * i], b = s->first[2 * i + 1];
        s->first[i] = b < 0 || (a >= 0 && earlier(s, a, b)) ? a : b;
    }
}

static void
state_init(State *s)
{
    const ZbProblem *problem = s->problem;

    for (s->n_leaves = 1; s->n_leaves < problem->p; s->n_leaves *= 2)
        ;
    s->ranks = g_new0(Rank, (size_t)problem->p);
    s->wake_ns = g_new(int64_t, (size_t)problem->p);
    s->first = g_new(int32_t, 2 * (size_t)s->n_leaves);
    memset(s->first, 0xff, 2 * (size_t)s->n_leaves * sizeof(int32_t));
    for (int32_t r = 0; r < problem->p; r++) {
        s->first[s->n_leaves + r] = r;
        s->wake_ns[r] = NEVER;
        s->order->length[r] = 0;
    }
    for (int32_t r = problem->p - 1; r >= 0; r--)
        set_wake(s, r, r == 0 ? 0 : NEVER);
    memset(s->times->filled, 0, (size_t)problem->n_channels * sizeof(int32_t));
    memset(s->times->taken, 0, (size_t)problem->n_channels * sizeof(int32_t));
}

/* --- what a rank could do --- */

/* Bytes that a micro-batch needs at most, from F to W of a chunk. */
static int64_t
unit_bytes(const ZbProblem *problem, int32_t rank, int chunk)
{
    const int64_t f = zb_op(problem, rank, zb_type(SCHEDULE_OP_FORWARD, chunk))->begin_bytes;
    const int64_t i = zb_op(problem, rank, zb_type(SCHEDULE_OP_BACKWARD_INPUT, chunk))->end_bytes;

    return f + MAX(i, 0);
}

/* What the rank holds, each I counted as if it had no more to take. */
static bool
has_room(const State *s, int32_t rank, int chunk)
{
    const ZbProblem *problem = s->problem;
    const Rank *now = &s->ranks[rank];
    int64_t bytes = now->bytes + unit_bytes(problem, rank, chunk);
    bool holds_last = false;

    for (int c = 0; c < problem->v; c++) {
        const int64_t i = zb_op(problem, rank, zb_type(SCHEDULE_OP_BACKWARD_INPUT, c))->end_bytes;
        bytes += MAX(i, 0) * (now->forwards[c] - now->inputs[c]);
        holds_last = c > 0 && now->forwards[c] > now->weights[c];
    }
    if (chunk < problem->v - 1 && !holds_last)
        bytes += unit_bytes(problem, rank, problem->v - 1);
    return bytes <= problem->limit_bytes[rank];
}

/* When the next message of @op is there; NEVER if that is not known. */
static inline int64_t
arrival(const State *s, const ZbOp *op)
{
    const int32_t k = op->in < 0 ? 0 : s->times->taken[op->in];

    if (op->in < 0)
        return 0;
    return k < s->times->filled[op->in] ? s->times->ready_ns[(int64_t)op->in * s->problem->m + k]
                                        : NEVER;
}

/* What a rank sees when it is free. */
typedef struct {
    int type;            /* what can start now, or -1 */
    int64_t next_ns;     /* else when the next message that it can use comes */
    bool memory_is_full; /* an F waits for memory */
} View;

/* Looks at the F, or else at the I, of all chunks. */
static inline __attribute__((always_inline)) void
look_at(const State *s, bool forwards, int32_t rank, int64_t now_ns, View *view)
{
    const ZbProblem *problem = s->problem;
    const Rank *now = &s->ranks[rank];
    const int kind = forwards ? SCHEDULE_OP_FORWARD : SCHEDULE_OP_BACKWARD_INPUT;

    for (int i = 0; i < problem->v; i++) {
        const int c = s->policy->first_chunk[forwards ? 0 : 1] ? i : problem->v - 1 - i;
        const uint8_t type = zb_type(kind, c);
        if ((forwards ? now->forwards : now->inputs)[c] == problem->m)
            continue;
        if (forwards && c == 0 && now->forwards[0] - now->inputs[0] >= s->policy->ranks[rank].ahead)
            continue;
        const int64_t ns = arrival(s, zb_op(problem, rank, type));
        if (ns == NEVER)
            continue;
        if (forwards && !has_room(s, rank, c))
            view->memory_is_full |= ns <= now_ns;
        else if (ns > now_ns)
            view->next_ns = MIN(view->next_ns, ns);
        else if (view->type < 0)
            view->type = type;
    }
}

/* The W to run, or -1: of the chunk with more of them, the last one among equals. */
static int
pending_weight(const State *s, int32_t rank, int32_t *n_pending)
{
    const Rank *now = &s->ranks[rank];
    int best = -1;
    int32_t most = 0;

    *n_pending = 0;
    for (int c = s->problem->v - 1; c >= 0; c--) {
        const int32_t n = now->inputs[c] - now->weights[c];
        *n_pending += n;
        if (n > most) {
            most = n;
            best = zb_type(SCHEDULE_OP_BACKWARD_WEIGHT, c);
        }
    }
    return best;
}

/* --- doing it --- */

static void
start(State *s, int32_t rank, uint8_t type, int64_t now_ns)
{
    const ZbOp *op = zb_op(s->problem, rank, type);
    Rank *now = &s->ranks[rank];
    const int c = zb_chunk(type);
    const int64_t end_ns = now_ns + op->ns;

    zb_order_rank(s->order, s->problem, rank)[s->order->length[rank]++] = type;
    now->bytes += op->begin_bytes + op->end_bytes;
    if (zb_kind(type) == SCHEDULE_OP_FORWARD) {
        now->forwards[c]++;
    } else if (zb_kind(type) == SCHEDULE_OP_BACKWARD_INPUT) {
        now->inputs[c]++;
    } else {
        now->weights[c]++;
    }
    if (op->in >= 0)
        s->times->taken[op->in]++;
    now->free_ns = end_ns;
    set_wake(s, rank, end_ns);
    if (op->out < 0)
        return;
    const int64_t there_ns = end_ns + op->message_ns;
    const int64_t message = (int64_t)op->out * s->problem->m + s->times->filled[op->out]++;
    s->times->ready_ns[message] = there_ns;
    const int64_t look_ns = MAX(there_ns, s->ranks[op->out_rank].free_ns);
    if (s->wake_ns[op->out_rank] > look_ns)
        set_wake(s, op->out_rank, look_ns);
}

static void
decide(State *s, int32_t rank)
{
    const int64_t now_ns = s->wake_ns[rank];
    View view = {-1, NEVER, false};
    int32_t n_pending;
    const int weight = pending_weight(s, rank, &n_pending);

    if (n_pending >= s->policy->ranks[rank].pending && weight >= 0) {
        start(s, rank, (uint8_t)weight, now_ns);
        return;
    }
    if (s->policy->forward_first)
        look_at(s, true, rank, now_ns, &view);
    look_at(s, false, rank, now_ns, &view);
    if (!s->policy->forward_first)
        look_at(s, true, rank, now_ns, &view);
    if (view.type < 0 && weight >= 0) {
        const int64_t ns = zb_op(s->problem, rank, (uint8_t)weight)->ns;
        const uint8_t patience = s->policy->ranks[rank].patience;
        const int64_t share_ns = ns / 8 * patience + ns % 8 * patience / 8;
        if (view.memory_is_full || view.next_ns - now_ns >= share_ns)
            view.type = weight;
    }
    if (view.type < 0)
        set_wake(s, rank, view.next_ns);
    else
        start(s, rank, (uint8_t)view.type, now_ns);
}

bool
zb_greedy(const ZbProblem *problem, const ZbPolicy *policy, ZbTimes *times, ZbOrder *order)
{
    State s = {.problem = problem, .policy = policy, .times = times, .order = order};
    state_init(&s);
    while (s.wake_ns[s.first[1]] != NEVER)
        decide(&s, s.first[1]);
    g_free(s.ranks);
    g_free(s.wake_ns);
    g_free(s.first);
    return zb_order_n_ops(order, problem) == problem->p * problem->max_length;
}
