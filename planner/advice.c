#include "planner/advice.h"

#include <string.h>

#include "base/units.h"
#include "planner/search.h"
#include "profiles/workload/state.h"

/* Clusters are extended up to so many times their size. */
#define MAX_FACTOR 64

/* --- text --- */

static void
append_plan(GString *text, const Plan *plan)
{
    const PlanDegrees *d = &plan->degrees;
    const PlanRecompute recompute = g_array_index(plan->stages, PlanStage, 0).recompute;

    g_string_append_printf(text, "dp " INT ", tp " INT ", pp " INT, d->dp, d->tp, d->pp);
    if (d->cp > 1)
        g_string_append_printf(text, ", cp " INT, d->cp);
    if (d->ep > 1)
        g_string_append_printf(text, ", ep " INT, d->ep);
    g_string_append_printf(text, ", micro-batch " INT ", %s recompute, zero %d", plan->micro_batch,
                           recompute == PLAN_RECOMPUTE_NONE ? "no"
                                                            : plan_recompute_names[recompute],
                           plan->zero_stage);
    if (plan->offload != PLAN_OFFLOAD_NONE)
        g_string_append_printf(text, ", offload %s", plan_offload_names[plan->offload]);
}

/* --- changes --- */

/* What a plan may use: the request's limit, or the memory of the device that has least. */
static int64_t
limit_of(const PlanRequest *request)
{
    const ModelCluster *cluster = request->profile->cluster;
    int64_t limit = INT64_MAX;

    if (request->memory_limit_bytes > 0)
        return request->memory_limit_bytes;
    for (guint i = 0; i < cluster->nodes->len; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        limit = MIN(
            limit, g_array_index(cluster->devices, ModelDevice, (guint)nodes->device).memory_bytes);
    }
    return limit;
}

/* Whether the state of each parameter, once on any of @n devices, is more than fits: no split, ZeRO
 * stage or recompute changes that. */
static bool
state_is_large(const PlanRequest *request, int64_t n)
{
    const WorkloadParameterBytes bytes =
        workload_parameter_bytes(request->dtype, &request->conventions);
    const double optimizer = request->offload == PLAN_OFFLOAD_NONE ? (double)bytes.own_bytes : 0.0;
    const double trained = (double)model_trained_parameters(request->arch);
    const double weights =
        trained * (double)bytes.weight_bytes +
        ((double)model_parameters(request->arch) - trained) * (double)bytes.frozen_bytes;
    const double all = (request->offload_parameters ? 0.0 : weights) +
                       trained * ((double)bytes.gradient_bytes + optimizer);

    return all * (1.0 - 1e-9) > (double)limit_of(request) * (double)n;
}

/* Whether the changed request has a plan that fits; (owned, nullable) that plan. */
static Plan *
fits(const PlanRequest *request, PlanEvaluateFunc evaluate, void *user_data)
{
    g_autoptr(Plan) plan = plan_search_least(request, limit_of(request), evaluate, user_data);

    /* Predicted without a limit. */
    return plan != NULL && plan->predicted->peak_memory_bytes <= limit_of(request)
               ? g_steal_pointer(&plan)
               : NULL;
}

/* What is released of a request, in the order in which it is tried. */
typedef enum {
    RELEASE_RECOMPUTE,
    RELEASE_ZERO,
    RELEASE_MICRO_BATCH,
    RELEASE_SEQUENCE_PARALLEL,
    RELEASE_SCHEDULE,
    RELEASE_DP_AND_TP, /* where tp is fixed, pp stays as it is */
    RELEASE_DEGREES,
    RELEASE_OFFLOAD,
    RELEASE_N
} Release;

/* Releases one flag; false if the request does not fix it. */
static bool
release(PlanRequest *request, Release which)
{
    switch (which) {
    case RELEASE_RECOMPUTE:
        if (request->recompute == PLAN_AUTO || request->recompute == PLAN_RECOMPUTE_FULL)
            return false;
        request->recompute = PLAN_AUTO;
        return true;
    case RELEASE_ZERO:
        if (request->zero_stage == PLAN_AUTO || request->zero_stage == 3)
            return false;
        request->zero_stage = PLAN_AUTO;
        return true;
    case RELEASE_MICRO_BATCH:
        if (request->micro_batch <= 1)
            return false;
        request->micro_batch = 0;
        return true;
    case RELEASE_SEQUENCE_PARALLEL:
        if (request->sequence_parallel != 0)
            return false;
        request->sequence_parallel = PLAN_AUTO;
        return true;
    case RELEASE_SCHEDULE:
        if (request->schedules == NULL)
            return false;
        request->schedules = NULL;
        return true;
    case RELEASE_DP_AND_TP:
    case RELEASE_DEGREES:
        if (request->tp == 0 && request->pp == 0 && request->dp == 0)
            return false;
        request->n_devices = request->n_devices > 0 ? request->n_devices
                             : request->dp > 0 && request->tp > 0 && request->pp > 0
                                 ? request->dp * request->tp * request->pp * MAX(1, request->cp)
                                 : 0;
        request->dp = 0;
        request->vpp = 0;
        request->pp = which == RELEASE_DP_AND_TP && request->tp > 0 ? request->pp : 0;
        request->tp = 0;
        return true;
    case RELEASE_OFFLOAD:
        if (request->offload != PLAN_OFFLOAD_NONE)
            return false;
        request->offload = PLAN_OFFLOAD_CPU;
        return true;
    case RELEASE_N:
        break;
    }
    return false;
}

/* The flag that @which released, with the value that fits. */
static void
append_flag(GString *text, Release which, const Plan *plan)
{
    const PlanDegrees *d = &plan->degrees;

    switch (which) {
    case RELEASE_RECOMPUTE:
        g_string_append_printf(
            text, "--recompute %s",
            plan_recompute_names[g_array_index(plan->stages, PlanStage, 0).recompute]);
        return;
    case RELEASE_ZERO:
        g_string_append_printf(text, "--zero %d", plan->zero_stage);
        return;
    case RELEASE_MICRO_BATCH:
        g_string_append_printf(text, "--micro-batch " INT, plan->micro_batch);
        return;
    case RELEASE_SEQUENCE_PARALLEL:
        g_string_append(text, "--sequence-parallel on");
        return;
    case RELEASE_SCHEDULE:
        g_string_append_printf(text, "--schedule %s", plan->schedule);
        return;
    case RELEASE_DP_AND_TP:
    case RELEASE_DEGREES:
        g_string_append_printf(text, "--dp " INT " --tp " INT " --pp " INT, d->dp, d->tp, d->pp);
        return;
    default:
        g_string_append_printf(text, "--offload %s", plan_offload_names[plan->offload]);
        return;
    }
}

/* As @request on @profile, whose cluster has @n devices, degrees free where they must grow. */
static PlanRequest
extended(const PlanRequest *request, const Profile *profile, int64_t n)
{
    PlanRequest changed = *request;

    changed.profile = profile;
    changed.n_devices = n;
    changed.dp = 0;
    if (request->tp > 0 && request->pp > 0)
        changed.pp = 0;
    changed.vpp = 0;
    return changed;
}

/* Appends the nearest change that fits; false: none was found. */
static bool
append_change(GString *text, const PlanRequest *request, PlanEvaluateFunc evaluate, void *user_data)
{
    int64_t n = request->n_devices > 0 ? request->n_devices
                                       : model_cluster_n_devices(request->profile->cluster);

    for (Release which = 0; which < RELEASE_N; which++) {
        PlanRequest changed = *request;
        if (!release(&changed, which) || state_is_large(&changed, n))
            continue;
        g_autoptr(Plan) plan = fits(&changed, evaluate, user_data);
        if (plan == NULL)
            continue;
        append_flag(text, which, plan);
        return true;
    }
    for (int64_t factor = 2; factor <= MAX_FACTOR; factor *= 2) {
        if (__builtin_mul_overflow(n, 2, &n) || n > SCHEDULE_MAX_RANKS)
            break;
        if (state_is_large(request, n))
            continue;
        g_autoptr(Profile) profile = profile_copy(request->profile);
        model_cluster_free(profile->cluster);
        profile->cluster = model_cluster_resized(request->profile->cluster, n);
        const PlanRequest changed = extended(request, profile, n);
        g_autoptr(Plan) plan = fits(&changed, evaluate, user_data);
        if (plan == NULL)
            continue;
        g_string_append_printf(text, "--gpus " INT " (", n);
        append_plan(text, plan);
        g_string_append_c(text, ')');
        return true;
    }
    return false;
}

void
plan_advice_set_error(const PlanRequest *request, PlanEvaluateFunc evaluate, void *user_data,
                      const PlanOutcome *outcome, GError **error)
{
    g_autoptr(GString) text = g_string_new(NULL);
    g_autoptr(Plan) simulated =
        request->is_terse ? NULL : plan_search_least(request, INT64_MAX, evaluate, user_data);
    const Plan *least = simulated != NULL ? simulated : outcome->least;
    const int64_t needed =
        simulated != NULL ? simulated->predicted->peak_memory_bytes : outcome->least_bytes;

    if (least == NULL) {
        g_set_error(error, PLAN_ERROR, PLAN_ERROR_INFEASIBLE,
                    "no plan of the space exists: no schedule fits these degrees and slices");
        return;
    }
    g_string_append_printf(text, "memory: a device needs %s of %s at the least (",
                           units_format_bytes((double)needed).text,
                           units_format_bytes((double)outcome->limit_bytes).text);
    append_plan(text, least);
    g_string_append_c(text, ')');
    const gsize before = text->len + strlen("; ");
    g_string_append(text, request->is_terse ? "" : "; fits with ");
    if (!request->is_terse && !append_change(text, request, evaluate, user_data)) {
        g_string_truncate(text, before);
        g_string_append_printf(text, "no single change found that fits, up to %d times the devices",
                               MAX_FACTOR);
    }
    g_set_error_literal(error, PLAN_ERROR, PLAN_ERROR_INFEASIBLE, text->str);
}
