/*
 * cli/draw/html_page.h - the pieces of the page that cli/draw/html.h describes.  Private to cli/html*.c.
 */
#ifndef CLI_DRAW_HTML_PAGE_H
#define CLI_DRAW_HTML_PAGE_H

#include "cli/request/job.h"
#include "cli/draw/timeline.h"

G_BEGIN_DECLS

/* The timeline's picture, in its own units; the page scales it. */
enum {
    HTML_WIDTH = 1120,
    HTML_LEFT = 36,
    HTML_TOP = 4,
    HTML_FOOTER = 24,
    HTML_MAX_ROWS = 512, /* more ranks are thinned out */
};

/* What is drawn and how large. */
typedef struct {
    const Job *job; /* (nullable) */
    const Report *report;
    const Trace *trace;
    const char *footer; /* the command that wrote the page */
    Timeline *timeline;
    int64_t end_ns, min_ns;
    int32_t every, n_rows; /* row i shows rank i * every */
    int row, box;          /* heights */
} HtmlPage;

/* Two decimals, whatever the locale. */
void html_append_number(GString *html, double value);
/* @name  our own text, not escaped. */
void html_append_legend_entry(GString *html, uint32_t rgb, const char *name);

/* --- the timeline (html_timeline.c) --- */

/* Fills in what depends on the trace; html_page_clear() frees it. */
void html_page_init(HtmlPage *page);
void html_page_clear(HtmlPage *page);

void html_append_timeline(GString *html, const HtmlPage *page);
void html_append_legend(GString *html, const HtmlPage *page);
/* What was left out. */
void html_append_note(GString *html, const HtmlPage *page);
/* What the script needs: the page's measures, and seven numbers of each box. */
void html_append_data(GString *html, const HtmlPage *page);

/* --- memory over time (html_memory.c): nothing where it was not simulated --- */

void html_append_memory(GString *html, const HtmlPage *page);

G_END_DECLS

#endif /* CLI_DRAW_HTML_PAGE_H */
