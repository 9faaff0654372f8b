/*
 * executor/run/ops.h - the ops of a rank: each receives its message, computes, and sends its
 * message, and all of that becomes events of the trace.
 *
 * A message goes from a stage to the next one of its chain, forward or backward.  With tp ranks,
 * each sends its own copy or shard; or, where the plan's conventions say so, they share the work
 * (plan.h: scatter_gather_p2p, broadcast_p2p).
 *
 * Private to executor/run/.
 */
#pragma once

#include "executor/run/rank.h"

/* Runs op @index of the schedule.  While it computes, the transfer of what the next op receives
 * goes on. */
bool exec_rank_run_op(ExecRank *rank, int64_t index, GError **error);

/* Writes the times of this step's ops into their events; after the backend's synchronize(), because
 * a device is not waited for between its ops. */
void exec_rank_read_op_times(ExecRank *rank);

/* Before the first step: lets all groups and neighbours of the run meet, where the transport wants
 * that. */
bool exec_rank_meet(ExecRank *rank, GError **error);

/* A tag that no message of a step has. */
int64_t exec_rank_free_tag(const ExecRank *rank);
