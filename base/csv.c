#include "base/csv.h"

#include "base/file.h"
#include "base/text.h"

#include <string.h>

G_DEFINE_QUARK(csv_error, csv_error)

struct Csv {
    char *name;
    char *text;        /* fields, unquoted in place, each with its NUL */
    GPtrArray *header; /* of (borrowed) const char *, into text */
    GPtrArray *fields; /* the same, n_columns for each record */
    GArray *lines;     /* of size_t, one for each record */
};

/* Where the reader stands; what was written back lies before what is still to be read. */
typedef struct {
    Csv *csv;
    const char *read, *end;
    char *write;
    size_t line;
} Cursor;

static bool G_GNUC_PRINTF(3, 4) invalid(GError **error, const Cursor *at, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    g_autofree char *what = g_strdup_vprintf(format, args);
    va_end(args);
    g_set_error(error, CSV_ERROR, CSV_ERROR_INVALID, "%s:%zu: %s", at->csv->name, at->line, what);
    return false;
}

/* --- one field --- */

/* After the opening quote.  The field may span lines. */
static bool
read_quoted(Cursor *at, GError **error)
{
    const Cursor opened = *at;

    for (;;) {
        if (at->read == at->end)
            return invalid(error, &opened, "a quote is opened and never closed");
        if (*at->read == '"') {
            at->read++;
            if (at->read == at->end || *at->read != '"')
                break;
        }
        at->line += *at->read == '\n';
        *at->write++ = *at->read++;
    }
    if (at->read < at->end && strchr(",\r\n", *at->read) == NULL)
        return invalid(error, at, "text after a closing quote");
    return true;
}

static bool
read_plain(Cursor *at, GError **error)
{
    while (at->read < at->end && *at->read != ',' && *at->read != '\n' && *at->read != '\r') {
        if (*at->read == '"')
            return invalid(error, at, "a quote inside a field that does not begin with one");
        *at->write++ = *at->read++;
    }
    return true;
}

/* One record into @fields.  The terminating NUL of a field never overtakes the reader: it takes the
 * place of the comma or line break, which is read before it is written; the last field's has the
 * byte after the text. */
static bool
read_record(Cursor *at, GPtrArray *fields, GError **error)
{
    for (;;) {
        g_ptr_array_add(fields, at->write);
        if (at->read < at->end && *at->read == '"') {
            at->read++;
            if (!read_quoted(at, error))
                return false;
        } else if (!read_plain(at, error)) {
            return false;
        }
        bool more = at->read < at->end && *at->read == ',';
        if (at->read < at->end && *at->read == '\r') {
            at->read++;
            if (at->read == at->end || *at->read != '\n')
                return invalid(error, at, "a carriage return without a line feed");
        }
        if (at->read < at->end)
            at->read++;
        *at->write++ = 0;
        if (!more)
            break;
        if (fields->len > CSV_MAX_COLUMNS)
            return invalid(error, at, "more than %d columns", CSV_MAX_COLUMNS);
    }
    return true;
}

/* --- the file --- */

static bool
check_header(const Cursor *at, GError **error)
{
    const GPtrArray *header = at->csv->header;

    for (guint i = 0; i < header->len; i++) {
        const char *name = g_ptr_array_index(header, i);

        for (guint j = 0; j < i; j++) {
            if (strcmp(name, g_ptr_array_index(header, j)) == 0) {
                g_autofree char *shown = text_escape(name, 60);

                return invalid(error, at, "two columns are named \"%s\"", shown);
            }
        }
    }
    return true;
}

/* A record of the wrong width, described. */
static bool
refuse_record(const Cursor *at, guint n_fields, GPtrArray *bad_records, GError **error)
{
    g_autoptr(GError) local = NULL;

    invalid(&local, at, "%u fields, but the header has %u", n_fields, at->csv->header->len);
    if (bad_records == NULL) {
        g_propagate_error(error, g_steal_pointer(&local));
        return false;
    }
    g_ptr_array_add(bad_records, g_strdup(local->message));
    return true;
}

static bool
read_records(Cursor *at, GPtrArray *bad_records, GError **error)
{
    Csv *csv = at->csv;
    g_autoptr(GPtrArray) record = g_ptr_array_new();

    while (at->read < at->end) {
        const Cursor begin = *at;
        const bool is_header = csv->header->len == 0;

        g_ptr_array_set_size(record, 0);
        if (!read_record(at, record, error))
            return false;
        at->line++;
        if (record->len == 1 && *(const char *)g_ptr_array_index(record, 0) == 0)
            continue;
        if (is_header) {
            g_ptr_array_extend(csv->header, record, NULL, NULL);
            if (!check_header(&begin, error))
                return false;
        } else if (record->len != csv->header->len) {
            if (!refuse_record(&begin, record->len, bad_records, error))
                return false;
        } else if (csv->lines->len == CSV_MAX_RECORDS) {
            return invalid(error, &begin, "more than %d records", CSV_MAX_RECORDS);
        } else {
            g_ptr_array_extend(csv->fields, record, NULL, NULL);
            g_array_append_val(csv->lines, begin.line);
        }
    }
    return csv->header->len > 0 ||
           invalid(error, at, "empty; expected a line with the names of the columns");
}

Csv *
csv_parse(const char *name, const char *text, size_t n_bytes, GPtrArray *bad_records,
          GError **error)
{
    static const char mark[] = "\xef\xbb\xbf";
    const char *bad;

    g_return_val_if_fail(name != NULL && text != NULL, NULL);

    g_autoptr(Csv) csv = g_new0(Csv, 1);
    csv->name = g_strdup(name);
    csv->text = g_malloc(n_bytes + 1);
    memcpy(csv->text, text, n_bytes);
    csv->header = g_ptr_array_new();
    csv->fields = g_ptr_array_new();
    csv->lines = g_array_new(FALSE, FALSE, sizeof(size_t));
    Cursor at = {
        .csv = csv, .read = csv->text, .end = csv->text + n_bytes, .write = csv->text, .line = 1};
    if (n_bytes >= 3 && memcmp(text, mark, 3) == 0)
        at.read += 3;
    if (!g_utf8_validate(at.read, at.end - at.read, &bad)) {
        for (const char *p = at.read; p < bad; p++)
            at.line += *p == '\n';
        invalid(error, &at, *bad == 0 ? "a NUL byte" : "not UTF-8");
        return NULL;
    }
    return read_records(&at, bad_records, error) ? g_steal_pointer(&csv) : NULL;
}

Csv *
csv_load(const char *path, GPtrArray *bad_records, GError **error)
{
    g_autofree char *text = NULL;
    size_t n_bytes;

    if (!file_read_max(path, CSV_MAX_BYTES, &text, &n_bytes, error))
        return NULL;
    return csv_parse(path, text, n_bytes, bad_records, error);
}

void
csv_free(Csv *csv)
{
    if (csv == NULL)
        return;
    g_free(csv->name);
    g_free(csv->text);
    g_ptr_array_unref(csv->header);
    g_ptr_array_unref(csv->fields);
    g_array_unref(csv->lines);
    g_free(csv);
}

/* --- readers --- */

const char *
csv_name(const Csv *csv)
{
    return csv->name;
}

size_t
csv_n_columns(const Csv *csv)
{
    return csv->header->len;
}

const char *
csv_column_name(const Csv *csv, size_t column)
{
    g_return_val_if_fail(csv != NULL && column < csv->header->len, "");
    return g_ptr_array_index(csv->header, column);
}

int
csv_column(const Csv *csv, const char *name)
{
    for (guint i = 0; i < csv->header->len; i++) {
        if (strcmp(g_ptr_array_index(csv->header, i), name) == 0)
            return (int)i;
    }
    return -1;
}

size_t
csv_n_records(const Csv *csv)
{
    return csv->lines->len;
}

const char *
csv_field(const Csv *csv, size_t record, size_t column)
{
    g_return_val_if_fail(csv != NULL && record < csv->lines->len, "");
    g_return_val_if_fail(column < csv->header->len, "");
    return g_ptr_array_index(csv->fields, record * csv->header->len + column);
}

size_t
csv_line(const Csv *csv, size_t record)
{
    g_return_val_if_fail(csv != NULL && record < csv->lines->len, 0);
    return g_array_index(csv->lines, size_t, record);
}
