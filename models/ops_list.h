/*
 * models/ops_list.h - describes one op of model_ops(): a product, a memory-bound op, a collective.
 *
 * Internal to models/.  Which ops a layer has is decided by its callers: ops.c, ops_attention.c,
 * ops_state.c and ops_mlp.c.
 * Counts are computed in double (exact below 2^53) and stop at MODEL_MAX_BYTES, so that no product
 * of hostile sizes overflows.
 */
#pragma once

#include "models/ops.h"

/* A list that is being made, and the sizes that all its ops share. */
typedef struct {
    const ModelArch *arch; /* of the layer's kind, or the whole model where an end is listed */
    const ModelShape *shape;
    ModelOp *ops;
    size_t n;
    double e;          /* bytes per element of activations: 2 with fp8 */
    double operand_e;  /* bytes per element of what products read, and of weights */
    double rows;       /* tokens of this rank in tensor-parallel products */
    double local_rows; /* tokens in its norms and residuals: rows / tp with sequence parallelism */
    double tp_rows;    /* rows / tp, also where every tp rank keeps all rows */
    ModelScope scope;  /* of the ops that are added now */
    bool separate_matrices;
    bool splits_columns; /* products that are added now read an input of ops_add_tp_input() */
    bool masks;          /* dropout masks are kept */
    bool eager;          /* rotary embedding, SwiGLU and loss are PyTorch's operations */
    bool eager_norms;    /* ... and so is RMSNorm */
} OpsList;

OpsList ops_list(const ModelArch *arch, const ModelShape *shape, ModelOp *ops);

int64_t ops_bytes(double bytes);

/* The next op of the list, zeroed but for its name. */
ModelOp *ops_add(OpsList *list, const char *name, ModelOpKind kind);

/* Adds a product with a weight, @rows x @k times @k x @n.  @bias is added by the product itself,
 * and its gradient is a kernel, with sums_biases an op before it.  The product keeps nothing until ops_keep_input() says so. */
ModelOp *ops_add_gemm(OpsList *list, const char *name, double rows, int64_t k, int64_t n,
                      bool bias);

/* The same of list->rows rows, of which only local_rows are left when tp ranks have summed them and the
 * bias is added. */
ModelOp *ops_add_summed_gemm(OpsList *list, const char *name, int64_t k, int64_t n, bool bias);

/* The same as ops_add_gemm() of another product that reads the input of the one before, which has quantised it. */
ModelOp *ops_add_next_gemm(OpsList *list, const char *name, double rows, int64_t k, int64_t n,
                           bool bias);

/* Notes that the product keeps an input of @elements, for its weight's gradient. */
void ops_keep_input(const OpsList *list, ModelOp *gemm, double elements);

/* Adds a memory-bound op: what it moves each way, what it keeps, and its kernels each way. */
ModelOp *ops_add_memory(OpsList *list, const char *name, double forward_bytes,
                        double backward_bytes, double saved_bytes, int64_t n_forward,
                        int64_t n_backward);

/* Adds what adding up the gradients of one input of @elements that @n products have read takes: a
 * kernel for each but the first reads two and writes one. */
void ops_add_input_sum(OpsList *list, const char *name, double elements, int64_t n);

/* Adds the LayerNorm or RMSNorm of @rows x @width, which keeps its input. */
void ops_add_norm(OpsList *list, const char *name, double rows, int64_t width);

/* Adds a collective; nothing (NULL) where both directions are NONE or the group has one rank. */
ModelOp *ops_add_collective(OpsList *list, const char *name, ModelGroup group, ModelComm forward,
                            ModelComm backward, double bytes);

/* The collectives around tensor-parallel products on rows of @width elements: before a product
 * whose columns are split; after it, where the backward gathers its input once more; and after a
 * product whose rows are split. */
void ops_add_tp_input(OpsList *list, const char *name, int64_t width);
void ops_add_tp_input_again(OpsList *list, const char *name, int64_t width);
void ops_add_tp_output(OpsList *list, const char *name, int64_t width, ModelOp *gemm);

/* With shape->quantised_gathers tp ranks quantise shards: of the input of the first product behind
 * ops_add_tp_input(), and of the gradient of what @gemm (nullable) of ops_add_tp_output() gives. */
void ops_quantise_input(const OpsList *list, ModelOp *gemm);

/* Freezes the weights of the listed ops of @part, if the model has adapters, and adds those of a layer:
 * defined in ops_lora.c. */
void ops_add_adapters(OpsList *list, ModelPart part);

/* Sets what selective recompute repeats, and does not keep, of all ops of a layer. */
void ops_set_again(OpsList *list);

/* A layer's feed-forward without norm and residual; both are defined in ops_mlp.c.  @keeps_input:
 * its first product keeps the layer's input, which the mixer of a parallel block has not kept. */
void ops_add_mlp(OpsList *list, bool keeps_input);
void ops_add_experts(OpsList *list, bool keeps_input);

/* Everything of attention from the layer's normed input to what is added to it: defined in
 * ops_attention.c. */
void ops_add_attention(OpsList *list);

/* A mixer with a state, likewise without norm and residual: defined in ops_state.c. */
void ops_add_state_mixer(OpsList *list, bool keeps_input);

/* Rows of all tokens of some heads instead of all heads of some tokens, over cp ranks: the way
 * there, of @width elements per row.  Defined in ops_attention.c. */
void ops_add_head_exchange(OpsList *list, const char *name, double width);
