#include "executor/comm.h"

ExecPlace
exec_place(const Plan *plan, int32_t rank)
{
    const int32_t tp = (int32_t)plan->degrees.tp, cp = (int32_t)plan->degrees.cp;
    const int32_t dp = (int32_t)plan->degrees.dp;

    return (ExecPlace){
        .pipeline = rank / (tp * cp * dp),
        .dp = rank / (tp * cp) % dp,
        .cp = rank / tp % cp,
        .tp = rank % tp,
    };
}

int32_t
exec_rank_at(const Plan *plan, ExecPlace place)
{
    const int32_t tp = (int32_t)plan->degrees.tp, cp = (int32_t)plan->degrees.cp;
    const int32_t dp = (int32_t)plan->degrees.dp;

    return ((place.pipeline * dp + place.dp) * cp + place.cp) * tp + place.tp;
}

/* @n ranks @stride apart, beginning at @first. */
static void
set_group(ExecComm *comm, ExecDim dim, int32_t rank, int32_t first, int32_t stride, int64_t n)
{
    comm->members[dim] = g_new(int32_t, (size_t)n);
    comm->groups[dim] = (ExecGroup){.ranks = comm->members[dim], .n = (int32_t)n};
    for (int32_t i = 0; i < n; i++) {
        comm->members[dim][i] = first + i * stride;
        if (comm->members[dim][i] == rank)
            comm->groups[dim].index = i;
    }
}

void
exec_comm_init(ExecComm *comm, const ModelArch *arch, const Plan *plan, ExecBackend *backend,
               ExecTransport *transport)
{
    const PlanDegrees *d = &plan->degrees;
    const int32_t rank = transport->rank, tp = (int32_t)d->tp, ep = (int32_t)d->ep;
    const int32_t n_stage_ranks = (int32_t)(d->dp * d->cp * d->tp);
    const int32_t stage = rank / n_stage_ranks * n_stage_ranks;
    const int32_t copies = (int32_t)MAX(1, d->tp / arch->n_kv_heads);
    const ExecPlace place = exec_place(plan, rank);
    const int32_t replica = stage + place.dp * (int32_t)d->cp * tp;

    *comm = (ExecComm){.backend = backend, .transport = transport};
    set_group(comm, EXEC_DIM_TP, rank, rank - place.tp, 1, d->tp);
    set_group(comm, EXEC_DIM_CP, rank, replica + place.tp, tp, d->cp);
    set_group(comm, EXEC_DIM_EP, rank, stage + (rank - stage) / ep * ep, 1, d->ep);
    set_group(comm, EXEC_DIM_DENSE, rank, stage + place.tp, tp, d->dp * d->cp);
    set_group(comm, EXEC_DIM_EXPERT, rank, stage + (rank - stage) % ep, ep, n_stage_ranks / ep);
    set_group(comm, EXEC_DIM_KV, rank, rank - place.tp % copies, 1, copies);
}

void
exec_comm_init_alone(ExecComm *comm, ExecBackend *backend)
{
    *comm = (ExecComm){.backend = backend};
    for (int dim = 0; dim < EXEC_DIM_N; dim++)
        set_group(comm, (ExecDim)dim, 0, 0, 1, 1);
}

void
exec_comm_clear(ExecComm *comm)
{
    for (int dim = 0; dim < EXEC_DIM_N; dim++)
        g_free(comm->members[dim]);
    g_clear_error(&comm->error);
    *comm = (ExecComm){0};
}

void
exec_comm_fail(ExecComm *comm, GError *error)
{
    if (comm->error == NULL)
        comm->error = error;
    else
        g_error_free(error);
}

bool
exec_comm_check(ExecComm *comm, GError **error)
{
    if (comm->error == NULL)
        return true;
    g_propagate_error(error, g_steal_pointer(&comm->error));
    return false;
}

/* Whether there is anything to do.  What was computed is there: at once on the host, and a device's
 * transport waits for its device. */
static bool
begin(const ExecComm *comm, ExecDim dim)
{
    return comm->groups[dim].n > 1 && comm->error == NULL;
}

void
exec_comm_all_reduce(ExecComm *comm, ExecDim dim, Dtype dtype, int64_t n, void *data)
{
    if (begin(comm, dim))
        comm->transport->ops->all_reduce(comm->transport, &comm->groups[dim], dtype, data, n,
                                         &comm->error);
}

void
exec_comm_reduce_scatter(ExecComm *comm, ExecDim dim, Dtype dtype, int64_t n, void *data)
{
    if (begin(comm, dim))
        comm->transport->ops->reduce_scatter(comm->transport, &comm->groups[dim], dtype, data, n,
                                             &comm->error);
}

void
exec_comm_all_gather(ExecComm *comm, ExecDim dim, Dtype dtype, int64_t n, void *data)
{
    if (begin(comm, dim))
        comm->transport->ops->all_gather(comm->transport, &comm->groups[dim], dtype, data, n,
                                         &comm->error);
}

void
exec_comm_all_to_all(ExecComm *comm, ExecDim dim, const ExecExchange *exchange)
{
    if (begin(comm, dim))
        comm->transport->ops->all_to_all(comm->transport, &comm->groups[dim], exchange,
                                         &comm->error);
    else if (comm->error == NULL)
        comm->backend->ops->copy(comm->backend, (size_t)exchange->out_bytes[0], exchange->out,
                                 exchange->in);
}

void
exec_comm_poll(ExecComm *comm)
{
    if (comm->error == NULL && comm->transport != NULL && comm->transport->ops->poll != NULL)
        comm->transport->ops->poll(comm->transport, &comm->error);
}

int64_t
exec_comm_chunk(const ExecComm *comm, ExecDim dim, int64_t n, int64_t *begin_at)
{
    const ExecGroup *group = &comm->groups[dim];

    *begin_at = exec_group_chunk_begin(group, n, group->index);
    return exec_group_chunk_begin(group, n, group->index + 1) - *begin_at;
}
