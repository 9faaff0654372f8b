/*
 * executor/transport/collective.h - collectives that are made of messages, with a fixed order of
 * additions.
 *
 * They are rings: a reduce-scatter and an all-gather, in each of which a rank sends (n-1)/n of the
 * bytes [Patarasuk and Yuan 2009].  The order of additions depends on the ranks only, so equal runs
 * give equal bits.
 *
 * Transport `local` has no other collectives, in host memory or on a device that its ranks share.
 * Transport `mpi` uses these instead of MPI's own in deterministic runs, since MPI chooses its
 * algorithm, and with it the order of additions, by size and machine.
 *
 * For transports only.
 */
#pragma once

#include "executor/transport/transport.h"

/* Rings pass chunks on in segments of at most this length.  So messages are small however long the
 * data are, and so are the buffers of messages under way: no member is ahead of another by more
 * than a segment for every member.  Segments of chunks that are at least this long are lent, where
 * the transport can, and take no buffers: a copy of one costs 40 us, which is more than waiting, at
 * the end of the collective, for a neighbour that is about to read it. */
#define EXEC_SEGMENT_BYTES (256 * 1024)

/* In place of a number format: a message that has arrived is copied, not added. */
#define EXEC_TAKE_COPY DTYPE_N

/* How a transport moves the messages of collectives.  Their tags are negative. */
struct ExecWire {
    int64_t segment_bytes; /* in place of EXEC_SEGMENT_BYTES; 0: that */
    /* Sends @data, which may be changed as soon as the call returns. */
    bool (*post)(ExecTransport *transport, int32_t to, int64_t tag, const void *data,
                 int64_t n_bytes, GError **error);
    /* Waits for a message and copies it to @data (EXEC_TAKE_COPY), or adds its elements of format
     * @add to those of @data. */
    bool (*take)(ExecTransport *transport, int32_t from, int64_t tag, Dtype add, void *data,
                 int64_t n_bytes, GError **error);
    /* (nullable) Copies what a member gives to itself; NULL: memcpy() does. */
    void (*copy)(ExecTransport *transport, const void *from, void *to, int64_t n_bytes);
    /* (nullable, all or none) The slots of ExecTransportOps of these names. */
    bool (*lend)(ExecTransport *transport, int32_t to, int64_t tag, const void *data,
                 int64_t n_bytes, GError **error);
    bool (*regain)(ExecTransport *transport, const void *data, int64_t n_bytes, GError **error);
    void (*withdraw)(ExecTransport *transport);
};

/* Adds @n elements: to[i] += from[i].  Sums in bf16 are rounded to nearest, ties to even. */
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
bool exec_wire_begin_exchange(ExecTransport *transport, const ExecGroup *group,
                              const ExecExchange *exchange, GError **error);
bool exec_wire_end_exchange(ExecTransport *transport, const ExecGroup *group,
                            const ExecExchange *exchange, GError **error);
bool exec_wire_broadcast(ExecTransport *transport, const ExecGroup *group, int32_t root, void *data,
                         int64_t n_bytes, GError **error);
bool exec_wire_barrier(ExecTransport *transport, const ExecGroup *group, GError **error);

/* In a table of slots: the functions above, but for the barrier. */
#define EXEC_WIRE_COLLECTIVES                                                                      \
    .all_reduce = exec_wire_all_reduce, .reduce_scatter = exec_wire_reduce_scatter,                \
    .all_gather = exec_wire_all_gather, .all_to_all = exec_wire_all_to_all,                        \
    .begin_exchange = exec_wire_begin_exchange, .end_exchange = exec_wire_end_exchange,            \
    .broadcast = exec_wire_broadcast
