/*
 * planner/cost/given_slices.h - the slices that a request gives.
 *
 * Internal to planner/.
 */
#ifndef PLANNER_COST_GIVEN_SLICES_H
#define PLANNER_COST_GIVEN_SLICES_H

#include "planner/cost/layer_cost.h"

G_BEGIN_DECLS

/* How many: 1 unless slices are UNIFORM or GIVEN. */
int64_t plan_given_n_slices(const PlanRequest *request);

/* Tokens that every slice of @shape is a multiple of. */
static inline int64_t
plan_given_granularity(const PlanLayerShape *shape)
{
    return shape->degrees.cp * (shape->sequence_parallel ? shape->degrees.tp : 1);
}

/* Likewise of @plan. */
static inline int64_t
plan_given_plan_granularity(const Plan *plan)
{
    return plan->degrees.cp * (plan->sequence_parallel ? plan->degrees.tp : 1);
}

/*
 * Fills @slices (of int64_t) with @n nearly equal ones of @seq_len tokens.
 * @unit  what every slice must be a multiple of; false where it forbids so many.
 */
bool plan_given_uniform(int64_t seq_len, int64_t granularity, int64_t n, GArray *slices);

/* Fills @slices with those that @request gives; false where the degrees forbid them. */
bool plan_given_slices(const PlanRequest *request, const PlanLayerShape *shape, GArray *slices);

G_END_DECLS

#endif /* PLANNER_COST_GIVEN_SLICES_H */
