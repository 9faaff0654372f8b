/*
 * planner/cost/point.h - one point of what a request leaves open: everything of a plan but its
 * schedule family, its slices and what its stages recompute.
 */
#ifndef PLANNER_COST_POINT_H
#define PLANNER_COST_POINT_H

#include "planner/cost/layer_cost.h"

G_BEGIN_DECLS

typedef struct {
    PlanDegrees degrees;
    uint32_t orders; /* of ranks, as bits: those in which layers cost the same; 0: the degrees' */
    int64_t micro_batch, n_micro_batches;
    int32_t zero_stage;
    PlanOffload offload;
    bool sequence_parallel;
    bool is_balanced;        /* stages by plan_partition(), not even */
    PlanRecompute recompute; /* of all stages of a plan that is cut into slices */
    int64_t bound_ns, bound_bytes;
    int64_t sliced_bound_ns; /* of any slicing of the sequences; INT64_MAX: no family slices */
    int64_t sliced_bytes;    /* likewise of memory */
    double recompute_s;      /* of one micro-batch, over all layers, at the least */
    /* Of ZeRO 3, by dense layer and layer with experts: what gathering its parameters takes, and
     * scattering their gradients, in all slices of a micro-batch; 0 elsewhere */
    double gather_s[2], scatter_s[2];
    double end_s;         /* reduction of an average rank after its last op, at the least */
    int64_t n_candidates; /* families to try here, each with its ways of recompute */
    int64_t cost;         /* index into the space's costs */
    int64_t index;        /* in the order of enumeration: the last tie-break */
} PlanPoint;

/* The orders of ranks to try at @point. */
static inline uint32_t
plan_point_orders(const PlanPoint *point)
{
    return point->orders != 0 ? point->orders : UINT32_C(1) << point->degrees.rank_order;
}

/* The layers of @point. */
static inline PlanLayerShape
plan_point_layer_shape(const PlanPoint *point)
{
    return (PlanLayerShape){point->degrees, point->micro_batch, point->sequence_parallel};
}

/* How many stages one chain of @family has at @degrees. */
static inline int64_t
plan_point_chain_length(const PlanDegrees *degrees, const ScheduleFamily *family)
{
    return schedule_placement_n_stages(family->placement, degrees->pp, degrees->vpp);
}

/* Returns: the micro-batches per interleaved group of @family at @point; 0: the default, or none.
 */
static inline int64_t
plan_point_group(const PlanRequest *request, const PlanPoint *point, const ScheduleFamily *family)
{
    return family->groups && point->degrees.vpp > 1 ? request->group : 0;
}

/* Returns: the shape of the schedule of @family at @point with @n_slices. */
static inline ScheduleShape
plan_point_shape(const PlanRequest *request, const PlanPoint *point, const ScheduleFamily *family,
                 int64_t n_slices)
{
    return (ScheduleShape){.n_ranks = point->degrees.pp,
                           .n_chunks = point->degrees.vpp,
                           .n_micro_batches = point->n_micro_batches,
                           .n_slices = n_slices,
                           .group = plan_point_group(request, point, family)};
}

/* Sequences that regroups allows: of more, differences do not show. */
#define PLAN_POINT_MAX_REGROUPED 16

/* Whether micro-batches of sliced plans of @point may differ in size: they are few, and their size
 * is not asked for. */
static inline bool
plan_point_regroups(const PlanRequest *request, const PlanPoint *point)
{
    return request->micro_batch == 0 && point->micro_batch > 1 &&
           point->n_micro_batches * point->micro_batch <= PLAN_POINT_MAX_REGROUPED;
}

G_END_DECLS

#endif /* PLANNER_COST_POINT_H */
