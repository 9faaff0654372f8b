/*
 * executor/model/stage.h - one stage at work: its ops on (micro-batch, slice) and the memory in
 * between.
 *
 * Knows no messages or schedules: the caller puts the input in, takes the output out, and keeps the
 * order that the schedule promised (schedule.h: dependencies).  Collectives inside a stage (tp, cp)
 * go through the ExecComm, whose errors the caller checks after each op.
 *
 * Memory: F takes blocks for all that backward needs; B, or I and W, give them back layer by layer.
 * K and V of a sliced micro-batch are one block for the whole sequence, from its first F to its
 * last B or I; their gradients likewise from the first B or I to the last B or W.  What else is
 * kept, and for how long: stage_state.h.
 */
#ifndef EXECUTOR_MODEL_STAGE_H
#define EXECUTOR_MODEL_STAGE_H

#include "executor/model/layer.h"
#include "executor/model/units.h"

G_BEGIN_DECLS

/* Scratch and tables that all stages of a rank share: one op runs at a time. */
typedef struct {
    ExecBlock block;
    void *d;            /* [local rows, hidden] a gradient on its way down, or an output out */
    float *stats;       /* [tp, 3, rows] of the loss */
    float *lse;         /* [rows, n_heads] of attention that runs again; NULL: none does */
    int32_t *positions; /* [seq_len / cp] of this rank's tokens, slice after slice */
    float *turns;       /* [seq_len, head_dim] for ExecRope; NULL unless rotary */
} ExecStageScratch;

/* For micro-batches of at most @sequences, cut into slices of @lengths tokens. */
typedef struct {
    const ExecWidths *widths; /* (borrowed) like all that follows */
    ExecComm *comm;
    ExecPool *pool;
    int64_t sequences;
    const int64_t *lengths;
    int32_t n_slices;
    bool core_again; /* a stage recomputes attention's core */
} ExecScratchOptions;

bool exec_stage_scratch_init(ExecStageScratch *scratch, const ExecScratchOptions *options,
                             GError **error);
void exec_stage_scratch_clear(ExecStageScratch *scratch, ExecPool *pool);

typedef struct {
    const ExecWidths *widths; /* (borrowed) like all that follows */
    const ExecStage *stage;
    ExecUnits *units; /* (nullable) of the stage's model, where parameters are apart */
    ExecComm *comm;
    ExecPool *pool;
    const ExecStageScratch *scratch;
    int32_t n_micro_batches, n_slices;
    const int64_t *sequences; /* of each micro-batch */
    const int64_t *slices;    /* tokens of each */
    float loss_factor;        /* 1 / tokens of the global batch */
} ExecStageOptions;

typedef struct ExecStageRun ExecStageRun;

ExecStageRun *exec_stage_run_new(const ExecStageOptions *options);
void exec_stage_run_free(ExecStageRun *run);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecStageRun, exec_stage_run_free)

/* The slice that (micro-batch, slice) is, and the bytes of its boundary: local rows times hidden.
 */
ExecSlice exec_stage_slice(const ExecStageRun *run, int32_t micro_batch, int32_t slice);
int64_t exec_stage_boundary_bytes(const ExecStageRun *run, int32_t micro_batch, int32_t slice);

/*
 * Begins F: takes its memory.  @x  (out, borrowed) where the stage's input goes; the embedding's
 * stage fills it itself.  False on EXEC_ERROR_MEMORY.
 */
bool exec_stage_begin_forward(ExecStageRun *run, int32_t micro_batch, int32_t slice, void **x,
                              GError **error);

/*
 * @tokens, @targets  this rank's rows of this slice, in the backend's memory; read by embedding and
 *                    head.
 * @loss  (out) in the backend's memory: becomes the sum of the rows' losses; NULL unless head.
 * Returns: (borrowed) the output, valid until the rank's next op.
 */
const void *exec_stage_forward(ExecStageRun *run, int32_t micro_batch, int32_t slice,
                               const int32_t *tokens, const int32_t *targets, double *loss);

/* Where the gradient of the stage's output goes before B or I (not of the head's stage). */
void *exec_stage_gradient(ExecStageRun *run);

/* B, or I where W will come (@split); both add the embedding's gradient.  @dx  (out, borrowed)
 * gradient of the input, valid until the next op.  False on EXEC_ERROR_MEMORY. */
bool exec_stage_backward(ExecStageRun *run, int32_t micro_batch, int32_t slice,
                         const int32_t *tokens, bool split, const void **dx, GError **error);
/* W: of products. */
void exec_stage_backward_weight(ExecStageRun *run, int32_t micro_batch, int32_t slice);

/* Appends the units whose weights an op of @kind opens, in order, to @openings (of ExecOpening),
 * but for those of which none are apart. */
void exec_stage_add_openings(const ExecModel *model, const ExecStage *stage, ScheduleOpKind kind,
                             GArray *openings);

/* --- stage_ends.c: embedding and head --- */

/* What the head keeps. */
typedef struct {
    void *x; /* [local rows, hidden] the last layer's output */
    void *norm;
    float *mean, *rstd;
    void *logits; /* [rows, vocab]; after F their gradient */
} ExecHeadActivations;

int64_t exec_head_bytes(const ExecWidths *widths, int64_t rows);
ExecHeadActivations exec_head_activations(const ExecWidths *widths, int64_t rows, void *x,
                                          void *block);

/* @layer  any, for its slice, comm, widths and scratch: ends need no tensors of it. */
void exec_embedding_forward(const ExecLayer *layer, const ExecEndTensors *ends,
                            const int32_t *tokens, void *x);
void exec_embedding_weight(const ExecLayer *layer, const ExecEndTensors *ends,
                           const int32_t *tokens, const void *d);
/* @stats  [tp, 3, rows] scratch. */
void exec_head_forward(const ExecLayer *layer, const ExecEndTensors *ends,
                       const ExecHeadActivations *head, const int32_t *targets, float factor,
                       float *stats, double *loss);
/* d = gradient of the last layer's output. */
void exec_head_backward(const ExecLayer *layer, const ExecEndTensors *ends,
                        const ExecHeadActivations *head, void *d);
void exec_head_weight(const ExecLayer *layer, const ExecEndTensors *ends,
                      const ExecHeadActivations *head);

G_END_DECLS

#endif /* EXECUTOR_MODEL_STAGE_H */
