/*
 * Tests of simulator/contend.h and network.h: the engine and the sweep agree wherever the sweep
 * holds; where links are shared, times by hand, and what must hold whatever is shared.
 */
#include "simulator/contend.h"

#include <math.h>
#include <string.h>

#include "schedule/graph.h"
#include "simulator/simulate.h"
#include "tests/schedule/evaluate.h"
#include "tests/simulator/random.h"

static void
run(const Schedule *schedule, const Workload *workload, SimBy by, SimResult *result)
{
    const SimOptions options = {.by = by, .want_trace = true, .want_memory = true};
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
    return !times.meets && sim_network_suffices(&network, program, &times);
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

/* --- by hand --- */

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
        op->forward_sent_bytes = op->forward_message_ns;
        op->backward_sent_bytes = op->backward_message_ns;
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
    g_assert_cmpint(schedule->ops[9].microbatch, ==, 0);
    schedule->ops[8] = schedule->ops[9];
    schedule->ops[9] = f2;
    schedule->overlap_pairs = g_array_new(FALSE, FALSE, sizeof(int64_t));
    g_array_append_val(schedule->overlap_pairs, pair);
    op->backward_message_ns = 0;
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
        workload->ops[i].forward_buffered_ns = workload->ops[i].backward_buffered_ns = 6;
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
            op->forward_level = op->backward_level = 1;
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

/* No op of @trace begins before what it needs has ended. */
static void
check_inputs(const Schedule *schedule, const Trace *trace)
{
    const int64_t units = schedule_n_units(schedule) * SCHEDULE_OP_N;
    g_autoptr(ScheduleGraph) graph = schedule_graph_new(schedule, NULL);
    g_autofree const TraceEvent **event_of =
        g_new0(const TraceEvent *, (size_t)(schedule->n_ranks * units));

    for (guint i = 0; i < trace->events->len; i++) {
        const TraceEvent *event = event_at(trace, i);
        if (event->kind <= TRACE_EVENT_BACKWARD_WEIGHT)
            event_of[event->rank * units + schedule_unit(schedule, event->op) * SCHEDULE_OP_N +
                     event->kind] = event;
    }
    for (int64_t i = 0; i < schedule_n_ops(schedule); i++) {
        const int64_t needed = graph->producer[i];
        const TraceEvent *ends[2];
        for (int k = 0; k < 2 && needed >= 0; k++) {
            const int64_t at = k == 0 ? needed : i;
            const ScheduleOp op = schedule->ops[at];
            ends[k] = event_of[schedule_graph_rank(schedule, at) * units +
                               schedule_unit(schedule, op) * SCHEDULE_OP_N + op.kind];
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
        workload->ops[0].forward_level = cases[i].level;
        workload->ops[0].forward_sent_bytes = cases[i].sent_bytes;
        workload->interference_fraction = cases[i].interference;
        g_assert_false(sim_run(schedule, workload, &options, &result, &error));
        g_assert_error(error, SCHEDULE_ERROR, cases[i].code);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(path, function) g_test_add_func("/simulator/contend/" path, function)
    ADD("equals-the-sweep", test_equals_the_sweep);
    ADD("messages-queue", test_messages_queue);
    ADD("messages-and-reduction-share", test_messages_and_reduction_share);
    ADD("ops-and-messages-share", test_ops_and_messages_share);
    ADD("blocking-messages-share", test_blocking_messages_share);
    ADD("messages-slow-computing", test_messages_slow_computing);
    ADD("nodes-of-one-are-ports", test_nodes_of_one_are_ports);
    ADD("sharing-makes-nothing-earlier", test_sharing_makes_nothing_earlier);
    ADD("invariants", test_invariants);
    ADD("refuses", test_refuses);
    g_test_add_func("/simulator/contend/pairs-and-messages-share", test_pairs_and_messages_share);
    g_test_add_func("/simulator/contend/pairs-equal-the-sweep", test_pairs_equal_the_sweep);
    return g_test_run();
}
