/*
 * simulator/jitter.h - the same iteration many times, with times that vary as real ones do.
 *
 * In each run every duration d becomes d * L, and L is log-normal with median 1, or, with
 * correlation_s, where durations are means, with mean 1:
 *
 *   ops and messages   L = exp(op_sigma Z), drawn anew for each; with correlation_s ops go at their
 *                      devices' speeds, which change by op_sigma and are forgotten (speed.h), and
 *                      messages vary as much as their ops; an op's rank multiplies it by
 *   pipeline ranks     exp(rank_sigma Z), drawn once per run and replica (devices are not alike),
 *                      and by straggler_slowdown with probability straggler_fraction; of
 *                      context-parallel members, which meet in every layer, the slowest counts,
 *                      with correlation_s in every op
 *   peak memory        exp(memory_sigma Z) per run, replica and rank: the caching allocator's share
 *                      is not known to the byte.  What an order of ops holds does not vary with
 *                      their times, so this alone decides the probability to fit.
 *
 * with Z normal, of 4096 equally likely values (its quantiles at (i + 1/2) / 4096: |Z| <= 3.7).
 * What a rank waits for its reduction after its last op, gathers after it, and the optimizer vary
 * like ops of it.  Data-parallel replicas vary each for itself, and the iteration ends with the
 * slowest.
 *
 * What an op or a message takes because links are shared, or because communication runs beside it,
 * is taken from the run without jitter, then varied; who waits for whom on a link does not change.
 *
 * Numbers come from a counter, not from a stream: run, replica, op and seed decide them, so results
 * depend neither on the number of threads nor on the machine.  Factors are 24-bit fixed point from
 * IEEE additions, products, quotients and square roots only: no exp() or log() of a C library,
 * which differ in the last bit.
 *
 * Internal to simulator/ but for SimJitter, which simulate.h hands on.
 */
#ifndef SIMULATOR_JITTER_H
#define SIMULATOR_JITTER_H

#include "schedule/report.h"

G_BEGIN_DECLS

/* Limits: beyond them times mean nothing. */
#define SIM_JITTER_MAX_SIGMA 2.0
#define SIM_JITTER_MAX_SLOWDOWN 1000.0
#define SIM_JITTER_MAX_RUNS INT64_C(1000000)

/* What varies; see above.  Fractions: 0.05 is 5 %. */
typedef struct {
    double op_sigma, rank_sigma, memory_sigma; /* 0 to SIM_JITTER_MAX_SIGMA */
    double correlation_s;                      /* of speeds; 0: every op for itself */
    double straggler_fraction;                 /* 0 to 1 */
    double straggler_slowdown;                 /* 1 to SIM_JITTER_MAX_SLOWDOWN; 0: 1 */
    int64_t n_runs;                            /* 1 to SIM_JITTER_MAX_RUNS */
    int64_t n_replicas;                        /* data-parallel; 0: 1 */
    int64_t n_members;                         /* context-parallel, of a rank; 0: 1 */
    uint64_t seed;
    int64_t n_threads; /* 0: 1; the result does not depend on it */
} SimJitter;

G_END_DECLS

#endif /* SIMULATOR_JITTER_H */
