/*
 * planner/trial/slices.h - one point of the space on slices that the search chooses: how long it
 * may take with them, and the best that are found.
 *
 * The fill-drain formula proposes slices (slices/slicings.h), and the simulator judges them under
 * every family that slices.  So are all groupings and slicings of a coarse grid that their bounds
 * do not rule out (slices/coarse.h).  The best of them is then improved step by step by the
 * simulator alone (slices/judge.h), since 1F1B and interleaved orders do not follow the formula.
 */
#pragma once

#include "planner/trial/trial.h"

/* Tries the families of @point on the best slices that are found for it; adds what is found and
 * counted to @outcome. */
void plan_evaluate_slices(const PlanEvaluation *evaluation, const PlanPoint *point, int64_t limit,
                          PlanOutcome *outcome);

/* Estimates how long @point may take with slices, and sets outcome->estimate_ns alone: as
 * plan_estimate_trial(), or a bound on it that is already more than is worth a look
 * (most_estimate_ns). */
void plan_estimate_slices(const PlanEvaluation *evaluation, const PlanPoint *point, int64_t limit,
                          PlanOutcome *outcome);

/*
 * Returns: the least bound on 4 or 16 equal slices under all families that slice, with the fastest
 * recompute kind with which some of them fit; INT64_MAX if none does, or if slices without any
 * bubble gain nothing.
 * @most_ns    what is certain to take longer need not be priced, and INT64_MAX stands for it;
 *             INT64_MAX: everything is priced
 * @recompute  (out) that recompute kind, of what is priced
 */
int64_t plan_estimate_trial(PlanTrial *trial, int64_t most_ns, int *recompute);
