#include "cli/draw/plot_sweep.h"

#include <math.h>
#include <string.h>

#include "base/text.h"
#include "base/units.h"
#include "cli/request/command.h"
#include "cli/draw/plot_gnuplot.h"

/* Lengths in pixels. */
#define WIDTH 1160
#define HEIGHT 560
#define LEFT 78
#define RIGHT 26
#define MIDDLE 690
#define TOP 104
#define BOTTOM 472
#define LEGEND 536
#define COMMAND 18 /* the line that says what drew it */
/* More curves cannot be told apart; more labels cover each other. */
#define MAX_SERIES 7
#define MAX_LABELS 12
#define MAX_TICS 12

static const uint32_t colors[MAX_SERIES] = {/* Okabe and Ito, 2008 */
                                            0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7,
                                            0xe69f00, 0x56b4e9, 0x555555};

/* The axes of a sweep, as offsets of int64_t in SweepPoint. */
static const struct {
    size_t offset;
    const char *title; /* of the axis */
    const char *unit;  /* in a series' name */
} axes[] = {
    {offsetof(SweepPoint, n_devices), "devices", "devices"},
    {offsetof(SweepPoint, global_batch), "global batch [sequences]", "sequences"},
    {offsetof(SweepPoint, seq_len), "sequence length [tokens]", "tokens"},
};
#define N_AXES G_N_ELEMENTS(axes)

typedef struct {
    const Sweep *sweep;
    size_t x;                             /* axis that is drawn along */
    guint n_series;                       /* drawn */
    guint n_all;                          /* there are */
    const SweepPoint *series[MAX_SERIES]; /* (borrowed) the first feasible point of each */
    double best_per_device[MAX_SERIES];   /* tokens/s */
} Picture;

static int64_t
along(const SweepPoint *point, size_t axis)
{
    return *(const int64_t *)(const void *)((const char *)point + axes[axis].offset);
}

static const SweepPoint *
point_at(const Sweep *sweep, guint i)
{
    return &g_array_index(sweep->points, SweepPoint, i);
}

/* Whether both are on one curve. */
static bool
is_same_series(const Picture *picture, const SweepPoint *a, const SweepPoint *b)
{
    for (size_t axis = 0; axis < N_AXES; axis++)
        if (axis != picture->x && along(a, axis) != along(b, axis))
            return false;
    return true;
}

static bool
varies(const Sweep *sweep, size_t axis)
{
    for (guint i = 1; i < sweep->points->len; i++)
        if (along(point_at(sweep, i), axis) != along(point_at(sweep, 0), axis))
            return true;
    return false;
}

/* Returns: the number of the point's curve, or -1. */
static int
series_of(const Picture *picture, const SweepPoint *point)
{
    for (guint k = 0; k < picture->n_series && point->is_feasible; k++)
        if (is_same_series(picture, point, picture->series[k]))
            return (int)k;
    return -1;
}

static void
find_series(Picture *picture)
{
    for (guint i = 0; i < picture->sweep->points->len; i++) {
        const SweepPoint *point = point_at(picture->sweep, i);
        bool is_known = !point->is_feasible;

        for (guint k = 0; !is_known && k < picture->n_series; k++)
            is_known = is_same_series(picture, point, picture->series[k]);
        /* A series that is not drawn is counted once: at its first point. */
        for (guint j = 0; !is_known && j < i; j++)
            is_known = picture->n_series == MAX_SERIES &&
                       point_at(picture->sweep, j)->is_feasible &&
                       is_same_series(picture, point, point_at(picture->sweep, j));
        if (is_known)
            continue;
        if (picture->n_series < MAX_SERIES)
            picture->series[picture->n_series++] = point;
        picture->n_all++;
    }
    for (guint i = 0; i < picture->sweep->points->len; i++) {
        const SweepPoint *point = point_at(picture->sweep, i);
        const int k = series_of(picture, point);

        if (k >= 0)
            picture->best_per_device[k] =
                fmax(picture->best_per_device[k], point->tokens_per_s_per_device);
    }
}

/* --- data --- */

/* As many tokens/s per device as at the best size of the series: what scales from the smallest one
 * would make memory savers, which few devices need, look like gains of scale. */
static double
ideal_tokens_per_s(const Picture *picture, const SweepPoint *point, guint k)
{
    return picture->x != 0 ? NAN : picture->best_per_device[k] * (double)point->n_devices;
}

/* Of ideal scaling; where the devices stay the same, of their peak. */
static double
efficiency(const Picture *picture, const SweepPoint *point, guint k)
{
    return picture->x != 0 ? point->model_flops_utilization_fraction
                           : point->tokens_per_s / ideal_tokens_per_s(picture, point, k);
}

/* "tp 8, pp 4": what was chosen; dp follows. */
static char *
label(const SweepPoint *point)
{
    const struct {
        const char *name;
        int64_t n;
    } degrees[] = {
        {"tp", point->tp}, {"cp", point->cp}, {"ep", point->ep},
        {"pp", point->pp}, {"dp", point->dp},
    };
    GString *text = g_string_new(NULL);

    for (size_t i = 0; i < G_N_ELEMENTS(degrees); i++)
        if (degrees[i].n > 1)
            g_string_append_printf(text, "%s%s %" G_GINT64_FORMAT, text->len == 0 ? "" : " ",
                                   degrees[i].name, degrees[i].n);
    return g_string_free(text, FALSE);
}

static void
add_row(Table *table, const Picture *picture, const SweepPoint *point, guint k)
{
    g_autofree char *text = label(point);

    table_add_int64(table, k);
    table_add_int64(table, along(point, picture->x));
    for (size_t axis = 0; axis < N_AXES; axis++)
        table_add_int64(table, along(point, axis));
    table_add_double(table, point->tokens_per_s);
    table_add_double(table, point->effective_tokens_per_s);
    table_add_double(table, ideal_tokens_per_s(picture, point, k));
    table_add_double(table, efficiency(picture, point, k));
    table_add_double(table, efficiency(picture, point, k) * point->goodput_fraction);
    table_add_int64(table, point->peak_memory_bytes);
    table_add_text(table, *text == 0 ? "-" : text);
}

static Table *
data_new(const Picture *picture)
{
    static const char *const header[] = {"series",
                                         "x",
                                         "n_devices",
                                         "global_batch",
                                         "seq_len",
                                         "tokens_per_s",
                                         "effective_tokens_per_s",
                                         "ideal_tokens_per_s",
                                         "efficiency_fraction",
                                         "effective_efficiency_fraction",
                                         "peak_memory_bytes",
                                         "label",
                                         NULL};
    Table *table = table_new(header);

    for (guint k = 0; k < picture->n_series; k++)
        for (guint i = 0; i < picture->sweep->points->len; i++)
            if (series_of(picture, point_at(picture->sweep, i)) == (int)k)
                add_row(table, picture, point_at(picture->sweep, i), k);
    return table;
}

/* --- settings --- */

static char *
series_name(const Picture *picture, guint k)
{
    GString *text = g_string_new(NULL);

    for (size_t axis = 0; axis < N_AXES; axis++) {
        if (axis == picture->x || (!varies(picture->sweep, axis) && picture->n_all > 1))
            continue;
        g_string_append_printf(text, "%s%" G_GINT64_FORMAT " %s", text->len == 0 ? "" : " x ",
                               along(picture->series[k], axis), axes[axis].unit);
    }
    return g_string_free(text, FALSE);
}

/* "name[k+1] = 'text'" */
static void
set_element(GString *settings, const char *array, guint k, const char *text)
{
    g_autofree char *name = g_strdup_printf("%s[%u]", array, k + 1);

    plot_set_text(settings, name, text);
}

static void
set_series(GString *settings, const Picture *picture)
{
    plot_set_double(settings, "n_series", picture->n_series);
    g_string_append_printf(settings, "array series_name[%u]\narray series_color[%u]\n",
                           picture->n_series, picture->n_series);
    for (guint k = 0; k < picture->n_series; k++) {
        g_autofree char *name = series_name(picture, k);
        g_autofree char *color = g_strdup_printf("#%06x", colors[k]);

        set_element(settings, "series_name", k, name);
        set_element(settings, "series_color", k, color);
    }
}

static bool
has_labels(const Picture *picture)
{
    return picture->n_all == 1 && picture->sweep->points->len <= MAX_LABELS;
}

/* Up to MAX_TICS of the sizes that are there. */
static void
set_x_axis(GString *settings, const Picture *picture)
{
    g_autoptr(GArray) sizes = g_array_new(FALSE, FALSE, sizeof(int64_t));
    int64_t low = INT64_MAX, high = 0;
    guint n = 0;

    for (guint i = 0; i < picture->sweep->points->len; i++) {
        const SweepPoint *point = point_at(picture->sweep, i);
        const int64_t x = along(point, picture->x);
        bool is_new = series_of(picture, point) >= 0;

        for (guint j = 0; j < sizes->len; j++)
            is_new &= g_array_index(sizes, int64_t, j) != x;
        if (!is_new)
            continue;
        g_array_append_val(sizes, x);
        low = MIN(low, x);
        high = MAX(high, x);
    }
    const guint step = (sizes->len + MAX_TICS - 1) / MAX_TICS;
    g_string_append_printf(settings, "array xtic[%u]\narray xtic_name[%u]\n", sizes->len,
                           sizes->len);
    for (guint i = 0; i < sizes->len; i += step, n++) {
        const int64_t x = g_array_index(sizes, int64_t, i);
        g_autofree char *name = g_strdup_printf("%" G_GINT64_FORMAT, x);

        g_string_append_printf(settings, "xtic[%u] = %" G_GINT64_FORMAT ".0\n", n + 1, x);
        set_element(settings, "xtic_name", n, name);
    }
    plot_set_double(settings, "n_xtics", n);
    const double range = low == high ? 2 : (double)high / (double)low;
    plot_set_double(settings, "x_low", (double)low / pow(range, 0.05));
    /* A label begins at its point. */
    plot_set_double(settings, "x_high",
                    (double)high * pow(range, has_labels(picture) ? 0.24 : 0.05));
    plot_set_double(settings, "second_x_high", (double)high * pow(range, 0.05));
    plot_set_text(settings, "x_title", axes[picture->x].title);
}

static void
set_y_axis(GString *settings, const Picture *picture)
{
    double low = INFINITY, high = 0;

    for (guint i = 0; i < picture->sweep->points->len; i++) {
        const SweepPoint *point = point_at(picture->sweep, i);
        const int k = series_of(picture, point);

        if (k < 0)
            continue;
        low = fmin(low, fmin(point->tokens_per_s, point->effective_tokens_per_s));
        high = fmax(high, fmax(point->tokens_per_s, ideal_tokens_per_s(picture, point, (guint)k)));
    }
    low /= 1.5;
    high *= 1.25;
    plot_set_log_tics(settings, "y", low, high);
    plot_set_double(settings, "y_low", low);
    plot_set_double(settings, "y_high", high);
}

static void
set_titles(GString *settings, const Picture *picture, const PlotOptions *options)
{
    const Sweep *sweep = picture->sweep;
    g_autofree char *title = g_strdup_printf("%s on %s", sweep->model, sweep->cluster);
    g_autoptr(GString) about = g_string_new(NULL);

    g_string_append_printf(about, "the best plan at every size, %s", sweep->dtype);
    for (size_t axis = 1; axis < N_AXES && picture->n_all > 1; axis++)
        if (axis != picture->x && !varies(sweep, axis))
            g_string_append_printf(about, ", %s%" G_GINT64_FORMAT " %s",
                                   axis == 2 ? "sequences of " : "",
                                   along(picture->series[0], axis), axes[axis].unit);
    if (isfinite(sweep->reliability.device_mtbf_s)) {
        g_autofree char *days = g_strdup_printf("%.0f", sweep->reliability.device_mtbf_s / 86400);

        g_string_append_printf(about, "; a device fails every %s days", days);
    }
    if (picture->n_all > picture->n_series)
        g_string_append_printf(about, "; %u of %u series", picture->n_series, picture->n_all);
    if (!sweep->is_complete)
        g_string_append(about, "; interrupted");
    plot_set_text(settings, "title", options->title == NULL ? title : options->title);
    plot_set_text(settings, "subtitle", about->str);
}

static void
set_second_panel(GString *settings, const Picture *picture)
{
    double high = 0;

    for (guint i = 0; i < picture->sweep->points->len; i++) {
        const SweepPoint *point = point_at(picture->sweep, i);
        const int k = series_of(picture, point);

        if (k >= 0)
            high = fmax(high, efficiency(picture, point, (guint)k));
    }
    const double top = fmax(10, ceil(high * 10.5) * 10);
    plot_set_double(settings, "second_high", top);
    plot_set_double(settings, "second_step", top > 60 ? 20 : top > 30 ? 10 : 5);
    plot_set_text(settings, "second_title",
                  picture->x == 0 ? "tokens/s per device, of the best size"
                                  : "model FLOP utilization");
}

static GString *
settings_new(const Picture *picture, const PlotOptions *options)
{
    GString *settings = g_string_new(NULL);

    plot_set_double(settings, "width", WIDTH);
    plot_set_double(settings, "height", HEIGHT + (options->footer == NULL ? 0 : COMMAND));
    plot_set_text(settings, "footer", options->footer == NULL ? "" : options->footer);
    plot_set_double(settings, "left", LEFT);
    plot_set_double(settings, "right", RIGHT);
    plot_set_double(settings, "middle", MIDDLE);
    plot_set_double(settings, "top", TOP);
    plot_set_double(settings, "bottom", BOTTOM);
    plot_set_double(settings, "legend_y", LEGEND);
    plot_set_text(settings, "font_name", "sans-serif");
    plot_set_double(settings, "has_ideal", picture->x == 0);
    plot_set_double(settings, "has_effective", isfinite(picture->sweep->reliability.device_mtbf_s));
    plot_set_double(settings, "has_labels", has_labels(picture));
    set_titles(settings, picture, options);
    set_series(settings, picture);
    set_x_axis(settings, picture);
    set_y_axis(settings, picture);
    set_second_panel(settings, picture);
    return settings;
}

/* --- text --- */

static bool
write_text(const Picture *picture, const PlotOptions *options, const char *path, GError **error)
{
    const int n_cells = MAX((options->columns > 0 ? options->columns : 100) - 44, 10);
    g_autoptr(GString) text = g_string_new(NULL);
    double most = 0;

    if (options->title != NULL)
        plot_append_title(text, options->title);
    for (guint k = 0; k < picture->n_series; k++)
        for (guint i = 0; i < picture->sweep->points->len; i++)
            if (series_of(picture, point_at(picture->sweep, i)) == (int)k)
                most = fmax(most, point_at(picture->sweep, i)->tokens_per_s);
    for (guint k = 0; k < picture->n_series; k++) {
        g_autofree char *name = series_name(picture, k);

        g_string_append_printf(text, "%s%s: tokens/s%s\n", k == 0 ? "" : "\n", name,
                               picture->x == 0 ? ", share of ideal scaling" : ", MFU");
        for (guint i = 0; i < picture->sweep->points->len; i++) {
            const SweepPoint *point = point_at(picture->sweep, i);
            g_autofree char *rate = units_format_count(point->tokens_per_s);

            if (series_of(picture, point) != (int)k)
                continue;
            g_string_append_printf(text, "%9" G_GINT64_FORMAT " |", along(point, picture->x));
            for (int c = 0; c < (int)(point->tokens_per_s / most * n_cells + 0.5); c++)
                g_string_append_c(text, '#');
            g_string_append_printf(text, " %s, %d %%\n", rate,
                                   (int)(100 * efficiency(picture, point, k) + 0.5));
        }
    }
    return plot_write_text(text, path, error);
}

bool
plot_sweep_throughput(const Sweep *sweep, const PlotOptions *options, const char *path,
                      GError **error)
{
    const PlotFormat format = plot_format(path, error);
    g_auto(PlotPicture) drawn = {.script = "cli/plots/throughput.gp"};
    Picture picture = {.sweep = sweep};

    if (format == PLOT_FORMAT_N)
        return false;
    while (picture.x + 1 < N_AXES && !varies(sweep, picture.x))
        picture.x++;
    if (!varies(sweep, picture.x))
        picture.x = 0;
    find_series(&picture);
    if (picture.n_series == 0) {
        g_set_error_literal(error, CMD_ERROR, CMD_ERROR_USAGE,
                            "there is nothing to draw: no size has a plan");
        return false;
    }
    if (format == PLOT_FORMAT_TEXT)
        return write_text(&picture, options, path, error);
    drawn.data = data_new(&picture);
    drawn.settings = settings_new(&picture, options);
    return plot_gnuplot_draw(&drawn, format, path, error);
}
