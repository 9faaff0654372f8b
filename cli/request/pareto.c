#include "cli/request/pareto.h"

#include <math.h>

#include "cli/request/searches.h"

static bool
dominates(const Report *a, const Report *b)
{
    return a->iteration_ns <= b->iteration_ns && a->peak_memory_bytes <= b->peak_memory_bytes &&
           (a->iteration_ns < b->iteration_ns || a->peak_memory_bytes < b->peak_memory_bytes);
}

bool
pareto_is_front(const Plan *plan, const Plan *const *plans, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (plans[i] != plan && dominates(plans[i]->predicted, plan->predicted))
            return false;
    return true;
}

/* As @request, but the fastest within @limit_bytes; 0: the smallest. */
static void
add_search(GPtrArray *searches, const Request *request, int64_t limit_bytes, PlanMemo *memo)
{
    Request *changed = request_copy(request);

    changed->plan.top = 0;
    changed->plan.memo = memo;
    if (limit_bytes == 0)
        changed->plan.objective = PLAN_OBJECTIVE_MEMORY;
    else
        changed->plan.memory_limit_bytes = limit_bytes;
    searches_add(searches, changed, 1);
}

static int
compare(const void *a, const void *b)
{
    const Report *x = (*(const Plan *const *)a)->predicted;
    const Report *y = (*(const Plan *const *)b)->predicted;

    if (x->iteration_ns != y->iteration_ns)
        return x->iteration_ns < y->iteration_ns ? -1 : 1;
    return x->peak_memory_bytes < y->peak_memory_bytes
               ? -1
               : x->peak_memory_bytes > y->peak_memory_bytes;
}

/* Keeps what is on the front, each point once. */
static void
set_alternatives(Plan *plan, GPtrArray *found)
{
    GPtrArray *kept = g_ptr_array_new_with_free_func((GDestroyNotify)plan_free);
    int64_t least_bytes = plan->predicted->peak_memory_bytes;

    g_ptr_array_sort(found, compare);
    /* By time: on the front is what needs less memory than all before. */
    for (guint i = 0; i < found->len; i++) {
        const Plan *candidate = found->pdata[i];

        if (candidate->predicted->peak_memory_bytes >= least_bytes)
            continue;
        least_bytes = candidate->predicted->peak_memory_bytes;
        Plan *copy = plan_copy(candidate);
        copy->predicted->memory_limit_bytes = plan->predicted->memory_limit_bytes;
        g_ptr_array_add(kept, copy);
    }
    g_clear_pointer(&plan->alternatives, g_ptr_array_unref);
    if (kept->len > 0)
        plan->alternatives = g_ptr_array_ref(kept);
    g_ptr_array_unref(kept);
}

bool
pareto_find(const Request *request, Plan *plan, int64_t n, GError **error)
{
    g_autoptr(GPtrArray) searches = searches_new();
    g_autoptr(GPtrArray) found = g_ptr_array_new();
    g_autoptr(PlanMemo) memo = plan_memo_new();
    const double most = (double)plan->predicted->peak_memory_bytes;
    const int64_t threads = request->plan.threads;
    bool is_done;

    add_search(searches, request, 0, memo);
    if (!searches_run(searches, threads, "searches for the least memory", error))
        return false;
    const Plan *smallest = searches_at(searches, 0)->plan;
    if (smallest == NULL)
        return true;
    const double least = (double)smallest->predicted->peak_memory_bytes;
    /* Evenly by ratio, the least memory last. */
    for (int64_t i = 1; i <= n; i++)
        add_search(searches, request,
                   i == n ? (int64_t)least
                          : (int64_t)(most * pow(least / most, (double)i / (double)n)),
                   memo);
    is_done = searches_run(searches, threads, "points of the front", error);
    for (guint i = 1; i < searches->len; i++)
        if (searches_at(searches, i)->plan != NULL)
            g_ptr_array_add(found, searches_at(searches, i)->plan);
    set_alternatives(plan, found);
    return is_done;
}
