/*
 * executor/model/linear.h - products with weights that are split over tp by columns or by rows.
 *
 * Column-split: every rank reads all rows of the input and computes its columns of the output; the
 * gradient of the input is a sum over the ranks.  Row-split: every rank reads its columns of the
 * input, and the output is a sum over the ranks  [Shoeybi et al. 1909.08053 figure 3].  With
 * sequence parallelism every rank has only its local rows between products: inputs are gathered
 * first, and sums are reduce-scattered  [Korthikanti et al. 2205.05198].
 *
 * Private to executor/model/.
 */
#pragma once

#include "executor/model/layer.h"

/* The product of @rows rows with a weight [inputs, cols]. */
typedef struct {
    int64_t rows, inputs, cols;
    const ExecTensor *weight;
    const ExecTensor *bias; /* NULL or with NULL weight: none */
    int64_t x_stride,
        y_stride; /* elements between rows of inputs, of outputs; 0: as many as it has */
} ExecLinear;

/* The product of all rows of the layer's slice with one of its weights. */
static inline ExecLinear
exec_layer_linear(const ExecLayer *layer, int64_t inputs, int64_t cols, const ExecTensor *weight,
                  const ExecTensor *bias)
{
    return (ExecLinear){.rows = exec_slice_rows(&layer->slice),
                        .inputs = inputs,
                        .cols = cols,
                        .weight = weight,
                        .bias = bias};
}

/* y [rows, cols] = x W + b.  @gelu  (out, nullable) gelu(y). */
void exec_linear_forward(ExecBackend *backend, const ExecLinear *linear, const void *x, void *gelu,
                         void *y);
/* y += x W. */
void exec_linear_add(ExecBackend *backend, const ExecLinear *linear, const void *x, void *y);
/* dx = dy W^T (plus dx if @accumulate), times gelu'(@gelu_input) unless that is NULL. */
void exec_linear_backward(ExecBackend *backend, const ExecLinear *linear, const void *dy,
                          bool accumulate, const void *gelu_input, void *dx);
/* dW += x^T dy, db += column sums of dy. */
void exec_linear_weight(ExecBackend *backend, const ExecLinear *linear, const void *x,
                        const void *dy);

/* Returns: (borrowed) all rows of @x [local rows, hidden]: @x itself, or gathered over tp into
 * scratch->rows. */
const void *exec_gather_rows(const ExecLayer *layer, const void *x);

/* Sums @full [rows, hidden] over tp, in place.  Returns: (borrowed) this rank's rows of the sum. */
void *exec_reduce_rows(const ExecLayer *layer, void *full);

/* The row-split product: y [local rows, hidden] = sum over tp of x W, + b, + residual (nullable).
 */
void exec_row_split_forward(const ExecLayer *layer, const ExecLinear *linear, const void *x,
                            const void *residual, void *y);
