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
    int n_machines;
    int free[PROFILE_PARAMETERS_N]; /* rows of the table that are fitted, in order */
    int n_free;
    double sigma;      /* the error of a row that the parameters cannot explain */
    double damping;    /* of the last step */
    double *residuals; /* of n_rows at the point */
    double *jacobian;  /* [n_free][n_rows]: per spread of the row's machine */
    /* Of the unknowns, n_free of each machine, one machine's behind another's. */
    double *normal; /* [n_unknowns][n_unknowns] */
    double *gradient;
} Fit;

static int
n_unknowns(const Fit *fit)
{
    return fit->n_machines * fit->n_free;
}

static int
n_machines_of(const ProfileCalibration *problem)
{
    return CLAMP(problem->n_machines, 1, PROFILE_CALIBRATE_MAX_MACHINES);
}

static int
machine_of(const ProfileCalibration *problem, size_t row)
{
    return problem->machine == NULL ? 0 : problem->machine[row];
}

/* The distance of free parameter @j of a machine from its prior, in spreads. */
static double
distance(const Fit *fit, int machine, int j)
{
    return (double)fit->result->point[machine].step[fit->free[j]] / GRID;
}

/*
 * The inverse of the prior's covariance (1 - c) I + c 11' over @n machines, where c is PROFILE_CALIBRATE_ALIKE, is
 * own I - common 11'.  Of one machine it is 1.
 */
typedef struct {
    double own, common;
} Prior;

static Prior
prior_of(int n)
{
    const double c = PROFILE_CALIBRATE_ALIKE;

    return (Prior){1.0 / (1.0 - c), c / ((1.0 - c) * (1.0 - c + c * (double)n))};
}

static bool
in_training(const ProfileCalibration *problem, size_t row)
{
    return problem->in_training == NULL || problem->in_training[row];
}

/* @point: of each machine. */
static double
objective(const ProfileCalibration *problem, double sigma, const ProfilePoint *point,
          const double *residuals)
{
    const int n_machines = n_machines_of(problem);
    const Prior prior = prior_of(n_machines);
    double sum = 0.0;

    for (size_t i = 0; i < problem->n_rows; i++) {
        const double u = fabs(residuals[i]) / sigma;

        if (in_training(problem, i))
            sum += u <= HUBER ? u * u / 2.0 : HUBER * (u - HUBER / 2.0);
    }
    for (int j = 0; j < PROFILE_PARAMETERS_N; j++) {
        double all = 0.0, squares = 0.0;

        for (int m = 0; m < n_machines; m++) {
            const double z = (double)point[m].step[j] / GRID;

            all += z;
            squares += z * z;
        }
        sum += (prior.own * squares - prior.common * all * all) / 2.0;
    }
    return sum;
}

/* Towards the prior, so that the bounds are never left. */
static int32_t
step_ahead(const ProfilePoint *point, int parameter)
{
    return point->step[parameter] > 0 ? -DIFFERENCE_STEP : DIFFERENCE_STEP;
}

/* Residuals at @point (of each machine), and one column for each of @free: the change per spread of the row's own
 * machine. */
static void
differentiate(const ProfileCalibration *problem, const ProfilePoint *point, const int *free,
              int n_free, double *out)
{
    const size_t n = problem->n_rows, n_machines = (size_t)n_machines_of(problem);
    g_autofree ProfilePoint *points = g_new(ProfilePoint, (1 + (size_t)n_free) * n_machines);

    for (size_t p = 0; p < 1 + (size_t)n_free; p++) {
        ProfilePoint *there = points + p * n_machines;

        memcpy(there, point, n_machines * sizeof *point);
        for (size_t m = 0; p > 0 && m < n_machines; m++)
            there[m].step[free[p - 1]] += step_ahead(&point[m], free[p - 1]);
    }
    problem->residuals(points, 1 + (size_t)n_free, out, problem->user_data);
    for (int j = 0; j < n_free; j++) {
        double *column = out + (1 + (size_t)j) * n;

        for (size_t i = 0; i < n; i++)
            column[i] = (column[i] - out[i]) /
                        ((double)step_ahead(&point[machine_of(problem, i)], free[j]) / GRID);
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
        differentiate(problem, fit->result->point, all, n_all, first);
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
    const size_t n = fit->problem->n_rows, n_free = (size_t)fit->n_free,
                 n_all = (size_t)n_unknowns(fit);
    const double per_sigma = 1.0 / (fit->sigma * fit->sigma);
    const Prior prior = prior_of(fit->n_machines);

    memset(fit->normal, 0, n_all * n_all * sizeof *fit->normal);
    for (int j = 0; j < fit->n_free; j++) {
        double all = 0.0;

        for (int m = 0; m < fit->n_machines; m++)
            all += distance(fit, m, j);
        for (int m = 0; m < fit->n_machines; m++) {
            const size_t row = (size_t)m * n_free + (size_t)j;

            for (int k = 0; k < fit->n_machines; k++)
                fit->normal[row * n_all + (size_t)k * n_free + (size_t)j] =
                    (k == m ? prior.own : 0.0) - prior.common;
            fit->gradient[row] = prior.own * distance(fit, m, j) - prior.common * all;
        }
    }
    for (size_t i = 0; i < n; i++) {
        const double size = fabs(fit->residuals[i]);
        const size_t begin = (size_t)machine_of(fit->problem, i) * n_free;
        double weight = per_sigma;

        if (!in_training(fit->problem, i))
            continue;
        if (size > HUBER * fit->sigma)
            weight *= HUBER * fit->sigma / size;
        for (size_t j = 0; j < n_free; j++) {
            const double weighted = weight * fit->jacobian[j * n + i];
            double *row = fit->normal + (begin + j) * n_all + begin;

            fit->gradient[begin + j] += weighted * fit->residuals[i];
            for (size_t k = 0; k <= j; k++)
                row[k] += weighted * fit->jacobian[k * n + i];
        }
    }
    for (size_t j = 0; j < n_all; j++) {
        for (size_t k = 0; k < j; k++)
            fit->normal[k * n_all + j] = fit->normal[j * n_all + k];
    }
}

/* --- linear algebra: the matrix is symmetric, positive definite (it holds that of the prior) --- */

/* Solves for the unknowns of @is_open; the others keep what @x has. */
static void
solve(const Fit *fit, const double *right, const bool *is_open, double *x)
{
    const size_t n_all = (size_t)n_unknowns(fit);
    g_autofree double *l = g_new(double, n_all *n_all + 1);
    g_autofree double *y = g_new(double, n_all + 1);
    g_autofree size_t *open = g_new(size_t, n_all + 1);
    size_t n = 0;

    for (size_t j = 0; j < n_all; j++) {
        if (is_open[j])
            open[n++] = j;
    }
    for (size_t j = 0; j < n; j++) {
        const double *row = fit->normal + open[j] * n_all;
        double value = right[open[j]];

        for (size_t k = 0; k < n_all; k++)
            value -= is_open[k] ? 0.0 : row[k] * x[k];
        for (size_t k = 0; k <= j; k++) {
            double sum = row[open[k]];

            for (size_t m = 0; m < k; m++)
                sum -= l[j * n_all + m] * l[k * n_all + m];
            l[j * n_all + k] = j == k ? sqrt(sum) : sum / l[k * n_all + k];
        }
        for (size_t k = 0; k < j; k++)
            value -= l[j * n_all + k] * y[k];
        y[j] = value / l[j * n_all + j];
    }
    for (size_t j = n; j > 0; j--) {
        double value = y[j - 1];

        for (size_t k = j; k < n; k++)
            value -= l[k * n_all + j - 1] * x[open[k]];
        x[open[j - 1]] = value / l[(j - 1) * n_all + j - 1];
    }
}

/* What is left of the prior's spreads: the root of the inverse's diagonal. */
static void
set_spreads(const Fit *fit)
{
    const size_t n = (size_t)n_unknowns(fit);
    g_autofree bool *all = g_new(bool, n + 1);

    for (size_t j = 0; j < n; j++)
        all[j] = true;
    for (size_t j = 0; j < n; j++) {
        g_autofree double *unit = g_new0(double, n);
        g_autofree double *x = g_new0(double, n);

        unit[j] = 1.0;
        solve(fit, unit, all, x);
        fit->result->spread[j / (size_t)fit->n_free][fit->free[j % (size_t)fit->n_free]] =
            sqrt(fmax(0.0, x[j]));
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
    const size_t n = (size_t)n_unknowns(fit);
    g_autofree double *right = g_new0(double, n + 1);
    g_autofree bool *is_open = g_new0(bool, n + 1);
    g_autofree double *normal = g_memdup2(fit->normal, n * n * sizeof *normal);
    bool closed = true;
    Fit damped = *fit;

    damped.normal = normal;
    for (size_t j = 0; j < n; j++) {
        normal[j * n + j] *= 1.0 + fit->damping;
        right[j] = -fit->gradient[j];
        is_open[j] = true;
    }
    while (closed) {
        closed = false;
        solve(&damped, right, is_open, dz);
        for (size_t j = 0; j < n; j++) {
            const double z = distance(fit, (int)j / fit->n_free, (int)j % fit->n_free);
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
    const int n = n_unknowns(fit);
    g_autofree double *dz = g_new0(double, (size_t)n + 1);

    fit->damping = fit->damping > DAMP_MORE ? fit->damping / DAMP_MORE : 0.0;
    for (int tried = 0; tried <= MAX_DAMPINGS; tried++) {
        ProfilePoint trial[PROFILE_CALIBRATE_MAX_MACHINES];
        bool moved = false;

        memcpy(trial, result->point, sizeof trial);
        newton_step(fit, dz);
        for (int j = 0; j < n; j++) {
            const int32_t step = (int32_t)nearbyint(GRID * dz[j]);
            int32_t *at = &trial[j / fit->n_free].step[fit->free[j % fit->n_free]];

            moved |= step != 0;
            *at = CLAMP(*at + step, -MAX_STEP, MAX_STEP);
        }
        if (!moved)
            return false;
        fit->problem->residuals(trial, 1, residuals, fit->problem->user_data);
        double value = objective(fit->problem, fit->sigma, trial, residuals);
        if (value < result->objective) {
            const bool is_last = value > (1.0 - GAIN) * result->objective;

            result->objective = value;
            memcpy(result->point, trial, sizeof trial);
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
    g_autofree double *dz = g_new0(double, (size_t)n_unknowns(at_prior) + 1);

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
        for (int j = 0; j < n_unknowns(&fit); j++) {
            const int machine = j / fit.n_free;
            const int32_t by = (int32_t)nearbyint(GRID * dz[j]);
            const double *column = fit.jacobian + (size_t)(j % fit.n_free) * n;

            result.point[machine].step[fit.free[j % fit.n_free]] += by;
            for (size_t i = 0; i < n; i++)
                residuals[i] +=
                    machine_of(fit.problem, i) == machine ? column[i] * ((double)by / GRID) : 0.0;
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
    Fit fit = {.problem = calibration, .result = &result, .n_machines = n_machines_of(calibration)};
    g_autofree double *room = g_new0(double, (1 + PROFILE_PARAMETERS_N) * n + 1);
    g_autofree double *columns = g_new0(double, PROFILE_PARAMETERS_N *n + 1);
    g_autofree double *residuals = g_new0(double, n + 1);

    fit.jacobian = columns;
    fit.residuals = residuals;
    start(&fit);
    const size_t n_all = (size_t)n_unknowns(&fit);
    g_autofree double *normal = g_new0(double, n_all *n_all + 1);
    g_autofree double *gradient = g_new0(double, n_all + 1);
    fit.normal = normal;
    fit.gradient = gradient;
    result.sigma = fit.sigma = calibration->sigma > 0.0 ? calibration->sigma : choose_sigma(&fit);
    if (!isfinite(fit.sigma)) {
        memset(result.fitted, 0, sizeof result.fitted);
        fit.n_free = 0;
    }
    result.objective = result.objective_before =
        objective(calibration, fit.sigma, result.point, residuals);
    while (fit.n_free > 0) {
        normal_equations(&fit);
        if (result.n_iterations == MAX_ITERATIONS || !move(&fit, room))
            break;
        result.n_iterations++;
        differentiate(calibration, result.point, fit.free, fit.n_free, room);
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
