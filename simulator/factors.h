/*
 * simulator/factors.h - random factors of times, the same on every machine; what they are
 * for is with SimJitter in simulate.h.
 *
 * Factors are multiples of 2^-24: an error of 3e-8, and an hour in ns times one fits 64 bits.
 *
 * Internal to simulator/.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

#include "base/random.h"

#define SIM_FACTOR_BITS 24
#define SIM_FACTOR_ONE (INT64_C(1) << SIM_FACTOR_BITS)

/* --- numbers that are the same everywhere --- */

/* The @i-th of SIM_VARY_QUANTILES equally likely values of a normal variable, exactly the same on
 * every machine. */
#define SIM_VARY_QUANTILES 4096
void sim_vary_quantiles(double z[SIM_VARY_QUANTILES]);
/* exp(x) for |x| <= 16, correct to 1e-14 relative, exactly the same on every machine. */
double sim_vary_exp(double x);

/* --- factors of one sigma --- */

typedef struct {
    int64_t of[SIM_VARY_QUANTILES]; /* by quantile */
} SimFactors;

/* exp(shift + sigma z) of every z.  The first returns them (owned), the second fills @factors. */
SimFactors *sim_factors_new(const double z[SIM_VARY_QUANTILES], double sigma, double shift);
void sim_factors_init(SimFactors *factors, const double z[SIM_VARY_QUANTILES], double sigma,
                      double shift);

/* The factor that the upper 12 bits of @random select; that which the 12 bits below these do. */
static inline int64_t
sim_first_factor(const SimFactors *factors, uint64_t random)
{
    return factors->of[random >> 52];
}

static inline int64_t
sim_second_factor(const SimFactors *factors, uint64_t random)
{
    return factors->of[random >> 40 & (SIM_VARY_QUANTILES - 1)];
}

__extension__ typedef unsigned __int128 SimWide;

/* value * factor / 2^24, rounded; both >= 0. */
static inline int64_t
sim_times_factor(int64_t value, int64_t factor)
{
    const SimWide product =
        (SimWide)(uint64_t)value * (uint64_t)factor + (uint64_t)(SIM_FACTOR_ONE / 2);

    return (int64_t)(uint64_t)(product >> SIM_FACTOR_BITS);
}

/* --- speeds of devices in a run, which change and are forgotten --- */

/*
 * ln of a device's slowness is sigma X, X a stationary Gaussian process of variance 1 that forgets
 * itself exponentially, within tau = correlation_s / 2 (Ornstein-Uhlenbeck).  With u = d / tau and
 * a = exp(-u), an op of d seconds that finds X0 leaves X1, and its own is the mean Y of X over it
 * [exact: Gillespie, Phys. Rev. E 54(2), 1996]:
 *
 *   X1 = a X0 + sqrt(1 - a^2) z
 *   Y  = tanh(u/2) / u (X0 + X1) + sqrt(2 (u - 2 tanh(u/2))) / u z'
 *
 * Y's variance over all runs is 2 (u - 1 + a) / u^2: 1 of a short op, correlation_s / d of a long
 * one, and at most a seventh more than 1 / (1 + d / correlation_s), the law that profiles are
 * fitted to (executor/measure/variation.h).  So what is slow now is slow in the next ops too, and
 * of two ranks that wait for each other the slower one counts for as long as it is.  Were every op
 * drawn anew, short ones would average out within a step.
 *
 * An op takes exp(sigma Y - v / 2) of its time, v the variance of sigma Y: on the mean all of it.
 * Of 4096 cells of Y.
 */

/* Durations from 1 ns to 2^63, four to an octave. */
#define SIM_SPEED_LEVELS 256

/* Everything that takes about as long: a quarter of an octave of durations. */
typedef struct {
    SimFactors factors;    /* by cell of Y over its deviation */
    double keeps, forgets; /* a, sqrt(1 - a^2) */
    double ends, between;  /* of Y over its deviation: of X0 + X1, of z' */
} SimSpeedLevel;

/* How devices' speeds change. */
typedef struct {
    double sigma, correlation_s;            /* correlation_s > 0 */
    const double *z;                        /* (borrowed) quantiles */
    SimSpeedLevel *level[SIM_SPEED_LEVELS]; /* (owned) made when asked for */
} SimSpeeds;

void sim_speeds_clear(SimSpeeds *speeds);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(SimSpeeds, sim_speeds_clear)

/* Returns: (borrowed) the level of durations of @ns.  One thread at a time.  Cost: 4096
 * exponentials for what is made. */
const SimSpeedLevel *sim_speeds_level(SimSpeeds *speeds, int64_t ns);

/* Returns: a bound: no factor of a speed is larger. */
double sim_speeds_largest(const SimSpeeds *speeds);

/* Returns: X of a device of which nothing is known yet, drawn by @random. */
double sim_speed_first(const SimSpeeds *speeds, uint64_t random);

/* Returns: the factor of an op of @level that begins @gap_ns after the device's last op, which left
 * @x; sets @x to what this op leaves. */
int64_t sim_speed_next(const SimSpeeds *speeds, double *x, const SimSpeedLevel *level,
                       int64_t gap_ns, uint64_t random);

/* Returns: a factor of @level that is independent of all others. */
int64_t sim_speed_alone(const SimSpeeds *speeds, const SimSpeedLevel *level, uint64_t random);
