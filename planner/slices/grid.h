/*
 * planner/slices/grid.h - the dynamic programs of slice.c, over the slices that a cap on the
 * longest one leaves.
 *
 * A cell (b, c, s) is the slice of s cells of tokens after c cells of context, for a group of b
 * sequences.  With the cells above the cap left out,
 *
 *   rest_b(c)   = min over s of cost(b, c, s) + rest_b(c + s)       rest_b(n) = 0
 *   before_b(c) = min over s of before_b(c - s) + cost(b, c - s, s) before_b(0) = 0
 *   cover(x)    = min over b of rest_b(0) + cover(x - b)            cover(0) = 0
 *
 * so cover(batch) is the least sum at that cap, and before_b(c) + cost + rest_b(c + s) +
 * cover(batch - b) is the least sum of all answers that use the cell.
 *
 * What is capped is the key of a cell.  Without a metric that is its cost.
 *
 * Layout: the caller's grid has contexts side by side, and the programs need lengths side by side.
 * So the cells at or below the largest cap of interest are copied once, transposed, and rows are
 * padded to whole vectors.  What lies above the cap is PLAN_SLICE_NEVER.
 *
 * Thread-safety: a grid belongs to one thread.
 */
#pragma once

#include "planner/slices/slice.h"

/* The lengths s of a row that are looked at: first < s <= end; whole vectors. */
typedef struct {
    int32_t first, end;
} PlanSliceWindow;

typedef struct {
    int64_t batch, n_groups, n_cells; /* n_groups: the largest b */
    int64_t stride;                   /* between groups in rest, before and count */
    int64_t *cells;                   /* (owned) costs in rows, each padded to whole vectors */
    int64_t *keys;                    /* (owned; or cells, where the cost is the key) as cells */
    size_t *row;                      /* (owned) [(b - 1) * n_cells + c]: where s = 1 is in cells */
    int64_t *state;                   /* (owned) what follows, in one block of n_state words */
    size_t n_state;
    PlanSliceWindow *windows; /* [(b - 1) * n_cells + c] */
    int64_t *rest, *before;   /* [(b - 1) * stride + c] */
    int64_t *cover;           /* [x] */
    int32_t *count;           /* (owned) as rest: slices, for plan_slice_grid_answer() */
} PlanSliceGrid;

/* Sets the cost and key that @metric gives the cell of index @at, group size @b and length @s of a
 * grid of @side = n_cells + 1.  Returns false if no answer has the cell. */
bool plan_slice_metric_cell(const PlanSliceMetric *metric, int64_t at, int64_t side, int64_t b,
                            int64_t s, int64_t *cost, int64_t *key);

/*
 * Copies the cells of a key of at most @cap <= PLAN_SLICE_MAX_SUM; no cost may be negative.
 * @metric  (borrowed, nullable) NULL: costs->cost is cost and key
 * Returns: (owned) NULL with PLAN_SLICE_ERROR_LIMIT.  Cost: one pass over the caller's grid.
 */
PlanSliceGrid *plan_slice_grid_new(const PlanSliceCosts *costs, const PlanSliceMetric *metric,
                                   int64_t n_groups, int64_t cap, GError **error);
void plan_slice_grid_free(PlanSliceGrid *grid);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(PlanSliceGrid, plan_slice_grid_free)

/* Which answers are still of interest. */
typedef struct {
    int64_t low, high; /* those whose largest key is from low to high */
    int64_t others;    /* n_stages - 1 */
    int64_t best;      /* those of at most this latency */
} PlanSliceInterest;

/* Whether the windows leave group @b a first slice; else its sums mean nothing. */
static inline bool
plan_slice_grid_has_group(const PlanSliceGrid *grid, int64_t b)
{
    const PlanSliceWindow *window = &grid->windows[(b - 1) * grid->n_cells];

    return window->first < window->end;
}

/* Narrows the windows to cells of answers of @interest, after both solves at a cap of at least
 * high; a cell in the middle of a row may stay without need.  Later caps must not exceed high.
 * Cost: O(rows + cells left out). */
void plan_slice_grid_narrow(PlanSliceGrid *grid, const PlanSliceInterest *interest);

/* Returns: (owned, g_free) a copy of windows, rest, before and cover, for _restore(). */
int64_t *plan_slice_grid_save(const PlanSliceGrid *grid);
void plan_slice_grid_restore(PlanSliceGrid *grid, const int64_t *saved);

/* Computes rest and cover at @cap.  Returns: cover(batch); PLAN_SLICE_NEVER: there is no answer. */
int64_t plan_slice_grid_solve(PlanSliceGrid *grid, int64_t cap);

/* Computes before, after plan_slice_grid_solve() at the same cap. */
void plan_slice_grid_solve_before(PlanSliceGrid *grid, int64_t cap);

/* Returns: the largest key of one answer of the last solve, which was at @cap and has an answer. */
int64_t plan_slice_grid_longest(const PlanSliceGrid *grid, int64_t cap);

/* Returns: (owned) of all answers of the last solve, which was at @cap, the one of the fewest
 * slices, then of the largest groups, then of the longest first slices; its latency is not set. */
PlanSliceResult *plan_slice_grid_answer(PlanSliceGrid *grid, int64_t cap, int64_t granularity);

/* Returns: the index, from @from on, of the first of the @n values @cells that is in (low, high];
 * @n if there is none. */
int64_t plan_slice_grid_find(const int64_t *cells, int64_t from, int64_t n, int64_t low,
                             int64_t high);
