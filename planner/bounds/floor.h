/*
 * planner/bounds/floor.h - how long a point of the space takes at the least with any slices.
 *
 * Micro-batches of at most B sequences are all cut into the same slices of a sequence, L tokens.  The
 * bound is the least over cells: numbers of micro-batches m, ranges of numbers of slices k, and ranges of
 * the longest slice's share s of a sequence.  The cell of the least bound is cut in two until it holds one k
 * and a narrow range of s, or is not below what is known.  In a cell, for each kind of layers and of
 * devices:
 *
 *   w  all m k ops take at least m k H(X / (m k)), with X rows in all and H the convex hull of what one op
 *      takes by rows, up to those of the longest slice (floor_table.h), and attention as no cut makes it less
 *   f  the slice that takes longest takes at least the average of the k slices of the first micro-batch, its
 *      attention to all context included; and what the slice of most tokens takes without context; of the
 *      backwards of the last micro-batch likewise
 *   F  any slice takes at least what one of the tokens does that k - 1 slices, none longer than the longest,
 *      leave it
 *
 * With n_q layers in the first stage of rank q and N_r in all stages of rank r, rank r takes at least N_r w,
 * what it must recompute so that what it holds fits (floor_memory.h), and its idle time on the way of a slice
 * to it and back (flow.h): the sum of n_q f over the ranks q before it, with messages.  A path begins on rank
 * 0, which is subtracted as far as rank r has more layers, or recomputes, in the first and the last
 * micro-batch; or on a rank q with at least as many layers, to which any slice has come.  Of several chunks a
 * slice also passes all stages before the last one, which does all of its own ops meanwhile; and where
 * micro-batches are of one size, a rank waits for a slice of the first one that comes round and round while the
 * rank has only the first group's ops, and of the last one likewise (docs/bounds.md), and for its first
 * gradient (floor_gradient.h).  Of several chunks and one number of slices long paths through the order of all ops
 * count besides (floor_path.h).  What rank 0 does after its
 * last op is added (plan_sketch_end_s), in the order of ranks in which both are least.
 *
 * Context parallelism's ring and tensor parallelism that overlaps are left out, since they may hide.
 * With measured rows nothing is known, since their times may fall.
 *
 * Thread-safety: as the memo.
 */
#pragma once

#include "planner/cost/point.h"

/* What is bounded.  Everything is borrowed. */
typedef struct {
    PlanMemo *memo; /* remembers what layers take */
    const PlanRequest *request;
    const PlanPoint *point;
    const PlanLayerCost *cost; /* of the layers of the point on whole sequences */
    const int64_t *counts;     /* layers of each stage of the chain, which is placed in a loop */
    int64_t memory_bytes;      /* that a device may use; INT64_MAX: no limit */
} PlanFloorAsked;

/* Slicings that are bounded together. */
typedef struct {
    int64_t n_micro_batches;
    int64_t first, last; /* numbers of slices, from 2 on */
    double low, high;    /* the longest slice's share of a sequence */
} PlanFloorCell;

/*
 * Returns: a bound on all plans of the point whose sequences are cut into slices; 0: nothing is known.
 * @groups  sequences of the largest micro-batch, each at most those of the point: the least counts
 * @most_ns  stands for all larger bounds; INT64_MAX: none
 * Cost: some hundred prices of a layer where they are not known, else O(cells * stages).
 */
int64_t plan_floor_ns(const PlanFloorAsked *asked, const int64_t *groups, int n_groups,
                      int64_t most_ns);

/* Returns: the same of the slicings in @cell with a largest micro-batch of @group sequences; INT64_MAX:
 * none of them fits.  The bound of all is the least of these. */
int64_t plan_floor_cell_ns(const PlanFloorAsked *asked, int64_t group, const PlanFloorCell *cell);
