/*
 * executor/measure/attention.h - which of its attention kernels a device is to use: the newer ones
 * only where they compute the same on it, and faster.
 *
 * Kernels that a device has not run yet may compute nonsense on it, or never end.  So both are run,
 * with the same numbers, in a process of its own, which is ended when its time is over.
 *
 * Only cli/ and tests come in.
 */
#pragma once

#include "base/dtype.h"
#include "models/arch.h"

/* The newer kernels are used where forward and backward by the others take so much longer. */
#define EXEC_ATTENTION_LEAST_GAIN 1.15

typedef struct {
    const char *kernel; /* as of exec_backend_attention_kernel(); NULL: there is no choice */
    char *why;          /* (owned) in words, of both; NULL: there is no choice */
} ExecAttentionChoice;

/*
 * Compares the kernels at the model's heads: values of two sequences with context, and values and
 * times of a sequence of @seq_len tokens (of 4096, if that is less).  Whatever happens to the process
 * that does it, the answer comes @limit_s (and a second) later at the latest.
 *
 * To be called before this process has used the device or has other threads: what it starts is a
 * copy of it.
 */
ExecAttentionChoice exec_measure_choose_attention(const char *device, const ModelArch *arch,
                                                  Dtype dtype, int64_t seq_len, double limit_s);
