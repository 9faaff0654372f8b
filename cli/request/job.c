#include "cli/request/job.h"

#include "base/embedded.h"
#include "cli/request/command.h"
#include "cli/request/output.h"
#include "profiles/workload/schedule_times.h"

Job *
job_new(ModelArch *arch, Profile *profile, Plan *plan)
{
    Job *job = g_new0(Job, 1);

    *job = (Job){.arch = arch, .profile = profile, .plan = plan};
    return job;
}

void
job_free(Job *job)
{
    if (job == NULL)
        return;
    model_arch_free(job->arch);
    profile_free(job->profile);
    plan_free(job->plan);
    g_free(job);
}

Job *
job_read(JsonDoc *doc, GError **error)
{
    const JsonValue *root = json_doc_root(doc, "degas-plan", 1);

    json_ignore(doc, root, "explain");
    json_ignore(doc, root, "any_schedule");
    json_ignore(doc, root, "error");
    g_autoptr(ModelArch) arch = model_arch_read(doc, json_object(doc, root, "model"));
    g_autoptr(Profile) profile = profile_read(doc, json_object(doc, root, "cluster"));
    g_autoptr(Plan) plan = plan_read(doc, root);

    if (!json_doc_finish(doc, error))
        return NULL;
    if (!plan_check(plan, model_n_stacked(arch), error)) {
        cmd_blame_file(json_doc_name(doc), error);
        return NULL;
    }
    return job_new(g_steal_pointer(&arch), g_steal_pointer(&profile), g_steal_pointer(&plan));
}

Job *
job_load(const char *path, GError **error)
{
    g_autofree char *model = g_strconcat("models/", path, ".json", NULL);
    GError *local = NULL;
    g_autoptr(JsonDoc) doc = json_doc_load(path, &local);

    if (g_error_matches(local, G_FILE_ERROR, G_FILE_ERROR_NOENT) && embedded_find(model) != NULL) {
        g_clear_error(&local);
        g_set_error(error, CMD_ERROR, CMD_ERROR_USAGE,
                    "%s: a model where the file of a plan is expected; degas plan %s CLUSTER -o "
                    "plan.json makes one",
                    path, path);
        return NULL;
    }
    if (local != NULL)
        g_propagate_error(error, local);
    return doc == NULL ? NULL : job_read(doc, error);
}

JsonWriter *
job_write_open(const Job *job)
{
    JsonWriter *writer = output_json_new("degas-plan");

    model_arch_write(writer, "model", job->arch);
    profile_write(writer, "cluster", job->profile);
    plan_write_members(writer, job->plan);
    return writer;
}

JsonWriter *
job_write(const Job *job)
{
    JsonWriter *writer = job_write_open(job);

    json_write_object_end(writer);
    return writer;
}

/* --- schedules --- */

/* What the simulator says of a schedule. */
typedef struct {
    bool fits;
    int64_t iteration_ns;
} Verdict;

static bool
judge(const Schedule *schedule, const Workload *workload, Verdict *verdict, GError **error)
{
    const SimOptions options = {.want_memory = true};
    g_auto(SimResult) result = {0};

    if (!sim_run(schedule, workload, &options, &result, error))
        return false;
    *verdict = (Verdict){result.report->fits, result.report->iteration_ns};
    return true;
}

/* @schedule (taken), or the order of a family that seeded the search, if that simulates better. */
static Schedule *
best_of_families(const Plan *plan, const Workload *workload, Schedule *schedule, GError **error)
{
    g_autoptr(Schedule) best = schedule;
    g_autoptr(Plan) other = plan_copy(plan);
    Verdict verdict;

    if (!judge(best, workload, &verdict, error))
        return NULL;
    for (const ScheduleFamily *const *f = schedule_families(); *f != NULL; f++) {
        Verdict trial_verdict;
        if (!schedule_family_seeds(*f, plan->degrees.vpp))
            continue;
        g_free(other->schedule);
        other->schedule = g_strdup((*f)->name);
        g_autoptr(Schedule) trial = plan_build_schedule(other, NULL, error);
        if (trial == NULL || !judge(trial, workload, &trial_verdict, error))
            return NULL;
        if (trial_verdict.fits != verdict.fits ? verdict.fits
                                               : trial_verdict.iteration_ns >= verdict.iteration_ns)
            continue;
        verdict = trial_verdict;
        schedule_free(best);
        best = g_steal_pointer(&trial);
        g_free(best->name);
        best->name = g_strdup(plan->schedule);
    }
    return g_steal_pointer(&best);
}

Schedule *
job_build_schedule(const Plan *plan, const Workload *workload, GError **error)
{
    const ScheduleFamily *family = schedule_family_find(plan->schedule, error);
    g_auto(WorkloadScheduleTimes) times = {0};

    if (family == NULL)
        return NULL;
    if (!family->reads_times)
        return plan_build_schedule(plan, NULL, error);
    workload_schedule_times_init(&times, workload, family->placement);
    Schedule *schedule = plan_build_schedule(plan, &times.times, error);
    return schedule == NULL || !family->searches
               ? schedule
               : best_of_families(plan, workload, schedule, error);
}

Schedule *
job_schedule(const Job *job, int64_t memory_limit_bytes, GError **error)
{
    g_autoptr(Workload) workload =
        workload_new(job->arch, job->profile, job->plan, memory_limit_bytes, error);

    return workload == NULL ? NULL : job_build_schedule(job->plan, workload, error);
}

/* --- simulations --- */

void
job_simulation_clear(JobSimulation *simulation)
{
    sim_result_clear(&simulation->result);
    workload_free(simulation->workload);
    schedule_free(simulation->schedule);
    *simulation = (JobSimulation){0};
}

/* A job and what else its simulation was asked. */
typedef struct {
    const Job *job;
    JobOptions options;
} Varied;

/* The job with other conventions; see ExpertsSimulate. */
static bool
simulate_load(const PlanConventions *conventions, int64_t *iteration_ns, int64_t *peak_bytes,
              void *user_data, GError **error)
{
    const Varied *varied = user_data;
    g_autoptr(Plan) plan = plan_copy(varied->job->plan);
    const Job job = {varied->job->arch, varied->job->profile, plan};
    g_auto(JobSimulation) simulation = {0};

    plan->conventions = *conventions;
    if (!job_simulate(&job, &varied->options, &simulation, error))
        return false;
    *iteration_ns = simulation.result.report->iteration_ns;
    *peak_bytes = simulation.result.report->peak_memory_bytes;
    return true;
}

bool
job_simulate(const Job *job, const JobOptions *options, JobSimulation *simulation, GError **error)
{
    static const JobOptions plain = {0};
    SimOptions how = {.want_memory = true};
    SimJitter jitter;

    *simulation = (JobSimulation){0};
    if (options == NULL)
        options = &plain;
    simulation->workload =
        workload_new(job->arch, job->profile, job->plan, options->memory_limit_bytes, error);
    if (simulation->workload == NULL)
        return false;
    if (options->conditions != NULL) {
        const ScheduleFamily *family = schedule_family_find(job->plan->schedule, error);
        if (family == NULL ||
            !conditions_apply(options->conditions, family->placement, simulation->workload, error))
            return false;
        jitter = options->conditions->jitter;
        jitter.n_replicas = job->plan->degrees.dp;
        jitter.n_members = job->plan->degrees.cp;
        if (!conditions_apply_spread(options->conditions, job->profile, &jitter, error))
            return false;
        how.jitter = jitter.n_runs > 0 ? &jitter : NULL;
    }
    simulation->schedule = job_build_schedule(job->plan, simulation->workload, error);
    how.want_trace = options->want_trace;
    how.glimpse = options->glimpse;
    how.want_levels = options->want_levels;
    how.limit_ns = options->limit_ns;
    how.only_if_fits = options->limit_ns > 0;
    if (simulation->schedule == NULL ||
        !sim_run(simulation->schedule, simulation->workload, &how, &simulation->result, error))
        return false;
    if (options->conditions == NULL || options->conditions->experts.n_steps == 0)
        return true;
    Report *report = simulation->result.report;
    Varied varied = {job, {.memory_limit_bytes = options->memory_limit_bytes}};
    const int64_t usable =
        report->memory_usable_bytes > 0 ? report->memory_usable_bytes : report->memory_limit_bytes;
    return experts_vary(&options->conditions->experts, job->arch, job->plan, usable, simulate_load,
                        &varied, report, error);
}

bool
job_evaluate(const Plan *plan, const Workload *workload, int64_t limit_ns, Report **report,
             void *user_data, GError **error)
{
    const SimOptions options = {.limit_ns = limit_ns == INT64_MAX ? 0 : limit_ns,
                                .only_if_fits = true,
                                .want_memory = true};
    g_autoptr(Schedule) schedule = job_build_schedule(plan, workload, error);
    g_auto(SimResult) result = {0};

    if (schedule == NULL || !sim_run(schedule, workload, &options, &result, error))
        return false;
    *report = g_steal_pointer(&result.report);
    return true;
}
