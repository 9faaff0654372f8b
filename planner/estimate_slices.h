/*
 * planner/estimate_slices.h - how long a point may take with slices: the bound of a few equal ones.
 *
 * Internal to planner/.
 */
#ifndef PLANNER_ESTIMATE_SLICES_H
#define PLANNER_ESTIMATE_SLICES_H

#include "planner/trial.h"

G_BEGIN_DECLS

/*
 * Of @trial's point in the fastest way of recompute in which some equal slices fit.  INT64_MAX if
 * none does, or if slices without any bubble gain nothing.
 * @way  (out) that way
 */
int64_t plan_estimate_trial(PlanTrial *trial, int *way);

G_END_DECLS

#endif /* PLANNER_ESTIMATE_SLICES_H */
