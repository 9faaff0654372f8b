/*
 * executor/cuda/nccl.h - ExecTransportOps over NCCL: the ranks are processes, each with a GPU
 * of its own.  Part of the plugin degas-cuda.so: exec_plugin_symbol("cuda", EXEC_NCCL_PLUGIN) is an
 * ExecNcclPlugin.  NCCL itself (libnccl.so.2, 2.18 or newer) is opened when a run asks for it.
 *
 * Wraps a transport for host memory, MPI's or peers.h's, over which the ranks agree on
 * communicators.
 *
 *   collectives  on a communicator per group (tp, cp, ep, copies of parameters), in the order of
 *                the backend's own stream; their order of additions is NCCL's: the same for equal
 *                runs, another than that of `local`
 *   messages     on a communicator per direction of every pair of neighbours, with a stream of its
 *                own: a send that waits for its receiver holds up nothing else.  Sent from a copy;
 *                received into a copy as soon as the sender has announced it (tag and length, over
 *                the host transport): a schedule's ranks may want messages in another order than
 *                they were sent, and NCCL has no tags
 *   barrier      waits for the device, then the host transport's
 *
 * Communicators do not block: every call is followed until NCCL has done it, and while the host
 * waits for the device it asks them for asynchronous errors.  After an error or abort() all of
 * this rank's communicators are aborted, so that its stream ends.  A rank that only hears from NCCL
 * that another one is gone waits a moment for the watcher (watcher.h) to say which and why.
 *
 * One endpoint per process; all calls from the thread that opened it, but for the slots that any
 * thread may ask, and abort().
 *
 * Private to executor/.
 */
#ifndef EXECUTOR_CUDA_NCCL_H
#define EXECUTOR_CUDA_NCCL_H

#include "executor/transport/transport.h"

G_BEGIN_DECLS

#define EXEC_NCCL_PLUGIN "exec_nccl_plugin"

typedef struct {
    /* Equal for ranks of one machine: exec_watch_machine(). */
    const char *machine;
    int64_t timeout_ns; /* for all members of a group to meet; 0: 60 s */
} ExecNcclOptions;

typedef struct {
    /* False with EXEC_ERROR_MISSING: no NCCL, or one too old. */
    bool (*check)(GError **error);
    /*
     * @host, @backend  (borrowed) of the same rank; outlive the endpoint.
     * EXEC_ERROR_UNSUPPORTED, on all ranks, when two of them have the same device of a machine or
     * different versions of NCCL.
     */
    bool (*open)(ExecTransport *host, ExecBackend *backend, const ExecNcclOptions *options,
                 ExecTransport *transport, GError **error);
    /* Returns: (owned) "NCCL 2.28.9"; after check(). */
    char *(*describe)(void);
    /* Ends what is under way, together with all other ranks. */
    bool (*close)(ExecTransport *transport, GError **error);
    /* After close(), or instead of it when something has failed: aborts. */
    void (*free)(ExecTransport *transport);
} ExecNcclPlugin;

G_END_DECLS

#endif /* EXECUTOR_CUDA_NCCL_H */
