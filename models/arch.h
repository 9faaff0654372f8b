/*
 * models/arch.h - the architecture of a language model: a stack of layers of a few kinds, the ends,
 * and how many parameters they have.
 *
 * A built-in model is one file models/NAME.json in the form below, which the program embeds; there
 * is no list of names elsewhere.  What a layer computes is models/ops.h.  Knows no machine, no
 * time, no schedule.
 *
 * A layer has a mixer, which looks at other tokens, and a feed-forward, which does not; either may
 * be missing.  Most models have layers of one kind, and their keys stand at the top of the file.
 * Others name kinds: each has the keys of the top, but for those that it gives itself, and a
 * pattern says which layer is of which kind.  Whoever looks at a layer asks model_layer_arch(),
 * whoever sums over layers asks model_count_kinds(); nobody else reads kinds or layers.
 *
 * Sources: Vaswani et al. 1706.03762; Shoeybi et al. 1909.08053 (tensor parallelism); Shazeer
 * 2002.05202 (SwiGLU); Ainslie et al. 2305.13245 (GQA); DeepSeek-V2 2405.04434 (MLA);
 * DeepSeek-V3.2 2512.02556 (its indexer); Dao and Gu 2405.21060 (Mamba-2); Gu and Dao 2312.00752
 * (Mamba); Yang et al. 2412.06464 (gated delta net); Kimi Linear 2510.26692 (KDA); MiniMax-01
 * 2501.08313 (lightning attention); Wang and Komatsuzaki, GPT-J (parallel blocks); Gemma 2
 * 2408.00118 (sandwich norms, soft caps); gpt-oss 2508.10925 (sinks); DeepSeek-V3 2412.19437
 * section 2.2 (multi-token prediction); LoRA 2106.09685 (adapters).
 *
 * JSON ("?" may be absent; then the family's usual value, in brackets):
 *
 *   {"format"?: "degas-model", "version"?: 1, "name"? ["custom"], "source"?,
 *    "family": "gpt"|"llama", "n_layers", "hidden", "n_heads", "n_kv_heads"? [n_heads],
 *    "head_dim"? [hidden / n_heads],
 *    "ffn_hidden"? [gpt: 4 hidden; llama: 8/3 hidden rounded up to a multiple of 256],
 *    "vocab", "max_seq_len", "tied_embeddings"? [gpt: true], "qkv_bias"? [gpt: true],
 *    "proj_bias"? [gpt: true], "qk_norm"? [false], "norm_epsilon"? [1e-5], "rope_base"? [10000],
 *    of the ends, each ? [none]: "head_bias", "embedding_norm", "no_final_norm", "position_rows"
 *             [max_seq_len], "embedding_scale", "logits_scale", "logits_cap",
 *    of a layer, each ? [as usual in the family]: "mixer", "ffn", "window", "chunk", "positions",
 *             "rotary_dim", "v_dim", "sinks", "output_gate", "qk_norm_kind", "attention_cap",
 *             "attention_scale", "residual_scale", "activation", "mlp_bias", "norm", "norm_place",
 *             "blocks",
 *    "experts"?: {"n_experts", "top_k", "ffn_hidden", "n_shared"? [0], "first_dense_layers"? [0],
 *             "shared_hidden"? [n_shared * ffn_hidden], "shared_gate"? [false], "router_bias"?
 *             [false], "bias"? [false], "latent"? [0], "router_scores"? ["softmax"],
 *             "router_scale"? [1]},
 *    "mla"?: {"q_lora_rank"? [0], "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
 *             "v_head_dim"},
 *    "indexer"?: {"n_heads", "head_dim", "top_k"},
 *    "state"?: {"n_heads", "n_key_heads"? [n_heads], "key_dim", "value_dim", "conv"? [0],
 *             "conv_bias"? [false], "bias"? [false], "rank"? [0], "chunk"? [64],
 *             "no_norm"? [false],
 *             "inner_norms"? [false]},
 *    "mtp"?: {"n"? [0], "kind"? [that of the last layer], "published"? [0],
 *             "loss_factor"? [0.1]},
 *    "lora"?: {"rank", "modules"? ["linear_qkv,linear_proj,linear_fc1,linear_fc2"]},
 *    "kinds"?: {NAME: {any key of a layer, "experts": null, "mla": null, ...}, ...},
 *    "layers"?: "10*(5*NAME, NAME), 2*NAME"}
 *
 * "norm_epsilon", "rope_base", "router_scores", "router_scale" and the modules' "loss_factor" change
 * neither time nor memory: exports and runs need them, so that the model that is trained is the one that was meant.
 *
 * With "mla", head_dim is qk_nope_head_dim + qk_rope_head_dim and n_kv_heads is n_heads.  With
 * "kinds", "layers" names the kind of each layer; "first_dense_layers" is not given then.
 *
 * What is approximated: MLA as its published matrices, trained decompressed (K and V of every head
 * are kept, as Megatron-Core does); the router's correction bias (no gradient makes it) is left
 * out; rotary tables are not parameters.
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

/* --- what a kind of layer is made of; 0 is what is usual in the family --- */

/* What looks at other tokens. */
typedef enum {
    MODEL_MIXER_ATTENTION, /* multi-head, grouped or latent */
    MODEL_MIXER_DELTA_NET, /* gated delta net: linear attention whose state forgets and corrects */
    MODEL_MIXER_KDA,       /* the same with a rate of forgetting for every channel of a key */
    MODEL_MIXER_MAMBA2,
    MODEL_MIXER_MAMBA,            /* its first version: a scan of every channel by itself */
    MODEL_MIXER_LIGHTNING,        /* linear attention with fixed decay */
    MODEL_MIXER_CONV,             /* a short gated convolution (LFM2) */
    MODEL_MIXER_ATTENTION_MAMBA2, /* both of the same input, added (Falcon-H1) */
    MODEL_MIXER_NONE,
    MODEL_MIXER_N,
} ModelMixer;

extern const char *const model_mixer_names[MODEL_MIXER_N + 1];

typedef enum {
    MODEL_FFN_MLP, /* of experts where the kind has experts */
    MODEL_FFN_NONE,
    MODEL_FFN_N,
} ModelFfn;

typedef enum {
    MODEL_ACTIVATION_USUAL,  /* gpt: GELU; llama: SwiGLU */
    MODEL_ACTIVATION_SWIGLU, /* those up to RELUGLU multiply with a second product */
    MODEL_ACTIVATION_GEGLU,
    MODEL_ACTIVATION_RELUGLU,
    MODEL_ACTIVATION_GELU,
    MODEL_ACTIVATION_RELU2, /* the square of ReLU */
    MODEL_ACTIVATION_RELU,
    MODEL_ACTIVATION_SILU,
    MODEL_ACTIVATION_N,
} ModelActivation;

typedef enum {
    MODEL_NORM_USUAL, /* gpt: LayerNorm; llama: RMSNorm */
    MODEL_NORM_RMS,
    MODEL_NORM_LAYER,       /* scale and shift */
    MODEL_NORM_LAYER_SCALE, /* LayerNorm without the shift */
    MODEL_NORM_PLAIN,       /* LayerNorm without parameters */
    MODEL_NORM_N,
} ModelNorm;

typedef enum {
    MODEL_NORM_PLACE_PRE,      /* before mixer and feed-forward */
    MODEL_NORM_PLACE_POST,     /* of their results, before these are added (OLMo 2) */
    MODEL_NORM_PLACE_SANDWICH, /* both (Gemma 2) */
    MODEL_NORM_PLACE_N,
} ModelNormPlace;

typedef enum {
    MODEL_BLOCKS_SERIAL,            /* the feed-forward reads what the mixer added */
    MODEL_BLOCKS_PARALLEL,          /* both read the layer's input, each through its own norm */
    MODEL_BLOCKS_PARALLEL_ONE_NORM, /* ... and through one norm */
    MODEL_BLOCKS_N,
} ModelBlocks;

typedef enum {
    MODEL_POSITIONS_USUAL, /* gpt: learned; llama: rotary */
    MODEL_POSITIONS_ROTARY,
    MODEL_POSITIONS_LEARNED, /* a table that is added to the embedding */
    MODEL_POSITIONS_NONE,
    MODEL_POSITIONS_ALIBI, /* added to the scores */
    MODEL_POSITIONS_N,
} ModelPositions;

/* What the norm of queries and keys spans.  It is of the kind of the layer's norms, without a shift but
 * in MODEL_QK_NORM_HEAD where `norm` says that it is MODEL_NORM_LAYER (Persimmon). */
typedef enum {
    MODEL_QK_NORM_HEAD,  /* each head, with the same scale */
    MODEL_QK_NORM_ROW,   /* all heads of a token together; tp ranks would have to add up */
    MODEL_QK_NORM_HEADS, /* each head, with its own scale */
    MODEL_QK_NORM_PLAIN, /* each head, without parameters */
    MODEL_QK_NORM_N,
} ModelQkNormKind;

/* A sigmoid of another product of the layer's input, which attention's result is multiplied with. */
typedef enum {
    MODEL_OUTPUT_GATE_NONE,
    MODEL_OUTPUT_GATE_ELEMENT, /* of each element */
    MODEL_OUTPUT_GATE_HEAD,    /* of each head */
    MODEL_OUTPUT_GATE_N,
} ModelOutputGate;

/* Mixture of experts; n_experts == 0 means a dense model. */
typedef struct {
    int64_t n_experts;
    int64_t top_k;              /* experts per token */
    int64_t ffn_hidden;         /* of one expert */
    int64_t n_shared;           /* experts that see every token */
    int64_t first_dense_layers; /* leading layers with the dense MLP; 0 with kinds */
    ModelRouterScores router_scores;
    double router_scale;   /* the factors are multiplied by it; not 0 where there are experts */
    int64_t shared_hidden; /* of all shared experts together; 0: n_shared * ffn_hidden */
    int64_t latent; /* experts work on so many elements, made of a row by a product; 0: all */
    /* Copies of hot experts besides the experts themselves, which lie on the ranks of ep with them; with
     * one rank there are none.  They are no parameters of the model. */
    int64_t n_redundant;
    bool
        shared_gate; /* the shared experts' result is multiplied with a sigmoid of its own product */
    bool router_bias; /* the router's product has a bias that is trained */
    bool bias;        /* so have the experts' products; in family gpt they always have */
} ModelExperts;

/* Experts and copies of experts on the fullest of @ep ranks. */
static inline int64_t
model_n_local_experts(const ModelExperts *experts, int64_t ep)
{
    const int64_t n = experts->n_experts + (ep > 1 ? experts->n_redundant : 0);

    return (n + ep - 1) / ep;
}

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

/* The indexer of sparse attention: scores by a few small heads choose the keys that each query
 * attends to.  n_heads == 0: every query attends to all keys. */
typedef struct {
    int64_t n_heads, head_dim;
    int64_t top_k; /* keys of a query */
} ModelIndexer;

/*
 * The state of a mixer that is recurrent: each head has key_dim x value_dim numbers, which take in
 * one token after the other.  Queries and keys come in n_key_heads heads, which heads share.
 *   delta_net, kda, lightning   heads of linear attention; kda: rank of the gates' products, or 0
 *   mamba2    n_key_heads groups (of B and C), key_dim the state's size, value_dim the head's
 *   mamba     n_heads channels, value_dim 1, key_dim the state's size, rank of the time steps
 *   conv      n_heads channels, value_dim 1
 */
typedef struct {
    int64_t n_heads, n_key_heads, key_dim, value_dim;
    int64_t conv;  /* tokens that the convolution before the scan spans; 0: none */
    int64_t rank;  /* of products through a narrow middle */
    int64_t chunk; /* tokens that the scan's kernel takes at once */
    bool conv_bias;
    bool bias;        /* of the products in and out */
    bool no_norm;     /* the scan's result is not normed before the product out */
    bool inner_norms; /* mamba: B, C and time steps are normed (Jamba) */
} ModelState;

#define MODEL_STATE_CHUNK 64 /* what flash-linear-attention's kernels take at once */

/* So many kinds of layers a model may name, and have with that of its MTP modules; that many letters
 * their names. */
#define MODEL_MAX_NAMED_KINDS 8
#define MODEL_MAX_KINDS (MODEL_MAX_NAMED_KINDS + 1)
#define MODEL_MAX_KIND_NAME 31

/*
 * Modules that predict tokens beyond the next, behind the last layer  [DeepSeek-V3 2412.19437
 * section 2.2].  Module k norms what the one before it (the last layer, for the first) gives and the
 * embedding of the token k further on, projects both together to the width of a layer, and is a
 * layer then, with a norm behind it.  Modules share the embedding's table and the head, which makes
 * logits and a loss of each module's result besides the model's own.  What is trained is the model's
 * loss plus loss_factor times the mean of the modules'.
 */
typedef struct {
    int64_t n;         /* modules that are trained; 0: none */
    int64_t published; /* how many its makers trained it with; 0: none, or it is not known */
    int32_t kind; /* of their layers: 1 + what model_layer_kind() says; 0: that of the last one */
    double loss_factor; /* of the mean of the modules' losses; 0: MODEL_USUAL_MTP_LOSS_FACTOR */
} ModelMtp;

#define MODEL_MAX_MTP 4

/*
 * Adapters of low rank: the model's own weights are frozen, and beside each product of @modules, W x,
 * is trained B A x, where A has @rank rows and B as many columns  [LoRA, 2106.09685].  Which modules
 * there are is models/lora.h.
 */
typedef struct {
    int64_t rank;     /* 0: there are none, and all weights are trained */
    uint32_t modules; /* set of ModelLoraModule */
} ModelLora;

#define MODEL_MAX_LORA_RANK 65536
#define MODEL_USUAL_MTP_LOSS_FACTOR 0.1 /* Megatron-Core's mtp_loss_scaling_factor */

/* A complete architecture; every field is set and consistent once loaded.  A kind of layer is
 * described by the same struct, of which n_layers, vocab and what is of the ends do not matter. */
typedef struct ModelArch ModelArch;
struct ModelArch {
    char *name;   /* (owned) of a kind: its name */
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
    /* The ends. */
    bool head_bias;         /* of the product that makes the logits */
    bool embedding_norm;    /* the embedding's rows are normed */
    bool no_final_norm;     /* the head's input is not */
    int64_t position_rows;  /* of the learned positions' table; 0: max_seq_len */
    double embedding_scale; /* the embedding's rows are multiplied with it; 0: 1 */
    double logits_scale;    /* so are the logits; 0: 1 */
    double logits_cap;      /* c tanh(logits / c); 0: none */
    /* A kind of layer. */
    ModelMixer mixer;
    ModelFfn ffn;
    int64_t window; /* a query sees so many keys, its own the last; 0: all before it */
    int64_t chunk;  /* a query sees the keys of its own chunk of so many tokens; 0: all */
    ModelPositions positions;
    int64_t rotary_dim; /* elements of a head that are rotated; 0: all */
    int64_t v_dim;      /* of a head's values; 0: head_dim */
    bool sinks;         /* each head has a score of its own that takes part in the softmax */
    ModelOutputGate output_gate;
    ModelQkNormKind qk_norm_kind; /* where there is qk_norm */
    double attention_cap;         /* c tanh(score / c); 0: none */
    double attention_scale;       /* scores are multiplied with it; 0: 1 / sqrt(head_dim) */
    double residual_scale;        /* so is what a layer adds; 0: 1 */
    ModelActivation activation;
    bool mlp_bias; /* in family gpt it is always there */
    ModelNorm norm;
    ModelNormPlace norm_place;
    ModelBlocks blocks;
    ModelExperts experts;
    ModelMla mla;
    ModelIndexer indexer;
    ModelState state;
    bool
        is_mtp; /* of model_kind_arch(): layers are those of MTP modules, with what is before them */
    ModelMtp mtp;
    ModelLora lora; /* kinds of layers have the model's */
    /* Named kinds; n_kinds == 0: the model says itself what its layers are. */
    int32_t n_kinds;
    ModelArch *kinds; /* (owned) */
    /* (owned) The number of the kind of each of the first n_pattern layers, then over again. */
    uint8_t *pattern;
    int64_t n_pattern;
};

void model_arch_free(ModelArch *arch);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ModelArch, model_arch_free)
ModelArch *model_arch_copy(const ModelArch *arch);

/* Has arch->experts say of a model whose kinds have experts what the first of these has.  After the
 * kinds have changed. */
void model_arch_settle(ModelArch *arch);

/* Defined, with all that reads and writes files, in models/arch_json.c, but for loading. */

/* Whether the same parameters mean the same function in both: all but name, source and max_seq_len
 * is equal.  Returns: (owned) "n_heads is 32, not 16", the first difference, @arch's value first;
 * NULL where there is none. */
char *model_arch_difference(const ModelArch *arch, const ModelArch *other);

/* Whether a layer of @kind of @arch and one of @other_kind of @other compute the same with other
 * weights: every key of a layer is equal, whatever the kinds are called and whichever layers they
 * are.  MTP modules are like those of a model with the same ends, and like no other layer. */
bool model_kinds_are_alike(const ModelArch *arch, int32_t kind, const ModelArch *other,
                           int32_t other_kind);

/* The same of embedding and head: the keys of the ends are equal, and norms and positions. */
bool model_ends_are_alike(const ModelArch *arch, const ModelArch *other);

/* Returns: (static, nullable) the first thing of layers or ends that plain Transformers do not have:
 * "layers of named kinds", "windows", "sinks", ...  NULL: what the model has is attention, plain or
 * latent, with qkv_bias, proj_bias and qk_norm, an MLP or experts as usual in the family, and the
 * usual ends.  Who computes or expresses no more than that refuses the model by this name. */
const char *model_arch_unusual(const ModelArch *arch);

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
 * Hugging Face config.json, as transformers 4 and 5 write it (models/huggingface.c; the table of
 * model_types is in huggingface_types.c).  Unknown keys are ignored; an unknown model_type is an
 * error naming those.
 * @name      becomes the model's name.
 * @warnings  (nullable) of (owned) char *: lines about what was ignored are added.
 * Returns: (owned) never NULL; errors are recorded in @doc.
 */
ModelArch *model_arch_read_huggingface(JsonDoc *doc, const char *name, GPtrArray *warnings);

/* --- parameters: defined in models/parameters.c --- */

/* Of attention: the elements of a head's values; the columns of its gate; the columns, on one of @tp ranks, of the product
 * that makes queries, keys, values and the gate of the result (not of MLA). */
int64_t model_v_dim(const ModelArch *arch);
int64_t model_gate_columns(const ModelArch *arch); /* of one head */
int64_t model_qkv_columns(const ModelArch *arch, int64_t tp);

/* What the products of a mixer with a state have on one of tp ranks; 0: there is no such thing. */
typedef struct {
    int64_t heads, keys, values; /* columns of all keys (or queries), of all values */
    int64_t in;                  /* columns of the product of the layer's input */
    int64_t down;                /* columns of another one, on all tp ranks, whose result has ... */
    int64_t up_rows, up; /* ... products of its own, of so many rows, with so many columns in all */
    int64_t middle;      /* columns of a product of the values, after the convolution */
    int64_t conv;        /* channels of the convolution */
    int64_t gates, rates; /* of a row, in fp32: decays, and rates of writing or time steps */
    int64_t vectors;      /* elements of what is no product: decays, biases */
    int64_t norm;         /* elements of the scale of the result's norm */
} ModelStateWidths;

ModelStateWidths model_state_widths(const ModelArch *arch, int64_t tp);

/* The mixer that has the state: MAMBA2 of ATTENTION_MAMBA2. */
ModelMixer model_state_mixer(const ModelArch *arch);

/* At least model_parameters() if all layers were as @arch's own fields say, in double: before
 * anything is known to fit int64_t. */
double model_parameters_estimate(const ModelArch *arch);

typedef enum {
    MODEL_PART_EMBEDDING, /* token (and learned position) tables */
    MODEL_PART_LAYER,
    MODEL_PART_HEAD, /* final norm, output projection, loss; logits and losses of MTP modules, too */
} ModelPart;

/* How many layers the stack has that stages divide: MTP modules are the layers from number n_layers
 * on. */
static inline int64_t
model_n_stacked(const ModelArch *arch)
{
    return arch->n_layers + arch->mtp.n;
}

/* How many MTP modules are among the first @n layers of the stack. */
static inline int64_t
model_n_mtp_before(const ModelArch *arch, int64_t n)
{
    return n > arch->n_layers ? n - arch->n_layers : 0;
}

/* How many losses the model has: its own, and one of each MTP module. */
static inline int64_t
model_n_losses(const ModelArch *arch)
{
    return 1 + arch->mtp.n;
}

/* What loss @i is multiplied with in the sum that is trained. */
static inline double
model_loss_weight(const ModelArch *arch, int64_t i)
{
    const double factor =
        arch->mtp.loss_factor > 0.0 ? arch->mtp.loss_factor : MODEL_USUAL_MTP_LOSS_FACTOR;

    return i == 0 ? 1.0 : factor / (double)MAX(1, arch->mtp.n);
}

/* Layers of one kind are alike.  A model without named kinds has one, or two where the first layers
 * have no experts: these are kind 0, those with experts kind 1.  MTP modules are the last kind. */
int32_t model_n_kinds(const ModelArch *arch); /* 1 to MODEL_MAX_KINDS */
int32_t model_layer_kind(const ModelArch *arch, int64_t layer);

/* Sets @n [kind] to how many layers are of each kind, 0 beyond the model's kinds. */
void model_count_kinds(const ModelArch *arch, int64_t n[MODEL_MAX_KINDS]);

/* The first layer of @kind; -1: no layer is. */
int64_t model_first_of_kind(const ModelArch *arch, int32_t kind);

/* Returns: (borrows from @arch) the model all of whose layers are as those of @kind, or as @layer:
 * its own fields describe them, and it has no named kinds. */
ModelArch model_kind_arch(const ModelArch *arch, int32_t kind);
ModelArch model_layer_arch(const ModelArch *arch, int64_t layer);

/* Returns: (borrowed) what tables call @kind: its name, "dense", "experts", "layer" or "mtp". */
const char *model_kind_name(const ModelArch *arch, int32_t kind);

/* Whether @layer has experts; how many layers of the stack have. */
bool model_layer_is_moe(const ModelArch *arch, int64_t layer);
int64_t model_n_moe_layers(const ModelArch *arch);

/* What is meant where a field has its usual value. */
ModelNorm model_norm(const ModelArch *arch);
ModelActivation model_activation(const ModelArch *arch);
ModelPositions model_positions(const ModelArch *arch);

static inline bool
model_is_gated(const ModelArch *arch)
{
    return model_activation(arch) <= MODEL_ACTIVATION_RELUGLU;
}

/* Whether the mixer has attention, latent attention, a state. */
static inline bool
model_has_attention(const ModelArch *arch)
{
    return arch->mixer == MODEL_MIXER_ATTENTION || arch->mixer == MODEL_MIXER_ATTENTION_MAMBA2;
}

static inline bool
model_has_mla(const ModelArch *arch)
{
    return model_has_attention(arch) && arch->mla.kv_lora_rank > 0;
}

static inline bool
model_has_state(const ModelArch *arch)
{
    return arch->mixer != MODEL_MIXER_ATTENTION && arch->mixer != MODEL_MIXER_NONE;
}

/* Biases of the output projection, of the MLP, of the experts: of family gpt all have them. */
static inline bool
model_has_proj_bias(const ModelArch *arch)
{
    return arch->family == MODEL_FAMILY_GPT || arch->proj_bias;
}

static inline bool
model_has_mlp_bias(const ModelArch *arch)
{
    return arch->family == MODEL_FAMILY_GPT || arch->mlp_bias;
}

static inline bool
model_has_expert_bias(const ModelArch *arch)
{
    return arch->family == MODEL_FAMILY_GPT || arch->experts.bias;
}

/* Columns of all shared experts together. */
static inline int64_t
model_shared_hidden(const ModelExperts *experts)
{
    return experts->n_shared == 0       ? 0
           : experts->shared_hidden > 0 ? experts->shared_hidden
                                        : experts->n_shared * experts->ffn_hidden;
}

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
 * Parameters that one rank holds of @part, which is @layer if it is a layer, adapters among them.  tp divides attention,
 * MLP, shared experts and the vocabulary (padded up to a multiple of tp); ep divides the number of
 * experts, and etp each expert.  Norms, biases of row-split matrices, routers, learned positions
 * and MLA's down-projections are on all ranks; K/V heads are copied where there are fewer than tp.
 * @tied_copy  the head holds the tied table again, since the embedding is on another rank.
 * An MTP module's are without the embedding's table, which its rank has, too: model_table_parameters().
 */
int64_t model_part_parameters(const ModelArch *arch, ModelPart part, int64_t layer, int64_t tp,
                              int64_t ep, int64_t etp, bool tied_copy);

/* Those of them that are trained: all, or with adapters these alone. */
int64_t model_part_trained(const ModelArch *arch, ModelPart part, int64_t layer, int64_t tp,
                           int64_t ep, int64_t etp, bool tied_copy);

/* Elements of the table of tokens on one of @tp ranks, for whoever holds a copy of it. */
int64_t model_table_parameters(const ModelArch *arch, int64_t tp);

/* Those of experts: dp cp tp / (ep etp) ranks hold the same ones, of all others dp cp ranks. */
int64_t model_expert_parameters(const ModelArch *arch, int64_t layer, int64_t ep, int64_t etp);

int64_t model_parameters(const ModelArch *arch);         /* all, once */
int64_t model_trained_parameters(const ModelArch *arch); /* all, or adapters alone */
int64_t model_active_parameters(const ModelArch *arch);  /* that one token passes through */
