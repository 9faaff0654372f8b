#include "executor/measure/sustained.h"

#include <math.h>

#include "base/order.h"
#include "executor/device/clock.h"
#include "executor/measure/rank.h"

/* The first timings that count are of a device that has just begun to work. */
#define FIRST_NS (INT64_C(30) * 1000000)

/* So long the device rests before the next micro-batch, and its clock recovers. */
#define REST_US 300000

/* The longest that a micro-batch is repeated. */
#define MOST_S 15.0

/* How many forwards and backwards are under way before the host waits for them. */
#define N_UNDER_WAY 16

/* Fewer timings on either side say nothing. */
#define LEAST_TIMINGS 3

/* The job's data; thread 0's. */
typedef struct {
    ExecGridPoint point;
    int64_t duration_ns;
    GArray *seconds;  /* (owned) of double: of a forward and a backward, in their order */
    GArray *begin_ns; /* (owned) of int64_t: when each began */
} Sustained;

/* --- a job --- */

static bool
run_pair(ExecMeasureRank *rank, ExecStageRun *run, int32_t micro_batch, GError **error)
{
    return exec_measure_run_op(rank, run, EXEC_MEASURE_LAYERS, PROFILE_PASS_FORWARD, micro_batch, 0,
                               error) &&
           exec_measure_run_op(rank, run, EXEC_MEASURE_LAYERS, PROFILE_PASS_BACKWARD, micro_batch,
                               0, error);
}

/* Waits for what is under way; thread 0 keeps how long it took. */
static bool
collect(ExecMeasureRank *rank, Sustained *job, GError **error)
{
    if (!rank->backend->ops->synchronize(rank->backend, error))
        return false;
    for (int i = 0; rank->transport.rank == 0 && i < rank->n_timings; i++) {
        const double seconds = exec_measure_seconds(&rank->timings[i]);
        g_array_append_val(job->seconds, seconds);
        g_array_append_val(job->begin_ns, rank->timings[i].begin_ns);
    }
    rank->n_timings = 0;
    return true;
}

/* Forward and backward again and again, without a break. */
static bool
repeat(ExecMeasureRank *rank, Sustained *job, ExecStageRun *run, GError **error)
{
    const ProfileMeasurement key = {.op = PROFILE_OP_LAYER};
    const int64_t end_ns = exec_now_ns() + job->duration_ns;

    for (int64_t n = 0; exec_now_ns() < end_ns; n++) {
        if (!exec_measure_begin_plain(rank, error) || !run_pair(rank, run, (int32_t)(n % 2), error))
            return false;
        exec_measure_end_plain(rank, &key, 1.0);
        if (rank->n_timings == N_UNDER_WAY && !collect(rank, job, error))
            return false;
    }
    return collect(rank, job, error);
}

/* What opens or closes a device in the same context ends a capture, so no thread begins before all are ready,
 * and none leaves before all are done. */
static bool
work(ExecMeasureRank *rank, GError **error)
{
    Sustained *job = rank->shared->job_data;
    g_autoptr(ExecStageRun) run = exec_measure_stage_run(rank, EXEC_MEASURE_LAYERS, &job->point, 2);

    if (!exec_measure_meet(rank, error))
        return false;
    /* What allocates, chooses kernels of products and makes graphs. */
    for (int32_t m = 0; rank->busy && m < 2; m++)
        if (!run_pair(rank, run, m, error))
            return false;
    if (!rank->backend->ops->synchronize(rank->backend, error))
        return false;
    rank->record = true;
    g_usleep(REST_US);
    return exec_measure_meet(rank, error) && (!rank->busy || repeat(rank, job, run, error)) &&
           exec_measure_meet(rank, error);
}

/* --- factors --- */

static double
median_between(const Sustained *job, int64_t from_ns, int64_t to_ns)
{
    g_autoptr(GArray) some = g_array_new(FALSE, FALSE, sizeof(double));

    for (guint i = 0; i < job->seconds->len; i++) {
        const int64_t at = g_array_index(job->begin_ns, int64_t, i);
        if (at >= from_ns && at < to_ns)
            g_array_append_val(some, g_array_index(job->seconds, double, i));
    }
    if (some->len < LEAST_TIMINGS)
        return NAN;
    g_array_sort(some, order_doubles);
    return exec_samples_percentile(some, 50);
}

static void
add_factor(ExecSustained *s, const Sustained *job)
{
    const guint n = job->seconds->len;

    if (n < 2 * LEAST_TIMINGS)
        return;
    const int64_t begin = g_array_index(job->begin_ns, int64_t, 0);
    const int64_t end = g_array_index(job->begin_ns, int64_t, n - 1);
    /* Where LEAST_TIMINGS take longer than FIRST_NS. */
    const int64_t first =
        MAX(begin + FIRST_NS, g_array_index(job->begin_ns, int64_t, LEAST_TIMINGS));
    const double fresh_s = median_between(job, begin, first);
    const double tired_s = median_between(job, MAX(first, (begin + end) / 2), end);
    if (isnan(fresh_s) || isnan(tired_s))
        return;
    const ProfileSustained row = {
        .batch = job->point.batch,
        .tokens = job->point.tokens,
        .factor = fmax(tired_s / fresh_s, 1.0),
    };
    g_array_append_val(s->profile->sustained, row);
}

static bool
time_point(ExecSustained *s, ExecGridPoint point, double duration_s, GError **error)
{
    g_autoptr(Plan) plan = exec_measure_plan(s->o, 1);
    g_autoptr(GArray) seconds = g_array_new(FALSE, FALSE, sizeof(double));
    g_autoptr(GArray) begin_ns = g_array_new(FALSE, FALSE, sizeof(int64_t));
    Sustained job = {point, (int64_t)(duration_s * 1e9), seconds, begin_ns};
    ExecMeasureShared shared = {
        .o = s->o,
        .plan = plan,
        .samples = s->samples,
        .n_threads = MAX((int32_t)s->o->concurrency, 2),
        .n_busy = (int32_t)s->o->concurrency,
        .largest_batch = point.batch,
        .captures = true,
        .job = work,
        .job_data = &job,
    };

    exec_measure_start(&shared);
    if (!exec_measure_join(&shared, error))
        return false;
    add_factor(s, &job);
    return true;
}

bool
exec_sustained_time(ExecSustained *s, GError **error)
{
    const GArray *rows = s->profile->measurements;
    int64_t batches[2] = {INT64_MAX, 0}, tokens = 0; /* the smallest and the largest */

    for (int pass = 0; pass < 2; pass++)
        for (guint i = 0; i < rows->len; i++) {
            const ProfileMeasurement *row = &g_array_index(rows, ProfileMeasurement, i);
            if (row->op != PROFILE_OP_LAYER || row->context != 0 || row->batch > s->largest_batch)
                continue;
            if (pass == 0)
                tokens = MAX(tokens, row->tokens);
            else if (row->tokens == tokens) {
                batches[0] = MIN(batches[0], row->batch);
                batches[1] = MAX(batches[1], row->batch);
            }
        }
    const int n = batches[1] == 0 ? 0 : batches[0] == batches[1] ? 1 : 2;
    for (int i = 0; i < n; i++)
        if (!time_point(s, (ExecGridPoint){batches[i], tokens},
                        fmin(EXEC_SUSTAINED_SHARE * s->o->budget_s / n, MOST_S), error))
            return false;
    return true;
}
