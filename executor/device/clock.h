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
#ifndef EXECUTOR_DEVICE_CLOCK_H
#define EXECUTOR_DEVICE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

/* Nanoseconds on the monotonic clock.  Cost: some 30 ns. */
int64_t exec_now_ns(void);

/* Seconds since @begin_ns, a time of exec_now_ns(). */
static inline double
exec_seconds_since(int64_t begin_ns)
{
    return (double)(exec_now_ns() - begin_ns) * 1e-9;
}

/* What the calling thread has had a core for.  Cost: a third of a microsecond, ten times that of
 * exec_now_ns(): so it is read outside of what is timed, which is the same then to 0.1 us. */
int64_t exec_thread_ns(void);

/* Whether exec_thread_ns() follows a millisecond: some systems count in steps of ten.  Cost: a
 * millisecond of computing, three at the most. */
bool exec_thread_clock_is_fine(void);

/*
 * Whether a thread that waited for nobody was kept from its core for more than this share of
 * @wall_ns, in which, with both readings around it, it computed for @thread_ns.
 *
 * Who is not disturbed is never kept from it: on two virtual cores of an Emerald Rapids,
 * 2026-11-22, in 400000 timings of 5 to 200 us @thread_ns exceeded @wall_ns, by the cost of a
 * reading (0.27 us and more), in more than 99 %.  Of timings of 20 ms half are interrupted, for
 * some tenths of a percent, and where the host has other work to do too, a third lose more than 1
 * %: that is the machine, and steps have it too.  To set those aside as well leaves what was timed
 * in its best moments: layers of one sequence were 28 % faster than in steps [measured].  What a
 * real-time thread lost in 0.7 s, 0 to 39 ms, was what the host took by /proc/stat to 12 ms in 14
 * of 14; it counts in steps of 10.
 */
#define EXEC_DISTURBED_FRACTION 0.25
bool exec_was_disturbed(int64_t wall_ns, int64_t thread_ns);

#endif /* EXECUTOR_DEVICE_CLOCK_H */
