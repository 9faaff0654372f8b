/* degas simulate: what one iteration of a plan, of flags, or of any schedule will be. */
#include <malloc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/file.h"
#include "base/parallel.h"
#include "base/table.h"
#include "base/units.h"
#include "cli/draw/describe.h"
#include "cli/draw/plot.h"
#include "cli/explain/explain.h"
#include "cli/recipe/recipe.h"
#include "cli/request/command.h"
#include "cli/request/conditions.h"
#include "cli/request/job.h"
#include "cli/request/op_times.h"
#include "cli/request/output.h"
#include "cli/request/request.h"
#include "cli/request/subject.h"
#include "cli/validate/error_bar.h"

static const OptionInfo options_table[] = {
    {"json", NULL, "print the degas-report on stdout", .common = true},
    {"output", "FILE", "write the degas-report to FILE", .common = true},
    {"explain", NULL,
     "show the largest costs: their formulas, the parameters in them and where these are from",
     .common = true},
    {"trace", "FILE", "write every op as a Chrome trace, which ui.perfetto.dev opens",
     .common = true},
    {"plot", "FILE", "draw the timeline: .svg, .png or .txt", .common = true},
    {"html", "FILE", "write one page with numbers, timeline and memory", .common = true},
    {"csv", "FILE", "write every op as a table, separated by tabs"},
    {"schedule-file", "FILE",
     "simulate the schedule in FILE (JSON, or PyTorch's .csv) with the times of --op-times, "
     "without a model"},
    OP_TIMES_OPTION,
    {"batch", "FILE",
     "simulate many requests: each line of FILE is one as a JSON object, and a report on one line "
     "is printed for each",
     .common = true},
    {"threads", "N", "use N threads for --batch and --jitter; the result does not depend on it"},
    RECIPE_OPTIONS,
    {NULL, NULL, NULL},
};

/* --- products --- */

/* The products that show single ops. */
static const char *const pictures[] = {"trace", "csv", "plot", "html", NULL};

static char *
ops_table(const Schedule *schedule, const Trace *trace, const SimLevel *levels)
{
    g_autoptr(Table) table =
        table_new_line("rank\tstream\tkind\top\tmicrobatch\tchunk\tslice\tstart_ns\t"
                       "end_ns\tpeer\tbytes\tmemory_bytes\tmemory_after_bytes");
    int64_t next = 0;

    for (guint i = 0; i < trace->events->len; i++) {
        const TraceEvent *event = &g_array_index(trace->events, TraceEvent, i);
        const bool has_op = event->kind <= TRACE_EVENT_WAIT;
        char op[32] = "";

        if (has_op)
            schedule_op_name(schedule, event->op, op);
        table_add_int64(table, event->rank);
        table_add_text(table, trace_stream_names[event->stream]);
        table_add_text(table, trace_event_names[event->kind]);
        table_add_text(table, op);
        table_add_int64(table, has_op ? event->op.micro_batch : -1);
        table_add_int64(table, has_op ? event->op.chunk : -1);
        table_add_int64(table, has_op ? event->op.slice : -1);
        table_add_int64(table, event->start_ns);
        table_add_int64(table, event->end_ns);
        table_add_int64(table, event->peer);
        table_add_int64(table, event->bytes);
        /* The compute ops of the events stand in the schedule's order. */
        const bool has_level = event->kind <= TRACE_EVENT_BACKWARD_WEIGHT && levels != NULL;
        table_add_int64(table, has_level ? levels[next].begin_bytes : -1);
        table_add_int64(table, has_level ? levels[next].end_bytes : -1);
        next += event->kind <= TRACE_EVENT_BACKWARD_WEIGHT;
    }
    return g_strdup(table_text(table, NULL));
}

static bool
write_trace(const JobSimulation *simulation, Options *options, GError **error)
{
    const char *trace_path = options_string(options, "trace", NULL);
    const char *csv_path = options_string(options, "csv", NULL);
    const Trace *trace = simulation->result.trace;

    if (trace_path != NULL) {
        size_t n_bytes;
        g_autofree char *text = trace_to_json(trace, &n_bytes);

        if (!file_write(trace_path, text, n_bytes, error))
            return false;
    }
    if (csv_path != NULL) {
        g_autofree char *text = ops_table(simulation->schedule, trace, simulation->result.levels);

        if (!file_write(csv_path, text, strlen(text), error))
            return false;
    }
    return true;
}

static bool
write_pictures(const JobSimulation *simulation, const Job *job, Options *options, GError **error)
{
    const char *path = options_string(options, "plot", NULL);
    const char *html_path = options_string(options, "html", NULL);
    const char *name = job == NULL ? simulation->schedule->name : job->arch->name;
    const PlotTrace panel = {.trace = simulation->result.trace, .name = name};
    g_autofree char *command_line = options_command_line(options, "simulate", pictures);
    const PlotOptions how = {.utf8 = g_strcmp0(path, "-") != 0 || output_is_utf8(),
                             .footer = command_line};

    if (path != NULL && !plot_timeline(&panel, 1, &how, path, error))
        return false;
    return html_path == NULL ||
           html_write(job, simulation->result.report, panel.trace, command_line, html_path, error);
}

/* Whether anything asked for shows single ops. */
static bool
needs_all_events(Options *options)
{
    for (size_t i = 0; pictures[i] != NULL; i++)
        if (options_string(options, pictures[i], NULL) != NULL)
            return true;
    return false;
}

/* Whether the report is for a program: else a timeline stands below it. */
static bool
is_report_only(Options *options)
{
    return options_has(options, "json") ||
           g_strcmp0(options_string(options, "output", NULL), "-") == 0;
}

/* (owned, nullable: an error) the degas-report, whose last member is "explanation" if @explain. */
static char *
report_text(const JobSimulation *simulation, const Job *job, bool explain, size_t *n_bytes,
            GError **error)
{
    const Report *report = simulation->result.report;
    g_autoptr(JsonWriter) writer = json_writer_new();

    json_write_object(writer, NULL);
    report_write(writer, report);
    if (explain && !explain_costs_write(writer, job, report, error))
        return NULL;
    json_write_object_end(writer);
    return json_writer_steal(writer, n_bytes);
}

/* Files first: what is on stdout then stands for a command that succeeded.
 * @job  (nullable) none for a bare schedule. */
static bool
write_products(const JobSimulation *simulation, const Job *job, Options *options, GError **error)
{
    const char *path = options_string(options, "output", NULL);
    const bool json = options_has(options, "json");
    const bool explain = options_has(options, "explain");
    g_autofree char *text = NULL;
    size_t n_bytes = 0;

    if (json || path != NULL) {
        text = report_text(simulation, job, explain, &n_bytes, error);
        if (text == NULL)
            return false;
    }
    if (!write_trace(simulation, options, error) ||
        !write_pictures(simulation, job, options, error) ||
        (path != NULL && !file_write(path, text, n_bytes, error)))
        return false;
    if (json)
        output_text(text);
    if (json || g_strcmp0(path, "-") == 0)
        return true;
    if (job != NULL)
        describe_job(job);
    g_auto(ErrorBar) bar = {0};
    if (job != NULL && !error_bar_find(job, simulation->result.report, &bar, error))
        return false;
    const double fit_fraction = error_bar_fit(&bar, simulation->result.report, 0);
    describe_report(simulation->result.report, job == NULL ? NULL : job->plan,
                    job == NULL ? NULL : job->profile->cluster->currency, fit_fraction, 8);
    output_text("\n");
    if (job != NULL) {
        error_bar_print(&bar, fit_fraction);
        output_text("\n");
    }
    describe_timeline(simulation->result.trace, job == NULL);
    return !explain || explain_costs_print(job, simulation->result.report, error);
}

/* --- what is simulated --- */

/* Threads change no result. */
static void
read_conditions(Conditions *conditions, Options *options)
{
    conditions_read(conditions, options);
    conditions->jitter.n_threads = options_threads(options);
}

/* Bytes per op of schedule, program and times, and below how many all that is not worth it. */
#define BYTES_PER_OP 48
#define MIN_EXPECTED_BYTES (4 << 20)

/* Keeps a part of the heap in large pages for what the simulation of @plan needs, if that is much:
 * a page fault per 4 KiB costs as much as simulating the ops that these hold.  Frees stay with the
 * process for what comes next. */
static void
expect_ops(const Plan *plan)
{
    const double n_ops = 2.0 * (double)plan->degrees.pp * (double)plan->degrees.vpp *
                         (double)plan->n_micro_batches * plan->slices->len;
    const double bytes = n_ops * BYTES_PER_OP;
    const uintptr_t page = 2 << 20;

    /* Larger arrays are mapped apart. */
    if (bytes < MIN_EXPECTED_BYTES || bytes > 256 << 20)
        return;
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 512 << 20);
    void *block = malloc((size_t)bytes + page);
    const size_t to_page = (page - (uintptr_t)block % page) % page;
    (void)madvise((char *)block + to_page, ((size_t)bytes + page - to_page) / page * page,
                  MADV_HUGEPAGE);
    free(block);
}

static int
run_job(const Job *job, int64_t memory_limit_bytes, Options *options, GError **error)
{
    g_auto(JobSimulation) simulation = {0};
    g_auto(Conditions) conditions = {0};

    read_conditions(&conditions, options);
    if (!options_finish(options, error))
        return -1;
    SimGlimpse glimpse;
    expect_ops(job->plan);
    G_GNUC_UNUSED g_autofree bool *is_shown =
        describe_glimpse((int32_t)job->plan->degrees.pp, &glimpse);
    const JobOptions how = {
        .memory_limit_bytes = memory_limit_bytes,
        .want_trace = needs_all_events(options) || !is_report_only(options),
        .glimpse = needs_all_events(options) ? NULL : &glimpse,
        .want_levels = options_has(options, "csv"),
        .conditions = &conditions,
    };
    if (!job_simulate(job, &how, &simulation, error) ||
        !write_products(&simulation, job, options, error))
        return -1;
    if (!simulation.result.report->fits) {
        const Report *report = simulation.result.report;
        g_autofree char *usable = describe_usable(report);
        output_note("note: it does not fit: %s of %s",
                    units_format_bytes((double)report->peak_memory_bytes).text, usable);
    }
    return 0;
}

/* A plan file is complete: of the flags only the memory limit and numbers of the cluster can differ. */
static int
run_plan(Options *options, GError **error)
{
    static const OptionInfo *const tables[] = {request_options, request_fixed_options};
    const char *path = options_argument(options, 0);
    const int64_t memory_limit = options_bytes(options, "memory-limit", 0);

    for (size_t i = 0; i < G_N_ELEMENTS(tables); i++) {
        for (const OptionInfo *info = tables[i]; info->name != NULL; info++) {
            if (options_has(options, info->name) && strcmp(info->name, "memory-limit") != 0 &&
                strcmp(info->name, "set") != 0)
                options_fail(options, info->name,
                             "the plan file has this already; only --memory-limit and --set can be "
                             "given with it");
        }
    }
    if (!options_finish(options, error))
        return -1;
    g_autoptr(Job) job = job_load(path, error);
    if (job == NULL)
        return -1;
    request_set(job->profile, options);
    if (!options_finish(options, error))
        return -1;
    int status = run_job(job, memory_limit, options, error);
    if (status < 0)
        cmd_blame_file(path, error);
    return status;
}

/* The request of MODEL CLUSTER, or of RECIPE CLUSTER; of a recipe stderr says what is not as in it. */
static Request *
load_request(Options *options, GError **error)
{
    const char *first = options_argument(options, 0), *cluster = options_argument(options, 1);
    g_autoptr(Recipe) recipe = NULL;

    if (!recipe_is_file(first)) {
        if (options_has(options, "variables") || options_has(options, "model"))
            options_fail(options, options_has(options, "variables") ? "variables" : "model",
                         "is for recipes");
        return request_load(first, cluster, options, REQUEST_FIXED, error);
    }
    g_autoptr(Request) request = recipe_request_load(first, cluster, options, &recipe, error);
    if (request == NULL)
        return NULL;
    for (guint i = 0; i < recipe->settings->notes->len; i++)
        output_note("note: %s", (const char *)g_ptr_array_index(recipe->settings->notes, i));
    for (guint i = 0; i < recipe->settings->unmodelled->len; i++)
        output_note("note: not in the prediction: %s",
                    (const char *)g_ptr_array_index(recipe->settings->unmodelled, i));
    return g_steal_pointer(&request);
}

static int
run_flags(Options *options, GError **error)
{
    g_autoptr(Request) request = load_request(options, error);

    if (request == NULL)
        return -1;
    g_autoptr(Plan) plan = request_plan(request, error);
    if (plan == NULL)
        return -1;
    g_autoptr(Job) job = job_new(g_steal_pointer(&request->arch),
                                 g_steal_pointer(&request->profile), g_steal_pointer(&plan));
    return run_job(job, request->plan.memory_limit_bytes, options, error);
}

static int
run_schedule(const char *path, Options *options, GError **error)
{
    g_autoptr(OpTimes) times = op_times_read(options);
    g_auto(Conditions) conditions = {0};
    g_auto(JobSimulation) simulation = {0};

    read_conditions(&conditions, options);
    if (!conditions_apply_spread(&conditions, NULL, &conditions.jitter, error))
        return -1;
    const SimOptions sim_options = {
        .want_trace = needs_all_events(options) || !is_report_only(options),
        .jitter = conditions.jitter.n_runs > 0 ? &conditions.jitter : NULL,
    };

    if (!options_finish(options, error))
        return -1;
    simulation.schedule = g_str_has_suffix(path, ".csv") ? schedule_load_csv(path, error)
                                                         : schedule_load(path, error);
    if (simulation.schedule == NULL) {
        cmd_blame_file(path, error);
        return -1;
    }
    simulation.workload = op_times_workload(times, simulation.schedule, error);
    if (simulation.workload == NULL ||
        !conditions_apply(&conditions, simulation.schedule->placement, simulation.workload,
                          error) ||
        !sim_run(simulation.schedule, simulation.workload, &sim_options, &simulation.result,
                 error) ||
        !write_products(&simulation, NULL, options, error))
        return -1;
    return 0;
}

/*
 * --- many simulations from one file ---
 *
 * Every line is a request, see request_read(), and becomes a line with its report and its "id".  A
 * line that fails becomes {"id":...,"error":"..."}, and the others go on.  Reports stand in the
 * order of the lines, whatever the number of threads.
 */

/* One line and what becomes of it. */
typedef struct {
    const char *path; /* (borrowed) */
    size_t number;    /* from 1 */
    const char *text; /* (borrowed) */
    size_t n_bytes;
    char *report; /* (owned) */
} Line;

/* @object  (nullable) a line that is no object has no id. */
static void
write_id(JsonWriter *writer, JsonDoc *doc, const JsonValue *object)
{
    const JsonValue *id =
        object != NULL && json_has(doc, object, "id") ? json_member(doc, object, "id") : NULL;

    if (id != NULL && json_is_string(id)) {
        json_write_string(writer, "id", json_value_string(doc, id));
    } else if (id != NULL && json_is_number(id)) {
        const double number = json_value_double(doc, id, -G_MAXDOUBLE, G_MAXDOUBLE);

        if (number == nearbyint(number) && fabs(number) < (double)JSON_MAX_INT)
            json_write_int64(writer, "id", (int64_t)number);
        else
            json_write_double(writer, "id", number);
    } else {
        json_write_null(writer, "id");
    }
}

static bool
simulate_request(Request *request, const Conditions *conditions, JobSimulation *simulation,
                 GError **error)
{
    g_autoptr(Plan) plan = request_plan(request, error);

    if (plan == NULL)
        return false;
    g_autoptr(Job) job = job_new(g_steal_pointer(&request->arch),
                                 g_steal_pointer(&request->profile), g_steal_pointer(&plan));
    const JobOptions how = {
        .memory_limit_bytes = request->plan.memory_limit_bytes,
        .conditions = conditions,
    };
    return job_simulate(job, &how, simulation, error);
}

static void
run_line(int64_t i, void *user_data)
{
    Line *line = (Line *)user_data + i;
    g_autofree char *name = g_strdup_printf("%s:%zu", line->path, line->number);
    g_autoptr(GError) error = NULL;
    g_autoptr(JsonDoc) doc = json_doc_parse(name, line->text, line->n_bytes, &error);
    const JsonValue *root = doc == NULL ? NULL : json_doc_root(doc, NULL, 0);
    g_auto(JobSimulation) simulation = {0};
    g_autoptr(Request) request = NULL;
    g_auto(Conditions) conditions = {0};
    g_autoptr(JsonWriter) writer = json_writer_new_compact();

    if (root != NULL && !json_is_object(root)) {
        json_fail(doc, root, "expected an object");
        json_doc_finish(doc, &error);
        root = NULL;
    }
    if (root != NULL)
        request = request_read(doc, root, REQUEST_FIXED, NULL, &conditions, &error);
    json_write_object(writer, NULL);
    write_id(writer, doc, root);
    if (request != NULL && simulate_request(request, &conditions, &simulation, &error))
        report_write(writer, simulation.result.report);
    else
        json_write_string(writer, "error", error->message);
    json_write_object_end(writer);
    line->report = json_writer_steal(writer, NULL);
}

/* Empty lines are no requests. */
static GArray *
split_lines(const char *path, const char *text, size_t n_bytes)
{
    GArray *lines = g_array_new(FALSE, TRUE, sizeof(Line));
    size_t number = 1;

    for (const char *p = text, *end = text + n_bytes; p < end; number++) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        const size_t n = (size_t)((newline == NULL ? end : newline) - p);
        const Line line = {.path = path, .number = number, .text = p, .n_bytes = n};
        size_t blank = 0;

        while (blank < n && (p[blank] == ' ' || p[blank] == '\t' || p[blank] == '\r'))
            blank++;
        if (blank < n)
            g_array_append_val(lines, line);
        p += n + 1;
    }
    return lines;
}

/* Returns: (owned) the reports of the file at @path ("-": standard input); NULL on G_FILE_ERROR. */
static char *
simulate_lines(const char *path, int64_t threads, size_t *n_bytes, GError **error)
{
    g_autofree char *text = NULL;
    size_t n_text;

    if (!file_read(path, &text, &n_text, error))
        return NULL;
    g_autoptr(GArray) lines = split_lines(path, text, n_text);
    parallel_each(lines->len, threads, run_line, lines->data);
    GString *reports = g_string_new(NULL);
    for (guint i = 0; i < lines->len; i++) {
        Line *line = &g_array_index(lines, Line, i);

        g_string_append(reports, line->report);
        g_free(line->report);
    }
    *n_bytes = reports->len;
    return g_string_free(reports, FALSE);
}

static int
run_batch(const char *path, Options *options, GError **error)
{
    const char *output = options_string(options, "output", "-");
    const int64_t threads = options_threads(options);
    size_t n_bytes;

    if (!options_finish(options, error))
        return -1;
    g_autofree char *reports = simulate_lines(path, threads, &n_bytes, error);
    if (reports == NULL)
        return -1;
    if (strcmp(output, "-") == 0)
        output_text(reports);
    else if (!file_write(output, reports, n_bytes, error))
        return -1;
    return 0;
}

static int
run(Options *options, GError **error)
{
    const char *schedule_path = options_string(options, "schedule-file", NULL);
    const char *batch_path = options_string(options, "batch", NULL);
    const char *plot_path = options_string(options, "plot", NULL);
    const size_t n = options_n_arguments(options);

    /* Whether pictures can be drawn as asked, before the work is done. */
    if (!options_finish(options, error) ||
        (plot_path != NULL && !plot_path_check(plot_path, error)))
        return -1;
    if ((n > 0) + (schedule_path != NULL) + (batch_path != NULL) != 1) {
        g_set_error_literal(error, CMD_ERROR, CMD_ERROR_USAGE,
                            "simulate: expected one of a plan file, MODEL CLUSTER with flags, "
                            "--schedule-file, --batch");
        return -1;
    }
    if (options_has(options, "explain") && n == 0)
        options_fail(options, "explain", "is for plans and flags");
    if (options_has(options, "op-times") && schedule_path == NULL)
        options_fail(options, "op-times", "is for --schedule-file");
    if (!options_finish(options, error))
        return -1;
    if (schedule_path != NULL)
        return run_schedule(schedule_path, options, error);
    if (batch_path != NULL)
        return run_batch(batch_path, options, error);
    return n == 1 ? run_plan(options, error) : run_flags(options, error);
}

const Command cmd_simulate = {
    .name = "simulate",
    .usage = "PLAN.json [options], or simulate MODEL|RECIPE CLUSTER [options]",
    .summary = "predict one iteration: time, bubbles, memory, per rank",
    .details =
        "  degas simulate plan.json --trace trace.json --plot timeline.svg\n"
        "  degas simulate gpt3-13b dgx-a100-80g --global-batch 32 --tp 4 --pp 2\n"
        "  degas simulate plan.json --jitter 3%,1000 --straggler 1%\n"
        "  degas simulate --schedule-file schedule.json --op-times F=1,B=2\n"
        "  degas simulate --batch cases.jsonl\n"
        "\n"
        "  degas simulate train_gpt3_175b.sh dgx-h100 --gpus 1024 --trace trace.json\n"
        "\n"
        "In place of PLAN.json, MODEL CLUSTER and the options of degas plan say what to\n"
        "simulate; nothing is searched.  A degree that is not given is 1; if --gpus is\n"
        "given, dp is what it leaves.  Without --schedule it is 1f1b.  MODEL may be a recipe\n"
        "of another program, as degas check reads them.\n",
    .options = {options_table, conditions_options, request_options, request_fixed_options},
    .headings = {"Options", "Conditions other than the profile's; also keys of --batch",
                 "With MODEL CLUSTER; also keys of --batch",
                 "With MODEL CLUSTER, for simulate alone"},
    .max_arguments = 2,
    .common = true,
    .takes_job = true,
    .run = run,
};
