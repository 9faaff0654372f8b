/* A rank's life: its transport, its preparations, step after step, and what it leaves behind. */
#include <string.h>

#include "executor/gather.h"
#include "executor/plugin.h"
#include "executor/rank_state.h"
#include "executor/transport_mpi.h"

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

static bool
open_transport(ExecRank *rank, GError **error)
{
    ExecShared *shared = rank->shared;

    if (!exec_shared_is_distributed(shared)) {
        rank->transport = exec_local_transport(shared->hub, rank->rank);
        return true;
    }
    const ExecMpiPlugin *plugin =
        exec_plugin_symbol("mpi", EXEC_MPI_PLUGIN, "transport mpi", error);
    if (plugin == NULL ||
        !plugin->open(shared->n_ranks, shared->o.deterministic, &rank->transport, error))
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
    const ExecMpiPlugin *plugin =
        exec_plugin_symbol("mpi", EXEC_MPI_PLUGIN, "transport mpi", error);
    atomic_store(&rank->shared->is_open, false);
    return plugin != NULL && plugin->close(&rank->transport, error);
}

/* --- steps --- */

/* Whether the run is to end before this step: rank 0 decides, so that all end at the same one. */
static bool
is_to_stop(ExecRank *rank, bool *stop, GError **error)
{
    const ExecGroup everyone = exec_rank_everyone(rank);

    *stop = atomic_load(&rank->shared->stop_wanted);
    return rank->transport.ops->broadcast(&rank->transport, &everyone, 0, stop, sizeof *stop,
                                          error);
}

static bool
run_steps(ExecRank *rank, GError **error)
{
    bool stop = false;

    for (rank->step = 0; rank->step < rank->shared->o.n_steps; rank->step++) {
        exec_rank_set_doing(rank, EXEC_DOING_BARRIER, 0);
        if (!is_to_stop(rank, &stop, error))
            return false;
        if (stop)
            break;
        if (!exec_rank_run_step(rank, error) || !exec_gather_step(rank, error))
            return false;
    }
    return true;
}

static void
keep_peak(ExecRank *rank)
{
    rank->record->peak_memory_bytes = exec_pool_peak_bytes(rank->pool) +
                                      exec_backend_workspace_bytes(rank->backend) +
                                      rank->transport.ops->buffer_bytes(&rank->transport);
}

static bool
run_rank(ExecRank *rank, GError **error)
{
    if (!open_transport(rank, error) || !exec_rank_prepare(rank, error) ||
        !exec_gather_clocks(rank, false, error) || !run_steps(rank, error))
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
        .place = exec_place(shared->plan, start->rank),
    };
    GError *error = NULL;

    exec_rank_set_doing(&rank, EXEC_DOING_START, 0);
    if (!run_rank(&rank, &error))
        exec_shared_fail(shared, rank.rank, error);
    else
        exec_rank_set_doing(&rank, EXEC_DOING_NOTHING, 0);
    exec_rank_clear(&rank);
    g_mutex_lock(&shared->mutex);
    shared->n_threads--;
    g_cond_broadcast(&shared->changed);
    g_mutex_unlock(&shared->mutex);
    exec_shared_unref(shared);
    return NULL;
}
