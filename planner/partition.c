#include "planner/partition.h"

#include "planner/partition_state.h"
#include "schedule/plan.h"

static int64_t
add(int64_t a, int64_t b)
{
    int64_t sum;

    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

static int64_t
multiply(int64_t a, int64_t b)
{
    int64_t product;

    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

/* --- one stage with layers from .. to - 1 --- */

int64_t
plan_partition_ns(const PlanPartitionState *state, int64_t stage, int64_t from, int64_t to,
                  int64_t way)
{
    const PlanPartition *p = state->p;
    const int64_t kind = p->stage_kind != NULL ? p->stage_kind[stage] : 0;
    const int64_t *before = &state->time_before[(kind * state->n_ways + way) * (p->n_layers + 1)];
    int64_t time = before[to] - before[from];

    if (p->end_ns == NULL)
        return time;
    if (stage == 0)
        time = add(time, p->end_ns[kind * 2]);
    if (stage == p->n_stages - 1)
        time = add(time, p->end_ns[kind * 2 + 1]);
    return time;
}

/* Of an end stage; nothing elsewhere. */
static int64_t
ends(const PlanPartition *p, int64_t stage, const int64_t *of_ends)
{
    if (of_ends == NULL)
        return 0;
    return add(stage == 0 ? of_ends[0] : 0, stage == p->n_stages - 1 ? of_ends[1] : 0);
}

int64_t
plan_partition_bytes(const PlanPartitionState *state, int64_t stage, int64_t from, int64_t to,
                     int64_t way)
{
    const PlanPartition *p = state->p;
    const int64_t *kept = &state->kept_before[way * (p->n_layers + 1)];
    const int64_t units = p->stage_units != NULL ? p->stage_units[stage] : 1;
    const int64_t unit = add(kept[to] - kept[from], ends(p, stage, p->end_kept));
    int64_t bytes = state->bytes_before[to] - state->bytes_before[from];

    bytes = add(bytes, ends(p, stage, p->end_bytes));
    bytes = add(bytes, p->way_bytes != NULL ? p->way_bytes[way] : 0);
    return add(bytes, multiply(units, unit));
}

static int64_t
n_kinds(const PlanPartition *p)
{
    int64_t n = 1;

    for (int64_t stage = 0; p->stage_kind != NULL && stage < p->n_stages; stage++)
        n = MAX(n, (int64_t)p->stage_kind[stage] + 1);
    return n;
}

/* --- a stage as the programs read it --- */

/* One way of a stage: time and bytes of layers from .. to - 1 are differences of rows. */
typedef struct {
    const int64_t *time, *kept;
    int64_t more_ns;
    int64_t more_bytes; /* once, with what the ends keep in flight */
} Way;

typedef struct {
    const int64_t *bytes;
    int64_t units, limit, n_ways;
    Way ways[PLAN_PARTITION_MAX_WAYS];
} StageView;

static StageView
view_of(const PlanPartitionState *state, int64_t stage)
{
    const PlanPartition *p = state->p;
    const int64_t kind = p->stage_kind != NULL ? p->stage_kind[stage] : 0, n = p->n_layers + 1;
    StageView view = {.bytes = state->bytes_before,
                      .units = p->stage_units != NULL ? p->stage_units[stage] : 1,
                      .limit = state->limits[stage],
                      .n_ways = state->n_ways};

    for (int64_t way = 0; way < state->n_ways; way++)
        view.ways[way] = (Way){
            .time = &state->time_before[(kind * state->n_ways + way) * n],
            .kept = &state->kept_before[way * n],
            .more_ns = plan_partition_ns(state, stage, 0, 0, way),
            .more_bytes = plan_partition_bytes(state, stage, 0, 0, way),
        };
    return view;
}

/* The least time of the ways that fit, of equal ones the first; -1: none does. */
static inline int64_t
stage_ns(const StageView *view, int64_t from, int64_t to, int32_t *best_way)
{
    int64_t best = -1;

    for (int64_t i = 0; i < view->n_ways; i++) {
        const Way *way = &view->ways[i];
        const int64_t ns = add(way->time[to] - way->time[from], way->more_ns);
        if (best >= 0 && ns >= best)
            continue;
        if (view->limit > 0 &&
            add(add(view->bytes[to] - view->bytes[from], way->more_bytes),
                multiply(view->units, way->kept[to] - way->kept[from])) > view->limit)
            continue;
        best = ns;
        if (best_way != NULL)
            *best_way = (int32_t)i;
    }
    return best;
}

/* --- the two programs --- */

/* The layers that can come before @stage: each stage before and after needs its least. */
static int64_t
first_before(const PlanPartition *p, int64_t stage)
{
    return p->allow_empty ? 0 : stage;
}

static int64_t
last_before(const PlanPartition *p, int64_t stage)
{
    return p->allow_empty ? p->n_layers : p->n_layers - (p->n_stages - stage);
}

/* Every state impossible but the end: all layers before stage n_stages. */
static void
clear_states(PlanPartitionState *state)
{
    const PlanPartition *p = state->p;
    const int64_t n_states = (p->n_stages + 1) * (p->n_layers + 1);

    for (int64_t stage = 0; stage <= p->n_stages; stage++) {
        state->least_before[stage] = first_before(p, stage);
        state->most_before[stage] = last_before(p, stage);
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
        const int64_t end = last_before(p, stage + 1);
        const StageView view = view_of(state, stage);
        for (int64_t i = first_before(p, stage); i <= last_before(p, stage); i++) {
            int64_t best = -1;
            for (int64_t j = MAX(i + least, first_before(p, stage + 1)); j <= end; j++) {
                const int64_t own = stage_ns(&view, i, j, NULL);
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
        const StageView view = view_of(state, stage);
        for (int64_t i = state->least_before[stage]; i <= state->most_before[stage]; i++) {
            PlanSquares best = PLAN_SQUARES_NEVER;
            for (int64_t j = MAX(i + least, begin); j <= end; j++) {
                const int64_t time = stage_ns(&view, i, j, NULL);
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
read_counts(const PlanPartitionState *state, int64_t cap, int64_t *counts, int32_t *ways)
{
    const PlanPartition *p = state->p;

    for (int64_t stage = 0, i = 0; stage < p->n_stages; stage++) {
        const StageView view = view_of(state, stage);
        for (int64_t j = state->most_before[stage + 1];; j--) {
            g_assert(j >= MAX(i, state->least_before[stage + 1]));
            const int64_t time = stage_ns(&view, i, j, &ways[stage]);
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

/* --- the shortest longest stage by bisection, where that is exact --- */

typedef enum {
    REACHED,  /* all layers */
    TOO_SLOW, /* not with so short stages */
    UNKNOWN,  /* a stage cannot begin with the layer it gets; one that begins sooner may */
} Reached;

/*
 * Every stage takes as many layers as it can within @cap; no other way gets further, as a part of
 * what a stage runs takes no longer and fits.  Sets most_before.
 * @longest  (out) the longest stage
 * @over     (out) the least that a stage would take with one layer more, if that is more than @cap:
 *           up to there nothing changes
 */
static Reached
reach_far(PlanPartitionState *state, int64_t cap, int64_t *longest, int64_t *over)
{
    const PlanPartition *p = state->p;
    const int64_t least = p->allow_empty ? 0 : 1;
    int64_t i = 0;

    *longest = 0;
    *over = INT64_MAX;
    for (int64_t stage = 0; stage < p->n_stages; stage++) {
        const StageView view = view_of(state, stage);
        const int64_t end = last_before(p, stage + 1);
        int64_t own = -1, j = i + least;
        state->most_before[stage] = i;
        for (; j <= end; j++) {
            const int64_t ns = stage_ns(&view, i, j, NULL);
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
    return i == p->n_layers ? REACHED : TOO_SLOW;
}

/* Whether sums of times stay far from overflow. */
static bool
sums_are_small(const PlanPartitionState *state)
{
    const PlanPartition *p = state->p;
    int64_t most = 0;

    for (int64_t row = 0; row < n_kinds(p) * state->n_ways; row++)
        most = MAX(most, state->time_before[row * (p->n_layers + 1) + p->n_layers]);
    for (int64_t kind = 0; p->end_ns != NULL && kind < n_kinds(p); kind++)
        most = MAX(most, MAX(p->end_ns[kind * 2], p->end_ns[kind * 2 + 1]));
    return most < INT64_MAX / 8;
}

/* No division has a shorter longest stage: the mean were each layer where it is fastest, and each
 * stage with one layer. */
static int64_t
least_longest_ns(const PlanPartitionState *state)
{
    const PlanPartition *p = state->p;
    const int64_t n_rows = n_kinds(p) * state->n_ways, n = p->n_layers;
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

/*
 * The shortest longest stage to @cap, between what none is below and what was reached.  TOO_SLOW:
 * nothing fits.  UNKNOWN: the program has to say.
 */
static Reached
bisect_longest(PlanPartitionState *state, int64_t *cap)
{
    int64_t low, high = INT64_MAX, longest, over;

    if (!sums_are_small(state))
        return UNKNOWN;
    low = least_longest_ns(state);
    for (bool is_lowest = true; low < high; is_lowest = !is_lowest) {
        /* Layers are mostly equal, and then the lowest is the answer soon. */
        const int64_t middle = high < INT64_MAX ? low + (high - low) / 2 : 2 * low + 1;
        const Reached reached = reach_far(state, is_lowest ? low : middle, &longest, &over);
        if (reached == UNKNOWN || (reached == TOO_SLOW && over == INT64_MAX))
            return reached; /* it is memory that ends each stage */
        if (reached == REACHED)
            high = longest;
        else
            low = over;
    }
    *cap = high;
    return reach_far(state, high, &longest, &over);
}

/* Sets least_before, given most_before: the fewest layers before each stage with which all after
 * are reached within @cap; too few are no harm. */
static void
reach_back(PlanPartitionState *state, int64_t cap)
{
    const PlanPartition *p = state->p;
    int64_t j = p->n_layers;

    state->least_before[p->n_stages] = j;
    *plan_partition_squares(state, p->n_stages, j) = 0;
    for (int64_t stage = p->n_stages - 1; stage >= 0; stage--) {
        const StageView view = view_of(state, stage);
        int64_t i = j - (p->allow_empty ? 0 : 1);
        for (; i > first_before(p, stage); i--) {
            const int64_t ns = stage_ns(&view, i - 1, j, NULL);
            if (ns < 0 || ns > cap)
                break;
        }
        j = state->least_before[stage] = MAX(i, first_before(p, stage));
    }
}

/* --- why not --- */

/* The least bytes of all ways. */
static int64_t
least_bytes(const PlanPartitionState *state, int64_t stage, int64_t from, int64_t to)
{
    int64_t least = INT64_MAX;

    for (int64_t way = 0; way < state->n_ways; way++)
        least = MIN(least, plan_partition_bytes(state, stage, from, to, way));
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
        const StageView view = view_of(state, stage);
        int64_t most = -1, most_before = 0;
        for (int64_t j = p->n_layers; j >= 0; j--) {
            bool can = false;
            for (int64_t i = j - least; i >= 0 && !can; i--)
                can = reached[i] && stage_ns(&view, i, j, NULL) >= 0;
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
    const int64_t n = p->n_layers, kinds = n_kinds(p);

    for (int64_t stage = 0; stage < p->n_stages; stage++)
        state->limits[stage] = limit_of(p, stage);
    for (int64_t row = 0; row < kinds * state->n_ways; row++)
        for (int64_t i = 0; i < n; i++)
            state->time_before[row * (n + 1) + i + 1] =
                add(state->time_before[row * (n + 1) + i], p->layer_ns[row * n + i]);
    for (int64_t i = 0; p->layer_bytes != NULL && i < n; i++)
        state->bytes_before[i + 1] = add(state->bytes_before[i], p->layer_bytes[i]);
    for (int64_t way = 0; p->kept_bytes != NULL && way < state->n_ways; way++)
        for (int64_t i = 0; i < n; i++)
            state->kept_before[way * (n + 1) + i + 1] =
                add(state->kept_before[way * (n + 1) + i], p->kept_bytes[way * n + i]);
}

static bool
solve(PlanPartitionState *state, int64_t *counts, int32_t *ways)
{
    const bool shares = state->p->stage_rank != NULL;
    int64_t cap = -1;
    const Reached reached =
        shares || state->p->n_stages > state->p->n_layers ? UNKNOWN : bisect_longest(state, &cap);

    if (reached == REACHED) {
        reach_back(state, cap);
    } else if (reached == UNKNOWN) {
        clear_states(state);
        solve_longest(state);
        cap = *plan_partition_longest(state, 0, 0);
    }
    if (cap < 0)
        return false;
    solve_squares(state, shares ? INT64_MAX : cap);
    if (shares)
        return plan_partition_shared(state, counts, ways);
    read_counts(state, cap, counts, ways);
    return true;
}

bool
plan_partition(const PlanPartition *partition, int64_t *counts, int32_t *ways, GError **error)
{
    g_return_val_if_fail(partition->n_layers >= 0 && partition->n_stages >= 1, false);
    g_return_val_if_fail(partition->n_layers == 0 || partition->layer_ns != NULL, false);
    g_return_val_if_fail(partition->n_ways <= PLAN_PARTITION_MAX_WAYS, false);
    const size_t n = (size_t)partition->n_layers + 1;
    const int64_t n_ways = MAX(1, partition->n_ways);
    const size_t n_rows = (size_t)(n_kinds(partition) * n_ways);
    int64_t n_states;
    if (__builtin_mul_overflow(partition->n_layers + 1, partition->n_stages + 1, &n_states)) {
        g_set_error(error, PLAN_ERROR, PLAN_ERROR_INFEASIBLE, "too many layers and stages");
        return false;
    }
    g_autofree int64_t *time_before = g_try_malloc0_n(n * n_rows, sizeof *time_before);
    g_autofree int64_t *bytes_before = g_try_malloc0_n(n, sizeof *bytes_before);
    g_autofree int64_t *kept_before = g_try_malloc0_n(n * (size_t)n_ways, sizeof *kept_before);
    g_autofree int64_t *longest = g_try_malloc_n((size_t)n_states, sizeof *longest);
    g_autofree PlanSquares *squares = g_try_malloc_n((size_t)n_states, sizeof *squares);
    g_autofree int32_t *own_ways = g_try_malloc0_n((size_t)partition->n_stages, sizeof *own_ways);
    g_autofree int64_t *limits = g_try_malloc_n((size_t)partition->n_stages, sizeof *limits);
    g_autofree int64_t *before =
        g_try_malloc_n((size_t)partition->n_stages + 1, 2 * sizeof *before);
    PlanPartitionState state = {
        partition,   n_ways,  limits,  time_before, bytes_before,
        kept_before, longest, squares, before,      before + partition->n_stages + 1};
    if (time_before == NULL || bytes_before == NULL || kept_before == NULL || longest == NULL ||
        squares == NULL || own_ways == NULL || limits == NULL || before == NULL) {
        g_set_error(error, PLAN_ERROR, PLAN_ERROR_INFEASIBLE,
                    "no memory to divide %" G_GINT64_FORMAT " layers into %" G_GINT64_FORMAT
                    " stages",
                    partition->n_layers, partition->n_stages);
        return false;
    }
    sum_up(&state);
    if (solve(&state, counts, ways != NULL ? ways : own_ways))
        return true;
    set_infeasible(&state, error);
    return false;
}
