/* Tests of executor/measure/variation.h: what varies in made-up timings is found again.
 * Test runner: alone: it measures times. */
#include "executor/measure/variation.h"

#include <math.h>
#include <string.h>

/* A normal variable; Box and Muller's. */
static double
normal(GRand *random)
{
    const double u = 1 - g_rand_double(random), v = g_rand_double(random);

    return sqrt(-2 * log(u)) * cos(2 * G_PI * v);
}

/* A row of layers; @i tells rows apart. */
static ProfileMeasurement
row_of(int64_t i, int64_t tp)
{
    return (ProfileMeasurement){.op = PROFILE_OP_LAYER,
                                .pass = PROFILE_PASS_FORWARD,
                                .batch = 1 + i,
                                .tokens = 64,
                                .tp = tp};
}

/* Two ranks' timings of some ten minutes, each on a core whose speed varies by @sigma and forgets
 * itself within @correlation_s, and by @lasting for the time of a second. */
static ExecVariation *
timings(double sigma, double correlation_s, double lasting, int64_t tp)
{
    /* Speeds in steps of a millisecond: an autoregressive process, whose mean over d has the
     * variance of 1 / (1 + d / t) with t twice the time in which it falls to 1 / e, nearly. */
    const int n_seconds = 600, n_steps = 1000;
    const double keeps = exp(-1e-3 / (correlation_s / 2));
    ExecVariation *variation = exec_variation_new();
    GRand *random = g_rand_new_with_seed(1);

    for (int32_t rank = 0; rank < 2; rank++) {
        double speed = sigma * normal(random);
        for (int second = 0; second < n_seconds; second++) {
            const double lasts = lasting * normal(random);
            double log = 0;
            for (int step = 0; step < n_steps; step++) {
                speed = keeps * speed + sqrt(1 - keeps * keeps) * sigma * normal(random);
                log += speed / 10;
                if (step % 10 != 9)
                    continue;
                /* An op of 10 ms in other times, as only the same rows may be compared. */
                const ProfileMeasurement row = row_of(step / 10 / 2 % 20, tp);
                exec_variation_add(variation, rank, &row,
                                   second * INT64_C(1000000000) + (step - 9) * INT64_C(1000000),
                                   0.01 * (1 + 0.1 * (double)(row.batch % 3)) * exp(log + lasts));
                log = 0;
            }
        }
    }
    g_rand_free(random);
    return variation;
}

static void
assert_near(double value, double expect, double tolerance)
{
    if (!(fabs(value / expect - 1) <= tolerance))
        g_error("%g, expected %g", value, expect);
}

static void
test_what_varies_is_found_again(void)
{
    g_autoptr(ExecVariation) noisy = timings(0.2, 0.05, 0, 1);
    g_autoptr(ExecVariation) apart = timings(0.1, 0.02, 0.05, 1);
    ProfileVariation result;

    g_assert_true(exec_variation_of(noisy, &result));
    g_assert_true(result.is_known);
    assert_near(result.op_fraction, 0.2, 0.05);
    assert_near(result.correlation_s, 0.05, 0.2);
    assert_near(result.rank_fraction, 0.2 / sqrt(1 + 1.1 / 0.05), 0.1);
    g_assert_true(exec_variation_of(apart, &result));
    assert_near(result.rank_fraction, sqrt(0.05 * 0.05 + 0.01 / (1 + 1.1 / 0.02)), 0.1);
    /* What lasts is part of what an op has. */
    const double op = result.op_fraction / sqrt(1 + 0.011 / result.correlation_s);
    assert_near(op, sqrt(0.05 * 0.05 + 0.01 / (1 + 0.011 / 0.02)), 0.1);
}

/* Their ranks wait for each other inside a layer. */
static void
test_ranks_of_a_layer_are_not_compared(void)
{
    g_autoptr(ExecVariation) variation = timings(0.2, 0.05, 0, 2);
    ProfileVariation result;

    g_assert_false(exec_variation_of(variation, &result));
}

/* Two ranks that are a and -a from their mean in every op: each deviates by sqrt(2) a. */
static void
test_by_hand(void)
{
    const double a = 0.02, sigma = sqrt(2) * a / 0.6745;

    for (int swaps = 0; swaps <= 1; swaps++) {
        g_autoptr(ExecVariation) variation = exec_variation_new();
        ProfileVariation result;
        for (int64_t i = 0; i < 8; i++) {
            const ProfileMeasurement row = row_of(i, 1);
            const double log = swaps && i % 2 == 1 ? -a : a;
            g_assert_true(exec_variation_of(variation, &result) == (i >= 4));
            g_assert_true(result.is_known == (i >= 4));
            /* Of three seconds only what an op has. */
            if (i == 6)
                assert_near(result.op_fraction, sigma, 1e-9);
            exec_variation_add(variation, 0, &row, i / 2 * INT64_C(1000000000), 0.1 * exp(log));
            exec_variation_add(variation, 1, &row, i / 2 * INT64_C(1000000000), 0.1 * exp(-log));
        }
        g_assert_true(exec_variation_of(variation, &result));
        /* In turn they are even over a second, and forget what was within the least that is known;
         * else they never forget it. */
        const double forgets = swaps ? sqrt(1 + 0.1 * cosh(a) / 1e-3) : 1;
        assert_near(result.correlation_s, swaps ? 1e-3 : 1e3, 1e-9);
        assert_near(result.op_fraction, sigma * forgets, 1e-3);
        g_assert_cmpfloat(fabs(result.rank_fraction - (swaps ? 0 : sigma)), <, 1e-9);
    }
}

/* Neither other ops, nor one rank, nor rows that not all ranks timed at once. */
static void
test_what_does_not_count(void)
{
    g_autoptr(ExecVariation) variation = exec_variation_new();
    ProfileVariation result;

    for (int64_t i = 0; i < 100; i++) {
        ProfileMeasurement row = row_of(i, 1);
        exec_variation_add(variation, 0, &row, i * INT64_C(1000000000), 1e-3);
        exec_variation_add(variation, 1, &row, i * INT64_C(1000000000) + 51000000, 1e-3);
        row.op = PROFILE_OP_HEAD;
        exec_variation_add(variation, 0, &row, i * INT64_C(1000000000), 1e-3);
        exec_variation_add(variation, 1, &row, i * INT64_C(1000000000), 1e-3);
    }
    g_assert_false(exec_variation_of(variation, &result));
}

static char *
kept(ExecVariation *variation)
{
    JsonWriter *writer = json_writer_new();
    size_t n_bytes;

    exec_variation_keep(variation, writer, NULL);
    char *text = json_writer_steal(writer, &n_bytes);
    json_writer_free(writer);
    return text;
}

/* A profile in two parts is that of both; a torn file is refused. */
static void
test_goes_on_from_a_file(void)
{
    g_autoptr(ExecVariation) first = timings(0.1, 0.02, 0.05, 1);
    g_autoptr(ExecVariation) next = timings(0.2, 0.02, 0.02, 1);
    g_autofree char *text = kept(first);
    g_autoptr(JsonDoc) doc = json_doc_parse("kept", text, strlen(text), NULL);
    ProfileVariation result;

    g_assert_nonnull(doc);
    exec_variation_read(next, doc, json_doc_root(doc, NULL, 0));
    g_assert_true(json_doc_finish(doc, NULL));
    g_assert_true(exec_variation_of(next, &result));
    g_assert_cmpfloat(result.op_fraction, >, 0.12);
    g_assert_cmpfloat(result.op_fraction, <, 0.18);
    g_assert_cmpfloat(result.rank_fraction, >, 0.03);
    g_assert_cmpfloat(result.rank_fraction, <, 0.05);

    static const char torn[] = "{\"ops\": [], \"seconds\": [0.1]}";
    g_autoptr(JsonDoc) odd = json_doc_parse("torn", torn, strlen(torn), NULL);
    g_autoptr(GError) error = NULL;
    exec_variation_read(next, odd, json_doc_root(odd, NULL, 0));
    g_assert_false(json_doc_finish(odd, &error));
    g_assert_nonnull(strstr(error->message, "pairs"));
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/variation/what-varies-is-found-again",
                    test_what_varies_is_found_again);
    g_test_add_func("/executor/variation/ranks-of-a-layer-are-not-compared",
                    test_ranks_of_a_layer_are_not_compared);
    g_test_add_func("/executor/variation/by-hand", test_by_hand);
    g_test_add_func("/executor/variation/what-does-not-count", test_what_does_not_count);
    g_test_add_func("/executor/variation/goes-on-from-a-file", test_goes_on_from_a_file);
    return g_test_run();
}
