/*
 * executor/stage.h - one stage at work: its ops on (micro-batch, slice) and the memory in between.
 *
 * Knows no ranks, messages or schedules: the caller puts the input in, takes the output out, and
 * keeps the order that the schedule promised (schedule.h: dependencies).
 *
 * Memory: F of a slice takes one block for all that backward needs; B, or W after I, gives it back.
 * K and V of a micro-batch are one block for the whole sequence, from its first F to its last B
 * (W); their gradients likewise from the first B, or, where nothing is sliced, one layer's scratch.
 */
#ifndef EXECUTOR_STAGE_H
#define EXECUTOR_STAGE_H

#include "executor/layer.h"

G_BEGIN_DECLS

/* Scratch that all stages of a rank share: one op runs at a time. */
typedef struct {
    ExecBlock block;
    float *d;    /* [rows, hidden] the gradient on its way down */
    float *edge; /* [rows, hidden] a stage's output on its way out */
    float *d_kv; /* [seq_len, sequences, 2 kv_width], one layer */
    float *layer;
    int32_t *positions; /* [seq_len] of every token */
} ExecStageScratch;

/* For micro-batches of at most @sequences and slices of at most @tokens. */
bool exec_stage_scratch_init(ExecStageScratch *scratch, const ExecWidths *widths, int64_t sequences,
                             int64_t tokens, ExecBackend *backend, ExecPool *pool, GError **error);
void exec_stage_scratch_clear(ExecStageScratch *scratch, ExecPool *pool);

typedef struct {
    const ExecWidths *widths; /* (borrowed) like all that follows */
    const ExecStage *stage;
    ExecBackend *backend;
    ExecPool *pool;
    const ExecStageScratch *scratch;
    int32_t n_microbatches, n_slices;
    const int64_t *sequences; /* of each micro-batch */
    const int64_t *slices;    /* tokens of each */
    float loss_factor;        /* 1 / tokens of the global batch */
    bool splits_backward;     /* I and W will come, not B */
} ExecStageOptions;

typedef struct ExecStageRun ExecStageRun;

ExecStageRun *exec_stage_run_new(const ExecStageOptions *options);
void exec_stage_run_free(ExecStageRun *run);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecStageRun, exec_stage_run_free)

/* The slice that (micro-batch, slice) is, and its rows times hidden. */
ExecSlice exec_stage_slice(const ExecStageRun *run, int32_t microbatch, int32_t slice);
int64_t exec_stage_boundary_floats(const ExecStageRun *run, int32_t microbatch, int32_t slice);

/*
 * Begins F: takes its memory.  @x  (out, borrowed) where the stage's input goes; the embedding's
 * stage fills it itself.  False on EXEC_ERROR_MEMORY.
 */
bool exec_stage_begin_forward(ExecStageRun *run, int32_t microbatch, int32_t slice, float **x,
                              GError **error);

/*
 * @tokens, @targets  rows of this slice, in the backend's memory; read by embedding and head.
 * @loss  (out) in the backend's memory: becomes the sum of the rows' losses; NULL unless head.
 * Returns: (borrowed) the output, valid until the rank's next op.
 */
const float *exec_stage_forward(ExecStageRun *run, int32_t microbatch, int32_t slice,
                                const int32_t *tokens, const int32_t *targets, double *loss);

/* Where the gradient of the stage's output goes before B or I (not of the head's stage). */
float *exec_stage_gradient(ExecStageRun *run);

/* B, or I when the stage splits.  @dx  (out, borrowed) gradient of the input, valid until the next
 * op.  False on EXEC_ERROR_MEMORY. */
bool exec_stage_backward(ExecStageRun *run, int32_t microbatch, int32_t slice,
                         const int32_t *tokens, const float **dx, GError **error);
void exec_stage_backward_weight(ExecStageRun *run, int32_t microbatch, int32_t slice,
                                const int32_t *tokens);

G_END_DECLS

#endif /* EXECUTOR_STAGE_H */
