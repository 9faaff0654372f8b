#include "cli/explain/explain.h"

#include <math.h>
#include <string.h>

#include "base/units.h"
#include "cli/request/output.h"
#include "profiles/cost/placement.h"
#include "schedule/rank_order.h"

#define INT "%" G_GINT64_FORMAT

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

/* --- what a plan is like --- */

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
    };

    switch (dimension) {
    case EXPLAIN_SCHEDULE:
        return g_strdup(plan->schedule);
    case EXPLAIN_RECOMPUTE:
        return g_strdup(plan_recompute_name(plan));
    case EXPLAIN_SEQUENCE_PARALLEL:
        return g_strdup(plan->sequence_parallel ? "on" : "off");
    case EXPLAIN_RANK_ORDER:
        return g_strdup(plan_rank_order_names[d->rank_order]);
    default:
        return g_strdup_printf(INT, numbers[dimension]);
    }
}

double
explain_score(const Explanation *explanation, const Plan *plan)
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

static void
classes_of(const Report *report, double class_s[EXPLAIN_N_CLASSES])
{
    const double values[EXPLAIN_N_CLASSES] = {
        report->breakdown.compute_s,   report->breakdown.tp_s,        report->breakdown.pp_s,
        report->breakdown.dp_s,        report->breakdown.cp_s,        report->breakdown.ep_s,
        report->breakdown.recompute_s, report->breakdown.optimizer_s, report->breakdown.bubble_s,
    };

    memcpy(class_s, values, sizeof values);
}

void
explain_difference(const Explanation *explanation, const Plan *plan,
                   double class_s[EXPLAIN_N_CLASSES])
{
    double winner_s[EXPLAIN_N_CLASSES];

    classes_of(plan->predicted, class_s);
    classes_of(explanation->plan->predicted, winner_s);
    for (int i = 0; i < EXPLAIN_N_CLASSES; i++)
        class_s[i] -= winner_s[i];
}

/* Without a pipeline neither the order nor the number of chunks matters. */
static bool
is_vacuous(ExplainDimension dimension, const Plan *plan)
{
    return plan->degrees.pp == 1 &&
           (dimension == EXPLAIN_SCHEDULE || (dimension == EXPLAIN_VPP && plan->degrees.vpp > 1));
}

const ExplainChoice *
explain_best_choice(const Explanation *explanation, ExplainDimension dimension)
{
    const ExplainChoice *best = NULL;

    for (guint i = 0; i < explanation->choices->len; i++) {
        const ExplainChoice *choice = &g_array_index(explanation->choices, ExplainChoice, i);
        const Plan *plan = searches_at(explanation->searches, choice->search)->plan;

        if (choice->dimension != dimension || plan == NULL || is_vacuous(dimension, plan))
            continue;
        if (best == NULL ||
            explain_score(explanation, plan) <
                explain_score(explanation, searches_at(explanation->searches, best->search)->plan))
            best = choice;
    }
    return best;
}

/* --- other choices --- */

/* Whether the request leaves @dimension open. */
static bool
is_open(const PlanRequest *request, ExplainDimension dimension)
{
    switch (dimension) {
    case EXPLAIN_DP:
        return request->dp == 0;
    case EXPLAIN_TP:
        return request->tp == 0;
    case EXPLAIN_PP:
        return request->pp == 0;
    case EXPLAIN_VPP:
        return request->vpp == 0;
    case EXPLAIN_CP:
        return request->cp == 0;
    case EXPLAIN_EP:
        return request->ep == 0 && request->arch->experts.n_experts > 0;
    case EXPLAIN_MICRO_BATCH:
        return request->micro_batch == 0;
    case EXPLAIN_SCHEDULE:
        return request->schedules == NULL;
    case EXPLAIN_SLICES:
        return request->slices_mode == PLAN_SLICES_AUTO;
    case EXPLAIN_RECOMPUTE:
        return request->recompute == PLAN_AUTO;
    case EXPLAIN_ZERO:
        return request->zero_stage == PLAN_AUTO;
    case EXPLAIN_RANK_ORDER:
        return request->rank_order == PLAN_AUTO;
    default:
        return request->sequence_parallel == PLAN_AUTO;
    }
}

static void
set_slices(PlanRequest *request, int64_t n)
{
    request->slices_mode = n == 1 ? PLAN_SLICES_OFF : PLAN_SLICES_UNIFORM;
    request->n_slices = n;
}

/* Fixes @dimension at @n: a number, or the index of a name. */
static void
fix(Request *request, ExplainDimension dimension, int64_t n)
{
    PlanRequest *plan = &request->plan;
    int64_t *const numbers[EXPLAIN_N_DIMENSIONS] = {
        [EXPLAIN_DP] = &plan->dp,
        [EXPLAIN_TP] = &plan->tp,
        [EXPLAIN_PP] = &plan->pp,
        [EXPLAIN_VPP] = &plan->vpp,
        [EXPLAIN_CP] = &plan->cp,
        [EXPLAIN_EP] = &plan->ep,
        [EXPLAIN_MICRO_BATCH] = &plan->micro_batch,
    };

    switch (dimension) {
    case EXPLAIN_SCHEDULE:
        g_strfreev(request->schedules);
        request->schedules = g_new0(char *, 2);
        request->schedules[0] = g_strdup(schedule_families()[n]->name);
        plan->schedules = (const char *const *)request->schedules;
        return;
    case EXPLAIN_SLICES:
        set_slices(plan, n);
        return;
    case EXPLAIN_RECOMPUTE:
        plan->recompute = (int)n;
        return;
    case EXPLAIN_ZERO:
        plan->zero_stage = (int)n;
        return;
    case EXPLAIN_SEQUENCE_PARALLEL:
        plan->sequence_parallel = (int)n;
        return;
    case EXPLAIN_RANK_ORDER:
        plan->rank_order = (int)n;
        return;
    default:
        *numbers[dimension] = n;
    }
}

/* (owned) what fix() fixes, as explain_value() says it. */
static char *
value_text(ExplainDimension dimension, int64_t n)
{
    switch (dimension) {
    case EXPLAIN_SCHEDULE:
        return g_strdup(schedule_families()[n]->name);
    case EXPLAIN_RECOMPUTE:
        return g_strdup(plan_recompute_names[n]);
    case EXPLAIN_SEQUENCE_PARALLEL:
        return g_strdup(n == 1 ? "on" : "off");
    case EXPLAIN_RANK_ORDER:
        return g_strdup(plan_rank_order_names[n]);
    default:
        return g_strdup_printf(INT, n);
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

/* All values that are worth a look. */
static GArray *
values_of(const Explanation *explanation, ExplainDimension dimension)
{
    const PlanRequest *request = &explanation->request->plan;
    const Plan *plan = explanation->plan;
    const int64_t n_devices = plan_n_devices(plan);
    GArray *values = g_array_new(FALSE, FALSE, sizeof(int64_t));

    switch (dimension) {
    case EXPLAIN_PP:
        add_divisors(values, n_devices, request->arch->n_layers + 2);
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
            if (!schedule_families()[i]->searches)
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

guint
explain_add_search(Explanation *explanation, Request *request, double weight)
{
    const PlanDegrees *chosen = &explanation->plan->degrees;

    request->plan.top = 0;
    request->plan.is_terse = true;
    request->plan.near_tp = chosen->tp;
    request->plan.near_pp = chosen->pp;
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
        request->plan.memo = explanation->memo;
        fix(request, dimension, n);
        choice.search = explain_add_search(explanation, request, 1);
        g_array_append_val(explanation->choices, choice);
    }
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

Explanation *
explanation_new(const Request *request, const Plan *plan, const Plan *runner_up)
{
    Explanation *explanation = g_new0(Explanation, 1);

    explanation->request = request;
    explanation->plan = plan;
    explanation->runner_up = runner_up;
    explanation->searches = searches_new();
    explanation->memo = plan_memo_new();
    explanation->choices = g_array_new(FALSE, FALSE, sizeof(ExplainChoice));
    explanation->resources = g_array_new(FALSE, FALSE, sizeof(ExplainResource));
    explanation->limits = g_array_new(FALSE, FALSE, sizeof(ExplainLimit));
    g_array_set_clear_func(explanation->choices, choice_clear);
    g_array_set_clear_func(explanation->resources, resource_clear);
    g_array_set_clear_func(explanation->limits, limit_clear);
    for (int dimension = 0; dimension < EXPLAIN_N_DIMENSIONS; dimension++)
        add_choices(explanation, (ExplainDimension)dimension);
    explain_add_resources(explanation);
    return explanation;
}

void
explanation_free(Explanation *explanation)
{
    if (explanation == NULL)
        return;
    g_ptr_array_unref(explanation->searches);
    plan_memo_free(explanation->memo);
    g_array_unref(explanation->choices);
    g_array_unref(explanation->resources);
    g_array_unref(explanation->limits);
    g_free(explanation);
}

bool
explanation_run(Explanation *explanation, int64_t threads, GError **error)
{
    const bool is_done = searches_run(explanation->searches, threads, "what-ifs", error);

    explain_find_limits(explanation);
    return is_done;
}
