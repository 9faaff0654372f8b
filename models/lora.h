/*
 * models/lora.h - adapters of low rank: which products may have them, and what they add to a layer.
 *
 * Words are those of Megatron-Bridge: linear_qkv, linear_proj, linear_fc1 and linear_fc2 are beside a
 * product as Megatron joins them, one A for queries, keys and values; linear_q, linear_k, linear_v,
 * linear_fc1_gate and linear_fc1_up (its canonical LoRA) are beside the matrices that others keep apart,
 * and so are the names of Hugging Face (q_proj, ...) and torchtitan (wq, ...), which are read as these.
 *
 * With tensor parallelism A and B are split as Megatron-Bridge splits them: beside a product whose
 * columns are split, A by its rank and B by its columns; beside one whose rows are split, A with these
 * rows, B by its columns  [Megatron-Bridge 067f987, peft/utils.py: ParallelLinearAdapter].
 *
 * Not modelled, and refused by name: adapters of experts, of MTP modules, of latent attention's and
 * recurrent mixers' products; dropout between; quantised frozen weights (QLoRA).
 *
 * Source: Hu et al. 2106.09685.  Thread-safety: pure.
 */
#pragma once

#include "models/arch.h"

typedef enum {
    MODEL_LORA_QKV,
    MODEL_LORA_Q,
    MODEL_LORA_K,
    MODEL_LORA_V,
    MODEL_LORA_PROJ,
    MODEL_LORA_FC1,
    MODEL_LORA_FC1_GATE,
    MODEL_LORA_FC1_UP,
    MODEL_LORA_FC2,
    MODEL_LORA_N,
} ModelLoraModule;

extern const char *const model_lora_module_names[MODEL_LORA_N + 1];

/* What Megatron-Bridge and NeMo adapt if they are not told: linear_qkv, linear_proj, linear_fc1, linear_fc2. */
#define MODEL_LORA_USUAL                                                                           \
    (UINT32_C(1) << MODEL_LORA_QKV | UINT32_C(1) << MODEL_LORA_PROJ |                              \
     UINT32_C(1) << MODEL_LORA_FC1 | UINT32_C(1) << MODEL_LORA_FC2)

/* Each linear layer by itself: what PEFT calls all-linear. */
#define MODEL_LORA_ALL_LINEAR                                                                      \
    (UINT32_C(1) << MODEL_LORA_Q | UINT32_C(1) << MODEL_LORA_K | UINT32_C(1) << MODEL_LORA_V |     \
     UINT32_C(1) << MODEL_LORA_PROJ | UINT32_C(1) << MODEL_LORA_FC1_GATE |                         \
     UINT32_C(1) << MODEL_LORA_FC1_UP | UINT32_C(1) << MODEL_LORA_FC2)

/* Returns: the module that @word names, in any of the spellings; MODEL_LORA_N: none. */
ModelLoraModule model_lora_module(const char *word);

/* Reads words with commas between.  Returns: the set; 0 where one is no module, of which @message (out,
 * owned) says so. */
uint32_t model_lora_read_modules(const char *words, char **message);

/* Returns: (owned) the words of @modules with commas between. */
char *model_lora_write_modules(uint32_t modules);

/* Returns: (owned, nullable) why @arch cannot have its adapters; NULL: it can, or has none. */
char *model_lora_refusal(const ModelArch *arch);

/* An adapter of a layer: k columns of A, n rows of B, as one of tp ranks has the product beside it. */
typedef struct {
    ModelLoraModule module;
    int64_t k, n;
    bool splits_rows; /* tp splits k and adds up the results; else it splits n */
} ModelLoraAdapter;

/* Lists the adapters of layers of @kind, which is model_kind_arch(), on one of @tp ranks; returns how many. */
size_t model_lora_adapters(const ModelArch *kind, int64_t tp,
                           ModelLoraAdapter adapters[MODEL_LORA_N]);

/* Elements of A and B of all these adapters on one of @tp ranks. */
int64_t model_lora_parameters(const ModelArch *kind, int64_t tp);
