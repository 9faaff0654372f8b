#include "planner/slices/order_bound.h"

#include <string.h>

#include "planner/slices/apart.h"

/* Groups and cells whose pairs are all bounded: a second at most. */
#define MAX_PAIRED 12
#define MAX_PAIRED_CELLS (512 * 512)

static bool
fail_memory(GError **error)
{
    g_set_error(error, PLAN_SLICE_ERROR, PLAN_SLICE_ERROR_LIMIT,
                "no memory for the times of all stages: use a coarser granularity");
    return false;
}

static int64_t
both(const PlanSliceStage *stage, int64_t at)
{
    const int64_t f = plan_slice_stage_time(stage, 0, at), g = plan_slice_stage_time(stage, 1, at);

    return f > PLAN_SLICE_MAX_SUM || g > PLAN_SLICE_MAX_SUM ? PLAN_SLICE_INFINITE : f + g;
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
        const int64_t t = both(&order->stages[k], at);
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
                const int64_t at = (b * side + s) * side + c;
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
        const int64_t delay = order->problem->delay == NULL ? 0 : order->problem->delay[row];
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
        const int64_t before = end_time(order, rank, 0, n_groups, first);
        const int64_t behind = end_time(order, rank, 1, n_groups, first);
        cover[0] = 0;
        for (int64_t x = 1; x <= batch; x++) {
            cover[x] = PLAN_SLICE_NEVER;
            for (int64_t b = 1; b <= MIN(x, n_groups); b++) {
                const int64_t t = grid[(b * side + first) * side];
                if (t <= PLAN_SLICE_MAX_SUM && rest[b * side + first] < PLAN_SLICE_NEVER)
                    cover[x] = MIN(cover[x], t + rest[b * side + first] + cover[x - b]);
            }
        }
        if (before < PLAN_SLICE_NEVER && behind < PLAN_SLICE_NEVER)
            least = MIN(least, cover[batch] + before + behind);
    }
    return least;
}

/* --- stages that are alike --- */

/* What the bound of two groups needs: [x] planes of all slices of x sequences, in the best groups.
 */
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
    const int64_t d = order->problem->delay == NULL ? 0 : order->problem->delay[row];

    return t > PLAN_SLICE_MAX_SUM || d > PLAN_SLICE_MAX_SUM ? PLAN_SLICE_INFINITE : t + d;
}

/*
 * The least time of answers in which a group of @first comes in first and one of @last goes last
 * (equal: perhaps the same); PLAN_SLICE_NEVER: there is none.
 */
static bool
bound_groups(Uniform *u, int64_t first, int64_t last, int64_t *bound, GError **error)
{
    const PlanSliceOrder *order = u->order;
    const int64_t n = order->problem->costs.n_cells, side = n + 1, plane = side * side;
    const int64_t left = order->problem->costs.batch - first - (first == last ? 0 : last);
    int64_t *cost = u->planes + plane, *forward = cost + 2 * plane, *backward = forward + 2 * plane;
    GError *no_memory = NULL;

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
    g_autoptr(PlanSliceResult) result = plan_slice_solve_apart(&costs, &metric, 1, &no_memory);
    if (no_memory != NULL) {
        g_propagate_error(error, no_memory);
        return false;
    }
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

    u.n_groups = problem->max_group == 0 ? batch : MIN(problem->max_group, batch);
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

/* --- all --- */

bool
plan_slice_order_bound(const PlanSliceOrder *order, int64_t **grid, int64_t *bound, GError **error)
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
        *bound = MAX(*bound, rank_bound(order, rank, one));
        if (i == 2)
            *grid = g_steal_pointer(&one);
    }
    return !is_uniform || bound_uniform(order, *grid, bound, error);
}
