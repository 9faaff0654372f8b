/*
 * cli/request/job.h - Job: a plan file: what is trained, on what, and how it is split.
 *
 * The one place where "degas-plan" files are put together and taken apart, since models/,
 * profiles/ and schedule/ do not know each other's keys; and where a plan meets the simulator.
 *
 * {"format":"degas-plan","version":1,"model":{...},"cluster":{...a degas-profile...},
 *  ...the keys of schedule/plan.h...}
 *
 * Errors: JSON_ERROR_INVALID, G_FILE_ERROR; what a file's plan contradicts is CMD_ERROR_INPUT.
 */
#ifndef CLI_REQUEST_JOB_H
#define CLI_REQUEST_JOB_H

#include "cli/request/conditions.h"
#include "planner/search.h"
#include "simulator/simulate.h"

G_BEGIN_DECLS

typedef struct {
    ModelArch *arch;
    Profile *profile;
    Plan *plan;
} Job;

/* (taken) all three. */
Job *job_new(ModelArch *arch, Profile *profile, Plan *plan);
void job_free(Job *job);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Job, job_free)

/* Reads a plan file and checks the plan against its model. */
Job *job_load(const char *path, GError **error);
/* As above from a parsed document. */
Job *job_read(JsonDoc *doc, GError **error);

/* Returns: (owned) a writer that holds the whole file. */
JsonWriter *job_write(const Job *job);
/* All of it but the end of the object, to which a caller may add; the reader ignores "explain". */
JsonWriter *job_write_open(const Job *job);

/*
 * The schedule that @plan's ops run in, as @workload prices them.
 *
 * A family that searches is built for these times and this memory
 * (profiles/workload/schedule_times.h).  Its search knows no reductions behind the last backward
 * and no waiting in single messages; so the simulator has the last word, and if one of the families
 * that it started from simulates better (it fits and zb-auto's does not, or it ends earlier), the
 * plan has that one's order.
 */
Schedule *job_build_schedule(const Plan *plan, const Workload *workload, GError **error);

/* As above; prices @job first.  @memory_limit_bytes 0: the devices'. */
Schedule *job_schedule(const Job *job, int64_t memory_limit_bytes, GError **error);

/* One simulated iteration. */
typedef struct {
    Schedule *schedule;
    Workload *workload;
    SimResult result;
} JobSimulation;

void job_simulation_clear(JobSimulation *simulation);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(JobSimulation, job_simulation_clear)

/* How a job is simulated; all zero: as it is planned, a report alone. */
typedef struct {
    int64_t memory_limit_bytes; /* 0: the devices' */
    bool want_trace, want_levels;
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

G_END_DECLS

#endif /* CLI_REQUEST_JOB_H */
