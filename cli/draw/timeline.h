/*
 * cli/draw/timeline.h - a Trace as boxes: one row per rank, ready to be drawn.
 *
 * What the terminal, gnuplot and the HTML report share: which events are drawn where, in which
 * colour (Okabe-Ito's palette, safe for colour-blind readers), with which label, and how boxes
 * too small to see are merged.
 */
#ifndef CLI_DRAW_TIMELINE_H
#define CLI_DRAW_TIMELINE_H

#include "schedule/trace.h"

G_BEGIN_DECLS

/* What a colour stands for. */
typedef enum {
    TIMELINE_FORWARD,
    TIMELINE_BACKWARD,
    TIMELINE_BACKWARD_INPUT,
    TIMELINE_BACKWARD_WEIGHT,
    TIMELINE_RECOMPUTE, /* the part of a backward in which the forward is done again; drawn first */
    TIMELINE_MESSAGE,   /* a blocking send or receive on the compute stream */
    TIMELINE_WAIT,
    TIMELINE_DP, /* gradients and parameters over data-parallel ranks */
    TIMELINE_OPTIMIZER,
    TIMELINE_KIND_N,
} TimelineKind;

typedef struct {
    const char *name;  /* "forward" */
    uint32_t rgb;      /* 0xRRGGBB */
    uint32_t text_rgb; /* of a label on it */
    const char *utf8;  /* one cell of the terminal without colours */
    char ascii;        /* the same where there is only ASCII */
} TimelineStyle;

extern const TimelineStyle timeline_styles[TIMELINE_KIND_N];

/* One box.  Boxes of a (row, lane) do not overlap and are in order of time. */
typedef struct {
    int64_t begin_ns, end_ns;
    int32_t row;         /* rank */
    int32_t micro_batch; /* -1: none, or merged */
    int32_t slice;
    uint32_t rgb; /* of the kind; merged: of all that is in it, by their share of time */
    uint8_t chunk;
    uint8_t kind;  /* TimelineKind */
    bool is_aside; /* beside the compute stream: data-parallel traffic behind computing */
} TimelineBox;

typedef struct {
    int32_t n_rows;
    int64_t end_ns; /* makespan */
    GArray *boxes;  /* of TimelineBox, by (row, aside, begin) */
} Timeline;

/*
 * @min_ns  neighbours shorter than this are merged, into boxes of the kind that fills most of them,
 *          until they are as long.
 */
Timeline *timeline_new(const Trace *trace, int64_t min_ns);
void timeline_free(Timeline *timeline);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Timeline, timeline_free)

/* How a text picture is drawn. */
typedef struct {
    int columns; /* in all */
    bool color, utf8;
    int32_t max_rows; /* more ranks are thinned out evenly, and the picture says so; 0: no limit */
    /* ns from the left to the right end; 0: the trace's makespan.  For pictures to be compared. */
    int64_t span_ns;
    bool is_unitless; /* times are counts of 1 s (plain op times): the axis has no unit */
} TimelineText;

/* Columns between the margins of a picture of @n_ranks ranks, if its times have units. */
int timeline_n_cells(const TimelineText *how, int32_t n_ranks);

/* Whether @rank is one of @max_rows shown of @n_ranks; the first and the last are. */
bool timeline_is_shown(int32_t rank, int32_t n_ranks, int32_t max_rows);

/* Appends the picture: rows, axis with units; the legend is apart, see below. */
void timeline_append_text(GString *text, const Trace *trace, const TimelineText *how);

/* Appends one line of what is in these traces. */
void timeline_append_legend(GString *text, const Trace *const *traces, size_t n_traces,
                            const TimelineText *how);

/* Returns: (owned) "1f1b, 4 ranks, 8 micro-batches, 4 slices: 1.16 s, bubble 12.3 %", the bubble
 * where the trace knows it. */
char *timeline_title(const Trace *trace);

/* Writes "3" or "3.1" (micro-batch and slice) into @text. */
void timeline_label(const Trace *trace, const TimelineBox *box, char text[32]);

/*
 * The colour of a box in SVG: slices run from dark to light, so that a micro-batch begins where it
 * is dark again; without slices later chunks and odd micro-batches are lighter.
 */
uint32_t timeline_box_rgb(const Trace *trace, const TimelineBox *box);

/* Black or white, whichever is easier to read on @rgb. */
uint32_t timeline_label_rgb(uint32_t rgb);

/* Sets @present for the kinds of which there are boxes; leaves the others as they are. */
void timeline_find_kinds(const Timeline *timeline, bool present[TIMELINE_KIND_N]);

/* The height of a box in a row of @row_px pixels: high rows leave a gap to the next. */
int timeline_box_px(int row_px);

/* Rows from one that shows its rank's number to the next, so that the numbers do not touch. */
int32_t timeline_named_every(int row_px);

/* The step of a time axis: 1, 2 or 5 times a power of ten nanoseconds, the smallest that gives at
 * most @max steps in @span_ns. */
int64_t timeline_tick_ns(int64_t span_ns, int max);

G_END_DECLS

#endif /* CLI_DRAW_TIMELINE_H */
