#include "planner/bounds/floor_table.h"

#include <math.h>
#include <string.h>

#include "base/parallel.h"
#include "base/real.h"
#include "profiles/cost/cost.h"
#include "profiles/workload/ops.h"

/* Intervals of rows end where a small tile's rows do, and are a share of the rows before them: of few
 * rows a small one, since collectives and traffic grow with each row, and smaller where most slices are; of many
 * one of whole tiles. */
#define TILE_ROWS 64
#define FEW_ROWS 1024
#define FEW_FRACTION 48
#define SOME_FRACTION 128
#define MANY_FRACTION 160
#define N_PASSES PLAN_FLOOR_PASSES
/* Intervals that are one in a rough table. */
#define ROUGH 8

static const ProfilePass passes[N_PASSES] = {PROFILE_PASS_FORWARD, PROFILE_PASS_BACKWARD};

/* --- prices of slices --- */

/* Of the devices of one kind of nodes. */
typedef struct {
    ProfileAttentionFloor attention[MODEL_MAX_KINDS][N_PASSES]; /* of one whole sequence */
    double added_s[MODEL_MAX_KINDS]; /* PlanFloorPass.added_s of a backward */
    /* (owned) [(interval * kinds of layers + kind) * N_PASSES + pass] what a layer takes at the least on
     * the interval's rows: at the first of them */
    ProfileSliceFloor *layers;
} Prices;

/* Intervals follow each other from row 1 on, however many rows are asked about, so those of large
 * micro-batches go on where those of small ones end.  A segment has the intervals that begin below one
 * sequence, the next one those below two, then four, and so on. */
typedef struct {
    guint n_kinds;    /* of nodes */
    int32_t n_layers; /* kinds of layers */
    guint n_intervals;
    int64_t
        *ends;   /* (owned) [interval] its last row; the first one begins where the segment does */
    int64_t end; /* of the last interval; where the segment begins if it has none */
    Prices kinds[];
} Segment;

typedef struct {
    PlanMemo *memo;
    const PlanRequest *request;
    const PlanPoint *point;
    int64_t rows;               /* of a table: at the most; of a segment: its number */
    const ProfileGroup *groups; /* (nullable) of layers; NULL: the nearest there are of each kind */
    bool is_rough;
    bool is_ends; /* of embedding and head, in place of the kinds of layers */
} Question;

typedef struct {
    PlanMemoKey memo;
    int64_t tp, cp, ep, sequence_parallel, recompute, rows, is_table, is_rough, is_ends, has_groups;
    ProfileGroup groups[MODEL_GROUP_N];
} Key;

static void
segment_free(gpointer data)
{
    Segment *segment = data;

    for (guint i = 0; i < segment->n_kinds; i++)
        g_free(segment->kinds[i].layers);
    g_free(segment->ends);
    g_free(segment);
}

/* Bytes per weight for adding up the gradients of @n ops; those that products may add are not told apart. */
static double
accumulate_bytes(const Question *asked, double n)
{
    const PlanConventions *conventions = &asked->request->conventions;
    const bool shares = asked->point->sequence_parallel;

    return plan_framework_fuses_accumulation(conventions, shares, true) ||
                   plan_framework_fuses_accumulation(conventions, shares, false)
               ? 0.0
               : workload_accumulate_bytes(asked->request->dtype, conventions, false, n);
}

/* Kinds of layers, or ends. */
static int32_t
n_kinds(const Question *asked)
{
    return asked->is_ends ? PLAN_FLOOR_ENDS : model_n_kinds(asked->request->arch);
}

/* The question about one sequence of a layer of kind @k, or of end @k, at device @first. */
static ProfileQuery
query_of(const Question *asked, int64_t first, int k)
{
    const PlanRequest *request = asked->request;
    PlanLayerShape shape = plan_point_layer_shape(asked->point);

    shape.micro_batch = 1;
    ProfileQuery query = plan_layer_query(request, &shape, first);
    if (asked->groups != NULL)
        memcpy(query.groups, asked->groups, sizeof query.groups);
    query.part = !asked->is_ends             ? MODEL_PART_LAYER
                 : k == PLAN_FLOOR_EMBEDDING ? MODEL_PART_EMBEDDING
                                             : MODEL_PART_HEAD;
    query.layer = asked->is_ends ? 0 : MAX(0, model_first_of_kind(request->arch, k));
    query.accumulate_bytes_per_weight = accumulate_bytes(asked, 2.0);
    return query;
}

/* By how much less two ops than any number of them add up of their gradients, in each of their backwards.  It
 * is linear in the bytes, and these are in the share of the ops that are not the first one. */
static double
added_s(const Question *asked, const ProfileQuery *query)
{
    const Profile *profile = asked->request->profile;
    ProfileQuery four = *query;

    four.shape.tokens = 1;
    const ProfileSliceFloors few = profile_cost_slice_floors(profile, &four);
    four.accumulate_bytes_per_weight = accumulate_bytes(asked, 4.0);
    const ProfileSliceFloors more = profile_cost_slice_floors(profile, &four);
    return 2.0 * real_max(0.0, more.backward.device_s - few.backward.device_s) * (1.0 - 1e-9);
}

/* Where the interval after @begin rows ends. */
static int64_t
interval_end(int64_t begin)
{
    const int64_t tiles =
        (begin / TILE_ROWS + MAX(1, begin / MANY_FRACTION / TILE_ROWS)) * TILE_ROWS;

    return MIN(tiles, begin + MAX(1, begin / (begin < FEW_ROWS ? FEW_FRACTION : SOME_FRACTION)));
}

/* How many intervals a thread prices at a time. */
#define PRICED_AT_ONCE 4

/* Intervals whose prices do not depend on each other. */
typedef struct {
    const Question *asked;
    const Segment *segment;
    const ProfileSliceFloor *known; /* (nullable) of every interval number a multiple of ROUGH */
    int64_t begin;                  /* rows after which the first interval begins */
    ProfileQuery queries[MODEL_MAX_KINDS];
    ProfileSliceFloor *layers; /* Prices.layers */
} Pricing;

/* ParallelFunc: prices the PRICED_AT_ONCE intervals from number @piece times as many on. */
static void
price_intervals(int64_t piece, void *user_data)
{
    const Pricing *pricing = user_data;
    const Segment *segment = pricing->segment;
    const guint first = (guint)piece * PRICED_AT_ONCE;

    for (guint at = first; at < MIN(first + PRICED_AT_ONCE, segment->n_intervals); at++) {
        const size_t n = (size_t)segment->n_layers * N_PASSES;
        if (pricing->known != NULL && at % ROUGH == 0) {
            memcpy(&pricing->layers[at * n], &pricing->known[at / ROUGH * n],
                   n * sizeof *pricing->layers);
            continue;
        }
        for (int32_t k = 0; k < segment->n_layers; k++) {
            ProfileQuery query = pricing->queries[k];
            query.shape.tokens = (at == 0 ? pricing->begin : segment->ends[at - 1]) + 1;
            const ProfileSliceFloors floors =
                profile_cost_slice_floors(pricing->asked->request->profile, &query);
            ProfileSliceFloor *layer =
                &pricing->layers[(at * (guint)segment->n_layers + (guint)k) * N_PASSES];
            layer[0] = floors.forward;
            layer[1] = floors.backward;
        }
    }
}

/* Prices the @segment's intervals, which begin after @begin rows, at device @first.  @rough: (nullable) has some
 * of them. */
static void
fill_prices(const Question *asked, const Segment *segment, int64_t begin, int64_t first,
            const Prices *rough, Prices *prices)
{
    const int64_t n_pieces = (segment->n_intervals + PRICED_AT_ONCE - 1) / PRICED_AT_ONCE;
    Pricing pricing = {.asked = asked,
                       .segment = segment,
                       .known = rough == NULL ? NULL : rough->layers,
                       .begin = begin};

    for (int k = 0; k < segment->n_layers; k++) {
        pricing.queries[k] = query_of(asked, first, k);
        prices->added_s[k] = added_s(asked, &pricing.queries[k]);
        for (int i = 0; i < N_PASSES; i++) {
            prices->attention[k][i] = profile_cost_sliced_attention_floor(
                asked->request->profile, &pricing.queries[k], passes[i]);
        }
    }
    pricing.layers = prices->layers = g_new(
        ProfileSliceFloor, (size_t)segment->n_intervals * (size_t)segment->n_layers * N_PASSES);
    parallel_each(n_pieces, asked->request->threads, price_intervals, &pricing);
}

static Key
key_of(const Question *asked, bool is_table)
{
    const PlanDegrees *d = &asked->point->degrees;
    Key key = {
        .memo = PLAN_MEMO_KEY(Key, PLAN_MEMO_FLOOR),
        .tp = d->tp,
        .cp = d->cp,
        .ep = d->ep,
        .sequence_parallel = asked->point->sequence_parallel,
        .recompute = asked->request->recompute,
        .rows = asked->rows,
        .is_table = is_table,
        .is_rough = asked->is_rough,
        .is_ends = asked->is_ends,
        .has_groups = asked->groups != NULL,
    };

    if (asked->groups != NULL)
        memcpy(key.groups, asked->groups, sizeof key.groups);
    else
        plan_layer_groups(asked->request, d, key.groups);
    return key;
}

/* Below how many rows the intervals of segment number @segment begin. */
static int64_t
segment_rows(const PlanRequest *request, int64_t segment)
{
    return request->seq_len << segment;
}

static void *make_segment(const void *data);

/* (borrowed from the memo) the segment of that number. */
static const Segment *
segment_of(const Question *asked, int64_t number, bool is_rough)
{
    Question question = *asked;

    question.rows = number;
    question.is_rough = is_rough;
    const Key key = key_of(&question, false);
    return plan_memo_get(asked->memo, &key.memo, make_segment, &question, segment_free);
}

/* PlanMemoMakeFunc. */
static void *
make_segment(const void *data)
{
    const Question *asked = data;
    const ModelCluster *cluster = asked->request->profile->cluster;
    const int64_t begin =
        asked->rows == 0 ? 0 : segment_of(asked, asked->rows - 1, asked->is_rough)->end;
    const Segment *rough = asked->is_rough ? NULL : segment_of(asked, asked->rows, true);
    const int64_t last = segment_rows(asked->request, asked->rows);
    Segment *segment = g_malloc0(sizeof(Segment) + cluster->nodes->len * sizeof(Prices));
    GArray *ends = g_array_new(FALSE, FALSE, sizeof(int64_t));
    int64_t first = 0;

    segment->n_kinds = cluster->nodes->len;
    segment->n_layers = n_kinds(asked);
    segment->end = begin;
    while (segment->end < last) {
        for (int i = 0; i < (asked->is_rough ? ROUGH : 1) && segment->end < last; i++)
            segment->end = interval_end(segment->end);
        g_array_append_val(ends, segment->end);
    }
    segment->n_intervals = ends->len;
    segment->ends = (int64_t *)(void *)g_array_free(ends, FALSE);
    for (guint i = 0; i < cluster->nodes->len; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        fill_prices(asked, segment, begin, first, rough == NULL ? NULL : &rough->kinds[i],
                    &segment->kinds[i]);
        first += nodes->n_devices * nodes->n_nodes;
    }
    return segment;
}

/* --- hulls --- */

static double
corner_rows(const PlanFloorTable *table, guint corner)
{
    return corner == 0 ? 0.0 : (double)table->ends[corner - 1];
}

static double
corner_s(const PlanFloorCurve *curve, guint corner)
{
    /* NOLINTNEXTLINE(clang-analyzer-core.uninitialized.UndefReturn): set_pass() fills as many as there are intervals, and there is one */
    return curve->first_s[corner == 0 ? 0 : corner - 1];
}

/* Whether corner @b lies on or above the line from corner @a to corner @c. */
static bool
is_above(const PlanFloorTable *table, const PlanFloorCurve *curve, guint a, guint b, guint c)
{
    const double left = corner_s(curve, b) - corner_s(curve, a);
    const double right = corner_s(curve, c) - corner_s(curve, b);

    return left * (corner_rows(table, c) - corner_rows(table, b)) >=
           right * (corner_rows(table, b) - corner_rows(table, a));
}

/* Finds the corner before each one.  Invariant: those before @c are known, and each hull ends in its own
 * corner. */
static void
set_hulls(const PlanFloorTable *table, PlanFloorCurve *curve)
{
    g_autofree guint *depth = g_new0(guint, table->n_intervals + 1);

    /* Intervals are a share of the rows before them, so that there are some ten thousand at the most. */
    g_assert(table->n_intervals < G_MAXUINT16);
    curve->before = g_new0(guint16, table->n_intervals + 1);
    curve->jump = g_new0(guint16, table->n_intervals + 1);
    for (guint c = 1; c <= table->n_intervals; c++) {
        guint b = c - 1;
        while (b > 0 && is_above(table, curve, curve->before[b], b, c))
            b = curve->before[b];
        const guint near = curve->jump[b], far = curve->jump[near];
        curve->before[c] = (guint16)b;
        depth[c] = depth[b] + 1;
        /* Jumps are as long as the two before them together, where these are equal: any corner is reached in
         * a number of jumps that grows with the logarithm  [Myers 1983, an applicative random-access
         * stack]. */
        curve->jump[c] = (guint16)(depth[b] - depth[near] == depth[near] - depth[far] ? far : b);
    }
}

/* A piece of a hull: from corner @before, which lies at fewer rows, to corner @corner. */
typedef struct {
    guint before, corner;
} Piece;

/* The piece with @rows of the hull of all up to @most_rows; its last one if that has fewer rows. */
static Piece
piece_of(const PlanFloorTable *table, const PlanFloorCurve *curve, double rows, double most_rows)
{
    const double last = (double)table->ends[table->n_intervals - 1];
    guint corner = plan_floor_interval(table, (int64_t)ceil(real_min(most_rows, last))) + 1;

    while (corner_rows(table, curve->before[corner]) > rows) {
        const guint jump = curve->jump[corner];
        corner = corner_rows(table, jump) > rows ? jump : curve->before[corner];
    }
    return (Piece){curve->before[corner], corner};
}

/* Times by rows on the line through a piece. */
static double
piece_slope(const PlanFloorTable *table, const PlanFloorCurve *curve, Piece piece)
{
    return (corner_s(curve, piece.corner) - corner_s(curve, piece.before)) /
           (corner_rows(table, piece.corner) - corner_rows(table, piece.before));
}

double
plan_floor_average_s(const PlanFloorTable *table, const PlanFloorCurve *curve, double rows,
                     double most_rows)
{
    const Piece piece = piece_of(table, curve, rows, most_rows);

    if (rows >= corner_rows(table, piece.corner))
        return corner_s(curve, piece.corner);
    return corner_s(curve, piece.before) +
           piece_slope(table, curve, piece) * (rows - corner_rows(table, piece.before));
}

double
plan_floor_more_s(const PlanFloorTable *table, const PlanFloorCurve *curve, double rows,
                  double least_rows, double most_rows, double each_s)
{
    Piece piece = piece_of(table, curve, rows, most_rows);
    double at =
        real_min(rows, corner_rows(table, piece.corner)); /* where (H + each_s) / rows is least */

    /* As long as it falls with the rows' number, which it does where the line meets row 0 below 0. */
    while (at > least_rows &&
           corner_s(curve, piece.before) + each_s <
               piece_slope(table, curve, piece) * corner_rows(table, piece.before)) {
        at = real_max(least_rows, corner_rows(table, piece.before));
        piece = (Piece){curve->before[piece.before], piece.before};
    }
    return (plan_floor_average_s(table, curve, at, most_rows) + each_s) * (rows / at);
}

/* --- tables --- */

static void
table_free(gpointer data)
{
    PlanFloorTable *table = data;

    for (guint i = 0; i < table->n_kinds; i++)
        for (int32_t k = 0; k < table->n_layers; k++)
            for (int pass = 0; pass < N_PASSES; pass++) {
                PlanFloorPass *one = &table->kinds[i].passes[k][pass];
                g_free(one->device.first_s);
                g_free(one->device.before);
                g_free(one->device.jump);
                g_free(one->host.first_s);
                g_free(one->host.jump);
                g_free(one->host.before);
            }
    g_free(table->ends);
    g_free(table->kinds);
    g_free(table);
}

/* The segments of a table, in order. */
typedef struct {
    const Segment *segments[64]; /* (borrowed) */
    int n;
} Segments;

/* One pass, with what the request has its backward compute again. */
static void
set_pass(const Question *asked, const Segments *all, const PlanFloorTable *table, guint nodes,
         int k, int pass, PlanFloorPass *one)
{
    const PlanRequest *request = asked->request;
    const int recompute = asked->is_ends ? PLAN_RECOMPUTE_NONE : request->recompute;
    const bool all_again = pass == 1 && recompute == PLAN_RECOMPUTE_FULL &&
                           plan_full_repeats_all(&request->conventions);
    const bool core_again =
        pass == 1 && recompute == PLAN_RECOMPUTE_SELECTIVE &&
        (plan_framework_modules(&request->conventions) >> PLAN_MODULE_CORE_ATTENTION & 1);
    const ProfileAttentionFloor *attention = all->segments[0]->kinds[nodes].attention[k];
    guint at = 0;

    one->added_s = pass == 1 ? all->segments[0]->kinds[nodes].added_s[k] : 0.0;
    one->contexts_s = attention[pass].contexts_s;
    one->attention_s = attention[pass].beside_rows_s + (all_again    ? attention[0].beside_rows_s
                                                        : core_again ? attention[0].all_s
                                                                     : 0.0);
    one->device.first_s = g_new(double, table->n_intervals);
    one->host.first_s = g_new(double, table->n_intervals);
    for (int i = 0; i < all->n; i++) {
        const Segment *segment = all->segments[i];
        for (guint j = 0; j < segment->n_intervals && at < table->n_intervals; j++, at++) {
            const ProfileSliceFloor *layer =
                &segment->kinds[nodes].layers[(j * (guint)segment->n_layers + (guint)k) * N_PASSES];
            one->device.first_s[at] = layer[pass].device_s + (all_again ? layer[0].device_s : 0.0);
            one->host.first_s[at] = layer[pass].host_s + (all_again ? layer[0].host_s : 0.0);
        }
    }
    set_hulls(table, &one->device);
    set_hulls(table, &one->host);
}

/* PlanMemoMakeFunc. */
static void *
make_table(const void *data)
{
    const Question *asked = data;
    PlanFloorTable *table = g_new0(PlanFloorTable, 1);
    GArray *ends = g_array_new(FALSE, FALSE, sizeof(int64_t));
    Segments all = {.n = 0};
    int64_t rows = 0; /* that the intervals so far have */

    /* No interval goes beyond the segment in which the rows end: bounds of small micro-batches do not
     * look at the rows of larger ones. */
    while (rows < asked->rows) {
        const Segment *segment = segment_of(asked, all.n, asked->is_rough);
        const int64_t last = segment_rows(asked->request, all.n);
        all.segments[all.n++] = segment;
        for (guint i = 0; i < segment->n_intervals && rows < asked->rows; i++) {
            rows = last >= asked->rows ? MIN(segment->ends[i], last) : segment->ends[i];
            g_array_append_val(ends, rows);
        }
    }
    g_assert(all.n > 0);
    table->n_kinds = all.segments[0]->n_kinds;
    table->n_layers = all.segments[0]->n_layers;
    table->n_intervals = ends->len;
    table->ends = (int64_t *)(void *)g_array_free(ends, FALSE);
    table->kinds = g_new0(PlanFloorKind, table->n_kinds);
    for (guint i = 0; i < table->n_kinds; i++)
        for (int32_t k = 0; k < table->n_layers; k++)
            for (int pass = 0; pass < N_PASSES; pass++)
                set_pass(asked, &all, table, i, k, pass, &table->kinds[i].passes[k][pass]);
    return table;
}

const PlanFloorTable *
plan_floor_table(PlanMemo *memo, const PlanRequest *request, const PlanPoint *point, int64_t rows,
                 const ProfileGroup *groups, bool is_rough)
{
    const Question question = {memo, request, point, rows, groups, is_rough, false};
    const Key key = key_of(&question, true);

    return plan_memo_get(memo, &key.memo, make_table, &question, table_free);
}

const PlanFloorTable *
plan_floor_ends_table(PlanMemo *memo, const PlanRequest *request, const PlanPoint *point,
                      int64_t rows, const ProfileGroup *groups)
{
    const Question question = {memo, request, point, rows, groups, false, true};
    const Key key = key_of(&question, true);

    return plan_memo_get(memo, &key.memo, make_table, &question, table_free);
}

guint
plan_floor_interval(const PlanFloorTable *table, int64_t rows)
{
    guint low = 0, high = table->n_intervals - 1; /* the interval is in [low, high] */

    while (low < high) {
        const guint middle = (low + high) / 2;
        if (table->ends[middle] >= rows)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}
