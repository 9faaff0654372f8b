#include "profiles/workload/state.h"

#include "profiles/workload/build.h"
#include "profiles/workload/matrices.h"

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
        n->own_dense = n->trained_dense;
        n->own_expert = n->trained_expert;
        break;
    case PLAN_OPTIMIZER_OF_ALL_BUT_EMBEDDING:
        n->own_dense = part == MODEL_PART_EMBEDDING || tied_copy ? 0 : n->trained_dense;
        n->own_expert = n->trained_expert;
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
    sum->trained_dense += n->trained_dense;
    sum->trained_expert += n->trained_expert;
    sum->own_dense += n->own_dense;
    sum->own_expert += n->own_expert;
    sum->largest_dense = MAX(sum->largest_dense, n->largest_dense);
    sum->largest_expert = MAX(sum->largest_expert, n->largest_expert);
}

WorkloadParameters
workload_parameters_least(const WorkloadParameterCounts *n)
{
    return (WorkloadParameters){
        .dense = n->dense,
        .expert = n->expert,
        .trained_dense = n->trained_dense,
        .trained_expert = n->trained_expert,
        .own_dense = n->trained_dense,
        .own_expert = n->trained_expert,
    };
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
        .trained_expert = arch.lora.rank > 0 ? 0 : expert,
    };
    n.trained_dense =
        model_part_trained(&arch, part, layer, d->tp, d->ep, etp, tied_copy) - n.trained_expert;
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
    if (build->arch->lora.rank > 0)
        return;
    sum->trained_dense += n;
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
    if (shares && build->arch->lora.rank == 0 && build->n_chains == 1 &&
        (ends.embedding || ends.mtp || tied_head))
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
        /* Weights that nothing updates are loaded in the format in which they are used. */
        .frozen_bytes = stored,
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
    const int64_t trained = sum.trained_dense + sum.trained_expert;
    return (double)trained * (double)bytes.weight_bytes +
           (double)optimizer_bytes(&bytes, trained, sum.own_dense + sum.own_expert, 0, 1);
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
    const int64_t trained = n->trained_dense + n->trained_expert;
    const int64_t trained_shard =
        share(n->trained_dense, dense_ranks) + share(n->trained_expert, expert_ranks);
    const bool splits = zero_stage >= 1;
    /* Replicas that gather matrices have equal shards of them. */
    const bool whole_matrices =
        splits && zero_stage < 3 && plan_framework(conventions->framework)->shards_whole_matrices;
    /* FSDP that does not reshard: shards, the gathered copy, and with a pipeline whole gradients
     * until the last micro-batch (set_requires_gradient_sync() of PyTorch's pipeline stages). */
    const bool gathered = zero_stage == 2 && bytes->gathered_bytes > 0;
    const int64_t n_gradients =
        zero_stage >= 2 && !(gathered && d->pp > 1) ? trained_shard : trained;
    const bool shards = zero_stage >= 3 || gathered;
    const int64_t n_trained = shards ? trained_shard : trained;
    const int64_t n_frozen = (shards ? shard : whole) - n_trained;

    return (WorkloadStateBytes){
        .weights_bytes =
            sharding->offload_parameters
                ? 0
                : workload_build_mul(n_trained, bytes->weight_bytes) +
                      workload_build_mul(n_frozen, bytes->frozen_bytes) +
                      (gathered ? workload_build_mul(whole, bytes->gathered_bytes) : 0),
        .gradients_bytes = workload_build_mul(n_gradients, bytes->gradient_bytes),
        .optimizer_bytes =
            sharding->offload != PLAN_OFFLOAD_NONE
                ? 0
                : optimizer_bytes(bytes, n->trained_dense, n->own_dense,
                                  whole_matrices ? n->largest_dense : 0, splits ? dense_ranks : 1) +
                      optimizer_bytes(bytes, n->trained_expert, n->own_expert,
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
