#include "planner/partition/partitions.h"

#include <math.h>
#include <string.h>

#include "base/saturate.h"
#include "base/units.h"
#include "planner/partition/partition.h"

/* --- where ranks lie --- */

/* The first device of each kind of nodes; their number. */
static int64_t *
kind_begins(const ModelCluster *cluster)
{
    int64_t *begins = g_new(int64_t, (size_t)cluster->nodes->len + 1);

    begins[0] = 0;
    for (guint i = 0; i < cluster->nodes->len; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        begins[i + 1] = begins[i] + nodes->n_devices * nodes->n_nodes;
    }
    return begins;
}

void
plan_partition_limits(const PlanRequest *request, const PlanPoint *point, int64_t *limits)
{
    const ModelCluster *cluster = request->profile->cluster;
    const ProfileMesh mesh = plan_layer_mesh(request, &point->degrees);
    g_autofree int64_t *begins = kind_begins(cluster);

    for (int64_t r = 0; r < point->degrees.pp; r++) {
        const ProfileGroup stage = profile_group_of_rank(&mesh, PROFILE_GROUP_STAGE, r);
        limits[r] = request->memory_limit_bytes;
        for (guint i = 0; request->memory_limit_bytes == 0 && i < cluster->nodes->len; i++) {
            if (profile_group_count(&stage, begins[i], begins[i + 1]) == 0)
                continue;
            const int64_t bytes = model_cluster_device(cluster, begins[i])->memory_bytes;
            limits[r] = limits[r] == 0 ? bytes : MIN(limits[r], bytes);
        }
    }
}

/* --- units --- */

/* MTP modules, the last layers, are one unit: @units [row * n_units + unit] are sums of @layers. */
static void
join_units(const PlanRequest *request, int64_t n_rows, const int64_t *layers, int64_t *units)
{
    const int64_t n = model_n_stacked(request->arch), n_units = plan_request_n_units(request);

    for (int64_t row = 0; row < n_rows; row++) {
        memcpy(units + row * n_units, layers + row * n, (size_t)n_units * sizeof *units);
        for (int64_t i = n_units; i < n; i++)
            units[row * n_units + n_units - 1] =
                saturate_sum(units[row * n_units + n_units - 1], layers[row * n + i], INT64_MAX);
    }
}

/* Turns @counts [stage] of units into layers. */
static void
count_layers(const PlanRequest *request, int64_t length, int64_t *counts)
{
    const int64_t last = model_n_stacked(request->arch) - plan_request_n_units(request);

    for (int64_t k = length - 1; k >= 0; k--)
        if (counts[k] > 0) {
            counts[k] += last;
            return;
        }
}

/* --- balanced --- */

/* Sets @kinds [stage] to the slowest kind of nodes that each stage lies on, by the time of the
 * first layer. */
static void
set_kinds(const ProfileMesh *mesh, SchedulePlacement placement, const int64_t *begins,
          int64_t n_kinds, const int64_t *layer_ns, int64_t n_layers, int64_t length,
          int32_t *kinds)
{
    for (int64_t k = 0; k < length; k++) {
        const ProfileGroup stage = profile_group_of_rank(
            mesh, PROFILE_GROUP_STAGE,
            schedule_placement_rank(placement, (int32_t)mesh->degrees->pp, (int32_t)k, 0));
        kinds[k] = -1;
        for (int32_t i = 0; i < n_kinds; i++)
            if (profile_group_count(&stage, begins[i], begins[i + 1]) > 0 &&
                (kinds[k] < 0 || layer_ns[i * n_layers] > layer_ns[kinds[k] * n_layers]))
                kinds[k] = i;
        kinds[k] = MAX(0, kinds[k]);
    }
}

typedef struct {
    const PlanRequest *request;
    const PlanPoint *point;
    const ScheduleFamily *family;
} Question;

/* PlanMemoMakeFunc: (owned) layers of each stage of a chain. */
static void *
make_balanced(const void *data)
{
    const PlanRequest *request = ((const Question *)data)->request;
    const PlanPoint *point = ((const Question *)data)->point;
    const ScheduleFamily *family = ((const Question *)data)->family;
    const int64_t length = plan_point_chain_length(&point->degrees, family);
    const ModelCluster *cluster = request->profile->cluster;
    const int64_t n_layers = model_n_stacked(request->arch), n_kinds = (int64_t)cluster->nodes->len;
    const int64_t n_units = plan_request_n_units(request);
    const PlanRecompute recompute = (PlanRecompute)plan_request_fastest_recompute(request);
    const PlanLayerShape shape = plan_point_layer_shape(point);
    const ProfileMesh mesh = plan_layer_mesh(request, &point->degrees);
    g_autofree int64_t *begins = kind_begins(cluster);
    g_autofree int64_t *layer_ns = g_new(int64_t, (size_t)(n_kinds * n_layers));
    g_autofree int64_t *unit_ns = g_new(int64_t, (size_t)(n_kinds * n_units));
    g_autofree int64_t *end_ns = g_new(int64_t, (size_t)(n_kinds * 2));
    g_autofree int32_t *kinds = g_new0(int32_t, (size_t)length);
    int64_t *counts = g_new0(int64_t, (size_t)length);
    const PlanPartition partition = {.n_layers = n_units,
                                     .n_stages = length,
                                     .lone_ends = request->arch->vocab > 0,
                                     .layer_ns = unit_ns,
                                     .end_ns = end_ns,
                                     .stage_kind = n_kinds > 1 ? kinds : NULL};

    for (int64_t i = 0; i < n_kinds; i++)
        plan_layer_times(request, &shape, recompute, begins[i], layer_ns + i * n_layers,
                         end_ns + i * 2);
    set_kinds(&mesh, family->placement, begins, n_kinds, layer_ns, n_layers, length, kinds);
    join_units(request, n_kinds, layer_ns, unit_ns);
    const bool done = plan_partition(&partition, counts, NULL);
    g_assert(done);
    count_layers(request, length, counts);
    return counts;
}

/* What the times of layers depend on.  Where stages lie matters only where devices differ. */
typedef struct {
    PlanMemoKey memo;
    int64_t tp, cp, ep, micro_batch, sequence_parallel, recompute, length;
    ProfileGroup groups[MODEL_GROUP_N];
    int64_t pp, dp, rank_order, placement;
} Key;

const int64_t *
plan_partition_balanced(PlanMemo *memo, const PlanRequest *request, const PlanPoint *point,
                        const ScheduleFamily *family)
{
    const bool differ = request->profile->cluster->nodes->len > 1;
    const Question question = {request, point, family};
    Key key = {
        .memo = PLAN_MEMO_KEY(Key, PLAN_MEMO_PARTITION),
        .tp = point->degrees.tp,
        .cp = point->degrees.cp,
        .ep = point->degrees.ep,
        .micro_batch = point->micro_batch,
        .sequence_parallel = point->sequence_parallel,
        .recompute = plan_request_fastest_recompute(request),
        .length = plan_point_chain_length(&point->degrees, family),
        .pp = differ ? point->degrees.pp : 0,
        .dp = differ ? point->degrees.dp : 0,
        .rank_order = differ ? point->degrees.rank_order : 0,
        .placement = differ ? (int64_t)family->placement : 0,
    };

    plan_layer_groups(request, &point->degrees, key.groups);
    return plan_memo_get(memo, &key.memo, make_balanced, &question, g_free);
}

int64_t *
plan_partition_even(const PlanRequest *request, const PlanPoint *point,
                    const ScheduleFamily *family)
{
    const int64_t length = plan_point_chain_length(&point->degrees, family);
    const int64_t n = model_n_stacked(request->arch);
    int64_t *counts = g_new(int64_t, (size_t)length);

    /* Floor, the last few one more. */
    for (int64_t k = 0; k < length; k++)
        counts[k] = n / length + (k >= length - n % length ? 1 : 0);
    return counts;
}

/* --- under memory --- */

/* One of some part. */
typedef struct {
    int64_t n[PLAN_PART_N];
} OnePart;

static OnePart
one_of(int part)
{
    OnePart one = {{0}};

    one.n[part] = 1;
    return one;
}

/* What the layers take and keep with each recompute kind, for plan_partition(). */
static void
set_layers(const PlanSketchInput *input, int64_t n_recomputes, int64_t *layer_ns,
           int64_t *layer_bytes, int64_t *kept_bytes, const int *kind_of_recompute)
{
    const PlanLayerCost *cost = input->cost;
    const int64_t n_layers = model_n_stacked(input->request->arch);

    for (int64_t i = 0; i < n_layers; i++) {
        const OnePart layer = one_of(model_layer_kind(input->request->arch, i));
        layer_bytes[i] = plan_sketch_state_bytes(input, layer.n);
        for (int64_t recompute = 0; recompute < n_recomputes; recompute++) {
            layer_ns[recompute * n_layers + i] =
                units_ns_from_s(plan_sketch_passes_s(cost, layer.n, kind_of_recompute[recompute]));
            kept_bytes[recompute * n_layers + i] =
                plan_sketch_kept(cost, layer.n, kind_of_recompute[recompute]);
        }
    }
}

/* The least of all layers with one recompute kind. */
typedef struct {
    double s;
    int64_t state_bytes, kept_bytes;
} LeastLayer;

/* Fills @recomputes [recompute kind]. */
static void
set_least_layers(const PlanSketchInput *input, LeastLayer *recomputes)
{
    const PlanLayerCost *cost = input->cost;

    for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++) {
        LeastLayer *least = &recomputes[kind];
        *least = (LeastLayer){INFINITY, INT64_MAX, INT64_MAX};
        for (int i = 0; i < cost->n_kinds; i++) {
            const OnePart one = one_of(i);
            if (cost->n[i] == 0)
                continue;
            least->s = fmin(least->s, plan_sketch_passes_s(cost, one.n, kind));
            const int64_t state_bytes = plan_sketch_state_bytes(input, one.n);
            const int64_t kept_bytes = plan_sketch_kept(cost, one.n, kind);
            least->state_bytes = MIN(least->state_bytes, state_bytes);
            least->kept_bytes = MIN(least->kept_bytes, kept_bytes);
        }
    }
}

/* The most layers that fit on @rank with the recompute kind of @least; INFINITY: memory is no
 * limit. */
static double
most_layers(const PlanSketchInput *input, const PlanSketch *sketch, int32_t rank,
            const LeastLayer *least)
{
    const int64_t limit = input->limits_bytes[rank], room = limit - sketch->fixed_bytes[rank];
    const int64_t n_in_flight = plan_flight_n_held(input->flight, rank, PLAN_MOMENT_BACKWARD, 0, 0);
    const double each =
        (double)least->state_bytes + (double)n_in_flight * (double)least->kept_bytes;

    return limit > 0 ? floor(fmax(0.0, (double)room) / fmax(each, 1.0)) : INFINITY;
}

/* How many layers all ranks hold if none takes longer than @longest_s.  @most [rank * n_recomputes
 * + recompute] layers fit in memory, and one takes @layer_s [recompute]. */
static double
capacity(const double *most, const double *layer_s, int n_recomputes, int32_t n_ranks,
         double longest_s)
{
    double sum = 0.0, in_time[PLAN_RECOMPUTE_N];

    for (int recompute = 0; recompute < n_recomputes; recompute++)
        in_time[recompute] = floor(longest_s / fmax(layer_s[recompute], 1e-30));
    for (int32_t r = 0; r < n_ranks; r++) {
        double best = 0.0;
        for (int recompute = 0; recompute < n_recomputes; recompute++) {
            const double fits = most[r * n_recomputes + recompute];
            const double n = in_time[recompute] < fits ? in_time[recompute] : fits;
            best = n > best ? n : best;
        }
        sum += best;
    }
    return sum;
}

double
plan_partition_fitted_bound_s(const PlanSketchInput *input, const PlanSketch *sketch)
{
    const double n_layers = (double)model_n_stacked(input->request->arch);
    g_autofree double *most = g_new(double, (size_t)sketch->n_ranks *PLAN_RECOMPUTE_N);
    LeastLayer least[PLAN_RECOMPUTE_N];
    double layer_s[PLAN_RECOMPUTE_N], low = 0.0, high = 0.0;
    int n_recomputes = 0;

    set_least_layers(input, least);
    for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++)
        n_recomputes += plan_request_allows(input->request, kind) ? 1 : 0;
    for (int kind = 0, recompute = 0; kind < PLAN_RECOMPUTE_N; kind++) {
        if (!plan_request_allows(input->request, kind))
            continue;
        for (int32_t r = 0; r < sketch->n_ranks; r++)
            most[r * n_recomputes + recompute] = most_layers(input, sketch, r, &least[kind]);
        layer_s[recompute++] = least[kind].s;
        high = fmax(high, n_layers * least[kind].s * (1.0 + 1e-9));
    }
    if (capacity(most, layer_s, n_recomputes, sketch->n_ranks, high) < n_layers)
        return -1.0;
    /* All layers fit with stages of at most high, not with low. */
    for (int i = 0; i < 24; i++) {
        const double middle = 0.5 * (low + high);
        const double n =
            capacity(most, layer_s, n_recomputes, sketch->n_ranks, middle * (1.0 + 1e-9));
        *(n < n_layers ? &low : &high) = middle;
    }
    return low;
}

bool
plan_partition_fitted(const PlanSketchInput *input, const PlanSketch *sketch, int64_t *counts)
{
    const PlanRequest *request = input->request;
    const int64_t n_layers = model_n_stacked(request->arch), p = input->point->degrees.pp;
    const int64_t n_units = plan_request_n_units(request);
    const size_t n_cells = (size_t)(PLAN_RECOMPUTE_N * n_layers);
    g_autofree int64_t *layer_ns = g_new(int64_t, n_cells), *kept = g_new(int64_t, n_cells);
    g_autofree int64_t *layer_bytes = g_new(int64_t, (size_t)n_layers);
    g_autofree int64_t *n_in_flight = g_new(int64_t, (size_t)p),
                       *limits = g_new(int64_t, (size_t)p);
    int64_t end_ns[2], end_bytes[2], end_kept_bytes[2], workspace_bytes_of[PLAN_RECOMPUTE_N];
    int kind_of_recompute[PLAN_RECOMPUTE_N];
    g_autofree int64_t *unit_ns = g_new(int64_t, n_cells), *unit_kept = g_new(int64_t, n_cells);
    g_autofree int64_t *unit_bytes = g_new(int64_t, (size_t)n_layers);
    PlanPartition partition = {.n_layers = n_units,
                               .n_stages = p,
                               .lone_ends = request->arch->vocab > 0,
                               .layer_ns = unit_ns,
                               .end_ns = end_ns,
                               .layer_bytes = unit_bytes,
                               .kept_bytes = unit_kept,
                               .workspace_bytes_of = workspace_bytes_of,
                               .end_bytes = end_bytes,
                               .end_kept_bytes = end_kept_bytes,
                               .stage_in_flight = n_in_flight,
                               .stage_limit_bytes = limits};

    for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++) {
        const PlanPartCost *parts = input->cost->parts;
        if (!plan_request_allows(input->request, kind))
            continue;
        kind_of_recompute[partition.n_recomputes] = kind;
        int64_t *workspace = &workspace_bytes_of[partition.n_recomputes++];
        *workspace = 0;
        for (int i = 0; i < input->cost->n_kinds; i++)
            *workspace = MAX(*workspace, parts[i].backward_workspace_bytes[kind]);
    }
    set_layers(input, partition.n_recomputes, layer_ns, layer_bytes, kept, kind_of_recompute);
    join_units(request, partition.n_recomputes, layer_ns, unit_ns);
    join_units(request, partition.n_recomputes, kept, unit_kept);
    join_units(request, 1, layer_bytes, unit_bytes);
    for (int i = 0; i < 2; i++) {
        const bool has_vocab = input->request->arch->vocab > 0;
        const int64_t end[PLAN_PART_N] = {
            [PLAN_PART_EMBEDDING] = i == 0 && has_vocab, [PLAN_PART_HEAD] = i == 1 && has_vocab};
        end_ns[i] = units_ns_from_s(plan_sketch_passes_s(input->cost, end, 0));
        end_bytes[i] = plan_sketch_state_bytes(input, end);
        end_kept_bytes[i] = plan_sketch_kept(input->cost, end, 0);
    }
    for (int32_t r = 0; r < p; r++) {
        n_in_flight[r] = plan_flight_most_held(input->flight, r, 0);
        limits[r] = sketch->usable_bytes[r];
        if (limits[r] > 0)
            limits[r] = MAX(1, limits[r] - sketch->fixed_bytes[r]);
    }
    if (!plan_partition(&partition, counts, NULL))
        return false;
    count_layers(request, p, counts);
    return true;
}

void
plan_partition_apply(const int64_t *counts, int64_t length, const int *recomputes, Plan *plan)
{
    int64_t first = 0;

    /* The second chain of bidir divides the layers as the first. */
    for (guint i = 0; i < plan->stages->len; i++) {
        PlanStage *stage = &g_array_index(plan->stages, PlanStage, i);
        if (i % length == 0)
            first = 0;
        stage->first_layer = first;
        stage->n_layers = counts[i % length];
        stage->recompute = (PlanRecompute)recomputes[i];
        first += stage->n_layers;
    }
}
