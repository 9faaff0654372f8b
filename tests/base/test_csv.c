/* Tests of base/csv.h: RFC 4180, lines of records, hostile files. */
#include "base/csv.h"

#include <string.h>

static Csv *
parse(const char *text, GPtrArray *bad_records, GError **error)
{
    return csv_parse("t.csv", text, strlen(text), bad_records, error);
}

/* The examples of RFC 4180 section 2: line breaks, quoted fields, doubled quotes, spaces kept. */
static void
test_reads_what_the_rfc_shows(void)
{
    static const struct {
        const char *text;
        const char *fields; /* joined by '|', records by '/' */
        size_t line;        /* of the last record */
    } cases[] = {
        {"a,b,c\naaa,bbb,ccc\nzzz,yyy,xxx\n", "aaa|bbb|ccc/zzz|yyy|xxx", 3},
        {"a,b,c\r\naaa,bbb,ccc\r\nzzz,yyy,xxx", "aaa|bbb|ccc/zzz|yyy|xxx", 3},
        {"a,b,c\n\"aaa\",\"b\r\nbb\",\"ccc\"\nzzz,yyy,xxx\n", "aaa|b\r\nbb|ccc/zzz|yyy|xxx", 4},
        {"a,b,c\n\"aaa\",\"b\"\"bb\",\"ccc\"", "aaa|b\"bb|ccc", 2},
        {"a,b\n , x \n", " | x ", 2},
        {"a,b\n,\n", "|", 2},
        {"a,b\n\"\",\"\"\n", "|", 2},
        {"a,b\n1,\"2,3\"", "1|2,3", 2},
        {"\xef\xbb\xbf"
         "a,b\n1,2\n",
         "1|2", 2},                              /* a byte order mark, as Excel writes it */
        {"a,b\n\n1,2\n\n\n3,4\n", "1|2/3|4", 6}, /* empty lines are no records */
        {"a,b\n1,\n", "1|", 2},
        {"a,b\n1,", "1|", 2},
        {"a\n\xc3\xa4\n", "\xc3\xa4", 2},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(Csv) csv = parse(cases[i].text, NULL, &error);
        g_autoptr(GString) fields = g_string_new(NULL);

        g_assert_no_error(error);
        g_assert_cmpstr(csv_column_name(csv, 0), ==, "a");
        g_assert_cmpint(csv_column(csv, "a"), ==, 0);
        g_assert_cmpint(csv_column(csv, "x"), ==, -1);
        for (size_t r = 0; r < csv_n_records(csv); r++) {
            g_string_append(fields, r == 0 ? "" : "/");
            for (size_t c = 0; c < csv_n_columns(csv); c++)
                g_string_append_printf(fields, "%s%s", c == 0 ? "" : "|", csv_field(csv, r, c));
        }
        g_assert_cmpstr(fields->str, ==, cases[i].fields);
        g_assert_cmpuint(csv_line(csv, csv_n_records(csv) - 1), ==, cases[i].line);
    }
}

static void
test_hostile_files(void)
{
    static const struct {
        const char *text, *expect;
    } cases[] = {
        {"", "t.csv:1: empty"},
        {"\xef\xbb\xbf", "t.csv:1: empty"},
        {"\n\n", "t.csv:3: empty"},
        {"a,a\n", "t.csv:1: two columns are named \"a\""},
        {"a,b\n1\n", "t.csv:2: 1 fields, but the header has 2"},
        {"a,b\n1,2\n1,2,3\n", "t.csv:3: 3 fields, but the header has 2"},
        {"a,b\n1,\"2\n3\n", "t.csv:2: a quote is opened and never closed"},
        {"a,b\n\"1\"x,2\n", "t.csv:2: text after a closing quote"},
        {"a,b\n1\"x\",2\n", "t.csv:2: a quote inside"},
        {"a,b\r1,2\r", "t.csv:1: a carriage return"},
        {"a,b\n1,\xff\n", "t.csv:2: not UTF-8"},
    };
    g_autoptr(GError) wide = NULL;
    g_autoptr(GString) commas = g_string_new("a");

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;

        g_assert_null(parse(cases[i].text, NULL, &error));
        g_assert_error(error, CSV_ERROR, CSV_ERROR_INVALID);
        g_test_message("%s", error->message);
        g_assert_true(g_str_has_prefix(error->message, cases[i].expect));
    }
    for (int i = 0; i < 10000; i++)
        g_string_append_c(commas, ',');
    g_assert_null(parse(commas->str, NULL, &wide));
    g_assert_nonnull(strstr(wide->message, "more than 256 columns"));
}

static void
test_a_nul_byte_is_refused(void)
{
    g_autoptr(GError) error = NULL;

    g_assert_null(csv_parse("t.csv", "a\n\0\n", 4, NULL, &error));
    g_assert_cmpstr(error->message, ==, "t.csv:2: a NUL byte");
}

static void
test_bad_records_can_be_left_out(void)
{
    g_autoptr(GPtrArray) bad = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GError) error = NULL;
    g_autoptr(Csv) csv = parse("a,b\n1,2\n3\n4,5\n", bad, &error);

    g_assert_no_error(error);
    g_assert_cmpuint(csv_n_records(csv), ==, 2);
    g_assert_cmpstr(csv_field(csv, 1, 0), ==, "4");
    g_assert_cmpuint(csv_line(csv, 1), ==, 4);
    g_assert_cmpuint(bad->len, ==, 1);
    g_assert_cmpstr(bad->pdata[0], ==, "t.csv:3: 1 fields, but the header has 2");
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/base/csv/reads-what-the-rfc-shows", test_reads_what_the_rfc_shows);
    g_test_add_func("/base/csv/hostile-files", test_hostile_files);
    g_test_add_func("/base/csv/a-nul-byte-is-refused", test_a_nul_byte_is_refused);
    g_test_add_func("/base/csv/bad-records-can-be-left-out", test_bad_records_can_be_left_out);
    return g_test_run();
}
