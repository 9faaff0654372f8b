/*
 * planner/bounds/floor_path.h - long paths through the order in which several chunks run slices.
 *
 * Internal to bounds/.  Where ranks have several chunks, one family slices, so that with numbers of micro-batches m
 * and of slices k, and with the sizes of the micro-batches, the order of all ops is known
 * (schedule/one_f_one_b.c).  The ops and messages of a path through that order run one after the other, whatever
 * they take.  Let a path pass a layer of some kind N_j times in slice j of micro-batches of b sequences, and
 * n = min N_j.  Slices lie in a cell: none is longer than s of a sequence, so together they lack k s - 1 of a
 * sequence to be all as long as that, and one of them lacks no more.  Then the path's ops take at least
 *
 *   n k H(b L / k)  +  E H(b x),   E = sum (N_j - n),   x >= L (s - (k s - 1) max (N_j - n) / E)
 *
 * with H as floor.h has it: the first term is that of whole micro-batches, the second one of E ops of b x rows on
 * average, both by Jensen's inequality; attention and messages are alike, the ends of the model have an H of their own
 * (plan_floor_ends_table), and x is at least the least that k - 1 slices leave.  Any N_j that are the mean of
 * several paths' say so too, since the mean of several bounds is one.
 *
 * So any paths do, and the best ones leave the slices nothing to gain from being shorter or longer.  They are found
 * by a game: slices begin as equal; the longest path is taken; slices that have more of it get shorter, others
 * longer; and again.  The means of the paths of such a game go to the best ones  [Freund and Schapire 1999,
 * Adaptive game playing using multiplicative weights].  The times with which they are found are those of equal
 * slices, so that cells with the same numbers have the same paths, and what is part of a cell has no lower bound.
 *
 * Where micro-batches may differ, all sequences of sizes count whose largest one is as large as the cell's, and
 * the least of their bounds is the cell's.  What a rank has to recompute (floor_memory.h) is added in the
 * share of sequences whose backwards are all on the path.
 *
 * Thread-safety: as the memo.
 */
#pragma once

#include "planner/bounds/floor_layers.h"

/* Paths of one number of micro-batches and of slices, whose largest micro-batch has floor->group sequences. */
typedef struct PlanFloorPaths PlanFloorPaths;

/*
 * Has @floor's ends priced (plan_floor_set_ends).
 * @cell  of one number of slices: which lengths they have does not count
 * Returns: (owned) NULL: ranks have one chunk, or there are too many ops, or sizes of micro-batches.
 * Cost: O(sequences of sizes * paths * ops).
 */
PlanFloorPaths *plan_floor_paths_new(PlanFloor *floor, PlanMemo *memo, const PlanFloorCell *cell);
void plan_floor_paths_free(PlanFloorPaths *paths); /* (nullable) */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(PlanFloorPaths, plan_floor_paths_free)

/* Returns: what the slicings of @cell take at the least, before rounding, with the cell's number of micro-batches and
 * of slices those of @paths.  @forced_s: [rank] what it has to recompute.
 * Cost: O(sequences of sizes * (ranks + kinds of layers)). */
double plan_floor_paths_s(const PlanFloorPaths *paths, const PlanFloor *floor,
                          const PlanFloorCell *cell, const double *forced_s);

/* Returns: how many ops and messages lie on a path on average, at the most. */
double plan_floor_paths_n_ops(const PlanFloorPaths *paths);
