#include "cli/validate/validation.h"

#include <math.h>
#include <string.h>

#include "base/order.h"
#include "base/parallel.h"
#include "base/units.h"
#include "cli/request/command.h"
#include "cli/request/output.h"
#include "cli/request/request.h"
#include "profiles/workload/physical.h"

/* Causal attention is counted in full by model FLOPs, so a real run may look up to twice as fast as
 * it is. */
#define IMPOSSIBLE_FACTOR 2.0
/* Figures of memory are rounded, and a driver may report a little more than the data sheet. */
#define MEMORY_SLACK 1.05

/* --- cases --- */

static void
case_free(void *data)
{
    ValidationCase *one = data;

    g_free(one->request_text);
    job_free(one->job);
    g_free(one->why_not);
    g_free(one->own_id);
    g_free(one);
}

/* Profiles by name, so that a thousand rows do not parse the same one. */
static const Profile *
built_in(GHashTable *profiles, const char *name, GError **error)
{
    Profile *profile = g_hash_table_lookup(profiles, name);

    if (profile == NULL) {
        profile = profile_load(name, error);
        if (profile != NULL)
            g_hash_table_insert(profiles, g_strdup(name), profile);
    }
    return profile;
}

static const char *
device_name(const Profile *profile)
{
    return model_cluster_device(profile->cluster, 0)->name;
}

/* Whether the row says that it ran on other devices than @cluster has. */
static bool
is_other_device(const MeasuredRow *row, const Profile *cluster, GHashTable *profiles)
{
    const ValidationWord *stated = validation_cluster(row);

    if (stated == NULL)
        return false;
    if (stated->cluster == NULL)
        return true;
    const Profile *profile = built_in(profiles, stated->cluster, NULL);
    return profile == NULL || strcmp(device_name(profile), device_name(cluster)) != 0;
}

/* The request of one->request_text, or NULL. */
static Request *
read_request(const ValidationCase *one, const Profile *cluster, GError **error)
{
    g_autoptr(JsonDoc) doc =
        json_doc_parse(one->row->id, one->request_text, strlen(one->request_text), error);

    if (doc == NULL)
        return NULL;
    const JsonValue *root = json_doc_root(doc, NULL, 0);
    json_ignore(doc, root, "id");
    return request_read(doc, root, REQUEST_FIXED, cluster, NULL, error);
}

/* @request (taken) as a job that can be priced, or NULL. */
static Job *
job_of_request(Request *taken, GError **error)
{
    g_autoptr(Request) request = taken;
    g_autoptr(Plan) plan = request_plan(request, error);
    g_autoptr(Workload) workload = NULL;

    if (plan != NULL)
        workload = workload_new(request->arch, request->profile, plan, 0, error);
    return workload == NULL ? NULL
                            : job_new(g_steal_pointer(&request->arch),
                                      g_steal_pointer(&request->profile), g_steal_pointer(&plan));
}

static ValidationPrediction predict(const ValidationCase *one);

/* @row, which is that of @one or what was filled in of it, as the job of @one; false without one. */
static bool
make_job_of(ValidationCase *one, const MeasuredRow *row, const Profile *cluster,
            const char *cluster_name, GHashTable *profiles, GError **error)
{
    Request *request = NULL;

    one->request_text = validation_request(row, cluster_name, error);
    if (one->request_text != NULL && cluster == NULL)
        cluster = built_in(profiles, validation_cluster(row)->cluster, error);
    if (one->request_text != NULL && cluster != NULL)
        request = read_request(one, cluster, error);
    if (request != NULL)
        one->job = job_of_request(request, error);
    if (one->job == NULL)
        g_clear_pointer(&one->request_text, g_free);
    return one->job != NULL;
}

/*
 * Of a row whose authors looked for the fastest configuration and do not say the micro-batch: with
 * that of 1, 2, 4, ... sequences which is predicted to be the fastest of those that fit.  Where none
 * fits, or another thing is not stated, with 1.
 */
static bool
make_fastest_job(ValidationCase *one, const Profile *cluster, const char *cluster_name,
                 GHashTable *profiles, GError **error)
{
    g_autofree char *best_text = NULL;
    g_autoptr(Job) best = NULL;
    double best_s = INFINITY;
    MeasuredRow row = *one->row;

    for (row.micro_batch = 1; row.micro_batch <= MAX(1, row.global_batch); row.micro_batch *= 2) {
        /* Whether replicas can share the batch at all is told of 1. */
        if (row.micro_batch > 1 && row.dp > 0 &&
            row.global_batch % (row.dp * row.micro_batch) != 0)
            break;
        if (!make_job_of(one, &row, cluster, cluster_name, profiles, best == NULL ? error : NULL))
            break;
        const ValidationPrediction predicted = predict(one);
        const double seconds = predicted.fits ? predicted.iteration_s : INFINITY;
        if (best == NULL || seconds < best_s) {
            best_s = seconds;
            g_free(best_text);
            best_text = g_steal_pointer(&one->request_text);
            job_free(best);
            best = g_steal_pointer(&one->job);
        }
        g_clear_pointer(&one->job, job_free);
        g_clear_pointer(&one->request_text, g_free);
    }
    one->job = g_steal_pointer(&best);
    one->request_text = g_steal_pointer(&best_text);
    return one->job != NULL;
}

/* The row as a job; false with why_not set where it cannot be one. */
static bool
make_job(ValidationCase *one, const Profile *cluster, const char *cluster_name,
         GHashTable *profiles)
{
    g_autoptr(GError) error = NULL;

    if (one->row->micro_batch == 0 && one->source->tuned
            ? make_fastest_job(one, cluster, cluster_name, profiles, &error)
            : make_job_of(one, one->row, cluster, cluster_name, profiles, &error))
        return true;
    one->why_not = g_strdup(error->message);
    return false;
}

/* (owned, nullable) what no machine can have measured. */
static char *
impossibility(const ValidationCase *one)
{
    const MeasuredRow *row = one->row;
    const Job *job = one->job;
    const ModelDevice *device = model_cluster_device(job->profile->cluster, 0);
    const double n_devices = (double)plan_n_devices(job->plan);
    const double flops =
        model_flops_per_iteration(job->arch, (double)job->plan->global_batch, job->plan->seq_len);
    const double peak = profile_peak_flops_per_s(device, job->plan->dtype);

    if (isfinite(row->iteration_s) &&
        flops / (IMPOSSIBLE_FACTOR * n_devices * row->iteration_s) > peak)
        return g_strdup_printf("measured_iter_ms: %.3g ms would be %.3g times the peak rate of the "
                               "devices; is it in milliseconds?",
                               row->iteration_s * 1e3,
                               flops / (n_devices * row->iteration_s * peak));
    const double least_s =
        workload_physical_bound_s(job->arch, job->profile->cluster, plan_n_devices(job->plan),
                                  job->plan->global_batch, job->plan->seq_len, job->plan->dtype);
    if (isfinite(row->iteration_s) && row->iteration_s < least_s)
        return g_strdup_printf("measured_iter_ms: %.3g ms is less than any program takes on these "
                               "devices, %.3g ms",
                               row->iteration_s * 1e3, least_s * 1e3);
    if (isfinite(row->memory_bytes) &&
        row->memory_bytes > MEMORY_SLACK * (double)device->memory_bytes)
        return g_strdup_printf("measured_mem_GiB: %s is more than a device has, %s",
                               units_format_bytes(row->memory_bytes).text,
                               units_format_bytes((double)device->memory_bytes).text);
    return NULL;
}

/* Returns: (owned) the cases of all rows of @table, in its order; NULL on an error.  @bad_rows
 * (nullable) as in measured_load(). */
static GPtrArray *
cases_of(const MeasuredTable *table, const Profile *cluster, const char *cluster_name,
         GPtrArray *bad_rows, GError **error)
{
    g_autoptr(GPtrArray) cases = g_ptr_array_new_with_free_func(case_free);
    g_autoptr(GHashTable) profiles =
        g_hash_table_new_full(g_str_hash, g_str_equal, g_free, (GDestroyNotify)profile_free);

    for (guint i = 0; i < table->rows->len; i++) {
        const MeasuredRow *row = &g_array_index(table->rows, MeasuredRow, i);
        ValidationCase *one = g_new0(ValidationCase, 1);

        g_ptr_array_add(cases, one);
        one->row = row;
        one->source = validation_source(row);
        one->is_other_device = cluster != NULL && is_other_device(row, cluster, profiles);
        if (one->is_other_device)
            one->why_not = g_strdup("other devices than the cluster's");
        if (one->is_other_device || !make_job(one, cluster, cluster_name, profiles))
            continue;
        g_autofree char *wrong = impossibility(one);
        if (wrong == NULL)
            continue;
        if (bad_rows == NULL) {
            g_set_error(error, CMD_ERROR, CMD_ERROR_INPUT, "%s:%zu: %s", csv_name(table->csv),
                        row->line, wrong);
            return NULL;
        }
        g_ptr_array_add(bad_rows,
                        g_strdup_printf("%s:%zu: %s", csv_name(table->csv), row->line, wrong));
        g_ptr_array_set_size(cases, (gint)cases->len - 1);
    }
    return g_steal_pointer(&cases);
}

void
validation_runs_init(ValidationRuns *runs)
{
    *runs = (ValidationRuns){
        .cases = g_ptr_array_new(),
        .bad_rows = g_ptr_array_new_with_free_func(g_free),
        .tables = g_ptr_array_new_with_free_func((GDestroyNotify)measured_free),
        .parts = g_ptr_array_new_with_free_func((GDestroyNotify)g_ptr_array_unref),
    };
}

void
validation_runs_clear(ValidationRuns *runs)
{
    g_clear_pointer(&runs->cases, g_ptr_array_unref);
    g_clear_pointer(&runs->parts, g_ptr_array_unref);
    g_clear_pointer(&runs->tables, g_ptr_array_unref);
    g_clear_pointer(&runs->bad_rows, g_ptr_array_unref);
}

/* @part (taken) */
static void
add_part(ValidationRuns *runs, GPtrArray *part)
{
    g_ptr_array_add(runs->parts, part);
    g_ptr_array_extend(runs->cases, part, NULL, NULL);
}

bool
validation_runs_add_table(ValidationRuns *runs, const char *path, const Profile *cluster,
                          const char *cluster_name, bool skip_bad, GError **error)
{
    GPtrArray *bad_rows = skip_bad ? runs->bad_rows : NULL;
    MeasuredTable *table = measured_load(path, bad_rows, error);

    if (table == NULL)
        return false;
    g_ptr_array_add(runs->tables, table);
    GPtrArray *cases = cases_of(table, cluster, cluster_name, bad_rows, error);
    if (cases == NULL)
        return false;
    add_part(runs, cases);
    return true;
}

void
validation_runs_add_case(ValidationRuns *runs, ValidationCase *one)
{
    GPtrArray *part = g_ptr_array_new_with_free_func(case_free);

    g_ptr_array_add(part, one);
    add_part(runs, part);
}

void
validation_runs_tell_bad_rows(const ValidationRuns *runs)
{
    for (guint i = 0; i < runs->bad_rows->len; i++)
        output_note("skipped: %s", (const char *)runs->bad_rows->pdata[i]);
}

/* --- our own runs --- */

/* Median seconds of a step. */
static bool
read_step(const char *path, double *step_s, GError **error)
{
    g_autoptr(JsonDoc) doc = json_doc_load(path, error);

    if (doc == NULL)
        return false;
    const JsonValue *root = json_doc_root(doc, "degas-run", 1);
    *step_s = json_double(doc, json_object(doc, root, "step_s"), "median", 0.0, 1e6);
    if (!json_doc_failed(doc) && *step_s == 0.0)
        json_fail(doc, root, "step_s: expected more than 0 seconds");
    return json_doc_finish(doc, error);
}

ValidationCase *
validation_case_of_run(const char *plan_path, const char *run_path, const Profile *cluster,
                       GError **error)
{
    g_autoptr(Job) job = job_load(plan_path, error);
    double step_s;

    if (job == NULL || !read_step(run_path, &step_s, error))
        return NULL;
    profile_free(job->profile);
    job->profile = profile_copy(cluster);
    if (plan_n_devices(job->plan) > model_cluster_n_devices(cluster->cluster)) {
        model_cluster_free(job->profile->cluster);
        job->profile->cluster = model_cluster_resized(cluster->cluster, plan_n_devices(job->plan));
    }
    g_autoptr(Workload) workload = workload_new(job->arch, job->profile, job->plan, 0, error);
    if (workload == NULL) {
        cmd_blame_file(plan_path, error);
        return NULL;
    }
    ValidationCase *one = g_new0(ValidationCase, 1);
    one->own_id = g_path_get_basename(run_path);
    one->own_row = (MeasuredRow){.source = "degas run",
                                 .id = one->own_id,
                                 .gpu = "",
                                 .model = job->arch->name,
                                 .schedule = job->plan->schedule,
                                 .recompute = "",
                                 .dtype = dtype_names[job->plan->dtype],
                                 .notes = "",
                                 .vocab = -1,
                                 .zero_stage = job->plan->zero_stage,
                                 .node_bits_per_s = NAN,
                                 .iteration_s = step_s,
                                 .memory_bytes = NAN,
                                 .status = MEASURED_STATUS_OK};
    one->row = &one->own_row;
    one->source = validation_source(one->row);
    one->job = g_steal_pointer(&job);
    return one;
}

/* --- predictions --- */

/* By what share of what a peak may reach the fullest rank is above it (> 0), or below. */
static double
memory_margin(const Report *report, const Workload *workload)
{
    double margin = -1.0;

    for (guint r = 0; r < report->ranks->len; r++) {
        const double peak = (double)g_array_index(report->ranks, ReportRank, r).peak_memory_bytes;

        margin = fmax(margin, peak / (double)workload_usable_bytes(&workload->ranks[r]) - 1.0);
    }
    return margin;
}

/* (owned, nullable) @margin  (out, nullable) memory_margin() */
static Report *
simulate(const ValidationCase *one, const Profile *profile, bool want_memory, double *margin)
{
    const SimOptions options = {.want_memory = want_memory};
    g_autoptr(Workload) workload = workload_new(one->job->arch, profile, one->job->plan, 0, NULL);
    g_autoptr(Schedule) schedule = NULL;
    g_auto(SimResult) result = {0};

    if (workload != NULL)
        schedule = job_build_schedule(one->job->plan, workload, NULL);
    if (schedule == NULL || !sim_run(schedule, workload, &options, &result, NULL))
        return NULL;
    if (margin != NULL)
        *margin = memory_margin(result.report, workload);
    return g_steal_pointer(&result.report);
}

/* What a caching allocator has reserved for the fullest rank: its peak, and what is lost of what comes
 * and goes (cost-model.md 6.4). */
static double
reserved_bytes(const Report *report, double allocator_fraction)
{
    double most = 0.0;

    for (guint i = 0; i < report->ranks->len; i++) {
        const ReportRank *rank = &g_array_index(report->ranks, ReportRank, i);
        const double passing = (double)(rank->memory_bytes[TRACE_MEMORY_ACTIVATIONS] +
                                        rank->memory_bytes[TRACE_MEMORY_KV] +
                                        rank->memory_bytes[TRACE_MEMORY_WORKSPACE]);

        most = fmax(most, (double)rank->peak_memory_bytes + allocator_fraction * passing);
    }
    return most;
}

/* The peak without what the source's figure does not count. */
static double
counted_memory(const ValidationCase *one, const Profile *profile)
{
    Profile bare = *profile;

    if (one->source->memory == VALIDATION_MEMORY_NONE)
        return NAN;
    bare.parameters.context_bytes = 0.0;
    if (one->source->memory == VALIDATION_MEMORY_ALLOCATED)
        bare.parameters.allocator_fraction = 0.0;
    g_autoptr(Report) counted = simulate(one, &bare, true, NULL);
    if (counted == NULL)
        return NAN;
    if (one->source->memory == VALIDATION_MEMORY_RESERVED)
        return reserved_bytes(counted, bare.parameters.allocator_fraction);
    if (one->source->memory_of_last_rank)
        return (double)g_array_index(counted->ranks, ReportRank, counted->ranks->len - 1)
            .peak_memory_bytes;
    return (double)counted->peak_memory_bytes;
}

static ValidationPrediction
predict(const ValidationCase *one)
{
    ValidationPrediction prediction = {NAN, NAN, NAN, false};

    if (one->job == NULL)
        return prediction;
    g_autoptr(Report) report = simulate(one, one->job->profile, true, NULL);
    if (report == NULL)
        return prediction;
    prediction.iteration_s = units_s_from_ns(report->iteration_ns);
    prediction.utilization_fraction = report->model_flops_utilization_fraction;
    prediction.fits = report->fits;
    if (isfinite(one->row->memory_bytes))
        prediction.memory_bytes = counted_memory(one, one->job->profile);
    return prediction;
}

double
validation_residual(const ValidationCase *one, ValidationQuantity quantity,
                    const ProfileParameters *parameters)
{
    const MeasuredRow *row = one->row;
    double margin = 0.0;

    if (one->job == NULL)
        return NAN;
    Profile profile = *one->job->profile; /* borrows from it: only the parameters may differ */
    if (parameters != NULL)
        profile.parameters = *parameters;
    if (quantity == VALIDATION_MEMORY)
        return (counted_memory(one, &profile) - row->memory_bytes) / row->memory_bytes;
    g_autoptr(Report) report = simulate(one, &profile, quantity == VALIDATION_OOM,
                                        quantity == VALIDATION_OOM ? &margin : NULL);
    if (report == NULL)
        return NAN;
    if (quantity == VALIDATION_TIME)
        return (units_s_from_ns(report->iteration_ns) - row->iteration_s) / row->iteration_s;
    return row->status == MEASURED_STATUS_OOM ? fmin(0.0, margin) : fmax(0.0, margin);
}

/* A case and where its prediction goes: cases do not meet, so their order does not matter. */
typedef struct {
    const ValidationCase *one;
    ValidationPrediction *prediction;
} Work;

static void
predict_one(int64_t i, void *user_data)
{
    const Work *work = (const Work *)user_data + i;

    *work->prediction = predict(work->one);
}

ValidationPrediction *
validation_predict_all(const GPtrArray *cases, int64_t n_threads)
{
    ValidationPrediction *predictions = g_new0(ValidationPrediction, MAX(1, cases->len));
    g_autofree Work *work = g_new(Work, MAX(1, cases->len));

    for (guint i = 0; i < cases->len; i++)
        work[i] = (Work){cases->pdata[i], &predictions[i]};
    parallel_each(cases->len, n_threads, predict_one, work);
    return predictions;
}

/* --- errors --- */

ValidationErrors
validation_errors(const double *errors, size_t n)
{
    ValidationErrors result = {n, NAN, NAN, NAN, NAN};
    g_autofree double *sizes = g_new(double, MAX(1, n));
    double sum = 0.0, signed_sum = 0.0;

    if (n == 0)
        return result;
    for (size_t i = 0; i < n; i++) {
        sizes[i] = fabs(errors[i]);
        sum += sizes[i];
        signed_sum += errors[i];
    }
    qsort(sizes, n, sizeof *sizes, order_doubles);
    result.mape = sum / (double)n;
    result.bias = signed_sum / (double)n;
    result.median = n % 2 == 1 ? sizes[n / 2] : (sizes[n / 2 - 1] + sizes[n / 2]) / 2.0;
    result.worst = sizes[n - 1];
    return result;
}

double
validation_error_of(ValidationQuantity quantity, const MeasuredRow *row,
                    const ValidationPrediction *prediction)
{
    if (row->status != MEASURED_STATUS_OK)
        return NAN;
    switch (quantity) {
    case VALIDATION_TIME:
        return (prediction->iteration_s - row->iteration_s) / row->iteration_s;
    case VALIDATION_MEMORY:
        return (prediction->memory_bytes - row->memory_bytes) / row->memory_bytes;
    case VALIDATION_OOM:
        break;
    }
    return NAN;
}

static void
count_oom(ValidationOom *oom, const MeasuredRow *row, const ValidationPrediction *prediction)
{
    const bool happened = row->status == MEASURED_STATUS_OOM;

    if (row->status == MEASURED_STATUS_OTHER || !isfinite(prediction->iteration_s))
        return;
    oom->n++;
    oom->n_oom += happened;
    oom->n_predicted += !prediction->fits;
    oom->n_right += happened && !prediction->fits;
}

ValidationScore
validation_score(const GPtrArray *cases, const ValidationPrediction *predictions,
                 const ValidationSet *set, ValidationQuantity quantity)
{
    g_autofree double *errors = g_new(double, MAX(1, cases->len));
    ValidationScore score = {0};
    size_t n = 0;

    for (guint i = 0; i < cases->len; i++) {
        const ValidationCase *one = cases->pdata[i];
        const double error = validation_error_of(quantity, one->row, &predictions[i]);

        if (set != NULL && !validation_set_has(set, one->row))
            continue;
        count_oom(&score.oom, one->row, &predictions[i]);
        if (isfinite(error))
            errors[n++] = error;
    }
    score.errors = validation_errors(errors, n);
    score.oom.precision = (double)score.oom.n_right / (double)score.oom.n_predicted;
    score.oom.recall = (double)score.oom.n_right / (double)score.oom.n_oom;
    return score;
}
