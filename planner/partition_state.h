/*
 * planner/partition_state.h - what partition.c's program and partition_shared.c's search share.
 *
 * Internal to planner/.
 */
#ifndef PLANNER_PARTITION_STATE_H
#define PLANNER_PARTITION_STATE_H

#include "planner/partition.h"

G_BEGIN_DECLS

/* Sums of squared nanoseconds. */
__extension__ typedef unsigned __int128 PlanSquares;

#define PLAN_SQUARES_NEVER ((PlanSquares)-1)

typedef struct {
    const PlanPartition *p;
    int64_t n_ways;
    int64_t *limits;       /* (owned) [stage] of its rank; 0: none */
    int64_t *time_before;  /* (owned) [(kind * n_ways + way) * (n_layers + 1) + i]: of 0 .. i - 1 */
    int64_t *bytes_before; /* (owned) [i] that stay */
    int64_t *kept_before;  /* (owned) [way * (n_layers + 1) + i] */
    /* (owned) [stage * (n_layers + 1) + i]: the best of layers i .. on stages stage .. */
    int64_t *longest;
    PlanSquares *squares;
    /* (owned) [stage, and one more] the least and most layers before it that squares are set for */
    int64_t *least_before, *most_before;
} PlanPartitionState;

/* Time and bytes of @stage with layers @from .. @to - 1, run in @way. */
int64_t plan_partition_ns(const PlanPartitionState *state, int64_t stage, int64_t from, int64_t to,
                          int64_t way);
int64_t plan_partition_bytes(const PlanPartitionState *state, int64_t stage, int64_t from,
                             int64_t to, int64_t way);

static inline int64_t *
plan_partition_longest(const PlanPartitionState *state, int64_t stage, int64_t i)
{
    return &state->longest[stage * (state->p->n_layers + 1) + i];
}

static inline PlanSquares *
plan_partition_squares(const PlanPartitionState *state, int64_t stage, int64_t i)
{
    return &state->squares[stage * (state->p->n_layers + 1) + i];
}

/*
 * partition_shared.c: the answer where stages share a rank's memory.  @state holds both programs of
 * unshared memory (squares without a cap).  Returns false if nothing fits.
 */
bool plan_partition_shared(const PlanPartitionState *state, int64_t *counts, int32_t *ways);

G_END_DECLS

#endif /* PLANNER_PARTITION_STATE_H */
