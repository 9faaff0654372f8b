#include "profiles/workload/memory.h"

#include "profiles/workload/build.h"
#include "profiles/workload/matrices.h"
#include "schedule/stack.h"

#include <math.h>

/* --- parameters --- */

/* What of the ends, and whether MTP modules, the stages of a rank have. */
typedef struct {
    bool embedding, head, mtp;
} RankEnds;

static bool
has_mtp(const WorkloadBuild *build, const PlanStage *stage)
{
    return model_n_mtp_before(build->arch, stage->first_layer + stage->n_layers) > 0 &&
           stage->n_layers > 0;
}

static RankEnds
ends_of_rank(const WorkloadBuild *build, int32_t rank)
{
    RankEnds ends = {false};

    for (guint i = 0; i < build->plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(build->plan->stages, PlanStage, i);

        if (stage->rank != rank)
            continue;
        ends.embedding = ends.embedding || stage->embedding;
        ends.head = ends.head || stage->head;
        ends.mtp = ends.mtp || has_mtp(build, stage);
    }
    return ends;
}

/* Sets which parameters of a part the plan's optimizer steps itself. */
static void
set_own(const WorkloadBuild *build, ModelPart part, int64_t layer, bool tied_copy,
        WorkloadParameters *n)
{
    const Plan *plan = build->plan;

    switch (plan_optimizer(plan->conventions.optimizer)->own) {
    case PLAN_OPTIMIZER_OF_ALL:
        n->own_dense = n->dense;
        n->own_expert = n->expert;
        break;
    case PLAN_OPTIMIZER_OF_ALL_BUT_EMBEDDING:
        n->own_dense = part == MODEL_PART_EMBEDDING || tied_copy ? 0 : n->dense;
        n->own_expert = n->expert;
        break;
    case PLAN_OPTIMIZER_OF_MATRICES:
        if (part == MODEL_PART_LAYER) {
            WorkloadMatrix matrices[MODEL_MAX_OPS];
            const WorkloadMatrixElements own = workload_matrix_elements(
                matrices, workload_matrices(build->arch, layer, &plan->degrees, &plan->conventions,
                                            plan->dtype, matrices));

            n->own_dense = own.dense;
            n->own_expert = own.expert;
            n->largest_dense = own.largest_dense;
            n->largest_expert = own.largest_expert;
        }
        break;
    }
}

static void
add_parameters(const WorkloadParameters *n, WorkloadParameters *sum)
{
    sum->dense += n->dense;
    sum->expert += n->expert;
    sum->own_dense += n->own_dense;
    sum->own_expert += n->own_expert;
    sum->largest_dense = MAX(sum->largest_dense, n->largest_dense);
    sum->largest_expert = MAX(sum->largest_expert, n->largest_expert);
}

WorkloadParameters
workload_parameters_least(int64_t dense, int64_t expert)
{
    return (WorkloadParameters){
        .dense = dense, .expert = expert, .own_dense = dense, .own_expert = expert};
}

static WorkloadParameters
part_parameters(const WorkloadBuild *build, ModelPart part, int64_t layer, bool tied_copy)
{
    const PlanDegrees *d = &build->plan->degrees;
    const PlanConventions *c = &build->plan->conventions;
    const ModelArch arch = model_arch_padded(build->arch, d->tp, plan_vocab_multiple(c));
    const int64_t etp = plan_expert_tp(d, c);
    const int64_t expert =
        part == MODEL_PART_LAYER ? model_expert_parameters(&arch, layer, d->ep, etp) : 0;

    WorkloadParameters n = {
        .dense = model_part_parameters(&arch, part, layer, d->tp, d->ep, etp, tied_copy) - expert,
        .expert = expert,
    };
    set_own(build, part, layer, tied_copy, &n);
    return n;
}

WorkloadParameters
workload_build_part_parameters(const WorkloadBuild *build, ModelPart part, int64_t layer,
                               bool tied_copy)
{
    WorkloadPartMemo *memo = build->memo;

    if (memo == NULL)
        return part_parameters(build, part, layer, tied_copy);
    const bool is_layer = part == MODEL_PART_LAYER;
    const int32_t kind = is_layer ? model_layer_kind(build->arch, layer) : 0;
    const int end = part == MODEL_PART_HEAD;
    WorkloadParameters *n = is_layer ? &memo->layers[kind] : &memo->ends[end][tied_copy];
    bool *knows = is_layer ? &memo->knows_layers[kind] : &memo->knows_ends[end][tied_copy];

    if (!*knows)
        *n = part_parameters(build, part, layer, tied_copy);
    *knows = true;
    return *n;
}

/* A tied table is there once on a rank that has both the embedding and the head, be it in two
 * stages. */
static void
add_stage_parameters(const WorkloadBuild *build, const PlanStage *stage, WorkloadParameters *sum)
{
    const bool tied_copy =
        build->arch->tied_embeddings && stage->head && !ends_of_rank(build, stage->rank).embedding;

    if (stage->embedding) {
        const WorkloadParameters n =
            workload_build_part_parameters(build, MODEL_PART_EMBEDDING, 0, false);
        add_parameters(&n, sum);
    }
    if (stage->head) {
        const WorkloadParameters n =
            workload_build_part_parameters(build, MODEL_PART_HEAD, 0, tied_copy);
        add_parameters(&n, sum);
    }
    for (int64_t i = 0; i < stage->n_layers; i++) {
        const WorkloadParameters layer =
            workload_build_part_parameters(build, MODEL_PART_LAYER, stage->first_layer + i, false);

        add_parameters(&layer, sum);
    }
}

/* Of the vocabulary, on one device. */
static int64_t
table_parameters(const WorkloadBuild *build)
{
    const PlanDegrees *d = &build->plan->degrees;
    const ModelArch arch =
        model_arch_padded(build->arch, d->tp, plan_vocab_multiple(&build->plan->conventions));

    return model_table_parameters(&arch, d->tp);
}

/* Adds a copy of it that no end of the rank has. */
static void
add_table(const WorkloadBuild *build, WorkloadParameters *sum)
{
    const int64_t n = table_parameters(build);

    sum->dense += n;
    if (plan_optimizer(build->plan->conventions.optimizer)->own == PLAN_OPTIMIZER_OF_ALL)
        sum->own_dense += n;
}

/* Sets @sum's tied and between which ranks the copies of the table lie, if more than one has it. */
static void
find_copies(const WorkloadBuild *build, WorkloadParameters *sum)
{
    int32_t first = INT32_MAX, last = -1;

    for (guint i = 0; i < build->plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(build->plan->stages, PlanStage, i);

        if (stage->embedding || has_mtp(build, stage) ||
            (build->arch->tied_embeddings && stage->head)) {
            first = MIN(first, stage->rank);
            last = MAX(last, stage->rank);
        }
    }
    if (first == last)
        return;
    sum->tied = table_parameters(build);
    sum->tied_first = first;
    sum->tied_last = last;
}

WorkloadParameters
workload_build_parameters(const WorkloadBuild *build, int32_t rank)
{
    const RankEnds ends = ends_of_rank(build, rank);
    WorkloadParameters sum = {0};

    for (guint i = 0; i < build->plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(build->plan->stages, PlanStage, i);

        if (stage->rank != rank)
            continue;
        add_stage_parameters(build, stage, &sum);
    }
    const bool shares = build->arch->tied_embeddings || build->arch->mtp.n > 0;
    const bool tied_head = build->arch->tied_embeddings && ends.head;
    /* MTP modules embed, too. */
    if (ends.mtp && !ends.embedding && !tied_head)
        add_table(build, &sum);
    if (shares && build->n_chains == 1 && (ends.embedding || ends.mtp || tied_head))
        find_copies(build, &sum);
    return sum;
}

WorkloadParameterBytes
workload_parameter_bytes(Dtype dtype, const PlanConventions *conventions)
{
    const PlanOptimizerFacts *optimizer = plan_optimizer(conventions->optimizer);
    const int64_t stored = dtype_bytes(dtype_stored(dtype));
    const bool fp32 = stored == 4, cast = plan_framework(conventions->framework)->fp32_parameters;
    /* Weights in fp32 are their own master copy.  With AdamW: 4 + 4 + 8 = 16 in fp32; else 2 + 4 + 12
     * = 18 [Megatron], 2 + 2 + 12 = 16 [1910.02054]. */
    const int64_t master = fp32 || cast ? 0 : 4;

    return (WorkloadParameterBytes){
        .weight_bytes = fp32 || cast ? 4 : stored,
        .gradient_bytes = fp32 || cast ? 4 : dtype_bytes(conventions->grad_dtype),
        .optimizer_bytes = master + PLAN_ADAMW_MOMENT_BYTES,
        .gathered_bytes = cast && !fp32 ? stored : 0,
        .own_bytes = master + optimizer->moment_bytes,
        .block_elements = optimizer->block_elements,
        .block_bytes = optimizer->block_bytes,
    };
}

/* The largest share of @n parameters over @ranks. */
static int64_t
share(int64_t n, int64_t ranks)
{
    return n / ranks + (n % ranks != 0);
}

/* Bytes of the optimizer's state of @all parameters on the one of @ranks that has most, @own of
 * which the optimizer steps itself, if ZeRO splits them; @largest as in WorkloadParameters. */
static int64_t
optimizer_bytes(const WorkloadParameterBytes *bytes, int64_t all, int64_t own, int64_t largest,
                int64_t ranks)
{
    const int64_t n = MAX(share(own, ranks), largest);
    const int64_t blocks = bytes->block_elements == 0 ? 0 : share(n, bytes->block_elements);
    int64_t sum = workload_build_mul(share(all - own, ranks), bytes->optimizer_bytes);

    workload_build_add(&sum, workload_build_mul(n, bytes->own_bytes));
    workload_build_add(&sum, workload_build_mul(blocks, bytes->block_bytes));
    return sum;
}

double
workload_checkpoint_bytes(const ModelArch *arch, const Plan *plan)
{
    const WorkloadParameterBytes bytes = workload_parameter_bytes(plan->dtype, &plan->conventions);
    Plan one = *plan;
    const WorkloadBuild build = {.arch = arch, .plan = &one};
    const ModelPart ends[] = {MODEL_PART_EMBEDDING, MODEL_PART_HEAD};
    WorkloadParameters sum = {0};

    one.degrees = (PlanDegrees){1, 1, 1, 1, 1, 1, 0};
    one.conventions.pads_vocab = false;
    for (size_t i = 0; i < G_N_ELEMENTS(ends); i++) {
        const WorkloadParameters n = workload_build_part_parameters(&build, ends[i], 0, false);
        add_parameters(&n, &sum);
    }
    for (int64_t i = 0; i < model_n_stacked(arch); i++) {
        const WorkloadParameters n =
            workload_build_part_parameters(&build, MODEL_PART_LAYER, i, false);
        add_parameters(&n, &sum);
    }
    return (double)(sum.dense + sum.expert) * (double)bytes.weight_bytes +
           (double)optimizer_bytes(&bytes, sum.dense + sum.expert, sum.own_dense + sum.own_expert,
                                   0, 1);
}

WorkloadStateBytes
workload_state_bytes(const PlanDegrees *d, const WorkloadSharding *sharding,
                     const PlanConventions *conventions, const WorkloadParameterBytes *bytes,
                     const WorkloadParameters *n)
{
    const int32_t zero_stage = sharding->zero_stage;
    const int64_t whole = n->dense + n->expert;
    const int64_t dense_ranks = plan_shard_ranks(d, conventions);
    const int64_t expert_ranks = plan_expert_shard_ranks(d, conventions);
    const int64_t shard = share(n->dense, dense_ranks) + share(n->expert, expert_ranks);
    const bool splits = zero_stage >= 1;
    /* Replicas that gather matrices have equal shards of them. */
    const bool whole_matrices =
        splits && zero_stage < 3 && plan_framework(conventions->framework)->shards_whole_matrices;
    /* FSDP that does not reshard: shards, the gathered copy, and with a pipeline whole gradients
     * until the last micro-batch (set_requires_gradient_sync() of PyTorch's pipeline stages). */
    const bool gathered = zero_stage == 2 && bytes->gathered_bytes > 0;
    const int64_t n_gradients = zero_stage >= 2 && !(gathered && d->pp > 1) ? shard : whole;
    const int64_t n_weights = zero_stage >= 3 || gathered ? shard : whole;

    return (WorkloadStateBytes){
        .weights_bytes =
            sharding->offload_parameters
                ? 0
                : workload_build_mul(n_weights, bytes->weight_bytes) +
                      (gathered ? workload_build_mul(whole, bytes->gathered_bytes) : 0),
        .gradients_bytes = workload_build_mul(n_gradients, bytes->gradient_bytes),
        .optimizer_bytes =
            sharding->offload != PLAN_OFFLOAD_NONE
                ? 0
                : optimizer_bytes(bytes, n->dense, n->own_dense,
                                  whole_matrices ? n->largest_dense : 0, splits ? dense_ranks : 1) +
                      optimizer_bytes(bytes, n->expert, n->own_expert,
                                      whole_matrices ? n->largest_expert : 0,
                                      splits ? expert_ranks : 1),
    };
}

int64_t
workload_gathered_elements(const PlanDegrees *d, const WorkloadSharding *sharding,
                           const PlanConventions *conventions, int64_t dense, int64_t expert)
{
    const bool off = sharding->offload_parameters;

    if (sharding->zero_stage < 3)
        return 0;
    return (off || d->dp * d->cp > 1 ? dense : 0) +
           (off || plan_expert_replicas(d, conventions) > 1 ? expert : 0);
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
            if (ops[j].kind == MODEL_OP_GEMM)
                bytes += ops[j].saved_for_weight_bytes +
                         ops[j].m * ops[j].n * workload_build_element_bytes(plan);
    }
    return workload_build_mul(n, bytes);
}

/* Bytes of a product's result that are there while the op runs; 0: other ops, and results that the
 * next op saves. */
static int64_t
output_bytes(const ModelOp *op, double element_bytes)
{
    if (op->kind != MODEL_OP_GEMM || op->output_stays)
        return 0;
    return (int64_t)MIN((double)op->count * (double)op->m * (double)op->n * element_bytes,
                        (double)MODEL_MAX_BYTES);
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
        *most = MAX(*most, output_bytes(&ops[i], element) + MAX(ops[i].forward_transient_bytes,
                                                                ops[i].backward_transient_bytes));
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
        placeholder_bytes(build, rank) + workload_library_bytes(p, &plan->conventions);
}

/* --- activations and workspace of ops; cost-model.md 6.2, 6.3 --- */

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
            bytes = ops[i].weight_bytes +
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
        int64_t output = output_bytes(&ops[i], element);

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
    /* In the same number format, unless the framework sums them over slices in fp32; then states,
     * which are fp32 anyway, have one gradient that goes from slice to slice. */
    op->kv_gradient_bytes = op->kv_bytes;
    if (build->facts->row_blocks)
        op->kv_gradient_bytes =
            (op->kv_bytes - state_bytes) / dtype_bytes(dtype_stored(shape.dtype)) * 4 +
            (slice == 1 ? state_bytes : 0);
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
