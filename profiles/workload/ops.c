#include "profiles/workload/ops.h"

#include "profiles/workload/build.h"

#include "base/units.h"
#include "schedule/stack.h"

#include <math.h>
#include <string.h>

/* --- conventions --- */

void
workload_set_conventions(const PlanConventions *conventions, const ProfileParameters *parameters,
                         ModelShape *shape)
{
    const PlanFrameworkFacts *facts = plan_framework(conventions->framework);

    shape->flash_attention = plan_attention_is_flash(conventions->attention);
    shape->eager_softmax = conventions->attention == PLAN_ATTENTION_TORCH;
    shape->half_softmax = facts->half_softmax;
    shape->caches_kv = facts->caches_kv;
    shape->softmax_keys =
        conventions->attention == PLAN_ATTENTION_UNFUSED ? facts->softmax_keys : 0;
    shape->vocab_multiple = plan_vocab_multiple(conventions);
    shape->flash = conventions->attention == PLAN_ATTENTION_FLASH1   ? MODEL_FLASH_FIRST
                   : conventions->attention == PLAN_ATTENTION_FLASH2 ? MODEL_FLASH_SECOND
                   : conventions->attention == PLAN_ATTENTION_TRITON ? MODEL_FLASH_TRITON
                                                                     : MODEL_FLASH_FASTEST;
    shape->eager = conventions->kernels != PLAN_KERNELS_FUSED;
    shape->eager_norms = conventions->kernels == PLAN_KERNELS_EAGER;
    shape->complex_rotary = facts->complex_rotary;
    shape->sums_parts = conventions->overlap_tp && facts->overlaps_tp_forward;
    shape->dropout = conventions->dropout;
    shape->all_to_all = conventions->cp_comm == PLAN_CP_A2A;
    shape->gathered_kv = !shape->all_to_all && facts->gathers_kv;
    shape->torch_ring = facts->torch_ring;
    shape->etp = conventions->expert_tp;
    shape->compiled_loss = conventions->loss == PLAN_LOSS_COMPILED;
    shape->fused_loss = conventions->loss == PLAN_LOSS_FUSED;
    shape->splits_eager_loss = facts->splits_eager_loss;
    shape->torch_loss = facts->torch_loss;
    shape->drops_logits = facts->torch_loss;
    shape->loss_in_place = facts->loss_in_place;
    shape->sums_biases = facts->sums_apart || (facts->local_if_unfused &&
                                               conventions->attention == PLAN_ATTENTION_UNFUSED);
    shape->sums_norms = facts->sums_apart;
    shape->separate_matrices = facts->separate_matrices;
    G_STATIC_ASSERT((int)PLAN_MODULE_N == (int)MODEL_MODULE_N);
    shape->recompute_modules = plan_framework_modules(conventions);
    shape->row_blocks = facts->row_blocks;
    shape->one_copy = conventions->dispatcher != PLAN_DISPATCHER_ALLTOALL;
    shape->sorts_received = facts->sorts_received && !shape->one_copy;
    shape->fused_permute = conventions->dispatcher == PLAN_DISPATCHER_HYBRIDEP;
    /* Where rows are dropped and filled up to a capacity, it is known beforehand, and whole tiles. */
    shape->host_counts = facts->sorts_received && conventions->expert_capacity <= 0.0;
    shape->pads_experts = shape->host_counts && !shape->fused_permute;
    const PlanQuantiseBytes quantise = plan_quantise_bytes(conventions->quantise, shape->dtype);
    shape->quantise_bytes = quantise.bytes;
    shape->transpose_bytes = quantise.transposed;
    shape->rescale_bytes = quantise.rescaled;
    shape->quantised_gathers =
        facts->quantised_gathers && conventions->quantise != PLAN_QUANTISE_ROW;
    shape->graphs = (int)conventions->cuda_graphs;
    shape->expert_bias_apart = facts->adds_expert_bias;
    shape->expert_imbalance = conventions->expert_capacity > 0.0    ? conventions->expert_capacity
                              : conventions->expert_imbalance > 0.0 ? conventions->expert_imbalance
                                                                    : parameters->expert_imbalance;
}

void
workload_set_host(PlanFramework framework, const ProfileParameters *parameters, ProfileQuery *query)
{
    const PlanFrameworkFacts *facts = plan_framework(framework);
    const double slower = parameters->host_kernel_s / PLAN_HOST_KERNEL_S;

    query->host_kernel_s = facts->host_kernel_s * slower;
    query->host_backward_kernel_s = facts->host_backward_kernel_s * slower;
    query->host_expert_s = facts->host_expert_s * slower;
}

/* --- gradients that are added --- */

static bool
accumulates_in_product(const Plan *plan)
{
    bool selective = false;

    for (guint i = 0; i < plan->stages->len; i++)
        selective |=
            g_array_index(plan->stages, PlanStage, i).recompute == PLAN_RECOMPUTE_SELECTIVE;
    return plan_framework_fuses_accumulation(&plan->conventions, plan->sequence_parallel,
                                             selective);
}

/*
 * Bytes moved per weight to add a gradient to those of earlier micro-batches and slices
 * (cost-model.md 2.4).
 *   fp32 main gradients, added by a kernel: read the new one (e), read and write the sum
 *   fused into the product (Megatron-Core): reads and writes the sum instead of writing e
 *   autograd's own: as the first, but the first gradient of an iteration is kept as it is
 */
double
workload_accumulate_bytes(Dtype dtype, const PlanConventions *conventions, bool in_product,
                          double n)
{
    double e = (double)dtype_bytes(dtype_stored(dtype));
    double g = (double)dtype_bytes(conventions->grad_dtype);

    if (in_product)
        return fmax(0.0, 2.0 * g - e);
    switch (plan_framework(conventions->framework)->accumulation) {
    case PLAN_ACCUMULATION_MAIN:
        return e + 2.0 * g;
    case PLAN_ACCUMULATION_READS_SUM:
        return g * (n - 1.0) / n;
    case PLAN_ACCUMULATION_AUTOGRAD:
        break;
    }
    return (e + 2.0 * g) * (n - 1.0) / n;
}

/* --- times of one part --- */

static const ProfilePass pass_of_op[SCHEDULE_OP_N] = {
    [SCHEDULE_OP_FORWARD] = PROFILE_PASS_FORWARD,
    [SCHEDULE_OP_BACKWARD] = PROFILE_PASS_BACKWARD,
    [SCHEDULE_OP_BACKWARD_INPUT] = PROFILE_PASS_BACKWARD_INPUT,
    [SCHEDULE_OP_BACKWARD_WEIGHT] = PROFILE_PASS_BACKWARD_WEIGHT,
};

/* What the collectives of all passes give to the network; full recompute repeats the forward's. */
static void
set_traffic(const WorkloadBuild *build, const WorkloadLocation *location, const ProfileQuery *query,
            PlanRecompute recompute, WorkloadPartCost *cost)
{
    const bool repeats = query->part == MODEL_PART_LAYER && recompute == PLAN_RECOMPUTE_FULL;

    ModelOp ops[MODEL_MAX_OPS];
    const size_t n = model_ops(query->arch, query->part, query->layer, &query->shape, ops);

    memset(cost->traffic_bytes, 0, sizeof cost->traffic_bytes);
    for (int kind = 0; kind < SCHEDULE_OP_N; kind++) {
        workload_build_add_traffic(build, location, ops, n, pass_of_op[kind],
                                   cost->traffic_bytes[kind]);
        if (repeats && (kind == SCHEDULE_OP_BACKWARD || kind == SCHEDULE_OP_BACKWARD_INPUT))
            workload_build_add_traffic(build, location, ops, n, PROFILE_PASS_FORWARD,
                                       cost->traffic_bytes[kind]);
    }
}

ProfileQuery
workload_build_query(const WorkloadBuild *build, const WorkloadLocation *location, ModelPart part,
                     int64_t layer, const ModelShape *shape)
{
    ProfileQuery query = {
        .arch = build->arch,
        .part = part,
        .layer = layer,
        .shape = *shape,
        .rank = location->device_rank,
        .overlap_tp = build->plan->conventions.overlap_tp,
        .overlap_tp_forward = build->facts->overlaps_tp_forward,
        .sums_beside = plan_stack_sums_beside(&build->plan->conventions),
        .overlap_ep = plan_merges_passes(&build->plan->conventions, &build->plan->degrees),
        .accumulate_bytes_per_weight = workload_accumulate_bytes(
            build->plan->dtype, &build->plan->conventions, accumulates_in_product(build->plan),
            (double)build->plan->n_micro_batches * (double)build->n_slices),
        .accumulate_in_product = accumulates_in_product(build->plan),
    };

    workload_set_host(build->plan->conventions.framework, &build->profile->parameters, &query);
    memcpy(query.groups, location->groups, sizeof query.groups);
    return query;
}

static WorkloadPartCost
part_cost(const WorkloadBuild *build, const WorkloadLocation *location, int32_t rank,
          ModelPart part, int64_t layer, const ModelShape *shape, PlanRecompute recompute)
{
    const ProfileQuery query = workload_build_query(build, location, part, layer, shape);
    WorkloadPartCost result;

    const ProfilePartCosts costs = profile_cost_passes(build->profile, &query);
    for (int kind = 0; kind < SCHEDULE_OP_N; kind++)
        result.cost[kind] = costs.passes[pass_of_op[kind]];
    if (part == MODEL_PART_LAYER && recompute != PLAN_RECOMPUTE_NONE) {
        const ProfileCost again = recompute == PLAN_RECOMPUTE_FULL
                                      ? profile_cost_again(&costs.passes[PROFILE_PASS_FORWARD])
                                      : costs.selective;
        static const ScheduleOpKind kinds[] = {SCHEDULE_OP_BACKWARD, SCHEDULE_OP_BACKWARD_INPUT};

        for (size_t i = 0; i < G_N_ELEMENTS(kinds); i++) {
            ProfileCost *cost = &result.cost[kinds[i]];

            cost->part_s[PROFILE_PART_RECOMPUTE] += again.part_s[PROFILE_PART_RECOMPUTE];
            cost->host_s += again.host_s;
        }
    }
    set_traffic(build, location, &query, recompute, &result);
    memset(result.zero3_s, 0, sizeof result.zero3_s);
    if (build->plan->zero_stage < 3)
        return result;
    workload_build_zero3(build, location, rank, part, layer, recompute, &result);
    if (!workload_build_parts_meet(build))
        workload_build_hide(build, 1, &(WorkloadPartCost *){&result});
    return result;
}

/* Sums of seconds of one op: the larger of device and host for each part (cost-model.md 2.5). */
typedef struct {
    double total_s[SCHEDULE_OP_N];
    double part_s[SCHEDULE_OP_N][PROFILE_PART_N];
    double traffic_bytes[SCHEDULE_OP_N][MODEL_CLUSTER_MAX_LEVELS];
    ProfileSource source;
} OpTimes;

static void
add_part(OpTimes *times, const WorkloadPartCost *part, double n)
{
    for (int kind = 0; kind < SCHEDULE_OP_N; kind++) {
        times->total_s[kind] += n * profile_cost_s(&part->cost[kind]);
        for (int i = 0; i < PROFILE_PART_N; i++)
            times->part_s[kind][i] += n * part->cost[kind].part_s[i];
        for (int i = 0; i < MODEL_CLUSTER_MAX_LEVELS; i++)
            times->traffic_bytes[kind][i] += n * part->traffic_bytes[kind][i];
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
        for (int i = 0; i < MODEL_CLUSTER_MAX_LEVELS; i++)
            op->traffic_bytes[kind][i] = (float)times->traffic_bytes[kind][i];
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
 * The sender's stream is free again when the rest of its copy fits the transport's buffers.
 */
static WorkloadMessage
message_between(const WorkloadBuild *build, int32_t from, int32_t to, int64_t bytes)
{
    const PlanDegrees *d = &build->plan->degrees;
    const PlanConventions *c = &build->plan->conventions;
    const Profile *profile = build->profile;
    bool whole = d->tp == 1 || build->plan->sequence_parallel;
    const ProfileMesh mesh = workload_build_mesh(build);
    const ProfileGroup pair = profile_group_pair(&mesh, from, to);
    const int64_t rank_a = from < to ? pair.first : profile_group_last(&pair);
    const int64_t rank_b = from < to ? profile_group_last(&pair) : pair.first;
    const ProfileGroup group = profile_group_of_rank(&mesh, PROFILE_GROUP_TP, to);
    ProfileGroup senders = profile_group_of_rank(&mesh, PROFILE_GROUP_STAGE, from);
    int64_t node_first, node_n, sent = bytes;
    double send_s, empty_s, spread_s = 0.0, buffered;

    model_cluster_node(profile->cluster, rank_a, &node_first, &node_n);
    if (c->broadcast_p2p && !whole) {
        const int64_t on_node = profile_group_count(&senders, node_first, node_first + node_n);
        senders = (ProfileGroup){.first = rank_a, .stride = 1, .n = MAX(1, on_node / d->tp)};
        spread_s = profile_cost_broadcast_s(profile, bytes, &group);
    } else if (c->scatter_gather_p2p && !whole) {
        sent = (bytes + d->tp - 1) / d->tp;
        spread_s = profile_cost_collective_s(profile, MODEL_COMM_ALL_GATHER, bytes, &group);
    }
    send_s = profile_cost_p2p_s(profile, sent, rank_a, rank_b, &senders);
    empty_s = profile_cost_p2p_s(profile, 0, rank_a, rank_b, &senders);
    buffered = fmin(1.0, profile->parameters.message_buffer_bytes / fmax(1.0, (double)sent));
    return (WorkloadMessage){
        .bytes = bytes,
        .ns = units_ns_from_s(send_s + spread_s),
        /* Spreading is the receiver's work alone. */
        .buffered_ns = units_ns_from_s(buffered * fmax(0.0, send_s - empty_s) + spread_s),
        .sent_bytes = sent,
        .level = (int32_t)model_cluster_level_between(profile->cluster, rank_a, rank_b),
    };
}

/* The message of @bytes from a stage to the one at @to; all is 0 where there is none, or where it
 * is on the same rank. */
static WorkloadMessage
message_to(const WorkloadBuild *build, int32_t chain, int32_t stage, int32_t to, int64_t bytes)
{
    const int32_t rank = workload_build_stage(build, chain, stage)->rank;

    if (to < 0 || to >= build->n_stages || workload_build_stage(build, chain, to)->rank == rank)
        return (WorkloadMessage){0};
    return message_between(build, rank, workload_build_stage(build, chain, to)->rank, bytes);
}

/* Boundaries of a layer that @stage gives the next one: its own result, and those of MTP modules
 * up to there, whose losses the head makes  [Megatron-Core, MultiTokenPredictionBlock.forward()]. */
static int64_t
n_results(const WorkloadBuild *build, int32_t chain, int32_t stage)
{
    if (stage < 0)
        return 1;
    const PlanStage *of = workload_build_stage(build, chain, stage);
    return 1 + model_n_mtp_before(build->arch, of->first_layer + of->n_layers);
}

/* Whether @stage and the one @n before it lie, as the stages beside them do, on the same ranks, and
 * send as much. */
static bool
same_places(const WorkloadBuild *build, int32_t chain, int32_t stage, int32_t n)
{
    if (stage - n < 1 || stage + 1 >= build->n_stages || n_results(build, chain, stage) > 1)
        return false;
    for (int32_t k = stage - 1; k <= stage + 1; k++)
        if (workload_build_stage(build, chain, k)->rank !=
            workload_build_stage(build, chain, k - n)->rank)
            return false;
    return true;
}

/* @op is one of the Workload's ops, and those of the stages before are done. */
static void
set_messages(const WorkloadBuild *build, int32_t chain, int32_t stage, int32_t class_,
             int32_t slice, WorkloadOp *op)
{
    const ModelShape shape = workload_build_shape(build, class_, slice);
    const int64_t bytes = model_boundary_bytes(build->arch, &shape);
    const int32_t n_ranks = (int32_t)build->plan->degrees.pp;

    if (same_places(build, chain, stage, n_ranks)) {
        const WorkloadOp *before = op - (ptrdiff_t)n_ranks * build->n_classes * build->n_slices;
        op->forward_message = before->forward_message;
        op->backward_message = before->backward_message;
        return;
    }
    op->forward_message = message_to(build, chain, stage, stage + 1,
                                     workload_build_mul(bytes, n_results(build, chain, stage)));
    op->backward_message =
        message_to(build, chain, stage, stage - 1,
                   workload_build_mul(bytes, n_results(build, chain, stage - 1)));
}

/* --- ops --- */

/* Costs of all kinds of layers and of the ends, at one place, for one (class, slice). */
typedef struct {
    WorkloadPartCost layers[MODEL_MAX_KINDS][PLAN_RECOMPUTE_N];
    bool known[MODEL_MAX_KINDS][PLAN_RECOMPUTE_N];
} LayerCosts;

static WorkloadPartCost *
layer_cost(const WorkloadBuild *build, const WorkloadLocation *location, int32_t rank,
           const ModelShape *shape, int64_t layer, PlanRecompute recompute, LayerCosts *costs)
{
    int kind = model_layer_kind(build->arch, layer);
    WorkloadPartCost *cost = &costs->layers[kind][recompute];

    if (!costs->known[kind][recompute]) {
        *cost = part_cost(build, location, rank, MODEL_PART_LAYER, layer, shape, recompute);
        costs->known[kind][recompute] = true;
    }
    return cost;
}

/* Embedding, layers and head of a stage. */
static void
add_parts(const WorkloadBuild *build, const WorkloadLocation *location, const PlanStage *stage,
          const ModelShape *shape, LayerCosts *costs, OpTimes *times)
{
    const size_t n = (size_t)stage->n_layers + 2;
    const bool meet = workload_build_parts_meet(build);
    g_autofree WorkloadPartCost *own = meet ? g_new(WorkloadPartCost, n) : NULL;
    g_autofree WorkloadPartCost **parts = g_new(WorkloadPartCost *, n);
    WorkloadPartCost embedding, head;
    int64_t n_parts = 0;

    if (stage->embedding) {
        embedding = part_cost(build, location, stage->rank, MODEL_PART_EMBEDDING, 0, shape,
                              PLAN_RECOMPUTE_NONE);
        parts[n_parts++] = &embedding;
    }
    for (int64_t i = 0; i < stage->n_layers; i++)
        parts[n_parts++] =
            layer_cost(build, location, stage->rank, shape, stage->first_layer + i,
                       plan_layer_recompute(&build->plan->conventions, stage, i), costs);
    if (stage->head) {
        head =
            part_cost(build, location, stage->rank, MODEL_PART_HEAD, 0, shape, PLAN_RECOMPUTE_NONE);
        parts[n_parts++] = &head;
    }
    for (int64_t i = 0; meet && i < n_parts; i++) {
        own[i] = *parts[i];
        parts[i] = &own[i];
    }
    if (meet)
        workload_build_hide(build, n_parts, parts);
    /* Ends last: the order of additions. */
    for (int64_t i = 0; i < stage->n_layers; i++)
        add_part(times, parts[i + stage->embedding], 1.0);
    if (stage->embedding)
        add_part(times, parts[0], 1.0);
    if (stage->head)
        add_part(times, parts[n_parts - 1], 1.0);
}

static void
set_op(const WorkloadBuild *build, const WorkloadLocation *location, int32_t chain, int32_t stage,
       int32_t class_, int32_t slice, LayerCosts *costs, WorkloadOp *op, int64_t *last_bytes)
{
    const PlanStage *part = workload_build_stage(build, chain, stage);
    ModelShape shape = workload_build_shape(build, class_, slice);
    OpTimes times = {.source = PROFILE_SOURCE_MEASURED};

    add_parts(build, location, part, &shape, costs, &times);
    store_times(&times, op);
    set_messages(build, chain, stage, class_, slice, op);
    workload_build_op_memory(build, part, class_, slice, op, last_bytes);
}

/* Whether stages @a and @b of a chain hold the same layers and ends, so that their ops differ in messages only. */
static bool
same_contents(const WorkloadBuild *build, int32_t chain, int32_t a, int32_t b)
{
    const ModelArch *arch = build->arch;
    const PlanStage *x = workload_build_stage(build, chain, a);
    const PlanStage *y = workload_build_stage(build, chain, b);

    /* The first one receives nothing, which may be part of what it keeps. */
    if (x->n_layers == 0 || x->n_layers != y->n_layers || (a == 0) != (b == 0))
        return false;
    /* In the same order, in which what is ahead of an op may matter. */
    for (int64_t i = 0; i < x->n_layers; i++)
        if (model_layer_kind(arch, x->first_layer + i) !=
            model_layer_kind(arch, y->first_layer + i))
            return false;
    return x->embedding == y->embedding && x->head == y->head && x->recompute == y->recompute &&
           (build->prefetch == NULL ||
            build->prefetch->most_bytes[x->rank] == build->prefetch->most_bytes[y->rank]);
}

/* A stage like the one @n_back before: what is not a message is copied. */
static void
copy_stage(const WorkloadBuild *build, int32_t chain, int32_t stage, int32_t n_back,
           int64_t n_shapes, WorkloadOp *ops, int64_t *last_bytes, int64_t n_last)
{
    const int64_t back = n_back * n_shapes;

    if (n_last > 0)
        memcpy(last_bytes, last_bytes - back * n_last,
               (size_t)(n_shapes * n_last) * sizeof *last_bytes);
    for (int64_t i = 0; i < n_shapes; i++) {
        ops[i] = ops[i - back];
        set_messages(build, chain, stage, (int32_t)(i / build->n_slices),
                     (int32_t)(i % build->n_slices), &ops[i]);
    }
}

/* Stages of hybrids whose contents are looked for among those before. */
#define MAX_CONTENTS 8

/* Stages of a chain at places that cost the same, of different contents. */
typedef struct {
    int32_t stages[MAX_CONTENTS];
    int n;
} KnownStages;

/* How many stages before @stage one is that is like it; 0: none is known, and it will be. */
static int32_t
find_like(const WorkloadBuild *build, int32_t chain, int32_t stage, KnownStages *known)
{
    for (int i = 0; i < known->n; i++)
        if (same_contents(build, chain, known->stages[i], stage))
            return stage - known->stages[i];
    if (known->n < MAX_CONTENTS)
        known->stages[known->n++] = stage;
    return 0;
}

/* Stage after stage; costs are kept while the places of successive stages cost the same. */
void
workload_build_set_ops(const WorkloadBuild *build, const WorkloadLocation *locations,
                       Workload *workload)
{
    int64_t n_shapes = (int64_t)build->n_classes * build->n_slices;
    g_autofree LayerCosts *costs = g_new0(LayerCosts, n_shapes);
    const WorkloadLocation *costs_at = NULL;
    /* Of an op's last_bytes. */
    const int64_t n_last =
        workload->prefetch == NULL ? 0 : (int64_t)SCHEDULE_OP_N * workload->prefetch->depth;

    for (int32_t chain = 0; chain < build->n_chains; chain++) {
        KnownStages known = {.n = 0};
        for (int32_t stage = 0; stage < build->n_stages; stage++) {
            const WorkloadLocation *location =
                &locations[workload_build_stage(build, chain, stage)->rank];
            const int64_t first = (int64_t)(chain * build->n_stages + stage) * n_shapes;
            WorkloadOp *ops = &workload->ops[first];
            int64_t *last_bytes =
                n_last == 0 ? NULL : &workload->prefetch->last_bytes[first * n_last];
            bool same = costs_at != NULL && workload_build_same_costs(build, costs_at, location);

            if (!same) {
                memset(costs, 0, (size_t)n_shapes * sizeof *costs);
                known.n = 0;
            }
            costs_at = location;
            const int32_t n_back = find_like(build, chain, stage, &known);
            if (n_back > 0) {
                copy_stage(build, chain, stage, n_back, n_shapes, ops, last_bytes, n_last);
                continue;
            }
            for (int64_t i = 0; i < n_shapes; i++)
                set_op(build, location, chain, stage, (int32_t)(i / build->n_slices),
                       (int32_t)(i % build->n_slices), &costs[i], &ops[i],
                       n_last == 0 ? NULL : last_bytes + i * n_last);
        }
    }
    workload_build_join_kv(build, workload);
}
