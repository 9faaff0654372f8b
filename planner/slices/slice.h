/*
 * planner/slices/slice.h - cuts a batch of sequences into groups, and the tokens of each group into
 * slices, so that they pass through a pipeline soonest.
 *
 * The room slices/ has two kinds of solvers.  Exact programs for formulas: this file for one
 * maximum, problem.h for two directions, messages and memory.  And where no formula says how long a
 * pipeline takes (stages that differ: stages.h; 1F1B and interleaved orders: orders.h; plans:
 * trial/slices.h), programs propose answers, a simulation judges them, and judge.h improves the
 * best one.  `degas slices` uses the room alone; for a plan, slicings.h makes the costs and
 * coarse.h tries all answers on a coarse grid.
 *
 * Here:
 *
 *   minimise  sum of t(b, s, c) over all slices of all groups  +  (n_stages - 1) * max t
 *
 * over all ways to write the batch as groups b_1 + b_2 + ... and the sequence of each group as
 * slices s_1 + s_2 + ...; c is the sum of the slices before the slice s  [TeraPipe, Li et al.
 * 2102.07988, eq. 5].  The answer is proven optimal on every grid, whether times grow with s or
 * not.  How: see slice.c.  The module knows neither models nor devices: costs are integers in a
 * unit that the caller chooses (picoseconds for files, nanoseconds for plans).
 *
 * Thread-safety: pure.
 */
#pragma once

#include "planner/slices/answer.h"

#define PLAN_SLICE_ERROR (plan_slice_error_quark())
GQuark plan_slice_error_quark(void);

typedef enum {
    PLAN_SLICE_ERROR_INFEASIBLE, /* no cut has only finite costs, or none fits the limit */
    PLAN_SLICE_ERROR_LIMIT,      /* the grid does not fit in memory, or sums do not in int64_t */
} PlanSliceError;

/* Sets @error to PLAN_SLICE_ERROR_@code with a message as of printf(); the value is false or NULL. */
#define plan_slice_refuse(error, code, ...)                                                        \
    (g_set_error(error, PLAN_SLICE_ERROR, PLAN_SLICE_ERROR_##code, __VA_ARGS__), false)
#define plan_slice_refuse_null(error, code, ...)                                                   \
    (g_set_error(error, PLAN_SLICE_ERROR, PLAN_SLICE_ERROR_##code, __VA_ARGS__), NULL)

/* The cost of a slice that cannot be. */
#define PLAN_SLICE_INFINITE INT64_MAX

/* Latencies beyond this are refused: 13 days in picoseconds. */
#define PLAN_SLICE_MAX_SUM (INT64_C(1) << 60)
/* A sum that cannot be: larger than every latency, and four of them still add. */
#define PLAN_SLICE_NEVER (INT64_C(1) << 61)

/* What each slice costs. */
typedef struct {
    int64_t batch;       /* sequences */
    int64_t n_cells;     /* tokens of a sequence / granularity */
    int64_t granularity; /* tokens of a cell: every slice is a whole number of cells */
    /* (borrowed) shape (batch + 1, n_cells + 1, n_cells + 1), row-major, index [b][s][c]: the slice
     * of s cells after c cells of context, of b sequences.  >= 0 or INFINITE.  Only b from 1 to
     * max_group, s >= 1 and s + c <= n_cells are read. */
    const int64_t *cost;
} PlanSliceCosts;

/* The index in PlanSliceCosts.cost of the slice of @s cells after @c cells, of @b sequences. */
static inline int64_t
plan_slice_at(const PlanSliceCosts *costs, int64_t b, int64_t s, int64_t c)
{
    return (b * (costs->n_cells + 1) + s) * (costs->n_cells + 1) + c;
}

/* The largest group that @max_group (0: no limit) allows. */
static inline int64_t
plan_slice_largest_group(const PlanSliceCosts *costs, int64_t max_group)
{
    return max_group == 0 ? costs->batch : MIN(max_group, costs->batch);
}

/* A slice of a group, for walking over all of them from the first on; begins as {0}. */
typedef struct {
    guint n;         /* slices up to this one */
    int64_t s, c;    /* its cells, and those of context before it */
    int64_t row, at; /* its index in a table [b][s], and in PlanSliceCosts.cost */
} PlanSliceStep;

/* Goes on to the next slice of @group; false after the last one. */
static inline bool
plan_slice_next(const PlanSliceCosts *costs, const PlanSliceGroup *group, PlanSliceStep *step)
{
    if (step->n == group->slices->len)
        return false;
    step->c += step->s;
    step->s = g_array_index(group->slices, int64_t, step->n++) / costs->granularity;
    step->row = group->batch * (costs->n_cells + 1) + step->s;
    step->at = plan_slice_at(costs, group->batch, step->s, step->c);
    return true;
}

/* Returns: (owned) [b * (n_cells + 1) + c] the least sum of the slices of a group of b sequences
 * from context c on; PLAN_SLICE_NEVER: there is none, as of groups above @max_group. */
int64_t *plan_slice_rests(const PlanSliceCosts *costs, int64_t max_group);

/* Returns false with PLAN_SLICE_ERROR_LIMIT where so many costs cannot be held. */
bool plan_slice_check_sizes(const PlanSliceCosts *costs, GError **error);

/*
 * Solves the program above.  Among equal latencies the order of plan_slice_result_compare()
 * decides.
 *
 * @n_stages   >= 1
 * @max_group  sequences per group at most; 0: no limit
 * Returns: (owned) NULL on a PLAN_SLICE_ERROR.
 */
PlanSliceResult *plan_slice_solve(const PlanSliceCosts *costs, int64_t n_stages, int64_t max_group,
                                  GError **error);

/*
 * What a slice adds to a sum of two costs, and to two maxima of keys:
 *
 *   sum (cost[0] + cost[1]) + weight[0] max (key[0] + delay) + weight[1] max (key[1] + delay)
 *
 * Arrays are indexed as PlanSliceCosts.cost, delay as [b][s].
 */
typedef struct {
    const int64_t *cost[2]; /* (borrowed) the second is nullable */
    const int64_t *key[2];  /* (borrowed) the second is nullable */
    const int64_t *delay;   /* (borrowed, nullable) */
    int64_t weight[2];
    /* A key[r] + delay below low[r] counts as low[r]; slices of one above high[r] are left out. */
    int64_t low[2], high[2];
} PlanSliceMetric;

/*
 * Minimises the sum of @metric, whose low and high are 0 and PLAN_SLICE_MAX_SUM, over all groupings
 * and slicings, by branch and bound on the two maxima.
 * @result  (out, owned) latency, lower_bound, and the two maxima with their delays in max_slice and
 *          max_backward; NULL: there is no answer of at most PLAN_SLICE_MAX_SUM.
 * Returns false with PLAN_SLICE_ERROR_LIMIT.
 */
bool plan_slice_solve_apart(const PlanSliceCosts *costs, const PlanSliceMetric *metric,
                            int64_t max_group, PlanSliceResult **result, GError **error);
