#include "executor/measure/rank.h"

#include "executor/device/clock.h"

bool
exec_measure_goes_on(const ExecMeasureRank *rank, GError **error)
{
    if (!exec_measure_is_interrupted(rank->shared))
        return true;
    g_set_error_literal(error, EXEC_ERROR, EXEC_ERROR_INTERRUPTED, "profile: interrupted");
    return false;
}

bool
exec_measure_meet(ExecMeasureRank *rank, GError **error)
{
    const ExecGroup everyone = {
        .ranks = rank->members,
        .n = rank->shared->n_threads,
        .index = rank->transport.rank,
    };

    return exec_measure_goes_on(rank, error) &&
           rank->transport.ops->barrier(&rank->transport, &everyone, error);
}

/* --- the clock --- */

static int64_t
latest_ns(const ExecMeasureRank *rank, const int64_t *times_ns)
{
    int64_t latest = 0;

    for (int32_t i = 0; i < rank->shared->n_threads; i++)
        latest = MAX(latest, times_ns[i]);
    return latest;
}

bool
exec_measure_begin_plain(ExecMeasureRank *rank, GError **error)
{
    if (rank->n_timings == EXEC_MEASURE_MAX_TIMINGS && !exec_measure_collect(rank, error))
        return false;
    ExecMeasureTiming *timing = &rank->timings[rank->n_timings];
    if (rank->shared->watches_cores)
        timing->thread_begin_ns = exec_thread_ns();
    exec_backend_stamp(rank->backend, &timing->begin_ns);
    return true;
}

void
exec_measure_end_plain(ExecMeasureRank *rank, const ProfileMeasurement *key, double share)
{
    ExecMeasureTiming *timing = &rank->timings[rank->n_timings++];

    exec_backend_stamp(rank->backend, &timing->end_ns);
    if (rank->shared->watches_cores)
        timing->thread_end_ns = exec_thread_ns();
    timing->key = *key;
    timing->share = share;
}

/*
 * Where cores are shared, the scheduler runs some threads' ops undisturbed while others wait for a
 * core: a thread's own time says nothing.  Then the clock runs from the last arrival to the last
 * end, in which every thread gets one op done: a rank's share of the machine when all are busy.
 */
bool
exec_measure_begin(ExecMeasureRank *rank, GError **error)
{
    const ExecMeasureShared *shared = rank->shared;

    /* Also keeps the device busy while the op's kernels are queued. */
    if (rank->flush.data != NULL)
        rank->backend->ops->zero(rank->backend, (size_t)rank->flush.n_bytes, rank->flush.data);
    if (!exec_measure_begin_plain(rank, error))
        return false;
    if (!shared->shares_cores)
        return true;
    shared->arrived_ns[rank->transport.rank] = rank->timings[rank->n_timings].begin_ns;
    if (!exec_measure_meet(rank, error))
        return false;
    rank->timings[rank->n_timings].begin_ns = latest_ns(rank, shared->arrived_ns);
    return true;
}

bool
exec_measure_end(ExecMeasureRank *rank, const ProfileMeasurement *key, double share, GError **error)
{
    const ExecMeasureShared *shared = rank->shared;

    exec_measure_end_plain(rank, key, share);
    if (!shared->shares_cores)
        return true;
    ExecMeasureTiming *timing = &rank->timings[rank->n_timings - 1];
    shared->finished_ns[rank->transport.rank] = timing->end_ns;
    if (!exec_measure_meet(rank, error))
        return false;
    timing->end_ns = latest_ns(rank, shared->finished_ns);
    return true;
}

bool
exec_measure_is_disturbed(const ExecMeasureRank *rank, const ExecMeasureTiming *timing)
{
    return rank->shared->watches_cores && exec_samples_is_alone(&timing->key) &&
           exec_was_disturbed(timing->end_ns - timing->begin_ns,
                              timing->thread_end_ns - timing->thread_begin_ns);
}

bool
exec_measure_collect(ExecMeasureRank *rank, GError **error)
{
    if (!rank->backend->ops->synchronize(rank->backend, error))
        return false;
    for (int i = 0; rank->record && rank->busy && i < rank->n_timings; i++) {
        const ExecMeasureTiming *timing = &rank->timings[i];
        const double seconds = (double)(timing->end_ns - timing->begin_ns) * 1e-9;
        if (exec_measure_is_disturbed(rank, timing))
            exec_samples_add_disturbed(rank->shared->samples, &timing->key,
                                       seconds * timing->share);
        else
            exec_samples_add(rank->shared->samples, &timing->key, seconds * timing->share);
        /* Of the machine as it is, disturbed or not. */
        if (rank->shared->variation != NULL)
            exec_variation_add(rank->shared->variation, rank->transport.rank, &timing->key,
                               timing->begin_ns, seconds);
    }
    rank->n_timings = 0;
    return true;
}

/* --- the thread --- */

/* Every busy rank has its share of the device, as the ranks of a plan have. */
static bool
open_backend(ExecMeasureRank *rank, GError **error)
{
    const ExecMeasureShared *shared = rank->shared;
    const ExecBackendOptions options = {
        .storage = shared->o->dtype,
        .share = rank->busy ? rank->host_transport.rank : 0,
        .n_shares = rank->busy ? shared->n_busy : 1,
    };

    rank->backend = exec_backend_open_with(shared->o->device, &options, error);
    if (rank->backend == NULL)
        return false;
    if (rank->backend->ops->stamp != NULL) {
        rank->device_transport =
            exec_device_transport_new(&rank->host_transport, rank->backend, true);
        rank->transport = *exec_device_transport(rank->device_transport);
    }
    rank->pool = exec_pool_new(rank->backend);
    rank->kinds = exec_kinds_new(rank->backend);
    if (shared->plan->degrees.tp > 1)
        exec_comm_init(&rank->comm, shared->o->arch, shared->plan, rank->backend, &rank->transport);
    else
        exec_comm_init_alone(&rank->comm, rank->backend);
    return true;
}

/* @n numbers of both signs around 0, at most @largest in size, in storage format. */
static bool
fill_pattern(ExecMeasureRank *rank, int64_t n, float largest, ExecBlock *block, GError **error)
{
    const ExecBackendOps *ops = rank->backend->ops;
    const size_t n_bytes = (size_t)n * sizeof(float);
    g_autofree float *host = g_new(float, (size_t)n);

    for (int64_t i = 0; i < n; i++)
        host[i] = (float)(i % 97 - 48) / 48.0f * largest;
    if (!exec_pool_take(rank->pool, TRACE_MEMORY_BUFFERS, exec_storage_bytes(rank->backend, n),
                        block, error))
        return false;
    float *device = ops->alloc(rank->backend, n_bytes, "inputs", error);
    if (device == NULL)
        return false;
    ops->upload(rank->backend, n_bytes, host, device);
    ops->to_storage(rank->backend, n, device, block->data);
    const bool ok = ops->synchronize(rank->backend, error);
    ops->release(rank->backend, device);
    return ok;
}

/* Inputs as after a norm; gradients small, as a mean over tokens makes them. */
static bool
fill_inputs(ExecMeasureRank *rank, int64_t n_rows, GError **error)
{
    const ExecBackendOps *ops = rank->backend->ops;
    const ModelArch *arch = rank->shared->o->arch;
    const int64_t n = n_rows * arch->hidden;
    g_autofree int32_t *tokens = g_new(int32_t, (size_t)n_rows);

    for (int64_t i = 0; i < n_rows; i++)
        tokens[i] = (int32_t)(i * 31 % MAX(arch->vocab, 1));
    if (!fill_pattern(rank, n, 1.0f, &rank->x, error) ||
        !fill_pattern(rank, n, 5e-4f, &rank->dx, error) ||
        !exec_pool_take(rank->pool, TRACE_MEMORY_BUFFERS, n * (int64_t)sizeof(float),
                        &rank->message, error))
        return false;
    ops->zero(rank->backend, (size_t)rank->message.n_bytes, rank->message.data);
    rank->tokens = ops->alloc(rank->backend, (size_t)n_rows * sizeof(int32_t), "tokens", error);
    if (rank->tokens == NULL)
        return false;
    ops->upload(rank->backend, (size_t)n_rows * sizeof(int32_t), tokens, rank->tokens);
    rank->loss = ops->alloc(rank->backend, sizeof *rank->loss, "the loss", error);
    return rank->loss != NULL && ops->synchronize(rank->backend, error);
}

static bool
prepare(ExecMeasureRank *rank, GError **error)
{
    const ExecMeasureShared *shared = rank->shared;
    const ExecMeasureOptions *o = shared->o;
    const int64_t seq_len = shared->plan->seq_len, largest = shared->largest_batch;

    if (!open_backend(rank, error))
        return false;
    const int32_t tp = (int32_t)shared->plan->degrees.tp;
    rank->model = exec_model_new(&(ExecModelOptions){.arch = o->arch,
                                                     .plan = shared->plan,
                                                     .tp_index = rank->transport.rank % tp,
                                                     .seed = 1,
                                                     .optimizer = shared->has_optimizer},
                                 rank->backend, rank->pool, error);
    return rank->model != NULL &&
           exec_stage_scratch_init(&rank->scratch,
                                   &(ExecScratchOptions){
                                       .widths = &rank->model->widths,
                                       .comm = &rank->comm,
                                       .pool = rank->pool,
                                       .sequences = largest,
                                       .lengths = &shared->plan->seq_len,
                                       .n_slices = 1,
                                   },
                                   error) &&
           (shared->flush_bytes == 0 || exec_pool_take(rank->pool, TRACE_MEMORY_BUFFERS,
                                                       shared->flush_bytes, &rank->flush, error)) &&
           fill_inputs(rank, largest * seq_len, error);
}

static void
rank_clear(ExecMeasureRank *rank)
{
    if (rank->pool != NULL) {
        exec_stage_scratch_clear(&rank->scratch, rank->pool);
        exec_pool_give(rank->pool, &rank->message);
        exec_pool_give(rank->pool, &rank->x);
        exec_pool_give(rank->pool, &rank->dx);
        exec_pool_give(rank->pool, &rank->flush);
    }
    if (rank->backend != NULL) {
        g_mutex_lock(&rank->shared->mutex);
        rank->shared->workspace_bytes =
            MAX(rank->shared->workspace_bytes, exec_backend_workspace_bytes(rank->backend));
        g_mutex_unlock(&rank->shared->mutex);
        rank->backend->ops->release(rank->backend, rank->tokens);
        rank->backend->ops->release(rank->backend, rank->loss);
    }
    exec_model_free(rank->model);
    exec_comm_clear(&rank->comm);
    exec_kinds_free(rank->kinds);
    exec_pool_free(rank->pool);
    exec_device_transport_free(rank->device_transport);
    exec_backend_close(rank->backend);
    g_array_unref(rank->slices);
    g_array_unref(rank->sequences);
    g_free(rank->timings);
    g_free(rank->members);
}

/* Kept before the others hear of it: what they report then is only that it happened. */
static void
fail(ExecMeasureRank *rank, GError *error)
{
    ExecMeasureShared *shared = rank->shared;
    g_autofree char *reason = g_strdup(error->message);

    g_mutex_lock(&shared->mutex);
    if (shared->error == NULL)
        shared->error = g_steal_pointer(&error);
    g_mutex_unlock(&shared->mutex);
    g_clear_error(&error);
    exec_transport_abort(&rank->transport, reason);
    atomic_store(&shared->stop, true);
    atomic_store(&shared->is_done, true); /* nobody waits for what will not come */
    atomic_store(&shared->is_started, true);
}

gpointer
exec_measure_rank_main(gpointer user_data)
{
    const ExecMeasureStart *start = user_data;
    ExecMeasureShared *shared = start->shared;
    ExecMeasureRank rank = {
        .shared = shared,
        .host_transport = exec_local_transport(shared->hub, start->rank),
        .members = g_new(int32_t, (size_t)shared->n_threads),
        .timings = g_new(ExecMeasureTiming, EXEC_MEASURE_MAX_TIMINGS),
        .slices = g_array_new(FALSE, FALSE, sizeof(int64_t)),
        .sequences = g_array_new(FALSE, FALSE, sizeof(int64_t)),
        .busy = start->rank < shared->n_busy,
    };
    GError *error = NULL;

    rank.transport = rank.host_transport;
    for (int32_t i = 0; i < shared->n_threads; i++)
        rank.members[i] = i;
    if (!prepare(&rank, &error) || !shared->job(&rank, &error))
        fail(&rank, error);
    rank_clear(&rank);
    return NULL;
}
