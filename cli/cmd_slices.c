/* degas slices: the token and batch slicing alone, from files of slice times. */
#include "cli/request/command.h"
#include "cli/request/output.h"
#include "cli/slice_costs.h"
#include "cli/slice_inputs.h"
#include "planner/slices/orders.h"
#include "simulator/simulate.h"

static double
seconds(int64_t ps)
{
    return (double)ps / SLICE_COSTS_PER_S;
}

static void
write_groups(JsonWriter *writer, const PlanSliceResult *result, bool rounds)
{
    json_write_array(writer, "groups");
    for (guint i = 0; i < result->groups->len; i++) {
        const PlanSliceGroup *group = g_ptr_array_index(result->groups, i);

        json_write_object_inline(writer, NULL);
        json_write_int64(writer, "batch", group->batch);
        json_write_array(writer, "slices");
        for (guint j = 0; j < group->slices->len; j++)
            json_write_int64(writer, NULL, g_array_index(group->slices, int64_t, j));
        json_write_array_end(writer);
        if (rounds)
            json_write_int64(writer, "round", group->round);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
}

static double
gap(const PlanSliceResult *result)
{
    return result->latency == 0 ? 0.0 : 1.0 - (double)result->lower_bound / (double)result->latency;
}

static JsonWriter *
to_json(const PlanSliceResult *result, const SliceInputs *inputs)
{
    g_autoptr(JsonWriter) writer = json_writer_new();
    const bool rounds = slice_inputs_is_fill_drain(inputs) && inputs->problem.limit_bytes > 0;

    json_write_object(writer, NULL);
    json_write_string(writer, "format", "degas-slices");
    json_write_int64(writer, "version", 1);
    json_write_double(writer, "latency_s", seconds(result->latency));
    json_write_double(writer, "max_slice_s", seconds(result->max_slice));
    if (inputs->problem.backward != NULL)
        json_write_double(writer, "max_backward_slice_s", seconds(result->max_backward));
    if (!slice_inputs_is_fill_drain(inputs))
        json_write_string(writer, "schedule", inputs->schedule);
    if (rounds)
        json_write_int64(writer, "rounds", result->n_rounds);
    write_groups(writer, result, rounds);
    json_write_bool(writer, "optimal", result->lower_bound == result->latency);
    json_write_double(writer, "lower_bound_s", seconds(result->lower_bound));
    json_write_double(writer, "optimality_gap_fraction", gap(result));
    json_write_int64(writer, "dp_solves", result->n_solves);
    json_write_object_end(writer);
    return g_steal_pointer(&writer);
}

static void
print_for_people(const PlanSliceResult *result, const SliceInputs *inputs)
{
    static const char *const header[] = {"sequences", "slices", "<tokens of each", NULL};
    g_autoptr(OutputTable) table = output_table_new(header);
    g_autofree char *latency = output_seconds(seconds(result->latency));
    g_autofree char *longest = output_seconds(seconds(result->max_slice));
    g_autofree char *backward = output_seconds(seconds(result->max_backward));
    g_autofree char *gap_text = output_percent(gap(result));
    const char *what = slice_inputs_is_fill_drain(inputs) ? "solves" : "simulations";

    for (guint i = 0; i < result->groups->len; i++) {
        const PlanSliceGroup *group = g_ptr_array_index(result->groups, i);

        output_table_printf(table, "%" G_GINT64_FORMAT, group->batch);
        output_table_printf(table, "%u", group->slices->len);
        output_table_take(table, output_int64s(group->slices, 16));
    }
    output_printf("latency %s, longest slice %s", latency, longest);
    if (inputs->problem.backward != NULL)
        output_printf(" forward, %s backward", backward);
    if (result->n_rounds > 1)
        output_printf(", %" G_GINT64_FORMAT " rounds", result->n_rounds);
    if (result->lower_bound == result->latency)
        output_printf(": proven optimal in %" G_GINT64_FORMAT " %s\n", result->n_solves, what);
    else
        output_printf(": at most %s above the optimum, %" G_GINT64_FORMAT " %s\n", gap_text,
                      result->n_solves, what);
    if (inputs->n_approximated > 0)
        output_printf("%" G_GINT64_FORMAT " times were interpolated between measured ones\n",
                      inputs->n_approximated);
    output_table_print(table, 0);
}

static PlanSliceResult *
solve(const SliceInputs *inputs, GError **error)
{
    const PlanSliceOrder order = {
        .problem = &inputs->problem,
        .stages = inputs->stages,
        .n_ranks = inputs->n_ranks,
        .schedule = inputs->schedule,
        .simulate = sim_run_report,
    };

    if (!slice_inputs_is_fill_drain(inputs))
        return plan_slice_solve_order(&order, error);
    if (inputs->stages_differ)
        return plan_slice_solve_stages(&inputs->problem, inputs->stages, error);
    return plan_slice_solve_problem(&inputs->problem, error);
}

static int
run(Options *options, GError **error)
{
    g_autoptr(SliceInputs) inputs = slice_inputs_load(options, error);

    if (inputs == NULL)
        return -1;
    g_autoptr(PlanSliceResult) result = solve(inputs, error);
    if (result == NULL) {
        g_prefix_error(error, "%s: ", options_string(options, "costs", NULL));
        return -1;
    }
    if (options_switch(options, "json") || options_has(options, "output")) {
        g_autoptr(JsonWriter) writer = to_json(result, inputs);

        return output_json(writer, options_string(options, "output", NULL), error) ? 0 : -1;
    }
    print_for_people(result, inputs);
    return 0;
}

const Command cmd_slices = {
    .name = "slices",
    .usage = "--costs FILE --stages K --batch B --seq-len L [--granularity 8] [--json]",
    .summary = "cut a batch into groups and sequences into slices, optimally",
    .details = "Minimises sum t + (K-1) max t over every way to cut B sequences into groups\n"
               "and each group's L tokens into slices (TeraPipe, arXiv:2102.07988).\n"
               "\n"
               "With the directions apart it is the sum of both, each with its own maximum;\n"
               "with a memory limit that of rounds that fit.  Stages that differ, 1F1B and\n"
               "interleaved orders follow no formula: there simulations decide, and the answer\n"
               "comes with a lower bound.\n",
    .options = {slice_inputs_options, slice_inputs_variants},
    .headings = {"Options", "Variants"},
    .run = run,
};
