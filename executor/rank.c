#include "executor/rank.h"

#include <math.h>

#include "executor/rank_state.h"

/* --- after the last op --- */

/* GPT-3's constants [Brown et al. 2005.14165 appendix B]; ten steps of warm-up. */
static ExecAdamw
adamw_at(const ExecRank *rank)
{
    const float warm = MIN(1.0f, (float)(rank->step + 1) / 10.0f);

    return (ExecAdamw){
        .learning_rate = rank->shared->o.learning_rate * warm,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .epsilon = 1e-8f,
        .step = rank->step + 1,
    };
}

static bool
optimize(ExecRank *rank, GError **error)
{
    const ExecAdamw constants = adamw_at(rank);
    int64_t begin, end;

    exec_rank_set_doing(rank, EXEC_DOING_OPTIMIZER, 0);
    exec_backend_stamp(rank->backend, &begin);
    if (rank->shared->plan->conventions.optimizer_step)
        exec_model_adamw(rank->model, &constants, EXEC_WEIGHT_DECAY);
    else
        rank->backend->ops->zero(rank->backend, (size_t)rank->model->n * sizeof(float),
                                 rank->model->gradients.data);
    exec_backend_stamp(rank->backend, &end);
    if (!rank->backend->ops->synchronize(rank->backend, error))
        return false;
    exec_rank_read_op_times(rank);
    exec_rank_add_event(rank, TRACE_STREAM_COMPUTE, TRACE_EVENT_OPTIMIZER, begin, end,
                        (ScheduleOp){0}, -1, 0);
    return true;
}

static bool
keep_gradients(ExecRank *rank, GError **error)
{
    ExecRankRecord *record = rank->record;

    record->gradients = g_try_new(float, (size_t)rank->model->n);
    if (record->gradients == NULL) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MEMORY,
                    "no memory for a copy of the gradients to verify");
        return false;
    }
    rank->backend->ops->download(rank->backend, (size_t)rank->model->n * sizeof(float),
                                 rank->model->gradients.data, record->gradients);
    record->parameters = g_array_ref(rank->model->parameters);
    return rank->backend->ops->synchronize(rank->backend, error);
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
    const int64_t n = rank->shared->plan->n_microbatches * rank->shared->schedule->n_slices;

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
                     rank->place.pipeline, begin);
    for (int64_t i = schedule->rank_begin[rank->place.pipeline];
         i < schedule->rank_begin[rank->place.pipeline + 1]; i++)
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
    if (!optimize(rank, error))
        return false;
    exec_shared_step_done(rank->shared, rank->step, rank->rank, loss, begin, exec_now_ns());
    exec_pool_record(rank->pool, NULL, 0, 0);
    return true;
}
