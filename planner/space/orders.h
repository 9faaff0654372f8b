/*
 * planner/space/orders.h - the orders of dimensions over ranks that are worth a look.
 *
 * Internal to planner/.
 */
#ifndef PLANNER_SPACE_ORDERS_H
#define PLANNER_SPACE_ORDERS_H

#include "planner/space/space.h"
#include "schedule/rank_order.h"

G_BEGIN_DECLS

/*
 * Sets of orders in which layers cost the same, as bits; the first set has the default order, or
 * the one that the request fixes.  Of orders in which all groups of @degrees lie alike on the
 * cluster, so that plans cost the same, there is one, the first; none that experts' groups rule
 * out. Where only memory counts, which no order changes, there is the default alone. Returns: how
 * many sets; 0: PLAN_ERROR_INVALID says why the fixed order cannot be. Cost: O(orders^2)
 * comparisons of a few rows and groups.
 */
int plan_space_orders(const PlanRequest *request, const PlanDegrees *degrees,
                      uint32_t sets[PLAN_RANK_ORDER_N], GError **error);

/*
 * No plan at @point's degrees, order and micro-batches takes less, whatever its family, savers and
 * stages: the computing of all layers and their collectives, but those of context parallelism,
 * which may hide.
 * @cost      at @point in the default order.
 * @overlaps  some family overlaps pairs of ops.
 * Cost: that of pricing a layer's collectives twice.
 */
int64_t plan_space_order_ns(const PlanRequest *request, const PlanLayerCost *cost,
                            const PlanPoint *point, bool overlaps);

G_END_DECLS

#endif /* PLANNER_SPACE_ORDERS_H */
