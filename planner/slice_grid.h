/*
 * planner/slice_grid.h - the dynamic programs of slice.c over the cells that a cap on the longest
 * slice leaves.
 *
 * Internal to planner/.  A cell (b, c, s) is the slice of s cells after c cells of context for a
 * group of b sequences.  With cells above the cap left out,
 *
 *   rest_b(c)   = min over s of cost(b, c, s) + rest_b(c + s)       rest_b(n) = 0
 *   before_b(c) = min over s of before_b(c - s) + cost(b, c - s, s) before_b(0) = 0
 *   cover(x)    = min over b of rest_b(0) + cover(x - b)            cover(0) = 0
 *
 * so cover(batch) is the least sum at that cap, and before_b(c) + cost + rest_b(c + s) +
 * cover(batch - b) the least sum of all answers that use the cell.
 *
 * Layout: the caller's grid has contexts side by side, the programs need lengths side by side, so
 * the cells at or below the largest cap of interest are copied once, transposed, rows padded to
 * whole vectors.  What lies above is PLAN_SLICE_NEVER, large enough to lose and small enough to add
 * four times.
 */
#ifndef PLANNER_SLICE_GRID_H
#define PLANNER_SLICE_GRID_H

#include "planner/slice.h"

G_BEGIN_DECLS

/* Latencies beyond this are refused: 13 days in picoseconds. */
#define PLAN_SLICE_MAX_SUM (INT64_C(1) << 60)
/* An impossible sum. */
#define PLAN_SLICE_NEVER (INT64_C(1) << 61)

/* The lengths of a row that are looked at: first < s <= end; whole vectors. */
typedef struct {
    int32_t first, end;
} PlanSliceWindow;

typedef struct {
    int64_t batch, n_groups, n_cells; /* n_groups: the largest b */
    int64_t stride;                   /* between groups in rest, before and count */
    int64_t *cells;                   /* (owned) rows, each padded to whole vectors */
    size_t *row;                      /* (owned) [(b - 1) * n_cells + c]: where s = 1 is in cells */
    PlanSliceWindow *windows;         /* (owned) likewise */
    int64_t *rest, *before;           /* (owned) [(b - 1) * stride + c] */
    int64_t *cover;                   /* (owned) [x] */
    int32_t *count;                   /* (owned) slices of rest_b(c), see _answer */
} PlanSliceGrid;

/*
 * Copies the cells of at most @cap <= PLAN_SLICE_MAX_SUM.  Costs of at least 0 are the caller's
 * duty.  NULL with PLAN_SLICE_ERROR_LIMIT.  Cost: one pass over the caller's grid.
 */
PlanSliceGrid *plan_slice_grid_new(const PlanSliceCosts *costs, int64_t n_groups, int64_t cap,
                                   GError **error);
void plan_slice_grid_free(PlanSliceGrid *grid);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(PlanSliceGrid, plan_slice_grid_free)

/* Which answers are still of interest. */
typedef struct {
    int64_t low, high; /* their longest slice */
    int64_t others;    /* n_stages - 1 */
    int64_t best;      /* at most this latency */
} PlanSliceInterest;

/* Whether the windows leave group @b a way to begin; else its sums mean nothing. */
static inline bool
plan_slice_grid_has_group(const PlanSliceGrid *grid, int64_t b)
{
    const PlanSliceWindow *window = &grid->windows[(b - 1) * grid->n_cells];

    return window->first < window->end;
}

/*
 * Narrows the windows to cells of such answers, after both solves at a cap of at least high; a cell
 * in the middle of a row may stay without need.  Later caps must not exceed high.  Cost: O(rows +
 * cells left out).
 */
void plan_slice_grid_narrow(PlanSliceGrid *grid, const PlanSliceInterest *interest);

/* (owned) a copy of the windows; and back. */
PlanSliceWindow *plan_slice_grid_save(const PlanSliceGrid *grid);
void plan_slice_grid_restore(PlanSliceGrid *grid, const PlanSliceWindow *windows);

/* (owned) a copy of rest, before and cover, in this order; and back. */
int64_t *plan_slice_grid_save_sums(const PlanSliceGrid *grid);
void plan_slice_grid_restore_sums(PlanSliceGrid *grid, const int64_t *sums);

/* rest and cover at @cap.  Returns: cover(batch), PLAN_SLICE_NEVER if there is no answer. */
int64_t plan_slice_grid_solve(PlanSliceGrid *grid, int64_t cap);

/* before, too; after plan_slice_grid_solve() at the same cap. */
void plan_slice_grid_solve_before(PlanSliceGrid *grid, int64_t cap);

/* The longest slice of one answer of the last solve, which was at @cap and has an answer. */
int64_t plan_slice_grid_longest(const PlanSliceGrid *grid, int64_t cap);

/*
 * Of all answers of the last solve, which was at @cap, the one of fewest slices, then of the
 * largest groups, then of the longest first slices.  Returns: (owned) with latency 0.
 */
PlanSliceResult *plan_slice_grid_answer(PlanSliceGrid *grid, int64_t cap, int64_t granularity);

/* The first of @n values that is in (low, high], from @from on; @n if none. */
int64_t plan_slice_grid_find(const int64_t *cells, int64_t from, int64_t n, int64_t low,
                             int64_t high);

G_END_DECLS

#endif /* PLANNER_SLICE_GRID_H */
