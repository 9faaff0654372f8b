/*
 * planner/bounds/order_path.h - long paths through the ops of a schedule, found without times.
 *
 * The ops of a rank run one after the other and wait for messages.  So the ops on any path through
 * these dependencies, one after the other, take no longer than the iteration.  Which path is the
 * longest depends on times, but little: the longest ones at a few typical times (PLAN_PATH_N) are
 * found once per schedule, and then summed with the times of each plan.  This tells orders that
 * leave ranks idle (v-min, v-half, chunks that do not fill the pipeline) from those that do not;
 * the work and the wait of one rank cannot.
 *
 * Thread-safety: pure.
 */
#pragma once

#include "schedule/schedule.h"

/*
 * The typical times, by path and kind of op: backwards that take twice as long as forwards, and
 * three times as long, with recompute.  A message takes PLAN_PATH_MESSAGE.  Ops of the last stage
 * of a chain, which has the head, take PLAN_PATH_HEAD longer, so that of equal paths one through
 * that stage is found.
 */
#define PLAN_PATH_N 2
#define PLAN_PATH_MESSAGE 1
#define PLAN_PATH_HEAD 1
extern const int32_t plan_path_times[PLAN_PATH_N][SCHEDULE_OP_N];

/* How many ops and messages of a stage lie on a path. */
typedef struct {
    int32_t ops[SCHEDULE_OP_N];
    int32_t messages[2]; /* that the stage sends to the next one, and to the one before */
} PlanPathStage;

typedef struct {
    int32_t n_stages;               /* of all chains */
    int32_t last_rank[PLAN_PATH_N]; /* on which each path ends */
    int32_t n_ops[PLAN_PATH_N];
    PlanPathStage *stages; /* (owned) [path * n_stages + stage], chain after chain */
} PlanOrderPaths;

/* Returns: (owned) NULL for schedules that overlap ops, whose times do not add, that have more than
 * 2^18 ops, or that cannot run.  Cost: O(ops). */
PlanOrderPaths *plan_order_paths_new(const Schedule *schedule);
void plan_order_paths_free(PlanOrderPaths *paths); /* (nullable) */
G_DEFINE_AUTOPTR_CLEANUP_FUNC(PlanOrderPaths, plan_order_paths_free)

/* (borrowed) what of @stage (of all chains) lies on @path. */
static inline const PlanPathStage *
plan_order_paths_stage(const PlanOrderPaths *paths, int path, int32_t stage)
{
    return &paths->stages[path * paths->n_stages + stage];
}
