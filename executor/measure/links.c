#include "executor/measure/links.h"

#include "executor/device/clock.h"
#include "executor/model/state.h"
#include "executor/run/run.h"
#include "executor/transport/measured_collectives.h"

/* --- whether there is time --- */

/* Whether thread 0 has time for the link of the row @about. */
static int
times_link(ExecMeasureRank *rank, const void *about)
{
    const ProfileMeasurement *key = about;
    const int64_t size = key->op == PROFILE_OP_OPTIMIZER ? key->n_elements : key->bytes;

    rank->shared->link_begin_ns = exec_now_ns();
    return exec_budget_links_next(rank->shared->links, key->op, MAX(key->n_ranks, 1), size);
}

static void
end_link(ExecMeasureRank *rank)
{
    const ExecMeasureShared *shared = rank->shared;

    if (rank->transport.rank == 0)
        exec_budget_links_note(shared->links, exec_seconds_since(shared->link_begin_ns));
}

/* --- the optimizer --- */

/* What a rank does in its optimizer step (executor/run/) where gradients are clipped, as they are
 * in all early steps. */
static bool
optimize(ExecModel *model, GError **error)
{
    const ExecAdamw constants = {
        1e-5f, 0.9f, 0.95f, 1e-8f, EXEC_WEIGHT_DECAY, 1, &model->clip->factor};

    model->backend->ops->zero(model->backend, sizeof *model->clip, model->clip);
    exec_model_sum_squares(model, NULL, NULL);
    model->backend->ops->clip(model->backend, EXEC_PARTIAL_SUMS, 1, model->clip);
    return exec_model_adamw(model, &constants, error);
}

bool
exec_measure_optimizer(ExecMeasureRank *rank, GError **error)
{
    const guint n_parameters = exec_model_n_parameters(rank->model);

    for (int half = 1; half <= 2; half++) {
        ProfileMeasurement key = {.op = PROFILE_OP_OPTIMIZER};
        GArray *all = rank->model->layout.parameters;
        g_autoptr(GArray) some = g_array_new(false, false, sizeof(ExecParameter));
        int is_timed;

        g_array_append_vals(some, all->data, half == 1 ? n_parameters / 2 : n_parameters);
        for (guint i = 0; i < some->len; i++)
            key.n_elements += g_array_index(some, ExecParameter, i).n;
        if (!exec_measure_decide(rank, times_link, &key, &is_timed, error))
            return false;
        if (!is_timed || !rank->busy)
            continue;
        exec_measure_empty_caches(rank);
        if (!exec_measure_begin(rank, &key, 1, error))
            return false;
        rank->model->layout.parameters = some;
        const bool ok = optimize(rank->model, error);
        rank->model->layout.parameters = all;
        if (!ok || !exec_measure_end(rank, &key, 1, error) || !exec_measure_collect(rank, error))
            return false;
        end_link(rank);
    }
    return true;
}

/* --- messages --- */

/* Times round trips between the pairs 0-1, 2-3, ... all at once; one way is half of that. */
static bool
time_message(ExecMeasureRank *rank, int64_t n, GError **error)
{
    enum {
        ROUNDS = 8
    };
    const ProfileMeasurement key = {
        .op = PROFILE_OP_P2P,
        .bytes = exec_storage_bytes(rank->backend, n),
        .n_ranks = 2,
    };
    ExecTransport *t = &rank->transport;
    const int32_t peer = t->rank ^ 1;
    const bool first = t->rank < peer, record = rank->record;
    int is_timed;

    if (!exec_measure_decide(rank, times_link, &key, &is_timed, error))
        return false;
    if (!is_timed || peer >= rank->shared->n_threads)
        return true;
    for (int round = 0; round < ROUNDS; round++) {
        if (first && (!exec_measure_begin_plain(rank, error) ||
                      !t->ops->send(t, peer, 0, rank->message.data, key.bytes, error)))
            return false;
        if (!t->ops->receive(t, peer, 0, rank->message.data, key.bytes, error) ||
            (!first && !t->ops->send(t, peer, 0, rank->message.data, key.bytes, error)))
            return false;
        if (first)
            exec_measure_end_plain(rank, &key, 0.5);
        rank->record = record && round > 0;
        if (!exec_measure_collect(rank, error))
            return false;
    }
    rank->record = record;
    end_link(rank);
    return true;
}

/* --- collectives --- */

/* Times one collective of the first @n_members threads. */
static bool
time_collective(ExecMeasureRank *rank, ProfileOp op, int32_t n_members, int64_t n, GError **error)
{
    const ProfileMeasurement key = {
        .op = op,
        .bytes = n * (int64_t)sizeof(float),
        .n_ranks = n_members,
    };
    const ExecGroup group = {
        .ranks = rank->members,
        .n = n_members,
        .index = rank->transport.rank,
    };
    int is_timed;

    if (n == 0)
        return true;
    if (!exec_measure_decide(rank, times_link, &key, &is_timed, error))
        return false;
    if (!is_timed || rank->transport.rank >= n_members)
        return true;
    rank->backend->ops->zero(rank->backend, (size_t)key.bytes, rank->model->gradients.data);
    if (!exec_measure_begin_plain(rank, error) ||
        !exec_measure_call(&rank->transport, op, &group, rank->model->gradients.data, n, error))
        return false;
    exec_measure_end_plain(rank, &key, 1);
    if (!exec_measure_collect(rank, error))
        return false;
    end_link(rank);
    return true;
}

bool
exec_measure_communication(ExecMeasureRank *rank, GError **error)
{
    static const ProfileOp ops[] = {PROFILE_OP_ALL_REDUCE, PROFILE_OP_ALL_GATHER,
                                    PROFILE_OP_REDUCE_SCATTER, PROFILE_OP_BROADCAST};
    const ExecMeasureOptions *o = rank->shared->o;

    for (size_t b = 0; b < o->n_batches; b++)
        for (size_t s = 0; s < o->n_slices; s++)
            if (!time_message(rank, o->batches[b] * o->slices[s] * o->arch->hidden, error))
                return false;
    for (size_t i = 0; i < G_N_ELEMENTS(ops); i++)
        for (int32_t n = 2; n <= rank->shared->n_threads; n *= 2)
            for (int64_t divisor = 256; divisor >= 1; divisor /= 4)
                if (!time_collective(rank, ops[i], n, rank->model->layout.n / divisor, error))
                    return false;
    return true;
}

/* --- copies --- */

/* 4 KiB shows the latency, 16 MiB the rate of large copies, and 256 KiB the knee between. */
static const int64_t copy_bytes[] = {INT64_C(1) << 12, INT64_C(1) << 18, INT64_C(1) << 24};

/* Times a copy of @n bytes to the device, one within it and one back. */
static bool
time_copies(ExecMeasureRank *rank, int64_t n, char *host, char *device, GError **error)
{
    static const ProfileOp directions[] = {PROFILE_OP_COPY_H2D, PROFILE_OP_COPY_D2D,
                                           PROFILE_OP_COPY_D2H};
    const ExecBackendOps *ops = rank->backend->ops;

    for (size_t i = 0; i < G_N_ELEMENTS(directions); i++) {
        const ProfileMeasurement key = {.op = directions[i], .bytes = n};
        if (!exec_measure_begin_plain(rank, error))
            return false;
        if (key.op == PROFILE_OP_COPY_H2D)
            ops->upload(rank->backend, (size_t)n, host, device);
        else if (key.op == PROFILE_OP_COPY_D2D)
            ops->copy(rank->backend, (size_t)n, device, device + n);
        else
            ops->download(rank->backend, (size_t)n, device, host);
        exec_measure_end_plain(rank, &key, 1);
    }
    return exec_measure_collect(rank, error);
}

/* If @why says that the device has no memory for copies of @n bytes, notes it and returns true. */
static bool
leave_out_copies(ExecMeasureShared *shared, int64_t n, const GError *why)
{
    if (!g_error_matches(why, EXEC_ERROR, EXEC_ERROR_MEMORY))
        return false;
    shared->too_large_copy_bytes = n;
    shared->too_large_why = g_strdup(why->message);
    return true;
}

bool
exec_measure_copies(ExecMeasureRank *rank, GError **error)
{
    ExecMeasureShared *shared = rank->shared;

    if (!exec_measure_meet(rank, error))
        return false;
    for (size_t i = 0; rank->transport.rank == 0 && i < G_N_ELEMENTS(copy_bytes); i++) {
        const int64_t n = copy_bytes[i];
        g_autofree char *host = g_malloc0((size_t)n);
        g_autoptr(GError) why = NULL;
        ExecBlock block = {0};

        if (n == shared->too_large_copy_bytes)
            return true;
        if (!exec_pool_take(rank->pool, TRACE_MEMORY_BUFFERS, 2 * n, &block, &why)) {
            if (leave_out_copies(shared, n, why))
                return true;
            g_propagate_error(error, g_steal_pointer(&why));
            return false;
        }
        const bool ok = time_copies(rank, n, host, block.data, error);
        exec_pool_give(rank->pool, &block);
        if (!ok)
            return false;
    }
    return true;
}

/* --- launches --- */

/* Times how long the host takes to queue the smallest kernel: many in a row, so that the clock's
 * own cost does not count. */
bool
exec_measure_launch(ExecMeasureRank *rank, GError **error)
{
    enum {
        N_LAUNCHES = 128
    };
    const ProfileMeasurement key = {.op = PROFILE_OP_LAUNCH};
    const ExecBackendOps *ops = rank->backend->ops;

    if (!exec_measure_meet(rank, error))
        return false;
    if (rank->transport.rank != 0)
        return true;
    const int64_t begin_ns = exec_now_ns();
    for (int i = 0; i < N_LAUNCHES; i++)
        ops->add(rank->backend, 1, rank->message.data, rank->message.data);
    const int64_t spent_ns = exec_now_ns() - begin_ns;
    if (rank->record)
        exec_samples_add(rank->shared->samples, &key, (double)spent_ns * 1e-9 / N_LAUNCHES, false);
    return ops->synchronize(rank->backend, error);
}

/* --- the executor's own --- */

/* Returns how long a rank neither computed nor waited in the traced step, divided by its ops. */
static double
overhead_of(const Trace *trace, int32_t rank)
{
    int64_t first = INT64_MAX, last = 0, accounted = 0, n_ops = 0;

    for (guint i = 0; i < trace->events->len; i++) {
        const TraceEvent *event = &g_array_index(trace->events, TraceEvent, i);
        if (event->rank != rank || event->stream != TRACE_STREAM_COMPUTE ||
            event->kind == TRACE_EVENT_OPTIMIZER)
            continue;
        first = MIN(first, event->start_ns);
        last = MAX(last, event->end_ns);
        accounted += event->end_ns - event->start_ns;
        n_ops += event->kind != TRACE_EVENT_WAIT;
    }
    return (double)MAX(last - first - accounted, 0) * 1e-9 / (double)MAX(n_ops, 1);
}

bool
exec_measure_overhead(const ExecMeasureOptions *o, ExecSamples *samples, GError **error)
{
    const ProfileMeasurement key = {.op = PROFILE_OP_OVERHEAD};
    g_autoptr(Plan) plan =
        exec_measure_tiny_plan(o->dtype, MIN(o->concurrency, 2), 1, o->quick ? 16 : 64);
    g_auto(ExecRunResult) result = {0};

    if (!exec_run(
            &(ExecRunOptions){
                .arch = &exec_measure_tiny_arch,
                .plan = plan,
                .device = o->device,
                .transport = "local",
                .n_steps = o->quick ? 3 : 8,
                .seed = 1,
                .want_trace = true,
            },
            &result, error))
        return false;
    for (int32_t rank = 0; rank < plan->degrees.pp; rank++)
        exec_samples_add(samples, &key, overhead_of(result.trace, rank), false);
    return true;
}
