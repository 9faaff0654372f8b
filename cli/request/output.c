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

/* Whether the terminal at @fd shows bytes of ASCII only; what is no terminal gets UTF-8. */
static bool
is_ascii_terminal(int fd)
{
    return isatty(fd) && !g_get_charset(NULL);
}

static void
write_stdout(const char *text, size_t n_bytes)
{
    g_autofree char *ascii = is_ascii_terminal(STDOUT_FILENO) ? g_str_to_ascii(text, "C") : NULL;

    if (ascii != NULL)
        n_bytes = strlen(ascii);
    errno = 0;
    if (fwrite(ascii != NULL ? ascii : text, 1, n_bytes, stdout) < n_bytes && write_errno == 0)
        write_errno = errno == 0 ? EIO : errno;
}

void
output_flush(void)
{
    errno = 0;
    if (fflush(stdout) != 0 && write_errno == 0)
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

/* --- keeping --- */

/* What output_kept() will return; NULL: nothing is kept. */
static GPtrArray *kept_blocks;
static bool kept_is_silent;

static void
kept_free(gpointer data)
{
    OutputKept *kept = data;

    if (kept->text != NULL)
        g_string_free(kept->text, TRUE);
    g_clear_pointer(&kept->cells, g_ptr_array_unref);
    g_free(kept->is_text);
    g_free(kept);
}

void
output_keep(bool is_silent)
{
    g_assert(kept_blocks == NULL);
    kept_blocks = g_ptr_array_new_with_free_func(kept_free);
    kept_is_silent = is_silent;
}

GPtrArray *
output_kept(void)
{
    g_assert(kept_blocks != NULL);
    kept_is_silent = false;
    return g_steal_pointer(&kept_blocks);
}

static void
keep_text(const char *text)
{
    OutputKept *last = kept_blocks->len == 0 ? NULL : kept_blocks->pdata[kept_blocks->len - 1];

    if (last == NULL || last->text == NULL) {
        last = g_new0(OutputKept, 1);
        last->text = g_string_new(NULL);
        g_ptr_array_add(kept_blocks, last);
    }
    g_string_append(last->text, text);
}

void
output_text(const char *text)
{
    if (kept_blocks != NULL)
        keep_text(text);
    if (!kept_is_silent)
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
    g_autofree char *ascii = is_ascii_terminal(STDERR_FILENO) ? g_str_to_ascii(safe, "C") : NULL;
    fprintf(stderr, "degas: %s\n", ascii != NULL ? ascii : safe);
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
    return output_json_both(writer, path, path == NULL, error);
}

bool
output_json_both(JsonWriter *writer, const char *path, bool prints, GError **error)
{
    size_t n_bytes;
    g_autofree char *text = json_writer_steal(writer, &n_bytes);

    json_writer_free(writer);
    if (path != NULL && !file_write(path, text, n_bytes, error))
        return false;
    if (prints && g_strcmp0(path, "-") != 0)
        write_stdout(text, n_bytes);
    return true;
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
    return !is_ascii_terminal(STDOUT_FILENO);
}

/* --- tables --- */

struct OutputTable {
    GPtrArray *cells; /* of (owned) char *, row by row; the first row is the header */
    guint n_columns;  /* that are shown */
    bool *is_text;    /* [n_columns] */
    bool *is_minor;   /* [n_columns] */
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
    table->is_minor = g_new0(bool, table->n_all);
    table->is_hidden = g_new0(bool, table->n_all);
    for (guint i = 0; i < table->n_all; i++) {
        const bool is_minor = header[i][0] == '?', is_text = header[i][is_minor] == '<';

        table->is_hidden[i] = strcmp(header[i], OUTPUT_HIDDEN) == 0;
        table->is_text[table->n_columns] = is_text;
        table->is_minor[table->n_columns] = is_minor;
        table->n_columns += !table->is_hidden[i];
        output_table_add(table, header[i] + is_minor + is_text);
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
    g_free(table->is_minor);
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

/* --- fitting a table to a terminal --- */

/* Columns of text are not made narrower than this before others are left out, and then than this. */
#define NARROW 24
#define NARROWEST 12
#define WORD 32

/* How a table is printed. */
typedef struct {
    const OutputTable *table;
    glong *widths;  /* [n_columns] */
    bool *left_out; /* [n_columns] */
    int indent;
} Layout;

static const char *
cell_of(const OutputTable *table, guint row, guint column)
{
    return g_ptr_array_index(table->cells, row * table->n_columns + column);
}

static glong
width_of(const Layout *layout)
{
    glong width = layout->indent - 2;

    for (guint c = 0; c < layout->table->n_columns; c++)
        width += layout->left_out[c] ? 0 : 2 + layout->widths[c];
    return width;
}

/* Whether all rows have the same in @column; where @is_trivial also nothing that tells anything. */
static bool
is_same(const OutputTable *table, guint column, bool is_trivial)
{
    static const char *const trivial[] = {"", "-", "0", "1", "none", "off", NULL};
    const char *cell = cell_of(table, 1, column);

    for (guint row = 2; row < table->cells->len / table->n_columns; row++)
        if (strcmp(cell_of(table, row, column), cell) != 0)
            return false;
    return !is_trivial || g_strv_contains(trivial, cell);
}

/* How narrow a column of text may become: no word is broken, unless it is longer than WORD. */
static glong
least_width(const Layout *layout, guint column, glong least)
{
    for (guint row = 0; row < layout->table->cells->len / layout->table->n_columns; row++) {
        g_auto(GStrv) words = g_strsplit(cell_of(layout->table, row, column), " ", -1);

        for (size_t i = 0; words[i] != NULL; i++)
            least = MAX(least, MIN(g_utf8_strlen(words[i], -1), WORD));
    }
    return least;
}

/* Takes from the widest columns of text until the table fits or none is wider than @least. */
static void
narrow(Layout *layout, glong most, glong least)
{
    const guint n = layout->table->n_columns;
    g_autofree glong *leasts = g_new0(glong, n);

    for (guint c = 0; c < n; c++)
        leasts[c] = least_width(layout, c, least);
    while (width_of(layout) > most) {
        glong *widest = NULL;

        for (guint c = 0; c < n; c++)
            if (layout->table->is_text[c] && !layout->left_out[c] &&
                layout->widths[c] > leasts[c] && (widest == NULL || layout->widths[c] > *widest))
                widest = &layout->widths[c];
        if (widest == NULL)
            return;
        (*widest)--;
    }
}

/* Makes the table fit @most columns: wraps long text; then leaves out, each from the right, columns
 * that tell nothing, minor ones, those that are the same in all rows, and any but the first. */
static void
fit(Layout *layout, glong most)
{
    const OutputTable *table = layout->table;
    enum {
        TRIVIAL,
        MINOR,
        SAME,
        ANY,
        N_STEPS
    };

    narrow(layout, most, NARROW);
    for (int step = 0; step < N_STEPS; step++) {
        if (step == ANY)
            narrow(layout, most, NARROWEST);
        for (guint c = table->n_columns; --c > 0 && width_of(layout) > most;)
            layout->left_out[c] |= step == MINOR
                                       ? table->is_minor[c]
                                       : step == ANY || is_same(table, c, step == TRIVIAL);
    }
}

/* Returns: (owned) the lines of @cell, of at most @width characters. */
static GPtrArray *
wrap(const char *cell, glong width)
{
    GPtrArray *lines = g_ptr_array_new_with_free_func(g_free);

    while (g_utf8_strlen(cell, -1) > width) {
        const char *end = g_utf8_offset_to_pointer(cell, width), *space = end;

        while (space > cell && *space != ' ')
            space--;
        if (space > cell)
            end = space;
        g_ptr_array_add(lines, g_strndup(cell, (gsize)(end - cell)));
        cell = end + (*end == ' ');
    }
    g_ptr_array_add(lines, g_strdup(cell));
    return lines;
}

static void
append_row(GString *text, const Layout *layout, guint row)
{
    const OutputTable *table = layout->table;
    g_autoptr(GPtrArray) cells = g_ptr_array_new_with_free_func((GDestroyNotify)g_ptr_array_unref);
    guint n_lines = 1, last = 0;

    for (guint c = 0; c < table->n_columns; c++) {
        GPtrArray *lines = wrap(cell_of(table, row, c), layout->widths[c]);

        n_lines = layout->left_out[c] ? n_lines : MAX(n_lines, lines->len);
        last = layout->left_out[c] ? last : c;
        g_ptr_array_add(cells, lines);
    }
    for (guint line = 0; line < n_lines; line++) {
        for (guint c = 0; c < table->n_columns; c++) {
            const GPtrArray *lines = g_ptr_array_index(cells, c);
            const char *cell = line < lines->len ? g_ptr_array_index(lines, line) : "";
            const int pad = (int)(layout->widths[c] - g_utf8_strlen(cell, -1));

            if (layout->left_out[c])
                continue;
            g_string_append_printf(text, "%*s", c == 0 ? layout->indent : 2, "");
            if (table->is_text[c])
                g_string_append_printf(text, "%s%*s", cell, c == last ? 0 : pad, "");
            else
                g_string_append_printf(text, "%*s%s", pad, "", cell);
        }
        while (line > 0 && text->str[text->len - 1] == ' ')
            g_string_truncate(text, text->len - 1);
        g_string_append_c(text, '\n');
    }
}

/* "(left out to fit 80 columns: vpp 1, zero; a pipe gets all)" */
static void
append_left_out(GString *text, const Layout *layout, glong most)
{
    const OutputTable *table = layout->table;
    g_autoptr(GString) names = g_string_new(NULL);

    for (guint c = 0; c < table->n_columns; c++)
        if (layout->left_out[c])
            g_string_append_printf(names, "%s%s%s%s", names->len == 0 ? "" : ", ",
                                   cell_of(table, 0, c), is_same(table, c, false) ? " " : "",
                                   is_same(table, c, false) ? cell_of(table, 1, c) : "");
    if (names->len == 0)
        return;
    g_autofree char *line =
        g_strdup_printf("(left out to fit %ld columns: %s; a pipe gets all)", most, names->str);
    g_autoptr(GPtrArray) lines = wrap(line, most - layout->indent);
    for (guint i = 0; i < lines->len; i++)
        g_string_append_printf(text, "%*s%s\n", layout->indent, "", (char *)lines->pdata[i]);
}

static void
keep_table(const OutputTable *table, bool has_header)
{
    OutputKept *kept = g_new0(OutputKept, 1);

    kept->cells = g_ptr_array_ref(table->cells);
    kept->n_columns = table->n_columns;
    kept->is_text = g_memdup2(table->is_text, table->n_columns * sizeof *table->is_text);
    kept->has_header = has_header;
    g_ptr_array_add(kept_blocks, kept);
}

static void
print_cells(const OutputTable *table, guint first_row, int indent)
{
    g_autofree glong *widths = g_new0(glong, table->n_columns);
    g_autofree bool *left_out = g_new0(bool, table->n_columns);
    Layout layout = {.table = table, .widths = widths, .left_out = left_out, .indent = indent};
    const bool is_terminal = isatty(STDOUT_FILENO);
    const guint n_rows = table->cells->len / table->n_columns;
    g_autoptr(GString) text = g_string_new(NULL);

    g_return_if_fail(table->cells->len % table->n_columns == 0);

    for (guint i = first_row * table->n_columns; i < table->cells->len; i++) {
        glong *width = &widths[i % table->n_columns];

        *width = MAX(*width, g_utf8_strlen(g_ptr_array_index(table->cells, i), -1));
    }
    if (is_terminal && n_rows > 1)
        fit(&layout, output_columns());
    for (guint row = first_row; row < n_rows; row++)
        append_row(text, &layout, row);
    if (is_terminal)
        append_left_out(text, &layout, output_columns());
    if (kept_blocks != NULL)
        keep_table(table, first_row == 0);
    if (!kept_is_silent)
        write_stdout(text->str, text->len);
}

void
output_table_print(const OutputTable *table, int indent)
{
    print_cells(table, 0, indent);
}

void
output_table_print_rows(const OutputTable *table, int indent)
{
    print_cells(table, 1, indent);
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
