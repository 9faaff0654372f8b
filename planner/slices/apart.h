/*
 * planner/slices/apart.h - one round of slice_problem.h, by branch and bound on the two maxima.
 *
 * Internal to planner/.
 */
#ifndef PLANNER_SLICES_APART_H
#define PLANNER_SLICES_APART_H

#include "planner/slices/grid.h"

G_BEGIN_DECLS

/*
 * Minimises sum (cost[0] + cost[1]) + weight[0] max (key[0] + delay) + weight[1] max (key[1] +
 * delay) over all groupings and slicings.  @metric's low and high are 0 and PLAN_SLICE_MAX_SUM; its
 * second cost and key may be NULL.
 * Returns: (owned) latency, max_slice and max_backward (the two maxima of the keys with their
 * delays), lower_bound; NULL without an error if there is no answer of at most PLAN_SLICE_MAX_SUM.
 * Ties as in slice.h.
 */
PlanSliceResult *plan_slice_solve_apart(const PlanSliceCosts *costs, const PlanSliceMetric *metric,
                                        int64_t max_group, GError **error);

G_END_DECLS

#endif /* PLANNER_SLICES_APART_H */
