/*
 * planner/cost/point.h - one point of what a request leaves open: everything of a plan but its
 * schedule family, its slices and what its stages recompute.
 */
#pragma once

#include "base/order.h"
#include "planner/cost/layer_cost.h"

typedef struct {
    PlanDegrees degrees;
    uint32_t
        orders; /* rank orders, as bits: those in which layers cost the same; 0: the degrees' */
    int64_t micro_batch, n_micro_batches; /* sequences of a micro-batch; how many there are */
    int32_t zero_stage;
    PlanOffload offload;
    bool sequence_parallel;
    bool is_balanced;        /* stages are those of plan_partition_balanced(), not even */
    PlanRecompute recompute; /* of all stages of a plan that is cut into slices */

    /* Lower bounds (bounds/point_bound.h). */
    int64_t bound_ns, bound_bytes;
    int64_t sliced_bound_ns;   /* with any slices; INT64_MAX: no family here slices */
    int64_t sliced_bytes;      /* with any slices */
    double recompute_s;        /* of one micro-batch, over all layers */
    double sliced_recompute_s; /* the same with any slices */
    /* With ZeRO 3, [0] of a dense layer and [1] of a layer with experts: what gathering its
     * parameters and scattering their gradients takes, in all slices of a micro-batch; else 0. */
    double gather_s[MODEL_MAX_KINDS], scatter_s[MODEL_MAX_KINDS];
    double end_s; /* reduction of an average rank after its last op */
    /* So many ranks on the fastest devices would do as much as all ranks do where they lie, at the most;
     * 0: all. */
    double n_fast_ranks;

    int64_t n_candidates; /* here: families, each with its recompute kinds */
    int64_t cost;         /* index into PlanSpace.costs */
    int64_t index;        /* in the order of enumeration, for ties */
} PlanPoint;

/* The total order by memory, then by time: of const PlanPoint *; less is better. */
static inline int
plan_point_compare_bytes(const PlanPoint *a, const PlanPoint *b)
{
    ORDER_BY(a->bound_bytes, b->bound_bytes);
    ORDER_BY(a->bound_ns, b->bound_ns);
    return ORDER(a->index, b->index);
}

/* Returns: the rank orders to try at @point, as bits. */
static inline uint32_t
plan_point_orders(const PlanPoint *point)
{
    return point->orders != 0 ? point->orders : UINT32_C(1) << point->degrees.rank_order;
}

/* Returns: how many ranks on the fastest devices do as much as all ranks, at the most. */
static inline double
plan_point_fast_ranks(const PlanPoint *point)
{
    return point->n_fast_ranks > 0.0 ? point->n_fast_ranks : (double)point->degrees.pp;
}

/* Returns: the layers of @point. */
static inline PlanLayerShape
plan_point_layer_shape(const PlanPoint *point)
{
    return (PlanLayerShape){.degrees = point->degrees,
                            .micro_batch = point->micro_batch,
                            .sequence_parallel = point->sequence_parallel};
}

/* Returns: how many stages one chain of @family has at @degrees. */
static inline int64_t
plan_point_chain_length(const PlanDegrees *degrees, const ScheduleFamily *family)
{
    return schedule_placement_n_stages(family->placement, degrees->pp, degrees->vpp);
}

/* Returns: the micro-batches per interleaved group of @family at @point; 0: the default or none. */
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
                           .group = plan_point_group(request, point, family),
                           .merges = plan_merges_pairs(&request->conventions, &point->degrees)};
}

/* The most sequences of a replica that are regrouped: of more, the gain does not show. */
#define PLAN_POINT_MAX_REGROUPED 16

/* Whether the micro-batches of sliced plans of @point may differ in size: there are few sequences,
 * and the request leaves the size open. */
static inline bool
plan_point_regroups(const PlanRequest *request, const PlanPoint *point)
{
    return request->micro_batch == 0 && point->micro_batch > 1 &&
           point->n_micro_batches * point->micro_batch <= PLAN_POINT_MAX_REGROUPED;
}
