/*
 * cli/run/breakdown.h - Breakdown: where an iteration's time goes, class by class, mean over ranks.
 *
 * Every instant of every rank from the iteration's start to its end belongs to exactly one class,
 * so the classes add up to the iteration, and differences of classes to its difference.  Where
 * things happen at once, the first of this list counts:
 *
 *   forward, backward, backward_input, backward_weight, optimizer   the rank computes
 *   dp         gradient reduction and parameter gathering that no computing hides
 *   messages   pipeline messages that nothing of the above hides
 *   waiting    the rest: the bubble
 *
 * In a measured trace the time between two events in which the rank waits for nobody is `dispatch`
 * (bookkeeping of the executor); predictions have it inside the ops.
 *
 * Files tell more or less: traces and runs tell kinds of ops, reports one sum for all computing,
 * a run without "breakdown_s" only busy and idle.  breakdown_coarsen() makes two comparable.
 *
 * Errors: JSON_ERROR_INVALID, G_FILE_ERROR.
 */
#ifndef CLI_RUN_BREAKDOWN_H
#define CLI_RUN_BREAKDOWN_H

#include "schedule/report.h"
#include "schedule/trace.h"

G_BEGIN_DECLS

typedef enum {
    BREAKDOWN_FORWARD,
    BREAKDOWN_BACKWARD,
    BREAKDOWN_BACKWARD_INPUT,
    BREAKDOWN_BACKWARD_WEIGHT,
    BREAKDOWN_COMPUTE, /* level compute: the four above and dispatch */
    BREAKDOWN_BUSY,    /* level busy: computing and optimizer */
    BREAKDOWN_OPTIMIZER,
    BREAKDOWN_DP,
    BREAKDOWN_MESSAGES,
    BREAKDOWN_DISPATCH,
    BREAKDOWN_WAITING,
    BREAKDOWN_N,
} BreakdownClass;

/* "forward", ...: keys of JSON. */
extern const char *const breakdown_names[BREAKDOWN_N + 1];
/* For people. */
extern const char *const breakdown_titles[BREAKDOWN_N + 1];

/* How much a file tells, most first. */
typedef enum {
    BREAKDOWN_LEVEL_OPS,
    BREAKDOWN_LEVEL_COMPUTE,
    BREAKDOWN_LEVEL_BUSY,
} BreakdownLevel;

typedef struct {
    BreakdownLevel level;
    double iteration_s;
    double class_s[BREAKDOWN_N]; /* 0 where the level has no such class; sums to iteration_s */
    int64_t n_ranks;             /* that the mean is over; 0: not told */
    /* Of a run: p10, p50, p90 of what is predicted for it if ops vary as when they were profiled
     * (degas simulate --jitter profile); 0: not told. */
    double varied_s[REPORT_SHARES_N];
    /* Of a run that tells it: share of the cores that the host of its virtual machine took. */
    bool tells_stolen;
    double stolen_fraction;
} Breakdown;

/* Whether files of this level have the class. */
bool breakdown_has(BreakdownLevel level, BreakdownClass class_);

/* Cost: O(n log n) in events.  @trace must satisfy trace_check(). */
Breakdown breakdown_of_trace(const Trace *trace);

/* Reads a degas-trace, degas-report, degas-run or degas-plan (its "predicted") file. */
bool breakdown_load(const char *path, Breakdown *breakdown, GError **error);

/* Adds classes up to a coarser @level; of an equal or finer one nothing changes. */
void breakdown_coarsen(Breakdown *breakdown, BreakdownLevel level);

/* {"forward":X, ...} of seconds under @key. */
void breakdown_write(JsonWriter *writer, const char *key, const Breakdown *breakdown);

G_END_DECLS

#endif /* CLI_RUN_BREAKDOWN_H */
