#include "planner/slices/orders.h"

#include <string.h>

#include "planner/cost/request.h"
#include "planner/slices/judge.h"

/* Slices that are simulated while improving, and the least and most answers. */
#define MOST_VIRTUAL_IDS (INT64_C(1) << 19)
#define LEAST_JUDGED 200
#define MOST_JUDGED 8192

/* Groups and cells whose pairs are all bounded: a second at most. */
#define MAX_PAIRED 12
#define MAX_PAIRED_CELLS (512 * 512)

static bool
fail_memory(GError **error)
{
    return plan_slice_refuse(error, LIMIT,
                             "no memory for the times of all stages: use a coarser granularity");
}

/* Chunks of @rank among the first @n stages of the chain. */
static int64_t
chunks_before(const PlanSliceOrder *order, int64_t rank, int64_t n)
{
    return n <= rank ? 0 : (n - 1 - rank) / order->n_ranks + 1;
}

/* Both directions of cell @at on all chunks of @rank; INFINITE where one is, on any rank. @runs of
 * the stages. */
static int64_t
rank_time(const PlanSliceOrder *order, const int64_t *runs, int64_t rank, int64_t at)
{
    int64_t sum = 0;

    for (int64_t k = 0; k < order->problem->n_stages; k = runs[k]) {
        const int64_t t = plan_slice_stage_both(&order->stages[k], at);
        const int64_t n = chunks_before(order, rank, runs[k]) - chunks_before(order, rank, k);
        int64_t product;
        if (t > PLAN_SLICE_MAX_SUM || __builtin_mul_overflow(t, n, &product) ||
            product > PLAN_SLICE_MAX_SUM || (sum += product) > PLAN_SLICE_MAX_SUM)
            return PLAN_SLICE_INFINITE;
    }
    return sum;
}

/* (owned) rank_time() of all cells; NULL: no memory. */
static int64_t *
rank_grid(const PlanSliceOrder *order, const int64_t *runs, int64_t rank)
{
    const PlanSliceCosts *costs = &order->problem->costs;
    const int64_t n = costs->n_cells, side = n + 1;
    int64_t *grid = g_try_malloc0_n((size_t)((costs->batch + 1) * side * side), sizeof *grid);

    for (int64_t b = 1; grid != NULL && b <= costs->batch; b++)
        for (int64_t s = 1; s <= n; s++)
            for (int64_t c = 0; c <= n - s; c++) {
                const int64_t at = plan_slice_at(costs, b, s, c);
                grid[at] = rank_time(order, runs, rank, at);
            }
    return grid;
}

/* --- one rank --- */

/* What the first slice @s of the best group needs on the stages before @rank's in direction @r. */
static int64_t
end_time(const PlanSliceOrder *order, int64_t rank, int r, int64_t n_groups, int64_t s)
{
    const int64_t side = order->problem->costs.n_cells + 1;
    int64_t least = PLAN_SLICE_NEVER;

    for (int64_t b = 1; b <= n_groups; b++) {
        const int64_t row = b * side + s;
        const int64_t delay = plan_slice_delay(order->problem, row);
        int64_t sum = 0;
        for (int64_t k = 0; k < rank && sum < PLAN_SLICE_NEVER; k++) {
            const int64_t t = plan_slice_stage_time(&order->stages[k], r, row * side);
            if (t > PLAN_SLICE_MAX_SUM || delay > PLAN_SLICE_MAX_SUM ||
                (sum += t + delay) > PLAN_SLICE_MAX_SUM)
                sum = PLAN_SLICE_NEVER;
        }
        least = MIN(least, sum);
    }
    return least;
}

/*
 * The least of a rank's sum and its ends: over every first slice, which all groups have in common.
 * @grid of that rank.  Cost: O(batch * cells (batch + cells)).
 */
static int64_t
rank_bound(const PlanSliceOrder *order, int64_t rank, const int64_t *grid)
{
    const PlanSliceProblem *problem = order->problem;
    const int64_t n = problem->costs.n_cells, batch = problem->costs.batch;
    const int64_t n_groups = plan_slice_largest_group(&problem->costs, problem->max_group);
    const PlanSliceCosts costs = {batch, n, problem->costs.granularity, grid};
    g_autofree int64_t *rest = plan_slice_rests(&costs, problem->max_group);
    g_autofree int64_t *cover = g_new(int64_t, (size_t)batch + 1);
    int64_t least = PLAN_SLICE_NEVER;

    for (int64_t first = 1; first <= n; first++) {
        const int64_t before = end_time(order, rank, 0, n_groups, first);
        const int64_t behind = end_time(order, rank, 1, n_groups, first);
        cover[0] = 0;
        for (int64_t x = 1; x <= batch; x++) {
            cover[x] = PLAN_SLICE_NEVER;
            for (int64_t b = 1; b <= MIN(x, n_groups); b++) {
                const int64_t t = grid[plan_slice_at(&costs, b, first, 0)];
                const int64_t after = rest[b * (n + 1) + first];
                if (t <= PLAN_SLICE_MAX_SUM && after < PLAN_SLICE_NEVER)
                    cover[x] = MIN(cover[x], t + after + cover[x - b]);
            }
        }
        if (before < PLAN_SLICE_NEVER && behind < PLAN_SLICE_NEVER)
            least = MIN(least, cover[batch] + before + behind);
    }
    return least;
}

/* --- stages that are alike --- */

/* What the bound of two groups needs: [x] planes of all slices of x sequences in best groups. */
typedef struct {
    const PlanSliceOrder *order;
    const int64_t *grid; /* of a rank */
    int64_t *cover;      /* (owned) [x * side * side + s * side + c] */
    int64_t *planes;     /* (owned) cost, forward, backward: each of two planes, the first unused */
    int64_t n_groups;    /* the largest group */
} Uniform;

static void
uniform_clear(Uniform *u)
{
    g_free(u->cover);
    g_free(u->planes);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Uniform, uniform_clear)

/* The least time of a slice of @x sequences over all ways to group them. */
static void
fill_cover(Uniform *u)
{
    const int64_t n = u->order->problem->costs.n_cells, side = n + 1, plane = side * side;

    memset(u->cover, 0, (size_t)plane * sizeof *u->cover);
    for (int64_t x = 1; x <= u->order->problem->costs.batch; x++)
        for (int64_t s = 1; s <= n; s++)
            for (int64_t c = 0; c <= n - s; c++) {
                const int64_t at = s * side + c;
                int64_t least = PLAN_SLICE_NEVER;
                for (int64_t b = 1; b <= MIN(x, u->n_groups); b++)
                    if (u->grid[b * plane + at] <= PLAN_SLICE_MAX_SUM)
                        least =
                            MIN(least, u->grid[b * plane + at] + u->cover[(x - b) * plane + at]);
                u->cover[x * plane + at] = least;
            }
}

/* A stage's time of the slice and its message. */
static int64_t
delayed(const PlanSliceOrder *order, int r, int64_t b, int64_t s, int64_t c)
{
    const int64_t side = order->problem->costs.n_cells + 1, row = b * side + s;
    const int64_t t = plan_slice_stage_time(&order->stages[0], r, row * side + c);
    const int64_t d = plan_slice_delay(order->problem, row);

    return t > PLAN_SLICE_MAX_SUM || d > PLAN_SLICE_MAX_SUM ? PLAN_SLICE_INFINITE : t + d;
}

/* The least time of answers in which a group of @first comes in first and one of @last goes last
 * (equal: perhaps the same); PLAN_SLICE_NEVER: there is none. */
static bool
bound_groups(Uniform *u, int64_t first, int64_t last, int64_t *bound, GError **error)
{
    const PlanSliceOrder *order = u->order;
    const int64_t n = order->problem->costs.n_cells, side = n + 1, plane = side * side;
    const int64_t left = order->problem->costs.batch - first - (first == last ? 0 : last);
    int64_t *cost = u->planes + plane, *forward = cost + 2 * plane, *backward = forward + 2 * plane;
    g_autoptr(PlanSliceResult) result = NULL;

    *bound = PLAN_SLICE_NEVER;
    if (left < 0)
        return true;
    for (int64_t s = 1; s <= n; s++)
        for (int64_t c = 0; c <= n - s; c++) {
            const int64_t at = s * side + c;
            const int64_t t = u->grid[first * plane + at];
            const int64_t other = first == last ? 0 : u->grid[last * plane + at];
            forward[at] = delayed(order, 0, first, s, c);
            backward[at] = delayed(order, 1, last, s, c);
            cost[at] = t > PLAN_SLICE_MAX_SUM || other > PLAN_SLICE_MAX_SUM
                           ? PLAN_SLICE_INFINITE
                           : t + other + u->cover[left * plane + at];
        }
    const PlanSliceCosts costs = {1, n, order->problem->costs.granularity, cost - plane};
    const PlanSliceMetric metric = {
        .cost = {cost - plane},
        .key = {forward - plane, backward - plane},
        .weight = {order->n_ranks - 1, order->n_ranks - 1},
        .high = {PLAN_SLICE_MAX_SUM, PLAN_SLICE_MAX_SUM},
    };
    if (!plan_slice_solve_apart(&costs, &metric, 1, &result, error))
        return false;
    if (result != NULL)
        *bound = result->lower_bound;
    return true;
}

/* Raises *bound to the least over all pairs of groups; leaves it where they are too many. */
static bool
bound_uniform(const PlanSliceOrder *order, const int64_t *grid, int64_t *bound, GError **error)
{
    const PlanSliceProblem *problem = order->problem;
    const int64_t batch = problem->costs.batch, n = problem->costs.n_cells;
    const size_t plane = (size_t)((n + 1) * (n + 1));
    g_auto(Uniform) u = {.order = order, .grid = grid};
    int64_t least = PLAN_SLICE_NEVER;

    u.n_groups = plan_slice_largest_group(&problem->costs, problem->max_group);
    if (u.n_groups > MAX_PAIRED || n * n > MAX_PAIRED_CELLS)
        return true;
    u.cover = g_try_malloc_n((size_t)(batch + 1) * plane, sizeof *u.cover);
    u.planes = g_try_malloc_n(6 * plane, sizeof *u.planes);
    if (u.cover == NULL || u.planes == NULL)
        return fail_memory(error);
    fill_cover(&u);
    for (int64_t first = 1; first <= u.n_groups; first++)
        for (int64_t last = 1; last <= u.n_groups; last++) {
            int64_t one;
            if (!bound_groups(&u, first, last, &one, error))
                return false;
            least = MIN(least, one);
        }
    if (least < PLAN_SLICE_NEVER)
        *bound = MAX(*bound, least);
    return true;
}

/* --- the bound of all --- */

/*
 * Sets *bound to a lower bound of every answer.
 * @grid  (out, owned) both directions of all slices on the rank that takes longest.
 * Returns false on PLAN_SLICE_ERROR_LIMIT.
 */
static bool
order_bound(const PlanSliceOrder *order, int64_t **grid, int64_t *bound, GError **error)
{
    const int64_t side = order->problem->costs.n_cells + 1;
    const int64_t whole = (side + side - 1) * side; /* one sequence in one slice */
    g_autofree int64_t *runs = plan_slice_stages_runs(order->stages, order->problem->n_stages);
    const bool is_uniform = runs[0] == order->problem->n_stages;
    int64_t longest = -1, which = 0;

    for (int64_t r = 0; r < order->n_ranks && !is_uniform; r++) {
        const int64_t t = rank_time(order, runs, r, whole);
        if (t <= PLAN_SLICE_MAX_SUM && t > longest) {
            longest = t;
            which = r;
        }
    }
    *bound = 0;
    for (int64_t i = 0; i < 3; i++) {
        const int64_t rank = (int64_t[]){0, order->n_ranks - 1, which}[i];
        g_autofree int64_t *one = rank_grid(order, runs, rank);
        if (one == NULL)
            return fail_memory(error);
        const int64_t of_rank = rank_bound(order, rank, one);
        *bound = MAX(*bound, of_rank);
        if (i == 2)
            *grid = g_steal_pointer(&one);
    }
    return !is_uniform || bound_uniform(order, *grid, bound, error);
}

/* --- the time of an answer --- */

static const PlanSliceGroup *
group_at(const GPtrArray *groups, guint i)
{
    return groups->pdata[i];
}

/* (owned) the class of each micro-batch: the first with as many sequences; *n_classes. */
static int32_t *
classes_of(const GPtrArray *groups, GArray *batches)
{
    int32_t *classes = g_new(int32_t, groups->len);

    for (guint i = 0; i < groups->len; i++) {
        const int64_t batch = group_at(groups, i)->batch;
        guint k = 0;
        while (k < batches->len && g_array_index(batches, int64_t, k) != batch)
            k++;
        if (k == batches->len)
            g_array_append_val(batches, batch);
        classes[i] = (int32_t)k;
    }
    return classes;
}

/* One op; false if it is infinite. */
static bool
set_op(const PlanSliceOrder *order, int64_t stage, int64_t row, int64_t c, WorkloadOp *op)
{
    const PlanSliceProblem *problem = order->problem;
    const int64_t side = problem->costs.n_cells + 1;
    const int64_t tokens = row / side * (row % side) * problem->costs.granularity;
    const int64_t f = plan_slice_stage_time(&order->stages[stage], 0, row * side + c);
    const int64_t g = plan_slice_stage_time(&order->stages[stage], 1, row * side + c);
    const int64_t delay = plan_slice_delay(problem, row);

    if (f > PLAN_SLICE_MAX_SUM || g > PLAN_SLICE_MAX_SUM || delay > PLAN_SLICE_MAX_SUM)
        return false;
    *op = (WorkloadOp){.time_ns = {[SCHEDULE_OP_FORWARD] = f, [SCHEDULE_OP_BACKWARD] = g}};
    for (int kind = 0; kind < SCHEDULE_OP_N; kind++) {
        op->part_ns[kind][PROFILE_PART_COMPUTE] = op->time_ns[kind];
        op->workspace_bytes[kind] = tokens * problem->workspace_token_bytes;
    }
    if (order->n_ranks > 1 && stage + 1 < problem->n_stages)
        op->forward_message.ns = delay;
    if (order->n_ranks > 1 && stage > 0)
        op->backward_message.ns = delay;
    op->activation_bytes = tokens * problem->token_bytes / (problem->n_stages / order->n_ranks);
    return true;
}

/* Returns: (owned, nullable) the times of @groups, the micro-batches of @schedule, as its ops;
 * delays are overlapped messages.  NULL if a slice is infinite. */
static Workload *
order_workload(const PlanSliceOrder *order, const GPtrArray *groups, const Schedule *schedule)
{
    static const int64_t nothing[SCHEDULE_OP_N];
    const GArray *slices = group_at(groups, 0)->slices;
    const int64_t granularity = order->problem->costs.granularity;
    g_autoptr(Workload) workload = workload_new_plain(schedule, nothing, 0);
    g_autoptr(GArray) batches = g_array_new(FALSE, FALSE, sizeof(int64_t));

    workload->class_of_micro_batch = classes_of(groups, batches);
    workload->n_classes = (int32_t)batches->len;
    g_free(workload->ops);
    workload->ops =
        g_new0(WorkloadOp, (gsize)(workload->n_stages * workload->n_classes) * slices->len);
    WorkloadOp *op = workload->ops;
    for (int64_t stage = 0; stage < workload->n_stages; stage++)
        for (guint k = 0; k < batches->len; k++)
            for (guint i = 0, c = 0; i < slices->len; i++, op++) {
                const int64_t s = g_array_index(slices, int64_t, i) / granularity;
                const int64_t side = order->problem->costs.n_cells + 1;
                if (!set_op(order, stage, g_array_index(batches, int64_t, k) * side + s, c, op))
                    return NULL;
                c += (guint)s;
            }
    return g_steal_pointer(&workload);
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
        plan_uniform_slices(costs->n_cells * costs->granularity, costs->granularity, n, slices);
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

/* PlanSliceJudgeFunc: the simulated makespan of @groups; INT64_MAX where it cannot be, or does not
 * fit. */
static int64_t
judge(const GPtrArray *groups, void *user_data)
{
    const PlanSliceOrder *order = user_data;
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
    g_autoptr(Workload) workload = order_workload(order, groups, schedule);
    if (workload == NULL ||
        !order->simulate(schedule, workload, limit > 0, &report, order->user_data))
        return INT64_MAX;
    return limit > 0 && report->peak_memory_bytes > limit ? INT64_MAX : report->iteration_ns;
}

PlanSliceResult *
plan_slice_solve_order(const PlanSliceOrder *order, GError **error)
{
    PlanSliceCosts costs = order->problem->costs;
    g_autofree int64_t *grid = NULL;
    int64_t bound, n_virtual_ids = 1;

    g_return_val_if_fail(order->simulate != NULL && order->stages[0].backward != NULL, NULL);
    if (!plan_slice_check_sizes(&costs, error) || !order_bound(order, &grid, &bound, error))
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
