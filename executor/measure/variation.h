/*
 * executor/measure/variation.h - how much the timings of layers vary: from op to op, and from rank
 * to rank.
 *
 * The speed of a core changes with what else the host does on it.  Take a speed with variance s^2
 * that is correlated over t seconds.  Its mean over d seconds has the variance s^2 / (1 + d / t): a
 * short op sees all of it, a long op the less the longer it is.  [Measured on two cores that others
 * share: 0.20 over 0.3 ms, 0.19 over 9 ms, 0.16 over 36 ms, 0.11 over 0.14 s, 0.06 over 0.6 s:
 * s = 0.2, t = 55 ms.]
 *
 * Ranks that time the same rows at once show it, whatever the rows' medians are and however fast
 * the whole machine is.  What is looked at is how far ln of a rank's timing is from the mean over
 * all ranks' timings of that row at that time: once for each op, and once over a second, weighted
 * by time.  A standard deviation is taken from the median of the sizes (of a normal variable it is
 * 0.6745 sigma), so that one second which the host took away altogether counts once.  s and t
 * follow from the two variances.  What still differs over a second lasts as long as a step.  Where
 * fewer than eight deviations over a second are known (of two ranks, four seconds), only s is told.
 *
 * Private to executor/measure/ and its tests.  Thread-safe: ranks add at once.
 */
#pragma once

#include "profiles/profile.h"

typedef struct ExecVariation ExecVariation;

/* Returns: (owned) */
ExecVariation *exec_variation_new(void);
void exec_variation_free(ExecVariation *variation);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecVariation, exec_variation_free)

/* Adds a timing of @rank that began at @begin_ns, of all layers of the stage together.  Only whole
 * layers of tp 1 count.  Other rows are ignored: their ranks wait for each other inside. */
void exec_variation_add(ExecVariation *variation, int32_t rank, const ProfileMeasurement *key,
                        int64_t begin_ns, double seconds);

/* Says how all that was added or read varies.  False: it is too little to say, as with one rank. */
bool exec_variation_of(ExecVariation *variation, ProfileVariation *result);

/* Writes what is known so far as an object {"ops": [deviation, seconds, ...], "seconds": [...]},
 * and reads it; errors are recorded in @doc. */
void exec_variation_keep(ExecVariation *variation, JsonWriter *writer, const char *key);
void exec_variation_read(ExecVariation *variation, JsonDoc *doc, const JsonValue *object);
