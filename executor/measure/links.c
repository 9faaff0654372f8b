#include "executor/model/state.h"
#include "executor/transport/measured_collectives.h"
#include "executor/measure/rank.h"

/* --- whether there is time --- */

/* All threads: one more link of @size bytes or elements between @n_ranks.  They meet before it. */
static bool
begin_link(ExecMeasureRank *rank, ProfileOp op, int64_t n_ranks, int64_t size, bool *is_timed,
           GError **error)
{
    ExecMeasureShared *shared = rank->shared;

    *is_timed = true;
    if (!exec_measure_meet(rank, error))
        return false;
    if (shared->links == NULL)
        return true;
    if (rank->transport.rank == 0) {
        shared->times_link = exec_budget_links_next(shared->links, op, n_ranks, size);
        shared->link_begin_ns = exec_now_ns();
    }
    if (!exec_measure_meet(rank, error))
        return false;
    *is_timed = shared->times_link;
    return true;
}

static void
end_link(ExecMeasureRank *rank)
{
    const ExecMeasureShared *shared = rank->shared;

    if (shared->links != NULL && rank->transport.rank == 0)
        exec_budget_links_note(shared->links,
                               (double)(exec_now_ns() - shared->link_begin_ns) * 1e-9);
}

/* --- the optimizer --- */

/* A rank's part of exec_rank_optimize() where gradients are clipped: early steps all are. */
static bool
optimize(ExecModel *model, GError **error)
{
    const ExecAdamw constants = {1e-5f, 0.9f, 0.95f, 1e-8f, 0, 1};
    double squares;

    for (guint i = 0; i < exec_model_n_parameters(model); i++)
        if (!exec_model_sum_squares(model, exec_model_parameter(model, i), &squares, error))
            return false;
    exec_model_scale_gradients(model, 1.0f);
    return exec_model_adamw(model, &constants, EXEC_WEIGHT_DECAY, error);
}

/* The first half of the parameters, and all of them: two points of a line. */
bool
exec_measure_optimizer(ExecMeasureRank *rank, GError **error)
{
    const guint n_parameters = exec_model_n_parameters(rank->model);

    for (int half = 1; half <= 2; half++) {
        ProfileMeasurement key = {.op = PROFILE_OP_OPTIMIZER};
        GArray *all = rank->model->layout.parameters;
        g_autoptr(GArray) some = g_array_new(false, false, sizeof(ExecParameter));
        bool is_timed;

        g_array_append_vals(some, all->data, half == 1 ? n_parameters / 2 : n_parameters);
        for (guint i = 0; i < some->len; i++)
            key.n_elements += g_array_index(some, ExecParameter, i).n;
        if (!begin_link(rank, key.op, 1, key.n_elements, &is_timed, error))
            return false;
        if (!is_timed || !rank->busy)
            continue;
        if (!exec_measure_begin(rank, error))
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

/* Round trips between neighbours 0-1, 2-3, ... all at once; one way is half. */
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
    bool is_timed;

    if (!begin_link(rank, key.op, key.n_ranks, key.bytes, &is_timed, error))
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

/* Over the first @n_members threads. */
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
    bool is_timed;

    if (n == 0)
        return true;
    if (!begin_link(rank, op, n_members, key.bytes, &is_timed, error))
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

/* Messages of the sizes that the grid's corners send: between sizes time is linear. */
static bool
time_messages(ExecMeasureRank *rank, GError **error)
{
    const ExecMeasureOptions *o = rank->shared->o;

    for (size_t b = 0; b < o->n_batches; b++)
        for (size_t s = 0; s < o->n_slices; s++)
            if (!time_message(rank, o->batches[b] * o->slices[s] * o->arch->hidden, error))
                return false;
    return true;
}

bool
exec_measure_communication(ExecMeasureRank *rank, GError **error)
{
    static const ProfileOp ops[] = {PROFILE_OP_ALL_REDUCE, PROFILE_OP_ALL_GATHER,
                                    PROFILE_OP_REDUCE_SCATTER, PROFILE_OP_BROADCAST};

    if (!time_messages(rank, error))
        return false;
    for (size_t i = 0; i < G_N_ELEMENTS(ops); i++)
        for (int32_t n = 2; n <= rank->shared->n_threads; n *= 2)
            for (int64_t divisor = 256; divisor >= 1; divisor /= 4)
                if (!time_collective(rank, ops[i], n, rank->model->layout.n / divisor, error))
                    return false;
    return true;
}

/* --- copies --- */

/* Latency, the knee, and what a large copy reaches. */
static const int64_t copy_bytes[] = {INT64_C(1) << 12, INT64_C(1) << 18, INT64_C(1) << 24};

/* @n bytes up, within the device and down again. */
static bool
time_copies(ExecMeasureRank *rank, int64_t n, char *host, char *device, GError **error)
{
    const ExecBackendOps *ops = rank->backend->ops;
    ProfileMeasurement key = {.op = PROFILE_OP_COPY_H2D, .bytes = n};

    bool ok = exec_measure_begin_plain(rank, error);
    ops->upload(rank->backend, (size_t)n, host, device);
    exec_measure_end_plain(rank, &key, 1);
    key.op = PROFILE_OP_COPY_D2D;
    ok = ok && exec_measure_begin_plain(rank, error);
    ops->copy(rank->backend, (size_t)n, device, device + n);
    exec_measure_end_plain(rank, &key, 1);
    key.op = PROFILE_OP_COPY_D2H;
    ok = ok && exec_measure_begin_plain(rank, error);
    ops->download(rank->backend, (size_t)n, device, host);
    exec_measure_end_plain(rank, &key, 1);
    return ok && exec_measure_collect(rank, error);
}

/* Whether @why is that the device has no memory for copies of @n bytes, which is then told. */
static bool
leave_out_copies(ExecMeasureShared *shared, int64_t n, const GError *why)
{
    if (!g_error_matches(why, EXEC_ERROR, EXEC_ERROR_MEMORY))
        return false;
    shared->too_large_copy_bytes = n;
    shared->too_large_why = g_strdup(why->message);
    return true;
}

/* Rank 0's, while the others rest. */
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

/* Host time to queue the smallest kernel, many in a row so that the clock's own cost vanishes. */
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
        ops->scale(rank->backend, 1, 1.0f, rank->message.data);
    const int64_t spent_ns = exec_now_ns() - begin_ns;
    if (rank->record)
        exec_samples_add(rank->shared->samples, &key, (double)spent_ns * 1e-9 / N_LAUNCHES);
    return ops->synchronize(rank->backend, error);
}
