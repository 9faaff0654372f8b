/*
 * planner/bounds/floor.h - how long a point of the space takes at the least with any slices.
 *
 * Let F(x) be what the forward and backward of a layer take at the least on a slice of x tokens of
 * a micro-batch (profiles/cost/cost.h); it does not fall with x.  Let X be the tokens of an
 * iteration, s the longest slice of a sequence, which all micro-batches have in common, and B the
 * most sequences of a micro-batch.  No slice has more than B s tokens, so the work of a layer is at
 * least X r(B s), where r(y) is the least F(x) / x over x <= y.  The longest slice of the first
 * micro-batch passes all ranks before the first stage of rank r, and that of the last micro-batch
 * passes them on the way back (flow.h), with at least s tokens (B s where all micro-batches are
 * alike).  With n_k layers in the first stage of rank k and N_k in all of its stages:
 *
 *   iteration >= min over s of max over r of  N_r X r(B s) + (n_0 + ... + n_(r-1)) F(s)
 *
 * where the first and the last micro-batch count no more than n_0 layers of the first stage of rank
 * r: what that takes longer than rank 0 is not idle on the way.  Lengths are looked at in
 * intervals, with F at their lower ends and the time per token at their upper ends.  The ends of
 * the model, attention, collectives and messages are left out.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "planner/cost/point.h"

/*
 * Returns: a bound on all plans of @point whose sequences are cut into slices; 0: nothing is known.
 * @counts  layers of each stage of the chain, which is placed in a loop
 * Cost: some hundred prices of a layer.
 */
int64_t plan_floor_ns(const PlanRequest *request, const PlanPoint *point, const int64_t *counts);
