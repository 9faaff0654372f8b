/*
 * planner/bounds/plan_bound.h - how long a plan takes and what it holds at the least, from the
 * integers of its Workload alone.
 *
 * The room bounds/ has three bounds, each sharper and dearer than the one before: of a point, which
 * knows neither family nor stages (point_bound.h; with slices floor.h), of a sketch, which knows
 * both but prices no op (sketch.h), and of a priced plan (this file).  What a schedule holds and
 * its long paths (flight.h, order_path.h) and flow shops of slices (flow.h) serve them.
 *
 * For rank r, whatever the order of its ops:
 *
 *   iteration >= wait(r) + work(r) + max(end(r), drain(r) + end(rank of stage 0))
 *
 * wait: the forwards and messages of the stages before its first stage.  work: all of its ops, and
 * its messages where they block.  end: the reduction that nothing hides, the optimizer, and
 * gathering.  drain: the backwards and messages of the stages before its first stage, since the
 * last op of a rank with unsplit backwards is a backward of that stage; 0 where backwards are
 * split, since a W may be last.  For equal stages without messages this is the exact time of GPipe
 * and 1F1B.
 *
 * For each stage alone, which says more where there are few micro-batches in many chunks: its wait,
 * its forwards and backwards (input gradients, where backwards are split), and the path of the last
 * gradient from there to stage 0.
 *
 * And for families that slice, what the last rank idles while the slices of the first micro-batch
 * and the gradients of the last one are on their way (flow.h).
 *
 * Thread-safety: pure, but for the memo, which is safe.
 */
#pragma once

#include "planner/bounds/flight.h"
#include "planner/bounds/fullest.h"
#include "profiles/workload/workload.h"

/* Returns: what @plan takes at the least.  Cost: O(stages * classes * slices + micro-batches). */
int64_t plan_bound_ns(const Plan *plan, const Workload *workload, const ScheduleFamily *family);

/* Returns: (owned) [class] how many micro-batches of one chain there are of each class. */
int64_t *plan_bound_counts(const Plan *plan, const Workload *workload);

/* Returns: what rank 0, which has stage 0, does after its last op and nothing can hide. */
int64_t plan_bound_end_ns(const Plan *plan, const Workload *workload);

/*
 * Returns: no simulation of @plan takes less, by the long paths through its schedule with their
 * messages; 0: none is known.
 * @flight  of the plan's schedule
 */
int64_t plan_bound_path_ns(const Plan *plan, const Workload *workload, const PlanFlight *flight);

/*
 * Returns: no order of a family that searches for one lets @plan fit and take less
 * (ScheduleFamily.bound_ns); 0: the family does not search.  What it knows beside the bounds above is that memory
 * limits how many micro-batches are in flight: each waits for the backward of one before it.
 * Cost: about six visits of every op; an order takes thousands.
 */
int64_t plan_bound_order_ns(const Plan *plan, const Workload *workload);

/*
 * Returns: what the fullest rank of @plan holds at its peak at the least; exact with one size of
 * micro-batch, whole sequences, unsplit backwards, one chunk per rank and dense layers of one kind.
 * @flight  of the plan's schedule
 */
int64_t plan_bound_bytes(const Plan *plan, const Workload *workload, const PlanFlight *flight);

/* Returns: (borrowed from @memo) the flight of the schedule that @plan names. */
const PlanFlight *plan_bound_flight(const Plan *plan, PlanMemo *memo);

/*
 * Returns: the same by the ops of each kind and chunk, each with its own workspace and the weights that it
 * has for those after it; 0: nothing is known of the schedule.  With one size of micro-batch and whole sequences it
 * is exact with any layers, chunks and split backwards, but where ops of one kind and chunk that are equally full
 * differ otherwise.
 * @fullest  of the plan's schedule
 */
int64_t plan_bound_fullest_bytes(const Plan *plan, const Workload *workload,
                                 const PlanFullest *fullest);

/* Returns: (borrowed from @memo) what the schedule that @plan names holds at its fullest ops. */
const PlanFullest *plan_bound_fullest(const Plan *plan, PlanMemo *memo);
