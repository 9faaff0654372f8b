/*
 * Cells of numbers of slices and longest slices, the least bound first; floor_table.c has what layers
 * take, floor_memory.c what ranks hold.
 */
#include "planner/bounds/floor.h"

#include <math.h>
#include <string.h>

#include "base/units.h"
#include "planner/bounds/floor_memory.h"
#include "planner/bounds/floor_table.h"
#include "planner/bounds/point_bound.h"
#include "planner/bounds/rank_kinds.h"
#include "planner/bounds/sketch.h"
#include "profiles/cost/cost.h"
#include "profiles/workload/ops.h"

/* Kinds of layers, and of passes. */
#define N_LAYERS MODEL_MAX_KINDS
#define N_PASSES PLAN_FLOOR_PASSES
/* A range of longest slices is cut in two until its ends differ by less. */
#define LONGEST_STEP 1.1

/* What all slicings of a point have in common. */
typedef struct {
    const PlanRequest *request;
    const PlanPoint *point;
    const PlanLayerCost *cost;
    const PlanFloorTable *table;
    const PlanFloorMemory *memory;
    int64_t n_sequences; /* of a replica */
    int64_t group;       /* sequences of the largest micro-batch */
    double interference; /* of a hidden second */
    /* Layers of each rank's first stage, of all of its stages, and of the first stages of the ranks
     * before it: (owned) [rank][kind of layers]. */
    double (*first)[N_LAYERS], (*all)[N_LAYERS];
    double last[N_LAYERS]; /* of the last stage */
    /* Messages of both passes over the boundaries before each rank: latencies, and per row. */
    double *message_s, *message_rate_s; /* (owned) [rank] */
    /* Where ranks lie: on kinds of nodes, or, of one kind, in groups that do not lie alike. */
    GArray *places_groups;        /* (owned, nullable) plan_rank_places() */
    const PlanFloorKind **places; /* (owned) [place] what layers take there */
    guint n_places;
    int32_t *place_of_rank; /* (owned) -1: several */
    int64_t *as_long;       /* (owned) [rank] where a path to it begins: first_as_long() */
    bool ranks_alike;       /* groups of all ranks lie alike */
    bool ends_hide;         /* gathers of ZeRO 3 may hide behind embedding and head */
} Floor;

/* --- ops --- */

/* The largest of the pieces (floor_table.h) of an op whose device takes @device_s without attention. */
static double
op_s(const Floor *floor, double device_s, double host_s, double attention_s, double gathers_s)
{
    const double share = floor->interference;
    const double busy_s = device_s + attention_s;
    const double seconds = fmax(busy_s + share * gathers_s, host_s);

    return gathers_s > 0.0 ? fmax(seconds, share * busy_s + gathers_s) : seconds;
}

/* ZeRO 3's collectives in one op of a layer of kind @k. */
static double
gathers_s(const Floor *floor, int k, int pass)
{
    const PlanPoint *point = floor->point;

    return point->gather_s[k] + (pass == 0 ? 0.0 : point->scatter_s[k]);
}

/* Of ops of @rows on average, each with @attention of a whole sequence's; [1] with the gathers that
 * hide in them, [0] as if those hid behind embedding and head. */
static void
average_s(const Floor *floor, guint node, int k, int pass, double rows, double attention,
          double seconds[2])
{
    const PlanFloorPass *one = &floor->places[node]->passes[k][pass];
    const double device_s = plan_floor_hull_at(&one->device, rows);
    const double host_s = plan_floor_hull_at(&one->host, rows);
    const double g = gathers_s(floor, k, pass);

    seconds[1] = op_s(floor, device_s, host_s, attention * one->attention_s, g);
    seconds[0] =
        g == 0.0 ? seconds[1]
                 : fmax(device_s + attention * one->attention_s + floor->interference * g, host_s);
}

/* The same of one op of at least @rows. */
static void
single_s(const Floor *floor, guint node, int k, int pass, int64_t rows, double attention,
         double seconds[2])
{
    const PlanFloorPass *one = &floor->places[node]->passes[k][pass];
    const guint at = plan_floor_interval(floor->table, MAX(1, rows));
    const double g = gathers_s(floor, k, pass);

    seconds[1] = op_s(floor, one->device_s[at], one->host_s[at], attention * one->attention_s, g);
    seconds[0] =
        g == 0.0 ? seconds[1]
                 : fmax(one->device_s[at] + attention * one->attention_s + floor->interference * g,
                        one->host_s[at]);
}

/* --- cells --- */

typedef PlanFloorCell Cell;

/* What one layer takes in a cell at the least.  [gathers] as average_s(). */
typedef struct {
    double work_s[2];              /* of all tokens */
    double pass_s[N_PASSES][2];    /* of the slice that takes longest, in the first micro-batch */
    double group_s[N_PASSES][2];   /* the same in the first group, or, backward, in the last one */
    double longest_s[N_PASSES][2]; /* of the slice that has most tokens */
    double least_s[N_PASSES][2];   /* of a slice of one row */
    double largest_s[N_PASSES][2]; /* of the slice that takes longest, in the largest micro-batch */
} LayerTimes;

/* Sequences of the first and of the last micro-batch at the least: what all others leave them. */
static double
end_batch(const Floor *floor, const Cell *cell)
{
    return (double)MAX(1, floor->n_sequences - (cell->n_micro_batches - 1) * floor->group);
}

/* Micro-batches of the first group (forward) or of the last one (backward) at the least: a group has p
 * slices, the last one p - 1 (schedule/one_f_one_b.c). */
static int64_t
group_size(const Floor *floor, const Cell *cell, int pass)
{
    const int64_t m = cell->n_micro_batches, pp = floor->point->degrees.pp;
    const int64_t fixed = floor->request->group;

    if (fixed > 0)
        return pass == 0 || m % fixed == 0 ? MIN(m, fixed) : m % fixed;
    return MIN(m, (pp - pass + cell->last - 1) / cell->last);
}

/* Sequences of @n micro-batches at the least: what the others leave them. */
static double
group_batch(const Floor *floor, const Cell *cell, int64_t n)
{
    return (double)MAX(n, floor->n_sequences - (cell->n_micro_batches - n) * floor->group);
}

static LayerTimes
layer_times(const Floor *floor, guint node, int k, const Cell *cell)
{
    const double length = (double)floor->request->seq_len;
    const double sequences = (double)floor->n_sequences;
    const double n_ops = (double)cell->n_micro_batches * (double)cell->first;
    const double batch = end_batch(floor, cell), n = (double)cell->last;
    const double most = (double)floor->group;
    const double tokens = ceil(cell->low * length * (1.0 - 1e-9));
    /* Of the pairs of a query and a key of a whole sequence those of a slice without context; with a
     * window it is a larger share. */
    const double pairs = tokens * (tokens + 1.0) / (length * (length + 1.0));
    LayerTimes times = {0};

    for (int i = 0; i < N_PASSES; i++) {
        double one[2];
        average_s(floor, node, k, i, sequences * length / n_ops, sequences / n_ops, one);
        times.work_s[0] += n_ops * one[0];
        times.work_s[1] += n_ops * one[1];
        average_s(floor, node, k, i, batch * length / n, batch / n, times.pass_s[i]);
        const int64_t group = group_size(floor, cell, i);
        const double part = group_batch(floor, cell, group) / ((double)group * n);
        average_s(floor, node, k, i, part * length, part, times.group_s[i]);
        single_s(floor, node, k, i, (int64_t)(batch * tokens), batch * pairs, times.longest_s[i]);
        single_s(floor, node, k, i, 1, 0.0, times.least_s[i]);
        average_s(floor, node, k, i, most * length / n, most / n, times.largest_s[i]);
    }
    return times;
}

static void
take_least(LayerTimes *least, const LayerTimes *other)
{
    double *to = (double *)least;
    const double *from = (const double *)other;

    for (size_t i = 0; i < sizeof *least / sizeof(double); i++)
        to[i] = fmin(to[i], from[i]);
}

/* Of all places; the least of them comes last. */
static void
cell_times(const Floor *floor, const Cell *cell, LayerTimes (*times)[N_LAYERS])
{
    const guint n = floor->n_places;

    for (int k = 0; k < floor->cost->n_kinds; k++) {
        for (guint i = 0; i < n; i++) {
            times[i][k] = layer_times(floor, i, k, cell);
            if (i == 0)
                times[n][k] = times[0][k];
            else
                take_least(&times[n][k], &times[i][k]);
        }
    }
}

/* Both passes of an end of the model over all tokens. */
static double
end_part_s(const Floor *floor, PlanPart part)
{
    const PlanPartCost *cost = &floor->cost->parts[part];

    return (double)floor->point->n_micro_batches *
           (cost->sliced_forward_s + cost->sliced_backward_s);
}

/* Whether an op takes as long on both ranks. */
static bool
are_alike(const Floor *floor, int64_t q, int64_t r)
{
    return (floor->ranks_alike || floor->places_groups != NULL) &&
           floor->place_of_rank[q] == floor->place_of_rank[r] && floor->place_of_rank[r] >= 0;
}

/* The first rank like @r whose first stage has at least as many layers of each kind. */
static int64_t
first_as_long(const Floor *floor, int64_t r)
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

/* The way of a slice to a rank and back: forward, backward. */
typedef struct {
    double of[WAY_N][N_PASSES];
    double least[N_PASSES]; /* of any slice */
} Way;

static void
way_add(Way *way, const Floor *floor, const LayerTimes *times, const double *layers, int gathers)
{
    for (int k = 0; k < floor->cost->n_kinds; k++)
        for (int i = 0; i < N_PASSES; i++) {
            way->of[WAY_SLOWEST][i] += layers[k] * times[k].pass_s[i][gathers];
            way->of[WAY_LONGEST][i] += layers[k] * times[k].longest_s[i][gathers];
            way->of[WAY_GROUP][i] += layers[k] * times[k].group_s[i][gathers];
            way->least[i] += layers[k] * times[k].least_s[i][gathers];
        }
}

/* What all ranks of a cell have in common. */
typedef struct {
    double share
        [WAY_N]; /* of all tokens that come before the slice, forward or backward, at the most */
    double rows[WAY_N]; /* of messages of the slice, at the least on average */
    int n_ways;
} CellWays;

static CellWays
cell_ways(const Floor *floor, const Cell *cell)
{
    const double length = (double)floor->request->seq_len, n = (double)cell->last;
    const double batch = end_batch(floor, cell);
    const double share = (double)floor->group / (double)floor->n_sequences;
    const int64_t first = group_size(floor, cell, 0), last = group_size(floor, cell, 1);
    const double part = fmin(group_batch(floor, cell, first) / (double)first,
                             group_batch(floor, cell, last) / (double)last);

    return (CellWays){
        .share = {fmin(1.0, share), fmin(1.0, share), fmin(1.0, share * (double)MAX(first, last))},
        .rows = {batch * length / n, batch * length * cell->low, part * length / n},
        .n_ways = floor->point->degrees.vpp > 1 ? WAY_N : WAY_GROUP,
    };
}

/* What one rank idles at the least, of which @forced_s of its work is recompute. */
static double
idle_s(const Floor *floor, const CellWays *cell, const Way *ways, int64_t r, double longer_s,
       double forced_s)
{
    const Way *to_r = &ways[r], *to_q = &ways[floor->as_long[r]];
    const double latency = floor->message_s[r], latency_q = floor->message_s[floor->as_long[r]];
    const double rate = floor->message_rate_s[r];
    const double rate_q = floor->message_rate_s[floor->as_long[r]];
    double most = 0.0;

    for (int which = 0; which < cell->n_ways; which++) {
        const double *all = to_r->of[which], *begin = to_q->of[which];
        const double messages = latency + cell->rows[which] * rate;
        const double messages_q = messages - (latency_q + cell->rows[which] * rate_q) + latency_q;
        const double share = cell->share[which];
        double from_0[N_PASSES], from_q[N_PASSES];
        for (int i = 0; i < N_PASSES; i++) {
            from_0[i] = all[i];
            from_q[i] = all[i] - begin[i] + fmin(to_q->least[i], begin[i]);
        }
        const double late_s = fmax(from_0[0] + from_0[1] + messages - share * longer_s,
                                   from_q[0] + from_q[1] + messages_q);
        /* The last micro-batch's last slice may be short: then no recompute of the rank hides the
         * way back. */
        const double soon_s =
            fmax(from_0[0] - share * longer_s, from_q[0]) + fmin(to_r->least[1], all[1]) + latency;
        most = fmax(most, fmax(late_s - share * forced_s, soon_s));
    }
    return most;
}

/* The chain of stages of several chunks takes at least what its last stage does, and the way of a slice
 * through all stages before it and back; and the way of any slice of the largest micro-batch. */
static double
chain_s(const Floor *floor, const CellWays *cell, const LayerTimes *times)
{
    const int64_t last = floor->point->degrees.pp - 1;
    const double v = (double)floor->point->degrees.vpp;
    double work_s = 0.0, longer_s = 0.0, ways_s[3] = {0};

    for (int k = 0; k < floor->cost->n_kinds; k++) {
        double n = 0.0;
        for (int64_t r = 0; r <= last; r++)
            n += floor->all[r][k];
        work_s += floor->last[k] * times[k].work_s[0];
        longer_s += fmax(0.0, floor->last[k] - floor->first[0][k]) * times[k].work_s[0];
        for (int i = 0; i < N_PASSES; i++) {
            ways_s[0] += (n - floor->last[k]) * times[k].pass_s[i][0];
            ways_s[1] += (n - floor->last[k]) * times[k].longest_s[i][0];
            ways_s[2] += n * times[k].largest_s[i][0];
        }
    }
    work_s += (1.0 - cell->share[WAY_SLOWEST]) * end_part_s(floor, PLAN_PART_HEAD) -
              cell->share[WAY_SLOWEST] * longer_s;
    for (int i = 0; i < 3; i++)
        ways_s[i] +=
            v * (floor->message_s[last] +
                 cell->rows[MIN(i, 1)] * floor->message_rate_s[last] * (i < 2 ? 1.0 : 0.0));
    return fmax(work_s + fmax(ways_s[0], ways_s[1]), ways_s[2]);
}

/* The largest bound of any rank, and of the chain of stages.  @helps: (out) whether some rank would
 * recompute less if its longest slice were shorter. */
static double
cell_bound_s(const Floor *floor, const Cell *cell, const LayerTimes (*times)[N_LAYERS], Way *ways,
             bool *helps)
{
    const int64_t pp = floor->point->degrees.pp, vpp = floor->point->degrees.vpp;
    const guint n_places = floor->n_places;
    const CellWays common = cell_ways(floor, cell);
    PlanFloorCut cut = {cell->n_micro_batches, floor->n_sequences, floor->group, cell->last,
                        cell->high};
    double most = vpp > 1 ? chain_s(floor, &common, times[n_places]) : 0.0;

    ways[0] = (Way){0};
    *helps = false;
    for (int64_t r = 0; r < pp; r++) {
        const bool is_end = r == 0 || r == pp - 1;
        const int gathers = floor->ends_hide && is_end ? 0 : 1;
        const int32_t place = floor->place_of_rank[r];
        const LayerTimes *of = times[place >= 0 ? (guint)place : n_places];
        /* Rank 0 stands in for what r does before the slice as far as it takes as long. */
        const bool is_like_0 = r == 0 || are_alike(floor, 0, r);
        double work_s = 0.0, longer_s = 0.0;
        for (int k = 0; k < floor->cost->n_kinds; k++) {
            work_s += floor->all[r][k] * of[k].work_s[gathers];
            longer_s += fmax(0.0, floor->first[r][k] - (is_like_0 ? floor->first[0][k] : 0.0)) *
                        of[k].work_s[gathers];
        }
        if (r == 0)
            work_s += end_part_s(floor, PLAN_PART_EMBEDDING);
        if (r == pp - 1)
            work_s += (vpp == 1 ? 1.0 - common.share[WAY_SLOWEST] : 1.0) *
                      end_part_s(floor, PLAN_PART_HEAD);
        const double forced_s = plan_floor_forced_s(floor->memory, &cut, r);
        if (cell->high > cell->low * LONGEST_STEP && !*helps) {
            PlanFloorCut least = cut;
            least.longest = cell->low;
            *helps = plan_floor_forced_s(floor->memory, &least, r) > forced_s;
        }
        if (isinf(forced_s)) {
            most = INFINITY;
            continue;
        }
        most = fmax(most, work_s + forced_s + idle_s(floor, &common, ways, r, longer_s, forced_s));
        ways[r + 1] = ways[r];
        way_add(&ways[r + 1], floor, of, floor->first[r], gathers);
    }
    return most;
}

/* --- all cells --- */

typedef struct {
    const Floor *floor;
    LayerTimes (*times)[N_LAYERS]; /* (owned) [kind of nodes, and the least of all] */
    Way *ways;                     /* (owned) [rank + 1] */
} Walk;

/* The least of @cell, unless it is above @least: cuts it in two as long as it is below. */
static double
walk_least_s(const Walk *walk, Cell cell, double least)
{
    bool helps;

    if (cell.first > cell.last || cell.low > 1.0)
        return least;
    cell_times(walk->floor, &cell, walk->times);
    const double bound_s = cell_bound_s(
        walk->floor, &cell, (const LayerTimes(*)[N_LAYERS])walk->times, walk->ways, &helps);
    if (bound_s >= least)
        return least;
    if (cell.first < cell.last) {
        Cell few = cell, many = cell;
        few.last = (cell.first + cell.last) / 2;
        few.low = 1.0 / (double)few.last;
        many.first = few.last + 1;
        return walk_least_s(walk, many, walk_least_s(walk, few, least));
    }
    if (helps && cell.high > cell.low * LONGEST_STEP) {
        Cell longer = cell;
        cell.high = longer.low = sqrt(cell.low * cell.high);
        return walk_least_s(walk, longer, walk_least_s(walk, cell, least));
    }
    return bound_s;
}

/* The work of all layers alone with @n slices: more take no less. */
static double
work_s(const Walk *walk, int64_t n_micro_batches, int64_t n)
{
    const Floor *floor = walk->floor;
    const Cell cell = {n_micro_batches, n, n, 1.0 / (double)n, 1.0};
    double sum = 0.0;

    cell_times(floor, &cell, walk->times);
    for (int64_t r = 0; r < floor->point->degrees.pp; r++)
        for (int k = 0; k < floor->cost->n_kinds; k++)
            sum += floor->all[r][k] * walk->times[floor->n_places][k].work_s[0];
    return sum / (double)floor->point->degrees.pp;
}

/* The least over numbers of micro-batches, numbers of slices and longest slices, or @most_s. */
static double
least_s(const Floor *floor, double most_s)
{
    const int64_t fewest = (floor->n_sequences + floor->group - 1) / floor->group;
    const int64_t most = plan_point_regroups(floor->request, floor->point)
                             ? floor->n_sequences - floor->group + 1
                             : fewest;
    g_autofree LayerTimes(*times)[N_LAYERS] = g_malloc0((floor->n_places + 1) * sizeof *times);
    g_autofree Way *ways = g_new0(Way, (size_t)floor->point->degrees.pp + 1);
    const Walk walk = {floor, times, ways};
    double least = most_s;

    for (int64_t m = fewest; m <= most; m++)
        for (int64_t n = 2; n <= floor->request->seq_len; n *= 2) {
            const int64_t last = MIN(2 * n - 1, floor->request->seq_len);
            if (work_s(&walk, m, n) >= least)
                break;
            least = walk_least_s(&walk, (Cell){m, n, last, 1.0 / (double)last, 1.0}, least);
        }
    return least;
}

/* --- messages and places --- */

/* A message of @bytes between neighbours takes no less than its own latency and the rate of the
 * path, without what spreads it. */
static void
set_messages(Floor *floor)
{
    const PlanRequest *request = floor->request;
    const PlanDegrees *d = &floor->point->degrees;
    const ProfileMesh mesh = plan_layer_mesh(request, d);
    const bool whole = d->tp == 1 || floor->point->sequence_parallel;
    const bool shares = request->conventions.scatter_gather_p2p && !whole;
    const int64_t most = INT64_C(1) << 30;
    ModelShape shape = {.batch = 1,
                        .tokens = 1 << 20,
                        .tp = d->tp,
                        .cp = d->cp,
                        .ep = d->ep,
                        .sequence_parallel = floor->point->sequence_parallel,
                        .dtype = request->dtype};

    floor->message_s = g_new0(double, (size_t)d->pp);
    floor->message_rate_s = g_new0(double, (size_t)d->pp);
    if (request->conventions.broadcast_p2p && !whole)
        return;
    workload_set_conventions(&request->conventions, &request->profile->parameters, &shape);
    const double row_bytes = (double)model_boundary_bytes(request->arch, &shape) /
                             (double)shape.tokens / (shares ? (double)d->tp : 1.0) * (1.0 - 1e-6);
    for (int64_t r = 1; r < d->pp; r++) {
        const ProfileGroup pair = profile_group_pair(&mesh, r - 1, r);
        double latency_s = 0.0, rate_s = 0.0;
        for (int back = 0; back < 2; back++) {
            const ProfileGroup senders =
                profile_group_of_rank(&mesh, PROFILE_GROUP_STAGE, back ? r : r - 1);
            const int64_t a = back ? profile_group_last(&pair) : pair.first;
            const int64_t b = back ? pair.first : profile_group_last(&pair);
            const double empty_s = profile_cost_p2p_s(request->profile, 0, a, b, &senders);
            latency_s += empty_s;
            rate_s += (profile_cost_p2p_s(request->profile, most, a, b, &senders) - empty_s) /
                      (double)most * row_bytes;
        }
        floor->message_s[r] = floor->message_s[r - 1] + latency_s;
        floor->message_rate_s[r] = floor->message_rate_s[r - 1] + rate_s;
    }
}

/* --- public --- */

static void
floor_clear(Floor *floor)
{
    g_free(floor->first);
    g_free(floor->all);
    g_free(floor->message_s);
    g_free(floor->message_rate_s);
    g_clear_pointer(&floor->places_groups, g_array_unref);
    g_free(floor->places);
    g_free(floor->place_of_rank);
    g_free(floor->as_long);
}

static void
set_layers(Floor *floor, const int64_t *counts)
{
    const int64_t pp = floor->point->degrees.pp, n_stages = pp * floor->point->degrees.vpp;

    floor->first = g_malloc0((size_t)pp * sizeof *floor->first);
    floor->all = g_malloc0((size_t)pp * sizeof *floor->all);
    for (int64_t k = 0, begin = 0; k < n_stages; begin += counts[k++]) {
        int64_t n[PLAN_PART_N] = {0};
        plan_layer_count(floor->request, begin, begin + counts[k], n);
        for (int i = 0; i < floor->cost->n_kinds; i++) {
            floor->all[k % pp][i] += (double)n[i];
            floor->first[k % pp][i] += k < pp ? (double)n[i] : 0.0;
            floor->last[i] = (double)n[i];
        }
    }
}

/* Sets all of @floor but its group and its table, from what it borrows; returns what rank 0 does after its
 * last op. */
static double
floor_init(Floor *floor, const PlanFloorAsked *asked, const PlanFloorMemory *memory)
{
    const PlanRequest *request = asked->request;
    const PlanPoint *point = asked->point;
    const PlanLayerCost *cost = asked->cost;
    const int64_t pp = point->degrees.pp;
    int64_t n[PLAN_PART_N] = {[PLAN_PART_EMBEDDING] = cost->n[PLAN_PART_EMBEDDING]};

    *floor = (Floor){
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
    set_messages(floor);
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
    return plan_sketch_end_s(request, cost, point, n) * (1.0 - 1e-9);
}

/* The largest micro-batch has @group sequences. */
static void
set_group(Floor *floor, PlanMemo *memo, int64_t group)
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

/* A Workload rounds each op to the nanosecond: less than a thousandth, as kernels take longer than half a
 * microsecond to start. */
#define ROUNDED 0.999

int64_t
plan_floor_cell_ns(const PlanFloorAsked *asked, int64_t group, const PlanFloorCell *cell)
{
    const int64_t pp = asked->point->degrees.pp;
    g_auto(PlanFloorMemory) bytes = {0};
    Floor floor;
    bool helps;

    if (asked->request->profile->measurements->len > 0)
        return 0;
    plan_floor_memory_init(&bytes, asked->request, asked->cost, asked->point, asked->counts,
                           asked->memory_bytes);
    const double end_s = floor_init(&floor, asked, &bytes);
    set_group(&floor, asked->memo, group);
    g_autofree LayerTimes(*times)[N_LAYERS] = g_malloc0((floor.n_places + 1) * sizeof *times);
    g_autofree Way *ways = g_new0(Way, (size_t)pp + 1);
    cell_times(&floor, cell, times);
    const double bound_s =
        cell_bound_s(&floor, cell, (const LayerTimes(*)[N_LAYERS])times, ways, &helps);
    floor_clear(&floor);
    return isinf(bound_s) ? INT64_MAX : units_ns_from_s(ROUNDED * bound_s + end_s);
}

int64_t
plan_floor_ns(const PlanFloorAsked *asked, const int64_t *groups, int n_groups, int64_t most_ns)
{
    g_auto(PlanFloorMemory) bytes = {0};
    Floor floor;

    if (asked->request->profile->measurements->len > 0)
        return 0;
    plan_floor_memory_init(&bytes, asked->request, asked->cost, asked->point, asked->counts,
                           asked->memory_bytes);
    const double end_s = floor_init(&floor, asked, &bytes);
    const double most_s =
        most_ns == INT64_MAX ? INFINITY : (units_s_from_ns(most_ns) - end_s) / ROUNDED;
    double least = most_s;
    for (int i = 0; i < n_groups; i++) {
        set_group(&floor, asked->memo, groups[i]);
        least = least_s(&floor, least);
    }
    floor_clear(&floor);
    if (least >= most_s)
        return most_ns;
    return units_ns_from_s(ROUNDED * least + end_s);
}
