/*
 * planner/partition/partitions.h - the partitions that are tried at a point: even, balanced, and so
 * that every stage fits.
 *
 * The balanced partition depends on how long layers take, not on replicas, ZeRO stage or schedule
 * family, so many points of the space share it, and a memo remembers it.
 *
 * Thread-safety: all functions may be called from several threads at once.
 */
#pragma once

#include "planner/bounds/sketch.h"

/* Returns: (owned) the layers of each stage of a chain, as plan_set_even_stages() divides them. */
int64_t *plan_partition_even(const PlanRequest *request, const PlanPoint *point,
                             const ScheduleFamily *family);

/* Returns: (borrowed from @memo) the layers of each stage of a chain, divided by plan_partition()
 * on the devices on which the stages lie, with the recompute kind that the request fixes, else
 * none. */
const int64_t *plan_partition_balanced(PlanMemo *memo, const PlanRequest *request,
                                       const PlanPoint *point, const ScheduleFamily *family);

/*
 * The partition that plan_partition() finds under the memory limits of @input, each stage with its
 * fastest recompute kind; for families with one chunk per rank.  What is half in flight (from an I
 * to its W) counts as whole.
 * @counts  (out, caller's) [stage].  Returns false if no partition fits.
 */
bool plan_partition_fitted(const PlanSketchInput *input, const PlanSketch *sketch, int64_t *counts);

/* Returns: a lower bound on the longest stage, both passes of one micro-batch, of every partition
 * that fits: each rank holds at most as many layers as fit with a recompute kind with which they
 * take no longer.  Negative: no partition fits. */
double plan_partition_fitted_bound_s(const PlanSketchInput *input, const PlanSketch *sketch);

/* Gives the stages of @plan the layers @counts, of chains of @length stages, and the recompute
 * kinds @recomputes [stage of all chains]. */
void plan_partition_apply(const int64_t *counts, int64_t length, const int *recomputes, Plan *plan);

/* Sets @limits_bytes [pipeline rank] to the memory limit of each rank at @point: the request's, or
 * that of the rank's smallest device; 0: none. */
void plan_partition_limits(const PlanRequest *request, const PlanPoint *point,
                           int64_t *limits_bytes);
