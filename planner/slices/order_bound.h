/*
 * planner/slices/order_bound.h - how long every answer of slice_orders.h takes at the least.
 *
 * Internal to planner/.  Of any order: a rank does all of its work, its first op waits for the
 * first slice of some group on the stages before its first chunk, and its last op, the backward of
 * the first slice of perhaps another, is followed by the same stages' backwards.  The least of this
 * is found exactly.
 *
 * Where all stages are alike, of orders that are the same on all ranks (which those of all families
 * that slice are): before the last rank's first backward it runs forwards only, all of those of
 * some group g among them, a flow shop in which the last of n ranks idles for (n - 1) max f of
 * them; after its last forward, the last slice of some group g', it runs backwards only, all of g'
 * among them, and the ranks before it need (n - 1) max b more.  So
 *
 *   time >= sum of a rank's work + (n - 1) (max over g of f + max over g' of b),
 *
 * which for groups of one size is the fill-drain formula: no order beats it.  The least is found
 * exactly for every pair of sizes of g and g', each slice of the other sequences in its best
 * groups.
 */
#ifndef PLANNER_SLICES_ORDER_BOUND_H
#define PLANNER_SLICES_ORDER_BOUND_H

#include "planner/slices/orders.h"

G_BEGIN_DECLS

/*
 * @grid  (out, owned) both directions of all slices on the rank that takes longest.
 * false on PLAN_SLICE_ERROR_LIMIT.
 */
bool plan_slice_order_bound(const PlanSliceOrder *order, int64_t **grid, int64_t *bound,
                            GError **error);

G_END_DECLS

#endif /* PLANNER_SLICES_ORDER_BOUND_H */
