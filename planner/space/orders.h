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

/* Opaque; see orders.c.  What the collectives of layers take in the default rank order: points with equal
 * layers, whose groups are the same there, have them in common. */
typedef struct PlanSpaceComms PlanSpaceComms;

PlanSpaceComms *plan_space_comms_new(void);
void plan_space_comms_free(PlanSpaceComms *comms);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(PlanSpaceComms, plan_space_comms_free)

/*
 * Returns: no plan at the degrees, rank order and micro-batches of @point takes less, whatever its
 * family, ZeRO stage, offload and stages: the computing of all layers and their collectives, except
 * those of context parallelism, which may hide.
 * @cost      of the layers in the default rank order
 * @comms     of these layers, filled as far as they are asked for
 * @overlaps  some family overlaps pairs of ops
 * @most_ns   above it a bound need not be sharp: all collectives may take nothing
 * Cost: that of pricing the collectives of a layer; where @comms lacks them, twice; above @most_ns a few sums.
 */
int64_t plan_space_order_ns(const PlanRequest *request, const PlanLayerCost *cost,
                            const PlanPoint *point, PlanSpaceComms *comms, bool overlaps,
                            int64_t most_ns);
