/* degas calibrate: a profile whose parameters are fitted to measured runs. */
#include <math.h>
#include <string.h>

#include "cli/draw/plot.h"
#include "cli/validate/calibration.h"
#include "cli/request/command.h"
#include "cli/request/output.h"
#include "cli/request/subject.h"

#define HOLDOUT 0.2
/* The interval of held-out errors: 90 %. */
#define LOW 0.05
#define HIGH 0.95

static const OptionInfo options_table[] = {
    {"output", "FILE", "write the fitted degas-profile to FILE (required)"},
    {"holdout", "FRACTION",
     "hide this share of the rows, 0 to 0.9, from the fit, to tell how good it is; default: 0.2"},
    {"name", "NAME", "give the profile that is written this name; default: the cluster's"},
    PAGE_OPTION,
    {"json", NULL, "print the degas-calibration on stdout"},
    {"skip-bad-rows", NULL, "name rows with mistakes on stderr and use the others"},
    {"threads", "N", "use N threads; the result does not depend on it"},
    {NULL, NULL, NULL},
};

/* The parts of the rows. */
enum {
    HELD_OUT,
    TRAINING,
    N_PARTS
};

/* One quantity's fit and how right it is. */
typedef struct {
    Calibration rows;
    ProfileCalibrated fitted;
    ValidationErrors before[N_PARTS], after[N_PARTS];
    double low, high; /* of the mean held-out error's size */
} Fit;

typedef struct {
    Profile *profile; /* (owned) the prior */
    ValidationRuns runs;
    Fit time, memory;
} Work;

static void
work_clear(Work *work)
{
    calibration_clear(&work->time.rows);
    calibration_clear(&work->memory.rows);
    validation_runs_clear(&work->runs);
    g_clear_pointer(&work->profile, profile_free);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Work, work_clear)

/* --- fits --- */

/* The errors of the rows that are in training, or of the others.  @fit (nullable) gets the interval
 * of the mean of their sizes. */
static ValidationErrors
errors_of(const double *errors, const bool *in_training, bool training, size_t n, Fit *fit)
{
    g_autofree double *some = g_new(double, MAX(1, n));
    size_t n_some = 0;

    for (size_t i = 0; i < n; i++) {
        if (in_training[i] == training)
            some[n_some++] = errors[i];
    }
    const ValidationErrors result = validation_errors(some, n_some);
    if (fit == NULL)
        return result;
    for (size_t i = 0; i < n_some; i++)
        some[i] = fabs(some[i]);
    fit->low = profile_bootstrap_mean(some, n_some, LOW);
    fit->high = profile_bootstrap_mean(some, n_some, HIGH);
    return result;
}

static void
fit_rows(Fit *fit, double holdout)
{
    const size_t n = fit->rows.cases->len;
    g_autofree bool *in_training = g_new(bool, MAX(1, n));
    const ProfilePoint prior[PROFILE_CALIBRATE_MAX_MACHINES] = {0};

    if (n == 0)
        return;
    for (size_t i = 0; i < n; i++) {
        const ValidationCase *one = fit->rows.cases->pdata[i];

        in_training[i] = profile_row_share(one->row->id) >= holdout;
    }
    fit->fitted = calibration_fit(&fit->rows, in_training);
    g_autofree double *before = calibration_errors(&fit->rows, prior);
    g_autofree double *after = calibration_errors(&fit->rows, fit->fitted.point);
    for (int part = 0; part < N_PARTS; part++) {
        fit->before[part] = errors_of(before, in_training, part == TRAINING, n, NULL);
        fit->after[part] =
            errors_of(after, in_training, part == TRAINING, n, part == HELD_OUT ? fit : NULL);
    }
}

/* Memory is learned from peaks; where there are none, from what ran out. */
static void
fit_all(Work *work, double holdout, int64_t n_threads)
{
    calibration_init(&work->time.rows, work->runs.cases, NULL, VALIDATION_TIME, n_threads);
    calibration_init(&work->memory.rows, work->runs.cases, NULL, VALIDATION_MEMORY, n_threads);
    if (work->memory.rows.cases->len == 0) {
        bool any = false;

        for (guint i = 0; i < work->runs.cases->len; i++) {
            const ValidationCase *one = work->runs.cases->pdata[i];

            any |= one->job != NULL && one->row->status == MEASURED_STATUS_OOM;
        }
        if (any) {
            calibration_clear(&work->memory.rows);
            calibration_init(&work->memory.rows, work->runs.cases, NULL, VALIDATION_OOM, n_threads);
        }
    }
    fit_rows(&work->time, holdout);
    fit_rows(&work->memory, holdout);
}

/* The fit that decided parameter @i, or NULL. */
static const Fit *
fit_of(const Work *work, int i)
{
    if (work->time.fitted.fitted[i])
        return &work->time;
    return work->memory.fitted.fitted[i] ? &work->memory : NULL;
}

/* One standard deviation of what is left open about parameter @i, in its unit. */
static double
deviation(const Work *work, const Fit *fit, int i)
{
    const ProfileParameterInfo *info = &profile_parameter_info[i];
    const double unit = info->min > 0.0
                            ? profile_parameter(&work->profile->parameters, i) * info->spread
                            : info->spread;

    return unit * fit->fitted.spread[0][i];
}

/* (owned) the names of the rows' sources. */
static char *
sources_of(const Fit *fit)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new();

    for (guint i = 0; i < fit->rows.cases->len; i++) {
        const ValidationCase *one = fit->rows.cases->pdata[i];

        if (!g_ptr_array_find_with_equal_func(names, one->row->source, g_str_equal, NULL))
            g_ptr_array_add(names, (char *)one->row->source);
    }
    g_ptr_array_add(names, NULL);
    return g_strjoinv(", ", (char **)names->pdata);
}

static Profile *
fitted_profile(const Work *work, const char *name)
{
    Profile *profile = profile_copy(work->profile);
    ProfilePoint point = work->time.fitted.point[0]; /* all rows are of this one machine */

    for (int i = 0; i < PROFILE_PARAMETERS_N; i++) {
        const Fit *fit = fit_of(work, i);

        if (fit == NULL)
            continue;
        point.step[i] = fit->fitted.point[0].step[i];
        g_autofree char *sources = sources_of(fit);
        g_free(profile->parameter_sources[i]);
        profile->parameter_sources[i] =
            g_strdup_printf("fitted to %zu rows of %s; before: %s", fit->after[TRAINING].n, sources,
                            output_number(profile_parameter(&work->profile->parameters, i)).text);
    }
    profile->parameters = profile_point_parameters(&point, &work->profile->parameters);
    if (name != NULL) {
        g_free(profile->name);
        profile->name = g_strdup(name);
    }
    return profile;
}

/* --- what is printed --- */

static void
write_errors(JsonWriter *writer, const char *key, const ValidationErrors *errors)
{
    json_write_object_inline(writer, key);
    json_write_double(writer, "mape_fraction", errors->mape);
    json_write_double(writer, "bias_fraction", errors->bias);
    json_write_double(writer, "worst_fraction", errors->worst);
    json_write_object_end(writer);
}

static void
write_part(JsonWriter *writer, const char *key, const Fit *fit, int part)
{
    json_write_object(writer, key);
    json_write_int64(writer, "rows", (int64_t)fit->after[part].n);
    write_errors(writer, "before", &fit->before[part]);
    write_errors(writer, "after", &fit->after[part]);
}

static void
write_fit(JsonWriter *writer, const char *key, const Fit *fit)
{
    const bool is_known = fit->after[HELD_OUT].n > 0;

    if (fit->rows.cases->len == 0) {
        json_write_null(writer, key);
        return;
    }
    json_write_object(writer, key);
    write_part(writer, "training", fit, TRAINING);
    json_write_object_end(writer);
    write_part(writer, "held_out", fit, HELD_OUT);
    json_write_array_inline(writer, "mape_interval_fraction");
    json_write_double(writer, NULL, is_known ? fit->low : NAN);
    json_write_double(writer, NULL, is_known ? fit->high : NAN);
    json_write_array_end(writer);
    json_write_object_end(writer);
    json_write_object_end(writer);
}

static JsonWriter *
write_calibration(const Work *work, const Profile *profile)
{
    JsonWriter *writer = output_json_new("degas-calibration");

    json_write_string(writer, "cluster", work->profile->name);
    write_fit(writer, "time", &work->time);
    write_fit(writer, "memory", &work->memory);
    json_write_array(writer, "parameters");
    for (int i = 0; i < PROFILE_PARAMETERS_N; i++) {
        const Fit *fit = fit_of(work, i);

        if (fit == NULL)
            continue;
        json_write_object_inline(writer, NULL);
        json_write_string(writer, "name", profile_parameter_info[i].name);
        json_write_double(writer, "prior", profile_parameter(&work->profile->parameters, i));
        json_write_double(writer, "value", profile_parameter(&profile->parameters, i));
        json_write_double(writer, "deviation", deviation(work, fit, i));
        json_write_string(writer, "what", profile_parameter_info[i].what);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
    json_write_object_end(writer);
    return writer;
}

static void
add_errors(OutputTable *table, const char *quantity, const Fit *fit, int part)
{
    const ValidationErrors *after = &fit->after[part];

    if (after->n == 0)
        return;
    output_table_row(table, quantity, part == TRAINING ? "training" : "held out",
                     output_int64((int64_t)after->n).text,
                     output_percent(fit->before[part].mape).text, output_percent(after->mape).text,
                     output_percent(after->bias).text, output_percent(after->worst).text, NULL);
    if (part == HELD_OUT)
        output_table_printf(table, "%s to %s", output_percent(fit->low).text,
                            output_percent(fit->high).text);
    else
        output_table_add(table, "");
}

static void
print_errors(const Work *work)
{
    g_autoptr(OutputTable) table =
        output_table_new("<of|<rows|n|MAPE before|after|bias|worst|MAPE, 90 % interval");

    for (int part = N_PARTS - 1; part >= 0; part--)
        add_errors(table, "time", &work->time, part);
    for (int part = N_PARTS - 1; part >= 0; part--)
        add_errors(table, "memory", &work->memory, part);
    output_table_print(table, 0);
}

/* Why no parameter was moved, where that is so. */
static void
print_kept(const char *quantity, const Fit *fit)
{
    if (fit->rows.cases->len > 0 && !isfinite(fit->fitted.sigma))
        output_printf("%s: no parameter is moved, since fits to a part of these rows predict the "
                      "others no better "
                      "than the profile as it is\n",
                      quantity);
}

static void
print_parameters(const Work *work, const Profile *profile)
{
    g_autoptr(OutputTable) table = output_table_new("<parameter|before|fitted|+-|<what");

    for (int i = 0; i < PROFILE_PARAMETERS_N; i++) {
        const Fit *fit = fit_of(work, i);

        if (fit == NULL)
            continue;
        output_table_row(table, profile_parameter_info[i].name,
                         output_number(profile_parameter(&work->profile->parameters, i)).text,
                         output_number(profile_parameter(&profile->parameters, i)).text,
                         output_number(deviation(work, fit, i)).text,
                         profile_parameter_info[i].what, NULL);
    }
    output_text("\n");
    output_table_print(table, 0);
    print_kept("times", &work->time);
    print_kept("peaks of memory", &work->memory);
}

/* --- the page --- */

typedef struct {
    const Fit *fit;
    bool is_time;
} Scattered;

static bool
draw_scatter(const void *content, const char *path, GError **error)
{
    const Scattered *one = content;
    const Calibration *rows = &one->fit->rows;
    const ProfilePoint prior[PROFILE_CALIBRATE_MAX_MACHINES] = {0};
    g_autofree double *before = calibration_errors(rows, prior);
    g_autofree double *after = calibration_errors(rows, one->fit->fitted.point);
    g_autoptr(GArray) points = g_array_new(FALSE, FALSE, sizeof(PlotScatterPoint));
    g_autofree char *subtitle =
        g_strdup_printf("%s of %u rows, before the fit and after it; line: equal, band: 10 %%",
                        one->is_time ? "iteration time" : "peak memory", rows->cases->len);
    const PlotScatter scatter = {.points = points,
                                 .title = "Predicted beside measured",
                                 .subtitle = subtitle,
                                 .unit = one->is_time ? "s" : "GiB",
                                 .raw_name = "before",
                                 .fitted_name = "fitted"};

    for (guint i = 0; i < rows->cases->len; i++) {
        const MeasuredRow *row = ((const ValidationCase *)rows->cases->pdata[i])->row;
        const double measured =
            one->is_time ? row->iteration_s : row->memory_bytes / (double)(1 << 30);
        const PlotScatterPoint point = {measured, measured * (1.0 + before[i]),
                                        measured * (1.0 + after[i])};

        g_array_append_val(points, point);
    }
    return plot_scatter(&scatter, path, error);
}

/* @fit's errors as cards, on rows that it has not seen where there are some, and its picture. */
static bool
add_fit(HtmlPage *page, const Fit *fit, bool is_time, GError **error)
{
    const int part = fit->after[HELD_OUT].n > 0 ? HELD_OUT : TRAINING;
    const char *what = is_time ? "time" : "memory";
    const Scattered one = {fit, is_time};

    if (fit->after[part].n == 0)
        return true;
    g_autofree char *before = g_strdup_printf("mean error of %s before", what);
    g_autofree char *after =
        g_strdup_printf("fitted, on %zu rows %s", fit->after[part].n,
                        part == HELD_OUT ? "that the fit has not seen" : "of the fit");
    page_card(page, before, output_percent(fit->before[part].mape).text);
    page_card(page, after, output_percent(fit->after[part].mape).text);
    return page_picture(page, "predicted over measured, before the fit and after it", draw_scatter,
                        &one, error);
}

static bool
write_page(const Work *work, const Profile *profile, Options *options, const char *path,
           GError **error)
{
    static const char *const products[] = {"html", NULL};
    g_autofree char *footer = options_command_line(options, "calibrate", products);
    g_autofree char *title = g_strdup_printf("%s, fitted to measured runs", profile->name);
    g_autoptr(HtmlPage) page = page_new(title);

    page_about(page, "Errors are predicted / measured - 1; those of held-out rows are to be "
                     "expected of other rows of the same kind.");
    page_heading(page, "How right it is, and what was fitted", NULL);
    page_kept(page);
    return add_fit(page, &work->time, true, error) && add_fit(page, &work->memory, false, error) &&
           page_write(page, footer, path, error);
}

/* --- the command --- */

/* Adds the cases of one argument: a table, or PLAN.json=RUN.json. */
static bool
add_argument(Work *work, const char *name, const char *argument, bool skip_bad, GError **error)
{
    const char *equals = strchr(argument, '=');

    if (equals == NULL)
        return validation_runs_add_table(&work->runs, argument, work->profile, name, skip_bad,
                                         error);
    g_autofree char *plan_path = g_strndup(argument, (gsize)(equals - argument));
    ValidationCase *one = validation_case_of_run(plan_path, equals + 1, work->profile, error);
    if (one != NULL)
        validation_runs_add_case(&work->runs, one);
    return one != NULL;
}

static bool
read_rows(Work *work, Options *options, GError **error)
{
    const char *name = options_argument(options, 0);
    const bool skip_bad = options_has(options, "skip-bad-rows");
    bool any = false;

    for (size_t i = 1; i < options_n_arguments(options); i++)
        if (!add_argument(work, name, options_argument(options, i), skip_bad, error))
            return false;
    validation_runs_tell_bad_rows(&work->runs);
    for (guint i = 0; i < work->runs.cases->len; i++)
        any |= ((const ValidationCase *)work->runs.cases->pdata[i])->job != NULL;
    if (!any) {
        const ValidationCase *first = work->runs.cases->len > 0 ? work->runs.cases->pdata[0] : NULL;

        g_set_error(error, CMD_ERROR, CMD_ERROR_NO, "no row can be predicted%s%s",
                    first == NULL ? "" : "; the first: ", first == NULL ? "" : first->why_not);
    }
    return any;
}

static int
run(Options *options, GError **error)
{
    const int64_t n_threads = options_threads(options);
    const double holdout = options_quantity(options, "holdout", UNITS_KIND_FRACTION, HOLDOUT);
    const char *path = options_string(options, "output", NULL);
    const char *html = options_string(options, "html", NULL);
    const bool json = options_has(options, "json");
    g_auto(Work) work = {0};

    if (path == NULL)
        options_fail(options, "output", "is missing; it is the profile to write");
    if (holdout > 0.9)
        options_fail(options, "holdout", "expected at most 0.9");
    if (json && g_strcmp0(path, "-") == 0)
        options_fail(options, "json", "the profile goes to stdout already");
    if (!options_finish(options, error) || !output_folder_check(path, error) ||
        !page_check(options, error))
        return -1;
    validation_runs_init(&work.runs);
    work.profile = request_load_cluster(options_argument(options, 0), error);
    if (work.profile == NULL || !read_rows(&work, options, error))
        return -1;
    fit_all(&work, holdout, n_threads);
    g_autoptr(Profile) profile = fitted_profile(&work, options_string(options, "name", NULL));
    JsonWriter *product = json_writer_new();
    profile_write(product, NULL, profile);
    if (!output_json(product, path, error))
        return -1;
    const bool is_silent = json || g_strcmp0(path, "-") == 0 || page_takes_stdout(options);
    if (html != NULL)
        output_keep(is_silent);
    if (!is_silent || html != NULL) {
        print_errors(&work);
        print_parameters(&work, profile);
    }
    if (html != NULL && !write_page(&work, profile, options, html, error))
        return -1;
    return !json || output_json(write_calibration(&work, profile), NULL, error) ? 0 : -1;
}

const Command cmd_calibrate = {
    .name = "calibrate",
    .usage = "CLUSTER MEASURED.csv|PLAN.json=RUN.json... -o FILE [options]",
    .summary = "fit a cluster's parameters to measured runs",
    .details = "  degas calibrate dgx-a100-80g measured.csv -o ours.json\n"
               "  degas calibrate local-cpu a.json=a-run.json b.json=b-run.json -o cpu.json\n"
               "\n"
               "Fits those parameters of the cost model that the measured rows depend on.  Each\n"
               "stays within its bounds and is held near its prior.  The ids of the rows decide\n"
               "which are held out of the fit; the error on these is what to expect of other\n"
               "rows of the same kind.  RUN.json is what degas run --json wrote for PLAN.json.\n",
    .options = {options_table},
    .min_arguments = 2,
    .max_arguments = 64,
    .run = run,
};
