/* degas export: a plan as another program reads it. */
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "cli/request/command.h"
#include "cli/export/export.h"
#include "cli/request/output.h"
#include "schedule/rank_order.h"

static const ExportTarget *const targets[] = {&export_megatron, &export_deepspeed,
                                              &export_torchtitan, &export_pytorch_csv};

static const OptionInfo options_table[] = {
    {"to", "TARGET",
     "the program to write for: megatron, deepspeed, torchtitan, pytorch-csv (required)", 0},
    {"memory-limit", "SIZE",
     "memory of a device, within which zb-auto is built; default: the device's", 0},
    {"output", "FILE", "write to FILE instead of stdout", 'o'},
    {NULL, NULL, NULL, 0},
};

void
export_breaks(ExportViolations *violations, const char *change, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    g_ptr_array_add(violations->rules, g_strdup_vprintf(format, args));
    va_end(args);
    if (change != NULL &&
        !g_ptr_array_find_with_equal_func(violations->changes, change, g_str_equal, NULL))
        g_ptr_array_add(violations->changes, g_strdup(change));
}

void
export_check_rank_order(const Plan *plan, ExportViolations *violations)
{
    if (plan_rank_order_plain(&plan->degrees) != PLAN_RANK_ORDER_DEFAULT)
        export_breaks(violations, "--rank-order tp-cp-dp-pp",
                      "ranks are laid out with pp slowest, then dp: --rank-order %s cannot be "
                      "expressed",
                      plan_rank_order_names[plan->degrees.rank_order]);
}

static const ExportTarget *
read_target(Options *options)
{
    const char *name = options_string(options, "to", NULL);
    const char *names[G_N_ELEMENTS(targets) + 1] = {NULL};

    for (size_t i = 0; i < G_N_ELEMENTS(targets); i++) {
        if (g_strcmp0(name, targets[i]->name) == 0)
            return targets[i];
        names[i] = targets[i]->name;
    }
    g_autofree char *known = g_strjoinv(", ", (char **)names);
    if (name == NULL)
        options_fail(options, "to", "is missing; expected one of: %s", known);
    else
        options_fail(options, "to", "no target \"%s\"; expected one of: %s", name, known);
    return NULL;
}

/* Whether the target can express the source; else one line names every broken rule. */
static bool
check(const ExportTarget *target, const ExportSource *source, const char *path, GError **error)
{
    g_autoptr(GPtrArray) rules = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GPtrArray) changes = g_ptr_array_new_with_free_func(g_free);
    ExportViolations violations = {rules, changes};

    target->check(source, &violations);
    if (rules->len == 0)
        return true;
    const bool has_changes = changes->len > 0;
    g_ptr_array_add(rules, NULL);
    g_ptr_array_add(changes, NULL);
    g_autofree char *all = g_strjoinv("; ", (char **)rules->pdata);
    g_autofree char *nearest = g_strjoinv(" ", (char **)changes->pdata);
    return cmd_fail(error, CMD_ERROR_NO, "%s: %s cannot run it: %s%s%s", path, target->name, all,
                    has_changes ? "; the nearest plan that it can run: the same with " : "",
                    nearest);
}

static int
export_source(const ExportTarget *target, const ExportSource *source, Options *options,
              GError **error)
{
    const char *path = options_string(options, "output", "-");
    size_t n_bytes;

    if (!check(target, source, options_argument(options, 0), error))
        return -1;
    g_autofree char *text = target->write(source, &n_bytes, error);
    if (text == NULL)
        return -1;
    if (strcmp(path, "-") == 0)
        output_text(text);
    else if (!file_write(path, text, n_bytes, error))
        return -1;
    if (target->note != NULL) {
        g_autofree char *note = target->note(source);

        output_note("note: %s", note);
    }
    return 0;
}

static int
export_plan(const ExportTarget *target, JsonDoc *doc, Options *options, GError **error)
{
    const int64_t memory_limit = options_bytes(options, "memory-limit", 0);

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
    return export_source(target, &(ExportSource){job, schedule}, options, error);
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
    if (!options_finish(options, error))
        return -1;
    g_autoptr(Schedule) schedule = schedule_read(doc, error);
    if (schedule == NULL) {
        cmd_blame_file(path, error);
        return -1;
    }
    return export_source(target, &(ExportSource){NULL, schedule}, options, error);
}

static int
run(Options *options, GError **error)
{
    const char *path = options_argument(options, 0);
    const ExportTarget *target = read_target(options);

    if (!options_finish(options, error))
        return -1;
    g_autoptr(JsonDoc) doc = json_doc_load(path, error);
    if (doc == NULL)
        return -1;
    if (g_strcmp0(json_doc_format(doc), "degas-schedule") == 0)
        return export_schedule(target, doc, options, error);
    return export_plan(target, doc, options, error);
}

const Command cmd_export = {
    .name = "export",
    .usage = "PLAN.json|SCHEDULE.json --to TARGET [-o FILE]",
    .summary = "write a plan as another program reads it",
    .details =
        "megatron: options of pretrain_gpt.py, one on each line.  deepspeed: the JSON for\n"
        "deepspeed.initialize.  torchtitan: the TOML of v0.2.2.  pytorch-csv: the schedule\n"
        "that torch.distributed.pipelining loads in its format compute_only, and torchtitan\n"
        "with --parallelism.pipeline_parallel_schedule_csv.\n"
        "\n"
        "  python pretrain_gpt.py $(degas export plan.json --to megatron) ...\n"
        "  degas export plan.json --to pytorch-csv -o schedule.csv\n"
        "\n"
        "If the target cannot run the plan, the exit status is 1 and one line on stderr\n"
        "names every broken rule and the nearest plan that keeps all rules.\n",
    .options = {options_table},
    .min_arguments = 1,
    .max_arguments = 1,
    .run = run,
};
