/*
 * executor/run/checkpoint_state.h - saves the state of all ranks as a checkpoint (checkpoint.h),
 * and loads it.
 *
 * All ranks call these at the same step.  All succeed, or all have an error: the rank that fails
 * its own, and the others one that names it.
 *
 * Private to executor/run/.
 */
#pragma once

#include "executor/run/checkpoint.h"
#include "executor/run/rank.h"

/* Saves the state after @n_steps steps. */
bool exec_checkpoint_save(ExecRank *rank, int64_t n_steps, GError **error);

/* Replaces the rank's initial values by those of shared->checkpoint. */
bool exec_checkpoint_load(ExecRank *rank, GError **error);
