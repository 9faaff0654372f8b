#include "profiles/workload/memory.h"

#include "profiles/workload/build.h"

int64_t
workload_build_output_bytes(const ModelOp *op, double element_bytes)
{
    if (op->kind != MODEL_OP_GEMM || op->output_stays)
        return 0;
    return (int64_t)MIN((double)op->count * (double)op->m * (double)op->n * element_bytes,
                        (double)MODEL_MAX_BYTES);
}

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
        /* Of the losses of MTP modules one is at work at a time. */
        if (ops[i].kind == MODEL_OP_GEMM)
            bytes = (ops[i].frozen ? 0 : ops[i].weight_bytes) +
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

/* The executor's of @layer alone: I takes room for all gradients that a layer leaves to W before it gives
 * back what only input gradients read. */
static void
set_executor_transients(const ModelArch *arch, int64_t layer, const ModelShape *shape,
                        int64_t late_input, WorkloadPartBytes *sum)
{
    const ModelArch one = model_layer_arch(arch, layer);

    sum->scratch = model_scratch_bytes(&one, shape);
    sum->backward_transient_bytes = sum->scratch.backward_bytes;
    sum->input_transient_bytes =
        sum->scratch.input_bytes +
        (late_input > 0 ? late_input : sum->weight_saved_bytes - sum->early_saved_for_weight_bytes);
}

WorkloadPartBytes
workload_part_bytes(const ModelArch *arch, ModelPart part, int64_t layer, const ModelShape *shape)
{
    const double element = (double)dtype_bytes(dtype_stored(shape->dtype));
    ModelOp ops[MODEL_MAX_OPS];
    size_t n_ops = model_ops(arch, part, layer, shape, ops);
    const bool whole = (shape->recompute_modules >> MODEL_MODULE_OPS & 1) != 0;
    WorkloadPartBytes sum = {0};
    int64_t late_input = 0, again[2] = {0}; /* of the mixer, of the feed-forward */

    for (size_t i = 0; i < n_ops; i++) {
        int64_t output = workload_build_output_bytes(&ops[i], element);

        sum.saved_bytes += ops[i].saved_bytes;
        sum.late_saved_bytes += ops[i].late ? ops[i].saved_bytes : 0;
        sum.late_again_bytes += ops[i].late ? ops[i].again_bytes : 0;
        sum.late_backward_bytes = MAX(sum.late_backward_bytes, ops[i].late_backward_bytes);
        sum.saved_kv_bytes += ops[i].saved_kv_bytes;
        sum.saved_state_bytes += ops[i].saved_state_bytes;
        sum.weight_saved_bytes += ops[i].saved_for_weight_bytes + ops[i].output_gradient_bytes;
        sum.early_saved_for_weight_bytes += ops[i].late ? 0 : ops[i].saved_for_weight_bytes;
        sum.selective_again_bytes += ops[i].again_bytes;
        sum.selective_again_kv_bytes += ops[i].again_kv_bytes;
        again[!whole && ops[i].scope != MODEL_SCOPE_ATTENTION] +=
            ops[i].again_bytes + ops[i].again_kv_bytes;
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
    sum.selective_once_bytes = MAX(again[0], again[1]);
    /* Late blocks come on top of those that the layer has from the beginning. */
    if (sum.late_saved_bytes > 0)
        sum.passing_transient_bytes =
            sum.forward_transient_bytes + sum.saved_bytes - model_boundary_bytes(arch, shape);
    if (part == MODEL_PART_LAYER && shape->row_blocks)
        set_executor_transients(arch, layer, shape, late_input, &sum);
    return sum;
}

/* One layer at a time: what is computed again, the gradients of a product's two sides.  What an I
 * leaves beyond what it finds is allocated when it starts, for all layers (cost-model.md 6.2): the
 * layer at work has its share of that already. */
WorkloadKeptBytes
workload_kept_bytes(const WorkloadPartBytes *part, PlanRecompute recompute, bool sliced,
                    int64_t boundary_bytes)
{
    const int64_t kv = sliced ? part->saved_kv_bytes : 0;
    const int64_t all = part->saved_bytes - kv;
    const int64_t again =
        recompute == PLAN_RECOMPUTE_SELECTIVE
            ? part->selective_again_bytes + (sliced ? 0 : part->selective_again_kv_bytes)
        : recompute == PLAN_RECOMPUTE_FULL ? all
                                           : 0;
    const int64_t once =
        recompute == PLAN_RECOMPUTE_SELECTIVE ? MIN(again, part->selective_once_bytes) : again;
    const int64_t again_late = recompute == PLAN_RECOMPUTE_FULL ? part->late_saved_bytes : 0;
    const int64_t kept = all - again + (recompute == PLAN_RECOMPUTE_FULL ? boundary_bytes : 0);
    const int64_t input = again + part->input_transient_bytes + boundary_bytes;

    return (WorkloadKeptBytes){
        .kept_bytes = kept,
        .kv_bytes = kv,
        .state_bytes = sliced ? part->saved_state_bytes : 0,
        .weight_kept_bytes = part->weight_saved_bytes,
        .forward_workspace_bytes =
            recompute == PLAN_RECOMPUTE_FULL
                ? MAX(part->forward_transient_bytes, part->passing_transient_bytes + boundary_bytes)
                : part->forward_transient_bytes,
        .backward_workspace_bytes =
            once - again_late + part->backward_transient_bytes + boundary_bytes,
        .late_kept_bytes =
            recompute == PLAN_RECOMPUTE_FULL
                ? 0
                : part->late_saved_bytes -
                      (recompute == PLAN_RECOMPUTE_SELECTIVE ? part->late_again_bytes : 0),
        .late_backward_bytes =
            part->late_backward_bytes > 0 ? again_late + part->late_backward_bytes : 0,
        .input_workspace_bytes = input - CLAMP(part->weight_saved_bytes - kept, 0, input),
        .again_input_bytes = recompute == PLAN_RECOMPUTE_FULL
                                 ? all - part->late_saved_bytes - part->early_saved_for_weight_bytes
                                 : 0,
    };
}

/* In the same number format, unless the framework sums them over slices in fp32; states are fp32
 * anyway. */
int64_t
workload_kv_gradient_bytes(Dtype dtype, const PlanConventions *conventions, int64_t kv_bytes,
                           int64_t state_bytes, bool adds_states)
{
    if (!plan_framework(conventions->framework)->row_blocks)
        return kv_bytes;
    return (kv_bytes - state_bytes) / dtype_bytes(dtype_stored(dtype)) * 4 +
           (adds_states ? state_bytes : 0);
}

/* A layer's or an end's share of the op. */
static void
add_part(const WorkloadKeptBytes *part, WorkloadOp *op)
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
static WorkloadKeptBytes
end_held(const WorkloadBuild *build, ModelPart end, const ModelShape *shape)
{
    WorkloadPartBytes bytes = workload_part_bytes(build->arch, end, 0, shape);
    const int64_t least = end == MODEL_PART_HEAD ? head_transient_bytes(build, shape) : 0;

    bytes.backward_transient_bytes = MAX(bytes.backward_transient_bytes, least);
    bytes.input_transient_bytes = MAX(bytes.input_transient_bytes, least);
    return workload_kept_bytes(&bytes, PLAN_RECOMPUTE_NONE, build->n_slices > 1, 0);
}

/* A part of an op, and what of it is there while it is at work. */
static void
add_whole_part(const WorkloadBuild *build, ModelPart part, int64_t layer,
               const WorkloadKeptBytes *kept, GArray *whole, WorkloadOp *op)
{
    add_part(kept, op);
    if (whole == NULL)
        return;
    WorkloadCoursePart of_part = workload_build_course_part(build, part, layer, kept);
    of_part.layer_kind = part == MODEL_PART_LAYER ? model_layer_kind(build->arch, layer) : -1;
    g_array_append_val(whole, of_part);
}

/* What an MTP module embeds, before its layer: it keeps nothing, but the table may be whole for it. */
static void
add_embedded(const WorkloadBuild *build, int64_t layer, GArray *whole)
{
    static const WorkloadKeptBytes none = {0};

    if (whole == NULL || model_n_mtp_before(build->arch, layer + 1) == 0)
        return;
    WorkloadCoursePart part = workload_build_course_part(build, MODEL_PART_EMBEDDING, 0, &none);
    part.layer_kind = -1;
    g_array_append_val(whole, part);
}

/* The executor's blocks of an op are as large as the wider kind of the stage's layers needs,
 * whichever is at work; what a layer takes for itself comes on top, when it is.  Moves that from
 * the workspaces of @op to the @parts. */
static void
share_blocks(const WorkloadKeptBytes layers[MODEL_MAX_KINDS], const bool known[MODEL_MAX_KINDS],
             int64_t again, int64_t ends_input, GArray *parts, WorkloadOp *op)
{
    int64_t least = INT64_MAX;

    for (int kind = 0; kind < MODEL_MAX_KINDS; kind++)
        if (known[kind])
            least = MIN(least, layers[kind].input_workspace_bytes + again -
                                   layers[kind].again_input_bytes);
    if (least == INT64_MAX)
        return;
    op->workspace_bytes[SCHEDULE_OP_BACKWARD_INPUT] = least = MAX(ends_input, least);
    for (guint i = 0; i < parts->len; i++) {
        WorkloadCoursePart *part = &g_array_index(parts, WorkloadCoursePart, i);

        if (part->layer_kind < 0)
            continue;
        const WorkloadKeptBytes *kept = &layers[part->layer_kind];
        part->own_bytes[SCHEDULE_OP_BACKWARD_INPUT] =
            MAX(0, kept->input_workspace_bytes + again - kept->again_input_bytes - least);
    }
}

/*
 * Layer @i of a unit of several layers that full recompute repeats together: only the first keeps the
 * input; the backward of each but the last finds what the unit's layers before it have saved again,
 * and the last one's all of it.  @saved  bytes by kind, of the kinds that are known up to here.
 * Returns: what the layers before it have saved.
 */
static int64_t
join_unit(const WorkloadBuild *build, const PlanStage *stage, int64_t i, int64_t boundary_bytes,
          const int64_t *saved, WorkloadKeptBytes *kept)
{
    const int64_t first =
        plan_recompute_first(&build->plan->conventions, stage, i, build->arch->n_layers);
    int64_t before = 0;

    if (first < i)
        kept->kept_bytes -= boundary_bytes;
    for (int64_t j = first; j < i; j++)
        workload_build_add(&before, saved[model_layer_kind(build->arch, stage->first_layer + j)]);
    return before;
}

/* workload_part_bytes() of a layer on a slice of a micro-batch. */
static WorkloadPartBytes
layer_bytes(const WorkloadBuild *build, int64_t layer, int32_t class_, int32_t slice,
            const ModelShape *shape)
{
    WorkloadPartMemo *memo = build->memo;

    if (memo == NULL)
        return workload_part_bytes(build->arch, MODEL_PART_LAYER, layer, shape);
    const size_t i = ((size_t)class_ * (size_t)build->n_slices + (size_t)slice) *
                         (size_t)model_n_kinds(build->arch) +
                     (size_t)model_layer_kind(build->arch, layer);
    if (!memo->knows_bytes[i])
        memo->bytes[i] = workload_part_bytes(build->arch, MODEL_PART_LAYER, layer, shape);
    memo->knows_bytes[i] = true;
    return memo->bytes[i];
}

/* The bytes of each kind of the stage's layers (@known), which all work beside the scratch of the one
 * that needs most: it is for the whole op. */
static void
stage_bytes(const WorkloadBuild *build, const PlanStage *stage, int32_t class_, int32_t slice,
            const ModelShape *shape, WorkloadPartBytes bytes[MODEL_MAX_KINDS],
            bool known[MODEL_MAX_KINDS])
{
    ModelScratchBytes most = {0};

    for (int64_t i = 0; i < stage->n_layers; i++) {
        const int64_t layer = stage->first_layer + i;
        const int kind = model_layer_kind(build->arch, layer);

        if (known[kind])
            continue;
        known[kind] = true;
        bytes[kind] = layer_bytes(build, layer, class_, slice, shape);
        most.backward_bytes = MAX(most.backward_bytes, bytes[kind].scratch.backward_bytes);
        most.input_bytes = MAX(most.input_bytes, bytes[kind].scratch.input_bytes);
    }
    for (int kind = 0; kind < MODEL_MAX_KINDS; kind++) {
        if (!known[kind])
            continue;
        bytes[kind].backward_transient_bytes +=
            most.backward_bytes - bytes[kind].scratch.backward_bytes;
        bytes[kind].input_transient_bytes += most.input_bytes - bytes[kind].scratch.input_bytes;
    }
}

void
workload_build_op_memory(const WorkloadBuild *build, const PlanStage *stage, int32_t class_,
                         int32_t slice, WorkloadOp *op, int64_t *last_bytes)
{
    ModelShape shape = workload_build_shape(build, class_, slice);
    int64_t boundary_bytes = model_boundary_bytes(build->arch, &shape);
    int64_t again[SCHEDULE_OP_N] = {0};
    const WorkloadKeptBytes none = {0};
    const WorkloadKeptBytes head = stage->head ? end_held(build, MODEL_PART_HEAD, &shape) : none;
    const WorkloadKeptBytes embedding =
        stage->embedding ? end_held(build, MODEL_PART_EMBEDDING, &shape) : none;
    g_autoptr(GArray) whole =
        build->facts->row_blocks ? g_array_new(false, false, sizeof(WorkloadCoursePart)) : NULL;
    WorkloadPartBytes bytes[MODEL_MAX_KINDS];
    WorkloadKeptBytes kinds[MODEL_MAX_KINDS] = {0}, plain[MODEL_MAX_KINDS] = {0};
    int64_t saved[MODEL_MAX_KINDS] = {0};
    bool known[MODEL_MAX_KINDS] = {false};
    int64_t state_bytes = 0;
    int32_t n_late = 0; /* layers so far that take some of what they keep late */

    stage_bytes(build, stage, class_, slice, &shape, bytes, known);
    for (int kind = 0; kind < MODEL_MAX_KINDS; kind++) {
        if (!known[kind])
            continue;
        kinds[kind] = workload_kept_bytes(&bytes[kind], stage->recompute, build->n_slices > 1,
                                          boundary_bytes);
        plain[kind] = workload_kept_bytes(&bytes[kind], PLAN_RECOMPUTE_NONE, build->n_slices > 1,
                                          boundary_bytes);
        saved[kind] = bytes[kind].saved_bytes;
        if (stage->recompute == PLAN_RECOMPUTE_FULL)
            again[SCHEDULE_OP_BACKWARD] = MAX(again[SCHEDULE_OP_BACKWARD], saved[kind]);
        again[SCHEDULE_OP_BACKWARD_INPUT] =
            MAX(again[SCHEDULE_OP_BACKWARD_INPUT], kinds[kind].again_input_bytes);
    }
    if (stage->embedding)
        add_whole_part(build, MODEL_PART_EMBEDDING, 0, &embedding, whole, op);
    for (int64_t i = 0; i < stage->n_layers; i++) {
        int64_t layer = stage->first_layer + i;
        int kind = model_layer_kind(build->arch, layer);
        WorkloadKeptBytes kept =
            plan_layer_recompute(&build->plan->conventions, stage, i) == stage->recompute
                ? kinds[kind]
                : plain[kind];
        const int64_t before = join_unit(build, stage, i, boundary_bytes, saved, &kept);
        if (whole == NULL) {
            workload_build_add(&kept.backward_workspace_bytes, before);
            workload_build_add(&kept.input_workspace_bytes, before);
        }
        workload_build_add(&state_bytes, kept.state_bytes);
        n_late += kept.late_kept_bytes > 0;
        if (n_late > 2)
            workload_build_add(&op->late_activation_bytes, kept.late_kept_bytes);
        add_embedded(build, layer, whole);
        add_whole_part(build, MODEL_PART_LAYER, layer, &kept, whole, op);
        if (whole != NULL) {
            WorkloadCoursePart *part = &g_array_index(whole, WorkloadCoursePart, whole->len - 1);
            part->own_bytes[SCHEDULE_OP_BACKWARD] = kept.late_backward_bytes;
            part->unit_bytes = before;
        }
    }
    /* A graph's result stays where it is; the next layer's graph reads a copy of it. */
    if (build->plan->conventions.cuda_graphs == PLAN_GRAPHS_LAYER)
        workload_build_add(&op->activation_bytes,
                           workload_build_mul(stage->n_layers, boundary_bytes));
    if (stage->head)
        add_whole_part(build, MODEL_PART_HEAD, 0, &head, whole, op);
    if (whole != NULL)
        share_blocks(kinds, known, again[SCHEDULE_OP_BACKWARD_INPUT],
                     MAX(stage->embedding ? embedding.input_workspace_bytes : 0,
                         stage->head ? head.input_workspace_bytes : 0),
                     whole, op);
    if (whole != NULL)
        workload_build_add_course(
            build,
            &(WorkloadCourse){
                .parts = (const WorkloadCoursePart *)(const void *)whole->data,
                .n_parts = whole->len,
                .embedding = stage->embedding,
                .again_bytes = again,
                .prefetch_most_bytes =
                    build->prefetch == NULL ? 0 : build->prefetch->most_bytes[stage->rank],
            },
            op, last_bytes);
    op->kv_gradient_bytes = workload_kv_gradient_bytes(shape.dtype, &build->plan->conventions,
                                                       op->kv_bytes, state_bytes, slice == 1);
    /* Its input is in a buffer that static bytes have. */
    if (workload_build_receives_all(
            build, (guint)(stage - &g_array_index(build->plan->stages, PlanStage, 0)), true))
        op->activation_bytes = MAX(0, op->activation_bytes - boundary_bytes);
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
        workload_build_add(&first->kv_gradient_bytes, op->kv_gradient_bytes);
        op->kv_bytes = op->kv_gradient_bytes = 0;
    }
}
