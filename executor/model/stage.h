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
 * A boundary, what one stage hands to the next, is [local rows, hidden]; behind the last layer it is
 * that of the layer's result and that of each MTP module so far (mtp.h), one after the other.  An MTP
 * module is a part like a layer: its `inputs` begin with the result before it, and the table that it
 * reads is the embedding's, of which its rank has a copy.
 *
 * What mixers hand from slice to slice (mixer.h), such as K and V of a sliced micro-batch, is one
 * block for the whole sequence, from its first F to its last B or I, and its gradient one from its
 * first B or I to its last B or W.
 */
#pragma once

#include "executor/model/layer.h"
#include "executor/model/stage_scratch.h"
#include "executor/model/units.h"

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
    int64_t token_step; /* elements of @tokens between a row's token and the one that follows it */
} ExecStageOptions;

typedef struct ExecStageRun ExecStageRun;

/* Whether what a stage's op computes is slots of the backend alone, without collectives or the host,
 * so that it can be captured between begin_graph() and end_graph(). */
bool exec_stage_is_capturable(const ExecComm *comm, const ModelArch *arch);

/* Returns: (owned) a stage with nothing in flight; never NULL. */
ExecStageRun *exec_stage_run_new(const ExecStageOptions *options);
void exec_stage_run_free(ExecStageRun *run);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecStageRun, exec_stage_run_free)

/* The slice as layer.h sees it. */
ExecSlice exec_stage_slice(const ExecStageRun *run, int32_t micro_batch, int32_t slice);

/* Bytes of the stage's input and of its output: boundaries. */
int64_t exec_stage_input_bytes(const ExecStageRun *run, int32_t micro_batch, int32_t slice);
int64_t exec_stage_output_bytes(const ExecStageRun *run, int32_t micro_batch, int32_t slice);

/* Begins F: takes its memory.  @x  (out, borrowed) where the caller puts the stage's input; the
 * stage with the embedding fills it itself.  False on EXEC_ERROR_MEMORY. */
bool exec_stage_begin_forward(ExecStageRun *run, int32_t micro_batch, int32_t slice, void **x,
                              GError **error);

/*
 * Computes F.
 *
 * @tokens  (nullable) this rank's tokens of the slice, in the backend's memory: those of the rows,
 *          and, token_step elements further each, those 1, 2, ... further on in the sequence, as far
 *          as the model has losses.  Read by embedding, MTP modules and head.
 * @losses  (out) [model_n_losses()] in the backend's memory: become the sums of the rows'
 *          losses, of the model and of each MTP module; NULL unless the stage has the head.
 * Returns: (borrowed) the output, valid until the rank's next op.
 */
const void *exec_stage_forward(ExecStageRun *run, int32_t micro_batch, int32_t slice,
                               const int32_t *tokens, double *losses);

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
