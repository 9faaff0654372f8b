/*
 * planner/space/space.h - the space: all combinations of degrees, micro-batch, ZeRO stage, offload
 * and sequence parallelism that a request leaves open and that exist, each with lower bounds on its
 * time and memory.
 *
 * A point of the space (cost/point.h) is everything of a plan but its schedule family, its slices
 * and the recompute kinds of its stages, which trial/ chooses at the point.  The room space/ knows
 * costs of single layers only; the bounds are those of bounds/point_bound.h.
 *
 * Thread-safety: a space is made by one thread, which starts the others that the request has, and then may be
 * read by several.
 */
#pragma once

#include "planner/cost/point.h"

/* Which points need not be kept, since they cannot be the answer. */
typedef struct {
    int64_t memory_bytes; /* that a plan may use: of the largest device, or the user's limit */
    int64_t time_ns;      /* a plan of this time is known; INT64_MAX: none */
    /* Points that may be sliced are kept if their bound of any slicing is at most this, and they
     * have at most so many chunks; -1: none is kept for slices. */
    int64_t sliced_ns;
    int64_t sliced_vpp;
    /* (borrowed, nullable) Read atomically: once it is not 0 the enumeration ends, and the space is
     * a part of itself. */
    const int *stop;
    /* > 0: of the points of each tp and cp no more need be kept than so many, those of the least memory
     * (plan_point_compare_bytes()), and none of more than leanest_bytes; the rest is not counted. */
    int64_t n_leanest, leanest_bytes;
} PlanSpaceLimits;

typedef struct {
    const PlanRequest *request; /* (borrowed) */
    int64_t n_devices;
    GPtrArray *families; /* (owned) of (borrowed) const ScheduleFamily *, in the order asked for */
    bool is_automatic;   /* the request leaves the family open */
    GArray *points;      /* (owned) of PlanPoint */
    /* (owned) of PlanPoint: those that have more chunks than are sliced, but bounds of slices that
     * are not above the limit; of all numbers of chunks one, with the most chunks. */
    GArray *chunked;
    /* (owned) of PlanLayerCost, for all points of equal layers together: of a micro-batch, and, where
     * sequences are sliced, of a slice of it behind that */
    GArray *costs;
    int64_t n_slices; /* that the request fixes; 1: whole sequences */
    /* What was left out for the limits: candidates that are too slow or too large, and the least
     * bounds of the slow ones and of slicing. */
    int64_t n_slow, n_large;
    int64_t least_slow_ns, least_sliced_ns;
    PlanPoint least_large; /* the one of the least bound_bytes, if n_large > 0 */
    int64_t n_points;      /* kept and left out */
} PlanSpace;

/* Returns: (owned) NULL on PLAN_ERROR_INVALID (what is fixed contradicts itself, the model or the
 * cluster: names the flags) or PLAN_ERROR_INFEASIBLE (nothing divides: names the numbers and the
 * nearest number of devices or batch that would). */
PlanSpace *plan_space_new(const PlanRequest *request, const PlanSpaceLimits *limits,
                          GError **error);
void plan_space_free(PlanSpace *space);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(PlanSpace, plan_space_free)

/* Whether @family is worth a look at @point with @n_slices: it exists at that shape, and no other
 * family of the space gives the same order of ops there. */
bool plan_space_has_family(const PlanSpace *space, const PlanPoint *point,
                           const ScheduleFamily *family, int64_t n_slices);

/* (borrowed) What layers cost at @point on a micro-batch. */
static inline const PlanLayerCost *
plan_space_cost(const PlanSpace *space, const PlanPoint *point)
{
    return &g_array_index(space->costs, PlanLayerCost, point->cost);
}

/* (borrowed) What they cost on one slice of it; the same pointer where sequences are whole. */
static inline const PlanLayerCost *
plan_space_slice_cost(const PlanSpace *space, const PlanPoint *point)
{
    return plan_space_cost(space, point) + (space->n_slices > 1 ? 1 : 0);
}

/* Returns: how many candidates a family is at @point: each recompute kind that is allowed for all
 * stages, and, in a pipeline, each stage with its own. */
int64_t plan_space_n_recomputes(const PlanRequest *request, const PlanPoint *point);

/* Returns: (owned) the plan at @point with even stages that all have the recompute kind of the
 * point, one slice, and nothing predicted. */
Plan *plan_space_plan(const PlanRequest *request, const PlanPoint *point,
                      const ScheduleFamily *family);
