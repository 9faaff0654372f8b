#include "cli/draw/page.h"

#include <glib/gstdio.h>
#include <string.h>

#include "base/embedded.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/request/command.h"
#include "cli/request/output.h"

struct HtmlPage {
    char *title;
    GString *about, *cards, *body; /* HTML */
    const char *policy;            /* what the policy allows besides */
};

bool
page_takes_stdout(Options *options)
{
    return g_strcmp0(options_string(options, "html", NULL), "-") == 0;
}

bool
page_check(Options *options, GError **error)
{
    if (page_takes_stdout(options) &&
        (options_has(options, "json") ||
         g_strcmp0(options_string(options, "output", NULL), "-") == 0))
        options_fail(options, "html", "stdout can hold one product only");
    return options_finish(options, error) &&
           output_folder_check(options_string(options, "html", NULL), error);
}

HtmlPage *
page_new(const char *title)
{
    HtmlPage *page = g_new0(HtmlPage, 1);

    page->title = g_strdup(title);
    page->about = g_string_new(NULL);
    page->cards = g_string_new(NULL);
    page->body = g_string_new(NULL);
    return page;
}

void
page_free(HtmlPage *page)
{
    if (page == NULL)
        return;
    g_free(page->title);
    g_string_free(page->about, TRUE);
    g_string_free(page->cards, TRUE);
    g_string_free(page->body, TRUE);
    g_free(page);
}

void
page_append_escaped(GString *html, const char *text)
{
    g_autofree char *safe = text_escape(text, 1000);
    g_autofree char *escaped = g_markup_escape_text(safe, -1);

    g_string_append(html, escaped);
}

void
page_append_legend_entry(GString *html, uint32_t rgb, const char *name)
{
    g_string_append_printf(html, "<span><i style=\"background:#%06x\"></i>", rgb);
    page_append_escaped(html, name);
    g_string_append(html, "</span>");
}

void
page_about(HtmlPage *page, const char *about)
{
    if (page->about->len > 0)
        g_string_append(page->about, "<br>");
    page_append_escaped(page->about, about);
}

void
page_card(HtmlPage *page, const char *name, const char *value)
{
    g_string_append(page->cards, "<div><b>");
    page_append_escaped(page->cards, value);
    g_string_append(page->cards, "</b><span class=\"faint\">");
    page_append_escaped(page->cards, name);
    g_string_append(page->cards, "</span></div>\n");
}

void
page_heading(HtmlPage *page, const char *heading, const char *remark)
{
    g_string_append(page->body, "<h2>");
    page_append_escaped(page->body, heading);
    if (remark != NULL) {
        g_string_append(page->body, " <span class=\"faint\">(");
        page_append_escaped(page->body, remark);
        g_string_append(page->body, ")</span>");
    }
    g_string_append(page->body, "</h2>\n");
}

void
page_paragraph(HtmlPage *page, const char *text)
{
    g_string_append(page->body, "<p>");
    page_append_escaped(page->body, text);
    g_string_append(page->body, "</p>\n");
}

void
page_raw(HtmlPage *page, const char *html)
{
    g_string_append(page->body, html);
}

/* --- bars --- */

void
page_bar(HtmlPage *page, const char *label, const PagePart *parts, size_t n, double whole)
{
    if (label != NULL) {
        g_string_append(page->body, "<div class=\"label\">");
        page_append_escaped(page->body, label);
        g_string_append(page->body, "</div>");
    }
    g_string_append(page->body, "<div class=\"bar\">");
    for (size_t i = 0; i < n; i++) {
        if (!(parts[i].value > 0) || !(whole > 0))
            continue;
        char width[G_ASCII_DTOSTR_BUF_SIZE];
        g_ascii_formatd(width, sizeof width, "%.2f", 100 * parts[i].value / whole);
        g_string_append_printf(page->body, "<i style=\"width:%s%%;background:#%06x\" title=\"",
                               width, parts[i].rgb);
        page_append_escaped(page->body, parts[i].name);
        g_string_append(page->body, "\"></i>");
    }
    g_string_append(page->body, "</div>\n");
}

void
page_legend(HtmlPage *page, const PagePart *parts, size_t n)
{
    g_string_append(page->body, "<div class=\"legend\">");
    for (size_t i = 0; i < n; i++)
        if (parts[i].value > 0)
            page_append_legend_entry(page->body, parts[i].rgb, parts[i].name);
    g_string_append(page->body, "</div>\n");
}

/* --- pictures --- */

bool
page_picture(HtmlPage *page, const char *alt, PageDrawFunc draw, const void *content,
             GError **error)
{
    g_autofree char *dir = g_dir_make_tmp("degas-page-XXXXXX", error);
    g_autoptr(GError) failed = NULL;

    if (dir == NULL)
        return false;
    g_autofree char *path = g_build_filename(dir, "picture.svg", NULL);
    g_autofree char *data = g_build_filename(dir, "picture.tsv", NULL);
    g_autofree char *svg = NULL;
    size_t n_bytes = 0;
    const bool is_drawn = draw(content, path, &failed) && file_read(path, &svg, &n_bytes, &failed);
    g_unlink(path);
    g_unlink(data);
    g_rmdir(dir);
    if (is_drawn) {
        g_autofree char *encoded = g_base64_encode((const guchar *)svg, n_bytes);
        g_string_append(page->body, "<div class=\"scroll picture\" tabindex=\"0\"><img alt=\"");
        page_append_escaped(page->body, alt);
        g_string_append_printf(page->body, "\" src=\"data:image/svg+xml;base64,%s\"></div>\n",
                               encoded);
        return true;
    }
    if (!g_error_matches(failed, CMD_ERROR, CMD_ERROR_MISSING)) {
        g_propagate_error(error, g_steal_pointer(&failed));
        return false;
    }
    output_note("the page is without its picture: there is no gnuplot that draws");
    page_paragraph(page,
                   "The picture that belongs here is missing: there was no gnuplot that draws.");
    return true;
}

/* --- what was printed --- */

/* Characters of a cell that makes its column wide, and of one, such as a name with hyphens, that stays on one line. */
#define LONG 40
#define SHORT 18

static const char *
class_of_text(const char *cell)
{
    const glong n = g_utf8_strlen(cell, -1);

    return n > LONG    ? " class=\"left long\""
           : n > SHORT ? " class=\"left\""
                       : " class=\"left short\"";
}

static void
append_cells(GString *html, const OutputKept *kept)
{
    const guint n_rows = kept->cells->len / kept->n_columns;

    g_string_append(html, "<div class=\"scroll\" tabindex=\"0\"><table>\n");
    for (guint row = kept->has_header ? 0 : 1; row < n_rows; row++) {
        const char *mark = row == 0 ? "th" : "td";

        g_string_append(html, "<tr>");
        for (guint c = 0; c < kept->n_columns; c++) {
            const char *cell = g_ptr_array_index(kept->cells, row * kept->n_columns + c);

            g_string_append_printf(html, "<%s%s>", mark,
                                   kept->is_text[c] ? class_of_text(cell) : "");
            page_append_escaped(html, cell);
        }
        g_string_append_c(html, '\n');
    }
    g_string_append(html, "</table></div>\n");
}

/* (owned) A line that has spaces between a name and what is said of it, with a colon there. */
static char *
without_spaces(const char *line)
{
    const char *gap = g_ascii_isspace(*line) ? NULL : strstr(line, "  ");

    if (gap == NULL)
        return g_strdup(line);
    return g_strdup_printf("%.*s: %s", (int)(gap - line), line, gap + strspn(gap, " "));
}

/* Paragraphs are what empty lines part. */
static void
append_paragraphs(HtmlPage *page, const char *text)
{
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    bool is_open = false;

    for (size_t i = 0; lines[i] != NULL; i++) {
        const bool is_empty = *lines[i] == 0;

        if (!is_empty && page->about->len == 0 && page->body->len == 0) {
            page_about(page, lines[i]);
            continue;
        }
        if (!is_empty)
            g_string_append(page->body, is_open ? "\n" : "<p class=\"lines\">");
        else if (is_open)
            g_string_append(page->body, "</p>\n");
        is_open = !is_empty;
        g_autofree char *line = without_spaces(lines[i]);
        page_append_escaped(page->body, line);
    }
    if (is_open)
        g_string_append(page->body, "</p>\n");
}

/* Takes the last line of @text if nothing follows it: a table's heading.  (owned, nullable) */
static char *
take_heading(GString *text)
{
    if (text->len < 2 || text->str[text->len - 1] != '\n' || text->str[text->len - 2] == '\n')
        return NULL;
    g_string_truncate(text, text->len - 1);
    const char *end = strrchr(text->str, '\n');
    char *heading = g_strdup(end == NULL ? text->str : end + 1);
    g_string_truncate(text, end == NULL ? 0 : (gsize)(end + 1 - text->str));
    return heading;
}

void
page_kept(HtmlPage *page)
{
    g_autoptr(GPtrArray) blocks = output_kept();

    for (guint i = 0; i < blocks->len; i++) {
        const OutputKept *kept = blocks->pdata[i];
        const bool before_table = i + 1 < blocks->len && kept->cells == NULL;

        if (kept->cells != NULL) {
            append_cells(page->body, kept);
            continue;
        }
        g_autoptr(GString) text = g_string_new(kept->text->str);
        g_autofree char *heading = before_table ? take_heading(text) : NULL;
        append_paragraphs(page, text->str);
        if (heading != NULL)
            page_heading(page, heading, NULL);
    }
}

/* --- the whole --- */

void
page_ask_server(HtmlPage *page)
{
    page->policy = "; connect-src 'self'";
}

char *
page_fragment(const HtmlPage *page)
{
    return g_strdup_printf("<div class=\"faint\">%s</div>\n<div class=\"cards\">%s</div>\n%s",
                           page->about->str, page->cards->str, page->body->str);
}

char *
page_text(const HtmlPage *page, const char *footer)
{
    const EmbeddedFile *template = embedded_find("cli/plots/page.html");
    g_autoptr(GString) title = g_string_new(NULL), below = g_string_new(NULL);
    GString *html = g_string_new(NULL);
    g_autoptr(GString) policy = g_string_new(page->policy);
    const struct {
        const char *name;
        const GString *value;
    } values[] = {{"policy", policy},     {"title", title},     {"about", page->about},
                  {"cards", page->cards}, {"body", page->body}, {"footer", below}};
    const char *rest, *mark;

    g_assert(template != NULL);
    page_append_escaped(title, page->title);
    page_append_escaped(below, footer);
    /* The template is walked once, so that a value that looks like a mark stays text. */
    for (rest = template->text; (mark = strstr(rest, "@@")) != NULL;) {
        const char *end = strstr(mark + 2, "@@");
        size_t i = 0;

        g_assert(end != NULL);
        const size_t n = (size_t)(end - mark - 2);
        while (i < G_N_ELEMENTS(values) &&
               (strlen(values[i].name) != n || strncmp(mark + 2, values[i].name, n) != 0))
            i++;
        g_assert(i < G_N_ELEMENTS(values));
        g_string_append_len(html, rest, mark - rest);
        g_string_append_len(html, values[i].value->str, (gssize)values[i].value->len);
        rest = end + 2;
    }
    g_string_append(html, rest);
    return g_string_free(html, FALSE);
}

bool
page_write(const HtmlPage *page, const char *footer, const char *path, GError **error)
{
    g_autofree char *text = page_text(page, footer);

    return file_write(path, text, strlen(text), error);
}
