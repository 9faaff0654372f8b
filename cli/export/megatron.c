/*
 * Megatron-LM's flags, one on a line: python pretrain_gpt.py $(degas export PLAN --to megatron) ...; those of
 * hybrids are for pretrain_hybrid.py.  megatron_model.c says the model.
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
#include "cli/export/megatron_model.h"
#include "cli/recipe/layout_string.h"
#include "planner/rules/layer_flags.h"
#include "schedule/rank_order.h"

static bool
has_chunks(const Plan *plan)
{
    return plan->degrees.vpp > 1;
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

    megatron_word(text, "pipeline-model-parallel-layout", stages);
}

static void
add_stages(GString *text, const Plan *plan, const ModelArch *arch)
{
    if (plan->degrees.pp > 1 && !is_even(plan, arch))
        add_layout(text, plan, arch);
    else if (has_chunks(plan))
        megatron_int(text, "num-virtual-stages-per-pipeline-rank", plan->degrees.vpp);
}

static void
add_split(GString *text, const Plan *plan, const ModelArch *arch)
{
    const PlanDegrees *d = &plan->degrees;

    megatron_int(text, "tensor-model-parallel-size", d->tp);
    megatron_int(text, "pipeline-model-parallel-size", d->pp);
    megatron_int(text, "context-parallel-size", d->cp);
    if (d->cp > 1)
        megatron_word(text, "cp-comm-type", plan_cp_comm_names[plan->conventions.cp_comm]);
    if (plan_rank_order_plain(d) == PLAN_RANK_ORDER_PP_BEFORE_DP)
        megatron_flag(text, "use-tp-pp-dp-mapping");
    if (plan->sequence_parallel)
        megatron_flag(text, "sequence-parallel");
    if (!plan_layers_are_hybrid(arch)) /* whose pattern says the stages */
        add_stages(text, plan, arch);
    if (has_chunks(plan) && plan->group > 0)
        megatron_int(text, "microbatch-group-size-per-virtual-pipeline-stage", plan->group);
    if (has_chunks(plan) && !plan->conventions.overlap_pp)
        megatron_flag(text, "no-overlap-p2p-communication");
    megatron_int(text, "micro-batch-size", plan->micro_batch);
    megatron_int(text, "global-batch-size", plan->global_batch);
}

/* With --use-distributed-optimizer Muon's is the layer-wise one. */
static void
add_optimizer(GString *text, const Plan *plan)
{
    if (plan->conventions.optimizer != PLAN_OPTIMIZER_MUON)
        return;
    megatron_word(text, "optimizer", "muon");
    megatron_word(text, "muon-tp-mode", plan_muon_tp_names[plan->conventions.muon_tp]);
}

static void
add_replicas(GString *text, const Plan *plan)
{
    static const char *const strategies[] = {NULL, NULL, "optim_grads", "optim_grads_params"};

    if (plan->zero_stage >= 1)
        megatron_flag(text, "use-distributed-optimizer");
    if (plan->conventions.optimizer_instances > 1)
        megatron_int(text, "num-distributed-optimizer-instances",
                     plan->conventions.optimizer_instances);
    if (plan->conventions.deferred_gradients > 0) {
        megatron_flag(text, "defer-embedding-wgrad-compute");
        megatron_int(text, "wgrad-deferral-limit", plan->conventions.deferred_gradients);
    }
    if (plan->zero_stage >= 2) {
        megatron_flag(text, "use-megatron-fsdp");
        megatron_word(text, "data-parallel-sharding-strategy", strategies[plan->zero_stage]);
        megatron_word(text, "ckpt-format", "fsdp_dtensor");
    }
    if (plan->conventions.overlap_dp) {
        megatron_flag(text, "overlap-grad-reduce");
        if (plan->zero_stage >= 1)
            megatron_flag(text, "overlap-param-gather");
    }
    if (plan->conventions.overlap_tp && plan->degrees.tp > 1)
        megatron_flag(text, "tp-comm-overlap");
    if (plan->conventions.overlap_ep && plan->degrees.ep > 1)
        megatron_flag(text, "overlap-moe-expert-parallel-comm");
    if (plan->conventions.cuda_graphs == PLAN_GRAPHS_ITERATION) {
        megatron_word(text, "cuda-graph-impl", "local");
        megatron_word(text, "cuda-graph-scope", "full_iteration");
    } else if (plan->conventions.cuda_graphs != PLAN_GRAPHS_NONE) {
        static const char *const scopes[] = {"", "moe_router moe_preprocess",
                                             "attn moe_router moe_preprocess", "full", ""};

        megatron_word(text, "cuda-graph-impl", "transformer_engine");
        if (plan->conventions.cuda_graphs != PLAN_GRAPHS_LAYER)
            g_string_append_printf(text, "--cuda-graph-scope %s\n",
                                   scopes[plan->conventions.cuda_graphs]);
    }
    add_optimizer(text, plan);
    if (plan->offload == PLAN_OFFLOAD_CPU) {
        megatron_flag(text, "optimizer-cpu-offload");
        megatron_word(text, "optimizer-offload-fraction", "1.0");
        megatron_flag(text, "use-precision-aware-optimizer");
    }
}

static bool
has_sinks(const ModelArch *arch)
{
    bool has = false;

    for (int32_t i = 0; i < model_n_kinds(arch); i++)
        has |= model_kind_arch(arch, i).sinks;
    return has;
}

static void
add_numbers(GString *text, const Plan *plan, const ModelArch *arch)
{
    static const char *const recipes[PLAN_QUANTISE_N] = {[PLAN_QUANTISE_TENSOR] = "tensorwise",
                                                         [PLAN_QUANTISE_DELAYED] = "delayed",
                                                         [PLAN_QUANTISE_BLOCK] = "mxfp8"};
    const char *recompute = plan_recompute_name(plan);

    if (plan->dtype == DTYPE_FP16)
        megatron_flag(text, "fp16");
    else if (plan->dtype != DTYPE_FP32)
        megatron_flag(text, "bf16");
    if (plan->dtype == DTYPE_FP8)
        megatron_word(text, "fp8-format", "hybrid");
    if (plan->dtype == DTYPE_FP8 && recipes[plan->conventions.quantise] != NULL)
        megatron_word(text, "fp8-recipe", recipes[plan->conventions.quantise]);
    if (plan->dtype == DTYPE_NVFP4)
        megatron_word(text, "fp4-format", "e2m1");
    /* The default of bf16, and not of fp16. */
    if (plan->dtype == DTYPE_FP16 && plan->conventions.grad_dtype == DTYPE_FP32)
        megatron_flag(text, "accumulate-allreduce-grads-in-fp32");
    if (plan->dtype != DTYPE_FP32 && plan->conventions.grad_dtype == DTYPE_BF16)
        megatron_flag(text, "grad-reduce-in-bf16");
    /* FlashAttention has no sinks, cuDNN's kernels have. */
    megatron_word(text, "attention-backend",
                  !plan_attention_is_flash(plan->conventions.attention) ? "unfused"
                  : has_sinks(arch)                                     ? "fused"
                                                                        : "flash");
    if (strcmp(recompute, "none") == 0)
        return;
    megatron_word(text, "recompute-granularity", recompute);
    if (strcmp(recompute, "full") == 0) {
        megatron_word(text, "recompute-method",
                      plan_recompute_method_names[plan->conventions.recompute_method]);
        megatron_int(text, "recompute-num-layers", MAX(1, plan->conventions.recompute_layers));
    } else if (plan->conventions.recompute_modules != 0) {
        g_autofree char *modules = plan_modules_text(plan->conventions.recompute_modules);

        g_strdelimit(modules, ",", ' ');
        g_string_append_printf(text, "--recompute-modules %s\n", modules);
    }
}

static char *
write_flags(const ExportSource *source, size_t *n_bytes, GError **error)
{
    const Plan *plan = source->job->plan;
    GString *text = g_string_new(NULL);

    megatron_model(text, source->job->arch, plan);
    add_split(text, plan, source->job->arch);
    add_replicas(text, plan);
    add_numbers(text, plan, source->job->arch);
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

    g_string_append_printf(text, "Megatron-LM%s on " INT " devices",
                           plan_layers_are_hybrid(source->job->arch) ? "'s pretrain_hybrid.py" : "",
                           plan_n_devices(plan));
    if (wants_one_connection(plan))
        g_string_append(text, ", before Blackwell with CUDA_DEVICE_MAX_CONNECTIONS=1");
    if (plan->zero_stage >= 2)
        g_string_append(text, ", without CUDA_DEVICE_MAX_CONNECTIONS=1");
    if (plan->degrees.pp > 1 && !has_chunks(plan) && plan->conventions.overlap_pp)
        g_string_append(text, "; it waits for the messages of 1f1b, which this plan overlaps: "
                              "--framework megatron-core predicts that");
    return g_string_free(text, FALSE);
}

#define PROGRAM(kind)                                                                              \
    "python3 -u \"$MEGATRON/pretrain_" kind ".py\" $(cat megatron.args) "                          \
    "--exit-signal-handler \\\n"                                                                   \
    "    --save \"$CHECKPOINT\" --load \"$CHECKPOINT\" --save-interval \"$EVERY\" "                \
    "$DATA_ARGS $TRAIN_ARGS"

static void
bundle(const ExportSource *source, ExportBundle *bundle)
{
    bundle->config = "megatron.args";
    bundle->prepare = "set -f # options have * and [ ]\n";
    bundle->program =
        plan_layers_are_hybrid(source->job->arch) ? PROGRAM("hybrid") : PROGRAM("gpt");
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
    .summary = "flags of Megatron-LM's pretrain_gpt.py, or pretrain_hybrid.py",
    .framework = PLAN_FRAMEWORK_MEGATRON_CORE,
    .write = write_flags,
    .note = note,
    .bundle = bundle,
};
