/* Tests of executor/variation.h: timings of known noise, of ops and of ranks, are found again. */
#include "executor/variation.h"

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

/* @n_seconds of two ranks, each with ops of 10 ms two by two of one row, on cores that differ by
 * @rank_sigma from second to second. */
static ExecVariation *
timings(double op_noise_s, double rank_sigma, int n_seconds, int64_t tp)
{
    ExecVariation *variation = exec_variation_new();
    GRand *random = g_rand_new_with_seed(1);

    for (int second = 0; second < n_seconds; second++)
        for (int32_t rank = 0; rank < 2; rank++) {
            const double speed = rank_sigma * normal(random);
            for (int i = 0; i < 100; i++) {
                const ProfileMeasurement row = row_of(i / 2, tp);
                /* Rows take other times, so that only the same ones may be compared. */
                const double whole_s = 0.01 * (1 + (i / 2) % 3);
                const double noise = sqrt(op_noise_s / whole_s) * normal(random);
                exec_variation_add(variation, rank, &row,
                                   second * INT64_C(1000000000) + i * INT64_C(5000000),
                                   whole_s * exp(speed + noise));
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
test_both_are_found_again(void)
{
    g_autoptr(ExecVariation) noisy = timings(1e-4, 0, 200, 1);
    g_autoptr(ExecVariation) apart = timings(1e-4, 0.05, 200, 1);
    ProfileVariation result;

    g_assert_true(exec_variation_of(noisy, &result));
    g_assert_true(result.is_known);
    assert_near(result.op_noise_s, 1e-4, 0.05);
    g_assert_cmpfloat(result.rank_fraction, <, 0.005);
    g_assert_true(exec_variation_of(apart, &result));
    assert_near(result.op_noise_s, 1e-4, 0.05);
    assert_near(result.rank_fraction, 0.05, 0.15);
}

/* Their ranks wait for each other inside a layer. */
static void
test_ranks_of_a_layer_are_not_compared(void)
{
    g_autoptr(ExecVariation) variation = timings(1e-4, 0.05, 200, 2);
    ProfileVariation result;

    g_assert_true(exec_variation_of(variation, &result));
    assert_near(result.op_noise_s, 1e-4, 0.05);
    g_assert_cmpfloat(result.rank_fraction, ==, 0);
}

/* Pairs that differ by 0.2, of 20 ms on average: 0.2^2 / 2 * 0.02 / 0.4549. */
static void
test_by_hand(void)
{
    g_autoptr(ExecVariation) variation = exec_variation_new();
    const double x = 0.04 / (1 + exp(0.2));
    ProfileVariation result;

    for (int64_t i = 0; i < 8; i++) {
        const ProfileMeasurement row = row_of(i, 1);
        g_assert_false(exec_variation_of(variation, &result));
        g_assert_false(result.is_known);
        exec_variation_add(variation, 0, &row, i * 100, x);
        exec_variation_add(variation, 0, &row, i * 100 + 1, x * exp(0.2));
    }
    g_assert_true(exec_variation_of(variation, &result));
    assert_near(result.op_noise_s, 0.02 * 0.02 / 0.4549, 1e-9);
}

/* Neither other ops, nor timings of other rows or long after each other. */
static void
test_what_does_not_count(void)
{
    g_autoptr(ExecVariation) variation = exec_variation_new();
    ProfileVariation result;

    for (int64_t i = 0; i < 100; i++) {
        ProfileMeasurement row = row_of(i, 1);
        exec_variation_add(variation, 0, &row, i, 1e-3);
        row.batch = 1;
        exec_variation_add(variation, 1, &row, i * INT64_C(250000001), 1e-3);
        row.op = PROFILE_OP_HEAD;
        exec_variation_add(variation, 1, &row, i, 1e-3);
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
    g_autoptr(ExecVariation) first = timings(1e-4, 0.05, 100, 1);
    g_autoptr(ExecVariation) next = timings(4e-4, 0.02, 150, 1);
    g_autofree char *text = kept(first);
    g_autoptr(JsonDoc) doc = json_doc_parse("kept", text, strlen(text), NULL);
    ProfileVariation result;

    g_assert_nonnull(doc);
    exec_variation_read(next, doc, json_doc_root(doc, NULL, 0));
    g_assert_true(json_doc_finish(doc, NULL));
    g_assert_true(exec_variation_of(next, &result));
    g_assert_cmpfloat(result.op_noise_s, >, 1.5e-4);
    g_assert_cmpfloat(result.op_noise_s, <, 3.5e-4);
    g_assert_cmpfloat(result.rank_fraction, >, 0.02);
    g_assert_cmpfloat(result.rank_fraction, <, 0.05);

    static const char torn[] = "{\"op_noises_s\": [], \"ranks\": [0.1]}";
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
    g_test_add_func("/executor/variation/both-are-found-again", test_both_are_found_again);
    g_test_add_func("/executor/variation/ranks-of-a-layer-are-not-compared",
                    test_ranks_of_a_layer_are_not_compared);
    g_test_add_func("/executor/variation/by-hand", test_by_hand);
    g_test_add_func("/executor/variation/what-does-not-count", test_what_does_not_count);
    g_test_add_func("/executor/variation/goes-on-from-a-file", test_goes_on_from_a_file);
    return g_test_run();
}
