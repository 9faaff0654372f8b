#include "profiles/workload_build.h"

#include "base/units.h"
#include "profiles/measured.h"

#include <math.h>
#include <string.h>

#define INT "%" G_GINT64_FORMAT

/* --- groups and shapes --- */

ProfileGroup
workload_build_dense_group(const WorkloadBuild *build, int32_t rank)
{
    const PlanDegrees *d = &build->plan->degrees;

    return (ProfileGroup){workload_build_first_device(build, rank), d->tp, d->cp * d->dp};
}

/* Experts are spread over ep consecutive devices of the stage, whatever their tp, cp and dp. */
ProfileGroup
workload_build_expert_group(const WorkloadBuild *build, int32_t rank)
{
    const PlanDegrees *d = &build->plan->degrees;

    return (ProfileGroup){workload_build_first_device(build, rank), d->ep,
                          MAX(1, d->tp * d->cp * d->dp / d->ep)};
}

ModelShape
workload_build_shape(const WorkloadBuild *build, int32_t class_, int32_t slice)
{
    const Plan *plan = build->plan;
    int64_t context = 0;

    for (int32_t i = 0; i < slice; i++)
        context += g_array_index(plan->slices, int64_t, (guint)i);
    return (ModelShape){
        .batch = build->class_sequences[class_],
        .tokens = g_array_index(plan->slices, int64_t, (guint)slice),
        .context = context,
        .tp = plan->degrees.tp,
        .cp = plan->degrees.cp,
        .ep = plan->degrees.ep,
        .sequence_parallel = plan->sequence_parallel,
        .flash_attention = plan->conventions.attention == PLAN_ATTENTION_FLASH,
        .dropout = plan->conventions.dropout,
        .dtype = plan->dtype,
        .expert_imbalance = 1.0,
    };
}

int
workload_build_layer_kind(const WorkloadBuild *build, int64_t layer)
{
    return model_layer_is_moe(build->arch, layer) ? 1 : 0;
}

int64_t
workload_build_layer_of_kind(const WorkloadBuild *build, int kind)
{
    int64_t layer = kind == 0 ? 0 : build->arch->n_layers - 1;

    return workload_build_layer_kind(build, layer) == kind ? layer : -1;
}

/* --- what frameworks do --- */

/*
 * Host time per layer, forward and backward, beyond host_kernel_s per kernel: Python modules and
 * autograd of the eager frameworks (cost-model.md 2.5).
 */
static double
framework_host_layer_s(PlanFramework framework)
{
    switch (framework) {
    case PLAN_FRAMEWORK_MEGATRON_LM:
    case PLAN_FRAMEWORK_MEGATRON_DEEPSPEED:
    case PLAN_FRAMEWORK_TERAPIPE:
        return 2.4e-3;
    case PLAN_FRAMEWORK_DEEPSPEED:
        return 1.6e-3;
    case PLAN_FRAMEWORK_MEGATRON_CORE:
    case PLAN_FRAMEWORK_FSDP:
        return 0.8e-3;
    case PLAN_FRAMEWORK_DEGAS:
    case PLAN_FRAMEWORK_N:
        break;
    }
    return 0.0;
}

/*
 * Bytes moved per weight to add a gradient to those of earlier micro-batches and slices
 * (cost-model.md 2.4).
 *   fp32 main gradients, added by a kernel: read the new one (e), read and write the sum
 *   fused into the product (Megatron-Core): reads and writes the sum instead of writing e
 *   autograd's own: as the first, but the first gradient of an iteration is kept as it is
 */
static double
accumulate_bytes_per_weight(const Plan *plan)
{
    double e = (double)dtype_bytes(plan->dtype);
    double g = (double)dtype_bytes(plan->conventions.grad_dtype);
    double n = (double)plan->n_microbatches * (double)plan->slices->len;

    switch (plan->conventions.framework) {
    case PLAN_FRAMEWORK_MEGATRON_LM:
        return e + 2.0 * g;
    case PLAN_FRAMEWORK_MEGATRON_CORE:
        return fmax(0.0, 2.0 * g - e);
    case PLAN_FRAMEWORK_DEGAS:
        return g * (n - 1.0) / n;
    default:
        return (e + 2.0 * g) * (n - 1.0) / n;
    }
}

/* Bytes moved per parameter by Adam: moments and master copy read and written, the weight written,
 * the gradient read for its norm and for the step, and zeroed.  Gradients in 16 bits are first
 * copied to 32 (cost-model.md 5.2). */
static double
optimizer_bytes(const Plan *plan)
{
    double weight = (double)dtype_bytes(plan->dtype);
    double gradient = (double)dtype_bytes(plan->conventions.grad_dtype);

    if (weight == 4.0)
        return 24.0 + 4.0 + 8.0;
    if (gradient == 4.0)
        return 24.0 + weight + 12.0;
    return 24.0 + weight + gradient * 2.0 + 12.0;
}

/* --- where a stage runs --- */

/* One pipeline rank's place; equal places have equal costs. */
typedef struct {
    int64_t device_rank; /* the slowest of its devices */
    const ModelDevice *device;
    ProfileGroup groups[3];
    int64_t memory_bytes; /* the least */
} Place;

static bool
is_slower(const ModelDevice *a, const ModelDevice *b, Dtype dtype)
{
    if (a->flops_per_s[dtype] != b->flops_per_s[dtype])
        return a->flops_per_s[dtype] < b->flops_per_s[dtype];
    return a->memory_bytes_per_s < b->memory_bytes_per_s;
}

static Place
place_of_rank(const WorkloadBuild *build, int32_t rank)
{
    const ModelCluster *cluster = build->profile->cluster;
    const PlanDegrees *d = &build->plan->degrees;
    int64_t first = workload_build_first_device(build, rank);
    int64_t end = first + d->dp * d->cp * d->tp, begin = 0;
    Place place = {
        .device_rank = first,
        .device = model_cluster_device(cluster, first),
        .groups =
            {
                [MODEL_GROUP_TP] = {first, 1, d->tp},
                [MODEL_GROUP_CP] = {first, d->tp, d->cp},
                [MODEL_GROUP_EP] = {first, 1, d->ep},
            },
    };

    place.memory_bytes = place.device->memory_bytes;
    for (guint i = 0; i < cluster->nodes->len && begin < end; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        int64_t next = begin + nodes->n_devices * nodes->n_nodes;

        if (next > first) {
            int64_t at = MAX(begin, first);
            const ModelDevice *device = model_cluster_device(cluster, at);

            if (is_slower(device, place.device, build->plan->dtype)) {
                place.device = device;
                place.device_rank = at;
            }
            place.memory_bytes = MIN(place.memory_bytes, device->memory_bytes);
        }
        begin = next;
    }
    return place;
}

/* Devices of the node of @rank, and the first of them. */
static void
node_of(const ModelCluster *cluster, int64_t rank, int64_t *first, int64_t *n)
{
    int64_t begin = 0;

    *first = 0;
    *n = 1;
    for (guint i = 0; i < cluster->nodes->len; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        int64_t end = begin + nodes->n_devices * nodes->n_nodes;

        if (rank < end) {
            *n = nodes->n_devices;
            *first = begin + (rank - begin) / nodes->n_devices * nodes->n_devices;
            return;
        }
        begin = end;
    }
}

/* Whether ops at both places cost the same: device kind, and how every group lies. */
static bool
same_costs(const WorkloadBuild *build, const Place *a, const Place *b)
{
    const ModelCluster *cluster = build->profile->cluster;

    if (a->device != b->device)
        return false;
    for (size_t i = 0; i < G_N_ELEMENTS(a->groups); i++) {
        const ProfileGroup *ga = &a->groups[i], *gb = &b->groups[i];
        int64_t first_a, n_a, first_b, n_b;

        if (ga->n == 1)
            continue;
        node_of(cluster, ga->first, &first_a, &n_a);
        node_of(cluster, gb->first, &first_b, &n_b);
        if (n_a != n_b ||
            model_cluster_level_between(cluster, ga->first, ga->first + (ga->n - 1) * ga->stride) !=
                model_cluster_level_between(cluster, gb->first,
                                            gb->first + (gb->n - 1) * gb->stride))
            return false;
    }
    return true;
}

/* --- times of one part --- */

/* By ScheduleOpKind. */
typedef struct {
    ProfileCost cost[SCHEDULE_OP_N];
} PartCost;

static const ProfilePass pass_of_op[SCHEDULE_OP_N] = {
    [SCHEDULE_OP_FORWARD] = PROFILE_PASS_FORWARD,
    [SCHEDULE_OP_BACKWARD] = PROFILE_PASS_BACKWARD,
    [SCHEDULE_OP_BACKWARD_INPUT] = PROFILE_PASS_BACKWARD_INPUT,
    [SCHEDULE_OP_BACKWARD_WEIGHT] = PROFILE_PASS_BACKWARD_WEIGHT,
};

/*
 * ZeRO 3: parameters are gathered for forward and for backward, gradients scattered after it, all
 * behind the computing of the layer before; what is longer stays visible.
 */
static void
add_zero3(const WorkloadBuild *build, int32_t rank, ModelPart part, int64_t layer, PartCost *cost)
{
    const PlanDegrees *d = &build->plan->degrees;
    ProfileGroup group = workload_build_dense_group(build, rank);
    int64_t n = model_part_parameters(build->arch, part, layer, d->tp, d->ep, false);
    double gather, scatter;

    if (part == MODEL_PART_LAYER)
        n -= model_expert_parameters(build->arch, layer, d->tp, d->ep);
    gather = profile_cost_collective_s(build->profile, MODEL_COMM_ALL_GATHER,
                                       n * dtype_bytes(build->plan->dtype), &group);
    scatter =
        profile_cost_collective_s(build->profile, MODEL_COMM_REDUCE_SCATTER,
                                  n * dtype_bytes(build->plan->conventions.grad_dtype), &group);
    for (int kind = 0; kind < SCHEDULE_OP_N; kind++) {
        double seconds = kind == SCHEDULE_OP_FORWARD          ? gather
                         : kind == SCHEDULE_OP_BACKWARD       ? gather + scatter
                         : kind == SCHEDULE_OP_BACKWARD_INPUT ? gather
                                                              : scatter;

        cost->cost[kind].part_s[PROFILE_PART_DP] +=
            fmax(0.0, seconds - profile_cost_s(&cost->cost[kind]));
    }
}

static PartCost
part_cost(const WorkloadBuild *build, const Place *place, int32_t rank, ModelPart part,
          int64_t layer, const ModelShape *shape, PlanRecompute recompute)
{
    ProfileQuery query = {
        .arch = build->arch,
        .part = part,
        .layer = layer,
        .shape = *shape,
        .rank = place->device_rank,
        .overlap_tp = build->plan->conventions.overlap_tp,
        .accumulate_bytes_per_weight = accumulate_bytes_per_weight(build->plan),
        .host_layer_s = framework_host_layer_s(build->plan->conventions.framework),
    };
    PartCost result;

    memcpy(query.groups, place->groups, sizeof query.groups);
    for (int kind = 0; kind < SCHEDULE_OP_N; kind++)
        result.cost[kind] = profile_cost_part(build->profile, &query, pass_of_op[kind]);
    if (part == MODEL_PART_LAYER && recompute != PLAN_RECOMPUTE_NONE) {
        ProfileCost again =
            profile_cost_recompute(build->profile, &query, recompute == PLAN_RECOMPUTE_FULL);
        static const ScheduleOpKind kinds[] = {SCHEDULE_OP_BACKWARD, SCHEDULE_OP_BACKWARD_INPUT};

        for (size_t i = 0; i < G_N_ELEMENTS(kinds); i++) {
            ProfileCost *cost = &result.cost[kinds[i]];

            cost->part_s[PROFILE_PART_RECOMPUTE] += again.part_s[PROFILE_PART_RECOMPUTE];
            cost->host_s += again.host_s;
        }
    }
    if (build->plan->zero_stage >= 3)
        add_zero3(build, rank, part, layer, &result);
    return result;
}

/* Sums of seconds of one op: the larger of device and host for each part (cost-model.md 2.5). */
typedef struct {
    double total_s[SCHEDULE_OP_N];
    double part_s[SCHEDULE_OP_N][PROFILE_PART_N];
    ProfileSource source;
} OpTimes;

static void
add_part(OpTimes *times, const PartCost *part, double n)
{
    for (int kind = 0; kind < SCHEDULE_OP_N; kind++) {
        times->total_s[kind] += n * profile_cost_s(&part->cost[kind]);
        for (int i = 0; i < PROFILE_PART_N; i++)
            times->part_s[kind][i] += n * part->cost[kind].part_s[i];
    }
    times->source = MIN(times->source, part->cost[SCHEDULE_OP_FORWARD].source);
}

/* Rounds once; the parts are cut so that they sum to the op's time. */
static void
store_times(const OpTimes *times, WorkloadOp *op)
{
    for (int kind = 0; kind < SCHEDULE_OP_N; kind++) {
        int64_t left = units_ns_from_s(times->total_s[kind]);

        op->time_ns[kind] = left;
        for (int i = 0; i < PROFILE_PART_N; i++) {
            if (i == PROFILE_PART_COMPUTE)
                continue;
            op->part_ns[kind][i] = MIN(left, units_ns_from_s(times->part_s[kind][i]));
            left -= op->part_ns[kind][i];
        }
        op->part_ns[kind][PROFILE_PART_COMPUTE] = left;
    }
    op->source = times->source;
}

/* --- messages --- */

/*
 * One message between neighbouring stages (cost-model.md 3.4).  All ranks of a stage that lie on
 * the sender's node send at once over its adapters.
 *   scatter/gather: every tp rank sends its share, then all gather it
 *   broadcast: one tp rank sends everything, then broadcasts
 *   else every tp rank sends a copy (with sequence parallelism: its own part)
 */
static int64_t
message_ns(const WorkloadBuild *build, int32_t from, int32_t to, int64_t bytes)
{
    const PlanDegrees *d = &build->plan->degrees;
    const PlanConventions *c = &build->plan->conventions;
    int64_t rank_a = workload_build_first_device(build, from);
    int64_t rank_b = workload_build_first_device(build, to);
    int64_t node_first, node_n, sharing;
    ProfileGroup group = {rank_b, 1, d->tp};
    double seconds;

    node_of(build->profile->cluster, rank_a, &node_first, &node_n);
    sharing = MIN(d->dp * d->cp * d->tp, node_first + node_n - rank_a);
    if (c->broadcast_p2p && d->tp > 1 && !build->plan->sequence_parallel) {
        seconds =
            profile_cost_p2p_s(build->profile, bytes, rank_a, rank_b, MAX(1, sharing / d->tp)) +
            profile_cost_broadcast_s(build->profile, bytes, &group);
    } else if (c->scatter_gather_p2p && d->tp > 1 && !build->plan->sequence_parallel) {
        seconds = profile_cost_p2p_s(build->profile, (bytes + d->tp - 1) / d->tp, rank_a, rank_b,
                                     sharing) +
                  profile_cost_collective_s(build->profile, MODEL_COMM_ALL_GATHER, bytes, &group);
    } else {
        seconds = profile_cost_p2p_s(build->profile, bytes, rank_a, rank_b, sharing);
    }
    return units_ns_from_s(seconds);
}

static void
set_messages(const WorkloadBuild *build, int32_t chain, int32_t stage, int32_t class_,
             int32_t slice, WorkloadOp *op)
{
    ModelShape shape = workload_build_shape(build, class_, slice);
    int64_t bytes = model_boundary_bytes(build->arch, &shape);
    int32_t rank = workload_build_stage(build, chain, stage)->rank;

    if (stage + 1 < build->n_stages) {
        int32_t next = workload_build_stage(build, chain, stage + 1)->rank;

        if (next != rank) {
            op->forward_message_bytes = bytes;
            op->forward_message_ns = message_ns(build, rank, next, bytes);
        }
    }
    if (stage > 0) {
        int32_t previous = workload_build_stage(build, chain, stage - 1)->rank;

        if (previous != rank) {
            op->backward_message_bytes = bytes;
            op->backward_message_ns = message_ns(build, rank, previous, bytes);
        }
    }
}

/* --- ops --- */

/* Costs of both kinds of layer and of the ends, at one place, for one (class, slice). */
typedef struct {
    PartCost layers[WORKLOAD_LAYER_KINDS][PLAN_RECOMPUTE_N];
    bool known[WORKLOAD_LAYER_KINDS][PLAN_RECOMPUTE_N];
} LayerCosts;

static const PartCost *
layer_cost(const WorkloadBuild *build, const Place *place, int32_t rank, const ModelShape *shape,
           int64_t layer, PlanRecompute recompute, LayerCosts *costs)
{
    int kind = workload_build_layer_kind(build, layer);
    PartCost *cost = &costs->layers[kind][recompute];

    if (!costs->known[kind][recompute]) {
        *cost = part_cost(build, place, rank, MODEL_PART_LAYER, layer, shape, recompute);
        costs->known[kind][recompute] = true;
    }
    return cost;
}

static void
set_op(const WorkloadBuild *build, const Place *place, int32_t chain, int32_t stage, int32_t class_,
       int32_t slice, LayerCosts *costs, WorkloadOp *op)
{
    const PlanStage *part = workload_build_stage(build, chain, stage);
    ModelShape shape = workload_build_shape(build, class_, slice);
    OpTimes times = {.source = PROFILE_SOURCE_MEASURED};

    for (int64_t i = 0; i < part->n_layers; i++)
        add_part(&times,
                 layer_cost(build, place, part->rank, &shape, part->first_layer + i,
                            part->recompute, costs),
                 1.0);
    if (part->embedding) {
        PartCost cost = part_cost(build, place, part->rank, MODEL_PART_EMBEDDING, 0, &shape,
                                  PLAN_RECOMPUTE_NONE);

        add_part(&times, &cost, 1.0);
    }
    if (part->head) {
        PartCost cost =
            part_cost(build, place, part->rank, MODEL_PART_HEAD, 0, &shape, PLAN_RECOMPUTE_NONE);

        add_part(&times, &cost, 1.0);
    }
    store_times(&times, op);
    set_messages(build, chain, stage, class_, slice, op);
    workload_build_op_memory(build, part, class_, slice, op);
}

/* Stage after stage; costs are kept while the places of successive stages cost the same. */
static void
set_ops(const WorkloadBuild *build, const Place *places, Workload *workload)
{
    int64_t n_shapes = (int64_t)build->n_classes * build->n_slices;
    g_autofree LayerCosts *costs = g_new0(LayerCosts, n_shapes);
    const Place *costs_at = NULL;

    for (int32_t chain = 0; chain < build->n_chains; chain++) {
        for (int32_t stage = 0; stage < build->n_stages; stage++) {
            const Place *place = &places[workload_build_stage(build, chain, stage)->rank];

            if (costs_at == NULL || !same_costs(build, costs_at, place))
                memset(costs, 0, (size_t)n_shapes * sizeof *costs);
            costs_at = place;
            for (int64_t i = 0; i < n_shapes; i++)
                set_op(build, place, chain, stage, (int32_t)(i / build->n_slices),
                       (int32_t)(i % build->n_slices), &costs[i],
                       &workload->ops[(int64_t)(chain * build->n_stages + stage) * n_shapes + i]);
        }
    }
}

/* --- ranks --- */

static double
optimizer_s(const WorkloadBuild *build, const Place *place, int64_t n_elements)
{
    const ProfileParameters *p = &build->profile->parameters;
    const Plan *plan = build->plan;
    double bytes = optimizer_bytes(plan);
    double e = (double)dtype_bytes(plan->dtype);
    double g = (double)dtype_bytes(plan->conventions.grad_dtype);

    if (plan->offload == PLAN_OFFLOAD_NONE)
        return profile_cost_optimizer_s(build->profile, place->device, n_elements, bytes);
    /* Gradients to the host, the step there, weights back; with NVMe the state comes and goes. */
    return (double)n_elements *
           ((g + e) / p->offload_bytes_per_s +
            (plan->offload == PLAN_OFFLOAD_NVME ? 24.0 / p->nvme_bytes_per_s : 0.0));
}

/* The reduction of @n gradients over @group, and the gathering of parameters after the step. */
static void
add_reduction(const WorkloadBuild *build, const ProfileGroup *group, int64_t n, double *reduce_s,
              double *gather_s, WorkloadRank *rank)
{
    const Plan *plan = build->plan;
    int64_t gradient_bytes = n * dtype_bytes(plan->conventions.grad_dtype);
    int64_t weight_bytes = n * dtype_bytes(plan->dtype);

    if (group->n == 1 || n == 0 || plan->zero_stage >= 3)
        return;
    rank->dp_reduce_bytes += gradient_bytes;
    if (plan->zero_stage == 0) {
        *reduce_s +=
            profile_cost_collective_s(build->profile, MODEL_COMM_ALL_REDUCE, gradient_bytes, group);
        return;
    }
    *reduce_s +=
        profile_cost_collective_s(build->profile, MODEL_COMM_REDUCE_SCATTER, gradient_bytes, group);
    *gather_s +=
        profile_cost_collective_s(build->profile, MODEL_COMM_ALL_GATHER, weight_bytes, group);
    rank->dp_gather_bytes += weight_bytes;
}

static void
set_rank(const WorkloadBuild *build, const Place *place, int32_t r, int64_t memory_limit_bytes,
         Workload *workload)
{
    const Plan *plan = build->plan;
    WorkloadRank *rank = &workload->ranks[r];
    WorkloadParameters n = workload_build_parameters(build, r);
    ProfileGroup dense = workload_build_dense_group(build, r);
    ProfileGroup expert = workload_build_expert_group(build, r);
    double reduce_s = 0.0, gather_s = 0.0;
    int64_t elements = n.dense + n.expert;

    add_reduction(build, &dense, n.dense, &reduce_s, &gather_s, rank);
    add_reduction(build, &expert, n.expert, &reduce_s, &gather_s, rank);
    if (n.tied > 0 && plan->degrees.pp > 1) {
        /* The two copies of the table add their gradients. */
        int64_t bytes = n.tied * dtype_bytes(plan->conventions.grad_dtype);
        ProfileGroup ends = {workload_build_first_device(build, 0),
                             workload_build_first_device(build, 1) * (plan->degrees.pp - 1), 2};

        reduce_s += profile_cost_collective_s(build->profile, MODEL_COMM_ALL_REDUCE, bytes, &ends);
        rank->dp_reduce_bytes += bytes;
    }
    rank->dp_reduce_ns = units_ns_from_s(reduce_s);
    rank->dp_gather_ns = units_ns_from_s(gather_s);
    if (plan->zero_stage >= 1)
        elements = n.dense / dense.n + n.expert / expert.n;
    if (plan->conventions.optimizer_step)
        rank->optimizer_ns = units_ns_from_s(optimizer_s(build, place, elements));
    workload_build_static(build, workload, r, rank->static_bytes);
    rank->memory_limit_bytes = memory_limit_bytes > 0 ? memory_limit_bytes : place->memory_bytes;
    rank->device_flops_per_s = place->device->flops_per_s[plan->dtype] > 0.0
                                   ? place->device->flops_per_s[plan->dtype]
                                   : place->device->vector_flops_per_s;
}

/* --- checks --- */

static bool G_GNUC_PRINTF(2, 3) invalid(GError **error, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    if (error != NULL)
        *error = g_error_new_valist(PLAN_ERROR, PLAN_ERROR_INVALID, format, args);
    va_end(args);
    return false;
}

static bool
check_model(const WorkloadBuild *build, GError **error)
{
    const Plan *plan = build->plan;
    const PlanDegrees *d = &plan->degrees;
    bool has_vocab = build->arch->vocab > 0;

    if (workload_build_stage(build, 0, 0)->embedding != has_vocab)
        return invalid(error, "stages: model %s has %s vocabulary, so the first stage must have %s",
                       build->arch->name, has_vocab ? "a" : "no",
                       has_vocab ? "the embedding" : "no embedding");
    if (d->cp > 1 && plan->seq_len % (2 * d->cp) != 0)
        return invalid(error,
                       "cp " INT ": 2 * cp must divide seq_len " INT
                       " (each rank takes two parts, so that causal work is even)",
                       d->cp, plan->seq_len);
    for (guint i = 0; i < plan->slices->len; i++) {
        int64_t tokens = g_array_index(plan->slices, int64_t, i);

        if (tokens % d->cp != 0)
            return invalid(error, "slices[%u]: cp " INT " does not divide " INT " tokens", i, d->cp,
                           tokens);
        if (plan->sequence_parallel && tokens / d->cp % d->tp != 0)
            return invalid(error,
                           "slices[%u]: with sequence parallelism tp " INT " must divide the " INT
                           " tokens of each rank",
                           i, d->tp, tokens / d->cp);
    }
    return true;
}

static bool
check_shapes(const WorkloadBuild *build, GError **error)
{
    for (int32_t class_ = 0; class_ < build->n_classes; class_++) {
        ModelShape shape = workload_build_shape(build, class_, build->n_slices - 1);
        g_autoptr(GError) local = NULL;

        /* The last slice has the longest context; the whole sequence is what others stay below. */
        if (!model_shape_check(build->arch, &shape, &local))
            return invalid(error, "%s", local->message);
        shape.tokens = build->plan->seq_len;
        shape.context = 0;
        if (!model_shape_check(build->arch, &shape, &local))
            return invalid(error, "%s", local->message);
    }
    return true;
}

static bool
check_devices(const WorkloadBuild *build, GError **error)
{
    int64_t has = model_cluster_n_devices(build->profile->cluster);
    int64_t needs = plan_n_devices(build->plan);

    if (needs <= has)
        return true;
    g_set_error(error, PLAN_ERROR, PLAN_ERROR_INFEASIBLE,
                "dp * tp * pp * cp needs " INT " devices, cluster %s has " INT, needs,
                build->profile->name, has);
    return false;
}

/* --- classes --- */

/* The distinct sizes of micro-batches, in order of appearance; @of_microbatch (out, owned) is NULL
 * when there is one. */
static GArray *
classes_of(const Plan *plan, int32_t **of_microbatch)
{
    GArray *classes = g_array_new(FALSE, FALSE, sizeof(int64_t));

    *of_microbatch = NULL;
    if (plan->batch_slices == NULL) {
        g_array_append_val(classes, plan->micro_batch);
        return classes;
    }
    *of_microbatch = g_new(int32_t, plan->n_microbatches);
    for (int64_t i = 0; i < plan->n_microbatches; i++) {
        int64_t n = plan_microbatch_sequences(plan, i);
        guint j = 0;

        while (j < classes->len && g_array_index(classes, int64_t, j) != n)
            j++;
        if (j == classes->len)
            g_array_append_val(classes, n);
        (*of_microbatch)[i] = (int32_t)j;
    }
    return classes;
}

/* --- public --- */

static Workload *
build_workload(const WorkloadBuild *build, int64_t memory_limit_bytes, GError **error)
{
    const Plan *plan = build->plan;
    const ModelCluster *cluster = build->profile->cluster;
    int64_t n_ops = (int64_t)build->n_chains * build->n_stages * build->n_classes;
    g_autoptr(Workload) workload = g_new0(Workload, 1);
    g_autofree Place *places = g_new(Place, plan->degrees.pp);

    /* Factors are at most 2^20, 2^31 and 2^16: stages * classes fits, the last may not. */
    if (__builtin_mul_overflow(n_ops, (int64_t)build->n_slices, &n_ops) ||
        n_ops > SCHEDULE_MAX_OPS ||
        (workload->ops = g_try_malloc0_n((size_t)n_ops, sizeof *workload->ops)) == NULL) {
        g_set_error(error, PLAN_ERROR, PLAN_ERROR_INVALID,
                    "stages * slices * sizes of micro-batches: " INT " ops are too many", n_ops);
        return NULL;
    }
    workload->n_stages = build->n_stages;
    workload->n_ranks = (int32_t)plan->degrees.pp;
    workload->n_classes = build->n_classes;
    workload->n_slices = build->n_slices;
    workload->n_chains = build->n_chains;
    workload->ranks = g_new0(WorkloadRank, plan->degrees.pp);
    for (int32_t r = 0; r < workload->n_ranks; r++)
        places[r] = place_of_rank(build, r);
    set_ops(build, places, workload);
    for (int32_t r = 0; r < workload->n_ranks; r++)
        set_rank(build, &places[r], r, memory_limit_bytes, workload);
    workload->blocking_messages = !plan->conventions.overlap_pp;
    workload->overlap_dp = plan->conventions.overlap_dp;
    workload->op_overhead_ns = units_ns_from_s(profile_measured_overhead_s(build->profile));
    workload->model_flops =
        model_flops_per_iteration(build->arch, (double)plan->global_batch, plan->seq_len);
    workload->tokens = (double)plan->global_batch * (double)plan->seq_len;
    workload->n_devices = plan_n_devices(plan);
    workload->price_per_device_hour = cluster->price_per_device_hour;
    workload->power_w_per_device = places[0].device->power_w;
    return g_steal_pointer(&workload);
}

Workload *
workload_new(const ModelArch *arch, const Profile *profile, const Plan *plan,
             int64_t memory_limit_bytes, GError **error)
{
    g_autoptr(GArray) classes = NULL;
    g_autofree int32_t *class_of_microbatch = NULL;
    const ScheduleFamily *family;
    WorkloadBuild build;
    Workload *workload;
    bool is_bidir;

    g_return_val_if_fail(arch != NULL && profile != NULL && plan != NULL, NULL);
    g_return_val_if_fail(memory_limit_bytes >= 0, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    if (!plan_check(plan, arch->n_layers, error))
        return NULL;
    family = schedule_family_find(plan->schedule, NULL);
    is_bidir = family != NULL && family->placement == SCHEDULE_PLACEMENT_BIDIR;
    classes = classes_of(plan, &class_of_microbatch);
    build = (WorkloadBuild){
        .arch = arch,
        .profile = profile,
        .plan = plan,
        .n_chains = is_bidir ? 2 : 1,
        .n_stages = (int32_t)(plan->stages->len / (is_bidir ? 2 : 1)),
        .n_slices = (int32_t)plan->slices->len,
        .n_classes = (int32_t)classes->len,
        .class_sequences = (const int64_t *)(const void *)classes->data,
    };
    if (!check_model(&build, error) || !check_shapes(&build, error) ||
        !check_devices(&build, error))
        return NULL;
    workload = build_workload(&build, memory_limit_bytes, error);
    if (workload != NULL)
        workload->class_of_microbatch = g_steal_pointer(&class_of_microbatch);
    return workload;
}

Workload *
workload_new_plain(const Schedule *schedule, const int64_t time_ns[SCHEDULE_OP_N],
                   int64_t message_ns_)
{
    Workload *workload;
    int64_t n_ops;

    g_return_val_if_fail(schedule != NULL && time_ns != NULL && message_ns_ >= 0, NULL);

    workload = g_new0(Workload, 1);
    workload->n_stages = schedule_n_stages(schedule);
    workload->n_ranks = schedule->n_ranks;
    workload->n_classes = 1;
    workload->n_slices = schedule->n_slices;
    workload->n_chains = schedule->placement == SCHEDULE_PLACEMENT_BIDIR ? 2 : 1;
    n_ops = (int64_t)workload->n_chains * workload->n_stages * workload->n_slices;
    workload->ops = g_new0(WorkloadOp, n_ops);
    for (int64_t i = 0; i < n_ops; i++) {
        WorkloadOp *op = &workload->ops[i];
        int32_t chain = (int32_t)(i / workload->n_slices / workload->n_stages);
        int32_t stage = (int32_t)(i / workload->n_slices % workload->n_stages);
        int32_t rank = schedule_rank_of_stage(schedule, stage, chain);

        for (int kind = 0; kind < SCHEDULE_OP_N; kind++) {
            op->time_ns[kind] = time_ns[kind];
            op->part_ns[kind][PROFILE_PART_COMPUTE] = time_ns[kind];
        }
        if (stage + 1 < workload->n_stages &&
            schedule_rank_of_stage(schedule, stage + 1, chain) != rank)
            op->forward_message_ns = message_ns_;
        if (stage > 0 && schedule_rank_of_stage(schedule, stage - 1, chain) != rank)
            op->backward_message_ns = message_ns_;
    }
    workload->ranks = g_new0(WorkloadRank, workload->n_ranks);
    workload->model_flops = NAN;
    workload->tokens = NAN;
    workload->n_devices = schedule->n_ranks;
    return workload;
}

void
workload_free(Workload *workload)
{
    if (workload == NULL)
        return;
    g_free(workload->ops);
    g_free(workload->class_of_microbatch);
    g_free(workload->ranks);
    g_free(workload);
}
