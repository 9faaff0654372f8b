#include "planner/trial/slices.h"

#include <math.h>
#include <string.h>

#include "planner/bounds/plan_bound.h"
#include "planner/partition/partitions.h"
#include "planner/slices/coarse.h"
#include "planner/slices/judge.h"
#include "planner/slices/slicings.h"

/* --- estimates --- */

/* Slices of an estimate, cheap to price: few where short ops are slow (small models, CPUs), and
 * near the optimum of large ones. */
static const int64_t estimate_slices[] = {4, 16};

/* Whether @n_slices equal ones may fit under @family: what it keeps in flight, at least half of the
 * share of the whole (a slice keeps fewer scores), and what is static. */
static bool
may_fit(const PlanTrial *trial, const PlanSketch *sketch, const ScheduleFamily *family,
        int64_t n_slices, int recompute)
{
    const PlanPoint *point = trial->point;
    const ScheduleShape shape =
        plan_point_shape(trial->evaluation->space->request, point, family, n_slices);
    const PlanFlight *flight = plan_flight_get(trial->evaluation->memo, family, &shape);
    const PlanLayerCost *cost = plan_space_cost(trial->evaluation->space, point);

    for (int64_t k = 0; k < sketch->n_stages; k++) {
        const PlanSketchStage *stage = &sketch->stages[k];
        const int64_t limit = sketch->usable_bytes[stage->rank];
        const double kept =
            fmin((double)plan_sketch_kept(cost, stage->n, recompute),
                 0.5 * ((double)plan_sketch_kept(cost, stage->n, recompute) +
                        (double)plan_sketch_kept(cost, stage->n, PLAN_RECOMPUTE_SELECTIVE)));
        const double n_in_flight =
            (double)plan_flight_n_held(flight, stage->rank, PLAN_MOMENT_BACKWARD, 0, stage->chunk) /
            (double)n_slices;
        /* Slices differ by one granularity: a tenth. */
        if (limit > 0 &&
            (double)sketch->static_bytes[stage->rank] + 0.9 * n_in_flight * kept > (double)limit)
            return false;
    }
    return true;
}

/* A bound on @n_slices equal slices under @family with @recompute on all stages, which prices no
 * plan; INT64_MAX: there are no such slices here. */
static int64_t
sliced_bound_ns(const PlanEvaluation *evaluation, const PlanPoint *point,
                const ScheduleFamily *family, int64_t n_slices, int recompute)
{
    const PlanSpace *space = evaluation->space;
    const PlanLayerShape shape = plan_point_layer_shape(point);
    const PlanSlicedCost *cost =
        family->slices && plan_space_has_family(space, point, family, n_slices)
            ? plan_layer_uniform_cost(evaluation->memo, space->request, &shape, n_slices)
            : NULL;

    if (cost == NULL)
        return INT64_MAX;
    g_autofree int64_t *even = plan_partition_even(space->request, point, family);
    const PlanSketchInput input = {
        .request = space->request,
        .point = point,
        .cost = &cost->whole,
        .slice = &cost->slice,
        .n_slices = n_slices,
        .family = family,
        .counts = even,
    };
    g_auto(PlanSketch) sketch = {0};
    plan_sketch_init(&sketch, &input);
    g_autofree int *recomputes = g_new(int, (size_t)sketch.n_stages);
    for (int64_t k = 0; k < sketch.n_stages; k++)
        recomputes[k] = recompute;
    return plan_sketch_recomputes_ns(&sketch, &input, recomputes);
}

/* The least bound on the estimate with @recompute; INT64_MAX: no family has such slices here. */
static int64_t
estimate_bound_ns(const PlanEvaluation *evaluation, const PlanPoint *point, int recompute)
{
    const GPtrArray *families = evaluation->space->families;
    int64_t best = INT64_MAX;

    for (size_t k = 0; k < G_N_ELEMENTS(estimate_slices); k++)
        for (guint i = 0; i < families->len; i++) {
            const int64_t one = sliced_bound_ns(evaluation, point, families->pdata[i],
                                                estimate_slices[k], recompute);
            best = MIN(best, one);
        }
    return best;
}

/* What is known with one recompute kind. */
typedef struct {
    PlanTrial *trial;
    const PlanSketch *sketch;
    PlanPoint point; /* with that kind */
} Estimate;

/* The least bound of @n_slices equal slices under all families that they fit; INT64_MAX: none. */
static int64_t
estimate_ns(const Estimate *estimate, int64_t n_slices)
{
    const PlanEvaluation *evaluation = estimate->trial->evaluation;
    const PlanRequest *request = evaluation->space->request;
    g_autoptr(Workload) workload = NULL;
    bool overlap_pp = false;
    int64_t best = INT64_MAX;

    for (guint i = 0; i < evaluation->space->families->len; i++) {
        const ScheduleFamily *family = evaluation->space->families->pdata[i];
        if (!family->slices ||
            !plan_space_has_family(evaluation->space, &estimate->point, family, n_slices) ||
            !may_fit(estimate->trial, estimate->sketch, family, n_slices,
                     (int)estimate->point.recompute))
            continue;
        g_autoptr(Plan) plan = plan_space_plan(request, &estimate->point, family);
        if (!plan_uniform_slices(plan->seq_len,
                                 plan_granularity(&plan->degrees, plan->sequence_parallel),
                                 n_slices, plan->slices))
            continue;
        /* Families that slice lie in a loop: their ops cost the same. */
        if (workload == NULL || overlap_pp != plan->conventions.overlap_pp) {
            g_clear_pointer(&workload, workload_free);
            workload = workload_new(request->arch, request->profile, plan,
                                    request->memory_limit_bytes, NULL);
        }
        overlap_pp = plan->conventions.overlap_pp;
        if (workload != NULL &&
            plan_bound_bytes(plan, workload, plan_bound_flight(plan, evaluation->memo)) <=
                plan_trial_most_usable_bytes(workload)) {
            const int64_t one = plan_bound_ns(plan, workload, family);
            best = MIN(best, one);
        }
    }
    return best;
}

/* Whether slices with @recompute, or with a slower kind, may take at most @most_ns. */
static bool
may_be_fast(const PlanTrial *trial, int recompute, int64_t most_ns)
{
    const PlanEvaluation *evaluation = trial->evaluation;

    for (; recompute >= 0;
         recompute = plan_request_slower_recompute(evaluation->space->request, recompute))
        if (most_ns == INT64_MAX ||
            estimate_bound_ns(evaluation, trial->point, recompute) <= most_ns)
            return true;
    return false;
}

int64_t
plan_estimate_trial(PlanTrial *trial, int64_t most_ns, int *recompute)
{
    const PlanSpace *space = trial->evaluation->space;
    const ScheduleFamily *family = schedule_family_usual(1, false);
    const ScheduleShape shape = plan_point_shape(space->request, trial->point, family, 1);
    g_autofree int64_t *even = plan_partition_even(space->request, trial->point, family);
    const PlanSketchInput input = {
        .request = space->request,
        .point = trial->point,
        .cost = plan_space_cost(space, trial->point),
        .slice = plan_space_cost(space, trial->point),
        .n_slices = 1,
        .family = family,
        .flight = plan_flight_get(trial->evaluation->memo, family, &shape),
        .counts = even,
        .limits_bytes = trial->limits_bytes,
    };
    g_auto(PlanSketch) sketch = {0};
    int64_t best = INT64_MAX;

    plan_sketch_init(&sketch, &input);
    plan_sketch_weigh(&sketch, &input);
    *recompute = plan_request_slower_recompute(space->request, -1);
    if (!trial->evaluation->is_timeless &&
        plan_sketch_work_ns(&sketch, &input) / 50 * 49 > trial->limit)
        return INT64_MAX;
    for (;;) {
        Estimate estimate = {trial, &sketch, *trial->point};
        estimate.point.recompute = (PlanRecompute)*recompute;
        for (size_t k = 0; k < G_N_ELEMENTS(estimate_slices); k++) {
            const int64_t one = estimate_ns(&estimate, estimate_slices[k]);
            best = MIN(best, one);
        }
        const int next = plan_request_slower_recompute(space->request, *recompute);
        if (best < INT64_MAX || next < 0 || !may_be_fast(trial, next, most_ns))
            return best;
        *recompute = next;
    }
}

void
plan_estimate_slices(const PlanEvaluation *evaluation, const PlanPoint *point, int64_t limit,
                     PlanOutcome *outcome)
{
    const int64_t most_ns = evaluation->is_timeless ? INT64_MAX : evaluation->most_estimate_ns;
    const int plain = plan_request_fastest_recompute(evaluation->space->request);
    g_auto(PlanTrial) trial = {0};
    int recompute;

    outcome->estimate_ns =
        evaluation->is_timeless ? 0 : estimate_bound_ns(evaluation, point, plain);
    if (outcome->estimate_ns > most_ns)
        return;
    plan_trial_init(&trial, evaluation, point, limit, outcome);
    outcome->estimate_ns = plan_estimate_trial(&trial, most_ns, &recompute);
}

/* --- slicings --- */

/* Ops that are simulated for the slicings of one family at one point, and how many of them are
 * simulated in any case. */
#define MAX_SLICED_OPS (INT64_C(1) << 21)
#define MAX_BRIEF_OPS (INT64_C(1) << 17)
#define LEAST_SLICINGS 4
static int64_t
n_ops(const Plan *plan)
{
    return 2 * plan->n_micro_batches * plan->slices->len * plan->stages->len;
}

/* What was found bounds what follows. */
static void
lower_limit(PlanTrial *trial)
{
    const GPtrArray *found = trial->outcome->found;

    for (guint k = 0; k < found->len; k++)
        trial->limit = MIN(trial->limit, ((PlanFound *)found->pdata[k])->first);
}

/* Counts, prices, simulates. */
static PlanTried
try_slices(PlanTrial *trial, Plan *plan, const ScheduleFamily *family)
{
    trial->outcome->considered++;
    const PlanTried tried = plan_trial_plan(trial, plan, family, NULL);
    lower_limit(trial);
    return tried;
}

/* Tries all slicings under one family, best formula first, until much was simulated. */
static void
try_slicings(PlanTrial *trial, const GPtrArray *slicings, Plan *plan, const ScheduleFamily *family)
{
    const int64_t most_ops = trial->evaluation->slices_briefly ? MAX_BRIEF_OPS : MAX_SLICED_OPS;
    int64_t sum_ops = 0;

    for (guint i = 0; i < slicings->len && !plan_evaluation_is_stopped(trial->evaluation); i++) {
        GArray *slices = slicings->pdata[i];
        if (i >= LEAST_SLICINGS && sum_ops > most_ops)
            break;
        if (slices->len < 2 ||
            !plan_space_has_family(trial->evaluation->space, trial->point, family, slices->len))
            continue;
        g_array_unref(plan->slices);
        plan->slices = g_array_copy(slices);
        sum_ops += n_ops(plan);
        if (i >= LEAST_SLICINGS) {
            try_slices(trial, plan, family);
            continue;
        }
        /* In all rank orders: what is too slow in the first one may be the best in another. */
        trial->outcome->considered++;
        plan_trial_orders(trial, plan, family, NULL);
        lower_limit(trial);
    }
}

/* --- chunks that recompute --- */

/* Slicings that are tried with a part of the chunks, each of at least half as many slices again as the one
 * before, since more hold less; and simulations of one. */
#define MAX_PARTLY 4
#define MAX_PARTLY_STEPS 6

/* (owned) [rank] what its peak may reach; 0: no limit. */
static int64_t *
usable_bytes(const PlanTrial *trial, const Plan *plan)
{
    const PlanRequest *request = trial->evaluation->space->request;
    g_autoptr(Workload) workload =
        workload_new(request->arch, request->profile, plan, request->memory_limit_bytes, NULL);
    int64_t *usable = g_new0(int64_t, (size_t)plan->degrees.pp);

    for (int32_t r = 0; workload != NULL && r < workload->n_ranks; r++)
        usable[r] = workload_usable_bytes(&workload->ranks[r]);
    return usable;
}

/* Has so many more chunks of each rank that is too large in @report recompute by the next slower kind as
 * make it fit if what they keep is nothing: the first ones, of which most is in flight.  Returns false where
 * a rank has no chunk left. */
static bool
slow_chunks(const PlanRequest *request, const Report *report, const int64_t *usable, Plan *plan)
{
    const int64_t pp = plan->degrees.pp, vpp = plan->degrees.vpp;

    for (int64_t r = 0; r < pp; r++) {
        const ReportRank *rank = &g_array_index(report->ranks, ReportRank, (guint)r);
        const int64_t excess = rank->peak_memory_bytes - usable[r];
        const int64_t part = MAX(1, rank->memory_bytes[TRACE_MEMORY_ACTIVATIONS] / MAX(1, vpp));
        int64_t n = usable[r] > 0 && excess > 0 ? (excess + part - 1) / part : 0;
        for (int64_t chunk = 0; chunk < vpp && n > 0; chunk++) {
            PlanStage *stage = &g_array_index(plan->stages, PlanStage, (guint)(chunk * pp + r));
            const int slower = plan_request_slower_recompute(request, (int)stage->recompute);
            if (slower < 0)
                continue;
            stage->recompute = (PlanRecompute)slower;
            n--;
        }
        if (n > 0)
            return false;
    }
    return true;
}

/* Tries some slicings with no more recompute than memory asks for: none, and where a rank is too large
 * by its simulation, some of its chunks. */
static void
try_partly(PlanTrial *trial, const GPtrArray *slicings, const Plan *like,
           const ScheduleFamily *family)
{
    const PlanRequest *request = trial->evaluation->space->request;
    g_autofree int64_t *usable = NULL;
    guint least = 2; /* slices of the next one */
    int n_tried = 0;

    for (guint i = 0; i < slicings->len && n_tried < MAX_PARTLY; i++) {
        g_autoptr(Plan) plan = plan_copy(like);
        const GArray *slices = slicings->pdata[i];
        bool goes_on = true;
        if (slices->len < least ||
            !plan_space_has_family(trial->evaluation->space, trial->point, family, slices->len) ||
            plan_evaluation_is_stopped(trial->evaluation))
            continue;
        n_tried++;
        least = slices->len + (slices->len + 1) / 2;
        g_array_unref(plan->slices);
        plan->slices = g_array_copy((GArray *)slices);
        for (guint k = 0; k < plan->stages->len; k++)
            g_array_index(plan->stages, PlanStage, k).recompute =
                (PlanRecompute)plan_request_fastest_recompute(request);
        if (usable == NULL)
            usable = usable_bytes(trial, plan);
        for (int step = 0; step < MAX_PARTLY_STEPS && goes_on; step++) {
            Report *large = NULL;
            trial->outcome->considered++;
            goes_on = plan_trial_plan(trial, plan, family, &large) == PLAN_TRIED_LARGE &&
                      large != NULL && slow_chunks(request, large, usable, plan);
            report_free(large);
        }
        lower_limit(trial);
    }
}

/* --- step by step --- */

/* The best sliced plan found at this point; (borrowed, nullable). */
static const PlanFound *
best_found(const PlanTrial *trial)
{
    const GPtrArray *found = trial->outcome->found;
    const PlanFound *best = NULL;

    for (guint i = 0; i < found->len; i++) {
        const PlanFound *one = found->pdata[i];
        if (one->plan->slices->len > 1 && (best == NULL || plan_found_compare(&one, &best) < 0))
            best = one;
    }
    return best;
}

/* What judges slices and micro-batches in slices/judge.h. */
typedef struct {
    PlanTrial *trial;
    Plan *plan; /* (owned) everything else */
    const ScheduleFamily *family;
    int64_t known;   /* of the first that is judged; -1 if it is not */
    int64_t sum_ops; /* simulated so far */
} Judge;

/* Gives @plan the micro-batches @groups, all cut alike. */
static void
set_groups(Plan *plan, const GPtrArray *groups)
{
    const PlanSliceGroup *first = groups->pdata[0];
    bool differ = false;

    g_array_unref(plan->slices);
    plan->slices = g_array_copy(first->slices);
    g_clear_pointer(&plan->micro_batch_sequences, g_array_unref);
    plan->micro_batch_sequences = g_array_sized_new(FALSE, FALSE, sizeof(int64_t), groups->len);
    plan->n_micro_batches = groups->len;
    plan->micro_batch = 0;
    for (guint i = 0; i < groups->len; i++) {
        const int64_t batch = ((PlanSliceGroup *)groups->pdata[i])->batch;
        g_array_append_val(plan->micro_batch_sequences, batch);
        plan->micro_batch = MAX(plan->micro_batch, batch);
        differ = differ || batch != first->batch;
    }
    if (!differ)
        g_clear_pointer(&plan->micro_batch_sequences, g_array_unref);
}

/* Whether the plan's family exists at its shape, with the slices that this file looks for. */
static bool
has_shape(const Judge *judge)
{
    const Plan *plan = judge->plan;
    const ScheduleShape shape = plan_shape(plan);

    return plan->slices->len > 1 &&
           plan_space_has_family(judge->trial->evaluation->space, judge->trial->point,
                                 judge->family, plan->slices->len) &&
           schedule_shape_check(judge->family, &shape, NULL);
}

/* PlanSliceJudgeFunc: the objective of a plan that fits. */
static int64_t
judge_groups(const GPtrArray *groups, void *user_data)
{
    Judge *judge = user_data;
    const int64_t known = judge->known;
    const GPtrArray *found = judge->trial->outcome->found;

    judge->known = -1;
    if (known >= 0)
        return known;
    if (judge->sum_ops > MAX_SLICED_OPS || plan_evaluation_is_stopped(judge->trial->evaluation))
        return INT64_MAX;
    set_groups(judge->plan, groups);
    if (!has_shape(judge))
        return INT64_MAX;
    judge->sum_ops += n_ops(judge->plan);
    if (try_slices(judge->trial, judge->plan, judge->family) != PLAN_TRIED_FITS)
        return INT64_MAX;
    return ((PlanFound *)found->pdata[found->len - 1])->first;
}

/* (owned) the micro-batches of @plan, each with its slices. */
static GPtrArray *
groups_of(const Plan *plan)
{
    GPtrArray *groups = g_ptr_array_new_with_free_func(plan_slice_group_free);

    for (int64_t i = 0; i < plan->n_micro_batches; i++) {
        PlanSliceGroup *group = plan_slice_group_new(plan_micro_batch_sequences(plan, i));
        g_array_append_vals(group->slices, plan->slices->data, plan->slices->len);
        g_ptr_array_add(groups, group);
    }
    return groups;
}

/* Takes each change that gains, again and again, until none does or much was simulated: of slices,
 * and of micro-batches.  These stay at most as large as the point's: its bound of any slicing
 * holds. */
static void
improve_slices(PlanTrial *trial, int64_t granularity)
{
    const PlanFound *best = best_found(trial);
    g_autoptr(GPtrArray) candidates =
        g_ptr_array_new_with_free_func((GDestroyNotify)g_ptr_array_unref);

    if (best == NULL)
        return;
    g_autoptr(Plan) plan = plan_copy(best->plan);
    Judge judge = {trial, plan, schedule_family_find(plan->schedule, NULL), best->first, 0};
    const PlanSliceCosts costs = {
        .batch = trial->point->n_micro_batches * trial->point->micro_batch,
        .n_cells = plan->seq_len / granularity,
        .granularity = granularity,
    };
    const PlanSliceSearch search = {
        .costs = &costs,
        .max_group = trial->point->micro_batch,
        .is_common = true,
        .keeps_groups = !plan_point_regroups(trial->evaluation->space->request, trial->point),
        .judge = judge_groups,
        .user_data = &judge,
        .most_judged = MAX_SLICED_OPS / n_ops(plan) + 1,
    };
    g_ptr_array_add(candidates, groups_of(plan));
    plan_slice_result_free(plan_slice_search(&search, candidates, NULL));
}

/* --- a coarse grid --- */

/* Ops that are simulated on it at one point under one family. */
#define MAX_COARSE_OPS (INT64_C(1) << 19)

/* Tries all groupings and slicings on the grid of slices/coarse.h that may be better than what is
 * known, until much was simulated.  @grid (out, owned) of the point, if there is one. */
static void
try_coarse(PlanTrial *trial, PlanCoarseGrid **grid, const Plan *plan, const ScheduleFamily *family)
{
    g_autoptr(Plan) tried = plan_copy(plan);
    Judge judge = {trial, tried, family, -1, 0};
    const PlanCoarseAsked asked = {
        .request = trial->evaluation->space->request,
        .plan = plan,
        .regroups = plan_point_regroups(trial->evaluation->space->request, trial->point),
        .limit_ns = trial->limit,
    };

    if (*grid == NULL || !plan_coarse_grid_is_of(*grid, plan)) {
        plan_coarse_grid_free(*grid);
        *grid = plan_coarse_grid_new(&asked);
    }
    g_autoptr(GArray) all = plan_coarse_grid_all(*grid, family->forwards_first, trial->limit);
    for (guint i = 0; i < all->len && judge.sum_ops <= MAX_COARSE_OPS; i++) {
        const PlanCoarse *one = &g_array_index(all, PlanCoarse, i);
        if (one->bound_ns >= trial->limit || plan_evaluation_is_stopped(trial->evaluation))
            break;
        if (plan_coarse_grid_bound_ns(*grid, one, family->forwards_first) >= trial->limit)
            continue;
        g_autoptr(GPtrArray) groups = plan_coarse_grid_groups(*grid, one);
        judge_groups(groups, &judge);
    }
}

/* Tries the best plan found in the other rank orders in which layers cost the same. */
static void
try_orders(PlanTrial *trial)
{
    const PlanFound *best = best_found(trial);
    uint32_t orders = plan_point_orders(trial->point);

    if (best == NULL || (orders & (orders - 1)) == 0)
        return;
    g_autoptr(Plan) plan = plan_copy(best->plan);
    const ScheduleFamily *family = schedule_family_find(plan->schedule, NULL);
    orders &= ~(UINT32_C(1) << plan->degrees.rank_order);
    for (; orders != 0; orders &= orders - 1) {
        plan->degrees.rank_order = g_bit_nth_lsf(orders, -1);
        try_slices(trial, plan, family);
    }
}

/* --- all of a point --- */

/* Gives @plan the balanced partition if @point says so.  Returns false if that is the even one. */
static bool
set_layers(const PlanEvaluation *evaluation, const PlanPoint *point, const ScheduleFamily *family,
           Plan *plan)
{
    const PlanRequest *request = evaluation->space->request;
    const int64_t length = plan_point_chain_length(&plan->degrees, family);
    g_autofree int64_t *even = plan_partition_even(request, point, family);
    g_autofree int *recomputes = g_new(int, plan->stages->len);

    if (!point->is_balanced)
        return true;
    const int64_t *counts = plan_partition_balanced(evaluation->memo, request, point, family);
    for (guint k = 0; k < plan->stages->len; k++)
        recomputes[k] = (int)g_array_index(plan->stages, PlanStage, k).recompute;
    plan_partition_apply(counts, length, recomputes, plan);
    return memcmp(counts, even, (size_t)length * sizeof *even) != 0;
}

void
plan_evaluate_slices(const PlanEvaluation *evaluation, const PlanPoint *point, int64_t limit,
                     PlanOutcome *outcome)
{
    const PlanSpace *space = evaluation->space;
    const PlanRequest *request = space->request;
    g_auto(PlanTrial) trial = {0};
    g_autoptr(GPtrArray) slicings = NULL;
    g_autoptr(PlanCoarseGrid) coarse = NULL;
    PlanPoint chosen = *point;
    int64_t granularity = 0;
    int recompute;

    plan_trial_init(&trial, evaluation, point, limit, outcome);
    /* After whole sequences in the order of ties. */
    trial.order = 1000000;
    plan_estimate_trial(&trial, INT64_MAX, &recompute);
    chosen.recompute = (PlanRecompute)recompute;
    for (guint i = 0; i < space->families->len; i++) {
        const ScheduleFamily *family = space->families->pdata[i];
        GError *error = NULL;
        if (!family->slices || !plan_space_has_family(space, point, family, 2))
            continue;
        g_autoptr(Plan) plan = plan_space_plan(request, &chosen, family);
        if (!set_layers(evaluation, point, family, plan))
            continue;
        if (slicings == NULL) {
            slicings = plan_slicings_new(request, plan, &granularity, &error);
        }
        if (slicings == NULL) {
            plan_trial_note_error(&trial, error);
            return;
        }
        const int64_t n_large = outcome->infeasible;
        try_slicings(&trial, slicings, plan, family);
        /* One kind for all is more recompute than is needed, or less. */
        if ((recompute != plan_request_fastest_recompute(request) ||
             outcome->infeasible > n_large) &&
            request->recompute == PLAN_AUTO && request->rules == NULL && !evaluation->is_timeless)
            try_partly(&trial, slicings, plan, family);
        if (point->degrees.pp > 1 && !evaluation->is_timeless && !evaluation->slices_briefly)
            try_coarse(&trial, &coarse, plan, family);
    }
    if (granularity > 0 && !evaluation->is_timeless)
        improve_slices(&trial, granularity);
    if (!evaluation->is_timeless)
        try_orders(&trial);
}
