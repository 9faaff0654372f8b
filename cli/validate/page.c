/* The page docs/validation.md; declared in cli/validate/report.h. */
#include "cli/validate/report.h"

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "cli/request/output.h"
#include "cli/draw/plot.h"
#include "cli/validate/regret.h"

#define MAX_COLUMNS 3
#define BYTES_PER_GIB 1073741824.0

static const char *const quantity_titles[] = {"iteration time", "peak memory", "out of memory"};

/* --- cells --- */

/* Bold where the goal is reached. */
static void
append_result(GString *text, double fraction, bool reached)
{
    g_string_append_printf(text, reached ? " **%s** |" : " %s |", output_percent(fraction).text);
}

static void
append_goal(GString *text, double goal)
{
    if (goal > 0.0)
        append_result(text, goal, false);
    else
        g_string_append(text, " |");
}

static bool
below(double error, double goal)
{
    return goal > 0.0 && error <= goal;
}

/* --- the table --- */

static void
append_oom(GString *text, const ValidationSet *set, const ValidationScore *score,
           const CalibrationFolds *folds)
{
    g_string_append_printf(text, " %zu | precision %s, recall %s | | |", score->oom.n,
                           output_percent(score->oom.precision).text,
                           output_percent(score->oom.recall).text);
    append_goal(text, set->raw_goal);
    if (folds != NULL) {
        g_string_append_printf(text, " %s, %s |", output_percent(folds->precision).text,
                               output_percent(folds->recall).text);
    } else {
        g_string_append(text, " |");
    }
    g_string_append(text, " |");
    append_goal(text, set->calibrated_goal);
}

static void
append_errors(GString *text, const ValidationSet *set, const ValidationErrors *raw,
              const CalibrationFolds *folds)
{
    g_string_append_printf(text, " %zu |", raw->n);
    append_result(text, raw->mape, below(raw->mape, set->raw_goal));
    append_result(text, raw->bias, false);
    append_result(text, raw->worst, false);
    append_goal(text, set->raw_goal);
    if (folds != NULL)
        append_result(text, folds->held_out.mape,
                      below(folds->held_out.mape, set->calibrated_goal));
    else
        g_string_append(text, " |");
    if (folds != NULL)
        append_result(text, folds->alike.mape, below(folds->alike.mape, set->calibrated_goal));
    else
        g_string_append(text, " |");
    append_goal(text, set->calibrated_goal);
}

static void
append_table(GString *text, const Validation *validation)
{
    g_string_append(text,
                    "| rows of | of | rows | MAPE | bias | worst | goal | calibrated | and alike "
                    "| goal | published by others |\n"
                    "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|\n");
    for (const ValidationSet *set = validation_conventions()->sets; set->name != NULL; set++) {
        const CalibrationFolds *folds = validation_folds(validation, set);
        ValidationScore score;

        if (!validation_score_set(validation, set, &score))
            continue;
        g_string_append_printf(text, "| %s | %s |", set->name, quantity_titles[set->quantity]);
        if (set->quantity == VALIDATION_OOM)
            append_oom(text, set, &score, folds);
        else
            append_errors(text, set, &score.errors, folds);
        g_string_append_printf(text, " %s |\n", set->others == NULL ? "" : set->others);
    }
}

/* What choosing by prediction costs, where there was a choice. */
static void
append_regrets(GString *text, const Validation *validation)
{
    g_string_append_printf(
        text,
        "## The choice\n\nJobs (one model, layers, devices, batch, sequence and number format) "
        "that "
        "were measured in at least %d ways:\nregret is the measured time of the way that is "
        "predicted fastest over the best measured, less 1; wanted: mean\nat most 1.5 %%, worst at "
        "most 10 %%. Correlation: Spearman's, of predicted and measured times, mean over "
        "jobs.\n\n| rows of | jobs | rows | mean regret | worst | rank correlation |\n"
        "|---|---:|---:|---:|---:|---:|\n",
        REGRET_MIN_ROWS);
    for (const ValidationSet *set = validation_conventions()->sets; set->name != NULL; set++) {
        const ValidationRegret regret =
            validation_regret(validation->runs.cases, validation->predictions, set);

        if (set->quantity != VALIDATION_TIME || regret.n_jobs == 0)
            continue;
        g_string_append_printf(text, "| %s | %zu | %zu |", set->name, regret.n_jobs, regret.n_rows);
        append_result(text, regret.mean, regret.mean <= 0.015);
        append_result(text, regret.worst, regret.worst <= 0.10);
        if (isfinite(regret.correlation))
            g_string_append_printf(text, " %.2f", regret.correlation);
        g_string_append(text, " |\n");
    }
    g_string_append_c(text, '\n');
}

/* The rows of each source: how many there are, are predicted, and why others are not. */
static void
append_reading(GString *text, const Validation *validation)
{
    const GPtrArray *cases = validation->runs.cases;

    g_string_append(text,
                    "## Which rows are read\n\nEvery row of every table, by its source; errors "
                    "are those of iteration times, raw.\n\n"
                    "| source | rows | read | MAPE | worst | refused |\n"
                    "|---|---:|---:|---:|---:|---|\n");
    for (guint first = 0, end; first < cases->len; first = end) {
        const char *source = ((const ValidationCase *)cases->pdata[first])->row->source;
        g_autoptr(GPtrArray) reasons = g_ptr_array_new();
        g_autoptr(GArray) counts = g_array_new(FALSE, TRUE, sizeof(guint));
        g_autoptr(GArray) errors = g_array_new(FALSE, FALSE, sizeof(double));
        guint n_read = 0;

        for (end = first; end < cases->len; end++) {
            const ValidationCase *one = cases->pdata[end];
            const double error =
                validation_error_of(VALIDATION_TIME, one->row, &validation->predictions[end]);
            guint at;

            if (strcmp(one->row->source, source) != 0)
                break;
            n_read += one->job != NULL;
            if (isfinite(error))
                g_array_append_val(errors, error);
            if (one->why_not == NULL)
                continue;
            if (!g_ptr_array_find_with_equal_func(reasons, one->why_not, g_str_equal, &at)) {
                at = reasons->len;
                g_ptr_array_add(reasons, one->why_not);
                g_array_set_size(counts, reasons->len);
            }
            g_array_index(counts, guint, at)++;
        }
        const ValidationErrors of =
            validation_errors(&g_array_index(errors, double, 0), errors->len);
        g_autofree char *shown = text_markdown(source, 80);
        g_string_append_printf(text, "| %s | %u | %u |", shown, end - first, n_read);
        if (of.n > 0) {
            append_result(text, of.mape, false);
            append_result(text, of.worst, false);
        } else {
            g_string_append(text, " | |");
        }
        for (guint i = 0; i < reasons->len; i++) {
            g_autofree char *reason = text_markdown(reasons->pdata[i], 300);
            g_string_append_printf(text, "%s%u: %s", i == 0 ? " " : "; ",
                                   g_array_index(counts, guint, i), reason);
        }
        g_string_append(text, " |\n");
    }
    g_string_append_c(text, '\n');
}

/* --- pictures --- */

/* (owned) "vtrain_multi, tp <= 8" of time -> "validation-vtrain-multi-tp-8-time". */
static char *
slug_of(const ValidationSet *set)
{
    GString *slug = g_string_new("validation-");
    g_autofree char *words =
        g_strdup_printf("%s %s", set->name, validation_quantity_names[set->quantity]);

    for (const char *p = words; *p != 0; p++) {
        if (g_ascii_isalnum(*p))
            g_string_append_c(slug, *p);
        else if (slug->str[slug->len - 1] != '-')
            g_string_append_c(slug, '-');
    }
    return g_string_free(slug, FALSE);
}

/* The held-out error of a case, NaN if it has none. */
static double
held_out_error(const CalibrationFolds *folds, const ValidationCase *one)
{
    for (guint i = 0; folds != NULL && i < folds->cases->len; i++) {
        if (folds->cases->pdata[i] == one)
            return folds->errors[i];
    }
    return NAN;
}

static GArray *
points_of(const Validation *validation, const ValidationSet *set, double per_unit)
{
    const CalibrationFolds *folds = validation_folds(validation, set);
    GArray *points = g_array_new(FALSE, FALSE, sizeof(PlotScatterPoint));

    for (guint i = 0; i < validation->runs.cases->len; i++) {
        const ValidationCase *one = validation->runs.cases->pdata[i];
        const double error = validation_error_of((ValidationQuantity)set->quantity, one->row,
                                                 &validation->predictions[i]);
        const double measured =
            (set->quantity == VALIDATION_TIME ? one->row->iteration_s : one->row->memory_bytes) *
            per_unit;
        const PlotScatterPoint point = {
            measured,
            measured * (1.0 + error),
            measured * (1.0 + held_out_error(folds, one)),
        };

        if (validation_set_has(set, one->row) && isfinite(error))
            g_array_append_val(points, point);
    }
    return points;
}

static bool
draw_to(const Validation *validation, const ValidationSet *set, const ValidationScore *score,
        const char *path, GError **error)
{
    const bool is_time = set->quantity == VALIDATION_TIME;
    const CalibrationFolds *folds = validation_folds(validation, set);
    g_autoptr(GArray) points = points_of(validation, set, is_time ? 1.0 : 1.0 / BYTES_PER_GIB);
    g_autofree char *raw_name =
        g_strdup_printf("raw, mean error %s", output_percent(score->errors.mape).text);
    g_autofree char *fitted_name = folds == NULL
                                       ? NULL
                                       : g_strdup_printf("calibrated on other rows, %s",
                                                         output_percent(folds->held_out.mape).text);
    g_autofree char *subtitle = g_strdup_printf("%s of %zu measured runs; line: equal, band: 10 %%",
                                                quantity_titles[set->quantity], score->errors.n);
    const PlotScatter scatter = {points,   set->name,  subtitle, is_time ? "s" : "GiB",
                                 raw_name, fitted_name};

    return plot_scatter(&scatter, path, error);
}

static bool
draw(const Validation *validation, const ValidationSet *set, const ValidationScore *score,
     const char *folder, const char *slug, GError **error)
{
    g_autofree char *path = g_strdup_printf("%s/pictures/%s.svg", folder, slug);

    return draw_to(validation, set, score, path, error);
}

/* --- one page of HTML --- */

typedef struct {
    const Validation *validation;
    const ValidationSet *set;
    ValidationScore score;
} Scored;

static bool
draw_scored(const void *content, const char *path, GError **error)
{
    const Scored *one = content;

    return draw_to(one->validation, one->set, &one->score, path, error);
}

/* Sets of all rows, for those of one's own. */
static const ValidationSet all_rows[] = {
    {.name = "all rows", .quantity = VALIDATION_TIME},
    {.name = "all rows", .quantity = VALIDATION_MEMORY},
};

static bool
add_scatter(HtmlPage *page, const Validation *validation, const ValidationSet *set,
            const ValidationScore *score, GError **error)
{
    const Scored one = {validation, set, *score};
    g_autofree char *alt =
        g_strdup_printf("%s of %s, predicted over measured: %zu rows, mean error %s",
                        quantity_titles[set->quantity], set->name, score->errors.n,
                        output_percent(score->errors.mape).text);

    return score->errors.n == 0 || page_picture(page, alt, draw_scored, &one, error);
}

bool
validation_html_write(const Validation *validation, const char *title, const char *footer,
                      const char *path, GError **error)
{
    g_autoptr(HtmlPage) page = page_new(title);
    bool any = false;

    for (size_t i = 0; i < G_N_ELEMENTS(all_rows); i++) {
        const ValidationSet *set = &all_rows[i];
        const ValidationScore score =
            validation_score(validation->runs.cases, validation->predictions, NULL,
                             (ValidationQuantity)set->quantity);
        g_autofree char *name = g_strdup_printf(
            "mean error of %s, %zu rows", validation_quantity_names[set->quantity], score.errors.n);

        if (score.errors.n == 0)
            continue;
        page_card(page, name, output_percent(score.errors.mape).text);
        page_card(page, "bias", output_percent(score.errors.bias).text);
    }
    page_about(page, "Predictions beside measured runs; errors are predicted / measured - 1.");
    page_heading(page, "Errors", NULL);
    page_kept(page);
    for (const ValidationSet *set = validation_conventions()->sets; set->name != NULL; set++) {
        ValidationScore score;

        if (set->quantity == VALIDATION_OOM || !validation_score_set(validation, set, &score))
            continue;
        any = true;
        if (!add_scatter(page, validation, set, &score, error))
            return false;
    }
    for (size_t i = 0; i < G_N_ELEMENTS(all_rows) && !any; i++) {
        const ValidationScore score =
            validation_score(validation->runs.cases, validation->predictions, NULL,
                             (ValidationQuantity)all_rows[i].quantity);

        if (!add_scatter(page, validation, &all_rows[i], &score, error))
            return false;
    }
    return page_write(page, footer, path, error);
}

/* --- what the errors go with --- */

#define MIN_EXPLAINED 0.10
#define MAX_GROUPS 12

/* Columns and notes of the rows, one of which may go with the errors: a column that cuts rows into
 * groups explains the share of the errors' variance that lies between the groups' means, less what
 * as many groups would explain by chance (adjusted R^2). */
static const char *const column_names[] = {
    "tp",     "pp",     "dp",       "cp",        "ep", "micro_batch", "num_microbatches",
    "hidden", "seq",    "schedule", "recompute", "sp", "kernel",      "transformer-impl",
    "gpu",    "source", "model",
};

typedef struct {
    char *value; /* (owned) of the column */
    size_t n;
    double mape, bias; /* of the group's errors */
} Group;

typedef struct {
    const char *column;
    double explained; /* 0 to 1 */
    GArray *groups;   /* (owned) of Group, in order of appearance */
} Column;

/* (owned, nullable) the row's value; NULL: it states none. */
static char *
value_of(const MeasuredRow *row, const char *name)
{
    char *value = measured_text(row, name);

    return value == NULL && strcmp(name, "kernel") == 0
               ? measured_note(row->notes, "attention-backend")
               : value;
}

static void
column_clear(void *data)
{
    Column *column = data;

    g_array_unref(column->groups);
}

static void
group_clear(void *data)
{
    g_free(((Group *)data)->value);
}

static Group *
group_of(GArray *groups, const char *value)
{
    for (guint i = 0; i < groups->len; i++) {
        Group *known = &g_array_index(groups, Group, i);

        if (strcmp(known->value, value) == 0)
            return known;
    }
    Group group = {.value = g_strdup(value)};
    g_array_append_val(groups, group);
    return &g_array_index(groups, Group, groups->len - 1);
}

/* Sums first, means at the end. */
static Column
cut_by(const char *name, const GPtrArray *cases, const double *errors)
{
    Column result = {name, 0.0, g_array_new(FALSE, TRUE, sizeof(Group))};
    double n = 0.0, sum = 0.0, squares = 0.0, within, spread;

    g_array_set_clear_func(result.groups, group_clear);
    for (guint i = 0; i < cases->len; i++) {
        const ValidationCase *one = cases->pdata[i];

        if (!isfinite(errors[i]))
            continue;
        g_autofree char *value = value_of(one->row, name);
        Group *group = group_of(result.groups, value == NULL ? "not stated" : value);
        group->n++;
        group->mape += fabs(errors[i]);
        group->bias += errors[i];
        n += 1.0;
        sum += errors[i];
        squares += errors[i] * errors[i];
    }
    within = squares;
    for (guint g = 0; g < result.groups->len; g++) {
        Group *group = &g_array_index(result.groups, Group, g);

        group->mape /= (double)group->n;
        group->bias /= (double)group->n;
        within -= (double)group->n * group->bias * group->bias;
    }
    spread = squares - sum * sum / n;
    if (result.groups->len >= 2 && n > (double)result.groups->len && spread > 0.0)
        result.explained = 1.0 - within / spread * (n - 1.0) / (n - (double)result.groups->len);
    return result;
}

static int
compare_explained(const void *a, const void *b)
{
    const double x = ((const Column *)a)->explained;
    const double y = ((const Column *)b)->explained;

    return (x < y) - (x > y);
}

/* Whether two columns make the same groups of the same sizes, and so say the same. */
static bool
same_cut(const Column *a, const Column *b)
{
    if (a->groups->len != b->groups->len)
        return false;
    for (guint i = 0; i < a->groups->len; i++) {
        const Group *x = &g_array_index(a->groups, Group, i);
        const Group *y = &g_array_index(b->groups, Group, i);

        if (x->n != y->n || x->bias != y->bias)
            return false;
    }
    return true;
}

/*
 * @cases, @errors  n rows and their signed errors (NaN: left out).
 * Returns: (owned) GArray of Column: at most @max_columns that explain a tenth or more, the best
 * first; of columns that cut the rows in the same way only the first.
 */
static GArray *
residual_columns(const GPtrArray *cases, const double *errors, guint max_columns)
{
    GArray *result = g_array_new(FALSE, FALSE, sizeof(Column));

    g_array_set_clear_func(result, column_clear);
    for (size_t c = 0; c < G_N_ELEMENTS(column_names); c++) {
        Column column = cut_by(column_names[c], cases, errors);
        bool wanted = column.explained >= MIN_EXPLAINED && column.groups->len <= MAX_GROUPS;

        for (guint i = 0; i < result->len && wanted; i++)
            wanted = !same_cut(&g_array_index(result, Column, i), &column);
        if (wanted)
            g_array_append_val(result, column);
        else
            column_clear(&column);
    }
    /* qsort need not be stable: equal shares are told apart by their place before. */
    g_array_sort(result, compare_explained);
    if (result->len > max_columns)
        g_array_set_size(result, max_columns);
    return result;
}

/* The errors to explain: held out if there are such, else raw. */
static void
append_residuals(GString *text, const Validation *validation, const ValidationSet *set)
{
    const CalibrationFolds *folds = validation_folds(validation, set);
    g_autoptr(GPtrArray) cases = g_ptr_array_new();
    g_autofree double *errors = g_new0(double, MAX(1, validation->runs.cases->len));

    for (guint i = 0; i < validation->runs.cases->len; i++) {
        const ValidationCase *one = validation->runs.cases->pdata[i];

        if (!validation_set_has(set, one->row))
            continue;
        errors[cases->len] = folds != NULL
                                 ? held_out_error(folds, one)
                                 : validation_error_of((ValidationQuantity)set->quantity, one->row,
                                                       &validation->predictions[i]);
        g_ptr_array_add(cases, (void *)one);
    }
    g_autoptr(GArray) columns = residual_columns(cases, errors, MAX_COLUMNS);
    if (columns->len == 0) {
        g_string_append(text, "No column of the rows explains a tenth of what is left.\n\n");
        return;
    }
    g_string_append_printf(text,
                           "What is left%s, by the columns that explain most of it:\n\n"
                           "| column | explains | value: rows, mean error, bias |\n"
                           "|---|---:|---|\n",
                           folds != NULL ? " after calibration" : "");
    for (guint c = 0; c < columns->len; c++) {
        const Column *column = &g_array_index(columns, Column, c);
        g_string_append_printf(text, "| %s | %s |", column->column,
                               output_percent(column->explained).text);
        for (guint g = 0; g < column->groups->len; g++) {
            const Group *group = &g_array_index(column->groups, Group, g);
            g_autofree char *value = text_markdown(group->value, 80);
            g_string_append_printf(text, "%s %s: %zu, %s, %s", g == 0 ? "" : ";", value, group->n,
                                   output_percent(group->mape).text,
                                   output_percent(group->bias).text);
        }
        g_string_append(text, " |\n");
    }
    g_string_append_c(text, '\n');
}

typedef struct {
    const char *id; /* (borrowed) */
    double error;
} RowError;

/* The largest error first; of equal ones in the order of ids. */
static int
compare_row_errors(const void *a, const void *b)
{
    const RowError *x = a, *y = b;
    const double more = fabs(y->error) - fabs(x->error);

    return more != 0.0 ? (more > 0.0) - (more < 0.0) : strcmp(x->id, y->id);
}

/* Rows that are named, at most. */
#define MAX_NAMED 4

/* In how many rows half of the sum of raw errors is, and the largest of them. */
static void
append_largest(GString *text, const Validation *validation, const ValidationSet *set)
{
    g_autoptr(GArray) rows = g_array_new(FALSE, FALSE, sizeof(RowError));
    double sum = 0.0, half = 0.0;
    guint n = 0;

    for (guint i = 0; i < validation->runs.cases->len; i++) {
        const ValidationCase *one = validation->runs.cases->pdata[i];
        if (!validation_set_has(set, one->row))
            continue;
        const RowError row = {one->row->id,
                              validation_error_of((ValidationQuantity)set->quantity, one->row,
                                                  &validation->predictions[i])};
        if (isnan(row.error))
            continue;
        sum += fabs(row.error);
        g_array_append_val(rows, row);
    }
    g_array_sort(rows, compare_row_errors);
    while (n < rows->len && half < sum / 2.0)
        half += fabs(g_array_index(rows, RowError, n++).error);
    if (n == 0)
        return;
    g_string_append_printf(text, "Half of the error is in %u of %u rows; the largest: ", n,
                           rows->len);
    for (guint i = 0; i < MIN(n, MAX_NAMED); i++) {
        const RowError *row = &g_array_index(rows, RowError, i);
        g_autofree char *id = text_markdown(row->id, 80);
        g_string_append_printf(text, "%s%s %s", i == 0 ? "" : ", ", id,
                               output_percent(row->error).text);
    }
    g_string_append(text, ".\n\n");
}

static bool
is_missed(const ValidationSet *set, const ValidationScore *score, const CalibrationFolds *folds)
{
    if (set->quantity == VALIDATION_OOM || set->raw_goal == 0.0)
        return false;
    return !below(score->errors.mape, set->raw_goal) ||
           (folds != NULL && !below(folds->held_out.mape, set->calibrated_goal));
}

/* --- the page --- */

static const char introduction[] =
    "# Predicted beside measured\n"
    "\n"
    "`make validation-page` makes this page: `degas validate FOLDER --skip-bad-rows --folds 5 "
    "--best "
    "--page\n"
    "docs/validation.md`. It reads tables of runs that others measured and published "
    "(docs/formats.md\n"
    "has their columns), predicts each with the built-in profile of its devices and the "
    "conventions of\n"
    "its source (`cli/validate/sources.json`), and compares.\n"
    "\n"
    "- err = (predicted - measured) / measured; MAPE is the mean of its size, bias its mean, worst "
    "its\n"
    "  largest size. Raw: the built-in profile as it is.\n"
    "- Calibrated: the profile's named parameters (`profiles/parameter.h`) fitted to four fifths "
    "of the\n"
    "  rows and scored on the fifth that the fit has not seen, five times, so that each row is "
    "scored\n"
    "  once; clusters have parameters of their own. A row's fifth follows from a hash of its id.\n"
    "- And alike: of what that leaves, the part that measured rows like the one held out had too "
    "is "
    "taken\n"
    "  off (docs/cost-model.md 4); a profile holds the parameters alone.\n"
    "- Bold: the goal is reached. Where it is not, the tables below show which columns of the rows "
    "go\n"
    "  with what is left. Published by others: their errors on the same rows, or on a part of "
    "them.\n"
    "- No parameter stands for a row, a paper or a configuration.\n"
    "\n";

bool
validation_page_write(const Validation *validation, const char *path, GError **error)
{
    g_autoptr(GString) text = g_string_new(introduction);
    g_autofree char *folder = g_path_get_dirname(path);

    append_table(text, validation);
    g_string_append_c(text, '\n');
    append_regrets(text, validation);
    if (validation->bests != NULL)
        validation_append_bests(text, validation->bests);
    validation_append_stacks(text, validation);
    append_reading(text, validation);
    for (const ValidationSet *set = validation_conventions()->sets; set->name != NULL; set++) {
        g_autofree char *slug = slug_of(set);
        ValidationScore score;

        if (!validation_score_set(validation, set, &score) || set->quantity == VALIDATION_OOM)
            continue;
        if (!draw(validation, set, &score, folder, slug, error))
            return false;
        g_string_append_printf(text,
                               "## %s, %s\n\n![predicted against measured](pictures/%s.svg)\n\n",
                               set->name, quantity_titles[set->quantity], slug);
        append_largest(text, validation, set);
        if (is_missed(set, &score, validation_folds(validation, set)))
            append_residuals(text, validation, set);
        if (set->left != NULL)
            g_string_append_printf(text, "What is left, and why: %s.\n\n", set->left);
        if (set->lacks != NULL)
            g_string_append_printf(text, "What the rows do not say: %s.\n\n", set->lacks);
    }
    while (text->len > 1 && text->str[text->len - 2] == '\n')
        g_string_truncate(text, text->len - 1);
    return file_write(path, text->str, text->len, error);
}
