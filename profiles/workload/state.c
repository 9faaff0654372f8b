/* What a rank has all the time: parameters, buffers, what libraries keep; cost-model.md 6.1, 6.3.
 */
#include "profiles/workload/build.h"

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
    int64_t weight = dtype_bytes(dtype_stored(dtype));
    int64_t gradient = dtype_bytes(conventions->grad_dtype);

    /* fp32: weight, gradient, two moments; the weight is its own master copy. */
    if (weight == 4)
        return (WorkloadParameterBytes){4, 4, 8};
    if (plan_framework(conventions->framework)->fp32_parameters)
        return (WorkloadParameterBytes){4, 4, 8};
    /* fp32 master copy and two moments: 2 + 4 + 12 = 18 [Megatron], 2 + 2 + 12 = 16 [1910.02054].
     */
    return (WorkloadParameterBytes){weight, gradient, 12};
}

double
workload_checkpoint_bytes(const ModelArch *arch, const Plan *plan)
{
    const WorkloadParameterBytes bytes = workload_parameter_bytes(plan->dtype, &plan->conventions);

    return (double)model_parameters(arch) * (double)(bytes.weight_bytes + bytes.optimizer_bytes);
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
        .weights_bytes =
            sharding->offload_parameters
                ? 0
                : workload_build_mul(zero_stage >= 3 ? shard : whole, bytes->weight_bytes),
        .gradients_bytes =
            workload_build_mul(zero_stage >= 2 ? shard : whole, bytes->gradient_bytes),
        .optimizer_bytes =
            sharding->offload != PLAN_OFFLOAD_NONE
                ? 0
                : workload_build_mul(zero_stage >= 1 ? shard : whole, bytes->optimizer_bytes),
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

    if (!build->facts->gradient_placeholders)
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

    static_bytes[TRACE_MEMORY_WEIGHTS] = state.weights_bytes;
    static_bytes[TRACE_MEMORY_GRADIENTS] = state.gradients_bytes;
    static_bytes[TRACE_MEMORY_OPTIMIZER] = state.optimizer_bytes;
    static_bytes[TRACE_MEMORY_BUFFERS] = message_bytes(build, workload, rank);
    static_bytes[TRACE_MEMORY_BUFFERS] += gathered_bytes(build);
    static_bytes[TRACE_MEMORY_BUFFERS] +=
        placeholder_bytes(build, rank) + workload_library_bytes(p, &plan->conventions);
}
