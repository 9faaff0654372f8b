/* degas sweep: capacity planning: the best plan at every size, and what the training then takes. */
#include <string.h>

#include "base/file.h"
#include "cli/draw/describe_sweep.h"
#include "cli/draw/plot.h"
#include "cli/request/command.h"
#include "cli/request/output.h"
#include "cli/request/sizes.h"

static const OptionInfo options_table[] = {
    {"csv", "FILE.tsv", "write all columns of all points", .common = true},
    {"plot", "FILE", "draw throughput over devices: .svg, .png, .txt", .common = true},
    PAGE_OPTION,
    {"json", NULL, "print the sweep file on stdout", .common = true},
    {"output", "FILE", "write the sweep to FILE (- is stdout)", .common = true},
    {NULL, NULL, NULL},
};

static bool
has_feasible(const Sweep *sweep)
{
    for (guint i = 0; i < sweep->points->len; i++)
        if (sweep_at(sweep, i)->is_feasible)
            return true;
    return false;
}

/* --- the command --- */

static bool
write_files(const Sweep *sweep, Options *options, GError **error)
{
    const char *path = options_string(options, "output", NULL);
    const char *csv = options_string(options, "csv", NULL);
    const char *plot = options_string(options, "plot", NULL);
    static const char *const products[] = {"csv", "plot", "html", NULL};
    g_autofree char *command_line = options_command_line(options, "sweep", products);
    const PlotOptions how = {.utf8 = true, .columns = 100, .footer = command_line};

    if (path != NULL && !output_json(sweep_write(sweep), path, error))
        return false;
    if (csv != NULL) {
        g_autoptr(Table) table = sweep_table(sweep);
        size_t n_bytes;
        const char *text = table_text(table, &n_bytes);

        if (!file_write(csv, text, n_bytes, error))
            return false;
    }
    return plot == NULL || !has_feasible(sweep) || plot_sweep_throughput(sweep, &how, plot, error);
}

static bool
check_paths(Options *options, GError **error)
{
    static const char *const names[] = {"output", "csv", "plot", "html"};
    int n_stdout = options_has(options, "json");

    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        const char *path = options_string(options, names[i], NULL);

        if (!output_folder_check(path, error))
            return false;
        n_stdout += g_strcmp0(path, "-") == 0;
    }
    if (n_stdout > 1)
        options_fail(options, "output", "stdout can hold one product only");
    const char *plot = options_string(options, "plot", NULL);
    return plot == NULL || plot_path_check(plot, error);
}

static bool
draw_throughput(const void *content, const char *path, GError **error)
{
    const PlotOptions how = {.title = "Throughput and scaling"};

    return plot_sweep_throughput(content, &how, path, error);
}

/* (owned) "days on 64 devices of dgx-h100, the fastest" */
static char *
card_name(const char *what, const SweepPoint *point, const char *why)
{
    return g_strdup_printf("%s on " INT " devices%s%s, %s", what, point->n_devices,
                           point->cluster == NULL ? "" : " of ",
                           point->cluster == NULL ? "" : point->cluster, why);
}

static void
add_cards(HtmlPage *page, const Sweep *sweep)
{
    const SweepPoint *fastest = sweep_best(sweep, offsetof(SweepPoint, effective_tokens_per_s), -1);
    const SweepPoint *quickest = sweep_best(sweep, offsetof(SweepPoint, effective_days), 1);
    const SweepPoint *cheapest = sweep_best(sweep, offsetof(SweepPoint, effective_cost), 1);

    if (quickest != NULL) {
        g_autofree char *name = card_name("days", quickest, "the fastest");
        page_card(page, name, describe_days(quickest->effective_days).text);
    } else if (fastest != NULL) {
        g_autofree char *name = card_name("tokens per second", fastest, "the fastest");
        page_card(page, name, units_format_count(fastest->effective_tokens_per_s).text);
    }
    if (cheapest != NULL) {
        g_autofree char *name =
            card_name(sweep->currency == NULL ? "?" : sweep->currency, cheapest, "the cheapest");
        page_card(page, name, units_format_count(cheapest->effective_cost).text);
        page_card(page, "days at the cheapest", describe_days(cheapest->effective_days).text);
    }
}

static bool
write_page(const Sweep *sweep, Options *options, GError **error)
{
    static const char *const products[] = {"csv", "plot", "html", NULL};
    g_autofree char *footer = options_command_line(options, "sweep", products);
    g_autofree char *title = g_strdup_printf("%s on %s", sweep->model, sweep->cluster);
    g_autoptr(HtmlPage) page = page_new(title);

    add_cards(page, sweep);
    page_kept(page);
    if (has_feasible(sweep) &&
        !page_picture(page, "tokens per second over devices, and how well they scale",
                      draw_throughput, sweep, error))
        return false;
    return page_write(page, footer, options_string(options, "html", NULL), error);
}

/* Prints the sweep on stdout, unless a file goes there, and writes the page of it. */
static bool
print(const Sweep *sweep, Options *options, GError **error)
{
    static const char *const files[] = {"output", "csv", "plot"};
    const bool json = options_has(options, "json"), is_page = options_has(options, "html");
    bool is_silent = json || page_takes_stdout(options);

    for (size_t i = 0; i < G_N_ELEMENTS(files); i++)
        is_silent |= g_strcmp0(options_string(options, files[i], NULL), "-") == 0;
    if (is_page)
        output_keep(is_silent);
    if (!is_silent || is_page)
        describe_sweep(sweep);
    return (!is_page || write_page(sweep, options, error)) &&
           (!json || output_json(sweep_write(sweep), NULL, error));
}

static int
run(Options *options, GError **error)
{
    g_auto(Sizes) sizes = {0};
    g_autoptr(GError) interrupted = NULL;

    if (options_has(options, "top"))
        options_fail(options, "top", "a sweep has one plan of each point");
    if (!check_paths(options, error) || !options_finish(options, error) ||
        !sizes_run(&sizes, options, &interrupted, error))
        return -1;
    const bool has_points = interrupted == NULL || sizes.sweep->points->len > 0;
    if (has_points &&
        (!write_files(sizes.sweep, options, error) || !print(sizes.sweep, options, error)))
        return -1;
    if (interrupted != NULL) {
        g_propagate_error(error, g_steal_pointer(&interrupted));
        return -1;
    }
    return sweep_answer(sizes.sweep) != NULL ? 0 : CMD_ERROR_NO;
}

const Command cmd_sweep = {
    .name = "sweep",
    .usage = "MODEL CLUSTER --gpus LIST --global-batch LIST [--seq-len LIST] [options], "
             "or sweep JOB.yaml [options]",
    .summary = "plan a job at many sizes: throughput, days, cost, goodput",
    .details = "--gpus, --global-batch and --seq-len take lists and ranges, 64,96 or 64..1024:x2\n"
               "or 64..512:+64; every combination is planned.  For a size without a plan the row\n"
               "says why.  After Ctrl-C the sizes that are done are written, if any is.\n"
               "\n"
               "  degas sweep llama3-70b dgx-h100 --gpus 64..1024:x2 --global-batch 1024 \\\n"
               "      --seq-len 8192 --tokens 15T --price 2.5 --plot scaling.svg\n"
               "  degas sweep llama3-70b dgx-h100,dgx-b200 --price 2.5,4 --global-batch 1024 \\\n"
               "      --tokens 15T --within 60d --budget 8M\n"
               "\n"
               "Several clusters are named with commas, their prices, too.  With --within or\n"
               "--budget and no --gpus the numbers of devices grow as needed.\n"
               "\n"
               "Exit status 1: no size has a plan that makes it.  Exit status 9: interrupted.\n",
    .options = {options_table, sizes_options, request_options, request_search_options},
    .headings = {"Output", "The training", "The job and its split", "The search"},
    .min_arguments = 2,
    .max_arguments = 2,
    .common = true,
    .takes_job = true,
    .run = run,
};
