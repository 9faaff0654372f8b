/* Costs of parts: the sum of a part's ops, what hides behind what, and the host. */
#include "profiles/cost/cost_build.h"
#include "profiles/cost/measured.h"

#include <math.h>

static const ModelDevice *
query_device(const Profile *profile, const ProfileQuery *query)
{
    return model_cluster_device(profile->cluster, query->rank);
}

static void
add_cost(ProfileCost *sum, const ProfileCost *cost)
{
    for (int i = 0; i < PROFILE_PART_N; i++)
        sum->part_s[i] += cost->part_s[i];
    sum->host_s += cost->host_s;
}

/* K and V travel while the scores of what has arrived are computed  [ring attention, 2310.01889]:
 * only what is longer than the attention of all but the first share stays visible, and computing
 * slows down meanwhile. */
static void
hide_ring(const Profile *profile, ProfileCost *cost, double ring_s, double attention_s, int64_t cp)
{
    double hidden = fmin(ring_s, attention_s * ((double)cp - 1.0) / (double)cp);

    cost->part_s[PROFILE_PART_CP] -= hidden;
    cost->part_s[PROFILE_PART_COMPUTE] += profile->parameters.interference_fraction * hidden;
}

/*
 * Tensor-parallel communication behind computing: what is longer stays visible, and computing slows
 * down meanwhile.  With sequence parallelism gathers and scatters are cut up and travel while the
 * product next to them computes [userbuffers of Transformer Engine].  An all-reduce cannot: its
 * result is needed whole.  Only the input gradient's hides, behind the weight gradient's products
 * @weight_products_s  [2205.05198, 5.3: the baseline overlaps these two].
 */
static void
hide_tp(const Profile *profile, bool sequence_parallel, double weight_products_s, ProfileCost *cost)
{
    double behind = sequence_parallel ? cost->part_s[PROFILE_PART_COMPUTE] : weight_products_s;
    double hidden = fmin(cost->part_s[PROFILE_PART_TP], behind);

    cost->part_s[PROFILE_PART_TP] -= hidden;
    cost->part_s[PROFILE_PART_COMPUTE] += profile->parameters.interference_fraction * hidden;
}

/* Forward has a third of a layer's host time, backward two thirds: it issues two kernels for each
 * of the forward's. */
double
cost_host_layer_s(const Profile *profile, const ProfileQuery *query, ProfilePass pass)
{
    if (query->part != MODEL_PART_LAYER)
        return 0.0;
    return profile->parameters.host_layer_s / 3.0 * (pass == PROFILE_PASS_BACKWARD ? 2.0 : 1.0);
}

double
cost_host_framework_s(const ProfileQuery *query, const ModelOp *op, ProfilePass pass)
{
    return op->kind == MODEL_OP_COLLECTIVE ? 0.0 : cost_n_kernels(op, pass) * query->host_kernel_s;
}

/* What the weight gradient's product takes longer because it adds to a sum: it reads and writes
 * @bytes more while it computes. */
static double
fused_accumulate_s(const Profile *profile, const ModelDevice *device, const ModelOp *op,
                   Dtype dtype, double bytes)
{
    return cost_weight_product_s(profile, device, op, dtype, bytes) -
           cost_weight_product_s(profile, device, op, dtype, 0.0);
}

/* Adding the gradients of this pass to what earlier passes left: inside the products that make
 * them, or one kernel per weight. */
double
cost_accumulate_s(const Profile *profile, const ModelDevice *device, const ProfileQuery *query,
                  const ModelOp *ops, size_t n_ops)
{
    double element_bytes = (double)dtype_bytes(query->shape.dtype);
    double seconds = 0.0;

    if (query->accumulate_bytes_per_weight <= 0.0)
        return 0.0;
    for (size_t i = 0; i < n_ops; i++) {
        double bytes =
            (double)ops[i].weight_bytes / element_bytes * query->accumulate_bytes_per_weight;

        if (ops[i].weight_bytes == 0)
            continue;
        if (query->accumulate_in_product && ops[i].kind == MODEL_OP_GEMM)
            seconds += fused_accumulate_s(profile, device, &ops[i], query->shape.dtype, bytes);
        else
            seconds += cost_memory_s(profile, device, bytes) + profile->parameters.kernel_s;
    }
    return seconds;
}

static ProfileCost
modelled_part(const Profile *profile, const ProfileQuery *query, ProfilePass pass)
{
    const ModelDevice *device = query_device(profile, query);
    ModelOp ops[MODEL_MAX_OPS];
    size_t n_ops = model_ops(query->arch, query->part, query->layer, &query->shape, ops);
    ProfileCost sum = {.source = PROFILE_SOURCE_MODELLED};
    double ring_s = 0.0, attention_s = 0.0, weight_products_s = 0.0;

    if (n_ops == 0)
        return sum;
    for (size_t i = 0; i < n_ops; i++) {
        ProfileCost cost =
            profile_cost_op(profile, device, &ops[i], pass, query->shape.dtype, query->groups);

        cost.host_s += cost_host_framework_s(query, &ops[i], pass);
        add_cost(&sum, &cost);
        if (ops[i].kind == MODEL_OP_ATTENTION)
            attention_s += cost.part_s[PROFILE_PART_COMPUTE];
        if (ops[i].kind == MODEL_OP_GEMM && pass == PROFILE_PASS_BACKWARD)
            weight_products_s +=
                cost_weight_product_s(profile, device, &ops[i], query->shape.dtype, 0.0);
        ring_s += cost.part_s[PROFILE_PART_CP];
    }
    if (pass == PROFILE_PASS_BACKWARD || pass == PROFILE_PASS_BACKWARD_WEIGHT)
        sum.part_s[PROFILE_PART_COMPUTE] += cost_accumulate_s(profile, device, query, ops, n_ops);
    /* An all-to-all, or a gathering, is needed whole before attention begins. */
    if (ring_s > 0.0 && !query->shape.all_to_all && !query->shape.gathered_kv)
        hide_ring(profile, &sum, ring_s, attention_s, query->shape.cp);
    if (query->overlap_tp)
        hide_tp(profile, query->shape.sequence_parallel, weight_products_s, &sum);
    sum.host_s += cost_host_layer_s(profile, query, pass);
    return sum;
}

ProfileCost
profile_cost_part(const Profile *profile, const ProfileQuery *query, ProfilePass pass)
{
    ProfileCost cost = {.source = PROFILE_SOURCE_MODELLED};

    g_return_val_if_fail(profile != NULL && query != NULL && pass < PROFILE_PASS_N, cost);

    if (query->arch->vocab == 0 && query->part != MODEL_PART_LAYER)
        return cost;
    cost = modelled_part(profile, query, pass);
    profile_measured_part(profile, query, pass, &cost);
    return cost;
}

ProfileCost
profile_cost_recompute(const Profile *profile, const ProfileQuery *query, bool full)
{
    const ModelDevice *device;
    ModelOp ops[MODEL_MAX_OPS];
    ProfileCost sum = {.source = PROFILE_SOURCE_MODELLED};
    size_t n_ops;

    g_return_val_if_fail(profile != NULL && query != NULL, sum);

    if (full) {
        ProfileCost forward = profile_cost_part(profile, query, PROFILE_PASS_FORWARD);

        sum.source = forward.source;
        sum.host_s = forward.host_s;
        for (int i = 0; i < PROFILE_PART_N; i++)
            sum.part_s[PROFILE_PART_RECOMPUTE] += forward.part_s[i];
        return sum;
    }
    device = query_device(profile, query);
    n_ops = model_ops(query->arch, query->part, query->layer, &query->shape, ops);
    for (size_t i = 0; i < n_ops; i++) {
        ProfileCost cost;

        if (!ops[i].core_attention)
            continue;
        cost = profile_cost_op(profile, device, &ops[i], PROFILE_PASS_FORWARD, query->shape.dtype,
                               query->groups);
        sum.part_s[PROFILE_PART_RECOMPUTE] += cost.part_s[PROFILE_PART_COMPUTE];
        sum.host_s += cost.host_s + cost_host_framework_s(query, &ops[i], PROFILE_PASS_FORWARD);
    }
    return sum;
}
