/*
 * torchtitan's TOML, as of v0.2.2 (the last release that reads TOML):
 * torchtitan/config/job_config.py, distributed/parallel_dims.py, distributed/pipeline_parallel.py.
 *
 * Models are its flavours, by name.  A schedule without a class of its own is a CSV, written by
 * degas export --to pytorch-csv; the class that is named then only says where stages lie.
 * FSDP shards over dp and cp: ZeRO 3 reshards after forward, ZeRO 2 does not, ZeRO 0 replicates.
 */
#include <string.h>

#include "cli/export/export.h"
#include "cli/request/output.h"

#define CSV_NAME "schedule.csv"

static const struct {
    const char *degas, *name, *flavor;
} models[] = {
    {"llama3-8b", "llama3", "8B"},          {"llama3-70b", "llama3", "70B"},
    {"llama3-405b", "llama3", "405B"},      {"qwen3-32b", "qwen3", "32B"},
    {"deepseek-v3", "deepseek_v3", "671B"},
};

/* An index, or -1. */
static int
find_model(const char *name)
{
    for (size_t i = 0; i < G_N_ELEMENTS(models); i++)
        if (strcmp(models[i].degas, name) == 0)
            return (int)i;
    return -1;
}

/* (borrowed) The plan's family if a class of torch.distributed.pipelining runs it, else NULL. */
static const ScheduleFamily *
family_of(const Plan *plan)
{
    const ScheduleFamily *family = schedule_family_find(plan->schedule, NULL);

    return family != NULL && family->torch_class != NULL ? family : NULL;
}

/* --- rules --- */

static void
check_schedule(const Plan *plan, ExportViolations *violations)
{
    const int64_t pp = plan->degrees.pp, rounds = MAX(1, plan->n_micro_batches / pp);
    const ScheduleFamily *family = family_of(plan);
    const bool has_rounds = family != NULL && family->groups;

    if (plan->slices->len > 1 || plan->micro_batch_sequences != NULL)
        export_breaks(violations, "--slices off",
                      "a micro-batch is one tensor: slices cannot be expressed");
    if (plan->degrees.vpp > 1 && pp == 1)
        export_breaks(violations, "--vpp 1", "chunks need a pipeline: --vpp " INT " with --pp 1",
                      plan->degrees.vpp);
    if (pp == 1)
        return;
    if (family == NULL)
        export_breaks(violations, "--schedule 1f1b,interleaved,interleaved-zb,zb-v",
                      "no schedule class or file runs %s", plan->schedule);
    if (has_rounds && plan->n_micro_batches % rounds != 0)
        export_breaks(violations, "--schedule 1f1b,zb-v",
                      "%s has rounds of as many micro-batches: " INT " in " INT, plan->schedule,
                      plan->n_micro_batches, rounds);
    if (has_rounds && plan->group > 0 && plan->group != plan->n_micro_batches / rounds)
        export_breaks(violations, NULL, "a round of %s has " INT " micro-batches, not --group " INT,
                      plan->schedule, plan->n_micro_batches / rounds, plan->group);
    if (plan->zero_stage == 0 && plan->degrees.dp > 1)
        export_breaks(violations, "--zero 3",
                      "replicas without sharding (DDP) are alone: not with a pipeline");
}

static void
check_shape(const ExportSource *source, ExportViolations *violations)
{
    const ModelArch *arch = source->job->arch;
    const Plan *plan = source->job->plan;
    const PlanDegrees *d = &plan->degrees;
    const int64_t divisor = d->tp * (d->cp > 1 ? 2 * d->cp : 1);

    export_check_rank_order(plan, violations);
    if (find_model(arch->name) < 0)
        export_breaks(violations, NULL, "it has no flavour of %s", arch->name);
    if (arch->n_kv_heads % d->tp != 0)
        export_breaks(violations, "--tp 1", "--tp " INT " divides " INT " K/V heads", d->tp,
                      arch->n_kv_heads);
    if (plan->seq_len % divisor != 0)
        export_breaks(violations, "--cp 1 --tp 1",
                      "--tp times twice --cp, " INT ", divides the sequence of " INT, divisor,
                      plan->seq_len);
    if (d->tp > 1 && !plan->sequence_parallel)
        export_breaks(violations, "--sequence-parallel on",
                      "tensor parallelism is always with sequence parallelism");
}

static void
check_memory(const Plan *plan, ExportViolations *violations)
{
    const char *recompute = plan_recompute_name(plan);

    if (plan->zero_stage == 1)
        export_breaks(violations, "--zero 2",
                      "FSDP shards gradients with the optimizer: no ZeRO 1");
    if (plan->zero_stage == 0 && plan->degrees.cp > 1)
        export_breaks(violations, "--zero 3",
                      "FSDP shards over context-parallel ranks: no ZeRO 0 with --cp " INT,
                      plan->degrees.cp);
    if (plan->offload == PLAN_OFFLOAD_NVME)
        export_breaks(violations, "--offload none", "nothing is offloaded to NVMe");
    if (plan->offload == PLAN_OFFLOAD_CPU && plan->zero_stage < 2)
        export_breaks(violations, "--zero 3", "offloading is FSDP's: it needs ZeRO 2 or 3");
    if (plan->dtype != DTYPE_BF16 && plan->dtype != DTYPE_FP32)
        export_breaks(violations, "--dtype bf16",
                      "mixed_precision_param is bfloat16 or float32, "
                      "not %s",
                      dtype_names[plan->dtype]);
    if (plan->conventions.grad_dtype != DTYPE_FP32)
        export_breaks(violations, "--grad-dtype fp32", "mixed_precision_reduce is float32, not %s",
                      dtype_names[plan->conventions.grad_dtype]);
    if (strcmp(recompute, "selective") == 0 || strcmp(recompute, "mixed") == 0)
        export_breaks(violations, "--recompute full",
                      "its selective policies save attention: %s recompute cannot be expressed",
                      recompute);
}

static void
check(const ExportSource *source, ExportViolations *violations)
{
    check_schedule(source->job->plan, violations);
    check_shape(source, violations);
    check_memory(source->job->plan, violations);
}

/* --- tables --- */

/* Stages as lists of module names: ["tok_embeddings", "layers.0"], ... */
static void
append_parts(GString *text, const Plan *plan)
{
    g_string_append(text, "module_fqns_per_model_part = [\n");
    for (guint i = 0; i < plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);
        const char *comma = "";

        g_string_append(text, "    [");
        if (stage->embedding) {
            g_string_append(text, "\"tok_embeddings\"");
            comma = ", ";
        }
        for (int64_t k = 0; k < stage->n_layers; k++) {
            g_string_append_printf(text, "%s\"layers." INT "\"", comma, stage->first_layer + k);
            comma = ", ";
        }
        if (stage->head)
            g_string_append_printf(text, "%s\"norm\", \"output\"", comma);
        g_string_append(text, "],\n");
    }
    g_string_append(text, "]\n");
}

static void
append_pipeline(GString *text, const Plan *plan)
{
    const ScheduleFamily *family = family_of(plan);

    g_string_append_printf(text, "pipeline_parallel_degree = " INT "\n", plan->degrees.pp);
    if (plan->degrees.pp == 1)
        return;
    g_string_append_printf(text,
                           "pipeline_parallel_schedule = \"%s\"\n"
                           "pipeline_parallel_microbatch_size = " INT "\n",
                           family->torch_class, plan->micro_batch);
    if (family->torch_reads_ops)
        g_string_append(text, "pipeline_parallel_schedule_csv = \"" CSV_NAME "\"\n");
    append_parts(text, plan);
}

static void
append_parallelism(GString *text, const Plan *plan)
{
    const PlanDegrees *d = &plan->degrees;
    const bool is_sharded = plan->zero_stage >= 2;

    g_string_append_printf(text,
                           "\n[parallelism]\n"
                           "data_parallel_replicate_degree = " INT "\n"
                           "data_parallel_shard_degree = " INT "\n",
                           is_sharded ? 1 : d->dp, is_sharded ? d->dp : 1);
    if (is_sharded)
        g_string_append_printf(text, "fsdp_reshard_after_forward = \"%s\"\n",
                               plan->zero_stage == 3 ? "always" : "never");
    g_string_append_printf(text,
                           "tensor_parallel_degree = " INT "\n"
                           "enable_async_tensor_parallel = %s\n"
                           "context_parallel_degree = " INT "\n",
                           d->tp, plan->conventions.overlap_tp && d->tp > 1 ? "true" : "false",
                           d->cp);
    if (d->ep > 1)
        g_string_append_printf(text,
                               "expert_parallel_degree = " INT "\n"
                               "expert_tensor_parallel_degree = 1\n",
                               d->ep);
    append_pipeline(text, plan);
}

static char *
write_toml(const ExportSource *source, size_t *n_bytes, GError **error)
{
    const Plan *plan = source->job->plan;
    const int model = find_model(source->job->arch->name);
    /* A pipeline takes all its micro-batches at once; else they are gradient accumulation. */
    const int64_t local_batch =
        plan->degrees.pp > 1 ? plan->micro_batch * plan->n_micro_batches : plan->micro_batch;
    GString *text = g_string_new(NULL);

    g_string_append_printf(text, "[model]\nname = \"%s\"\nflavor = \"%s\"\n", models[model].name,
                           models[model].flavor);
    g_string_append_printf(text,
                           "\n[training]\n"
                           "local_batch_size = " INT "\n"
                           "global_batch_size = " INT "\n"
                           "seq_len = " INT "\n"
                           "mixed_precision_param = \"%s\"\n"
                           "mixed_precision_reduce = \"float32\"\n"
                           "enable_cpu_offload = %s\n",
                           local_batch, plan->global_batch, plan->seq_len,
                           plan->dtype == DTYPE_BF16 ? "bfloat16" : "float32",
                           plan->offload == PLAN_OFFLOAD_CPU ? "true" : "false");
    append_parallelism(text, plan);
    g_string_append_printf(text, "\n[activation_checkpoint]\nmode = \"%s\"\n",
                           plan_recompute_name(plan));
    *n_bytes = text->len;
    return g_string_free(text, FALSE);
}

static char *
note(const ExportSource *source)
{
    const Plan *plan = source->job->plan;
    const ScheduleFamily *family = family_of(plan);
    GString *text = g_string_new(NULL);

    g_string_append_printf(text, "torchtitan v0.2.2 on " INT " devices", plan_n_devices(plan));
    if (plan->degrees.pp > 1 && family->torch_reads_ops)
        g_string_append(text, "; " CSV_NAME " comes from degas export --to pytorch-csv");
    return g_string_free(text, FALSE);
}

const ExportTarget export_torchtitan = {
    .name = "torchtitan",
    .summary = "torchtitan's TOML, v0.2.2",
    .check = check,
    .write = write_toml,
    .note = note,
};
