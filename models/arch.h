/*
 * models/arch.h - what is trained: a Transformer's widths, and what follows from them alone.
 *
 * Parameters, FLOPs, and the list of ops of one layer with their shapes, memory traffic,
 * collectives and the activations they keep.  That list (model_ops) is the one description of a
 * layer in the project: the cost model prices its ops, the memory model sums their saved bytes, and
 * the executor's layer is the same list as code.  Knows no machine, no time, no schedule.
 *
 * Sources: Vaswani et al. 1706.03762; Narayanan et al. 2104.04473 (FLOPs, appendix); Korthikanti et
 * al. 2205.05198 table 2 (activation bytes); Shoeybi et al. 1909.08053 (tensor parallelism);
 * Shazeer 2002.05202 (SwiGLU); Ainslie et al. 2305.13245 (GQA); DeepSeek-V2 2405.04434 (MLA).
 *
 * Errors: JSON_ERROR_INVALID with file and path.  Thread-safety: values; no globals.
 */
#ifndef MODELS_ARCH_H
#define MODELS_ARCH_H

#include "base/dtype.h"
#include "base/json.h"

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

G_BEGIN_DECLS

typedef enum {
    MODEL_FAMILY_GPT,   /* LayerNorm, biases, GELU, learned positions */
    MODEL_FAMILY_LLAMA, /* RMSNorm, no biases, SwiGLU, RoPE */
    MODEL_FAMILY_N,
} ModelFamily;

extern const char *const model_family_names[MODEL_FAMILY_N + 1];

/* Mixture of experts; n_experts == 0 means a dense model. */
typedef struct {
    int64_t n_experts;
    int64_t top_k;              /* experts per token */
    int64_t ffn_hidden;         /* of one expert */
    int64_t n_shared;           /* experts that see every token, of the same width */
    int64_t first_dense_layers; /* leading layers with the dense MLP */
} ModelExperts;

/* Multi-head latent attention; kv_lora_rank == 0 means plain attention. */
typedef struct {
    int64_t q_lora_rank; /* 0: queries are projected directly */
    int64_t kv_lora_rank;
    int64_t qk_nope_head_dim;
    int64_t qk_rope_head_dim;
    int64_t v_head_dim;
} ModelMla;

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
    bool qkv_bias; /* default: family gpt */
    bool qk_norm;
    ModelExperts experts;
    ModelMla mla;
} ModelArch;

void model_arch_free(ModelArch *arch);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ModelArch, model_arch_free)
ModelArch *model_arch_copy(const ModelArch *arch);

/*
 * Reads "degas-model" keys from @object (format and version may be present and are accepted).
 * Returns: (owned) never NULL; errors are recorded in @doc.  Checks ranges and divisibility: heads
 * by n_kv_heads, top_k <= n_experts, first_dense_layers <= n_layers, head_dim even for llama.
 */
ModelArch *model_arch_read(JsonDoc *doc, const JsonValue *object);

/* Writes the complete model object with "format" and "version" under @key (nullable). */
void model_arch_write(JsonWriter *writer, const char *key, const ModelArch *arch);

/*
 * A built-in name, a degas model file, or a Hugging Face config.json; tells them apart by content.
 * Returns NULL on JSON_ERROR_INVALID or G_FILE_ERROR_NOENT (message suggests the nearest built-in).
 * @warnings  (out, owned, nullable) GPtrArray of lines about what was approximated or ignored.
 */
ModelArch *model_arch_load(const char *name_or_path, GPtrArray **warnings, GError **error);

/* Hugging Face config.json (models/huggingface.c): gpt2, llama, mistral, qwen2, qwen3, qwen3_moe,
 * mixtral, deepseek_v3.  Unknown keys are ignored; an unknown model_type is an error naming those.
 */
ModelArch *model_arch_read_huggingface(JsonDoc *doc, const char *name, GPtrArray *warnings);

/* --- parameters --- */

typedef enum {
    MODEL_PART_EMBEDDING, /* token (and learned position) tables */
    MODEL_PART_LAYER,
    MODEL_PART_HEAD, /* final norm, output projection, loss */
} ModelPart;

/* Whether @layer has experts. */
bool model_layer_is_moe(const ModelArch *arch, int64_t layer);

/*
 * Parameters that one rank holds of @part (of layer @layer if a layer).  tp divides attention, MLP
 * and vocabulary (padded up to a multiple of tp), norms and biases of row-split matrices are
 * replicated; ep divides experts.  A tied head holds the table again when it is not on the
 * embedding's stage: pass that by asking with @tied_copy.
 */
int64_t model_part_parameters(const ModelArch *arch, ModelPart part, int64_t layer, int64_t tp,
                              int64_t ep, bool tied_copy);

/* Of which belong to experts (they are replicated over dp*cp*tp/ep ranks instead of dp*cp). */
int64_t model_expert_parameters(const ModelArch *arch, int64_t layer, int64_t tp, int64_t ep);

int64_t model_parameters(const ModelArch *arch);        /* all, once */
int64_t model_active_parameters(const ModelArch *arch); /* seen by one token */

/*
 * Model FLOPs of one training iteration, the numerator of model FLOP utilisation: 3x forward,
 * 2 per multiply-add, causal attention counted in full (2104.04473's convention), no recompute.
 * @n_sequences of @seq_len tokens.
 */
double model_flops_per_iteration(const ModelArch *arch, double n_sequences, int64_t seq_len);

/* --- ops of one part, as one rank executes them --- */

/* What is computed at once, and how it is split. */
typedef struct {
    int64_t batch;   /* sequences of the micro-batch */
    int64_t tokens;  /* new tokens of the slice, before cp and sp divide them */
    int64_t context; /* tokens of the same sequences before the slice */
    int64_t tp, cp, ep;
    bool sequence_parallel;
    bool flash_attention;    /* scores never reach memory */
    bool dropout;            /* masks are kept (frameworks of 2019 to 2022) */
    Dtype dtype;             /* of weights and activations */
    double expert_imbalance; /* >= 1: load of the fullest expert rank over the mean; 1 if unknown */
} ModelShape;

typedef enum {
    MODEL_OP_GEMM,      /* count products C[m,n] = A[m,k] B[k,n]; B is a weight */
    MODEL_OP_ATTENTION, /* scores, softmax, values of `count` (sequence, head) pairs */
    MODEL_OP_MEMORY,    /* bound by memory traffic: norms, activations, residuals, loss */
    MODEL_OP_COLLECTIVE,
} ModelOpKind;

typedef enum {
    MODEL_COMM_NONE,
    MODEL_COMM_ALL_REDUCE,
    MODEL_COMM_ALL_GATHER,
    MODEL_COMM_REDUCE_SCATTER,
    MODEL_COMM_ALL_TO_ALL,
    MODEL_COMM_RING_EXCHANGE, /* context parallel: K and V pass round the ring */
} ModelComm;

typedef enum {
    MODEL_GROUP_TP,
    MODEL_GROUP_CP,
    MODEL_GROUP_EP
} ModelGroup;

/* One op.  Bytes and FLOPs are of one rank; backward of a GEMM is two products of the same FLOPs.
 */
typedef struct {
    const char *name; /* static: "norm1", "qkv", "attention", "proj", "mlp_up", ... */
    ModelOpKind kind;
    int64_t count, m, n, k; /* GEMM: shapes of the forward product; attention: see below */
    /* attention: m query tokens, n key tokens (context + tokens), k head size, count = batch*heads,
     * causal_fraction of the m*n scores needed; kernels that cannot skip pay for all. */
    double causal_fraction;
    double forward_flops;  /* multiply-adds * 2 really needed (attention: in full, not causal) */
    double backward_flops; /* input and weight gradients together, without recompute */
    int64_t weight_bytes;  /* read in forward and in the input-gradient; written by the weight's */
    int64_t forward_bytes; /* activations read and written, when each is touched once */
    int64_t backward_bytes;
    int64_t n_kernels_forward; /* launches of an eager framework */
    int64_t n_kernels_backward;
    /* collectives: bytes of the whole buffer (nccl-tests' size), group, kind in each direction */
    ModelGroup group;
    ModelComm forward_comm, backward_comm;
    int64_t comm_bytes;
    /* activations kept from forward to backward when nothing is recomputed */
    int64_t saved_bytes;
    int64_t saved_kv_bytes; /* the part of saved_bytes that is K and V (one slice's rows) */
    bool core_attention;    /* selective recompute: saved_bytes are not kept, op runs again */
} ModelOp;

#define MODEL_MAX_OPS 40

/*
 * Lists the ops of @part in execution order (forward).
 * @layer  which layer (dense and MoE layers differ); ignored for the other parts.
 * @ops    (out) room for MODEL_MAX_OPS.
 * Returns: the number of ops.  Errors are the caller's: shapes must be positive and divisible
 * (heads % tp, vocab padding is done here), g_return_val_if_fail otherwise.
 */
size_t model_ops(const ModelArch *arch, ModelPart part, int64_t layer, const ModelShape *shape,
                 ModelOp ops[MODEL_MAX_OPS]);

/* Bytes of a layer's input, [batch, tokens/cp (/tp with sequence parallelism), hidden]: what full
 * recompute keeps per layer and what a stage sends to the next. */
int64_t model_boundary_bytes(const ModelArch *arch, const ModelShape *shape);

G_END_DECLS

#endif /* MODELS_ARCH_H */
