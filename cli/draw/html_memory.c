/* Memory over time in the page, a row for each rank; declared in cli/draw/html_page.h. */
#include "cli/draw/html_page.h"

#include <string.h>

#include "base/units.h"

enum {
    BINS = 280, /* steps of a row; fewer when there are many rows */
    MAX_STEPS = 40000,
    MEMORY_MAX_ROW = 40,
};

/* Where rows are. */
typedef struct {
    const HtmlPage *page;
    int64_t most_bytes; /* the height of a row */
    int n_bins, row;    /* height of a row in pixels */
} Rows;

/* The most that @rank holds in each bin.  @i: its first event; returns the one after its last. */
static guint
fill_bins(const Rows *rows, int32_t rank, guint i, int64_t *bins)
{
    const GArray *memory = rows->page->trace->memory;
    int64_t now = 0;
    int at = 0;

    memset(bins, 0, sizeof *bins * (size_t)rows->n_bins);
    /* bins up to at hold what the events so far leave or held. */
    for (; i < memory->len; i++) {
        const TraceMemory *event = &g_array_index(memory, TraceMemory, i);
        if (event->rank != rank)
            break;
        const int bin = (int)((double)event->at_ns / (double)rows->page->end_ns * rows->n_bins);
        for (; at < MIN(bin, rows->n_bins - 1); at++)
            bins[at + 1] = now;
        now += event->delta_bytes;
        bins[at] = MAX(bins[at], now);
    }
    for (; at < rows->n_bins - 1; at++)
        bins[at + 1] = now;
    return i;
}

static void
append_row(GString *html, const Rows *rows, int32_t row, const int64_t *bins)
{
    const double bottom = HTML_TOP + (row + 1) * rows->row - (rows->row >= 14 ? 3 : 0);
    const double height = rows->row >= 14  ? rows->row - 3
                          : rows->row >= 5 ? rows->row - 1
                                           : rows->row;
    const double step = (double)(HTML_WIDTH - HTML_LEFT) / rows->n_bins;

    g_string_append_printf(html, "M%d ", HTML_LEFT);
    html_append_number(html, bottom);
    for (int i = 0; i < rows->n_bins; i++) {
        if (i == 0 || bins[i] != bins[i - 1]) {
            g_string_append_c(html, 'V');
            html_append_number(html, bottom - height * (double)bins[i] / (double)rows->most_bytes);
        }
        if (i + 1 == rows->n_bins || bins[i + 1] != bins[i]) {
            g_string_append_c(html, 'H');
            html_append_number(html, HTML_LEFT + (i + 1) * step);
        }
    }
    g_string_append_c(html, 'V');
    html_append_number(html, bottom);
    g_string_append_c(html, 'z');
}

/* Two paths, of one colour each: all that is held, and what stays over it. */
static void
append_rows(GString *html, const Rows *rows)
{
    const HtmlPage *page = rows->page;
    g_autofree int64_t *bins = g_new(int64_t, (size_t)rows->n_bins);
    g_autoptr(GString) stays = g_string_new("<path fill=\"#009e73\" d=\"");
    guint i = 0;

    g_string_append(html, "<path fill=\"#e69f00\" d=\"");
    for (int32_t rank = 0; rank < page->trace->n_ranks; rank++) {
        i = fill_bins(rows, rank, i, bins);
        if (rank % page->every != 0)
            continue;
        append_row(html, rows, rank / page->every, bins);
        /* What is left after the iteration was there all the time. */
        const int64_t least = bins[rows->n_bins - 1];
        for (int k = 0; k < rows->n_bins; k++)
            bins[k] = MIN(bins[k], least);
        append_row(stays, rows, rank / page->every, bins);
    }
    g_string_append_printf(html, "\"/>\n%s\"/>\n", stays->str);
    for (int32_t row = 0; row < page->n_rows; row += rows->row >= 12 ? 1 : 12 / rows->row + 1)
        g_string_append_printf(html,
                               "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" "
                               "dominant-baseline=\"central\">%d</text>\n",
                               HTML_LEFT - 6, HTML_TOP + row * rows->row + rows->row / 2,
                               row * page->every);
}

void
html_append_memory(GString *html, const HtmlPage *page)
{
    const Report *report = page->report;
    const int64_t peak = report->peak_memory_bytes, limit = report->memory_limit_bytes;

    if (page->trace->memory->len == 0 || peak <= 0)
        return;
    /* A limit far above what is held would only flatten the rows. */
    const bool near = limit >= peak && (double)limit <= 1.25 * (double)peak;
    const Rows rows = {
        .page = page,
        .most_bytes = near ? limit : peak,
        .n_bins = CLAMP(MAX_STEPS / page->n_rows, 40, BINS),
        .row = CLAMP(600 / page->n_rows, 3, MEMORY_MAX_ROW),
    };
    g_autofree char *most = units_format_bytes((double)rows.most_bytes);
    g_string_append_printf(html,
                           "<h2>Memory over time <span class=\"faint\">(a row is %s high: %s)"
                           "</span></h2>\n",
                           most, near ? "the limit" : "the highest peak");
    /* On the timeline's axis. */
    g_string_append_printf(html, "<svg viewBox=\"0 0 %d %d\" role=\"img\">\n", HTML_WIDTH + 16,
                           2 * HTML_TOP + page->n_rows * rows.row);
    g_string_append_printf(html,
                           "<rect class=\"track\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n",
                           HTML_LEFT, HTML_TOP, HTML_WIDTH - HTML_LEFT, page->n_rows * rows.row);
    append_rows(html, &rows);
    g_string_append(html, "</svg>\n<div class=\"legend\">");
    html_append_legend_entry(html, 0x009e73, "what stays: weights, gradients, optimizer, buffers");
    html_append_legend_entry(html, 0xe69f00, "activations, keys and values, workspace");
    g_string_append(html, "</div>\n");
}
