/*
 * executor/measure/options.h - what the profiler was asked for, completed and checked, and the
 * plans that its ranks are made from.
 *
 * Private to executor/measure*.c.
 */
#ifndef EXECUTOR_MEASURE_OPTIONS_H
#define EXECUTOR_MEASURE_OPTIONS_H

#include "executor/measure/measure.h"
#include "schedule/plan.h"

G_BEGIN_DECLS

#define EXEC_MEASURE_MAX_SLICES 6

/* Lists that were not given; must outlive the options. */
typedef struct {
    int64_t batches[3], slices[EXEC_MEASURE_MAX_SLICES], tps[1];
} ExecMeasureDefaults;

void exec_measure_fill_defaults(ExecMeasureOptions *o, ExecMeasureDefaults *defaults);

/* As exec_measure_supported(), of completed options. */
bool exec_measure_check(const ExecMeasureOptions *o, GError **error);

bool exec_measure_is_gpu(const ExecMeasureOptions *o);

/* Busy ranks when layers are split over @tp: whole groups. */
int64_t exec_measure_n_busy(const ExecMeasureOptions *o, int64_t tp);

/* (owned) Embedding, layers and head as three chunks of one rank. */
Plan *exec_measure_plan(const ExecMeasureOptions *o, int64_t tp);

G_END_DECLS

#endif /* EXECUTOR_MEASURE_OPTIONS_H */
