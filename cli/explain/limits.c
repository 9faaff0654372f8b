/* What limits a plan, from what was simulated and searched. */
#include <math.h>
#include <string.h>

#include "base/units.h"
#include "cli/explain/explain.h"
#include "cli/request/output.h"

/* Less than this is no limit. */
#define LEAST_FRACTION 0.0005

/* @how (taken) */
static void
add(Explanation *explanation, const char *limit, double fraction, char *how)
{
    const ExplainLimit added = {limit, fraction, how};

    if (fraction >= LEAST_FRACTION)
        g_array_append_val(explanation->limits, added);
    else
        g_free(how);
}

/* What the objective loses without @change of @resource; 0 if that was not found. */
static double
gain(const Explanation *explanation, const ExplainResource *resource)
{
    const Plan *plan = searches_at(explanation->searches, resource->search)->plan;

    return plan == NULL ? 0
                        : 1 - explain_score(explanation, plan) /
                                  explain_score(explanation, explanation->plan);
}

static void
add_resource(Explanation *explanation, const ExplainResource *resource)
{
    static const struct {
        const char *prefix, *change, *limit;
    } kinds[] = {
        {"link ", "x2", "link"},
        {"memory", "+25 %", "memory"},
        {"batch", "x2", "batch"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(kinds); i++) {
        if (g_str_has_prefix(resource->resource, kinds[i].prefix) &&
            strcmp(resource->change, kinds[i].change) == 0)
            add(explanation, kinds[i].limit, gain(explanation, resource),
                g_strdup_printf("gone with %s %s (%s)", resource->resource, resource->change,
                                resource->after));
    }
}

/*
 * Idle time of two kinds: of ranks that have less to do than the busiest one, since layers do not
 * divide evenly; and the rest, of the schedule.
 */
static void
add_bubble(Explanation *explanation)
{
    const Report *report = explanation->plan->predicted;
    const double iteration_ns = (double)report->iteration_ns;
    double most = 0, sum = 0;

    for (guint r = 0; r < report->ranks->len; r++) {
        const double busy = (double)g_array_index(report->ranks, ReportRank, r).busy_ns;

        most = fmax(most, busy);
        sum += busy;
    }
    const double uneven = (most - sum / report->ranks->len) / iteration_ns;
    add(explanation, "divisibility", uneven,
        g_strdup_printf("the busiest of %u ranks against their mean", report->ranks->len));
    add(explanation, "bubble", report->bubble_fraction - uneven,
        g_strdup_printf("idle in %s with "
                        "%" G_GINT64_FORMAT " micro-batches",
                        explanation->plan->schedule, explanation->plan->n_micro_batches));
}

static int
compare(const void *a, const void *b)
{
    const ExplainLimit *x = a, *y = b;

    if (x->fraction != y->fraction)
        return x->fraction > y->fraction ? -1 : 1;
    return strcmp(x->how, y->how);
}

void
explain_find_limits(Explanation *explanation)
{
    for (guint i = 0; i < explanation->resources->len; i++)
        add_resource(explanation, &g_array_index(explanation->resources, ExplainResource, i));
    add_bubble(explanation);
    g_array_sort(explanation->limits, compare);
}
