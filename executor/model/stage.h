/*
 * executor/model/stage.h - ExecStageRun computes one pipeline stage: F, B, I and W of every
 * (micro-batch, slice), and the memory in between.
 *
 * It knows no messages and no schedules: the caller puts the stage's input in, takes the output
 * out, and calls the ops in an order that respects their dependencies (schedule.h).  Collectives
 * inside a stage (tp, cp, ep, ZeRO) go through the ExecComm, whose error the caller checks after
 * each op.
 *
 * What is kept from F on, for every layer in blocks of its own.  They go back to the pool as soon
 * as the layer's backward is done, so that what one layer's I keeps for W lies where the
 * activations of another lay.
 *
 *   recompute none       `inputs`: the layer's input and what only the input's gradient reads (K
 *                        and V too where the micro-batch is not sliced), until B or I; `products`:
 *                        the inputs of the layer's products, until B or W; `gradients`: of the
 *                        products' outputs (of K and V too where the micro-batch is not sliced),
 *                        from I to W
 *   recompute selective  the same without what the core of attention would keep (lse): the core
 *                        runs again before its backward
 *   recompute full       only the layer's input; the layer's activations are computed again in one
 *                        block that lives during an op.  I puts the inputs of the products into a
 *                        block of the layer's own, for W
 *
 * Behind the layers' blocks come the head's: the last layer's output; its norm and logits.  The
 * output of a stage without a head is sent away, and not kept.
 *
 * What mixers hand from slice to slice (mixer.h), such as K and V of a sliced micro-batch, is one
 * block for the whole sequence, from its first F to its last B or I, and its gradient one from its
 * first B or I to its last B or W.
 */
#pragma once

#include "executor/model/layer.h"
#include "executor/model/units.h"

/* Scratch and tables that all stages of a rank share, since one op runs at a time. */
typedef struct {
    ExecBlock block;
    void *d;            /* [local rows, hidden] the gradient that a backward passes on from layer to
                           layer, or the output of a stage without a head */
    float *stats;       /* [tp, 3, rows] for the loss; tp > 1 */
    int32_t *positions; /* [seq_len / cp] of this rank's tokens, slice after slice */
    /* By kind of layers: [seq_len, rotary_dim] for ExecRope; NULL unless rotary. */
    float *turns[MODEL_MAX_KINDS];
} ExecStageScratch;

typedef struct {
    const ExecModel *model; /* (borrowed) like all that follows */
    ExecComm *comm;
    ExecPool *pool;
    int64_t sequences;      /* of the largest micro-batch */
    const int64_t *lengths; /* tokens of every slice */
    int32_t n_slices;
} ExecScratchOptions;

/* False on EXEC_ERROR_MEMORY. */
bool exec_stage_scratch_init(ExecStageScratch *scratch, const ExecScratchOptions *options,
                             GError **error);
void exec_stage_scratch_clear(ExecStageScratch *scratch, ExecPool *pool);

typedef struct {
    const ExecModel *model; /* (borrowed) like all that follows */
    const ExecStage *stage;
    ExecUnits *units; /* (nullable) NULL: all weights and gradients of the model are kept whole */
    ExecComm *comm;
    ExecPool *pool;
    const ExecStageScratch *scratch;
    int32_t n_micro_batches, n_slices;
    const int64_t *sequences; /* of each micro-batch */
    const int64_t *slices;    /* tokens of each slice */
    float loss_factor;        /* 1 / tokens of the global batch: the loss is a mean */
} ExecStageOptions;

typedef struct ExecStageRun ExecStageRun;

/* Returns: (owned) a stage with nothing in flight; never NULL. */
ExecStageRun *exec_stage_run_new(const ExecStageOptions *options);
void exec_stage_run_free(ExecStageRun *run);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecStageRun, exec_stage_run_free)

/* The slice as layer.h sees it. */
ExecSlice exec_stage_slice(const ExecStageRun *run, int32_t micro_batch, int32_t slice);

/* Bytes of the stage's input, which are those of its output: [local rows, hidden]. */
int64_t exec_stage_boundary_bytes(const ExecStageRun *run, int32_t micro_batch, int32_t slice);

/* Begins F: takes its memory.  @x  (out, borrowed) where the caller puts the stage's input; the
 * stage with the embedding fills it itself.  False on EXEC_ERROR_MEMORY. */
bool exec_stage_begin_forward(ExecStageRun *run, int32_t micro_batch, int32_t slice, void **x,
                              GError **error);

/*
 * Computes F.
 *
 * @tokens, @targets  this rank's tokens of the slice and those that follow them, in the backend's
 *                    memory; read by the embedding and by the head.
 * @loss  (out) in the backend's memory: becomes the sum of the rows' losses; NULL unless the stage
 *        has the head.
 * Returns: (borrowed) the output, valid until the rank's next op.
 */
const void *exec_stage_forward(ExecStageRun *run, int32_t micro_batch, int32_t slice,
                               const int32_t *tokens, const int32_t *targets, double *loss);

/* Where the caller puts the gradient of the stage's output before B or I; not read by the stage
 * with the head. */
void *exec_stage_gradient(ExecStageRun *run);

/* Computes B, or I where W will follow (@split); both add the gradients of the embedding's tables.
 * @dx  (out, borrowed) the gradient of the input, valid until the rank's next op.  False on
 * EXEC_ERROR_MEMORY. */
bool exec_stage_backward(ExecStageRun *run, int32_t micro_batch, int32_t slice,
                         const int32_t *tokens, bool split, const void **dx, GError **error);

/* Computes W: adds the gradients of the products' weights. */
void exec_stage_backward_weight(ExecStageRun *run, int32_t micro_batch, int32_t slice);

/* Appends to @openings (of ExecOpening) what an op of @kind opens for its weights, in order; not
 * where the rank keeps these weights whole. */
void exec_stage_add_openings(const ExecModel *model, const ExecStage *stage, ScheduleOpKind kind,
                             GArray *openings);
