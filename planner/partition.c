#include "planner/partition.h"

#include "schedule/plan.h"

/* Sums of squared nanoseconds. */
__extension__ typedef unsigned __int128 Squares;

#define NEVER ((Squares)-1)

typedef struct {
    const PlanPartition *p;
    int64_t *time_before;  /* (owned) [i]: of layers 0 .. i - 1 */
    int64_t *bytes_before; /* (owned) likewise */
    /* (owned) [stage * (n_layers + 1) + i]: the best of layers i .. on stages stage .. */
    int64_t *longest;
    Squares *squares;
} Partition;

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

static int64_t
stage_ns(const Partition *partition, int64_t stage, int64_t from, int64_t to)
{
    const PlanPartition *p = partition->p;
    int64_t time = partition->time_before[to] - partition->time_before[from];

    if (stage == 0)
        time = add(time, p->first_ns);
    if (stage == p->n_stages - 1)
        time = add(time, p->last_ns);
    return time;
}

static int64_t
stage_bytes(const Partition *partition, int64_t stage, int64_t from, int64_t to)
{
    const PlanPartition *p = partition->p;
    int64_t bytes = partition->bytes_before[to] - partition->bytes_before[from];

    if (p->stage_layer_bytes != NULL)
        bytes = add(bytes, multiply(p->stage_layer_bytes[stage], to - from));
    if (stage == 0)
        bytes = add(bytes, p->first_bytes);
    if (stage == p->n_stages - 1)
        bytes = add(bytes, p->last_bytes);
    return bytes;
}

static bool
stage_fits(const Partition *partition, int64_t stage, int64_t from, int64_t to)
{
    const int64_t *limits = partition->p->stage_limit_bytes;

    return limits == NULL || limits[stage] == 0 ||
           stage_bytes(partition, stage, from, to) <= limits[stage];
}

/* --- the two programs --- */

static int64_t *
longest_at(const Partition *partition, int64_t stage, int64_t i)
{
    return &partition->longest[stage * (partition->p->n_layers + 1) + i];
}

static Squares *
squares_at(const Partition *partition, int64_t stage, int64_t i)
{
    return &partition->squares[stage * (partition->p->n_layers + 1) + i];
}

/* The layers that can come before @stage: each stage before and after needs its least. */
static int64_t
first_before(const Partition *partition, int64_t stage)
{
    return partition->p->allow_empty ? 0 : stage;
}

static int64_t
last_before(const Partition *partition, int64_t stage)
{
    const PlanPartition *p = partition->p;

    return p->allow_empty ? p->n_layers : p->n_layers - (p->n_stages - stage);
}

/* Every state impossible but the end: all layers before stage n_stages. */
static void
clear_states(Partition *partition)
{
    const int64_t n_states = (partition->p->n_stages + 1) * (partition->p->n_layers + 1);

    for (int64_t i = 0; i < n_states; i++) {
        partition->longest[i] = -1;
        partition->squares[i] = NEVER;
    }
    *longest_at(partition, partition->p->n_stages, partition->p->n_layers) = 0;
    *squares_at(partition, partition->p->n_stages, partition->p->n_layers) = 0;
}

/*
 * longest(s, i) = min over j of max(time of i .. j on s, longest(s + 1, j)); -1: nothing fits.
 * A stage only grows with j, so the first that does not fit, or takes as long as the best, ends
 * the row: in all about n_layers^2 steps, not n_layers^2 * n_stages.
 */
static void
solve_longest(Partition *partition)
{
    const int64_t least = partition->p->allow_empty ? 0 : 1;

    for (int64_t stage = partition->p->n_stages - 1; stage >= 0; stage--) {
        const int64_t end = last_before(partition, stage + 1);
        for (int64_t i = first_before(partition, stage); i <= last_before(partition, stage); i++) {
            const int64_t begin = MAX(i + least, first_before(partition, stage + 1));
            int64_t best = -1;
            for (int64_t j = begin; j <= end && stage_fits(partition, stage, i, j); j++) {
                const int64_t own = stage_ns(partition, stage, i, j);
                const int64_t after = *longest_at(partition, stage + 1, j);
                if (best >= 0 && own >= best)
                    break;
                if (after >= 0 && (best < 0 || MAX(own, after) < best))
                    best = MAX(own, after);
            }
            *longest_at(partition, stage, i) = best;
        }
    }
}

/* squares(s, i): the least sum of squares with no stage longer than @cap. */
static void
solve_squares(Partition *partition, int64_t cap)
{
    const int64_t least = partition->p->allow_empty ? 0 : 1;

    for (int64_t stage = partition->p->n_stages - 1; stage >= 0; stage--) {
        const int64_t end = last_before(partition, stage + 1);
        for (int64_t i = first_before(partition, stage); i <= last_before(partition, stage); i++) {
            const int64_t begin = MAX(i + least, first_before(partition, stage + 1));
            Squares best = NEVER;
            for (int64_t j = begin; j <= end && stage_fits(partition, stage, i, j); j++) {
                const int64_t time = stage_ns(partition, stage, i, j);
                const Squares after = *squares_at(partition, stage + 1, j);
                if (time > cap)
                    break;
                if (after != NEVER)
                    best = MIN(best, after + (Squares)time * (Squares)time);
            }
            *squares_at(partition, stage, i) = best;
        }
    }
}

/* Follows the squares from the first stage, most layers first. */
static void
read_counts(const Partition *partition, int64_t cap, int64_t *counts)
{
    int64_t i = 0;

    for (int64_t stage = 0; stage < partition->p->n_stages; stage++) {
        for (int64_t j = partition->p->n_layers;; j--) {
            const int64_t time = stage_ns(partition, stage, i, j);
            const Squares after = *squares_at(partition, stage + 1, j);
            g_assert(j >= i);
            if (time <= cap && after != NEVER && stage_fits(partition, stage, i, j) &&
                after + (Squares)time * (Squares)time == *squares_at(partition, stage, i) &&
                (j > i || partition->p->allow_empty)) {
                counts[stage] = j - i;
                i = j;
                break;
            }
        }
    }
}

/* --- why not --- */

static void
set_infeasible(const Partition *partition, GError **error)
{
    const PlanPartition *p = partition->p;
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
        int64_t most = -1, most_before = 0;
        for (int64_t j = p->n_layers; j >= 0; j--) {
            bool can = false;
            for (int64_t i = j - least; i >= 0 && !can; i--)
                can = reached[i] && stage_fits(partition, stage, i, j);
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
                    stage_bytes(partition, stage, MAX(from, 0), to), p->stage_limit_bytes[stage]);
        return;
    }
    g_assert_not_reached();
}

bool
plan_partition(const PlanPartition *partition, int64_t *counts, GError **error)
{
    g_return_val_if_fail(partition->n_layers >= 0 && partition->n_stages >= 1, false);
    g_return_val_if_fail(partition->n_layers == 0 || partition->layer_ns != NULL, false);
    const size_t n = (size_t)partition->n_layers + 1;
    int64_t n_states;
    if (__builtin_mul_overflow(partition->n_layers + 1, partition->n_stages + 1, &n_states)) {
        g_set_error(error, PLAN_ERROR, PLAN_ERROR_INFEASIBLE, "too many layers and stages");
        return false;
    }
    g_autofree int64_t *time_before = g_try_malloc0_n(n, sizeof *time_before);
    g_autofree int64_t *bytes_before = g_try_malloc0_n(n, sizeof *bytes_before);
    g_autofree int64_t *longest = g_try_malloc_n((size_t)n_states, sizeof *longest);
    g_autofree Squares *squares = g_try_malloc_n((size_t)n_states, sizeof *squares);
    Partition state = {partition, time_before, bytes_before, longest, squares};
    if (time_before == NULL || bytes_before == NULL || longest == NULL || squares == NULL) {
        g_set_error(error, PLAN_ERROR, PLAN_ERROR_INFEASIBLE,
                    "no memory to divide %" G_GINT64_FORMAT " layers into %" G_GINT64_FORMAT
                    " stages",
                    partition->n_layers, partition->n_stages);
        return false;
    }
    for (size_t i = 1; i < n; i++) {
        time_before[i] = add(time_before[i - 1], partition->layer_ns[i - 1]);
        if (partition->layer_bytes != NULL)
            bytes_before[i] = add(bytes_before[i - 1], partition->layer_bytes[i - 1]);
    }
    clear_states(&state);
    solve_longest(&state);
    const int64_t cap = *longest_at(&state, 0, 0);
    if (cap < 0) {
        set_infeasible(&state, error);
        return false;
    }
    solve_squares(&state, cap);
    read_counts(&state, cap, counts);
    return true;
}
