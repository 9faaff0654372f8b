/*
 * DeepSpeed's JSON: the inverse of cli/export/deepspeed.c.  The model, the length of sequences and
 * what is recomputed are in the user's code: flags of degas say them.
 */
#include <string.h>

#include "base/units.h"
#include "cli/recipe/recipe.h"

static const struct {
    const char *key, *usual, *what;
} unmodelled[] = {
    {"zero_optimization.zero_hpz_partition_size", "1", "ZeRO++'s second shards"},
    {"zero_optimization.zero_quantized_weights", NULL,
     "weights are gathered in the model's format"},
    {"zero_optimization.zero_quantized_gradients", NULL, "gradients are reduced as --grad-dtype"},
    {"zero_optimization.mics_shard_size", "-1", "shards are over all replicas"},
    {"zero_optimization.offload_optimizer.ratio", "1", "all of the state is offloaded"},
    {"sequence_parallel_size", "1", "Ulysses' sequence parallelism: give --cp with a2a"},
    {"compression_training", NULL, "compression"},
    {"activation_checkpointing.cpu_checkpointing", NULL, "activations are not offloaded"},
    {"activation_checkpointing.partition_activations", NULL, "saved activations are not split"},
};

void
recipe_read_deepspeed(Recipe *recipe)
{
    RecipeSettings *s = recipe->settings;
    const int64_t stage = recipe_int(s, "zero_optimization.stage", 0, 3,
                                     recipe_int(s, "zero_stage", 0, 3, 0)),
                  accumulation = recipe_int(s, "gradient_accumulation_steps", 1, 1 << 24, 0),
                  micro = recipe_int(s, "train_micro_batch_size_per_gpu", 1, 1 << 24, 0),
                  batch = recipe_int(s, "train_batch_size", 1, INT64_C(1) << 31, 0),
                  pp = recipe_int(s, "pipeline.stages", 1, SCHEDULE_MAX_RANKS, 1),
                  tp = recipe_int(s, "tensor_parallel.autotp_size", 1, SCHEDULE_MAX_RANKS, 1),
                  prefetch = recipe_int(s, "zero_optimization.stage3_prefetch_bucket_size", 0,
                                        JSON_MAX_INT, 0);
    const bool fp16 = recipe_bool(s, "fp16.enabled", recipe_bool(s, "fp16", false)),
               bf16 =
                   recipe_bool(s, "bf16.enabled",
                               recipe_bool(s, "bf16", recipe_bool(s, "bfloat16.enabled", false)));
    const char *optimizer = recipe_string(
                   s, "zero_optimization.offload_optimizer.device",
                   recipe_bool(s, "zero_optimization.cpu_offload", false) ? "cpu" : "none"),
               *param = recipe_string(s, "zero_optimization.offload_param.device", "none"),
               *sums = recipe_string(s, "data_types.grad_accum_dtype", NULL);
    const bool overlaps = recipe_bool(s, "zero_optimization.overlap_comm", stage == 3);
    int64_t dp = 0, micro_batch = micro;

    if (batch > 0 && micro > 0 && accumulation > 0) {
        dp = batch / micro / accumulation;
        if (dp * micro * accumulation != batch)
            recipe_break(recipe, "global-batch",
                         "train_batch_size " INT " is no multiple of micro-batch " INT
                         " x accumulation " INT,
                         batch, micro, accumulation);
    }
    if (dp > 0 && !recipe->says_devices) {
        recipe->n_devices = dp * tp * pp;
        recipe->says_devices = true;
    }
    const int64_t replicas = MAX(1, recipe->n_devices / (tp * pp));
    if (dp > 0 && dp != replicas)
        recipe_break(recipe, "global-batch",
                     "train_batch_size " INT " is micro-batch " INT " x accumulation " INT
                     " x replicas, which are " INT,
                     batch, micro, accumulation, replicas);
    if (micro_batch == 0 && batch > 0)
        micro_batch = MAX(1, batch / replicas / MAX(1, accumulation));
    if (micro_batch == 0)
        recipe_note(s, "the micro-batch is taken to be 1 (--micro-batch)");
    micro_batch = MAX(1, micro_batch);
    recipe_flag(recipe, "framework", "%s", plan_framework(recipe->framework)->name);
    recipe_flag(recipe, "tp", INT, tp);
    recipe_flag(recipe, "pp", INT, pp);
    recipe_flag(recipe, "micro-batch", INT, micro_batch);
    recipe_batch(recipe, tp, pp, 1, micro_batch, batch, MAX(1, accumulation));
    recipe_flag(recipe, "zero", INT, stage);
    /* "auto" is for the arguments of Trainer to say. */
    const RecipeSetting *automatic = g_hash_table_lookup(s->by_key, "bf16.enabled");
    const bool is_open =
        !bf16 && !fp16 && automatic != NULL && strcmp(automatic->value, "auto") == 0;
    if (is_open)
        recipe_note(s, "the number format is taken to be bf16 (--dtype)");
    recipe_flag(recipe, "dtype", "%s", bf16 || is_open ? "bf16" : fp16 ? "fp16" : "fp32");
    if (sums != NULL)
        recipe_flag(recipe, "grad-dtype", "%s", sums);
    if (stage < 3)
        recipe_flag(recipe, "overlap", "%s", overlaps ? "dp" : "none");
    else if (!overlaps)
        recipe_note(s, "overlap_comm false: weights are gathered ahead of use nevertheless");
    if (recipe_has(s, "optimizer.type")) {
        const char *type = recipe_string(s, "optimizer.type", "AdamW");

        recipe_flag(recipe, "optimizer", "%s",
                    g_ascii_strcasecmp(type, "muon") == 0 ? "muon" : "adamw");
    }
    if (strcmp(optimizer, "none") != 0)
        recipe_flag(recipe, "offload", "%s", optimizer);
    if (strcmp(param, "none") != 0 && strcmp(optimizer, "none") == 0)
        recipe_note(s, "weights are taken to stay on the devices, as the optimizer's state does");
    else if (strcmp(param, "none") != 0)
        recipe_flag(recipe, "offload-parameters", "on");
    if (stage == 3 && prefetch > 0 && recipe->arch != NULL) {
        const int64_t layer =
            model_part_parameters(recipe->arch, MODEL_PART_LAYER, 0, 1, 1, 1, false);
        if (prefetch % layer == 0 && prefetch / layer <= PLAN_MAX_PREFETCH)
            recipe_flag(recipe, "prefetch-layers", INT, prefetch / layer);
    }
    if (pp > 1)
        recipe_flag(recipe, "recompute", "%s",
                    recipe_int(s, "pipeline.activation_checkpoint_interval", 0, 1 << 20, 0) > 0
                        ? "full"
                        : "none");
    recipe_string(s, "pipeline.partition", NULL);
    for (size_t i = 0; i < G_N_ELEMENTS(unmodelled); i++)
        recipe_unmodelled(s, unmodelled[i].key, unmodelled[i].usual, unmodelled[i].what);
}
