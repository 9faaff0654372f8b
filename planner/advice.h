/*
 * planner/advice.h - where no plan fits in memory: by how much, and which change of the request
 * would make one fit.
 */
#pragma once

#include "planner/trial/trial.h"

/*
 * Sets PLAN_ERROR_INFEASIBLE.  The message says the least memory of all plans that the request
 * allows, the plan that needs it, and the smallest change of the request with which a plan fits.
 * That change is found by searching again with one flag after the other released, and then with
 * more devices.
 */
void plan_advice_set_error(const PlanRequest *request, PlanEvaluateFunc evaluate, void *user_data,
                           const PlanOutcome *outcome, GError **error);
