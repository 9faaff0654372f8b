/* An answer as a Schedule's Workload: groups are micro-batches, one class per number of sequences.
 */
#include "planner/slices/grid.h"
#include "planner/slices/orders.h"

static const PlanSliceGroup *
group_at(const GPtrArray *groups, guint i)
{
    return groups->pdata[i];
}

/* (owned) the class of each micro-batch: the first with as many sequences; *n_classes. */
static int32_t *
classes_of(const GPtrArray *groups, GArray *batches)
{
    int32_t *classes = g_new(int32_t, groups->len);

    for (guint i = 0; i < groups->len; i++) {
        const int64_t batch = group_at(groups, i)->batch;
        guint k = 0;
        while (k < batches->len && g_array_index(batches, int64_t, k) != batch)
            k++;
        if (k == batches->len)
            g_array_append_val(batches, batch);
        classes[i] = (int32_t)k;
    }
    return classes;
}

/* One op; false if it is infinite. */
static bool
set_op(const PlanSliceOrder *order, int64_t stage, int64_t row, int64_t c, WorkloadOp *op)
{
    const PlanSliceProblem *problem = order->problem;
    const int64_t side = problem->costs.n_cells + 1;
    const int64_t tokens = row / side * (row % side) * problem->costs.granularity;
    const int64_t f = plan_slice_stage_time(&order->stages[stage], 0, row * side + c);
    const int64_t g = plan_slice_stage_time(&order->stages[stage], 1, row * side + c);
    const int64_t delay = problem->delay == NULL ? 0 : problem->delay[row];

    if (f > PLAN_SLICE_MAX_SUM || g > PLAN_SLICE_MAX_SUM || delay > PLAN_SLICE_MAX_SUM)
        return false;
    *op = (WorkloadOp){.time_ns = {[SCHEDULE_OP_FORWARD] = f, [SCHEDULE_OP_BACKWARD] = g}};
    for (int kind = 0; kind < SCHEDULE_OP_N; kind++) {
        op->part_ns[kind][PROFILE_PART_COMPUTE] = op->time_ns[kind];
        op->workspace_bytes[kind] = tokens * problem->workspace_token_bytes;
    }
    if (order->n_ranks > 1 && stage + 1 < problem->n_stages)
        op->forward_message_ns = delay;
    if (order->n_ranks > 1 && stage > 0)
        op->backward_message_ns = delay;
    op->activation_bytes = tokens * problem->token_bytes / (problem->n_stages / order->n_ranks);
    return true;
}

Workload *
plan_slice_order_workload(const PlanSliceOrder *order, const GPtrArray *groups,
                          const Schedule *schedule)
{
    static const int64_t nothing[SCHEDULE_OP_N];
    const GArray *slices = group_at(groups, 0)->slices;
    const int64_t granularity = order->problem->costs.granularity;
    g_autoptr(Workload) workload = workload_new_plain(schedule, nothing, 0);
    g_autoptr(GArray) batches = g_array_new(FALSE, FALSE, sizeof(int64_t));

    workload->class_of_micro_batch = classes_of(groups, batches);
    workload->n_classes = (int32_t)batches->len;
    g_free(workload->ops);
    workload->ops =
        g_new0(WorkloadOp, (gsize)(workload->n_stages * workload->n_classes) * slices->len);
    WorkloadOp *op = workload->ops;
    for (int64_t stage = 0; stage < workload->n_stages; stage++)
        for (guint k = 0; k < batches->len; k++)
            for (guint i = 0, c = 0; i < slices->len; i++, op++) {
                const int64_t s = g_array_index(slices, int64_t, i) / granularity;
                const int64_t side = order->problem->costs.n_cells + 1;
                if (!set_op(order, stage, g_array_index(batches, int64_t, k) * side + s, c, op))
                    return NULL;
                c += (guint)s;
            }
    return g_steal_pointer(&workload);
}
