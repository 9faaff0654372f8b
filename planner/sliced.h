/*
 * planner/sliced.h - which points of a space are worth slicing, their slices, and how much faster any
 * slicing of the space could be.
 *
 * Slicing a point takes as long as hundreds of plans of whole sequences.  So points are estimated
 * first, by the bound of equal slices; those of the best estimates are sliced, each with its variants
 * of other chunks and stages.  Estimates are of equal slices in one chunk: where sequences are long, or chunks
 * are many, they are too large.  So the points whose bounds are the least of all, which hold the search's bound
 * down, are sliced briefly besides.
 *
 * Thread-safety: as run.h.
 */
#pragma once

#include "planner/run.h"

/* Chunks that are tried with slices, but for points of the least bounds, which may have any number. */
#define PLAN_SLICED_CHUNKS 4

/* Returns: a bound of slices that is above this leaves them too little to gain on a plan of the
 * objective @limit. */
int64_t plan_sliced_least_gain(int64_t limit);

/* Once good plans of whole sequences are known: slices the points that are worth it, and lowers the run's
 * bound to that of all slicings, unless the request skips bounds. */
void plan_sliced_search(PlanRun *run);
