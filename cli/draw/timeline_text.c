/* The timeline as text; the declarations are in cli/draw/timeline.h. */
#include "cli/draw/timeline.h"

#include <string.h>

#include "base/units.h"
#include "cli/request/output.h"

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

static void
put_label(const Canvas *canvas, Cell *cells, const TimelineBox *box, int begin, int end)
{
    char label[32];
    size_t n;

    timeline_label(canvas->trace, box, label);
    n = strlen(label);
    /* One cell of the box's own colour stays, where there is no background colour to show it. */
    if (n == 0 || (int)n + (canvas->how->color ? 0 : 1) > end - begin)
        return;
    for (size_t i = 0; i < n; i++)
        cells[begin + (int)i].label = label[i];
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
    if (!box->is_aside)
        put_label(canvas, cells, box, begin, end);
}

static uint32_t
lighter(uint32_t rgb)
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
        append_rgb(text, 48, cell->is_odd ? lighter(style->rgb) : style->rgb);
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

/* 1, 2 or 5 times a power of ten, so that there are at most @max of them in @span. */
static int64_t
tick_ns(int64_t span_ns, int max)
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

static char *
tick_text(const Canvas *canvas, int64_t ns)
{
    if (canvas->how->is_unitless) {
        char digits[G_ASCII_DTOSTR_BUF_SIZE];

        return g_strdup(g_ascii_formatd(digits, sizeof digits, "%g", units_s_from_ns(ns)));
    }
    return units_format_s(units_s_from_ns(ns));
}

static void
append_axis(GString *text, const Canvas *canvas)
{
    const int64_t step = tick_ns(canvas->span_ns, MAX(canvas->n_cells / 14, 1));
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
            g_autofree char *label = tick_text(canvas, next * step);

            end = (size_t)i + strlen(label) + 1;
            if (end < (size_t)canvas->n_cells + 2)
                memcpy(line + i, label, strlen(label));
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

        for (guint i = 0; i < timeline->boxes->len; i++)
            present[g_array_index(timeline->boxes, TimelineBox, i).kind] = true;
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
