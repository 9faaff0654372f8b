/*
 * executor/variation.h - how much layers' timings vary: from op to op, and from rank to rank.
 *
 * A core computes at a speed that changes: by interrupts and misses, which an op of d seconds
 * averages (its variance falls as 1 / d), and by what else the host does, which lasts as long as a
 * step and more.  Only differences tell the two apart, whatever the rows' medians are:
 *
 *   op_noise_s     timings x, y of one row, one after the other on one rank: (ln x - ln y)^2 / 2
 *                  times their mean is op_noise_s, times a chi-squared variable of 1 degree, whose
 *                  median is 0.4549
 *   rank_fraction  in each second, how far ln of a rank's timings is from the mean of all ranks'
 *                  timings of the same rows, weighted by their times: a normal variable's median
 *                  |z| is 0.6745 sigma; less the share that op_noise_s explains
 *
 * Medians, so that a second that the host took away altogether counts once.
 *
 * Private to executor/measure*.c.  Thread-safe: ranks add at once.
 */
#ifndef EXECUTOR_VARIATION_H
#define EXECUTOR_VARIATION_H

#include "profiles/profile.h"

G_BEGIN_DECLS

typedef struct ExecVariation ExecVariation;

ExecVariation *exec_variation_new(void);
void exec_variation_free(ExecVariation *variation);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecVariation, exec_variation_free)

/* A timing of @rank that began at @begin_ns; of several layers together where that was timed.  Only whole layers count, and from rank to rank only
 * those of tp 1: others wait for each other inside.  Other rows are ignored. */
void exec_variation_add(ExecVariation *variation, int32_t rank, const ProfileMeasurement *key,
                        int64_t begin_ns, double seconds);

/* Of all that was added or read.  False: too little to say. */
bool exec_variation_of(ExecVariation *variation, ProfileVariation *result);

/* What is known so far, as an object {"op_noises_s","ranks": [deviation, seconds, ...]}, and back;
 * errors are recorded in @doc. */
void exec_variation_keep(ExecVariation *variation, JsonWriter *writer, const char *key);
void exec_variation_read(ExecVariation *variation, JsonDoc *doc, const JsonValue *object);

G_END_DECLS

#endif /* EXECUTOR_VARIATION_H */
