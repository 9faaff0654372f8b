/*
 * executor/model/stage_op.h - ExecStageOp is an op of a stage at work: how many bytes each of its
 * blocks has, and where every tensor lies in them.
 *
 * stage.c computes, in the order of the parts, and this file says where: the same functions count
 * the bytes that an op takes and cut the tensors off its blocks, so that the two cannot differ.
 * Part l of a stage is its layer l, and part n_layers its head, or what all layers have in common.
 *
 * Private to stage.c and stage_op.c.
 */
#pragma once

#include "executor/model/mtp.h"
#include "executor/model/stage.h"

/* What a layer, or the head, keeps: stage.h. */
typedef struct {
    ExecBlock inputs;    /* until B or I */
    ExecBlock products;  /* until B or W */
    ExecBlock gradients; /* from I to W */
} ExecPartBlocks;

/* A (micro-batch, slice) in flight. */
typedef struct {
    bool is_forwarded;     /* F has begun, and neither B nor I has ended */
    ExecPartBlocks *parts; /* (owned) [n_layers + 1]: the head's comes last */
    ExecMoe *moe;          /* (owned) [n_layers]: of layers with experts */
    ExecBlock embedding;   /* until B or I */
} ExecSliceState;

/* A micro-batch in flight that is sliced. */
typedef struct {
    ExecBlock memory, d_memory; /* of all layers' mixers (mixer.h) */
    int32_t n_backward;         /* slices whose B or I has ended */
} ExecMicroBatchState;

/* During an op: the scratch of the layer at work; with recompute full its activations and the inputs of
 * its products. */
typedef struct {
    ExecBlock layer, again;
} ExecOpBlocks;

struct ExecStageRun {
    ExecStageOptions o;
    int64_t *context;                   /* (owned) tokens before each slice */
    ExecMicroBatchState *micro_batches; /* (owned) */
    ExecSliceState *slices;             /* (owned) [micro_batch][slice] */
    ExecOpBlocks blocks[2];             /* of a forward, of another op: a pair has both at work */
};

typedef struct {
    ExecStageRun *run;
    const ExecWidths *widths; /* of the ends */
    const ExecStage *stage;
    ScheduleOpKind kind;
    ExecSlice slice;
    int64_t rows;
    ExecMicroBatchState *micro_batch;
    ExecSliceState *state;
    ExecOpBlocks *blocks;
    void *results;                /* of a forward, or their gradients: of the stage's scratch */
    ExecLayerScratch end_scratch; /* of embedding and head; there once the op has begun */
} ExecStageOp;

/* The op of @kind on a slice. */
ExecStageOp exec_stage_op(ExecStageRun *run, int32_t micro_batch, int32_t slice,
                          ScheduleOpKind kind);

/* Takes what lives only during the op, and gives it back; what a second forward made goes back
 * before that, when the last layer is done.  False on EXEC_ERROR_MEMORY. */
bool exec_stage_op_begin(ExecStageOp *op, GError **error);
void exec_stage_op_end(const ExecStageOp *op);

/* --- what the stage is --- */

/* Whether backward computes layer @l again, of which F has kept its input at most. */
static inline bool
exec_stage_op_repeats(const ExecStageOp *op, int64_t l)
{
    return l < op->stage->n_repeated;
}

/* Where the layers end that are repeated together with layer @l. */
static inline int64_t
exec_stage_op_unit_end(const ExecStageOp *op, int64_t l)
{
    int64_t end = l + 1;

    while (end < op->stage->n_layers &&
           op->stage->first_repeated[end] == op->stage->first_repeated[l])
        end++;
    return end;
}

/* Whether layer @l is repeated with others, or by itself where others are.  Then backward repeats all
 * of its unit before the last one's gradients, and keeps what it makes in the parts' blocks, as F does
 * without recompute. */
static inline bool
exec_stage_op_in_unit(const ExecStageOp *op, int64_t l)
{
    return op->stage->in_units && exec_stage_op_repeats(op, l);
}

/* Whether layer @l is that of an MTP module, and which module. */
static inline bool
exec_stage_op_is_mtp(const ExecStageOp *op, int64_t l)
{
    return l < op->stage->n_layers && op->stage->widths[l]->arch.is_mtp;
}

static inline int64_t
exec_stage_op_module(const ExecStageOp *op, int64_t l)
{
    return op->stage->first_layer + l - op->widths->arch.n_layers;
}

/* How many results of MTP modules the stage gets, and how many it has at its end. */
static inline int64_t
exec_stage_op_mtp_before(const ExecStageOp *op)
{
    return model_n_mtp_before(&op->widths->arch, op->stage->first_layer);
}

static inline int64_t
exec_stage_op_mtp_after(const ExecStageOp *op)
{
    return model_n_mtp_before(&op->widths->arch, op->stage->first_layer + op->stage->n_layers);
}

/* Bytes of [local rows, hidden]: of one result in a boundary. */
int64_t exec_stage_op_result_bytes(const ExecStageOp *op);

/* --- blocks that outlive the op --- */

/* Takes what F keeps of all parts, and the memory of mixers. */
bool exec_stage_op_take_forward(const ExecStageOp *op, GError **error);
/* In F: takes the input of layer @l, which is not the first of its unit, until that layer is done. */
bool exec_stage_op_take_passing(const ExecStageOp *op, int64_t l, GError **error);
/* In backward: takes what F would have kept of layer @l, which is in a unit, had it kept all. */
bool exec_stage_op_take_again(const ExecStageOp *op, int64_t l, GError **error);
/* Takes what I keeps of layer @l for W. */
bool exec_stage_op_take_kept(const ExecStageOp *op, int64_t l, GError **error);
/* Takes the gradient of the mixers' memory, zeros, before the first B or I of a micro-batch. */
bool exec_stage_op_take_gradient(const ExecStageOp *op, GError **error);

/* Gives back what only B or I reads of part @l; what W reads. */
void exec_stage_op_give_inputs(const ExecStageRun *run, ExecSliceState *state, int64_t l);
void exec_stage_op_give_products(const ExecStageRun *run, ExecSliceState *state, int64_t l);

/* --- where everything lies --- */

/* Layer @l of the op.  @scratch  (out) its memory: of the layer.  For n_layers only what all layers
 * have in common is set, and @scratch, which may be NULL, is not. */
ExecLayer exec_stage_op_layer(const ExecStageOp *op, int64_t l, ExecLayerScratch *scratch);
ExecLayerKept exec_stage_op_kept(const ExecStageOp *op, int64_t l);
ExecEmbeddingActivations exec_stage_op_embedding(const ExecStageOp *op);
ExecHeadActivations exec_stage_op_head(const ExecStageOp *op);

/* The MTP module whose layer is @l, and what its I keeps for W. */
ExecMtp exec_stage_op_mtp(const ExecStageOp *op, int64_t l, const ExecLayer *layer);
void *exec_stage_op_mtp_kept(const ExecStageOp *op, int64_t l);

/* Result @i of a boundary that is on its way, or its gradient: 0 is the last layer's (or, before
 * MTP modules, that of the layer at work), i that of module i - 1. */
void *exec_stage_op_result(const ExecStageOp *op, int64_t i);

/* Where the stage's input comes to, and where the output of layer @l, which is not an MTP module's,
 * goes. */
void *exec_stage_op_input(const ExecStageOp *op);
void *exec_stage_op_output(const ExecStageOp *op, int64_t l);
