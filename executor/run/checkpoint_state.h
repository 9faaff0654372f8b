/*
 * executor/run/checkpoint_state.h - a rank's shards into a checkpoint, and out of it; checkpoint.h.
 *
 * All ranks call these at the same step; all succeed, or all have an error (the failing rank its
 * own, the others one that names it).
 *
 * Private to executor/rank*.c.
 */
#ifndef EXECUTOR_RUN_CHECKPOINT_STATE_H
#define EXECUTOR_RUN_CHECKPOINT_STATE_H

#include "executor/run/checkpoint.h"
#include "executor/run/rank.h"

G_BEGIN_DECLS

/* The state after @n_steps steps. */
bool exec_checkpoint_save(ExecRank *rank, int64_t n_steps, GError **error);

/* Replaces the rank's initial values by those of shared->checkpoint. */
bool exec_checkpoint_load(ExecRank *rank, GError **error);

G_END_DECLS

#endif /* EXECUTOR_RUN_CHECKPOINT_STATE_H */
