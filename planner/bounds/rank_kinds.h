/*
 * planner/bounds/rank_kinds.h - the kinds of nodes that pipeline ranks lie on, and what layers take
 * there, for bounds on clusters of several kinds of nodes; and the groups of ranks whose groups do not
 * all lie alike.
 *
 * Thread-safety: as the memo.
 */
#pragma once

#include "planner/cost/point.h"

/* Sets @kinds [pipeline rank] to the kind of nodes of the rank's slowest device, in every order of ranks
 * that @point has; -1: orders differ, or equally slow devices lie on several. */
void plan_rank_kinds(const PlanRequest *request, const PlanPoint *point, int32_t *kinds);

/*
 * Where the groups of @point's ranks do not all lie alike, on devices of one kind and in one order: sets
 * @places [pipeline rank] to a number for each way in which the groups of layers lie, and returns (owned)
 * GArray of ProfileGroup, MODEL_GROUP_N for each number, those of the first rank that has it.  NULL: ranks
 * lie alike, or it is not known where; then @places is untouched.
 */
GArray *plan_rank_places(const PlanRequest *request, const PlanPoint *point, int32_t *places);

/*
 * Sets @likes [pipeline rank] to the first rank on which ops of @point take as long, in each order of ranks that
 * it has: both lie on nodes of one of @kinds (plan_rank_kinds()), and the groups of their layers, with ZeRO 3
 * those of their weights too, lie alike.  A rank on none of @kinds is like no other.
 */
void plan_rank_likes(const PlanRequest *request, const PlanPoint *point, const int32_t *kinds,
                     int32_t *likes);

/* Of one rank: the groups over which it sums the gradients of dense and of expert parameters. */
typedef struct {
    ProfileGroup dense, expert;
} PlanReductionGroups;

/* Returns: (borrowed from the request's memo, nullable) GArray of PlanReductionGroups: of ranks whose groups
 * lie alike at @degrees one.  NULL: the request has no memo. */
const GArray *plan_rank_reductions(const PlanRequest *request, const PlanDegrees *degrees);

/*
 * Returns: how many ranks on the fastest devices do as much as all ranks of @point do, at the most: where a
 * rank takes at least q times as long for any part, the sum of all 1 / q.  Why: if rank r has the share n_r of
 * the work W that the fastest devices take, the longest rank takes at least the average of q_r n_r W by the
 * weights 1 / q_r, which is W over that sum.
 */
double plan_rank_fast(PlanMemo *memo, const PlanRequest *request, const PlanPoint *point);

/* Returns: (owned, nullable) [pipeline rank] the costs of the layers of @point on whole sequences
 * where the rank lies, borrowed from @memo; NULL: all nodes are of one kind. */
const PlanLayerCost **plan_rank_costs(PlanMemo *memo, const PlanRequest *request,
                                      const PlanPoint *point);
