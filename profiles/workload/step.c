#include "profiles/workload/step.h"

#include "profiles/cost/cost.h"

/* Bytes moved per parameter of the rank, not of its shard, before the step: separate kernels zero
 * the gradients, look for NaN in them, and divide them by the ranks that add them up. */
static double
gradient_bytes(const WorkloadStep *step)
{
    const double gradient = (double)dtype_bytes(step->conventions->grad_dtype);

    if (!plan_framework(step->conventions->framework)->separate_step_kernels)
        return 0.0;
    return (step->degrees->dp * step->degrees->cp > 1 ? 4.0 : 2.0) * gradient;
}

/*
 * Bytes moved per parameter (cost-model.md 5.2): moments, of @moment_bytes, and master copy are read
 * and written, the weight is written; the gradient is read for its norm and for the step, and zeroed.
 * Gradients in 16 bits are first copied to 32.  Where the step's kernels are separate, each reads
 * and writes what it needs: the gradient is read for its norm, read and written to be clipped, read
 * for the step; with fp16 read and written to take the loss's scale out; the master copy is read
 * again to be cast.
 */
static double
step_bytes(const WorkloadStep *step, double moment_bytes)
{
    const double state = 2.0 * (moment_bytes + 4.0);
    const double weight = (double)dtype_bytes(dtype_stored(step->dtype));
    const double gradient = (double)dtype_bytes(step->conventions->grad_dtype);

    if (plan_framework(step->conventions->framework)->separate_step_kernels)
        return state + 16.0 + (step->dtype == DTYPE_FP16 ? 8.0 : 0.0) +
               (weight < 4.0 ? 4.0 + weight : 0.0) + (gradient < 4.0 ? gradient + 4.0 : 0.0);
    if (weight == 4.0)
        return state + 4.0 + 8.0;
    return state + weight + 12.0 + (gradient == 4.0 ? 0.0 : gradient * 2.0);
}

double
workload_step_s(const Profile *profile, const ModelDevice *device, const WorkloadStep *step,
                const WorkloadParameters *parameters)
{
    const PlanOptimizerFacts *optimizer = plan_optimizer(step->conventions->optimizer);
    const ProfileParameters *p = &profile->parameters;
    const PlanDegrees *d = step->degrees;
    const double e = (double)dtype_bytes(dtype_stored(step->dtype));
    const double g = (double)dtype_bytes(step->conventions->grad_dtype);
    const int64_t whole = parameters->trained_dense + parameters->trained_expert;
    const int64_t dense_ranks = step->zero_stage >= 1 ? plan_shard_ranks(d, step->conventions) : 1;
    const int64_t expert_ranks =
        step->zero_stage >= 1 ? plan_expert_shard_ranks(d, step->conventions) : 1;
    const int64_t n =
        parameters->trained_dense / dense_ranks + parameters->trained_expert / expert_ranks;
    const int64_t own = parameters->own_dense / dense_ranks + parameters->own_expert / expert_ranks;
    const double own_moment_bytes =
        (double)optimizer->moment_bytes +
        (optimizer->block_elements > 0
             ? (double)optimizer->block_bytes / (double)optimizer->block_elements
             : 0.0);
    const double moment_bytes =
        n == 0 ? PLAN_ADAMW_MOMENT_BYTES
               : PLAN_ADAMW_MOMENT_BYTES +
                     (double)own / (double)n * (own_moment_bytes - PLAN_ADAMW_MOMENT_BYTES);

    if (!step->conventions->optimizer_step)
        return 0.0;
    if (step->offload == PLAN_OFFLOAD_NONE)
        return profile_cost_optimizer_s(profile, device, n, step_bytes(step, moment_bytes)) +
               profile_cost_memory_s(profile, device, (double)whole * gradient_bytes(step));
    /* Gradients to the host, the step there, weights back, unless they are offloaded too; with NVMe
     * the state comes and goes, and weights that are not their own master copy go. */
    const double back = step->offload_parameters ? 0.0 : e;
    const double weights = step->offload_parameters && e < 4.0 ? e : 0.0;
    return (double)n * ((g + back) / p->offload_bytes_per_s +
                        (step->offload == PLAN_OFFLOAD_NVME
                             ? (2.0 * (moment_bytes + 4.0) + weights) / p->nvme_bytes_per_s
                             : 0.0));
}
