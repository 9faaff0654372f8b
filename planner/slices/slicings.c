#include "planner/slices/slicings.h"

#include <stdlib.h>
#include <string.h>

#include "base/order.h"
#include "planner/bounds/flow.h"
#include "planner/slices/slice.h"

/* The finest grid; more cells find less than the cost model knows. */
#define MAX_CELLS 128
#define N_CONTEXTS 5
/* With more micro-batches the longest slice has no weight left. */
#define MAX_MICRO_BATCHES 4096

/* --- the grid --- */

/* The finest granularity of at most MAX_CELLS cells; 0: there is none but the whole. */
static int64_t
choose_granularity(const Plan *plan)
{
    const int64_t multiple_tokens = plan_granularity(&plan->degrees, plan->sequence_parallel),
                  cells = plan->seq_len / multiple_tokens;

    if (plan->seq_len % multiple_tokens != 0)
        return 0;
    for (int64_t n = MIN(MAX_CELLS, cells); n > 1; n--)
        if (cells % n == 0)
            return cells / n * multiple_tokens;
    return 0;
}

/* --- probes --- */

/* The stage whose ops take longest, of chain 0. */
static int32_t
longest_stage(const Workload *w)
{
    int64_t longest = -1;
    int32_t at = 0;

    for (int32_t k = 0; k < w->n_stages; k++) {
        const WorkloadOp *op = workload_op(w, 0, k, 0, 0);
        const int64_t ns = op->time_ns[SCHEDULE_OP_FORWARD] + op->time_ns[SCHEDULE_OP_BACKWARD];
        if (ns > longest) {
            longest = ns;
            at = k;
        }
    }
    return at;
}

/* (owned) a plan of at most three stages with a stage like @plan's @stage; *@at: which. */
static Plan *
probe_plan(const PlanRequest *request, const Plan *plan, int32_t stage, int32_t *at)
{
    const int32_t n_stages = (int32_t)plan->stages->len;
    const PlanStage *like = &g_array_index(plan->stages, PlanStage, stage);
    Plan *probe = plan_copy(plan);
    int64_t counts[3] = {0}, left = model_n_stacked(request->arch) - like->n_layers;
    /* No more ranks than the plan has: its cluster may hold no more.  With two, an inner chunk is
     * probed with the head beside it, which only makes candidates a little worse. */
    const int32_t n = MIN(n_stages, (int32_t)MIN(plan->degrees.pp, 3));

    *at = stage == 0 ? 0 : stage == n_stages - 1 ? n - 1 : MIN(1, n - 1);
    counts[*at] = n == 1 ? model_n_stacked(request->arch) : like->n_layers;
    /* An inner stage of the same layers, whatever kinds they are of. */
    if (n == 3 && *at == 1 && like->first_layer > 0 && left > like->first_layer) {
        counts[0] = like->first_layer;
        counts[2] = left - like->first_layer;
        left = 0;
    }
    for (int32_t k = 0, others = n - 1; k < n && left > 0; k++)
        if (k != *at) {
            counts[k] = left / others;
            left -= left / others;
            others--;
        }
    probe->degrees.pp = n;
    probe->degrees.vpp = 1;
    g_free(probe->schedule);
    probe->schedule = g_strdup(schedule_family_usual(1, true)->name);
    probe->group = 0;
    plan_set_even_stages(probe, model_n_stacked(request->arch), request->arch->vocab > 0,
                         SCHEDULE_PLACEMENT_LOOP, like->recompute);
    for (int32_t k = 0, first = 0; k < n; k++) {
        PlanStage *s = &g_array_index(probe->stages, PlanStage, k);
        s->first_layer = first;
        s->n_layers = counts[k];
        first += (int32_t)counts[k];
    }
    return probe;
}

/* How long the rank of @stage is busy with one slice, both passes. */
static int64_t
slice_ns(const Workload *w, int32_t stage, int32_t slice)
{
    g_autofree const WorkloadOp **ops =
        g_new(const WorkloadOp *, (size_t)(w->n_stages * w->n_slices));
    const PlanFlowShop shop = plan_flow_shop(w, 0, ops);

    return plan_flow_busy_ns(&shop, stage, slice);
}

typedef struct {
    int64_t context; /* in cells */
    int64_t ns;
} Sample;

/* Prices slices of @s of @n cells at up to N_CONTEXTS contexts; returns how many, 0 on an error. */
static int
sample(const PlanRequest *request, Plan *probe, int32_t stage, int64_t granularity, int64_t n,
       int64_t s, Sample samples[N_CONTEXTS], GError **error)
{
    int32_t index_of[N_CONTEXTS];
    int n_samples = 0;
    int64_t at = 0;

    g_array_set_size(probe->slices, 0);
    for (int k = 0; k < N_CONTEXTS; k++) {
        const int64_t context = (n - s) * k / (N_CONTEXTS - 1);
        /* A slice of another length fills the gap; samples do not overlap. */
        if (context < at && k < N_CONTEXTS - 1)
            continue;
        if (context < at)
            break;
        const int64_t gap = (context - at) * granularity, length = s * granularity;
        if (gap > 0)
            g_array_append_val(probe->slices, gap);
        index_of[n_samples] = (int32_t)probe->slices->len;
        g_array_append_val(probe->slices, length);
        samples[n_samples++].context = context;
        at = context + s;
    }
    const int64_t rest = (n - at) * granularity;
    if (rest > 0)
        g_array_append_val(probe->slices, rest);
    g_autoptr(Workload) w = workload_new(request->arch, request->profile, probe, 0, error);
    if (w == NULL)
        return 0;
    for (int k = 0; k < n_samples; k++)
        samples[k].ns = slice_ns(w, stage, index_of[k]);
    return n_samples;
}

/* The last sample of a long slice may be missing: its context overlaps the one before.  Then its
 * own plan is made of the gap and the slice. */
static int
sample_last(const PlanRequest *request, Plan *probe, int32_t stage, int64_t granularity, int64_t n,
            int64_t s, Sample *last, GError **error)
{
    const int64_t gap = (n - s) * granularity, length = s * granularity;

    g_array_set_size(probe->slices, 0);
    g_array_append_val(probe->slices, gap);
    g_array_append_val(probe->slices, length);
    g_autoptr(Workload) w = workload_new(request->arch, request->profile, probe, 0, error);
    if (w == NULL)
        return 0;
    *last = (Sample){n - s, slice_ns(w, stage, 1)};
    return 1;
}

/* Fills row s of the grid by straight lines between the samples, which begin at context 0 and end
 * at n - s. */
static void
fill_row(int64_t *row, const Sample *samples, int n_samples, int64_t last_context)
{
    int k = 0;

    for (int64_t c = 0; c <= last_context; c++) {
        while (k + 1 < n_samples && samples[k + 1].context <= c)
            k++;
        row[c] = samples[k].ns;
        if (k + 1 < n_samples) {
            const Sample *a = &samples[k], *b = &samples[k + 1];
            const double slope = (double)(b->ns - a->ns) / (double)(b->context - a->context);
            row[c] += (int64_t)(slope * (double)(c - a->context));
        }
    }
}

/* (owned) the grid of slice.h for groups of one micro-batch each. */
static int64_t *
build_grid(const PlanRequest *request, const Plan *plan, const Workload *workload,
           int64_t granularity, GError **error)
{
    const int64_t n = plan->seq_len / granularity, side = n + 1;
    int32_t at;
    g_autoptr(Plan) probe = probe_plan(request, plan, longest_stage(workload), &at);
    g_autofree int64_t *cost = g_new(int64_t, (size_t)(2 * side * side));

    for (int64_t i = 0; i < 2 * side * side; i++)
        cost[i] = PLAN_SLICE_INFINITE;
    for (int64_t s = 1; s <= n; s++) {
        Sample samples[N_CONTEXTS + 1];
        int n_samples = sample(request, probe, at, granularity, n, s, samples, error);
        if (n_samples == 0)
            return NULL;
        if (samples[n_samples - 1].context < n - s) {
            if (sample_last(request, probe, at, granularity, n, s, &samples[n_samples], error) == 0)
                return NULL;
            n_samples++;
        }
        fill_row(&cost[(side + s) * side], samples, n_samples, n - s);
    }
    return g_steal_pointer(&cost);
}

/* --- candidates --- */

/* A slicing of the plan, and what the formula says of it. */
typedef struct {
    GArray *slices; /* (owned) of int64_t tokens */
    int64_t ns;
    guint index; /* in the order found: of equals the first one wins */
} Slicing;

static void
slicing_clear(void *data)
{
    g_array_unref(((Slicing *)data)->slices);
}

/* The formula's time of @slices; INT64_MAX if they do not lie on the grid. */
static int64_t
formula_ns(const PlanSliceCosts *costs, const Plan *plan, GArray *slices)
{
    const PlanSliceGroup group = {.batch = 1, .slices = slices};
    int64_t sum = 0, longest = 0;

    for (guint i = 0; i < slices->len; i++)
        if (g_array_index(slices, int64_t, i) % costs->granularity != 0)
            return INT64_MAX;
    for (PlanSliceStep step = {0}; plan_slice_next(costs, &group, &step);) {
        sum += costs->cost[step.at];
        longest = MAX(longest, costs->cost[step.at]);
    }
    return sum * plan->n_micro_batches * plan->degrees.vpp + (plan->degrees.pp - 1) * longest;
}

/* Adds a copy of @slices, unless they are there: solves for more stages, and equal slices, often
 * repeat the best. */
static void
add_slicing(GArray *all, const GArray *slices, int64_t ns)
{
    for (guint i = 0; i < all->len; i++) {
        const GArray *known = g_array_index(all, Slicing, i).slices;
        if (known->len == slices->len &&
            memcmp(known->data, slices->data, slices->len * sizeof(int64_t)) == 0)
            return;
    }
    const Slicing slicing = {g_array_copy((GArray *)slices), ns, all->len};
    g_array_append_val(all, slicing);
}

static int
compare_slicings(const void *a, const void *b)
{
    const Slicing *x = a, *y = b;

    ORDER_BY(x->ns, y->ns);
    ORDER_BY(x->slices->len, y->slices->len);
    return ORDER(x->index, y->index);
}

/* The proven best for @n_stages; the formula's value is for the plan's own. */
static bool
add_best(GArray *all, const PlanSliceCosts *costs, const Plan *plan, int64_t n_stages,
         GError **error)
{
    g_autoptr(PlanSliceResult) result = plan_slice_solve(costs, n_stages, 1, error);

    if (result == NULL)
        return false;
    GArray *slices = ((PlanSliceGroup *)result->groups->pdata[0])->slices;
    add_slicing(all, slices, formula_ns(costs, plan, slices));
    return true;
}

/* Adds all equal slices within a tenth of the best that is there. */
static void
add_equal(GArray *all, const PlanSliceCosts *costs, const Plan *plan)
{
    const int64_t best = g_array_index(all, Slicing, 0).ns;
    g_autoptr(GArray) equal = g_array_new(FALSE, FALSE, sizeof(int64_t));

    for (int64_t n = 2; n <= costs->n_cells; n++) {
        if (!plan_uniform_slices(
                plan->seq_len, plan_granularity(&plan->degrees, plan->sequence_parallel), n, equal))
            continue;
        const int64_t ns = formula_ns(costs, plan, equal);
        if (ns <= best + best / 10)
            add_slicing(all, equal, ns);
    }
}

GPtrArray *
plan_slicings_new(const PlanRequest *request, const Plan *plan, int64_t *granularity,
                  GError **error)
{
    g_autoptr(GPtrArray) slicings = g_ptr_array_new_with_free_func((GDestroyNotify)g_array_unref);
    g_autoptr(GArray) all = g_array_new(FALSE, FALSE, sizeof(Slicing));
    const int64_t cell = choose_granularity(plan);

    g_array_set_clear_func(all, slicing_clear);
    if (granularity != NULL)
        *granularity = cell;
    if (cell == 0)
        return g_steal_pointer(&slicings);
    g_autoptr(Workload) workload =
        workload_new(request->arch, request->profile, plan, request->memory_limit_bytes, error);
    if (workload == NULL)
        return NULL;
    g_autofree int64_t *cost = build_grid(request, plan, workload, cell, error);
    if (cost == NULL)
        return NULL;
    /* Groups of one micro-batch: blocks beyond the first are not read. */
    const PlanSliceCosts costs = {
        .batch = MIN(plan->n_micro_batches * plan->degrees.vpp, MAX_MICRO_BATCHES),
        .n_cells = plan->seq_len / cell,
        .granularity = cell,
        .cost = cost,
    };
    for (int64_t k = 1; k <= 4; k *= 2)
        if (!add_best(all, &costs, plan, k * plan->degrees.pp, error))
            return NULL;
    add_equal(all, &costs, plan);
    qsort(all->data, all->len, sizeof(Slicing), compare_slicings);
    for (guint i = 0; i < all->len; i++)
        g_ptr_array_add(slicings, g_array_ref(g_array_index(all, Slicing, i).slices));
    return g_steal_pointer(&slicings);
}
