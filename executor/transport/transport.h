/*
 * executor/transport/transport.h - how ranks exchange tensors, as a table of named slots
 * (ExecTransportOps).
 *
 * This room, executor/transport/, is what carries: the contract, ranks that are threads (local.h)
 * or processes (peers.h), tensors in device memory (device.h), the groups of ranks
 * and their collectives for layers (comm.h), and the timing of collectives for a profile
 * (measured_collectives.h).  All rooms of executor/ above it may come in; it knows backends, and no
 * layers or schedules.
 *
 * Messages between two ranks are matched by sender and tag, equal ones in the order in which they
 * were sent.  Messages are bytes; elements of collectives have a type.  A send does not wait for
 * its receiver.
 *
 * Every wait ends: with the message, at the time limit (EXEC_ERROR_RANK_HUNG), or because a rank
 * has failed (abort(): EXEC_ERROR_RANK_DIED with the first reason given).
 */
#pragma once

#include <stdatomic.h>

#include "base/dtype.h"
#include "executor/device/backend.h"

typedef struct ExecTransport ExecTransport;
typedef struct ExecWire ExecWire; /* collective.h */

/* A group of ranks that call collectives together, as one of them sees it. */
typedef struct {
    const int32_t *ranks; /* (borrowed) the members, in the order of rings */
    int32_t n, index;     /* there are @n; this rank is ranks[index] */
} ExecGroup;

/* Returns where chunk @chunk begins: collectives cut @n elements into a chunk for each of the g
 * members, of which chunk i is [n i / g, n (i + 1) / g). */
static inline int64_t
exec_group_chunk_begin(const ExecGroup *group, int64_t n, int64_t chunk)
{
    return n / group->n * chunk + n % group->n * chunk / group->n;
}

/* What ranks prepare for when they meet before the first step. */
typedef enum {
    EXEC_MEET_COLLECTIVES,
    EXEC_MEET_MESSAGES, /* a group of two: messages from the first to the second */
    EXEC_MEET_ASIDE,    /* collectives in the second queue of backend.h's begin_aside() */
} ExecMeeting;

/* In this time all ranks must have been started and have come to a first meeting, unless the run
 * has a time limit of its own: far more than that takes. */
#define EXEC_MEET_NS (INT64_C(60) * 1000000000)

/* Answers of waiting_for() that are no rank. */

#define EXEC_NOT_WAITING (-1)
#define EXEC_WAITING_FOR_GROUP (-2) /* in a collective that does not tell for which rank */

/* What a member gives to every member, itself included, and gets from it: consecutive pieces in the
 * group's order.  out_bytes[j] of member i must equal in_bytes[i] of member j. */
typedef struct {
    const void *out;
    const int64_t *out_bytes; /* [group->n] */
    void *in;
    const int64_t *in_bytes; /* [group->n] */
} ExecExchange;

/* Returns where the piece of member @member begins among pieces of these lengths; for the number of
 * members it is what all pieces have together. */
static inline int64_t
exec_piece_begin(const int64_t *n_bytes, int32_t member)
{
    int64_t begin = 0;

    for (int32_t i = 0; i < member; i++)
        begin += n_bytes[i];
    return begin;
}

/* Every member of a group must call its collectives in the same order, with equal lengths. */
typedef struct {
    const char *name;
    /* Sends a copy of @data to rank @to; returns before it is received.  @tag >= 0. */
    bool (*send)(ExecTransport *transport, int32_t to, int64_t tag, const void *data,
                 int64_t n_bytes, GError **error);
    /* Waits for the message of rank @from with @tag, whose length must be @n_bytes. */
    bool (*receive)(ExecTransport *transport, int32_t from, int64_t tag, void *data,
                    int64_t n_bytes, GError **error);
    /* Replaces the @n elements of @data by their sums over the group.  @dtype is DTYPE_FP32, or
     * DTYPE_BF16, where every addition is rounded. */
    bool (*all_reduce)(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data,
                       int64_t n, GError **error);
    /* The two halves of all_reduce.  After reduce_scatter member i holds the sums of chunk i, and
     * unspecified values elsewhere.  all_gather copies chunk i of member i to everyone; it takes
     * any dtype. */
    bool (*reduce_scatter)(ExecTransport *transport, const ExecGroup *group, Dtype dtype,
                           void *data, int64_t n, GError **error);
    bool (*all_gather)(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data,
                       int64_t n, GError **error);
    /* Pieces may have any lengths, 0 too; out and in must not overlap. */
    bool (*all_to_all)(ExecTransport *transport, const ExecGroup *group,
                       const ExecExchange *exchange, GError **error);
    /* (optional, both or none; NULL: use all_to_all()) The two halves of such an exchange: after the
     * first one @exchange->out may change, the second waits until all has come.  Other collectives may
     * be called in between; exchanges end in the order in which they have begun. */
    bool (*begin_exchange)(ExecTransport *transport, const ExecGroup *group,
                           const ExecExchange *exchange, GError **error);
    bool (*end_exchange)(ExecTransport *transport, const ExecGroup *group,
                         const ExecExchange *exchange, GError **error);
    /* Copies @data of the member with index @root to all members. */
    bool (*broadcast)(ExecTransport *transport, const ExecGroup *group, int32_t root, void *data,
                      int64_t n_bytes, GError **error);
    bool (*barrier)(ExecTransport *transport, const ExecGroup *group, GError **error);
    /* (optional; NULL: messages arrive without it) Announces that receive() will be called for
     * exactly this message and into the same @data, so that its transfer may begin.  @data is NULL
     * where it is not known yet. */
    bool (*expect)(ExecTransport *transport, int32_t from, int64_t tag, void *data, int64_t n_bytes,
                   GError **error);
    /* (optional; NULL: use send()) As send() without a copy: the caller leaves @data unchanged
     * until regain() has returned. */
    bool (*lend)(ExecTransport *transport, int32_t to, int64_t tag, const void *data,
                 int64_t n_bytes, GError **error);
    /* (with lend) Waits until nobody needs what was lent of these bytes any more (@data NULL: of
     * all bytes), which takes until their receivers expect them. */
    bool (*regain)(ExecTransport *transport, const void *data, int64_t n_bytes, GError **error);
    /* (optional; NULL: not needed) Called before memory is released that was lent or that messages
     * are expected in, also after a failure: when it returns nobody touches such memory any more.
     */
    void (*withdraw)(ExecTransport *transport);
    /* (optional; NULL: messages move by themselves) Moves on messages that are under way; called
     * between pieces of computing. */
    bool (*poll)(ExecTransport *transport, GError **error);
    /* (optional; NULL: there is nothing to prepare) Called by all members of a group before the
     * first step; all ranks call it for their groups in one order. */
    bool (*meet)(ExecTransport *transport, const ExecGroup *group, ExecMeeting what,
                 GError **error);
    /* --- four that any thread may call --- */

    /* Returns the rank that this rank waits for now, EXEC_WAITING_FOR_GROUP or EXEC_NOT_WAITING. */
    int32_t (*waiting_for)(const ExecTransport *transport);
    /* Returns when this rank's last wait ended, on exec_now_ns()'s clock; 0: it has never waited.
     */
    int64_t (*waited_until_ns)(const ExecTransport *transport);
    /* Returns the bytes of messages that wait here and of buffers that are kept for the next. */
    int64_t (*buffer_bytes)(const ExecTransport *transport);
    /* Makes every present and future wait fail, of all ranks of this process; the first reason is
     * kept. */
    void (*abort)(ExecTransport *transport, const char *reason);
} ExecTransportOps;

/* In a table of slots: those that every transport has of its own, with the slots' names. */
#define EXEC_OWN_COLLECTIVES                                                                       \
    .all_reduce = all_reduce, .reduce_scatter = reduce_scatter, .all_gather = all_gather,          \
    .all_to_all = all_to_all, .broadcast = broadcast, .barrier = barrier
#define EXEC_OWN_ANSWERS                                                                           \
    .waiting_for = waiting_for, .waited_until_ns = waited_until_ns, .buffer_bytes = buffer_bytes

/* One rank's end of a transport. */
struct ExecTransport {
    const ExecTransportOps *ops;
    int32_t rank, n_ranks;
    int64_t sent_bytes;   /* by this rank, all messages and collectives */
    int64_t waited_ns;    /* for how long the last receive waited for its message */
    bool queues;          /* collectives are work in the backend's queue, or its queue aside */
    const ExecWire *wire; /* (borrowed, nullable) where collectives are made of messages */
    void *state;          /* (borrowed) of the transport */
};

/* Returns: (owned) 0, 1, ..., @n - 1: the members of a group of all ranks. */
int32_t *exec_ranks_new(int32_t n);

/* --- for transports --- */

/* Whether the waits of this process are to fail, and why.  Any thread may set it. */
typedef struct {
    atomic_bool is_set;
    GMutex mutex;
    char *reason; /* (owned) under the mutex; there before is_set is true */
} ExecAbort;

void exec_abort_init(ExecAbort *abort);
void exec_abort_clear(ExecAbort *abort);
/* The first reason is kept. */
void exec_abort_set(ExecAbort *abort, const char *reason);
/* False with EXEC_ERROR_RANK_DIED and the reason once it has been set. */
bool exec_abort_check(ExecAbort *abort, GError **error);

/* Whether a message of rank @from has the length that was expected; else EXEC_ERROR_FAILED. */
bool exec_check_length(const ExecTransport *transport, int32_t from, int64_t expected_bytes,
                       int64_t got_bytes, GError **error);

/* --- kinds --- */

/* A kind of transport: one row of the table in transport.c. */
typedef struct {
    const char *name;  /* as --transport has it; NULL: there is no such kind */
    bool in_processes; /* every rank is a process of its own; else ranks are threads of one */
    bool without_mpi;  /* processes that meet by peers.h, whoever has started them */
    bool is_nccl;      /* between GPUs; the ranks meet by MPI or by peers.h */
} ExecTransportKind;

/* Returns: (borrowed) the row of @name; for an unknown name one whose name is NULL and whose flags
 * are all false. */
const ExecTransportKind *exec_transport_kind(const char *name);

/* Returns: (borrowed) the names of all kinds, the usual one first, and NULL. */
const char *const *exec_transport_names(void);
