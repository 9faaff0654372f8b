/*
 * planner/advice.h - nothing fits: by how much, and what would.
 *
 * Internal to planner/.
 */
#ifndef PLANNER_ADVICE_H
#define PLANNER_ADVICE_H

#include "planner/trial/trial.h"

G_BEGIN_DECLS

/*
 * Sets PLAN_ERROR_INFEASIBLE: the least memory of all plans the request allows, the plan that needs
 * it, and the smallest change of the request under which a plan fits, found by searching again with
 * one flag after the other released, then with more devices.
 */
void plan_advice_set_error(const PlanRequest *request, PlanEvaluateFunc evaluate, void *user_data,
                           const PlanOutcome *outcome, GError **error);

/*
 * The plan of least memory, whatever fits, over the points whose parameters take least; looks at a
 * few hundred of them at most.  Returns: (owned, nullable) with its prediction.  In search.c.
 */
Plan *plan_search_least(const PlanRequest *request, PlanEvaluateFunc evaluate, void *user_data);

G_END_DECLS

#endif /* PLANNER_ADVICE_H */
