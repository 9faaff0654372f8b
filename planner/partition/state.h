/*
 * planner/partition/state.h - what partition.c's program, partition_reach.c's bisection and
 * partition_shared.c's search share.
 *
 * Internal to planner/.
 */
#ifndef PLANNER_PARTITION_STATE_H
#define PLANNER_PARTITION_STATE_H

#include "base/saturate.h"
#include "planner/partition/partition.h"

G_BEGIN_DECLS

/* Sums of squared nanoseconds. */
__extension__ typedef unsigned __int128 PlanSquares;

#define PLAN_SQUARES_NEVER ((PlanSquares)-1)

typedef struct {
    const PlanPartition *p;
    int64_t n_recomputes;
    int64_t *limits; /* (owned) [stage] of its rank; 0: none */
    int64_t *
        time_before; /* (owned) [(kind * n_recomputes + way) * (n_layers + 1) + i]: of 0 .. i - 1 */
    int64_t *state_bytes_before; /* (owned) [i] that stay */
    int64_t *kept_bytes_before;  /* (owned) [way * (n_layers + 1) + i] */
    /* (owned) [stage * (n_layers + 1) + i]: the best of layers i .. on stages stage .. */
    int64_t *longest;
    PlanSquares *squares;
    /* (owned) [stage, and one more] the least and most layers before it that squares are set for */
    int64_t *least_before, *most_before;
} PlanPartitionState;

/* Sums and products that saturate. */
static inline int64_t
plan_partition_add(int64_t a, int64_t b)
{
    return saturate_sum(a, b, INT64_MAX);
}

static inline int64_t
plan_partition_multiply(int64_t a, int64_t b)
{
    return saturate_product(a, b, INT64_MAX);
}

static inline int64_t
plan_partition_n_kinds(const PlanPartition *p)
{
    int64_t n = 1;

    for (int64_t stage = 0; p->stage_kind != NULL && stage < p->n_stages; stage++)
        n = MAX(n, (int64_t)p->stage_kind[stage] + 1);
    return n;
}

/* The layers that can come before @stage: each stage before and after needs its least. */
static inline int64_t
plan_partition_first_before(const PlanPartition *p, int64_t stage)
{
    return p->allow_empty ? 0 : stage;
}

static inline int64_t
plan_partition_last_before(const PlanPartition *p, int64_t stage)
{
    return p->allow_empty ? p->n_layers : p->n_layers - (p->n_stages - stage);
}

/* Time and bytes of @stage with layers @from .. @to - 1, run in @way. */
int64_t plan_partition_ns(const PlanPartitionState *state, int64_t stage, int64_t from, int64_t to,
                          int64_t recompute);
int64_t plan_partition_bytes(const PlanPartitionState *state, int64_t stage, int64_t from,
                             int64_t to, int64_t recompute);

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

/* --- a stage as the programs read it --- */

/* One way of a stage: time and bytes of layers from .. to - 1 are differences of rows. */
typedef struct {
    const int64_t *time_ns, *kept_bytes;
    int64_t more_ns;
    int64_t more_bytes; /* once, with what the ends keep in flight */
} PlanStageRecompute;

typedef struct {
    const int64_t *bytes;
    int64_t n_in_flight, limit_bytes, n_recomputes;
    PlanStageRecompute recomputes[PLAN_PARTITION_MAX_RECOMPUTES];
} PlanStageView;

PlanStageView plan_partition_view(const PlanPartitionState *state, int64_t stage);

/* The least time of the ways that fit, of equal ones the first; -1: none does. */
static inline int64_t
plan_stage_view_ns(const PlanStageView *view, int64_t from, int64_t to, int32_t *best_recompute)
{
    int64_t best = -1;

    for (int64_t i = 0; i < view->n_recomputes; i++) {
        const PlanStageRecompute *recompute = &view->recomputes[i];
        const int64_t ns = plan_partition_add(recompute->time_ns[to] - recompute->time_ns[from],
                                              recompute->more_ns);
        if (best >= 0 && ns >= best)
            continue;
        if (view->limit_bytes > 0 &&
            plan_partition_add(
                plan_partition_add(view->bytes[to] - view->bytes[from], recompute->more_bytes),
                plan_partition_multiply(view->n_in_flight,
                                        recompute->kept_bytes[to] - recompute->kept_bytes[from])) >
                view->limit_bytes)
            continue;
        best = ns;
        if (best_recompute != NULL)
            *best_recompute = (int32_t)i;
    }
    return best;
}

/* --- partition_reach.c --- */

typedef enum {
    PLAN_REACHED,     /* all layers */
    PLAN_REACHED_NOT, /* not with so short stages */
    /* A stage cannot begin with the layer that it gets, but might with one before. */
    PLAN_REACHED_UNKNOWN,
} PlanReached;

/*
 * The shortest longest stage to @cap, between what none is below and what was reached.
 * PLAN_REACHED_NOT: nothing fits.  PLAN_REACHED_UNKNOWN: the program has to say.
 */
PlanReached plan_partition_bisect(PlanPartitionState *state, int64_t *cap);

/* Sets least_before, given most_before: the fewest layers before each stage with which all after
 * are reached within @cap; too few are no harm. */
void plan_partition_reach_back(PlanPartitionState *state, int64_t cap);

/*
 * partition_shared.c: the answer where stages share a rank's memory.  @state holds both programs of
 * unshared memory (squares without a cap).  Returns false if nothing fits.
 */
bool plan_partition_shared(const PlanPartitionState *state, int64_t *counts, int32_t *recomputes);

G_END_DECLS

#endif /* PLANNER_PARTITION_STATE_H */
