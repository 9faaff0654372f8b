/*
 * cli/run/report.h - RunReport: what a run measured beside what was predicted for it.
 *
 * The first step allocates and warms up: statistics are of the others, unless it is the only one.
 */
#ifndef CLI_RUN_REPORT_H
#define CLI_RUN_REPORT_H

#include "base/json.h"
#include "cli/run/breakdown.h"
#include "cli/request/job.h"
#include "executor/run/run.h"

G_BEGIN_DECLS

/* By value; nothing in it is owned. */
typedef struct {
    const Job *job;
    const ExecRunOptions *exec;
    const ExecRunResult *result;
    Breakdown breakdown; /* none without a trace */
    double median_s, p10_s, p90_s;
    /* NaN where the plan's own profile gives no prediction. */
    double predicted_s, predicted_bubble_fraction;
    int64_t predicted_peak_bytes;
    /* The same with ops that vary as when they were profiled; n_runs 0: that is not known. */
    ReportJitter varied;
} RunReport;

/* All but @report are borrowed; @predicted (nullable) of the same plan. */
void run_report_init(RunReport *report, const Job *job, const ExecRunOptions *exec,
                     const ExecRunResult *result, const Report *predicted);

/* Returns: (owned) a writer that holds the degas-run object. */
JsonWriter *run_report_json(const RunReport *report);

/* A table and a few lines, to standard output. */
/* (owned, nullable) "the host took 12 % of the cores: ..."; NULL: not as much that it counts, or
 * nobody knows. */
char *run_report_stolen_text(double stolen_fraction);

void run_report_print(const RunReport *report);

G_END_DECLS

#endif /* CLI_RUN_REPORT_H */
