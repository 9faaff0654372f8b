#include "planner/trial/point.h"

#include <math.h>
#include <string.h>

#include "base/units.h"
#include "planner/cost/given_slices.h"
#include "planner/bounds/point_bound.h"
#include "planner/trial/recompute.h"

/* --- outcomes --- */

void
plan_found_free(PlanFound *found)
{
    if (found == NULL)
        return;
    plan_free(found->plan);
    g_free(found);
}

int
plan_found_compare(const void *a, const void *b)
{
    const PlanFound *x = *(PlanFound *const *)a, *y = *(PlanFound *const *)b;

    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    if (x->second != y->second)
        return x->second < y->second ? -1 : 1;
    if (x->index != y->index)
        return x->index < y->index ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

void
plan_outcome_init(PlanOutcome *outcome)
{
    *outcome = (PlanOutcome){
        .found = g_ptr_array_new_with_free_func((GDestroyNotify)plan_found_free),
        .least_bytes = INT64_MAX,
        .least_pruned_ns = INT64_MAX,
    };
}

void
plan_outcome_clear(PlanOutcome *outcome)
{
    g_clear_pointer(&outcome->found, g_ptr_array_unref);
    g_clear_pointer(&outcome->least, plan_free);
    g_clear_error(&outcome->error);
}

void
plan_outcome_merge(PlanOutcome *outcome, PlanOutcome *more)
{
    outcome->considered += more->considered;
    outcome->pruned += more->pruned;
    outcome->simulated += more->simulated;
    outcome->infeasible += more->infeasible;
    outcome->least_pruned_ns = MIN(outcome->least_pruned_ns, more->least_pruned_ns);
    g_ptr_array_extend_and_steal(outcome->found, g_steal_pointer(&more->found));
    if (more->least_bytes < outcome->least_bytes) {
        outcome->least_bytes = more->least_bytes;
        outcome->limit_bytes = more->limit_bytes;
        plan_free(outcome->least);
        outcome->least = g_steal_pointer(&more->least);
    }
    if (outcome->error == NULL)
        outcome->error = g_steal_pointer(&more->error);
}

/* --- slices and layers --- */

bool
plan_evaluate_set_uniform(Plan *plan, int64_t n)
{
    return plan_given_uniform(plan->seq_len, plan_given_plan_granularity(plan), n, plan->slices);
}

bool
plan_evaluate_set_layers(const PlanEvaluation *evaluation, const PlanPoint *point,
                         const ScheduleFamily *family, Plan *plan)
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

/* --- one family --- */

/* Sketches the layers @counts. */
static void
sketch_layers(PlanFamilyTrial *f, const int64_t *counts)
{
    plan_sketch_clear(&f->sketch);
    f->input.counts = counts;
    plan_sketch_init(&f->sketch, &f->input);
    plan_sketch_weigh(&f->sketch, &f->input);
}

/* Whether anything may be too slow: bounds are of use. */
static bool
prunes_by_time(const PlanTrial *trial)
{
    return !trial->evaluation->is_timeless && trial->limit < INT64_MAX;
}

/* Whether nothing of @family can be fast enough at the point; noted if so.  This is known sooner
 * than what ranks hold, and at less cost. */
static bool
is_slow_family(PlanTrial *trial, const ScheduleFamily *family)
{
    const PlanSpace *space = trial->evaluation->space;
    const PlanSpaceFamilies alone = plan_space_family(family);

    if (!prunes_by_time(trial))
        return false;
    const int64_t bound_ns =
        plan_space_bound_ns(space->request, plan_space_cost(space, trial->point),
                            plan_space_slice_cost(space, trial->point), trial->point, &alone);
    if (bound_ns <= trial->limit)
        return false;
    plan_trial_note_slow(trial, bound_ns);
    return true;
}

/* Whether single stages of whole sequences may be divided so that they fit. */
static bool
may_divide_otherwise(const PlanFamilyTrial *f)
{
    return f->trial->point->is_balanced && !f->sketch.shares && f->input.n_slices == 1 &&
           !f->trial->evaluation->is_timeless;
}

/* Whether the sketched layers are too slow in any way; noted if so. */
static bool
is_slow_layout(PlanFamilyTrial *f)
{
    if (!prunes_by_time(f->trial) || may_divide_otherwise(f))
        return false;
    const int64_t bound_ns = plan_sketch_plain_ns(&f->sketch, &f->input);
    if (bound_ns <= f->trial->limit)
        return false;
    plan_trial_note_slow(f->trial, bound_ns);
    return true;
}

/* A division that fits, in place of one that fits only with recompute, or not at all.  False: there
 * is none, or it is too slow.  @fitted (out, owned by the caller) holds its counts. */
static bool
sketch_fitted(PlanFamilyTrial *f, int64_t **fitted)
{
    const int64_t m = f->trial->point->n_micro_batches;
    /* A division that is too slow need not be found; its bound is that of all. */
    const double longest_s = plan_partition_fitted_bound_s(&f->input, &f->sketch);
    const int64_t bound_ns =
        units_ns_from_s(fmax(0.0, longest_s) * (double)m * (1.0 - 1e-9)) - 3 * m;

    if (longest_s < 0.0)
        return false;
    if (bound_ns > f->trial->limit) {
        plan_trial_note_slow(f->trial, bound_ns);
        return false;
    }
    *fitted = g_new(int64_t, (size_t)f->length);
    if (!plan_partition_fitted(&f->input, &f->sketch, *fitted) ||
        memcmp(*fitted, f->input.counts, (size_t)f->length * sizeof **fitted) == 0)
        return false;
    sketch_layers(f, *fitted);
    return true;
}

/* Whether all micro-batches at once, which families that run all forwards first hold, are more than
 * fits, however layers are divided and whatever they recompute; and no nearer to fitting than what
 * is known.  This is known without what ranks hold. */
static bool
is_large_family(const PlanFamilyTrial *f)
{
    const PlanEvaluation *evaluation = f->trial->evaluation;

    if (!f->family->forwards_first || f->input.n_slices > 1)
        return false;
    const int64_t bytes =
        plan_space_forwards_first_bytes(f->input.request, f->input.cost, f->trial->point);
    return bytes > evaluation->memory_limit_bytes && bytes >= evaluation->least_bytes;
}

/* Tries the sketched layers, weighed for the first time. */
static void
try_layout(PlanFamilyTrial *f, bool is_new)
{
    const PlanSpace *space = f->trial->evaluation->space;
    const PlanPoint *point = f->trial->point;
    const ScheduleShape shape = {
        .n_ranks = point->degrees.pp,
        .n_chunks = point->degrees.vpp,
        .n_micro_batches = point->n_micro_batches,
        .n_slices = space->n_slices,
        .group = f->family->groups && point->degrees.vpp > 1 ? space->request->group : 0,
    };
    g_autofree int64_t *fitted = NULL;

    if (is_large_family(f)) {
        f->trial->outcome->infeasible += is_new ? 1 : 0;
        return;
    }
    f->input.flight = plan_flight_get(f->trial->evaluation->memo, f->family, &shape);
    plan_sketch_weigh(&f->sketch, &f->input);
    if (is_new)
        plan_recompute_try(f);
    /* More layers where memory is, or where less must be computed again. */
    if (may_divide_otherwise(f) && !f->sketch.fits_plain && sketch_fitted(f, &fitted))
        plan_recompute_try(f);
    plan_free(f->plan);
}

static void
try_family(PlanTrial *trial, const ScheduleFamily *family)
{
    const PlanSpace *space = trial->evaluation->space;
    const PlanPoint *point = trial->point;
    PlanFamilyTrial f = {
        .trial = trial,
        .family = family,
        .input = {.request = space->request,
                  .point = point,
                  .cost = plan_space_cost(space, point),
                  .slice = plan_space_slice_cost(space, point),
                  .n_slices = space->n_slices,
                  .family = family,
                  .limits_bytes = trial->limits_bytes,
                  .wants_leanest = trial->evaluation->is_timeless},
        .length = plan_point_chain_length(&point->degrees, family),
    };
    PlanOutcome *outcome = trial->outcome;
    const int64_t n_recomputes = plan_space_n_recomputes(space->request, point);
    const int64_t before = outcome->simulated + outcome->pruned + outcome->infeasible;

    if (!is_slow_family(trial, family)) {
        g_autofree int64_t *even = plan_partition_even(space->request, point, family);
        f.input.counts = point->is_balanced ? plan_partition_balanced(trial->evaluation->memo,
                                                                      space->request, point, family)
                                            : even;
        const bool is_new = f.input.counts == even ||
                            memcmp(f.input.counts, even, (size_t)f.length * sizeof *even) != 0;
        plan_sketch_init(&f.sketch, &f.input);
        if (!is_slow_layout(&f))
            try_layout(&f, is_new);
        plan_sketch_clear(&f.sketch);
    }
    /* Ways that were not looked at are slower than those that were, or their bound is too high. */
    const int64_t seen = outcome->simulated + outcome->pruned + outcome->infeasible - before;
    outcome->considered += MAX(n_recomputes, seen);
    outcome->pruned += MAX(0, n_recomputes - seen);
}

/* --- one point --- */

void
plan_evaluate_point(const PlanEvaluation *evaluation, const PlanPoint *point, int64_t limit,
                    PlanOutcome *outcome)
{
    const PlanSpace *space = evaluation->space;
    g_auto(PlanTrial) trial = {0};

    plan_trial_init(&trial, evaluation, point, limit, outcome);
    for (guint i = 0; i < space->families->len; i++) {
        const ScheduleFamily *family = space->families->pdata[i];
        if (plan_space_has_family(space, point, family, space->n_slices))
            try_family(&trial, family);
    }
}
