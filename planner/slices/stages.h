/*
 * planner/slices/stages.h - slices for a pipeline whose stages take different times.
 *
 * Slices pass the stages as jobs a flow shop, in the order of the answer: groups one after the
 * other, each one's slices first to last; a stage takes one at a time:
 *
 *   C(k, j) = max(C(k, j - 1), C(k - 1, j) + d(j)) + t_k(j);  the time is that of the last j and k.
 *
 * With the directions apart the backwards follow, begun when the last stage has ended its last
 * forward: the same from the last stage to the first, groups in the same order, slices of a group
 * last first.  That is the simulator's time of schedule "terapipe" [Li et al. 2102.07988 section
 * 3.2], which for equal stages is the formula of slice_problem.h.
 *
 * No program is known that finds the least of this exactly on large grids.  For every stages a <= b
 * the way through the shop that waits in a, goes on to b with the slice that takes longest, and
 * waits there, says
 *
 *   time >= sum min(t_a, t_b) + max over slices of (t_a + ... + t_b - min(t_a, t_b))
 *
 * of which the least is found exactly: the best of them is the lower bound, their answers (and
 * those of other weights of the maximum) are where slice_judge.h begins.
 *
 * Thread-safety: pure.
 */
#ifndef PLANNER_SLICES_STAGES_H
#define PLANNER_SLICES_STAGES_H

#include "planner/slices/problem.h"

G_BEGIN_DECLS

/* What one stage takes. */
typedef struct {
    const int64_t *forward;  /* (borrowed) as PlanSliceCosts.cost; or both directions */
    const int64_t *backward; /* (borrowed, nullable: together) for all stages or for none */
    double factor;           /* > 0: its times are so many times those, rounded */
} PlanSliceStage;

static inline bool
plan_slice_stage_is_same(const PlanSliceStage *a, const PlanSliceStage *b)
{
    return a->forward == b->forward && a->backward == b->backward && a->factor == b->factor;
}

/* (owned) [stage] the first one behind it that takes other times; @n_stages: none. */
int64_t *plan_slice_stages_runs(const PlanSliceStage *stages, int64_t n_stages);

/* One stage's time of cell @at in direction @r (0, or 1: backward); PLAN_SLICE_INFINITE: none. */
int64_t plan_slice_stage_time(const PlanSliceStage *stage, int r, int64_t at);

/* The time of @groups as above; INT64_MAX if a slice is infinite or the sum beyond
 * PLAN_SLICE_MAX_SUM.  Cost: O(slices * stages). */
int64_t plan_slice_stages_time(const PlanSliceProblem *problem, const PlanSliceStage *stages,
                               const GPtrArray *groups);

/* Sets the longest slices of @result on any stage. */
void plan_slice_stages_longest(const PlanSliceProblem *problem, const PlanSliceStage *stages,
                               PlanSliceResult *result);

/*
 * As plan_slice_solve_problem() for problem->n_stages @stages: its cost and backward are not read.
 * The answer's groups are in the order they run; max_slice and max_backward are the longest on any
 * stage.  Proven optimal where lower_bound is the latency: always on small grids.
 */
PlanSliceResult *plan_slice_solve_stages(const PlanSliceProblem *problem,
                                         const PlanSliceStage *stages, GError **error);

G_END_DECLS

#endif /* PLANNER_SLICES_STAGES_H */
