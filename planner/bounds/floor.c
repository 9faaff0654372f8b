#include "planner/bounds/floor.h"

#include <math.h>
#include <string.h>

#include "base/units.h"
#include "planner/bounds/point_bound.h"
#include "planner/bounds/sketch.h"
#include "profiles/cost/cost.h"
#include "profiles/workload/ops.h"

/* Intervals of rows: of a small tile's, and from so many of them on of a share. */
#define ROWS_STEP 64
#define STEP_FRACTION 160
/* Numbers of slices that are looked at together: from so many on two. */
#define RANGE_FRACTION 16
/* Kinds of layers, and of passes. */
#define N_LAYERS MODEL_MAX_KINDS
#define N_PASSES 2

static const ProfilePass passes[N_PASSES] = {PROFILE_PASS_FORWARD, PROFILE_PASS_BACKWARD};

/* --- one layer --- */

/* What a layer takes at the least on (the end of the interval before, end] rows: at the first. */
typedef struct {
    int64_t end;
    ProfileSliceFloor passes[N_LAYERS][N_PASSES];
} Interval;

/* Of the devices of one kind of nodes. */
typedef struct {
    double attention_s[N_LAYERS][N_PASSES]; /* of one whole sequence, at the least */
    GArray *intervals;                      /* (owned) of Interval */
} Table;

typedef struct {
    guint n_kinds;
    Table kinds[];
} Tables;

typedef struct {
    const PlanRequest *request;
    const PlanLayerShape *shape;
    int64_t most_rows;
} Question;

static void
tables_free(gpointer data)
{
    Tables *tables = data;

    for (guint i = 0; i < tables->n_kinds; i++)
        g_clear_pointer(&tables->kinds[i].intervals, g_array_unref);
    g_free(tables);
}

/* The question about one sequence of @layer at device @first. */
static ProfileQuery
query_of(const Question *asked, int64_t first, int64_t layer)
{
    const PlanRequest *request = asked->request;
    const PlanConventions *conventions = &request->conventions;
    PlanLayerShape shape = *asked->shape;

    shape.micro_batch = 1;
    ProfileQuery query = plan_layer_query(request, &shape, first);
    query.part = MODEL_PART_LAYER;
    query.layer = layer;
    /* Two slices make two gradients; those that products may add are not told apart. */
    if (!plan_framework_fuses_accumulation(conventions, shape.sequence_parallel, true) &&
        !plan_framework_fuses_accumulation(conventions, shape.sequence_parallel, false))
        query.accumulate_bytes_per_weight =
            workload_accumulate_bytes(request->dtype, conventions, false, 2.0);
    return query;
}

static void
fill_table(const Question *asked, int64_t first, Table *table)
{
    const ModelArch *arch = asked->request->arch;
    const int32_t n_kinds = model_n_kinds(arch);
    ProfileQuery queries[N_LAYERS];
    Interval one = {0};

    for (int k = 0; k < n_kinds; k++) {
        queries[k] = query_of(asked, first, MAX(0, model_first_of_kind(arch, k)));
        for (int i = 0; i < N_PASSES; i++) {
            table->attention_s[k][i] = profile_cost_sliced_attention_floor_s(
                asked->request->profile, &queries[k], passes[i]);
        }
    }
    table->intervals = g_array_new(FALSE, FALSE, sizeof(Interval));
    for (int64_t begin = 0; begin < asked->most_rows; begin = one.end) {
        one.end =
            MIN(asked->most_rows, begin + MAX(1, begin / STEP_FRACTION / ROWS_STEP) * ROWS_STEP);
        for (int k = 0; k < n_kinds; k++)
            for (int i = 0; i < N_PASSES; i++) {
                queries[k].shape.tokens = begin + 1;
                one.passes[k][i] =
                    profile_cost_slice_floor(asked->request->profile, &queries[k], passes[i]);
            }
        g_array_append_val(table->intervals, one);
    }
}

/* PlanMemoMakeFunc. */
static void *
make_tables(const void *data)
{
    const Question *asked = data;
    const ModelCluster *cluster = asked->request->profile->cluster;
    Tables *tables = g_malloc0(sizeof(Tables) + cluster->nodes->len * sizeof(Table));
    int64_t first = 0;

    tables->n_kinds = cluster->nodes->len;
    for (guint i = 0; i < cluster->nodes->len; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        fill_table(asked, first, &tables->kinds[i]);
        first += nodes->n_devices * nodes->n_nodes;
    }
    return tables;
}

typedef struct {
    PlanMemoKey memo;
    int64_t tp, cp, ep, sequence_parallel, recompute, most_rows;
    ProfileGroup groups[MODEL_GROUP_N];
} Key;

/* Of up to the next power of two of @rows, so that few tables do for all micro-batches. */
static const Tables *
tables_of(PlanMemo *memo, const PlanRequest *request, const PlanPoint *point, int64_t rows)
{
    const PlanDegrees *d = &point->degrees;
    const PlanLayerShape shape = plan_point_layer_shape(point);
    Question question = {request, &shape, request->seq_len};
    Key key = {
        .memo = PLAN_MEMO_KEY(Key, PLAN_MEMO_FLOOR),
        .tp = d->tp,
        .cp = d->cp,
        .ep = d->ep,
        .sequence_parallel = point->sequence_parallel,
        .recompute = request->recompute,
    };

    while (question.most_rows < rows)
        question.most_rows *= 2;
    key.most_rows = question.most_rows;
    plan_layer_groups(request, d, key.groups);
    return plan_memo_get(memo, &key.memo, make_tables, &question, tables_free);
}

/* --- one point --- */

/* What all slicings of a point have in common. */
typedef struct {
    const PlanRequest *request;
    const PlanPoint *point;
    const PlanLayerCost *cost;
    const Tables *tables;
    int64_t group;      /* sequences of the largest micro-batch */
    int64_t pass_batch; /* sequences at least of the micro-batch whose longest slice passes */
    double ends;        /* the share of all tokens that the first and the last micro-batch have */
    /* Messages of both passes over the boundaries before each rank: latencies, and per row. */
    double *message_s, *message_rate_s; /* (owned) [rank] */
    int32_t *kind_of_rank;              /* (owned) the kind of nodes that it lies on; -1: several */
    int64_t *as_long; /* (owned) [rank] where a path to it begins: first_as_long() */
    /* What a rank has too much if it recomputes no more than it must, by what it holds: */
    double *state_bytes, *kept_bytes; /* (owned) [rank] always, and of the largest micro-batch */
    double *least_share;              /* (owned) [rank] of its layers that one of its chunks has */
    double memory_bytes;              /* the limit; INFINITY: none */
    double saving_rate;               /* plan_point_sliced_rate() */
    bool ranks_alike;                 /* groups of all ranks lie alike */
    bool ends_hide;                   /* gathers of ZeRO 3 may hide behind embedding and head */
} Floor;

/*
 * A pass takes at least each of these, which are linear in what the device does, d, the host, h, and
 * ZeRO 3's collectives, g, that hide behind it and slow it down by their share i:
 *   PIECE_DEVICE   d + i g
 *   PIECE_HOST     h
 *   PIECE_GATHERS  i d + g
 */
typedef enum {
    PIECE_DEVICE,
    PIECE_HOST,
    PIECE_GATHERS,
    N_PIECES
} Piece;

typedef struct {
    double of[N_PIECES];
} Pieces;

static Pieces
pieces_of(const Floor *floor, const Interval *at, int k, int i)
{
    const PlanPoint *point = floor->point;
    const int recompute = floor->request->recompute;
    const double share = floor->request->profile->parameters.interference_fraction;
    const ProfileSliceFloor *forward = &at->passes[k][0];
    const double gathers_s = point->gather_s[k] + (i == 0 ? 0.0 : point->scatter_s[k]);
    ProfileSliceFloor one = at->passes[k][i];

    if (i == 1 && recompute == PLAN_RECOMPUTE_FULL &&
        plan_full_repeats_all(&floor->request->conventions)) {
        one.device_s += forward->device_s;
        one.host_s += forward->host_s;
    }
    return (Pieces){{
        [PIECE_DEVICE] = one.device_s + share * gathers_s,
        [PIECE_HOST] = one.host_s,
        [PIECE_GATHERS] = gathers_s == 0.0 ? 0.0 : share * one.device_s + gathers_s,
    }};
}

/* The largest of @pieces, @scale times as long, with @attention_s on the device. */
static double
with_attention_s(const Floor *floor, const Pieces *pieces, double scale, double attention_s,
                 bool gathers)
{
    const double share = floor->request->profile->parameters.interference_fraction;
    const double seconds =
        fmax(scale * pieces->of[PIECE_DEVICE] + attention_s, scale * pieces->of[PIECE_HOST]);

    return gathers && pieces->of[PIECE_GATHERS] > 0.0
               ? fmax(seconds, scale * pieces->of[PIECE_GATHERS] + share * attention_s)
               : seconds;
}

/* Of one layer on one kind of nodes, for one interval of the longest slice; [1] with the gathers
 * that may hide behind ends. */
typedef struct {
    double work_s[2]; /* of all tokens of the iteration */
    double pass_s[2]; /* of the longest slice, in both passes */
} LayerTimes;

/* The lower convex hull of what a piece takes by rows: an interval has the time of its first row up to
 * its last one. */
typedef struct {
    double rows, seconds;
} Corner;

typedef struct {
    guint n, room;
    Corner *corners; /* (owned) from left to right */
} Hull;

typedef struct {
    Hull of[N_LAYERS][N_PASSES][N_PIECES];
} Hulls;

static void
hulls_clear(Hulls *hulls)
{
    for (size_t i = 0; i < sizeof *hulls / sizeof(Hull); i++)
        g_free(((Hull *)hulls)[i].corners);
}

/* Adds a corner on the right of all others. */
static void
hull_add(Hull *hull, double rows, double seconds)
{
    while (hull->n >= 2) {
        const Corner *a = &hull->corners[hull->n - 2], *b = &hull->corners[hull->n - 1];
        if ((b->seconds - a->seconds) * (rows - b->rows) <
            (seconds - b->seconds) * (b->rows - a->rows))
            break;
        hull->n--;
    }
    if (hull->n == hull->room) {
        hull->room = MAX(16, 2 * hull->room);
        hull->corners = g_renew(Corner, hull->corners, hull->room);
    }
    hull->corners[hull->n++] = (Corner){rows, seconds};
}

/* What one op takes at the least if many of them have @rows on average. */
static double
hull_at(const Hull *hull, double rows)
{
    guint low = 0, high = hull->n - 1;

    if (rows >= hull->corners[high].rows)
        return hull->corners[high].seconds;
    while (high - low > 1) {
        const guint middle = (low + high) / 2;
        if (hull->corners[middle].rows <= rows)
            low = middle;
        else
            high = middle;
    }
    const Corner *a = &hull->corners[low], *b = &hull->corners[high];
    return a->seconds + (b->seconds - a->seconds) * ((rows - a->rows) / (b->rows - a->rows));
}

static void
add_corners(const Floor *floor, const Interval *at, Hulls *hulls)
{
    for (int k = 0; k < floor->cost->n_kinds; k++)
        for (int i = 0; i < N_PASSES; i++) {
            const Pieces pieces = pieces_of(floor, at, k, i);
            for (int j = 0; j < N_PIECES; j++) {
                Hull *hull = &hulls->of[k][i][j];
                if (hull->n == 0)
                    hull_add(hull, 0.0, pieces.of[j]);
                hull_add(hull, (double)at->end, pieces.of[j]);
            }
        }
}

/* Attention of a pass over one sequence, with what the request has it compute again. */
static double
attention_s(const Floor *floor, const Table *table, int k, int i)
{
    const int recompute = floor->request->recompute;
    const bool again =
        (recompute == PLAN_RECOMPUTE_FULL && plan_full_repeats_all(&floor->request->conventions)) ||
        (recompute == PLAN_RECOMPUTE_SELECTIVE &&
         (plan_framework_modules(&floor->request->conventions) >> PLAN_MODULE_CORE_ATTENTION & 1));

    return table->attention_s[k][i] + (i == 1 && again ? table->attention_s[k][0] : 0.0);
}

/* Of @k'th kind of layers at @rows of the longest slice, in @n_ops slices of all micro-batches at
 * the least.  More slices take no less: a hull that begins above 0 is less per row on more rows. */
static LayerTimes
layer_times(const Floor *floor, const Table *table, int k, const Interval *at, int64_t rows,
            const Hulls *hulls, double n_ops)
{
    const PlanPoint *point = floor->point;
    const double length = (double)floor->request->seq_len;
    const double sequences = (double)(point->n_micro_batches * point->micro_batch);
    const double tokens = (double)rows / (double)floor->pass_batch;
    /* Of the pairs of a query and a key of a whole sequence those of a slice without context; with a
     * window it is a larger share. */
    const double pairs =
        (double)floor->pass_batch * tokens * (tokens + 1.0) / (length * (length + 1.0));
    LayerTimes times = {0};

    for (int i = 0; i < N_PASSES; i++) {
        const Pieces here = pieces_of(floor, at, k, i);
        const double all_s = attention_s(floor, table, k, i);
        Pieces average;
        for (int j = 0; j < N_PIECES; j++)
            average.of[j] = hull_at(&hulls->of[k][i][j], sequences * length / n_ops);
        for (int gathers = 0; gathers < 2; gathers++) {
            times.work_s[gathers] +=
                with_attention_s(floor, &average, n_ops, sequences * all_s, gathers == 1);
            times.pass_s[gathers] +=
                with_attention_s(floor, &here, 1.0, pairs * all_s, gathers == 1);
        }
    }
    return times;
}

/* The least of the kinds of nodes that rank @r lies on, of one kind of layers. */
static LayerTimes
rank_times(const Floor *floor, const LayerTimes (*times)[N_LAYERS], int64_t r, int k)
{
    const int32_t kind = floor->kind_of_rank[r];

    if (kind >= 0)
        return times[kind][k];
    LayerTimes least = times[0][k];
    for (guint i = 1; i < floor->tables->n_kinds; i++) {
        for (int j = 0; j < 2; j++) {
            least.work_s[j] = fmin(least.work_s[j], times[i][k].work_s[j]);
            least.pass_s[j] = fmin(least.pass_s[j], times[i][k].pass_s[j]);
        }
    }
    return least;
}

/* Both passes of an end of the model over all tokens. */
static double
end_part_s(const Floor *floor, PlanPart part)
{
    const PlanPartCost *cost = &floor->cost->parts[part];

    return (double)floor->point->n_micro_batches *
           (cost->sliced_forward_s + cost->sliced_backward_s);
}

/* The layers of ranks. */
typedef struct {
    const double (*first)[N_LAYERS];  /* [rank] of its first stage */
    const double (*all)[N_LAYERS];    /* [rank] of all of its stages */
    const double (*before)[N_LAYERS]; /* [rank] of the first stages of the ranks before */
} Layers;

/* Whether an op takes as long on both ranks. */
static bool
are_alike(const Floor *floor, int64_t q, int64_t r)
{
    return floor->ranks_alike && floor->kind_of_rank[q] == floor->kind_of_rank[r] &&
           floor->kind_of_rank[r] >= 0;
}

/* The first rank like @r whose first stage has at least as many layers of each kind. */
static int64_t
first_as_long(const Floor *floor, const Layers *layers, int64_t r)
{
    for (int64_t q = 0; q < r; q++) {
        bool is_as_long = are_alike(floor, q, r);
        for (int k = 0; k < floor->cost->n_kinds && is_as_long; k++)
            is_as_long = layers->first[q][k] >= layers->first[r][k];
        if (is_as_long)
            return q;
    }
    return r;
}

/* What a rank does, and what its first stage takes for a slice. */
typedef struct {
    double work_s, longer_s; /* of all tokens; of them, what rank 0's first stage has less */
    double pass_s;           /* of the longest slice, after the ranks before */
} RankTimes;

static RankTimes
times_of_rank(const Floor *floor, const Layers *layers, const LayerTimes (*times)[N_LAYERS],
              int64_t r)
{
    const PlanDegrees *d = &floor->point->degrees;
    const bool is_end = r == 0 || r == d->pp - 1;
    const int gathers = floor->ends_hide && is_end ? 0 : 1;
    RankTimes rank = {0};

    for (int k = 0; k < floor->cost->n_kinds; k++) {
        const LayerTimes one = rank_times(floor, times, r, k);
        rank.work_s += layers->all[r][k] * one.work_s[gathers];
        rank.pass_s += layers->first[r][k] * one.pass_s[gathers];
        rank.longer_s += fmax(0.0, layers->first[r][k] - layers->first[0][k]) * one.work_s[gathers];
    }
    if (r == 0)
        rank.work_s += end_part_s(floor, PLAN_PART_EMBEDDING);
    if (r == d->pp - 1)
        rank.work_s += (d->vpp == 1 ? 1.0 - floor->ends : 1.0) * end_part_s(floor, PLAN_PART_HEAD);
    return rank;
}

/* At most rank_bound_s(): the last rank alone, on one kind of nodes. */
static double
last_rank_s(const Floor *floor, const Layers *layers, const LayerTimes (*times)[N_LAYERS],
            int64_t rows)
{
    const int64_t r = floor->point->degrees.pp - 1, q = floor->as_long[r];
    const RankTimes rank = times_of_rank(floor, layers, times, r);
    double all = floor->message_s[r] + (double)rows * floor->message_rate_s[r];
    double from_q = all - floor->message_s[q] - (double)rows * floor->message_rate_s[q];

    if (floor->tables->n_kinds > 1)
        return 0.0;
    for (int k = 0; k < floor->cost->n_kinds; k++) {
        const double pass_s = fmin(times[0][k].pass_s[0], times[0][k].pass_s[1]);
        all += layers->before[r][k] * pass_s;
        from_q += (layers->before[r][k] - layers->before[q][k]) * pass_s;
    }
    return rank.work_s + fmax(all - floor->ends * rank.longer_s, from_q);
}

/* How sequences are cut. */
typedef struct {
    double longest;   /* at the most so much of a sequence is in one slice */
    int64_t n_slices; /* at the most */
    bool several;     /* there is more than one micro-batch, and all are of one size */
} Cut;

/* How many chunks of a micro-batch rank @r holds at its first backward, besides a whole one: it has
 * run so many forwards of the next one's slices as the ranks after it need, in 1F1B of slices once, and
 * with chunks twice.  What is not among the first slices is among the others, of which none is
 * longer than the longest. */
static double
held_besides(const Floor *floor, const Cut *cut, int64_t r)
{
    const PlanDegrees *d = &floor->point->degrees;
    const int64_t n = (d->pp - 1 - r) * (d->vpp > 1 ? 2 : 1), whole = n / cut->n_slices;
    const double rest = (double)(cut->n_slices - n % cut->n_slices);

    if (!cut->several)
        return 0.0;
    /* The second micro-batch may be the last one. */
    if (whole >= d->vpp)
        return (double)d->vpp;
    return (double)whole + fmax(0.0, 1.0 - rest * cut->longest);
}

/* What rank @r recomputes at the least of all tokens, so that what it holds fits.  Each chunk may
 * have its own recompute kind, and none is held of more than two micro-batches here. */
static double
forced_s(const Floor *floor, const Cut *cut, int64_t r)
{
    const PlanPoint *point = floor->point;
    const double besides = held_besides(floor, cut, r);
    const double held = 1.0 + besides * floor->least_share[r];
    const double excess =
        (floor->state_bytes[r] + held * floor->kept_bytes[r]) * (1.0 - 1e-9) - floor->memory_bytes;

    if (excess <= 0.0 || floor->saving_rate == 0.0)
        return 0.0;
    return excess / (1.0 + fmin(1.0, besides)) / floor->saving_rate *
           ((double)(point->n_micro_batches * point->micro_batch) / (double)floor->group);
}

/* Whether some rank would have to recompute less if sequences were cut into more slices. */
static bool
more_would_help(const Floor *floor, const Cut *cut)
{
    for (int64_t r = 0; r < floor->point->degrees.pp; r++)
        if (held_besides(floor, cut, r) > 0.0 && forced_s(floor, cut, r) > 0.0)
            return true;
    return false;
}

/* The largest over ranks, for one interval.  @shortest: of slices of one row. */
static double
rank_bound_s(const Floor *floor, const Layers *layers, const LayerTimes (*times)[N_LAYERS],
             const LayerTimes (*shortest)[N_LAYERS], int64_t rows, const Cut *cut)
{
    const int64_t pp = floor->point->degrees.pp;
    g_autofree double *before = g_new0(double, 2 * (size_t)(pp + 1));
    double *least = before + pp + 1;
    double most = 0.0;

    for (int64_t r = 0; r < pp; r++) {
        const RankTimes rank = times_of_rank(floor, layers, times, r);
        const RankTimes one = times_of_rank(floor, layers, shortest, r);
        const double messages = floor->message_s[r] + (double)rows * floor->message_rate_s[r];
        const int64_t q = floor->as_long[r];
        before[r] += messages, least[r] += floor->message_s[r];
        most = fmax(most, rank.work_s + forced_s(floor, cut, r) +
                              fmax(before[r] - floor->ends * rank.longer_s,
                                   before[r] - before[q] + least[q]));
        before[r + 1] = before[r] - messages + rank.pass_s;
        least[r + 1] = least[r] - floor->message_s[r] + fmin(one.pass_s, rank.pass_s);
    }
    return most;
}

/* What layers take in one interval of the longest slice, with those of the shortest. */
typedef struct {
    const Floor *floor;
    const Layers *layers;
    Hulls *hulls;                     /* (owned) [kind of nodes] */
    LayerTimes (*times)[N_LAYERS];    /* (owned) [kind of nodes] */
    LayerTimes (*shortest)[N_LAYERS]; /* (owned) [kind of nodes] of slices of one row */
    int64_t length;                   /* rows of the longest slice at the most */
    double n_micro_batches;           /* at the least */
    bool several;                     /* of Cut */
} Walk;

/* (borrowed) The times of the interval @at, with all rows from there on as many, of sequences in
 * @n_slices. */
static const LayerTimes (*walk_times(const Walk *walk, guint at, int64_t n_slices))[N_LAYERS]
{
    const Floor *floor = walk->floor;
    const GArray *intervals = floor->tables->kinds[0].intervals;
    const int64_t begin = at == 0 ? 0 : g_array_index(intervals, Interval, at - 1).end;

    for (guint i = 0; i < floor->tables->n_kinds; i++) {
        const Table *table = &floor->tables->kinds[i];
        for (int k = 0; k < floor->cost->n_kinds; k++)
            walk->times[i][k] =
                layer_times(floor, table, k, &g_array_index(table->intervals, Interval, at),
                            begin + 1, &walk->hulls[i], walk->n_micro_batches * (double)n_slices);
    }
    return (const LayerTimes(*)[N_LAYERS])walk->times;
}

/* The least of the intervals from @first to before @last, unless it is above @least.  More slices
 * take longer, but less has to be recomputed to hold them: numbers of slices are looked at in
 * ranges, with the work of the fewest and the memory of the most. */
static double
walk_least_s(const Walk *walk, guint first, guint last, double least)
{
    const Floor *floor = walk->floor;
    const GArray *intervals = floor->tables->kinds[0].intervals;
    const int64_t rows = (first == 0 ? 0 : g_array_index(intervals, Interval, first - 1).end) + 1;
    const int64_t end = MIN(walk->length, g_array_index(intervals, Interval, last - 1).end);
    Cut cut = {.longest = (double)end / (double)walk->length, .several = walk->several};
    double best = INFINITY;

    for (int64_t n = MAX(2, (walk->length + end - 1) / end); n <= floor->request->seq_len;
         n = cut.n_slices + 1) {
        const LayerTimes(*times)[N_LAYERS] = walk_times(walk, first, n);
        cut.n_slices = MIN(n + n / RANGE_FRACTION, floor->request->seq_len);
        if (last_rank_s(floor, walk->layers, times, rows) >= least)
            break;
        best = fmin(best, rank_bound_s(floor, walk->layers, times,
                                       (const LayerTimes(*)[N_LAYERS])walk->shortest, rows, &cut));
        if (best < least && last - first > 1)
            break;
        if (!more_would_help(floor, &cut))
            break;
    }
    if (best >= least || last - first == 1)
        return fmin(best, least);
    const guint middle = first + (last - first) / 2;
    return walk_least_s(walk, first, middle, walk_least_s(walk, middle, last, least));
}

/* The least over the longest slices of a sequence, or @most_s if it is not less. Many intervals as one are bounded first: most are ruled out by that. */
static double
least_s(const Floor *floor, const Layers *layers, double most_s)
{
    const guint n_kinds = floor->tables->n_kinds;
    const GArray *intervals = floor->tables->kinds[0].intervals;
    const int64_t sequences = floor->point->n_micro_batches * floor->point->micro_batch;
    g_autofree Hulls *hulls = g_new0(Hulls, n_kinds);
    g_autofree LayerTimes(*times)[N_LAYERS] = g_malloc0(n_kinds * sizeof *times);
    g_autofree LayerTimes(*shortest)[N_LAYERS] = g_malloc0(n_kinds * sizeof *shortest);
    const int64_t n_micro_batches = (sequences + floor->group - 1) / floor->group;
    const Walk walk = {
        .floor = floor,
        .layers = layers,
        .hulls = hulls,
        .times = times,
        .shortest = shortest,
        .length = floor->request->seq_len * floor->pass_batch,
        .n_micro_batches = (double)n_micro_batches,
        .several = sequences > floor->group && floor->group == floor->pass_batch,
    };
    guint n = 0;

    for (guint at = 0; at < intervals->len; at++) {
        const int64_t begin = at == 0 ? 0 : g_array_index(intervals, Interval, at - 1).end;
        if (begin < walk.length)
            n = at + 1;
        if (begin < floor->request->seq_len * floor->group)
            for (guint i = 0; i < n_kinds; i++)
                add_corners(floor, &g_array_index(floor->tables->kinds[i].intervals, Interval, at),
                            &hulls[i]);
    }
    memcpy(shortest, walk_times(&walk, 0, 2), n_kinds * sizeof *shortest);
    const double least = walk_least_s(&walk, 0, n, most_s);
    for (guint i = 0; i < n_kinds; i++)
        hulls_clear(&hulls[i]);
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

static void
set_kinds(Floor *floor)
{
    const ModelCluster *cluster = floor->request->profile->cluster;
    const ProfileMesh mesh = plan_layer_mesh(floor->request, &floor->point->degrees);
    const int64_t pp = floor->point->degrees.pp;

    floor->kind_of_rank = g_new0(int32_t, (size_t)pp);
    for (int64_t r = 0; r < pp && cluster->nodes->len > 1; r++) {
        const ProfileGroup stage = profile_group_of_rank(&mesh, PROFILE_GROUP_STAGE, r);
        int64_t begin = 0;
        int n = 0;
        for (guint i = 0; i < cluster->nodes->len; i++) {
            const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
            const int64_t end = begin + nodes->n_devices * nodes->n_nodes;
            if (profile_group_count(&stage, begin, end) > 0 && n++ == 0)
                floor->kind_of_rank[r] = (int32_t)i;
            begin = end;
        }
        if (n != 1)
            floor->kind_of_rank[r] = -1;
    }
}

/* --- memory --- */

/* What ranks hold, with the fastest recompute kind; @all: layers of each rank. */
static void
set_bytes(Floor *floor, const Layers *layers, const int64_t *counts, int64_t memory_bytes)
{
    const PlanPoint *point = floor->point;
    const int64_t pp = point->degrees.pp, n_stages = pp * point->degrees.vpp;
    const PlanSketchInput input = {.request = floor->request, .point = point, .cost = floor->cost};
    const int plain = plan_request_fastest_recompute(floor->request);
    const double part = (double)floor->group / (double)point->micro_batch;

    floor->state_bytes = g_new0(double, (size_t)pp);
    floor->kept_bytes = g_new0(double, (size_t)pp);
    floor->least_share = g_new0(double, (size_t)pp);
    floor->memory_bytes = memory_bytes == INT64_MAX ? INFINITY : (double)memory_bytes;
    floor->saving_rate = plan_point_sliced_rate(floor->request, floor->cost);
    for (int64_t k = 0, begin = 0; k < n_stages; begin += counts[k++]) {
        int64_t n[PLAN_PART_N] = {0};
        plan_layer_count(floor->request, begin, begin + counts[k], n);
        /* As in plan_point_set_group(). */
        const double kept = part * (1.0 - 1e-3) * (double)plan_sketch_kept(floor->cost, n, plain);
        floor->kept_bytes[k % pp] += kept;
        floor->least_share[k % pp] = k < pp ? kept : fmin(floor->least_share[k % pp], kept);
    }
    for (int64_t r = 0; r < pp; r++) {
        int64_t n[PLAN_PART_N] = {0};
        for (int i = 0; i < floor->cost->n_kinds; i++)
            n[i] = (int64_t)layers->all[r][i];
        floor->state_bytes[r] = (double)plan_sketch_state_bytes(&input, n) +
                                floor->request->profile->parameters.context_bytes;
        if (floor->kept_bytes[r] > 0.0)
            floor->least_share[r] /= floor->kept_bytes[r];
    }
}

/* --- public --- */

int64_t
plan_floor_ns(PlanMemo *memo, const PlanRequest *request, const PlanLayerCost *cost,
              const PlanPoint *point, int64_t group, const int64_t *counts, int64_t memory_bytes,
              int64_t most_ns)
{
    const int64_t pp = point->degrees.pp, n_stages = pp * point->degrees.vpp;

    if (request->profile->measurements->len > 0)
        return 0;
    Floor floor = {
        .request = request,
        .point = point,
        .cost = cost,
        .tables = tables_of(memo, request, point, group * request->seq_len),
        .group = group,
        .pass_batch = plan_point_regroups(request, point) ? 1 : group,
        .ends =
            fmin(1.0, 2.0 * (double)group / (double)(point->n_micro_batches * point->micro_batch)),
        .ranks_alike = plan_sketch_ranks_are_alike(request, &point->degrees),
        .ends_hide = plan_sketch_prefetch(request, cost) > 1,
    };
    g_autofree double(*first)[N_LAYERS] = g_malloc0((size_t)pp * sizeof *first);
    g_autofree double(*all)[N_LAYERS] = g_malloc0((size_t)pp * sizeof *all);
    g_autofree double(*before)[N_LAYERS] = g_malloc0((size_t)pp * sizeof *before);
    int64_t begin = 0;
    for (int64_t k = 0; k < n_stages; begin += counts[k++]) {
        int64_t n[PLAN_PART_N] = {0};
        plan_layer_count(request, begin, begin + counts[k], n);
        for (int i = 0; i < cost->n_kinds; i++) {
            all[k % pp][i] += (double)n[i];
            first[k % pp][i] += k < pp ? (double)n[i] : 0.0;
        }
    }
    for (int64_t r = 1; r < pp; r++)
        for (int i = 0; i < cost->n_kinds; i++)
            before[r][i] = before[r - 1][i] + first[r - 1][i];
    const Layers layers = {(const double(*)[N_LAYERS])first, (const double(*)[N_LAYERS])all,
                           (const double(*)[N_LAYERS])before};
    int64_t n[PLAN_PART_N] = {[PLAN_PART_EMBEDDING] = cost->n[PLAN_PART_EMBEDDING]};
    for (int i = 0; i < cost->n_kinds; i++)
        n[i] = (int64_t)all[0][i];
    const double end_s = plan_sketch_end_s(request, cost, point, n);
    set_messages(&floor);
    set_kinds(&floor);
    set_bytes(&floor, &layers, counts, memory_bytes);
    floor.as_long = g_new(int64_t, (size_t)pp);
    for (int64_t r = 0; r < pp; r++)
        floor.as_long[r] = first_as_long(&floor, &layers, r);
    /* A Workload rounds each op to the nanosecond: less than a thousandth, as kernels take longer
     * than half a microsecond to start. */
    const double most_s =
        most_ns == INT64_MAX ? INFINITY : (units_s_from_ns(most_ns) - end_s * (1.0 - 1e-9)) / 0.999;
    const double least = least_s(&floor, &layers, most_s);
    g_free(floor.message_s);
    g_free(floor.message_rate_s);
    g_free(floor.kind_of_rank);
    g_free(floor.as_long);
    g_free(floor.state_bytes);
    g_free(floor.kept_bytes);
    g_free(floor.least_share);
    if (least >= most_s)
        return most_ns;
    return isfinite(least) ? units_ns_from_s(0.999 * least + end_s * (1.0 - 1e-9)) : 0;
}
