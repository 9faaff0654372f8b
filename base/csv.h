/*
 * base/csv.h - comma-separated files as RFC 4180 has them, with the line of every record.
 *
 * The first record is the header.  A byte order mark is skipped; fields may be quoted, a quote
 * inside is doubled, line breaks inside quotes belong to the field; lines end in LF or CRLF; empty
 * lines are no records.  What a field means is the caller's business.
 *
 * Every file is taken for hostile until it is parsed: an open quote, text after a closing one, a
 * quote inside an unquoted field, bytes that are not UTF-8 or NUL, a record with more or fewer
 * fields than the header, a name that appears twice: each is named by file and line.
 *
 * Errors: CSV_ERROR_INVALID for content, G_FILE_ERROR for reading.
 * Thread-safety: immutable once read.
 */
#pragma once

#include <glib.h>
#include <stddef.h>

#define CSV_ERROR (csv_error_quark())
GQuark csv_error_quark(void);

typedef enum {
    CSV_ERROR_INVALID,
} CsvError;

#define CSV_MAX_BYTES (64u * 1024 * 1024)
#define CSV_MAX_COLUMNS 256
#define CSV_MAX_RECORDS 1000000

/* A file that was read.  Opaque; see csv.c. */
typedef struct Csv Csv;

/*
 * @bad_records  (nullable) of (owned) char *: a record that is wrong in itself (its number of
 *               fields) is described there and left out; NULL makes it an error.  A file whose
 *               records cannot be told apart (an open quote) is an error in any case.
 */
Csv *csv_load(const char *path, GPtrArray *bad_records, GError **error);
/* As csv_load(), from memory; @name stands for the file in messages. */
Csv *csv_parse(const char *name, const char *text, size_t n_bytes, GPtrArray *bad_records,
               GError **error);
void csv_free(Csv *csv);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Csv, csv_free)

/* The file's name as given. */
const char *csv_name(const Csv *csv);

size_t csv_n_columns(const Csv *csv);
/* (borrowed) the header's field. */
const char *csv_column_name(const Csv *csv, size_t column);
/* The column of that name, or -1. */
int csv_column(const Csv *csv, const char *name);

/* Records without the header. */
size_t csv_n_records(const Csv *csv);
/* (borrowed) NUL-terminated, unquoted. */
const char *csv_field(const Csv *csv, size_t record, size_t column);
/* The line on which the record begins, from 1. */
size_t csv_line(const Csv *csv, size_t record);
