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
    if (arch->family == MODEL_FAMILY_LLAMA) {
        kinds[2].experts = arch->experts.n_experts > 0 ? arch->experts : experts;
        kinds[2].experts.first_dense_layers = 0;
    } else {
        kinds[2].ffn_hidden = 8;
    }
    arch->n_kinds = 3;
    arch->kinds = kinds;
    arch->pattern = pattern;
    arch->n_pattern = G_N_ELEMENTS(pattern);
    model_arch_settle(arch);
}
