/*
 * executor/transport/transport.h - ExecTransportOps: how ranks exchange tensors, as a table of
 * named slots.
 *
 * `local`: ranks are threads of one process.  Point-to-point messages are matched by (sender, tag),
 * equal ones in the order they were sent; they are bytes, collectives' elements have a type.  Sends
 * never wait for the receiver: the message is copied into the receiver's mailbox (mailbox.h), which
 * holds no more than the schedule keeps in flight; its buffers are used again.  Collectives are
 * rings whose order of additions depends on the ranks only: reduce-scatter then all-gather, (n-1)/n
 * of the bytes per rank each [Patarasuk and Yuan 2009]. Waiting spins briefly if every rank has a
 * core of its own, then sleeps, so that ranks may outnumber cores.
 *
 * Data lies in host memory.
 *
 * Every wait ends: by the message, by the time limit (EXEC_ERROR_RANK_HUNG), or because a rank
 * failed (exec_transport_abort: EXEC_ERROR_RANK_DIED with the first reason given).
 */
#ifndef EXECUTOR_TRANSPORT_TRANSPORT_H
#define EXECUTOR_TRANSPORT_TRANSPORT_H

#include <stdatomic.h>

#include "base/dtype.h"
#include "executor/device/backend.h"

G_BEGIN_DECLS

typedef struct ExecTransport ExecTransport;
typedef struct ExecWire ExecWire; /* collective.h */

/* A rank's view of a communicator of @n ranks. */
typedef struct {
    const int32_t *ranks; /* (borrowed) members in ring order */
    int32_t n, index;     /* this rank is ranks[index] */
} ExecGroup;

/* Collectives cut @n elements into one chunk per member: chunk i is [n i / g, n (i+1) / g). */
static inline int64_t
exec_group_chunk_begin(const ExecGroup *group, int64_t n, int64_t chunk)
{
    return n / group->n * chunk + n % group->n * chunk / group->n;
}

/* What ranks make ready for when they meet. */
typedef enum {
    EXEC_MEET_COLLECTIVES,
    EXEC_MEET_MESSAGES, /* two ranks: of the first to the second */
    EXEC_MEET_ASIDE,    /* collectives in the queue of begin_aside() */
} ExecMeeting;

#define EXEC_NOT_WAITING (-1)
#define EXEC_WAITING_FOR_GROUP (-2) /* in a collective that does not say for whom */

/* What a member gives to and gets from every member, itself included: consecutive pieces in the
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
    /* Copies @data towards @to; returns before it is received.  @tag >= 0. */
    bool (*send)(ExecTransport *transport, int32_t to, int64_t tag, const void *data,
                 int64_t n_bytes, GError **error);
    /* Waits for the message of @from with @tag; its length must be @n_bytes. */
    bool (*receive)(ExecTransport *transport, int32_t from, int64_t tag, void *data,
                    int64_t n_bytes, GError **error);
    /* (sum) in place over the group, of @n elements of @dtype: DTYPE_FP32, or DTYPE_BF16 with
     * every addition rounded. */
    bool (*all_reduce)(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data,
                       int64_t n, GError **error);
    /* The halves of all_reduce.  After reduce_scatter member i holds the sum in chunk i and
     * unspecified values elsewhere; all_gather (any dtype: it only copies) copies chunk i of member
     * i to everyone. */
    bool (*reduce_scatter)(ExecTransport *transport, const ExecGroup *group, Dtype dtype,
                           void *data, int64_t n, GError **error);
    bool (*all_gather)(ExecTransport *transport, const ExecGroup *group, Dtype dtype, void *data,
                       int64_t n, GError **error);
    /* Pieces of any lengths, 0 too; out and in must not overlap. */
    bool (*all_to_all)(ExecTransport *transport, const ExecGroup *group,
                       const ExecExchange *exchange, GError **error);
    /* Copies @data of member @root (an index into the group) to all. */
    bool (*broadcast)(ExecTransport *transport, const ExecGroup *group, int32_t root, void *data,
                      int64_t n_bytes, GError **error);
    bool (*barrier)(ExecTransport *transport, const ExecGroup *group, GError **error);
    /* (optional) A receive of exactly this message will follow, into the same @data: its transfer
     * may begin.  @data  (nullable) NULL: where it goes is not known yet.  NULL: sends need no
     * receiver to arrive. */
    bool (*expect)(ExecTransport *transport, int32_t from, int64_t tag, void *data, int64_t n_bytes,
                   GError **error);
    /* (optional) send() without a copy: @data stays as it is until regain() has said so.  NULL:
     * send() does. */
    bool (*lend)(ExecTransport *transport, int32_t to, int64_t tag, const void *data,
                 int64_t n_bytes, GError **error);
    /* (with lend) Waits until nobody needs what was lent of these bytes (NULL: of all): as long as
     * their receivers take to expect them. */
    bool (*regain)(ExecTransport *transport, const void *data, int64_t n_bytes, GError **error);
    /* (optional) Before memory that was lent, or that messages are expected in, is released, also
     * after a failure: nobody touches it any more.  NULL: nobody does after an abort. */
    void (*withdraw)(ExecTransport *transport);
    /* (optional) Moves on what is under way; called between pieces of computing.  NULL: messages
     * move by themselves. */
    bool (*poll)(ExecTransport *transport, GError **error);
    /* (optional) All members call it, all ranks in one order, before the first step.  NULL: nothing
     * to make ready. */
    bool (*meet)(ExecTransport *transport, const ExecGroup *group, ExecMeeting what,
                 GError **error);
    /* Three that any thread may ask. */
    /* The rank it is blocked on just now, EXEC_WAITING_FOR_GROUP or EXEC_NOT_WAITING. */
    int32_t (*waiting_for)(const ExecTransport *transport);
    /* When its last wait ended, on the monotonic clock; 0: it has never waited. */
    int64_t (*waited_until_ns)(const ExecTransport *transport);
    /* Of messages that lie here, or of buffers kept for the next ones. */
    int64_t (*buffer_bytes)(const ExecTransport *transport);
    /* Makes every present and future wait of all ranks fail; the first reason is kept. */
    void (*abort)(ExecTransport *transport, const char *reason);
} ExecTransportOps;

/* One rank's endpoint. */
struct ExecTransport {
    const ExecTransportOps *ops;
    int32_t rank, n_ranks;
    int64_t sent_bytes;   /* by this rank, all messages and collectives */
    int64_t waited_ns;    /* of the last receive: blocked before the message was there */
    bool queues;          /* collectives are work in the backend's queue: also aside (backend.h) */
    const ExecWire *wire; /* (borrowed, nullable) where collectives are made of messages */
    void *state;          /* (borrowed) of the transport */
};

void exec_transport_abort(ExecTransport *transport, const char *reason);

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
    bool is_nccl;      /* between GPUs; the ranks meet by MPI or by peers.h */
} ExecTransportKind;

/* Returns: (borrowed) the row of @name; for an unknown name one whose name is NULL and whose flags
 * are all false. */
const ExecTransportKind *exec_transport_kind(const char *name);

/* Returns: (borrowed) the names of all kinds, the usual one first, and NULL. */
const char *const *exec_transport_names(void);

G_END_DECLS

#endif /* EXECUTOR_TRANSPORT_TRANSPORT_H */
