/*
 * executor/device/loops_cpu.h - vector loops of the cpu backend: everything that is no matrix product.
 *
 * Private to executor/device/backend_cpu.c; meanings as the slots of backend.h.  Sums run over 16 lanes
 * that are added pairwise at the end: fixed order, equal bits on every run of one machine.
 */
#ifndef EXECUTOR_DEVICE_LOOPS_CPU_H
#define EXECUTOR_DEVICE_LOOPS_CPU_H

#include "executor/device/backend.h"

G_BEGIN_DECLS

void exec_cpu_add(int64_t n, const float *x, float *y);
void exec_cpu_scale(int64_t n, float factor, float *x);

/* c[row] = bias + residual[row], either of them optional. */
void exec_cpu_fill_rows(int64_t rows, int64_t cols, const float *bias, const float *residual,
                        float *c, int64_t ldc);
void exec_cpu_column_sums(int64_t rows, int64_t cols, const float *dy, int64_t stride, float *db);

void exec_cpu_norm_forward(const ExecNorm *norm, float *y);
/* @sums  scratch, 2 * cols. */
void exec_cpu_norm_backward(const ExecNorm *norm, const float *dy, float *dx, float *dgain,
                            float *dshift, float *sums);

void exec_cpu_gelu_forward(int64_t n, const float *x, float *y);
void exec_cpu_gelu_backward(int64_t n, const float *x, float *dy);
void exec_cpu_swiglu_forward(int64_t rows, int64_t width, const float *x, float *y);
void exec_cpu_swiglu_backward(int64_t rows, int64_t width, const float *x, const float *dy,
                              float *dx);

/* Rows of scores become probabilities; row i sees columns [0, context + i], the others become 0. */
void exec_cpu_softmax(int64_t rows, int64_t cols, int64_t context, float scale, float *score,
                      float *lse, int64_t lse_stride);
/* score (q k) becomes P = exp(scale score - lse); dscore (dO V^T) becomes
 * scale P (dscore - rowsum(dO O)), the gradient of q k. */
void exec_cpu_softmax_backward(int64_t rows, int64_t cols, int64_t context, float scale, int64_t d,
                               const float *lse, int64_t lse_stride, const float *out,
                               const float *dout, int64_t stride, float *score, float *dscore);

/* @row  scratch, vocab. */
void exec_cpu_cross_entropy_stats(const ExecCrossEntropy *entropy, float *stats, float *row);
double exec_cpu_cross_entropy(const ExecCrossEntropy *entropy);
void exec_cpu_adamw(int64_t n, float *param, const float *grad, float *m, float *v,
                    const ExecAdamw *constants);

G_END_DECLS

#endif /* EXECUTOR_DEVICE_LOOPS_CPU_H */
