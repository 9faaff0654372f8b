#include "executor/run/rank.h"

#include "executor/device/clock.h"

/* --- messages --- */

/* The micro-batch of the data that @op works on: the second chain has the second half of them. */
static int64_t
micro_batch_of(const ExecRank *rank, ScheduleOp op, const ExecStage *stage)
{
    return op.micro_batch +
           (int64_t)stage->chain * schedule_chain_micro_batches(rank->shared->schedule);
}

int64_t
exec_rank_free_tag(const ExecRank *rank)
{
    const Schedule *schedule = rank->shared->schedule;

    return rank->shared->plan->n_micro_batches * schedule_n_stages(schedule) * schedule->n_slices *
           2;
}

/* How the tp ranks share the work of a message. */
typedef enum {
    SHARE_NOT,     /* each sends its own copy or shard */
    SHARE_SCATTER, /* each sends a part, and the parts are gathered on arrival */
    SHARE_FIRST,   /* the first alone sends, and the message is broadcast on arrival */
} Share;

static Share
share_of(const ExecRank *rank)
{
    const PlanConventions *c = &rank->shared->plan->conventions;

    if (rank->model->widths.tp == 1 || rank->model->widths.sequence_parallel)
        return SHARE_NOT;
    return c->broadcast_p2p ? SHARE_FIRST : c->scatter_gather_p2p ? SHARE_SCATTER : SHARE_NOT;
}

/* Returns: the bytes of a message that this rank itself sends and receives, from byte @begin on. */
static int64_t
own_part(const ExecRank *rank, int64_t n_bytes, int64_t *begin)
{
    const int64_t e = dtype_bytes(rank->backend->storage);
    int64_t n;

    *begin = 0;
    switch (share_of(rank)) {
    case SHARE_FIRST:
        return rank->tp == 0 ? n_bytes : 0;
    case SHARE_SCATTER:
        n = exec_comm_chunk(&rank->comm, EXEC_DIM_TP, n_bytes / e, begin);
        *begin *= e;
        return n * e;
    case SHARE_NOT:
        break;
    }
    return n_bytes;
}

/* Completes @to from what has arrived at the tp ranks. */
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

/* A stage's tensor on its way between this rank and the one that has the next stage of the chain,
 * or the one before. */
typedef struct {
    int32_t peer, process; /* the other's pipeline rank and process rank */
    int64_t tag, n_bytes;
    int64_t at, own_bytes; /* the part that this rank itself receives or sends */
} Message;

/* @step  the other's stage: 1, the next one; -1, the one before */
static Message
message_of(const ExecRank *rank, ScheduleOp op, const ExecStage *stage, int32_t step, bool receives)
{
    const Schedule *schedule = rank->shared->schedule;
    const int32_t from = receives ? stage->stage + step : stage->stage;
    const bool is_gradient = receives == (step > 0);
    Message m = {
        .peer = schedule_rank_of_stage(schedule, stage->stage + step, stage->chain),
        .n_bytes = (step > 0 ? exec_stage_output_bytes : exec_stage_input_bytes)(
            rank->runs[op.chunk], op.micro_batch, op.slice),
    };

    m.process = exec_rank_peer(rank, m.peer);
    m.tag = ((micro_batch_of(rank, op, stage) * schedule_n_stages(schedule) + from) *
                 schedule->n_slices +
             op.slice) *
                2 +
            is_gradient;
    m.own_bytes = own_part(rank, m.n_bytes, &m.at);
    return m;
}

/* Lets the transfer of what will be received begin; once for each message. */
static bool
expect(ExecRank *rank, ScheduleOp op, const ExecStage *stage, int32_t step, GError **error)
{
    const Message m = message_of(rank, op, stage, step, true);

    return rank->transport.ops->expect == NULL || m.own_bytes == 0 || m.peer == rank->pipeline ||
           rank->transport.ops->expect(&rank->transport, m.process, m.tag, NULL, m.own_bytes,
                                       error);
}

/* Receives a message, and records the wait for it apart from the transfer. */
static bool
receive(ExecRank *rank, ScheduleOp op, const ExecStage *stage, int32_t step, void *to,
        GError **error)
{
    const Message m = message_of(rank, op, stage, step, true);
    const int64_t begin = exec_now_ns();

    rank->transport.waited_ns = 0;
    if (m.own_bytes > 0 && !rank->transport.ops->receive(&rank->transport, m.process, m.tag,
                                                         (char *)to + m.at, m.own_bytes, error))
        return false;
    /* The transport may measure its waits by a coarser clock. */
    const int64_t there = MIN(begin + rank->transport.waited_ns, exec_now_ns());
    if (!spread(rank, to, m.n_bytes, error))
        return false;
    /* A device waits between its ops, and the host does not wait for it. */
    if (there > begin && !rank->on_device)
        exec_rank_add_event(rank, TRACE_STREAM_COMPUTE, TRACE_EVENT_WAIT, begin, there, op, m.peer,
                            0);
    if (m.peer != rank->pipeline)
        exec_rank_add_event(rank, TRACE_STREAM_RECEIVE, TRACE_EVENT_RECEIVE, there, exec_now_ns(),
                            op, m.peer, m.own_bytes);
    return true;
}

static bool
send(ExecRank *rank, ScheduleOp op, const ExecStage *stage, int32_t step, const void *data,
     GError **error)
{
    const Message m = message_of(rank, op, stage, step, false);
    const int64_t begin = exec_now_ns();

    if (m.own_bytes > 0 &&
        !rank->transport.ops->send(&rank->transport, m.process, m.tag, (const char *)data + m.at,
                                   m.own_bytes, error))
        return false;
    if (m.peer != rank->pipeline)
        exec_rank_add_event(rank, TRACE_STREAM_SEND, TRACE_EVENT_SEND, begin, exec_now_ns(), op,
                            m.peer, m.own_bytes);
    return true;
}

/* --- meeting --- */

/* The pipeline ranks that hold a parameter together (optimize.c: reduce_shared). */
static bool
meet_sharers(ExecRank *rank, GError **error)
{
    ExecTransport *t = &rank->transport;

    for (guint i = 0; i < rank->shared_parameters->len; i++) {
        int32_t members[EXEC_MAX_SHARERS];
        const ExecGroup sharers = exec_rank_sharers(
            rank, &g_array_index(rank->shared_parameters, ExecSharedParameter, i), members);
        if (!t->ops->meet(t, &sharers, EXEC_MEET_COLLECTIVES, error))
            return false;
    }
    return true;
}

/* For messages from pipeline rank @from to @to. */
static bool
meet_neighbour(ExecRank *rank, int32_t from, int32_t to, GError **error)
{
    const int32_t own = rank->pipeline;
    ExecTransport *t = &rank->transport;
    const int32_t members[] = {exec_rank_peer(rank, from), exec_rank_peer(rank, to)};
    const ExecGroup pair = {.ranks = members, .n = 2, .index = own == to};

    return from == to || (own != from && own != to) ||
           t->ops->meet(t, &pair, EXEC_MEET_MESSAGES, error);
}

/* A group meets once more for what is gathered in the second queue. */
static bool
meet_group(ExecRank *rank, ExecDim dim, GError **error)
{
    ExecTransport *t = &rank->transport;
    const ExecGroup *group = &rank->comm.groups[dim];
    const bool aside =
        exec_rank_gathers_aside(rank) && (dim == EXEC_DIM_DENSE || dim == EXEC_DIM_EXPERT);

    return group->n <= 1 || (t->ops->meet(t, group, EXEC_MEET_COLLECTIVES, error) &&
                             (!aside || t->ops->meet(t, group, EXEC_MEET_ASIDE, error)));
}

/* All ranks go through the same list in the same order, so that no circle of ranks waits for each
 * other. */
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

/* --- ops --- */

/* Where the op's tokens are; NULL where the rank has none. */
static const int32_t *
tokens_of(const ExecRank *rank, ScheduleOp op, const ExecStage *stage)
{
    const int64_t micro_batch = micro_batch_of(rank, op, stage);

    return rank->tokens == NULL ? NULL
                                : rank->tokens + rank->micro_batch_at[micro_batch] +
                                      rank->slice_at[op.slice] * rank->sequences[micro_batch];
}

/* The computation of an op is between these two.  Its event gets its times when the backend knows
 * them: at once on the host, at the end of the step on a device, which is not waited for between
 * ops. */
static void
begin_work(ExecRank *rank, ScheduleOp op, const ExecStage *stage)
{
    const Schedule *schedule = rank->shared->schedule;
    const int64_t sequences = rank->sequences[micro_batch_of(rank, op, stage)];

    exec_backend_stamp(rank->backend, &rank->op_times[2 * rank->n_op_times]);
    /* The first step is not captured, because it allocates. */
    if (rank->graphs && rank->step > rank->shared->first_step)
        rank->backend->ops->begin_graph(
            rank->backend,
            ((sequences * SCHEDULE_OP_N + op.kind) * (int64_t)rank->model->stages->len + op.chunk) *
                    schedule->n_slices +
                op.slice);
}

static bool
end_work(ExecRank *rank, TraceEventKind kind, ScheduleOp op, GError **error)
{
    if (rank->graphs && rank->step > rank->shared->first_step)
        rank->backend->ops->end_graph(rank->backend);
    exec_backend_stamp(rank->backend, &rank->op_times[2 * rank->n_op_times + 1]);
    rank->op_events[rank->n_op_times++] = rank->events->len;
    exec_rank_add_event(rank, TRACE_STREAM_COMPUTE, kind, 0, 0, op, -1, 0);
    return exec_comm_check(&rank->comm, error);
}

void
exec_rank_read_op_times(ExecRank *rank)
{
    for (int64_t i = 0; i < rank->n_op_times; i++) {
        TraceEvent *event = &g_array_index(rank->events, TraceEvent, rank->op_events[i]);
        event->start_ns = rank->op_times[2 * i];
        event->end_ns = rank->op_times[2 * i + 1];
    }
    rank->n_op_times = 0;
}

/* Takes what a forward or a backward needs before it computes, and receives its message. */
static bool
prepare_op(ExecRank *rank, ScheduleOp op, const ExecStage *stage, GError **error)
{
    ExecStageRun *run = rank->runs[op.chunk];
    void *x;

    if (op.kind != SCHEDULE_OP_FORWARD)
        return stage->head || receive(rank, op, stage, 1, exec_stage_gradient(run), error);
    return exec_stage_begin_forward(run, op.micro_batch, op.slice, &x, error) &&
           (stage->embedding || receive(rank, op, stage, -1, x, error));
}

/* @out  (out, borrowed) what it sends */
static bool
compute_op(ExecRank *rank, ScheduleOp op, const ExecStage *stage, const void **out, GError **error)
{
    ExecStageRun *run = rank->runs[op.chunk];
    const int32_t *tokens = tokens_of(rank, op, stage);
    const int64_t at =
        micro_batch_of(rank, op, stage) * rank->shared->schedule->n_slices + op.slice;
    const bool splits = op.kind == SCHEDULE_OP_BACKWARD_INPUT && rank->splits_backward;

    if (op.kind != SCHEDULE_OP_FORWARD)
        return exec_stage_backward(run, op.micro_batch, op.slice, tokens, splits, out, error);
    *out = exec_stage_forward(
        run, op.micro_batch, op.slice, tokens,
        stage->head ? rank->device_losses + at * model_n_losses(rank->shared->arch) : NULL);
    return true;
}

static bool
send_op(ExecRank *rank, ScheduleOp op, const ExecStage *stage, const void *out, GError **error)
{
    if (op.kind == SCHEDULE_OP_FORWARD)
        return stage->head || send(rank, op, stage, 1, out, error);
    return stage->embedding || send(rank, op, stage, -1, out, error);
}

/* A forward or a backward. */
static bool
run_pass(ExecRank *rank, ScheduleOp op, const ExecStage *stage, GError **error)
{
    const void *out;

    if (!prepare_op(rank, op, stage, error))
        return false;
    begin_work(rank, op, stage);
    return compute_op(rank, op, stage, &out, error) &&
           end_work(rank, (TraceEventKind)op.kind, op, error) &&
           send_op(rank, op, stage, out, error);
}

static bool
run_weight(ExecRank *rank, ScheduleOp op, const ExecStage *stage, GError **error)
{
    begin_work(rank, op, stage);
    exec_stage_backward_weight(rank->runs[op.chunk], op.micro_batch, op.slice);
    return end_work(rank, TRACE_EVENT_BACKWARD_WEIGHT, op, error);
}

/* Lets the transfer begin of what op @index of the schedule will receive, if anything. */
static bool
expect_input(ExecRank *rank, int64_t index, GError **error)
{
    int64_t end;

    exec_rank_ops(rank, &end);
    if (index >= end)
        return true;
    const ScheduleOp op = rank->shared->schedule->ops[index];
    const ExecStage *stage = exec_model_stage_of_chunk(rank->model, op.chunk);
    const bool forward = op.kind == SCHEDULE_OP_FORWARD;
    return op.kind == SCHEDULE_OP_BACKWARD_WEIGHT || (forward ? stage->embedding : stage->head) ||
           expect(rank, op, stage, forward ? -1 : 1, error);
}

/* Says that op @index is at work, and asks who wants to be asked before. */
static bool
announce(ExecRank *rank, int64_t index, GError **error)
{
    const ExecRunOptions *o = &rank->shared->o;

    exec_rank_set_doing(rank, EXEC_DOING_OP, index);
    return o->before_op == NULL ||
           o->before_op(rank->rank, rank->step, rank->shared->schedule->ops[index],
                        o->before_op_data, error);
}

static bool
run_op(ExecRank *rank, int64_t index, GError **error)
{
    const ScheduleOp op = rank->shared->schedule->ops[index];
    const ExecStage *stage = exec_model_stage_of_chunk(rank->model, op.chunk);

    if (!announce(rank, index, error) || !expect_input(rank, index + 1, error))
        return false;
    return op.kind == SCHEDULE_OP_BACKWARD_WEIGHT ? run_weight(rank, op, stage, error)
                                                  : run_pass(rank, op, stage, error);
}

/* --- pairs --- */

/* One of the two ops of an overlapped pair. */
typedef struct {
    ExecRank *rank;
    ScheduleOp op;
    const ExecStage *stage;
    const void *out;
    GError *error; /* (owned, nullable) */
} PairOp;

/* ExecTurnFunc.  Where it fails, the other op must not wait for ranks that wait for this one. */
static void
compute_in_turn(void *user_data)
{
    PairOp *one = user_data;

    if (!compute_op(one->rank, one->op, one->stage, &one->out, &one->error))
        exec_comm_fail(&one->rank->comm, g_error_copy(one->error));
}

/* The ops share the time of the pair in proportion to their turns, one after the other, as in a predicted
 * trace; the exchanges are where they were, but for what is before the end of the one before. */
static void
note_pair(ExecRank *rank, const PairOp pair[2], int64_t begin_ns, int64_t end_ns,
          const int64_t busy_ns[2])
{
    const GArray *exchanges = exec_turns_exchanges(rank->turns);
    const double all = (double)MAX(1, busy_ns[0] + busy_ns[1]);
    const int64_t middle_ns =
        begin_ns + (int64_t)((double)(end_ns - begin_ns) * ((double)busy_ns[0] / all));
    int64_t last_ns = begin_ns;

    for (int i = 0; i < 2; i++) {
        rank->op_times[2 * rank->n_op_times] = i == 0 ? begin_ns : middle_ns;
        rank->op_times[2 * rank->n_op_times + 1] = i == 0 ? middle_ns : end_ns;
        rank->op_events[rank->n_op_times++] = rank->events->len;
        exec_rank_add_event(rank, TRACE_STREAM_COMPUTE, (TraceEventKind)pair[i].op.kind, 0, 0,
                            pair[i].op, -1, 0);
    }
    for (guint i = 0; i < exchanges->len; i++) {
        const ExecTurnExchange *x = &g_array_index(exchanges, ExecTurnExchange, i);
        exec_rank_add_event(rank, TRACE_STREAM_EP, TRACE_EVENT_EXCHANGE, MAX(x->begin_ns, last_ns),
                            x->end_ns, pair[x->op].op, -1, 0);
        last_ns = x->end_ns;
    }
}

/* Ops @index and @index + 1.  Both messages come before, and leave after. */
static bool
run_pair(ExecRank *rank, int64_t index, GError **error)
{
    g_autoptr(GError) failed = NULL;
    PairOp pair[2];
    int64_t busy_ns[2];

    for (int i = 0; i < 2; i++) {
        const ScheduleOp op = rank->shared->schedule->ops[index + i];
        pair[i] = (PairOp){rank, op, exec_model_stage_of_chunk(rank->model, op.chunk), NULL, NULL};
        if (!announce(rank, index + i, error) || !expect_input(rank, index + i + 1, error) ||
            !prepare_op(rank, op, pair[i].stage, error))
            return false;
    }
    const int64_t begin_ns = exec_now_ns();
    if (!exec_turns_run(rank->turns, compute_in_turn, &pair[0], compute_in_turn, &pair[1], busy_ns,
                        error))
        return false;
    note_pair(rank, pair, begin_ns, exec_now_ns(), busy_ns);
    for (int i = 0; i < 2; i++) {
        if (pair[i].error != NULL && failed == NULL) {
            exec_rank_set_doing(rank, EXEC_DOING_OP, index + i);
            failed = g_steal_pointer(&pair[i].error);
        }
        g_clear_error(&pair[i].error);
    }
    if (failed != NULL) {
        g_clear_error(&rank->comm.error);
        g_propagate_error(error, g_steal_pointer(&failed));
        return false;
    }
    if (!exec_comm_check(&rank->comm, error))
        return false;
    for (int i = 0; i < 2; i++)
        if (!send_op(rank, pair[i].op, pair[i].stage, pair[i].out, error))
            return false;
    return true;
}

bool
exec_rank_run_next(ExecRank *rank, int64_t *index, GError **error)
{
    const GArray *pairs = rank->shared->schedule->overlap_pairs;
    const int64_t i = *index;

    while (rank->turns != NULL && rank->next_pair < pairs->len &&
           g_array_index(pairs, int64_t, rank->next_pair) < i)
        rank->next_pair++;
    const bool is_pair = rank->turns != NULL && rank->next_pair < pairs->len &&
                         g_array_index(pairs, int64_t, rank->next_pair) == i;
    *index += is_pair ? 2 : 1;
    return is_pair ? run_pair(rank, i, error) : run_op(rank, i, error);
}
