#include "planner/bounds/floor_table.h"

#include "profiles/cost/cost.h"
#include "profiles/workload/ops.h"

/* Intervals of rows end where a small tile's rows do, and are a share of the rows before them: of few
 * rows a small one, since collectives and traffic grow with each row; of many one of whole tiles. */
#define TILE_ROWS 64
#define FEW_FRACTION 48
#define MANY_FRACTION 160
#define N_PASSES PLAN_FLOOR_PASSES

static const ProfilePass passes[N_PASSES] = {PROFILE_PASS_FORWARD, PROFILE_PASS_BACKWARD};

/* --- prices of slices --- */

/* What a layer takes at the least on (the end of the interval before, end] rows: at the first. */
typedef struct {
    int64_t end;
    ProfileSliceFloor passes[MODEL_MAX_KINDS][N_PASSES];
} Interval;

/* Of the devices of one kind of nodes. */
typedef struct {
    double attention_s[MODEL_MAX_KINDS][N_PASSES]; /* of one whole sequence, at the least */
    GArray *intervals;                             /* (owned) of Interval */
} Prices;

typedef struct {
    guint n_kinds;
    Prices kinds[];
} AllPrices;

typedef struct {
    PlanMemo *memo;
    const PlanRequest *request;
    const PlanPoint *point;
    int64_t rows; /* at the most */
} Question;

typedef struct {
    PlanMemoKey memo;
    int64_t tp, cp, ep, sequence_parallel, recompute, rows, is_table;
    ProfileGroup groups[MODEL_GROUP_N];
} Key;

static void
prices_free(gpointer data)
{
    AllPrices *prices = data;

    for (guint i = 0; i < prices->n_kinds; i++)
        g_clear_pointer(&prices->kinds[i].intervals, g_array_unref);
    g_free(prices);
}

/* The question about one sequence of @layer at device @first. */
static ProfileQuery
query_of(const Question *asked, int64_t first, int64_t layer)
{
    const PlanRequest *request = asked->request;
    const PlanConventions *conventions = &request->conventions;
    PlanLayerShape shape = plan_point_layer_shape(asked->point);

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

/* Where the interval after @begin rows ends. */
static int64_t
interval_end(int64_t begin)
{
    const int64_t tiles =
        (begin / TILE_ROWS + MAX(1, begin / MANY_FRACTION / TILE_ROWS)) * TILE_ROWS;

    return MIN(tiles, begin + MAX(1, begin / FEW_FRACTION));
}

static void
fill_prices(const Question *asked, int64_t first, Prices *prices)
{
    const ModelArch *arch = asked->request->arch;
    const int32_t n_kinds = model_n_kinds(arch);
    ProfileQuery queries[MODEL_MAX_KINDS];
    Interval one = {0};

    for (int k = 0; k < n_kinds; k++) {
        queries[k] = query_of(asked, first, MAX(0, model_first_of_kind(arch, k)));
        for (int i = 0; i < N_PASSES; i++) {
            prices->attention_s[k][i] = profile_cost_sliced_attention_floor_s(
                asked->request->profile, &queries[k], passes[i]);
        }
    }
    prices->intervals = g_array_new(FALSE, FALSE, sizeof(Interval));
    for (int64_t begin = 0; begin < asked->rows; begin = one.end) {
        one.end = MIN(asked->rows, interval_end(begin));
        for (int k = 0; k < n_kinds; k++) {
            queries[k].shape.tokens = begin + 1;
            const ProfileSliceFloors floors =
                profile_cost_slice_floors(asked->request->profile, &queries[k]);
            one.passes[k][0] = floors.forward;
            one.passes[k][1] = floors.backward;
        }
        g_array_append_val(prices->intervals, one);
    }
}

/* PlanMemoMakeFunc. */
static void *
make_prices(const void *data)
{
    const Question *asked = data;
    const ModelCluster *cluster = asked->request->profile->cluster;
    AllPrices *prices = g_malloc0(sizeof(AllPrices) + cluster->nodes->len * sizeof(Prices));
    int64_t first = 0;

    prices->n_kinds = cluster->nodes->len;
    for (guint i = 0; i < cluster->nodes->len; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        fill_prices(asked, first, &prices->kinds[i]);
        first += nodes->n_devices * nodes->n_nodes;
    }
    return prices;
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
    };

    plan_layer_groups(asked->request, d, key.groups);
    return key;
}

/* Of up to the next power of two of sequences, so that few prices do for all micro-batches. */
static const AllPrices *
prices_of(const Question *asked)
{
    Question question = *asked;

    question.rows = asked->request->seq_len;
    while (question.rows < asked->rows)
        question.rows *= 2;
    const Key key = key_of(&question, false);
    return plan_memo_get(asked->memo, &key.memo, make_prices, &question, prices_free);
}

/* --- hulls --- */

/* Adds a corner on the right of all others. */
static void
hull_add(PlanFloorHull *hull, double rows, double seconds)
{
    while (hull->n >= 2) {
        const PlanFloorCorner *a = &hull->corners[hull->n - 2], *b = &hull->corners[hull->n - 1];
        if ((b->seconds - a->seconds) * (rows - b->rows) <
            (seconds - b->seconds) * (b->rows - a->rows))
            break;
        hull->n--;
    }
    if (hull->n == hull->room) {
        hull->room = MAX(16, 2 * hull->room);
        hull->corners = g_renew(PlanFloorCorner, hull->corners, hull->room);
    }
    hull->corners[hull->n++] = (PlanFloorCorner){rows, seconds};
}

double
plan_floor_hull_at(const PlanFloorHull *hull, double rows)
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
    const PlanFloorCorner *a = &hull->corners[low], *b = &hull->corners[high];
    return a->seconds + (b->seconds - a->seconds) * ((rows - a->rows) / (b->rows - a->rows));
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
                g_free(one->device.corners);
                g_free(one->host.corners);
                g_free(one->device_s);
                g_free(one->host_s);
            }
    g_free(table->ends);
    g_free(table->kinds);
    g_free(table);
}

/* One pass, with what the request has its backward compute again. */
static void
set_pass(const PlanRequest *request, const Prices *prices, guint n, int k, int pass,
         PlanFloorPass *one)
{
    const int recompute = request->recompute;
    const bool all_again = pass == 1 && recompute == PLAN_RECOMPUTE_FULL &&
                           plan_full_repeats_all(&request->conventions);
    const bool core_again =
        pass == 1 && recompute == PLAN_RECOMPUTE_SELECTIVE &&
        (plan_framework_modules(&request->conventions) >> PLAN_MODULE_CORE_ATTENTION & 1);

    one->attention_s =
        prices->attention_s[k][pass] + (all_again || core_again ? prices->attention_s[k][0] : 0.0);
    one->device_s = g_new(double, n);
    one->host_s = g_new(double, n);
    for (guint at = 0; at < n; at++) {
        const Interval *interval = &g_array_index(prices->intervals, Interval, at);
        const ProfileSliceFloor *here = &interval->passes[k][pass];
        const ProfileSliceFloor *forward = &interval->passes[k][0];
        one->device_s[at] = here->device_s + (all_again ? forward->device_s : 0.0);
        one->host_s[at] = here->host_s + (all_again ? forward->host_s : 0.0);
        if (at == 0) {
            hull_add(&one->device, 0.0, one->device_s[at]);
            hull_add(&one->host, 0.0, one->host_s[at]);
        }
        hull_add(&one->device, (double)interval->end, one->device_s[at]);
        hull_add(&one->host, (double)interval->end, one->host_s[at]);
    }
}

/* PlanMemoMakeFunc. */
static void *
make_table(const void *data)
{
    const Question *asked = data;
    const AllPrices *prices = prices_of(asked);
    const GArray *intervals = prices->kinds[0].intervals;
    PlanFloorTable *table = g_new0(PlanFloorTable, 1);

    table->n_kinds = prices->n_kinds;
    table->n_layers = model_n_kinds(asked->request->arch);
    table->ends = g_new(int64_t, intervals->len);
    table->kinds = g_new0(PlanFloorKind, prices->n_kinds);
    while (table->n_intervals == 0 || table->ends[table->n_intervals - 1] < asked->rows) {
        table->ends[table->n_intervals] =
            g_array_index(intervals, Interval, table->n_intervals).end;
        table->n_intervals++;
    }
    for (guint i = 0; i < table->n_kinds; i++)
        for (int32_t k = 0; k < table->n_layers; k++)
            for (int pass = 0; pass < N_PASSES; pass++)
                set_pass(asked->request, &prices->kinds[i], table->n_intervals, k, pass,
                         &table->kinds[i].passes[k][pass]);
    return table;
}

const PlanFloorTable *
plan_floor_table(PlanMemo *memo, const PlanRequest *request, const PlanPoint *point, int64_t rows)
{
    const Question question = {memo, request, point, rows};
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
