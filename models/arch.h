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
 * JSON ("?" may be absent; then the family's usual value, in brackets):
 *
 *   {"format"?: "degas-model", "version"?: 1, "name"? ["custom"], "source"?, "family":
 * "gpt"|"llama", "n_layers", "hidden", "n_heads", "n_kv_heads"? [n_heads], "head_dim"? [hidden /
 * n_heads], "ffn_hidden"? [gpt: 4 hidden; llama: 8/3 hidden rounded up to a multiple of 256],
 *    "vocab", "max_seq_len", "tied_embeddings"? [gpt: true], "qkv_bias"? [gpt: true],
 *    "qk_norm"? [false],
 *    "experts"?: {"n_experts", "top_k", "ffn_hidden", "n_shared"? [0], "first_dense_layers"? [0]},
 *    "mla"?: {"q_lora_rank"? [0], "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
 *             "v_head_dim"}}
 *
 * With "mla", head_dim is qk_nope_head_dim + qk_rope_head_dim and n_kv_heads is n_heads.
 *
 * What is approximated: MLA as its published matrices, trained decompressed (K and V of every head
 * are kept, as Megatron-Core does); MTP layers, sliding windows and the router's bias are left out;
 * rotary tables are not parameters.
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

#define MODEL_ARCH_ERROR (model_arch_error_quark())
GQuark model_arch_error_quark(void);

typedef enum {
    MODEL_ARCH_ERROR_SHAPE, /* degrees that do not divide the model, or sizes beyond all memory */
} ModelArchError;

/*
 * Bounds of what is read.  The parameters of a model stay below 2^53, so that all products of
 * widths fit int64_t and are exact in double.
 */
#define MODEL_MAX_LAYERS (INT64_C(1) << 16)
#define MODEL_MAX_HIDDEN (INT64_C(1) << 20)
#define MODEL_MAX_HEADS (INT64_C(1) << 16)
#define MODEL_MAX_FFN_HIDDEN (INT64_C(1) << 24)
#define MODEL_MAX_VOCAB (INT64_C(1) << 26)
#define MODEL_MAX_SEQ_LEN (INT64_C(1) << 30)
#define MODEL_MAX_EXPERTS (INT64_C(1) << 16)
#define MODEL_MAX_PARAMETERS (INT64_C(1) << 53)

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
 * Whether the same parameters mean the same function in both: all but name, source and max_seq_len
 * is equal.  Returns: (owned) "n_heads is 32, not 16", the first difference, @arch's value first;
 * NULL where there is none.
 */
char *model_arch_difference(const ModelArch *arch, const ModelArch *other);

/*
 * Reads "degas-model" keys from @object (format and version may be present and are accepted).
 * Returns: (owned) never NULL; errors are recorded in @doc.  Checks ranges and divisibility: heads
 * by n_kv_heads, top_k <= n_experts, first_dense_layers <= n_layers, head_dim even for llama.
 */
ModelArch *model_arch_read(JsonDoc *doc, const JsonValue *object);

/*
 * What every reader of a model ends with: checks the fields of @arch against each other as
 * model_arch_read does and records what is wrong at @value of @doc.
 */
void model_arch_check(JsonDoc *doc, const JsonValue *value, const ModelArch *arch);

/* Writes the complete model object with "format" and "version" under @key (nullable). */
void model_arch_write(JsonWriter *writer, const char *key, const ModelArch *arch);

/* Returns: (owned) GPtrArray of (owned) names of the built-in models, sorted. */
GPtrArray *model_arch_builtin_names(void);

/*
 * A built-in name, a degas model file, or a Hugging Face config.json; tells them apart by content.
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

/* Whether @layer has experts. */
bool model_layer_is_moe(const ModelArch *arch, int64_t layer);

/*
 * Parameters that one rank holds of @part (of layer @layer if a layer).  tp divides attention, MLP,
 * shared experts and vocabulary (padded up to a multiple of tp); norms, biases of row-split
 * matrices, routers, learned positions and MLA's down-projections are replicated; K/V heads are
 * copied where there are fewer than tp; ep divides the number of experts, etp each
 * one.  A tied head holds the
 * table again when it is not on the embedding's stage: pass that by asking with @tied_copy.
 */
int64_t model_part_parameters(const ModelArch *arch, ModelPart part, int64_t layer, int64_t tp,
                              int64_t ep, int64_t etp, bool tied_copy);

/* Of which belong to experts (replicated over dp*cp*tp/(ep*etp) ranks instead of dp*cp). */
int64_t model_expert_parameters(const ModelArch *arch, int64_t layer, int64_t ep, int64_t etp);

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
    int64_t etp; /* ranks that share each expert: divides tp; 0 is 1 */
    bool sequence_parallel;
    bool flash_attention;    /* scores never reach memory */
    bool first_flash;        /* by kernels of FlashAttention's first version */
    bool dropout;            /* masks are kept (frameworks of 2019 to 2022) */
    bool eager;              /* PyTorch's operations one by one: rotary embedding, SwiGLU, loss */
    bool eager_norms;        /* RMSNorm as well */
    bool eager_softmax;      /* unfused attention: scale, mask, casts and softmax as well */
    int64_t softmax_keys;    /* unfused attention by Megatron's softmax kernel, which takes up to as
                              * many keys and some shapes only, else eager; 0: any shape, one kernel */
    int64_t vocab_multiple;  /* columns of the head on a rank of tp; 0: as many as there are */
    Dtype dtype;             /* of weights and activations; fp8: see model_ops() */
    bool all_to_all;         /* cp: attention's heads are split, not its queries */
    bool gathered_kv;        /* cp: K and V are gathered before attention, no ring beside it */
    bool compiled_loss;      /* one buffer more: not in place */
    bool fused_loss;         /* one kernel, no copy in fp32 */
    bool loss_in_place;      /* the logits' gradient takes their place, in one pass */
    bool row_blocks;         /* memory in blocks of ops, layers, experts' rows: degas's executor */
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
    MODEL_GROUP_EP,
    MODEL_GROUP_ETP, /* ranks that share each expert */
    MODEL_GROUP_N,
} ModelGroup;

/* Kernels bound by memory that reach other shares of its bandwidth. */
typedef enum {
    MODEL_MEMORY_STREAM,  /* norms, activations, residuals: read and written in order */
    MODEL_MEMORY_LOSS,    /* reductions over the vocabulary */
    MODEL_MEMORY_PERMUTE, /* rows that are picked one by one: to experts and back */
    MODEL_MEMORY_COPY,    /* into the order of a collective of the op's group, and back */
} ModelMemoryKind;

/* One op.  Bytes and FLOPs are of one rank; backward of a GEMM is two products of the same FLOPs.
 */
typedef struct {
    const char *name; /* static: "norm1", "qkv", "attention", "proj", "mlp_up", ... */
    ModelOpKind kind;
    ModelMemoryKind memory_kind; /* of MODEL_OP_MEMORY */
    int64_t count, m, n, k;      /* GEMM: shapes of the forward product; attention: see below */
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
    /* what lives only while the op runs, beyond a product's result */
    int64_t forward_transient_bytes, backward_transient_bytes;
    /* activations kept from forward to backward when nothing is recomputed */
    int64_t saved_bytes;
    int64_t saved_kv_bytes; /* the part of saved_bytes that is K and V (one slice's rows) */
    /* the part of saved_bytes that weight gradients read: inputs of products; and what they read
     * besides, the gradient of a product's output.  Both stay where input and weight gradients are
     * ops apart  [2401.10241 table 1: 14 and 18 of 32 s b h] */
    int64_t saved_for_weight_bytes, output_gradient_bytes;
    bool first_flash;    /* attention: shape's */
    bool output_stays;   /* a product's: the next op saves it, so that it is not besides */
    bool core_attention; /* selective recompute: saved_bytes are not kept, op runs again */
    /* Memory is taken when the layer gets there, not when its pass begins; and what it is then in a
     * backward, or one of input gradients alone, besides what is saved and the input's gradient. */
    bool late;
    int64_t late_backward_bytes, late_input_bytes;
} ModelOp;

#define MODEL_MAX_OPS 48
/* Byte counts of one op saturate here: beyond any memory, and sums of 1000 still fit int64_t. */
#define MODEL_MAX_BYTES (INT64_C(1) << 52)

/*
 * Whether @shape can be computed: sizes positive and within bounds, tp divides heads, MLP and
 * shared experts (n_kv_heads and tp divide one another), ep divides experts and is 1 without them,
 * the bytes of one layer stay below MODEL_MAX_BYTES. Errors: MODEL_ARCH_ERROR_SHAPE; names the
 * degree and, for tp and ep, the legal values.
 */
bool model_shape_check(const ModelArch *arch, const ModelShape *shape, GError **error);

/*
 * Lists the ops of @part in execution order (forward); backward is the reverse order.  Names:
 *
 *   embedding  embedding, embedding_output; gpt: positions
 *   layer      norm1, attention_input, qkv, attention_input_again, qk_norm, rope, kv_exchange,
 *              kv_gradient_exchange, kv_order, attention, attention_merge, proj, attention_output,
 *              residual1, norm2, and
 *   - dense    mlp_input, mlp_up, mlp_input_again, mlp_activation, mlp_down, mlp_output, residual2
 *   - experts  router, route, experts_split, permute, dispatch, experts_up, experts_activation,
 *              experts_down, combine, unpermute, experts_merge, shared_input, shared_up,
 *              shared_input_again, shared_activation, shared_down, shared_output, residual2
 *   - MLA      in place of qkv: q_down, q_norm, kv_down, kv_norm, latent, q_up, kv_up, latent_again
 *   head       final_norm, head_input, logits, head_input_again, loss_max, loss_target, loss_sum,
 *              (eager: logits_gather instead of these three,) loss
 *
 * Rows: batch * tokens / cp of them reach the tensor-parallel products; norms, residuals and what
 * they keep see rows / tp with sequence parallelism.  Divisions round up: the fullest rank.
 *
 * The layer keeps, with h hidden, a heads, f ffn, e bytes per element, t = tp, m x n scores:
 *   norms their input; products their input (shared where two read the same tensor: kept once, with
 *   sequence parallelism as the local shard, gathered again in backward); q, k, v; unfused
 * attention the softmax, and with dropout its mask and result: m n (2 e + 1); fused attention 4
 * bytes per row and head (log-sum-exp) - its output is the product's input; GELU its input; SwiGLU
 * its two inputs; dropout one byte per element.  family gpt, dropout, fp16, unfused, f = 4 h: the
 * sum is Korthikanti's table 2: s b h (10 + 24/t + 5 a s / (h t)), 34 s b h / t + 5 a s^2 b / t
 * with sequence parallelism  [2205.05198].  family llama has no dropout. The head keeps logits in
 * fp32 (the softmax of 2205.05198 section 4.3): 4 bytes each.
 *
 * Tensor parallelism: identity forward and all-reduce backward before a column-split product, the
 * reverse after a row-split one  [1909.08053 figure 3: f, g]; with sequence parallelism all-gather
 * and reduce-scatter, and one more all-gather of the product's input in backward.  Collectives that
 * do nothing at this shape are not listed.
 *
 * Experts: tokens are dispatched to ep ranks; tp does not divide experts, each tp rank dispatches
 * its share of the rows.  Expert products are of the fullest rank: rows * top_k * expert_imbalance.
 * Probabilities are applied inside the activation (nothing kept for them).  all-to-all's comm_bytes
 * are of the fullest rank's buffer.
 *
 * With shape->row_blocks the experts' ops are late, and experts_down has what degas's executor
 * holds for the rows while experts work, beside model_scratch_bytes(): cost-model.md 6.3.
 *
 * With shape->eager, in family llama, norms, rotary embedding and SwiGLU are PyTorch's operations
 * one by one, and in both families so is the loss: every intermediate passes through memory (counts
 * at ops_add_norm(), add_rope(), add_activation(), add_loss()), RMSNorm keeps its input in fp32 and
 * its result before the weight, and the loss, not split by vocabulary, gathers the logits of all tp
 * ranks (logits_gather) and keeps them besides their logarithms.
 *
 * Kernel counts: an eager framework with fused norms, softmax, bias-GELU or SwiGLU,
 * bias-dropout-add and rotary kernels (Megatron-LM's defaults); one per collective.  Attention has
 * one forward kernel exactly when it is fused.
 *
 * @layer  which layer (dense and MoE layers differ); ignored for the other parts.
 * @ops    (out) room for MODEL_MAX_OPS.
 * Returns: the number of ops; 0 for embedding and head of a model without vocabulary.  Errors are
 * the caller's: shapes must pass model_shape_check() (its divisibility is checked again here, by
 * g_return_val_if_fail; too large counts of bytes saturate at MODEL_MAX_BYTES).
 */
size_t model_ops(const ModelArch *arch, ModelPart part, int64_t layer, const ModelShape *shape,
                 ModelOp ops[MODEL_MAX_OPS]);

/* What degas's executor takes for the whole of a B, and of an I, whatever layer of the model is at
 * work: cost-model.md 6.3. */
typedef struct {
    int64_t backward_bytes, input_bytes;
} ModelScratchBytes;

ModelScratchBytes model_scratch_bytes(const ModelArch *arch, const ModelShape *shape);

/* Bytes of a layer's input, [batch, tokens/cp (/tp with sequence parallelism), hidden]: what full
 * recompute keeps per layer and what a stage sends to the next. */
int64_t model_boundary_bytes(const ModelArch *arch, const ModelShape *shape);

G_END_DECLS

#endif /* MODELS_ARCH_H */
