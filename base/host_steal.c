#include "base/host_steal.h"

#include <math.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

/* Of a core's line, behind its name; the first is user's. */
#define STEAL_COLUMN 7
#define MAX_FILE_BYTES ((size_t)1 << 24)

/* Reads a number of digits at *@at and the blanks before it; beyond 2^64 it stays there. */
static bool
read_number(const char **at, uint64_t *number)
{
    const char *c = *at + strspn(*at, " \t");

    if (!g_ascii_isdigit(*c))
        return false;
    *number = 0;
    for (; g_ascii_isdigit(*c); c++) {
        const uint64_t digit = (uint64_t)g_ascii_digit_value(*c);
        *number = *number > (UINT64_MAX - digit) / 10 ? UINT64_MAX : *number * 10 + digit;
    }
    *at = c;
    return true;
}

/* Ticks of the core whose line goes on at @at; NaN: it has too few columns, or others. */
static double
stolen_ticks(const char *at)
{
    uint64_t ticks = 0;

    for (int column = 0; column <= STEAL_COLUMN; column++)
        if ((*at != ' ' && *at != '\t') || !read_number(&at, &ticks))
            return (double)NAN;
    return *at == '\0' || g_ascii_isspace(*at) ? (double)ticks : (double)NAN;
}

double
host_steal_parse_s(const char *text, const bool *counts, size_t n_counts, double ticks_per_s,
                   int64_t *n_cores)
{
    double sum = 0.0;
    uint64_t core;

    *n_cores = 0;
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        /* "cpu" alone is the sum of all. */
        if (strncmp(line, "cpu", 3) != 0 || !g_ascii_isdigit(line[3]))
            continue;
        const char *at = line + 3;
        if (!read_number(&at, &core) || (counts != NULL && (core >= n_counts || !counts[core])))
            continue;
        sum += stolen_ticks(at);
        ++*n_cores;
    }
    return *n_cores == 0 ? (double)NAN : sum / ticks_per_s;
}

HostSteal
host_steal_now(void)
{
    HostSteal now = {.stolen_s = (double)NAN, .at_us = g_get_monotonic_time()};
    const long ticks_per_s = sysconf(_SC_CLK_TCK);
    g_autofree char *text = NULL;
    bool counts[CPU_SETSIZE];
    size_t n_bytes;
    cpu_set_t set;

    /* A machine with more cores than a set holds: all of them count. */
    const bool is_known = sched_getaffinity(0, sizeof set, &set) == 0;
    for (size_t i = 0; is_known && i < CPU_SETSIZE; i++)
        counts[i] = CPU_ISSET(i, &set);
    if (ticks_per_s > 0 && file_read_max("/proc/stat", MAX_FILE_BYTES, &text, &n_bytes, NULL))
        now.stolen_s = host_steal_parse_s(text, is_known ? counts : NULL, CPU_SETSIZE,
                                          (double)ticks_per_s, &now.n_cores);
    return now;
}

double
host_steal_fraction(const HostSteal *begin, const HostSteal *end)
{
    const double all_s = (double)(end->at_us - begin->at_us) * 1e-6 * (double)end->n_cores;

    if (isnan(begin->stolen_s) || isnan(end->stolen_s) || begin->n_cores != end->n_cores ||
        all_s < HOST_STEAL_LEAST_S)
        return (double)NAN;
    return CLAMP((end->stolen_s - begin->stolen_s) / all_s, 0.0, 1.0);
}
