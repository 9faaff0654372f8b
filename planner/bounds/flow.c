#include "planner/bounds/flow.h"

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
    const WorkloadMessage *message = workload_message(op, forward);
    return (Message){message->ns,
                     shop->workload->blocking_messages ? workload_send_ns(message) : 0};
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
    return plan_sum_ns(workload_least_ns(shop->workload, op_at(shop, stage, slice), kind),
                       shop->workload->op_overhead_ns);
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

int64_t
plan_flow_busy_ns(const PlanFlowShop *shop, int32_t stage, int32_t slice)
{
    return plan_sum_ns(busy_ns(shop, stage, slice, SCHEDULE_OP_FORWARD),
                       busy_ns(shop, stage, slice, SCHEDULE_OP_BACKWARD));
}

/* --- the shops --- */

PlanFlowShop
plan_flow_shop(const Workload *workload, int32_t class_, const WorkloadOp **ops)
{
    const int32_t n = workload->n_slices;

    for (int32_t stage = 0; stage < workload->n_stages; stage++)
        for (int32_t slice = 0; slice < n; slice++)
            ops[stage * n + slice] = workload_op_of_class(workload, 0, stage, class_, slice);
    return (PlanFlowShop){workload, n, ops};
}

/* One shop on its way: when each rank is free, when the last one is done, and what of that it was
 * busy. */
typedef struct {
    ScheduleOpKind kind; /* FORWARD, or BACKWARD: from the last rank to rank 0, last slice first */
    int64_t *free_ns;    /* (borrowed) [rank] */
    int64_t end_ns, busy_ns;
} Passing;

/* All slices of one more micro-batch pass. */
static void
pass(Passing *passing, const PlanFlowShop *shop)
{
    const ScheduleOpKind kind = passing->kind;
    const bool forward = kind == SCHEDULE_OP_FORWARD, blocks = shop->workload->blocking_messages;
    const int32_t p = shop->workload->n_ranks, n = shop->n_slices;

    for (int32_t i = 0; i < n; i++) {
        const int32_t slice = forward ? i : n - 1 - i;
        int64_t before = 0; /* the end of the op that this one waits for */
        for (int32_t k = 0; k < p; k++) {
            const int32_t rank = forward ? k : p - 1 - k;
            const int64_t received = k == 0 ? 0 : receive_ns(shop, rank, slice, kind);
            int64_t *free_ns = &passing->free_ns[rank];
            const int64_t begin = blocks ? plan_sum_ns(MAX(*free_ns, before), received)
                                         : MAX(*free_ns, plan_sum_ns(before, received));
            before = plan_sum_ns(begin, op_ns(shop, rank, slice, kind));
            *free_ns = plan_sum_ns(before, message_of(shop, rank, slice, kind).send_ns);
        }
        passing->end_ns = before;
        passing->busy_ns = plan_sum_ns(passing->busy_ns, busy_ns(shop, p - 1, slice, kind));
    }
}

/* What the last rank idles. */
static int64_t
idle_ns(const Passing *passing)
{
    return MAX(0, passing->end_ns - passing->busy_ns);
}

PlanFlowTimes
plan_flow_times(const PlanFlowShop *shop)
{
    const int32_t p = shop->workload->n_ranks;
    g_autofree int64_t *free_ns = g_new0(int64_t, 2 * (size_t)p);
    Passing forward = {.kind = SCHEDULE_OP_FORWARD, .free_ns = free_ns};
    Passing backward = {.kind = SCHEDULE_OP_BACKWARD, .free_ns = free_ns + p};
    PlanFlowTimes times = {0};

    pass(&forward, shop);
    pass(&backward, shop);
    times.fill_ns = idle_ns(&forward);
    times.drain_ns = idle_ns(&backward);
    for (int32_t stage = p - 1; stage < shop->workload->n_stages; stage += p)
        for (int32_t slice = 0; slice < shop->n_slices; slice++)
            times.work_ns = plan_sum_ns(times.work_ns, plan_flow_busy_ns(shop, stage, slice));
    return times;
}

/* --- a plan --- */

static int32_t
class_at(const PlanFlow *flow, int64_t micro_batch)
{
    return flow->classes == NULL ? 0 : flow->classes[micro_batch];
}

/* What the last rank idles in both shops of all micro-batches. */
static int64_t
idle_of_all_ns(const PlanFlow *flow)
{
    const int32_t p = flow->shops[0].workload->n_ranks;
    g_autofree int64_t *free_ns = g_new0(int64_t, 2 * (size_t)p);
    Passing forward = {.kind = SCHEDULE_OP_FORWARD, .free_ns = free_ns};
    Passing backward = {.kind = SCHEDULE_OP_BACKWARD, .free_ns = free_ns + p};

    for (int64_t i = 0; i < flow->n_micro_batches; i++) {
        pass(&forward, &flow->shops[class_at(flow, i)]);
        pass(&backward, &flow->shops[class_at(flow, i)]);
    }
    return plan_sum_ns(idle_ns(&forward), idle_ns(&backward));
}

int64_t
plan_flow_bound_ns(const PlanFlow *flow)
{
    g_autofree PlanFlowTimes *times = g_new(PlanFlowTimes, (size_t)flow->n_classes);
    int64_t ns = 0;

    g_assert(flow->n_classes >= 1);
    for (int32_t c = 0; c < flow->n_classes; c++)
        times[c] = plan_flow_times(&flow->shops[c]);
    if (flow->classes == NULL)
        ns = plan_product_ns(flow->n_micro_batches, times[0].work_ns);
    for (int64_t i = 0; flow->classes != NULL && i < flow->n_micro_batches; i++)
        ns = plan_sum_ns(ns, times[flow->classes[i]].work_ns);
    /* Of one class the first and the last say as much, but where stages differ. */
    const int64_t idle = plan_sum_ns(times[class_at(flow, 0)].fill_ns,
                                     times[class_at(flow, flow->n_micro_batches - 1)].drain_ns);
    if (!flow->forwards_first || flow->classes == NULL)
        return plan_sum_ns(ns, idle);
    const int64_t of_all = idle_of_all_ns(flow);
    return plan_sum_ns(ns, MAX(idle, of_all));
}

int64_t
plan_bound_flow_ns(const Workload *workload, int64_t n_micro_batches, bool forwards_first)
{
    const int32_t n_classes = workload->n_classes;
    const int64_t n_ops = (int64_t)workload->n_stages * workload->n_slices;
    g_autofree const WorkloadOp **ops = g_new0(const WorkloadOp *, (size_t)(n_classes * n_ops));
    g_autofree PlanFlowShop *shops = g_new(PlanFlowShop, (size_t)n_classes);

    for (int32_t c = 0; c < n_classes; c++)
        shops[c] = plan_flow_shop(workload, c, &ops[c * n_ops]);
    return plan_flow_bound_ns(&(PlanFlow){
        .shops = shops,
        .n_classes = n_classes,
        .classes = workload->class_of_micro_batch,
        .n_micro_batches = n_micro_batches,
        .forwards_first = forwards_first,
    });
}
