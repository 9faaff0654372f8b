#include "executor/run/rank.h"

#include "base/units.h"
#include "executor/device/plugin.h"
#include "executor/watch/member.h"
#include "profiles/workload/zero3.h"

/* --- backend, transport and model --- */

/* Ranks that are threads share device 0; of the processes on a machine each takes the next device.
 */
static bool
choose_device(ExecRank *rank, ExecBackendOptions *options, GError **error)
{
    const ExecShared *shared = rank->shared;
    int32_t local_rank = 0;

    if (!exec_shared_is_distributed(shared)) {
        options->share = rank->rank;
        options->n_shares = shared->n_ranks;
        return true;
    }
    const int32_t n_devices = exec_backend_n_devices(shared->device, error);
    if (n_devices < 0 || !exec_gather_local_rank(rank, &local_rank, error))
        return false;
    options->device = local_rank % n_devices;
    return true;
}

/* Makes `transport` one for tensors in the memory of a device, which wraps that of host memory. */
static bool
wrap_transport(ExecRank *rank, GError **error)
{
    ExecShared *shared = rank->shared;

    if (rank->backend->ops->stamp == NULL)
        return true;
    rank->host_transport = rank->transport;
    rank->on_device = true;
    if (!shared->nccl) {
        rank->device_transport = exec_device_transport_new(&rank->host_transport, rank->backend,
                                                           !exec_shared_is_distributed(shared));
        rank->transport = *rank->device_transport;
        return true;
    }
    g_autofree char *machine = exec_watch_machine();
    const ExecNcclOptions options = {
        .machine = machine,
        .timeout_ns = units_ns_from_s(shared->o.timeout_s),
    };
    rank->nccl = exec_plugin_symbol(exec_device_kind(shared->device)->plugin, EXEC_NCCL_PLUGIN,
                                    "transport nccl", error);
    if (rank->nccl == NULL)
        return false;
    if (!rank->nccl->open(&rank->host_transport, rank->backend, &options, &rank->transport, error))
        return false;
    shared->device_endpoint = rank->transport;
    atomic_store(&shared->has_device_endpoint, true);
    return true;
}

/* Notes what computes, and how it communicates, for reports. */
static void
tell_device(ExecRank *rank)
{
    ExecShared *shared = rank->shared;
    g_autofree char *backend = exec_backend_describe(rank->backend);
    g_autofree char *nccl = rank->nccl != NULL ? rank->nccl->describe() : NULL;

    g_mutex_lock(&shared->mutex);
    shared->backend = g_strjoin(", ", backend, nccl, NULL);
    shared->attention =
        g_strdup(exec_backend_attention_kernel(rank->backend, shared->arch->head_dim));
    g_mutex_unlock(&shared->mutex);
}

bool
exec_rank_gathers_aside(const ExecRank *rank)
{
    const Plan *plan = rank->shared->plan;

    return plan->zero_stage == 3 && rank->transport.queues &&
           rank->backend->ops->begin_aside != NULL &&
           (plan->offload_parameters || workload_plan_prefetch(rank->shared->arch, plan) > 0);
}

static bool
open_rank(ExecRank *rank, GError **error)
{
    ExecShared *shared = rank->shared;
    const Plan *plan = shared->plan;

    ExecBackendOptions backend_options = {
        .storage = plan->dtype,
        .predicted_bytes =
            shared->predicted_bytes == NULL ? 0 : shared->predicted_bytes[rank->pipeline],
        .n_threads = shared->o.n_threads,
        .attention = shared->wanted_attention,
        .deterministic = shared->o.deterministic,
    };
    if (!choose_device(rank, &backend_options, error))
        return false;
    rank->backend = exec_backend_open_with(shared->device, &backend_options, error);
    if (rank->backend == NULL || !wrap_transport(rank, error))
        return false;
    if (rank->rank == 0)
        tell_device(rank);
    rank->pool = exec_pool_new(rank->backend);
    exec_comm_init(&rank->comm, shared->arch, plan, rank->backend, &rank->transport);
    const ExecOffloadOptions offload = {
        .to = plan->offload,
        .rank = rank->rank,
        .dir = shared->offload_dir,
        .device = shared->device,
        .n_fetches = exec_units_n_fetches(workload_plan_prefetch(shared->arch, plan)),
        .uploads_to = exec_rank_gathers_aside(rank) ? rank->backend : NULL,
    };
    const ExecModelOptions options = {
        .arch = shared->arch,
        .plan = plan,
        .pipeline_rank = rank->pipeline,
        .tp_index = rank->tp,
        .ep_index = rank->comm.groups[EXEC_DIM_EP].index,
        .dense_index = rank->comm.groups[EXEC_DIM_DENSE].index,
        .expert_index = rank->comm.groups[EXEC_DIM_EXPERT].index,
        .seed = shared->o.seed,
        .init_deviation = shared->o.init_deviation,
        .balance_experts = shared->o.balance_experts,
        .optimizer = plan->conventions.optimizer_step,
        .offload = plan->offload == PLAN_OFFLOAD_NONE ? NULL : &offload,
    };
    rank->shared_parameters = exec_layout_shared_parameters(&options);
    if (!exec_rank_meet(rank, error))
        return false;
    rank->model = exec_model_new(&options, rank->backend, rank->pool, error);
    return rank->model != NULL;
}

/* --- rows, stages and units --- */

/* Notes the sequences of micro-batches, and where the rows of micro-batches and slices begin. */
static void
index_rows(ExecRank *rank, int64_t *max_sequences)
{
    const Plan *plan = rank->shared->plan;
    int64_t row = 0, token = 0;

    rank->sequences = g_new0(int64_t, (size_t)plan->n_micro_batches);
    rank->micro_batch_at = g_new0(int64_t, (size_t)plan->n_micro_batches + 1);
    rank->slice_at = g_new0(int64_t, (size_t)plan->slices->len);
    *max_sequences = 0;
    for (int64_t m = 0; m < plan->n_micro_batches; m++) {
        rank->sequences[m] = plan_micro_batch_sequences(plan, m);
        rank->micro_batch_at[m] = row;
        row += rank->sequences[m] * (plan->seq_len / plan->degrees.cp);
        *max_sequences = MAX(*max_sequences, rank->sequences[m]);
    }
    rank->micro_batch_at[plan->n_micro_batches] = row;
    for (guint s = 0; s < plan->slices->len; s++) {
        rank->slice_at[s] = token;
        token += g_array_index(plan->slices, int64_t, s) / plan->degrees.cp;
    }
}

/* Whether the schedule has W. */
static bool
splits_backward(const Schedule *schedule)
{
    for (int64_t i = 0; i < schedule_n_ops(schedule); i++)
        if (schedule->ops[i].kind == SCHEDULE_OP_BACKWARD_WEIGHT)
            return true;
    return false;
}

/* Whether an op can become a CUDA graph, between gathers of weights and sums of gradients too. */
static bool
can_capture(const ExecRank *rank)
{
    const Plan *plan = rank->shared->plan;

    return exec_stage_is_capturable(&rank->comm, rank->shared->arch) && plan->zero_stage < 2 &&
           plan->offload == PLAN_OFFLOAD_NONE;
}

/* Adds what was prefetched to the trace of the step. */
static void
note_gathered(void *user_data, int64_t begin_ns, int64_t end_ns, int64_t n_bytes)
{
    exec_rank_add_event(user_data, TRACE_STREAM_DP, TRACE_EVENT_DP_GATHER, begin_ns, end_ns,
                        (ScheduleOp){0}, -1, n_bytes);
}

/* Bytes of the whole weights of the rank's largest layer. */
static int64_t
layer_bytes(const ExecRank *rank)
{
    const ExecModel *model = rank->model;
    int64_t largest = 0;

    for (guint s = 0; s < model->stages->len; s++) {
        const ExecStage *stage = exec_model_stage(model, s);
        for (int64_t i = 0; i < stage->n_layers; i++) {
            const int32_t units[] = {stage->layers[i].dense_unit, stage->layers[i].experts_unit};
            int64_t n = 0;
            for (size_t k = 0; k < G_N_ELEMENTS(units); k++)
                n += units[k] < 0 ? 0 : exec_model_unit(model, units[k])->n;
            largest = MAX(largest, n);
        }
    }
    return exec_storage_bytes(rank->backend, largest);
}

/* With ZeRO 2 and 3: makes rank->units, which opens units in the order of the rank's ops. */
static void
make_units(ExecRank *rank)
{
    const ExecShared *shared = rank->shared;
    int64_t end;

    if (shared->plan->zero_stage < 2)
        return;
    GArray *openings = g_array_new(false, false, sizeof(ExecOpening));
    for (int64_t i = exec_rank_ops(rank, &end); i < end; i++) {
        const ScheduleOp op = shared->schedule->ops[i];
        exec_stage_add_openings(rank->model, exec_model_stage_of_chunk(rank->model, op.chunk),
                                (ScheduleOpKind)op.kind, openings);
    }
    const int32_t depth = workload_plan_prefetch(shared->arch, shared->plan);
    rank->units = exec_units_new(&(ExecUnitsOptions){
        .model = rank->model,
        .comm = &rank->comm,
        .openings = openings,
        .depth = depth,
        .prefetch_bytes = depth * layer_bytes(rank),
        .prefetch = exec_rank_gathers_aside(rank)   ? EXEC_PREFETCH_ASIDE
                    : depth > 0 && !rank->on_device ? EXEC_PREFETCH_MESSAGES
                                                    : EXEC_PREFETCH_NONE,
        .tag = exec_rank_free_tag(rank),
        .gathered = note_gathered,
        .user_data = rank,
    });
}

static void
make_runs(ExecRank *rank)
{
    const Plan *plan = rank->shared->plan;
    const int32_t n_micro_batches = schedule_chain_micro_batches(rank->shared->schedule);

    rank->runs = g_new0(ExecStageRun *, rank->model->stages->len);
    for (guint i = 0; i < rank->model->stages->len; i++) {
        const ExecStage *stage = exec_model_stage(rank->model, i);
        g_assert(stage->chunk >= 0 && (guint)stage->chunk < rank->model->stages->len);
        rank->runs[stage->chunk] = exec_stage_run_new(&(ExecStageOptions){
            .model = rank->model,
            .stage = stage,
            .units = rank->units,
            .comm = &rank->comm,
            .pool = rank->pool,
            .scratch = &rank->scratch,
            .n_micro_batches = n_micro_batches,
            .n_slices = (int32_t)plan->slices->len,
            .sequences = rank->sequences + stage->chain * n_micro_batches,
            .slices = &g_array_index(plan->slices, int64_t, 0),
            .loss_factor = 1.0f / (float)(plan->global_batch * plan->seq_len),
            .token_step = rank->micro_batch_at[plan->n_micro_batches],
        });
    }
}

/* Takes the backend's memory for tokens, those that follow them, and losses. */
static bool
take_tokens(ExecRank *rank, size_t n_losses, GError **error)
{
    ExecBackend *backend = rank->backend;
    const int64_t n_rows = rank->micro_batch_at[rank->shared->plan->n_micro_batches];
    const int64_t n_ahead = 1 + model_n_losses(rank->shared->arch);
    const size_t n_bytes = (size_t)(n_ahead * n_rows) * sizeof(int32_t);
    const size_t loss_bytes = n_losses * sizeof(double);

    rank->tokens = backend->ops->alloc(backend, n_bytes, "tokens", error);
    if (rank->tokens == NULL)
        return false;
    exec_pool_count(rank->pool, TRACE_MEMORY_BUFFERS, (int64_t)n_bytes);
    rank->device_losses = backend->ops->alloc(backend, loss_bytes, "the losses", error);
    if (rank->device_losses == NULL)
        return false;
    backend->ops->zero(backend, loss_bytes, rank->device_losses);
    return true;
}

/* --- all of it --- */

bool
exec_rank_prepare(ExecRank *rank, GError **error)
{
    ExecShared *shared = rank->shared;
    const Plan *plan = shared->plan;
    int64_t max_sequences, end;
    bool reads_tokens = false;

    if (!open_rank(rank, error))
        return false;
    for (guint i = 0; i < rank->model->stages->len; i++) {
        const ExecStage *stage = exec_model_stage(rank->model, i);
        reads_tokens |= stage->embedding || stage->head || stage->ends.token_unit >= 0;
    }
    index_rows(rank, &max_sequences);
    if (shared->schedule->overlap_pairs != NULL &&
        plan_merges_pairs(&plan->conventions, &plan->degrees))
        rank->comm.turns = rank->turns = exec_turns_new();
    if (!exec_stage_scratch_init(&rank->scratch,
                                 &(ExecScratchOptions){
                                     .model = rank->model,
                                     .comm = &rank->comm,
                                     .pool = rank->pool,
                                     .sequences = max_sequences,
                                     .lengths = &g_array_index(plan->slices, int64_t, 0),
                                     .n_slices = (int32_t)plan->slices->len,
                                     .overlaps = rank->turns != NULL,
                                 },
                                 error))
        return false;
    const int64_t begin = exec_rank_ops(rank, &end);
    const int64_t n_ops = end - begin;
    rank->op_times = g_new0(int64_t, 2 * (size_t)n_ops);
    rank->op_events = g_new0(guint, (size_t)n_ops);
    rank->splits_backward = splits_backward(shared->schedule);
    rank->graphs = shared->o.graphs && can_capture(rank);
    make_units(rank);
    make_runs(rank);
    const size_t n_losses =
        (size_t)plan->n_micro_batches * plan->slices->len * (size_t)model_n_losses(shared->arch);
    rank->losses = g_new0(double, n_losses);
    return !reads_tokens || take_tokens(rank, n_losses, error);
}

void
exec_rank_clear(ExecRank *rank)
{
    for (guint i = 0; rank->runs != NULL && i < rank->model->stages->len; i++)
        exec_stage_run_free(rank->runs[i]);
    g_free(rank->runs);
    if (rank->backend != NULL) {
        rank->backend->ops->release(rank->backend, rank->tokens);
        rank->backend->ops->release(rank->backend, rank->device_losses);
    }
    if (rank->pool != NULL)
        exec_stage_scratch_clear(&rank->scratch, rank->pool);
    exec_units_free(rank->units);
    exec_model_free(rank->model);
    exec_comm_clear(&rank->comm);
    exec_turns_free(rank->turns);
    exec_pool_free(rank->pool);
    exec_device_transport_free(rank->device_transport);
    exec_shared_withdraw_device(rank->shared);
    if (rank->nccl != NULL)
        rank->nccl->free(&rank->transport);
    exec_backend_close(rank->backend);
    g_free(rank->op_times);
    g_free(rank->op_events);
    g_free(rank->sequences);
    g_free(rank->micro_batch_at);
    g_free(rank->slice_at);
    g_free(rank->losses);
    g_clear_pointer(&rank->shared_parameters, g_array_unref);
}
