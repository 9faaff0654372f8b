/*
 * Slices AUTO at one point: what the fill-drain formula proposes (slicing.h), judged by the
 * simulator under every family that slices, and then improved step by step by the simulator alone
 * (slice_judge.h), since 1F1B and interleaved orders do not follow the formula.
 */
#include <math.h>

#include "planner/bound.h"
#include "planner/slice_grid.h"
#include "planner/slice_judge.h"
#include "planner/slicing.h"
#include "planner/trial.h"

/* Ops that are simulated for the slicings of one family at one point, and how many of them are
 * simulated in any case. */
#define MAX_SLICED_OPS (INT64_C(1) << 21)
#define LEAST_SLICINGS 4
/* Sequences of a replica whose micro-batches may differ in size: of more, differences do not show.
 */
#define MAX_SEQUENCES 16

static int64_t
n_ops(const Plan *plan)
{
    return 2 * plan->n_microbatches * plan->slices->len * plan->stages->len;
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
    int64_t sum_ops = 0;

    for (guint i = 0; i < slicings->len && !plan_evaluation_is_stopped(trial->evaluation); i++) {
        const PlanSlicing *slicing = slicings->pdata[i];
        if (i >= LEAST_SLICINGS && sum_ops > MAX_SLICED_OPS)
            break;
        if (slicing->slices->len < 2 ||
            !plan_space_has_family(trial->evaluation->space, trial->point, family,
                                   slicing->slices->len))
            continue;
        g_array_unref(plan->slices);
        plan->slices = g_array_copy(slicing->slices);
        sum_ops += n_ops(plan);
        try_slices(trial, plan, family);
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

/* What judges slices and micro-batches in slice_judge.h. */
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
    g_clear_pointer(&plan->batch_slices, g_array_unref);
    plan->batch_slices = g_array_sized_new(FALSE, FALSE, sizeof(int64_t), groups->len);
    plan->n_microbatches = groups->len;
    plan->micro_batch = 0;
    for (guint i = 0; i < groups->len; i++) {
        const int64_t batch = ((PlanSliceGroup *)groups->pdata[i])->batch;
        g_array_append_val(plan->batch_slices, batch);
        plan->micro_batch = MAX(plan->micro_batch, batch);
        differ = differ || batch != first->batch;
    }
    if (!differ)
        g_clear_pointer(&plan->batch_slices, g_array_unref);
}

/* Whether the plan's family exists at its shape, with the slices that this file looks for. */
static bool
has_shape(const Judge *judge)
{
    const Plan *plan = judge->plan;
    const ScheduleShape shape = {
        .n_ranks = plan->degrees.pp,
        .n_chunks = plan->degrees.vpp,
        .n_microbatches = plan->n_microbatches,
        .n_slices = plan->slices->len,
        .group = plan->group,
    };

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

    for (int64_t i = 0; i < plan->n_microbatches; i++) {
        PlanSliceGroup *group = plan_slice_group_new(plan_microbatch_sequences(plan, i));
        g_array_append_vals(group->slices, plan->slices->data, plan->slices->len);
        g_ptr_array_add(groups, group);
    }
    return groups;
}

/* Whether micro-batches may differ in size: they are few, and their size is not asked for. */
static bool
may_regroup(const PlanTrial *trial)
{
    return trial->evaluation->space->request->micro_batch == 0 && trial->point->micro_batch > 1 &&
           trial->point->n_microbatches * trial->point->micro_batch <= MAX_SEQUENCES;
}

/*
 * Takes each change that gains, again and again, until none does or much was simulated: of slices,
 * and of micro-batches.  These stay at most as large as the point's: its bound of any slicing
 * holds.
 */
static void
improve_slices(PlanTrial *trial, int64_t unit)
{
    const PlanFound *best = best_found(trial);
    g_autoptr(GPtrArray) candidates =
        g_ptr_array_new_with_free_func((GDestroyNotify)g_ptr_array_unref);

    if (best == NULL)
        return;
    g_autoptr(Plan) plan = plan_copy(best->plan);
    Judge judge = {trial, plan, schedule_family_find(plan->schedule, NULL), best->first, 0};
    const PlanSliceCosts costs = {
        .batch = trial->point->n_microbatches * trial->point->micro_batch,
        .n_cells = plan->seq_len / unit,
        .granularity = unit,
    };
    const PlanSliceSearch search = {
        .costs = &costs,
        .max_group = trial->point->micro_batch,
        .is_common = true,
        .keeps_groups = !may_regroup(trial),
        .judge = judge_groups,
        .user_data = &judge,
        .most_judged = MAX_SLICED_OPS / n_ops(plan) + 1,
    };
    g_ptr_array_add(candidates, groups_of(plan));
    plan_slice_result_free(plan_slice_search(&search, candidates, NULL));
}

/* --- micro-batches of different sizes --- */

/* (owned) @slices with every @n neighbours joined. */
static GArray *
joined(const GArray *slices, guint n)
{
    GArray *fewer = g_array_new(FALSE, FALSE, sizeof(int64_t));

    for (guint i = 0; i < slices->len; i++) {
        const int64_t tokens = g_array_index(slices, int64_t, i);
        if (i % n == 0)
            g_array_append_val(fewer, tokens);
        else
            g_array_index(fewer, int64_t, fewer->len - 1) += tokens;
    }
    return fewer;
}

/* Tries more micro-batches than the point's, nearly equal in size, cut as the formula proposes for
 * its own, and, as these are smaller, into fewer slices. */
static void
try_smaller(PlanTrial *trial, const GPtrArray *slicings, const Plan *like,
            const ScheduleFamily *family)
{
    const int64_t m = trial->point->n_microbatches, sequences = m * trial->point->micro_batch;
    g_autoptr(Plan) plan = plan_copy(like);
    Judge judge = {trial, plan, family, -1, 0};
    int64_t last = trial->point->micro_batch;

    for (int64_t n = m + 1; may_regroup(trial) && n < sequences; n++) {
        const int64_t largest = (sequences + n - 1) / n;
        if (largest == last)
            continue;
        last = largest;
        for (guint i = 0; i < MIN(slicings->len, LEAST_SLICINGS); i++)
            for (guint k = 1; k <= 4; k *= 2) {
                const PlanSlicing *slicing = slicings->pdata[i];
                g_autoptr(GArray) slices = joined(slicing->slices, k);
                g_autoptr(GPtrArray) groups = plan_slice_groups_even(sequences, n, slices);
                g_autoptr(GPtrArray) small_first = plan_slice_groups_reversed(groups);
                judge_groups(groups, &judge);
                if (sequences % n != 0)
                    judge_groups(small_first, &judge);
            }
    }
}

/* --- estimates --- */

/* Slices of an estimate, cheap to price: few where short ops are slow (small models, CPUs), and
 * near the optimum of large ones. */
static const int64_t estimate_slices[] = {4, 16};

/* Whether @n_slices equal ones may fit under @family: what its units keep, at least half of their
 * share of the whole (a slice keeps fewer scores), and what is static. */
static bool
may_fit(const PlanTrial *trial, const PlanSketch *sketch, const ScheduleFamily *family,
        int64_t n_slices, int way)
{
    const PlanPoint *point = trial->point;
    const ScheduleShape shape = {
        .n_ranks = point->degrees.pp,
        .n_chunks = point->degrees.vpp,
        .n_microbatches = point->n_microbatches,
        .n_slices = n_slices,
        .group =
            family->groups && point->degrees.vpp > 1 ? trial->evaluation->space->request->group : 0,
    };
    const PlanFlight *flight = plan_flights_get(trial->evaluation->flights, family, &shape);
    const PlanLayerCost *cost = plan_space_cost(trial->evaluation->space, point);

    for (int64_t k = 0; k < sketch->n_stages; k++) {
        const PlanSketchStage *stage = &sketch->stages[k];
        const int64_t limit = sketch->usable_bytes[stage->rank];
        const double kept =
            fmin((double)plan_sketch_stage_kept(cost, stage, way),
                 0.5 * ((double)plan_sketch_stage_kept(cost, stage, way) +
                        (double)plan_sketch_stage_kept(cost, stage, PLAN_RECOMPUTE_SELECTIVE)));
        const double units =
            (double)plan_flight_units(flight, stage->rank, PLAN_MOMENT_BACKWARD, 0, stage->chunk) /
            (double)n_slices;
        /* Slices differ by one unit of tokens: a tenth. */
        if (limit > 0 &&
            (double)sketch->static_bytes[stage->rank] + 0.9 * units * kept > (double)limit)
            return false;
    }
    return true;
}

/* What is known of one way of recompute. */
typedef struct {
    PlanTrial *trial;
    const PlanSketch *sketch;
    PlanPoint point; /* in that way */
} Estimate;

/* The least bound of @n_slices equal slices under all families that they fit in; INT64_MAX: none.
 */
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
        if (!plan_evaluate_set_uniform(plan, n_slices))
            continue;
        /* Families that slice lie in a loop: their ops cost the same. */
        if (workload == NULL || overlap_pp != plan->conventions.overlap_pp) {
            g_clear_pointer(&workload, workload_free);
            workload = workload_new(request->arch, request->profile, plan,
                                    request->memory_limit_bytes, NULL);
        }
        overlap_pp = plan->conventions.overlap_pp;
        if (workload != NULL &&
            plan_bound_bytes(plan, workload, plan_bound_flight(plan, evaluation->flights)) <=
                plan_trial_most_usable(workload))
            best = MIN(best, plan_bound_ns(plan, workload, family));
    }
    return best;
}

/* In the fastest way of recompute in which some equal slices fit, *@way.  INT64_MAX if none does,
 * or if slices without any bubble gain nothing. */
static int64_t
estimate_point(PlanTrial *trial, int *way)
{
    const PlanSpace *space = trial->evaluation->space;
    const ScheduleFamily *family = schedule_family_find("1f1b", NULL);
    const ScheduleShape shape = {.n_ranks = trial->point->degrees.pp,
                                 .n_chunks = trial->point->degrees.vpp,
                                 .n_microbatches = trial->point->n_microbatches,
                                 .n_slices = 1};
    g_autofree int64_t *even = plan_layout_even(space->request, trial->point, family);
    const PlanSketchInput input = {
        .request = space->request,
        .point = trial->point,
        .cost = plan_space_cost(space, trial->point),
        .unit = plan_space_cost(space, trial->point),
        .n_slices = 1,
        .family = family,
        .flight = plan_flights_get(trial->evaluation->flights, family, &shape),
        .counts = even,
        .limits_bytes = trial->limits_bytes,
    };
    g_auto(PlanSketch) sketch = {0};
    int64_t best = INT64_MAX;

    plan_sketch_init(&sketch, &input);
    plan_sketch_weigh(&sketch, &input);
    *way = plan_trial_next_way(space->request, -1);
    if (!trial->evaluation->is_timeless &&
        plan_sketch_work_ns(&sketch, &input) / 50 * 49 > trial->limit)
        return INT64_MAX;
    for (;;) {
        Estimate estimate = {trial, &sketch, *trial->point};
        estimate.point.recompute = (PlanRecompute)*way;
        for (size_t k = 0; k < G_N_ELEMENTS(estimate_slices); k++)
            best = MIN(best, estimate_ns(&estimate, estimate_slices[k]));
        const int next = plan_trial_next_way(space->request, *way);
        if (best < INT64_MAX || next < 0)
            return best;
        *way = next;
    }
}

/* A bound on the estimate, which prices no plan; INT64_MAX: no family has such slices here. */
static int64_t
estimate_bound_ns(const PlanEvaluation *evaluation, const PlanPoint *point)
{
    const PlanSpace *space = evaluation->space;
    const PlanLayerShape shape = plan_space_layer_shape(point);
    int64_t best = INT64_MAX;

    for (size_t k = 0; k < G_N_ELEMENTS(estimate_slices); k++) {
        const int64_t n = estimate_slices[k];
        const PlanSlicedCost *cost =
            plan_sliced_costs_get(evaluation->sliced, space->request, &shape, n);
        for (guint i = 0; i < space->families->len && cost != NULL; i++) {
            const ScheduleFamily *family = space->families->pdata[i];
            if (!family->slices || !plan_space_has_family(space, point, family, n))
                continue;
            g_autofree int64_t *even = plan_layout_even(space->request, point, family);
            const PlanSketchInput input = {
                .request = space->request,
                .point = point,
                .cost = &cost->whole,
                .unit = &cost->unit,
                .n_slices = n,
                .family = family,
                .counts = even,
            };
            g_auto(PlanSketch) sketch = {0};
            plan_sketch_init(&sketch, &input);
            best = MIN(best, plan_sketch_plain_ns(&sketch, &input));
        }
    }
    return best;
}

void
plan_estimate_slices(const PlanEvaluation *evaluation, const PlanPoint *point, int64_t limit,
                     PlanOutcome *outcome)
{
    g_auto(PlanTrial) trial = {0};
    int way;

    outcome->estimate_ns = evaluation->is_timeless ? 0 : estimate_bound_ns(evaluation, point);
    if (outcome->estimate_ns > evaluation->most_estimate_ns)
        return;
    plan_trial_init(&trial, evaluation, point, limit, outcome);
    outcome->estimate_ns = estimate_point(&trial, &way);
}

/* --- public --- */

void
plan_evaluate_slices(const PlanEvaluation *evaluation, const PlanPoint *point, int64_t limit,
                     PlanOutcome *outcome)
{
    const PlanSpace *space = evaluation->space;
    const PlanRequest *request = space->request;
    g_auto(PlanTrial) trial = {0};
    g_autoptr(GPtrArray) slicings = NULL;
    PlanPoint chosen = *point;
    int64_t unit = 0;
    int way;

    plan_trial_init(&trial, evaluation, point, limit, outcome);
    /* After whole sequences in the order of ties. */
    trial.order = 1000000;
    estimate_point(&trial, &way);
    chosen.recompute = (PlanRecompute)way;
    for (guint i = 0; i < space->families->len; i++) {
        const ScheduleFamily *family = space->families->pdata[i];
        GError *error = NULL;
        if (!family->slices || !plan_space_has_family(space, point, family, 2))
            continue;
        g_autoptr(Plan) plan = plan_space_plan(request, &chosen, family);
        if (!plan_evaluate_set_layers(evaluation, point, family, plan))
            continue;
        if (slicings == NULL) {
            slicings = plan_slicings_new(request, plan, &unit, &error);
            plan_trial_note_slow(&trial, point->sliced_bound_ns);
        }
        if (slicings == NULL) {
            plan_trial_note_error(&trial, error);
            return;
        }
        try_slicings(&trial, slicings, plan, family);
        try_smaller(&trial, slicings, plan, family);
    }
    if (unit > 0 && !evaluation->is_timeless)
        improve_slices(&trial, unit);
}
