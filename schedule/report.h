/*
 * schedule/report.h - Report: one iteration in numbers ("degas-report").
 *
 * Plain values.  The simulator fills it from a Trace; the planner ranks by it; cli/ prints it.
 *
 *   busy_s + bubble_s = iteration_s on every rank: a rank is busy while its compute stream computes
 *     or is blocked in communication that the framework does not overlap; the bubble is the rest.
 *   bubble_fraction = sum of bubble_s / (n_ranks * iteration_s): for GPipe and 1F1B with equal
 *     stages and no communication (p-1)/(m+p-1)  [1811.06965, 2104.04473].
 *   communication_s is the time of the rank's messages and collectives, overlapped or not.
 */
#pragma once

#include "base/json.h"
#include "schedule/trace.h"

/* One pipeline rank. */
typedef struct {
    int64_t busy_ns, bubble_ns, communication_ns;
    int64_t peak_memory_bytes, peak_time_ns;
    char peak_op[32]; /* "F3.1s2": the op at whose start the peak is; "": before the first one */
    int64_t memory_bytes[TRACE_MEMORY_N]; /* by owner, at the peak */
    int32_t peak_in_flight;
} ReportRank;

/* The quantiles of what varies, by their keys in JSON: "p10", "p50", "p90", NULL. */
#define REPORT_SHARES_N 3
extern const char *const report_share_names[REPORT_SHARES_N + 1];

/* Many iterations with times that vary (SimJitter in simulator/simulate.h). */
typedef struct {
    double op_sigma, rank_sigma, memory_sigma, straggler_fraction, straggler_slowdown;
    double correlation_s; /* of devices' speeds; 0: every op for itself */
    int64_t n_runs;       /* 0: there is nothing here */
    int64_t seed;
    /* Of the runs: the smallest value that this share of them does not exceed. */
    int64_t iteration_ns[REPORT_SHARES_N], peak_memory_bytes[REPORT_SHARES_N];
    double fit_fraction; /* in this share of the runs all ranks fit */
} ReportJitter;

/* What an uneven load of experts does (models/expert_load.h): quantiles over steps. */
enum {
    REPORT_LOAD_P50,
    REPORT_LOAD_P95,
    REPORT_LOAD_N
};

typedef struct {
    int64_t n_steps; /* 0: the load is not varied */
    uint64_t seed;
    double imbalance
        [REPORT_LOAD_N]; /* of a step's mean layer: rows of the fullest rank over the mean */
    int64_t iteration_ns[REPORT_LOAD_N];
    int64_t peak_memory_bytes[REPORT_LOAD_N];
    double fit_fraction; /* of the steps, those in which every rank fits */
} ReportLoad;

typedef struct {
    int64_t iteration_ns; /* makespan */
    int64_t span_ns;      /* longest first-start-to-last-end of a rank's compute stream */
    /* No program on the machine takes less (profiles/workload/physical.h); NaN: no model is known. */
    double physical_bound_s;
    double tokens_per_s; /* NaN where no model is known: printed as null */
    double model_flops_per_s_per_device;
    double model_flops_utilization_fraction;
    double bubble_fraction;
    int64_t peak_memory_bytes, memory_limit_bytes; /* limit 0: none known */
    /* What the rank with the highest peak may reach: the limit less what driver, communicators and
     * allocator take; 0: not known. */
    int64_t memory_usable_bytes;
    bool fits;
    GArray *ranks; /* of ReportRank, one per pipeline rank */
    /* Mean over ranks of where the iteration goes; they add up to iteration_s. */
    struct {
        double compute_s, tp_s, pp_s, dp_s, cp_s, ep_s, recompute_s, optimizer_s, bubble_s;
    } breakdown;
    /* Where the ops' times come from, as shares of their sum over ranks; they add up to 1.  NaN:
     * times were given, not priced. */
    struct {
        double measured_fraction, interpolated_fraction, modelled_fraction;
    } sources;
    ReportJitter jitter;
    ReportLoad load;
    double cost_per_iteration;     /* NaN: unknown */
    double energy_per_iteration_j; /* NaN: unknown */
} Report;

/* Returns: the rank with the highest peak, the first of equal ones; -1 where no memory is known. */
int32_t report_peak_rank(const Report *report);
/* Returns: the owner that holds most at the rank's peak, the first of equal ones. */
TraceMemoryOwner report_peak_owner(const ReportRank *rank);

Report *report_new(int32_t n_ranks);
void report_free(Report *report);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Report, report_free)
Report *report_copy(const Report *report);

/* Writes the members of a "degas-report" object, which the caller begins and ends. */
void report_write(JsonWriter *writer, const Report *report);
/* Returns: (owned) never NULL; what is wrong is recorded in @doc. */
Report *report_read(JsonDoc *doc, const JsonValue *object);
