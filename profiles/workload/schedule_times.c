#include "profiles/workload/schedule_times.h"

#include "profiles/workload/prefetch.h"

/* The op of @stage and class @class_; NULL beyond the chain. */
static const WorkloadOp *
op_at(const Workload *workload, int32_t stage, int32_t class_)
{
    if (stage < 0 || stage >= workload->n_stages)
        return NULL;
    return workload_op_of_class(workload, 0, stage, class_, 0);
}

static void
raise_to(int64_t *value, int64_t least)
{
    *value = MAX(*value, least);
}

/* Takes what is larger in @class_ into @times. */
static void
add_class(const Workload *workload, int32_t stage, int32_t class_, ScheduleStageTimes *times)
{
    const WorkloadOp *op = op_at(workload, stage, class_);
    const WorkloadOp *before = op_at(workload, stage - 1, class_);
    const WorkloadOp *after = op_at(workload, stage + 1, class_);
    const int64_t overhead_ns = workload->op_overhead_ns;
    int64_t forward_ns = overhead_ns, backward_ns = overhead_ns;

    g_assert(op != NULL);
    if (workload->blocking_messages && before != NULL) {
        forward_ns += before->forward_message.ns;
        backward_ns += workload_send_ns(&op->backward_message);
    }
    if (workload->blocking_messages && after != NULL) {
        forward_ns += workload_send_ns(&op->forward_message);
        backward_ns += after->backward_message.ns;
    }
    raise_to(&times->forward_ns, op->time_ns[SCHEDULE_OP_FORWARD] + forward_ns);
    raise_to(&times->backward_ns, op->time_ns[SCHEDULE_OP_BACKWARD] + backward_ns);
    raise_to(&times->input_ns, op->time_ns[SCHEDULE_OP_BACKWARD_INPUT] + backward_ns);
    raise_to(&times->weight_ns, op->time_ns[SCHEDULE_OP_BACKWARD_WEIGHT] + overhead_ns);
    if (!workload->blocking_messages) {
        raise_to(&times->forward_message_ns, op->forward_message.ns);
        raise_to(&times->backward_message_ns, op->backward_message.ns);
    }
    raise_to(&times->activation_bytes, op->activation_bytes + op->kv_bytes);
    raise_to(&times->weight_activation_bytes, op->weight_activation_bytes);
}

static int64_t
largest_workspace(const Workload *workload, int32_t stage, int32_t rank)
{
    int64_t largest = 0;

    for (int32_t c = 0; c < workload->n_classes; c++) {
        const WorkloadOp *op = op_at(workload, stage, c);
        g_assert(op != NULL);
        for (int kind = 0; kind < SCHEDULE_OP_N; kind++)
            raise_to(&largest, workload_prefetch_most(workload, op - workload->ops,
                                                      (ScheduleOpKind)kind, rank));
    }
    return largest;
}

static int64_t *
limits_of(const Workload *workload, SchedulePlacement placement, const ScheduleStageTimes *stages)
{
    const Schedule placed = {
        .n_ranks = workload->n_ranks,
        .n_chunks = workload->n_stages / workload->n_ranks,
        .placement = placement,
    };
    int64_t *limits = g_new(int64_t, (size_t)workload->n_ranks);

    for (int32_t r = 0; r < workload->n_ranks; r++) {
        const WorkloadRank *rank = &workload->ranks[r];
        int64_t left = workload_usable_bytes(rank), workspace = 0, one = 0;
        for (int owner = 0; owner < TRACE_MEMORY_N; owner++)
            left -= MIN(left, rank->static_bytes[owner]);
        for (int32_t c = 0; c < placed.n_chunks; c++) {
            const int32_t stage = schedule_stage(&placed, r, c);
            raise_to(&workspace, largest_workspace(workload, stage, r));
            one += MAX(stages[stage].activation_bytes, stages[stage].weight_activation_bytes);
        }
        limits[r] = MAX(one, left - MIN(left, workspace));
    }
    return limits;
}

void
workload_schedule_times_init(WorkloadScheduleTimes *self, const Workload *workload,
                             SchedulePlacement placement)
{
    g_assert(placement != SCHEDULE_PLACEMENT_BIDIR && workload->n_slices == 1);
    bool limited = true;

    *self = (WorkloadScheduleTimes){
        .stages = g_new0(ScheduleStageTimes, (size_t)workload->n_stages),
    };
    for (int32_t s = 0; s < workload->n_stages; s++)
        for (int32_t c = 0; c < workload->n_classes; c++)
            add_class(workload, s, c, &self->stages[s]);
    for (int32_t r = 0; r < workload->n_ranks; r++)
        limited = limited && workload->ranks[r].memory_limit_bytes > 0;
    if (limited)
        self->limit_bytes = limits_of(workload, placement, self->stages);
    self->times = (ScheduleTimes){
        .stages = self->stages,
        .n_stages = workload->n_stages,
        .limit_bytes = self->limit_bytes,
        .objective = SCHEDULE_OBJECTIVE_MAKESPAN,
    };
}

void
workload_schedule_times_clear(WorkloadScheduleTimes *self)
{
    g_clear_pointer(&self->stages, g_free);
    g_clear_pointer(&self->limit_bytes, g_free);
}
