/* ZeRO 3: what its collectives cost, and what of them computing hides; cost-model.md 5.3. */
#include "profiles/workload/zero3.h"

#include "profiles/workload/build.h"
#include "schedule/stack.h"

#include <math.h>

/* --- how far ahead --- */

int32_t
workload_prefetch_layers(int32_t given, const PlanConventions *conventions, int64_t layer_elements)
{
    const PlanFrameworkFacts *facts = plan_framework(conventions->framework);
    const int64_t n = MAX(1, layer_elements);

    if (given != PLAN_PREFETCH_AUTO)
        return given;
    if (facts->prefetch_elements > 0)
        return (int32_t)CLAMP(
            MIN((facts->prefetch_elements + n - 1) / n, facts->live_elements / n - 1), 1,
            PLAN_MAX_PREFETCH);
    return facts->synchronous_gathers && !conventions->overlap_dp ? 0 : 1;
}

int64_t
workload_build_first_layer(const ModelArch *arch, const Plan *plan)
{
    return model_part_parameters(arch, MODEL_PART_LAYER,
                                 g_array_index(plan->stages, PlanStage, 0).first_layer,
                                 plan->degrees.tp, plan->degrees.ep,
                                 plan_expert_tp(&plan->degrees, &plan->conventions), false);
}

int32_t
workload_plan_prefetch(const ModelArch *arch, const Plan *plan)
{
    return workload_prefetch_layers(plan->prefetch_layers, &plan->conventions,
                                    workload_build_first_layer(arch, plan));
}

/* --- what a part costs --- */

int64_t
workload_zero3_gathers(const PlanConventions *conventions, PlanRecompute recompute)
{
    return recompute == PLAN_RECOMPUTE_FULL &&
                   !plan_framework(conventions->framework)->recompute_shares_gather
               ? 2
               : 1;
}

/* Collectives that gather one layer: one, or one for each matrix (GPT: 4, Llama: 7). */
static double
n_gathers_per_layer(const WorkloadBuild *build)
{
    if (!build->facts->gathers_matrices)
        return 1.0;
    return build->arch->family == MODEL_FAMILY_GPT ? 4.0 : 7.0;
}

/* Of a part: its view is made, its copy is launched. */
#define HOST_STEPS_PER_PART 2.0

/*
 * What a gather (or scatter) of @bytes costs DeepSpeed of 2021 beyond the collective: the tensor
 * is zeroed, and its parts are copied one by one between it and the list that torch's collective
 * takes: for each of the group's ranks Python cuts a part off, and torch launches a copy of it
 * (cost-model.md 5.3).
 */
static double
zero3_copies_s(const WorkloadBuild *build, const WorkloadLocation *location, int64_t bytes,
               double n, int64_t n_ranks)
{
    const ProfileParameters *p = &build->profile->parameters;

    return 3.0 * (double)bytes / (p->memory_fraction * location->device->memory_bytes_per_s) +
           n * (double)n_ranks * HOST_STEPS_PER_PART * p->host_kernel_s;
}

/*
 * What PyTorch's FSDP copies on the stream that computes (cost-model.md 5.3).  FSDP2: after a gather, what
 * it brought to each parameter (foreach_all_gather_copy_out()); before a scatter, gradients to its input, in
 * the format that is summed (foreach_reduce_scatter_copy_in()).  FSDP1: autograd joins the gradients of the
 * parts of a flat parameter; _post_backward_hook() casts them to the format that is summed, if it is
 * another; _div_if_needed() divides them in place.
 */
static double
fsdp_copies_s(const WorkloadBuild *build, const WorkloadLocation *location,
              const WorkloadParameters *of, double n_gathers, bool scatters)
{
    const PlanConventions *conventions = &build->plan->conventions;
    const int32_t since = build->facts->shards_singly_since;
    const double e = (double)dtype_bytes(dtype_stored(build->plan->dtype));
    const bool singly = plan_stack(conventions) >= since;
    const double g = (double)dtype_bytes(conventions->grad_dtype);
    const double cast = g != e ? e + g : 0.0;
    const double scattered = singly ? e + g : 2.0 * e + cast + 2.0 * g;
    const double gathered = singly ? 2.0 * (double)workload_build_element_bytes(build->plan) : 0.0;

    if (since == 0)
        return 0.0;
    return profile_cost_memory_s(build->profile, location->device,
                                 (double)of->dense * n_gathers * gathered +
                                     (scatters ? (double)of->trained_dense * scattered : 0.0));
}

/* Seconds of a gather of @gather_s whose own share of @share_bytes comes from the host first, and
 * from NVMe before that.  What is ahead of use is read ahead of the copy too. */
static double
with_fetch_s(const WorkloadBuild *build, double share_bytes, double gather_s)
{
    const ProfileParameters *p = &build->profile->parameters;
    const Plan *plan = build->plan;
    const double there_s = gather_s + share_bytes / p->offload_bytes_per_s;
    const double read_s =
        plan->offload == PLAN_OFFLOAD_NVME ? share_bytes / p->nvme_bytes_per_s : 0.0;

    if (!plan->offload_parameters)
        return gather_s;
    return workload_plan_prefetch(build->arch, plan) > 0 ? fmax(there_s, read_s) : there_s + read_s;
}

static int64_t
backward_gathers(const WorkloadBuild *build, ModelPart part, PlanRecompute recompute)
{
    if (part == MODEL_PART_LAYER)
        return workload_zero3_gathers(&build->plan->conventions, recompute);
    return part == MODEL_PART_EMBEDDING && build->facts->embedding_gathers_once ? 0 : 1;
}

/* Whether a table of @n elements is gathered when it is needed only (executor/model/units.h). */
static bool
waits_for_gather(const WorkloadBuild *build, ModelPart part, int64_t n)
{
    const Plan *plan = build->plan;

    return part != MODEL_PART_LAYER && build->facts->bounds_gathers &&
           n > workload_plan_prefetch(build->arch, plan) *
                   workload_build_first_layer(build->arch, plan);
}

void
workload_build_zero3(const WorkloadBuild *build, const WorkloadLocation *location, int32_t rank,
                     ModelPart part, int64_t layer, PlanRecompute recompute, WorkloadPartCost *cost)
{
    const Plan *plan = build->plan;
    const WorkloadParameters of = workload_build_part_parameters(build, part, layer, false);
    const ProfileGroup all = workload_build_group(build, PROFILE_GROUP_DENSE, rank);
    const int64_t instances = plan_instances(&plan->conventions);
    const ProfileGroup group = profile_group_run(&all, instances);
    const ProfileGroup copies = profile_group_across(&all, instances);
    double n_tensors = part == MODEL_PART_LAYER ? n_gathers_per_layer(build) : 1.0;
    const int64_t n_backward = backward_gathers(build, part, recompute);
    const bool waits = waits_for_gather(build, part, of.dense);
    const int64_t weight_bytes = of.dense * workload_build_element_bytes(plan);
    const int64_t gradient_bytes = of.trained_dense * dtype_bytes(plan->conventions.grad_dtype);
    const double share_bytes =
        (double)workload_build_element_bytes(plan) *
        ((double)of.dense / (double)group.n +
         (double)of.expert / (double)plan_expert_shard_ranks(&plan->degrees, &plan->conventions));
    double gather =
        profile_cost_collective_s(build->profile, MODEL_COMM_ALL_GATHER, weight_bytes, &group);
    double scatter = profile_cost_collective_s(build->profile, MODEL_COMM_REDUCE_SCATTER,
                                               gradient_bytes, &group);
    gather += (n_tensors - 1.0) *
              profile_cost_collective_s(build->profile, MODEL_COMM_ALL_GATHER, 0, &group);
    scatter += (n_tensors - 1.0) *
               profile_cost_collective_s(build->profile, MODEL_COMM_REDUCE_SCATTER, 0, &group);
    /* Hybrid sharding: groups add up their shards, layer by layer. */
    scatter += profile_cost_collective_s(build->profile, MODEL_COMM_ALL_REDUCE,
                                         gradient_bytes / group.n, &copies);
    if (build->facts->synchronous_gathers && !plan->conventions.overlap_dp && group.n > 1) {
        gather += zero3_copies_s(build, location, weight_bytes, n_tensors, group.n);
        scatter += zero3_copies_s(build, location, gradient_bytes, n_tensors, group.n);
    }
    gather = with_fetch_s(build, share_bytes, gather);
    for (int kind = 0; kind < SCHEDULE_OP_N; kind++) {
        const bool scatters = of.trained_dense > 0 &&
                              (kind == SCHEDULE_OP_BACKWARD || kind == SCHEDULE_OP_BACKWARD_WEIGHT);
        const int64_t n_gathers = kind == SCHEDULE_OP_FORWARD           ? 1
                                  : kind == SCHEDULE_OP_BACKWARD_WEIGHT ? 0
                                                                        : n_backward;
        cost->zero3_s[kind] = (double)n_gathers * gather + (scatters ? scatter : 0.0);
        cost->waits_s[kind] = waits ? (double)n_gathers * gather : 0.0;
        if (group.n > 1)
            cost->cost[kind].part_s[PROFILE_PART_DP] +=
                fsdp_copies_s(build, location, &of, (double)n_gathers, scatters);
        if (n_gathers > 0)
            profile_collective_traffic(build->profile, MODEL_COMM_ALL_GATHER,
                                       n_gathers * weight_bytes, &group, cost->traffic_bytes[kind]);
        if (scatters)
            profile_collective_traffic(build->profile, MODEL_COMM_REDUCE_SCATTER, gradient_bytes,
                                       &group, cost->traffic_bytes[kind]);
        if (scatters)
            profile_collective_traffic(build->profile, MODEL_COMM_ALL_REDUCE,
                                       gradient_bytes / group.n, &copies,
                                       cost->traffic_bytes[kind]);
    }
}

/* --- what is hidden --- */

/*
 * The parts of an op in the order of its forward, each with collectives of ZeRO 3 on a stream of
 * their own, as they follow each other in many ops of the kind.  Part i's stand for the gather that
 * the part after it waits for: with @depth layers ahead they begin with part i - @depth + 1, one
 * after the other, and part i ends when it has computed and they are there.  Without any ahead they
 * stop the computing, as gathers that wait do in any case.  What runs behind computing slows it
 * down.  The host launches what follows while the device waits: the op takes what all of its parts
 * take on the device, or on the host if that is longer.  So more computing never makes it shorter.
 */
static void
hide_zero3(const WorkloadBuild *build, ScheduleOpKind kind, int32_t depth, int64_t n,
           WorkloadPartCost *const *parts)
{
    const double interference = build->profile->parameters.interference_fraction;
    /* Relative to the begin of the part at hand: the end of the collectives so far, and the begins
     * of the @depth parts up to this one. */
    double there_s = 0.0, begins_s[PLAN_MAX_PREFETCH] = {0};

    /* The second round is in the steady state. */
    for (int64_t i = 0; i < 2 * n; i++) {
        WorkloadPartCost *part = parts[kind == SCHEDULE_OP_FORWARD ? i % n : n - 1 - i % n];
        const double device_s = profile_cost_device_s(&part->cost[kind]);
        const double all_s = part->zero3_s[kind], waits_s = part->waits_s[kind];
        double visible_s = all_s;

        if (depth > 0) {
            there_s = fmax(there_s, begins_s[0]) + all_s - waits_s;
            visible_s = fmax(0.0, there_s - device_s) + waits_s;
        }
        const double end_s = device_s + visible_s;
        if (i >= n) {
            part->cost[kind].part_s[PROFILE_PART_DP] += visible_s;
            part->cost[kind].part_s[PROFILE_PART_COMPUTE] +=
                interference * fmax(0.0, all_s - visible_s);
        }
        there_s -= end_s;
        for (int32_t k = 0; k < depth; k++)
            begins_s[k] = (k + 1 < depth ? begins_s[k + 1] : end_s) - end_s;
    }
}

void
workload_build_hide(const WorkloadBuild *build, int64_t n, WorkloadPartCost *const *parts)
{
    const int32_t depth = workload_plan_prefetch(build->arch, build->plan);

    for (int kind = 0; kind < SCHEDULE_OP_N; kind++)
        hide_zero3(build, (ScheduleOpKind)kind, depth, n, parts);
}

bool
workload_build_parts_meet(const WorkloadBuild *build)
{
    return build->plan->zero_stage >= 3 && workload_plan_prefetch(build->arch, build->plan) > 1;
}
