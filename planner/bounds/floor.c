/*
 * Cells of numbers of slices and longest slices, the least bound first; floor_layers.c has what layers
 * take, floor_memory.c what ranks hold.
 */
#include "planner/bounds/floor.h"

#include <math.h>
#include <string.h>

#include "base/units.h"
#include "planner/bounds/floor_layers.h"
#include "planner/bounds/point_bound.h"
#include "planner/bounds/rank_kinds.h"
#include "planner/bounds/sketch.h"
#include "schedule/rank_order.h"

/* A range of longest slices is cut in two until its ends differ by less. */
#define LONGEST_STEP 1.05
/* So often for one size of micro-batches. */
#define MAX_LONGEST 64

/* Both passes of an end of the model over all tokens. */
static double
end_part_s(const PlanFloor *floor, PlanPart part)
{
    const PlanPartCost *cost = &floor->cost->parts[part];

    return (double)floor->point->n_micro_batches *
           (cost->sliced_forward_s + cost->sliced_backward_s);
}

/* Whether an op takes as long on both ranks. */
static bool
are_alike(const PlanFloor *floor, int64_t q, int64_t r)
{
    return (floor->ranks_alike || floor->places_groups != NULL) &&
           floor->place_of_rank[q] == floor->place_of_rank[r] && floor->place_of_rank[r] >= 0;
}

/* The first rank like @r whose first stage has at least as many layers of each kind. */
static int64_t
first_as_long(const PlanFloor *floor, int64_t r)
{
    for (int64_t q = 0; q < r; q++) {
        bool is_as_long = are_alike(floor, q, r);
        for (int k = 0; k < floor->cost->n_kinds && is_as_long; k++)
            is_as_long = floor->first[q][k] >= floor->first[r][k];
        if (is_as_long)
            return q;
    }
    return r;
}

/* --- one cell --- */

/* Which slice a path follows. */
enum {
    WAY_SLOWEST, /* the one that takes longest in the first micro-batch, and back in the last one */
    WAY_LONGEST, /* the one of most tokens there */
    WAY_GROUP, /* of several chunks, the one that takes longest in the first group, and in the last one */
    WAY_N
};

/* The way of a slice to a rank and back. */
typedef struct {
    double of[WAY_N][PLAN_FLOOR_SUMS];
    double least[PLAN_FLOOR_PASSES]; /* of any slice */
} Way;

static void
way_add(Way *way, const PlanFloor *floor, const PlanFloorTimes *times, const double *layers,
        int gathers)
{
    for (int k = 0; k < floor->cost->n_kinds; k++) {
        for (int i = 0; i < PLAN_FLOOR_SUMS; i++) {
            way->of[WAY_SLOWEST][i] += layers[k] * times[k].pass_s[i][gathers];
            way->of[WAY_LONGEST][i] += layers[k] * times[k].longest_s[i][gathers];
            way->of[WAY_GROUP][i] += layers[k] * times[k].group_s[i][gathers];
        }
        for (int i = 0; i < PLAN_FLOOR_PASSES; i++)
            way->least[i] += layers[k] * times[k].least_s[i][gathers];
    }
}

/* What all ranks of a cell have in common. */
typedef struct {
    PlanFloorGroups groups;
    double share
        [WAY_N]; /* of all tokens that come before the slice, forward or backward, at the most */
    double rows[WAY_N]; /* of messages of the slice, at the least on average */
    int n_ways;
    bool goes_round; /* rounds are known: round_s() */
} CellWays;

static CellWays
cell_ways(const PlanFloor *floor, const PlanFloorCell *cell)
{
    const double length = (double)floor->request->seq_len, n = (double)cell->last;
    const double share = (double)floor->group / (double)floor->n_sequences;
    const PlanFloorGroups groups = plan_floor_groups(floor, cell);
    const double batch = (double)plan_floor_least_sequences(floor, cell, 1);
    const double part = groups.is_one
                            ? (double)floor->group
                            : fmin((double)plan_floor_least_sequences(floor, cell, groups.first) /
                                       (double)groups.first,
                                   (double)plan_floor_least_sequences(floor, cell, groups.last) /
                                       (double)groups.last);

    return (CellWays){
        .groups = groups,
        .share = {fmin(1.0, share), fmin(1.0, share),
                  fmin(1.0, share * (double)MAX(groups.first, groups.last))},
        .rows = {batch * length / n, batch * length * cell->low, part * length / n},
        .n_ways = floor->point->degrees.vpp > 1 ? WAY_N : WAY_GROUP,
        .goes_round = floor->point->degrees.vpp > 1 && cell->first == cell->last &&
                      plan_floor_is_uniform(floor, cell),
    };
}

/* One rank of a cell. */
typedef struct {
    int64_t r;
    double longer_s; /* what r has more in its first stage than rank 0, of all tokens */
    double forced_s; /* of its work what is recompute */
    /* Of the stage to which a slice goes round: what it has more than rank 0's first stage, of all tokens, with
     * the head; a slice's way through all stages before it; and a micro-batch's time in those of the
     * rank. */
    double round_longer_s, round[PLAN_FLOOR_PASSES], before[PLAN_FLOOR_PASSES];
} RankTimes;

/* Both passes over the boundaries between rank 0 and rank @r. */
static double
messages_s(const PlanFloorOrder *order, int64_t r, double rows)
{
    const PlanFloorMessage *to = order->messages.to[r];

    return plan_floor_message_s(&to[PLAN_FLOOR_FORWARD], rows) +
           plan_floor_message_s(&to[PLAN_FLOOR_BACKWARD], rows);
}

/* What one rank idles at the least. */
static double
idle_s(const PlanFloor *floor, const PlanFloorOrder *order, const CellWays *cell, const Way *ways,
       const RankTimes *rank)
{
    const int64_t r = rank->r, q = floor->as_long[r];
    const Way *to_r = &ways[r], *to_q = &ways[q];
    double most = 0.0;

    for (int which = 0; which < cell->n_ways; which++) {
        const double *all = to_r->of[which], *begin = to_q->of[which];
        const double messages = messages_s(order, r, cell->rows[which]);
        const double messages_q =
            messages - messages_s(order, q, cell->rows[which]) + messages_s(order, q, 0.0);
        const double longer_s = cell->share[which] * rank->longer_s;
        double least_q[PLAN_FLOOR_PASSES];
        for (int i = 0; i < PLAN_FLOOR_PASSES; i++)
            least_q[i] = fmin(to_q->least[i], begin[i]);
        const double late_s =
            fmax(all[PLAN_FLOOR_BOTH] + messages - longer_s,
                 all[PLAN_FLOOR_BOTH] - begin[PLAN_FLOOR_BOTH] + least_q[PLAN_FLOOR_FORWARD] +
                     least_q[PLAN_FLOOR_BACKWARD] + messages_q);
        /* The last micro-batch's last slice may be short: then no recompute of the rank hides the
         * way back. */
        const double soon_s = fmax(all[PLAN_FLOOR_FORWARD] - longer_s,
                                   all[PLAN_FLOOR_FORWARD] - begin[PLAN_FLOOR_FORWARD] +
                                       least_q[PLAN_FLOOR_FORWARD]) +
                              fmin(to_r->least[PLAN_FLOOR_BACKWARD], all[PLAN_FLOOR_BACKWARD]) +
                              messages_s(order, r, 0.0);
        most = fmax(most, fmax(late_s - cell->share[which] * rank->forced_s, soon_s));
    }
    return most;
}

/* The same along a slice of the first micro-batch that goes through all stages before the rank's chunk
 * @chunk, or of the last micro-batch that comes back from there, while the rank has nothing but what its
 * chunks before that take of the first or last group; or along both. */
static double
round_s(const PlanFloorOrder *order, const CellWays *cell, const Way *ways, const RankTimes *rank,
        int64_t chunk)
{
    const double rows = cell->rows[WAY_SLOWEST], share = cell->share[WAY_SLOWEST];
    const double rounds = (double)chunk;
    const int64_t group[PLAN_FLOOR_PASSES] = {cell->groups.first, cell->groups.last};
    double more_s[PLAN_FLOOR_PASSES], straight_s = 0.0, most = 0.0;

    for (int i = 0; i < PLAN_FLOOR_PASSES; i++) {
        straight_s += ways[rank->r].of[WAY_SLOWEST][i] +
                      plan_floor_message_s(&order->messages.to[rank->r][i], rows);
        more_s[i] = rank->round[i] - ways[rank->r].of[WAY_SLOWEST][i] +
                    rounds * plan_floor_message_s(&order->messages.round[i], rows) -
                    (double)group[i] * rank->before[i];
    }
    for (int which = 1; which < 4; which++) {
        const double part =
            which & 2 ? fmin(1.0, share * (double)group[PLAN_FLOOR_BACKWARD]) : share;
        const double longer_s = rank->round_longer_s + (which == 3 ? 0.0 : rank->longer_s);
        most = fmax(most, straight_s + (which & 1 ? more_s[PLAN_FLOOR_FORWARD] : 0.0) +
                              (which & 2 ? more_s[PLAN_FLOOR_BACKWARD] : 0.0) - share * longer_s -
                              part * rank->forced_s);
    }
    return most;
}

/* The chain of stages of several chunks takes at least what its last stage does, and the way of a slice
 * through all stages before it and back; and the way of any slice of the largest micro-batch. */
static double
chain_s(const PlanFloor *floor, const PlanFloorOrder *order, const CellWays *cell,
        const PlanFloorTimes *times)
{
    const int64_t last = floor->point->degrees.pp - 1, v = floor->point->degrees.vpp;
    double work_s = 0.0, longer_s = 0.0, ways_s[3] = {0};

    for (int k = 0; k < floor->cost->n_kinds; k++) {
        const double n_last = floor->stages[v * (last + 1) - 1][k];
        double n = 0.0;
        for (int64_t r = 0; r <= last; r++)
            n += floor->all[r][k];
        work_s += n_last * times[k].work_s[0];
        longer_s += fmax(0.0, n_last - floor->first[0][k]) * times[k].work_s[0];
        ways_s[0] += (n - n_last) * times[k].pass_s[PLAN_FLOOR_BOTH][0];
        ways_s[1] += (n - n_last) * times[k].longest_s[PLAN_FLOOR_BOTH][0];
        for (int i = 0; i < PLAN_FLOOR_PASSES; i++)
            ways_s[2] += n * times[k].largest_s[i][0];
    }
    work_s += (1.0 - cell->share[WAY_SLOWEST]) * end_part_s(floor, PLAN_PART_HEAD) -
              cell->share[WAY_SLOWEST] * longer_s;
    for (int i = 0; i < 3; i++) {
        const double rows = i < 2 ? cell->rows[i] : 0.0;
        ways_s[i] += messages_s(order, last, rows) +
                     ((double)v - 1.0) *
                         (plan_floor_message_s(&order->messages.round[PLAN_FLOOR_FORWARD], rows) +
                          plan_floor_message_s(&order->messages.round[PLAN_FLOOR_BACKWARD], rows));
    }
    return fmax(work_s + fmax(ways_s[0], ways_s[1]), ways_s[2]);
}

/* What layers of rank @r take: those of its place, and whether gathers count that hide. */
typedef struct {
    const PlanFloorTimes *times;
    int gathers;
} RankLayers;

static RankLayers
rank_layers(const PlanFloor *floor, const PlanFloorTimes (*times)[MODEL_MAX_KINDS], int64_t r)
{
    const bool is_end = r == 0 || r == floor->point->degrees.pp - 1;
    const int32_t place = floor->place_of_rank[r];

    return (RankLayers){times[place >= 0 ? (guint)place : floor->n_places],
                        floor->ends_hide && is_end ? 0 : 1};
}

/* What is known of the stages to which slices go round: [0] of the ranks' last chunks, [1] of those before. */
typedef struct {
    int64_t chunk[2];
    double way_s[2][PLAN_FLOOR_PASSES]; /* through all stages before that of the rank in hand */
    int n;
} Rounds;

/* Begins at rank 0. */
static Rounds
rounds_begin(const PlanFloor *floor, const PlanFloorTimes (*times)[MODEL_MAX_KINDS])
{
    const int64_t pp = floor->point->degrees.pp, vpp = floor->point->degrees.vpp;
    Rounds rounds = {.chunk = {vpp - 1, vpp - 2}, .n = vpp > 2 ? 2 : 1};

    for (int64_t stage = 0; stage < (vpp - 1) * pp; stage++) {
        const RankLayers of = rank_layers(floor, times, stage % pp);
        for (int k = 0; k < floor->cost->n_kinds; k++)
            for (int i = 0; i < PLAN_FLOOR_PASSES; i++) {
                const double way_s = floor->stages[stage][k] * of.times[k].pass_s[i][of.gathers];
                rounds.way_s[0][i] += way_s;
                rounds.way_s[1][i] += stage < (vpp - 2) * pp ? way_s : 0.0;
            }
    }
    return rounds;
}

/* Sets what @rank has of round number @j; @stands: layers of rank 0's first stage that stand in for its own.  Goes
 * on to the next rank. */
static void
rounds_next(const PlanFloor *floor, const PlanFloorCell *cell, const RankLayers *of,
            const double *stands, int j, Rounds *rounds, RankTimes *rank)
{
    const int64_t pp = floor->point->degrees.pp, at = rounds->chunk[j] * pp + rank->r;
    const double *own = floor->stages[at];

    rank->round_longer_s =
        at == pp * floor->point->degrees.vpp - 1 ? end_part_s(floor, PLAN_PART_HEAD) : 0.0;
    for (int i = 0; i < PLAN_FLOOR_PASSES; i++) {
        rank->round[i] = rounds->way_s[j][i];
        rank->before[i] = 0.0;
    }
    for (int k = 0; k < floor->cost->n_kinds; k++) {
        const double later = j == 0 ? own[k] : own[k] + floor->stages[at + pp][k];
        rank->round_longer_s += fmax(0.0, own[k] - stands[k]) * of->times[k].work_s[of->gathers];
        for (int i = 0; i < PLAN_FLOOR_PASSES; i++) {
            const double slice_s = of->times[k].pass_s[i][of->gathers];
            rank->before[i] += (floor->all[rank->r][k] - later) * (double)cell->last * slice_s;
            rounds->way_s[j][i] += own[k] * slice_s;
        }
    }
}

/* A Workload rounds each op and each message to the nanosecond, of which either has a few terms; sums and
 * products here lose less than a share. */
#define ROUNDING_S 4e-9
#define LOST 1e-7

/* Ops and messages of a path at the most: all of a rank, and one in each stage there and back. */
static double
n_path_ops(const PlanFloor *floor, const PlanFloorCell *cell)
{
    const double vpp = (double)floor->point->degrees.vpp, pp = (double)floor->point->degrees.pp;

    return 2.0 * (double)cell->n_micro_batches * (double)cell->last * vpp + 4.0 * vpp * pp;
}

/* The largest bound of any rank, and of the chain of stages, in the order of ranks for which it is least. */
static double
cell_bound_s(const PlanFloor *floor, const PlanFloorCell *cell,
             const PlanFloorTimes (*times)[MODEL_MAX_KINDS], Way *ways)
{
    const int64_t pp = floor->point->degrees.pp, vpp = floor->point->degrees.vpp;
    const CellWays common = cell_ways(floor, cell);
    PlanFloorCut cut = {cell->n_micro_batches,
                        floor->n_sequences,
                        floor->group,
                        cell->last,
                        cell->high,
                        vpp > 1 && cell->first == cell->last ? common.groups.first : 0};
    Rounds rounds = common.goes_round ? rounds_begin(floor, times) : (Rounds){.n = 0};
    double most[PLAN_RANK_ORDER_N], least = INFINITY;

    for (int i = 0; i < floor->n_orders; i++)
        most[i] =
            vpp > 1 ? chain_s(floor, &floor->orders[i], &common, times[floor->n_places]) : 0.0;
    ways[0] = (Way){0};
    for (int64_t r = 0; r < pp; r++) {
        const RankLayers layers = rank_layers(floor, times, r);
        const PlanFloorTimes *of = layers.times;
        const int gathers = layers.gathers;
        /* Rank 0 stands in for what r does before the slice as far as it takes as long. */
        const bool is_like_0 = r == 0 || are_alike(floor, 0, r);
        const double nothing[MODEL_MAX_KINDS] = {0},
                     *stands = is_like_0 ? floor->first[0] : nothing;
        RankTimes rank = {.r = r};
        double work_s = 0.0, idle[PLAN_RANK_ORDER_N] = {0};
        for (int k = 0; k < floor->cost->n_kinds; k++) {
            work_s += floor->all[r][k] * of[k].work_s[gathers];
            rank.longer_s += fmax(0.0, floor->first[r][k] - stands[k]) * of[k].work_s[gathers];
        }
        if (r == 0)
            work_s += end_part_s(floor, PLAN_PART_EMBEDDING);
        if (r == pp - 1)
            work_s += (vpp == 1 ? 1.0 - common.share[WAY_SLOWEST] : 1.0) *
                      end_part_s(floor, PLAN_PART_HEAD);
        rank.forced_s = plan_floor_forced_s(floor->memory, &cut, r);
        if (isinf(rank.forced_s))
            return INFINITY;
        for (int i = 0; i < floor->n_orders; i++)
            idle[i] = idle_s(floor, &floor->orders[i], &common, ways, &rank);
        for (int j = 0; j < rounds.n; j++) {
            rounds_next(floor, cell, &layers, stands, j, &rounds, &rank);
            for (int i = 0; i < floor->n_orders; i++)
                idle[i] = fmax(idle[i],
                               round_s(&floor->orders[i], &common, ways, &rank, rounds.chunk[j]));
        }
        for (int i = 0; i < floor->n_orders; i++)
            most[i] = fmax(most[i], work_s + rank.forced_s + idle[i]);
        ways[r + 1] = ways[r];
        way_add(&ways[r + 1], floor, of, floor->first[r], gathers);
    }
    for (int i = 0; i < floor->n_orders; i++)
        least = fmin(least, most[i] + floor->orders[i].end_s);
    return fmax(0.0, least * (1.0 - LOST) - ROUNDING_S * n_path_ops(floor, cell));
}

/* --- all cells --- */

typedef struct {
    const PlanFloor *floor;
    PlanFloorTimes (*times)[MODEL_MAX_KINDS]; /* (owned) [kind of nodes, and the least of all] */
    Way *ways;                                /* (owned) [rank + 1] */
    int64_t *n_left;                          /* ranges of longest slices that may be cut in two */
} Walk;

/* The least of @cell, unless it is above @least: cuts it in two as long as it is below. */
static double
walk_least_s(const Walk *walk, PlanFloorCell cell, double least)
{
    if (cell.first > cell.last || cell.low > 1.0)
        return least;
    plan_floor_times(walk->floor, &cell, walk->times);
    const double bound_s = cell_bound_s(
        walk->floor, &cell, (const PlanFloorTimes(*)[MODEL_MAX_KINDS])walk->times, walk->ways);
    if (bound_s >= least)
        return least;
    if (cell.first < cell.last) {
        PlanFloorCell few = cell, many = cell;
        few.last = (cell.first + cell.last) / 2;
        few.low = 1.0 / (double)few.last;
        many.first = few.last + 1;
        return walk_least_s(walk, many, walk_least_s(walk, few, least));
    }
    if (cell.high > cell.low * LONGEST_STEP && (*walk->n_left)-- > 0) {
        PlanFloorCell longer = cell;
        cell.high = longer.low = sqrt(cell.low * cell.high);
        return walk_least_s(walk, longer, walk_least_s(walk, cell, least));
    }
    return bound_s;
}

/* The work of all layers alone with @n slices: more take no less.  An op takes longer than a thousand times its
 * rounding, as kernels take half a microsecond to start, and more of them round by more. */

static double
work_s(const Walk *walk, int64_t n_micro_batches, int64_t n)
{
    const PlanFloor *floor = walk->floor;
    const PlanFloorCell cell = {n_micro_batches, n, n, 1.0 / (double)n, 1.0};
    double kinds_s[MODEL_MAX_KINDS] = {0}, sum = 0.0;

    for (int k = 0; k < floor->cost->n_kinds; k++)
        kinds_s[k] = plan_floor_work_s(floor, &cell, k);
    for (int64_t r = 0; r < floor->point->degrees.pp; r++)
        for (int k = 0; k < floor->cost->n_kinds; k++)
            sum += floor->all[r][k] * kinds_s[k];
    return 0.999 * sum / (double)floor->point->degrees.pp;
}

/* The least over numbers of micro-batches, numbers of slices and longest slices, or @most_s. */
static double
least_s(const PlanFloor *floor, double most_s)
{
    const int64_t fewest = (floor->n_sequences + floor->group - 1) / floor->group;
    const int64_t most = plan_point_regroups(floor->request, floor->point)
                             ? floor->n_sequences - floor->group + 1
                             : fewest;
    g_autofree PlanFloorTimes(*times)[MODEL_MAX_KINDS] =
        g_malloc0((floor->n_places + 1) * sizeof *times);
    g_autofree Way *ways = g_new0(Way, (size_t)floor->point->degrees.pp + 1);
    int64_t n_left = MAX_LONGEST;
    const Walk walk = {floor, times, ways, &n_left};
    double least = most_s;

    for (int64_t m = fewest; m <= most; m++)
        for (int64_t n = 2; n <= floor->request->seq_len; n *= 2) {
            const int64_t last = MIN(2 * n - 1, floor->request->seq_len);
            if (work_s(&walk, m, n) >= least)
                break;
            least =
                walk_least_s(&walk, (PlanFloorCell){m, n, last, 1.0 / (double)last, 1.0}, least);
        }
    return least;
}

/* --- public --- */

static void
floor_clear(PlanFloor *floor)
{
    g_free(floor->first);
    g_free(floor->all);
    g_free(floor->stages);
    for (int i = 0; i < floor->n_orders; i++)
        plan_floor_messages_clear(&floor->orders[i].messages);
    g_free(floor->orders);
    g_clear_pointer(&floor->places_groups, g_array_unref);
    g_free(floor->places);
    g_free(floor->place_of_rank);
    g_free(floor->as_long);
}

static void
set_layers(PlanFloor *floor, const int64_t *counts)
{
    const int64_t pp = floor->point->degrees.pp, n_stages = pp * floor->point->degrees.vpp;

    floor->first = g_malloc0((size_t)pp * sizeof *floor->first);
    floor->all = g_malloc0((size_t)pp * sizeof *floor->all);
    floor->stages = g_malloc0((size_t)n_stages * sizeof *floor->stages);
    for (int64_t k = 0, begin = 0; k < n_stages; begin += counts[k++]) {
        int64_t n[PLAN_PART_N] = {0};
        plan_layer_count(floor->request, begin, begin + counts[k], n);
        for (int i = 0; i < floor->cost->n_kinds; i++) {
            floor->all[k % pp][i] += (double)n[i];
            floor->first[k % pp][i] += k < pp ? (double)n[i] : 0.0;
            floor->stages[k][i] = (double)n[i];
        }
    }
}

/* Whether nothing takes less in order @b of ranks than in order @a. */
static bool
is_no_worse(const PlanFloorOrder *a, const PlanFloorOrder *b, int64_t pp)
{
    for (int64_t r = 0; r <= pp; r++)
        for (int pass = 0; pass < PLAN_FLOOR_PASSES; pass++) {
            const PlanFloorMessage *x =
                r < pp ? &a->messages.to[r][pass] : &a->messages.round[pass];
            const PlanFloorMessage *y =
                r < pp ? &b->messages.to[r][pass] : &b->messages.round[pass];
            if (x->latency_s > y->latency_s || x->row_s > y->row_s)
                return false;
        }
    return a->end_s <= b->end_s;
}

/* Sets the orders in which ranks may lie, of which each has its own messages and its own reduction after
 * the last op of rank 0, which has @n of each part; returns the least time after that op. */
static double
set_orders(PlanFloor *floor, const int64_t n[PLAN_PART_N])
{
    const PlanPoint *point = floor->point;
    double least_s = INFINITY;

    floor->orders = g_new0(PlanFloorOrder, PLAN_RANK_ORDER_N);
    for (uint32_t left = plan_point_orders(point); left != 0; left &= left - 1) {
        PlanPoint one = *point;
        PlanFloorOrder *order = &floor->orders[floor->n_orders];
        bool is_known = false;
        one.orders = 0;
        one.degrees.rank_order = g_bit_nth_lsf(left, -1);
        plan_floor_messages_init(&order->messages, floor->request, &one);
        order->end_s = plan_sketch_end_s(floor->request, floor->cost, &one, n) * (1.0 - 1e-9);
        for (int i = 0; i < floor->n_orders && !is_known; i++)
            is_known = is_no_worse(&floor->orders[i], order, point->degrees.pp);
        if (is_known) {
            plan_floor_messages_clear(&order->messages);
            continue;
        }
        least_s = fmin(least_s, order->end_s);
        floor->n_orders++;
    }
    for (int i = 0; i < floor->n_orders; i++)
        floor->orders[i].end_s -= least_s;
    return least_s;
}

/* Sets all of @floor but its group and its table, from what it borrows; returns what rank 0 does after its
 * last op at the least. */
static double
floor_init(PlanFloor *floor, const PlanFloorAsked *asked, const PlanFloorMemory *memory)
{
    const PlanRequest *request = asked->request;
    const PlanPoint *point = asked->point;
    const PlanLayerCost *cost = asked->cost;
    const int64_t pp = point->degrees.pp;
    int64_t n[PLAN_PART_N] = {[PLAN_PART_EMBEDDING] = cost->n[PLAN_PART_EMBEDDING]};

    *floor = (PlanFloor){
        .request = request,
        .point = point,
        .cost = cost,
        .memory = memory,
        .n_sequences = point->n_micro_batches * point->micro_batch,
        .interference = request->profile->parameters.interference_fraction,
        .ranks_alike = plan_sketch_ranks_are_alike(request, &point->degrees),
        .ends_hide = plan_sketch_prefetch(request, cost) > 1,
    };
    set_layers(floor, asked->counts);
    floor->place_of_rank = g_new(int32_t, (size_t)pp);
    floor->places_groups = plan_rank_places(request, point, floor->place_of_rank);
    if (floor->places_groups == NULL)
        plan_rank_kinds(request, point, floor->place_of_rank);
    floor->n_places = floor->places_groups == NULL ? request->profile->cluster->nodes->len
                                                   : floor->places_groups->len / MODEL_GROUP_N;
    floor->places = g_new(const PlanFloorKind *, floor->n_places);
    floor->as_long = g_new(int64_t, (size_t)pp);
    for (int64_t r = 0; r < pp; r++)
        floor->as_long[r] = first_as_long(floor, r);
    for (int i = 0; i < cost->n_kinds; i++)
        n[i] = (int64_t)floor->all[0][i];
    return set_orders(floor, n);
}

/* The largest micro-batch has @group sequences. */
static void
set_group(PlanFloor *floor, PlanMemo *memo, int64_t group)
{
    const int64_t rows = group * floor->request->seq_len;
    const GArray *groups = floor->places_groups;

    floor->group = group;
    for (guint i = 0; i < floor->n_places; i++) {
        const ProfileGroup *at =
            groups == NULL ? NULL : &g_array_index(groups, ProfileGroup, i * MODEL_GROUP_N);
        if (i == 0 || groups != NULL)
            floor->table = plan_floor_table(memo, floor->request, floor->point, rows, at);
        floor->places[i] = &floor->table->kinds[groups == NULL ? i : 0];
    }
}

int64_t
plan_floor_cell_ns(const PlanFloorAsked *asked, int64_t group, const PlanFloorCell *cell)
{
    const int64_t pp = asked->point->degrees.pp;
    g_auto(PlanFloorMemory) bytes = {0};
    PlanFloor floor;
    if (asked->request->profile->measurements->len > 0)
        return 0;
    plan_floor_memory_init(&bytes, asked->request, asked->cost, asked->point, asked->counts,
                           asked->memory_bytes);
    const double end_s = floor_init(&floor, asked, &bytes);
    set_group(&floor, asked->memo, group);
    g_autofree PlanFloorTimes(*times)[MODEL_MAX_KINDS] =
        g_malloc0((floor.n_places + 1) * sizeof *times);
    g_autofree Way *ways = g_new0(Way, (size_t)pp + 1);
    plan_floor_times(&floor, cell, times);
    const double bound_s =
        cell_bound_s(&floor, cell, (const PlanFloorTimes(*)[MODEL_MAX_KINDS])times, ways);
    floor_clear(&floor);
    return isinf(bound_s) ? INT64_MAX : units_ns_from_s(bound_s + end_s);
}

int64_t
plan_floor_ns(const PlanFloorAsked *asked, const int64_t *groups, int n_groups, int64_t most_ns)
{
    g_auto(PlanFloorMemory) bytes = {0};
    PlanFloor floor;

    if (asked->request->profile->measurements->len > 0)
        return 0;
    plan_floor_memory_init(&bytes, asked->request, asked->cost, asked->point, asked->counts,
                           asked->memory_bytes);
    const double end_s = floor_init(&floor, asked, &bytes);
    const double most_s = most_ns == INT64_MAX ? INFINITY : units_s_from_ns(most_ns) - end_s;
    double least = most_s;
    for (int i = 0; i < n_groups; i++) {
        set_group(&floor, asked->memo, groups[i]);
        least = least_s(&floor, least);
    }
    floor_clear(&floor);
    if (least >= most_s)
        return most_ns;
    return units_ns_from_s(least + end_s);
}
