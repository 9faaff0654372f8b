/*
 * executor/transport/peers.h - a transport between processes of one machine without MPI: the host
 * transport of `nccl` where degas has started the ranks itself (launch.h).
 *
 * There is a socket between every two ranks, and in every rank a thread that reads all of its
 * sockets into the mailbox of local.c; so messages, collectives and aborts are those of `local`.
 * The names of the sockets contain the secret of the run, and only callers of the same user are
 * accepted.
 *
 * A connection that closes is no error here: the watcher (watcher.h) notices who ended too early,
 * and aborts.
 *
 * Private to executor/.
 */
#pragma once

#include "executor/transport/transport.h"

/*
 * Connects to all other ranks.  False with EXEC_ERROR_FAILED when some do not come within 60 s.
 *
 * @secret  letters and digits, the same for all ranks of the run and for no other run
 */
bool exec_peers_open(const char *secret, int32_t rank, int32_t n_ranks, ExecTransport *transport,
                     GError **error);
/* Ends the transport; all ranks must call it.  False when one does not. */
bool exec_peers_close(ExecTransport *transport, GError **error);
