/*
 * DeepSpeed's configuration: the JSON of deepspeed.initialize(config=...).
 *
 * Names as of edaa722: runtime/config.py, runtime/zero/config.py, runtime/pipe/module.py.
 * Pipelines are PipelineModule's, whose number of stages and partition_method are arguments of it
 * and no keys: note() names them.  With Megatron's layers their own flag says tp.
 */
#include <string.h>

#include "cli/export/export.h"

/* Stages of as many layers as the plan's.  "uniform" would count the embedding, the last norm and
 * the head as layers, too. */
#define PARTITION "type:(Block|DecoderLayer|TransformerLayer)"

static void
write_offload(JsonWriter *writer, const char *key, const Plan *plan)
{
    json_write_object(writer, key);
    json_write_string(writer, "device", plan_offload_names[plan->offload]);
    if (plan->offload == PLAN_OFFLOAD_NVME)
        json_write_string(writer, "nvme_path", "/local_nvme");
    json_write_bool(writer, "pin_memory", true);
    json_write_object_end(writer);
}

static void
write_zero(JsonWriter *writer, const ModelArch *arch, const Plan *plan)
{
    const int64_t layer = model_part_parameters(arch, MODEL_PART_LAYER, 0, 1, 1, 1, false);

    json_write_object(writer, "zero_optimization");
    json_write_int64(writer, "stage", plan->zero_stage);
    /* Its default at stage 3, where gathers are issued ahead of use in any case. */
    json_write_bool(writer, "overlap_comm", plan->conventions.overlap_dp || plan->zero_stage == 3);
    json_write_bool(writer, "contiguous_gradients", true);
    json_write_bool(writer, "reduce_scatter", true);
    if (plan->zero_stage == 3 && plan->prefetch_layers != PLAN_PREFETCH_AUTO)
        json_write_int64(writer, "stage3_prefetch_bucket_size", plan->prefetch_layers * layer);
    if (plan->offload != PLAN_OFFLOAD_NONE)
        write_offload(writer, "offload_optimizer", plan);
    if (plan->offload_parameters)
        write_offload(writer, "offload_param", plan);
    json_write_object_end(writer);
}

static void
write_switch(JsonWriter *writer, const char *key, bool value)
{
    json_write_object(writer, key);
    json_write_bool(writer, "enabled", value);
    json_write_object_end(writer);
}

static void
write_pipeline(JsonWriter *writer, const Plan *plan)
{
    if (plan->degrees.pp == 1)
        return;
    json_write_object(writer, "pipeline");
    json_write_int64(writer, "stages", plan->degrees.pp);
    json_write_string(writer, "partition", PARTITION);
    json_write_int64(writer, "activation_checkpoint_interval",
                     strcmp(plan_recompute_name(plan), "full") == 0 ? 1 : 0);
    json_write_object_end(writer);
}

static char *
write_config(const ExportSource *source, size_t *n_bytes, GError **error)
{
    const Plan *plan = source->job->plan;
    g_autoptr(JsonWriter) writer = json_writer_new();

    json_write_object(writer, NULL);
    json_write_int64(writer, "train_batch_size", plan->global_batch);
    json_write_int64(writer, "train_micro_batch_size_per_gpu", plan->micro_batch);
    json_write_int64(writer, "gradient_accumulation_steps", plan->n_micro_batches);
    write_zero(writer, source->job->arch, plan);
    write_switch(writer, "bf16", plan->dtype == DTYPE_BF16);
    write_switch(writer, "fp16", plan->dtype == DTYPE_FP16);
    json_write_object(writer, "data_types");
    json_write_string(writer, "grad_accum_dtype", dtype_names[plan->conventions.grad_dtype]);
    json_write_object_end(writer);
    if (plan->conventions.optimizer == PLAN_OPTIMIZER_MUON) {
        json_write_object(writer, "optimizer");
        json_write_string(writer, "type", "Muon");
        json_write_object_end(writer);
    } else if (plan->conventions.optimizer != PLAN_OPTIMIZER_ADAMW) {
        /* The script's own. */
        json_write_bool(writer, "zero_allow_untested_optimizer", true);
    }
    write_pipeline(writer, plan);
    if (plan->degrees.tp > 1 && !plan_framework(plan->conventions.framework)->splits_layers) {
        json_write_object(writer, "tensor_parallel");
        json_write_int64(writer, "autotp_size", plan->degrees.tp);
        json_write_object_end(writer);
    }
    json_write_object_end(writer);
    return json_writer_steal(writer, n_bytes);
}

static char *
note(const ExportSource *source)
{
    const Plan *plan = source->job->plan;
    GString *text = g_string_new(NULL);

    g_string_append_printf(text, "DeepSpeed on " INT " devices", plan_n_devices(plan));
    if (plan->degrees.pp > 1)
        g_string_append_printf(
            text,
            "; PipelineModule(num_stages=" INT ", partition_method=\"" PARTITION "\", "
            "activation_checkpoint_interval=%d)",
            plan->degrees.pp, strcmp(plan_recompute_name(plan), "full") == 0 ? 1 : 0);
    else if (strcmp(plan_recompute_name(plan), "full") == 0)
        g_string_append(text, "; the model's code recomputes each layer "
                              "(deepspeed.checkpointing.checkpoint)");
    return g_string_free(text, FALSE);
}

static void
bundle(const ExportSource *source, ExportBundle *bundle)
{
    bundle->config = "ds_config.json";
    bundle->program =
        "python3 -u \"$TRAIN\" --deepspeed --deepspeed_config ds_config.json $TRAIN_ARGS";
    bundle->on_end =
        "Your program is told by TERM, since DeepSpeed leaves checkpoints to it, and starts "
        "again from the last one that it has saved.";
    bundle->yours = "The program is yours: `TRAIN`, which calls deepspeed.initialize.";
    bundle->time_is =
        "`\"steps_per_print\": 1` and `\"wall_clock_breakdown\": true` in ds_config.json "
        "log every step.";
    export_bundle_set(bundle, "OMP_NUM_THREADS", "1",
                      "As torchrun has it: else every rank takes all cores of the node.");
    export_bundle_set(bundle, "TRAIN", "train.py",
                      "Your program, which calls deepspeed.initialize.");
    export_bundle_set(bundle, "TRAIN_ARGS", "", "Its options.");
}

const ExportTarget export_deepspeed = {
    .name = "deepspeed",
    .summary = "DeepSpeed's configuration file",
    .framework = PLAN_FRAMEWORK_DEEPSPEED,
    .write = write_config,
    .note = note,
    .bundle = bundle,
};
