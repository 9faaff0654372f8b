/* degas check: whether a recipe of another program starts and fits, how long it takes, what helps. */
#include "cli/check/check.h"
#include "cli/request/command.h"
#include "cli/request/output.h"

static const OptionInfo options_table[] = {
    {"json", NULL, "print a degas-check on stdout", .common = true},
    {"output", "FILE", "write the recipe's plan as a degas-plan to FILE", .common = true},
    {"edits", "N", "show N edits that gain; default: 3"},
    {"names", NULL, "also name the settings that do not matter for how the job is split"},
    RECIPE_OPTIONS,
    {NULL, NULL, NULL},
};

static int
run(Options *options, GError **error)
{
    const char *path = options_string(options, "output", NULL);
    const bool json = options_has(options, "json"), names = options_has(options, "names");
    const int64_t n_gains = options_int64(options, "edits", 0, 100, 3);
    g_autoptr(Recipe) recipe = NULL;
    g_autoptr(GError) refusal = NULL;

    if (!options_finish(options, error))
        return -1;
    g_autoptr(Request) request = recipe_request_load(
        options_argument(options, 0), options_argument(options, 1), options, &recipe, &refusal);
    if (request == NULL && (recipe == NULL || recipe->breaches->len == 0)) {
        g_propagate_error(error, g_steal_pointer(&refusal));
        return -1;
    }
    g_autoptr(Check) check = check_new(recipe, request, refusal, (guint)n_gains, error);
    if (check == NULL)
        return -1;
    if (path != NULL && check->job == NULL) {
        cmd_fail(error, CMD_ERROR_NO, "%s: no plan can be made of it: %s", recipe->settings->path,
                 g_array_index(check->breaches, PlanBreach, 0).text);
        return -1;
    }
    if (path != NULL && !output_json(job_write(check->job), path, error))
        return -1;
    if (json) {
        JsonWriter *writer = output_json_new("degas-check");
        check_write(writer, check);
        json_write_object_end(writer);
        if (!output_json(writer, NULL, error))
            return -1;
    } else {
        check_print(check, names);
    }
    return check_starts(check) && check_fits(check) ? 0 : 1;
}

const Command cmd_check = {
    .name = "check",
    .usage = "RECIPE CLUSTER [options]",
    .summary = "tell whether a recipe of another program starts, fits, can gain",
    .details =
        "RECIPE is a script or command line of Megatron-LM, its YAML, overrides of\n"
        "Megatron-Bridge, torchtitan's TOML, DeepSpeed's JSON, or arguments of Hugging Face's\n"
        "Trainer or Accelerate.  Nothing of it is run.\n"
        "\n"
        "  degas check train_gpt3_175b.sh dgx-h100 --gpus 1024\n"
        "  degas check llama3_70b.toml dgx-h100 --gpus 256 --json\n"
        "  degas check ds_z3.json dgx-a100-80g --model llama2-13b --seq-len 4096\n"
        "\n"
        "What the recipe does not say can be given: the options of degas simulate take the\n"
        "place of its settings.  The number of devices is --gpus, else what the launcher in\n"
        "the recipe says, else that of the cluster.  If the recipe does not start or does not\n"
        "fit, the exit status is 1.\n",
    .options = {options_table, request_options, request_fixed_options},
    .headings = {"Options", "In place of the recipe's settings", "In place of its stages"},
    .min_arguments = 2,
    .max_arguments = 2,
    .run = run,
};
