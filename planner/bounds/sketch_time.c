/*
 * What the ranks of a sketch take at the least; sketch.c has what they hold.
 */
#include "planner/bounds/sketch.h"

#include <math.h>

#include "base/real.h"
#include "base/units.h"
#include "planner/bounds/rank_kinds.h"
#include "profiles/workload/step.h"
#include "profiles/workload/zero3.h"

/* --- stages --- */

/* Sums over the parts of a stage. */
typedef struct {
    double forward_s, backward_s, gradient_s; /* both backward times with what is recomputed */
    double weight_s;                          /* of a split backward, at the least */
    double hidden_s; /* of forward_s and backward_s, by overlapped pairs at the most */
} StageTimes;

/* What ZeRO 3 does in a layer's ops. */
typedef struct {
    double gather_s, scatter_s;
    int64_t n_backward;  /* gathers of a backward */
    double interference; /* of a hidden second */
} Gathering;

/*
 * An op of @op_s, of which the host leaves the device @slack_s, with @seconds of ZeRO 3's
 * collectives behind it: what is longer than the device computes stays visible, what is hidden slows
 * it down (profiles/workload/zero3.c).  Grows with @op_s and falls with @slack_s; of the sums over
 * several ops it is at most the sum over them.
 */
static double
gathered_s(const Gathering *g, double op_s, double slack_s, double seconds)
{
    const double device_s = op_s - slack_s;

    return real_max(
        op_s, real_max(device_s + g->interference * seconds, g->interference * device_s + seconds));
}

/* One part in @kind, its gradients added up for @accumulate_s. */
static StageTimes
part_times(const PlanPartCost *part, int kind, double accumulate_s)
{
    return (StageTimes){
        .forward_s = part->forward_s,
        .backward_s = part->backward_s + part->recompute_s[kind] +
                      real_max(0.0, accumulate_s - part->host_slack_s[kind]),
        .gradient_s = part->input_s + part->input_recompute_s[kind],
        .weight_s = part->weight_s,
    };
}

/* As part_times(), with ZeRO 3; of the halves of a backward, where @splits, the lesser of both. */
static StageTimes
gathered_times(const PlanPartCost *part, int kind, double accumulate_s, const Gathering *g,
               bool splits)
{
    const double slack_s = part->host_slack_s[kind];
    const double gather_s = g->gather_s * (double)g->n_backward;
    const StageTimes plain = part_times(part, kind, accumulate_s);
    const double halves_s = gathered_s(g, plain.gradient_s, part->input_slack_s[kind], gather_s) +
                            gathered_s(g, part->weight_s, part->weight_slack_s, g->scatter_s);
    const double whole_s = gathered_s(g, plain.backward_s, real_max(0.0, slack_s - accumulate_s),
                                      gather_s + g->scatter_s);
    /* Halves take no less than the whole, were nothing hidden. */
    const double least_s =
        real_max(plain.backward_s, plain.backward_s - real_max(0.0, slack_s - accumulate_s) +
                                       g->interference * (gather_s + g->scatter_s));

    return (StageTimes){
        .forward_s = gathered_s(g, plain.forward_s, part->forward_slack_s, g->gather_s),
        .backward_s = splits ? real_min(whole_s, real_max(least_s, halves_s)) : whole_s,
        .gradient_s = gathered_s(g, plain.gradient_s, part->input_slack_s[kind], gather_s),
        .weight_s = gathered_s(g, part->weight_s, part->weight_slack_s, g->scatter_s),
    };
}

/* What layers take on @rank for a micro-batch. */
static const PlanLayerCost *
cost_at(const PlanSketchInput *input, int32_t rank)
{
    return input->rank_costs != NULL && input->slice == input->cost ? input->rank_costs[rank]
                                                                    : input->cost;
}

/* Of one micro-batch, or of its first slice. */
static StageTimes
stage_times(const PlanSketchInput *input, bool of_slice, const PlanSketchStage *stage, int kind,
            double accumulated)
{
    const PlanLayerCost *cost = of_slice ? input->slice : cost_at(input, stage->rank);
    const double fraction = of_slice ? 1.0 / (double)input->n_slices : 1.0;
    const PlanPoint *point = input->point;
    StageTimes t = {0};

    for (int i = 0; i < PLAN_PART_N; i++) {
        const PlanPartCost *part = &cost->parts[i];
        const double accumulate_s = accumulated * part->accumulate_s;
        const double n = (double)stage->n[i];
        StageTimes one;
        if (n == 0.0)
            continue;
        /* Overlapped pairs hide what is gathered too, and gathers far ahead hide behind others. */
        if (point->zero_stage >= 3 && i < PLAN_PART_EMBEDDING && !input->family->overlaps &&
            plan_sketch_prefetch(input->request, input->cost) <= 1) {
            const PlanRequest *request = input->request;
            const Gathering g = {fraction * point->gather_s[i], fraction * point->scatter_s[i],
                                 workload_zero3_gathers(&request->conventions, (PlanRecompute)kind),
                                 request->profile->parameters.interference_fraction};
            one = gathered_times(part, kind, accumulate_s, &g, input->family->splits_backward);
        } else {
            one = part_times(part, kind, accumulate_s);
        }
        t.forward_s += n * one.forward_s;
        t.backward_s += n * one.backward_s;
        t.gradient_s += n * one.gradient_s;
        t.weight_s += n * one.weight_s;
        t.hidden_s += input->family->overlaps ? n * part->hidden_s : 0.0;
    }
    return t;
}

double
plan_sketch_passes_s(const PlanLayerCost *cost, const int64_t n[PLAN_PART_N], int kind)
{
    double sum = 0.0;

    for (int i = 0; i < PLAN_PART_N; i++) {
        const StageTimes one = part_times(&cost->parts[i], kind, 0.0);
        sum += (double)n[i] * (one.forward_s + one.backward_s);
    }
    return sum;
}

/* --- what follows the last op --- */

bool
plan_sketch_ranks_are_alike(const PlanRequest *request, const PlanDegrees *d)
{
    const ProfileMesh mesh = plan_layer_mesh(request, d);

    return profile_mesh_is_aligned(&mesh);
}

/* Seconds of reducing the gradients of @n parameters over @group, and of gathering the weights. */
static double
reduction_s(const PlanRequest *request, int32_t zero_stage, const ProfileGroup *group, int64_t n)
{
    const int64_t gradients = n * dtype_bytes(request->conventions.grad_dtype);
    const int64_t weights = n * dtype_bytes(dtype_stored(request->dtype));
    double seconds = 0.0;

    if (group->n == 1 || n == 0 || zero_stage >= 3)
        return 0.0;
    /* At the least: what parts of the group that each hold all do among themselves. */
    const int64_t parts = plan_instances(&request->conventions);
    const ProfileGroup shards =
        profile_group_run(group, zero_stage > 0 && group->n % parts == 0 ? parts : 1);
    group = &shards;
    /* Behind the last backward it may cost nothing. */
    if (!request->conventions.overlap_dp)
        seconds += profile_cost_collective_s(
            request->profile, zero_stage == 0 ? MODEL_COMM_ALL_REDUCE : MODEL_COMM_REDUCE_SCATTER,
            gradients, group);
    if (zero_stage > 0 && !plan_framework_gathers_ahead(&request->conventions))
        seconds +=
            profile_cost_collective_s(request->profile, MODEL_COMM_ALL_GATHER, weights, group);
    return seconds;
}

/* Seconds of adding up the gradients of a table that the first and the last rank both have. */
static double
tied_s(const PlanRequest *request, const PlanDegrees *d, const PlanLayerCost *cost,
       const int64_t n[PLAN_PART_N])
{
    const ProfileMesh mesh = plan_layer_mesh(request, d);

    if (cost->tied_parameters == 0 || request->arch->lora.rank > 0 || d->pp == 1 ||
        request->conventions.overlap_dp || (n[PLAN_PART_EMBEDDING] > 0) == (n[PLAN_PART_HEAD] > 0))
        return 0.0;
    const ProfileGroup pair = profile_group_pair(&mesh, 0, d->pp - 1);
    return profile_cost_collective_s(
        request->profile, MODEL_COMM_ALL_REDUCE,
        cost->tied_parameters * dtype_bytes(request->conventions.grad_dtype), &pair);
}

/* The groups of @d whose reductions may be the least: one where ranks lie alike.  @own has room for it;
 * returns how many there are, 0: nothing is known. */
static guint
reductions_of(const PlanRequest *request, const PlanDegrees *d, PlanReductionGroups *own,
              const PlanReductionGroups **groups)
{
    *groups = own;
    if (plan_sketch_ranks_are_alike(request, d)) {
        const ProfileMesh mesh = plan_layer_mesh(request, d);
        own->dense = profile_group_at(&mesh, PROFILE_GROUP_DENSE, 0);
        own->expert = profile_group_at(&mesh, PROFILE_GROUP_EXPERT, 0);
        return 1;
    }
    const GArray *all = plan_rank_reductions(request, d);
    if (all == NULL)
        return 0;
    *groups = (const PlanReductionGroups *)(const void *)all->data;
    return all->len;
}

/* On the rank where it takes least in the order that @d says. */
static double
order_end_s(const PlanRequest *request, const PlanDegrees *d, int32_t zero_stage, int64_t n_dense,
            int64_t n_expert)
{
    PlanReductionGroups own;
    const PlanReductionGroups *groups;
    const guint n = reductions_of(request, d, &own, &groups);
    double least_s = n > 0 ? INFINITY : 0.0;

    for (guint i = 0; i < n; i++)
        least_s =
            real_min(least_s, reduction_s(request, zero_stage, &groups[i].dense, n_dense) +
                                  reduction_s(request, zero_stage, &groups[i].expert, n_expert));
    return least_s;
}

/* The optimizer's step on the kind of device that takes least. */
static double
step_s(const PlanRequest *request, const PlanPoint *point, const WorkloadParameterCounts *counts)
{
    const ModelCluster *cluster = request->profile->cluster;
    const WorkloadStep step = {&point->degrees, &request->conventions,
                               request->dtype,  point->zero_stage,
                               point->offload,  request->offload_parameters};
    const WorkloadParameters n = workload_parameters_least(counts);
    double least_s = INFINITY;

    for (guint i = 0; i < cluster->nodes->len; i++) {
        const ModelNodes *nodes = &g_array_index(cluster->nodes, ModelNodes, i);
        const ModelDevice *device =
            &g_array_index(cluster->devices, ModelDevice, (guint)nodes->device);
        least_s = real_min(least_s, workload_step_s(request->profile, device, &step, &n));
    }
    return least_s;
}

double
plan_sketch_end_s(const PlanRequest *request, const PlanLayerCost *cost, const PlanPoint *point,
                  const int64_t n[PLAN_PART_N])
{
    PlanDegrees d = point->degrees;
    double least_s = INFINITY;
    WorkloadParameterCounts sum = {0};

    for (int i = 0; i < PLAN_PART_N; i++)
        plan_layer_add_parameters(&sum, &cost->parts[i].parameters, n[i]);
    for (uint32_t orders = plan_point_orders(point); orders != 0; orders &= orders - 1) {
        d.rank_order = g_bit_nth_lsf(orders, -1);
        least_s = real_min(least_s, tied_s(request, &d, cost, n) +
                                        order_end_s(request, &d, point->zero_stage,
                                                    sum.trained_dense, sum.trained_expert));
    }
    return least_s + step_s(request, point, &sum);
}

double
plan_sketch_average_end_s(const PlanRequest *request, const PlanLayerCost *cost,
                          const PlanPoint *point)
{
    const int64_t copies = point->degrees.dp * point->degrees.cp;
    const int64_t expert_copies = plan_expert_replicas(&point->degrees, &request->conventions);

    /* A share of each kind is rounded down. */
    const WorkloadParameterCounts rest = {copies, expert_copies, copies, expert_copies};
    int64_t n[PLAN_PART_N], n_groups = 1;
    PlanDegrees d = point->degrees;

    if (request->profile->measurements->len > 0)
        return 0.0;
    /* The ranks of one kind of groups have at least an equal share of all parts, and together they take no
     * less than one of them with all that they have. */
    for (uint32_t orders = plan_point_orders(point); orders != 0; orders &= orders - 1) {
        PlanReductionGroups own;
        const PlanReductionGroups *groups;
        d.rank_order = g_bit_nth_lsf(orders, -1);
        const int64_t n_of_order = (int64_t)reductions_of(request, &d, &own, &groups);
        n_groups = MAX(n_groups, n_of_order);
    }
    for (int i = 0; i < PLAN_PART_N; i++)
        /* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): it begins at 1 and only grows */
        n[i] = cost->n[i] / n_groups;
    return real_max(0.0, plan_sketch_end_s(request, cost, point, n) / (double)point->degrees.pp -
                             step_s(request, point, &rest));
}

/* --- bounds --- */

/* What recompute kinds slower than @plain save of one slice on @stage at the most, by second that
 * it takes longer; INFINITY: for nothing. */
static double
saving_rate(const PlanSketchInput *input, const PlanSketchStage *stage, int plain,
            double accumulated)
{
    const StageTimes fast = stage_times(input, false, stage, plain, accumulated);
    double most = 0.0;

    for (int kind = plain + 1; kind < PLAN_RECOMPUTE_N; kind++) {
        const StageTimes slow = stage_times(input, false, stage, kind, accumulated);
        const int64_t saved = plan_sketch_kept(input->slice, stage->n, plain) -
                              plan_sketch_kept(input->slice, stage->n, kind);
        const double added = slow.forward_s + slow.backward_s - fast.forward_s - fast.backward_s;
        if (saved > 0)
            most = added > 0.0 ? real_max(most, (double)saved / added) : INFINITY;
    }
    return most;
}

/* What a rank's chunks must recompute at the least to save what is above its limit: every byte
 * costs at least as much as the cheapest. */
static double
saving_s(const PlanSketch *sketch, const PlanSketchInput *input, int32_t rank, double accumulated)
{
    const int plain = plan_request_fastest_recompute(input->request);
    const int64_t excess =
        sketch->bytes[rank * PLAN_RECOMPUTE_N + plain] - sketch->usable_bytes[rank];
    const PlanSketchStage *before = NULL;
    double most = 0.0, rate = 0.0; /* bytes per second of a micro-batch: of all, of a stage */

    if (sketch->usable_bytes[rank] == 0 || excess <= 0)
        return 0.0;
    for (int64_t chunk = 0; chunk < sketch->n_stages / sketch->n_ranks; chunk++) {
        const PlanSketchStage *stage = plan_sketch_stage_at(sketch, rank, chunk);
        const int32_t n_held = plan_flight_most_held(input->flight, rank, stage->chunk);
        if (before == NULL || !plan_sketch_same_contents(stage, before))
            rate = saving_rate(input, stage, plain, accumulated);
        before = stage;
        most = real_max(most, (double)n_held * rate);
    }
    return most > 0.0 ? (double)excess / most : 0.0;
}

/* One rank, or one stage, as in plan_bound.c. */
typedef struct {
    double work_s, wait_s, drain_s;
    int64_t n[PLAN_PART_N]; /* of its parts */
} RankTimes;

/* Of a backward, what the stage before waits for. */
static double
chain_s(const StageTimes *t, bool splits)
{
    return splits ? real_min(t->gradient_s, t->backward_s) : t->backward_s;
}

/* The long paths through the schedule whose times are summed; NULL: none.  Of slices only the
 * first one's time is known. */
static const PlanOrderPaths *
path_of(const PlanSketchInput *input)
{
    return input->flight != NULL && input->slice == input->cost ? input->flight->paths : NULL;
}

/* Adds what of a stage lies on each long path. */
static void
add_to_paths(const PlanOrderPaths *paths, int64_t stage, const StageTimes *t,
             double path_s[PLAN_PATH_N])
{
    for (int path = 0; path < PLAN_PATH_N; path++) {
        const int32_t *ops = plan_order_paths_stage(paths, path, (int32_t)stage)->ops;
        path_s[path] += ops[SCHEDULE_OP_FORWARD] * t->forward_s +
                        ops[SCHEDULE_OP_BACKWARD] * t->backward_s +
                        ops[SCHEDULE_OP_BACKWARD_INPUT] * t->gradient_s +
                        ops[SCHEDULE_OP_BACKWARD_WEIGHT] * t->weight_s;
    }
}

/* Adds the chain that begins at stage @first to its ranks and to the long paths; @recomputes as in
 * recomputes_ns().  Returns: the longest path through one of its stages. */
static double
walk_chain(const PlanSketch *sketch, const PlanSketchInput *input, int64_t first, int64_t length,
           const int *recomputes, double accumulated, double m, RankTimes *ranks,
           double path_s[PLAN_PATH_N])
{
    const bool splits = input->family->splits_backward;
    const PlanSketchStage *stages = sketch->stages + first;
    const PlanOrderPaths *paths = path_of(input);
    double wait_s = 0.0, drain_s = 0.0, longest_s = 0.0;
    StageTimes t = {0}, first_t = {0};
    int last_recompute = -1;

    for (int64_t k = 0; k < length; k++) {
        RankTimes *rank = &ranks[stages[k].rank];
        const int recompute = recomputes != NULL ? recomputes[first + k]
                                                 : plan_request_fastest_recompute(input->request);
        if (recompute != last_recompute || !plan_sketch_same_contents(&stages[k], &stages[k - 1]) ||
            cost_at(input, stages[k].rank) != cost_at(input, stages[k - 1].rank)) {
            t = stage_times(input, false, &stages[k], recompute, accumulated);
            first_t = input->slice == input->cost
                          ? t
                          : stage_times(input, true, &stages[k], recompute, accumulated);
        }
        last_recompute = recompute;
        if (paths != NULL)
            add_to_paths(paths, first + k, &t, path_s);
        const double gradient_s = chain_s(&t, splits), first_gradient_s = chain_s(&first_t, splits);
        rank->work_s += m * (t.forward_s + t.backward_s - t.hidden_s);
        rank->wait_s = real_min(rank->wait_s, wait_s);
        rank->drain_s = real_min(rank->drain_s, drain_s);
        for (int i = 0; i < PLAN_PART_N; i++)
            rank->n[i] += stages[k].n[i];
        longest_s = real_max(longest_s, wait_s + m * (t.forward_s + gradient_s) + drain_s);
        wait_s += first_t.forward_s;
        drain_s += first_gradient_s;
    }
    return longest_s;
}

int64_t
plan_sketch_work_ns(const PlanSketch *sketch, const PlanSketchInput *input)
{
    const double m = (double)input->point->n_micro_batches;
    double best_s = 0.0;

    for (int32_t r = 0; r < sketch->n_ranks; r++) {
        double work_s = 0.0;
        int64_t n[PLAN_PART_N] = {0};
        for (int64_t chunk = 0; chunk < sketch->n_stages / sketch->n_ranks; chunk++) {
            const PlanSketchStage *stage = plan_sketch_stage_at(sketch, r, chunk);
            work_s += m * plan_sketch_passes_s(cost_at(input, r), stage->n,
                                               plan_request_fastest_recompute(input->request));
            for (int i = 0; i < PLAN_PART_N; i++)
                n[i] += stage->n[i];
        }
        best_s = real_max(best_s, work_s);
        if (r == sketch->n_ranks - 1)
            best_s = real_max(
                best_s, work_s + plan_sketch_end_s(input->request, input->cost, input->point, n));
    }
    return units_ns_from_s(best_s);
}

/* The bound with @recomputes [stage]; NULL: all with the fastest kind that is allowed.  @saves:
 * with what each rank must recompute at the least. */
static int64_t
recomputes_ns(const PlanSketch *sketch, const PlanSketchInput *input, const int *recomputes,
              bool saves)
{
    const PlanDegrees *d = &input->point->degrees;
    const int64_t length = plan_point_chain_length(d, input->family);
    const int64_t n_chains = sketch->n_stages / length;
    const double m = (double)input->point->n_micro_batches / (double)n_chains;
    const PlanLayerShape shape = plan_point_layer_shape(input->point);
    const double n_virtual_ids = (double)input->point->n_micro_batches * (double)input->n_slices;
    const double accumulated = plan_layer_accumulated(input->request, &shape, n_virtual_ids);
    g_autofree RankTimes *ranks = g_new0(RankTimes, (size_t)sketch->n_ranks);
    const PlanOrderPaths *paths = path_of(input);
    double path_s[PLAN_PATH_N] = {0.0};
    double best_s = 0.0, end = 0.0, first_end = 0.0;

    for (int32_t r = 0; r < sketch->n_ranks; r++)
        ranks[r].wait_s = ranks[r].drain_s = INFINITY;
    for (int64_t chain = 0; chain < n_chains; chain++)
        best_s = real_max(best_s, walk_chain(sketch, input, chain * length, length, recomputes,
                                             accumulated, m, ranks, path_s));
    for (int32_t r = 0; r < sketch->n_ranks; r++) {
        const RankTimes *rank = &ranks[r];
        if (r == 0 || memcmp(rank->n, rank[-1].n, sizeof rank->n) != 0)
            end = plan_sketch_end_s(input->request, input->cost, input->point, rank->n);
        first_end = r == 0 ? end : first_end;
        const bool drains = !input->family->splits_backward && n_chains == 1;
        const double more_s = saves ? m * saving_s(sketch, input, r, accumulated) : 0.0;
        best_s = real_max(best_s, rank->wait_s + rank->work_s + more_s +
                                      real_max(end, drains ? rank->drain_s + first_end : 0.0));
        for (int path = 0; path < PLAN_PATH_N && paths != NULL; path++)
            if (paths->last_rank[path] == r)
                best_s = real_max(best_s, path_s[path] - 1e-9 * paths->n_ops[path] + end);
    }
    /* The sums above round; a Workload rounds each op to the nanosecond. */
    const double n_ops =
        3.0 * n_virtual_ids / (double)n_chains * (double)sketch->n_stages / (double)sketch->n_ranks;
    const int64_t ns = units_ns_from_s(best_s * (1.0 - 1e-9));
    return MAX(0, ns - (int64_t)real_min(n_ops, 1e15) - 2 * sketch->n_stages - 4);
}

int64_t
plan_sketch_recomputes_ns(const PlanSketch *sketch, const PlanSketchInput *input,
                          const int *recomputes)
{
    return recomputes_ns(sketch, input, recomputes, false);
}

void
plan_sketch_bound(PlanSketch *sketch, const PlanSketchInput *input)
{
    /* With one stage per rank, stage k lies on rank k. */
    sketch->bound_ns =
        recomputes_ns(sketch, input, sketch->shares ? NULL : sketch->recomputes, sketch->shares);
}
