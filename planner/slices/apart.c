/*
 * Two maxima: relax, branch.
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
#include "planner/slices/apart.h"

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
} Search;

/* Sets the true maxima and latency of @result, whose bound is in its latency. */
static void
set_true(const Search *search, PlanSliceResult *result)
{
    const PlanSliceMetric *metric = &search->metric;
    const int64_t n = search->costs->n_cells, side = n + 1;
    int64_t max[2] = {0, 0};

    for (guint i = 0; i < result->groups->len; i++) {
        const PlanSliceGroup *group = result->groups->pdata[i];
        for (int64_t k = 0, c = 0; k < group->slices->len; k++) {
            const int64_t s = g_array_index(group->slices, int64_t, k) / search->costs->granularity;
            const int64_t at = (group->batch * side + s) * side + c;
            const int64_t delay =
                metric->delay == NULL ? 0 : metric->delay[group->batch * side + s];
            for (int r = 0; r < 2 && metric->key[r] != NULL; r++)
                max[r] = MAX(max[r], metric->key[r][at] + delay);
            c += s;
        }
    }
    result->latency += metric->weight[0] * max[0] + metric->weight[1] * max[1] - result->max_slice;
    result->max_slice = max[0];
    result->max_backward = max[1];
}

/* Solves @node: keeps what is better, adds what is left of it. */
static bool
branch(Search *search, Node node, GError **error)
{
    const int64_t most = search->best == NULL ? PLAN_SLICE_MAX_SUM : search->best->latency;
    GError *no_memory = NULL;

    search->metric.low[0] = node.low;
    search->metric.high[0] = node.high;
    PlanSliceResult *result = plan_slice_solve_metric(search->costs, &search->metric,
                                                      search->max_group, most, &no_memory);
    if (no_memory != NULL) {
        g_propagate_error(error, no_memory);
        return false;
    }
    if (result == NULL)
        return true;
    search->n_solves += result->n_solves;
    const int64_t bound = result->latency;
    set_true(search, result);
    const int64_t value = result->latency, longest = result->max_slice;
    if (search->best == NULL || value < search->best->latency ||
        (value == search->best->latency && plan_slice_result_compare(result, search->best) < 0))
        plan_slice_result_free(g_steal_pointer(&search->best)), search->best = result;
    else
        plan_slice_result_free(result);
    if (value > bound) {
        const Node below = {node.low, longest - 1, bound}, above = {longest, node.high, bound};
        g_array_append_val(search->nodes, below);
        g_array_append_val(search->nodes, above);
    }
    return true;
}

PlanSliceResult *
plan_slice_solve_apart(const PlanSliceCosts *costs, const PlanSliceMetric *metric,
                       int64_t max_group, GError **error)
{
    g_autoptr(GArray) nodes = g_array_new(FALSE, FALSE, sizeof(Node));
    Search search = {.costs = costs, .metric = *metric, .max_group = max_group, .nodes = nodes};
    const Node all = {metric->low[0], metric->high[0], 0};

    g_array_append_val(nodes, all);
    for (; nodes->len > 0 && search.n_nodes < MAX_NODES; search.n_nodes++) {
        const Node node = g_array_index(nodes, Node, nodes->len - 1);
        g_array_set_size(nodes, nodes->len - 1);
        if (!branch(&search, node, error)) {
            plan_slice_result_free(search.best);
            return NULL;
        }
    }
    if (search.best == NULL)
        return NULL;
    search.best->lower_bound = search.best->latency;
    for (guint i = 0; i < nodes->len; i++)
        search.best->lower_bound =
            MIN(search.best->lower_bound, g_array_index(nodes, Node, i).bound);
    search.best->n_solves = search.n_solves;
    return search.best;
}
