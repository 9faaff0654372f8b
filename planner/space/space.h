/*
 * planner/space/space.h - what a request leaves open: all combinations of degrees, micro-batch and
 * memory savers that exist, each with a lower bound on its time and memory.
 *
 * Internal to planner/.  A point is everything of a plan but schedule family, slices and what its
 * stages recompute, which are chosen within it (evaluate.h).  Knows costs only of single layers
 * (layer_cost.h); space_bound.h has the bounds.
 */
#ifndef PLANNER_SPACE_SPACE_H
#define PLANNER_SPACE_SPACE_H

#include "planner/cost/point.h"

G_BEGIN_DECLS

/* What need not be enumerated, since it cannot be the answer. */
typedef struct {
    int64_t memory_bytes; /* of the largest device, or the user's limit */
    int64_t time_ns;      /* a plan of this time is known; INT64_MAX: none */
    int64_t sliced_ns;    /* slices are looked for where their bound is at most this; -1: nowhere */
    int64_t sliced_vpp;   /* ... and for at most so many chunks */
} PlanSpaceLimits;

typedef struct {
    const PlanRequest *request; /* (borrowed) */
    int64_t n_devices;
    GPtrArray *families; /* of (borrowed) const ScheduleFamily *, in the order asked for */
    bool is_automatic;   /* the families are */
    GArray *points;      /* of PlanPoint */
    GArray *costs;       /* of PlanSlicedCost: one for all points of equal layers */
    int64_t n_slices;    /* that the request gives; 1: whole sequences */
    /* Points left out for the limits: their candidates, their least bounds. */
    int64_t n_slow, n_large;
    int64_t least_slow_ns, least_sliced_ns;
    PlanPoint least_large; /* of the least bound_bytes, if n_large > 0 */
    int64_t n_points;      /* with those left out */
} PlanSpace;

/*
 * Returns NULL on PLAN_ERROR_INVALID (what is fixed contradicts itself, the model or the cluster:
 * names the flags) or PLAN_ERROR_INFEASIBLE (nothing divides: names the numbers and the nearest
 * number of devices or batch that would).
 */
PlanSpace *plan_space_new(const PlanRequest *request, const PlanSpaceLimits *limits,
                          GError **error);
/* Sets n_devices; false if the fixed degrees do not multiply to a number that there is. */
bool plan_space_find_devices(PlanSpace *space, GError **error);

/* Fills families as the request names them; false if it names one that is not. */
bool plan_space_add_families(PlanSpace *space, GError **error);

/* Stages that the model's layers, and its embedding alone, can fill. */
int64_t plan_space_most_stages(const PlanRequest *request);

/* The part of it that looks at each number alone, and at slices against the sequence. */
bool plan_space_check(const PlanRequest *request, GError **error);
void plan_space_free(PlanSpace *space);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(PlanSpace, plan_space_free)

/*
 * Whether @family is worth a look at @point with @n_slices: it exists at that shape, and no other
 * family of the space gives the same order of ops.
 */
bool plan_space_has_family(const PlanSpace *space, const PlanPoint *point,
                           const ScheduleFamily *family, int64_t n_slices);

static inline const PlanLayerCost *
plan_space_cost(const PlanSpace *space, const PlanPoint *point)
{
    return &g_array_index(space->costs, PlanSlicedCost, point->cost).whole;
}

/* The same pointer where sequences are whole. */
static inline const PlanLayerCost *
plan_space_slice_cost(const PlanSpace *space, const PlanPoint *point)
{
    const PlanSlicedCost *cost = &g_array_index(space->costs, PlanSlicedCost, point->cost);

    return space->n_slices > 1 ? &cost->slice : &cost->whole;
}

/* Ways of recompute that a family is tried with at @point: each of those allowed for all stages,
 * and each stage in its own. */
int64_t plan_space_n_recomputes(const PlanRequest *request, const PlanPoint *point);

/* (owned) the plan at @point with even stages that all recompute point->recompute, one slice,
 * nothing predicted. */
Plan *plan_space_plan(const PlanRequest *request, const PlanPoint *point,
                      const ScheduleFamily *family);

/* Sets the plan's family and what the framework does under it. */
void plan_space_set_family(const PlanRequest *request, Plan *plan, const ScheduleFamily *family);

G_END_DECLS

#endif /* PLANNER_SPACE_SPACE_H */
