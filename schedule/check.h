/*
 * schedule/check.h - whether a Schedule can run.
 *
 * Separate from the code that builds schedules, so that it can judge them.  Checks that every
 * (micro-batch, stage, slice) has exactly one F and either one B or one I (with at most one W);
 * that order and dependencies have no cycle; that along every pair of ranks the messages are
 * received as often as they are sent.
 */
#pragma once

#include "schedule/schedule.h"

/* Returns false on SCHEDULE_ERROR_INCOMPLETE ("rank 2: B3.0 is missing") or SCHEDULE_ERROR_DEADLOCK
 * (names the cycle: "rank 0 waits in F1.0 for ..., which waits for ...").  Cost: O(ops). */
bool schedule_check(const Schedule *schedule, GError **error);

/*
 * Whether the ops that overlap_pairs names can run overlapped: a forward and a backward (B or I) of
 * one rank, neither needing the other, so of different micro-batches or (bidir) chains.  Part of
 * schedule_check().  Whether ranks then wait for each other in a circle is not checked here: the
 * simulator finds that.  Returns false on SCHEDULE_ERROR_SHAPE naming the ops.  Cost: O(pairs).
 */
bool schedule_check_pairs(const Schedule *schedule, GError **error);
