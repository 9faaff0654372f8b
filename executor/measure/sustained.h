/*
 * executor/measure/sustained.h - how much slower layers become on a device that works without a break.
 *
 * A timing between pauses finds the device at its highest clock.  Large products without a break take
 * an H100 to the limit of its power within a tenth of a second, and its clock falls: measured, 1980 to
 * 1560 .. 1700 MHz at 700 W (docs/gpu.md).  So forward and backward of the layers are repeated for some
 * seconds, and the last half is compared with the first hundredths of a second.
 *
 * Private to executor/measure/.
 */
#pragma once

#include "executor/measure/measure.h"
#include "executor/transport/samples.h"

typedef struct {
    const ExecMeasureOptions *o; /* (borrowed) with defaults filled in */
    ExecSamples *samples;        /* (borrowed) */
    Profile *profile;            /* (borrowed) its rows say what was timed; gets the factors */
    int64_t largest_batch;       /* of the micro-batches that fit the device */
} ExecSustained;

/* The share of the budget that exec_sustained_time() takes, on a GPU. */
#define EXEC_SUSTAINED_SHARE 0.1

/* Adds the factors of the smallest and of the largest micro-batch of whole sequences: Profile.sustained.
 * All busy ranks work at once. */
bool exec_sustained_time(ExecSustained *sustained, GError **error);
