/* What ops keep and need, and what of it is there at once; cost-model.md 6.2, 6.3. */
#include "profiles/workload/build.h"

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

    if (!build->facts->gradient_placeholders)
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

/* The executor's: its scratch is for the whole op, and I takes room for all gradients that a layer
 * leaves to W before it gives back what only input gradients read. */
static void
set_executor_transients(const ModelArch *arch, const ModelShape *shape, int64_t late_input,
                        WorkloadPartBytes *sum)
{
    const ModelScratchBytes scratch = model_scratch_bytes(arch, shape);

    sum->backward_transient_bytes = scratch.backward_bytes;
    sum->input_transient_bytes =
        scratch.input_bytes +
        (late_input > 0 ? late_input : sum->weight_saved_bytes - sum->early_saved_for_weight_bytes);
}

WorkloadPartBytes
workload_part_bytes(const ModelArch *arch, ModelPart part, int64_t layer, const ModelShape *shape)
{
    const double element = (double)dtype_bytes(dtype_stored(shape->dtype));
    ModelOp ops[MODEL_MAX_OPS];
    size_t n_ops = model_ops(arch, part, layer, shape, ops);
    WorkloadPartBytes sum = {0};
    int64_t late_input = 0;

    for (size_t i = 0; i < n_ops; i++) {
        int64_t output = 0; /* of a product */

        sum.saved_bytes += ops[i].saved_bytes;
        sum.late_saved_bytes += ops[i].late ? ops[i].saved_bytes : 0;
        sum.late_backward_bytes = MAX(sum.late_backward_bytes, ops[i].late_backward_bytes);
        sum.saved_kv_bytes += ops[i].saved_kv_bytes;
        sum.weight_saved_bytes += ops[i].saved_for_weight_bytes + ops[i].output_gradient_bytes;
        sum.early_saved_for_weight_bytes += ops[i].late ? 0 : ops[i].saved_for_weight_bytes;
        if (ops[i].core_attention)
            sum.core_attention_bytes += ops[i].saved_bytes - ops[i].saved_kv_bytes;
        if (ops[i].kind == MODEL_OP_GEMM && !ops[i].output_stays) {
            double bytes = (double)ops[i].count * (double)ops[i].m * (double)ops[i].n * element;

            output = (int64_t)MIN(bytes, (double)MODEL_MAX_BYTES);
        }
        sum.forward_transient_bytes =
            MAX(sum.forward_transient_bytes, output + ops[i].forward_transient_bytes);
        sum.backward_transient_bytes =
            MAX(sum.backward_transient_bytes, output + ops[i].backward_transient_bytes);
        output += next_input_bytes(ops, n_ops, i);
        sum.input_transient_bytes =
            MAX(sum.input_transient_bytes, output + ops[i].backward_transient_bytes);
        late_input = MAX(late_input, ops[i].late_input_bytes);
        sum.passing_transient_bytes =
            MAX(sum.passing_transient_bytes, output + ops[i].forward_transient_bytes +
                                                 (ops[i].core_attention ? ops[i].saved_bytes : 0));
    }
    /* Late blocks come on top of those that the layer has from the beginning. */
    if (sum.late_saved_bytes > 0)
        sum.passing_transient_bytes =
            sum.forward_transient_bytes + sum.saved_bytes - model_boundary_bytes(arch, shape);
    if (part == MODEL_PART_LAYER && shape->row_blocks)
        set_executor_transients(arch, shape, late_input, &sum);
    return sum;
}

/*
 * One layer at a time: what is computed again, the gradients of a product's two sides.  What an I
 * leaves beyond what it finds is allocated when it starts, for all layers (cost-model.md 6.2): the
 * layer at work has its share of that already.
 */
WorkloadHeldBytes
workload_held_bytes(const WorkloadPartBytes *part, PlanRecompute recompute, bool sliced,
                    int64_t boundary_bytes)
{
    const int64_t kv = sliced ? part->saved_kv_bytes : 0;
    const int64_t all = part->saved_bytes - kv;
    const int64_t again = recompute == PLAN_RECOMPUTE_SELECTIVE ? part->core_attention_bytes
                          : recompute == PLAN_RECOMPUTE_FULL    ? all
                                                                : 0;
    const int64_t again_late = recompute == PLAN_RECOMPUTE_FULL ? part->late_saved_bytes : 0;
    const int64_t kept = all - again + (recompute == PLAN_RECOMPUTE_FULL ? boundary_bytes : 0);
    const int64_t input = again + part->input_transient_bytes + boundary_bytes;

    return (WorkloadHeldBytes){
        .kept_bytes = kept,
        .kv_bytes = kv,
        .weight_kept_bytes = part->weight_saved_bytes,
        .forward_workspace_bytes =
            recompute == PLAN_RECOMPUTE_FULL
                ? MAX(part->forward_transient_bytes, part->passing_transient_bytes + boundary_bytes)
                : part->forward_transient_bytes,
        .backward_workspace_bytes =
            again - again_late + part->backward_transient_bytes + boundary_bytes,
        .late_backward_bytes =
            part->late_backward_bytes > 0 ? again_late + part->late_backward_bytes : 0,
        .input_workspace_bytes = input - CLAMP(part->weight_saved_bytes - kept, 0, input),
        .again_input_bytes = recompute == PLAN_RECOMPUTE_FULL
                                 ? all - part->late_saved_bytes - part->early_saved_for_weight_bytes
                                 : 0,
    };
}

/* A layer's or an end's share of the op. */
static void
add_part(const WorkloadHeldBytes *part, WorkloadOp *op)
{
    const int64_t workspace[SCHEDULE_OP_N] = {
        [SCHEDULE_OP_FORWARD] = part->forward_workspace_bytes,
        [SCHEDULE_OP_BACKWARD] = part->backward_workspace_bytes,
        [SCHEDULE_OP_BACKWARD_INPUT] = part->input_workspace_bytes,
    };

    workload_build_add(&op->activation_bytes, part->kept_bytes);
    workload_build_add(&op->weight_activation_bytes, part->weight_kept_bytes);
    workload_build_add(&op->kv_bytes, part->kv_bytes);
    for (int kind = 0; kind < SCHEDULE_OP_N; kind++)
        op->workspace_bytes[kind] = MAX(op->workspace_bytes[kind], workspace[kind]);
}

/* What an end, which is never computed again, keeps and needs. */
static WorkloadHeldBytes
end_held(const WorkloadBuild *build, ModelPart end, const ModelShape *shape)
{
    WorkloadPartBytes bytes = workload_part_bytes(build->arch, end, 0, shape);
    const int64_t least = end == MODEL_PART_HEAD ? head_transient_bytes(build, shape) : 0;

    bytes.backward_transient_bytes = MAX(bytes.backward_transient_bytes, least);
    bytes.input_transient_bytes = MAX(bytes.input_transient_bytes, least);
    return workload_held_bytes(&bytes, PLAN_RECOMPUTE_NONE, build->n_slices > 1, 0);
}

/* A part of an op, and what of it is there while it is at work. */
static void
add_whole_part(const WorkloadBuild *build, ModelPart part, int64_t layer,
               const WorkloadHeldBytes *held, GArray *whole, WorkloadOp *op)
{
    add_part(held, op);
    if (whole == NULL)
        return;
    WorkloadWholePart of_part = workload_build_whole(build, part, layer, held);
    of_part.layer_kind = part == MODEL_PART_LAYER ? workload_build_layer_kind(build, layer) : -1;
    g_array_append_val(whole, of_part);
}

/*
 * The executor's blocks of an op are as large as the wider kind of the stage's layers needs,
 * whichever is at work; what a layer takes for itself comes on top, when it is.  Moves that from
 * the workspaces of @op to the @parts.
 */
static void
share_blocks(const WorkloadHeldBytes layers[WORKLOAD_LAYER_KINDS],
             const bool known[WORKLOAD_LAYER_KINDS], int64_t ends_input, GArray *parts,
             WorkloadOp *op)
{
    int64_t again = 0, least = INT64_MAX;

    for (int kind = 0; kind < WORKLOAD_LAYER_KINDS; kind++)
        if (known[kind])
            again = MAX(again, layers[kind].again_input_bytes);
    for (int kind = 0; kind < WORKLOAD_LAYER_KINDS; kind++)
        if (known[kind])
            least = MIN(least, layers[kind].input_workspace_bytes + again -
                                   layers[kind].again_input_bytes);
    if (least == INT64_MAX)
        return;
    op->workspace_bytes[SCHEDULE_OP_BACKWARD_INPUT] = least = MAX(ends_input, least);
    for (guint i = 0; i < parts->len; i++) {
        WorkloadWholePart *part = &g_array_index(parts, WorkloadWholePart, i);

        if (part->layer_kind < 0)
            continue;
        const WorkloadHeldBytes *held = &layers[part->layer_kind];
        part->own_bytes[SCHEDULE_OP_BACKWARD] = held->late_backward_bytes;
        part->own_bytes[SCHEDULE_OP_BACKWARD_INPUT] =
            MAX(0, held->input_workspace_bytes + again - held->again_input_bytes - least);
    }
}

void
workload_build_op_memory(const WorkloadBuild *build, const PlanStage *stage, int32_t class_,
                         int32_t slice, WorkloadOp *op, int64_t *last_bytes)
{
    ModelShape shape = workload_build_shape(build, class_, slice);
    int64_t boundary_bytes = model_boundary_bytes(build->arch, &shape), again = 0;
    const WorkloadHeldBytes head = end_held(build, MODEL_PART_HEAD, &shape);
    const WorkloadHeldBytes embedding = end_held(build, MODEL_PART_EMBEDDING, &shape);
    g_autoptr(GArray) whole =
        build->facts->row_blocks ? g_array_new(false, false, sizeof(WorkloadWholePart)) : NULL;
    WorkloadHeldBytes kinds[WORKLOAD_LAYER_KINDS] = {0};
    bool known[WORKLOAD_LAYER_KINDS] = {false};

    if (stage->embedding)
        add_whole_part(build, MODEL_PART_EMBEDDING, 0, &embedding, whole, op);
    for (int64_t i = 0; i < stage->n_layers; i++) {
        int64_t layer = stage->first_layer + i;
        int kind = workload_build_layer_kind(build, layer);

        if (!known[kind]) {
            const WorkloadPartBytes bytes =
                workload_part_bytes(build->arch, MODEL_PART_LAYER, layer, &shape);
            kinds[kind] =
                workload_held_bytes(&bytes, stage->recompute, build->n_slices > 1, boundary_bytes);
            if (stage->recompute == PLAN_RECOMPUTE_FULL)
                again = MAX(again, bytes.saved_bytes);
        }
        known[kind] = true;
        add_whole_part(build, MODEL_PART_LAYER, layer, &kinds[kind], whole, op);
    }
    if (stage->head)
        add_whole_part(build, MODEL_PART_HEAD, 0, &head, whole, op);
    if (whole != NULL)
        share_blocks(kinds, known,
                     MAX(stage->embedding ? embedding.input_workspace_bytes : 0,
                         stage->head ? head.input_workspace_bytes : 0),
                     whole, op);
    if (whole != NULL)
        workload_build_add_whole(
            build,
            &(WorkloadWhole){
                .parts = (const WorkloadWholePart *)(const void *)whole->data,
                .n_parts = whole->len,
                .embedding = stage->embedding,
                .again_bytes = again,
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

    if (!build->facts->joins_kv)
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
