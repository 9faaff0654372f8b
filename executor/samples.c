#include "executor/samples.h"

#include <stdlib.h>

typedef struct {
    ProfileMeasurement key;
    GArray *seconds; /* of double */
} Row;

struct ExecSamples {
    GMutex mutex;
    GArray *rows; /* of Row, in order of first appearance */
};

ExecSamples *
exec_samples_new(void)
{
    ExecSamples *samples = g_new0(ExecSamples, 1);

    g_mutex_init(&samples->mutex);
    samples->rows = g_array_new(false, false, sizeof(Row));
    return samples;
}

void
exec_samples_free(ExecSamples *samples)
{
    if (samples == NULL)
        return;
    for (guint i = 0; i < samples->rows->len; i++)
        g_array_unref(g_array_index(samples->rows, Row, i).seconds);
    g_array_unref(samples->rows);
    g_mutex_clear(&samples->mutex);
    g_free(samples);
}

static bool
same_key(const ProfileMeasurement *a, const ProfileMeasurement *b)
{
    return a->op == b->op && a->pass == b->pass && a->batch == b->batch && a->tokens == b->tokens &&
           a->context == b->context && a->tp == b->tp && a->n_elements == b->n_elements &&
           a->bytes == b->bytes && a->n_ranks == b->n_ranks;
}

void
exec_samples_add(ExecSamples *samples, const ProfileMeasurement *key, double seconds)
{
    guint i = 0;

    g_mutex_lock(&samples->mutex);
    while (i < samples->rows->len && !same_key(&g_array_index(samples->rows, Row, i).key, key))
        i++;
    if (i == samples->rows->len) {
        const Row row = {.key = *key, .seconds = g_array_new(false, false, sizeof(double))};
        g_array_append_val(samples->rows, row);
    }
    g_array_append_val(g_array_index(samples->rows, Row, i).seconds, seconds);
    g_mutex_unlock(&samples->mutex);
}

static int
compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double
percentile(const GArray *sorted, guint hundredths)
{
    return g_array_index(sorted, double, (sorted->len - 1) * hundredths / 100);
}

void
exec_samples_write(const ExecSamples *samples, Profile *profile)
{
    for (guint i = 0; i < samples->rows->len; i++) {
        const Row *row = &g_array_index(samples->rows, Row, i);
        ProfileMeasurement measurement = row->key;
        qsort(row->seconds->data, row->seconds->len, sizeof(double), compare_doubles);
        measurement.median_s = percentile(row->seconds, 50);
        measurement.p10_s = percentile(row->seconds, 10);
        measurement.p90_s = percentile(row->seconds, 90);
        profile_add(profile, &measurement);
    }
}
