/*
 * cli/export/megatron_model.h - a model in Megatron-LM's flags, and how one line of them is written.
 *
 * Of megatron.c alone, which says what else a plan has.
 */
#pragma once

#include "cli/export/export.h"

/* "--name", "--name VALUE": one line each. */
void megatron_flag(GString *text, const char *name);
void megatron_int(GString *text, const char *name, int64_t value);
void megatron_word(GString *text, const char *name, const char *value);

/* The model of @plan: layers as far as flags say them (planner/rules/layer_flags.h), ends, sequences. */
void megatron_model(GString *text, const ModelArch *arch, const Plan *plan);
