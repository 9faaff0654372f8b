/*
 * executor/transport/peers.h - ExecTransportOps between processes of one machine, without MPI: what
 * transport nccl uses for host memory where the ranks were started by launch.h itself.
 *
 * A socket between every two ranks and a thread that reads them all into the mailbox of
 * local.c; so messages, collectives, time limits and aborts are those of `local`.  The
 * sockets have names that contain the secret of the run, and take callers of the same user only.
 *
 * A connection that closes is not an error here: who ended too early is the watcher's business
 * (watcher.h), which then aborts.
 *
 * Private to executor/.
 */
#ifndef EXECUTOR_TRANSPORT_PEERS_H
#define EXECUTOR_TRANSPORT_PEERS_H

#include "executor/transport/transport.h"

G_BEGIN_DECLS

/*
 * Meets all other ranks; false with EXEC_ERROR_FAILED when some do not come.
 *
 * @secret  equal for all ranks of the run, and for no other run: letters and digits
 */
bool exec_peers_open(const char *secret, int32_t rank, int32_t n_ranks, ExecTransport *transport,
                     GError **error);
/* All ranks must come here.  False when one does not. */
bool exec_peers_close(ExecTransport *transport, GError **error);

G_END_DECLS

#endif /* EXECUTOR_TRANSPORT_PEERS_H */
