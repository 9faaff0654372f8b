/*
 * cli/recipe/megatron_model.h - the model of Megatron-LM's arguments: the inverse of cli/export/megatron_model.c.
 *
 * Of megatron.c alone.
 */
#pragma once

#include "cli/recipe/recipe.h"

/* A setting that counts something. */
static inline int64_t
megatron_number(Recipe *recipe, const char *key, int64_t max, int64_t fallback)
{
    return recipe_int(recipe->settings, key, 1, max, fallback);
}

/* A setting that is on or off, off if it is absent. */
static inline bool
megatron_flag(Recipe *recipe, const char *key)
{
    return recipe_bool(recipe->settings, key, false);
}

/* Sets recipe->arch, or an error in its settings. */
void recipe_read_megatron_model(Recipe *recipe);
