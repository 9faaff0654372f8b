#include "executor/rank.h"

#include <math.h>

#include "executor/stage.h"

/* A thread's own things. */
typedef struct {
    ExecShared *shared;
    ExecRankRecord *record;
    int32_t rank, pipeline_rank, replica; /* rank = pipeline_rank * dp + replica */
    int64_t step;
    ExecBackend *backend; /* (owned) */
    ExecPool *pool;       /* (owned) */
    ExecModel *model;     /* (owned) */
    ExecStageRun **runs;  /* (owned) by chunk */
    ExecStageScratch scratch;
    ExecTransport transport;
    int64_t *sequences;     /* (owned) of each micro-batch */
    int64_t *microbatch_at; /* (owned) first row of tokens of each micro-batch */
    int64_t *slice_at;      /* (owned) first token of each slice */
    /* (owned by the backend, nullable) [micro-batch][token, sequence] */
    int32_t *tokens, *targets;
    double *losses; /* (owned) [micro-batch][slice] of this step */
    GArray *events; /* (borrowed) of this step */
} Rank;

static void
set_doing(Rank *rank, ExecDoing doing, int64_t op)
{
    atomic_store(&rank->record->op, op);
    atomic_store(&rank->record->step, rank->step);
    atomic_store(&rank->record->doing, (int)doing);
    atomic_store(&rank->record->since_ns, exec_now_ns());
}

static void
add_event(Rank *rank, TraceStream stream, TraceEventKind kind, int64_t start_ns, int64_t end_ns,
          ScheduleOp op, int32_t peer, int64_t bytes)
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

/* --- preparations --- */

static bool
open_rank(Rank *rank, GError **error)
{
    ExecShared *shared = rank->shared;
    const Plan *plan = shared->plan;

    rank->backend = exec_backend_open(shared->device, 0, error);
    if (rank->backend == NULL)
        return false;
    rank->pool = exec_pool_new(rank->backend);
    rank->model =
        exec_model_new(shared->arch, plan, rank->pipeline_rank, shared->o.seed,
                       plan->conventions.optimizer_step, rank->backend, rank->pool, error);
    return rank->model != NULL;
}

/* Micro-batches, slices, and where their rows lie. */
static void
index_rows(Rank *rank, int64_t *max_sequences, int64_t *max_tokens)
{
    const Plan *plan = rank->shared->plan;
    int64_t row = 0, token = 0;

    rank->sequences = g_new0(int64_t, (size_t)plan->n_microbatches);
    rank->microbatch_at = g_new0(int64_t, (size_t)plan->n_microbatches + 1);
    rank->slice_at = g_new0(int64_t, (size_t)plan->slices->len);
    *max_sequences = *max_tokens = 0;
    for (int64_t m = 0; m < plan->n_microbatches; m++) {
        rank->sequences[m] = plan_microbatch_sequences(plan, m);
        rank->microbatch_at[m] = row;
        row += rank->sequences[m] * plan->seq_len;
        *max_sequences = MAX(*max_sequences, rank->sequences[m]);
    }
    rank->microbatch_at[plan->n_microbatches] = row;
    for (guint s = 0; s < plan->slices->len; s++) {
        rank->slice_at[s] = token;
        token += g_array_index(plan->slices, int64_t, s);
        *max_tokens = MAX(*max_tokens, g_array_index(plan->slices, int64_t, s));
    }
}

static bool
splits_backward(const Schedule *schedule)
{
    for (int64_t i = 0; i < schedule_n_ops(schedule); i++)
        if (schedule->ops[i].kind == SCHEDULE_OP_BACKWARD_WEIGHT)
            return true;
    return false;
}

static void
make_runs(Rank *rank)
{
    const Plan *plan = rank->shared->plan;

    rank->runs = g_new0(ExecStageRun *, rank->model->stages->len);
    for (guint i = 0; i < rank->model->stages->len; i++) {
        const ExecStage *stage = &g_array_index(rank->model->stages, ExecStage, i);
        g_assert(stage->chunk >= 0 && (guint)stage->chunk < rank->model->stages->len);
        rank->runs[stage->chunk] = exec_stage_run_new(&(ExecStageOptions){
            .widths = &rank->model->widths,
            .stage = stage,
            .backend = rank->backend,
            .pool = rank->pool,
            .scratch = &rank->scratch,
            .n_microbatches = (int32_t)plan->n_microbatches,
            .n_slices = (int32_t)plan->slices->len,
            .sequences = rank->sequences,
            .slices = &g_array_index(plan->slices, int64_t, 0),
            .loss_factor = 1.0f / (float)(plan->global_batch * plan->seq_len),
            .splits_backward = splits_backward(rank->shared->schedule),
        });
    }
}

static bool
holds_edge(const Rank *rank)
{
    for (guint i = 0; i < rank->model->stages->len; i++) {
        const ExecStage *stage = &g_array_index(rank->model->stages, ExecStage, i);
        if (stage->embedding || stage->head)
            return true;
    }
    return false;
}

static bool
prepare(Rank *rank, GError **error)
{
    ExecShared *shared = rank->shared;
    const Plan *plan = shared->plan;
    int64_t max_sequences, max_tokens;

    if (!open_rank(rank, error))
        return false;
    index_rows(rank, &max_sequences, &max_tokens);
    if (!exec_stage_scratch_init(&rank->scratch, &rank->model->widths, max_sequences, max_tokens,
                                 rank->pool, error))
        return false;
    make_runs(rank);
    rank->losses = g_new0(double, (size_t)plan->n_microbatches * plan->slices->len);
    if (holds_edge(rank)) {
        const size_t n_bytes = (size_t)rank->microbatch_at[plan->n_microbatches] * sizeof(int32_t);
        rank->tokens = rank->backend->ops->alloc(rank->backend, n_bytes, "tokens", error);
        if (rank->tokens == NULL)
            return false;
        rank->targets = rank->backend->ops->alloc(rank->backend, n_bytes, "targets", error);
        if (rank->targets == NULL)
            return false;
        exec_pool_count(rank->pool, TRACE_MEMORY_BUFFERS, 2 * (int64_t)n_bytes);
    }
    return true;
}

static void
rank_clear(Rank *rank)
{
    for (guint i = 0; rank->runs != NULL && i < rank->model->stages->len; i++)
        exec_stage_run_free(rank->runs[i]);
    g_free(rank->runs);
    if (rank->backend != NULL) {
        rank->backend->ops->release(rank->backend, rank->tokens);
        rank->backend->ops->release(rank->backend, rank->targets);
    }
    if (rank->pool != NULL)
        exec_stage_scratch_clear(&rank->scratch, rank->pool);
    exec_model_free(rank->model);
    exec_pool_free(rank->pool);
    exec_backend_close(rank->backend);
    g_free(rank->sequences);
    g_free(rank->microbatch_at);
    g_free(rank->slice_at);
    g_free(rank->losses);
}

/* Reads this replica's sequences of the step: replica r has the r-th share of the global batch. */
static bool
load_tokens(Rank *rank, GError **error)
{
    const Plan *plan = rank->shared->plan;
    const int64_t seq_len = plan->seq_len;
    const int64_t n_rows = rank->microbatch_at[plan->n_microbatches];
    int64_t index = rank->replica * (n_rows / seq_len);

    if (rank->tokens == NULL)
        return true;
    g_autofree int32_t *one = g_new(int32_t, (size_t)seq_len + 1);
    g_autofree int32_t *rows = g_new(int32_t, (size_t)n_rows);
    g_autofree int32_t *next = g_new(int32_t, (size_t)n_rows);
    for (int64_t m = 0; m < plan->n_microbatches; m++) {
        const int64_t n = rank->sequences[m];
        for (int64_t b = 0; b < n; b++, index++) {
            if (!exec_data_sequence(rank->shared->data, rank->step, index, one, error))
                return false;
            for (int64_t t = 0; t < seq_len; t++) {
                rows[rank->microbatch_at[m] + t * n + b] = one[t];
                next[rank->microbatch_at[m] + t * n + b] = one[t + 1];
            }
        }
    }
    rank->backend->ops->upload(rank->backend, (size_t)n_rows * sizeof *rows, rows, rank->tokens);
    rank->backend->ops->upload(rank->backend, (size_t)n_rows * sizeof *next, next, rank->targets);
    return true;
}

/* --- ops --- */

/* The tag of what @stage's op on (micro-batch, slice) sends. */
static int64_t
tag_of(const Rank *rank, ScheduleOp op, int32_t stage, bool backward)
{
    const Schedule *schedule = rank->shared->schedule;

    return (((int64_t)op.microbatch * schedule_n_stages(schedule) + stage) * schedule->n_slices +
            op.slice) *
               2 +
           backward;
}

static int32_t
process_rank_of(const Rank *rank, int32_t stage)
{
    return schedule_rank_of_stage(rank->shared->schedule, stage, 0) *
               (int32_t)rank->shared->plan->degrees.dp +
           rank->replica;
}

/* Receives what @from_stage sent; records the wait and the copy. */
static bool
receive(Rank *rank, ScheduleOp op, int32_t from_stage, bool backward, float *to, int64_t n,
        GError **error)
{
    const int32_t peer = schedule_rank_of_stage(rank->shared->schedule, from_stage, 0);
    const int64_t begin = exec_now_ns();

    if (!rank->transport.ops->receive(&rank->transport, process_rank_of(rank, from_stage),
                                      tag_of(rank, op, from_stage, backward), to, n, error))
        return false;
    const int64_t end = exec_now_ns(), there = begin + rank->transport.waited_ns;
    if (there > begin)
        add_event(rank, TRACE_STREAM_COMPUTE, TRACE_EVENT_WAIT, begin, there, op, peer, 0);
    if (peer != rank->pipeline_rank)
        add_event(rank, TRACE_STREAM_RECEIVE, TRACE_EVENT_RECEIVE, there, end, op, peer,
                  n * (int64_t)sizeof *to);
    return true;
}

static bool
send(Rank *rank, ScheduleOp op, int32_t stage, int32_t to_stage, bool backward, const float *data,
     int64_t n, GError **error)
{
    const int32_t peer = schedule_rank_of_stage(rank->shared->schedule, to_stage, 0);
    const int64_t begin = exec_now_ns();

    if (!rank->transport.ops->send(&rank->transport, process_rank_of(rank, to_stage),
                                   tag_of(rank, op, stage, backward), data, n, error))
        return false;
    if (peer != rank->pipeline_rank)
        add_event(rank, TRACE_STREAM_SEND, TRACE_EVENT_SEND, begin, exec_now_ns(), op, peer,
                  n * (int64_t)sizeof *data);
    return true;
}

/* This op's rows of @rows (tokens or targets); NULL where the rank has none. */
static const int32_t *
rows_of(const Rank *rank, const int32_t *rows, ScheduleOp op)
{
    return rows == NULL ? NULL
                        : rows + rank->microbatch_at[op.microbatch] +
                              rank->slice_at[op.slice] * rank->sequences[op.microbatch];
}

static bool
run_forward(Rank *rank, ScheduleOp op, const ExecStage *stage, GError **error)
{
    ExecStageRun *run = rank->runs[op.chunk];
    const int64_t n = exec_stage_boundary_floats(run, op.microbatch, op.slice);
    float *x;
    double loss;

    if (!exec_stage_begin_forward(run, op.microbatch, op.slice, &x, error) ||
        (!stage->embedding && !receive(rank, op, stage->stage - 1, false, x, n, error)))
        return false;
    const int64_t begin = exec_now_ns();
    const float *y =
        exec_stage_forward(run, op.microbatch, op.slice, rows_of(rank, rank->tokens, op),
                           rows_of(rank, rank->targets, op), &loss);
    if (!rank->backend->ops->synchronize(rank->backend, error))
        return false;
    add_event(rank, TRACE_STREAM_COMPUTE, TRACE_EVENT_FORWARD, begin, exec_now_ns(), op, -1, 0);
    if (stage->head)
        rank->losses[op.microbatch * rank->shared->schedule->n_slices + op.slice] = loss;
    return stage->head || send(rank, op, stage->stage, stage->stage + 1, false, y, n, error);
}

static bool
run_backward(Rank *rank, ScheduleOp op, const ExecStage *stage, bool with_weights, GError **error)
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
    add_event(rank, TRACE_STREAM_COMPUTE, (TraceEventKind)op.kind, begin, exec_now_ns(), op, -1, 0);
    return stage->embedding || send(rank, op, stage->stage, stage->stage - 1, true, dx, n, error);
}

static bool
run_weight(Rank *rank, ScheduleOp op, GError **error)
{
    const int64_t begin = exec_now_ns();

    exec_stage_backward_weight(rank->runs[op.chunk], op.microbatch, op.slice,
                               rows_of(rank, rank->tokens, op));
    if (!rank->backend->ops->synchronize(rank->backend, error))
        return false;
    add_event(rank, TRACE_STREAM_COMPUTE, TRACE_EVENT_BACKWARD_WEIGHT, begin, exec_now_ns(), op, -1,
              0);
    return true;
}

static const ExecStage *
stage_of_chunk(const Rank *rank, int32_t chunk)
{
    for (guint i = 0; i < rank->model->stages->len; i++) {
        const ExecStage *stage = &g_array_index(rank->model->stages, ExecStage, i);
        if (stage->chunk == chunk)
            return stage;
    }
    g_return_val_if_reached(NULL);
}

static bool
run_op(Rank *rank, int64_t index, bool split, GError **error)
{
    const ExecRunOptions *o = &rank->shared->o;
    const ScheduleOp op = rank->shared->schedule->ops[index];
    const ExecStage *stage = stage_of_chunk(rank, op.chunk);

    set_doing(rank, EXEC_DOING_OP, index);
    if (o->before_op != NULL && !o->before_op(rank->rank, rank->step, op, o->before_op_data, error))
        return false;
    switch ((ScheduleOpKind)op.kind) {
    case SCHEDULE_OP_FORWARD:
        return run_forward(rank, op, stage, error);
    case SCHEDULE_OP_BACKWARD:
        return run_backward(rank, op, stage, split, error);
    case SCHEDULE_OP_BACKWARD_INPUT:
        return run_backward(rank, op, stage, false, error);
    case SCHEDULE_OP_BACKWARD_WEIGHT:
        return run_weight(rank, op, error);
    case SCHEDULE_OP_N:
        break;
    }
    g_return_val_if_reached(false);
}

/* --- after the last op --- */

/* One collective over @n members @stride apart, beginning at @first; recorded apart from waiting
 * for the last of them, which is a bubble and no communication. */
static bool
reduce(Rank *rank, int32_t first, int32_t stride, int32_t n_members, float *data, int64_t n,
       GError **error)
{
    g_autofree int32_t *members = g_new(int32_t, (size_t)n_members);
    ExecGroup group = {.ranks = members, .n = n_members};
    const Schedule *schedule = rank->shared->schedule;
    const int64_t last_op = schedule->rank_begin[rank->pipeline_rank + 1] - 1;
    int64_t begin = exec_now_ns();

    for (int32_t i = 0; i < n_members; i++) {
        members[i] = first + i * stride;
        if (members[i] == rank->rank)
            group.index = i;
    }
    if (!rank->transport.ops->barrier(&rank->transport, &group, error))
        return false;
    const int64_t there = exec_now_ns();
    add_event(rank, TRACE_STREAM_COMPUTE, TRACE_EVENT_WAIT, begin, there, schedule->ops[last_op],
              -1, 0);
    begin = there;
    if (!rank->transport.ops->all_reduce(&rank->transport, &group, data, n, error))
        return false;
    add_event(rank, TRACE_STREAM_DP, TRACE_EVENT_DP_REDUCE, begin, exec_now_ns(), (ScheduleOp){0},
              -1, n * (int64_t)sizeof *data);
    return true;
}

/* Over dp first, then the tied table over its two holders: two summands commute, so the copies stay
 * equal, whatever the order inside the rings. */
static bool
reduce_gradients(Rank *rank, GError **error)
{
    const Plan *plan = rank->shared->plan;
    const int32_t dp = (int32_t)plan->degrees.dp;
    const ExecParameter *table =
        exec_model_shared_table(rank->model, rank->shared->arch, plan, rank->pipeline_rank);
    int32_t first = 0, last = 0;

    set_doing(rank, EXEC_DOING_REDUCE, 0);
    if (dp > 1 && !reduce(rank, rank->pipeline_rank * dp, 1, dp, rank->model->gradients.data,
                          rank->model->n, error))
        return false;
    for (guint i = 0; i < plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);
        first = stage->embedding ? stage->rank : first;
        last = stage->head ? stage->rank : last;
    }
    return table == NULL ||
           reduce(rank, MIN(first, last) * dp + rank->replica, ABS(last - first) * dp, 2,
                  rank->model->gradients.data + table->offset, table->n, error);
}

/* GPT-3's constants [Brown et al. 2005.14165 appendix B]; ten steps of warm-up. */
static ExecAdamw
adamw_at(const Rank *rank)
{
    const float warm = MIN(1.0f, (float)(rank->step + 1) / 10.0f);

    return (ExecAdamw){
        .learning_rate = rank->shared->o.learning_rate * warm,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .epsilon = 1e-8f,
        .step = rank->step + 1,
    };
}

static bool
optimize(Rank *rank, GError **error)
{
    const ExecAdamw constants = adamw_at(rank);
    const int64_t begin = exec_now_ns();

    set_doing(rank, EXEC_DOING_OPTIMIZER, 0);
    if (rank->shared->plan->conventions.optimizer_step)
        exec_model_adamw(rank->model, rank->backend, &constants, EXEC_WEIGHT_DECAY);
    else
        rank->backend->ops->zero(rank->backend, rank->model->n, rank->model->gradients.data);
    if (!rank->backend->ops->synchronize(rank->backend, error))
        return false;
    add_event(rank, TRACE_STREAM_COMPUTE, TRACE_EVENT_OPTIMIZER, begin, exec_now_ns(),
              (ScheduleOp){0}, -1, 0);
    return true;
}

static bool
keep_gradients(Rank *rank, GError **error)
{
    ExecRankRecord *record = rank->record;

    record->gradients = g_try_new(float, (size_t)rank->model->n);
    if (record->gradients == NULL) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MEMORY,
                    "no memory for a copy of the gradients to verify");
        return false;
    }
    rank->backend->ops->download(rank->backend, (size_t)rank->model->n * sizeof(float),
                                 rank->model->gradients.data, record->gradients);
    record->parameters = g_array_ref(rank->model->parameters);
    return rank->backend->ops->synchronize(rank->backend, error);
}

/* --- steps --- */

/* The arrays that this step's events go to. */
static void
begin_record(Rank *rank)
{
    const size_t at = (size_t)(rank->step % EXEC_TRACED_STEPS);
    ExecRankRecord *record = rank->record;

    if (record->events[at] == NULL) {
        record->events[at] = g_array_new(false, false, sizeof(TraceEvent));
        record->memory[at] = g_array_new(false, false, sizeof(TraceMemory));
    }
    g_array_set_size(record->events[at], 0);
    g_array_set_size(record->memory[at], 0);
    rank->events = record->events[at];
}

static bool
barrier(Rank *rank, GError **error)
{
    g_autofree int32_t *members = g_new(int32_t, (size_t)rank->shared->n_ranks);

    set_doing(rank, EXEC_DOING_BARRIER, 0);
    for (int32_t i = 0; i < rank->shared->n_ranks; i++)
        members[i] = i;
    return rank->transport.ops->barrier(
        &rank->transport,
        &(ExecGroup){.ranks = members, .n = rank->shared->n_ranks, .index = rank->rank}, error);
}

/* The sum of this rank's losses, in the order of micro-batches and slices, not of ops. */
static double
sum_losses(const Rank *rank)
{
    const int64_t n = rank->shared->plan->n_microbatches * rank->shared->schedule->n_slices;
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += rank->losses[i];
    return sum;
}

static void
report_step(Rank *rank, int64_t begin_ns)
{
    ExecShared *shared = rank->shared;
    const int64_t at = rank->step * shared->n_ranks + rank->rank;

    g_mutex_lock(&shared->mutex);
    shared->losses[at] = sum_losses(rank);
    shared->begin_ns[at] = begin_ns;
    shared->end_ns[at] = exec_now_ns();
    shared->n_steps_done++;
    g_cond_broadcast(&shared->changed);
    g_mutex_unlock(&shared->mutex);
}

static bool
run_step(Rank *rank, GError **error)
{
    const Schedule *schedule = rank->shared->schedule;
    const bool split = splits_backward(schedule);

    begin_record(rank);
    if (!load_tokens(rank, error) || !barrier(rank, error))
        return false;
    const int64_t begin = exec_now_ns();
    exec_pool_record(rank->pool, rank->record->memory[rank->step % EXEC_TRACED_STEPS],
                     rank->pipeline_rank, begin);
    for (int64_t i = schedule->rank_begin[rank->pipeline_rank];
         i < schedule->rank_begin[rank->pipeline_rank + 1]; i++)
        if (!run_op(rank, i, split, error))
            return false;
    if (!reduce_gradients(rank, error))
        return false;
    const double loss = sum_losses(rank);
    if (!isfinite(loss)) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_FAILED,
                    "the loss is not finite (learning rate too high?)");
        return false;
    }
    if (rank->shared->o.verify && rank->step == 0 && !keep_gradients(rank, error))
        return false;
    if (!optimize(rank, error))
        return false;
    report_step(rank, begin);
    exec_pool_record(rank->pool, NULL, 0, 0);
    return true;
}

static bool
run_rank(Rank *rank, GError **error)
{
    if (!prepare(rank, error))
        return false;
    for (rank->step = 0; rank->step < rank->shared->o.n_steps; rank->step++)
        if (!run_step(rank, error))
            return false;
    return true;
}

gpointer
exec_rank_main(gpointer user_data)
{
    g_autofree ExecRankStart *start = user_data;
    ExecShared *shared = start->shared;
    Rank rank = {
        .shared = shared,
        .record = &shared->records[start->rank],
        .rank = start->rank,
        .pipeline_rank = start->rank / (int32_t)shared->plan->degrees.dp,
        .replica = start->rank % (int32_t)shared->plan->degrees.dp,
        .transport = exec_local_transport(shared->hub, start->rank),
    };
    GError *error = NULL;

    set_doing(&rank, EXEC_DOING_START, 0);
    if (!run_rank(&rank, &error))
        exec_shared_fail(shared, rank.rank, error);
    else
        set_doing(&rank, EXEC_DOING_NOTHING, 0);
    if (rank.pool != NULL)
        rank.record->peak_memory_bytes = exec_pool_peak_bytes(rank.pool) +
                                         exec_backend_workspace_bytes(rank.backend) +
                                         exec_local_hub_buffer_bytes(shared->hub, rank.rank);
    rank_clear(&rank);
    g_mutex_lock(&shared->mutex);
    shared->n_threads--;
    g_cond_broadcast(&shared->changed);
    g_mutex_unlock(&shared->mutex);
    exec_shared_unref(shared);
    return NULL;
}
