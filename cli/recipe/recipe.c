#include "cli/recipe/recipe.h"

#include <string.h>

#include "base/embedded.h"
#include "base/file.h"
#include "base/json_yaml.h"
#include "cli/recipe/syntax.h"
#include "cli/request/command.h"
#include "cli/request/output.h"
#include "cli/request/subject.h"

/* Names of models elsewhere, by a part in small letters: the first that is found. */
static const struct {
    const char *part, *model;
} model_names[] = {
    {"llama-2-7b", "llama2-7b"},       {"llama-2-13b", "llama2-13b"},
    {"llama-2-70b", "llama2-70b"},     {"llama2-7b", "llama2-7b"},
    {"llama2-13b", "llama2-13b"},      {"llama2-70b", "llama2-70b"},
    {"llama-3.1-405b", "llama3-405b"}, {"llama31-405b", "llama3-405b"},
    {"llama3-405b", "llama3-405b"},    {"llama-3.1-70b", "llama3-70b"},
    {"llama-3.3-70b", "llama3-70b"},   {"llama-3-70b", "llama3-70b"},
    {"llama3-70b", "llama3-70b"},      {"llama31-70b", "llama3-70b"},
    {"llama-3.1-8b", "llama3-8b"},     {"llama-3-8b", "llama3-8b"},
    {"llama3-8b", "llama3-8b"},        {"llama31-8b", "llama3-8b"},
    {"qwen3-32b", "qwen3-32b"},        {"mixtral-8x7b", "mixtral-8x7b"},
    {"deepseek-v3", "deepseek-v3"},    {"deepseek-v2-lite", NULL},
    {"deepseek-v2", "deepseek-v2"},    {"gpt2-xl", "gpt2-1.5b"},
};

/* --- recipes --- */

static void
clear_breach(void *breach)
{
    plan_breach_clear(breach);
}

void
recipe_free(Recipe *recipe)
{
    if (recipe == NULL)
        return;
    recipe_settings_free(recipe->settings);
    model_arch_free(recipe->arch);
    g_free(recipe->model_name);
    g_ptr_array_unref(recipe->flags);
    g_array_unref(recipe->breaches);
    g_free(recipe);
}

void
recipe_flag(Recipe *recipe, const char *name, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_ptr_array_add(recipe->flags, g_strdup(name));
    g_ptr_array_add(recipe->flags, g_strdup_vprintf(format, arguments));
    va_end(arguments);
}

void
recipe_break(Recipe *recipe, const char *rule, const char *format, ...)
{
    PlanBreach breach = {.rule = rule};
    va_list arguments;

    va_start(arguments, format);
    breach.text = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    g_array_append_val(recipe->breaches, breach);
}

void
recipe_model(Recipe *recipe, const char *key)
{
    RecipeSettings *s = recipe->settings;
    const char *name = recipe_string(s, key, NULL);

    if (name == NULL || recipe->arch != NULL || s->error != NULL)
        return;
    g_autofree char *lower = g_strdelimit(g_ascii_strdown(name, -1), "_", '-');
    for (size_t i = 0; i < G_N_ELEMENTS(model_names); i++) {
        if (strstr(lower, model_names[i].part) == NULL)
            continue;
        if (model_names[i].model != NULL)
            recipe->arch = model_arch_load(model_names[i].model, NULL, &s->error);
        break;
    }
    if (recipe->arch == NULL)
        recipe->model_name = g_strdup(name);
}

void
recipe_batch(Recipe *recipe, int64_t tp, int64_t pp, int64_t cp, int64_t micro_batch,
             int64_t global_batch, int64_t n_micro_batches)
{
    const int64_t split = tp * pp * cp, replicas = MAX(1, recipe->n_devices / split);

    recipe_flag(recipe, "gpus", INT, recipe->n_devices);
    if (recipe->n_devices % split != 0)
        recipe_break(recipe, "devices",
                     INT " devices are no multiple of tp " INT " x pp " INT " x cp " INT,
                     recipe->n_devices, tp, pp, cp);
    else if (global_batch > 0 && global_batch % (micro_batch * replicas) != 0)
        recipe_break(recipe, "global-batch",
                     "a global batch of " INT " is no multiple of micro-batch " INT
                     " x replicas " INT,
                     global_batch, micro_batch, replicas);
    recipe_flag(recipe, "global-batch", INT,
                global_batch > 0 ? global_batch : micro_batch * replicas * n_micro_batches);
}

/* --- which dialect --- */

static bool
has_key(const RecipeSettings *s, const char *end)
{
    for (guint i = 0; i < s->all->len; i++)
        if (g_str_has_suffix(((const RecipeSetting *)g_ptr_array_index(s->all, i))->key, end))
            return true;
    return false;
}

static bool
begins(const RecipeSettings *s, const char *prefix)
{
    for (guint i = 0; i < s->all->len; i++)
        if (g_str_has_prefix(((const RecipeSetting *)g_ptr_array_index(s->all, i))->key, prefix))
            return true;
    return false;
}

/* How a dialect is told: by a key, or by the beginning of one. */
static const struct {
    const char *name;
    PlanFramework framework;
    void (*read)(Recipe *recipe);
    bool flattens;
    const char *keys[6], *beginnings[4];
} dialects[] = {
    {"torchtitan",
     PLAN_FRAMEWORK_TORCHTITAN,
     recipe_read_torchtitan,
     false,
     {"model.flavor"},
     {"parallelism.", "training.local_batch_size"}},
    {"Trainer",
     PLAN_FRAMEWORK_FSDP,
     recipe_read_trainer,
     false,
     {"per_device_train_batch_size", "distributed_type", "gradient_accumulation_steps",
      "fsdp_sharding_strategy"},
     {"fsdp_config.", "deepspeed_config."}},
    {"Megatron-Bridge",
     PLAN_FRAMEWORK_MEGATRON_BRIDGE,
     recipe_read_megatron,
     true,
     {NULL},
     {"model.tensor_model_parallel_size", "train.micro_batch_size", "train.global_batch_size",
      "trainer.num_nodes"}},
    {"Megatron-LM",
     PLAN_FRAMEWORK_MEGATRON_CORE,
     recipe_read_megatron,
     true,
     {"num_layers", "tensor_model_parallel_size", "num_attention_heads"},
     {NULL}},
    {"DeepSpeed",
     PLAN_FRAMEWORK_DEEPSPEED,
     recipe_read_deepspeed,
     false,
     {"train_batch_size", "train_micro_batch_size_per_gpu"},
     {"zero_optimization."}},
};

static bool
is_dialect(const RecipeSettings *s, size_t i)
{
    /* Of the keys that two have, DeepSpeed's JSON and Trainer's YAML; a script has both. */
    if (dialects[i].read == recipe_read_trainer && begins(s, "zero_optimization.") &&
        !has_key(s, "per_device_train_batch_size"))
        return false;
    for (size_t k = 0; k < G_N_ELEMENTS(dialects[i].keys) && dialects[i].keys[k] != NULL; k++)
        if (has_key(s, dialects[i].keys[k]))
            return true;
    for (size_t k = 0;
         k < G_N_ELEMENTS(dialects[i].beginnings) && dialects[i].beginnings[k] != NULL; k++)
        if (begins(s, dialects[i].beginnings[k]))
            return true;
    return false;
}

/* What the launcher says: so many processes on so many nodes. */
static void
read_devices(Recipe *recipe, const RecipeContext *context)
{
    static const char *const nodes[] = {"launch.nnodes", "launch.num_nodes", "launch.num_machines",
                                        "sbatch.nodes",  "sbatch.N",         "trainer.num_nodes",
                                        "$NNODES",       "$NUM_NODES"};
    static const char *const each[] = {"launch.nproc_per_node", "launch.num_gpus",
                                       "sbatch.gpus_per_node",  "sbatch.ntasks_per_node",
                                       "trainer.devices",       "$GPUS_PER_NODE"};
    RecipeSettings *s = recipe->settings;
    int64_t n_nodes = 0, n_each = 0;

    recipe->n_devices = context->given_devices > 0 ? context->given_devices : context->n_devices;
    recipe->says_devices = context->given_devices > 0;
    for (size_t i = 0; i < G_N_ELEMENTS(nodes); i++) {
        RecipeSetting *setting = g_hash_table_lookup(s->by_key, nodes[i]);
        if (setting != NULL && n_nodes == 0)
            n_nodes = g_ascii_strtoll(setting->value, NULL, 10);
        if (setting != NULL)
            setting->is_used = true;
    }
    for (size_t i = 0; i < G_N_ELEMENTS(each); i++) {
        RecipeSetting *setting = g_hash_table_lookup(s->by_key, each[i]);
        if (setting != NULL && n_each == 0)
            n_each = g_ascii_strtoll(setting->value, NULL, 10);
        if (setting != NULL)
            setting->is_used = true;
    }
    const char *processes = recipe_string(s, "launch.num_processes", NULL);
    int64_t n = n_each > 0 ? n_each * MAX(1, n_nodes) : 0;
    if (processes != NULL)
        n = g_ascii_strtoll(processes, NULL, 10);
    if (!recipe->says_devices && n > 0 && n <= MODEL_CLUSTER_MAX_DEVICES) {
        recipe->n_devices = n;
        recipe->says_devices = true;
    }
}

bool
recipe_is_file(const char *path)
{
    g_autofree char *text = NULL;
    size_t n_bytes;
    g_autofree char *builtin = g_strconcat("models/", path, ".json", NULL);

    if (strcmp(path, "-") == 0 || !g_file_test(path, G_FILE_TEST_IS_REGULAR) ||
        (strchr(path, '/') == NULL && embedded_find(builtin) != NULL) ||
        !file_read_max(path, RECIPE_MAX_BYTES, &text, &n_bytes, NULL))
        return false;
    if (json_yaml_is_name(path)) {
        g_autoptr(JsonDoc) own = json_doc_load(path, NULL);
        return own == NULL || json_doc_format(own) == NULL;
    }
    if (!g_str_has_suffix(path, ".json"))
        return true;
    g_autoptr(JsonDoc) doc = json_doc_parse(path, text, n_bytes, NULL);
    const JsonValue *root = doc == NULL ? NULL : json_doc_root(doc, NULL, 0);
    return root != NULL && json_is_object(root) && json_doc_format(doc) == NULL &&
           !json_has(doc, root, "model_type") && !json_has(doc, root, "family");
}

static void
read_syntax(RecipeSettings *s, const char *text, size_t n_bytes, GHashTable *variables)
{
    const char *first = text + strspn(text, " \t\r\n");

    if (!g_utf8_validate(text, (gssize)n_bytes, NULL))
        recipe_fail(s, NULL, "its bytes are no UTF-8 text");
    else if (g_str_has_suffix(s->path, ".py"))
        recipe_fail(s, NULL,
                    "Python is not run: give the command line with its overrides, the YAML or TOML "
                    "that it writes, or the split by flags of degas simulate");
    else if (g_str_has_suffix(s->path, ".json") || *first == '{')
        recipe_read_json(s, text, n_bytes);
    else if (g_str_has_suffix(s->path, ".toml"))
        recipe_read_toml(s, text, n_bytes);
    else if (g_str_has_suffix(s->path, ".yaml") || g_str_has_suffix(s->path, ".yml"))
        recipe_read_yaml(s, text, n_bytes);
    else
        recipe_read_shell(s, text, n_bytes, variables);
}

/* Gives the model the name of the built-in one that it is. */
static void
name_model(ModelArch *arch)
{
    g_autoptr(GPtrArray) names = model_arch_builtin_names();

    for (guint i = 0; i < names->len; i++) {
        g_autoptr(ModelArch) builtin = model_arch_load(g_ptr_array_index(names, i), NULL, NULL);
        g_autofree char *difference = builtin == NULL ? NULL : model_arch_difference(arch, builtin);
        if (builtin == NULL || difference != NULL)
            continue;
        g_free(arch->name);
        arch->name = g_strdup(builtin->name);
        return;
    }
}

Recipe *
recipe_load(const char *path, const RecipeContext *context, GError **error)
{
    g_autoptr(Recipe) recipe = g_new0(Recipe, 1);
    g_autofree char *text = NULL;
    size_t n_bytes;

    recipe->settings = recipe_settings_new(path);
    recipe->flags = g_ptr_array_new_with_free_func(g_free);
    recipe->breaches = g_array_new(FALSE, FALSE, sizeof(PlanBreach));
    g_array_set_clear_func(recipe->breaches, clear_breach);
    if (!file_read_max(path, RECIPE_MAX_BYTES, &text, &n_bytes, error))
        return NULL;
    RecipeSettings *s = recipe->settings;
    read_syntax(s, text, n_bytes, context->variables);
    if (!recipe_settings_finish(s, error))
        return NULL;
    read_devices(recipe, context);
    recipe->given_layers = context->layers;
    if (context->model != NULL) {
        recipe->arch = request_load_model(context->model, error);
        if (recipe->arch == NULL)
            return NULL;
        if (context->layers > 0)
            recipe->arch->n_layers = context->layers;
    }
    for (size_t i = 0; i < G_N_ELEMENTS(dialects) && recipe->dialect == NULL; i++) {
        if (!is_dialect(s, i))
            continue;
        recipe->dialect = dialects[i].name;
        recipe->framework = dialects[i].framework;
        recipe_read_lora(recipe);
        if (dialects[i].flattens)
            recipe_settings_flatten(s);
        dialects[i].read(recipe);
    }
    if (recipe->dialect == NULL)
        recipe_fail(
            s, NULL,
            "no setting says how a model is split: expected flags or YAML of Megatron-LM or "
            "Megatron-Bridge, torchtitan's TOML, DeepSpeed's JSON, or arguments of Hugging "
            "Face's Trainer or Accelerate");
    if (!recipe_settings_finish(s, error))
        return NULL;
    if (recipe->arch == NULL) {
        cmd_fail(error, CMD_ERROR_USAGE, "%s: %s%s: give it by --model MODEL", path,
                 recipe->model_name == NULL ? "the recipe does not say its model"
                                            : "degas does not have the model ",
                 recipe->model_name == NULL ? "" : recipe->model_name);
        return NULL;
    }
    name_model(recipe->arch);
    return g_steal_pointer(&recipe);
}

Request *
recipe_request(Recipe *recipe, Profile *profile, Options *options, GError **error)
{
    for (guint i = 0; i < recipe->flags->len; i += 2)
        if (!options_has(options, g_ptr_array_index(recipe->flags, i)))
            options_set(options, g_ptr_array_index(recipe->flags, i),
                        g_ptr_array_index(recipe->flags, i + 1));
    Request *request =
        request_new(model_arch_copy(recipe->arch), profile, options, REQUEST_FIXED, error);
    if (request == NULL)
        cmd_blame_file(recipe->settings->path, error);
    return request;
}

Request *
recipe_request_load(const char *path, const char *cluster, Options *options, Recipe **recipe,
                    GError **error)
{
    g_auto(GStrv) pairs = options_words(options, "variables");
    g_autoptr(GHashTable) variables =
        g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);

    for (size_t i = 0; pairs != NULL && pairs[i] != NULL; i++) {
        const char *equals = strchr(pairs[i], '=');
        if (equals == NULL || equals == pairs[i])
            options_fail(options, "variables", "expected NAME=VALUE, got \"%s\"", pairs[i]);
        else
            g_hash_table_replace(variables, g_strndup(pairs[i], (size_t)(equals - pairs[i])),
                                 g_strdup(equals + 1));
    }
    RecipeContext context = {
        .given_devices = options_int64(options, "gpus", 1, MODEL_CLUSTER_MAX_DEVICES, 0),
        .variables = variables,
        .model = options_string(options, "model", NULL),
        .layers = options_int64(options, "layers", 1, MODEL_MAX_LAYERS, 0),
    };
    if (!options_finish(options, error))
        return NULL;
    g_autoptr(Profile) profile = request_load_cluster(cluster, error);
    if (profile == NULL)
        return NULL;
    context.n_devices = model_cluster_n_devices(profile->cluster);
    *recipe = recipe_load(path, &context, error);
    return *recipe == NULL ? NULL
                           : recipe_request(*recipe, g_steal_pointer(&profile), options, error);
}
