/*
 * base/host_steal.h - how much of its cores' time a virtual machine loses to its host.
 *
 * A virtual core that is ready to compute may wait for a real one: then everything on it is late,
 * and nothing in the machine is to blame.  Linux counts that time per core, in /proc/stat, where
 * the host tells it; on a real machine, and on a host that does not tell, it counts nothing.
 *
 * The counters are in hundredths of a second, so a share is given only where the cores together had
 * at least a second.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Smaller shares are not reported: the median step hardly changes. */
#define HOST_STEAL_TOLD_FRACTION 0.02

/* The least time of all cores together that a share is computed of: a hundred ticks. */
#define HOST_STEAL_LEAST_S 1.0

/* The counters at one moment. */
typedef struct {
    double stolen_s; /* of all cores that count, since boot; NaN: not known */
    int64_t n_cores; /* that count */
    int64_t at_us;   /* g_get_monotonic_time() */
} HostSteal;

/* Reads the counters of the cores that the calling thread may use.  Cost: one file read, a tenth of
 * a millisecond. */
HostSteal host_steal_now(void);

/* Returns: the share of the cores' time that the host took between @begin and @end, 0 to 1; NaN
 * where it is not known, where the number of cores has changed, or where the time of all cores
 * between is below HOST_STEAL_LEAST_S. */
double host_steal_fraction(const HostSteal *begin, const HostSteal *end);

/*
 * Adds up the stolen time in the text of /proc/stat, for host_steal_now() and its tests.  Returns:
 * seconds, or NaN where the text does not tell.
 *
 * @text          as of /proc/stat, lines "cpu0 user nice system idle iowait irq softirq steal ...";
 *                anything else gives NaN or is not looked at
 * @counts        (nullable) [n_counts] whether core i counts, those beyond do not; NULL: all do
 * @ticks_per_s   that the numbers are in
 * @n_cores       (out) that were found
 */
double host_steal_parse_s(const char *text, const bool *counts, size_t n_counts, double ticks_per_s,
                          int64_t *n_cores);
