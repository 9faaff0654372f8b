/*
 * executor/run/supervise.h - starts the threads of this process's ranks, and notices when one
 * fails, hangs or is not wanted any more.
 *
 * Ranks that are threads are watched here (watch.h).  A rank that is a process tells the watcher
 * how it does, and obeys it (member.h).
 *
 * Private to executor/run/.
 */
#pragma once

#include "executor/run/shared.h"

/*
 * Runs all ranks of this process in threads until they have ended, one has failed or hangs, or
 * nobody wants the run any more.  Threads that do not come back within a grace are left behind;
 * they keep @shared alive.
 *
 * @told  (out) with an error: the watcher prints it, not this process (watcher.h)
 */
bool exec_supervise(ExecShared *shared, bool *told, GError **error);
