/*
 * executor/cuda/kernels.h - functions that launch our own CUDA kernels, for what cuBLAS lacks.
 *
 * Each queues its work on @stream and returns the status of the launch; none allocates, waits or
 * reads device memory on the host.  Shapes, strides and meanings are those of the slots in
 * backend.h; all pointers are device memory.  @storage is DTYPE_FP32 or DTYPE_BF16.  Arithmetic is
 * fp32, of sums of squares double, and every sum has a fixed order, so equal inputs give equal
 * bits.
 *
 * Elementwise kernels move 16 bytes at a time where addresses and row lengths allow it.
 */
#pragma once

#include "executor/device/backend.h"

#ifndef TESTS_EXECUTOR_GPU_ON_HOST_HH
#include <cuda_runtime_api.h>
#endif

G_BEGIN_DECLS

/* Sums over rows are made by at most this many blocks, four for each of an H100's 132
 * multiprocessors: a constant, so that equal inputs give equal bits on every share of a device. */
#define KERNELS_BLOCKS 528
/* The longest row of a norm: what its threads have registers for. */
#define KERNELS_NORM_MAX_COLS 16384

/* How many floats of @scratch kernels_norm_backward() needs for rows of @cols columns, and
 * kernels_bias_backward() for any: a block's sums of columns. */
static inline int64_t
kernels_norm_scratch_floats(int64_t cols)
{
    return 2 * KERNELS_BLOCKS * cols;
}
#define KERNELS_BIAS_SCRATCH_FLOATS (KERNELS_BLOCKS * 64)

/* --- kernels_elementwise.cu --- */
/* Computes nothing, for @ns of the device's own time. */
cudaError_t kernels_spin(int64_t ns, cudaStream_t stream);
cudaError_t kernels_convert(int64_t n, Dtype from, const void *x, Dtype to, void *y,
                            cudaStream_t stream);
cudaError_t kernels_add(Dtype storage, int64_t n, const void *x, void *y, cudaStream_t stream);
cudaError_t kernels_gelu_forward(Dtype storage, int64_t n, const void *x, void *y,
                                 cudaStream_t stream);
cudaError_t kernels_gelu_backward(Dtype storage, int64_t n, const void *x, void *dy,
                                  cudaStream_t stream);
cudaError_t kernels_swiglu_forward(Dtype storage, int64_t rows, int64_t width, const void *x,
                                   void *y, cudaStream_t stream);
cudaError_t kernels_swiglu_backward(Dtype storage, int64_t rows, int64_t width, const void *x,
                                    const void *dy, void *dx, cudaStream_t stream);
cudaError_t kernels_rope(Dtype storage, const ExecRope *rope, void *x, cudaStream_t stream);
/* Adds bias (nullable) to every row of y, and residual (nullable) to y; both may be NULL. */
cudaError_t kernels_bias_residual(Dtype storage, int64_t rows, int64_t cols, const void *bias,
                                  const void *residual, void *y, int64_t stride,
                                  cudaStream_t stream);

/* --- kernels_optimizer.cu --- */
cudaError_t kernels_sum_squares(int64_t n, const float *x, ExecClip *clip, cudaStream_t stream);
cudaError_t kernels_clip(int64_t n, double limit, ExecClip *clip, cudaStream_t stream);
cudaError_t kernels_adamw(int64_t n_parts, const ExecAdamwPart *parts, const ExecAdamw *constants,
                          cudaStream_t stream);

/* --- kernels_rows.cu: norms and column sums --- */
cudaError_t kernels_norm_forward(Dtype storage, const ExecNorm *norm, void *y, cudaStream_t stream);
cudaError_t kernels_norm_backward(Dtype storage, const ExecNorm *norm, const void *dy, void *dx,
                                  float *dgain, float *dshift, float *scratch, cudaStream_t stream);
cudaError_t kernels_bias_backward(Dtype storage, int64_t rows, int64_t cols, const void *dy,
                                  int64_t stride, float *db, float *scratch, cudaStream_t stream);

/* --- kernels_rows.cu: embedding and cross-entropy --- */
cudaError_t kernels_embedding_forward(Dtype storage, const ExecEmbedding *embedding,
                                      const void *table, const void *positions, void *x,
                                      cudaStream_t stream);
cudaError_t kernels_embedding_backward(Dtype storage, const ExecEmbedding *embedding,
                                       const void *dx, float *dtable, float *dpositions,
                                       cudaStream_t stream);
cudaError_t kernels_cross_entropy_stats(Dtype storage, const ExecCrossEntropy *entropy,
                                        float *stats, cudaStream_t stream);
/* @row_losses is scratch of a float per row; entropy->loss is device memory. */
cudaError_t kernels_cross_entropy(Dtype storage, const ExecCrossEntropy *entropy, float *row_losses,
                                  cudaStream_t stream);

/* --- kernels_rows.cu: experts --- */
cudaError_t kernels_route(int64_t rows, int64_t n_experts, int64_t top_k, const float *scores,
                          int32_t *expert, float *weight, cudaStream_t stream);
cudaError_t kernels_route_backward(Dtype storage, int64_t rows, int64_t n_experts, int64_t top_k,
                                   const int32_t *expert, const float *weight,
                                   const float *d_weight, void *d_scores, cudaStream_t stream);
cudaError_t kernels_gather_rows(int64_t rows, int64_t row_bytes, const int32_t *from, const void *x,
                                void *y, cudaStream_t stream);
cudaError_t kernels_sum_rows(Dtype storage, int64_t rows, int64_t cols, int64_t n,
                             const int32_t *from, const void *x, void *y, cudaStream_t stream);
cudaError_t kernels_scale_rows(Dtype storage, int64_t rows, int64_t cols, const float *factor,
                               void *x, cudaStream_t stream);
cudaError_t kernels_dot_rows(Dtype storage, int64_t rows, int64_t cols, const void *x,
                             const void *y, float *dot, cudaStream_t stream);

/* --- kernels_heads.cu: norms of heads and latents, blocks of columns, gates --- */
cudaError_t kernels_group_norm_sums(Dtype storage, const ExecGroupNorm *norm, cudaStream_t stream);
cudaError_t kernels_group_norm_forward(Dtype storage, const ExecGroupNorm *norm, void *y,
                                       int64_t y_stride, cudaStream_t stream);
cudaError_t kernels_group_norm_backward_sums(Dtype storage, const ExecGroupNorm *norm,
                                             const void *dy, int64_t dy_stride, float *d_sums,
                                             cudaStream_t stream);
cudaError_t kernels_group_norm_backward(Dtype storage, const ExecGroupNorm *norm,
                                        const float *d_sums, void *d, int64_t d_stride,
                                        float *dgain, float *dshift, cudaStream_t stream);
cudaError_t kernels_copy_blocks(Dtype storage, const ExecBlocks *blocks, const void *x, void *y,
                                cudaStream_t stream);
cudaError_t kernels_sum_blocks(Dtype storage, const ExecBlocks *blocks, const void *x, void *y,
                               cudaStream_t stream);
cudaError_t kernels_gate_forward(Dtype storage, const ExecGate *gate, void *y, cudaStream_t stream);
cudaError_t kernels_gate_backward(Dtype storage, const ExecGate *gate, void *d, void *dgate,
                                  cudaStream_t stream);

/* --- kernels_attention.cu: attention of every kind in both number formats, a warp per row; heads of
 * queries and of values up to KERNELS_MAX_HEAD_DIM --- */
#define KERNELS_MAX_HEAD_DIM 256
cudaError_t kernels_attention_forward(Dtype storage, const ExecAttention *attention,
                                      cudaStream_t stream);
/* @delta, here and below, is scratch of as many floats as attention->lse. */
cudaError_t kernels_attention_backward(Dtype storage, const ExecAttention *attention,
                                       const ExecAttentionGradients *gradients, float *delta,
                                       cudaStream_t stream);

/* --- kernels_flash.cu: plain attention (exec_attention_is_plain()) in bf16 on tensor cores, compute capability 8.0 and above --- */

/* Whether the kernels of this file can compute @attention, by its head size, strides and addresses,
 * and by the shared memory that a block may have on the device: head size 128 needs 102 KiB, and
 * devices of capability 8.6 and 8.9 have 99. */
bool kernels_flash_has(const ExecAttention *attention, size_t max_shared_bytes);
cudaError_t kernels_flash_forward(const ExecAttention *attention, cudaStream_t stream);
cudaError_t kernels_flash_backward(const ExecAttention *attention,
                                   const ExecAttentionGradients *gradients, float *delta,
                                   cudaStream_t stream);

/* Computes @delta alone: for every row of a head the sum of dO times O. */
cudaError_t kernels_flash_delta(const ExecAttention *attention,
                                const ExecAttentionGradients *gradients, float *delta,
                                cudaStream_t stream);

/* --- kernels_hopper.cu: the same for compute capability 9.0 only --- */

/* Whether the kernels of this file can compute heads of @head_dim, and @attention. */
static inline bool
kernels_hopper_has_heads(int64_t head_dim)
{
    return head_dim == 64 || head_dim == 128;
}
bool kernels_hopper_has(const ExecAttention *attention);
/* Both return cudaErrorNotSupported, with nothing queued, where the driver cannot encode tensors.
 */
cudaError_t kernels_hopper_forward(const ExecAttention *attention, cudaStream_t stream);
cudaError_t kernels_hopper_backward(const ExecAttention *attention,
                                    const ExecAttentionGradients *gradients, float *delta,
                                    cudaStream_t stream);

/* --- kernels_hopper_probe.cu: what kernels_hopper.cu assumes, tried; meanings as in probe.h --- */
cudaError_t kernels_probe_box(const uint16_t *tensor, int64_t n_rows, int row, int col,
                              uint16_t *dump, int32_t *ended, cudaStream_t stream);
cudaError_t kernels_probe_along_k(int n, const void *a, const void *b, float *c,
                                  cudaStream_t stream);
cudaError_t kernels_probe_along_n(int n, const void *a, const void *b, float *c,
                                  cudaStream_t stream);
cudaError_t kernels_probe_registers(int n_rounds, uint32_t *sums, cudaStream_t stream);

G_END_DECLS
