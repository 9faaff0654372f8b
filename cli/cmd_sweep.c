/* degas sweep: capacity planning: the best plan at every size, and what the training then takes. */
#include <math.h>

#include "base/file.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/draw/describe.h"
#include "cli/draw/plot.h"
#include "cli/request/command.h"
#include "cli/request/output.h"
#include "cli/request/searches.h"
#include "cli/request/sweep.h"
#include "schedule/rank_order.h"

/* Searches take seconds; more than this is a typing error. */
#define MAX_POINTS 100000

static const OptionInfo options_table[] = {
    {"tokens", "N", "tokens of the whole training, e.g. 15T or 300B: adds days, cost, energy",
     .common = true},
    {"mtbf", "TIME",
     "mean time between failures of one device, e.g. 50000h; none: nothing fails; default: 2112 "
     "days"},
    {"checkpoint-bandwidth", "RATE",
     "bandwidth of the whole storage, e.g. 200GB/s; default: 122 MB/s for each device"},
    {"restart-time", "TIME", "time from a failure until training goes on; default: 15min"},
    {"csv", "FILE.tsv", "write all columns of all points", .common = true},
    {"plot", "FILE", "draw throughput over devices: .svg, .png, .txt", .common = true},
    PAGE_OPTION,
    {"json", NULL, "print the sweep file on stdout", .common = true},
    {"output", "FILE", "write the sweep to FILE (- is stdout)", .common = true},
    {NULL, NULL, NULL},
};

/* One axis: a flag of the request that is a series here. */
typedef struct {
    const char *name;
    int64_t max;
    GArray *values; /* (owned, nullable) NULL: not given */
} Axis;

typedef enum {
    AXIS_GPUS,
    AXIS_BATCH,
    AXIS_SEQ_LEN,
    AXIS_N
} AxisIndex;

static void
read_axes(Axis axes[AXIS_N], Options *options)
{
    size_t n = 1;

    for (int i = 0; i < AXIS_N; i++) {
        axes[i].values = options_series(options, axes[i].name, 1, axes[i].max);
        if (axes[i].values != NULL)
            n *= axes[i].values->len;
    }
    if (n > MAX_POINTS)
        options_fail(options, "gpus", "%zu points are more than %d", n, MAX_POINTS);
}

static void
read_reliability(Sweep *sweep, Options *options)
{
    SweepReliability *r = &sweep->reliability;
    const bool is_safe = g_strcmp0(options_string(options, "mtbf", NULL), "none") == 0;

    sweep->tokens = options_quantity(options, "tokens", UNITS_KIND_COUNT, NAN);
    r->device_mtbf_s =
        is_safe ? INFINITY
                : options_quantity(options, "mtbf", UNITS_KIND_S, PLAN_GOODPUT_DEVICE_MTBF_S);
    r->checkpoint_bytes_per_s =
        options_quantity(options, "checkpoint-bandwidth", UNITS_KIND_BYTES_PER_S, 0);
    r->restart_s = options_quantity(options, "restart-time", UNITS_KIND_S, PLAN_GOODPUT_RESTART_S);
    if (!(r->device_mtbf_s > 0))
        options_fail(options, "mtbf", "expected a time above 0, or none");
    if (options_has(options, "checkpoint-bandwidth") && !(r->checkpoint_bytes_per_s > 0))
        options_fail(options, "checkpoint-bandwidth", "expected a rate above 0");
    if (options_has(options, "tokens") && !(sweep->tokens > 0))
        options_fail(options, "tokens", "expected a number above 0");
}

/* Adds the search of every point, in the order of the rows. */
static bool
add_searches(GPtrArray *searches, const ModelArch *arch, const Profile *profile,
             const Axis axes[AXIS_N], Options *options, GError **error)
{
    guint n_points = 1;

    for (int i = 0; i < AXIS_N; i++)
        n_points *= axes[i].values == NULL ? 1 : axes[i].values->len;
    for (guint point = 0; point < n_points; point++) {
        guint rest = point;

        for (int i = AXIS_N - 1; i >= 0; i--) { /* the last axis changes fastest */
            const GArray *values = axes[i].values;

            if (values == NULL)
                continue;
            options_set(options, axes[i].name,
                        output_int64(g_array_index(values, int64_t, rest % values->len)).text);
            rest /= values->len;
        }
        Request *request = request_new(model_arch_copy(arch), profile_copy(profile), options,
                                       REQUEST_SEARCHED, error);
        if (request == NULL)
            return false;
        searches_add(searches, request,
                     (double)model_cluster_n_devices(request->profile->cluster) *
                         (double)request->plan.global_batch);
    }
    return true;
}

static void
describe_request(Sweep *sweep, const Request *request)
{
    const ModelCluster *cluster = request->profile->cluster;

    sweep->model = g_strdup(request->arch->name);
    sweep->cluster = g_strdup(request->profile->name);
    sweep->dtype = g_strdup(dtype_names[request->plan.dtype]);
    sweep->objective = g_strdup(plan_objective_names[request->plan.objective]);
    sweep->price_per_device_hour = cluster->price_per_device_hour;
    sweep->currency = g_strdup(cluster->currency);
    sweep->price_source = g_strdup(cluster->price_source);
}

static bool
add_points(Sweep *sweep, const GPtrArray *searches, GError **error)
{
    for (guint i = 0; i < searches->len; i++) {
        const Search *search = searches_at(searches, i);

        if (!search->is_done)
            continue;
        /* An error of the search is the reason of a row; others end the command. */
        if (search->error != NULL && search->error->domain != PLAN_ERROR) {
            g_propagate_error(error, g_error_copy(search->error));
            return false;
        }
        sweep_add(sweep, search->request, search->plan,
                  search->error == NULL ? NULL : search->error->message);
    }
    return true;
}

static bool
has_feasible(const Sweep *sweep)
{
    for (guint i = 0; i < sweep->points->len; i++)
        if (sweep_at(sweep, i)->is_feasible)
            return true;
    return false;
}

/* --- the sweep for people --- */

/* The optional columns.  A value that is the same in all rows, or unknown in all, has none. */
typedef struct {
    bool has_batch, has_seq_len, has_cost, has_energy, has_days, has_slices, has_failures;
} Columns;

static Columns
find_columns(const Sweep *sweep)
{
    Columns columns = {
        .has_batch = sweep_varies(sweep, offsetof(SweepPoint, global_batch)),
        .has_seq_len = sweep_varies(sweep, offsetof(SweepPoint, seq_len)),
        .has_failures = isfinite(sweep->reliability.device_mtbf_s),
    };

    for (guint i = 0; i < sweep->points->len; i++) {
        const SweepPoint *point = sweep_at(sweep, i);

        columns.has_cost |= isfinite(point->effective_cost);
        columns.has_energy |= isfinite(point->effective_energy_j);
        columns.has_days |= isfinite(point->effective_days);
        columns.has_slices |= point->n_slices > 1;
    }
    return columns;
}

/* A cell for each of the columns, whether it is shown or not. */
static OutputTable *
table_with_header(const Columns *columns, const char *currency)
{
    g_autofree char *cost = g_strdup_printf("cost [%s]", currency == NULL ? "?" : currency);
    const bool has_days = columns->has_days;
    const char *const header[] = {
        "devices",
        columns->has_batch ? "batch" : OUTPUT_HIDDEN,
        columns->has_seq_len ? "tokens" : OUTPUT_HIDDEN,
        "<split",
        "?micro-batch",
        "?<schedule",
        columns->has_slices ? "slices" : OUTPUT_HIDDEN,
        "?<recompute",
        "?zero",
        "iteration",
        "tokens/s",
        "?per device",
        "MFU",
        "memory",
        columns->has_failures ? "goodput" : OUTPUT_HIDDEN,
        has_days ? "days" : OUTPUT_HIDDEN,
        has_days && columns->has_cost ? cost : OUTPUT_HIDDEN,
        has_days && columns->has_energy ? "energy" : OUTPUT_HIDDEN,
        NULL,
    };

    return output_table_new_of(header);
}

/* "3.42 GWh" */
static UnitsText
energy_text(double energy_j)
{
    static const char *const names[] = {"kWh", "MWh", "GWh", "TWh"};
    double value = energy_j / 3.6e6;
    UnitsText text = {"-"};
    size_t i = 0;

    if (!isfinite(energy_j))
        return text;
    for (; value >= 1000 && i + 1 < G_N_ELEMENTS(names); i++)
        value /= 1000;
    g_snprintf(text.text, sizeof text.text, "%s %s", output_number(value).text, names[i]);
    return text;
}

/* Days: tenths below a hundred. */
static UnitsText
days_text(double days)
{
    UnitsText text = {"-"};

    if (isfinite(days))
        g_ascii_formatd(text.text, sizeof text.text,
                        days < 10    ? "%.2f"
                        : days < 100 ? "%.1f"
                                     : "%.0f",
                        days);
    return text;
}

static void
add_row(OutputTable *table, const SweepPoint *point, guint *n_reasons)
{
    /* Files from before there were orders say nothing. */
    const int order = point->rank_order == NULL ? 0 : plan_rank_order_find(point->rank_order);
    PlanDegrees degrees = point->degrees;

    output_table_row(table, output_int64(point->n_devices).text,
                     output_int64(point->global_batch).text, output_int64(point->seq_len).text,
                     NULL);
    if (!point->is_feasible) {
        output_table_printf(table, "no plan [%u]", ++*n_reasons);
        for (int i = 0; i < 14; i++)
            output_table_add(table, "-");
        return;
    }
    degrees.rank_order = MAX(0, order);
    output_table_take(table, describe_split(&degrees));
    output_table_row(
        table, output_int64(point->micro_batch).text, point->schedule,
        output_int64(point->n_slices).text, point->recompute, output_int64(point->zero_stage).text,
        output_seconds(point->iteration_s).text, units_format_count(point->tokens_per_s).text,
        units_format_count(point->tokens_per_s_per_device).text,
        output_percent(point->model_flops_utilization_fraction).text,
        units_format_bytes((double)point->peak_memory_bytes).text,
        output_percent(point->goodput.goodput_fraction).text, days_text(point->effective_days).text,
        isfinite(point->effective_cost) ? units_format_count(point->effective_cost).text : "-",
        energy_text(point->effective_energy_j).text, NULL);
}

static void
print_reasons(const Sweep *sweep)
{
    guint n = 0;

    for (guint i = 0; i < sweep->points->len; i++) {
        const SweepPoint *point = sweep_at(sweep, i);

        if (point->is_feasible)
            continue;
        g_autofree char *reason =
            text_escape(point->reason == NULL ? "unknown" : point->reason, 1000);
        output_printf("%s[%u] %s\n", n == 0 ? "\n" : "", n + 1, reason);
        n++;
    }
}

/* "fastest: 1024 devices, batch 512: 12.3 days" */
static void
print_best(const Sweep *sweep, const Columns *columns, const char *what, size_t offset, int sign,
           UnitsText (*format)(double), const char *unit)
{
    const SweepPoint *best = sweep_best(sweep, offset, sign);

    if (best == NULL)
        return;
    output_printf("%s  " INT " devices", what, best->n_devices);
    if (columns->has_batch)
        output_printf(", batch " INT, best->global_batch);
    if (columns->has_seq_len)
        output_printf(", " INT " tokens", best->seq_len);
    output_printf(": %s %s\n",
                  format(*(const double *)(const void *)((const char *)best + offset)).text,
                  unit == NULL ? "" : unit);
}

static void
print_all_best(const Sweep *sweep, const Columns *columns)
{
    output_text("\n");
    if (!columns->has_days)
        print_best(sweep, columns, "fastest          ",
                   offsetof(SweepPoint, effective_tokens_per_s), -1, units_format_count,
                   "tokens/s after failures");
    else
        print_best(sweep, columns, "fastest          ", offsetof(SweepPoint, effective_days), 1,
                   days_text, "days");
    if (columns->has_days && columns->has_cost)
        print_best(sweep, columns, "cheapest         ", offsetof(SweepPoint, effective_cost), 1,
                   units_format_count, sweep->currency);
    print_best(sweep, columns, "best per device  ", offsetof(SweepPoint, tokens_per_s_per_device),
               -1, units_format_count, "tokens/s");
}

/* Prints what goodput and cost rest on, and the source of values that are defaults. */
static void
print_assumptions(const Sweep *sweep)
{
    const SweepReliability *r = &sweep->reliability;
    const double bytes_per_s = r->checkpoint_bytes_per_s > 0 ? r->checkpoint_bytes_per_s
                                                             : PLAN_GOODPUT_BYTES_PER_S_PER_DEVICE;

    if (!isfinite(r->device_mtbf_s)) {
        output_text("goodput: nothing fails (--mtbf none)\n");
    } else {
        output_printf(
            "goodput: a device fails every %s days%s, restart %s%s,\n"
            "  checkpoints at %s MB/s%s, at Daly's interval\n",
            days_text(r->device_mtbf_s / 86400).text,
            r->device_mtbf_s == PLAN_GOODPUT_DEVICE_MTBF_S ? " (Llama 3, arXiv:2407.21783)" : "",
            units_format_s(r->restart_s).text,
            r->restart_s == PLAN_GOODPUT_RESTART_S ? " (MegaScale, arXiv:2402.15627)" : "",
            output_number(bytes_per_s / 1e6).text,
            r->checkpoint_bytes_per_s > 0 ? "" : " per device (Llama 3: 2 TB/s for 16384)");
    }
    if (sweep->price_per_device_hour > 0) {
        g_autofree char *currency = text_escape(sweep->currency, 20);
        g_autofree char *source = text_escape(
            sweep->price_source == NULL ? "the cluster file" : sweep->price_source, 200);

        output_printf("price: %s %s per device-hour (%s)\n",
                      output_number(sweep->price_per_device_hour).text, currency, source);
    }
}

static void
describe(const Sweep *sweep)
{
    const Columns columns = find_columns(sweep);
    g_autofree char *model = text_escape(sweep->model, 60);
    g_autofree char *cluster = text_escape(sweep->cluster, 60);
    guint n_reasons = 0;

    output_printf("%s on %s, %s", model, cluster, sweep->dtype);
    if (sweep->points->len > 0 && !columns.has_batch)
        output_printf(", batch " INT, sweep_at(sweep, 0)->global_batch);
    if (sweep->points->len > 0 && !columns.has_seq_len)
        output_printf(", sequences of " INT " tokens", sweep_at(sweep, 0)->seq_len);
    if (isfinite(sweep->tokens))
        output_printf(", %s tokens to train", units_format_count(sweep->tokens).text);
    output_text("\n\n");
    g_autoptr(OutputTable) table = table_with_header(&columns, sweep->currency);
    for (guint i = 0; i < sweep->points->len; i++)
        add_row(table, sweep_at(sweep, i), &n_reasons);
    output_table_print(table, 0);
    print_reasons(sweep);
    if (n_reasons < sweep->points->len)
        print_all_best(sweep, &columns);
    output_text("\n");
    print_assumptions(sweep);
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

static void
add_cards(HtmlPage *page, const Sweep *sweep)
{
    const SweepPoint *fastest = sweep_best(sweep, offsetof(SweepPoint, effective_tokens_per_s), -1);
    const SweepPoint *quickest = sweep_best(sweep, offsetof(SweepPoint, effective_days), 1);
    const SweepPoint *cheapest = sweep_best(sweep, offsetof(SweepPoint, effective_cost), 1);

    if (quickest != NULL) {
        g_autofree char *name =
            g_strdup_printf("days on " INT " devices, the fastest", quickest->n_devices);
        page_card(page, name, days_text(quickest->effective_days).text);
    } else if (fastest != NULL) {
        g_autofree char *name = g_strdup_printf("tokens per second on " INT " devices, the fastest",
                                                fastest->n_devices);
        page_card(page, name, units_format_count(fastest->effective_tokens_per_s).text);
    }
    if (cheapest != NULL) {
        g_autofree char *name =
            g_strdup_printf("%s on " INT " devices, the cheapest",
                            sweep->currency == NULL ? "?" : sweep->currency, cheapest->n_devices);
        page_card(page, name, units_format_count(cheapest->effective_cost).text);
        page_card(page, "days at the cheapest", days_text(cheapest->effective_days).text);
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
        describe(sweep);
    return (!is_page || write_page(sweep, options, error)) &&
           (!json || output_json(sweep_write(sweep), NULL, error));
}

static int
sweep_axes(Axis axes[AXIS_N], Options *options, GError **error)
{
    g_autoptr(Sweep) sweep = sweep_new();
    g_autoptr(GPtrArray) searches = searches_new();
    g_autoptr(GError) interrupted = NULL;

    read_axes(axes, options);
    read_reliability(sweep, options);
    if (options_has(options, "top"))
        options_fail(options, "top", "a sweep has one plan of each point");
    if (!check_paths(options, error) || !options_finish(options, error))
        return -1;
    g_autoptr(ModelArch) arch = request_load_model(options_argument(options, 0), error);
    if (arch == NULL)
        return -1;
    g_autoptr(Profile) profile = request_load_cluster(options_argument(options, 1), error);
    if (profile == NULL || !add_searches(searches, arch, profile, axes, options, error))
        return -1;
    describe_request(sweep, searches_at(searches, 0)->request);
    const int64_t threads = searches_at(searches, 0)->request->plan.threads;
    sweep->is_complete = searches_run(searches, threads, "points", &interrupted);
    if (!add_points(sweep, searches, error) || !write_files(sweep, options, error) ||
        !print(sweep, options, error))
        return -1;
    if (interrupted != NULL) {
        g_propagate_error(error, g_steal_pointer(&interrupted));
        return -1;
    }
    return has_feasible(sweep) ? 0 : CMD_ERROR_NO;
}

static int
run(Options *options, GError **error)
{
    Axis axes[AXIS_N] = {
        [AXIS_GPUS] = {"gpus", MODEL_CLUSTER_MAX_DEVICES, NULL},
        [AXIS_BATCH] = {"global-batch", INT64_C(1) << 31, NULL},
        [AXIS_SEQ_LEN] = {"seq-len", MODEL_MAX_SEQ_LEN, NULL},
    };
    const int status = sweep_axes(axes, options, error);

    for (int i = 0; i < AXIS_N; i++)
        g_clear_pointer(&axes[i].values, g_array_unref);
    return status;
}

const Command cmd_sweep = {
    .name = "sweep",
    .usage = "MODEL CLUSTER --gpus LIST --global-batch LIST [--seq-len LIST] [options], "
             "or sweep JOB.yaml [options]",
    .summary = "plan a job at many sizes: throughput, days, cost, goodput",
    .details = "--gpus, --global-batch and --seq-len take lists and ranges, 64,96 or 64..1024:x2\n"
               "or 64..512:+64; every combination is planned.  For a size without a plan the row\n"
               "says why.  After Ctrl-C the sizes that are done are written.\n"
               "\n"
               "  degas sweep llama3-70b dgx-h100 --gpus 64..1024:x2 --global-batch 1024 \\\n"
               "      --seq-len 8192 --tokens 15T --price 2.5 --plot scaling.svg\n"
               "\n"
               "Exit status 1: no size has a plan.  Exit status 9: interrupted.\n",
    .options = {options_table, request_options, request_search_options},
    .headings = {"The training, and output", "The job and its split", "The search"},
    .min_arguments = 2,
    .max_arguments = 2,
    .common = true,
    .takes_job = true,
    .run = run,
};
