/*
 * planner/bounds/flow.h - how long the last rank idles at the least under families that slice.
 *
 * Internal to planner/.  All of them (stages in a loop, backwards whole) begin on every rank with
 * the forwards of the first micro-batch's slices on its first stage, in order, and end with their
 * backwards of the last micro-batch, last slice first: two flow shops over p ranks, whose jobs are
 * slices.  Before the last rank has run its part of the first it idles for what the shop takes,
 * less its own ops; likewise from the begin of its part of the second to the end of rank 0's.  What
 * lies between is at least all of its other work, so
 *
 *   iteration >= fill(first micro-batch) + work of the last rank + drain(last micro-batch)
 *
 * plus what rank 0 does after its last op.  For equal stages fill is (p - 1) times the longest
 * forward of a slice, drain that of a backward: the fill-drain formula, which no order beats.
 * Where all forwards come first the shops are those of all micro-batches, and this is the time.
 *
 * A blocking message takes its receiver's time after the sender's op and the receiver's one before
 * it, and its sender's but for what the transport buffers.
 *
 * Thread-safety: pure.
 */
#ifndef PLANNER_BOUNDS_FLOW_H
#define PLANNER_BOUNDS_FLOW_H

#include "profiles/workload/workload.h"

G_BEGIN_DECLS

/* One size of micro-batch. */
typedef struct {
    const Workload *workload; /* (borrowed) its ranks, stages and messages; not its ops */
    int32_t n_slices;
    const WorkloadOp *const *ops; /* (borrowed) [stage * n_slices + slice] */
} PlanFlowShop;

typedef struct {
    int64_t fill_ns, drain_ns; /* as the first micro-batch, as the last */
    int64_t work_ns;           /* of the last rank, with blocking messages */
} PlanFlowTimes;

/* More than one rank.  Cost: O(stages * slices). */
PlanFlowTimes plan_flow_times(const PlanFlowShop *shop);

/* Micro-batches in their order. */
typedef struct {
    const PlanFlowShop *shops; /* (borrowed) [class] of the same ranks and numbers of slices */
    int32_t n_classes;
    const int32_t *classes; /* (borrowed, nullable: all 0) of the micro-batches */
    int64_t n_micro_batches;
    bool forwards_first; /* the family's */
} PlanFlow;

/* The bound but for rank 0's end.  Cost: O(stages * classes * slices + micro-batches); with
 * forwards_first O(ranks * slices * micro-batches) if there are several classes. */
int64_t plan_flow_bound_ns(const PlanFlow *flow);

/* The bound of @workload's micro-batches but for rank 0's end. */
int64_t plan_bound_flow_ns(const Workload *workload, int64_t n_micro_batches, bool forwards_first);

G_END_DECLS

#endif /* PLANNER_BOUNDS_FLOW_H */
