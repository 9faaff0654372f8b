/*
 * executor/model/stage_state.h - what a stage holds between its ops, and where in it everything
 * lies.
 *
 * Every layer has blocks of its own, which go back as soon as its backward is done, so that what
 * one layer's I keeps for W lies where another's activations lay.
 *
 *   recompute none       inputs: the layer's input and what only input gradients read (K and V too
 *                        where nothing is sliced); products: the inputs of its products.
 *                        I gives the first one back, W the second, with the gradients of the
 *                        products' outputs that I left (of K and V too where nothing is sliced)
 *   recompute selective  the same without what attention's core would keep (lse): it runs again
 *                        before its backward, into scratch
 *   recompute full       only the layer's input; a layer's activations live in `again`, inside an
 *                        op.  I computes the inputs of the products into their block, for W
 *
 * After the layers' come the head's: the last layer's output; its norm and logits.  The last output
 * of a stage without a head goes out.
 *
 * Private to executor/stage*.c.
 */
#ifndef EXECUTOR_MODEL_STAGE_STATE_H
#define EXECUTOR_MODEL_STAGE_STATE_H

#include "executor/model/stage.h"

G_BEGIN_DECLS

/* Of a layer, or the head. */
typedef struct {
    ExecBlock inputs;    /* until its B or I */
    ExecBlock products;  /* what weight gradients read: until its B or W */
    ExecBlock gradients; /* from I to W */
} ExecPartBlocks;

/* Of one (micro-batch, slice) in flight. */
typedef struct {
    ExecPartBlocks *parts; /* (owned) [n_layers + 1] */
    ExecMoe *moe;          /* (owned, nullable) [layer] where the stage has experts */
} ExecSliceState;

/* Of one micro-batch in flight, where it is sliced. */
typedef struct {
    ExecBlock kv, d_kv;
    int32_t n_backward, n_done; /* slices whose B or I, and whose B or W, has ended */
} ExecMicroBatchState;

struct ExecStageRun {
    ExecStageOptions o;
    int64_t *context;                   /* (owned) tokens before each slice */
    ExecMicroBatchState *micro_batches; /* (owned) */
    ExecSliceState *slices;             /* (owned) [micro_batch][slice] */
    /* Inside an op: for exec_layer_scratch(); with recompute full: one layer's activations [and K,
     * V]. */
    ExecBlock layer, again;
    ScheduleOpKind kind; /* of that op */
};

static inline int64_t
exec_stage_padded(int64_t n_bytes)
{
    return (n_bytes + 63) / 64 * 64;
}

/* One layer's K and V of this rank's tokens of @sequences. */
int64_t exec_stage_kv_bytes(const ExecWidths *w, int64_t sequences);
/* A stage's input or output of @rows rows in products. */
int64_t exec_stage_boundary_of(const ExecWidths *w, int64_t rows);

static inline ExecSliceState *
exec_stage_slice_state(const ExecStageRun *run, int32_t micro_batch, int32_t slice)
{
    return &run->slices[micro_batch * run->o.n_slices + slice];
}

/* Bytes of the blocks of @layer, or the head (n_layers), of slice @s; 0: it has none. */
int64_t exec_stage_input_bytes(const ExecStageRun *run, const ExecSlice *s, int64_t layer);
int64_t exec_stage_product_bytes(const ExecStageRun *run, const ExecSlice *s, int64_t layer);
int64_t exec_stage_gradient_bytes(const ExecStageRun *run, const ExecSlice *s, int64_t layer);
/* Of `again`, for an op of run->kind. */
int64_t exec_stage_again_bytes(const ExecStageRun *run, const ExecSlice *s);
/* Of a micro-batch, all layers and slices; 0 where it is not sliced. */
int64_t exec_stage_kv_bytes_kept(const ExecStageRun *run, const ExecSlice *s);

/* Whether the layers' activations are computed again, all of them. */
static inline bool
exec_stage_recomputes_all(const ExecStageRun *run)
{
    return run->o.stage->recompute == PLAN_RECOMPUTE_FULL;
}

/* Layer @layer at work; @layer may be n_layers, which has only what is common. */
ExecLayer exec_stage_layer_at(const ExecStageRun *run, int32_t micro_batch, int32_t slice,
                              int64_t layer, const ExecLayerScratch *scratch);
ExecLayerScratch exec_stage_scratch_at(const ExecStageRun *run, const ExecSlice *s);
ExecHeadActivations exec_stage_head_at(const ExecStageRun *run, int32_t micro_batch, int32_t slice);
/* Where layer @layer's output goes. */
void *exec_stage_output_at(const ExecStageRun *run, int32_t micro_batch, int32_t slice,
                           int64_t layer);

/* What I keeps of a layer for W. */
ExecLayerKept exec_stage_kept_at(const ExecStageRun *run, int32_t micro_batch, int32_t slice,
                                 int64_t layer);

G_END_DECLS

#endif /* EXECUTOR_MODEL_STAGE_STATE_H */
