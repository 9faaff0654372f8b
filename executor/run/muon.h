/*
 * executor/run/muon.h - Muon's step of the matrices of layers [Jordan et al. 2024, Liu et al.
 * 2502.16982], after the gradients have been summed and the clipping factor is known.
 *
 * With gradient g, momentum m and learning rate r, a matrix W of [rows, cols] becomes
 *
 *   m <- 0.95 m + 0.05 g,   u = 0.05 g + 0.95 m                       (Nesterov)
 *   X = u / |u|; 5 times X <- a X + (b A + c A A) X with A = X X^T      (Newton-Schulz)
 *   W <- (1 - r decay) W - r 0.2 sqrt(max(rows, cols)) X               [2502.16982 eq. 4]
 *
 * Matrices are orthogonalised whole: queries, keys, values, both halves of SwiGLU and each expert
 * for itself.  A rank puts its own elements of u into a matrix of zeros; sums over the replicas that
 * hold shards, and over tp, make it whole, exactly.  All ranks that hold a part then compute the
 * same X, and each takes its own elements: the result is that of one device.
 *
 * Works on host memory; the backend's products are in fp32 whatever the storage.
 *
 * Private to executor/run/ and tests.
 */
#pragma once

#include "executor/run/rank.h"

#define EXEC_MUON_MOMENTUM 0.95f
#define EXEC_MUON_SCALE 0.2

/* Replaces @x, [rows, cols] in fp32 in host memory, by five Newton-Schulz iterations of x / |x|; of
 * zeros by zeros.  @backend  of fp32 in host memory. */
void exec_muon_orthogonalise(ExecBackend *backend, int64_t rows, int64_t cols, float *x);

/* Steps this rank's own elements of all matrices (ExecParameter.matrix_rows), and sets all their
 * gradients to zero.  @factor  by which gradients are multiplied, for clipping. */
bool exec_rank_muon(ExecRank *rank, float learning_rate, float weight_decay, float factor,
                    GError **error);
