/* Sums of gradients over the ranks that hold copies of a parameter, after the last op of a step;
 * and the parameters' way back to them after the optimizer's. */
#include "executor/run/rank_state.h"
#include "executor/model/units.h"

/* --- events --- */

/* Waits for the last of the group: recorded apart, because that is a bubble and no communication.
 * @there_ns  (out) when all were there. */
static bool
meet(ExecRank *rank, const ExecGroup *group, int64_t *there_ns, GError **error)
{
    const Schedule *schedule = rank->shared->schedule;
    const int64_t last_op = schedule->rank_begin[rank->coordinates.pipeline + 1] - 1;
    const int64_t begin = exec_now_ns();

    if (!rank->transport.ops->barrier(&rank->transport, group, error))
        return false;
    *there_ns = exec_now_ns();
    exec_rank_add_event(rank, TRACE_STREAM_COMPUTE, TRACE_EVENT_WAIT, begin, *there_ns,
                        schedule->ops[last_op], -1, 0);
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

/* --- over copies --- */

/* Unit by unit of the regions [first, end), which have the same copies: gradients are reduced to
 * parts, or parts of weights gathered. */
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
        const ExecUnit *unit = &g_array_index(model->layout.units, ExecUnit, i);
        void *weights = exec_model_kept_weights(model, unit);
        float *gradients = exec_model_kept_gradients(model, unit);
        if ((int)unit->region < first || (int)unit->region >= end || unit->n == 0)
            continue;
        /* Parts only are kept: every op has reduced its own, gathers what it needs. */
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

/* Norms and other dense parameters have the same copies: one collective where nothing is sharded.
 */
static bool
reduce_copies(ExecRank *rank, GError **error)
{
    const ExecModel *model = rank->model;
    const ExecRegion *experts = &model->layout.regions[EXEC_REGION_EXPERTS];
    float *gradients = exec_model_gradients(model);

    if (model->layout.regions[EXEC_REGION_DENSE].sharded[EXEC_CONTENT_OPTIMIZER]
            ? !exchange_units(rank, EXEC_REGION_NORMS, EXEC_REGION_EXPERTS, EXEC_CONTENT_GRADIENTS,
                              error)
            : !reduce(rank, &rank->comm.groups[EXEC_DIM_DENSE], gradients, model->layout.n_dense,
                      error))
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

/* --- of what copies have in common --- */

/* What the tp ranks computed from different rows, or from different heads of copied K and V.  They
 * have the same parts of units. */
static bool
reduce_parts(ExecRank *rank, GError **error)
{
    const ExecModel *model = rank->model;

    for (guint i = 0; i < exec_model_n_parameters(model); i++) {
        const ExecParameter *p = exec_model_parameter(model, i);
        int64_t begin;
        const int64_t n = exec_model_own_elements(model, p, &begin);
        if (n == 0 || (p->share != EXEC_SHARE_TP && p->share != EXEC_SHARE_KV))
            continue;
        exec_comm_all_reduce(&rank->comm, p->share == EXEC_SHARE_TP ? EXEC_DIM_TP : EXEC_DIM_KV,
                             DTYPE_FP32, n, exec_model_own_gradients(model, p, begin));
    }
    return exec_comm_check(&rank->comm, error);
}

/* Over two pipeline ranks: two summands commute, so the copies stay equal, whatever the order
 * inside the rings of the others.  Both have the same part of the unit. */
static bool
reduce_shared(ExecRank *rank, GError **error)
{
    for (guint i = 0; i < rank->shared_parameters->len; i++) {
        const ExecSharedParameter *s =
            &g_array_index(rank->shared_parameters, ExecSharedParameter, i);
        const ExecParameter *p = exec_model_parameter(rank->model, s->parameter);
        int64_t begin_at;
        const int64_t n = exec_model_own_elements(rank->model, p, &begin_at);
        ExecCoordinates other = rank->coordinates;
        other.pipeline = s->other;
        const int32_t peer = exec_rank_at(rank->shared->plan, other);
        const int32_t members[] = {MIN(rank->rank, peer), MAX(rank->rank, peer)};
        const ExecGroup group = {members, 2, rank->rank > peer};
        if (!reduce(rank, &group, exec_model_own_gradients(rank->model, p, begin_at), n, error))
            return false;
    }
    return true;
}

bool
exec_rank_reduce_gradients(ExecRank *rank, GError **error)
{
    exec_rank_set_doing(rank, EXEC_DOING_REDUCE, 0);
    return reduce_copies(rank, error) && reduce_parts(rank, error) && reduce_shared(rank, error);
}

/* --- who has what --- */

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
    if (p->share != EXEC_SHARE_EXPERT && is_whole(&p->shard) && rank->coordinates.tp != 0)
        return false;
    if (p->share == EXEC_SHARE_KV && rank->comm.groups[EXEC_DIM_KV].index != 0)
        return false;
    for (guint i = 0; i < rank->shared_parameters->len; i++) {
        const ExecSharedParameter *shared =
            &g_array_index(rank->shared_parameters, ExecSharedParameter, i);
        if (shared->parameter == parameter && shared->other < rank->coordinates.pipeline)
            return false;
    }
    return true;
}
