/* degas show: what a model, a cluster, a plan, a report or a trace is. */
#include <string.h>

#include "cli/request/command.h"
#include "cli/draw/describe.h"
#include "cli/request/output.h"
#include "base/text.h"
#include "cli/request/request.h"
#include "cli/draw/timeline.h"

static const OptionInfo options_table[] = {
    {"seq-len", "N", "model: tokens of the op table; default: its max_seq_len", 0},
    {"tp", "N", "model: tensor-parallel ranks of the op table; default: 1", 0},
    {"dtype", "T", "model: number format of the op table; default: bf16", 0},
    {"json", NULL, "print the complete file on stdout", 0},
    {NULL, NULL, NULL, 0},
};

static bool
contains(const GPtrArray *names, const char *name)
{
    for (guint i = 0; i < names->len; i++) {
        if (strcmp(g_ptr_array_index(names, i), name) == 0)
            return true;
    }
    return false;
}

static int
show_model(const char *name, Options *options, GError **error)
{
    g_autoptr(ModelArch) arch = request_load_model(name, error);

    if (arch == NULL)
        return -1;
    const ModelShape shape = {
        .batch = 1,
        .tokens = options_int64(options, "seq-len", 1, MODEL_MAX_SEQ_LEN, arch->max_seq_len),
        .tp = options_int64(options, "tp", 1, SCHEDULE_MAX_RANKS, 1),
        .cp = 1,
        .ep = 1,
        .flash_attention = true,
        .dtype = (Dtype)options_choice(options, "dtype", dtype_names, DTYPE_BF16),
        .expert_imbalance = 1,
    };
    if (!options_finish(options, error) || !model_shape_check(arch, &shape, error))
        return -1;
    if (options_switch(options, "json")) {
        g_autoptr(JsonWriter) writer = json_writer_new();

        model_arch_write(writer, NULL, arch);
        return output_json(writer, NULL, error) ? 0 : -1;
    }
    describe_model(arch, shape.tokens, shape.tp, shape.dtype);
    return 0;
}

static int
show_cluster(const char *name, Options *options, GError **error)
{
    g_autoptr(Profile) profile = profile_load(name, error);

    if (profile == NULL)
        return -1;
    if (options_switch(options, "json")) {
        g_autoptr(JsonWriter) writer = json_writer_new();

        profile_write(writer, NULL, profile);
        return output_json(writer, NULL, error) ? 0 : -1;
    }
    describe_cluster(profile);
    return 0;
}

static int
show_plan(JsonDoc *doc, Options *options, GError **error)
{
    g_autoptr(Job) job = job_read(doc, error);
    g_auto(JobSimulation) simulation = {0};

    if (job == NULL)
        return -1;
    if (options_switch(options, "json")) {
        g_autoptr(JsonWriter) writer = job_write(job);

        return output_json(writer, NULL, error) ? 0 : -1;
    }
    SimGlimpse glimpse;
    g_autofree bool *is_shown = describe_glimpse((int32_t)job->plan->degrees.pp, &glimpse);
    const JobOptions how = {.want_trace = true, .glimpse = &glimpse};
    if (!job_simulate(job, &how, &simulation, error)) {
        cmd_blame_file(json_doc_name(doc), error);
        return -1;
    }
    const Plan *plan = job->plan;
    describe_job(job);
    output_text("\n");
    describe_plans(&plan, 1);
    output_text("\n");
    describe_stages(plan);
    describe_report(simulation.result.report, job->profile->cluster->currency, 16);
    output_text("\n");
    describe_timeline(simulation.result.trace, false);
    return 0;
}

static int
show_trace(const char *path, GError **error)
{
    g_autoptr(Trace) trace = trace_load(path, error);
    g_autofree char *title = NULL;

    if (trace == NULL)
        return -1;
    title = timeline_title(trace);
    output_printf("%s\n", title);
    describe_timeline(trace, false);
    return 0;
}

static int
show_report(JsonDoc *doc, GError **error)
{
    g_autoptr(Report) report = report_read(doc, json_doc_root(doc, "degas-report", 1));

    if (!json_doc_finish(doc, error))
        return -1;
    describe_report(report, NULL, 16);
    return 0;
}

static int
show_file(const char *path, Options *options, GError **error)
{
    g_autoptr(JsonDoc) doc = json_doc_load(path, error);
    const char *format;

    if (doc == NULL)
        return -1;
    format = json_doc_format(doc);
    if (g_strcmp0(format, "degas-plan") == 0)
        return show_plan(doc, options, error);
    if (g_strcmp0(format, "degas-profile") == 0)
        return show_cluster(path, options, error);
    if (g_strcmp0(format, "degas-trace") == 0)
        return show_trace(path, error);
    if (g_strcmp0(format, "degas-report") == 0)
        return show_report(doc, error);
    return show_model(path, options, error); /* or says what it is not */
}

/* An unknown name may mean either; the nearest of both is suggested. */
static int
fail_unknown(const char *name, const GPtrArray *models, const GPtrArray *clusters, GError **error)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new();
    g_autofree char *suggestion = NULL;

    for (guint i = 0; i < models->len; i++)
        g_ptr_array_add(names, g_ptr_array_index(models, i));
    for (guint i = 0; i < clusters->len; i++)
        g_ptr_array_add(names, g_ptr_array_index(clusters, i));
    g_ptr_array_add(names, NULL);
    suggestion = text_suggestion(name, (const char *const *)names->pdata);
    g_set_error(error, G_FILE_ERROR, G_FILE_ERROR_NOENT,
                "%s: no file, built-in model or built-in cluster of that name%s%s", name,
                *suggestion == 0 ? "" : ";", *suggestion == 0 ? "" : suggestion + 1);
    cmd_blame_name(name, error);
    return -1;
}

static int
run(Options *options, GError **error)
{
    const char *name = options_argument(options, 0);
    g_autoptr(GPtrArray) models = model_arch_builtin_names();
    g_autoptr(GPtrArray) clusters = profile_builtin_names();

    if (contains(models, name))
        return show_model(name, options, error);
    if (contains(clusters, name))
        return show_cluster(name, options, error);
    if (strcmp(name, "-") != 0 && !g_file_test(name, G_FILE_TEST_EXISTS))
        return fail_unknown(name, models, clusters, error);
    return show_file(name, options, error);
}

const Command cmd_show = {
    .name = "show",
    .usage = "MODEL|CLUSTER|PLAN.json|TRACE.json|REPORT.json [options]",
    .summary = "what a model, a cluster, a plan, a report or a trace is",
    .details = "  degas show llama3-8b --tp 8\n"
               "  degas show plan.json\n",
    .options = {options_table},
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
