/*
 * planner/slices/orders.h - groups and slices for 1F1B, interleaved and other orders, by
 * simulation.
 *
 * The groups of the answer are the micro-batches of a Schedule, so all are cut alike; they may have
 * different numbers of sequences.  Candidates are, for every number of micro-batches, the proven
 * best slicings of the fill-drain formula at an eighth to four times the stages (fewer and more
 * slices) and equal ones; the simulator judges them, and slice_judge.h goes on from the best.
 *
 * The answer's lower bound is that of slice_order_bound.h.
 *
 * Thread-safety: pure, if the judge is.
 */
#ifndef PLANNER_SLICES_ORDERS_H
#define PLANNER_SLICES_ORDERS_H

#include "planner/slices/stages.h"
#include "profiles/workload/workload.h"

G_BEGIN_DECLS

/* Simulates one answer.  Fills @report (owned by the caller), with peaks if @want_memory. */
typedef bool (*PlanSliceSimulateFunc)(const Schedule *schedule, const Workload *workload,
                                      bool want_memory, Report **report, void *user_data);

typedef struct {
    /* n_stages: of the chain, chunk after chunk (stage c * n_ranks + r is chunk c of rank r); its
     * bytes are a rank's, and what a rank holds at its peak must be within the limit; cost and
     * backward are not read. */
    const PlanSliceProblem *problem;
    const PlanSliceStage *stages; /* with backward */
    int64_t n_ranks;
    const char *schedule; /* a family that slices, with chunks n_stages / n_ranks */
    PlanSliceSimulateFunc simulate;
    void *user_data; /* (borrowed) */
} PlanSliceOrder;

/*
 * The times of @groups, all cut into as many slices, as @schedule's ops: groups are its
 * micro-batches.  Delays are overlapped messages.  Returns: (owned) NULL if a slice is infinite.
 */
Workload *plan_slice_order_workload(const PlanSliceOrder *order, const GPtrArray *groups,
                                    const Schedule *schedule);

/* The simulated makespan of @groups; INT64_MAX where it cannot be, or does not fit. */
int64_t plan_slice_order_time(const PlanSliceOrder *order, const GPtrArray *groups);

/*
 * Returns: (owned) n_solves counts simulations; max_slice and max_backward are the longest on any
 * stage.  NULL on a PLAN_SLICE_ERROR.
 */
PlanSliceResult *plan_slice_solve_order(const PlanSliceOrder *order, GError **error);

G_END_DECLS

#endif /* PLANNER_SLICES_ORDERS_H */
