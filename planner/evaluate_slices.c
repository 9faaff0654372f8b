/*
 * Slices AUTO at one point: what the fill-drain formula proposes (slicing.h), judged by the
 * simulator under every family that slices, and then improved step by step by the simulator alone,
 * since 1F1B and interleaved orders do not follow the formula.
 */
#include <math.h>

#include "planner/bound.h"
#include "planner/slicing.h"
#include "planner/trial.h"

/* Ops that are simulated for the slicings of one family at one point, and how many of them are
 * simulated in any case. */
#define MAX_SLICED_OPS (INT64_C(1) << 21)
#define LEAST_SLICINGS 4

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

/* One change of slices: tokens of slice @at that go to the next one; or a slice that is cut at
 * @tokens; or, with 0 tokens, joined with the next one. */
typedef struct {
    enum {
        MOVE_SHIFT,
        MOVE_CUT,
        MOVE_JOIN,
    } kind;
    guint at;
    int64_t tokens;
} Move;

/* (owned, nullable) @slices after @move; NULL if a slice would be empty. */
static GArray *
moved(const GArray *slices, const Move *move)
{
    g_autoptr(GArray) after = g_array_copy((GArray *)slices);
    int64_t *tokens = &g_array_index(after, int64_t, move->at);

    switch (move->kind) {
    case MOVE_SHIFT:
        tokens[0] -= move->tokens;
        tokens[1] += move->tokens;
        return tokens[0] > 0 && tokens[1] > 0 ? g_steal_pointer(&after) : NULL;
    case MOVE_CUT: {
        const int64_t rest = tokens[0] - move->tokens;
        if (rest <= 0 || move->tokens <= 0)
            return NULL;
        tokens[0] = move->tokens;
        g_array_insert_val(after, move->at + 1, rest);
        return g_steal_pointer(&after);
    }
    case MOVE_JOIN:
        tokens[0] += tokens[1];
        g_array_remove_index(after, move->at + 1);
        return after->len > 1 ? g_steal_pointer(&after) : NULL;
    }
    g_return_val_if_reached(NULL);
}

/* (owned) GArray of Move: all that are tried from @slices on multiples of @unit tokens. */
static GArray *
moves_of(const GArray *slices, int64_t unit)
{
    GArray *moves = g_array_new(FALSE, FALSE, sizeof(Move));

    for (guint i = 0; i < slices->len; i++) {
        const int64_t tokens = g_array_index(slices, int64_t, i);
        const Move cut = {MOVE_CUT, i, (tokens / 2 + unit - 1) / unit * unit};
        const Move join = {MOVE_JOIN, i, 0};
        for (int64_t step = 4 * unit; i + 1 < slices->len && step >= unit; step /= 2) {
            const Move shifts[] = {{MOVE_SHIFT, i, step}, {MOVE_SHIFT, i, -step}};
            g_array_append_vals(moves, shifts, 2);
        }
        g_array_append_val(moves, cut);
        if (i + 1 < slices->len)
            g_array_append_val(moves, join);
    }
    return moves;
}

/* The best sliced plan found at this point; (owned, nullable) a copy. */
static Plan *
best_found(const PlanTrial *trial)
{
    const GPtrArray *found = trial->outcome->found;
    const PlanFound *best = NULL;

    for (guint i = 0; i < found->len; i++) {
        const PlanFound *one = found->pdata[i];
        if (one->plan->slices->len > 1 && (best == NULL || plan_found_compare(&one, &best) < 0))
            best = one;
    }
    return best != NULL ? plan_copy(best->plan) : NULL;
}

/* Takes the first move that gains, again and again, until none does or much was simulated. */
static void
improve_slices(PlanTrial *trial, int64_t unit)
{
    g_autoptr(Plan) plan = best_found(trial);
    int64_t sum_ops = 0;
    bool gains = plan != NULL;

    while (gains && sum_ops <= MAX_SLICED_OPS && !plan_evaluation_is_stopped(trial->evaluation)) {
        const ScheduleFamily *family = schedule_family_find(plan->schedule, NULL);
        g_autoptr(GArray) moves = moves_of(plan->slices, unit);
        gains = false;
        for (guint i = 0; i < moves->len && !gains && sum_ops <= MAX_SLICED_OPS; i++) {
            GArray *slices = moved(plan->slices, &g_array_index(moves, Move, i));
            if (slices == NULL)
                continue;
            GArray *before = plan->slices;
            const int64_t limit = trial->limit;
            plan->slices = slices;
            if (plan_space_has_family(trial->evaluation->space, trial->point, family, slices->len))
                try_slices(trial, plan, family);
            sum_ops += n_ops(plan);
            gains = trial->limit < limit;
            if (!gains)
                plan->slices = before;
            g_array_unref(gains ? before : slices);
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
        .family = family,
        .flight = plan_flights_get(trial->evaluation->flights, family, &shape),
        .counts = even,
        .limits_bytes = trial->limits_bytes,
    };
    g_auto(PlanSketch) sketch = {0};
    int64_t best = INT64_MAX;

    plan_sketch_init(&sketch, &input);
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

void
plan_estimate_slices(const PlanEvaluation *evaluation, const PlanPoint *point, int64_t limit,
                     PlanOutcome *outcome)
{
    g_auto(PlanTrial) trial = {0};
    int way;

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
    }
    if (unit > 0 && !evaluation->is_timeless)
        improve_slices(&trial, unit);
}
