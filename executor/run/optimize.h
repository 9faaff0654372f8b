/*
 * executor/run/optimize.h - the learning rate of a step.
 *
 * GPT-3's constants [Brown et al. 2005.14165 appendix B]: a warm-up (ten steps here: runs are
 * short), then constant, or a cosine that ends at a tenth of the peak; gradients clipped at a
 * global norm.
 *
 * Private to executor/ and its tests.
 */
#ifndef EXECUTOR_RUN_OPTIMIZE_H
#define EXECUTOR_RUN_OPTIMIZE_H

#include "executor/run/run.h"

G_BEGIN_DECLS

#define EXEC_WARM_UP_STEPS 10
/* Of the peak, from decay_steps on. */
#define EXEC_DECAY_END 0.1

/* Of step @step, which counts from 0: linear to the peak of step EXEC_WARM_UP_STEPS - 1. */
double exec_learning_rate(const ExecRunOptions *options, int64_t step);

G_END_DECLS

#endif /* EXECUTOR_RUN_OPTIMIZE_H */
