/*
 * Tests of simulator/vary.h, factors.h and SimJitter: nothing varies at sigma 0; the distributions
 * are those stated; threads, order and machine do not matter.
 */
#include "simulator/vary.h"

#include <math.h>
#include <string.h>

#include "simulator/factors.h"
#include "simulator/simulate.h"
#include "tests/schedule/evaluate.h"
#include "tests/simulator/random.h"

static ReportJitter
vary(const Schedule *schedule, const Workload *workload, const SimJitter *jitter, int64_t *fixed_ns,
     int64_t *fixed_bytes)
{
    const SimOptions options = {.jitter = jitter, .want_memory = true};
    g_autoptr(GError) error = NULL;
    g_auto(SimResult) result = {0};

    const bool fine = sim_run(schedule, workload, &options, &result, &error);

    g_assert_no_error(error);
    g_assert_true(fine);
    if (fixed_ns != NULL)
        *fixed_ns = result.report->iteration_ns;
    if (fixed_bytes != NULL)
        *fixed_bytes = result.report->peak_memory_bytes;
    return result.report->jitter;
}

/* --- numbers --- */

static void
test_exp_is_that_of_libm(void)
{
    for (int i = -16000; i <= 16000; i++) {
        const double x = i / 1000.0;
        g_assert_cmpfloat(fabs(sim_vary_exp(x) / exp(x) - 1), <, 1e-14 * (16 + fabs(x)));
    }
}

/* Phi(z) = erfc(-z / sqrt 2) / 2. */
static void
test_quantiles_are_normal(void)
{
    static double z[SIM_VARY_QUANTILES];
    double sum = 0, squares = 0;

    sim_vary_quantiles(z);
    for (int i = 0; i < SIM_VARY_QUANTILES; i++) {
        const double p = (i + 0.5) / SIM_VARY_QUANTILES;
        g_assert_cmpfloat(fabs(erfc(-z[i] / sqrt(2)) / 2 - p), <, 1e-12);
        g_assert_true(z[i] == -z[SIM_VARY_QUANTILES - 1 - i]);
        sum += z[i];
        squares += z[i] * z[i];
    }
    g_assert_true(fabs(sum) < 1e-9);
    g_assert_cmpfloat(fabs(squares / SIM_VARY_QUANTILES - 1), <, 2e-3);
}

/* --- no jitter --- */

/* Whatever the schedule: blocking or overlapped messages, reductions behind the last backward,
 * replicas, shared links. */
static void
test_sigma_zero_is_the_run_itself(void)
{
    static const int32_t node[4] = {0, 0, 0, 0};

    for (uint64_t seed = 0; seed < 1000; seed++) {
        uint64_t state = seed ^ 0x51;
        g_autoptr(Schedule) schedule = random_schedule(&state);
        g_autoptr(Workload) workload = random_workload(&state, schedule, seed % 2 ? 6 : 1000000);
        const SimJitter jitter = {.n_runs = 3, .n_replicas = 1 + (int64_t)(seed % 3), .seed = seed};
        int64_t ns, bytes;
        if (seed % 4 == 0)
            random_links(&state, schedule, workload, node, 1e9, 2e9);
        const ReportJitter result = vary(schedule, workload, &jitter, &ns, &bytes);
        for (int i = 0; i < 3; i++) {
            g_assert_cmpint(result.iteration_ns[i], ==, ns);
            g_assert_cmpint(result.peak_memory_bytes[i], ==, bytes);
        }
        g_assert_cmpint(result.n_runs, ==, 3);
    }
}

/* Likewise with overlapped pairs, which take as long as the longer of them, or as all pairs do. */
static void
test_sigma_zero_keeps_pairs(void)
{
    int n_pairs = 0;

    for (uint64_t seed = 0; seed < 1000; seed++) {
        uint64_t state = seed ^ 0x9a15;
        g_autoptr(Schedule) schedule = random_schedule(&state);
        random_pairs(&state, schedule);
        g_autoptr(Workload) workload = random_workload(&state, schedule, seed % 2 ? 6 : 1000000);
        const SimJitter jitter = {.n_runs = 2, .n_replicas = 1, .seed = seed};
        const SimOptions options = {.jitter = &jitter};
        g_auto(SimResult) result = {0};
        g_autoptr(GError) error = NULL;

        workload->blocking_messages = false;
        workload->pair_ns = seed % 3 == 0 ? random_in(&state, 1, 8) : 0;
        if (!sim_run(schedule, workload, &options, &result, &error)) {
            g_assert_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_DEADLOCK);
            continue; /* pairs that wait for each other */
        }
        for (int i = 0; i < 3; i++)
            g_assert_cmpint(result.report->jitter.iteration_ns[i], ==, result.report->iteration_ns);
        n_pairs += (int)schedule->overlap_pairs->len;
    }
    g_assert_cmpint(n_pairs, >, 500);
}

/* What follows a rank's last op is its own, whichever rank has most of it. */
static void
test_sigma_zero_keeps_what_follows(void)
{
    static const int64_t times[SCHEDULE_OP_N] = {1000, 2000, 0, 0};
    const SimJitter jitter = {.n_runs = 2, .n_replicas = 1};

    for (int32_t longest = 0; longest < 3; longest++)
        for (int part = 0; part < 3; part++) {
            g_autoptr(Schedule) schedule = new_schedule("1f1b", 3, 1, 4, 1);
            g_autoptr(Workload) workload = plain_workload(schedule, times, 0);
            int64_t ns;
            for (int32_t r = 0; r < 3; r++) {
                WorkloadRank *rank = &workload->ranks[r];
                int64_t *of[] = {&rank->dp_reduce_ns, &rank->optimizer_ns, &rank->dp_gather_ns};
                *of[part] = r == longest ? 100000 + r : 10 * (r + 1);
            }
            const ReportJitter result = vary(schedule, workload, &jitter, &ns, NULL);
            /* 1F1B ends on rank 0 after (m + p - 1) (f + b), on rank r two thirds of r rounds before. */
            g_assert_cmpint(ns, ==, 6 * 3000 - 2000 * longest + 100000 + longest);
            g_assert_cmpint(result.iteration_ns[0], ==, ns);
            g_assert_cmpint(result.iteration_ns[1], ==, ns);
        }
}

/* --- distributions --- */

/* n F and n B of 1 s on one rank. */
static void
serial(int64_t n, Schedule **schedule, Workload **workload)
{
    static const int64_t times[SCHEDULE_OP_N] = {1000000000, 1000000000, 0, 0};

    *schedule = new_schedule("gpipe", 1, 1, n, 1);
    *workload = plain_workload(*schedule, times, 0);
}

static void
assert_near(int64_t ns, double expect_s, double tolerance)
{
    if (fabs((double)ns / 1e9 / expect_s - 1) > tolerance)
        g_error("%.6f s, expected %.6f s", (double)ns / 1e9, expect_s);
}

/* z of the shares 0.1 and 0.9. */
#define Z90 1.2815515655446004

/* Median 1; of n draws the sum varies by 1 / sqrt(n) of one, a factor of the rank by itself. */
static void
test_percentiles_are_those_of_the_distribution(void)
{
    const double sigma = 0.1;
    g_autoptr(Schedule) schedule = NULL;
    g_autoptr(Workload) workload = NULL;

    serial(200, &schedule, &workload);
    const SimJitter of_rank = {.rank_sigma = sigma, .n_runs = 100000, .seed = 1};
    const ReportJitter rank = vary(schedule, workload, &of_rank, NULL, NULL);
    assert_near(rank.iteration_ns[0], 400 * exp(-Z90 * sigma), 3e-3);
    assert_near(rank.iteration_ns[1], 400, 3e-3);
    assert_near(rank.iteration_ns[2], 400 * exp(Z90 * sigma), 3e-3);

    /* Mean of a log-normal: exp(s^2 / 2); variance: exp(s^2) (exp(s^2) - 1). */
    const SimJitter of_ops = {.op_sigma = sigma, .n_runs = 10000, .seed = 1};
    const ReportJitter ops = vary(schedule, workload, &of_ops, NULL, NULL);
    const double mean = exp(sigma * sigma / 2);
    const double spread = mean * sqrt(exp(sigma * sigma) - 1) / sqrt(400);
    assert_near(ops.iteration_ns[0], 400 * (mean - Z90 * spread), 5e-4);
    assert_near(ops.iteration_ns[1], 400 * mean, 5e-4);
    assert_near(ops.iteration_ns[2], 400 * (mean + Z90 * spread), 5e-4);
}

/* Each message varies by itself, also those of the two ops of a pair: the second rank does F1 and B0 at once, then
 * B1, and the first rank waits for the later of both messages.  Of two draws the larger one is below x with
 * P(x)^2: z of the roots of 0.1, 0.5 and 0.9. */
static void
test_messages_of_a_pair_vary_alone(void)
{
    static const char *const ranks[] = {"F0.0 F1.0 B0.0 B1.0", "F0.0 F1.0 B0.0 B1.0"};
    static const ScheduleShape shape = {2, 1, 2, 1, 0, NULL};
    static const int64_t times[SCHEDULE_OP_N] = {1, 1, 0, 0};
    const SimJitter jitter = {.op_sigma = 0.1, .n_runs = 100000, .seed = 1};
    g_autoptr(Schedule) schedule = schedule_from_text(&shape, SCHEDULE_PLACEMENT_LOOP, ranks);
    g_autoptr(Workload) workload = plain_workload(schedule, times, 0);
    const int64_t pair = schedule->rank_begin[1] + 1;

    schedule->overlap_pairs = g_array_new(FALSE, FALSE, sizeof(int64_t));
    g_array_append_val(schedule->overlap_pairs, pair);
    workload->ops[1].backward_message.ns = 1000000000;
    const ReportJitter result = vary(schedule, workload, &jitter, NULL, NULL);
    assert_near(result.iteration_ns[0], exp(-0.4783 * 0.1), 2e-3);
    assert_near(result.iteration_ns[1], exp(0.5450 * 0.1), 2e-3);
    assert_near(result.iteration_ns[2], exp(1.6322 * 0.1), 2e-3);
}

/* Where sigma goes by durations these are means: the sum of many is what it is without jitter. */
static void
test_means_stay(void)
{
    g_autoptr(Schedule) schedule = NULL;
    g_autoptr(Workload) workload = NULL;
    const double sigma = 0.2, lasting = 0.1;

    serial(200, &schedule, &workload);
    const SimJitter of_ops = {.op_sigma = sigma, .correlation_s = 0.5, .n_runs = 10000, .seed = 1};
    const ReportJitter ops = vary(schedule, workload, &of_ops, NULL, NULL);
    assert_near(ops.iteration_ns[1], 400, 5e-4);
    const SimJitter of_rank = {
        .rank_sigma = lasting, .correlation_s = 0.5, .n_runs = 100000, .seed = 1};
    const ReportJitter rank = vary(schedule, workload, &of_rank, NULL, NULL);
    assert_near(rank.iteration_ns[1], 400 * exp(-lasting * lasting / 2), 1e-3);
}

/* By how much times differ that lie between 10 and 90 %, as a normal variable's sigma. */
static double
sigma_of(const ReportJitter *result)
{
    return log((double)result->iteration_ns[2] / (double)result->iteration_ns[0]) / (2 * Z90);
}

/* However the time is cut into ops it varies by as much: 0.1 of a process that forgets itself
 * within tau = 0.25 s, and 0.03 that lasts. */
static void
test_slow_ops_stay_slow(void)
{
    static const struct {
        double seconds;
        int64_t n_ops;
    } cases[] = {{1e-3, 1}, {0.25, 1}, {0.25, 10}, {1, 1}, {1, 100}, {4, 1}, {4, 7}};

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const int64_t ns = (int64_t)(cases[i].seconds * 1e9) / cases[i].n_ops;
        const int64_t times[SCHEDULE_OP_N] = {ns, 0, 0, 0};
        g_autoptr(Schedule) schedule = new_schedule("gpipe", 1, 1, (int32_t)cases[i].n_ops, 1);
        g_autoptr(Workload) workload = plain_workload(schedule, times, 0);
        const SimJitter jitter = {
            .op_sigma = 0.1, .correlation_s = 0.5, .rank_sigma = 0.03, .n_runs = 20000, .seed = 1};
        const ReportJitter result = vary(schedule, workload, &jitter, NULL, NULL);
        const double u = cases[i].seconds / 0.25;
        const double variance = 0.01 * 2 * (u - 1 + exp(-u)) / (u * u) + 0.0009;
        /* Levels are an eighth of an octave off at most. */
        assert_near((int64_t)(sigma_of(&result) * 1e9), sqrt(variance), 0.04);
        g_assert_cmpfloat(result.correlation_s, ==, 0.5);
    }
}

static void
set_time(WorkloadOp *op, ScheduleOpKind kind, int64_t ns)
{
    op->time_ns[kind] = op->part_ns[kind][PROFILE_PART_COMPUTE] = ns;
}

/* How slow a rank is it forgets while it waits: 0.25 s of work, @wait_s of the other rank's, 0.25
 * s. */
static void
assert_forgets(double wait_s)
{
    const double sigma = 0.1, tau = 0.25, u = 0.25 / tau, wait = wait_s / tau;
    const int64_t none[SCHEDULE_OP_N] = {0};
    g_autoptr(Schedule) schedule = new_schedule("gpipe", 2, 1, 1, 1);
    g_autoptr(Workload) workload = plain_workload(schedule, none, 0);
    const SimJitter jitter = {
        .op_sigma = sigma, .correlation_s = 2 * tau, .n_runs = 50000, .seed = 1};

    set_time(&workload->ops[0], SCHEDULE_OP_FORWARD, 250000000);
    set_time(&workload->ops[0], SCHEDULE_OP_BACKWARD, 250000000);
    set_time(&workload->ops[1], SCHEDULE_OP_FORWARD, (int64_t)(wait_s * 1e9));
    const ReportJitter result = vary(schedule, workload, &jitter, NULL, NULL);
    const double part = 2 * (u - 1 + exp(-u)) / (u * u);
    const double again = pow((1 - exp(-u)) / u, 2) * exp(-wait);
    const double other = 2 * (wait - 1 + exp(-wait)) / (wait * wait);
    const double variance =
        sigma * sigma * (2 * 0.25 * 0.25 * (part + again) + wait_s * wait_s * other);
    assert_near((int64_t)(sigma_of(&result) * (double)result.iteration_ns[1]), sqrt(variance),
                0.03);
}

/* Of 0.05 s little is forgotten (all: 0.0307 s, not 0.0368), of 0.5 s much (nothing: 0.0533 s, not
 * 0.0491). */
static void
test_speeds_are_forgotten(void)
{
    assert_forgets(0.05);
    assert_forgets(0.5);
}

/* What an op's mean is made of, over its deviation, has variance 1 (factors.h): ends (X0 + X1) + between z', X0 + X1
 * of variance 2 + 2 a; so it has where short ops' parts are computed by their series, too. */
static void
test_parts_of_speeds_add_up(void)
{
    g_auto(SimSpeeds) speeds = {.sigma = 0.1, .correlation_s = 1};

    for (int bit = 0; bit < 62; bit++)
        for (int64_t quarter = 4; quarter < 8; quarter++) {
            const int64_t ns = bit < 2 ? (quarter << bit) / 4 : quarter << (bit - 2);
            const SimSpeedLevel *level = sim_speeds_level(&speeds, ns);
            const double variance = level->ends * level->ends * (2 + 2 * level->keeps) +
                                    level->between * level->between;
            g_assert_cmpfloat_with_epsilon(variance, 1, 1e-6);
            g_assert_cmpfloat_with_epsilon(
                level->keeps * level->keeps + level->forgets * level->forgets, 1, 3e-6);
        }
}

/* Of R draws the largest is below x with probability P(x)^R. */
static void
assert_slowest_of_8(const SimJitter *jitter)
{
    g_autoptr(Schedule) schedule = NULL;
    g_autoptr(Workload) workload = NULL;
    static double z[SIM_VARY_QUANTILES];

    serial(2, &schedule, &workload);
    sim_vary_quantiles(z);
    const ReportJitter result = vary(schedule, workload, jitter, NULL, NULL);
    for (int i = 0; i < 3; i++) {
        const double p = pow((double[]){0.1, 0.5, 0.9}[i], 1.0 / 8);
        const double shift = jitter->correlation_s > 0 ? -0.1 * 0.1 / 2 : 0;
        assert_near(result.iteration_ns[i], 4 * exp(0.1 * z[(int)(p * SIM_VARY_QUANTILES)] + shift),
                    4e-3);
    }
}

static void
test_replicas_end_with_the_slowest(void)
{
    assert_slowest_of_8(
        &(SimJitter){.rank_sigma = 0.1, .n_runs = 50000, .n_replicas = 8, .seed = 3});
}

/* A rank is as slow as the slowest of its members. */
static void
test_members_wait_for_the_slowest(void)
{
    assert_slowest_of_8(
        &(SimJitter){.rank_sigma = 0.1, .n_runs = 50000, .n_members = 8, .seed = 3});
    /* In every op, if that lasts for the whole run too. */
    assert_slowest_of_8(&(SimJitter){
        .op_sigma = 0.1, .correlation_s = 1e6, .n_runs = 50000, .n_members = 8, .seed = 3});
}

/* One rank is a straggler with probability 0.3: p50 is without, p90 with. */
static void
test_stragglers(void)
{
    g_autoptr(Schedule) schedule = NULL;
    g_autoptr(Workload) workload = NULL;
    static const struct {
        double fraction;
        int64_t p50_s, p90_s;
    } cases[] = {{0, 4, 4}, {0.05, 4, 4}, {0.3, 4, 12}, {0.7, 12, 12}, {1, 12, 12}};

    serial(2, &schedule, &workload);
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const SimJitter jitter = {.straggler_fraction = cases[i].fraction,
                                  .straggler_slowdown = 3,
                                  .n_runs = 5000,
                                  .seed = 5};
        const ReportJitter result = vary(schedule, workload, &jitter, NULL, NULL);
        g_assert_cmpint(result.iteration_ns[1], ==, cases[i].p50_s * 1000000000);
        g_assert_cmpint(result.iteration_ns[2], ==, cases[i].p90_s * 1000000000);
        /* The report says of what. */
        g_assert_cmpfloat(result.straggler_fraction, ==, cases[i].fraction);
        g_assert_cmpfloat(result.straggler_slowdown, ==, 3);
    }
}

/* Ranks that hold 10^9 bytes and may hold exp(0.5 sigma) of that: each fits with probability
 * Phi(0.5) = 0.6915, all of them with its power. */
static void
test_probability_to_fit(void)
{
    for (int p = 1; p <= 4; p++) {
        static const int64_t times[SCHEDULE_OP_N] = {1, 1, 0, 0};
        g_autoptr(Schedule) schedule = new_schedule("gpipe", p, 1, 1, 1);
        g_autoptr(Workload) workload = plain_workload(schedule, times, 0);
        const SimJitter jitter = {.memory_sigma = 0.02, .n_runs = 40000, .seed = 7};
        for (int r = 0; r < p; r++) {
            workload->ranks[r].static_bytes[TRACE_MEMORY_WEIGHTS] = 1000000000;
            workload->ranks[r].memory_limit_bytes = (int64_t)(1e9 * exp(0.5 * 0.02));
        }
        const ReportJitter result = vary(schedule, workload, &jitter, NULL, NULL);
        const double expect = pow(erfc(-0.5 / sqrt(2)) / 2, p);
        g_assert_cmpfloat(fabs(result.fit_fraction - expect), <, 0.01);
        /* The largest of p. */
        assert_near(result.peak_memory_bytes[1],
                    p == 1 ? 1.0
                           : 1.0 + 0.02 * (p == 2   ? 0.545
                                           : p == 3 ? 0.819
                                                    : 0.998),
                    1e-3);
    }
}

/* --- repeatable --- */

static void
test_threads_do_not_matter(void)
{
    for (uint64_t seed = 0; seed < 60; seed++) {
        uint64_t state = seed ^ 0x7472;
        g_autoptr(Schedule) schedule = random_schedule(&state);
        g_autoptr(Workload) workload = random_workload(&state, schedule, 1000000);
        SimJitter jitter = {.op_sigma = 0.3,
                            .rank_sigma = 0.2,
                            .memory_sigma = 0.1,
                            .straggler_fraction = 0.1,
                            .straggler_slowdown = 2,
                            .n_runs = 50,
                            .n_replicas = 2,
                            .correlation_s = seed % 2 == 0 ? 0.0 : 1e-3,
                            .n_members = 1 + (int64_t)(seed % 3),
                            .seed = seed};
        const ReportJitter one = vary(schedule, workload, &jitter, NULL, NULL);
        jitter.n_threads = 1 + (int64_t)(seed % 7);
        const ReportJitter many = vary(schedule, workload, &jitter, NULL, NULL);
        g_assert_cmpint(memcmp(&one, &many, sizeof one), ==, 0);
        jitter.seed++;
        const ReportJitter other = vary(schedule, workload, &jitter, NULL, NULL);
        g_assert_cmpint(one.iteration_ns[0], !=, other.iteration_ns[0]);
    }
}

/* Worked out by hand with the generator's definition in Python (integers and decimals of 50
 * digits): what another processor must give as well. */
static void
test_known_answer(void)
{
    g_autoptr(Schedule) schedule = NULL;
    g_autoptr(Workload) workload = NULL;
    const SimJitter jitter = {.op_sigma = 0.05, .rank_sigma = 0.02, .n_runs = 1, .seed = 42};

    serial(2, &schedule, &workload);
    const ReportJitter result = vary(schedule, workload, &jitter, NULL, NULL);
    g_assert_cmpint(result.iteration_ns[1], ==, INT64_C(4050976407));
}

static void
test_refuses_times_without_end(void)
{
    static const int64_t times[SCHEDULE_OP_N] = {SIM_MAX_NS / 10, SIM_MAX_NS / 10, 0, 0};
    g_autoptr(Schedule) schedule = new_schedule("gpipe", 1, 1, 2, 1);
    g_autoptr(Workload) workload = plain_workload(schedule, times, 0);
    const SimJitter jitter = {.op_sigma = 2, .n_runs = 1};
    const SimOptions options = {.jitter = &jitter};
    g_autoptr(GError) error = NULL;
    g_auto(SimResult) result = {0};

    g_assert_false(sim_run(schedule, workload, &options, &result, &error));
    g_assert_error(error, SCHEDULE_ERROR, SCHEDULE_ERROR_LIMIT);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/simulator/vary/exp-is-that-of-libm", test_exp_is_that_of_libm);
    g_test_add_func("/simulator/vary/quantiles-are-normal", test_quantiles_are_normal);
    g_test_add_func("/simulator/vary/sigma-zero-is-the-run-itself",
                    test_sigma_zero_is_the_run_itself);
    g_test_add_func("/simulator/vary/sigma-zero-keeps-what-follows",
                    test_sigma_zero_keeps_what_follows);
    g_test_add_func("/simulator/vary/percentiles-are-those-of-the-distribution",
                    test_percentiles_are_those_of_the_distribution);
    g_test_add_func("/simulator/vary/slow-ops-stay-slow", test_slow_ops_stay_slow);
    g_test_add_func("/simulator/vary/speeds-are-forgotten", test_speeds_are_forgotten);
    g_test_add_func("/simulator/vary/parts-of-speeds-add-up", test_parts_of_speeds_add_up);
    g_test_add_func("/simulator/vary/replicas-end-with-the-slowest",
                    test_replicas_end_with_the_slowest);
    g_test_add_func("/simulator/vary/sigma-zero-keeps-pairs", test_sigma_zero_keeps_pairs);
    g_test_add_func("/simulator/vary/messages-of-a-pair-vary-alone",
                    test_messages_of_a_pair_vary_alone);
    g_test_add_func("/simulator/vary/means-stay", test_means_stay);
    g_test_add_func("/simulator/vary/members-wait-for-the-slowest",
                    test_members_wait_for_the_slowest);
    g_test_add_func("/simulator/vary/stragglers", test_stragglers);
    g_test_add_func("/simulator/vary/probability-to-fit", test_probability_to_fit);
    g_test_add_func("/simulator/vary/threads-do-not-matter", test_threads_do_not_matter);
    g_test_add_func("/simulator/vary/known-answer", test_known_answer);
    g_test_add_func("/simulator/vary/refuses-times-without-end", test_refuses_times_without_end);
    return g_test_run();
}
