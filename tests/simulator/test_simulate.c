/*
 * Tests of simulator/simulate.h: closed forms, a slow oracle, and the numbers beside the schedules
 * that the authors' programs print.
 */
#include "simulator/simulate.h"

#include <string.h>

#include "base/json.h"
#include "base/units.h"
#include "schedule/check.h"
#include "tests/schedule/evaluate.h"
#include "tests/simulator/oracle.h"
#include "tests/simulator/random.h"
#include "tests/simulator/build.h"

/* (owned) */
static Report *
simulate(const Schedule *schedule, const Workload *workload)
{
    g_autoptr(GError) error = NULL;
    SimResult result = {0};

    g_assert_true(sim_run(schedule, workload, &(SimOptions){.want_memory = true}, &result, &error));
    g_assert_no_error(error);
    g_assert_null(result.trace);
    return result.report;
}

static const ReportRank *
row_of(const Report *report, int32_t rank)
{
    return &g_array_index(report->ranks, ReportRank, rank);
}

/* --- closed forms --- */

static const int64_t sizes[][2] = {
    /* p, m */
    {1, 1}, {1, 7},  {2, 1},  {2, 2},  {2, 9},   {3, 2},   {4, 4},  {4, 8},
    {5, 3}, {7, 20}, {8, 64}, {16, 8}, {16, 48}, {32, 96}, {96, 64}};

/*
 * Equal stages, no communication: naive m p (f + b); GPipe and 1F1B (m + p - 1)(f + b)
 * [Huang et al. 1811.06965; Narayanan et al. 2104.04473 section 2.2.1].
 */
static void
test_equal_stages(void)
{
    static const int64_t times[SCHEDULE_OP_N] = {317, 641, 0, 0};
    const int64_t unit = times[SCHEDULE_OP_FORWARD] + times[SCHEDULE_OP_BACKWARD];

    for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++)
        for (int family = 0; family < 3; family++) {
            static const char *const names[] = {"naive", "gpipe", "1f1b"};
            const int64_t p = sizes[i][0], m = sizes[i][1];
            g_autoptr(Schedule) schedule = build(names[family], p, m, 1);
            g_autoptr(Workload) workload = plain_workload(schedule, times, 0);
            g_autoptr(Report) report = simulate(schedule, workload);
            const int64_t slots = family == 0 ? m * p : m + p - 1;
            g_assert_cmpint(report->iteration_ns, ==, slots * unit);
            for (int32_t r = 0; r < p; r++) {
                g_assert_cmpint(row_of(report, r)->busy_ns, ==, m * unit);
                g_assert_cmpint(row_of(report, r)->bubble_ns, ==, (slots - m) * unit);
                g_assert_cmpint(row_of(report, r)->communication_ns, ==, 0);
                g_assert_cmpint(row_of(report, r)->peak_in_flight, ==,
                                family == 0   ? 1
                                : family == 1 ? m
                                              : MIN(m, p - r));
            }
            g_assert_cmpfloat_with_epsilon(report->bubble_fraction,
                                           (double)(slots - m) / (double)slots, 1e-12);
        }
}

/*
 * Blocking messages of c, GPipe, p stages.  The compute stream of a stage in the middle is busy
 * for c + f + c per micro-batch, and passes each one on c + f after it began to receive it; its
 * neighbour begins to receive while it still sends.  So forward ends on the last stage after
 *   f + (p - 1)(c + f) + (m - 1)(f + d),   d = 2c with a stage in the middle, c for p = 2, 0 for 1
 * (the slowest stage sets the pace), the backward is its mirror image, and both together take
 *   (m + p - 1)(f + b) + 2 (p - 1) c + 2 (m - 1) d.
 */
static void
test_blocking_gpipe(void)
{
    static const int64_t times[SCHEDULE_OP_N] = {317, 641, 0, 0};

    for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++)
        for (int64_t c = 0; c < 400; c += 57) {
            const int64_t p = sizes[i][0], m = sizes[i][1];
            const int64_t d = p == 1 ? 0 : p == 2 ? c : 2 * c;
            g_autoptr(Schedule) schedule = build("gpipe", p, m, 1);
            g_autoptr(Workload) workload = plain_workload(schedule, times, c);
            workload->blocking_messages = true;
            g_autoptr(Report) report = simulate(schedule, workload);
            g_assert_cmpint(report->iteration_ns, ==,
                            (m + p - 1) * (317 + 641) + 2 * (p - 1) * c + 2 * (m - 1) * d);
            const int64_t messages = p == 1 ? 0 : 2; /* first stage: one sent, one received */
            g_assert_cmpint(row_of(report, 0)->busy_ns, ==, m * (317 + 641 + messages * c));
            g_assert_cmpint(row_of(report, 0)->communication_ns, ==, m * messages * c);
        }
}

/*
 * TeraPipe: slices of times t_1..t_n through K equal stages, each message c under way (overlapped).
 * All stages take slices in the same order, so a stage's i-th start is the longest path through
 * (slice, stage): sum of t + (K - 1)(max t + c) per direction [TeraPipe 2102.07988 eq. 4].  The
 * backward begins on the last stage when its forward ends, and finds every other rank free.
 */
static void
test_terapipe_uneven_slices(void)
{
    uint64_t state = 1;

    for (int round = 0; round < 300; round++) {
        const int64_t K = random_in(&state, 1, 12), n = random_in(&state, 1, 20);
        const int64_t m = random_in(&state, 1, 3), c = random_in(&state, 0, 1) * 41;
        g_autoptr(Schedule) schedule = build("terapipe", K, m, n);
        g_autoptr(Workload) workload = empty_workload(schedule, 1);
        int64_t sum = 0, most[2] = {0, 0};
        for (int64_t s = 0; s < n; s++) {
            const int64_t t[2] = {random_in(&state, 1, 1000), random_in(&state, 1, 1000)};
            for (int32_t stage = 0; stage < K; stage++) {
                WorkloadOp *op = &workload->ops[stage * n + s];
                op->time_ns[SCHEDULE_OP_FORWARD] = t[0];
                op->time_ns[SCHEDULE_OP_BACKWARD] = t[1];
                op->forward_message.ns = op->backward_message.ns = c;
            }
            sum += m * (t[0] + t[1]);
            most[0] = MAX(most[0], t[0]);
            most[1] = MAX(most[1], t[1]);
        }
        g_autoptr(Report) report = simulate(schedule, workload);
        g_assert_cmpint(report->iteration_ns, ==,
                        sum + (K - 1) * (most[0] + c) + (K - 1) * (most[1] + c));
    }
}

/* --- the oracle --- */

static void
assert_equals_oracle(const Oracle *o, const Report *report)
{
    g_assert_cmpint(report->iteration_ns, ==, o->makespan);
    g_assert_cmpint(report->span_ns, ==, o->span);
    for (int32_t r = 0; r < o->schedule->n_ranks; r++) {
        const ReportRank *row = row_of(report, r);
        g_assert_cmpint(row->busy_ns, ==, o->busy[r]);
        g_assert_cmpint(row->bubble_ns, ==, o->makespan - o->busy[r]);
        g_assert_cmpint(row->bubble_ns, >=, 0);
        g_assert_cmpint(row->peak_in_flight, ==, o->in_flight[r]);
        g_assert_cmpint(row->peak_memory_bytes, ==, o->peak[r]);
        g_assert_cmpint(row->peak_time_ns, ==, o->peak_time[r]);
        g_assert_cmpint(memcmp(row->memory_bytes, o->owner[r], sizeof o->owner[r]), ==, 0);
    }
}

/* Each part of the breakdown, and communication, op by op. */
static void
assert_breakdown(const Oracle *o, const Report *report)
{
    const double n = o->schedule->n_ranks;
    int64_t part[PROFILE_PART_N] = {0}, blocked = 0, waited = 0;

    for (int32_t r = 0; r < o->schedule->n_ranks; r++) {
        const WorkloadRank *rank = &o->workload->ranks[r];
        int64_t communication = rank->dp_reduce_ns + rank->dp_gather_ns;
        for (int64_t i = o->schedule->rank_begin[r]; i < o->schedule->rank_begin[r + 1]; i++) {
            const OracleOp *op = &o->ops[i];
            const int64_t *p = oracle_workload(o, op, op->stage)->part_ns[op->op.kind];
            for (int k = 0; k < PROFILE_PART_N; k++)
                part[k] += p[k];
            /* The op's bookkeeping, and what it was slowed by. */
            part[PROFILE_PART_COMPUTE] +=
                op->end - op->start - oracle_workload(o, op, op->stage)->time_ns[op->op.kind];
            blocked += (op->start - op->begin) + (op->free - op->end);
            communication += op->message_ns + p[PROFILE_PART_TP] + p[PROFILE_PART_CP] +
                             p[PROFILE_PART_EP] + p[PROFILE_PART_DP];
        }
        g_assert_cmpint(row_of(report, r)->communication_ns, ==, communication);
        waited += o->finish[r] - o->free[r] - rank->optimizer_ns + o->waited[r];
        part[PROFILE_PART_COMPUTE] -= o->waited[r];
    }
    const double parts[][2] = {
        {report->breakdown.compute_s, (double)part[PROFILE_PART_COMPUTE]},
        {report->breakdown.tp_s, (double)part[PROFILE_PART_TP]},
        {report->breakdown.cp_s, (double)part[PROFILE_PART_CP]},
        {report->breakdown.ep_s, (double)part[PROFILE_PART_EP]},
        {report->breakdown.recompute_s, (double)part[PROFILE_PART_RECOMPUTE]},
        {report->breakdown.pp_s, (double)blocked},
        {report->breakdown.dp_s, (double)(part[PROFILE_PART_DP] + waited)},
    };
    for (size_t i = 0; i < G_N_ELEMENTS(parts); i++)
        g_assert_cmpfloat_with_epsilon(parts[i][0] * n, parts[i][1] * 1e-9, 1e-15);
}

static double
sum_of_breakdown(const Report *report)
{
    return report->breakdown.compute_s + report->breakdown.tp_s + report->breakdown.pp_s +
           report->breakdown.dp_s + report->breakdown.cp_s + report->breakdown.ep_s +
           report->breakdown.recompute_s + report->breakdown.optimizer_s +
           report->breakdown.bubble_s;
}

static void
test_equals_oracle(void)
{
    for (uint64_t seed = 0; seed < 10000; seed++) {
        uint64_t state = seed;
        g_autoptr(Schedule) schedule = random_schedule(&state);
        g_autoptr(Workload) workload = random_workload(&state, schedule, seed % 2 ? 7 : 1000000);
        g_autoptr(Oracle) oracle = oracle_new(schedule, workload);
        g_autoptr(Report) report = simulate(schedule, workload);
        assert_equals_oracle(oracle, report);
        assert_breakdown(oracle, report);
        g_assert_cmpfloat_with_epsilon(sum_of_breakdown(report),
                                       units_s_from_ns(report->iteration_ns), 1e-15);
    }
}

/* Nothing of the report depends on what else is wanted. */
static void
test_options_agree(void)
{
    for (uint64_t seed = 0; seed < 200; seed++) {
        uint64_t state = seed;
        g_autoptr(Schedule) schedule = random_schedule(&state);
        g_autoptr(Workload) workload = random_workload(&state, schedule, 50);
        const SimOptions options = {.want_trace = true, .want_memory = true};
        g_autoptr(Oracle) oracle = oracle_new(schedule, workload);
        g_auto(SimResult) result = {0};
        g_assert_true(sim_run(schedule, workload, &options, &result, NULL));
        assert_equals_oracle(oracle, result.report);
        g_auto(SimResult) bare = {0};
        g_assert_true(sim_run(schedule, workload, NULL, &bare, NULL));
        g_assert_cmpint(bare.report->iteration_ns, ==, oracle->makespan);
        g_assert_cmpint(bare.report->peak_memory_bytes, ==, 0);
        g_assert_true(bare.report->fits);
    }
}

/* --- the authors' schedules --- */

static void
check_file(const char *folder, const char *file)
{
    g_autofree char *path = g_build_filename(folder, file, NULL);
    g_autoptr(GError) error = NULL;
    g_autoptr(Schedule) schedule = schedule_load(path, &error);
    g_assert_no_error(error);
    g_autoptr(JsonDoc) doc = json_doc_load(path, &error);
    g_assert_no_error(error);
    const JsonValue *root = json_doc_root(doc, "degas-schedule", 1);
    const JsonValue *expected = json_object(doc, root, "expected");
    g_autoptr(Workload) workload = workload_new_plain(schedule, unit_times, 0);
    g_autoptr(Report) report = simulate(schedule, workload);

    g_test_message("%s", file);
    g_assert_cmpint(report->iteration_ns, ==,
                    json_int64(doc, expected, "makespan", 0, JSON_MAX_INT));
    g_assert_cmpint(report->span_ns, ==, json_int64(doc, expected, "span", 0, JSON_MAX_INT));
    const JsonValue *busy = json_first(json_array(doc, expected, "busy"));
    const JsonValue *peak = json_first(json_array(doc, expected, "peak_in_flight"));
    for (int32_t r = 0; r < schedule->n_ranks; r++) {
        g_assert_cmpint(row_of(report, r)->busy_ns, ==,
                        json_value_int64(doc, busy, 0, JSON_MAX_INT));
        g_assert_cmpint(row_of(report, r)->peak_in_flight, ==,
                        json_value_int64(doc, peak, 0, INT32_MAX));
        busy = json_next(busy);
        peak = json_next(peak);
    }
    g_assert_true(json_doc_finish(doc, &error));
}

static void
test_authors_numbers(void)
{
    const char *shared = g_getenv("DEGAS_SHARED");
    g_autofree char *folder =
        g_build_filename(shared == NULL ? "../shared" : shared, "schedules", NULL);
    g_autoptr(GDir) dir = g_dir_open(folder, 0, NULL);
    const char *file;
    int n_files = 0;

    if (dir == NULL) {
        g_autofree char *why = g_strdup_printf("no folder %s (set DEGAS_SHARED)", folder);
        g_test_skip(why);
        return;
    }
    for (; (file = g_dir_read_name(dir)) != NULL; n_files++)
        if (g_str_has_suffix(file, ".json"))
            check_file(folder, file);
    g_assert_cmpint(n_files, >, 0);
}

/* --- rates and limits --- */

static void
test_rates(void)
{
    static const int64_t times[SCHEDULE_OP_N] = {500000000, 1500000000, 0, 0};
    g_autoptr(Schedule) schedule = build("gpipe", 2, 3, 1); /* (3 + 1) * 2 s */
    g_autoptr(Workload) workload = plain_workload(schedule, times, 0);

    workload->tokens = 4096;
    workload->model_flops = 64e12;
    workload->n_devices = 8;
    workload->ranks[0].device_flops_per_s = 3e12;
    workload->ranks[1].device_flops_per_s = 5e12;
    workload->price_per_device_hour = 4.5;
    workload->power_w_per_device = 700;
    workload->ranks[0].memory_limit_bytes = 1000;
    workload->ranks[1].memory_limit_bytes = 900;
    workload->ranks[0].static_bytes[TRACE_MEMORY_WEIGHTS] = 950;
    g_autoptr(Report) report = simulate(schedule, workload);
    g_assert_cmpfloat(report->tokens_per_s, ==, 512);
    g_assert_cmpfloat(report->model_flops_per_s_per_device, ==, 1e12);
    g_assert_cmpfloat(report->model_flops_utilization_fraction, ==, 0.25);
    g_assert_cmpfloat_with_epsilon(report->cost_per_iteration, 4.5 * 8 * 8 / 3600, 1e-15);
    g_assert_cmpfloat(report->energy_per_iteration_j, ==, 700.0 * 8 * 8);
    g_assert_cmpint(report->memory_limit_bytes, ==, 900);
    g_assert_cmpint(report->peak_memory_bytes, ==, 950);
    g_assert_true(report->fits); /* rank 0 may hold 1000 */
    workload->ranks[1].static_bytes[TRACE_MEMORY_WEIGHTS] = 901;
    g_autoptr(Report) second = simulate(schedule, workload);
    g_assert_false(second->fits);
}

static void
test_unknown_rates_are_nan(void)
{
    g_autoptr(Schedule) schedule = build("gpipe", 2, 3, 1);
    g_autoptr(Workload) workload = workload_new_plain(schedule, unit_times, 0);
    g_autoptr(Report) report = simulate(schedule, workload);

    g_assert_true(report->tokens_per_s != report->tokens_per_s);
    g_assert_true(report->model_flops_per_s_per_device != report->model_flops_per_s_per_device);
    g_assert_true(report->cost_per_iteration != report->cost_per_iteration);
    g_assert_true(report->energy_per_iteration_j != report->energy_per_iteration_j);
    workload->n_devices = 8; /* whose power and price are not known */
    g_autoptr(Report) second = simulate(schedule, workload);
    g_assert_true(second->cost_per_iteration != second->cost_per_iteration);
    g_assert_true(second->energy_per_iteration_j != second->energy_per_iteration_j);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/simulator/simulate/equal-stages", test_equal_stages);
    g_test_add_func("/simulator/simulate/blocking-gpipe", test_blocking_gpipe);
    g_test_add_func("/simulator/simulate/terapipe-uneven-slices", test_terapipe_uneven_slices);
    g_test_add_func("/simulator/simulate/equals-oracle", test_equals_oracle);
    g_test_add_func("/simulator/simulate/options-agree", test_options_agree);
    g_test_add_func("/simulator/simulate/authors-numbers", test_authors_numbers);
    g_test_add_func("/simulator/simulate/rates", test_rates);
    g_test_add_func("/simulator/simulate/unknown-rates-are-nan", test_unknown_rates_are_nan);
    return g_test_run();
}
