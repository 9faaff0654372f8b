/* degas plot: pictures of traces and reports. */
#include <string.h>

#include "cli/request/command.h"
#include "cli/request/output.h"
#include "cli/draw/plot.h"

typedef enum {
    KIND_TIMELINE,
    KIND_MEMORY,
    KIND_THROUGHPUT,
    KIND_ROOFLINE,
    KIND_PARETO
} Kind;

static const char *const kind_names[] = {"timeline", "memory", "throughput",
                                         "roofline", "pareto", NULL};
static const char *const whens[] = {"auto", "always", "never", NULL};

static const OptionInfo options_table[] = {
    {"kind", "KIND",
     "draw this: timeline or memory of traces, reports and plans, throughput of a sweep, pareto or "
     "roofline of a sweep or a plan; default: the first of these that the file has",
     .words = kind_names},
    {"output", "FILE", "write FILE.svg, .png, .txt or .tsv; default: text on stdout"},
    {"title", "TEXT", "write TEXT above the picture"},
    {"names", "A,B,...",
     "name the panels; default: predicted and measured, or the schedules, or where these are the "
     "same the files' names"},
    {"limit", "BYTES", "draw a line at this size in a picture of memory, e.g. 80GiB"},
    {"rank", "N", "draw the memory of rank N; default: the rank with the highest peak"},
    {"color", "WHEN", "use colours on stdout: auto, always or never", .words = whens},
    {NULL, NULL, NULL},
};

/* What each kind is drawn from. */
static const char *const kind_files[] = {
    [KIND_TIMELINE] = "a degas-trace (degas simulate --trace) or a degas-plan",
    [KIND_MEMORY] = "a degas-trace with memory, a degas-report or a degas-plan",
    [KIND_THROUGHPUT] = "a degas-sweep",
    [KIND_ROOFLINE] = "a degas-plan or a degas-sweep",
    [KIND_PARETO] = "a degas-plan with alternatives or a degas-sweep",
};

/* What the arguments hold. */
typedef struct {
    GPtrArray *traces;  /* of Trace; NULL where the report is */
    GPtrArray *reports; /* of Report; NULL where a trace is */
    Sweep *sweep;       /* (owned, nullable) of a file that is one */
    Job *job;           /* (owned, nullable) of a plan file */
    bool has_simulated; /* the first trace is what that plan simulates */
    char **names;       /* (owned) */
} Inputs;

static void
inputs_clear(Inputs *inputs)
{
    g_clear_pointer(&inputs->traces, g_ptr_array_unref);
    g_clear_pointer(&inputs->reports, g_ptr_array_unref);
    sweep_free(inputs->sweep);
    job_free(inputs->job);
    g_strfreev(inputs->names);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Inputs, inputs_clear)

/* "demo/best.trace.json" -> "best". */
static char *
name_of_file(const char *path)
{
    static const char *const suffixes[] = {".json", ".trace", ".report"};
    char *name = g_path_get_basename(path);

    for (size_t i = 0; i < G_N_ELEMENTS(suffixes); i++) {
        if (g_str_has_suffix(name, suffixes[i]) && strlen(name) > strlen(suffixes[i]))
            name[strlen(name) - strlen(suffixes[i])] = 0;
    }
    return name;
}

/* Reads a file that is no trace.  Returns false without an error if it is not of a kind that can be
 * drawn either. */
static bool
load_other(const char *path, Inputs *inputs, Report **report, GError **error)
{
    g_autoptr(JsonDoc) doc = json_doc_load(path, error);
    const char *format = doc == NULL ? NULL : json_doc_format(doc);

    if (g_strcmp0(format, "degas-report") == 0) {
        g_autoptr(Report) read = report_read(doc, json_doc_root(doc, format, 1));

        if (!json_doc_finish(doc, error))
            return false;
        *report = g_steal_pointer(&read);
        return true;
    }
    if (g_strcmp0(format, "degas-sweep") == 0) {
        sweep_free(inputs->sweep);
        inputs->sweep = sweep_read(doc, json_doc_root(doc, format, 1));
        return json_doc_finish(doc, error);
    }
    if (g_strcmp0(format, "degas-plan") == 0) {
        job_free(inputs->job);
        inputs->job = job_read(doc, error);
        return inputs->job != NULL;
    }
    return false;
}

/* Files are mostly traces, and large: only what is none is parsed again. */
static bool
load_one(const char *path, Inputs *inputs, GError **error)
{
    g_autoptr(GError) no_trace = NULL, no_other = NULL;
    Trace *trace = trace_load(path, &no_trace);
    Report *report = NULL;

    /* A second sweep is one too many: draw() says so. */
    if (trace == NULL &&
        (!g_error_matches(no_trace, JSON_ERROR, JSON_ERROR_INVALID) || strcmp(path, "-") == 0 ||
         !load_other(path, inputs, &report, &no_other))) {
        g_propagate_error(error, no_other != NULL ? g_steal_pointer(&no_other)
                                                  : g_steal_pointer(&no_trace));
        return false;
    }
    g_ptr_array_add(inputs->traces, trace);
    g_ptr_array_add(inputs->reports, report);
    return true;
}

static bool
load_all(const Options *options, char **names, Inputs *inputs, GError **error)
{
    const size_t n = options_n_arguments(options);
    g_autoptr(GPtrArray) found = g_ptr_array_new_with_free_func(g_free);

    inputs->traces = g_ptr_array_new_with_free_func((GDestroyNotify)trace_free);
    inputs->reports = g_ptr_array_new_with_free_func((GDestroyNotify)report_free);
    for (size_t i = 0; i < n; i++) {
        if (!load_one(options_argument(options, i), inputs, error))
            return false;
        g_ptr_array_add(found, names == NULL ? name_of_file(options_argument(options, i))
                                             : g_strdup(names[i]));
    }
    g_ptr_array_add(found, NULL);
    inputs->names = (char **)g_ptr_array_steal(found, NULL);
    return true;
}

/* Whether no two traces have the same. */
static bool
are_different(const GPtrArray *traces, bool (*is_same)(const Trace *a, const Trace *b))
{
    for (guint i = 0; i < traces->len; i++)
        for (guint j = 0; j < i; j++)
            if (is_same(traces->pdata[i], traces->pdata[j]))
                return false;
    return true;
}

static bool
is_same_source(const Trace *a, const Trace *b)
{
    return a->measured == b->measured;
}

static bool
is_same_schedule(const Trace *a, const Trace *b)
{
    return strcmp(a->schedule, b->schedule) == 0;
}

/* Replaces the files' names by what the traces are, where that tells them apart. */
static void
name_panels(Inputs *inputs)
{
    const GPtrArray *traces = inputs->traces;

    for (guint i = 0; i < traces->len; i++)
        if (traces->pdata[i] == NULL)
            return;
    const bool by_source = are_different(traces, is_same_source);
    if (!by_source && !are_different(traces, is_same_schedule))
        return;
    for (guint i = 0; i < traces->len; i++) {
        const Trace *trace = traces->pdata[i];
        g_free(inputs->names[i]);
        if (inputs->has_simulated)
            inputs->names[i] =
                g_strdup_printf("%s on %s", inputs->job->arch->name, inputs->job->profile->name);
        else if (by_source)
            inputs->names[i] = g_strdup(trace->measured ? "measured" : "predicted");
        else
            inputs->names[i] = g_strdup(trace->schedule);
    }
}

/* @path does not hold what @kind is drawn from. */
static bool
refuse_kind(const char *path, Kind kind, GError **error)
{
    return cmd_fail(error, CMD_ERROR_USAGE, "%s: %s needs %s", path,
                    kind == KIND_TIMELINE ? "a timeline" : kind_names[kind], kind_files[kind]);
}

/* What a file shows if nothing else is asked for. */
static Kind
default_kind(const Inputs *inputs)
{
    if (inputs->sweep != NULL)
        return KIND_THROUGHPUT;
    if (inputs->job != NULL)
        return KIND_TIMELINE;
    return inputs->traces->pdata[0] == NULL ? KIND_MEMORY : KIND_TIMELINE;
}

static bool
draw_traces(const Options *options, const Inputs *inputs, Kind kind, const PlotOptions *how,
            const char *path, GError **error)
{
    PlotTrace traces[PLOT_MAX_TRACES];
    const Report *report = inputs->reports->pdata[0];

    for (size_t i = 0; i < inputs->traces->len; i++) {
        const char *file = options_argument(options, i);

        traces[i] = (PlotTrace){inputs->traces->pdata[i], inputs->names[i]};
        if (traces[i].trace == NULL && kind == KIND_TIMELINE)
            return refuse_kind(file, kind, error);
        if (traces[i].trace == NULL && inputs->traces->len > 1)
            return cmd_fail(error, CMD_ERROR_USAGE, "%s: only traces are drawn beside each other",
                            file);
        if (kind == KIND_MEMORY && traces[i].trace != NULL && traces[i].trace->memory->len == 0)
            return cmd_fail(error, CMD_ERROR_USAGE, "%s: this trace has no memory in it", file);
    }
    if (kind == KIND_TIMELINE)
        return plot_timeline(traces, inputs->traces->len, how, path, error);
    if (report != NULL)
        return plot_report_memory(report, inputs->names[0], how, path, error);
    return plot_memory(traces, inputs->traces->len, how, path, error);
}

static bool
draw(const Options *options, const Inputs *inputs, Kind kind, const PlotOptions *how,
     const char *path, GError **error)
{
    const char *file = options_argument(options, 0);
    static bool (*const of_sweep[])(const Sweep *, const PlotOptions *, const char *, GError **) = {
        [KIND_THROUGHPUT] = plot_sweep_throughput,
        [KIND_ROOFLINE] = plot_sweep_roofline,
        [KIND_PARETO] = plot_sweep_pareto,
    };
    static bool (*const of_plan[])(const Job *, const PlotOptions *, const char *, GError **) = {
        [KIND_ROOFLINE] = plot_plan_roofline,
        [KIND_PARETO] = plot_plan_pareto,
    };

    if (kind <= KIND_MEMORY && inputs->sweep == NULL &&
        (inputs->job == NULL || inputs->has_simulated))
        return draw_traces(options, inputs, kind, how, path, error);
    if (inputs->traces->len > 1)
        return cmd_fail(error, CMD_ERROR_USAGE, "%s: only traces are drawn beside each other",
                        file);
    if (inputs->sweep != NULL && of_sweep[kind] != NULL)
        return of_sweep[kind](inputs->sweep, how, path, error);
    if (inputs->job != NULL && of_plan[kind] != NULL)
        return of_plan[kind](inputs->job, how, path, error);
    return refuse_kind(file, kind, error);
}

/* A plan's timeline and memory are those of its simulation. */
static bool
simulate_plan(Inputs *inputs, GError **error)
{
    const JobOptions how = {.want_trace = true};
    g_auto(JobSimulation) simulation = {0};

    if (!job_simulate(inputs->job, &how, &simulation, error))
        return false;
    inputs->traces->pdata[0] = g_steal_pointer(&simulation.result.trace);
    inputs->has_simulated = true;
    return true;
}

static int
run(Options *options, GError **error)
{
    const char *path = options_string(options, "output", "-");
    const int asked = options_choice(options, "kind", -1);
    const int color = options_choice(options, "color", 0);
    g_auto(GStrv) names = options_words(options, "names");
    const bool is_stdout = strcmp(path, "-") == 0;
    static const char *const none[] = {NULL};
    g_autofree char *command_line = options_command_line(options, "plot", none);
    const PlotOptions how = {
        .footer = command_line,
        .rank = (int32_t)options_int64(options, "rank", 0, SCHEDULE_MAX_RANKS - 1, -1) + 1,
        .title = options_string(options, "title", NULL),
        .limit_bytes = options_bytes(options, "limit", 0),
        .color = is_stdout && output_has_color(whens[color]),
        .utf8 = !is_stdout || output_is_utf8(),
        .columns = is_stdout ? output_columns() : 100,
    };
    g_auto(Inputs) inputs = {0};

    if (names != NULL && g_strv_length(names) != options_n_arguments(options))
        options_fail(options, "names", "expected one for each of %zu files",
                     options_n_arguments(options));
    if (!options_finish(options, error) || !plot_path_check(path, error))
        return -1;
    if (!load_all(options, names, &inputs, error))
        return -1;
    const Kind kind = asked >= 0 ? (Kind)asked : default_kind(&inputs);
    if (inputs.job != NULL && inputs.traces->len == 1 && kind <= KIND_MEMORY &&
        !simulate_plan(&inputs, error))
        return -1;
    if (names == NULL)
        name_panels(&inputs);
    return draw(options, &inputs, kind, &how, path, error) ? 0 : -1;
}

const Command cmd_plot = {
    .name = "plot",
    .usage = "TRACE...|REPORT|SWEEP|PLAN [--kind KIND] [-o FILE.svg|.png|.txt]",
    .summary = "draw timelines, memory, scaling and trade-offs",
    .details =
        "Several traces are drawn above each other on one time axis.  gnuplot draws SVG and PNG;\n"
        "if it is missing, the numbers are left in FILE.tsv.\n",
    .options = {options_table},
    .min_arguments = 1,
    .max_arguments = PLOT_MAX_TRACES,
    .common = true,
    .run = run,
};
