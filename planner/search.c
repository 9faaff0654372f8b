/*
 * Branch and bound over the points of space.h, best bound first.
 *
 * Waves: a fixed number of points is evaluated at once, all against the best plans of the waves
 * before, and merged in their order.  So threads change neither the answer nor the counts.
 */
#include "planner/search.h"

#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "planner/advice.h"
#include "planner/evaluate.h"
#include "planner/slicing.h"

const char *const plan_objective_names[PLAN_OBJECTIVE_N + 1] = {"time", "cost", "energy", "memory",
                                                                NULL};

/* Points of a wave: enough for many threads, few enough to lose little before the first answer. */
#define WAVE 16
/* Points whose slicing is estimated, at a millisecond each; and found, at a tenth of a second. */
#define MAX_ESTIMATED 384
#define MAX_SLICED 24
/* Estimates of a space that is looked at closely. */
#define SMALL_SPACE 64
/* Chunks that are tried with slices. */
#define MAX_SLICED_CHUNKS 4
/* Points that the search for the least memory looks at. */
#define MAX_LEAST 512
/* More than any plan needs, and sums of a few of it do not overflow. */
#define NO_LIMIT (INT64_MAX / 8)
/* Slices that cannot gain one part in so many are not looked for. */
#define LEAST_GAIN 50

typedef struct {
    PlanEvaluation evaluation;
    const PlanRequest *request;
    PlanSpace *space; /* (owned) */
    PlanOutcome total;
    int64_t lower_bound_ns; /* of what was not simulated */
} Search;

/* What the objective compares. */
static int64_t
point_bound(const Search *search, const PlanPoint *point)
{
    return search->evaluation.is_timeless ? point->bound_bytes : point->bound_ns;
}

/* Objective values above it are of no interest. */
static int64_t
current_limit(const Search *search)
{
    const GPtrArray *found = search->total.found;

    return found->len > (guint)search->request->top
               ? ((PlanFound *)found->pdata[search->request->top])->first
               : INT64_MAX;
}

/* A bound above it leaves slices less than LEAST_GAIN. */
static int64_t
least_gain(int64_t limit)
{
    return limit - limit / LEAST_GAIN;
}

static int64_t
largest_memory(const PlanRequest *request)
{
    const ModelCluster *cluster = request->profile->cluster;
    int64_t most = 0;

    if (request->memory_limit_bytes > 0)
        return request->memory_limit_bytes;
    for (guint i = 0; i < cluster->devices->len; i++)
        most = MAX(most, g_array_index(cluster->devices, ModelDevice, i).memory_bytes);
    return most > 0 ? most : INT64_MAX;
}

/* --- waves --- */

typedef void (*EvaluateFunc)(const PlanEvaluation *evaluation, const PlanPoint *point,
                             int64_t limit, PlanOutcome *outcome);

typedef struct {
    const Search *search;
    EvaluateFunc evaluate;
    const PlanPoint *points[WAVE]; /* (borrowed) */
    PlanOutcome outcomes[WAVE];
    int n;
    int64_t limit;
    int next; /* atomic */
} Wave;

static gpointer
work(gpointer data)
{
    Wave *wave = data;

    for (;;) {
        const int i = g_atomic_int_add(&wave->next, 1);
        if (i >= wave->n)
            return NULL;
        wave->evaluate(&wave->search->evaluation, wave->points[i], wave->limit, &wave->outcomes[i]);
    }
}

/* Fills the outcomes of the wave's points. */
static void
run_threads(Search *search, Wave *wave)
{
    GThread *threads[WAVE] = {NULL};
    const int n_threads = (int)MIN(search->request->threads, wave->n);

    wave->search = search;
    wave->limit = current_limit(search);
    wave->next = 0;
    for (int i = 0; i < wave->n; i++)
        plan_outcome_init(&wave->outcomes[i]);
    /* A thread that cannot be had is not needed: this one does the rest. */
    for (int i = 1; i < n_threads; i++)
        threads[i] = g_thread_try_new("plan", work, wave, NULL);
    work(wave);
    for (int i = 1; i < n_threads; i++)
        if (threads[i] != NULL)
            g_thread_join(threads[i]);
}

/* Evaluates the wave's points and merges what they found; keeps the best top + 1. */
static void
run_wave(Search *search, Wave *wave)
{
    run_threads(search, wave);
    for (int i = 0; i < wave->n; i++) {
        plan_outcome_merge(&search->total, &wave->outcomes[i]);
        plan_outcome_clear(&wave->outcomes[i]);
    }
    GPtrArray *found = search->total.found;
    g_ptr_array_sort(found, plan_found_compare);
    if (found->len > (guint)search->request->top + 1)
        g_ptr_array_remove_range(found, (guint)search->request->top + 1,
                                 found->len - (guint)search->request->top - 1);
}

/* --- whole sequences --- */

static int
compare_by_time(const void *a, const void *b)
{
    const PlanPoint *x = *(const PlanPoint *const *)a, *y = *(const PlanPoint *const *)b;

    if (x->bound_ns != y->bound_ns)
        return x->bound_ns < y->bound_ns ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static int
compare_by_memory(const void *a, const void *b)
{
    const PlanPoint *x = *(const PlanPoint *const *)a, *y = *(const PlanPoint *const *)b;

    if (x->bound_bytes != y->bound_bytes)
        return x->bound_bytes < y->bound_bytes ? -1 : 1;
    return compare_by_time(a, b);
}

static int
compare_by_slices(const void *a, const void *b)
{
    const PlanPoint *x = *(const PlanPoint *const *)a, *y = *(const PlanPoint *const *)b;

    if (x->sliced_bound_ns != y->sliced_bound_ns)
        return x->sliced_bound_ns < y->sliced_bound_ns ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* (owned) the space's points in the order of @compare. */
static const PlanPoint **
sort_points(const Search *search, GCompareFunc compare)
{
    const GArray *points = search->space->points;
    const PlanPoint **sorted = g_new(const PlanPoint *, points->len);

    for (guint i = 0; i < points->len; i++)
        sorted[i] = &g_array_index(points, PlanPoint, i);
    if (points->len > 1)
        qsort(sorted, points->len, sizeof *sorted, compare);
    return sorted;
}

/* A point that does not fit. */
static void
note_least(Search *search, const PlanPoint *point)
{
    if (point->bound_bytes >= search->total.least_bytes)
        return;
    search->total.least_bytes = point->bound_bytes;
    search->total.limit_bytes = search->evaluation.memory_limit_bytes;
    plan_free(search->total.least);
    search->total.least =
        plan_space_plan(search->request, point, search->space->families->pdata[0]);
}

static bool
search_points(Search *search, int64_t max_points, GError **error)
{
    const guint n = search->space->points->len;
    g_autofree const PlanPoint **points =
        sort_points(search, search->evaluation.is_timeless ? compare_by_memory : compare_by_time);
    g_autofree Wave *wave = g_new0(Wave, 1);

    wave->evaluate = plan_evaluate_point;
    for (guint i = 0; i < n && max_points > 0;) {
        wave->n = 0;
        for (; i < n && wave->n < WAVE; i++) {
            const PlanPoint *point = points[i];
            if (point->bound_bytes > search->evaluation.memory_limit_bytes) {
                search->total.considered += point->n_families;
                search->total.infeasible += point->n_families;
                note_least(search, point);
            } else if (point_bound(search, point) > current_limit(search)) {
                search->total.considered += point->n_families;
                search->total.pruned += point->n_families;
                search->lower_bound_ns = MIN(search->lower_bound_ns, point->bound_ns);
            } else {
                wave->points[wave->n++] = point;
            }
        }
        max_points -= wave->n;
        run_wave(search, wave);
        if (search->total.error != NULL) {
            g_propagate_error(error, g_steal_pointer(&search->total.error));
            return false;
        }
    }
    return true;
}

/* --- slices --- */

/* One way to slice everything but families and chunks, and what it may take. */
typedef struct {
    PlanPoint point;
    int64_t estimate_ns;
} Sliced;

static int
compare_estimates(const void *a, const void *b)
{
    const Sliced *x = a, *y = b;

    if (x->estimate_ns != y->estimate_ns)
        return x->estimate_ns < y->estimate_ns ? -1 : 1;
    return x->point.index < y->point.index ? -1 : x->point.index > y->point.index;
}

/* Whether slices at @point may be worth it. */
static bool
may_gain(const Search *search, const PlanPoint *point)
{
    return point->sliced_bound_ns != INT64_MAX &&
           point->state_bytes <= search->evaluation.memory_limit_bytes &&
           point->sliced_bound_ns <= least_gain(current_limit(search));
}

/* (owned) GArray of Sliced, best estimate first: points of even stages with the fewest chunks. */
static GArray *
estimate_points(Search *search, const PlanPoint *const *points)
{
    const guint n = search->space->points->len;
    GArray *all = g_array_new(FALSE, FALSE, sizeof(Sliced));
    g_autofree Wave *wave = g_new0(Wave, 1);
    const int64_t vpp = MAX(1, search->request->vpp);

    wave->evaluate = plan_estimate_slices;
    for (guint i = 0; i < n && all->len < MAX_ESTIMATED;) {
        const guint first = all->len;
        wave->n = 0;
        for (; i < n && wave->n < WAVE; i++) {
            const Sliced sliced = {.point = *points[i]};
            if (sliced.point.degrees.vpp != vpp || sliced.point.is_balanced ||
                !may_gain(search, &sliced.point))
                continue;
            wave->points[wave->n++] = points[i];
            g_array_append_val(all, sliced);
        }
        run_threads(search, wave);
        for (int k = 0; k < wave->n; k++) {
            g_array_index(all, Sliced, first + (guint)k).estimate_ns =
                wave->outcomes[k].estimate_ns;
            plan_outcome_clear(&wave->outcomes[k]);
        }
    }
    if (all->len > 0)
        if (all->len > 1)
        qsort(all->data, all->len, sizeof(Sliced), compare_estimates);
    return all;
}

/* Whether @point is @like with other chunks or stages. */
static bool
is_variant(const PlanPoint *point, const PlanPoint *like)
{
    const PlanDegrees *a = &point->degrees, *b = &like->degrees;

    return a->dp == b->dp && a->tp == b->tp && a->pp == b->pp && a->cp == b->cp && a->ep == b->ep &&
           a->vpp <= MAX(b->vpp, MAX_SLICED_CHUNKS) && point->micro_batch == like->micro_batch &&
           point->recompute == like->recompute && point->zero_stage == like->zero_stage &&
           point->offload == like->offload && point->sequence_parallel == like->sequence_parallel;
}

/* Slices the points that they may help most, by estimate; the variants of one after the other. */
static bool
search_slices(Search *search, GError **error)
{
    const guint n = search->space->points->len;
    g_autofree const PlanPoint **points = sort_points(search, compare_by_slices);
    g_autofree Wave *wave = g_new0(Wave, 1);
    g_autofree bool *tried = g_new0(bool, n);
    int n_tried = 0;

    g_autoptr(GArray) all = estimate_points(search, points);
    wave->evaluate = plan_evaluate_slices;
    for (guint k = 0; k < all->len && n_tried < MAX_SLICED; k++) {
        const Sliced *sliced = &g_array_index(all, Sliced, k);
        /* Better slices than equal ones gain little; what is far behind stays there. */
        if (sliced->estimate_ns == INT64_MAX || sliced->estimate_ns / 5 * 4 > current_limit(search))
            break;
        wave->n = 0;
        for (guint i = 0; i < n && wave->n < WAVE; i++)
            if (!tried[i] && is_variant(points[i], &sliced->point) && may_gain(search, points[i])) {
                wave->points[wave->n++] = points[i];
                tried[i] = true;
            }
        n_tried += wave->n;
        run_wave(search, wave);
    }
    for (guint i = 0; i < n; i++) {
        const PlanPoint *point = points[i];
        if (!tried[i] && point->state_bytes <= search->evaluation.memory_limit_bytes)
            search->lower_bound_ns = MIN(search->lower_bound_ns, point->sliced_bound_ns);
    }
    if (search->total.error == NULL)
        return true;
    g_propagate_error(error, g_steal_pointer(&search->total.error));
    return false;
}

/* --- the answer --- */

static Plan *
answer(Search *search)
{
    GPtrArray *found = search->total.found;
    Plan *best = g_steal_pointer(&((PlanFound *)found->pdata[0])->plan);
    const int64_t time_ns = best->predicted->iteration_ns;
    const int64_t bound_ns =
        MIN(time_ns, MIN(search->lower_bound_ns, search->total.least_pruned_ns));

    /* Another objective's plan may be slower than what its search pruned. */
    best->lower_bound_s = units_s_from_ns(bound_ns);
    best->optimality_gap_fraction = time_ns > 0 ? 1.0 - (double)bound_ns / (double)time_ns : 0.0;
    best->search.considered = search->total.considered;
    best->search.pruned = search->total.pruned;
    best->search.simulated = search->total.simulated;
    best->search.infeasible = search->total.infeasible;
    for (guint i = 1; i < found->len; i++) {
        if (best->alternatives == NULL)
            best->alternatives = g_ptr_array_new_with_free_func((GDestroyNotify)plan_free);
        g_ptr_array_add(best->alternatives, g_steal_pointer(&((PlanFound *)found->pdata[i])->plan));
    }
    return best;
}

static void
search_init(Search *search, const PlanRequest *request, PlanSpace *space, PlanEvaluateFunc evaluate,
            void *user_data)
{
    *search = (Search){
        .evaluation = {.space = space,
                       .evaluate = evaluate,
                       .user_data = user_data,
                       .flights = plan_flights_new(),
                       .layouts = plan_layouts_new(),
                       .memory_limit_bytes = largest_memory(request),
                       .is_timeless = request->objective == PLAN_OBJECTIVE_MEMORY},
        .request = request,
        .space = space,
        .lower_bound_ns = INT64_MAX,
    };
    plan_outcome_init(&search->total);
    search->total.considered = space->n_slow + space->n_large;
    search->total.pruned = space->n_slow;
    search->total.infeasible = space->n_large;
    search->lower_bound_ns = MIN(space->least_slow_ns, space->least_sliced_ns);
    if (space->n_large > 0)
        note_least(search, &space->least_large);
}

static void
search_clear(Search *search)
{
    plan_outcome_clear(&search->total);
    plan_flights_free(search->evaluation.flights);
    plan_layouts_free(search->evaluation.layouts);
}

Plan *
plan_search_least(const PlanRequest *request, PlanEvaluateFunc evaluate, void *user_data)
{
    PlanRequest unlimited = *request;

    unlimited.objective = PLAN_OBJECTIVE_MEMORY;
    unlimited.memory_limit_bytes = NO_LIMIT;
    unlimited.top = 0;
    const PlanSpaceLimits limits = {NO_LIMIT, INT64_MAX, -1, 0};
    g_autoptr(PlanSpace) space = plan_space_new(&unlimited, &limits, NULL);
    Search search;
    Plan *plan = NULL;
    if (space == NULL)
        return NULL;
    search_init(&search, &unlimited, space, evaluate, user_data);
    if (search_points(&search, MAX_LEAST, NULL) && search.total.found->len > 0)
        plan = answer(&search);
    search_clear(&search);
    return plan;
}

/*
 * The objective of the last plan that a narrower request would keep: what is slower need not even
 * be enumerated.  1F1B without context parallelism is always near; INT64_MAX if the request rules
 * it out or it fits nowhere.
 */
static int64_t
find_limit(const PlanRequest *request, PlanEvaluateFunc evaluate, void *user_data)
{
    static const char *const schedules[] = {"1f1b", NULL};
    PlanRequest narrow = *request;
    int64_t limit = INT64_MAX;

    if (request->schedules != NULL || request->vpp > 1 || request->cp > 1 ||
        request->objective == PLAN_OBJECTIVE_MEMORY ||
        request->slices_mode == PLAN_SLICES_UNIFORM || request->slices_mode == PLAN_SLICES_GIVEN)
        return INT64_MAX;
    narrow.schedules = schedules;
    narrow.vpp = narrow.cp = 1;
    narrow.slices_mode = PLAN_SLICES_OFF;
    const PlanSpaceLimits limits = {largest_memory(request), INT64_MAX, -1, 0};
    g_autoptr(PlanSpace) space = plan_space_new(&narrow, &limits, NULL);
    if (space == NULL)
        return INT64_MAX;
    Search search;
    search_init(&search, &narrow, space, evaluate, user_data);
    if (search_points(&search, INT64_MAX, NULL))
        limit = current_limit(&search);
    search_clear(&search);
    return limit;
}

Plan *
plan_search(const PlanRequest *request, PlanEvaluateFunc evaluate, void *user_data, GError **error)
{
    g_return_val_if_fail(request != NULL && evaluate != NULL, NULL);
    g_return_val_if_fail(request->threads >= 1 && request->top >= 0, NULL);
    const int64_t time_ns = find_limit(request, evaluate, user_data);
    const bool slices = request->slices_mode == PLAN_SLICES_AUTO;
    const PlanSpaceLimits limits = {
        .memory_bytes = largest_memory(request),
        .time_ns = time_ns,
        .sliced_ns = slices ? least_gain(time_ns) : -1,
        .sliced_vpp = MAX(request->vpp, MAX_SLICED_CHUNKS),
    };
    g_autoptr(PlanSpace) space = plan_space_new(request, &limits, error);
    Plan *plan = NULL;

    if (space == NULL)
        return NULL;
    Search search;
    search_init(&search, request, space, evaluate, user_data);
    if (search_points(&search, INT64_MAX, error) &&
        (request->slices_mode != PLAN_SLICES_AUTO || search_slices(&search, error))) {
        if (search.total.found->len > 0)
            plan = answer(&search);
        else
            plan_advice_set_error(request, evaluate, user_data, &search.total, error);
    }
    search_clear(&search);
    return plan;
}

/* --- one plan, not searched --- */

/* Fixes what a request leaves open, as `degas simulate` takes it. */
static PlanRequest
close_request(const PlanRequest *request)
{
    PlanRequest closed = *request;

    closed.tp = MAX(1, request->tp);
    closed.pp = MAX(1, request->pp);
    closed.cp = MAX(1, request->cp);
    closed.ep = MAX(1, request->ep);
    closed.vpp = MAX(1, request->vpp);
    closed.micro_batch = MAX(1, request->micro_batch);
    if (closed.dp == 0) {
        const int64_t others = closed.tp * closed.pp * closed.cp;
        closed.dp = request->n_devices > 0 && request->n_devices % others == 0
                        ? MAX(1, request->n_devices / others)
                        : 1;
    }
    closed.recompute = request->recompute == PLAN_AUTO ? PLAN_RECOMPUTE_NONE : request->recompute;
    closed.zero_stage = MAX(0, request->zero_stage);
    closed.offload = request->offload == PLAN_AUTO ? PLAN_OFFLOAD_NONE : request->offload;
    closed.sequence_parallel = request->sequence_parallel == 1 ? 1 : 0;
    return closed;
}

/* The family asked for, or what is usual: terapipe for slices, interleaved for chunks, 1f1b. */
static const ScheduleFamily *
usual_family(const PlanRequest *request, GError **error)
{
    const char *name = request->schedules != NULL ? request->schedules[0] : NULL;

    if (name == NULL || strcmp(name, "auto") == 0)
        name = request->vpp > 1                                             ? "interleaved"
               : request->slices_mode != PLAN_SLICES_OFF && request->pp > 1 ? "terapipe"
                                                                            : "1f1b";
    g_autoptr(GError) local = NULL;
    const ScheduleFamily *family = schedule_family_find(name, &local);
    if (family == NULL)
        g_set_error(error, PLAN_ERROR, PLAN_ERROR_INVALID, "--schedule: %s", local->message);
    return family;
}

static bool
set_best_slices(const PlanRequest *request, Plan *plan, GError **error)
{
    g_autoptr(Workload) workload =
        workload_new(request->arch, request->profile, plan, request->memory_limit_bytes, error);
    if (workload == NULL)
        return false;
    g_autoptr(GPtrArray) slicings = plan_slicings_new(request, plan, workload, NULL, error);
    if (slicings == NULL)
        return false;
    if (slicings->len > 0) {
        const PlanSlicing *best = slicings->pdata[0];
        g_array_unref(plan->slices);
        plan->slices = g_array_copy(best->slices);
    }
    return true;
}

Plan *
plan_from_request(const PlanRequest *request, GError **error)
{
    g_return_val_if_fail(request != NULL, NULL);
    const PlanRequest closed = close_request(request);
    const ScheduleFamily *family = usual_family(&closed, error);
    if (family == NULL || !plan_space_check(&closed, error))
        return NULL;
    if (closed.global_batch % closed.dp != 0 ||
        closed.global_batch / closed.dp % closed.micro_batch != 0) {
        g_set_error(error, PLAN_ERROR, PLAN_ERROR_INVALID,
                    "--global-batch %" G_GINT64_FORMAT
                    " is not a multiple of --dp %" G_GINT64_FORMAT
                    " * --micro-batch %" G_GINT64_FORMAT,
                    closed.global_batch, closed.dp, closed.micro_batch);
        return NULL;
    }
    PlanPoint point = {
        .degrees = {closed.dp, closed.tp, closed.pp, closed.vpp, closed.cp, closed.ep},
        .micro_batch = closed.micro_batch,
        .n_microbatches = closed.global_batch / closed.dp / closed.micro_batch,
        .recompute = (PlanRecompute)closed.recompute,
        .zero_stage = closed.zero_stage,
        .offload = (PlanOffload)closed.offload,
        .sequence_parallel = closed.sequence_parallel == 1,
    };
    g_autoptr(Plan) plan = plan_space_plan(&closed, &point, family);
    if (closed.slices_mode == PLAN_SLICES_UNIFORM) {
        if (!plan_evaluate_set_uniform(plan, closed.n_slices)) {
            g_set_error(error, PLAN_ERROR, PLAN_ERROR_INVALID,
                        "--slices: %" G_GINT64_FORMAT " slices of whole parts of --cp and --tp do "
                        "not fit into --seq-len %" G_GINT64_FORMAT,
                        closed.n_slices, closed.seq_len);
            return NULL;
        }
    } else if (closed.slices_mode == PLAN_SLICES_GIVEN) {
        g_array_set_size(plan->slices, 0);
        g_array_append_vals(plan->slices, closed.slices, (guint)closed.n_slices);
    }
    if (!plan_check(plan, closed.arch->n_layers, error))
        return NULL;
    if (closed.slices_mode == PLAN_SLICES_AUTO && closed.pp > 1 && family->slices &&
        !set_best_slices(&closed, plan, error))
        return NULL;
    return g_steal_pointer(&plan);
}
