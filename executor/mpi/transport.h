/*
 * executor/mpi/transport.h - the plugin degas-mpi.so: a transport over MPI, whose ranks are
 * processes.
 *
 * This room, executor/mpi/, is one file behind this header.  The program does not link it: it opens
 * the plugin, in which exec_plugin_symbol("mpi", EXEC_MPI_PLUGIN) is an ExecMpiPlugin.
 *
 * Messages go by MPI_Isend, from a copy or, when they are lent, from where the bytes are, and come
 * by MPI_Irecv.  expect() begins to receive early, into the final place where that is known. poll()
 * tests all transfers under way, because MPI moves large messages only inside calls of its own.
 * Every message is followed by its seal (seal.h), with the same tag.
 *
 * Collectives are MPI's own, the non-blocking ones, on a communicator for each group, which is made
 * when the group first meets.  In deterministic runs they are those of collective.h, whose order of
 * additions is that of `local`.
 *
 * A wait spins for 20 us, gives its core away for 80 us, and then sleeps 50 us at a time, because
 * MPI's blocking calls would take the core from a rank that computes: this way ranks that share
 * cores take 1.3 to 1.45 times the CPU time of ranks with a core each, instead of 2 times
 * [measured].
 *
 * A process has one endpoint.  All calls come from the thread that opened it, but for the slots
 * that any thread may call.  abort() makes the waits of this process fail; other processes are
 * ended by the watcher (watcher.h).
 *
 * Private to executor/.
 */
#pragma once

#include "executor/transport/transport.h"

#define EXEC_MPI_PLUGIN "exec_mpi_plugin"

typedef struct {
    const char *library; /* "Open MPI", "MPICH" */
    /* Calls MPI_Init_thread().  EXEC_ERROR_UNSUPPORTED when another number of processes than
     * @n_ranks was started. */
    bool (*open)(int32_t n_ranks, bool deterministic, ExecTransport *transport, GError **error);
    /* Calls MPI_Finalize(), for which all ranks must come here.  False when MPI fails. */
    bool (*close)(ExecTransport *transport, GError **error);
} ExecMpiPlugin;
