#include "planner/space/space.h"

#include "base/parallel.h"
#include "base/units.h"
#include "planner/bounds/point_bound.h"
#include "planner/bounds/rank_kinds.h"
#include "planner/space/orders.h"
#include "planner/space/refusals.h"
#include "profiles/workload/ops.h"

#include <string.h>

/* Larger micro-batches are taken only when asked for. */
#define MAX_MICRO_BATCH 4096

/* --- families and plans --- */

/* (borrowed) A family whose order @family repeats at this shape, or NULL. */
static const ScheduleFamily *
same_order_as(const ScheduleFamily *family, const PlanPoint *point, int64_t n_slices)
{
    const ScheduleFamily *same = n_slices == 1 ? family->whole : family->sliced;
    const ScheduleFamily *usual = schedule_family_usual(1, false);

    /* On one rank every order takes the same time; 1F1B holds the fewest activations. */
    if (same == NULL && family != usual && point->degrees.pp == 1 && point->degrees.vpp == 1 &&
        n_slices == 1)
        return usual;
    return same;
}

static bool
overlaps_pp(const PlanRequest *request, const char *schedule, int64_t vpp)
{
    const PlanConventions *c = &request->conventions;

    /* What the user did not change follows the framework. */
    return !request->overlap_pp_given && c->overlap_pp == plan_conventions(c->framework).overlap_pp
               ? plan_framework_overlaps_pp(c->framework, schedule, vpp)
               : c->overlap_pp;
}

/* What rules look at of plans of @family at @point with even stages. */
static PlanRuleCase
case_of(const PlanRequest *request, const PlanPoint *point, const ScheduleFamily *family)
{
    const int64_t n = model_n_stacked(request->arch);
    const int64_t length = plan_point_chain_length(&point->degrees, family);
    PlanRuleCase c = plan_request_case(request);

    c.degrees = point->degrees;
    c.schedule = family->name;
    c.family = family;
    c.n_micro_batches = point->n_micro_batches;
    c.group = plan_point_group(request, point, family);
    c.overlap_pp = overlaps_pp(request, family->name, point->degrees.vpp);
    c.least_layers = n / length;
    c.most_layers = (n + length - 1) / length;
    return c;
}

static bool
family_keeps_rules(const PlanRequest *request, const PlanPoint *point, const ScheduleFamily *family)
{
    if (request->rules == NULL)
        return true;
    const PlanRuleCase c = case_of(request, point, family);
    return plan_rules_keep(&c, PLAN_ASPECT_SCHEDULE, NULL) &&
           plan_rules_keep(&c, PLAN_ASPECT_SHAPE, NULL);
}

bool
plan_space_has_family(const PlanSpace *space, const PlanPoint *point, const ScheduleFamily *family,
                      int64_t n_slices)
{
    const ScheduleShape shape = plan_point_shape(space->request, point, family, n_slices);
    const ScheduleFamily *same = same_order_as(family, point, n_slices);

    if (space->is_automatic && same != NULL && g_ptr_array_find(space->families, same, NULL))
        return false;
    return plan_point_chain_length(&point->degrees, family) <=
               plan_request_most_stages(space->request) &&
           schedule_shape_check(family, &shape, NULL) &&
           family_keeps_rules(space->request, point, family);
}

Plan *
plan_space_plan(const PlanRequest *request, const PlanPoint *point, const ScheduleFamily *family)
{
    Plan *plan = plan_new();

    plan->global_batch = request->global_batch;
    plan->seq_len = request->seq_len;
    plan->dtype = request->dtype;
    plan->degrees = point->degrees;
    plan->micro_batch = point->micro_batch;
    plan->n_micro_batches = point->n_micro_batches;
    plan->zero_stage = point->zero_stage;
    plan->offload = point->offload;
    plan->offload_parameters = request->offload_parameters;
    plan->prefetch_layers = request->prefetch_layers;
    plan->sequence_parallel = point->sequence_parallel;
    g_free(plan->schedule);
    plan->schedule = g_strdup(family->name);
    plan->group = plan_point_group(request, point, family);
    plan->conventions = request->conventions;
    plan->conventions.overlap_pp = overlaps_pp(request, family->name, plan->degrees.vpp);
    g_array_set_size(plan->slices, 0);
    g_array_append_val(plan->slices, request->seq_len);
    plan_set_even_stages(plan, model_n_stacked(request->arch), request->arch->vocab > 0,
                         family->placement, point->recompute);
    return plan;
}

/* --- the walk over all combinations --- */

/* One number of chunks that some family of the space has. */
typedef struct {
    int64_t vpp;
    int64_t n_families;
    PlanPointFamilies families;
    bool slices;
} Chunks;

/* Of one number of ranks and of micro-batches. */
typedef struct {
    int64_t pp, n_micro_batches;
    GArray *chunks; /* (owned) of Chunks */
} KnownChunks;

/* Layers at the current tp and cp; of pp, dp and the order only where groups lie matters. */
typedef struct {
    int64_t ep, micro_batch;
    bool sequence_parallel;
    ProfileGroup groups[MODEL_GROUP_N]; /* of the first devices */
    PlanSpaceComms *comms;              /* (owned) what its collectives take */
    int64_t index;                      /* in space->costs; -1: not yet */
    PlanLayerCost costs[];              /* as there */
} KnownCost;

/* One way of tp and cp, which a thread walks by itself into a space of its own. */
typedef struct {
    PlanSpace *space; /* (owned) */
    const PlanSpaceLimits *limits;
    int64_t tp, cp;
    PlanRefusals refusals;   /* why combinations were left out, to say so if none is left */
    PlanRuleCase c;          /* what is known so far of the points that follow */
    GPtrArray *known;        /* (owned) of (owned) KnownCost * */
    KnownCost *cost;         /* (borrowed) of the current ep, micro-batch and sp */
    GPtrArray *known_chunks; /* (owned) of (owned) KnownChunks * */
    const GArray *chunks;    /* (borrowed) of Chunks, at the current degrees and micro-batches */
    GArray *slices;          /* (owned) of int64_t, likewise */
    uint32_t orders[PLAN_RANK_ORDER_N]; /* sets worth a look at the current degrees */
    int n_orders;
    int64_t n_candidates; /* of all points so far */
    PlanPoint chunked;    /* the last of too many chunks to be sliced; pp 0: there is none */
    int64_t most_bytes;   /* as many points as are wanted have no more */
} Walk;

/* Whether @value is what the request fixes (0: everything is). */
static inline bool
allowed(int64_t fixed, int64_t value)
{
    return fixed == 0 || fixed == value;
}

static void
known_cost_free(gpointer data)
{
    KnownCost *known = data;

    plan_space_comms_free(known->comms);
    g_free(known);
}

static void
known_chunks_free(gpointer data)
{
    KnownChunks *known = data;

    g_array_unref(known->chunks);
    g_free(known);
}

/* The families that have so many chunks. */
static Chunks
chunks_of(const PlanSpace *space, const PlanPoint *point)
{
    Chunks chunks = {.vpp = point->degrees.vpp};

    for (guint i = 0; i < space->families->len; i++) {
        const ScheduleFamily *family = space->families->pdata[i];
        const bool sliced = point->degrees.pp > 1 && family->slices &&
                            plan_space_has_family(space, point, family, 2);
        if (!sliced && !plan_space_has_family(space, point, family, 1))
            continue;
        chunks.n_families++;
        chunks.slices = chunks.slices || sliced;
        const PlanPointFamilies one = plan_point_family(family);
        chunks.families.splits_backward |= one.splits_backward;
        chunks.families.overlaps |= one.overlaps;
        chunks.families.bidirectional |= one.bidirectional;
    }
    return chunks;
}

/* Notes the rule that all families break at @point with the fewest chunks; false: one keeps them. */
static bool
note_rule_of_families(Walk *walk, PlanPoint *point, int64_t vpp)
{
    const PlanSpace *space = walk->space;

    for (guint i = 0; i < space->families->len; i++) {
        const ScheduleFamily *family = space->families->pdata[i];
        point->degrees.vpp = MAX(vpp, family->min_chunks);
        const PlanRuleCase c = case_of(space->request, point, family);
        if (plan_refusals_keep_rules(&walk->refusals, &c, PLAN_ASPECT_SCHEDULE) &&
            plan_refusals_keep_rules(&walk->refusals, &c, PLAN_ASPECT_SHAPE))
            return false;
    }
    return true;
}

/* Sets walk->chunks to those of @point's pp and number of micro-batches.  Chunks without a
 * pipeline, which frameworks refuse, only when asked for. */
static void
find_chunks(Walk *walk, PlanPoint point)
{
    const PlanSpace *space = walk->space;
    const int64_t fixed = space->request->vpp, pp = point.degrees.pp;
    const int64_t most =
        MAX(2, MIN(SCHEDULE_MAX_CHUNKS, plan_request_most_stages(space->request) / pp));
    const int64_t last = fixed > 0 ? fixed : pp == 1 ? 1 : most;

    for (guint i = 0; i < walk->known_chunks->len; i++) {
        const KnownChunks *known = walk->known_chunks->pdata[i];
        walk->chunks = known->chunks;
        if (known->pp == pp && known->n_micro_batches == point.n_micro_batches)
            return;
    }
    KnownChunks *known = g_new(KnownChunks, 1);
    *known = (KnownChunks){pp, point.n_micro_batches, g_array_new(FALSE, FALSE, sizeof(Chunks))};
    g_ptr_array_add(walk->known_chunks, known);
    walk->chunks = known->chunks;
    for (point.degrees.vpp = MAX(1, fixed); point.degrees.vpp <= last; point.degrees.vpp++) {
        const Chunks chunks = chunks_of(space, &point);
        if (chunks.n_families > 0)
            g_array_append_val(known->chunks, chunks);
    }
    if (known->chunks->len == 0 && !note_rule_of_families(walk, &point, MAX(1, fixed)) &&
        walk->refusals.family == NULL)
        walk->refusals.family = plan_refusal_of_family(space, &point, MAX(1, fixed));
}

int64_t
plan_space_n_recomputes(const PlanRequest *request, const PlanPoint *point)
{
    if (request->recompute != PLAN_AUTO)
        return 1;
    if (request->rules != NULL) {
        int64_t n = 0;
        for (int recompute = 0; recompute < PLAN_RECOMPUTE_N; recompute++)
            n += plan_request_allows(request, recompute);
        return n;
    }
    return PLAN_RECOMPUTE_N + (point->degrees.pp > 1 ? 1 : 0);
}

/* How many costs points of equal layers have. */
static guint
n_costs(const PlanSpace *space)
{
    return space->n_slices > 1 ? 2 : 1;
}

static void
keep_point(Walk *walk, PlanPoint point, GArray *points)
{
    PlanSpace *space = walk->space;

    if (walk->cost->index < 0) {
        walk->cost->index = space->costs->len;
        g_array_append_vals(space->costs, walk->cost->costs, n_costs(space));
    }
    point.cost = walk->cost->index;
    g_array_append_val(points, point);
}

static int
compare_bytes(const void *a, const void *b)
{
    return plan_point_compare_bytes(a, b);
}

/* As keep_point(), where the leanest points alone are wanted. */
static void
keep_lean_point(Walk *walk, const PlanPoint *point)
{
    GArray *points = walk->space->points;
    const int64_t n = walk->limits->n_leanest;

    if (point->bound_bytes > walk->most_bytes)
        return;
    keep_point(walk, *point, points);
    if (points->len < 4 * n)
        return;
    g_array_sort(points, compare_bytes);
    g_array_set_size(points, (guint)n);
    walk->most_bytes = g_array_index(points, PlanPoint, n - 1).bound_bytes;
}

/* Points that are not looked at. */
static void
count_slow(Walk *walk, int64_t n_points, int64_t n_candidates, int64_t bound_ns)
{
    PlanSpace *space = walk->space;

    space->n_points += n_points;
    walk->n_candidates += n_candidates;
    space->n_slow += n_candidates;
    space->least_slow_ns = MIN(space->least_slow_ns, bound_ns);
}

/* Keeps @point, or only what is to be known of it. */
static void
add_point(Walk *walk, const PlanPoint *point)
{
    const PlanSpaceLimits *limits = walk->limits;
    PlanSpace *space = walk->space;
    const bool may_slice = point->sliced_bytes <= limits->memory_bytes &&
                           point->sliced_bound_ns != INT64_MAX && limits->sliced_ns >= 0;

    space->n_points++;
    walk->n_candidates += point->n_candidates;
    if (may_slice && point->sliced_bound_ns <= limits->sliced_ns &&
        point->degrees.vpp <= limits->sliced_vpp) {
        keep_point(walk, *point, space->points);
        return;
    }
    if (may_slice && point->sliced_bound_ns > limits->sliced_ns)
        space->least_sliced_ns = MIN(space->least_sliced_ns, point->sliced_bound_ns);
    else if (may_slice)
        walk->chunked = *point;
    if (point->bound_bytes > limits->memory_bytes) {
        if (space->n_large == 0 || point->bound_bytes < space->least_large.bound_bytes)
            space->least_large = *point;
        space->n_large += point->n_candidates;
    } else if (point->bound_ns > limits->time_ns) {
        space->n_slow += point->n_candidates;
        space->least_slow_ns = MIN(space->least_slow_ns, point->bound_ns);
    } else if (limits->n_leanest > 0) {
        keep_lean_point(walk, point);
    } else {
        keep_point(walk, *point, space->points);
    }
}

/* Whether @length even stages part MTP modules, or are empty, where balanced ones are not. */
static bool
even_breaks_rules(const PlanRequest *request, int64_t length)
{
    const int64_t n = model_n_stacked(request->arch);

    if (request->rules == NULL)
        return false;
    return request->arch->mtp.n > n / length + (n % length > 0) ||
           (!request->rules->empty_stages && n + (request->arch->vocab > 0 ? 1 : 0) < length);
}

/* Adds @point with all chunks, even and balanced.  Where all of them are too slow, which @slow_ns
 * bounds, they are only counted; 0: they are not. */
static void
add_layouts(Walk *walk, PlanPoint point, int64_t slow_ns)
{
    PlanSpace *space = walk->space;
    const PlanLayerCost *cost = walk->cost->costs;
    const PlanLayerCost *slice = &cost[n_costs(space) - 1];

    walk->chunked.degrees.pp = 0;
    for (guint i = 0; i < walk->chunks->len; i++) {
        const Chunks *chunks = &g_array_index(walk->chunks, Chunks, i);
        point.degrees.vpp = chunks->vpp;
        point.n_candidates = chunks->n_families * plan_space_n_recomputes(space->request, &point) *
                             __builtin_popcount(point.orders);
        const int64_t length =
            chunks->families.bidirectional ? point.degrees.pp : point.degrees.pp * chunks->vpp;
        const bool divides = point.degrees.pp > 1 &&
                             length <= plan_request_most_stages(space->request) &&
                             plan_request_allows_uneven(space->request);
        for (int balanced = divides && even_breaks_rules(space->request, length) ? 1 : 0;
             balanced <= (divides ? 1 : 0); balanced++) {
            if (slow_ns > 0) {
                count_slow(walk, 1, point.n_candidates, slow_ns);
                continue;
            }
            point.is_balanced = balanced == 1;
            point.bound_ns =
                plan_point_bound_ns(space->request, cost, slice, &point, &chunks->families);
            /* Slices are looked for in the first order only. */
            point.sliced_bound_ns = chunks->slices && point.orders == walk->orders[0]
                                        ? plan_point_sliced_ns(space->request, cost, &point)
                                        : INT64_MAX;
            point.index = space->n_points;
            add_point(walk, &point);
        }
    }
    if (walk->chunked.degrees.pp > 0)
        keep_point(walk, walk->chunked, space->chunked);
}

/* A bound of @point with any chunks, savers and stages that is above the limit; 0: it may be within
 * it, as it is or in slices. */
static int64_t
slow_ns(const Walk *walk, const PlanPoint *point)
{
    const PlanLayerCost *cost = walk->cost->costs;
    PlanPointFamilies all = {0};
    int64_t most_chunks = 1;
    bool slices = false;

    for (guint i = 0; i < walk->chunks->len; i++) {
        const Chunks *chunks = &g_array_index(walk->chunks, Chunks, i);
        all.overlaps |= chunks->families.overlaps;
        slices |= chunks->slices;
        most_chunks = MAX(most_chunks, chunks->vpp);
    }
    const int64_t ns =
        plan_point_least_ns(walk->space->request, cost, point, most_chunks, all.overlaps);
    if (ns <= walk->limits->time_ns)
        return 0;
    return slices && walk->limits->sliced_ns >= 0 &&
                   plan_point_sliced_ns(walk->space->request, cost, point) <= walk->limits->time_ns
               ? 0
               : ns;
}

/* ZeRO, offload. */
static void
add_savers(Walk *walk, PlanPoint point)
{
    const PlanRequest *request = walk->space->request;
    const PlanDegrees *d = &point.degrees;
    const bool has_experts = request->arch->experts.n_experts > 0;
    /* Experts have replicas of their own. */
    const int64_t replicas =
        MAX(d->dp * d->cp, has_experts ? plan_expert_replicas(d, &request->conventions) : 1);
    if (request->memo != NULL && walk->space->n_slices == 1)
        point.n_fast_ranks = plan_rank_fast(request->memo, request, &point);
    const int64_t all_slow_ns = walk->chunks->len > 0 ? slow_ns(walk, &point) : 0;

    for (int zero = 0; zero <= 3 && walk->chunks->len > 0; zero++) {
        /* Nothing to shard on one replica. */
        if (request->zero_stage != PLAN_AUTO ? request->zero_stage != zero
                                             : zero > 0 && replicas == 1)
            continue;
        for (int offload = 0; offload < PLAN_OFFLOAD_N; offload++) {
            if (request->offload != PLAN_AUTO && request->offload != offload)
                continue;
            if (request->offload_parameters && (zero < 3 || offload == PLAN_OFFLOAD_NONE))
                continue;
            walk->c.zero_stage = zero;
            walk->c.offload = (PlanOffload)offload;
            if (!plan_refusals_keep_rules(&walk->refusals, &walk->c, PLAN_ASPECT_SAVERS))
                continue;
            point.zero_stage = zero;
            point.offload = (PlanOffload)offload;
            if (all_slow_ns == 0)
                plan_point_bound_bytes(request, walk->cost->costs, walk->limits->memory_bytes,
                                       &point);
            add_layouts(walk, point, all_slow_ns);
        }
    }
}

/* Of whole sequences searches that differ in little have the same. */
static void
set_costs(const Walk *walk, const PlanLayerShape *shape, PlanLayerCost *costs)
{
    const PlanRequest *request = walk->space->request;

    if (walk->space->n_slices == 1) {
        plan_layer_whole_cost(request->memo, request, shape, costs);
        return;
    }
    const PlanSlicedCost cost = plan_layer_sliced_cost(request, shape, walk->slices);
    costs[0] = cost.whole;
    costs[1] = cost.slice;
}

/* Sets walk->cost to that of @point's layers.  False: the degrees forbid the request's slices. */
static bool
find_cost(Walk *walk, const PlanPoint *point)
{
    const PlanRequest *request = walk->space->request;
    const PlanLayerShape shape = plan_point_layer_shape(point);
    ProfileGroup groups[MODEL_GROUP_N];

    if (!plan_request_slices(request, plan_granularity(&shape.degrees, shape.sequence_parallel),
                             walk->slices)) {
        if (walk->refusals.shape == NULL)
            walk->refusals.shape = g_strdup_printf(
                "--slices: lengths are not multiples of --cp " INT "%s", shape.degrees.cp,
                shape.sequence_parallel ? " * --tp (sequence parallelism)" : "");
        return false;
    }
    plan_layer_groups(request, &point->degrees, groups);
    for (guint i = 0; i < walk->known->len; i++) {
        walk->cost = walk->known->pdata[i];
        if (walk->cost->ep == shape.degrees.ep && walk->cost->micro_batch == shape.micro_batch &&
            walk->cost->sequence_parallel == shape.sequence_parallel &&
            memcmp(walk->cost->groups, groups, sizeof groups) == 0)
            return true;
    }
    walk->cost = g_malloc(sizeof(KnownCost) + n_costs(walk->space) * sizeof(PlanLayerCost));
    *walk->cost = (KnownCost){
        .ep = shape.degrees.ep,
        .micro_batch = shape.micro_batch,
        .sequence_parallel = shape.sequence_parallel,
        .comms = plan_space_comms_new(),
        .index = -1,
    };
    set_costs(walk, &shape, walk->cost->costs);
    memcpy(walk->cost->groups, groups, sizeof groups);
    g_ptr_array_add(walk->known, walk->cost);
    return true;
}

static void
set_orders(const Walk *walk, int set, PlanPoint *point)
{
    point->orders = walk->orders[set];
    point->degrees.rank_order = g_bit_nth_lsf(point->orders, -1);
}

/* Adds @point, whose cost in the first set of orders is walk->cost, there, and in those other sets
 * that may be of use; the rest counts as slow. */
static void
add_orders(Walk *walk, PlanPoint point)
{
    const PlanSpace *space = walk->space;
    const int64_t n_points = space->n_points, n_candidates = walk->n_candidates;
    const KnownCost *first = walk->cost;
    bool overlaps = false;

    add_savers(walk, point);
    const int64_t points_each = space->n_points - n_points;
    const int64_t candidates_each =
        (walk->n_candidates - n_candidates) / __builtin_popcount(walk->orders[0]);
    for (guint i = 0; i < walk->chunks->len; i++)
        overlaps = overlaps || g_array_index(walk->chunks, Chunks, i).families.overlaps;
    for (int i = 1; i < walk->n_orders; i++) {
        set_orders(walk, i, &point);
        /* Of slow points only the least bound counts. */
        const int64_t most_ns = MAX(walk->limits->time_ns, space->least_slow_ns);
        const int64_t bound_ns = plan_space_order_ns(space->request, first->costs, &point,
                                                     first->comms, overlaps, most_ns);
        if (bound_ns > walk->limits->time_ns) {
            count_slow(walk, points_each, candidates_each * __builtin_popcount(point.orders),
                       bound_ns);
        } else if (find_cost(walk, &point)) {
            add_savers(walk, point);
        }
    }
}

static bool
limits_stop(const PlanSpaceLimits *limits)
{
    return limits->stop != NULL && g_atomic_int_get(limits->stop) != 0;
}

static bool
is_stopped(const Walk *walk)
{
    return limits_stop(walk->limits);
}

/* Micro-batches of @point's degrees, with and without sequence parallelism. */
static void
add_batches(Walk *walk, PlanPoint point)
{
    const PlanRequest *request = walk->space->request;
    const int64_t dp = point.degrees.dp;

    if (request->global_batch % dp != 0 ||
        (request->micro_batch > 0 && request->global_batch / dp % request->micro_batch != 0)) {
        plan_refusals_note_batch(&walk->refusals, request, dp);
        return;
    }
    const int64_t sequences = request->global_batch / dp, fixed = request->micro_batch;
    const int64_t last = fixed > 0 ? fixed : MIN(sequences, MAX_MICRO_BATCH);
    for (int64_t b = MAX(1, fixed); b <= last && !is_stopped(walk); b++) {
        if (sequences % b != 0)
            continue;
        point.micro_batch = b;
        point.n_micro_batches = sequences / b;
        point.degrees.vpp = 1;
        find_chunks(walk, point);
        for (int sp = 0; sp <= 1; sp++) {
            if (request->sequence_parallel != PLAN_AUTO ? request->sequence_parallel != sp
                                                        : sp == 1 && point.degrees.tp == 1)
                continue;
            if (sp == 1 && request->seq_len / point.degrees.cp % point.degrees.tp != 0)
                continue;
            walk->c.sequence_parallel = sp == 1;
            if (!plan_refusals_keep_rules(&walk->refusals, &walk->c, PLAN_ASPECT_BATCH))
                continue;
            point.sequence_parallel = sp == 1;
            set_orders(walk, 0, &point);
            if (find_cost(walk, &point))
                add_orders(walk, point);
        }
    }
}

static bool
shape_fits(Walk *walk, const PlanDegrees *degrees)
{
    const PlanRequest *request = walk->space->request;
    ModelShape shape = {
        .batch = 1,
        .tokens = request->seq_len,
        .tp = degrees->tp,
        .cp = degrees->cp,
        .ep = degrees->ep,
        .dtype = request->dtype,
    };
    g_autoptr(GError) local = NULL;

    workload_set_conventions(&request->conventions, &request->profile->parameters, &shape);

    if (degrees->cp > 1 && request->seq_len % (2 * degrees->cp) != 0) {
        if (walk->refusals.shape == NULL)
            walk->refusals.shape =
                g_strdup_printf("--seq-len " INT " is not a multiple of 2 * --cp " INT,
                                request->seq_len, degrees->cp);
        return false;
    }
    if (model_shape_check(request->arch, &shape, &local))
        return true;
    if (walk->refusals.shape == NULL)
        walk->refusals.shape = g_strdup(local->message);
    return false;
}

/* Fills walk->orders; false if the request's is none. */
static bool
find_orders(Walk *walk, const PlanDegrees *degrees)
{
    const int fixed = walk->space->request->rank_order;
    g_autoptr(GError) local = NULL;

    walk->c.degrees.rank_order = MAX(PLAN_RANK_ORDER_DEFAULT, fixed);
    if (fixed != PLAN_AUTO &&
        !plan_refusals_keep_rules(&walk->refusals, &walk->c, PLAN_ASPECT_ORDER))
        return false;
    walk->n_orders = plan_space_orders(walk->space->request, degrees, walk->orders, &local);
    if (walk->n_orders > 0)
        return true;
    if (walk->refusals.shape == NULL)
        walk->refusals.shape = g_strdup(local->message);
    return false;
}

/* All points of the walk's tp and cp. */
static void
add_degrees(Walk *walk)
{
    const PlanRequest *request = walk->space->request;
    const int64_t tp = walk->tp, cp = walk->cp, n = walk->space->n_devices / tp / cp;
    const int64_t last_ep = MAX(MAX(1, request->ep), request->arch->experts.n_experts);

    for (int64_t pp = 1; pp <= n; pp++) {
        const int64_t dp = n / pp;
        if (n % pp != 0 || !allowed(request->pp, pp) || !allowed(request->dp, dp))
            continue;
        if (dp % MAX(1, request->conventions.optimizer_instances) != 0)
            continue;
        if (pp > plan_request_most_stages(request)) {
            if (walk->refusals.shape == NULL)
                walk->refusals.shape =
                    g_strdup_printf("--pp " INT " is more than the model's " INT " layers", pp,
                                    model_n_stacked(request->arch));
            continue;
        }
        for (int64_t ep = 1; ep <= last_ep && !is_stopped(walk); ep++) {
            const PlanPoint point = {
                .degrees = {dp, tp, pp, 1, cp, ep, PLAN_RANK_ORDER_DEFAULT},
                .recompute = (PlanRecompute)MAX(0, request->recompute),
            };
            walk->c.degrees = point.degrees;
            if (dp * tp * cp / plan_expert_tp(&point.degrees, &request->conventions) % ep == 0 &&
                allowed(request->ep, ep) &&
                plan_refusals_keep_rules(&walk->refusals, &walk->c, PLAN_ASPECT_DEGREES) &&
                find_orders(walk, &point.degrees) && shape_fits(walk, &point.degrees))
                add_batches(walk, point);
        }
    }
}

/* --- walks side by side --- */

static void
walk_init(Walk *walk, const PlanSpace *all, const PlanSpaceLimits *limits, int64_t tp, int64_t cp)
{
    *walk = (Walk){
        .space = g_new(PlanSpace, 1),
        .limits = limits,
        .tp = tp,
        .cp = cp,
        .c = plan_request_case(all->request),
        .known = g_ptr_array_new_with_free_func(known_cost_free),
        .known_chunks = g_ptr_array_new_with_free_func(known_chunks_free),
        .slices = g_array_new(FALSE, FALSE, sizeof(int64_t)),
        .most_bytes = limits->leanest_bytes,
    };
    *walk->space = *all;
    g_ptr_array_ref(walk->space->families);
    walk->space->points = g_array_new(FALSE, FALSE, sizeof(PlanPoint));
    walk->space->chunked = g_array_new(FALSE, FALSE, sizeof(PlanPoint));
    walk->space->costs = g_array_new(FALSE, FALSE, sizeof(PlanLayerCost));
}

static void
walk_clear(gpointer data)
{
    Walk *walk = data;

    plan_space_free(walk->space);
    g_ptr_array_unref(walk->known);
    g_ptr_array_unref(walk->known_chunks);
    g_array_unref(walk->slices);
    plan_refusals_clear(&walk->refusals);
}

/* ParallelFunc: walk number @i; what only its own walk looks at is freed at once. */
static void
walk_one(int64_t i, void *user_data)
{
    Walk *walk = &g_array_index((GArray *)user_data, Walk, i);

    add_degrees(walk);
    g_ptr_array_set_size(walk->known, 0);
    g_ptr_array_set_size(walk->known_chunks, 0);
}

/* Adds the points of @more behind those of @points, whose layers' costs are @n_costs further on, and
 * which were counted from @n_points on. */
static void
join_points(GArray *points, const GArray *more, int64_t n_points, int64_t n_costs)
{
    for (guint i = 0; i < more->len; i++) {
        PlanPoint point = g_array_index(more, PlanPoint, i);
        point.index += n_points;
        point.cost += n_costs;
        g_array_append_val(points, point);
    }
}

/* Adds what is in @more, whose combinations follow those of @space. */
static void
join_spaces(PlanSpace *space, const PlanSpace *more)
{
    join_points(space->points, more->points, space->n_points, space->costs->len);
    join_points(space->chunked, more->chunked, space->n_points, space->costs->len);
    g_array_append_vals(space->costs, more->costs->data, more->costs->len);
    if (more->n_large > 0 &&
        (space->n_large == 0 || more->least_large.bound_bytes < space->least_large.bound_bytes)) {
        space->least_large = more->least_large;
        space->least_large.index += space->n_points;
    }
    space->n_points += more->n_points;
    space->n_slow += more->n_slow;
    space->n_large += more->n_large;
    space->least_slow_ns = MIN(space->least_slow_ns, more->least_slow_ns);
    space->least_sliced_ns = MIN(space->least_sliced_ns, more->least_sliced_ns);
}

/* Fills @space, which has no points yet, with all combinations, and notes why others are none. */
static void
walk_all(PlanSpace *space, const PlanSpaceLimits *limits, PlanRefusals *refusals)
{
    const PlanRequest *request = space->request;
    const int64_t n = space->n_devices;
    g_autoptr(GArray) walks = g_array_new(FALSE, FALSE, sizeof(Walk));

    g_array_set_clear_func(walks, walk_clear);
    for (int64_t tp = 1; tp <= n; tp++)
        for (int64_t cp = 1; n % tp == 0 && allowed(request->tp, tp) && cp <= n / tp; cp++)
            if (n / tp % cp == 0 && allowed(request->cp, cp)) {
                Walk walk;
                walk_init(&walk, space, limits, tp, cp);
                g_array_append_val(walks, walk);
            }
    parallel_each(walks->len, request->threads, walk_one, walks);
    for (guint i = 0; i < walks->len; i++) {
        Walk *walk = &g_array_index(walks, Walk, i);
        join_spaces(space, walk->space);
        g_clear_pointer(&walk->space, plan_space_free);
        plan_refusals_join(refusals, &walk->refusals);
    }
}

/* --- public --- */

PlanSpace *
plan_space_new(const PlanRequest *request, const PlanSpaceLimits *limits, GError **error)
{
    g_autoptr(PlanSpace) space = g_new0(PlanSpace, 1);
    PlanRefusals refusals = {0};

    space->request = request;
    space->n_slices = plan_request_n_slices(request);
    space->is_automatic = plan_request_opens_schedule(request);
    space->points = g_array_new(FALSE, FALSE, sizeof(PlanPoint));
    space->chunked = g_array_new(FALSE, FALSE, sizeof(PlanPoint));
    space->costs = g_array_new(FALSE, FALSE, sizeof(PlanLayerCost));
    space->least_slow_ns = space->least_sliced_ns = INT64_MAX;
    if (!plan_request_check(request, error))
        return NULL;
    space->families = plan_request_families(request, error);
    if (space->families == NULL || !plan_request_find_devices(request, &space->n_devices, error))
        return NULL;
    walk_all(space, limits, &refusals);
    if (space->n_points == 0 && limits_stop(limits))
        g_set_error(error, PLAN_ERROR, PLAN_ERROR_INFEASIBLE, "stopped before any plan was found");
    else if (space->n_points == 0)
        plan_refusals_set_error(space, &refusals, error);
    plan_refusals_clear(&refusals);
    return space->n_points == 0 ? NULL : g_steal_pointer(&space);
}

void
plan_space_free(PlanSpace *space)
{
    if (space == NULL)
        return;
    g_clear_pointer(&space->families, g_ptr_array_unref);
    g_array_unref(space->points);
    g_array_unref(space->chunked);
    g_array_unref(space->costs);
    g_free(space);
}
