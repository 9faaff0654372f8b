#include "cli/validate/report.h"

#include <math.h>

#include "cli/request/output.h"
#include "cli/validate/regret.h"

#define N_WORST 5

void
validation_clear(Validation *validation)
{
    validation_runs_clear(&validation->runs);
    g_free(validation->predictions);
    for (size_t i = 0; validation->folds != NULL && i < validation_conventions()->n_sets; i++)
        calibration_folds_clear(&validation->folds[i]);
    g_clear_pointer(&validation->folds, g_free);
    g_clear_pointer(&validation->bests, g_array_unref);
}

void
validation_init(Validation *validation)
{
    *validation = (Validation){0};
    validation_runs_init(&validation->runs);
}

bool
validation_score_set(const Validation *validation, const ValidationSet *set, ValidationScore *score)
{
    *score = validation_score(validation->runs.cases, validation->predictions, set,
                              (ValidationQuantity)set->quantity);
    return set->quantity == VALIDATION_OOM ? score->oom.n > 0 : score->errors.n > 0;
}

/* --- JSON --- */

const CalibrationFolds *
validation_folds(const Validation *validation, const ValidationSet *set)
{
    const CalibrationFolds *folds = validation->folds == NULL || set->sources[0] == NULL
                                        ? NULL
                                        : &validation->folds[set - validation_conventions()->sets];

    return folds == NULL || folds->n_folds == 0 ? NULL : folds;
}

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

static void
write_folds(JsonWriter *writer, const ValidationSet *set, const CalibrationFolds *folds)
{
    if (folds == NULL)
        return;
    json_write_object(writer, "calibrated");
    json_write_int64(writer, "folds", folds->n_folds);
    if (set->quantity == VALIDATION_OOM) {
        json_write_double(writer, "precision_fraction", folds->precision);
        json_write_double(writer, "recall_fraction", folds->recall);
    } else {
        write_errors(writer, &folds->held_out);
        json_write_object(writer, "alike");
        write_errors(writer, &folds->alike);
        json_write_object_end(writer);
    }
    json_write_object_end(writer);
}

/* Of times, where some job was measured in several ways. */
static void
write_regret(JsonWriter *writer, const Validation *validation, const ValidationSet *set)
{
    const ValidationRegret regret =
        validation_regret(validation->runs.cases, validation->predictions, set);

    if (set->quantity != VALIDATION_TIME || regret.n_jobs == 0)
        return;
    json_write_object(writer, "regret");
    json_write_int64(writer, "jobs", (int64_t)regret.n_jobs);
    json_write_int64(writer, "rows", (int64_t)regret.n_rows);
    json_write_double(writer, "mean_fraction", regret.mean);
    json_write_double(writer, "worst_fraction", regret.worst);
    json_write_double(writer, "rank_correlation", regret.correlation);
    json_write_object_end(writer);
}

static void
write_sets(JsonWriter *writer, const Validation *validation)
{
    json_write_array(writer, "sets");
    for (const ValidationSet *set = validation_conventions()->sets; set->name != NULL; set++) {
        ValidationScore score;

        if (!validation_score_set(validation, set, &score))
            continue;
        json_write_object(writer, NULL);
        json_write_string(writer, "name", set->name);
        json_write_string(writer, "quantity", validation_quantity_names[set->quantity]);
        if (set->quantity == VALIDATION_OOM)
            write_oom(writer, &score.oom);
        else
            write_errors(writer, &score.errors);
        write_folds(writer, set, validation_folds(validation, set));
        write_regret(writer, validation, set);
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
    for (guint i = 0; i < validation->runs.cases->len; i++) {
        const ValidationCase *one = validation->runs.cases->pdata[i];
        const ValidationPrediction *prediction = &validation->predictions[i];

        json_write_object_inline(writer, NULL);
        json_write_string(writer, "id", one->row->id);
        json_write_string(writer, "source", one->row->source);
        json_write_int64(writer, "line", (int64_t)one->row->line);
        if (one->job == NULL) {
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

JsonWriter *
validation_write(const Validation *validation, const char *cluster_name)
{
    JsonWriter *writer = output_json_new("degas-validation");
    const ValidationScore time =
        validation_score(validation->runs.cases, validation->predictions, NULL, VALIDATION_TIME);
    const ValidationScore memory =
        validation_score(validation->runs.cases, validation->predictions, NULL, VALIDATION_MEMORY);

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
    for (guint i = 0; i < validation->runs.bad_rows->len; i++)
        json_write_string(writer, NULL, validation->runs.bad_rows->pdata[i]);
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
    output_table_row(table, name, quantity, output_int64((int64_t)errors->n).text,
                     output_percent(errors->mape).text, output_percent(errors->bias).text,
                     output_percent(errors->worst).text, NULL);
}

static const char *
goal_text(double goal, UnitsText *text)
{
    *text = output_percent(goal);
    return goal > 0.0 ? text->text : "";
}

static void
add_set(OutputTable *table, const Validation *validation, const ValidationSet *set)
{
    const CalibrationFolds *folds = validation_folds(validation, set);
    const char *quantity = validation_quantity_names[set->quantity];
    UnitsText raw_goal, calibrated_goal;
    ValidationScore score;

    if (!validation_score_set(validation, set, &score))
        return;
    if (set->quantity == VALIDATION_OOM) {
        output_table_row(table, set->name, quantity, output_int64((int64_t)score.oom.n).text, NULL);
        output_table_printf(table, "precision %s", output_percent(score.oom.precision).text);
        output_table_printf(table, "recall %s", output_percent(score.oom.recall).text);
        output_table_add(table, "");
    } else {
        add_errors(table, set->name, quantity, &score.errors);
    }
    output_table_add(table, goal_text(set->raw_goal, &raw_goal));
    if (folds != NULL && set->quantity == VALIDATION_OOM)
        output_table_printf(table, "%s, %s", output_percent(folds->precision).text,
                            output_percent(folds->recall).text);
    else
        output_table_add(table, folds == NULL ? "" : output_percent(folds->held_out.mape).text);
    output_table_add(table, folds == NULL || set->quantity == VALIDATION_OOM
                                ? ""
                                : output_percent(folds->alike.mape).text);
    output_table_row(table, goal_text(set->calibrated_goal, &calibrated_goal),
                     set->others == NULL ? "" : set->others, NULL);
}

/* Why rows have no prediction, in order of appearance. */
static void
print_unpredicted(const Validation *validation)
{
    g_autoptr(GPtrArray) reasons = g_ptr_array_new();

    for (guint i = 0; i < validation->runs.cases->len; i++) {
        const ValidationCase *one = validation->runs.cases->pdata[i];

        if (one->why_not != NULL &&
            !g_ptr_array_find_with_equal_func(reasons, one->why_not, g_str_equal, NULL))
            g_ptr_array_add(reasons, one->why_not);
    }
    for (guint j = 0; j < reasons->len; j++) {
        guint n = 0;

        for (guint i = 0; i < validation->runs.cases->len; i++) {
            const ValidationCase *one = validation->runs.cases->pdata[i];

            n += g_strcmp0(one->why_not, reasons->pdata[j]) == 0;
        }
        output_printf("not predicted: %u, %s\n", n, (const char *)reasons->pdata[j]);
    }
}

static void
print_worst(const Validation *validation)
{
    g_autofree bool *shown = g_new0(bool, MAX(1, validation->runs.cases->len));

    for (int n = 0; n < N_WORST; n++) {
        double worst = 0.0;
        guint at = 0;

        for (guint i = 0; i < validation->runs.cases->len; i++) {
            const ValidationCase *one = validation->runs.cases->pdata[i];
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
        const ValidationCase *one = validation->runs.cases->pdata[at];
        output_printf("%s %s: measured %s, predicted %s\n", n == 0 ? "worst:" : "      ",
                      one->row->id, output_seconds(one->row->iteration_s).text,
                      output_seconds(validation->predictions[at].iteration_s).text);
    }
}

void
validation_print(const Validation *validation)
{
    const bool has_folds = validation->folds != NULL;
    const char *const header[] = {"<set",
                                  "<of",
                                  "rows",
                                  "MAPE",
                                  "bias",
                                  "worst",
                                  "goal",
                                  has_folds ? "calibrated" : OUTPUT_HIDDEN,
                                  has_folds ? "and alike" : OUTPUT_HIDDEN,
                                  has_folds ? "goal" : OUTPUT_HIDDEN,
                                  "<published by others",
                                  NULL};
    g_autoptr(OutputTable) table = output_table_new_of(header);
    const ValidationScore time =
        validation_score(validation->runs.cases, validation->predictions, NULL, VALIDATION_TIME);

    for (const ValidationSet *set = validation_conventions()->sets; set->name != NULL; set++)
        add_set(table, validation, set);
    if (validation->runs.tables->len == 1) {
        add_errors(table, "all rows", "time", &time.errors);
        output_table_row(table, "", "", "", "", "", NULL);
    }
    output_table_print(table, 0);
    output_text("\n");
    if (validation->bests != NULL) {
        g_autoptr(GString) text = g_string_new(NULL);

        validation_append_bests(text, validation->bests);
        output_text(text->str);
    }
    print_unpredicted(validation);
    print_worst(validation);
}
