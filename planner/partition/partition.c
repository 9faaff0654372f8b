#include "planner/partition/partition.h"

#include "base/saturate.h"

/* Sums of squared nanoseconds. */
__extension__ typedef unsigned __int128 Squares;

#define NEVER ((Squares)-1)

/* A stage with one recompute kind: time and bytes of layers from .. to - 1: differences of rows. */
typedef struct {
    const int64_t *time_ns, *kept_bytes;
    int64_t more_ns;    /* of embedding and head */
    int64_t more_bytes; /* likewise, with what they keep, and the workspace */
} StageRecompute;

typedef struct {
    const int64_t *bytes;
    int64_t n_in_flight, limit_bytes, n_recomputes;
    StageRecompute recomputes[PLAN_PARTITION_MAX_RECOMPUTES];
} StageView;

typedef struct {
    const PlanPartition *p;
    int64_t n_recomputes;
    int64_t *time_before;  /* (owned) [(kind * n_recomputes + recompute) * (n_layers + 1) + i] */
    int64_t *bytes_before; /* (owned) [i] state of the layers before i */
    int64_t *kept_before;  /* (owned) [recompute * (n_layers + 1) + i] */
    Squares *squares; /* (owned) [stage * (n_layers + 1) + i] of layers i .. on stages stage .. */
    StageView *views; /* (owned) [stage] */
    /* (owned) [stage, and one more] the least and most layers before it that squares are set for */
    int64_t *least_before, *most_before;
} State;

static int64_t
add(int64_t a, int64_t b)
{
    return saturate_sum(a, b, INT64_MAX);
}

static int64_t
n_kinds(const PlanPartition *p)
{
    int64_t n = 1;

    for (int64_t stage = 0; p->stage_kind != NULL && stage < p->n_stages; stage++)
        n = MAX(n, (int64_t)p->stage_kind[stage] + 1);
    return n;
}

/* The fewest layers of @stage. */
static int64_t
least_of(const PlanPartition *p, int64_t stage)
{
    return p->lone_ends && p->n_stages > 1 && (stage == 0 || stage == p->n_stages - 1) ? 0 : 1;
}

/* The fewest layers that all stages before @stage have together. */
static int64_t
first_before(const PlanPartition *p, int64_t stage)
{
    int64_t n = stage;

    if (stage > 0)
        n -= 1 - least_of(p, 0);
    if (stage == p->n_stages && p->n_stages > 1)
        n -= 1 - least_of(p, stage - 1);
    return n;
}

/* The most layers that can come before @stage: each stage from it on needs its fewest. */
static int64_t
last_before(const PlanPartition *p, int64_t stage)
{
    return p->n_layers - (first_before(p, p->n_stages) - first_before(p, stage));
}

static Squares *
squares_at(const State *state, int64_t stage, int64_t i)
{
    return &state->squares[stage * (state->p->n_layers + 1) + i];
}

/* What @ends (nullable) [2] adds to @stage. */
static int64_t
ends(const PlanPartition *p, int64_t stage, const int64_t *of_ends)
{
    if (of_ends == NULL)
        return 0;
    return add(stage == 0 ? of_ends[0] : 0, stage == p->n_stages - 1 ? of_ends[1] : 0);
}

static StageView
view_of(const State *state, int64_t stage)
{
    const PlanPartition *p = state->p;
    const int64_t kind = p->stage_kind != NULL ? p->stage_kind[stage] : 0, n = p->n_layers + 1;
    StageView view = {
        .bytes = state->bytes_before,
        .n_in_flight = p->stage_in_flight != NULL ? p->stage_in_flight[stage] : 1,
        .limit_bytes = p->stage_limit_bytes != NULL ? p->stage_limit_bytes[stage] : 0,
        .n_recomputes = state->n_recomputes,
    };
    const int64_t more_ns = ends(p, stage, p->end_ns != NULL ? p->end_ns + kind * 2 : NULL);
    const int64_t more_bytes =
        add(ends(p, stage, p->end_bytes),
            saturate_product(view.n_in_flight, ends(p, stage, p->end_kept_bytes), INT64_MAX));

    for (int64_t i = 0; i < state->n_recomputes; i++)
        view.recomputes[i] = (StageRecompute){
            .time_ns = &state->time_before[(kind * state->n_recomputes + i) * n],
            .kept_bytes = &state->kept_before[i * n],
            .more_ns = more_ns,
            .more_bytes =
                add(more_bytes, p->workspace_bytes_of != NULL ? p->workspace_bytes_of[i] : 0),
        };
    return view;
}

/* The least time, over the recompute kinds that fit, of layers @from .. @to - 1; of equal kinds the
 * first; -1: none fits. */
static int64_t
view_ns(const StageView *view, int64_t from, int64_t to, int32_t *best_recompute)
{
    int64_t best = -1;

    for (int64_t i = 0; i < view->n_recomputes; i++) {
        const StageRecompute *one = &view->recomputes[i];
        const int64_t ns = add(one->time_ns[to] - one->time_ns[from], one->more_ns);
        const int64_t kept = one->kept_bytes[to] - one->kept_bytes[from];
        if (best >= 0 && ns >= best)
            continue;
        if (view->limit_bytes > 0 &&
            add(add(view->bytes[to] - view->bytes[from], one->more_bytes),
                saturate_product(view->n_in_flight, kept, INT64_MAX)) > view->limit_bytes)
            continue;
        best = ns;
        if (best_recompute != NULL)
            *best_recompute = (int32_t)i;
    }
    return best;
}

/* --- bisection --- */

typedef enum {
    REACHED,     /* all layers */
    NOT_REACHED, /* not with so short stages */
    /* A stage cannot begin with the layer that it gets, but might with one before. */
    UNKNOWN,
} Reached;

/*
 * Gives every stage as many layers as it can take within @cap; no other partition gets further,
 * since a part of what a stage runs takes no longer and fits.  Sets most_before.
 * @longest  (out) the longest stage
 * @over     (out) the least that a stage would take with one layer more, if that is more than @cap:
 *           up to there nothing changes
 */
static Reached
reach_far(State *state, int64_t cap, int64_t *longest, int64_t *over)
{
    const PlanPartition *p = state->p;
    int64_t i = 0;

    *longest = 0;
    *over = INT64_MAX;
    for (int64_t stage = 0; stage < p->n_stages; stage++) {
        const StageView *view = &state->views[stage];
        const int64_t end = last_before(p, stage + 1);
        int64_t own = -1, j = i + least_of(p, stage);
        state->most_before[stage] = i;
        for (; j <= end; j++) {
            const int64_t ns = view_ns(view, i, j, NULL);
            if (ns > cap)
                *over = MIN(*over, ns);
            if (ns < 0 || ns > cap)
                break;
            own = ns;
        }
        if (own < 0)
            return UNKNOWN;
        *longest = MAX(*longest, own);
        i = j - 1;
    }
    state->most_before[p->n_stages] = i;
    return i == p->n_layers ? REACHED : NOT_REACHED;
}

/* Whether sums of times stay far from overflow. */
static bool
sums_are_small(const State *state)
{
    const PlanPartition *p = state->p;
    int64_t most = 0;

    for (int64_t row = 0; row < n_kinds(p) * state->n_recomputes; row++)
        most = MAX(most, state->time_before[row * (p->n_layers + 1) + p->n_layers]);
    for (int64_t kind = 0; p->end_ns != NULL && kind < n_kinds(p); kind++)
        most = MAX(most, MAX(p->end_ns[kind * 2], p->end_ns[kind * 2 + 1]));
    return most < INT64_MAX / 8;
}

/* No division has a shorter longest stage: the mean were each layer where it is fastest, and each
 * stage with its fewest layers. */
static int64_t
least_longest_ns(const State *state)
{
    const PlanPartition *p = state->p;
    const int64_t n_rows = n_kinds(p) * state->n_recomputes, n = p->n_layers;
    int64_t sum = 0, fastest_of_all = INT64_MAX;

    for (int64_t i = 0; i < n; i++) {
        int64_t fastest = INT64_MAX;
        for (int64_t row = 0; row < n_rows; row++)
            fastest = MIN(fastest, p->layer_ns[row * n + i]);
        fastest_of_all = MIN(fastest_of_all, fastest);
        sum += fastest;
    }
    int64_t least = sum / p->n_stages;
    for (int64_t stage = 0; stage < p->n_stages; stage++)
        least = MAX(least, least_of(p, stage) * fastest_of_all +
                               state->views[stage].recomputes[0].more_ns);
    return least;
}

/* Finds the shortest longest stage, between what none is below and what was reached.
 * NOT_REACHED: nothing fits.  UNKNOWN: the dynamic program has to say. */
static Reached
bisect(State *state, int64_t *cap)
{
    int64_t low, high = INT64_MAX, longest, over;

    if (!sums_are_small(state))
        return UNKNOWN;
    low = least_longest_ns(state);
    for (bool is_lowest = true; low < high; is_lowest = !is_lowest) {
        /* Layers are mostly equal, and then the lowest is the answer soon. */
        const int64_t middle = high < INT64_MAX ? low + (high - low) / 2 : 2 * low + 1;
        const Reached reached = reach_far(state, is_lowest ? low : middle, &longest, &over);
        if (reached == UNKNOWN || (reached == NOT_REACHED && over == INT64_MAX))
            return reached; /* it is memory that ends each stage */
        if (reached == REACHED)
            high = longest;
        else
            low = over;
    }
    *cap = high;
    return reach_far(state, high, &longest, &over);
}

/* Sets least_before, given most_before: the fewest layers before each stage with which all layers
 * after them are reached within @cap; too few are no harm. */
static void
reach_back(State *state, int64_t cap)
{
    const PlanPartition *p = state->p;
    int64_t j = p->n_layers;

    state->least_before[p->n_stages] = j;
    *squares_at(state, p->n_stages, j) = 0;
    for (int64_t stage = p->n_stages - 1; stage >= 0; stage--) {
        const StageView *view = &state->views[stage];
        const int64_t first = first_before(p, stage);
        int64_t i = j - least_of(p, stage);
        for (; i > first; i--) {
            const int64_t ns = view_ns(view, i - 1, j, NULL);
            if (ns < 0 || ns > cap)
                break;
        }
        j = state->least_before[stage] = MAX(i, first);
    }
}

/* --- the two programs --- */

/*
 * longest(s, i) = min over j of max(time of i .. j on s, longest(s + 1, j)); -1: nothing fits.
 * A stage only grows with j (fewer kinds fit, each takes longer), so the first that does not fit,
 * or takes as long as the best, ends the row: about n_layers^2 steps in all, not n_layers^2 *
 * n_stages. Returns: longest(0, 0), with least_before and most_before set for every partition.
 */
static int64_t
solve_longest(State *state)
{
    const PlanPartition *p = state->p;
    const int64_t side = p->n_layers + 1;
    g_autofree int64_t *longest = g_new(int64_t, (size_t)((p->n_stages + 1) * side));

    for (int64_t i = 0; i < (p->n_stages + 1) * side; i++) {
        longest[i] = -1;
        state->squares[i] = NEVER;
    }
    for (int64_t stage = 0; stage <= p->n_stages; stage++) {
        state->least_before[stage] = first_before(p, stage);
        state->most_before[stage] = last_before(p, stage);
    }
    longest[p->n_stages * side + p->n_layers] = 0;
    *squares_at(state, p->n_stages, p->n_layers) = 0;
    for (int64_t stage = p->n_stages - 1; stage >= 0; stage--) {
        const int64_t end = last_before(p, stage + 1);
        const StageView *view = &state->views[stage];
        for (int64_t i = first_before(p, stage); i <= last_before(p, stage); i++) {
            int64_t best = -1;
            for (int64_t j = i + least_of(p, stage); j <= end; j++) {
                const int64_t own = view_ns(view, i, j, NULL);
                const int64_t after = longest[(stage + 1) * side + j];
                if (own < 0 || (best >= 0 && own >= best))
                    break;
                if (after >= 0 && (best < 0 || MAX(own, after) < best))
                    best = MAX(own, after);
            }
            longest[stage * side + i] = best;
        }
    }
    return longest[0];
}

/* squares(s, i): the least sum of squares with no stage longer than @cap, for i from
 * least_before(s) to most_before(s); nothing else is read. */
static void
solve_squares(State *state, int64_t cap)
{
    const PlanPartition *p = state->p;

    for (int64_t stage = p->n_stages - 1; stage >= 0; stage--) {
        const int64_t begin = state->least_before[stage + 1], end = state->most_before[stage + 1];
        const StageView *view = &state->views[stage];
        for (int64_t i = state->least_before[stage]; i <= state->most_before[stage]; i++) {
            Squares best = NEVER;
            for (int64_t j = MAX(i + least_of(p, stage), begin); j <= end; j++) {
                const int64_t time = view_ns(view, i, j, NULL);
                const Squares after = *squares_at(state, stage + 1, j);
                if (time < 0 || time > cap)
                    break;
                if (after != NEVER)
                    best = MIN(best, after + (Squares)time * (Squares)time);
            }
            *squares_at(state, stage, i) = best;
        }
    }
}

/* Follows the squares from the first stage, most layers first. */
static void
read_counts(const State *state, int64_t cap, int64_t *counts, int32_t *recomputes)
{
    const PlanPartition *p = state->p;

    for (int64_t stage = 0, i = 0; stage < p->n_stages; stage++) {
        const StageView *view = &state->views[stage];
        for (int64_t j = state->most_before[stage + 1];; j--) {
            g_assert(j >= i + least_of(p, stage) && j >= state->least_before[stage + 1]);
            const int64_t time =
                view_ns(view, i, j, recomputes != NULL ? &recomputes[stage] : NULL);
            const Squares after = *squares_at(state, stage + 1, j);
            if (time >= 0 && time <= cap && after != NEVER &&
                after + (Squares)time * (Squares)time == *squares_at(state, stage, i)) {
                counts[stage] = j - i;
                i = j;
                break;
            }
        }
    }
}

/* --- public --- */

static void
sum_up(State *state)
{
    const PlanPartition *p = state->p;
    const int64_t n = p->n_layers, n_rows = n_kinds(p) * state->n_recomputes;

    for (int64_t row = 0; row < n_rows; row++)
        for (int64_t i = 0; i < n; i++)
            state->time_before[row * (n + 1) + i + 1] =
                add(state->time_before[row * (n + 1) + i], p->layer_ns[row * n + i]);
    for (int64_t i = 0; p->layer_bytes != NULL && i < n; i++)
        state->bytes_before[i + 1] = add(state->bytes_before[i], p->layer_bytes[i]);
    for (int64_t row = 0; p->kept_bytes != NULL && row < state->n_recomputes; row++)
        for (int64_t i = 0; i < n; i++)
            state->kept_before[row * (n + 1) + i + 1] =
                add(state->kept_before[row * (n + 1) + i], p->kept_bytes[row * n + i]);
}

bool
plan_partition(const PlanPartition *partition, int64_t *counts, int32_t *recomputes)
{
    g_return_val_if_fail(partition->n_stages >= 1, false);
    g_return_val_if_fail(partition->n_recomputes <= PLAN_PARTITION_MAX_RECOMPUTES, false);
    if (first_before(partition, partition->n_stages) > partition->n_layers)
        return false;
    const size_t n = (size_t)partition->n_layers + 1, n_stages = (size_t)partition->n_stages;
    const int64_t n_recomputes = MAX(1, partition->n_recomputes);
    g_autofree int64_t *time_before =
        g_new0(int64_t, n * (size_t)(n_kinds(partition) * n_recomputes));
    g_autofree int64_t *bytes_before = g_new0(int64_t, n);
    g_autofree int64_t *kept_before = g_new0(int64_t, n * (size_t)n_recomputes);
    g_autofree Squares *squares = g_new(Squares, n * (n_stages + 1));
    g_autofree int64_t *before = g_new(int64_t, 2 * (n_stages + 1));
    g_autofree StageView *views = g_new(StageView, n_stages);
    State state = {
        .p = partition,
        .n_recomputes = n_recomputes,
        .time_before = time_before,
        .bytes_before = bytes_before,
        .kept_before = kept_before,
        .squares = squares,
        .views = views,
        .least_before = before,
        .most_before = before + n_stages + 1,
    };
    int64_t cap = -1;

    sum_up(&state);
    for (int64_t stage = 0; stage < partition->n_stages; stage++)
        views[stage] = view_of(&state, stage);
    const Reached reached = bisect(&state, &cap);
    if (reached == REACHED)
        reach_back(&state, cap);
    else if (reached == UNKNOWN)
        cap = solve_longest(&state);
    if (cap < 0)
        return false;
    solve_squares(&state, cap);
    read_counts(&state, cap, counts, recomputes);
    return true;
}
