#include "planner/slices/stages.h"

#include <math.h>
#include <string.h>

#include "planner/slices/judge.h"

/* Answers judged while improving, and of a small grid. */
#define MOST_JUDGED 20000

typedef struct {
    const PlanSliceProblem *problem;
    const PlanSliceStage *stages;
    int64_t *free_at;    /* (borrowed) [stage] */
    const int64_t *runs; /* (borrowed, nullable) plan_slice_stages_runs() */
} Shop;

static bool
is_same(const PlanSliceStage *a, const PlanSliceStage *b)
{
    return a->forward == b->forward && a->backward == b->backward && a->factor == b->factor;
}

int64_t *
plan_slice_stages_runs(const PlanSliceStage *stages, int64_t n_stages)
{
    int64_t *runs = g_new(int64_t, (size_t)n_stages);

    for (int64_t k = n_stages - 1; k >= 0; k--)
        runs[k] = k + 1 < n_stages && is_same(&stages[k], &stages[k + 1]) ? runs[k + 1] : k + 1;
    return runs;
}

int64_t
plan_slice_stage_time(const PlanSliceStage *stage, int r, int64_t at)
{
    const int64_t *grid = r == 0 ? stage->forward : stage->backward;

    if (grid == NULL)
        return 0;
    if (grid[at] > PLAN_SLICE_MAX_SUM)
        return PLAN_SLICE_INFINITE;
    if (stage->factor == 1.0)
        return grid[at];
    const double t = rint((double)grid[at] * stage->factor);
    return t > (double)PLAN_SLICE_MAX_SUM ? PLAN_SLICE_INFINITE : (int64_t)t;
}

int64_t
plan_slice_stage_both(const PlanSliceStage *stage, int64_t at)
{
    const int64_t f = plan_slice_stage_time(stage, 0, at), g = plan_slice_stage_time(stage, 1, at);

    return f > PLAN_SLICE_MAX_SUM || g > PLAN_SLICE_MAX_SUM ? PLAN_SLICE_INFINITE : f + g;
}

/* --- the time of an answer --- */

/* Sends cell @at through all stages, from the first on (r = 0) or from the last. */
static bool
send(Shop *shop, int r, int64_t at, int64_t delay)
{
    const int64_t n = shop->problem->n_stages;
    int64_t arrives = 0;

    for (int64_t k = 0; k < n; k++) {
        const int64_t stage = r == 0 ? k : n - 1 - k;
        const int64_t t = plan_slice_stage_time(&shop->stages[stage], r, at);
        if (t > PLAN_SLICE_MAX_SUM || delay > PLAN_SLICE_MAX_SUM)
            return false;
        int64_t *free_at = &shop->free_at[stage];
        *free_at = MAX(*free_at, arrives) + t;
        if (*free_at > PLAN_SLICE_MAX_SUM)
            return false;
        arrives = *free_at + delay;
    }
    return true;
}

static bool
send_group(Shop *shop, int r, const PlanSliceGroup *group)
{
    const PlanSliceProblem *problem = shop->problem;
    const int64_t n = group->slices->len, side = problem->costs.n_cells + 1;
    int64_t c = r == 0 ? 0 : problem->costs.n_cells;

    for (int64_t i = 0; i < n; i++) {
        const int64_t s = g_array_index(group->slices, int64_t, r == 0 ? i : n - 1 - i) /
                          problem->costs.granularity;
        const int64_t row = group->batch * side + s;
        c -= r == 0 ? 0 : s;
        if (!send(shop, r, row * side + c, plan_slice_delay(problem, row)))
            return false;
        c += r == 0 ? s : 0;
    }
    return true;
}

/* The time of one round, begun and ended without others. */
static int64_t
shop_time(Shop *shop, const GPtrArray *groups, guint first, guint end)
{
    const int64_t n = shop->problem->n_stages;
    int64_t time = 0;

    for (int r = 0; r < (shop->stages[0].backward == NULL ? 1 : 2); r++) {
        memset(shop->free_at, 0, (size_t)n * sizeof *shop->free_at);
        for (guint i = first; i < end; i++)
            if (!send_group(shop, r, groups->pdata[i]))
                return INT64_MAX;
        time += shop->free_at[r == 0 ? n - 1 : 0];
    }
    return time;
}

int64_t
plan_slice_stages_time(const PlanSliceProblem *problem, const PlanSliceStage *stages,
                       const GPtrArray *groups)
{
    g_autofree int64_t *free_at = g_new(int64_t, (size_t)problem->n_stages);
    Shop shop = {.problem = problem, .stages = stages, .free_at = free_at};
    int64_t sum = 0;

    for (guint i = 0, end; i < groups->len; i = end) {
        const int64_t round = ((PlanSliceGroup *)groups->pdata[i])->round;
        for (end = i + 1; end < groups->len; end++)
            if (((PlanSliceGroup *)groups->pdata[end])->round != round)
                break;
        const int64_t time = shop_time(&shop, groups, i, end);
        if (time > PLAN_SLICE_MAX_SUM || (sum += time) > PLAN_SLICE_MAX_SUM)
            return INT64_MAX;
    }
    return sum;
}

static int64_t
judge(const GPtrArray *groups, void *user_data)
{
    Shop *shop = user_data;

    return shop_time(shop, groups, 0, groups->len);
}

/* --- lower bounds and candidates --- */

/* What cell @at takes on stages @first to @end - 1; INFINITE if that is beyond PLAN_SLICE_MAX_SUM.
 * Neighbours that take the same are priced once. */
static int64_t
range_time(const Shop *shop, int r, int64_t first, int64_t end, int64_t at)
{
    const PlanSliceStage *stages = shop->stages;
    int64_t sum = 0;

    for (int64_t k = first, next; k < end; k = next) {
        const int64_t t = plan_slice_stage_time(&stages[k], r, at);
        int64_t product;
        next = MIN(shop->runs[k], end);
        if (t > PLAN_SLICE_MAX_SUM || __builtin_mul_overflow(t, next - k, &product) ||
            (sum += product) > PLAN_SLICE_MAX_SUM)
            return PLAN_SLICE_INFINITE;
    }
    return sum;
}

/* The grids of one bound: the sums and what the longest slice adds. */
typedef struct {
    int64_t *cost[2], *key[2]; /* (owned, nullable) */
} Bound;

static void
bound_clear(Bound *bound)
{
    for (int r = 0; r < 2; r++) {
        g_free(bound->cost[r]);
        g_free(bound->key[r]);
    }
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Bound, bound_clear)

/* Cell @at of the bound of stages @a to @b; infinite on one stage: on none. */
static void
set_bound_cell(const Shop *shop, int r, int64_t a, int64_t b, int64_t at, int64_t delay,
               int64_t *cost, int64_t *key)
{
    const int64_t all = range_time(shop, r, 0, shop->problem->n_stages, at);
    const int64_t inside =
        a == 0 && b == shop->problem->n_stages - 1 ? all : range_time(shop, r, a, b + 1, at);

    *cost = *key = PLAN_SLICE_INFINITE;
    if (all > PLAN_SLICE_MAX_SUM || delay > PLAN_SLICE_MAX_SUM / MAX(1, b - a))
        return;
    *cost = MIN(plan_slice_stage_time(&shop->stages[a], r, at),
                plan_slice_stage_time(&shop->stages[b], r, at));
    *key = inside - *cost + (b - a) * delay;
}

/* What passes stages @first to @end - 1 at least before or behind all others, where it is the only
 * one there: the first slice of a sequence (@is_first: before stage a), or the last. */
static int64_t
least_end(const Shop *shop, int r, int64_t first, int64_t end, bool is_first)
{
    const PlanSliceProblem *problem = shop->problem;
    const int64_t n = problem->costs.n_cells, side = n + 1;
    int64_t least = PLAN_SLICE_INFINITE;

    if (first == end)
        return 0;
    for (int64_t b = 1; b <= problem->costs.batch; b++)
        for (int64_t s = 1; s <= n; s++) {
            const int64_t row = b * side + s, delay = plan_slice_delay(problem, row);
            const int64_t t = range_time(shop, r, first, end, row * side + (is_first ? 0 : n - s));
            if (t <= PLAN_SLICE_MAX_SUM && delay <= PLAN_SLICE_MAX_SUM / (end - first))
                least = MIN(least, t + (end - first) * delay);
        }
    return MIN(least, PLAN_SLICE_MAX_SUM);
}

/* false: no memory. */
static bool
bound_init(Bound *bound, const Shop *shop, int64_t a, int64_t b)
{
    const PlanSliceProblem *problem = shop->problem;
    const int64_t n = problem->costs.n_cells, side = n + 1, batch = problem->costs.batch;
    const size_t n_cells = (size_t)((batch + 1) * side * side);

    for (int r = 0; r < (shop->stages[0].backward == NULL ? 1 : 2); r++) {
        bound->cost[r] = g_try_malloc_n(n_cells, sizeof(int64_t));
        bound->key[r] = g_try_malloc_n(n_cells, sizeof(int64_t));
        if (bound->cost[r] == NULL || bound->key[r] == NULL)
            return false;
        for (int64_t i = 1; i <= batch; i++)
            for (int64_t s = 1; s <= n; s++)
                for (int64_t c = 0; c <= n - s; c++) {
                    const int64_t row = i * side + s, at = row * side + c;
                    set_bound_cell(shop, r, a, b, at, plan_slice_delay(problem, row),
                                   &bound->cost[r][at], &bound->key[r][at]);
                }
    }
    return true;
}

typedef struct {
    Shop shop;
    GPtrArray *candidates; /* (owned) of GPtrArray */
    int64_t lower_bound;
    int64_t n_solves;
} Proposals;

/* The answer of least sum + weight max of @bound; *lower: its lower bound (PLAN_SLICE_NEVER: there
 * is no answer). */
static bool
propose(Proposals *proposals, const Bound *bound, int64_t weight, int64_t *lower, GError **error)
{
    const PlanSliceProblem *problem = proposals->shop.problem;
    const PlanSliceMetric metric = {
        .cost = {bound->cost[0], bound->cost[1]},
        .key = {bound->key[0], bound->key[1]},
        .weight = {weight, weight},
        .high = {PLAN_SLICE_MAX_SUM, PLAN_SLICE_MAX_SUM},
    };
    g_autoptr(PlanSliceResult) result = NULL;

    *lower = PLAN_SLICE_NEVER;
    if (!plan_slice_solve_apart(&problem->costs, &metric, problem->max_group, &result, error))
        return false;
    if (result == NULL)
        return true;
    *lower = result->lower_bound;
    proposals->n_solves += result->n_solves;
    g_ptr_array_add(proposals->candidates, plan_slice_groups_copy(result->groups));
    g_ptr_array_add(proposals->candidates, plan_slice_groups_reversed(result->groups));
    return true;
}

/* The bound of stages @a to @b, and what other weights propose. */
static bool
propose_stages(Proposals *proposals, int64_t a, int64_t b, GError **error)
{
    g_auto(Bound) bound = {0};
    int64_t lower;

    if (!bound_init(&bound, &proposals->shop, a, b))
        return plan_slice_refuse(
            error, LIMIT,
            "no memory for the bounds of stages that differ: use a coarser granularity");
    if (!propose(proposals, &bound, 1, &lower, error))
        return false;
    for (int r = 0; r < (proposals->shop.stages[0].backward == NULL ? 1 : 2); r++)
        lower += least_end(&proposals->shop, r, 0, a, true) +
                 least_end(&proposals->shop, r, b + 1, proposals->shop.problem->n_stages, false);
    proposals->lower_bound = MAX(proposals->lower_bound, lower);
    return a == b || propose(proposals, &bound, 2, &lower, error);
}

/* The stage of the longest whole batch. */
static int64_t
bottleneck(const Shop *shop)
{
    const int64_t side = shop->problem->costs.n_cells + 1;
    const int64_t at = (side + side - 1) * side; /* one sequence in one slice */
    int64_t longest = -1, which = 0;

    for (int64_t k = 0; k < shop->problem->n_stages; k++) {
        const int64_t both = plan_slice_stage_both(&shop->stages[k], at);
        const int64_t t = both == PLAN_SLICE_INFINITE ? 0 : both;
        if (t > longest) {
            longest = t;
            which = k;
        }
    }
    return which;
}

/* (owned) both directions of @stage; NULL: no memory. */
static int64_t *
stage_sums(const Shop *shop, int64_t stage)
{
    const PlanSliceCosts *costs = &shop->problem->costs;
    const int64_t n = costs->n_cells, side = n + 1;
    int64_t *sums = g_try_malloc_n((size_t)((costs->batch + 1) * side * side), sizeof *sums);

    for (int64_t b = 1; sums != NULL && b <= costs->batch; b++)
        for (int64_t s = 1; s <= n; s++)
            for (int64_t c = 0; c <= n - s; c++) {
                const int64_t at = plan_slice_at(costs, b, s, c);
                sums[at] = plan_slice_stage_both(&shop->stages[stage], at);
            }
    return sums;
}

/* Ways through the shop whose bounds are asked: all of a short one, else by its ends and its
 * longest stage. */
static bool
propose_all(Proposals *proposals, int64_t longest, GError **error)
{
    const int64_t n = proposals->shop.problem->n_stages;

    if (n <= 4) {
        for (int64_t a = 0; a < n; a++)
            for (int64_t b = a; b < n; b++)
                if (!propose_stages(proposals, a, b, error))
                    return false;
        return true;
    }
    return propose_stages(proposals, 0, n - 1, error) &&
           propose_stages(proposals, longest, longest, error) &&
           (longest == 0 || propose_stages(proposals, 0, longest, error)) &&
           (longest == n - 1 || propose_stages(proposals, longest, n - 1, error));
}

/* PlanSliceRoundFunc. */
static bool
solve_round(const PlanSliceProblem *problem, void *user_data, PlanSliceResult **result,
            GError **error)
{
    g_autofree int64_t *free_at = g_new(int64_t, (size_t)problem->n_stages);
    g_autoptr(GPtrArray) candidates =
        g_ptr_array_new_with_free_func((GDestroyNotify)g_ptr_array_unref);
    g_autofree int64_t *runs = plan_slice_stages_runs(user_data, problem->n_stages);
    Proposals proposals = {.shop = {problem, user_data, free_at, runs}, .candidates = candidates};
    const int64_t longest = bottleneck(&proposals.shop);
    g_autofree int64_t *sums = stage_sums(&proposals.shop, longest);

    if (sums == NULL)
        return plan_slice_refuse(error, LIMIT,
                                 "no memory for stages that differ: use a coarser granularity");
    if (!propose_all(&proposals, longest, error))
        return false;
    PlanSliceCosts costs = problem->costs;
    costs.cost = sums;
    const PlanSliceSearch search = {
        .costs = &costs,
        .max_group = problem->max_group,
        .judge = judge,
        .user_data = &proposals.shop,
        .most_judged = MOST_JUDGED,
        .lower_bound = proposals.lower_bound,
    };
    *result = candidates->len == 0 ? NULL : plan_slice_search(&search, candidates, NULL);
    if (*result != NULL)
        (*result)->n_solves = proposals.n_solves;
    return true;
}

void
plan_slice_stages_longest(const PlanSliceProblem *problem, const PlanSliceStage *stages,
                          PlanSliceResult *result)
{
    for (guint i = 0; i < result->groups->len; i++)
        for (PlanSliceStep step = {0};
             plan_slice_next(&problem->costs, result->groups->pdata[i], &step);)
            for (int64_t k = 0; k < problem->n_stages; k++) {
                result->max_slice =
                    MAX(result->max_slice, plan_slice_stage_time(&stages[k], 0, step.at));
                result->max_backward =
                    MAX(result->max_backward, plan_slice_stage_time(&stages[k], 1, step.at));
            }
}

PlanSliceResult *
plan_slice_solve_stages(const PlanSliceProblem *problem, const PlanSliceStage *stages,
                        GError **error)
{
    g_return_val_if_fail(problem->n_stages >= 1 && stages != NULL, NULL);
    if (!plan_slice_check_sizes(&problem->costs, error))
        return NULL;
    PlanSliceResult *result = plan_slice_solve_rounds(problem, solve_round, (void *)stages, error);
    if (result == NULL)
        return NULL;
    result->latency = plan_slice_stages_time(problem, stages, result->groups);
    plan_slice_stages_longest(problem, stages, result);
    return result;
}
