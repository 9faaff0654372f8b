/* degas validate: predictions beside measured runs. */
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/validation.h"

#define MAX_THREADS 1024
#define N_WORST 5

static const OptionInfo options_table[] = {
    {"json", NULL, "print the degas-validation on stdout", 0},
    {"output", "FILE", "write the degas-validation to FILE", 'o'},
    {"requests", "FILE", "write each row as a line of simulate --batch", 0},
    {"skip-bad-rows", NULL, "name rows that are wrong in themselves and use the others", 0},
    {"threads", "N", "threads; the result does not depend on it", 0},
    {NULL, NULL, NULL, 0},
};

/* Everything about one file or folder. */
typedef struct {
    GPtrArray *tables; /* of (owned) MeasuredTable */
    GPtrArray *cases;  /* of ValidationCase, (owned) by parts */
    GPtrArray *parts;  /* of (owned) GPtrArray, the cases of each table */
    GPtrArray *bad_rows;
    ValidationPrediction *predictions;
} Validation;

static void
validation_clear(Validation *validation)
{
    g_clear_pointer(&validation->cases, g_ptr_array_unref);
    g_clear_pointer(&validation->parts, g_ptr_array_unref);
    g_clear_pointer(&validation->tables, g_ptr_array_unref);
    g_clear_pointer(&validation->bad_rows, g_ptr_array_unref);
    g_free(validation->predictions);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Validation, validation_clear)

static void
validation_init(Validation *validation)
{
    *validation = (Validation){
        .tables = g_ptr_array_new_with_free_func((GDestroyNotify)measured_free),
        .cases = g_ptr_array_new(),
        .parts = g_ptr_array_new_with_free_func((GDestroyNotify)g_ptr_array_unref),
        .bad_rows = g_ptr_array_new_with_free_func(g_free),
    };
}

/* --- reading --- */

static bool
add_file(Validation *validation, const char *path, const Profile *cluster, const char *cluster_name,
         bool skip, GError **error)
{
    GPtrArray *bad_rows = skip ? validation->bad_rows : NULL;
    MeasuredTable *table = measured_load(path, bad_rows, error);
    GPtrArray *cases;

    if (table == NULL)
        return false;
    g_ptr_array_add(validation->tables, table);
    cases = validation_cases(table, cluster, cluster_name, bad_rows, error);
    if (cases == NULL)
        return false;
    g_ptr_array_add(validation->parts, cases);
    g_ptr_array_extend(validation->cases, cases, NULL, NULL);
    return true;
}

static int
compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* All tables of runs of a folder, by name. */
static bool
add_folder(Validation *validation, const char *path, bool skip, GError **error)
{
    g_autoptr(GDir) dir = g_dir_open(path, 0, error);
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    const char *name;

    if (dir == NULL)
        return false;
    while ((name = g_dir_read_name(dir)) != NULL) {
        if (g_str_has_suffix(name, ".csv"))
            g_ptr_array_add(names, g_build_filename(path, name, NULL));
    }
    g_ptr_array_sort(names, compare_names);
    for (guint i = 0; i < names->len; i++) {
        g_autoptr(Csv) csv = csv_load(names->pdata[i], NULL, error);

        if (csv == NULL)
            return false;
        if (measured_is_table_of_runs(csv) &&
            !add_file(validation, names->pdata[i], NULL, NULL, skip, error))
            return false;
    }
    return true;
}

/* --- JSON --- */

static void
write_errors(JsonWriter *writer, const ValidationErrors *errors)
{
    json_write_int64(writer, "rows", (int64_t)errors->n);
    json_write_double(writer, "mape_fraction", errors->mape);
    json_write_double(writer, "bias_fraction", errors->bias);
    json_write_double(writer, "median_fraction", errors->median);
    json_write_double(writer, "worst_fraction", errors->worst);
}

static void
write_oom(JsonWriter *writer, const ValidationOom *oom)
{
    json_write_int64(writer, "rows", (int64_t)oom->n);
    json_write_int64(writer, "oom_rows", (int64_t)oom->n_oom);
    json_write_int64(writer, "predicted_oom_rows", (int64_t)oom->n_predicted);
    json_write_double(writer, "precision_fraction", oom->precision);
    json_write_double(writer, "recall_fraction", oom->recall);
}

static const char *const quantity_names[] = {"time", "memory", "oom"};

static void
write_sets(JsonWriter *writer, const Validation *validation)
{
    json_write_array(writer, "sets");
    for (const ValidationSet *set = validation_sets; set->name != NULL; set++) {
        const ValidationScore score =
            validation_score(validation->cases, validation->predictions, set, set->quantity);

        if (set->quantity == VALIDATION_OOM ? score.oom.n == 0 : score.errors.n == 0)
            continue;
        json_write_object(writer, NULL);
        json_write_string(writer, "name", set->name);
        json_write_string(writer, "quantity", quantity_names[set->quantity]);
        if (set->quantity == VALIDATION_OOM)
            write_oom(writer, &score.oom);
        else
            write_errors(writer, &score.errors);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
}

static void
write_known(JsonWriter *writer, const char *key, double value)
{
    if (isfinite(value))
        json_write_double(writer, key, value);
    else
        json_write_null(writer, key);
}

static void
write_rows(JsonWriter *writer, const Validation *validation)
{
    static const char *const statuses[] = {"ok", "oom", "other"};

    json_write_array(writer, "predictions");
    for (guint i = 0; i < validation->cases->len; i++) {
        const ValidationCase *one = validation->cases->pdata[i];
        const ValidationPrediction *prediction = &validation->predictions[i];

        json_write_object_inline(writer, NULL);
        json_write_string(writer, "id", one->row->id);
        json_write_string(writer, "source", one->row->source);
        json_write_int64(writer, "line", (int64_t)one->row->line);
        if (one->plan == NULL) {
            json_write_string(writer, "not_predicted", one->why_not);
        } else {
            json_write_string(writer, "status", statuses[one->row->status]);
            write_known(writer, "measured_s", one->row->iteration_s);
            write_known(writer, "predicted_s", prediction->iteration_s);
            write_known(writer, "error_fraction",
                        validation_error_of(VALIDATION_TIME, one->row, prediction));
            write_known(writer, "measured_bytes", one->row->memory_bytes);
            write_known(writer, "predicted_bytes", prediction->memory_bytes);
            write_known(writer, "memory_error_fraction",
                        validation_error_of(VALIDATION_MEMORY, one->row, prediction));
            json_write_bool(writer, "fits", prediction->fits);
        }
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
}

static JsonWriter *
write_validation(const Validation *validation, const char *cluster_name)
{
    JsonWriter *writer = json_writer_new();
    const ValidationScore time =
        validation_score(validation->cases, validation->predictions, NULL, VALIDATION_TIME);
    const ValidationScore memory =
        validation_score(validation->cases, validation->predictions, NULL, VALIDATION_MEMORY);

    json_write_object(writer, NULL);
    json_write_string(writer, "format", "degas-validation");
    json_write_int64(writer, "version", 1);
    json_write_string(writer, "cluster", cluster_name);
    write_errors(writer, &time.errors);
    json_write_object(writer, "memory");
    write_errors(writer, &memory.errors);
    json_write_object_end(writer);
    json_write_object(writer, "oom");
    write_oom(writer, &time.oom);
    json_write_object_end(writer);
    write_sets(writer, validation);
    json_write_array(writer, "bad_rows");
    for (guint i = 0; i < validation->bad_rows->len; i++)
        json_write_string(writer, NULL, validation->bad_rows->pdata[i]);
    json_write_array_end(writer);
    write_rows(writer, validation);
    json_write_object_end(writer);
    return writer;
}

/* --- for people --- */

static void
add_errors(OutputTable *table, const char *name, const char *quantity,
           const ValidationErrors *errors)
{
    output_table_add(table, name);
    output_table_add(table, quantity);
    output_table_printf(table, "%zu", errors->n);
    output_table_take(table, output_percent(errors->mape));
    output_table_take(table, output_percent(errors->bias));
    output_table_take(table, output_percent(errors->worst));
}

static void
add_set(OutputTable *table, const Validation *validation, const ValidationSet *set)
{
    const ValidationScore score =
        validation_score(validation->cases, validation->predictions, set, set->quantity);

    if (set->quantity == VALIDATION_OOM ? score.oom.n == 0 : score.errors.n == 0)
        return;
    if (set->quantity == VALIDATION_OOM) {
        g_autofree char *precision = output_percent(score.oom.precision);
        g_autofree char *recall = output_percent(score.oom.recall);

        output_table_add(table, set->name);
        output_table_add(table, quantity_names[set->quantity]);
        output_table_printf(table, "%zu", score.oom.n);
        output_table_printf(table, "precision %s", precision);
        output_table_printf(table, "recall %s", recall);
        output_table_add(table, "");
    } else {
        add_errors(table, set->name, quantity_names[set->quantity], &score.errors);
    }
    if (set->raw_goal > 0.0)
        output_table_take(table, output_percent(set->raw_goal));
    else
        output_table_add(table, "");
    output_table_add(table, set->others == NULL ? "" : set->others);
}

/* Why rows have no prediction, in order of appearance. */
static void
print_unpredicted(const Validation *validation)
{
    g_autoptr(GPtrArray) reasons = g_ptr_array_new();

    for (guint i = 0; i < validation->cases->len; i++) {
        const ValidationCase *one = validation->cases->pdata[i];
        bool known = one->why_not == NULL;

        for (guint j = 0; j < reasons->len && !known; j++)
            known = strcmp(one->why_not, reasons->pdata[j]) == 0;
        if (!known)
            g_ptr_array_add(reasons, one->why_not);
    }
    for (guint j = 0; j < reasons->len; j++) {
        guint n = 0;

        for (guint i = 0; i < validation->cases->len; i++) {
            const ValidationCase *one = validation->cases->pdata[i];

            n += g_strcmp0(one->why_not, reasons->pdata[j]) == 0;
        }
        output_printf("not predicted: %u, %s\n", n, (const char *)reasons->pdata[j]);
    }
}

static void
print_worst(const Validation *validation)
{
    g_autofree bool *shown = g_new0(bool, MAX(1, validation->cases->len));

    for (int n = 0; n < N_WORST; n++) {
        double worst = 0.0;
        guint at = 0;

        for (guint i = 0; i < validation->cases->len; i++) {
            const ValidationCase *one = validation->cases->pdata[i];
            const double error =
                validation_error_of(VALIDATION_TIME, one->row, &validation->predictions[i]);

            if (!shown[i] && isfinite(error) && fabs(error) > worst) {
                worst = fabs(error);
                at = i;
            }
        }
        if (worst == 0.0)
            return;
        shown[at] = true;
        const ValidationCase *one = validation->cases->pdata[at];
        g_autofree char *measured = output_seconds(one->row->iteration_s);
        g_autofree char *predicted = output_seconds(validation->predictions[at].iteration_s);

        output_printf("%s %s: measured %s, predicted %s\n", n == 0 ? "worst:" : "      ",
                      one->row->id, measured, predicted);
    }
}

static void
print_validation(const Validation *validation)
{
    static const char *const header[] = {
        "<set", "<of", "rows", "MAPE", "bias", "worst", "goal", "<published by others", NULL};
    g_autoptr(OutputTable) table = output_table_new(header);
    const ValidationScore time =
        validation_score(validation->cases, validation->predictions, NULL, VALIDATION_TIME);

    for (const ValidationSet *set = validation_sets; set->name != NULL; set++)
        add_set(table, validation, set);
    if (validation->tables->len == 1) {
        add_errors(table, "all rows", "time", &time.errors);
        output_table_add(table, "");
        output_table_add(table, "");
    }
    output_table_print(table, 0);
    output_text("\n");
    print_unpredicted(validation);
    print_worst(validation);
}

/* --- the command --- */

static bool
write_requests(const Validation *validation, const char *path, GError **error)
{
    g_autoptr(GString) text = g_string_new(NULL);

    for (guint i = 0; i < validation->cases->len; i++) {
        const ValidationCase *one = validation->cases->pdata[i];

        if (one->request_text != NULL)
            g_string_append(text, one->request_text);
    }
    return file_write(path, text->str, text->len, error);
}

static bool
write_products(const Validation *validation, const char *cluster_name, Options *options,
               GError **error)
{
    const char *path = options_string(options, "output", NULL);
    const char *requests = options_string(options, "requests", NULL);
    const bool json = options_switch(options, "json");

    if (requests != NULL && !write_requests(validation, requests, error))
        return false;
    if (path != NULL || json) {
        g_autoptr(JsonWriter) writer = write_validation(validation, cluster_name);

        if (!output_json(writer, json ? NULL : path, error))
            return false;
    }
    if (!json)
        print_validation(validation);
    return true;
}

static bool
read_input(Validation *validation, const Profile *cluster, Options *options, GError **error)
{
    const bool skip = options_switch(options, "skip-bad-rows");
    const char *first = options_argument(options, 0), *second = options_argument(options, 1);

    if (second != NULL)
        return add_file(validation, second, cluster, first, skip, error);
    if (g_file_test(first, G_FILE_TEST_IS_DIR))
        return add_folder(validation, first, skip, error);
    return add_file(validation, first, NULL, NULL, skip, error);
}

static int
run(Options *options, GError **error)
{
    const int64_t threads =
        options_int64(options, "threads", 1, MAX_THREADS, g_get_num_processors());
    g_autoptr(Profile) cluster = NULL;
    g_auto(Validation) validation = {0};

    if (!options_finish(options, error))
        return -1;
    if (options_n_arguments(options) == 2) {
        cluster = request_load_cluster(options_argument(options, 0), error);
        if (cluster == NULL)
            return -1;
    }
    validation_init(&validation);
    if (!read_input(&validation, cluster, options, error))
        return -1;
    for (guint i = 0; i < validation.bad_rows->len; i++)
        output_note("skipped: %s", (const char *)validation.bad_rows->pdata[i]);
    validation.predictions = validation_predict_all(validation.cases, threads);
    return write_products(&validation, cluster == NULL ? NULL : options_argument(options, 0),
                          options, error)
               ? 0
               : -1;
}

const Command cmd_validate = {
    .name = "validate",
    .usage = "CLUSTER MEASURED.csv [options], or validate FOLDER|MEASURED.csv",
    .summary = "how far predictions are from measured runs",
    .details = "  degas validate dgx-a100-80g measured.csv --json\n"
               "  degas validate measurements/\n"
               "\n"
               "MEASURED.csv has a row for each run; docs/formats.md has its columns.  Without\n"
               "CLUSTER each row is predicted for the built-in cluster of its devices.\n",
    .options = {options_table},
    .min_arguments = 1,
    .max_arguments = 2,
    .run = run,
};
