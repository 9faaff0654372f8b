#include "planner/cost/request.h"

#include <string.h>

#include "base/units.h"
#include "profiles/workload/ops.h"

const char *const plan_objective_names[PLAN_OBJECTIVE_N + 1] = {"time", "cost", "energy", "memory",
                                                                NULL};

int64_t
plan_request_n_units(const PlanRequest *request)
{
    return request->arch->n_layers + (request->arch->mtp.n > 0 ? 1 : 0);
}

int64_t
plan_request_most_stages(const PlanRequest *request)
{
    return plan_request_n_units(request) + (request->arch->vocab > 0 ? 2 : 0);
}

/* The nearest number of devices up and down that the fixed degrees divide. */
bool
plan_request_find_devices(const PlanRequest *request, int64_t *n_devices, GError **error)
{
    const int64_t has = model_cluster_n_devices(request->profile->cluster);
    const struct {
        const char *flag;
        int64_t value;
    } fixed[] = {
        {"--dp", request->dp}, {"--tp", request->tp}, {"--pp", request->pp}, {"--cp", request->cp}};
    g_autoptr(GString) flags = g_string_new(NULL);
    int64_t product = 1;
    size_t n_fixed = 0;

    for (size_t i = 0; i < G_N_ELEMENTS(fixed); i++) {
        if (fixed[i].value == 0)
            continue;
        if (__builtin_mul_overflow(product, fixed[i].value, &product) ||
            product > SCHEDULE_MAX_RANKS)
            return plan_invalid(error, "%s " INT ": more than " INT " devices", fixed[i].flag,
                                fixed[i].value, SCHEDULE_MAX_RANKS);
        g_string_append_printf(flags, "%s%s " INT, n_fixed++ > 0 ? " " : "", fixed[i].flag,
                               fixed[i].value);
    }
    const bool all_fixed = n_fixed == G_N_ELEMENTS(fixed);
    const int64_t n = request->n_devices > 0 ? request->n_devices : all_fixed ? product : has;
    *n_devices = n;
    if (n > has) {
        g_set_error(error, PLAN_ERROR, PLAN_ERROR_INFEASIBLE,
                    "%s needs " INT " devices, cluster %s has " INT "; --gpus " INT
                    " would extend it",
                    n_fixed > 0 ? flags->str : "the plan", n, request->profile->name, has, n);
        return false;
    }
    if (n % product == 0 && (!all_fixed || n == product))
        return true;
    /* No number of devices helps where the model cannot be split so. */
    ModelShape shape = {
        .batch = 1,
        .tokens = request->seq_len,
        .tp = MAX(1, request->tp),
        .cp = MAX(1, request->cp),
        .ep = 1,
        .dtype = request->dtype,
    };
    g_autoptr(GError) local = NULL;
    workload_set_conventions(&request->conventions, &request->profile->parameters, &shape);
    if (!model_shape_check(request->arch, &shape, &local))
        return plan_invalid(error, "%s: %s", flags->str, local->message);
    const int64_t down = n / product * product;
    return plan_invalid(error,
                        "%s: " INT " devices, but there are " INT "; --gpus " INT " would do",
                        flags->str, product, n, all_fixed || down == 0 ? product : down);
}

/* --- rules --- */

void
plan_request_set_rules(PlanRequest *request)
{
    request->rules = plan_framework(request->conventions.framework)->rules;
    if (request->rules != NULL && !request->rules->slices &&
        request->slices_mode == PLAN_SLICES_AUTO)
        request->slices_mode = PLAN_SLICES_OFF;
}

PlanRuleCase
plan_request_case(const PlanRequest *request)
{
    return (PlanRuleCase){
        .rules = request->rules,
        .arch = request->arch,
        .model_runs = request->model_runs,
        .conventions = &request->conventions,
        .seq_len = request->seq_len,
        .dtype = request->dtype,
        .n_slices = plan_request_n_slices(request),
        .offload_parameters = request->offload_parameters,
    };
}

bool
plan_request_refuse(const PlanRequest *request, const PlanBreach *breach, GError **error)
{
    return plan_invalid(
        error, "%s cannot run it: %s (rule %s)%s%s; --beyond-framework on plans it all the same",
        plan_framework(request->conventions.framework)->name, breach->text, breach->rule,
        breach->change != NULL ? "; with " : "", breach->change != NULL ? breach->change : "");
}

/* Whether what is fixed alone keeps the rules; of a pipeline unless there is none. */
static bool
keeps_rules(const PlanRequest *request, GError **error)
{
    PlanRuleCase c = plan_request_case(request);
    g_auto(PlanBreach) breach = {0};

    if (!plan_rules_keep(&c, PLAN_ASPECT_JOB, &breach))
        return plan_request_refuse(request, &breach, error);
    c.recompute = request->recompute;
    c.degrees.ep = request->ep;
    if (c.recompute != PLAN_AUTO && !plan_rules_keep(&c, PLAN_ASPECT_RECOMPUTE, &breach))
        return plan_request_refuse(request, &breach, error);
    /* Where pp, vpp or ep is open, some plan has no pipeline without chunks that merges passes. */
    c.degrees = (PlanDegrees){.pp = request->pp == 1 ? 1 : 2,
                              .vpp = MAX(1, request->vpp),
                              .ep = request->pp > 1 && request->vpp > 0 ? MAX(1, request->ep) : 1};
    if (plan_request_opens_schedule(request)) {
        c.schedule = request->rules->schedules[0];
        return plan_rules_keep(&c, PLAN_ASPECT_SCHEDULE, &breach) ||
               plan_request_refuse(request, &breach, error);
    }
    for (size_t i = 0; request->schedules[i] != NULL; i++) {
        c.schedule = request->schedules[i];
        if (!plan_rules_keep(&c, PLAN_ASPECT_SCHEDULE, &breach))
            return plan_request_refuse(request, &breach, error);
    }
    return true;
}

#define N_DEGREES 6

bool
plan_request_check(const PlanRequest *request, GError **error)
{
    const struct {
        const char *flag;
        int64_t value, least;
    } values[] = {
        {"--global-batch", request->global_batch, 1},
        {"--seq-len", request->seq_len, 1},
        {"--dp", request->dp, 0}, /* from here on N_DEGREES */
        {"--tp", request->tp, 0},
        {"--pp", request->pp, 0},
        {"--vpp", request->vpp, 0},
        {"--cp", request->cp, 0},
        {"--ep", request->ep, 0},
        {"--micro-batch", request->micro_batch, 0},
        {"--gpus", request->n_devices, 0},
        {"--group", request->group, 0},
        {"--memory-limit", request->memory_limit_bytes, 0},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(values); i++)
        if (values[i].value < values[i].least)
            return plan_invalid(error, "%s: must be at least 1, got " INT, values[i].flag,
                                values[i].value);
    for (size_t i = 2; i < N_DEGREES + 2; i++)
        if (values[i].value > SCHEDULE_MAX_RANKS)
            return plan_invalid(error, "%s: " INT " is more than the limit of " INT, values[i].flag,
                                values[i].value, SCHEDULE_MAX_RANKS);
    if (request->micro_batch > request->global_batch)
        return plan_invalid(error, "--micro-batch " INT " is more than --global-batch " INT,
                            request->micro_batch, request->global_batch);
    if (MAX(1, request->pp) * MAX(1, request->vpp) > 2 * plan_request_most_stages(request))
        return plan_invalid(
            error, "--pp " INT " * --vpp " INT " is more than the model's " INT " layers",
            MAX(1, request->pp), MAX(1, request->vpp), model_n_stacked(request->arch));
    if (request->zero_stage > 3)
        return plan_invalid(error, "--zero: must be from 0 to 3, got %d", request->zero_stage);
    if (request->offload_parameters && request->zero_stage != PLAN_AUTO && request->zero_stage != 3)
        return plan_invalid(error, "--offload-parameters: needs --zero 3, got %d",
                            request->zero_stage);
    if (request->offload_parameters && request->offload == PLAN_OFFLOAD_NONE)
        return plan_invalid(error, "--offload-parameters: needs --offload cpu or nvme");
    if (request->slices_mode == PLAN_SLICES_UNIFORM &&
        (request->n_slices < 1 || request->n_slices > request->seq_len))
        return plan_invalid(error, "--slices: from 1 to --seq-len " INT ", got " INT,
                            request->seq_len, request->n_slices);
    if (request->slices_mode == PLAN_SLICES_GIVEN) {
        int64_t sum = 0;
        for (int64_t i = 0; i < request->n_slices; i++) {
            if (request->slices[i] < 1 || request->slices[i] > request->seq_len - sum)
                return plan_invalid(error,
                                    "--slices: part " INT " of " INT " tokens after " INT
                                    " of --seq-len " INT,
                                    i + 1, request->slices[i], sum, request->seq_len);
            sum += request->slices[i];
        }
        if (sum != request->seq_len)
            return plan_invalid(error, "--slices: sum to " INT " tokens, --seq-len is " INT, sum,
                                request->seq_len);
    }
    return request->rules == NULL || keeps_rules(request, error);
}

/* --- families --- */

bool
plan_request_opens_schedule(const PlanRequest *request)
{
    return request->schedules == NULL || request->schedules[0] == NULL ||
           strcmp(request->schedules[0], "auto") == 0;
}

GPtrArray *
plan_request_families(const PlanRequest *request, GError **error)
{
    const ScheduleFamily *const *all = schedule_families();
    g_autoptr(GPtrArray) families = g_ptr_array_new();
    const bool is_open = plan_request_opens_schedule(request);

    /* A family that searches costs too much to try everywhere; it is there for who names it.  Others
     * whose orders are made for given times are tried where the best plan is known. */
    for (size_t i = 0; is_open && all[i] != NULL; i++)
        if (!all[i]->reads_times &&
            (request->rules == NULL || g_strv_contains(request->rules->schedules, all[i]->name)))
            g_ptr_array_add(families, (gpointer)all[i]);
    for (size_t i = 0; !is_open && request->schedules[i] != NULL; i++) {
        g_autoptr(GError) local = NULL;
        const ScheduleFamily *family = schedule_family_find(request->schedules[i], &local);
        if (family == NULL)
            return plan_invalid_null(error, "--schedule: %s", local->message);
        if (!g_ptr_array_find(families, family, NULL))
            g_ptr_array_add(families, (gpointer)family);
    }
    return g_steal_pointer(&families);
}

/* --- memory --- */

int64_t
plan_request_largest_memory(const PlanRequest *request)
{
    const ModelCluster *cluster = request->profile->cluster;
    int64_t most = 0;

    if (request->memory_limit_bytes > 0)
        return request->memory_limit_bytes;
    for (guint i = 0; i < cluster->devices->len; i++)
        most = MAX(most, g_array_index(cluster->devices, ModelDevice, i).memory_bytes);
    return most > 0 ? most : INT64_MAX;
}

/* --- slices --- */

int64_t
plan_request_n_slices(const PlanRequest *request)
{
    return request->slices_mode == PLAN_SLICES_UNIFORM || request->slices_mode == PLAN_SLICES_GIVEN
               ? request->n_slices
               : 1;
}

bool
plan_uniform_slices(int64_t seq_len, int64_t granularity, int64_t n, GArray *slices)
{
    const int64_t cells = seq_len / granularity;

    if (seq_len % granularity != 0 || n > cells || n > SCHEDULE_MAX_SLICES)
        return false;
    g_array_set_size(slices, 0);
    /* What does not divide goes to the first slices, which have the least context. */
    for (int64_t i = 0; i < n; i++) {
        const int64_t tokens = (cells / n + (i < cells % n ? 1 : 0)) * granularity;
        g_array_append_val(slices, tokens);
    }
    return true;
}

bool
plan_request_slices(const PlanRequest *request, int64_t granularity, GArray *slices)
{
    if (request->slices_mode == PLAN_SLICES_UNIFORM)
        return plan_uniform_slices(request->seq_len, granularity, request->n_slices, slices);
    g_array_set_size(slices, 0);
    if (request->slices_mode != PLAN_SLICES_GIVEN) {
        g_array_append_val(slices, request->seq_len);
        return true;
    }
    g_array_append_vals(slices, request->slices, (guint)request->n_slices);
    for (int64_t i = 0; i < request->n_slices; i++)
        if (request->slices[i] % granularity != 0)
            return false;
    return true;
}
