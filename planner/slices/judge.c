#include "planner/slices/judge.h"

#include "base/units.h"

/* log2 of the answers that are looked through, before sums prune. */
#define MAX_LOG2_ANSWERS 26
/* Partial answers looked at. */
#define MAX_NODES (INT64_C(1) << 22)

typedef struct {
    const PlanSliceSearch *asked;
    PlanSliceResult *best; /* (owned, nullable) */
    int64_t n_judged;
} Search;

/* Whether @groups are the best so far; keeps a copy then. */
static bool
try_groups(Search *search, const GPtrArray *groups)
{
    const int64_t latency = search->asked->judge(groups, search->asked->user_data);

    search->n_judged++;
    if (latency == INT64_MAX || (search->best != NULL && latency > search->best->latency))
        return false;
    PlanSliceResult result = {.latency = latency, .groups = (GPtrArray *)groups};
    if (search->best != NULL && latency == search->best->latency &&
        plan_slice_result_compare(&result, search->best) >= 0)
        return false;
    plan_slice_result_free(search->best);
    search->best = g_new0(PlanSliceResult, 1);
    search->best->latency = latency;
    search->best->groups = plan_slice_groups_copy(groups);
    return true;
}

/* --- step by step --- */

/* One change of an answer. */
typedef struct {
    enum {
        MOVE_SHIFT, /* tokens of slice @slice go to the next one; < 0: back */
        MOVE_CUT,   /* slice @slice is cut after so many tokens */
        MOVE_JOIN,  /* slice @slice and the next one */
        MOVE_GIVE,  /* group @group gives so many sequences to group @other */
        MOVE_SPLIT, /* so many sequences of group @group become a group behind it */
        MOVE_SWAP,  /* groups @group and @other */
    } kind;
    guint group, other, slice;
    int64_t amount;
} Move;

/* Applies a move of slices; false if one would be empty. */
static bool
change_slices(GArray *slices, const Move *move)
{
    int64_t *tokens = &g_array_index(slices, int64_t, move->slice);
    const int64_t rest = tokens[0] - move->amount;

    switch (move->kind) {
    case MOVE_SHIFT:
        tokens[0] -= move->amount;
        tokens[1] += move->amount;
        return tokens[0] > 0 && tokens[1] > 0;
    case MOVE_CUT:
        if (rest <= 0 || move->amount <= 0)
            return false;
        tokens[0] = move->amount;
        g_array_insert_val(slices, move->slice + 1, rest);
        return true;
    default:
        tokens[0] += tokens[1];
        g_array_remove_index(slices, move->slice + 1);
        return true;
    }
}

static bool
change_groups(GPtrArray *groups, const Move *move)
{
    PlanSliceGroup *group = groups->pdata[move->group];

    switch (move->kind) {
    case MOVE_GIVE:
        group->batch -= move->amount;
        ((PlanSliceGroup *)groups->pdata[move->other])->batch += move->amount;
        if (group->batch == 0)
            g_ptr_array_remove_index(groups, move->group);
        return true;
    case MOVE_SPLIT: {
        PlanSliceGroup *behind = plan_slice_group_new(move->amount);
        group->batch -= move->amount;
        g_array_append_vals(behind->slices, group->slices->data, group->slices->len);
        g_ptr_array_insert(groups, (gint)move->group + 1, behind);
        return true;
    }
    default: {
        gpointer first = groups->pdata[move->group];
        groups->pdata[move->group] = groups->pdata[move->other];
        groups->pdata[move->other] = first;
        return true;
    }
    }
}

/* (owned, nullable) @groups after @move. */
static GPtrArray *
moved(const Search *search, const GPtrArray *groups, const Move *move)
{
    g_autoptr(GPtrArray) after = plan_slice_groups_copy(groups);
    bool is_valid = true;

    if (move->kind > MOVE_JOIN)
        is_valid = change_groups(after, move);
    for (guint i = 0; i < after->len && move->kind <= MOVE_JOIN; i++)
        if (search->asked->is_common || i == move->group)
            is_valid = change_slices(((PlanSliceGroup *)after->pdata[i])->slices, move) && is_valid;
    return is_valid ? g_steal_pointer(&after) : NULL;
}

static void
add_slice_moves(const Search *search, GArray *moves, const GArray *slices, guint group)
{
    const int64_t granularity = search->asked->costs->granularity;

    for (guint i = 0; i < slices->len; i++) {
        const int64_t tokens = g_array_index(slices, int64_t, i);
        const Move cut = {MOVE_CUT, group, 0, i,
                          (tokens / 2 + granularity - 1) / granularity * granularity};
        const Move join = {MOVE_JOIN, group, 0, i, 0};
        for (int64_t step = 4 * granularity; i + 1 < slices->len && step >= granularity;
             step /= 2) {
            const Move shifts[] = {{MOVE_SHIFT, group, 0, i, step},
                                   {MOVE_SHIFT, group, 0, i, -step}};
            g_array_append_vals(moves, shifts, 2);
        }
        g_array_append_val(moves, cut);
        if (i + 1 < slices->len)
            g_array_append_val(moves, join);
    }
}

static void
add_group_moves(const Search *search, GArray *moves, const GPtrArray *groups)
{
    const int64_t most = search->asked->max_group == 0 ? INT64_MAX : search->asked->max_group;

    for (guint i = 0; i < groups->len; i++) {
        const int64_t batch = ((PlanSliceGroup *)groups->pdata[i])->batch;
        const Move split = {MOVE_SPLIT, i, 0, 0, batch / 2};
        if (batch > 1)
            g_array_append_val(moves, split);
        for (guint k = 0; k < groups->len; k++) {
            const int64_t other = ((PlanSliceGroup *)groups->pdata[k])->batch;
            const Move swap = {MOVE_SWAP, i, k, 0, 0};
            const Move give[] = {{MOVE_GIVE, i, k, 0, 1}, {MOVE_GIVE, i, k, 0, batch}};
            if (k == i)
                continue;
            if (k == i + 1)
                g_array_append_val(moves, swap);
            if (other + 1 <= most)
                g_array_append_val(moves, give[0]);
            if (batch > 1 && other + batch <= most)
                g_array_append_val(moves, give[1]);
        }
    }
}

/* (owned) GArray of Move: all that are tried from @groups. */
static GArray *
moves_of(const Search *search, const GPtrArray *groups)
{
    GArray *moves = g_array_new(FALSE, FALSE, sizeof(Move));

    for (guint i = 0; i < (search->asked->is_common ? 1 : groups->len); i++)
        add_slice_moves(search, moves, ((PlanSliceGroup *)groups->pdata[i])->slices, i);
    if (!search->asked->keeps_groups)
        add_group_moves(search, moves, groups);
    return moves;
}

/* Takes each move that gains, again and again, until none does or enough was judged. */
static void
improve(Search *search)
{
    const int64_t most = search->n_judged + search->asked->most_judged;
    bool gains = search->best != NULL;

    while (gains && search->n_judged < most) {
        g_autoptr(GPtrArray) from = plan_slice_groups_copy(search->best->groups);
        g_autoptr(GArray) moves = moves_of(search, from);
        gains = false;
        for (guint i = 0; i < moves->len && !gains && search->n_judged < most; i++) {
            g_autoptr(GPtrArray) after = moved(search, from, &g_array_index(moves, Move, i));
            gains = after != NULL && try_groups(search, after);
        }
    }
}

/* --- all answers --- */

/* A partial answer: groups in order, the last of them begun. */
typedef struct {
    Search *search;
    const int64_t *rest;  /* (borrowed) plan_slice_rests() */
    const int64_t *cover; /* (borrowed) [x] the least sum of x sequences */
    GPtrArray *groups;
    int64_t n_nodes;
} Walk;

/* The least sum of x sequences, [x]. */
static int64_t *
covers(const PlanSliceCosts *costs, const int64_t *rest)
{
    int64_t *cover = g_new(int64_t, (size_t)costs->batch + 1);

    cover[0] = 0;
    for (int64_t x = 1; x <= costs->batch; x++) {
        cover[x] = PLAN_SLICE_NEVER;
        for (int64_t b = 1; b <= x; b++)
            cover[x] = MIN(cover[x], rest[b * (costs->n_cells + 1)] + cover[x - b]);
    }
    return cover;
}

/* Whether answers of at least this sum may still count. */
static bool
has_chance(Walk *walk, int64_t sum)
{
    const PlanSliceResult *best = walk->search->best;

    return ++walk->n_nodes <= MAX_NODES && sum < PLAN_SLICE_NEVER &&
           (best == NULL || sum <= best->latency);
}

static bool
is_over(const Walk *walk)
{
    return walk->n_nodes > MAX_NODES || walk->search->n_judged > walk->search->asked->most_judged;
}

/* Goes on with the last group, if there is one, at context @c (n_cells: it is complete), @sum of
 * all before it, @left sequences behind it. */
static void
walk_slices(Walk *walk, int64_t left, int64_t c, int64_t sum)
{
    const PlanSliceCosts *costs = walk->search->asked->costs;

    if (c == costs->n_cells && left == 0) {
        try_groups(walk->search, walk->groups);
        return;
    }
    for (int64_t b = 1; c == costs->n_cells && b <= left && !is_over(walk); b++) {
        if (!has_chance(walk, sum + walk->rest[b * (costs->n_cells + 1)] + walk->cover[left - b]))
            continue;
        g_ptr_array_add(walk->groups, plan_slice_group_new(b));
        walk_slices(walk, left - b, 0, sum);
        g_ptr_array_set_size(walk->groups, (gint)walk->groups->len - 1);
    }
    for (int64_t s = 1; s <= costs->n_cells - c && !is_over(walk); s++) {
        const PlanSliceGroup *first = walk->groups->pdata[0];
        const PlanSliceGroup *group = walk->groups->pdata[walk->groups->len - 1];
        const int64_t tokens = s * costs->granularity,
                      t = costs->cost[plan_slice_at(costs, group->batch, s, c)];
        const guint at = group->slices->len;
        if (walk->search->asked->is_common && group != first &&
            g_array_index(first->slices, int64_t, at) != tokens)
            continue;
        if (t > PLAN_SLICE_MAX_SUM ||
            !has_chance(walk, sum + t + walk->rest[group->batch * (costs->n_cells + 1) + c + s] +
                                  walk->cover[left]))
            continue;
        g_array_append_val(group->slices, tokens);
        walk_slices(walk, left, c + s, sum + t);
        g_array_set_size(group->slices, at);
    }
}

/* Judges all answers that may be best; false if they are too many. */
static bool
enumerate(Search *search)
{
    const PlanSliceCosts *costs = search->asked->costs;
    g_autoptr(GPtrArray) groups = g_ptr_array_new_with_free_func(plan_slice_group_free);
    Walk walk = {.search = search, .groups = groups};
    /* 2^(n - 1) slicings of each of up to batch groups, or of all; 2^(batch - 1) ways to group. */
    const int64_t log2_answers =
        costs->n_cells * (search->asked->is_common ? 1 : costs->batch) + costs->batch;

    if (costs->cost == NULL || costs->n_cells > MAX_LOG2_ANSWERS ||
        costs->batch > MAX_LOG2_ANSWERS || log2_answers > MAX_LOG2_ANSWERS)
        return false;
    g_autofree int64_t *rest = plan_slice_rests(costs, search->asked->max_group);
    g_autofree int64_t *cover = covers(costs, rest);
    walk.rest = rest;
    walk.cover = cover;
    const int64_t judged = search->n_judged;
    search->n_judged = 0;
    walk_slices(&walk, costs->batch, costs->n_cells, 0);
    const bool is_done = !is_over(&walk);
    search->n_judged += judged;
    return is_done;
}

/* --- the public face --- */

PlanSliceResult *
plan_slice_search(const PlanSliceSearch *asked, const GPtrArray *candidates, GError **error)
{
    Search search = {.asked = asked};

    g_return_val_if_fail(asked != NULL && asked->judge != NULL, NULL);
    for (guint i = 0; i < candidates->len; i++)
        try_groups(&search, candidates->pdata[i]);
    improve(&search);
    const bool is_proven = enumerate(&search);
    if (search.best == NULL)
        return plan_slice_refuse_null(
            error, INFEASIBLE,
            "no slicing of " INT " sequences of " INT " tokens was found that can run",
            asked->costs->batch, asked->costs->n_cells * asked->costs->granularity);
    g_assert(asked->lower_bound <= search.best->latency);
    search.best->lower_bound = is_proven ? search.best->latency : asked->lower_bound;
    search.best->n_rounds = 1;
    search.best->n_solves = search.n_judged;
    return search.best;
}
