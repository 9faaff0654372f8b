/*
 * planner/bounds/order_path.h - long ways through a schedule's order of ops, found without times.
 *
 * Internal to planner/.  Ops of a rank run one after the other, and wait for messages; so the ops
 * on any way through these dependencies take no longer, one after the other, than the iteration.
 * Which way is the longest depends on times, but little: the longest ones at a few typical times
 * (PLAN_PATH_N) are found once per order, and summed with the times of each plan.  This tells
 * orders that leave ranks idle (v-min, v-half, chunks that do not fill the pipeline) from those
 * that do not, which work and wait of a rank alone cannot.
 */
#ifndef PLANNER_BOUNDS_ORDER_PATH_H
#define PLANNER_BOUNDS_ORDER_PATH_H

#include "schedule/schedule.h"

G_BEGIN_DECLS

/* The times that ways are the longest at, by kind of op, and of a message: backwards that take
 * twice as long as forwards, and three times, with recompute.  Ops of a chain's last stage, which
 * has the head, take a little longer, so that of equal ways it is one through that stage. */
#define PLAN_PATH_N 2
#define PLAN_PATH_MESSAGE 1
#define PLAN_PATH_HEAD 1
extern const int32_t plan_path_times[PLAN_PATH_N][SCHEDULE_OP_N];

/* What of a stage lies on a way. */
typedef struct {
    int32_t ops[SCHEDULE_OP_N];
    int32_t messages[2]; /* that the stage sends to the next one, to the one before */
} PlanPathStage;

typedef struct {
    int32_t n_stages; /* of all chains */
    int32_t last_rank[PLAN_PATH_N];
    int32_t n_ops[PLAN_PATH_N];
    PlanPathStage *stages; /* (owned) [way * n_stages + stage], chain after chain */
} PlanOrderPaths;

/*
 * Returns: (owned) NULL for orders that overlap ops, whose times do not add, that are too long to
 * be looked at, or that cannot run.  Cost: O(ops).
 */
PlanOrderPaths *plan_order_paths_new(const Schedule *schedule);
void plan_order_paths_free(PlanOrderPaths *paths); /* (nullable) */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(PlanOrderPaths, plan_order_paths_free)

/* The stage on @way. */
static inline const PlanPathStage *
plan_order_paths_stage(const PlanOrderPaths *paths, int path, int32_t stage)
{
    return &paths->stages[path * paths->n_stages + stage];
}

G_END_DECLS

#endif /* PLANNER_BOUNDS_ORDER_PATH_H */
