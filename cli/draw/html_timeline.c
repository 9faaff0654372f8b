#include "cli/draw/html_page.h"

#include <string.h>

#include "base/units.h"

enum {
    MAX_BOXES = 30000, /* 30 bytes each in the picture, 50 in the data */
    MAX_LABELS = 4000,
    ASIDE = 100, /* added to the kind of boxes beside the compute stream; the script knows it */
};

void
html_page_init(HtmlPage *page)
{
    double min_px = 0.5;
    guint n_boxes;

    page->end_ns = MAX(page->trace->makespan_ns, 1);
    page->every = (page->trace->n_ranks - 1) / HTML_MAX_ROWS + 1;
    page->n_rows = (page->trace->n_ranks - 1) / page->every + 1;
    page->row = CLAMP(480 / page->n_rows, 3, 28);
    page->box = page->row >= 14 ? page->row - 3 : page->row >= 5 ? page->row - 1 : page->row;
    do {
        timeline_free(page->timeline);
        page->min_ns = (int64_t)(min_px * (double)page->end_ns / (HTML_WIDTH - HTML_LEFT));
        page->timeline = timeline_new(page->trace, page->min_ns);
        n_boxes = page->timeline->boxes->len / (guint)page->every;
        min_px *= 1.5;
    } while (n_boxes > MAX_BOXES && min_px < 12);
}

void
html_page_clear(HtmlPage *page)
{
    timeline_free(page->timeline);
}

static double
x_of(const HtmlPage *page, int64_t ns)
{
    return HTML_LEFT + (double)ns / (double)page->end_ns * (HTML_WIDTH - HTML_LEFT);
}

static double
y_of(const HtmlPage *page, int32_t row)
{
    return HTML_TOP + row * page->row + (page->row - page->box) / 2.0;
}

/* Width on paper: wide boxes leave a gap to the next. */
static double
width_of(const HtmlPage *page, const TimelineBox *box)
{
    const double px = x_of(page, box->end_ns) - x_of(page, box->begin_ns);

    return MAX(px - (px > 12 ? 1 : px > 5 ? 0.6 : 0), 0.2);
}

static void
append_box(GString *html, const HtmlPage *page, const TimelineBox *box)
{
    const double height = box->is_aside ? page->box * 0.3 : page->box;
    const double y = y_of(page, box->row / page->every) + page->box - height;

    g_string_append_c(html, 'M');
    html_append_number(html, x_of(page, box->begin_ns));
    g_string_append_c(html, ' ');
    html_append_number(html, y);
    g_string_append_c(html, 'h');
    html_append_number(html, width_of(page, box));
    g_string_append_c(html, 'v');
    html_append_number(html, height);
    g_string_append(html, "h-");
    html_append_number(html, width_of(page, box));
    g_string_append_c(html, 'z');
}

static int
compare_colors(gconstpointer left, gconstpointer right, gpointer user_data)
{
    const HtmlPage *page = user_data;
    const guint a = *(const guint *)left, b = *(const guint *)right;
    const TimelineBox *boxes = &g_array_index(page->timeline->boxes, TimelineBox, 0);
    const uint32_t x = timeline_box_rgb(page->trace, &boxes[a]);
    const uint32_t y = timeline_box_rgb(page->trace, &boxes[b]);

    if (x != y)
        return x < y ? -1 : 1;
    return a < b ? -1 : a > b;
}

/* (owned) array of guint: the shown boxes, those of one colour beside each other. */
static GArray *
boxes_by_color(const HtmlPage *page)
{
    GArray *order = g_array_new(FALSE, FALSE, sizeof(guint));

    for (guint i = 0; i < page->timeline->boxes->len; i++) {
        if (g_array_index(page->timeline->boxes, TimelineBox, i).row % page->every == 0)
            g_array_append_val(order, i);
    }
    g_array_sort_with_data(order, compare_colors, (void *)page);
    return order;
}

/* One path for each colour. */
static void
append_boxes(GString *html, const HtmlPage *page)
{
    g_autoptr(GArray) order = boxes_by_color(page);
    uint32_t open = UINT32_MAX;

    g_string_append(html, "<g id=\"boxes\">");
    for (guint i = 0; i < order->len; i++) {
        const TimelineBox *box =
            &g_array_index(page->timeline->boxes, TimelineBox, g_array_index(order, guint, i));
        const uint32_t rgb = timeline_box_rgb(page->trace, box);

        if (rgb != open)
            g_string_append_printf(html, "%s<path fill=\"#%06x\" d=\"", i > 0 ? "\"/>\n" : "", rgb);
        append_box(html, page, box);
        open = rgb;
    }
    g_string_append(html, order->len > 0 ? "\"/></g>\n" : "</g>\n");
}

static void
append_labels(GString *html, const HtmlPage *page)
{
    int n = 0;

    g_string_append(html, "<g id=\"labels\">");
    for (guint i = 0; i < page->timeline->boxes->len && page->box >= 11 && n < MAX_LABELS; i++) {
        const TimelineBox *box = &g_array_index(page->timeline->boxes, TimelineBox, i);
        const double px = x_of(page, box->end_ns) - x_of(page, box->begin_ns);
        char label[32];

        timeline_label(page->trace, box, label);
        if (box->row % page->every != 0 || box->is_aside || *label == 0 ||
            px <= 7 * (double)strlen(label) + 3)
            continue;
        g_string_append(html, "<text x=\"");
        html_append_number(html, x_of(page, box->begin_ns) + px / 2);
        g_string_append(html, "\" y=\"");
        html_append_number(html, y_of(page, box->row / page->every) + page->box / 2.0 + 4);
        g_string_append_printf(html, "\" style=\"fill:#%06x\">%s</text>",
                               timeline_label_rgb(timeline_box_rgb(page->trace, box)), label);
        n++;
    }
    g_string_append(html, "</g>\n");
}

/* 1, 2 or 5 times a power of ten: the smallest that gives at most 12 steps. */
static int64_t
tick_ns(int64_t span_ns)
{
    static const int factors[] = {1, 2, 5};

    for (int64_t power = 1; power < INT64_MAX / 100; power *= 10) {
        for (size_t i = 0; i < G_N_ELEMENTS(factors); i++) {
            if (span_ns / (power * factors[i]) < 12)
                return power * factors[i];
        }
    }
    return span_ns;
}

static void
append_axis(GString *html, const HtmlPage *page)
{
    const int64_t step = tick_ns(page->end_ns);
    const int bottom = HTML_TOP + page->n_rows * page->row;

    g_string_append(html, "<g id=\"axis\">");
    for (int64_t t = 0; t <= page->end_ns; t += step) {
        g_autofree char *time = t == 0 ? g_strdup("0") : units_format_s(units_s_from_ns(t));
        g_autoptr(GString) x = g_string_new(NULL);

        html_append_number(x, x_of(page, t));
        g_string_append_printf(html,
                               "<line class=\"grid\" x1=\"%s\" x2=\"%s\" y1=\"%d\" y2=\"%d\"/>"
                               "<text x=\"%s\" y=\"%d\" text-anchor=\"middle\">%s</text>",
                               x->str, x->str, HTML_TOP, bottom, x->str, bottom + 16, time);
    }
    g_string_append(html, "</g>\n");
}

void
html_append_timeline(GString *html, const HtmlPage *page)
{
    const int height = page->n_rows * page->row;
    int32_t named = 1;

    while (named * page->row < 13)
        named *= 2;
    g_string_append_printf(html, "<svg viewBox=\"0 0 %d %d\" role=\"img\">\n", HTML_WIDTH + 16,
                           HTML_TOP + height + HTML_FOOTER);
    g_string_append_printf(
        html,
        "<clipPath id=\"clip\"><rect x=\"%d\" y=\"0\" width=\"%d\" height=\"%d\"/></clipPath>\n"
        "<pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">"
        "<path d=\"M0 6L6 0\"/></pattern>\n"
        "<g id=\"track\"><rect class=\"track\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>"
        "<rect class=\"hatch\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/></g>\n",
        HTML_LEFT, HTML_WIDTH - HTML_LEFT, HTML_TOP + height, HTML_LEFT, HTML_TOP,
        HTML_WIDTH - HTML_LEFT, height, HTML_LEFT, HTML_TOP, HTML_WIDTH - HTML_LEFT, height);
    append_axis(html, page);
    for (int32_t r = 0; r < page->n_rows; r += named) {
        g_string_append_printf(html, "<text x=\"%d\" y=\"", HTML_LEFT - 6);
        html_append_number(html, y_of(page, r) + page->box / 2.0 + 4);
        g_string_append_printf(html, "\" text-anchor=\"end\">%d</text>", r * page->every);
    }
    g_string_append(html, "\n<g clip-path=\"url(#clip)\">");
    append_boxes(html, page);
    append_labels(html, page);
    g_string_append(html, "</g></svg>\n");
}

void
html_append_legend(GString *html, const HtmlPage *page)
{
    bool present[TIMELINE_KIND_N] = {false};

    for (guint i = 0; i < page->timeline->boxes->len; i++)
        present[g_array_index(page->timeline->boxes, TimelineBox, i).kind] = true;
    for (size_t k = 0; k < TIMELINE_KIND_N; k++) {
        if (present[k])
            html_append_legend_entry(html, timeline_styles[k].rgb, timeline_styles[k].name);
    }
    g_string_append(html, "<span><i class=\"hatched\"></i>bubble</span>");
}

void
html_append_note(GString *html, const HtmlPage *page)
{
    bool is_merged = false;

    for (guint i = 0; i < page->timeline->boxes->len && !is_merged; i++) {
        const TimelineBox *box = &g_array_index(page->timeline->boxes, TimelineBox, i);

        is_merged = box->micro_batch < 0 && box->kind <= TIMELINE_WAIT;
    }
    if (is_merged) {
        g_autofree char *shortest = units_format_s(units_s_from_ns(page->min_ns));

        g_string_append_printf(html, "Neighbours shorter than %s are drawn as one. ", shortest);
    }
    if (page->every > 1)
        g_string_append_printf(html, "Every %dth rank is shown. ", page->every);
}

static void
append_box_data(GString *html, const HtmlPage *page, const TimelineBox *box)
{
    g_string_append_printf(html, "%" G_GINT64_FORMAT ",%" G_GINT64_FORMAT ",%d,%d,%d,%d,%u",
                           box->begin_ns, box->end_ns - box->begin_ns,
                           box->kind + (box->is_aside ? ASIDE : 0), box->micro_batch, box->slice,
                           box->chunk, timeline_box_rgb(page->trace, box));
}

void
html_append_data(GString *html, const HtmlPage *page)
{
    static const char *const names[] = {"left",  "width", "top",          "row",    "box",   "end",
                                        "shown", "every", "microbatches", "slices", "chunks"};
    const int64_t values[] = {HTML_LEFT,
                              HTML_WIDTH - HTML_LEFT,
                              HTML_TOP,
                              page->row,
                              page->box,
                              page->end_ns,
                              page->n_rows,
                              page->every,
                              page->trace->n_micro_batches,
                              page->trace->n_slices,
                              page->trace->n_chunks};
    guint next = 0;

    g_string_append_c(html, '{');
    for (size_t i = 0; i < G_N_ELEMENTS(names); i++)
        g_string_append_printf(html, "\"%s\":%" G_GINT64_FORMAT ",", names[i], values[i]);
    g_string_append(html, "\"kinds\":[");
    for (size_t k = 0; k < TIMELINE_KIND_N; k++)
        g_string_append_printf(html, "%s\"%s\"", k > 0 ? "," : "", timeline_styles[k].name);
    g_string_append(html, "],\n\"rows\":[");
    for (int32_t r = 0; r < page->n_rows; r++) {
        const char *comma = "";

        g_string_append(html, r > 0 ? ",\n[" : "[");
        for (; next < page->timeline->boxes->len; next++) {
            const TimelineBox *box = &g_array_index(page->timeline->boxes, TimelineBox, next);

            if (box->row > r * page->every)
                break;
            if (box->row < r * page->every)
                continue;
            g_string_append(html, comma);
            append_box_data(html, page, box);
            comma = ",";
        }
        g_string_append_c(html, ']');
    }
    g_string_append(html, "]}");
}
