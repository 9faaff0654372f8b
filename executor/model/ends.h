/*
 * executor/model/ends.h - forward and backward of the embedding, and of the head: the last norm,
 * the product with the head's table, and the loss.
 *
 * Both tables are [padded_vocab, hidden], and their rows are split over tp: a rank looks up the
 * tokens that it has, and the sum over tp is the embedding; it computes the logits of its rows of
 * the table, and the loss is put together from statistics of every rank's columns.  The columns of
 * padding are computed with the others, because products are fast where rows of logits begin at
 * multiples of many bytes; the loss does not read them, and their gradients are zero.
 *
 * @layer below is any layer of the op: its slice, comm, widths and scratch are read, its tensors
 * are not.
 */
#pragma once

#include "executor/model/layer.h"

/* What the embedding keeps from forward to backward: where it is normed, its rows before that. */
typedef struct {
    void *x; /* [local rows, hidden] */
    float *mean, *rstd;
} ExecEmbeddingActivations;

ExecEmbeddingActivations exec_embedding_activations(const ExecWidths *widths, int64_t rows,
                                                    ExecCutter *cutter);

/* x [local rows, hidden] = rows of the token table times the embedding's scale, or plus those of
 * the position table where there is one; normed where the embedding is. */
void exec_embedding_forward(const ExecLayer *layer, const ExecEndTensors *ends,
                            const ExecEmbeddingActivations *embedding, const int32_t *tokens,
                            void *x);

/* Adds the gradients of both tables and of the norm; @d [local rows, hidden] is the gradient of x. */
void exec_embedding_weight(const ExecLayer *layer, const ExecEndTensors *ends,
                           const ExecEmbeddingActivations *embedding, const int32_t *tokens,
                           const void *d);

/* What the head keeps from forward to backward: of the model's own result and of those of MTP
 * modules, which are normed already. */
typedef struct {
    void *x; /* [local rows, hidden] the last layer's output */
    float *mean, *rstd;
    int64_t n;
    void *
        in[1 +
           MODEL_MAX_MTP]; /* [local rows, hidden] the products' inputs: x normed, and the others */
    void *logits[1 + MODEL_MAX_MTP]; /* [rows, padded_vocab]; after the forward their gradient */
    void *capped[1 + MODEL_MAX_MTP]; /* [rows, padded_vocab] capped logits; NULL: there is no cap */
} ExecHeadActivations;

/* Cuts all but @x off @cutter. */
ExecHeadActivations exec_head_activations(const ExecWidths *widths, int64_t rows, void *x,
                                          ExecCutter *cutter);
int64_t exec_head_bytes(const ExecWidths *widths, int64_t rows);

/*
 * Computes the losses, and the gradients of the logits in their place.
 *
 * @targets  [head->n] of all rows  @factor  of every row's gradient in the model's own loss, not of
 *           the losses
 * @stats    scratch [tp, 3, rows]; not read where tp is 1
 * @losses   (out) [head->n] in the backend's memory: the sums of the rows' losses on the first tp
 *           rank, 0 on the others
 */
void exec_head_forward(const ExecLayer *layer, const ExecEndTensors *ends,
                       const ExecHeadActivations *head, const int32_t *const *targets, float factor,
                       float *stats, double *losses);

/* Sets d [head->n, local rows, hidden] to the gradients of the last layer's output and of the
 * results of MTP modules, and adds the gradients of the norm. */
void exec_head_backward(const ExecLayer *layer, const ExecEndTensors *ends,
                        const ExecHeadActivations *head, void *d);

/* Adds the gradient of the head's table. */
void exec_head_weight(const ExecLayer *layer, const ExecEndTensors *ends,
                      const ExecHeadActivations *head);
