/*
 * What of a request cannot be, before anything is enumerated.
 */
#include "planner/space/space.h"

#define INT "%" G_GINT64_FORMAT

/* Even stages leave the first one without layers, which the embedding alone fills. */
int64_t
plan_space_most_stages(const PlanRequest *request)
{
    return request->arch->n_layers + (request->arch->vocab > 0 ? 1 : 0);
}

/* The nearest number of devices up and down that the fixed degrees divide. */
bool
plan_space_find_devices(PlanSpace *space, GError **error)
{
    const PlanRequest *request = space->request;
    const int64_t has = model_cluster_n_devices(request->profile->cluster);
    const struct {
        const char *flag;
        int64_t value;
    } fixed[] = {
        {"--dp", request->dp}, {"--tp", request->tp}, {"--pp", request->pp}, {"--cp", request->cp}};
    g_autoptr(GString) flags = g_string_new(NULL);
    int64_t product = 1, n_fixed = 0;

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
    space->n_devices = request->n_devices > 0           ? request->n_devices
                       : n_fixed == G_N_ELEMENTS(fixed) ? product
                                                        : has;
    if (space->n_devices > has) {
        g_set_error(error, PLAN_ERROR, PLAN_ERROR_INFEASIBLE,
                    "%s needs " INT " devices, cluster %s has " INT "; --gpus " INT
                    " would extend it",
                    n_fixed > 0 ? flags->str : "the plan", space->n_devices, request->profile->name,
                    has, space->n_devices);
        return false;
    }
    if (space->n_devices % product == 0 &&
        (n_fixed < (int64_t)G_N_ELEMENTS(fixed) || space->n_devices == product))
        return true;
    const int64_t down = space->n_devices / product * product;
    return plan_invalid(error,
                        "%s: " INT " devices, but there are " INT "; --gpus " INT " would do",
                        flags->str, product, space->n_devices,
                        n_fixed == (int64_t)G_N_ELEMENTS(fixed) || down == 0 ? product : down);
}

#define N_DEGREES 6

bool
plan_space_check(const PlanRequest *request, GError **error)
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
    if (MAX(1, request->pp) * MAX(1, request->vpp) > 2 * plan_space_most_stages(request))
        return plan_invalid(error,
                            "--pp " INT " * --vpp " INT " is more than the model's " INT " layers",
                            MAX(1, request->pp), MAX(1, request->vpp), request->arch->n_layers);
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
    return true;
}
