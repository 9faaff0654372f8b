/*
 * Tests of simulator/pairs.h: the published bubble of DualPipe and DualPipeV, a pair's time, and an
 * independent simulation of random pairs.
 */
#include "simulator/pairs.h"

#include <string.h>

#include "schedule/check.h"
#include "schedule/graph.h"
#include "simulator/simulate.h"
#include "tests/schedule/evaluate.h"
#include "tests/simulator/random.h"

static void
run(const Schedule *schedule, const Workload *workload, SimResult *result)
{
    const SimOptions options = {.want_trace = true, .want_memory = true};
    g_autoptr(GError) error = NULL;

    g_assert_true(sim_run(schedule, workload, &options, result, &error));
    g_assert_no_error(error);
    trace_check(result->trace, &error);
    g_assert_no_error(error);
    for (guint r = 0; r < result->report->ranks->len; r++) {
        const ReportRank *row = &g_array_index(result->report->ranks, ReportRank, r);
        g_assert_cmpint(row->busy_ns + row->bubble_ns, ==, result->report->iteration_ns);
    }
}

/*
 * (n - 1) (F&B + B - 3 W) on the rank that idles most, with n = p / 2 for DualPipe and p for
 * DualPipeV, at F = I  [github.com/deepseek-ai/DualPipe, README, "Pipeline Bubbles"]; where the
 * pair takes F + B, on every rank.
 */
static void
test_published_bubble(void)
{
    static const int64_t times[][3] = {{1, 1, 1}, {4, 4, 3}, {3, 3, 2}, {10, 10, 7}, {6, 6, 6}};
    int n_checked = 0;

    for (int family = 0; family < 2; family++)
        for (int64_t p = 2; p <= 12; p += family == 0 ? 2 : 1)
            for (int64_t m = 2 * p; m <= 2 * p + 12; m += 2)
                for (size_t t = 0; t < G_N_ELEMENTS(times); t++) {
                    const int64_t f = times[t][0], i = times[t][1], w = times[t][2];
                    const int64_t time_ns[SCHEDULE_OP_N] = {f, i + w, i, w};
                    const int64_t pair_ns = f + i + w - (m % 3 == 0 ? 1 : 0);
                    const int64_t n = family == 0 ? p / 2 : p;
                    g_autoptr(Schedule) schedule =
                        new_schedule(family == 0 ? "dualpipe" : "dualpipev", p, 2, m, 1);
                    g_autoptr(Workload) workload = plain_workload(schedule, time_ns, 0);
                    g_auto(SimResult) result = {0};
                    int64_t most = 0, least = INT64_MAX;

                    workload->pair_ns = pair_ns;
                    run(schedule, workload, &result);
                    for (guint r = 0; r < result.report->ranks->len; r++) {
                        const int64_t ns =
                            g_array_index(result.report->ranks, ReportRank, r).bubble_ns;
                        most = MAX(most, ns);
                        least = MIN(least, ns);
                    }
                    g_assert_cmpint(most, ==, (n - 1) * (pair_ns + i + w - 3 * w));
                    if (pair_ns == f + i + w)
                        g_assert_cmpint(least, ==, most);
                    n_checked++;
                }
    g_assert_cmpint(n_checked, >, 400);
}

/* C and K of both ops; blocking messages; a time that is given. */
static void
test_time_of_a_pair(void)
{
    static const struct {
        int64_t computing[2], collectives[2], given;
        bool blocking;
        int64_t expect;
    } cases[] = {
        {{10, 20}, {0, 0}, 0, false, 30},  /* nothing to hide */
        {{10, 20}, {5, 5}, 0, false, 30},  /* all of it is hidden */
        {{10, 20}, {30, 5}, 0, false, 40}, /* the first alone: 10 + 30 */
        {{1, 2}, {30, 25}, 0, false, 55},  /* the collectives, one after the other */
        {{10, 20}, {5, 5}, 0, true, 40},    {{10, 20}, {5, 5}, 33, false, 33},
        {{10, 20}, {5, 5}, 100, false, 40}, /* never longer than one after the other */
    };

    for (size_t k = 0; k < G_N_ELEMENTS(cases); k++) {
        g_autoptr(Schedule) schedule = new_schedule("dualpipe", 2, 2, 4, 1);
        g_autoptr(Workload) workload = empty_workload(schedule, 1);
        g_autoptr(GError) error = NULL;
        for (int64_t i = 0; i < workload_n_ops(workload); i++)
            for (int kind = 0; kind < SCHEDULE_OP_N; kind++) {
                const int which = kind == SCHEDULE_OP_FORWARD ? 0 : 1;
                WorkloadOp *op = &workload->ops[i];
                op->part_ns[kind][PROFILE_PART_COMPUTE] = cases[k].computing[which];
                op->part_ns[kind][PROFILE_PART_EP] = cases[k].collectives[which];
                op->time_ns[kind] = cases[k].computing[which] + cases[k].collectives[which];
            }
        workload->pair_ns = cases[k].given;
        workload->blocking_messages = cases[k].blocking;
        g_autoptr(SimProgram) program = sim_program_new(schedule, workload, &error);
        g_assert_no_error(error);
        g_assert_cmpint(program->n_pairs, ==, schedule->overlap_pairs->len);
        for (int64_t i = 0; i < program->n_pairs; i++) {
            const SimPairKind *kind = sim_pair_at(program, program->pairs[i]);
            g_assert_cmpint(kind->ns, ==, cases[k].expect);
            g_assert_cmpint(kind->first_saved_ns, >=, 0);
            g_assert_cmpint(kind->second_saved_ns, >=, 0);
            g_assert_cmpint(kind->ns + kind->first_saved_ns + kind->second_saved_ns, ==,
                            cases[k].computing[0] + cases[k].computing[1] +
                                cases[k].collectives[0] + cases[k].collectives[1]);
        }
    }
}

/* A merged schedule of one family, and what its ops take: F 10 + 4, B 20 + 6 in exchanges with experts, and 3 in
 * each with tp. */
static Schedule *
merged(int64_t p, int64_t v, int64_t m, Workload **workload)
{
    const ScheduleShape shape = {p, v, m, 1, 0, NULL, true};
    g_autoptr(GError) error = NULL;
    Schedule *schedule = schedule_new(v == 1 ? "1f1b" : "interleaved", &shape, &error);

    g_assert_no_error(error);
    *workload = empty_workload(schedule, 1);
    for (int64_t i = 0; i < workload_n_ops(*workload); i++) {
        WorkloadOp *op = &(*workload)->ops[i];
        for (int kind = 0; kind <= SCHEDULE_OP_BACKWARD; kind++) {
            const bool forward = kind == SCHEDULE_OP_FORWARD;
            op->part_ns[kind][PROFILE_PART_COMPUTE] = forward ? 10 : 20;
            op->part_ns[kind][PROFILE_PART_EP] = forward ? 4 : 6;
            op->part_ns[kind][PROFILE_PART_TP] = 3;
            op->time_ns[kind] = forward ? 17 : 29;
            op->workspace_bytes[kind] = forward ? 10 : 20;
        }
        op->activation_bytes = 100;
        op->late_activation_bytes = 7;
    }
    (*workload)->pair_ns = 0;
    (*workload)->merges_pairs = true;
    return schedule;
}

/* Exchanges with experts are hidden, those of tp are not: a pair takes 13 + 23.  On one rank the first forward
 * and the last backward are alone; the exchanges of each op of a pair are in the other's part of it. */
static void
test_merged_passes_hide_exchanges(void)
{
    for (int64_t m = 2; m <= 9; m++) {
        Workload *w;
        g_autoptr(Schedule) schedule = merged(1, 1, m, &w);
        g_autoptr(Workload) workload = w;
        g_auto(SimResult) result = {0};
        int64_t n_exchanges = 0;
        run(schedule, workload, &result);
        g_assert_cmpint(result.report->iteration_ns, ==, 17 + (m - 1) * (13 + 23) + 29);
        /* Both ops of a pair have their memory at once, but for what the forward takes late. */
        const ReportRank *row = &g_array_index(result.report->ranks, ReportRank, 0);
        int64_t level = 0, peak = 0;
        g_assert_cmpint(row->peak_memory_bytes, ==, 2 * 100 + 10 + 20 - 7);
        for (guint i = 0; i < result.trace->memory->len; i++) {
            level += g_array_index(result.trace->memory, TraceMemory, i).delta_bytes;
            peak = MAX(peak, level);
        }
        g_assert_cmpint(peak, ==, row->peak_memory_bytes);
        g_assert_cmpint(level, ==, 0);
        for (guint i = 0; i < result.trace->events->len; i++) {
            const TraceEvent *e = &g_array_index(result.trace->events, TraceEvent, i);
            if (e->stream != TRACE_STREAM_EP)
                continue;
            const int64_t pair = n_exchanges++ / 2, begin = 17 + pair * 36;
            const bool forward = e->op.kind == SCHEDULE_OP_FORWARD;
            g_assert_cmpint(e->kind, ==, TRACE_EVENT_EXCHANGE);
            g_assert_cmpint(e->op.micro_batch, ==, forward ? pair + 1 : pair);
            g_assert_cmpint(e->start_ns, ==, forward ? begin + 36 - 4 : begin);
            g_assert_cmpint(e->end_ns, ==, forward ? begin + 36 : begin + 6);
        }
        g_assert_cmpint(n_exchanges, ==, 2 * (m - 1));
    }
}

/* No shape waits for itself, though a pair begins when both its messages are there; no rank is faster than its pairs,
 * and with enough micro-batches none waits between them: 1F1B takes F and B of each rank and the pairs of one. */
static void
test_merged_passes_end(void)
{
    for (int64_t p = 1; p <= 9; p++)
        for (int64_t v = 1; v <= 4; v++)
            for (int64_t m = 1; m <= 3 * p + 1; m++) {
                Workload *w;
                g_autoptr(Schedule) schedule = merged(p, v, m, &w);
                g_autoptr(Workload) workload = w;
                g_auto(SimResult) result = {0};
                run(schedule, workload, &result);
                g_assert_cmpint(result.report->iteration_ns, >=, 36 * m * v);
                if (v == 1 && m >= 2 * p)
                    g_assert_cmpint(result.report->iteration_ns, <=,
                                    36 * m + (17 + 29 - 36) + 2 * (p - 1) * (17 + 29));
            }
}

/* --- random pairs against a loop over all ops until none can begin --- */

typedef struct {
    int64_t free[8], next[8];
    int64_t *end; /* [index into ops] when it and its pair end; -1: has not begun */
} Slow;

static bool
is_pair(const Schedule *schedule, int64_t i)
{
    for (guint k = 0; k < schedule->overlap_pairs->len; k++)
        if (g_array_index(schedule->overlap_pairs, int64_t, k) == i)
            return true;
    return false;
}

/* When the message of op @i is there; -1: it was not sent yet. */
static int64_t
slow_ready(const Slow *slow, const ScheduleGraph *graph, int64_t i, int64_t message_ns)
{
    const int64_t from = graph->producer[i];

    if (from == SCHEDULE_GRAPH_NONE)
        return 0;
    return slow->end[from] < 0 ? -1 : slow->end[from] + message_ns;
}

static int64_t
slow_makespan(const Schedule *schedule, const int64_t time_ns[SCHEDULE_OP_N], int64_t message_ns,
              int64_t pair_ns)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(ScheduleGraph) graph = schedule_graph_new(schedule, &error);
    g_autofree int64_t *end = g_new(int64_t, (size_t)schedule_n_ops(schedule));
    Slow slow = {.end = end};
    int64_t makespan = 0;

    g_assert_no_error(error);
    memset(end, 0xff, sizeof *end * (size_t)schedule_n_ops(schedule));
    memcpy(slow.next, schedule->rank_begin, sizeof(int64_t) * (size_t)schedule->n_ranks);
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t r = 0; r < schedule->n_ranks; r++) {
            const int64_t i = slow.next[r];
            if (i == schedule->rank_begin[r + 1])
                continue;
            const bool pair = is_pair(schedule, i);
            const int64_t one = slow_ready(&slow, graph, i, message_ns);
            const int64_t two = pair ? slow_ready(&slow, graph, i + 1, message_ns) : 0;
            if (one < 0 || two < 0)
                continue;
            const int64_t ns = pair ? pair_ns : time_ns[schedule->ops[i].kind];
            slow.free[r] = MAX(slow.free[r], MAX(one, two)) + ns;
            end[i] = slow.free[r];
            if (pair)
                end[i + 1] = slow.free[r];
            slow.next[r] += pair ? 2 : 1;
            makespan = MAX(makespan, slow.free[r]);
            moved = true;
        }
    }
    for (int64_t i = 0; i < schedule_n_ops(schedule); i++)
        if (end[i] < 0)
            return -1; /* pairs wait for each other */
    return makespan;
}

static void
test_random_pairs(void)
{
    int n_pairs = 0, n_stuck = 0;

    for (uint64_t seed = 0; seed < 3000; seed++) {
        uint64_t state = seed ^ 0xd0a1;
        g_autoptr(Schedule) schedule = random_schedule(&state);
        const int64_t time_ns[SCHEDULE_OP_N] = {random_in(&state, 1, 9), random_in(&state, 1, 9),
                                                random_in(&state, 1, 9), random_in(&state, 1, 9)};
        const int64_t message_ns = random_in(&state, 0, 5);
        random_pairs(&state, schedule);
        g_autoptr(Workload) workload = plain_workload(schedule, time_ns, message_ns);
        /* No longer than any pair of these may take. */
        workload->pair_ns = random_in(&state, 1, time_ns[0] + MIN(time_ns[1], time_ns[2]));
        const int64_t expect = slow_makespan(schedule, time_ns, message_ns, workload->pair_ns);
        g_autoptr(GError) error = NULL;
        g_auto(SimResult) result = {0};
        if (expect < 0) {
            g_assert_false(sim_run(schedule, workload, NULL, &result, &error));
            g_assert_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_DEADLOCK);
            g_assert_nonnull(strstr(error->message, "pairs wait for each other"));
            n_stuck++;
            continue;
        }
        run(schedule, workload, &result);
        g_assert_cmpint(result.report->iteration_ns, ==, expect);
        n_pairs += (int)schedule->overlap_pairs->len;
    }
    g_assert_cmpint(n_pairs, >, 2000);
    g_assert_cmpint(n_stuck, >, 10);
}

/* --- what cannot be a pair --- */

static void
test_refuses(void)
{
    static const struct {
        int64_t at[2];
        const char *says;
    } cases[] = {
        {{0, -1}, "F0.0 and F1.0 cannot run overlapped"},
        {{3, -1}, "not two ops of one rank"}, /* the last op of rank 0 */
        {{-5, -1}, "not two ops of one rank"},
        {{4, 5}, "F0.0 and B0.0 cannot run overlapped"}, /* rank 1 */
        {{1, 2}, "not two ops of one rank"},             /* they overlap each other */
        {{100, -1}, "not two ops of one rank"},
    };
    static const int64_t time_ns[SCHEDULE_OP_N] = {1, 2, 1, 1};

    for (size_t k = 0; k < G_N_ELEMENTS(cases); k++) {
        /* F0 F1 B0 B1; F0 B0 F1 B1 */
        g_autoptr(Schedule) schedule = new_schedule("1f1b", 2, 1, 2, 1);
        g_autoptr(Workload) workload = plain_workload(schedule, time_ns, 0);
        g_autoptr(GError) error = NULL;
        g_auto(SimResult) result = {0};
        schedule->overlap_pairs = g_array_new(FALSE, FALSE, sizeof(int64_t));
        g_array_append_vals(schedule->overlap_pairs, cases[k].at, cases[k].at[1] < 0 ? 1 : 2);
        g_assert_false(sim_run(schedule, workload, NULL, &result, &error));
        g_assert_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_SHAPE);
        if (strstr(error->message, cases[k].says) == NULL)
            g_error("%s", error->message);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/simulator/pairs/published-bubble", test_published_bubble);
    g_test_add_func("/simulator/pairs/time-of-a-pair", test_time_of_a_pair);
    g_test_add_func("/simulator/pairs/merged-passes-hide-exchanges",
                    test_merged_passes_hide_exchanges);
    g_test_add_func("/simulator/pairs/merged-passes-end", test_merged_passes_end);
    g_test_add_func("/simulator/pairs/random-pairs", test_random_pairs);
    g_test_add_func("/simulator/pairs/refuses", test_refuses);
    return g_test_run();
}
