/*
 * planner/bounds/flow.h - how long the last rank idles at the least under families that slice.
 *
 * All of these families place stages in a loop and have whole backwards.  On every rank they begin
 * with the forwards of the first micro-batch's slices on the rank's first stage, in order, and end
 * with the backwards of the last micro-batch there, the last slice first.  Both are flow shops over
 * p ranks whose jobs are slices.  Before the last rank has run its part of the first shop, it idles
 * for what the shop takes less its own ops; likewise from the start of its part of the second shop
 * to the end of that of rank 0.  What lies between is at least all of its other work, so
 *
 *   iteration >= fill(first micro-batch) + work of the last rank + drain(last micro-batch)
 *
 * plus what rank 0 does after its last op.  For equal stages fill is (p - 1) times the longest
 * forward of a slice and drain the same of a backward: the fill-drain formula, which no order
 * beats. Where all forwards come first, the shops are those of all micro-batches, and this is the
 * time.
 *
 * A message that blocks takes its receiver's time between the op of the sender and the op of the
 * receiver, and its sender's time except for what the transport buffers.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "base/saturate.h"
#include "profiles/workload/workload.h"

/* Hostile rates make absurd times: sums and products of times stop here, far from overflow. */
#define PLAN_MOST_NS (INT64_MAX / 8)

static inline int64_t
plan_sum_ns(int64_t a, int64_t b)
{
    return saturate_sum(a, b, PLAN_MOST_NS);
}

static inline int64_t
plan_product_ns(int64_t n, int64_t ns)
{
    return saturate_product(n, ns, PLAN_MOST_NS);
}

/* The slices of one size of micro-batch. */
typedef struct {
    const Workload
        *workload; /* (borrowed) of its ranks, stages and messages; its ops are not read */
    int32_t n_slices;
    const WorkloadOp *const *ops; /* (borrowed) [stage * n_slices + slice] */
} PlanFlowShop;

typedef struct {
    int64_t fill_ns, drain_ns; /* where it is the first micro-batch, and where it is the last */
    int64_t work_ns;           /* of the last rank, with blocking messages */
} PlanFlowTimes;

/*
 * Returns: the slices of micro-batches of class @class_ as @workload prices them.
 * @ops  (out, caller's) room for n_stages * n_slices, which the shop borrows
 */
PlanFlowShop plan_flow_shop(const Workload *workload, int32_t class_, const WorkloadOp **ops);

/* Returns: how long the rank of @stage is busy with @slice in both passes, with the messages that
 * block. */
int64_t plan_flow_busy_ns(const PlanFlowShop *shop, int32_t stage, int32_t slice);

/* Returns: the times of a shop of more than one rank.  Cost: O(stages * slices). */
PlanFlowTimes plan_flow_times(const PlanFlowShop *shop);

/* All micro-batches of a plan in their order. */
typedef struct {
    const PlanFlowShop *shops; /* (borrowed) [class], all of the same ranks and number of slices */
    int32_t n_classes;
    const int32_t *classes; /* (borrowed, nullable: all 0) [micro-batch] */
    int64_t n_micro_batches;
    bool forwards_first; /* of the family */
} PlanFlow;

/* Returns: the bound without what rank 0 does after its last op.  Cost: O(stages * classes * slices
 * + micro-batches); with forwards_first and several classes O(ranks * slices * micro-batches). */
int64_t plan_flow_bound_ns(const PlanFlow *flow);

/* The same of the micro-batches of @workload. */
int64_t plan_bound_flow_ns(const Workload *workload, int64_t n_micro_batches, bool forwards_first);
