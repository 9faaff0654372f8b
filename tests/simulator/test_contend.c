/*
 * Tests of simulator/contend.h: the engine and the sweep agree where no link fills; where links
 * are shared, times by hand, and what must hold whatever is shared.
 */
#include "simulator/contend.h"

#include <math.h>
#include <string.h>

#include "simulator/simulate.h"
#include "tests/schedule/evaluate.h"
#include "tests/simulator/random.h"

static void
run(const Schedule *schedule, const Workload *workload, const SimTopology *topology,
    SimResult *result)
{
    const SimOptions options = {.topology = topology, .want_trace = true, .want_memory = true};
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

static void
assert_same(const SimResult *a, const SimResult *b)
{
    g_assert_cmpuint(a->trace->events->len, ==, b->trace->events->len);
    for (guint i = 0; i < a->trace->events->len; i++) {
        const TraceEvent *x = event_at(a->trace, i), *y = event_at(b->trace, i);
        g_assert_cmpint(x->start_ns, ==, y->start_ns);
        g_assert_cmpint(x->end_ns, ==, y->end_ns);
        g_assert_cmpint(x->rank, ==, y->rank);
        g_assert_cmpint(x->peer, ==, y->peer);
        g_assert_cmpint(x->stream, ==, y->stream);
        g_assert_cmpint(x->kind, ==, y->kind);
        g_assert_cmpint(memcmp(&x->op, &y->op, sizeof x->op), ==, 0);
    }
    g_assert_cmpuint(a->trace->memory->len, ==, b->trace->memory->len);
    for (guint i = 0; i < a->trace->memory->len; i++) {
        const TraceMemory *x = &g_array_index(a->trace->memory, TraceMemory, i);
        const TraceMemory *y = &g_array_index(b->trace->memory, TraceMemory, i);
        g_assert_cmpint(x->at_ns, ==, y->at_ns);
        g_assert_cmpint(x->delta_bytes, ==, y->delta_bytes);
    }
    for (guint r = 0; r < a->report->ranks->len; r++)
        g_assert_cmpint(memcmp(&g_array_index(a->report->ranks, ReportRank, r),
                               &g_array_index(b->report->ranks, ReportRank, r), sizeof(ReportRank)),
                        ==, 0);
    g_assert_cmpint(a->report->iteration_ns, ==, b->report->iteration_ns);
}

/* Links that never fill, and links with room for all messages that there can be. */
static void
test_equals_the_sweep(void)
{
    static const SimTopology topologies[] = {{.node = NULL},
                                             {.port_capacity = 1000, .node_capacity = 1000}};

    for (uint64_t seed = 0; seed < 4000; seed++) {
        uint64_t state = seed ^ 0xc0;
        g_autoptr(Schedule) schedule = random_schedule(&state);
        g_autoptr(Workload) workload = random_workload(&state, schedule, seed % 2 ? 6 : 1000000);
        int32_t node[4];
        SimTopology topology = topologies[seed / 2 % 2];
        g_auto(SimResult) swept = {0}, driven = {0};
        for (int r = 0; r < 4; r++)
            node[r] = (int32_t)random_in(&state, 0, schedule->n_ranks - 1);
        if (seed / 4 % 2)
            topology.node = node;
        run(schedule, workload, NULL, &swept);
        run(schedule, workload, &topology, &driven);
        assert_same(&swept, &driven);
    }
}

/*
 * GPipe, 2 ranks, 3 micro-batches, f = 2, messages of 6, ports for one message at a time.
 *   rank 0 sends at 2, 4, 6.  Alone until 4 (4 left), two until 6 (3 and 5 left), three from there:
 *   the first has had its 3 at 6 + 9 = 15, the second (5 - 3 = 2 left, two share) at 19, the third
 *   (6 - 3 - 2 = 1 left) at 20.
 *   rank 1 runs F at 15, 19, 21 (busy until 21) to 23, then B of 4 ns to 27, 31, 35, messages back:
 *   alone 27 to 31 (2 left), two share: the first ends at 35; now the second has 4 left, the third
 *   6: 43, then 2 left: 45.
 *   rank 0: B from 35, 43 and 47 to 51.
 */
static void
test_by_hand(void)
{
    static const struct {
        TraceEventKind kind;
        int32_t rank;
        int64_t ends[3];
    } expect[] = {
        {TRACE_EVENT_SEND, 0, {15, 19, 20}},     {TRACE_EVENT_RECEIVE, 1, {15, 19, 20}},
        {TRACE_EVENT_FORWARD, 1, {17, 21, 23}},  {TRACE_EVENT_SEND, 1, {35, 43, 45}},
        {TRACE_EVENT_BACKWARD, 0, {39, 47, 51}},
    };
    static const int64_t times[SCHEDULE_OP_N] = {2, 4, 0, 0};
    static const SimTopology topology = {.port_capacity = 1};
    g_autoptr(Schedule) schedule = new_schedule("gpipe", 2, 1, 3, 1);
    g_autoptr(Workload) workload = plain_workload(schedule, times, 6);
    g_auto(SimResult) result = {0};

    run(schedule, workload, &topology, &result);
    for (size_t k = 0; k < G_N_ELEMENTS(expect); k++) {
        int n = 0;
        for (guint i = 0; i < result.trace->events->len; i++) {
            const TraceEvent *event = event_at(result.trace, i);
            if (event->rank == expect[k].rank && event->kind == expect[k].kind)
                g_assert_cmpint(event->end_ns, ==, expect[k].ends[n++]);
        }
        g_assert_cmpint(n, ==, 3);
    }
    g_assert_cmpint(result.report->iteration_ns, ==, 51);
    /* 13 + 15 + 14 forward, 8 + 12 + 10 backward, at both ends. */
    for (guint r = 0; r < 2; r++)
        g_assert_cmpint(g_array_index(result.report->ranks, ReportRank, r).communication_ns, ==,
                        13 + 15 + 14 + 8 + 12 + 10);
}

/* A node of its own for every rank is a port. */
static void
test_nodes_of_one_are_ports(void)
{
    static const int32_t node[4] = {2, 0, 3, 1};

    for (uint64_t seed = 0; seed < 1000; seed++) {
        uint64_t state = seed ^ 0x10de;
        g_autoptr(Schedule) schedule = random_schedule(&state);
        if (schedule->n_ranks < 4)
            continue;
        g_autoptr(Workload) workload = random_workload(&state, schedule, 1000);
        const double capacity = (double)random_in(&state, 1, 8) / 4;
        const SimTopology ports = {.port_capacity = capacity};
        const SimTopology nodes = {.node = node, .node_capacity = capacity};
        g_auto(SimResult) a = {0}, b = {0};
        run(schedule, workload, &ports, &a);
        run(schedule, workload, &nodes, &b);
        assert_same(&a, &b);
    }
}

/* Sharing makes nothing earlier (each op waits for the same things, and no message is faster), and
 * two runs are the same. */
static void
test_sharing_makes_nothing_earlier(void)
{
    int n_slower = 0;

    for (uint64_t seed = 0; seed < 2000; seed++) {
        uint64_t state = seed ^ 0x51;
        g_autoptr(Schedule) schedule = random_schedule(&state);
        g_autoptr(Workload) workload = random_workload(&state, schedule, 5000);
        int32_t node[4];
        SimTopology topology = {.node = node,
                                .port_capacity = (double)random_in(&state, 0, 6) / 4,
                                .node_capacity = (double)random_in(&state, 1, 6) / 4};
        g_auto(SimResult) swept = {0}, driven = {0}, again = {0};
        for (int r = 0; r < 4; r++)
            node[r] = (int32_t)random_in(&state, 0, schedule->n_ranks - 1);
        workload->blocking_messages = false;
        run(schedule, workload, NULL, &swept);
        run(schedule, workload, &topology, &driven);
        run(schedule, workload, &topology, &again);
        assert_same(&driven, &again);
        n_slower += driven.report->iteration_ns > swept.report->iteration_ns;
        for (guint i = 0; i < swept.trace->events->len; i++) {
            const TraceEvent *x = event_at(swept.trace, i), *y = event_at(driven.trace, i);
            if (x->stream != TRACE_STREAM_COMPUTE)
                continue;
            g_assert_cmpint(memcmp(&x->op, &y->op, sizeof x->op), ==, 0);
            g_assert_cmpint(y->start_ns, >=, x->start_ns);
            g_assert_cmpint(y->end_ns - y->start_ns, ==, x->end_ns - x->start_ns);
        }
        for (guint r = 0; r < driven.report->ranks->len; r++)
            g_assert_cmpint(g_array_index(driven.report->ranks, ReportRank, r).bubble_ns, >=, 0);
    }
    g_assert_cmpint(n_slower, >, 500);
}

static void
test_refuses(void)
{
    static const int32_t beyond[2] = {0, 2}, negative[2] = {0, -1};
    static const struct {
        SimTopology topology;
        int64_t message_ns;
        int code;
    } cases[] = {
        {{.port_capacity = -1}, 1, SCHEDULE_ERROR_SHAPE},
        {{.port_capacity = NAN}, 1, SCHEDULE_ERROR_SHAPE},
        {{.node_capacity = NAN}, 1, SCHEDULE_ERROR_SHAPE},
        {{.node = beyond}, 1, SCHEDULE_ERROR_SHAPE},
        {{.node = negative}, 1, SCHEDULE_ERROR_SHAPE},
        {{.port_capacity = 1e-300}, 1, SCHEDULE_ERROR_LIMIT},
        {{.port_capacity = 1}, INT64_C(1) << 52, SCHEDULE_ERROR_LIMIT},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const SimOptions options = {.topology = &cases[i].topology};
        g_autoptr(Schedule) schedule = new_schedule("gpipe", 2, 1, 3, 1);
        g_autoptr(Workload) workload = plain_workload(schedule, unit_times, cases[i].message_ns);
        g_autoptr(GError) error = NULL;
        g_auto(SimResult) result = {0};
        g_assert_false(sim_run(schedule, workload, &options, &result, &error));
        g_assert_error(error, SCHEDULE_ERROR, cases[i].code);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/simulator/contend/equals-the-sweep", test_equals_the_sweep);
    g_test_add_func("/simulator/contend/by-hand", test_by_hand);
    g_test_add_func("/simulator/contend/nodes-of-one-are-ports", test_nodes_of_one_are_ports);
    g_test_add_func("/simulator/contend/sharing-makes-nothing-earlier",
                    test_sharing_makes_nothing_earlier);
    g_test_add_func("/simulator/contend/refuses", test_refuses);
    return g_test_run();
}
