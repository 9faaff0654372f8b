/*
 * planner/bounds/flight.h - how many virtual micro-batches each rank of a schedule holds at its
 * fullest moments, and the long paths through the schedule.
 *
 * These numbers depend on the shape of the schedule and not on times, so many points of the space
 * share them: a schedule is built for them once per shape, and a memo remembers the answer.
 *
 * A virtual micro-batch, the (micro-batch, chunk, slice) of one rank, is whole from its F to its B
 * or I, and half from its I to its W.  The memory of a rank is fullest when an op starts, and three
 * moments matter:
 *   at a B or I   the first one at which most are whole
 *   at an F       the first one at which most are whole or half, the one of the F included
 *   at an I       the first one at which most are half, the one of the I included, and of those the
 *                 one at which most are whole: halves may be the larger ones
 * Where all virtual micro-batches and all workspaces have one size, the peak is at one of the
 * three.
 *
 * Thread-safety: all functions may be called from several threads at once.
 */
#pragma once

#include "planner/bounds/order_path.h"
#include "planner/cost/memo.h"

typedef enum {
    PLAN_MOMENT_BACKWARD,
    PLAN_MOMENT_FORWARD,
    PLAN_MOMENT_INPUT,
    PLAN_MOMENT_N
} PlanMoment;

/* The moments of every rank of one schedule. */
typedef struct {
    int32_t n_ranks, n_chunks;
    /* (owned) [((rank * PLAN_MOMENT_N + moment) * 2 + half) * n_chunks + chunk] exact, or a lower
     * bound: each chunk holds one at its first B. */
    int32_t *counts;
    PlanOrderPaths *paths; /* (owned, nullable) of schedules that were built */
} PlanFlight;

/* Returns: (borrowed from @memo) the flight of the family's schedule of @shape, at which it exists.
 * It is not exact for schedules that are too large to build, nor for families whose orders are made
 * for given times: then it is what any order holds at the least. */
const PlanFlight *plan_flight_get(PlanMemo *memo, const ScheduleFamily *family,
                                  const ScheduleShape *shape);

/* Returns: how many virtual micro-batches of @chunk are whole (@half 0) or half (1) at @moment. */
static inline int32_t
plan_flight_n_held(const PlanFlight *flight, int32_t rank, PlanMoment moment, int half,
                   int32_t chunk)
{
    return flight
        ->counts[((rank * PLAN_MOMENT_N + (int)moment) * 2 + half) * flight->n_chunks + chunk];
}

/* Returns: the most virtual micro-batches of @chunk, whole and half, at any of the moments. */
static inline int32_t
plan_flight_most_held(const PlanFlight *flight, int32_t rank, int32_t chunk)
{
    int32_t most = 0;

    for (PlanMoment moment = 0; moment < PLAN_MOMENT_N; moment++)
        most = MAX(most, plan_flight_n_held(flight, rank, moment, 0, chunk) +
                             plan_flight_n_held(flight, rank, moment, 1, chunk));
    return most;
}
