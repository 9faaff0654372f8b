#include "cli/run/report.h"

#include <math.h>
#include <stdlib.h>

#include "base/host_steal.h"
#include "base/order.h"
#include "cli/draw/describe.h"
#include "cli/request/output.h"

/* --- numbers --- */

static double
error_fraction(const RunReport *report)
{
    return report->predicted_s / report->median_s - 1.0;
}

static double
tokens_per_step(const RunReport *report)
{
    return (double)report->job->plan->global_batch * (double)report->job->plan->seq_len;
}

static int64_t
peak_bytes(const RunReport *report)
{
    int64_t peak = 0;

    for (guint i = 0; i < report->result->peak_memory_bytes->len; i++)
        peak = MAX(peak, g_array_index(report->result->peak_memory_bytes, int64_t, i));
    return peak;
}

static void
summarize_steps(RunReport *report)
{
    const ExecRunResult *result = report->result;
    const int64_t first = result->n_steps > 1 ? 1 : 0;
    const size_t n = (size_t)(result->n_steps - first);
    g_autofree double *sorted = g_memdup2(result->step_s + first, n * sizeof *sorted);

    qsort(sorted, n, sizeof *sorted, order_doubles);
    report->median_s = sorted[n / 2];
    report->p10_s = sorted[(n - 1) / 10];
    report->p90_s = sorted[(n - 1) - (n - 1) / 10];
}

void
run_report_init(RunReport *report, const Job *job, const ExecRunOptions *exec,
                const ExecRunResult *result, const Report *predicted)
{
    *report = (RunReport){
        .job = job,
        .exec = exec,
        .result = result,
        .predicted_s = (double)NAN,
        .predicted_bubble_fraction = (double)NAN,
    };
    if (result->trace != NULL)
        report->breakdown = breakdown_of_trace(result->trace);
    summarize_steps(report);
    if (predicted == NULL)
        return;
    report->predicted_s = units_s_from_ns(predicted->iteration_ns);
    report->predicted_bubble_fraction = predicted->bubble_fraction;
    report->predicted_peak_bytes = predicted->peak_memory_bytes;
    report->varied = predicted->jitter;
}

/* --- telling --- */

static void
write_ranks(JsonWriter *writer, const ExecRunResult *result)
{
    json_write_array(writer, "ranks");
    for (guint i = 0; i < result->busy_s->len; i++) {
        json_write_object_inline(writer, NULL);
        json_write_int64(writer, "rank", i);
        json_write_double(writer, "busy_s", g_array_index(result->busy_s, double, i));
        json_write_int64(writer, "peak_memory_bytes",
                         g_array_index(result->peak_memory_bytes, int64_t, i));
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
}

static void
write_verification(JsonWriter *writer, const RunReport *report)
{
    const ExecRunResult *result = report->result;

    if (!result->verified) {
        json_write_null(writer, "verify");
        return;
    }
    json_write_object_inline(writer, "verify");
    json_write_double(writer, "max_gradient_error", result->max_gradient_error);
    json_write_double(writer, "tolerance", report->exec->verify_tolerance);
    json_write_bool(writer, "passed", result->passed);
    json_write_string(writer, "worst_tensor", result->worst_tensor);
    json_write_double(writer, "reference_loss", result->reference_loss);
    json_write_object_end(writer);
}

static void
write_varied(JsonWriter *writer, const ReportJitter *varied)
{
    if (varied->n_runs == 0) {
        json_write_null(writer, "predicted_varied_step_s");
        return;
    }
    json_write_object_inline(writer, "predicted_varied_step_s");
    for (size_t i = 0; i < REPORT_SHARES_N; i++)
        json_write_double(writer, report_share_names[i], units_s_from_ns(varied->iteration_ns[i]));
    json_write_double(writer, "op_sigma_fraction", varied->op_sigma);
    json_write_double(writer, "correlation_s", varied->correlation_s);
    json_write_double(writer, "rank_sigma_fraction", varied->rank_sigma);
    json_write_object_end(writer);
}

JsonWriter *
run_report_json(const RunReport *report)
{
    const ExecRunResult *result = report->result;
    JsonWriter *writer = output_json_new("degas-run");

    json_write_int64(writer, "steps", result->n_steps);
    json_write_int64(writer, "first_step", result->first_step);
    json_write_object_inline(writer, "step_s");
    json_write_double(writer, "median", report->median_s);
    json_write_double(writer, "p10", report->p10_s);
    json_write_double(writer, "p90", report->p90_s);
    json_write_object_end(writer);
    json_write_array_inline(writer, "steps_s");
    for (int64_t i = 0; i < result->n_steps; i++)
        json_write_double(writer, NULL, result->step_s[i]);
    json_write_array_end(writer);
    json_write_double(writer, "stolen_fraction", result->stolen_fraction);
    json_write_double(writer, "predicted_step_s", report->predicted_s);
    json_write_double(writer, "prediction_error_fraction", error_fraction(report));
    write_varied(writer, &report->varied);
    json_write_double(writer, "tokens_per_s", tokens_per_step(report) / report->median_s);
    json_write_array_inline(writer, "losses");
    for (int64_t i = 0; i < result->n_steps; i++)
        json_write_double(writer, NULL, result->losses[i]);
    json_write_array_end(writer);
    json_write_double(writer, "bubble_fraction", result->bubble_fraction);
    json_write_double(writer, "predicted_bubble_fraction", report->predicted_bubble_fraction);
    write_ranks(writer, result);
    if (result->trace != NULL)
        breakdown_write(writer, "breakdown_s", &report->breakdown);
    else
        json_write_null(writer, "breakdown_s");
    json_write_int64(writer, "traced_step", result->traced_step);
    json_write_double(writer, "clock_error_s", result->clock_error_s);
    write_verification(writer, report);
    json_write_string(writer, "backend", result->backend);
    json_write_object_end(writer);
    return writer;
}

char *
run_report_stolen_text(double stolen_fraction)
{
    if (!(stolen_fraction > HOST_STEAL_TOLD_FRACTION))
        return NULL;
    return g_strdup_printf("the host took %s of the cores: steps are slower than on this machine "
                           "alone",
                           output_percent(stolen_fraction).text);
}

/* "1f1b, dp 2 x pp 2 x tp 2, 4 micro-batches of 1, slices 128 x2" */
static char *
describe_plan(const Plan *plan)
{
    const PlanDegrees *d = &plan->degrees;
    const struct {
        const char *name;
        int64_t degree;
    } optional[] = {{"tp", d->tp}, {"cp", d->cp}, {"vpp", d->vpp}, {"ep", d->ep}};
    g_autofree char *slices = output_int64s(plan->slices, 6);
    g_autoptr(GString) text = g_string_new(NULL);

    g_string_printf(text, "%s, dp " INT " x pp " INT, plan->schedule, d->dp, d->pp);
    for (size_t i = 0; i < G_N_ELEMENTS(optional); i++)
        if (optional[i].degree > 1)
            g_string_append_printf(text, " x %s " INT, optional[i].name, optional[i].degree);
    if (plan->sequence_parallel && d->tp > 1)
        g_string_append(text, ", sequence parallel");
    g_string_append_printf(
        text, ", " INT " micro-batches of %s" INT " per replica, slices of %s tokens",
        plan->n_micro_batches, plan->micro_batch_sequences == NULL ? "" : "at most ",
        plan->micro_batch, slices);
    return g_string_free(g_steal_pointer(&text), FALSE);
}

static void
print_table(const RunReport *report)
{
    g_autoptr(OutputTable) table = output_table_new("<|predicted|measured|error");
    const double tokens = tokens_per_step(report);

    output_table_row(table, "step", output_seconds(report->predicted_s).text,
                     output_seconds(report->median_s).text, NULL);
    output_table_printf(table, "%s%s", error_fraction(report) >= 0.0 ? "+" : "",
                        output_percent(error_fraction(report)).text);
    output_table_row(table, "tokens/s", output_number(tokens / report->predicted_s).text,
                     output_number(tokens / report->median_s).text, "", NULL);
    output_table_row(table, "bubble", output_percent(report->predicted_bubble_fraction).text,
                     output_percent(report->result->bubble_fraction).text, "", NULL);
    output_table_row(table, "peak memory",
                     isnan(report->predicted_s)
                         ? "-"
                         : units_format_bytes((double)report->predicted_peak_bytes).text,
                     units_format_bytes((double)peak_bytes(report)).text, "", NULL);
    output_table_print(table, 2);
}

/* Prints what the prediction becomes when times vary as they did when they were profiled. */
static void
print_varied(const ReportJitter *varied)
{
    if (varied->n_runs == 0)
        return;
    g_autofree char *op = describe_op_sigma(varied);
    output_printf(
        "  predicted with times that vary as when profiled (ops %s; ranks %s): median %s, "
        "80 %% of steps %s to %s\n",
        op, output_percent(varied->rank_sigma).text,
        output_seconds(units_s_from_ns(varied->iteration_ns[1])).text,
        output_seconds(units_s_from_ns(varied->iteration_ns[0])).text,
        output_seconds(units_s_from_ns(varied->iteration_ns[2])).text);
}

void
run_report_print(const RunReport *report)
{
    const ExecRunResult *result = report->result;
    g_autofree char *plan = describe_plan(report->job->plan);

    output_printf("%s: %s\n%s\n\n", report->job->arch->name, plan, result->backend);
    print_table(report);
    output_printf("\n  measured: median of " INT " steps, 80 %% of them %s to %s\n",
                  result->n_steps > 1 ? result->n_steps - 1 : 1, output_seconds(report->p10_s).text,
                  output_seconds(report->p90_s).text);
    print_varied(&report->varied);
    output_printf("  loss: %.4f in the first step, %.4f in the last\n", result->losses[0],
                  result->losses[result->n_steps - 1]);
    if (result->verified)
        output_printf("  gradients against one device: largest relative error %s (%s), "
                      "tolerance %s: %s\n",
                      output_number(result->max_gradient_error).text, result->worst_tensor,
                      output_number(report->exec->verify_tolerance).text,
                      result->passed ? "passed" : "FAILED");
}
