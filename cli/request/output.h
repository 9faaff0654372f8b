/*
 * cli/request/output.h - the product on stdout or in a file, notes on stderr, aligned tables for
 * people.
 *
 * Everything printed on stdout passes through here (never g_print: it converts to the locale's
 * character set); main() checks at the end that all of it arrived.
 */
#ifndef CLI_REQUEST_OUTPUT_H
#define CLI_REQUEST_OUTPUT_H

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"

G_BEGIN_DECLS

/* Text on stdout. */
void output_text(const char *text);
void output_printf(const char *format, ...) G_GNUC_PRINTF(1, 2);

/* Flushes and closes stdout.  False, after a line on stderr, if not all of it could be written; a
 * reader that went away is no failure. */
bool output_finish(void);

/* One line "degas: ..." on stderr. */
void output_note(const char *format, ...) G_GNUC_PRINTF(1, 2);

/* Returns: (owned) a writer with an open object that has its "format" and its "version", 1. */
JsonWriter *output_json_new(const char *format);

/* Writes the finished @writer to @path, or to stdout when @path is NULL. */
bool output_json(JsonWriter *writer, const char *path, GError **error);

/* Whether the folder of @path (nullable; "-" is fine) is there: asked before long work. */
bool output_folder_check(const char *path, GError **error);

/* Whether stdout shows colours: --color (nullable: auto), then NO_COLOR, TERM, a terminal. */
bool output_has_color(const char *when);
/* Columns to fill: of the terminal, else COLUMNS, else 100. */
int output_columns(void);
/* Whether text for stdout may hold characters beyond ASCII: not on a terminal that is not UTF-8. */
bool output_is_utf8(void);

/* A table for people: columns aligned, two spaces between.  Opaque; see output.c. */
typedef struct OutputTable OutputTable;

/* @header  NULL-terminated; a name that begins with '<' is a column of text, set flush left. */
OutputTable *output_table_new(const char *const *header);
void output_table_free(OutputTable *table);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(OutputTable, output_table_free)
/* Cells fill rows from left to right. */
void output_table_add(OutputTable *table, const char *cell);
/* @cell (taken) */
void output_table_take(OutputTable *table, char *cell);
void output_table_printf(OutputTable *table, const char *format, ...) G_GNUC_PRINTF(2, 3);
/* Prints it on stdout, @indent spaces before each line. */
void output_table_print(const OutputTable *table, int indent);

/* The same without the header. */
void output_table_print_rows(const OutputTable *table, int indent);

/* --- (owned) short texts for cells; "-" for NaN and infinities --- */
char *output_seconds(double seconds);
char *output_percent(double fraction);
/* Three significant digits, in the C locale. */
char *output_number(double value);
/* "1024 x2, 512": equal neighbours are counted; at most @max_words words, then "...". */
char *output_int64s(const GArray *values, size_t max_words);

G_END_DECLS

#endif /* CLI_REQUEST_OUTPUT_H */
