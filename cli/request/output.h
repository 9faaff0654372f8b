/*
 * cli/request/output.h - what commands print: their product on stdout or in a file, notes on
 * stderr, aligned tables for people.
 *
 * Everything that is printed on stdout passes through here, and main() checks at the end that all
 * of it arrived.  g_print() is never used, since it converts to the locale's character set.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/units.h"

/* Prints UTF-8 text on stdout; a terminal with another character set gets the nearest ASCII. */
void output_text(const char *text);
void output_printf(const char *format, ...) G_GNUC_PRINTF(1, 2);

/* Makes what was printed so far arrive, for readers that wait for it. */
void output_flush(void);

/* Flushes and closes stdout.  Returns false, after a line on stderr, if not all of the text could
 * be written; that the reader of a pipe went away is no failure. */
bool output_finish(void);

/* Prints one line "degas: ..." on stderr. */
void output_note(const char *format, ...) G_GNUC_PRINTF(1, 2);

/* Returns: (owned) a writer with an open object in which "format" is @format and "version" 1. */
JsonWriter *output_json_new(const char *format);

/* Writes what the finished @writer (taken) holds to @path, or to stdout when @path is NULL. */
bool output_json(JsonWriter *writer, const char *path, GError **error);

/* Of -o and --json: writes what the finished @writer (taken) holds to @path (nullable) and, with
 * @prints, to stdout; once if both are stdout. */
bool output_json_both(JsonWriter *writer, const char *path, bool prints, GError **error);

/* Checks before long work that the folder exists in which @path is to be written.  NULL (no file)
 * and "-" (stdout) are fine.  G_FILE_ERROR. */
bool output_folder_check(const char *path, GError **error);

/* Whether stdout shows colours.  @when is the value of --color (NULL: auto); for auto it does
 * unless the variable NO_COLOR is set, TERM is "dumb", or stdout is no terminal. */
bool output_has_color(const char *when);
/* How many columns a picture of text fills: those of the terminal; without one the variable
 * COLUMNS, else 100. */
int output_columns(void);
/* Whether text for stdout may hold characters beyond ASCII: not on a terminal whose character set
 * is not UTF-8. */
bool output_is_utf8(void);

/* A table for people: columns are aligned and two spaces apart.  Opaque; see output.c. */
typedef struct OutputTable OutputTable;

/* The name of a column whose cells are added like others and not shown. */
#define OUTPUT_HIDDEN "!"

/* @header  the columns' names with '|' between them; a name that begins with '<' is of a column of
 *          text, which is set flush left; '?' before that is of a minor column, which a narrow
 *          terminal does without.  Both signs are not shown. */
OutputTable *output_table_new(const char *header);
/* The same of a NULL-terminated array of names. */
OutputTable *output_table_new_of(const char *const *header);
void output_table_free(OutputTable *table);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(OutputTable, output_table_free)
/* Adds a cell; cells fill rows from left to right. */
void output_table_add(OutputTable *table, const char *cell);
/* Adds several cells, a whole row or a part of it; NULL ends them. */
void output_table_row(OutputTable *table, const char *cell, ...) G_GNUC_NULL_TERMINATED;
/* @cell (taken) */
void output_table_take(OutputTable *table, char *cell);
void output_table_printf(OutputTable *table, const char *format, ...) G_GNUC_PRINTF(2, 3);
/* Prints the table on stdout with @indent spaces before each line.  On a terminal that is too narrow
 * text is wrapped and columns are left out, which a line below names; the first column stays. */
void output_table_print(const OutputTable *table, int indent);

/* The same without the header. */
void output_table_print_rows(const OutputTable *table, int indent);

/* --- what is printed, kept for a page (cli/draw/page.h) --- */

/* Some text, or a table. */
typedef struct {
    GString *text;    /* NULL: a table */
    GPtrArray *cells; /* of char *, row by row, the header first; NULL: text */
    guint n_columns;
    bool *is_text;   /* [n_columns] */
    bool has_header; /* whether it was printed */
} OutputKept;

/* From now on what output_text(), output_printf() and the tables print is kept as well; with
 * @is_silent it is not printed, since stdout has something else to hold. */
void output_keep(bool is_silent);

/* Ends that.  Returns: (owned) array of (owned) OutputKept *, in the order of printing. */
GPtrArray *output_kept(void);

/* --- short texts for cells and for printf(); "-" for NaN and infinities --- */

/* "1.16 s", "12.3 ms" */
UnitsText output_seconds(double seconds);
/* "12.3 %" for 0.123 */
UnitsText output_percent(double fraction);
/* Three significant digits, whatever the locale. */
UnitsText output_number(double value);
UnitsText output_int64(int64_t value);
/* Returns: (owned) "1024 x2, 512": equal neighbours are counted; after @max_words words follows
 * "...". */
char *output_int64s(const GArray *values, size_t max_words);
