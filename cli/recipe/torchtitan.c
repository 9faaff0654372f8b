/*
 * torchtitan's TOML or flags, of 2024 to v0.2.2: the inverse of cli/export/torchtitan.c.
 */
#include <string.h>

#include "base/units.h"
#include "cli/recipe/recipe.h"

#define MAX_DEGREE SCHEDULE_MAX_RANKS

static const struct {
    const char *key, *usual, *what;
} unmodelled[] = {
    {"parallelism.fsdp_bucket_size", NULL, "buckets are FSDP2's"},
    {"optimizer.name", "AdamW", "the optimizer is Adam"},
    {"quantize.linear.float8.enable_fsdp_float8_all_gather", NULL,
     "parameters are gathered in bf16"},
    {"float8.enable_fsdp_float8_all_gather", NULL, "parameters are gathered in bf16"},
    {"parallelism.expert_parallel_comm_backend", "standard", "a plain all-to-all"},
};

/* (borrowed) the first of the keys, new and old, that is set; the first where none is. */
static const char *
key_of(Recipe *recipe, const char *first, const char *second, const char *third)
{
    const char *const keys[] = {first, second, third};

    for (size_t i = 0; i < G_N_ELEMENTS(keys); i++)
        if (keys[i] != NULL && recipe_has(recipe->settings, keys[i]))
            return keys[i];
    return first;
}

static int64_t
degree(Recipe *recipe, const char *first, const char *second, const char *third, int64_t fallback)
{
    const char *key = key_of(recipe, first, second, third);
    const char *text = recipe_string(recipe->settings, key, NULL);

    /* -1 is what is left. */
    return text != NULL && strcmp(text, "-1") == 0
               ? 0
               : recipe_int(recipe->settings, key, 1, MAX_DEGREE, fallback);
}

static void
read_model(Recipe *recipe)
{
    RecipeSettings *s = recipe->settings;
    const PlanFrameworkModel *model = plan_framework(PLAN_FRAMEWORK_TORCHTITAN)->rules->models;
    const char *name = recipe_string(s, "model.name", ""),
               *flavour = recipe_string(s, "model.flavor", "");

    for (; model->model != NULL; model++)
        if (strcmp(model->name, name) == 0 && strcmp(model->flavour, flavour) == 0)
            recipe->arch = model_arch_load(model->model, NULL, &s->error);
    if (recipe->arch == NULL)
        recipe->model_name = g_strdup_printf("torchtitan's %s \"%s\"", name, flavour);
}

/* Layers of each stage of "[tok_embeddings layers.0] [layers.1 norm output]". */
static int64_t
read_stages(Recipe *recipe, const char *text)
{
    g_auto(GStrv) parts = g_strsplit(text, "]", -1);
    g_autoptr(GString) layers = g_string_new(NULL);
    int64_t n_stages = 0;

    for (size_t i = 0; parts[i] != NULL && strchr(parts[i], '[') != NULL; i++) {
        int64_t n = 0;
        for (const char *p = parts[i]; (p = strstr(p, "layers.")) != NULL; p++)
            n++;
        g_string_append_printf(layers, "%s" INT, i > 0 ? "," : "", n);
        n_stages++;
    }
    recipe_flag(recipe, "stage-layers", "%s", layers->str);
    return n_stages;
}

static void
read_pipeline(Recipe *recipe, int64_t pp)
{
    RecipeSettings *s = recipe->settings;
    const char *key = key_of(recipe, "parallelism.pipeline_parallel_schedule",
                             "experimental.pipeline_parallel_schedule", NULL);
    const char *class = recipe_string(s, key, "1F1B"), *stages;
    const ScheduleFamily *family = NULL;
    int64_t vpp = 1;
    bool of_chunks = false;

    if (pp == 1)
        return;
    for (const ScheduleFamily *const *f = schedule_families(); *f != NULL && family == NULL; f++) {
        of_chunks = g_strcmp0((*f)->torch_class_of_chunks, class) == 0;
        if (!(*f)->torch_reads_ops && (of_chunks || (g_strcmp0((*f)->torch_class, class) == 0)))
            family = *f;
    }
    if (family == NULL)
        recipe_note(s, "%s: its order of ops is not known here; costed as --schedule says, or 1f1b",
                    class);
    stages = recipe_string(s, "parallelism.module_fqns_per_model_part",
                           recipe_string(s, "parallelism.pipeline_parallel_module_fqns", NULL));
    if (family != NULL && (of_chunks || family->min_chunks > 1))
        vpp = MAX(2, family->min_chunks);
    const int64_t per_stage =
        recipe_int(s, "parallelism.pipeline_parallel_layers_per_stage", 1, MODEL_MAX_LAYERS, 0);
    if (stages != NULL)
        vpp = MAX(1, read_stages(recipe, stages) / pp);
    else if (per_stage > 0 && recipe->arch != NULL)
        vpp = MAX(1, model_ceil_div(model_ceil_div(recipe->arch->n_layers, per_stage), pp));
    recipe_flag(recipe, "vpp", INT, vpp);
    recipe_flag(recipe, "schedule", "%s", family == NULL ? "1f1b" : family->name);
}

static int
zero_stage(Recipe *recipe, bool is_sharded, int64_t pp)
{
    const char *key = key_of(recipe, "parallelism.fsdp_reshard_after_forward",
                             "training.fsdp_reshard_after_forward", NULL);
    const char *reshard = recipe_string(recipe->settings, key, "default");

    if (!is_sharded)
        return 0;
    return strcmp(reshard, "never") == 0 || (strcmp(reshard, "default") == 0 && pp > 1) ? 2 : 3;
}

static void
read_batch(Recipe *recipe, int64_t tp, int64_t pp, int64_t cp)
{
    RecipeSettings *s = recipe->settings;
    const int64_t local = recipe_int(
        s, key_of(recipe, "training.local_batch_size", "training.batch_size", NULL), 1, 1 << 24, 8);
    const char *global = recipe_string(s, "training.global_batch_size", "-1");
    const int64_t of_pipeline =
        recipe_int(s, key_of(recipe, "parallelism.pipeline_parallel_microbatch_size", NULL, NULL),
                   1, 1 << 24, 1);
    const int64_t old = recipe_int(s, "experimental.pipeline_parallel_microbatches", 1, 1 << 24, 0);
    const int64_t micro_batch = pp == 1 ? local : old > 0 ? MAX(1, local / old) : of_pipeline;

    if (local % micro_batch != 0)
        recipe_break(recipe, "micro-batch",
                     "micro-batches of " INT " do not divide the local batch "
                     "of " INT,
                     micro_batch, local);
    recipe_flag(recipe, "micro-batch", INT, micro_batch);
    recipe_batch(
        recipe, tp, pp, cp, micro_batch,
        global[0] == '-' ? 0 : recipe_int(s, "training.global_batch_size", 1, INT64_C(1) << 31, 0),
        MAX(1, local / micro_batch));
}

static void
read_rest(Recipe *recipe, int64_t tp)
{
    RecipeSettings *s = recipe->settings;
    const bool says_mode = g_hash_table_contains(s->by_key, "activation_checkpoint.mode");
    const char *mode =
                   recipe_string(s, "activation_checkpoint.mode", says_mode ? "none" : "selective"),
               *param = recipe_string(s, "training.mixed_precision_param", "bfloat16");
    const bool overlaps = recipe_bool(s,
                                      key_of(recipe, "parallelism.enable_async_tensor_parallel",
                                             "experimental.enable_async_tensor_parallel", NULL),
                                      false);
    const bool compiles =
        recipe_bool(s, key_of(recipe, "compile.enable", "training.compile", NULL), false);

    recipe_string(s, "training.mixed_precision_reduce", NULL);
    recipe_string(s, "compile.components", NULL);
    recipe_string(s, "activation_checkpoint.selective_ac_option", NULL);
    if (strcmp(mode, "none") != 0 && strcmp(mode, "full") != 0) {
        recipe->excused = "recompute";
        recipe_note(s, "activation checkpointing \"%s\" is costed as its policy of ops", mode);
        mode = "selective";
    }
    recipe_flag(recipe, "recompute", "%s", mode);
    recipe_flag(recipe, "dtype", "%s", strcmp(param, "float32") == 0 ? "fp32" : "bf16");
    if (tp > 1 && overlaps && !compiles)
        recipe_break(recipe, "compile", "asynchronous tensor parallelism needs compile.enable");
    recipe_flag(recipe, "overlap", "dp,pp%s", tp > 1 && overlaps ? ",tp" : "");
    recipe_flag(recipe, "sequence-parallel", "%s", tp > 1 ? "on" : "off");
    if (recipe_bool(s, "training.enable_cpu_offload", false)) {
        recipe_flag(recipe, "offload", "cpu");
    }
    if (compiles)
        recipe_note(s, "compiled kernels are costed as PyTorch's (--kernels fused)");
}

void
recipe_read_torchtitan(Recipe *recipe)
{
    RecipeSettings *s = recipe->settings;
    const int64_t tp = degree(recipe, "parallelism.tensor_parallel_degree",
                              "training.tensor_parallel_degree", NULL, 1),
                  pp = degree(recipe, "parallelism.pipeline_parallel_degree",
                              "experimental.pipeline_parallel_degree", NULL, 1),
                  cp = degree(recipe, "parallelism.context_parallel_degree",
                              "experimental.context_parallel_degree", NULL, 1),
                  ep = degree(recipe, "parallelism.expert_parallel_degree", NULL, NULL, 1),
                  etp = degree(recipe, "parallelism.expert_tensor_parallel_degree", NULL, NULL, tp),
                  replicate = degree(recipe, "parallelism.data_parallel_replicate_degree",
                                     "training.data_parallel_replicate_degree", NULL, 1),
                  shard = degree(recipe, "parallelism.data_parallel_shard_degree",
                                 "training.data_parallel_shard_degree",
                                 "training.data_parallel_degree", 0);
    const int64_t split = MAX(1, tp) * MAX(1, pp) * MAX(1, cp);

    if (recipe->arch == NULL)
        read_model(recipe);
    if (shard > 0 && !recipe->says_devices) {
        recipe->n_devices = replicate * shard * split;
        recipe->says_devices = true;
    } else if (shard > 0 && replicate * shard * split != recipe->n_devices) {
        recipe_break(recipe, "devices",
                     "replicas " INT " x shards " INT " x tp x pp x cp " INT " are " INT
                     " devices, not " INT,
                     replicate, shard, split, replicate * shard * split, recipe->n_devices);
    }
    /* FSDP's settings say that it is there where there is one replica, too. */
    const bool is_sharded =
        shard != 1 || cp > 1 ||
        (replicate == 1 && recipe_has(s, "parallelism.fsdp_reshard_after_forward"));
    recipe_flag(recipe, "framework", "torchtitan");
    recipe_flag(recipe, "tp", INT, tp);
    recipe_flag(recipe, "pp", INT, pp);
    recipe_flag(recipe, "cp", INT, cp);
    if (recipe->arch != NULL && recipe->arch->experts.n_experts > 0) {
        recipe_flag(recipe, "ep", INT, ep);
        recipe_flag(recipe, "expert-tp", INT, ep > 1 ? etp : 1);
    }
    recipe_flag(recipe, "zero", "%d", zero_stage(recipe, is_sharded, pp));
    if (replicate > 1 && is_sharded)
        recipe_flag(recipe, "optimizer-instances", INT, replicate);
    recipe_flag(recipe, "seq-len", INT,
                recipe_int(s, "training.seq_len", 1, MODEL_MAX_SEQ_LEN, 2048));
    read_pipeline(recipe, pp);
    read_batch(recipe, tp, pp, cp);
    read_rest(recipe, tp);
    for (size_t i = 0; i < G_N_ELEMENTS(unmodelled); i++)
        recipe_unmodelled(s, unmodelled[i].key, unmodelled[i].usual, unmodelled[i].what);
}
