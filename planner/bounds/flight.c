#include "planner/bounds/flight.h"

#include <string.h>

/* Larger schedules are not built only to count. */
#define MAX_OPS (INT64_C(1) << 21)

static void
flight_free(gpointer data)
{
    PlanFlight *flight = data;

    g_free(flight->counts);
    plan_order_paths_free(flight->paths);
    g_free(flight);
}

static int32_t *
counts_at(const PlanFlight *flight, int32_t rank, PlanMoment moment)
{
    return &flight->counts[(int64_t)(rank * PLAN_MOMENT_N + (int)moment) * 2 * flight->n_chunks];
}

/* (owned) one virtual micro-batch of every chunk: when the first backward of a micro-batch begins,
 * all stages hold it. */
static PlanFlight *
flight_new(int32_t n_ranks, int32_t n_chunks)
{
    PlanFlight *flight = g_new(PlanFlight, 1);

    *flight = (PlanFlight){
        .n_ranks = n_ranks,
        .n_chunks = n_chunks,
        .counts = g_new0(int32_t, (size_t)n_ranks * PLAN_MOMENT_N * 2 * (size_t)n_chunks),
    };
    for (int32_t r = 0; r < n_ranks; r++)
        for (int moment = 0; moment < PLAN_MOMENT_N; moment++)
            for (int32_t c = 0; c < n_chunks; c++)
                counts_at(flight, r, (PlanMoment)moment)[c] = 1;
    return flight;
}

/* --- families whose numbers are known without building --- */

/* What is whole of each chunk at all moments; -1: this is none of them. */
static int64_t
closed_form(const ScheduleFamily *family, const ScheduleShape *shape, int32_t rank)
{
    if (family->forwards_first)
        return shape->n_micro_batches * shape->n_slices;
    return family->in_flight != NULL ? family->in_flight(shape, rank) : -1;
}

static bool
fill_closed(const ScheduleFamily *family, const ScheduleShape *shape, PlanFlight *flight)
{
    for (int32_t r = 0; r < flight->n_ranks; r++) {
        const int64_t n_in_flight = closed_form(family, shape, r);
        if (n_in_flight < 0)
            return false;
        for (int moment = 0; moment < PLAN_MOMENT_N; moment++)
            for (int32_t c = 0; c < flight->n_chunks; c++)
                counts_at(flight, r, (PlanMoment)moment)[c] = (int32_t)MIN(n_in_flight, INT32_MAX);
    }
    return true;
}

/* Whether one chunk of each rank has as much in flight as keeps all ranks at work: the bounds of ranks
 * (plan_bound.h) then say what long paths would. */
static bool
fills_pipeline(const ScheduleShape *shape, const PlanFlight *flight)
{
    return shape->n_chunks == 1 &&
           plan_flight_n_held(flight, 0, PLAN_MOMENT_FORWARD, 0, 0) >=
               MIN(shape->n_ranks, shape->n_micro_batches * shape->n_slices);
}

/* --- the others --- */

/* Where a walk over a rank's ops is. */
typedef struct {
    int32_t now[2 * SCHEDULE_MAX_CHUNKS]; /* whole, then half, by chunk */
    int32_t n_whole, n_held;
    int32_t most_whole, most_held;
    int32_t most_half, whole_at_most_half;
} Level;

static void
note(PlanFlight *flight, int32_t rank, PlanMoment moment, const Level *level)
{
    memcpy(counts_at(flight, rank, moment), level->now,
           2 * (size_t)flight->n_chunks * sizeof *level->now);
}

static void
begin_unit(Level *level, int32_t rank, int32_t chunk, PlanFlight *flight)
{
    level->now[chunk]++;
    level->n_whole++;
    level->n_held++;
    if (level->n_held > level->most_held) {
        level->most_held = level->n_held;
        note(flight, rank, PLAN_MOMENT_FORWARD, level);
    }
}

/* A B or I; @halves: it is half until its W. */
static void
end_whole(Level *level, int32_t rank, int32_t chunk, bool halves, PlanFlight *flight)
{
    if (level->n_whole > level->most_whole) {
        level->most_whole = level->n_whole;
        note(flight, rank, PLAN_MOMENT_BACKWARD, level);
    }
    level->now[chunk]--;
    level->n_whole--;
    if (!halves) {
        level->n_held--;
        return;
    }
    level->now[flight->n_chunks + chunk]++;
    const int32_t n_half = level->n_held - level->n_whole;
    if (n_half > level->most_half ||
        (n_half == level->most_half && level->n_whole > level->whole_at_most_half)) {
        level->most_half = n_half;
        level->whole_at_most_half = level->n_whole;
        note(flight, rank, PLAN_MOMENT_INPUT, level);
    }
}

static void
walk_rank(const Schedule *schedule, int32_t rank, PlanFlight *flight)
{
    Level level = {.most_whole = -1, .most_held = -1, .most_half = -1};
    bool splits = false;

    for (int64_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++)
        splits = splits || schedule->ops[i].kind == SCHEDULE_OP_BACKWARD_WEIGHT;
    for (int64_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        const ScheduleOp op = schedule->ops[i];
        switch ((ScheduleOpKind)op.kind) {
        case SCHEDULE_OP_FORWARD:
            begin_unit(&level, rank, op.chunk, flight);
            break;
        case SCHEDULE_OP_BACKWARD_WEIGHT:
            level.now[flight->n_chunks + op.chunk]--;
            level.n_held--;
            break;
        default:
            /* An I without a W is the end; in a schedule with Ws it has one. */
            end_whole(&level, rank, op.chunk, op.kind == SCHEDULE_OP_BACKWARD_INPUT && splits,
                      flight);
            break;
        }
    }
}

/* PlanMemoMakeFunc. */
static void *
make_flight(const void *data)
{
    const ScheduleFamily *family = ((const PlanMemoShape *)data)->family;
    const ScheduleShape *asked = ((const PlanMemoShape *)data)->shape;
    /* A merged forward takes its memory while a backward gives back as much, so that there is at least what
     * there is without; but ops have another order. */
    ScheduleShape plain = *asked;
    plain.merges = false;
    const ScheduleShape *shape = &plain;
    PlanFlight *flight = flight_new((int32_t)shape->n_ranks, (int32_t)shape->n_chunks);
    int64_t n_ops;

    if (family->reads_times)
        return flight;
    const bool is_closed = fill_closed(family, shape, flight);
    if (is_closed && fills_pipeline(shape, flight))
        return flight;
    if (__builtin_mul_overflow(shape->n_micro_batches * 3, shape->n_chunks * shape->n_slices,
                               &n_ops) ||
        __builtin_mul_overflow(n_ops, shape->n_ranks, &n_ops) || n_ops > MAX_OPS)
        return flight;
    g_autoptr(Schedule) schedule = schedule_new(family->name, shape, NULL);
    if (schedule == NULL || schedule->n_chunks != flight->n_chunks)
        return flight;
    for (int32_t r = 0; r < schedule->n_ranks && !is_closed; r++)
        walk_rank(schedule, r, flight);
    if (!asked->merges)
        flight->paths = plan_order_paths_new(schedule);
    return flight;
}

const PlanFlight *
plan_flight_get(PlanMemo *memo, const ScheduleFamily *family, const ScheduleShape *shape)
{
    return plan_memo_get_of_shape(memo, PLAN_MEMO_FLIGHT, &(PlanMemoShape){family, shape},
                                  make_flight, flight_free);
}
