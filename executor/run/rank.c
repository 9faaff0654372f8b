#include "executor/run/rank.h"

#include <math.h>

#include "executor/run/rank_state.h"
#include "executor/model/units.h"

/* --- what verification compares --- */

/* A unit's gradients, from the parts that its copies have where they are sharded. */
static bool
download_unit(ExecRank *rank, const ExecUnit *unit, float *to, GError **error)
{
    const ExecModel *model = rank->model;
    ExecBackend *backend = rank->backend;
    const ExecRegion *region = &model->layout.regions[unit->region];
    ExecBlock whole = {0};
    int64_t begin;
    const int64_t n = exec_model_own_shard(model, unit, &begin);
    const float *part = (const float *)model->gradients.data +
                        exec_model_at(model, EXEC_CONTENT_GRADIENTS, unit, begin);

    if (!region->sharded[EXEC_CONTENT_OPTIMIZER]) {
        backend->ops->download(backend, (size_t)n * sizeof *to, part, to);
        return backend->ops->synchronize(backend, error);
    }
    if (!exec_pool_take(rank->pool, TRACE_MEMORY_BUFFERS, unit->n * (int64_t)sizeof *to, &whole,
                        error))
        return false;
    backend->ops->copy(backend, (size_t)n * sizeof *to, part,
                       (float *)whole.data + (begin - unit->begin));
    exec_comm_all_gather(&rank->comm, exec_region_dim(unit->region), DTYPE_FP32, unit->n,
                         whole.data);
    backend->ops->download(backend, (size_t)unit->n * sizeof *to, whole.data, to);
    const bool ok = backend->ops->synchronize(backend, error);
    exec_pool_give(rank->pool, &whole);
    return ok && exec_comm_check(&rank->comm, error);
}

static bool
keep_gradients(ExecRank *rank, GError **error)
{
    ExecRankRecord *record = rank->record;

    record->gradients = g_try_new(float, (size_t)rank->model->layout.n);
    if (record->gradients == NULL) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MEMORY,
                    "no memory for a copy of the gradients to verify");
        return false;
    }
    record->parameters = g_array_ref(rank->model->layout.parameters);
    for (guint i = 0; i < rank->model->layout.units->len; i++) {
        const ExecUnit *unit = &g_array_index(rank->model->layout.units, ExecUnit, i);
        if (unit->n > 0 && !download_unit(rank, unit, record->gradients + unit->begin, error))
            return false;
    }
    return true;
}

/* --- steps --- */

/* The arrays that this step's events go to. */
static void
begin_record(ExecRank *rank)
{
    const size_t at = (size_t)(rank->step % EXEC_TRACED_STEPS);
    ExecRankRecord *record = rank->record;

    if (record->events[at] == NULL) {
        record->events[at] = g_array_new(false, false, sizeof(TraceEvent));
        record->memory[at] = g_array_new(false, false, sizeof(TraceMemory));
    }
    g_array_set_size(record->events[at], 0);
    g_array_set_size(record->memory[at], 0);
    rank->events = record->events[at];
}

static bool
barrier(ExecRank *rank, GError **error)
{
    const ExecGroup everyone = exec_rank_everyone(rank);

    exec_rank_set_doing(rank, EXEC_DOING_BARRIER, 0);
    return rank->transport.ops->barrier(&rank->transport, &everyone, error);
}

/* The sum of this rank's losses, in the order of micro-batches and slices, not of ops. */
static bool
sum_losses(ExecRank *rank, double *sum, GError **error)
{
    const int64_t n = rank->shared->plan->n_micro_batches * rank->shared->schedule->n_slices;

    *sum = 0;
    if (rank->device_losses == NULL)
        return true;
    rank->backend->ops->download(rank->backend, (size_t)n * sizeof *rank->losses,
                                 rank->device_losses, rank->losses);
    if (!rank->backend->ops->synchronize(rank->backend, error))
        return false;
    for (int64_t i = 0; i < n; i++)
        *sum += rank->losses[i];
    return true;
}

bool
exec_rank_run_step(ExecRank *rank, GError **error)
{
    const Schedule *schedule = rank->shared->schedule;
    double loss;

    begin_record(rank);
    if (!exec_rank_load_tokens(rank, error) || !barrier(rank, error))
        return false;
    const int64_t begin = exec_now_ns();
    exec_pool_record(rank->pool, rank->record->memory[rank->step % EXEC_TRACED_STEPS],
                     rank->coordinates.pipeline, begin);
    if (rank->units != NULL)
        exec_units_begin_step(rank->units);
    for (int64_t i = schedule->rank_begin[rank->coordinates.pipeline];
         i < schedule->rank_begin[rank->coordinates.pipeline + 1]; i++)
        if (!exec_rank_run_op(rank, i, error))
            return false;
    if (!exec_rank_reduce_gradients(rank, error) || !sum_losses(rank, &loss, error))
        return false;
    if (!isfinite(loss)) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_FAILED,
                    "the loss is not finite (learning rate too high?)");
        return false;
    }
    if (rank->shared->o.verify && rank->step == 0 && !keep_gradients(rank, error))
        return false;
    if ((rank->units != NULL && !exec_units_end_step(rank->units, error)) ||
        !exec_rank_optimize(rank, error))
        return false;
    exec_shared_step_done(rank->shared, rank->step, rank->rank, loss, begin, exec_now_ns());
    exec_pool_record(rank->pool, NULL, 0, 0);
    return true;
}
