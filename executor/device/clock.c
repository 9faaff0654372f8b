#include "executor/device/clock.h"

#include <stdlib.h>
#include <time.h>

static int64_t
read_clock(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Weak: a test of what depends on time has a clock of its own in its place. */
__attribute__((weak)) int64_t
exec_now_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t
exec_thread_ns(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

/* How often and how long the clocks are compared: a try may be disturbed, and a clock that counts
 * in steps of 10 ms misses most of a millisecond. */
#define TRIES 3
#define TRY_NS 1000000

bool
exec_thread_clock_is_fine(void)
{
    for (int i = 0; i < TRIES; i++) {
        const int64_t thread_begin_ns = exec_thread_ns(), begin_ns = exec_now_ns();
        int64_t spent_ns;

        do
            spent_ns = exec_now_ns() - begin_ns;
        while (spent_ns < TRY_NS);
        if (llabs(exec_thread_ns() - thread_begin_ns - spent_ns) < spent_ns / 2)
            return true;
    }
    return false;
}

bool
exec_was_disturbed(int64_t wall_ns, int64_t thread_ns)
{
    return (double)(wall_ns - thread_ns) > EXEC_DISTURBED_FRACTION * (double)wall_ns;
}
