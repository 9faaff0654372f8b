#include "planner/slices/coarse.h"

#include <stdlib.h>

#include "base/order.h"
#include "planner/bounds/flow.h"
#include "planner/bounds/plan_bound.h"
#include "planner/slices/answer.h"

/* The finest grid. */
#define MAX_CELLS 8
/* So many of least bound are kept at the least, where there are as many. */
#define MAX_KEPT 16384

/* Prices of each part: as in plans of few slices and micro-batches together, which say the least of
 * adding up gradients; of at least 6; of at least 12. */
#define N_SETS 3
static const int64_t set_units[N_SETS] = {2, 6, 12};

/* What (length, context) of one size of micro-batch takes on all stages. */
typedef struct {
    const Workload *workload; /* (borrowed) */
    int32_t slice;            /* there */
} Cell;

struct PlanCoarseGrid {
    const PlanRequest *request; /* (borrowed) */
    Plan *plan;                 /* (owned) */
    bool regroups;
    int64_t n_cells, sequences, least_group, max_group;
    Plan *probe;            /* (owned) what is priced */
    GPtrArray *workloads;   /* (owned) of (owned) Workload * */
    Cell *cells;            /* (owned) [set][b][length][context], each to MAX_CELLS */
    bool has_set[N_SETS];   /* that are priced */
    const WorkloadOp **ops; /* (owned) room for a shop of each size */
    PlanFlowTimes *times;   /* (owned) [b] of the slices looked at */
    int64_t *cover_ns;      /* (owned) [x] the least work of x sequences */
    int64_t least_drain_ns, end_ns, limit_ns;
    GArray *found;      /* (owned) of PlanCoarse */
    GHashTable *priced; /* (owned) of gint64 -> (borrowed) Workload *; looked up only */
};

/* The most parts, 0 if there is no cut. */
static int64_t
choose_cells(const Plan *plan)
{
    const int64_t granularity = plan_granularity(&plan->degrees, plan->sequence_parallel);

    for (int64_t n = MAX_CELLS; n > 1; n--)
        if (plan->seq_len % (n * granularity) == 0)
            return n;
    return 0;
}

static int32_t
n_slices_of(uint32_t cuts)
{
    return __builtin_popcount(cuts) + 1;
}

/* Appends the tokens of @cuts. */
static void
add_slices(const PlanCoarseGrid *grid, uint32_t cuts, GArray *slices)
{
    for (int64_t c = 0, begin = 0; c < grid->n_cells; c++) {
        const int64_t tokens = (c + 1 - begin) * (grid->plan->seq_len / grid->n_cells);
        if (c + 1 < grid->n_cells && !(cuts >> c & 1))
            continue;
        g_array_append_val(slices, tokens);
        begin = c + 1;
    }
}

/* --- prices --- */

static Cell *
cell_at(const PlanCoarseGrid *grid, int set, int64_t b, int64_t length, int64_t context)
{
    const int64_t at = (int64_t)set * (grid->max_group + 1) + b;

    return &grid->cells[(at * (MAX_CELLS + 1) + length) * (MAX_CELLS + 1) + context];
}

/* (borrowed, nullable) @n micro-batches of @b sequences, cut as @cuts. */
static const Workload *
price(PlanCoarseGrid *grid, int64_t n, int64_t b, uint32_t cuts)
{
    Plan *probe = grid->probe;

    probe->n_micro_batches = n;
    probe->micro_batch = b;
    probe->global_batch = n * b * probe->degrees.dp;
    g_array_set_size(probe->slices, 0);
    add_slices(grid, cuts, probe->slices);
    Workload *workload = workload_new(grid->request->arch, grid->request->profile, probe, 0, NULL);
    if (workload != NULL)
        g_ptr_array_add(grid->workloads, workload);
    return workload;
}

/* All cells but whole sequences in @set, unless they are.  False: some cannot be priced. */
static bool
price_set(PlanCoarseGrid *grid, int set)
{
    const int64_t n = grid->n_cells, n_in_flight = set_units[set];

    if (grid->has_set[set])
        return true;
    for (int64_t b = grid->least_group; b <= grid->max_group; b++)
        for (int64_t first = 1; first < n; first++) {
            const uint32_t cut = 1u << (first - 1);
            const Workload *two = price(grid, MAX(1, n_in_flight / 2), b, cut);
            if (two == NULL)
                return false;
            *cell_at(grid, set, b, first, 0) = (Cell){two, 0};
            *cell_at(grid, set, b, n - first, first) = (Cell){two, 1};
            for (int64_t second = first + 1; second < n; second++) {
                const Workload *three =
                    price(grid, MAX(1, n_in_flight / 3), b, cut | 1u << (second - 1));
                if (three == NULL)
                    return false;
                *cell_at(grid, set, b, second - first, first) = (Cell){three, 1};
            }
        }
    grid->end_ns = plan_bound_end_ns(grid->probe, grid->workloads->pdata[0]);
    grid->has_set[set] = true;
    return true;
}

/* --- bounds --- */

/* A micro-batch of @b sequences in the slices of @cuts, as priced in @set, in @ops. */
static PlanFlowShop
shop_of(const PlanCoarseGrid *grid, int set, int64_t b, uint32_t cuts, const WorkloadOp **ops)
{
    const Workload *any = grid->workloads->pdata[0];
    const int32_t n_slices = n_slices_of(cuts);
    int32_t slice = 0;

    for (int64_t c = 0, begin = 0; c < grid->n_cells; c++) {
        if (c + 1 < grid->n_cells && !(cuts >> c & 1))
            continue;
        const Cell *cell = cell_at(grid, set, b, c + 1 - begin, begin);
        for (int32_t stage = 0; stage < any->n_stages; stage++)
            ops[stage * n_slices + slice] = workload_op(cell->workload, 0, stage, 0, cell->slice);
        begin = c + 1;
        slice++;
    }
    return (PlanFlowShop){any, n_slices, ops};
}

static int
compare_found(const void *a, const void *b)
{
    const PlanCoarse *x = a, *y = b;
    const int32_t x_slices = n_slices_of(x->cuts), y_slices = n_slices_of(y->cuts);

    ORDER_BY(x->bound_ns, y->bound_ns);
    ORDER_BY(x_slices, y_slices);
    ORDER_BY(x->cuts, y->cuts);
    return ORDER(x->breaks, y->breaks);
}

static void
sort_found(GArray *found)
{
    if (found->len > 1)
        qsort(found->data, found->len, sizeof(PlanCoarse), compare_found);
}

static void
add_found(PlanCoarseGrid *grid, PlanCoarse one)
{
    if (one.bound_ns >= grid->limit_ns)
        return;
    g_array_append_val(grid->found, one);
    if (grid->found->len < 2 * MAX_KEPT)
        return;
    sort_found(grid->found);
    g_array_set_size(grid->found, MAX_KEPT);
    grid->limit_ns = g_array_index(grid->found, PlanCoarse, MAX_KEPT - 1).bound_ns;
}

/* Adds all orders that begin with the micro-batches of @one, which take @one.bound_ns of @done
 * sequences. */
static void
walk_groups(PlanCoarseGrid *grid, PlanCoarse one, int64_t done)
{
    const int64_t left = grid->sequences - done;

    for (int64_t b = 1; b <= MIN(left, grid->max_group); b++) {
        const PlanFlowTimes *times = &grid->times[b];
        PlanCoarse next = one;
        next.bound_ns = plan_sum_ns(next.bound_ns, times->work_ns);
        if (done == 0)
            next.bound_ns = plan_sum_ns(next.bound_ns, times->fill_ns);
        if (b == left) {
            next.bound_ns = plan_sum_ns(next.bound_ns, times->drain_ns);
            add_found(grid, next);
            continue;
        }
        next.breaks |= 1u << (done + b - 1);
        if (plan_sum_ns(next.bound_ns, plan_sum_ns(grid->cover_ns[left - b],
                                                   grid->least_drain_ns)) < grid->limit_ns)
            walk_groups(grid, next, done + b);
    }
}

static void
set_cover(PlanCoarseGrid *grid)
{
    grid->least_drain_ns = INT64_MAX;
    for (int64_t b = 1; b <= grid->max_group; b++)
        grid->least_drain_ns = MIN(grid->least_drain_ns, grid->times[b].drain_ns);
    grid->cover_ns[0] = 0;
    for (int64_t x = 1; x <= grid->sequences; x++) {
        grid->cover_ns[x] = INT64_MAX;
        for (int64_t b = 1; b <= MIN(x, grid->max_group); b++)
            grid->cover_ns[x] =
                MIN(grid->cover_ns[x], plan_sum_ns(grid->times[b].work_ns, grid->cover_ns[x - b]));
    }
}

/* Adds what is cut as @cuts. */
static void
add_cuts(PlanCoarseGrid *grid, uint32_t cuts)
{
    PlanCoarse one = {.bound_ns = grid->end_ns, .cuts = cuts};

    for (int64_t b = grid->least_group; b <= grid->max_group; b++) {
        const PlanFlowShop shop = shop_of(grid, 0, b, cuts, grid->ops);
        grid->times[b] = plan_flow_times(&shop);
    }
    if (grid->regroups) {
        set_cover(grid);
        walk_groups(grid, one, 0);
        return;
    }
    const PlanFlowTimes *times = &grid->times[grid->max_group];
    const int64_t work_ns = plan_product_ns(grid->plan->n_micro_batches, times->work_ns);
    one.bound_ns = plan_sum_ns(plan_sum_ns(one.bound_ns, work_ns),
                               plan_sum_ns(times->fill_ns, times->drain_ns));
    add_found(grid, one);
}

/* --- one of them --- */

/* (borrowed, nullable) the Workload of @n micro-batches of @b sequences cut as @cuts. */
static const Workload *
priced(PlanCoarseGrid *grid, int64_t n, int64_t b, uint32_t cuts)
{
    /* Without regrouping there is one b and one n. */
    const int64_t shape = grid->regroups ? n * (PLAN_POINT_MAX_REGROUPED + 1) + b : 0;
    const gint64 key = shape << MAX_CELLS | cuts;
    const Workload *known = g_hash_table_lookup(grid->priced, &key);

    if (known == NULL) {
        known = price(grid, n, b, cuts);
        g_hash_table_insert(grid->priced, g_memdup2(&key, sizeof key), (gpointer)known);
    }
    return known;
}

/* Sequences of each micro-batch of @one, in @sizes; how many. */
static int64_t
sizes_of(const PlanCoarseGrid *grid, const PlanCoarse *one, int64_t *sizes)
{
    int64_t n = 0, first = 0;

    for (int64_t x = 0; x < grid->sequences; x++)
        if (x + 1 == grid->sequences || (one->breaks >> x & 1)) {
            sizes[n++] = x + 1 - first;
            first = x + 1;
        }
    return n;
}

/* The bound of @one with all of both shops where @forwards_first, at the prices of @set, or -1: at
 * its own. */
static int64_t
bound_of(PlanCoarseGrid *grid, const PlanCoarse *one, int set, bool forwards_first)
{
    const size_t n_ops = grid->plan->stages->len * MAX_CELLS;
    int64_t sizes[PLAN_POINT_MAX_REGROUPED] = {grid->max_group};
    int32_t classes[PLAN_POINT_MAX_REGROUPED];
    PlanFlowShop shops[PLAN_POINT_MAX_REGROUPED];
    PlanFlow flow = {shops, 0, NULL, grid->plan->n_micro_batches, forwards_first};

    if (grid->regroups) {
        flow.n_micro_batches = sizes_of(grid, one, sizes);
        flow.classes = classes;
    }
    for (int64_t i = 0; i < (grid->regroups ? flow.n_micro_batches : 1); i++) {
        const WorkloadOp **ops = grid->ops + (size_t)flow.n_classes * n_ops;
        int64_t k = 0;
        while (sizes[k] != sizes[i])
            k++;
        classes[i] = k < i ? classes[k] : flow.n_classes;
        if (k < i)
            continue;
        if (set >= 0) {
            shops[flow.n_classes++] = shop_of(grid, set, sizes[i], one->cuts, ops);
            continue;
        }
        const Workload *workload = priced(grid, flow.n_micro_batches, sizes[i], one->cuts);
        if (workload == NULL)
            return one->bound_ns;
        shops[flow.n_classes++] = plan_flow_shop(workload, 0, ops);
    }
    const int64_t flow_ns = plan_sum_ns(grid->end_ns, plan_flow_bound_ns(&flow));
    return MAX(one->bound_ns, flow_ns);
}

int64_t
plan_coarse_grid_bound_ns(PlanCoarseGrid *grid, const PlanCoarse *one, bool forwards_first)
{
    return bound_of(grid, one, -1, forwards_first);
}

/* The set of most units that @one has at least. */
static int
set_of(const PlanCoarseGrid *grid, const PlanCoarse *one)
{
    const int64_t m =
        grid->regroups ? __builtin_popcount(one->breaks) + 1 : grid->plan->n_micro_batches;
    int set = N_SETS - 1;

    while (set > 0 && m * n_slices_of(one->cuts) < set_units[set])
        set--;
    return set;
}

/* Prices the sets that are of more use than prices of single ones: where these are many. */
static void
price_sets(PlanCoarseGrid *grid, int64_t limit_ns)
{
    const int64_t n_prices =
        grid->n_cells * (grid->n_cells - 1) / 2 * (grid->max_group - grid->least_group + 1);
    int64_t n[N_SETS] = {0};

    for (guint i = 0; i < grid->found->len; i++) {
        const PlanCoarse *one = &g_array_index(grid->found, PlanCoarse, i);
        if (one->bound_ns < limit_ns && ++n[set_of(grid, one)] == n_prices)
            price_set(grid, set_of(grid, one));
    }
}

GArray *
plan_coarse_grid_all(PlanCoarseGrid *grid, bool forwards_first, int64_t limit_ns)
{
    GArray *all = g_array_new(FALSE, FALSE, sizeof(PlanCoarse));

    price_sets(grid, limit_ns);
    for (guint i = 0; i < grid->found->len; i++) {
        PlanCoarse one = g_array_index(grid->found, PlanCoarse, i);
        int set = set_of(grid, &one);
        if (one.bound_ns >= limit_ns)
            break;
        while (!grid->has_set[set])
            set--;
        one.bound_ns = bound_of(grid, &one, set, forwards_first);
        if (one.bound_ns < limit_ns)
            g_array_append_val(all, one);
    }
    sort_found(all);
    return all;
}

GPtrArray *
plan_coarse_grid_groups(const PlanCoarseGrid *grid, const PlanCoarse *one)
{
    GPtrArray *groups = g_ptr_array_new_with_free_func(plan_slice_group_free);
    int64_t sizes[PLAN_POINT_MAX_REGROUPED] = {0};
    const int64_t n = grid->regroups ? sizes_of(grid, one, sizes) : grid->plan->n_micro_batches;

    for (int64_t i = 0; i < n; i++) {
        PlanSliceGroup *group = plan_slice_group_new(grid->regroups ? sizes[i] : grid->max_group);
        add_slices(grid, one->cuts, group->slices);
        g_ptr_array_add(groups, group);
    }
    return groups;
}

/* --- the whole grid --- */

PlanCoarseGrid *
plan_coarse_grid_new(const PlanCoarseAsked *asked)
{
    const Plan *plan = asked->plan;
    PlanCoarseGrid *grid = g_new(PlanCoarseGrid, 1);

    *grid = (PlanCoarseGrid){
        .request = asked->request,
        .plan = plan_copy(plan),
        .regroups = asked->regroups,
        .n_cells = choose_cells(plan),
        .sequences = plan->n_micro_batches * plan->micro_batch,
        .least_group = asked->regroups ? 1 : plan->micro_batch,
        .max_group = plan->micro_batch,
        .probe = plan_copy(plan),
        .workloads = g_ptr_array_new_with_free_func((GDestroyNotify)workload_free),
        .limit_ns = asked->limit_ns,
        .found = g_array_new(FALSE, FALSE, sizeof(PlanCoarse)),
        .priced = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL),
    };
    g_return_val_if_fail(!grid->regroups || grid->sequences <= PLAN_POINT_MAX_REGROUPED, grid);
    g_clear_pointer(&grid->probe->micro_batch_sequences, g_array_unref);
    const size_t n_groups = (size_t)grid->max_group + 1;
    grid->cells = g_new0(Cell, N_SETS * n_groups * (MAX_CELLS + 1) * (MAX_CELLS + 1));
    grid->ops = g_new(const WorkloadOp *, n_groups * plan->stages->len * MAX_CELLS);
    grid->times = g_new0(PlanFlowTimes, n_groups);
    grid->cover_ns = g_new0(int64_t, (size_t)grid->sequences + 1);
    if (grid->n_cells == 0 || !price_set(grid, 0))
        return grid;
    for (uint32_t cuts = 1; cuts < 1u << (grid->n_cells - 1); cuts++)
        add_cuts(grid, cuts);
    sort_found(grid->found);
    return grid;
}

void
plan_coarse_grid_free(PlanCoarseGrid *grid)
{
    if (grid == NULL)
        return;
    plan_free(grid->plan);
    plan_free(grid->probe);
    g_ptr_array_unref(grid->workloads);
    g_free(grid->cells);
    g_free(grid->ops);
    g_free(grid->times);
    g_free(grid->cover_ns);
    g_array_unref(grid->found);
    g_hash_table_unref(grid->priced);
    g_free(grid);
}

bool
plan_coarse_grid_is_of(const PlanCoarseGrid *grid, const Plan *plan)
{
    const GArray *stages = grid->plan->stages;

    if (grid->plan->conventions.overlap_pp != plan->conventions.overlap_pp ||
        stages->len != plan->stages->len)
        return false;
    for (guint k = 0; k < stages->len; k++) {
        const PlanStage *a = &g_array_index(stages, PlanStage, k);
        const PlanStage *b = &g_array_index(plan->stages, PlanStage, k);
        if (a->n_layers != b->n_layers || a->first_layer != b->first_layer ||
            a->recompute != b->recompute || a->rank != b->rank)
            return false;
    }
    return true;
}
