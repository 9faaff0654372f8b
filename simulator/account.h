/*
 * simulator/account.h - the Report of a simulated iteration.
 *
 * Most sums need no times: how often each cost occurs is known from compiling.  So making a report
 * costs O(costs + ranks).
 *
 * Where ops took longer than their costs say (finish.h, contend.h), SimExtra says how much and why.
 *
 *   busy  = ops + blocking messages + waiting for data-parallel communication + optimizer
 *   bubble = makespan - busy
 *   communication = messages in and out, whether they overlap or not, + collectives inside ops
 *                   (tp, cp, ep, dp of ZeRO 3) + reduction + gathering
 *   span = from the begin of the rank's first op to the end of everything it does
 *
 * The breakdown splits the mean iteration: pp is time that the compute stream is blocked in
 * messages, dp time that it is blocked in data-parallel communication before, inside or after the
 * ops; what collectives take longer on shared links is shared out to tp, cp, ep and dp in
 * proportion; compute is what is left of the ops after tp, cp, ep, dp and
 * recompute, with the executor's own bookkeeping.
 *
 * memory_limit_bytes is the smallest limit of all ranks that have one; `fits` compares every rank
 * with what it may use of its own limit (workload_usable_bytes()).
 *
 * Internal to simulator/.
 */
#pragma once

#include "simulator/memory.h"

/*
 * @peaks  (nullable) one per rank.
 * Returns: (owned) the report; never NULL.
 */
Report *sim_account(const SimProgram *program, const SimTimes *times, const SimPeak *peaks);
