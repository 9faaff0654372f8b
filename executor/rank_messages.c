#include "executor/rank_state.h"

/* The tag of what @message's sender sent. */
static int64_t
tag_of(const ExecRank *rank, const ExecMessage *m)
{
    const Schedule *schedule = rank->shared->schedule;
    const int64_t microbatch =
        m->op.microbatch + (int64_t)m->chain * schedule_chain_microbatches(schedule);

    return ((microbatch * schedule_n_stages(schedule) + m->from_stage) * schedule->n_slices +
            m->op.slice) *
               2 +
           (m->to_stage < m->from_stage);
}

/* The process rank of @stage with this rank's place in dp, cp and tp. */
static int32_t
process_rank_of(const ExecRank *rank, const ExecMessage *m, int32_t stage)
{
    ExecPlace place = rank->place;

    place.pipeline = schedule_rank_of_stage(rank->shared->schedule, stage, m->chain);
    return exec_rank_at(rank->shared->plan, place);
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
        return rank->place.tp == 0 ? n_bytes : 0;
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

    return rank->transport.ops->expect == NULL || n_bytes == 0 || peer == rank->place.pipeline ||
           rank->transport.ops->expect(&rank->transport, process_rank_of(rank, m, m->from_stage),
                                       tag_of(rank, m), n_bytes, error);
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
    if (there > begin && rank->device_transport == NULL)
        exec_rank_add_event(rank, TRACE_STREAM_COMPUTE, TRACE_EVENT_WAIT, begin, there, m->op, peer,
                            0);
    if (peer != rank->place.pipeline)
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
    if (peer != rank->place.pipeline)
        exec_rank_add_event(rank, TRACE_STREAM_SEND, TRACE_EVENT_SEND, begin, exec_now_ns(), m->op,
                            peer, n_bytes);
    return true;
}
