/*
 * executor/transport/samples.h - the timings that the profiler collects: many for each row of a
 * profile, of which medians are made.
 *
 * A timing during which its thread was kept from its core (exec_was_disturbed()) is set aside, and
 * counts only where the row has no other.
 *
 * Private to executor/.  Any thread may add at any time.
 */
#pragma once

#include "profiles/profile.h"

typedef struct ExecSamples ExecSamples;

ExecSamples *exec_samples_new(void);
void exec_samples_free(ExecSamples *samples);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecSamples, exec_samples_free)

/* What a timing is of: those that the row's times are made of, and what else it tells
 * (ProfileMeasurement). */
typedef enum {
    EXEC_SAMPLE_TIME,
    EXEC_SAMPLE_DISTURBED, /* set aside */
    EXEC_SAMPLE_QUEUE,
    EXEC_SAMPLE_COLD,
    EXEC_SAMPLE_WARM,
    EXEC_SAMPLE_N,
} ExecSample;

/* Adds a timing to the row that has the keys of @key, whose times are ignored. */
void exec_samples_add(ExecSamples *samples, const ProfileMeasurement *key, double seconds,
                      ExecSample what);

/* Returns the least of the row's timings of @what; 0: it has none. */
double exec_samples_least(ExecSamples *samples, const ProfileMeasurement *key, ExecSample what);

/* Whether the row's timings wait for no other rank: then it shows whether they were disturbed. */
bool exec_samples_is_alone(const ProfileMeasurement *key);

/* How many timings there are of rows for which exec_samples_is_alone() holds, and how many of these
 * were disturbed. */
typedef struct {
    int64_t n, n_disturbed;
} ExecSamplesTotal;

ExecSamplesTotal exec_samples_total(ExecSamples *samples);

/* Returns how many timings the row with the keys of @key has, disturbed ones included. */
guint exec_samples_count(ExecSamples *samples, const ProfileMeasurement *key);

/* Writes all timings as an array of {"row": a row of a profile, "seconds": the timings,
 * "disturbed", "queue", "cold", "warm": the others, if any}; exec_samples_read() adds what such an
 * array holds and records errors in @doc. */
void exec_samples_keep(ExecSamples *samples, JsonWriter *writer, const char *key);
void exec_samples_read(ExecSamples *samples, JsonDoc *doc, const JsonValue *array);

/* Returns the element that is @hundredths per cent of the way through a sorted, non-empty array. */
double exec_samples_percentile(const GArray *sorted, guint hundredths);

/* Adds every row that was timed to the profile: the median, 10th and 90th percentile, and the
 * medians of what else is known. */
void exec_samples_write(ExecSamples *samples, Profile *profile);
