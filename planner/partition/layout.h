/*
 * planner/partition/layout.h - how layers are divided into stages: evenly, balanced, and so that
 * they fit.
 *
 * Internal to planner/.  The balanced division depends on how long layers take, not on replicas,
 * ZeRO stage or schedule family, so many points of the space share it and it is remembered.
 *
 * Thread-safety: all functions may be called from several threads at once; answers do not depend on
 * the order of calls.
 */
#ifndef PLANNER_PARTITION_LAYOUT_H
#define PLANNER_PARTITION_LAYOUT_H

#include "planner/bounds/sketch.h"

G_BEGIN_DECLS

/*
 * Returns: (borrowed) layers of each stage of a chain: the division of plan_partition() with what
 * the request fixes of recompute, else none, on the devices where the stages lie.
 */
const int64_t *plan_layout_balanced(PlanMemo *memo, const PlanRequest *request,
                                    const PlanPoint *point, const ScheduleFamily *family);

/* As plan_set_even_stages() divides: (owned) layers of each stage of a chain. */
int64_t *plan_layout_even(const PlanRequest *request, const PlanPoint *point,
                          const ScheduleFamily *family);

/*
 * The division that plan_partition() finds under @input's memory limits, each stage in its fastest
 * way; for single chunks.  Half units count as whole ones.
 * @counts  (out) room for all stages.  Returns false if none fits.
 */
bool plan_layout_fit(const PlanSketchInput *input, const PlanSketch *sketch, int64_t *counts);

/*
 * A bound on the longest stage, of both passes of one micro-batch, of every division that fits:
 * each rank has at most as many layers as fit in a way in which they take no longer.  Negative:
 * nothing fits.
 */
double plan_layout_fit_bound_s(const PlanSketchInput *input, const PlanSketch *sketch);

/* Gives @plan's stages the layers of @counts and the recompute of @ways [stage of all chains]. */
void plan_layout_apply(const int64_t *counts, int64_t length, const int *recomputes, Plan *plan);

/* Memory limit of each pipeline rank of @point: the request's or that of its smallest device; 0:
 * none.  @limits has room for all ranks. */
void plan_layout_limits(const PlanRequest *request, const PlanPoint *point, int64_t *limits);

G_END_DECLS

#endif /* PLANNER_PARTITION_LAYOUT_H */
