/* degas compare: where the difference between two iterations comes from, op class by op class. */
#include <math.h>

#include "cli/run/breakdown.h"
#include "cli/request/command.h"
#include "cli/request/output.h"
#include "cli/run/report.h"

static const OptionInfo options_table[] = {
    {"tolerance", "SHARE", "exit status 1 if the iterations differ by more, e.g. 5%", 0},
    {"json", NULL, "print a degas-compare object", 0},
    {"output", "FILE", "write the JSON to FILE", 'o'},
    {NULL, NULL, NULL, 0},
};

typedef struct {
    Breakdown predicted, measured; /* of one level */
    double difference_s;           /* measured - predicted */
    double error_fraction;         /* predicted / measured - 1; NaN if nothing was measured */
    double tolerance_fraction;     /* NaN: not asked */
    bool within;
    int largest; /* class with the largest share of the difference; -1: there is none */
} Comparison;

/* --- comparing --- */

static double
class_difference_s(const Comparison *comparison, int class_)
{
    return comparison->measured.class_s[class_] - comparison->predicted.class_s[class_];
}

/* Part of the whole difference; the shares of all classes add up to 1.  NaN without a difference.
 */
static double
class_share(const Comparison *comparison, int class_)
{
    return comparison->difference_s == 0.0
               ? (double)NAN
               : class_difference_s(comparison, class_) / comparison->difference_s;
}

static void
compare(Comparison *comparison)
{
    const BreakdownLevel level = MAX(comparison->predicted.level, comparison->measured.level);

    breakdown_coarsen(&comparison->predicted, level);
    breakdown_coarsen(&comparison->measured, level);
    const double predicted_s = comparison->predicted.iteration_s;
    const double measured_s = comparison->measured.iteration_s;
    comparison->difference_s = measured_s - predicted_s;
    comparison->error_fraction = measured_s > 0.0 ? predicted_s / measured_s - 1.0 : (double)NAN;
    comparison->within = isnan(comparison->tolerance_fraction) || measured_s == predicted_s ||
                         fabs(comparison->error_fraction) <= comparison->tolerance_fraction;
    /* The class that moves the iteration most in the direction it moved; the first of equals. */
    comparison->largest = -1;
    double most = 0.0;
    for (int class_ = 0; class_ < BREAKDOWN_N; class_++) {
        if (!(class_share(comparison, class_) > most))
            continue;
        most = class_share(comparison, class_);
        comparison->largest = class_;
    }
}

/* --- telling --- */

/* Prints how much of the difference follows from times that vary, without any other cause. */
static void
print_varied(const Comparison *comparison)
{
    const double *varied_s = comparison->measured.varied_s;
    const double added_s = varied_s[1] - comparison->predicted.iteration_s;

    if (!(varied_s[1] > 0.0))
        return;
    output_printf(
        "Ops that vary as when they were profiled make it %s, %s %s: 80 %% of steps take %s "
        "to %s.\n",
        output_seconds(varied_s[1]).text, output_seconds(fabs(added_s)).text,
        added_s < 0.0 ? "less" : "more", output_seconds(varied_s[0]).text,
        output_seconds(varied_s[2]).text);
}

/* Returns: (owned) one sentence. */
static char *
explain(const Comparison *comparison)
{
    if (comparison->largest < 0)
        return g_strdup("The iterations take the same time.");
    const double difference_s = class_difference_s(comparison, comparison->largest);
    const double predicted_s = comparison->predicted.class_s[comparison->largest];
    const bool has_relative = predicted_s > 0.0;

    return g_strdup_printf(
        "Largest cause: %s, %s %s than predicted%s%s%s, %s of the difference.",
        breakdown_titles[comparison->largest], output_seconds(fabs(difference_s)).text,
        difference_s > 0.0 ? "more" : "less", has_relative ? " (by " : "",
        has_relative ? output_percent(fabs(difference_s) / predicted_s).text : "",
        has_relative ? ")" : "", output_percent(class_share(comparison, comparison->largest)).text);
}

static JsonWriter *
to_json(const Comparison *comparison)
{
    JsonWriter *writer = output_json_new("degas-compare");
    g_autofree char *explanation = explain(comparison);

    json_write_double(writer, "predicted_s", comparison->predicted.iteration_s);
    json_write_double(writer, "measured_s", comparison->measured.iteration_s);
    json_write_double(writer, "difference_s", comparison->difference_s);
    json_write_double(writer, "error_fraction", comparison->error_fraction);
    json_write_array(writer, "classes");
    for (int class_ = 0; class_ < BREAKDOWN_N; class_++) {
        if (!breakdown_has(comparison->measured.level, (BreakdownClass)class_))
            continue;
        json_write_object_inline(writer, NULL);
        json_write_string(writer, "class", breakdown_names[class_]);
        json_write_double(writer, "predicted_s", comparison->predicted.class_s[class_]);
        json_write_double(writer, "measured_s", comparison->measured.class_s[class_]);
        json_write_double(writer, "difference_s", class_difference_s(comparison, class_));
        json_write_double(writer, "share_fraction", class_share(comparison, class_));
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
    json_write_string(writer, "largest",
                      comparison->largest < 0 ? NULL : breakdown_names[comparison->largest]);
    json_write_string(writer, "explanation", explanation);
    if (comparison->measured.varied_s[1] > 0.0) {
        json_write_object_inline(writer, "varied_s");
        for (size_t i = 0; i < REPORT_SHARES_N; i++)
            json_write_double(writer, report_share_names[i], comparison->measured.varied_s[i]);
        json_write_object_end(writer);
    }
    if (comparison->measured.tells_stolen)
        json_write_double(writer, "stolen_fraction", comparison->measured.stolen_fraction);
    if (!isnan(comparison->tolerance_fraction)) {
        json_write_double(writer, "tolerance_fraction", comparison->tolerance_fraction);
        json_write_bool(writer, "within", comparison->within);
    }
    json_write_object_end(writer);
    return writer;
}

static void
add_row(OutputTable *table, const char *title, double predicted_s, double measured_s, double share)
{
    output_table_row(table, title, output_seconds(predicted_s).text,
                     output_seconds(measured_s).text, NULL);
    output_table_printf(table, "%s%s", measured_s < predicted_s ? "-" : "+",
                        output_seconds(fabs(measured_s - predicted_s)).text);
    output_table_add(table, output_percent(share).text);
}

static void
print_for_people(const Comparison *comparison)
{
    g_autoptr(OutputTable) table =
        output_table_new("<mean over ranks|predicted|measured|difference|share of it");
    g_autofree char *explanation = explain(comparison);
    g_autofree char *stolen = run_report_stolen_text(comparison->measured.stolen_fraction);

    /* Classes that are zero on both sides say nothing. */
    for (int class_ = 0; class_ < BREAKDOWN_N; class_++)
        if (breakdown_has(comparison->measured.level, (BreakdownClass)class_) &&
            (comparison->predicted.class_s[class_] != 0.0 ||
             comparison->measured.class_s[class_] != 0.0))
            add_row(table, breakdown_titles[class_], comparison->predicted.class_s[class_],
                    comparison->measured.class_s[class_], class_share(comparison, class_));
    add_row(table, "iteration", comparison->predicted.iteration_s, comparison->measured.iteration_s,
            comparison->difference_s == 0.0 ? (double)NAN : 1.0);
    output_table_print(table, 0);
    if (isfinite(comparison->error_fraction))
        output_printf("The prediction is %s %s.\n",
                      output_percent(fabs(comparison->error_fraction)).text,
                      comparison->error_fraction < 0.0 ? "too short" : "too long");
    output_printf("%s\n", explanation);
    print_varied(comparison);
    if (stolen != NULL)
        output_printf("While the second was measured %s.\n", stolen);
}

static int
run(Options *options, GError **error)
{
    Comparison comparison = {0};
    const char *output = options_string(options, "output", NULL);
    const char *predicted = options_argument(options, 0);
    const char *measured = options_argument(options, 1);

    comparison.tolerance_fraction =
        options_quantity(options, "tolerance", UNITS_KIND_FRACTION, (double)NAN);
    if (!options_finish(options, error) ||
        !breakdown_load(predicted, &comparison.predicted, error) ||
        !breakdown_load(measured, &comparison.measured, error))
        return -1;
    compare(&comparison);
    if (!options_has(options, "json") && output == NULL)
        print_for_people(&comparison);
    else if (!output_json(to_json(&comparison), output, error))
        return -1;
    if (!comparison.within)
        output_note("compare: off by %s, more than the tolerance of %s",
                    output_percent(fabs(comparison.error_fraction)).text,
                    output_percent(comparison.tolerance_fraction).text);
    return comparison.within ? 0 : CMD_ERROR_NO;
}

const Command cmd_compare = {
    .name = "compare",
    .usage = "PREDICTED MEASURED [--tolerance 5%] [--json]",
    .summary = "explain the difference of two iterations, op class by op class",
    .details = "Each file is a trace, a report, a run, or a plan (its prediction). Every instant "
               "of every\n"
               "rank belongs to one class of ops. So the times of the classes add up to the\n"
               "iteration time, and their differences to the difference of the two iterations.\n",
    .options = {options_table},
    .min_arguments = 2,
    .max_arguments = 2,
    .run = run,
};
