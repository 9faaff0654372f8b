/*
 * planner/bounds/floor.h - how long a point of the space takes at the least with any slices.
 *
 * Internal to planner/.  F(x): what a layer's forward and backward take at the least on a slice of
 * x tokens of a micro-batch (profiles/cost/cost.h), which does not fall with x.  Let X be the
 * tokens of an iteration, s the longest slice of a sequence, which all micro-batches have in
 * common, and B the most sequences of a micro-batch.  No slice has more than B s tokens, so a
 * layer's work is at least X r(B s), r(y) the least F(x) / x of x <= y.  The first micro-batch's
 * longest slice passes all ranks before rank r's first stage, and the last one's on the way back
 * (bound_flow.h), with at least s tokens (B s where micro-batches are all alike).  With n_k layers
 * in the first stage of rank k and N_k in all of its stages:
 *
 *   iteration >= min over s of max over r of  N_r X r(B s) + (n_0 + ... + n_(r-1)) F(s)
 *
 * of which the first and the last micro-batch count no more than n_0 layers of rank r's first
 * stage: what that takes longer than rank 0 is not idle on the way.  Lengths are looked at in
 * intervals: F at their lower ends, for each token at their upper ends.  Ends of the model,
 * attention, collectives and messages are left out.
 */
#ifndef PLANNER_BOUNDS_FLOOR_H
#define PLANNER_BOUNDS_FLOOR_H

#include "planner/cost/point.h"

G_BEGIN_DECLS

/*
 * Returns: a bound on all plans of @point whose sequences are cut into slices; 0: nothing is known.
 * @counts  layers of each stage, whose ranks lie in a loop.
 * Cost: some hundred prices of a layer.
 */
int64_t plan_floor_ns(const PlanRequest *request, const PlanPoint *point, const int64_t *counts);

G_END_DECLS

#endif /* PLANNER_BOUNDS_FLOOR_H */
