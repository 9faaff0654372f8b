#include "cli/validate/accuracy.h"

#include <math.h>
#include <string.h>

#include "base/embedded.h"
#include "base/json_fields.h"
#include "base/order.h"
#include "cli/request/output.h"

static const JsonField fields[] = {
    {"framework", JSON_FIELD_OF(Accuracy, framework)},
    {"device", JSON_FIELD_OF(Accuracy, device)},
    {"n", JSON_FIELD_OF(Accuracy, n), 1, JSON_MAX_INT},
    {"mean_fraction", JSON_FIELD_OF(Accuracy, mean_fraction), 0, 1e9},
    {"p90_fraction", JSON_FIELD_OF(Accuracy, p90_fraction), 0, 1e9},
    {.key = NULL},
};

static const JsonField utilization_fields[] = {
    {"device", JSON_FIELD_OF(Utilization, device)},
    {"dtype", JSON_FIELD_OF(Utilization, dtype)},
    {"n", JSON_FIELD_OF(Utilization, n), 1, JSON_MAX_INT},
    {"highest_fraction", JSON_FIELD_OF(Utilization, highest_fraction), 0, 1e9},
    {"source", JSON_FIELD_OF(Utilization, source)},
    {.key = NULL},
};

/* The quantities of the file, and what they are called there. */
static const struct {
    ValidationQuantity quantity;
    const char *key;
} kinds[] = {{VALIDATION_TIME, "time"}, {VALIDATION_MEMORY, "memory"}};

void
accuracy_clear(Accuracy *accuracy)
{
    g_clear_pointer(&accuracy->framework, g_free);
    g_clear_pointer(&accuracy->device, g_free);
}

void
utilization_clear(Utilization *utilization)
{
    g_clear_pointer(&utilization->device, g_free);
    g_clear_pointer(&utilization->dtype, g_free);
    g_clear_pointer(&utilization->source, g_free);
}

/* --- writing --- */

/* One run: whose it is, and how far the prediction was off. */
typedef struct {
    const char *framework, *device, *dtype, *source; /* (borrowed) */
    double error;
    double utilization_fraction; /* measured; NaN: not known */
} Run;

static int
compare_runs(const void *a, const void *b)
{
    const Run *x = a, *y = b;

    ORDER_BY(strcmp(x->framework, y->framework), 0);
    ORDER_BY(strcmp(x->device, y->device), 0);
    return ORDER(x->error, y->error);
}

static int
compare_doubles(const void *a, const void *b)
{
    return ORDER(*(const double *)a, *(const double *)b);
}

static double
quantile(const GArray *sorted, double share)
{
    const double at = share * (double)(sorted->len - 1);
    const guint below = (guint)floor(at), above = MIN(below + 1, sorted->len - 1);
    const double low = g_array_index(sorted, double, below);

    return low + (at - (double)below) * (g_array_index(sorted, double, above) - low);
}

/* Four digits say enough, and make the file short. */
static double
rounded(double value)
{
    return round(1e4 * value) / 1e4;
}

/* Writes the row of the runs of @framework on @device; NULL: all of them. */
static void
write_row(JsonWriter *writer, const GArray *runs, const char *framework, const char *device)
{
    g_autoptr(GArray) sizes = g_array_new(FALSE, FALSE, sizeof(double));
    g_autoptr(GArray) ratios = g_array_new(FALSE, FALSE, sizeof(double));
    Accuracy row = {.framework = (char *)(framework == NULL ? "" : framework),
                    .device = (char *)(device == NULL ? "" : device)};

    for (guint i = 0; i < runs->len; i++) {
        const Run *run = &g_array_index(runs, Run, i);
        const double size = fabs(run->error), ratio = 1 / (1 + run->error);

        if ((framework != NULL && strcmp(run->framework, framework) != 0) ||
            (device != NULL && strcmp(run->device, device) != 0))
            continue;
        row.mean_fraction += size;
        g_array_append_val(sizes, size);
        g_array_append_val(ratios, ratio);
    }
    row.n = sizes->len;
    if (row.n == 0)
        return;
    row.mean_fraction /= (double)row.n;
    g_array_sort(sizes, compare_doubles);
    g_array_sort(ratios, compare_doubles);
    row.mean_fraction = rounded(row.mean_fraction);
    row.p90_fraction = rounded(quantile(sizes, 0.9));
    json_write_object_inline(writer, NULL);
    json_fields_write(writer, fields, &row);
    json_write_array_inline(writer, "measured_over_predicted");
    for (int i = 0; i < ACCURACY_QUANTILES; i++)
        json_write_double(writer, NULL, rounded(quantile(ratios, i / (ACCURACY_QUANTILES - 1.0))));
    json_write_array_end(writer);
    json_write_object_end(writer);
}

static GArray *
runs_of(const GPtrArray *cases, const ValidationPrediction *predictions,
        ValidationQuantity quantity)
{
    GArray *runs = g_array_new(FALSE, FALSE, sizeof(Run));

    for (guint i = 0; i < cases->len; i++) {
        const ValidationCase *one = cases->pdata[i];

        if (one->job == NULL || (quantity == VALIDATION_TIME && one->source->is_functional))
            continue;
        const double error = validation_error_of(quantity, one->row, &predictions[i]);
        if (!isfinite(error) || !(error > -1))
            continue;
        const Run run = {
            .framework = plan_framework(one->job->plan->conventions.framework)->name,
            .device = g_array_index(one->job->profile->cluster->devices, ModelDevice, 0).name,
            .dtype = dtype_names[one->job->plan->dtype],
            .source = one->row->source,
            .error = error,
            .utilization_fraction = (1 + error) * predictions[i].utilization_fraction *
                                    model_causal_fraction(one->job->arch, one->job->plan->seq_len),
        };
        g_array_append_val(runs, run);
    }
    g_array_sort(runs, compare_runs);
    return runs;
}

/* The highest comes last; of equal ones the last source by name. */
static int
compare_utilizations(const void *a, const void *b)
{
    const Run *x = a, *y = b;

    ORDER_BY(strcmp(x->device, y->device), 0);
    ORDER_BY(strcmp(x->dtype, y->dtype), 0);
    ORDER_BY(x->utilization_fraction, y->utilization_fraction);
    return ORDER(strcmp(x->source, y->source), 0);
}

/* Writes the highest utilisation of each device and number format of @runs, of which those without
 * one are left out. */
static void
write_utilizations(JsonWriter *writer, const GArray *runs, bool any_device)
{
    g_autoptr(GArray) sorted = g_array_new(FALSE, FALSE, sizeof(Run));
    int64_t n = 0;

    for (guint i = 0; i < runs->len; i++) {
        Run run = g_array_index(runs, Run, i);

        if (any_device)
            run.device = "";
        if (isfinite(run.utilization_fraction))
            g_array_append_val(sorted, run);
    }
    g_array_sort(sorted, compare_utilizations);
    for (guint i = 0; i < sorted->len; i++) {
        const Run *run = &g_array_index(sorted, Run, i), *after = run + 1;

        n++;
        if (i + 1 < sorted->len && strcmp(run->device, after->device) == 0 &&
            strcmp(run->dtype, after->dtype) == 0)
            continue;
        const Utilization row = {(char *)run->device, (char *)run->dtype, (char *)run->source, n,
                                 rounded(run->utilization_fraction)};
        json_write_object_inline(writer, NULL);
        json_fields_write(writer, utilization_fields, &row);
        json_write_object_end(writer);
        n = 0;
    }
}

JsonWriter *
accuracy_write(const GPtrArray *cases, const ValidationPrediction *predictions)
{
    JsonWriter *writer = output_json_new("degas-accuracy");

    for (size_t k = 0; k < G_N_ELEMENTS(kinds); k++) {
        g_autoptr(GArray) runs = runs_of(cases, predictions, kinds[k].quantity);
        g_autoptr(GHashTable) devices = g_hash_table_new(g_str_hash, g_str_equal);

        json_write_array(writer, kinds[k].key);
        for (guint i = 0; i < runs->len; i++) {
            const Run *run = &g_array_index(runs, Run, i), *before = run - 1;

            if (i == 0 || strcmp(run->framework, before->framework) != 0 ||
                strcmp(run->device, before->device) != 0)
                write_row(writer, runs, run->framework, run->device);
        }
        for (guint i = 0; i < runs->len; i++) /* in the order of their first framework */
            if (g_hash_table_add(devices, (void *)g_array_index(runs, Run, i).device))
                write_row(writer, runs, NULL, g_array_index(runs, Run, i).device);
        write_row(writer, runs, NULL, NULL);
        json_write_array_end(writer);
    }
    g_autoptr(GArray) times = runs_of(cases, predictions, VALIDATION_TIME);

    json_write_array(writer, "utilization");
    write_utilizations(writer, times, false);
    write_utilizations(writer, times, true);
    json_write_array_end(writer);
    json_write_object_end(writer);
    return writer;
}

/* --- finding --- */

/* (owned) The file that the program carries. */
static JsonDoc *
read_built_in(GError **error)
{
    const EmbeddedFile *file = embedded_find("cli/validate/accuracy.json");

    g_return_val_if_fail(file != NULL, NULL);
    return json_doc_parse(file->path, file->text, (size_t)(file->end - file->text), error);
}

/* Reads the row of @object if it is that of @framework and @device. */
static bool
read_row(JsonDoc *doc, const JsonValue *object, const char *framework, const char *device,
         Accuracy *accuracy)
{
    const JsonValue *ratios = json_array(doc, object, "measured_over_predicted");
    int n = 0;

    if (strcmp(json_string(doc, object, "framework"), framework) != 0 ||
        strcmp(json_string(doc, object, "device"), device) != 0)
        return false;
    json_fields_read(doc, object, fields, accuracy);
    JSON_EACH (v, ratios, doc) {
        if (n < ACCURACY_QUANTILES)
            accuracy->ratios[n++] = json_value_double(doc, v, 0, 1e9);
    }
    return n == ACCURACY_QUANTILES && accuracy->n >= ACCURACY_LEAST_RUNS;
}

bool
accuracy_find(ValidationQuantity quantity, const char *framework, const char *device, bool anywhere,
              Accuracy *accuracy, GError **error)
{
    const struct {
        const char *framework, *device;
    } tries[] = {{framework, device}, {"", device}, {"", ""}};

    *accuracy = (Accuracy){0};
    g_autoptr(JsonDoc) doc = read_built_in(error);
    if (doc == NULL)
        return false;
    const JsonValue *rows = json_array(doc, json_doc_root(doc, NULL, 1),
                                       kinds[quantity == VALIDATION_MEMORY ? 1 : 0].key);
    for (int i = 0; i < (anywhere ? 3 : 2); i++)
        JSON_EACH (v, rows, doc) {
            if (read_row(doc, v, tries[i].framework, tries[i].device, accuracy))
                return true;
            accuracy_clear(accuracy);
            *accuracy = (Accuracy){0};
        }
    return true;
}

bool
utilization_find(const char *device, const char *dtype, Utilization *utilization, GError **error)
{
    const char *const devices[] = {device, ""};

    *utilization = (Utilization){0};
    g_autoptr(JsonDoc) doc = read_built_in(error);
    if (doc == NULL)
        return false;
    const JsonValue *rows = json_array(doc, json_doc_root(doc, NULL, 1), "utilization");
    for (size_t i = 0; i < G_N_ELEMENTS(devices); i++)
        JSON_EACH (v, rows, doc) {
            if (strcmp(json_string(doc, v, "device"), devices[i]) != 0 ||
                strcmp(json_string(doc, v, "dtype"), dtype) != 0)
                continue;
            json_fields_read(doc, v, utilization_fields, utilization);
            if (utilization->n >= ACCURACY_LEAST_RUNS)
                return true;
            utilization_clear(utilization);
            *utilization = (Utilization){0};
        }
    return true;
}

double
accuracy_share(const Accuracy *accuracy, double ratio)
{
    const double *q = accuracy->ratios;
    int i = 0;

    while (i < ACCURACY_QUANTILES && q[i] <= ratio)
        i++;
    if (i == 0 || i == ACCURACY_QUANTILES)
        return i == 0 ? 0 : 1;
    return ((double)i - 1 + (ratio - q[i - 1]) / (q[i] - q[i - 1])) / (ACCURACY_QUANTILES - 1);
}

double
accuracy_ratio(const Accuracy *accuracy, double share)
{
    const double at = CLAMP(share, 0, 1) * (ACCURACY_QUANTILES - 1);
    const int below = MIN((int)at, ACCURACY_QUANTILES - 2);

    return accuracy->ratios[below] +
           (at - below) * (accuracy->ratios[below + 1] - accuracy->ratios[below]);
}
