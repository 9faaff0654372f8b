/* Predicted against measured; declared in cli/draw/plot.h. */
#include <math.h>

#include "cli/draw/picture.h"
#include "cli/request/output.h"

#define MAX_TICS 12

/* Sets low and high, which all numbers lie between, a little apart from the edges. */
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
set_tics(Picture *picture, double low, double high)
{
    static const double of_all[] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, of_most[] = {1, 2, 5};
    const bool is_narrow = high / low < 10.0;
    const double *steps = is_narrow ? of_all : of_most;
    const size_t n_steps = is_narrow             ? G_N_ELEMENTS(of_all)
                           : high / low > 3000.0 ? 1
                                                 : G_N_ELEMENTS(of_most);
    size_t n = 0;

    for (double ten = 1e-9; ten < high && n < MAX_TICS; ten *= 10.0) {
        for (size_t k = 0; k < n_steps && n < MAX_TICS; k++) {
            const double value = ten * steps[k];
            if (value < low || value > high)
                continue;
            picture_set_at(picture, "tic", n, value);
            picture_set_text_at(picture, "tic_name", n++, output_number(value).text);
        }
    }
    picture_set(picture, "n_tics", (double)n);
}

static void
fill(Picture *picture, const void *content, const PlotOptions *options)
{
    const PlotScatter *scatter = content;
    double low, high;

    range_of(scatter->points, &low, &high);
    picture_set_titles(picture, options, scatter->title, scatter->subtitle);
    picture_set_text(picture, "unit_name", scatter->unit);
    picture_set_text(picture, "raw_name", scatter->raw_name);
    picture_set_text(picture, "fitted_name",
                     scatter->fitted_name == NULL ? "" : scatter->fitted_name);
    picture_set(picture, "has_fitted", scatter->fitted_name != NULL);
    picture_set(picture, "low", low);
    picture_set(picture, "high", high);
    set_tics(picture, low, high);
    picture->data = table_new_line("measured\traw\tcalibrated");
    for (guint i = 0; i < scatter->points->len; i++) {
        const PlotScatterPoint *point = &g_array_index(scatter->points, PlotScatterPoint, i);

        table_add_double(picture->data, point->measured);
        table_add_double(picture->data, point->raw);
        table_add_double(picture->data, point->fitted);
    }
}

bool
plot_scatter(const PlotScatter *scatter, const char *path, GError **error)
{
    static const PictureKind kind = {.script = "cli/plots/scatter.gp", .fill = fill};
    const PlotOptions options = {0};

    return picture_draw(&kind, scatter, &options, path, error);
}
