#include "cli/check/check.h"

#include <string.h>

#include "cli/request/command.h"

static void
clear_breach(void *breach)
{
    plan_breach_clear(breach);
}

static void
free_edit(void *edit)
{
    check_edit_free(edit);
}

void
check_free(Check *check)
{
    if (check == NULL)
        return;
    g_array_unref(check->breaches);
    job_free(check->job);
    report_free(check->report);
    g_ptr_array_unref(check->gains);
    check_edit_free(check->nearest);
    g_free(check);
}

bool
check_starts(const Check *check)
{
    return check->breaches->len == 0;
}

bool
check_fits(const Check *check)
{
    return check->report != NULL && check->report->fits;
}

static void
add_breach(Check *check, const char *rule, const char *text, const char *change)
{
    const PlanBreach breach = {rule, g_strdup(text), g_strdup(change)};

    g_array_append_val(check->breaches, breach);
}

/* The rules that the recipe's reader found broken, then those of the framework. */
static void
find_breaches(Check *check)
{
    const GArray *own = check->recipe->breaches;

    for (guint i = 0; i < own->len; i++) {
        const PlanBreach *breach = &g_array_index(own, PlanBreach, i);
        add_breach(check, breach->rule, breach->text, breach->change);
    }
    if (check->job == NULL)
        return;
    const Plan *plan = check->job->plan;
    g_autoptr(GArray) all = plan_rules_broken(plan->conventions.framework, check->job->arch, plan);
    for (guint i = 0; i < all->len; i++) {
        const PlanBreach *breach = &g_array_index(all, PlanBreach, i);
        if (g_strcmp0(breach->rule, check->recipe->excused) != 0)
            add_breach(check, breach->rule, breach->text, breach->change);
    }
}

static bool
simulate(Check *check, const Request *request, GError **error)
{
    g_auto(JobSimulation) simulation = {0};
    g_auto(Conditions) conditions = conditions_of_memory(CHECK_RUNS);
    g_assert(request != NULL); /* a job is made of one */
    const JobOptions how = {.memory_limit_bytes = request->plan.memory_limit_bytes,
                            .conditions = &conditions};

    if (!job_simulate(check->job, &how, &simulation, error))
        return false;
    check->report = g_steal_pointer(&simulation.result.report);
    return true;
}

static bool
find_edits(Check *check, const Request *request, guint n_gains, GError **error)
{
    g_autoptr(GPtrArray) edits = g_ptr_array_new_with_free_func(free_edit);

    if (n_gains == 0)
        return true;
    check_edits_add(check, request, edits);
    check->n_tried = edits->len;
    if (!check->report->fits)
        check->nearest = check_edits_nearest(check, request, edits);
    check_edits_refine(check, request, edits, n_gains, check->report->iteration_ns);
    while (edits->len > 0 && check->gains->len < n_gains) {
        CheckEdit *edit = g_ptr_array_steal_index(edits, 0);
        if (edit->report->fits && edit->report->iteration_ns < check->report->iteration_ns)
            g_ptr_array_add(check->gains, edit);
        else
            check_edit_free(edit);
    }
    for (guint i = 0; i < check->gains->len; i++)
        if (!check_edit_describe(check, g_ptr_array_index(check->gains, i), error))
            return false;
    return check->nearest == NULL || check_edit_describe(check, check->nearest, error);
}

Check *
check_new(const Recipe *recipe, const Request *request, const GError *refusal, guint n_gains,
          GError **error)
{
    g_autoptr(Check) check = g_new0(Check, 1);
    g_autoptr(GError) why = NULL;

    check->recipe = recipe;
    check->breaches = g_array_new(FALSE, FALSE, sizeof(PlanBreach));
    g_array_set_clear_func(check->breaches, clear_breach);
    check->gains = g_ptr_array_new_with_free_func(free_edit);
    g_autoptr(Plan) plan = request == NULL ? NULL : request_plan(request, &why);
    if (plan != NULL)
        check->job = job_new(model_arch_copy(request->arch), profile_copy(request->profile),
                             g_steal_pointer(&plan));
    find_breaches(check);
    if (check->job != NULL && !simulate(check, request, &why))
        g_clear_pointer(&check->job, job_free);
    if (check->job == NULL) {
        /* Why there is no plan is one more rule, unless the reader has named it. */
        if (why == NULL)
            why = refusal == NULL ? NULL : g_error_copy(refusal);
        if (check->breaches->len == 0)
            add_breach(check, "plan", why == NULL ? "no plan can be made of it" : why->message,
                       NULL);
        return g_steal_pointer(&check);
    }
    return find_edits(check, request, n_gains, error) ? g_steal_pointer(&check) : NULL;
}
