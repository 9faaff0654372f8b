/*
 * executor/transport/mailbox.h - what lies at a rank of local.c: messages in the order of sending,
 * buffers kept for the next ones, places that await a message, and what the rank has lent.
 *
 * Three ways for bytes to come from one rank to another:
 *   copied   put() keeps a copy at the receiver until it takes it;
 *   awaited  the receiver has named the message's place (expect()): put() copies straight into it;
 *   lent     the sender's bytes stay where they are until the receiver has named a place.
 * Lent and awaited, a message is copied once and takes no memory but its place, whoever comes
 * first.  That is what keeps memory the same on every run: how many copied messages lie at a rank
 * depends on how far others are ahead of it.
 *
 * One mutex a mailbox; none is taken while another is held.  Bytes are copied without one, so a
 * place that is being filled, and a loan that is being copied, are waited for before their memory
 * is given to anything else (withdraw()).
 *
 * Private to executor/transport/local.c.
 */
#ifndef EXECUTOR_TRANSPORT_MAILBOX_H
#define EXECUTOR_TRANSPORT_MAILBOX_H

#include <stdatomic.h>

#include "executor/transport/transport.h"

G_BEGIN_DECLS

/* A message that is queued, or was. */
typedef struct ExecMail ExecMail;
struct ExecMail {
    ExecMail *next;
    ExecMail *next_loan; /* of the sender's */
    int64_t tag, n_bytes;
    int64_t room_bytes; /* of data[] */
    int32_t from, to;
    const char *lent; /* (borrowed, nullable) where the bytes are; NULL: in data[] */
    _Alignas(64) char data[];
};

/* Where a message goes that has not been received. */
typedef struct ExecAwaited ExecAwaited;
struct ExecAwaited {
    ExecAwaited *next;
    int64_t tag, n_bytes;
    int64_t got_bytes; /* the message's own length; -1: not there, or being copied */
    int32_t from;
    bool filling; /* its message has been found */
    void *data;   /* (borrowed) */
};

typedef struct {
    GMutex mutex;
    GCond changed;        /* something arrived, or a loan came back */
    ExecMail *first;      /* (owned) the queue */
    ExecMail **last;      /* its final next */
    ExecMail *spare;      /* (owned) */
    ExecMail *loans;      /* of this rank's, by next_loan; owned where they are queued */
    ExecAwaited *awaited; /* (owned) in the order of expect() */
    int64_t buffer_bytes; /* of queue and spares */
    atomic_int_fast64_t n_changes;
    int n_sleeping; /* in exec_mailbox_sleep() */
    atomic_int waiting_for;
    atomic_int_fast64_t waited_until_ns;
} ExecMailbox;

void exec_mailbox_init(ExecMailbox *box);
/* When nobody uses any mailbox any more. */
void exec_mailbox_clear(ExecMailbox *box);

/* Rank @from's message to rank @to of @boxes.  @lend: @data stays as it is until it has been
 * copied.  False: EXEC_ERROR_MEMORY. */
bool exec_mailbox_put(ExecMailbox *boxes, const ExecMail *header, const void *data, bool lend,
                      GError **error);

/* With the mailbox's mutex held: takes the first such message out of the queue; NULL: none. */
ExecMail *exec_mailbox_find(ExecMailbox *box, int32_t from, int64_t tag);
/* Its bytes. */
const void *exec_mail_data(const ExecMail *mail);
/* They are not needed any more. */
void exec_mailbox_dispose(ExecMailbox *boxes, ExecMail *mail);

/* The next such message goes to @data; received by exec_mailbox_take_awaited(). */
void exec_mailbox_expect(ExecMailbox *boxes, int32_t rank, const ExecMail *header, void *data);
/* With the mutex held: the place where such a message is awaited; NULL: nowhere. */
ExecAwaited *exec_mailbox_awaited(ExecMailbox *box, int32_t from, int64_t tag, const void *data);
void exec_mailbox_take_awaited(ExecMailbox *box, ExecAwaited *awaited);

/* With the mutex held: who has not copied yet what @box's rank has lent of these bytes (NULL: of
 * all); EXEC_NOT_WAITING: nobody. */
int32_t exec_mailbox_borrower(const ExecMailbox *box, const void *data, int64_t n_bytes);

/* With the mutex held: until something changes, or @until_us of g_get_monotonic_time(). */
void exec_mailbox_sleep(ExecMailbox *box, int64_t until_us);

/* Nobody touches memory that @rank has lent, or awaits messages in; what was under way is lost. */
void exec_mailbox_withdraw(ExecMailbox *boxes, int32_t n_ranks, int32_t rank);

G_END_DECLS

#endif /* EXECUTOR_TRANSPORT_MAILBOX_H */
