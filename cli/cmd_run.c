/*
 * degas run: executes a plan and lays what it measured beside what was predicted.
 *
 * The first step allocates and warms up: statistics are of the others, unless it is the only one.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/breakdown.h"
#include "cli/command.h"
#include "cli/job.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/run_options.h"
#include "cli/run_processes.h"
#include "profiles/measured.h"

/* Iterations with times that vary. */
#define VARIED_RUNS 200

/* --- one run --- */

typedef struct {
    Job *job;
    /* The same plan in the simulator, with the plan file's own profile.  Its report is NULL, and
     * @unpredicted says why, where that prices nothing. */
    JobSimulation simulation;
    GError *unpredicted;      /* (owned, nullable) */
    int64_t *predicted_bytes; /* (owned, nullable) [pp] */
    ExecRunOptions exec;
    ExecRunResult result;
    char *where;         /* (owned, nullable) of the watcher */
    Breakdown breakdown; /* none without a trace */
    /* Of the steps after the first. */
    double median_s, p10_s, p90_s;
    /* NaN where the plan's own profile gives no prediction. */
    double predicted_s, predicted_bubble_fraction;
    int64_t predicted_peak_bytes;
    /* The same with ops that vary as when they were profiled; n_runs 0: that is not known. */
    ReportJitter varied;
} Run;

static void
run_clear(Run *run)
{
    job_free(run->job);
    job_simulation_clear(&run->simulation);
    g_clear_error(&run->unpredicted);
    g_free(run->predicted_bytes);
    exec_run_result_clear(&run->result);
    g_free(run->where);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Run, run_clear)

static double
error_fraction(const Run *run)
{
    return run->predicted_s / run->median_s - 1.0;
}

static double
tokens_per_step(const Run *run)
{
    return (double)run->job->plan->global_batch * (double)run->job->plan->seq_len;
}

static int64_t
peak_bytes(const Run *run)
{
    int64_t peak = 0;

    for (guint i = 0; i < run->result.peak_memory_bytes->len; i++)
        peak = MAX(peak, g_array_index(run->result.peak_memory_bytes, int64_t, i));
    return peak;
}

static int
compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void
summarize_steps(Run *run)
{
    const ExecRunResult *result = &run->result;
    const int64_t first = result->n_steps > 1 ? 1 : 0;
    const size_t n = (size_t)(result->n_steps - first);
    g_autofree double *sorted = g_memdup2(result->step_s + first, n * sizeof *sorted);

    qsort(sorted, n, sizeof *sorted, compare_doubles);
    run->median_s = sorted[n / 2];
    run->p10_s = sorted[(n - 1) / 10];
    run->p90_s = sorted[(n - 1) - (n - 1) / 10];
}

/* What the simulation says, beside what was measured. */
static void
predict(Run *run)
{
    const Report *report = run->simulation.result.report;

    run->predicted_s = run->predicted_bubble_fraction = (double)NAN;
    if (run->unpredicted != NULL) {
        output_note("run: no prediction to compare with: %s", run->unpredicted->message);
        return;
    }
    const int64_t concurrency = run->job->profile->measured_concurrency;
    if (concurrency > 0 && run->result.busy_s->len > concurrency)
        output_note("run: the plan has %u ranks, its profile was measured with %" G_GINT64_FORMAT
                    " busy at once: the prediction is of a machine with more cores (degas profile "
                    "--concurrency %u)",
                    run->result.busy_s->len, concurrency, run->result.busy_s->len);
    run->predicted_s = units_s_from_ns(report->iteration_ns);
    run->predicted_bubble_fraction = report->bubble_fraction;
    run->predicted_peak_bytes = report->peak_memory_bytes;
    run->varied = report->jitter;
}

/* --- progress --- */

#define PROGRESS_INTERVAL_US G_USEC_PER_SEC

typedef struct {
    int64_t n_steps, last_us;
} Progress;

/* At most a line a second, on a terminal only. */
static void
show_progress(int64_t step, double loss, double step_s, void *user_data)
{
    Progress *progress = user_data;
    const int64_t now_us = g_get_monotonic_time();

    if (now_us - progress->last_us < PROGRESS_INTERVAL_US && step + 1 < progress->n_steps)
        return;
    g_autofree char *time = output_seconds(step_s);
    progress->last_us = now_us;
    fprintf(stderr, "step %" G_GINT64_FORMAT " of %" G_GINT64_FORMAT ": loss %.4f, %s\n", step + 1,
            progress->n_steps, loss, time);
}

/* --- telling --- */

static void
write_ranks(JsonWriter *writer, const ExecRunResult *result)
{
    json_write_array(writer, "ranks");
    for (guint i = 0; i < result->busy_s->len; i++) {
        json_write_object_inline(writer, NULL);
        json_write_int64(writer, "rank", i);
        json_write_double(writer, "busy_s", g_array_index(result->busy_s, double, i));
        json_write_int64(writer, "peak_memory_bytes",
                         g_array_index(result->peak_memory_bytes, int64_t, i));
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
}

static void
write_verification(JsonWriter *writer, const Run *run)
{
    const ExecRunResult *result = &run->result;

    if (!result->verified) {
        json_write_null(writer, "verify");
        return;
    }
    json_write_object_inline(writer, "verify");
    json_write_double(writer, "max_gradient_error", result->max_gradient_error);
    json_write_double(writer, "tolerance", run->exec.verify_tolerance);
    json_write_bool(writer, "passed", result->passed);
    json_write_string(writer, "worst_tensor", result->worst_tensor);
    json_write_double(writer, "reference_loss", result->reference_loss);
    json_write_object_end(writer);
}

static void
write_varied(JsonWriter *writer, const ReportJitter *varied)
{
    static const char *const keys[] = {"p10", "p50", "p90"};

    if (varied->n_runs == 0) {
        json_write_null(writer, "predicted_varied_step_s");
        return;
    }
    json_write_object_inline(writer, "predicted_varied_step_s");
    for (size_t i = 0; i < G_N_ELEMENTS(keys); i++)
        json_write_double(writer, keys[i], units_s_from_ns(varied->iteration_ns[i]));
    json_write_double(writer, "op_sigma_fraction", varied->op_sigma);
    json_write_object_end(writer);
}

static JsonWriter *
to_json(const Run *run)
{
    const ExecRunResult *result = &run->result;
    JsonWriter *writer = json_writer_new();

    json_write_object(writer, NULL);
    json_write_string(writer, "format", "degas-run");
    json_write_int64(writer, "version", 1);
    json_write_int64(writer, "steps", result->n_steps);
    json_write_int64(writer, "first_step", result->first_step);
    json_write_object_inline(writer, "step_s");
    json_write_double(writer, "median", run->median_s);
    json_write_double(writer, "p10", run->p10_s);
    json_write_double(writer, "p90", run->p90_s);
    json_write_object_end(writer);
    json_write_double(writer, "predicted_step_s", run->predicted_s);
    json_write_double(writer, "prediction_error_fraction", error_fraction(run));
    write_varied(writer, &run->varied);
    json_write_double(writer, "tokens_per_s", tokens_per_step(run) / run->median_s);
    json_write_array_inline(writer, "losses");
    for (int64_t i = 0; i < result->n_steps; i++)
        json_write_double(writer, NULL, result->losses[i]);
    json_write_array_end(writer);
    json_write_double(writer, "bubble_fraction", result->bubble_fraction);
    json_write_double(writer, "predicted_bubble_fraction", run->predicted_bubble_fraction);
    write_ranks(writer, result);
    if (result->trace != NULL)
        breakdown_write(writer, "breakdown_s", &run->breakdown);
    else
        json_write_null(writer, "breakdown_s");
    json_write_int64(writer, "traced_step", result->traced_step);
    json_write_double(writer, "clock_error_s", result->clock_error_s);
    write_verification(writer, run);
    json_write_string(writer, "backend", result->backend);
    json_write_object_end(writer);
    return writer;
}

/* "1f1b, dp 2 x pp 2 x tp 2, 4 micro-batches of 1, slices 128 x2" */
static char *
describe_plan(const Plan *plan)
{
    const PlanDegrees *d = &plan->degrees;
    const struct {
        const char *name;
        int64_t degree;
    } optional[] = {{"tp", d->tp}, {"cp", d->cp}, {"vpp", d->vpp}, {"ep", d->ep}};
    g_autofree char *slices = output_int64s(plan->slices, 6);
    g_autoptr(GString) text = g_string_new(NULL);

    g_string_printf(text, "%s, dp %" G_GINT64_FORMAT " x pp %" G_GINT64_FORMAT, plan->schedule,
                    d->dp, d->pp);
    for (size_t i = 0; i < G_N_ELEMENTS(optional); i++)
        if (optional[i].degree > 1)
            g_string_append_printf(text, " x %s %" G_GINT64_FORMAT, optional[i].name,
                                   optional[i].degree);
    if (plan->sequence_parallel && d->tp > 1)
        g_string_append(text, ", sequence parallel");
    g_string_append_printf(text,
                           ", %" G_GINT64_FORMAT " micro-batches of %s%" G_GINT64_FORMAT
                           " per replica, slices of %s tokens",
                           plan->n_microbatches, plan->batch_slices == NULL ? "" : "at most ",
                           plan->micro_batch, slices);
    return g_string_free(g_steal_pointer(&text), FALSE);
}

/* (owned) "+3.1 %" of @predicted against @measured */
static char *
signed_percent(double fraction)
{
    g_autofree char *text = output_percent(fraction);

    return g_strconcat(fraction >= 0.0 ? "+" : "", text, NULL);
}

static void
print_table(const Run *run)
{
    static const char *const header[] = {"<", "predicted", "measured", "error", NULL};
    g_autoptr(OutputTable) table = output_table_new(header);
    const double tokens = tokens_per_step(run);

    output_table_add(table, "step");
    output_table_take(table, output_seconds(run->predicted_s));
    output_table_take(table, output_seconds(run->median_s));
    output_table_take(table, signed_percent(error_fraction(run)));
    output_table_add(table, "tokens/s");
    output_table_take(table, output_number(tokens / run->predicted_s));
    output_table_take(table, output_number(tokens / run->median_s));
    output_table_add(table, "");
    output_table_add(table, "bubble");
    output_table_take(table, output_percent(run->predicted_bubble_fraction));
    output_table_take(table, output_percent(run->result.bubble_fraction));
    output_table_add(table, "");
    output_table_add(table, "peak memory");
    output_table_take(table, isnan(run->predicted_s)
                                 ? g_strdup("-")
                                 : units_format_bytes((double)run->predicted_peak_bytes));
    output_table_take(table, units_format_bytes((double)peak_bytes(run)));
    output_table_add(table, "");
    output_table_print(table, 2);
}

/* What varying times alone make of the prediction. */
static void
print_varied(const ReportJitter *varied)
{
    char *texts[3];

    if (varied->n_runs == 0)
        return;
    for (int i = 0; i < 3; i++)
        texts[i] = output_seconds(units_s_from_ns(varied->iteration_ns[i]));
    g_autofree char *sigma = output_percent(varied->op_sigma);
    output_printf("  predicted with ops that vary as when profiled (%s): median %s, 80 %% of steps "
                  "%s to %s\n",
                  sigma, texts[1], texts[0], texts[2]);
    for (int i = 0; i < 3; i++)
        g_free(texts[i]);
}

static void
print_for_people(const Run *run)
{
    const ExecRunResult *result = &run->result;
    g_autofree char *plan = describe_plan(run->job->plan);
    g_autofree char *p10 = output_seconds(run->p10_s);
    g_autofree char *p90 = output_seconds(run->p90_s);

    output_printf("%s: %s\n%s\n\n", run->job->arch->name, plan, result->backend);
    print_table(run);
    output_printf("\n  measured: median of %" G_GINT64_FORMAT " steps, 80 %% of them %s to %s\n",
                  result->n_steps > 1 ? result->n_steps - 1 : 1, p10, p90);
    print_varied(&run->varied);
    output_printf("  loss: %.4f in the first step, %.4f in the last\n", result->losses[0],
                  result->losses[result->n_steps - 1]);
    if (result->verified) {
        g_autofree char *error = output_number(result->max_gradient_error);
        g_autofree char *tolerance = output_number(run->exec.verify_tolerance);
        output_printf("  gradients against one device: largest relative error %s (%s), "
                      "tolerance %s: %s\n",
                      error, result->worst_tensor, tolerance, result->passed ? "passed" : "FAILED");
    }
}

/* --- the command --- */

static bool
write_products(const Run *run, Options *options, GError **error)
{
    const char *output = options_string(options, "output", NULL);
    const char *trace = options_string(options, "trace", NULL);
    const bool json = options_switch(options, "json");

    if (trace != NULL && run->result.trace != NULL) {
        size_t n_bytes;
        g_autofree char *text = trace_to_json(run->result.trace, &n_bytes);
        if (!file_write(trace, text, n_bytes, error))
            return false;
    }
    if (json || output != NULL) {
        g_autoptr(JsonWriter) writer = to_json(run);
        if (!output_json(writer, output, error))
            return false;
    }
    if (!json && g_strcmp0(output, "-") != 0 && g_strcmp0(trace, "-") != 0)
        print_for_people(run);
    return true;
}

/* Its schedule is what is run; the peaks are what the ranks take. */
static void
simulate(Run *run)
{
    const Conditions varied = conditions_of_profile(VARIED_RUNS);
    const bool varies = profile_measured_spread(run->job->profile) > 0;
    const JobOptions how = {.conditions = varies ? &varied : NULL};

    if (!job_simulate(run->job, &how, &run->simulation, &run->unpredicted))
        return;
    const GArray *ranks = run->simulation.result.report->ranks;
    run->predicted_bytes = g_new(int64_t, ranks->len);
    for (guint i = 0; i < ranks->len; i++)
        run->predicted_bytes[i] = g_array_index(ranks, ReportRank, i).peak_memory_bytes;
}

/* The plan and what goes with it. */
static bool
load(Run *run, const char *path, GError **error)
{
    run->job = job_load(path, error);
    if (run->job == NULL)
        return false;
    run->exec.arch = run->job->arch;
    run->exec.plan = run->job->plan;
    run->exec.verify_tolerance = exec_verify_tolerance(run->job->plan->dtype);
    simulate(run);
    run->exec.schedule = run->simulation.schedule;
    run->exec.predicted_bytes = run->predicted_bytes;
    return true;
}

/* What was measured and what was run are not the same thing then. */
static void
warn_of_other_attention(const Run *run)
{
    const char *profiled = run->job->profile->measured_attention, *used = run->result.attention;

    if (profiled != NULL && used != NULL && !g_str_equal(profiled, used))
        output_note("run: attention was by %s, in the plan's profile by %s: the prediction is not "
                    "of this run; DEGAS_CUDA_ATTENTION=%s uses the profile's",
                    used, profiled, profiled);
}

/* Tells how it went, when all is written.  Returns the exit status. */
static int
conclude(const Run *run)
{
    const ExecRunResult *result = &run->result;

    warn_of_other_attention(run);
    if (result->interrupted) {
        output_note("run: interrupted after step %" G_GINT64_FORMAT " of %" G_GINT64_FORMAT
                    "%s: what is done is written",
                    result->first_step + result->n_steps, run->exec.n_steps,
                    result->trace == NULL ? ", in a step that would not end" : "");
        return CMD_ERROR_INTERRUPTED;
    }
    if (result->verified && !result->passed) {
        output_note("run: verification failed: the gradient of %s is off by %g, tolerance %g",
                    result->worst_tensor, result->max_gradient_error, run->exec.verify_tolerance);
        return CMD_ERROR_NO;
    }
    return 0;
}

/* The executor, in this process or, with mpi, in others too.  Returns RUN_PROCESSES_RANK where
 * there is a result to tell, else the exit status or -1. */
static int
execute(Run *run, Options *options, Progress *progress, GError **error)
{
    const char *path = options_argument(options, 0);
    const bool in_processes = !g_str_equal(run->exec.transport, "local");

    run->exec.stop = interrupt_watch();
    if (isatty(STDERR_FILENO)) {
        run->exec.progress = show_progress;
        run->exec.user_data = progress;
    }
    if (in_processes) {
        const RunProcessesOptions processes = {
            .hosts = options_string(options, "hosts", NULL),
            .stop = run->exec.stop,
            .progress = run->exec.progress,
            .user_data = progress,
        };
        const int status = run_processes_begin(&run->exec, &processes, &run->where, error);
        if (status != RUN_PROCESSES_RANK)
            return status;
    }
    if (!exec_run(&run->exec, &run->result, error)) {
        cmd_blame_file(path, error);
        if (in_processes)
            run_processes_fail(&run->exec, run->result.told, *error);
        return -1;
    }
    return run->result.is_mine ? RUN_PROCESSES_RANK : 0;
}

static int
run(Options *options, GError **error)
{
    const char *path = options_argument(options, 0);
    g_auto(Run) one = {0};
    Progress progress = {0};

    if (!run_options_read(options, &one.exec, error))
        return -1;
    if (!g_str_equal(one.exec.transport, "local") && g_str_equal(path, "-")) {
        g_set_error(error, CMD_ERROR, CMD_ERROR_USAGE,
                    "run: --transport %s: every rank reads the plan: give a file, not -",
                    one.exec.transport);
        return -1;
    }
    if (!load(&one, path, error))
        return -1;
    progress = (Progress){.n_steps = one.exec.n_steps, .last_us = g_get_monotonic_time()};
    const int status = execute(&one, options, &progress, error);
    if (status != RUN_PROCESSES_RANK)
        return status;
    if (one.result.trace != NULL)
        one.breakdown = breakdown_of_trace(one.result.trace);
    summarize_steps(&one);
    predict(&one);
    if (!write_products(&one, options, error))
        return -1;
    return conclude(&one);
}

const Command cmd_run = {
    .name = "run",
    .usage = "PLAN.json [--steps N] [--data FILE] [--trace t.json] [--verify] [--json]",
    .summary = "execute a plan; measured beside predicted",
    .details =
        "Trains the plan's model for some steps, every rank a thread on this machine (--transport\n"
        "mpi or nccl: a process, here or on other hosts), and prints the step time beside the\n"
        "simulator's. Ctrl-C ends it after the step at hand and writes what is done. The\n"
        "predicted trace of the same plan:\n"
        "degas simulate PLAN.json --trace p.json; then: degas compare p.json t.json\n",
    .options = {run_options_table},
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
