/*
 * executor/transport/samples.h - the profiler's collection: many timings per row, then medians.
 *
 * A timing during which the thread did not have its core (clock.h) is not the row's time: it
 * is set aside, and counts only where the row has no other.
 *
 * Private to executor/measure*.c.  Thread-safe: ranks add at once.
 */
#ifndef EXECUTOR_TRANSPORT_SAMPLES_H
#define EXECUTOR_TRANSPORT_SAMPLES_H

#include "profiles/profile.h"

G_BEGIN_DECLS

typedef struct ExecSamples ExecSamples;

ExecSamples *exec_samples_new(void);
void exec_samples_free(ExecSamples *samples);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecSamples, exec_samples_free)

/* Adds a timing to the row with the keys of @key (its times are ignored). */
void exec_samples_add(ExecSamples *samples, const ProfileMeasurement *key, double seconds);

/* The same of a timing that was disturbed. */
void exec_samples_add_disturbed(ExecSamples *samples, const ProfileMeasurement *key,
                                double seconds);

/* Whether a timing of the row waits for no other rank: then it can be told whether it was
 * disturbed. */
bool exec_samples_is_alone(const ProfileMeasurement *key);

/* Timings of rows that exec_samples_is_alone(), and those of them that were disturbed. */
typedef struct {
    int64_t n, n_disturbed;
} ExecSamplesTotal;

ExecSamplesTotal exec_samples_total(ExecSamples *samples);

/* Timings of the row with the keys of @key, disturbed ones too. */
guint exec_samples_count(ExecSamples *samples, const ProfileMeasurement *key);

/* An array of {"row": a row of a profile, "seconds": every timing, "disturbed"?: those set aside},
 * and back; errors are recorded in @doc. */
void exec_samples_keep(ExecSamples *samples, JsonWriter *writer, const char *key);
void exec_samples_read(ExecSamples *samples, JsonDoc *doc, const JsonValue *array);

/* (borrowed) Of the two arrays the one whose timings count. */
GArray *exec_samples_that_count(GArray *seconds, GArray *disturbed);

/* Puts doubles in order, and of doubles in order, one at the least, the one at @hundredths. */
void exec_samples_sort(GArray *values);
double exec_samples_percentile(const GArray *sorted, guint hundredths);

/* Adds every row with its median, 10th and 90th percentile. */
void exec_samples_write(ExecSamples *samples, Profile *profile);

G_END_DECLS

#endif /* EXECUTOR_TRANSPORT_SAMPLES_H */
