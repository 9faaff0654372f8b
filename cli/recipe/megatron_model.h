/*
 * cli/recipe/megatron_model.h - the model of Megatron-LM's arguments: the inverse of cli/export/megatron_model.c.
 *
 * Of megatron.c alone.
 */
#pragma once

#include "cli/recipe/recipe.h"

/* Sets recipe->arch, or an error in its settings. */
void recipe_read_megatron_model(Recipe *recipe);
