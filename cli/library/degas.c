#include "cli/library/degas.h"

#include <math.h>
#include <string.h>

#include "cli/help/help.h"
#include "cli/request/command.h"
#include "cli/request/job.h"
#include "cli/request/request.h"
#include "schedule/report.h"

const char *
degas_version(void)
{
    return DEGAS_VERSION;
}

static void
set_plan(DegasResult *result, const Plan *plan)
{
    const PlanDegrees *d = &plan->degrees;

    result->n_devices = plan_n_devices(plan);
    result->global_batch = plan->global_batch;
    result->seq_len = plan->seq_len;
    result->micro_batch = plan->micro_batch;
    result->n_micro_batches = plan->n_micro_batches;
    result->n_slices = plan->slices->len;
    result->dp = d->dp;
    result->tp = d->tp;
    result->pp = d->pp;
    result->vpp = d->vpp;
    result->cp = d->cp;
    result->ep = d->ep;
    result->zero_stage = plan->zero_stage;
    result->lower_bound_s = plan->lower_bound_s;
    g_strlcpy(result->schedule, plan->schedule, sizeof result->schedule);
    g_strlcpy(result->recompute, plan_recompute_name(plan), sizeof result->recompute);
}

static void
set_report(DegasResult *result, const Report *report)
{
    result->iteration_s = units_s_from_ns(report->iteration_ns);
    result->tokens_per_s = report->tokens_per_s;
    result->model_flops_utilization_fraction = report->model_flops_utilization_fraction;
    result->bubble_fraction = report->bubble_fraction;
    result->cost_per_iteration = report->cost_per_iteration;
    result->energy_per_iteration_j = report->energy_per_iteration_j;
    result->peak_memory_bytes = report->peak_memory_bytes;
    result->memory_limit_bytes = report->memory_limit_bytes;
    result->fits = report->fits;
}

/* A request, or (job, out) a whole plan.  Both NULL on an error. */
static Request *
read_request(const char *text, RequestKind kind, Job **job, GError **error)
{
    g_autoptr(JsonDoc) doc =
        text == NULL ? NULL : json_doc_parse("request", text, strlen(text), error);

    if (text == NULL)
        cmd_fail(error, CMD_ERROR_USAGE, "there is no request");
    if (doc == NULL)
        return NULL;
    const JsonValue *root = json_doc_root(doc, NULL, 0);
    if (root != NULL && job != NULL && json_has(doc, root, "format")) {
        *job = job_read(doc, error);
        return NULL;
    }
    return root == NULL && !json_doc_finish(doc, error)
               ? NULL
               : request_read(doc, root, kind, NULL, NULL, error);
}

/* The caller's part of @ours, and the status of @error (taken, nullable). */
static int
finish(DegasResult *ours, GError *error, int status, DegasResult *result)
{
    const size_t size = result->size;

    if (error != NULL) {
        ours->message = g_strdup(error->message);
        status = cmd_exit_status(error);
        g_error_free(error);
    }
    ours->size = size;
    memcpy(result, ours, MIN(size, sizeof *ours));
    return status;
}

/* A caller that is older than this knows at least the texts. */
static bool
check_size(const DegasResult *result)
{
    return result != NULL && result->size >= offsetof(DegasResult, iteration_s);
}

static DegasResult
unknown(void)
{
    return (DegasResult){.iteration_s = NAN,
                         .tokens_per_s = NAN,
                         .model_flops_utilization_fraction = NAN,
                         .bubble_fraction = NAN,
                         .lower_bound_s = NAN,
                         .cost_per_iteration = NAN,
                         .energy_per_iteration_j = NAN};
}

int
degas_plan(const char *text, const int *stop, DegasResult *result)
{
    DegasResult ours = unknown();
    g_autoptr(Plan) plan = NULL;
    GError *error = NULL;

    if (!check_size(result))
        return CMD_ERROR_USAGE;
    g_autoptr(Request) request = read_request(text, REQUEST_SEARCHED, NULL, &error);
    if (request != NULL) {
        request->plan.stop = stop;
        plan = plan_search(&request->plan, job_evaluate, NULL, &error);
    }
    const bool is_stopped = stop != NULL && g_atomic_int_get(stop) != 0;
    if (plan == NULL && is_stopped) {
        g_clear_error(&error);
        cmd_fail(&error, CMD_ERROR_INTERRUPTED, "stopped: no plan was found yet");
    }
    if (plan == NULL)
        return finish(&ours, error, CMD_ERROR_INTERNAL, result);
    set_plan(&ours, plan);
    if (plan->predicted != NULL)
        set_report(&ours, plan->predicted);
    g_autoptr(Job) job = job_new(model_arch_copy(request->arch), profile_copy(request->profile),
                                 g_steal_pointer(&plan));
    g_autoptr(JsonWriter) writer = job_write(job);
    ours.json = json_writer_steal(writer, NULL);
    return finish(&ours, NULL, is_stopped ? CMD_ERROR_INTERRUPTED : 0, result);
}

int
degas_simulate(const char *text, DegasResult *result)
{
    DegasResult ours = unknown();
    g_auto(JobSimulation) simulation = {0};
    g_autoptr(Job) job = NULL;
    GError *error = NULL;

    if (!check_size(result))
        return CMD_ERROR_USAGE;
    g_autoptr(Request) request = read_request(text, REQUEST_FIXED, &job, &error);
    g_autoptr(Plan) plan = request == NULL ? NULL : request_plan(request, &error);
    const JobOptions how = {.memory_limit_bytes =
                                request == NULL ? 0 : request->plan.memory_limit_bytes};
    if (plan != NULL)
        job = job_new(model_arch_copy(request->arch), profile_copy(request->profile),
                      g_steal_pointer(&plan));
    if (job == NULL || !job_simulate(job, &how, &simulation, &error))
        return finish(&ours, error, CMD_ERROR_INTERNAL, result);
    set_plan(&ours, job->plan);
    ours.lower_bound_s = NAN;
    set_report(&ours, simulation.result.report);
    g_autoptr(JsonWriter) writer = json_writer_new();
    json_write_object(writer, NULL);
    report_write(writer, simulation.result.report);
    json_write_object_end(writer);
    ours.json = json_writer_steal(writer, NULL);
    return finish(&ours, NULL, 0, result);
}

void
degas_result_clear(DegasResult *result)
{
    if (!check_size(result))
        return;
    g_clear_pointer(&result->message, g_free);
    g_clear_pointer(&result->json, g_free);
}
