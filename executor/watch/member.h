/*
 * executor/watch/member.h - a rank's connection to the watcher of its job, and what both say.
 *
 * They exchange records of one size over TCP.  Each record carries the version of what they say and
 * a checksum, as messages between ranks do (executor/transport/seal.h): a damaged record ends the
 * run with the rank's name, and so does a rank of another version.  A rank says hello
 * with the watcher's secret, then several times a second what it does, and at last that it has
 * failed or is done.  The watcher says when to stop after the step, when to end at once, and when
 * all ranks are done: mpirun kills a job as soon as one of its ranks has ended badly, so no rank
 * may end before the others have left MPI.
 *
 * Thread-safety: none.  The process's main thread holds the connection while the rank computes in
 * another.
 */
#pragma once

#include "executor/device/backend.h"

/* Where a launched rank finds its watcher: SECRET@ADDRESS,ADDRESS,...:PORT */
#define EXEC_WATCH_VARIABLE "DEGAS_WATCH"

#define EXEC_WATCH_MAGIC 0x64676177u /* "dgaw": a record of degas, not of another program */
#define EXEC_WATCH_VERSION 2         /* 1 had neither a version nor a checksum */
#define EXEC_WATCH_SECRET 32         /* characters */

typedef enum {
    /* From a rank to the watcher. */
    EXEC_WATCH_HELLO,  /* text: "SECRET\nHOST\nMACHINE", MACHINE as exec_watch_machine() */
    EXEC_WATCH_PULSE,  /* text: what the rank is doing */
    EXEC_WATCH_FAILED, /* code: ExecError; text: the message */
    EXEC_WATCH_DONE,
    /* From the watcher to a rank. */
    EXEC_WATCH_STOP,  /* end after this step */
    EXEC_WATCH_BYE,   /* all ranks are done: a rank that ends now disturbs no other */
    EXEC_WATCH_ABORT, /* end now; code: ExecError; text: why */
} ExecWatchKind;

/* Every version from 2 on has this size, and begins with the fields up to `text`. */
typedef struct {
    uint32_t magic, version;
    uint64_t seal; /* exec_watch_seal() */
    uint32_t kind;
    int32_t rank;
    char text[404]; /* ends in a NUL, as all texts here */
    int32_t pid, waiting_for, code;
    int32_t wants_stop; /* not 0: the rank was asked to end after its step, as all should then */
    int32_t starter_pid;
    int64_t step;
    int64_t idle_ns;  /* how long the rank had not moved when this was sent */
    int64_t limit_ns; /* from rank 0: how long a rank may not move; 0: not known yet */
    double loss;      /* from rank 0: of the step before @step */
    /* About the process that started the sender (mpirun, orted, ...): how long it had been stopped
     * when this was sent, 0 if it was not; if it was, its process number and name too. */
    int64_t starter_stopped_ns;
    char starter[24];
} ExecWatchRecord;

G_STATIC_ASSERT(sizeof(ExecWatchRecord) == 512);

/* Returns: (owned) a text that is equal for processes that can signal one another: those of one
 * kernel and one space of process numbers. */
char *exec_watch_machine(void);

typedef enum {
    EXEC_WATCH_READ_NOTHING, /* no whole record has arrived yet */
    EXEC_WATCH_READ_RECORD,
    EXEC_WATCH_READ_DAMAGED, /* as many bytes that are no record, or have another checksum */
    EXEC_WATCH_READ_VERSION, /* a record of another version: only its first fields count */
    EXEC_WATCH_READ_END,     /* the other side closed the connection */
} ExecWatchRead;

/* Makes @record one that exec_watch_read() accepts: to be called when all else is in it. */
void exec_watch_seal(ExecWatchRecord *record);

/*
 * Reads what has arrived on @fd; never waits.
 *
 * @record   (inout) is filled from call to call
 * @n_bytes  (inout) how much of it has arrived; 0 at first, and again after a whole record
 */
ExecWatchRead exec_watch_read(int fd, ExecWatchRecord *record, size_t *n_bytes);

typedef struct ExecMember ExecMember;

/*
 * Connects to the watcher and says hello.
 *
 * @where  the value of EXEC_WATCH_VARIABLE
 * Returns: (owned) NULL on EXEC_ERROR_FAILED: nobody listens at any of its addresses.
 */
ExecMember *exec_member_connect(const char *where, int32_t rank, GError **error);
void exec_member_free(ExecMember *member);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecMember, exec_member_free)

/* Frees @member (nullable) and leaves its connection open until the process ends, which is when the
 * watcher takes the rank to have ended: what it writes after its last order is waited for. */
void exec_member_keep_until_exit(ExecMember *member);

/* What is wrong when a rank's version is not the watcher's: (owned) EXEC_ERROR_FAILED, which names both. */
GError *exec_watch_version_error(int32_t rank, uint32_t rank_version, uint32_t watcher_version);

/* Sends @record, whose first fields, rank, pid and starter are filled in here.  Nothing is reported: that
 * the watcher is gone shows in the next exec_member_order(). */
void exec_member_tell(ExecMember *member, ExecWatchRecord *record);

typedef enum {
    EXEC_ORDER_NONE,
    EXEC_ORDER_STOP,  /* end after this step */
    EXEC_ORDER_BYE,   /* all ranks are done */
    EXEC_ORDER_ABORT, /* end now: @error says why */
    EXEC_ORDER_LOST,  /* the watcher is gone: @error says so */
    /* The watcher has spoken, but its words were damaged or are those of another version: @error
     * says so, and the watcher can still be told. */
    EXEC_ORDER_UNREADABLE,
} ExecOrder;

/* Waits up to @wait_ms for the watcher's next order.  ABORT and LOST also make the process that
 * started this one go on, should it be stopped: it has to end other ranks, and itself. */
ExecOrder exec_member_order(ExecMember *member, int wait_ms, GError **error);
