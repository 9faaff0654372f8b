/*
 * Megatron-LM's flags, one on a line: python pretrain_gpt.py $(degas export PLAN --to megatron) ...
 *
 * Names and rules as of d98e8a64 (2026-08): megatron/training/arguments.py,
 * megatron/core/model_parallel_config.py, transformer/pipeline_parallel_layer_layout.py,
 * pipeline_parallel/schedules.py.  Data, tokenizer, learning rate are the user's.
 *
 * Our choices, where Megatron's defaults differ: experts are not split over tp
 * (--expert-tensor-parallel-size 1); ZeRO 1 is --use-distributed-optimizer, 2 and 3 are
 * Megatron-FSDP strategies; stages that are not all equal are a layout, whose stage i is chunk i /
 * P of rank i % P.
 */
#include <string.h>

#include "cli/export/export.h"
#include "cli/request/output.h"
#include "schedule/rank_order.h"

/* --- rules --- */

static bool
has_chunks(const Plan *plan)
{
    return plan->degrees.vpp > 1;
}

static void
check_schedule(const Plan *plan, ExportViolations *violations)
{
    const int64_t pp = plan->degrees.pp, m = plan->n_micro_batches;
    const int64_t group = plan->group > 0 ? plan->group : pp;
    const ScheduleFamily *family = schedule_family_find(plan->schedule, NULL);

    /* On one rank all orders are the same. */
    if ((family == NULL || !family->in_megatron) && (pp > 1 || has_chunks(plan)))
        export_breaks(violations, "--schedule 1f1b,interleaved",
                      "schedules are 1f1b and interleaved, not %s", plan->schedule);
    if (has_chunks(plan) && pp == 1)
        export_breaks(violations, "--vpp 1", "chunks need a pipeline: --vpp " INT " with --pp 1",
                      plan->degrees.vpp);
    if (has_chunks(plan) && pp == 2 && !plan->conventions.overlap_pp)
        export_breaks(violations, "--overlap pp",
                      "interleaving 2 ranks needs messages that overlap");
    if (has_chunks(plan) && pp > 1 &&
        (group < pp || group > m || (m % group > 0 && m % group < pp)))
        export_breaks(violations, "--vpp 1",
                      "an interleaved group of " INT " micro-batches is at least --pp " INT
                      ", at most all " INT ", and so is what it leaves",
                      group, pp, m);
    if (plan->slices->len > 1)
        export_breaks(violations, "--slices off",
                      "sequences are not sliced: %u token slices cannot be expressed",
                      plan->slices->len);
    if (plan->micro_batch_sequences != NULL)
        export_breaks(violations, "--slices off",
                      "all micro-batches have as many sequences: batch_slices cannot be expressed");
}

static void
check_shape(const ModelArch *arch, const Plan *plan, ExportViolations *violations)
{
    const PlanDegrees *d = &plan->degrees;

    if (arch->vocab == 0)
        export_breaks(violations, NULL,
                      "a model has embedding and loss: a vocabulary of 0 cannot be expressed");
    if (arch->n_heads % d->tp != 0)
        export_breaks(violations, "--tp 1", "--tp " INT " divides " INT " heads", d->tp,
                      arch->n_heads);
    if (arch->n_kv_heads % d->tp != 0 && d->tp % arch->n_kv_heads != 0)
        export_breaks(violations, "--tp 1",
                      "--tp " INT " divides " INT " query groups, or they divide it", d->tp,
                      arch->n_kv_heads);
    if (d->cp > 1 && plan->seq_len % (2 * d->cp) != 0)
        export_breaks(violations, "--cp 1", "twice --cp " INT " divides the sequence of " INT,
                      d->cp, plan->seq_len);
    if (plan->sequence_parallel && plan->seq_len / d->cp % d->tp != 0)
        export_breaks(violations, "--sequence-parallel off",
                      "sequence parallelism: --tp " INT " divides " INT " tokens", d->tp,
                      plan->seq_len / d->cp);
    if (d->ep > 1 && d->tp > 1 && !plan->sequence_parallel)
        export_breaks(violations, "--sequence-parallel on",
                      "experts with tensor parallelism need sequence parallelism");
    if (d->ep > 1 && arch->experts.n_experts % d->ep != 0)
        export_breaks(violations, "--ep 1", "--ep " INT " divides " INT " experts", d->ep,
                      arch->experts.n_experts);
    if (arch->family == MODEL_FAMILY_GPT && !arch->qkv_bias)
        export_breaks(violations, NULL, "biases are in all matrices or in none, or in QKV alone");
}

/* Its ranks of experts are numbered apart, in the same order: --use-tp-pp-dp-mapping asks that both
 * have the same data parallel size, so that pipelines are the same. */
static void
check_order(const Plan *plan, ExportViolations *violations)
{
    const PlanDegrees *d = &plan->degrees;
    const int64_t order = plan_rank_order_plain(d);
    const int64_t etp = plan_expert_tp(d, &plan->conventions);

    if (order == PLAN_RANK_ORDER_DEFAULT)
        return;
    if (order != PLAN_RANK_ORDER_PP_BEFORE_DP)
        export_breaks(violations, "--rank-order tp-cp-dp-pp",
                      "ranks are laid out as tp-cp-dp-pp or tp-cp-pp-dp: --rank-order %s cannot be "
                      "expressed",
                      plan_rank_order_names[plan->degrees.rank_order]);
    else if (d->ep > 1 && d->ep * etp != d->tp * d->cp)
        export_breaks(violations, "--rank-order tp-cp-dp-pp",
                      "with pp before dp, --ep " INT " times --expert-tp " INT " is --tp " INT
                      " times --cp " INT,
                      d->ep, etp, d->tp, d->cp);
}

static void
check_memory(const Plan *plan, ExportViolations *violations)
{
    if (strcmp(plan_recompute_name(plan), "mixed") == 0)
        export_breaks(violations, "--recompute full",
                      "all stages recompute alike: stages of different kinds cannot be expressed");
    if (plan->offload == PLAN_OFFLOAD_NVME)
        export_breaks(violations, "--offload cpu", "optimizer state is offloaded to the CPU only");
    if (plan->offload == PLAN_OFFLOAD_CPU && plan->zero_stage >= 2)
        export_breaks(violations, "--zero 1",
                      "offloading needs the distributed optimizer, not ZeRO %d of Megatron-FSDP",
                      plan->zero_stage);
    if (plan->offload_parameters)
        export_breaks(violations, "--offload-parameters off", "parameters are not offloaded");
    if (plan->dtype == DTYPE_TF32)
        export_breaks(violations, "--dtype bf16", "number formats are fp32, fp16, bf16, fp8");
    if (plan->dtype != DTYPE_FP32 && plan->conventions.grad_dtype == DTYPE_FP16)
        export_breaks(violations, "--grad-dtype fp32", "gradients are summed in fp32 or bf16");
    if (plan->conventions.overlap_tp && !plan->sequence_parallel && plan->degrees.tp > 1)
        export_breaks(violations, "--sequence-parallel on",
                      "overlapping tensor parallelism needs sequence parallelism");
}

static void
check(const ExportSource *source, ExportViolations *violations)
{
    check_schedule(source->job->plan, violations);
    check_shape(source->job->arch, source->job->plan, violations);
    check_order(source->job->plan, violations);
    check_memory(source->job->plan, violations);
}

/* --- flags --- */

static void
add_flag(GString *text, const char *name)
{
    g_string_append_printf(text, "--%s\n", name);
}

static void
add_int(GString *text, const char *name, int64_t value)
{
    g_string_append_printf(text, "--%s " INT "\n", name, value);
}

static void
add_word(GString *text, const char *name, const char *value)
{
    g_string_append_printf(text, "--%s %s\n", name, value);
}

static void
add_attention(GString *text, const ModelArch *arch)
{
    add_int(text, "num-attention-heads", arch->n_heads);
    if (arch->mla.kv_lora_rank > 0) {
        add_flag(text, "multi-latent-attention");
        if (arch->mla.q_lora_rank > 0)
            add_int(text, "q-lora-rank", arch->mla.q_lora_rank);
        add_int(text, "kv-lora-rank", arch->mla.kv_lora_rank);
        add_int(text, "qk-head-dim", arch->mla.qk_nope_head_dim);
        add_int(text, "qk-pos-emb-head-dim", arch->mla.qk_rope_head_dim);
        add_int(text, "v-head-dim", arch->mla.v_head_dim);
        return;
    }
    if (arch->n_kv_heads != arch->n_heads) {
        add_flag(text, "group-query-attention");
        add_int(text, "num-query-groups", arch->n_kv_heads);
    }
    add_int(text, "kv-channels", arch->head_dim);
}

static void
add_experts(GString *text, const ModelArch *arch, const Plan *plan)
{
    const ModelExperts *experts = &arch->experts;

    if (experts->n_experts == 0)
        return;
    add_int(text, "num-experts", experts->n_experts);
    add_int(text, "moe-router-topk", experts->top_k);
    add_int(text, "moe-ffn-hidden-size", experts->ffn_hidden);
    if (experts->n_shared > 0)
        add_int(text, "moe-shared-expert-intermediate-size",
                experts->n_shared * experts->ffn_hidden);
    if (experts->first_dense_layers > 0)
        g_string_append_printf(text, "--moe-layer-freq ([0]*" INT "+[1]*" INT ")\n",
                               experts->first_dense_layers,
                               arch->n_layers - experts->first_dense_layers);
    add_flag(text, "moe-grouped-gemm");
    add_word(text, "moe-token-dispatcher-type", "alltoall");
    add_int(text, "expert-model-parallel-size", plan->degrees.ep);
    add_int(text, "expert-tensor-parallel-size",
            plan_expert_tp(&plan->degrees, &plan->conventions));
}

static void
add_model(GString *text, const ModelArch *arch, const Plan *plan)
{
    add_int(text, "num-layers", arch->n_layers);
    add_int(text, "hidden-size", arch->hidden);
    add_int(text, "ffn-hidden-size", arch->ffn_hidden);
    add_attention(text, arch);
    add_int(text, "seq-length", plan->seq_len);
    add_int(text, "max-position-embeddings", MAX(arch->max_seq_len, plan->seq_len));
    add_int(text, "vocab-size", arch->vocab);
    if (!arch->tied_embeddings)
        add_flag(text, "untie-embeddings-and-output-weights");
    if (arch->family == MODEL_FAMILY_LLAMA) {
        add_flag(text, "swiglu");
        add_word(text, "normalization", "RMSNorm");
        add_flag(text, "disable-bias-linear");
        add_word(text, "position-embedding-type", "rope");
        if (arch->qkv_bias)
            add_flag(text, "add-qkv-bias");
    }
    if (arch->qk_norm)
        add_flag(text, "qk-layernorm");
    if (!plan->conventions.dropout) {
        add_word(text, "attention-dropout", "0");
        add_word(text, "hidden-dropout", "0");
    }
    add_experts(text, arch, plan);
}

/* Whether all stages have as many layers. */
static bool
is_even(const Plan *plan)
{
    for (guint i = 1; i < plan->stages->len; i++)
        if (g_array_index(plan->stages, PlanStage, i).n_layers !=
            g_array_index(plan->stages, PlanStage, 0).n_layers)
            return false;
    return true;
}

/* "Et*3|t*4|...|ttL": stages in the order of the chain, which is Megatron's. */
static void
add_layout(GString *text, const Plan *plan)
{
    g_string_append(text, "--pipeline-model-parallel-layout ");
    for (guint i = 0; i < plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);

        g_string_append(text, i > 0 ? "|" : "");
        g_string_append(text, stage->embedding ? "E" : "");
        if (stage->n_layers > 2)
            g_string_append_printf(text, "t*" INT, stage->n_layers);
        else
            g_string_append(text, stage->n_layers == 2 ? "tt" : stage->n_layers == 1 ? "t" : "");
        g_string_append(text, stage->head ? "L" : "");
    }
    g_string_append_c(text, '\n');
}

static void
add_split(GString *text, const Plan *plan)
{
    const PlanDegrees *d = &plan->degrees;

    add_int(text, "tensor-model-parallel-size", d->tp);
    add_int(text, "pipeline-model-parallel-size", d->pp);
    add_int(text, "context-parallel-size", d->cp);
    if (d->cp > 1)
        add_word(text, "cp-comm-type", plan_cp_comm_names[plan->conventions.cp_comm]);
    if (plan_rank_order_plain(d) == PLAN_RANK_ORDER_PP_BEFORE_DP)
        add_flag(text, "use-tp-pp-dp-mapping");
    if (plan->sequence_parallel)
        add_flag(text, "sequence-parallel");
    if (d->pp > 1 && !is_even(plan))
        add_layout(text, plan);
    else if (has_chunks(plan))
        add_int(text, "num-virtual-stages-per-pipeline-rank", d->vpp);
    if (has_chunks(plan) && plan->group > 0)
        add_int(text, "microbatch-group-size-per-virtual-pipeline-stage", plan->group);
    if (has_chunks(plan) && !plan->conventions.overlap_pp)
        add_flag(text, "no-overlap-p2p-communication");
    add_int(text, "micro-batch-size", plan->micro_batch);
    add_int(text, "global-batch-size", plan->global_batch);
}

static void
add_replicas(GString *text, const Plan *plan)
{
    static const char *const strategies[] = {NULL, NULL, "optim_grads", "optim_grads_params"};

    if (plan->zero_stage >= 1)
        add_flag(text, "use-distributed-optimizer");
    if (plan->zero_stage >= 2) {
        add_flag(text, "use-megatron-fsdp");
        add_word(text, "data-parallel-sharding-strategy", strategies[plan->zero_stage]);
        add_word(text, "ckpt-format", "fsdp_dtensor");
    }
    if (plan->conventions.overlap_dp) {
        add_flag(text, "overlap-grad-reduce");
        if (plan->zero_stage >= 1)
            add_flag(text, "overlap-param-gather");
    }
    if (plan->conventions.overlap_tp && plan->degrees.tp > 1)
        add_flag(text, "tp-comm-overlap");
    if (plan->offload == PLAN_OFFLOAD_CPU) {
        if (plan->zero_stage == 0)
            add_flag(text, "use-distributed-optimizer");
        add_flag(text, "optimizer-cpu-offload");
        add_word(text, "optimizer-offload-fraction", "1.0");
        add_flag(text, "use-precision-aware-optimizer");
    }
}

static void
add_numbers(GString *text, const Plan *plan)
{
    const char *recompute = plan_recompute_name(plan);

    if (plan->dtype == DTYPE_FP16)
        add_flag(text, "fp16");
    else if (plan->dtype != DTYPE_FP32)
        add_flag(text, "bf16");
    if (plan->dtype == DTYPE_FP8)
        add_word(text, "fp8-format", "hybrid");
    if (plan->dtype != DTYPE_FP32 && plan->conventions.grad_dtype == DTYPE_BF16)
        add_flag(text, "grad-reduce-in-bf16");
    add_word(text, "attention-backend",
             plan->conventions.attention == PLAN_ATTENTION_FLASH ? "flash" : "unfused");
    if (strcmp(recompute, "none") == 0)
        return;
    add_word(text, "recompute-granularity", recompute);
    if (strcmp(recompute, "full") == 0) {
        add_word(text, "recompute-method", "uniform");
        add_int(text, "recompute-num-layers", 1);
    }
}

static char *
write_flags(const ExportSource *source, size_t *n_bytes, GError **error)
{
    const Plan *plan = source->job->plan;
    GString *text = g_string_new(NULL);

    add_model(text, source->job->arch, plan);
    add_split(text, plan);
    add_replicas(text, plan);
    add_numbers(text, plan);
    *n_bytes = text->len;
    return g_string_free(text, FALSE);
}

/* Says what no flag can: the environment, and where Megatron runs otherwise than the plan. */
static char *
note(const ExportSource *source)
{
    const Plan *plan = source->job->plan;
    GString *text = g_string_new(NULL);

    g_string_append_printf(text, "Megatron-LM on " INT " devices", plan_n_devices(plan));
    if ((plan->degrees.tp > 1 || plan->degrees.cp > 1) && plan->zero_stage < 2)
        g_string_append(text, ", before Blackwell with CUDA_DEVICE_MAX_CONNECTIONS=1");
    if (plan->zero_stage >= 2)
        g_string_append(text, ", without CUDA_DEVICE_MAX_CONNECTIONS=1");
    if (plan->degrees.pp > 1 && !has_chunks(plan) && plan->conventions.overlap_pp)
        g_string_append(text, "; it waits for the messages of 1f1b, which this plan overlaps: "
                              "--framework megatron-core predicts that");
    return g_string_free(text, FALSE);
}

const ExportTarget export_megatron = {
    .name = "megatron",
    .summary = "flags of Megatron-LM's pretrain_gpt.py",
    .check = check,
    .write = write_flags,
    .note = note,
};
