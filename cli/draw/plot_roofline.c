#include "cli/draw/plot_roofline.h"

#include <math.h>
#include <string.h>

#include "base/text.h"
#include "base/units.h"
#include "cli/request/command.h"
#include "cli/draw/describe.h"
#include "cli/request/output.h"
#include "cli/draw/plot_gnuplot.h"

/* Lengths in pixels. */
#define WIDTH 980
#define HEIGHT 600
#define LEFT 82
#define RIGHT 40
#define TOP 78
#define BOTTOM 508
#define LEGEND 576
/* Points whose labels would cover each other, as shares of the axes. */
#define LETTER_WIDTH 0.0075
#define LABEL_HEIGHT 0.04
#define MAX_SERIES 3

static const char *const colors[MAX_SERIES] = {"#0072b2", "#009e73", "#d55e00"};

typedef struct {
    double x, flops_per_s;
    double bound_flops_per_s; /* NaN: none */
    double share;             /* of the time, 0 to 1: the size of the point */
    int series;
    bool has_label;
    char *label; /* (owned) */
} Point;

typedef struct {
    GArray *points;                       /* of Point */
    double peak_flops_per_s, bytes_per_s; /* 0: x is not per byte */
    char *title, *subtitle;               /* (owned) */
    const char *x_title;
    const char *series[MAX_SERIES];
    int n_series;
    double x[2], y[2]; /* ranges */
} Picture;

static void
point_clear(void *data)
{
    g_free(((Point *)data)->label);
}

static void
picture_init(Picture *picture)
{
    *picture = (Picture){.points = g_array_new(FALSE, FALSE, sizeof(Point))};
    g_array_set_clear_func(picture->points, point_clear);
}

static void
picture_clear(Picture *picture)
{
    g_array_unref(picture->points);
    g_free(picture->title);
    g_free(picture->subtitle);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Picture, picture_clear)

static Point *
point_at(const Picture *picture, guint i)
{
    return &g_array_index(picture->points, Point, i);
}

/* --- ranges and labels --- */

static void
find_ranges(Picture *picture)
{
    picture->x[0] = INFINITY;
    picture->x[1] = 0;
    picture->y[0] = INFINITY;
    picture->y[1] = picture->peak_flops_per_s;
    for (guint i = 0; i < picture->points->len; i++) {
        const Point *point = point_at(picture, i);

        picture->x[0] = fmin(picture->x[0], point->x);
        picture->x[1] = fmax(picture->x[1], point->x);
        picture->y[0] = fmin(picture->y[0], point->flops_per_s);
        picture->y[1] = fmax(picture->y[1], point->flops_per_s);
    }
    /* The ridge, where both roofs meet, is always in it. */
    if (picture->bytes_per_s > 0) {
        const double ridge = picture->peak_flops_per_s / picture->bytes_per_s;

        picture->x[0] = fmin(picture->x[0], ridge / 4);
        picture->x[1] = fmax(picture->x[1], ridge * 4);
    }
    picture->x[0] /= 1.6;
    picture->x[1] *= 4;
    picture->y[0] /= 2;
    picture->y[1] *= 1.6;
}

static double
distance(double a, double b, const double range[2])
{
    return fabs(log(a / b)) / log(range[1] / range[0]);
}

/* Whether the label of one point would lie on the other's. */
static bool
is_covered(const Picture *picture, const Point *a, const Point *b)
{
    const size_t n_letters = strlen(a->x < b->x ? a->label : b->label);

    return distance(a->x, b->x, picture->x) < LETTER_WIDTH * (double)n_letters + 0.02 &&
           distance(a->flops_per_s, b->flops_per_s, picture->y) < LABEL_HEIGHT;
}

/* The points that take most time first. */
static int
compare(const void *a, const void *b)
{
    const Point *x = a, *y = b;

    if (x->share != y->share)
        return x->share > y->share ? -1 : 1;
    return x->x != y->x ? (x->x < y->x ? -1 : 1) : strcmp(x->label, y->label);
}

static void
choose_labels(Picture *picture)
{
    g_array_sort(picture->points, compare);
    for (guint i = 0; i < picture->points->len; i++) {
        Point *point = point_at(picture, i);

        point->has_label = true;
        for (guint j = 0; j < i && point->has_label; j++) {
            Point *other = point_at(picture, j);

            if (!other->has_label || !is_covered(picture, point, other))
                continue;
            /* Named beside the larger point that covers it. */
            char *both = g_strdup_printf("%s, %s", other->label, point->label);
            g_free(other->label);
            other->label = both;
            point->has_label = false;
        }
    }
}

/* --- drawing --- */

static Table *
data_new(const Picture *picture)
{
    static const char *const header[] = {
        "x", "flops_per_s", "bound_flops_per_s", "series", "share", "has_label", "label", NULL};
    Table *table = table_new(header);

    for (guint i = 0; i < picture->points->len; i++) {
        const Point *point = point_at(picture, i);

        table_add_double(table, point->x);
        table_add_double(table, point->flops_per_s);
        table_add_double(table, point->bound_flops_per_s);
        table_add_int64(table, point->series);
        table_add_double(table, point->share);
        table_add_int64(table, point->has_label);
        table_add_text(table, point->label);
    }
    return table;
}

static void
set_series(GString *settings, const Picture *picture)
{
    plot_set_double(settings, "n_series", picture->n_series);
    g_string_append_printf(settings, "array series_name[%d]\narray series_color[%d]\n", MAX_SERIES,
                           MAX_SERIES);
    for (int k = 0; k < MIN(picture->n_series, MAX_SERIES); k++) {
        g_autofree char *name = g_strdup_printf("series_name[%d]", k + 1);
        g_autofree char *color = g_strdup_printf("series_color[%d]", k + 1);

        plot_set_text(settings, name, picture->series[k]);
        plot_set_text(settings, color, colors[k]);
    }
}

static GString *
settings_new(const Picture *picture, const PlotOptions *options)
{
    GString *settings = g_string_new(NULL);
    g_autofree char *peak = units_format_flops(picture->peak_flops_per_s);
    g_autofree char *peak_text = g_strdup_printf("peak %s", peak);
    g_autofree char *rate = output_number(picture->bytes_per_s / 1e12);
    g_autofree char *rate_text = g_strdup_printf("memory %s TB/s", rate);

    plot_set_double(settings, "width", WIDTH);
    plot_set_double(settings, "height", HEIGHT);
    plot_set_double(settings, "left", LEFT);
    plot_set_double(settings, "right", RIGHT);
    plot_set_double(settings, "top", TOP);
    plot_set_double(settings, "bottom", BOTTOM);
    plot_set_double(settings, "legend_y", LEGEND);
    plot_set_double(settings, "x_low", picture->x[0]);
    plot_set_double(settings, "x_high", picture->x[1]);
    plot_set_double(settings, "y_low", picture->y[0]);
    plot_set_double(settings, "y_high", picture->y[1]);
    plot_set_log_tics(settings, "x", picture->x[0], picture->x[1]);
    plot_set_log_tics(settings, "y", picture->y[0], picture->y[1]);
    g_string_append_printf(settings, "peak = 1.0*%.0f\nbandwidth = 1.0*%.0f\n",
                           picture->peak_flops_per_s, picture->bytes_per_s);
    plot_set_text(settings, "peak_text", peak_text);
    plot_set_text(settings, "bandwidth_text", rate_text);
    plot_set_text(settings, "font_name", "sans-serif");
    plot_set_text(settings, "title", options->title == NULL ? picture->title : options->title);
    plot_set_text(settings, "subtitle", picture->subtitle);
    plot_set_text(settings, "x_title", picture->x_title);
    set_series(settings, picture);
    return settings;
}

/* One line for each point, the slowest part first. */
static bool
write_text(const Picture *picture, const PlotOptions *options, const char *path, GError **error)
{
    g_autoptr(GString) text = g_string_new(NULL);
    g_autofree char *peak = units_format_flops(picture->peak_flops_per_s);

    plot_append_title(text, options->title == NULL ? picture->title : options->title);
    g_string_append_printf(text, "%-32s %14s %14s  of the peak of %s\n", "", picture->x_title,
                           "FLOP/s", peak);
    for (guint i = 0; i < picture->points->len; i++) {
        const Point *point = point_at(picture, i);
        g_autofree char *x = output_number(point->x);
        g_autofree char *rate = units_format_flops(point->flops_per_s);
        g_autofree char *share = output_percent(point->flops_per_s / picture->peak_flops_per_s);

        g_string_append_printf(text, "%-32s %14s %14s  %s\n", point->label, x, rate, share);
    }
    return plot_write_text(text, path, error);
}

static bool
draw(Picture *picture, const PlotOptions *options, const char *path, GError **error)
{
    const PlotFormat format = plot_format(path, error);
    g_auto(PlotPicture) drawn = {.script = "cli/plots/roofline.gp"};

    if (format == PLOT_FORMAT_N)
        return false;
    if (picture->points->len == 0) {
        g_set_error_literal(error, CMD_ERROR, CMD_ERROR_USAGE, "there is nothing to draw: no plan");
        return false;
    }
    find_ranges(picture);
    choose_labels(picture);
    if (format == PLOT_FORMAT_TEXT)
        return write_text(picture, options, path, error);
    drawn.data = data_new(picture);
    drawn.settings = settings_new(picture, options);
    return plot_gnuplot_draw(&drawn, format, path, error);
}

/* --- ops of a plan --- */

/* Adds the ops of one part that compute, in forward; returns the seconds of all its ops. */
static double
add_ops(Picture *picture, const Job *job, ModelPart part, int64_t layer, int series)
{
    const Plan *plan = job->plan;
    const ModelDevice *device = model_cluster_device(job->profile->cluster, 0);
    const ModelShape shape = {
        .batch = plan->micro_batch,
        .tokens = g_array_index(plan->slices, int64_t, 0),
        .tp = plan->degrees.tp,
        .cp = plan->degrees.cp,
        .ep = plan->degrees.ep,
        .sequence_parallel = plan->sequence_parallel,
        .flash_attention = plan->conventions.attention == PLAN_ATTENTION_FLASH,
        .dropout = plan->conventions.dropout,
        .dtype = plan->dtype,
        .expert_imbalance = 1,
    };
    ModelOp ops[MODEL_MAX_OPS];
    const size_t n = model_ops(job->arch, part, layer, &shape, ops);
    double all_s = 0;

    for (size_t i = 0; i < n; i++) {
        if (ops[i].kind == MODEL_OP_COLLECTIVE)
            continue;
        const ProfileCost cost =
            profile_cost_op(job->profile, device, &ops[i], PROFILE_PASS_FORWARD, plan->dtype, NULL);
        const double seconds = cost.part_s[PROFILE_PART_COMPUTE];
        const double bytes = (double)ops[i].weight_bytes + (double)ops[i].forward_bytes;
        const double flops =
            ops[i].forward_flops * (ops[i].kind == MODEL_OP_ATTENTION ? ops[i].causal_fraction : 1);
        all_s += seconds;
        if (!(flops > 0 && bytes > 0 && seconds > 0))
            continue;
        const Point point = {flops / bytes, flops / seconds,      NAN, seconds, series,
                             false,         g_strdup(ops[i].name)};
        g_array_append_val(picture->points, point);
    }
    return all_s;
}

bool
plot_plan_roofline(const Job *job, const PlotOptions *options, const char *path, GError **error)
{
    const Plan *plan = job->plan;
    const ModelArch *arch = job->arch;
    const ModelDevice *device = model_cluster_device(job->profile->cluster, 0);
    const bool has_experts = arch->experts.n_experts > 0;
    g_autofree char *split = describe_split(&plan->degrees);
    g_auto(Picture) picture;
    double all_s = 0, drawn_s = 0;

    picture_init(&picture);
    picture.peak_flops_per_s = profile_peak_flops_per_s(device, plan->dtype);
    picture.bytes_per_s = device->memory_bytes_per_s;
    if (!has_experts || arch->experts.first_dense_layers > 0) {
        picture.series[picture.n_series] = "dense layer, forward";
        all_s += add_ops(&picture, job, MODEL_PART_LAYER, 0, picture.n_series++);
    }
    if (has_experts) {
        picture.series[picture.n_series] = "layer with experts, forward";
        all_s += add_ops(&picture, job, MODEL_PART_LAYER, arch->n_layers - 1, picture.n_series++);
    }
    if (arch->vocab > 0) {
        picture.series[picture.n_series] = "head, forward";
        all_s += add_ops(&picture, job, MODEL_PART_HEAD, 0, picture.n_series++);
    }
    for (guint i = 0; i < picture.points->len; i++) {
        drawn_s += point_at(&picture, i)->share;
        point_at(&picture, i)->share /= all_s;
    }
    g_autofree char *rest = output_percent(1 - drawn_s / all_s);
    picture.title = g_strdup_printf("%s on %s: ops below the roof", arch->name, device->name);
    picture.subtitle = g_strdup_printf("%s, micro-batch %" G_GINT64_FORMAT
                                       ", %s; a point's size is its time; %s of the time in "
                                       "kernels without products",
                                       split, plan->micro_batch, dtype_names[plan->dtype], rest);
    picture.x_title = "FLOPs per byte of memory";
    return draw(&picture, options, path, error);
}

/* --- sizes of a sweep --- */

bool
plot_sweep_roofline(const Sweep *sweep, const PlotOptions *options, const char *path,
                    GError **error)
{
    g_auto(Picture) picture;

    picture_init(&picture);
    for (guint i = 0; i < sweep->points->len; i++) {
        const SweepPoint *p = &g_array_index(sweep->points, SweepPoint, i);

        if (!p->is_feasible || !(p->model_flops_utilization_fraction > 0))
            continue;
        const Point point = {
            .x = (double)p->global_batch * (double)p->seq_len / (double)p->n_devices,
            .flops_per_s = p->model_flops_per_s_per_device,
            .bound_flops_per_s =
                p->model_flops_per_s_per_device * p->iteration_s / p->lower_bound_s,
            .share = 0.3,
            .label = g_strdup_printf("%" G_GINT64_FORMAT " devices", p->n_devices),
        };
        picture.peak_flops_per_s =
            fmax(picture.peak_flops_per_s,
                 p->model_flops_per_s_per_device / p->model_flops_utilization_fraction);
        g_array_append_val(picture.points, point);
    }
    picture.n_series = 1;
    picture.series[0] = "the best plan of a size; cross: what no plan exceeds";
    picture.title =
        g_strdup_printf("%s on %s: devices below their peak", sweep->model, sweep->cluster);
    picture.subtitle = g_strdup_printf("model FLOPs, without recompute; %s", sweep->dtype);
    picture.x_title = "tokens of a device in an iteration";
    return draw(&picture, options, path, error);
}
