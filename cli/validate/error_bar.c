#include "cli/validate/error_bar.h"

#include <math.h>

#include "cli/request/output.h"

void
error_bar_clear(ErrorBar *bar)
{
    accuracy_clear(&bar->time);
    accuracy_clear(&bar->memory);
    utilization_clear(&bar->highest);
}

bool
error_bar_find(const Job *job, const Report *report, ErrorBar *bar, GError **error)
{
    const GArray *devices = job->profile->cluster->devices;
    const char *framework = plan_framework(job->plan->conventions.framework)->name;
    const bool is_measured = report != NULL && report->sources.measured_fraction > 0;

    *bar = (ErrorBar){
        .device = g_array_index(devices, ModelDevice, 0).name,
        .is_known = report != NULL && !is_measured && devices->len == 1,
        .causal_utilization_fraction =
            report == NULL ? NAN
                           : report->model_flops_utilization_fraction *
                                 model_causal_fraction(job->arch, job->plan->seq_len),
        .is_mixed = report != NULL && !is_measured && devices->len > 1,
    };
    return !bar->is_known ||
           (accuracy_find(VALIDATION_TIME, framework, bar->device, false, &bar->time, error) &&
            accuracy_find(VALIDATION_MEMORY, framework, bar->device, true, &bar->memory, error) &&
            utilization_find(bar->device, dtype_names[job->plan->dtype], &bar->highest, error));
}

double
error_bar_fit(const ErrorBar *bar, const Report *report, int64_t limit_bytes)
{
    if (!bar->is_known || bar->memory.n == 0)
        return NAN;
    if (limit_bytes == 0)
        limit_bytes = report->memory_limit_bytes;
    if (limit_bytes <= 0 || report->peak_memory_bytes <= 0)
        return NAN;
    return accuracy_share(&bar->memory, (double)limit_bytes / (double)report->peak_memory_bytes);
}

/* (owned) "129 published runs, megatron-core on H100-SXM5-80GB" */
static char *
runs_text(const Accuracy *accuracy)
{
    return g_strdup_printf(INT " published runs, %s on %s", accuracy->n,
                           *accuracy->framework == 0 ? "any framework" : accuracy->framework,
                           *accuracy->device == 0 ? "any device" : accuracy->device);
}

static void
print_highest(const Utilization *highest, double fraction)
{
    if (highest->n == 0 || !(fraction > highest->highest_fraction))
        return;
    output_printf("causal MFU %s is more than any published run reached: the highest of " INT
                  " in %s on %s is %s (%s)\n",
                  output_percent(fraction).text, highest->n, highest->dtype,
                  *highest->device == 0 ? "any device" : highest->device,
                  output_percent(highest->highest_fraction).text, highest->source);
}

void
error_bar_print(const ErrorBar *bar, double fit_fraction)
{
    if (bar->is_mixed)
        output_text(
            "error of such predictions: not known, no published run was on several kinds of "
            "device\n");
    if (!bar->is_known)
        return;
    if (bar->time.n > 0) {
        g_autofree char *runs = runs_text(&bar->time);

        output_printf("error of such predictions: %s on average, 9 of 10 within %s (%s)\n",
                      output_percent(bar->time.mean_fraction).text,
                      output_percent(bar->time.p90_fraction).text, runs);
    } else {
        output_printf("error of such predictions: not known, no published run on %s was compared\n",
                      bar->device);
    }
    print_highest(&bar->highest, bar->causal_utilization_fraction);
    if (!isnan(fit_fraction)) {
        g_autofree char *runs = runs_text(&bar->memory);

        output_printf("P(fits): as far as measured peaks were off (%s)\n", runs);
    }
}

static void
write_accuracy(JsonWriter *writer, const char *key, const Accuracy *accuracy)
{
    if (accuracy->n == 0) {
        json_write_null(writer, key);
        return;
    }
    json_write_object_inline(writer, key);
    json_write_string(writer, "framework", accuracy->framework);
    json_write_string(writer, "device", accuracy->device);
    json_write_int64(writer, "runs", accuracy->n);
    json_write_double(writer, "mean_fraction", accuracy->mean_fraction);
    json_write_double(writer, "p90_fraction", accuracy->p90_fraction);
    json_write_object_end(writer);
}

void
error_bar_write(JsonWriter *writer, const ErrorBar *bar, double fit_fraction)
{
    json_write_object(writer, "error");
    write_accuracy(writer, "time", &bar->time);
    write_accuracy(writer, "memory", &bar->memory);
    if (bar->highest.n == 0) {
        json_write_null(writer, "highest_utilization");
    } else {
        json_write_object_inline(writer, "highest_utilization");
        json_write_string(writer, "device", bar->highest.device);
        json_write_string(writer, "dtype", bar->highest.dtype);
        json_write_int64(writer, "runs", bar->highest.n);
        json_write_double(writer, "fraction", bar->highest.highest_fraction);
        json_write_string(writer, "source", bar->highest.source);
        json_write_object_end(writer);
    }
    json_write_double(writer, "fit_fraction", fit_fraction);
    json_write_object_end(writer);
}
