/*
 * cli/draw/describe.h - prints plans, reports and timelines for people: short tables on stdout.
 *
 * Numbers have three significant digits and a unit; the exact ones are in the JSON of the same
 * commands.
 */
#pragma once

#include "cli/request/job.h"

/* Prints one line: the model, the machine, the batch. */
void describe_job(const Job *job);

/* Returns: (owned) the degrees above 1, as in "dp 2, tp 8, pp 4 x 2", where x 2 is vpp; or "one
 * device". */
char *describe_split(const PlanDegrees *degrees);

/* Returns: (owned) by how much op times vary, "5 %", and within which time the speed of an op says
 * nothing more about later ones: "5 %, forgotten within 50 ms". */
char *describe_op_sigma(const ReportJitter *jitter);

/* Prints a row for each of the @n plans; the first is called "best", and those on the Pareto front
 * of time and memory have a star. */
void describe_plans(const Plan *const *plans, size_t n);

/* Whether @owner holds memory on any rank at its peak. */
bool describe_owner_is_used(const Report *report, TraceMemoryOwner owner);

/* Prints how layers are laid over stages, the batch over micro-batches, sequences over slices. */
void describe_stages(const Plan *plan);

/* Of a plan on devices of several kinds: prints on which of them each pipeline rank lies. */
void describe_devices(const Job *job);

/* Prints the model FLOP utilisation beside the one that counts what a causal model needs. */
void describe_utilisation(const Job *job);

/* Prints the iteration, its throughput, where its time goes, its memory, and a row for each rank;
 * of more than @max_rows ranks, so many evenly spaced ones.
 * @plan          (nullable) of which it is
 * @currency      (nullable) of the cluster's prices
 * @fit_fraction  how likely it fits (cli/validate/error_bar.h); NaN: not known. */
void describe_report(const Report *report, const Plan *plan, const char *currency,
                     double fit_fraction, guint max_rows);

/* Returns: (owned, nullable) "77.1 GiB usable": what the peak of @report may reach; "77.1 GiB" where
 * that is all there is; NULL: no limit is known. */
char *describe_usable(const Report *report);

/* Prints what a bare schedule is, and its bubble with the op times of @report.
 * @is_unitless  they are counts, not seconds. */
void describe_schedule(const Schedule *schedule, const Report *report, bool is_unitless);

/* Prints the timeline of @trace as text, with its legend.
 * @is_unitless  its times are counts, as of a bare schedule: the axis has no unit. */
void describe_timeline(const Trace *trace, bool is_unitless);

/* Sets @glimpse to what describe_timeline() shows of @n_ranks ranks with times in units, so that
 * the simulator records no more.  Returns: (owned) the array that @glimpse borrows. */
bool *describe_glimpse(int32_t n_ranks, SimGlimpse *glimpse);
