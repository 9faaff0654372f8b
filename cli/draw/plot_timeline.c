/* Timelines of one or several traces; the declarations are in cli/draw/plot.h. */
#include "cli/draw/picture.h"

#include <math.h>
#include <string.h>

#include "base/text.h"
#include "base/units.h"
#include "cli/request/command.h"
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
    int64_t span_ns;
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
    const int row_px = (int)CLAMP(ROWS_HEIGHT * every / n_ranks, every > 1 ? 2 : 5, 30);
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

/* A panel that leaves most of the axis free is drawn again there, as wide as there is room. */
static void
layout_columns(const Layout *layout, Panel *panel)
{
    const int64_t end_ns = MAX(panel->source->trace->makespan_ns, 1);
    const double all_px = WIDTH - LEFT - RIGHT;
    const double end_px = all_px * (double)end_ns / (double)layout->span_ns;
    const double free_px = all_px - end_px - CALLOUT;

    panel->ns_per_px = (double)layout->span_ns / all_px;
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
    for (size_t i = 0; i < n_traces; i++)
        layout_columns(layout, &layout->panels[i]);
    layout_boxes(layout);
}

/* --- colours --- */

static int
compare_colored(gconstpointer left, gconstpointer right)
{
    const Colored *a = left, *b = right;

    if (a->rgb != b->rgb)
        return a->rgb < b->rgb ? -1 : 1;
    if (a->box.row != b->box.row)
        return a->box.row < b->box.row ? -1 : 1;
    if (a->box.begin_ns != b->box.begin_ns)
        return a->box.begin_ns < b->box.begin_ns ? -1 : 1;
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

static void
add_label(Table *labels, const Panel *panel, size_t p, const Colored *colored, int *n_labels)
{
    const TimelineBox *box = &colored->box;
    const double px = (double)(box->end_ns - box->begin_ns) / panel->ns_per_px;
    const double size = MIN(panel->row_px * 0.5, 11);
    char label[32];

    timeline_label(panel->source->trace, box, label);
    if (*label == 0 || box->is_aside || panel->row_px < 14 || *n_labels >= MAX_LABELS ||
        px < (double)strlen(label) * size * DIGIT_WIDTH + 2)
        return;
    table_add_int64(labels, (int64_t)p);
    table_add_int64(labels, box->row);
    table_add_int64(labels, box->begin_ns + (box->end_ns - box->begin_ns) / 2);
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

        table_add_int64(data, (int64_t)p);
        table_add_int64(data, box->row);
        table_add_int64(data, box->is_aside);
        table_add_text(data, timeline_styles[box->kind].name);
        table_add_int64(data, box->begin_ns);
        table_add_int64(data, box->end_ns);
        table_add_int64(data, box->micro_batch);
        table_add_int64(data, box->slice);
        table_add_int64(data, box->end_ns - box->begin_ns - (int64_t)gap);
        table_add_int64(data, colored->rgb);
        add_label(labels, panel, p, colored, n_labels);
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

static void
set_callout(Picture *picture, const Layout *layout, size_t p)
{
    const Panel *panel = &layout->panels[p];
    const Trace *trace = panel->source->trace;
    const double ratio = (double)layout->span_ns / (double)MAX(trace->makespan_ns, 1);
    const bool is_early = has_callout(layout, panel);
    g_autofree char *copy = g_strdup_printf("magnified %.1f times", panel->copy_times);
    g_autofree char *below = g_strdup_printf("%.*f times shorter", ratio < 10 ? 1 : 0, ratio);

    picture_set_text_at(picture, "callout", p,
                        is_early ? units_format_s(units_s_from_ns(trace->makespan_ns)).text : "");
    picture_set_text_at(picture, "callout_below", p, is_early ? below : "");
    picture_set_at(picture, "copy_left", p, panel->copy_left);
    picture_set_at(picture, "copy_top", p,
                   panel->top + round(panel->n_rows * panel->row_px * (1 - COPY_HEIGHT)));
    picture_set_text_at(picture, "copy_name", p, copy);
}

static void
set_panel(Picture *picture, const Layout *layout, size_t p, double time_scale)
{
    const Panel *panel = &layout->panels[p];
    const Trace *trace = panel->source->trace;
    g_autofree char *about = timeline_title(trace);
    g_autofree char *thinned = NULL;

    if (panel->every > 1)
        thinned = g_strdup_printf("%s (every %dth rank is shown)", about, panel->every);
    picture_set_text_at(picture, "name", p, panel->source->name);
    picture_set_text_at(picture, "about", p, thinned == NULL ? about : thinned);
    /* Half a pixel where it puts the edges of the boxes on whole ones. */
    picture_set_at(picture, "top", p,
                   panel->top + (panel->row_px - timeline_box_px(panel->row_px)) % 2 * 0.5);
    picture_set_at(picture, "rows", p, panel->n_rows);
    picture_set_at(picture, "every", p, panel->every);
    picture_set_at(picture, "row_px", p, panel->row_px);
    picture_set_at(picture, "box_px", p, timeline_box_px(panel->row_px));
    picture_set_at(picture, "tic_every", p, timeline_named_every(panel->row_px));
    picture_set_at(picture, "label_px", p, MIN(panel->row_px * 0.5, 11));
    picture_set_at(picture, "end", p, (double)trace->makespan_ns / time_scale);
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
                                   "drawn_ns\tcolor_rgb");
    picture->labels = table_new_line("trace\trank\tat_ns\ttext\tcolor_rgb");
    for (size_t p = 0; p < drawn->n; p++)
        add_panel(&layout, p, picture->data, picture->labels, &n_labels);
    picture_set_titles(picture, options, "", "");
    picture_set(picture, "layout_height", layout.height);
    picture_set(picture, "copy_height", COPY_HEIGHT);
    picture_set(picture, "bubble_color", bubble_rgb);
    picture_set(picture, "n_panels", (double)layout.n_panels);
    const double scale = picture_set_time_unit(picture, layout.span_ns);
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
