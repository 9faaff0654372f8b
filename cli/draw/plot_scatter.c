#include "cli/draw/plot_scatter.h"

#include <math.h>

#include "cli/request/output.h"
#include "cli/draw/plot_gnuplot.h"

#define WIDTH 560
#define HEIGHT 620
#define LEFT 70
#define RIGHT 20
#define TOP 66
#define BOTTOM 530
#define LEGEND 600
#define MAX_TICS 12

/* Okabe and Ito, 2008. */
#define RAW_COLOR "#e69f00"
#define FITTED_COLOR "#0072b2"

/* What all numbers lie between, a little apart from the edges. */
static void
range_of(const GArray *points, double *low, double *high)
{
    *low = INFINITY;
    *high = 0.0;
    for (guint i = 0; i < points->len; i++) {
        const PlotScatterPoint *point = &g_array_index(points, PlotScatterPoint, i);
        const double values[] = {point->measured, point->raw, point->fitted};

        for (size_t k = 0; k < G_N_ELEMENTS(values); k++) {
            if (isfinite(values[k]) && values[k] > 0.0) {
                *low = fmin(*low, values[k]);
                *high = fmax(*high, values[k]);
            }
        }
    }
    if (*high == 0.0)
        *low = *high = 1.0;
    *low /= 1.15;
    *high *= 1.15;
}

/* 1, 2, 5 times powers of ten; of wide ranges the powers alone, of narrow ones every digit. */
static void
set_tics(GString *settings, double low, double high)
{
    static const double of_all[] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, of_most[] = {1, 2, 5};
    const bool is_narrow = high / low < 10.0;
    const double *steps = is_narrow ? of_all : of_most;
    const size_t n_steps = is_narrow             ? G_N_ELEMENTS(of_all)
                           : high / low > 3000.0 ? 1
                                                 : G_N_ELEMENTS(of_most);
    int n = 0;

    g_string_append_printf(settings, "array tic[%d]\narray tic_name[%d]\n", MAX_TICS, MAX_TICS);
    for (double ten = 1e-9; ten < high && n < MAX_TICS; ten *= 10.0) {
        for (size_t k = 0; k < n_steps && n < MAX_TICS; k++) {
            const double value = ten * steps[k];
            g_autofree char *name = output_number(value);
            g_autofree char *element = NULL, *label = NULL;

            if (value < low || value > high)
                continue;
            n++;
            element = g_strdup_printf("tic[%d]", n);
            label = g_strdup_printf("tic_name[%d]", n);
            plot_set_double(settings, element, value);
            plot_set_text(settings, label, name);
        }
    }
    plot_set_double(settings, "n_tics", n);
}

static void
set_layout(GString *settings)
{
    static const struct {
        const char *name;
        double value;
    } lengths[] = {
        {"width", WIDTH}, {"height", HEIGHT}, {"left", LEFT},       {"right", RIGHT},
        {"top", TOP},     {"bottom", BOTTOM}, {"legend_y", LEGEND},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(lengths); i++)
        plot_set_double(settings, lengths[i].name, lengths[i].value);
    plot_set_text(settings, "font_name", "sans-serif");
    plot_set_text(settings, "raw_color", RAW_COLOR);
    plot_set_text(settings, "fitted_color", FITTED_COLOR);
}

bool
plot_scatter(const PlotScatter *scatter, const char *path, GError **error)
{
    static const char *const header[] = {"measured", "raw", "calibrated", NULL};
    const PlotFormat format = plot_format(path, error);
    g_auto(PlotPicture) picture = {.script = "cli/plots/scatter.gp",
                                   .settings = g_string_new(NULL),
                                   .data = table_new(header)};
    double low, high;

    if (format == PLOT_FORMAT_N)
        return false;
    range_of(scatter->points, &low, &high);
    set_layout(picture.settings);
    plot_set_text(picture.settings, "title", scatter->title);
    plot_set_text(picture.settings, "subtitle", scatter->subtitle);
    plot_set_text(picture.settings, "unit_name", scatter->unit);
    plot_set_text(picture.settings, "raw_name", scatter->raw_name);
    plot_set_text(picture.settings, "fitted_name",
                  scatter->fitted_name == NULL ? "" : scatter->fitted_name);
    plot_set_double(picture.settings, "has_fitted", scatter->fitted_name != NULL);
    plot_set_double(picture.settings, "low", low);
    plot_set_double(picture.settings, "high", high);
    set_tics(picture.settings, low, high);
    for (guint i = 0; i < scatter->points->len; i++) {
        const PlotScatterPoint *point = &g_array_index(scatter->points, PlotScatterPoint, i);

        table_add_double(picture.data, point->measured);
        table_add_double(picture.data, point->raw);
        table_add_double(picture.data, point->fitted);
    }
    return plot_gnuplot_draw(&picture, format, path, error);
}
