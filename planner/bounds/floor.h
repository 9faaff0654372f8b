/*
 * planner/bounds/floor.h - how long a point of the space takes at the least with any slices.
 *
 * Let F(x) be what the forward and backward of a layer take at the least on a slice of x tokens of
 * a micro-batch, without attention (profiles/cost/cost.h); it does not fall with x.  Let X be the
 * tokens of an iteration, s the longest slice of a sequence, which all micro-batches have in
 * common, B the most sequences of a micro-batch, and A what attention takes in a layer at the
 * least, which no cut makes less.  There are at least ceil(sequences / B) micro-batches of at least
 * max(2, ceil(L / s)) slices, K ops together.  With H, the lower convex hull of F from 0 tokens to
 * B L, the work of a layer is at least w = K H(X / K) + A, by Jensen's inequality; and not less for
 * more ops, since H is not below 0 at 0.  The longest slice of the first micro-batch passes all ranks before the first stage of rank r, and that of the last
 * micro-batch passes them on the way back (flow.h), with at least s tokens (B s where all
 * micro-batches are alike), and g = F(s) + the attention of s tokens without context.  Each boundary
 * adds the messages M of such a slice.  With n_k layers in the first stage of rank k and N_k in all
 * of its stages:
 *
 *   iteration >= min over s of max over r of  N_r w + ends_r + sum over k < r of (n_k g + M_k)
 *                                             + end of rank 0 (plan_sketch_end_s)
 *
 * where the first and the last micro-batch count no more than n_0 layers of the first stage of rank
 * r, and no head of a single chunk: what that takes longer than rank 0 is not idle on the way.
 * w and g are those of the devices on which the rank lies, and of dense layers and those with
 * experts apart.  ends_r is what embedding and head take at the least (profile_cost_sliced_floor_s).
 * What rank r has to recompute so that it fits is added to its work: it holds a whole micro-batch, and
 * of the next one what the longest slice and the number of slices say (docs/bounds.md).
 * Rows are looked at in intervals, with F at their lower ends and their upper ends as corners of the
 * hull; first many intervals as one, then those that such a bound does not rule out.  Context parallelism's ring and tensor parallelism that overlaps are left out, since they
 * may hide.  With measured rows nothing is known, since their times may fall.
 *
 * Thread-safety: as the memo.
 */
#pragma once

#include "planner/cost/point.h"

/*
 * Returns: a bound on all plans of @point whose sequences are cut into slices; 0: nothing is known.
 * @memo    remembers what layers take
 * @cost    of the layers of @point on whole sequences
 * @group   sequences of the largest micro-batch, at most those of @point
 * @counts  layers of each stage of the chain, which is placed in a loop
 * @memory_bytes  that a device may use; INT64_MAX: no limit
 * @most_ns  stands for all larger bounds; INT64_MAX: none
 * Cost: some hundred prices of a layer where they are not known, else O(intervals * ranks).
 */
int64_t plan_floor_ns(PlanMemo *memo, const PlanRequest *request, const PlanLayerCost *cost,
                      const PlanPoint *point, int64_t group, const int64_t *counts,
                      int64_t memory_bytes, int64_t most_ns);
