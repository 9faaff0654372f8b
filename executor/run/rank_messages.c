#include "executor/run/rank_state.h"

/* The tag of what @message's sender sent. */
static int64_t
tag_of(const ExecRank *rank, const ExecMessage *m)
{
    const Schedule *schedule = rank->shared->schedule;
    const int64_t micro_batch =
        m->op.micro_batch + (int64_t)m->chain * schedule_chain_micro_batches(schedule);

    return ((micro_batch * schedule_n_stages(schedule) + m->from_stage) * schedule->n_slices +
            m->op.slice) *
               2 +
           (m->to_stage < m->from_stage);
}

int64_t
exec_rank_free_tag(const ExecRank *rank)
{
    const Schedule *schedule = rank->shared->schedule;

    return rank->shared->plan->n_micro_batches * schedule_n_stages(schedule) * schedule->n_slices *
           2;
}

/* The process rank of @stage with this rank's place in dp, cp and tp. */
static int32_t
process_rank_of(const ExecRank *rank, const ExecMessage *m, int32_t stage)
{
    ExecCoordinates coordinates = rank->coordinates;

    coordinates.pipeline = schedule_rank_of_stage(rank->shared->schedule, stage, m->chain);
    return exec_rank_at(rank->shared->plan, coordinates);
}

/* How the tp ranks share a message. */
typedef enum {
    SHARE_NOT,     /* one copy or shard each */
    SHARE_SCATTER, /* a part each, gathered on arrival */
    SHARE_FIRST,   /* the first alone, broadcast on arrival */
} Share;

static Share
share_of(const ExecRank *rank)
{
    const PlanConventions *c = &rank->shared->plan->conventions;

    if (rank->model->widths.tp == 1 || rank->model->widths.sequence_parallel)
        return SHARE_NOT;
    return c->broadcast_p2p ? SHARE_FIRST : c->scatter_gather_p2p ? SHARE_SCATTER : SHARE_NOT;
}

/* The part of a message that this rank itself sends and receives; 0 bytes: none. */
static int64_t
own_part(const ExecRank *rank, int64_t n_bytes, int64_t *begin)
{
    const int64_t e = dtype_bytes(rank->backend->storage);
    int64_t n;

    *begin = 0;
    switch (share_of(rank)) {
    case SHARE_FIRST:
        return rank->coordinates.tp == 0 ? n_bytes : 0;
    case SHARE_SCATTER:
        n = exec_comm_chunk(&rank->comm, EXEC_DIM_TP, n_bytes / e, begin);
        *begin *= e;
        return n * e;
    case SHARE_NOT:
        break;
    }
    return n_bytes;
}

/* After this rank's part of @to has arrived. */
static bool
spread(ExecRank *rank, void *to, int64_t n_bytes, GError **error)
{
    const ExecTransportOps *ops = rank->transport.ops;
    const ExecGroup *tp = &rank->comm.groups[EXEC_DIM_TP];

    switch (share_of(rank)) {
    case SHARE_FIRST:
        return ops->broadcast(&rank->transport, tp, 0, to, n_bytes, error);
    case SHARE_SCATTER:
        return ops->all_gather(&rank->transport, tp, rank->backend->storage, to,
                               n_bytes / dtype_bytes(rank->backend->storage), error);
    case SHARE_NOT:
        break;
    }
    return true;
}

bool
exec_rank_expect(ExecRank *rank, const ExecMessage *m, GError **error)
{
    const int32_t peer = schedule_rank_of_stage(rank->shared->schedule, m->from_stage, m->chain);
    int64_t at;
    const int64_t n_bytes = own_part(rank, m->n_bytes, &at);

    return rank->transport.ops->expect == NULL || n_bytes == 0 ||
           peer == rank->coordinates.pipeline ||
           rank->transport.ops->expect(&rank->transport, process_rank_of(rank, m, m->from_stage),
                                       tag_of(rank, m), NULL, n_bytes, error);
}

bool
exec_rank_receive(ExecRank *rank, const ExecMessage *m, void *to, GError **error)
{
    const int32_t peer = schedule_rank_of_stage(rank->shared->schedule, m->from_stage, m->chain);
    const int64_t begin = exec_now_ns();
    int64_t at;
    const int64_t n_bytes = own_part(rank, m->n_bytes, &at);

    rank->transport.waited_ns = 0;
    if (n_bytes > 0 &&
        !rank->transport.ops->receive(&rank->transport, process_rank_of(rank, m, m->from_stage),
                                      tag_of(rank, m), (char *)to + at, n_bytes, error))
        return false;
    const int64_t there = begin + rank->transport.waited_ns;
    if (!spread(rank, to, m->n_bytes, error))
        return false;
    /* A device waits on its own, without the host: between its ops. */
    if (there > begin && !rank->on_device)
        exec_rank_add_event(rank, TRACE_STREAM_COMPUTE, TRACE_EVENT_WAIT, begin, there, m->op, peer,
                            0);
    if (peer != rank->coordinates.pipeline)
        exec_rank_add_event(rank, TRACE_STREAM_RECEIVE, TRACE_EVENT_RECEIVE, there, exec_now_ns(),
                            m->op, peer, n_bytes);
    return true;
}

bool
exec_rank_send(ExecRank *rank, const ExecMessage *m, const void *data, GError **error)
{
    const int32_t peer = schedule_rank_of_stage(rank->shared->schedule, m->to_stage, m->chain);
    const int64_t begin = exec_now_ns();
    int64_t at;
    const int64_t n_bytes = own_part(rank, m->n_bytes, &at);

    if (n_bytes > 0 &&
        !rank->transport.ops->send(&rank->transport, process_rank_of(rank, m, m->to_stage),
                                   tag_of(rank, m), (const char *)data + at, n_bytes, error))
        return false;
    if (peer != rank->coordinates.pipeline)
        exec_rank_add_event(rank, TRACE_STREAM_SEND, TRACE_EVENT_SEND, begin, exec_now_ns(), m->op,
                            peer, n_bytes);
    return true;
}

/* --- meeting --- */

/* The ranks that share a parameter with another stage (rank_reduce.c). */
static bool
meet_sharers(ExecRank *rank, GError **error)
{
    ExecTransport *t = &rank->transport;

    for (guint i = 0; i < rank->shared_parameters->len; i++) {
        ExecCoordinates other = rank->coordinates;
        other.pipeline = g_array_index(rank->shared_parameters, ExecSharedParameter, i).other;
        const int32_t peer = exec_rank_at(rank->shared->plan, other);
        const int32_t members[] = {MIN(rank->rank, peer), MAX(rank->rank, peer)};
        const ExecGroup pair = {.ranks = members, .n = 2, .index = rank->rank > peer};
        if (!t->ops->meet(t, &pair, EXEC_MEET_COLLECTIVES, error))
            return false;
    }
    return true;
}

/* For messages from one pipeline rank to another. */
static bool
meet_neighbour(ExecRank *rank, int32_t from, int32_t to, GError **error)
{
    const Plan *plan = rank->shared->plan;
    ExecTransport *t = &rank->transport;
    ExecCoordinates first = rank->coordinates, second = rank->coordinates;

    first.pipeline = from;
    second.pipeline = to;
    const int32_t members[] = {exec_rank_at(plan, first), exec_rank_at(plan, second)};
    const ExecGroup pair = {.ranks = members, .n = 2, .index = rank->coordinates.pipeline == to};
    if (from == to || (rank->coordinates.pipeline != from && rank->coordinates.pipeline != to))
        return true;
    return t->ops->meet(t, &pair, EXEC_MEET_MESSAGES, error);
}

/* Also for what is gathered ahead, if that is in a queue of its own. */
static bool
meet_group(ExecRank *rank, ExecDim dim, GError **error)
{
    ExecTransport *t = &rank->transport;
    const ExecGroup *group = &rank->comm.groups[dim];
    const bool aside =
        exec_rank_gathers_aside(rank) && (dim == EXEC_DIM_DENSE || dim == EXEC_DIM_EXPERT);

    return group->n == 1 || (t->ops->meet(t, group, EXEC_MEET_COLLECTIVES, error) &&
                             (!aside || t->ops->meet(t, group, EXEC_MEET_ASIDE, error)));
}

/* All ranks go through the same list, so that nobody waits in a circle. */
bool
exec_rank_meet(ExecRank *rank, GError **error)
{
    const Schedule *schedule = rank->shared->schedule;
    ExecTransport *t = &rank->transport;

    if (t->ops->meet == NULL)
        return true;
    for (int dim = 0; dim < EXEC_DIM_N; dim++)
        if (!meet_group(rank, (ExecDim)dim, error))
            return false;
    if (!meet_sharers(rank, error))
        return false;
    const int32_t n_chains = schedule_placement_n_chains(schedule->placement);
    for (int32_t chain = 0; chain < n_chains; chain++)
        for (int32_t stage = 0; stage + 1 < schedule_n_stages(schedule); stage++) {
            const int32_t a = schedule_rank_of_stage(schedule, stage, chain);
            const int32_t b = schedule_rank_of_stage(schedule, stage + 1, chain);
            if (!meet_neighbour(rank, a, b, error) || !meet_neighbour(rank, b, a, error))
                return false;
        }
    return true;
}
