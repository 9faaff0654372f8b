#include "cli/validate/error_bar.h"

#include <math.h>

#include "cli/request/output.h"

void
error_bar_clear(ErrorBar *bar)
{
    accuracy_clear(&bar->time);
    accuracy_clear(&bar->memory);
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
        .is_mixed = report != NULL && !is_measured && devices->len > 1,
    };
    return !bar->is_known ||
           (accuracy_find(VALIDATION_TIME, framework, bar->device, false, &bar->time, error) &&
            accuracy_find(VALIDATION_MEMORY, framework, bar->device, true, &bar->memory, error));
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
    json_write_double(writer, "fit_fraction", fit_fraction);
    json_write_object_end(writer);
}
