#include "profiles/cost/cost.h"

#include "base/real.h"
#include "profiles/cost/measured.h"

#include <math.h>

/* --- optimizer --- */

double
profile_cost_optimizer_s(const Profile *profile, const ModelDevice *device, int64_t n_elements,
                         double bytes_per_element)
{
    double seconds;

    g_return_val_if_fail(profile != NULL && device != NULL && n_elements >= 0, 0.0);

    if (n_elements == 0)
        return 0.0;
    if (profile_measured_optimizer(profile, n_elements, &seconds))
        return seconds;
    return profile_cost_memory_s(profile, device, (double)n_elements * bytes_per_element) +
           profile->parameters.kernel_s;
}

/* --- parts: the sum of a part's ops, what hides behind what, and the host --- */

static void
add_cost(ProfileCost *sum, const ProfileCost *cost)
{
    for (int i = 0; i < PROFILE_PART_N; i++)
        sum->part_s[i] += cost->part_s[i];
    sum->host_s += cost->host_s;
}

/*
 * Hides up to @behind_s of @hidden_s, communication of @part, behind computing, which slows down
 * meanwhile; what is longer stays visible.
 *
 * K and V travel while the scores of what has arrived are computed  [ring attention, 2310.01889]:
 * behind the attention of all but the first share.  PyTorch's are gathered at once, forward behind that of the
 * first share, since the second waits for all.
 *
 * Tensor parallelism: with sequence parallelism gathers and scatters are cut up and travel while
 * the product next to them computes [userbuffers of Transformer Engine].  An all-reduce cannot: its
 * result is needed whole.  Only the input gradient's hides, behind the weight gradient's products
 * [2205.05198, 5.3: the baseline overlaps these two].  Megatron's backward does that, and with sequence
 * parallelism more, without being asked (ModelColumns): product by product.
 *
 * Experts: the forward of one micro-batch and the backward of another are merged layer by layer, and
 * the all-to-alls of each hide behind the computing of the other [2412.19437 3.2.1; Megatron-Core's
 * combined 1F1B].  Both passes have as much to hide, and about as much to hide it behind, as if each
 * hid behind its own.
 */
static void
hide(const Profile *profile, ProfilePart part, double hidden_s, double behind_s, ProfileCost *cost)
{
    hidden_s = real_min(hidden_s, behind_s);
    cost->part_s[part] -= hidden_s;
    cost->part_s[PROFILE_PART_COMPUTE] += profile->parameters.interference_fraction * hidden_s;
}

/* Calls of the framework by which each pass of a layer grows where passes are merged: five parts
 * (attention, dispatch, experts, combine, what follows) each pass events between two
 * streams and call autograd for themselves (cost-model.md 2.5). */
#define MERGED_CALLS 10.0

/* Of the framework for a kernel of @pass. */
static double
framework_kernel_s(const ProfileQuery *query, ProfilePass pass)
{
    return pass == PROFILE_PASS_FORWARD ? query->host_kernel_s : query->host_backward_kernel_s;
}

static double
merging_s(const Profile *profile, const ProfileQuery *query, ProfilePass pass)
{
    if (query->part != MODEL_PART_LAYER || !query->overlap_ep ||
        query->shape.graphs >= (int)MODEL_SCOPE_LAYER)
        return 0.0;
    return MERGED_CALLS * (framework_kernel_s(query, pass) + profile->parameters.host_kernel_s);
}

/* Forward has a third of a layer's host time, backward two thirds: it issues two kernels for each
 * of the forward's. */
static double
host_layer_s(const Profile *profile, const ProfileQuery *query, ProfilePass pass)
{
    if (query->part != MODEL_PART_LAYER || query->shape.graphs >= (int)MODEL_SCOPE_LAYER)
        return 0.0;
    return profile->parameters.host_layer_s / 3.0 * (pass == PROFILE_PASS_BACKWARD ? 2.0 : 1.0);
}

/* Products of experts are one call of the framework, whose library launches them in a loop; so are,
 * about, what is done to each expert's rows. */
static double
host_framework_s(const ProfileQuery *query, const ModelOp *op, ProfilePass pass)
{
    const bool loops = op->kind == MODEL_OP_GEMM || op->kind == MODEL_OP_MEMORY;
    const double n = loops ? (double)MAX(1, op->count) : 1.0;

    return op->kind == MODEL_OP_COLLECTIVE
               ? 0.0
               : (profile_op_kernels(op, pass) + profile_op_quantising(op, pass)) / n *
                     framework_kernel_s(query, pass);
}

/* Experts with quantised operands, which are tensors of their own, unless one kernel takes all. */
static double
host_experts_s(const ProfileQuery *query, const ModelOp *op, ProfilePass pass)
{
    return op->expert && !op->one_kernel ? profile_op_quantising(op, pass) * query->host_expert_s
                                         : 0.0;
}

/* Host time of @op, @host_s without the framework: none where a graph holds it. */
static double
host_of_op_s(const ProfileQuery *query, const ModelOp *op, ProfilePass pass, double host_s)
{
    return op->captured
               ? 0.0
               : host_s + host_framework_s(query, op, pass) + host_experts_s(query, op, pass);
}

/* What an op takes of device and host, and its kernels. */
typedef struct {
    double device_s, host_s, n_kernels;
} OpTime;

/*
 * How long the device rests in a layer whose host waits, before it launches op @first, until the device
 * has come so far.  From then on both begin at once: an op begins when the one before it has ended and
 * its first kernel is launched, and ends no sooner than its last kernel takes after its launch.  The
 * ops before @first are those of the next layer, up to its wait.
 */
static double
rest_s(const OpTime *times, size_t n, size_t first)
{
    double device_s = 0.0, host_s = 0.0, busy_s = 0.0;

    for (size_t i = 0; i < n; i++) {
        const OpTime *op = &times[(first + i) % n];
        const double kernels = real_max(1.0, op->n_kernels);
        const double begin_s = real_max(device_s, host_s + op->host_s / kernels);

        host_s += op->host_s;
        device_s = real_max(begin_s + op->device_s, host_s + op->device_s / kernels);
        busy_s += op->device_s;
    }
    return device_s - busy_s;
}

/* Adding the gradients of this pass to what earlier passes left: one kernel per weight, or inside
 * the products that make them, which then read and write more while they compute. */
static double
accumulate_s(const Profile *profile, const ModelDevice *device, const ProfileQuery *query,
             const ModelOp *ops, size_t n_ops)
{
    double seconds = 0.0;

    if (query->accumulate_bytes_per_weight <= 0.0)
        return 0.0;
    for (size_t i = 0; i < n_ops; i++) {
        const Dtype dtype = profile_op_dtype(&ops[i], query->shape.dtype);
        double bytes = (double)ops[i].weight_bytes / (double)dtype_bytes(dtype) *
                       query->accumulate_bytes_per_weight;

        if (ops[i].weight_bytes == 0 || ops[i].frozen)
            continue;
        if (query->accumulate_in_product && ops[i].kind == MODEL_OP_GEMM)
            seconds +=
                profile_cost_weight_product_s(profile, device, &ops[i], dtype, bytes, false) -
                profile_cost_weight_product_s(profile, device, &ops[i], dtype, 0.0, false);
        else
            seconds += profile_cost_memory_s(profile, device, bytes) + profile->parameters.kernel_s;
    }
    return seconds;
}

/* Lists the ops that @query is about.  @sliced: as any slices of its sequences may have them at the
 * least. */
static size_t
list_ops(const ProfileQuery *query, bool sliced, ModelOp ops[MODEL_MAX_OPS])
{
    ModelShape shape = query->shape;

    /* A softmax kernel that the sequence is too long for may take a slice. */
    if (sliced)
        shape.softmax_keys = 0;
    const size_t n_ops = model_ops(query->arch, query->part, query->layer, &shape, ops);
    /* Each expert's rows are rounded to whole ones. */
    for (size_t i = 0; sliced && i < n_ops; i++)
        if (ops[i].kind == MODEL_OP_GEMM && ops[i].count > 1)
            ops[i].m = MAX(0, ops[i].m - 1);
    return n_ops;
}

/* The listed ops of one pass, before anything hides and gradients are added. */
typedef struct {
    ProfileCost sum;
    double ring_s, attention_s, weight_products_s;
    double beside_s; /* of tp's collectives, what runs beside the products of their input */
    bool host_waits;
    double rest_s; /* of the device meanwhile */
} PassSum;

/* Whether collectives of tp hide in @pass. */
static bool
hides_tp(const ProfileQuery *query, ProfilePass pass)
{
    return query->overlap_tp && (pass == PROFILE_PASS_FORWARD || !query->overlap_tp_forward);
}

/* Whether @pass computes weight gradients beside which tp sums those of inputs. */
static bool
sums_beside(const ProfileQuery *query, ProfilePass pass)
{
    return query->sums_beside && query->shape.tp > 1 && pass == PROFILE_PASS_BACKWARD &&
           !hides_tp(query, pass);
}

/* The collectives of one input of tp's products in a backward, and the products. */
typedef struct {
    double sum_s, again_s, input_products_s, weight_products_s;
} ColumnTimes;

/* What of the collectives runs beside the products. */
static double
columns_beside_s(const ColumnTimes *t)
{
    return real_min(t->sum_s, t->weight_products_s) + real_min(t->again_s, t->input_products_s);
}

/* Adds @op to the times of its input. */
static void
add_columns(const Profile *profile, const ModelDevice *device, const ProfileQuery *query,
            bool sliced, const ModelOp *op, double comm_s, ColumnTimes *times)
{
    switch (op->columns) {
    case MODEL_COLUMNS_NONE:
        break;
    case MODEL_COLUMNS_GRADIENT:
        times->sum_s += comm_s;
        break;
    case MODEL_COLUMNS_AGAIN:
        times->again_s += comm_s;
        break;
    case MODEL_COLUMNS_PRODUCT:
        times->input_products_s +=
            profile_cost_sliced_op(profile, device, op, PROFILE_PASS_BACKWARD_INPUT,
                                   query->shape.dtype, query->groups, sliced)
                .part_s[PROFILE_PART_COMPUTE];
        if (!op->frozen)
            times->weight_products_s += profile_cost_weight_product_s(
                profile, device, op, profile_op_dtype(op, query->shape.dtype), 0.0, sliced);
        break;
    }
}

/* What an op takes in each pass that is asked about. */
typedef struct {
    ProfileCost passes[PROFILE_PASS_N];
} OpCosts;

/* Adds up the @costs of the listed ops in @pass.  @sliced: as in finish_pass(). */
static PassSum
sum_ops(const Profile *profile, const ModelDevice *device, const ProfileQuery *query,
        ProfilePass pass, bool sliced, const ModelOp *ops, const OpCosts *costs, size_t n_ops)
{
    PassSum all = {.sum = {.source = PROFILE_SOURCE_MODELLED}};
    OpTime times[MODEL_MAX_OPS];
    ColumnTimes columns = {0};
    const bool beside = sums_beside(query, pass);
    size_t waits = MODEL_MAX_OPS;

    for (size_t i = 0; i < n_ops; i++) {
        ProfileCost cost = costs[i].passes[pass];

        cost.host_s = host_of_op_s(query, &ops[i], pass, cost.host_s);
        add_cost(&all.sum, &cost);
        times[i] =
            (OpTime){profile_cost_device_s(&cost), cost.host_s, profile_op_kernels(&ops[i], pass)};
        if (ops[i].after_wait)
            waits = i;
        if (ops[i].kind == MODEL_OP_ATTENTION)
            all.attention_s += cost.part_s[PROFILE_PART_COMPUTE];
        if (hides_tp(query, pass) && ops[i].kind == MODEL_OP_GEMM && !ops[i].frozen &&
            pass == PROFILE_PASS_BACKWARD)
            all.weight_products_s += profile_cost_weight_product_s(
                profile, device, &ops[i], profile_op_dtype(&ops[i], query->shape.dtype), 0.0,
                sliced);
        if (beside && ops[i].columns == MODEL_COLUMNS_GRADIENT) {
            all.beside_s += columns_beside_s(&columns);
            columns = (ColumnTimes){0};
        }
        if (beside)
            add_columns(profile, device, query, sliced, &ops[i], cost.part_s[PROFILE_PART_TP],
                        &columns);
        all.ring_s += cost.part_s[PROFILE_PART_CP];
    }
    all.beside_s += columns_beside_s(&columns);
    /* Where passes are merged the device has the other one to do. */
    all.host_waits = waits < n_ops && pass == PROFILE_PASS_FORWARD && !sliced && !query->overlap_ep;
    if (all.host_waits)
        all.rest_s = rest_s(times, n_ops, waits);
    return all;
}

/*
 * What the pass takes whose ops are summed in @all.
 * @accumulated_s  what adding the gradients of the pass takes.
 * @sliced: at most what any slices of the sequences of @query take together, without what depends
 * on how many they are.  Why: what ops take is added and hidden by functions f of several times
 * that grow with each of them and have f(x + y) <= f(x) + f(y), f(a x) = a f(x): sums, maxima, and
 * c + t - (1 - i) min(t, q a), where a is a part of c, 0 <= i, q <= 1.  So the sum of f over slices
 * is at least f of sums, and f of what bounds these.
 */
static ProfileCost
finish_pass(const Profile *profile, const ProfileQuery *query, ProfilePass pass, bool sliced,
            const PassSum *all, double accumulated_s)
{
    ProfileCost sum = all->sum;
    const double cp = (double)query->shape.cp;

    if (!sliced && (pass == PROFILE_PASS_BACKWARD || pass == PROFILE_PASS_BACKWARD_WEIGHT))
        sum.part_s[PROFILE_PART_COMPUTE] += accumulated_s;
    /* An all-to-all, or a gathering, is needed whole before attention begins. */
    if (all->ring_s > 0.0 && !query->shape.all_to_all && !query->shape.gathered_kv) {
        const bool at_once = query->shape.torch_ring && pass == PROFILE_PASS_FORWARD;
        hide(profile, PROFILE_PART_CP, all->ring_s,
             all->attention_s * (at_once ? 1.0 : cp - 1.0) / cp, &sum);
    }
    if (hides_tp(query, pass))
        hide(profile, PROFILE_PART_TP, sum.part_s[PROFILE_PART_TP],
             query->shape.sequence_parallel ? sum.part_s[PROFILE_PART_COMPUTE]
                                            : all->weight_products_s,
             &sum);
    else
        hide(profile, PROFILE_PART_TP, sum.part_s[PROFILE_PART_TP], all->beside_s, &sum);
    if (query->overlap_ep)
        hide(profile, PROFILE_PART_EP, sum.part_s[PROFILE_PART_EP],
             sum.part_s[PROFILE_PART_COMPUTE], &sum);
    sum.host_s += host_layer_s(profile, query, pass) + merging_s(profile, query, pass);
    if (all->host_waits)
        sum.host_s = real_max(sum.host_s, profile_cost_device_s(&sum) + all->rest_s);
    return sum;
}

/* One pass of the listed ops; of none, nothing. */
static ProfileCost
pass_cost(const Profile *profile, const ModelDevice *device, const ProfileQuery *query,
          ProfilePass pass, bool sliced, const ModelOp *ops, size_t n_ops, double accumulated_s)
{
    OpCosts costs[MODEL_MAX_OPS];

    if (n_ops == 0)
        return (ProfileCost){.source = PROFILE_SOURCE_MODELLED};
    for (size_t i = 0; i < n_ops; i++)
        costs[i].passes[pass] = profile_cost_sliced_op(profile, device, &ops[i], pass,
                                                       query->shape.dtype, query->groups, sliced);
    const PassSum all = sum_ops(profile, device, query, pass, sliced, ops, costs, n_ops);
    return finish_pass(profile, query, pass, sliced, &all, accumulated_s);
}

/* Whether the model has the part that @query is about. */
static bool
has_part(const ProfileQuery *query)
{
    return query->arch->vocab > 0 || query->part == MODEL_PART_LAYER;
}

/* What selective recompute repeats of the listed ops.  @costs: (nullable) their forward, if it is known. */
static ProfileCost
repeated_ops(const Profile *profile, const ModelDevice *device, const ProfileQuery *query,
             const ModelOp *ops, const OpCosts *costs, size_t n_ops)
{
    ProfileCost sum = {.source = PROFILE_SOURCE_MODELLED};

    for (size_t i = 0; i < n_ops; i++) {
        if (ops[i].again_fraction <= 0.0)
            continue;
        const ProfileCost cost =
            costs != NULL ? costs[i].passes[PROFILE_PASS_FORWARD]
                          : profile_cost_op(profile, device, &ops[i], PROFILE_PASS_FORWARD,
                                            query->shape.dtype, query->groups);
        sum.part_s[PROFILE_PART_RECOMPUTE] += ops[i].again_fraction * profile_cost_device_s(&cost);
        sum.host_s += host_of_op_s(query, &ops[i], PROFILE_PASS_FORWARD, cost.host_s);
    }
    return sum;
}

ProfileCost
profile_cost_part(const Profile *profile, const ProfileQuery *query, ProfilePass pass)
{
    ProfileCost cost = {.source = PROFILE_SOURCE_MODELLED};
    ModelOp ops[MODEL_MAX_OPS];

    g_return_val_if_fail(profile != NULL && query != NULL && pass < PROFILE_PASS_N, cost);

    if (!has_part(query))
        return cost;
    const ModelDevice *device = model_cluster_device(profile->cluster, query->rank);
    const size_t n_ops = list_ops(query, false, ops);
    const double accumulated_s =
        pass == PROFILE_PASS_FORWARD ? 0.0 : accumulate_s(profile, device, query, ops, n_ops);
    cost = pass_cost(profile, device, query, pass, false, ops, n_ops, accumulated_s);
    profile_measured_part(profile, query, pass, &cost);
    return cost;
}

ProfilePartCosts
profile_cost_passes(const Profile *profile, const ProfileQuery *query)
{
    ProfilePartCosts costs = {0};
    ModelOp ops[MODEL_MAX_OPS];
    OpCosts op_costs[MODEL_MAX_OPS];

    g_return_val_if_fail(profile != NULL && query != NULL, costs);

    if (!has_part(query))
        return costs;
    const ModelDevice *device = model_cluster_device(profile->cluster, query->rank);
    const size_t n_ops = list_ops(query, false, ops);
    const double accumulated_s = accumulate_s(profile, device, query, ops, n_ops);
    for (size_t i = 0; i < n_ops; i++)
        profile_cost_op_passes(profile, device, &ops[i], query->shape.dtype, query->groups,
                               op_costs[i].passes);
    for (ProfilePass pass = 0; pass < PROFILE_PASS_N; pass++) {
        const PassSum all = sum_ops(profile, device, query, pass, false, ops, op_costs, n_ops);
        if (n_ops == 0)
            continue;
        costs.passes[pass] = finish_pass(profile, query, pass, false, &all, accumulated_s);
        costs.first[pass] = finish_pass(profile, query, pass, false, &all, 0.0);
        profile_measured_part(profile, query, pass, &costs.passes[pass]);
        profile_measured_part(profile, query, pass, &costs.first[pass]);
    }
    if (query->part == MODEL_PART_LAYER)
        costs.selective = repeated_ops(profile, device, query, ops, op_costs, n_ops);
    return costs;
}

ProfileCost
profile_cost_again(const ProfileCost *forward)
{
    ProfileCost again = {.source = forward->source, .host_s = forward->host_s};

    again.part_s[PROFILE_PART_RECOMPUTE] = profile_cost_device_s(forward);
    return again;
}

ProfileCost
profile_cost_recompute(const Profile *profile, const ProfileQuery *query, bool full)
{
    ModelOp ops[MODEL_MAX_OPS];

    g_return_val_if_fail(profile != NULL && query != NULL, (ProfileCost){0});

    if (full) {
        const ProfileCost forward = profile_cost_part(profile, query, PROFILE_PASS_FORWARD);

        return profile_cost_again(&forward);
    }
    return repeated_ops(profile, model_cluster_device(profile->cluster, query->rank), query, ops,
                        NULL, list_ops(query, false, ops));
}

/* --- what slicing cannot save --- */

/* Measured collectives and copies keep to no law: products with weights alone, at the rate of whole
 * tiles. */
static double
products_s(const Profile *profile, const ProfileQuery *query, ProfilePass pass)
{
    const ModelDevice *device = model_cluster_device(profile->cluster, query->rank);
    const bool forward = pass == PROFILE_PASS_FORWARD;
    ModelOp ops[MODEL_MAX_OPS];
    const size_t n = model_ops(query->arch, query->part, query->layer, &query->shape, ops);
    double seconds = 0.0;

    for (size_t i = 0; i < n; i++) {
        /* Each expert's rows are rounded to whole ones. */
        const double m = (double)ops[i].m - (ops[i].count > 1 ? 1.0 : 0.0);
        const double n_products = forward || ops[i].frozen ? 1.0 : 2.0;
        if (ops[i].kind == MODEL_OP_GEMM && ops[i].weight_bytes > 0)
            seconds +=
                n_products * 2.0 * (double)ops[i].count * real_max(0.0, m) * (double)ops[i].n *
                (double)ops[i].k /
                profile_peak_flops_per_s(device, profile_op_dtype(&ops[i], query->shape.dtype));
    }
    return seconds / profile->parameters.gemm_fraction;
}

/* The same where the profile has measured rows. */
static double
measured_floor_s(const Profile *profile, const ProfileQuery *query, ProfilePass pass)
{
    double seconds, input_s, weight_s;

    if (!profile_measured_sliced_floor(profile, query, pass, &seconds))
        return products_s(profile, query, pass);
    /* Halves that were measured apart may take less than the whole. */
    if (pass == PROFILE_PASS_BACKWARD &&
        profile_measured_sliced_floor(profile, query, PROFILE_PASS_BACKWARD_INPUT, &input_s) &&
        profile_measured_sliced_floor(profile, query, PROFILE_PASS_BACKWARD_WEIGHT, &weight_s))
        seconds = real_min(seconds, input_s + weight_s);
    return seconds;
}

/* What selective recompute repeats of the ops that were listed for any slices. */
static double
repeated_floor_s(const Profile *profile, const ModelDevice *device, const ProfileQuery *query,
                 const ModelOp *ops, size_t n_ops)
{
    double seconds = 0.0;

    for (size_t i = 0; i < n_ops; i++)
        if (ops[i].again_fraction > 0.0)
            seconds += ops[i].again_fraction *
                       profile_cost_sliced_op(profile, device, &ops[i], PROFILE_PASS_FORWARD,
                                              query->shape.dtype, query->groups, true)
                           .part_s[PROFILE_PART_COMPUTE];
    return seconds;
}

ProfileSlicedFloors
profile_cost_sliced_floors(const Profile *profile, const ProfileQuery *query)
{
    const ModelDevice *device = model_cluster_device(profile->cluster, query->rank);
    ProfileSlicedFloors floors = {0};
    ModelOp ops[MODEL_MAX_OPS];

    if (!has_part(query))
        return floors;
    if (profile->measurements->len > 0) {
        floors.forward_s = measured_floor_s(profile, query, PROFILE_PASS_FORWARD);
        floors.backward_s = measured_floor_s(profile, query, PROFILE_PASS_BACKWARD);
        return floors;
    }
    const size_t n_ops = list_ops(query, true, ops);
    const ProfileCost forward =
        pass_cost(profile, device, query, PROFILE_PASS_FORWARD, true, ops, n_ops, 0.0);
    const ProfileCost backward =
        pass_cost(profile, device, query, PROFILE_PASS_BACKWARD, true, ops, n_ops, 0.0);
    floors.forward_s = profile_cost_device_s(&forward);
    floors.backward_s = profile_cost_device_s(&backward);
    if (query->part == MODEL_PART_LAYER)
        floors.selective_s = repeated_floor_s(profile, device, query, ops, n_ops);
    return floors;
}

ProfileAttentionFloor
profile_cost_sliced_attention_floor(const Profile *profile, const ProfileQuery *query,
                                    ProfilePass pass)
{
    const ModelDevice *device = model_cluster_device(profile->cluster, query->rank);
    const bool backward = pass != PROFILE_PASS_FORWARD;
    const Dtype dtype = query->shape.dtype;
    ProfileAttentionFloor floor = {0};
    ModelShape shape = query->shape;
    ModelOp ops[MODEL_MAX_OPS];

    if (profile->measurements->len > 0 || query->overlap_tp)
        return floor;
    shape.softmax_keys = 0;
    const size_t n = model_ops(query->arch, query->part, query->layer, &shape, ops);
    for (size_t i = 0; i < n; i++) {
        if (ops[i].kind != MODEL_OP_ATTENTION)
            continue;
        const double all_s =
            profile_cost_sliced_op(profile, device, &ops[i], pass, dtype, query->groups, true)
                .part_s[PROFILE_PART_COMPUTE] -
            profile_op_launches_s(profile, &ops[i], backward, profile_op_kernels(&ops[i], pass));
        floor.all_s += all_s;
        floor.beside_rows_s +=
            all_s - profile_op_attention_rows_s(profile, device, &ops[i], pass, dtype);
        if (backward)
            floor.contexts_s += profile_op_attention_keys_s(profile, device, &ops[i], dtype);
    }
    return floor;
}

/* One pass of a slice of the listed ops. */
static ProfileSliceFloor
slice_floor(const Profile *profile, const ModelDevice *device, const ProfileQuery *query,
            ProfilePass pass, const ModelOp *ops, size_t n_ops)
{
    const bool backward = pass != PROFILE_PASS_FORWARD;
    const bool is_ring = !query->shape.all_to_all && !query->shape.gathered_kv;
    ProfileSliceFloor floor = {.host_s = host_layer_s(profile, query, pass)};

    for (size_t i = 0; i < n_ops; i++) {
        const ProfileCost cost =
            profile_cost_op(profile, device, &ops[i], pass, query->shape.dtype, query->groups);
        floor.host_s += host_of_op_s(query, &ops[i], pass, cost.host_s);
        /* Attention depends on the context, all but its launches and what its blocks do once. */
        if (ops[i].kind == MODEL_OP_ATTENTION)
            floor.device_s +=
                profile_op_launches_s(profile, &ops[i], backward,
                                      profile_op_kernels(&ops[i], pass)) +
                (query->overlap_tp ? 0.0
                                   : profile_op_attention_rows_s(profile, device, &ops[i], pass,
                                                                 query->shape.dtype));
        else
            floor.device_s += cost.part_s[PROFILE_PART_COMPUTE];
        /* Collectives of tp, and those of a ring, may hide. */
        const bool hides =
            query->overlap_tp || (sums_beside(query, pass) && ops[i].columns != MODEL_COLUMNS_NONE);
        floor.device_s += cost.part_s[PROFILE_PART_EP] +
                          (hides ? 0.0 : cost.part_s[PROFILE_PART_TP]) +
                          (is_ring ? 0.0 : cost.part_s[PROFILE_PART_CP]);
    }
    if (pass == PROFILE_PASS_BACKWARD)
        floor.device_s += accumulate_s(profile, device, query, ops, n_ops);
    return floor;
}

ProfileSliceFloors
profile_cost_slice_floors(const Profile *profile, const ProfileQuery *query)
{
    const ModelDevice *device = model_cluster_device(profile->cluster, query->rank);
    ModelShape shape = query->shape;
    ModelOp ops[MODEL_MAX_OPS];

    if (profile->measurements->len > 0)
        return (ProfileSliceFloors){0};
    /* A kernel that this slice is too odd for may take a longer one. */
    shape.softmax_keys = 0;
    const size_t n = model_ops(query->arch, query->part, query->layer, &shape, ops);
    return (ProfileSliceFloors){
        slice_floor(profile, device, query, PROFILE_PASS_FORWARD, ops, n),
        slice_floor(profile, device, query, PROFILE_PASS_BACKWARD, ops, n),
    };
}
