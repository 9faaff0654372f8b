#include <string.h>

#include "base/units.h"
#include "cli/check/check.h"
#include "cli/draw/describe.h"
#include "cli/request/output.h"

/* The classes of a report's breakdown that are no work of the model, as shares of the iteration. */
typedef struct {
    const char *name;
    double fraction;
} Waste;

static int
compare_waste(const void *a, const void *b)
{
    const double x = ((const Waste *)a)->fraction, y = ((const Waste *)b)->fraction;

    return x < y ? 1 : x > y ? -1 : 0;
}

#define N_WASTES 8

/* What takes time besides computing, the largest first. */
static void
find_waste(const Report *report, Waste waste[N_WASTES])
{
    const double all = units_s_from_ns(report->iteration_ns);
    const Waste found[N_WASTES] = {
        {"bubble", report->breakdown.bubble_s},
        {"tp", report->breakdown.tp_s},
        {"pp", report->breakdown.pp_s},
        {"dp", report->breakdown.dp_s},
        {"cp", report->breakdown.cp_s},
        {"ep", report->breakdown.ep_s},
        {"recompute", report->breakdown.recompute_s},
        {"optimizer", report->breakdown.optimizer_s},
    };

    memcpy(waste, found, sizeof found);
    for (int i = 0; i < N_WASTES; i++)
        waste[i].fraction /= all > 0 ? all : 1;
    qsort(waste, N_WASTES, sizeof *waste, compare_waste);
}

/* "sh", "1.23" */
static double
tokens_per_device(const Check *check)
{
    g_assert(check->job != NULL); /* a report is of a job */
    return check->report->tokens_per_s / (double)plan_n_devices(check->job->plan);
}

static void
print_plan(const Plan *plan)
{
    const PlanDegrees *d = &plan->degrees;

    output_printf("plan     dp " INT ", tp " INT ", pp " INT, d->dp, d->tp, d->pp);
    if (d->vpp > 1)
        output_printf(", vpp " INT, d->vpp);
    if (d->cp > 1)
        output_printf(", cp " INT, d->cp);
    if (d->ep > 1)
        output_printf(", ep " INT, d->ep);
    output_printf(", micro-batch " INT " x " INT ", %s, recompute %s, zero %d%s%s%s\n",
                  plan->micro_batch, plan->n_micro_batches, plan->schedule,
                  plan_recompute_name(plan), plan->zero_stage,
                  plan->sequence_parallel ? ", sequence-parallel" : "",
                  plan->offload != PLAN_OFFLOAD_NONE ? ", offload " : "",
                  plan->offload != PLAN_OFFLOAD_NONE ? plan_offload_names[plan->offload] : "");
}

static void
print_memory(const Report *report)
{
    const int32_t rank = report_peak_rank(report);

    if (rank < 0)
        return;
    const ReportRank *peak = &g_array_index(report->ranks, ReportRank, rank);
    const TraceMemoryOwner owner = report_peak_owner(peak);
    output_printf("fits     %s: %s", report->fits ? "yes" : "NO",
                  units_format_bytes((double)report->peak_memory_bytes).text);
    if (report->memory_limit_bytes > 0)
        output_printf(" of %s%s",
                      units_format_bytes((double)(report->memory_usable_bytes > 0
                                                      ? report->memory_usable_bytes
                                                      : report->memory_limit_bytes))
                          .text,
                      report->memory_usable_bytes > 0 ? " usable" : "");
    output_printf(" on pipeline rank %d, most of it %s (%s)", rank, trace_memory_names[owner],
                  units_format_bytes((double)peak->memory_bytes[owner]).text);
    if (report->memory_limit_bytes > 0)
        output_printf("; P(fits) %s", output_percent(report->jitter.fit_fraction).text);
    output_text("\n");
}

/* @width: columns of what is edited */
static void
print_edit(const Check *check, const CheckEdit *edit, size_t width)
{
    const double before = units_s_from_ns(check->report->iteration_ns),
                 after = units_s_from_ns(edit->report->iteration_ns);

    output_printf("  %-*s %s (%+.1f %%), %s\n", (int)width, edit->what, output_seconds(after).text,
                  100 * (after / before - 1),
                  units_format_bytes((double)edit->report->peak_memory_bytes).text);
    for (guint i = 0; i < edit->set->len; i++)
        output_printf("      %s\n", (const char *)g_ptr_array_index(edit->set, i));
}

static void
print_lines(const char *heading, const GPtrArray *lines)
{
    for (guint i = 0; i < lines->len; i++)
        output_printf("%s%s\n", i == 0 ? heading : "         ",
                      (const char *)g_ptr_array_index(lines, i));
}

void
check_print(const Check *check, bool names_unused)
{
    const RecipeSettings *s = check->recipe->settings;
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    const guint n_unused = recipe_settings_unused(s, names);
    g_autofree char *base = g_path_get_basename(s->path);

    output_printf("%s: %s, %s, %s devices; %u settings, of which %u do not matter here\n", base,
                  check->recipe->dialect, check->recipe->arch->name,
                  output_int64(check->recipe->n_devices).text, s->all->len, n_unused);
    if (check->job != NULL)
        print_plan(check->job->plan);
    output_printf("starts   %s\n", check_starts(check) ? "yes" : "NO");
    for (guint i = 0; i < check->breaches->len; i++) {
        const PlanBreach *breach = &g_array_index(check->breaches, PlanBreach, i);
        output_printf("  %s: %s%s%s\n", breach->rule, breach->text,
                      breach->change == NULL ? "" : "; nearest: ",
                      breach->change == NULL ? "" : breach->change);
    }
    if (check->report != NULL) {
        const Report *report = check->report;
        Waste waste[N_WASTES];

        print_memory(report);
        output_printf("time     %s a step",
                      output_seconds(units_s_from_ns(report->iteration_ns)).text);
        output_printf(", %s tokens/s", units_format_count(report->tokens_per_s).text);
        output_printf(", %s per device", units_format_count(tokens_per_device(check)).text);
        output_printf(", MFU %s\n", output_percent(report->model_flops_utilization_fraction).text);
        find_waste(report, waste);
        output_text("waste   ");
        for (int i = 0; i < 4 && waste[i].fraction >= 0.001; i++)
            output_printf("%s %s %s", i > 0 ? "," : "", waste[i].name,
                          output_percent(waste[i].fraction).text);
        output_text("\n");
    }
    print_lines("taken    ", s->notes);
    print_lines("not here ", s->unmodelled);
    if (names_unused)
        print_lines("unused   ", names);
    if (check->report == NULL)
        return;
    if (check->nearest != NULL) {
        output_text("\nThe fastest that fits of its neighbours:\n");
        print_edit(check, check->nearest, 0);
    } else if (!check->report->fits) {
        output_text("\nNo edit of one or two settings fits.\n");
    }
    if (check->gains->len > 0)
        output_printf("\nWhat gains most, of %u edits of one setting that start:\n",
                      check->n_tried);
    size_t width = 0;
    for (guint i = 0; i < check->gains->len; i++)
        width = MAX(width, strlen(((CheckEdit *)g_ptr_array_index(check->gains, i))->what));
    for (guint i = 0; i < check->gains->len; i++)
        print_edit(check, g_ptr_array_index(check->gains, i), width);
}

/* --- JSON --- */

static void
write_lines(JsonWriter *writer, const char *key, const GPtrArray *lines)
{
    json_write_array(writer, key);
    for (guint i = 0; i < lines->len; i++)
        json_write_string(writer, NULL, g_ptr_array_index(lines, i));
    json_write_array_end(writer);
}

static void
write_edit(JsonWriter *writer, const char *key, const CheckEdit *edit)
{
    json_write_object(writer, key);
    json_write_string(writer, "change", edit->what);
    write_lines(writer, "set", edit->set);
    json_write_double(writer, "iteration_s", units_s_from_ns(edit->report->iteration_ns));
    json_write_int64(writer, "peak_memory_bytes", edit->report->peak_memory_bytes);
    json_write_bool(writer, "fits", edit->report->fits);
    json_write_object_end(writer);
}

static void
write_prediction(JsonWriter *writer, const Check *check)
{
    const Report *report = check->report;
    Waste waste[N_WASTES];

    json_write_double(writer, "tokens_per_s_per_device", tokens_per_device(check));
    json_write_double(writer, "fit_probability",
                      report->memory_limit_bytes > 0 ? report->jitter.fit_fraction : 1);
    find_waste(report, waste);
    json_write_object_inline(writer, "waste_fraction");
    for (int i = 0; i < N_WASTES; i++)
        json_write_double(writer, waste[i].name, waste[i].fraction);
    json_write_object_end(writer);
    json_write_object(writer, "predicted");
    report_write(writer, report);
    json_write_object_end(writer);
}

void
check_write(JsonWriter *writer, const Check *check)
{
    const RecipeSettings *s = check->recipe->settings;
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);

    recipe_settings_unused(s, names);
    json_write_string(writer, "dialect", check->recipe->dialect);
    json_write_string(writer, "framework", plan_framework(check->recipe->framework)->name);
    json_write_string(writer, "model", check->recipe->arch->name);
    json_write_int64(writer, "devices", check->recipe->n_devices);
    json_write_bool(writer, "starts", check_starts(check));
    json_write_array(writer, "broken_rules");
    for (guint i = 0; i < check->breaches->len; i++) {
        const PlanBreach *breach = &g_array_index(check->breaches, PlanBreach, i);
        json_write_object(writer, NULL);
        json_write_string(writer, "rule", breach->rule);
        json_write_string(writer, "text", breach->text);
        json_write_string(writer, "change", breach->change);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
    write_lines(writer, "taken_for_granted", s->notes);
    write_lines(writer, "not_modelled", s->unmodelled);
    write_lines(writer, "unused", names);
    if (check->job == NULL) {
        json_write_null(writer, "plan");
        return;
    }
    json_write_object(writer, "plan");
    plan_write_members(writer, check->job->plan);
    json_write_object_end(writer);
    write_prediction(writer, check);
    if (check->nearest != NULL)
        write_edit(writer, "nearest_that_fits", check->nearest);
    else
        json_write_null(writer, "nearest_that_fits");
    json_write_array(writer, "gains");
    for (guint i = 0; i < check->gains->len; i++)
        write_edit(writer, NULL, g_ptr_array_index(check->gains, i));
    json_write_array_end(writer);
}
