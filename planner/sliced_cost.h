/*
 * planner/sliced_cost.h - costs of layers on equal slices, remembered by shape.
 *
 * Internal to planner/.  They do not depend on replicas, pipeline ranks or ZeRO stage, so many
 * points of the space share them, and searches of one memo (memo.h).
 *
 * Thread-safety: all functions may be called from several threads at once; answers do not depend on
 * the order of calls.
 */
#ifndef PLANNER_SLICED_COST_H
#define PLANNER_SLICED_COST_H

#include "planner/layer_cost.h"

G_BEGIN_DECLS

/* Opaque; see sliced_cost.c. */
typedef struct PlanSlicedCosts PlanSlicedCosts;

PlanSlicedCosts *plan_sliced_costs_new(void);
void plan_sliced_costs_free(PlanSlicedCosts *costs);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(PlanSlicedCosts, plan_sliced_costs_free)

/* Returns: (borrowed, nullable) the costs of @shape in @n_slices; NULL where its degrees forbid so
 * many. */
const PlanSlicedCost *plan_sliced_costs_get(PlanSlicedCosts *costs, const PlanRequest *request,
                                            const PlanLayerShape *shape, int64_t n_slices);

G_END_DECLS

#endif /* PLANNER_SLICED_COST_H */
