#include "planner/slices/orders.h"

#include "planner/slices/grid.h"
#include "planner/slices/judge.h"
#include "planner/slices/order_bound.h"

/* Slices that are simulated while improving, and the least and most answers. */
#define MOST_VIRTUAL_IDS (INT64_C(1) << 19)
#define LEAST_JUDGED 200
#define MOST_JUDGED 8192

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

int64_t
plan_slice_order_time(const PlanSliceOrder *order, const GPtrArray *groups)
{
    const PlanSliceGroup *first = groups->pdata[0];
    const int64_t limit = order->problem->limit_bytes;
    const ScheduleShape shape = {
        .n_ranks = order->n_ranks,
        .n_chunks = order->problem->n_stages / order->n_ranks,
        .n_micro_batches = groups->len,
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
    int64_t bound, n_virtual_ids = 1;

    g_return_val_if_fail(order->simulate != NULL && order->stages[0].backward != NULL, NULL);
    if (!plan_slice_check_sizes(&costs, error) ||
        !plan_slice_order_bound(order, &grid, &bound, error))
        return NULL;
    g_autoptr(GPtrArray) candidates = propose(order, grid, error);
    if (candidates == NULL)
        return NULL;
    for (guint i = 0; i < candidates->len; i++) {
        const GPtrArray *groups = candidates->pdata[i];
        const PlanSliceGroup *group = groups->pdata[0];
        n_virtual_ids = MAX(n_virtual_ids, groups->len * group->slices->len);
    }
    costs.cost = grid;
    const PlanSliceSearch search = {
        .costs = &costs,
        .max_group = order->problem->max_group,
        .is_common = true,
        .judge = judge,
        .user_data = (void *)order,
        .most_judged = CLAMP(MOST_VIRTUAL_IDS / (n_virtual_ids * order->problem->n_stages),
                             LEAST_JUDGED, MOST_JUDGED),
        .lower_bound = bound,
    };
    PlanSliceResult *result = plan_slice_search(&search, candidates, error);
    if (result != NULL)
        plan_slice_stages_longest(order->problem, order->stages, result);
    return result;
}
