/*
 * executor/measure/variation.h - how much layers' timings vary: from op to op, and from rank to rank.
 *
 * A core computes at a speed that changes by what else the host does on it.  The mean over d
 * seconds of a speed that forgets itself within t seconds has the variance s^2 / (1 + d / t): of a
 * short op all of it, of a long one the less the longer.  [Measured, two cores that others share:
 * 0.20 of 0.3 ms, 0.19 of 9 ms, 0.16 of 36 ms, 0.11 of 0.14 s, 0.06 of 0.6 s: s = 0.2, t = 55 ms.]
 *
 * Ranks that time the same rows at once tell it, whatever the rows' medians are and how fast the
 * whole machine is: how far ln of a rank's timing is from the mean of all ranks' timings of that
 * row at that time, by op, and over a second, weighted by time.  A normal variable's median |z| is
 * 0.6745 sigma, and medians count once a second that the host took away altogether.  From the two
 * variances follow s and t; what a second still has lasts as long as a step.  Of fewer than four
 * seconds only s is told.
 *
 * Private to executor/measure*.c.  Thread-safe: ranks add at once.
 */
#ifndef EXECUTOR_MEASURE_VARIATION_H
#define EXECUTOR_MEASURE_VARIATION_H

#include "profiles/profile.h"

G_BEGIN_DECLS

typedef struct ExecVariation ExecVariation;

ExecVariation *exec_variation_new(void);
void exec_variation_free(ExecVariation *variation);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecVariation, exec_variation_free)

/* A timing of @rank that began at @begin_ns; of several layers together where that was timed.  Only
 * whole layers of tp 1 count: others wait for each other inside, and are ignored. */
void exec_variation_add(ExecVariation *variation, int32_t rank, const ProfileMeasurement *key,
                        int64_t begin_ns, double seconds);

/* Of all that was added or read.  False: too little to say, as of one rank. */
bool exec_variation_of(ExecVariation *variation, ProfileVariation *result);

/* What is known so far, as an object {"ops": [deviation, seconds, ...], "seconds": [...]}, and
 * back; errors are recorded in @doc. */
void exec_variation_keep(ExecVariation *variation, JsonWriter *writer, const char *key);
void exec_variation_read(ExecVariation *variation, JsonDoc *doc, const JsonValue *object);

G_END_DECLS

#endif /* EXECUTOR_MEASURE_VARIATION_H */
