/*
 * cli/draw/plot_scatter.h - predicted against measured: one point for each row, the line of
 * equality, a band of 10 %.
 *
 * Formats and errors as in cli/draw/plot.h.
 */
#ifndef CLI_DRAW_PLOT_SCATTER_H
#define CLI_DRAW_PLOT_SCATTER_H

#include <glib.h>
#include <stdbool.h>

G_BEGIN_DECLS

typedef struct {
    double measured, raw, fitted; /* > 0, in the unit; NaN: not there */
} PlotScatterPoint;

typedef struct {
    const GArray *points; /* of PlotScatterPoint */
    const char *title, *subtitle, *unit;
    const char *raw_name, *fitted_name; /* of the legend; fitted_name nullable: none is shown */
} PlotScatter;

bool plot_scatter(const PlotScatter *scatter, const char *path, GError **error);

G_END_DECLS

#endif /* CLI_DRAW_PLOT_SCATTER_H */
