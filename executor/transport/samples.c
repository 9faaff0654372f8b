#include "executor/transport/samples.h"

#include "base/order.h"

typedef struct {
    ProfileMeasurement key;
    GArray *seconds, *disturbed; /* of double */
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
    for (guint i = 0; i < samples->rows->len; i++) {
        g_array_unref(g_array_index(samples->rows, Row, i).seconds);
        g_array_unref(g_array_index(samples->rows, Row, i).disturbed);
    }
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

/* Under the mutex.  (nullable) */
static Row *
find(ExecSamples *samples, const ProfileMeasurement *key)
{
    for (guint i = 0; i < samples->rows->len; i++) {
        Row *row = &g_array_index(samples->rows, Row, i);

        if (same_key(&row->key, key))
            return row;
    }
    return NULL;
}

void
exec_samples_add(ExecSamples *samples, const ProfileMeasurement *key, double seconds,
                 bool is_disturbed)
{
    g_mutex_lock(&samples->mutex);
    Row *row = find(samples, key);
    if (row == NULL) {
        const Row added = {.key = *key,
                           .seconds = g_array_new(false, false, sizeof(double)),
                           .disturbed = g_array_new(false, false, sizeof(double))};
        g_array_append_val(samples->rows, added);
        row = &g_array_index(samples->rows, Row, samples->rows->len - 1);
    }
    g_array_append_val(is_disturbed ? row->disturbed : row->seconds, seconds);
    g_mutex_unlock(&samples->mutex);
}

bool
exec_samples_is_alone(const ProfileMeasurement *key)
{
    switch (key->op) {
    case PROFILE_OP_OPTIMIZER:
    case PROFILE_OP_COPY_H2D:
    case PROFILE_OP_COPY_D2H:
    case PROFILE_OP_COPY_D2D:
        return true;
    default:
        return profile_op_has_shape(key->op) && key->tp == 1;
    }
}

ExecSamplesTotal
exec_samples_total(ExecSamples *samples)
{
    ExecSamplesTotal total = {0};

    g_mutex_lock(&samples->mutex);
    for (guint i = 0; i < samples->rows->len; i++) {
        const Row *row = &g_array_index(samples->rows, Row, i);

        if (!exec_samples_is_alone(&row->key))
            continue;
        total.n += (int64_t)row->seconds->len + (int64_t)row->disturbed->len;
        total.n_disturbed += (int64_t)row->disturbed->len;
    }
    g_mutex_unlock(&samples->mutex);
    return total;
}

guint
exec_samples_count(ExecSamples *samples, const ProfileMeasurement *key)
{
    g_mutex_lock(&samples->mutex);
    const Row *row = find(samples, key);
    const guint n = row == NULL ? 0 : row->seconds->len + row->disturbed->len;
    g_mutex_unlock(&samples->mutex);
    return n;
}

double
exec_samples_percentile(const GArray *sorted, guint hundredths)
{
    return g_array_index(sorted, double, (sorted->len - 1) * hundredths / 100);
}

/* The row with its percentiles; sorts its timings.  (It has one at least.) */
static ProfileMeasurement
summary(const Row *row)
{
    ProfileMeasurement measurement = row->key;

    GArray *seconds = row->seconds->len > 0 ? row->seconds : row->disturbed;

    g_array_sort(seconds, order_doubles);
    measurement.median_s = exec_samples_percentile(seconds, 50);
    measurement.p10_s = exec_samples_percentile(seconds, 10);
    measurement.p90_s = exec_samples_percentile(seconds, 90);
    return measurement;
}

void
exec_samples_write(ExecSamples *samples, Profile *profile)
{
    g_mutex_lock(&samples->mutex);
    for (guint i = 0; i < samples->rows->len; i++) {
        const ProfileMeasurement measurement = summary(&g_array_index(samples->rows, Row, i));

        profile_add(profile, &measurement);
    }
    g_mutex_unlock(&samples->mutex);
}

/* --- a file of them --- */

static void
write_seconds(JsonWriter *writer, const char *key, const GArray *seconds)
{
    json_write_array_inline(writer, key);
    for (guint i = 0; i < seconds->len; i++)
        json_write_double(writer, NULL, g_array_index(seconds, double, i));
    json_write_array_end(writer);
}

void
exec_samples_keep(ExecSamples *samples, JsonWriter *writer, const char *key)
{
    g_mutex_lock(&samples->mutex);
    json_write_array(writer, key);
    for (guint i = 0; i < samples->rows->len; i++) {
        const Row *row = &g_array_index(samples->rows, Row, i);
        const ProfileMeasurement measurement = summary(row);

        json_write_object_inline(writer, NULL);
        profile_measurement_write(writer, "row", &measurement);
        write_seconds(writer, "seconds", row->seconds);
        if (row->disturbed->len > 0)
            write_seconds(writer, "disturbed", row->disturbed);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
    g_mutex_unlock(&samples->mutex);
}

/* Larger times are refused, as in a profile (profiles/profile.h). */
#define MAX_TIME_S 1e6

static void
read_seconds(ExecSamples *samples, JsonDoc *doc, const ProfileMeasurement *key,
             const JsonValue *array, bool are_disturbed)
{
    for (const JsonValue *v = json_first(array); v != NULL; v = json_next(v))
        exec_samples_add(samples, key, json_value_double(doc, v, 0.0, MAX_TIME_S), are_disturbed);
}

void
exec_samples_read(ExecSamples *samples, JsonDoc *doc, const JsonValue *array)
{
    for (const JsonValue *v = json_first(array); v != NULL && !json_doc_failed(doc);
         v = json_next(v)) {
        ProfileMeasurement key = profile_measurement_read(doc, json_object(doc, v, "row"));
        const JsonValue *seconds = json_array(doc, v, "seconds");
        const JsonValue *disturbed = json_array_or_null(doc, v, "disturbed");

        key.median_s = key.p10_s = key.p90_s = 0;
        read_seconds(samples, doc, &key, seconds, false);
        if (disturbed != NULL)
            read_seconds(samples, doc, &key, disturbed, true);
        json_object_end(doc, v);
    }
}
