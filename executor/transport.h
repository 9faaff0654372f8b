/*
 * executor/transport.h - ExecTransportOps: how ranks exchange tensors, as a table of named slots.
 *
 * `local`: ranks are threads of one process.  Point-to-point messages are matched by (sender, tag);
 * sends do not wait for the receiver (the message is copied into a bounded mailbox).  Collectives
 * are rings whose order of additions depends on the ranks only: ring reduce-scatter then
 * all-gather, 2(n-1)/n of the bytes per rank [Patarasuk and Yuan 2009].  Waiting spins briefly,
 * then sleeps on a futex/condition, so that ranks may outnumber cores.
 *
 * Every wait ends: by the message, by the time limit (EXEC_ERROR_RANK_HUNG), or because another
 * rank failed (exec_transport_abort).
 */
#ifndef EXECUTOR_TRANSPORT_H
#define EXECUTOR_TRANSPORT_H

#include "executor/backend.h"

G_BEGIN_DECLS

typedef struct ExecTransport ExecTransport;

/* A rank's view of a communicator of @n ranks. */
typedef struct {
    const int32_t *ranks; /* (borrowed) members in ring order */
    int32_t n, index;     /* this rank is ranks[index] */
} ExecGroup;

typedef struct {
    const char *name;
    /* Copies @n floats towards @to; returns before they are received. */
    bool (*send)(ExecTransport *transport, int32_t to, int64_t tag, const float *data, int64_t n,
                 GError **error);
    /* Waits for the message of @from with @tag; its length must be @n. */
    bool (*receive)(ExecTransport *transport, int32_t from, int64_t tag, float *data, int64_t n,
                    GError **error);
    /* (sum) in place over the group; every member must call with equal @n. */
    bool (*all_reduce)(ExecTransport *transport, const ExecGroup *group, float *data, int64_t n,
                       GError **error);
    bool (*barrier)(ExecTransport *transport, const ExecGroup *group, GError **error);
} ExecTransportOps;

/* One rank's endpoint. */
struct ExecTransport {
    const ExecTransportOps *ops;
    int32_t rank, n_ranks;
    int64_t bytes_sent; /* by this rank, all messages and collectives */
    void *state;        /* (borrowed) shared by all ranks */
};

/* Shared state of @n_ranks threads.  Opaque; see transport_local.c. */
typedef struct ExecLocalHub ExecLocalHub;
ExecLocalHub *exec_local_hub_new(int32_t n_ranks, double timeout_s);
void exec_local_hub_free(ExecLocalHub *hub);
ExecTransport exec_local_transport(ExecLocalHub *hub, int32_t rank);

/* Makes every present and future wait of all ranks fail; the first reason (and rank) is kept. */
void exec_transport_abort(ExecTransport *transport, const char *reason);

G_END_DECLS

#endif /* EXECUTOR_TRANSPORT_H */
