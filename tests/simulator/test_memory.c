/* Tests of simulator/memory.h: peaks with owner, op and time; events that end where they began. */
#include "simulator/memory.h"

#include <string.h>

#include "profiles/workload/prefetch.h"
#include "simulator/simulate.h"
#include "tests/schedule/evaluate.h"
#include "tests/simulator/random.h"

static const SimOptions everything = {.want_trace = true, .want_memory = true};

static const ReportRank *
row_of(const SimResult *result, int32_t rank)
{
    return &g_array_index(result->report->ranks, ReportRank, rank);
}

static void
run(const Schedule *schedule, const Workload *workload, SimResult *result)
{
    g_autoptr(GError) error = NULL;

    g_assert_true(sim_run(schedule, workload, &everything, result, &error));
    g_assert_no_error(error);
    g_assert_true(trace_check(result->trace, &error));
    g_assert_no_error(error);
}

/* --- closed forms --- */

/*
 * With A per micro-batch and no kv: GPipe holds m A on every rank, 1F1B min(m, p - r) A
 * [Narayanan et al. 2104.04473 section 2.2.1].  The workspace of F counts beside the last of them,
 * that of B beside all as well, so the larger of the two is at the peak.
 */
static void
test_families(void)
{
    static const int64_t sizes[][2] = {{1, 1}, {1, 5}, {2, 1}, {4, 2}, {4, 16}, {8, 64}, {9, 7}};
    static const int64_t workspaces[][2] = {{0, 0}, {5, 3}, {3, 5}};
    static const char *const families[] = {"gpipe", "1f1b"};

    for (size_t i = 0; i < G_N_ELEMENTS(sizes) * G_N_ELEMENTS(workspaces) * 2; i++) {
        const int64_t p = sizes[i / 6][0], m = sizes[i / 6][1];
        const int64_t *ws = workspaces[i / 2 % 3];
        g_autoptr(Schedule) schedule =
            schedule_new(families[i % 2], &(ScheduleShape){p, 1, m, 1, 0, NULL}, NULL);
        g_autoptr(Workload) workload = plain_workload(schedule, unit_times, 0);
        for (int32_t r = 0; r < p; r++) {
            workload->ops[r].activation_bytes = 1000;
            workload->ops[r].workspace_bytes[SCHEDULE_OP_FORWARD] = ws[0];
            workload->ops[r].workspace_bytes[SCHEDULE_OP_BACKWARD] = ws[1];
            workload->ranks[r].static_bytes[TRACE_MEMORY_WEIGHTS] = 77;
        }
        g_auto(SimResult) result = {0};
        run(schedule, workload, &result);
        for (int32_t r = 0; r < p; r++) {
            const int64_t held = 1000 * (i % 2 == 0 ? m : MIN(m, p - r));
            const ReportRank *row = row_of(&result, r);
            g_assert_cmpint(row->peak_memory_bytes, ==, 77 + held + MAX(ws[0], ws[1]));
            g_assert_cmpint(row->memory_bytes[TRACE_MEMORY_WEIGHTS], ==, 77);
            g_assert_cmpint(row->memory_bytes[TRACE_MEMORY_ACTIVATIONS], ==, held);
            g_assert_cmpint(row->memory_bytes[TRACE_MEMORY_WORKSPACE], ==, MAX(ws[0], ws[1]));
        }
    }
}

/* --- by hand --- */

typedef struct {
    int64_t at_ns;
    TraceMemoryOwner owner;
    int64_t delta_bytes;
} Step;

static void
assert_steps(const Trace *trace, const Step *steps, size_t n)
{
    g_assert_cmpuint(trace->memory->len, ==, n);
    for (size_t i = 0; i < n; i++) {
        const TraceMemory *m = &g_array_index(trace->memory, TraceMemory, i);
        g_assert_cmpint(m->at_ns, ==, steps[i].at_ns);
        g_assert_cmpint(m->owner, ==, steps[i].owner);
        g_assert_cmpint(m->delta_bytes, ==, steps[i].delta_bytes);
    }
}

static void
fill_one(Workload *workload)
{
    workload->ops[0] = (WorkloadOp){.time_ns = {10, 30, 20, 15},
                                    .activation_bytes = 100,
                                    .weight_activation_bytes = 40,
                                    .kv_bytes = 8,
                                    .workspace_bytes = {1, 2, 3, 4}};
    workload->ranks[0].static_bytes[TRACE_MEMORY_GRADIENTS] = 50;
}

/* F I F W I W: between I and W 40 of 100 bytes are kept, kv goes with I. */
static void
test_split_backward(void)
{
    static const char *const ranks[] = {"F0.0 I0.0 F1.0 W0.0 I1.0 W1.0"};
    static const Step steps[] = {
        {0, TRACE_MEMORY_GRADIENTS, 50},
        {0, TRACE_MEMORY_ACTIVATIONS, 100},
        {0, TRACE_MEMORY_KV, 8},
        {0, TRACE_MEMORY_WORKSPACE, 1},
        {10, TRACE_MEMORY_WORKSPACE, -1},
        {10, TRACE_MEMORY_WORKSPACE, 3},
        {30, TRACE_MEMORY_WORKSPACE, -3},
        {30, TRACE_MEMORY_KV, -8},
        {30, TRACE_MEMORY_ACTIVATIONS, -60}, /* I ends */
        {30, TRACE_MEMORY_ACTIVATIONS, 100}, /* F1 starts */
        {30, TRACE_MEMORY_KV, 8},
        {30, TRACE_MEMORY_WORKSPACE, 1},
        {40, TRACE_MEMORY_WORKSPACE, -1},
        {40, TRACE_MEMORY_WORKSPACE, 4},
        {55, TRACE_MEMORY_WORKSPACE, -4},
        {55, TRACE_MEMORY_ACTIVATIONS, -40}, /* W0 */
        {55, TRACE_MEMORY_WORKSPACE, 3},
        {75, TRACE_MEMORY_WORKSPACE, -3},
        {75, TRACE_MEMORY_KV, -8},
        {75, TRACE_MEMORY_ACTIVATIONS, -60},
        {75, TRACE_MEMORY_WORKSPACE, 4},
        {90, TRACE_MEMORY_WORKSPACE, -4},
        {90, TRACE_MEMORY_ACTIVATIONS, -40},
    };
    static const ScheduleShape shape = {1, 1, 2, 1, 0, NULL};
    g_autoptr(Schedule) schedule = schedule_from_text(&shape, SCHEDULE_PLACEMENT_LOOP, ranks);
    g_autoptr(Workload) workload = plain_workload(schedule, unit_times, 0);
    g_auto(SimResult) result = {0};

    fill_one(workload);
    run(schedule, workload, &result);
    assert_steps(result.trace, steps, G_N_ELEMENTS(steps));
    const ReportRank *row = row_of(&result, 0);
    /* At the start of W0: 50 + (40 + 100) + 8 + 4. */
    g_assert_cmpint(row->peak_memory_bytes, ==, 202);
    g_assert_cmpint(row->peak_time_ns, ==, 40);
    g_assert_cmpstr(row->peak_op, ==, "W0.0");
    g_assert_cmpint(report_peak_owner(row), ==, TRACE_MEMORY_ACTIVATIONS);
    g_assert_cmpint(report_peak_rank(result.report), ==, 0);
    g_assert_cmpint(row->memory_bytes[TRACE_MEMORY_ACTIVATIONS], ==, 140);
    g_assert_cmpint(row->memory_bytes[TRACE_MEMORY_KV], ==, 8);
    g_assert_cmpint(row->memory_bytes[TRACE_MEMORY_WORKSPACE], ==, 4);
    g_assert_cmpint(row->memory_bytes[TRACE_MEMORY_GRADIENTS], ==, 50);
    g_assert_cmpint(row->peak_in_flight, ==, 2);
}

/* With all of it computed again an I leaves more than it finds: 40 for 10, which is there from its
 * start on. */
static void
test_input_gradient_that_allocates(void)
{
    static const char *const ranks[] = {"F0.0 I0.0 F1.0 W0.0 I1.0 W1.0"};
    static const Step steps[] = {
        {0, TRACE_MEMORY_GRADIENTS, 50},
        {0, TRACE_MEMORY_ACTIVATIONS, 10},
        {0, TRACE_MEMORY_KV, 8},
        {0, TRACE_MEMORY_WORKSPACE, 1},
        {10, TRACE_MEMORY_WORKSPACE, -1},
        {10, TRACE_MEMORY_ACTIVATIONS, 30}, /* I0 starts */
        {10, TRACE_MEMORY_WORKSPACE, 3},
        {30, TRACE_MEMORY_WORKSPACE, -3},
        {30, TRACE_MEMORY_KV, -8},
        {30, TRACE_MEMORY_ACTIVATIONS, 10}, /* F1 */
        {30, TRACE_MEMORY_KV, 8},
        {30, TRACE_MEMORY_WORKSPACE, 1},
        {40, TRACE_MEMORY_WORKSPACE, -1},
        {40, TRACE_MEMORY_WORKSPACE, 4},
        {55, TRACE_MEMORY_WORKSPACE, -4},
        {55, TRACE_MEMORY_ACTIVATIONS, -40}, /* W0 ends */
        {55, TRACE_MEMORY_ACTIVATIONS, 30},
        {55, TRACE_MEMORY_WORKSPACE, 3},
        {75, TRACE_MEMORY_WORKSPACE, -3},
        {75, TRACE_MEMORY_KV, -8},
        {75, TRACE_MEMORY_WORKSPACE, 4},
        {90, TRACE_MEMORY_WORKSPACE, -4},
        {90, TRACE_MEMORY_ACTIVATIONS, -40},
    };
    static const ScheduleShape shape = {1, 1, 2, 1, 0, NULL};
    g_autoptr(Schedule) schedule = schedule_from_text(&shape, SCHEDULE_PLACEMENT_LOOP, ranks);
    g_autoptr(Workload) workload = plain_workload(schedule, unit_times, 0);
    g_auto(SimResult) result = {0};

    fill_one(workload);
    workload->ops[0].activation_bytes = 10;
    run(schedule, workload, &result);
    assert_steps(result.trace, steps, G_N_ELEMENTS(steps));
    /* At the start of W0: 50 + (40 + 10) + 8 + 4. */
    g_assert_cmpint(row_of(&result, 0)->peak_memory_bytes, ==, 112);
    g_assert_cmpstr(row_of(&result, 0)->peak_op, ==, "W0.0");
    g_assert_cmpint(row_of(&result, 0)->memory_bytes[TRACE_MEMORY_ACTIVATIONS], ==, 50);
}

/* Two slices: the first backward holds the gradients of both slices' K and V; those of the first
 * slice stay while the forwards of the next micro-batch run. */
static void
test_gradients_of_kv(void)
{
    static const char *const ranks[] = {"F0.0s0 F0.0s1 B0.0s1 F1.0s0 B0.0s0 F1.0s1 B1.0s1 B1.0s0"};
    static const ScheduleShape shape = {1, 1, 2, 2, 0, NULL};
    static const Step steps[] = {
        {0, TRACE_MEMORY_KV, 8},   /* F0s0 */
        {10, TRACE_MEMORY_KV, 8},  /* F0s1 */
        {20, TRACE_MEMORY_KV, 12}, /* B0s1: 5 + 7 */
        {50, TRACE_MEMORY_KV, -15},  {50, TRACE_MEMORY_KV, 8},   {90, TRACE_MEMORY_KV, -13},
        {90, TRACE_MEMORY_KV, 8},    {100, TRACE_MEMORY_KV, 12}, {130, TRACE_MEMORY_KV, -15},
        {160, TRACE_MEMORY_KV, -13},
    };
    g_autoptr(Schedule) schedule = schedule_from_text(&shape, SCHEDULE_PLACEMENT_LOOP, ranks);
    g_autoptr(Workload) workload = plain_workload(schedule, unit_times, 0);
    g_auto(SimResult) result = {0};

    for (int s = 0; s < 2; s++)
        workload->ops[s] = (WorkloadOp){
            .time_ns = {10, 30, 0, 0}, .kv_bytes = 8, .kv_gradient_bytes = s == 0 ? 5 : 7};
    run(schedule, workload, &result);
    assert_steps(result.trace, steps, G_N_ELEMENTS(steps));
    /* At the start of B0s1 and of B1s1: K and V of two slices, gradients of both. */
    g_assert_cmpint(row_of(&result, 0)->peak_memory_bytes, ==, 28);
    g_assert_cmpstr(row_of(&result, 0)->peak_op, ==, "B0.0s1");
}

/* An I whose unit has no W frees all, even where others have one. */
static void
test_lone_input_gradient(void)
{
    static const char *const ranks[] = {"F0.0 I0.0 F1.0 I1.0 W1.0"};
    static const ScheduleShape shape = {1, 1, 2, 1, 0, NULL};
    g_autoptr(Schedule) schedule = schedule_from_text(&shape, SCHEDULE_PLACEMENT_LOOP, ranks);
    g_autoptr(Workload) workload = plain_workload(schedule, unit_times, 0);
    g_auto(SimResult) result = {0};

    fill_one(workload);
    run(schedule, workload, &result);
    /* At the start of I1: 50 + 100 + 8 + 3. */
    g_assert_cmpint(row_of(&result, 0)->peak_memory_bytes, ==, 161);
    g_assert_cmpint(row_of(&result, 0)->peak_time_ns, ==, 10);
    g_assert_cmpstr(row_of(&result, 0)->peak_op, ==, "I0.0");
    g_assert_cmpint(row_of(&result, 0)->peak_in_flight, ==, 1);
}

/* Memory that an op brings is there from its own start, not from that of its blocking receive. */
static void
test_blocking_receive_holds_nothing(void)
{
    g_autoptr(Schedule) schedule =
        schedule_new("gpipe", &(ScheduleShape){2, 1, 1, 1, 0, NULL}, NULL);
    g_autoptr(Workload) workload = plain_workload(schedule, unit_times, 5);
    g_auto(SimResult) result = {0};

    workload->blocking_messages = true;
    workload->ops[1].activation_bytes = 9;
    run(schedule, workload, &result);
    g_assert_cmpint(result.trace->memory->len, ==, 2);
    const TraceMemory *m = &g_array_index(result.trace->memory, TraceMemory, 0);
    g_assert_cmpint(m[0].at_ns, ==, 1 + 5);     /* F of rank 0, the message */
    g_assert_cmpint(m[1].at_ns, ==, 1 + 5 + 3); /* F and B of rank 1; then it sends */
}

/* Nothing but static bytes: the peak is at time 0. */
static void
test_static_peak(void)
{
    g_autoptr(Schedule) schedule =
        schedule_new("1f1b", &(ScheduleShape){2, 1, 2, 1, 0, NULL}, NULL);
    g_autoptr(Workload) workload = plain_workload(schedule, unit_times, 0);
    g_auto(SimResult) result = {0};

    workload->ranks[1].static_bytes[TRACE_MEMORY_OPTIMIZER] = 12;
    workload->ranks[1].static_bytes[TRACE_MEMORY_BUFFERS] = 4;
    run(schedule, workload, &result);
    g_assert_cmpint(row_of(&result, 0)->peak_memory_bytes, ==, 0);
    g_assert_cmpint(row_of(&result, 1)->peak_memory_bytes, ==, 16);
    g_assert_cmpint(row_of(&result, 1)->peak_time_ns, ==, 0);
    g_assert_cmpint(row_of(&result, 1)->memory_bytes[TRACE_MEMORY_OPTIMIZER], ==, 12);
}

/* --- random --- */

/* Whether the op of that name starts on @rank at that time. */
static bool
starts_at(const Trace *trace, int32_t rank, const char *name, int64_t at_ns)
{
    const Schedule shape = {.n_slices = trace->n_slices};

    for (guint i = 0; i < trace->events->len; i++) {
        const TraceEvent *event = &g_array_index(trace->events, TraceEvent, i);
        char text[32];
        if (event->rank != rank || event->kind > TRACE_EVENT_BACKWARD_WEIGHT ||
            event->start_ns != at_ns)
            continue;
        schedule_op_name(&shape, event->op, text);
        if (strcmp(text, name) == 0)
            return true;
    }
    return false;
}

/* Replays the events: never negative, back at the static bytes, peak and owners as reported. */
static void
replay(const Trace *trace, const Workload *workload, const Report *report)
{
    guint i = 0;

    for (int32_t r = 0; r < trace->n_ranks; r++) {
        const ReportRank *row = &g_array_index(report->ranks, ReportRank, r);
        int64_t now[TRACE_MEMORY_N] = {0}, at_peak[TRACE_MEMORY_N] = {0}, sum = 0, peak = 0;
        for (; i < trace->memory->len; i++) {
            const TraceMemory *m = &g_array_index(trace->memory, TraceMemory, i);
            if (m->rank != r)
                break;
            now[m->owner] += m->delta_bytes;
            sum += m->delta_bytes;
            g_assert_cmpint(now[m->owner], >=, 0);
            if (sum > peak) {
                peak = sum;
                memcpy(at_peak, now, sizeof now);
            }
        }
        g_assert_cmpint(peak, ==, row->peak_memory_bytes);
        g_assert_true(*row->peak_op == 0 || starts_at(trace, r, row->peak_op, row->peak_time_ns));
        g_assert_cmpint(memcmp(at_peak, row->memory_bytes, sizeof at_peak), ==, 0);
        g_assert_cmpint(memcmp(now, workload->ranks[r].static_bytes, sizeof now), ==, 0);
    }
    g_assert_cmpuint(i, ==, trace->memory->len);
}

/* Levels rise by an op's workspace at least, fall at its end, have the report's peak as their
 * highest, and end at what stays. */
static void
check_levels(const Schedule *schedule, const Workload *workload)
{
    const SimOptions options = {.want_memory = true, .want_levels = true};
    const bool bidir = schedule->placement == SCHEDULE_PLACEMENT_BIDIR;
    g_auto(SimResult) result = {0};

    g_assert_true(sim_run(schedule, workload, &options, &result, NULL));
    for (int32_t r = 0; r < schedule->n_ranks; r++) {
        int64_t stays = 0, most, before;
        for (int owner = 0; owner < TRACE_MEMORY_N; owner++)
            stays += workload->ranks[r].static_bytes[owner];
        most = before = stays;
        for (int64_t i = schedule->rank_begin[r]; i < schedule->rank_begin[r + 1]; i++) {
            const ScheduleOp op = schedule->ops[i];
            const WorkloadOp *w =
                workload_op(workload, bidir ? op.chunk : 0, schedule_stage(schedule, r, op.chunk),
                            op.micro_batch, op.slice);
            g_assert_cmpint(result.levels[i].begin_bytes - before, >=, w->workspace_bytes[op.kind]);
            before = result.levels[i].end_bytes;
            g_assert_cmpint(before, <=, result.levels[i].begin_bytes);
            most = MAX(most, result.levels[i].begin_bytes);
        }
        g_assert_cmpint(most, ==, row_of(&result, r)->peak_memory_bytes);
        g_assert_cmpint(before, ==, stays);
    }
}

static void
test_events_replay_to_the_report(void)
{
    for (uint64_t seed = 0; seed < 3000; seed++) {
        uint64_t state = seed ^ 0x3e3;
        g_autoptr(Schedule) schedule = random_schedule(&state);
        g_autoptr(Workload) workload = random_workload(&state, schedule, seed % 2 ? 4 : 100000);
        g_auto(SimResult) result = {0};
        run(schedule, workload, &result);
        replay(result.trace, workload, result.report);
        check_levels(schedule, workload);
    }
}

/* Both ops of a pair hold what they take until the pair ends, K and V of slices too. */
static void
test_pairs_replay_to_the_report(void)
{
    int n_seen = 0;

    for (uint64_t seed = 0; seed < 1500; seed++) {
        uint64_t state = seed ^ 0x9a1f;
        g_autoptr(Schedule) schedule = random_schedule(&state);
        random_pairs(&state, schedule);
        g_autoptr(Workload) workload = random_workload(&state, schedule, seed % 2 ? 4 : 100000);
        const SimOptions options = {.want_trace = true, .want_memory = true};
        g_auto(SimResult) result = {0};
        g_autoptr(GError) error = NULL;
        workload->blocking_messages = false;
        workload->pair_ns = 1500;
        /* Each op takes a while, so that what ends and what begins are told apart. */
        for (int64_t i = 0; i < workload_n_ops(workload); i++)
            for (int kind = 0; kind < SCHEDULE_OP_N; kind++)
                workload->ops[i].time_ns[kind] += 1000;
        if (!sim_run(schedule, workload, &options, &result, &error)) {
            g_assert_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_DEADLOCK);
            continue; /* pairs that wait for each other */
        }
        replay(result.trace, workload, result.report);
        n_seen += schedule->n_slices > 1 && schedule->overlap_pairs->len > 0;
    }
    g_assert_cmpint(n_seen, >, 100);
}

/* --- weights of later ops --- */

/*
 * One stage of an embedding of 5, a layer of 10 and a head of 7: F F B B with one gathering ahead.
 * Each F's last part has the next op's first ahead of it: 5, then the head's 7; B's last, its
 * layer, the next B's head, and after the last nothing comes.  With @most_bytes below 7 the head is
 * waited for.  Whatever is ahead, parts before the last may have more.
 */
static void
test_later_ops_weights_are_ahead(void)
{
    static const char *const ranks[] = {"F0.0 F1.0 B0.0 B1.0"};
    static const ScheduleShape shape = {1, 1, 2, 1, 0, NULL};
    static const struct {
        int64_t most_bytes, last_forward, last_backward;
        int64_t workspaces[4];
    } cases[] = {
        {10, 40, 30, {45, 47, 37, 30}},
        {6, 40, 30, {45, 40, 30, 30}},
        {10, 20, 14, {25, 27, 25, 25}},
        {4, 40, 30, {40, 40, 30, 30}},
        {10, WORKLOAD_PREFETCH_NONE, 30, {20, 20, 37, 30}},
    };

    for (size_t k = 0; k < G_N_ELEMENTS(cases); k++) {
        g_autoptr(Schedule) schedule = schedule_from_text(&shape, SCHEDULE_PLACEMENT_LOOP, ranks);
        g_autoptr(Workload) workload = plain_workload(schedule, unit_times, 0);
        const SimOptions options = {.want_memory = true, .want_levels = true};
        g_auto(SimResult) result = {0};
        WorkloadPrefetch *ahead = workload->prefetch = g_new0(WorkloadPrefetch, 1);
        ahead->depth = 1;
        ahead->most_bytes = g_memdup2(&cases[k].most_bytes, sizeof(int64_t));
        ahead->begin = g_memdup2((int64_t[]){0, 3}, 2 * sizeof(int64_t));
        ahead->bytes = g_memdup2((int64_t[]){5, 10, 7}, 3 * sizeof(int64_t));
        ahead->is_first = g_memdup2((int8_t[]){1}, 1);
        ahead->last_bytes =
            g_memdup2((int64_t[]){cases[k].last_forward, cases[k].last_backward, 0, 0},
                      SCHEDULE_OP_N * sizeof(int64_t));
        workload->ops[0].workspace_bytes[SCHEDULE_OP_FORWARD] = 20;
        workload->ops[0].workspace_bytes[SCHEDULE_OP_BACKWARD] = 25;
        g_assert_true(sim_run(schedule, workload, &options, &result, NULL));
        int64_t most = 0;
        for (int i = 0; i < 4; i++) {
            g_assert_cmpint(result.levels[i].begin_bytes, ==, cases[k].workspaces[i]);
            most = MAX(most, cases[k].workspaces[i]);
        }
        g_assert_cmpint(row_of(&result, 0)->memory_bytes[TRACE_MEMORY_WORKSPACE], ==, most);
    }
}

/* --- limits --- */

static void
test_refuses(void)
{
    for (int i = 0; i < 10; i++) {
        g_autoptr(Schedule) schedule =
            schedule_new("1f1b", &(ScheduleShape){2, 1, 4, 1, 0, NULL}, NULL);
        g_autoptr(Workload) workload = plain_workload(schedule, unit_times, 0);
        g_autoptr(GError) error = NULL;
        g_auto(SimResult) result = {0};
        if (i == 0)
            workload->ops[1].activation_bytes = -1;
        else if (i == 1)
            workload->ops[1].weight_activation_bytes = -1;
        else if (i == 2)
            workload->ops[0].workspace_bytes[SCHEDULE_OP_BACKWARD_WEIGHT] = -1;
        else if (i == 3)
            workload->ops[0].kv_bytes = INT64_MAX / 3;
        else if (i == 6)
            workload->ops[0].kv_gradient_bytes = INT64_MAX / 3;
        else if (i == 7)
            workload->ops[1].kv_gradient_bytes = -1;
        else if (i == 8)
            workload->ops[0].kv_bytes = workload->ops[0].kv_gradient_bytes = INT64_MAX / 2 + 1;
        else if (i == 4)
            workload->ranks[1].static_bytes[0] = -1;
        else if (i == 5)
            workload->ranks[0].static_bytes[1] = workload->ranks[1].static_bytes[2] = INT64_MAX;
        const SimOptions options = {.want_memory = true};
        g_assert_cmpint(sim_run(schedule, workload, &options, &result, &error), ==, i == 9);
        if (i < 9)
            g_assert_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_LIMIT);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/simulator/memory/families", test_families);
    g_test_add_func("/simulator/memory/split-backward", test_split_backward);
    g_test_add_func("/simulator/memory/input-gradient-that-allocates",
                    test_input_gradient_that_allocates);
    g_test_add_func("/simulator/memory/gradients-of-kv", test_gradients_of_kv);
    g_test_add_func("/simulator/memory/pairs-replay-to-the-report",
                    test_pairs_replay_to_the_report);
    g_test_add_func("/simulator/memory/lone-input-gradient", test_lone_input_gradient);
    g_test_add_func("/simulator/memory/blocking-receive-holds-nothing",
                    test_blocking_receive_holds_nothing);
    g_test_add_func("/simulator/memory/static-peak", test_static_peak);
    g_test_add_func("/simulator/memory/events-replay-to-the-report",
                    test_events_replay_to_the_report);
    g_test_add_func("/simulator/memory/later-ops-weights-are-ahead",
                    test_later_ops_weights_are_ahead);
    g_test_add_func("/simulator/memory/refuses", test_refuses);
    return g_test_run();
}
