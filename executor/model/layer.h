/*
 * executor/model/layer.h - forward and backward of one layer on a slice of tokens, as slots of the
 * backend and collectives.
 *
 *   x2 = x + s post1(mixer(norm1(x)))
 *   y = x2 + s post2(ffn(norm2(x2)))            ffn(n) = activation(n Wup) Wdown, or experts (moe.h)
 *
 * The mixer is attention, with the products before and behind it (attention.h), or another one of
 * the table in mixer.h.  What a layer is made of is its kind's (layer->widths): which of the halves
 * and of the norms are there; in parallel blocks norm2 reads x, or the feed-forward reads norm1's
 * result, too.  The ops, and what is kept of them, are those that model_ops() lists (models/ops.h).
 *
 * Slices (mixer.h): the K and V rows of a slice are written into a buffer of the whole sequence, one for each
 * (micro-batch, layer); its queries see rows [0, end of the slice).  Backward runs the slices from
 * last to first.  Each adds dK and dV to rows [0, end) of a buffer of the same shape in fp32, in
 * which its own rows are then complete, because all later slices have been there  [Li et al.
 * 2102.07988 section 3.2]; they are rounded to the storage once.
 *
 * Backward is one op (B), or two: the gradient of the input now (I), and those of the weights later
 * (W)  [Qi et al. 2401.10241].  Then the gradients of the products' outputs are kept in between.
 * The parameters of norms get their gradients with the input's in both cases.
 *
 * Selective recompute [Korthikanti et al. 2205.05198 section 5]: what lies between q, k, v and
 * attention's output is computed again by backward.  Since scores are never kept, all that it saves
 * here is lse.  Of the other modules (models/modules.h), backward computes again norms, the inner MLP
 * or that of shared experts, and q, k and v of latents, which then lie in the op's scratch; and the
 * experts' activations, or all that follows their input, in blocks of moe.h.  An I computes them once,
 * and what W reads of them (ExecLayerKept) stays until then.  Full recompute is done by the caller, who
 * calls exec_layer_forward() once more.
 *
 * Tensor parallelism (linear.h): the columns of Wq, Wkv and Wup and the rows of Wproj and Wdown are
 * split over tp.  With sequence parallelism x, x2, y and the norms hold this rank's local rows
 * (exec_local_rows()), which are gathered before the products and reduced after them.
 *
 * Context parallelism (attention.h): a rank has some tokens of every slice, and gathers the K and V
 * of the others for one layer at a time.
 *
 * Rows are ordered [token, sequence].
 */
#pragma once

#include "executor/model/mixer.h"
#include "executor/model/model.h"
#include "executor/model/moe.h"
#include "executor/transport/comm.h"

/* What is kept from forward to backward.  [0] is the mixer's half, [1] the feed-forward's. */
typedef struct {
    void *in[2];     /* [local rows, hidden] what the half reads: normed, or as it is */
    void *result[2]; /* [local rows, hidden] of the half, where that is normed */
    float *mean[EXEC_NORM_N], *rstd[EXEC_NORM_N];
    void *mixer_inputs, *mixer_products; /* blocks of these names: mixer.h */
    void *x2;            /* [local rows, hidden] the layer's input and what the mixer adds to it */
    void *up, *active;   /* u and g, of the MLP or of the shared experts */
    void *shared, *gate; /* [local rows, hidden], [local rows] the shared experts' result and what
                            its sigmoid is multiplied with, where they have a gate */
} ExecLayerActivations;

/* What is kept from I to W: the gradients of the products' outputs, and what I has made again for W. */
typedef struct {
    void *mixer;  /* the mixer's block of this name */
    void *d_proj; /* [rows, hidden] */
    void *d_up;   /* [rows, up_width] */
    void *d_down; /* [rows, hidden]; NULL where the layer has experts and none is shared */
    void *d_gate; /* [local rows] of the gate of shared experts */
    /* Inputs of products that F does not keep because backward computes them again: as in
     * ExecLayerActivations. */
    void *in[2], *active;
} ExecLayerKept;

/* What lives during one op only, as far as ops of its kind need it. */
typedef struct {
    void *rows;     /* [rows, hidden] what was gathered; sequence parallelism only */
    void *partial;  /* [rows, hidden] what will be reduced; the gradient of a norm's output */
    void *mixer;    /* the mixer's block */
    void *d_active; /* [rows, ffn_hidden] where gated; it lies where partial does */
    /* [local rows, hidden], as far as the kind needs them: the gradients of a half's result before
     * it is normed, and before it is scaled; what the second of parallel halves adds up. */
    void *d_result, *d_scaled, *d_second;
    void *d_shared; /* [local rows, hidden] of the shared experts' result, where they have a gate */
    /* What else F does not keep because backward computes it again: ExecLayerActivations. */
    void *up, *shared, *gate;
    /* B: mixer and d_up.  I: d_up is [local rows, hidden] for the output of a second forward.  F and B:
     * what backward computes again. */
    ExecLayerKept kept;
} ExecLayerScratch;

/* These cut what a layer needs off blocks, or count its bytes (ExecCutter).  The blocks of experts
 * are in ExecMoe. */

/* @inputs is read by input gradients alone, until B or I; @products are the products' own inputs
 * (in, active, and the mixer's), which weight gradients read until B or W. */
ExecLayerActivations exec_layer_activations(const ExecLayerShape *shape, ExecCutter *inputs,
                                            ExecCutter *products);
/* Of a forward of which nothing is kept: its halves use the same memory one after the other. */
ExecLayerActivations exec_layer_passing(const ExecLayerShape *shape, ExecCutter *cutter);
ExecLayerKept exec_layer_kept(const ExecLayerShape *shape, ExecCutter *cutter);
ExecLayerScratch exec_layer_scratch(const ExecLayerShape *shape, ExecCutter *cutter);
/* What embedding and head need (ends.h): rows and partial. */
ExecLayerScratch exec_end_scratch(const ExecLayerShape *shape, ExecCutter *cutter);

/* One layer at work on one slice. */
typedef struct ExecLayer {
    ExecBackend *backend;
    ExecComm *comm;
    ExecPool *pool;
    const ExecWidths *widths;
    const ExecLayerTensors *tensors;
    const ExecLayerScratch *scratch;
    const float *turns;       /* rotations of every position; NULL unless rotary */
    const int32_t *positions; /* of this rank's tokens of the slice */
    int64_t number;           /* of the layer in the model */
    float loss_factor; /* 1 / tokens of the global batch: what a layer's own loss is a mean over */
    ExecSlice slice;
    ScheduleOpKind op;
    uint32_t again; /* as in ExecLayerShape */
    const void *x;  /* input [local rows, hidden] */
    ExecLayerActivations a;
    void *memory, *d_memory; /* the mixer's, which go from slice to slice; NULL: it has none */
    ExecMoe *moe;            /* NULL: the layer has no experts */
} ExecLayer;

/* Gives activations that F does not keep their places: in the layer's scratch, and what W reads of
 * them in @kept where the op is I or W. */
void exec_layer_place_again(ExecLayer *layer, const ExecLayerKept *kept);

static inline ExecLayerShape
exec_layer_shape(const ExecLayer *layer)
{
    return (ExecLayerShape){layer->widths, layer->slice, layer->op, layer->again};
}

/* The blocks of the layer's mixer, for its cut().  @kept  the block of that name, nullable */
static inline ExecMixerCutters
exec_mixer_cutters(const ExecLayer *layer, void *kept)
{
    const Dtype storage = layer->widths->storage;

    return (ExecMixerCutters){
        .inputs = {.block = layer->a.mixer_inputs, .storage = storage},
        .products = {.block = layer->a.mixer_products, .storage = storage},
        .kept = {.block = kept, .storage = storage},
        .scratch = {.block = layer->scratch->mixer, .storage = storage},
    };
}

/* y [local rows, hidden] may not overlap x. */
void exec_layer_forward(const ExecLayer *layer, void *y);

/*
 * @d     in: the gradient of y; out: the gradient of x.
 * @kept  NULL: this is B, and weights get their gradients too.  Else it is I, which writes here
 * what W will need.
 */
void exec_layer_backward(const ExecLayer *layer, const ExecLayerKept *kept, void *d);

/* W: adds the gradients of the products' weights and biases. */
void exec_layer_backward_weight(const ExecLayer *layer, const ExecLayerKept *kept);

/* --- the MLP, or the shared experts as one --- */

/* y = g Wdown + residual (nullable), of @x; all [local rows, hidden]. */
void exec_mlp_forward(const ExecLayer *layer, const void *x, const void *residual, void *y);
/* From the gradient of y (@dy, all rows) to that of x.  Returns: (borrowed) [local rows,
 * hidden], in scratch->partial. */
void *exec_mlp_backward(const ExecLayer *layer, void *d_up, const void *dy);
/* @d_down  all rows; may be scratch->rows. */
void exec_mlp_weight(const ExecLayer *layer, const void *x, const void *d_up, const void *d_down);

/* The same of shared experts, whose result is multiplied with their gate's sigmoid if they have
 * one. */
void exec_shared_forward(const ExecLayer *layer, const void *x, const void *residual, void *y);
