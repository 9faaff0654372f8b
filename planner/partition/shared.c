/*
 * Chunks: several stages share the memory of one rank.
 *
 * Depth first over stages: layers, then way, most layers first, so that of equal splits the one
 * that plan_partition() promises is met first.  A branch ends when the programs of unshared memory
 * say that what is left cannot beat the best split, or that nothing fits.
 */
#include "planner/partition/state.h"

#include <string.h>

typedef struct {
    const PlanPartitionState *state;
    int64_t *used; /* (owned) [rank] bytes of the stages so far */
    int64_t *counts, *best_counts;
    int32_t *recomputes, *best_recomputes;
    int64_t longest;     /* of the best split */
    PlanSquares squares; /* likewise */
    bool found;
    int64_t n_steps;
} Shared;

/* Whether no completion beats the best split. */
static bool
is_hopeless(const Shared *search, int64_t stage, int64_t i, int64_t longest, PlanSquares squares)
{
    const int64_t after = *plan_partition_longest(search->state, stage, i);
    const PlanSquares rest = *plan_partition_squares(search->state, stage, i);

    if (after < 0 || rest == PLAN_SQUARES_NEVER)
        return true;
    longest = MAX(longest, after);
    return search->found && (longest > search->longest ||
                             (longest == search->longest && squares + rest >= search->squares));
}

static void walk(Shared *search, int64_t stage, int64_t i, int64_t longest, PlanSquares squares);

/* Tries @stage with layers i .. j - 1 in every way that fits, fastest first. */
static void
try_count(Shared *search, int64_t stage, int64_t i, int64_t j, int64_t longest, PlanSquares squares)
{
    const PlanPartitionState *state = search->state;
    const int32_t rank = state->p->stage_rank[stage];
    const int64_t limit = state->limits[stage], before = search->used[rank];
    bool done[PLAN_PARTITION_MAX_RECOMPUTES] = {false};

    for (int64_t n = 0; n < state->n_recomputes; n++) {
        int64_t recompute = -1, least = INT64_MAX;
        for (int64_t w = 0; w < state->n_recomputes; w++) {
            const int64_t ns = plan_partition_ns(state, stage, i, j, w);
            if (!done[w] && (recompute < 0 || ns < least)) {
                recompute = w;
                least = ns;
            }
        }
        done[recompute] = true;
        const int64_t bytes = plan_partition_bytes(state, stage, i, j, recompute);
        int64_t sum;
        if (__builtin_add_overflow(before, bytes, &sum))
            sum = INT64_MAX;
        if (limit > 0 && sum > limit)
            continue;
        search->used[rank] = sum;
        search->counts[stage] = j - i;
        search->recomputes[stage] = (int32_t)recompute;
        walk(search, stage + 1, j, MAX(longest, least),
             squares + (PlanSquares)least * (PlanSquares)least);
        search->used[rank] = before;
    }
}

static void
walk(Shared *search, int64_t stage, int64_t i, int64_t longest, PlanSquares squares)
{
    const PlanPartition *p = search->state->p;

    if (is_hopeless(search, stage, i, longest, squares) ||
        search->n_steps++ >= PLAN_PARTITION_MAX_STEPS)
        return;
    if (stage == p->n_stages) {
        search->found = true;
        search->longest = longest;
        search->squares = squares;
        memcpy(search->best_counts, search->counts, (size_t)stage * sizeof *search->counts);
        memcpy(search->best_recomputes, search->recomputes,
               (size_t)stage * sizeof *search->recomputes);
        return;
    }
    for (int64_t j = p->n_layers; j >= i + (p->allow_empty ? 0 : 1); j--)
        if (*plan_partition_longest(search->state, stage + 1, j) >= 0)
            try_count(search, stage, i, j, longest, squares);
}

bool
plan_partition_shared(const PlanPartitionState *state, int64_t *counts, int32_t *recomputes)
{
    const size_t n = (size_t)state->p->n_stages;
    g_autofree int64_t *used = g_new0(int64_t, n);
    g_autofree int64_t *now = g_new0(int64_t, n);
    g_autofree int32_t *now_recomputes = g_new0(int32_t, n);
    Shared search = {.state = state,
                     .used = used,
                     .counts = now,
                     .best_counts = counts,
                     .recomputes = now_recomputes,
                     .best_recomputes = recomputes};

    walk(&search, 0, 0, 0, 0);
    return search.found;
}
