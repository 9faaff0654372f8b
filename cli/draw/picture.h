/*
 * cli/draw/picture.h - what all pictures share: formats, ranges and tics of axes, text, and
 * gnuplot, which draws them.  For the files plot_*.c; commands use plot.h.
 *
 * A kind of picture is a script of cli/plots/, the numbers and the settings that it draws, and the
 * same as text.  Where things lie on the picture and how they look is said in the script.
 *
 * gnuplot executes shell commands in double-quoted strings and at the end of lines in titles, reads
 * the user's start-up files, and exits with 0 when it cannot write.  So: fixed scripts, text from
 * outside only in single quotes, no shell, -d, and the picture's end is checked before it replaces
 * the target.  What it reads and writes are files in memory, so that none is left whatever ends it.
 */
#pragma once

#include "base/table.h"
#include "cli/draw/plot.h"

/* What the script of one picture reads. */
typedef struct {
    GString *settings; /* (owned) variables of the script */
    Table *data;       /* (owned) the numbers, which a reader may want too: the file data_tsv */
    Table *labels;     /* (owned, nullable) the file labels_tsv */
} Picture;

/* A kind of picture of some @content. */
typedef struct {
    const char *script; /* path of an embedded file */
    /* Sets @picture's variables, and makes its data and labels. */
    void (*fill)(Picture *picture, const void *content, const PlotOptions *options);
    /* (nullable) Appends the picture of text, but for the title. */
    void (*append_text)(GString *text, const void *content, const PlotOptions *options);
    bool has_own_title; /* of text: append_text() writes it, too */
} PictureKind;

/* Draws @content to @path: SVG or PNG by gnuplot, the numbers for .tsv, text for .txt and "-".
 * Errors as in plot.h. */
bool picture_draw(const PictureKind *kind, const void *content, const PlotOptions *options,
                  const char *path, GError **error);

/* Appends @title and an empty line; hostile text is escaped. */
void picture_append_title(GString *text, const char *title);

/* --- settings --- */

/* "name = 0.25", whatever the locale. */
void picture_set(Picture *picture, const char *name, double value);

/* "name = 'text'": gnuplot takes what is in single quotes literally, nothing in it is a command. */
void picture_set_text(Picture *picture, const char *name, const char *value);

/* Element @i of an array, counted from 0; gnuplot counts from 1.  Element 0, which is set first,
 * declares the array. */
void picture_set_at(Picture *picture, const char *array, size_t i, double value);
void picture_set_text_at(Picture *picture, const char *array, size_t i, const char *value);

/* The colour of a series or an entry of a legend, as "#rrggbb". */
void picture_set_rgb_at(Picture *picture, const char *array, size_t i, uint32_t rgb);

/* The title and the line below it; options->title takes the place of @title.  The footer. */
void picture_set_titles(Picture *picture, const PlotOptions *options, const char *title,
                        const char *subtitle);

/* Sets time_unit, time_scale (ns per unit), span and tic_step for an axis of @span_ns: the largest
 * unit of which it has more than one.  Returns: ns per unit. */
double picture_set_time_unit(Picture *picture, int64_t span_ns);

/* Returns: how far apart the tics of a time axis of this length are, in its unit. */
double picture_time_step(double span);

/* Sets AXIS_low and AXIS_high, and for a logarithmic axis AXIS_n_tics, AXIS_tic and AXIS_tic_name:
 * powers of ten from @low to @high (> 0), named "50 k", with as many of their multiples between
 * them as the axis has room for. */
void picture_set_range(Picture *picture, const char *axis, double low, double high);
