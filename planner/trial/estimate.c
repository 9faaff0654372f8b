#include "planner/trial/estimate.h"

#include <math.h>

#include "planner/bounds/plan_bound.h"

/* Slices of an estimate, cheap to price: few where short ops are slow (small models, CPUs), and
 * near the optimum of large ones. */
static const int64_t estimate_slices[] = {4, 16};

/* Whether @n_slices equal ones may fit under @family: what its units keep, at least half of their
 * share of the whole (a slice keeps fewer scores), and what is static. */
static bool
may_fit(const PlanTrial *trial, const PlanSketch *sketch, const ScheduleFamily *family,
        int64_t n_slices, int recompute)
{
    const PlanPoint *point = trial->point;
    const ScheduleShape shape = {
        .n_ranks = point->degrees.pp,
        .n_chunks = point->degrees.vpp,
        .n_micro_batches = point->n_micro_batches,
        .n_slices = n_slices,
        .group =
            family->groups && point->degrees.vpp > 1 ? trial->evaluation->space->request->group : 0,
    };
    const PlanFlight *flight = plan_flight_get(trial->evaluation->memo, family, &shape);
    const PlanLayerCost *cost = plan_space_cost(trial->evaluation->space, point);

    for (int64_t k = 0; k < sketch->n_stages; k++) {
        const PlanSketchStage *stage = &sketch->stages[k];
        const int64_t limit = sketch->usable_bytes[stage->rank];
        const double kept =
            fmin((double)plan_sketch_stage_kept(cost, stage, recompute),
                 0.5 * ((double)plan_sketch_stage_kept(cost, stage, recompute) +
                        (double)plan_sketch_stage_kept(cost, stage, PLAN_RECOMPUTE_SELECTIVE)));
        const double n_in_flight =
            (double)plan_flight_n_held(flight, stage->rank, PLAN_MOMENT_BACKWARD, 0, stage->chunk) /
            (double)n_slices;
        /* Slices differ by one unit of tokens: a tenth. */
        if (limit > 0 &&
            (double)sketch->static_bytes[stage->rank] + 0.9 * n_in_flight * kept > (double)limit)
            return false;
    }
    return true;
}

/* A bound on @n_slices equal slices under @family with all stages in @way, which prices no plan;
 * INT64_MAX: there are no such slices here. */
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

/* The least bound on the estimate in @way; INT64_MAX: no family has such slices here. */
static int64_t
estimate_bound_ns(const PlanEvaluation *evaluation, const PlanPoint *point, int recompute)
{
    const GPtrArray *families = evaluation->space->families;
    int64_t best = INT64_MAX;

    for (size_t k = 0; k < G_N_ELEMENTS(estimate_slices); k++)
        for (guint i = 0; i < families->len; i++)
            best = MIN(best, sliced_bound_ns(evaluation, point, families->pdata[i],
                                             estimate_slices[k], recompute));
    return best;
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
            plan_bound_bytes(plan, workload, plan_bound_flight(plan, evaluation->memo)) <=
                plan_trial_most_usable(workload))
            best = MIN(best, plan_bound_ns(plan, workload, family));
    }
    return best;
}

/* Whether slices in @way, or in a slower one, may take at most @most_ns. */
static bool
may_be_fast(const PlanTrial *trial, int recompute, int64_t most_ns)
{
    const PlanEvaluation *evaluation = trial->evaluation;

    for (; recompute >= 0;
         recompute = plan_trial_next_recompute(evaluation->space->request, recompute))
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
    const ScheduleShape shape = {.n_ranks = trial->point->degrees.pp,
                                 .n_chunks = trial->point->degrees.vpp,
                                 .n_micro_batches = trial->point->n_micro_batches,
                                 .n_slices = 1};
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
    *recompute = plan_trial_next_recompute(space->request, -1);
    if (!trial->evaluation->is_timeless &&
        plan_sketch_work_ns(&sketch, &input) / 50 * 49 > trial->limit)
        return INT64_MAX;
    for (;;) {
        Estimate estimate = {trial, &sketch, *trial->point};
        estimate.point.recompute = (PlanRecompute)*recompute;
        for (size_t k = 0; k < G_N_ELEMENTS(estimate_slices); k++)
            best = MIN(best, estimate_ns(&estimate, estimate_slices[k]));
        const int next = plan_trial_next_recompute(space->request, *recompute);
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
    const int plain = plan_layer_plain_recompute(evaluation->space->request);
    g_auto(PlanTrial) trial = {0};
    int recompute;

    outcome->estimate_ns =
        evaluation->is_timeless ? 0 : estimate_bound_ns(evaluation, point, plain);
    if (outcome->estimate_ns > most_ns)
        return;
    plan_trial_init(&trial, evaluation, point, limit, outcome);
    outcome->estimate_ns = plan_estimate_trial(&trial, most_ns, &recompute);
}
