/*
 * executor/device/backend_host.h - what backends in host memory share: memory, moves, sums and the
 * slots that are bound by memory, so that plain loops are good enough for all of them.
 *
 * Functions have the names and meanings of the slots of backend.h; storage is fp32 unless it is
 * said otherwise.
 *
 * Private to executor/device/backend*.c.
 */
#pragma once

#include "executor/device/backend.h"

/* --- the backends --- */

/* Opens plain loops, the oracle of all backends; defined in backend_reference.c. */
ExecBackend *exec_backend_reference_open(const ExecBackendOptions *options, GError **error);

/* Opens OpenBLAS and vector loops; defined in backend_cpu.c. */
ExecBackend *exec_backend_cpu_open(const ExecBackendOptions *options, GError **error);

/* Makes a backend that stores bf16: it widens operands to fp32, lets @inner (taken) compute, and
 * rounds what @inner wrote; defined in backend_bf16.c. */
ExecBackend *exec_backend_bf16_new(ExecBackend *inner);

/* --- memory --- */

void *exec_host_alloc(ExecBackend *backend, size_t n_bytes, const char *what, GError **error);
void exec_host_release(ExecBackend *backend, void *memory);
void exec_host_move(ExecBackend *backend, size_t n_bytes, const void *from, void *to);
bool exec_host_synchronize(ExecBackend *backend, GError **error);
void exec_host_zero(ExecBackend *backend, size_t n_bytes, void *x);
void exec_host_sum_squares(ExecBackend *backend, int64_t n, const float *x, ExecClip *clip);
void exec_host_clip(ExecBackend *backend, int64_t n, double limit, ExecClip *clip);

/* In a table of slots: the functions above, which serve every storage. */
#define EXEC_HOST_MEMORY_SLOTS                                                                     \
    .alloc = exec_host_alloc, .release = exec_host_release, .upload = exec_host_move,              \
    .download = exec_host_move, .synchronize = exec_host_synchronize, .zero = exec_host_zero,      \
    .copy = exec_host_move, .sum_squares = exec_host_sum_squares, .clip = exec_host_clip

/* Host memory that grows with what is asked of it; {0} is none.  Its owner frees @data. */
typedef struct {
    float *data;
    int64_t n; /* floats that fit into @data */
} ExecScratch;

/* Returns: (borrowed) room for @n floats with unspecified contents; what was there before is gone
 * when it grows.  Scratch is small beside the activations, so running out of memory aborts. */
float *exec_host_scratch(ExecScratch *scratch, int64_t n);
int64_t exec_host_scratch_bytes(const ExecScratch *scratch);

/* --- fp32 storage --- */

void exec_host_to_storage(ExecBackend *backend, int64_t n, const float *x, void *y);
void exec_host_from_storage(ExecBackend *backend, int64_t n, const void *x, float *y);
void exec_host_rope(ExecBackend *backend, const ExecRope *rope, void *x);
/* Sets dk and dv, in fp32, to zero unless they are added to. */
void exec_host_begin_gradients(const ExecAttention *attention,
                               const ExecAttentionGradients *gradients);
void exec_host_embedding_forward(ExecBackend *backend, const ExecEmbedding *embedding,
                                 const void *table, const void *positions, void *x);
void exec_host_embedding_backward(ExecBackend *backend, const ExecEmbedding *embedding,
                                  const void *dx, float *dtable, float *dpositions);
void exec_host_route(ExecBackend *backend, int64_t rows, int64_t n_experts, int64_t top_k,
                     const float *scores, int32_t *expert, float *weight);
void exec_host_route_backward(ExecBackend *backend, int64_t rows, int64_t n_experts, int64_t top_k,
                              const int32_t *expert, const float *weight, const float *d_weight,
                              void *d_scores);
void exec_host_gather_rows(ExecBackend *backend, int64_t rows, int64_t row_bytes,
                           const int32_t *from, const void *x, void *y);
void exec_host_sum_rows(ExecBackend *backend, int64_t rows, int64_t cols, int64_t n,
                        const int32_t *from, const void *x, void *y);
void exec_host_scale_rows(ExecBackend *backend, int64_t rows, int64_t cols, const float *factor,
                          void *x);
void exec_host_dot_rows(ExecBackend *backend, int64_t rows, int64_t cols, const void *x,
                        const void *y, float *dot);

/* Defined, like the other slots of unusual attention, in backend_host_heads.c. */
void exec_host_group_norm_sums(ExecBackend *backend, const ExecGroupNorm *norm);
void exec_host_group_norm_forward(ExecBackend *backend, const ExecGroupNorm *norm, void *y,
                                  int64_t y_stride);
void exec_host_group_norm_backward_sums(ExecBackend *backend, const ExecGroupNorm *norm,
                                        const void *dy, int64_t dy_stride, float *d_sums);
void exec_host_group_norm_backward(ExecBackend *backend, const ExecGroupNorm *norm,
                                   const float *d_sums, void *d, int64_t d_stride, float *dgain,
                                   float *dshift);
void exec_host_copy_blocks(ExecBackend *backend, const ExecBlocks *blocks, const void *x, void *y);
void exec_host_sum_blocks(ExecBackend *backend, const ExecBlocks *blocks, const void *x, void *y);
void exec_host_gate_forward(ExecBackend *backend, const ExecGate *gate, void *y);
void exec_host_gate_backward(ExecBackend *backend, const ExecGate *gate, void *d, void *dgate);

/* Defined in indexer.c; these serve every storage. */
void exec_host_index_choose(ExecBackend *backend, const ExecAttention *attention,
                            const ExecIndexer *indexer);
void exec_host_attention_shares(ExecBackend *backend, const ExecAttention *attention, float *share);
void exec_host_index_backward(ExecBackend *backend, const ExecAttention *attention,
                              const ExecIndexer *indexer, const ExecIndexerGradients *gradients);

#define EXEC_HOST_INDEXER_SLOTS                                                                    \
    .index_choose = exec_host_index_choose, .attention_shares = exec_host_attention_shares,        \
    .index_backward = exec_host_index_backward

/* Defined, like the other slots of unusual layers, in backend_host_layers.c. */
void exec_host_activate(ExecBackend *backend, ExecActivation activation, int64_t rows,
                        int64_t width, const void *x, void *y);
void exec_host_activate_backward(ExecBackend *backend, ExecActivation activation, int64_t rows,
                                 int64_t width, const void *x, const void *dy, void *dx);
void exec_host_scale(ExecBackend *backend, int64_t n, float factor, void *x);
void exec_host_cap(ExecBackend *backend, int64_t n, float cap, void *x);
void exec_host_cap_backward(ExecBackend *backend, int64_t n, float cap, const void *y, void *d);
void exec_host_route_factors(ExecBackend *backend, const ExecRoute *route);
void exec_host_route_factors_backward(ExecBackend *backend, const ExecRoute *route,
                                      const float *d_weight, void *d_scores);

/* In a table of slots: the functions of this section. */
#define EXEC_HOST_FP32_SLOTS                                                                       \
    .group_norm_sums = exec_host_group_norm_sums,                                                  \
    .group_norm_forward = exec_host_group_norm_forward,                                            \
    .group_norm_backward_sums = exec_host_group_norm_backward_sums,                                \
    .group_norm_backward = exec_host_group_norm_backward, .copy_blocks = exec_host_copy_blocks,    \
    .sum_blocks = exec_host_sum_blocks, .gate_forward = exec_host_gate_forward,                    \
    .gate_backward = exec_host_gate_backward, .to_storage = exec_host_to_storage,                  \
    .from_storage = exec_host_from_storage, .rope = exec_host_rope,                                \
    .embedding_forward = exec_host_embedding_forward,                                              \
    .embedding_backward = exec_host_embedding_backward, .route = exec_host_route,                  \
    .route_backward = exec_host_route_backward, .gather_rows = exec_host_gather_rows,              \
    .sum_rows = exec_host_sum_rows, .scale_rows = exec_host_scale_rows,                            \
    .dot_rows = exec_host_dot_rows, .activate = exec_host_activate,                                \
    .activate_backward = exec_host_activate_backward, .scale = exec_host_scale,                    \
    .cap = exec_host_cap, .cap_backward = exec_host_cap_backward,                                  \
    .route_factors = exec_host_route_factors,                                                      \
    .route_factors_backward = exec_host_route_factors_backward

/* Joins the statistics that all parts of the vocabulary have of row @row: *lse becomes the log of
 * the softmax' sum over the whole vocabulary, *target the logit of the row's target. */
void exec_host_merge_stats(const ExecCrossEntropy *entropy, int64_t row, double *lse,
                           double *target);
