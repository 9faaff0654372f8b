/* Pictures of labelled points: trade-offs and rooflines; declared in cli/draw/plot.h. */
#include <math.h>
#include <string.h>

#include "base/text.h"
#include "base/order.h"
#include "base/units.h"
#include "cli/draw/describe.h"
#include "cli/draw/picture.h"
#include "cli/request/command.h"
#include "cli/request/output.h"

#define MAX_SERIES (MODEL_MAX_KINDS + 1)

typedef struct {
    double x, y;
    char *label; /* (owned) */
    bool has_label;
    int label_at;         /* of a roofline: which of places[] */
    bool is_front;        /* of a trade-off */
    double bound;         /* of a roofline: what y cannot exceed; NaN: not known */
    double time_fraction; /* of a roofline: of all its points, 0 to 1; the size of the point */
    int series;           /* of a roofline */
} Point;

typedef struct {
    GArray *points;                             /* of Point */
    char *title, *subtitle, *x_title, *y_title; /* (owned) */
    double x[2], y[2];                          /* ranges of the axes */
    bool has_all_labels;                        /* of a trade-off: also of what is beaten */
    double limit;                               /* of a trade-off: a line at this y; 0: none */
    double peak_flops_per_s, bytes_per_s;       /* of a roofline; 0: x is not per byte */
    const char *series[MAX_SERIES];             /* of a roofline */
    int n_series;
} Points;

static void
point_clear(void *data)
{
    g_free(((Point *)data)->label);
}

static Points
points_new(void)
{
    const Points picture = {.points = g_array_new(FALSE, FALSE, sizeof(Point))};

    g_array_set_clear_func(picture.points, point_clear);
    return picture;
}

static void
points_clear(Points *picture)
{
    g_array_unref(picture->points);
    g_free(picture->title);
    g_free(picture->subtitle);
    g_free(picture->x_title);
    g_free(picture->y_title);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Points, points_clear)

static Point *
point_at(const Points *picture, guint i)
{
    return &g_array_index(picture->points, Point, i);
}

/* Sets the ranges to the least and the most of the points. */
static void
find_ranges(Points *picture)
{
    picture->x[0] = picture->y[0] = INFINITY;
    picture->x[1] = picture->y[1] = -INFINITY;
    for (guint i = 0; i < picture->points->len; i++) {
        const Point *point = point_at(picture, i);

        picture->x[0] = fmin(picture->x[0], point->x);
        picture->x[1] = fmax(picture->x[1], point->x);
        picture->y[0] = fmin(picture->y[0], point->y);
        picture->y[1] = fmax(picture->y[1], point->y);
    }
}

/* The settings that both kinds of picture have. */
static void
set_axes(Picture *picture, const Points *points, const PlotOptions *options)
{
    picture_set_titles(picture, options, points->title, points->subtitle);
    picture_set_range(picture, "x", points->x[0], points->x[1]);
    picture_set_range(picture, "y", points->y[0], points->y[1]);
    picture_set_text(picture, "x_title", points->x_title);
}

/* --- trade-offs: the front and its labels --- */

/* Pixels between the left edge of the axes and that of the picture: as in pareto.gp. */
#define AXES_WIDTH (980 - 82)
/* Points whose labels would cover each other, as shares of the axes. */
#define LABEL_WIDTH 0.22
#define LABEL_HEIGHT 0.045
/* The width of a label's characters, and the gap between a point and its label, in pixels. */
#define CHARACTER 5.4
#define LABEL_GAP 12
/* Shares of the data's range that an axis has before and, at the least, behind it. */
#define BEFORE 0.06
#define BEHIND 0.4
/* An axis over more than such a ratio is logarithmic. */
#define WIDE 8

/* @label (taken) */
static void
add_point(Points *picture, double x, double y, char *label)
{
    const Point point = {.x = x, .y = y, .label = label};

    g_array_append_val(picture->points, point);
}

static int
compare_positions(const void *a, const void *b)
{
    const Point *x = a, *y = b;

    ORDER_BY(x->x, y->x);
    return ORDER(x->y, y->y);
}

static void
find_front(Points *picture)
{
    double least = INFINITY;

    g_array_sort(picture->points, compare_positions);
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

/* The share of the data's range @x that the axis needs behind it, so that the label of each point
 * ends in the picture: where @at is the point's share of the range, (BEFORE + @at) / (BEFORE + 1 +
 * room) of the axis and the label's width are at most all of it. */
static double
room_for_labels(const Points *picture, const double x[2])
{
    double room = BEHIND;

    for (guint i = 0; i < picture->points->len; i++) {
        const Point *point = point_at(picture, i);
        const double width =
            (LABEL_GAP + CHARACTER * (double)g_utf8_strlen(point->label, -1)) / AXES_WIDTH;
        const double at = x[1] > x[0] ? place(point->x, x) : 0.0;

        if ((point->is_front || picture->has_all_labels) && width < 0.8)
            room = fmax(room, (BEFORE + at) / (1.0 - width) - 1.0 - BEFORE);
    }
    return room;
}

static void
choose_front_labels(Points *picture)
{
    find_ranges(picture);
    widen(picture->x, BEFORE, room_for_labels(picture, picture->x));
    widen(picture->y, 0.1, 0.12);
    for (guint i = 0; i < picture->points->len; i++) {
        Point *point = point_at(picture, i);

        point->has_label = point->is_front || picture->has_all_labels;
        for (guint j = 0; j < i && point->has_label; j++) {
            const Point *other = point_at(picture, j);

            point->has_label =
                !other->has_label ||
                fabs(place(point->x, picture->x) - place(other->x, picture->x)) > LABEL_WIDTH ||
                fabs(place(point->y, picture->y) - place(other->y, picture->y)) > LABEL_HEIGHT;
        }
    }
}

static void
fill_front(Picture *picture, const void *content, const PlotOptions *options)
{
    const Points *points = content;
    bool has_beaten = false;

    for (guint i = 0; i < points->points->len; i++)
        has_beaten |= !point_at(points, i)->is_front;
    set_axes(picture, points, options);
    picture_set(picture, "has_beaten", has_beaten);
    picture_set(picture, "x_is_log", is_wide(points->x));
    picture_set(picture, "y_is_log", is_wide(points->y));
    picture_set(picture, "limit", points->limit);
    picture_set_text(picture, "y_title", points->y_title);
    picture->data = table_new_line("x\ty\tis_front\thas_label\tlabel");
    for (guint i = 0; i < points->points->len; i++) {
        const Point *point = point_at(points, i);

        table_add_double(picture->data, point->x);
        table_add_double(picture->data, point->y);
        table_add_int64(picture->data, point->is_front);
        table_add_int64(picture->data, point->has_label);
        table_add_text(picture->data, point->label);
    }
}

/* One line for each point, the front marked. */
static void
append_front(GString *text, const void *content, const PlotOptions *options)
{
    const Points *points = content;

    picture_append_title(text, options->title == NULL ? points->title : options->title);
    g_string_append_printf(text, "  %12s  %12s\n", points->x_title, points->y_title);
    for (guint i = 0; i < points->points->len; i++) {
        const Point *point = point_at(points, i);
        g_autofree char *label = text_escape(point->label, 100);

        g_string_append_printf(text, "%c %12s  %12s  %s\n", point->is_front ? '*' : ' ',
                               output_number(point->x).text, output_number(point->y).text, label);
    }
    g_string_append(text, "* on the front: nothing is better in both\n");
}

static bool
draw_front(Points *picture, const PlotOptions *options, const char *path, GError **error)
{
    static const PictureKind kind = {
        .script = "cli/plots/pareto.gp",
        .fill = fill_front,
        .append_text = append_front,
        .has_own_title = true,
    };

    find_front(picture);
    choose_front_labels(picture);
    return picture_draw(&kind, picture, options, path, error);
}

/* --- trade-offs of plans --- */

/* (owned) what tells plans apart: "dp 64, micro-batch 2, full recompute". */
static char *
plan_label(const Plan *plan)
{
    g_autofree char *split = describe_split(&plan->degrees);
    const char *recompute = plan_recompute_name(plan);
    GString *text = g_string_new(split);

    if (plan->degrees.pp > 1)
        g_string_append_printf(text, ", %s", plan->schedule);
    g_string_append_printf(text, ", micro-batch " INT, plan->micro_batch);
    if (strcmp(recompute, "none") != 0)
        g_string_append_printf(text, ", %s recompute", recompute);
    return g_string_free(text, FALSE);
}

static bool
add_plan(Points *picture, const Plan *plan, GError **error)
{
    if (plan->predicted == NULL)
        return cmd_fail(error, CMD_ERROR_USAGE,
                        "a plan without a prediction has no time: degas plan writes it");
    add_point(picture, units_s_from_ns(plan->predicted->iteration_ns),
              (double)plan->predicted->peak_memory_bytes / (double)UNITS_GIB, plan_label(plan));
    return true;
}

bool
plot_plan_pareto(const Job *job, const PlotOptions *options, const char *path, GError **error)
{
    const Plan *plan = job->plan;
    g_auto(Points) picture = points_new();

    if (plan->alternatives == NULL)
        return cmd_fail(error, CMD_ERROR_USAGE,
                        "pareto needs a degas-plan with alternatives (degas plan --pareto N, or "
                        "--top K)");
    if (!add_plan(&picture, plan, error))
        return false;
    for (guint i = 0; i < plan->alternatives->len; i++)
        if (!add_plan(&picture, plan->alternatives->pdata[i], error))
            return false;
    picture.limit = (double)plan->predicted->memory_limit_bytes / (double)UNITS_GIB;
    picture.title =
        g_strdup_printf("%s on %s: time against memory", job->arch->name, job->profile->name);
    picture.subtitle =
        g_strdup_printf(INT " devices, " INT " x " INT " tokens, %s", plan_n_devices(plan),
                        plan->global_batch, plan->seq_len, dtype_names[plan->dtype]);
    picture.x_title = g_strdup("iteration [s]");
    picture.y_title = g_strdup("memory of the fullest device [GiB]");
    return draw_front(&picture, options, path, error);
}

/* --- trade-offs of sizes --- */

/* A number that a sweep's y axis may show. */
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

/* Device-hours of a billion tokens. */
static double
device_hours(const SweepPoint *point)
{
    return 1e9 / point->effective_tokens_per_s * (double)point->n_devices / 3600;
}

static double
price(const SweepPoint *point)
{
    return point->cost_per_iteration / point->goodput.goodput_fraction * 1e9 /
           ((double)point->global_batch * (double)point->seq_len);
}

static bool
is_known(const Sweep *sweep, const Axis *axis)
{
    for (guint i = 0; i < sweep->points->len; i++) {
        const SweepPoint *point = sweep_at(sweep, i);

        if (point->is_feasible && isfinite(axis->of(point)))
            return true;
    }
    return false;
}

static char *
label_of(const Sweep *sweep, const SweepPoint *point)
{
    GString *text = g_string_new(NULL);
    g_string_append_printf(text, INT " devices", point->n_devices);
    if (sweep_varies(sweep, offsetof(SweepPoint, global_batch)))
        g_string_append_printf(text, ", batch " INT, point->global_batch);
    if (sweep_varies(sweep, offsetof(SweepPoint, seq_len)))
        g_string_append_printf(text, ", " INT " tokens", point->seq_len);
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
    g_auto(Points) picture = points_new();

    picture.has_all_labels = true;
    while (axis->of != device_years && axis->of != device_hours && !is_known(sweep, axis))
        axis++;
    for (guint i = 0; i < sweep->points->len; i++) {
        const SweepPoint *point = sweep_at(sweep, i);

        if (point->is_feasible && isfinite(axis->of(point)))
            add_point(&picture,
                      is_trained ? point->effective_days : 1e9 / point->effective_tokens_per_s,
                      axis->of(point), label_of(sweep, point));
    }
    if (picture.points->len == 0)
        return cmd_fail(error, CMD_ERROR_USAGE, "there is nothing to draw: no size has a plan");
    g_auto(GStrv) parts = g_strsplit(axis->title, "%s", 2);
    picture.y_title = g_strjoinv(sweep->currency == NULL ? "?" : sweep->currency, parts);
    picture.x_title = g_strdup(is_trained ? "days" : "seconds of a billion tokens");
    picture.title = g_strdup_printf("%s on %s: what time costs", sweep->model, sweep->cluster);
    picture.subtitle =
        g_strdup_printf("%s tokens, failures and checkpoints included, %s",
                        units_format_count(is_trained ? sweep->tokens : 1e9).text, sweep->dtype);
    return draw_front(&picture, options, path, error);
}

/* --- rooflines: labels --- */

/* A letter's width, a label's height and distance from its point, as shares of the axes. */
#define LETTER_WIDTH 0.0074
#define ROOF_LABEL_HEIGHT 0.036
#define ROOF_LABEL_GAP 0.012

/* Where a label may lie beside its point, the best place first; as in roofline.gp. */
static const struct {
    int right;    /* 1, or -1: to the left */
    double lines; /* above it */
} places[] = {{1, -0.9}, {-1, -0.9}, {1, 0.9}, {-1, 0.9}, {1, -2}, {-1, -2}, {1, 2}, {-1, 2}};

/* A rectangle on the axes, which are 1 wide and 1 high. */
typedef struct {
    double left, right, bottom, top;
} Area;

/* The ranges of the points with the roofs, and room around. */
static void
find_roof_ranges(Points *picture)
{
    find_ranges(picture);
    picture->y[1] = fmax(picture->y[1], picture->peak_flops_per_s);
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

/* Where a point lies on the axes. */
static Area
area_of_point(const Points *picture, const Point *point)
{
    const double x = log(point->x / picture->x[0]) / log(picture->x[1] / picture->x[0]);
    const double y = log(point->y / picture->y[0]) / log(picture->y[1] / picture->y[0]);
    const double r = 0.004 + 0.008 * point->time_fraction;

    return (Area){x - r, x + r, y - 2 * r, y + 2 * r};
}

static Area
area_of_label(const Points *picture, const Point *point, size_t at)
{
    const Area spot = area_of_point(picture, point);
    const double width = LETTER_WIDTH * (double)strlen(point->label);
    const double x = (spot.left + spot.right) / 2 + places[at].right * ROOF_LABEL_GAP;
    const double y = (spot.bottom + spot.top) / 2 + places[at].lines * ROOF_LABEL_HEIGHT;

    return (Area){
        .left = places[at].right > 0 ? x : x - width,
        .right = places[at].right > 0 ? x + width : x,
        .bottom = y - ROOF_LABEL_HEIGHT / 2,
        .top = y + ROOF_LABEL_HEIGHT / 2,
    };
}

static bool
overlap(const Area *a, const Area *b)
{
    return a->left < b->right && b->left < a->right && a->bottom < b->top && b->bottom < a->top;
}

/* Whether a point before point @i has the same name and lies on it, as an op of both kinds of layers
 * does. */
static bool
is_named(const Points *picture, guint i)
{
    const Area spot = area_of_point(picture, point_at(picture, i));

    for (guint j = 0; j < i; j++) {
        const Area other = area_of_point(picture, point_at(picture, j));
        if (strcmp(point_at(picture, i)->label, point_at(picture, j)->label) == 0 &&
            overlap(&spot, &other))
            return true;
    }
    return false;
}

/* Whether @area is inside the axes, and on no point and none of the labels before
 * point @i. */
static bool
is_free(const Points *picture, guint i, const Area *area)
{
    if (area->left < 0 || area->right > 1 || area->bottom < 0 || area->top > 1)
        return false;
    for (guint j = 0; j < picture->points->len; j++) {
        const Point *other = point_at(picture, j);
        const Area spot = area_of_point(picture, other);
        if (overlap(area, &spot))
            return false;
        if (j >= i || !other->has_label)
            continue;
        const Area label = area_of_label(picture, other, (size_t)other->label_at);
        if (overlap(area, &label))
            return false;
    }
    return true;
}

/* The points that take most time first. */
static int
compare_times(const void *a, const void *b)
{
    const Point *x = a, *y = b;

    ORDER_BY(y->time_fraction, x->time_fraction);
    return x->x != y->x ? (x->x < y->x ? -1 : 1) : strcmp(x->label, y->label);
}

static void
choose_roof_labels(Points *picture)
{
    g_array_sort(picture->points, compare_times);
    for (guint i = 0; i < picture->points->len; i++) {
        Point *point = point_at(picture, i);

        for (size_t at = 0; at < G_N_ELEMENTS(places) && !point->has_label && !is_named(picture, i);
             at++) {
            const Area area = area_of_label(picture, point, at);

            point->label_at = (int)at;
            point->has_label = is_free(picture, i, &area);
        }
    }
}

static void
fill_roof(Picture *picture, const void *content, const PlotOptions *options)
{
    static const uint32_t colors[MAX_SERIES] = {0x0072b2, 0x009e73, 0xd55e00, 0xcc79a7, 0xe69f00,
                                                0x56b4e9, 0x777777, 0x000000, 0xb8a500};
    const Points *points = content;
    g_autofree char *peak_text =
        g_strdup_printf("peak %s", units_format_flops(points->peak_flops_per_s).text);
    g_autofree char *rate_text =
        g_strdup_printf("memory %s TB/s", output_number(points->bytes_per_s / 1e12).text);

    set_axes(picture, points, options);
    picture_set(picture, "peak", round(points->peak_flops_per_s));
    picture_set(picture, "bandwidth", round(points->bytes_per_s));
    picture_set_text(picture, "peak_text", peak_text);
    picture_set_text(picture, "bandwidth_text", rate_text);
    picture_set(picture, "n_series", points->n_series);
    for (int k = 0; k < points->n_series; k++) {
        picture_set_text_at(picture, "series_name", (size_t)k, points->series[k]);
        picture_set_rgb_at(picture, "series_color", (size_t)k, colors[k]);
    }
    picture->data = table_new_line("x\tflops_per_s\tbound_flops_per_s\tseries\tshare\tlabel_place\t"
                                   "label");
    for (guint i = 0; i < points->points->len; i++) {
        const Point *point = point_at(points, i);

        table_add_double(picture->data, point->x);
        table_add_double(picture->data, point->y);
        table_add_double(picture->data, point->bound);
        table_add_int64(picture->data, point->series);
        table_add_double(picture->data, point->time_fraction);
        table_add_int64(picture->data, point->has_label ? point->label_at : -1);
        table_add_text(picture->data, point->label);
    }
}

/* One line for each point, the slowest part first. */
static void
append_roof(GString *text, const void *content, const PlotOptions *options)
{
    const Points *points = content;
    picture_append_title(text, options->title == NULL ? points->title : options->title);
    g_string_append_printf(text, "%-32s %14s %14s  of the peak of %s\n", "", points->x_title,
                           "FLOP/s", units_format_flops(points->peak_flops_per_s).text);
    for (guint i = 0; i < points->points->len; i++) {
        const Point *point = point_at(points, i);
        g_string_append_printf(text, "%-32s %14s %14s  %s\n", point->label,
                               output_number(point->x).text, units_format_flops(point->y).text,
                               output_percent(point->y / points->peak_flops_per_s).text);
    }
}

static bool
draw_roof(Points *picture, const PlotOptions *options, const char *path, GError **error)
{
    static const PictureKind kind = {
        .script = "cli/plots/roofline.gp",
        .fill = fill_roof,
        .append_text = append_roof,
        .has_own_title = true,
    };

    if (picture->points->len == 0)
        return cmd_fail(error, CMD_ERROR_USAGE, "there is nothing to draw: no plan");
    find_roof_ranges(picture);
    choose_roof_labels(picture);
    return picture_draw(&kind, picture, options, path, error);
}

/* --- rooflines of the ops of a plan --- */

/* Adds the ops of one part that compute, in forward; returns the seconds of all its ops. */
static double
add_ops(Points *picture, const Job *job, ModelPart part, int64_t layer, int series)
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
        .flash_attention = plan_attention_is_flash(plan->conventions.attention),
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
        const Point point = {
            .x = flops / bytes,
            .y = flops / seconds,
            .label = g_strdup(ops[i].name),
            .bound = NAN,
            .time_fraction = seconds,
            .series = series,
        };
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
    g_autofree char *split = describe_split(&plan->degrees);
    g_auto(Points) picture = points_new();
    double all_s = 0, drawn_s = 0;

    picture.peak_flops_per_s = profile_peak_flops_per_s(device, plan->dtype);
    picture.bytes_per_s = device->memory_bytes_per_s;
    for (int32_t i = 0; i < model_n_kinds(arch); i++) {
        const int64_t layer = model_first_of_kind(arch, i);
        g_autofree char *name =
            arch->mtp.n > 0 && layer >= arch->n_layers ? g_strdup("MTP module, forward")
            : arch->n_kinds > 0 ? g_strdup_printf("layer, %s, forward", model_kind_name(arch, i))
            : layer >= 0 && model_layer_is_moe(arch, layer)
                ? g_strdup("layer with experts, forward")
                : g_strdup("dense layer, forward");
        if (layer < 0)
            continue;
        picture.series[picture.n_series] = g_intern_string(name);
        all_s += add_ops(&picture, job, MODEL_PART_LAYER, layer, picture.n_series++);
    }
    if (arch->vocab > 0) {
        picture.series[picture.n_series] = "head, forward";
        all_s += add_ops(&picture, job, MODEL_PART_HEAD, 0, picture.n_series++);
    }
    for (guint i = 0; i < picture.points->len; i++) {
        drawn_s += point_at(&picture, i)->time_fraction;
        point_at(&picture, i)->time_fraction /= all_s;
    }
    picture.title = g_strdup_printf("%s on %s: ops below the roof", arch->name, device->name);
    picture.subtitle = g_strdup_printf("%s, micro-batch " INT
                                       ", %s; a point's size is its time; %s of the time in "
                                       "kernels without products",
                                       split, plan->micro_batch, dtype_names[plan->dtype],
                                       output_percent(1 - drawn_s / all_s).text);
    picture.x_title = g_strdup("FLOPs per byte of memory");
    return draw_roof(&picture, options, path, error);
}

/* --- rooflines of the sizes of a sweep --- */

bool
plot_sweep_roofline(const Sweep *sweep, const PlotOptions *options, const char *path,
                    GError **error)
{
    g_auto(Points) picture = points_new();
    bool has_crosses = false;

    for (guint i = 0; i < sweep->points->len; i++) {
        const SweepPoint *p = sweep_at(sweep, i);

        if (!p->is_feasible || !(p->model_flops_utilization_fraction > 0))
            continue;
        /* A cross on its own point is not seen. */
        has_crosses |= p->iteration_s > 1.02 * p->lower_bound_s;
        const Point point = {
            .x = (double)p->global_batch * (double)p->seq_len / (double)p->n_devices,
            .y = p->model_flops_per_s_per_device,
            .bound = p->model_flops_per_s_per_device * p->iteration_s / p->lower_bound_s,
            .time_fraction = 0.3, /* all of one size */
            .label = g_strdup_printf(INT " devices", p->n_devices),
        };
        picture.peak_flops_per_s =
            fmax(picture.peak_flops_per_s,
                 p->model_flops_per_s_per_device / p->model_flops_utilization_fraction);
        g_array_append_val(picture.points, point);
    }
    picture.n_series = 1;
    picture.series[0] = has_crosses ? "the best plan of a size; cross: what no plan exceeds"
                                    : "the best plan of a size, which no other exceeds";
    picture.title =
        g_strdup_printf("%s on %s: devices below their peak", sweep->model, sweep->cluster);
    picture.subtitle = g_strdup_printf("model FLOPs, without recompute; %s", sweep->dtype);
    picture.x_title = g_strdup("tokens of a device in an iteration");
    return draw_roof(&picture, options, path, error);
}
