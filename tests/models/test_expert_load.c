/* Tests of models/expert_load.h: loads that are reckoned by hand. */
#include "models/expert_load.h"

#include "models/arch.h"

#include <glib.h>
#include <math.h>

/* 8 experts over 4 ranks get 1, 1/2, ... 1/8 of H = 761/280 rows: ranks have 3/2, 7/12, 11/30 and 15/56
 * of H, so the fullest has 4 * 1.5 / H times the mean. */
static void
test_zipf_in_order(void)
{
    double rows[8];

    for (int e = 0; e < 8; e++)
        rows[e] = 1.0 / (e + 1);
    g_assert_cmpfloat_with_epsilon(expert_load_imbalance(rows, rows, 8, 0, 4),
                                   4.0 * 1.5 / (761.0 / 280.0), 1e-12);
    for (int e = 0; e < 8; e++)
        rows[e] = 3.0;
    g_assert_cmpfloat_with_epsilon(expert_load_imbalance(rows, rows, 8, 0, 4), 1.0, 1e-12);
    g_assert_cmpfloat_with_epsilon(expert_load_imbalance(rows, rows, 8, 0, 1), 1.0, 1e-12);
}

/* Shares 5 1 1 1 over 2 ranks: 6 and 2 rows, 1.5 times the mean of 4.  Two copies more: the first and
 * the second go to the hot expert (5, 2.5 and 5/3 a copy against 1), which then has three; packed: 5/3 |
 * 5/3, 5/3 joins the first of both, 1 and 1 the other, and the last 1 the rank with room: 13/3 | 11/3. */
static void
test_copies(void)
{
    const double rows[] = {5.0, 1.0, 1.0, 1.0};
    const double other[] = {1.0, 5.0, 1.0, 1.0};

    g_assert_cmpfloat_with_epsilon(expert_load_imbalance(rows, rows, 4, 0, 2), 6.0 / 4.0, 1e-12);
    g_assert_cmpfloat_with_epsilon(expert_load_imbalance(rows, rows, 4, 2, 2), (13.0 / 3.0) / 4.0,
                                   1e-12);
    /* Copies that were placed for other rows: the first expert has three copies of 1/3, two on rank 0,
     * which gets the last expert too, and the hot one is alone on rank 1 beside 1/3 and 1. */
    g_assert_cmpfloat_with_epsilon(expert_load_imbalance(other, rows, 4, 2, 2),
                                   (1.0 / 3 + 5 + 1) / 4.0, 1e-12);
}

static void
test_quantiles(void)
{
    const double values[] = {4.0, 1.0, 3.0, 2.0};

    g_assert_cmpfloat(expert_load_quantile(values, 4, 0.0), ==, 1.0);
    g_assert_cmpfloat(expert_load_quantile(values, 4, 0.5), ==, 2.5);
    g_assert_cmpfloat(expert_load_quantile(values, 4, 1.0), ==, 4.0);
    g_assert_cmpfloat(expert_load_quantile(values, 1, 0.95), ==, 4.0);
}

/* Even shares: a rank has n / ep rows, give or take their root.  The mean of the larger of two normal
 * numbers is 1 / sqrt(pi) = 0.564; two ranks' rows add up to about n, so the fuller has n / 2 +
 * 0.564 sqrt(n / 2) sqrt(...) rows: with n / 2 = 1e4 on each the imbalance has a mean of 1 + 0.00564. */
static void
test_noise(void)
{
    const ExpertLoad load = {
        .n_experts = 8, .ep = 2, .n_layers = 50, .n_rows = 20000, .n_steps = 200, .seed = 7};
    ExpertImbalance steps[200], again[200];
    double sum = 0.0;

    expert_load_draw(&load, steps);
    expert_load_draw(&load, again);
    for (int s = 0; s < 200; s++) {
        g_assert_cmpfloat(steps[s].mean, ==, again[s].mean);
        g_assert_cmpfloat(steps[s].most, >=, steps[s].mean);
        sum += steps[s].mean;
    }
    g_assert_cmpfloat_with_epsilon(sum / 200.0, 1.0 + 1.0 / sqrt(G_PI) / 100.0, 3e-4);
}

/* Counts are those of their layer, and so many rows leave no noise. */
static void
test_counts(void)
{
    const double counts[] = {3.0, 1.0, 1.0, 1.0};
    const ExpertLoad load = {.shares = {.counts = counts, .n_layers = 2},
                             .n_experts = 2,
                             .ep = 2,
                             .n_layers = 2,
                             .n_rows = INT64_C(1000000000000),
                             .n_steps = 3,
                             .seed = 1};
    ExpertImbalance steps[3];

    expert_load_draw(&load, steps);
    for (int s = 0; s < 3; s++) {
        g_assert_cmpfloat_with_epsilon(steps[s].most, 1.5, 1e-5);
        g_assert_cmpfloat_with_epsilon(steps[s].mean, (1.5 + 1.0) / 2.0, 1e-5);
    }
}

/* 8 experts and 8 copies over 8 ranks: two on each; on one rank there are no copies. */
static void
test_copies_have_weights(void)
{
    g_autoptr(ModelArch) arch = model_arch_load("mixtral-8x7b", NULL, NULL);
    const int64_t one = model_expert_parameters(arch, 0, 8, 1);
    const int64_t all = model_expert_parameters(arch, 0, 1, 1);

    g_assert_cmpint(all, ==, 8 * one);
    arch->experts.n_redundant = 8;
    g_assert_cmpint(model_expert_parameters(arch, 0, 8, 1), ==, 2 * one);
    g_assert_cmpint(model_expert_parameters(arch, 0, 1, 1), ==, all);
    g_assert_cmpint(model_n_local_experts(&arch->experts, 4), ==, 4);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/models/expert-load/zipf-in-order", test_zipf_in_order);
    g_test_add_func("/models/expert-load/copies", test_copies);
    g_test_add_func("/models/expert-load/quantiles", test_quantiles);
    g_test_add_func("/models/expert-load/noise", test_noise);
    g_test_add_func("/models/expert-load/counts", test_counts);
    g_test_add_func("/models/expert-load/copies-have-weights", test_copies_have_weights);
    return g_test_run();
}
