/* Tests of the writing half of base/json.h: layout, numbers to the last bit, hostile strings. */
#include "base/json.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <string.h>

/* The example of every test of layout. */
static void
write_example(JsonWriter *writer)
{
    json_write_object(writer, NULL);
    json_write_string(writer, "format", "x");
    json_write_int64(writer, "n", -5);
    json_write_double(writer, "d", 0.5);
    json_write_bool(writer, "t", true);
    json_write_null(writer, "z");
    json_write_object(writer, "empty");
    json_write_object_end(writer);
    json_write_array(writer, "list");
    json_write_int64(writer, NULL, 1);
    json_write_array_inline(writer, NULL);
    json_write_int64(writer, NULL, 2);
    json_write_object(writer, NULL);
    json_write_bool(writer, "a", false);
    json_write_bool(writer, "b", true);
    json_write_object_end(writer);
    json_write_array(writer, NULL);
    json_write_array_end(writer);
    json_write_array_end(writer);
    json_write_object_inline(writer, NULL);
    json_write_raw(writer, "raw", "[1,2]");
    json_write_object_end(writer);
    json_write_array_end(writer);
    json_write_object_end(writer);
}

static void
test_indents(void)
{
    g_autoptr(JsonWriter) writer = json_writer_new();
    g_autofree char *text = NULL;
    size_t n_bytes;

    write_example(writer);
    text = json_writer_steal(writer, &n_bytes);
    g_assert_cmpstr(text, ==,
                    "{\n"
                    "  \"format\": \"x\",\n"
                    "  \"n\": -5,\n"
                    "  \"d\": 0.5,\n"
                    "  \"t\": true,\n"
                    "  \"z\": null,\n"
                    "  \"empty\": {},\n"
                    "  \"list\": [\n"
                    "    1,\n"
                    "    [2, {\"a\": false, \"b\": true}, []],\n"
                    "    {\"raw\": [1,2]}\n"
                    "  ]\n"
                    "}\n");
    g_assert_cmpuint(n_bytes, ==, strlen(text));
}

static void
test_compact_is_one_line(void)
{
    g_autoptr(JsonWriter) writer = json_writer_new_compact();
    g_autofree char *text = NULL;

    write_example(writer);
    text = json_writer_steal(writer, NULL);
    g_assert_cmpstr(text, ==,
                    "{\"format\":\"x\",\"n\":-5,\"d\":0.5,\"t\":true,\"z\":null,\"empty\":{},"
                    "\"list\":[1,[2,{\"a\":false,\"b\":true},[]],{\"raw\":[1,2]}]}\n");
}

static void
test_is_empty_after_stealing(void)
{
    g_autoptr(JsonWriter) writer = json_writer_new();
    g_autofree char *first = NULL;
    g_autofree char *second = NULL;

    json_write_int64(writer, NULL, INT64_MIN);
    first = json_writer_steal(writer, NULL);
    json_write_int64(writer, NULL, INT64_MAX);
    second = json_writer_steal(writer, NULL);
    g_assert_cmpstr(first, ==, "-9223372036854775808\n");
    g_assert_cmpstr(second, ==, "9223372036854775807\n");
}

static void
test_what_is_written_reads_back(void)
{
    g_autoptr(JsonWriter) writer = json_writer_new();
    g_autofree char *text = NULL;
    g_autoptr(GError) error = NULL;
    g_autoptr(JsonDoc) doc = NULL;
    size_t n_bytes;

    for (int i = 0; i < JSON_MAX_DEPTH; i++)
        json_write_array(writer, NULL);
    for (int i = 0; i < JSON_MAX_DEPTH; i++)
        json_write_array_end(writer);
    text = json_writer_steal(writer, &n_bytes);
    doc = json_doc_parse("x", text, n_bytes, &error);
    g_assert_no_error(error);
    g_assert_nonnull(doc);
}

static void
test_strings_are_escaped(void)
{
    static const struct {
        const char *text;
        const char *expect;
    } cases[] = {
        {"", "\"\"\n"},
        {"h\xc3\xa4 \xf0\x9d\x84\x9e", "\"h\xc3\xa4 \xf0\x9d\x84\x9e\"\n"},
        {"\"\\/", "\"\\\"\\\\/\"\n"},
        {"\b\f\n\r\t", "\"\\b\\f\\n\\r\\t\"\n"},
        {"\x01\x1b\x1f\x7f", "\"\\u0001\\u001b\\u001f\\u007f\"\n"},
        {"a\xff"
         "b",
         "\"a\\ufffdb\"\n"},
        {"\xc3", "\"\\ufffd\"\n"},
        {"\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\"\n"}, /* a surrogate: three bad bytes */
        {"\xc3\xa4\xff\xc3\xa4", "\"\xc3\xa4\\ufffd\xc3\xa4\"\n"},
        {NULL, "null\n"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(JsonWriter) writer = json_writer_new();
        g_autofree char *text = NULL;

        json_write_string(writer, NULL, cases[i].text);
        text = json_writer_steal(writer, NULL);
        g_assert_cmpstr(text, ==, cases[i].expect);
    }
}

static void
test_keys_are_escaped(void)
{
    g_autoptr(JsonWriter) writer = json_writer_new_compact();
    g_autofree char *text = NULL;

    json_write_object(writer, NULL);
    json_write_null(writer, "a\"\n");
    json_write_object_end(writer);
    text = json_writer_steal(writer, NULL);
    g_assert_cmpstr(text, ==, "{\"a\\\"\\n\":null}\n");
}

/* Any bytes without NUL come back, but for those that are no UTF-8. */
static void
test_random_strings_read_back(void)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(5);

    for (int i = 0; i < 5000; i++) {
        g_autoptr(JsonWriter) writer = json_writer_new();
        g_autofree char *text = NULL;
        g_autofree char *valid = NULL;
        g_autoptr(GError) error = NULL;
        g_autoptr(JsonDoc) doc = NULL;
        char bytes[40];
        size_t n_bytes;

        for (size_t j = 0; j < sizeof(bytes) - 1; j++)
            bytes[j] = (char)g_rand_int_range(random, 1, 256);
        bytes[sizeof(bytes) - 1] = 0;
        json_write_string(writer, NULL, bytes);
        text = json_writer_steal(writer, &n_bytes);
        doc = json_doc_parse("x", text, n_bytes, &error);
        g_assert_no_error(error);
        valid = g_utf8_make_valid(bytes, -1); /* U+FFFD for each bad byte, too */
        g_assert_cmpstr(json_value_string(doc, json_doc_root(doc, NULL, 0)), ==, valid);
    }
}

/* --- numbers --- */

static void
test_doubles_look_as_they_should(void)
{
    static const struct {
        double value;
        const char *expect;
    } cases[] = {
        {0, "0"},
        {-0.0, "-0"},
        {1, "1"},
        {-1.5, "-1.5"},
        {0.1, "0.1"},
        {1.0 / 3, "0.3333333333333333"},
        {100, "100"},
        {1e15, "1000000000000000"},
        {1e16, "10000000000000000"},
        {1e17, "1e+17"},
        {1e23, "1e+23"}, /* %.17g: 9.9999999999999992e+22 */
        {123456789012345680.0, "1.2345678901234568e+17"},
        {0.001, "0.001"},
        {0.00001, "0.00001"},
        {0.000001, "1e-06"},
        {0.000012345, "0.000012345"},
        {1.5e-7, "1.5e-07"},
        {9007199254740993.0, "9007199254740992"},   /* 2^53 */
        {0x1.fffffffffffffp52, "9007199254740991"}, /* 2^53 - 1 */
        {DBL_MAX, "1.7976931348623157e+308"},
        {DBL_MIN, "2.2250738585072014e-308"},
        {DBL_TRUE_MIN, "5e-324"},
        {0x1.fp-1070, "1.53e-322"},         /* 31 * 2^-1074 = 1.5316e-322, steps of 4.94e-324 */
        {0x1p-44, "5.684341886080802e-14"}, /* ...8015 exactly: to even reads back as a neighbour */
        {299792458, "299792458"},
        {5.822, "5.822"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = json_format_double(cases[i].value);

        g_assert_cmpstr(text, ==, cases[i].expect);
    }
}

static void
test_what_is_not_finite_becomes_null(void)
{
    static const double cases[] = {NAN, INFINITY, -INFINITY};

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(JsonWriter) writer = json_writer_new();
        g_autofree char *text = NULL;

        json_write_double(writer, NULL, cases[i]);
        text = json_writer_steal(writer, NULL);
        g_assert_cmpstr(text, ==, "null\n");
    }
}

static unsigned
count_digits(const char *number)
{
    unsigned n = 0;
    unsigned n_zeros = 0; /* at the end so far */

    for (const char *p = number; *p != 0 && *p != 'e'; p++) {
        if (!g_ascii_isdigit(*p) || (n == 0 && *p == '0'))
            continue;
        n++;
        n_zeros = *p == '0' ? n_zeros + 1 : 0;
    }
    return n - n_zeros;
}

/* Reads back to the same bits, and nothing shorter that %e can print does. */
static void
assert_shortest(double value)
{
    g_autofree char *text = json_format_double(value);
    unsigned n_digits = count_digits(text);
    double back = g_ascii_strtod(text, NULL);

    g_assert_cmpint(memcmp(&back, &value, sizeof(value)), ==, 0);
    g_assert_cmpuint(n_digits, <=, 17);
    if (n_digits > 1) {
        char shorter[G_ASCII_DTOSTR_BUF_SIZE];
        char format[8];

        g_snprintf(format, sizeof(format), "%%.%ue", n_digits - 2);
        g_ascii_formatd(shorter, sizeof(shorter), format, value);
        g_assert_cmpfloat(g_ascii_strtod(shorter, NULL), !=, value);
    }
}

static void
test_random_doubles_round_trip(void)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(6);

    for (int i = 0; i < 100000; i++) {
        uint64_t bits = (uint64_t)g_rand_int(random) << 32 | g_rand_int(random);
        double value;

        memcpy(&value, &bits, sizeof(value));
        if (isfinite(value))
            assert_shortest(value);
        assert_shortest(g_rand_double(random));
        assert_shortest(g_rand_int_range(random, 0, 100000) / 1000.0);
    }
}

/* Around a power of two the steps between doubles change; below 2^-1022 digits get lost. */
static void
test_powers_of_two_round_trip(void)
{
    for (int exponent = -1074; exponent <= 1023; exponent++) {
        double value = ldexp(1, exponent);

        assert_shortest(value);
        assert_shortest(-value);
        assert_shortest(nextafter(value, INFINITY));
        assert_shortest(nextafter(value, 0) == 0 ? 1 : nextafter(value, 0));
    }
}

static void
test_ignores_the_locale(void)
{
    g_autofree char *old = g_strdup(setlocale(LC_NUMERIC, NULL));
    g_autoptr(JsonWriter) writer = json_writer_new();
    g_autofree char *text = NULL;

    if (setlocale(LC_NUMERIC, "de_DE.UTF-8") == NULL) {
        g_test_skip("the locale de_DE.UTF-8 is not installed");
        return;
    }
    json_write_array_inline(writer, NULL);
    json_write_double(writer, NULL, 1234567.5);
    json_write_double(writer, NULL, 1e-300);
    json_write_int64(writer, NULL, 1234567);
    json_write_array_end(writer);
    text = json_writer_steal(writer, NULL);
    setlocale(LC_NUMERIC, old);
    g_assert_cmpstr(text, ==, "[1234567.5, 1e-300, 1234567]\n");
}

/* --- misuse --- */

static void
key_in_array(JsonWriter *writer)
{
    json_write_array(writer, NULL);
    json_write_int64(writer, "key", 1);
}

static void
no_key_in_object(JsonWriter *writer)
{
    json_write_object(writer, NULL);
    json_write_int64(writer, NULL, 1);
}

static void
wrong_end(JsonWriter *writer)
{
    json_write_object(writer, NULL);
    json_write_array_end(writer);
}

static void
end_too_many(JsonWriter *writer)
{
    json_write_object_end(writer);
}

static void
two_documents(JsonWriter *writer)
{
    json_write_int64(writer, NULL, 1);
    json_write_int64(writer, NULL, 2);
}

static void
steal_unfinished(JsonWriter *writer)
{
    json_write_object(writer, NULL);
    g_free(json_writer_steal(writer, NULL));
}

static void
steal_nothing(JsonWriter *writer)
{
    g_free(json_writer_steal(writer, NULL));
}

static void
test_misuse_is_critical(void)
{
    static void (*const cases[])(JsonWriter *) = {key_in_array, no_key_in_object, wrong_end,
                                                  end_too_many, two_documents,    steal_unfinished,
                                                  steal_nothing};

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(JsonWriter) writer = json_writer_new();

        g_test_expect_message(NULL, G_LOG_LEVEL_CRITICAL, "*assertion*failed*");
        cases[i](writer);
        g_test_assert_expected_messages();
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/base/json-writer/indents", test_indents);
    g_test_add_func("/base/json-writer/compact-is-one-line", test_compact_is_one_line);
    g_test_add_func("/base/json-writer/is-empty-after-stealing", test_is_empty_after_stealing);
    g_test_add_func("/base/json-writer/what-is-written-reads-back",
                    test_what_is_written_reads_back);
    g_test_add_func("/base/json-writer/strings-are-escaped", test_strings_are_escaped);
    g_test_add_func("/base/json-writer/keys-are-escaped", test_keys_are_escaped);
    g_test_add_func("/base/json-writer/random-strings-read-back", test_random_strings_read_back);
    g_test_add_func("/base/json-writer/doubles-look-as-they-should",
                    test_doubles_look_as_they_should);
    g_test_add_func("/base/json-writer/what-is-not-finite-becomes-null",
                    test_what_is_not_finite_becomes_null);
    g_test_add_func("/base/json-writer/random-doubles-round-trip", test_random_doubles_round_trip);
    g_test_add_func("/base/json-writer/powers-of-two-round-trip", test_powers_of_two_round_trip);
    g_test_add_func("/base/json-writer/ignores-the-locale", test_ignores_the_locale);
    g_test_add_func("/base/json-writer/misuse-is-critical", test_misuse_is_critical);
    return g_test_run();
}
