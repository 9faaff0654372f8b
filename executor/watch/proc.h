/*
 * executor/watch/proc.h - what the system tells of a process of this machine: proc(5).
 *
 * A process that is not there, or not to be seen, is not stopped and has no texts.
 *
 * Private to executor/.
 */
#ifndef EXECUTOR_WATCH_PROC_H
#define EXECUTOR_WATCH_PROC_H

#include <glib.h>
#include <stdbool.h>
#include <sys/types.h>

G_BEGIN_DECLS

/* Returns: (owned, nullable) all of /proc/PID/@name.  @n_bytes  (out, nullable) */
char *exec_proc_text(pid_t pid, const char *name, size_t *n_bytes);

/* By SIGSTOP or a terminal. */
bool exec_proc_is_stopped(pid_t pid);

G_END_DECLS

#endif /* EXECUTOR_WATCH_PROC_H */
