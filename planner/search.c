/*
 * Branch and bound over the points of space.h, best bound first; run.h has the threads.
 */
#include "planner/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/order.h"
#include "base/units.h"
#include "planner/advice.h"
#include "planner/modules.h"
#include "planner/run.h"
#include "planner/sliced.h"
#include "planner/slices/slicings.h"
#include "planner/trial/point.h"
#include "schedule/rank_order.h"

/* Points that the search for the least memory looks at. */
#define MAX_LEAST 512
/* Points that take longer than to find slices. */
#define MANY_POINTS 2048
/* More than any plan needs, and sums of a few of it do not overflow. */
#define NO_LIMIT (INT64_MAX / 8)

/* What the objective compares. */
static int64_t
point_bound(const PlanRun *run, const PlanPoint *point)
{
    return run->evaluation.is_timeless ? point->bound_bytes : point->bound_ns;
}

static int
compare_by_time(const void *a, const void *b)
{
    const PlanPoint *x = *(const PlanPoint *const *)a, *y = *(const PlanPoint *const *)b;

    ORDER_BY(x->bound_ns, y->bound_ns);
    return ORDER(x->index, y->index);
}

static int
compare_by_memory(const void *a, const void *b)
{
    return plan_point_compare_bytes(*(const PlanPoint *const *)a, *(const PlanPoint *const *)b);
}

/*
 * Whole sequences, or the request's slices, at up to @max_points points.
 * @slices  slices are looked for besides: after them, or in the middle of many points, since where messages are
 *          slow or batches small no whole sequences come near slices, which then spare most of the rest.
 */
static void
search_points(PlanRun *run, int64_t max_points, bool slices)
{
    const guint n = run->space->points->len;
    g_autofree const PlanPoint **points =
        plan_run_sort(run, run->evaluation.is_timeless ? compare_by_memory : compare_by_time);
    g_autofree PlanWave *wave = g_new0(PlanWave, 1);
    int size = PLAN_FIRST_WAVE;
    int64_t n_walked = 0;

    wave->evaluate = plan_evaluate_point;
    for (guint i = 0; i < n && n_walked < max_points && !plan_run_is_over(run);) {
        if (slices && n_walked > MANY_POINTS) {
            plan_sliced_search(run);
            slices = false;
        }
        wave->n = 0;
        for (; i < n && wave->n < size; i++) {
            const PlanPoint *point = points[i];
            if (point->bound_bytes > run->evaluation.memory_limit_bytes) {
                plan_run_note_large(run, point);
            } else if (point_bound(run, point) > plan_run_limit(run)) {
                run->total.considered += point->n_candidates;
                run->total.pruned += point->n_candidates;
                run->lower_bound_ns = MIN(run->lower_bound_ns, point->bound_ns);
            } else {
                wave->points[wave->n++] = point;
                /* Of plans that are compared by their memory none is slower than a limit. */
                if (run->evaluation.is_timeless)
                    run->lower_bound_ns = MIN(run->lower_bound_ns, point->bound_ns);
            }
        }
        n_walked += wave->n;
        size = MIN(PLAN_WAVE, 2 * size);
        plan_run_wave(run, wave);
    }
    if (slices)
        plan_sliced_search(run);
}

/* --- the answer --- */

/* A stopped search knows nothing of the points it did not reach. */
static void
cover_all_points(PlanRun *run)
{
    for (guint i = 0; i < run->space->points->len; i++) {
        const PlanPoint *point = &g_array_index(run->space->points, PlanPoint, i);
        run->lower_bound_ns =
            MIN(run->lower_bound_ns, MIN(point->bound_ns, point->sliced_bound_ns));
    }
    for (guint i = 0; i < run->space->chunked->len; i++)
        run->lower_bound_ns = MIN(run->lower_bound_ns,
                                  g_array_index(run->space->chunked, PlanPoint, i).sliced_bound_ns);
}

static Plan *
answer(PlanRun *run)
{
    GPtrArray *found = run->total.found;
    Plan *best = g_steal_pointer(&((PlanFound *)found->pdata[0])->plan);
    const int64_t time_ns = best->predicted->iteration_ns;
    const int64_t bound_ns = MIN(time_ns, MIN(run->lower_bound_ns, run->total.least_pruned_ns));

    /* Another objective's plan may be slower than what its search pruned. */
    best->physical_bound_s = best->predicted->physical_bound_s;
    if (!run->request->skips_bound) {
        best->lower_bound_s = units_s_from_ns(bound_ns);
        best->optimality_gap_fraction =
            time_ns > 0 ? 1.0 - (double)bound_ns / (double)time_ns : 0.0;
    }
    best->search.considered = run->total.considered;
    best->search.pruned = run->total.pruned;
    best->search.simulated = run->total.simulated;
    best->search.infeasible = run->total.infeasible;
    for (guint i = 1; i < found->len; i++) {
        if (best->alternatives == NULL)
            best->alternatives = g_ptr_array_new_with_free_func((GDestroyNotify)plan_free);
        g_ptr_array_add(best->alternatives, g_steal_pointer(&((PlanFound *)found->pdata[i])->plan));
    }
    return best;
}

/*
 * (owned) What the request names, for plan_search_least(): in place of families that search for an order,
 * which takes them a second, those that they begin with.  A family that searches keeps every memory
 * limit that one of these keeps.
 */
static const char **
name_least_families(const char *const *schedules)
{
    GPtrArray *names = g_ptr_array_new();

    for (size_t i = 0; schedules[i] != NULL; i++) {
        const ScheduleFamily *family = schedule_family_find(schedules[i], NULL);
        if (family == NULL || !family->searches)
            g_ptr_array_add(names, (gpointer)schedules[i]);
        for (size_t j = 0; family != NULL && family->searches && schedule_families()[j] != NULL;
             j++)
            if (schedule_families()[j]->seeds_search)
                g_ptr_array_add(names, (gpointer)schedule_families()[j]->name);
    }
    g_ptr_array_add(names, NULL);
    return (const char **)g_ptr_array_free(names, FALSE);
}

Plan *
plan_search_least(const PlanRequest *request, int64_t most_bytes, PlanEvaluateFunc evaluate,
                  void *user_data)
{
    PlanRequest unlimited = *request;
    g_autofree const char **names =
        request->schedules == NULL ? NULL : name_least_families(request->schedules);

    unlimited.schedules = names;

    unlimited.objective = PLAN_OBJECTIVE_MEMORY;
    unlimited.memory_limit_bytes = NO_LIMIT;
    unlimited.top = 0;
    unlimited.memo = NULL; /* advice changes devices too */
    const PlanSpaceLimits limits = {.memory_bytes = NO_LIMIT,
                                    .time_ns = INT64_MAX,
                                    .sliced_ns = -1,
                                    .n_leanest = MAX_LEAST + PLAN_WAVE,
                                    .leanest_bytes = most_bytes};
    g_autoptr(PlanSpace) space = plan_space_new(&unlimited, &limits, NULL);
    g_auto(PlanRun) run = {0};
    if (space == NULL)
        return NULL;
    plan_run_init(&run, &unlimited, space, evaluate, user_data);
    run.evaluation.skips_divisions = true;
    search_points(&run, MAX_LEAST, false);
    plan_run_settle(&run);
    return run.total.found->len > 0 ? answer(&run) : NULL;
}

static void
drop_single_stages(PlanSpace *space)
{
    guint n = 0;

    for (guint i = 0; i < space->points->len; i++) {
        const PlanPoint *point = &g_array_index(space->points, PlanPoint, i);
        if (point->degrees.pp > 1)
            g_array_index(space->points, PlanPoint, n++) = *point;
    }
    g_array_set_size(space->points, n);
}

/* Replaces @seed by a copy of the best plan of @run, if it is better. */
static void
keep_seed(const PlanRun *run, PlanFound *seed)
{
    const PlanFound *found = run->total.found->len == 0 ? NULL : run->total.found->pdata[0];

    if (found == NULL || (seed->plan != NULL && seed->first <= found->first))
        return;
    plan_free(seed->plan);
    *seed = *found;
    seed->plan = plan_copy(found->plan);
    /* Nothing is known of the space that was not enumerated. */
    seed->plan->lower_bound_s = 0.0;
    seed->plan->optimality_gap_fraction = 1.0;
    seed->plan->search.considered = run->total.considered;
    seed->plan->search.pruned = run->total.pruned;
    seed->plan->search.simulated = run->total.simulated;
    seed->plan->search.infeasible = run->total.infeasible;
}

static bool
is_request_stopped(const PlanRequest *request)
{
    return request->stop != NULL && g_atomic_int_get(request->stop) != 0;
}

/* (nullable) What ends even an enumeration: nothing, where a plan is waited for. */
static const int *
stop_of(const PlanRequest *request, const PlanFound *seed)
{
    return seed->plan != NULL || !request->waits ? request->stop : NULL;
}

/*
 * Searches @narrow, which allows less than the request and does not choose slices.
 * @limit      objective values above it are of no interest.
 * @pipelines  plans of one stage are of no interest.
 * @seed       takes the best plan, if it is better.
 * Returns: (owned) GPtrArray of PlanFound *, the best narrow->top + 1, in order.
 */
static GPtrArray *
search_narrow(const PlanRequest *narrow, int64_t limit, bool pipelines, PlanEvaluateFunc evaluate,
              void *user_data, PlanFound *seed)
{
    const PlanSpaceLimits limits = {.memory_bytes = plan_request_largest_memory(narrow),
                                    .time_ns = limit,
                                    .sliced_ns = -1,
                                    .stop = stop_of(narrow, seed)};
    g_autoptr(PlanSpace) space = plan_space_new(narrow, &limits, NULL);
    g_auto(PlanRun) run = {0};

    if (space == NULL)
        return g_ptr_array_new();
    if (pipelines)
        drop_single_stages(space);
    plan_run_init(&run, narrow, space, evaluate, user_data);
    run.known_limit = limit;
    run.has_seed = seed->plan != NULL;
    search_points(&run, INT64_MAX, false);
    keep_seed(&run, seed);
    return g_steal_pointer(&run.total.found);
}

/* The objective of the last of @found that @request keeps, or @limit if that is less. */
static int64_t
limit_of(const PlanRequest *request, const GPtrArray *found, int64_t limit)
{
    return found->len > (guint)request->top
               ? MIN(limit, ((PlanFound *)found->pdata[request->top])->first)
               : limit;
}

/* The objective of the last plan kept of whole sequences at the degrees that the request is told
 * of; INT64_MAX: it is not told, or nothing fits there.  Where it is told more than tp and pp, these
 * alone are asked only if nothing fits there: a limit that is a little lower takes longer to find than
 * it spares. */
static int64_t
find_near_limit(const PlanRequest *request, PlanEvaluateFunc evaluate, void *user_data,
                PlanFound *seed)
{
    PlanRequest narrow = *request, exact;

    if (request->tp == 0)
        narrow.tp = request->near_tp;
    if (request->pp == 0)
        narrow.pp = request->near_pp;
    if (narrow.tp == request->tp && narrow.pp == request->pp)
        return INT64_MAX;
    narrow.rank_order = MAX(PLAN_RANK_ORDER_DEFAULT, request->rank_order);
    if (request->slices_mode == PLAN_SLICES_AUTO)
        narrow.slices_mode = PLAN_SLICES_OFF;
    exact = narrow;
    if (request->cp == 0)
        exact.cp = request->near_cp;
    /* Who does not ask for chunks gets none on one rank. */
    if (request->vpp == 0 && exact.pp > 1)
        exact.vpp = request->near_vpp;
    if (request->micro_batch == 0)
        exact.micro_batch = request->near_micro_batch;
    const bool is_exact =
        exact.cp != narrow.cp || exact.vpp != narrow.vpp || exact.micro_batch != narrow.micro_batch;
    for (int i = is_exact ? 0 : 1; i < 2; i++) {
        g_autoptr(GPtrArray) found =
            search_narrow(i == 0 ? &exact : &narrow, INT64_MAX, false, evaluate, user_data, seed);
        const int64_t limit = limit_of(request, found, INT64_MAX);
        if (limit < INT64_MAX)
            return limit;
    }
    return INT64_MAX;
}

/*
 * The objective of the last plan that narrower requests would keep: what is slower need not even be
 * enumerated.  1F1B without context parallelism is always near, and other schedules at the degrees
 * of its best pipeline are nearer; INT64_MAX if the request rules it out or it fits nowhere.
 */
static int64_t
find_limit(const PlanRequest *request, PlanEvaluateFunc evaluate, void *user_data, PlanFound *seed)
{
    const char *const schedules[] = {schedule_family_usual(1, false)->name, NULL};
    PlanRequest narrow = *request;

    if (request->objective == PLAN_OBJECTIVE_MEMORY)
        return INT64_MAX;
    const int64_t near = find_near_limit(request, evaluate, user_data, seed);
    if (near < INT64_MAX || request->schedules != NULL || request->vpp > 1 || request->cp > 1)
        return near;
    narrow.schedules = schedules;
    narrow.vpp = narrow.cp = 1;
    narrow.rank_order = MAX(PLAN_RANK_ORDER_DEFAULT, request->rank_order);
    if (request->slices_mode == PLAN_SLICES_AUTO)
        narrow.slices_mode = PLAN_SLICES_OFF;
    g_autoptr(GPtrArray) first =
        search_narrow(&narrow, INT64_MAX, false, evaluate, user_data, seed);
    const int64_t limit = limit_of(request, first, INT64_MAX);
    if (first->len == 0)
        return limit;
    g_autoptr(GPtrArray) second = NULL;
    const Plan *near_plan = ((PlanFound *)first->pdata[0])->plan;
    if (near_plan->degrees.pp == 1) {
        const int64_t most = limit < NO_LIMIT ? limit + limit / 2 : INT64_MAX;
        second = search_narrow(&narrow, most, true, evaluate, user_data, seed);
        if (second->len == 0)
            return limit;
        near_plan = ((PlanFound *)second->pdata[0])->plan;
    }
    const PlanDegrees *d = &near_plan->degrees;
    narrow.dp = d->dp, narrow.tp = d->tp, narrow.pp = d->pp, narrow.ep = d->ep;
    narrow.schedules = request->schedules;
    narrow.vpp = request->vpp;
    g_autoptr(GPtrArray) third = search_narrow(&narrow, limit, false, evaluate, user_data, seed);
    return limit_of(request, third, limit);
}

/* Takes the plan out of @seed, exactly simulated; NULL with @error. */
static Plan *
take_seed(PlanFound *seed, const PlanRequest *request, PlanEvaluateFunc evaluate, void *user_data,
          GError **error)
{
    g_autoptr(Plan) plan = g_steal_pointer(&seed->plan);
    g_autoptr(Workload) workload = NULL;
    Report *report;

    if (!seed->is_rough)
        return g_steal_pointer(&plan);
    workload =
        workload_new(request->arch, request->profile, plan, request->memory_limit_bytes, error);
    if (workload == NULL || !evaluate(plan, workload, INT64_MAX, &report, user_data, error))
        return NULL;
    report_free(plan->predicted);
    plan->predicted = report;
    return g_steal_pointer(&plan);
}

static void
seed_clear(PlanFound *seed)
{
    plan_free(g_steal_pointer(&seed->plan));
}
typedef PlanFound Seed;
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Seed, seed_clear)

/* What search_set() says, with families that search at every point that may be worth it. */
static Plan *
search_within(const PlanRequest *request, int64_t limit, PlanEvaluateFunc evaluate, void *user_data,
              bool advises, GError **error)
{
    g_auto(Seed) seed = {0};
    const int64_t near_ns = find_limit(request, evaluate, user_data, &seed);
    const int64_t time_ns = MIN(limit, near_ns);
    const bool slices = request->slices_mode == PLAN_SLICES_AUTO;
    const PlanSpaceLimits limits = {
        .memory_bytes = plan_request_largest_memory(request),
        .time_ns = time_ns,
        .sliced_ns = slices ? plan_sliced_least_gain(time_ns) : -1,
        .sliced_vpp = MAX(request->vpp, PLAN_SLICED_CHUNKS),
        .stop = stop_of(request, &seed),
    };
    g_autoptr(GError) refused = NULL;
    g_autoptr(PlanSpace) space = plan_space_new(request, &limits, &refused);
    g_auto(PlanRun) run = {0};

    /* To enumerate the whole space takes longer than who stops a search waits. */
    if (limits.stop != NULL && is_request_stopped(request)) {
        if (seed.plan != NULL)
            return take_seed(&seed, request, evaluate, user_data, error);
        g_set_error(error, PLAN_ERROR, PLAN_ERROR_INFEASIBLE, "stopped before any plan was found");
        return NULL;
    }
    if (space == NULL) {
        g_propagate_error(error, g_steal_pointer(&refused));
        return NULL;
    }
    plan_run_init(&run, request, space, evaluate, user_data);
    run.known_limit = time_ns;
    run.has_seed = seed.plan != NULL;
    search_points(&run, INT64_MAX, slices);
    plan_run_settle(&run);
    const bool is_stopped = plan_evaluation_is_stopped(&run.evaluation);
    if (is_stopped)
        cover_all_points(&run);
    /* A point that cannot be priced or simulated is no plan; it matters if there is no other. */
    if (run.total.found->len > 0)
        return answer(&run);
    if (is_stopped && seed.plan != NULL)
        return take_seed(&seed, request, evaluate, user_data, error);
    if (is_stopped)
        g_set_error(error, PLAN_ERROR, PLAN_ERROR_INFEASIBLE, "stopped before any plan was found");
    else if (run.total.error != NULL)
        g_propagate_error(error, g_steal_pointer(&run.total.error));
    else if (advises)
        plan_advice_set_error(request, evaluate, user_data, &run.total, error);
    else
        g_set_error(error, PLAN_ERROR, PLAN_ERROR_INFEASIBLE, "nothing fits");
    return NULL;
}

/* (borrowed) The first named family that searches for an order; NULL: none is named. */
static const ScheduleFamily *
named_search(const PlanRequest *request)
{
    for (size_t i = 0; request->schedules != NULL && request->schedules[i] != NULL; i++) {
        const ScheduleFamily *family = schedule_family_find(request->schedules[i], NULL);
        if (family != NULL && family->searches)
            return family;
    }
    return NULL;
}

/*
 * Where a family is named that searches for an order, which takes it a second: what the last plan kept takes with
 * the families that it begins with, which it never falls behind.  Of those that come to one plan of its own the
 * best counts.  INT64_MAX: none is named, or they have too few plans.
 */
static int64_t
find_begun_limit(const PlanRequest *request, PlanEvaluateFunc evaluate, void *user_data)
{
    const ScheduleFamily *search = named_search(request);

    if (search == NULL || request->objective == PLAN_OBJECTIVE_MEMORY)
        return INT64_MAX;
    g_autofree const char **names = name_least_families(request->schedules);
    g_autoptr(GHashTable) known = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    g_auto(Seed) ignored = {0}; /* it has the name of another family */
    PlanRequest narrow = *request;
    narrow.schedules = names;
    narrow.top = (request->top + 1) * g_strv_length((char **)names) - 1;
    narrow.rank_order = MAX(PLAN_RANK_ORDER_DEFAULT, request->rank_order);
    if (request->slices_mode == PLAN_SLICES_AUTO)
        narrow.slices_mode = PLAN_SLICES_OFF;
    g_autoptr(GPtrArray) found =
        search_narrow(&narrow, INT64_MAX, false, evaluate, user_data, &ignored);
    for (guint i = 0; i < found->len; i++) {
        const PlanFound *one = found->pdata[i];
        Plan as_found = *one->plan; /* borrows all that is the plan's */
        if (!g_strv_contains(request->schedules, as_found.schedule))
            as_found.schedule = (char *)(intptr_t)search->name;
        g_hash_table_add(known, plan_choices(&as_found));
        if (g_hash_table_size(known) > (guint)request->top)
            return one->first;
    }
    return INT64_MAX;
}

/* With the number of devices and the modules that @request says.  @limit: objective values above it are
 * of no interest.  @advises: what would fit is looked for where nothing does. */
static Plan *
search_set(const PlanRequest *request, int64_t limit, PlanEvaluateFunc evaluate, void *user_data,
           bool advises, GError **error)
{
    const int64_t begun_ns = find_begun_limit(request, evaluate, user_data);

    if (begun_ns < limit) {
        g_autoptr(Plan) plan = search_within(request, begun_ns, evaluate, user_data, false, NULL);
        const guint n = plan == NULL || plan->alternatives == NULL ? 0 : plan->alternatives->len;
        if (plan != NULL && (n == (guint)request->top || is_request_stopped(request)))
            return g_steal_pointer(&plan);
        /* Layers may have been divided otherwise there. */
    }
    return search_within(request, limit, evaluate, user_data, advises, error);
}

/* --- modules of selective recompute --- */

static void
add_counts(Plan *to, const Plan *from)
{
    to->search.considered += from->search.considered;
    to->search.pruned += from->search.pruned;
    to->search.simulated += from->search.simulated;
    to->search.infeasible += from->search.infeasible;
}

/* Whether @plan is better than @best: it is faster, smaller or less spent, whatever is asked for. */
static bool
is_better(const PlanRequest *request, const Plan *plan, const Plan *best)
{
    return request->objective == PLAN_OBJECTIVE_MEMORY
               ? plan->predicted->peak_memory_bytes < best->predicted->peak_memory_bytes
               : plan->predicted->iteration_ns < best->predicted->iteration_ns;
}

/* Adds @plan (taken) behind @best, unless a plan with the same choices is there. */
static void
keep_behind(Plan *best, Plan *plan, GHashTable *known, int64_t top)
{
    g_autoptr(Plan) kept = plan;

    if (best->alternatives->len < (guint)top && g_hash_table_add(known, plan_choices(plan)))
        g_ptr_array_add(best->alternatives, g_steal_pointer(&kept));
}

/* Plans of @before (taken), which was the best, become those behind @best. */
static void
keep_before(Plan *best, Plan *before, int64_t top)
{
    g_autoptr(GHashTable) known = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    g_autoptr(GPtrArray) behind = g_steal_pointer(&before->alternatives);

    if (best->alternatives == NULL)
        best->alternatives = g_ptr_array_new_with_free_func((GDestroyNotify)plan_free);
    g_hash_table_add(known, plan_choices(best));
    for (guint i = 0; i < best->alternatives->len; i++)
        g_hash_table_add(known, plan_choices(best->alternatives->pdata[i]));
    keep_behind(best, before, known, top);
    for (guint i = 0; behind != NULL && i < behind->len; i++)
        keep_behind(best, plan_copy(behind->pdata[i]), known, top);
}

/* The bound of two spaces together. */
static void
join_bounds(Plan *to, const Plan *from)
{
    const double time_s = units_s_from_ns(to->predicted->iteration_ns);

    if (isnan(to->lower_bound_s) || isnan(from->lower_bound_s))
        return;
    to->lower_bound_s = fmin(to->lower_bound_s, from->lower_bound_s);
    to->optimality_gap_fraction = time_s > 0.0 ? 1.0 - to->lower_bound_s / time_s : 0.0;
}

/* With the number of devices that @request says.  Where modules are open, each set is a space of its
 * own, of which plans slower than the best so far are ruled out; of equal plans that with the first set
 * wins, which is the framework's.  @advises: as above. */
static Plan *
search_once(const PlanRequest *request, PlanEvaluateFunc evaluate, void *user_data, bool advises,
            GError **error)
{
    Plan *best = search_set(request, INT64_MAX, evaluate, user_data,
                            advises && !request->searches_modules, error);

    if (!request->searches_modules)
        return best;
    g_autoptr(GArray) sets = plan_module_sets(request);
    for (guint i = 0; i < sets->len; i++) {
        g_autoptr(PlanMemo) own = plan_memo_new();
        PlanRequest at = *request;
        const int64_t limit = best == NULL || request->objective != PLAN_OBJECTIVE_TIME
                                  ? INT64_MAX
                                  : best->predicted->iteration_ns;

        if (best != NULL && is_request_stopped(request)) {
            best->lower_bound_s = 0.0; /* nothing is known of the sets that are left */
            best->optimality_gap_fraction = 1.0;
            break;
        }
        at.conventions.recompute_modules = g_array_index(sets, uint32_t, i);
        at.memo = own; /* what layers take depends on the set */
        g_autoptr(Plan) plan = search_set(&at, limit, evaluate, user_data, false, NULL);
        if (plan == NULL)
            continue;
        if (best == NULL) {
            best = g_steal_pointer(&plan);
            g_clear_error(error);
            continue;
        }
        if (!is_better(request, plan, best)) {
            add_counts(best, plan);
            join_bounds(best, plan);
            continue;
        }
        add_counts(plan, best);
        join_bounds(plan, best);
        keep_before(plan, best, request->top);
        best = g_steal_pointer(&plan);
    }
    /* Nothing fits with any set: what would is said as of the framework's own. */
    if (best == NULL && advises) {
        g_clear_error(error);
        return search_set(request, INT64_MAX, evaluate, user_data, true, error);
    }
    return best;
}

/* --- numbers of devices --- */

/* Whether fewer devices than there are may be better: what a plan takes is its time times them. */
static bool
chooses_devices(const PlanRequest *request)
{
    const bool is_fixed = request->n_devices > 0 || (request->dp > 0 && request->tp > 0 &&
                                                     request->pp > 0 && request->cp > 0);

    return !is_fixed && (request->objective == PLAN_OBJECTIVE_COST ||
                         request->objective == PLAN_OBJECTIVE_ENERGY);
}

/* Money or energy of an iteration; device time where price or power is not known. */
static double
spent(const PlanRequest *request, const Plan *plan)
{
    const Report *report = plan->predicted;
    const double known = request->objective == PLAN_OBJECTIVE_COST ? report->cost_per_iteration
                                                                   : report->energy_per_iteration_j;

    return isfinite(known) ? known : (double)report->iteration_ns * (double)plan_n_devices(plan);
}

/* Powers of two up to what there is, and all; the least spent wins, of equals the fewest devices.
 * NULL without @error: no number of devices has a plan. */
static Plan *
search_numbers(const PlanRequest *request, PlanEvaluateFunc evaluate, void *user_data)
{
    const int64_t has = model_cluster_n_devices(request->profile->cluster);
    g_autoptr(Plan) best = NULL;

    for (int64_t n = 1; n <= has; n = n < has ? MIN(2 * n, has) : has + 1) {
        PlanRequest at = *request;
        if (best != NULL && is_request_stopped(request))
            break;
        at.n_devices = n;
        Plan *plan = search_once(&at, evaluate, user_data, false, NULL);
        if (plan == NULL)
            continue;
        if (best == NULL || spent(request, plan) < spent(request, best)) {
            Plan *before = g_steal_pointer(&best);
            best = plan;
            plan = before;
        }
        if (plan != NULL)
            add_counts(best, plan);
        plan_free(plan);
    }
    return g_steal_pointer(&best);
}

/* --- placements --- */

/* (owned) Names of the families whose orders are made for given times, without a search: they have other
 * placements than those of a loop; NULL: none may be asked for. */
static const char **
name_placed_families(const PlanRequest *request)
{
    const ScheduleFamily *const *all = schedule_families();
    GPtrArray *names = g_ptr_array_new();

    for (size_t i = 0; plan_request_opens_schedule(request) && all[i] != NULL; i++)
        if (all[i]->reads_times && !all[i]->searches &&
            (request->rules == NULL || g_strv_contains(request->rules->schedules, all[i]->name)))
            g_ptr_array_add(names, (gpointer)all[i]->name);
    if (names->len == 0) {
        g_ptr_array_unref(names);
        return NULL;
    }
    g_ptr_array_add(names, NULL);
    return (const char **)g_ptr_array_free(names, FALSE);
}

/*
 * Where layers are unequal, other placements of the chunks of @best (taken, nullable): on its ranks, with as
 * many chunks or with two.  A loop gives each rank every p-th stage, and a pattern of layers that repeats
 * after as many has all of its long layers on one rank.  Whether the busiest rank leaves something to
 * gain, the bounds of the search's sketches say, before an order is made.
 */
static Plan *
search_placements(const PlanRequest *request, Plan *best, PlanEvaluateFunc evaluate,
                  void *user_data)
{
    g_autofree const char **names = name_placed_families(request);
    /* What layers take depends on the modules, which a shared memo does not tell apart. */
    g_autoptr(PlanMemo) own = request->searches_modules ? plan_memo_new() : NULL;

    if (names == NULL || best == NULL || best->degrees.pp == 1 || best->slices->len > 1 ||
        model_n_kinds(request->arch) == 1 || request->objective == PLAN_OBJECTIVE_MEMORY)
        return best;
    for (int i = 0; i < 2 && !is_request_stopped(request); i++) {
        const int64_t vpp = i == 0 ? MAX(2, best->degrees.vpp) : 2;
        PlanRequest at = *request;
        if ((request->vpp > 0 && request->vpp != vpp) || (i > 0 && best->degrees.vpp <= 2))
            continue;
        at.schedules = names;
        at.dp = best->degrees.dp, at.tp = best->degrees.tp, at.pp = best->degrees.pp;
        at.cp = best->degrees.cp, at.vpp = vpp;
        at.rank_order = (int)best->degrees.rank_order;
        at.conventions.recompute_modules = best->conventions.recompute_modules;
        at.objective = PLAN_OBJECTIVE_TIME;
        at.slices_mode = PLAN_SLICES_OFF;
        at.near_tp = at.near_pp = at.top = 0; /* what else is near is not asked then */
        at.searches_modules = false;
        if (own != NULL)
            at.memo = own;
        Plan *plan =
            search_set(&at, best->predicted->iteration_ns - 1, evaluate, user_data, false, NULL);
        if (plan == NULL)
            continue;
        add_counts(plan, best);
        join_bounds(plan, best);
        keep_before(plan, best, request->top);
        best = plan;
    }
    return best;
}

/* What the space was restricted to, every plan keeps. */
static Plan *
assert_rules(const PlanRequest *request, Plan *plan)
{
    const guint n = plan == NULL || request->rules == NULL ? 0
                    : plan->alternatives == NULL           ? 1
                                                           : 1 + plan->alternatives->len;

    for (guint i = 0; i < n; i++) {
        g_autoptr(GArray) broken =
            plan_rules_broken(request->conventions.framework, request->arch,
                              i == 0 ? plan : plan->alternatives->pdata[i - 1]);
        for (guint j = 0; j < broken->len; j++) {
            const PlanBreach *breach = &g_array_index(broken, PlanBreach, j);
            if (!request->model_runs || strcmp(breach->rule, "model") != 0)
                g_error("a plan for %s breaks the rule %s: %s",
                        plan_framework(request->conventions.framework)->name, breach->rule,
                        breach->text);
        }
    }
    return plan;
}

Plan *
plan_search(const PlanRequest *asked, PlanEvaluateFunc evaluate, void *user_data, GError **error)
{
    g_return_val_if_fail(asked != NULL && evaluate != NULL, NULL);
    g_return_val_if_fail(asked->threads >= 1 && asked->top >= 0, NULL);
    g_autoptr(PlanMemo) own = asked->memo == NULL ? plan_memo_new_beside(asked->beside) : NULL;
    PlanRequest request = *asked;

    if (own != NULL)
        request.memo = own;
    Plan *plan = chooses_devices(&request) ? search_numbers(&request, evaluate, user_data) : NULL;
    if (plan == NULL)
        plan = search_once(&request, evaluate, user_data, true, error);
    return assert_rules(&request, search_placements(&request, plan, evaluate, user_data));
}

/* --- not searched --- */

/* The fewest chunks of a rank that the schedule which was asked for has. */
static int64_t
least_chunks(const PlanRequest *request)
{
    const char *name = request->schedules != NULL ? request->schedules[0] : "auto";
    const ScheduleFamily *family =
        strcmp(name, "auto") == 0 ? NULL : schedule_family_find(name, NULL);

    return family == NULL ? 1 : family->min_chunks;
}

/* Fixes what a request leaves open, as `degas simulate` takes it. */
static PlanRequest
close_request(const PlanRequest *request)
{
    PlanRequest closed = *request;

    closed.tp = MAX(1, request->tp);
    closed.pp = MAX(1, request->pp);
    closed.cp = MAX(1, request->cp);
    closed.ep = MAX(1, request->ep);
    closed.vpp = request->vpp > 0 ? request->vpp : least_chunks(request);
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

/* (borrowed) The family that was asked for, or the usual one; NULL with PLAN_ERROR_INVALID. */
static const ScheduleFamily *
usual_family(const PlanRequest *request, GError **error)
{
    const char *name = request->schedules != NULL ? request->schedules[0] : NULL;

    if (name == NULL || strcmp(name, "auto") == 0)
        return schedule_family_usual(request->vpp,
                                     request->slices_mode != PLAN_SLICES_OFF && request->pp > 1);
    g_autoptr(GError) local = NULL;
    const ScheduleFamily *family = schedule_family_find(name, &local);
    return family != NULL ? family : plan_invalid_null(error, "--schedule: %s", local->message);
}

static bool
set_best_slices(const PlanRequest *request, Plan *plan, GError **error)
{
    g_autoptr(GPtrArray) slicings = plan_slicings_new(request, plan, NULL, error);
    if (slicings == NULL)
        return false;
    if (slicings->len > 0) {
        g_array_unref(plan->slices);
        plan->slices = g_array_copy(slicings->pdata[0]);
    }
    return true;
}

Plan *
plan_from_request(const PlanRequest *request, GError **error)
{
    g_return_val_if_fail(request != NULL, NULL);
    if (!plan_request_check(request, error))
        return NULL;
    const PlanRequest closed = close_request(request);
    const ScheduleFamily *family = usual_family(&closed, error);
    if (family == NULL || !plan_request_check(&closed, error))
        return NULL;
    if (closed.global_batch % closed.dp != 0 ||
        closed.global_batch / closed.dp % closed.micro_batch != 0)
        return plan_invalid_null(
            error, "--global-batch " INT " is not a multiple of --dp " INT " * --micro-batch " INT,
            closed.global_batch, closed.dp, closed.micro_batch);
    PlanPoint point = {
        .degrees = {closed.dp, closed.tp, closed.pp, closed.vpp, closed.cp, closed.ep,
                    MAX(0, closed.rank_order)},
        .micro_batch = closed.micro_batch,
        .n_micro_batches = closed.global_batch / closed.dp / closed.micro_batch,
        .recompute = (PlanRecompute)closed.recompute,
        .zero_stage = closed.zero_stage,
        .offload = (PlanOffload)closed.offload,
        .sequence_parallel = closed.sequence_parallel == 1,
    };
    g_autoptr(Plan) plan = plan_space_plan(&closed, &point, family);
    if (closed.slices_mode == PLAN_SLICES_UNIFORM) {
        if (!plan_uniform_slices(closed.seq_len,
                                 plan_granularity(&plan->degrees, plan->sequence_parallel),
                                 closed.n_slices, plan->slices))
            return plan_invalid_null(error,
                                     "--slices: " INT " slices of whole parts of --cp and --tp do "
                                     "not fit into --seq-len " INT,
                                     closed.n_slices, closed.seq_len);
    } else if (closed.slices_mode == PLAN_SLICES_GIVEN) {
        g_array_set_size(plan->slices, 0);
        g_array_append_vals(plan->slices, closed.slices, (guint)closed.n_slices);
    }
    if (!plan_check(plan, model_n_stacked(closed.arch), error))
        return NULL;
    if (closed.slices_mode == PLAN_SLICES_AUTO && closed.pp > 1 && family->slices &&
        !set_best_slices(&closed, plan, error))
        return NULL;
    return g_steal_pointer(&plan);
}
