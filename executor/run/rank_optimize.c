/* The end of a step: gradients clipped by their global norm, AdamW, weights given to the copies. */
#include <math.h>

#include "executor/run/optimize.h"
#include "executor/model/state.h"
#include "executor/run/rank_state.h"

/* --- constants --- */

double
exec_learning_rate(const ExecRunOptions *options, int64_t step)
{
    const double peak = (double)options->learning_rate;
    const double warm = fmin(1.0, (double)(step + 1) / EXEC_WARM_UP_STEPS);

    if (options->decay_steps == 0)
        return peak * warm;
    const double left = (double)MAX(step + 1 - EXEC_WARM_UP_STEPS, 0) /
                        (double)MAX(options->decay_steps - EXEC_WARM_UP_STEPS, 1);
    const double cosine = 0.5 * (1.0 + cos(G_PI * fmin(left, 1.0)));
    return peak * warm * (EXEC_DECAY_END + (1.0 - EXEC_DECAY_END) * cosine);
}

/* GPT-3's [Brown et al. 2005.14165 appendix B]. */
static ExecAdamw
adamw_at(const ExecRank *rank)
{
    return (ExecAdamw){
        .learning_rate = (float)exec_learning_rate(&rank->shared->o, rank->step),
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .epsilon = 1e-8f,
        .step = rank->step + 1,
    };
}

/* --- clipping --- */

/* The sum of squares of the gradients that this rank speaks for. */
static bool
sum_own_squares(ExecRank *rank, double *sum, GError **error)
{
    const ExecModel *model = rank->model;

    *sum = 0;
    for (guint i = 0; i < exec_model_n_parameters(model); i++) {
        double squares;
        if (!exec_rank_speaks_for(rank, i))
            continue;
        if (!exec_model_sum_squares(model, exec_model_parameter(model, i), &squares, error))
            return false;
        *sum += squares;
    }
    return true;
}

/* Every element of the model's gradient counts once; the sum is in the order of ranks. */
static bool
global_norm(ExecRank *rank, double *norm, GError **error)
{
    const ExecGroup everyone = exec_rank_everyone(rank);
    ExecTransport *t = exec_rank_host_transport(rank);
    g_autofree double *squares = g_new0(double, (size_t)everyone.n);
    double sum = 0;

    if (!sum_own_squares(rank, &squares[everyone.index], error))
        return false;
    /* A gathering only copies: a double is two elements of four bytes. */
    if (everyone.n > 1 &&
        !t->ops->all_gather(t, &everyone, DTYPE_FP32, squares, 2 * (int64_t)everyone.n, error))
        return false;
    for (int32_t i = 0; i < everyone.n; i++)
        sum += squares[i];
    *norm = sqrt(sum);
    if (isfinite(*norm))
        return true;
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_FAILED,
                "the gradient is not finite (learning rate too high?)");
    return false;
}

static bool
clip(ExecRank *rank, GError **error)
{
    const double limit = (double)rank->shared->o.clip_norm;
    double norm;

    if (limit == 0)
        return true;
    if (!global_norm(rank, &norm, error))
        return false;
    if (norm > limit)
        exec_model_scale_gradients(rank->model, (float)(limit / norm));
    return true;
}

/* --- the step --- */

static void
zero_gradients(ExecRank *rank)
{
    rank->backend->ops->zero(rank->backend, (size_t)rank->model->gradients.n_bytes,
                             rank->model->gradients.data);
}

bool
exec_rank_optimize(ExecRank *rank, GError **error)
{
    const ExecAdamw constants = adamw_at(rank);
    const bool steps = rank->shared->plan->conventions.optimizer_step;
    int64_t begin, end;

    exec_rank_set_doing(rank, EXEC_DOING_OPTIMIZER, 0);
    exec_backend_stamp(rank->backend, &begin);
    if (steps && !clip(rank, error))
        return false;
    if (!steps)
        zero_gradients(rank);
    else if (!exec_model_adamw(rank->model, &constants, EXEC_WEIGHT_DECAY, error))
        return false;
    exec_backend_stamp(rank->backend, &end);
    if (!rank->backend->ops->synchronize(rank->backend, error))
        return false;
    exec_rank_read_op_times(rank);
    if (rank->units != NULL)
        exec_units_tell_step(rank->units);
    exec_rank_add_event(rank, TRACE_STREAM_COMPUTE, TRACE_EVENT_OPTIMIZER, begin, end,
                        (ScheduleOp){0}, -1, 0);
    return !steps || exec_rank_gather_weights(rank, error);
}
