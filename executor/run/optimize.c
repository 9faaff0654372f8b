#include "executor/run/optimize.h"

#include <math.h>

#include "executor/device/clock.h"
#include "executor/model/state.h"
#include "executor/run/muon.h"

/* --- sums over ranks --- */

/* Waits for the last rank of the group.  The wait is recorded apart from the collective that
 * follows, because it is a bubble and no communication.  @there_ns  (out) when all were there. */
static bool
meet(ExecRank *rank, const ExecGroup *group, int64_t *there_ns, GError **error)
{
    int64_t end;

    /* A device computes while its host is here already. */
    if (rank->on_device && !rank->backend->ops->synchronize(rank->backend, error))
        return false;
    const int64_t begin = exec_now_ns();
    if (!rank->transport.ops->barrier(&rank->transport, group, error))
        return false;
    *there_ns = exec_now_ns();
    exec_rank_ops(rank, &end);
    exec_rank_add_event(rank, TRACE_STREAM_COMPUTE, TRACE_EVENT_WAIT, begin, *there_ns,
                        rank->shared->schedule->ops[end - 1], -1, 0);
    return true;
}

static void
end_collective(ExecRank *rank, TraceEventKind kind, int64_t begin_ns, int64_t n_bytes)
{
    exec_rank_add_event(rank, TRACE_STREAM_DP, kind, begin_ns, exec_now_ns(), (ScheduleOp){0}, -1,
                        n_bytes);
}

static bool
reduce(ExecRank *rank, const ExecGroup *group, float *data, int64_t n, GError **error)
{
    int64_t begin;

    if (group->n == 1 || n == 0)
        return true;
    if (!meet(rank, group, &begin, error) ||
        !rank->transport.ops->all_reduce(&rank->transport, group, DTYPE_FP32, data, n, error))
        return false;
    end_collective(rank, TRACE_EVENT_DP_REDUCE, begin, n * (int64_t)sizeof *data);
    return true;
}

/* --- over replicas --- */

/* Reduces the gradients of every unit of regions [first, end) to shards, or gathers its weights
 * from shards.  The regions have the same replicas. */
static bool
exchange_units(ExecRank *rank, int first, int end, ExecContent content, GError **error)
{
    const ExecModel *model = rank->model;
    const ExecTransportOps *ops = rank->transport.ops;
    const ExecGroup *group = &rank->comm.groups[exec_region_dim((ExecRegionKind)first)];
    const bool gathers = content == EXEC_CONTENT_WEIGHTS;
    int64_t begin, n = 0;

    if (!meet(rank, group, &begin, error))
        return false;
    for (guint i = 0; i < model->layout.units->len; i++) {
        const ExecUnit *unit = exec_model_unit(model, (int32_t)i);
        void *weights = exec_model_kept_weights(model, unit);
        float *gradients = exec_model_kept_gradients(model, unit);
        if ((int)unit->region < first || (int)unit->region >= end || unit->n == 0)
            continue;
        /* Of a unit that is kept as a shard, every op has reduced its gradients and gathers its
         * weights. */
        if (gathers ? weights == NULL : gradients == NULL)
            continue;
        if (!(gathers ? ops->all_gather(&rank->transport, group, rank->backend->storage, weights,
                                        unit->n, error)
                      : ops->reduce_scatter(&rank->transport, group, DTYPE_FP32, gradients, unit->n,
                                            error)))
            return false;
        n += unit->n;
    }
    if (n > 0)
        end_collective(rank, gathers ? TRACE_EVENT_DP_GATHER : TRACE_EVENT_DP_REDUCE, begin,
                       gathers ? exec_storage_bytes(rank->backend, n) : n * (int64_t)sizeof(float));
    return true;
}

/* Sums gradients over the replicas.  Norms and the other dense parameters have the same ones: one
 * collective does where nothing is sharded. */
static bool
reduce_replicas(ExecRank *rank, GError **error)
{
    const ExecModel *model = rank->model;
    const ExecRegion *experts = &model->layout.regions[EXEC_REGION_EXPERTS];
    float *gradients = exec_model_gradients(model);

    if (model->layout.regions[EXEC_REGION_DENSE].sharded[EXEC_CONTENT_OPTIMIZER]
            ? !exchange_units(rank, EXEC_REGION_NORMS, EXEC_REGION_EXPERTS, EXEC_CONTENT_GRADIENTS,
                              error)
            : !reduce(rank, &rank->comm.groups[EXEC_DIM_DENSE], gradients, experts->begin, error))
        return false;
    if (experts->sharded[EXEC_CONTENT_OPTIMIZER])
        return exchange_units(rank, EXEC_REGION_EXPERTS, EXEC_REGION_N, EXEC_CONTENT_GRADIENTS,
                              error);
    return reduce(rank, &rank->comm.groups[EXEC_DIM_EXPERT],
                  gradients + experts->at[EXEC_CONTENT_GRADIENTS], experts->n, error);
}

bool
exec_rank_gather_weights(ExecRank *rank, GError **error)
{
    const ExecRegion *regions = rank->model->layout.regions;

    return (!regions[EXEC_REGION_DENSE].sharded[EXEC_CONTENT_OPTIMIZER] ||
            exchange_units(rank, EXEC_REGION_NORMS, EXEC_REGION_EXPERTS, EXEC_CONTENT_WEIGHTS,
                           error)) &&
           (!regions[EXEC_REGION_EXPERTS].sharded[EXEC_CONTENT_OPTIMIZER] ||
            exchange_units(rank, EXEC_REGION_EXPERTS, EXEC_REGION_N, EXEC_CONTENT_WEIGHTS, error));
}

/* --- over ranks that share a parameter --- */

/* The ranks with the same K/V heads of a parameter's kind of layers. */
static ExecDim
kv_dim(const ExecParameter *p)
{
    return (ExecDim)(EXEC_DIM_KV + p->kind);
}

/* Sums what the tp ranks have computed from different rows, or from different heads of replicated K
 * and V.  They have the same shards of units. */
static bool
reduce_over_tp(ExecRank *rank, GError **error)
{
    const ExecModel *model = rank->model;

    for (guint i = 0; i < exec_model_n_parameters(model); i++) {
        const ExecParameter *p = exec_model_parameter(model, i);
        int64_t begin;
        const int64_t n = exec_model_own_elements(model, p, &begin);
        if (n == 0 || (p->share != EXEC_SHARE_TP && p->share != EXEC_SHARE_KV))
            continue;
        exec_comm_all_reduce(&rank->comm, p->share == EXEC_SHARE_TP ? EXEC_DIM_TP : kv_dim(p),
                             DTYPE_FP32, n, exec_model_own_gradients(model, p, begin));
    }
    return exec_comm_check(&rank->comm, error);
}

/* Sums over the pipeline ranks that hold a parameter.  Each element is summed up on one of them and
 * copied, so that all sums are equal bit by bit.  All have the same shard of the unit. */
static bool
reduce_shared(ExecRank *rank, GError **error)
{
    for (guint i = 0; i < rank->shared_parameters->len; i++) {
        const ExecSharedParameter *s =
            &g_array_index(rank->shared_parameters, ExecSharedParameter, i);
        const ExecParameter *p = exec_model_parameter(rank->model, s->parameter);
        int64_t begin;
        const int64_t n = exec_model_own_elements(rank->model, p, &begin);
        int32_t members[EXEC_MAX_SHARERS];
        const ExecGroup sharers = exec_rank_sharers(rank, s, members);
        if (!reduce(rank, &sharers, exec_model_own_gradients(rank->model, p, begin), n, error))
            return false;
    }
    return true;
}

bool
exec_rank_reduce_gradients(ExecRank *rank, GError **error)
{
    exec_rank_set_doing(rank, EXEC_DOING_REDUCE, 0);
    return reduce_replicas(rank, error) && reduce_over_tp(rank, error) &&
           reduce_shared(rank, error);
}

/* --- who counts an element --- */

static bool
is_whole(const ExecShard *shard)
{
    return shard->n_rows == shard->rows && exec_shard_cols(shard) == shard->cols;
}

bool
exec_rank_speaks_for(const ExecRank *rank, guint parameter)
{
    const ExecModel *model = rank->model;
    const ExecParameter *p = exec_model_parameter(model, parameter);
    const ExecRegion *region =
        &model->layout.regions[g_array_index(model->layout.units, ExecUnit, p->unit).region];

    if (!region->sharded[EXEC_CONTENT_OPTIMIZER] && region->replica != 0)
        return false;
    if (p->share != EXEC_SHARE_EXPERT && is_whole(&p->shard) && rank->tp != 0)
        return false;
    if (p->share == EXEC_SHARE_KV && rank->comm.groups[kv_dim(p)].index != 0)
        return false;
    for (guint i = 0; i < rank->shared_parameters->len; i++) {
        const ExecSharedParameter *shared =
            &g_array_index(rank->shared_parameters, ExecSharedParameter, i);
        if (shared->parameter == parameter && shared->ranks[0] < rank->pipeline)
            return false;
    }
    return true;
}

/* --- constants of the optimizer --- */

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

/* --- clipping --- */

static bool
counts(guint parameter, void *user_data)
{
    return exec_rank_speaks_for(user_data, parameter);
}

/* Computes how the model's whole gradient is clipped, whose elements are counted once each; ranks
 * are added in order.  Where there are several, *squares becomes the sum of squares. */
static bool
clip(ExecRank *rank, double *squares, GError **error)
{
    const double limit = (double)rank->shared->o.clip_norm;
    const ExecGroup everyone = exec_rank_everyone(rank);
    ExecTransport *t = exec_rank_host_transport(rank);
    ExecBackend *backend = rank->backend;
    ExecModel *model = rank->model;
    g_autofree double *parts = g_new0(double, (size_t)everyone.n);

    backend->ops->zero(backend, sizeof *model->clip, model->clip);
    exec_model_sum_squares(model, counts, rank);
    backend->ops->clip(backend, EXEC_PARTIAL_SUMS, limit, model->clip);
    if (everyone.n == 1)
        return true;
    backend->ops->download(backend, sizeof *parts, model->clip->squares, &parts[everyone.index]);
    /* To gather is to copy: a double travels as two elements of four bytes. */
    if (!backend->ops->synchronize(backend, error) ||
        !t->ops->all_gather(t, &everyone, DTYPE_FP32, parts, 2 * (int64_t)everyone.n, error))
        return false;
    for (int32_t i = 0; i < everyone.n; i++)
        *squares += parts[i];
    backend->ops->upload(backend, sizeof *squares, squares, model->clip->squares);
    backend->ops->clip(backend, 1, limit, model->clip);
    return true;
}

/* --- the step --- */

/* Those that AdamW has left to Muon, if any. */
static bool
step_matrices(ExecRank *rank, const ExecAdamw *constants, GError **error)
{
    ExecBackend *backend = rank->backend;
    float factor = 1;

    if (!plan_optimizer(rank->shared->plan->conventions.optimizer)->orthogonalises)
        return true;
    if (constants->factor != NULL) {
        backend->ops->download(backend, sizeof factor, constants->factor, &factor);
        if (!backend->ops->synchronize(backend, error))
            return false;
    }
    return exec_rank_muon(rank, constants->learning_rate, EXEC_WEIGHT_DECAY, factor, error);
}

bool
exec_rank_optimize(ExecRank *rank, GError **error)
{
    /* GPT-3's [Brown et al. 2005.14165 appendix B]. */
    ExecAdamw constants = {
        .learning_rate = (float)exec_learning_rate(&rank->shared->o, rank->step),
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .epsilon = 1e-8f,
        .weight_decay = EXEC_WEIGHT_DECAY,
        .step = rank->step + 1,
    };
    const bool steps = rank->shared->plan->conventions.optimizer_step;
    const bool clips = steps && rank->shared->o.clip_norm > 0;
    ExecBackend *backend = rank->backend;
    double squares = 0;
    int64_t begin, end;

    exec_rank_set_doing(rank, EXEC_DOING_OPTIMIZER, 0);
    exec_backend_stamp(backend, &begin);
    if (clips && !clip(rank, &squares, error))
        return false;
    if (clips)
        constants.factor = &rank->model->clip->factor;
    if (!steps)
        backend->ops->zero(backend, (size_t)rank->model->gradients.n_bytes,
                           rank->model->gradients.data);
    else if (!exec_model_adamw(rank->model, &constants, error) ||
             !step_matrices(rank, &constants, error))
        return false;
    exec_backend_stamp(backend, &end);
    /* One rank alone has waited for nothing: its sum comes with the end of the step. */
    if (clips && rank->shared->n_ranks == 1)
        backend->ops->download(backend, sizeof squares, rank->model->clip->squares, &squares);
    if (!backend->ops->synchronize(backend, error))
        return false;
    if (!isfinite(squares))
        return EXEC_FAIL(error, EXEC_ERROR_FAILED,
                         "the gradient is not finite (learning rate too high?)");
    exec_rank_read_op_times(rank);
    if (rank->units != NULL)
        exec_units_tell_step(rank->units);
    exec_rank_add_event(rank, TRACE_STREAM_COMPUTE, TRACE_EVENT_OPTIMIZER, begin, end,
                        (ScheduleOp){0}, -1, 0);
    return !steps || exec_rank_gather_weights(rank, error);
}
