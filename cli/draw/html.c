/* An iteration on a page; declared in cli/draw/plot.h. */
#include <math.h>
#include <string.h>

#include "base/order.h"
#include "base/units.h"
#include "cli/draw/describe.h"
#include "cli/draw/plot.h"
#include "cli/draw/timeline.h"
#include "cli/request/output.h"
#include "schedule/rank_order.h"

/* The timeline's picture, in its own units; the page scales it. */
enum {
    WIDTH = 1120,
    LEFT = 36,
    TOP = 4,
    FOOTER = 24,
    MAX_ROWS = 512, /* more ranks are thinned out */
};

/* What the page shows, and the sizes of the timeline. */
typedef struct {
    const Job *job;       /* (nullable) */
    const Report *report; /* (nullable) */
    const Trace *trace;
    Timeline *timeline;
    int64_t end_ns, min_ns;
    int32_t every, n_rows; /* row i shows rank i * every */
    int row, box;          /* heights */
} View;

/* The width of a bar of memory, in pixels. */
#define BAR_WIDTH 420

/* --- head --- */

static void
add_about(HtmlPage *page, const View *view)
{
    g_autofree char *what = timeline_title(view->trace);

    if (view->job != NULL) {
        const Plan *plan = view->job->plan;
        const PlanDegrees *d = &plan->degrees;
        const struct {
            const char *name;
            int64_t degree;
        } degrees[] = {{"dp", d->dp},   {"tp", d->tp}, {"pp", d->pp},
                       {"vpp", d->vpp}, {"cp", d->cp}, {"ep", d->ep}};

        g_autoptr(GString) text = g_string_new(NULL);
        g_string_append_printf(text, INT " devices, " INT " x " INT " tokens, %s",
                               plan_n_devices(plan), plan->global_batch, plan->seq_len,
                               dtype_names[plan->dtype]);
        if (view->job->arch->lora.rank > 0)
            g_string_append_printf(text, ", adapters of rank " INT, view->job->arch->lora.rank);
        for (size_t i = 0; i < G_N_ELEMENTS(degrees); i++) {
            if (degrees[i].degree > 1 || i < 3)
                g_string_append_printf(text, ", %s " INT, degrees[i].name, degrees[i].degree);
        }
        if (!plan_rank_order_is_default(d))
            g_string_append_printf(text, ", ranks in the order %s",
                                   plan_rank_order_names[d->rank_order]);
        g_string_append_printf(text, ", micro-batches of " INT, plan->micro_batch);
        page_about(page, text->str);
    }
    page_about(page, what);
}

static void
add_memory_card(HtmlPage *page, const Report *report)
{
    g_autofree char *usable = describe_usable(report);
    g_autofree char *name =
        g_strdup_printf(report->fits ? "peak memory of %s" : "peak memory, but only %s are there",
                        usable == NULL ? "" : usable);

    page_card(page, usable == NULL ? "peak memory" : name,
              units_format_bytes((double)report->peak_memory_bytes).text);
}

static void
add_cost_card(HtmlPage *page, const View *view)
{
    const char *currency = view->job == NULL ? NULL : view->job->profile->cluster->currency;
    g_autoptr(GString) value = g_string_new(output_number(view->report->cost_per_iteration).text);

    if (currency != NULL) {
        g_string_append_c(value, ' ');
        g_string_append(value, currency);
    }
    page_card(page, "cost of an iteration", value->str);
}

static void
add_jitter_cards(HtmlPage *page, const Report *report)
{
    const ReportJitter *jitter = &report->jitter;
    g_autofree char *range =
        g_strdup_printf("%s to %s", output_seconds(units_s_from_ns(jitter->iteration_ns[0])).text,
                        output_seconds(units_s_from_ns(jitter->iteration_ns[2])).text);
    g_autofree char *runs =
        g_strdup_printf("p10 to p90 of " INT " runs with jitter", jitter->n_runs);

    page_card(page, runs, range);
    if (report->memory_limit_bytes > 0)
        page_card(page, "of these fit", output_percent(jitter->fit_fraction).text);
}

static void
add_cards(HtmlPage *page, const View *view)
{
    const Report *report = view->report;

    page_card(page, "iteration", output_seconds(units_s_from_ns(report->iteration_ns)).text);
    page_card(page, "bubble", output_percent(report->bubble_fraction).text);
    if (isfinite(report->tokens_per_s))
        page_card(page, "tokens per second", units_format_count(report->tokens_per_s).text);
    if (isfinite(report->model_flops_utilization_fraction))
        page_card(page, "of the devices' peak",
                  output_percent(report->model_flops_utilization_fraction).text);
    if (report->peak_memory_bytes > 0)
        add_memory_card(page, report);
    if (isfinite(report->cost_per_iteration))
        add_cost_card(page, view);
    if (report->jitter.n_runs > 0)
        add_jitter_cards(page, report);
}

static void
add_breakdown(HtmlPage *page, const View *view)
{
    const Report *r = view->report;
    /* What the timeline shows too has its colour there. */
    const PagePart parts[] = {
        {"compute", r->breakdown.compute_s, timeline_styles[TIMELINE_FORWARD].rgb},
        {"recompute", r->breakdown.recompute_s, timeline_styles[TIMELINE_RECOMPUTE].rgb},
        {"tensor parallel", r->breakdown.tp_s, 0x009e73},
        {"pipeline messages", r->breakdown.pp_s, timeline_styles[TIMELINE_MESSAGE].rgb},
        {"data parallel", r->breakdown.dp_s, timeline_styles[TIMELINE_DP].rgb},
        {"context parallel", r->breakdown.cp_s, 0xe69f00},
        {"expert parallel", r->breakdown.ep_s, timeline_styles[TIMELINE_EP].rgb},
        {"optimizer", r->breakdown.optimizer_s, timeline_styles[TIMELINE_OPTIMIZER].rgb},
        {"bubble", r->breakdown.bubble_s, 0xc8ccd0},
    };
    const double all = units_s_from_ns(MAX(r->iteration_ns, 1));
    PagePart named[G_N_ELEMENTS(parts)];
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);

    for (size_t i = 0; i < G_N_ELEMENTS(parts); i++) {
        g_ptr_array_add(names, g_strdup_printf("%s %s", parts[i].name,
                                               output_percent(parts[i].value / all).text));
        named[i] = (PagePart){names->pdata[i], parts[i].value, parts[i].rgb};
    }
    page_heading(page, "Where the time goes", "mean over ranks");
    page_bar(page, NULL, named, G_N_ELEMENTS(named), all);
    page_legend(page, named, G_N_ELEMENTS(named));
}

/* --- ranks --- */

static void
append_memory_bar(GString *html, const ReportRank *rank, double px_per_byte)
{
    g_string_append_printf(html, "<td><div class=\"bar thin\" style=\"width:%dpx\">", BAR_WIDTH);
    for (size_t k = 0; k < TRACE_MEMORY_N; k++) {
        const int64_t bytes = rank->memory_bytes[plot_owners[k].owner];
        if (bytes <= 0)
            continue;
        g_string_append_printf(
            html, "<i style=\"width:%.2fpx;background:#%06x\" title=\"%s %s\"></i>",
            (double)bytes * px_per_byte, plot_owners[k].rgb,
            trace_memory_names[plot_owners[k].owner], units_format_bytes((double)bytes).text);
    }
    g_string_append(html, "</div>");
}

static void
append_ranks(GString *html, const View *view)
{
    const Report *report = view->report;
    const bool has_memory = report->peak_memory_bytes > 0;
    const int64_t widest = MAX(MAX(report->peak_memory_bytes, report->memory_limit_bytes), 1);

    g_string_append_printf(html,
                           "<table><tr><th>rank<th>busy<th>bubble<th>messages<th>in flight%s\n",
                           has_memory ? "<th>peak<th class=\"left\">memory at the peak" : "");
    for (guint i = 0; i < report->ranks->len && i < MAX_ROWS; i++) {
        const ReportRank *rank = &g_array_index(report->ranks, ReportRank, i);
        g_string_append_printf(html, "<tr><td>%u<td>%s<td>%s<td>%s<td>%d", i,
                               output_seconds(units_s_from_ns(rank->busy_ns)).text,
                               output_seconds(units_s_from_ns(rank->bubble_ns)).text,
                               output_seconds(units_s_from_ns(rank->communication_ns)).text,
                               rank->peak_in_flight);
        if (has_memory) {
            g_string_append_printf(html, "<td>%s",
                                   units_format_bytes((double)rank->peak_memory_bytes).text);
            append_memory_bar(html, rank, (double)BAR_WIDTH / (double)widest);
        }
        g_string_append_c(html, '\n');
    }
    g_string_append(html, "</table></div>\n");
    if (report->ranks->len > MAX_ROWS)
        g_string_append_printf(html, "<p class=\"faint\">%d of %u ranks are shown.</p>\n", MAX_ROWS,
                               report->ranks->len);
    if (has_memory) {
        g_string_append(html, "<div class=\"legend\">");
        for (size_t k = 0; k < TRACE_MEMORY_N; k++)
            if (describe_owner_is_used(report, plot_owners[k].owner))
                page_append_legend_entry(html, plot_owners[k].rgb,
                                         trace_memory_names[plot_owners[k].owner]);
        g_string_append(html, "</div>\n");
    }
}

/* --- the timeline --- */

enum {
    MAX_BOXES = 30000, /* 30 bytes each in the picture, 50 in the data */
    MAX_LABELS = 4000,
    ASIDE = 100, /* added to the kind of boxes beside the compute stream; the script knows it */
};

static void
view_init(View *view)
{
    double min_px = 0.5;
    guint n_boxes;

    view->end_ns = MAX(view->trace->makespan_ns, 1);
    view->every = (view->trace->n_ranks - 1) / MAX_ROWS + 1;
    view->n_rows = (view->trace->n_ranks - 1) / view->every + 1;
    view->row = CLAMP(480 / view->n_rows, 3, 28);
    view->box = timeline_box_px(view->row);
    do {
        timeline_free(view->timeline);
        view->min_ns = (int64_t)(min_px * (double)view->end_ns / (WIDTH - LEFT));
        view->timeline = timeline_new(view->trace, view->min_ns);
        n_boxes = view->timeline->boxes->len / (guint)view->every;
        min_px *= 1.5;
    } while (n_boxes > MAX_BOXES && min_px < 12);
}

static double
x_of(const View *view, int64_t ns)
{
    return LEFT + (double)ns / (double)view->end_ns * (WIDTH - LEFT);
}

static double
y_of(const View *view, int32_t row)
{
    return TOP + row * view->row + (view->row - view->box) / 2.0;
}

/* Width on paper: wide boxes leave a gap to the next. */
static double
width_of(const View *view, const TimelineBox *box)
{
    const double px = x_of(view, box->end_ns) - x_of(view, box->begin_ns);

    return MAX(px - (px > 12 ? 1 : px > 5 ? 0.6 : 0), 0.2);
}

static void
append_box(GString *html, const View *view, const TimelineBox *box)
{
    const double height = box->is_aside ? view->box * 0.3 : view->box;
    const double y = y_of(view, box->row / view->every) + view->box - height;
    const double width = width_of(view, box);

    g_string_append_printf(html, "M%.2f %.2fh%.2fv%.2fh-%.2fz", x_of(view, box->begin_ns), y, width,
                           height, width);
}

static int
compare_colors(gconstpointer left, gconstpointer right, gpointer user_data)
{
    const View *view = user_data;
    const guint a = *(const guint *)left, b = *(const guint *)right;
    const TimelineBox *boxes = &g_array_index(view->timeline->boxes, TimelineBox, 0);
    const uint32_t x = timeline_box_rgb(view->trace, &boxes[a]);
    const uint32_t y = timeline_box_rgb(view->trace, &boxes[b]);

    ORDER_BY(x, y);
    return ORDER(a, b);
}

/* (owned) array of guint: the shown boxes, those of one colour beside each other. */
static GArray *
boxes_by_color(const View *view)
{
    GArray *order = g_array_new(FALSE, FALSE, sizeof(guint));

    for (guint i = 0; i < view->timeline->boxes->len; i++) {
        if (g_array_index(view->timeline->boxes, TimelineBox, i).row % view->every == 0)
            g_array_append_val(order, i);
    }
    g_array_sort_with_data(order, compare_colors, (void *)view);
    return order;
}

/* One path for each colour. */
static void
append_boxes(GString *html, const View *view)
{
    g_autoptr(GArray) order = boxes_by_color(view);
    uint32_t open = UINT32_MAX;

    g_string_append(html, "<g id=\"boxes\">");
    for (guint i = 0; i < order->len; i++) {
        const TimelineBox *box =
            &g_array_index(view->timeline->boxes, TimelineBox, g_array_index(order, guint, i));
        const uint32_t rgb = timeline_box_rgb(view->trace, box);

        if (rgb != open)
            g_string_append_printf(html, "%s<path fill=\"#%06x\" d=\"", i > 0 ? "\"/>\n" : "", rgb);
        append_box(html, view, box);
        open = rgb;
    }
    g_string_append(html, order->len > 0 ? "\"/></g>\n" : "</g>\n");
}

static void
append_labels(GString *html, const View *view)
{
    int n = 0;

    g_string_append(html, "<g id=\"labels\">");
    for (guint i = 0; i < view->timeline->boxes->len && view->box >= 11 && n < MAX_LABELS; i++) {
        const TimelineBox *box = &g_array_index(view->timeline->boxes, TimelineBox, i);
        const double px = x_of(view, box->end_ns) - x_of(view, box->begin_ns);
        char label[32];

        timeline_label(view->trace, box, label);
        if (box->row % view->every != 0 || box->is_aside || *label == 0 ||
            px <= 7 * (double)strlen(label) + 3)
            continue;
        g_string_append_printf(html, "<text x=\"%.2f\" y=\"%.2f\" style=\"fill:#%06x\">%s</text>",
                               x_of(view, box->begin_ns) + px / 2,
                               y_of(view, box->row / view->every) + view->box / 2.0 + 4,
                               timeline_label_rgb(timeline_box_rgb(view->trace, box)), label);
        n++;
    }
    g_string_append(html, "</g>\n");
}

static void
append_axis(GString *html, const View *view)
{
    const int64_t step = timeline_tick_ns(view->end_ns, 12);
    const int bottom = TOP + view->n_rows * view->row;

    g_string_append(html, "<g id=\"axis\">");
    for (int64_t t = 0; t <= view->end_ns; t += step) {
        UnitsText time = {"0"};
        const double x = x_of(view, t);

        if (t > 0)
            time = units_format_s(units_s_from_ns(t));
        g_string_append_printf(html,
                               "<line class=\"grid\" x1=\"%.2f\" x2=\"%.2f\" y1=\"%d\" y2=\"%d\"/>"
                               "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\">%s</text>",
                               x, x, TOP, bottom, x, bottom + 16, time.text);
    }
    g_string_append(html, "</g>\n");
}

static void
append_timeline(GString *html, const View *view)
{
    const int height = view->n_rows * view->row;
    const int32_t named = timeline_named_every(view->row);

    g_string_append_printf(html, "<svg viewBox=\"0 0 %d %d\" role=\"img\">\n", WIDTH + 16,
                           TOP + height + FOOTER);
    g_string_append_printf(
        html,
        "<clipPath id=\"clip\"><rect x=\"%d\" y=\"0\" width=\"%d\" height=\"%d\"/></clipPath>\n"
        "<pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">"
        "<path d=\"M0 6L6 0\"/></pattern>\n"
        "<g id=\"track\"><rect class=\"track\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>"
        "<rect class=\"hatch\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/></g>\n",
        LEFT, WIDTH - LEFT, TOP + height, LEFT, TOP, WIDTH - LEFT, height, LEFT, TOP, WIDTH - LEFT,
        height);
    append_axis(html, view);
    for (int32_t r = 0; r < view->n_rows; r += named) {
        g_string_append_printf(html, "<text x=\"%d\" y=\"%.2f\" text-anchor=\"end\">%d</text>",
                               LEFT - 6, y_of(view, r) + view->box / 2.0 + 4, r * view->every);
    }
    g_string_append(html, "\n<g clip-path=\"url(#clip)\">");
    append_boxes(html, view);
    append_labels(html, view);
    g_string_append(html, "</g></svg>\n");
}

static void
append_legend(GString *html, const View *view)
{
    bool present[TIMELINE_KIND_N] = {false};

    timeline_find_kinds(view->timeline, present);
    for (size_t k = 0; k < TIMELINE_KIND_N; k++) {
        if (present[k])
            page_append_legend_entry(html, timeline_styles[k].rgb, timeline_styles[k].name);
    }
    g_string_append(html, "<span><i class=\"hatched\"></i>bubble</span>");
}

static void
append_note(GString *html, const View *view)
{
    bool is_merged = false;

    for (guint i = 0; i < view->timeline->boxes->len && !is_merged; i++) {
        const TimelineBox *box = &g_array_index(view->timeline->boxes, TimelineBox, i);

        is_merged = box->micro_batch < 0 && box->kind <= TIMELINE_WAIT;
    }
    if (is_merged)
        g_string_append_printf(html, "Neighbours shorter than %s are drawn as one. ",
                               units_format_s(units_s_from_ns(view->min_ns)).text);
    if (view->every > 1)
        g_string_append_printf(html, "Every %dth rank is shown. ", view->every);
}

static void
append_data(GString *html, const View *view)
{
    static const char *const names[] = {"left",  "width", "top",          "row",    "box",   "end",
                                        "shown", "every", "microbatches", "slices", "chunks"};
    const int64_t values[] = {LEFT,
                              WIDTH - LEFT,
                              TOP,
                              view->row,
                              view->box,
                              view->end_ns,
                              view->n_rows,
                              view->every,
                              view->trace->n_micro_batches,
                              view->trace->n_slices,
                              view->trace->n_chunks};
    guint next = 0;

    g_string_append_c(html, '{');
    for (size_t i = 0; i < G_N_ELEMENTS(names); i++)
        g_string_append_printf(html, "\"%s\":" INT ",", names[i], values[i]);
    g_string_append(html, "\"kinds\":[");
    for (size_t k = 0; k < TIMELINE_KIND_N; k++)
        g_string_append_printf(html, "%s\"%s\"", k > 0 ? "," : "", timeline_styles[k].name);
    g_string_append(html, "],\n\"rows\":[");
    for (int32_t r = 0; r < view->n_rows; r++) {
        const char *comma = "";

        g_string_append(html, r > 0 ? ",\n[" : "[");
        for (; next < view->timeline->boxes->len; next++) {
            const TimelineBox *box = &g_array_index(view->timeline->boxes, TimelineBox, next);

            if (box->row > r * view->every)
                break;
            if (box->row < r * view->every)
                continue;
            g_string_append_printf(html, "%s" INT "," INT ",%d,%d,%d,%d,%u", comma, box->begin_ns,
                                   box->end_ns - box->begin_ns,
                                   box->kind + (box->is_aside ? ASIDE : 0), box->micro_batch,
                                   box->slice, box->chunk, timeline_box_rgb(view->trace, box));
            comma = ",";
        }
        g_string_append_c(html, ']');
    }
    g_string_append(html, "]}");
}

/* --- memory over time --- */

enum {
    BINS = 280, /* steps of a row; fewer when there are many rows */
    MAX_STEPS = 40000,
    MEMORY_MAX_ROW = 40,
};

/* Where rows are. */
typedef struct {
    const View *view;
    int64_t most_bytes; /* the height of a row */
    int n_bins, row;    /* height of a row in pixels */
} Rows;

/* The most that @rank holds in each bin.  @i: its first event; returns the one after its last. */
static guint
fill_bins(const Rows *rows, int32_t rank, guint i, int64_t *bins)
{
    const GArray *memory = rows->view->trace->memory;
    int64_t now = 0;
    int at = 0;

    memset(bins, 0, sizeof *bins * (size_t)rows->n_bins);
    /* bins up to at hold what the events so far leave or held. */
    for (; i < memory->len; i++) {
        const TraceMemory *event = &g_array_index(memory, TraceMemory, i);
        if (event->rank != rank)
            break;
        const int bin = (int)((double)event->at_ns / (double)rows->view->end_ns * rows->n_bins);
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
    const double bottom = TOP + (row + 1) * rows->row - (rows->row >= 14 ? 3 : 0);
    const double height = rows->row >= 14  ? rows->row - 3
                          : rows->row >= 5 ? rows->row - 1
                                           : rows->row;
    const double step = (double)(WIDTH - LEFT) / rows->n_bins;

    g_string_append_printf(html, "M%d %.2f", LEFT, bottom);
    for (int i = 0; i < rows->n_bins; i++) {
        if (i == 0 || bins[i] != bins[i - 1])
            g_string_append_printf(html, "V%.2f",
                                   bottom - height * (double)bins[i] / (double)rows->most_bytes);
        if (i + 1 == rows->n_bins || bins[i + 1] != bins[i])
            g_string_append_printf(html, "H%.2f", LEFT + (i + 1) * step);
    }
    g_string_append_printf(html, "V%.2fz", bottom);
}

/* Two paths, of one colour each: all that is held, and what stays over it. */
static void
append_rows(GString *html, const Rows *rows)
{
    const View *view = rows->view;
    g_autofree int64_t *bins = g_new(int64_t, (size_t)rows->n_bins);
    g_autoptr(GString) stays = g_string_new("<path fill=\"#009e73\" d=\"");
    guint i = 0;

    g_string_append(html, "<path fill=\"#e69f00\" d=\"");
    for (int32_t rank = 0; rank < view->trace->n_ranks; rank++) {
        i = fill_bins(rows, rank, i, bins);
        if (rank % view->every != 0)
            continue;
        append_row(html, rows, rank / view->every, bins);
        /* What is left after the iteration was there all the time. */
        const int64_t least = bins[rows->n_bins - 1];
        for (int k = 0; k < rows->n_bins; k++)
            bins[k] = MIN(bins[k], least);
        append_row(stays, rows, rank / view->every, bins);
    }
    g_string_append_printf(html, "\"/>\n%s\"/>\n", stays->str);
    for (int32_t row = 0; row < view->n_rows; row += rows->row >= 12 ? 1 : 12 / rows->row + 1)
        g_string_append_printf(html,
                               "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" "
                               "dominant-baseline=\"central\">%d</text>\n",
                               LEFT - 6, TOP + row * rows->row + rows->row / 2, row * view->every);
}

static void
append_memory_over_time(GString *html, const View *view)
{
    const Report *report = view->report;
    const int64_t peak = report->peak_memory_bytes, limit = report->memory_limit_bytes;

    if (view->trace->memory->len == 0 || peak <= 0)
        return;
    /* A limit far above what is held would only flatten the rows. */
    const bool near = limit >= peak && (double)limit <= 1.25 * (double)peak;
    const Rows rows = {
        .view = view,
        .most_bytes = near ? limit : peak,
        .n_bins = CLAMP(MAX_STEPS / view->n_rows, 40, BINS),
        .row = CLAMP(600 / view->n_rows, 3, MEMORY_MAX_ROW),
    };
    g_string_append_printf(html,
                           "<h2>Memory over time <span class=\"faint\">(a row is %s high: %s)"
                           "</span></h2>\n",
                           units_format_bytes((double)rows.most_bytes).text,
                           near ? "the limit" : "the highest peak");
    /* On the timeline's axis. */
    g_string_append_printf(html, "<svg viewBox=\"0 0 %d %d\" role=\"img\">\n", WIDTH + 16,
                           2 * TOP + view->n_rows * rows.row);
    g_string_append_printf(html,
                           "<rect class=\"track\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n",
                           LEFT, TOP, WIDTH - LEFT, view->n_rows * rows.row);
    append_rows(html, &rows);
    g_string_append(html, "</svg>\n<div class=\"legend\">");
    page_append_legend_entry(html, 0x009e73, "what stays: weights, gradients, optimizer, buffers");
    page_append_legend_entry(html, 0xe69f00, "activations, keys and values, workspace");
    g_string_append(html, "</div>\n");
}

/* --- the page --- */

static void
append_timeline_section(GString *html, const View *view)
{
    g_string_append(
        html, "<h2>Timeline</h2>\n<div class=\"scroll\"><div id=\"timeline\" tabindex=\"0\">");
    append_timeline(html, view);
    g_string_append(html, "</div></div>\n<div class=\"legend\">");
    append_legend(html, view);
    g_string_append(html, "</div>\n<p class=\"faint\">");
    append_note(html, view);
    g_string_append(html, "</p>\n<div id=\"buttons\" hidden></div>\n"
                          "<script type=\"application/json\" id=\"data\">");
    append_data(html, view);
    g_string_append(html, "</script>\n");
}

void
html_add_iteration(HtmlPage *page, const Job *job, const Report *report, const Trace *trace)
{
    View view = {.job = job, .report = report, .trace = trace};
    g_autoptr(GString) html = g_string_new(NULL);

    view_init(&view);
    add_about(page, &view);
    if (report != NULL) {
        add_cards(page, &view);
        add_breakdown(page, &view);
    }
    append_timeline_section(html, &view);
    if (report != NULL) {
        g_string_append(html, "<h2>Ranks</h2>\n<div class=\"scroll\" tabindex=\"0\">");
        append_ranks(html, &view);
        append_memory_over_time(html, &view);
    }
    page_raw(page, html->str);
    timeline_free(view.timeline);
}

char *
html_title(const Job *job)
{
    return g_strdup_printf("%s on %s", job->arch->name, job->profile->name);
}

bool
html_write(const Job *job, const Report *report, const Trace *trace, const char *footer,
           const char *path, GError **error)
{
    g_autofree char *title = job == NULL ? g_strdup(trace->schedule) : html_title(job);
    g_autoptr(HtmlPage) page = page_new(title);

    html_add_iteration(page, job, report, trace);
    return page_write(page, footer, path, error);
}
