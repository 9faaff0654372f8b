#include "planner/evaluate.h"

#include "planner/bound.h"
#include "planner/layout.h"
#include "planner/slicing.h"

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

/* --- stages and slices --- */

/* Balanced stages where the point says so.  False: they are the even ones, or too slow. */
static bool
set_stages(const PlanEvaluation *evaluation, const PlanPoint *point, const ScheduleFamily *family,
           int64_t limit, Plan *plan, PlanOutcome *outcome)
{
    const int64_t length = plan_space_chain_length(&point->degrees, family);

    if (!point->is_balanced)
        return true;
    const PlanLayout *layout =
        plan_layouts_get(evaluation->layouts, evaluation->space->request, point, length);
    if (!layout->differs)
        return false;
    const int64_t bound_ns = plan_layout_bound_ns(layout, point, family);
    if (!evaluation->is_timeless && bound_ns > limit) {
        outcome->considered++;
        outcome->pruned++;
        outcome->least_pruned_ns = MIN(outcome->least_pruned_ns, bound_ns);
        return false;
    }
    plan_layout_apply(layout, length, plan);
    return true;
}

bool
plan_evaluate_set_uniform(Plan *plan, int64_t n)
{
    const int64_t unit = plan->degrees.cp * (plan->sequence_parallel ? plan->degrees.tp : 1);
    const int64_t cells = plan->seq_len / unit;

    if (plan->seq_len % unit != 0 || n > cells || n > SCHEDULE_MAX_SLICES)
        return false;
    g_array_set_size(plan->slices, 0);
    /* What does not divide goes to the first slices, which have the least context. */
    for (int64_t i = 0; i < n; i++) {
        const int64_t tokens = (cells / n + (i < cells % n ? 1 : 0)) * unit;
        g_array_append_val(plan->slices, tokens);
    }
    return true;
}

/* The request's slices; false where the degrees forbid them. */
static bool
set_slices(const PlanRequest *request, Plan *plan)
{
    if (request->slices_mode == PLAN_SLICES_UNIFORM)
        return plan_evaluate_set_uniform(plan, request->n_slices);
    if (request->slices_mode != PLAN_SLICES_GIVEN)
        return true;
    g_array_set_size(plan->slices, 0);
    g_array_append_vals(plan->slices, request->slices, (guint)request->n_slices);
    const int64_t unit = plan->degrees.cp * (plan->sequence_parallel ? plan->degrees.tp : 1);
    for (int64_t i = 0; i < request->n_slices; i++)
        if (request->slices[i] % unit != 0)
            return false;
    return true;
}

/* --- one plan --- */

/* What is tried at one point. */
typedef struct {
    const PlanEvaluation *evaluation;
    const PlanPoint *point;
    int64_t limit;
    PlanOutcome *outcome;
    int64_t order;
} Trial;

static void
note_infeasible(Trial *trial, const Plan *plan, const Workload *workload, int64_t bytes)
{
    PlanOutcome *outcome = trial->outcome;

    outcome->infeasible++;
    if (bytes >= outcome->least_bytes)
        return;
    outcome->least_bytes = bytes;
    outcome->limit_bytes = workload->ranks[0].memory_limit_bytes;
    plan_free(outcome->least);
    outcome->least = plan_copy(plan);
}

/* The most that any rank may hold; 0: no limit. */
static int64_t
memory_limit(const Workload *workload)
{
    int64_t most = 0;

    for (int32_t r = 0; r < workload->n_ranks; r++) {
        if (workload->ranks[r].memory_limit_bytes == 0)
            return 0;
        most = MAX(most, workload->ranks[r].memory_limit_bytes);
    }
    return most;
}

static void
simulate(Trial *trial, const Plan *plan, const Workload *workload, const ScheduleFamily *family)
{
    const bool timeless = trial->evaluation->is_timeless;
    PlanOutcome *outcome = trial->outcome;
    const int64_t bound_ns = plan_bound_ns(plan, workload, family);
    const int64_t bound_bytes =
        plan_bound_bytes(plan, workload, family, trial->evaluation->flights);
    const int64_t limit_bytes = memory_limit(workload);
    const int64_t order = trial->order++;

    outcome->considered++;
    if (limit_bytes > 0 && bound_bytes > limit_bytes) {
        note_infeasible(trial, plan, workload, bound_bytes);
        return;
    }
    if ((timeless ? bound_bytes : bound_ns) > trial->limit) {
        outcome->pruned++;
        outcome->least_pruned_ns = MIN(outcome->least_pruned_ns, bound_ns);
        return;
    }
    outcome->simulated++;
    Report *report = NULL;
    g_autoptr(GError) error = NULL;
    if (!trial->evaluation->evaluate(plan, workload, &report, trial->evaluation->user_data,
                                     &error)) {
        if (outcome->error == NULL)
            outcome->error = g_steal_pointer(&error);
        return;
    }
    if (!report->fits) {
        note_infeasible(trial, plan, workload, report->peak_memory_bytes);
        report_free(report);
        return;
    }
    PlanFound *found = g_new(PlanFound, 1);
    *found = (PlanFound){
        .plan = plan_copy(plan),
        .first = timeless ? report->peak_memory_bytes : report->iteration_ns,
        .second = timeless ? report->iteration_ns : report->peak_memory_bytes,
        .index = trial->point->index,
        .order = order,
    };
    found->plan->predicted = report;
    g_ptr_array_add(outcome->found, found);
}

/* --- one point --- */

/*
 * What rank 0 holds at the least, before anything is priced: the state of its layers, and of each
 * chunk in flight one micro-batch.  Even stages only; balanced ones may begin with fewer layers.
 */
static int64_t
quick_bytes(const PlanEvaluation *evaluation, const PlanPoint *point, const ScheduleFamily *family)
{
    const PlanRequest *request = evaluation->space->request;
    const int64_t length = plan_space_chain_length(&point->degrees, family);
    const int64_t n = point->is_balanced ? 1 : request->arch->n_layers / length;
    const ScheduleShape shape = {
        .n_ranks = point->degrees.pp,
        .n_chunks = point->degrees.vpp,
        .n_microbatches = point->n_microbatches,
        .n_slices = 1,
        .group = family->groups && point->degrees.vpp > 1 ? request->group : 0,
    };
    int64_t state, kept;

    if (__builtin_mul_overflow(point->layer_state_bytes, n * point->degrees.vpp, &state) ||
        __builtin_mul_overflow(point->layer_kept_bytes,
                               n * plan_flights_least(evaluation->flights, family, &shape, 0),
                               &kept) ||
        __builtin_add_overflow(state, kept, &state))
        return INT64_MAX;
    return state;
}

/* Whether the family is known not to fit at @point; notes it. */
static bool
is_too_large(Trial *trial, const ScheduleFamily *family)
{
    const PlanEvaluation *evaluation = trial->evaluation;
    const int64_t limit = evaluation->memory_limit_bytes;
    const int64_t bytes = quick_bytes(evaluation, trial->point, family);

    if (bytes <= limit)
        return false;
    trial->order++;
    trial->outcome->considered++;
    trial->outcome->infeasible++;
    if (bytes < trial->outcome->least_bytes) {
        trial->outcome->least_bytes = bytes;
        trial->outcome->limit_bytes = limit;
        plan_free(trial->outcome->least);
        trial->outcome->least = plan_space_plan(evaluation->space->request, trial->point, family);
    }
    return true;
}

/* A Workload is the same for families of one placement and way of messages. */
typedef struct {
    Workload *workload; /* (owned, nullable) */
    SchedulePlacement placement;
    bool overlap_pp;
} Priced;

static bool
price(const PlanRequest *request, const Plan *plan, const ScheduleFamily *family, Priced *priced,
      GError **error)
{
    if (priced->workload != NULL && priced->placement == family->placement &&
        priced->overlap_pp == plan->conventions.overlap_pp)
        return true;
    workload_free(priced->workload);
    priced->workload =
        workload_new(request->arch, request->profile, plan, request->memory_limit_bytes, error);
    priced->placement = family->placement;
    priced->overlap_pp = plan->conventions.overlap_pp;
    return priced->workload != NULL;
}

static void
note_error(PlanOutcome *outcome, GError *error)
{
    if (outcome->error == NULL)
        outcome->error = error;
    else
        g_error_free(error);
}

void
plan_evaluate_point(const PlanEvaluation *evaluation, const PlanPoint *point, int64_t limit,
                    PlanOutcome *outcome)
{
    const PlanSpace *space = evaluation->space;
    const PlanRequest *request = space->request;
    Trial trial = {evaluation, point, limit, outcome, 0};
    Priced priced = {0};
    /* Bounds of whole sequences do not hold for slices. */
    const int64_t stage_limit =
        request->slices_mode == PLAN_SLICES_UNIFORM || request->slices_mode == PLAN_SLICES_GIVEN
            ? INT64_MAX
            : limit;

    for (guint i = 0; i < space->families->len; i++) {
        const ScheduleFamily *family = space->families->pdata[i];
        const int64_t n_slices =
            request->slices_mode == PLAN_SLICES_UNIFORM || request->slices_mode == PLAN_SLICES_GIVEN
                ? request->n_slices
                : 1;
        GError *error = NULL;
        if (!plan_space_has_family(space, point, family, n_slices) ||
            (n_slices == 1 && is_too_large(&trial, family)))
            continue;
        g_autoptr(Plan) plan = plan_space_plan(request, point, family);
        if (!set_stages(evaluation, point, family, stage_limit, plan, outcome) ||
            !set_slices(request, plan))
            continue;
        if (!price(request, plan, family, &priced, &error)) {
            note_error(outcome, error);
            continue;
        }
        simulate(&trial, plan, priced.workload, family);
    }
    workload_free(priced.workload);
}

/* Ops that are simulated for the slicings of one family at one point, and how many of them are
 * simulated in any case. */
#define MAX_SLICED_OPS (INT64_C(1) << 21)
#define LEAST_SLICINGS 4

/* Tries all slicings under one family, best formula first, until much was simulated. */
static void
try_slicings(Trial *trial, const GPtrArray *slicings, Plan *plan, const ScheduleFamily *family)
{
    const PlanRequest *request = trial->evaluation->space->request;

    int64_t n_ops = 0;

    for (guint i = 0; i < slicings->len && !plan_evaluation_is_stopped(trial->evaluation); i++) {
        const PlanSlicing *slicing = slicings->pdata[i];
        GError *error = NULL;
        if (i >= LEAST_SLICINGS && n_ops > MAX_SLICED_OPS)
            break;
        if (slicing->slices->len < 2 ||
            !plan_space_has_family(trial->evaluation->space, trial->point, family,
                                   slicing->slices->len))
            continue;
        n_ops += 2 * plan->n_microbatches * slicing->slices->len * plan->stages->len;
        g_array_unref(plan->slices);
        plan->slices = g_array_copy(slicing->slices);
        g_autoptr(Workload) workload = workload_new(request->arch, request->profile, plan,
                                                    request->memory_limit_bytes, &error);
        if (workload == NULL) {
            note_error(trial->outcome, error);
            continue;
        }
        simulate(trial, plan, workload, family);
        /* What was found bounds what follows. */
        const GPtrArray *found = trial->outcome->found;
        for (guint k = 0; k < found->len; k++)
            trial->limit = MIN(trial->limit, ((PlanFound *)found->pdata[k])->first);
    }
}

void
plan_evaluate_slices(const PlanEvaluation *evaluation, const PlanPoint *point, int64_t limit,
                     PlanOutcome *outcome)
{
    const PlanSpace *space = evaluation->space;
    const PlanRequest *request = space->request;
    /* After whole sequences in the order of ties. */
    Trial trial = {evaluation, point, limit, outcome, 1000000};
    g_autoptr(GPtrArray) slicings = NULL;
    GError *error = NULL;

    for (guint i = 0; i < space->families->len; i++) {
        const ScheduleFamily *family = space->families->pdata[i];
        if (!family->slices || !plan_space_has_family(space, point, family, 2))
            continue;
        g_autoptr(Plan) plan = plan_space_plan(request, point, family);
        if (!set_stages(evaluation, point, family, INT64_MAX, plan, outcome))
            continue;
        if (slicings == NULL) {
            g_autoptr(Workload) workload = workload_new(request->arch, request->profile, plan,
                                                        request->memory_limit_bytes, &error);
            int64_t bound_ns = INT64_MAX;
            slicings = workload == NULL
                           ? NULL
                           : plan_slicings_new(request, plan, workload, &bound_ns, &error);
            outcome->least_pruned_ns = MIN(outcome->least_pruned_ns, bound_ns);
        }
        if (slicings == NULL) {
            note_error(outcome, error);
            break;
        }
        try_slicings(&trial, slicings, plan, family);
    }
}

/* Slices of an estimate, cheap to price: few where short ops are slow (small models, CPUs), and
 * near the optimum of large ones. */
static const int64_t estimate_slices[] = {4, 16};

/* INT64_MAX where the point cannot be cut so or does not fit. */
static int64_t
estimate_ns(const PlanEvaluation *evaluation, const PlanPoint *point, const ScheduleFamily *family,
            int64_t n_slices)
{
    const PlanRequest *request = evaluation->space->request;

    if (!plan_space_has_family(evaluation->space, point, family, n_slices))
        return INT64_MAX;
    g_autoptr(Plan) plan = plan_space_plan(request, point, family);
    if (!plan_evaluate_set_uniform(plan, n_slices))
        return INT64_MAX;
    g_autoptr(Workload) workload =
        workload_new(request->arch, request->profile, plan, request->memory_limit_bytes, NULL);
    if (workload == NULL)
        return INT64_MAX;
    const int64_t limit_bytes = memory_limit(workload);
    return limit_bytes == 0 ||
                   plan_bound_bytes(plan, workload, family, evaluation->flights) <= limit_bytes
               ? plan_bound_ns(plan, workload, family)
               : INT64_MAX;
}

void
plan_estimate_slices(const PlanEvaluation *evaluation, const PlanPoint *point, int64_t limit,
                     PlanOutcome *outcome)
{
    const PlanSpace *space = evaluation->space;

    outcome->estimate_ns = INT64_MAX;
    for (guint i = 0; i < space->families->len; i++) {
        const ScheduleFamily *family = space->families->pdata[i];
        for (size_t k = 0; family->slices && k < G_N_ELEMENTS(estimate_slices); k++)
            outcome->estimate_ns = MIN(outcome->estimate_ns,
                                       estimate_ns(evaluation, point, family, estimate_slices[k]));
    }
}
