/*
 * Tests of simulator/contend.h and network.h over random schedules: the engine and the sweep agree
 * wherever the sweep holds, and what must hold whatever is shared.  Times by hand: test_contend.c.
 */
#include "simulator/contend.h"

#include <string.h>

#include "schedule/graph.h"
#include "simulator/rivals.h"
#include "tests/schedule/evaluate.h"
#include "tests/simulator/random.h"
#include "tests/simulator/run.h"

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

/* Ranks on random nodes; links from too small for one transfer to ample. */
static void
links_for(uint64_t *state, const Schedule *schedule, Workload *workload)
{
    static const double rates[] = {0.3e9, 1e9, 2e9, 4e9, 1e12};
    int32_t node[4];

    for (int r = 0; r < 4; r++)
        node[r] = (int32_t)random_in(state, 0, schedule->n_ranks - 1);
    const double port = rates[random_in(state, 0, 4)];
    random_links(state, schedule, workload, node, port, rates[random_in(state, 0, 4)]);
}

/* Whether the sweep's times hold, by what simulate.c asks. */
static bool
holds(const Schedule *schedule, const Workload *workload)
{
    g_autoptr(SimProgram) program = sim_program_new(schedule, workload, NULL);
    g_auto(SimTimes) times = {0};
    g_auto(SimNetwork) network = {0};

    g_assert_true(sim_times_init(&times, program, NULL));
    sim_program_sweep(program, &times);
    g_assert_true(sim_network_init(&network, program, NULL));
    return !times.meets && sim_network_suffices_until(&network, program, &times) == INT64_MAX;
}

/* 10 000 schedules of which the sweep says that nothing is contended: the engine finds the same
 * trace, event by event.  Where it says otherwise most iterations do become longer. */
static void
test_equals_the_sweep(void)
{
    int n_equal = 0, n_contended = 0, n_longer = 0;

    for (uint64_t seed = 0; n_equal < 10000; seed++) {
        uint64_t state = seed ^ 0xc0;
        g_autoptr(Schedule) schedule = random_schedule(&state);
        g_autoptr(Workload) workload = random_workload(&state, schedule, seed % 2 ? 6 : 1000000);
        g_auto(SimResult) swept = {0}, driven = {0}, either = {0};
        links_for(&state, schedule, workload);
        const bool contended = !holds(schedule, workload);
        n_contended += contended;
        n_equal += !contended;
        if (contended && n_contended > 2000)
            continue;
        run(schedule, workload, SIM_BY_EVENTS, &driven);
        run(schedule, workload, SIM_BY_EITHER, &either);
        assert_same(&driven, &either);
        run(schedule, workload, SIM_BY_SWEEP, &swept);
        if (contended)
            n_longer += driven.report->iteration_ns > swept.report->iteration_ns;
        else
            assert_same(&swept, &driven);
    }
    g_assert_cmpint(n_contended, >, 2000);
    g_assert_cmpint(n_longer, >, 1000);
}

/* Likewise with overlapped pairs, whose messages do not block. */
static void
test_pairs_equal_the_sweep(void)
{
    int n_equal = 0, n_contended = 0, n_longer = 0, n_pairs = 0;

    for (uint64_t seed = 0; n_equal < 2000; seed++) {
        uint64_t state = seed ^ 0xd0a1;
        g_autoptr(Schedule) schedule = random_schedule(&state);
        g_autoptr(Workload) workload = random_workload(&state, schedule, seed % 2 ? 6 : 1000000);
        g_auto(SimResult) swept = {0}, driven = {0}, either = {0};
        random_pairs(&state, schedule);
        workload->blocking_messages = false;
        workload->pair_ns = seed % 3 == 0 ? random_in(&state, 1, 8) : 0;
        links_for(&state, schedule, workload);
        if (!sim_run(schedule, workload, &(SimOptions){.by = SIM_BY_SWEEP}, &swept, NULL))
            continue; /* pairs that wait for each other */
        sim_result_clear(&swept);
        const bool contended = !holds(schedule, workload);
        n_contended += contended;
        n_equal += !contended;
        n_pairs += (int)schedule->overlap_pairs->len;
        run(schedule, workload, SIM_BY_EVENTS, &driven);
        run(schedule, workload, SIM_BY_EITHER, &either);
        run(schedule, workload, SIM_BY_SWEEP, &swept);
        if (!contended)
            assert_same(&swept, &driven);
        assert_same(contended ? &driven : &swept, &either);
        n_longer += driven.report->iteration_ns > swept.report->iteration_ns;
        for (guint r = 0; r < driven.report->ranks->len; r++) {
            const ReportRank *row = &g_array_index(driven.report->ranks, ReportRank, r);
            g_assert_cmpint(row->busy_ns + row->bubble_ns, ==, driven.report->iteration_ns);
        }
    }
    g_assert_cmpint(n_pairs, >, 4000);
    g_assert_cmpint(n_contended, >, 500);
    g_assert_cmpint(n_longer, >, 300);
}

/* --- whatever is shared --- */

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
        g_auto(SimResult) a = {0}, b = {0};
        random_links(&state, schedule, workload, node, 1e9, 1e12);
        /* All on the outer level, where a rank crosses its port and its node. */
        for (int64_t i = 0; i < workload_n_ops(workload); i++) {
            WorkloadOp *op = &workload->ops[i];
            op->forward_message.level = op->backward_message.level = 1;
            for (int kind = 0; kind < SCHEDULE_OP_N; kind++)
                op->traffic_bytes[kind][0] = 0;
        }
        for (int32_t r = 0; r < 4; r++) {
            workload->ranks[r].dp_reduce_traffic_bytes[0] = 0;
            workload->ranks[r].dp_gather_traffic_bytes[0] = 0;
        }
        workload->links->senders_fraction = 1;
        run(schedule, workload, SIM_BY_EVENTS, &a);
        for (int32_t r = 0; r < 4; r++) {
            workload->links->bytes_per_s[4 + r] = 1e12;
            workload->links->bytes_per_s[8 + r] = 1e9;
            workload->links->crossings[3 * r + 2].n_devices = 1;
        }
        run(schedule, workload, SIM_BY_EVENTS, &b);
        assert_same(&a, &b);
    }
}

/* Sharing makes nothing earlier (each op waits for the same things, and nothing is faster), and two
 * runs are the same. */
static void
test_sharing_makes_nothing_earlier(void)
{
    int n_slower = 0;

    for (uint64_t seed = 0; seed < 2000; seed++) {
        uint64_t state = seed ^ 0x51;
        g_autoptr(Schedule) schedule = random_schedule(&state);
        g_autoptr(Workload) workload = random_workload(&state, schedule, 5000);
        g_auto(SimResult) swept = {0}, driven = {0}, again = {0};
        links_for(&state, schedule, workload);
        workload->interference_fraction = 0;
        run(schedule, workload, SIM_BY_SWEEP, &swept);
        run(schedule, workload, SIM_BY_EVENTS, &driven);
        run(schedule, workload, SIM_BY_EVENTS, &again);
        assert_same(&driven, &again);
        n_slower += driven.report->iteration_ns > swept.report->iteration_ns;
        for (guint i = 0; i < swept.trace->events->len; i++) {
            const TraceEvent *x = event_at(swept.trace, i), *y = event_at(driven.trace, i);
            if (x->stream != TRACE_STREAM_COMPUTE)
                continue;
            g_assert_cmpint(memcmp(&x->op, &y->op, sizeof x->op), ==, 0);
            g_assert_cmpint(y->start_ns, >=, x->start_ns);
            g_assert_cmpint(y->end_ns, >=, x->end_ns);
        }
    }
    g_assert_cmpint(n_slower, >, 500);
}

/* How many streams have rivals that may be known to be silent. */
static int
n_bounded(const Schedule *schedule, const Workload *workload)
{
    g_autoptr(SimProgram) program = sim_program_new(schedule, workload, NULL);
    g_auto(SimNetwork) network = {0};
    SimRivals rivals;
    int n = 0;

    g_assert_true(sim_network_init(&network, program, NULL));
    sim_rivals_init(&rivals, program, &network);
    for (int32_t s = 0; s <= 2 * schedule->n_ranks; s++)
        n += rivals.begin[s + 1] > rivals.begin[s];
    sim_rivals_clear(&rivals);
    return n;
}

/* Messages that certainly meet no other are not followed event by event, and what has happened when
 * links begin to be shared is the sweep's, unless all is followed: that changes nothing. */
static void
test_what_meets_nobody_need_not_be_followed(void)
{
    int n_shared = 0, n_streams = 0;

    for (uint64_t seed = 0; seed < 5000; seed++) {
        uint64_t state = seed ^ 0xa1;
        g_autoptr(Schedule) schedule = random_schedule(&state);
        g_autoptr(Workload) workload = random_workload(&state, schedule, seed % 2 ? 20 : 5000);
        g_auto(SimResult) followed = {0}, either = {0};
        links_for(&state, schedule, workload);
        workload->blocking_messages = false;
        for (int64_t i = 0; i < workload_n_ops(workload); i++) /* but for some in a third */
            if (seed % 3 > 0 || i % 3 > 0)
                memset(workload->ops[i].traffic_bytes, 0, sizeof workload->ops[i].traffic_bytes);
        run(schedule, workload, SIM_BY_EVENTS, &followed);
        run(schedule, workload, SIM_BY_EITHER, &either);
        assert_same(&followed, &either);
        if (!holds(schedule, workload)) {
            n_shared++;
            n_streams += n_bounded(schedule, workload);
        }
    }
    g_assert_cmpint(n_shared, >, 300);
    g_assert_cmpint(n_streams, >, 1000);
}

/* No op of @trace begins before what it needs has ended. */
static void
check_inputs(const Schedule *schedule, const Trace *trace)
{
    const int64_t n_virtual_ids = schedule_n_virtual_ids(schedule) * SCHEDULE_OP_N;
    g_autoptr(ScheduleGraph) graph = schedule_graph_new(schedule, NULL);
    g_autofree const TraceEvent **event_of =
        g_new0(const TraceEvent *, (size_t)(schedule->n_ranks * n_virtual_ids));

    for (guint i = 0; i < trace->events->len; i++) {
        const TraceEvent *event = event_at(trace, i);
        if (event->kind <= TRACE_EVENT_BACKWARD_WEIGHT)
            event_of[event->rank * n_virtual_ids +
                     schedule_virtual_id(schedule, event->op) * SCHEDULE_OP_N + event->kind] =
                event;
    }
    for (int64_t i = 0; i < schedule_n_ops(schedule); i++) {
        const int64_t needed = graph->producer[i];
        const TraceEvent *ends[2];
        for (int k = 0; k < 2 && needed >= 0; k++) {
            const int64_t at = k == 0 ? needed : i;
            const ScheduleOp op = schedule->ops[at];
            ends[k] = event_of[schedule_graph_rank(schedule, at) * n_virtual_ids +
                               schedule_virtual_id(schedule, op) * SCHEDULE_OP_N + op.kind];
            g_assert_nonnull(ends[k]);
        }
        if (needed >= 0)
            g_assert_cmpint(ends[1]->start_ns, >=, ends[0]->end_ns);
    }
}

/* 10 000 schedules, contended or not: no op before its inputs, no two at once on a stream (run()
 * checks it, and that memory is never negative), busy + bubble = makespan, memory back to its
 * start. */
static void
test_invariants(void)
{
    for (uint64_t seed = 0; seed < 10000; seed++) {
        uint64_t state = seed ^ 0x1474;
        g_autoptr(Schedule) schedule = random_schedule(&state);
        g_autoptr(Workload) workload = random_workload(&state, schedule, 3000);
        g_auto(SimResult) result = {0};
        int64_t bytes[4][TRACE_MEMORY_N] = {{0}};
        links_for(&state, schedule, workload);
        workload->message_interference_fraction = seed % 3 == 0 ? 0.5 : 0;
        run(schedule, workload, SIM_BY_EITHER, &result);
        check_inputs(schedule, result.trace);
        for (guint i = 0; i < result.trace->memory->len; i++) {
            const TraceMemory *m = &g_array_index(result.trace->memory, TraceMemory, i);
            bytes[m->rank][m->owner] += m->delta_bytes;
        }
        for (int32_t r = 0; r < schedule->n_ranks; r++) {
            const ReportRank *row = &g_array_index(result.report->ranks, ReportRank, r);
            g_assert_cmpint(row->bubble_ns, >=, 0);
            g_assert_cmpint(row->busy_ns + row->bubble_ns, ==, result.report->iteration_ns);
            for (int owner = 0; owner < TRACE_MEMORY_N; owner++)
                g_assert_cmpint(bytes[r][owner], ==, workload->ranks[r].static_bytes[owner]);
        }
        g_assert_cmpint(result.trace->makespan_ns, ==, result.report->iteration_ns);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(path, function) g_test_add_func("/simulator/contend/" path, function)
    ADD("equals-the-sweep", test_equals_the_sweep);
    ADD("pairs-equal-the-sweep", test_pairs_equal_the_sweep);
    ADD("nodes-of-one-are-ports", test_nodes_of_one_are_ports);
    ADD("sharing-makes-nothing-earlier", test_sharing_makes_nothing_earlier);
    ADD("what-meets-nobody-need-not-be-followed", test_what_meets_nobody_need_not_be_followed);
    ADD("invariants", test_invariants);
    return g_test_run();
}
