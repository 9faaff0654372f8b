/*
 * executor/run/gather.h - what rank 0 must know of ranks that are processes: clocks, steps,
 * records.
 *
 * Hosts have clocks of their own.  Rank 0 asks every rank for the time over and over; the answer of
 * the fastest round lies in the middle of it, to within half its length [Cristian 1989].  Asked
 * before the first step and after the last, so that a drift between them is a straight line.
 *
 * With transport `local` nothing is to be done: all of it is in memory, on one clock.
 *
 * Private to executor/rank*.c.
 */
#ifndef EXECUTOR_RUN_GATHER_H
#define EXECUTOR_RUN_GATHER_H

#include "executor/run/rank.h"

G_BEGIN_DECLS

/* Which of the ranks on its machine this one is: the lower ones come first. */
bool exec_gather_local_rank(ExecRank *rank, int32_t *local_rank, GError **error);

/* Every rank, at the same two places: before the first step, and after the last (@at_end). */
bool exec_gather_clocks(ExecRank *rank, bool at_end, GError **error);

/* Gives rank 0 this rank's loss and times of the step just done. */
bool exec_gather_step(ExecRank *rank, GError **error);

/* Gives rank 0 this rank's ExecRankRecord, times on rank 0's clock. */
bool exec_gather_record(ExecRank *rank, GError **error);

G_END_DECLS

#endif /* EXECUTOR_RUN_GATHER_H */
