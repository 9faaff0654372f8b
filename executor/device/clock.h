/*
 * executor/device/clock.h - the clocks of the executor: the time of every trace, and the time that
 * a thread has had a core for.
 *
 * A thread that never waits computes whenever it has its core.  So what exec_now_ns() counts beyond
 * exec_thread_ns() is time in which others had the core: programs, and, where Linux runs as a guest
 * whose host tells it (paravirtual steal accounting), other machines.
 *
 * GLib's g_get_monotonic_time() reads the clock of exec_now_ns() in microseconds; it is used only
 * for waiting, whose deadlines GLib's timed waits take in that form.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Returns nanoseconds on Linux's monotonic clock.  Cost: some 30 ns. */
int64_t exec_now_ns(void);

/* Returns the seconds since @begin_ns, a time of exec_now_ns(). */
static inline double
exec_seconds_since(int64_t begin_ns)
{
    return (double)(exec_now_ns() - begin_ns) * 1e-9;
}

/* Returns for how long the calling thread has had a core.  Cost: a third of a microsecond, ten
 * times that of exec_now_ns(); so it is read outside of what is timed, which it changes by less
 * than 0.1 us. */
int64_t exec_thread_ns(void);

/* Whether exec_thread_ns() is exact enough to see a millisecond; some systems count in steps of
 * ten. Cost: a millisecond of computing, or three where others disturb. */
bool exec_thread_clock_is_fine(void);

/*
 * Whether a thread that waited for nobody lost its core for more than EXEC_DISTURBED_FRACTION of
 * @wall_ns.  @thread_ns is what exec_thread_ns() counted meanwhile, read before and after.
 *
 * Where the fraction comes from [measured 2026-11-22 on two virtual cores of an Emerald Rapids]:
 *   - A thread that nobody disturbs loses nothing: in more than 99 % of 400000 timings of 5 to
 *     200 us @thread_ns even exceeded @wall_ns, by the cost of a reading (0.27 us and more).
 *   - Half of all timings of 20 ms are interrupted for some tenths of a percent; where the host has
 *     other work too, a third of them lose more than 1 %.  Training steps lose the same, so such
 *     timings must count: when they were set aside, the layers of one sequence seemed 28 % faster
 *     than they are in steps.
 *   - What a real-time thread lost in 0.7 s (0 to 39 ms) agreed in 14 of 14 cases, to 12 ms, with
 *     what the host took according to /proc/stat, which counts in steps of 10 ms.
 */
#define EXEC_DISTURBED_FRACTION 0.25
bool exec_was_disturbed(int64_t wall_ns, int64_t thread_ns);
