/*
 * planner/slices/slicings.h - slices for a plan: what the fill-drain formula finds best, and equal
 * slices that are nearly as good.
 *
 * The formula is the sum of t over micro-batches, chunks and slices, + (pp - 1) max t, which
 * slice.h minimises.  The time t of every (length, context) comes from Workloads of probe plans of
 * up to three stages, one of which is like the longest stage of the plan.  Five contexts are priced
 * for each length, with straight lines between them; messages that block count for both of their
 * ends.  What the formula says is not final: the simulator judges.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "planner/cost/request.h"

/*
 * @plan         with stages set and one slice
 * @granularity  (out, nullable) tokens that all slices are multiples of; 0 if nothing can be cut
 * Returns: (owned) GPtrArray of GArray of int64_t tokens, the best by the formula first: the proven
 * best slices at pp, 2 pp and 4 pp stages (more slices need less memory), and all equal ones within
 * a tenth of the best.  Empty where the sequence cannot be cut; NULL on a PLAN_ERROR.
 */
GPtrArray *plan_slicings_new(const PlanRequest *request, const Plan *plan, int64_t *granularity,
                             GError **error);
