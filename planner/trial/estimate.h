/*
 * planner/trial/estimate.h - how long a point may take with slices: the bound of a few equal ones.
 *
 * Internal to planner/.
 */
#ifndef PLANNER_TRIAL_ESTIMATE_H
#define PLANNER_TRIAL_ESTIMATE_H

#include "planner/trial/trial.h"

G_BEGIN_DECLS

/*
 * Of @trial's point in the fastest way of recompute in which some equal slices fit.  INT64_MAX if
 * none does, or if slices without any bubble gain nothing.
 * @most_ns  what is certain to take longer need not be priced, and INT64_MAX stands for it;
 *           INT64_MAX: all is
 * @way      (out) that way, of what is priced
 */
int64_t plan_estimate_trial(PlanTrial *trial, int64_t most_ns, int *recompute);

G_END_DECLS

#endif /* PLANNER_TRIAL_ESTIMATE_H */
