/*
 * executor/transport/collective.h - collectives out of messages, each with a fixed order of
 * additions.
 *
 * `local` has no other collectives, in host memory or on a device that its ranks share; `mpi` uses
 * these instead of MPI's own where equal runs must give equal bits: MPI chooses its algorithm, and
 * so the order, by size and machine.
 *
 * Private to executor/transport_*.c.
 */
#ifndef EXECUTOR_TRANSPORT_COLLECTIVE_H
#define EXECUTOR_TRANSPORT_COLLECTIVE_H

#include "executor/transport/transport.h"

G_BEGIN_DECLS

/* Rings pass chunks on in segments, so that a message is small however long the data, and so are
 * the buffers of those under way: nobody is ahead by more than a segment for every member.  Chunks
 * of a segment or more are lent where the transport can, and take no buffers: a copy of one costs
 * 40 us, more than to wait, at the collective's end, for a neighbour that is about to read. */
#define EXEC_SEGMENT_BYTES (256 * 1024)

/* What to do with a message that has arrived: DTYPE_N copies it, another type adds it. */
#define EXEC_TAKE_COPY DTYPE_N

/* How a transport moves the messages of collectives; tags are negative. */
struct ExecWire {
    /* Returns before it is received; @data may be changed afterwards. */
    bool (*post)(ExecTransport *transport, int32_t to, int64_t tag, const void *data,
                 int64_t n_bytes, GError **error);
    bool (*take)(ExecTransport *transport, int32_t from, int64_t tag, Dtype add, void *data,
                 int64_t n_bytes, GError **error);
    /* (nullable) for what a member gives itself; NULL: memcpy() */
    void (*copy)(ExecTransport *transport, const void *from, void *to, int64_t n_bytes);
    /* (nullable, all or none) As ExecTransportOps's; tags are negative. */
    bool (*lend)(ExecTransport *transport, int32_t to, int64_t tag, const void *data,
                 int64_t n_bytes, GError **error);
    bool (*regain)(ExecTransport *transport, const void *data, int64_t n_bytes, GError **error);
    void (*withdraw)(ExecTransport *transport);
};

/* to[i] += from[i]; bf16 sums are rounded to nearest, ties to even. */
void exec_add(Dtype dtype, void *to, const void *from, int64_t n);

/* The slots of ExecTransportOps of these names, for transports with a wire. */
bool exec_wire_all_reduce(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data,
                          int64_t n, GError **error);
bool exec_wire_reduce_scatter(ExecTransport *transport, const ExecGroup *group, Dtype dtype,
                              void *data, int64_t n, GError **error);
bool exec_wire_all_gather(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data,
                          int64_t n, GError **error);
bool exec_wire_all_to_all(ExecTransport *transport, const ExecGroup *group,
                          const ExecExchange *exchange, GError **error);
bool exec_wire_broadcast(ExecTransport *transport, const ExecGroup *group, int32_t root, void *data,
                         int64_t n_bytes, GError **error);
bool exec_wire_barrier(ExecTransport *transport, const ExecGroup *group, GError **error);

G_END_DECLS

#endif /* EXECUTOR_TRANSPORT_COLLECTIVE_H */
