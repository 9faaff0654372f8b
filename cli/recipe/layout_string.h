/*
 * cli/recipe/layout_string.h - the string of Megatron's --pipeline-model-parallel-layout, read, checked and
 * written.
 *
 * Grammar and rules are those of megatron/core/transformer/pipeline_parallel_layer_layout.py at d98e8a64
 * (2026-08): commas are dropped, "(...)*n" is written out, then "c*n" for any one letter c; stages
 * stand between bars, stage i is chunk i / P of rank i % P, and each is a list of E (embedding), t
 * (a layer), m (an MTP module) and L (loss).
 *
 *     Et*3|(tt|)*29,m|L      61 layers, an MTP module alone, the loss alone: 32 stages
 */
#pragma once

#include "models/arch.h"
#include "schedule/plan.h"

typedef struct {
    int64_t n_embeddings, n_layers, n_mtp, n_losses;
    bool is_ordered; /* E before t before m before L */
} LayoutStage;

/* Returns: (owned) GArray of LayoutStage; NULL with @message (out, owned): what @text has that is
 * none, or that it has more than SCHEDULE_MAX_RANKS stages. */
GArray *layout_string_read(const char *text, char **message);

/* Returns: (owned, nullable) the first rule of Megatron's, or of ours, that @stages break for @pp ranks and a
 * model of @n_layers and @n_mtp modules; NULL: it runs them.  Ours: the embedding is in the first
 * stage and the loss in the last. */
char *layout_string_refusal(const GArray *stages, int64_t pp, int64_t n_layers, int64_t n_mtp);

/* Returns: (owned) the string of @plan's stages, of a model of @n_layers without MTP modules.
 * @groups  equal stages are written once, in parentheses; else each for itself */
char *layout_string_write(const Plan *plan, int64_t n_layers, bool groups);

/*
 * The layers of hybrids, as of core/models/hybrid/hybrid_layer_allocation.py at d98e8a64: a letter for each
 * (plan_layer_letters()), with bars between stages, and each MTP module behind a slash.
 *
 * Returns: (owned, nullable) the pattern of @plan's stages; @plan NULL: without bars.  NULL: some layer of
 * @arch has two halves, or one that has no letter.
 */
char *layout_string_write_hybrid(const Plan *plan, const ModelArch *arch);
