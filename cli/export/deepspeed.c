/*
 * DeepSpeed's configuration: the JSON of deepspeed.initialize(config=...).
 *
 * Names and rules as of edaa722: runtime/config.py, runtime/zero/config.py, runtime/pipe/module.py.
 * Pipelines are PipelineModule's, whose number of stages and partition_method are arguments of it
 * and no keys: note() names them.  Its schedule is 1F1B and it asserts ZeRO < 2.
 */
#include <string.h>

#include "cli/export/export.h"
#include "cli/request/output.h"

static void
check_pipeline(const Plan *plan, ExportViolations *violations)
{
    const ScheduleFamily *family = schedule_family_find(plan->schedule, NULL);
    int64_t least = INT64_MAX, most = 0;

    for (guint i = 0; i < plan->stages->len; i++) {
        const int64_t n = g_array_index(plan->stages, PlanStage, i).n_layers;

        least = MIN(least, n);
        most = MAX(most, n);
    }
    if (plan->degrees.vpp > 1)
        export_breaks(violations, "--vpp 1", "a rank has one stage: --vpp " INT, plan->degrees.vpp);
    if (plan->degrees.pp == 1)
        return;
    if (family == NULL || !family->in_deepspeed)
        export_breaks(violations, "--schedule 1f1b", "pipelines run 1f1b, not %s", plan->schedule);
    if (plan->zero_stage >= 2)
        export_breaks(violations, "--zero 1", "PipelineModule asserts ZeRO below 2, not %d",
                      plan->zero_stage);
    if (plan->degrees.tp > 1)
        export_breaks(violations, "--tp 1",
                      "tensor_parallel.autotp_size is not for PipelineModule: --tp " INT
                      " with --pp " INT,
                      plan->degrees.tp, plan->degrees.pp);
    if (most - least > 1)
        export_breaks(
            violations, NULL,
            "partition_method uniform has stages that differ by one layer at most, not " INT
            " to " INT,
            least, most);
}

static void
check(const ExportSource *source, ExportViolations *violations)
{
    const Plan *plan = source->job->plan;
    const char *recompute = plan_recompute_name(plan);

    check_pipeline(plan, violations);
    export_check_rank_order(plan, violations);
    if (plan->slices->len > 1 || plan->micro_batch_sequences != NULL)
        export_breaks(violations, "--slices off", "slices cannot be expressed");
    if (plan->degrees.tp > 1 && plan->zero_stage == 3)
        export_breaks(violations, "--zero 2",
                      "tensor_parallel.autotp_size trains with ZeRO 0 to 2, not 3");
    if (plan->degrees.cp > 1)
        export_breaks(violations, "--cp 1",
                      "sequences are split by Ulysses' all-to-all, not by ring: --cp " INT,
                      plan->degrees.cp);
    if (plan->sequence_parallel && plan->degrees.tp > 1)
        export_breaks(violations, "--sequence-parallel off", "autotp has no sequence parallelism");
    if (plan->degrees.ep > 1)
        export_breaks(violations, "--ep 1",
                      "expert parallelism is an argument of MoE layers, no key: --ep " INT,
                      plan->degrees.ep);
    if (plan->offload == PLAN_OFFLOAD_CPU && plan->zero_stage == 0)
        export_breaks(violations, "--zero 1", "offload_optimizer needs ZeRO 1 to 3");
    if (plan->offload == PLAN_OFFLOAD_NVME && plan->zero_stage != 3)
        export_breaks(violations, "--zero 3", "offloading to NVMe needs ZeRO 3, not %d",
                      plan->zero_stage);
    if (plan->dtype == DTYPE_FP8 || plan->dtype == DTYPE_TF32)
        export_breaks(violations, "--dtype bf16", "number formats are fp32, fp16, bf16, not %s",
                      dtype_names[plan->dtype]);
    if (strcmp(recompute, "selective") == 0 || strcmp(recompute, "mixed") == 0)
        export_breaks(violations, "--recompute full",
                      "layers are recomputed whole and everywhere, or not: %s recompute",
                      recompute);
}

/* --- keys --- */

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
    json_write_bool(writer, "overlap_comm", plan->conventions.overlap_dp);
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
    json_write_string(writer, "partition", "uniform");
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
    write_pipeline(writer, plan);
    if (plan->degrees.tp > 1) {
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
        g_string_append_printf(text,
                               "; PipelineModule(num_stages=" INT ", partition_method=\"uniform\", "
                               "activation_checkpoint_interval=%d)",
                               plan->degrees.pp,
                               strcmp(plan_recompute_name(plan), "full") == 0 ? 1 : 0);
    else if (strcmp(plan_recompute_name(plan), "full") == 0)
        g_string_append(text, "; the model's code recomputes each layer "
                              "(deepspeed.checkpointing.checkpoint)");
    return g_string_free(text, FALSE);
}

const ExportTarget export_deepspeed = {
    .name = "deepspeed",
    .summary = "DeepSpeed's configuration file",
    .check = check,
    .write = write_config,
    .note = note,
};
