/*
 * cli/draw/plot_gnuplot.h - runs gnuplot on one of our scripts.  Private to cli/plot*.c.
 *
 * Traps that this avoids: gnuplot executes shell commands in double-quoted strings and at the end
 * of lines in titles, reads the user's start-up files, and exits with 0 when the disk is full.  So:
 * fixed scripts, hostile text only in single quotes (plot_append_quoted), no shell, -d, a private
 * directory, and the picture's end is checked before it replaces the target.
 */
#ifndef CLI_DRAW_PLOT_GNUPLOT_H
#define CLI_DRAW_PLOT_GNUPLOT_H

#include <glib.h>
#include <stdbool.h>

#include "base/table.h"

G_BEGIN_DECLS

typedef enum {
    PLOT_FORMAT_SVG,
    PLOT_FORMAT_PNG,
    PLOT_FORMAT_TEXT,
    PLOT_FORMAT_TSV,
    PLOT_FORMAT_N,
} PlotFormat;

/* By suffix, whatever its case; "-" is text.  PLOT_FORMAT_N with CMD_ERROR_USAGE if unknown. */
PlotFormat plot_format(const char *path, GError **error);

/* One picture to be. */
typedef struct {
    const char *script; /* path of an embedded file; it loads settings.gp */
    GString *settings;  /* (owned) variables of the script */
    Table *data;        /* (owned) data.tsv: the numbers, which a reader may want too */
    Table *labels;      /* (owned, nullable) labels.tsv */
} PlotPicture;

void plot_picture_clear(PlotPicture *picture);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(PlotPicture, plot_picture_clear)

/* Draws @picture to @path, SVG or PNG; or writes its data for TSV. */
bool plot_gnuplot_draw(const PlotPicture *picture, PlotFormat format, const char *path,
                       GError **error);

/* "name = 0.25\n", locale-free. */
void plot_set_double(GString *settings, const char *name, double value);
void plot_set_text(GString *settings, const char *name, const char *value);

/* Sets time_unit, time_scale (ns per unit), span and tic_step for an axis of @span_ns: the largest
 * unit of which it has more than one.  Returns: ns per unit. */
double plot_set_time_unit(GString *settings, int64_t span_ns);

/* Sets AXIS_n_tics, AXIS_tic and AXIS_tic_name: 1, 2 and 5 times the powers of ten from @low to
 * @high (> 0), named "50 k"; only powers where there would be too many. */
void plot_set_log_tics(GString *settings, const char *axis, double low, double high);

/* --- pictures of text --- */

/* Appends @title and an empty line; hostile text is escaped. */
void plot_append_title(GString *text, const char *title);
/* "-" is stdout. */
bool plot_write_text(const GString *text, const char *path, GError **error);

G_END_DECLS

#endif /* CLI_DRAW_PLOT_GNUPLOT_H */
