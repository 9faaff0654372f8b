/*
 * planner/slices/coarse.h - all groupings of a replica's sequences, and all slicings on a coarse
 * grid, that may be fast enough.
 *
 * Slices end on eighths of the sequence, or on the largest number of equal parts below eight that
 * the degrees allow.  The bound of bounds/flow.h is a sum over micro-batches, except for the first
 * and the last one.  So once every (sequences, length, context) is priced, bounding a grouping
 * takes some additions for each micro-batch.  Prices come from Workloads of two and three slices
 * and one micro-batch, which say no more than that of a plan with the same slice: what adding up
 * gradients takes grows with the number of slices.
 *
 * Thread-safety: a grid belongs to one thread.
 */
#pragma once

#include "planner/cost/point.h"

typedef struct {
    const PlanRequest *request; /* (borrowed) */
    const Plan *plan; /* (borrowed) everything but slices and micro-batches; several ranks */
    /* Whether all orders of micro-batches of 1 to plan->micro_batch sequences are looked at, or
     * only plan->n_micro_batches of plan->micro_batch sequences. */
    bool regroups;
    int64_t limit_ns; /* what cannot be faster is left out */
} PlanCoarseAsked;

/* One grouping with one slicing. */
typedef struct {
    int64_t bound_ns; /* no plan with it takes less */
    uint32_t cuts;    /* bit i: a slice ends after part i; the end of the last part has no bit */
    /* Bit i: a micro-batch ends after sequence i; the last sequence has no bit.  If regroups. */
    uint32_t breaks;
} PlanCoarse;

/* Opaque; see coarse.c. */
typedef struct PlanCoarseGrid PlanCoarseGrid;

/* Returns: (owned) the grid, priced and walked.  Cost: 28 Workloads for each size of a micro-batch,
 * and at most 127 * 2^(sequences - 1) additions. */
PlanCoarseGrid *plan_coarse_grid_new(const PlanCoarseAsked *asked);
void plan_coarse_grid_free(PlanCoarseGrid *grid);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(PlanCoarseGrid, plan_coarse_grid_free)

/* Whether the ops of @plan cost what those of the grid do: the plans differ in their family only.
 * Both families slice, so both place stages in a loop. */
bool plan_coarse_grid_is_of(const PlanCoarseGrid *grid, const Plan *plan);

/*
 * Returns: (owned) GArray of PlanCoarse whose bound is below @limit_ns, the least bound first, then
 * the fewest slices; where there are very many, only the first ones.  Empty where the sequence
 * cannot be cut or a part cannot be priced.
 * @forwards_first  of the family (ScheduleFamily)
 */
GArray *plan_coarse_grid_all(PlanCoarseGrid *grid, bool forwards_first, int64_t limit_ns);

/* Returns: a sharper bound of @one, at the prices of exactly its slices and micro-batches, which
 * are remembered.  With @forwards_first it is the time itself, unless messages meet on a link. */
int64_t plan_coarse_grid_bound_ns(PlanCoarseGrid *grid, const PlanCoarse *one, bool forwards_first);

/* Returns: (owned) GPtrArray of PlanSliceGroup *, the micro-batches of @one. */
GPtrArray *plan_coarse_grid_groups(const PlanCoarseGrid *grid, const PlanCoarse *one);
