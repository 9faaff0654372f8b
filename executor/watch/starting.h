/*
 * executor/watch/starting.h - the ranks of this machine that have not said hello to the watcher yet.
 *
 * Until a rank has connected (watcher.h) nothing is heard of it: one that is stopped by then would
 * be noticed when the time to start is over, and one that dies when its launcher ends the others
 * for it, which then look like those that died.  So the watcher looks for them among the processes
 * of this machine: this program, with an environment that names the run (EXEC_WATCH_VARIABLE) and
 * the rank.  Ranks of other hosts, and those that another than `degas` has started, are not found.
 *
 * Cost of a look: a link read for each process, a file for each of this program.
 * Thread-safety: none.
 *
 * Private to executor/.
 */
#ifndef EXECUTOR_WATCH_STARTING_H
#define EXECUTOR_WATCH_STARTING_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

G_BEGIN_DECLS

/* One rank; zeroed before the first look. */
typedef struct {
    bool arrived;       /* set by the caller: it has said hello */
    pid_t pid;          /* 0: not seen yet */
    int64_t gone_ns;    /* when it was first missed; 0: it is there */
    int64_t stopped_ns; /* since when it has been seen stopped (SIGSTOP); 0: it is not */
} ExecStarting;

/* Looks at those of @ranks that have not arrived.  @where  what their EXEC_WATCH_VARIABLE is. */
void exec_starting_look(ExecStarting *ranks, int32_t n_ranks, const char *where, int64_t now_ns);

/* The first of those that have not arrived and were missed, or -1. */
int32_t exec_starting_gone(const ExecStarting *ranks, int32_t n_ranks);

/* The only one that has not arrived, if it was never seen either: among ranks that were started
 * together it died before the first look.  Else -1. */
int32_t exec_starting_unseen(const ExecStarting *ranks, int32_t n_ranks);

/* One that has not arrived and has been stopped for more than @limit_ns, or -1. */
int32_t exec_starting_stopped(const ExecStarting *ranks, int32_t n_ranks, int64_t limit_ns,
                              int64_t now_ns);

/* Ends those that have not arrived and are still there, after a look. */
void exec_starting_kill(ExecStarting *ranks, int32_t n_ranks, const char *where, int64_t now_ns);

G_END_DECLS

#endif /* EXECUTOR_WATCH_STARTING_H */
