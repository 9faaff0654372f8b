#include "cli/request/output.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "base/units.h"

#define DEFAULT_COLUMNS 100

/* The errno of the first write to stdout that failed; 0: none did. */
static int write_errno;

static void
write_stdout(const char *text, size_t n_bytes)
{
    errno = 0;
    if (fwrite(text, 1, n_bytes, stdout) < n_bytes && write_errno == 0)
        write_errno = errno == 0 ? EIO : errno;
}

bool
output_finish(void)
{
    errno = 0;
    if ((fflush(stdout) != 0 || fclose(stdout) != 0) && write_errno == 0)
        write_errno = errno == 0 ? EIO : errno;
    if (write_errno == 0 || write_errno == EPIPE)
        return true;
    fprintf(stderr, "degas: cannot write to standard output: %s\n", g_strerror(write_errno));
    return false;
}

void
output_text(const char *text)
{
    write_stdout(text, strlen(text));
}

void
output_printf(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *text = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    output_text(text);
}

void
output_note(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *text = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    g_autofree char *safe = text_escape(text, 4000);
    fprintf(stderr, "degas: %s\n", safe);
}

JsonWriter *
output_json_new(const char *format)
{
    JsonWriter *writer = json_writer_new();

    json_write_object(writer, NULL);
    json_write_string(writer, "format", format);
    json_write_int64(writer, "version", 1);
    return writer;
}

bool
output_json(JsonWriter *writer, const char *path, GError **error)
{
    size_t n_bytes;
    g_autofree char *text = json_writer_steal(writer, &n_bytes);

    json_writer_free(writer);
    if (path == NULL) {
        write_stdout(text, n_bytes);
        return true;
    }
    return file_write(path, text, n_bytes, error);
}

bool
output_folder_check(const char *path, GError **error)
{
    g_autofree char *folder = path == NULL ? NULL : g_path_get_dirname(path);

    if (path == NULL || strcmp(path, "-") == 0 || g_file_test(folder, G_FILE_TEST_IS_DIR))
        return true;
    g_set_error(error, G_FILE_ERROR, G_FILE_ERROR_NOENT, "%s: there is no folder %s", path, folder);
    return false;
}

bool
output_has_color(const char *when)
{
    const char *no_color = g_getenv("NO_COLOR");
    const char *term = g_getenv("TERM");

    if (when != NULL && strcmp(when, "auto") != 0)
        return strcmp(when, "always") == 0;
    if (no_color != NULL && *no_color != 0)
        return false;
    return isatty(STDOUT_FILENO) && term != NULL && strcmp(term, "dumb") != 0;
}

int
output_columns(void)
{
    struct winsize size;
    const char *columns = g_getenv("COLUMNS");
    int64_t n;

    if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return CLAMP((int)size.ws_col, 40, 1000);
    if (columns != NULL && units_parse_int64(columns, "COLUMNS", 1, 100000, &n, NULL))
        return (int)CLAMP(n, 40, 1000);
    return DEFAULT_COLUMNS;
}

bool
output_is_utf8(void)
{
    return !isatty(STDOUT_FILENO) || g_get_charset(NULL);
}

/* --- tables --- */

struct OutputTable {
    GPtrArray *cells; /* of (owned) char *, row by row; the first row is the header */
    guint n_columns;  /* that are shown */
    bool *is_text;    /* [n_columns] */
    bool *is_hidden;  /* [n_all] */
    guint n_all, n_added;
};

OutputTable *
output_table_new_of(const char *const *header)
{
    OutputTable *table = g_new0(OutputTable, 1);

    table->cells = g_ptr_array_new_with_free_func(g_free);
    table->n_all = g_strv_length((char **)header);
    table->is_text = g_new0(bool, table->n_all);
    table->is_hidden = g_new0(bool, table->n_all);
    for (guint i = 0; i < table->n_all; i++) {
        const bool is_text = header[i][0] == '<';

        table->is_hidden[i] = strcmp(header[i], OUTPUT_HIDDEN) == 0;
        table->is_text[table->n_columns] = is_text;
        table->n_columns += !table->is_hidden[i];
        output_table_add(table, header[i] + is_text);
    }
    return table;
}

OutputTable *
output_table_new(const char *header)
{
    g_auto(GStrv) names = g_strsplit(header, "|", -1);

    return output_table_new_of((const char *const *)names);
}

void
output_table_free(OutputTable *table)
{
    if (table == NULL)
        return;
    g_ptr_array_unref(table->cells);
    g_free(table->is_text);
    g_free(table->is_hidden);
    g_free(table);
}

void
output_table_add(OutputTable *table, const char *cell)
{
    if (!table->is_hidden[table->n_added++ % table->n_all])
        g_ptr_array_add(table->cells, text_escape(cell, 200));
}

void
output_table_take(OutputTable *table, char *cell)
{
    output_table_add(table, cell);
    g_free(cell);
}

void
output_table_row(OutputTable *table, const char *cell, ...)
{
    va_list cells;

    va_start(cells, cell);
    for (; cell != NULL; cell = va_arg(cells, const char *))
        output_table_add(table, cell);
    va_end(cells);
}

void
output_table_printf(OutputTable *table, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    output_table_take(table, g_strdup_vprintf(format, arguments));
    va_end(arguments);
}

static void
print_cells(const OutputTable *table, guint first, int indent)
{
    g_autofree glong *widths = g_new0(glong, table->n_columns);
    g_autoptr(GString) text = g_string_new(NULL);

    g_return_if_fail(table->cells->len % table->n_columns == 0);

    for (guint i = first; i < table->cells->len; i++) {
        glong *width = &widths[i % table->n_columns];

        *width = MAX(*width, g_utf8_strlen(g_ptr_array_index(table->cells, i), -1));
    }
    for (guint i = first; i < table->cells->len; i++) {
        const guint column = i % table->n_columns;
        const char *cell = g_ptr_array_index(table->cells, i);
        const int pad = (int)(widths[column] - g_utf8_strlen(cell, -1));
        const bool is_last = column + 1 == table->n_columns;

        g_string_append_printf(text, "%*s", column == 0 ? indent : 2, "");
        if (table->is_text[column])
            g_string_append_printf(text, "%s%*s", cell, is_last ? 0 : pad, "");
        else
            g_string_append_printf(text, "%*s%s", pad, "", cell);
        if (is_last)
            g_string_append_c(text, '\n');
    }
    output_text(text->str);
}

void
output_table_print(const OutputTable *table, int indent)
{
    print_cells(table, 0, indent);
}

void
output_table_print_rows(const OutputTable *table, int indent)
{
    print_cells(table, table->n_columns, indent);
}

/* --- cells --- */

static UnitsText
number_text(const char *format, double value, const char *unit)
{
    char digits[G_ASCII_DTOSTR_BUF_SIZE];
    UnitsText text = {"-"};

    if (isfinite(value))
        g_snprintf(text.text, sizeof text.text, "%s%s",
                   g_ascii_formatd(digits, sizeof digits, format, value), unit);
    return text;
}

UnitsText
output_seconds(double seconds)
{
    return isfinite(seconds) ? units_format_s(seconds) : (UnitsText){"-"};
}

UnitsText
output_number(double value)
{
    return number_text("%.3g", value, "");
}

UnitsText
output_percent(double fraction)
{
    return number_text(fabs(fraction * 100) < 99.95 ? "%.1f" : "%.0f", fraction * 100, " %");
}

UnitsText
output_int64(int64_t value)
{
    UnitsText text;

    g_snprintf(text.text, sizeof text.text, INT, value);
    return text;
}

char *
output_int64s(const GArray *values, size_t max_words)
{
    GString *text = g_string_new(NULL);
    size_t n_words = 0;

    for (guint i = 0; i < values->len;) {
        const int64_t value = g_array_index(values, int64_t, i);
        guint n = 1;

        while (i + n < values->len && g_array_index(values, int64_t, i + n) == value)
            n++;
        if (n_words++ == max_words) {
            g_string_append(text, ", ...");
            break;
        }
        g_string_append_printf(text, "%s" INT, i == 0 ? "" : ", ", value);
        if (n > 1)
            g_string_append_printf(text, " x%u", n);
        i += n;
    }
    return g_string_free(text, FALSE);
}
