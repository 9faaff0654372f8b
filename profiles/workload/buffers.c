#include "profiles/workload/buffers.h"

#include "profiles/workload/build.h"
#include "schedule/stack.h"

#include <math.h>

/* The largest message of the rank's stages, each way. */
static int64_t
message_bytes(const WorkloadBuild *build, const Workload *workload, int32_t rank)
{
    int64_t n_per_stage = (int64_t)build->n_classes * build->n_slices;
    int64_t forward = 0, backward = 0;

    for (int32_t i = 0; i < build->n_chains * build->n_stages; i++) {
        if (g_array_index(build->plan->stages, PlanStage, (guint)i).rank != rank)
            continue;
        for (int64_t j = 0; j < n_per_stage; j++) {
            const WorkloadOp *op = &workload->ops[i * n_per_stage + j];

            forward = MAX(forward, op->forward_message.bytes);
            backward = MAX(backward, op->backward_message.bytes);
        }
    }
    return forward + backward;
}

/* degas's executor: what a forward passes on, apart from what the backward that it is merged with does. */
static int64_t
merged_bytes(const WorkloadBuild *build, int32_t rank)
{
    int64_t most = 0;

    if (!plan_merges_pairs(&build->plan->conventions, &build->plan->degrees) ||
        !build->facts->row_blocks)
        return 0;
    for (guint i = 0; i < build->plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(build->plan->stages, PlanStage, i);
        const int64_t n = 1 + model_n_mtp_before(build->arch, stage->first_layer + stage->n_layers);
        for (int32_t class_ = 0; stage->rank == rank && class_ < build->n_classes; class_++) {
            const ModelShape shape = workload_build_shape(build, class_, 0);
            most = MAX(most, n * model_boundary_bytes(build->arch, &shape));
        }
    }
    return most;
}

/* Of a device: one for each group that it communicates in. */
static double
n_communicators(const PlanDegrees *d)
{
    return (double)((d->tp > 1) + (d->cp > 1) + (d->dp > 1) + (d->ep > 1) + (d->pp > 1));
}

/* Transformer Engine returns a placeholder where a product has added its weight's gradient to the
 * sum itself, and keeps one for every shape of weight: one layer's, an expert's once. */
static int64_t
placeholder_bytes(const WorkloadBuild *build, int32_t rank)
{
    const Plan *plan = build->plan;
    int64_t largest = 0;

    if (!build->facts->gradient_placeholders)
        return 0;
    for (guint i = 0; i < plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);
        ModelShape shape = workload_build_shape(build, 0, 0);
        ModelOp ops[MODEL_MAX_OPS];
        int64_t sum = 0;

        if (stage->rank != rank || stage->n_layers == 0)
            continue;
        size_t n_ops = model_ops(build->arch, MODEL_PART_LAYER,
                                 stage->first_layer + stage->n_layers - 1, &shape, ops);
        for (size_t j = 0; j < n_ops; j++) {
            if (ops[j].kind == MODEL_OP_GEMM && !ops[j].frozen)
                sum += ops[j].weight_bytes / MAX(1, ops[j].count);
        }
        largest = MAX(largest, sum);
    }
    return largest;
}

/* PyTorch takes a workspace of cuBLAS for each of its threads that call it: the one of forward and
 * autograd's. */
#define BLAS_THREADS 2.0
/* CUBLAS_WORKSPACE_CONFIG=:4096:8, without which cuBLAS does not promise to repeat itself. */
#define DETERMINISTIC_BLAS_BYTES (8.0 * 4096.0 * 1024.0)

int64_t
workload_library_bytes(const ProfileParameters *p, const PlanConventions *conventions)
{
    const double blas = conventions->deterministic
                            ? fmax(p->blas_workspace_bytes, DETERMINISTIC_BLAS_BYTES)
                            : p->blas_workspace_bytes;

    return (int64_t)(BLAS_THREADS * blas + p->workspace_bytes + p->context_bytes);
}

int64_t
workload_usable_of(const ProfileParameters *p, const PlanDegrees *degrees, int64_t device_bytes,
                   int64_t static_bytes)
{
    const double left =
        (double)device_bytes - p->driver_bytes - n_communicators(degrees) * p->communicator_bytes;
    const double always = (double)static_bytes;

    if (left <= always)
        return (int64_t)fmax(1.0, left);
    return (int64_t)(always + (left - always) / (1.0 + p->allocator_fraction));
}

/* The layer that computes, and those gathered ahead of it, where ops do not count them. */
static int64_t
gathered_bytes(const WorkloadBuild *build)
{
    const Plan *plan = build->plan;

    if (plan->zero_stage < 3 || workload_counts_gathered(plan->zero_stage, &plan->conventions))
        return 0;
    return workload_build_mul(1 + workload_plan_prefetch(build->arch, plan),
                              workload_build_mul(workload_build_first_layer(build->arch, plan),
                                                 workload_build_element_bytes(plan)));
}

/* The inputs of the head's product and the gradients of its logits that wait for their weight
 * gradients until the last backward has run (cost-model.md 6.3). */
static int64_t
deferred_bytes(const WorkloadBuild *build, int32_t rank)
{
    const Plan *plan = build->plan;
    const ModelShape shape = workload_build_shape(build, 0, 0);
    ModelOp ops[MODEL_MAX_OPS];
    const size_t n_ops = model_ops(build->arch, MODEL_PART_HEAD, 0, &shape, ops);
    const int64_t n = MIN(plan->conventions.deferred_gradients, plan->n_micro_batches);
    int64_t bytes = 0;

    for (guint i = 0; n > 0 && i < plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);
        for (size_t j = 0; stage->rank == rank && stage->head && j < n_ops; j++)
            if (ops[j].kind == MODEL_OP_GEMM && !ops[j].frozen)
                bytes += ops[j].saved_for_weight_bytes +
                         ops[j].m * ops[j].n * workload_build_element_bytes(plan);
    }
    return workload_build_mul(n, bytes);
}

/* The most that any op of a part needs while it runs, those that graphs hold and the others apart. */
static void
most_transient_bytes(const WorkloadBuild *build, ModelPart part, int64_t layer,
                     const ModelShape *shape, int64_t *captured, int64_t *eager)
{
    const double element = (double)dtype_bytes(dtype_stored(shape->dtype));
    ModelOp ops[MODEL_MAX_OPS];
    const size_t n_ops = model_ops(build->arch, part, layer, shape, ops);

    for (size_t i = 0; i < n_ops; i++) {
        int64_t *most = ops[i].captured ? captured : eager;
        *most =
            MAX(*most, workload_build_output_bytes(&ops[i], element) +
                           MAX(ops[i].forward_transient_bytes, ops[i].backward_transient_bytes));
    }
}

/* What CUDA graphs of parts of layers hold on to (cost-model.md 6.3). */
static int64_t
graph_bytes(const WorkloadBuild *build, int32_t rank)
{
    const Plan *plan = build->plan;
    const ModelShape shape = workload_build_shape(build, 0, 0);
    bool known[MODEL_MAX_KINDS] = {false};
    int64_t captured = 0, eager = 0;

    if (plan->conventions.cuda_graphs == PLAN_GRAPHS_NONE ||
        plan->conventions.cuda_graphs == PLAN_GRAPHS_ITERATION)
        return 0;
    for (guint i = 0; i < plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);

        if (stage->rank != rank)
            continue;
        for (int64_t j = stage->first_layer; j < stage->first_layer + stage->n_layers; j++) {
            const int kind = model_layer_kind(build->arch, j);
            if (!known[kind])
                most_transient_bytes(build, MODEL_PART_LAYER, j, &shape, &captured, &eager);
            known[kind] = true;
        }
        if (stage->head)
            most_transient_bytes(build, MODEL_PART_HEAD, 0, &shape, &captured, &eager);
    }
    return captured == 0 ? 0 : MIN(captured, eager) + model_boundary_bytes(build->arch, &shape);
}

/* The rank's first layer with experts; -1: there is none. */
static int64_t
first_with_experts(const WorkloadBuild *build, int32_t rank)
{
    for (guint i = 0; i < build->plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(build->plan->stages, PlanStage, i);

        for (int64_t j = stage->first_layer;
             stage->rank == rank && j < stage->first_layer + stage->n_layers; j++)
            if (model_layer_arch(build->arch, j).experts.n_experts > 0)
                return j;
    }
    return -1;
}

/*
 * The buffers of HybridEP, which it takes once for all layers and outside of the framework's allocator
 * (cost-model.md 6.3): in a node room for the rows of all ranks, with the probabilities of the node's
 * experts; where ranks are on several nodes the rows that go to the others and that come from them.
 */
static int64_t
dispatcher_bytes(const WorkloadBuild *build, int32_t rank)
{
    const Plan *plan = build->plan;
    const PlanDegrees *d = &plan->degrees;
    const int64_t layer = first_with_experts(build, rank);

    if (plan->conventions.dispatcher != PLAN_DISPATCHER_HYBRIDEP || d->ep == 1 || layer < 0)
        return 0;
    const ModelExperts experts = model_layer_arch(build->arch, layer).experts;
    const ModelShape shape = workload_build_shape(build, 0, 0);
    const ProfileGroup group = workload_build_group(build, PROFILE_GROUP_EP, rank);
    const double nodes = (double)profile_group_nodes(build->profile, &group);
    const double rows = (double)shape.batch * (double)shape.tokens / (double)(d->cp * d->tp);
    const double ranks = (double)(d->ep * plan_expert_tp(d, &plan->conventions));
    const double width = (double)(experts.latent > 0 ? experts.latent : build->arch->hidden);
    const double scales = 4.0 * width / 128.0;
    const double row = 2.0 * width + 4.0 * (double)experts.n_experts / nodes;
    double bytes = rows * ranks * (row + scales);

    if (nodes > 1.0)
        bytes += rows * (2.0 * width + 4.0 * (double)experts.n_experts + scales) +
                 rows * (nodes - 1.0) * (3.0 * row + scales);
    return (int64_t)fmin(bytes, (double)MODEL_MAX_BYTES);
}

/* The logits of a micro-batch. */
static int64_t
logits_bytes(const WorkloadBuild *build, const ModelShape *shape)
{
    ModelOp ops[MODEL_MAX_OPS];
    const size_t n_ops = model_ops(build->arch, MODEL_PART_HEAD, 0, shape, ops);

    for (size_t i = 0; i < n_ops; i++)
        if (ops[i].kind == MODEL_OP_GEMM)
            return workload_build_mul(ops[i].m,
                                      ops[i].n * workload_build_element_bytes(build->plan));
    return 0;
}

/* The results of all micro-batches that a rank's stages keep to the end of a step: those of the last
 * stage are logits, of this tp rank's share. */
static int64_t
collected_bytes(const WorkloadBuild *build, int32_t rank)
{
    const Plan *plan = build->plan;
    const ModelShape shape = workload_build_shape(build, 0, 0);
    int64_t bytes = 0;

    if (!build->facts->collects_outputs || plan->degrees.pp == 1)
        return 0;
    for (guint i = 0; i < plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);
        const PlanFeature freed =
            stage->head ? PLAN_FEATURE_LOGITS_FREED : PLAN_FEATURE_STAGE_OUTPUTS_FREED;

        if (stage->rank != rank || plan_stack_lacks(&plan->conventions, freed) == NULL)
            continue;
        workload_build_add(&bytes, stage->head ? logits_bytes(build, &shape)
                                               : model_boundary_bytes(build->arch, &shape));
    }
    return workload_build_mul(plan->n_micro_batches, bytes);
}

bool
workload_build_receives_all(const WorkloadBuild *build, guint i, bool forward)
{
    const int32_t stage = (int32_t)i % build->n_stages;

    return build->facts->collects_outputs && build->plan->degrees.pp > 1 &&
           (forward ? stage > 0 : stage + 1 < build->n_stages);
}

/* Those buffers, of all slices of all sequences; the one of an input is what its stage keeps of it. */
static int64_t
received_bytes(const WorkloadBuild *build, int32_t rank)
{
    const Plan *plan = build->plan;
    const int64_t sequences = model_ceil_div(plan->global_batch, plan->degrees.dp);
    int64_t n = 0, bytes = 0;

    for (guint i = 0; i < build->plan->stages->len; i++)
        if (g_array_index(build->plan->stages, PlanStage, i).rank == rank)
            n += workload_build_receives_all(build, i, true) +
                 workload_build_receives_all(build, i, false);
    for (int32_t slice = 0; n > 0 && slice < build->n_slices; slice++) {
        const ModelShape shape = workload_build_shape(build, 0, slice);
        workload_build_add(&bytes, model_boundary_bytes(build->arch, &shape));
    }
    return workload_build_mul(n, workload_build_mul(sequences, bytes / build->class_sequences[0]));
}

void
workload_build_static(const WorkloadBuild *build, const Workload *workload, int32_t rank,
                      int64_t static_bytes[TRACE_MEMORY_N])
{
    const Plan *plan = build->plan;
    const ProfileParameters *p = &build->profile->parameters;
    WorkloadParameters n = workload_build_parameters(build, rank);
    WorkloadParameterBytes bytes = workload_parameter_bytes(plan->dtype, &plan->conventions);
    const WorkloadSharding sharding = {plan->zero_stage, plan->offload, plan->offload_parameters};
    WorkloadStateBytes state =
        workload_state_bytes(&plan->degrees, &sharding, &plan->conventions, &bytes, &n);

    static_bytes[TRACE_MEMORY_WEIGHTS] = state.weights_bytes;
    static_bytes[TRACE_MEMORY_GRADIENTS] = state.gradients_bytes;
    static_bytes[TRACE_MEMORY_OPTIMIZER] = state.optimizer_bytes;
    static_bytes[TRACE_MEMORY_BUFFERS] =
        message_bytes(build, workload, rank) + merged_bytes(build, rank);
    static_bytes[TRACE_MEMORY_BUFFERS] += gathered_bytes(build) + deferred_bytes(build, rank);
    static_bytes[TRACE_MEMORY_BUFFERS] += collected_bytes(build, rank) + graph_bytes(build, rank);
    static_bytes[TRACE_MEMORY_BUFFERS] +=
        dispatcher_bytes(build, rank) + received_bytes(build, rank);
    static_bytes[TRACE_MEMORY_BUFFERS] +=
        placeholder_bytes(build, rank) + workload_library_bytes(p, &plan->conventions);
}
