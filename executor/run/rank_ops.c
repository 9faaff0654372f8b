#include "executor/run/rank_state.h"

void
exec_rank_set_doing(ExecRank *rank, ExecDoing doing, int64_t op)
{
    atomic_store(&rank->record->op, op);
    atomic_store(&rank->record->step, rank->step);
    atomic_store(&rank->record->doing, (int)doing);
    atomic_store(&rank->record->since_ns, exec_now_ns());
}

void
exec_rank_add_event(ExecRank *rank, TraceStream stream, TraceEventKind kind, int64_t start_ns,
                    int64_t end_ns, ScheduleOp op, int32_t peer, int64_t bytes)
{
    const TraceEvent event = {
        .start_ns = start_ns,
        .end_ns = end_ns,
        .op = op,
        .rank = rank->coordinates.pipeline,
        .peer = peer,
        .bytes = bytes,
        .stream = (uint8_t)stream,
        .kind = (uint8_t)kind,
    };

    if (rank->events != NULL)
        g_array_append_val(rank->events, event);
}

int64_t
exec_rank_micro_batch(const ExecRank *rank, ScheduleOp op, const ExecStage *stage)
{
    return op.micro_batch +
           (int64_t)stage->chain * schedule_chain_micro_batches(rank->shared->schedule);
}

/* This op's rows of @rows (tokens or targets); NULL where the rank has none. */
static const int32_t *
rows_of(const ExecRank *rank, const int32_t *rows, ScheduleOp op, const ExecStage *stage)
{
    const int64_t micro_batch = exec_rank_micro_batch(rank, op, stage);

    return rows == NULL ? NULL
                        : rows + rank->micro_batch_at[micro_batch] +
                              rank->slice_at[op.slice] * rank->sequences[micro_batch];
}

/* Between @stage and its neighbour @peer_stage; @receives: towards this rank. */
static ExecMessage
message_of(const ExecRank *rank, ScheduleOp op, const ExecStage *stage, int32_t peer_stage,
           bool receives)
{
    return (ExecMessage){
        .op = op,
        .chain = stage->chain,
        .from_stage = receives ? peer_stage : stage->stage,
        .to_stage = receives ? stage->stage : peer_stage,
        .n_bytes = exec_stage_boundary_bytes(rank->runs[op.chunk], op.micro_batch, op.slice),
    };
}

/*
 * An op's work is between these two.  Its event gets its times when the backend knows them: at once
 * on the host, at the end of the step on a device, which is not waited for in between.
 */
static void
begin_work(ExecRank *rank, ScheduleOp op, const ExecStage *stage)
{
    const Schedule *schedule = rank->shared->schedule;
    const int64_t sequences = rank->sequences[exec_rank_micro_batch(rank, op, stage)];

    exec_backend_stamp(rank->backend, &rank->op_times[2 * rank->n_op_times]);
    /* The first step allocates. */
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

static bool
run_forward(ExecRank *rank, ScheduleOp op, const ExecStage *stage, GError **error)
{
    ExecStageRun *run = rank->runs[op.chunk];
    const ExecMessage in = message_of(rank, op, stage, stage->stage - 1, true);
    const ExecMessage out = message_of(rank, op, stage, stage->stage + 1, false);
    const int64_t at =
        exec_rank_micro_batch(rank, op, stage) * rank->shared->schedule->n_slices + op.slice;
    void *x;

    if (!exec_stage_begin_forward(run, op.micro_batch, op.slice, &x, error) ||
        (!stage->embedding && !exec_rank_receive(rank, &in, x, error)))
        return false;
    begin_work(rank, op, stage);
    const void *y = exec_stage_forward(
        run, op.micro_batch, op.slice, rows_of(rank, rank->tokens, op, stage),
        rows_of(rank, rank->targets, op, stage), stage->head ? rank->device_losses + at : NULL);
    if (!end_work(rank, TRACE_EVENT_FORWARD, op, error))
        return false;
    return stage->head || exec_rank_send(rank, &out, y, error);
}

static bool
run_backward(ExecRank *rank, ScheduleOp op, const ExecStage *stage, bool split, GError **error)
{
    ExecStageRun *run = rank->runs[op.chunk];
    const ExecMessage in = message_of(rank, op, stage, stage->stage + 1, true);
    const ExecMessage out = message_of(rank, op, stage, stage->stage - 1, false);
    const int32_t *tokens = rows_of(rank, rank->tokens, op, stage);
    const void *dx;

    if (!stage->head && !exec_rank_receive(rank, &in, exec_stage_gradient(run), error))
        return false;
    begin_work(rank, op, stage);
    if (!exec_stage_backward(run, op.micro_batch, op.slice, tokens, split, &dx, error))
        return false;
    if (!end_work(rank, (TraceEventKind)op.kind, op, error))
        return false;
    return stage->embedding || exec_rank_send(rank, &out, dx, error);
}

static bool
run_weight(ExecRank *rank, ScheduleOp op, const ExecStage *stage, GError **error)
{
    begin_work(rank, op, stage);
    exec_stage_backward_weight(rank->runs[op.chunk], op.micro_batch, op.slice);
    return end_work(rank, TRACE_EVENT_BACKWARD_WEIGHT, op, error);
}

static const ExecStage *
stage_of_chunk(const ExecRank *rank, int32_t chunk)
{
    for (guint i = 0; i < rank->model->stages->len; i++) {
        const ExecStage *stage = &g_array_index(rank->model->stages, ExecStage, i);
        if (stage->chunk == chunk)
            return stage;
    }
    g_return_val_if_reached(NULL);
}

/* What op @index of the schedule will receive, if anything: its transfer may go on during the op
 * before it. */
static bool
expect_input(ExecRank *rank, int64_t index, GError **error)
{
    const Schedule *schedule = rank->shared->schedule;

    if (index >= schedule->rank_begin[rank->coordinates.pipeline + 1])
        return true;
    const ScheduleOp op = schedule->ops[index];
    const ExecStage *stage = stage_of_chunk(rank, op.chunk);
    const bool forward = op.kind == SCHEDULE_OP_FORWARD;
    if (op.kind == SCHEDULE_OP_BACKWARD_WEIGHT || (forward ? stage->embedding : stage->head))
        return true;
    const ExecMessage in = message_of(rank, op, stage, stage->stage + (forward ? -1 : 1), true);
    return exec_rank_expect(rank, &in, error);
}

bool
exec_rank_run_op(ExecRank *rank, int64_t index, GError **error)
{
    const ExecRunOptions *o = &rank->shared->o;
    const ScheduleOp op = rank->shared->schedule->ops[index];
    const ExecStage *stage = stage_of_chunk(rank, op.chunk);

    exec_rank_set_doing(rank, EXEC_DOING_OP, index);
    if (o->before_op != NULL && !o->before_op(rank->rank, rank->step, op, o->before_op_data, error))
        return false;
    if (!expect_input(rank, index + 1, error))
        return false;
    switch ((ScheduleOpKind)op.kind) {
    case SCHEDULE_OP_FORWARD:
        return run_forward(rank, op, stage, error);
    case SCHEDULE_OP_BACKWARD:
        return run_backward(rank, op, stage, false, error);
    case SCHEDULE_OP_BACKWARD_INPUT:
        return run_backward(rank, op, stage, rank->splits_backward, error);
    case SCHEDULE_OP_BACKWARD_WEIGHT:
        return run_weight(rank, op, stage, error);
    case SCHEDULE_OP_N:
        break;
    }
    g_return_val_if_reached(false);
}
