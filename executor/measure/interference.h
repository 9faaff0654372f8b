/*
 * executor/measure/interference.h - how much slower a layer computes beside copies, collectives and
 * the layers of other ranks, each rank on a share of the device or with a core of its own.
 *
 * Private to executor/measure/.
 */
#pragma once

#include "executor/measure/measure.h"
#include "executor/transport/samples.h"

typedef struct {
    const ExecMeasureOptions *o; /* (borrowed) with defaults filled in */
    ExecSamples *samples;        /* (borrowed) */
    Profile *profile; /* (borrowed) gets the factors; its layers say which slice fits the time */
    int64_t largest_batch; /* of the micro-batches that fit the device */
    bool watches_cores;    /* whether it is looked at if a thread had its core */
    double alone_s;        /* set by the first call, with one rank: what others are compared with */
} ExecInterference;

/* Returns how many ranks are timed beside each other at the most: on a GPU, which is cut into as
 * many shares as a pipeline on it has stages, at least four; on a host no more than there are
 * cores. */
int64_t exec_interference_most_ranks(const ExecMeasureOptions *options);

/* Returns what the least repetitions of exec_interference_time() are expected to take, without
 * making the ranks. */
double exec_interference_expected_s(const ExecInterference *interference);

/* Times a layer alone and beside everything that is possible with @n_ranks; called with one rank
 * first.  It takes a twentieth of the budget, or what the quickest slice takes. */
bool exec_interference_time(ExecInterference *interference, int32_t n_ranks, GError **error);
