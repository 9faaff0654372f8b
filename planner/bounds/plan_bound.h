/*
 * planner/bounds/plan_bound.h - how long a plan takes at the least, from the integers of its
 * Workload alone.
 *
 * Internal to planner/.  For rank r of p, whatever the order of its ops:
 *
 *   iteration >= wait(r) + work(r) + max(end(r), drain(r) + end(rank of stage 0))
 *
 * wait: forwards and messages of the stages before its first one; work: all its ops, with blocking
 * messages also those; end: reduction that nothing hides, optimizer, gathering; drain: backwards
 * and messages of the stages before its first one, since the last op of a rank with unsplit
 * backwards is a backward of that stage (0 where backwards are split: a W may be last).  For equal
 * stages without messages this is GPipe's and 1F1B's own time.
 *
 * And for each stage alone, which with few micro-batches in many chunks says more: its wait, its
 * forwards and backwards (input gradients, where backwards are split), and the way of the last
 * gradient from there to stage 0.
 *
 * And for families that slice, what the last rank idles while the first micro-batch's slices and
 * the last one's gradients are on their way: bound_flow.h.
 */
#ifndef PLANNER_BOUNDS_PLAN_BOUND_H
#define PLANNER_BOUNDS_PLAN_BOUND_H

#include "planner/bounds/flight.h"
#include "profiles/workload/workload.h"

G_BEGIN_DECLS

/* Cost: O(stages * classes * slices + micro-batches). */
int64_t plan_bound_ns(const Plan *plan, const Workload *workload, const ScheduleFamily *family);

/* What rank 0, which has stage 0, does after its last op and nothing can hide. */
int64_t plan_bound_end_ns(const Plan *plan, const Workload *workload);

/*
 * The same by the long ways through the plan's order of ops (order_path.h), messages included; 0:
 * none is known.
 * @flight  of the plan's schedule
 */
int64_t plan_bound_path_ns(const Plan *plan, const Workload *workload, const PlanFlight *flight);

/*
 * The least memory of the fullest rank under the plan's family, what it holds in flight included.
 * @flight  of the plan's schedule; exact with one size of micro-batch, whole sequences and unsplit
 *          backwards on single chunks.
 */
int64_t plan_bound_bytes(const Plan *plan, const Workload *workload, const PlanFlight *flight);

/* (borrowed) the moments of the schedule that @plan names. */
const PlanFlight *plan_bound_flight(const Plan *plan, PlanMemo *memo);

G_END_DECLS

#endif /* PLANNER_BOUNDS_PLAN_BOUND_H */
