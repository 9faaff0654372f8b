#include "planner/bounds/floor_setup.h"

#include <math.h>

#include "base/real.h"
#include "planner/bounds/point_bound.h"
#include "planner/bounds/rank_kinds.h"
#include "planner/bounds/sketch.h"
#include "schedule/rank_order.h"

/* The first rank up to @r that is like it and whose first stage has at least @layers of each kind; -1: none. */
static int64_t
first_as_long(const PlanFloor *floor, int64_t r, const double *layers)
{
    for (int64_t q = 0; q <= r; q++) {
        bool is_as_long = q == r || plan_floor_are_alike(floor, q, r);
        for (int k = 0; k < floor->cost->n_kinds && is_as_long; k++)
            is_as_long = floor->first[q][k] >= layers[k];
        if (is_as_long)
            return q;
    }
    return -1;
}

void
plan_floor_clear(PlanFloor *floor)
{
    g_free(floor->first);
    g_free(floor->all);
    g_free(floor->stages);
    g_free(floor->orders);
    g_clear_pointer(&floor->places_groups, g_array_unref);
    g_free(floor->places);
    g_free(floor->ends);
    g_free(floor->place_of_rank);
    g_free(floor->likes);
    g_free(floor->as_long);
    g_free(floor->rounds);
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

/* Layers of all kinds in one stage. */
static double
n_layers(const PlanFloor *floor, int64_t stage)
{
    double sum = 0.0;

    for (int k = 0; k < floor->cost->n_kinds; k++)
        sum += floor->stages[stage][k];
    return sum;
}

/* The chunk but the last one to which slices, as many as ranks, wait longest for rank @r. */
static int64_t
longest_round(const PlanFloor *floor, int64_t r)
{
    const int64_t pp = floor->point->degrees.pp, vpp = floor->point->degrees.vpp;
    double wait = 0.0, most = -INFINITY;
    int64_t longest = 0;

    for (int64_t stage = 0; stage < (vpp - 1) * pp; stage++) {
        if (stage % pp == r && stage > r && wait >= most) {
            most = wait;
            longest = stage / pp;
        }
        wait += n_layers(floor, stage);
        if (stage % pp == r)
            wait -= (double)pp * n_layers(floor, stage);
    }
    return longest;
}

static void
set_rounds(PlanFloor *floor)
{
    const int64_t pp = floor->point->degrees.pp, vpp = floor->point->degrees.vpp;

    floor->rounds = g_malloc0((size_t)pp * sizeof *floor->rounds);
    for (int64_t r = 0; r < pp; r++)
        for (int j = 0; j < PLAN_FLOOR_ROUNDS; j++) {
            PlanFloorRound *round = &floor->rounds[r][j];
            round->chunk = j == 0 ? vpp - 1 : longest_round(floor, r);
            round->as_long = first_as_long(floor, r, floor->stages[round->chunk * pp + r]);
        }
}

/* Whether nothing takes less in order @b of ranks than in order @a. */
static bool
is_no_worse(const PlanFloorOrder *a, const PlanFloorOrder *b, int64_t pp)
{
    for (int64_t r = 0; r <= pp; r++)
        for (int pass = 0; pass < PLAN_FLOOR_PASSES; pass++) {
            const PlanFloorMessage *x =
                r < pp ? &a->messages->to[r][pass] : &a->messages->round[pass];
            const PlanFloorMessage *y =
                r < pp ? &b->messages->to[r][pass] : &b->messages->round[pass];
            if (x->latency_s > y->latency_s || x->row_s > y->row_s)
                return false;
        }
    return a->end_s <= b->end_s;
}

/* Sets the orders in which ranks may lie, of which each has its own messages and its own reduction after
 * the last op of rank 0, which has @n of each part; returns the least time after that op. */
static double
set_orders(PlanFloor *floor, PlanMemo *memo, const int64_t n[PLAN_PART_N])
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
        order->messages = plan_floor_messages(memo, floor->request, &one);
        order->end_s = plan_sketch_end_s(floor->request, floor->cost, &one, n) * (1.0 - 1e-9);
        for (int i = 0; i < floor->n_orders && !is_known; i++)
            is_known = is_no_worse(&floor->orders[i], order, point->degrees.pp);
        if (is_known)
            continue;
        least_s = real_min(least_s, order->end_s);
        floor->n_orders++;
    }
    for (int i = 0; i < floor->n_orders; i++)
        floor->orders[i].end_s -= least_s;
    return least_s;
}

double
plan_floor_init(PlanFloor *floor, const PlanFloorAsked *asked, const PlanFloorMemory *memory)
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
        .granularity = plan_granularity(&point->degrees, point->sequence_parallel),
        .n_sequences = point->n_micro_batches * point->micro_batch,
        .interference = request->profile->parameters.interference_fraction,
        .ends_hide = plan_sketch_prefetch(request, cost) > 1,
    };
    set_layers(floor, asked->counts);
    floor->place_of_rank = g_new(int32_t, (size_t)pp);
    floor->places_groups = plan_rank_places(request, point, floor->place_of_rank);
    if (floor->places_groups == NULL)
        plan_rank_kinds(request, point, floor->place_of_rank);
    floor->likes = g_new0(int32_t, (size_t)pp);
    if (!plan_sketch_ranks_are_alike(request, &point->degrees))
        plan_rank_likes(request, point, floor->place_of_rank, floor->likes);
    floor->n_places = floor->places_groups == NULL ? request->profile->cluster->nodes->len
                                                   : floor->places_groups->len / MODEL_GROUP_N;
    floor->places = g_new(const PlanFloorKind *, floor->n_places);
    floor->ends = g_new(const PlanFloorKind *, floor->n_places);
    floor->as_long = g_new(int64_t, (size_t)pp);
    for (int64_t r = 0; r < pp; r++)
        floor->as_long[r] = first_as_long(floor, r, floor->first[r]);
    set_rounds(floor);
    for (int i = 0; i < cost->n_kinds; i++)
        n[i] = (int64_t)floor->all[0][i];
    return set_orders(floor, asked->memo, n);
}

void
plan_floor_set_group(PlanFloor *floor, PlanMemo *memo, int64_t group, bool is_rough)
{
    const int64_t rows = group * floor->request->seq_len;
    const GArray *groups = floor->places_groups;

    floor->group = group;
    floor->ends_table = NULL;
    for (guint i = 0; i < floor->n_places; i++) {
        const ProfileGroup *at =
            groups == NULL ? NULL : &g_array_index(groups, ProfileGroup, i * MODEL_GROUP_N);
        if (i == 0 || groups != NULL)
            floor->table = plan_floor_table(memo, floor->request, floor->point, rows, at, is_rough);
        floor->places[i] = &floor->table->kinds[groups == NULL ? i : 0];
    }
}

void
plan_floor_set_ends(PlanFloor *floor, PlanMemo *memo)
{
    const int64_t rows = floor->group * floor->request->seq_len;
    const GArray *groups = floor->places_groups;

    if (floor->ends_table != NULL || floor->request->arch->vocab == 0)
        return;
    for (guint i = 0; i < floor->n_places; i++) {
        const ProfileGroup *at =
            groups == NULL ? NULL : &g_array_index(groups, ProfileGroup, i * MODEL_GROUP_N);
        if (i == 0 || groups != NULL)
            floor->ends_table = plan_floor_ends_table(memo, floor->request, floor->point, rows, at);
        floor->ends[i] = &floor->ends_table->kinds[groups == NULL ? i : 0];
    }
}
