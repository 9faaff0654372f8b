#include "planner/cost/layer_cost.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/units.h"
#include "profiles/cost/cost.h"
#include "profiles/workload/memory.h"
#include "profiles/workload/state.h"
#include "profiles/workload/ops.h"
#include "schedule/stack.h"

static ModelPart
model_part(PlanPart part)
{
    return part == PLAN_PART_EMBEDDING ? MODEL_PART_EMBEDDING
           : part == PLAN_PART_HEAD    ? MODEL_PART_HEAD
                                       : MODEL_PART_LAYER;
}

/* The layer that stands for those of its kind; 0 of an end. */
static int64_t
layer_of_part(const PlanRequest *request, PlanPart part)
{
    return part < PLAN_PART_EMBEDDING ? model_first_of_kind(request->arch, (int32_t)part) : 0;
}

void
plan_layer_count(const PlanRequest *request, int64_t first, int64_t last, int64_t n[PLAN_PART_N])
{
    for (int64_t layer = first; layer < last; layer++)
        n[model_layer_kind(request->arch, layer)]++;
}

/* A group from @first on, or the last one that there is: none lies in fewer devices alone. */
static ProfileGroup
group_at(const ProfileMesh *mesh, ProfileGroupKind kind, int64_t n_devices, int64_t first)
{
    ProfileGroup group = profile_group_at(mesh, kind, first);
    const int64_t extent =
        group.per_run > 0 ? group.n / group.per_run * group.run_stride : group.n * group.stride;

    group.first = MAX(0, MIN(first, n_devices - extent));
    return group;
}

ProfileQuery
plan_layer_query(const PlanRequest *request, const PlanLayerShape *shape, int64_t first)
{
    const PlanDegrees *d = &shape->degrees;
    const int64_t n = model_cluster_n_devices(request->profile->cluster);
    const ProfileMesh mesh = plan_layer_mesh(request, d);
    ProfileQuery query = {
        .arch = request->arch,
        .shape =
            {
                .batch = shape->micro_batch,
                .tokens = request->seq_len,
                .tp = d->tp,
                .cp = d->cp,
                .ep = d->ep,
                .sequence_parallel = shape->sequence_parallel,
                .whole_tokens = request->seq_len,
                .dtype = request->dtype,
            },
        .rank = first,
        .overlap_tp = request->conventions.overlap_tp,
        .overlap_tp_forward = plan_framework(request->conventions.framework)->overlaps_tp_forward,
        .sums_beside = plan_stack_sums_beside(&request->conventions),
        .overlap_ep = plan_merges_passes(&request->conventions, d),
    };

    for (int i = 0; i < MODEL_GROUP_N; i++)
        query.groups[i] = group_at(&mesh, (ProfileGroupKind)i, n, first);
    workload_set_host(request->conventions.framework, &request->profile->parameters, &query);
    workload_set_conventions(&request->conventions, &request->profile->parameters, &query.shape);
    return query;
}

/* Whether @query is about a part of its sequences. */
static bool
is_slice(const PlanRequest *request, const ProfileQuery *query)
{
    return query->shape.tokens < request->seq_len;
}

/* --- bytes --- */

static void
set_bytes(const PlanRequest *request, const ProfileQuery *query, bool is_layer, int64_t boundary,
          PlanPartCost *part)
{
    const WorkloadPartBytes bytes =
        workload_part_bytes(request->arch, query->part, query->layer, &query->shape);
    /* Later slices read the keys and values of a slice: no recompute frees them. */
    const bool sliced = is_slice(request, query);
    const int64_t units = request->conventions.recompute_layers;

    for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++) {
        const PlanRecompute recompute = is_layer ? (PlanRecompute)kind : PLAN_RECOMPUTE_NONE;
        const WorkloadKeptBytes held =
            workload_kept_bytes(&bytes, recompute, sliced, is_layer ? boundary : 0);
        const WorkloadKeptBytes cut =
            workload_kept_bytes(&bytes, recompute, true, is_layer ? boundary : 0);
        part->kept_bytes[kind] = held.kept_bytes + held.kv_bytes;
        part->sliced_bytes[kind] = cut.kept_bytes + cut.kv_bytes;
        part->kv_gradient_bytes = workload_kv_gradient_bytes(
            query->shape.dtype, &request->conventions, cut.kv_bytes, cut.state_bytes, true);
        /* At the least: of a unit of layers one keeps its input. */
        if (recompute == PLAN_RECOMPUTE_FULL && units > 1) {
            const int64_t inputs = boundary - boundary / units;
            part->kept_bytes[kind] -= inputs;
            part->sliced_bytes[kind] -= inputs;
        }
        part->weight_bytes = held.weight_kept_bytes;
        part->forward_workspace_bytes[kind] = held.forward_workspace_bytes;
        part->backward_workspace_bytes[kind] = held.backward_workspace_bytes;
        part->input_workspace_bytes[kind] = held.input_workspace_bytes;
    }
}

int64_t
plan_layer_state_bytes(const PlanRequest *request, const PlanDegrees *degrees, int32_t zero_stage,
                       PlanOffload offload, const WorkloadParameterCounts *counts)
{
    const WorkloadParameterBytes bytes =
        workload_parameter_bytes(request->dtype, &request->conventions);
    const WorkloadSharding sharding = {zero_stage, offload, request->offload_parameters};
    const WorkloadParameters n = workload_parameters_least(counts);
    const WorkloadStateBytes state =
        workload_state_bytes(degrees, &sharding, &request->conventions, &bytes, &n);

    return state.weights_bytes + state.gradients_bytes + state.optimizer_bytes;
}

static void
set_parameters(const PlanRequest *request, const PlanDegrees *d, PlanPart part, int64_t layer,
               PlanLayerCost *cost)
{
    const PlanConventions *c = &request->conventions;
    const ModelArch arch = model_arch_padded(request->arch, d->tp, plan_vocab_multiple(c));
    PlanPartCost *p = &cost->parts[part];
    const int64_t etp = plan_expert_tp(d, c);
    const int64_t all =
        model_part_parameters(&arch, model_part(part), layer, d->tp, d->ep, etp, false);
    const int64_t trained =
        model_part_trained(&arch, model_part(part), layer, d->tp, d->ep, etp, false);
    WorkloadParameterCounts *n = &p->parameters;

    if (part < PLAN_PART_EMBEDDING)
        n->expert = model_expert_parameters(&arch, layer, d->ep, etp);
    n->dense = all - n->expert;
    n->trained_expert = arch.lora.rank > 0 ? 0 : n->expert;
    n->trained_dense = trained - n->trained_expert;
    cost->table_parameters = model_table_parameters(&arch, d->tp);
    if (part == PLAN_PART_HEAD && arch.tied_embeddings)
        cost->tied_parameters = cost->table_parameters;
}

/* --- times --- */

/* What computing @again adds to a layer's backward: an op takes the larger of device and host. */
static double
recompute_s(const ProfileCost *backward, const ProfileCost *again)
{
    ProfileCost both = *backward;

    for (int i = 0; i < PROFILE_PART_N; i++)
        both.part_s[i] += again->part_s[i];
    both.host_s += again->host_s;
    return fmax(0.0, profile_cost_s(&both) - profile_cost_s(backward));
}

/* Backwards of an iteration so many that all gradients but one are added to others. */
#define MANY 1e18

static bool
adds_in_product(const PlanRequest *request, const PlanLayerShape *shape)
{
    return plan_framework_fuses_accumulation(&request->conventions, shape->sequence_parallel,
                                             request->recompute == PLAN_RECOMPUTE_SELECTIVE);
}

bool
plan_layer_recomputes_depend(const PlanRequest *request, const PlanLayerShape *shape)
{
    return request->recompute == PLAN_AUTO &&
           plan_framework_fuses_accumulation(&request->conventions, shape->sequence_parallel,
                                             false) !=
               plan_framework_fuses_accumulation(&request->conventions, shape->sequence_parallel,
                                                 true);
}

double
plan_layer_accumulated(const PlanRequest *request, const PlanLayerShape *shape, double n)
{
    const bool in_product = adds_in_product(request, shape);
    const double all =
        workload_accumulate_bytes(request->dtype, &request->conventions, in_product, MANY);

    return all > 0.0
               ? workload_accumulate_bytes(request->dtype, &request->conventions, in_product, n) /
                     all
               : 0.0;
}

/* Has @query add gradients, only where it is plainly added: neither measured rows nor overlapped
 * collectives. */
static void
set_accumulation(const PlanRequest *request, const PlanLayerShape *shape, ProfileQuery *query)
{
    if (request->conventions.overlap_tp || request->profile->measurements->len > 0 ||
        plan_layer_recomputes_depend(request, shape))
        return;
    query->accumulate_in_product = adds_in_product(request, shape);
    query->accumulate_bytes_per_weight = workload_accumulate_bytes(
        request->dtype, &request->conventions, query->accumulate_in_product, MANY);
}

/* By what is done besides @cost. */
static double
slack_s(const ProfileCost *cost, const ProfileCost *again)
{
    return fmax(0.0, cost->host_s + again->host_s - profile_cost_device_s(cost) -
                         profile_cost_device_s(again));
}

/* What a part costs by pass. */
typedef struct {
    ProfileCost forward, backward, input, weight;
    ProfileCost again[PLAN_RECOMPUTE_N]; /* what is recomputed */
} PassCosts;

static void
set_slack(const PassCosts *costs, PlanPartCost *part)
{
    const ProfileCost *none = &costs->again[PLAN_RECOMPUTE_NONE];

    part->forward_slack_s = slack_s(&costs->forward, none);
    part->weight_slack_s = slack_s(&costs->weight, none);
    for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++) {
        part->host_slack_s[kind] = slack_s(&costs->backward, &costs->again[kind]);
        part->input_slack_s[kind] = slack_s(&costs->input, &costs->again[kind]);
    }
}

static double
collectives_s(const ProfileCost *cost)
{
    return cost->part_s[PROFILE_PART_TP] + cost->part_s[PROFILE_PART_CP] +
           cost->part_s[PROFILE_PART_EP] + cost->part_s[PROFILE_PART_DP];
}

/* Whether ops may be merged for their exchanges with experts, whatever the degrees. */
static bool
merges(const PlanRequest *request)
{
    return request->conventions.overlap_ep &&
           plan_framework(request->conventions.framework)->merges_pairs;
}

/* What a pass takes at the least: without the exchanges that a pair may hide. */
static double
least_s(const PlanRequest *request, const ProfileCost *cost)
{
    return profile_cost_s(cost) - (merges(request) ? cost->part_s[PROFILE_PART_EP] : 0.0);
}

/* What overlapping the two ops of a pair may hide: collectives, behind which ZeRO 3's may hide what
 * the host takes longer; nothing where they run in turn. */
static double
hidden_s(const PlanRequest *request, const PassCosts *costs, const PlanPartCost *part)
{
    double slack = 0.0;

    if (plan_pairs_in_turn(&request->conventions) || merges(request))
        return 0.0;
    for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++)
        slack = fmax(slack, part->host_slack_s[kind]);
    return part->forward_slack_s + slack + collectives_s(&costs->forward) +
           fmax(collectives_s(&costs->backward),
                collectives_s(&costs->input) + collectives_s(&costs->weight));
}

static void
set_times(const PlanRequest *request, const PlanLayerShape *shape, const ProfileQuery *query,
          bool is_layer, PlanPartCost *part)
{
    const Profile *profile = request->profile;
    ProfileQuery adding = *query;
    set_accumulation(request, shape, &adding);
    const ProfilePartCosts all = profile_cost_passes(profile, &adding);
    PassCosts costs = {
        .forward = all.first[PROFILE_PASS_FORWARD],
        .backward = all.first[PROFILE_PASS_BACKWARD],
        .input = all.first[PROFILE_PASS_BACKWARD_INPUT],
        .weight = all.first[PROFILE_PASS_BACKWARD_WEIGHT],
        .again = {[PLAN_RECOMPUTE_SELECTIVE] = all.selective},
    };

    /* Of layers that full recompute may leave alone, nothing. */
    if (is_layer && plan_full_repeats_all(&request->conventions))
        costs.again[PLAN_RECOMPUTE_FULL] = profile_cost_again(&costs.forward);
    part->accumulate_s = fmax(0.0, profile_cost_device_s(&all.passes[PROFILE_PASS_BACKWARD]) -
                                       profile_cost_device_s(&costs.backward));
    set_slack(&costs, part);
    part->hidden_s = hidden_s(request, &costs, part);
    part->forward_s = least_s(request, &costs.forward);
    part->backward_s = least_s(request, &costs.backward);
    part->weight_s = least_s(request, &costs.weight);
    /* Modelled halves never take less than the whole; measured ones may. */
    if (profile->measurements->len > 0)
        part->backward_s = fmin(part->backward_s, least_s(request, &costs.input) + part->weight_s);
    if (!is_slice(request, query)) {
        const ProfileSlicedFloors floors = profile_cost_sliced_floors(profile, query);
        part->sliced_forward_s = floors.forward_s;
        part->sliced_backward_s = floors.backward_s;
        part->sliced_core_s = floors.selective_s;
    }
    part->input_s = fmin(least_s(request, &costs.input), least_s(request, &costs.backward));
    for (int kind = PLAN_RECOMPUTE_SELECTIVE; is_layer && kind < PLAN_RECOMPUTE_N; kind++) {
        part->recompute_s[kind] = recompute_s(&costs.backward, &costs.again[kind]);
        part->input_recompute_s[kind] = recompute_s(&costs.input, &costs.again[kind]);
    }
}

/* Which number of a PlanPartCost a member begins with. */
#define AT(member) (offsetof(PlanPartCost, member) / sizeof(double))
G_STATIC_ASSERT(sizeof(double) == sizeof(int64_t));

/* Of another kind of nodes. */
static void
lower_times(PlanPartCost *part, const PlanPartCost *other)
{
    double *times = (double *)part;

    for (size_t i = 0; i < AT(kept_bytes); i++) {
        const double time = ((const double *)other)[i];
        times[i] = i < PLAN_PART_N_LEAST ? fmin(times[i], time) : fmax(times[i], time);
    }
}

/* --- all parts --- */

static void
add_up(PlanLayerCost *cost)
{
    double *all = (double *)&cost->all, *layer = (double *)&cost->layer;
    bool is_first = true;

    cost->all = cost->layer = (PlanPartCost){0};
    for (int part = 0; part < PLAN_PART_N; part++) {
        const double *times = (const double *)&cost->parts[part];
        const bool is_layer = part < PLAN_PART_EMBEDDING && cost->n[part] > 0;
        for (size_t i = 0; i < AT(kept_bytes); i++) {
            all[i] += (double)cost->n[part] * times[i];
            if (is_layer)
                layer[i] = is_first ? times[i] : fmin(layer[i], times[i]);
        }
        is_first = is_first && !is_layer;
    }
}

/* @tokens of a sequence after @context others. */
typedef struct {
    int64_t tokens, context;
} Slice;

/* The first device of the kind of nodes @kind. */
static int64_t
first_of_nodes(const ModelCluster *cluster, int32_t kind)
{
    int64_t first = 0;

    for (int32_t i = 0; i < kind; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, (guint)i);
        first += nodes->n_devices * nodes->n_nodes;
    }
    return first;
}

/* Returns: @part of the model at the fastest of the kinds of nodes that ranks can lie on, or at the one
 * that @shape names, in any case with the groups that lie best; but for its parameters. */
static PlanPartCost
price_part(const PlanRequest *request, const PlanLayerShape *shape, Slice slice, PlanPart part)
{
    const ModelCluster *cluster = request->profile->cluster;
    const bool is_layer = model_part(part) == MODEL_PART_LAYER;
    PlanPartCost cost = {0};
    int64_t first = 0;

    for (guint i = 0; i < cluster->nodes->len; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        ProfileQuery query = plan_layer_query(request, shape, first);
        PlanPartCost here = {0};
        if (shape->only_nodes > 0)
            query.rank = first_of_nodes(cluster, shape->only_nodes - 1);
        query.part = model_part(part);
        query.layer = layer_of_part(request, part);
        query.shape.tokens = slice.tokens;
        query.shape.context = slice.context;
        set_times(request, shape, &query, is_layer, &here);
        first += nodes->n_devices * nodes->n_nodes;
        if (i > 0) {
            lower_times(&cost, &here);
            continue;
        }
        set_bytes(request, &query, is_layer, model_boundary_bytes(request->arch, &query.shape),
                  &here);
        cost = here;
    }
    return cost;
}

/* What a part on whole sequences depends on.  Degrees and groups that its ops have nothing to do with
 * are 0: the embedding, the head and layers without experts are the same for every ep, and a group of
 * one rank the same wherever it lies. */
typedef struct {
    PlanMemoKey memo;
    int64_t part, tp, cp, ep, micro_batch, sequence_parallel, only_nodes, recompute;
    ProfileGroup groups[MODEL_GROUP_N];
} PartKey;

typedef struct {
    const PlanRequest *request;
    const PlanLayerShape *shape;
    PlanPart part;
} PartQuestion;

/* PlanMemoMakeFunc. */
static void *
make_part(const void *data)
{
    const PartQuestion *asked = data;
    PlanPartCost *cost = g_new(PlanPartCost, 1);

    *cost = price_part(asked->request, asked->shape, (Slice){.tokens = asked->request->seq_len},
                       asked->part);
    return cost;
}

/* (borrowed from the memo) @part on whole sequences, with @groups at the first device. */
static const PlanPartCost *
whole_part(PlanMemo *memo, const PlanRequest *request, const PlanLayerShape *shape,
           const ProfileGroup groups[MODEL_GROUP_N], PlanPart part)
{
    const PartQuestion question = {request, shape, part};
    const PlanDegrees *d = &shape->degrees;
    const bool has_experts = part < PLAN_PART_EMBEDDING &&
                             model_layer_is_moe(request->arch, layer_of_part(request, part));
    PartKey key = {
        .memo = PLAN_MEMO_KEY(PartKey, PLAN_MEMO_PART_COST),
        .part = part,
        .tp = d->tp,
        .cp = d->cp,
        .ep = has_experts ? d->ep : 0,
        .micro_batch = shape->micro_batch,
        .sequence_parallel = shape->sequence_parallel,
        .only_nodes = shape->only_nodes,
        .recompute = request->recompute,
    };

    for (int i = 0; i < MODEL_GROUP_N; i++)
        if (groups[i].n > 1 && (has_experts || (i != MODEL_GROUP_EP && i != MODEL_GROUP_ETP)))
            key.groups[i] = groups[i];
    return plan_memo_get(memo, &key.memo, make_part, &question, g_free);
}

/* @memo: (nullable) has the parts of whole sequences. */
static PlanLayerCost
slice_cost(PlanMemo *memo, const PlanRequest *request, const PlanLayerShape *shape, Slice slice)
{
    const ModelArch *arch = request->arch;
    ProfileQuery query = plan_layer_query(request, shape, 0);
    ProfileGroup groups[MODEL_GROUP_N];
    query.shape.tokens = slice.tokens;
    query.shape.context = slice.context;
    PlanLayerCost cost = {.n = {[PLAN_PART_EMBEDDING] = 1, [PLAN_PART_HEAD] = 1},
                          .boundary_bytes = model_boundary_bytes(arch, &query.shape)};

    cost.n_kinds = model_n_kinds(arch);
    cost.first_kind = model_layer_kind(arch, 0);
    model_count_kinds(arch, cost.n);
    plan_layer_groups(request, &shape->degrees, groups);
    for (PlanPart part = 0; part < PLAN_PART_N; part++) {
        if (part < PLAN_PART_EMBEDDING ? cost.n[part] == 0 : arch->vocab == 0)
            continue;
        cost.parts[part] = memo != NULL ? *whole_part(memo, request, shape, groups, part)
                                        : price_part(request, shape, slice, part);
        set_parameters(request, &shape->degrees, part, layer_of_part(request, part), &cost);
    }
    add_up(&cost);
    return cost;
}

/* --- slices --- */

/* The least of the bytes from number @first on. */
static void
lower_bytes(PlanPartCost *part, const PlanPartCost *other, size_t first)
{
    int64_t *bytes = (int64_t *)part;

    for (size_t i = first; i < AT(parameters); i++)
        bytes[i] = MIN(bytes[i], ((const int64_t *)other)[i]);
}

/* Adds one more slice's ops to @sum; the least of workspaces. */
static void
add_part(PlanPartCost *sum, const PlanPartCost *more)
{
    for (size_t i = 0; i < AT(kept_bytes); i++)
        ((double *)sum)[i] += ((const double *)more)[i];
    for (size_t i = AT(kept_bytes); i < AT(forward_workspace_bytes); i++)
        ((int64_t *)sum)[i] += ((const int64_t *)more)[i];
    lower_bytes(sum, more, AT(forward_workspace_bytes));
}

PlanSlicedCost
plan_layer_sliced_cost(const PlanRequest *request, const PlanLayerShape *shape,
                       const GArray *slices)
{
    Slice slice = {.context = 0};
    PlanSlicedCost cost = {0};

    for (guint i = 0; i < slices->len; i++) {
        slice.tokens = g_array_index(slices, int64_t, i);
        const PlanLayerCost one = slice_cost(NULL, request, shape, slice);
        slice.context += slice.tokens;
        if (i == 0) {
            cost = (PlanSlicedCost){one, one};
            continue;
        }
        for (int k = 0; k < PLAN_PART_N; k++) {
            add_part(&cost.whole.parts[k], &one.parts[k]);
            lower_bytes(&cost.slice.parts[k], &one.parts[k], AT(kept_bytes));
        }
        /* Buffers are as large as the largest message. */
        cost.whole.boundary_bytes = MAX(cost.whole.boundary_bytes, one.boundary_bytes);
    }
    cost.slice.boundary_bytes = cost.whole.boundary_bytes;
    if (slices->len > 1) {
        add_up(&cost.whole);
        add_up(&cost.slice);
    }
    return cost;
}

/* What the costs depend on. */
typedef struct {
    PlanMemoKey memo;
    int64_t tp, cp, ep, micro_batch, sequence_parallel, only_nodes, recompute, n_slices;
    ProfileGroup groups[MODEL_GROUP_N];
} CostKey;

typedef struct {
    const PlanRequest *request;
    const PlanLayerShape *shape;
    int64_t n_slices;
} CostQuestion;

/* PlanMemoMakeFunc. */
static void *
make_uniform_cost(const void *data)
{
    const CostQuestion *asked = data;
    g_autoptr(GArray) slices = g_array_new(FALSE, FALSE, sizeof(int64_t));

    if (!plan_uniform_slices(
            asked->request->seq_len,
            plan_granularity(&asked->shape->degrees, asked->shape->sequence_parallel),
            asked->n_slices, slices))
        return NULL;
    PlanSlicedCost *cost = g_new(PlanSlicedCost, 1);
    *cost = plan_layer_sliced_cost(asked->request, asked->shape, slices);
    return cost;
}

static CostKey
cost_key(const PlanRequest *request, const PlanLayerShape *shape, PlanMemoKind kind,
         int64_t n_slices)
{
    const PlanDegrees *d = &shape->degrees;
    CostKey key = {
        .memo = PLAN_MEMO_KEY(CostKey, kind),
        .tp = d->tp,
        .cp = d->cp,
        .ep = d->ep,
        .micro_batch = shape->micro_batch,
        .sequence_parallel = shape->sequence_parallel,
        .only_nodes = shape->only_nodes,
        .recompute = request->recompute,
        .n_slices = n_slices,
    };

    plan_layer_groups(request, d, key.groups);
    return key;
}

const PlanSlicedCost *
plan_layer_uniform_cost(PlanMemo *memo, const PlanRequest *request, const PlanLayerShape *shape,
                        int64_t n_slices)
{
    const CostQuestion question = {request, shape, n_slices};
    const CostKey key = cost_key(request, shape, PLAN_MEMO_LAYER_COST, n_slices);

    return plan_memo_get(memo, &key.memo, make_uniform_cost, &question, g_free);
}

/* --- whole sequences --- */

void
plan_layer_whole_cost(PlanMemo *memo, const PlanRequest *request, const PlanLayerShape *shape,
                      PlanLayerCost *cost)
{
    *cost = slice_cost(memo, request, shape, (Slice){.tokens = request->seq_len});
}

/* --- for dividing layers --- */

static int64_t
both_passes_ns(const PlanRequest *request, ProfileQuery *query, ModelPart part, int64_t layer,
               PlanRecompute recompute)
{
    query->part = part;
    query->layer = layer;
    const ProfileCost forward = profile_cost_part(request->profile, query, PROFILE_PASS_FORWARD);
    const ProfileCost backward = profile_cost_part(request->profile, query, PROFILE_PASS_BACKWARD);
    double again_s = 0.0;

    if (part == MODEL_PART_LAYER && recompute != PLAN_RECOMPUTE_NONE) {
        const ProfileCost again =
            profile_cost_recompute(request->profile, query, recompute == PLAN_RECOMPUTE_FULL);
        again_s = recompute_s(&backward, &again);
    }
    return units_ns_from_s(profile_cost_s(&forward) + profile_cost_s(&backward) + again_s);
}

void
plan_layer_times(const PlanRequest *request, const PlanLayerShape *shape, PlanRecompute recompute,
                 int64_t first, int64_t *layer_ns, int64_t end_ns[2])
{
    ProfileQuery query = plan_layer_query(request, shape, first);

    int64_t ns_of_kind[MODEL_MAX_KINDS];

    memset(ns_of_kind, -1, sizeof ns_of_kind);
    for (int64_t i = 0; i < model_n_stacked(request->arch); i++) {
        int64_t *ns = &ns_of_kind[model_layer_kind(request->arch, i)];
        if (*ns < 0)
            *ns = both_passes_ns(request, &query, MODEL_PART_LAYER, i, recompute);
        layer_ns[i] = *ns;
    }
    end_ns[0] = both_passes_ns(request, &query, MODEL_PART_EMBEDDING, 0, PLAN_RECOMPUTE_NONE);
    end_ns[1] = both_passes_ns(request, &query, MODEL_PART_HEAD, 0, PLAN_RECOMPUTE_NONE);
}
