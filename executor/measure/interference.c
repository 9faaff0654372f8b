#include "executor/measure/interference.h"

#include "base/order.h"
#include "executor/device/clock.h"
#include "executor/device/cores.h"
#include "executor/measure/budget.h"
#include "executor/measure/rank.h"
#include "executor/transport/transport.h"

/* Forwards of a layer in a row: what runs beside them takes longer than one. */
#define FORWARDS 4

/* A layer is timed so often beside each of the others, if there is time; once in any case. */
#define MAX_REPETITIONS 5

/* Forwards of a repetition: alone and beside each of up to three others, which slow it down to
 * half; and one repetition to warm up. */
#define REPETITION_LAYERS (2 * 2 * 4 * FORWARDS)

/* Large enough that the rate of a copy counts, not its latency (links.c). */
#define COPY_BYTES (INT64_C(1) << 24)

/* Rank 1 tells rank 2 in a message of this tag whether there is another all-reduce. */
#define TAG_MORE 1

/* The job's data. */
typedef struct {
    ExecGridPoint point; /* one slice of it is timed */
    /* (owned) of double; thread 0's: what forwards took, disturbed ones apart */
    GArray *seconds[PROFILE_BESIDE_N], *disturbed[PROFILE_BESIDE_N];
    int64_t deadline_ns; /* no more repetitions after it */
} Beside;

/* --- what is timed --- */

/* Runs a layer's forwards of slices without context, one after the other; thread 0 keeps how long
 * each took. */
static bool
run_layers(ExecMeasureRank *rank, ProfileBeside beside, GError **error)
{
    Beside *job = rank->shared->job_data;
    g_autoptr(ExecStageRun) run =
        exec_measure_stage_run(rank, EXEC_MEASURE_LAYERS, &job->point, FORWARDS);

    for (int32_t m = 0; m < FORWARDS; m++)
        if (!exec_measure_op(rank, run, EXEC_MEASURE_LAYERS, PROFILE_PASS_FORWARD, m, 0, error))
            return false;
    if (!rank->backend->ops->synchronize(rank->backend, error))
        return false;
    for (int i = 0; rank->record && rank->transport.rank == 0 && i < rank->n_timings; i++) {
        const ExecMeasureTiming *timing = &rank->timings[i];
        const double seconds = exec_measure_seconds(timing);
        GArray *of =
            exec_measure_is_disturbed(rank, timing) ? job->disturbed[beside] : job->seconds[beside];
        g_array_append_val(of, seconds);
    }
    rank->n_timings = 0;
    return true;
}

/* --- what runs beside it --- */

static bool
copy_once(ExecMeasureRank *rank, ProfileBeside beside, char *host, char *device, GError **error)
{
    const ExecBackendOps *ops = rank->backend->ops;

    if (beside == PROFILE_BESIDE_COPY_H2D)
        ops->upload(rank->backend, (size_t)COPY_BYTES, host, device);
    else
        ops->copy(rank->backend, (size_t)COPY_BYTES, device, device + COPY_BYTES);
    return ops->synchronize(rank->backend, error);
}

static bool
run_copies(ExecMeasureRank *rank, ProfileBeside beside, GError **error)
{
    ExecMeasureShared *shared = rank->shared;
    g_autofree char *host = g_malloc0((size_t)COPY_BYTES);
    ExecBlock block = {0};
    bool ok = exec_pool_take(rank->pool, TRACE_MEMORY_BUFFERS, 2 * COPY_BYTES, &block, error);

    if (ok)
        rank->backend->ops->zero(rank->backend, (size_t)block.n_bytes, block.data);
    while (ok && !atomic_load(&shared->is_done)) {
        ok = copy_once(rank, beside, host, block.data, error);
        atomic_store(&shared->is_started, true);
    }
    exec_pool_give(rank->pool, &block);
    return ok;
}

/* Ranks 1 and 2 reduce until thread 0 is done. */
static bool
run_all_reduces(ExecMeasureRank *rank, GError **error)
{
    static const int32_t pair[] = {1, 2};
    ExecMeasureShared *shared = rank->shared;
    ExecTransport *t = &rank->transport, *h = &rank->host_transport;
    const ExecGroup group = {.ranks = pair, .n = 2, .index = t->rank - 1};
    char more = 1;

    while (more) {
        if (t->rank == 1) {
            more = !atomic_load(&shared->is_done);
            if (!h->ops->send(h, 2, TAG_MORE, &more, sizeof more, error))
                return false;
        } else if (!h->ops->receive(h, 1, TAG_MORE, &more, sizeof more, error)) {
            return false;
        }
        if (more && !t->ops->all_reduce(t, &group, DTYPE_FP32, rank->message.data,
                                        rank->message.n_bytes / (int64_t)sizeof(float), error))
            return false;
        atomic_store(&shared->is_started, true);
    }
    return true;
}

/* --- one of them together --- */

static bool
is_possible(const ExecMeasureShared *shared, ProfileBeside beside)
{
    switch (beside) {
    case PROFILE_BESIDE_NOTHING:
        return true;
    case PROFILE_BESIDE_COMPUTE:
        return shared->n_busy > 1;
    case PROFILE_BESIDE_ALL_REDUCE:
        return shared->n_busy == 1 && shared->n_threads > 2;
    default:
        return shared->n_busy == 1;
    }
}

static bool
run_companion(ExecMeasureRank *rank, ProfileBeside beside, GError **error)
{
    const int32_t index = rank->transport.rank;

    switch (beside) {
    case PROFILE_BESIDE_COMPUTE:
        return !rank->busy || run_layers(rank, beside, error);
    case PROFILE_BESIDE_ALL_REDUCE:
        return run_all_reduces(rank, error);
    case PROFILE_BESIDE_COPY_H2D:
    case PROFILE_BESIDE_COPY_D2D:
        return index != 1 || run_copies(rank, beside, error);
    default:
        return true;
    }
}

static int
begin_beside(ExecMeasureRank *rank, const void *about)
{
    const bool *waits = about;

    atomic_store(&rank->shared->is_started, !*waits);
    atomic_store(&rank->shared->is_done, false);
    return 0;
}

static bool
time_beside(ExecMeasureRank *rank, ProfileBeside beside, GError **error)
{
    ExecMeasureShared *shared = rank->shared;
    const bool waits = beside >= PROFILE_BESIDE_COPY_H2D;
    int ignored;

    if (!exec_measure_decide(rank, begin_beside, &waits, &ignored, error))
        return false;
    if (rank->transport.rank != 0)
        return run_companion(rank, beside, error);
    while (!atomic_load(&shared->is_started))
        g_usleep(50);
    const bool ok = run_layers(rank, beside, error);
    atomic_store(&shared->is_done, true);
    return ok;
}

/* Whether there is repetition @about: 0 warms up, 1 is needed, others are made if there is time. */
static int
has_repetition(ExecMeasureRank *rank, const void *about)
{
    const Beside *job = rank->shared->job_data;
    const int *repetition = about;

    return *repetition <= 1 || (*repetition <= MAX_REPETITIONS && exec_now_ns() < job->deadline_ns);
}

/* What every thread does. */
static bool
time_all_beside(ExecMeasureRank *rank, GError **error)
{
    for (int repetition = 0;; repetition++) {
        int more;
        if (!exec_measure_decide(rank, has_repetition, &repetition, &more, error))
            return false;
        if (!more)
            return true;
        rank->record = repetition > 0;
        for (int beside = 0; beside < PROFILE_BESIDE_N; beside++)
            if (is_possible(rank->shared, (ProfileBeside)beside) &&
                !time_beside(rank, (ProfileBeside)beside, error))
                return false;
    }
}

/* --- the factors --- */

int64_t
exec_interference_most_ranks(const ExecMeasureOptions *o)
{
    return exec_device_kind(o->device)->is_gpu ? MAX(o->concurrency, 4)
                                               : MIN(o->concurrency, exec_n_cores());
}

static int64_t
layers_of(const Plan *plan)
{
    return g_array_index(plan->stages, PlanStage, EXEC_MEASURE_LAYERS).n_layers;
}

static double
repetition_s(const ProfileMeasurement *forward, int64_t n_layers)
{
    return REPETITION_LAYERS * (double)n_layers * forward->median_s;
}

/* Returns, of the slices without context that were timed, the longest that the time is enough for;
 * if it is enough for none, the quickest; NULL: none was timed. */
static const ProfileMeasurement *
choose_row(const ExecInterference *in, int64_t n_layers)
{
    const double most_s = EXEC_BUDGET_BESIDE_SHARE * in->o->budget_s;
    const ProfileMeasurement *best = NULL;
    bool best_fits = false;

    for (guint i = 0; i < in->profile->measurements->len; i++) {
        const ProfileMeasurement *row =
            &g_array_index(in->profile->measurements, ProfileMeasurement, i);
        if (row->op != PROFILE_OP_LAYER || row->pass != PROFILE_PASS_FORWARD || row->context != 0 ||
            row->batch > in->largest_batch ||
            g_strcmp0(row->kind, exec_measure_kind(in->o->arch, 0)) != 0)
            continue;
        const bool fits = repetition_s(row, n_layers) <= most_s;
        if (best != NULL && (fits != best_fits ? best_fits
                             : fits ? row->batch * row->tokens <= best->batch * best->tokens
                                    : row->median_s >= best->median_s))
            continue;
        best = row;
        best_fits = fits;
    }
    return best;
}

double
exec_interference_expected_s(const ExecInterference *in)
{
    g_autoptr(Plan) plan = exec_measure_plan(in->o, 1);
    const ProfileMeasurement *row = choose_row(in, layers_of(plan));

    return row == NULL ? 0.0 : repetition_s(row, layers_of(plan));
}

/* @seconds  sorted: of a layer on each of @n_ranks, beside that. */
static void
add_factor(ExecInterference *in, int64_t n_ranks, ProfileBeside beside, const GArray *seconds)
{
    if (n_ranks == 1 && beside == PROFILE_BESIDE_NOTHING) {
        in->alone_s = exec_samples_percentile(seconds, 50);
        return;
    }
    const ProfileInterference row = {
        .beside = beside,
        .n_ranks = n_ranks,
        .factor = exec_samples_percentile(seconds, 50) / in->alone_s,
        .p10 = exec_samples_percentile(seconds, 10) / in->alone_s,
        .p90 = exec_samples_percentile(seconds, 90) / in->alone_s,
    };
    g_array_append_val(in->profile->interference, row);
}

bool
exec_interference_time(ExecInterference *in, int32_t n_ranks, GError **error)
{
    const ExecMeasureOptions *o = in->o;
    /* One more thread copies, or two reduce, where nobody waits for a core. */
    const int32_t n_threads =
        MAX(n_ranks, exec_device_kind(o->device)->is_gpu || exec_n_cores() >= 3 ? 3 : 2);
    g_autoptr(Plan) plan = exec_measure_plan(o, 1);
    const ProfileMeasurement *row = choose_row(in, layers_of(plan));
    Beside beside = {
        .point = {row == NULL ? 1 : row->batch, row == NULL ? o->seq_len : row->tokens},
        .deadline_ns = exec_now_ns() + (int64_t)(EXEC_BUDGET_BESIDE_SHARE * o->budget_s * 1e9),
    };
    ExecMeasureShared shared = {
        .o = o,
        .plan = plan,
        .samples = in->samples,
        .n_threads = n_threads,
        .n_busy = n_ranks,
        .largest_batch = beside.point.batch,
        .watches_cores = in->watches_cores,
        .job = time_all_beside,
        .job_data = &beside,
    };

    for (int i = 0; i < PROFILE_BESIDE_N; i++) {
        beside.seconds[i] = g_array_new(FALSE, FALSE, sizeof(double));
        beside.disturbed[i] = g_array_new(FALSE, FALSE, sizeof(double));
    }
    exec_measure_start(&shared);
    const bool ok = exec_measure_join(&shared, error);
    for (int i = 0; i < PROFILE_BESIDE_N; i++) { /* first: beside nothing */
        GArray *seconds = beside.seconds[i]->len > 0 ? beside.seconds[i] : beside.disturbed[i];
        g_array_sort(seconds, order_doubles);
        if (ok && seconds->len > 0)
            add_factor(in, n_ranks, (ProfileBeside)i, seconds);
        g_array_unref(beside.seconds[i]);
        g_array_unref(beside.disturbed[i]);
    }
    return ok;
}
