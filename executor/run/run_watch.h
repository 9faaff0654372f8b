/*
 * executor/run/run_watch.h - starts the ranks of this process, watches them or has them watched.
 *
 * Private to executor/.
 */
#ifndef EXECUTOR_RUN_RUN_WATCH_H
#define EXECUTOR_RUN_RUN_WATCH_H

#include "executor/run/rank.h"

G_BEGIN_DECLS

/*
 * Runs all ranks of this process in threads until they have ended, one has failed or hangs, or
 * nobody wants the run any more.  Threads that do not come back within a grace are left behind;
 * they keep @shared alive.
 *
 * @told  (out) the error is the watcher's to print: watcher.h
 */
bool exec_watch_run(ExecShared *shared, bool *told, GError **error);

/* --- what the steps took; the mutex is held or all threads have ended --- */

int64_t exec_step_begin_ns(const ExecShared *shared, int64_t step);
/* From the first rank's begin to the last one's end. */
int64_t exec_step_ns(const ExecShared *shared, int64_t step);
/* Per token. */
double exec_step_loss(const ExecShared *shared, int64_t step);
/* Of steps [first, end). */
int64_t exec_median_step_ns(const ExecShared *shared, int64_t first, int64_t end);

G_END_DECLS

#endif /* EXECUTOR_RUN_RUN_WATCH_H */
