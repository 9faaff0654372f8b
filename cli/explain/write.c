/* An explanation as JSON, and as a screen for people; declared in cli/explain/explain.h. */
#include <math.h>
#include <string.h>

#include "base/text.h"
#include "base/units.h"
#include "cli/draw/describe.h"
#include "cli/explain/explain.h"
#include "cli/request/output.h"

/* --- JSON --- */

static void
write_difference(JsonWriter *writer, const Explanation *explanation, const Plan *plan)
{
    double class_s[EXPLAIN_N_CLASSES];

    explain_difference(explanation->plan, plan, class_s);
    json_write_object_inline(writer, "breakdown_difference_s");
    for (int i = 0; i < EXPLAIN_N_CLASSES; i++)
        json_write_double(writer, explain_class_names[i], class_s[i]);
    json_write_object_end(writer);
}

/* The keys of a plan that was found. */
static void
write_plan(JsonWriter *writer, const Explanation *explanation, const Plan *plan)
{
    const Report *report = plan->predicted;

    json_write_double(writer, "iteration_s", units_s_from_ns(report->iteration_ns));
    json_write_double(writer, "tokens_per_s", report->tokens_per_s);
    json_write_int64(writer, "peak_memory_bytes", report->peak_memory_bytes);
    json_write_double(writer, "objective_change_fraction", explain_change(explanation, plan));
    plan_write_degrees(writer, &plan->degrees);
    for (int i = EXPLAIN_MICRO_BATCH; i < EXPLAIN_N_DIMENSIONS; i++) {
        g_autofree char *value = explain_value((ExplainDimension)i, plan);

        json_write_string(writer, explain_dimension_names[i], value);
    }
    write_difference(writer, explanation, plan);
}

static void
write_search(JsonWriter *writer, const Explanation *explanation, guint search)
{
    const Search *found = searches_at(explanation->searches, search);

    if (found->plan != NULL)
        write_plan(writer, explanation, found->plan);
    else
        json_write_string(writer, "reason",
                          found->error == NULL ? "interrupted" : found->error->message);
}

static void
write_dimension(JsonWriter *writer, const Explanation *explanation, ExplainDimension dimension)
{
    g_autofree char *chosen = explain_value(dimension, explanation->plan);

    json_write_object(writer, NULL);
    json_write_string(writer, "dimension", explain_dimension_names[dimension]);
    json_write_string(writer, "chosen", chosen);
    json_write_array(writer, "others");
    for (guint i = 0; i < explanation->choices->len; i++) {
        const ExplainChoice *choice = &g_array_index(explanation->choices, ExplainChoice, i);

        if (choice->dimension != dimension)
            continue;
        json_write_object(writer, NULL);
        json_write_string(writer, "value", choice->value);
        write_search(writer, explanation, choice->search);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
    json_write_object_end(writer);
}

void
explain_write(JsonWriter *writer, const Explanation *explanation)
{
    json_write_object(writer, "explain");
    if (explanation->runner_up == NULL) {
        json_write_null(writer, "runner_up");
    } else {
        json_write_object(writer, "runner_up");
        write_plan(writer, explanation, explanation->runner_up);
        json_write_object_end(writer);
    }
    if (explanation->equal == NULL) {
        json_write_null(writer, "equal_division");
    } else {
        json_write_object(writer, "equal_division");
        write_plan(writer, explanation, explanation->equal);
        json_write_bool(writer, "fits", explanation->equal->predicted->fits);
        json_write_object_end(writer);
    }
    json_write_array(writer, "limits");
    for (guint i = 0; i < explanation->limits->len; i++) {
        const ExplainLimit *limit = &g_array_index(explanation->limits, ExplainLimit, i);

        json_write_object_inline(writer, NULL);
        json_write_string(writer, "limit", limit->limit);
        json_write_double(writer, "fraction", limit->fraction);
        json_write_string(writer, "how", limit->how);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
    json_write_array(writer, "dimensions");
    for (int i = 0; i < EXPLAIN_N_DIMENSIONS; i++)
        write_dimension(writer, explanation, (ExplainDimension)i);
    json_write_array_end(writer);
    json_write_array(writer, "resources");
    for (guint i = 0; i < explanation->resources->len; i++) {
        const ExplainResource *resource =
            &g_array_index(explanation->resources, ExplainResource, i);

        json_write_object(writer, NULL);
        json_write_string(writer, "resource", resource->resource);
        json_write_string(writer, "change", resource->change);
        json_write_string(writer, "after", resource->after);
        write_search(writer, explanation, resource->search);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
    json_write_object_end(writer);
}

/* --- text --- */

/* (owned) "+3.2 %" of a fraction; "=" below what is shown. */
static char *
signed_percent(double fraction)
{
    if (fabs(fraction) < 0.0005)
        return g_strdup("=");
    return g_strdup_printf("%s%s", fraction < 0 ? "-" : "+", output_percent(fabs(fraction)).text);
}

/* (owned) the classes that differ most: "bubble +1.2 s, tp -300 ms". */
static char *
reason_text(const Plan *plan, const Plan *other)
{
    const double iteration_s = units_s_from_ns(plan->predicted->iteration_ns);
    double class_s[EXPLAIN_N_CLASSES];
    GString *text = g_string_new(NULL);

    explain_difference(plan, other, class_s);
    for (int n = 0; n < 3; n++) {
        int largest = 0;

        for (int i = 1; i < EXPLAIN_N_CLASSES; i++)
            if (fabs(class_s[i]) > fabs(class_s[largest]))
                largest = i;
        if (fabs(class_s[largest]) < 0.0005 * iteration_s)
            break;
        g_string_append_printf(text, "%s%s %s%s", text->len == 0 ? "" : ", ",
                               explain_class_names[largest], class_s[largest] < 0 ? "-" : "+",
                               output_seconds(fabs(class_s[largest])).text);
        class_s[largest] = 0;
    }
    if (text->len == 0)
        g_string_append_c(text, '-');
    return g_string_free(text, FALSE);
}

/* (owned) "dp 2, cp 16, pp 2 x 14, interleaved" */
static char *
plan_text(const Plan *plan)
{
    g_autofree char *split = describe_split(&plan->degrees);

    return g_strdup_printf("%s, %s", split, plan->schedule);
}

/* (owned) what @other has in the dimensions from @first on in which it differs from @plan: "tp 4, zero
 * 1"; without @skipped. */
static char *
differences_text(const Plan *plan, const Plan *other, int first, int skipped)
{
    GString *text = g_string_new(NULL);

    for (int i = first; i < EXPLAIN_N_DIMENSIONS; i++) {
        g_autofree char *mine = explain_value((ExplainDimension)i, plan);
        g_autofree char *others = explain_value((ExplainDimension)i, other);

        if (i != skipped && strcmp(mine, others) != 0)
            g_string_append_printf(text, "%s%s %s", text->len == 0 ? "" : ", ",
                                   explain_dimension_names[i], others);
    }
    g_strdelimit(text->str, "_", '-');
    return g_string_free(text, FALSE);
}

static void
print_runner_up(const Explanation *explanation)
{
    const Plan *plan = explanation->runner_up;

    if (plan == NULL) {
        output_text("no other plan was found\n");
        return;
    }
    g_autofree char *text = plan_text(plan);
    g_autofree char *difference = signed_percent(explain_change(explanation, plan));
    g_autofree char *reason = reason_text(explanation->plan, plan);
    g_autofree char *differs =
        differences_text(explanation->plan, plan, EXPLAIN_MICRO_BATCH, EXPLAIN_SCHEDULE);
    output_printf("the runner-up is %s%s%s: %s (%s)\n", text, differs[0] == '\0' ? "" : ", ",
                  differs, difference, reason);
}

static void
print_equal_division(const Explanation *explanation)
{
    const Plan *plan = explanation->equal;

    if (plan == NULL) {
        if (explanation->plan->stages->len > 1)
            output_text("its layers are divided equally by count\n");
        return;
    }
    g_autofree char *difference = signed_percent(explain_change(explanation, plan));
    g_autofree char *reason = reason_text(explanation->plan, plan);
    output_printf("with its layers divided equally by count: %s (%s)%s\n", difference, reason,
                  plan->predicted->fits ? "" : ", and it does not fit");
}

static void
print_limits(const Explanation *explanation)
{
    const Report *report = explanation->plan->predicted;
    const double iteration_s = units_s_from_ns(report->iteration_ns);
    g_autoptr(OutputTable) table = output_table_new("<||<");

    output_printf("\nwhat limits it (%s of the time computes what the model needs)\n",
                  output_percent(report->breakdown.compute_s / iteration_s).text);
    for (guint i = 0; i < explanation->limits->len; i++) {
        const ExplainLimit *limit = &g_array_index(explanation->limits, ExplainLimit, i);

        output_table_row(table, limit->limit, output_percent(limit->fraction).text, limit->how,
                         NULL);
    }
    if (explanation->limits->len > 0)
        output_table_print_rows(table, 2);
    else
        output_text("  nothing but the speed of the devices\n");
}

static void
print_choices(const Explanation *explanation)
{
    g_autoptr(OutputTable) table = output_table_new("<|chosen|best other|<changes|<with|<because");
    guint n = 0;

    for (int i = 0; i < EXPLAIN_N_DIMENSIONS; i++) {
        const ExplainChoice *best = explain_best_choice(explanation, (ExplainDimension)i);
        g_autofree char *name = g_strdelimit(g_strdup(explain_dimension_names[i]), "_", '-');

        if (best == NULL)
            continue;
        const Plan *plan = searches_at(explanation->searches, best->search)->plan;
        output_table_add(table, name);
        output_table_take(table, explain_value((ExplainDimension)i, explanation->plan));
        output_table_add(table, best->value);
        output_table_take(table, signed_percent(explain_change(explanation, plan)));
        output_table_take(table, plan_text(plan));
        output_table_take(table, reason_text(explanation->plan, plan));
        n++;
    }
    if (n == 0)
        return;
    output_printf("\nother choices (all else searched again; %s)\n",
                  plan_objective_names[explanation->request->plan.objective]);
    output_table_print(table, 2);
}

static void
print_resources(const Explanation *explanation)
{
    g_autoptr(OutputTable) table = output_table_new("<|<more|then|tokens/s|gain|<best plan then");
    g_autofree char *before = plan_text(explanation->plan);

    for (guint i = 0; i < explanation->resources->len; i++) {
        const ExplainResource *resource =
            &g_array_index(explanation->resources, ExplainResource, i);
        const Search *search = searches_at(explanation->searches, resource->search);

        output_table_row(table, resource->resource, resource->change, resource->after, NULL);
        if (search->plan == NULL) {
            output_table_row(table, "-", "-", search->is_done ? "no plan" : "not searched", NULL);
            continue;
        }
        g_autofree char *after = plan_text(search->plan);
        output_table_add(table, units_format_count(search->plan->predicted->tokens_per_s).text);
        output_table_take(table,
                          signed_percent(1 / (1 + explain_change(explanation, search->plan)) - 1));
        output_table_add(table, strcmp(before, after) == 0 ? "the same" : after);
    }
    output_text("\nwhat more would give (searched again)\n");
    output_table_print(table, 2);
}

void
explain_print(const Explanation *explanation)
{
    output_text("\n");
    print_runner_up(explanation);
    print_equal_division(explanation);
    print_limits(explanation);
    print_choices(explanation);
    print_resources(explanation);
}
