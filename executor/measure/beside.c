#include "executor/measure/rank.h"

#define N_REPETITIONS 5 /* at most; at least one */
#define COPY_BYTES (INT64_C(1) << 24)

/* Rank 1 tells its partner in this tag whether there is another all-reduce. */
#define TAG_MORE 1

/* --- what is timed --- */

/* Layers' forwards of slices without context, one after the other; thread 0 keeps how long each
 * took. */
static bool
run_layers(ExecMeasureRank *rank, ProfileBeside beside, GError **error)
{
    ExecMeasureBeside *job = rank->shared->job_data;
    g_autoptr(ExecStageRun) run =
        exec_measure_stage_run(rank, EXEC_MEASURE_LAYERS, &job->point, EXEC_MEASURE_FORWARDS);

    for (int32_t m = 0; m < EXEC_MEASURE_FORWARDS; m++)
        if (!exec_measure_op(rank, run, EXEC_MEASURE_LAYERS, PROFILE_PASS_FORWARD, m, 0, error))
            return false;
    if (!rank->backend->ops->synchronize(rank->backend, error))
        return false;
    for (int i = 0; rank->record && rank->transport.rank == 0 && i < rank->n_timings; i++) {
        const ExecMeasureTiming *timing = &rank->timings[i];
        const double seconds = (double)(timing->end_ns - timing->begin_ns) * 1e-9;
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

/* Ranks 1 and 2, until thread 0 is done. */
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

static bool
time_beside(ExecMeasureRank *rank, ProfileBeside beside, GError **error)
{
    ExecMeasureShared *shared = rank->shared;
    const bool waits = beside >= PROFILE_BESIDE_COPY_H2D;

    if (!exec_measure_meet(rank, error))
        return false;
    if (rank->transport.rank == 0) {
        atomic_store(&shared->is_started, !waits);
        atomic_store(&shared->is_done, false);
    }
    if (!exec_measure_meet(rank, error))
        return false;
    if (rank->transport.rank != 0)
        return run_companion(rank, beside, error);
    while (!atomic_load(&shared->is_started))
        g_usleep(50);
    const bool ok = run_layers(rank, beside, error);
    atomic_store(&shared->is_done, true);
    return ok;
}

/* Thread 0 decides between two barriers. */
static bool
goes_on(ExecMeasureRank *rank, int repetition, bool *more, GError **error)
{
    ExecMeasureBeside *job = rank->shared->job_data;

    if (!exec_measure_meet(rank, error))
        return false;
    if (rank->transport.rank == 0)
        job->more =
            repetition <= 1 || (repetition <= N_REPETITIONS && exec_now_ns() < job->deadline_ns);
    if (!exec_measure_meet(rank, error))
        return false;
    *more = job->more;
    return true;
}

bool
exec_measure_beside(ExecMeasureRank *rank, GError **error)
{
    bool more;

    for (int repetition = 0;; repetition++) {
        if (!goes_on(rank, repetition, &more, error))
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
