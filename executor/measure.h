/*
 * executor/measure.h - the profiler: times layers, embedding, head, optimizer, messages and
 * collectives on this machine with the executor's own code, and writes them into a Profile.
 *
 * Times with as many ranks busy at once as the plan will have, so that shared caches, memory and
 * clocks are in the numbers.  Warmed up; medians with 10th and 90th percentile; the grid of (batch,
 * slice, context) is as small as interpolation allows.
 */
#ifndef EXECUTOR_MEASURE_H
#define EXECUTOR_MEASURE_H

#include "executor/backend.h"
#include "profiles/profile.h"

G_BEGIN_DECLS

typedef struct {
    const ModelArch *arch;  /* (borrowed) */
    const char *device;     /* "cpu" */
    int64_t seq_len;        /* 0: the model's */
    const int64_t *batches; /* (borrowed, nullable) micro-batch sizes; NULL: 1, 2, 4 */
    size_t n_batches;
    const int64_t *slices; /* (borrowed, nullable) slice lengths; NULL: chosen from seq_len */
    size_t n_slices;
    int64_t concurrency; /* ranks busy at once; 0: the cores */
    bool quick;          /* fewer repetitions and points */
    void (*progress)(double fraction, const char *what, void *user_data); /* (nullable) */
    void *user_data;
} ExecMeasureOptions;

/* Returns: (owned) a profile of this machine with measured rows; NULL on an EXEC_ERROR. */
Profile *exec_measure(const ExecMeasureOptions *options, GError **error);

G_END_DECLS

#endif /* EXECUTOR_MEASURE_H */
