/*
 * cli/draw/timeline.h - a Trace as boxes: one row per rank, ready to be drawn.
 *
 * The terminal, gnuplot and the HTML page share this: which events are drawn where, in which colour
 * (Okabe and Ito's palette, which colour-blind readers can tell apart; its light blue is the shade
 * of odd micro-batches' forwards, so that data parallel has Tol's wine and the exchanges of experts olive) and with which label, and
 * how boxes that are too small to see are merged.
 */
#pragma once

#include "schedule/trace.h"

/* What a colour stands for. */
typedef enum {
    TIMELINE_FORWARD,
    TIMELINE_BACKWARD,
    TIMELINE_BACKWARD_INPUT,
    TIMELINE_BACKWARD_WEIGHT,
    TIMELINE_RECOMPUTE, /* the first part of a backward, in which the forward is computed again */
    TIMELINE_MESSAGE,   /* a blocking send or receive on the compute stream */
    TIMELINE_WAIT,
    TIMELINE_DP, /* data-parallel ranks reduce gradients or gather parameters */
    TIMELINE_EP, /* rows go to experts or back while another micro-batch computes */
    TIMELINE_OPTIMIZER,
    TIMELINE_KIND_N,
} TimelineKind;

typedef struct {
    const char *name;  /* "forward" */
    uint32_t rgb;      /* 0xRRGGBB */
    uint32_t text_rgb; /* of a label on it */
    const char *utf8;  /* a cell of a picture of text without colours */
    char ascii;        /* the same where only ASCII can be shown */
} TimelineStyle;

extern const TimelineStyle timeline_styles[TIMELINE_KIND_N];

/* One box.  Boxes of one row with the same is_aside do not overlap and are in order of time. */
typedef struct {
    int64_t begin_ns, end_ns;
    int32_t row;         /* rank */
    int32_t micro_batch; /* -1: the event has none, or the box is merged */
    int32_t slice;
    uint32_t rgb; /* of the kind; of a merged box the mean of its events' colours, by time */
    uint8_t chunk;
    uint8_t kind;  /* TimelineKind */
    bool is_aside; /* data-parallel traffic while the rank computes: drawn as a thin box below */
} TimelineBox;

typedef struct {
    int32_t n_rows;
    int64_t end_ns; /* makespan */
    GArray *boxes;  /* of TimelineBox, by (row, aside, begin) */
} Timeline;

/*
 * Returns: (owned) the boxes of @trace.
 * @min_ns  neighbours that are shorter than this are merged until they are as long; a merged box
 * has the kind that fills most of it
 */
Timeline *timeline_new(const Trace *trace, int64_t min_ns);
void timeline_free(Timeline *timeline);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Timeline, timeline_free)

/* How a picture of text is drawn. */
typedef struct {
    int columns; /* of the whole picture */
    bool color, utf8;
    int32_t max_rows; /* of more ranks so many are shown, evenly spaced; 0: no limit */
    /* Nanoseconds from the left end to the right, the same for pictures to be compared; 0: the
     * trace's makespan. */
    int64_t span_ns;
    bool is_unitless; /* times are counts of 1 s (plain op times): the axis has no unit */
} TimelineText;

/* How many columns lie between the margins of a picture of @n_ranks ranks with units of time. */
int timeline_n_cells(const TimelineText *how, int32_t n_ranks);

/* Whether @rank is one of the @max_rows of @n_ranks ranks that are shown; the first and the last
 * are. */
bool timeline_is_shown(int32_t rank, int32_t n_ranks, int32_t max_rows);

/* Appends the picture without its legend: a row for each rank that is shown, and the axis. */
void timeline_append_text(GString *text, const Trace *trace, const TimelineText *how);

/* Appends one line that says what the cells of these traces mean. */
void timeline_append_legend(GString *text, const Trace *const *traces, size_t n_traces,
                            const TimelineText *how);

/* Returns: (owned) "1f1b, 4 ranks, 8 micro-batches, 4 slices: iteration 1.16 s, bubble 12.3 %";
 * without the bubble where the trace does not know it. */
char *timeline_title(const Trace *trace);

/* Writes the box's label into @text: its micro-batch, its slice, or both as "3.1"; "" for none. */
void timeline_label(const Trace *trace, const TimelineBox *box, char text[32]);

/* The colour of a box in SVG.  The slices of a micro-batch run from dark to light, so that the next
 * one begins where it is dark again; without slices, later chunks and odd micro-batches are
 * lighter. */
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
