/*
 * Megatron-LM's flags, one on a line: python pretrain_gpt.py $(degas export PLAN --to megatron) ...
 *
 * Names as of d98e8a64 (2026-08): megatron/training/arguments.py,
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
#include "cli/recipe/layout_string.h"
#include "schedule/rank_order.h"

static bool
has_chunks(const Plan *plan)
{
    return plan->degrees.vpp > 1;
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

/* Python's float() reads it, and Megatron's int() where it is whole. */
static void
add_real(GString *text, const char *name, double value)
{
    char number[G_ASCII_DTOSTR_BUF_SIZE];

    add_word(text, name, g_ascii_formatd(number, sizeof number, "%.15g", value));
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
    add_word(text, "moe-router-score-function",
             experts->router_scores == MODEL_ROUTER_SIGMOID ? "sigmoid" : "softmax");
    if (experts->router_scores == MODEL_ROUTER_SOFTMAX_ALL)
        add_flag(text, "moe-router-pre-softmax");
    if (experts->router_scale != 1)
        add_real(text, "moe-router-topk-scaling-factor", experts->router_scale);
    if (experts->n_shared > 0)
        add_int(text, "moe-shared-expert-intermediate-size",
                experts->n_shared * experts->ffn_hidden);
    if (experts->first_dense_layers > 0)
        g_string_append_printf(text, "--moe-layer-freq ([0]*" INT "+[1]*" INT ")\n",
                               experts->first_dense_layers,
                               arch->n_layers - experts->first_dense_layers);
    add_flag(text, "moe-grouped-gemm");
    if (plan->conventions.expert_capacity > 0.0) {
        add_real(text, "moe-expert-capacity-factor", plan->conventions.expert_capacity);
        add_flag(text, "moe-pad-expert-input-to-capacity");
    }
    if (plan->conventions.dispatcher == PLAN_DISPATCHER_ALLTOALL) {
        add_word(text, "moe-token-dispatcher-type", "alltoall");
    } else {
        add_word(text, "moe-token-dispatcher-type", "flex");
        add_word(text, "moe-flex-dispatcher-backend",
                 plan_dispatcher_names[plan->conventions.dispatcher]);
    }
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
    add_int(text, "make-vocab-size-divisible-by", MAX(1, plan_vocab_multiple(&plan->conventions)));
    add_real(text, "norm-epsilon", arch->norm_epsilon);
    if (!arch->tied_embeddings)
        add_flag(text, "untie-embeddings-and-output-weights");
    if (arch->family == MODEL_FAMILY_LLAMA) {
        add_flag(text, "swiglu");
        add_word(text, "normalization", "RMSNorm");
        add_flag(text, "disable-bias-linear");
        add_word(text, "position-embedding-type", "rope");
        add_real(text, "rotary-base", arch->rope_base);
        if (arch->qkv_bias)
            add_flag(text, "add-qkv-bias");
    }
    /* Norms of the latent vectors of MLA hang on the same flag. */
    if (arch->qk_norm || arch->mla.kv_lora_rank > 0)
        add_flag(text, "qk-layernorm");
    if (!plan->conventions.dropout) {
        add_word(text, "attention-dropout", "0");
        add_word(text, "hidden-dropout", "0");
    }
    if (arch->mtp.n > 0)
        add_int(text, "mtp-num-layers", arch->mtp.n);
    if (arch->mtp.n > 0 && arch->mtp.loss_factor > 0.0)
        add_real(text, "mtp-loss-scaling-factor", arch->mtp.loss_factor);
    add_experts(text, arch, plan);
}

/* Whether all stages have as many layers, as Megatron divides them: MTP modules are on the last besides. */
static bool
is_even(const Plan *plan, const ModelArch *arch)
{
    const int64_t n = arch->n_layers / plan->stages->len;

    for (guint i = 0; i < plan->stages->len; i++) {
        const PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);
        if (stage->n_layers != n + (i + 1 == plan->stages->len ? arch->mtp.n : 0))
            return false;
    }
    return true;
}

/* Stages in the order of the chain, which is Megatron's. */
static void
add_layout(GString *text, const Plan *plan, const ModelArch *arch)
{
    g_autofree char *stages = layout_string_write(plan, arch->n_layers, true);

    add_word(text, "pipeline-model-parallel-layout", stages);
}

static void
add_split(GString *text, const Plan *plan, const ModelArch *arch)
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
    if (d->pp > 1 && !is_even(plan, arch))
        add_layout(text, plan, arch);
    else if (has_chunks(plan))
        add_int(text, "num-virtual-stages-per-pipeline-rank", d->vpp);
    if (has_chunks(plan) && plan->group > 0)
        add_int(text, "microbatch-group-size-per-virtual-pipeline-stage", plan->group);
    if (has_chunks(plan) && !plan->conventions.overlap_pp)
        add_flag(text, "no-overlap-p2p-communication");
    add_int(text, "micro-batch-size", plan->micro_batch);
    add_int(text, "global-batch-size", plan->global_batch);
}

/* With --use-distributed-optimizer Muon's is the layer-wise one. */
static void
add_optimizer(GString *text, const Plan *plan)
{
    if (plan->conventions.optimizer != PLAN_OPTIMIZER_MUON)
        return;
    add_word(text, "optimizer", "muon");
    add_word(text, "muon-tp-mode", plan_muon_tp_names[plan->conventions.muon_tp]);
}

static void
add_replicas(GString *text, const Plan *plan)
{
    static const char *const strategies[] = {NULL, NULL, "optim_grads", "optim_grads_params"};

    if (plan->zero_stage >= 1)
        add_flag(text, "use-distributed-optimizer");
    if (plan->conventions.optimizer_instances > 1)
        add_int(text, "num-distributed-optimizer-instances", plan->conventions.optimizer_instances);
    if (plan->conventions.deferred_gradients > 0) {
        add_flag(text, "defer-embedding-wgrad-compute");
        add_int(text, "wgrad-deferral-limit", plan->conventions.deferred_gradients);
    }
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
    if (plan->conventions.overlap_ep && plan->degrees.ep > 1)
        add_flag(text, "overlap-moe-expert-parallel-comm");
    if (plan->conventions.cuda_graphs == PLAN_GRAPHS_ITERATION) {
        add_word(text, "cuda-graph-impl", "local");
        add_word(text, "cuda-graph-scope", "full_iteration");
    } else if (plan->conventions.cuda_graphs != PLAN_GRAPHS_NONE) {
        static const char *const scopes[] = {"", "moe_router moe_preprocess",
                                             "attn moe_router moe_preprocess", "full", ""};

        add_word(text, "cuda-graph-impl", "transformer_engine");
        if (plan->conventions.cuda_graphs != PLAN_GRAPHS_LAYER)
            g_string_append_printf(text, "--cuda-graph-scope %s\n",
                                   scopes[plan->conventions.cuda_graphs]);
    }
    add_optimizer(text, plan);
    if (plan->offload == PLAN_OFFLOAD_CPU) {
        add_flag(text, "optimizer-cpu-offload");
        add_word(text, "optimizer-offload-fraction", "1.0");
        add_flag(text, "use-precision-aware-optimizer");
    }
}

static void
add_numbers(GString *text, const Plan *plan)
{
    static const char *const recipes[PLAN_QUANTISE_N] = {[PLAN_QUANTISE_TENSOR] = "tensorwise",
                                                         [PLAN_QUANTISE_DELAYED] = "delayed",
                                                         [PLAN_QUANTISE_BLOCK] = "mxfp8"};
    const char *recompute = plan_recompute_name(plan);

    if (plan->dtype == DTYPE_FP16)
        add_flag(text, "fp16");
    else if (plan->dtype != DTYPE_FP32)
        add_flag(text, "bf16");
    if (plan->dtype == DTYPE_FP8)
        add_word(text, "fp8-format", "hybrid");
    if (plan->dtype == DTYPE_FP8 && recipes[plan->conventions.quantise] != NULL)
        add_word(text, "fp8-recipe", recipes[plan->conventions.quantise]);
    if (plan->dtype == DTYPE_NVFP4)
        add_word(text, "fp4-format", "e2m1");
    /* The default of bf16, and not of fp16. */
    if (plan->dtype == DTYPE_FP16 && plan->conventions.grad_dtype == DTYPE_FP32)
        add_flag(text, "accumulate-allreduce-grads-in-fp32");
    if (plan->dtype != DTYPE_FP32 && plan->conventions.grad_dtype == DTYPE_BF16)
        add_flag(text, "grad-reduce-in-bf16");
    add_word(text, "attention-backend",
             plan_attention_is_flash(plan->conventions.attention) ? "flash" : "unfused");
    if (strcmp(recompute, "none") == 0)
        return;
    add_word(text, "recompute-granularity", recompute);
    if (strcmp(recompute, "full") == 0) {
        add_word(text, "recompute-method",
                 plan_recompute_method_names[plan->conventions.recompute_method]);
        add_int(text, "recompute-num-layers", MAX(1, plan->conventions.recompute_layers));
    } else if (plan->conventions.recompute_modules != 0) {
        g_autofree char *modules = plan_modules_text(plan->conventions.recompute_modules);

        g_strdelimit(modules, ",", ' ');
        g_string_append_printf(text, "--recompute-modules %s\n", modules);
    }
}

/* Megatron-Bridge has models that flags do not say. */
static void
check(const ExportSource *source, GArray *breaches)
{
    const PlanFrameworkRules *bridge = plan_framework(PLAN_FRAMEWORK_MEGATRON_BRIDGE)->rules;
    const ModelArch *arch = source->job->arch;

    if (model_arch_unusual(arch) != NULL && plan_rules_model(bridge, arch) != NULL)
        export_breaks(breaches, NULL, "Megatron-Bridge has the model: --to megatron-bridge");
}

static char *
write_flags(const ExportSource *source, size_t *n_bytes, GError **error)
{
    const Plan *plan = source->job->plan;
    GString *text = g_string_new(NULL);

    add_model(text, source->job->arch, plan);
    add_split(text, plan, source->job->arch);
    add_replicas(text, plan);
    add_numbers(text, plan);
    *n_bytes = text->len;
    return g_string_free(text, FALSE);
}

/* Whether Megatron wants CUDA_DEVICE_MAX_CONNECTIONS=1 before Blackwell. */
static bool
wants_one_connection(const Plan *plan)
{
    return (plan->degrees.tp > 1 || plan->degrees.cp > 1) && plan->zero_stage < 2;
}

/* Says what no flag can: the environment, and where Megatron runs otherwise than the plan. */
static char *
note(const ExportSource *source)
{
    const Plan *plan = source->job->plan;
    GString *text = g_string_new(NULL);

    g_string_append_printf(text, "Megatron-LM on " INT " devices", plan_n_devices(plan));
    if (wants_one_connection(plan))
        g_string_append(text, ", before Blackwell with CUDA_DEVICE_MAX_CONNECTIONS=1");
    if (plan->zero_stage >= 2)
        g_string_append(text, ", without CUDA_DEVICE_MAX_CONNECTIONS=1");
    if (plan->degrees.pp > 1 && !has_chunks(plan) && plan->conventions.overlap_pp)
        g_string_append(text, "; it waits for the messages of 1f1b, which this plan overlaps: "
                              "--framework megatron-core predicts that");
    return g_string_free(text, FALSE);
}

static void
bundle(const ExportSource *source, ExportBundle *bundle)
{
    bundle->config = "megatron.args";
    bundle->prepare = "set -f # options have * and [ ]\n";
    bundle->program =
        "python3 -u \"$MEGATRON/pretrain_gpt.py\" $(cat megatron.args) "
        "--exit-signal-handler \\\n"
        "    --save \"$CHECKPOINT\" --load \"$CHECKPOINT\" --save-interval \"$EVERY\" "
        "$DATA_ARGS $TRAIN_ARGS";
    bundle->on_end = "Megatron-LM ends after its step with a checkpoint "
                     "(--exit-signal-handler).";
    bundle->yours = "Data, tokenizer and learning rate are yours: `DATA_ARGS` and `TRAIN_ARGS`.";
    bundle->time_is = "the log has `elapsed time per iteration (ms)` for every step, and with "
                      "--log-throughput the TFLOP/s of a GPU.";
    if (wants_one_connection(source->job->plan))
        export_bundle_set(bundle, "CUDA_DEVICE_MAX_CONNECTIONS", "1",
                          "Before Blackwell Megatron-LM demands it with tp or cp: kernels start in "
                          "the order in which they were queued, so that messages overlap.");
    else if (source->job->plan->zero_stage >= 2)
        export_bundle_set(bundle, "CUDA_DEVICE_MAX_CONNECTIONS", NULL,
                          "Megatron-FSDP refuses 1: gathers have to pass computation.");
    export_bundle_set(bundle, "OMP_NUM_THREADS", "1",
                      "As torchrun has it: else every rank takes all cores of the node.");
    export_bundle_set(bundle, "MEGATRON", ".", "Where Megatron-LM is checked out.");
    export_bundle_set(bundle, "CHECKPOINT", "checkpoint",
                      "A folder that all nodes see; the run goes on from what is in it.");
    export_bundle_set(bundle, "EVERY", "500",
                      "Steps between checkpoints: what is lost when a node dies.");
    export_bundle_set(
        bundle, "DATA_ARGS", "--mock-data --tokenizer-type NullTokenizer --num-workers 0",
        "Tokens without a meaning take as long as others.  Slurm signals every process, "
        "and a loader of data that ends takes Megatron-LM with it: hence none.");
    export_bundle_set(bundle, "TRAIN_ARGS",
                      "--train-iters 50 --lr 1e-4 --eval-iters 0 --log-interval 1 --log-throughput",
                      "As many steps as a comparison needs.");
}

const ExportTarget export_megatron = {
    .name = "megatron",
    .summary = "flags of Megatron-LM's pretrain_gpt.py",
    .framework = PLAN_FRAMEWORK_MEGATRON_CORE,
    .check = check,
    .write = write_flags,
    .note = note,
    .bundle = bundle,
};
