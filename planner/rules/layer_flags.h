/*
 * planner/rules/layer_flags.h - what of a model's layers the flags of Megatron-LM say, and what they cannot.
 *
 * The flags describe one layer and where its parts are.  There are two programs:
 *
 *   pretrain_gpt.py     A layer is a mixer and an MLP.  Lists say which layers have experts
 *                       (--moe-layer-freq), a window (--window-attn-skip-freq), no rotary positions
 *                       (--no-rope-freq) and a gated delta net in place of attention
 *                       (--linear-attention-freq); all else is alike in all layers.
 *   pretrain_hybrid.py  A layer is one half, a letter of --hybrid-layer-pattern: M (Mamba 2),
 *                       * (attention), - (an MLP), E (experts); those of a letter are alike.
 *
 * Names and meanings as of d98e8a64 (2026-08): megatron/training/arguments.py, core/transformer/
 * transformer_config.py, core/models/hybrid/hybrid_layer_allocation.py, core/ssm/mamba_mixer.py, core/ssm/
 * gated_delta_net/.  The rule "model" asks this (rules.c), the exporter writes what it says.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "models/arch.h"

/* Which matrices have biases. */
typedef enum {
    PLAN_LAYER_BIASES_ALL,  /* all, the router's and those of experts too */
    PLAN_LAYER_BIASES_NONE, /* --disable-bias-linear */
    PLAN_LAYER_BIASES_QKV,  /* --disable-bias-linear --add-qkv-bias */
} PlanLayerBiases;

typedef struct {
    bool is_hybrid;
    ModelArch layer; /* (borrows) a layer with attention where there is one: all that is alike */
    ModelArch
        state; /* (borrows) a layer with a state; its mixer is ATTENTION where there is none */
    ModelExperts experts;              /* n_experts 0: no layer has any */
    bool has_dense;                    /* some layer has an MLP of another kind */
    int64_t window;                    /* of the layers that have one; 0: none has */
    bool has_full;                     /* some layer's attention has no window */
    bool has_rotary, has_no_positions; /* some layer's attention */
    PlanLayerBiases biases;
} PlanLayerFlags;

/* Returns: (owned, nullable) what no flag says: "chunked attention"; NULL: all is said, by @flags (out). */
char *plan_layer_flags(const ModelArch *arch, PlanLayerFlags *flags);

/* Whether some layer is one half. */
bool plan_layers_are_hybrid(const ModelArch *arch);

/* The letters of the halves of a layer of @kind, its mixer's first; returns how many, 0: some half has none. */
size_t plan_layer_letters(const ModelArch *kind, char letters[2]);
