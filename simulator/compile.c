#include "simulator/compile.h"

#include <string.h>

#include "base/host_memory.h"
#include "schedule/check.h"
#include "schedule/graph.h"

/* What is known of one (rank, unit), by direction: 0 forward, 1 backward.  1 + the step of its F,
 * and of its B or I; 0: not run yet. */
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
    /* Slot of the same micro-batch and slice at @from, less the unit here. */
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
    Slot *slots;        /* (owned) [rank * n_virtual_ids + unit] */
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

/* Marks the units that have a W.  Most schedules have no I, for which alone that matters. */
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

/* An F (@direction 0), B or I (1) of @rank at @unit; @at_end: of the first slice, or the last.
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

/*
 * At op @i of @rank: whether it is the first of an overlapped pair whose second must wait; both
 * begin together.  Where it need not, the pair is noted: both are about to become steps, unless the
 * first must wait, after which this is asked again.
 */
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

/* Notes the step of a unit, whose neighbour may have waited for it. */
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

/* Counts the unit in or out of flight; remembers the chunk's first F and last backward. */
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

/* Runs all ranks.  Returns false if the schedule is wrong. */
static bool
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

/* Whether every op has run, and every unit has its F and its B or I. */
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

/* --- all --- */

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
    /* At least 2 ops per unit: at most half as many slots as ops. */
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
    memset(program->last_backward, 0xff, n_ranks * (size_t)schedule->n_chunks * sizeof(int64_t));
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

/* Whether each rank has at least two ops per unit: else some are missing. */
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
    g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_DEADLOCK,
                "overlapped pairs wait for each other: each begins when both its messages are "
                "there");
    return false;
}

bool
sim_program_compile(SimProgram *program, GError **error)
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
