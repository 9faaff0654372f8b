/*
 * executor/measure/tiny.h - a model so small that its ops are nearly nothing: what is left of a run
 * of it is the executor's own.
 *
 * Private to executor/measure*.c, but for model and plan (measure.h).
 */
#ifndef EXECUTOR_MEASURE_TINY_H
#define EXECUTOR_MEASURE_TINY_H

#include "executor/measure/measure.h"
#include "executor/transport/samples.h"

G_BEGIN_DECLS

/* Runs it for real: what is left over per op is bookkeeping and tiny messages. */
bool exec_measure_overhead(const ExecMeasureOptions *options, ExecSamples *samples, GError **error);

G_END_DECLS

#endif /* EXECUTOR_MEASURE_TINY_H */
