/*
 * cli/recipe/layer_list.h - which layers have something, as Megatron-LM's flags list it: --moe-layer-freq and its like.
 *
 * Such a flag is a number N, one layer in every N, or a list that Python evaluates, of as many numbers as there
 * are layers: "([0]*3+[1]*58)", "[1,1,0]*4" (megatron/training/arguments.py, _eval_pattern()).
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

/* What N alone means: of layers counted from @first those that N divides have @value, the others have not. */
typedef struct {
    int64_t first;
    bool value;
} LayerListEvery;

/*
 * Reads @text for @n_layers layers.
 * Returns: (owned) 0 or 1 for each layer; NULL: @text is no such list, or has another number of layers.
 */
uint8_t *layer_list_read(const char *text, int64_t n_layers, LayerListEvery every);

/* Returns: (owned) the list of @values, 0 or 1, of @n layers, n >= 1, the shortest that repeats its first layers. */
char *layer_list_write(const uint8_t *values, int64_t n);
