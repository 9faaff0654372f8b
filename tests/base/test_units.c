/* Tests of base/units.h: rounding to nanoseconds, the grammar of quantities, numbers for people. */
#include "base/units.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <string.h>

/* nextafter(x) of a tie must go up, the tie itself to the even neighbour. */
static void
test_seconds_round_to_nearest_even(void)
{
    static const struct {
        double seconds;
        int64_t ns;
    } cases[] = {
        {0, 0},
        {1, 1000000000},
        {0.5e-9, 0}, /* 0.5: a tie, 0 is even */
        {1.5e-9, 2}, /* a tie, 2 is even */
        {2.5e-9, 2},
        {3.5e-9, 4},
        {0.4999e-9, 0},
        {0.5001e-9, 1},
        {5.822, 5822000000},
        {1e-300, 0},
        {3600, 3600000000000},
        {9007199.254740992, 9007199254740992}, /* 2^53 ns */
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++)
        g_assert_cmpint(units_ns_from_s(cases[i].seconds), ==, cases[i].ns);
}

static void
test_seconds_saturate(void)
{
    static const double cases[] = {2.4e9, 9.2e9, 1e10, 1e300, DBL_MAX, INFINITY};

    g_assert_cmpint(units_ns_from_s(2.3e9), ==, INT64_C(2300000000000000000));
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++)
        g_assert_cmpint(units_ns_from_s(cases[i]), ==, INT64_MAX / 4);
    /* the promise: a few of them add without overflow */
    g_assert_cmpint(units_ns_from_s(INFINITY) * 4, >, 0);
}

static void
test_nanoseconds_survive_the_round_trip(void)
{
    /* Any integer below 2^53 ns / 4 (26 days): the two roundings are each below 2^-52, relative. */
    g_autoptr(GRand) random = g_rand_new_with_seed(1);

    for (int i = 0; i < 100000; i++) {
        int64_t ns = (int64_t)g_rand_double_range(random, 0, 0x1p51);

        g_assert_cmpint(units_ns_from_s(units_s_from_ns(ns)), ==, ns);
    }
}

static void
test_reads_quantities(void)
{
    static const struct {
        const char *text;
        UnitsKind kind;
        double value;
    } cases[] = {
        {"15T", UNITS_KIND_COUNT, 15e12},
        {"300B", UNITS_KIND_COUNT, 300e9},
        {"1.5 M", UNITS_KIND_COUNT, 1.5e6},
        {"20K", UNITS_KIND_COUNT, 20000},
        {"500k", UNITS_KIND_COUNT, 500000},
        {"1e12", UNITS_KIND_COUNT, 1e12},
        {"0", UNITS_KIND_NUMBER, 0},
        {"0.25", UNITS_KIND_NUMBER, 0.25},
        {"1e3", UNITS_KIND_NUMBER, 1000},
        {"1E+3", UNITS_KIND_NUMBER, 1000},
        {"25e-1", UNITS_KIND_NUMBER, 2.5},
        {"007", UNITS_KIND_NUMBER, 7}, /* decimal, never octal */
        {"1e-400", UNITS_KIND_NUMBER, 0},
        {"0e99999999999", UNITS_KIND_NUMBER, 0},
        {"512", UNITS_KIND_BYTES, 512},
        {"1B", UNITS_KIND_BYTES, 1},
        {"64KiB", UNITS_KIND_BYTES, 65536},
        {"80GiB", UNITS_KIND_BYTES, 85899345920},
        {"80 GiB", UNITS_KIND_BYTES, 85899345920},
        {"0.5TiB", UNITS_KIND_BYTES, 549755813888},
        {"80GB", UNITS_KIND_BYTES, 80e9},
        {"1.5e1GB", UNITS_KIND_BYTES, 15e9},
        {"2EB", UNITS_KIND_BYTES, 2e18}, /* the E is a prefix */
        {"2e0EB", UNITS_KIND_BYTES, 2e18},
        {"3EiB", UNITS_KIND_BYTES, 0x3p60},
        {"900GB/s", UNITS_KIND_BYTES_PER_S, 900e9},
        {"3.35TB/s", UNITS_KIND_BYTES_PER_S, 3.35e12},
        {"1GiB/s", UNITS_KIND_BYTES_PER_S, 1073741824},
        {"400Gbps", UNITS_KIND_BYTES_PER_S, 50e9},
        {"400Gb/s", UNITS_KIND_BYTES_PER_S, 50e9},
        {"25 Gbit/s", UNITS_KIND_BYTES_PER_S, 3.125e9},
        {"1bps", UNITS_KIND_BYTES_PER_S, 0.125},
        {"3.2Tb/s", UNITS_KIND_BYTES_PER_S, 400e9},
        {"989TFLOPS", UNITS_KIND_FLOPS, 989e12},
        {"1.98PFLOPS", UNITS_KIND_FLOPS, 1.98e15},
        {"15.7TFLOP/s", UNITS_KIND_FLOPS, 15.7e12},
        {"2", UNITS_KIND_S, 2},
        {"5us", UNITS_KIND_S, 5e-6},
        {"5\xc2\xb5s", UNITS_KIND_S, 5e-6},
        {"5\xce\xbcs", UNITS_KIND_S, 5e-6},
        {"250ns", UNITS_KIND_S, 250e-9},
        {"1.5ms", UNITS_KIND_S, 1.5e-3},
        {"10min", UNITS_KIND_S, 600},
        {"1h", UNITS_KIND_S, 3600},
        {"2d", UNITS_KIND_S, 172800},
        {"0.5", UNITS_KIND_FRACTION, 0.5},
        {"50%", UNITS_KIND_FRACTION, 0.5},
        {"100%", UNITS_KIND_FRACTION, 1},
        {"1", UNITS_KIND_FRACTION, 1},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        double value = -1;

        g_assert_true(units_parse(cases[i].text, cases[i].kind, &value, &error));
        g_assert_no_error(error);
        g_assert_cmpfloat(value, ==, cases[i].value); /* to the last bit */
    }
}

static void
test_refuses_what_is_no_quantity(void)
{
    static const struct {
        const char *text;
        UnitsKind kind;
        const char *message;
    } cases[] = {
        {"", UNITS_KIND_NUMBER, "expected a number, got \"\""},
        {"-1", UNITS_KIND_NUMBER, "expected a number, got \"-1\""},
        {"+1", UNITS_KIND_NUMBER, "expected a number, got \"+1\""},
        {" 1", UNITS_KIND_NUMBER, "expected a number, got \" 1\""},
        {"1 ", UNITS_KIND_NUMBER, "expected a number, got \"1 \""},
        {"1,5", UNITS_KIND_NUMBER, "expected a number, got \"1,5\""},
        {".5", UNITS_KIND_NUMBER, "expected a number, got \".5\""},
        {"5.", UNITS_KIND_NUMBER, "expected a number, got \"5.\""},
        {"0x10", UNITS_KIND_NUMBER, "expected a number, got \"0x10\""},
        {"nan", UNITS_KIND_NUMBER, "expected a number, got \"nan\""},
        {"inf", UNITS_KIND_NUMBER, "expected a number, got \"inf\""},
        {"1e400", UNITS_KIND_NUMBER, "expected a number, got \"1e400\"; too large"},
        {"1e99999999999", UNITS_KIND_NUMBER, "expected a number, got \"1e99999999999\"; too large"},
        {"12345678901234567890", UNITS_KIND_NUMBER,
         "expected a number, got \"12345678901234567890\"; at most 19 digits"},
        {"1\n2", UNITS_KIND_NUMBER, "expected a number, got \"1\\n2\""},
        {"5s", UNITS_KIND_NUMBER, "expected a number, got \"5s\""},
        {"80G", UNITS_KIND_BYTES,
         "expected a size such as 80GiB, 80GB or 512, got \"80G\"; write GB (powers of 1000) or "
         "GiB "
         "(powers of 1024)"},
        {"128m", UNITS_KIND_BYTES,
         "expected a size such as 80GiB, 80GB or 512, got \"128m\"; write MB (powers of 1000) or "
         "MiB "
         "(powers of 1024)"},
        {"80gib", UNITS_KIND_BYTES,
         "expected a size such as 80GiB, 80GB or 512, got \"80gib\"; is the unit GiB?"},
        {"80GBs", UNITS_KIND_BYTES_PER_S,
         "expected a rate such as 900GB/s or 400Gbps, got \"80GBs\"; is the unit GB/s?"},
        {"400GB", UNITS_KIND_BYTES_PER_S,
         "expected a rate such as 900GB/s or 400Gbps, got \"400GB\"; is the unit GB/s?"},
        {"5m", UNITS_KIND_S,
         "expected a time such as 5us, 2s, 12h or 60d, got \"5m\"; write min or ms"},
        {"5parsec", UNITS_KIND_S, "expected a time such as 5us, 2s, 12h or 60d, got \"5parsec\""},
        {"50", UNITS_KIND_FRACTION,
         "expected a fraction such as 0.5 or 50%, got \"50\"; more than the whole"},
        {"101%", UNITS_KIND_FRACTION,
         "expected a fraction such as 0.5 or 50%, got \"101%\"; more than the whole"},
        {"5  s", UNITS_KIND_S,
         "expected a time such as 5us, 2s, 12h or 60d, got \"5  s\"; is the unit s?"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        double value = -1;

        g_assert_false(units_parse(cases[i].text, cases[i].kind, &value, &error));
        g_assert_error(error, UNITS_ERROR, UNITS_ERROR_INVALID);
        g_assert_cmpstr(error->message, ==, cases[i].message);
        g_assert_cmpfloat(value, ==, -1); /* untouched */
        g_assert_false(units_parse(cases[i].text, cases[i].kind, &value, NULL));
    }
}

static void
test_bytes_are_exact(void)
{
    static const struct {
        const char *text;
        int64_t bytes;
    } cases[] = {
        {"0", 0},
        {"0EiB", 0},
        {"0e-5", 0},
        {"1e3", 1000},
        {"1.5KiB", 1536},
        {"80GiB", 85899345920},
        {"0.001kB", 1},
        {"12345e-1kB", 1234500},
        {"9223372036854775807", INT64_MAX},
        {"7.9EiB", 9108079886394091110}, /* 7.9 * 2^60 = 9108079886394091110.4 */
        {"70.6GiB", 75806172774},
        {"0.1KiB", 102},
        {"1.5", 0},
        {"0.0001KiB", 0},
        {"1e-400", 0},
        {"9223372036854775808", 0},
        {"8EiB", 0},
        {"1e19", 0},
        {"1e9999999", 0},
        {"-1", 0},
    };
    static const size_t n_good = 12;

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        int64_t bytes = -1;
        bool ok = units_parse_bytes(cases[i].text, &bytes, &error);

        g_assert_cmpint(ok, ==, i < n_good);
        if (ok) {
            g_assert_no_error(error);
            g_assert_cmpint(bytes, ==, cases[i].bytes);
        } else {
            g_assert_error(error, UNITS_ERROR, UNITS_ERROR_INVALID);
            g_assert_cmpint(bytes, ==, -1);
        }
    }
}

static void
test_bytes_say_what_is_wrong(void)
{
    g_autoptr(GError) fraction = NULL;
    g_autoptr(GError) large = NULL;
    int64_t bytes;

    g_assert_false(units_parse_bytes("0.0001KiB", &bytes, &fraction));
    g_assert_cmpstr(
        fraction->message, ==,
        "expected a size such as 80GiB, 80GB or 512, got \"0.0001KiB\"; not a whole number "
        "of bytes");
    g_assert_false(units_parse_bytes("8EiB", &bytes, &large));
    g_assert_cmpstr(large->message, ==,
                    "expected a size such as 80GiB, 80GB or 512, got \"8EiB\"; too large");
}

static void
test_integers_are_strict(void)
{
    static const struct {
        const char *text;
        int64_t min;
        int64_t max;
        bool ok;
        int64_t value;
    } cases[] = {
        {"8", 1, 64, true, 8},
        {"0", 0, 0, true, 0},
        {"-4", -8, 8, true, -4},
        {"-0", -8, 8, true, 0},
        {"9223372036854775807", INT64_MIN, INT64_MAX, true, INT64_MAX},
        {"-9223372036854775808", INT64_MIN, INT64_MAX, true, INT64_MIN},
        {"9223372036854775808", INT64_MIN, INT64_MAX, false, 0},
        {"-9223372036854775809", INT64_MIN, INT64_MAX, false, 0},
        {"99999999999999999999999999", INT64_MIN, INT64_MAX, false, 0},
        {"0", 1, 64, false, 0},
        {"65", 1, 64, false, 0},
        {"010", 0, 64, false, 0},
        {"0x10", 0, 64, false, 0},
        {"1.0", 0, 64, false, 0},
        {"1e1", 0, 64, false, 0},
        {"+1", 0, 64, false, 0},
        {" 1", 0, 64, false, 0},
        {"1 ", 0, 64, false, 0},
        {"--1", -8, 64, false, 0},
        {"-", -8, 64, false, 0},
        {"", 0, 64, false, 0},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        int64_t value = 77;

        g_assert_cmpint(
            units_parse_int64(cases[i].text, "--tp", cases[i].min, cases[i].max, &value, &error),
            ==, cases[i].ok);
        g_assert_cmpint(value, ==, cases[i].ok ? cases[i].value : 77);
        g_assert_cmpint(error != NULL, ==, !cases[i].ok);
    }
}

static void
test_integers_name_the_flag(void)
{
    g_autoptr(GError) range = NULL;
    g_autoptr(GError) bound = NULL;
    int64_t value;

    g_assert_false(units_parse_int64("0x10", "--tp", 1, 64, &value, &range));
    g_assert_cmpstr(range->message, ==, "--tp: expected an integer from 1 to 64, got \"0x10\"");
    g_assert_false(units_parse_int64("0", "--steps", 1, INT64_MAX, &value, &bound));
    g_assert_cmpstr(bound->message, ==, "--steps: expected an integer >= 1, got \"0\"");
}

static void
test_formats_for_people(void)
{
    static const struct {
        UnitsText (*format)(double);
        double value;
        const char *expect;
    } cases[] = {
        {units_format_s, 0, "0 s"},
        {units_format_s, 5.822, "5.82 s"},
        {units_format_s, 1.16, "1.16 s"},
        {units_format_s, 12.34e-3, "12.3 ms"},
        {units_format_s, 0.9994, "999 ms"},
        {units_format_s, 0.9996, "1.00 s"}, /* never "1000 ms" */
        {units_format_s, 250e-9, "250 ns"},
        {units_format_s, 0.25e-9, "0.25 ns"},
        {units_format_s, 9.996e-6, "10.0 us"},
        {units_format_s, 119, "119 s"},
        {units_format_s, 600, "10.0 min"},
        {units_format_s, 7200, "2.00 h"},
        {units_format_s, 864000, "10.0 d"},
        {units_format_s, 1e12, "1.16e+07 d"},
        {units_format_s, -0.5, "-500 ms"},
        {units_format_s, INFINITY, "inf s"},
        {units_format_s, NAN, "nan s"},
        {units_format_bytes, 0, "0 B"},
        {units_format_bytes, 512, "512 B"},
        {units_format_bytes, 1023, "1023 B"},
        {units_format_bytes, 1024, "1.00 KiB"},
        {units_format_bytes, 14388036403.2, "13.4 GiB"}, /* 13.4 * 2^30 */
        {units_format_bytes, 0x1p40 - 1, "1.00 TiB"},
        {units_format_bytes, 0x1p70, "1024 EiB"},
        {units_format_flops, 989e12, "989 TFLOPS"},
        {units_format_flops, 15.7e12, "15.7 TFLOPS"},
        {units_format_flops, 2e18, "2.00 EFLOPS"},
        {units_format_count, 0, "0"},
        {units_format_count, 999, "999"},
        {units_format_count, -5, "-5"},
        {units_format_count, 2.5, "2.50"},
        {units_format_count, 999.9, "1.00 k"},
        {units_format_count, 1234567, "1.23 M"},
        {units_format_count, 175e9, "175 B"},
        {units_format_count, 1.008e12, "1.01 T"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        const UnitsText text = cases[i].format(cases[i].value);

        g_assert_cmpstr(text.text, ==, cases[i].expect);
    }
}

static void
test_ignores_the_locale(void)
{
    g_autofree char *old = g_strdup(setlocale(LC_NUMERIC, NULL));
    UnitsText text;
    double value = 0;
    bool ok;

    if (setlocale(LC_NUMERIC, "de_DE.UTF-8") == NULL) {
        g_test_skip("the locale de_DE.UTF-8 is not installed");
        return;
    }
    ok = units_parse("1.5ms", UNITS_KIND_S, &value, NULL);
    text = units_format_s(1.5e-3);
    setlocale(LC_NUMERIC, old);
    g_assert_true(ok);
    g_assert_cmpfloat(value, ==, 1.5e-3);
    g_assert_cmpstr(text.text, ==, "1.50 ms");
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/base/units/seconds-round-to-nearest-even",
                    test_seconds_round_to_nearest_even);
    g_test_add_func("/base/units/seconds-saturate", test_seconds_saturate);
    g_test_add_func("/base/units/nanoseconds-survive-the-round-trip",
                    test_nanoseconds_survive_the_round_trip);
    g_test_add_func("/base/units/reads-quantities", test_reads_quantities);
    g_test_add_func("/base/units/refuses-what-is-no-quantity", test_refuses_what_is_no_quantity);
    g_test_add_func("/base/units/bytes-are-exact", test_bytes_are_exact);
    g_test_add_func("/base/units/bytes-say-what-is-wrong", test_bytes_say_what_is_wrong);
    g_test_add_func("/base/units/integers-are-strict", test_integers_are_strict);
    g_test_add_func("/base/units/integers-name-the-flag", test_integers_name_the_flag);
    g_test_add_func("/base/units/formats-for-people", test_formats_for_people);
    g_test_add_func("/base/units/ignores-the-locale", test_ignores_the_locale);
    return g_test_run();
}
