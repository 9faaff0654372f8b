/*
 * executor/cuda/nccl.h - a transport over NCCL, whose ranks are processes with a GPU each.
 *
 * It is part of the plugin degas-cuda.so, in which exec_plugin_symbol("cuda", EXEC_NCCL_PLUGIN) is
 * an ExecNcclPlugin.  NCCL itself (libnccl.so.2, 2.18 or newer) is opened when a run asks for it.
 *
 * The transport wraps one for host memory, MPI's or that of peers.h, by which the ranks agree on
 * communicators.
 *
 *   collectives  have a communicator for each group (tp, cp, ep, copies of parameters) and run in
 *                the order of the backend's stream.  Their order of additions is NCCL's: the same
 *                in equal runs, but not that of `local`.
 *   messages     have a communicator and a stream for each direction between two neighbours, so
 *                that a send that waits for its receiver holds up nothing else.  They are sent from
 *                a copy, and received into a copy as soon as the sender has announced their tag and
 *                length over the host transport: a schedule may want messages in another order than
 *                they were sent, and NCCL has no tags.
 *   barrier      waits for the device, and then for the barrier of the host transport.
 *
 * Communicators do not block: every call is followed until NCCL has carried it out, and a thread
 * asks them for asynchronous errors.  After an error or abort() all communicators of this rank are
 * aborted, so that its stream comes to an end.  A rank that only hears from NCCL that another rank
 * is gone waits a moment for the watcher (watcher.h) to say which and why.
 *
 * A process has one endpoint.  All calls come from the thread that opened it, but for abort() and
 * the slots that any thread may call.
 *
 * Private to executor/.
 */
#pragma once

#include "executor/transport/transport.h"

#define EXEC_NCCL_PLUGIN "exec_nccl_plugin"

typedef struct {
    const char *machine; /* exec_watch_machine(): the same for all ranks of one machine */
    int64_t timeout_ns;  /* in which all members of a group must meet; 0: 60 s */
} ExecNcclOptions;

typedef struct {
    /* Whether NCCL can be used; false with EXEC_ERROR_MISSING when it is not there or too old. */
    bool (*check)(GError **error);
    /*
     * Opens this rank's endpoint; all ranks must call it.
     * @host, @backend  (borrowed) of the same rank; must outlive the endpoint.
     * False on all ranks, with EXEC_ERROR_UNSUPPORTED, when two of them have the same device of a
     * machine or different versions of NCCL.
     */
    bool (*open)(ExecTransport *host, ExecBackend *backend, const ExecNcclOptions *options,
                 ExecTransport *transport, GError **error);
    /* Returns: (owned) "NCCL 2.28.9".  To be called after check(). */
    char *(*describe)(void);
    /* Ends what is under way; all ranks must call it. */
    bool (*close)(ExecTransport *transport, GError **error);
    /* Frees the endpoint after close(), or instead of it when something has failed; then it aborts
     * what is under way. */
    void (*free)(ExecTransport *transport);
} ExecNcclPlugin;
