/*
 * cli/run/report.h - RunReport: what `degas run` measured beside what was predicted for it.
 *
 * The main header of the room run/, which knows the executor's runs: their processes (processes.h),
 * where their time went (breakdown.h), and this report.  The commands run, compare and profile come
 * in.
 *
 * The first step allocates and warms up, so statistics leave it out, unless it is the only step.
 */
#pragma once

#include "base/json.h"
#include "cli/run/breakdown.h"
#include "cli/request/job.h"
#include "executor/run/run.h"

/* A plain value; it owns nothing. */
typedef struct {
    const Job *job;
    const ExecRunOptions *exec;
    const ExecRunResult *result;
    Breakdown breakdown;           /* zeros if the result has no trace */
    double median_s, p10_s, p90_s; /* of a step */
    /* NaN where the plan's own profile gives no prediction. */
    double predicted_s, predicted_bubble_fraction;
    int64_t predicted_peak_bytes;
    /* The prediction with op times that vary as they did when they were profiled; n_runs 0: how
     * they varied is not known. */
    ReportJitter varied;
} RunReport;

/* Fills in @report, which borrows the other arguments.  @predicted (nullable) is of that plan. */
void run_report_init(RunReport *report, const Job *job, const ExecRunOptions *exec,
                     const ExecRunResult *result, const Report *predicted);

/* Returns: (owned) a writer that holds the whole degas-run object. */
JsonWriter *run_report_json(const RunReport *report);

/* Prints the report for people on stdout: a table and a few lines. */
void run_report_print(const RunReport *report);

/* Returns: (owned, nullable) "the host took 12 % of the cores: ..."; NULL where the fraction is too
 * small to matter (HOST_STEAL_TOLD_FRACTION), or NaN: unknown. */
char *run_report_stolen_text(double stolen_fraction);
