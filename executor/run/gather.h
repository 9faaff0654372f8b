/*
 * executor/run/gather.h - what rank 0 learns of ranks that are other processes: their clocks, their
 * steps, and the records that they leave behind.
 *
 * Hosts have clocks of their own.  Rank 0 asks every rank for its time, again and again; the answer
 * of the fastest round was given in the middle of it, to within half its length [Cristian 1989]. It
 * asks before the first step and after the last, and takes the drift in between as a straight line.
 *
 * With transport `local` nothing is done: everything is in this process's memory, on one clock.
 *
 * Private to executor/run/.
 */
#pragma once

#include "executor/run/rank.h"

/* Sets @local_rank to how many lower ranks run on this rank's machine.  All ranks call it at once.
 */
bool exec_gather_local_rank(ExecRank *rank, int32_t *local_rank, GError **error);

/* Compares the clocks of all ranks with rank 0's.  All ranks call it before the first step, and
 * again after the last (@at_end). */
bool exec_gather_clocks(ExecRank *rank, bool at_end, GError **error);

/* Sends rank 0 this rank's loss and times of the step that has just ended. */
bool exec_gather_step(ExecRank *rank, GError **error);

/* Sends rank 0 this rank's ExecRankRecord; rank 0 translates its times to its own clock. */
bool exec_gather_record(ExecRank *rank, GError **error);
