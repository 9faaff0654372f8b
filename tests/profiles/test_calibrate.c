/* Tests of profiles/fit/calibrate.h: known answers, bounds, outliers, shares, bits. */
#include "profiles/fit/calibrate.h"

#include <math.h>
#include <string.h>

/* Rows that see two parameters: residual = a (z0 - t0) + b (z1 - t1), z in spreads. */
enum {
    N_ROWS = 40
};

typedef struct {
    double a[N_ROWS], b[N_ROWS], own[N_ROWS], target[2], outlier;
    int n_calls;
    size_t n_points;
} Linear;

static int
parameter_of(const char *name)
{
    for (int i = 0; i < PROFILE_PARAMETERS_N; i++) {
        if (strcmp(profile_parameter_info[i].name, name) == 0)
            return i;
    }
    g_assert_not_reached();
}

static void
residuals_of_linear(const ProfilePoint *points, size_t n, double *residuals, void *user_data)
{
    Linear *linear = user_data;
    const int first = parameter_of("gemm_fraction"), second = parameter_of("memory_fraction");

    linear->n_calls++;
    linear->n_points += n;
    for (size_t p = 0; p < n; p++) {
        const double z0 = (double)points[p].step[first] / PROFILE_CALIBRATE_GRID;
        const double z1 = (double)points[p].step[second] / PROFILE_CALIBRATE_GRID;

        for (int i = 0; i < N_ROWS; i++)
            residuals[p * N_ROWS + (size_t)i] = linear->a[i] * (z0 - linear->target[0]) +
                                                linear->b[i] * (z1 - linear->target[1]) +
                                                linear->own[i];
        residuals[p * N_ROWS] += linear->outlier;
    }
}

static Linear
linear_to(double first, double second)
{
    Linear linear = {.target = {first, second}};

    for (int i = 0; i < N_ROWS; i++) {
        linear.a[i] = 0.05 + 0.002 * i;
        linear.b[i] = i % 2 == 0 ? -0.04 : 0.03;
    }
    return linear;
}

static void
assert_step(const ProfileCalibrated *result, int machine, int parameter, double spreads)
{
    g_assert_cmpfloat_with_epsilon((double)result->point[machine].step[parameter] /
                                       PROFILE_CALIBRATE_GRID,
                                   spreads, 1.0 / PROFILE_CALIBRATE_GRID);
}

static ProfileCalibration
problem(Linear *linear)
{
    return (ProfileCalibration){.n_rows = N_ROWS,
                                .fit = PROFILE_FIT_TIME,
                                .residuals = residuals_of_linear,
                                .user_data = linear};
}

/*
 * Linear residuals have a closed form: (I + J'J / sigma^2) z = J'J / sigma^2 t.  With these rows
 * the smallest eigenvalue of J'J / sigma^2 is above 100, so z is within 1 % of t, and within a
 * step.
 */
static void
test_finds_the_closed_form(void)
{
    Linear linear = linear_to(0.5, -0.25);
    const ProfileCalibration calibration = problem(&linear);
    const ProfileCalibrated result = profile_calibrate(&calibration);
    const double s2 = PROFILE_CALIBRATE_SIGMA * PROFILE_CALIBRATE_SIGMA;
    const int first = parameter_of("gemm_fraction"), second = parameter_of("memory_fraction");
    double aa = 0, ab = 0, bb = 0, determinant, z0, z1;

    for (int i = 0; i < N_ROWS; i++) {
        aa += linear.a[i] * linear.a[i] / s2;
        ab += linear.a[i] * linear.b[i] / s2;
        bb += linear.b[i] * linear.b[i] / s2;
    }
    determinant = (1 + aa) * (1 + bb) - ab * ab;
    z0 = ((aa * 0.5 + ab * -0.25) * (1 + bb) - (ab * 0.5 + bb * -0.25) * ab) / determinant;
    z1 = ((1 + aa) * (ab * 0.5 + bb * -0.25) - ab * (aa * 0.5 + ab * -0.25)) / determinant;
    g_assert_cmpfloat_with_epsilon((double)result.point[0].step[first] / PROFILE_CALIBRATE_GRID, z0,
                                   1.0 / PROFILE_CALIBRATE_GRID);
    g_assert_cmpfloat_with_epsilon((double)result.point[0].step[second] / PROFILE_CALIBRATE_GRID,
                                   z1, 1.0 / PROFILE_CALIBRATE_GRID);
    /* What is left of the prior: the inverse's diagonal. */
    g_assert_cmpfloat_with_epsilon(result.spread[0][first], sqrt((1 + bb) / determinant), 1e-9);
    g_assert_cmpfloat(result.objective, <, result.objective_before);
    for (int i = 0; i < PROFILE_PARAMETERS_N; i++) {
        g_assert_true(result.fitted[i] == (i == first || i == second));
        g_assert_true(result.fitted[i] || result.point[0].step[i] == 0);
    }
}

/* Rows that ask for ten spreads get the four that are allowed. */
static void
test_stays_within_the_spreads(void)
{
    Linear linear = linear_to(10.0, 0.0);
    const ProfileCalibration calibration = problem(&linear);
    const ProfileCalibrated result = profile_calibrate(&calibration);

    g_assert_cmpint(result.point[0].step[parameter_of("gemm_fraction")], ==,
                    PROFILE_CALIBRATE_MAX_SPREADS * PROFILE_CALIBRATE_GRID);
}

/* A row that is five times too slow would decide least squares;
 * by Huber's loss its pull is that of a row that is 2 sigma off. */
static void
test_an_outlier_does_not_decide(void)
{
    Linear clean = linear_to(0.5, -0.25), spoilt = linear_to(0.5, -0.25);
    const ProfileCalibration of_clean = problem(&clean), of_spoilt = problem(&spoilt);
    const int first = parameter_of("gemm_fraction");

    spoilt.outlier = 5.0;
    /* Gradient of the outlier 2 / sigma * a0, curvature aa: at most 2 a0 sigma / sum a^2 spreads.
     */
    g_assert_cmpint(ABS(profile_calibrate(&of_clean).point[0].step[first] -
                        profile_calibrate(&of_spoilt).point[0].step[first]),
                    <=, PROFILE_CALIBRATE_GRID / 20);
}

/* Rows outside the training part have no say: as if they were not there. */
static void
test_only_training_rows_count(void)
{
    Linear linear = linear_to(0.5, -0.25);
    ProfileCalibration calibration = problem(&linear);
    bool in_training[N_ROWS];
    double first[(1 + PROFILE_PARAMETERS_N) * N_ROWS];
    bool has_first = false;
    ProfileCalibrated part, again;
    size_t n_points;

    for (int i = 0; i < N_ROWS; i++) {
        in_training[i] = i % 4 != 1;
        if (!in_training[i])
            linear.a[i] = -linear.a[i]; /* nonsense */
    }
    calibration.in_training = in_training;
    part = profile_calibrate(&calibration);
    g_assert_cmpint(
        ABS(part.point[0].step[parameter_of("gemm_fraction")] - PROFILE_CALIBRATE_GRID / 2), <=, 4);
    /* The first derivatives can be shared, and change nothing. */
    calibration.first = first;
    calibration.has_first = &has_first;
    profile_calibrate(&calibration);
    n_points = linear.n_points;
    again = profile_calibrate(&calibration);
    g_assert_cmpint(memcmp(again.point, part.point, sizeof part.point), ==, 0);
    g_assert_cmpuint(linear.n_points - n_points, <, n_points);
}

/*
 * Five rows that depend on one parameter alike, with errors e of their own.  Of + - + - + the mean is e / 5, and a
 * fit would move the parameter.  But what four of them say of the fifth is wrong: those with a plus see two of
 * each sign, which say nothing, those with a minus see three of four with a plus.  So nothing is moved.  Of five
 * with a plus, four say what the fifth is: z = -(5 a e / sigma^2) / (1 + 5 a^2 / sigma^2), where Huber's loss
 * does not bend: 2 sigma.
 */
static void
test_moves_only_what_other_rows_confirm(void)
{
    Linear linear = {0};
    ProfileCalibration calibration = problem(&linear);
    bool in_training[N_ROWS] = {false};
    const int first = parameter_of("gemm_fraction");
    const double a = 0.05, e = 0.03, s2 = PROFILE_CALIBRATE_SIGMA * PROFILE_CALIBRATE_SIGMA;
    ProfileCalibrated result;

    for (int i = 0; i < 5; i++) {
        in_training[i] = true;
        linear.a[i] = a;
        linear.own[i] = i % 2 == 0 ? e : -e;
    }
    calibration.in_training = in_training;
    result = profile_calibrate(&calibration);
    g_assert_true(isinf(result.sigma));
    g_assert_cmpint(result.point[0].step[first], ==, 0);
    g_assert_false(result.fitted[first]);
    for (int i = 0; i < 5; i++)
        linear.own[i] = e;
    result = profile_calibrate(&calibration);
    g_assert_cmpfloat(result.sigma, ==, PROFILE_CALIBRATE_SIGMA);
    g_assert_true(result.fitted[first]);
    g_assert_cmpfloat_with_epsilon((double)result.point[0].step[first] / PROFILE_CALIBRATE_GRID,
                                   -5.0 * a * e / s2 / (1.0 + 5.0 * a * a / s2),
                                   1.0 / PROFILE_CALIBRATE_GRID);
}

/* Rows i of machine i % 2 (half of them each): residual a (z - target of the machine). */
static void
residuals_of_machines(const ProfilePoint *points, size_t n, double *residuals, void *user_data)
{
    const double *target = user_data;
    const int first = parameter_of("gemm_fraction");

    for (size_t p = 0; p < n; p++)
        for (size_t i = 0; i < N_ROWS; i++)
            residuals[p * N_ROWS + i] =
                0.05 * ((double)points[2 * p + i % 2].step[first] / PROFILE_CALIBRATE_GRID -
                        target[i % 2]);
}

/*
 * Two machines whose distances z have covariance 1 and c = 1/2; n rows of each, S = n a^2 / sigma^2.  The sum and
 * the difference of the two have variances 1 + c and 1 - c, so that what rows ask is met to S / (S + 1 / (1 + c)) of
 * the mean, and to S / (S + 1 / (1 - c)) of the difference.  A machine without rows is where the other one tells it to
 * be: at c times its distance, which is then that of one machine alone, t S / (S + 1).
 */
static void
test_machines_are_alike_by_half(void)
{
    static const double targets[][2] = {{1.0, 1.0}, {0.5, -0.5}, {1.0, 0.25}};
    const int first = parameter_of("gemm_fraction");
    const double c = PROFILE_CALIBRATE_ALIKE, sigma = PROFILE_CALIBRATE_SIGMA;
    const double s = N_ROWS / 2 * 0.05 * 0.05 / (sigma * sigma);
    int machine[N_ROWS];
    bool in_training[N_ROWS];

    for (int i = 0; i < N_ROWS; i++) {
        machine[i] = i % 2;
        in_training[i] = i % 2 == 0;
    }
    for (size_t i = 0; i < G_N_ELEMENTS(targets); i++) {
        double target[2] = {targets[i][0], targets[i][1]};
        ProfileCalibration calibration = {.n_rows = N_ROWS,
                                          .machine = machine,
                                          .n_machines = 2,
                                          .fit = PROFILE_FIT_TIME,
                                          .sigma = sigma,
                                          .residuals = residuals_of_machines,
                                          .user_data = target};
        const double mean = (target[0] + target[1]) / 2.0 * s / (s + 1.0 / (1.0 + c));
        const double half = (target[0] - target[1]) / 2.0 * s / (s + 1.0 / (1.0 - c));
        const double alone = target[0] * s / (s + 1.0);
        ProfileCalibrated result = profile_calibrate(&calibration);

        assert_step(&result, 0, first, mean + half);
        assert_step(&result, 1, first, mean - half);
        g_assert_cmpfloat_with_epsilon(result.spread[1][first], result.spread[0][first], 1e-9);
        calibration.in_training = in_training;
        result = profile_calibrate(&calibration);
        assert_step(&result, 0, first, alone);
        assert_step(&result, 1, first, c * alone);
    }
}

/* Residuals k u / sqrt(1 + u^2), u = z - 1.5, of one parameter. */
static void
residuals_of_bend(const ProfilePoint *points, size_t n, double *residuals, void *user_data)
{
    const int first = parameter_of("gemm_fraction");
    const double k = *(const double *)user_data;

    for (size_t p = 0; p < n; p++) {
        const double u = (double)points[p].step[first] / PROFILE_CALIBRATE_GRID - 1.5;

        for (int i = 0; i < N_ROWS; i++)
            residuals[p * N_ROWS + (size_t)i] = k * u / sqrt(1.0 + u * u);
    }
}

/*
 * At the prior u = -1.5: the residual is -0.832 k and its derivative 1 / 3.25^1.5 k = 0.171 k, so that the whole step
 * of 4.9 spreads would end at the bound of 4, where the residual is 0.928 k: worse.  Damped, the fit gets to
 * u = 0, less what the prior takes: z / (N k^2 / sigma^2) = 1.5 / 1000.
 */
static void
test_a_step_too_far_is_damped(void)
{
    double k = 0.1;
    const ProfileCalibration calibration = {.n_rows = N_ROWS,
                                            .fit = PROFILE_FIT_TIME,
                                            .sigma = PROFILE_CALIBRATE_SIGMA,
                                            .residuals = residuals_of_bend,
                                            .user_data = &k};
    const ProfileCalibrated result = profile_calibrate(&calibration);

    g_assert_cmpint(
        ABS(result.point[0].step[parameter_of("gemm_fraction")] - 3 * PROFILE_CALIBRATE_GRID / 2),
        <=, 1);
}

/* Moved by spreads, within bounds; the prior itself at 0, bit by bit. */
static void
test_points_are_parameters(void)
{
    ProfileParameters prior = {0};
    ProfilePoint point = {0};
    ProfileParameters at;
    const int fraction = parameter_of("gemm_fraction"), time = parameter_of("kernel_s");

    for (int i = 0; i < PROFILE_PARAMETERS_N; i++)
        profile_parameter_set(&prior, i, profile_parameter_info[i].value);
    at = profile_point_parameters(&point, &prior);
    g_assert_cmpint(memcmp(&at, &prior, sizeof prior), ==, 0);
    point.step[fraction] = -PROFILE_CALIBRATE_GRID;
    point.step[time] = 2 * PROFILE_CALIBRATE_GRID;
    at = profile_point_parameters(&point, &prior);
    g_assert_cmpfloat(at.gemm_fraction, ==,
                      prior.gemm_fraction * (1.0 - profile_parameter_info[fraction].spread));
    g_assert_cmpfloat(at.kernel_s, ==, prior.kernel_s + 2.0 * profile_parameter_info[time].spread);
    point.step[time] = -1000 * PROFILE_CALIBRATE_GRID;
    g_assert_cmpfloat(profile_point_parameters(&point, &prior).kernel_s, ==, 0.0);
}

/* The mean of numbers even in [0, 1) is 1/2 within 5 sigma; equal ids, equal shares. */
static void
test_shares_are_even_and_fixed(void)
{
    double sum = 0.0;
    const int n = 20000;

    for (int i = 0; i < n; i++) {
        g_autofree char *id = g_strdup_printf("vtrain_single_%04d", i);
        const double share = profile_row_share(id);

        g_assert_true(share >= 0.0 && share < 1.0);
        g_assert_cmpfloat(share, ==, profile_row_share(id));
        sum += share;
    }
    g_assert_cmpfloat_with_epsilon(sum / n, 0.5, 5.0 * sqrt(1.0 / 12.0 / n));
}

/* Of n equal values the mean is that value; of 0 and 1 its quantiles are the binomial's. */
static void
test_bootstrap_of_means(void)
{
    double equal[7], coins[100];

    for (int i = 0; i < 7; i++)
        equal[i] = 0.25;
    for (int i = 0; i < 100; i++)
        coins[i] = i % 2;
    g_assert_cmpfloat(profile_bootstrap_mean(equal, 7, 0.05), ==, 0.25);
    /* standard deviation of the mean of 100 coins: 0.05; its 5 % quantile: 0.5 - 1.645 * 0.05 */
    g_assert_cmpfloat_with_epsilon(profile_bootstrap_mean(coins, 100, 0.05), 0.418, 0.02);
    g_assert_cmpfloat_with_epsilon(profile_bootstrap_mean(coins, 100, 0.95), 0.582, 0.02);
    g_assert_cmpfloat(profile_bootstrap_mean(coins, 0, 0.5), ==, 0.0);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/profiles/calibrate/finds-the-closed-form", test_finds_the_closed_form);
    g_test_add_func("/profiles/calibrate/stays-within-the-spreads", test_stays_within_the_spreads);
    g_test_add_func("/profiles/calibrate/an-outlier-does-not-decide",
                    test_an_outlier_does_not_decide);
    g_test_add_func("/profiles/calibrate/only-training-rows-count", test_only_training_rows_count);
    g_test_add_func("/profiles/calibrate/moves-only-what-other-rows-confirm",
                    test_moves_only_what_other_rows_confirm);
    g_test_add_func("/profiles/calibrate/machines-are-alike-by-half",
                    test_machines_are_alike_by_half);
    g_test_add_func("/profiles/calibrate/a-step-too-far-is-damped", test_a_step_too_far_is_damped);
    g_test_add_func("/profiles/calibrate/points-are-parameters", test_points_are_parameters);
    g_test_add_func("/profiles/calibrate/shares-are-even-and-fixed",
                    test_shares_are_even_and_fixed);
    g_test_add_func("/profiles/calibrate/bootstrap-of-means", test_bootstrap_of_means);
    return g_test_run();
}
