#include "cli/explain/explain.h"

#include <math.h>
#include <string.h>

#include "base/order.h"
#include "base/units.h"
#include "cli/request/output.h"
#include "profiles/cost/mesh.h"
#include "schedule/rank_order.h"

const char *const explain_class_names[EXPLAIN_N_CLASSES + 1] = {
    "compute", "tp", "pp", "dp", "cp", "ep", "recompute", "optimizer", "bubble", NULL};

const char *const explain_dimension_names[EXPLAIN_N_DIMENSIONS + 1] = {
    "dp",          "tp",       "pp",     "vpp",       "cp",         "ep",
    "micro_batch", "schedule", "slices", "recompute", "zero_stage", "sequence_parallel",
    "rank_order",  NULL};

/* Micro-batches and slices are tried up to so many times what was chosen, since larger ones only
 * lose more; chunks up to so many.  A search with 8 or 16 slices takes minutes: each plan has that
 * many times the ops, and nothing but its simulation tells its time. */
#define MOST_TIMES 8
#define MOST_TIMES_SLICES 4
#define MOST_CHUNKS 8

static const char *const off_on[] = {"off", "on"};

/* Where a request has a dimension: a number, which is open when 0, or a choice, which is open when
 * PLAN_AUTO; and the names of choices.  The schedule and slices are not in one place. */
static const struct {
    size_t offset;
    bool is_choice;
    const char *const *names; /* (nullable) */
} places[EXPLAIN_N_DIMENSIONS] = {
    [EXPLAIN_DP] = {offsetof(PlanRequest, dp), false, NULL},
    [EXPLAIN_TP] = {offsetof(PlanRequest, tp), false, NULL},
    [EXPLAIN_PP] = {offsetof(PlanRequest, pp), false, NULL},
    [EXPLAIN_VPP] = {offsetof(PlanRequest, vpp), false, NULL},
    [EXPLAIN_CP] = {offsetof(PlanRequest, cp), false, NULL},
    [EXPLAIN_EP] = {offsetof(PlanRequest, ep), false, NULL},
    [EXPLAIN_MICRO_BATCH] = {offsetof(PlanRequest, micro_batch), false, NULL},
    [EXPLAIN_RECOMPUTE] = {offsetof(PlanRequest, recompute), true, plan_recompute_names},
    [EXPLAIN_ZERO] = {offsetof(PlanRequest, zero_stage), true, NULL},
    [EXPLAIN_SEQUENCE_PARALLEL] = {offsetof(PlanRequest, sequence_parallel), true, off_on},
    [EXPLAIN_RANK_ORDER] = {offsetof(PlanRequest, rank_order), true, plan_rank_order_names},
};

/* --- what a plan is like --- */

/* (owned) the number or the name that @n stands for; of schedules the index of a family. */
static char *
value_text(ExplainDimension dimension, int64_t n)
{
    const char *const *names = places[dimension].names;

    if (dimension == EXPLAIN_SCHEDULE)
        return g_strdup(schedule_families()[n]->name);
    return g_strdup(names != NULL ? names[n] : output_int64(n).text);
}

char *
explain_value(ExplainDimension dimension, const Plan *plan)
{
    const PlanDegrees *d = &plan->degrees;
    const int64_t numbers[EXPLAIN_N_DIMENSIONS] = {
        [EXPLAIN_DP] = d->dp,
        [EXPLAIN_TP] = d->tp,
        [EXPLAIN_PP] = d->pp,
        [EXPLAIN_VPP] = d->vpp,
        [EXPLAIN_CP] = d->cp,
        [EXPLAIN_EP] = d->ep,
        [EXPLAIN_MICRO_BATCH] = plan->micro_batch,
        [EXPLAIN_SLICES] = plan->slices->len,
        [EXPLAIN_ZERO] = plan->zero_stage,
        [EXPLAIN_SEQUENCE_PARALLEL] = plan->sequence_parallel,
        [EXPLAIN_RANK_ORDER] = d->rank_order,
    };

    if (dimension == EXPLAIN_SCHEDULE)
        return g_strdup(plan->schedule);
    if (dimension == EXPLAIN_RECOMPUTE) /* which may be mixed */
        return g_strdup(plan_recompute_name(plan));
    return value_text(dimension, numbers[dimension]);
}

/* What the objective counts of @plan, per token unless it is memory; less is better. */
static double
score(const Explanation *explanation, const Plan *plan)
{
    const Report *report = plan->predicted;
    const double tokens = (double)plan->global_batch * (double)plan->seq_len;

    switch (explanation->request->plan.objective) {
    case PLAN_OBJECTIVE_COST:
        if (isfinite(report->cost_per_iteration))
            return report->cost_per_iteration / tokens;
        break;
    case PLAN_OBJECTIVE_ENERGY:
        if (isfinite(report->energy_per_iteration_j))
            return report->energy_per_iteration_j / tokens;
        break;
    case PLAN_OBJECTIVE_MEMORY:
        return (double)report->peak_memory_bytes;
    default:
        break;
    }
    return units_s_from_ns(report->iteration_ns) / tokens;
}

double
explain_change(const Explanation *explanation, const Plan *plan)
{
    return score(explanation, plan) / score(explanation, explanation->plan) - 1;
}

void
explain_difference(const Plan *plan, const Plan *other, double class_s[EXPLAIN_N_CLASSES])
{
    double winner_s[EXPLAIN_N_CLASSES];

    /* The breakdown has the seconds of the classes in their order. */
    G_STATIC_ASSERT(sizeof plan->predicted->breakdown == sizeof winner_s);
    memcpy(class_s, &other->predicted->breakdown, sizeof winner_s);
    memcpy(winner_s, &plan->predicted->breakdown, sizeof winner_s);
    for (int i = 0; i < EXPLAIN_N_CLASSES; i++)
        class_s[i] -= winner_s[i];
}

const ExplainChoice *
explain_best_choice(const Explanation *explanation, ExplainDimension dimension)
{
    const ExplainChoice *best = NULL;

    for (guint i = 0; i < explanation->choices->len; i++) {
        const ExplainChoice *choice = &g_array_index(explanation->choices, ExplainChoice, i);
        const Plan *plan = searches_at(explanation->searches, choice->search)->plan;

        if (choice->dimension != dimension || plan == NULL)
            continue;
        /* Without a pipeline neither the order nor the number of chunks matters. */
        if (plan->degrees.pp == 1 &&
            (dimension == EXPLAIN_SCHEDULE || (dimension == EXPLAIN_VPP && plan->degrees.vpp > 1)))
            continue;
        if (best == NULL ||
            score(explanation, plan) <
                score(explanation, searches_at(explanation->searches, best->search)->plan))
            best = choice;
    }
    return best;
}

/* --- other choices --- */

/* Whether the request leaves @dimension open. */
static bool
is_open(const PlanRequest *request, ExplainDimension dimension)
{
    const void *place = (const char *)request + places[dimension].offset;

    if (dimension == EXPLAIN_SCHEDULE)
        return request->schedules == NULL;
    if (dimension == EXPLAIN_SLICES)
        return request->slices_mode == PLAN_SLICES_AUTO;
    if (dimension == EXPLAIN_EP && request->arch->experts.n_experts == 0)
        return false;
    return places[dimension].is_choice ? *(const int *)place == PLAN_AUTO
                                       : *(const int64_t *)place == 0;
}

/* Fixes @dimension at @n: a number, or the index of a name. */
static void
fix(Request *request, ExplainDimension dimension, int64_t n)
{
    PlanRequest *plan = &request->plan;
    void *place = (char *)plan + places[dimension].offset;

    if (dimension == EXPLAIN_SCHEDULE) {
        g_strfreev(request->schedules);
        request->schedules = g_new0(char *, 2);
        request->schedules[0] = g_strdup(schedule_families()[n]->name);
        plan->schedules = (const char *const *)request->schedules;
    } else if (dimension == EXPLAIN_SLICES) {
        plan->slices_mode = n == 1 ? PLAN_SLICES_OFF : PLAN_SLICES_UNIFORM;
        plan->n_slices = n;
    } else if (places[dimension].is_choice) {
        *(int *)place = (int)n;
    } else {
        *(int64_t *)place = n;
    }
}

static void
add_divisors(GArray *values, int64_t of, int64_t most)
{
    for (int64_t n = 1; n <= MIN(of, most); n++)
        if (of % n == 0)
            g_array_append_val(values, n);
}

static void
add_range(GArray *values, int64_t first, int64_t last)
{
    for (int64_t n = first; n <= last; n++)
        g_array_append_val(values, n);
}

/* Whether the groups of @placement lie as some of @known [n] do; else they are known from now on.
 * Only of aligned ones can it be said. */
static bool
is_known_placement(const ProfileMesh *mesh, ProfileMeshCounts *known, int *n)
{
    if (!profile_mesh_is_aligned(mesh))
        return false;
    profile_mesh_counts(mesh, &known[*n]);
    for (int i = 0; i < *n; i++)
        if (memcmp(&known[i], &known[*n], sizeof known[i]) == 0)
            return true;
    ++*n;
    return false;
}

/* Orders in which the winner's groups lie otherwise on the cluster: of those alike the first. */
static void
add_orders(GArray *values, const PlanRequest *request, const Plan *plan)
{
    PlanDegrees degrees = plan->degrees;
    const ProfileMesh mesh = {request->profile->cluster, &degrees, &request->conventions};
    ProfileMeshCounts known[PLAN_RANK_ORDER_N + 1];
    int n_known = 0;

    is_known_placement(&mesh, known, &n_known);
    for (degrees.rank_order = 0; degrees.rank_order < PLAN_RANK_ORDER_N; degrees.rank_order++)
        if (degrees.rank_order != plan->degrees.rank_order &&
            plan_rank_order_plain(&degrees) == degrees.rank_order &&
            plan_rank_order_check(&degrees, &request->conventions, NULL) &&
            !is_known_placement(&mesh, known, &n_known))
            g_array_append_val(values, degrees.rank_order);
}

/* Returns: (owned) all values of @dimension that are worth a search. */
static GArray *
values_of(const Explanation *explanation, ExplainDimension dimension)
{
    const PlanRequest *request = &explanation->request->plan;
    const Plan *plan = explanation->plan;
    const int64_t n_devices = plan_n_devices(plan);
    GArray *values = g_array_new(FALSE, FALSE, sizeof(int64_t));

    switch (dimension) {
    case EXPLAIN_PP:
        add_divisors(values, n_devices, model_n_stacked(request->arch) + 2);
        break;
    case EXPLAIN_VPP:
        add_range(values, 1, plan->degrees.pp > 1 ? MAX(MOST_CHUNKS, plan->degrees.vpp) : 0);
        break;
    case EXPLAIN_EP:
        add_divisors(values, request->arch->experts.n_experts, n_devices);
        break;
    case EXPLAIN_MICRO_BATCH:
        add_divisors(values, request->global_batch, MOST_TIMES * plan->micro_batch);
        break;
    case EXPLAIN_SCHEDULE:
        for (int64_t i = 0; schedule_families()[i] != NULL; i++)
            if (!schedule_families()[i]->reads_times)
                g_array_append_val(values, i);
        break;
    case EXPLAIN_SLICES:
        for (int64_t n = 1; n <= MOST_TIMES_SLICES * plan->slices->len && plan->degrees.pp > 1;
             n *= 2)
            g_array_append_val(values, n);
        break;
    case EXPLAIN_RECOMPUTE:
        add_range(values, 0, PLAN_RECOMPUTE_N - 1);
        break;
    case EXPLAIN_ZERO:
        add_range(values, 0, 3);
        break;
    case EXPLAIN_SEQUENCE_PARALLEL:
        add_range(values, 0, plan->degrees.tp > 1 ? 1 : -1);
        break;
    case EXPLAIN_RANK_ORDER:
        add_orders(values, request, plan);
        break;
    default:
        add_divisors(values, n_devices, n_devices);
    }
    return values;
}

/* Adds a what-if, which is looked for first where the winner is; its index.  @request (taken). */
static guint
add_search(Explanation *explanation, Request *request, double weight)
{
    const PlanDegrees *chosen = &explanation->plan->degrees;

    request->plan.top = 0;
    request->plan.is_terse = true;
    request->plan.skips_bound = true;
    /* What-ifs repeat what the winner repeats, of which the memo may know nothing. */
    if (request->plan.searches_modules) {
        request->plan.searches_modules = false;
        request->plan.conventions.recompute_modules =
            explanation->plan->conventions.recompute_modules;
        request->plan.memo = NULL;
    }
    request->plan.beside = explanation->request->plan.memo;
    request->plan.near_tp = chosen->tp;
    request->plan.near_pp = chosen->pp;
    request->plan.near_cp = chosen->cp;
    request->plan.near_vpp = chosen->vpp;
    request->plan.near_micro_batch = explanation->plan->micro_batch;
    return searches_add(explanation->searches, request, weight);
}

static void
add_choices(Explanation *explanation, ExplainDimension dimension)
{
    g_autoptr(GArray) values = values_of(explanation, dimension);
    g_autofree char *chosen = explain_value(dimension, explanation->plan);

    for (guint i = 0; i < values->len && is_open(&explanation->request->plan, dimension); i++) {
        const int64_t n = g_array_index(values, int64_t, i);
        ExplainChoice choice = {.dimension = dimension, .value = value_text(dimension, n)};

        if (strcmp(choice.value, chosen) == 0) {
            g_free(choice.value);
            continue;
        }
        Request *request = request_copy(explanation->request);
        fix(request, dimension, n);
        choice.search = add_search(explanation, request, 1);
        g_array_append_val(explanation->choices, choice);
    }
}

/* --- what more of each resource gives --- */

static void
add_resource(Explanation *explanation, Request *request, const char *resource, const char *change,
             const char *after)
{
    ExplainResource added = {
        .resource = g_strdup(resource), .change = g_strdup(change), .after = g_strdup(after)};

    added.search = add_search(explanation, request, 2);
    g_array_append_val(explanation->resources, added);
}

/* (owned) the request on devices or links of other speeds, of which its memo knows nothing. */
static Request *
copy_for_others(const Explanation *explanation)
{
    Request *request = request_copy(explanation->request);

    request->plan.memo = NULL;
    return request;
}

static void
add_links(Explanation *explanation, guint level, double factor, const char *change)
{
    Request *request = copy_for_others(explanation);
    ModelCluster *cluster = request->profile->cluster;
    ModelLevel *link = &g_array_index(cluster->levels, ModelLevel, level);

    link->bytes_per_s *= factor;
    link->shared_bytes_per_s *= factor;
    for (guint i = 0; i < cluster->nodes->len; i++) {
        ModelLink *own = &g_array_index(cluster->nodes, ModelNodes, i).links[level];

        own->bytes_per_s *= factor;
        own->shared_bytes_per_s *= factor;
    }
    g_autofree char *resource = g_strdup_printf("link %s", link->name);
    g_autofree char *rate = g_strdup_printf("%s GB/s", output_number(link->bytes_per_s / 1e9).text);
    add_resource(explanation, request, resource, change, rate);
}

/* @factor and then @more bytes, of the devices or of the limit that was asked for. */
static void
add_memory(Explanation *explanation, double factor, int64_t more_bytes, const char *change)
{
    Request *request = request_copy(explanation->request);
    ModelCluster *cluster = request->profile->cluster;
    int64_t after = request->plan.memory_limit_bytes;

    if (after > 0) {
        after = (int64_t)((double)after * factor) + more_bytes;
        request->plan.memory_limit_bytes = after;
    } else {
        for (guint i = 0; i < cluster->devices->len; i++) {
            ModelDevice *device = &g_array_index(cluster->devices, ModelDevice, i);

            device->memory_bytes = (int64_t)((double)device->memory_bytes * factor) + more_bytes;
            after = i == 0 ? device->memory_bytes : MIN(after, device->memory_bytes);
        }
    }
    add_resource(explanation, request, "memory", change, units_format_bytes((double)after).text);
}

static void
add_compute(Explanation *explanation, double factor, const char *change)
{
    Request *request = copy_for_others(explanation);
    ModelCluster *cluster = request->profile->cluster;

    for (guint i = 0; i < cluster->devices->len; i++) {
        ModelDevice *device = &g_array_index(cluster->devices, ModelDevice, i);

        for (int dtype = 0; dtype < DTYPE_N; dtype++)
            device->flops_per_s[dtype] *= factor;
        device->vector_flops_per_s *= factor;
    }
    const ModelDevice *first = model_cluster_device(cluster, 0);
    add_resource(
        explanation, request, "compute", change,
        units_format_flops(profile_peak_flops_per_s(first, explanation->request->plan.dtype)).text);
}

static void
add_devices(Explanation *explanation)
{
    Request *request = copy_for_others(explanation);
    const int64_t n = 2 * model_cluster_n_devices(request->profile->cluster);

    if (n > MODEL_CLUSTER_MAX_DEVICES) {
        request_free(request);
        return;
    }
    ModelCluster *doubled = model_cluster_resized(request->profile->cluster, n);
    model_cluster_free(request->profile->cluster);
    request->profile->cluster = doubled;
    request->plan.n_devices *= 2;
    request->plan.dp *= 2; /* where it is fixed, that is what grows */
    add_resource(explanation, request, "devices", "x2", output_int64(n).text);
}

static void
add_batch(Explanation *explanation)
{
    Request *request = request_copy(explanation->request);

    request->plan.global_batch *= 2;
    add_resource(explanation, request, "batch", "x2",
                 output_int64(request->plan.global_batch).text);
}

/* The optimizers that the framework has, but for the plan's. */
static void
add_optimizers(Explanation *explanation)
{
    const PlanConventions *chosen = &explanation->request->plan.conventions;
    const PlanFrameworkRules *rules = plan_framework(chosen->framework)->rules;
    const uint32_t set = rules == NULL || rules->optimizers == 0 ? ~UINT32_C(0) : rules->optimizers;

    for (int i = 0; i < PLAN_OPTIMIZER_N && chosen->optimizer_step; i++) {
        if (i == (int)chosen->optimizer || (set & UINT32_C(1) << i) == 0)
            continue;
        Request *request = request_copy(explanation->request);
        request->plan.conventions.optimizer = (PlanOptimizer)i;
        add_resource(explanation, request, "optimizer", "another", plan_optimizer_names[i]);
    }
}

static void
add_resources(Explanation *explanation)
{
    const GArray *levels = explanation->request->profile->cluster->levels;

    for (guint i = 0; i < levels->len; i++) {
        /* A level above all devices that are used carries nothing. */
        const int64_t inner = i == 0 ? 1 : g_array_index(levels, ModelLevel, i - 1).group_devices;
        if (plan_n_devices(explanation->plan) <= inner)
            continue;
        add_links(explanation, i, 1.1, "+10 %");
        add_links(explanation, i, 2, "x2");
    }
    add_memory(explanation, 1, UNITS_GIB, "+1 GiB");
    add_memory(explanation, 1.25, 0, "+25 %");
    add_compute(explanation, 1.1, "+10 %");
    add_devices(explanation);
    add_batch(explanation);
    add_optimizers(explanation);
}

/* --- what limits a plan --- */

/* Less than this is no limit. */
#define LEAST_FRACTION 0.0005

/* @how (taken) */
static void
add_limit(Explanation *explanation, const char *limit, double fraction, char *how)
{
    const ExplainLimit added = {limit, fraction, how};

    if (fraction >= LEAST_FRACTION)
        g_array_append_val(explanation->limits, added);
    else
        g_free(how);
}

static void
add_limit_of(Explanation *explanation, const ExplainResource *resource)
{
    static const struct {
        const char *prefix, *change, *limit;
    } kinds[] = {
        {"link ", "x2", "link"},
        {"memory", "+25 %", "memory"},
        {"batch", "x2", "batch"},
    };

    const Plan *plan = searches_at(explanation->searches, resource->search)->plan;
    const double gain = plan == NULL ? 0 : -explain_change(explanation, plan);

    for (size_t i = 0; i < G_N_ELEMENTS(kinds); i++) {
        if (g_str_has_prefix(resource->resource, kinds[i].prefix) &&
            strcmp(resource->change, kinds[i].change) == 0)
            add_limit(explanation, kinds[i].limit, gain,
                      g_strdup_printf("gone with %s %s (%s)", resource->resource, resource->change,
                                      resource->after));
    }
}

/* Idle time of two kinds: of ranks that have less to do than the busiest one, since layers do not
 * divide evenly; and the rest, of the schedule. */
static void
add_bubble(Explanation *explanation)
{
    const Report *report = explanation->plan->predicted;
    const double iteration_ns = (double)report->iteration_ns;
    double most = 0, sum = 0;

    for (guint r = 0; r < report->ranks->len; r++) {
        const double busy = (double)g_array_index(report->ranks, ReportRank, r).busy_ns;

        most = fmax(most, busy);
        sum += busy;
    }
    const double uneven = (most - sum / report->ranks->len) / iteration_ns;
    add_limit(explanation, "divisibility", uneven,
              g_strdup_printf("the busiest of %u ranks against their mean", report->ranks->len));
    add_limit(explanation, "bubble", report->bubble_fraction - uneven,
              g_strdup_printf("idle in %s with " INT " micro-batches", explanation->plan->schedule,
                              explanation->plan->n_micro_batches));
}

static int
compare(const void *a, const void *b)
{
    const ExplainLimit *x = a, *y = b;

    ORDER_BY(y->fraction, x->fraction);
    return strcmp(x->how, y->how);
}

/* --- the whole --- */

static void
choice_clear(void *data)
{
    g_free(((ExplainChoice *)data)->value);
}

static void
resource_clear(void *data)
{
    ExplainResource *resource = data;

    g_free(resource->resource);
    g_free(resource->change);
    g_free(resource->after);
}

static void
limit_clear(void *data)
{
    g_free(((ExplainLimit *)data)->how);
}

/* (owned, nullable) @plan with its layers divided equally by count, each stage recomputing as it did. */
static Plan *
divide_equally(const Request *request, const Plan *plan)
{
    const ScheduleFamily *family = schedule_family_find(plan->schedule, NULL);
    g_autoptr(Plan) equal = plan_copy(plan);
    bool is_same = true;

    plan_set_even_stages(equal, model_n_stacked(request->arch), request->arch->vocab > 0,
                         family->placement, PLAN_RECOMPUTE_NONE);
    for (guint i = 0; i < equal->stages->len; i++) {
        PlanStage *stage = &g_array_index(equal->stages, PlanStage, i);
        const PlanStage *was = &g_array_index(plan->stages, PlanStage, i);

        stage->recompute = was->recompute;
        is_same = is_same && stage->n_layers == was->n_layers;
    }
    if (is_same)
        return NULL;
    g_clear_pointer(&equal->predicted, report_free);
    g_autoptr(Workload) workload = workload_new(request->arch, request->profile, equal,
                                                request->plan.memory_limit_bytes, NULL);
    if (workload == NULL ||
        !job_evaluate(equal, workload, INT64_MAX, &equal->predicted, NULL, NULL))
        return NULL;
    return g_steal_pointer(&equal);
}

Explanation *
explanation_new(const Request *request, const Plan *plan, const Plan *runner_up)
{
    Explanation *explanation = g_new0(Explanation, 1);

    explanation->request = request;
    explanation->plan = plan;
    explanation->runner_up = runner_up;
    explanation->equal = divide_equally(request, plan);
    explanation->searches = searches_new();
    explanation->choices = g_array_new(FALSE, FALSE, sizeof(ExplainChoice));
    explanation->resources = g_array_new(FALSE, FALSE, sizeof(ExplainResource));
    explanation->limits = g_array_new(FALSE, FALSE, sizeof(ExplainLimit));
    g_array_set_clear_func(explanation->choices, choice_clear);
    g_array_set_clear_func(explanation->resources, resource_clear);
    g_array_set_clear_func(explanation->limits, limit_clear);
    for (int dimension = 0; dimension < EXPLAIN_N_DIMENSIONS; dimension++)
        add_choices(explanation, (ExplainDimension)dimension);
    add_resources(explanation);
    return explanation;
}

void
explanation_free(Explanation *explanation)
{
    if (explanation == NULL)
        return;
    plan_free(explanation->equal);
    g_ptr_array_unref(explanation->searches);
    g_array_unref(explanation->choices);
    g_array_unref(explanation->resources);
    g_array_unref(explanation->limits);
    g_free(explanation);
}

bool
explanation_run(Explanation *explanation, int64_t threads, GError **error)
{
    const bool is_done = searches_run(explanation->searches, threads, "what-ifs", error);

    for (guint i = 0; i < explanation->resources->len; i++)
        add_limit_of(explanation, &g_array_index(explanation->resources, ExplainResource, i));
    add_bubble(explanation);
    g_array_sort(explanation->limits, compare);
    return is_done;
}
