#include "planner/run.h"

#include "base/parallel.h"
#include "planner/trial/trial.h"

#include <stdlib.h>

int64_t
plan_run_limit(const PlanRun *run)
{
    return MIN(run->known_limit, run->kept_limit);
}

const PlanPoint **
plan_run_sort(const PlanRun *run, GCompareFunc compare)
{
    const GArray *points = run->space->points;
    const PlanPoint **sorted = g_new(const PlanPoint *, points->len);

    for (guint i = 0; i < points->len; i++)
        sorted[i] = &g_array_index(points, PlanPoint, i);
    if (points->len > 1)
        qsort(sorted, points->len, sizeof *sorted, compare);
    return sorted;
}

/* A point that does not fit. */
static void
note_least(PlanRun *run, const PlanPoint *point)
{
    if (point->bound_bytes >= run->total.least_bytes)
        return;
    run->total.least_bytes = point->bound_bytes;
    run->total.limit_bytes = run->evaluation.memory_limit_bytes;
    plan_free(run->total.least);
    run->total.least = plan_space_plan(run->request, point, run->space->families->pdata[0]);
}

void
plan_run_note_large(PlanRun *run, const PlanPoint *point)
{
    run->total.considered += point->n_candidates;
    run->total.infeasible += point->n_candidates;
    note_least(run, point);
}

/* --- lifecycle --- */

void
plan_run_init(PlanRun *run, const PlanRequest *request, PlanSpace *space, PlanEvaluateFunc evaluate,
              void *user_data)
{
    PlanMemo *own = request->memo == NULL ? plan_memo_new() : NULL;
    PlanMemo *memo = own != NULL ? own : request->memo;

    *run = (PlanRun){
        .evaluation = {.space = space,
                       .evaluate = evaluate,
                       .user_data = user_data,
                       .memo = memo,
                       .memory_limit_bytes = plan_request_largest_memory(request),
                       .is_timeless = request->objective == PLAN_OBJECTIVE_MEMORY,
                       .stop = request->stop},
        .request = request,
        .space = space,
        .known_limit = INT64_MAX,
        .kept_limit = INT64_MAX,
        .lower_bound_ns = INT64_MAX,
        .memo = own,
    };
    plan_outcome_init(&run->total);
    run->total.considered = space->n_slow + space->n_large;
    run->total.pruned = space->n_slow;
    run->total.infeasible = space->n_large;
    run->lower_bound_ns = MIN(space->least_slow_ns, space->least_sliced_ns);
    if (space->n_large > 0)
        note_least(run, &space->least_large);
}

void
plan_run_clear(PlanRun *run)
{
    plan_outcome_clear(&run->total);
    g_clear_pointer(&run->memo, plan_memo_free);
}

/* --- waves --- */

bool
plan_run_is_over(const PlanRun *run)
{
    return plan_evaluation_is_stopped(&run->evaluation) &&
           (!run->request->waits || run->has_seed || run->total.found->len > 0);
}

static void
evaluate_one(int64_t i, void *user_data)
{
    PlanWave *wave = user_data;

    if (plan_run_is_over(wave->run))
        return;
    wave->evaluate(&wave->run->evaluation, wave->points[i], wave->limit, &wave->outcomes[i]);
}

void
plan_run_threads(PlanRun *run, PlanWave *wave)
{
    wave->run = run;
    wave->limit = plan_run_limit(run);
    run->evaluation.least_bytes = run->total.least_bytes;
    for (int i = 0; i < wave->n; i++)
        plan_outcome_init(&wave->outcomes[i]);
    parallel_each(wave->n, run->request->threads, evaluate_one, wave);
}

/* Returns: how many of @found, which is in order, it takes for @most plans of different choices; 0: there are
 * fewer.  @rough: (out, nullable) the first of these plans that is rough, or NULL. */
static guint
count_leading(const GPtrArray *found, guint most, PlanFound **rough)
{
    g_autoptr(GHashTable) known = g_hash_table_new(g_str_hash, g_str_equal);
    guint n = 0;

    if (rough != NULL)
        *rough = NULL;
    for (guint i = 0; i < found->len; i++) {
        PlanFound *one = found->pdata[i];
        if (one->choices != NULL && !g_hash_table_add(known, one->choices))
            continue;
        if (rough != NULL && *rough == NULL && one->is_rough)
            *rough = one;
        if (++n == most)
            return i + 1;
    }
    return 0;
}

/* Keeps the best top + 1; while it is not known which of equals is faster, all those that may be among
 * them. */
static void
keep_best(PlanRun *run, bool is_settled)
{
    GPtrArray *found = run->total.found;
    const guint most = (guint)run->request->top + 1;

    g_ptr_array_sort(found, plan_found_compare);
    guint n = count_leading(found, most, NULL);
    if (n > 0)
        run->kept_limit = ((PlanFound *)found->pdata[n - 1])->first;
    if (is_settled || !run->evaluation.is_timeless) {
        plan_found_keep(found, most);
        return;
    }
    while (n > 0 && n < found->len && ((PlanFound *)found->pdata[n])->first == run->kept_limit)
        n++;
    if (n > 0)
        g_ptr_array_set_size(found, (gint)n);
}

void
plan_run_wave(PlanRun *run, PlanWave *wave)
{
    plan_run_threads(run, wave);
    for (int i = 0; i < wave->n; i++) {
        plan_outcome_merge(&run->total, &wave->outcomes[i]);
        plan_outcome_clear(&wave->outcomes[i]);
    }
    keep_best(run, false);
}

/* What is bounded of a rough plan's time never is more than it takes: so the order of those that are not rough,
 * before all that are, is theirs. */
void
plan_run_settle(PlanRun *run)
{
    GPtrArray *found = run->total.found;
    PlanFound *rough;

    for (;;) {
        GError *error = NULL;
        g_ptr_array_sort(found, plan_found_compare);
        count_leading(found, (guint)run->request->top + 1, &rough);
        if (rough == NULL)
            break;
        if (plan_trial_settle(&run->evaluation, rough, &error))
            continue;
        g_ptr_array_remove(found, rough);
        if (run->total.error == NULL)
            run->total.error = g_steal_pointer(&error);
        g_clear_error(&error);
    }
    keep_best(run, true);
}
