/*
 * Adapters beside frozen weights (LoRA), as Megatron-Bridge and NeMo, TRL, LLaMA-Factory and Axolotl ask
 * for them: one row for each way to say so.
 */
#include <string.h>

#include "base/units.h"
#include "cli/recipe/recipe.h"
#include "models/lora.h"

/* Defaults are those of the programs: Megatron-Bridge 067f987 (peft/lora.py), NeMo 1.x's megatron_gpt_finetuning
 * _config.yaml, TRL's ModelConfig with PEFT's modules of Llama, LLaMA-Factory's FinetuningArguments, Axolotl's
 * lora_target_linear. */
static const struct {
    const char *key;    /* says whether there are adapters ... */
    const char *is;     /* ... by this word */
    const char *rank;   /* the key of the rank ... */
    int64_t usual_rank; /* ... and what it is otherwise; 0: it has to be said */
    const char *modules, *usual_modules;
    const char *dropout;
} ways[] = {
    {"peft._target_", "megatron.bridge.peft.lora.LoRA", "peft.dim", 32, "peft.target_modules",
     "linear_qkv,linear_proj,linear_fc1,linear_fc2", "peft.dropout"},
    {"peft", "lora", "peft.dim", 32, "peft.target_modules",
     "linear_qkv,linear_proj,linear_fc1,linear_fc2", "peft.dropout"},
    {"peft_scheme", "lora", "peft.dim", 32, "peft.target_modules",
     "linear_qkv,linear_proj,linear_fc1,linear_fc2", "peft.dropout"},
    {"mode", "lora", "peft.dim", 32, "peft.target_modules",
     "linear_qkv,linear_proj,linear_fc1,linear_fc2", "peft.dropout"},
    {"model.peft.peft_scheme", "lora", "model.peft.lora_tuning.adapter_dim", 32,
     "model.peft.lora_tuning.target_modules", "linear_qkv",
     "model.peft.lora_tuning.adapter_dropout"},
    {"use_peft", "true", "lora_r", 16, "lora_target_modules", "q_proj,v_proj", "lora_dropout"},
    {"finetuning_type", "lora", "lora_rank", 8, "lora_target", "all-linear", "lora_dropout"},
    {"adapter", "lora", "lora_r", 0, "lora_target_modules", "all-linear", "lora_dropout"},
};

/* What besides is not modelled. */
static const struct {
    const char *key, *what;
} refused[] = {
    {"load_in_4bit", "frozen weights in 4 bits (QLoRA)"},
    {"load_in_8bit", "frozen weights in 8 bits"},
    {"quantization_bit", "frozen weights in fewer bits (QLoRA)"},
    {"use_dora", "adapters with magnitudes of their own (DoRA)"},
    {"lora_modules_to_save", "modules that are trained whole beside adapters"},
    {"additional_target", "modules that are trained whole beside adapters"},
};

static bool
is_none(const char *word)
{
    static const char *const none[] = {"none", "null", "false", "full", "no"};

    for (size_t i = 0; i < G_N_ELEMENTS(none); i++)
        if (g_ascii_strcasecmp(word, none[i]) == 0)
            return true;
    return false;
}

/* The modules with commas between of a list in any of the syntaxes. */
static char *
list_of(const char *value)
{
    g_autofree char *text = g_strdelimit(g_strdup(value), "[]()'\"{}, ", ' ');
    g_auto(GStrv) parts = g_strsplit(text, " ", -1);
    GString *list = g_string_new(NULL);

    for (size_t i = 0; parts[i] != NULL; i++)
        if (parts[i][0] != 0)
            g_string_append_printf(list, "%s%s", list->len > 0 ? "," : "", parts[i]);
    /* LLaMA-Factory's word. */
    if (strcmp(list->str, "all") == 0)
        g_string_assign(list, "all-linear");
    return g_string_free(list, FALSE);
}

static void
read_adapters(Recipe *recipe, size_t way)
{
    RecipeSettings *s = recipe->settings;
    const int64_t rank =
        recipe_int(s, ways[way].rank, 1, MODEL_MAX_LORA_RANK, ways[way].usual_rank);
    const char *modules = recipe_string(s, ways[way].modules, ways[way].usual_modules);
    g_autofree char *list = list_of(modules), *message = NULL;

    if (rank == 0)
        recipe_fail(s, ways[way].key, "expected %s, the rank of the adapters", ways[way].rank);
    if (recipe_bool(s, "lora_target_linear", false)) {
        g_free(list);
        list = g_strdup("all-linear");
    }
    if (model_lora_read_modules(list, &message) == 0)
        recipe_fail(s, ways[way].modules, "%s", message);
    for (size_t i = 0; i < G_N_ELEMENTS(refused); i++)
        if (recipe_has(s, refused[i].key) && !recipe_is(s, refused[i].key, "false"))
            recipe_fail(s, refused[i].key, "%s are not modelled", refused[i].what);
    if (recipe_double(s, ways[way].dropout, 0.0) > 0.0)
        recipe_unmodelled(s, ways[way].dropout, NULL, "adapters have no dropout");
    recipe_flag(recipe, "lora-rank", INT, rank);
    recipe_flag(recipe, "lora-modules", "%s", list);
}

void
recipe_read_lora(Recipe *recipe)
{
    RecipeSettings *s = recipe->settings;

    for (size_t i = 0; i < G_N_ELEMENTS(ways); i++) {
        const char *word = recipe_string(s, ways[i].key, NULL);

        if (word == NULL || is_none(word))
            continue;
        /* Modes of training of Megatron-Bridge. */
        if (strcmp(ways[i].key, "mode") == 0 && strcmp(word, "lora") != 0 &&
            strcmp(word, "dora") != 0)
            continue;
        if (g_ascii_strcasecmp(word, ways[i].is) == 0)
            read_adapters(recipe, i);
        else
            recipe_fail(s, ways[i].key, "\"%s\" is not modelled: expected %s or none", word,
                        ways[i].is);
        return;
    }
    /* Overrides of a recipe that has adapters. */
    if (recipe_has(s, "peft.dim") || recipe_has(s, "peft.target_modules"))
        read_adapters(recipe, 1);
}
