/* degas compare: where the difference between iterations comes from, op class by op class. */
#include <math.h>

#include "base/text.h"
#include "cli/draw/page.h"
#include "cli/run/breakdown.h"
#include "cli/request/command.h"
#include "cli/request/output.h"
#include "cli/run/report.h"

/* More columns find no room. */
#define MAX_FILES 12

static const OptionInfo options_table[] = {
    {"tolerance", "SHARE",
     "end with status 1 if an iteration differs from the first by more, e.g. 5%"},
    PAGE_OPTION,
    {"json", NULL, "print a degas-compare object"},
    {"output", "FILE", "write the JSON to FILE"},
    {NULL, NULL, NULL},
};

/* The first file beside another one: what was predicted beside what was measured, or any two. */
typedef struct {
    Breakdown predicted, measured; /* of the same classes */
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

/* Part of the whole difference; the shares of all classes add up to 1.  NaN: there is none. */
static double
class_share(const Comparison *comparison, int class_)
{
    return comparison->difference_s == 0.0
               ? (double)NAN
               : class_difference_s(comparison, class_) / comparison->difference_s;
}

/* Compares what is in @comparison. */
static void
compare(Comparison *comparison)
{
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

/* Whether the first file predicts what the other one measured. */
static bool
is_prediction(const Comparison *comparison)
{
    return !comparison->predicted.measured && comparison->measured.measured;
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
        "Largest cause: %s, %s %s than %s%s%s%s, %s of the difference.",
        breakdown_titles[comparison->largest], output_seconds(fabs(difference_s)).text,
        difference_s > 0.0 ? "more" : "less",
        is_prediction(comparison) ? "predicted" : "in the first", has_relative ? " (by " : "",
        has_relative ? output_percent(fabs(difference_s) / predicted_s).text : "",
        has_relative ? ")" : "", output_percent(class_share(comparison, comparison->largest)).text);
}

/* The members of one comparison. */
static void
write_members(JsonWriter *writer, const Comparison *comparison)
{
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
}

static JsonWriter *
to_json(const Options *options, const Comparison *comparisons, size_t n)
{
    JsonWriter *writer = output_json_new("degas-compare");

    if (n == 1) {
        write_members(writer, comparisons);
    } else {
        json_write_string(writer, "first", options_argument(options, 0));
        json_write_array(writer, "others");
        for (size_t i = 0; i < n; i++) {
            json_write_object(writer, NULL);
            json_write_string(writer, "file", options_argument(options, i + 1));
            write_members(writer, &comparisons[i]);
            json_write_object_end(writer);
        }
        json_write_array_end(writer);
    }
    json_write_object_end(writer);
    return writer;
}

/* Less than a nanosecond is the rounding of sums, not a difference. */
static void
add_row(OutputTable *table, const char *title, double predicted_s, double measured_s, double share)
{
    const double difference_s = measured_s - predicted_s;
    const bool is_equal = fabs(difference_s) < 1e-9;

    output_table_row(table, title, output_seconds(predicted_s).text,
                     output_seconds(measured_s).text, NULL);
    output_table_printf(table, "%s%s", difference_s < 0.0 && !is_equal ? "-" : "+",
                        output_seconds(is_equal ? 0.0 : fabs(difference_s)).text);
    output_table_add(table, output_percent(is_equal && !isnan(share) ? 0.0 : share).text);
}

static void
print_for_people(const Comparison *comparison)
{
    const bool predicts = is_prediction(comparison);
    g_autoptr(OutputTable) table =
        output_table_new(predicts ? "<mean over ranks|predicted|measured|difference|share of it"
                                  : "<mean over ranks|first|second|difference|share of it");
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
    if (isfinite(comparison->error_fraction) && predicts)
        output_printf("The prediction is %s %s.\n",
                      output_percent(fabs(comparison->error_fraction)).text,
                      comparison->error_fraction < 0.0 ? "too short" : "too long");
    else if (isfinite(comparison->error_fraction) && comparison->predicted.iteration_s > 0.0)
        output_printf(
            "The second takes %s %s time.\n",
            output_percent(fabs(comparison->difference_s) / comparison->predicted.iteration_s).text,
            comparison->difference_s < 0.0 ? "less" : "more");
    output_printf("%s\n", explanation);
    print_varied(comparison);
    if (stolen != NULL)
        output_printf("While the second was measured %s.\n", stolen);
}

/* One column for each file, and below how much longer it takes than the first. */
static void
print_side_by_side(const Options *options, const Comparison *comparisons, size_t n)
{
    g_autoptr(GString) columns = g_string_new("<mean over ranks");
    const Breakdown *first = &comparisons[0].predicted;

    g_assert(n > 0);

    for (size_t i = 0; i <= n; i++) {
        g_autofree char *name = g_path_get_basename(options_argument(options, i));
        g_autofree char *safe = text_escape(name, 40);
        g_string_append_printf(columns, "|%s", g_strdelimit(safe, "|", '/'));
    }
    g_autoptr(OutputTable) table = output_table_new(columns->str);
    for (int class_ = 0; class_ < BREAKDOWN_N; class_++) {
        bool any = first->class_s[class_] != 0.0;
        for (size_t i = 0; i < n; i++)
            any |= comparisons[i].measured.class_s[class_] != 0.0;
        if (!any || !breakdown_has(first->level, (BreakdownClass)class_))
            continue;
        output_table_add(table, breakdown_titles[class_]);
        output_table_add(table, output_seconds(first->class_s[class_]).text);
        for (size_t i = 0; i < n; i++)
            output_table_add(table, output_seconds(comparisons[i].measured.class_s[class_]).text);
    }
    output_table_add(table, "iteration");
    output_table_add(table, output_seconds(first->iteration_s).text);
    for (size_t i = 0; i < n; i++)
        output_table_add(table, output_seconds(comparisons[i].measured.iteration_s).text);
    output_table_add(table, "beside the first");
    output_table_add(table, "");
    for (size_t i = 0; i < n; i++)
        output_table_printf(
            table, "%s%s", comparisons[i].difference_s < 0.0 ? "-" : "+",
            output_percent(fabs(comparisons[i].difference_s) / first->iteration_s).text);
    output_table_print(table, 0);
    for (size_t i = 0; i < n; i++) {
        g_autofree char *name = text_escape(options_argument(options, i + 1), 100);
        g_autofree char *explanation = explain(&comparisons[i]);
        output_printf("%s: %s\n", name, explanation);
    }
}

/* --- the page --- */

/* The colours that timelines have for the same. */
static const uint32_t class_rgb[BREAKDOWN_N] = {
    [BREAKDOWN_FORWARD] = 0x0072b2,        [BREAKDOWN_BACKWARD] = 0xe69f00,
    [BREAKDOWN_BACKWARD_INPUT] = 0xd55e00, [BREAKDOWN_BACKWARD_WEIGHT] = 0x009e73,
    [BREAKDOWN_COMPUTE] = 0x0072b2,        [BREAKDOWN_BUSY] = 0x0072b2,
    [BREAKDOWN_OPTIMIZER] = 0xf0e442,      [BREAKDOWN_DP] = 0x882255,
    [BREAKDOWN_MESSAGES] = 0xcc79a7,       [BREAKDOWN_DISPATCH] = 0x999999,
    [BREAKDOWN_WAITING] = 0xc8ccd0,
};

/* One bar for each file, of one scale. */
static void
add_bars(HtmlPage *page, const Options *options, const Comparison *comparisons, size_t n)
{
    PagePart all[BREAKDOWN_N] = {{0}};
    double longest = 0;

    for (size_t i = 0; i <= n; i++)
        longest = MAX(longest, i == 0 ? comparisons[0].predicted.iteration_s
                                      : comparisons[i - 1].measured.iteration_s);
    for (size_t i = 0; i <= n; i++) {
        const Breakdown *one = i == 0 ? &comparisons[0].predicted : &comparisons[i - 1].measured;
        g_autofree char *name = g_path_get_basename(options_argument(options, i));
        g_autofree char *label =
            g_strdup_printf("%s: %s", name, output_seconds(one->iteration_s).text);
        PagePart parts[BREAKDOWN_N];

        for (int c = 0; c < BREAKDOWN_N; c++) {
            parts[c] = (PagePart){breakdown_titles[c], one->class_s[c], class_rgb[c]};
            all[c] =
                (PagePart){breakdown_titles[c], MAX(all[c].value, one->class_s[c]), class_rgb[c]};
        }
        page_bar(page, label, parts, BREAKDOWN_N, longest);
    }
    page_legend(page, all, BREAKDOWN_N);
}

static bool
write_page(const Options *options, const char *path, const Comparison *comparisons, size_t n,
           GError **error)
{
    static const char *const products[] = {"html", NULL};
    g_autofree char *footer = options_command_line(options, "compare", products);
    const bool predicts = is_prediction(comparisons);
    g_autoptr(HtmlPage) page =
        page_new(n == 1 && predicts ? "Predicted beside measured" : "Iterations side by side");

    for (size_t i = 0; i <= n; i++) {
        g_autofree char *name = g_path_get_basename(options_argument(options, i));
        const double s =
            i == 0 ? comparisons[0].predicted.iteration_s : comparisons[i - 1].measured.iteration_s;
        page_card(page,
                  n > 1       ? name
                  : !predicts ? (i == 0 ? "the first" : "the second")
                  : i == 0    ? "predicted"
                              : "measured",
                  output_seconds(s).text);
    }
    if (n == 1 && isfinite(comparisons->error_fraction))
        page_card(page, predicts ? "error of the prediction" : "the first beside the second",
                  output_percent(comparisons->error_fraction).text);
    page_heading(page, "Where the time goes", "mean over ranks");
    add_bars(page, options, comparisons, n);
    page_kept(page);
    return page_write(page, footer, path, error);
}

/* Whether all are within the tolerance; says of each that is not how far it is off. */
static bool
all_within(const Comparison *comparisons, size_t n)
{
    bool within = true;

    for (size_t i = 0; i < n; i++) {
        if (!comparisons[i].within)
            output_note("compare: off by %s, more than the tolerance of %s",
                        output_percent(fabs(comparisons[i].error_fraction)).text,
                        output_percent(comparisons[i].tolerance_fraction).text);
        within &= comparisons[i].within;
    }
    return within;
}

static int
run(Options *options, GError **error)
{
    const char *output = options_string(options, "output", NULL);
    const char *html = options_string(options, "html", NULL);
    const double tolerance =
        options_quantity(options, "tolerance", UNITS_KIND_FRACTION, (double)NAN);
    const size_t n_files = options_n_arguments(options), n = n_files - 1;
    Breakdown breakdowns[MAX_FILES];
    Comparison comparisons[MAX_FILES];

    if (!page_check(options, error))
        return -1;
    for (size_t i = 0; i < n_files; i++)
        if (!breakdown_load(options_argument(options, i), &breakdowns[i], error))
            return -1;
    breakdown_match(breakdowns, n_files);
    for (size_t i = 0; i < n; i++) {
        comparisons[i] = (Comparison){.predicted = breakdowns[0],
                                      .measured = breakdowns[i + 1],
                                      .tolerance_fraction = tolerance};
        compare(&comparisons[i]);
    }
    const bool is_json = options_has(options, "json") || output != NULL;
    const bool is_silent = is_json || page_takes_stdout(options);
    if (is_json && !output_json_both(to_json(options, comparisons, n), output,
                                     options_has(options, "json"), error))
        return -1;
    if (html != NULL)
        output_keep(is_silent);
    if (is_silent && html == NULL)
        ;
    else if (n == 1)
        print_for_people(comparisons);
    else
        print_side_by_side(options, comparisons, n);
    if (html != NULL && !write_page(options, html, comparisons, n, error))
        return -1;
    return all_within(comparisons, n) ? 0 : CMD_ERROR_NO;
}

const Command cmd_compare = {
    .name = "compare",
    .usage = "PREDICTED MEASURED... [--tolerance 5%] [--json]",
    .summary = "explain the difference of iterations, op class by op class",
    .details = "Each file is a trace, a report, a run, or a plan (its prediction). Every instant "
               "of every\n"
               "rank belongs to one class of ops. So the times of the classes add up to the\n"
               "iteration time, and their differences to the difference of the two iterations.\n"
               "More files are put side by side, each compared with the first.\n",
    .options = {options_table},
    .min_arguments = 2,
    .max_arguments = MAX_FILES,
    .common = true,
    .run = run,
};
