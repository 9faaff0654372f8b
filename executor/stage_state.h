/*
 * executor/stage_state.h - what a stage holds between its ops, and where in it everything lies.
 *
 *   recompute none       two blocks of a slice.  Activations: its input; of every layer its own and
 *                        its output (the next one's input; the last output goes out unless
 *                        a head follows).  Products: of every layer the inputs of its products, and
 *                        what the head keeps.  I gives the first one back, W the second
 *   recompute selective  the same without what attention's core would keep (lse): it runs again
 *                        before its backward, into scratch
 *   recompute full       only the layers' inputs; one layer's activations live in `again`, inside
 *                        an op.  K and V stay where later slices read them, else they are again's.
 *                        W needs the inputs of the products: I computes them into kept.
 *
 * Private to executor/stage*.c.
 */
#ifndef EXECUTOR_STAGE_STATE_H
#define EXECUTOR_STAGE_STATE_H

#include "executor/stage.h"

G_BEGIN_DECLS

/* Of one (micro-batch, slice) in flight. */
typedef struct {
    ExecBlock activations; /* until B or I */
    ExecBlock products;    /* what weight gradients read: until B or W */
    ExecBlock kept;        /* from I to W */
    ExecMoe *moe;          /* (owned, nullable) [layer] where the stage has experts */
} ExecSliceState;

/* Of one micro-batch in flight. */
typedef struct {
    ExecBlock kv, d_kv;
    int32_t n_backward, n_done; /* slices whose B or I, and whose B or W, has ended */
} ExecMicrobatchState;

struct ExecStageRun {
    ExecStageOptions o;
    int64_t *context;                  /* (owned) tokens before each slice */
    ExecMicrobatchState *microbatches; /* (owned) */
    ExecSliceState *slices;            /* (owned) [microbatch][slice] */
    ExecBlock again; /* inside an op, with recompute full: one layer's activations [and K, V] */
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
exec_stage_slice_state(const ExecStageRun *run, int32_t microbatch, int32_t slice)
{
    return &run->slices[microbatch * run->o.n_slices + slice];
}

/* Bytes of the blocks of a slice or micro-batch @s. */
int64_t exec_stage_activation_bytes(const ExecStageRun *run, const ExecSlice *s);
int64_t exec_stage_product_bytes(const ExecStageRun *run, const ExecSlice *s);
int64_t exec_stage_kept_bytes(const ExecStageRun *run, const ExecSlice *s);
int64_t exec_stage_again_bytes(const ExecStageRun *run, const ExecSlice *s);
/* Of all layers; 0 where each layer's are again's. */
int64_t exec_stage_kv_bytes_kept(const ExecStageRun *run, const ExecSlice *s);

/* Layer @layer at work; @layer may be n_layers, which has only what is common. */
ExecLayer exec_stage_layer_at(const ExecStageRun *run, int32_t microbatch, int32_t slice,
                              int64_t layer, const ExecLayerScratch *scratch);
ExecLayerScratch exec_stage_scratch_at(const ExecStageRun *run, const ExecSlice *s);
ExecHeadActivations exec_stage_head_at(const ExecStageRun *run, int32_t microbatch, int32_t slice);
/* Where layer @layer's output goes. */
void *exec_stage_output_at(const ExecStageRun *run, int32_t microbatch, int32_t slice,
                           int64_t layer);

/* What I keeps for W: of a layer, and the embedding's gradient. */
ExecLayerKept exec_stage_kept_at(const ExecStageRun *run, int32_t microbatch, int32_t slice,
                                 int64_t layer);
void *exec_stage_kept_embedding(const ExecStageRun *run, int32_t microbatch, int32_t slice);

G_END_DECLS

#endif /* EXECUTOR_STAGE_STATE_H */
