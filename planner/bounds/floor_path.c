#include "planner/bounds/floor_path.h"

#include <math.h>
#include <string.h>

#include "base/real.h"
#include "planner/bounds/floor_setup.h"
#include "schedule/graph.h"

/* Orders of more ops are left out: they take as long as many other bounds, and have small bubbles. */
#define MAX_OPS (INT64_C(1) << 15)
/* Paths of which the mean is taken, and how fast slices get shorter that have more of a path than others.  Twice as
 * many gain up to 2 % of a bound where slices are more than a hundred, else nothing. */
#define N_PATHS 16
#define SHORTER 0.1
/* Sequences of sizes of micro-batches of which each has paths of its own, and ops of all of their orders. */
#define MAX_SIZES 64
#define MAX_SIZED_OPS (INT64_C(1) << 18)
/* Those with and without a largest one that are counted. */
#define MAX_LOOKED_AT 1024

/* How often something lies on the paths: with the slice with which it lies there least often; and beyond that
 * with all slices, and with one slice at the most. */
typedef struct {
    double least, more, most;
} Count;

/* What lies on the paths of micro-batches of one size. */
typedef struct {
    int64_t sequences;
    Count *layers; /* (owned) [((place * 2 + gathers) * kinds of layers + kind) * passes + pass] */
    Count ends[PLAN_FLOOR_ENDS][PLAN_FLOOR_PASSES];
    Count (*messages)[PLAN_FLOOR_PASSES]; /* (owned) [rank] over the boundary behind it */
} Size;

/* The mean of the paths of one sequence of sizes of micro-batches. */
typedef struct {
    GArray *sizes; /* (owned) of Size */
    double *whole; /* (owned) [rank] of all sequences those whose backwards are on the path */
    double n_ops;  /* and messages of one path, on average */
} Mean;

struct PlanFloorPaths {
    GArray *means; /* (owned) of Mean */
};

static void
mean_clear(gpointer data)
{
    Mean *mean = data;

    for (guint i = 0; i < mean->sizes->len; i++) {
        g_free(g_array_index(mean->sizes, Size, i).layers);
        g_free(g_array_index(mean->sizes, Size, i).messages);
    }
    g_array_unref(mean->sizes);
    g_free(mean->whole);
}

void
plan_floor_paths_free(PlanFloorPaths *paths)
{
    if (paths == NULL)
        return;
    g_array_unref(paths->means);
    g_free(paths);
}

/* --- finding them --- */

/* A layer row's index. */
static size_t
layer_at(const PlanFloor *floor, guint place, int gathers, int k, int pass)
{
    return (((size_t)place * 2 + (size_t)gathers) * (size_t)floor->cost->n_kinds + (size_t)k) *
               PLAN_FLOOR_PASSES +
           (size_t)pass;
}

static size_t
n_layer_rows(const PlanFloor *floor)
{
    return layer_at(floor, floor->n_places + 1, 0, 0, 0);
}

/* An op, in the order in which ends are set: after the op before it on its rank and the one that sends it a message. */
typedef struct {
    int64_t i, producer; /* its index; that of the sender, or SCHEDULE_GRAPH_NONE */
    double op_s, message_s;
    int32_t micro_batch;
    uint16_t slice;
    bool is_first; /* of its rank */
} Step;

/* Where ops and messages take as long as here, a path is the longest one. */
typedef struct {
    const PlanFloor *floor;
    const PlanFloorCell *cell;
    const Schedule *schedule;
    const ScheduleGraph *graph;
    int64_t n_slices;
    double (*op_s)[PLAN_FLOOR_PASSES];      /* [stage] of a slice of an average micro-batch */
    double (*message_s)[PLAN_FLOOR_PASSES]; /* [rank] over the boundary behind it */
    double *slice_longer, *size_longer;     /* [slice], [micro-batch] times as long */
    int32_t *rank_of;                       /* [op] */
    Step *steps;                            /* of all ops */
    double *end_s;                          /* [op] */
    bool *waits;                            /* [op] for its message, not for its rank */
    /* What is counted. */
    int32_t *size_of;                 /* [micro-batch] its number among the sizes */
    double *layers, *ends, *messages; /* [(size * rows + row) * n_slices + slice] */
    int32_t *backwards;               /* [stage * micro-batches + micro-batch] of one path */
    double *slice_s;                  /* [slice] of one path, if all were as long */
    double n_ops;                     /* and messages */
    double weight;                    /* of one path */
} Finder;

static int
pass_of(const ScheduleOp *op)
{
    return op->kind == SCHEDULE_OP_FORWARD ? PLAN_FLOOR_FORWARD : PLAN_FLOOR_BACKWARD;
}

/* The boundary over which @op, on @rank, gets its message: the one behind the rank, or behind the rank before it
 * in the loop. */
static int32_t
boundary_of(const Finder *finder, const ScheduleOp *op, int32_t rank)
{
    const int32_t n = finder->schedule->n_ranks;

    return pass_of(op) == PLAN_FLOOR_FORWARD ? (rank + n - 1) % n : rank;
}

/* Average times of equal slices. */
static void
set_times(Finder *finder, const PlanFloorTimes (*times)[MODEL_MAX_KINDS])
{
    const PlanFloor *floor = finder->floor;
    const int64_t pp = floor->point->degrees.pp, n_stages = pp * floor->point->degrees.vpp;
    const double n_ops = (double)finder->cell->n_micro_batches * (double)finder->n_slices;
    const double rows = (double)floor->n_sequences * (double)floor->request->seq_len / n_ops;
    const PlanFloorMessages *messages = floor->orders[0].messages;

    for (int64_t stage = 0; stage < n_stages; stage++) {
        const PlanFloorRankLayers of = plan_floor_rank_layers(floor, times, stage % pp);
        for (int i = 0; i < PLAN_FLOOR_PASSES; i++) {
            double sum = 0.0;
            for (int k = 0; k < floor->cost->n_kinds; k++)
                sum += floor->stages[stage][k] * of.times[k].works_s[i][of.gathers] / n_ops;
            finder->op_s[stage][i] = sum;
        }
    }
    for (int end = 0; end < PLAN_FLOOR_ENDS && floor->ends_table != NULL; end++)
        for (int i = 0; i < PLAN_FLOOR_PASSES; i++) {
            const bool is_head = end == PLAN_FLOOR_HEAD;
            const PlanFloorOps ops = {.rows = rows, .most_rows = rows};
            finder->op_s[is_head ? n_stages - 1 : 0][i] +=
                plan_floor_end_ops_s(floor, is_head ? pp - 1 : 0, end, i, finder->cell, &ops);
        }
    for (int64_t r = 0; r < pp; r++)
        for (int i = 0; i < PLAN_FLOOR_PASSES; i++) {
            const PlanFloorMessage *to = r + 1 < pp ? &messages->to[r + 1][i] : &messages->round[i];
            finder->message_s[r][i] =
                plan_floor_message_s(to, rows) - plan_floor_message_s(&messages->to[r][i], rows);
        }
}

static void
set_ranks(Finder *finder)
{
    const Schedule *schedule = finder->schedule;

    for (int32_t r = 0; r < schedule->n_ranks; r++)
        for (int64_t i = schedule->rank_begin[r]; i < schedule->rank_begin[r + 1]; i++)
            finder->rank_of[i] = r;
}

static int64_t
stage_of(const Finder *finder, int64_t i)
{
    return (int64_t)finder->schedule->ops[i].chunk * finder->schedule->n_ranks + finder->rank_of[i];
}

static void
set_steps(Finder *finder)
{
    const ScheduleGraph *graph = finder->graph;
    const Schedule *schedule = finder->schedule;
    const int64_t n_ops = schedule_n_ops(schedule);

    for (int64_t n = 0; n < n_ops; n++) {
        const int64_t i = graph->order[n];
        const ScheduleOp *op = &schedule->ops[i];
        const int32_t rank = finder->rank_of[i];
        finder->steps[n] =
            (Step){.i = i,
                   .producer = graph->producer[i],
                   .op_s = finder->op_s[stage_of(finder, i)][pass_of(op)],
                   .message_s = finder->message_s[boundary_of(finder, op, rank)][pass_of(op)],
                   .micro_batch = op->micro_batch,
                   .slice = op->slice,
                   .is_first = i == schedule->rank_begin[rank]};
    }
}

/* Sets the end of every op, and what it waits for. */
static void
set_ends(Finder *finder)
{
    const int64_t n_ops = schedule_n_ops(finder->schedule);
    double *end_s = finder->end_s;

    for (int64_t n = 0; n < n_ops; n++) {
        const Step *step = &finder->steps[n];
        double start_s = step->is_first ? 0.0 : end_s[step->i - 1];
        bool waits = false;
        if (step->producer != SCHEDULE_GRAPH_NONE) {
            const double here_s = end_s[step->producer] + step->message_s;
            waits = here_s > start_s;
            start_s = real_max(start_s, here_s);
        }
        finder->waits[step->i] = waits;
        end_s[step->i] = start_s + step->op_s * finder->slice_longer[step->slice] *
                                       finder->size_longer[step->micro_batch];
    }
}

static void
add(const Finder *finder, double *counts, int32_t size, size_t n_rows, size_t row, uint16_t slice,
    double n)
{
    counts[((size_t)size * n_rows + row) * (size_t)finder->n_slices + slice] += n * finder->weight;
}

static void
count_op(Finder *finder, int64_t i)
{
    const PlanFloor *floor = finder->floor;
    const ScheduleOp *op = &finder->schedule->ops[i];
    const int64_t stage = stage_of(finder, i), r = finder->rank_of[i];
    const int64_t last = floor->point->degrees.pp * floor->point->degrees.vpp - 1;
    const int32_t place = floor->place_of_rank[r], size = finder->size_of[op->micro_batch];
    const int pass = pass_of(op);

    for (int k = 0; k < floor->cost->n_kinds; k++)
        add(finder, finder->layers, size, n_layer_rows(floor),
            layer_at(floor, place >= 0 ? (guint)place : floor->n_places,
                     plan_floor_rank_gathers(floor, r), k, pass),
            op->slice, floor->stages[stage][k]);
    for (int end = 0; end < PLAN_FLOOR_ENDS; end++)
        if (stage == (end == PLAN_FLOOR_EMBEDDING ? 0 : last))
            add(finder, finder->ends, size, PLAN_FLOOR_ENDS * PLAN_FLOOR_PASSES,
                (size_t)(end * PLAN_FLOOR_PASSES + pass), op->slice, 1.0);
    if (pass == PLAN_FLOOR_BACKWARD)
        finder->backwards[stage * finder->cell->n_micro_batches + op->micro_batch]++;
    finder->slice_s[op->slice] += finder->op_s[stage][pass] * finder->size_longer[op->micro_batch];
    finder->n_ops += finder->weight;
}

/* Follows the longest path to the last op of rank 0 back to its begin. */
static void
trace(Finder *finder)
{
    const Schedule *schedule = finder->schedule;
    const size_t n_boundaries = (size_t)schedule->n_ranks * PLAN_FLOOR_PASSES;
    int64_t i = schedule->rank_begin[1] - 1;

    for (;;) {
        const ScheduleOp *op = &schedule->ops[i];
        const int32_t rank = finder->rank_of[i];
        count_op(finder, i);
        if (finder->waits[i]) {
            const int32_t at = boundary_of(finder, op, rank) * PLAN_FLOOR_PASSES + pass_of(op);
            add(finder, finder->messages, finder->size_of[op->micro_batch], n_boundaries,
                (size_t)at, op->slice, 1.0);
            finder->n_ops += finder->weight;
            i = finder->graph->producer[i];
        } else if (i > schedule->rank_begin[rank]) {
            i--;
        } else {
            return;
        }
    }
}

/* Adds to @whole [rank] the share of all sequences whose backwards of each of the rank's chunks are on the
 * path that was traced, at the least. */
static void
add_whole(const Finder *finder, const int64_t *sequences, double *whole)
{
    const int64_t pp = finder->floor->point->degrees.pp, vpp = finder->floor->point->degrees.vpp;
    const int64_t m = finder->cell->n_micro_batches;

    for (int64_t r = 0; r < pp; r++) {
        int64_t least = finder->floor->n_sequences;
        for (int64_t stage = r; stage < pp * vpp; stage += pp) {
            int64_t n = 0;
            for (int64_t i = 0; i < m; i++)
                n += finder->backwards[stage * m + i] == finder->n_slices ? sequences[i] : 0;
            least = MIN(least, n);
        }
        whole[r] += finder->weight * (double)least / (double)finder->floor->n_sequences;
    }
}

static Count
count_of(const double *counts, int64_t n_slices)
{
    Count count = {.least = counts[0]};

    for (int64_t i = 0; i < n_slices; i++)
        count.least = real_min(count.least, counts[i]);
    for (int64_t i = 0; i < n_slices; i++) {
        count.more += counts[i] - count.least;
        count.most = real_max(count.most, counts[i] - count.least);
    }
    return count;
}

/* What was counted of size number @number. */
static Size
size_of(const Finder *finder, int64_t sequences, size_t number)
{
    const size_t n_rows = n_layer_rows(finder->floor), n = (size_t)finder->n_slices;
    const size_t n_ranks = (size_t)finder->schedule->n_ranks;
    Size size = {.sequences = sequences,
                 .layers = g_new(Count, n_rows),
                 .messages = g_malloc_n(n_ranks, sizeof *size.messages)};

    for (size_t i = 0; i < n_rows; i++)
        size.layers[i] = count_of(&finder->layers[(number * n_rows + i) * n], finder->n_slices);
    for (size_t r = 0; r < n_ranks; r++)
        for (size_t i = 0; i < PLAN_FLOOR_PASSES; i++) {
            const size_t row = (number * n_ranks + r) * PLAN_FLOOR_PASSES + i;
            size.messages[r][i] = count_of(&finder->messages[row * n], finder->n_slices);
        }
    for (size_t end = 0; end < PLAN_FLOOR_ENDS; end++)
        for (size_t i = 0; i < PLAN_FLOOR_PASSES; i++) {
            const size_t row = (number * PLAN_FLOOR_ENDS + end) * PLAN_FLOOR_PASSES + i;
            size.ends[end][i] = count_of(&finder->ends[row * n], finder->n_slices);
        }
    return size;
}

/* Sets each micro-batch's number among the different ones of @sequences.  Returns: how many there are. */
static size_t
set_sizes(Finder *finder, const int64_t *sequences)
{
    const int64_t m = finder->cell->n_micro_batches;
    const double average = (double)finder->floor->n_sequences / (double)m;
    int32_t n = 0;

    for (int64_t i = 0; i < m; i++) {
        int64_t like = 0;
        while (sequences[like] != sequences[i])
            like++;
        finder->size_of[i] = like < i ? finder->size_of[like] : n++;
        finder->size_longer[i] = (double)sequences[i] / average;
    }
    return (size_t)n;
}

/* Makes slices that have more of the path that was traced than others shorter, and others longer: all together
 * are as long as before. */
static void
shorten(const Finder *finder)
{
    double all_s = 0.0, sum = 0.0;
    const int64_t n = finder->n_slices;

    for (int64_t i = 0; i < n; i++)
        all_s += finder->slice_s[i];
    for (int64_t i = 0; i < n; i++) {
        const double share = finder->slice_s[i] * (double)n / all_s;
        finder->slice_longer[i] *= exp(-SHORTER * real_min(2.0, share - 1.0));
        sum += finder->slice_longer[i];
    }
    for (int64_t i = 0; i < n; i++)
        finder->slice_longer[i] *= (double)n / sum;
}

/* The mean of the paths where micro-batches have so many @sequences. */
static Mean
find_mean(Finder *finder, const int64_t *sequences)
{
    const PlanFloor *floor = finder->floor;
    const int64_t pp = floor->point->degrees.pp, n_stages = pp * floor->point->degrees.vpp;
    const int64_t n_slices = finder->n_slices;
    const size_t n_sizes = set_sizes(finder, sequences), n = n_sizes * (size_t)n_slices;
    const size_t n_backwards = (size_t)(n_stages * finder->cell->n_micro_batches);
    g_autofree double *layers = g_new0(double, n_layer_rows(floor) * n);
    g_autofree double *ends = g_new0(double, PLAN_FLOOR_ENDS *PLAN_FLOOR_PASSES *n);
    g_autofree double *messages = g_new0(double, (size_t)pp *PLAN_FLOOR_PASSES *n);
    g_autofree int32_t *backwards = g_new(int32_t, n_backwards);
    g_autofree double *slice_s = g_new(double, (size_t)n_slices);
    Mean mean = {.sizes = g_array_new(FALSE, FALSE, sizeof(Size)),
                 .whole = g_new0(double, (size_t)pp)};

    finder->layers = layers;
    finder->ends = ends;
    finder->messages = messages;
    finder->backwards = backwards;
    finder->slice_s = slice_s;
    finder->weight = 1.0 / N_PATHS;
    finder->n_ops = 0.0;
    for (int64_t i = 0; i < n_slices; i++)
        finder->slice_longer[i] = 1.0;
    for (int path = 0; path < N_PATHS; path++) {
        memset(backwards, 0, n_backwards * sizeof *backwards);
        memset(slice_s, 0, (size_t)n_slices * sizeof *slice_s);
        set_ends(finder);
        trace(finder);
        add_whole(finder, sequences, mean.whole);
        shorten(finder);
    }
    mean.n_ops = finder->n_ops;
    for (int64_t i = 0; i < finder->cell->n_micro_batches; i++)
        if (finder->size_of[i] == (int32_t)mean.sizes->len) {
            const Size size = size_of(finder, sequences[i], mean.sizes->len);
            g_array_append_val(mean.sizes, size);
        }
    return mean;
}

/* --- sizes of micro-batches --- */

/* Goes on to the next sequence of @m sizes from 1 to @most whose sum is @sum, in the order of numbers; false: there is
 * none.  The first one of all has @most in as many of the last places as possible. */
static bool
next_sizes(int64_t *sizes, int64_t m, int64_t most)
{
    int64_t sum = 0;

    for (int64_t i = m - 1; i >= 0; i--) {
        /* Raises number i, so that those behind it have one less. */
        if (i < m - 1 && sizes[i] < most && sum > m - 1 - i) {
            sizes[i]++;
            sum--;
            for (int64_t k = m - 1; k > i; k--) {
                const int64_t left = k - 1 - i;
                sizes[k] = MIN(most, sum - left);
                sum -= sizes[k];
            }
            return true;
        }
        sum += sizes[i];
    }
    return false;
}

static void
first_sizes(int64_t *sizes, int64_t m, int64_t most, int64_t sum)
{
    for (int64_t k = m - 1; k >= 0; k--) {
        sizes[k] = MIN(most, sum - k);
        sum -= sizes[k];
    }
}

/* Whether any micro-batch has as many sequences as the largest one. */
static bool
has_largest(const int64_t *sizes, int64_t m, int64_t largest)
{
    for (int64_t i = 0; i < m; i++)
        if (sizes[i] == largest)
            return true;
    return false;
}

/* Whether there are few enough sequences of sizes, each with an order of @n_ops. */
static bool
are_few(const PlanFloor *floor, int64_t m, int64_t n_ops)
{
    const int64_t most = MIN(MAX_SIZES, MAX_SIZED_OPS / n_ops);
    g_autofree int64_t *sizes = g_new(int64_t, (size_t)m);
    int64_t n = 0;

    first_sizes(sizes, m, floor->group, floor->n_sequences);
    for (int64_t looked_at = 1; looked_at <= MAX_LOOKED_AT; looked_at++) {
        n += has_largest(sizes, m, floor->group);
        if (n > most)
            return false;
        if (!next_sizes(sizes, m, floor->group))
            return true;
    }
    return false;
}

/* Finds the paths of all sequences of sizes. */
static void
find_means(Finder *finder, GArray *means)
{
    const int64_t m = finder->cell->n_micro_batches, most = finder->floor->group;
    g_autofree int64_t *sizes = g_new(int64_t, (size_t)m);

    first_sizes(sizes, m, most, finder->floor->n_sequences);
    do {
        if (!has_largest(sizes, m, most))
            continue;
        const Mean mean = find_mean(finder, sizes);
        g_array_append_val(means, mean);
    } while (next_sizes(sizes, m, most));
}

PlanFloorPaths *
plan_floor_paths_new(PlanFloor *floor, PlanMemo *memo, const PlanFloorCell *cell)
{
    const int64_t pp = floor->point->degrees.pp, vpp = floor->point->degrees.vpp;
    const int64_t m = cell->n_micro_batches, n_slices = cell->first;
    const ScheduleShape shape = {.n_ranks = pp,
                                 .n_chunks = vpp,
                                 .n_micro_batches = m,
                                 .n_slices = n_slices,
                                 .group = floor->request->group};

    if (vpp == 1 || m * n_slices > MAX_OPS / (2 * pp * vpp) ||
        !are_few(floor, m, 2 * pp * vpp * m * n_slices))
        return NULL;
    g_autoptr(Schedule) schedule =
        schedule_new(schedule_family_usual(vpp, true)->sliced->name, &shape, NULL);
    g_autoptr(ScheduleGraph) graph = schedule == NULL ? NULL : schedule_graph_new(schedule, NULL);
    if (graph == NULL)
        return NULL;
    const size_t n_ops = (size_t)schedule_n_ops(schedule);
    g_autofree double(*op_s)[PLAN_FLOOR_PASSES] = g_malloc_n((size_t)(pp * vpp), sizeof *op_s);
    g_autofree double(*message_s)[PLAN_FLOOR_PASSES] = g_malloc_n((size_t)pp, sizeof *message_s);
    g_autofree double *slice_longer = g_new(double, (size_t)n_slices);
    g_autofree double *size_longer = g_new(double, (size_t)m), *end_s = g_new(double, n_ops);
    g_autofree int32_t *rank_of = g_new(int32_t, n_ops), *numbers = g_new(int32_t, (size_t)m);
    g_autofree bool *waits = g_new(bool, n_ops);
    g_autofree Step *steps = g_new(Step, n_ops);
    g_autoptr(PlanFloorPaths) paths = g_new0(PlanFloorPaths, 1);
    g_autofree PlanFloorTimes(*times)[MODEL_MAX_KINDS] =
        g_malloc0((floor->n_places + 1) * sizeof *times);
    const double share = 1.0 / (double)n_slices;
    const PlanFloorCell equal = {m, n_slices, n_slices, share, share};
    Finder finder = {.floor = floor,
                     .cell = &equal,
                     .schedule = schedule,
                     .graph = graph,
                     .n_slices = n_slices,
                     .op_s = op_s,
                     .message_s = message_s,
                     .slice_longer = slice_longer,
                     .size_longer = size_longer,
                     .size_of = numbers,
                     .rank_of = rank_of,
                     .steps = steps,
                     .end_s = end_s,
                     .waits = waits};

    paths->means = g_array_new(FALSE, FALSE, sizeof(Mean));
    g_array_set_clear_func(paths->means, mean_clear);
    plan_floor_set_ends(floor, memo);
    plan_floor_times(floor, &equal, times);
    set_times(&finder, (const PlanFloorTimes(*)[MODEL_MAX_KINDS])times);
    set_ranks(&finder);
    set_steps(&finder);
    find_means(&finder, paths->means);
    return g_steal_pointer(&paths);
}

/* --- what they take --- */

/* The micro-batches of one size in one cell. */
typedef struct {
    const PlanFloor *floor;
    const PlanFloorCell *cell;
    double sequences; /* of one micro-batch */
} Sum;

/* Tokens of the slices beyond @count->least, on average at the least.  If each were as long as the longest one may
 * be, s of a sequence, all k slices together would have k s sequences; so one of them lacks at most k s - 1 of a
 * sequence, or all of them together, and counts at most @count->most times. */
static double
tokens_of(const Sum *sum, const Count *count)
{
    const double length = (double)sum->floor->request->seq_len, high = sum->cell->high;
    const double lacking = ((double)sum->cell->last * high - 1.0) * (1.0 + 1e-9);
    const double tokens = length * (high - count->most / count->more * lacking) * (1.0 - 1e-9);

    return real_max(plan_floor_least_tokens(sum->floor, sum->cell), tokens);
}

/* What @count takes of something that takes @row_s for each row. */
static double
linear_s(const Sum *sum, const Count *count, double row_s)
{
    const double more = count->more > 0.0 ? count->more * tokens_of(sum, count) : 0.0;

    return (count->least * (double)sum->floor->request->seq_len + more) * sum->sequences * row_s;
}

/* What one of @count takes on average of whole micro-batches, and beyond these. */
typedef struct {
    PlanFloorOps whole, more;
} CountOps;

static CountOps
ops_of(const Sum *sum, const Count *count)
{
    const double length = (double)sum->floor->request->seq_len, n = (double)sum->cell->last;
    const double most_rows = sum->sequences * sum->cell->high * length;
    const double sequences = sum->sequences / n;
    CountOps ops = {.whole = {sequences * length, most_rows, sequences,
                              sequences * plan_floor_contexts(sum->cell)}};

    if (count->more > 0.0) {
        /* Without context; pairs of a query and a key are convex in the tokens. */
        const double tokens = tokens_of(sum, count);
        const double pairs = tokens * (tokens + 1.0) / (length * (length + 1.0));
        ops.more = (PlanFloorOps){sum->sequences * tokens, most_rows, sum->sequences * pairs, 0.0};
    }
    return ops;
}

static double
layer_s(const Sum *sum, const Count *count, guint place, int gathers, int k, int pass)
{
    const CountOps ops = ops_of(sum, count);
    double seconds = 0.0;

    if (count->least > 0.0)
        seconds += count->least * (double)sum->cell->last *
                   plan_floor_ops_s(sum->floor, place, k, pass, sum->cell, &ops.whole, gathers);
    if (count->more > 0.0)
        seconds += count->more *
                   plan_floor_ops_s(sum->floor, place, k, pass, sum->cell, &ops.more, gathers);
    return seconds;
}

/* An end of the model, at least what it takes of any slices. */
static double
end_s(const Sum *sum, const Count *count, int end, int pass)
{
    const PlanFloor *floor = sum->floor;
    const double rows = (double)floor->n_sequences * (double)floor->request->seq_len;
    const int64_t r = end == PLAN_FLOOR_EMBEDDING ? 0 : floor->point->degrees.pp - 1;
    const PlanPart part = end == PLAN_FLOOR_EMBEDDING ? PLAN_PART_EMBEDDING : PLAN_PART_HEAD;
    const CountOps ops = ops_of(sum, count);
    double seconds = 0.0;

    if (floor->ends_table == NULL)
        return 0.0;
    if (count->least > 0.0)
        seconds += count->least * (double)sum->cell->last *
                   plan_floor_end_ops_s(floor, r, end, pass, sum->cell, &ops.whole);
    if (count->more > 0.0)
        seconds += count->more * plan_floor_end_ops_s(floor, r, end, pass, sum->cell, &ops.more);
    return real_max(seconds, linear_s(sum, count, plan_floor_end_pass_s(floor, part, pass) / rows));
}

/* Messages of both passes over all boundaries, in one order of ranks. */
static double
messages_s(const Sum *sum, const Size *size, const PlanFloorMessages *messages)
{
    const int64_t pp = sum->floor->point->degrees.pp;
    double seconds = 0.0;

    for (int64_t r = 0; r < pp; r++)
        for (int i = 0; i < PLAN_FLOOR_PASSES; i++) {
            const PlanFloorMessage *to = r + 1 < pp ? &messages->to[r + 1][i] : &messages->round[i];
            const PlanFloorMessage *from = &messages->to[r][i];
            const Count *count = &size->messages[r][i];
            const double n = (double)sum->cell->last * count->least + count->more;
            seconds += n * (to->latency_s - from->latency_s) +
                       linear_s(sum, count, to->row_s - from->row_s);
        }
    return seconds;
}

/* What all layers and ends of one size take. */
static double
size_s(const Sum *sum, const Size *size)
{
    const PlanFloor *floor = sum->floor;
    double seconds = 0.0;

    for (guint place = 0; place <= floor->n_places; place++)
        for (int gathers = 0; gathers < 2; gathers++)
            for (int k = 0; k < floor->cost->n_kinds; k++)
                for (int i = 0; i < PLAN_FLOOR_PASSES; i++)
                    seconds += layer_s(sum, &size->layers[layer_at(floor, place, gathers, k, i)],
                                       place, gathers, k, i);
    for (int end = 0; end < PLAN_FLOOR_ENDS; end++)
        for (int i = 0; i < PLAN_FLOOR_PASSES; i++)
            seconds += end_s(sum, &size->ends[end][i], end, i);
    return seconds;
}

/* What the paths of @mean take in the order of ranks for which it is least. */
static double
mean_s(const Mean *mean, const PlanFloor *floor, const PlanFloorCell *cell, const double *forced_s)
{
    double seconds = 0.0, least = INFINITY;

    for (int64_t r = 0; r < floor->point->degrees.pp; r++)
        seconds += mean->whole[r] * forced_s[r];
    for (guint i = 0; i < mean->sizes->len; i++) {
        const Size *size = &g_array_index(mean->sizes, Size, i);
        seconds += size_s(&(Sum){floor, cell, (double)size->sequences}, size);
    }
    for (int o = 0; o < floor->n_orders; o++) {
        double one = seconds + floor->orders[o].end_s;
        for (guint i = 0; i < mean->sizes->len; i++) {
            const Size *size = &g_array_index(mean->sizes, Size, i);
            one += messages_s(&(Sum){floor, cell, (double)size->sequences}, size,
                              floor->orders[o].messages);
        }
        least = real_min(least, one);
    }
    return least;
}

double
plan_floor_paths_s(const PlanFloorPaths *paths, const PlanFloor *floor, const PlanFloorCell *cell,
                   const double *forced_s)
{
    double least = INFINITY;

    for (guint i = 0; i < paths->means->len; i++)
        least =
            real_min(least, mean_s(&g_array_index(paths->means, Mean, i), floor, cell, forced_s));
    return least;
}

double
plan_floor_paths_n_ops(const PlanFloorPaths *paths)
{
    double most = 0.0;

    for (guint i = 0; i < paths->means->len; i++)
        most = real_max(most, g_array_index(paths->means, Mean, i).n_ops);
    return most;
}
