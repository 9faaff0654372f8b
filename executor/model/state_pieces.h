/*
 * executor/model/state_pieces.h - a mixer with a state at work on a slice, which lies in pieces on cp ranks.
 *
 * Context parallelism: states pass from rank to rank in the order of the sequence, as from slice to slice  [LASP,
 * Sun et al. 2404.02882]; here the tokens of a slice lie as attention has them (exec_slice_chunks()), so that each
 * rank has up to two pieces of the sequence.  Convolutions and scans of a slice wait for each other; all else is of
 * a row.  (Megatron-Core exchanges heads for tokens instead, which needs as many key heads as ranks.)
 *
 * Private to executor/model/state*.c.
 */
#pragma once

#include "executor/model/state_parts.h"

/* A mixer at work. */
typedef struct {
    const ExecLayer *layer;
    ExecBackend *backend;
    const ExecLayerTensors *w;
    ExecStateShape s;
    ExecStateTensors t;
    int64_t rows, tokens;
    float *start, *end; /* states (nullable) that the tokens begin with and hand on */
    float *d_state;     /* (nullable) of end, then of start */
} ExecStateWork;

/* Columns of what comes between two products: KDA's, or Mamba's. */
static inline int64_t
exec_state_middle_columns(const ExecStateWork *work)
{
    return work->s.w.down + work->s.w.middle;
}

/* Calls @compute for every piece in order, and hands on the states of the @scan, or of the convolution: at the end to
 * the next slice.  Without cp there is one piece, @work itself. */
void exec_state_each_piece(const ExecStateWork *work, bool scan,
                           void (*compute)(const ExecStateWork *work));

/* ... in the opposite order, with the gradients of states, which come from the next slice and go to the one before. */
void exec_state_each_piece_back(const ExecStateWork *work, bool scan,
                                void (*compute)(const ExecStateWork *work));

/* ... once more, with the states that forward has kept, which are handed to nobody. */
void exec_state_each_piece_again(const ExecStateWork *work,
                                 void (*compute)(const ExecStateWork *work));
