/*
 * executor/model/layout_build.h - how the parameters of a layer are added to a layout: what a mixer
 * calls that adds its own (mixer.h).
 *
 * Private to executor/model/.  Defined in layout.c.
 */
#pragma once

#include <stddef.h>

#include "executor/model/layout.h"

/* A layout that is being built. */
typedef struct ExecLayoutBuilder {
    const ExecModelOptions *o;
    ExecWidths ends, kinds[MODEL_MAX_KINDS];
    const ExecWidths *w;          /* of the layer that is being laid out, or of the ends */
    double deviation, projection; /* of initial values; projection: into the residual stream */
    ExecLayout *layout;
    guint stage;           /* number of the stage on the rank */
    int64_t layer;         /* number of the layer in the stage; -1: embedding and head */
    int64_t number;        /* number of the layer in the model */
    ExecRegionKind region; /* the region that this pass lays out */
    int64_t unit_begin;    /* where the unit that is being laid out begins */
    guint first_parameter; /* the first one of that unit */
} ExecLayoutBuilder;

/* Which tensor a parameter of a layer is: the @member of the functions below. */
#define EXEC_LAYER_TENSOR(tensor) offsetof(ExecLayerTensors, tensor)

/* All of a matrix; @n of its rows from @begin on; the @index-th of @n equal parts of each of
 * @n_blocks blocks of columns. */
ExecShard exec_shard_whole(int64_t rows, int64_t cols);
ExecShard exec_shard_rows(int64_t rows, int64_t cols, int64_t begin, int64_t n);
ExecShard exec_shard_columns(int64_t rows, int64_t cols, int32_t n_blocks, int64_t index,
                             int64_t n);

/* Adds a matrix with normal initial values, which decays; EXEC_SHARE_EXPERT: to the experts.
 * @name  without the layer's number */
void exec_layout_add_weight(ExecLayoutBuilder *b, const char *name, size_t member, ExecShard shard,
                            ExecShare share, double deviation);
/* Adds a vector that begins at zero. */
void exec_layout_add_bias(ExecLayoutBuilder *b, const char *name, size_t member, ExecShard shard,
                          ExecShare share);
/* Adds a vector whose gradient comes with the input's (in I): the scale of a norm, which begins at
 * one, or its shift; decays and time steps of a state.  More than one row: a row for each head,
 * which does not decay either. */
void exec_layout_add_norm(ExecLayoutBuilder *b, const char *name, size_t member, ExecShard shard,
                          ExecShare share, ExecInit init);
/* Adds a matrix with normal initial values whose gradient comes with the input's: a convolution. */
void exec_layout_add_taps(ExecLayoutBuilder *b, const char *name, size_t member, ExecShard shard,
                          double deviation);
