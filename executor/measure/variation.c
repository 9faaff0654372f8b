#include "executor/measure/variation.h"

#include <math.h>

#include "base/order.h"
#include "executor/transport/samples.h"

/* Timings of two ranks are compared when they began within this time. */
#define TURN_NS INT64_C(50000000)

/* Fewer deviations say nothing. */
#define LEAST 8

/* The bounds of a correlation time: timings are hardly shorter than the first, and a profile hardly
 * takes longer than the second. */
#define SHORTEST_S 1e-3
#define LONGEST_S 1e3

/* The median of the size of a standard normal variable. */
#define NORMAL_MEDIAN 0.6745

typedef struct {
    ProfileMeasurement key;
    int64_t begin_ns;
    double seconds;
    int32_t rank;
    int64_t turn; /* timings of ranks are compared within a turn */
} Timing;

/* How far a rank was off the mean of all ranks, and for how long it was timed to know that. */
typedef struct {
    double log, seconds;
} Deviation;

struct ExecVariation {
    GMutex mutex;
    GArray *timings; /* of Timing: of this process */
    /* Of Deviation, over an op and over a second: of the processes before a resumed one. */
    GArray *ops, *seconds;
};

ExecVariation *
exec_variation_new(void)
{
    ExecVariation *variation = g_new0(ExecVariation, 1);

    g_mutex_init(&variation->mutex);
    variation->timings = g_array_new(FALSE, FALSE, sizeof(Timing));
    variation->ops = g_array_new(FALSE, FALSE, sizeof(Deviation));
    variation->seconds = g_array_new(FALSE, FALSE, sizeof(Deviation));
    return variation;
}

void
exec_variation_free(ExecVariation *variation)
{
    if (variation == NULL)
        return;
    g_array_unref(variation->timings);
    g_array_unref(variation->ops);
    g_array_unref(variation->seconds);
    g_mutex_clear(&variation->mutex);
    g_free(variation);
}

void
exec_variation_add(ExecVariation *variation, int32_t rank, const ProfileMeasurement *key,
                   int64_t begin_ns, double seconds)
{
    const Timing timing = {.key = *key, .begin_ns = begin_ns, .seconds = seconds, .rank = rank};

    if (key->op != PROFILE_OP_LAYER || key->tp != 1 || !(seconds > 0))
        return;
    g_mutex_lock(&variation->mutex);
    g_array_append_val(variation->timings, timing);
    g_mutex_unlock(&variation->mutex);
}

/* --- order --- */

static int
compare_rows(const Timing *a, const Timing *b)
{
    const ProfileMeasurement *x = &a->key, *y = &b->key;

    return x->pass != y->pass         ? ORDER(x->pass, y->pass)
           : x->batch != y->batch     ? ORDER(x->batch, y->batch)
           : x->tokens != y->tokens   ? ORDER(x->tokens, y->tokens)
           : x->context != y->context ? ORDER(x->context, y->context)
                                      : g_strcmp0(x->kind, y->kind);
}

static int
compare_rows_and_ranks(const Timing *a, const Timing *b)
{
    const int rows = compare_rows(a, b);

    return rows != 0 ? rows : ORDER(a->rank, b->rank);
}

/* By turn, row, rank and time. */
static int
compare_timings(const void *first, const void *second)
{
    const Timing *a = first, *b = second;
    const int rows_and_ranks = compare_rows_and_ranks(a, b);

    return a->turn != b->turn    ? ORDER(a->turn, b->turn)
           : rows_and_ranks != 0 ? rows_and_ranks
                                 : ORDER(a->begin_ns, b->begin_ns);
}

/* --- from rank to rank --- */

/* What is summed up of ranks that computed beside each other for a while. */
typedef struct {
    int32_t n_ranks;
    double *deviations; /* [rank] weighted by time */
    double *logs;       /* [rank] of one row: the mean of ln of its timings */
    int *n;             /* [rank] how many these are */
    double seconds;     /* how long a rank was timed */
} While;

/* Adds timings @first to @end - 1, which are of one row.  They count if every rank has one. */
static void
add_row(While *w, const GArray *timings, guint first, guint end)
{
    double mean = 0, seconds = 0;

    for (int32_t r = 0; r < w->n_ranks; r++)
        w->logs[r] = w->n[r] = 0;
    for (guint i = first; i < end; i++) {
        const Timing *timing = &g_array_index(timings, Timing, i);
        w->logs[timing->rank] += log(timing->seconds);
        w->n[timing->rank]++;
        seconds += timing->seconds / w->n_ranks;
    }
    for (int32_t r = 0; r < w->n_ranks; r++) {
        if (w->n[r] == 0)
            return;
        w->logs[r] /= w->n[r];
        mean += w->logs[r] / w->n_ranks;
    }
    for (int32_t r = 0; r < w->n_ranks; r++)
        w->deviations[r] += seconds * (w->logs[r] - mean);
    w->seconds += seconds;
}

/* Adds the deviations of the while to @found, and begins another.  The deviation of one of n ranks
 * from their mean has only (n - 1) / n of a rank's variance. */
static void
end_while(While *w, GArray *found)
{
    const double n = w->n_ranks;

    for (int32_t r = 0; r < w->n_ranks; r++) {
        const Deviation deviation = {
            w->deviations[r] / w->seconds * sqrt(n / (n - 1)),
            w->seconds,
        };
        if (w->seconds > 0)
            g_array_append_val(found, deviation);
    }
    for (int32_t r = 0; r < w->n_ranks; r++)
        w->deviations[r] = 0;
    w->seconds = 0;
}

/* Adds to @found what timings in the order of turns say.  Timings of one row and turn are compared
 * if they began at most @apart_ns after the first of them; with @joins_rows all rows of a turn make
 * one deviation together. */
static void
compare_ranks(While *w, const GArray *timings, int64_t apart_ns, bool joins_rows, GArray *found)
{
    guint end;

    for (guint first = 0; first < timings->len; first = end) {
        const Timing *row = &g_array_index(timings, Timing, first), *next = NULL;
        for (end = first + 1; end < timings->len; end++) {
            next = &g_array_index(timings, Timing, end);
            if (compare_rows(row, next) != 0 || row->turn != next->turn ||
                ABS(next->begin_ns - row->begin_ns) > apart_ns)
                break;
        }
        add_row(w, timings, first, end);
        if (end == timings->len || !joins_rows || row->turn != next->turn)
            end_while(w, found);
    }
}

/* A rank's first timings of each row are a turn, its second ones another, and so on. */
static void
take_turns(GArray *timings)
{
    for (guint i = 0; i < timings->len; i++)
        g_array_index(timings, Timing, i).turn = 0;
    g_array_sort(timings, compare_timings);
    for (guint i = 0; i < timings->len; i++) {
        Timing *timing = &g_array_index(timings, Timing, i);
        timing->turn =
            i > 0 && compare_rows_and_ranks(timing - 1, timing) == 0 ? timing[-1].turn + 1 : 0;
    }
    g_array_sort(timings, compare_timings);
}

/* All timings of a second are a turn. */
static void
take_seconds(GArray *timings)
{
    for (guint i = 0; i < timings->len; i++) {
        Timing *timing = &g_array_index(timings, Timing, i);
        timing->turn = timing->begin_ns / 1000000000;
    }
    g_array_sort(timings, compare_timings);
}

/* Finds the deviations of all processes; the caller holds the mutex.
 * @ops, @seconds  (out, owned) over an op, and over a second */
static void
find(const ExecVariation *variation, GArray **ops, GArray **seconds)
{
    GArray *timings = variation->timings;
    While w = {0};

    *ops = g_array_copy(variation->ops);
    *seconds = g_array_copy(variation->seconds);
    for (guint i = 0; i < timings->len; i++)
        w.n_ranks = MAX(w.n_ranks, g_array_index(timings, Timing, i).rank + 1);
    if (w.n_ranks < 2)
        return;
    w.deviations = g_new0(double, (size_t)w.n_ranks);
    w.logs = g_new0(double, (size_t)w.n_ranks);
    w.n = g_new0(int, (size_t)w.n_ranks);
    take_turns(timings);
    compare_ranks(&w, timings, TURN_NS, false, *ops);
    take_seconds(timings);
    compare_ranks(&w, timings, INT64_MAX, true, *seconds);
    g_free(w.deviations);
    g_free(w.logs);
    g_free(w.n);
}

/* --- what they say --- */

/* Variance and duration of deviations. */
typedef struct {
    double variance, seconds;
} Spread;

/* Sorts @values, one at the least. */
static double
median(GArray *values)
{
    g_array_sort(values, order_doubles);
    return exec_samples_percentile(values, 50);
}

static Spread
spread_of(const GArray *deviations)
{
    g_autoptr(GArray) sizes = g_array_new(FALSE, FALSE, sizeof(double));
    g_autoptr(GArray) seconds = g_array_new(FALSE, FALSE, sizeof(double));

    for (guint i = 0; i < deviations->len; i++) {
        const Deviation *deviation = &g_array_index(deviations, Deviation, i);
        const double size = fabs(deviation->log);
        g_array_append_val(sizes, size);
        g_array_append_val(seconds, deviation->seconds);
    }
    const double sigma = median(sizes) / NORMAL_MEDIAN;
    return (Spread){sigma * sigma, median(seconds)};
}

bool
exec_variation_of(ExecVariation *variation, ProfileVariation *result)
{
    g_autoptr(GArray) ops = NULL, seconds = NULL;

    *result = (ProfileVariation){0};
    g_mutex_lock(&variation->mutex);
    find(variation, &ops, &seconds);
    g_mutex_unlock(&variation->mutex);
    if (ops->len < LEAST)
        return false;
    const Spread op = spread_of(ops);
    *result = (ProfileVariation){
        .is_known = true,
        .op_fraction = sqrt(op.variance),
        .correlation_s = LONGEST_S,
    };
    if (seconds->len < LEAST)
        return true;
    const Spread second = spread_of(seconds);
    /* op.variance (1 + op.seconds / t) = second.variance (1 + second.seconds / t). */
    const double lasting = second.variance * second.seconds - op.variance * op.seconds;
    const double falls = op.variance - second.variance;
    const double t = falls > 0 ? lasting / falls : LONGEST_S;
    result->correlation_s = CLAMP(t, SHORTEST_S, LONGEST_S);
    result->rank_fraction = sqrt(fmin(second.variance, op.variance));
    result->op_fraction = sqrt(op.variance * (1 + op.seconds / result->correlation_s));
    return true;
}

/* --- a file of them --- */

/* The bounds of a time, as in a profile, and of the logarithm of a ratio. */
#define MAX_TIME_S 1e6
#define MAX_LOG 100.0

static void
keep(const GArray *deviations, JsonWriter *writer, const char *key)
{
    json_write_array_inline(writer, key);
    for (guint i = 0; i < deviations->len; i++) {
        json_write_double(writer, NULL, g_array_index(deviations, Deviation, i).log);
        json_write_double(writer, NULL, g_array_index(deviations, Deviation, i).seconds);
    }
    json_write_array_end(writer);
}

void
exec_variation_keep(ExecVariation *variation, JsonWriter *writer, const char *key)
{
    g_autoptr(GArray) ops = NULL, seconds = NULL;

    g_mutex_lock(&variation->mutex);
    find(variation, &ops, &seconds);
    g_mutex_unlock(&variation->mutex);
    json_write_object(writer, key);
    keep(ops, writer, "ops");
    keep(seconds, writer, "seconds");
    json_write_object_end(writer);
}

static void
read_deviations(JsonDoc *doc, const JsonValue *array, GArray *deviations)
{
    for (const JsonValue *v = json_first(array); v != NULL; v = json_next(v)) {
        Deviation deviation = {.log = json_value_double(doc, v, -MAX_LOG, MAX_LOG)};
        v = json_next(v);
        if (v == NULL) {
            json_fail(doc, array, "expected pairs of a deviation and seconds");
            return;
        }
        deviation.seconds = json_value_double(doc, v, 0.0, MAX_TIME_S);
        g_array_append_val(deviations, deviation);
    }
}

void
exec_variation_read(ExecVariation *variation, JsonDoc *doc, const JsonValue *object)
{
    read_deviations(doc, json_array(doc, object, "ops"), variation->ops);
    read_deviations(doc, json_array(doc, object, "seconds"), variation->seconds);
    json_object_end(doc, object);
}
