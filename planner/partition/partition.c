#include "planner/partition/partition.h"

#include "planner/partition/state.h"
#include "schedule/plan.h"

/* --- one stage with layers from .. to - 1 --- */

int64_t
plan_partition_ns(const PlanPartitionState *state, int64_t stage, int64_t from, int64_t to,
                  int64_t recompute)
{
    const PlanPartition *p = state->p;
    const int64_t kind = p->stage_kind != NULL ? p->stage_kind[stage] : 0;
    const int64_t *before =
        &state->time_before[(kind * state->n_recomputes + recompute) * (p->n_layers + 1)];
    int64_t time = before[to] - before[from];

    if (p->end_ns == NULL)
        return time;
    if (stage == 0)
        time = plan_partition_add(time, p->end_ns[kind * 2]);
    if (stage == p->n_stages - 1)
        time = plan_partition_add(time, p->end_ns[kind * 2 + 1]);
    return time;
}

/* Of an end stage; nothing elsewhere. */
static int64_t
ends(const PlanPartition *p, int64_t stage, const int64_t *of_ends)
{
    if (of_ends == NULL)
        return 0;
    return plan_partition_add(stage == 0 ? of_ends[0] : 0,
                              stage == p->n_stages - 1 ? of_ends[1] : 0);
}

int64_t
plan_partition_bytes(const PlanPartitionState *state, int64_t stage, int64_t from, int64_t to,
                     int64_t recompute)
{
    const PlanPartition *p = state->p;
    const int64_t *kept = &state->kept_bytes_before[recompute * (p->n_layers + 1)];
    const int64_t n_in_flight = p->stage_in_flight != NULL ? p->stage_in_flight[stage] : 1;
    const int64_t slice_bytes =
        plan_partition_add(kept[to] - kept[from], ends(p, stage, p->end_kept_bytes));
    int64_t bytes = state->state_bytes_before[to] - state->state_bytes_before[from];

    bytes = plan_partition_add(bytes, ends(p, stage, p->end_bytes));
    bytes = plan_partition_add(
        bytes, p->workspace_bytes_of != NULL ? p->workspace_bytes_of[recompute] : 0);
    return plan_partition_add(bytes, plan_partition_multiply(n_in_flight, slice_bytes));
}

/* --- a stage as the programs read it --- */

PlanStageView
plan_partition_view(const PlanPartitionState *state, int64_t stage)
{
    const PlanPartition *p = state->p;
    const int64_t kind = p->stage_kind != NULL ? p->stage_kind[stage] : 0, n = p->n_layers + 1;
    PlanStageView view = {.bytes = state->state_bytes_before,
                          .n_in_flight = p->stage_in_flight != NULL ? p->stage_in_flight[stage] : 1,
                          .limit_bytes = state->limits[stage],
                          .n_recomputes = state->n_recomputes};

    for (int64_t recompute = 0; recompute < state->n_recomputes; recompute++)
        view.recomputes[recompute] = (PlanStageRecompute){
            .time_ns = &state->time_before[(kind * state->n_recomputes + recompute) * n],
            .kept_bytes = &state->kept_bytes_before[recompute * n],
            .more_ns = plan_partition_ns(state, stage, 0, 0, recompute),
            .more_bytes = plan_partition_bytes(state, stage, 0, 0, recompute),
        };
    return view;
}

/* --- the two programs --- */

/* Every state impossible but the end: all layers before stage n_stages. */
static void
clear_states(PlanPartitionState *state)
{
    const PlanPartition *p = state->p;
    const int64_t n_states = (p->n_stages + 1) * (p->n_layers + 1);

    for (int64_t stage = 0; stage <= p->n_stages; stage++) {
        state->least_before[stage] = plan_partition_first_before(p, stage);
        state->most_before[stage] = plan_partition_last_before(p, stage);
    }
    for (int64_t i = 0; i < n_states; i++) {
        state->longest[i] = -1;
        state->squares[i] = PLAN_SQUARES_NEVER;
    }
    *plan_partition_longest(state, p->n_stages, p->n_layers) = 0;
    *plan_partition_squares(state, p->n_stages, p->n_layers) = 0;
}

/*
 * longest(s, i) = min over j of max(time of i .. j on s, longest(s + 1, j)); -1: nothing fits.
 * A stage only grows with j (fewer ways fit, each takes longer), so the first that does not fit, or
 * takes as long as the best, ends the row: in all about n_layers^2 steps, not
 * n_layers^2 * n_stages.
 */
static void
solve_longest(PlanPartitionState *state)
{
    const PlanPartition *p = state->p;
    const int64_t least = p->allow_empty ? 0 : 1;

    for (int64_t stage = p->n_stages - 1; stage >= 0; stage--) {
        const int64_t end = plan_partition_last_before(p, stage + 1);
        const PlanStageView view = plan_partition_view(state, stage);
        for (int64_t i = plan_partition_first_before(p, stage);
             i <= plan_partition_last_before(p, stage); i++) {
            int64_t best = -1;
            for (int64_t j = MAX(i + least, plan_partition_first_before(p, stage + 1)); j <= end;
                 j++) {
                const int64_t own = plan_stage_view_ns(&view, i, j, NULL);
                const int64_t after = *plan_partition_longest(state, stage + 1, j);
                if (own < 0 || (best >= 0 && own >= best))
                    break;
                if (after >= 0 && (best < 0 || MAX(own, after) < best))
                    best = MAX(own, after);
            }
            *plan_partition_longest(state, stage, i) = best;
        }
    }
}

/* squares(s, i): the least sum of squares with no stage longer than @cap, for i from
 * least_before(s) to most_before(s); nothing else is read. */
static void
solve_squares(PlanPartitionState *state, int64_t cap)
{
    const PlanPartition *p = state->p;
    const int64_t least = p->allow_empty ? 0 : 1;

    for (int64_t stage = p->n_stages - 1; stage >= 0; stage--) {
        const int64_t begin = state->least_before[stage + 1], end = state->most_before[stage + 1];
        const PlanStageView view = plan_partition_view(state, stage);
        for (int64_t i = state->least_before[stage]; i <= state->most_before[stage]; i++) {
            PlanSquares best = PLAN_SQUARES_NEVER;
            for (int64_t j = MAX(i + least, begin); j <= end; j++) {
                const int64_t time = plan_stage_view_ns(&view, i, j, NULL);
                const PlanSquares after = *plan_partition_squares(state, stage + 1, j);
                if (time < 0 || time > cap)
                    break;
                if (after != PLAN_SQUARES_NEVER)
                    best = MIN(best, after + (PlanSquares)time * (PlanSquares)time);
            }
            *plan_partition_squares(state, stage, i) = best;
        }
    }
}

/* Follows the squares from the first stage, most layers first. */
static void
read_counts(const PlanPartitionState *state, int64_t cap, int64_t *counts, int32_t *recomputes)
{
    const PlanPartition *p = state->p;

    for (int64_t stage = 0, i = 0; stage < p->n_stages; stage++) {
        const PlanStageView view = plan_partition_view(state, stage);
        for (int64_t j = state->most_before[stage + 1];; j--) {
            g_assert(j >= MAX(i, state->least_before[stage + 1]));
            const int64_t time = plan_stage_view_ns(&view, i, j, &recomputes[stage]);
            const PlanSquares after = *plan_partition_squares(state, stage + 1, j);
            if (time >= 0 && time <= cap && after != PLAN_SQUARES_NEVER &&
                after + (PlanSquares)time * (PlanSquares)time ==
                    *plan_partition_squares(state, stage, i) &&
                (j > i || p->allow_empty)) {
                counts[stage] = j - i;
                i = j;
                break;
            }
        }
    }
}

/* --- why not --- */

/* The least bytes of all ways. */
static int64_t
least_bytes(const PlanPartitionState *state, int64_t stage, int64_t from, int64_t to)
{
    int64_t least = INT64_MAX;

    for (int64_t recompute = 0; recompute < state->n_recomputes; recompute++)
        least = MIN(least, plan_partition_bytes(state, stage, from, to, recompute));
    return least;
}

static void
set_infeasible(const PlanPartitionState *state, GError **error)
{
    const PlanPartition *p = state->p;
    const int64_t least = p->allow_empty ? 0 : 1;
    g_autofree bool *reached = g_new0(bool, (size_t)p->n_layers + 1);

    if (!p->allow_empty && p->n_stages > p->n_layers) {
        g_set_error(error, PLAN_ERROR, PLAN_ERROR_INFEASIBLE,
                    "stage %" G_GINT64_FORMAT " would have no layer: %" G_GINT64_FORMAT
                    " stages, %" G_GINT64_FORMAT " layers",
                    p->n_layers, p->n_stages, p->n_layers);
        return;
    }
    reached[0] = true;
    for (int64_t stage = 0; stage < p->n_stages; stage++) {
        /* The stages before hold what is reached; descending, so that one stage is added once. */
        const PlanStageView view = plan_partition_view(state, stage);
        int64_t most = -1, most_before = 0;
        for (int64_t j = p->n_layers; j >= 0; j--) {
            bool can = false;
            for (int64_t i = j - least; i >= 0 && !can; i--)
                can = reached[i] && plan_stage_view_ns(&view, i, j, NULL) >= 0;
            most_before = reached[j] ? MAX(most_before, j) : most_before;
            reached[j] = can;
            most = can ? MAX(most, j) : most;
        }
        if (most >= 0 && (stage < p->n_stages - 1 || most == p->n_layers))
            continue;
        const int64_t from = most >= 0 ? most - 1 : most_before;
        const int64_t to = MIN(MAX(most, from) + 1, p->n_layers);
        g_set_error(error, PLAN_ERROR, PLAN_ERROR_INFEASIBLE,
                    "stage %" G_GINT64_FORMAT " does not fit: the stages up to it hold at most "
                    "%" G_GINT64_FORMAT " of %" G_GINT64_FORMAT
                    " layers; one more needs %" G_GINT64_FORMAT " of %" G_GINT64_FORMAT " bytes",
                    stage, MAX(most, most_before), p->n_layers,
                    least_bytes(state, stage, MAX(from, 0), to), state->limits[stage]);
        return;
    }
    g_set_error(error, PLAN_ERROR, PLAN_ERROR_INFEASIBLE,
                "every stage fits alone, but not together with the others of its rank");
}

/* --- public --- */

/* The limit of a rank is that of its first stage. */
static int64_t
limit_of(const PlanPartition *p, int64_t stage)
{
    if (p->stage_limit_bytes == NULL)
        return 0;
    for (int64_t k = 0; p->stage_rank != NULL && k < stage; k++)
        if (p->stage_rank[k] == p->stage_rank[stage])
            return p->stage_limit_bytes[k];
    return p->stage_limit_bytes[stage];
}

static void
sum_up(PlanPartitionState *state)
{
    const PlanPartition *p = state->p;
    const int64_t n = p->n_layers, kinds = plan_partition_n_kinds(p);

    for (int64_t stage = 0; stage < p->n_stages; stage++)
        state->limits[stage] = limit_of(p, stage);
    for (int64_t row = 0; row < kinds * state->n_recomputes; row++)
        for (int64_t i = 0; i < n; i++)
            state->time_before[row * (n + 1) + i + 1] =
                plan_partition_add(state->time_before[row * (n + 1) + i], p->layer_ns[row * n + i]);
    for (int64_t i = 0; p->layer_bytes != NULL && i < n; i++)
        state->state_bytes_before[i + 1] =
            plan_partition_add(state->state_bytes_before[i], p->layer_bytes[i]);
    for (int64_t recompute = 0; p->kept_bytes != NULL && recompute < state->n_recomputes;
         recompute++)
        for (int64_t i = 0; i < n; i++)
            state->kept_bytes_before[recompute * (n + 1) + i + 1] =
                plan_partition_add(state->kept_bytes_before[recompute * (n + 1) + i],
                                   p->kept_bytes[recompute * n + i]);
}

static bool
solve(PlanPartitionState *state, int64_t *counts, int32_t *recomputes)
{
    const bool shares = state->p->stage_rank != NULL;
    int64_t cap = -1;
    const PlanReached reached = shares || state->p->n_stages > state->p->n_layers
                                    ? PLAN_REACHED_UNKNOWN
                                    : plan_partition_bisect(state, &cap);

    if (reached == PLAN_REACHED) {
        plan_partition_reach_back(state, cap);
    } else if (reached == PLAN_REACHED_UNKNOWN) {
        clear_states(state);
        solve_longest(state);
        cap = *plan_partition_longest(state, 0, 0);
    }
    if (cap < 0)
        return false;
    solve_squares(state, shares ? INT64_MAX : cap);
    if (shares)
        return plan_partition_shared(state, counts, recomputes);
    read_counts(state, cap, counts, recomputes);
    return true;
}

bool
plan_partition(const PlanPartition *partition, int64_t *counts, int32_t *recomputes, GError **error)
{
    g_return_val_if_fail(partition->n_layers >= 0 && partition->n_stages >= 1, false);
    g_return_val_if_fail(partition->n_layers == 0 || partition->layer_ns != NULL, false);
    g_return_val_if_fail(partition->n_recomputes <= PLAN_PARTITION_MAX_RECOMPUTES, false);
    const size_t n = (size_t)partition->n_layers + 1;
    const int64_t n_recomputes = MAX(1, partition->n_recomputes);
    const size_t n_rows = (size_t)(plan_partition_n_kinds(partition) * n_recomputes);
    int64_t n_states;
    if (__builtin_mul_overflow(partition->n_layers + 1, partition->n_stages + 1, &n_states)) {
        g_set_error(error, PLAN_ERROR, PLAN_ERROR_INFEASIBLE, "too many layers and stages");
        return false;
    }
    g_autofree int64_t *time_before = g_try_malloc0_n(n * n_rows, sizeof *time_before);
    g_autofree int64_t *state_bytes_before = g_try_malloc0_n(n, sizeof *state_bytes_before);
    g_autofree int64_t *kept_bytes_before =
        g_try_malloc0_n(n * (size_t)n_recomputes, sizeof *kept_bytes_before);
    g_autofree int64_t *longest = g_try_malloc_n((size_t)n_states, sizeof *longest);
    g_autofree PlanSquares *squares = g_try_malloc_n((size_t)n_states, sizeof *squares);
    g_autofree int32_t *own_recomputes =
        g_try_malloc0_n((size_t)partition->n_stages, sizeof *own_recomputes);
    g_autofree int64_t *limits = g_try_malloc_n((size_t)partition->n_stages, sizeof *limits);
    g_autofree int64_t *before =
        g_try_malloc_n((size_t)partition->n_stages + 1, 2 * sizeof *before);
    PlanPartitionState state = {
        partition,         n_recomputes, limits,  time_before, state_bytes_before,
        kept_bytes_before, longest,      squares, before,      before + partition->n_stages + 1};
    if (time_before == NULL || state_bytes_before == NULL || kept_bytes_before == NULL ||
        longest == NULL || squares == NULL || own_recomputes == NULL || limits == NULL ||
        before == NULL) {
        g_set_error(error, PLAN_ERROR, PLAN_ERROR_INFEASIBLE,
                    "no memory to divide %" G_GINT64_FORMAT " layers into %" G_GINT64_FORMAT
                    " stages",
                    partition->n_layers, partition->n_stages);
        return false;
    }
    sum_up(&state);
    if (solve(&state, counts, recomputes != NULL ? recomputes : own_recomputes))
        return true;
    set_infeasible(&state, error);
    return false;
}
