/*
 * models/arch.h - the architecture of a Transformer: its widths, and how many parameters it has.
 *
 * A built-in model is one file models/NAME.json in the form below, which the program embeds; there
 * is no list of names elsewhere.  What a layer computes is models/ops.h.  Knows no machine, no
 * time, no schedule.
 *
 * Sources: Vaswani et al. 1706.03762; Shoeybi et al. 1909.08053 (tensor parallelism); Shazeer
 * 2002.05202 (SwiGLU); Ainslie et al. 2305.13245 (GQA); DeepSeek-V2 2405.04434 (MLA).
 *
 * JSON ("?" may be absent; then the family's usual value, in brackets):
 *
 *   {"format"?: "degas-model", "version"?: 1, "name"? ["custom"], "source"?,
 *    "family": "gpt"|"llama", "n_layers", "hidden", "n_heads", "n_kv_heads"? [n_heads],
 *    "head_dim"? [hidden / n_heads],
 *    "ffn_hidden"? [gpt: 4 hidden; llama: 8/3 hidden rounded up to a multiple of 256],
 *    "vocab", "max_seq_len", "tied_embeddings"? [gpt: true], "qkv_bias"? [gpt: true],
 *    "proj_bias"? [gpt: true], "qk_norm"? [false], "norm_epsilon"? [1e-5], "rope_base"? [10000],
 *    "experts"?: {"n_experts", "top_k", "ffn_hidden", "n_shared"? [0], "first_dense_layers"? [0],
 *                 "router_scores"? ["softmax"], "router_scale"? [1]},
 *    "mla"?: {"q_lora_rank"? [0], "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
 *             "v_head_dim"}}
 *
 * "norm_epsilon", "rope_base", "router_scores" and "router_scale" change neither time nor memory:
 * exports and runs need them, so that the model that is trained is the one that was meant.
 *
 * With "mla", head_dim is qk_nope_head_dim + qk_rope_head_dim and n_kv_heads is n_heads.
 *
 * What is approximated: MLA as its published matrices, trained decompressed (K and V of every head
 * are kept, as Megatron-Core does); MTP layers, sliding windows and the router's bias are left out;
 * rotary tables are not parameters.
 *
 * Errors: JSON_ERROR_INVALID with file and path.  Thread-safety: values; no globals.
 */
#pragma once

#include "base/dtype.h"
#include "base/json.h"

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum {
    MODEL_FAMILY_GPT,   /* LayerNorm, biases, GELU, learned positions */
    MODEL_FAMILY_LLAMA, /* RMSNorm, no biases, SwiGLU, RoPE */
    MODEL_FAMILY_N,
} ModelFamily;

#define MODEL_ARCH_ERROR (model_arch_error_quark())
GQuark model_arch_error_quark(void);

typedef enum {
    MODEL_ARCH_ERROR_SHAPE, /* degrees that do not divide the model, or sizes beyond all memory */
} ModelArchError;

/* Bounds of what is read.  The parameters of a model stay below 2^53, so that all products of
 * widths fit int64_t and are exact in double. */
#define MODEL_MAX_LAYERS (INT64_C(1) << 16)
#define MODEL_MAX_HIDDEN (INT64_C(1) << 20)
#define MODEL_MAX_HEADS (INT64_C(1) << 16)
#define MODEL_MAX_FFN_HIDDEN (INT64_C(1) << 24)
#define MODEL_MAX_VOCAB (INT64_C(1) << 26)
#define MODEL_MAX_SEQ_LEN (INT64_C(1) << 30)
#define MODEL_MAX_EXPERTS (INT64_C(1) << 16)
#define MODEL_MAX_PARAMETERS (INT64_C(1) << 53)

extern const char *const model_family_names[MODEL_FAMILY_N + 1];

/* How the scores of the chosen experts become the factors of their outputs. */
typedef enum {
    MODEL_ROUTER_SOFTMAX,     /* the softmax over the chosen [Jiang et al. 2401.04088] */
    MODEL_ROUTER_SOFTMAX_ALL, /* the softmax over all experts: shares of the chosen stay below 1 */
    MODEL_ROUTER_SIGMOID,     /* sigmoids over their sum [DeepSeek-V3 2412.19437] */
    MODEL_ROUTER_N,
} ModelRouterScores;

extern const char *const model_router_scores_names[MODEL_ROUTER_N + 1];

/* Mixture of experts; n_experts == 0 means a dense model. */
typedef struct {
    int64_t n_experts;
    int64_t top_k;              /* experts per token */
    int64_t ffn_hidden;         /* of one expert */
    int64_t n_shared;           /* experts that see every token, of the same width */
    int64_t first_dense_layers; /* leading layers with the dense MLP */
    ModelRouterScores router_scores;
    double router_scale; /* the factors are multiplied by it; not 0 where there are experts */
} ModelExperts;

/* Multi-head latent attention; kv_lora_rank == 0 means plain attention. */
typedef struct {
    int64_t q_lora_rank; /* 0: queries are projected directly */
    int64_t kv_lora_rank;
    int64_t qk_nope_head_dim;
    int64_t qk_rope_head_dim;
    int64_t v_head_dim;
} ModelMla;

#define MODEL_USUAL_NORM_EPSILON 1e-5 /* GPT-2's and Llama 2's */
#define MODEL_USUAL_ROPE_BASE 1e4     /* [Su et al. 2104.09864 section 3.2.2] */

/* A complete architecture; every field is set and consistent once loaded. */
typedef struct {
    char *name;   /* (owned) */
    char *source; /* (owned, nullable) where the numbers are from */
    ModelFamily family;
    int64_t n_layers;
    int64_t hidden;
    int64_t n_heads;
    int64_t n_kv_heads;
    int64_t head_dim;
    int64_t ffn_hidden; /* of the dense MLP */
    int64_t vocab;      /* 0: no embedding, head or loss */
    int64_t max_seq_len;
    bool tied_embeddings;
    bool qkv_bias;  /* default: family gpt; with MLA: of the down-projections */
    bool proj_bias; /* of attention's output projection; in family gpt it is always there */
    bool qk_norm;
    double norm_epsilon; /* added to the variance, or mean square, of every norm */
    double rope_base;    /* of rotary positions; family gpt has none */
    ModelExperts experts;
    ModelMla mla;
} ModelArch;

void model_arch_free(ModelArch *arch);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ModelArch, model_arch_free)
ModelArch *model_arch_copy(const ModelArch *arch);

/* Whether the same parameters mean the same function in both: all but name, source and max_seq_len
 * is equal.  Returns: (owned) "n_heads is 32, not 16", the first difference, @arch's value first;
 * NULL where there is none. */
char *model_arch_difference(const ModelArch *arch, const ModelArch *other);

/* Reads "degas-model" keys from @object (format and version may be present and are accepted).
 * Returns: (owned) never NULL; errors are recorded in @doc.  Checks ranges and divisibility: heads
 * by n_kv_heads, top_k <= n_experts, first_dense_layers <= n_layers, head_dim even for llama. */
ModelArch *model_arch_read(JsonDoc *doc, const JsonValue *object);

/* Checks the fields of @arch against each other, as every reader of a model does at its end, and
 * records what is wrong at @value of @doc. */
void model_arch_check(JsonDoc *doc, const JsonValue *value, const ModelArch *arch);

/* Writes the complete model object with "format" and "version" under @key (nullable). */
void model_arch_write(JsonWriter *writer, const char *key, const ModelArch *arch);

/* Returns: (owned) GPtrArray of (owned) names of the built-in models, sorted. */
GPtrArray *model_arch_builtin_names(void);

/*
 * A built-in name, a degas model file, a Hugging Face config.json, or a folder that holds one; files
 * are told apart by content.
 * A built-in name wins over a file of that name ("./name" is the file); "-" is standard input.
 * Returns NULL on JSON_ERROR_INVALID or G_FILE_ERROR_NOENT (message suggests the nearest built-in).
 * @warnings  (out, owned, nullable) GPtrArray of lines about what was approximated or ignored.
 */
ModelArch *model_arch_load(const char *name_or_path, GPtrArray **warnings, GError **error);

/*
 * Hugging Face config.json (models/huggingface.c): gpt2, llama, mistral, qwen2, qwen3, qwen3_moe,
 * mixtral, deepseek_v3.  Unknown keys are ignored; an unknown model_type is an error naming those.
 * @name      becomes the model's name.
 * @warnings  (nullable) of (owned) char *: lines about what was ignored are added.
 * Returns: (owned) never NULL; errors are recorded in @doc.
 */
ModelArch *model_arch_read_huggingface(JsonDoc *doc, const char *name, GPtrArray *warnings);

/* --- parameters --- */

typedef enum {
    MODEL_PART_EMBEDDING, /* token (and learned position) tables */
    MODEL_PART_LAYER,
    MODEL_PART_HEAD, /* final norm, output projection, loss */
} ModelPart;

/* Whether @layer has experts; how many layers have.  Layers are of two kinds at most: those before
 * first_dense_layers are alike, and so are those from there on. */
bool model_layer_is_moe(const ModelArch *arch, int64_t layer);
int64_t model_n_moe_layers(const ModelArch *arch);

/* @a / @b, rounded up: the share of the fullest of @b ranks.  @a >= 0, @b >= 1. */
static inline int64_t
model_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* Returns: (borrows from @arch) the model as its ranks hold and compute it where the vocabulary is
 * padded to a multiple of @multiple on each of @tp ranks; 0: it is not padded. */
ModelArch model_arch_padded(const ModelArch *arch, int64_t tp, int64_t multiple);

/*
 * Parameters that one rank holds of @part, which is @layer if it is a layer.  tp divides attention,
 * MLP, shared experts and the vocabulary (padded up to a multiple of tp); ep divides the number of
 * experts, and etp each expert.  Norms, biases of row-split matrices, routers, learned positions
 * and MLA's down-projections are on all ranks; K/V heads are copied where there are fewer than tp.
 * @tied_copy  the head holds the tied table again, since the embedding is on another rank.
 */
int64_t model_part_parameters(const ModelArch *arch, ModelPart part, int64_t layer, int64_t tp,
                              int64_t ep, int64_t etp, bool tied_copy);

/* Those of experts: dp cp tp / (ep etp) ranks hold the same ones, of all others dp cp ranks. */
int64_t model_expert_parameters(const ModelArch *arch, int64_t layer, int64_t ep, int64_t etp);

int64_t model_parameters(const ModelArch *arch);        /* all, once */
int64_t model_active_parameters(const ModelArch *arch); /* that one token passes through */
