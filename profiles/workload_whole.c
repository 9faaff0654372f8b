/* What is whole for the time of an op where ranks keep shares of it; cost-model.md 6.3. */
#include "profiles/workload_build.h"

int64_t
workload_build_gathered_layer(const WorkloadBuild *build)
{
    return build->plan->zero_stage < 3
               ? 0
               : workload_build_mul(workload_build_first_layer(build->arch, build->plan),
                                    workload_build_element_bytes(build->plan));
}

/* Other frameworks' buckets and units of several layers are not counted (cost-model.md 6.3). */
WorkloadWholeBytes
workload_build_whole(const WorkloadBuild *build, ModelPart part, int64_t layer)
{
    const Plan *plan = build->plan;
    const PlanDegrees *d = &plan->degrees;
    const int64_t bytes = workload_parameter_bytes(plan->dtype, &plan->conventions).gradient;
    const int64_t etp = plan_expert_tp(d, &plan->conventions);
    int64_t n = model_part_parameters(build->arch, part, layer, d->tp, d->ep, etp, false);
    WorkloadWholeBytes whole = {0};

    if (plan->zero_stage < 2 || plan->conventions.framework != PLAN_FRAMEWORK_DEGAS)
        return whole;
    /* A tied head adds to the table's, wherever that lies. */
    if (part == MODEL_PART_HEAD && build->arch->tied_embeddings)
        n = model_part_parameters(build->arch, part, layer, d->tp, d->ep, etp, true);
    if (plan->zero_stage >= 3)
        whole.weights = workload_build_mul(n, workload_build_element_bytes(plan));
    int64_t expert =
        part == MODEL_PART_LAYER ? model_expert_parameters(build->arch, layer, d->ep, etp) : 0;
    n -= expert;
    if (d->dp * d->cp == 1)
        n = 0;
    if (plan_expert_replicas(d, &plan->conventions) == 1)
        expert = 0;
    whole.gradients = workload_build_mul(n + expert, bytes);
    return whole;
}

/*
 * Beside the workspace, which the executor takes when the op begins: the whole gradients of the
 * part at work, and what its weights are more, or less, than the layer's that is counted in any
 * case (6.3), as are those ahead of it.  The level falls while parts are done: a backward's layers
 * come when the head has given back what it kept, its embedding, which needs no weights, when the
 * layers have too.  W needs no weights.
 */
void
workload_build_add_whole(const WorkloadBuild *build, const WorkloadWhole *whole, WorkloadOp *op)
{
    const int64_t gathered = workload_build_gathered_layer(build);
    const int64_t head = whole->head.weights - gathered;
    const int64_t forward = MAX(head, whole->embedding.weights - gathered);
    const int64_t kept = op->activation_bytes, weight_kept = op->weight_activation_bytes;
    const int64_t embedding = whole->embedding.gradients - gathered;
    const int64_t layers_done = kept - whole->embedding_kept + whole->again;
    const int64_t backward =
        MAX(whole->layer.gradients - whole->head_kept, embedding - layers_done);
    const int64_t input =
        MAX(head - MAX(0, weight_kept - kept), embedding - MAX(0, kept - weight_kept));
    const int64_t weight =
        MAX(whole->head.gradients, whole->layer.gradients - whole->head_weight_kept) - gathered;

    workload_build_add(&op->workspace_bytes[SCHEDULE_OP_FORWARD], MAX(0, forward));
    workload_build_add(&op->workspace_bytes[SCHEDULE_OP_BACKWARD],
                       MAX(0, MAX(head + whole->head.gradients, backward)));
    workload_build_add(&op->workspace_bytes[SCHEDULE_OP_BACKWARD_INPUT], MAX(0, input));
    workload_build_add(&op->workspace_bytes[SCHEDULE_OP_BACKWARD_WEIGHT], MAX(0, weight));
}
