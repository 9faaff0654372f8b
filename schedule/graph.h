/*
 * schedule/graph.h - a Schedule's dependencies, derived once for simulator, executor and checker.
 *
 * Ops of one rank run in their order, so dependencies inside a rank need no edge:
 * schedule_graph_new() only verifies them.  What is left is at most one edge per op to another
 * rank: the message that the op waits for.  An op's message: F sends its stage's output to the next
 * stage; B or I sends the gradient of its input to the stage before.  No message where both stages
 * lie on one rank.
 *
 * Layout: arrays parallel to schedule->ops, for sweeps at memory speed.
 */
#pragma once

#include "schedule/schedule.h"

/* In place of an index: the op needs no message, or nobody needs its message. */
#define SCHEDULE_GRAPH_NONE INT64_C(-1)

/* Who sends to whom. */
typedef struct {
    const Schedule *schedule; /* (borrowed) outlives the graph */
    /* (owned) index of the op on another rank whose message this op needs, or NONE */
    int64_t *producer;
    /* (owned) index of the op on another rank that needs this op's message, or NONE */
    int64_t *consumer;
    /* (owned) a topological order of all ops: every op after its rank's predecessor and producer */
    int64_t *order;
} ScheduleGraph;

/* NULL with SCHEDULE_ERROR_INCOMPLETE, _DEADLOCK or _LIMIT.  Cost: O(ops) time and memory. */
ScheduleGraph *schedule_graph_new(const Schedule *schedule, GError **error);
void schedule_graph_free(ScheduleGraph *graph);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ScheduleGraph, schedule_graph_free)

/* The rank of op @index.  Cost: O(log n_ranks). */
int32_t schedule_graph_rank(const Schedule *schedule, int64_t index);
