/*
 * executor/mpi/transport.h - ExecTransportOps over MPI: the ranks are processes.  The plugin
 * degas-mpi.so: exec_plugin_symbol("mpi", EXEC_MPI_PLUGIN) is an ExecMpiPlugin.
 *
 * Point-to-point: MPI_Isend from a copy (lend(): from where the bytes lie), MPI_Irecv; expect()
 * posts the receive early, in its place where that is known, and poll() tests what is under way,
 * because MPI moves large messages inside its own calls only.
 * Collectives are MPI's own (non-blocking ones, on a communicator per group, made when the group
 * first meets), unless the run is deterministic: then those of collective.h, whose order of
 * additions is that of `local`.
 *
 * Waiting spins 20 us, gives the core away for 80 us, then sleeps 50 us at a time: blocking MPI
 * calls would burn the core of a rank that computes [measured: 1.3 to 1.45 times the CPU time of
 * ranks with a core each, instead of 2 times].
 *
 * One endpoint per process; all calls from the thread that opened it, but for the three slots that
 * any thread may ask.  abort() makes its waits fail in this process; other processes are the
 * watcher's business (watcher.h).
 *
 * Private to executor/.
 */
#ifndef EXECUTOR_MPI_TRANSPORT_H
#define EXECUTOR_MPI_TRANSPORT_H

#include "executor/transport/transport.h"

G_BEGIN_DECLS

#define EXEC_MPI_PLUGIN "exec_mpi_plugin"

typedef struct {
    const char *library; /* "Open MPI", "MPICH" */
    /* MPI_Init; EXEC_ERROR_UNSUPPORTED when not @n_ranks processes were started. */
    bool (*open)(int32_t n_ranks, bool deterministic, ExecTransport *transport, GError **error);
    /* MPI_Finalize: all ranks must come here.  False if MPI fails. */
    bool (*close)(ExecTransport *transport, GError **error);
} ExecMpiPlugin;

G_END_DECLS

#endif /* EXECUTOR_MPI_TRANSPORT_H */
