#include "planner/slice_orders.h"

#include "planner/slice_grid.h"
#include "planner/slice_judge.h"

/* Slices that are simulated while improving, and the least and most answers. */
#define MOST_UNITS (INT64_C(1) << 19)
#define LEAST_JUDGED 200
#define MOST_JUDGED 8192

static int64_t
both(const PlanSliceStage *stage, int64_t at)
{
    const int64_t f = plan_slice_stage_time(stage, 0, at), g = plan_slice_stage_time(stage, 1, at);

    return f > PLAN_SLICE_MAX_SUM || g > PLAN_SLICE_MAX_SUM ? PLAN_SLICE_INFINITE : f + g;
}

/* Both directions of cell @at on all chunks of @rank; INFINITE where one is, on any rank. */
static int64_t
rank_time(const PlanSliceOrder *order, int64_t rank, int64_t at)
{
    const PlanSliceStage *stages = order->stages;
    int64_t sum = 0, t = 0;

    for (int64_t k = 0; k < order->problem->n_stages; k++) {
        if (k == 0 || !plan_slice_stage_is_same(&stages[k], &stages[k - 1]))
            t = both(&stages[k], at);
        if (t > PLAN_SLICE_MAX_SUM)
            return PLAN_SLICE_INFINITE;
        if (k % order->n_ranks == rank && (sum += t) > PLAN_SLICE_MAX_SUM)
            return PLAN_SLICE_INFINITE;
    }
    return sum;
}

/* (owned) rank_time() of all cells; NULL: no memory. */
static int64_t *
rank_grid(const PlanSliceOrder *order, int64_t rank)
{
    const PlanSliceCosts *costs = &order->problem->costs;
    const int64_t n = costs->n_cells, side = n + 1;
    int64_t *grid = g_try_malloc_n((size_t)((costs->batch + 1) * side * side), sizeof *grid);

    for (int64_t b = 1; grid != NULL && b <= costs->batch; b++)
        for (int64_t s = 1; s <= n; s++)
            for (int64_t c = 0; c <= n - s; c++) {
                const int64_t at = (b * side + s) * side + c;
                grid[at] = rank_time(order, rank, at);
            }
    return grid;
}

/* --- the lower bound --- */

/* What the first slice @s of a group of @b needs on the stages before @rank's, both ways. */
static int64_t
ends_time(const PlanSliceOrder *order, int64_t rank, int64_t b, int64_t s)
{
    const int64_t side = order->problem->costs.n_cells + 1, row = b * side + s;
    const int64_t delay = order->problem->delay == NULL ? 0 : order->problem->delay[row];
    int64_t sum = 0;

    for (int64_t k = 0; k < rank; k++) {
        const int64_t t = both(&order->stages[k], row * side);
        if (t > PLAN_SLICE_MAX_SUM || delay > PLAN_SLICE_MAX_SUM ||
            (sum += t + 2 * delay) > PLAN_SLICE_MAX_SUM)
            return PLAN_SLICE_NEVER;
    }
    return sum;
}

/*
 * The least of a rank's sum and its ends: over every first slice, which all groups have in common.
 * @grid of that rank.  Cost: O(batch * cells (batch + cells)).
 */
static int64_t
rank_bound(const PlanSliceOrder *order, int64_t rank, const int64_t *grid)
{
    const int64_t n = order->problem->costs.n_cells, side = n + 1;
    const int64_t batch = order->problem->costs.batch, most = order->problem->max_group;
    const int64_t n_groups = most == 0 ? batch : MIN(most, batch);
    g_autofree int64_t *rest = g_new(int64_t, (size_t)((n_groups + 1) * side));
    g_autofree int64_t *cover = g_new(int64_t, (size_t)batch + 1);
    int64_t least = PLAN_SLICE_NEVER;

    for (int64_t b = 1; b <= n_groups; b++) {
        rest[b * side + n] = 0;
        for (int64_t c = n - 1; c > 0; c--) {
            int64_t *at = &rest[b * side + c];
            *at = PLAN_SLICE_NEVER;
            for (int64_t s = 1; s <= n - c; s++) {
                const int64_t t = grid[(b * side + s) * side + c];
                if (t <= PLAN_SLICE_MAX_SUM)
                    *at = MIN(*at, t + rest[b * side + c + s]);
            }
        }
    }
    for (int64_t first = 1; first <= n; first++) {
        int64_t ends = PLAN_SLICE_NEVER;
        cover[0] = 0;
        for (int64_t b = 1; b <= n_groups; b++)
            ends = MIN(ends, ends_time(order, rank, b, first));
        for (int64_t x = 1; x <= batch; x++) {
            cover[x] = PLAN_SLICE_NEVER;
            for (int64_t b = 1; b <= MIN(x, n_groups); b++) {
                const int64_t t = grid[(b * side + first) * side];
                if (t <= PLAN_SLICE_MAX_SUM && rest[b * side + first] < PLAN_SLICE_NEVER)
                    cover[x] = MIN(cover[x], t + rest[b * side + first] + cover[x - b]);
            }
        }
        if (ends < PLAN_SLICE_NEVER)
            least = MIN(least, cover[batch] + ends);
    }
    return least;
}

/* --- candidates --- */

/* @n_groups cut as @slices, also small ones first. */
static void
add_groups(const PlanSliceOrder *order, int64_t n_groups, const GArray *slices,
           GPtrArray *candidates)
{
    const int64_t batch = order->problem->costs.batch;
    GPtrArray *groups = plan_slice_groups_even(batch, n_groups, slices);

    g_ptr_array_add(candidates, groups);
    if (batch % n_groups != 0)
        g_ptr_array_add(candidates, plan_slice_groups_reversed(groups));
}

static void
add_equal_slices(const PlanSliceOrder *order, int64_t n_groups, GPtrArray *candidates)
{
    const PlanSliceCosts *costs = &order->problem->costs;
    const int64_t most = MIN(costs->n_cells, 4 * order->problem->n_stages);

    for (int64_t n = 1; n <= most; n += MAX(1, n / 4)) {
        g_autoptr(GArray) slices = g_array_new(FALSE, FALSE, sizeof(int64_t));
        for (int64_t i = 0; i < n; i++) {
            const int64_t tokens =
                (costs->n_cells / n + (i < costs->n_cells % n)) * costs->granularity;
            g_array_append_val(slices, tokens);
        }
        add_groups(order, n_groups, slices, candidates);
    }
}

/* What the formula finds for @n_groups micro-batches at some numbers of stages. */
static bool
add_formula_slices(const PlanSliceOrder *order, int64_t n_groups, const int64_t *grid,
                   GPtrArray *candidates, GError **error)
{
    const int64_t batch = order->problem->costs.batch, side = order->problem->costs.n_cells + 1;
    const int64_t b = (batch + n_groups - 1) / n_groups;
    PlanSliceCosts costs = order->problem->costs;

    /* Groups of one unit, the b sequences: block 1 of the grid is that of b. */
    costs.batch = n_groups;
    costs.cost = grid + (b - 1) * side * side;
    for (int64_t k = 1; k <= 32; k *= 2) {
        const int64_t stages = 1 + order->n_ranks * k / 8;
        GError *failure = NULL;
        g_autoptr(PlanSliceResult) result = plan_slice_solve(&costs, stages, 1, &failure);
        if (g_error_matches(failure, PLAN_SLICE_ERROR, PLAN_SLICE_ERROR_INFEASIBLE)) {
            g_error_free(failure);
            return true; /* such a group cannot be */
        }
        if (failure != NULL) {
            g_propagate_error(error, failure);
            return false;
        }
        const PlanSliceGroup *group = result->groups->pdata[0];
        add_groups(order, n_groups, group->slices, candidates);
    }
    return true;
}

/* (owned, nullable) candidates of every size of the largest micro-batch. */
static GPtrArray *
propose(const PlanSliceOrder *order, const int64_t *grid, GError **error)
{
    const int64_t batch = order->problem->costs.batch, most = order->problem->max_group;
    g_autoptr(GPtrArray) candidates =
        g_ptr_array_new_with_free_func((GDestroyNotify)g_ptr_array_unref);
    int64_t last = 0;

    for (int64_t n = 1; n <= batch; n++) {
        const int64_t b = (batch + n - 1) / n;
        if (b == last || (most > 0 && b > most))
            continue;
        last = b;
        add_equal_slices(order, n, candidates);
        if (!add_formula_slices(order, n, grid, candidates, error))
            return NULL;
    }
    return g_steal_pointer(&candidates);
}

/* --- the public face --- */

/* The bounds of the first, the last and the longest rank; *grid: (owned) of the longest. */
static bool
bound_ranks(const PlanSliceOrder *order, int64_t **grid, int64_t *bound, GError **error)
{
    const int64_t side = order->problem->costs.n_cells + 1;
    const int64_t whole = (side + side - 1) * side; /* one sequence in one slice */
    int64_t longest = -1, which = 0;

    for (int64_t r = 0; r < order->n_ranks; r++) {
        const int64_t t = rank_time(order, r, whole);
        if (t <= PLAN_SLICE_MAX_SUM && t > longest) {
            longest = t;
            which = r;
        }
    }
    *bound = 0;
    for (int64_t i = 0; i < 3; i++) {
        const int64_t rank = (int64_t[]){0, order->n_ranks - 1, which}[i];
        g_autofree int64_t *one = rank_grid(order, rank);
        if (one == NULL) {
            g_set_error(error, PLAN_SLICE_ERROR, PLAN_SLICE_ERROR_LIMIT,
                        "no memory for the times of all stages: use a coarser granularity");
            return false;
        }
        *bound = MAX(*bound, rank_bound(order, rank, one));
        if (i == 2)
            *grid = g_steal_pointer(&one);
    }
    return true;
}

int64_t
plan_slice_order_time(const PlanSliceOrder *order, const GPtrArray *groups)
{
    const PlanSliceGroup *first = groups->pdata[0];
    const int64_t limit = order->problem->limit_bytes;
    const ScheduleShape shape = {
        .n_ranks = order->n_ranks,
        .n_chunks = order->problem->n_stages / order->n_ranks,
        .n_microbatches = groups->len,
        .n_slices = first->slices->len,
    };
    g_autoptr(Schedule) schedule = schedule_new(order->schedule, &shape, NULL);
    g_autoptr(Report) report = NULL;

    if (schedule == NULL)
        return INT64_MAX;
    g_autoptr(Workload) workload = plan_slice_order_workload(order, groups, schedule);
    if (workload == NULL ||
        !order->simulate(schedule, workload, limit > 0, &report, order->user_data))
        return INT64_MAX;
    return limit > 0 && report->peak_memory_bytes > limit ? INT64_MAX : report->iteration_ns;
}

static int64_t
judge(const GPtrArray *groups, void *user_data)
{
    return plan_slice_order_time(user_data, groups);
}

PlanSliceResult *
plan_slice_solve_order(const PlanSliceOrder *order, GError **error)
{
    PlanSliceCosts costs = order->problem->costs;
    g_autofree int64_t *grid = NULL;
    int64_t bound, n_units = 1;

    g_return_val_if_fail(order->simulate != NULL && order->stages[0].backward != NULL, NULL);
    if (!plan_slice_check_sizes(&costs, error) || !bound_ranks(order, &grid, &bound, error))
        return NULL;
    g_autoptr(GPtrArray) candidates = propose(order, grid, error);
    if (candidates == NULL)
        return NULL;
    for (guint i = 0; i < candidates->len; i++) {
        const GPtrArray *groups = candidates->pdata[i];
        const PlanSliceGroup *group = groups->pdata[0];
        n_units = MAX(n_units, groups->len * group->slices->len);
    }
    costs.cost = grid;
    const PlanSliceSearch search = {
        .costs = &costs,
        .max_group = order->problem->max_group,
        .is_common = true,
        .judge = judge,
        .user_data = (void *)order,
        .most_judged =
            CLAMP(MOST_UNITS / (n_units * order->problem->n_stages), LEAST_JUDGED, MOST_JUDGED),
        .lower_bound = bound,
    };
    PlanSliceResult *result = plan_slice_search(&search, candidates, error);
    if (result != NULL)
        plan_slice_stages_longest(order->problem, order->stages, result);
    return result;
}
