/*
 * executor/watch/watch_wire.h - what ranks in processes of their own tell the watcher, and it tells them:
 * records of one size over TCP, between processes of one build.
 *
 * A rank says hello with the watcher's secret, then how it does, a few times a second, then that it
 * has failed or is done.  The watcher says when to stop after the step, to end at once, or that all
 * are done: mpirun kills a job as soon as one rank has ended badly, so rank 0 must not do so before
 * the others have left MPI.
 *
 * Private to executor/.
 */
#ifndef EXECUTOR_WATCH_WATCH_WIRE_H
#define EXECUTOR_WATCH_WATCH_WIRE_H

#include <glib.h>
#include <stdint.h>

G_BEGIN_DECLS

/* Where a launched rank finds its watcher: SECRET@ADDRESS,ADDRESS,...:PORT */
#define EXEC_WATCH_VARIABLE "DEGAS_WATCH"

#define EXEC_WATCH_MAGIC 0x64676131u /* "dga1" */
#define EXEC_WATCH_SECRET 32         /* characters */

typedef enum {
    EXEC_WATCH_HELLO, /* text: "SECRET\nHOST\nMACHINE", MACHINE equal where processes see each other
                       */
    EXEC_WATCH_PULSE, /* text: what it is doing */
    EXEC_WATCH_FAILED, /* code: ExecError; text: the message */
    EXEC_WATCH_DONE,
    EXEC_WATCH_STOP,  /* from here on the watcher's: end after this step */
    EXEC_WATCH_BYE,   /* all ranks are done: whoever ends now disturbs nobody */
    EXEC_WATCH_ABORT, /* code: ExecError; text: why.  End now */
} ExecWatchKind;

typedef struct {
    uint32_t magic, kind;
    int32_t rank, pid, waiting_for, code;
    int64_t step;
    int64_t idle_ns;  /* since it moved, when this was sent */
    int64_t limit_ns; /* rank 0: how long a rank may not move; 0: not known yet */
    double loss;      /* rank 0: of step-1 */
    /* The process that started this one (mpirun, orted, ...): for how long it has been stopped when
     * this was sent, 0: it is not; then its name too. */
    int64_t starter_stopped_ns;
    int32_t starter_pid;
    char starter[20];
    char text[424]; /* ends in a NUL, as all */
} ExecWatchRecord;

/* Returns: (owned) equal for processes that can signal one another: one kernel, one name space. */
char *exec_watch_machine(void);

G_STATIC_ASSERT(sizeof(ExecWatchRecord) == 512);

G_END_DECLS

#endif /* EXECUTOR_WATCH_WATCH_WIRE_H */
