#include "cli/draw/plot_pareto.h"

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
#define HEIGHT 580
#define LEFT 82
#define RIGHT 40
#define TOP 78
#define BOTTOM 490
#define LEGEND 556
/* Points whose labels would cover each other, as shares of the axes. */
#define LABEL_WIDTH 0.22
#define LABEL_HEIGHT 0.045
/* Of a label's characters, with what lies before them. */
#define CHARACTER 5.4
#define LABEL_GAP 12
/* Shares of the data's range that an axis has before and, at the least, behind it. */
#define BEFORE 0.06
#define BEHIND 0.4
/* An axis over more than such a ratio is logarithmic. */
#define WIDE 8

typedef struct {
    double x, y;
    bool is_front, has_label;
    char *label; /* (owned) */
} Point;

typedef struct {
    GArray *points;                             /* of Point, by x */
    char *title, *subtitle, *x_title, *y_title; /* (owned) */
    bool has_all_labels;                        /* also of what is beaten */
    double limit;                               /* a line at this y; 0: none */
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
    g_free(picture->x_title);
    g_free(picture->y_title);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Picture, picture_clear)

static Point *
point_at(const Picture *picture, guint i)
{
    return &g_array_index(picture->points, Point, i);
}

/* @label (taken) */
static void
add_point(Picture *picture, double x, double y, char *label)
{
    const Point point = {.x = x, .y = y, .label = label};

    g_array_append_val(picture->points, point);
}

/* --- the front and its labels --- */

static int
compare(const void *a, const void *b)
{
    const Point *x = a, *y = b;

    if (x->x != y->x)
        return x->x < y->x ? -1 : 1;
    return x->y < y->y ? -1 : x->y > y->y;
}

static void
find_front(Picture *picture)
{
    double least = INFINITY;

    g_array_sort(picture->points, compare);
    for (guint i = 0; i < picture->points->len; i++) {
        Point *point = point_at(picture, i);

        point->is_front = point->y < least;
        least = fmin(least, point->y);
    }
}

/* Whether an axis needs a logarithm. */
static bool
is_wide(const double range[2])
{
    return range[0] > 0 && range[1] / range[0] > WIDE;
}

/* Where @value lies on an axis of this range, from 0 to 1. */
static double
place(double value, const double range[2])
{
    return is_wide(range) ? log(value / range[0]) / log(range[1] / range[0])
                          : (value - range[0]) / (range[1] - range[0]);
}

/* Adds shares of its length at both ends of a range. */
static void
widen(double range[2], double before, double after)
{
    if (is_wide(range)) {
        const double ratio = range[1] / range[0];

        range[0] /= pow(ratio, before);
        range[1] *= pow(ratio, after);
        return;
    }
    const double length = range[1] > range[0] ? range[1] - range[0] : fmax(range[1] * 0.1, 1e-9);
    range[0] = fmax(0, range[0] - before * length);
    range[1] += after * length;
}

/*
 * The share of the data's range @x that the axis needs behind it, so that the label of each point
 * ends in the picture: where @at is the point's share of the range, (BEFORE + @at) / (BEFORE + 1 +
 * room) of the axis and the label's width are at most all of it.
 */
static double
room_for_labels(const Picture *picture, const double x[2])
{
    double room = BEHIND;

    for (guint i = 0; i < picture->points->len; i++) {
        const Point *point = point_at(picture, i);
        const double width =
            (LABEL_GAP + CHARACTER * (double)g_utf8_strlen(point->label, -1)) / (WIDTH - LEFT);
        const double at = x[1] > x[0] ? place(point->x, x) : 0.0;

        if ((point->is_front || picture->has_all_labels) && width < 0.8)
            room = fmax(room, (BEFORE + at) / (1.0 - width) - 1.0 - BEFORE);
    }
    return room;
}

/* The least and the most of both axes, with room for labels on the right. */
static void
find_ranges(const Picture *picture, double x[2], double y[2])
{
    x[0] = y[0] = INFINITY;
    x[1] = y[1] = -INFINITY;
    for (guint i = 0; i < picture->points->len; i++) {
        x[0] = fmin(x[0], point_at(picture, i)->x);
        x[1] = fmax(x[1], point_at(picture, i)->x);
        y[0] = fmin(y[0], point_at(picture, i)->y);
        y[1] = fmax(y[1], point_at(picture, i)->y);
    }
    widen(x, BEFORE, room_for_labels(picture, x));
    widen(y, 0.1, 0.12);
}

static void
choose_labels(Picture *picture)
{
    double x[2], y[2];

    find_ranges(picture, x, y);
    for (guint i = 0; i < picture->points->len; i++) {
        Point *point = point_at(picture, i);

        point->has_label = point->is_front || picture->has_all_labels;
        for (guint j = 0; j < i && point->has_label; j++) {
            const Point *other = point_at(picture, j);

            point->has_label = !other->has_label ||
                               fabs(place(point->x, x) - place(other->x, x)) > LABEL_WIDTH ||
                               fabs(place(point->y, y) - place(other->y, y)) > LABEL_HEIGHT;
        }
    }
}

/* --- drawing --- */

static Table *
data_new(const Picture *picture)
{
    static const char *const header[] = {"x", "y", "is_front", "has_label", "label", NULL};
    Table *table = table_new(header);

    for (guint i = 0; i < picture->points->len; i++) {
        const Point *point = point_at(picture, i);

        table_add_double(table, point->x);
        table_add_double(table, point->y);
        table_add_int64(table, point->is_front);
        table_add_int64(table, point->has_label);
        table_add_text(table, point->label);
    }
    return table;
}

static GString *
settings_new(const Picture *picture, const PlotOptions *options)
{
    GString *settings = g_string_new(NULL);
    double x[2], y[2];

    find_ranges(picture, x, y);
    plot_set_double(settings, "width", WIDTH);
    plot_set_double(settings, "height", HEIGHT);
    plot_set_double(settings, "left", LEFT);
    plot_set_double(settings, "right", RIGHT);
    plot_set_double(settings, "top", TOP);
    plot_set_double(settings, "bottom", BOTTOM);
    plot_set_double(settings, "legend_y", LEGEND);
    plot_set_double(settings, "x_low", x[0]);
    plot_set_double(settings, "x_high", x[1]);
    plot_set_double(settings, "y_low", y[0]);
    plot_set_double(settings, "y_high", y[1]);
    plot_set_double(settings, "x_is_log", is_wide(x));
    plot_set_double(settings, "y_is_log", is_wide(y));
    plot_set_log_tics(settings, "x", x[0], x[1]);
    plot_set_log_tics(settings, "y", y[0], y[1]);
    plot_set_double(settings, "limit", picture->limit);
    plot_set_text(settings, "font_name", "sans-serif");
    plot_set_text(settings, "title", options->title == NULL ? picture->title : options->title);
    plot_set_text(settings, "subtitle", picture->subtitle);
    plot_set_text(settings, "x_title", picture->x_title);
    plot_set_text(settings, "y_title", picture->y_title);
    return settings;
}

/* One line for each point, the front marked. */
static bool
write_text(const Picture *picture, const PlotOptions *options, const char *path, GError **error)
{
    g_autoptr(GString) text = g_string_new(NULL);

    plot_append_title(text, options->title == NULL ? picture->title : options->title);
    g_string_append_printf(text, "  %12s  %12s\n", picture->x_title, picture->y_title);
    for (guint i = 0; i < picture->points->len; i++) {
        const Point *point = point_at(picture, i);
        g_autofree char *x = output_number(point->x);
        g_autofree char *y = output_number(point->y);
        g_autofree char *label = text_escape(point->label, 100);

        g_string_append_printf(text, "%c %12s  %12s  %s\n", point->is_front ? '*' : ' ', x, y,
                               label);
    }
    g_string_append(text, "* on the front: nothing is better in both\n");
    return plot_write_text(text, path, error);
}

static bool
draw(Picture *picture, const PlotOptions *options, const char *path, GError **error)
{
    const PlotFormat format = plot_format(path, error);
    g_auto(PlotPicture) drawn = {.script = "cli/plots/pareto.gp"};

    if (format == PLOT_FORMAT_N)
        return false;
    find_front(picture);
    choose_labels(picture);
    if (format == PLOT_FORMAT_TEXT)
        return write_text(picture, options, path, error);
    drawn.data = data_new(picture);
    drawn.settings = settings_new(picture, options);
    return plot_gnuplot_draw(&drawn, format, path, error);
}

/* --- plans --- */

/* (owned) what tells plans apart: "dp 64, micro-batch 2, full recompute". */
static char *
plan_label(const Plan *plan)
{
    g_autofree char *split = describe_split(&plan->degrees);
    const char *recompute = plan_recompute_name(plan);
    GString *text = g_string_new(split);

    if (plan->degrees.pp > 1)
        g_string_append_printf(text, ", %s", plan->schedule);
    g_string_append_printf(text, ", micro-batch %" G_GINT64_FORMAT, plan->micro_batch);
    if (strcmp(recompute, "none") != 0)
        g_string_append_printf(text, ", %s recompute", recompute);
    return g_string_free(text, FALSE);
}

static bool
add_plan(Picture *picture, const Plan *plan, GError **error)
{
    if (plan->predicted == NULL) {
        g_set_error_literal(error, CMD_ERROR, CMD_ERROR_USAGE,
                            "a plan without a prediction has no time: degas plan writes it");
        return false;
    }
    add_point(picture, units_s_from_ns(plan->predicted->iteration_ns),
              (double)plan->predicted->peak_memory_bytes / (double)UNITS_GIB, plan_label(plan));
    return true;
}

bool
plot_plan_pareto(const Job *job, const PlotOptions *options, const char *path, GError **error)
{
    const Plan *plan = job->plan;
    g_auto(Picture) picture;

    picture_init(&picture);
    if (plan->alternatives == NULL) {
        g_set_error_literal(
            error, CMD_ERROR, CMD_ERROR_USAGE,
            "pareto needs a degas-plan with alternatives (degas plan --pareto N, or "
            "--top K)");
        return false;
    }
    if (!add_plan(&picture, plan, error))
        return false;
    for (guint i = 0; i < plan->alternatives->len; i++)
        if (!add_plan(&picture, plan->alternatives->pdata[i], error))
            return false;
    picture.limit = (double)plan->predicted->memory_limit_bytes / (double)UNITS_GIB;
    picture.title =
        g_strdup_printf("%s on %s: time against memory", job->arch->name, job->profile->name);
    picture.subtitle = g_strdup_printf(
        "%" G_GINT64_FORMAT " devices, %" G_GINT64_FORMAT " x %" G_GINT64_FORMAT " tokens, %s",
        plan_n_devices(plan), plan->global_batch, plan->seq_len, dtype_names[plan->dtype]);
    picture.x_title = g_strdup("iteration [s]");
    picture.y_title = g_strdup("memory of the fullest device [GiB]");
    return draw(&picture, options, path, error);
}

/* --- sweeps --- */

/* What a sweep's y is: in the order of what is known. */
typedef struct {
    double (*of)(const SweepPoint *point);
    const char *title; /* "%s": the currency */
} Axis;

static double
millions(const SweepPoint *point)
{
    return point->effective_cost / 1e6;
}

static double
gigawatt_hours(const SweepPoint *point)
{
    return point->effective_energy_j / 3.6e12;
}

static double
device_years(const SweepPoint *point)
{
    return point->effective_days * (double)point->n_devices / 365.25;
}

static double
days(const SweepPoint *point)
{
    return point->effective_days;
}

/* Seconds, and device-seconds, of a billion tokens. */
static double
seconds(const SweepPoint *point)
{
    return 1e9 / point->effective_tokens_per_s;
}

static double
device_hours(const SweepPoint *point)
{
    return 1e9 / point->effective_tokens_per_s * (double)point->n_devices / 3600;
}

static double
price(const SweepPoint *point)
{
    return point->cost_per_iteration / point->goodput_fraction * 1e9 /
           ((double)point->global_batch * (double)point->seq_len);
}

static bool
is_known(const Sweep *sweep, const Axis *axis)
{
    for (guint i = 0; i < sweep->points->len; i++) {
        const SweepPoint *point = &g_array_index(sweep->points, SweepPoint, i);

        if (point->is_feasible && isfinite(axis->of(point)))
            return true;
    }
    return false;
}

static char *
label_of(const Sweep *sweep, const SweepPoint *point)
{
    const SweepPoint *first = &g_array_index(sweep->points, SweepPoint, 0);
    bool has_batch = false, has_seq_len = false;

    for (guint i = 0; i < sweep->points->len; i++) {
        const SweepPoint *other = &g_array_index(sweep->points, SweepPoint, i);

        has_batch |= other->global_batch != first->global_batch;
        has_seq_len |= other->seq_len != first->seq_len;
    }
    GString *text = g_string_new(NULL);
    g_string_append_printf(text, "%" G_GINT64_FORMAT " devices", point->n_devices);
    if (has_batch)
        g_string_append_printf(text, ", batch %" G_GINT64_FORMAT, point->global_batch);
    if (has_seq_len)
        g_string_append_printf(text, ", %" G_GINT64_FORMAT " tokens", point->seq_len);
    return g_string_free(text, FALSE);
}

bool
plot_sweep_pareto(const Sweep *sweep, const PlotOptions *options, const char *path, GError **error)
{
    static const Axis trained[] = {{millions, "cost [million %s]"},
                                   {gigawatt_hours, "energy [GWh]"},
                                   {device_years, "device-years"}};
    static const Axis rates[] = {{price, "cost of a billion tokens [%s]"},
                                 {device_hours, "device-hours of a billion tokens"}};
    const bool is_trained = isfinite(sweep->tokens);
    const Axis *axis = is_trained ? trained : rates;
    g_auto(Picture) picture;

    picture_init(&picture);
    picture.has_all_labels = true;
    while (axis->of != device_years && axis->of != device_hours && !is_known(sweep, axis))
        axis++;
    for (guint i = 0; i < sweep->points->len; i++) {
        const SweepPoint *point = &g_array_index(sweep->points, SweepPoint, i);

        if (point->is_feasible && isfinite(axis->of(point)))
            add_point(&picture, is_trained ? days(point) : seconds(point), axis->of(point),
                      label_of(sweep, point));
    }
    if (picture.points->len == 0) {
        g_set_error_literal(error, CMD_ERROR, CMD_ERROR_USAGE,
                            "there is nothing to draw: no size has a plan");
        return false;
    }
    g_auto(GStrv) parts = g_strsplit(axis->title, "%s", 2);
    g_autofree char *tokens = units_format_count(is_trained ? sweep->tokens : 1e9);
    picture.y_title = g_strjoinv(sweep->currency == NULL ? "?" : sweep->currency, parts);
    picture.x_title = g_strdup(is_trained ? "days" : "seconds of a billion tokens");
    picture.title = g_strdup_printf("%s on %s: what time costs", sweep->model, sweep->cluster);
    picture.subtitle =
        g_strdup_printf("%s tokens, failures and checkpoints included, %s", tokens, sweep->dtype);
    return draw(&picture, options, path, error);
}
