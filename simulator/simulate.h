/*
 * simulator/simulate.h - interprets a Schedule with a Workload's times and bytes: Trace and Report.
 *
 * Time, where links are not shared: every op starts when its rank is free and its message is there.
 *   overlapped messages: start = max(free(rank), end(producer) + message)
 *   blocking messages:   start = max(free(rank), end(producer)) + message, and the sender's compute
 *                        stream is busy after the op for as much of the message as the transport
 *                        does not buffer: what synchronous sends and receives do
 * (docs/cost-model.md 3.4.)  One sweep in topological order, O(ops), integers only, so equal inputs
 * give equal traces.
 *
 * Where links are shared (Workload.links), the event engine may have to take the place of the
 * sweep: contend.h.  The sweep comes first; if at the times that it finds no link would carry more
 * than it can, these times are exact, and the engine would find the same.  Otherwise the engine
 * runs.
 *
 * An op takes its time_ns and the workload's op_overhead_ns.  Messages exist between ranks only.
 * Pairs of ops that a framework runs overlapped (Schedule.overlap_pairs) hide the collectives of
 * one behind the computing of the other: pairs.h.
 *
 * After its last op a rank reduces gradients over dp, steps the optimizer, gathers parameters;
 * with overlap_dp the reduction runs behind the last backward of each chunk, with overlap_gather
 * the gathering ahead of its first forward: finish.h.
 *
 * Memory: memory.h walks the same ops and turns them into allocations and frees with owners.
 * The report's sums: account.h.  The trace's streams: events.h.
 *
 * Thread-safety: pure; inputs are shared read-only.
 */
#pragma once

#include "profiles/workload/workload.h"
#include "schedule/report.h"
#include "schedule/schedule.h"
#include "simulator/memory.h"

/* Limits: beyond them times mean nothing. */
#define SIM_JITTER_MAX_SIGMA 2.0
#define SIM_JITTER_MAX_SLOWDOWN 1000.0
#define SIM_JITTER_MAX_RUNS INT64_C(1000000)

/*
 * The same iteration many times, with times that vary as real ones do.
 *
 * In each run every duration d becomes d * L, and L is log-normal with median 1, or, with
 * correlation_s, where durations are means, with mean 1:
 *
 *   ops and messages   L = exp(op_sigma Z), drawn anew for each; with correlation_s ops go at their
 *                      devices' speeds, which change by op_sigma and are forgotten (factors.h), and
 *                      messages vary as much as their ops; an op's rank multiplies it by
 *   pipeline ranks     exp(rank_sigma Z), drawn once per run and replica (devices are not alike),
 *                      and by straggler_slowdown with probability straggler_fraction; of
 *                      context-parallel members, which meet in every layer, the slowest counts,
 *                      with correlation_s in every op
 *   peak memory        exp(memory_sigma Z) per run, replica and rank: the caching allocator's share
 *                      is not known to the byte.  What an order of ops holds does not vary with
 *                      their times, so this alone decides the probability to fit.
 *
 * with Z normal, of 4096 equally likely values (its quantiles at (i + 1/2) / 4096: |Z| <= 3.7).
 * What a rank waits for its reduction after its last op, gathers after it, and the optimizer vary
 * like ops of it.  Data-parallel replicas vary each for itself, and the iteration ends with the
 * slowest.
 *
 * What an op or a message takes because links are shared, or because communication runs beside it,
 * is taken from the run without jitter, then varied; who waits for whom on a link does not change.
 *
 * Numbers come from a counter, not from a stream: run, replica, op and seed decide them, so results
 * depend neither on the number of threads nor on the machine.  Factors are 24-bit fixed point from
 * IEEE additions, products, quotients and square roots only: no exp() or log() of a C library,
 * which differ in the last bit.
 *
 *  Fractions: 0.05 is 5 %.
 */
typedef struct {
    double op_sigma, rank_sigma, memory_sigma; /* 0 to SIM_JITTER_MAX_SIGMA */
    double correlation_s;                      /* of speeds; 0: every op for itself */
    double straggler_fraction;                 /* 0 to 1 */
    double straggler_slowdown;                 /* 1 to SIM_JITTER_MAX_SLOWDOWN; 0: 1 */
    int64_t n_runs;                            /* 1 to SIM_JITTER_MAX_RUNS */
    int64_t n_replicas;                        /* data-parallel; 0: 1 */
    int64_t n_members;                         /* context-parallel, of a rank; 0: 1 */
    uint64_t seed;
    int64_t n_threads; /* 0: 1; the result does not depend on it */
} SimJitter;

/* Who finds the times: the sweep (sweep.h) or the event engine (contend.h). */
typedef enum {
    SIM_BY_EITHER, /* the sweep where it applies, else the events */
    SIM_BY_SWEEP,  /* as if no link were shared: never later than they are */
    SIM_BY_EVENTS, /* the event engine, which follows also what certainly meets nobody */
} SimBy;

/* What a small picture of the compute streams shows. */
typedef struct {
    int32_t n_instants;   /* the middles of as many equal parts of the makespan: its columns */
    const bool *is_shown; /* (borrowed, nullable: all) [rank] its rows */
} SimGlimpse;

typedef struct {
    SimBy by;
    /* Not 0: where the sweep already ends later than this, links are not followed, and the report
     * is the sweep's: a time above the limit, but perhaps not late enough.  For searches. */
    int64_t limit_ns;
    /* With want_memory: likewise where a rank holds more than it may, which no time changes. */
    bool only_if_fits;
    const SimJitter *jitter; /* (borrowed, nullable) also run it many times with varied times */
    bool want_trace;         /* events; the report is always made */
    /* (borrowed, nullable) With want_trace: of the events only what such a picture shows of the
     * compute and dp streams, and no memory; writing all costs ten times as much as simulating. */
    const SimGlimpse *glimpse;
    bool want_levels; /* with want_memory: what ranks hold at and after every op */
    bool want_memory; /* memory events and peaks; else peaks are 0 and fits is true */
} SimOptions;

typedef struct {
    Report *report;   /* (owned) */
    Trace *trace;     /* (owned, nullable) */
    SimLevel *levels; /* (owned, nullable) [index into schedule->ops] with want_levels */
} SimResult;

void sim_result_clear(SimResult *result);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(SimResult, sim_result_clear)

/*
 * Runs one iteration.  @workload must be made for the same shape as @schedule.
 * Returns false on SCHEDULE_ERROR_INCOMPLETE or _DEADLOCK (the schedule cannot run), _SHAPE (the
 * workload is for another shape) or _LIMIT (times or bytes negative or beyond int64_t, no memory);
 * @result is then untouched.  Cost: O(ops); followed event by event, O(ops log ranks).
 */
bool sim_run(const Schedule *schedule, const Workload *workload, const SimOptions *options,
             SimResult *result, GError **error);

/*
 * Does what sim_run() does for callers that want the report alone; it is the planner's
 * PlanSliceSimulateFunc.
 * @report  (out, owned) with peaks if @want_memory; untouched where false is returned.
 */
bool sim_run_report(const Schedule *schedule, const Workload *workload, bool want_memory,
                    Report **report, void *user_data);
