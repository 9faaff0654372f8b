/*
 * planner/bounds/floor_messages.h - what messages between neighbouring ranks take at the least, by rows.
 *
 * A message of a slice of x rows takes its latency and x times what a row takes at the rate of the path, and where
 * each rank of a group gets a share of it, the gathering behind it, which is linear, too (profiles/workload/ops.c).
 * Messages that one rank gets and gives the others are left out.  Stages lie in a loop, so
 * the last rank's neighbour is the first one.
 *
 * Thread-safety: as the memo.
 */
#pragma once

#include "planner/cost/point.h"

/* Of one message, or of several one after the other. */
typedef struct {
    double latency_s, row_s;
} PlanFloorMessage;

typedef struct {
    /* (owned) [rank][forward, backward] over all boundaries between rank 0 and the rank: activations on
     * the way there, gradients on the way back */
    PlanFloorMessage (*to)[2];
    PlanFloorMessage round[2]; /* from rank 0 through all ranks to rank 0 again */
} PlanFloorMessages;

/* Returns: (borrowed from @memo) the messages at the degrees and in the rank order of @point.
 * Cost: O(ranks) prices where they are not known. */
const PlanFloorMessages *plan_floor_messages(PlanMemo *memo, const PlanRequest *request,
                                             const PlanPoint *point);

/* Returns: what @message takes for slices of @rows rows. */
static inline double
plan_floor_message_s(const PlanFloorMessage *message, double rows)
{
    return message->latency_s + rows * message->row_s;
}
