/*
 * planner/slices/rounds.h - a batch as rounds that each fit in memory.
 *
 * Internal to planner/.
 */
#ifndef PLANNER_SLICES_ROUNDS_H
#define PLANNER_SLICES_ROUNDS_H

#include "planner/slices/problem.h"

G_BEGIN_DECLS

/*
 * The best answer of one round: problem->costs.batch sequences, no limit (slices too large for it
 * have an infinite delay).  Returns: (owned) latency, lower_bound, groups, n_solves; NULL without
 * an error if there is no answer; NULL with PLAN_SLICE_ERROR_LIMIT.
 */
typedef PlanSliceResult *(*PlanSliceRoundFunc)(const PlanSliceProblem *problem, void *user_data,
                                               GError **error);

/*
 * The best way to cut the batch into rounds of those @solve finds.
 * Returns: (owned) without max_slice and max_backward; NULL on a PLAN_SLICE_ERROR.
 */
PlanSliceResult *plan_slice_solve_rounds(const PlanSliceProblem *problem, PlanSliceRoundFunc solve,
                                         void *user_data, GError **error);

G_END_DECLS

#endif /* PLANNER_SLICES_ROUNDS_H */
