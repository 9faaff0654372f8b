#include "profiles/fit/measured_fit.h"

#include <math.h>
#include <stdbool.h>

ProfileFitFeatures
profile_fit_features(int64_t batch, int64_t tokens, int64_t context)
{
    double n = (double)batch * (double)tokens;

    return (ProfileFitFeatures){{1.0, n, n * (2.0 * (double)context + (double)tokens)}};
}

double
profile_fit_evaluate(const ProfileFitFeatures *features,
                     const double coefficients[PROFILE_FIT_FEATURES])
{
    double sum = 0.0;

    for (int i = 0; i < PROFILE_FIT_FEATURES; i++)
        sum += coefficients[i] * features->x[i];
    return sum;
}

/* Solves the normal equations of the chosen features by elimination with pivoting; false if they
 * are not independent. */
static bool
solve(double matrix[PROFILE_FIT_FEATURES][PROFILE_FIT_FEATURES + 1], int n,
      double solution[PROFILE_FIT_FEATURES])
{
    for (int i = 0; i < n; i++) {
        int pivot = i;

        for (int row = i + 1; row < n; row++) {
            if (fabs(matrix[row][i]) > fabs(matrix[pivot][i]))
                pivot = row;
        }
        if (fabs(matrix[pivot][i]) < 1e-9)
            return false;
        for (int column = 0; column <= n; column++) {
            double swap = matrix[i][column];

            matrix[i][column] = matrix[pivot][column];
            matrix[pivot][column] = swap;
        }
        for (int row = i + 1; row < n; row++) {
            double factor = matrix[row][i] / matrix[i][i];

            for (int column = i; column <= n; column++)
                matrix[row][column] -= factor * matrix[i][column];
        }
    }
    for (int i = n - 1; i >= 0; i--) {
        double sum = matrix[i][n];

        for (int column = i + 1; column < n; column++)
            sum -= matrix[i][column] * solution[column];
        solution[i] = sum / matrix[i][i];
    }
    return true;
}

/* Least squares of relative errors over the features in @mask, each scaled to at most 1 so that
 * "independent" has a meaning.  Returns the squared error, or infinity if a coefficient would be
 * negative or the rows do not determine them. */
static double
fit_subset(const ProfileFitFeatures *features, const double *times, size_t n_rows, unsigned mask,
           double coefficients[PROFILE_FIT_FEATURES])
{
    double matrix[PROFILE_FIT_FEATURES][PROFILE_FIT_FEATURES + 1] = {0},
                                                               solution[PROFILE_FIT_FEATURES] = {0};
    double scale[PROFILE_FIT_FEATURES] = {0}, error = 0.0;
    int chosen[PROFILE_FIT_FEATURES], n = 0;

    for (int i = 0; i < PROFILE_FIT_FEATURES; i++) {
        if ((mask >> i & 1u) == 0)
            continue;
        chosen[n++] = i;
        for (size_t row = 0; row < n_rows; row++)
            scale[i] = fmax(scale[i], features[row].x[i] / times[row]);
    }
    for (size_t row = 0; row < n_rows; row++) {
        for (int i = 0; i < n; i++) {
            double xi = features[row].x[chosen[i]] / times[row] / scale[chosen[i]];

            for (int j = 0; j < n; j++)
                matrix[i][j] += xi * (features[row].x[chosen[j]] / times[row] / scale[chosen[j]]);
            matrix[i][n] += xi;
        }
    }
    if (!solve(matrix, n, solution))
        return INFINITY;
    for (int i = 0; i < PROFILE_FIT_FEATURES; i++)
        coefficients[i] = 0.0;
    for (int i = 0; i < n; i++) {
        if (solution[i] < 0.0)
            return INFINITY;
        coefficients[chosen[i]] = solution[i] / scale[chosen[i]];
    }
    for (size_t row = 0; row < n_rows; row++) {
        double relative = profile_fit_evaluate(&features[row], coefficients) / times[row] - 1.0;

        error += relative * relative;
    }
    return error;
}

void
profile_fit(const ProfileFitFeatures *features, const double *times, size_t n_rows,
            double coefficients[PROFILE_FIT_FEATURES])
{
    static const unsigned subsets[] = {2u, 3u, 6u, 7u, 4u, 5u, 1u};
    double best = INFINITY;

    for (size_t i = 0; i < G_N_ELEMENTS(subsets); i++) {
        double candidate[PROFILE_FIT_FEATURES] = {0};
        double error = fit_subset(features, times, n_rows, subsets[i], candidate);

        /* A larger subset must be better by more than rounding. */
        if (error < best * (1.0 - 1e-9)) {
            best = error;
            for (int j = 0; j < PROFILE_FIT_FEATURES; j++)
                coefficients[j] = candidate[j];
        }
    }
}
