/*
 * models/ops.h - the ops of a layer, the embedding and the head, as one rank executes them.
 *
 * model_ops() is the one description of a layer in the project: which ops it has, their shapes,
 * their memory traffic, their collectives, and the activations that they keep.  The cost model
 * prices its ops, the memory model sums their saved bytes, and the executor's layer is the same
 * list as code.  Knows no machine, no time, no schedule.
 *
 * Sources: Narayanan et al. 2104.04473 (FLOPs, appendix); Korthikanti et al. 2205.05198 table 2
 * (activation bytes); Shoeybi et al. 1909.08053 (tensor parallelism).
 */
#pragma once

#include "models/arch.h"

/* Kernels that compute attention without its scores reaching memory. */
typedef enum {
    MODEL_FLASH_FASTEST, /* the fastest that the device has */
    MODEL_FLASH_FIRST,   /* FlashAttention's first version */
    MODEL_FLASH_SECOND,  /* its second */
    MODEL_FLASH_TRITON,  /* the first version's algorithm in Triton */
} ModelFlash;

/* The tokens that an op computes at once, how they are split over ranks, and with which kernels. */
typedef struct {
    int64_t batch;   /* sequences of the micro-batch */
    int64_t tokens;  /* tokens of the slice, before cp and sequence parallelism divide them */
    int64_t context; /* tokens of the same sequences before the slice */
    int64_t tp, cp, ep;
    int64_t etp; /* how many tp ranks share each expert; divides tp; 0 means 1 */
    bool sequence_parallel;
    bool flash_attention; /* attention is one kernel: scores never reach memory */
    ModelFlash flash;     /* ... and this one */
    bool dropout;         /* dropout masks are kept (frameworks of 2019 to 2022) */
    bool eager;          /* rotary embedding, SwiGLU and loss are PyTorch's operations one by one */
    bool eager_norms;    /* ... and so is RMSNorm */
    bool complex_rotary; /* queries and keys are rotated as complex numbers in fp32, of which
                          * torch.compile makes no kernel */
    /* Scattered sums of tp after products, forward: the ranks send one another their parts while they compute, and
     * each adds up those of its rows. */
    bool sums_parts;
    /* Gradients of biases, and of LayerNorm's vectors, are summed by kernels that read the rows'
     * gradients again; else by the kernels that made these. */
    bool sums_biases, sums_norms;
    bool eager_softmax;     /* ... and scale, mask, casts and softmax of unfused attention */
    bool half_softmax;      /* ... which in fp16 masks scores in place, scales queries instead of
                             * scores, and reads scores of 16 bits into a result of 32 */
    bool caches_kv;         /* keys and values lie in tensors of the whole sequence, whose gradients
                             * autograd carries from each slice to the one before */
    int64_t whole_tokens;   /* of the sequence of which this is a slice; 0: context + tokens */
    int64_t softmax_keys;   /* Unfused attention: Megatron's softmax kernel takes rows of up to so
                             * many   keys and some shapes only; others are computed as with
                             * eager_softmax.   0: one kernel takes any shape. */
    int64_t vocab_multiple; /* of model_arch_padded() */
    Dtype dtype;            /* of weights and activations; quantised formats: see model_ops() */
    bool all_to_all;        /* cp ranks split attention's heads by all-to-all, not its queries */
    bool
        torch_ring; /* the ring is PyTorch's: keys and values of all heads, results merged in fp32 */
    bool gathered_kv;       /* cp ranks gather K and V before attention; else these pass a ring */
    bool compiled_loss;     /* the loss is compiled: one buffer more, since it is not in place */
    bool fused_loss;        /* the loss is one kernel, without a copy of the logits in fp32 */
    bool splits_eager_loss; /* the eager loss is of this tp rank's logits, not gathered */
    bool torch_loss;     /* the loss is PyTorch's cross entropy, whatever modules are fused: eager,
                             * or compiled as a whole */
    bool drops_logits;   /* the program gives the logits back when it has the eager loss */
    bool loss_in_place;  /* the logits' gradient overwrites the logits, in one pass */
    bool sorts_received; /* rows that come by all-to-all are sorted by expert, and back */
    bool one_copy; /* a row is sent once to each node or, in a node, rank, not to each expert */
    bool fused_permute; /* rows are sorted by expert within the exchange that carries them */
    bool
        host_counts; /* the host waits for how many rows experts have before it launches the rest */
    bool pads_experts; /* quantised products: rows of experts are copied to whole tiles, and back */
    bool expert_bias_apart; /* second biases of experts are added by kernels of their own */
    bool separate_matrices; /* family llama: queries, keys and values, and SwiGLU's halves, are
                             * products of their own, whose gradients of the input are then added */
    bool quantised_gathers; /* tp ranks quantise their shards of a product's input, and of the
                             * gradient of its result, before they gather them */
    double rescale_bytes;   /* of each number of backward products' results, of kernels that apply
                             * the scales to them; 0: the products do so */
    double quantise_bytes;  /* that quantising a number moves; 0: as many as the profile says */
    double transpose_bytes; /* ... more, where products take operands along one dimension alone */
    int graphs;             /* CUDA graphs hold ops of scopes up to this ModelScope; 0: none */
    /* Set of ModelModules that selective recompute repeats; 0: the core of attention. */
    uint32_t recompute_modules;
    bool row_blocks; /* memory comes in the blocks of degas's executor: of an op, of a layer, and of
                      * the rows that are at its experts */
    double expert_imbalance; /* >= 1: load of the fullest expert rank over the mean; 1: even */
} ModelShape;

/* What selective recompute may repeat: Megatron-Core's modules, in its order (core_attn, layernorm, mlp,
 * moe, moe_act, mla_up_proj, shared_experts), and torchtitan's policy over ops. */
typedef enum {
    MODEL_MODULE_CORE_ATTENTION,
    MODEL_MODULE_LAYERNORM,
    MODEL_MODULE_MLP,
    MODEL_MODULE_MOE,
    MODEL_MODULE_MOE_ACTIVATION,
    MODEL_MODULE_MLA_UP,
    MODEL_MODULE_SHARED_EXPERTS,
    MODEL_MODULE_OPS, /* alone */
    MODEL_MODULE_N,
} ModelModule;

typedef enum {
    MODEL_OP_GEMM,      /* count products C[m,n] = A[m,k] B[k,n]; B is a weight */
    MODEL_OP_ATTENTION, /* scores, softmax, values of `count` (sequence, head) pairs */
    MODEL_OP_SCAN,      /* m tokens, n at once, pass `count` (sequence, head) states of k keys */
    MODEL_OP_MEMORY,    /* bound by memory traffic: norms, activations, residuals, loss */
    MODEL_OP_COLLECTIVE,
} ModelOpKind;

typedef enum {
    MODEL_COMM_NONE,
    MODEL_COMM_ALL_REDUCE,
    MODEL_COMM_ALL_GATHER,
    MODEL_COMM_REDUCE_SCATTER,
    MODEL_COMM_ALL_TO_ALL,
    MODEL_COMM_RING_EXCHANGE, /* K and V pass round the ring of context-parallel ranks */
} ModelComm;

/* The groups of ranks whose collectives stand between the ops of a layer. */
typedef enum {
    MODEL_GROUP_TP,
    MODEL_GROUP_CP,
    MODEL_GROUP_EP,
    MODEL_GROUP_ETP, /* ranks that share each expert */
    MODEL_GROUP_N,
} ModelGroup;

/* What an op is to the products that tp ranks split by columns and that read one input. */
typedef enum {
    MODEL_COLUMNS_NONE,
    MODEL_COLUMNS_PRODUCT,
    MODEL_COLUMNS_GRADIENT, /* a collective: backward, sums the gradients of the input */
    MODEL_COLUMNS_AGAIN, /* a collective: backward, gathers the input for the weights' gradients */
} ModelColumns;

/* Where in the model an op stands, as frameworks capture it: a captured scope holds those before. */
typedef enum {
    MODEL_SCOPE_NONE,
    MODEL_SCOPE_ROUTER,    /* norm before experts, router, and what prepares their rows */
    MODEL_SCOPE_ATTENTION, /* norm, attention, its products */
    MODEL_SCOPE_LAYER,     /* the rest of a layer: MLP, experts */
    MODEL_SCOPE_ITERATION, /* embedding, head, loss */
} ModelScope;

/* Kinds of memory-bound kernels, which reach different shares of the memory's rate. */
typedef enum {
    MODEL_MEMORY_STREAM,  /* reads and writes in order: norms, activations, residuals */
    MODEL_MEMORY_LOSS,    /* reduces over the vocabulary */
    MODEL_MEMORY_PERMUTE, /* picks rows one by one: to experts and back */
    MODEL_MEMORY_WORDS,   /* a few words each: their time is their launch */
    MODEL_MEMORY_COPY,    /* puts data in the order that a collective of the op's group needs */
} ModelMemoryKind;

/* One op.  Bytes and FLOPs are those of one rank; the backward of a GEMM is two products, each with
 * the FLOPs of the forward. */
typedef struct {
    const char *name; /* (static) "norm1", "qkv", "attention", "proj", "mlp_up", ... */
    ModelOpKind kind;
    ModelScope scope;
    bool captured;   /* by a CUDA graph: no host time */
    bool after_wait; /* forward, the host launches it when the device has done what is before it */
    bool one_kernel; /* products of experts: a kernel that finds the sizes of all in memory */
    ModelMemoryKind memory_kind; /* of MODEL_OP_MEMORY */
    bool
        in_exchange; /* of MODEL_OP_MEMORY: counts as its group's collectives, and hides as they do */
    /* GEMM: the shape of the forward product.  Attention: m query tokens, n key tokens (context +
     * tokens), head size k, count = sequences * heads. */
    int64_t count, m, n, k;
    double causal_fraction; /* attention: the share of the scores that count that is needed */
    double needed_fraction; /* ... and of all m n scores; the same unless a window bounds them */
    double forward_flops;   /* 2 for each multiply-add; attention counts all scores */
    double backward_flops;  /* gradients of input and weight together, without recompute */
    /* Bytes of the weights: read in F and for the input's gradient, written for the weight's. */
    int64_t weight_bytes;
    int64_t forward_bytes; /* of activations that are read or written, each once */
    int64_t backward_bytes;
    int64_t n_kernels_forward; /* launches of an eager framework */
    int64_t n_kernels_backward;
    /* Collectives: the group, what runs in each direction, and the bytes of the whole buffer, as
     * nccl-tests counts them. */
    ModelGroup group;
    ModelComm forward_comm, backward_comm;
    int64_t comm_bytes;
    int64_t copies; /* of each row in comm_bytes; 0: all of them are sent, else one to each place */
    /* Of all copies, what goes with each to a place and is about the whole of it: of several places each
     * gets its part. */
    int64_t place_bytes;
    /* Bytes that exist only while the op runs, beyond the result of a product. */
    int64_t forward_transient_bytes, backward_transient_bytes;
    /* Activations that are kept from forward to backward when nothing is recomputed, and how much
     * of that is K and V of the slice. */
    int64_t saved_bytes;
    int64_t saved_kv_bytes;
    int64_t saved_state_bytes; /* the part of saved_kv_bytes that is a state: in fp32, and of which
                                * backward has one gradient at a time */
    /* The part of saved_bytes that weight gradients read, which are the inputs of products; and the
     * gradient of the product's output, which they read too.  Where input and weight gradients are
     * two ops (I and W), both are kept from I to W  [2401.10241 table 1: 14 and 18 of 32 s b h]. */
    int64_t saved_for_weight_bytes, output_gradient_bytes;
    /* A product: operands stay in the format in which they are stored, also where other products take
     * quantised ones; else how many elements are quantised, forward of the input, backward of the
     * output's gradient, once for both backward products. */
    bool stored_operands;
    double quantised_forward, quantised_backward;
    double quantise_bytes, transpose_bytes, rescale_bytes; /* those of the shape */
    ModelFlash flash;                                      /* attention: that of the shape */
    bool expert; /* a product of the experts that only some rows pass */
    /* Its weights are not trained: backward of a product is the gradient of the input alone, with half of
     * backward_bytes. */
    bool frozen;
    const char *adapts; /* (static, nullable) the product beside which the op's adapter is */
    ModelColumns columns;
    bool output_stays;   /* a product whose result the next op saves: it is counted there */
    bool core_attention; /* scores, softmax, values, and what merges them */
    /* With selective recompute this share of the forward runs again, and so much of saved_bytes is
     * not kept (less than 0: more is kept, which another op counts without recompute).
     *   modules             those of the table in models/modules.c
     *   MODEL_MODULE_OPS    all but attention and every first of two products, counted from the
     *                       first of the layer, whose results are kept [torchtitan, _apply_ac_to_
     *                       transformer_block(): the option "op"].  Nothing after the last product. */
    double again_fraction;
    int64_t again_bytes;
    int64_t again_kv_bytes; /* K and V that are not kept either, unless later slices read them */
    /* The op takes its memory when the layer gets to it, and not when the pass begins.
     * late_backward_bytes and late_input_bytes are what it then takes in a B, or in an I, besides
     * saved_bytes and the gradient of the layer's input. */
    bool late;
    int64_t late_backward_bytes, late_input_bytes;
} ModelOp;

/* Whether cp ranks hand the states of mixers on in the order of the sequence, as degas's executor does
 * [LASP, 2404.02882]; else they exchange heads for tokens  [Megatron-Core]. */
static inline bool
model_passes_states(const ModelShape *shape)
{
    return shape->row_blocks && shape->cp > 1;
}

#define MODEL_MAX_OPS 128
/* Counts of bytes stop here: beyond any memory, and the sum of 1000 of them fits int64_t. */
#define MODEL_MAX_BYTES (INT64_C(1) << 52)

/*
 * Whether @shape can be computed: its sizes are positive and within bounds; tp divides heads, MLP
 * and shared experts; n_kv_heads divides tp or the reverse; ep divides the experts and is 1 without
 * them; tp * cp divides heads that cp ranks exchange for tokens; the bytes of one layer stay below
 * MODEL_MAX_BYTES.
 * Errors: MODEL_ARCH_ERROR_SHAPE names the degree and, for tp and ep, the legal values.
 * Defined in models/shape_check.c.
 */
bool model_shape_check(const ModelArch *arch, const ModelShape *shape, GError **error);

/*
 * Lists the ops of @part in execution order (forward); backward is the reverse order.  Names:
 *
 *   embedding  embedding, embedding_output; gpt: positions
 *   layer      norm1, attention_input, qkv (separate matrices: q, k, v, attention_input_sum),
 *              attention_input_again, qk_norm, qk_norm_sum, rope, kv_exchange,
 *              kv_gradient_exchange, kv_order, attention, attention_merge, proj, attention_output,
 *              residual1, norm2, and (post norms: post_norm1 after attention_output and post_norm2
 *              before residual2, besides or in place of norm1 and norm2); parts_sum after each output
 *              (..._output) whose parts the ranks add up themselves
 *   - dense    mlp_input, mlp_up (separate matrices: mlp_up, mlp_gate, mlp_input_sum), mlp_input_again,
 *              mlp_activation, mlp_down, mlp_output, residual2
 *   - experts  router, route, count, maps, probabilities, experts_split, permute, dispatch,
 *              sort, experts_up, experts_activation, experts_down, experts_bias, sort_back, combine,
 *              unpermute (one_copy: permute after dispatch, unpermute before combine), experts_merge,
 *              shared_input, shared_up,
 *              shared_input_again, shared_activation, shared_down, shared_output, residual2
 *   - MLA      in place of qkv: q_down, q_norm, kv_down, kv_norm, latent, q_up, kv_up, latent_again
 *   - indexer  index_queries, index_key, index_norm, index_weights, index_scores, before attention
 *   - a state  in place of attention and what belongs to it: mixer_input, mixer_in, mixer_down,
 *              mixer_up, mixer_input_again, conv, mixer_middle, mixer_steps, heads_split, scan,
 *              heads_merge, mixer_norm, mixer_out, mixer_output
 *   - latent   latent_down before permute, latent_up after unpermute; shared_gate, shared_gated
 *   - MTP      before the ops of its layer: embedding, embedding_output, mtp_embedding_norm,
 *              mtp_hidden_norm, mtp_join, mtp_input, mtp_proj, mtp_input_again, mtp_gather; after
 *              them mtp_final_norm
 *   - adapters behind the product MODULE (qkv, q, k, v, proj, fc1, fc1_gate, fc1_up, fc2) that they are
 *              beside: MODULE_lora_a, _sum or _gather, _b, _gather, _add, _input_sum (ops_lora.c)
 *   head       final_norm, and for the model and each MTP module head_input, logits,
 *              head_input_again, loss_max, loss_target, loss_sum, (eager, not split: logits_gather
 *              instead of these three,) loss
 *
 * Rows: batch * tokens / cp of them reach the tensor-parallel products; norms, residuals and what
 * they keep see rows / tp with sequence parallelism.  Divisions round up: the fullest rank.
 *
 * The layer keeps, with h hidden, a heads, f ffn, e bytes per element, t = tp, m x n scores:
 *   norms their input; products their input (shared where two read the same tensor: kept once, with
 *   sequence parallelism as the local shard, gathered again in backward); q, k, v; unfused attention
 *   the softmax, and with dropout its mask and result: m n (2 e + 1); fused attention 4 bytes per
 *   row and head (log-sum-exp) - its output is the product's input; GELU its input; SwiGLU its two
 *   inputs; dropout one byte per element.  family gpt, dropout, fp16, unfused, f = 4 h: the sum is
 *   Korthikanti's table 2: s b h (10 + 24/t + 5 a s / (h t)), 34 s b h / t + 5 a s^2 b / t with
 *   sequence parallelism  [2205.05198].  family llama has no dropout.  The head keeps logits in
 *   fp32 (the softmax of 2205.05198 section 4.3): 4 bytes each.
 *
 * A window or chunks bound what attention computes and reads: op->n counts the keys that the slice
 * touches, and of the scores twice those that are needed count, as causal attention counts all, at
 * most m n.  A scan's work and state do not depend on the tokens before the slice; slices keep the
 * state that they begin with, in fp32.  cp ranks exchange heads for tokens around a scan, as
 * Megatron-Core's Mamba does.
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
 * its result before the weight, and the loss, unless splits_eager_loss, gathers the logits of all tp
 * ranks (logits_gather); it keeps them besides their logarithms.
 *
 * The projection of an MTP module is split by columns and its result gathered, with sequence
 * parallelism to be split by tokens again  [Megatron-Core's MultiTokenPredictionLayer].
 *
 * Quantised formats (fp8, nvfp4) are those of products of layers with weights, whose inputs and
 * gradients of outputs are quantised where they are needed.  The head and the router have operands
 * as they are stored [Transformer Engine: fp8_autocast covers the layers; Megatron's output layer
 * and its router's gating are outside of it].
 *
 * Kernel counts: an eager framework with fused norms, softmax, bias-GELU or SwiGLU,
 * bias-dropout-add and rotary kernels (Megatron-LM's defaults); one per collective.  Attention has
 * one forward kernel exactly when it is fused.
 *
 * With arch->lora no weight but those of adapters is trained: products of frozen weights keep no input,
 * embeddings have no backward, and nothing is gathered again for weights' gradients (ops_lora.c).  The
 * first layer's input has a gradient, too, although nothing needs it.
 *
 * @layer  which layer (dense and MoE layers differ); ignored for the other parts.
 * @ops    (out) room for MODEL_MAX_OPS.
 * Returns: the number of ops; 0 for embedding and head of a model without vocabulary.  Errors are
 * the caller's: shapes must pass model_shape_check() (its divisibility is checked again here, by
 * g_return_val_if_fail; too large counts of bytes saturate at MODEL_MAX_BYTES).
 */
size_t model_ops(const ModelArch *arch, ModelPart part, int64_t layer, const ModelShape *shape,
                 ModelOp ops[MODEL_MAX_OPS]);

/* What the neediest of @arch's layers needs of the scratch block that degas's executor takes for the
 * whole of a B, and of an I, whatever layer of the stage is at work: cost-model.md 6.3.  Of one layer
 * @arch is model_layer_arch().  Defined in ops_mlp.c, beside the ops that need it. */
typedef struct {
    int64_t backward_bytes, input_bytes;
} ModelScratchBytes;

ModelScratchBytes model_scratch_bytes(const ModelArch *arch, const ModelShape *shape);

/* Bytes of a layer's input, [batch, tokens / cp (/ tp with sequence parallelism), hidden]: what
 * full recompute keeps of a layer, and what a stage sends to the next. */
int64_t model_boundary_bytes(const ModelArch *arch, const ModelShape *shape);

/* Model FLOPs of one training iteration over @n_sequences of @seq_len tokens, the numerator of
 * model FLOP utilisation: three times the forward's, twice those of frozen products, 2 for each
 * multiply-add, all scores of causal attention (the convention of 2104.04473), nothing for recompute. */
double model_flops_per_iteration(const ModelArch *arch, double n_sequences, int64_t seq_len);

/* The share of these FLOPs that a causal model needs: of the scores of s tokens only s (s + 1) / 2 of
 * s^2.  Model FLOP utilisation times it is what "causal MFU" counts. */
double model_causal_fraction(const ModelArch *arch, int64_t seq_len);
