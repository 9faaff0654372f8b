/*
 * planner/bounds/flight.h - what each rank of a schedule holds at once, and its long ways,
 * remembered by shape.
 *
 * Internal to planner/.  These numbers do not depend on times, so many points of the space share
 * them; schedules are built for them once per shape.
 *
 * A unit is a (micro-batch, chunk, slice): whole from its F to its B or I, half from its I to its
 * W.  Memory of a rank is fullest when an op starts; three moments matter:
 *   at a B or I   the first one at which most units are whole
 *   at an F       the first one at which most units are whole or half, its own included
 *   at an I       the first one at which most units are half, its own included, of those the one at
 *                 which most are whole: halves may be the larger ones
 * With one size of units and of workspaces the peak is at one of the three.
 *
 * Thread-safety: all functions may be called from several threads at once; answers do not depend on
 * the order of calls.
 */
#ifndef PLANNER_BOUNDS_FLIGHT_H
#define PLANNER_BOUNDS_FLIGHT_H

#include "planner/bounds/order_path.h"
#include "planner/cost/memo.h"

G_BEGIN_DECLS

typedef enum {
    PLAN_MOMENT_BACKWARD,
    PLAN_MOMENT_FORWARD,
    PLAN_MOMENT_INPUT,
    PLAN_MOMENT_N
} PlanMoment;

/* The moments of every rank of one schedule. */
typedef struct {
    int32_t n_ranks, n_chunks;
    bool is_exact;   /* else all that is known: every chunk holds one unit at its first backward */
    int32_t *counts; /* (owned) [((rank * PLAN_MOMENT_N + moment) * 2 + half) * n_chunks + chunk] */
    PlanOrderPaths *paths; /* (owned, nullable) of orders that are built */
} PlanFlight;

/*
 * Returns: (borrowed) the moments of the family's schedule of @shape, which is one it has.  Not
 * exact for schedules too large to build for this, and for families that search: at least what any
 * order holds.
 */
const PlanFlight *plan_flight_get(PlanMemo *memo, const ScheduleFamily *family,
                                  const ScheduleShape *shape);

/* Units of @chunk that are whole (0) or half (1). */
static inline int32_t
plan_flight_n_held(const PlanFlight *flight, int32_t rank, PlanMoment moment, int half,
                   int32_t chunk)
{
    return flight
        ->counts[((rank * PLAN_MOMENT_N + (int)moment) * 2 + half) * flight->n_chunks + chunk];
}

G_END_DECLS

#endif /* PLANNER_BOUNDS_FLIGHT_H */
