#include "planner/trial/trial.h"

#include <stdlib.h>
#include <string.h>

#include "base/order.h"
#include "base/units.h"
#include "planner/partition/partitions.h"
#include "planner/trial/priced.h"

/* --- outcomes --- */

static void
found_free(PlanFound *found)
{
    plan_free(found->plan);
    g_free(found->choices);
    g_free(found);
}

void
plan_found_keep(GPtrArray *found, guint most)
{
    g_autoptr(GHashTable) known = g_hash_table_new(g_str_hash, g_str_equal);
    guint n = 0;

    for (guint i = 0; i < found->len && n < most; i++) {
        PlanFound *one = found->pdata[i];
        if (one->choices != NULL && !g_hash_table_add(known, one->choices))
            continue;
        found->pdata[i] = found->pdata[n];
        found->pdata[n++] = one;
    }
    g_ptr_array_set_size(found, (gint)n);
}

int
plan_found_compare(const void *a, const void *b)
{
    const PlanFound *x = *(PlanFound *const *)a, *y = *(PlanFound *const *)b;

    ORDER_BY(x->first, y->first);
    ORDER_BY(x->second, y->second);
    ORDER_BY(x->index, y->index);
    return ORDER(x->order, y->order);
}

void
plan_outcome_init(PlanOutcome *outcome)
{
    *outcome = (PlanOutcome){
        .found = g_ptr_array_new_with_free_func((GDestroyNotify)found_free),
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

/* --- trials --- */

void
plan_trial_init(PlanTrial *trial, const PlanEvaluation *evaluation, const PlanPoint *point,
                int64_t limit, PlanOutcome *outcome)
{
    *trial = (PlanTrial){
        .evaluation = evaluation,
        .point = point,
        .limit = limit,
        .outcome = outcome,
        .limits_bytes = g_new(int64_t, (size_t)point->degrees.pp),
    };
    plan_partition_limits(evaluation->space->request, point, trial->limits_bytes);
}

void
plan_trial_clear(PlanTrial *trial)
{
    g_clear_pointer(&trial->limits_bytes, g_free);
}

void
plan_trial_note_large(PlanTrial *trial, const Plan *plan, int64_t bytes)
{
    PlanOutcome *outcome = trial->outcome;

    if (bytes >= outcome->least_bytes)
        return;
    outcome->least_bytes = bytes;
    outcome->limit_bytes = trial->limits_bytes[0];
    plan_free(outcome->least);
    outcome->least = plan_copy(plan);
}

/* As plan_trial_note_large(), where it is known what a peak may reach. */
static void
note_large_of(PlanTrial *trial, const Plan *plan, const PlanPricedBounds *bounds, int64_t bytes)
{
    const bool is_least = bytes < trial->outcome->least_bytes;

    plan_trial_note_large(trial, plan, bytes);
    if (is_least)
        trial->outcome->limit_bytes = bounds->first_usable_bytes;
}

bool
plan_trial_is_slow(PlanTrial *trial, int64_t ns)
{
    if (ns <= trial->limit)
        return false;
    trial->outcome->least_pruned_ns = MIN(trial->outcome->least_pruned_ns, ns);
    return true;
}

void
plan_trial_note_error(PlanTrial *trial, GError *error)
{
    if (trial->outcome->error == NULL)
        trial->outcome->error = error;
    else
        g_error_free(error);
}

int64_t
plan_trial_most_usable_bytes(const Workload *workload)
{
    int64_t most = 0;

    for (int32_t r = 0; r < workload->n_ranks; r++) {
        const int64_t usable = workload_usable_bytes(&workload->ranks[r]);
        if (usable == 0)
            return INT64_MAX;
        most = MAX(most, usable);
    }
    return most;
}

/* What is worse than top + 1 plans of this point, no two of them alike, is of no interest. */
static void
lower_limit(PlanTrial *trial)
{
    const GPtrArray *found = trial->outcome->found;
    const guint top = (guint)trial->evaluation->space->request->top;
    guint n = 0;

    if (found->len <= top)
        return;
    g_autoptr(GHashTable) known = g_hash_table_new(g_str_hash, g_str_equal);
    g_autofree PlanFound **sorted = g_memdup2(found->pdata, found->len * sizeof *sorted);
    qsort(sorted, found->len, sizeof *sorted, plan_found_compare);
    for (guint i = 0; i < found->len; i++)
        if ((sorted[i]->choices == NULL || g_hash_table_add(known, sorted[i]->choices)) &&
            n++ == top) {
            trial->limit = MIN(trial->limit, sorted[i]->first);
            return;
        }
}

char *
plan_choices(const Plan *plan)
{
    const PlanDegrees *d = &plan->degrees;

    return g_strdup_printf(INT " " INT " " INT " " INT " " INT " " INT " " INT " %s %d %s %d %d %d",
                           d->dp, d->tp, d->pp, d->vpp, d->cp, d->ep, plan->micro_batch,
                           plan->schedule, plan->slices->len > 1, plan_recompute_name(plan),
                           plan->zero_stage, plan->offload, plan->sequence_parallel);
}

/* Whether plans are simulated without following links: where least memory is asked for, which links
 * do not change, and the time matters only between equals. */
static bool
is_rough(const PlanEvaluation *evaluation)
{
    return evaluation->is_timeless;
}

/* The objective above which a plan of @choices (nullable: nobody asks for others) is of no interest: of plans with
 * the same choices the best one alone is kept. */
static int64_t
limit_of_choices(const PlanTrial *trial, const char *choices)
{
    const GPtrArray *found = trial->outcome->found;
    int64_t limit = trial->limit;

    for (guint i = 0; choices != NULL && i < found->len; i++) {
        const PlanFound *one = found->pdata[i];
        if (one->first < limit && one->choices != NULL && strcmp(one->choices, choices) == 0)
            limit = one->first;
    }
    return limit;
}

/* Counts a plan that takes @ns at the least as pruned. */
static PlanTried
prune(PlanTrial *trial, int64_t ns)
{
    PlanOutcome *outcome = trial->outcome;

    outcome->pruned++;
    outcome->least_pruned_ns = MIN(outcome->least_pruned_ns, ns);
    return PLAN_TRIED_PRUNED;
}

/* As plan_trial_plan(), of a plan that is priced. */
static PlanTried
simulate(PlanTrial *trial, const Plan *plan, PlanPriced *priced, Report **large)
{
    const bool timeless = trial->evaluation->is_timeless;
    const bool rough = is_rough(trial->evaluation);
    g_autofree char *choices =
        trial->evaluation->space->request->top == 0 ? NULL : plan_choices(plan);
    const int64_t limit = limit_of_choices(trial, choices);
    const int64_t limit_ns = rough ? 1 : timeless ? INT64_MAX : limit;
    PlanOutcome *outcome = trial->outcome;
    const PlanPricedBounds *bounds = plan_priced_bounds(priced);
    const int64_t order = trial->order++;

    if (bounds->bytes > bounds->most_usable_bytes && large == NULL) {
        outcome->infeasible++;
        note_large_of(trial, plan, bounds, bounds->bytes);
        return PLAN_TRIED_LARGE;
    }
    if ((timeless ? bounds->bytes : bounds->ns) > limit)
        return prune(trial, bounds->ns);
    const int64_t order_ns = timeless ? 0 : plan_priced_order_ns(priced);
    if (order_ns > limit)
        return prune(trial, order_ns);
    outcome->simulated++;
    Report *report = NULL;
    GError *error = NULL;
    if (!plan_priced_evaluate(priced, limit_ns, &report, &error)) {
        plan_trial_note_error(trial, error);
        return PLAN_TRIED_FAILED;
    }
    if (!report->fits) {
        outcome->infeasible++;
        note_large_of(trial, plan, bounds, report->peak_memory_bytes);
        if (large != NULL)
            *large = report;
        else
            report_free(report);
        return PLAN_TRIED_LARGE;
    }
    if (!timeless && report->iteration_ns > limit) {
        outcome->least_pruned_ns = MIN(outcome->least_pruned_ns, report->iteration_ns);
        report_free(report);
        return PLAN_TRIED_PRUNED;
    }
    PlanFound *found = g_new(PlanFound, 1);
    *found = (PlanFound){
        .plan = plan_copy(plan),
        .first = timeless ? report->peak_memory_bytes : report->iteration_ns,
        .second = timeless ? report->iteration_ns : report->peak_memory_bytes,
        .index = trial->point->index,
        .order = order,
        .is_rough = rough,
        .choices = g_steal_pointer(&choices),
    };
    /* @plan may be a copy of one that was predicted. */
    g_clear_pointer(&found->plan->predicted, report_free);
    found->plan->predicted = report;
    g_ptr_array_add(outcome->found, found);
    lower_limit(trial);
    return PLAN_TRIED_FITS;
}

bool
plan_trial_settle(const PlanEvaluation *evaluation, PlanFound *found, GError **error)
{
    const PlanRequest *request = evaluation->space->request;
    g_autoptr(Workload) workload = workload_new(request->arch, request->profile, found->plan,
                                                request->memory_limit_bytes, error);
    Report *report = NULL;

    if (workload == NULL || !evaluation->evaluate(found->plan, workload, INT64_MAX, &report,
                                                  evaluation->user_data, error))
        return false;
    report_free(found->plan->predicted);
    found->plan->predicted = report;
    found->second = report->iteration_ns;
    found->is_rough = false;
    return true;
}

PlanTried
plan_trial_plan(PlanTrial *trial, const Plan *plan, const ScheduleFamily *family, Report **large)
{
    GError *error = NULL;
    g_autoptr(PlanPriced) priced = plan_priced_new(trial, plan, family, &error);

    if (priced == NULL) {
        plan_trial_note_error(trial, error);
        return PLAN_TRIED_FAILED;
    }
    return simulate(trial, plan, priced, large);
}

PlanTried
plan_trial_orders(PlanTrial *trial, const Plan *plan, const ScheduleFamily *family, Report **large)
{
    const uint32_t orders = plan_point_orders(trial->point);
    PlanTried first = PLAN_TRIED_LARGE;
    Plan other = *plan; /* borrows all that is the plan's */

    for (uint32_t left = orders; left != 0; left &= left - 1) {
        other.degrees.rank_order = g_bit_nth_lsf(left, -1);
        const PlanTried tried =
            plan_trial_plan(trial, &other, family, left == orders ? large : NULL);
        if (left == orders)
            first = tried;
        /* What a rank holds does not depend on the order. */
        if (first == PLAN_TRIED_LARGE)
            break;
    }
    return first;
}
