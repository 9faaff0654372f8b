/*
 * planner/space/orders.h - the rank orders that are worth a look at some degrees.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "planner/space/space.h"
#include "schedule/rank_order.h"

/*
 * Fills @sets with sets of rank orders, as bits; in all orders of a set layers cost the same.  The
 * first set has the default order, or the order that the request fixes.  Of orders in which all
 * groups of @degrees lie alike on the cluster, so that plans cost the same, only the first is
 * there; orders that the groups of experts rule out are not.  Where only memory counts, which no
 * order changes, there is the default order alone. Returns: how many sets; 0 with
 * PLAN_ERROR_INVALID, which says why the fixed order cannot be. Cost: O(orders^2) comparisons of a
 * few groups.
 */
int plan_space_orders(const PlanRequest *request, const PlanDegrees *degrees,
                      uint32_t sets[PLAN_RANK_ORDER_N], GError **error);

/*
 * Returns: no plan at the degrees, rank order and micro-batches of @point takes less, whatever its
 * family, ZeRO stage, offload and stages: the computing of all layers and their collectives, except
 * those of context parallelism, which may hide.
 * @cost      of the layers in the default rank order
 * @overlaps  some family overlaps pairs of ops
 * Cost: that of pricing the collectives of a layer twice.
 */
int64_t plan_space_order_ns(const PlanRequest *request, const PlanLayerCost *cost,
                            const PlanPoint *point, bool overlaps);
