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
 * Bytes moved per parameter by Adam (cost-model.md 5.2): moments and master copy are read and
 * written, the weight is written; the gradient is read for its norm and for the step, and zeroed.
 * Gradients in 16 bits are first copied to 32.  Where the step's kernels are separate, each reads
 * and writes what it needs: the gradient is read for its norm, read and written to be clipped, read
 * for the step; with fp16 read and written to take the loss's scale out; the master copy is read
 * again to be cast.
 */
static double
step_bytes(const WorkloadStep *step)
{
    const double weight = (double)dtype_bytes(dtype_stored(step->dtype));
    const double gradient = (double)dtype_bytes(step->conventions->grad_dtype);

    if (plan_framework(step->conventions->framework)->separate_step_kernels)
        return 24.0 + 16.0 + (step->dtype == DTYPE_FP16 ? 8.0 : 0.0) +
               (weight < 4.0 ? 4.0 + weight : 0.0) + (gradient < 4.0 ? gradient + 4.0 : 0.0);
    if (weight == 4.0)
        return 24.0 + 4.0 + 8.0;
    return 24.0 + weight + 12.0 + (gradient == 4.0 ? 0.0 : gradient * 2.0);
}

double
workload_step_s(const Profile *profile, const ModelDevice *device, const WorkloadStep *step,
                int64_t dense, int64_t expert)
{
    const ProfileParameters *p = &profile->parameters;
    const PlanDegrees *d = step->degrees;
    const double e = (double)dtype_bytes(dtype_stored(step->dtype));
    const double g = (double)dtype_bytes(step->conventions->grad_dtype);
    const int64_t whole = dense + expert;
    const int64_t n =
        step->zero_stage >= 1
            ? dense / (d->dp * d->cp) + expert / plan_expert_replicas(d, step->conventions)
            : whole;

    if (!step->conventions->optimizer_step)
        return 0.0;
    if (step->offload == PLAN_OFFLOAD_NONE)
        return profile_cost_optimizer_s(profile, device, n, step_bytes(step)) +
               profile_cost_memory_s(profile, device, (double)whole * gradient_bytes(step));
    /* Gradients to the host, the step there, weights back, unless they are offloaded too; with NVMe
     * the state comes and goes, and weights that are not their own master copy go. */
    const double back = step->offload_parameters ? 0.0 : e;
    const double weights = step->offload_parameters && e < 4.0 ? e : 0.0;
    return (double)n *
           ((g + back) / p->offload_bytes_per_s +
            (step->offload == PLAN_OFFLOAD_NVME ? (24.0 + weights) / p->nvme_bytes_per_s : 0.0));
}
