/*
 * executor/transport/mailbox.h - the mailbox of a rank of local.c: messages in the order in which
 * they were sent, buffers kept for the next messages, places where messages are awaited, and the
 * messages that the rank has lent to others.
 *
 * Bytes come from one rank to another in three ways:
 *   copied   put() keeps a copy at the receiver until it is received;
 *   awaited  the receiver has named a place for the message (expect()), and put() copies into it;
 *   lent     the bytes stay at the sender until the receiver has named a place for them.
 * A message that is both lent and awaited is copied once and needs no memory but its place, whether
 * the sender or the receiver comes first.  That keeps a run's memory the same every time: how many
 * copied messages wait at a rank depends on how far other ranks are ahead of it.
 *
 * Every mailbox has a mutex; a thread holds one at a time.  Bytes are copied without a mutex, so
 * before memory is used for anything else, withdraw() waits for places that are being filled and
 * for loans that are being copied.
 *
 * Private to local.c.
 */
#pragma once

#include <stdatomic.h>

#include "executor/transport/transport.h"

/* A message in a queue, or a buffer that is kept for one. */
typedef struct ExecMail ExecMail;
struct ExecMail {
    ExecMail *next;
    ExecMail *next_loan; /* the next that the sender has lent */
    int64_t tag, n_bytes;
    int64_t room_bytes; /* of data[] */
    int32_t from, to;
    const char *lent; /* (borrowed, nullable) where the bytes are; NULL: they are in data[] */
    _Alignas(64) char data[];
};

/* A place where a message is awaited. */
typedef struct ExecAwaited ExecAwaited;
struct ExecAwaited {
    ExecAwaited *next;
    int64_t tag, n_bytes;
    int64_t got_bytes; /* the length of the message that has come; -1: none, or not all of it */
    int32_t from;
    bool filling; /* its message has come, and is copied here */
    void *data;   /* (borrowed) the place */
};

typedef struct ExecMailbox {
    GMutex mutex;
    GCond changed;        /* a message has come, or a loan has come back */
    ExecMail *first;      /* (owned) the queue */
    ExecMail **last;      /* the next of its last message */
    ExecMail *spare;      /* (owned) buffers for the next messages */
    ExecMail *loans;      /* what this rank has lent, by next_loan; owned by the queue it is in */
    ExecAwaited *awaited; /* (owned) in the order of expect() */
    int64_t buffer_bytes; /* of the queue and of spare buffers */
    atomic_int_fast64_t n_changes;
    int n_sleeping; /* threads in exec_mailbox_sleep() */
    atomic_int waiting_for;
    atomic_int_fast64_t waited_until_ns;
} ExecMailbox;

void exec_mailbox_init(ExecMailbox *box);
/* May be called when nobody uses any of the mailboxes any more. */
void exec_mailbox_clear(ExecMailbox *box);

/* Puts the message that @header describes (from, to, tag, n_bytes) into the mailbox of its
 * receiver. With @lend, @data stays where it is until the receiver has copied it.  False on
 * EXEC_ERROR_MEMORY. */
bool exec_mailbox_put(ExecMailbox *boxes, const ExecMail *header, const void *data, bool lend,
                      GError **error);

/* Takes the first message of @from with @tag out of the queue; NULL: there is none.  The caller
 * holds the mutex. */
ExecMail *exec_mailbox_find(ExecMailbox *box, int32_t from, int64_t tag);
/* Returns: (borrowed) the bytes of a message. */
const void *exec_mail_data(const ExecMail *mail);
/* Gives back a message whose bytes have been copied. */
void exec_mailbox_dispose(ExecMailbox *boxes, ExecMail *mail);

/* Names @data as the place of the next message that rank @rank gets as @header says (from, tag,
 * n_bytes).  exec_mailbox_take_awaited() receives it. */
void exec_mailbox_expect(ExecMailbox *boxes, int32_t rank, const ExecMail *header, void *data);
/* Returns: (borrowed) the place at @data where the message is awaited; NULL: there is none.  The
 * caller holds the mutex. */
ExecAwaited *exec_mailbox_awaited(ExecMailbox *box, int32_t from, int64_t tag, const void *data);
/* Forgets a place.  The caller holds the mutex. */
void exec_mailbox_take_awaited(ExecMailbox *box, ExecAwaited *awaited);

/* Returns a rank that has not copied yet what the mailbox's rank has lent of these bytes (@data
 * NULL: of any); EXEC_NOT_WAITING: there is none.  The caller holds the mutex. */
int32_t exec_mailbox_borrower(const ExecMailbox *box, const void *data, int64_t n_bytes);

/* Sleeps until something changes in the mailbox, or until @until_us on g_get_monotonic_time()'s
 * clock. The caller holds the mutex. */
void exec_mailbox_sleep(ExecMailbox *box, int64_t until_us);

/* Ends all loans of @rank and forgets its places, whose messages are lost.  When it returns nobody
 * touches their memory any more. */
void exec_mailbox_withdraw(ExecMailbox *boxes, int32_t n_ranks, int32_t rank);
