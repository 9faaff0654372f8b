/*
 * cli/recipe/syntax.h - the syntaxes of recipes: JSON, YAML, TOML and shell scripts become
 * RecipeSettings.
 *
 * Nothing is run.  Of a shell script what sets variables and arrays is followed: expansions with
 * defaults, arithmetic, if and case on known values; loops run once; a heredoc that is DeepSpeed's
 * JSON gives its settings.  What only a run can know
 * becomes RECIPE_UNKNOWN, and matters only where a setting that counts holds it.
 *
 * What is beyond the limits of settings.h, or is no such text, is recorded in the settings.
 */
#pragma once

#include "cli/recipe/settings.h"

/* Objects are flattened, arrays become words with spaces between. */
void recipe_read_json(RecipeSettings *settings, const char *text, size_t n_bytes);
/* YAML by libyaml; anchors are followed nowhere: an alias is a mistake.  One document. */
void recipe_read_yaml(RecipeSettings *settings, const char *text, size_t n_bytes);
/* Tables, strings, numbers, booleans, arrays and inline tables of TOML 1.0; no dates. */
void recipe_read_toml(RecipeSettings *settings, const char *text, size_t n_bytes);

/*
 * A shell script, a command line, or bare flags (defined in shell.c).  The flags of the launcher
 * (torchrun, srun, deepspeed, accelerate) begin with "launch.", those of #SBATCH lines with
 * "sbatch.", and variables that the script sets itself with "$".
 * @given  (nullable) name -> value of variables, which no assignment changes.
 */
void recipe_read_shell(RecipeSettings *settings, const char *text, size_t n_bytes,
                       GHashTable *given);
