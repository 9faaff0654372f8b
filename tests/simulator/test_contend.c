/*
 * Tests of simulator/contend.h and network.h where links are shared: times by hand, and what is
 * refused.  Random schedules: test_contend_random.c.
 */
#include "simulator/contend.h"

#include <math.h>

#include "tests/schedule/evaluate.h"
#include "tests/simulator/random.h"
#include "tests/simulator/run.h"

/* @n_ranks ranks with one link each, of 1 byte per ns, that all traffic crosses. */
static void
give_ports(Workload *workload, int32_t n_ranks)
{
    WorkloadLinks *links = g_new0(WorkloadLinks, 1);

    links->n_levels = 1;
    links->n_links = n_ranks;
    links->senders_fraction = 1;
    links->bytes_per_s = g_new(double, (size_t)n_ranks);
    links->begin = g_new(int64_t, (size_t)n_ranks + 1);
    links->crossings = g_new0(WorkloadCrossing, (size_t)n_ranks);
    for (int32_t r = 0; r <= n_ranks; r++) {
        links->begin[r] = r;
        if (r == n_ranks)
            break;
        links->bytes_per_s[r] = 1e9;
        links->crossings[r].link = r;
    }
    for (int64_t i = 0; i < workload_n_ops(workload); i++) {
        WorkloadOp *op = &workload->ops[i];
        op->forward_message.sent_bytes = op->forward_message.ns;
        op->backward_message.sent_bytes = op->backward_message.ns;
    }
    workload->links = links;
}

typedef struct {
    TraceEventKind kind;
    int32_t rank;
    int n;
    int64_t starts[3], ends[3];
} Expect;

static void
check_events(const Trace *trace, const Expect *expect)
{
    int n = 0;

    for (guint i = 0; i < trace->events->len; i++) {
        const TraceEvent *event = event_at(trace, i);
        if (event->rank != expect->rank || event->kind != expect->kind)
            continue;
        g_assert_cmpint(n, <, expect->n);
        g_assert_cmpint(event->start_ns, ==, expect->starts[n]);
        g_assert_cmpint(event->end_ns, ==, expect->ends[n++]);
    }
    g_assert_cmpint(n, ==, expect->n);
}

static void
run_by_hand(const Schedule *schedule, const Workload *workload, const Expect *expect, size_t n)
{
    g_auto(SimResult) result = {0};

    run(schedule, workload, SIM_BY_EITHER, &result);
    for (size_t i = 0; i < n; i++)
        check_events(result.trace, &expect[i]);
}

/* GPipe, f = 2, b = 4, messages of 6: one after the other, at 2, 8, 14; at 26, 32, 38. */
static void
test_messages_queue(void)
{
    static const int64_t times[SCHEDULE_OP_N] = {2, 4, 0, 0};
    static const Expect expect[] = {
        {TRACE_EVENT_SEND, 0, 3, {2, 8, 14}, {8, 14, 20}},
        {TRACE_EVENT_FORWARD, 1, 3, {8, 14, 20}, {10, 16, 22}},
        {TRACE_EVENT_SEND, 1, 3, {26, 32, 38}, {32, 38, 44}},
        {TRACE_EVENT_BACKWARD, 0, 3, {32, 38, 44}, {36, 42, 48}},
    };
    g_autoptr(Schedule) schedule = new_schedule("gpipe", 2, 1, 3, 1);
    g_autoptr(Workload) workload = plain_workload(schedule, times, 6);

    give_ports(workload, 2);
    run_by_hand(schedule, workload, expect, G_N_ELEMENTS(expect));
}

/*
 * The same, in which messages end at 36 if they do not meet, and at 48 as they do.  Every unit
 * holds a byte: rank 0 holds 3.
 */
static void
test_links_are_followed_where_it_matters(void)
{
    static const int64_t times[SCHEDULE_OP_N] = {2, 4, 0, 0};
    static const struct {
        int64_t limit_ns, limit_bytes;
        bool only_if_fits;
        int64_t end_ns;
    } cases[] = {
        {0, 0, false, 48}, {0, 0, true, 48},  {0, 2, false, 48},  {0, 2, true, 36},
        {0, 3, true, 48},  {36, 0, true, 48}, {35, 0, false, 36}, {36, 2, true, 36},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const SimOptions options = {.limit_ns = cases[i].limit_ns,
                                    .only_if_fits = cases[i].only_if_fits,
                                    .want_memory = true};
        g_autoptr(Schedule) schedule = new_schedule("gpipe", 2, 1, 3, 1);
        g_autoptr(Workload) workload = plain_workload(schedule, times, 6);
        g_autoptr(GError) error = NULL;
        g_auto(SimResult) result = {0};
        give_ports(workload, 2);
        for (int64_t k = 0; k < workload_n_ops(workload); k++)
            workload->ops[k].activation_bytes = 1;
        for (int32_t r = 0; r < 2; r++)
            workload->ranks[r].memory_limit_bytes = cases[i].limit_bytes;
        g_assert_true(sim_run(schedule, workload, &options, &result, &error));
        g_assert_cmpint(result.report->iteration_ns, ==, cases[i].end_ns);
        g_assert_cmpint(result.report->peak_memory_bytes, ==, 3);
        g_assert_cmpint(result.report->fits, ==, cases[i].limit_bytes != 2);
    }
}

/*
 * Rank 1 ends its B at 14; then its message back (6) and its reduction (6) share its link: both end
 * at 26.  With the reduction in two buckets behind B (10 to 14: at 12 and 14), the first (3) is
 * alone till 14, then shares for its last 1 till 16; the second (3) and the message (5 left) share
 * till 22; the last 2 of the message are alone: 24.
 */
static void
test_messages_and_reduction_share(void)
{
    static const int64_t times[SCHEDULE_OP_N] = {2, 4, 0, 0};
    static const Expect after[] = {
        {TRACE_EVENT_SEND, 1, 1, {14}, {26}},
        {TRACE_EVENT_DP_REDUCE, 1, 1, {14}, {26}},
        {TRACE_EVENT_BACKWARD, 0, 1, {26}, {30}},
    };
    static const Expect behind[] = {
        {TRACE_EVENT_SEND, 1, 1, {14}, {24}},
        {TRACE_EVENT_DP_REDUCE, 1, 2, {12, 16}, {16, 22}},
        {TRACE_EVENT_BACKWARD, 0, 1, {24}, {28}},
    };
    g_autoptr(Schedule) schedule = new_schedule("gpipe", 2, 1, 1, 1);
    g_autoptr(Workload) workload = plain_workload(schedule, times, 6);

    give_ports(workload, 2);
    workload->ranks[1].dp_reduce_ns = 6;
    workload->ranks[1].dp_reduce_traffic_bytes[0] = 6;
    run_by_hand(schedule, workload, after, G_N_ELEMENTS(after));
    workload->overlap_dp = true;
    workload->ranks[1].n_buckets = 2;
    run_by_hand(schedule, workload, behind, G_N_ELEMENTS(behind));
}

/*
 * F of rank 0 takes 12, half of it in collectives at the link's full rate: beside a message both
 * get on at 2/3 of their speeds (2/3 + 2/3 * 1/2 = 1).  F1 begins at 12 with the first message,
 * which ends at 21; F1 has done 6 by then and ends at 27; its message is alone.
 */
static void
test_ops_and_messages_share(void)
{
    static const int64_t times[SCHEDULE_OP_N] = {2, 4, 0, 0};
    static const Expect expect[] = {
        {TRACE_EVENT_FORWARD, 0, 2, {0, 12}, {12, 27}},
        {TRACE_EVENT_SEND, 0, 2, {12, 27}, {21, 33}},
        {TRACE_EVENT_FORWARD, 1, 2, {21, 33}, {23, 35}},
    };
    g_autoptr(Schedule) schedule = new_schedule("gpipe", 2, 1, 2, 1);
    g_autoptr(Workload) workload = plain_workload(schedule, times, 6);
    g_auto(SimResult) result = {0};

    give_ports(workload, 2);
    workload->ops[0].time_ns[SCHEDULE_OP_FORWARD] = 12;
    workload->ops[0].part_ns[SCHEDULE_OP_FORWARD][PROFILE_PART_TP] = 6;
    workload->ops[0].part_ns[SCHEDULE_OP_FORWARD][PROFILE_PART_COMPUTE] = 6;
    workload->ops[0].traffic_bytes[SCHEDULE_OP_FORWARD][0] = 6;
    run_by_hand(schedule, workload, expect, G_N_ELEMENTS(expect));
    /* 3 ns more of tensor parallelism, of 12 ns in all, over 2 ranks. */
    run(schedule, workload, SIM_BY_EITHER, &result);
    g_assert_cmpfloat_with_epsilon(result.report->breakdown.tp_s, (12 + 3) * 1e-9 / 2, 1e-15);
    g_assert_cmpint(g_array_index(result.report->ranks, ReportRank, 0).busy_ns, ==, 24 + 3 + 8);
}

/*
 * Rank 0: f = 2, messages of 5: at 2, 7, 12.  Rank 1: F of 6 computes, B of 9 is all collectives at
 * the link's full rate; F0 from 7 to 13; then F1 and B0 as a pair: max(6, 9) = 9, of which F1 has
 * 6 / 15, in whole ns 3, B0 6.  It waits for its collectives for 9 - 6 = 3, a third of them. Beside
 * the message of F2, which has 4 left, both have half of the link, so the pair runs at 1 - 1/3 / 2
 * = 5/6: F1 until 13 + 3.6; the message until 13 + 8 = 21; B0 has done 4 * 5/6 then and needs 2.67
 * more.
 */
static void
test_pairs_and_messages_share(void)
{
    static const int64_t times[SCHEDULE_OP_N] = {2, 9, 0, 0};
    static const Expect expect[] = {
        {TRACE_EVENT_SEND, 0, 3, {2, 7, 12}, {7, 12, 21}},
        {TRACE_EVENT_FORWARD, 1, 3, {7, 13, 24}, {13, 17, 30}},
        {TRACE_EVENT_BACKWARD, 1, 3, {17, 30, 39}, {24, 39, 48}},
    };
    g_autoptr(Schedule) schedule = new_schedule("gpipe", 2, 1, 3, 1);
    g_autoptr(Workload) workload = plain_workload(schedule, times, 5);
    WorkloadOp *op = &workload->ops[1];
    const ScheduleOp f2 = schedule->ops[8];
    const int64_t pair = 7;

    /* Rank 1: F0 F1 B0 F2 B1 B2. */
    g_assert_cmpint(schedule->ops[9].micro_batch, ==, 0);
    schedule->ops[8] = schedule->ops[9];
    schedule->ops[9] = f2;
    schedule->overlap_pairs = g_array_new(FALSE, FALSE, sizeof(int64_t));
    g_array_append_val(schedule->overlap_pairs, pair);
    op->backward_message.ns = 0;
    give_ports(workload, 2);
    op->time_ns[SCHEDULE_OP_FORWARD] = op->part_ns[SCHEDULE_OP_FORWARD][PROFILE_PART_COMPUTE] = 6;
    op->part_ns[SCHEDULE_OP_BACKWARD][PROFILE_PART_COMPUTE] = 0;
    op->part_ns[SCHEDULE_OP_BACKWARD][PROFILE_PART_TP] = 9;
    op->traffic_bytes[SCHEDULE_OP_BACKWARD][0] = 9;
    run_by_hand(schedule, workload, expect, G_N_ELEMENTS(expect));
}

/*
 * A blocking message is on its receiver's stream, and shares links too: rank 1's reduction (12)
 * begins at 14; rank 0 has nothing else to do and receives at once: both at half speed, the message
 * (6) until 26.
 */
static void
test_blocking_messages_share(void)
{
    static const int64_t times[SCHEDULE_OP_N] = {2, 4, 0, 0};
    static const Expect expect[] = {
        {TRACE_EVENT_RECEIVE, 0, 1, {14}, {26}},
        {TRACE_EVENT_DP_REDUCE, 1, 1, {14}, {32}},
        {TRACE_EVENT_BACKWARD, 0, 1, {26}, {30}},
    };
    g_autoptr(Schedule) schedule = new_schedule("gpipe", 2, 1, 1, 1);
    g_autoptr(Workload) workload = plain_workload(schedule, times, 6);
    g_auto(SimResult) result = {0};

    give_ports(workload, 2);
    workload->blocking_messages = true;
    for (int i = 0; i < 2; i++)
        workload->ops[i].forward_message.buffered_ns =
            workload->ops[i].backward_message.buffered_ns = 6;
    workload->ranks[1].dp_reduce_ns = 12;
    workload->ranks[1].dp_reduce_traffic_bytes[0] = 12;
    run_by_hand(schedule, workload, expect, G_N_ELEMENTS(expect));
    /* F, B, and the receive: 6 longer than alone, all of it blocked in messages. */
    run(schedule, workload, SIM_BY_EITHER, &result);
    g_assert_cmpint(g_array_index(result.report->ranks, ReportRank, 0).busy_ns, ==, 2 + 4 + 12);
    g_assert_cmpfloat_with_epsilon(result.report->breakdown.pp_s, (12 + 6) * 1e-9 / 2, 1e-15);
}

/*
 * Messages halve the speed of computing at both ends.  f = 10, messages of 4.  F1 of rank 0 begins
 * at 10, beside its message: 2 done by 14, the rest by 22.  F0 of rank 1 begins at 14; from 22 on
 * the next message comes in: 8 done, the last 2 take until 26.
 */
static void
test_messages_slow_computing(void)
{
    static const int64_t times[SCHEDULE_OP_N] = {10, 10, 0, 0};
    static const Expect expect[] = {
        {TRACE_EVENT_FORWARD, 0, 2, {0, 10}, {10, 22}},
        {TRACE_EVENT_SEND, 0, 2, {10, 22}, {14, 26}},
        {TRACE_EVENT_FORWARD, 1, 2, {14, 26}, {26, 36}},
    };
    g_autoptr(Schedule) schedule = new_schedule("gpipe", 2, 1, 2, 1);
    g_autoptr(Workload) workload = plain_workload(schedule, times, 4);

    give_ports(workload, 2);
    workload->message_interference_fraction = 1;
    run_by_hand(schedule, workload, expect, G_N_ELEMENTS(expect));
}

static void
test_refuses(void)
{
    static const struct {
        int32_t link, level, n_levels;
        double bytes_per_s;
        int64_t message_ns, sent_bytes;
        double interference;
        int code;
    } cases[] = {
        {0, 0, 1, 0, 1, 1, 0, SCHEDULE_ERROR_SHAPE},
        {0, 0, 1, NAN, 1, 1, 0, SCHEDULE_ERROR_SHAPE},
        {2, 0, 1, 1e9, 1, 1, 0, SCHEDULE_ERROR_SHAPE},
        {-1, 0, 1, 1e9, 1, 1, 0, SCHEDULE_ERROR_SHAPE},
        {0, 1, 1, 1e9, 1, 1, 0, SCHEDULE_ERROR_SHAPE},
        {0, -1, 1, 1e9, 1, 1, 0, SCHEDULE_ERROR_SHAPE},
        {0, 0, 9, 1e9, 1, 1, 0, SCHEDULE_ERROR_SHAPE},
        {0, 0, 1, 1e9, 1, -1, 0, SCHEDULE_ERROR_SHAPE},
        {0, 0, 1, 1e9, INT64_C(1) << 52, 1, 0, SCHEDULE_ERROR_LIMIT},
        {0, 0, 1, 1e9, 1, 1, 1.5, SCHEDULE_ERROR_LIMIT},
        {0, 0, 1, 1e9, 1, 1, NAN, SCHEDULE_ERROR_LIMIT},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const SimOptions options = {.by = SIM_BY_EVENTS};
        g_autoptr(Schedule) schedule = new_schedule("gpipe", 2, 1, 3, 1);
        g_autoptr(Workload) workload = plain_workload(schedule, unit_times, cases[i].message_ns);
        g_autoptr(GError) error = NULL;
        g_auto(SimResult) result = {0};
        give_ports(workload, 2);
        workload->links->crossings[0].link = cases[i].link;
        workload->links->n_levels = cases[i].n_levels;
        workload->links->bytes_per_s[0] = cases[i].bytes_per_s;
        workload->ops[0].forward_message.level = cases[i].level;
        workload->ops[0].forward_message.sent_bytes = cases[i].sent_bytes;
        workload->interference_fraction = cases[i].interference;
        g_assert_false(sim_run(schedule, workload, &options, &result, &error));
        g_assert_error(error, SCHEDULE_ERROR, cases[i].code);
    }
}

/* Every crossing of every rank and level is looked at: two ranks on two levels, a crossing each. */
static void
test_refuses_each_crossing(void)
{
    for (int bad = -1; bad < 4; bad++) {
        const SimOptions options = {.by = SIM_BY_EVENTS};
        g_autoptr(Schedule) schedule = new_schedule("gpipe", 2, 1, 3, 1);
        g_autoptr(Workload) workload = plain_workload(schedule, unit_times, 1);
        g_autoptr(GError) error = NULL;
        g_auto(SimResult) result = {0};
        give_ports(workload, 4);
        workload->links->n_levels = 2;
        if (bad >= 0)
            workload->links->crossings[bad].link = 4;
        g_assert_true(sim_run(schedule, workload, &options, &result, &error) == (bad < 0));
        if (bad >= 0)
            g_assert_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_SHAPE);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(path, function) g_test_add_func("/simulator/contend/" path, function)
    ADD("messages-queue", test_messages_queue);
    ADD("links-are-followed-where-it-matters", test_links_are_followed_where_it_matters);
    ADD("messages-and-reduction-share", test_messages_and_reduction_share);
    ADD("ops-and-messages-share", test_ops_and_messages_share);
    ADD("pairs-and-messages-share", test_pairs_and_messages_share);
    ADD("blocking-messages-share", test_blocking_messages_share);
    ADD("messages-slow-computing", test_messages_slow_computing);
    ADD("refuses", test_refuses);
    ADD("refuses-each-crossing", test_refuses_each_crossing);
    return g_test_run();
}
