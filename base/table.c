#include "base/table.h"

#include <math.h>

#include "base/json.h"

struct Table {
    GString *text;
    size_t n_columns;
    size_t column; /* that the next cell fills; 0 at the start of a row */
};

/* Whatever would end the cell or hide in it becomes a space; the rest is kept byte by byte. */
static void
append_text(GString *out, const char *text)
{
    for (const char *p = text; *p != 0; p++)
        g_string_append_c(out, (unsigned char)*p < 0x20 || *p == 0x7f ? ' ' : *p);
}

static void
end_cell(Table *table)
{
    table->column = (table->column + 1) % table->n_columns;
    g_string_append_c(table->text, table->column == 0 ? '\n' : '\t');
}

Table *
table_new(const char *const *header)
{
    g_return_val_if_fail(header != NULL && header[0] != NULL, NULL);

    Table *table = g_new0(Table, 1);
    table->text = g_string_new(NULL);
    table->n_columns = g_strv_length((char **)header);
    for (size_t i = 0; i < table->n_columns; i++)
        table_add_text(table, header[i]);
    return table;
}

Table *
table_new_line(const char *header)
{
    g_auto(GStrv) names = g_strsplit(header, "\t", -1);

    return table_new((const char *const *)names);
}

void
table_free(Table *table)
{
    if (table == NULL)
        return;
    g_string_free(table->text, TRUE);
    g_free(table);
}

void
table_add_int64(Table *table, int64_t value)
{
    g_return_if_fail(table != NULL);

    g_string_append_printf(table->text, "%" G_GINT64_FORMAT, value);
    end_cell(table);
}

void
table_add_double(Table *table, double value)
{
    g_return_if_fail(table != NULL);

    if (isfinite(value)) {
        g_autofree char *number = json_format_double(value);

        g_string_append(table->text, number);
    } else {
        g_string_append(table->text, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
    }
    end_cell(table);
}

void
table_add_text(Table *table, const char *text)
{
    g_return_if_fail(table != NULL && text != NULL);

    append_text(table->text, text);
    end_cell(table);
}

const char *
table_text(const Table *table, size_t *n_bytes)
{
    g_return_val_if_fail(table != NULL, NULL);
    g_assert(table->column == 0);

    if (n_bytes != NULL)
        *n_bytes = table->text->len;
    return table->text->str;
}
