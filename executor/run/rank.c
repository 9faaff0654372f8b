#include "executor/run/rank.h"

#include <math.h>

#include "base/host_steal.h"
#include "executor/device/clock.h"
#include "executor/device/plugin.h"
#include "executor/model/attention.h"
#include "executor/mpi/transport.h"
#include "executor/run/optimize.h"
#include "executor/transport/measured_collectives.h"
#include "executor/transport/peers.h"
#include "executor/watch/launch.h"
#include "schedule/rank_order.h"

/* --- for all files of a rank --- */

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
        .rank = rank->pipeline,
        .peer = peer,
        .bytes = bytes,
        .stream = (uint8_t)stream,
        .kind = (uint8_t)kind,
    };

    if (rank->events != NULL)
        g_array_append_val(rank->events, event);
}

int32_t
exec_rank_peer(const ExecRank *rank, int32_t pipeline)
{
    const PlanDegrees *degrees = &rank->shared->plan->degrees;
    PlanCoordinates in = plan_coordinates_of(degrees, rank->rank);

    in.at[PLAN_DIM_PP] = pipeline;
    return (int32_t)plan_device_at(degrees, &in);
}

ExecGroup
exec_rank_sharers(const ExecRank *rank, const ExecSharedParameter *shared,
                  int32_t members[EXEC_MAX_SHARERS])
{
    ExecGroup group = {.ranks = members, .n = shared->n};

    for (int32_t i = 0; i < shared->n; i++) {
        members[i] = exec_rank_peer(rank, shared->ranks[i]);
        if (shared->ranks[i] == rank->pipeline)
            group.index = i;
    }
    return group;
}

/* --- what verification compares --- */

/* Downloads a unit's whole gradients to @to; where they are sharded, they are gathered first. */
static bool
download_unit(ExecRank *rank, const ExecUnit *unit, float *to, GError **error)
{
    const ExecModel *model = rank->model;
    ExecBackend *backend = rank->backend;
    const ExecRegion *region = &model->layout.regions[unit->region];
    ExecBlock whole = {0};
    int64_t begin;
    const int64_t n = exec_model_own_shard(model, unit, &begin);
    const float *part = (const float *)model->gradients.data +
                        exec_model_at(model, EXEC_CONTENT_GRADIENTS, unit, begin);

    if (!region->sharded[EXEC_CONTENT_OPTIMIZER]) {
        backend->ops->download(backend, (size_t)n * sizeof *to, part, to);
        return backend->ops->synchronize(backend, error);
    }
    if (!exec_pool_take(rank->pool, TRACE_MEMORY_BUFFERS, unit->n * (int64_t)sizeof *to, &whole,
                        error))
        return false;
    backend->ops->copy(backend, (size_t)n * sizeof *to, part,
                       (float *)whole.data + (begin - unit->begin));
    exec_comm_all_gather(&rank->comm, exec_region_dim(unit->region), DTYPE_FP32, unit->n,
                         whole.data);
    backend->ops->download(backend, (size_t)unit->n * sizeof *to, whole.data, to);
    const bool ok = backend->ops->synchronize(backend, error);
    exec_pool_give(rank->pool, &whole);
    return ok && exec_comm_check(&rank->comm, error);
}

static bool
keep_gradients(ExecRank *rank, GError **error)
{
    ExecRankRecord *record = rank->record;

    record->gradients = g_try_new(float, (size_t)MAX(1, rank->model->layout.n));
    if (record->gradients == NULL)
        return EXEC_FAIL(error, EXEC_ERROR_MEMORY,
                         "no memory for a copy of the gradients to verify");
    record->parameters = g_array_ref(rank->model->layout.parameters);
    for (guint i = 0; i < rank->model->layout.units->len; i++) {
        const ExecUnit *unit = &g_array_index(rank->model->layout.units, ExecUnit, i);
        if (unit->n > 0 && !download_unit(rank, unit, record->gradients + unit->begin, error))
            return false;
    }
    return true;
}

/* --- one step --- */

/* How far the tokens are ahead of their rows that a rank reads, its own included: its losses' targets
 * are the furthest. */
static int64_t
n_ahead(const ExecRank *rank)
{
    return 1 + model_n_losses(rank->shared->arch);
}

static int64_t
n_rows(const ExecRank *rank)
{
    return rank->micro_batch_at[rank->shared->plan->n_micro_batches];
}

/* Copies this rank's tokens of sequence @one to @rows, and, n_rows() further each, the tokens that
 * follow them; it is the @b-th of the @n sequences of its micro-batch. */
static void
place_tokens(const ExecRank *rank, const int32_t *one, int64_t n, int64_t b, int32_t *rows)
{
    const Plan *plan = rank->shared->plan;
    int64_t row = 0, context = 0;

    for (guint s = 0; s < plan->slices->len; s++) {
        const int64_t tokens = g_array_index(plan->slices, int64_t, s);
        ExecChunk chunks[2];
        const int n_chunks = exec_slice_chunks(tokens, plan->degrees.cp, rank->cp, chunks);
        for (int i = 0; i < n_chunks; i++)
            for (int64_t t = 0; t < chunks[i].n; t++, row++)
                for (int64_t k = 0; k < n_ahead(rank); k++)
                    rows[k * n_rows(rank) + row * n + b] = one[context + chunks[i].begin + t + k];
        context += tokens;
    }
}

/* Reads the step's sequences: replica r has the r-th share of the global batch, and of each
 * sequence the tokens of its cp coordinate. */
static bool
load_tokens(ExecRank *rank, GError **error)
{
    const Plan *plan = rank->shared->plan;
    const size_t n = (size_t)(n_ahead(rank) * n_rows(rank));
    int64_t index = rank->dp * (n_rows(rank) / (plan->seq_len / plan->degrees.cp));

    if (rank->tokens == NULL)
        return true;
    exec_rank_set_doing(rank, EXEC_DOING_DATA, 0);
    g_autofree int32_t *one = g_new(int32_t, (size_t)(plan->seq_len + n_ahead(rank) - 1));
    g_autofree int32_t *rows = g_new(int32_t, n);
    for (int64_t m = 0; m < plan->n_micro_batches; m++)
        for (int64_t b = 0; b < rank->sequences[m]; b++, index++) {
            if (!exec_data_sequence(rank->shared->data, rank->step, index, one, error))
                return false;
            place_tokens(rank, one, rank->sequences[m], b, rows + rank->micro_batch_at[m]);
        }
    rank->backend->ops->upload(rank->backend, n * sizeof *rows, rows, rank->tokens);
    return true;
}

/* Empties the arrays that this step's events go to. */
static void
begin_record(ExecRank *rank)
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
barrier(ExecRank *rank, GError **error)
{
    const ExecGroup everyone = exec_rank_everyone(rank);

    exec_rank_set_doing(rank, EXEC_DOING_BARRIER, 0);
    return rank->transport.ops->barrier(&rank->transport, &everyone, error);
}

/* Sums what is trained of this rank's losses, in the order of micro-batches and slices, which does
 * not depend on the order of ops. */
static bool
sum_losses(ExecRank *rank, double *sum, GError **error)
{
    const ModelArch *arch = rank->shared->arch;
    const int64_t n_losses = model_n_losses(arch);
    const int64_t n =
        rank->shared->plan->n_micro_batches * rank->shared->schedule->n_slices * n_losses;

    *sum = 0;
    if (rank->device_losses == NULL)
        return true;
    rank->backend->ops->download(rank->backend, (size_t)n * sizeof *rank->losses,
                                 rank->device_losses, rank->losses);
    if (!rank->backend->ops->synchronize(rank->backend, error))
        return false;
    for (int64_t i = 0; i < n; i++)
        *sum += model_loss_weight(arch, i % n_losses) * rank->losses[i];
    return true;
}

/* One step: barrier, ops, sums, optimizer; its events go to the record. */
static bool
run_step(ExecRank *rank, GError **error)
{
    int64_t end;
    double loss;

    begin_record(rank);
    if (!load_tokens(rank, error) || !barrier(rank, error))
        return false;
    const int64_t begin = exec_now_ns();
    exec_pool_record(rank->pool, rank->record->memory[rank->step % EXEC_TRACED_STEPS],
                     rank->pipeline, begin);
    if (rank->units != NULL)
        exec_units_begin_step(rank->units);
    rank->next_pair = 0;
    for (int64_t op = exec_rank_ops(rank, &end); op < end;)
        if (!exec_rank_run_next(rank, &op, error))
            return false;
    if (!exec_rank_reduce_gradients(rank, error) || !sum_losses(rank, &loss, error))
        return false;
    if (!isfinite(loss))
        return EXEC_FAIL(error, EXEC_ERROR_FAILED,
                         "the loss is not finite (learning rate too high?)");
    if (rank->shared->o.verify && rank->step == 0 && !keep_gradients(rank, error))
        return false;
    if ((rank->units != NULL && !exec_units_end_step(rank->units, error)) ||
        !exec_rank_optimize(rank, error))
        return false;
    exec_shared_step_done(rank->shared, rank->step, rank->rank, loss, begin, exec_now_ns());
    exec_pool_record(rank->pool, NULL, 0, 0);
    return true;
}

/* --- the transport --- */

/* Gives all ranks what rank 0 has at @data in host memory. */
static bool
tell_all(ExecRank *rank, void *data, int64_t n_bytes, GError **error)
{
    const ExecGroup everyone = exec_rank_everyone(rank);
    ExecTransport *t = exec_rank_host_transport(rank);

    return t->ops->broadcast(t, &everyone, 0, data, n_bytes, error);
}

/* Tells all ranks where the watcher listens, which rank 0's process knows. */
static bool
spread_watcher(ExecRank *rank, GError **error)
{
    ExecShared *shared = rank->shared;
    char where[512] = {0};

    if (shared->watch_where != NULL)
        g_strlcpy(where, shared->watch_where, sizeof where);
    if (!tell_all(rank, where, sizeof where, error))
        return false;
    g_mutex_lock(&shared->mutex);
    g_free(shared->watch_where);
    shared->watch_where = g_strndup(where, sizeof where);
    g_cond_broadcast(&shared->changed);
    g_mutex_unlock(&shared->mutex);
    return true;
}

/* Opens the transport of host memory between ranks that are processes, which NCCL's ranks have too.
 */
static bool
open_between_processes(ExecRank *rank, GError **error)
{
    const ExecShared *shared = rank->shared;

    if (shared->o.without_mpi) {
        g_autofree char *meeting = exec_job_meeting(error);
        const ExecPeersOptions options = {
            .meeting = meeting,
            .rank = rank->rank,
            .n_ranks = shared->n_ranks,
            .timeout_s = shared->o.timeout_s,
        };
        return meeting != NULL && exec_peers_open(&options, &rank->transport, error);
    }
    const ExecMpiPlugin *plugin =
        exec_plugin_symbol("mpi", EXEC_MPI_PLUGIN, "ranks that are processes", error);
    return plugin != NULL &&
           plugin->open(shared->n_ranks, shared->o.deterministic, &rank->transport, error);
}

static bool
open_transport(ExecRank *rank, GError **error)
{
    ExecShared *shared = rank->shared;

    if (!exec_shared_is_distributed(shared)) {
        rank->transport = exec_local_transport(shared->hub, rank->rank);
        return true;
    }
    if (!open_between_processes(rank, error))
        return false;
    if (rank->transport.rank != rank->rank)
        return EXEC_FAIL(error, EXEC_ERROR_FAILED,
                         "MPI calls this process rank %d, its environment says %d",
                         rank->transport.rank, rank->rank);
    shared->endpoint = rank->transport;
    atomic_store(&shared->is_open, true);
    return spread_watcher(rank, error);
}

static bool
close_transport(ExecRank *rank, GError **error)
{
    if (!exec_shared_is_distributed(rank->shared))
        return true;
    if (rank->nccl != NULL && !rank->nccl->close(&rank->transport, error))
        return false;
    exec_shared_withdraw_device(rank->shared);
    atomic_store(&rank->shared->is_open, false);
    if (rank->shared->o.without_mpi)
        return exec_peers_close(exec_rank_host_transport(rank), error);
    const ExecMpiPlugin *plugin =
        exec_plugin_symbol("mpi", EXEC_MPI_PLUGIN, "ranks that are processes", error);
    return plugin != NULL && plugin->close(exec_rank_host_transport(rank), error);
}

/* --- checkpoints --- */

/* Takes the folder of checkpoints for this run alone: first rank 0, then the processes of the
 * others join. */
static bool
lock_checkpoints(ExecRank *rank, GError **error)
{
    ExecShared *shared = rank->shared;
    char locked = 1;

    if (shared->checkpoint_dir == NULL)
        return true;
    if (rank->rank == 0)
        shared->lock = exec_checkpoint_lock(shared->checkpoint_dir, true, error);
    if (rank->rank == 0 && shared->lock < 0)
        return false;
    if (!tell_all(rank, &locked, 1, error))
        return false;
    if (rank->rank != 0 && exec_shared_is_distributed(shared))
        shared->lock = exec_checkpoint_lock(shared->checkpoint_dir, false, error);
    return shared->lock >= 0 || (rank->rank != 0 && !exec_shared_is_distributed(shared));
}

/* Saves the state after @n_steps steps if that is due: every so many steps, and at the run's end.
 */
static bool
save(ExecRank *rank, int64_t n_steps, bool is_last, GError **error)
{
    const ExecShared *shared = rank->shared;
    const int64_t every = shared->o.checkpoint_every;

    if (shared->checkpoint_dir == NULL || n_steps == shared->first_step)
        return true;
    /* A checkpoint that was saved after its step is not saved again at the end. */
    const bool due = every > 0 && n_steps % every == 0;
    return due == is_last || exec_checkpoint_save(rank, n_steps, error);
}

/* --- all steps --- */

static bool
run_steps(ExecRank *rank, GError **error)
{
    const HostSteal begin = rank->rank == 0 ? host_steal_now() : (HostSteal){0};
    bool stop = false;

    for (rank->step = rank->shared->first_step; rank->step < rank->shared->o.n_steps;
         rank->step++) {
        exec_rank_set_doing(rank, EXEC_DOING_BARRIER, 0);
        stop = atomic_load(&rank->shared->stop_wanted);
        if (!tell_all(rank, &stop, sizeof stop, error)) /* so that all end at the same step */
            return false;
        if (stop)
            break;
        if (!run_step(rank, error) || !exec_gather_step(rank, error) ||
            !save(rank, rank->step + 1, false, error))
            return false;
    }
    if (rank->rank == 0) {
        const HostSteal end = host_steal_now();
        rank->shared->stolen_fraction = host_steal_fraction(&begin, &end);
    }
    return save(rank, rank->step, true, error);
}

/* --- collectives for a profile --- */

static void
moves(void *user_data)
{
    exec_rank_set_doing(user_data, EXEC_DOING_COLLECTIVES, 0);
}

/* Returns: (owned) "NCCL 2.28.9 between 4 GPUs"; NULL on EXEC_ERROR_MISSING. */
static char *
describe_ranks(const ExecRank *rank, GError **error)
{
    const int32_t n_ranks = rank->shared->n_ranks;
    const int32_t n_devices = exec_backend_n_devices(rank->shared->device, error);
    g_autofree char *by =
        rank->nccl != NULL ? rank->nccl->describe() : g_strdup(rank->transport.ops->name);

    if (n_devices < 0)
        return NULL;
    return n_devices >= n_ranks
               ? g_strdup_printf("%s between %d GPUs", by, n_ranks)
               : g_strdup_printf("%s between %d ranks on %d GPU%s: a proof of function, no speed",
                                 by, n_ranks, n_devices, n_devices == 1 ? "" : "s");
}

static bool
time_collectives(ExecRank *rank, GError **error)
{
    ExecShared *shared = rank->shared;
    g_autoptr(ExecSamples) samples = exec_samples_new();
    const ExecCollectives collectives = {
        .transport = &rank->transport,
        .host = exec_rank_host_transport(rank),
        .backend = rank->backend,
        .max_bytes = shared->o.collectives_bytes,
        .budget_s = shared->o.collectives_s,
        .moves = moves,
        .user_data = rank,
    };

    if (shared->o.collectives_s <= 0)
        return true;
    if (!exec_measure_collectives(&collectives, samples, error))
        return false;
    if (rank->rank != 0)
        return true;
    g_autofree char *between = describe_ranks(rank, error);
    if (between == NULL)
        return false;
    shared->collectives = exec_collectives_to_text(samples, between);
    return true;
}

static void
keep_peak(ExecRank *rank)
{
    const ExecTransport *t = exec_rank_host_transport(rank);

    rank->record->peak_memory_bytes = exec_pool_peak_bytes(rank->pool) +
                                      exec_backend_workspace_bytes(rank->backend) +
                                      t->ops->buffer_bytes(t);
}

static bool
run_rank(ExecRank *rank, GError **error)
{
    if (!open_transport(rank, error) || !exec_rank_prepare(rank, error) ||
        !lock_checkpoints(rank, error) ||
        (rank->shared->checkpoint != NULL && !exec_checkpoint_load(rank, error)) ||
        !exec_gather_clocks(rank, false, error) || !run_steps(rank, error) ||
        !time_collectives(rank, error))
        return false;
    exec_rank_set_doing(rank, EXEC_DOING_END, 0);
    keep_peak(rank);
    return exec_gather_clocks(rank, true, error) && exec_gather_record(rank, error) &&
           close_transport(rank, error);
}

gpointer
exec_rank_main(gpointer user_data)
{
    g_autofree ExecRankStart *start = user_data;
    ExecShared *shared = start->shared;
    const PlanCoordinates in = plan_coordinates_of(&shared->plan->degrees, start->rank);
    ExecRank rank = {
        .shared = shared,
        .record = &shared->records[start->rank],
        .rank = start->rank,
        .pipeline = (int32_t)in.at[PLAN_DIM_PP],
        .dp = (int32_t)in.at[PLAN_DIM_DP],
        .cp = (int32_t)in.at[PLAN_DIM_CP],
        .tp = (int32_t)in.at[PLAN_DIM_TP],
    };
    GError *error = NULL;

    exec_rank_set_doing(&rank, EXEC_DOING_START, 0);
    if (run_rank(&rank, &error)) {
        exec_rank_set_doing(&rank, EXEC_DOING_NOTHING, 0);
    } else {
        exec_shared_fail(shared, rank.rank, error);
        if (!exec_shared_is_distributed(shared)) /* else the watcher must know of it first */
            exec_shared_give_up_checkpoint(shared, rank.rank);
    }
    exec_rank_clear(&rank);
    g_mutex_lock(&shared->mutex);
    shared->n_threads--;
    g_cond_broadcast(&shared->changed);
    g_mutex_unlock(&shared->mutex);
    exec_shared_unref(shared);
    return NULL;
}
