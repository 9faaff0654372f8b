#include "executor/transport/comm.h"

#include "executor/device/clock.h"
#include "schedule/rank_order.h"

/* A rank of a stage. */
typedef struct {
    PlanCoordinates in;
    int64_t index; /* in its stage */
} StageRank;

static StageRank
stage_rank(const Plan *plan, int32_t rank)
{
    return (StageRank){plan_coordinates_of(&plan->degrees, rank),
                       plan_stage_index(&plan->degrees, rank)};
}

/* Whether two ranks of a stage are in one group of @dim; K/V heads have @copies. */
static bool
share_group(ExecDim dim, const Plan *plan, int32_t copies, const StageRank *a, const StageRank *b)
{
    const int64_t ep = plan->degrees.ep, *x = a->in.at, *y = b->in.at;
    const bool same_tp = x[PLAN_DIM_TP] == y[PLAN_DIM_TP];
    const bool same_cp = x[PLAN_DIM_CP] == y[PLAN_DIM_CP];
    const bool same_replica = x[PLAN_DIM_DP] == y[PLAN_DIM_DP];

    switch (MIN(dim, EXEC_DIM_KV)) {
    case EXEC_DIM_TP:
        return same_replica && same_cp;
    case EXEC_DIM_CP:
        return same_replica && same_tp;
    case EXEC_DIM_EP:
        return a->index / ep == b->index / ep;
    case EXEC_DIM_DENSE:
        return same_tp;
    case EXEC_DIM_EXPERT:
        return a->index % ep == b->index % ep;
    case EXEC_DIM_KV:
        return same_replica && same_cp && x[PLAN_DIM_TP] / copies == y[PLAN_DIM_TP] / copies;
    case EXEC_DIM_N:
        break;
    }
    g_return_val_if_reached(false);
}

/* The ranks of @mine's stage that share a group of @dim with it, in ascending order. */
static void
set_group(ExecComm *comm, ExecDim dim, const Plan *plan, int32_t copies, const StageRank *mine)
{
    GArray *members = g_array_new(FALSE, FALSE, sizeof(int32_t));

    for (int64_t i = 0; i < plan_stage_devices(&plan->degrees); i++) {
        const int32_t rank =
            (int32_t)plan_stage_device(&plan->degrees, mine->in.at[PLAN_DIM_PP], i);
        const StageRank other = stage_rank(plan, rank);
        if (!share_group(dim, plan, copies, mine, &other))
            continue;
        if (i == mine->index)
            comm->groups[dim].index = (int32_t)members->len;
        g_array_append_val(members, rank);
    }
    comm->groups[dim].n = (int32_t)members->len;
    comm->members[dim] = (int32_t *)(void *)g_array_free(members, FALSE);
    comm->groups[dim].ranks = comm->members[dim];
}

void
exec_comm_init(ExecComm *comm, const ModelArch *arch, const Plan *plan, ExecBackend *backend,
               ExecTransport *transport)
{
    const StageRank mine = stage_rank(plan, transport->rank);

    *comm = (ExecComm){.backend = backend, .transport = transport};
    for (int dim = 0; dim < EXEC_DIM_KV; dim++)
        set_group(comm, (ExecDim)dim, plan, 1, &mine);
    for (int32_t kind = 0; kind < model_n_kinds(arch); kind++) {
        const ModelArch layer = model_kind_arch(arch, kind);
        const int64_t copies = MAX(1, plan->degrees.tp / MAX(1, layer.n_kv_heads));
        set_group(comm, (ExecDim)(EXEC_DIM_KV + kind), plan, (int32_t)copies, &mine);
    }
}

void
exec_comm_init_alone(ExecComm *comm, ExecBackend *backend)
{
    *comm = (ExecComm){.backend = backend};
    for (int dim = 0; dim < EXEC_DIM_N; dim++) {
        comm->members[dim] = g_new0(int32_t, 1);
        comm->groups[dim] = (ExecGroup){.ranks = comm->members[dim], .n = 1};
    }
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
exec_comm_exchange(ExecComm *comm, ExecDim dim, const ExecExchange *exchange)
{
    const bool in_turns = comm->turns != NULL && exec_turns_at_work(comm->turns);
    const ExecGroup *group = &comm->groups[dim];

    if (!in_turns || !begin(comm, dim) || comm->transport->ops->begin_exchange == NULL) {
        exec_comm_all_to_all(comm, dim, exchange);
        return;
    }
    const int64_t begin_ns = exec_now_ns();
    const bool begun =
        comm->transport->ops->begin_exchange(comm->transport, group, exchange, &comm->error);
    exec_turns_pass(comm->turns);
    if (begun && comm->error == NULL)
        comm->transport->ops->end_exchange(comm->transport, group, exchange, &comm->error);
    exec_turns_note(comm->turns, begin_ns, exec_now_ns());
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
