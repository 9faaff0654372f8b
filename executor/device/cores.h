/*
 * executor/device/cores.h - the cores of this process, and loops that are shared out to them.
 *
 * Private to executor/.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

/* How many cores this process may use. */
int32_t exec_n_cores(void);

/* Carries out the iterations [begin, end). */
typedef void (*ExecShareFunc)(int64_t begin, int64_t end, void *user_data);

/*
 * Cuts [0, n) into @n_threads consecutive parts of equal size, runs each on a thread of its own
 * (the first on the caller's), and returns when all are done.  When a thread cannot be had, the
 * caller runs its part.  A thread costs some 20 us, so this pays for loops of a millisecond and
 * more.
 */
void exec_share_out(int n_threads, int64_t n, ExecShareFunc func, void *user_data);
