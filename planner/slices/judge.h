/*
 * planner/slices/judge.h - groups and slices where no formula says how long an answer takes: a
 * function judges each answer.
 *
 * Some pipelines have no closed form: stages that differ, 1F1B and interleaved orders.  There,
 * exact programs for formulas that are near propose candidates, the judge (mostly the simulator)
 * chooses the best of them, and the best is improved step by step: tokens move between neighbouring
 * slices, slices are cut and joined, sequences move between groups, groups are split and change
 * places.  Where there are few answers in all, every one whose sum leaves it a chance is judged,
 * and the result is proven best.  Otherwise it has the lower bound that the caller knows.
 *
 * Thread-safety: pure, if the judge is.
 */
#pragma once

#include "planner/slices/slice.h"

/* Returns: the time of @groups (of PlanSliceGroup *, in the order in which they run); INT64_MAX:
 * they cannot run, or take too much memory. */
typedef int64_t (*PlanSliceJudgeFunc)(const GPtrArray *groups, void *user_data);

typedef struct {
    /* (borrowed) of one stage: no answer takes less than its sum.  cost NULL: the costs are not
     * known, and answers are not enumerated. */
    const PlanSliceCosts *costs;
    int64_t max_group; /* sequences per group at most; 0: no limit */
    bool is_common;    /* all groups are cut alike, as in a plan file and a Schedule */
    bool keeps_groups; /* improving changes slices only */
    PlanSliceJudgeFunc judge;
    void *user_data;     /* (borrowed) */
    int64_t most_judged; /* answers that improving judges, and that an enumeration judges */
    int64_t lower_bound; /* of every answer */
} PlanSliceSearch;

/*
 * Judges @candidates, improves the best one, and enumerates all answers where they are few.  Among
 * answers that are judged equal the order of plan_slice_result_compare() decides.
 * @candidates  (borrowed) of GPtrArray * of PlanSliceGroup *; may be empty where there are few
 *              answers in all
 * Returns: (owned) n_solves counts judged answers; max_slice is 0; lower_bound is the latency if
 * that is proven.  NULL with PLAN_SLICE_ERROR_INFEASIBLE where no answer was found that can run.
 */
PlanSliceResult *plan_slice_search(const PlanSliceSearch *search, const GPtrArray *candidates,
                                   GError **error);
