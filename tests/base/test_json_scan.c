/* Tests of base/json_scan.h through json_doc_parse(): what is JSON, what is not, and where. */
#include "base/json.h"

#include <stdio.h>
#include <string.h>

#include "base/json_scan.h"

/* Parses @n_bytes of @text as x.json and expects the message, or NULL for none. */
static void
assert_parses(const char *text, size_t n_bytes, const char *expect)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(JsonDoc) doc = json_doc_parse("x.json", text, n_bytes, &error);

    if (expect == NULL) {
        g_assert_no_error(error);
        g_assert_nonnull(doc);
        return;
    }
    g_assert_null(doc);
    g_assert_error(error, JSON_ERROR, JSON_ERROR_INVALID);
    g_assert_cmpstr(error->message, ==, expect);
}

static void
test_accepts_json(void)
{
    static const char *const cases[] = {
        "null",
        "true",
        "false",
        "0",
        "-0",
        "\"\"",
        "[]",
        "{}",
        " \t\r\n[ \t\r\n] \t\r\n",
        "1.5",
        "-1.5e+10",
        "1E5",
        "0e0",
        "0.0",
        "1e-400",
        "123456789012345678901234567890",
        "[1,2.5,\"x\",null,true,false,{},[]]",
        "{\"a\":{\"b\":[{\"c\":1}]}}",
        "{\"\":1,\"a\":2,\"A\":3}", /* case twins are two keys */
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e4\\uD834\\uDD1E\"",
        "\"h\xc3\xa4 \xf0\x9d\x84\x9e \x7f\"",
        "\"\xef\xbb\xbf\"", /* the mark is only refused at the start */
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++)
        assert_parses(cases[i], strlen(cases[i]), NULL);
}

static void
test_refuses_what_is_no_json(void)
{
    static const struct {
        const char *text;
        const char *expect;
    } cases[] = {
        {"", "x.json:1:1: $: empty; expected a JSON value"},
        {" \n ", "x.json:1:1: $: empty; expected a JSON value"},
        {"\xef\xbb\xbf{}",
         "x.json:1:1: $: begins with a byte order mark; save it as UTF-8 without one"},
        {"\xff\xfe{", "x.json:1:1: $: looks like UTF-16; save it as UTF-8"},
        {"\xfe\xff{", "x.json:1:1: $: looks like UTF-16; save it as UTF-8"},
        {"abc", "x.json:1:1: $: expected a value, got 'abc'"},
        {"{}x", "x.json:1:3: $: expected the end of the file, got 'x'"},
        {"1-2", "x.json:1:2: $: expected the end of the file, got '-'"},
        {"{} {}", "x.json:1:4: $: expected the end of the file, got '{'"},
        {"[1] // note", "x.json:1:5: $: JSON has no comments"},
        {"{ # note\n}", "x.json:1:3: $: JSON has no comments"},
        {"[1 /* note */]", "x.json:1:4: $: JSON has no comments"},
        {"[1,]", "x.json:1:4: $: a comma before the closing ]"},
        {"{\"a\":1,}", "x.json:1:8: $: a comma before the closing }"},
        {"[,1]", "x.json:1:2: $[0]: expected a value, got ','"},
        {"[1,,2]", "x.json:1:4: $[1]: expected a value, got ','"},
        {"[1 2]", "x.json:1:4: $: expected ',' or ']', got '2'"},
        {"[1}", "x.json:1:3: $: expected ',' or ']', got '}'"},
        {"{\"a\":1]", "x.json:1:7: $: expected ',' or '}', got ']'"},
        {"{\"a\" 1}", "x.json:1:6: $: expected ':' after a key, got '1'"},
        {"{a:1}", "x.json:1:2: $: expected a key in double quotes, got 'a'"},
        {"{'a':1}", "x.json:1:2: $: strings need double quotes"},
        {"{1:1}", "x.json:1:2: $: expected a key in double quotes, got '1'"},
        {"['a']", "x.json:1:2: $[0]: strings need double quotes"},
        {"[", "x.json:1:2: $[0]: expected a value, got the end of the file"},
        {"[1", "x.json:1:3: $: expected ',' or ']', got the end of the file"},
        {"{", "x.json:1:2: $: expected a key in double quotes, got the end of the file"},
        {"{\"a", "x.json:1:4: $: the file ends inside a string"},
        {"{\"a\"", "x.json:1:5: $: expected ':' after a key, got the end of the file"},
        {"{\"a\":", "x.json:1:6: $.a: expected a value, got the end of the file"},
        {"\"\\", "x.json:1:3: $: the file ends inside a string"},
        {"]", "x.json:1:1: $: expected a value, got ']'"},
        {"[tru]", "x.json:1:2: $[0]: expected a value, got 'tru'"},
        {"[nullx]", "x.json:1:2: $[0]: expected a value, got 'nullx'"},
        {"[True]", "x.json:1:2: $[0]: True is not JSON; write true"},
        {"[None]", "x.json:1:2: $[0]: None is not JSON; write null"},
        {"[undefined]", "x.json:1:2: $[0]: undefined is not JSON; write null"},
        {"[\x01]", "x.json:1:2: $[0]: expected a value, got byte 0x01"},
        {"[\v1]", "x.json:1:2: $[0]: expected a value, got byte 0x0b"},
        {"[\xc2\xa0"
         "1]",
         "x.json:1:2: $[0]: expected a value, got '\xc2\xa0'"},
        {"[\xff]", "x.json:1:2: $[0]: expected a value, got byte 0xff"},
        {"[1\xff]", "x.json:1:3: $: expected ',' or ']', got byte 0xff"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++)
        assert_parses(cases[i].text, strlen(cases[i].text), cases[i].expect);
}

static void
test_refuses_numbers(void)
{
    static const char python[] =
        " is not JSON; Python's json module writes it unless told allow_nan=False";
    static const struct {
        const char *text;
        const char *expect;
    } cases[] = {
        {"NaN", python},
        {"Infinity", python},
        {"-Infinity", python},
        {"-inf", python},
        {"01", "a number must not begin with 0"},
        {"-01", "a number must not begin with 0"},
        {"00", "a number must not begin with 0"},
        {"0x10", "hexadecimal numbers are not JSON"},
        {"0X10", "hexadecimal numbers are not JSON"},
        {"+1", "a number must not begin with +"},
        {".5", "a number needs digits before the point"},
        {"-.5", "a number needs digits before the point"},
        {"-", "expected a value, got '-'"},
        {"--1", "expected a value, got '-'"},
        {"1e309", "number 1e309 is outside the range of a double"},
        {"-1e400", "number -1e400 is outside the range of a double"},
        {"1e99999999999999999999",
         "number 1e99999999999999999999 is outside the range of a double"},
        {"1797693134862315700000000000000000000000000000000e309",
         "number 1797693134862315700000000000000000000000... is outside the range of a double"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = g_strdup_printf("{\n\"key\": %s}", cases[i].text);
        g_autofree char *expect =
            g_strdup_printf("x.json:2:8: $.key: %s%s",
                            cases[i].expect == python ? cases[i].text : "", cases[i].expect);

        assert_parses(text, strlen(text), expect);
    }
    /* these are found at the character that is missing */
    assert_parses("[1.]", 4, "x.json:1:4: $[0]: a number needs digits after the point");
    assert_parses("[1.e5]", 6, "x.json:1:4: $[0]: a number needs digits after the point");
    assert_parses("[1e]", 4, "x.json:1:4: $[0]: a number needs digits in its exponent");
    assert_parses("[1e+]", 5, "x.json:1:5: $[0]: a number needs digits in its exponent");
    assert_parses("1.", 2, "x.json:1:3: $: a number needs digits after the point");
    assert_parses("1e", 2, "x.json:1:3: $: a number needs digits in its exponent");
    assert_parses("01", 2, "x.json:1:1: $: a number must not begin with 0");
    assert_parses("0x", 2, "x.json:1:1: $: hexadecimal numbers are not JSON");
    assert_parses("-", 1, "x.json:1:1: $: expected a value, got '-'");
}

static void
test_refuses_strings(void)
{
    static const struct {
        const char *string;
        const char *expect;
    } cases[] = {
        {"a\nb", "1:11: $.k[1]: control character 0x0a in a string; write \\u000a"},
        {"\x1b", "1:10: $.k[1]: control character 0x1b in a string; write \\u001b"},
        {"\\x41", "1:10: $.k[1]: a backslash before 'x41'; write \\\\ for a backslash"},
        {"\\'", "1:10: $.k[1]: a backslash before '; write \\\\ for a backslash"},
        {"\\u12g4", "1:10: $.k[1]: \\u needs four hexadecimal digits"},
        {"\\u12", "1:10: $.k[1]: \\u needs four hexadecimal digits"},
        {"\\u0000", "1:10: $.k[1]: \\u0000 is not accepted in strings"},
        {"\\ud834", "1:10: $.k[1]: \\ud834 is half of a surrogate pair"},
        {"\\ud834x", "1:10: $.k[1]: \\ud834 is half of a surrogate pair"},
        {"\\ud834\\n", "1:10: $.k[1]: \\ud834 is half of a surrogate pair"},
        {"\\ud834\\u0041", "1:10: $.k[1]: \\ud834 is half of a surrogate pair"},
        {"\\udd1e", "1:10: $.k[1]: \\udd1e is half of a surrogate pair"},
        {"\\udd1e\\ud834", "1:10: $.k[1]: \\udd1e is half of a surrogate pair"},
        {"ok \xff", "1:13: $.k[1]: byte 0xff is not UTF-8"},
        {"\xc0\xaf", "1:10: $.k[1]: byte 0xc0 is not UTF-8"},     /* overlong */
        {"\xed\xa0\x80", "1:10: $.k[1]: byte 0xed is not UTF-8"}, /* a surrogate */
        {"\xf4\x90\x80\x80", "1:10: $.k[1]: byte 0xf4 is not UTF-8"},
        {"\xc3", "1:10: $.k[1]: byte 0xc3 is not UTF-8"},
        {"\xc3\xa4\xff", "1:11: $.k[1]: byte 0xff is not UTF-8"}, /* columns count characters */
    };

    /* the string is element 1; its first character is in column 10 */
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = g_strdup_printf("{\"k\":[0,\"%s\"]}", cases[i].string);
        g_autofree char *expect = g_strconcat("x.json:", cases[i].expect, NULL);

        assert_parses(text, strlen(text), expect);
    }
}

static void
test_nul_bytes_are_seen(void)
{
    assert_parses("[\0]", 3, "x.json:1:2: $[0]: expected a value, got byte 0x00");
    assert_parses("[1]\0", 4, "x.json:1:4: $: expected the end of the file, got byte 0x00");
    assert_parses("[\"a\0b\"]", 7, "x.json:1:4: $[0]: NUL byte in a string");
    assert_parses("[1,\0002]", 6, "x.json:1:4: $[1]: expected a value, got byte 0x00");
    assert_parses("\0{\0}", 4, "x.json:1:1: $: looks like UTF-16; save it as UTF-8");
    assert_parses("[\0 \0]\0", 6, "x.json:1:1: $: looks like UTF-16; save it as UTF-8");
    assert_parses("[\0]]", 4, "x.json:1:2: $[0]: expected a value, got byte 0x00");
    assert_parses("{\0}\0", 4, "x.json:1:1: $: looks like UTF-16; save it as UTF-8");
}

static void
test_stops_at_the_length_given(void)
{
    /* what stands behind the length must not matter */
    assert_parses("[1]garbage", 3, NULL);
    assert_parses("12345", 2, NULL);
    assert_parses("\"ab\"cd\"", 4, NULL);
    assert_parses("true", 3, "x.json:1:1: $: expected a value, got 'tru'");
    assert_parses("[1]", 2, "x.json:1:3: $: expected ',' or ']', got the end of the file");
}

static void
test_duplicate_keys(void)
{
    assert_parses("{\"tp\":1,\n \"tp\":1}", 17,
                  "x.json:2:2: $.tp: duplicate key; first at line 1, column 2");
    assert_parses("{\"tp\":1,\"\\u0074p\":2}", 20,
                  "x.json:1:9: $.tp: duplicate key; first at line 1, column 2");
    assert_parses("[{\"a\":{\"b\":1,\"c\":2,\"b\":3}}]", 27,
                  "x.json:1:20: $[0].a.b: duplicate key; first at line 1, column 8");
    assert_parses("[{\"a\":1},{\"a\":1}]", 17, NULL);
}

static void
test_duplicates_in_a_big_object(void)
{
    g_autoptr(GString) text = g_string_new("{");

    for (int i = 0; i < 1000; i++)
        g_string_append_printf(text, "\"k%d\":%d,\n", i, i);
    g_string_append(text, "\"k500\":0,\"k400\":0}");
    assert_parses(text->str, text->len,
                  "x.json:1001:10: $.k400: duplicate key; first at line 401, column 1");
}

/* @n copies of @open, then @close copies of the right bracket. */
static char *
nested(const char *open, const char *middle, char close, size_t n)
{
    GString *text = g_string_new(NULL);

    for (size_t i = 0; i < n; i++)
        g_string_append(text, open);
    g_string_append(text, middle);
    for (size_t i = 0; i < n; i++)
        g_string_append_c(text, close);
    return g_string_free(text, FALSE);
}

static void
test_depth_is_limited(void)
{
    g_autofree char *most = nested("[", "", ']', JSON_MAX_DEPTH);
    g_autofree char *most_objects = nested("{\"a\":", "1", '}', JSON_MAX_DEPTH);
    static const size_t depths[] = {JSON_MAX_DEPTH + 1, 1000, 100000};

    assert_parses(most, strlen(most), NULL);
    assert_parses(most_objects, strlen(most_objects), NULL);
    for (size_t i = 0; i < G_N_ELEMENTS(depths); i++) {
        g_autofree char *deep = nested("[", "", ']', depths[i]);
        g_autoptr(GError) error = NULL;

        g_assert_null(json_doc_parse("x.json", deep, strlen(deep), &error));
        g_assert_true(g_str_has_prefix(error->message, "x.json:1:65: $[0][0][0]"));
        g_assert_true(g_str_has_suffix(error->message, "[0]: nested more than 64 deep"));
    }
}

static void
test_paths_are_cut_in_the_middle(void)
{
    g_autofree char *deep = nested("{\"a long key\":", "x", '}', 40);
    g_autoptr(GError) error = NULL;

    g_assert_null(json_doc_parse("x.json", deep, strlen(deep), &error));
    g_assert_cmpuint(strlen(error->message), <, 300);
    g_assert_nonnull(strstr(error->message, "$[\"a long key\"][\"a long key\"]"));
    g_assert_nonnull(strstr(error->message, "..."));
    g_assert_true(g_str_has_suffix(error->message, "[\"a long key\"]: expected a value, got 'x'"));
}

/* The cut moves to whole characters: 40 keys of one 3-byte character, all offsets mod 3. */
static void
test_cut_paths_are_utf8(void)
{
    static const char *const heads[] = {"{\"\":", "{\"a \":", "{\"ab \":"};

    for (size_t i = 0; i < G_N_ELEMENTS(heads); i++) {
        g_autofree char *deep = nested("{\"\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac\":", "x", '}', 40);
        g_autofree char *text = g_strconcat(heads[i], deep, NULL);
        g_autoptr(GError) error = NULL;

        g_assert_null(json_doc_parse("x.json", text, strlen(text), &error));
        g_assert_true(g_utf8_validate(error->message, -1, NULL));
        g_assert_nonnull(strstr(error->message, "..."));
    }
}

static void
test_size_is_limited(void)
{
    size_t n_bytes = (size_t)JSON_MAX_BYTES + 1;
    g_autofree char *text = g_malloc(n_bytes);
    g_autoptr(GError) error = NULL;

    memset(text, ' ', n_bytes);
    text[0] = '1';
    assert_parses(text, JSON_MAX_BYTES, NULL);
    g_assert_null(json_doc_parse("x.json", text, n_bytes, &error));
    g_assert_cmpstr(error->message, ==,
                    "x.json: larger than the limit of 67108864 bytes, or than memory");
}

static void
test_number_of_values_is_limited(void)
{
    /* the array itself is a value, too */
    size_t n_zeros = JSON_MAX_VALUES;
    g_autofree char *text = g_malloc(2 * n_zeros + 2);
    JsonScan scan;

    for (size_t i = 0; i < n_zeros; i++)
        memcpy(text + 2 * i, ",0", 2);
    text[0] = '[';
    text[2 * n_zeros] = ']';
    text[2 * n_zeros + 1] = 0;
    g_assert_false(json_scan(&scan, text, 2 * n_zeros + 1));
    g_assert_cmpstr(scan.fault, ==, "more than 5000000 values");
    g_assert_cmpuint(scan.fault_offset, ==, 2 * n_zeros - 1);
    json_scan_clear(&scan);
    text[2 * n_zeros - 2] = ']'; /* one less */
    g_assert_true(json_scan(&scan, text, 2 * n_zeros - 1));
    g_assert_cmpuint(scan.n_values, ==, JSON_MAX_VALUES);
    g_assert_cmpuint(scan.values[0].n_nodes, ==, JSON_MAX_VALUES);
    g_assert_cmpuint(scan.values[0].n_children, ==, JSON_MAX_VALUES - 1);
    json_scan_clear(&scan);
}

static void
test_names_and_keys_reach_no_terminal(void)
{
    g_autoptr(GError) error = NULL;
    const char *text = "{\"\\u001b[31m\\n\": x}";
    g_autofree char *key = g_strnfill(70, 'a');
    g_autofree char *long_key = g_strdup_printf("{\"%s\":}", key);
    g_autofree char *expect = g_strdup_printf("x.json:1:75: $.%.61s...: expected a value, got '}'",
                                              key); /* cut to 64 bytes */

    g_assert_null(json_doc_parse("a\x1b]0;\nb", text, strlen(text), &error));
    g_assert_cmpstr(error->message, ==,
                    "a\\x1b]0;\\nb:1:18: $[\"\\u001b[31m\\n\"]: expected a value, got 'x'");
    assert_parses(
        long_key, strlen(long_key),
        "x.json:1:75: $.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...: "
        "expected a value, got '}'");
}

static void
test_huge_keys_and_strings_are_fine(void)
{
    g_autofree char *megabyte = g_strnfill(1 << 20, 'm');
    g_autofree char *text = g_strdup_printf("{\"%s\":\"%s\"}", megabyte, megabyte);
    g_autoptr(JsonDoc) doc = json_doc_parse("x.json", text, strlen(text), NULL);
    const JsonValue *root = json_doc_root(doc, NULL, 0);

    g_assert_cmpstr(json_string(doc, root, megabyte), ==, megabyte);
    g_assert_null(json_member(doc, root, "m"));
}

/* Positions, sizes and parents of the scan, counted by hand. */
static void
test_records_the_tree(void)
{
    static const char text[] = " {\"a\": [10, {}], \"b\": null}";
    static const struct {
        uint32_t offset, key_offset, n_nodes, n_children, up;
    } expect[] = {
        {1, JSON_SCAN_NO_KEY, 5, 2, 0},  {7, 2, 3, 2, 1},   {8, JSON_SCAN_NO_KEY, 1, 0, 1},
        {12, JSON_SCAN_NO_KEY, 1, 0, 2}, {22, 17, 1, 0, 4},
    };
    JsonScan scan;

    g_assert_true(json_scan(&scan, text, strlen(text)));
    g_assert_cmpuint(scan.n_values, ==, G_N_ELEMENTS(expect));
    for (size_t i = 0; i < scan.n_values; i++) {
        g_assert_cmpuint(scan.values[i].offset, ==, expect[i].offset);
        g_assert_cmpuint(scan.values[i].key_offset, ==, expect[i].key_offset);
        g_assert_cmpuint(scan.values[i].n_nodes, ==, expect[i].n_nodes);
        g_assert_cmpuint(scan.values[i].n_children, ==, expect[i].n_children);
        g_assert_cmpuint(scan.values[i].up, ==, expect[i].up);
    }
    json_scan_clear(&scan);
}

/*
 * Mutants of a valid text: whatever comes out, scan and tree must agree (they are joined inside),
 * and an error must have a place and a message.
 */
static void
test_mutants_are_refused_or_read(void)
{
    static const char seed_text[] =
        "{\"format\":\"x\",\"n\":[1,-2.5e3,1E+2,0],\"s\":\"\\u00e4\\ud834\\udd1e\\n\xc3\xa4\","
        "\"t\":[true,false,null],\"o\":{\"a\":{},\"b\":[[]]}}";
    static const char alphabet[] = "{}[],:\"\\u0d8e+-.1truefalsn \n\x01\xc3\xa4\xff";
    g_autoptr(GRand) random = g_rand_new_with_seed(3);
    int n_read = 0;

    for (int i = 0; i < 50000; i++) {
        char text[sizeof(seed_text)];
        g_autoptr(GError) error = NULL;
        g_autoptr(JsonDoc) doc = NULL;
        int n_changes = g_rand_int_range(random, 1, 4);
        size_t n_bytes = sizeof(seed_text) - 1;

        memcpy(text, seed_text, sizeof(text));
        for (int j = 0; j < n_changes; j++)
            text[g_rand_int_range(random, 0, (gint32)n_bytes)] =
                alphabet[g_rand_int_range(random, 0, sizeof(alphabet))];
        doc = json_doc_parse("x.json", text, n_bytes, &error);
        g_assert_cmpint(doc == NULL, ==, error != NULL);
        n_read += doc != NULL;
        if (error != NULL) {
            unsigned line = 0;
            unsigned column = 0;

            g_assert_cmpint(sscanf(error->message, "x.json:%u:%u: $", &line, &column), ==, 2);
            g_assert_cmpuint(line, >=, 1);
            g_assert_cmpuint(column, >=, 1);
            g_assert_null(strstr(error->message, "out of memory"));
            g_assert_true(g_utf8_validate(error->message, -1, NULL));
        }
    }
    g_assert_cmpint(n_read, >, 100); /* some stay valid: both ways are tried */
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/base/json-scan/accepts-json", test_accepts_json);
    g_test_add_func("/base/json-scan/refuses-what-is-no-json", test_refuses_what_is_no_json);
    g_test_add_func("/base/json-scan/refuses-numbers", test_refuses_numbers);
    g_test_add_func("/base/json-scan/refuses-strings", test_refuses_strings);
    g_test_add_func("/base/json-scan/nul-bytes-are-seen", test_nul_bytes_are_seen);
    g_test_add_func("/base/json-scan/stops-at-the-length-given", test_stops_at_the_length_given);
    g_test_add_func("/base/json-scan/duplicate-keys", test_duplicate_keys);
    g_test_add_func("/base/json-scan/duplicates-in-a-big-object", test_duplicates_in_a_big_object);
    g_test_add_func("/base/json-scan/depth-is-limited", test_depth_is_limited);
    g_test_add_func("/base/json-scan/paths-are-cut-in-the-middle",
                    test_paths_are_cut_in_the_middle);
    g_test_add_func("/base/json-scan/cut-paths-are-utf8", test_cut_paths_are_utf8);
    g_test_add_func("/base/json-scan/size-is-limited", test_size_is_limited);
    g_test_add_func("/base/json-scan/number-of-values-is-limited",
                    test_number_of_values_is_limited);
    g_test_add_func("/base/json-scan/names-and-keys-reach-no-terminal",
                    test_names_and_keys_reach_no_terminal);
    g_test_add_func("/base/json-scan/huge-keys-and-strings-are-fine",
                    test_huge_keys_and_strings_are_fine);
    g_test_add_func("/base/json-scan/records-the-tree", test_records_the_tree);
    g_test_add_func("/base/json-scan/mutants-are-refused-or-read",
                    test_mutants_are_refused_or_read);
    return g_test_run();
}
