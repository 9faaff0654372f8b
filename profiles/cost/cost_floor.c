#include "profiles/cost/cost_floor.h"

#include <math.h>

#include "profiles/cost/cost_build.h"
#include "profiles/cost/measured.h"

static double
modelled_s(const Profile *profile, const ProfileQuery *query, ProfilePass pass)
{
    const ModelDevice *device = model_cluster_device(profile->cluster, query->rank);
    const double rate =
        profile->parameters.gemm_fraction * profile_peak_flops_per_s(device, query->shape.dtype);
    const double n_products = pass == PROFILE_PASS_FORWARD ? 1.0 : 2.0;
    ModelOp ops[MODEL_MAX_OPS];
    const size_t n = model_ops(query->arch, query->part, query->layer, &query->shape, ops);
    double flops = 0.0;

    for (size_t i = 0; i < n; i++) {
        /* Each expert's rows are rounded to whole ones. */
        const double m = (double)ops[i].m - (ops[i].count > 1 ? 1.0 : 0.0);
        if (ops[i].kind == MODEL_OP_GEMM && ops[i].weight_bytes > 0)
            flops +=
                2.0 * (double)ops[i].count * fmax(0.0, m) * (double)ops[i].n * (double)ops[i].k;
    }
    return n_products * flops / rate;
}

double
profile_cost_sliced_floor_s(const Profile *profile, const ProfileQuery *query, ProfilePass pass)
{
    double seconds, input_s, weight_s;

    g_return_val_if_fail(pass == PROFILE_PASS_FORWARD || pass == PROFILE_PASS_BACKWARD, 0.0);
    if (!profile_measured_sliced_floor(profile, query, pass, &seconds))
        return modelled_s(profile, query, pass);
    /* Halves that were measured apart may take less than the whole. */
    if (pass == PROFILE_PASS_BACKWARD &&
        profile_measured_sliced_floor(profile, query, PROFILE_PASS_BACKWARD_INPUT, &input_s) &&
        profile_measured_sliced_floor(profile, query, PROFILE_PASS_BACKWARD_WEIGHT, &weight_s))
        seconds = fmin(seconds, input_s + weight_s);
    return seconds;
}

double
profile_cost_slice_floor_s(const Profile *profile, const ProfileQuery *query, ProfilePass pass)
{
    const ModelDevice *device = model_cluster_device(profile->cluster, query->rank);
    ModelShape shape = query->shape;
    ModelOp ops[MODEL_MAX_OPS];
    double device_s = 0.0, host_s = cost_host_layer_s(profile, query, pass);
    size_t n;

    g_return_val_if_fail(pass == PROFILE_PASS_FORWARD || pass == PROFILE_PASS_BACKWARD, 0.0);
    if (profile->measurements->len > 0)
        return 0.0;
    /* A kernel that this slice is too odd for may take a longer one. */
    shape.softmax_keys = 0;
    n = model_ops(query->arch, query->part, query->layer, &shape, ops);
    for (size_t i = 0; i < n; i++) {
        const ProfileCost cost =
            profile_cost_op(profile, device, &ops[i], pass, query->shape.dtype, query->groups);
        host_s += cost.host_s + cost_host_framework_s(query, &ops[i], pass);
        /* Attention depends on the context, and collectives may hide. */
        if (ops[i].kind == MODEL_OP_GEMM || ops[i].kind == MODEL_OP_MEMORY)
            device_s += cost.part_s[PROFILE_PART_COMPUTE];
    }
    if (pass == PROFILE_PASS_BACKWARD)
        device_s += cost_accumulate_s(profile, device, query, ops, n);
    return fmax(device_s, host_s);
}
