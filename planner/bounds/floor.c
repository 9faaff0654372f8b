#include "planner/bounds/floor.h"

#include <math.h>

#include "base/units.h"
#include "profiles/cost/cost.h"
#include "profiles/workload/ops.h"

/* Intervals of lengths: of a small tile's rows, and from so many of them on of a share. */
#define TOKENS_STEP 64
#define STEP_FRACTION 32

/* F of an interval: (end of the one before, end]. */
typedef struct {
    int64_t end;
    double floor_s; /* at its first token */
} Interval;

typedef struct {
    const PlanRequest *request;
    const PlanPoint *point;
    GArray *intervals; /* (owned) of Interval, to all tokens of a micro-batch */
} Floor;

/* --- one layer --- */

/* Both passes of @layer on @tokens at device @first. */
static double
passes_s(const Floor *floor, int64_t first, int64_t layer, int64_t tokens)
{
    const PlanRequest *request = floor->request;
    const PlanConventions *conventions = &request->conventions;
    const PlanLayerShape shape = {floor->point->degrees, 1, floor->point->sequence_parallel};
    ProfileQuery query = plan_layer_query(request, &shape, first);

    query.part = MODEL_PART_LAYER;
    query.layer = layer;
    query.shape.tokens = tokens;
    /* Two slices make two gradients; those that products may add are not told apart. */
    if (!plan_framework_fuses_accumulation(conventions, shape.sequence_parallel, true) &&
        !plan_framework_fuses_accumulation(conventions, shape.sequence_parallel, false))
        query.accumulate_bytes_per_weight =
            workload_accumulate_bytes(request->dtype, conventions, false, 2.0);
    const double forward_s =
        profile_cost_slice_floor_s(request->profile, &query, PROFILE_PASS_FORWARD);
    return forward_s * (request->recompute == PLAN_RECOMPUTE_FULL ? 2.0 : 1.0) +
           profile_cost_slice_floor_s(request->profile, &query, PROFILE_PASS_BACKWARD);
}

/* F(@tokens): the least of both kinds of layers and all kinds of nodes. */
static double
layer_s(const Floor *floor, int64_t tokens)
{
    const ModelCluster *cluster = floor->request->profile->cluster;
    const int64_t layers[] = {0, floor->request->arch->n_layers - 1};
    double least = INFINITY;
    int64_t first = 0;

    for (guint i = 0; i < cluster->nodes->len; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        for (size_t k = 0; k < G_N_ELEMENTS(layers); k++)
            if (k == 0 || model_layer_is_moe(floor->request->arch, layers[0]) !=
                              model_layer_is_moe(floor->request->arch, layers[1]))
                least = fmin(least, passes_s(floor, first, layers[k], tokens));
        first += nodes->n_devices * nodes->n_nodes;
    }
    return least;
}

static void
fill_intervals(Floor *floor)
{
    const int64_t most = floor->request->seq_len * floor->point->micro_batch;

    for (int64_t begin = 0; begin < most;) {
        const int64_t step = MAX(1, begin / STEP_FRACTION / TOKENS_STEP) * TOKENS_STEP;
        const Interval one = {MIN(most, begin + step), layer_s(floor, begin + 1)};
        g_array_append_val(floor->intervals, one);
        begin = one.end;
    }
}

/* The first interval that has @tokens, from @from on. */
static guint
find(const Floor *floor, guint from, int64_t tokens)
{
    while (g_array_index(floor->intervals, Interval, from).end < tokens)
        from++;
    return from;
}

/* --- one division of layers --- */

/* Of chain @counts: the largest over ranks, with @work_s for a layer's work and @pass_s for a slice
 * on its way; micro-batches of @ends of the tokens are the first and the last. */
static double
rank_bound_s(const PlanDegrees *d, const int64_t *counts, double work_s, double pass_s, double ends)
{
    double most = 0.0, before = 0.0;

    for (int64_t r = 0; r < d->pp; r++) {
        double n = 0.0;
        for (int64_t k = r; k < d->pp * d->vpp; k += d->pp)
            n += (double)counts[k];
        n -= ends * (double)MAX(0, counts[r] - counts[0]);
        most = fmax(most, n * work_s + before * pass_s);
        before += (double)counts[r];
    }
    return most;
}

/* The least over the longest slices of a sequence. */
static double
counts_bound_s(const Floor *floor, const int64_t *counts)
{
    const PlanPoint *point = floor->point;
    const int64_t length = floor->request->seq_len, b = point->micro_batch;
    const bool regroups = plan_point_regroups(floor->request, point);
    const double tokens = (double)(point->n_micro_batches * b) * (double)length;
    const double ends = fmin(1.0, 2.0 / (double)point->n_micro_batches);
    double rate = INFINITY, least = INFINITY; /* rate: of all intervals up to at_most */
    guint at = 0, at_most = 0;

    for (int64_t begin = 0; begin < length;) {
        const guint here = find(floor, at, begin + 1);
        const int64_t end = MIN(length, g_array_index(floor->intervals, Interval, here).end);
        const int64_t passing = regroups ? begin + 1 : b * (begin + 1);
        const double pass_s =
            g_array_index(floor->intervals, Interval, find(floor, here, passing)).floor_s;
        while (at_most < floor->intervals->len &&
               (at_most == 0 ||
                g_array_index(floor->intervals, Interval, at_most - 1).end < b * end)) {
            const Interval *one = &g_array_index(floor->intervals, Interval, at_most++);
            rate = fmin(rate, one->floor_s / (double)one->end);
        }
        least = fmin(least, rank_bound_s(&point->degrees, counts, rate * tokens, pass_s, ends));
        at = here;
        begin = end;
    }
    return least;
}

/* --- public --- */

int64_t
plan_floor_ns(const PlanRequest *request, const PlanPoint *point, const int64_t *counts)
{
    g_autoptr(GArray) intervals = g_array_new(FALSE, FALSE, sizeof(Interval));
    Floor floor = {request, point, intervals};

    if (request->profile->measurements->len > 0)
        return 0;
    fill_intervals(&floor);
    const double least = counts_bound_s(&floor, counts);
    /* A Workload rounds each op to the nanosecond: less than a thousandth, as kernels take longer
     * than half a microsecond to start. */
    return isfinite(least) ? units_ns_from_s(0.999 * least) : 0;
}
