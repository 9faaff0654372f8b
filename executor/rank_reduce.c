/* Sums of gradients over the ranks that hold copies of a parameter: after the last op of a step. */
#include "executor/rank_state.h"

/* One collective; recorded apart from waiting for the last of the group, which is a bubble and no
 * communication. */
static bool
reduce(ExecRank *rank, const ExecGroup *group, float *data, int64_t n, GError **error)
{
    const Schedule *schedule = rank->shared->schedule;
    const int64_t last_op = schedule->rank_begin[rank->place.pipeline + 1] - 1;
    const int64_t begin = exec_now_ns();

    if (group->n == 1 || n == 0)
        return true;
    if (!rank->transport.ops->barrier(&rank->transport, group, error))
        return false;
    const int64_t there = exec_now_ns();
    exec_rank_add_event(rank, TRACE_STREAM_COMPUTE, TRACE_EVENT_WAIT, begin, there,
                        schedule->ops[last_op], -1, 0);
    if (!rank->transport.ops->all_reduce(&rank->transport, group, DTYPE_FP32, data, n, error))
        return false;
    exec_rank_add_event(rank, TRACE_STREAM_DP, TRACE_EVENT_DP_REDUCE, there, exec_now_ns(),
                        (ScheduleOp){0}, -1, n * (int64_t)sizeof *data);
    return true;
}

/* What the tp ranks computed from different rows, or from different heads of copied K and V. */
static bool
reduce_parts(ExecRank *rank, GError **error)
{
    const ExecModel *model = rank->model;

    for (guint i = 0; i < model->parameters->len; i++) {
        const ExecParameter *p = &g_array_index(model->parameters, ExecParameter, i);
        float *gradients = exec_model_gradients(model) + p->offset;
        if (p->share == EXEC_SHARE_TP)
            exec_comm_all_reduce(&rank->comm, EXEC_DIM_TP, DTYPE_FP32, p->n, gradients);
        else if (p->share == EXEC_SHARE_KV)
            exec_comm_all_reduce(&rank->comm, EXEC_DIM_KV, DTYPE_FP32, p->n, gradients);
    }
    return exec_comm_check(&rank->comm, error);
}

/* Over two pipeline ranks: two summands commute, so the copies stay equal, whatever the order
 * inside the rings of the others. */
static bool
reduce_shared(ExecRank *rank, GError **error)
{
    for (guint i = 0; i < rank->shared_parameters->len; i++) {
        const ExecSharedParameter *s =
            &g_array_index(rank->shared_parameters, ExecSharedParameter, i);
        const ExecParameter *p =
            &g_array_index(rank->model->parameters, ExecParameter, s->parameter);
        ExecPlace other = rank->place;
        other.pipeline = s->other;
        const int32_t peer = exec_rank_at(rank->shared->plan, other);
        const int32_t members[] = {MIN(rank->rank, peer), MAX(rank->rank, peer)};
        const ExecGroup group = {members, 2, rank->rank > peer};
        if (!reduce(rank, &group, exec_model_gradients(rank->model) + p->offset, p->n, error))
            return false;
    }
    return true;
}

bool
exec_rank_reduce_gradients(ExecRank *rank, GError **error)
{
    const ExecModel *model = rank->model;
    float *gradients = exec_model_gradients(model);

    exec_rank_set_doing(rank, EXEC_DOING_REDUCE, 0);
    return reduce_parts(rank, error) &&
           reduce(rank, &rank->comm.groups[EXEC_DIM_DENSE], gradients, model->n_dense, error) &&
           reduce(rank, &rank->comm.groups[EXEC_DIM_EXPERT], gradients + model->n_dense,
                  model->n - model->n_dense, error) &&
           reduce_shared(rank, error);
}
