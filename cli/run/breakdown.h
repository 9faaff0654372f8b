/*
 * cli/run/breakdown.h - Breakdown: what a rank does during an iteration, as a mean over the ranks.
 *
 * Every instant of every rank from the iteration's start to its end belongs to exactly one class,
 * so the classes add up to the iteration, and the differences of the classes of two iterations to
 * the difference of the iterations.  Where a rank does several things at once, the first of this
 * list counts:
 *
 *   forward, backward, backward_input, backward_weight, optimizer   the rank computes
 *   dp         gradient reduction and parameter gathering that no computing hides
 *   messages   pipeline messages that nothing of the above hides
 *   waiting    the rest: the bubble
 *
 * In a measured trace the time between two events in which the rank waits for nobody is `dispatch`,
 * the bookkeeping of the executor; predicted ops include it.
 *
 * Files tell more or less.  Traces and runs tell the kinds of ops; reports have one sum for all
 * computing; a run without "breakdown_s" tells only how long ranks were busy and idle.
 * breakdown_match() makes breakdowns comparable.
 *
 * Errors: JSON_ERROR_INVALID, G_FILE_ERROR.
 */
#pragma once

#include "schedule/report.h"
#include "schedule/trace.h"

typedef enum {
    BREAKDOWN_FORWARD,
    BREAKDOWN_BACKWARD,
    BREAKDOWN_BACKWARD_INPUT,
    BREAKDOWN_BACKWARD_WEIGHT,
    BREAKDOWN_COMPUTE, /* at BREAKDOWN_LEVEL_COMPUTE: the sum of the four above and dispatch */
    BREAKDOWN_BUSY,    /* at BREAKDOWN_LEVEL_BUSY: computing and optimizer */
    BREAKDOWN_OPTIMIZER,
    BREAKDOWN_DP,
    BREAKDOWN_MESSAGES,
    BREAKDOWN_DISPATCH,
    BREAKDOWN_WAITING,
    BREAKDOWN_N,
} BreakdownClass;

/* The names of classes as JSON keys, "forward", ...; and for people. */
extern const char *const breakdown_names[BREAKDOWN_N + 1];
extern const char *const breakdown_titles[BREAKDOWN_N + 1];

/* How much a file tells, from the most to the least. */
typedef enum {
    BREAKDOWN_LEVEL_OPS,
    BREAKDOWN_LEVEL_COMPUTE,
    BREAKDOWN_LEVEL_BUSY,
} BreakdownLevel;

typedef struct {
    BreakdownLevel level;
    bool measured; /* else predicted */
    double iteration_s;
    double class_s[BREAKDOWN_N]; /* 0 where the level has no such class; sums to iteration_s */
    int64_t n_ranks;             /* how many ranks the mean is over; 0: not told */
    /* Of a run: p10, p50, p90 of the iteration that is predicted with op times that vary as they
     * did when they were profiled (degas simulate --jitter profile); 0: not told. */
    double varied_s[REPORT_SHARES_N];
    /* Of a run that tells it: the share of the cores that the host of its virtual machine took. */
    bool tells_stolen;
    double stolen_fraction;
} Breakdown;

/* Whether a breakdown of @level has @class_. */
bool breakdown_has(BreakdownLevel level, BreakdownClass class_);

/* The breakdown of @trace, which must satisfy trace_check().  Cost: O(n log n) in its events. */
Breakdown breakdown_of_trace(const Trace *trace);

/* Reads a degas-trace, degas-report, degas-run or degas-plan (its "predicted") file. */
bool breakdown_load(const char *path, Breakdown *breakdown, GError **error);

/* Adds up classes of @n breakdowns until all tell the same: no more than the one that tells least,
 * and whole backwards where not all have the same kinds of them. */
void breakdown_match(Breakdown *breakdowns, size_t n);

/* Writes the seconds of each class as an object under @key: {"forward": 1.5, ...}. */
void breakdown_write(JsonWriter *writer, const char *key, const Breakdown *breakdown);
