#include "profiles/fit/likeness.h"

#include "profiles/fit/calibrate.h"

#include <glib.h>
#include <math.h>

/* What halves the covariance: a ratio of 2^4 in one number, or two words. */
#define DOUBLINGS 4.0
#define WORD 0.5

/* log2 of @x at powers of 2, linear between them. */
static double
doublings(double x)
{
    int exponent;
    const double mantissa = frexp(x, &exponent); /* in [1/2, 1) */

    return (double)exponent + 2.0 * mantissa - 1.0;
}

double
profile_likeness_distance(const ProfileLikeness *a, const ProfileLikeness *b)
{
    double distance = 0.0;

    for (int i = 0; i < PROFILE_LIKENESS_NUMBERS; i++)
        distance += fabs(doublings(a->numbers[i]) - doublings(b->numbers[i])) / DOUBLINGS;
    for (int i = 0; i < PROFILE_LIKENESS_WORDS; i++)
        distance += a->words[i] != b->words[i] ? WORD : 0.0;
    return distance;
}

/* Replaces @x by A^-1 x, and the lower half of @a (@n x @n, symmetric, positive definite) by its
 * factor  [Cholesky]. */
static void
solve(double *a, double *x, size_t n)
{
    for (size_t j = 0; j < n; j++) {
        for (size_t k = 0; k <= j; k++) {
            double sum = a[j * n + k];

            for (size_t m = 0; m < k; m++)
                sum -= a[j * n + m] * a[k * n + m];
            a[j * n + k] = j == k ? sqrt(sum) : sum / a[k * n + k];
        }
        for (size_t k = 0; k < j; k++)
            x[j] -= a[j * n + k] * x[k];
        x[j] /= a[j * n + j];
    }
    for (size_t j = n; j-- > 0;) {
        for (size_t k = j + 1; k < n; k++)
            x[j] -= a[k * n + j] * x[k];
        x[j] /= a[j * n + j];
    }
}

void
profile_likeness_expect(const ProfileLikeness *rows, size_t n, const bool *is_known,
                        const double *errors, double *expected)
{
    const double noise = PROFILE_CALIBRATE_SIGMA * PROFILE_CALIBRATE_SIGMA;
    g_autofree size_t *known = g_new(size_t, n + 1);
    size_t n_known = 0;
    double variance = 0.0;

    for (size_t i = 0; i < n; i++) {
        if (!is_known[i])
            continue;
        known[n_known++] = i;
        variance += errors[i] * errors[i];
    }
    variance = n_known > 0 ? variance / (double)n_known : 0.0;
    g_autofree double *covariance = g_new(double, n_known *n_known + 1);
    g_autofree double *weights = g_new(double, n_known + 1);
    for (size_t j = 0; j < n_known; j++) {
        weights[j] = errors[known[j]];
        for (size_t k = 0; k <= j; k++)
            covariance[j * n_known + k] =
                variance / (1.0 + profile_likeness_distance(&rows[known[j]], &rows[known[k]])) +
                (j == k ? noise : 0.0);
    }
    solve(covariance, weights, n_known);
    for (size_t i = 0; i < n; i++) {
        expected[i] = 0.0;
        for (size_t j = 0; j < n_known; j++)
            expected[i] += variance * weights[j] /
                           (1.0 + profile_likeness_distance(&rows[i], &rows[known[j]]));
    }
}
