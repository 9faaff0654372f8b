/* Tests of planner/goodput.h: published intervals, the minimum found by search, an event
 * simulation, a published run. */
#include <math.h>

#include "planner/goodput.h"

#define MINUTE 60.0
#define HOUR 3600.0

/*
 * Daly 2006: figures 3 to 5 print the interval of his formula, in minutes, for a checkpoint of 5
 * minutes.  Young's is sqrt(2 * 5 * M): sqrt(14400), sqrt(3600), sqrt(150).
 */
static void
test_published_intervals(void)
{
    static const struct {
        double mtbf_s, daly_min, digits_min, young_min;
    } cases[] = {
        {24 * HOUR, 117, 0.5, 120},
        {6 * HOUR, 57, 0.5, 60},
        {15 * MINUTE, 9.1, 0.05, 12.247449},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_assert_cmpfloat_with_epsilon(plan_goodput_daly_s(5 * MINUTE, cases[i].mtbf_s) / MINUTE,
                                       cases[i].daly_min, cases[i].digits_min);
        g_assert_cmpfloat_with_epsilon(plan_goodput_young_s(5 * MINUTE, cases[i].mtbf_s) / MINUTE,
                                       cases[i].young_min, 1e-6);
    }
    /* By hand: d = 2, M = 100: sqrt(400) (1 + 0.1 / 3 + 0.01 / 9) - 2 = 18.688888... */
    g_assert_cmpfloat_with_epsilon(plan_goodput_daly_s(2, 100), 18.6888888888889, 1e-9);
    /* From d = 2 M on it is M. */
    g_assert_cmpfloat(plan_goodput_daly_s(200, 100), ==, 100);
    g_assert_cmpfloat(plan_goodput_daly_s(1000, 100), ==, 100);
}

/* The interval of the best fraction, by golden-section search: the fraction has one maximum. */
static double
search_best(double checkpoint_s, double mtbf_s)
{
    const double ratio = (sqrt(5) - 1) / 2;
    double low = mtbf_s * 1e-9, high = mtbf_s * 4;

    for (int i = 0; i < 200; i++) {
        const double a = high - ratio * (high - low), b = low + ratio * (high - low);
        if (plan_goodput_fraction(a, checkpoint_s, 0, mtbf_s) >
            plan_goodput_fraction(b, checkpoint_s, 0, mtbf_s))
            high = b;
        else
            low = a;
    }
    return (low + high) / 2;
}

static void
test_daly_is_the_minimum(void)
{
    static const double ratios[] = {1e-6, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.3, 0.5};

    for (size_t i = 0; i < G_N_ELEMENTS(ratios); i++) {
        const double mtbf = 3 * HOUR, checkpoint = ratios[i] * mtbf;
        const double best = search_best(checkpoint, mtbf);
        const double daly = plan_goodput_daly_s(checkpoint, mtbf);
        const double young = plan_goodput_young_s(checkpoint, mtbf);
        const double at_best = plan_goodput_fraction(best, checkpoint, 0, mtbf);
        const double at_daly = plan_goodput_fraction(daly, checkpoint, 0, mtbf);

        /* Daly 2006: his interval costs less than 0.2 % of the best run time for d < M / 2. */
        g_assert_cmpfloat(at_daly, <=, at_best * (1 + 1e-12));
        g_assert_cmpfloat(at_daly, >=, at_best * 0.998);
        g_assert_cmpfloat(fabs(daly - best), <=, fabs(young - best) + 1e-9 * mtbf);
        /* At the minimum exp((tau + d) / M) (1 - tau / M) = 1. */
        g_assert_cmpfloat_with_epsilon(exp((best + checkpoint) / mtbf) * (1 - best / mtbf), 1,
                                       1e-6);
    }
}

/* Uniform in (0, 1]. */
static double
draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(*state >> 11) + 1) / 9007199254740992.0;
}

/*
 * The formula against the process it describes: work of one interval and its checkpoint is kept if
 * no failure comes first; after a failure a restart, which may fail as well.
 */
static void
test_fraction_is_that_of_the_process(void)
{
    static const struct {
        double interval, checkpoint, restart;
    } cases[] = {
        {100, 10, 20},
        {500, 50, 5},
        {50, 100, 300},
    };
    const double mtbf = 1000;
    uint64_t state = 7;

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const int n_intervals = 400000;
        double elapsed = 0;

        for (int k = 0; k < n_intervals; k++) {
            const double segment = cases[i].interval + cases[i].checkpoint;
            double failure = -mtbf * log(draw(&state));

            while (failure < segment) {
                elapsed += failure;
                failure = -mtbf * log(draw(&state));
                while (failure < cases[i].restart) {
                    elapsed += failure;
                    failure = -mtbf * log(draw(&state));
                }
                elapsed += cases[i].restart;
                failure = -mtbf * log(draw(&state));
            }
            elapsed += segment;
        }
        /* The mean of 400000 independent segments: their standard error is below 0.5 % here. */
        g_assert_cmpfloat_with_epsilon(n_intervals * cases[i].interval / elapsed /
                                           plan_goodput_fraction(cases[i].interval,
                                                                 cases[i].checkpoint,
                                                                 cases[i].restart, mtbf),
                                       1, 0.015);
    }
}

static PlanGoodputRequest
llama3(void)
{
    /* 405 B parameters, 2 bytes of weight and 12 of optimizer state each. */
    return (PlanGoodputRequest){
        .n_devices = 16384,
        .device_mtbf_s = PLAN_GOODPUT_DEVICE_MTBF_S,
        .checkpoint_bytes = 405e9 * 14,
        .checkpoint_bytes_per_s = 16384 * PLAN_GOODPUT_BYTES_PER_S_PER_DEVICE,
        .restart_s = PLAN_GOODPUT_RESTART_S,
        .iteration_s = 10,
    };
}

static void
test_published_run(void)
{
    const PlanGoodputRequest request = llama3();
    const PlanGoodput goodput = plan_goodput(&request);

    /* 419 failures in 54 days: one in 3.09 hours.  5.67 TB at 2 TB/s: 2.835 s. */
    g_assert_cmpfloat_with_epsilon(goodput.job_mtbf_s, 54 * 24 * HOUR / 419, 1e-6);
    g_assert_cmpfloat_with_epsilon(goodput.checkpoint_s, 2.835, 1e-9);
    /* sqrt(2 * 2.835 * 11134.9) = 251.3 s, less than half a checkpoint shorter: 25 iterations. */
    g_assert_cmpint(goodput.interval_iterations, ==, 25);
    /* "higher than 90 % effective training time" [arXiv:2407.21783, 3.3.4] */
    g_assert_cmpfloat(goodput.goodput_fraction, >, 0.9);
    g_assert_cmpfloat(goodput.goodput_fraction, <, 0.95);
    g_assert_cmpfloat_with_epsilon(goodput.goodput_fraction + goodput.checkpoint_loss_fraction +
                                       goodput.failure_loss_fraction,
                                   1, 1e-12);
    g_assert_cmpfloat(goodput.failure_loss_fraction, >, 0);
}

static void
test_whole_iterations(void)
{
    PlanGoodputRequest request = llama3();

    for (double iteration_s = 0.1; iteration_s < 5000; iteration_s *= 1.7) {
        request.iteration_s = iteration_s;
        const PlanGoodput goodput = plan_goodput(&request);
        const int64_t n = goodput.interval_iterations;

        g_assert_cmpint(n, >=, 1);
        g_assert_cmpfloat_with_epsilon(goodput.interval_s, (double)n * iteration_s, 1e-9);
        /* No neighbour is better by more than Daly's formula is off. */
        for (int64_t k = MAX(1, n - 2); k <= n + 2; k++)
            g_assert_cmpfloat(plan_goodput_fraction((double)k * iteration_s, goodput.checkpoint_s,
                                                    request.restart_s, goodput.job_mtbf_s),
                              <=, goodput.goodput_fraction * (1 + 2e-5));
    }
}

static void
test_limits(void)
{
    PlanGoodputRequest request = llama3();

    request.device_mtbf_s = INFINITY;
    PlanGoodput goodput = plan_goodput(&request);
    g_assert_cmpint(goodput.interval_iterations, ==, 0);
    g_assert_cmpfloat(goodput.goodput_fraction, ==, 1);

    /* Nothing to save: at every iteration, and only restarts are lost. */
    request = llama3();
    request.checkpoint_bytes = 0;
    goodput = plan_goodput(&request);
    g_assert_cmpint(goodput.interval_iterations, ==, 1);
    g_assert_cmpfloat(goodput.checkpoint_loss_fraction, ==, 0);

    /* A run that fails before it restarts does not end. */
    request = llama3();
    request.restart_s = 1e9;
    goodput = plan_goodput(&request);
    g_assert_cmpfloat(goodput.goodput_fraction, ==, 0);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/planner/goodput/published-intervals", test_published_intervals);
    g_test_add_func("/planner/goodput/daly-is-the-minimum", test_daly_is_the_minimum);
    g_test_add_func("/planner/goodput/fraction-is-that-of-the-process",
                    test_fraction_is_that_of_the_process);
    g_test_add_func("/planner/goodput/published-run", test_published_run);
    g_test_add_func("/planner/goodput/whole-iterations", test_whole_iterations);
    g_test_add_func("/planner/goodput/limits", test_limits);
    return g_test_run();
}
