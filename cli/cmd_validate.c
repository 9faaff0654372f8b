/* degas validate: predictions beside measured runs. */

#include "base/file.h"
#include "base/order.h"
#include "cli/draw/page.h"
#include "cli/request/command.h"
#include "cli/request/output.h"
#include "cli/request/subject.h"
#include "cli/validate/accuracy.h"
#include "cli/validate/report.h"

static const OptionInfo options_table[] = {
    PAGE_OPTION,
    {"json", NULL, "print the degas-validation on stdout"},
    {"output", "FILE", "write the degas-validation to FILE"},
    {"requests", "FILE", "write each row as a request, a line for simulate --batch"},
    {"page", "FILE.md",
     "write a page with the results to FILE.md, and its pictures to pictures/ beside it"},
    {"accuracy", "FILE",
     "write the errors by framework and device, from which plan takes error bars"},
    {"skip-bad-rows", NULL, "name rows with mistakes on stderr and use the others"},
    {"folds", "K",
     "also calibrate: cut each set of rows into K parts, fit to all parts but one, and show the "
     "errors on that one"},
    {"best", NULL,
     "also search the best plan of each job whose authors looked for the fastest configuration, "
     "and "
     "show it beside the best measured"},
    {"threads", "N", "use N threads; the result does not depend on it"},
    {NULL, NULL, NULL},
};

/* --- reading --- */

/* Adds all tables of runs in a folder, in the order of their names. */
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
    g_ptr_array_sort(names, order_names);
    for (guint i = 0; i < names->len; i++) {
        g_autoptr(Csv) csv = csv_load(names->pdata[i], NULL, error);

        if (csv == NULL)
            return false;
        if (measured_is_table_of_runs(csv) &&
            !validation_runs_add_table(&validation->runs, names->pdata[i], NULL, NULL, skip, error))
            return false;
    }
    return true;
}

/* --- cross-validation --- */

static void
cross_validate(Validation *validation, int64_t n_folds, int64_t n_threads)
{
    const ValidationConventions *conventions = validation_conventions();

    validation->folds = g_new0(CalibrationFolds, conventions->n_sets);
    for (size_t i = 0; i < conventions->n_sets; i++) {
        const ValidationSet *set = &conventions->sets[i];
        g_auto(Calibration) calibration = {0};

        calibration_init(&calibration, validation->runs.cases, set,
                         (ValidationQuantity)set->quantity, n_threads);
        if (calibration.cases->len >= 2)
            validation->folds[i] = calibration_cross_validate(&calibration, n_folds);
    }
}

/* --- the command --- */

static bool
write_requests(const Validation *validation, const char *path, GError **error)
{
    g_autoptr(GString) text = g_string_new(NULL);

    for (guint i = 0; i < validation->runs.cases->len; i++) {
        const ValidationCase *one = validation->runs.cases->pdata[i];

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
    const char *page = options_string(options, "page", NULL);
    const char *html = options_string(options, "html", NULL);
    const bool json = options_has(options, "json");

    if (requests != NULL && !write_requests(validation, requests, error))
        return false;
    if (page != NULL && !validation_page_write(validation, page, error))
        return false;
    const char *accuracy = options_string(options, "accuracy", NULL);
    if (accuracy != NULL &&
        !output_json(accuracy_write(validation->runs.cases, validation->predictions), accuracy,
                     error))
        return false;
    if ((path != NULL || json) &&
        !output_json_both(validation_write(validation, cluster_name), path, json, error))
        return false;
    const bool is_silent = json || g_strcmp0(path, "-") == 0 || page_takes_stdout(options);
    if (html != NULL)
        output_keep(is_silent);
    if (!is_silent || html != NULL)
        validation_print(validation);
    if (html == NULL)
        return true;
    static const char *const products[] = {"requests", "page", "html", NULL};
    g_autofree char *footer = options_command_line(options, "validate", products);
    return validation_html_write(validation, "Predicted beside measured", footer, html, error);
}

static bool
read_input(Validation *validation, const Profile *cluster, Options *options, GError **error)
{
    const bool skip = options_has(options, "skip-bad-rows");
    const char *first = options_argument(options, 0), *second = options_argument(options, 1);

    if (second != NULL)
        return validation_runs_add_table(&validation->runs, second, cluster, first, skip, error);
    if (g_file_test(first, G_FILE_TEST_IS_DIR))
        return add_folder(validation, first, skip, error);
    return validation_runs_add_table(&validation->runs, first, NULL, NULL, skip, error);
}

static int
run(Options *options, GError **error)
{
    const int64_t threads = options_threads(options);
    const int64_t n_folds = options_int64(options, "folds", 2, CALIBRATION_MAX_FOLDS, 0);
    g_autoptr(Profile) cluster = NULL;
    g_auto(Validation) validation = {0};

    if (!page_check(options, error))
        return -1;
    if (options_n_arguments(options) == 2) {
        cluster = request_load_cluster(options_argument(options, 0), error);
        if (cluster == NULL)
            return -1;
    }
    validation_init(&validation);
    if (!read_input(&validation, cluster, options, error))
        return -1;
    validation_runs_tell_bad_rows(&validation.runs);
    validation.predictions = validation_predict_all(validation.runs.cases, threads);
    if (n_folds > 0)
        cross_validate(&validation, n_folds, threads);
    if (options_has(options, "best") &&
        !validation_search_bests(validation.runs.cases, validation.predictions, threads,
                                 &validation.bests, error))
        return -1;
    return write_products(&validation, cluster == NULL ? NULL : options_argument(options, 0),
                          options, error)
               ? 0
               : -1;
}

const Command cmd_validate = {
    .name = "validate",
    .usage = "CLUSTER MEASURED.csv [options], or validate FOLDER|MEASURED.csv",
    .summary = "compare predictions with tables of measured runs",
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
