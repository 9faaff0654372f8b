/*
 * cli/draw/plot.h - pictures of traces, reports, plans, sweeps and validations: SVG and PNG by
 * gnuplot, text and TSV by ourselves.  The main header of the room draw/, which shows things to
 * people: tables and lines of text (describe.h), timelines (timeline.h), pictures, one page.
 * Commands and the rooms above come in; nothing here asks what the user wanted.
 *
 * The format is the target's suffix: .svg, .png, .txt (or "-": text on stdout), .tsv.  A target is
 * written whole or not at all; equal inputs give equal bytes.  Without gnuplot the numbers are left
 * beside the target as FILE.tsv and the error says so.
 *
 * Errors of all: CMD_ERROR_USAGE (suffix, nothing to draw), CMD_ERROR_MISSING (no gnuplot, or it
 * failed), G_FILE_ERROR.
 */
#pragma once

#include "cli/draw/page.h"
#include "cli/request/job.h"
#include "cli/request/sweep.h"
#include "schedule/report.h"
#include "schedule/trace.h"

typedef struct {
    const char *title;   /* (nullable) above all panels */
    int64_t limit_bytes; /* memory: a line; 0: none */
    int32_t rank;        /* memory over time: of rank - 1; 0: of the one with the highest peak */
    const char *footer;  /* (nullable) of pictures: the command that drew it */
    bool color;          /* .txt and stdout */
    bool is_unitless;    /* .txt and stdout: times are counts, as of bare schedules */
    bool utf8;
    int columns; /* of text; 0: 100 */
} PlotOptions;

/* Fails with CMD_ERROR_USAGE unless the suffix of @path is one of those above: for commands that
 * want to know before they work.  Defined in picture.c. */
bool plot_path_check(const char *path, GError **error);

/* --- traces and reports: timelines (defined in plot_timeline.c), memory (plot_memory.c) --- */

#define PLOT_MAX_TRACES 16

/* One trace and the name of its panel. */
typedef struct {
    const Trace *trace; /* (borrowed) */
    const char *name;   /* (borrowed) hostile text is welcome */
} PlotTrace;

/* One panel of rank rows per trace, above each other on one time axis. */
bool plot_timeline(const PlotTrace *traces, size_t n_traces, const PlotOptions *options,
                   const char *path, GError **error);

/* Who holds memory, in the order in which bars are stacked from below: what stays for the whole
 * iteration, then what comes and goes.  Colours of Okabe and Ito, 2008; the letter is for text. */
typedef struct {
    TraceMemoryOwner owner;
    uint32_t rgb;
    char letter;
} PlotOwner;

extern const PlotOwner plot_owners[TRACE_MEMORY_N];

/* One row per trace: bytes over time of one rank, by owner; beside it each rank's peak, by owner.
 * CMD_ERROR_USAGE if a trace has no memory or not that rank. */
bool plot_memory(const PlotTrace *traces, size_t n_traces, const PlotOptions *options,
                 const char *path, GError **error);

/* Each rank's peak, by owner, and the limit. */
bool plot_report_memory(const Report *report, const char *name, const PlotOptions *options,
                        const char *path, GError **error);

/* --- sweeps: scaling (defined in plot_sweep.c) --- */

/* Two panels over devices, a logarithmic axis: tokens/s with the line of as many tokens/s per
 * device as at the best size of each series, and the share of that line that is reached.  A series
 * is a batch and a sequence length.  CMD_ERROR_USAGE if no point is feasible. */
bool plot_sweep_throughput(const Sweep *sweep, const PlotOptions *options, const char *path,
                           GError **error);

/* --- trade-offs (defined in plot_points.c): what another point beats in both numbers is pale; the
 * others are the front, a line of steps --- */

/* Time against memory of the plan and its alternatives.  CMD_ERROR_USAGE without any, or without
 * predictions. */
bool plot_plan_pareto(const Job *job, const PlotOptions *options, const char *path, GError **error);

/* Days and cost of the training; without --tokens, tokens/s and cost (or energy, or devices) per
 * token.  CMD_ERROR_USAGE if no point is feasible. */
bool plot_sweep_pareto(const Sweep *sweep, const PlotOptions *options, const char *path,
                       GError **error);

/* --- rooflines (defined in plot_points.c): how near ops, or whole plans, come to what a device can
 * do --- */

/* Each op of the plan's layers and head: FLOP/s over FLOPs per byte, below the roof of the device's
 * peak and its memory's bandwidth  [williams2009]. */
bool plot_plan_roofline(const Job *job, const PlotOptions *options, const char *path,
                        GError **error);

/* FLOP/s of a device over the tokens that it gets in an iteration; above each size the FLOP/s that
 * the search proved that no plan exceeds.  CMD_ERROR_USAGE if no point is feasible. */
bool plot_sweep_roofline(const Sweep *sweep, const PlotOptions *options, const char *path,
                         GError **error);

/* --- predicted against measured (defined in plot_scatter.c): one point for each row, the line of
 * equality, a band of 10 % --- */

typedef struct {
    double measured, raw, fitted; /* > 0, in the unit; NaN: not there */
} PlotScatterPoint;

typedef struct {
    const GArray *points; /* of PlotScatterPoint */
    const char *title, *subtitle, *unit;
    const char *raw_name, *fitted_name; /* of the legend; fitted_name nullable: none is shown */
} PlotScatter;

/* @path  .svg, .png or .tsv: it is not drawn as text. */
bool plot_scatter(const PlotScatter *scatter, const char *path, GError **error);

/* --- an iteration on a page (defined in html.c) --- */

/*
 * Adds an iteration to @page: numbers, where the time goes, timeline, ranks, memory.  With scripts
 * the timeline can be zoomed and tells what is under the pointer.  The page stays below 5 MB: boxes
 * that are too small to see are merged, and it says so.  One iteration per page.
 * @job     (nullable) NULL for a bare schedule
 * @report  (nullable) NULL: the timeline alone, as of a measured trace
 */
void html_add_iteration(HtmlPage *page, const Job *job, const Report *report, const Trace *trace);

/* Returns: (owned) "llama3-70b on dgx-h100". */
char *html_title(const Job *job);

/* Writes a simulated iteration as a page of its own to @path.
 * @footer  the command line that writes it */
bool html_write(const Job *job, const Report *report, const Trace *trace, const char *footer,
                const char *path, GError **error);
