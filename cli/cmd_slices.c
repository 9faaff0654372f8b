/* degas slices: the token and batch slicing alone, from a file of slice times. */
#include "cli/command.h"
#include "cli/output.h"
#include "cli/slice_costs.h"

static const OptionInfo options_table[] = {
    {.name = "costs",
     .value = "FILE",
     .help = "times of slices: TeraPipe's JSON, or .npy (seconds)"},
    {.name = "stages", .value = "K", .help = "pipeline stages"},
    {.name = "batch", .value = "B", .help = "sequences to group"},
    {.name = "seq-len", .value = "L", .help = "tokens of a sequence"},
    {.name = "granularity", .value = "G", .help = "slices are multiples of G tokens (8)"},
    {.name = "json", .help = "print a degas-slices object"},
    {.name = "output", .value = "FILE", .help = "write the JSON to FILE", .letter = 'o'},
    {.name = NULL},
};

static double
seconds(int64_t ps)
{
    return (double)ps / SLICE_COSTS_PER_S;
}

static JsonWriter *
to_json(const PlanSliceResult *result)
{
    g_autoptr(JsonWriter) writer = json_writer_new();

    json_write_object(writer, NULL);
    json_write_string(writer, "format", "degas-slices");
    json_write_int64(writer, "version", 1);
    json_write_double(writer, "latency_s", seconds(result->latency));
    json_write_double(writer, "max_slice_s", seconds(result->max_slice));
    json_write_array(writer, "groups");
    for (guint i = 0; i < result->groups->len; i++) {
        const PlanSliceGroup *group = g_ptr_array_index(result->groups, i);

        json_write_object_inline(writer, NULL);
        json_write_int64(writer, "batch", group->batch);
        json_write_array(writer, "slices");
        for (guint j = 0; j < group->slices->len; j++)
            json_write_int64(writer, NULL, g_array_index(group->slices, int64_t, j));
        json_write_array_end(writer);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
    json_write_bool(writer, "optimal", true);
    json_write_int64(writer, "dp_solves", result->n_solves);
    json_write_object_end(writer);
    return g_steal_pointer(&writer);
}

static void
print_for_people(const PlanSliceResult *result, int64_t n_approximated)
{
    static const char *const header[] = {"sequences", "slices", "<tokens of each", NULL};
    g_autoptr(OutputTable) table = output_table_new(header);
    g_autofree char *latency = output_seconds(seconds(result->latency));
    g_autofree char *longest = output_seconds(seconds(result->max_slice));

    for (guint i = 0; i < result->groups->len; i++) {
        const PlanSliceGroup *group = g_ptr_array_index(result->groups, i);

        output_table_printf(table, "%" G_GINT64_FORMAT, group->batch);
        output_table_printf(table, "%u", group->slices->len);
        output_table_take(table, output_int64s(group->slices, 16));
    }
    output_printf("latency %s, longest slice %s: proven optimal in %" G_GINT64_FORMAT " solves\n",
                  latency, longest, result->n_solves);
    if (n_approximated > 0)
        output_printf("%" G_GINT64_FORMAT " times were interpolated between measured ones\n",
                      n_approximated);
    output_table_print(table, 0);
}

static int
run(Options *options, GError **error)
{
    const char *costs = options_string(options, "costs", NULL);
    int64_t n_stages = options_int64(options, "stages", 1, 1000000, 0);
    int64_t batch = options_int64(options, "batch", 1, 1000000, 0);
    int64_t seq_len = options_int64(options, "seq-len", 1, 1 << 30, 0);
    int64_t granularity = options_int64(options, "granularity", 1, 1 << 30, 8);
    static const char *const required[] = {"costs", "stages", "batch", "seq-len"};
    g_autofree int64_t *grid = NULL;
    g_autoptr(PlanSliceResult) result = NULL;
    int64_t n_approximated;

    for (size_t i = 0; i < G_N_ELEMENTS(required); i++) {
        if (!options_has(options, required[i]))
            options_fail(options, required[i], "is needed");
    }
    if (!options_finish(options, error))
        return -1;
    if (seq_len % granularity != 0) {
        options_fail(options, "seq-len",
                     "expected a multiple of --granularity %" G_GINT64_FORMAT
                     ", got %" G_GINT64_FORMAT,
                     granularity, seq_len);
        options_finish(options, error);
        return -1;
    }
    grid =
        slice_costs_load(costs, batch, seq_len / granularity, granularity, &n_approximated, error);
    if (grid == NULL)
        return -1;
    result = plan_slice_solve(&(PlanSliceCosts){.batch = batch,
                                                .n_cells = seq_len / granularity,
                                                .granularity = granularity,
                                                .cost = grid},
                              n_stages, 0, error);
    if (result == NULL) {
        g_prefix_error(error, "%s: ", costs);
        return -1;
    }
    if (options_switch(options, "json") || options_has(options, "output")) {
        g_autoptr(JsonWriter) writer = to_json(result);

        return output_json(writer, options_string(options, "output", NULL), error) ? 0 : -1;
    }
    print_for_people(result, n_approximated);
    return 0;
}

const Command cmd_slices = {
    .name = "slices",
    .usage = "--costs FILE --stages K --batch B --seq-len L [--granularity 8] [--json]",
    .summary = "cut a batch into groups and sequences into slices, optimally",
    .details = "Minimises sum t + (K-1) max t over every way to cut B sequences into groups\n"
               "and each group's L tokens into slices (TeraPipe, arXiv:2102.07988).\n",
    .options = {options_table},
    .run = run,
};
