/* A rank's life: its transport, its preparations, step after step, and what it leaves behind. */
#include <string.h>

#include "base/host_steal.h"
#include "executor/run/checkpoint_state.h"
#include "executor/run/gather.h"
#include "executor/watch/launch.h"
#include "executor/transport/measured_collectives.h"
#include "executor/device/plugin.h"
#include "executor/run/rank_state.h"
#include "executor/mpi/transport.h"
#include "executor/transport/peers.h"

/* --- the transport --- */

/* What rank 0's process knows of the watcher, all must know before they can be watched. */
static bool
spread_watcher(ExecRank *rank, GError **error)
{
    ExecShared *shared = rank->shared;
    char where[512] = {0};

    if (shared->watch_where != NULL)
        g_strlcpy(where, shared->watch_where, sizeof where);
    const ExecGroup everyone = exec_rank_everyone(rank);
    if (!rank->transport.ops->broadcast(&rank->transport, &everyone, 0, where, sizeof where, error))
        return false;
    g_mutex_lock(&shared->mutex);
    g_free(shared->watch_where);
    shared->watch_where = g_strndup(where, sizeof where);
    g_cond_broadcast(&shared->changed);
    g_mutex_unlock(&shared->mutex);
    return true;
}

/* Of host memory, also of ranks whose tensors go by NCCL. */
static bool
open_between_processes(ExecRank *rank, GError **error)
{
    const ExecShared *shared = rank->shared;
    g_autofree char *secret = exec_job_secret();

    if (shared->o.without_mpi && secret != NULL)
        return exec_peers_open(secret, rank->rank, shared->n_ranks, &rank->transport, error);
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
    if (rank->transport.rank != rank->rank) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_FAILED,
                    "MPI calls this process rank %d, its environment says %d", rank->transport.rank,
                    rank->rank);
        return false;
    }
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

/* The folder is this run's alone: rank 0 takes it, then the processes of the others join. */
static bool
lock_checkpoints(ExecRank *rank, GError **error)
{
    ExecShared *shared = rank->shared;
    const ExecGroup everyone = exec_rank_everyone(rank);
    ExecTransport *t = exec_rank_host_transport(rank);
    char locked = 1;

    if (shared->checkpoint_dir == NULL)
        return true;
    if (rank->rank == 0)
        shared->lock = exec_checkpoint_lock(shared->checkpoint_dir, true, error);
    if (rank->rank == 0 && shared->lock < 0)
        return false;
    if (!t->ops->broadcast(t, &everyone, 0, &locked, 1, error))
        return false;
    if (rank->rank != 0 && exec_shared_is_distributed(shared))
        shared->lock = exec_checkpoint_lock(shared->checkpoint_dir, false, error);
    return shared->lock >= 0 || (rank->rank != 0 && !exec_shared_is_distributed(shared));
}

static bool
restore(ExecRank *rank, GError **error)
{
    return lock_checkpoints(rank, error) &&
           (rank->shared->checkpoint == NULL || exec_checkpoint_load(rank, error));
}

/* After steps [0, n_steps), the last of this run or not. */
static bool
save(ExecRank *rank, int64_t n_steps, bool is_last, GError **error)
{
    const ExecShared *shared = rank->shared;
    const int64_t every = shared->o.checkpoint_every;

    if (shared->checkpoint_dir == NULL || n_steps == shared->first_step)
        return true;
    /* What is due at its time is not due again at the end. */
    const bool due = every > 0 && n_steps % every == 0;
    return due == is_last || exec_checkpoint_save(rank, n_steps, error);
}

/* --- steps --- */

/* Whether the run is to end before this step: rank 0 decides, so that all end at the same one. */
static bool
is_to_stop(ExecRank *rank, bool *stop, GError **error)
{
    const ExecGroup everyone = exec_rank_everyone(rank);
    ExecTransport *t = exec_rank_host_transport(rank);

    *stop = atomic_load(&rank->shared->stop_wanted);
    return t->ops->broadcast(t, &everyone, 0, stop, sizeof *stop, error);
}

static bool
run_steps(ExecRank *rank, GError **error)
{
    const HostSteal begin = rank->rank == 0 ? host_steal_now() : (HostSteal){0};
    bool stop = false;

    for (rank->step = rank->shared->first_step; rank->step < rank->shared->o.n_steps;
         rank->step++) {
        exec_rank_set_doing(rank, EXEC_DOING_BARRIER, 0);
        if (!is_to_stop(rank, &stop, error))
            return false;
        if (stop)
            break;
        if (!exec_rank_run_step(rank, error) || !exec_gather_step(rank, error) ||
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
    if (!open_transport(rank, error) || !exec_rank_prepare(rank, error) || !restore(rank, error) ||
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
    ExecRank rank = {
        .shared = shared,
        .record = &shared->records[start->rank],
        .rank = start->rank,
        .coordinates = exec_coordinates(shared->plan, start->rank),
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
