#include "simulator/program.h"

#include <string.h>

#include "base/host_memory.h"
#include "profiles/workload/prefetch.h"
#include "schedule/check.h"
#include "schedule/graph.h"
#include "simulator/pairs.h"

/* --- costs --- */

/* The message between @from's stage and the next or last one (@step), priced by @from. */
static SimMessage
message_between(const SimProgram *program, const WorkloadOp *from, int32_t rank, int32_t peer,
                bool forward)
{
    if (peer < 0 || peer == rank)
        return (SimMessage){.peer = peer};
    const WorkloadMessage *message = workload_message(from, forward);
    return (SimMessage){
        .peer = peer,
        .ns = message->ns,
        .bytes = message->bytes,
        .exists = message->ns > 0 || message->bytes > 0,
        .compute_ns = program->workload->blocking_messages ? message->ns : 0,
    };
}

/* As above, for its sender, who need not wait for what the transport buffers. */
static SimMessage
message_from(const SimProgram *program, const WorkloadOp *op, int32_t rank, int32_t peer,
             bool forward)
{
    SimMessage message = message_between(program, op, rank, peer, forward);

    message.compute_ns = MAX(0, message.compute_ns - workload_message(op, forward)->buffered_ns);
    return message;
}

/* The ranks of the stages before, at and after a place in a chain; -1: there is none. */
typedef struct {
    int32_t previous, here, next;
} Neighbours;

static SimCostDetail
detail_of(const SimProgram *program, const WorkloadOp *op, const Neighbours *neighbours, int kind)
{
    const Workload *workload = program->workload;
    /* The op of the same class and slice, one stage on. */
    const ptrdiff_t stage = (ptrdiff_t)workload->n_classes * workload->n_slices;
    SimCostDetail detail = {.rank = neighbours->here,
                            .op_ns = op->time_ns[sim_op_kind(kind)] + workload->op_overhead_ns};

    if (kind == SCHEDULE_OP_FORWARD) {
        const WorkloadOp *from = neighbours->previous < 0 ? NULL : op - stage;
        detail.in = message_between(program, from, neighbours->here, neighbours->previous, true);
        detail.out = message_from(program, op, neighbours->here, neighbours->next, true);
    } else if (kind != SCHEDULE_OP_BACKWARD_WEIGHT) {
        const WorkloadOp *from = neighbours->next < 0 ? NULL : op + stage;
        detail.in = message_between(program, from, neighbours->here, neighbours->next, false);
        detail.out = message_from(program, op, neighbours->here, neighbours->previous, false);
    }
    return detail;
}

bool
sim_fail_limit(GError **error, const char *what)
{
    return schedule_refuse(error, LIMIT, "workload: %s", what);
}

/* Times of @op and what it sends, each in [0, SIM_MAX_NS / 8]: their sums below cannot overflow. */
static bool
check_op(const WorkloadOp *op, GError **error)
{
    for (int kind = 0; kind < SCHEDULE_OP_N; kind++) {
        if (op->time_ns[kind] < 0 || op->time_ns[kind] > SIM_MAX_NS / 8)
            return sim_fail_limit(error, "an op's time is negative or longer than 18 years");
        for (int part = 0; part < PROFILE_PART_N; part++)
            if (op->part_ns[kind][part] < 0 || op->part_ns[kind][part] > op->time_ns[kind])
                return sim_fail_limit(error,
                                      "a part of an op's time is negative or longer than all");
    }
    if (op->forward_message.ns < 0 || op->forward_message.ns > SIM_MAX_NS / 8 ||
        op->backward_message.ns < 0 || op->backward_message.ns > SIM_MAX_NS / 8 ||
        op->forward_message.buffered_ns < 0 || op->backward_message.buffered_ns < 0 ||
        op->forward_message.bytes < 0 || op->backward_message.bytes < 0)
        return sim_fail_limit(error, "a message is negative or takes longer than 18 years");
    return true;
}

static bool
check_shape(const Schedule *schedule, const Workload *workload, GError **error)
{
    const int32_t n_chains = schedule_placement_n_chains(schedule->placement);
    const struct {
        const char *name;
        int32_t have, want;
    } sizes[] = {
        {"ranks", workload->n_ranks, schedule->n_ranks},
        {"stages", workload->n_stages, schedule_n_stages(schedule)},
        {"slices", workload->n_slices, schedule->n_slices},
        {"chains of stages", workload->n_chains, n_chains},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++)
        if (sizes[i].have != sizes[i].want)
            return schedule_refuse(error, SHAPE, "the times are for %d %s, the schedule has %d",
                                   sizes[i].have, sizes[i].name, sizes[i].want);
    if (workload->n_classes < 1)
        return sim_fail_limit(error, "there is no class of micro-batches");
    if (workload->op_overhead_ns < 0 || workload->op_overhead_ns > SIM_MAX_NS / 8)
        return sim_fail_limit(error, "an op's overhead is negative or longer than 18 years");
    const int32_t n_micro_batches = schedule_chain_micro_batches(schedule);
    for (int32_t m = 0; workload->class_of_micro_batch != NULL && m < n_micro_batches; m++)
        if (workload->class_of_micro_batch[m] < 0 ||
            workload->class_of_micro_batch[m] >= workload->n_classes)
            return schedule_refuse(error, SHAPE, "micro-batch %d is of class %d, and there are %d",
                                   m, workload->class_of_micro_batch[m], workload->n_classes);
    return true;
}

bool
sim_fail_memory(GError **error, int64_t n, const char *what)
{
    g_autofree char *available = host_memory_text();

    return schedule_refuse(error, LIMIT, "no memory for %" G_GINT64_FORMAT " %s%s", n, what,
                           available);
}

/* Fills costs and details of the ops of one stage, from @cost on. */
static void
price_stage(SimProgram *program, int32_t chain, int32_t stage, int64_t cost)
{
    const Schedule *schedule = program->schedule;
    const Workload *workload = program->workload;
    const int64_t end = cost + (int64_t)workload->n_classes * workload->n_slices * SIM_KIND_N;
    const Neighbours neighbours = {
        .previous = stage > 0 ? schedule_rank_of_stage(schedule, stage - 1, chain) : -1,
        .here = schedule_rank_of_stage(schedule, stage, chain),
        .next = stage + 1 < workload->n_stages ? schedule_rank_of_stage(schedule, stage + 1, chain)
                                               : -1,
    };

    for (; cost < end; cost++) {
        const WorkloadOp *op = sim_program_workload_op(program, cost);
        const SimCostDetail d = detail_of(program, op, &neighbours, (int)(cost % SIM_KIND_N));
        program->details[cost] = d;
        program->costs[cost] = (SimCost){
            .busy_ns = d.in.compute_ns + d.op_ns + d.out.compute_ns,
            .rank = neighbours.here,
            .lag_ns = workload->blocking_messages ? -d.out.compute_ns : d.out.ns,
            .stream = workload->links != NULL && !workload->blocking_messages && d.out.ns > 0
                          ? sim_stream(program, neighbours.here, d.out.peer)
                          : 0,
        };
    }
}

static bool
price(SimProgram *program, GError **error)
{
    const Workload *w = program->workload;
    const int64_t per_stage = (int64_t)w->n_classes * w->n_slices;
    const int64_t n_ops = (int64_t)w->n_chains * w->n_stages * per_stage;

    program->n_costs = n_ops * SIM_KIND_N;
    if (program->n_costs <= UINT32_MAX) {
        program->costs = pages_try_malloc((size_t)program->n_costs, sizeof(SimCost));
        program->details = pages_try_malloc((size_t)program->n_costs, sizeof(SimCostDetail));
        program->counts = g_try_new0(int64_t, (size_t)program->n_costs);
    }
    if (program->costs == NULL || program->details == NULL || program->counts == NULL)
        return sim_fail_memory(error, program->n_costs, "different ops");
    for (int64_t i = 0; i < n_ops; i++)
        if (!check_op(&w->ops[i], error))
            return false;
    for (int32_t chain = 0; chain < w->n_chains; chain++)
        for (int32_t stage = 0; stage < w->n_stages; stage++)
            price_stage(program, chain, stage,
                        ((int64_t)chain * w->n_stages + stage) * per_stage * SIM_KIND_N);
    return true;
}

/* --- from a Schedule to steps in topological order, checked on the way --- */

/*
 * A worklist over ranks: each runs its ops in order until one needs a message that was not sent
 * yet.  It finds producers by arithmetic on (rank, virtual id), with the dependencies as
 * schedule/schedule.h states them, and meets each op once; deriving a ScheduleGraph first and then
 * compiling that costs some three times as much, and three times the memory.
 *
 * Anything that is not as it should be (an op missing, twice there, out of order, a deadlock) ends
 * the walk; then schedule_graph_new(), which judges schedules for everyone, names it.
 */

/* What is known of one (rank, virtual id), by direction: 0 forward, 1 backward.  1 + the step of
 * its F, and of its B or I; 0: not run yet. */
typedef struct {
    uint32_t done[2];
} Slot;

/* Marks in done[1] beside the step, which is below 2^29. */
#define SLOT_STEP UINT32_C(0x1fffffff)
#define SLOT_HAS_WEIGHT UINT32_C(0x20000000) /* the rank has a W of it */
#define SLOT_WEIGHT_DONE UINT32_C(0x40000000)
#define SLOT_IS_INPUT UINT32_C(0x80000000) /* the backward is an I */

G_STATIC_ASSERT(SCHEDULE_MAX_OPS < SLOT_STEP);

/* Waits for nothing. */
#define NOTHING INT64_C(-1)

/* The neighbours of one (rank, chunk) in its chain, by direction: whose message an op needs, and
 * who needs its own. */
typedef struct {
    int32_t from, to; /* ranks; n_ranks: nobody */
    /* Slot of the same micro-batch and slice at @from, less the virtual id here. */
    int64_t from_slot;
} Neighbour;

typedef struct {
    Neighbour neighbour[2];
    uint32_t cost; /* of class 0, slice 0, F */
} Link;

typedef struct {
    int64_t next;    /* its first op that did not run, */
    int64_t end;     /* of these */
    int64_t waiting; /* 2 * slot + direction that must be done before, or NOTHING */
    int32_t in_flight, peak;
} RankState;

typedef struct {
    SimProgram *program; /* (borrowed) */
    /* Of program and schedule, again: who walks has them at hand, since what it writes cannot be
     * they. */
    const ScheduleOp *ops;               /* (borrowed) */
    const int32_t *class_of_micro_batch; /* (borrowed, nullable) */
    SimStep *steps;                      /* (borrowed) */
    uint32_t *step_of;                   /* (borrowed) */
    int64_t *counts;                     /* (borrowed) */
    int32_t n_ranks, n_chunks, n_slices;
    int32_t n_micro_batches; /* of a chain */
    int64_t n_virtual_ids;
    bool weights_are_marked;
    Slot *slots;        /* (owned) [rank * n_virtual_ids + virtual id] */
    Link *links;        /* (owned) [rank * n_chunks + chunk] */
    RankState *ranks;   /* (owned) [n_ranks + 1]; the last is nobody and never waits */
    int64_t *next_pair; /* (owned, nullable) [rank] index into overlap_pairs of its next pair */
    int32_t *ready;     /* (owned) stack of ranks that may go on; each at most once */
    int32_t n_ready;
    uint32_t n_steps; /* so far */
} Walk;

static void
walk_clear(Walk *walk)
{
    g_free(walk->slots);
    g_free(walk->links);
    g_free(walk->ranks);
    g_free(walk->ready);
    g_free(walk->next_pair);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Walk, walk_clear)

/* --- before the walk --- */

/* What the op at @stage of @chain, on another slot, is to @chunk of @rank. */
static Neighbour
neighbour_of(const Walk *walk, int32_t chunk, int32_t stage, int32_t chain)
{
    const Schedule *schedule = walk->program->schedule;
    Neighbour neighbour = {.from = schedule->n_ranks, .to = schedule->n_ranks};

    if (stage < 0 || stage >= walk->program->workload->n_stages)
        return neighbour;
    const int32_t other = schedule_chunk_of_stage(schedule, stage, chain);
    neighbour.from = schedule_rank_of_stage(schedule, stage, chain);
    neighbour.from_slot =
        neighbour.from * walk->n_virtual_ids + (int64_t)(other - chunk) * schedule->n_slices;
    return neighbour;
}

static Link
link_of(const Walk *walk, int32_t rank, int32_t chunk)
{
    const Schedule *schedule = walk->program->schedule;
    const Workload *workload = walk->program->workload;
    const int32_t chain = schedule_placement_chain(schedule->placement, chunk);
    const int32_t stage = schedule_stage(schedule, rank, chunk);
    const int64_t place = (int64_t)chain * workload->n_stages + stage;
    Link link = {
        .neighbour = {neighbour_of(walk, chunk, stage - 1, chain),
                      neighbour_of(walk, chunk, stage + 1, chain)},
        .cost = (uint32_t)(place * workload->n_classes * workload->n_slices * SIM_KIND_N),
    };

    link.neighbour[0].to = link.neighbour[1].from;
    link.neighbour[1].to = link.neighbour[0].from;
    return link;
}

static inline bool
is_in_shape(const Walk *walk, ScheduleOp op)
{
    return op.micro_batch >= 0 && op.micro_batch < walk->n_micro_batches &&
           op.chunk < walk->n_chunks && op.slice < walk->n_slices && op.kind < SCHEDULE_OP_N;
}

static inline int64_t
unit_of(const Walk *walk, ScheduleOp op)
{
    return ((int64_t)op.micro_batch * walk->n_chunks + op.chunk) * walk->n_slices + op.slice;
}

/* Marks the virtual ids that have a W.  Most schedules have no I, for which alone that matters. */
static void
mark_weights(const Schedule *schedule, Slot *all)
{
    const int64_t n_virtual_ids = schedule_n_virtual_ids(schedule);

    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        Slot *slots = all + rank * n_virtual_ids;
        for (int64_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
            const ScheduleOp op = schedule->ops[i];
            const int64_t virtual_id = schedule_virtual_id(schedule, op);
            if (op.kind == SCHEDULE_OP_BACKWARD_WEIGHT && virtual_id >= 0 &&
                virtual_id < n_virtual_ids)
                slots[virtual_id].done[1] |= SLOT_HAS_WEIGHT;
        }
    }
}

/* --- the walk --- */

typedef enum {
    RAN,
    WAITS,
    FAILED, /* the schedule is wrong */
} Outcome;

/* An F (@direction 0), B or I (1) of @rank at @virtual_id; @at_end: of the first slice, or the
 * last.
 * @producer: 1 + the step that sends it a message, or 0. */
static inline __attribute__((always_inline)) Outcome
run_op(Walk *walk, int32_t rank, const Neighbour *neighbour, int64_t virtual_id, bool direction,
       bool at_end, uint32_t *producer)
{
    Slot *slot = &walk->slots[rank * walk->n_virtual_ids + virtual_id];
    const Slot *beside = at_end ? slot : slot - 1 + 2 * direction;

    if ((slot->done[direction] & SLOT_STEP) != 0 || (direction && slot->done[0] == 0) ||
        (!at_end && (beside->done[direction] & SLOT_STEP) == 0))
        return FAILED;
    if (neighbour->from == walk->n_ranks)
        return RAN;
    const int64_t from_slot = neighbour->from_slot + virtual_id;
    *producer = walk->slots[from_slot].done[direction] & SLOT_STEP;
    if (*producer == 0) {
        walk->ranks[rank].waiting = 2 * from_slot + direction;
        return neighbour->from == rank ? FAILED : WAITS;
    }
    *producer = neighbour->from == rank ? 0 : *producer;
    return RAN;
}

static inline __attribute__((always_inline)) Outcome
run_weight(Walk *walk, int32_t rank, int64_t virtual_id)
{
    Slot *slot = &walk->slots[rank * walk->n_virtual_ids + virtual_id];

    if ((slot->done[1] & SLOT_IS_INPUT) == 0 || (slot->done[1] & SLOT_WEIGHT_DONE) != 0)
        return FAILED;
    slot->done[1] |= SLOT_WEIGHT_DONE;
    return RAN;
}

/* Whether @op must wait for a message of another rank; then the rank waits for it. */
static bool
must_wait(Walk *walk, int32_t rank, ScheduleOp op)
{
    if (!is_in_shape(walk, op))
        return false; /* run_next() finds it wrong */
    const bool direction = op.kind != SCHEDULE_OP_FORWARD;
    const Neighbour *neighbour =
        &walk->links[(int64_t)rank * walk->n_chunks + op.chunk].neighbour[direction];
    const int64_t slot = neighbour->from_slot + unit_of(walk, op);

    if (neighbour->from == walk->n_ranks || neighbour->from == rank ||
        (walk->slots[slot].done[direction] & SLOT_STEP) != 0)
        return false;
    walk->ranks[rank].waiting = 2 * slot + direction;
    return true;
}

/* At op @i of @rank: whether it is the first of an overlapped pair whose second must wait; both
 * begin together.  Where it need not, the pair is noted: both are about to become steps, unless the
 * first must wait, after which this is asked again. */
static bool
pair_must_wait(Walk *walk, int32_t rank, int64_t i)
{
    SimProgram *program = walk->program;
    const Schedule *schedule = program->schedule;
    const GArray *pairs = schedule->overlap_pairs;
    const int64_t k = walk->next_pair[rank];

    if (k >= pairs->len || g_array_index(pairs, int64_t, k) != i)
        return false;
    if (must_wait(walk, rank, schedule->ops[i]) || must_wait(walk, rank, schedule->ops[i + 1]))
        return true;
    program->pairs[program->n_pairs++] = walk->n_steps;
    walk->next_pair[rank]++;
    return false;
}

/* Notes the step of a virtual id, whose neighbour may have waited for it. */
static inline __attribute__((always_inline)) void
finish_op(Walk *walk, int32_t rank, int32_t to, int64_t virtual_id, bool direction, uint32_t marks)
{
    const int64_t here = rank * walk->n_virtual_ids + virtual_id;
    RankState *woken = &walk->ranks[to];

    walk->slots[here].done[direction] |= (walk->n_steps + 1) | marks;
    if (woken->waiting != 2 * here + direction)
        return;
    woken->waiting = NOTHING;
    /* It is next, as soon as this rank waits. */
    __builtin_prefetch(&walk->ops[woken->next]);
    __builtin_prefetch(&walk->links[(int64_t)to * walk->n_chunks]);
    __builtin_prefetch(&walk->slots[to * walk->n_virtual_ids + virtual_id], 1);
    walk->ready[walk->n_ready++] = to;
}

/* Counts the virtual id in or out of flight; remembers the chunk's first F and last backward. */
static inline __attribute__((always_inline)) void
note_op(Walk *walk, int32_t rank, ScheduleOp op, uint32_t kind)
{
    static const int8_t in_flight_change[SIM_KIND_N] = {1, -1, 0, -1, -1};
    RankState *state = &walk->ranks[rank];
    const int64_t place = (int64_t)rank * walk->n_chunks + op.chunk;

    state->in_flight += in_flight_change[kind];
    state->peak = MAX(state->peak, state->in_flight);
    if (kind != SCHEDULE_OP_FORWARD)
        walk->program->last_backward[place] = walk->n_steps;
    else if (walk->program->first_forward[place] < 0)
        walk->program->first_forward[place] = walk->n_steps;
}

/* The op at @i of @rank. */
static inline __attribute__((always_inline)) Outcome
run_next(Walk *walk, int32_t rank, int64_t i)
{
    const ScheduleOp op = walk->ops[i];
    const int64_t virtual_id = unit_of(walk, op);
    const bool direction = op.kind != SCHEDULE_OP_FORWARD;
    uint32_t producer = 0, kind = op.kind, class_ = 0, marks = 0;
    Outcome outcome;

    if (!is_in_shape(walk, op))
        return FAILED;
    const Link *link = &walk->links[(int64_t)rank * walk->n_chunks + op.chunk];
    const Neighbour *neighbour = &link->neighbour[direction];
    if (kind == SCHEDULE_OP_BACKWARD_WEIGHT) {
        outcome = run_weight(walk, rank, virtual_id);
    } else {
        outcome = run_op(walk, rank, neighbour, virtual_id, direction,
                         op.slice == (direction ? walk->n_slices - 1 : 0), &producer);
        if (kind == SCHEDULE_OP_BACKWARD_INPUT) {
            if (!walk->weights_are_marked)
                mark_weights(walk->program->schedule, walk->slots);
            walk->weights_are_marked = true;
            marks = SLOT_IS_INPUT;
            if ((walk->slots[rank * walk->n_virtual_ids + virtual_id].done[1] & SLOT_HAS_WEIGHT) ==
                0)
                kind = SIM_KIND_LONE_INPUT;
        }
    }
    if (outcome != RAN)
        return outcome;
    if (walk->class_of_micro_batch != NULL)
        class_ = (uint32_t)walk->class_of_micro_batch[op.micro_batch];
    const uint32_t cost =
        link->cost + (class_ * (uint32_t)walk->n_slices + op.slice) * SIM_KIND_N + kind;
    walk->counts[cost]++;
    note_op(walk, rank, op, kind);
    walk->step_of[i] = walk->n_steps;
    walk->steps[walk->n_steps] = (SimStep){.producer = producer, .cost = cost};
    if (kind != SCHEDULE_OP_BACKWARD_WEIGHT)
        finish_op(walk, rank, neighbour->to, virtual_id, direction, marks);
    walk->n_steps++;
    return RAN;
}

/* Runs @rank as far as it gets.  Returns false if the schedule is wrong. */
static inline __attribute__((always_inline)) bool
run_rank(Walk *walk, int32_t rank, bool has_pairs)
{
    RankState *state = &walk->ranks[rank];
    int64_t i = state->next;
    Outcome outcome = RAN;

    if (i < state->end && i == walk->program->schedule->rank_begin[rank])
        walk->program->first[rank] = walk->n_steps; /* if it runs; else this is set again */
    for (; i < state->end && outcome == RAN; i += outcome == RAN) {
        if (has_pairs && pair_must_wait(walk, rank, i))
            outcome = WAITS;
        else
            outcome = run_next(walk, rank, i);
    }
    state->next = i;
    return outcome != FAILED;
}

/* Runs all ranks; false if the schedule is wrong.  Not inlined: its loop needs the registers. */
static __attribute__((noinline)) bool
run_all(Walk *all)
{
    bool ok = true;

    if (all->next_pair != NULL) {
        while (ok && all->n_ready > 0)
            ok = run_rank(all, all->ready[--all->n_ready], true);
        return ok;
    }
    /* No pointer to this one leaves the function, so it need not be read again after writes. */
    Walk walk = *all;
    while (ok && walk.n_ready > 0)
        ok = run_rank(&walk, walk.ready[--walk.n_ready], false);
    all->n_steps = walk.n_steps;
    return ok;
}

/* Whether every op has run, and every virtual id has its F and its B or I. */
static bool
is_complete(const Walk *walk)
{
    const Schedule *schedule = walk->program->schedule;
    const int64_t n = schedule->n_ranks * walk->n_virtual_ids;

    if (walk->n_steps != walk->program->n_ops)
        return false;
    for (int64_t slot = 0; slot < n; slot++)
        if (walk->slots[slot].done[0] == 0 || (walk->slots[slot].done[1] & SLOT_STEP) == 0)
            return false;
    return true;
}

static bool
has_pairs(const SimProgram *program)
{
    return program->schedule->overlap_pairs != NULL && program->workload->pair_ns >= 0;
}

static bool
allocate_pairs(Walk *walk)
{
    const Schedule *schedule = walk->program->schedule;
    const GArray *pairs = schedule->overlap_pairs;

    walk->program->pairs = g_try_new(uint32_t, pairs->len);
    walk->next_pair = g_new0(int64_t, (size_t)schedule->n_ranks);
    for (int32_t rank = 1; rank < schedule->n_ranks; rank++) {
        int64_t k = walk->next_pair[rank - 1];
        while (k < pairs->len && g_array_index(pairs, int64_t, k) < schedule->rank_begin[rank])
            k++;
        walk->next_pair[rank] = k;
    }
    return walk->program->pairs != NULL || pairs->len == 0;
}

static bool
allocate(Walk *walk)
{
    SimProgram *program = walk->program;
    const Schedule *schedule = program->schedule;
    const size_t n = (size_t)program->n_ops, n_ranks = (size_t)schedule->n_ranks;

    program->steps = walk->steps = pages_try_malloc(MAX(n, 1), sizeof *program->steps);
    /* At least 2 ops per virtual id: at most half as many slots as ops. */
    walk->slots =
        pages_try_malloc0(MAX((size_t)walk->n_virtual_ids * n_ranks, 1), sizeof *walk->slots);
    program->step_of = walk->step_of = pages_try_malloc(MAX(n, 1), sizeof *program->step_of);
    if (program->steps == NULL || program->step_of == NULL || walk->slots == NULL)
        return false;
    program->in_flight = g_new0(int32_t, n_ranks);
    program->last_backward = g_new(int64_t, n_ranks * (size_t)schedule->n_chunks);
    program->first_forward = g_new(int64_t, n_ranks * (size_t)schedule->n_chunks);
    program->first = g_new(int64_t, n_ranks);
    memset(program->first, 0xff, n_ranks * sizeof(int64_t));
    memset(program->first_forward, 0xff, n_ranks * (size_t)schedule->n_chunks * sizeof(int64_t));
    walk->links = g_new(Link, n_ranks * (size_t)schedule->n_chunks);
    walk->ranks = g_new0(RankState, n_ranks + 1);
    walk->ready = g_new(int32_t, n_ranks);
    return !has_pairs(program) || allocate_pairs(walk);
}

static bool
walk_all(Walk *walk)
{
    const Schedule *schedule = walk->program->schedule;

    for (int32_t rank = 0; rank < schedule->n_ranks; rank++)
        for (int32_t chunk = 0; chunk < schedule->n_chunks; chunk++)
            walk->links[(int64_t)rank * schedule->n_chunks + chunk] = link_of(walk, rank, chunk);
    for (int32_t rank = schedule->n_ranks; rank >= 0; rank--) {
        walk->ranks[rank].waiting = NOTHING;
        if (rank == schedule->n_ranks)
            continue;
        walk->ranks[rank].next = schedule->rank_begin[rank];
        walk->ranks[rank].end = schedule->rank_begin[rank + 1];
        walk->ready[walk->n_ready++] = rank;
    }
    if (!run_all(walk))
        return false;
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++)
        walk->program->in_flight[rank] = walk->ranks[rank].peak;
    return is_complete(walk);
}

/* Whether each rank has at least two ops per virtual id: else some are missing. */
static bool
is_long_enough(const Schedule *schedule, int64_t n_virtual_ids)
{
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++)
        if ((schedule->rank_begin[rank + 1] - schedule->rank_begin[rank]) / 2 < n_virtual_ids)
            return false;
    return true;
}

/* Lets the judge of all schedules name what is wrong.  It knows each op by itself: what it lets
 * pass is stuck because pairs need both their messages to begin. */
static bool
fail(const Schedule *schedule, GError **error)
{
    g_autoptr(ScheduleGraph) graph = schedule_graph_new(schedule, error);

    if (graph == NULL)
        return false;
    g_assert(schedule->overlap_pairs != NULL);
    return schedule_refuse(error, DEADLOCK,
                           "overlapped pairs wait for each other: each begins when both its "
                           "messages are there");
}

/* Fills steps, step_of, counts, in_flight, first, first_forward and last_backward of a priced
 * program.  Returns false on SCHEDULE_ERROR_INCOMPLETE, _DEADLOCK or _LIMIT.  Cost: O(ops). */
static bool
compile(SimProgram *program, GError **error)
{
    const Schedule *schedule = program->schedule;
    const bool is_bidir = schedule_placement_n_chains(schedule->placement) > 1;
    g_auto(Walk) walk = {.program = program,
                         .ops = schedule->ops,
                         .class_of_micro_batch = program->workload->class_of_micro_batch,
                         .counts = program->counts,
                         .n_ranks = schedule->n_ranks,
                         .n_chunks = schedule->n_chunks,
                         .n_slices = schedule->n_slices,
                         .n_micro_batches = schedule_chain_micro_batches(schedule),
                         .n_virtual_ids = schedule_n_virtual_ids(schedule)};

    if (is_bidir && (schedule->n_chunks != 2 || schedule->n_micro_batches % 2 != 0))
        return fail(schedule, error);
    if (!is_long_enough(schedule, walk.n_virtual_ids))
        return fail(schedule, error);
    if (!schedule_check_pairs(schedule, error))
        return false;
    if (!allocate(&walk))
        return sim_fail_memory(error, program->n_ops, "ops");
    return walk_all(&walk) || fail(schedule, error);
}

/* --- what ops have whole of the weights of later ops --- */

/* Whole weights that a rank gathers ahead are those that its next ops need
 * (profiles/workload/prefetch.h): the order of its ops says which, so an op's workspace is known
 * when the schedule is. */

/* Sets ahead_bytes of a compiled program whose Workload says what is gathered.  Returns false on
 * SCHEDULE_ERROR_LIMIT.  Cost: O(ops * depth). */
static bool
set_ahead(SimProgram *program, GError **error)
{
    const Schedule *schedule = program->schedule;
    const Workload *w = program->workload;

    if (w->prefetch == NULL)
        return true;
    program->ahead_bytes =
        pages_try_malloc((size_t)MAX(program->n_ops, 1), sizeof *program->ahead_bytes);
    if (program->ahead_bytes == NULL)
        return sim_fail_memory(error, program->n_ops, "ops");
    g_autofree int64_t *bytes = g_new(int64_t, w->prefetch->depth);
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        WorkloadLater later = {.bytes = bytes};
        for (int64_t i = schedule->rank_begin[rank + 1] - 1; i >= schedule->rank_begin[rank]; i--) {
            const uint32_t cost = program->steps[program->step_of[i]].cost;
            const int64_t op = cost / SIM_KIND_N;
            const ScheduleOpKind kind = sim_op_kind(cost);
            program->ahead_bytes[i] = workload_prefetch_workspace(w, &later, op, kind, rank) -
                                      w->ops[op].workspace_bytes[kind];
            workload_prefetch_put_before(w, &later, op, kind);
        }
    }
    return true;
}

/* --- the whole --- */

/* All that every rank does one after the other stays below SIM_MAX_NS. */
static bool
check_sum(const SimProgram *program, GError **error)
{
    const Workload *workload = program->workload;
    int64_t sum = 0;

    for (int64_t cost = 0; cost < program->n_costs; cost++) {
        int64_t all;
        if (program->counts[cost] == 0)
            continue;
        const SimCostDetail *d = &program->details[cost];
        if (__builtin_mul_overflow(d->op_ns + d->in.ns + d->out.ns, program->counts[cost], &all) ||
            __builtin_add_overflow(sum, all, &sum) || sum > SIM_MAX_NS)
            return sim_fail_limit(error, "the iteration could take longer than 146 years");
    }
    for (int32_t rank = 0; rank < workload->n_ranks; rank++) {
        const WorkloadRank *r = &workload->ranks[rank];
        if (r->dp_reduce_ns < 0 || r->dp_gather_ns < 0 || r->optimizer_ns < 0 ||
            r->dp_reduce_bytes < 0 || r->dp_gather_bytes < 0)
            return sim_fail_limit(error, "a reduction, gathering or optimizer step is negative");
        if (__builtin_add_overflow(sum, r->dp_reduce_ns, &sum) ||
            __builtin_add_overflow(sum, r->dp_gather_ns, &sum) ||
            __builtin_add_overflow(sum, r->optimizer_ns, &sum) || sum > SIM_MAX_NS)
            return sim_fail_limit(error, "the iteration could take longer than 146 years");
    }
    return true;
}

SimProgram *
sim_program_new(const Schedule *schedule, const Workload *workload, GError **error)
{
    g_return_val_if_fail(schedule != NULL && workload != NULL, NULL);
    if (!check_shape(schedule, workload, error))
        return NULL;
    g_autoptr(SimProgram) program = g_new0(SimProgram, 1);
    program->schedule = schedule;
    program->workload = workload;
    program->n_ops = schedule_n_ops(schedule);
    if (!price(program, error) || !compile(program, error) || !check_sum(program, error) ||
        !set_ahead(program, error))
        return NULL;
    sim_pairs_init(program);
    sim_beside_init(&program->beside, program);
    return g_steal_pointer(&program);
}

void
sim_program_free(SimProgram *program)
{
    if (program == NULL)
        return;
    g_free(program->steps);
    g_free(program->step_of);
    g_free(program->first);
    g_free(program->costs);
    g_free(program->details);
    g_free(program->counts);
    g_free(program->ahead_bytes);
    g_free(program->in_flight);
    g_free(program->first_forward);
    g_free(program->last_backward);
    g_free(program->pairs);
    g_free(program->pair_kinds);
    g_free(program->kind_of_pair);
    sim_beside_clear(&program->beside);
    g_free(program);
}
