/*
 * executor/transport/local.h - transport `local`: the ranks are threads of one process.
 *
 * The same code serves ranks that are processes without MPI (peers.h): each process then has the
 * mailbox of its own rank here, and a function that sends to the others.
 *
 * Private to executor/.
 */
#pragma once

#include "executor/transport/transport.h"

/* The rank of this process, where ranks are processes without MPI (peers.h), and how it reaches
 * the others: messages for them go to @send, messages of theirs come by exec_local_hub_deliver().
 */
typedef struct {
    int32_t rank;
    bool (*send)(void *user_data, int32_t to, int64_t tag, const void *data, int64_t n_bytes,
                 GError **error);
    void *user_data; /* (borrowed) */
} ExecHubRemote;

/* What the threads share. */
typedef struct {
    int32_t n_ranks;
    int64_t timeout_ns; /* 0: none */
    int64_t spin_ns;
    struct ExecMailbox *boxes; /* (owned) n_ranks */
    ExecAbort abort;
    ExecHubRemote remote; /* send == NULL: all ranks are here */
} ExecLocalHub;

/* @timeout_s  after which a wait fails with EXEC_ERROR_RANK_HUNG; 0: never, somebody else watches.
 */
ExecLocalHub *exec_local_hub_new(int32_t n_ranks, double timeout_s);
/* May be called when no rank uses the hub any more. */
void exec_local_hub_free(ExecLocalHub *hub);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecLocalHub, exec_local_hub_free)
/* Returns the endpoint of @rank, which is valid as long as the hub. */
ExecTransport exec_local_transport(ExecLocalHub *hub, int32_t rank);

/* Puts a message of rank @from into this rank's mailbox, from any thread.  False on
 * EXEC_ERROR_MEMORY. */
bool exec_local_hub_deliver(ExecLocalHub *hub, int32_t from, int64_t tag, const void *data,
                            int64_t n_bytes, GError **error);
