/*
 * executor/run/prepare.h - what a rank needs before its first op: its backend, transport of
 * tensors, groups, parameters, stages and tables; and the release of all that.
 *
 * Private to executor/run/.
 */
#pragma once

#include "executor/run/rank.h"

/* Prepares @rank, which is zero but for its numbers, its record and its transport of host memory.
 */
bool exec_rank_prepare(ExecRank *rank, GError **error);

/* Frees what exec_rank_prepare() has made, also where it failed. */
void exec_rank_clear(ExecRank *rank);

/* Whether weights are gathered in the device's second queue: with ZeRO 3, where they are prefetched
 * or come from the host.  Known once the backend and its transport are open. */
bool exec_rank_gathers_aside(const ExecRank *rank);
