#include "profiles/workload/workload.h"

#include "base/units.h"

static int64_t
slowed(int64_t ns, double speed)
{
    return units_ns_from_s(units_s_from_ns(ns) / speed);
}

static void
slow_op(WorkloadOp *op, double speed)
{
    static const ProfilePart parts[] = {PROFILE_PART_COMPUTE, PROFILE_PART_RECOMPUTE};

    for (int kind = 0; kind < SCHEDULE_OP_N; kind++)
        for (size_t i = 0; i < G_N_ELEMENTS(parts); i++) {
            int64_t *part_ns = &op->part_ns[kind][parts[i]];
            const int64_t ns = slowed(*part_ns, speed);
            op->time_ns[kind] += ns - *part_ns;
            *part_ns = ns;
        }
}

void
workload_set_rank_speed(Workload *workload, SchedulePlacement placement, int32_t rank, double speed)
{
    const int64_t per_stage = (int64_t)workload->n_classes * workload->n_slices;

    g_return_if_fail(rank >= 0 && rank < workload->n_ranks && speed > 0);
    for (int32_t chain = 0; chain < workload->n_chains; chain++)
        for (int32_t stage = 0; stage < workload->n_stages; stage++) {
            WorkloadOp *ops =
                &workload->ops[((int64_t)chain * workload->n_stages + stage) * per_stage];
            if (schedule_placement_rank(placement, workload->n_ranks, stage, chain) != rank)
                continue;
            for (int64_t i = 0; i < per_stage; i++)
                slow_op(&ops[i], speed);
        }
    workload->ranks[rank].optimizer_ns = slowed(workload->ranks[rank].optimizer_ns, speed);
}
