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
    bool overlap;
    int64_t reduce_ns, optimizer_ns, gather_ns;
    /* expected */
    int64_t iteration_ns, blocked_ns;
    int n_pieces;
    int64_t pieces[2][2];
} Case;

static const Case cases[] = {
    /* B1 runs from 40 to 60.  A reduction that is shorter ends with it; one as long begins with it;
       a longer one runs on. */
    {{"F0.0 F1.0 B0.0 B1.0"}, 1, true, 15, 7, 3, 70, 3, 1, {{45, 60}}},
    {{"F0.0 F1.0 B0.0 B1.0"}, 1, true, 20, 7, 3, 70, 3, 1, {{40, 60}}},
    {{"F0.0 F1.0 B0.0 B1.0"}, 1, true, 50, 7, 3, 100, 33, 1, {{40, 90}}},
    {{"F0.0 F1.0 B0.0 B1.0"}, 1, false, 15, 7, 3, 85, 18, 1, {{60, 75}}},
    {{"F0.0 F1.0 B0.0 B1.0"}, 1, false, 0, 7, 3, 70, 3, 0, {{0, 0}}},
    {{"F0.0 F1.0 B0.0 B1.0"}, 1, true, 0, 0, 0, 60, 0, 0, {{0, 0}}},
    /* The gradients are final with the last W (8 ns, 52 to 60 here). */
    {{"F0.0 F1.0 I0.0 I1.0 W1.0 W0.0"}, 1, true, 5, 0, 0, 60, 0, 1, {{55, 60}}},
    {{"F0.0 F1.0 I0.0 I1.0 W1.0 W0.0"}, 1, true, 9, 0, 0, 61, 1, 1, {{52, 61}}},
    /* Two chunks: B of chunk 1 from 20 to 40, of chunk 0 from 40 to 60; half of the reduction each,
       the odd ns in the first. */
    {{"F0.0 F0.1 B0.1 B0.0"}, 2, true, 11, 0, 0, 60, 0, 2, {{34, 40}, {55, 60}}},
    {{"F0.0 F0.1 B0.1 B0.0"}, 2, true, 50, 0, 0, 70, 10, 2, {{20, 45}, {45, 70}}},
    {{"F0.0 F0.1 B0.1 B0.0"}, 2, true, 80, 0, 0, 100, 40, 2, {{20, 60}, {60, 100}}},
    {{"F0.0 F0.1 B0.1 B0.0"}, 2, false, 50, 0, 0, 110, 50, 1, {{60, 110}}},
};

static void
check_pieces(const Case *c, const Trace *trace)
{
    int n = 0;

    for (guint i = 0; i < trace->events->len; i++) {
        const TraceEvent *event = &g_array_index(trace->events, TraceEvent, i);
        if (event->kind != TRACE_EVENT_DP_REDUCE)
            continue;
        g_assert_cmpint(event->stream, ==, TRACE_STREAM_DP);
        g_assert_cmpint(n, <, c->n_pieces);
        g_assert_cmpint(event->start_ns, ==, c->pieces[n][0]);
        g_assert_cmpint(event->end_ns, ==, c->pieces[n][1]);
        /* 101 bytes: the odd one in the first piece too. */
        g_assert_cmpint(event->bytes, ==, c->n_pieces == 1 ? 101 : n == 0 ? 51 : 50);
        n++;
    }
    g_assert_cmpint(n, ==, c->n_pieces);
}

static void
test_last_backward_hides_reduction(void)
{
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const Case *c = &cases[i];
        const ScheduleShape shape = {1, c->n_chunks, c->n_chunks == 2 ? 1 : 2, 1, 0, NULL};
        const SimOptions options = {.want_trace = true};
        g_autoptr(GError) error = NULL;
        g_autoptr(Schedule) schedule =
            schedule_from_text(&shape, SCHEDULE_PLACEMENT_LOOP, c->ranks);
        g_autoptr(Workload) workload = plain_workload(schedule, times, 0);
        g_auto(SimResult) result = {0};
        workload->overlap_dp = c->overlap;
        workload->ranks[0].dp_reduce_ns = c->reduce_ns;
        workload->ranks[0].dp_reduce_bytes = c->reduce_ns > 0 ? 101 : 0;
        workload->ranks[0].optimizer_ns = c->optimizer_ns;
        workload->ranks[0].dp_gather_ns = c->gather_ns;
        g_assert_true(sim_run(schedule, workload, &options, &result, &error));
        g_assert_no_error(error);
        const ReportRank *row = &g_array_index(result.report->ranks, ReportRank, 0);
        g_assert_cmpint(result.report->iteration_ns, ==, c->iteration_ns);
        g_assert_cmpint(row->busy_ns, ==, 60 + c->blocked_ns + c->optimizer_ns);
        g_assert_cmpint(row->bubble_ns, ==, 0);
        g_assert_cmpint(row->communication_ns, ==, c->reduce_ns + c->gather_ns);
        g_assert_cmpfloat_with_epsilon(result.report->breakdown.dp_s, 1e-9 * (double)c->blocked_ns,
                                       1e-18);
        g_assert_true(trace_check(result.trace, &error));
        check_pieces(c, result.trace);
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
    g_test_add_func("/simulator/finish/last-backward-hides-reduction",
                    test_last_backward_hides_reduction);
    g_test_add_func("/simulator/finish/ranks-finish-apart", test_ranks_finish_apart);
    g_test_add_func("/simulator/finish/says-where-op-times-come-from",
                    test_says_where_op_times_come_from);
    return g_test_run();
}
