#include "profiles/workload_build.h"

#include <math.h>

/* --- parameters --- */

static bool
rank_embeds(const WorkloadBuild *build, int32_t rank)
{
    for (guint i = 0; i < build->plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(build->plan->stages, PlanStage, i);

        if (stage->rank == rank && stage->embedding)
            return true;
    }
    return false;
}

/* A tied table is there once on a rank that has both ends, be it in two stages. */
static void
add_stage_parameters(const WorkloadBuild *build, const PlanStage *stage, WorkloadParameters *sum)
{
    const ModelArch *arch = build->arch;
    const PlanDegrees *d = &build->plan->degrees;
    const int64_t etp = plan_expert_tp(d, &build->plan->conventions);
    bool tied_apart = arch->tied_embeddings && stage->head && !rank_embeds(build, stage->rank);

    if (stage->embedding)
        sum->dense +=
            model_part_parameters(arch, MODEL_PART_EMBEDDING, 0, d->tp, d->ep, etp, false);
    if (stage->head)
        sum->dense +=
            model_part_parameters(arch, MODEL_PART_HEAD, 0, d->tp, d->ep, etp, tied_apart);
    for (int64_t i = 0; i < stage->n_layers; i++) {
        int64_t layer = stage->first_layer + i;
        int64_t expert = model_expert_parameters(arch, layer, d->ep, etp);

        sum->expert += expert;
        sum->dense +=
            model_part_parameters(arch, MODEL_PART_LAYER, layer, d->tp, d->ep, etp, false) - expert;
    }
}

WorkloadParameters
workload_build_parameters(const WorkloadBuild *build, int32_t rank)
{
    const int64_t tp = build->plan->degrees.tp;
    WorkloadParameters sum = {0};
    bool embeds = false, heads = false;

    for (guint i = 0; i < build->plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(build->plan->stages, PlanStage, i);

        if (stage->rank != rank)
            continue;
        add_stage_parameters(build, stage, &sum);
        embeds = embeds || stage->embedding;
        heads = heads || stage->head;
    }
    if (build->arch->tied_embeddings && embeds != heads)
        sum.tied = (build->arch->vocab + tp - 1) / tp * build->arch->hidden;
    return sum;
}

WorkloadParameterBytes
workload_parameter_bytes(Dtype dtype, const PlanConventions *conventions)
{
    int64_t weight = workload_build_bytes_of(dtype);
    int64_t gradient = dtype_bytes(conventions->grad_dtype);

    /* fp32: weight, gradient, two moments; the weight is its own master copy. */
    if (weight == 4)
        return (WorkloadParameterBytes){4, 4, 8};
    /* FSDP keeps fp32 parameters and casts what it gathers. */
    if (conventions->framework == PLAN_FRAMEWORK_FSDP)
        return (WorkloadParameterBytes){4, 4, 8};
    /* fp32 master copy and two moments: 2 + 4 + 12 = 18 [Megatron], 2 + 2 + 12 = 16 [1910.02054].
     */
    return (WorkloadParameterBytes){weight, gradient, 12};
}

double
workload_checkpoint_bytes(const ModelArch *arch, const Plan *plan)
{
    const WorkloadParameterBytes bytes = workload_parameter_bytes(plan->dtype, &plan->conventions);

    return (double)model_parameters(arch) * (double)(bytes.weight + bytes.optimizer);
}

/* The largest share of @n parameters over @ranks. */
static int64_t
share(int64_t n, int64_t ranks)
{
    return n / ranks + (n % ranks != 0);
}

WorkloadStateBytes
workload_state_bytes(const PlanDegrees *d, const WorkloadSharding *sharding,
                     const PlanConventions *conventions, const WorkloadParameterBytes *bytes,
                     int64_t dense, int64_t expert)
{
    const int32_t zero_stage = sharding->zero_stage;
    const int64_t whole = dense + expert;
    const int64_t shard =
        share(dense, d->dp * d->cp) + share(expert, plan_expert_replicas(d, conventions));

    return (WorkloadStateBytes){
        .weights = sharding->offload_parameters
                       ? 0
                       : workload_build_mul(zero_stage >= 3 ? shard : whole, bytes->weight),
        .gradients = workload_build_mul(zero_stage >= 2 ? shard : whole, bytes->gradient),
        .optimizer = sharding->offload != PLAN_OFFLOAD_NONE
                         ? 0
                         : workload_build_mul(zero_stage >= 1 ? shard : whole, bytes->optimizer),
    };
}

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

            forward = MAX(forward, op->forward_message_bytes);
            backward = MAX(backward, op->backward_message_bytes);
        }
    }
    return forward + backward;
}

/* Of a device: one for each group that it communicates in. */
static double
n_communicators(const PlanDegrees *d)
{
    return (double)((d->tp > 1) + (d->cp > 1) + (d->dp > 1) + (d->ep > 1) + (d->pp > 1));
}

/*
 * Transformer Engine returns a placeholder where a product has added its weight's gradient to the
 * sum itself, and keeps one for every shape of weight: one layer's, an expert's once.
 */
static int64_t
placeholder_bytes(const WorkloadBuild *build, int32_t rank)
{
    const Plan *plan = build->plan;
    int64_t largest = 0;

    if (plan->conventions.framework != PLAN_FRAMEWORK_MEGATRON_CORE)
        return 0;
    for (guint i = 0; i < plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);
        ModelShape shape = workload_build_shape(build, 0, 0);
        ModelOp ops[MODEL_MAX_OPS];
        int64_t sum = 0;
        size_t n_ops;

        if (stage->rank != rank || stage->n_layers == 0)
            continue;
        n_ops = model_ops(build->arch, MODEL_PART_LAYER, stage->first_layer + stage->n_layers - 1,
                          &shape, ops);
        for (size_t j = 0; j < n_ops; j++) {
            if (ops[j].kind == MODEL_OP_GEMM)
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

    if (plan->zero_stage < 3 || workload_counts_whole(plan->zero_stage, &plan->conventions))
        return 0;
    return workload_build_mul(1 + workload_plan_prefetch(build->arch, plan),
                              workload_build_mul(workload_build_first_layer(build->arch, plan),
                                                 workload_build_element_bytes(plan)));
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
    WorkloadStateBytes state = workload_state_bytes(&plan->degrees, &sharding, &plan->conventions,
                                                    &bytes, n.dense, n.expert);

    static_bytes[TRACE_MEMORY_WEIGHTS] = state.weights;
    static_bytes[TRACE_MEMORY_GRADIENTS] = state.gradients;
    static_bytes[TRACE_MEMORY_OPTIMIZER] = state.optimizer;
    static_bytes[TRACE_MEMORY_BUFFERS] = message_bytes(build, workload, rank);
    static_bytes[TRACE_MEMORY_BUFFERS] += gathered_bytes(build);
    static_bytes[TRACE_MEMORY_BUFFERS] +=
        placeholder_bytes(build, rank) + workload_library_bytes(p, &plan->conventions);
}

/* --- activations --- */

/*
 * What the head's backward has at once beyond its saved bytes while the weight gradient of the
 * logits is made: their gradient, and where the product adds to the sum itself the placeholder that
 * autograd gets instead.  What only the loss kept is free by then, but for the gradient that a
 * fused loss has left.
 */
static int64_t
head_transient_bytes(const WorkloadBuild *build, const ModelShape *shape)
{
    ModelOp ops[MODEL_MAX_OPS];
    const size_t n_ops = model_ops(build->arch, MODEL_PART_HEAD, 0, shape, ops);
    int64_t bytes = 0;

    if (build->plan->conventions.framework != PLAN_FRAMEWORK_MEGATRON_CORE)
        return 0;
    for (size_t i = 0; i < n_ops; i++) {
        if (ops[i].kind == MODEL_OP_GEMM)
            bytes += ops[i].weight_bytes +
                     ops[i].m * ops[i].n * workload_build_element_bytes(build->plan);
        else if (ops[i].kind == MODEL_OP_MEMORY && !shape->fused_loss && i + 1 == n_ops)
            bytes -= ops[i].saved_bytes;
    }
    return MAX(0, bytes);
}

/* What the product after product @i reads: it is there beside @i's output in F.  B has given it
 * back when the gradient of that output is made, I keeps it. */
static int64_t
next_input_bytes(const ModelOp *ops, size_t n_ops, size_t i)
{
    if (ops[i].kind != MODEL_OP_GEMM)
        return 0;
    for (size_t j = i + 1; j < n_ops; j++)
        if (ops[j].kind == MODEL_OP_GEMM)
            return ops[j].saved_for_weight_bytes;
    return 0;
}

WorkloadPartBytes
workload_part_bytes(const ModelArch *arch, ModelPart part, int64_t layer, const ModelShape *shape)
{
    const double element = (double)workload_build_bytes_of(shape->dtype);
    ModelOp ops[MODEL_MAX_OPS];
    size_t n_ops = model_ops(arch, part, layer, shape, ops);
    WorkloadPartBytes sum = {0};

    for (size_t i = 0; i < n_ops; i++) {
        int64_t output = 0; /* of a product */

        sum.saved += ops[i].saved_bytes;
        sum.late_saved += ops[i].late ? ops[i].saved_bytes : 0;
        sum.late_backward = MAX(sum.late_backward, ops[i].late_backward_bytes);
        sum.saved_kv += ops[i].saved_kv_bytes;
        sum.weight_saved += ops[i].saved_for_weight_bytes + ops[i].output_gradient_bytes;
        if (ops[i].core_attention)
            sum.core_attention += ops[i].saved_bytes - ops[i].saved_kv_bytes;
        if (ops[i].kind == MODEL_OP_GEMM && !ops[i].output_stays) {
            double bytes = (double)ops[i].count * (double)ops[i].m * (double)ops[i].n * element;

            output = (int64_t)MIN(bytes, (double)MODEL_MAX_BYTES);
        }
        sum.forward_transient = MAX(sum.forward_transient, output + ops[i].forward_transient_bytes);
        sum.backward_transient =
            MAX(sum.backward_transient, output + ops[i].backward_transient_bytes);
        output += next_input_bytes(ops, n_ops, i);
        sum.input_transient = MAX(sum.input_transient, output + ops[i].backward_transient_bytes);
        sum.input_transient = MAX(sum.input_transient, ops[i].late_input_bytes);
        sum.passing_transient =
            MAX(sum.passing_transient, output + ops[i].forward_transient_bytes +
                                           (ops[i].core_attention ? ops[i].saved_bytes : 0));
    }
    /* Late blocks come on top of those that the layer has from the beginning. */
    if (sum.late_saved > 0)
        sum.passing_transient =
            sum.forward_transient + sum.saved - model_boundary_bytes(arch, shape);
    return sum;
}

/*
 * One layer at a time: what is computed again, the gradients of a product's two sides.  What an I
 * leaves beyond what it finds is allocated when it starts, for all layers (cost-model.md 6.2): the
 * layer at work has its share of that already.
 */
WorkloadHeldBytes
workload_held_bytes(const WorkloadPartBytes *part, PlanRecompute recompute, bool sliced,
                    int64_t boundary)
{
    const int64_t kv = sliced ? part->saved_kv : 0;
    const int64_t all = part->saved - kv;
    const int64_t again = recompute == PLAN_RECOMPUTE_SELECTIVE ? part->core_attention
                          : recompute == PLAN_RECOMPUTE_FULL    ? all
                                                                : 0;
    const int64_t again_late = recompute == PLAN_RECOMPUTE_FULL ? part->late_saved : 0;
    const int64_t kept = all - again + (recompute == PLAN_RECOMPUTE_FULL ? boundary : 0);
    const int64_t input = again + part->input_transient + boundary;

    return (WorkloadHeldBytes){
        .kept = kept,
        .kv = kv,
        .weight_kept = part->weight_saved,
        .forward_workspace = recompute == PLAN_RECOMPUTE_FULL
                                 ? MAX(part->forward_transient, part->passing_transient + boundary)
                                 : part->forward_transient,
        .backward_workspace = again - again_late + part->backward_transient + boundary,
        .late_backward_workspace =
            part->late_backward > 0 ? again + part->late_backward + boundary : 0,
        .input_workspace = input - CLAMP(part->weight_saved - kept, 0, input),
    };
}

/* A layer's or an end's share of the op. */
static void
add_part(const WorkloadHeldBytes *part, WorkloadOp *op)
{
    const int64_t workspace[SCHEDULE_OP_N] = {
        [SCHEDULE_OP_FORWARD] = part->forward_workspace,
        [SCHEDULE_OP_BACKWARD] = part->backward_workspace,
        [SCHEDULE_OP_BACKWARD_INPUT] = part->input_workspace,
    };

    workload_build_add(&op->activation_bytes, part->kept);
    workload_build_add(&op->weight_activation_bytes, part->weight_kept);
    workload_build_add(&op->kv_bytes, part->kv);
    for (int kind = 0; kind < SCHEDULE_OP_N; kind++)
        op->workspace_bytes[kind] = MAX(op->workspace_bytes[kind], workspace[kind]);
}

/* What an end, which is never computed again, keeps and needs. */
static WorkloadHeldBytes
end_held(const WorkloadBuild *build, ModelPart end, const ModelShape *shape)
{
    WorkloadPartBytes bytes = workload_part_bytes(build->arch, end, 0, shape);
    const int64_t least = end == MODEL_PART_HEAD ? head_transient_bytes(build, shape) : 0;

    bytes.backward_transient = MAX(bytes.backward_transient, least);
    bytes.input_transient = MAX(bytes.input_transient, least);
    return workload_held_bytes(&bytes, PLAN_RECOMPUTE_NONE, build->n_slices > 1, 0);
}

/* A part of an op, and what of it is whole while it is at work. */
static void
add_whole_part(const WorkloadBuild *build, ModelPart part, int64_t layer,
               const WorkloadHeldBytes *held, GArray *whole, WorkloadOp *op)
{
    add_part(held, op);
    if (whole == NULL)
        return;
    const WorkloadWholePart of_part = workload_build_whole(build, part, layer, held);
    g_array_append_val(whole, of_part);
}

/* How far the level of a backward falls from the head, which has kept @kept, to the layer before:
 * what is late comes then, on top of a level whose largest is the head's. */
static int64_t
fall_behind_head(int64_t kept, const GArray *whole)
{
    int64_t fall = kept;

    if (whole != NULL && whole->len >= 2) {
        const WorkloadWholePart *head = &g_array_index(whole, WorkloadWholePart, whole->len - 1);
        const WorkloadWholePart *layer = head - 1;

        fall += head->weights + head->gradients - layer->weights - layer->gradients;
    }
    return MAX(0, fall);
}

void
workload_build_op_memory(const WorkloadBuild *build, const PlanStage *stage, int32_t class_,
                         int32_t slice, WorkloadOp *op, int64_t *last_bytes)
{
    const Plan *plan = build->plan;
    ModelShape shape = workload_build_shape(build, class_, slice);
    int64_t boundary = model_boundary_bytes(build->arch, &shape), again = 0;
    const WorkloadHeldBytes head = end_held(build, MODEL_PART_HEAD, &shape);
    const WorkloadHeldBytes embedding = end_held(build, MODEL_PART_EMBEDDING, &shape);
    g_autoptr(GArray) whole = workload_counts_whole(plan->zero_stage, &plan->conventions)
                                  ? g_array_new(false, false, sizeof(WorkloadWholePart))
                                  : NULL;
    WorkloadHeldBytes kinds[WORKLOAD_LAYER_KINDS];
    bool known[WORKLOAD_LAYER_KINDS] = {false};
    int64_t late = 0;

    if (stage->embedding)
        add_whole_part(build, MODEL_PART_EMBEDDING, 0, &embedding, whole, op);
    for (int64_t i = 0; i < stage->n_layers; i++) {
        int64_t layer = stage->first_layer + i;
        int kind = workload_build_layer_kind(build, layer);

        if (!known[kind]) {
            const WorkloadPartBytes bytes =
                workload_part_bytes(build->arch, MODEL_PART_LAYER, layer, &shape);
            kinds[kind] =
                workload_held_bytes(&bytes, stage->recompute, build->n_slices > 1, boundary);
            if (stage->recompute == PLAN_RECOMPUTE_FULL)
                again = MAX(again, bytes.saved);
            late = MAX(late, kinds[kind].late_backward_workspace);
        }
        known[kind] = true;
        add_whole_part(build, MODEL_PART_LAYER, layer, &kinds[kind], whole, op);
    }
    if (stage->head)
        add_whole_part(build, MODEL_PART_HEAD, 0, &head, whole, op);
    if (stage->head)
        late -= fall_behind_head(head.kept, whole);
    op->workspace_bytes[SCHEDULE_OP_BACKWARD] =
        MAX(op->workspace_bytes[SCHEDULE_OP_BACKWARD], late);
    if (whole != NULL)
        workload_build_add_whole(
            build,
            &(WorkloadWhole){
                .parts = (const WorkloadWholePart *)(const void *)whole->data,
                .n_parts = whole->len,
                .embedding = stage->embedding,
                .again = again,
                .ahead_most_bytes =
                    build->ahead == NULL ? 0 : build->ahead->most_bytes[stage->rank],
            },
            op, last_bytes);
    op->kv_gradient_bytes = op->kv_bytes; /* in the same number format */
}

void
workload_build_join_kv(const WorkloadBuild *build, Workload *workload)
{
    const int64_t n_ops =
        (int64_t)build->n_chains * build->n_stages * build->n_classes * build->n_slices;

    if (build->plan->conventions.framework != PLAN_FRAMEWORK_DEGAS)
        return;
    for (int64_t i = 0; i < n_ops; i++) {
        WorkloadOp *first = &workload->ops[i / build->n_slices * build->n_slices];
        WorkloadOp *op = &workload->ops[i];

        if (op == first)
            continue;
        workload_build_add(&first->kv_bytes, op->kv_bytes);
        op->kv_bytes = op->kv_gradient_bytes = 0;
        first->kv_gradient_bytes = first->kv_bytes;
    }
}

int64_t
workload_min_memory_bytes(const Workload *workload)
{
    int64_t n_per_rank, largest = 0;

    g_return_val_if_fail(workload != NULL, 0);

    /* Where a stage lies is the schedule's matter: the least op of all is a bound for each rank. */
    n_per_rank = INT64_MAX;
    for (int64_t i = 0; i < (int64_t)workload->n_chains * workload->n_stages * workload->n_classes *
                                workload->n_slices;
         i++) {
        const WorkloadOp *op = &workload->ops[i];

        n_per_rank = MIN(n_per_rank, op->activation_bytes + op->kv_bytes);
    }
    for (int32_t r = 0; r < workload->n_ranks; r++) {
        int64_t sum = 0;

        for (int i = 0; i < TRACE_MEMORY_N; i++)
            sum += workload->ranks[r].static_bytes[i];
        largest = MAX(largest, sum);
    }
    return largest + (n_per_rank == INT64_MAX ? 0 : n_per_rank);
}
