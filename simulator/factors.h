/*
 * simulator/factors.h - random factors of times, the same on every machine; what they are for is in
 * jitter.h.
 *
 * Factors are multiples of 2^-24: an error of 3e-8, and an hour in ns times one fits 64 bits.
 *
 * Internal to simulator/.
 */
#ifndef SIMULATOR_FACTORS_H
#define SIMULATOR_FACTORS_H

#include <glib.h>
#include <stdint.h>

G_BEGIN_DECLS

#define SIM_FACTOR_BITS 24
#define SIM_FACTOR_ONE (INT64_C(1) << SIM_FACTOR_BITS)

/* --- numbers that are the same everywhere --- */

/* The @i-th of SIM_VARY_QUANTILES equally likely values of a normal variable, exactly the same on
 * every machine. */
#define SIM_VARY_QUANTILES 4096
void sim_vary_quantiles(double z[SIM_VARY_QUANTILES]);
/* exp(x) for |x| <= 16, correct to 1e-14 relative, exactly the same on every machine. */
double sim_vary_exp(double x);

/* The finaliser of SplitMix64  [Steele, Lea, Flood, OOPSLA 2014]. */
static inline uint64_t
sim_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* The @i-th number of stream @key. */
static inline uint64_t
sim_draw(uint64_t key, uint64_t i)
{
    return sim_mix(key + (i + 1) * UINT64_C(0x9e3779b97f4a7c15));
}

/* --- factors of one sigma --- */

typedef struct {
    int64_t of[SIM_VARY_QUANTILES]; /* by quantile */
} SimFactors;

/* (owned) exp(shift + sigma z) of every z; the other fills what is there. */
SimFactors *sim_factors_new(const double z[SIM_VARY_QUANTILES], double sigma, double shift);
void sim_factors_init(SimFactors *factors, const double z[SIM_VARY_QUANTILES], double sigma,
                      double shift);

/* By the upper bits of @random, and by bits below these. */
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

G_END_DECLS

#endif /* SIMULATOR_FACTORS_H */
