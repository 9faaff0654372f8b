#include "cli/draw/timeline.h"

#include <math.h>
#include <string.h>

#include "base/units.h"
#include "cli/request/output.h"

/* Okabe and Ito, "Color Universal Design", 2008, with a grey for waiting that is darker than that
 * of bubbles. */
const TimelineStyle timeline_styles[TIMELINE_KIND_N] = {
    [TIMELINE_FORWARD] = {"forward", 0x0072b2, 0xffffff, "█", '#'},
    [TIMELINE_BACKWARD] = {"backward", 0xe69f00, 0x000000, "▒", '='},
    [TIMELINE_BACKWARD_INPUT] = {"input gradient", 0xd55e00, 0xffffff, "▓", '+'},
    [TIMELINE_BACKWARD_WEIGHT] = {"weight gradient", 0x009e73, 0xffffff, "░", '-'},
    [TIMELINE_RECOMPUTE] = {"recompute", 0x7f4a00, 0xffffff, "▚", ':'},
    [TIMELINE_MESSAGE] = {"message", 0xcc79a7, 0x000000, "╌", '~'},
    [TIMELINE_WAIT] = {"waiting", 0x9a9a9a, 0x000000, "·", '.'},
    [TIMELINE_DP] = {"data parallel", 0x882255, 0xffffff, "≈", '%'},
    [TIMELINE_EP] = {"experts' exchange", 0x808000, 0xffffff, "≋", '^'},
    [TIMELINE_OPTIMIZER] = {"optimizer", 0xf0e442, 0x000000, "◆", '*'},
};

static TimelineKind
kind_of(uint8_t event_kind)
{
    static const TimelineKind kinds[TRACE_EVENT_N] = {
        [TRACE_EVENT_FORWARD] = TIMELINE_FORWARD,
        [TRACE_EVENT_BACKWARD] = TIMELINE_BACKWARD,
        [TRACE_EVENT_BACKWARD_INPUT] = TIMELINE_BACKWARD_INPUT,
        [TRACE_EVENT_BACKWARD_WEIGHT] = TIMELINE_BACKWARD_WEIGHT,
        [TRACE_EVENT_SEND] = TIMELINE_MESSAGE,
        [TRACE_EVENT_RECEIVE] = TIMELINE_MESSAGE,
        [TRACE_EVENT_WAIT] = TIMELINE_WAIT,
        [TRACE_EVENT_DP_REDUCE] = TIMELINE_DP,
        [TRACE_EVENT_DP_GATHER] = TIMELINE_DP,
        [TRACE_EVENT_OPTIMIZER] = TIMELINE_OPTIMIZER,
        [TRACE_EVENT_EXCHANGE] = TIMELINE_EP,
    };

    return kinds[event_kind];
}

/* A box being merged: how long each kind is in it. */
typedef struct {
    TimelineBox box;
    int64_t kind_ns[TIMELINE_KIND_N];
    bool is_open, is_merged;
} Merge;

/* The mean colour of what was merged, gaps being white.  In steps of 8, so that neighbours of about
 * the same mix have the same colour. */
static uint32_t
mixed_rgb(const Merge *merge)
{
    const double all = (double)(merge->box.end_ns - merge->box.begin_ns);
    uint32_t rgb = 0;

    for (int shift = 0; shift < 24; shift += 8) {
        double sum = 0xff * all;

        for (size_t k = 0; k < TIMELINE_KIND_N; k++)
            sum -= (double)merge->kind_ns[k] * (0xff - (timeline_styles[k].rgb >> shift & 0xff));
        rgb |= MIN((uint32_t)(sum / all / 8 + 0.5) * 8, 0xff) << shift;
    }
    return rgb;
}

static void
merge_flush(Merge *merge, GArray *boxes)
{
    TimelineBox *box = &merge->box;

    if (!merge->is_open)
        return;
    if (merge->is_merged) {
        box->micro_batch = -1;
        box->rgb = mixed_rgb(merge);
        for (int k = 0; k < TIMELINE_KIND_N; k++) {
            if (merge->kind_ns[k] > merge->kind_ns[box->kind])
                box->kind = (uint8_t)k;
        }
    }
    g_array_append_val(boxes, *box);
    *merge = (Merge){0};
}

/* Invariant: what is in @boxes and the open merge do not overlap and are in order. */
static void
merge_add(Merge *merge, GArray *boxes, const TimelineBox *box, int64_t min_ns)
{
    const bool is_small = box->end_ns - box->begin_ns < min_ns;
    const TimelineBox *open = &merge->box;

    if (merge->is_open &&
        (!is_small || open->row != box->row || open->is_aside != box->is_aside ||
         box->begin_ns - open->end_ns >= min_ns || open->end_ns - open->begin_ns >= min_ns))
        merge_flush(merge, boxes);
    if (!is_small) {
        g_array_append_vals(boxes, box, 1);
        return;
    }
    if (!merge->is_open) {
        *merge = (Merge){.box = *box, .is_open = true};
    } else {
        merge->box.end_ns = box->end_ns;
        merge->is_merged = true;
    }
    merge->kind_ns[box->kind] += box->end_ns - box->begin_ns;
}

/* The box of an event: two where a part of it recomputes. */
static void
add_event(Merge *merge, GArray *boxes, TimelineBox box, float recompute_fraction, int64_t min_ns)
{
    TimelineBox recompute = box;

    if (recompute_fraction > 0) {
        recompute.end_ns =
            box.begin_ns +
            (int64_t)((double)recompute_fraction * (double)(box.end_ns - box.begin_ns) + 0.5);
        recompute.kind = TIMELINE_RECOMPUTE;
        recompute.rgb = timeline_styles[TIMELINE_RECOMPUTE].rgb;
        merge_add(merge, boxes, &recompute, min_ns);
        box.begin_ns = recompute.end_ns;
    }
    if (box.end_ns > box.begin_ns)
        merge_add(merge, boxes, &box, min_ns);
}

Timeline *
timeline_new(const Trace *trace, int64_t min_ns)
{
    Timeline *timeline = g_new0(Timeline, 1);
    Merge merge = {0};

    timeline->n_rows = trace->n_ranks;
    timeline->end_ns = trace->makespan_ns;
    timeline->boxes = g_array_new(FALSE, FALSE, sizeof(TimelineBox));
    for (guint i = 0; i < trace->events->len; i++) {
        const TraceEvent *event = &g_array_index(trace->events, TraceEvent, i);
        const bool has_op = event->kind <= TRACE_EVENT_WAIT || event->kind == TRACE_EVENT_EXCHANGE;
        const bool is_aside = event->stream == TRACE_STREAM_DP || event->stream == TRACE_STREAM_EP;

        if (event->stream != TRACE_STREAM_COMPUTE && !is_aside)
            continue;
        if (event->end_ns <= event->start_ns)
            continue;
        const TimelineBox box = {
            .begin_ns = event->start_ns,
            .end_ns = event->end_ns,
            .row = event->rank,
            .micro_batch = has_op ? event->op.micro_batch : -1,
            .slice = event->op.slice,
            .chunk = event->op.chunk,
            .rgb = timeline_styles[kind_of(event->kind)].rgb,
            .kind = (uint8_t)kind_of(event->kind),
            .is_aside = is_aside,
        };
        add_event(&merge, timeline->boxes, box, event->recompute_fraction, min_ns);
    }
    merge_flush(&merge, timeline->boxes);
    return timeline;
}

void
timeline_free(Timeline *timeline)
{
    if (timeline == NULL)
        return;
    g_array_unref(timeline->boxes);
    g_free(timeline);
}

static void
append_count(GString *text, int32_t n, const char *one)
{
    g_string_append_printf(text, ", %d %s%s", n, one, n == 1 ? "" : "s");
}

char *
timeline_title(const Trace *trace)
{
    GString *title = g_string_new(trace->schedule);
    append_count(title, trace->n_ranks, "rank");
    if (trace->n_chunks > 1)
        append_count(title, trace->n_chunks, "chunk");
    append_count(title, trace->n_micro_batches, "micro-batch");
    if (trace->n_micro_batches != 1)
        g_string_insert(title, (gssize)title->len - 1, "e"); /* micro-batches */
    if (trace->n_slices > 1)
        append_count(title, trace->n_slices, "slice");
    g_string_append_printf(title, ": %s %s", trace->measured ? "measured" : "iteration",
                           units_format_s(units_s_from_ns(trace->makespan_ns)).text);
    if (!isnan(trace->bubble_fraction))
        g_string_append_printf(title, ", bubble %s", output_percent(trace->bubble_fraction).text);
    return g_string_free(title, FALSE);
}

void
timeline_label(const Trace *trace, const TimelineBox *box, char text[32])
{
    if (box->micro_batch < 0 || box->kind == TIMELINE_RECOMPUTE)
        *text = 0;
    else if (trace->n_slices > 1 && trace->n_micro_batches > 1)
        g_snprintf(text, 32, "%d.%d", box->micro_batch, box->slice);
    else
        g_snprintf(text, 32, "%d", trace->n_slices > 1 ? box->slice : box->micro_batch);
}

/* @rgb on the way to white: @share 0 is @rgb. */
static uint32_t
lighter(uint32_t rgb, double share)
{
    uint32_t out = 0;

    for (int shift = 0; shift < 24; shift += 8) {
        const double c = rgb >> shift & 0xff;

        out |= (uint32_t)(c + (255 - c) * share + 0.5) << shift;
    }
    return out;
}

uint32_t
timeline_box_rgb(const Trace *trace, const TimelineBox *box)
{
    const double parity = box->micro_batch % 2;

    if (box->micro_batch < 0)
        return box->rgb;
    if (trace->n_slices > 1)
        return lighter(box->rgb, 0.55 * box->slice / (trace->n_slices - 1));
    if (trace->n_chunks > 1)
        return lighter(box->rgb, 0.45 * box->chunk / (trace->n_chunks - 1) + 0.14 * parity);
    return lighter(box->rgb, 0.3 * parity);
}

uint32_t
timeline_label_rgb(uint32_t rgb)
{
    /* The luma of ITU-R BT.601, in thousandths. */
    const uint32_t luma = 299 * (rgb >> 16 & 0xff) + 587 * (rgb >> 8 & 0xff) + 114 * (rgb & 0xff);

    return luma > 130000 ? 0x000000 : 0xffffff;
}

void
timeline_find_kinds(const Timeline *timeline, bool present[TIMELINE_KIND_N])
{
    for (guint i = 0; i < timeline->boxes->len; i++)
        present[g_array_index(timeline->boxes, TimelineBox, i).kind] = true;
}

int
timeline_box_px(int row_px)
{
    return row_px >= 14 ? row_px - 3 : row_px >= 5 ? row_px - 1 : row_px;
}

int32_t
timeline_named_every(int row_px)
{
    int32_t every = 1;

    while (every * row_px < 13)
        every *= 2;
    return every;
}

int64_t
timeline_tick_ns(int64_t span_ns, int max)
{
    static const int factors[] = {1, 2, 5};
    int64_t power = 1;

    for (; power < INT64_MAX / 100; power *= 10) {
        for (size_t i = 0; i < G_N_ELEMENTS(factors); i++) {
            if (span_ns / (power * factors[i]) < max)
                return power * factors[i];
        }
    }
    return span_ns;
}

/* --- the timeline as text --- */

/* One cell of a row. */
typedef struct {
    int8_t kind; /* TimelineKind, or -1: nothing */
    char label;  /* a character of a label, or 0 */
    bool is_odd; /* of an odd micro-batch: a shade lighter */
} Cell;

typedef struct {
    const Trace *trace;
    const TimelineText *how;
    int n_cells;
    int margin; /* columns before the first cell */
    int64_t span_ns;
} Canvas;

/* The cell that holds time @ns, and where a cell begins; int64_t would overflow for long spans. */
static int
cell_at(const Canvas *canvas, int64_t ns)
{
    return (int)((double)ns / (double)canvas->span_ns * canvas->n_cells + 0.5);
}

/* A cell shows what happens at its middle: rounding begin and end gives just these cells. */
static void
put_box(const Canvas *canvas, Cell *cells, const TimelineBox *box)
{
    const int begin = MIN(cell_at(canvas, box->begin_ns), canvas->n_cells);
    const int end = MIN(cell_at(canvas, box->end_ns), canvas->n_cells);

    for (int i = begin; i < end; i++) {
        if (box->is_aside && cells[i].kind >= 0)
            continue; /* computing hides it */
        cells[i] = (Cell){
            .kind = (int8_t)box->kind,
            .is_odd = box->micro_batch >= 0 && (box->micro_batch + box->slice) % 2 == 1,
        };
    }
    if (box->is_aside)
        return;
    char label[32] = "";
    timeline_label(canvas->trace, box, label);
    const int n = (int)strlen(label);
    /* One cell of the box's own colour stays, where there is no background colour to show it. */
    for (int i = 0; i < n && n + (canvas->how->color ? 0 : 1) <= end - begin; i++)
        cells[begin + i].label = label[i];
}

/* The colour of a cell of an odd micro-batch. */
static uint32_t
lighter_cell(uint32_t rgb)
{
    uint32_t out = 0;

    for (int shift = 0; shift < 24; shift += 8) {
        const uint32_t c = rgb >> shift & 0xff;

        out |= (c + (0xff - c) * 3 / 10) << shift;
    }
    return out;
}

static void
append_rgb(GString *text, int what, uint32_t rgb)
{
    g_string_append_printf(text, "\033[%d;2;%u;%u;%um", what, rgb >> 16 & 0xff, rgb >> 8 & 0xff,
                           rgb & 0xff);
}

static void
append_cell(GString *text, const Canvas *canvas, const Cell *cell)
{
    const TimelineStyle *style = cell->kind < 0 ? NULL : &timeline_styles[cell->kind];

    if (style == NULL) {
        g_string_append_c(text, ' ');
    } else if (canvas->how->color) {
        append_rgb(text, 48, cell->is_odd ? lighter_cell(style->rgb) : style->rgb);
        append_rgb(text, 38, style->text_rgb);
        g_string_append_c(text, cell->label != 0 ? cell->label : ' ');
        g_string_append(text, "\033[0m");
    } else if (cell->label != 0) {
        g_string_append_c(text, cell->label);
    } else if (canvas->how->utf8) {
        g_string_append(text, style->utf8);
    } else {
        g_string_append_c(text, style->ascii);
    }
}

static void
append_row(GString *text, const Canvas *canvas, int32_t rank, const Cell *cells)
{
    const char *bar = canvas->how->utf8 ? "│" : "|";

    g_string_append_printf(text, "%*d %s", canvas->margin - 2, rank, bar);
    for (int i = 0; i < canvas->n_cells; i++)
        append_cell(text, canvas, &cells[i]);
    g_string_append_printf(text, "%s\n", bar);
}

static UnitsText
tick_text(const Canvas *canvas, int64_t ns)
{
    UnitsText text = units_format_s(units_s_from_ns(ns));

    if (canvas->how->is_unitless)
        g_ascii_formatd(text.text, sizeof text.text, "%g", units_s_from_ns(ns));
    return text;
}

static void
append_axis(GString *text, const Canvas *canvas)
{
    const int64_t step = timeline_tick_ns(canvas->span_ns, MAX(canvas->n_cells / 14, 1));
    g_autofree char *line = g_malloc((size_t)canvas->n_cells + 64);
    const size_t n_line = (size_t)canvas->n_cells + 40;
    size_t end = 0; /* of the last label */

    memset(line, ' ', n_line);
    g_string_append_printf(text, "%*s%s", canvas->margin - 1, "", canvas->how->utf8 ? "└" : "+");
    for (int i = 0; i < canvas->n_cells; i++) {
        const int64_t next =
            (int64_t)((double)i / canvas->n_cells * (double)canvas->span_ns / (double)step + 0.5);
        const bool is_tick = cell_at(canvas, next * step) == i;

        g_string_append(text, canvas->how->utf8 ? (is_tick ? "┴" : "─") : (is_tick ? "+" : "-"));
        if (is_tick && (size_t)i >= end) {
            const UnitsText label = tick_text(canvas, next * step);

            end = (size_t)i + strlen(label.text) + 1;
            if (end < (size_t)canvas->n_cells + 2)
                memcpy(line + i, label.text, strlen(label.text));
        }
    }
    line[n_line] = 0;
    g_strchomp(line);
    g_string_append_printf(text, "%s\n%*s%s\n", canvas->how->utf8 ? "┘" : "+", canvas->margin, "",
                           line);
}

/* With whole op times every unit of time gets as many cells, where there is room. */
static int
whole_cells(const Canvas *canvas)
{
    const int64_t unit_ns = 1000000000;
    const int64_t n_units = canvas->span_ns / unit_ns;

    if (canvas->span_ns % unit_ns != 0 || n_units > canvas->n_cells)
        return canvas->n_cells;
    return canvas->n_cells - (int)(canvas->n_cells % n_units);
}

bool
timeline_is_shown(int32_t rank, int32_t n_ranks, int32_t max_rows)
{
    if (max_rows <= 1 || n_ranks <= max_rows)
        return true;
    const int64_t k = ((int64_t)rank * (max_rows - 1) + n_ranks - 2) / (n_ranks - 1);

    return k * (n_ranks - 1) / (max_rows - 1) == rank;
}

/* Columns before the first cell. */
static int
margin_of(int32_t n_ranks)
{
    char text[16];

    return g_snprintf(text, sizeof text, "%d", n_ranks - 1) + 2;
}

int
timeline_n_cells(const TimelineText *how, int32_t n_ranks)
{
    return MAX(how->columns - margin_of(n_ranks) - 1, 10);
}

void
timeline_append_text(GString *text, const Trace *trace, const TimelineText *how)
{
    g_autoptr(Timeline) timeline = timeline_new(trace, 0);
    Canvas canvas = {.trace = trace, .how = how};
    guint next = 0;
    int32_t n_shown = 0;

    canvas.margin = margin_of(trace->n_ranks);
    canvas.n_cells = timeline_n_cells(how, trace->n_ranks);
    canvas.span_ns = MAX(how->span_ns > 0 ? how->span_ns : trace->makespan_ns, 1);
    if (how->is_unitless)
        canvas.n_cells = whole_cells(&canvas);
    g_autofree Cell *cells = g_new0(Cell, (gsize)canvas.n_cells);

    for (int32_t rank = 0; rank < trace->n_ranks; rank++) {
        for (int i = 0; i < canvas.n_cells; i++)
            cells[i] = (Cell){.kind = -1};
        for (; next < timeline->boxes->len; next++) {
            const TimelineBox *box = &g_array_index(timeline->boxes, TimelineBox, next);

            if (box->row != rank)
                break;
            put_box(&canvas, cells, box);
        }
        if (timeline_is_shown(rank, trace->n_ranks, how->max_rows)) {
            append_row(text, &canvas, rank, cells);
            n_shown++;
        }
    }
    append_axis(text, &canvas);
    if (n_shown < trace->n_ranks)
        g_string_append_printf(text, "%*s%d of %d ranks are shown\n", canvas.margin, "", n_shown,
                               trace->n_ranks);
}

void
timeline_append_legend(GString *text, const Trace *const *traces, size_t n_traces,
                       const TimelineText *how)
{
    bool present[TIMELINE_KIND_N] = {false};

    for (size_t t = 0; t < n_traces; t++) {
        g_autoptr(Timeline) timeline = timeline_new(traces[t], 0);

        timeline_find_kinds(timeline, present);
    }
    for (int k = 0; k < TIMELINE_KIND_N; k++) {
        const Canvas canvas = {.how = how};
        const Cell cell = {.kind = (int8_t)k};

        if (!present[k])
            continue;
        append_cell(text, &canvas, &cell);
        g_string_append_printf(text, " %s   ", timeline_styles[k].name);
    }
    g_string_append_printf(text, "(blank: bubble; numbers: %s)\n",
                           traces[0]->n_slices == 1          ? "micro-batch"
                           : traces[0]->n_micro_batches == 1 ? "slice"
                                                             : "micro-batch.slice");
}
