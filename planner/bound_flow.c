#include "planner/bound_flow.h"

#include "planner/bound_sum.h"

static const WorkloadOp *
op_at(const PlanFlowShop *shop, int32_t stage, int32_t slice)
{
    return shop->ops[(int64_t)stage * shop->n_slices + slice];
}

/* --- what one op takes --- */

/* What a message takes after the op that sends it; and its sender, if that blocks. */
typedef struct {
    int64_t ns, send_ns;
} Message;

/* From @stage's op of @kind to the stage that waits for it; none from either end of the chain. */
static Message
message_of(const PlanFlowShop *shop, int32_t stage, int32_t slice, ScheduleOpKind kind)
{
    const bool forward = kind == SCHEDULE_OP_FORWARD;
    const WorkloadOp *op = op_at(shop, stage, slice);

    if (stage == (forward ? shop->workload->n_stages - 1 : 0))
        return (Message){0, 0};
    const int64_t ns = forward ? op->forward_message_ns : op->backward_message_ns;
    const int64_t buffered = forward ? op->forward_buffered_ns : op->backward_buffered_ns;
    return (Message){ns, shop->workload->blocking_messages ? MAX(0, ns - buffered) : 0};
}

/* The message that @stage's op of @kind waits for. */
static int64_t
receive_ns(const PlanFlowShop *shop, int32_t stage, int32_t slice, ScheduleOpKind kind)
{
    const int32_t from = kind == SCHEDULE_OP_FORWARD ? stage - 1 : stage + 1;

    return from < 0 || from >= shop->workload->n_stages ? 0
                                                        : message_of(shop, from, slice, kind).ns;
}

static int64_t
op_ns(const PlanFlowShop *shop, int32_t stage, int32_t slice, ScheduleOpKind kind)
{
    return plan_sum_ns(op_at(shop, stage, slice)->time_ns[kind], shop->workload->op_overhead_ns);
}

/* Of the op's rank: with the messages that it blocks in. */
static int64_t
busy_ns(const PlanFlowShop *shop, int32_t stage, int32_t slice, ScheduleOpKind kind)
{
    const int64_t received =
        shop->workload->blocking_messages ? receive_ns(shop, stage, slice, kind) : 0;

    return plan_sum_ns(plan_sum_ns(received, op_ns(shop, stage, slice, kind)),
                       message_of(shop, stage, slice, kind).send_ns);
}

/* --- the shops --- */

/* When all slices have passed the ranks in the direction of @kind, less what the last rank is busy
 * with them; @free_ns of each rank, zeroed. */
static int64_t
idle_ns(const PlanFlowShop *shop, ScheduleOpKind kind, int64_t *free_ns)
{
    const bool forward = kind == SCHEDULE_OP_FORWARD;
    const int32_t p = shop->workload->n_ranks, n = shop->n_slices;
    int64_t busy = 0, end = 0;

    for (int32_t i = 0; i < n; i++) {
        const int32_t slice = forward ? i : n - 1 - i;
        int64_t before = 0; /* the end of the op that this one waits for */
        for (int32_t k = 0; k < p; k++) {
            const int32_t rank = forward ? k : p - 1 - k;
            const int64_t received = k == 0 ? 0 : receive_ns(shop, rank, slice, kind);
            const int64_t begin = shop->workload->blocking_messages
                                      ? plan_sum_ns(MAX(free_ns[rank], before), received)
                                      : MAX(free_ns[rank], plan_sum_ns(before, received));
            before = plan_sum_ns(begin, op_ns(shop, rank, slice, kind));
            free_ns[rank] = plan_sum_ns(before, message_of(shop, rank, slice, kind).send_ns);
        }
        end = before;
        busy = plan_sum_ns(busy, busy_ns(shop, p - 1, slice, kind));
    }
    return MAX(0, end - busy);
}

PlanFlowTimes
plan_flow_times(const PlanFlowShop *shop)
{
    const int32_t p = shop->workload->n_ranks;
    g_autofree int64_t *free_ns = g_new0(int64_t, 2 * (size_t)p);
    PlanFlowTimes times = {
        .fill_ns = idle_ns(shop, SCHEDULE_OP_FORWARD, free_ns),
        .drain_ns = idle_ns(shop, SCHEDULE_OP_BACKWARD, free_ns + p),
    };

    for (int32_t stage = p - 1; stage < shop->workload->n_stages; stage += p)
        for (int32_t slice = 0; slice < shop->n_slices; slice++)
            times.work_ns = plan_sum_ns(
                times.work_ns, plan_sum_ns(busy_ns(shop, stage, slice, SCHEDULE_OP_FORWARD),
                                           busy_ns(shop, stage, slice, SCHEDULE_OP_BACKWARD)));
    return times;
}

/* --- a plan --- */

int64_t
plan_bound_flow_ns(const Workload *workload, int64_t n_microbatches)
{
    const int32_t n_slices = workload->n_slices, n_classes = workload->n_classes;
    const int64_t n_ops = (int64_t)workload->n_stages * n_slices;
    const int32_t *classes = workload->class_of_microbatch;
    g_autofree const WorkloadOp **ops = g_new(const WorkloadOp *, (size_t)n_ops);
    g_autofree PlanFlowTimes *times = g_new(PlanFlowTimes, (size_t)n_classes);
    int64_t ns = 0;

    for (int32_t c = 0; c < n_classes; c++) {
        for (int64_t i = 0; i < n_ops; i++)
            ops[i] = &workload->ops[(i / n_slices * n_classes + c) * n_slices + i % n_slices];
        times[c] = plan_flow_times(&(PlanFlowShop){workload, n_slices, ops});
    }
    if (classes == NULL)
        ns = plan_product_ns(n_microbatches, times[0].work_ns);
    for (int64_t i = 0; classes != NULL && i < n_microbatches; i++)
        ns = plan_sum_ns(ns, times[classes[i]].work_ns);
    const PlanFlowTimes *first = &times[classes == NULL ? 0 : classes[0]];
    const PlanFlowTimes *last = &times[classes == NULL ? 0 : classes[n_microbatches - 1]];
    return plan_sum_ns(plan_sum_ns(first->fill_ns, ns), last->drain_ns);
}
