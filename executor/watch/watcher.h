/*
 * executor/watch/watcher.h - watches over ranks that are processes, maybe on other hosts.
 *
 * The watcher is a process of its own: the one that started mpirun, or where somebody else did, a
 * child of rank 0's process.  So it outlives any rank.  Every rank has a connection to it and says
 * a few times a second what it does (watch_wire.h).
 *
 *   the connection closes        the rank died, at once
 *   silence for 3 s              the process is stopped (SIGSTOP), whatever it was doing; before
 *                                its first word where it runs on this machine: starting.h
 *   no word for the limit        since the first rank's (30 s, or the timeout but at least 3 s):
 *                                one that was stopped, or never started, on another host; since
 *                                the start for 120 s: nobody was started
 *   its starter is stopped       as a rank says of the process that started it, for 3 s: the
 *                                daemon of MPI on another host, without which it cannot end.
 *                                Somebody else's mpirun: for the limit of a hang
 *   no progress for the limit    it hangs; who is to blame: watch.h
 *
 * Whatever happens first becomes the error; all other ranks are told to end, and those of this
 * machine that do not are killed.
 *
 * Thread-safety: none.
 */
#ifndef EXECUTOR_WATCH_WATCHER_H
#define EXECUTOR_WATCH_WATCHER_H

#include "executor/device/backend.h"

G_BEGIN_DECLS

typedef struct ExecWatcher ExecWatcher;

typedef struct {
    int32_t n_ranks;
    double timeout_s; /* a rank hangs that does not move for so long; 0: rank 0's opinion */
    bool other_hosts; /* listen on all interfaces, not on the loopback only */
} ExecWatcherOptions;

/* Listens from now on.  NULL on EXEC_ERROR_FAILED. */
ExecWatcher *exec_watcher_new(const ExecWatcherOptions *options, GError **error);
void exec_watcher_free(ExecWatcher *watcher);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecWatcher, exec_watcher_free)

/* The caller started the ranks by its child @pid, and watches that itself. */
void exec_watcher_set_starter(ExecWatcher *watcher, int32_t pid);

/* (borrowed) what EXEC_WATCH_VARIABLE must be for the ranks. */
const char *exec_watcher_where(const ExecWatcher *watcher);

typedef enum {
    EXEC_WATCHER_GOING,
    EXEC_WATCHER_DONE,   /* all ranks have ended well */
    EXEC_WATCHER_FAILED, /* @error is set, once; the ranks have been told */
} ExecWatcherState;

/* How long a process may be silent, or be seen to be stopped: 3 s, or the timeout if shorter. */
int64_t exec_watcher_silence_ns(const ExecWatcher *watcher);

/* Reads what has arrived and judges; never waits.  To be called at least every 100 ms. */
ExecWatcherState exec_watcher_look(ExecWatcher *watcher, GError **error);

/* Asks all ranks to end after their step, those that have not come yet too. */
void exec_watcher_stop(ExecWatcher *watcher);
/* Tells all ranks to end at once: @why to them. */
void exec_watcher_abort(ExecWatcher *watcher, const GError *why);

/* After a failure: waits until all ranks have gone, at most @limit_s, and kills those of this
 * machine that have not. */
void exec_watcher_clean_up(ExecWatcher *watcher, double limit_s);

/* Whether any rank has ever said hello. */
bool exec_watcher_has_started(const ExecWatcher *watcher);

/* Rank 0's step and the loss of the one before; @step -1: none yet. */
void exec_watcher_progress(const ExecWatcher *watcher, int64_t *step, double *loss);

G_END_DECLS

#endif /* EXECUTOR_WATCH_WATCHER_H */
