/*
 * planner/slices/stages.h - slices for a pipeline whose stages take different times.
 *
 * Slices pass the stages as jobs pass a flow shop, in the order of the answer: group by group, and
 * the slices of a group from the first to the last.  A stage takes one slice at a time, so slice j
 * ends on stage k at
 *
 *   C(k, j) = max(C(k, j - 1), C(k - 1, j) + d(j)) + t_k(j)
 *
 * and the time is C of the last stage and the last slice.  With the directions apart the backwards
 * begin when the last stage has ended its last forward: the same shop from the last stage to the
 * first, groups in the same order, the slices of a group from the last to the first.  That is the
 * simulator's time of the family terapipe [Li et al. 2102.07988 section 3.2], and for equal stages
 * the formula of problem.h.
 *
 * No program is known that finds the least time exactly on large grids.  For stages a <= b, the
 * path through the shop that stays on stage a, goes on to b with one slice and stays there says
 *
 *   time >= sum min(t_a, t_b) + max over slices of (t_a + ... + t_b - min(t_a, t_b))
 *
 * and the least of the right side over all answers is found exactly.  The best of these bounds is
 * the lower bound.  Their answers, and those of other weights of the maximum, are where judge.h
 * begins.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "planner/slices/problem.h"

/* What one stage takes. */
typedef struct {
    const int64_t *forward;  /* (borrowed) as PlanSliceCosts.cost; both directions if no backward */
    const int64_t *backward; /* (borrowed, nullable) of all stages or of none */
    double factor;           /* > 0: the stage takes so many times these times, rounded */
} PlanSliceStage;

/* Returns: (owned) [stage] the first stage after it that takes other times; n_stages: none does. */
int64_t *plan_slice_stages_runs(const PlanSliceStage *stages, int64_t n_stages);

/* Returns: the stage's time of the slice of index @at in the direction @r (0: forward, 1:
 * backward); PLAN_SLICE_INFINITE: there is no such slice. */
int64_t plan_slice_stage_time(const PlanSliceStage *stage, int r, int64_t at);

/* The same in both directions together. */
int64_t plan_slice_stage_both(const PlanSliceStage *stage, int64_t at);

/* Returns: the time of @groups as above; INT64_MAX if a slice is infinite or the sum is beyond
 * PLAN_SLICE_MAX_SUM.  Cost: O(slices * stages). */
int64_t plan_slice_stages_time(const PlanSliceProblem *problem, const PlanSliceStage *stages,
                               const GPtrArray *groups);

/* Sets max_slice and max_backward of @result to the longest slices on any stage. */
void plan_slice_stages_longest(const PlanSliceProblem *problem, const PlanSliceStage *stages,
                               PlanSliceResult *result);

/*
 * Solves @problem, whose cost and backward are not read, for the problem->n_stages @stages.
 * Returns: (owned) groups in the order in which they run; max_slice and max_backward are the
 * longest on any stage; the answer is proven optimal where lower_bound is the latency, as it always
 * is on small grids.  NULL on a PLAN_SLICE_ERROR.
 */
PlanSliceResult *plan_slice_solve_stages(const PlanSliceProblem *problem,
                                         const PlanSliceStage *stages, GError **error);
