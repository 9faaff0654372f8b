/*
 * Cells of numbers of slices and longest slices, the least bound first; floor_setup.c has what all cells have
 * in common, floor_layers.c what layers take, floor_memory.c what ranks hold.
 */
#include "planner/bounds/floor.h"

#include <math.h>
#include <string.h>

#include "base/real.h"
#include "base/units.h"
#include "planner/bounds/floor_gradient.h"
#include "planner/bounds/floor_path.h"
#include "planner/bounds/floor_setup.h"
#include "planner/bounds/point_bound.h"
#include "schedule/rank_order.h"

/* A range of longest slices is cut in two until its ends differ by less. */
#define LONGEST_STEP 1.01
/* Paths are found for ranges of no more than this. */
#define PATHS_STEP 1.08
/* So often for one size of micro-batches. */
#define MAX_LONGEST 4096

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
    double least_rows;  /* of messages of any slice */
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
    const double part =
        groups.is_one ? (double)floor->group
                      : real_min((double)plan_floor_least_sequences(floor, cell, groups.first) /
                                     (double)groups.first,
                                 (double)plan_floor_least_sequences(floor, cell, groups.last) /
                                     (double)groups.last);

    return (CellWays){
        .groups = groups,
        .share = {real_min(1.0, share), real_min(1.0, share),
                  real_min(1.0, share * (double)MAX(groups.first, groups.last))},
        .rows = {batch * length / n, batch * length * cell->low, part * length / n},
        .least_rows = batch * plan_floor_least_tokens(floor, cell),
        .n_ways = floor->point->degrees.vpp > 1 ? WAY_N : WAY_GROUP,
        .goes_round = floor->point->degrees.vpp > 1 && cell->first == cell->last &&
                      plan_floor_is_uniform(floor, cell),
    };
}

/* The way of a slice through all stages before one, of the slices that rounds follow. */
typedef struct {
    double of[WAY_LONGEST + 1][PLAN_FLOOR_PASSES];
} RoundWay;

/* One rank of a cell. */
typedef struct {
    int64_t r;
    double longer_s; /* what r has more in its first stage than rank 0, of all tokens */
    double forced_s; /* of its work what is recompute */
    /* Of the stage to which a slice goes round: the way there; what it has more than rank 0's first stage and
     * its head, of all tokens; and a micro-batch's time in the rank's chunks before. */
    const PlanFloorRound *round;
    const RoundWay *round_way;
    double round_longer_s, round_head_s, before[PLAN_FLOOR_PASSES];
} RankTimes;

/* Both passes over the boundaries between rank 0 and rank @r. */
static double
messages_s(const PlanFloorOrder *order, int64_t r, double rows)
{
    const PlanFloorMessage *to = order->messages->to[r];

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
            messages - messages_s(order, q, cell->rows[which]) +
            messages_s(order, q, real_min(cell->least_rows, cell->rows[which]));
        const double longer_s = cell->share[which] * rank->longer_s;
        double least_q[PLAN_FLOOR_PASSES];
        for (int i = 0; i < PLAN_FLOOR_PASSES; i++)
            least_q[i] = real_min(to_q->least[i], begin[i]);
        const double late_s =
            real_max(all[PLAN_FLOOR_BOTH] + messages - longer_s,
                     all[PLAN_FLOOR_BOTH] - begin[PLAN_FLOOR_BOTH] + least_q[PLAN_FLOOR_FORWARD] +
                         least_q[PLAN_FLOOR_BACKWARD] + messages_q);
        /* The last micro-batch's last slice may be short: then no recompute of the rank hides the
         * way back. */
        const double soon_s = real_max(all[PLAN_FLOOR_FORWARD] - longer_s,
                                       all[PLAN_FLOOR_FORWARD] - begin[PLAN_FLOOR_FORWARD] +
                                           least_q[PLAN_FLOOR_FORWARD]) +
                              real_min(to_r->least[PLAN_FLOOR_BACKWARD], all[PLAN_FLOOR_BACKWARD]) +
                              messages_s(order, r, real_min(cell->least_rows, cell->rows[which]));
        most = real_max(most, real_max(late_s - cell->share[which] * rank->forced_s, soon_s));
    }
    return most;
}

/* One pass over the way of a slice through all stages before that of the rank's round, less what the rank
 * has to do meanwhile: chunks before that of the first or last group.  @q: the path begins there, to which
 * any slice has come; 0: what the rank does in its chunk before the slice is subtracted elsewhere. */
static double
round_pass_s(const PlanFloorOrder *order, const CellWays *cell, const Way *ways,
             const RankTimes *rank, int which, int pass, int64_t q)
{
    const double rows = cell->rows[which], least_rows = real_min(cell->least_rows, rows);
    const int64_t group = pass == PLAN_FLOOR_FORWARD ? cell->groups.first : cell->groups.last;
    const double begin_s = ways[q].of[which][pass];
    const PlanFloorMessage *to = &order->messages->to[q][pass];

    return rank->round_way->of[which][pass] - begin_s + real_min(begin_s, ways[q].least[pass]) +
           plan_floor_message_s(&order->messages->to[rank->r][pass], rows) +
           (double)rank->round->chunk * plan_floor_message_s(&order->messages->round[pass], rows) -
           plan_floor_message_s(to, rows) + plan_floor_message_s(to, least_rows) -
           (double)group * rank->before[pass];
}

/* What a rank idles along a slice @which of the first micro-batch that goes through all stages before that of
 * the rank's round, or of the last micro-batch that comes back from there; or along both.  @q: as
 * round_pass_s() has it. */
static double
round_from_s(const PlanFloorOrder *order, const CellWays *cell, const Way *ways,
             const RankTimes *rank, int which, int64_t q)
{
    const double share = cell->share[which], rows = cell->rows[which];
    double straight_s[PLAN_FLOOR_PASSES], round_s[PLAN_FLOOR_PASSES], most = 0.0;

    for (int i = 0; i < PLAN_FLOOR_PASSES; i++) {
        straight_s[i] = ways[rank->r].of[which][i] +
                        plan_floor_message_s(&order->messages->to[rank->r][i], rows);
        round_s[i] = round_pass_s(order, cell, ways, rank, which, i, q);
    }
    for (int passes = 1; passes < 1 << PLAN_FLOOR_PASSES; passes++) {
        const bool comes_back = passes >> PLAN_FLOOR_BACKWARD & 1;
        const double part = comes_back ? real_min(1.0, share * (double)cell->groups.last) : share;
        double longer_s = rank->round_head_s + (q == 0 ? rank->round_longer_s : 0.0), sum = 0.0;
        for (int i = 0; i < PLAN_FLOOR_PASSES; i++) {
            const bool is_round = passes >> i & 1;
            sum += is_round ? round_s[i] : straight_s[i];
            longer_s += is_round ? 0.0 : rank->longer_s;
        }
        most = real_max(most, sum - share * longer_s - part * rank->forced_s);
    }
    return most;
}

/* The largest of all slices and of all ranks where the path may begin. */
static double
round_s(const PlanFloorOrder *order, const CellWays *cell, const Way *ways, const RankTimes *rank)
{
    const int64_t q = rank->round->as_long;
    double most = 0.0;

    for (int which = 0; which <= WAY_LONGEST; which++) {
        most = real_max(most, round_from_s(order, cell, ways, rank, which, 0));
        if (q > 0)
            most = real_max(most, round_from_s(order, cell, ways, rank, which, q));
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
        longer_s += real_max(0.0, n_last - floor->first[0][k]) * times[k].work_s[0];
        ways_s[0] += (n - n_last) * times[k].pass_s[PLAN_FLOOR_BOTH][0];
        ways_s[1] += (n - n_last) * times[k].longest_s[PLAN_FLOOR_BOTH][0];
        for (int i = 0; i < PLAN_FLOOR_PASSES; i++)
            ways_s[2] += n * times[k].largest_s[i][0];
    }
    work_s += (1.0 - cell->share[WAY_SLOWEST]) * plan_floor_end_part_s(floor, PLAN_PART_HEAD) -
              cell->share[WAY_SLOWEST] * longer_s;
    for (int i = 0; i < 3; i++) {
        const double rows = i < 2 ? cell->rows[i] : 0.0;
        ways_s[i] += messages_s(order, last, rows) +
                     ((double)v - 1.0) *
                         (plan_floor_message_s(&order->messages->round[PLAN_FLOOR_FORWARD], rows) +
                          plan_floor_message_s(&order->messages->round[PLAN_FLOOR_BACKWARD], rows));
    }
    return real_max(work_s + real_max(ways_s[0], ways_s[1]), ways_s[2]);
}

/* Returns: (owned) [stage] the way of a slice through all stages before it. */
static RoundWay *
round_ways(const PlanFloor *floor, const PlanFloorTimes (*times)[MODEL_MAX_KINDS])
{
    const int64_t pp = floor->point->degrees.pp, n_stages = pp * floor->point->degrees.vpp;
    RoundWay *ways = g_new0(RoundWay, (size_t)n_stages);

    for (int64_t stage = 0; stage < n_stages - 1; stage++) {
        const PlanFloorRankLayers of = plan_floor_rank_layers(floor, times, stage % pp);
        RoundWay *next = &ways[stage + 1];
        *next = ways[stage];
        for (int k = 0; k < floor->cost->n_kinds; k++)
            for (int i = 0; i < PLAN_FLOOR_PASSES; i++) {
                const double n = floor->stages[stage][k];
                next->of[WAY_SLOWEST][i] += n * of.times[k].pass_s[i][of.gathers];
                next->of[WAY_LONGEST][i] += n * of.times[k].longest_s[i][of.gathers];
            }
    }
    return ways;
}

/* Sets what @rank has of its round number @j; @stands: layers of rank 0's first stage that stand in for its
 * own. */
static void
set_round(const PlanFloor *floor, const PlanFloorCell *cell, const PlanFloorRankLayers *of,
          const double *stands, int j, const RoundWay *ways, RankTimes *rank)
{
    const int64_t pp = floor->point->degrees.pp;
    const PlanFloorRound *round = &floor->rounds[rank->r][j];
    const int64_t at = round->chunk * pp + rank->r;

    rank->round = round;
    rank->round_way = &ways[at];
    rank->round_longer_s = 0.0;
    rank->round_head_s = at == pp * floor->point->degrees.vpp - 1
                             ? plan_floor_end_part_s(floor, PLAN_PART_HEAD)
                             : 0.0;
    for (int i = 0; i < PLAN_FLOOR_PASSES; i++)
        rank->before[i] = 0.0;
    for (int k = 0; k < floor->cost->n_kinds; k++) {
        double n = 0.0;
        for (int64_t chunk = 0; chunk < round->chunk; chunk++)
            n += floor->stages[chunk * pp + rank->r][k];
        rank->round_longer_s +=
            real_max(0.0, floor->stages[at][k] - stands[k]) * of->times[k].work_s[of->gathers];
        for (int i = 0; i < PLAN_FLOOR_PASSES; i++)
            rank->before[i] += n * (double)cell->last * of->times[k].pass_s[i][of->gathers];
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
             const PlanFloorTimes (*times)[MODEL_MAX_KINDS], Way *ways, double *forced_s)
{
    const int64_t pp = floor->point->degrees.pp, vpp = floor->point->degrees.vpp;
    const CellWays common = cell_ways(floor, cell);
    PlanFloorCut cut = {cell->n_micro_batches,
                        floor->n_sequences,
                        floor->group,
                        cell->last,
                        cell->high,
                        vpp > 1 && cell->first == cell->last ? common.groups.first : 0};
    PlanFloorGradient gradient = {.floor = floor, .cell = cell, .times = times};
    g_autofree RoundWay *round_way = common.goes_round ? round_ways(floor, times) : NULL;
    double most[PLAN_RANK_ORDER_N] = {0}, least = INFINITY;

    for (int i = 0; i < floor->n_orders; i++)
        most[i] =
            vpp > 1 ? chain_s(floor, &floor->orders[i], &common, times[floor->n_places]) : 0.0;
    ways[0] = (Way){0};
    if (common.goes_round)
        plan_floor_gradient_begin(&gradient);
    for (int64_t r = 0; r < pp; r++) {
        const PlanFloorRankLayers layers = plan_floor_rank_layers(floor, times, r);
        const PlanFloorTimes *of = layers.times;
        const int gathers = layers.gathers;
        /* Rank 0 stands in for what r does before the slice as far as it takes as long. */
        const bool is_like_0 = r == 0 || plan_floor_are_alike(floor, 0, r);
        const double nothing[MODEL_MAX_KINDS] = {0},
                     *stands = is_like_0 ? floor->first[0] : nothing;
        RankTimes rank = {.r = r};
        double work_s = 0.0, idle[PLAN_RANK_ORDER_N] = {0};
        for (int k = 0; k < floor->cost->n_kinds; k++) {
            work_s += floor->all[r][k] * of[k].work_s[gathers];
            rank.longer_s += real_max(0.0, floor->first[r][k] - stands[k]) * of[k].work_s[gathers];
        }
        if (r == 0)
            work_s += plan_floor_end_part_s(floor, PLAN_PART_EMBEDDING);
        if (r == pp - 1)
            work_s += (vpp == 1 ? 1.0 - common.share[WAY_SLOWEST] : 1.0) *
                      plan_floor_end_part_s(floor, PLAN_PART_HEAD);
        rank.forced_s = forced_s[r] = plan_floor_forced_s(floor->memory, &cut, r);
        if (isinf(rank.forced_s))
            return INFINITY;
        for (int i = 0; i < floor->n_orders; i++)
            idle[i] = idle_s(floor, &floor->orders[i], &common, ways, &rank);
        for (int j = 0; j < PLAN_FLOOR_ROUNDS && common.goes_round; j++) {
            if (floor->rounds[r][j].chunk == 0)
                continue;
            set_round(floor, cell, &layers, stands, j, round_way, &rank);
            for (int i = 0; i < floor->n_orders; i++)
                idle[i] = real_max(idle[i], round_s(&floor->orders[i], &common, ways, &rank));
        }
        if (common.goes_round)
            plan_floor_gradient_next(&gradient, r, idle);
        for (int i = 0; i < floor->n_orders; i++)
            most[i] = real_max(most[i], work_s + rank.forced_s + idle[i]);
        ways[r + 1] = ways[r];
        way_add(&ways[r + 1], floor, of, floor->first[r], gathers);
    }
    for (int i = 0; i < floor->n_orders; i++)
        least = real_min(least, most[i] + floor->orders[i].end_s);
    return real_max(0.0, least * (1.0 - LOST) - ROUNDING_S * n_path_ops(floor, cell));
}

/* The same along paths through the order of the cell's slices. */
static double
paths_bound_s(const PlanFloor *floor, const PlanFloorCell *cell, const PlanFloorPaths *paths,
              const double *forced_s)
{
    const double seconds = plan_floor_paths_s(paths, floor, cell, forced_s);

    return real_max(0.0, seconds * (1.0 - LOST) - ROUNDING_S * plan_floor_paths_n_ops(paths));
}

/* --- all cells --- */

typedef struct {
    PlanFloor *floor;
    PlanMemo *memo;
    PlanFloorTimes (*times)[MODEL_MAX_KINDS]; /* (owned) [kind of nodes, and the least of all] */
    Way *ways;                                /* (owned) [rank + 1] */
    double *forced_s;                         /* (owned) [rank] of the cell at hand */
    int64_t *n_left;                          /* ranges of longest slices that may be cut in two */
    bool ends_below; /* nothing is asked but whether a cell is below: ends with the first one */
} Walk;

/* Ends the range of longest slices of @cell with lengths that slices may have: multiples of the granularity.  Returns
 * false where it has none. */
static bool
cell_narrow(const PlanFloor *floor, PlanFloorCell *cell)
{
    const double length = (double)floor->request->seq_len;
    const double unit = (double)floor->granularity / length;

    cell->low = real_max(cell->low, ceil(cell->low / unit - 1e-6) * unit);
    cell->high = real_min(cell->high, trunc(cell->high / unit + 1e-6) * unit);
    return cell->low <= real_min(1.0, cell->high);
}

/* The least of @cell, unless it is above @least: cuts it in two as long as it is below.  @found: (nullable) of cells of one
 * number of slices the paths, once some cell has needed them. */
static double
walk_least_s(Walk *walk, PlanFloorCell cell, PlanFloorPaths **found, double least)
{
    const PlanFloorTimes(*times)[MODEL_MAX_KINDS] =
        (const PlanFloorTimes(*)[MODEL_MAX_KINDS])walk->times;
    g_autoptr(PlanFloorPaths) own = NULL;
    PlanFloorPaths **paths = found != NULL ? found : &own;
    if (cell.first > cell.last || !cell_narrow(walk->floor, &cell))
        return least;
    plan_floor_times(walk->floor, &cell, walk->times);
    double bound_s = cell_bound_s(walk->floor, &cell, times, walk->ways, walk->forced_s);
    const bool is_cut = cell.high > cell.low * LONGEST_STEP && *walk->n_left > 0;
    if (bound_s < least && cell.first == cell.last) {
        /* To find paths takes as long as many cuts, which rule out most that is far from equal slices. */
        if (*paths == NULL && (!is_cut || cell.high <= cell.low * PATHS_STEP))
            *paths = plan_floor_paths_new(walk->floor, walk->memo, &cell);
        if (*paths != NULL)
            bound_s = real_max(bound_s, paths_bound_s(walk->floor, &cell, *paths, walk->forced_s));
    }
    if (bound_s >= least)
        return least;
    if (cell.first < cell.last) {
        PlanFloorCell few = cell, many = cell;
        few.last = (cell.first + cell.last) / 2;
        few.low = 1.0 / (double)few.last;
        many.first = few.last + 1;
        const double few_s = walk_least_s(walk, few, NULL, least);
        return walk->ends_below && few_s < least ? few_s : walk_least_s(walk, many, NULL, few_s);
    }
    if (is_cut) {
        PlanFloorCell longer = cell;
        (*walk->n_left)--;
        cell.high = longer.low = sqrt(cell.low * cell.high);
        const double shorter_s = walk_least_s(walk, cell, paths, least);
        return walk->ends_below && shorter_s < least ? shorter_s
                                                     : walk_least_s(walk, longer, paths, shorter_s);
    }
    return bound_s;
}

/* The work of all layers alone with @n slices or more.  An op takes longer than a thousand times its
 * rounding, as kernels take half a microsecond to start, and more of them round by more. */
static double
work_s(const Walk *walk, int64_t n_micro_batches, int64_t n)
{
    const PlanFloor *floor = walk->floor;
    const PlanFloorCell cell = {n_micro_batches, n, floor->request->seq_len, 0.0, 1.0};
    double kinds_s[MODEL_MAX_KINDS] = {0}, sum = 0.0;

    for (int k = 0; k < floor->cost->n_kinds; k++)
        kinds_s[k] = plan_floor_work_s(floor, &cell, k);
    for (int64_t r = 0; r < floor->point->degrees.pp; r++)
        for (int k = 0; k < floor->cost->n_kinds; k++)
            sum += floor->all[r][k] * kinds_s[k];
    return 0.999 * sum / (double)floor->point->degrees.pp;
}

/* The least over numbers of micro-batches, numbers of slices and longest slices, or @most_s.
 * @ends_below: or anything below @most_s. */
static double
least_s(PlanFloor *floor, PlanMemo *memo, double most_s, bool ends_below)
{
    const int64_t fewest = (floor->n_sequences + floor->group - 1) / floor->group;
    const int64_t most = plan_point_regroups(floor->request, floor->point)
                             ? floor->n_sequences - floor->group + 1
                             : fewest;
    g_autofree PlanFloorTimes(*times)[MODEL_MAX_KINDS] =
        g_malloc0((floor->n_places + 1) * sizeof *times);
    g_autofree Way *ways = g_new0(Way, (size_t)floor->point->degrees.pp + 1);
    g_autofree double *forced_s = g_new0(double, (size_t)floor->point->degrees.pp);
    int64_t n_left = MAX_LONGEST;
    Walk walk = {floor, memo, times, ways, forced_s, &n_left, ends_below};
    double least = most_s;

    for (int64_t m = fewest; m <= most; m++)
        for (int64_t n = 2; n <= floor->request->seq_len; n *= 2) {
            const int64_t last = MIN(2 * n - 1, floor->request->seq_len);
            if (work_s(&walk, m, n) >= least)
                break;
            least = walk_least_s(&walk, (PlanFloorCell){m, n, last, 1.0 / (double)last, 1.0}, NULL,
                                 least);
            if (ends_below && least < most_s)
                return least;
        }
    return least;
}

/* --- public --- */

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
    const double end_s = plan_floor_init(&floor, asked, &bytes);
    plan_floor_set_group(&floor, asked->memo, group, false);
    g_autofree PlanFloorTimes(*times)[MODEL_MAX_KINDS] =
        g_malloc0((floor.n_places + 1) * sizeof *times);
    g_autofree Way *ways = g_new0(Way, (size_t)pp + 1);
    plan_floor_times(&floor, cell, times);
    g_autofree double *forced_s = g_new0(double, (size_t)pp);
    const PlanFloorTimes(*known)[MODEL_MAX_KINDS] = (const PlanFloorTimes(*)[MODEL_MAX_KINDS])times;
    double bound_s = cell_bound_s(&floor, cell, known, ways, forced_s);
    g_autoptr(PlanFloorPaths) paths = isinf(bound_s) || cell->first < cell->last
                                          ? NULL
                                          : plan_floor_paths_new(&floor, asked->memo, cell);
    if (paths != NULL) {
        double pb = paths_bound_s(&floor, cell, paths, forced_s);
        bound_s = real_max(bound_s, pb);
    }
    plan_floor_clear(&floor);
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
    const double end_s = plan_floor_init(&floor, asked, &bytes);
    const double most_s = most_ns == INT64_MAX ? INFINITY : units_s_from_ns(most_ns) - end_s;
    double least = most_s;
    for (int i = 0; i < n_groups; i++) {
        /* Rough prices rule out most of what is above. */
        if (!isinf(least)) {
            plan_floor_set_group(&floor, asked->memo, groups[i], true);
            if (least_s(&floor, asked->memo, least, true) >= least)
                continue;
        }
        plan_floor_set_group(&floor, asked->memo, groups[i], false);
        least = least_s(&floor, asked->memo, least, false);
    }
    plan_floor_clear(&floor);
    if (least >= most_s)
        return most_ns;
    return units_ns_from_s(least + end_s);
}
