#include "simulator/compile.h"

#include <string.h>

#include "schedule/check.h"
#include "schedule/graph.h"
#include "simulator/pages.h"

/* What is known of one (rank, unit). */
typedef struct {
    uint32_t forward;  /* 1 + step of its F; 0: not run yet */
    uint32_t backward; /* 1 + step of its B or I; 0: not run yet */
} Slot;

/* Marks in Slot.backward beside the step, which is below 2^29. */
#define SLOT_STEP UINT32_C(0x1fffffff)
#define SLOT_HAS_WEIGHT UINT32_C(0x20000000) /* the rank has a W of it */
#define SLOT_WEIGHT_DONE UINT32_C(0x40000000)
#define SLOT_IS_INPUT UINT32_C(0x80000000) /* the backward is an I */

G_STATIC_ASSERT(SCHEDULE_MAX_OPS < SLOT_STEP);

/* Waits for nothing. */
#define NOTHING INT64_C(-1)

/* The neighbours of one (rank, chunk) in its chain. */
typedef struct {
    int32_t previous_rank, next_rank; /* n_ranks: there is none */
    /* Slot of the same micro-batch and slice there, less the unit here. */
    int64_t previous_slot, next_slot;
    uint32_t cost; /* of class 0, slice 0, F */
} Link;

typedef struct {
    int64_t next;    /* its first op that did not run */
    int64_t waiting; /* 2 * slot (+ 1: backward) that must be filled before, or NOTHING */
    int32_t in_flight, peak;
} RankState;

typedef struct {
    SimProgram *program;
    int64_t n_units;
    int32_t n_microbatches; /* of a chain */
    Slot *slots;            /* (owned) [rank * n_units + unit] */
    Link *links;            /* (owned) [rank * n_chunks + chunk] */
    RankState *ranks;       /* (owned) [n_ranks + 1]; the last is nobody and never waits */
    int64_t *next_pair;     /* (owned, nullable) [rank] index into overlap_pairs of its next pair */
    int32_t *ready;         /* (owned) stack of ranks that may go on; each at most once */
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

static Link
link_of(const Walk *walk, int32_t rank, int32_t chunk)
{
    const Schedule *schedule = walk->program->schedule;
    const Workload *workload = walk->program->workload;
    const int32_t chain = schedule->placement == SCHEDULE_PLACEMENT_BIDIR ? chunk : 0;
    const int32_t stage = schedule_stage(schedule, rank, chunk);
    const int64_t place = (int64_t)chain * workload->n_stages + stage;
    Link link = {
        .previous_rank = schedule->n_ranks,
        .next_rank = schedule->n_ranks,
        .cost = (uint32_t)(place * workload->n_classes * workload->n_slices * SIM_KIND_N),
    };

    if (stage > 0) {
        const int32_t other = schedule_chunk_of_stage(schedule, stage - 1, chain);
        link.previous_rank = schedule_rank_of_stage(schedule, stage - 1, chain);
        link.previous_slot =
            link.previous_rank * walk->n_units + (int64_t)(other - chunk) * schedule->n_slices;
    }
    if (stage + 1 < workload->n_stages) {
        const int32_t other = schedule_chunk_of_stage(schedule, stage + 1, chain);
        link.next_rank = schedule_rank_of_stage(schedule, stage + 1, chain);
        link.next_slot =
            link.next_rank * walk->n_units + (int64_t)(other - chunk) * schedule->n_slices;
    }
    return link;
}

static bool
is_in_shape(const Walk *walk, ScheduleOp op)
{
    const Schedule *schedule = walk->program->schedule;

    return op.microbatch >= 0 && op.microbatch < walk->n_microbatches &&
           op.chunk < schedule->n_chunks && op.slice < schedule->n_slices &&
           op.kind < SCHEDULE_OP_N;
}

/* Marks the units that have a W.  Returns false on an op outside of the schedule's shape. */
static bool
mark_weights(Walk *walk)
{
    const Schedule *schedule = walk->program->schedule;

    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        Slot *slots = walk->slots + rank * walk->n_units;
        for (int64_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
            const ScheduleOp op = schedule->ops[i];
            if (!is_in_shape(walk, op))
                return false;
            if (op.kind == SCHEDULE_OP_BACKWARD_WEIGHT)
                slots[schedule_unit(schedule, op)].backward |= SLOT_HAS_WEIGHT;
        }
    }
    return true;
}

/* --- the walk --- */

typedef enum {
    RAN,
    WAITS,
    FAILED, /* the schedule is wrong */
} Outcome;

/* The message of the op in @slot of rank @from, needed on @rank.  @producer: 0 if both are one. */
static inline Outcome
take_message(Walk *walk, int32_t rank, int32_t from, int64_t slot, bool backward,
             uint32_t *producer)
{
    const Slot *s = &walk->slots[slot];

    *producer = backward ? s->backward & SLOT_STEP : s->forward;
    if (*producer == 0) {
        if (from == rank)
            return FAILED;
        walk->ranks[rank].waiting = 2 * slot + backward;
        return WAITS;
    }
    if (from == rank)
        *producer = 0;
    return RAN;
}

/* Whom a finished op may wake, and what that rank then waits for. */
typedef struct {
    int32_t rank;
    int64_t key;
} Wake;

static inline Outcome
run_forward(Walk *walk, int32_t rank, const Link *link, int64_t unit, int32_t slice,
            uint32_t *producer, Wake *wake)
{
    const int64_t here = rank * walk->n_units + unit;
    Slot *slot = &walk->slots[here];

    *producer = 0;
    if (slot->forward != 0 || (slice > 0 && slot[-1].forward == 0))
        return FAILED;
    if (link->previous_rank < walk->program->schedule->n_ranks) {
        const Outcome outcome = take_message(walk, rank, link->previous_rank,
                                             link->previous_slot + unit, false, producer);
        if (outcome != RAN)
            return outcome;
    }
    slot->forward = walk->n_steps + 1;
    *wake = (Wake){link->next_rank, 2 * here};
    return RAN;
}

static inline Outcome
run_backward(Walk *walk, int32_t rank, const Link *link, int64_t unit, bool last_slice,
             bool is_input, uint32_t *producer, Wake *wake)
{
    const int64_t here = rank * walk->n_units + unit;
    Slot *slot = &walk->slots[here];

    *producer = 0;
    if ((slot->backward & SLOT_STEP) != 0 || slot->forward == 0 ||
        (!last_slice && (slot[1].backward & SLOT_STEP) == 0))
        return FAILED;
    if (link->next_rank < walk->program->schedule->n_ranks) {
        const Outcome outcome =
            take_message(walk, rank, link->next_rank, link->next_slot + unit, true, producer);
        if (outcome != RAN)
            return outcome;
    }
    slot->backward |= (walk->n_steps + 1) | (is_input ? SLOT_IS_INPUT : 0);
    *wake = (Wake){link->previous_rank, 2 * here + 1};
    return RAN;
}

static inline Outcome
run_weight(Walk *walk, int32_t rank, int64_t unit)
{
    Slot *slot = &walk->slots[rank * walk->n_units + unit];

    if ((slot->backward & SLOT_IS_INPUT) == 0 || (slot->backward & SLOT_WEIGHT_DONE) != 0)
        return FAILED;
    slot->backward |= SLOT_WEIGHT_DONE;
    return RAN;
}

/* Whether @op must wait for a message of another rank; then the rank waits for it. */
static bool
must_wait(Walk *walk, int32_t rank, ScheduleOp op)
{
    const Schedule *schedule = walk->program->schedule;
    const Link *link = &walk->links[(int64_t)rank * schedule->n_chunks + op.chunk];
    const bool backward = op.kind != SCHEDULE_OP_FORWARD;
    const int32_t from = backward ? link->next_rank : link->previous_rank;
    const int64_t slot =
        (backward ? link->next_slot : link->previous_slot) + schedule_unit(schedule, op);
    uint32_t producer;

    return from < schedule->n_ranks && from != rank &&
           take_message(walk, rank, from, slot, backward, &producer) == WAITS;
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

/* Runs @rank as far as it gets.  Returns false if the schedule is wrong. */
static bool
run_rank(Walk *walk, int32_t rank)
{
    static const int8_t in_flight_change[SIM_KIND_N] = {1, -1, 0, -1, -1};
    SimProgram *program = walk->program;
    const Schedule *schedule = program->schedule;
    const Workload *workload = program->workload;
    const Link *links = &walk->links[(int64_t)rank * schedule->n_chunks];
    int64_t *last_backward = &program->last_backward[(int64_t)rank * schedule->n_chunks];
    int64_t *first_forward = &program->first_forward[(int64_t)rank * schedule->n_chunks];
    RankState *state = &walk->ranks[rank];
    const int64_t end = schedule->rank_begin[rank + 1];

    for (; state->next < end; state->next++) {
        const int64_t i = state->next;
        const ScheduleOp op = schedule->ops[i];
        const int64_t unit = schedule_unit(schedule, op);
        const Link *link = &links[op.chunk];
        Wake wake = {schedule->n_ranks, 0};
        uint32_t producer = 0, kind = op.kind, class_ = 0;
        Outcome outcome;
        if (walk->next_pair != NULL && pair_must_wait(walk, rank, i))
            return true;
        if (op.kind == SCHEDULE_OP_FORWARD) {
            outcome = run_forward(walk, rank, link, unit, op.slice, &producer, &wake);
        } else if (op.kind == SCHEDULE_OP_BACKWARD_WEIGHT) {
            outcome = run_weight(walk, rank, unit);
        } else {
            const bool is_input = op.kind == SCHEDULE_OP_BACKWARD_INPUT;
            const uint32_t marks = walk->slots[rank * walk->n_units + unit].backward;
            outcome = run_backward(walk, rank, link, unit, op.slice == schedule->n_slices - 1,
                                   is_input, &producer, &wake);
            if (is_input && (marks & SLOT_HAS_WEIGHT) == 0)
                kind = SIM_KIND_LONE_INPUT;
        }
        if (outcome != RAN)
            return outcome == WAITS;
        if (workload->class_of_microbatch != NULL)
            class_ = (uint32_t)workload->class_of_microbatch[op.microbatch];
        const uint32_t cost =
            link->cost + (class_ * (uint32_t)workload->n_slices + op.slice) * SIM_KIND_N + kind;
        program->counts[cost]++;
        state->in_flight += in_flight_change[kind];
        state->peak = MAX(state->peak, state->in_flight);
        if (kind != SCHEDULE_OP_FORWARD)
            last_backward[op.chunk] = walk->n_steps;
        else if (first_forward[op.chunk] < 0)
            first_forward[op.chunk] = walk->n_steps;
        program->steps[walk->n_steps++] = (SimStep){.producer = producer, .cost = cost};
        if (i == schedule->rank_begin[rank])
            program->first[rank] = walk->n_steps - 1;
        if (walk->ranks[wake.rank].waiting == wake.key) {
            walk->ranks[wake.rank].waiting = NOTHING;
            walk->ready[walk->n_ready++] = wake.rank;
        }
    }
    return true;
}

/* Whether every op has run, and every unit has its F and its B or I. */
static bool
is_complete(const Walk *walk)
{
    const Schedule *schedule = walk->program->schedule;
    const int64_t n = schedule->n_ranks * walk->n_units;

    if (walk->n_steps != walk->program->n_ops)
        return false;
    for (int64_t slot = 0; slot < n; slot++)
        if (walk->slots[slot].forward == 0 || (walk->slots[slot].backward & SLOT_STEP) == 0)
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

    program->steps = sim_pages_try_malloc(MAX(n, 1), sizeof *program->steps);
    /* At least 2 ops per unit: at most half as many slots as ops. */
    walk->slots =
        sim_pages_try_malloc0(MAX((size_t)walk->n_units * n_ranks, 1), sizeof *walk->slots);
    if (program->steps == NULL || walk->slots == NULL)
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

    if (!mark_weights(walk))
        return false;
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++)
        for (int32_t chunk = 0; chunk < schedule->n_chunks; chunk++)
            walk->links[(int64_t)rank * schedule->n_chunks + chunk] = link_of(walk, rank, chunk);
    for (int32_t rank = schedule->n_ranks; rank >= 0; rank--) {
        walk->ranks[rank].waiting = NOTHING;
        if (rank == schedule->n_ranks)
            continue;
        walk->ranks[rank].next = schedule->rank_begin[rank];
        walk->ready[walk->n_ready++] = rank;
    }
    while (walk->n_ready > 0)
        if (!run_rank(walk, walk->ready[--walk->n_ready]))
            return false;
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++)
        walk->program->in_flight[rank] = walk->ranks[rank].peak;
    return is_complete(walk);
}

/* Whether each rank has at least two ops per unit: else some are missing. */
static bool
is_long_enough(const Schedule *schedule, int64_t n_units)
{
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++)
        if ((schedule->rank_begin[rank + 1] - schedule->rank_begin[rank]) / 2 < n_units)
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
    const int32_t n_microbatches = schedule_chain_microbatches(schedule);
    const bool is_bidir = schedule->placement == SCHEDULE_PLACEMENT_BIDIR;
    g_auto(Walk) walk = {.program = program,
                         .n_units = schedule_n_units(schedule),
                         .n_microbatches = n_microbatches};

    if (is_bidir && (schedule->n_chunks != 2 || schedule->n_microbatches % 2 != 0))
        return fail(schedule, error);
    if (!is_long_enough(schedule, walk.n_units))
        return fail(schedule, error);
    if (!schedule_check_pairs(schedule, error))
        return false;
    if (!allocate(&walk)) {
        g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_LIMIT,
                    "no memory for %" G_GINT64_FORMAT " ops", program->n_ops);
        return false;
    }
    return walk_all(&walk) || fail(schedule, error);
}
