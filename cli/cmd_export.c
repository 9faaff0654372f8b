/* degas export: a plan as another program reads it. */
#include <string.h>

#include "base/file.h"
#include "cli/request/command.h"
#include "cli/export/bundle.h"
#include "cli/request/output.h"

static const char *const *
target_names(void)
{
    static const char *names[8];

    for (size_t i = 0; export_targets[i] != NULL && i + 1 < G_N_ELEMENTS(names); i++)
        names[i] = export_targets[i]->name;
    return names;
}

#define NEAREST "; the nearest plan that it can run: the same with"

static const OptionInfo options_table[] = {
    {"to", "TARGET",
     "write for this program: megatron, deepspeed, torchtitan, pytorch-csv, degas (required)",
     .list = target_names},
    {"version", "X",
     "write for this version of the program: 0.3 (Python; default) or 0.2 (TOML) of torchtitan"},
    {"memory-limit", "SIZE", "build zb-auto within SIZE of memory; default: the device's"},
    {"output", "FILE", "write to FILE instead of stdout"},
    {"bundle", "DIR",
     "write a folder with all that runs the plan: files of the program, environment, jobs for "
     "Slurm "
     "and Kubernetes, and the prediction"},
    {"gpus-per-node", "N",
     "put N ranks on a node, with --bundle; default: as the plan's cluster has them"},
    {NULL, NULL, NULL},
};

static const ExportTarget *
read_target(Options *options)
{
    const char *name = options_string(options, "to", NULL);
    const ExportTarget *target = export_target_find(name);

    if (target != NULL)
        return target;
    g_autofree char *known = g_strjoinv(", ", (char **)target_names());
    if (name == NULL)
        options_fail(options, "to", "is missing; expected one of: %s", known);
    else
        options_fail(options, "to", "no target \"%s\"; expected one of: %s", name, known);
    return NULL;
}

/* (nullable) The version to write for. */
static const char *
read_version(Options *options, const ExportTarget *target)
{
    const char *version = options_string(options, "version", NULL);

    if (target->versions == NULL && version != NULL)
        options_fail(options, "version", "%s has one form for all versions", target->name);
    if (target->versions == NULL || version == NULL)
        return target->versions == NULL ? NULL : target->versions[0];
    if (!g_strv_contains(target->versions, version)) {
        g_autofree char *known = g_strjoinv(", ", (char **)target->versions);

        options_fail(options, "version", "no version \"%s\" of %s; expected one of: %s", version,
                     target->name, known);
    }
    return version;
}

/* Whose rules the plan keeps: its own framework's where that has this exporter. */
static PlanFramework
framework_of(const ExportTarget *target, const Plan *plan)
{
    const PlanFramework own = plan->conventions.framework;

    return g_strcmp0(plan_framework(own)->exporter, target->name) == 0 ? own : target->framework;
}

/* Whether the target can express the source; else one line names every broken rule. */
static bool
check(const ExportTarget *target, const ExportSource *source, const char *path, GError **error)
{
    const Job *job = source->job;
    g_autoptr(GArray) breaches =
        plan_rules_broken(job == NULL ? PLAN_FRAMEWORK_DEGAS : framework_of(target, job->plan),
                          job == NULL ? NULL : job->arch, job == NULL ? NULL : job->plan);
    g_autoptr(GString) text = g_string_new(NULL);
    g_autoptr(GHashTable) changes = g_hash_table_new(g_str_hash, g_str_equal);
    g_autoptr(GString) nearest = g_string_new(NULL);

    if (target->check != NULL)
        target->check(source, breaches);
    for (guint i = 0; i < breaches->len; i++) {
        const PlanBreach *breach = &g_array_index(breaches, PlanBreach, i);

        g_string_append_printf(text, "%s%s", i > 0 ? "; " : "", breach->text);
        if (breach->change != NULL && g_hash_table_add(changes, breach->change))
            g_string_append_printf(nearest, "%s %s", nearest->len == 0 ? NEAREST : "",
                                   breach->change);
    }
    return breaches->len == 0 || cmd_fail(error, CMD_ERROR_NO, "%s: %s cannot run it: %s%s", path,
                                          target->name, text->str, nearest->str);
}

/* To stdout or a file. */
static bool
write_one(const ExportTarget *target, const ExportSource *source, const char *path, GError **error)
{
    size_t n_bytes;
    g_autofree char *text = target->write(source, &n_bytes, error);

    if (text == NULL)
        return false;
    if (strcmp(path, "-") != 0)
        return file_write(path, text, n_bytes, error);
    output_text(text);
    return true;
}

static int
export_source(const ExportTarget *target, const ExportSource *source,
              const ExportBundleOptions *bundle, Options *options, GError **error)
{
    const char *dir = options_string(options, "bundle", NULL);
    const char *path = options_string(options, "output", "-");

    if (!check(target, source, options_argument(options, 0), error))
        return -1;
    if (dir != NULL ? !export_bundle_write(target, source, bundle, dir, error)
                    : !write_one(target, source, path, error))
        return -1;
    if (target->note != NULL && dir == NULL) {
        g_autofree char *note = target->note(source);

        output_note("note: %s", note);
    }
    return 0;
}

static int
export_plan(const ExportTarget *target, const char *version, JsonDoc *doc, Options *options,
            GError **error)
{
    const int64_t memory_limit = options_bytes(options, "memory-limit", 0);
    const ExportBundleOptions bundle = {
        .gpus_per_node = options_int64(options, "gpus-per-node", 1, MODEL_CLUSTER_MAX_DEVICES, 0),
        .memory_limit = memory_limit,
    };

    if (options_has(options, "bundle") && options_has(options, "output"))
        options_fail(options, "output", "does not go with --bundle, which is a folder");
    if (bundle.gpus_per_node > 0 && !options_has(options, "bundle"))
        options_fail(options, "gpus-per-node", "needs --bundle");
    if (!options_finish(options, error))
        return -1;
    g_autoptr(Job) job = job_read(doc, error);
    if (job == NULL)
        return -1;
    g_autoptr(Schedule) schedule = job_schedule(job, memory_limit, error);
    if (schedule == NULL) {
        cmd_blame_file(json_doc_name(doc), error);
        return -1;
    }
    return export_source(target, &(ExportSource){job, schedule, version}, &bundle, options, error);
}

static int
export_schedule(const ExportTarget *target, JsonDoc *doc, Options *options, GError **error)
{
    const char *path = json_doc_name(doc);

    if (!target->takes_schedule) {
        g_set_error(error, CMD_ERROR, CMD_ERROR_INPUT,
                    "%s: a degas-schedule says nothing of the model; %s needs a degas-plan", path,
                    target->name);
        return -1;
    }
    if (options_has(options, "memory-limit"))
        options_fail(options, "memory-limit", "is for plans");
    if (options_has(options, "bundle") || options_has(options, "gpus-per-node"))
        options_fail(options, options_has(options, "bundle") ? "bundle" : "gpus-per-node",
                     "is for plans");
    if (!options_finish(options, error))
        return -1;
    g_autoptr(Schedule) schedule = schedule_read(doc, error);
    if (schedule == NULL) {
        cmd_blame_file(path, error);
        return -1;
    }
    return export_source(target, &(ExportSource){NULL, schedule, NULL}, NULL, options, error);
}

static int
run(Options *options, GError **error)
{
    const char *path = options_argument(options, 0);
    const ExportTarget *target = read_target(options);
    const char *version = target == NULL ? NULL : read_version(options, target);

    if (!options_finish(options, error))
        return -1;
    g_autoptr(JsonDoc) doc = json_doc_load(path, error);
    if (doc == NULL)
        return -1;
    if (g_strcmp0(json_doc_format(doc), "degas-schedule") == 0)
        return export_schedule(target, doc, options, error);
    return export_plan(target, version, doc, options, error);
}

const Command cmd_export = {
    .name = "export",
    .usage = "PLAN.json|SCHEDULE.json --to TARGET [-o FILE|--bundle DIR]",
    .summary = "write a plan as another program reads it",
    .details =
        "megatron: options of pretrain_gpt.py, one on each line.  megatron-bridge: a recipe of\n"
        "Megatron-Bridge and its overrides, one on each line.  deepspeed: the JSON for\n"
        "deepspeed.initialize.  torchtitan: a Python module for 0.3.0, or with --version 0.2\n"
        "the TOML for v0.2.2.  pytorch-csv: the schedule that torch.distributed.pipelining\n"
        "loads in its format compute_only, and torchtitan with\n"
        "--parallelism.pipeline_parallel_schedule_csv.\n"
        "\n"
        "  python pretrain_gpt.py $(degas export plan.json --to megatron) ...\n"
        "  degas export plan.json --to pytorch-csv -o schedule.csv\n"
        "  degas export plan.json --to megatron --bundle run   # a folder that runs it\n"
        "\n"
        "If the target cannot run the plan, the exit status is 1 and one line on stderr\n"
        "names every broken rule and the nearest plan that keeps all rules.\n",
    .options = {options_table},
    .min_arguments = 1,
    .max_arguments = 1,
    .common = true,
    .run = run,
};
