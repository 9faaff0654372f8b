/*
 * planner/bounds/floor_gradient.h - how long a rank of several chunks waits for its first gradient.
 *
 * Internal to bounds/.  Micro-batches of one size are cut into k slices and pass in groups of g through v
 * chunks on each of p ranks, in the order of seq1f1b-interleaved, the one family that slices and has chunks
 * (schedule/one_f_one_b.c).  The first backward of rank r < p - 1 is that of the last slice of the first
 * micro-batch in chunk v - 1.  Between its forward and its backward the slice passes chunk v - 1 of all
 * ranks behind r and comes back:
 *
 *   way(r) = sum over s > r of (f_s + b_s) with messages, f and b of the shortest slice
 *
 * Meanwhile r runs only the forwards E that its warm-up has after that forward: 2 (p - 1 - r) of them, or
 * 2 (p - 1 - n) where the last of several groups has n < p - 1 slices and that is more.  So a path through
 * all ops of r but E, with this way in their place, takes
 *
 *   work(r) + idle(r) + way(r) - E
 *
 * where idle(r) is at both ends of that path: its start is before the first micro-batch's forward in chunk
 * v - 1 and its end after the first backward, so nothing is counted twice.  All terms are of ops of the
 * path, so each may stand for its least: all ops but E take at least what all of them do, less the average
 * micro-batch for each of which some slice is in E, and with the shortest slice for each other slice of
 * these.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "planner/bounds/floor_layers.h"

/* What is known while ranks are asked one after the other. */
typedef struct {
    const PlanFloor *floor;                         /* (borrowed) */
    const PlanFloorCell *cell;                      /* (borrowed) of one number of slices */
    const PlanFloorTimes (*times)[MODEL_MAX_KINDS]; /* (borrowed) [place][kind of layers] */
    double behind_s; /* both passes of a slice in the last chunk of the ranks that are left */
} PlanFloorGradient;

/* Sets what lies behind all ranks.  Cost: O(ranks * kinds of layers). */
void plan_floor_gradient_begin(PlanFloorGradient *gradient);

/* Adds to @idle [order] what rank @r waits in each order of ranks.  Ranks are asked in order, from 0 on.
 * Cost: O(kinds of layers * (1 + p / (g k))). */
void plan_floor_gradient_next(PlanFloorGradient *gradient, int64_t r, double *idle);
