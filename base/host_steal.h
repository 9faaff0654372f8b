/*
 * base/host_steal.h - what the host of a virtual machine takes away from it.
 *
 * A virtual core that is ready to compute may wait for a real one: then everything on it is late,
 * and nothing in the machine is to blame.  Linux counts that time per core, in /proc/stat, where
 * the host tells it; on a real machine, and on a host that does not tell, it counts nothing.
 *
 * It counts in hundredths of a second: of less than a hundred of them no share is told.
 */
#ifndef BASE_HOST_STEAL_H
#define BASE_HOST_STEAL_H

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

G_BEGIN_DECLS

/* A smaller share is nothing to speak of: the median step hardly moves. */
#define HOST_STEAL_TOLD_FRACTION 0.02

/* One tick is a hundredth of it. */
#define HOST_STEAL_LEAST_S 1.0

/* At one moment. */
typedef struct {
    double stolen_s; /* of all cores that count, since boot; NaN: not known */
    int64_t n_cores; /* that count */
    int64_t at_us;   /* g_get_monotonic_time() */
} HostSteal;

/* Of the cores that the calling thread may use.  Cost: one file read, a tenth of a millisecond. */
HostSteal host_steal_now(void);

/* Share of the cores' time that the host took between the two, 0 to 1; NaN where it is not known,
 * other cores count than before, or the time of all cores between is below HOST_STEAL_LEAST_S. */
double host_steal_fraction(const HostSteal *begin, const HostSteal *end);

/*
 * What host_steal_now() makes of a file.
 *
 * @text          as of /proc/stat, lines "cpu0 user nice system idle iowait irq softirq steal ...";
 *                anything else gives NaN or is not looked at
 * @counts        (nullable) [n_counts] whether core i counts, those beyond do not; NULL: all do
 * @ticks_per_s   that the numbers are in
 * @n_cores       (out) that were found
 */
double host_steal_parse_s(const char *text, const bool *counts, size_t n_counts, double ticks_per_s,
                          int64_t *n_cores);

G_END_DECLS

#endif /* BASE_HOST_STEAL_H */
