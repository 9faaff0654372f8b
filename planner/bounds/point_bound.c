#include "planner/bounds/point_bound.h"

#include <math.h>

#include "base/real.h"
#include "base/units.h"
#include "planner/bounds/rank_kinds.h"
#include "planner/bounds/sketch.h"
#include "profiles/workload/buffers.h"

/* --- memory --- */

double
plan_point_usable_bytes(const PlanRequest *request, const PlanDegrees *degrees,
                        int64_t memory_bytes, double static_bytes)
{
    if (memory_bytes == INT64_MAX)
        return INFINITY;
    /* A limit that the user gives is meant as it stands. */
    if (request->memory_limit_bytes > 0)
        return (double)memory_bytes - static_bytes;
    return (double)workload_usable_of(&request->profile->parameters, degrees, memory_bytes,
                                      (int64_t)real_min(static_bytes, 9e18)) +
           1.0 - static_bytes;
}

/* What an average rank always holds: libraries, and the state of its parameters, of all of them on
 * one, over the ranks, since shares that are rounded up one by one are no less. */
static double
static_bytes(const PlanRequest *request, const PlanLayerCost *cost, const PlanPoint *point)
{
    WorkloadParameterCounts sum = {0};

    for (int i = 0; i < PLAN_PART_N; i++)
        plan_layer_add_parameters(&sum, &cost->parts[i].parameters, cost->n[i]);
    return (double)plan_layer_state_bytes(request, &point->degrees, point->zero_stage,
                                          point->offload, &sum) /
               (double)point->degrees.pp * (1.0 - 1e-9) +
           (double)workload_library_bytes(&request->profile->parameters, &request->conventions);
}

/* Of all layers, embedding and head, as one stage; from forward to backward of one micro-batch. */
static double
kept_bytes(const PlanLayerCost *cost, int kind)
{
    return (double)plan_sketch_kept(cost, cost->n, kind);
}

/* Of one micro-batch, with the recompute kind that keeps least. */
static double
least_kept_bytes(const PlanRequest *request, const PlanLayerCost *cost)
{
    double least = INFINITY;

    for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++)
        if (plan_request_allows(request, kind))
            least = real_min(least, kept_bytes(cost, kind));
    return least;
}

int64_t
plan_point_forwards_first_bytes(const PlanRequest *request, const PlanLayerCost *cost,
                                const PlanPoint *point)
{
    const double held = (double)point->n_micro_batches * least_kept_bytes(request, cost);

    return (int64_t)real_min(
        static_bytes(request, cost, point) + held / (double)point->degrees.pp * (1.0 - 1e-9), 9e18);
}

/* What layers of @part save at the most per second of recompute; INFINITY: for nothing. */
static double
saving_rate(const PlanPartCost *part, int plain)
{
    double most = 0.0;

    for (int kind = plain + 1; kind < PLAN_RECOMPUTE_N; kind++) {
        const int64_t saved = part->kept_bytes[plain] - part->kept_bytes[kind];
        const double added = part->recompute_s[kind] - part->recompute_s[plain];
        if (saved > 0)
            most = added > 0.0 ? real_max(most, (double)saved / added) : INFINITY;
    }
    return most;
}

/* Lowers the collectives of ZeRO 3 of @point to those over @group. */
static void
lower_gathering(const PlanRequest *request, const PlanLayerCost *cost, const ProfileGroup *group,
                PlanPoint *point)
{
    const int64_t element = dtype_bytes(dtype_stored(request->dtype));
    const int64_t gradient = dtype_bytes(request->conventions.grad_dtype);
    const double n_slices = (double)plan_request_n_slices(request);
    const ProfileGroup shards = profile_group_run(group, plan_instances(&request->conventions));

    group = &shards;
    for (int i = 0; i < cost->n_kinds; i++) {
        const int64_t n = cost->parts[i].parameters.dense;
        const int64_t trained = cost->parts[i].parameters.trained_dense;
        point->gather_s[i] =
            real_min(point->gather_s[i],
                     n_slices * profile_cost_collective_s(request->profile, MODEL_COMM_ALL_GATHER,
                                                          n * element, group));
        point->scatter_s[i] = real_min(
            point->scatter_s[i],
            trained == 0
                ? 0.0
                : n_slices * profile_cost_collective_s(request->profile, MODEL_COMM_REDUCE_SCATTER,
                                                       trained * gradient, group));
    }
}

/* The collectives of ZeRO 3 (profiles/workload/zero3.c), all tensors of a layer at once, in the
 * order and on the rank that have them nearest. */
static void
set_gathering(const PlanRequest *request, const PlanLayerCost *cost, PlanPoint *point)
{
    const bool is_split = point->zero_stage >= 3 && point->degrees.dp * point->degrees.cp > 1;
    const bool alike = is_split && plan_sketch_ranks_are_alike(request, &point->degrees);
    const bool gathers =
        is_split && (alike || plan_rank_reductions(request, &point->degrees) != NULL);
    PlanDegrees d = point->degrees;

    for (int i = 0; i < MODEL_MAX_KINDS; i++)
        point->gather_s[i] = point->scatter_s[i] = gathers && i < cost->n_kinds ? INFINITY : 0.0;
    for (uint32_t orders = gathers ? plan_point_orders(point) : 0; orders != 0;
         orders &= orders - 1) {
        d.rank_order = g_bit_nth_lsf(orders, -1);
        if (alike) {
            const ProfileMesh mesh = plan_layer_mesh(request, &d);
            const ProfileGroup group = profile_group_at(&mesh, PROFILE_GROUP_DENSE, 0);
            lower_gathering(request, cost, &group, point);
            continue;
        }
        const GArray *all = plan_rank_reductions(request, &d);
        for (guint i = 0; i < all->len; i++)
            lower_gathering(request, cost, &g_array_index(all, PlanReductionGroups, i).dense,
                            point);
    }
}

double
plan_point_sliced_added_s(const PlanPartCost *part, int plain, int kind)
{
    const double by_kind[PLAN_RECOMPUTE_N] = {
        [PLAN_RECOMPUTE_SELECTIVE] = part->sliced_core_s,
        [PLAN_RECOMPUTE_FULL] = part->sliced_forward_s,
    };

    return by_kind[kind] - by_kind[plain];
}

/* What layers of @part save at the most per second of recompute of any slices. */
static double
sliced_saving_rate(const PlanPartCost *part, int plain)
{
    double most = 0.0;

    for (int kind = plain + 1; kind < PLAN_RECOMPUTE_N; kind++) {
        const int64_t saved = part->sliced_bytes[plain] - part->sliced_bytes[kind];
        const double added = plan_point_sliced_added_s(part, plain, kind);
        if (saved > 0)
            most = added > 0.0 ? real_max(most, (double)saved / added) : INFINITY;
    }
    return most;
}

/* The most of all kinds of layers. */
static double
most_of_kinds(const PlanLayerCost *cost, double (*rate)(const PlanPartCost *, int), int plain)
{
    double most = 0.0;

    for (int i = 0; i < cost->n_kinds; i++)
        most = real_max(most, rate(&cost->parts[i], plain));
    return most;
}

double
plan_point_sliced_rate(const PlanRequest *request, const PlanLayerCost *cost)
{
    if (!plan_attention_is_flash(request->conventions.attention) ||
        request->profile->measurements->len > 0 || !plan_full_repeats_all(&request->conventions))
        return INFINITY;
    return request->recompute == PLAN_AUTO
               ? most_of_kinds(cost, sliced_saving_rate, plan_request_fastest_recompute(request))
               : 0.0;
}

/* Before the first backward of the last stage of a micro-batch every rank holds all of its slices;
 * of unfused attention slices keep half of the scores. */
void
plan_point_set_group(const PlanRequest *request, const PlanLayerCost *cost, int64_t memory_bytes,
                     int64_t group, PlanPoint *point)
{
    const double always = static_bytes(request, cost, point);
    const double usable = plan_point_usable_bytes(request, &point->degrees, memory_bytes, always);
    const double part = (double)group / (double)point->micro_batch;
    const int plain = plan_request_fastest_recompute(request);
    const PlanAttention attention = request->conventions.attention;
    const bool keeps_scores = !plan_attention_is_flash(attention);
    const double p = (double)point->degrees.pp;
    const double share = part * (keeps_scores ? 0.5 : 1.0 - 1e-3);
    double least = least_kept_bytes(request, cost);

    if (keeps_scores)
        least = real_min(least, kept_bytes(cost, PLAN_RECOMPUTE_SELECTIVE));
    point->sliced_bytes = (int64_t)real_min(always + share * least / p, 9e18);
    if (share * least / p * (1.0 - 1e-9) > usable)
        point->sliced_bytes = MAX(point->sliced_bytes, memory_bytes + 1);
    point->sliced_recompute_s = 0.0;
    if (request->recompute != PLAN_AUTO || memory_bytes == INT64_MAX || keeps_scores ||
        !plan_full_repeats_all(&request->conventions))
        return;
    const double rate = most_of_kinds(cost, sliced_saving_rate, plain);
    const double excess = (share * kept_bytes(cost, plain) - usable * p) * (1.0 - 1e-9);
    if (excess > 0.0 && rate > 0.0)
        point->sliced_recompute_s = excess / rate / part;
}

void
plan_point_bound_bytes(const PlanRequest *request, const PlanLayerCost *cost, int64_t memory_bytes,
                       PlanPoint *point)
{
    const int plain = plan_request_fastest_recompute(request);
    const double p = (double)point->degrees.pp, always = static_bytes(request, cost, point);
    const double usable = plan_point_usable_bytes(request, &point->degrees, memory_bytes, always);
    const double least = least_kept_bytes(request, cost);

    /* When a micro-batch's first backward begins, all ranks hold its activations in all their
     * layers at once: the average rank's share of both. */
    const double bytes = real_min(always + least / p * (1.0 - 1e-9), 9e18);
    point->bound_bytes = (int64_t)bytes;
    plan_point_set_group(request, cost, memory_bytes,
                         plan_point_regroups(request, point) ? 1 : point->micro_batch, point);
    point->recompute_s = cost->all.recompute_s[plain];
    point->end_s = plan_sketch_average_end_s(request, cost, point);
    set_gathering(request, cost, point);
    if (request->recompute != PLAN_AUTO || memory_bytes == INT64_MAX)
        return;
    const double rate = most_of_kinds(cost, saving_rate, plain);
    const double excess = (kept_bytes(cost, plain) - usable * p) * (1.0 - 1e-9);
    if (excess > 0.0 && rate > 0.0)
        point->recompute_s += excess / rate;
}

/* --- time --- */

/* The least share of a part's time, of both passes, with recompute kinds from @first on, @beside_s
 * added, that the ranks after it wait for. */
static double
least_fraction(const PlanRequest *request, const PlanLayerCost *cost, const PlanLayerCost *slice,
               int first, int last, const double *beside_s, bool splits)
{
    double least = 1.0;

    for (int i = 0; i < PLAN_PART_N; i++)
        for (int kind = first; kind <= last; kind++) {
            const PlanPartCost *all = &cost->parts[i], *one = &slice->parts[i];
            const double all_s =
                all->forward_s + all->backward_s + all->recompute_s[kind] + beside_s[i];
            const double one_s =
                one->forward_s + (splits ? 0.0 : one->backward_s + one->recompute_s[kind]);
            if (cost->n[i] > 0 && all_s > 0.0 && plan_request_allows(request, kind))
                least = real_min(least, one_s / all_s);
        }
    return least;
}

/* Any division of the layers into single chunks: the sum of point_bound.h. */
static double
geometric_bound_s(const PlanPoint *point, double whole_s, double fraction)
{
    const double m = (double)point->n_micro_batches, q = 1.0 - fraction / m;
    double power = 1.0;

    /* Not pow(): its last bit is the library's choice. */
    for (int64_t i = 0; i < point->degrees.pp; i++)
        power *= q;
    return power < 1.0 ? whole_s * fraction / (1.0 - power) : 0.0;
}

/* What overlapped pairs hide of a layer at the most. */
static double
most_hidden_s(const PlanLayerCost *cost)
{
    double most_s = 0.0;

    for (int i = 0; i < cost->n_kinds; i++)
        most_s = real_max(most_s, cost->parts[i].hidden_s);
    return most_s;
}

/* The last rank of even stages, after one chunk of each rank before it and, unsplit, before their
 * backwards; its layers recompute what the request fixes.  The last stages are the longer ones: of
 * several chunks some rank has its share of them, in a V the first one, which waits for nothing. */
static double
even_bound_s(const PlanRequest *request, const PlanLayerCost *cost, const PlanLayerCost *slice,
             const PlanPoint *point, const PlanPointFamilies *families)
{
    const int plain = plan_request_fastest_recompute(request);
    const double m = (double)point->n_micro_batches, v = (double)point->degrees.vpp;
    const double p = (double)point->degrees.pp;
    const int64_t n_stages = point->degrees.pp * point->degrees.vpp;
    const int64_t longer = model_n_stacked(request->arch) % n_stages;
    const int64_t n_layers = model_n_stacked(request->arch) / n_stages;
    const int64_t n_longer = (longer + point->degrees.pp - 1) / point->degrees.pp; /* of a rank */
    const double n = (double)n_layers;
    const double layer_s =
        cost->layer.forward_s + cost->layer.backward_s + cost->layer.recompute_s[plain];
    const double layer_wait_s =
        slice->layer.forward_s + (families->splits_backward
                                      ? 0.0
                                      : slice->layer.backward_s + slice->layer.recompute_s[plain]);
    const double layer_work_s = layer_s - (families->overlaps ? most_hidden_s(cost) : 0.0);
    const double head_s =
        cost->parts[PLAN_PART_HEAD].forward_s + cost->parts[PLAN_PART_HEAD].backward_s;

    if (point->degrees.vpp > 1) {
        const double most = v * n + (double)n_longer;
        return real_max(m * v * n * layer_work_s + (p - 1.0) * n * layer_wait_s,
                        m * most * layer_work_s);
    }
    const double last = n + (longer > 0 ? 1.0 : 0.0);
    return m * (last * layer_work_s + head_s) +
           ((double)model_n_stacked(request->arch) - last) * layer_wait_s;
}

/* A device may do so much besides a part's backward, whatever the part recomputes. */
static double
most_slack_s(const PlanPartCost *part)
{
    double slack_s = 0.0;

    for (int kind = 0; kind < PLAN_RECOMPUTE_N; kind++)
        slack_s = real_max(slack_s, part->host_slack_s[kind]);
    return slack_s;
}

/* Adding up the gradients of a part, and what ZeRO 3's hidden collectives slow computing down,
 * whatever is recomputed. */
static double
part_beside_s(const PlanRequest *request, const PlanLayerCost *cost, const PlanPoint *point,
              double accumulated, int i)
{
    const PlanPartCost *part = &cost->parts[i];
    const double interference = request->profile->parameters.interference_fraction;
    double forward_s = 0.0, backward_s = accumulated * part->accumulate_s;

    if (i < PLAN_PART_EMBEDDING) {
        forward_s = interference * point->gather_s[i];
        backward_s += interference * (point->gather_s[i] + point->scatter_s[i]);
    }
    return real_max(0.0, forward_s - part->forward_slack_s) +
           real_max(0.0, backward_s - most_slack_s(part));
}

/* What ZeRO 3 adds to all layers' forwards and backwards, unless gathers far ahead hide behind the
 * ends. */
static double
gathering_s(const PlanRequest *request, const PlanLayerCost *cost, const PlanPoint *point)
{
    double sum = 0.0;

    for (int i = 0; i < cost->n_kinds && plan_sketch_prefetch(request, cost) <= 1; i++) {
        const PlanPartCost *part = &cost->parts[i];
        sum += (double)cost->n[i] *
               (real_max(0.0, point->gather_s[i] - part->forward_s) +
                real_max(0.0, point->gather_s[i] + point->scatter_s[i] - part->backward_s));
    }
    return sum;
}

/* Of single chunks, however the layers are divided; @whole_s with @beside_s of each part. */
static double
chained_bound_s(const PlanRequest *request, const PlanLayerCost *cost, const PlanLayerCost *slice,
                const PlanPoint *point, double whole_s, const double *beside_s, bool splits)
{
    static const double nothing[PLAN_PART_N];
    const int plain = plan_request_fastest_recompute(request);

    if (slice == cost && !splits)
        return geometric_bound_s(point, whole_s, 1.0);
    /* With what must be recomputed, and without. */
    return real_max(
        geometric_bound_s(
            point, whole_s,
            least_fraction(request, cost, slice, plain, PLAN_RECOMPUTE_N - 1, beside_s, splits)),
        geometric_bound_s(point,
                          cost->all.forward_s + cost->all.backward_s + cost->all.recompute_s[plain],
                          least_fraction(request, cost, slice, plain, plain, nothing, splits)));
}

/* What the stage before waits for. */
static double
way_back_s(const PlanPartCost *part, int recompute, bool splits)
{
    return splits ? part->input_s + part->input_recompute_s[recompute]
                  : part->backward_s + part->recompute_s[recompute];
}

/*
 * The first slice of one micro-batch goes through all stages, and its gradient back; with even
 * stages all other slices pass the last stage meanwhile.  Input gradients suffice for the way back.
 */
static double
way_bound_s(const PlanRequest *request, const PlanLayerCost *cost, const PlanLayerCost *slice,
            const PlanPoint *point, const PlanPointFamilies *families)
{
    const int plain = plan_request_fastest_recompute(request);
    const bool splits = families->splits_backward;
    const int64_t n_layers =
        model_n_stacked(request->arch) / (point->degrees.pp * point->degrees.vpp);
    const double n_last = families->bidirectional || point->is_balanced ? 0.0 : (double)n_layers;
    const double path_s = slice->all.forward_s + way_back_s(&slice->all, plain, splits);
    const double last_s = cost->layer.forward_s + way_back_s(&cost->layer, plain, splits);
    const double first_s = slice->layer.forward_s + way_back_s(&slice->layer, plain, splits);

    return path_s + n_last * ((double)point->n_micro_batches * last_s - first_s);
}

/* The sums of a bound round; a Workload rounds each op of a rank's @n_virtual_ids to the
 * nanosecond.  Where overlapped pairs may hide more than there is, @bound_s is negative and bounds
 * nothing. */
static int64_t
rounded_ns(double bound_s, double n_virtual_ids)
{
    const int64_t ns = units_ns_from_s(real_max(0.0, bound_s) * (1.0 - 1e-9));

    return MAX(0, ns - (int64_t)(2.0 * n_virtual_ids) - 2);
}

int64_t
plan_point_bound_ns(const PlanRequest *request, const PlanLayerCost *cost,
                    const PlanLayerCost *slice, const PlanPoint *point,
                    const PlanPointFamilies *families)
{
    const double m = (double)point->n_micro_batches, v = (double)point->degrees.vpp;
    const double n_virtual_ids = m * (double)plan_request_n_slices(request);
    const PlanLayerShape shape = plan_point_layer_shape(point);
    const double accumulated = plan_layer_accumulated(request, &shape, n_virtual_ids);
    const double least_s = cost->all.forward_s + cost->all.backward_s + point->recompute_s;
    const bool chained = !families->bidirectional && point->degrees.pp > 1;
    double beside_s[PLAN_PART_N], whole_s = least_s;

    for (int i = 0; i < PLAN_PART_N; i++) {
        beside_s[i] = part_beside_s(request, cost, point, accumulated, i);
        whole_s += (double)cost->n[i] * beside_s[i];
    }
    const double gathered_s =
        real_max(whole_s, least_s - point->recompute_s + gathering_s(request, cost, point));
    /* Overlapped pairs hide collectives, ZeRO 3's too. */
    const double work_s = families->overlaps ? least_s - cost->all.hidden_s : gathered_s;
    double bound_s = m * work_s / (double)point->degrees.pp + point->end_s;
    if (point->n_fast_ranks > 0.0)
        bound_s =
            real_max(bound_s, m * (least_s - (families->overlaps ? cost->all.hidden_s : 0.0)) /
                                  point->n_fast_ranks);

    if (chained && point->is_balanced && point->degrees.vpp == 1)
        bound_s = real_max(
            bound_s,
            chained_bound_s(request, cost, slice, point,
                            slice == cost && !families->splits_backward ? gathered_s : whole_s,
                            beside_s, families->splits_backward));
    else if (chained && !point->is_balanced)
        bound_s = real_max(bound_s, even_bound_s(request, cost, slice, point, families));
    bound_s = real_max(bound_s, way_bound_s(request, cost, slice, point, families));
    return rounded_ns(bound_s, n_virtual_ids * v);
}

int64_t
plan_point_least_ns(const PlanRequest *request, const PlanLayerCost *cost, const PlanPoint *point,
                    int64_t most_chunks, bool overlaps)
{
    const double m = (double)point->n_micro_batches;
    const double work_s = cost->all.forward_s + cost->all.backward_s +
                          cost->all.recompute_s[plan_request_fastest_recompute(request)] -
                          (overlaps ? cost->all.hidden_s : 0.0);

    return rounded_ns(m * work_s / plan_point_fast_ranks(point),
                      m * (double)plan_request_n_slices(request) * (double)most_chunks);
}

int64_t
plan_point_sliced_ns(const PlanRequest *request, const PlanLayerCost *cost, const PlanPoint *point)
{
    const double m = (double)point->n_micro_batches;
    const PlanLayerShape shape = plan_point_layer_shape(point);
    double whole_s =
        cost->all.sliced_forward_s + cost->all.sliced_backward_s + point->sliced_recompute_s;

    if (request->recompute == PLAN_RECOMPUTE_FULL && plan_full_repeats_all(&request->conventions))
        whole_s += cost->all.sliced_forward_s - cost->parts[PLAN_PART_EMBEDDING].sliced_forward_s -
                   cost->parts[PLAN_PART_HEAD].sliced_forward_s;
    else if (request->recompute == PLAN_RECOMPUTE_SELECTIVE)
        whole_s += cost->all.sliced_core_s;
    /* Kernels that add up gradients, in each of two slices at the least. */
    if (!plan_framework_fuses_accumulation(&request->conventions, shape.sequence_parallel, true))
        whole_s += plan_layer_accumulated(request, &shape, 2.0 * m) * cost->all.accumulate_s;
    /* Rounding takes half a nanosecond off an op: less than a thousandth, as kernels take longer
     * than half a microsecond to start. */
    const double average_s = 0.999 * real_max(0.0, whole_s) * m / (double)point->degrees.pp +
                             point->end_s * (1.0 - 1e-9);
    return units_ns_from_s(
        real_max(average_s, 0.999 * real_max(0.0, whole_s) * m / plan_point_fast_ranks(point)));
}
