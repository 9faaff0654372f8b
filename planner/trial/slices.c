/*
 * Slices AUTO at one point: what the fill-drain formula proposes (slices/slicings.h), judged by the
 * simulator under every family that slices; all groupings and slicings of a coarse grid that their
 * bounds do not rule out (slices/coarse.h); and then the best of them improved step by step by the
 * simulator alone (slices/judge.h), since 1F1B and interleaved orders do not follow the formula.
 */
#include "planner/trial/estimate.h"
#include "planner/slices/coarse.h"
#include "planner/slices/grid.h"
#include "planner/slices/judge.h"
#include "planner/slices/slicings.h"
#include "planner/trial/trial.h"

/* Ops that are simulated for the slicings of one family at one point, and how many of them are
 * simulated in any case. */
#define MAX_SLICED_OPS (INT64_C(1) << 21)
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
    int64_t sum_ops = 0;

    for (guint i = 0; i < slicings->len && !plan_evaluation_is_stopped(trial->evaluation); i++) {
        GArray *slices = slicings->pdata[i];
        if (i >= LEAST_SLICINGS && sum_ops > MAX_SLICED_OPS)
            break;
        if (slices->len < 2 ||
            !plan_space_has_family(trial->evaluation->space, trial->point, family, slices->len))
            continue;
        g_array_unref(plan->slices);
        plan->slices = g_array_copy(slices);
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
    const ScheduleShape shape = {
        .n_ranks = plan->degrees.pp,
        .n_chunks = plan->degrees.vpp,
        .n_micro_batches = plan->n_micro_batches,
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

    for (int64_t i = 0; i < plan->n_micro_batches; i++) {
        PlanSliceGroup *group = plan_slice_group_new(plan_micro_batch_sequences(plan, i));
        g_array_append_vals(group->slices, plan->slices->data, plan->slices->len);
        g_ptr_array_add(groups, group);
    }
    return groups;
}

/*
 * Takes each change that gains, again and again, until none does or much was simulated: of slices,
 * and of micro-batches.  These stay at most as large as the point's: its bound of any slicing
 * holds.
 */
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

/* --- public --- */

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
        if (!plan_evaluate_set_layers(evaluation, point, family, plan))
            continue;
        if (slicings == NULL) {
            slicings = plan_slicings_new(request, plan, &granularity, &error);
        }
        if (slicings == NULL) {
            plan_trial_note_error(&trial, error);
            return;
        }
        try_slicings(&trial, slicings, plan, family);
        if (point->degrees.pp > 1 && !evaluation->is_timeless)
            try_coarse(&trial, &coarse, plan, family);
    }
    if (granularity > 0 && !evaluation->is_timeless)
        improve_slices(&trial, granularity);
}
