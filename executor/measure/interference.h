/*
 * executor/measure/interference.h - what a layer takes beside copies, collectives and the layers of
 * other ranks, on a share of the device or with a core of its own.
 *
 * Private to executor/measure*.c.
 */
#ifndef EXECUTOR_MEASURE_INTERFERENCE_H
#define EXECUTOR_MEASURE_INTERFERENCE_H

#include "executor/measure/measure.h"
#include "executor/transport/samples.h"

G_BEGIN_DECLS

typedef struct {
    const ExecMeasureOptions *o; /* (borrowed) completed */
    ExecSamples *samples;        /* (borrowed) */
    Profile *profile;      /* (borrowed) gets the factors; its layers say what fits the time */
    int64_t largest_batch; /* of a micro-batch that fits the device */
    bool watches_cores;    /* whether a thread had its core is looked at */
    double alone_s;        /* set by the first call, with one rank */
} ExecInterference;

/* A GPU is cut into as many shares as pipelines on it have stages; cores are there or not. */
int64_t exec_interference_most_ranks(const ExecMeasureOptions *options);

/* What exec_interference_time() takes but for making the ranks: its least repetitions. */
double exec_interference_expected_s(const ExecInterference *interference);

/* First with one rank.  A twentieth of the budget, or what the quickest slice takes. */
bool exec_interference_time(ExecInterference *interference, int32_t n_ranks, GError **error);

G_END_DECLS

#endif /* EXECUTOR_MEASURE_INTERFERENCE_H */
