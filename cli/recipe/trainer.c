/*
 * Arguments of Hugging Face's Trainer, and of programs that took them over, and Accelerate's YAML:
 * FSDP or DDP, or DeepSpeed with the JSON that they name.
 */
#include <string.h>

#include "base/file.h"
#include "base/units.h"
#include "cli/recipe/recipe.h"
#include "cli/recipe/syntax.h"

static const struct {
    const char *key, *usual, *what;
} unmodelled[] = {
    {"lora_dim", "0", "all parameters are trained, not adapters"},
    {"quantization_bit", NULL, "weights are in the model's format"},
    {"load_in_4bit", NULL, "weights are in the model's format"},
    {"load_in_8bit", NULL, "weights are in the model's format"},
    {"torch_compile", NULL, "kernels are PyTorch's (--kernels fused)"},
    {"use_liger_kernel", NULL, "kernels are PyTorch's (--kernels fused)"},
    {"enable_liger_kernel", NULL, "kernels are PyTorch's (--kernels fused)"},
    {"packing", NULL, "sequences have their full length"},
    {"use_galore", NULL, "the optimizer is Adam"},
};

/* (borrowed) the first of @keys (NULL-terminated) that is set; NULL: none. */
static const char *
first_of(Recipe *recipe, const char *const *keys)
{
    for (size_t i = 0; keys[i] != NULL; i++)
        if (recipe_has(recipe->settings, keys[i]))
            return keys[i];
    return NULL;
}

static int64_t
number_of(Recipe *recipe, const char *const *keys, int64_t max, int64_t fallback)
{
    const char *key = first_of(recipe, keys);

    return key == NULL ? fallback : recipe_int(recipe->settings, key, 1, max, fallback);
}

/* Adds the settings of the file that @key names, where it is there: beside the recipe, or from the
 * working directory. */
static bool
include(Recipe *recipe, const char *key)
{
    RecipeSettings *s = recipe->settings;
    const char *name = recipe_string(s, key, NULL);
    char *text = NULL;
    size_t n_bytes;

    if (name == NULL || strcmp(name, "true") == 0 || s->error != NULL)
        return false;
    g_autofree char *folder = g_path_get_dirname(s->path), *base = g_path_get_basename(name);
    g_autofree char *beside = g_build_filename(folder, name, NULL);
    g_autofree char *near = g_build_filename(folder, base, NULL);
    const char *const places[] = {beside, near};
    for (size_t i = 0; i < G_N_ELEMENTS(places) && text == NULL; i++)
        file_read_max(places[i], RECIPE_MAX_BYTES, &text, &n_bytes, NULL);
    /* A script may have written it: then what it says is known. */
    if (text == NULL && recipe_has(s, "zero_optimization.stage"))
        return true;
    if (text == NULL) {
        recipe_note(s, "%s is not beside the recipe: what it says is not known", base);
        return false;
    }
    g_autofree char *owned = text;
    if (g_str_has_suffix(base, ".json"))
        recipe_read_json(s, owned, n_bytes);
    else
        recipe_read_yaml(s, owned, n_bytes);
    return true;
}

/* FSDP's sharding as a ZeRO stage; -1: there is no FSDP. */
static int
fsdp_stage(Recipe *recipe)
{
    static const char *const words[] = {"NO_SHARD", NULL, "SHARD_GRAD_OP", "FULL_SHARD"};
    static const char *const numbers[] = {"3", NULL, "2", "1"};
    RecipeSettings *s = recipe->settings;
    const char *fsdp = recipe_string(s, "fsdp", NULL);
    const char *strategy = recipe_string(s, "fsdp_config.fsdp_sharding_strategy", NULL);
    const bool is_on = fsdp != NULL || recipe_is(s, "distributed_type", "FSDP") ||
                       recipe_has(s, "fsdp_config.fsdp_version") || strategy != NULL;

    if (!is_on)
        return -1;
    if (strategy == NULL)
        strategy = recipe_string(s, "fsdp_config.sharding_strategy", NULL);
    if (strategy != NULL && g_str_has_prefix(strategy, "HYBRID"))
        recipe_note(s, "parameters are taken to be sharded over all replicas, not in groups");
    for (int i = 0; strategy != NULL && i < 4; i++)
        if (words[i] != NULL &&
            (g_ascii_strcasecmp(strategy, words[i]) == 0 || strcmp(strategy, numbers[i]) == 0))
            return i;
    if (fsdp != NULL && strstr(fsdp, "shard_grad_op") != NULL)
        return 2;
    return recipe_bool(s, "fsdp_config.fsdp_reshard_after_forward",
                       recipe_bool(s, "fsdp_config.reshard_after_forward", true))
               ? 3
               : 2;
}

static void
read_fsdp(Recipe *recipe, int64_t tp, int64_t cp, int64_t micro_batch, int64_t accumulation)
{
    RecipeSettings *s = recipe->settings;
    const int stage = fsdp_stage(recipe);
    const char *fsdp = recipe_string(s, "fsdp", ""),
               *precision = recipe_string(s, "mixed_precision", "");
    const bool fp16 = recipe_bool(s, "fp16", strcmp(precision, "fp16") == 0),
               bf16 = recipe_bool(s, "bf16",
                                  strcmp(precision, "bf16") == 0 || strcmp(precision, "fp8") == 0);

    recipe_flag(recipe, "framework", "fsdp");
    recipe_flag(recipe, "zero", "%d", MAX(0, stage));
    recipe_flag(recipe, "tp", INT, tp);
    recipe_flag(recipe, "cp", INT, cp);
    recipe_flag(recipe, "sequence-parallel", "%s", tp > 1 ? "on" : "off");
    if (fp16 && !bf16)
        recipe_note(s, "fp16 is costed as bf16");
    recipe_flag(recipe, "dtype", "%s", bf16 || fp16 ? "bf16" : "fp32");
    if (strstr(fsdp, "offload") != NULL || recipe_bool(s, "fsdp_config.fsdp_offload_params", false))
        recipe_flag(recipe, "offload", "cpu");
    recipe_flag(recipe, "micro-batch", INT, micro_batch);
    recipe_batch(recipe, tp, 1, cp, micro_batch, 0, accumulation);
}

static void
read_megatron(Recipe *recipe, int64_t micro_batch, int64_t accumulation)
{
    RecipeSettings *s = recipe->settings;
    const int64_t tp = recipe_int(s, "megatron_lm_config.megatron_lm_tp_degree", 1,
                                  SCHEDULE_MAX_RANKS, 1),
                  pp = recipe_int(s, "megatron_lm_config.megatron_lm_pp_degree", 1,
                                  SCHEDULE_MAX_RANKS, 1),
                  n = recipe_int(s, "megatron_lm_config.megatron_lm_num_micro_batches", 1, 1 << 20,
                                 accumulation);

    recipe_flag(recipe, "framework", "megatron-lm");
    recipe_flag(recipe, "tp", INT, tp);
    recipe_flag(recipe, "pp", INT, pp);
    recipe_flag(recipe, "sequence-parallel", "%s",
                recipe_bool(s, "megatron_lm_config.megatron_lm_sequence_parallelism", false) &&
                        tp > 1
                    ? "on"
                    : "off");
    recipe_flag(recipe, "zero", "%d",
                recipe_bool(s, "megatron_lm_config.megatron_lm_use_distributed_optimizer", false));
    if (recipe_bool(s, "megatron_lm_config.megatron_lm_recompute_activations", false))
        recipe_flag(recipe, "recompute", "selective");
    recipe_flag(recipe, "dtype", "%s",
                recipe_string(s, "mixed_precision", "no")[0] == 'n' ? "fp32"
                : recipe_is(s, "mixed_precision", "fp16")           ? "fp16"
                                                                    : "bf16");
    recipe_flag(recipe, "micro-batch", INT, micro_batch);
    recipe_batch(recipe, tp, pp, 1, micro_batch, 0, n);
}

/* Names of transformers' OptimizerNames. */
static void
read_optimizer(Recipe *recipe)
{
    static const struct {
        const char *optim, *optimizer;
    } known[] = {
        {"adamw_torch", "adamw"},
        {"adamw_torch_fused", "adamw"},
        {"adamw_hf", "adamw"},
        {"adamw_bnb_8bit", "adamw8bit"},
        {"adamw_8bit", "adamw8bit"},
        {"paged_adamw_8bit", "adamw8bit"},
        {"adamw_torch_8bit", "adamw8bit"},
        {"muon", "muon"},
    };
    const char *optim = recipe_string(recipe->settings, "optim", "adamw_torch");

    for (size_t i = 0; i < G_N_ELEMENTS(known); i++)
        if (strcmp(optim, known[i].optim) == 0) {
            recipe_flag(recipe, "optimizer", "%s", known[i].optimizer);
            return;
        }
    recipe_note(recipe->settings, "the optimizer is Adam with states in fp32, not %s", optim);
}

void
recipe_read_trainer(Recipe *recipe)
{
    static const char *const models[] = {"model_name_or_path", "base_model", "model_name",
                                         "model_id",           "model",      NULL};
    static const char *const batches[] = {"per_device_train_batch_size",
                                          "train_micro_batch_size_per_gpu", "micro_batch_size",
                                          "batch_size", NULL};
    static const char *const lengths[] = {
        "cutoff_len", "max_seq_length", "max_seq_len",      "sequence_len",
        "max_length", "block_size",     "model_max_length", NULL};
    static const char *const sums[] = {"gradient_accumulation_steps",
                                       "deepspeed_config.gradient_accumulation_steps", NULL};
    RecipeSettings *s = recipe->settings;
    const char *model = first_of(recipe, models);

    include(recipe, "launch.config_file");
    const bool has_json = include(recipe, "deepspeed") || include(recipe, "deepspeed_config") ||
                          include(recipe, "deepspeed_config.deepspeed_config_file");
    if (model != NULL && recipe->arch == NULL)
        recipe_model(recipe, model);
    const char *batch = first_of(recipe, batches);
    const int64_t accumulation = number_of(recipe, sums, 1 << 24, 1);
    const int64_t micro_batch = batch == NULL ? 1 : recipe_int(s, batch, 1, 1 << 24, 1);
    const int64_t tp = recipe_int(s, "parallelism_config.parallelism_config_tp_size", 1,
                                  SCHEDULE_MAX_RANKS, 1),
                  cp = recipe_int(s, "parallelism_config.parallelism_config_cp_size", 1,
                                  SCHEDULE_MAX_RANKS, 1);
    const char *length = first_of(recipe, lengths);
    const bool is_deepspeed = has_json || recipe_is(s, "distributed_type", "DEEPSPEED") ||
                              recipe_has(s, "deepspeed") || recipe_has(s, "deepspeed_config") ||
                              recipe_has(s, "zero_stage");
    const bool recomputes = recipe_bool(s, "gradient_checkpointing", false) ||
                            recipe_bool(s, "fsdp_config.fsdp_activation_checkpointing", false) ||
                            recipe_bool(s, "fsdp_config.activation_checkpointing", false);

    if (recipe_has(s, "num_processes") && !recipe->says_devices) {
        recipe->n_devices = recipe_int(s, "num_processes", 1, MODEL_CLUSTER_MAX_DEVICES, 1);
        recipe->says_devices = true;
    }
    if (batch == NULL)
        recipe_note(s, "the micro-batch is taken to be 1 (--micro-batch)");
    if (length != NULL)
        recipe_flag(recipe, "seq-len", INT, recipe_int(s, length, 1, MODEL_MAX_SEQ_LEN, 2048));
    if (is_deepspeed) {
        g_autofree char *micro = g_strdup_printf(INT, micro_batch),
                        *n = g_strdup_printf(INT, accumulation);
        recipe->framework = PLAN_FRAMEWORK_DEEPSPEED;
        /* The JSON says auto, or nothing: then the arguments do. */
        if (!recipe_has(s, "train_micro_batch_size_per_gpu"))
            recipe_settings_add(s, "train_micro_batch_size_per_gpu", micro, 0);
        if (!recipe_has(s, "gradient_accumulation_steps"))
            recipe_settings_add(s, "gradient_accumulation_steps", n, 0);
        if (!recipe_has(s, "zero_optimization.stage") &&
            recipe_has(s, "deepspeed_config.zero_stage"))
            recipe_settings_add(s, "zero_optimization.stage",
                                recipe_string(s, "deepspeed_config.zero_stage", "0"), 0);
        if (recipe_has(s, "deepspeed_config.offload_optimizer_device"))
            recipe_settings_add(s, "zero_optimization.offload_optimizer.device",
                                recipe_string(s, "deepspeed_config.offload_optimizer_device", ""),
                                0);
        if (recipe_has(s, "deepspeed_config.offload_param_device"))
            recipe_settings_add(s, "zero_optimization.offload_param.device",
                                recipe_string(s, "deepspeed_config.offload_param_device", ""), 0);
        if (recipe_is(s, "mixed_precision", "bf16"))
            recipe_settings_add(s, "bf16.enabled", "true", 0);
        if (recipe_is(s, "mixed_precision", "fp16"))
            recipe_settings_add(s, "fp16.enabled", "true", 0);
        recipe_read_deepspeed(recipe);
    } else if (recipe_is(s, "distributed_type", "MEGATRON_LM")) {
        recipe->framework = PLAN_FRAMEWORK_MEGATRON_LM;
        read_megatron(recipe, micro_batch, accumulation);
    } else {
        recipe->framework = PLAN_FRAMEWORK_FSDP;
        read_fsdp(recipe, tp, cp, micro_batch, accumulation);
    }
    if (recomputes)
        recipe_flag(recipe, "recompute", "full");
    read_optimizer(recipe);
    for (size_t i = 0; i < G_N_ELEMENTS(unmodelled); i++)
        recipe_unmodelled(s, unmodelled[i].key, unmodelled[i].usual, unmodelled[i].what);
}

char *
recipe_write_trainer(const Plan *plan)
{
    static const char *const strategies[] = {"NO_SHARD", "NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"};
    GString *text = g_string_new(NULL);

    g_string_append_printf(text,
                           "per_device_train_batch_size: " INT "\n"
                           "gradient_accumulation_steps: " INT "\n"
                           "fsdp_config.fsdp_sharding_strategy: %s\n"
                           "fsdp_config.fsdp_offload_params: %s\n"
                           "gradient_checkpointing: %s\n"
                           "parallelism_config.parallelism_config_tp_size: " INT "\n"
                           "parallelism_config.parallelism_config_cp_size: " INT "\n",
                           plan->micro_batch, plan->n_micro_batches, strategies[plan->zero_stage],
                           plan->offload == PLAN_OFFLOAD_NONE ? "false" : "true",
                           strcmp(plan_recompute_name(plan), "full") == 0 ? "true" : "false",
                           plan->degrees.tp, plan->degrees.cp);
    if (plan->degrees.pp > 1)
        g_string_append_printf(text, "pipeline_parallel_degree: " INT "\n", plan->degrees.pp);
    return g_string_free(text, FALSE);
}
