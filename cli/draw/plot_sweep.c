/* Pictures of how training scales; declared in cli/draw/plot.h. */
#include <math.h>

#include "base/text.h"
#include "base/units.h"
#include "cli/request/command.h"
#include "cli/draw/picture.h"

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
} Scaling;

static int64_t
along(const SweepPoint *point, size_t axis)
{
    return *(const int64_t *)(const void *)((const char *)point + axes[axis].offset);
}

/* Whether both are on one curve: of one cluster, and of one size in what is not drawn along. */
static bool
is_same_series(const Scaling *scaling, const SweepPoint *a, const SweepPoint *b)
{
    if (g_strcmp0(a->cluster, b->cluster) != 0)
        return false;
    for (size_t axis = 0; axis < N_AXES; axis++)
        if (axis != scaling->x && along(a, axis) != along(b, axis))
            return false;
    return true;
}

/* Returns: the number of the point's curve, or -1. */
static int
series_of(const Scaling *scaling, const SweepPoint *point)
{
    for (guint k = 0; k < scaling->n_series && point->is_feasible; k++)
        if (is_same_series(scaling, point, scaling->series[k]))
            return (int)k;
    return -1;
}

static void
find_series(Scaling *scaling)
{
    for (guint i = 0; i < scaling->sweep->points->len; i++) {
        const SweepPoint *point = sweep_at(scaling->sweep, i);
        bool is_known = !point->is_feasible;

        for (guint k = 0; !is_known && k < scaling->n_series; k++)
            is_known = is_same_series(scaling, point, scaling->series[k]);
        /* A series that is not drawn is counted once: at its first point. */
        for (guint j = 0; !is_known && j < i; j++)
            is_known = scaling->n_series == MAX_SERIES &&
                       sweep_at(scaling->sweep, j)->is_feasible &&
                       is_same_series(scaling, point, sweep_at(scaling->sweep, j));
        if (is_known)
            continue;
        if (scaling->n_series < MAX_SERIES)
            scaling->series[scaling->n_series++] = point;
        scaling->n_all++;
    }
    for (guint i = 0; i < scaling->sweep->points->len; i++) {
        const SweepPoint *point = sweep_at(scaling->sweep, i);
        const int k = series_of(scaling, point);

        if (k >= 0)
            scaling->best_per_device[k] =
                fmax(scaling->best_per_device[k], point->tokens_per_s_per_device);
    }
}

/* --- data --- */

/* As many tokens/s per device as at the best size of the series: what scales from the smallest one
 * would make memory savers, which few devices need, look like gains of scale. */
static double
ideal_tokens_per_s(const Scaling *scaling, const SweepPoint *point, guint k)
{
    return scaling->x != 0 ? NAN : scaling->best_per_device[k] * (double)point->n_devices;
}

/* The fraction of ideal scaling that a point reaches; where the number of devices stays the same,
 * the fraction of their peak. */
static double
efficiency(const Scaling *scaling, const SweepPoint *point, guint k)
{
    return scaling->x != 0 ? point->model_flops_utilization_fraction
                           : point->tokens_per_s / ideal_tokens_per_s(scaling, point, k);
}

/* "tp 8, pp 4": what was chosen; dp follows. */
static char *
label(const SweepPoint *point)
{
    const PlanDegrees *d = &point->degrees;
    const struct {
        const char *name;
        int64_t n;
    } degrees[] = {
        {"tp", d->tp}, {"cp", d->cp}, {"ep", d->ep}, {"pp", d->pp}, {"dp", d->dp},
    };
    GString *text = g_string_new(NULL);

    for (size_t i = 0; i < G_N_ELEMENTS(degrees); i++)
        if (degrees[i].n > 1)
            g_string_append_printf(text, "%s%s " INT, text->len == 0 ? "" : " ", degrees[i].name,
                                   degrees[i].n);
    return g_string_free(text, FALSE);
}

static void
add_row(Table *table, const Scaling *scaling, const SweepPoint *point, guint k)
{
    g_autofree char *text = label(point);

    table_add_int64(table, k);
    table_add_int64(table, along(point, scaling->x));
    for (size_t axis = 0; axis < N_AXES; axis++)
        table_add_int64(table, along(point, axis));
    table_add_double(table, point->tokens_per_s);
    table_add_double(table, point->effective_tokens_per_s);
    table_add_double(table, ideal_tokens_per_s(scaling, point, k));
    table_add_double(table, efficiency(scaling, point, k));
    table_add_double(table, efficiency(scaling, point, k) * point->goodput.goodput_fraction);
    table_add_int64(table, point->peak_memory_bytes);
    table_add_text(table, *text == 0 ? "-" : text);
    table_add_text(table, point->cluster == NULL ? scaling->sweep->cluster : point->cluster);
}

static Table *
data_new(const Scaling *scaling)
{
    Table *table = table_new_line("series\tx\tn_devices\tglobal_batch\tseq_len\ttokens_per_s\t"
                                  "effective_tokens_per_s\tideal_tokens_per_s\t"
                                  "efficiency_fraction\teffective_efficiency_fraction\t"
                                  "peak_memory_bytes\tlabel\tcluster");

    for (guint k = 0; k < scaling->n_series; k++)
        for (guint i = 0; i < scaling->sweep->points->len; i++)
            if (series_of(scaling, sweep_at(scaling->sweep, i)) == (int)k)
                add_row(table, scaling, sweep_at(scaling->sweep, i), k);
    return table;
}

/* --- settings --- */

static char *
series_name(const Scaling *scaling, guint k)
{
    const char *cluster = scaling->series[k]->cluster;
    GString *text = g_string_new(cluster);

    for (size_t axis = 0; axis < N_AXES; axis++) {
        if (axis == scaling->x ||
            (!sweep_varies(scaling->sweep, axes[axis].offset) && scaling->n_all > 1))
            continue;
        g_string_append_printf(text, "%s" INT " %s",
                               text->len == 0 ? ""
                               : cluster != NULL && *cluster != 0 && g_str_equal(text->str, cluster)
                                   ? ", "
                                   : " x ",
                               along(scaling->series[k], axis), axes[axis].unit);
    }
    return g_string_free(text, FALSE);
}

static void
set_series(Picture *picture, const Scaling *scaling)
{
    picture_set(picture, "n_series", scaling->n_series);
    for (guint k = 0; k < scaling->n_series; k++) {
        g_autofree char *name = series_name(scaling, k);

        picture_set_text_at(picture, "series_name", k, name);
        picture_set_rgb_at(picture, "series_color", k, colors[k]);
    }
}

static bool
has_labels(const Scaling *scaling)
{
    return scaling->n_all == 1 && scaling->sweep->points->len <= MAX_LABELS;
}

/* Up to MAX_TICS of the sizes that are there. */
static void
set_x_axis(Picture *picture, const Scaling *scaling)
{
    g_autoptr(GArray) sizes = g_array_new(FALSE, FALSE, sizeof(int64_t));
    int64_t low = INT64_MAX, high = 0;
    guint n = 0;

    for (guint i = 0; i < scaling->sweep->points->len; i++) {
        const SweepPoint *point = sweep_at(scaling->sweep, i);
        const int64_t x = along(point, scaling->x);
        bool is_new = series_of(scaling, point) >= 0;

        for (guint j = 0; j < sizes->len; j++)
            is_new &= g_array_index(sizes, int64_t, j) != x;
        if (!is_new)
            continue;
        g_array_append_val(sizes, x);
        low = MIN(low, x);
        high = MAX(high, x);
    }
    const guint step = (sizes->len + MAX_TICS - 1) / MAX_TICS;
    for (guint i = 0; i < sizes->len; i += step, n++) {
        const int64_t x = g_array_index(sizes, int64_t, i);
        g_autofree char *name = g_strdup_printf(INT, x);

        picture_set_at(picture, "xtic", n, (double)x);
        picture_set_text_at(picture, "xtic_name", n, name);
    }
    picture_set(picture, "n_xtics", n);
    const double range = low == high ? 2 : (double)high / (double)low;
    picture_set(picture, "x_low", (double)low / pow(range, 0.05));
    /* A label begins at its point. */
    picture_set(picture, "x_high", (double)high * pow(range, has_labels(scaling) ? 0.24 : 0.05));
    picture_set(picture, "second_x_high", (double)high * pow(range, 0.05));
    picture_set_text(picture, "x_title", axes[scaling->x].title);
}

static void
set_y_axis(Picture *picture, const Scaling *scaling)
{
    double low = INFINITY, high = 0;

    for (guint i = 0; i < scaling->sweep->points->len; i++) {
        const SweepPoint *point = sweep_at(scaling->sweep, i);
        const int k = series_of(scaling, point);

        if (k < 0)
            continue;
        low = fmin(low, fmin(point->tokens_per_s, point->effective_tokens_per_s));
        high = fmax(high, fmax(point->tokens_per_s, ideal_tokens_per_s(scaling, point, (guint)k)));
    }
    picture_set_range(picture, "y", low / 1.5, high * 1.25);
}

static void
set_titles(Picture *picture, const Scaling *scaling, const PlotOptions *options)
{
    const Sweep *sweep = scaling->sweep;
    g_autofree char *title = g_strdup_printf("%s on %s", sweep->model, sweep->cluster);
    g_autoptr(GString) about = g_string_new(NULL);

    g_string_append_printf(about, "the best plan at every size, %s", sweep->dtype);
    for (size_t axis = 1; axis < N_AXES && scaling->n_all > 1; axis++)
        if (axis != scaling->x && !sweep_varies(sweep, axes[axis].offset))
            g_string_append_printf(about, ", %s" INT " %s", axis == 2 ? "sequences of " : "",
                                   along(scaling->series[0], axis), axes[axis].unit);
    if (isfinite(sweep->reliability.device_mtbf_s)) {
        g_autofree char *days = g_strdup_printf("%.0f", sweep->reliability.device_mtbf_s / 86400);

        g_string_append_printf(about, "; a device fails every %s days", days);
    }
    if (scaling->n_all > scaling->n_series)
        g_string_append_printf(about, "; %u of %u series", scaling->n_series, scaling->n_all);
    if (!sweep->is_complete)
        g_string_append(about, "; interrupted");
    picture_set_titles(picture, options, title, about->str);
}

static void
set_second_panel(Picture *picture, const Scaling *scaling)
{
    double high = 0;

    for (guint i = 0; i < scaling->sweep->points->len; i++) {
        const SweepPoint *point = sweep_at(scaling->sweep, i);
        const int k = series_of(scaling, point);

        if (k >= 0)
            high = fmax(high, efficiency(scaling, point, (guint)k));
    }
    const double top = fmax(10, ceil(high * 10.5) * 10);
    picture_set(picture, "second_high", top);
    picture_set(picture, "second_step", top > 60 ? 20 : top > 30 ? 10 : 5);
    picture_set_text(picture, "second_title",
                     scaling->x == 0 ? "tokens/s per device, of the best size"
                                     : "model FLOP utilization");
}

/* Whether failures and checkpoints cost a curve so much that its other line can be seen. */
static bool
loses_to_failures(const Scaling *scaling)
{
    for (guint i = 0; i < scaling->sweep->points->len; i++) {
        const SweepPoint *point = sweep_at(scaling->sweep, i);

        if (series_of(scaling, point) >= 0 &&
            point->effective_tokens_per_s < 0.99 * point->tokens_per_s)
            return true;
    }
    return false;
}

static void
fill(Picture *picture, const void *content, const PlotOptions *options)
{
    const Scaling *scaling = content;

    picture->data = data_new(scaling);
    picture_set(picture, "has_ideal", scaling->x == 0);
    picture_set(picture, "has_effective", loses_to_failures(scaling));
    picture_set(picture, "has_labels", has_labels(scaling));
    set_titles(picture, scaling, options);
    set_series(picture, scaling);
    set_x_axis(picture, scaling);
    set_y_axis(picture, scaling);
    set_second_panel(picture, scaling);
}

/* --- text --- */

static void
append_text(GString *text, const void *content, const PlotOptions *options)
{
    const Scaling *scaling = content;
    const int n_cells = MAX((options->columns > 0 ? options->columns : 100) - 44, 10);
    double most = 0;

    for (guint k = 0; k < scaling->n_series; k++)
        for (guint i = 0; i < scaling->sweep->points->len; i++)
            if (series_of(scaling, sweep_at(scaling->sweep, i)) == (int)k)
                most = fmax(most, sweep_at(scaling->sweep, i)->tokens_per_s);
    for (guint k = 0; k < scaling->n_series; k++) {
        g_autofree char *name = series_name(scaling, k);

        g_string_append_printf(text, "%s%s: tokens/s%s\n", k == 0 ? "" : "\n", name,
                               scaling->x == 0 ? ", share of ideal scaling" : ", MFU");
        for (guint i = 0; i < scaling->sweep->points->len; i++) {
            const SweepPoint *point = sweep_at(scaling->sweep, i);
            if (series_of(scaling, point) != (int)k)
                continue;
            g_string_append_printf(text, "%9" G_GINT64_FORMAT " |", along(point, scaling->x));
            for (int c = 0; c < (int)(point->tokens_per_s / most * n_cells + 0.5); c++)
                g_string_append_c(text, '#');
            g_string_append_printf(text, " %s, %d %%\n",
                                   units_format_count(point->tokens_per_s).text,
                                   (int)(100 * efficiency(scaling, point, k) + 0.5));
        }
    }
}

bool
plot_sweep_throughput(const Sweep *sweep, const PlotOptions *options, const char *path,
                      GError **error)
{
    static const PictureKind kind = {
        .script = "cli/plots/throughput.gp",
        .fill = fill,
        .append_text = append_text,
    };
    Scaling scaling = {.sweep = sweep};

    while (scaling.x + 1 < N_AXES && !sweep_varies(sweep, axes[scaling.x].offset))
        scaling.x++;
    if (!sweep_varies(sweep, axes[scaling.x].offset))
        scaling.x = 0;
    find_series(&scaling);
    if (scaling.n_series == 0)
        return cmd_fail(error, CMD_ERROR_USAGE, "there is nothing to draw: no size has a plan");
    return picture_draw(&kind, &scaling, options, path, error);
}
