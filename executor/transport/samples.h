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

/* Adds a timing to the row that has the keys of @key, whose times are ignored; one that
 * @is_disturbed is set aside. */
void exec_samples_add(ExecSamples *samples, const ProfileMeasurement *key, double seconds,
                      bool is_disturbed);

/* Whether timings of the row wait for no other rank, so that one can tell whether they were
 * disturbed. */
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
 * "disturbed": those set aside, if any}; exec_samples_read() adds what such an array holds and
 * records errors in
 * @doc. */
void exec_samples_keep(ExecSamples *samples, JsonWriter *writer, const char *key);
void exec_samples_read(ExecSamples *samples, JsonDoc *doc, const JsonValue *array);

/* Returns the element that is @hundredths per cent of the way through a sorted array, which is not
 * empty. */
double exec_samples_percentile(const GArray *sorted, guint hundredths);

/* Adds every row to the profile, with the median, 10th and 90th percentile of its timings. */
void exec_samples_write(ExecSamples *samples, Profile *profile);
