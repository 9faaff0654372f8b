/*
 * executor/watch/starting.h - ranks that have not said hello to the watcher yet, as /proc shows
 * them.
 *
 * The watcher hears nothing of a rank before it has connected (watcher.h).  If the rank is stopped
 * by then, nobody would notice until the time to start is over.  If it dies, its launcher ends the
 * other ranks, and those would look like the ones that died.  So the watcher looks for such ranks
 * among the processes of this machine: they run this program, and their environment names the job
 * (EXEC_WATCH_VARIABLE) and the rank.  Ranks on other hosts are not found, nor are ranks that
 * somebody else's mpirun has started, whose environment does not name the job.
 *
 * Cost of a look: a link is read for each process, and a file for each that runs this program.
 * Thread-safety: none.  Private to executor/watch/ and its tests.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Returns: (owned) the content of /proc/@pid/@name, or NULL where there is no such process or it
 * may not be looked at.  @n_bytes  (out, nullable) */
char *exec_proc_text(pid_t pid, const char *name, size_t *n_bytes);

/* Returns whether the process is there and is stopped, by SIGSTOP or from a terminal. */
bool exec_proc_is_stopped(pid_t pid);

/* What has been seen of one rank; zeroed before the first look. */
typedef struct {
    bool arrived;       /* set by the caller: the rank has said hello, and is not looked for */
    pid_t pid;          /* 0: not seen yet */
    int64_t gone_ns;    /* when it was first missed after it had been seen; 0: it is there */
    int64_t stopped_ns; /* since when it has been seen stopped; 0: it is not */
} ExecStarting;

/* Looks for those of @ranks that have not arrived.  @where  the job's EXEC_WATCH_VARIABLE */
void exec_starting_look(ExecStarting *ranks, int32_t n_ranks, const char *where, int64_t now_ns);

/* Returns the rank that was the first to go without having arrived, or -1. */
int32_t exec_starting_gone(const ExecStarting *ranks, int32_t n_ranks);

/* Returns the only rank that has not arrived, if it was never seen either: the ranks were started
 * together, so it died before the first look.  Else -1. */
int32_t exec_starting_unseen(const ExecStarting *ranks, int32_t n_ranks);

/* Returns a rank that has not arrived and has been stopped for more than @limit_ns, or -1. */
int32_t exec_starting_stopped(const ExecStarting *ranks, int32_t n_ranks, int64_t limit_ns,
                              int64_t now_ns);

/* Looks once more, and kills the ranks that have not arrived and are there. */
void exec_starting_kill(ExecStarting *ranks, int32_t n_ranks, const char *where, int64_t now_ns);
