/*
 * planner/trial/priced.h - what is known of one plan: its bounds, and the report of its simulation.
 *
 * What-ifs of a search that change one thing at a time come to the same plans: of two that fix tp and
 * pp both price and simulate those with either.  Where they share a memo, each plan is priced once and
 * simulated once, unless a later search has a higher limit than the one that it was cut short for.
 * Remembering changes no plan that is found.  It may raise the bound of plans that are pruned, so that
 * only searches remember whose bound nobody asks for (PlanRequest.skips_bound).
 *
 * Thread-safety: as the memo.
 */
#pragma once

#include "planner/trial/trial.h"

/* Opaque; see priced.c. */
typedef struct PlanPriced PlanPriced;

/* Bounds of a priced plan. */
typedef struct {
    int64_t ns, bytes;
    int64_t most_usable_bytes;  /* what a peak may reach on the rank where it may reach most */
    int64_t first_usable_bytes; /* ... on the first rank */
} PlanPricedBounds;

/* Prices @plan, unless the memo has its answer.  Returns: (owned) NULL with an error of workload_new(). */
PlanPriced *plan_priced_new(const PlanTrial *trial, const Plan *plan, const ScheduleFamily *family,
                            GError **error);
void plan_priced_free(PlanPriced *priced);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(PlanPriced, plan_priced_free)

const PlanPricedBounds *plan_priced_bounds(const PlanPriced *priced);

/* Returns: what it takes at the least in any order that a family which searches could find; 0: unknown, or the
 * family does not search.  See plan_bound_order_ns(). */
int64_t plan_priced_order_ns(PlanPriced *priced);

/* Simulates the plan, unless that is known.  @limit_ns and @report as for PlanEvaluateFunc. */
bool plan_priced_evaluate(PlanPriced *priced, int64_t limit_ns, Report **report, GError **error);
