/*
 * executor/model/mtp.h - what an MTP module computes before and behind its layer  [DeepSeek-V3
 * 2412.19437 section 2.2].
 *
 *   x = [hidden_norm(h), embedding_norm(e)] Wproj
 *   y = layer(x)                                     layer.h
 *   result = final_norm(y)
 *
 * h is what the module before it gives (the last layer, for the first module), and e the embedding
 * of the token that is k + 1 further on, for module k from 0.  The result goes to the head, which
 * makes logits and a loss of it, and to the module behind.  A stage hands all of this on: behind
 * the last layer a boundary is its result and those of all modules so far (stage.h).
 *
 * Tensor parallelism: the columns of Wproj are split, and x is gathered.  The two halves of its
 * rows are two products, so that nothing is joined.
 *
 * @layer below is the module's layer; its x is what is made here.  Private to executor/model/.
 */
#pragma once

#include "executor/model/ends.h"

typedef enum {
    EXEC_MTP_HIDDEN,    /* of h */
    EXEC_MTP_EMBEDDING, /* of e */
    EXEC_MTP_FINAL,     /* of y */
    EXEC_MTP_NORM_N = EXEC_LAYER_MTP_NORMS,
} ExecMtpNorm;

/* What is kept from forward to backward, beside h; all [local rows, hidden]. */
typedef struct {
    void *e, *x, *y;
    void *normed[2]; /* of h and e */
    float *mean[EXEC_MTP_NORM_N], *rstd[EXEC_MTP_NORM_N];
} ExecMtpActivations;

/* What lives during one op. */
typedef struct {
    ExecLayerScratch layer; /* rows and partial: exec_end_scratch() */
    void *columns;          /* [tp, rows, hidden / tp]; tp > 1 */
    void *d_proj;           /* B: what I keeps */
} ExecMtpScratch;

/* These cut what a module needs off blocks, as those of layer.h do.  @inputs is read until B or I,
 * @products until B or W. */
ExecMtpActivations exec_mtp_activations(const ExecLayerShape *shape, ExecCutter *inputs,
                                        ExecCutter *products);
/* The gradient of the projection's own columns [rows, hidden / tp], from I to W. */
void *exec_mtp_kept(const ExecLayerShape *shape, ExecCutter *cutter);
ExecMtpScratch exec_mtp_scratch(const ExecLayerShape *shape, ExecCutter *cutter);

/* A module at work. */
typedef struct {
    const ExecLayer *layer;
    ExecMtpActivations a;
    ExecMtpScratch scratch;
    const void *h;
} ExecMtp;

/* x, from h and e. */
void exec_mtp_begin(const ExecMtp *mtp);
/* The result, from y. */
void exec_mtp_end(const ExecMtp *mtp, void *result);

/* @d  in: the gradient of the result; out: that of y. */
void exec_mtp_end_backward(const ExecMtp *mtp, void *d);
/*
 * @d         in: the gradient of x; out: that of e
 * @d_before  the gradient of h is added to it
 * @kept      NULL: this is B, and Wproj gets its gradient, too.  Else it is I, which writes here
 *            what W will need.
 */
void exec_mtp_begin_backward(const ExecMtp *mtp, void *kept, void *d, void *d_before);
/* W: adds the gradient of Wproj. */
void exec_mtp_weight(const ExecMtp *mtp, const void *kept);
