/*
 * The shortest longest stage by bisection: each stage takes as many layers as it can.
 *
 * Where that is not exact (a stage cannot begin with the layer that it gets) partition.c's program
 * has the answer, at several times the cost.
 */
#include "planner/partition/state.h"

/*
 * Every stage takes as many layers as it can within @cap; no other way gets further, as a part of
 * what a stage runs takes no longer and fits.  Sets most_before.
 * @longest  (out) the longest stage
 * @over     (out) the least that a stage would take with one layer more, if that is more than @cap:
 *           up to there nothing changes
 */
static PlanReached
reach_far(PlanPartitionState *state, int64_t cap, int64_t *longest, int64_t *over)
{
    const PlanPartition *p = state->p;
    const int64_t least = p->allow_empty ? 0 : 1;
    int64_t i = 0;

    *longest = 0;
    *over = INT64_MAX;
    for (int64_t stage = 0; stage < p->n_stages; stage++) {
        const PlanStageView view = plan_partition_view(state, stage);
        const int64_t end = plan_partition_last_before(p, stage + 1);
        int64_t own = -1, j = i + least;
        state->most_before[stage] = i;
        for (; j <= end; j++) {
            const int64_t ns = plan_stage_view_ns(&view, i, j, NULL);
            if (ns > cap)
                *over = MIN(*over, ns);
            if (ns < 0 || ns > cap)
                break;
            own = ns;
        }
        if (own < 0)
            return PLAN_REACHED_UNKNOWN;
        *longest = MAX(*longest, own);
        i = j - 1;
    }
    state->most_before[p->n_stages] = i;
    return i == p->n_layers ? PLAN_REACHED : PLAN_REACHED_NOT;
}

/* Whether sums of times stay far from overflow. */
static bool
sums_are_small(const PlanPartitionState *state)
{
    const PlanPartition *p = state->p;
    int64_t most = 0;

    for (int64_t row = 0; row < plan_partition_n_kinds(p) * state->n_recomputes; row++)
        most = MAX(most, state->time_before[row * (p->n_layers + 1) + p->n_layers]);
    for (int64_t kind = 0; p->end_ns != NULL && kind < plan_partition_n_kinds(p); kind++)
        most = MAX(most, MAX(p->end_ns[kind * 2], p->end_ns[kind * 2 + 1]));
    return most < INT64_MAX / 8;
}

/* No division has a shorter longest stage: the mean were each layer where it is fastest, and each
 * stage with one layer. */
static int64_t
least_longest_ns(const PlanPartitionState *state)
{
    const PlanPartition *p = state->p;
    const int64_t n_rows = plan_partition_n_kinds(p) * state->n_recomputes, n = p->n_layers;
    int64_t sum = 0, fastest_of_all = INT64_MAX;

    for (int64_t i = 0; i < n; i++) {
        int64_t fastest = INT64_MAX;
        for (int64_t row = 0; row < n_rows; row++)
            fastest = MIN(fastest, p->layer_ns[row * n + i]);
        fastest_of_all = MIN(fastest_of_all, fastest);
        sum += fastest;
    }
    int64_t least = sum / p->n_stages;
    for (int64_t stage = 0; stage < p->n_stages && !p->allow_empty; stage++)
        least = MAX(least, fastest_of_all + plan_partition_ns(state, stage, 0, 0, 0));
    return least;
}

PlanReached
plan_partition_bisect(PlanPartitionState *state, int64_t *cap)
{
    int64_t low, high = INT64_MAX, longest, over;

    if (!sums_are_small(state))
        return PLAN_REACHED_UNKNOWN;
    low = least_longest_ns(state);
    for (bool is_lowest = true; low < high; is_lowest = !is_lowest) {
        /* Layers are mostly equal, and then the lowest is the answer soon. */
        const int64_t middle = high < INT64_MAX ? low + (high - low) / 2 : 2 * low + 1;
        const PlanReached reached = reach_far(state, is_lowest ? low : middle, &longest, &over);
        if (reached == PLAN_REACHED_UNKNOWN || (reached == PLAN_REACHED_NOT && over == INT64_MAX))
            return reached; /* it is memory that ends each stage */
        if (reached == PLAN_REACHED)
            high = longest;
        else
            low = over;
    }
    *cap = high;
    return reach_far(state, high, &longest, &over);
}

void
plan_partition_reach_back(PlanPartitionState *state, int64_t cap)
{
    const PlanPartition *p = state->p;
    int64_t j = p->n_layers;

    state->least_before[p->n_stages] = j;
    *plan_partition_squares(state, p->n_stages, j) = 0;
    for (int64_t stage = p->n_stages - 1; stage >= 0; stage--) {
        const PlanStageView view = plan_partition_view(state, stage);
        int64_t i = j - (p->allow_empty ? 0 : 1);
        for (; i > plan_partition_first_before(p, stage); i--) {
            const int64_t ns = plan_stage_view_ns(&view, i - 1, j, NULL);
            if (ns < 0 || ns > cap)
                break;
        }
        j = state->least_before[stage] = MAX(i, plan_partition_first_before(p, stage));
    }
}
