/*
 * cli/draw/describe.h - models, clusters, plans and reports for people: short tables on stdout.
 *
 * Three significant digits with units; everything exact is in the JSON of the same commands.
 */
#ifndef CLI_DRAW_DESCRIBE_H
#define CLI_DRAW_DESCRIBE_H

#include "cli/request/job.h"

G_BEGIN_DECLS

/* One line: the model, the machine, the batch. */
void describe_job(const Job *job);

/* (owned) the degrees above 1, "dp 2, tp 8, pp 4 x 2"; or "one device". */
char *describe_split(const PlanDegrees *degrees);

/* (owned) how much ops vary: "5 %", "5 %, forgotten within 50 ms". */
char *describe_op_sigma(const ReportJitter *jitter);

/* One row for each of the plans, the first called "best". */
void describe_plans(const Plan *const *plans, size_t n);

/* Where the layers are, and what is cut how. */
void describe_stages(const Plan *plan);

/* Iteration, throughput, where the time goes, memory; a row for each rank (at most @max_rows).
 * @currency  (nullable) of the cluster's prices. */
void describe_report(const Report *report, const char *currency, guint max_rows);

/* Prints the timeline of @trace as text, with its legend. */
void describe_timeline(const Trace *trace, bool is_unitless);

/* What describe_timeline() shows of @n_ranks ranks, times having units.  Returns: (owned) what
 * @glimpse borrows. */
bool *describe_glimpse(int32_t n_ranks, SimGlimpse *glimpse);

G_END_DECLS

#endif /* CLI_DRAW_DESCRIBE_H */
