#include "executor/transport/samples.h"

#include "base/order.h"

typedef struct {
    ProfileMeasurement key;
    GArray *of[EXEC_SAMPLE_N]; /* of double */
} Row;

static const char *const sample_names[] = {"seconds", "disturbed", "queue", "cold", "warm"};
G_STATIC_ASSERT(G_N_ELEMENTS(sample_names) == EXEC_SAMPLE_N);

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
        for (int what = 0; what < EXEC_SAMPLE_N; what++)
            g_array_unref(g_array_index(samples->rows, Row, i).of[what]);
    g_array_unref(samples->rows);
    g_mutex_clear(&samples->mutex);
    g_free(samples);
}

static bool
same_key(const ProfileMeasurement *a, const ProfileMeasurement *b)
{
    return a->op == b->op && a->pass == b->pass && a->batch == b->batch && a->tokens == b->tokens &&
           a->context == b->context && a->tp == b->tp && a->n_elements == b->n_elements &&
           a->bytes == b->bytes && a->n_ranks == b->n_ranks && g_strcmp0(a->kind, b->kind) == 0;
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
                 ExecSample what)
{
    g_mutex_lock(&samples->mutex);
    Row *row = find(samples, key);
    if (row == NULL) {
        Row added = {.key = *key};
        for (int i = 0; i < EXEC_SAMPLE_N; i++)
            added.of[i] = g_array_new(false, false, sizeof(double));
        g_array_append_val(samples->rows, added);
        row = &g_array_index(samples->rows, Row, samples->rows->len - 1);
    }
    g_array_append_val(row->of[what], seconds);
    g_mutex_unlock(&samples->mutex);
}

double
exec_samples_least(ExecSamples *samples, const ProfileMeasurement *key, ExecSample what)
{
    double least = 0;

    g_mutex_lock(&samples->mutex);
    const Row *row = find(samples, key);
    for (guint i = 0; row != NULL && i < row->of[what]->len; i++) {
        const double seconds = g_array_index(row->of[what], double, i);
        least = i == 0 ? seconds : MIN(least, seconds);
    }
    g_mutex_unlock(&samples->mutex);
    return least;
}

/* How often the row itself was timed. */
static guint
n_times(const Row *row)
{
    return row->of[EXEC_SAMPLE_TIME]->len + row->of[EXEC_SAMPLE_DISTURBED]->len;
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
        total.n += n_times(row);
        total.n_disturbed += row->of[EXEC_SAMPLE_DISTURBED]->len;
    }
    g_mutex_unlock(&samples->mutex);
    return total;
}

guint
exec_samples_count(ExecSamples *samples, const ProfileMeasurement *key)
{
    g_mutex_lock(&samples->mutex);
    const Row *row = find(samples, key);
    const guint n = row == NULL ? 0 : n_times(row);
    g_mutex_unlock(&samples->mutex);
    return n;
}

double
exec_samples_percentile(const GArray *sorted, guint hundredths)
{
    return g_array_index(sorted, double, (sorted->len - 1) * hundredths / 100);
}

/* Sorts them; 0: there are none. */
static double
median(GArray *seconds)
{
    g_array_sort(seconds, order_doubles);
    return seconds->len == 0 ? 0.0 : exec_samples_percentile(seconds, 50);
}

/* The row with its percentiles; sorts its timings.  (It has one at least.) */
static ProfileMeasurement
summary(const Row *row)
{
    GArray *const *of = row->of;
    GArray *seconds = of[of[EXEC_SAMPLE_TIME]->len > 0 ? EXEC_SAMPLE_TIME : EXEC_SAMPLE_DISTURBED];
    ProfileMeasurement measurement = row->key;

    measurement.median_s = median(seconds);
    measurement.p10_s = exec_samples_percentile(seconds, 10);
    measurement.p90_s = exec_samples_percentile(seconds, 90);
    if (profile_op_has_shape(row->key.op)) { /* of others nobody asks for it */
        measurement.queue_s = median(of[EXEC_SAMPLE_QUEUE]);
        measurement.cold_s = median(of[EXEC_SAMPLE_COLD]);
        measurement.warm_s = median(of[EXEC_SAMPLE_WARM]);
    }
    return measurement;
}

void
exec_samples_write(ExecSamples *samples, Profile *profile)
{
    g_mutex_lock(&samples->mutex);
    for (guint i = 0; i < samples->rows->len; i++) {
        const Row *row = &g_array_index(samples->rows, Row, i);

        if (n_times(row) == 0)
            continue;
        const ProfileMeasurement measurement = summary(row);
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

        if (n_times(row) == 0)
            continue;
        const ProfileMeasurement measurement = summary(row);
        json_write_object_inline(writer, NULL);
        profile_measurement_write(writer, "row", &measurement);
        for (int what = 0; what < EXEC_SAMPLE_N; what++)
            if (what == EXEC_SAMPLE_TIME || row->of[what]->len > 0)
                write_seconds(writer, sample_names[what], row->of[what]);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
    g_mutex_unlock(&samples->mutex);
}

/* Larger times are refused, as in a profile (profiles/profile.h). */
#define MAX_TIME_S 1e6

void
exec_samples_read(ExecSamples *samples, JsonDoc *doc, const JsonValue *array)
{
    JSON_EACH (v, array, doc) {
        ProfileMeasurement key = profile_measurement_read(doc, json_object(doc, v, "row"));

        for (int what = 0; what < EXEC_SAMPLE_N; what++) {
            const char *name = sample_names[what];
            const JsonValue *seconds = what == EXEC_SAMPLE_TIME ? json_array(doc, v, name)
                                                                : json_array_or_null(doc, v, name);
            for (const JsonValue *one = seconds == NULL ? NULL : json_first(seconds); one != NULL;
                 one = json_next(one))
                exec_samples_add(samples, &key, json_value_double(doc, one, 0.0, MAX_TIME_S),
                                 (ExecSample)what);
        }
        json_object_end(doc, v);
    }
}
