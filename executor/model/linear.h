/*
 * executor/model/linear.h - products with weights, divided over tp by columns or by rows.
 *
 * Column-split: every rank reads all rows of the input and computes its columns of the output; the
 * input's gradient is a sum over ranks.  Row-split: every rank reads its columns of the input; the
 * output is a sum over ranks  [Shoeybi et al. 1909.08053 figure 3].  With sequence parallelism what
 * lies between is divided by rows: sums end as this rank's rows (reduce-scatter), and inputs begin
 * with a gathering.
 *
 * Private to executor/layer*.c, stage*.c.
 */
#ifndef EXECUTOR_MODEL_LINEAR_H
#define EXECUTOR_MODEL_LINEAR_H

#include "executor/model/layer.h"

G_BEGIN_DECLS

/* A weight [inputs, cols] at work on @rows rows. */
typedef struct {
    int64_t rows, inputs, cols;
    const ExecTensor *weight;
    const ExecTensor *bias; /* NULL or with NULL weight: none */
} ExecLinear;

/* y [rows, cols] = x W + b.  @gelu (nullable) becomes gelu(y). */
void exec_linear_forward(ExecBackend *backend, const ExecLinear *linear, const void *x, void *gelu,
                         void *y);
/* dx = dy W^T, + dx if @accumulate, times gelu'(@gelu_input) unless NULL. */
void exec_linear_backward(ExecBackend *backend, const ExecLinear *linear, const void *dy,
                          bool accumulate, const void *gelu_input, void *dx);
/* dW += x^T dy, db += column sums of dy. */
void exec_linear_weight(ExecBackend *backend, const ExecLinear *linear, const void *x,
                        const void *dy);

/* All rows of @x [local rows, hidden]: itself, or gathered into scratch->rows. */
const void *exec_gather_rows(const ExecLayer *layer, const void *x);

/* Sums @full [rows, hidden] over tp.  Returns: (borrowed) this rank's rows of it. */
void *exec_reduce_rows(const ExecLayer *layer, void *full);

/* The row-split product: y [local rows, hidden] = sum over tp of x W, + b, + residual (nullable).
 */
void exec_row_split_forward(const ExecLayer *layer, const ExecLinear *linear, const void *x,
                            const void *residual, void *y);

G_END_DECLS

#endif /* EXECUTOR_MODEL_LINEAR_H */
