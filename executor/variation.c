#include "executor/variation.h"

#include <math.h>
#include <stdlib.h>

#include "executor/samples.h"

/* Ranks are compared over so long: about a step. */
#define WINDOW_NS INT64_C(1000000000)

/* Timings of one row are one after the other when they began within it. */
#define NEAR_NS (WINDOW_NS / 4)

/* Less says nothing. */
#define LEAST 8

/* Medians of a chi-squared variable of one degree, and of the size of a normal one. */
#define CHI_SQUARED_MEDIAN 0.4549
#define NORMAL_MEDIAN 0.6745

typedef struct {
    ProfileMeasurement key;
    int64_t begin_ns;
    double seconds;
    int32_t rank;
} Timing;

/* How far a rank was off all ranks in a second, and how long it was timed in it. */
typedef struct {
    double deviation, seconds;
} Window;

struct ExecVariation {
    GMutex mutex;
    GArray *timings;   /* of Timing, of this process */
    GArray *op_noises; /* of double, of processes before */
    GArray *windows;   /* of Window, of processes before */
};

ExecVariation *
exec_variation_new(void)
{
    ExecVariation *variation = g_new0(ExecVariation, 1);

    g_mutex_init(&variation->mutex);
    variation->timings = g_array_new(FALSE, FALSE, sizeof(Timing));
    variation->op_noises = g_array_new(FALSE, FALSE, sizeof(double));
    variation->windows = g_array_new(FALSE, FALSE, sizeof(Window));
    return variation;
}

void
exec_variation_free(ExecVariation *variation)
{
    if (variation == NULL)
        return;
    g_array_unref(variation->timings);
    g_array_unref(variation->op_noises);
    g_array_unref(variation->windows);
    g_mutex_clear(&variation->mutex);
    g_free(variation);
}

void
exec_variation_add(ExecVariation *variation, int32_t rank, const ProfileMeasurement *key,
                   int64_t begin_ns, double seconds)
{
    const Timing timing = {.key = *key, .begin_ns = begin_ns, .seconds = seconds, .rank = rank};

    if (key->op != PROFILE_OP_LAYER || !(seconds > 0))
        return;
    g_mutex_lock(&variation->mutex);
    g_array_append_val(variation->timings, timing);
    g_mutex_unlock(&variation->mutex);
}

/* --- from timing to timing --- */

#define COMPARE(x, y)                                                                              \
    if ((x) != (y))                                                                                \
    return (x) < (y) ? -1 : 1

static int
compare_keys(const ProfileMeasurement *a, const ProfileMeasurement *b)
{
    COMPARE(a->tp, b->tp);
    COMPARE(a->pass, b->pass);
    COMPARE(a->batch, b->batch);
    COMPARE(a->tokens, b->tokens);
    COMPARE(a->context, b->context);
    return 0;
}

/* By row, rank and time. */
static int
compare_in_row(const void *first, const void *second)
{
    const Timing *a = first, *b = second;
    const int keys = compare_keys(&a->key, &b->key);

    if (keys != 0)
        return keys;
    COMPARE(a->rank, b->rank);
    COMPARE(a->begin_ns, b->begin_ns);
    return 0;
}

/* Adds those of the timings to @noises. */
static void
find_noises(const ExecVariation *variation, GArray *noises)
{
    qsort(variation->timings->data, variation->timings->len, sizeof(Timing), compare_in_row);
    for (guint i = 1; i < variation->timings->len; i++) {
        const Timing *a = &g_array_index(variation->timings, Timing, i - 1);
        const Timing *b = &g_array_index(variation->timings, Timing, i);
        if (a->rank != b->rank || compare_keys(&a->key, &b->key) != 0 ||
            b->begin_ns - a->begin_ns > NEAR_NS)
            continue;
        const double difference = log(a->seconds / b->seconds);
        const double noise = difference * difference / 2 * (a->seconds + b->seconds) / 2;
        g_array_append_val(noises, noise);
    }
}

/* --- from rank to rank --- */

static int64_t
window_of(const Timing *timing)
{
    return timing->begin_ns / WINDOW_NS;
}

/* By second, row and rank. */
static int
compare_in_window(const void *first, const void *second)
{
    const Timing *a = first, *b = second;

    COMPARE(window_of(a), window_of(b));
    const int keys = compare_keys(&a->key, &b->key);
    if (keys != 0)
        return keys;
    COMPARE(a->rank, b->rank);
    return 0;
}

/* Of one second. */
typedef struct {
    int32_t n_ranks;
    double *deviations; /* [rank] weighted */
    double *logs;       /* [rank] of one row */
    int *n;             /* [rank] */
    double seconds;     /* of a rank */
} Second;

/* Timings @first to @end - 1 are of one row; it counts where every rank timed it, and none waited
 * for another inside. */
static void
add_row(Second *second, const GArray *timings, guint first, guint end)
{
    double mean = 0, seconds = 0;

    if (g_array_index(timings, Timing, first).key.tp > 1)
        return;
    for (int32_t r = 0; r < second->n_ranks; r++)
        second->logs[r] = second->n[r] = 0;
    for (guint i = first; i < end; i++) {
        const Timing *timing = &g_array_index(timings, Timing, i);
        second->logs[timing->rank] += log(timing->seconds);
        second->n[timing->rank]++;
        seconds += timing->seconds / second->n_ranks;
    }
    for (int32_t r = 0; r < second->n_ranks; r++) {
        if (second->n[r] == 0)
            return;
        second->logs[r] /= second->n[r];
        mean += second->logs[r] / second->n_ranks;
    }
    for (int32_t r = 0; r < second->n_ranks; r++)
        second->deviations[r] += seconds * (second->logs[r] - mean);
    second->seconds += seconds;
}

/* Of n ranks the deviation from their mean has (n - 1) / n of a rank's variance. */
static void
end_second(Second *second, GArray *windows)
{
    const double n = second->n_ranks;

    for (int32_t r = 0; r < second->n_ranks && second->seconds > 0; r++) {
        const Window window = {
            second->deviations[r] / second->seconds * sqrt(n / (n - 1)),
            second->seconds,
        };
        g_array_append_val(windows, window);
    }
    for (int32_t r = 0; r < second->n_ranks; r++)
        second->deviations[r] = 0;
    second->seconds = 0;
}

/* Adds those of the timings to @windows. */
static void
find_windows(const ExecVariation *variation, GArray *windows)
{
    const GArray *timings = variation->timings;
    Second second = {0};
    guint end;

    for (guint i = 0; i < timings->len; i++)
        second.n_ranks = MAX(second.n_ranks, g_array_index(timings, Timing, i).rank + 1);
    if (second.n_ranks < 2)
        return;
    qsort(timings->data, timings->len, sizeof(Timing), compare_in_window);
    second.deviations = g_new0(double, (size_t)second.n_ranks);
    second.logs = g_new0(double, (size_t)second.n_ranks);
    second.n = g_new0(int, (size_t)second.n_ranks);
    for (guint first = 0; first < timings->len; first = end) {
        const Timing *row = &g_array_index(timings, Timing, first);
        for (end = first + 1; end < timings->len; end++) {
            const Timing *timing = &g_array_index(timings, Timing, end);
            if (window_of(timing) != window_of(row) || compare_keys(&timing->key, &row->key) != 0)
                break;
        }
        add_row(&second, timings, first, end);
        if (end == timings->len ||
            window_of(&g_array_index(timings, Timing, end)) != window_of(row))
            end_second(&second, windows);
    }
    g_free(second.deviations);
    g_free(second.logs);
    g_free(second.n);
}

/* --- both --- */

/* Returns: (owned each) those of all processes.  Under the mutex. */
static void
find(const ExecVariation *variation, GArray **noises, GArray **windows)
{
    *noises = g_array_copy(variation->op_noises);
    *windows = g_array_copy(variation->windows);
    find_noises(variation, *noises);
    find_windows(variation, *windows);
}

/* Sorts @values, one at the least. */
static double
median(GArray *values)
{
    exec_samples_sort(values);
    return exec_samples_percentile(values, 50);
}

static double
rank_fraction(const GArray *windows, double op_noise_s)
{
    g_autoptr(GArray) sizes = g_array_new(FALSE, FALSE, sizeof(double));
    g_autoptr(GArray) seconds = g_array_new(FALSE, FALSE, sizeof(double));

    if (windows->len < LEAST)
        return 0;
    for (guint i = 0; i < windows->len; i++) {
        const Window *window = &g_array_index(windows, Window, i);
        const double size = fabs(window->deviation);
        g_array_append_val(sizes, size);
        g_array_append_val(seconds, window->seconds);
    }
    const double sigma = median(sizes) / NORMAL_MEDIAN;
    return sqrt(fmax(0.0, sigma * sigma - op_noise_s / median(seconds)));
}

bool
exec_variation_of(ExecVariation *variation, ProfileVariation *result)
{
    g_autoptr(GArray) noises = NULL, windows = NULL;

    *result = (ProfileVariation){0};
    g_mutex_lock(&variation->mutex);
    find(variation, &noises, &windows);
    g_mutex_unlock(&variation->mutex);
    if (noises->len < LEAST)
        return false;
    result->is_known = true;
    result->op_noise_s = median(noises) / CHI_SQUARED_MEDIAN;
    result->rank_fraction = rank_fraction(windows, result->op_noise_s);
    return true;
}

/* --- a file of them --- */

/* As a profile's times; of the log of a ratio. */
#define MAX_TIME_S 1e6
#define MAX_LOG 100.0

void
exec_variation_keep(ExecVariation *variation, JsonWriter *writer, const char *key)
{
    g_autoptr(GArray) noises = NULL, windows = NULL;

    g_mutex_lock(&variation->mutex);
    find(variation, &noises, &windows);
    g_mutex_unlock(&variation->mutex);
    json_write_object(writer, key);
    json_write_array_inline(writer, "op_noises_s");
    for (guint i = 0; i < noises->len; i++)
        json_write_double(writer, NULL, g_array_index(noises, double, i));
    json_write_array_end(writer);
    json_write_array_inline(writer, "ranks");
    for (guint i = 0; i < windows->len; i++) {
        json_write_double(writer, NULL, g_array_index(windows, Window, i).deviation);
        json_write_double(writer, NULL, g_array_index(windows, Window, i).seconds);
    }
    json_write_array_end(writer);
    json_write_object_end(writer);
}

void
exec_variation_read(ExecVariation *variation, JsonDoc *doc, const JsonValue *object)
{
    const JsonValue *noises = json_array(doc, object, "op_noises_s");
    const JsonValue *ranks = json_array(doc, object, "ranks");

    for (const JsonValue *v = json_first(noises); v != NULL; v = json_next(v)) {
        const double noise = json_value_double(doc, v, 0.0, MAX_TIME_S);
        g_array_append_val(variation->op_noises, noise);
    }
    for (const JsonValue *v = json_first(ranks); v != NULL; v = json_next(v)) {
        Window window = {.deviation = json_value_double(doc, v, -MAX_LOG, MAX_LOG)};
        v = json_next(v);
        if (v == NULL) {
            json_fail(doc, ranks, "expected pairs of a deviation and seconds");
            break;
        }
        window.seconds = json_value_double(doc, v, 0.0, MAX_TIME_S);
        g_array_append_val(variation->windows, window);
    }
    json_object_end(doc, object);
}
