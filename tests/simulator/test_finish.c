/* Tests of simulator/finish.h: reduction behind the last backward, optimizer, gathering. */
#include <math.h>

#include "simulator/simulate.h"

#include "simulator/finish.h"
#include "tests/schedule/evaluate.h"
#include "tests/simulator/random.h"

static const int64_t times[SCHEDULE_OP_N] = {10, 20, 12, 8};

typedef struct {
    const char *ranks[1];
    int64_t n_chunks;
    bool overlap, ahead;
    int32_t n_buckets;
    double interference;
    int64_t reduce_ns, optimizer_ns, gather_ns;
    /* expected */
    int64_t iteration_ns, blocked_ns, longer_ns;
    int n_pieces;
    int64_t pieces[4][2]; /* of the reduction, then of the gathering */
} Case;

static const Case cases[] = {
    /* B1 runs from 40 to 60, its gradients are there at its end. */
    {{"F0.0 F1.0 B0.0 B1.0"}, 1, true, false, 1, 0, 15, 7, 3, 85, 18, 0, 2, {{60, 75}, {82, 85}}},
    {{"F0.0 F1.0 B0.0 B1.0"}, 1, false, false, 1, 0, 15, 7, 3, 85, 18, 0, 2, {{60, 75}, {82, 85}}},
    {{"F0.0 F1.0 B0.0 B1.0"}, 1, false, false, 1, 0, 0, 7, 3, 70, 3, 0, 1, {{67, 70}}},
    {{"F0.0 F1.0 B0.0 B1.0"}, 1, true, false, 1, 0, 0, 0, 0, 60, 0, 0, 0, {{0, 0}}},
    /* In two buckets the first is there at 50: the second waits for the op, */
    {{"F0.0 F1.0 B0.0 B1.0"}, 1, true, false, 2, 0, 14, 7, 0, 74, 7, 0, 2, {{50, 57}, {60, 67}}},
    /* or for the first. */
    {{"F0.0 F1.0 B0.0 B1.0"}, 1, true, false, 2, 0, 50, 0, 0, 100, 40, 0, 2, {{50, 75}, {75, 100}}},
    /* The first slows the second half by a quarter of 8 ns: 10 ns take 2 more. */
    {{"F0.0 F1.0 B0.0 B1.0"},
     1,
     true,
     false,
     2,
     0.25,
     20,
     0,
     0,
     72,
     10,
     2,
     2,
     {{50, 60}, {62, 72}}},
    /* All of it: 10 ns take 12.5, rounded to 13. */
    {{"F0.0 F1.0 B0.0 B1.0"},
     1,
     true,
     false,
     2,
     0.25,
     60,
     0,
     0,
     110,
     47,
     3,
     2,
     {{50, 80}, {80, 110}}},
    /* The gradients are final with the last W (52 to 60 here). */
    {{"F0.0 F1.0 I0.0 I1.0 W1.0 W0.0"},
     1,
     true,
     false,
     2,
     0,
     6,
     0,
     0,
     63,
     3,
     0,
     2,
     {{56, 59}, {60, 63}}},
    /* Two chunks: B of chunk 1 from 20 to 40, of chunk 0 from 40 to 60; half of the reduction each,
       the odd ns in the first. */
    {{"F0.0 F0.1 B0.1 B0.0"}, 2, true, false, 1, 0, 11, 0, 0, 65, 5, 0, 2, {{40, 46}, {60, 65}}},
    {{"F0.0 F0.1 B0.1 B0.0"}, 2, true, false, 1, 0, 50, 0, 0, 90, 30, 0, 2, {{40, 65}, {65, 90}}},
    {{"F0.0 F0.1 B0.1 B0.0"}, 2, false, false, 1, 0, 50, 0, 0, 110, 50, 0, 1, {{60, 110}}},
    /* Parameters ahead: the first F waits for its first bucket till 4, its second half (5 ns) for
       the second till 9: no longer; the whole moves by 4. */
    {{"F0.0 F1.0 B0.0 B1.0"}, 1, false, true, 2, 0, 0, 0, 8, 64, 0, 4, 2, {{0, 4}, {4, 8}}},
    /* ... of 20 each: 20 to 25, 40 to 45. */
    {{"F0.0 F1.0 B0.0 B1.0"}, 1, false, true, 2, 0, 0, 0, 40, 95, 0, 35, 2, {{0, 20}, {20, 40}}},
    /* Two chunks, F of the first from 10, of the second from 20. */
    {{"F0.0 F0.1 B0.1 B0.0"}, 2, false, true, 1, 0, 0, 0, 20, 70, 0, 10, 2, {{0, 10}, {10, 20}}},
    /* ... the second's parameters slow the first by a half of 6 2/3: F0 from 10 to 20 does 6 2/3,
       then 3 1/3: 23. */
    {{"F0.0 F0.1 B0.1 B0.0"}, 2, false, true, 1, 0.5, 0, 0, 20, 73, 0, 13, 2, {{0, 10}, {10, 20}}},
};

static void
check_pieces(const Case *c, const Trace *trace)
{
    int n = 0;

    for (guint i = 0; i < trace->events->len; i++) {
        const TraceEvent *event = &g_array_index(trace->events, TraceEvent, i);
        if (event->kind != TRACE_EVENT_DP_REDUCE && event->kind != TRACE_EVENT_DP_GATHER)
            continue;
        g_assert_cmpint(event->stream, ==, TRACE_STREAM_DP);
        g_assert_cmpint(n, <, c->n_pieces);
        g_assert_cmpint(event->start_ns, ==, c->pieces[n][0]);
        g_assert_cmpint(event->end_ns, ==, c->pieces[n][1]);
        /* 101 bytes: the odd one in the first piece too. */
        if (event->kind == TRACE_EVENT_DP_REDUCE && c->gather_ns == 0)
            g_assert_cmpint(event->bytes, ==, c->n_pieces == 1 ? 101 : n == 0 ? 51 : 50);
        n++;
    }
    g_assert_cmpint(n, ==, c->n_pieces);
}

/* Both by the sweep and event by event. */
static void
check_case(const Case *c, SimBy by)
{
    const ScheduleShape shape = {1, c->n_chunks, c->n_chunks == 2 ? 1 : 2, 1, 0, NULL};
    const SimOptions options = {.by = by, .want_trace = true};
    g_autoptr(GError) error = NULL;
    g_autoptr(Schedule) schedule = schedule_from_text(&shape, SCHEDULE_PLACEMENT_LOOP, c->ranks);
    g_autoptr(Workload) workload = plain_workload(schedule, times, 0);
    g_auto(SimResult) result = {0};

    workload->overlap_dp = c->overlap;
    workload->overlap_gather = c->ahead;
    workload->interference_fraction = c->interference;
    workload->ranks[0].n_buckets = c->n_buckets;
    workload->ranks[0].dp_reduce_ns = c->reduce_ns;
    workload->ranks[0].dp_reduce_bytes = c->reduce_ns > 0 ? 101 : 0;
    workload->ranks[0].optimizer_ns = c->optimizer_ns;
    workload->ranks[0].dp_gather_ns = c->gather_ns;
    g_assert_true(sim_run(schedule, workload, &options, &result, &error));
    g_assert_no_error(error);
    const ReportRank *row = &g_array_index(result.report->ranks, ReportRank, 0);
    g_assert_cmpint(result.report->iteration_ns, ==, c->iteration_ns);
    g_assert_cmpint(row->busy_ns, ==, 60 + c->longer_ns + c->blocked_ns + c->optimizer_ns);
    g_assert_cmpint(row->bubble_ns, ==, 0);
    g_assert_cmpint(row->communication_ns, ==, c->reduce_ns + c->gather_ns);
    if (c->interference == 0)
        g_assert_cmpfloat_with_epsilon(result.report->breakdown.dp_s,
                                       1e-9 * (double)(c->blocked_ns + c->longer_ns), 1e-18);
    g_assert_true(trace_check(result.trace, &error));
    check_pieces(c, result.trace);
}

static void
test_communication_beside_ops(void)
{
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        check_case(&cases[i], SIM_BY_SWEEP);
        check_case(&cases[i], SIM_BY_EVENTS);
    }
}

/* Ranks end at different times; the iteration waits for the last, and that wait is bubble. */
static void
test_ranks_finish_apart(void)
{
    g_autoptr(Schedule) schedule =
        schedule_new("gpipe", &(ScheduleShape){2, 1, 2, 1, 0, NULL}, NULL);
    g_autoptr(Workload) workload = plain_workload(schedule, times, 0);
    g_auto(SimResult) result = {0};

    /* rank 1: F 10-20-30, B 30-50-70, free at 70; rank 0: B 50-70-90. */
    workload->ranks[1].dp_reduce_ns = 100;
    g_assert_true(sim_run(schedule, workload, NULL, &result, NULL));
    g_assert_cmpint(result.report->iteration_ns, ==, 170);
    g_assert_cmpint(result.report->span_ns, ==, 160); /* rank 1 begins at 10 */
    g_assert_cmpint(g_array_index(result.report->ranks, ReportRank, 0).bubble_ns, ==, 170 - 60);
    g_assert_cmpint(g_array_index(result.report->ranks, ReportRank, 1).bubble_ns, ==, 10);
}

/* Stage 0 measured, stage 1 between measurements: 2 * (10 + 20) ns each of 120. */
static void
test_says_where_op_times_come_from(void)
{
    g_autoptr(Schedule) schedule =
        schedule_new("gpipe", &(ScheduleShape){2, 1, 2, 1, 0, NULL}, NULL);
    g_autoptr(Workload) workload = plain_workload(schedule, times, 0);
    g_auto(SimResult) result = {0};
    g_auto(SimResult) plain = {0};

    g_assert_true(sim_run(schedule, workload, NULL, &plain, NULL));
    g_assert_true(isnan(plain.report->sources.modelled_fraction)); /* times were given */

    workload->n_devices = 2;
    workload->ops[0].source = PROFILE_SOURCE_MEASURED;
    workload->ops[1].source = PROFILE_SOURCE_INTERPOLATED;
    g_assert_true(sim_run(schedule, workload, NULL, &result, NULL));
    g_assert_cmpfloat(result.report->sources.measured_fraction, ==, 0.5);
    g_assert_cmpfloat(result.report->sources.interpolated_fraction, ==, 0.5);
    g_assert_cmpfloat(result.report->sources.modelled_fraction, ==, 0);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/simulator/finish/communication-beside-ops", test_communication_beside_ops);
    g_test_add_func("/simulator/finish/ranks-finish-apart", test_ranks_finish_apart);
    g_test_add_func("/simulator/finish/says-where-op-times-come-from",
                    test_says_where_op_times_come_from);
    return g_test_run();
}
