#include "cli/html.h"

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/output.h"
#include "cli/timeline.h"

/* A box is some 120 bytes: 4 MB. */
#define MAX_BOXES 32000
#define PLOT_WIDTH 1200
#define PLOT_LEFT 48
#define BAR_WIDTH 700

/* The colours of memory are those of plot_memory.c, in the owners' order: Okabe and Ito's. */
static const char *const memory_colors[TRACE_MEMORY_N] = {
    [TRACE_MEMORY_WEIGHTS] = "#0072b2",   [TRACE_MEMORY_GRADIENTS] = "#56b4e9",
    [TRACE_MEMORY_OPTIMIZER] = "#009e73", [TRACE_MEMORY_ACTIVATIONS] = "#e69f00",
    [TRACE_MEMORY_KV] = "#f0e442",        [TRACE_MEMORY_BUFFERS] = "#cc79a7",
    [TRACE_MEMORY_WORKSPACE] = "#999999",
};

static const char page_head[] =
    "<!DOCTYPE html>\n"
    "<html lang=\"en\">\n"
    "<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" "
    "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
    "<style>\n"
    ":root { color-scheme: light dark; --ink: #222; --pale: #777; --paper: #fff; --idle: #f0f0f0 "
    "}\n"
    "@media (prefers-color-scheme: dark) {\n"
    "  :root { --ink: #ddd; --pale: #999; --paper: #181818; --idle: #2a2a2a } }\n"
    "body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);\n"
    "  max-width: 1260px; margin: 2em auto; padding: 0 1em }\n"
    "h1 { font-size: 1.5em; margin: 0 } h2 { font-size: 1.1em; margin: 2em 0 .5em }\n"
    ".pale { color: var(--pale) }\n"
    ".facts { display: flex; flex-wrap: wrap; gap: 1em 2.5em; margin: 1.2em 0 }\n"
    ".facts b { display: block; font-size: 1.5em; font-weight: 600 }\n"
    ".bar { display: flex; height: 1.8em } .bar span { display: block }\n"
    ".key { margin: .4em 1.2em 0 0; white-space: nowrap; display: inline-block }\n"
    ".key i { display: inline-block; width: .9em; height: .9em; margin-right: .4em }\n"
    "table { border-collapse: collapse; font-variant-numeric: tabular-nums }\n"
    "td, th { text-align: right; padding: .1em .8em; font-weight: normal }\n"
    "th { color: var(--pale) }\n"
    "svg { width: 100%; height: auto } svg text { fill: var(--pale); font-size: 11px }\n"
    "svg .label { font-size: 9px; text-anchor: middle; pointer-events: none }\n"
    "</style>\n";

/* Text for HTML: no markup, no control characters. */
static void
append_text(GString *page, const char *text)
{
    g_autofree char *safe = text_escape(text, 300);
    g_autofree char *escaped = g_markup_escape_text(safe, -1);

    g_string_append(page, escaped);
}

static void
append_number(GString *page, double value)
{
    char digits[G_ASCII_DTOSTR_BUF_SIZE];

    g_string_append(page, g_ascii_formatd(digits, sizeof digits, "%.2f", value));
}

/* @value (taken) */
static void
append_fact(GString *page, const char *name, char *value)
{
    g_string_append_printf(page, "<div><b>%s</b><span class=\"pale\">%s</span></div>\n", value,
                           name);
    g_free(value);
}

static void
append_key(GString *page, const char *color, const char *name, const char *value)
{
    g_string_append_printf(page,
                           "<span class=\"key\"><i style=\"background:%s\"></i>%s%s%s</span>\n",
                           color, name, *value == 0 ? "" : " ", value);
}

/* --- head --- */

static void
append_title(GString *page, const Job *job, const Trace *trace)
{
    g_autofree char *what = timeline_title(trace);

    g_string_append(page, "<title>degas: ");
    append_text(page, job == NULL ? trace->schedule : job->arch->name);
    g_string_append(page, "</title>\n<h1>");
    append_text(page, job == NULL ? trace->schedule : job->arch->name);
    if (job != NULL) {
        const PlanDegrees *d = &job->plan->degrees;

        g_string_append(page, " on ");
        append_text(page, job->profile->name);
        g_string_append_printf(
            page,
            "</h1>\n<div class=\"pale\">%" G_GINT64_FORMAT " devices, %" G_GINT64_FORMAT
            " x %" G_GINT64_FORMAT " tokens, %s; dp %" G_GINT64_FORMAT ", tp %" G_GINT64_FORMAT
            ", pp %" G_GINT64_FORMAT ", vpp %" G_GINT64_FORMAT ", cp %" G_GINT64_FORMAT
            ", ep %" G_GINT64_FORMAT ", micro-batch %" G_GINT64_FORMAT "</div>\n",
            plan_n_devices(job->plan), job->plan->global_batch, job->plan->seq_len,
            dtype_names[job->plan->dtype], d->dp, d->tp, d->pp, d->vpp, d->cp, d->ep,
            job->plan->micro_batch);
    } else {
        g_string_append(page, "</h1>\n");
    }
    g_string_append(page, "<div class=\"pale\">");
    append_text(page, what);
    g_string_append(page, "</div>\n");
}

static void
append_facts(GString *page, const Report *report)
{
    g_string_append(page, "<div class=\"facts\">\n");
    append_fact(page, "iteration", output_seconds(units_s_from_ns(report->iteration_ns)));
    append_fact(page, "bubble", output_percent(report->bubble_fraction));
    if (isfinite(report->tokens_per_s))
        append_fact(page, "tokens/s", units_format_count(report->tokens_per_s));
    if (isfinite(report->model_flops_utilization_fraction))
        append_fact(page, "of the devices' peak",
                    output_percent(report->model_flops_utilization_fraction));
    if (report->peak_memory_bytes > 0) {
        g_autofree char *limit = units_format_bytes((double)report->memory_limit_bytes);
        g_autofree char *name = report->memory_limit_bytes == 0 ? g_strdup("peak memory")
                                : report->fits
                                    ? g_strdup_printf("peak memory of %s", limit)
                                    : g_strdup_printf("peak memory; only %s are there", limit);

        append_fact(page, name, units_format_bytes((double)report->peak_memory_bytes));
    }
    if (isfinite(report->cost_per_iteration))
        append_fact(page, "cost of an iteration", output_number(report->cost_per_iteration));
    g_string_append(page, "</div>\n");
}

static void
append_breakdown(GString *page, const Report *report)
{
    const struct {
        const char *name, *color;
        double s;
    } parts[] = {
        {"compute", "#0072b2", report->breakdown.compute_s},
        {"recompute", "#d55e00", report->breakdown.recompute_s},
        {"tensor parallel", "#cc79a7", report->breakdown.tp_s},
        {"pipeline messages", "#56b4e9", report->breakdown.pp_s},
        {"data parallel", "#009e73", report->breakdown.dp_s},
        {"context parallel", "#e69f00", report->breakdown.cp_s},
        {"expert parallel", "#999999", report->breakdown.ep_s},
        {"optimizer", "#f0e442", report->breakdown.optimizer_s},
        {"bubble", "var(--idle)", report->breakdown.bubble_s},
    };
    const double all = units_s_from_ns(MAX(report->iteration_ns, 1));

    g_string_append(page, "<h2>Where the time goes</h2>\n<div class=\"bar\">");
    for (size_t i = 0; i < G_N_ELEMENTS(parts); i++) {
        if (parts[i].s <= 0)
            continue;
        g_string_append_printf(page, "<span style=\"background:%s;width:", parts[i].color);
        append_number(page, 100 * parts[i].s / all);
        g_string_append(page, "%\"></span>");
    }
    g_string_append(page, "</div>\n<div>");
    for (size_t i = 0; i < G_N_ELEMENTS(parts); i++) {
        g_autofree char *share = output_percent(parts[i].s / all);

        if (parts[i].s > 0)
            append_key(page, parts[i].color, parts[i].name, share);
    }
    g_string_append(page, "</div>\n");
}

/* --- timeline --- */

static Timeline *
merged_timeline(const Trace *trace)
{
    int64_t min_ns = MAX(trace->makespan_ns / (2 * PLOT_WIDTH), 1);

    for (;;) {
        Timeline *timeline = timeline_new(trace, min_ns);

        if (timeline->boxes->len <= MAX_BOXES || min_ns > trace->makespan_ns)
            return timeline;
        timeline_free(timeline);
        min_ns *= 2;
    }
}

static void
append_box(GString *page, const Trace *trace, const TimelineBox *box, int row_height)
{
    const TimelineStyle *style = &timeline_styles[box->kind];
    const double scale = (double)PLOT_WIDTH / (double)MAX(trace->makespan_ns, 1);
    const double x = PLOT_LEFT + (double)box->begin_ns * scale;
    const double width = (double)(box->end_ns - box->begin_ns) * scale;
    const double gap = row_height >= 8 ? 1 : 0;
    const double y = box->row * row_height + gap / 2 + (box->is_aside ? 0.7 * row_height : 0);
    const double height = (box->is_aside ? 0.3 : 1) * row_height - gap;
    const bool is_odd = box->microbatch >= 0 && (box->microbatch + box->slice) % 2 == 1;
    g_autofree char *begin = units_format_s(units_s_from_ns(box->begin_ns));
    g_autofree char *length = units_format_s(units_s_from_ns(box->end_ns - box->begin_ns));
    char label[32];

    timeline_label(trace, box, label);
    g_string_append(page, "<rect x=\"");
    append_number(page, x);
    g_string_append(page, "\" y=\"");
    append_number(page, y);
    g_string_append(page, "\" width=\"");
    append_number(page, width);
    g_string_append(page, "\" height=\"");
    append_number(page, MAX(height, 0.5));
    g_string_append_printf(page,
                           "\" fill=\"#%06x\"%s><title>%s%s%s, rank %d: %s from %s</title>"
                           "</rect>\n",
                           style->rgb, is_odd ? " opacity=\".75\"" : "", style->name,
                           *label == 0 ? "" : " ", label, box->row, length, begin);
    if (*label == 0 || row_height < 12 || box->is_aside || width < 6 * (double)strlen(label) + 2)
        return;
    g_string_append(page, "<text class=\"label\" x=\"");
    append_number(page, x + width / 2);
    g_string_append(page, "\" y=\"");
    append_number(page, y + height / 2 + 3);
    g_string_append_printf(page, "\" style=\"fill:#%06x\">%s</text>\n", style->text_rgb, label);
}

static void
append_axis(GString *page, const Trace *trace, int height)
{
    for (int i = 0; i <= 8; i++) {
        g_autofree char *time = units_format_s(units_s_from_ns(trace->makespan_ns) * i / 8);

        g_string_append_printf(page, "<text x=\"%d\" y=\"%d\" text-anchor=\"%s\">%s</text>\n",
                               PLOT_LEFT + PLOT_WIDTH * i / 8, height + 16,
                               i == 0   ? "start"
                               : i == 8 ? "end"
                                        : "middle",
                               time);
    }
}

static void
append_timeline(GString *page, const Trace *trace)
{
    g_autoptr(Timeline) timeline = merged_timeline(trace);
    const int row_height = CLAMP(800 / MAX(trace->n_ranks, 1), 3, 30);
    const int height = row_height * trace->n_ranks;
    bool present[TIMELINE_KIND_N] = {false};

    g_string_append_printf(page,
                           "<h2>Timeline</h2>\n<svg viewBox=\"0 0 %d %d\" role=\"img\">\n"
                           "<rect x=\"%d\" y=\"0\" width=\"%d\" height=\"%d\" "
                           "style=\"fill:var(--idle)\"/>\n",
                           PLOT_LEFT + PLOT_WIDTH + 4, height + 24, PLOT_LEFT, PLOT_WIDTH, height);
    for (int32_t r = 0, next = 0; r < trace->n_ranks; r++) {
        if (r * row_height < next)
            continue;
        g_string_append_printf(page, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%d</text>\n",
                               PLOT_LEFT - 6, r * row_height + row_height / 2 + 4, r);
        next = r * row_height + 14;
    }
    for (guint i = 0; i < timeline->boxes->len; i++) {
        const TimelineBox *box = &g_array_index(timeline->boxes, TimelineBox, i);

        present[box->kind] = true;
        append_box(page, trace, box, row_height);
    }
    append_axis(page, trace, height);
    g_string_append(page, "</svg>\n<div>");
    for (int k = 0; k < TIMELINE_KIND_N; k++) {
        g_autofree char *color = g_strdup_printf("#%06x", timeline_styles[k].rgb);

        if (present[k])
            append_key(page, color, timeline_styles[k].name, "");
    }
    append_key(page, "var(--idle)", "bubble", "");
    g_string_append(page, "</div>\n");
}

/* --- ranks --- */

static void
append_memory_bar(GString *page, const ReportRank *rank, double scale)
{
    double x = 0;

    g_string_append_printf(page, "<td><svg style=\"width:%dpx;height:14px\" viewBox=\"0 0 %d 14\">",
                           BAR_WIDTH, BAR_WIDTH);
    for (int owner = 0; owner < TRACE_MEMORY_N; owner++) {
        const double width = (double)rank->memory_bytes[owner] * scale;
        g_autofree char *size = units_format_bytes((double)rank->memory_bytes[owner]);

        if (rank->memory_bytes[owner] <= 0)
            continue;
        g_string_append(page, "<rect y=\"0\" height=\"14\" x=\"");
        append_number(page, x);
        g_string_append(page, "\" width=\"");
        append_number(page, width);
        g_string_append_printf(page, "\" fill=\"%s\"><title>%s %s</title></rect>",
                               memory_colors[owner], trace_memory_names[owner], size);
        x += width;
    }
    g_string_append(page, "</svg></td>");
}

static void
append_ranks(GString *page, const Report *report)
{
    const bool has_memory = report->peak_memory_bytes > 0;
    const int64_t widest = MAX(report->peak_memory_bytes, report->memory_limit_bytes);

    g_string_append_printf(page,
                           "<h2>Ranks</h2>\n<table>\n<tr><th>rank</th><th>busy</th><th>bubble</th>"
                           "<th>messages</th><th>in flight</th>%s</tr>\n",
                           has_memory ? "<th>memory</th><th></th>" : "");
    for (guint r = 0; r < report->ranks->len; r++) {
        const ReportRank *rank = &g_array_index(report->ranks, ReportRank, r);
        g_autofree char *busy = output_seconds(units_s_from_ns(rank->busy_ns));
        g_autofree char *bubble = output_seconds(units_s_from_ns(rank->bubble_ns));
        g_autofree char *messages = output_seconds(units_s_from_ns(rank->communication_ns));
        g_autofree char *peak = units_format_bytes((double)rank->peak_memory_bytes);

        g_string_append_printf(page, "<tr><td>%u</td><td>%s</td><td>%s</td><td>%s</td><td>%d</td>",
                               r, busy, bubble, messages, rank->peak_in_flight);
        if (has_memory) {
            g_string_append_printf(page, "<td>%s</td>", peak);
            append_memory_bar(page, rank, (double)BAR_WIDTH / (double)widest);
        }
        g_string_append(page, "</tr>\n");
    }
    g_string_append(page, "</table>\n");
    for (int owner = 0; has_memory && owner < TRACE_MEMORY_N; owner++)
        append_key(page, memory_colors[owner], trace_memory_names[owner], "");
}

bool
html_write(const Job *job, const Report *report, const Trace *trace, const char *path,
           GError **error)
{
    g_autoptr(GString) page = g_string_new(page_head);

    append_title(page, job, trace);
    append_facts(page, report);
    append_breakdown(page, report);
    append_timeline(page, trace);
    append_ranks(page, report);
    g_string_append(page, "</html>\n");
    return file_write(path, page->str, page->len, error);
}
