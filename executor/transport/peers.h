/*
 * executor/transport/peers.h - a transport between processes without MPI: transport `tcp`, and the
 * host transport of `nccl` where no MPI has started the ranks (launch.h).
 *
 * There is a socket between every two ranks, and in every rank a thread that reads all of its
 * sockets into the mailbox of local.c; so messages, collectives and aborts are those of `local`.
 *
 *   on one machine    Ranks that degas itself has started meet at sockets whose names contain the
 *                     secret of the run, and only callers of the same user are accepted.
 *   between machines  Rank 0 listens at an address that all know.  The others call it, and tell it
 *                     where they listen; when all have come, it tells every rank where the others
 *                     are.  Whoever does not know the run's name is sent away: that keeps runs
 *                     apart, but it is no secret, and nothing is encrypted, as with MPI or NCCL.
 *
 * A connection that closes is no error here: the watcher (watcher.h) notices who ended too early,
 * and aborts.
 *
 * Private to executor/.
 */
#pragma once

#include "executor/transport/transport.h"

typedef struct {
    /* (borrowed) "SECRET": letters and digits, the same for all ranks of the run and for no other
     * run; or "RUN@HOST:PORT", where rank 0 listens. */
    const char *meeting;
    int32_t rank, n_ranks;
    double timeout_s; /* how long the others may take to come, if that is more than 60 s */
} ExecPeersOptions;

/* Connects to all other ranks.  False with EXEC_ERROR_FAILED when some do not come in time, and
 * with EXEC_ERROR_RANK_DIED when rank 0 goes while others are awaited, which it says itself. */
bool exec_peers_open(const ExecPeersOptions *options, ExecTransport *transport, GError **error);
/* Ends the transport; all ranks must call it.  False when one does not. */
bool exec_peers_close(ExecTransport *transport, GError **error);
