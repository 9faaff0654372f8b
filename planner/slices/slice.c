/*
 * How the minimum over the longest slice is proven.
 *
 * Let S(m) be the least sum with slices of at most m; every answer whose longest slice is the cell
 * e of cost t costs at least
 *
 *   bound(e) = (least sum of the answers through e, at any cap >= t) + (n_stages - 1) t.
 *
 * A cell whose bound exceeds the best answer so far is not the longest slice of a better one.
 *   1. Uniform slicings give a first answer, and with it a cap: (n_stages - 1) t alone must not
 *      exceed it.  Only cells below the cap are copied (grid.h).
 *   2. Solves at caps falling by a quarter improve the answer, until S(cap) alone exceeds it.
 *   3. Between two neighbouring caps, the cells that survive their bounds are the candidates for
 *      the longest slice.  A solve at the median of their costs settles what lies between its own
 *      longest slice and the cap; it sharpens the bounds below (their sums are now at a lower cap),
 *      and perhaps improves the answer, which sharpens all.  Both sides go on with only the cells
 *      that an answer of such a longest slice can use (plan_slice_grid_narrow()), soon a few.
 *   4. Every longest slice that reaches the minimum has been solved at; of their answers the ties
 *      are broken.
 *
 * TeraPipe steps through caps at fixed gaps instead  [2102.07988 section 3.4].
 */
#include "planner/slices/slice.h"

#include <stdlib.h>

#include "base/order.h"
#include "base/units.h"
#include "planner/slices/grid.h"

G_DEFINE_QUARK(plan_slice_error, plan_slice_error)

/* Candidates that are looked at to find their median. */
#define N_SAMPLES 4096

typedef struct {
    const PlanSliceCosts *costs;
    const PlanSliceMetric *metric; /* (nullable) NULL: the cost is the key */
    PlanSliceGrid *grid;
    int64_t others;   /* n_stages - 1 */
    int64_t n_groups; /* the largest group */
    int64_t best;     /* PLAN_SLICE_NEVER before the first answer */
    GArray *longest;  /* of int64_t: longest slices of all answers of that latency found */
    int64_t n_solves;
    int64_t samples[N_SAMPLES];
} Search;

/* PLAN_SLICE_NEVER beyond PLAN_SLICE_MAX_SUM. */
static int64_t
latency(const Search *search, int64_t sum, int64_t longest)
{
    int64_t value;

    if (__builtin_mul_overflow(search->others, longest, &value) ||
        __builtin_add_overflow(value, sum, &value) || value > PLAN_SLICE_MAX_SUM)
        return PLAN_SLICE_NEVER;
    return value;
}

/* No answer of at most the best latency has a longer slice, if every sum is at least @sum. */
static int64_t
cap_for(const Search *search, int64_t sum)
{
    const int64_t best = MIN(search->best, PLAN_SLICE_MAX_SUM);

    if (sum > best)
        return -1;
    return (best - sum) / MAX(search->others, 1);
}

/* --- 1: uniform slicings --- */

/* Sum and longest of group @b cut every @s cells; false if a cost is infinite. */
static bool
uniform_group(const Search *search, int64_t b, int64_t s, int64_t *sum, int64_t *longest)
{
    const int64_t n = search->costs->n_cells, side = n + 1;

    for (int64_t c = 0; c < n; c += s) {
        const int64_t length = MIN(s, n - c), at = (b * side + length) * side + c;
        int64_t t = 0, key;
        if (search->metric == NULL)
            t = key = search->costs->cost[at];
        else if (!plan_slice_metric_cell(search->metric, at, side, b, length, &t, &key))
            return false;
        if (t > PLAN_SLICE_MAX_SUM || __builtin_add_overflow(*sum, t, sum) ||
            *sum > PLAN_SLICE_MAX_SUM)
            return false;
        *longest = MAX(*longest, key);
    }
    return true;
}

/* Sets best to the latency of the best of about 2 log2(n_cells) cuts of every group size. */
static void
try_uniform(Search *search)
{
    for (int64_t b = 1; b <= search->n_groups; b++) {
        const int64_t full = search->costs->batch / b, left = search->costs->batch % b;
        for (int64_t s = 1, step = 0; s <= search->costs->n_cells; step++) {
            int64_t sum = 0, longest = 0, left_sum = 0;
            if (uniform_group(search, b, s, &sum, &longest) &&
                (left == 0 || uniform_group(search, left, s, &left_sum, &longest)) &&
                !__builtin_mul_overflow(sum, full, &sum) && sum <= PLAN_SLICE_MAX_SUM)
                search->best = MIN(search->best, latency(search, sum + left_sum, longest));
            s = step % 2 == 0 && s > 1 ? s / 2 * 3 : step % 2 == 0 ? 2 : (s * 4 + 2) / 3;
        }
    }
}

/* --- solves --- */

/* A solve at @cap; returns S(cap) and the longest slice of its answer, which is noted. */
static int64_t
solve(Search *search, int64_t cap, int64_t *longest)
{
    const int64_t sum = plan_slice_grid_solve(search->grid, cap);

    search->n_solves++;
    *longest = 0;
    if (sum >= PLAN_SLICE_NEVER)
        return sum;
    *longest = plan_slice_grid_longest(search->grid, cap);
    const int64_t value = latency(search, sum, *longest);
    if (value == PLAN_SLICE_NEVER || value > search->best)
        return sum;
    if (value < search->best)
        g_array_set_size(search->longest, 0);
    search->best = value;
    g_array_append_val(search->longest, *longest);
    return sum;
}

/* The bound of a cell from the last solve in both directions; PLAN_SLICE_NEVER: useless. */
static inline int64_t
cell_bound(const Search *search, int64_t b, int64_t c, int64_t s, int64_t cost, int64_t key)
{
    const PlanSliceGrid *grid = search->grid;

    if (!plan_slice_grid_has_group(grid, b))
        return PLAN_SLICE_NEVER;
    const int64_t before = grid->before[(b - 1) * grid->stride + c];
    const int64_t rest = grid->rest[(b - 1) * grid->stride + c + s];
    const int64_t cover = grid->cover[grid->batch - b];

    if (before > PLAN_SLICE_MAX_SUM || rest > PLAN_SLICE_MAX_SUM || cover > PLAN_SLICE_MAX_SUM)
        return PLAN_SLICE_NEVER;
    /* The key is at most cap_for(): its product is at most PLAN_SLICE_MAX_SUM. */
    return before + cost + rest + cover + search->others * key;
}

/* The median key of the cells of a key in (low, high] that survive the last solve; -1: none does.
 * Exact up to N_SAMPLES cells, then of every second, fourth, ... one. */
static int64_t
median_candidate(Search *search, int64_t low, int64_t high)
{
    const PlanSliceGrid *grid = search->grid;
    size_t n_kept = 0, n_seen = 0, stride = 1;

    for (int64_t b = 1; b <= grid->n_groups; b++) {
        for (int64_t c = 0; c < grid->n_cells && plan_slice_grid_has_group(grid, b); c++) {
            const int64_t at = (b - 1) * grid->n_cells + c;
            const int64_t n = grid->windows[at].end;
            const int64_t *cells = grid->cells + grid->row[at];
            const int64_t *keys = grid->keys + grid->row[at];
            int64_t i = grid->windows[at].first;
            for (i = plan_slice_grid_find(keys, i, n, low, high); i < n;
                 i = plan_slice_grid_find(keys, i + 1, n, low, high)) {
                if (cell_bound(search, b, c, i + 1, cells[i], keys[i]) > search->best)
                    continue;
                if (n_seen++ % stride != 0)
                    continue;
                if (n_kept == N_SAMPLES) {
                    for (n_kept = 0; n_kept < N_SAMPLES / 2; n_kept++)
                        search->samples[n_kept] = search->samples[2 * n_kept];
                    stride *= 2;
                    if ((n_seen - 1) % stride != 0)
                        continue;
                }
                search->samples[n_kept++] = keys[i];
            }
        }
    }
    if (n_kept == 0)
        return -1;
    qsort(search->samples, n_kept, sizeof *search->samples, order_int64s);
    return search->samples[n_kept / 2];
}

/* Narrows to answers of a longest slice from @low to @high. */
static void
narrow(Search *search, int64_t low, int64_t high)
{
    const int64_t most = cap_for(search, 0);
    const PlanSliceInterest interest = {
        .low = low,
        .high = MIN(high, most),
        .others = search->others,
        .best = MIN(search->best, PLAN_SLICE_MAX_SUM),
    };

    plan_slice_grid_narrow(search->grid, &interest);
}

/* Step 3: answers of a longest slice in (low, high].  The grid is narrowed to them, and its sums
 * are of a cap of at least high. */
static void
settle(Search *search, int64_t low, int64_t high)
{
    g_autofree int64_t *saved = NULL;
    int64_t cap, longest;

    while ((cap = median_candidate(search, low, high)) >= 0) {
        g_free(saved);
        saved = plan_slice_grid_save(search->grid);
        const int64_t sum = solve(search, cap, &longest);
        if (sum <= search->best && sum <= PLAN_SLICE_MAX_SUM && longest - 1 > low) {
            plan_slice_grid_solve_before(search->grid, cap);
            narrow(search, low + 1, longest - 1);
            settle(search, low, longest - 1);
        }
        plan_slice_grid_restore(search->grid, saved);
        low = cap;
        narrow(search, low + 1, high);
    }
}

/* A cap of step 2: answers of a longest slice up to it, and no better ones above. */
typedef struct {
    int64_t cap;
    int64_t *saved; /* (owned, nullable: the last one) the grid there */
} Step;

static void
step_clear(void *data)
{
    Step *step = data;

    g_free(step->saved);
}

/* Steps 2 and 3. */
static void
descend(Search *search)
{
    g_autoptr(GArray) steps = g_array_new(FALSE, FALSE, sizeof(Step));
    int64_t longest;
    guint nearest = 0;

    g_array_set_clear_func(steps, step_clear);
    for (int64_t cap = cap_for(search, 0);;) {
        const int64_t best = search->best, sum = solve(search, cap, &longest);
        Step step = {.cap = cap};
        if (search->others == 0 || sum > MIN(search->best, PLAN_SLICE_MAX_SUM) || longest == 0) {
            g_array_append_val(steps, step);
            break;
        }
        if (search->best < best)
            nearest = steps->len;
        /* What is as long is settled; from here to the next cap, by a quarter or by the bound. */
        plan_slice_grid_solve_before(search->grid, cap);
        narrow(search, 0, longest - 1);
        step.cap = longest - 1;
        step.saved = plan_slice_grid_save(search->grid);
        g_array_append_val(steps, step);
        const int64_t next = cap_for(search, sum);
        cap = MIN(MIN(longest - 1, longest / 4 * 3), next);
    }
    /* From each cap down to the next; the last one has no answer good enough.  Where the best
     * answer was found first, since a better one is likely near it. */
    for (guint i = 0; i + 1 < steps->len; i++) {
        const guint at = i == 0 ? nearest : i <= nearest ? i - 1 : i;
        const Step *step = &g_array_index(steps, Step, at);
        const int64_t low = g_array_index(steps, Step, at + 1).cap;
        plan_slice_grid_restore(search->grid, step->saved);
        narrow(search, low + 1, step->cap);
        settle(search, low, step->cap);
    }
}

/* --- 4: ties --- */

/* (owned) the best of the answers that reach the minimum. */
static PlanSliceResult *
choose(Search *search, const int64_t *all)
{
    g_autoptr(PlanSliceResult) best = NULL;
    int64_t last = -1;

    qsort(search->longest->data, search->longest->len, sizeof(int64_t), order_int64s);
    for (guint i = 0; i < search->longest->len; i++) {
        /* Without other stages the longest slice does not count: one solve has all ties. */
        const int64_t longest = g_array_index(search->longest, int64_t, i);
        const int64_t cap = search->others == 0 ? PLAN_SLICE_MAX_SUM : longest;
        if (longest == last)
            continue;
        last = longest;
        plan_slice_grid_restore(search->grid, all);
        plan_slice_grid_solve(search->grid, cap);
        plan_slice_grid_solve_before(search->grid, cap);
        narrow(search, search->others == 0 ? 0 : longest, cap);
        g_autoptr(PlanSliceResult) answer =
            plan_slice_grid_answer(search->grid, cap, search->costs->granularity);
        if (best == NULL || plan_slice_result_compare(answer, best) < 0) {
            plan_slice_result_free(best);
            best = g_steal_pointer(&answer);
        }
    }
    g_assert(best != NULL);
    best->latency = best->lower_bound = search->best;
    best->n_rounds = 1;
    best->n_solves = search->n_solves;
    return g_steal_pointer(&best);
}

/* --- the public face --- */

/* Whether any cut of any batch has only finite costs: why there is no answer. */
static bool
has_finite_answer(const PlanSliceCosts *costs, int64_t n_groups)
{
    const int64_t n = costs->n_cells, side = n + 1;
    g_autofree bool *reached = g_new(bool, (size_t)n + 1);
    g_autofree bool *covered = g_new0(bool, (size_t)costs->batch + 1);

    covered[0] = true;
    for (int64_t b = 1; b <= n_groups; b++) {
        for (int64_t c = 1; c <= n; c++)
            reached[c] = false;
        reached[0] = true;
        for (int64_t c = 0; c < n; c++)
            for (int64_t s = 1; reached[c] && s <= n - c; s++)
                if (costs->cost[(b * side + s) * side + c] != PLAN_SLICE_INFINITE)
                    reached[c + s] = true;
        for (int64_t x = b; reached[n] && x <= costs->batch; x++)
            covered[x] = covered[x] || covered[x - b];
    }
    return covered[costs->batch];
}

static void
set_no_answer(const PlanSliceCosts *costs, int64_t n_groups, GError **error)
{
    if (has_finite_answer(costs, n_groups))
        g_set_error(error, PLAN_SLICE_ERROR, PLAN_SLICE_ERROR_LIMIT,
                    "every slicing takes longer than " INT " units: use a coarser unit of time",
                    PLAN_SLICE_MAX_SUM);
    else
        g_set_error(error, PLAN_SLICE_ERROR, PLAN_SLICE_ERROR_INFEASIBLE,
                    "no slicing of " INT " sequences of " INT " tokens has only finite costs",
                    costs->batch, costs->n_cells * costs->granularity);
}

int64_t *
plan_slice_rests(const PlanSliceCosts *costs, int64_t max_group)
{
    const int64_t n = costs->n_cells, side = n + 1;
    const int64_t n_groups = plan_slice_largest_group(costs, max_group);
    int64_t *rests = g_new(int64_t, (size_t)((costs->batch + 1) * side));

    for (int64_t i = 0; i < (costs->batch + 1) * side; i++)
        rests[i] = PLAN_SLICE_NEVER;
    for (int64_t b = 1; b <= n_groups; b++) {
        int64_t *rest = rests + b * side;
        rest[n] = 0;
        for (int64_t c = n - 1; c >= 0; c--)
            for (int64_t s = 1; s <= n - c; s++) {
                const int64_t t = costs->cost[plan_slice_at(costs, b, s, c)];
                if (t <= PLAN_SLICE_MAX_SUM)
                    /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): set above. */
                    rest[c] = MIN(rest[c], t + rest[c + s]);
            }
    }
    return rests;
}

bool
plan_slice_check_sizes(const PlanSliceCosts *costs, GError **error)
{
    int64_t n_values;

    if (costs->n_cells < INT32_MAX && costs->batch < INT32_MAX &&
        !__builtin_mul_overflow(costs->n_cells + 1, costs->n_cells + 1, &n_values) &&
        !__builtin_mul_overflow(n_values, costs->batch + 1, &n_values) &&
        !__builtin_mul_overflow(costs->n_cells, costs->granularity, &n_values))
        return true;
    return plan_slice_refuse(error, LIMIT, "too many costs: " INT " sequences, " INT " cells",
                             costs->batch, costs->n_cells);
}

/*
 * Runs @search, whose costs, metric, others, n_groups and best (answers above it are of no interest)
 * are set.
 * @result  (out, owned) NULL: there is no answer.
 * Returns false with PLAN_SLICE_ERROR_LIMIT.
 */
static bool
run(Search *search, PlanSliceResult **result, GError **error)
{
    g_autoptr(GArray) longest = g_array_new(FALSE, FALSE, sizeof(int64_t));

    search->longest = longest;
    if (search->others > 0)
        try_uniform(search);
    g_autoptr(PlanSliceGrid) grid = plan_slice_grid_new(
        search->costs, search->metric, search->n_groups, cap_for(search, 0), error);
    if (grid == NULL)
        return false;
    search->grid = grid;
    g_autofree int64_t *all = plan_slice_grid_save(grid);
    descend(search);
    *result = longest->len == 0 ? NULL : choose(search, all);
    return true;
}

PlanSliceResult *
plan_slice_solve(const PlanSliceCosts *costs, int64_t n_stages, int64_t max_group, GError **error)
{
    g_autofree Search *search = g_new0(Search, 1);
    PlanSliceResult *result;

    g_return_val_if_fail(costs != NULL && costs->cost != NULL, NULL);
    g_return_val_if_fail(costs->batch >= 1 && costs->n_cells >= 1 && costs->granularity >= 1, NULL);
    g_return_val_if_fail(n_stages >= 1 && max_group >= 0, NULL);
    if (!plan_slice_check_sizes(costs, error))
        return NULL;
    search->costs = costs;
    search->others = n_stages - 1;
    search->n_groups = plan_slice_largest_group(costs, max_group);
    search->best = PLAN_SLICE_NEVER;
    if (!run(search, &result, error))
        return NULL;
    if (result == NULL)
        set_no_answer(costs, search->n_groups, error);
    return result;
}

/*
 * --- two maxima: relax, branch ---
 *
 * Since max u + max v >= max (u + v), the single-key program of slice.c with the key u + v bounds
 * every answer from below, and what it finds is an answer.  Where its true latency is above the
 * bound, the two maxima are of different slices, and the longest u of the answer found, m, divides
 * all answers: those of a longest u below m (cells from m on are left out), and those of at least m
 * (cells below count as m, so that the bound of what was found is now exact).  A branch whose bound
 * is above the best answer is done; so is one whose bound was reached.
 *
 * Times of forward and backward go up and down together, so the relaxed program is nearly exact and
 * a few branches are enough.
 */

/* Grids of unrelated directions and many ties could branch for ever. */
#define MAX_NODES 4096

typedef struct {
    int64_t low, high; /* of the first maximum */
    int64_t bound;     /* of what it is a part of */
} Node;

typedef struct {
    const PlanSliceCosts *costs;
    PlanSliceMetric metric;
    int64_t max_group;
    PlanSliceResult *best; /* (owned, nullable) */
    GArray *nodes;         /* of Node, the next one last */
    int64_t n_solves, n_nodes;
} Branching;

/* Sets the true maxima and latency of @result, whose bound is in its latency. */
static void
set_true(const Branching *search, PlanSliceResult *result)
{
    const PlanSliceMetric *metric = &search->metric;
    int64_t max[2] = {0, 0};

    for (guint i = 0; i < result->groups->len; i++)
        for (PlanSliceStep step = {0};
             plan_slice_next(search->costs, result->groups->pdata[i], &step);) {
            const int64_t delay = metric->delay == NULL ? 0 : metric->delay[step.row];
            for (int r = 0; r < 2 && metric->key[r] != NULL; r++)
                max[r] = MAX(max[r], metric->key[r][step.at] + delay);
        }
    result->latency += metric->weight[0] * max[0] + metric->weight[1] * max[1] - result->max_slice;
    result->max_slice = max[0];
    result->max_backward = max[1];
}

/* Solves @node: keeps what is better, adds what is left of it.  The keys have the weights in them:
 * the relaxed latency is the sum and the largest key. */
static bool
branch(Branching *search, Node node, GError **error)
{
    g_autofree Search *relaxed = g_new0(Search, 1);
    g_autoptr(PlanSliceResult) result = NULL;

    search->metric.low[0] = node.low;
    search->metric.high[0] = node.high;
    relaxed->costs = search->costs;
    relaxed->metric = &search->metric;
    relaxed->others = 1;
    relaxed->n_groups = plan_slice_largest_group(search->costs, search->max_group);
    relaxed->best = search->best == NULL ? PLAN_SLICE_MAX_SUM : search->best->latency;
    if (!run(relaxed, &result, error))
        return false;
    if (result == NULL)
        return true;
    search->n_solves += result->n_solves;
    const int64_t bound = result->latency;
    set_true(search, result);
    const int64_t value = result->latency, longest = result->max_slice;
    if (search->best == NULL || value < search->best->latency ||
        (value == search->best->latency && plan_slice_result_compare(result, search->best) < 0)) {
        plan_slice_result_free(search->best);
        search->best = g_steal_pointer(&result);
    }
    if (value > bound) {
        const Node below = {node.low, longest - 1, bound}, above = {longest, node.high, bound};
        g_array_append_val(search->nodes, below);
        g_array_append_val(search->nodes, above);
    }
    return true;
}

bool
plan_slice_solve_apart(const PlanSliceCosts *costs, const PlanSliceMetric *metric,
                       int64_t max_group, PlanSliceResult **result, GError **error)
{
    g_autoptr(GArray) nodes = g_array_new(FALSE, FALSE, sizeof(Node));
    Branching search = {.costs = costs, .metric = *metric, .max_group = max_group, .nodes = nodes};
    const Node all = {metric->low[0], metric->high[0], 0};

    g_array_append_val(nodes, all);
    for (; nodes->len > 0 && search.n_nodes < MAX_NODES; search.n_nodes++) {
        const Node node = g_array_index(nodes, Node, nodes->len - 1);
        g_array_set_size(nodes, nodes->len - 1);
        if (!branch(&search, node, error)) {
            plan_slice_result_free(search.best);
            return false;
        }
    }
    *result = search.best;
    if (search.best == NULL)
        return true;
    search.best->lower_bound = search.best->latency;
    for (guint i = 0; i < nodes->len; i++)
        search.best->lower_bound =
            MIN(search.best->lower_bound, g_array_index(nodes, Node, i).bound);
    search.best->n_solves = search.n_solves;
    return true;
}
