/*
 * executor/run/optimize.h - the end of a step: gradients are summed over all ranks that hold a
 * parameter, clipped by their global norm, and stepped by AdamW or Muon (muon.h); then the weights are gathered
 * where replicas hold shards of the optimizer's state.
 *
 * What clips is computed where the gradients are, and AdamW reads it there; several ranks tell each
 * other their sums of squares through host memory.  A norm that is not finite ends the run.
 *
 * The learning rate rises linearly over EXEC_WARM_UP_STEPS steps (short, because runs are), then it
 * is constant, or falls as a cosine to a tenth of its peak.  AdamW's constants and the clipped norm
 * are GPT-3's [Brown et al. 2005.14165 appendix B].
 *
 * Private to executor/run/ and tests.
 */
#pragma once

#include "executor/run/rank.h"

#define EXEC_WARM_UP_STEPS 10
/* The learning rate from decay_steps on, as a fraction of the peak. */
#define EXEC_DECAY_END 0.1

/* The learning rate of step @step, which counts from 0; step EXEC_WARM_UP_STEPS - 1 has the peak.
 */
double exec_learning_rate(const ExecRunOptions *options, int64_t step);

/* Sums the step's gradients over all ranks that hold a parameter.  Afterwards this rank's shard of
 * every unit has the sum. */
bool exec_rank_reduce_gradients(ExecRank *rank, GError **error);

/* Clips the reduced gradients, steps, and gathers the weights. */
bool exec_rank_optimize(ExecRank *rank, GError **error);

/* Where replicas hold shards of the optimizer's state: gives the others the weights of this rank's.
 */
bool exec_rank_gather_weights(ExecRank *rank, GError **error);

/* Whether this rank counts its own elements of parameter @parameter: of all ranks that hold an
 * element, exactly one does. */
bool exec_rank_speaks_for(const ExecRank *rank, guint parameter);
