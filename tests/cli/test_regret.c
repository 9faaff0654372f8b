/* Tests of cli/validate/regret.h: jobs by hand. */
#include "cli/validate/regret.h"

#include <math.h>

typedef struct {
    const char *model;
    double measured, predicted;
} Run;

/* A case and a prediction of each run, all of one source. */
static GPtrArray *
make_cases(const Run *runs, size_t n, ValidationPrediction *predictions)
{
    GPtrArray *cases = g_ptr_array_new_with_free_func(g_free);

    for (size_t i = 0; i < n; i++) {
        ValidationCase *one = g_new0(ValidationCase, 1);

        one->own_row = (MeasuredRow){.source = "s",
                                     .gpu = "g",
                                     .model = runs[i].model,
                                     .dtype = "bf16",
                                     .n_devices = 8,
                                     .iteration_s = runs[i].measured};
        one->row = &one->own_row;
        predictions[i] = (ValidationPrediction){runs[i].predicted, NAN, true};
        g_ptr_array_add(cases, one);
    }
    return cases;
}

/* Job a: 12 s are predicted to be the fastest of 10, 12 and 20: 20 % lost; its ranks 1, 2, 3 are
 * predicted as 2, 1, 3: 1 - 6 (1 + 1) / (3 * 8) = 0.5.  Job b: 5 s are fastest, nothing is lost,
 * and the order is right: 1.  Job c has too few rows; a row without a prediction counts nowhere. */
static void
test_by_hand(void)
{
    const Run runs[] = {
        {"a", 10.0, 11.0}, {"b", 5.0, 4.0}, {"a", 12.0, 10.5}, {"a", 20.0, 30.0}, {"b", 6.0, 4.5},
        {"c", 1.0, 2.0},   {"c", 2.0, 1.0}, {"b", 7.0, 9.0},   {"c", 3.0, NAN},
    };
    ValidationPrediction predictions[G_N_ELEMENTS(runs)];
    g_autoptr(GPtrArray) cases = make_cases(runs, G_N_ELEMENTS(runs), predictions);
    const ValidationRegret regret = validation_regret(cases, predictions, NULL);

    g_assert_cmpuint(regret.n_jobs, ==, 2);
    g_assert_cmpuint(regret.n_rows, ==, 6);
    g_assert_cmpfloat_with_epsilon(regret.mean, 0.1, 1e-12);
    g_assert_cmpfloat_with_epsilon(regret.worst, 0.2, 1e-12);
    g_assert_cmpfloat_with_epsilon(regret.correlation, 0.75, 1e-12);
}

static void
test_no_choice(void)
{
    const Run runs[] = {{"a", 1.0, 1.0}, {"a", 2.0, 2.0}};
    ValidationPrediction predictions[G_N_ELEMENTS(runs)];
    g_autoptr(GPtrArray) cases = make_cases(runs, G_N_ELEMENTS(runs), predictions);
    const ValidationRegret regret = validation_regret(cases, predictions, NULL);

    g_assert_cmpuint(regret.n_jobs, ==, 0);
    g_assert_true(isnan(regret.mean) && isnan(regret.worst) && isnan(regret.correlation));
}

/* Equal values share their ranks' mean: 1, 2.5, 2.5 and 1, 2, 3: covariance 1.5 of sqrt(1.5 * 2). */
static void
test_ties(void)
{
    const double a[] = {1.0, 2.0, 2.0}, b[] = {1.0, 2.0, 3.0}, same[] = {4.0, 4.0, 4.0};

    g_assert_cmpfloat_with_epsilon(validation_rank_correlation(a, b, 3), 1.5 / sqrt(3.0), 1e-12);
    g_assert_true(isnan(validation_rank_correlation(a, same, 3)));
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/regret/by-hand", test_by_hand);
    g_test_add_func("/regret/no-choice", test_no_choice);
    g_test_add_func("/regret/ties", test_ties);
    return g_test_run();
}
