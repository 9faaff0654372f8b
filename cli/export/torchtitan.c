/*
 * torchtitan's configuration, by version: Python, as of 0.3.0 (torchtitan/trainer.py,
 * config/configs.py, config/manager.py), or TOML, as of v0.2.2, the last release that reads it
 * (config/job_config.py); distributed/parallel_dims.py and pipeline_parallel.py of both.
 *
 * Models are its flavours, by name.  A schedule without a class of its own is a CSV, written by
 * degas export --to pytorch-csv; the class that is named then only says where stages lie.
 * FSDP shards over dp and cp: ZeRO 3 reshards after forward, ZeRO 2 does not, ZeRO 0 replicates.
 *
 * The Python file begins with the flavour's own recipe, which has the optimizer, the data and the
 * tokenizer, and sets what the plan says.  405B's recipe computes in fp8 and compiles, and replays
 * CUDA graphs as all do: the plan does none of these unless it says so.
 */
#include <string.h>

#include "cli/export/export.h"

#define CSV_NAME "schedule.csv"

/* (borrowed) What torchtitan calls the model, which it has. */
static const PlanFrameworkModel *
model_of(const ModelArch *arch)
{
    const PlanFrameworkModel *model = plan_framework(PLAN_FRAMEWORK_TORCHTITAN)->rules->models;

    while (strcmp(model->model, arch->name) != 0)
        model++;
    return model;
}

/* (borrowed) The plan's family, which a class of torch.distributed.pipelining runs. */
static const ScheduleFamily *
family_of(const Plan *plan)
{
    return schedule_family_find(plan->schedule, NULL);
}

/* One file under way: what both versions set alike is written by set(). */
typedef struct {
    GString *text;
    bool python;
    const char *section; /* (borrowed, nullable) the TOML table that is open */
} Config;

/* "key = value" of a section.  The value is text that TOML and Python read alike. */
static void G_GNUC_PRINTF(4, 5)
    set(Config *config, const char *section, const char *key, const char *format, ...)
{
    va_list args;

    if (config->python)
        g_string_append_printf(config->text, "    config.%s.", section);
    else if (g_strcmp0(config->section, section) != 0)
        g_string_append_printf(config->text, "%s[%s]\n", config->text->len > 0 ? "\n" : "",
                               section);
    config->section = section;
    g_string_append_printf(config->text, "%s = ", key);
    va_start(args, format);
    g_string_append_vprintf(config->text, format, args);
    va_end(args);
    g_string_append_c(config->text, '\n');
}

static void
set_bool(Config *config, const char *section, const char *key, bool value)
{
    set(config, section, key, "%s",
        config->python ? (value ? "True" : "False") : (value ? "true" : "false"));
}

/* Asynchronous tensor parallelism is a pass of the compiler. */
static bool
compiles(const Plan *plan)
{
    return plan->conventions.overlap_tp && plan->degrees.tp > 1;
}

/* (owned) Stages as lists of module names: ["tok_embeddings", "layers.0"], ... */
static char *
parts_text(const Plan *plan, bool python)
{
    const char *head = python ? "lm_head" : "output", *indent = python ? "    " : "";
    GString *text = g_string_new("[\n");

    for (guint i = 0; i < plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);
        const char *comma = "";

        g_string_append_printf(text, "%s    [", indent);
        if (stage->embedding) {
            g_string_append(text, "\"tok_embeddings\"");
            comma = ", ";
        }
        for (int64_t k = 0; k < stage->n_layers; k++) {
            g_string_append_printf(text, "%s\"layers." INT "\"", comma, stage->first_layer + k);
            comma = ", ";
        }
        if (stage->head)
            g_string_append_printf(text, "%s\"norm\", \"%s\"", comma, head);
        g_string_append(text, "],\n");
    }
    g_string_append_printf(text, "%s]", indent);
    return g_string_free(text, FALSE);
}

static void
set_pipeline(Config *config, const Plan *plan)
{
    const ScheduleFamily *family = family_of(plan);
    const char *section = "parallelism";
    const bool chunks = plan->degrees.vpp > 1 && family->torch_class_of_chunks != NULL;

    set(config, section, "pipeline_parallel_degree", INT, plan->degrees.pp);
    if (plan->degrees.pp == 1)
        return;
    set(config, section, "pipeline_parallel_schedule", "\"%s\"",
        chunks ? family->torch_class_of_chunks : family->torch_class);
    set(config, section, "pipeline_parallel_microbatch_size", INT, plan->micro_batch);
    if (family->torch_reads_ops)
        set(config, section, "pipeline_parallel_schedule_csv", "\"" CSV_NAME "\"");
    g_autofree char *parts = parts_text(plan, config->python);
    set(config, section, "module_fqns_per_model_part", "%s", parts);
}

static void
set_parallelism(Config *config, const Plan *plan)
{
    const PlanDegrees *d = &plan->degrees;
    const bool is_sharded = plan->zero_stage >= 2;
    const int64_t instances = plan_instances(&plan->conventions);
    const char *section = "parallelism";

    set(config, section, "data_parallel_replicate_degree", INT, is_sharded ? instances : d->dp);
    set(config, section, "data_parallel_shard_degree", INT, is_sharded ? d->dp / instances : 1);
    if (is_sharded)
        set(config, section, "fsdp_reshard_after_forward", "\"%s\"",
            plan->zero_stage == 3 ? "always" : "never");
    set(config, section, "tensor_parallel_degree", INT, d->tp);
    if (!config->python)
        set_bool(config, section, "enable_async_tensor_parallel", compiles(plan));
    set(config, section, "context_parallel_degree", INT, d->cp);
    /* A recipe may have its own.  In 0.3 experts are never split over tp. */
    if (d->ep > 1 || config->python)
        set(config, section, "expert_parallel_degree", INT, d->ep);
    if (d->ep > 1 && !config->python)
        set(config, section, "expert_tensor_parallel_degree", "1");
    set_pipeline(config, plan);
}

static void
set_training(Config *config, const Plan *plan)
{
    const char *section = "training";
    /* A pipeline takes all its micro-batches at once; else they are gradient accumulation. */
    const int64_t local_batch =
        plan->degrees.pp > 1 ? plan->micro_batch * plan->n_micro_batches : plan->micro_batch;

    set(config, section, "local_batch_size", INT, local_batch);
    set(config, section, "global_batch_size", INT, plan->global_batch);
    set(config, section, "seq_len", INT, plan->seq_len);
    set(config, section, "mixed_precision_param", "\"%s\"",
        plan->dtype == DTYPE_BF16 ? "bfloat16" : "float32");
    set(config, section, "mixed_precision_reduce", "\"float32\"");
    set_bool(config, section, "enable_cpu_offload", plan->offload == PLAN_OFFLOAD_CPU);
    if (config->python)
        set_bool(config, section, "disable_cuda_graphs", true);
}

/* (owned) The TOML of v0.2.2. */
static char *
write_toml(const PlanFrameworkModel *model, const Plan *plan)
{
    Config config = {.text = g_string_new(NULL)};

    set(&config, "model", "name", "\"%s\"", model->name);
    set(&config, "model", "flavor", "\"%s\"", model->flavour);
    set_training(&config, plan);
    set_parallelism(&config, plan);
    set(&config, "activation_checkpoint", "mode", "\"%s\"", plan_recompute_name(plan));
    if (compiles(plan)) {
        set_bool(&config, "compile", "enable", true);
        set(&config, "compile", "components", "[\"model\", \"loss\"]");
    }
    return g_string_free(config.text, FALSE);
}

/* (owned) The module of 0.3.0. */
static char *
write_python(const PlanFrameworkModel *model, const Plan *plan)
{
    const bool recomputes = strcmp(plan_recompute_name(plan), "full") == 0;
    g_autofree char *flavour = g_ascii_strdown(model->flavour, -1);
    g_autofree char *recipe = g_strconcat(model->name, "_", flavour, NULL);
    Config config = {.text = g_string_new(NULL), .python = true};

    g_string_append(config.text, "# torchtitan 0.3.0: -m torchtitan.train --module NAME --config "
                                 "plan, where this file is NAME.py\n"
                                 "from torchtitan.config import CompileConfig\n");
    if (recomputes)
        g_string_append(config.text,
                        "from torchtitan.distributed.activation_checkpoint import FullAC\n");
    g_string_append_printf(config.text,
                           "from torchtitan.models.%s import model_registry\n"
                           "from torchtitan.models.%s.config_registry import %s\n"
                           "from torchtitan.trainer import Trainer\n\n\n"
                           "def plan() -> Trainer.Config:\n"
                           "    config = %s()\n"
                           "    config.model_spec = model_registry(\"%s\")\n",
                           model->name, model->name, recipe, recipe, model->flavour);
    set_training(&config, plan);
    set_parallelism(&config, plan);
    g_string_append_printf(config.text,
                           "    config.activation_checkpoint = %s\n"
                           "    config.compile = CompileConfig(enable=%s)\n"
                           "    return config\n",
                           recomputes ? "FullAC.Config()" : "None",
                           compiles(plan) ? "True, enable_async_tensor_parallel=True" : "False");
    return g_string_free(config.text, FALSE);
}

static const char *const versions[] = {"0.3", "0.2", NULL};

static bool
is_python(const ExportSource *source)
{
    return strcmp(source->version, versions[0]) == 0;
}

static char *
write_config(const ExportSource *source, size_t *n_bytes, GError **error)
{
    const PlanFrameworkModel *model = model_of(source->job->arch);
    char *text = is_python(source) ? write_python(model, source->job->plan)
                                   : write_toml(model, source->job->plan);

    *n_bytes = strlen(text);
    return text;
}

static char *
note(const ExportSource *source)
{
    const Plan *plan = source->job->plan;
    const ScheduleFamily *family = family_of(plan);
    GString *text = g_string_new(NULL);

    g_string_append_printf(text, "torchtitan %s on " INT " devices",
                           is_python(source) ? "0.3.0" : "v0.2.2", plan_n_devices(plan));
    if (plan->degrees.pp > 1 && family->torch_reads_ops)
        g_string_append(text, "; " CSV_NAME " comes from degas export --to pytorch-csv");
    return g_string_free(text, FALSE);
}

static void
bundle(const ExportSource *source, ExportBundle *bundle)
{
    const Plan *plan = source->job->plan;
    const bool python = is_python(source);

    bundle->config = python ? "plan.py" : "plan.toml";
    bundle->csv = plan->degrees.pp > 1 && family_of(plan)->torch_reads_ops ? CSV_NAME : NULL;
    bundle->prepare = python ? "export PYTHONPATH=\".${PYTHONPATH:+:$PYTHONPATH}\"\n" : NULL;
    bundle->program =
        python ? "python3 -u -m torchtitan.train --module plan --config plan $TRAIN_ARGS"
               : "python3 -u -m torchtitan.train --job.config_file plan.toml $TRAIN_ARGS";
    bundle->on_end = "torchtitan ends at once, and starts again from the last checkpoint that its "
                     "own options have it save.";
    bundle->yours = "Data, tokenizer, learning rate and checkpoints are yours: `TRAIN_ARGS`.";
    bundle->time_is =
        "the log has `tps`, tokens a second of a device: a step takes the batch's tokens "
        "over `tps` times the devices.";
    export_bundle_set(bundle, "OMP_NUM_THREADS", "1",
                      "As torchrun has it: else every rank takes all cores of the node.");
    export_bundle_set(bundle, "PYTORCH_ALLOC_CONF", "expandable_segments:True",
                      "As in torchtitan's run_train.sh: memory is not cut into pieces.");
    export_bundle_set(bundle, "TRAIN_ARGS", "--training.steps 50",
                      "As many steps as a comparison needs.");
}

const ExportTarget export_torchtitan = {
    .name = "torchtitan",
    .summary = "torchtitan's configuration: Python of 0.3.0, or TOML of v0.2.2",
    .framework = PLAN_FRAMEWORK_TORCHTITAN,
    .versions = versions,
    .write = write_config,
    .note = note,
    .bundle = bundle,
};
