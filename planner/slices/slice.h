/*
 * planner/slices/slice.h - cuts a batch of sequences into groups and each group's tokens into
 * slices.
 *
 *   minimise  sum of t(b, s, c) over all slices of all groups  +  (n_stages - 1) * max t
 *   over all ways to write the batch as groups b_1 + b_2 + ... and, for each group, the sequence as
 * slices s_1 + s_2 + ...; c is the sum of the slices before it            [TeraPipe, Li et al.
 * 2102.07988, eq. 5]
 *
 * Proven optimal on every grid, monotone or not: the outer minimum runs over all candidate maxima
 * that can matter; each solve's own maximum bounds the next, and the best so far prunes.  Knows
 * neither models nor devices: costs are integers of the caller's unit (picoseconds for files,
 * nanoseconds for plans).
 *
 * Thread-safety: pure.
 */
#ifndef PLANNER_SLICES_SLICE_H
#define PLANNER_SLICES_SLICE_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

G_BEGIN_DECLS

#define PLAN_SLICE_ERROR (plan_slice_error_quark())
GQuark plan_slice_error_quark(void);

typedef enum {
    PLAN_SLICE_ERROR_INFEASIBLE, /* no cut has only finite costs (or fits the limit) */
    PLAN_SLICE_ERROR_LIMIT,      /* the grid does not fit in memory or int64 */
} PlanSliceError;

#define PLAN_SLICE_INFINITE INT64_MAX

/* The costs of every slice. */
typedef struct {
    int64_t batch;       /* B sequences */
    int64_t n_cells;     /* L / granularity */
    int64_t granularity; /* tokens per cell */
    /* (borrowed) shape (B + 1, n_cells + 1, n_cells + 1), row-major, index [b][s][c]; >= 0 or
     * INFINITE; only 1 <= b <= max_group, s >= 1, s + c <= n_cells are read */
    const int64_t *cost;
} PlanSliceCosts;

typedef struct {
    int64_t batch;  /* sequences of the group */
    int64_t round;  /* which fill of the pipeline it is in (slice_problem.h); 0 */
    GArray *slices; /* (owned) of int64_t tokens */
} PlanSliceGroup;

typedef struct {
    int64_t latency;      /* the minimum, in the costs' unit */
    int64_t lower_bound;  /* of every answer; the latency where it is proven optimal */
    int64_t max_slice;    /* max t of the answer */
    int64_t max_backward; /* where the directions are apart (slice_problem.h) */
    GPtrArray *groups;    /* (owned) of PlanSliceGroup *, largest batch first */
    int64_t n_rounds;     /* fills of the pipeline (slice_problem.h): 1 */
    int64_t n_solves;     /* dynamic programs run */
} PlanSliceResult;

void plan_slice_result_free(PlanSliceResult *result);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(PlanSliceResult, plan_slice_result_free)

/*
 * @n_stages  K >= 1.
 * @max_group sequences per group at most; 0: no limit.
 * Among equal times the fewest slices win, then the earliest cut is the longest.
 * Returns: (owned) or NULL on a PLAN_SLICE_ERROR.
 */
PlanSliceResult *plan_slice_solve(const PlanSliceCosts *costs, int64_t n_stages, int64_t max_group,
                                  GError **error);

G_END_DECLS

#endif /* PLANNER_SLICES_SLICE_H */
