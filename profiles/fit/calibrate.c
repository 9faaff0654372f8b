#include "profiles/fit/calibrate.h"

#include "base/order.h"
#include "base/random.h"

#include <math.h>
#include <string.h>

#define GRID ((double)PROFILE_CALIBRATE_GRID)
#define MAX_STEP (PROFILE_CALIBRATE_MAX_SPREADS * PROFILE_CALIBRATE_GRID)
/* Differences are taken over a sixteenth of a spread: far above the rounding of predictions to
 * nanoseconds, far below the distance between a model's kinks. */
#define DIFFERENCE_STEP (PROFILE_CALIBRATE_GRID / 16)
/* Beyond this many sigma an error counts with its size. */
#define HUBER 2.0
/* A parameter that moves no row by a part in ten thousand is none that the rows know. */
#define SENSITIVE 1e-4
#define MAX_ITERATIONS 6
#define MAX_HALVINGS 4
#define N_BOOTSTRAP 2000

/* --- points --- */

ProfileParameters
profile_point_parameters(const ProfilePoint *point, const ProfileParameters *prior)
{
    ProfileParameters parameters = *prior;

    for (int i = 0; i < PROFILE_PARAMETERS_N; i++) {
        const ProfileParameterInfo *info = &profile_parameter_info[i];
        const double before = profile_parameter(prior, i);
        const double moved = info->spread * ((double)point->step[i] / GRID);

        if (point->step[i] != 0)
            profile_parameter_set(&parameters, i,
                                  CLAMP(info->min > 0.0 ? before * (1.0 + moved) : before + moved,
                                        info->min, info->max));
    }
    return parameters;
}

/* --- the state of a fit --- */

typedef struct {
    const ProfileCalibration *problem;
    ProfileCalibrated *result;
    int free[PROFILE_PARAMETERS_N]; /* rows of the table that are fitted, in order */
    int n_free;
    double *residuals; /* of n_rows at the point */
    double *jacobian;  /* [n_free][n_rows]: per spread */
    double normal[PROFILE_PARAMETERS_N][PROFILE_PARAMETERS_N];
    double gradient[PROFILE_PARAMETERS_N];
} Fit;

static bool
in_training(const ProfileCalibration *problem, size_t row)
{
    return problem->in_training == NULL || problem->in_training[row];
}

static double
objective(const ProfileCalibration *problem, const ProfilePoint *point, const double *residuals)
{
    double sum = 0.0;

    for (size_t i = 0; i < problem->n_rows; i++) {
        const double u = fabs(residuals[i]) / PROFILE_CALIBRATE_SIGMA;

        if (in_training(problem, i))
            sum += u <= HUBER ? u * u / 2.0 : HUBER * (u - HUBER / 2.0);
    }
    for (int j = 0; j < PROFILE_PARAMETERS_N; j++) {
        const double z = (double)point->step[j] / GRID;

        sum += z * z / 2.0;
    }
    return sum;
}

/* Residuals at the point, and one column for each of @free: the change per spread. */
static void
differentiate(const ProfileCalibration *problem, const ProfilePoint *point, const int *free,
              int n_free, double *out)
{
    const size_t n = problem->n_rows;
    ProfilePoint points[1 + PROFILE_PARAMETERS_N];
    int32_t ahead[PROFILE_PARAMETERS_N];

    points[0] = *point;
    for (int j = 0; j < n_free; j++) {
        /* Towards the prior, so that the bounds are never left. */
        ahead[j] = point->step[free[j]] > 0 ? -DIFFERENCE_STEP : DIFFERENCE_STEP;
        points[1 + j] = *point;
        points[1 + j].step[free[j]] += ahead[j];
    }
    problem->residuals(points, 1 + (size_t)n_free, out, problem->user_data);
    for (int j = 0; j < n_free; j++) {
        double *column = out + (1 + (size_t)j) * n;

        for (size_t i = 0; i < n; i++)
            column[i] = (column[i] - out[i]) / ((double)ahead[j] / GRID);
    }
}

/* The first derivatives, of all parameters of the kind; keeps those that matter. */
static void
start(Fit *fit)
{
    const ProfileCalibration *problem = fit->problem;
    const size_t n = problem->n_rows;
    int all[PROFILE_PARAMETERS_N], n_all = 0;
    g_autofree double *own = NULL;
    double *first = problem->first;

    for (int i = 0; i < PROFILE_PARAMETERS_N; i++) {
        if (profile_parameter_info[i].fit == problem->fit)
            all[n_all++] = i;
    }
    if (first == NULL) {
        own = g_new0(double, (1 + (size_t)n_all) * n);
        first = own;
    }
    if (problem->has_first == NULL || !*problem->has_first)
        differentiate(problem, &fit->result->point, all, n_all, first);
    if (problem->has_first != NULL)
        *problem->has_first = true;
    memcpy(fit->residuals, first, n * sizeof *first);
    for (int j = 0; j < n_all; j++) {
        const double *column = first + (1 + (size_t)j) * n;
        double largest = 0.0;

        for (size_t i = 0; i < n; i++) {
            if (in_training(problem, i))
                largest = fmax(largest, fabs(column[i]));
        }
        if (largest < SENSITIVE)
            continue;
        memcpy(fit->jacobian + (size_t)fit->n_free * n, column, n * sizeof *column);
        fit->result->fitted[all[j]] = true;
        fit->free[fit->n_free++] = all[j];
    }
}

/* Normal equations of the training rows with Huber's weights, and of the prior. */
static void
normal_equations(Fit *fit)
{
    const size_t n = fit->problem->n_rows;
    const double per_sigma = 1.0 / (PROFILE_CALIBRATE_SIGMA * PROFILE_CALIBRATE_SIGMA);

    for (int j = 0; j < fit->n_free; j++) {
        for (int k = 0; k < fit->n_free; k++)
            fit->normal[j][k] = j == k ? 1.0 : 0.0;
        fit->gradient[j] = (double)fit->result->point.step[fit->free[j]] / GRID;
    }
    for (size_t i = 0; i < n; i++) {
        const double size = fabs(fit->residuals[i]);
        double weight = per_sigma;

        if (!in_training(fit->problem, i))
            continue;
        if (size > HUBER * PROFILE_CALIBRATE_SIGMA)
            weight *= HUBER * PROFILE_CALIBRATE_SIGMA / size;
        for (int j = 0; j < fit->n_free; j++) {
            const double weighted = weight * fit->jacobian[(size_t)j * n + i];

            fit->gradient[j] += weighted * fit->residuals[i];
            for (int k = 0; k <= j; k++)
                fit->normal[j][k] += weighted * fit->jacobian[(size_t)k * n + i];
        }
    }
    for (int j = 0; j < fit->n_free; j++) {
        for (int k = 0; k < j; k++)
            fit->normal[k][j] = fit->normal[j][k];
    }
}

/* --- linear algebra: the matrix is symmetric, positive definite (it holds the identity) --- */

/* Solves for the variables of @is_open; the others keep what @x has. */
static void
solve(const Fit *fit, const double *right, const bool *is_open, double *x)
{
    double l[PROFILE_PARAMETERS_N][PROFILE_PARAMETERS_N];
    double y[PROFILE_PARAMETERS_N];
    int open[PROFILE_PARAMETERS_N], n = 0;

    for (int j = 0; j < fit->n_free; j++) {
        if (is_open[j])
            open[n++] = j;
    }
    for (int j = 0; j < n; j++) {
        double value = right[open[j]];

        for (int k = 0; k < fit->n_free; k++)
            value -= is_open[k] ? 0.0 : fit->normal[open[j]][k] * x[k];
        for (int k = 0; k <= j; k++) {
            double sum = fit->normal[open[j]][open[k]];

            for (int m = 0; m < k; m++)
                sum -= l[j][m] * l[k][m];
            l[j][k] = j == k ? sqrt(sum) : sum / l[k][k];
        }
        for (int k = 0; k < j; k++)
            value -= l[j][k] * y[k];
        y[j] = value / l[j][j];
    }
    for (int j = n - 1; j >= 0; j--) {
        double value = y[j];

        for (int k = j + 1; k < n; k++)
            value -= l[k][j] * x[open[k]];
        x[open[j]] = value / l[j][j];
    }
}

/* What is left of the prior's spreads: the root of the inverse's diagonal. */
static void
set_spreads(const Fit *fit)
{
    bool all[PROFILE_PARAMETERS_N];

    for (int j = 0; j < fit->n_free; j++)
        all[j] = true;
    for (int j = 0; j < fit->n_free; j++) {
        double unit[PROFILE_PARAMETERS_N] = {0.0}, x[PROFILE_PARAMETERS_N] = {0.0};

        unit[j] = 1.0;
        solve(fit, unit, all, x);
        fit->result->spread[fit->free[j]] = sqrt(fmax(0.0, x[j]));
    }
}

/* --- iterations --- */

/* The step of Gauss and Newton, in spreads; a parameter that would leave its bounds is set on them
 * and the others are solved for again. */
static void
newton_step(const Fit *fit, double *dz)
{
    double right[PROFILE_PARAMETERS_N];
    bool is_open[PROFILE_PARAMETERS_N];
    bool closed = true;

    for (int j = 0; j < fit->n_free; j++) {
        right[j] = -fit->gradient[j];
        is_open[j] = true;
    }
    while (closed) {
        closed = false;
        solve(fit, right, is_open, dz);
        for (int j = 0; j < fit->n_free; j++) {
            const double z = (double)fit->result->point.step[fit->free[j]] / GRID;
            const double limit = PROFILE_CALIBRATE_MAX_SPREADS;

            if (!is_open[j] || fabs(z + dz[j]) <= limit)
                continue;
            dz[j] = (z + dz[j] > 0.0 ? limit : -limit) - z;
            is_open[j] = false;
            closed = true;
        }
    }
}

/* Moves to a better point along @dz; false where there is none. */
static bool
move(Fit *fit, const double *dz, double *residuals)
{
    ProfileCalibrated *result = fit->result;
    double share = 1.0;

    for (int n = 0; n < MAX_HALVINGS; n++, share /= 2.0) {
        ProfilePoint trial = result->point;
        bool moved = false;

        for (int j = 0; j < fit->n_free; j++) {
            const int32_t step = (int32_t)nearbyint(GRID * dz[j] * share);
            int32_t *at = &trial.step[fit->free[j]];

            moved |= step != 0;
            *at = CLAMP(*at + step, -MAX_STEP, MAX_STEP);
        }
        if (!moved)
            return false;
        fit->problem->residuals(&trial, 1, residuals, fit->problem->user_data);
        double value = objective(fit->problem, &trial, residuals);
        if (value < result->objective) {
            result->objective = value;
            result->point = trial;
            return true;
        }
    }
    return false;
}

ProfileCalibrated
profile_calibrate(const ProfileCalibration *calibration)
{
    const size_t n = calibration->n_rows;
    ProfileCalibrated result = {0};
    Fit fit = {.problem = calibration, .result = &result};
    g_autofree double *room = g_new0(double, (1 + PROFILE_PARAMETERS_N) * n + 1);
    g_autofree double *columns = g_new0(double, PROFILE_PARAMETERS_N *n + 1);
    g_autofree double *residuals = g_new0(double, n + 1);
    double dz[PROFILE_PARAMETERS_N] = {0.0};

    fit.jacobian = columns;
    fit.residuals = residuals;
    start(&fit);
    result.objective = result.objective_before = objective(calibration, &result.point, residuals);
    while (fit.n_free > 0) {
        normal_equations(&fit);
        newton_step(&fit, dz);
        if (result.n_iterations == MAX_ITERATIONS || !move(&fit, dz, room))
            break;
        result.n_iterations++;
        differentiate(calibration, &result.point, fit.free, fit.n_free, room);
        memcpy(residuals, room, n * sizeof *room);
        memcpy(columns, room + n, (size_t)fit.n_free * n * sizeof *room);
    }
    set_spreads(&fit);
    return result;
}

/* --- shares and bootstrap --- */

double
profile_row_share(const char *id)
{
    return (double)(random_at(random_hash(id), 0) >> 11) / 9007199254740992.0;
}

double
profile_bootstrap_mean(const double *values, size_t n, double quantile)
{
    g_autofree double *means = g_new(double, N_BOOTSTRAP);
    uint64_t state = 1;

    if (n == 0)
        return 0.0;
    for (int b = 0; b < N_BOOTSTRAP; b++) {
        double sum = 0.0;

        for (size_t i = 0; i < n; i++)
            sum += values[random_next(&state) % n];
        means[b] = sum / (double)n;
    }
    qsort(means, N_BOOTSTRAP, sizeof *means, order_doubles);
    return means[(int)(quantile * (N_BOOTSTRAP - 1))];
}
