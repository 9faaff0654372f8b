/*
 * executor/mpi/state.h - what the parts of the plugin degas-mpi.so share; see ../transport_mpi.h.
 *
 * Private to executor/mpi/.
 */
#ifndef EXECUTOR_MPI_STATE_H
#define EXECUTOR_MPI_STATE_H

#include <mpi.h>
#include <stdatomic.h>

#include "executor/transport/collective.h"

G_BEGIN_DECLS

/* A buffer of a send under way, of an expected message, or spare. */
typedef struct Piece Piece;
struct Piece {
    Piece *next;
    MPI_Request request;
    int64_t tag, n_bytes;
    int32_t peer;     /* of a send, of an expected message */
    const void *lent; /* (borrowed, nullable) what is sent; NULL: data[] */
    void *place;      /* (borrowed, nullable) where it is expected; NULL: data[] */
    int64_t room_bytes;
    _Alignas(64) char data[];
};

typedef struct {
    MPI_Comm messages, wire; /* point to point, and collective.h's messages */
    MPI_Op add_bf16;
    bool deterministic;
    int64_t max_tag;
    Piece *sends, *expected, *spare; /* (owned) */
    GArray *groups;                  /* (owned) collectives.c's communicators */
    atomic_bool aborted;
    GMutex mutex;
    char *reason; /* (owned) under the mutex, set before aborted */
    atomic_int waiting_for;
    atomic_int_fast64_t waited_until_ns, buffer_bytes;
} State;

/* Converts a code of MPI into a GError that names the call, and returns false from the function. */
#define TRY_MPI(call)                                                                              \
    do {                                                                                           \
        const int code_ = (call);                                                                  \
        if (code_ != MPI_SUCCESS)                                                                  \
            return mpi_failed(#call, code_, error);                                                \
    } while (0)

/* Returns false with EXEC_ERROR_FAILED: the call's name and what MPI says. */
bool mpi_failed(const char *call, int code, GError **error);

/* Until @request is done; @peer as waiting_for(). */
bool mpi_wait(ExecTransport *transport, MPI_Request *request, int32_t peer, MPI_Status *status,
              GError **error);

/* MPI counts in int. */
bool mpi_check_length(int64_t n_bytes, GError **error);

/* How collective.h's messages go. */
extern const ExecWire mpi_wire;

/* --- collectives.c: the slots --- */

bool mpi_collectives_open(State *state, GError **error);
bool mpi_collectives_close(State *state, GError **error);

bool mpi_all_reduce(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data,
                    int64_t n, GError **error);
bool mpi_reduce_scatter(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data,
                        int64_t n, GError **error);
bool mpi_all_gather(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data,
                    int64_t n, GError **error);
bool mpi_all_to_all(ExecTransport *transport, const ExecGroup *group, const ExecExchange *exchange,
                    GError **error);
bool mpi_broadcast(ExecTransport *transport, const ExecGroup *group, int32_t root, void *data,
                   int64_t n_bytes, GError **error);
bool mpi_barrier(ExecTransport *transport, const ExecGroup *group, GError **error);

G_END_DECLS

#endif /* EXECUTOR_MPI_STATE_H */
