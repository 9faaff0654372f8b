/*
 * Tests of simulator/events.h: what every trace keeps, checked from its events alone, and messages
 * by hand.
 */
#include "simulator/events.h"

#include "schedule/graph.h"
#include "simulator/simulate.h"
#include "tests/schedule/evaluate.h"
#include "tests/simulator/random.h"

static void
run(const Schedule *schedule, const Workload *workload, SimResult *result)
{
    const SimOptions options = {.want_trace = true};
    g_autoptr(GError) error = NULL;

    g_assert_true(sim_run(schedule, workload, &options, result, &error));
    g_assert_no_error(error);
    g_assert_true(trace_check(result->trace, &error));
    g_assert_no_error(error);
}

static const TraceEvent *
event_at(const Trace *trace, guint i)
{
    return &g_array_index(trace->events, TraceEvent, i);
}

static bool
same_op(ScheduleOp a, ScheduleOp b)
{
    return a.micro_batch == b.micro_batch && a.chunk == b.chunk && a.slice == b.slice &&
           a.kind == b.kind;
}

/* The event of kind @kind about @op, on @rank; fails unless there is exactly one. */
static const TraceEvent *
find(const Trace *trace, int32_t rank, TraceEventKind kind, ScheduleOp op)
{
    const TraceEvent *found = NULL;

    for (guint i = 0; i < trace->events->len; i++) {
        const TraceEvent *event = event_at(trace, i);
        if (event->rank != rank || event->kind != kind || !same_op(event->op, op))
            continue;
        g_assert_null(found);
        found = event;
    }
    g_assert_nonnull(found);
    return found;
}

/* --- invariants --- */

/*
 * The messages of op @i: both ends name each other, and the op that needs it starts after it
 * arrived.
 */
static void
check_message(const Schedule *schedule, const Workload *workload, const ScheduleGraph *graph,
              const Trace *trace, int64_t consumer)
{
    const int64_t producer = graph->producer[consumer];
    const int32_t from = schedule_graph_rank(schedule, producer);
    const int32_t to = schedule_graph_rank(schedule, consumer);
    const ScheduleOp sent = schedule->ops[producer], needs = schedule->ops[consumer];
    const TraceEvent *source = find(trace, from, sent.kind, sent);
    const TraceEvent *target = find(trace, to, needs.kind, needs);
    const int32_t chain = schedule->placement == SCHEDULE_PLACEMENT_BIDIR ? sent.chunk : 0;
    const WorkloadOp *op = workload_op(workload, chain, schedule_stage(schedule, from, sent.chunk),
                                       sent.micro_batch, sent.slice);
    const WorkloadMessage *message = workload_message(op, sent.kind == SCHEDULE_OP_FORWARD);
    const int64_t ns = message->ns, bytes = message->bytes;

    g_assert_cmpint(target->start_ns, >=, source->end_ns + ns);
    if (ns == 0 && bytes == 0)
        return;
    const TraceEvent *send = find(trace, from, TRACE_EVENT_SEND, sent);
    const TraceEvent *receive = find(trace, to, TRACE_EVENT_RECEIVE, sent);
    g_assert_cmpint(send->peer, ==, to);
    g_assert_cmpint(receive->peer, ==, from);
    g_assert_cmpint(send->bytes, ==, bytes);
    g_assert_cmpint(receive->bytes, ==, bytes);
    g_assert_cmpint(send->end_ns, ==,
                    source->end_ns + ns - (workload->blocking_messages ? message->buffered_ns : 0));
    if (workload->blocking_messages) {
        g_assert_cmpint(send->stream, ==, TRACE_STREAM_COMPUTE);
        g_assert_cmpint(receive->stream, ==, TRACE_STREAM_COMPUTE);
        g_assert_cmpint(send->start_ns, ==, source->end_ns);
        g_assert_cmpint(receive->end_ns, ==, target->start_ns);
        g_assert_cmpint(receive->end_ns - receive->start_ns, ==, ns);
    } else {
        g_assert_cmpint(send->stream, ==, TRACE_STREAM_SEND);
        g_assert_cmpint(receive->stream, ==, TRACE_STREAM_RECEIVE);
        g_assert_cmpint(send->end_ns, ==, source->end_ns + ns);
        g_assert_cmpint(send->start_ns, >=, source->end_ns);
        g_assert_cmpint(receive->start_ns, >=, source->end_ns);
        g_assert_cmpint(receive->end_ns, ==, source->end_ns + ns);
    }
}

/* Ops run in their rank's order, each once, and take their time. */
static void
check_order(const Schedule *schedule, const Workload *workload, const Trace *trace, int32_t rank)
{
    int64_t free_ns = 0;

    for (int64_t i = schedule->rank_begin[rank]; i < schedule->rank_begin[rank + 1]; i++) {
        const ScheduleOp op = schedule->ops[i];
        const int32_t chain = schedule->placement == SCHEDULE_PLACEMENT_BIDIR ? op.chunk : 0;
        const WorkloadOp *w = workload_op(workload, chain, schedule_stage(schedule, rank, op.chunk),
                                          op.micro_batch, op.slice);
        const TraceEvent *event = find(trace, rank, op.kind, op);
        g_assert_cmpint(event->stream, ==, TRACE_STREAM_COMPUTE);
        g_assert_cmpint(event->start_ns, >=, free_ns);
        g_assert_cmpint(event->end_ns - event->start_ns, ==,
                        w->time_ns[op.kind] + workload->op_overhead_ns);
        free_ns = event->end_ns;
    }
}

/*
 * busy + bubble = makespan, with busy from the events: the compute stream, and the dp stream where
 * the compute stream has nothing left but the optimizer.
 */
static void
check_busy(const Trace *trace, const Report *report, int32_t rank)
{
    const ReportRank *row = &g_array_index(report->ranks, ReportRank, rank);
    int64_t busy_ns = 0, free_ns = 0;

    for (guint i = 0; i < trace->events->len; i++) {
        const TraceEvent *event = event_at(trace, i);
        if (event->rank != rank)
            continue;
        if (event->stream == TRACE_STREAM_COMPUTE) {
            busy_ns += event->end_ns - event->start_ns;
            if (event->kind != TRACE_EVENT_OPTIMIZER)
                free_ns = event->end_ns;
        } else if (event->stream == TRACE_STREAM_DP && event->end_ns > free_ns) {
            busy_ns += event->end_ns - MAX(event->start_ns, free_ns);
        }
    }
    g_assert_cmpint(row->busy_ns, ==, busy_ns);
    g_assert_cmpint(row->busy_ns + row->bubble_ns, ==, report->iteration_ns);
}

static void
test_invariants(void)
{
    for (uint64_t seed = 0; seed < 10000; seed++) {
        uint64_t state = seed ^ 0xe7e;
        g_autoptr(Schedule) schedule = random_schedule(&state);
        g_autoptr(Workload) workload = random_workload(&state, schedule, seed % 3 ? 5 : 100000);
        g_autoptr(ScheduleGraph) graph = schedule_graph_new(schedule, NULL);
        g_auto(SimResult) result = {0};
        int64_t last_ns = 0;
        /* Ops that take exactly their time; test_contend.c has the others. */
        workload->overlap_gather = false;
        workload->interference_fraction = 0;
        run(schedule, workload, &result);
        for (guint i = 0; i < result.trace->events->len; i++)
            last_ns = MAX(last_ns, event_at(result.trace, i)->end_ns);
        g_assert_cmpint(result.trace->makespan_ns, ==, result.report->iteration_ns);
        g_assert_cmpint(result.trace->makespan_ns, ==, last_ns);
        for (int32_t r = 0; r < schedule->n_ranks; r++) {
            check_order(schedule, workload, result.trace, r);
            check_busy(result.trace, result.report, r);
        }
        for (int64_t i = 0; i < schedule_n_ops(schedule); i++)
            if (graph->producer[i] >= 0)
                check_message(schedule, workload, graph, result.trace, i);
    }
}

/* --- by hand --- */

/*
 * gpipe, 2 ranks, 2 micro-batches, f = 1, b = 2, messages of 5: forward messages travel from 1 to 6
 * and from 2 to 7 at once; the stream shows the second from 6 on.
 */
static void
test_streams_show_one_message_at_a_time(void)
{
    static const struct {
        TraceStream stream;
        int32_t rank;
        int64_t start, end;
    } expect[] = {
        {TRACE_STREAM_SEND, 0, 1, 6},      {TRACE_STREAM_SEND, 0, 6, 7},
        {TRACE_STREAM_RECEIVE, 0, 10, 15}, {TRACE_STREAM_RECEIVE, 0, 15, 17},
        {TRACE_STREAM_SEND, 1, 10, 15},    {TRACE_STREAM_SEND, 1, 15, 17},
        {TRACE_STREAM_RECEIVE, 1, 1, 6},   {TRACE_STREAM_RECEIVE, 1, 6, 7},
    };
    g_autoptr(Schedule) schedule =
        schedule_new("gpipe", &(ScheduleShape){2, 1, 2, 1, 0, NULL}, NULL);
    g_autoptr(Workload) workload = plain_workload(schedule, unit_times, 5);
    g_auto(SimResult) result = {0};
    size_t n = 0;

    run(schedule, workload, &result);
    for (guint i = 0; i < result.trace->events->len; i++) {
        const TraceEvent *event = event_at(result.trace, i);
        if (event->stream == TRACE_STREAM_COMPUTE)
            continue;
        g_assert_cmpuint(n, <, G_N_ELEMENTS(expect));
        g_assert_cmpint(event->stream, ==, expect[n].stream);
        g_assert_cmpint(event->rank, ==, expect[n].rank);
        g_assert_cmpint(event->start_ns, ==, expect[n].start);
        g_assert_cmpint(event->end_ns, ==, expect[n].end);
        n++;
    }
    g_assert_cmpuint(n, ==, G_N_ELEMENTS(expect));
    g_assert_cmpint(result.report->iteration_ns, ==, 19);
}

/* Events of no time at all still come out in the trace's total order. */
static void
test_no_time_at_all(void)
{
    static const int64_t times[SCHEDULE_OP_N] = {0, 0, 0, 0};
    g_autoptr(Schedule) schedule =
        schedule_new("1f1b", &(ScheduleShape){3, 1, 5, 1, 0, NULL}, NULL);
    g_autoptr(Workload) workload = plain_workload(schedule, times, 0);
    g_auto(SimResult) result = {0};

    for (int64_t i = 0; i < workload_n_ops(workload); i++)
        workload->ops[i].forward_message.bytes = 7;
    run(schedule, workload, &result);
    g_assert_cmpint(result.report->iteration_ns, ==, 0);
    g_assert_cmpfloat(result.report->bubble_fraction, ==, 0);
    g_assert_cmpuint(result.trace->events->len, ==, 3 * 5 * 2 + 2 * 5 * 2);
}

/* --- glimpses --- */

static bool
same_event(const TraceEvent *a, const TraceEvent *b)
{
    return a->rank == b->rank && a->stream == b->stream && a->kind == b->kind &&
           a->start_ns == b->start_ns && a->end_ns == b->end_ns && same_op(a->op, b->op);
}

/* Whether a picture must show @event: a stream that is shown, and under way at the middle of one
 * of @n equal parts of @makespan_ns. */
static bool
is_seen(const TraceEvent *event, int64_t makespan_ns, int32_t n)
{
    if (event->stream == TRACE_STREAM_DP || event->kind == TRACE_EVENT_OPTIMIZER)
        return true;
    if (event->stream != TRACE_STREAM_COMPUTE || event->start_ns == event->end_ns)
        return false;
    for (int32_t k = 0; k < n; k++) {
        const double at_ns = (k + 0.5) / n * (double)makespan_ns;
        if ((double)event->start_ns <= at_ns && at_ns <= (double)event->end_ns)
            return true;
    }
    return false;
}

static bool
has_event(const Trace *trace, const TraceEvent *event)
{
    for (guint i = 0; i < trace->events->len; i++)
        if (same_event(event_at(trace, i), event))
            return true;
    return false;
}

/* A glimpse has every event that is seen, and none that the trace has not. */
static void
test_glimpses_are_parts(void)
{
    int64_t n_all = 0, n_seen = 0;

    for (uint64_t seed = 0; seed < 500; seed++) {
        uint64_t state = seed ^ 0x911;
        g_autoptr(Schedule) schedule = random_schedule(&state);
        g_autoptr(Workload) workload = random_workload(&state, schedule, seed % 2 ? 6 : 1000000);
        g_auto(SimResult) all = {0}, part = {0};
        const bool is_shown[4] = {true, seed % 3 > 0, seed % 5 > 0, true};
        const SimGlimpse glimpse = {(int32_t)random_in(&state, 1, 12), is_shown};
        const SimOptions options = {.want_trace = true, .glimpse = &glimpse};

        run(schedule, workload, &all);
        g_assert_true(sim_run(schedule, workload, &options, &part, NULL));
        g_assert_cmpint(part.trace->makespan_ns, ==, all.trace->makespan_ns);
        g_assert_cmpuint(part.trace->memory->len, ==, 0);
        for (guint i = 0; i < all.trace->events->len; i++) {
            const TraceEvent *event = event_at(all.trace, i);
            if (is_shown[event->rank] && is_seen(event, all.trace->makespan_ns, glimpse.n_instants))
                g_assert_true(has_event(part.trace, event));
        }
        for (guint i = 0; i < part.trace->events->len; i++) {
            const TraceEvent *event = event_at(part.trace, i);
            g_assert_true(is_shown[event->rank]);
            g_assert_true(has_event(all.trace, event));
        }
        n_all += all.trace->events->len;
        n_seen += part.trace->events->len;
    }
    g_assert_cmpint(2 * n_seen, <, n_all);
}

/* Two chunks on one rank hand over without a message: the trace has what the rank computes, and no more. */
static void
test_no_message_within_a_rank(void)
{
    g_autoptr(Schedule) schedule = new_schedule("zb-v", 1, 2, 3, 1);
    g_autoptr(Workload) workload = plain_workload(schedule, unit_times, 100);
    g_auto(SimResult) result = {0};

    run(schedule, workload, &result);
    g_assert_cmpint(result.report->iteration_ns, ==, 2 * 3 * 3);
    g_assert_cmpint(result.trace->events->len, ==, schedule_n_ops(schedule));
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/simulator/events/invariants", test_invariants);
    g_test_add_func("/simulator/events/streams-show-one-message-at-a-time",
                    test_streams_show_one_message_at_a_time);
    g_test_add_func("/simulator/events/no-time-at-all", test_no_time_at_all);
    g_test_add_func("/simulator/events/no-message-within-a-rank", test_no_message_within_a_rank);
    g_test_add_func("/simulator/events/glimpses-are-parts", test_glimpses_are_parts);
    return g_test_run();
}
