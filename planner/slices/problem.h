/*
 * planner/slices/problem.h - the slicing of slice.h with more of a pipeline: two directions,
 * messages, memory.
 *
 * All forwards fill and drain the pipeline, then all backwards: a round.  One round of K equal
 * stages takes
 *
 *   together: sum t + (K - 1) max (t + d)              t both directions, d the delay between
 * stages apart:    sum (f + g) + (K - 1) (max (f + d) + max (g + d))         f forward, g backward
 *
 * over its slices, and is what the simulator makes of schedule "terapipe" (its backwards begin when
 * the last stage ends its last forward).  `apart` is the exact time, `together` that of a pipeline
 * whose slices take both directions at once [TeraPipe, Li et al. 2102.07988, eq. 5], never more.
 *
 * With a memory limit the batch is cut into rounds, each of which fills and drains the pipeline
 * alone, as with gradient accumulation [2102.07988 section 3.4]: what a stage keeps of a round's
 * tokens, and the workspace of its largest slice, must fit.  The answer is the least sum over the
 * rounds, over every grouping of the batch into rounds, groups and slices.
 *
 * Proven optimal, but that after MAX_NODES (slice_apart.c) branches of `apart` the best answer so
 * far comes back with the lower bound reached.
 *
 * Thread-safety: pure.
 */
#ifndef PLANNER_SLICES_PROBLEM_H
#define PLANNER_SLICES_PROBLEM_H

#include "planner/slices/slice.h"

G_BEGIN_DECLS

typedef struct {
    PlanSliceCosts costs;    /* cost: both directions, or forward where backward is given */
    const int64_t *backward; /* (borrowed, nullable) as costs.cost */
    /* (borrowed, nullable) d of [b * (n_cells + 1) + s]; >= 0, INFINITE: no such slice */
    const int64_t *delay;
    int64_t n_stages;  /* K >= 1 */
    int64_t max_group; /* 0: no limit */
    /* Bytes of a stage; limit_bytes 0: no limit.  Both of the others at least 0. */
    int64_t limit_bytes, token_bytes, workspace_token_bytes;
} PlanSliceProblem;

/* What an answer takes. */
typedef struct {
    int64_t sum;    /* of all slices, both directions */
    int64_t max[2]; /* longest slice: of both directions, or of each apart; without delays */
    int64_t latency;
} PlanSliceTotals;

/* As the formulas above, round by round.  Every slice must be a finite cell. */
PlanSliceTotals plan_slice_totals(const PlanSliceProblem *problem, const GPtrArray *groups);

/* Sequences of the largest round that fits; 0: none, INT64_MAX: no limit. */
int64_t plan_slice_round_limit(const PlanSliceProblem *problem);

/*
 * Among equal latencies the fewest slices win, then the largest rounds, groups and first slices.
 * Returns: (owned) groups in their order, by rounds; NULL on a PLAN_SLICE_ERROR (INFEASIBLE: also
 * where not one sequence fits).
 * Cost: without backward, delays and limit that of plan_slice_solve(); apart some tens of them,
 * with rounds one for every size of a round.
 */
PlanSliceResult *plan_slice_solve_problem(const PlanSliceProblem *problem, GError **error);

G_END_DECLS

#endif /* PLANNER_SLICES_PROBLEM_H */
