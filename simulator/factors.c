#include "simulator/factors.h"

#include <math.h>
#include <stdbool.h>

/* --- numbers that are the same everywhere --- */

double
sim_vary_exp(double x)
{
    double y = x, sum = 1, term = 1;
    int halvings = 0;

    for (; y > 0.5 || y < -0.5; y /= 2)
        halvings++;
    /* Taylor: the rest is below 0.5^18 / 18!. */
    for (int i = 1; i < 18; i++) {
        term *= y / i;
        sum += term;
    }
    for (; halvings > 0; halvings--)
        sum *= sum;
    return sum;
}

/* The density of a normal variable. */
static double
density(double x)
{
    return 0.39894228040143267794 * sim_vary_exp(-x * x / 2);
}

/* Phi(x) - 1/2 = phi(x) (x + x^3/3 + x^5/15 + ...), x >= 0  [Abramowitz and Stegun 26.2.11]. */
static double
mass(double x)
{
    double sum = x, term = x;

    for (int i = 3; term > sum * 1e-17; i += 2) {
        term *= x * x / i;
        sum += term;
    }
    return density(x) * sum;
}

void
sim_vary_quantiles(double z[SIM_VARY_QUANTILES])
{
    const int half = SIM_VARY_QUANTILES / 2;
    double x = 0;

    /* Newton's method, each from the one before. */
    for (int i = 0; i < half; i++) {
        const double wanted = (i + 0.5) / SIM_VARY_QUANTILES;
        for (int step = 0; step < 6; step++)
            x -= (mass(x) - wanted) / density(x);
        z[half + i] = x;
        z[half - 1 - i] = -x;
    }
}

/* --- factors --- */

void
sim_factors_init(SimFactors *factors, const double z[SIM_VARY_QUANTILES], double sigma,
                 double shift)
{
    for (int i = 0; i < SIM_VARY_QUANTILES; i++)
        factors->of[i] =
            (int64_t)(sim_vary_exp(shift + sigma * z[i]) * (double)SIM_FACTOR_ONE + 0.5);
}

void
sim_factors_by_clear(SimFactorsBy *factors)
{
    for (int i = 0; i < SIM_FACTOR_LEVELS; i++)
        g_clear_pointer(&factors->level[i], g_free);
}

/* Its octave and which quarter of it. */
static int
level_of(int64_t ns)
{
    if (ns < 4)
        return 0;
    const int octave = 63 - __builtin_clzll((uint64_t)ns);
    return 4 * octave + (int)(ns >> (octave - 2) & 3);
}

/* In the middle of the level; IEEE operations only, sqrt() is one of them. */
static double
sigma_of(const SimFactorsBy *factors, int level)
{
    const double octave_ns = (double)(INT64_C(1) << (level / 4));
    const double middle_s = octave_ns * (1 + (level % 4 + 0.5) / 4) * 1e-9;

    const double variance =
        factors->sigma * factors->sigma / (1 + middle_s / factors->correlation_s);

    return sqrt(fmax(0.0, variance - factors->lasting * factors->lasting));
}

const SimFactors *
sim_factors_by(SimFactorsBy *factors, int64_t ns)
{
    const bool is_by_duration = factors->correlation_s > 0;
    const int level = is_by_duration ? level_of(ns) : 0;
    const double sigma = is_by_duration ? sigma_of(factors, level) : factors->sigma;

    factors->largest = fmax(factors->largest, sigma);
    if (factors->level[level] == NULL) {
        factors->level[level] = g_new(SimFactors, 1);
        sim_factors_init(factors->level[level], factors->z, sigma,
                         is_by_duration ? -sigma * sigma / 2 : 0.0);
    }
    return factors->level[level];
}
