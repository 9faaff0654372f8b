/* Timelines of one or several traces; the declarations are in cli/draw/plot.h. */
#include "cli/draw/picture.h"

#include <math.h>
#include <string.h>

#include "base/order.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/draw/timeline.h"

/* Pixels of the picture; the script draws in the same ones. */
enum {
    WIDTH = 1200,
    LEFT = 64,
    RIGHT = 28,
    PANEL_HEADER = 64, /* above each panel: its name and what it is */
    TITLE = 34,        /* above all, if there is a title */
    CALLOUT = 215,     /* to the right of a short panel: words about it */
    FOOTER = 76,       /* below: tics, axis title, legend */
    ROWS_HEIGHT = 560, /* of all panels together, if rows of 5 to 30 pixels can do that */
    MAX_ROWS = 1024,   /* of all panels together; more ranks are thinned out */
    MAX_BOXES = 40000, /* 28 bytes each in an SVG */
    MAX_LABELS = 4000, /* 280 bytes each */
};

/* A letter of DejaVu Sans, the widest of the usual fonts, is this share of its size wide. */
#define DIGIT_WIDTH 0.64
/* Ops narrower than this make stripes, without the number of a micro-batch beyond 9: the steady state is folded, so that they
 * get FOLDED_OP_PX, in which numbers of three digits are at home. */
#define STRIPE_PX 12.0
#define FOLDED_OP_PX 20.0
/* The gap where a timeline is folded. */
#define FOLD_PX 22.0
/* More than this share must be hidden, or it is not worth a fold. */
#define WORTH_FOLDING 0.3
/* The height of a magnified copy, as a share of its panel. */
#define COPY_HEIGHT 0.7

static const uint32_t bubble_rgb = 0xf0f0f0;

/* A box with its colour, sorted for the SVG: neighbours of one colour share a path. */
typedef struct {
    TimelineBox box;
    uint32_t rgb;
} Colored;

typedef struct {
    const PlotTrace *source;
    Timeline *timeline;
    int32_t every; /* row i shows rank i * every */
    int32_t n_rows;
    int row_px;
    int top;
    double ns_per_px; /* of the magnified copy, where there is one */
    int copy_left;    /* of the magnified copy beside a short panel; 0: none */
    double copy_times;
} Panel;

typedef struct {
    Panel panels[PLOT_MAX_TRACES];
    size_t n_panels;
    int64_t span_ns;            /* of the longest trace */
    int64_t fold_ns, unfold_ns; /* what lies between is not drawn; both 0: all is */
    double drawn_ns;            /* the length of the time axis, with the gap of the fold */
    int height;
} Layout;

static void
layout_clear(Layout *layout)
{
    for (size_t i = 0; i < layout->n_panels; i++)
        timeline_free(layout->panels[i].timeline);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Layout, layout_clear)

/* --- layout --- */

/* Whether a panel ends so much earlier than the longest one that words beside it say so. */
static bool
has_callout(const Layout *layout, const Panel *panel)
{
    const double ratio =
        (double)layout->span_ns / (double)MAX(panel->source->trace->makespan_ns, 1);

    return panel->source->trace->makespan_ns > 0 && ratio >= 1.4 &&
           panel->n_rows * panel->row_px >= 56;
}

static void
layout_rows(Layout *layout)
{
    int64_t n_ranks = 0;

    for (size_t i = 0; i < layout->n_panels; i++)
        n_ranks += layout->panels[i].source->trace->n_ranks;
    const int32_t every = (int32_t)((n_ranks + MAX_ROWS - 1) / MAX_ROWS);
    const int row_px = (int)CLAMP(ROWS_HEIGHT * every / MAX(n_ranks, 1), every > 1 ? 2 : 5, 30);
    int y = layout->height;

    for (size_t i = 0; i < layout->n_panels; i++) {
        Panel *panel = &layout->panels[i];

        panel->every = every;
        panel->n_rows = (panel->source->trace->n_ranks - 1) / every + 1;
        panel->row_px = row_px > 5 || panel->n_rows < 400 ? row_px : 2;
        y += PANEL_HEADER;
        panel->top = y;
        y += panel->n_rows * panel->row_px;
    }
    layout->height = y + FOOTER;
}

/* --- folding --- */

static int
compare_int64s(gconstpointer a, gconstpointer b)
{
    return ORDER(*(const int64_t *)a, *(const int64_t *)b);
}

/* What a trace says of its steady state. */
typedef struct {
    int64_t op_ns;      /* the median time of an op */
    int64_t warm_ns;    /* when all ranks have begun their first backward */
    int64_t cooling_ns; /* when a rank has ended its last forward */
} Steady;

static Steady
steady_of(const Trace *trace)
{
    g_autoptr(GArray) times = g_array_new(FALSE, FALSE, sizeof(int64_t));
    g_autofree int64_t *first = g_new(int64_t, (size_t)trace->n_ranks);
    g_autofree int64_t *last = g_new0(int64_t, (size_t)trace->n_ranks);
    Steady steady = {.cooling_ns = INT64_MAX};

    for (int32_t r = 0; r < trace->n_ranks; r++)
        first[r] = INT64_MAX;
    for (guint i = 0; i < trace->events->len; i++) {
        const TraceEvent *event = &g_array_index(trace->events, TraceEvent, i);
        const int64_t ns = event->end_ns - event->start_ns;

        if (event->rank >= trace->n_ranks || event->kind > TRACE_EVENT_BACKWARD_WEIGHT)
            continue;
        g_array_append_val(times, ns);
        if (event->kind == TRACE_EVENT_FORWARD)
            last[event->rank] = MAX(last[event->rank], event->end_ns);
        else
            first[event->rank] = MIN(first[event->rank], event->start_ns);
    }
    if (times->len == 0)
        return steady;
    g_array_sort(times, compare_int64s);
    steady.op_ns = g_array_index(times, int64_t, times->len / 2);
    for (int32_t r = 0; r < trace->n_ranks; r++) {
        steady.warm_ns = MAX(steady.warm_ns, first[r]);
        steady.cooling_ns = MIN(steady.cooling_ns, last[r]);
    }
    return steady;
}

/* Hides the middle of the steady state where its ops would be stripes, in all panels the same. */
static void
layout_fold(Layout *layout)
{
    const double all_px = WIDTH - LEFT - RIGHT;
    int64_t op_ns = INT64_MAX, begin = 0, end = INT64_MAX;

    layout->drawn_ns = (double)layout->span_ns;
    for (size_t i = 0; i < layout->n_panels; i++) {
        const Trace *trace = layout->panels[i].source->trace;
        const Steady steady = steady_of(trace);

        if (steady.op_ns == 0 || steady.warm_ns == INT64_MAX ||
            (double)trace->makespan_ns < 0.9 * (double)layout->span_ns)
            return;
        op_ns = MIN(op_ns, steady.op_ns);
        begin = MAX(begin, steady.warm_ns);
        end = MIN(end, steady.cooling_ns);
    }
    if ((double)op_ns / (double)layout->span_ns * all_px >= STRIPE_PX)
        return;
    const double shown_ns = all_px / FOLDED_OP_PX * (double)op_ns;
    const double rest_ns = (double)begin + (double)(layout->span_ns - end);
    const double more_ns = fmax(8.0 * (double)op_ns, shown_ns - rest_ns) / 2.0;
    begin += (int64_t)more_ns;
    end -= (int64_t)more_ns;
    if ((double)(end - begin) < WORTH_FOLDING * (double)layout->span_ns)
        return;
    layout->fold_ns = begin;
    layout->unfold_ns = end;
    layout->drawn_ns = (double)(layout->span_ns - (end - begin)) * all_px / (all_px - FOLD_PX);
}

/* Where a moment lies on the time axis; NaN: it is hidden. */
static double
place_of(const Layout *layout, int64_t ns)
{
    if (layout->unfold_ns == 0 || ns <= layout->fold_ns)
        return (double)ns;
    if (ns < layout->unfold_ns)
        return (double)NAN;
    const double gap = layout->drawn_ns * FOLD_PX / (WIDTH - LEFT - RIGHT);
    return (double)(ns - layout->unfold_ns + layout->fold_ns) + gap;
}

/* --- columns --- */

/* A panel that leaves most of the axis free is drawn again there, as wide as there is room. */
static void
layout_columns(const Layout *layout, Panel *panel)
{
    const int64_t end_ns = MAX(panel->source->trace->makespan_ns, 1);
    const double all_px = WIDTH - LEFT - RIGHT;
    const double end_px = all_px * (double)end_ns / (double)layout->span_ns;
    const double free_px = all_px - end_px - CALLOUT;

    panel->ns_per_px = layout->drawn_ns / all_px;
    if (layout->n_panels > 1 && has_callout(layout, panel) && free_px > 1.8 * end_px) {
        panel->copy_left = WIDTH - RIGHT - (int)free_px;
        panel->copy_times = floor(free_px) / end_px;
        panel->ns_per_px = (double)end_ns / floor(free_px);
    }
}

/* Merges what is below half a pixel, and then more until the file is not too large. */
static void
layout_boxes(Layout *layout)
{
    double min_px = 0.5;

    for (;;) {
        size_t n_boxes = 0;

        for (size_t i = 0; i < layout->n_panels; i++) {
            Panel *panel = &layout->panels[i];

            timeline_free(panel->timeline);
            panel->timeline =
                timeline_new(panel->source->trace, (int64_t)(min_px * panel->ns_per_px));
            n_boxes += panel->timeline->boxes->len / (size_t)panel->every;
        }
        /* A box per 8 pixels is coarse enough for any number of rows. */
        if (n_boxes <= MAX_BOXES || min_px > 8)
            return;
        min_px *= 1.5;
    }
}

static void
layout_init(Layout *layout, const PlotTrace *traces, size_t n_traces, const PlotOptions *options)
{
    layout->n_panels = n_traces;
    layout->span_ns = 1;
    layout->height = options->title == NULL ? -12 : TITLE - 12;
    for (size_t i = 0; i < n_traces; i++) {
        layout->panels[i].source = &traces[i];
        layout->span_ns = MAX(layout->span_ns, traces[i].trace->makespan_ns);
    }
    layout_rows(layout);
    layout_fold(layout);
    for (size_t i = 0; i < n_traces; i++)
        layout_columns(layout, &layout->panels[i]);
    layout_boxes(layout);
}

/* --- colours --- */

static int
compare_colored(gconstpointer left, gconstpointer right)
{
    const Colored *a = left, *b = right;

    ORDER_BY(a->rgb, b->rgb);
    ORDER_BY(a->box.row, b->box.row);
    ORDER_BY(a->box.begin_ns, b->box.begin_ns);
    return (int)a->box.is_aside - (int)b->box.is_aside;
}

/* (owned) array of Colored: the boxes of the rows that are shown. */
static GArray *
colored_boxes(const Panel *panel)
{
    GArray *boxes = g_array_new(FALSE, FALSE, sizeof(Colored));

    for (guint i = 0; i < panel->timeline->boxes->len; i++) {
        const TimelineBox *box = &g_array_index(panel->timeline->boxes, TimelineBox, i);

        if (box->row % panel->every == 0) {
            const Colored colored = {*box, timeline_box_rgb(panel->source->trace, box)};

            g_array_append_val(boxes, colored);
        }
    }
    g_array_sort(boxes, compare_colored);
    return boxes;
}

/* --- tables --- */

/* The moments of a box between which it is drawn: all of it, or what the fold leaves. */
static int64_t
unfold_before(const Layout *layout, const TimelineBox *box)
{
    return box->begin_ns > layout->fold_ns && box->end_ns > layout->unfold_ns ? layout->unfold_ns
                                                                              : box->begin_ns;
}

static int64_t
fold_after(const Layout *layout, const TimelineBox *box)
{
    return box->begin_ns < layout->fold_ns && box->end_ns > layout->fold_ns && layout->unfold_ns > 0
               ? layout->fold_ns
               : box->end_ns;
}

/* @begin and @end  between which places of the time axis it is drawn */
static void
add_label(Table *labels, const Panel *panel, size_t p, const Colored *colored, double begin,
          double end, int *n_labels)
{
    const TimelineBox *box = &colored->box;
    const double px = (end - begin) / panel->ns_per_px;
    const double size = MIN(panel->row_px * 0.5, 11);
    char label[32];

    timeline_label(panel->source->trace, box, label);
    if (*label == 0 || box->is_aside || panel->row_px < 14 || *n_labels >= MAX_LABELS ||
        px < (double)strlen(label) * size * DIGIT_WIDTH + 2)
        return;
    table_add_int64(labels, (int64_t)p);
    table_add_int64(labels, box->row);
    table_add_int64(labels, (int64_t)((begin + end) / 2.0));
    table_add_text(labels, label);
    table_add_int64(labels, timeline_label_rgb(colored->rgb));
    ++*n_labels;
}

static void
add_panel(const Layout *layout, size_t p, Table *data, Table *labels, int *n_labels)
{
    const Panel *panel = &layout->panels[p];
    g_autoptr(GArray) boxes = colored_boxes(panel);

    for (guint i = 0; i < boxes->len; i++) {
        const Colored *colored = &g_array_index(boxes, Colored, i);
        const TimelineBox *box = &colored->box;
        const double px = (double)(box->end_ns - box->begin_ns) / panel->ns_per_px;
        /* Boxes wide enough leave a gap to the next. */
        const double gap = (px >= 12 ? 1 : px >= 5 ? 0.6 : 0) * panel->ns_per_px;
        const double begin = place_of(layout, MAX(box->begin_ns, unfold_before(layout, box)));
        const double end = place_of(layout, fold_after(layout, box));

        table_add_int64(data, (int64_t)p);
        table_add_int64(data, box->row);
        table_add_int64(data, box->is_aside);
        table_add_text(data, timeline_styles[box->kind].name);
        table_add_int64(data, box->begin_ns);
        table_add_int64(data, box->end_ns);
        table_add_int64(data, box->micro_batch);
        table_add_int64(data, box->slice);
        table_add_double(data, round(end - begin - gap));
        table_add_int64(data, colored->rgb);
        table_add_double(data, round(begin));
        if (!isnan(begin) && !isnan(end))
            add_label(labels, panel, p, colored, begin, end, n_labels);
    }
}

/* --- settings --- */

/* Returns what light and dark shades of a colour mean. */
static const char *
legend_note(const Layout *layout)
{
    bool is_sliced = false, has_chunks = false, is_whole = false;

    for (size_t p = 0; p < layout->n_panels; p++) {
        const Trace *trace = layout->panels[p].source->trace;

        is_sliced |= trace->n_slices > 1;
        has_chunks |= trace->n_slices == 1 && trace->n_chunks > 1;
        is_whole |= trace->n_slices == 1 && trace->n_micro_batches > 1;
    }
    if (is_sliced)
        return "dark to light: the slices of a micro-batch, in order of tokens";
    if (has_chunks)
        return "dark to light: the chunks of a rank";
    return is_whole ? "light: odd micro-batches" : "";
}

static void
set_legend(Picture *picture, const Layout *layout)
{
    bool present[TIMELINE_KIND_N] = {false};
    size_t n = 0;

    for (size_t p = 0; p < layout->n_panels; p++)
        timeline_find_kinds(layout->panels[p].timeline, present);
    for (size_t k = 0; k <= TIMELINE_KIND_N; k++) {
        if (k < TIMELINE_KIND_N && !present[k])
            continue;
        picture_set_text_at(picture, "legend_name", n,
                            k < TIMELINE_KIND_N ? timeline_styles[k].name : "bubble");
        picture_set_at(picture, "legend_color", n,
                       k < TIMELINE_KIND_N ? timeline_styles[k].rgb : bubble_rgb);
        n++;
    }
    picture_set(picture, "n_legend", (double)n);
    picture_set_text(picture, "legend_note", legend_note(layout));
}

/* The panel with what was measured of the schedule that @panel predicts; NULL if there is none. */
static const Panel *
measured_panel(const Layout *layout, const Panel *panel)
{
    const Trace *predicted = panel->source->trace;

    for (size_t p = 0; p < layout->n_panels && !predicted->measured; p++) {
        const Trace *trace = layout->panels[p].source->trace;

        if (trace->measured && trace->makespan_ns > 0 &&
            strcmp(trace->schedule, predicted->schedule) == 0)
            return &layout->panels[p];
    }
    return NULL;
}

/* Returns: (owned) "error -4.1 %" */
static char *
error_text(const Trace *predicted, const Trace *measured)
{
    const double ratio = (double)predicted->makespan_ns / (double)measured->makespan_ns;

    return g_strdup_printf("error %+.1f %%", 100.0 * (ratio - 1.0));
}

static void
set_callout(Picture *picture, const Layout *layout, size_t p)
{
    const Panel *panel = &layout->panels[p];
    const Trace *trace = panel->source->trace;
    const double ratio = (double)layout->span_ns / (double)MAX(trace->makespan_ns, 1);
    const bool is_early = has_callout(layout, panel);
    g_autofree char *copy = g_strdup_printf("magnified %.1f times", panel->copy_times);
    const Panel *measured = measured_panel(layout, panel);
    g_autofree char *below = measured == NULL
                                 ? g_strdup_printf("%.*f times shorter", ratio < 10 ? 1 : 0, ratio)
                                 : error_text(trace, measured->source->trace);

    picture_set_text_at(picture, "callout", p,
                        is_early ? units_format_s(units_s_from_ns(trace->makespan_ns)).text : "");
    picture_set_text_at(picture, "callout_below", p, is_early ? below : "");
    picture_set_at(picture, "copy_left", p, panel->copy_left);
    picture_set_at(picture, "copy_top", p,
                   panel->top + round(panel->n_rows * panel->row_px * (1 - COPY_HEIGHT)));
    picture_set_text_at(picture, "copy_name", p, copy);
}

/* The gap of the fold, and the tics of an axis that has one: at whole steps of what is drawn. */
static void
set_fold(Picture *picture, const Layout *layout, double time_scale)
{
    const double px = layout->drawn_ns / (WIDTH - LEFT - RIGHT);
    const double step_ns = picture_time_step(layout->drawn_ns / time_scale) * time_scale;
    size_t n = 0;

    picture_set(picture, "fold_from", (double)layout->fold_ns / time_scale);
    picture_set(picture, "fold_to", place_of(layout, layout->unfold_ns) / time_scale);
    for (double ns = 0; layout->unfold_ns > 0 && ns <= (double)layout->span_ns; ns += step_ns) {
        const double at = place_of(layout, (int64_t)ns);
        const double from_fold = at - (double)layout->fold_ns;
        g_autofree char *name = json_format_double(round(ns / step_ns) * step_ns / time_scale);

        /* A number at the gap would lie on that of its other side. */
        if (isnan(at) || (from_fold > -14 * px && from_fold < (FOLD_PX + 14) * px))
            continue;
        picture_set_at(picture, "fold_tic", n, at / time_scale);
        picture_set_text_at(picture, "fold_tic_name", n++, name);
    }
    picture_set(picture, "n_fold_tics", (double)n);
}

static void
set_panel(Picture *picture, const Layout *layout, size_t p, double time_scale)
{
    const Panel *panel = &layout->panels[p];
    const Trace *trace = panel->source->trace;
    const Panel *measured = measured_panel(layout, panel);
    g_autofree char *title = timeline_title(trace);
    g_autoptr(GString) about = g_string_new(title);

    if (measured != NULL) {
        g_autofree char *text = error_text(trace, measured->source->trace);
        g_string_append_printf(about, ", %s", text);
    }
    if (layout->unfold_ns > 0)
        g_string_append_printf(
            about, "; %s of its steady state are folded away",
            units_format_s(units_s_from_ns(layout->unfold_ns - layout->fold_ns)).text);
    if (panel->every > 1)
        g_string_append_printf(about, " (every %dth rank is shown)", panel->every);
    picture_set_text_at(picture, "name", p, panel->source->name);
    picture_set_text_at(picture, "about", p, about->str);
    /* Half a pixel where it puts the edges of the boxes on whole ones. */
    picture_set_at(picture, "top", p,
                   panel->top + (panel->row_px - timeline_box_px(panel->row_px)) % 2 * 0.5);
    picture_set_at(picture, "rows", p, panel->n_rows);
    picture_set_at(picture, "every", p, panel->every);
    picture_set_at(picture, "row_px", p, panel->row_px);
    picture_set_at(picture, "box_px", p, timeline_box_px(panel->row_px));
    picture_set_at(picture, "tic_every", p, timeline_named_every(panel->row_px));
    picture_set_at(picture, "label_px", p, MIN(panel->row_px * 0.5, 11));
    picture_set_at(picture, "end", p, place_of(layout, trace->makespan_ns) / time_scale);
    set_callout(picture, layout, p);
}

/* The traces that are drawn. */
typedef struct {
    const PlotTrace *traces;
    size_t n;
} Content;

static void
fill(Picture *picture, const void *content, const PlotOptions *options)
{
    const Content *drawn = content;
    g_auto(Layout) layout = {0};
    int n_labels = 0;

    layout_init(&layout, drawn->traces, drawn->n, options);
    picture->data = table_new_line("trace\trank\taside\tkind\tstart_ns\tend_ns\tmicrobatch\tslice\t"
                                   "drawn_ns\tcolor_rgb\tdrawn_start_ns");
    picture->labels = table_new_line("trace\trank\tat_ns\ttext\tcolor_rgb");
    for (size_t p = 0; p < drawn->n; p++)
        add_panel(&layout, p, picture->data, picture->labels, &n_labels);
    picture_set_titles(picture, options, "", "");
    picture_set(picture, "layout_height", layout.height);
    picture_set(picture, "copy_height", COPY_HEIGHT);
    picture_set(picture, "bubble_color", bubble_rgb);
    picture_set(picture, "n_panels", (double)layout.n_panels);
    const double scale = picture_set_time_unit(picture, (int64_t)layout.drawn_ns);
    set_fold(picture, &layout, scale);
    set_legend(picture, &layout);
    for (size_t p = 0; p < layout.n_panels; p++)
        set_panel(picture, &layout, p, scale);
}

/* --- text --- */

static void
append_text(GString *text, const void *content, const PlotOptions *options)
{
    const Content *drawn = content;
    const Trace *all[PLOT_MAX_TRACES];
    TimelineText how = {.columns = options->columns > 0 ? options->columns : 100,
                        .color = options->color,
                        .utf8 = options->utf8,
                        .is_unitless = options->is_unitless,
                        .max_rows = 64};

    for (size_t i = 0; i < drawn->n; i++) {
        all[i] = drawn->traces[i].trace;
        how.span_ns = MAX(how.span_ns, all[i]->makespan_ns);
    }
    for (size_t i = 0; i < drawn->n; i++) {
        g_autofree char *about = timeline_title(all[i]);
        g_autofree char *name = text_escape(drawn->traces[i].name, 160);

        g_string_append_printf(text, "%s: %s\n", name, about);
        timeline_append_text(text, all[i], &how);
    }
    timeline_append_legend(text, all, drawn->n, &how);
}

bool
plot_timeline(const PlotTrace *traces, size_t n_traces, const PlotOptions *options,
              const char *path, GError **error)
{
    static const PictureKind kind = {
        .script = "cli/plots/timeline.gp",
        .fill = fill,
        .append_text = append_text,
    };
    const Content content = {traces, n_traces};

    g_return_val_if_fail(n_traces > 0 && n_traces <= PLOT_MAX_TRACES, false);
    return picture_draw(&kind, &content, options, path, error);
}
