/*
 * executor/model/stage_scratch.h - ExecStageScratch is the scratch and the tables that all stages of
 * a rank share, since one op runs at a time, or a forward and a backward.
 *
 * Private to executor/; stage.h says what for.
 */
#pragma once

#include "executor/model/model.h"
#include "executor/transport/comm.h"

typedef struct {
    ExecBlock block;
    /* [local rows, hidden], the largest boundary of the rank's stages (stage.h): the gradient that a
     * backward passes on from layer to layer, and the results that a forward passes on where nobody keeps
     * them. */
    void *d;
    /* The same for what forwards pass on: d itself unless ops overlap. */
    void *results;
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
    bool overlaps; /* a forward and a backward may be at work at the same time */
} ExecScratchOptions;

/* False on EXEC_ERROR_MEMORY. */
bool exec_stage_scratch_init(ExecStageScratch *scratch, const ExecScratchOptions *options,
                             GError **error);
void exec_stage_scratch_clear(ExecStageScratch *scratch, ExecPool *pool);
