/*
 * tests/executor/attention_kinds.h - what attention may be beside plain, on a small model.
 */
#pragma once

#include "models/arch.h"

static inline void
attention_sliding(ModelArch *a)
{
    a->window = 5;
}

static inline void
attention_chunked(ModelArch *a)
{
    a->chunk = 7;
}

/* gpt-oss. */
static inline void
attention_sinks(ModelArch *a)
{
    a->window = 6;
    a->sinks = a->qkv_bias = a->proj_bias = true;
}

/* Gemma 2. */
static inline void
attention_capped(ModelArch *a)
{
    a->attention_cap = 1.5;
    a->attention_scale = 0.7;
}

static inline void
attention_alibi(ModelArch *a)
{
    a->positions = MODEL_POSITIONS_ALIBI;
}

static inline void
attention_without_positions(ModelArch *a)
{
    a->positions = MODEL_POSITIONS_NONE;
}

/* Values wider than keys, which are rotated in part; an odd window. */
static inline void
attention_wide_values(ModelArch *a)
{
    a->v_dim = 9;
    a->rotary_dim = 4;
    a->window = 9;
}

/* Qwen3. */
static inline void
attention_qk_norm(ModelArch *a)
{
    a->qk_norm = true;
}

/* Persimmon: with shifts.  Rotated, so that the softmax sees the keys'. */
static inline void
attention_qk_layer_norm(ModelArch *a)
{
    a->qk_norm = true;
    a->norm = MODEL_NORM_LAYER;
    a->positions = MODEL_POSITIONS_ROTARY;
}

/* OLMo 2. */
static inline void
attention_qk_norm_row(ModelArch *a)
{
    a->qk_norm = true;
    a->qk_norm_kind = MODEL_QK_NORM_ROW;
}

static inline void
attention_qk_norm_heads(ModelArch *a)
{
    a->qk_norm = true;
    a->qk_norm_kind = MODEL_QK_NORM_HEADS;
}

/* Llama 4. */
static inline void
attention_qk_norm_plain(ModelArch *a)
{
    a->qk_norm = true;
    a->qk_norm_kind = MODEL_QK_NORM_PLAIN;
    a->chunk = 8;
}

/* Qwen3-Next. */
static inline void
attention_gated(ModelArch *a)
{
    a->output_gate = MODEL_OUTPUT_GATE_ELEMENT;
    a->qkv_bias = a->qk_norm = true;
    a->rotary_dim = 2;
}

static inline void
attention_gated_heads(ModelArch *a)
{
    a->output_gate = MODEL_OUTPUT_GATE_HEAD;
    a->v_dim = 4;
}

/* DeepSeek-V3. */
static inline void
attention_latent(ModelArch *a)
{
    a->mla = (ModelMla){.q_lora_rank = 10,
                        .kv_lora_rank = 8,
                        .qk_nope_head_dim = 3,
                        .qk_rope_head_dim = 4,
                        .v_head_dim = 5};
    a->head_dim = 7;
    a->n_kv_heads = a->n_heads;
}

/* DeepSeek-V2-Lite, with biases, a window and a gate besides. */
static inline void
attention_latent_direct(ModelArch *a)
{
    attention_latent(a);
    a->mla.q_lora_rank = 0;
    a->qkv_bias = a->proj_bias = true;
    a->window = 6;
    a->output_gate = MODEL_OUTPUT_GATE_ELEMENT;
}

/* Normed heads and sinks of latents: together in no published model. */
static inline void
attention_latent_normed(ModelArch *a)
{
    attention_latent(a);
    a->qk_norm = a->sinks = true;
}

/* Fewer keys than there are tokens, or windows. */
static inline void
attention_sparse(ModelArch *a)
{
    a->indexer = (ModelIndexer){.n_heads = 3, .head_dim = 8, .top_k = 4};
    a->window = 11;
    a->attention_cap = 4;
}

/* DeepSeek-V3.2. */
static inline void
attention_sparse_latent(ModelArch *a)
{
    attention_latent(a);
    a->indexer = (ModelIndexer){.n_heads = 2, .head_dim = 6, .top_k = 5};
}

/* So many at the end whose choice of keys jumps as weights change, and which learn from more than the loss:
 * test_indexer.c. */
enum {
    ATTENTION_SPARSE_N = 2
};

static const struct {
    const char *name;
    void (*set)(ModelArch *arch);
} attention_kinds[] = {
    {"sliding", attention_sliding},
    {"chunked", attention_chunked},
    {"sinks", attention_sinks},
    {"capped", attention_capped},
    {"alibi", attention_alibi},
    {"no-positions", attention_without_positions},
    {"wide-values", attention_wide_values},
    {"qk-norm", attention_qk_norm},
    {"qk-layer-norm", attention_qk_layer_norm},
    {"qk-norm-row", attention_qk_norm_row},
    {"qk-norm-heads", attention_qk_norm_heads},
    {"qk-norm-plain", attention_qk_norm_plain},
    {"gated", attention_gated},
    {"gated-heads", attention_gated_heads},
    {"latent", attention_latent},
    {"latent-direct", attention_latent_direct},
    {"latent-normed", attention_latent_normed},
    {"sparse", attention_sparse},
    {"sparse-latent", attention_sparse_latent},
};

/* Makes of a model one whose layers have attention of kind @i, and attention as it was, by turns.
 * The kinds are valid until the next call. */
static inline void
attention_mix(ModelArch *arch, size_t i)
{
    static ModelArch kinds[2];
    static uint8_t pattern[] = {1, 0};

    for (int k = 0; k < 2; k++) {
        kinds[k] = *arch;
        kinds[k].experts.first_dense_layers = 0;
    }
    kinds[0].name = (char *)"plain";
    kinds[1].name = (char *)(uintptr_t)attention_kinds[i].name;
    attention_kinds[i].set(&kinds[1]);
    arch->n_kinds = 2;
    arch->kinds = kinds;
    arch->pattern = pattern;
    arch->n_pattern = G_N_ELEMENTS(pattern);
    model_arch_settle(arch);
}
