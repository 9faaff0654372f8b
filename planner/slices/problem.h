/*
 * planner/slices/problem.h - the slicing of slice.h for a pipeline of equal stages with separate
 * forwards and backwards, messages and a memory limit.
 *
 * In a round, all forwards fill and drain the pipeline, then all backwards.  One round of K equal
 * stages takes
 *
 *   together: sum t + (K - 1) max (t + d)
 *   apart:    sum (f + g) + (K - 1) (max (f + d) + max (g + d))
 *
 * where t is a slice's time in both directions, f its forward, g its backward and d the time of its
 * message from stage to stage.  `apart` is the exact time, and what the simulator makes of the
 * family terapipe, whose backwards begin when the last stage has ended its last forward.
 * `together` is the time of a pipeline in which a slice takes both directions at once [TeraPipe, Li
 * et al. 2102.07988, eq. 5]; it is never more.
 *
 * With a memory limit the batch is cut into rounds, each of which fills and drains the pipeline
 * alone, as with gradient accumulation [2102.07988 section 3.4].  What a stage keeps of the tokens
 * of a round, and the workspace of its largest slice, must fit.  The answer is the least sum over
 * the rounds, of every grouping of the batch into rounds, groups and slices.
 *
 * The answer is proven optimal, except that `apart` gives up after 4096 branches and then returns
 * the best answer so far with the lower bound that it has reached.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "planner/slices/slice.h"

typedef struct {
    PlanSliceCosts costs;    /* cost: of both directions, or of the forward if backward is given */
    const int64_t *backward; /* (borrowed, nullable) indexed as costs.cost */
    /* (borrowed, nullable) [b * (n_cells + 1) + s] time of the message; >= 0, INFINITE: there is no
     * such slice */
    const int64_t *delay;
    int64_t n_stages;  /* K >= 1 */
    int64_t max_group; /* sequences per group at most; 0: no limit */
    /* The memory of a stage (0: no limit), what it keeps of each token from forward to backward,
     * and the workspace of an op for each of its tokens. */
    int64_t limit_bytes, token_bytes, workspace_token_bytes;
} PlanSliceProblem;

/* The time of the message of a slice of index @row ([b][s]). */
static inline int64_t
plan_slice_delay(const PlanSliceProblem *problem, int64_t row)
{
    return problem->delay == NULL ? 0 : problem->delay[row];
}

/*
 * Among equal latencies fewer slices are better, then larger rounds, larger groups and longer first
 * slices.
 * Returns: (owned) the groups in the order in which they run, round by round; NULL on a
 * PLAN_SLICE_ERROR (INFEASIBLE also where not even one sequence fits).
 * Cost: without backward, delay and limit that of plan_slice_solve(); with backward some tens of
 * it, and with rounds that for every size of a round.
 */
PlanSliceResult *plan_slice_solve_problem(const PlanSliceProblem *problem, GError **error);

/*
 * Solves one round: the problem->costs.batch sequences of it, without a limit (slices that are too
 * large for it have an infinite delay).
 * @result  (out, owned) latency, lower_bound, groups and n_solves; NULL: there is no answer.
 * Returns false with PLAN_SLICE_ERROR_LIMIT.
 */
typedef bool (*PlanSliceRoundFunc)(const PlanSliceProblem *problem, void *user_data,
                                   PlanSliceResult **result, GError **error);

/* Cuts the batch into rounds that each fit in memory, so that the sum of what @solve finds for them
 * is least.
 * Returns: (owned) a result without max_slice and max_backward; NULL on a PLAN_SLICE_ERROR. */
PlanSliceResult *plan_slice_solve_rounds(const PlanSliceProblem *problem, PlanSliceRoundFunc solve,
                                         void *user_data, GError **error);
