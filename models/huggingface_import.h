/*
 * models/huggingface_import.h - HfImport: one config.json on its way to a ModelArch.
 *
 * Keys are those of transformers' configuration classes, defaults too where a class has one
 * (configuration_gpt2.py, configuration_llama.py, ... of transformers 4.57 and 5.23).  The import
 * (huggingface.c) reads what all types have, by the row of the type (huggingface_types.h), whose
 * function reads the rest.  Both use the readers of values below, which keep the first failure in
 * the document (base/json.h).
 *
 * Private to models/.
 */
#pragma once

#include "models/arch.h"

/* What a layer does with other tokens, as "layer_types" and its like say. */
typedef enum {
    HF_MIX_FULL,
    HF_MIX_SLIDING,
    HF_MIX_CHUNKED,
    HF_MIX_STATE, /* linear attention, Mamba, a convolution */
    HF_MIX_NONE,
    HF_MIX_N,
} HfMix;

typedef enum {
    HF_FFN_DENSE,
    HF_FFN_EXPERTS,
    HF_FFN_NONE,
} HfFfn;

typedef struct HfType HfType;

/* One import under way. */
typedef struct HfImport HfImport;
struct HfImport {
    JsonDoc *doc;
    const JsonValue *config;
    ModelArch
        *arch; /* what all layers have in common; experts are those of layers that have some */
    GPtrArray *warnings; /* (nullable) */
    const HfType *type;
    /* By layer. */
    uint8_t *mix, *ffn;
    bool *is_unrotated;
    /* What layers of HF_MIX_STATE have, and what else differs by HfMix. */
    ModelMixer state_mixer;
    ModelState state;
    int64_t window, chunk;
    double local_base; /* of rotary positions of sliding layers; 0: that of all */
    void (*vary)(const HfImport *import, HfMix mix, ModelArch *kind);
};

enum {
    HF_TYPE_PLAIN = 1 << 0,         /* the MLP has no gate */
    HF_TYPE_TIED = 1 << 1,          /* embeddings, where no key says so */
    HF_TYPE_QKV_BIAS = 1 << 2,      /* always */
    HF_TYPE_PROJ_BIAS = 1 << 3,     /* always */
    HF_TYPE_MLP_BIAS = 1 << 4,      /* always */
    HF_TYPE_BIAS_KEY = 1 << 5,      /* attention_bias is of q, k, v and the output */
    HF_TYPE_QKV_BIAS_KEY = 1 << 6,  /* attention_bias is of q, k, v */
    HF_TYPE_MLP_BIAS_KEY = 1 << 7,  /* mlp_bias */
    HF_TYPE_USE_BIAS = 1 << 8,      /* use_bias is of attention and MLP */
    HF_TYPE_QK_NORM = 1 << 9,       /* of each head */
    HF_TYPE_QK_ROW_NORM = 1 << 10,  /* of all heads of a token */
    HF_TYPE_EXPERTS = 1 << 11,      /* in all layers that no key takes out */
    HF_TYPE_WINDOWS = 1 << 12,      /* layer_types may have sliding layers */
    HF_TYPE_WINDOW = 1 << 13,       /* sliding_window is of all layers */
    HF_TYPE_MAYBE_WINDOW = 1 << 14, /* ... where use_sliding_window says so */
    HF_TYPE_MLA = 1 << 15,
    HF_TYPE_GPT = 1 << 16,         /* family gpt */
    HF_TYPE_STATES_ONLY = 1 << 17, /* no attention: no heads */
    HF_TYPE_FLOORED = 1 << 18,     /* head_dim may be hidden / heads, rounded down */
    HF_TYPE_HEAD_BIAS = 1 << 19,
    HF_TYPE_EXPERT_FFN = 1 << 20,    /* experts are as wide as intermediate_size says */
    HF_TYPE_SIGMOID = 1 << 21,       /* router */
    HF_TYPE_QK_BIAS_FIRST = 1 << 22, /* biases of q, k, v where qkv_bias does not say otherwise */
    HF_TYPE_MAYBE_EXPERTS = 1 << 23, /* in some models only */
    HF_TYPE_GELU = 1 << 24,          /* is the activation where no key says so */
};

struct HfType {
    const char *name;
    unsigned is;
    void (*read)(HfImport *import); /* (nullable) what else it has */
    ModelNorm norm;
    ModelNormPlace place;
    ModelBlocks blocks;
    /* Defaults of the class, which nested files leave out; 0: none. */
    int64_t vocab, positions, head_dim, heads, kv_heads;
    int64_t every; /* the layer that sees all tokens, of those with windows */
    double epsilon, base, local_base;
};

/* What cannot be told in a ModelArch: for the user. */
void hf_warn(const HfImport *import, const char *format, ...) G_GNUC_PRINTF(2, 3);

/* Whether @key is there, and not null. */
bool hf_has(const HfImport *import, const char *key);

/* Of @keys (separated by '|') the first that is there, else the first. */
const char *hf_pick(const HfImport *import, const char *keys);

/* An integer of the first of @keys; absent and null mean @fallback (transformers writes both). */
int64_t hf_number_or(const HfImport *import, const char *keys, int64_t min, int64_t max,
                     int64_t fallback);

/* An integer that must be there. */
int64_t hf_number(const HfImport *import, const char *keys, int64_t min, int64_t max);

/* From 1; where @fallback is 0, it must be there. */
int64_t hf_number_from(const HfImport *import, const char *keys, int64_t max, int64_t fallback);

/* A number of @object; absent and null mean @fallback. */
double hf_real_or(const HfImport *import, const JsonValue *object, const char *key, double min,
                  double max, double fallback);

/* A factor, 0 where it is 1 or absent. */
double hf_factor(const HfImport *import, const char *key);

bool hf_flag_or(const HfImport *import, const char *key, bool fallback);

/* Returns: (nullable) an array; NULL where it is absent or null. */
const JsonValue *hf_array_of(const HfImport *import, const char *key);

/* Reads @key, one word for each layer, into import->mix.  Returns false where it is not there. */
bool hf_read_mixes(HfImport *import, const char *key);

/* All but every @n-th layer mix as @others. */
void hf_set_every(HfImport *import, int64_t n, HfMix others);
