/*
 * Overrides of a recipe of Megatron-Bridge, one on a line:
 *
 *     python run_recipe.py $(degas export PLAN --to megatron-bridge) ...
 *
 * Names as of 067f987 (2026-08): scripts/training/run_recipe.py, training/config.py, comm_overlap.py,
 * mixed_precision.py, models/gpt_provider.py.  They are Megatron-LM's flags (megatron.c) in another
 * dialect: a table says where each of them is.  The recipe says the model, and what it sets besides is set
 * back to what the plan says.  Values are as Hydra's grammar has them without quotes.
 *
 * A model without a recipe is written without one: its provider is made of Hugging Face's configuration.
 */
#include <string.h>

#include "base/text.h"
#include "cli/export/export.h"
#include "cli/recipe/layout_string.h"
#include "models/lora.h"

#define OVERLAP                                                                                    \
    "comm_overlap" /* the recipe's object, or the model's own settings where it has none */

/* A flag of Megatron-LM in this dialect.  Flags without a row say the model. */
static const struct {
    const char *flag, *section;
    const char *key;       /* (nullable) NULL: the flag's words */
    const char *otherwise; /* (nullable) where the flag is not given; NULL: nothing */
} overrides[] = {
    {"seq-length", "dataset", NULL, NULL},
    {"micro-batch-size", "train", NULL, NULL},
    {"global-batch-size", "train", NULL, NULL},
    {"tensor-model-parallel-size", "model", NULL, NULL},
    {"pipeline-model-parallel-size", "model", NULL, NULL},
    {"decoder-first-pipeline-num-layers", "model", "num_layers_in_first_pipeline_stage", "null"},
    {"decoder-last-pipeline-num-layers", "model", "num_layers_in_last_pipeline_stage", "null"},
    {"account-for-embedding-in-pipeline-split", "model", NULL, "false"},
    {"account-for-loss-in-pipeline-split", "model", NULL, "false"},
    {"microbatch-group-size-per-virtual-pipeline-stage", "model",
     "microbatch_group_size_per_vp_stage", "null"},
    {"context-parallel-size", "model", NULL, NULL},
    {"cp-comm-type", "model", NULL, "p2p"},
    {"sequence-parallel", "model", NULL, "false"},
    {"use-tp-pp-dp-mapping", "dist", NULL, "false"},
    {"expert-model-parallel-size", "model", NULL, NULL},
    {"expert-tensor-parallel-size", "model", NULL, NULL},
    {"moe-token-dispatcher-type", "model", NULL, NULL},
    {"moe-flex-dispatcher-backend", "model", NULL, NULL},
    {"moe-expert-capacity-factor", "model", NULL, NULL},
    {"moe-pad-expert-input-to-capacity", "model", NULL, NULL},
    {"mtp-num-layers", "model", NULL, "null"},
    {"mtp-loss-scaling-factor", "model", NULL, NULL},
    {"make-vocab-size-divisible-by", "model", NULL, NULL},
    {"attention-dropout", "model", NULL, "0.1"},
    {"hidden-dropout", "model", NULL, "0.1"},
    {"optimizer", "optimizer", NULL, NULL},
    {"muon-tp-mode", "optimizer", NULL, NULL},
    {"optimizer-cpu-offload", "optimizer", NULL, "false"},
    {"optimizer-offload-fraction", "optimizer", NULL, NULL},
    {"use-precision-aware-optimizer", "optimizer", NULL, NULL},
    {"use-distributed-optimizer", "ddp", NULL, "false"},
    {"num-distributed-optimizer-instances", "ddp", NULL, "1"},
    {"use-megatron-fsdp", "ddp", NULL, "false"},
    {"data-parallel-sharding-strategy", "ddp", NULL, NULL},
    {"ckpt-format", "checkpoint", NULL, NULL},
    {"overlap-grad-reduce", "ddp", NULL, "false"},
    {"overlap-param-gather", "ddp", NULL, "false"},
    {"tp-comm-overlap", OVERLAP, NULL, "false"},
    {"overlap-moe-expert-parallel-comm", OVERLAP, NULL, "false"},
    {"defer-embedding-wgrad-compute", OVERLAP, NULL, "false"},
    {"wgrad-deferral-limit", OVERLAP, NULL, NULL},
    {"cuda-graph-impl", "model", NULL, "none"},
    {"cuda-graph-scope", "model", NULL, NULL},
    {"recompute-granularity", "model", NULL, "null"},
    {"recompute-method", "model", NULL, "null"},
    {"recompute-num-layers", "model", NULL, "null"},
    {"recompute-modules", "model", NULL, "null"},
};

static const PlanFrameworkModel *
model_of(const ModelArch *arch)
{
    return plan_rules_model(plan_framework(PLAN_FRAMEWORK_MEGATRON_BRIDGE)->rules, arch);
}

static void
add(GString *text, const char *section, const char *key, const char *value)
{
    g_string_append_printf(text, "%s.%s=%s\n", section, key, value);
}

/* (owned) What the flag @name is given in @lines: "true" where it has no value, a list in brackets where it
 * has several; NULL: it is not there. */
static char *
value_of(char **lines, const char *name)
{
    for (size_t i = 0; lines[i] != NULL; i++) {
        const char *word = lines[i] + strspn(lines[i], "-");
        const size_t n = strcspn(word, " ");

        if (strlen(name) != n || strncmp(word, name, n) != 0)
            continue;
        if (word[n] == 0)
            return g_strdup("true");
        if (strchr(word + n + 1, ' ') == NULL && strcmp(name, "recompute-modules") != 0)
            return g_strdup(word + n + 1);
        return g_strdelimit(g_strdup_printf("[%s]", word + n + 1), " ", ',');
    }
    return NULL;
}

/* What mixed_precision is called; NULL: nothing there is so. */
static const char *
precision(const Plan *plan)
{
    static const char *const fp8[PLAN_QUANTISE_N] = {
        [PLAN_QUANTISE_TENSOR] = "bf16_with_fp8_current_scaling_mixed",
        [PLAN_QUANTISE_DELAYED] = "bf16_with_fp8_delayed_scaling_mixed",
        [PLAN_QUANTISE_BLOCK] = "bf16_with_mxfp8_mixed",
    };

    switch (plan->dtype) {
    case DTYPE_BF16:
        return "bf16_mixed";
    case DTYPE_FP16:
        return "fp16_mixed";
    case DTYPE_FP8:
        return fp8[plan->conventions.quantise];
    case DTYPE_NVFP4:
        return "bf16_with_nvfp4_mixed";
    default:
        return NULL;
    }
}

/* Chunks and which layers they have; those of hybrids (Mamba) stand between bars of their pattern. */
static void
add_stages(GString *text, const Plan *plan, const ModelArch *arch, char **lines,
           const char *overlap)
{
    const PlanDegrees *d = &plan->degrees;
    g_autofree char *chunks = g_strdup_printf(INT, d->vpp);
    g_autofree char *uneven = value_of(lines, "pipeline-model-parallel-layout");
    g_autofree char *hybrid = layout_string_write_hybrid(plan, arch);
    g_autofree char *stages = uneven == NULL || hybrid != NULL
                                  ? g_strdup("null")
                                  : layout_string_write(plan, arch->n_layers, false);

    add(text, "model", "virtual_pipeline_model_parallel_size", d->vpp > 1 ? chunks : "null");
    add(text, "model", "pipeline_model_parallel_layout", stages);
    if (hybrid != NULL && d->pp > 1)
        add(text, "model", "hybrid_layer_pattern", hybrid);
    if (d->vpp == 1)
        return;
    add(text, overlap, "overlap_p2p_comm", plan->conventions.overlap_pp ? "true" : "false");
    add(text, overlap, "batch_p2p_comm", plan->conventions.overlap_pp ? "false" : "true");
}

static char *
write_overrides(const ExportSource *source, size_t *n_bytes, GError **error)
{
    const Plan *plan = source->job->plan;
    const ModelArch *arch = source->job->arch;
    const PlanFrameworkModel *model = model_of(arch);
    const char *overlap = model == NULL || model->overlaps ? OVERLAP : "model";
    g_autofree char *flags = export_megatron.write(source, n_bytes, error);
    g_auto(GStrv) lines = g_strsplit(flags, "\n", -1);
    GString *text = g_string_new(NULL);

    if (model != NULL && model->flavour != NULL && arch->lora.rank == 0)
        g_string_append_printf(text, "--recipe %s\n", model->flavour);
    /* Of each model the recipe with adapters is called by its stem. */
    if (model != NULL && model->flavour != NULL && arch->lora.rank > 0)
        g_string_append_printf(text, "--model %.*s\n--mode lora\n",
                               (int)(strstr(model->flavour, "_pretrain_") - model->flavour),
                               model->flavour);
    for (size_t i = 0; i < G_N_ELEMENTS(overrides); i++) {
        const char *section =
            strcmp(overrides[i].section, OVERLAP) == 0 ? overlap : overrides[i].section;
        g_autofree char *value = value_of(lines, overrides[i].flag);
        g_autofree char *words = g_strdelimit(g_strdup(overrides[i].flag), "-", '_');

        if (value != NULL || overrides[i].otherwise != NULL)
            add(text, section, overrides[i].key != NULL ? overrides[i].key : words,
                value != NULL ? value : overrides[i].otherwise);
    }
    add_stages(text, plan, arch, lines, overlap);
    if (arch->lora.rank > 0) {
        g_autofree char *rank = g_strdup_printf(INT, arch->lora.rank);
        g_autofree char *modules = model_lora_write_modules(arch->lora.modules);
        g_autofree char *list = g_strdup_printf("[%s]", modules);

        add(text, "peft", "dim", rank);
        add(text, "peft", "target_modules", list);
        add(text, "peft", "dropout", "0.0");
    }
    add(text, "model", "should_pad_vocab", plan->conventions.pads_vocab ? "true" : "false");
    add(text, "model", "deterministic_mode", plan->conventions.deterministic ? "true" : "false");
    add(text, "model", "cross_entropy_loss_fusion",
        plan->conventions.loss != PLAN_LOSS_PLAIN ? "true" : "false");
    add(text, "model", "cross_entropy_fusion_impl",
        plan->conventions.loss == PLAN_LOSS_FUSED ? "te" : "native");
    if (precision(plan) != NULL)
        g_string_append_printf(text, "mixed_precision=%s\n", precision(plan));
    *n_bytes = text->len;
    return g_string_free(text, FALSE);
}

static void
check(const ExportSource *source, GArray *breaches)
{
    const Plan *plan = source->job->plan;

    if (model_of(source->job->arch) == NULL)
        export_breaks(breaches, NULL,
                      "it has no recipe of %s; --to megatron says the model by flags",
                      source->job->arch->name);
    const uint32_t canonical = MODEL_LORA_ALL_LINEAR & ~MODEL_LORA_USUAL;
    if ((source->job->arch->lora.modules & canonical) != 0)
        export_breaks(breaches, "--lora-modules linear_qkv,linear_proj,linear_fc1,linear_fc2",
                      "its LoRA is beside joined matrices; those apart are another class "
                      "(CanonicalLoRA)");
    if (plan->dtype == DTYPE_FP8 && precision(plan) == NULL)
        export_breaks(breaches, "--quantise tensor",
                      "mixed_precision says which numbers share a scale: tensor, delayed or block");
    else if (precision(plan) == NULL)
        export_breaks(breaches, "--dtype bf16", "mixed_precision is of 16 bits or fewer, not %s",
                      dtype_names[plan->dtype]);
    if (plan->conventions.grad_dtype != DTYPE_FP32)
        export_breaks(breaches, "--grad-dtype fp32",
                      "the words of mixed_precision sum gradients in fp32");
    if (!plan_attention_is_flash(plan->conventions.attention))
        export_breaks(breaches, "--attention flash",
                      "attention is what Transformer Engine chooses, not %s",
                      plan_attention_names[plan->conventions.attention]);
    if (!plan->conventions.pads_vocab)
        export_breaks(breaches, "--pad-vocab on", "vocabularies are padded");
}

static char *
note(const ExportSource *source)
{
    const Plan *plan = source->job->plan;
    const PlanFrameworkModel *model = model_of(source->job->arch);
    const bool has_recipe = model->flavour != NULL, adapts = source->job->arch->lora.rank > 0;
    const bool waits =
        plan->degrees.pp > 1 && plan->degrees.vpp == 1 && plan->conventions.overlap_pp;

    return g_strdup_printf(
        "Megatron-Bridge's %s on " INT " devices, of %s of Hugging Face%s%s",
        has_recipe ? "run_recipe.py" : "overrides", plan_n_devices(plan), model->name,
        !has_recipe ? ", which no recipe has: AutoBridge makes the model of a recipe of your own"
        : adapts    ? ", of its recipe with adapters (--mode lora)"
                    : "",
        waits ? "; it waits for the messages of 1f1b, which this plan overlaps" : "");
}

static void
bundle(const ExportSource *source, ExportBundle *bundle)
{
    bundle->config = "overrides.args";
    bundle->prepare = "set -f # overrides have * and [ ]\n";
    bundle->program = "python3 -u \"$MEGATRON_BRIDGE/scripts/training/run_recipe.py\" \\\n"
                      "    $RECIPE_ARGS $(cat overrides.args) checkpoint.save=\"$CHECKPOINT\" \\\n"
                      "    checkpoint.load=\"$CHECKPOINT\" checkpoint.save_interval=\"$EVERY\" "
                      "$TRAIN_ARGS";
    bundle->on_end = "Megatron-Bridge ends at once, and starts again from its last checkpoint.";
    bundle->yours =
        "Data and learning rate are yours: `RECIPE_ARGS` and `TRAIN_ARGS`, and a recipe "
        "where `overrides.args` names none.";
    bundle->time_is = "the log has `elapsed time per iteration (ms)` for every step.";
    export_bundle_set(bundle, "OMP_NUM_THREADS", "1",
                      "As torchrun has it: else every rank takes all cores of the node.");
    export_bundle_set(bundle, "MEGATRON_BRIDGE", ".", "Where Megatron-Bridge is checked out.");
    export_bundle_set(bundle, "CHECKPOINT", "checkpoint",
                      "A folder that all nodes see; the run goes on from what is in it.");
    export_bundle_set(bundle, "EVERY", "500",
                      "Steps between checkpoints: what is lost when a node dies.");
    export_bundle_set(bundle, "RECIPE_ARGS",
                      source->job->arch->lora.rank > 0 ? "--dataset mock"
                                                       : "--mode pretrain --dataset mock",
                      "Tokens without a meaning take as long as others.");
    export_bundle_set(bundle, "TRAIN_ARGS", "train.train_iters=50 logger.log_interval=1",
                      "As many steps as a comparison needs.");
}

const ExportTarget export_megatron_bridge = {
    .name = "megatron-bridge",
    .summary = "overrides of a recipe of Megatron-Bridge",
    .framework = PLAN_FRAMEWORK_MEGATRON_BRIDGE,
    .check = check,
    .write = write_overrides,
    .note = note,
    .bundle = bundle,
};
