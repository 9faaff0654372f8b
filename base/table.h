/*
 * base/table.h - tab-separated tables whose header line carries the units.
 *
 * The golden tests, gnuplot and spreadsheets read them.  A table is one header line of column names
 * (with unit suffixes), then rows; text has tabs, newlines and control bytes replaced by spaces.
 * Numbers are printed locale-free.
 */
#pragma once

#include <glib.h>
#include <stddef.h>
#include <stdint.h>

/* A table being written.  Opaque; see table.c. */
typedef struct Table Table;

/* @header  column names, NULL-terminated, e.g. {"rank", "start_ns", NULL}. */
Table *table_new(const char *const *header);
/* The same of one text with tabs between the names: "rank\tstart_ns". */
Table *table_new_line(const char *header);
void table_free(Table *table);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Table, table_free)

/* Cells fill a row from left to right; a full row ends itself. */
void table_add_int64(Table *table, int64_t value);
void table_add_double(Table *table, double value); /* shortest round-trip; nan, inf, -inf */
void table_add_text(Table *table, const char *text);

/* Returns: (borrowed) the text so far; asserts that the last row is complete.  @n_bytes (nullable).
 */
const char *table_text(const Table *table, size_t *n_bytes);
