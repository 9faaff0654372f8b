#include "simulator/memory.h"

#include <string.h>

/* What the backward of @op allocates for the gradients of K and V: all slices' when it is the
 * first, of the last slice. */
static int64_t
kv_gradients(const SimProgram *program, const WorkloadOp *op)
{
    const int32_t n_slices = program->workload->n_slices;
    int64_t bytes = 0;

    /* Beyond int64_t: as much as it holds, which check_bytes() refuses. */
    if ((op - program->workload->ops) % n_slices != n_slices - 1)
        return 0;
    for (int32_t s = 0; s < n_slices; s++)
        if (__builtin_add_overflow(bytes, op[-s].kv_gradient_bytes, &bytes))
            return INT64_MAX;
    return bytes;
}

static SimMemoryChange
change_of(const SimProgram *program, int64_t cost)
{
    const WorkloadOp *op = sim_program_workload_op(program, cost);

    const ScheduleOpKind kind = sim_op_kind(cost);
    SimMemoryChange change = {.workspace_bytes = op->workspace_bytes[kind]};

    if (kind == SCHEDULE_OP_FORWARD) {
        change.activations_bytes = op->activation_bytes;
        change.late_bytes = op->late_activation_bytes;
        change.kv_bytes = op->kv_bytes;
    } else if (kind == SCHEDULE_OP_BACKWARD_WEIGHT) {
        change.free_activations_bytes = op->weight_activation_bytes;
    } else {
        /* What an I leaves to its W. */
        const int64_t left_bytes =
            cost % SIM_KIND_N == SCHEDULE_OP_BACKWARD_INPUT ? op->weight_activation_bytes : 0;
        change.activations_bytes = MAX(0, left_bytes - op->activation_bytes);
        change.kv_bytes = kv_gradients(program, op);
        change.free_activations_bytes = MAX(0, op->activation_bytes - left_bytes);
        change.free_kv_bytes = op->kv_bytes + op->kv_gradient_bytes;
    }
    return change;
}

/* What op @i of the schedule has of later ops, in its workspace. */
static inline int64_t
ahead_of(const SimProgram *program, int64_t i)
{
    return program->ahead_bytes == NULL ? 0 : program->ahead_bytes[i];
}

/* --- pairs --- */

/* The pairs of a program, as its steps come by. */
typedef struct {
    const SimProgram *program;
    int64_t next; /* of program->pairs */
} Pairs;

/* Whether @step is the second op of a pair, so that the first one, the step before, still has all that it
 * has taken. */
static inline bool
is_second(Pairs *pairs, int64_t step)
{
    const SimProgram *program = pairs->program;

    if (pairs->next >= program->n_pairs || program->pairs[pairs->next] + 1 != step)
        return false;
    pairs->next++;
    return true;
}

/* --- limits --- */

static bool
check_op(const WorkloadOp *op, GError **error)
{
    int64_t lowest = MIN(op->activation_bytes, MIN(op->kv_bytes, op->kv_gradient_bytes));

    lowest = MIN(lowest, op->weight_activation_bytes);
    lowest = MIN(lowest,
                 MIN(op->late_activation_bytes, op->activation_bytes - op->late_activation_bytes));
    for (int kind = 0; kind < SCHEDULE_OP_N; kind++)
        lowest = MIN(lowest, op->workspace_bytes[kind]);
    if (lowest < 0)
        return sim_fail_limit(error, "an op's bytes are negative");
    if (op->kv_bytes > INT64_MAX - op->kv_gradient_bytes)
        return sim_fail_limit(error, "an op frees more bytes than 64 bits count");
    return true;
}

/* Adds up everything that could be held at once on all ranks: it stays in int64_t. */
static bool
check_bytes(const SimProgram *program, GError **error)
{
    const Workload *w = program->workload;
    int64_t sum = 0;

    for (int64_t cost = 0; cost < program->n_costs; cost++) {
        int64_t all, each;
        if (cost % SIM_KIND_N == 0 && !check_op(sim_program_workload_op(program, cost), error))
            return false;
        if (program->counts[cost] == 0)
            continue;
        const SimMemoryChange change = change_of(program, cost);
        if (__builtin_add_overflow(change.activations_bytes, change.kv_bytes, &each) ||
            __builtin_add_overflow(each, change.workspace_bytes, &each) ||
            __builtin_mul_overflow(each, program->counts[cost], &all) ||
            __builtin_add_overflow(sum, all, &sum))
            return sim_fail_limit(error, "the ops hold more bytes than 64 bits count");
    }
    for (int64_t i = 0; program->ahead_bytes != NULL && i < program->n_ops; i++)
        if (__builtin_add_overflow(sum, ahead_of(program, i), &sum))
            return sim_fail_limit(error, "the ops hold more bytes than 64 bits count");
    for (int32_t rank = 0; rank < w->n_ranks; rank++)
        for (int owner = 0; owner < TRACE_MEMORY_N; owner++) {
            const int64_t bytes = w->ranks[rank].static_bytes[owner];
            if (bytes < 0)
                return sim_fail_limit(error, "a rank's static bytes are negative");
            if (__builtin_add_overflow(sum, bytes, &sum))
                return sim_fail_limit(error, "the ranks hold more bytes than 64 bits count");
        }
    return true;
}

/* --- peaks --- */

/* What @rank holds for good. */
static int64_t
static_bytes(const SimProgram *program, int32_t rank)
{
    int64_t sum = 0;

    for (int owner = 0; owner < TRACE_MEMORY_N; owner++)
        sum += program->workload->ranks[rank].static_bytes[owner];
    return sum;
}

/* What the search for peaks needs. */
typedef struct {
    int64_t hold_bytes; /* at the op's start, kv not counted */
    int64_t net_bytes;  /* after the op, kv not counted */
    int64_t hold_kv, net_kv;
    int64_t late_bytes;
} Hold;

typedef struct {
    int64_t level, kv; /* what the ops so far leave */
    int64_t peak, peak_kv, step;
    int64_t next_op, op; /* indices into schedule->ops: of the next step, of the peak */
    /* What the op before has taken and gives back when it ends; is_second: of the peak. */
    int64_t taken, taken_kv;
    bool is_second;
} Level;

static Hold *
holds_new(const SimProgram *program)
{
    Hold *holds = g_new0(Hold, (size_t)program->n_costs);

    for (int64_t cost = 0; cost < program->n_costs; cost++) {
        if (program->counts[cost] == 0)
            continue; /* never checked, never read */
        const SimMemoryChange c = change_of(program, cost);
        holds[cost] = (Hold){
            .hold_bytes = c.activations_bytes + c.workspace_bytes,
            .net_bytes = c.activations_bytes - c.free_activations_bytes,
            .late_bytes = c.late_bytes,
            .hold_kv = c.kv_bytes,
            .net_kv = c.kv_bytes - c.free_kv_bytes,
        };
    }
    return holds;
}

static void
break_down(const SimProgram *program, int32_t rank, const Level *level, SimPeak *peak)
{
    const int64_t *fixed = program->workload->ranks[rank].static_bytes;

    peak->bytes = level->peak;
    peak->step = level->step;
    peak->op = level->op;
    memcpy(peak->owner_bytes, fixed, sizeof peak->owner_bytes);
    if (level->step < 0)
        return;
    int64_t workspace = change_of(program, program->steps[level->step].cost).workspace_bytes +
                        ahead_of(program, level->op);
    if (level->is_second)
        workspace += change_of(program, program->steps[level->step - 1].cost).workspace_bytes +
                     ahead_of(program, level->op - 1);
    peak->owner_bytes[TRACE_MEMORY_WORKSPACE] += workspace;
    peak->owner_bytes[TRACE_MEMORY_KV] += level->peak_kv;
    peak->owner_bytes[TRACE_MEMORY_ACTIVATIONS] +=
        level->peak - level->peak_kv - workspace - static_bytes(program, rank);
}

bool
sim_memory_peaks(const SimProgram *program, SimPeak *peaks, GError **error)
{
    const int32_t n_ranks = program->schedule->n_ranks;

    g_assert(n_ranks >= 1);
    if (!check_bytes(program, error))
        return false;
    g_autofree Hold *holds = holds_new(program);
    g_autofree Level *levels = g_new(Level, (size_t)n_ranks);
    for (int32_t rank = 0; rank < n_ranks; rank++) {
        const int64_t bytes = static_bytes(program, rank);
        levels[rank] = (Level){.level = bytes,
                               .peak = bytes,
                               .step = -1,
                               .next_op = program->schedule->rank_begin[rank],
                               .op = -1};
    }
    Pairs pairs = {program, 0};
    /* levels hold what the first @step steps leave. */
    for (int64_t step = 0; step < program->n_ops; step++) {
        const SimStep s = program->steps[step];
        const Hold hold = holds[s.cost];
        Level *level = &levels[program->costs[s.cost].rank];
        const bool second = is_second(&pairs, step);
        /* The first of a pair must not yet have what it takes late. */
        const int64_t late = pairs.next < program->n_pairs && program->pairs[pairs.next] == step
                                 ? hold.late_bytes
                                 : 0;
        const int64_t kv = level->kv + hold.hold_kv + (second ? level->taken_kv : 0);
        const int64_t ahead = ahead_of(program, level->next_op);
        const int64_t at_start =
            level->level + hold.hold_bytes - late + kv + ahead + (second ? level->taken : 0);
        if (at_start > level->peak) {
            level->peak = at_start;
            level->peak_kv = kv;
            level->step = step;
            level->op = level->next_op;
            level->is_second = second;
        }
        level->taken = hold.hold_bytes + ahead - hold.net_bytes - late;
        level->taken_kv = hold.hold_kv - hold.net_kv;
        level->next_op++;
        level->level += hold.net_bytes;
        level->kv += hold.net_kv;
    }
    for (int32_t rank = 0; rank < n_ranks; rank++)
        break_down(program, rank, &levels[rank], &peaks[rank]);
    return true;
}

/* --- levels --- */

void
sim_memory_levels(const SimProgram *program, SimLevel *levels)
{
    const int32_t n_ranks = program->schedule->n_ranks;
    g_autofree Hold *holds = holds_new(program);
    g_autofree int64_t *now = g_new0(int64_t, (size_t)n_ranks);
    g_autofree int64_t *next =
        g_memdup2(program->schedule->rank_begin, sizeof(int64_t) * (size_t)n_ranks);

    for (int32_t rank = 0; rank < n_ranks; rank++)
        now[rank] = static_bytes(program, rank);
    Pairs pairs = {program, 0};
    for (int64_t step = 0; step < program->n_ops; step++) {
        const uint32_t cost = program->steps[step].cost;
        const Hold hold = holds[cost];
        const int64_t rank = program->costs[cost].rank;
        const int64_t level = now[rank];
        now[rank] = level + hold.net_bytes + hold.net_kv;
        const int64_t i = next[rank]++;
        /* The first of a pair ends with the second. */
        const int64_t taken =
            is_second(&pairs, step) ? levels[i - 1].begin_bytes - levels[i - 1].end_bytes : 0;
        if (taken != 0)
            levels[i - 1].end_bytes = levels[i - 1].begin_bytes;
        const int64_t late = pairs.next < program->n_pairs && program->pairs[pairs.next] == step
                                 ? hold.late_bytes
                                 : 0;
        levels[i] =
            (SimLevel){level + taken + hold.hold_bytes + hold.hold_kv - late + ahead_of(program, i),
                       now[rank]};
    }
}

/* --- events --- */

SimMemoryChange *
sim_memory_changes(const SimProgram *program)
{
    SimMemoryChange *changes = g_new(SimMemoryChange, (size_t)program->n_costs);

    for (int64_t cost = 0; cost < program->n_costs; cost++)
        changes[cost] = change_of(program, cost);
    return changes;
}

int64_t
sim_memory_n_events(const SimProgram *program, const SimMemoryChange *changes)
{
    int64_t n = 0;

    for (int64_t cost = 0; cost < program->n_costs; cost++) {
        const SimMemoryChange *c = &changes[cost];
        const int each = (c->activations_bytes != 0) + (c->kv_bytes != 0) +
                         2 * (c->workspace_bytes != 0) + (c->free_activations_bytes != 0) +
                         (c->free_kv_bytes != 0);
        n += each * program->counts[cost];
    }
    for (int64_t k = 0; k < program->n_pairs; k++) {
        const SimMemoryChange *c = &changes[program->steps[program->pairs[k]].cost];
        n += c->late_bytes == 0 ? 0 : 1 - (c->activations_bytes == c->late_bytes);
    }
    for (int64_t i = 0; program->ahead_bytes != NULL && i < program->n_ops; i++) {
        const SimMemoryChange *c = &changes[program->steps[program->step_of[i]].cost];
        n += c->workspace_bytes == 0 && ahead_of(program, i) != 0 ? 2 : 0;
    }
    for (int32_t rank = 0; rank < program->workload->n_ranks; rank++)
        for (int owner = 0; owner < TRACE_MEMORY_N; owner++)
            n += program->workload->ranks[rank].static_bytes[owner] != 0;
    return n;
}

static inline TraceMemory *
write_one(TraceMemory *to, int32_t rank, int64_t at_ns, TraceMemoryOwner owner, int64_t delta_bytes)
{
    if (delta_bytes == 0)
        return to;
    *to = (TraceMemory){
        .at_ns = at_ns, .delta_bytes = delta_bytes, .rank = rank, .owner = (uint8_t)owner};
    return to + 1;
}

TraceMemory *
sim_memory_write_static(const SimProgram *program, int32_t rank, TraceMemory *to)
{
    for (int owner = 0; owner < TRACE_MEMORY_N; owner++)
        to = write_one(to, rank, 0, (TraceMemoryOwner)owner,
                       program->workload->ranks[rank].static_bytes[owner]);
    return to;
}

TraceMemory *
sim_memory_write_op(const SimProgram *program, int64_t i, const SimMemoryChange *change,
                    const SimOpTimes *at, int64_t late_bytes, int32_t rank, TraceMemory *to)
{
    const int64_t workspace = change->workspace_bytes + ahead_of(program, i);

    to = write_one(to, rank, at->start_ns, TRACE_MEMORY_ACTIVATIONS,
                   change->activations_bytes - MAX(0, late_bytes));
    to = write_one(to, rank, at->start_ns, TRACE_MEMORY_KV, change->kv_bytes);
    to = write_one(to, rank, at->start_ns, TRACE_MEMORY_WORKSPACE, workspace);
    to = write_one(to, rank, at->end_ns, TRACE_MEMORY_WORKSPACE, -workspace);
    to = write_one(to, rank, at->end_ns, TRACE_MEMORY_KV, -change->free_kv_bytes);
    to = write_one(to, rank, at->end_ns, TRACE_MEMORY_ACTIVATIONS, -change->free_activations_bytes);
    return write_one(to, rank, at->end_ns, TRACE_MEMORY_ACTIVATIONS, MAX(0, -late_bytes));
}
