#include "cli/draw/html.h"

#include <math.h>
#include <string.h>

#include "base/embedded.h"
#include "base/file.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/draw/html_page.h"
#include "cli/request/output.h"
#include "cli/draw/plot.h"
#include "schedule/rank_order.h"

/* Of a bar of memory, in pixels. */
#define BAR_WIDTH 420

/* --- small pieces --- */

/* No markup, no control characters. */
static void
append_escaped(GString *html, const char *text)
{
    g_autofree char *safe = text_escape(text, 300);
    g_autofree char *escaped = g_markup_escape_text(safe, -1);

    g_string_append(html, escaped);
}

void
html_append_number(GString *html, double value)
{
    char digits[G_ASCII_DTOSTR_BUF_SIZE];

    g_string_append(html, g_ascii_formatd(digits, sizeof digits, "%.2f", value));
}

void
html_append_legend_entry(GString *html, uint32_t rgb, const char *name)
{
    g_string_append_printf(html, "<span><i style=\"background:#%06x\"></i>%s</span>", rgb, name);
}

/* --- head --- */

static void
append_title(GString *html, const HtmlPage *page)
{
    append_escaped(html, page->job == NULL ? page->trace->schedule : page->job->arch->name);
    if (page->job != NULL) {
        g_string_append(html, " on ");
        append_escaped(html, page->job->profile->name);
    }
}

static void
append_about(GString *html, const HtmlPage *page)
{
    g_autofree char *what = timeline_title(page->trace);

    if (page->job != NULL) {
        const Plan *plan = page->job->plan;
        const PlanDegrees *d = &plan->degrees;
        const struct {
            const char *name;
            int64_t degree;
        } degrees[] = {{"dp", d->dp},   {"tp", d->tp}, {"pp", d->pp},
                       {"vpp", d->vpp}, {"cp", d->cp}, {"ep", d->ep}};

        g_string_append_printf(
            html,
            "%" G_GINT64_FORMAT " devices, %" G_GINT64_FORMAT " x %" G_GINT64_FORMAT " tokens, %s",
            plan_n_devices(plan), plan->global_batch, plan->seq_len, dtype_names[plan->dtype]);
        for (size_t i = 0; i < G_N_ELEMENTS(degrees); i++) {
            if (degrees[i].degree > 1 || i < 3)
                g_string_append_printf(html, ", %s %" G_GINT64_FORMAT, degrees[i].name,
                                       degrees[i].degree);
        }
        if (plan_rank_order_plain(d) != PLAN_RANK_ORDER_DEFAULT)
            g_string_append_printf(html, ", ranks in the order %s",
                                   plan_rank_order_names[d->rank_order]);
        g_string_append_printf(html, ", micro-batches of %" G_GINT64_FORMAT "<br>",
                               plan->micro_batch);
    }
    append_escaped(html, what);
}

/* @value (taken) */
static void
append_card(GString *html, const char *name, char *value)
{
    g_string_append_printf(html, "<div><b>%s</b><span class=\"faint\">%s</span></div>\n", value,
                           name);
    g_free(value);
}

static void
append_memory_card(GString *html, const Report *report)
{
    g_autofree char *limit = units_format_bytes((double)report->memory_limit_bytes);
    g_autofree char *name = NULL;

    if (report->memory_limit_bytes <= 0)
        name = g_strdup("peak memory");
    else if (report->fits)
        name = g_strdup_printf("peak memory of %s", limit);
    else
        name = g_strdup_printf("peak memory, but only %s are there", limit);
    append_card(html, name, units_format_bytes((double)report->peak_memory_bytes));
}

static void
append_cost_card(GString *html, const HtmlPage *page)
{
    const char *currency = page->job == NULL ? NULL : page->job->profile->cluster->currency;
    g_autoptr(GString) value = g_string_new(NULL);
    g_autofree char *number = output_number(page->report->cost_per_iteration);

    append_escaped(value, number);
    if (currency != NULL) {
        g_string_append_c(value, ' ');
        append_escaped(value, currency);
    }
    append_card(html, "cost of an iteration", g_string_free(g_steal_pointer(&value), FALSE));
}

static void
append_jitter_cards(GString *html, const Report *report)
{
    const ReportJitter *jitter = &report->jitter;
    g_autofree char *p10 = output_seconds(units_s_from_ns(jitter->iteration_ns[0]));
    g_autofree char *p90 = output_seconds(units_s_from_ns(jitter->iteration_ns[2]));
    g_autofree char *runs =
        g_strdup_printf("p10 to p90 of %" G_GINT64_FORMAT " runs with jitter", jitter->n_runs);

    append_card(html, runs, g_strdup_printf("%s to %s", p10, p90));
    if (report->memory_limit_bytes > 0)
        append_card(html, "of these fit", output_percent(jitter->fit_fraction));
}

static void
append_cards(GString *html, const HtmlPage *page)
{
    const Report *report = page->report;

    append_card(html, "iteration", output_seconds(units_s_from_ns(report->iteration_ns)));
    append_card(html, "bubble", output_percent(report->bubble_fraction));
    if (isfinite(report->tokens_per_s))
        append_card(html, "tokens per second", units_format_count(report->tokens_per_s));
    if (isfinite(report->model_flops_utilization_fraction))
        append_card(html, "of the devices' peak",
                    output_percent(report->model_flops_utilization_fraction));
    if (report->peak_memory_bytes > 0)
        append_memory_card(html, report);
    if (isfinite(report->cost_per_iteration))
        append_cost_card(html, page);
    if (report->jitter.n_runs > 0)
        append_jitter_cards(html, report);
}

static void
append_breakdown(GString *html, const HtmlPage *page)
{
    const Report *r = page->report;
    /* What the timeline shows too has its colour there. */
    const struct {
        const char *name;
        double seconds;
        uint32_t rgb;
    } parts[] = {
        {"compute", r->breakdown.compute_s, 0x0072b2},
        {"recompute", r->breakdown.recompute_s, 0xd55e00},
        {"tensor parallel", r->breakdown.tp_s, 0x009e73},
        {"pipeline messages", r->breakdown.pp_s, 0xcc79a7},
        {"data parallel", r->breakdown.dp_s, 0x56b4e9},
        {"context parallel", r->breakdown.cp_s, 0xe69f00},
        {"expert parallel", r->breakdown.ep_s, 0x999999},
        {"optimizer", r->breakdown.optimizer_s, 0xf0e442},
    };
    const double all = units_s_from_ns(MAX(r->iteration_ns, 1));
    g_autofree char *bubble = output_percent(r->breakdown.bubble_s / all);
    g_autoptr(GString) legend = g_string_new("<div class=\"legend\">");

    g_string_append(html, "<div class=\"bar\">");
    for (size_t i = 0; i < G_N_ELEMENTS(parts); i++) {
        if (!(parts[i].seconds > 0))
            continue;
        g_autofree char *share = output_percent(parts[i].seconds / all);
        g_autofree char *entry = g_strdup_printf("%s %s", parts[i].name, share);

        g_string_append(html, "<i style=\"width:");
        html_append_number(html, 100 * parts[i].seconds / all);
        g_string_append_printf(html, "%%;background:#%06x\"></i>", parts[i].rgb);
        html_append_legend_entry(legend, parts[i].rgb, entry);
    }
    g_string_append_printf(html,
                           "</div>\n%s<span><i style=\"background:var(--bubble)\"></i>"
                           "bubble %s</span></div>\n",
                           legend->str, bubble);
}

/* --- ranks --- */

static void
append_memory_bar(GString *html, const ReportRank *rank, double px_per_byte)
{
    g_string_append_printf(html, "<td><div class=\"bar thin\" style=\"width:%dpx\">", BAR_WIDTH);
    for (size_t k = 0; k < TRACE_MEMORY_N; k++) {
        const int64_t bytes = rank->memory_bytes[plot_owners[k].owner];
        g_autofree char *size = units_format_bytes((double)bytes);

        if (bytes <= 0)
            continue;
        g_string_append(html, "<i style=\"width:");
        html_append_number(html, (double)bytes * px_per_byte);
        g_string_append_printf(html, "px;background:#%06x\" title=\"%s %s\"></i>",
                               plot_owners[k].rgb, trace_memory_names[plot_owners[k].owner], size);
    }
    g_string_append(html, "</div>");
}

static void
append_owners(GString *html, const Report *report)
{
    g_string_append(html, "<div class=\"legend\">");
    for (size_t k = 0; k < TRACE_MEMORY_N; k++) {
        const TraceMemoryOwner owner = plot_owners[k].owner;

        for (guint i = 0; i < report->ranks->len; i++) {
            if (g_array_index(report->ranks, ReportRank, i).memory_bytes[owner] > 0) {
                html_append_legend_entry(html, plot_owners[k].rgb, trace_memory_names[owner]);
                break;
            }
        }
    }
    g_string_append(html, "</div>\n");
}

static void
append_ranks(GString *html, const HtmlPage *page)
{
    const Report *report = page->report;
    const bool has_memory = report->peak_memory_bytes > 0;
    const int64_t widest = MAX(MAX(report->peak_memory_bytes, report->memory_limit_bytes), 1);

    g_string_append_printf(html,
                           "<table><tr><th>rank<th>busy<th>bubble<th>messages<th>in flight%s\n",
                           has_memory ? "<th>peak<th class=\"left\">memory at the peak" : "");
    for (guint i = 0; i < report->ranks->len && i < HTML_MAX_ROWS; i++) {
        const ReportRank *rank = &g_array_index(report->ranks, ReportRank, i);
        g_autofree char *busy = output_seconds(units_s_from_ns(rank->busy_ns));
        g_autofree char *bubble = output_seconds(units_s_from_ns(rank->bubble_ns));
        g_autofree char *messages = output_seconds(units_s_from_ns(rank->communication_ns));
        g_autofree char *peak = units_format_bytes((double)rank->peak_memory_bytes);

        g_string_append_printf(html, "<tr><td>%u<td>%s<td>%s<td>%s<td>%d", i, busy, bubble,
                               messages, rank->peak_in_flight);
        if (has_memory) {
            g_string_append_printf(html, "<td>%s", peak);
            append_memory_bar(html, rank, (double)BAR_WIDTH / (double)widest);
        }
        g_string_append_c(html, '\n');
    }
    g_string_append(html, "</table>\n");
    if (report->ranks->len > HTML_MAX_ROWS)
        g_string_append_printf(html, "<p class=\"faint\">%d of %u ranks are shown.</p>\n",
                               HTML_MAX_ROWS, report->ranks->len);
    if (has_memory)
        append_owners(html, report);
}

/* --- the page --- */

static void
append_footer(GString *html, const HtmlPage *page)
{
    append_escaped(html, page->footer);
}

/* What stands at the template's mark @@name@@. */
static void
append_value(GString *html, const HtmlPage *page, const char *name, size_t n)
{
    static const struct {
        const char *name;
        void (*append)(GString *html, const HtmlPage *page);
    } parts[] = {
        {"title", append_title},
        {"about", append_about},
        {"cards", append_cards},
        {"breakdown", append_breakdown},
        {"timeline", html_append_timeline},
        {"legend", html_append_legend},
        {"note", html_append_note},
        {"ranks", append_ranks},
        {"memory", html_append_memory},
        {"footer", append_footer},
        {"data", html_append_data},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(parts); i++) {
        if (strlen(parts[i].name) == n && strncmp(name, parts[i].name, n) == 0) {
            parts[i].append(html, page);
            return;
        }
    }
    g_assert_not_reached();
}

bool
html_write(const Job *job, const Report *report, const Trace *trace, const char *footer,
           const char *path, GError **error)
{
    const EmbeddedFile *template = embedded_find("cli/plots/report.html");
    HtmlPage page = {.job = job, .report = report, .trace = trace, .footer = footer};
    g_autoptr(GString) html = g_string_new(NULL);
    const char *rest, *mark;

    g_assert(template != NULL);
    html_page_init(&page);
    /* The template is walked once, so that a value that looks like a mark stays text. */
    for (rest = template->text; (mark = strstr(rest, "@@")) != NULL;) {
        const char *end = strstr(mark + 2, "@@");

        g_assert(end != NULL);
        g_string_append_len(html, rest, mark - rest);
        append_value(html, &page, mark + 2, (size_t)(end - mark - 2));
        rest = end + 2;
    }
    g_string_append(html, rest);
    html_page_clear(&page);
    return file_write(path, html->str, html->len, error);
}
