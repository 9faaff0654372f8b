/*
 * cli/request/job.h - Job: what a plan file holds: a model, a cluster with its profile, and a plan.
 *
 * models/, profiles/ and schedule/ do not know each other's keys, so "degas-plan" files are put
 * together and taken apart here.  Here plans are given to the simulator, too.
 *
 * {"format":"degas-plan","version":1,"model":{...},"cluster":{...a degas-profile...},
 *  ...the keys of schedule/plan.h...}
 *
 * Errors: JSON_ERROR_INVALID, G_FILE_ERROR; CMD_ERROR_INPUT where a file's plan does not fit its
 * model.
 */
#pragma once

#include "cli/request/conditions.h"
#include "planner/search.h"
#include "simulator/simulate.h"

typedef struct {
    ModelArch *arch;
    Profile *profile;
    Plan *plan;
} Job;

/* Takes all three.  Returns: (owned). */
Job *job_new(ModelArch *arch, Profile *profile, Plan *plan);
void job_free(Job *job);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Job, job_free)

/* Reads a plan file and checks the plan against its model. */
Job *job_load(const char *path, GError **error);
/* The same from a parsed document. */
Job *job_read(JsonDoc *doc, GError **error);

/* Returns: (owned) a writer that holds the whole file. */
JsonWriter *job_write(const Job *job);
/* The same without the end of the object: the caller may add members, and ends it.  Readers of plan
 * files ignore members "explain", "any_schedule" and "error". */
JsonWriter *job_write_open(const Job *job);

/*
 * Builds the schedule in which @plan's ops run.
 *
 * A schedule family that searches an order does so for the times and the memory of @workload
 * (profiles/workload/schedule_times.h).  Its search ignores the reductions behind the last backward
 * and that ops wait for single messages.  So the simulator decides: where the order of one of the
 * families that the search started from simulates better (it fits and the found one does not, or it
 * ends earlier), the schedule has that order.
 */
Schedule *job_build_schedule(const Plan *plan, const Workload *workload, GError **error);

/* The same of a job, whose workload is made first.  @memory_limit_bytes 0: that of the devices. */
Schedule *job_schedule(const Job *job, int64_t memory_limit_bytes, GError **error);

/* One simulated iteration. */
typedef struct {
    Schedule *schedule;
    Workload *workload;
    SimResult result;
} JobSimulation;

void job_simulation_clear(JobSimulation *simulation);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(JobSimulation, job_simulation_clear)

/* How a job is simulated.  All zero: exactly as planned, for a report alone. */
typedef struct {
    int64_t memory_limit_bytes; /* 0: the devices' */
    bool want_trace, want_levels;
    int64_t limit_ns; /* not 0: only a plan that fits and is no slower is simulated to its end, as
                       * limit_ns and only_if_fits of SimOptions say */
    const SimGlimpse *glimpse;    /* (borrowed, nullable) with want_trace: a part of it */
    const Conditions *conditions; /* (borrowed, nullable) in what the machine differs */
} JobOptions;

/*
 * Prices the plan, builds its schedule, simulates it.
 * @options     (nullable)
 * @simulation  (out) cleared by the caller, whatever is returned.
 */
bool job_simulate(const Job *job, const JobOptions *options, JobSimulation *simulation,
                  GError **error);

/* The PlanEvaluateFunc of the planner: the simulator. */
bool job_evaluate(const Plan *plan, const Workload *workload, int64_t limit_ns, Report **report,
                  void *user_data, GError **error);
