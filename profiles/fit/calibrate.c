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
#define MAX_ITERATIONS 12
/* A step that makes nothing better is tried again, damped so many times more, so often. */
#define DAMP_MORE 8.0
#define MAX_DAMPINGS 5
/* Steps that gain less than this share of the objective are the last. */
#define GAIN 1e-3
/* The choice of sigma: its candidates (PROFILE_CALIBRATE_SIGMA, twice that, ..., and the prior), the parts
 * that are held out in turn, how often rows are dealt into parts, the linear steps of each fit, and by how many
 * standard errors a larger sigma may seem worse and be taken. */
#define N_SIGMAS 5
#define N_PARTS 10
#define N_DEALS 2
#define N_LINEAR_STEPS 8
#define STANDARD_ERRORS 0.5
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
    double sigma;      /* the error of a row that the parameters cannot explain */
    double damping;    /* of the last step */
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
objective(const ProfileCalibration *problem, double sigma, const ProfilePoint *point,
          const double *residuals)
{
    double sum = 0.0;

    for (size_t i = 0; i < problem->n_rows; i++) {
        const double u = fabs(residuals[i]) / sigma;

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
    const double per_sigma = 1.0 / (fit->sigma * fit->sigma);

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
        if (size > HUBER * fit->sigma)
            weight *= HUBER * fit->sigma / size;
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

/*
 * The step of Gauss and Newton, in spreads, with the diagonal 1 + damping times as large [marquardt1963]; a
 * parameter that would leave its bounds is set on them and the others are solved for again.
 */
static void
newton_step(const Fit *fit, double *dz)
{
    double right[PROFILE_PARAMETERS_N] = {0.0};
    bool is_open[PROFILE_PARAMETERS_N] = {false};
    bool closed = true;
    Fit damped = *fit;

    for (int j = 0; j < fit->n_free; j++) {
        damped.normal[j][j] *= 1.0 + fit->damping;
        right[j] = -fit->gradient[j];
        is_open[j] = true;
    }
    while (closed) {
        closed = false;
        solve(&damped, right, is_open, dz);
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

/* Moves to a better point; false where none is found.  A model with kinks (the longer of two times) is linear
 * close by only: the damping that a step needed is where the next one begins. */
static bool
move(Fit *fit, double *residuals)
{
    ProfileCalibrated *result = fit->result;
    double dz[PROFILE_PARAMETERS_N] = {0.0};

    fit->damping = fit->damping > DAMP_MORE ? fit->damping / DAMP_MORE : 0.0;
    for (int n = 0; n <= MAX_DAMPINGS; n++) {
        ProfilePoint trial = result->point;
        bool moved = false;

        newton_step(fit, dz);
        for (int j = 0; j < fit->n_free; j++) {
            const int32_t step = (int32_t)nearbyint(GRID * dz[j]);
            int32_t *at = &trial.step[fit->free[j]];

            moved |= step != 0;
            *at = CLAMP(*at + step, -MAX_STEP, MAX_STEP);
        }
        if (!moved)
            return false;
        fit->problem->residuals(&trial, 1, residuals, fit->problem->user_data);
        double value = objective(fit->problem, fit->sigma, &trial, residuals);
        if (value < result->objective) {
            const bool is_last = value > (1.0 - GAIN) * result->objective;

            result->objective = value;
            result->point = trial;
            return !is_last;
        }
        fit->damping = fmax(1.0, fit->damping * DAMP_MORE);
    }
    return false;
}

/* --- how far to believe the rows --- */

/*
 * Adds to @errors[row] the size of the error of each training row whose @part is @held_out, predicted by the
 * first derivatives at the prior and a fit with @sigma to the other training rows.
 */
static void
add_held_out(const Fit *at_prior, const int *part, int held_out, double sigma, double *errors)
{
    const size_t n = at_prior->problem->n_rows;
    ProfileCalibration problem = *at_prior->problem;
    ProfileCalibrated result = {0};
    Fit fit = *at_prior;
    g_autofree bool *known = g_new(bool, n + 1);
    g_autofree double *residuals = g_memdup2(at_prior->residuals, n * sizeof *residuals);
    double dz[PROFILE_PARAMETERS_N] = {0.0};

    for (size_t i = 0; i < n; i++)
        known[i] = in_training(at_prior->problem, i) && part[i] != held_out;
    problem.in_training = known;
    fit.problem = &problem;
    fit.result = &result;
    fit.sigma = sigma;
    fit.residuals = residuals;
    for (int step = 0; step < N_LINEAR_STEPS; step++) {
        normal_equations(&fit);
        newton_step(&fit, dz);
        for (int j = 0; j < fit.n_free; j++) {
            const int32_t by = (int32_t)nearbyint(GRID * dz[j]);
            const double *column = fit.jacobian + (size_t)j * n;

            result.point.step[fit.free[j]] += by;
            for (size_t i = 0; i < n; i++)
                residuals[i] += column[i] * ((double)by / GRID);
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (in_training(at_prior->problem, i) && !known[i])
            errors[i] += fabs(residuals[i]);
    }
}

/* Deals the training rows evenly into @n_parts parts, in a random order. */
static void
deal(const ProfileCalibration *problem, int n_parts, uint64_t *state, int *part)
{
    g_autofree size_t *rows = g_new(size_t, problem->n_rows + 1);
    size_t n = 0;

    for (size_t i = 0; i < problem->n_rows; i++) {
        if (in_training(problem, i))
            rows[n++] = i;
    }
    for (size_t k = n; k > 0; k--) { /* rows[k..] have their parts */
        const size_t chosen = random_next(state) % k;

        part[rows[chosen]] = (int)(k % (size_t)n_parts);
        rows[chosen] = rows[k - 1];
    }
}

/* The mean over the training rows of @a - @b, and its standard error. */
static double
mean_difference(const ProfileCalibration *problem, const double *a, const double *b, double *error)
{
    double sum = 0.0, squares = 0.0, n = 0.0;

    for (size_t i = 0; i < problem->n_rows; i++) {
        const double difference = a[i] - b[i];

        if (!in_training(problem, i))
            continue;
        n += 1.0;
        sum += difference;
        squares += difference * difference;
    }
    *error = sqrt(fmax(0.0, squares / n - sum / n * (sum / n)) / n);
    return sum / n;
}

/*
 * The sigma with which fits to a part of the training rows predict the others best, or one so much larger that they
 * can hardly be told apart (cost-model.md 4, Fits); INFINITY: the prior predicts them as well.
 */
static double
choose_sigma(const Fit *at_prior)
{
    const ProfileCalibration *problem = at_prior->problem;
    const size_t n = problem->n_rows;
    g_autofree double *errors = g_new0(double, (N_SIGMAS + 1) * n + 1);
    g_autofree int *part = g_new0(int, n + 1);
    uint64_t state = 1;
    int n_training = 0, best = 0, chosen = N_SIGMAS;
    double error;

    for (size_t i = 0; i < n; i++)
        n_training += in_training(problem, i);
    if (n_training < 2 || at_prior->n_free == 0)
        return PROFILE_CALIBRATE_SIGMA;
    for (int d = 0; d < N_DEALS; d++) {
        const int n_parts = MIN(N_PARTS, n_training);

        deal(problem, n_parts, &state, part);
        for (int k = 0; k < N_SIGMAS; k++) {
            for (int p = 0; p < n_parts; p++)
                add_held_out(at_prior, part, p, PROFILE_CALIBRATE_SIGMA * (1 << k),
                             errors + (size_t)k * n);
        }
        for (size_t i = 0; i < n; i++)
            errors[N_SIGMAS * n + i] += fabs(at_prior->residuals[i]);
    }
    for (int k = 1; k <= N_SIGMAS; k++) {
        if (mean_difference(problem, errors + (size_t)k * n, errors + (size_t)best * n, &error) <
            0.0)
            best = k;
    }
    while (mean_difference(problem, errors + (size_t)chosen * n, errors + (size_t)best * n,
                           &error) > STANDARD_ERRORS * error)
        chosen--; /* at the best there is no difference */
    return chosen == N_SIGMAS ? INFINITY : PROFILE_CALIBRATE_SIGMA * (1 << chosen);
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

    fit.jacobian = columns;
    fit.residuals = residuals;
    start(&fit);
    result.sigma = fit.sigma = calibration->sigma > 0.0 ? calibration->sigma : choose_sigma(&fit);
    if (!isfinite(fit.sigma)) {
        memset(result.fitted, 0, sizeof result.fitted);
        fit.n_free = 0;
    }
    result.objective = result.objective_before =
        objective(calibration, fit.sigma, &result.point, residuals);
    while (fit.n_free > 0) {
        normal_equations(&fit);
        if (result.n_iterations == MAX_ITERATIONS || !move(&fit, room))
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
