#include "simulator/factors.h"

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

SimFactors *
sim_factors_new(const double z[SIM_VARY_QUANTILES], double sigma, double shift)
{
    SimFactors *factors = g_new(SimFactors, 1);

    sim_factors_init(factors, z, sigma, shift);
    return factors;
}
