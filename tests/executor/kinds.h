/*
 * tests/executor/kinds.h - small models whose layers are of several kinds.
 */
#pragma once

#include "models/arch.h"

/* Makes of a model one whose layers are of three kinds by turns: as they were, without experts;
 * with more and smaller heads, one for K and V, and a wider MLP; with the model's experts, or four,
 * which see narrower ones.  The kinds are valid until the next call. */
static inline void
kinds_mix(ModelArch *arch)
{
    static ModelArch kinds[3];
    static uint8_t pattern[] = {0, 1, 2, 1};
    static const char *const names[] = {"plain", "wide", "mixture"};
    const ModelExperts experts = {
        .n_experts = 4, .top_k = 4, .ffn_hidden = 8, .n_shared = 2, .router_scale = 1};

    for (int i = 0; i < 3; i++) {
        kinds[i] = *arch;
        kinds[i].name = (char *)(uintptr_t)names[i];
        kinds[i].experts = (ModelExperts){0};
    }
    kinds[1].n_heads = 8;
    kinds[1].n_kv_heads = 1;
    kinds[1].head_dim = 4;
    kinds[1].ffn_hidden = 40;
    kinds[1].rope_base = 100;
    kinds[2].experts = arch->experts.n_experts > 0 ? arch->experts : experts;
    kinds[2].experts.first_dense_layers = 0;
    arch->n_kinds = 3;
    arch->kinds = kinds;
    arch->pattern = pattern;
    arch->n_pattern = G_N_ELEMENTS(pattern);
    model_arch_settle(arch);
}

/* Kinds of blocks.  Each changes some of what is usual in the family, in layers or at the ends;
 * together they have every word of models/arch.h that is not of mixers. */
typedef void (*KindsVariety)(ModelArch *arch);

#define VARIETY(name, ...)                                                                         \
    static inline void kinds_##name(ModelArch *arch)                                               \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }
VARIETY(sandwich, arch->norm_place = MODEL_NORM_PLACE_SANDWICH;
        arch->activation = MODEL_ACTIVATION_GEGLU)
VARIETY(post, arch->norm_place = MODEL_NORM_PLACE_POST; arch->mlp_bias = true)
VARIETY(parallel, arch->blocks = MODEL_BLOCKS_PARALLEL; arch->activation = MODEL_ACTIVATION_RELU;
        arch->positions = MODEL_POSITIONS_ROTARY; arch->norm = MODEL_NORM_LAYER)
VARIETY(one_norm, arch->blocks = MODEL_BLOCKS_PARALLEL_ONE_NORM;
        arch->norm = MODEL_NORM_LAYER_SCALE; arch->activation = MODEL_ACTIVATION_SILU)
VARIETY(squared, arch->activation = MODEL_ACTIVATION_RELU2; arch->norm = MODEL_NORM_LAYER;
        arch->mlp_bias = arch->proj_bias = arch->qkv_bias = true;
        arch->positions = MODEL_POSITIONS_NONE; arch->residual_scale = 0.3)
VARIETY(plain_post, arch->activation = MODEL_ACTIVATION_RELUGLU; arch->norm = MODEL_NORM_PLAIN;
        arch->norm_place = MODEL_NORM_PLACE_POST; arch->positions = MODEL_POSITIONS_LEARNED;
        arch->residual_scale = 0.7)
VARIETY(parallel_sandwich, arch->blocks = MODEL_BLOCKS_PARALLEL;
        arch->norm_place = MODEL_NORM_PLACE_SANDWICH; arch->residual_scale = 0.7;
        arch->norm = MODEL_NORM_RMS)
VARIETY(share_of_all, arch->experts = (ModelExperts){.n_experts = 4,
                                                     .top_k = 2,
                                                     .ffn_hidden = 10,
                                                     .n_shared = 1,
                                                     .shared_hidden = 16,
                                                     .shared_gate = true,
                                                     .router_scale = 1.5,
                                                     .router_scores = MODEL_ROUTER_SOFTMAX_ALL})
VARIETY(sigmoids, arch->experts = (ModelExperts){.n_experts = 4,
                                                 .top_k = 2,
                                                 .ffn_hidden = 12,
                                                 .router_bias = true,
                                                 .bias = true,
                                                 .router_scale = 2.5,
                                                 .router_scores = MODEL_ROUTER_SIGMOID};
        arch->activation = MODEL_ACTIVATION_GEGLU; arch->norm_place = MODEL_NORM_PLACE_SANDWICH)
VARIETY(latent, arch->experts = (ModelExperts){.n_experts = 4,
                                               .top_k = 2,
                                               .ffn_hidden = 12,
                                               .latent = 6,
                                               .n_shared = 2,
                                               .router_scale = 1,
                                               .router_scores = MODEL_ROUTER_SIGMOID};
        arch->activation = MODEL_ACTIVATION_RELU2)
VARIETY(mixture, arch->experts = (ModelExperts){.n_experts = 4,
                                                .top_k = 2,
                                                .ffn_hidden = 12,
                                                .n_shared = 1,
                                                .router_scale = 1};
        arch->activation = MODEL_ACTIVATION_GELU; arch->residual_scale = 0.5;
        arch->blocks = MODEL_BLOCKS_PARALLEL)
VARIETY(scaled_ends, arch->positions = MODEL_POSITIONS_ROTARY; arch->embedding_scale = 1.7;
        arch->embedding_norm = arch->head_bias = true; arch->norm = MODEL_NORM_LAYER;
        arch->logits_scale = 0.6; arch->logits_cap = 3)
VARIETY(bare_ends, arch->positions = MODEL_POSITIONS_LEARNED; arch->position_rows = 30;
        arch->embedding_scale = 1.3; arch->no_final_norm = true; arch->norm = MODEL_NORM_RMS;
        arch->logits_scale = 0.3; arch->head_bias = true)
#undef VARIETY

/* Layers that have attention alone, or an MLP alone, by turns. */
static inline void
kinds_halves(ModelArch *arch)
{
    static ModelArch kinds[2];
    static uint8_t pattern[] = {0, 1};

    kinds[0] = kinds[1] = *arch;
    kinds[0].name = (char *)(uintptr_t) "attention";
    kinds[1].name = (char *)(uintptr_t) "mlp";
    kinds[0].ffn = MODEL_FFN_NONE;
    kinds[0].experts = kinds[1].experts = (ModelExperts){0};
    kinds[1].mixer = MODEL_MIXER_NONE;
    arch->n_kinds = 2;
    arch->kinds = kinds;
    arch->pattern = pattern;
    arch->n_pattern = G_N_ELEMENTS(pattern);
}

static const struct {
    const char *name;
    KindsVariety vary;
} kinds_varieties[] = {
    {"sandwich", kinds_sandwich},
    {"post", kinds_post},
    {"parallel", kinds_parallel},
    {"one-norm", kinds_one_norm},
    {"squared", kinds_squared},
    {"plain-post", kinds_plain_post},
    {"parallel-sandwich", kinds_parallel_sandwich},
    {"halves", kinds_halves},
    {"share-of-all", kinds_share_of_all},
    {"sigmoids", kinds_sigmoids},
    {"latent", kinds_latent},
    {"mixture", kinds_mixture},
    {"scaled-ends", kinds_scaled_ends},
    {"bare-ends", kinds_bare_ends},
};
