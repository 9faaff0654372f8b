#include "simulator/memory.h"

#include <string.h>

/* What an op of one cost does. */
typedef struct {
    int64_t activations, kv, workspace; /* + at its start */
    int64_t free_activations, free_kv;  /* - at its end, besides the workspace */
} Change;

static Change
change_of(const SimProgram *program, int64_t cost)
{
    const WorkloadOp *op = sim_program_workload_op(program, cost);

    switch ((int)(cost % SIM_KIND_N)) {
    case SCHEDULE_OP_FORWARD:
        return (Change){.activations = op->activation_bytes,
                        .kv = op->kv_bytes,
                        .workspace = op->workspace_bytes[SCHEDULE_OP_FORWARD]};
    case SCHEDULE_OP_BACKWARD:
        return (Change){.workspace = op->workspace_bytes[SCHEDULE_OP_BACKWARD],
                        .free_activations = op->activation_bytes,
                        .free_kv = op->kv_bytes};
    case SCHEDULE_OP_BACKWARD_INPUT:
        return (Change){.workspace = op->workspace_bytes[SCHEDULE_OP_BACKWARD_INPUT],
                        .free_activations = op->activation_bytes - op->weight_activation_bytes,
                        .free_kv = op->kv_bytes};
    case SCHEDULE_OP_BACKWARD_WEIGHT:
        return (Change){.workspace = op->workspace_bytes[SCHEDULE_OP_BACKWARD_WEIGHT],
                        .free_activations = op->weight_activation_bytes};
    default: /* SIM_KIND_LONE_INPUT */
        return (Change){.workspace = op->workspace_bytes[SCHEDULE_OP_BACKWARD_INPUT],
                        .free_activations = op->activation_bytes,
                        .free_kv = op->kv_bytes};
    }
}

/* --- limits --- */

static bool
fail_bytes(GError **error, const char *what)
{
    g_set_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_LIMIT, "workload: %s", what);
    return false;
}

static bool
check_op(const WorkloadOp *op, GError **error)
{
    int64_t lowest = MIN(op->activation_bytes, op->kv_bytes);

    lowest = MIN(lowest, op->weight_activation_bytes);
    for (int kind = 0; kind < SCHEDULE_OP_N; kind++)
        lowest = MIN(lowest, op->workspace_bytes[kind]);
    if (lowest < 0)
        return fail_bytes(error, "an op's bytes are negative");
    if (op->weight_activation_bytes > op->activation_bytes)
        return fail_bytes(error, "an op keeps more for its W than it holds at all");
    return true;
}

/* Adds up everything that could be held at once on all ranks: it stays in
 * int64_t. */
static bool
check_bytes(const SimProgram *program, GError **error)
{
    const Workload *w = program->workload;
    int64_t sum = 0;

    for (int64_t cost = 0; cost < program->n_costs; cost++) {
        const Change change = change_of(program, cost);
        int64_t all, each;
        if (cost % SIM_KIND_N == 0 && !check_op(sim_program_workload_op(program, cost), error))
            return false;
        if (program->counts[cost] == 0)
            continue;
        if (__builtin_add_overflow(change.activations, change.kv, &each) ||
            __builtin_add_overflow(each, change.workspace, &each) ||
            __builtin_mul_overflow(each, program->counts[cost], &all) ||
            __builtin_add_overflow(sum, all, &sum))
            return fail_bytes(error, "the ops hold more bytes than 64 bits count");
    }
    for (int32_t rank = 0; rank < w->n_ranks; rank++)
        for (int owner = 0; owner < TRACE_MEMORY_N; owner++) {
            const int64_t bytes = w->ranks[rank].static_bytes[owner];
            if (bytes < 0)
                return fail_bytes(error, "a rank's static bytes are negative");
            if (__builtin_add_overflow(sum, bytes, &sum))
                return fail_bytes(error, "the ranks hold more bytes than 64 bits count");
        }
    return true;
}

/* --- peaks --- */

/* The two numbers of Change that the search for peaks needs. */
typedef struct {
    int64_t hold_bytes; /* at the op's start */
    int64_t net_bytes;  /* after the op */
} Hold;

typedef struct {
    int64_t level, peak, step;
} Level;

/* Fills owners of a peak: what is held when the op at peak->index starts. */
static void
break_down(const SimProgram *program, int32_t rank, SimPeak *peak)
{
    memcpy(peak->owner, program->workload->ranks[rank].static_bytes, sizeof peak->owner);
    if (peak->index < 0)
        return;
    for (int64_t i = program->schedule->rank_begin[rank]; i <= peak->index; i++) {
        const Change change = change_of(program, sim_program_cost(program, i));
        peak->owner[TRACE_MEMORY_ACTIVATIONS] += change.activations;
        peak->owner[TRACE_MEMORY_KV] += change.kv;
        if (i == peak->index) {
            peak->owner[TRACE_MEMORY_WORKSPACE] += change.workspace;
            break;
        }
        peak->owner[TRACE_MEMORY_ACTIVATIONS] -= change.free_activations;
        peak->owner[TRACE_MEMORY_KV] -= change.free_kv;
    }
}

static Hold *
holds_new(const SimProgram *program)
{
    Hold *holds = g_new0(Hold, (size_t)program->n_costs);

    for (int64_t cost = 0; cost < program->n_costs; cost++) {
        if (program->counts[cost] == 0)
            continue; /* never checked, never read */
        const Change c = change_of(program, cost);
        holds[cost] = (Hold){
            .hold_bytes = c.activations + c.kv + c.workspace,
            .net_bytes = c.activations + c.kv - c.free_activations - c.free_kv,
        };
    }
    return holds;
}

bool
sim_memory_peaks(const SimProgram *program, SimPeak *peaks, GError **error)
{
    const Schedule *schedule = program->schedule;

    if (!check_bytes(program, error))
        return false;
    g_autofree Hold *holds = holds_new(program);
    g_autofree Level *levels = g_new(Level, (size_t)schedule->n_ranks);
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        int64_t bytes = 0;
        for (int owner = 0; owner < TRACE_MEMORY_N; owner++)
            bytes += program->workload->ranks[rank].static_bytes[owner];
        levels[rank] = (Level){.level = bytes, .peak = bytes, .step = -1};
    }
    /* levels hold what the first @step steps leave. */
    for (int64_t step = 0; step < program->n_ops; step++) {
        const SimStep s = program->steps[step];
        Level *level = &levels[s.rank];
        const int64_t at_start = level->level + holds[s.cost].hold_bytes;
        if (at_start > level->peak) {
            level->peak = at_start;
            level->step = step;
        }
        level->level += holds[s.cost].net_bytes;
    }
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        peaks[rank].bytes = levels[rank].peak;
        peaks[rank].index = -1;
        for (int64_t i = schedule->rank_begin[rank];
             levels[rank].step >= 0 && peaks[rank].index < 0; i++)
            if (program->step_of[i] == levels[rank].step)
                peaks[rank].index = i;
        break_down(program, rank, &peaks[rank]);
    }
    return true;
}

/* --- events --- */

int64_t
sim_memory_n_events(const SimProgram *program)
{
    int64_t n = 0;

    for (int64_t cost = 0; cost < program->n_costs; cost++) {
        const Change c = change_of(program, cost);
        const int each = (c.activations != 0) + (c.kv != 0) + 2 * (c.workspace != 0) +
                         (c.free_activations != 0) + (c.free_kv != 0);
        n += each * program->counts[cost];
    }
    for (int32_t rank = 0; rank < program->workload->n_ranks; rank++)
        for (int owner = 0; owner < TRACE_MEMORY_N; owner++)
            n += program->workload->ranks[rank].static_bytes[owner] != 0;
    return n;
}

static void
append(GArray *memory, int32_t rank, int64_t at_ns, TraceMemoryOwner owner, int64_t delta_bytes)
{
    const TraceMemory event = {
        .at_ns = at_ns, .delta_bytes = delta_bytes, .rank = rank, .owner = (uint8_t)owner};

    if (delta_bytes != 0)
        g_array_append_val(memory, event);
}

void
sim_memory_append(const SimProgram *program, const SimTimes *times, int32_t rank, GArray *memory)
{
    const Schedule *schedule = program->schedule;

    for (int owner = 0; owner < TRACE_MEMORY_N; owner++)
        append(memory, rank, 0, owner, program->workload->ranks[rank].static_bytes[owner]);
    for (int64_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        const SimOpTimes at = sim_times_op(times, program, i);
        const Change c = change_of(program, sim_program_cost(program, i));
        append(memory, rank, at.start_ns, TRACE_MEMORY_ACTIVATIONS, c.activations);
        append(memory, rank, at.start_ns, TRACE_MEMORY_KV, c.kv);
        append(memory, rank, at.start_ns, TRACE_MEMORY_WORKSPACE, c.workspace);
        append(memory, rank, at.end_ns, TRACE_MEMORY_WORKSPACE, -c.workspace);
        append(memory, rank, at.end_ns, TRACE_MEMORY_KV, -c.free_kv);
        append(memory, rank, at.end_ns, TRACE_MEMORY_ACTIVATIONS, -c.free_activations);
    }
}
