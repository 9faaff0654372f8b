/* The costs of a simulated iteration, explained; declared in cli/explain/explain.h. */
#include "cli/explain/explain.h"

#include "base/units.h"
#include "cli/request/output.h"
#include "profiles/workload/explain.h"

#define MAX_COSTS 16
#define MAX_MEMORY 8

typedef struct {
    ProfileExplanation time, memory;
    int32_t busiest, fullest;
    double busy_s; /* sum of all lines of time */
} Costs;

static void
costs_clear(Costs *explanation)
{
    profile_explanation_clear(&explanation->time);
    profile_explanation_clear(&explanation->memory);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Costs, costs_clear)

static const ReportRank *
rank_of(const Report *report, int32_t rank)
{
    return &g_array_index(report->ranks, ReportRank, rank);
}

static bool
explain_rank(const Job *job, const Report *report, Costs *explanation, GError **error)
{
    *explanation = (Costs){0};
    for (int32_t r = 1; r < (int32_t)report->ranks->len; r++) {
        if (rank_of(report, r)->busy_ns > rank_of(report, explanation->busiest)->busy_ns)
            explanation->busiest = r;
        if (rank_of(report, r)->peak_memory_bytes >
            rank_of(report, explanation->fullest)->peak_memory_bytes)
            explanation->fullest = r;
    }
    if (!profile_explain(job->arch, job->profile, job->plan, explanation->busiest,
                         &explanation->time, error) ||
        !profile_explain(job->arch, job->profile, job->plan, explanation->fullest,
                         &explanation->memory, error))
        return false;
    for (guint i = 0; i < explanation->time.costs->len; i++)
        explanation->busy_s += g_array_index(explanation->time.costs, ProfileCostLine, i).total_s;
    return true;
}

/* --- parameters --- */

/* Marks those that any of the shown lines rests on. */
static void
mark_parameters(const GArray *costs, guint n, bool used[PROFILE_PARAMETERS_N])
{
    for (guint i = 0; i < n; i++) {
        const ProfileCostLine *line = &g_array_index(costs, ProfileCostLine, i);

        for (size_t k = 0; k < line->n_influences; k++)
            used[line->influences[k].parameter] = true;
    }
}

/* "gemm_fraction -0.97, kernel_s 0.03" (owned) */
static char *
influences_text(const ProfileCostLine *line)
{
    GString *text = g_string_new(NULL);

    for (size_t k = 0; k < line->n_influences; k++)
        g_string_append_printf(text, "%s%s %+.2f", k == 0 ? "" : ", ",
                               profile_parameter_info[line->influences[k].parameter].name,
                               line->influences[k].elasticity);
    return g_string_free(text, FALSE);
}

/* --- for people --- */

static void
print_costs(const Costs *explanation, guint n)
{
    g_autoptr(OutputTable) table =
        output_table_new("time|share|times|<what|<inputs|<rests on (elasticity)|<formula");

    for (guint i = 0; i < n; i++) {
        const ProfileCostLine *line = &g_array_index(explanation->time.costs, ProfileCostLine, i);

        output_table_row(table, output_seconds(line->total_s).text,
                         output_percent(line->total_s / explanation->busy_s).text,
                         output_int64(line->n).text, line->what, line->inputs, NULL);
        output_table_take(table, influences_text(line));
        output_table_add(table, line->formula);
    }
    output_printf("\ncosts of rank %d, the busiest; formulas: docs/cost-model.md\n",
                  explanation->busiest);
    output_table_print(table, 2);
}

static void
print_parameters(const Job *job, const Costs *explanation, guint n)
{
    g_autoptr(OutputTable) table = output_table_new("<parameter|value|<what|<source");
    bool used[PROFILE_PARAMETERS_N] = {false};

    mark_parameters(explanation->time.costs, n, used);
    for (int i = 0; i < PROFILE_PARAMETERS_N; i++) {
        if (!used[i])
            continue;
        output_table_row(table, profile_parameter_info[i].name,
                         output_number(profile_parameter(&job->profile->parameters, i)).text,
                         profile_parameter_info[i].what, NULL);
        output_table_take(table, profile_parameter_source(job->profile, i));
    }
    output_text("\nparameters\n");
    output_table_print(table, 2);
}

static void
print_sources(const Job *job)
{
    const ModelDevice *device = model_cluster_device(job->profile->cluster, 0);

    const PlanFrameworkFacts *facts = plan_framework(job->plan->conventions.framework);

    char stack[PLAN_STACK_TEXT];
    plan_stack_text(job->plan->conventions.stack, stack);
    if (facts->stack != NULL)
        output_printf("\nframework: %s, the stack of %s; what older and newer ones were off by: "
                      "docs/validation.md\n",
                      facts->name, *stack != 0 ? stack : facts->stack);
    output_printf("\ndevice: %s, %s in %s, %s/s of memory\n", device->name,
                  units_format_flops(profile_peak_flops_per_s(device, job->plan->dtype)).text,
                  dtype_names[job->plan->dtype],
                  units_format_bytes(device->memory_bytes_per_s).text);
    for (guint i = 0; i < job->profile->cluster->sources->len; i++)
        output_printf("  %s\n", (const char *)job->profile->cluster->sources->pdata[i]);
}

static const char *const owner_formulas[TRACE_MEMORY_N] = {
    [TRACE_MEMORY_WEIGHTS] = "parameters x bytes of a weight  [6.1]",
    [TRACE_MEMORY_GRADIENTS] = "parameters x bytes of a gradient  [6.1]",
    [TRACE_MEMORY_OPTIMIZER] = "parameters x bytes of optimizer state / copies with ZeRO  [6.1]",
    [TRACE_MEMORY_ACTIVATIONS] = "kept bytes of each op x micro-batches in flight  [6.2]",
    [TRACE_MEMORY_KV] = "K and V of slices in flight  [6.2]",
    [TRACE_MEMORY_BUFFERS] = "messages, gathered layers, context_bytes, allocator_fraction  [6.3]",
    [TRACE_MEMORY_WORKSPACE] = "what one op needs while it runs, weights gathered for it  [6.3]",
};

static void
print_memory(const Costs *explanation, const Report *report)
{
    const ReportRank *rank = rank_of(report, explanation->fullest);
    g_autoptr(OutputTable) table = output_table_new("bytes|<owner at the peak|<formula");
    g_autoptr(OutputTable) ops = output_table_new("bytes|<kept for one micro-batch by");

    for (int i = 0; i < TRACE_MEMORY_N; i++) {
        if (rank->memory_bytes[i] == 0)
            continue;
        output_table_row(table, units_format_bytes((double)rank->memory_bytes[i]).text,
                         trace_memory_names[i], owner_formulas[i], NULL);
    }
    for (guint i = 0; i < MIN(MAX_MEMORY, explanation->memory.memory->len); i++) {
        const ProfileMemoryLine *line =
            &g_array_index(explanation->memory.memory, ProfileMemoryLine, i);

        output_table_row(ops, units_format_bytes((double)line->bytes).text, line->what, NULL);
    }
    output_printf("\nmemory of rank %d, the fullest; %d micro-batches in flight\n",
                  explanation->fullest, rank->peak_in_flight);
    output_table_print(table, 2);
    output_text("\n");
    output_table_print(ops, 2);
}

bool
explain_costs_print(const Job *job, const Report *report, GError **error)
{
    g_auto(Costs) explanation = {0};

    if (!explain_rank(job, report, &explanation, error))
        return false;
    guint n = MIN(MAX_COSTS, explanation.time.costs->len);
    print_costs(&explanation, n);
    print_parameters(job, &explanation, n);
    print_sources(job);
    print_memory(&explanation, report);
    return true;
}

/* --- JSON --- */

static void
write_costs(JsonWriter *writer, const GArray *costs)
{
    json_write_array(writer, "costs");
    for (guint i = 0; i < costs->len; i++) {
        const ProfileCostLine *line = &g_array_index(costs, ProfileCostLine, i);

        json_write_object_inline(writer, NULL);
        json_write_string(writer, "what", line->what);
        json_write_string(writer, "inputs", line->inputs);
        json_write_string(writer, "formula", line->formula);
        json_write_int64(writer, "n", line->n);
        json_write_double(writer, "total_s", line->total_s);
        json_write_object(writer, "elasticities");
        for (size_t k = 0; k < line->n_influences; k++)
            json_write_double(writer, profile_parameter_info[line->influences[k].parameter].name,
                              line->influences[k].elasticity);
        json_write_object_end(writer);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
}

static void
write_parameters(JsonWriter *writer, const Job *job, const GArray *costs)
{
    bool used[PROFILE_PARAMETERS_N] = {false};

    mark_parameters(costs, costs->len, used);
    json_write_array(writer, "parameters");
    for (int i = 0; i < PROFILE_PARAMETERS_N; i++) {
        if (!used[i])
            continue;
        g_autofree char *source = profile_parameter_source(job->profile, i);
        json_write_object_inline(writer, NULL);
        json_write_string(writer, "name", profile_parameter_info[i].name);
        json_write_double(writer, "value", profile_parameter(&job->profile->parameters, i));
        json_write_string(writer, "what", profile_parameter_info[i].what);
        json_write_string(writer, "source", source);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
}

static void
write_memory(JsonWriter *writer, const Costs *explanation, const Report *report)
{
    const ReportRank *rank = rank_of(report, explanation->fullest);

    json_write_object(writer, "memory");
    json_write_int64(writer, "rank", explanation->fullest);
    json_write_array(writer, "owners");
    for (int i = 0; i < TRACE_MEMORY_N; i++) {
        json_write_object_inline(writer, NULL);
        json_write_string(writer, "owner", trace_memory_names[i]);
        json_write_int64(writer, "bytes", rank->memory_bytes[i]);
        json_write_string(writer, "formula", owner_formulas[i]);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
    json_write_array(writer, "kept_per_microbatch");
    for (guint i = 0; i < explanation->memory.memory->len; i++) {
        const ProfileMemoryLine *line =
            &g_array_index(explanation->memory.memory, ProfileMemoryLine, i);

        json_write_object_inline(writer, NULL);
        json_write_string(writer, "what", line->what);
        json_write_int64(writer, "bytes", line->bytes);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
    json_write_object_end(writer);
}

bool
explain_costs_write(JsonWriter *writer, const Job *job, const Report *report, GError **error)
{
    g_auto(Costs) explanation = {0};

    if (!explain_rank(job, report, &explanation, error))
        return false;
    json_write_object(writer, "explanation");
    json_write_int64(writer, "rank", explanation.busiest);
    write_costs(writer, explanation.time.costs);
    write_parameters(writer, job, explanation.time.costs);
    write_memory(writer, &explanation, report);
    json_write_object_end(writer);
    return true;
}
