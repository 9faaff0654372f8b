/*
 * cli/draw/page.h - HtmlPage: what a command found, as one page of HTML: a title, a few numbers that
 * matter most (cards), then pictures, tables and text.
 *
 * A page is one file that loads nothing else (a policy in it forbids that): it opens from disk, can
 * be sent by mail and printed, is as wide as the reader's screen, and is light or dark as the
 * reader prefers.  Without scripts it is complete.  All text is escaped.  Equal input gives equal
 * bytes.
 *
 * The tables and the text are those that the command prints for people: output_keep()
 * (cli/request/output.h) has kept them.  So a page says what the terminal says.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "cli/request/options.h"

/* The option of all commands that write a page. */
#define PAGE_OPTION                                                                                \
    {                                                                                              \
        "html", "FILE", "write the answer as one HTML page: offline, to be sent and printed",      \
            .common = true                                                                         \
    }

/* Checks --html before long work: that its folder is there, and that stdout has one product only.
 * G_FILE_ERROR, CMD_ERROR_USAGE. */
bool page_check(Options *options, GError **error);
/* Whether the page goes to stdout, so that nothing else may. */
bool page_takes_stdout(Options *options);

typedef struct HtmlPage HtmlPage;

/* Returns: (owned) an empty page.  @title is escaped. */
HtmlPage *page_new(const char *title);
void page_free(HtmlPage *page);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(HtmlPage, page_free)

/* What stands below the title, in one or two lines. */
void page_about(HtmlPage *page, const char *about);

/* Adds a number and, below it, what it is: page_card(page, "bubble", "4.0 %"). */
void page_card(HtmlPage *page, const char *name, const char *value);

/* @remark  (nullable) pale, behind the heading */
void page_heading(HtmlPage *page, const char *heading, const char *remark);
void page_paragraph(HtmlPage *page, const char *text);

/* A part of a bar, and of the legend below bars. */
typedef struct {
    const char *name;
    double value; /* 0 and less: it is not there */
    uint32_t rgb;
} PagePart;

/* Adds a bar of @parts that is as wide as the page where they add up to @whole.
 * @label  (nullable) above it */
void page_bar(HtmlPage *page, const char *label, const PagePart *parts, size_t n, double whole);
/* Adds the colours and names of those that are there. */
void page_legend(HtmlPage *page, const PagePart *parts, size_t n);

/* Draws a picture as SVG into @path; @content is the caller's. */
typedef bool (*PageDrawFunc)(const void *content, const char *path, GError **error);

/* Adds a picture of gnuplot.  Without gnuplot the page says so in its place, and stderr, too.
 * @alt  what it shows, for readers that do not see it.  G_FILE_ERROR, CMD_ERROR_IO. */
bool page_picture(HtmlPage *page, const char *alt, PageDrawFunc draw, const void *content,
                  GError **error);

/* Adds @html as it is. */
void page_raw(HtmlPage *page, const char *html);

/*
 * Adds what the command has printed since output_keep(), which ends here: tables as tables, a line
 * right above a table as its heading, other text as paragraphs.  On a page that has no
 * page_about() the first paragraph becomes that.
 */
void page_kept(HtmlPage *page);

/* Appends @text without markup and control characters. */
void page_append_escaped(GString *html, const char *text);
/* Appends a colour and its name, of a legend. */
void page_append_legend_entry(GString *html, uint32_t rgb, const char *name);

/* Returns: (owned) cards and what is below, to be put into another page by a script. */
char *page_fragment(const HtmlPage *page);

/* Lets the scripts of @page ask the server that it came from. */
void page_ask_server(HtmlPage *page);

/* Returns: (owned) the whole page.  @footer: the command that makes it. */
char *page_text(const HtmlPage *page, const char *footer);
/* Writes it to @path.  G_FILE_ERROR. */
bool page_write(const HtmlPage *page, const char *footer, const char *path, GError **error);
