/*
 * cli/recipe/recipe.h - Recipe: what a file with which another program trains says, in the words of
 * degas: a model, flags of `degas simulate`, and what is not in the prediction.
 *
 * The main header of the room recipe/; the commands check and simulate come in.  A recipe is read in
 * two steps.  A syntax (syntax.h) becomes settings (settings.h): keys and values.  A dialect asks
 * for the settings that it knows, and gives flags; it is the inverse of the exporter of its
 * framework (cli/export/), and the tests hold it to that.  The flags pass the same checks as those
 * that a user types.
 *
 *   dialect            where                                            framework
 *   Megatron-LM        flags in a script, --yaml-cfg                    megatron-core, megatron-lm
 *   Megatron-Bridge    overrides "model.tensor_model_parallel_size=4",  megatron-bridge
 *                      in a command or a YAML; NeMo's are the same
 *   torchtitan         TOML, flags of a command                         torchtitan
 *   DeepSpeed          JSON                                             deepspeed
 *   Trainer            Hugging Face's arguments and Accelerate's        fsdp, deepspeed
 *                      YAML, with the DeepSpeed JSON that they name
 *
 * Errors: CMD_ERROR_INPUT with file, line and key; G_FILE_ERROR.
 */
#pragma once

#include "cli/recipe/settings.h"
#include "cli/request/request.h"

typedef struct {
    RecipeSettings *settings;
    const char *dialect; /* (static) "Megatron-LM" */
    PlanFramework framework;
    ModelArch *arch;  /* (owned, nullable) NULL: the recipe does not say it */
    char *model_name; /* (owned, nullable) what the recipe calls a model that degas does not have */
    GPtrArray *flags; /* of (owned) char *: name, value, name, value ... */
    GArray *breaches; /* of PlanBreach: rules of the program that its settings break */
    int64_t n_devices; /* as the recipe says, or the fallback */
    bool says_devices;
    int64_t given_layers; /* --layers; 0: none */
    const char
        *excused; /* (static, nullable) a rule that an approximation breaks, not the recipe */
} Recipe;

/* What is known besides the file. */
typedef struct {
    int64_t n_devices;     /* of the cluster */
    int64_t given_devices; /* --gpus; 0: none */
    GHashTable *variables; /* (borrowed, nullable) --variables: name -> value */
    const char *model;     /* (borrowed, nullable) --model */
    int64_t layers;        /* --layers; 0: none */
} RecipeContext;

/* Whether the file at @path is to be read as a recipe: it is there, and is no degas file and no
 * config.json of a model.  A file that cannot be read is none. */
bool recipe_is_file(const char *path);

/* Reads a recipe.  Returns: (owned) NULL on an error. */
Recipe *recipe_load(const char *path, const RecipeContext *context, GError **error);
void recipe_free(Recipe *recipe);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Recipe, recipe_free)

/*
 * The request of the recipe on a cluster, as `degas simulate` reads one: the recipe's flags, and
 * those that the user gave in their place.
 * @profile  (taken)
 * Returns: (owned) NULL on CMD_ERROR_INPUT, or CMD_ERROR_USAGE where the recipe says no model.
 */
Request *recipe_request(Recipe *recipe, Profile *profile, Options *options, GError **error);

/* Loads cluster and recipe and makes the request; @recipe (out, owned by the caller, nullable). */
Request *recipe_request_load(const char *path, const char *cluster, Options *options,
                             Recipe **recipe, GError **error);

/* The flags --variables and --model of commands that take recipes. */
#define RECIPE_OPTIONS                                                                             \
    {"model", "MODEL",                                                                             \
     "the model of a recipe that does not say it, or that names one that degas does not know"},    \
    {                                                                                              \
        "variables", "A=X,B=Y", "values of variables of a script, in place of what it assigns"     \
    }

/* --- for dialects --- */

/* Sets the flag @name of `degas simulate`. */
void recipe_flag(Recipe *recipe, const char *name, const char *format, ...) G_GNUC_PRINTF(3, 4);
/* Notes a rule of the program that the settings break. */
void recipe_break(Recipe *recipe, const char *rule, const char *format, ...) G_GNUC_PRINTF(3, 4);
/* Takes the built-in model that the name in @key stands for, or the file that it names. */
void recipe_model(Recipe *recipe, const char *key);
/* Sets gpus and global-batch; @global_batch 0: one micro-batch on each replica, or @n of them. */
void recipe_batch(Recipe *recipe, int64_t tp, int64_t pp, int64_t cp, int64_t micro_batch,
                  int64_t global_batch, int64_t n_micro_batches);

void recipe_read_megatron(Recipe *recipe);   /* defined in megatron.c */
void recipe_read_torchtitan(Recipe *recipe); /* defined in torchtitan.c */
void recipe_read_deepspeed(Recipe *recipe);  /* defined in deepspeed.c */
void recipe_read_trainer(Recipe *recipe);    /* defined in trainer.c */
void recipe_read_lora(Recipe *recipe);       /* of any dialect; defined in lora.c */

/* Returns: (owned) @plan in the words of Trainer and Accelerate, one setting on a line of YAML; it is
 * for plans of fsdp.  Defined in trainer.c. */
char *recipe_write_trainer(const Plan *plan);
