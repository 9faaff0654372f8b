/* degas sweep: capacity planning: the best plan at every size, and what the training then takes. */
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "cli/request/command.h"
#include "cli/request/output.h"
#include "cli/draw/plot.h"
#include "cli/draw/plot_sweep.h"
#include "cli/request/searches.h"
#include "cli/series.h"
#include "cli/request/sweep.h"

/* Searches take seconds; more than this is a typing error. */
#define MAX_POINTS 100000

static const OptionInfo options_table[] = {
    {"tokens", "N", "tokens of the training, e.g. 15T or 300B: adds days, cost, energy", 0},
    {"mtbf", "TIME", "between failures of one device, e.g. 50000h; none: nothing fails", 0},
    {"checkpoint-bandwidth", "RATE",
     "of the storage, e.g. 200GB/s; default: 122 MB/s for each device", 0},
    {"restart-time", "TIME", "from a failure until training goes on; default: 15min", 0},
    {"csv", "FILE.tsv", "write all columns of all points", 0},
    {"plot", "FILE", "draw throughput over devices: .svg, .png, .txt", 0},
    {"json", NULL, "print the sweep file on stdout", 0},
    {"output", "FILE", "write the sweep to FILE (- is stdout)", 'o'},
    {NULL, NULL, NULL, 0},
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
axes_clear(Axis *axes)
{
    for (int i = 0; i < AXIS_N; i++)
        if (axes[i].values != NULL)
            g_array_unref(axes[i].values);
}

static void
read_axes(Axis axes[AXIS_N], Options *options)
{
    size_t n = 1;

    for (int i = 0; i < AXIS_N; i++) {
        const char *text = options_string(options, axes[i].name, NULL);
        GError *error = NULL;

        if (text == NULL)
            continue;
        axes[i].values = series_parse(text, 1, axes[i].max, &error);
        if (error != NULL)
            options_fail(options, axes[i].name, "%s", error->message);
        else
            n *= axes[i].values->len;
        g_clear_error(&error);
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
        options_fail(options, "mtbf", "expected more than nothing, or none");
    if (options_has(options, "checkpoint-bandwidth") && !(r->checkpoint_bytes_per_s > 0))
        options_fail(options, "checkpoint-bandwidth", "expected more than nothing");
    if (options_has(options, "tokens") && !(sweep->tokens > 0))
        options_fail(options, "tokens", "expected more than nothing");
}

/* Adds the search of every point, in the order of the rows. */
static bool
add_searches(GPtrArray *searches, const ModelArch *arch, const Profile *profile,
             const Axis axes[AXIS_N], Options *options, GError **error)
{
    guint n[AXIS_N], at[AXIS_N];

    for (int i = 0; i < AXIS_N; i++)
        n[i] = axes[i].values == NULL ? 1 : axes[i].values->len;
    for (at[0] = 0; at[0] < n[0]; at[0]++) {
        for (at[1] = 0; at[1] < n[1]; at[1]++) {
            for (at[2] = 0; at[2] < n[2]; at[2]++) {
                for (int i = 0; i < AXIS_N; i++) {
                    char digits[24];

                    if (axes[i].values == NULL)
                        continue;
                    g_snprintf(digits, sizeof digits, "%" G_GINT64_FORMAT,
                               g_array_index(axes[i].values, int64_t, at[i]));
                    options_set(options, axes[i].name, digits);
                }
                Request *request = request_new(model_arch_copy(arch), profile_copy(profile),
                                               options, REQUEST_SEARCHED, error);
                if (request == NULL)
                    return false;
                searches_add(searches, request,
                             (double)model_cluster_n_devices(request->profile->cluster) *
                                 (double)request->plan.global_batch);
            }
        }
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

/* Whether a search failed for a reason that is a row's, not the command's. */
static bool
is_answer(const GError *error)
{
    return error->domain == PLAN_ERROR;
}

static bool
add_points(Sweep *sweep, const GPtrArray *searches, GError **error)
{
    for (guint i = 0; i < searches->len; i++) {
        const Search *search = searches_at(searches, i);

        if (!search->is_done)
            continue;
        if (search->error != NULL && !is_answer(search->error)) {
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
        if (g_array_index(sweep->points, SweepPoint, i).is_feasible)
            return true;
    return false;
}

static bool
write_files(const Sweep *sweep, Options *options, GError **error)
{
    const char *path = options_string(options, "output", NULL);
    const char *csv = options_string(options, "csv", NULL);
    const char *plot = options_string(options, "plot", NULL);
    static const char *const products[] = {"csv", "plot", NULL};
    g_autofree char *command_line = options_command_line(options, "sweep", products);
    const PlotOptions how = {.utf8 = true, .columns = 100, .footer = command_line};

    if (path != NULL) {
        g_autoptr(JsonWriter) writer = sweep_write(sweep);

        if (!output_json(writer, path, error))
            return false;
    }
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
    static const char *const names[] = {"output", "csv", "plot"};
    int n_stdout = options_switch(options, "json");

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

/* What goes to stdout when no file does. */
static bool
print(const Sweep *sweep, Options *options, GError **error)
{
    const bool json = options_switch(options, "json");

    if (json) {
        g_autoptr(JsonWriter) writer = sweep_write(sweep);

        return output_json(writer, NULL, error);
    }
    if (g_strcmp0(options_string(options, "output", NULL), "-") != 0 &&
        g_strcmp0(options_string(options, "csv", NULL), "-") != 0 &&
        g_strcmp0(options_string(options, "plot", NULL), "-") != 0)
        sweep_describe(sweep);
    return true;
}

static int
sweep_axes(Axis axes[AXIS_N], Options *options, GError **error)
{
    g_autoptr(Sweep) sweep = sweep_new();
    g_autoptr(GPtrArray) searches = searches_new();
    g_autoptr(GError) interrupted = NULL;
    g_autoptr(ModelArch) arch = NULL;
    g_autoptr(Profile) profile = NULL;

    read_axes(axes, options);
    read_reliability(sweep, options);
    if (options_has(options, "top"))
        options_fail(options, "top", "a sweep has one plan of each point");
    if (!check_paths(options, error) || !options_finish(options, error))
        return -1;
    arch = request_load_model(options_argument(options, 0), error);
    if (arch == NULL)
        return -1;
    profile = request_load_cluster(options_argument(options, 1), error);
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

    axes_clear(axes);
    return status;
}

const Command cmd_sweep = {
    .name = "sweep",
    .usage = "MODEL CLUSTER --gpus LIST --global-batch LIST [--seq-len LIST] [options]",
    .summary = "plan a job at many sizes: throughput, days, cost, goodput under failures",
    .details = "--gpus, --global-batch and --seq-len take lists and ranges, 64,96 or 64..1024:x2\n"
               "or 64..512:+64; every combination is planned.  A size that no plan fits is a row\n"
               "with the reason.  Ctrl-C writes what is done.\n"
               "\n"
               "  degas sweep llama3-70b dgx-h100 --gpus 64..1024:x2 --global-batch 1024 \\\n"
               "      --seq-len 8192 --tokens 15T --price 2.5 --plot scaling.svg\n"
               "\n"
               "Exit status 1: no size has a plan.\n",
    .options = {options_table, request_options, request_search_options},
    .headings = {"The training, and output", "The job and its split", "The search"},
    .min_arguments = 2,
    .max_arguments = 2,
    .run = run,
};
