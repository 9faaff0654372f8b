/*
 * planner/slices/grid.h - the dynamic programs of slice.c over the cells that a cap on the longest
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
 * What is capped is the key of a cell.  Plainly that is its cost; else PlanSliceMetric says.
 *
 * Layout: the caller's grid has contexts side by side, the programs need lengths side by side, so
 * the cells at or below the largest cap of interest are copied once, transposed, rows padded to
 * whole vectors.  What lies above is PLAN_SLICE_NEVER, large enough to lose and small enough to add
 * four times.
 */
#ifndef PLANNER_SLICES_GRID_H
#define PLANNER_SLICES_GRID_H

#include "planner/slices/slice.h"

G_BEGIN_DECLS

/* Latencies beyond this are refused: 13 days in picoseconds. */
#define PLAN_SLICE_MAX_SUM (INT64_C(1) << 60)
/* An impossible sum. */
#define PLAN_SLICE_NEVER (INT64_C(1) << 61)

/*
 * What a cell adds to the sum, and its key: sum over r of weight[r] max(low[r], key[r][cell] +
 * delay); without cells of a key[r] + delay above high[r].
 */
typedef struct {
    const int64_t *cost[2]; /* (borrowed) added up; the second is nullable */
    const int64_t *key[2];  /* (borrowed) the second is nullable */
    const int64_t *delay;   /* (borrowed, nullable) [b * (n_cells + 1) + s] */
    int64_t weight[2], low[2], high[2];
} PlanSliceMetric;

/* The lengths of a row that are looked at: first < s <= end; whole vectors. */
typedef struct {
    int32_t first, end;
} PlanSliceWindow;

typedef struct {
    int64_t batch, n_groups, n_cells; /* n_groups: the largest b */
    int64_t stride;                   /* between groups in rest, before and count */
    int64_t *cells;                   /* (owned) costs in rows, each padded to whole vectors */
    int64_t *keys;                    /* (owned; or cells, where the cost is the key) likewise */
    size_t *row;                      /* (owned) [(b - 1) * n_cells + c]: where s = 1 is in cells */
    PlanSliceWindow *windows;         /* (owned) likewise */
    int64_t *rest, *before;           /* (owned) [(b - 1) * stride + c] */
    int64_t *cover;                   /* (owned) [x] */
    int32_t *count;                   /* (owned) slices of rest_b(c), see _answer */
} PlanSliceGrid;

/* The cost and key of cell @at of group size @b and length @s; false: no answer has it. */
bool plan_slice_metric_cell(const PlanSliceMetric *metric, int64_t at, int64_t side, int64_t b,
                            int64_t s, int64_t *cost, int64_t *key);

/*
 * Copies the cells of a key of at most @cap <= PLAN_SLICE_MAX_SUM.  Costs of at least 0 are the
 * caller's duty.  NULL with PLAN_SLICE_ERROR_LIMIT.  Cost: one pass over the caller's grid.
 * @metric  (borrowed, nullable) NULL: costs->cost, which is the key too.
 */
PlanSliceGrid *plan_slice_grid_new(const PlanSliceCosts *costs, const PlanSliceMetric *metric,
                                   int64_t n_groups, int64_t cap, GError **error);
void plan_slice_grid_free(PlanSliceGrid *grid);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(PlanSliceGrid, plan_slice_grid_free)

/* Which answers are still of interest. */
typedef struct {
    int64_t low, high; /* their largest key */
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

/* The largest key of one answer of the last solve, which was at @cap and has an answer. */
int64_t plan_slice_grid_longest(const PlanSliceGrid *grid, int64_t cap);

/*
 * Of all answers of the last solve, which was at @cap, the one of fewest slices, then of the
 * largest groups, then of the longest first slices.  Returns: (owned) with latency 0.
 */
PlanSliceResult *plan_slice_grid_answer(PlanSliceGrid *grid, int64_t cap, int64_t granularity);

/* (owned) a group without slices; and its end, for GPtrArrays. */
PlanSliceGroup *plan_slice_group_new(int64_t batch);
void plan_slice_group_free(void *group);

/* Slices of all groups. */
int64_t plan_slice_count(const PlanSliceResult *result);

/* The order of ties.  < 0: @a is better; both have the same latency. */
int plan_slice_result_compare(const PlanSliceResult *a, const PlanSliceResult *b);

/*
 * As plan_slice_solve() with the costs and keys of @metric (weights included: the latency is the
 * sum + the largest key), answers of at most @most <= PLAN_SLICE_MAX_SUM only.
 * Returns: (owned) NULL without an error where there is none; NULL with PLAN_SLICE_ERROR_LIMIT.
 */
PlanSliceResult *plan_slice_solve_metric(const PlanSliceCosts *costs, const PlanSliceMetric *metric,
                                         int64_t max_group, int64_t most, GError **error);

/* PLAN_SLICE_ERROR_LIMIT where the sizes cannot be held. */
bool plan_slice_check_sizes(const PlanSliceCosts *costs, GError **error);

/* The first of @n values that is in (low, high], from @from on; @n if none. */
int64_t plan_slice_grid_find(const int64_t *cells, int64_t from, int64_t n, int64_t low,
                             int64_t high);

G_END_DECLS

#endif /* PLANNER_SLICES_GRID_H */
