#include "executor/rank_state.h"

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
        .rank = rank->pipeline_rank,
        .peer = peer,
        .bytes = bytes,
        .stream = (uint8_t)stream,
        .kind = (uint8_t)kind,
    };

    g_array_append_val(rank->events, event);
}

/* --- messages --- */

/* The tag of what @stage's op on (micro-batch, slice) sends. */
static int64_t
tag_of(const ExecRank *rank, ScheduleOp op, int32_t stage, bool backward)
{
    const Schedule *schedule = rank->shared->schedule;

    return (((int64_t)op.microbatch * schedule_n_stages(schedule) + stage) * schedule->n_slices +
            op.slice) *
               2 +
           backward;
}

static int32_t
process_rank_of(const ExecRank *rank, int32_t stage)
{
    return schedule_rank_of_stage(rank->shared->schedule, stage, 0) *
               (int32_t)rank->shared->plan->degrees.dp +
           rank->replica;
}

/* Receives what @from_stage sent; records the wait and the copy. */
static bool
receive(ExecRank *rank, ScheduleOp op, int32_t from_stage, bool backward, float *to, int64_t n,
        GError **error)
{
    const int32_t peer = schedule_rank_of_stage(rank->shared->schedule, from_stage, 0);
    const int64_t begin = exec_now_ns();

    if (!rank->transport.ops->receive(&rank->transport, process_rank_of(rank, from_stage),
                                      tag_of(rank, op, from_stage, backward), to,
                                      n * (int64_t)sizeof *to, error))
        return false;
    const int64_t end = exec_now_ns(), there = begin + rank->transport.waited_ns;
    if (there > begin)
        exec_rank_add_event(rank, TRACE_STREAM_COMPUTE, TRACE_EVENT_WAIT, begin, there, op, peer,
                            0);
    if (peer != rank->pipeline_rank)
        exec_rank_add_event(rank, TRACE_STREAM_RECEIVE, TRACE_EVENT_RECEIVE, there, end, op, peer,
                            n * (int64_t)sizeof *to);
    return true;
}

static bool
send(ExecRank *rank, ScheduleOp op, int32_t stage, int32_t to_stage, bool backward,
     const float *data, int64_t n, GError **error)
{
    const int32_t peer = schedule_rank_of_stage(rank->shared->schedule, to_stage, 0);
    const int64_t begin = exec_now_ns();

    if (!rank->transport.ops->send(&rank->transport, process_rank_of(rank, to_stage),
                                   tag_of(rank, op, stage, backward), data,
                                   n * (int64_t)sizeof *data, error))
        return false;
    if (peer != rank->pipeline_rank)
        exec_rank_add_event(rank, TRACE_STREAM_SEND, TRACE_EVENT_SEND, begin, exec_now_ns(), op,
                            peer, n * (int64_t)sizeof *data);
    return true;
}

/* This op's rows of @rows (tokens or targets); NULL where the rank has none. */
static const int32_t *
rows_of(const ExecRank *rank, const int32_t *rows, ScheduleOp op)
{
    return rows == NULL ? NULL
                        : rows + rank->microbatch_at[op.microbatch] +
                              rank->slice_at[op.slice] * rank->sequences[op.microbatch];
}

static bool
run_forward(ExecRank *rank, ScheduleOp op, const ExecStage *stage, GError **error)
{
    ExecStageRun *run = rank->runs[op.chunk];
    const int64_t n = exec_stage_boundary_floats(run, op.microbatch, op.slice);
    const int64_t at = op.microbatch * rank->shared->schedule->n_slices + op.slice;
    float *x;

    if (!exec_stage_begin_forward(run, op.microbatch, op.slice, &x, error) ||
        (!stage->embedding && !receive(rank, op, stage->stage - 1, false, x, n, error)))
        return false;
    const int64_t begin = exec_now_ns();
    const float *y = exec_stage_forward(
        run, op.microbatch, op.slice, rows_of(rank, rank->tokens, op),
        rows_of(rank, rank->targets, op), stage->head ? rank->device_losses + at : NULL);
    if (!rank->backend->ops->synchronize(rank->backend, error))
        return false;
    exec_rank_add_event(rank, TRACE_STREAM_COMPUTE, TRACE_EVENT_FORWARD, begin, exec_now_ns(), op,
                        -1, 0);
    return stage->head || send(rank, op, stage->stage, stage->stage + 1, false, y, n, error);
}

static bool
run_backward(ExecRank *rank, ScheduleOp op, const ExecStage *stage, bool with_weights,
             GError **error)
{
    ExecStageRun *run = rank->runs[op.chunk];
    const int64_t n = exec_stage_boundary_floats(run, op.microbatch, op.slice);
    const int32_t *tokens = rows_of(rank, rank->tokens, op);
    const float *dx;

    if (!stage->head &&
        !receive(rank, op, stage->stage + 1, true, exec_stage_gradient(run), n, error))
        return false;
    const int64_t begin = exec_now_ns();
    if (!exec_stage_backward(run, op.microbatch, op.slice, tokens, &dx, error))
        return false;
    if (with_weights)
        exec_stage_backward_weight(run, op.microbatch, op.slice, tokens);
    if (!rank->backend->ops->synchronize(rank->backend, error))
        return false;
    exec_rank_add_event(rank, TRACE_STREAM_COMPUTE, (TraceEventKind)op.kind, begin, exec_now_ns(),
                        op, -1, 0);
    return stage->embedding || send(rank, op, stage->stage, stage->stage - 1, true, dx, n, error);
}

static bool
run_weight(ExecRank *rank, ScheduleOp op, GError **error)
{
    const int64_t begin = exec_now_ns();

    exec_stage_backward_weight(rank->runs[op.chunk], op.microbatch, op.slice,
                               rows_of(rank, rank->tokens, op));
    if (!rank->backend->ops->synchronize(rank->backend, error))
        return false;
    exec_rank_add_event(rank, TRACE_STREAM_COMPUTE, TRACE_EVENT_BACKWARD_WEIGHT, begin,
                        exec_now_ns(), op, -1, 0);
    return true;
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

bool
exec_rank_run_op(ExecRank *rank, int64_t index, GError **error)
{
    const ExecRunOptions *o = &rank->shared->o;
    const ScheduleOp op = rank->shared->schedule->ops[index];
    const ExecStage *stage = stage_of_chunk(rank, op.chunk);

    exec_rank_set_doing(rank, EXEC_DOING_OP, index);
    if (o->before_op != NULL && !o->before_op(rank->rank, rank->step, op, o->before_op_data, error))
        return false;
    switch ((ScheduleOpKind)op.kind) {
    case SCHEDULE_OP_FORWARD:
        return run_forward(rank, op, stage, error);
    case SCHEDULE_OP_BACKWARD:
        return run_backward(rank, op, stage, rank->splits_backward, error);
    case SCHEDULE_OP_BACKWARD_INPUT:
        return run_backward(rank, op, stage, false, error);
    case SCHEDULE_OP_BACKWARD_WEIGHT:
        return run_weight(rank, op, error);
    case SCHEDULE_OP_N:
        break;
    }
    g_return_val_if_reached(false);
}
