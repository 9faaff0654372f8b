/*
 * planner/slices/coarse.h - all groupings of a replica's sequences and all slicings on a coarse
 * grid that may be fast enough.
 *
 * Internal to planner/.  The grid is that of eighths of the sequence (or the most equal parts below
 * that the degrees allow).  The bound of bound_flow.h is a sum over micro-batches but for the first
 * and the last one, so it takes some additions for each of them once every (sequences, length,
 * context) is priced: by Workloads of two and three slices and one micro-batch, of which none says
 * more than that of a plan with the same slice (adding up gradients grows with their number).
 *
 * Thread-safety: pure.
 */
#ifndef PLANNER_SLICES_COARSE_H
#define PLANNER_SLICES_COARSE_H

#include "planner/cost/point.h"

G_BEGIN_DECLS

typedef struct {
    const PlanRequest *request; /* (borrowed) */
    const Plan *plan; /* (borrowed) all but slices and micro-batches; more than one rank */
    /* Whether all orders of micro-batches of 1 to plan->micro_batch sequences are looked at, or
     * only plan->n_micro_batches of so many. */
    bool regroups;
    int64_t limit_ns; /* what cannot be faster is left out */
} PlanCoarseAsked;

/* One of them. */
typedef struct {
    int64_t bound_ns;
    uint32_t cuts;   /* bit c: a slice ends after the c-th part, but for the last */
    uint32_t breaks; /* bit x: a micro-batch ends after sequence x, but for the last; regroups */
} PlanCoarse;

/* Opaque; see slice_coarse.c. */
typedef struct PlanCoarseGrid PlanCoarseGrid;

/*
 * Prices and walks the grid.  Returns: (owned)
 * Cost: 28 Workloads for each size of a micro-batch, and 127 * 2^(sequences - 1) additions at the
 * most.
 */
PlanCoarseGrid *plan_coarse_grid_new(const PlanCoarseAsked *asked);
void plan_coarse_grid_free(PlanCoarseGrid *grid);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(PlanCoarseGrid, plan_coarse_grid_free)

/* Whether ops of @plan cost what those of the grid do: families that slice lie in a loop. */
bool plan_coarse_grid_is_of(const PlanCoarseGrid *grid, const Plan *plan);

/*
 * (owned) GArray of PlanCoarse of a bound below @limit_ns, least first, then the fewest slices; of
 * very many only the first.  Empty where the sequence cannot be cut, or a part cannot be priced.
 * @forwards_first  the family's
 */
GArray *plan_coarse_grid_all(PlanCoarseGrid *grid, bool forwards_first, int64_t limit_ns);

/* A sharper bound of @one, at the prices of its own slices and micro-batches, which are remembered:
 * with @forwards_first the time, unless messages meet. */
int64_t plan_coarse_grid_bound_ns(PlanCoarseGrid *grid, const PlanCoarse *one, bool forwards_first);

/* (owned) GPtrArray of PlanSliceGroup *: the micro-batches of @one. */
GPtrArray *plan_coarse_grid_groups(const PlanCoarseGrid *grid, const PlanCoarse *one);

G_END_DECLS

#endif /* PLANNER_SLICES_COARSE_H */
