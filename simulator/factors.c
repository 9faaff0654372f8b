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

SimFactors *
sim_factors_new(const double z[SIM_VARY_QUANTILES], double sigma, double shift)
{
    SimFactors *factors = g_new(SimFactors, 1);

    sim_factors_init(factors, z, sigma, shift);
    return factors;
}

/* --- speeds that change --- */

/* Cells of Y over its deviation. */
#define FARTHEST 4.0
#define N_CELLS SIM_VARY_QUANTILES

/* sim_vary_exp() goes as far; of exp(-FORGOTTEN) nothing is seen. */
#define FORGOTTEN 16.0

static double
kept_after(double u)
{
    return u < FORGOTTEN ? sim_vary_exp(-u) : 0.0;
}

static int
cell_of(double y)
{
    const double cell = (y + FARTHEST) * (N_CELLS / (2 * FARTHEST));

    return (int)CLAMP(cell, 0.0, (double)(N_CELLS - 1));
}

/* --- levels --- */

/* Its octave and which quarter of it. */
static int
level_of(int64_t ns)
{
    if (ns < 4)
        return 0;
    const int octave = 63 - __builtin_clzll((uint64_t)ns);
    return 4 * octave + (int)(ns >> (octave - 2) & 3);
}

static double
middle_s(int level)
{
    const double octave_ns = (double)(INT64_C(1) << (level / 4));

    return octave_ns * (1 + (level % 4 + 0.5) / 4) * 1e-9;
}

static SimSpeedLevel *
level_new(const SimSpeeds *speeds, double u)
{
    SimSpeedLevel *level = g_new(SimSpeedLevel, 1);
    const double a = kept_after(u), half = (1 - a) / (1 + a); /* tanh(u/2) */
    /* By their series where differences would be lost. */
    const bool is_short = u < 1e-3;
    const double between = is_short ? u / 6 : 2 * (u - 2 * half) / (u * u);
    const double variance = is_short ? 1 - u / 3 : 2 * (u - 1 + a) / (u * u);
    const double deviation = sqrt(variance), sigma = speeds->sigma * deviation;
    double y[N_CELLS];

    for (int cell = 0; cell < N_CELLS; cell++)
        y[cell] = (cell + 0.5) * (2 * FARTHEST / N_CELLS) - FARTHEST;
    sim_factors_init(&level->factors, y, sigma, -sigma * sigma / 2);
    level->keeps = a;
    level->forgets = is_short ? sqrt(2 * u) : sqrt(1 - a * a);
    level->ends = (is_short ? 0.5 : half / u) / deviation;
    level->between = sqrt(between) / deviation;
    return level;
}

void
sim_speeds_clear(SimSpeeds *speeds)
{
    for (int i = 0; i < SIM_SPEED_LEVELS; i++)
        g_clear_pointer(&speeds->level[i], g_free);
}

const SimSpeedLevel *
sim_speeds_level(SimSpeeds *speeds, int64_t ns)
{
    const int i = level_of(ns);

    if (speeds->level[i] == NULL)
        speeds->level[i] = level_new(speeds, 2 * middle_s(i) / speeds->correlation_s);
    return speeds->level[i];
}

double
sim_speeds_largest(const SimSpeeds *speeds)
{
    return sim_vary_exp(speeds->sigma * FARTHEST);
}

/* By the @i-th 12 bits of @random, from 0 to 3.  The messages' are the second: factors.h. */
static inline double
normal_of(const SimSpeeds *speeds, uint64_t random, int i)
{
    return speeds->z[random >> (52 - 12 * i) & (SIM_VARY_QUANTILES - 1)];
}

double
sim_speed_first(const SimSpeeds *speeds, uint64_t random)
{
    return normal_of(speeds, random, 0);
}

int64_t
sim_speed_next(const SimSpeeds *speeds, double *x, const SimSpeedLevel *level, int64_t gap_ns,
               uint64_t random)
{
    double begin = *x;

    if (gap_ns > 0) {
        const double a = kept_after((double)gap_ns * 2e-9 / speeds->correlation_s);
        begin = a * begin + sqrt(1 - a * a) * normal_of(speeds, random, 2);
    }
    const double end = level->keeps * begin + level->forgets * normal_of(speeds, random, 0);
    *x = end;
    return level->factors
        .of[cell_of(level->ends * (begin + end) + level->between * normal_of(speeds, random, 3))];
}

int64_t
sim_speed_alone(const SimSpeeds *speeds, const SimSpeedLevel *level, uint64_t random)
{
    return level->factors.of[cell_of(normal_of(speeds, random, 1))];
}
