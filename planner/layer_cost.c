#include "planner/layer_cost.h"

#include <math.h>

#include "base/units.h"

/* --- time --- */

static ProfileQuery
query_at(const PlanRequest *request, const PlanPoint *point, int64_t first)
{
    const PlanDegrees *d = &point->degrees;

    return (ProfileQuery){
        .arch = request->arch,
        .shape =
            {
                .batch = point->micro_batch,
                .tokens = request->seq_len,
                .tp = d->tp,
                .cp = d->cp,
                .ep = d->ep,
                .sequence_parallel = point->sequence_parallel,
                .flash_attention = request->conventions.attention == PLAN_ATTENTION_FLASH,
                .dropout = request->conventions.dropout,
                .dtype = request->dtype,
                .expert_imbalance = 1.0,
            },
        .rank = first,
        .groups = {[MODEL_GROUP_TP] = {first, 1, d->tp},
                   [MODEL_GROUP_CP] = {first, d->tp, d->cp},
                   [MODEL_GROUP_EP] = {first, 1, d->ep}},
        .overlap_tp = request->conventions.overlap_tp,
    };
}

/* What a layer keeps of one micro-batch of whole sequences, by what is computed again. */
static void
lower_kept(const PlanRequest *request, const ProfileQuery *query, bool is_first,
           PlanLayerCost *least)
{
    ModelOp ops[MODEL_MAX_OPS];
    const size_t n = model_ops(request->arch, MODEL_PART_LAYER, query->layer, &query->shape, ops);
    int64_t kept[PLAN_RECOMPUTE_N] = {0};

    for (size_t i = 0; i < n; i++) {
        kept[PLAN_RECOMPUTE_NONE] += ops[i].saved_bytes;
        if (!ops[i].core_attention)
            kept[PLAN_RECOMPUTE_SELECTIVE] += ops[i].saved_bytes;
    }
    kept[PLAN_RECOMPUTE_FULL] = model_boundary_bytes(request->arch, &query->shape);
    for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++)
        least->kept_bytes[kind] = is_first ? kept[kind] : MIN(least->kept_bytes[kind], kept[kind]);
}

/* Adds @n times one part; layers also lower the least layer. */
static void
add_part(const PlanRequest *request, ProfileQuery *query, ModelPart part, int64_t layer, double n,
         PlanLayerCost *sum)
{
    query->part = part;
    query->layer = layer;
    const ProfileCost forward = profile_cost_part(request->profile, query, PROFILE_PASS_FORWARD);
    const ProfileCost backward = profile_cost_part(request->profile, query, PROFILE_PASS_BACKWARD);
    const double forward_s = profile_cost_s(&forward);
    double backward_s = profile_cost_s(&backward);

    const ProfileCost input =
        profile_cost_part(request->profile, query, PROFILE_PASS_BACKWARD_INPUT);
    const double input_s = MIN(profile_cost_s(&input), profile_cost_s(&backward));
    /* Modelled halves never take less than the whole; measured ones may. */
    if (request->profile->measurements->len > 0) {
        const ProfileCost weight =
            profile_cost_part(request->profile, query, PROFILE_PASS_BACKWARD_WEIGHT);
        backward_s = fmin(backward_s, profile_cost_s(&input) + profile_cost_s(&weight));
    }
    sum->input_s += n * input_s;
    sum->forward_s += n * forward_s;
    sum->backward_s += n * backward_s;
    if (part == MODEL_PART_HEAD)
        sum->head_s = forward_s + backward_s;
    if (part != MODEL_PART_LAYER)
        return;
    const bool is_first = sum->layer_forward_s == 0.0;
    sum->layer_forward_s = is_first ? forward_s : fmin(sum->layer_forward_s, forward_s);
    sum->layer_input_s = is_first ? input_s : fmin(sum->layer_input_s, input_s);
    sum->layer_backward_s = is_first ? backward_s : fmin(sum->layer_backward_s, backward_s);
    lower_kept(request, query, is_first, sum);
    for (int kind = PLAN_RECOMPUTE_SELECTIVE; kind <= PLAN_RECOMPUTE_FULL; kind++) {
        const ProfileCost again =
            profile_cost_recompute(request->profile, query, kind == PLAN_RECOMPUTE_FULL);
        ProfileCost both = backward;
        /* The op takes the larger of device and host: what recompute adds to that. */
        for (int i = 0; i < PROFILE_PART_N; i++)
            both.part_s[i] += again.part_s[i];
        both.host_s += again.host_s;
        const double added_s = fmax(0.0, profile_cost_s(&both) - profile_cost_s(&backward));
        sum->recompute_s[kind] += n * added_s;
        sum->layer_recompute_s[kind] =
            is_first ? added_s : fmin(sum->layer_recompute_s[kind], added_s);
    }
}

/* All parts at the device @first. */
static PlanLayerCost
cost_at(const PlanRequest *request, const PlanPoint *point, int64_t first)
{
    const ModelArch *arch = request->arch;
    ProfileQuery query = query_at(request, point, first);
    PlanLayerCost sum = {0};
    int64_t n_moe = 0, moe_layer = 0, dense_layer = 0;

    for (int64_t layer = 0; layer < arch->n_layers; layer++) {
        const bool is_moe = model_layer_is_moe(arch, layer);
        n_moe += is_moe;
        *(is_moe ? &moe_layer : &dense_layer) = layer;
    }
    if (n_moe < arch->n_layers)
        add_part(request, &query, MODEL_PART_LAYER, dense_layer, (double)(arch->n_layers - n_moe),
                 &sum);
    if (n_moe > 0)
        add_part(request, &query, MODEL_PART_LAYER, moe_layer, (double)n_moe, &sum);
    if (arch->vocab > 0) {
        add_part(request, &query, MODEL_PART_EMBEDDING, 0, 1.0, &sum);
        add_part(request, &query, MODEL_PART_HEAD, 0, 1.0, &sum);
    }
    return sum;
}

PlanLayerCost
plan_layer_cost(const PlanRequest *request, const PlanPoint *point)
{
    const ModelCluster *cluster = request->profile->cluster;
    const int64_t stage = point->degrees.tp * point->degrees.cp * point->degrees.dp;
    PlanLayerCost least = {0};
    int64_t first = 0;

    /* The fastest of the kinds of nodes that ranks can lie on. */
    for (guint i = 0; i < cluster->nodes->len; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        if (first >= stage * point->degrees.pp)
            break;
        const PlanLayerCost cost = cost_at(request, point, first);
        first += nodes->n_devices * nodes->n_nodes;
        if (i == 0) {
            least = cost;
            continue;
        }
        least.forward_s = fmin(least.forward_s, cost.forward_s);
        least.backward_s = fmin(least.backward_s, cost.backward_s);
        least.input_s = fmin(least.input_s, cost.input_s);
        least.layer_input_s = fmin(least.layer_input_s, cost.layer_input_s);
        least.layer_forward_s = fmin(least.layer_forward_s, cost.layer_forward_s);
        least.layer_backward_s = fmin(least.layer_backward_s, cost.layer_backward_s);
        least.head_s = fmin(least.head_s, cost.head_s);
        for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++) {
            least.recompute_s[kind] = fmin(least.recompute_s[kind], cost.recompute_s[kind]);
            least.layer_recompute_s[kind] =
                fmin(least.layer_recompute_s[kind], cost.layer_recompute_s[kind]);
        }
    }
    return least;
}

/* Any division of the layers into single chunks: the sum of space.h. */
static double
geometric_bound_s(const PlanPoint *point, double whole_s, double fraction)
{
    const double m = (double)point->n_microbatches, q = 1.0 - fraction / m;
    double power = 1.0;

    /* Not pow(): its last bit is the library's choice. */
    for (int64_t i = 0; i < point->degrees.pp; i++)
        power *= q;
    return power < 1.0 ? whole_s * fraction / (1.0 - power) : 0.0;
}

int64_t
plan_layer_bound_ns(const PlanRequest *request, const PlanPoint *point, const PlanLayerCost *cost,
                    bool splits_backward, bool bidirectional)
{
    const double m = (double)point->n_microbatches, v = (double)point->degrees.vpp;
    const double p = (double)point->degrees.pp;
    const double backward_s = cost->backward_s + cost->recompute_s[point->recompute];
    const double whole_s = cost->forward_s + backward_s;
    double bound_s = m * whole_s / p;

    if (!bidirectional && point->degrees.pp > 1 && point->is_balanced && point->degrees.vpp == 1) {
        const double fraction = splits_backward ? cost->forward_s / fmax(whole_s, 1e-30) : 1.0;
        bound_s = fmax(bound_s, geometric_bound_s(point, whole_s, fraction));
    } else if (!bidirectional && point->degrees.pp > 1 && !point->is_balanced) {
        /* The last rank, after one chunk of each rank before it and, unsplit, before their
         * backwards; even stages have at least so many layers. */
        const double n =
            (double)(request->arch->n_layers / (point->degrees.pp * point->degrees.vpp));
        const double layer_s = cost->layer_forward_s + cost->layer_backward_s +
                               cost->layer_recompute_s[point->recompute];
        const double wait_s = n * (splits_backward ? cost->layer_forward_s : layer_s);
        /* With V placement the head is not on the last rank. */
        bound_s = fmax(bound_s, m * v * n * layer_s + (p - 1.0) * wait_s);
        if (point->degrees.vpp == 1)
            bound_s = fmax(bound_s, m * (n * layer_s + cost->head_s) + (p - 1.0) * wait_s);
    }
    /* One micro-batch goes through all stages and back; with even stages the others pass the last
     * one meanwhile.  Input gradients suffice for the way back. */
    const double again_s = cost->recompute_s[point->recompute];
    const double layer_again_s = cost->layer_recompute_s[point->recompute];
    const double n_last =
        bidirectional || point->is_balanced
            ? 0.0
            : (double)(request->arch->n_layers / (point->degrees.pp * point->degrees.vpp));
    const double chain_s =
        cost->forward_s + again_s + (splits_backward ? cost->input_s : cost->backward_s);
    const double last_s =
        n_last * (cost->layer_forward_s + layer_again_s +
                  (splits_backward ? cost->layer_input_s : cost->layer_backward_s));
    bound_s = fmax(bound_s, chain_s + (m - 1.0) * last_s);
    /* The sums above round; a Workload rounds each op to the nanosecond. */
    const int64_t ns = units_ns_from_s(bound_s * (1.0 - 1e-9));
    return MAX(0, ns - (int64_t)(2.0 * m * v) - 2);
}

int64_t
plan_layer_sliced_bound_ns(const PlanRequest *request, const PlanPoint *point,
                           const PlanLayerCost *cost)
{
    double whole_s = cost->forward_s + cost->backward_s + cost->recompute_s[point->recompute];

    /* Backward attention takes up to twice its forward, which selective recompute repeats. */
    if (request->conventions.attention == PLAN_ATTENTION_UNFUSED)
        whole_s -= 0.5 * 3.0 * cost->recompute_s[PLAN_RECOMPUTE_SELECTIVE];
    return units_ns_from_s(
        fmax(0.0, 0.98 * whole_s * (double)point->n_microbatches / (double)point->degrees.pp));
}

static int64_t
both_passes_ns(const PlanRequest *request, ProfileQuery *query, ModelPart part, int64_t layer,
               PlanRecompute recompute)
{
    query->part = part;
    query->layer = layer;
    const ProfileCost forward = profile_cost_part(request->profile, query, PROFILE_PASS_FORWARD);
    ProfileCost backward = profile_cost_part(request->profile, query, PROFILE_PASS_BACKWARD);

    if (part == MODEL_PART_LAYER && recompute != PLAN_RECOMPUTE_NONE) {
        const ProfileCost again =
            profile_cost_recompute(request->profile, query, recompute == PLAN_RECOMPUTE_FULL);
        for (int i = 0; i < PROFILE_PART_N; i++)
            backward.part_s[i] += again.part_s[i];
        backward.host_s += again.host_s;
    }
    return units_ns_from_s(profile_cost_s(&forward) + profile_cost_s(&backward));
}

void
plan_layer_times(const PlanRequest *request, const PlanPoint *point, int64_t *layer_ns,
                 int64_t *embedding_ns, int64_t *head_ns)
{
    ProfileQuery query = query_at(request, point, 0);

    /* Layers of a kind are equal, and of at most two kinds, one after the other. */
    for (int64_t i = 0; i < request->arch->n_layers; i++)
        layer_ns[i] = i > 0 && model_layer_is_moe(request->arch, i) ==
                                   model_layer_is_moe(request->arch, i - 1)
                          ? layer_ns[i - 1]
                          : both_passes_ns(request, &query, MODEL_PART_LAYER, i, point->recompute);
    *embedding_ns = both_passes_ns(request, &query, MODEL_PART_EMBEDDING, 0, PLAN_RECOMPUTE_NONE);
    *head_ns = both_passes_ns(request, &query, MODEL_PART_HEAD, 0, PLAN_RECOMPUTE_NONE);
}

/* --- memory --- */

/* The least bytes per parameter of profiles/workload_memory.c: formats below 16 bits keep 16-bit
 * weights, Adam two fp32 moments. */
int64_t
plan_layer_state_bytes(const PlanRequest *request, const PlanPoint *point, int64_t *layer_bytes)
{
    const ModelArch *arch = request->arch;
    const PlanDegrees *d = &point->degrees;
    const double weight = (double)MAX(2, dtype_bytes(request->dtype));
    const double gradient = (double)MIN(4, dtype_bytes(request->conventions.grad_dtype));
    const double optimizer = point->offload == PLAN_OFFLOAD_NONE ? 8.0 : 0.0;
    const double dense_ranks = (double)(d->dp * d->cp);
    const double expert_ranks = (double)MAX(1, d->dp * d->cp * d->tp / d->ep);
    const double per_dense = weight / (point->zero_stage >= 3 ? dense_ranks : 1.0) +
                             gradient / (point->zero_stage >= 2 ? dense_ranks : 1.0) +
                             optimizer / (point->zero_stage >= 1 ? dense_ranks : 1.0);
    const double per_expert = weight / (point->zero_stage >= 3 ? expert_ranks : 1.0) +
                              gradient / (point->zero_stage >= 2 ? expert_ranks : 1.0) +
                              optimizer / (point->zero_stage >= 1 ? expert_ranks : 1.0);
    double sum = 0.0, least = INFINITY, bytes = 0.0;

    for (int64_t layer = 0; layer < arch->n_layers; layer++) {
        /* Layers of one kind follow each other and are equal. */
        if (layer == 0 || model_layer_is_moe(arch, layer) != model_layer_is_moe(arch, layer - 1)) {
            const double experts = (double)model_expert_parameters(arch, layer, d->tp, d->ep);
            const double all =
                (double)model_part_parameters(arch, MODEL_PART_LAYER, layer, d->tp, d->ep, false);
            bytes = experts * per_expert + (all - experts) * per_dense;
            least = fmin(least, bytes);
        }
        sum += bytes;
    }
    *layer_bytes = (int64_t)(least * (1.0 - 1e-9));
    return (int64_t)(sum / (double)d->pp * (1.0 - 1e-9) +
                     request->profile->parameters.context_bytes);
}
