/*
 * cli/draw/plot.h - pictures of Traces and Reports: SVG and PNG by gnuplot, text and TSV by
 * ourselves.
 *
 * What is drawn comes from cli/draw/timeline.h (boxes, colours, labels), so that terminal, SVG and
 * HTML agree.  The format is the target's suffix: .svg, .png, .txt (or "-": text on stdout), .tsv.
 *
 * A target is written whole or not at all; equal inputs give equal bytes.  Without gnuplot the
 * numbers are left beside the target as FILE.tsv and the error says so.
 *
 * Errors: CMD_ERROR_USAGE (suffix, nothing to draw), CMD_ERROR_MISSING (no gnuplot, or it failed),
 * G_FILE_ERROR.
 */
#ifndef CLI_DRAW_PLOT_H
#define CLI_DRAW_PLOT_H

#include "schedule/report.h"
#include "schedule/trace.h"

G_BEGIN_DECLS

#define PLOT_MAX_TRACES 16

/* Who holds memory, from below: what stays lies under what comes and goes.  Colours of Okabe and
 * Ito, 2008; the letter is for text. */
typedef struct {
    TraceMemoryOwner owner;
    uint32_t rgb;
    char letter;
} PlotOwner;

extern const PlotOwner plot_owners[TRACE_MEMORY_N];

/* One trace and the name of its panel. */
typedef struct {
    const Trace *trace; /* (borrowed) */
    const char *name;   /* (borrowed) hostile text is welcome */
} PlotTrace;

typedef struct {
    const char *title;   /* (nullable) above all panels */
    int64_t limit_bytes; /* memory: a line; 0: none */
    int32_t rank;        /* memory over time: of rank - 1; 0: of the one with the highest peak */
    const char *footer;  /* (nullable) of pictures: the command that drew it */
    bool color;          /* .txt and stdout */
    bool utf8;
    int columns; /* of text; 0: 100 */
} PlotOptions;

/* Fails with CMD_ERROR_USAGE unless the suffix of @path is one of those above: for commands that
 * want to know before they work. */
bool plot_path_check(const char *path, GError **error);

/* One panel of rank rows per trace, above each other on one time axis. */
bool plot_timeline(const PlotTrace *traces, size_t n_traces, const PlotOptions *options,
                   const char *path, GError **error);

/*
 * One row per trace: bytes over time of one rank, by owner; beside it each rank's peak, by owner.
 * CMD_ERROR_USAGE if a trace has no memory or not that rank.
 */
bool plot_memory(const PlotTrace *traces, size_t n_traces, const PlotOptions *options,
                 const char *path, GError **error);

/* Each rank's peak, by owner, and the limit. */
bool plot_report_memory(const Report *report, const char *name, const PlotOptions *options,
                        const char *path, GError **error);

/* Appends @text in single quotes, as gnuplot takes it literally: nothing in it is a command. */
void plot_append_quoted(GString *settings, const char *text);

G_END_DECLS

#endif /* CLI_DRAW_PLOT_H */
