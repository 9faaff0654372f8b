/*
 * planner/slices/judge.h - groups and slices for what no formula says: a function judges each
 * answer.
 *
 * Some pipelines have no closed form (stages that differ, 1F1B and interleaved orders).  Then exact
 * programs for formulas that are near propose answers, the judge (the simulator) takes the best of
 * them, and it is improved step by step: tokens move between neighbouring slices, slices are cut
 * and joined, sequences move between groups, groups change places.  Where all answers are few, all
 * whose sums leave a chance are judged, and the answer is the proven best.  Else it comes with the
 * lower bound that the caller has.
 *
 * Thread-safety: pure, if the judge is.
 */
#ifndef PLANNER_SLICES_JUDGE_H
#define PLANNER_SLICES_JUDGE_H

#include "planner/slices/slice.h"

G_BEGIN_DECLS

/* The time of @groups (of PlanSliceGroup *, in the order they run); INT64_MAX: it cannot be. */
typedef int64_t (*PlanSliceJudgeFunc)(const GPtrArray *groups, void *user_data);

typedef struct {
    /* (borrowed) of one stage: no answer takes less than its sum; cost NULL: not known, and answers
     * are not enumerated */
    const PlanSliceCosts *costs;
    int64_t max_group; /* 0: no limit */
    bool is_common;    /* all groups are cut alike: what a plan file and a Schedule can say */
    bool keeps_groups; /* only slices change while improving */
    PlanSliceJudgeFunc judge;
    void *user_data;     /* (borrowed) */
    int64_t most_judged; /* answers judged while improving, and at most so many of an enumeration */
    int64_t lower_bound; /* of every answer */
} PlanSliceSearch;

/* (owned) a copy of @groups, GPtrArray of PlanSliceGroup *. */
GPtrArray *plan_slice_groups_copy(const GPtrArray *groups);

/* (owned) a copy of @groups, last first. */
GPtrArray *plan_slice_groups_reversed(const GPtrArray *groups);

/* (owned) @batch as @n groups of nearly the same size, larger ones first, all cut as @slices. */
GPtrArray *plan_slice_groups_even(int64_t batch, int64_t n, const GArray *slices);

/*
 * @candidates  (borrowed) of GPtrArray * of PlanSliceGroup *: where to begin; may be empty where
 *              all answers are few.
 * Among equal times judged the fewest slices win, then the order of slice.h.
 * Returns: (owned) n_solves counts judged answers; max_slice is 0, lower_bound the latency if that
 * is proven.  NULL with PLAN_SLICE_ERROR_INFEASIBLE where no answer is possible.
 */
PlanSliceResult *plan_slice_search(const PlanSliceSearch *search, const GPtrArray *candidates,
                                   GError **error);

G_END_DECLS

#endif /* PLANNER_SLICES_JUDGE_H */
