/*
 * executor/watch/watcher.h - watches over ranks that are processes, maybe on other hosts.
 *
 * The watcher is a process of its own, so that it outlives any rank: the process that started
 * mpirun, or, where somebody else did, a child of rank 0's process.  Every rank connects to it and
 * says several times a second what it does (member.h).  These are the signs of trouble:
 *
 *   a connection closes         The rank died; this is noticed at once.
 *   a rank is silent for 3 s    Its process is stopped (SIGSTOP), whatever it was doing.  Before it
 *                               has connected, a rank of this machine is seen to be stopped
 *                               (starting.h).
 *   a rank does not connect     It was stopped or never started on another host: 30 s after the
 *                               first rank connected, or after the timeout, which counts as 3 s at
 *                               least.  120 s after the start when no rank has connected.
 *   its starter is stopped      The rank says so of the process that started it, for 3 s: MPI's
 *                               daemon on another host, without which the rank cannot end.
 *                               Somebody else's mpirun may be stopped as long as a rank may hang.
 *   a rank makes no progress    It hangs; watch.h says which rank is to blame.
 *
 * Whatever happens first becomes the error.  All other ranks are told to end, and those of this
 * machine that do not are killed.
 *
 * Thread-safety: none.
 */
#pragma once

#include "executor/device/backend.h"

typedef struct ExecWatcher ExecWatcher;

typedef struct {
    int32_t n_ranks;
    double timeout_s; /* a rank that does not move for so long hangs; 0: rank 0 says how long */
    bool other_hosts; /* listen on all interfaces, not on the loopback only */
} ExecWatcherOptions;

/* Returns: (owned) a watcher that listens from now on; NULL on EXEC_ERROR_FAILED. */
ExecWatcher *exec_watcher_new(const ExecWatcherOptions *options, GError **error);
void exec_watcher_free(ExecWatcher *watcher);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecWatcher, exec_watcher_free)

/* Says that the caller started the ranks by its child @pid, and watches that child itself. */
void exec_watcher_set_starter(ExecWatcher *watcher, int32_t pid);

/* Returns: (borrowed) the value of EXEC_WATCH_VARIABLE for the ranks. */
const char *exec_watcher_where(const ExecWatcher *watcher);

typedef enum {
    EXEC_WATCHER_GOING,
    EXEC_WATCHER_DONE,   /* all ranks have ended well */
    EXEC_WATCHER_FAILED, /* @error is set, this once; the ranks have been told */
} ExecWatcherState;

/* Returns how long a process may be silent or be seen stopped: 3 s, or the timeout if shorter. */
int64_t exec_watcher_silence_ns(const ExecWatcher *watcher);

/* Reads what has arrived, and judges; never waits.  To be called at least every 100 ms. */
ExecWatcherState exec_watcher_look(ExecWatcher *watcher, GError **error);

/* Asks all ranks to end after their step, also those that have not connected yet. */
void exec_watcher_stop(ExecWatcher *watcher);
/* Tells all ranks to end at once, and @why. */
void exec_watcher_abort(ExecWatcher *watcher, const GError *why);

/* Tells one @rank to end at once, the first time, and returns whether its process has ended since.
 * The others are told by exec_watcher_abort(): a launcher ends all ranks when one ends so, and they
 * would take @rank with them before it has written what it has. */
bool exec_watcher_abort_rank(ExecWatcher *watcher, int32_t rank, const GError *why);

/* After a failure: waits until all ranks have gone.  After @limit_s those of this machine that have
 * not are killed, and after twice that nobody is waited for. */
void exec_watcher_clean_up(ExecWatcher *watcher, double limit_s);

/* Returns whether any rank has ever said hello. */
bool exec_watcher_has_started(const ExecWatcher *watcher);

/* Rank 0's step, -1 before its first, and the loss of the step before it. */
void exec_watcher_progress(const ExecWatcher *watcher, int64_t *step, double *loss);
