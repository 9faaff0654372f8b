/* Tests of base/table.h: layout, numbers, hostile text. */
#include "base/table.h"

#include <locale.h>
#include <math.h>
#include <string.h>

static void
test_fills_rows_from_left_to_right(void)
{
    static const char *const header[] = {"rank", "start_s", "op", NULL};
    g_autoptr(Table) table = table_new(header);
    size_t n_bytes;

    g_assert_cmpstr(table_text(table, &n_bytes), ==, "rank\tstart_s\top\n");
    g_assert_cmpuint(n_bytes, ==, 16);
    table_add_int64(table, 0);
    table_add_double(table, 0.1);
    table_add_text(table, "F0");
    table_add_int64(table, INT64_MIN);
    table_add_double(table, 1e300);
    table_add_text(table, "");
    g_assert_cmpstr(table_text(table, NULL), ==,
                    "rank\tstart_s\top\n0\t0.1\tF0\n-9223372036854775808\t1e+300\t\n");
}

static void
test_one_column_needs_no_tabs(void)
{
    static const char *const header[] = {"x", NULL};
    g_autoptr(Table) table = table_new(header);

    table_add_int64(table, INT64_MAX);
    table_add_double(table, NAN);
    table_add_double(table, INFINITY);
    table_add_double(table, -INFINITY);
    g_assert_cmpstr(table_text(table, NULL), ==, "x\n9223372036854775807\nnan\ninf\n-inf\n");
}

static void
test_text_cannot_leave_its_cell(void)
{
    static const char *const header[] = {"a\tb", "c\nd", NULL};
    g_autoptr(Table) table = table_new(header);

    table_add_text(table, "1\t2\n3\r4");
    table_add_text(table, "\x1b[31m\x01\x7f h\xc3\xa4");
    g_assert_cmpstr(table_text(table, NULL), ==, "a b\tc d\n1 2 3 4\t [31m   h\xc3\xa4\n");
}

static void
test_ignores_the_locale(void)
{
    static const char *const header[] = {"x", NULL};
    g_autofree char *old = g_strdup(setlocale(LC_NUMERIC, NULL));
    g_autoptr(Table) table = table_new(header);

    if (setlocale(LC_NUMERIC, "de_DE.UTF-8") == NULL) {
        g_test_skip("the locale de_DE.UTF-8 is not installed");
        return;
    }
    table_add_double(table, 1.5);
    setlocale(LC_NUMERIC, old);
    g_assert_cmpstr(table_text(table, NULL), ==, "x\n1.5\n");
}

static void
test_an_unfinished_row_is_a_bug(void)
{
    static const char *const header[] = {"a", "b", NULL};

    if (g_test_subprocess()) {
        Table *table = table_new(header);

        table_add_int64(table, 1);
        table_text(table, NULL);
        return;
    }
    g_test_trap_subprocess(NULL, 0, 0);
    g_test_trap_assert_failed();
    g_test_trap_assert_stderr("*table->column == 0*");
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/base/table/fills-rows-from-left-to-right",
                    test_fills_rows_from_left_to_right);
    g_test_add_func("/base/table/one-column-needs-no-tabs", test_one_column_needs_no_tabs);
    g_test_add_func("/base/table/text-cannot-leave-its-cell", test_text_cannot_leave_its_cell);
    g_test_add_func("/base/table/ignores-the-locale", test_ignores_the_locale);
    g_test_add_func("/base/table/an-unfinished-row-is-a-bug", test_an_unfinished_row_is_a_bug);
    return g_test_run();
}
