/* Tests of what base/json.h says of documents that are wrong: values, keys, heads of files. */
#include "base/json.h"

#include <math.h>
#include <string.h>

#include "tests/base/json_doc.h"

/* --- messages --- */

typedef void (*Reader)(JsonDoc *doc, const JsonValue *root);

static void
read_int_from_1(JsonDoc *doc, const JsonValue *root)
{
    g_assert_cmpint(json_int64(doc, root, "k", 1, INT64_MAX), ==, json_doc_failed(doc) ? 1 : 5);
}

static void
read_int_1_to_8(JsonDoc *doc, const JsonValue *root)
{
    json_int64_or(doc, root, "k", 1, 8, 99);
}

static void
read_int_to_8(JsonDoc *doc, const JsonValue *root)
{
    json_int64(doc, root, "k", INT64_MIN, 8);
}

static void
read_any_int(JsonDoc *doc, const JsonValue *root)
{
    json_int64(doc, root, "k", -JSON_MAX_INT, JSON_MAX_INT);
}

static void
read_double_from_0(JsonDoc *doc, const JsonValue *root)
{
    json_double(doc, root, "k", 0, INFINITY);
}

static void
read_positive(JsonDoc *doc, const JsonValue *root)
{
    json_double(doc, root, "k", DBL_MIN, DBL_MAX);
}

static void
read_fraction(JsonDoc *doc, const JsonValue *root)
{
    json_double_or(doc, root, "k", 0, 1, 0.5);
}

static void
read_positive_fraction(JsonDoc *doc, const JsonValue *root)
{
    json_double(doc, root, "k", DBL_TRUE_MIN, 1);
}

static void
read_double_to_minus_1(JsonDoc *doc, const JsonValue *root)
{
    g_assert_cmpfloat(json_double(doc, root, "k", -INFINITY, -1.5), ==, -1.5);
}

static void
read_any_double(JsonDoc *doc, const JsonValue *root)
{
    g_assert_cmpfloat(json_double(doc, root, "k", -DBL_MAX, DBL_MAX), ==, 0);
}

static void
read_bool(JsonDoc *doc, const JsonValue *root)
{
    g_assert_false(json_bool(doc, root, "k"));
}

static void
read_bool_or(JsonDoc *doc, const JsonValue *root)
{
    json_bool_or(doc, root, "k", true);
}

static void
read_string(JsonDoc *doc, const JsonValue *root)
{
    g_assert_cmpstr(json_string(doc, root, "k"), ==, "");
}

static void
read_enum(JsonDoc *doc, const JsonValue *root)
{
    static const char *const names[] = {"none", "selective", "full", NULL};

    g_assert_cmpint(json_enum(doc, root, "k", names), ==, 0);
}

static void
read_enum_of_1(JsonDoc *doc, const JsonValue *root)
{
    static const char *const names[] = {"only", NULL};

    g_assert_cmpint(json_enum_or(doc, root, "k", names, -1), ==, -1);
}

static void
read_object(JsonDoc *doc, const JsonValue *root)
{
    const JsonValue *object = json_object(doc, root, "k");

    g_assert_true(json_is_object(object));
    g_assert_null(json_first(object));
    g_assert_cmpint(json_int64(doc, object, "any", 3, 9), ==, 3); /* harmless */
    json_object_end(doc, object);
}

static void
read_array(JsonDoc *doc, const JsonValue *root)
{
    const JsonValue *array = json_array(doc, root, "k");

    g_assert_true(json_is_array(array));
    g_assert_cmpuint(json_length(array), ==, 0);
}

static void
read_object_or_null(JsonDoc *doc, const JsonValue *root)
{
    g_assert_null(json_object_or_null(doc, root, "k"));
}

static void
read_array_or_null(JsonDoc *doc, const JsonValue *root)
{
    g_assert_null(json_array_or_null(doc, root, "k"));
}

static const struct {
    Reader read;
    const char *value; /* of the key k, or NULL for a missing key */
    const char *expect;
} messages[] = {
    {read_int_from_1, "5", NULL},
    {read_int_from_1, "5.0", NULL},
    {read_int_from_1, "0.5e1", NULL},
    {read_int_from_1, "500e-2", NULL},
    {read_int_from_1, "-4", "1:7: $.k: expected an integer >= 1, got -4"},
    {read_int_from_1, "0", "1:7: $.k: expected an integer >= 1, got 0"},
    {read_int_from_1, "1.5", "1:7: $.k: expected an integer >= 1, got 1.5"},
    {read_int_from_1, "\"4096\"", "1:7: $.k: expected an integer >= 1, got \"4096\""},
    {read_int_from_1, "null", "1:7: $.k: expected an integer >= 1, got null"},
    {read_int_from_1, "true", "1:7: $.k: expected an integer >= 1, got true"},
    {read_int_from_1, "[]", "1:7: $.k: expected an integer >= 1, got an array"},
    {read_int_from_1, "{}", "1:7: $.k: expected an integer >= 1, got an object"},
    {read_int_from_1, NULL, "1:1: $.k: missing key"},
    {read_int_from_1, "9007199254740993",
     "1:7: $.k: expected an integer >= 1, at most 2^53, got 9007199254740993"},
    {read_int_from_1, "1e30", "1:7: $.k: expected an integer >= 1, at most 2^53, got 1e30"},
    {read_int_from_1, "1e308", "1:7: $.k: expected an integer >= 1, at most 2^53, got 1e308"},
    {read_int_1_to_8, "9", "1:7: $.k: expected an integer from 1 to 8, got 9"},
    {read_int_1_to_8, "null", "1:7: $.k: expected an integer from 1 to 8, got null"},
    {read_int_1_to_8, "12345678901234567890123456789012345678901234567890",
     "1:7: $.k: expected an integer from 1 to 8, got 1234567890123456789012345678901234567890..."},
    {read_int_to_8, "9", "1:7: $.k: expected an integer <= 8, got 9"},
    {read_any_int, "9007199254740992", NULL},
    {read_any_int, "-9007199254740992", NULL},
    {read_any_int, "9007199254740993",
     "1:7: $.k: expected an integer, at most 2^53, got 9007199254740993"},
    {read_any_int, "-9007199254740993",
     "1:7: $.k: expected an integer, at least -2^53, got -9007199254740993"},
    {read_any_int, "1e-400", NULL}, /* reads as 0 */
    {read_double_from_0, "1e308", NULL},
    {read_double_from_0, "-0", NULL},
    {read_double_from_0, "-1e-9", "1:7: $.k: expected a number >= 0, got -1e-9"},
    {read_double_from_0, NULL, "1:1: $.k: missing key"},
    {read_positive, "1e-300", NULL},
    {read_positive, "0", "1:7: $.k: expected a number > 0, got 0"},
    {read_fraction, "1", NULL}, /* bounds are inclusive */
    {read_fraction, "0", NULL},
    {read_fraction, "false", "1:7: $.k: expected a number from 0 to 1, got false"},
    {read_fraction, "1.001", "1:7: $.k: expected a number from 0 to 1, got 1.001"},
    {read_fraction, "\"a\\nb\"", "1:7: $.k: expected a number from 0 to 1, got \"a\\nb\""},
    {read_positive_fraction, "0.0", "1:7: $.k: expected a number > 0 and <= 1, got 0.0"},
    {read_double_to_minus_1, "0", "1:7: $.k: expected a number <= -1.5, got 0"},
    {read_any_double, "[1]", "1:7: $.k: expected a number, got an array"},
    {read_bool, "1", "1:7: $.k: expected true or false, got 1"},
    {read_bool, NULL, "1:1: $.k: missing key"},
    {read_bool_or, "\"true\"", "1:7: $.k: expected true or false, got \"true\""},
    {read_string, "{}", "1:7: $.k: expected a string, got an object"},
    {read_string, NULL, "1:1: $.k: missing key"},
    {read_enum, "\"fll\"",
     "1:7: $.k: expected \"none\", \"selective\" or \"full\", got \"fll\"; did you mean \"full\"?"},
    {read_enum, "\"xyzzy\"",
     "1:7: $.k: expected \"none\", \"selective\" or \"full\", got \"xyzzy\""},
    {read_enum, "null", "1:7: $.k: expected \"none\", \"selective\" or \"full\", got null"},
    {read_enum, NULL, "1:1: $.k: missing key"},
    {read_enum_of_1, "\"\\u001b[31m\"", "1:7: $.k: expected \"only\", got \"\\x1b[31m\""},
    {read_object, "[]", "1:7: $.k: expected an object, got an array"},
    {read_object, NULL, "1:1: $.k: missing key"},
    {read_array, "{}", "1:7: $.k: expected an array, got an object"},
    {read_array, NULL, "1:1: $.k: missing key"},
    {read_object_or_null, "null", NULL},
    {read_object_or_null, "0", "1:7: $.k: expected an object or null, got 0"},
    {read_array_or_null, "null", NULL},
    {read_array_or_null, "\"x\"", "1:7: $.k: expected an array or null, got \"x\""},
};

static void
test_messages_say_what_was_expected(void)
{
    for (size_t i = 0; i < G_N_ELEMENTS(messages); i++) {
        g_autofree char *text = messages[i].value == NULL
                                    ? g_strdup("{}")
                                    : g_strdup_printf("{\"k\": %s}", messages[i].value);
        g_autoptr(JsonDoc) doc = parse(text);
        const JsonValue *root = json_doc_root(doc, NULL, 0);

        if (messages[i].expect == NULL && messages[i].read == read_int_from_1)
            g_assert_cmpint(json_int64(doc, root, "k", 1, 9), ==, 5);
        messages[i].read(doc, root);
        json_object_end(doc, root);
        assert_finishes(doc, messages[i].expect);
    }
}

static void
test_places_are_exact(void)
{
    g_autoptr(JsonDoc) doc =
        parse("{\n\t\"\xc3\xa4\xc3\xa4 \": [\n {\"x\": 1}, {\"a.b\": [0, {\"c-d\": 7}]}]\n}");
    const JsonValue *root = json_doc_root(doc, NULL, 0);
    const JsonValue *second = json_next(json_first(json_array(doc, root, "\xc3\xa4\xc3\xa4 ")));
    const JsonValue *inner = json_next(json_first(json_array(doc, second, "a.b")));

    json_value_string(doc, json_member(doc, inner, "c-d"));
    assert_finishes(doc,
                    "3:32: $[\"\xc3\xa4\xc3\xa4 \"][1][\"a.b\"][1].c-d: expected a string, got 7");
}

static void
test_the_deepest_place_has_a_path(void)
{
    g_autoptr(GString) text = g_string_new(NULL);
    g_autoptr(GString) path = g_string_new("1:65: $");
    g_autoptr(JsonDoc) doc = NULL;
    const JsonValue *v;

    for (int i = 0; i < JSON_MAX_DEPTH; i++) {
        g_string_append_c(text, '[');
        g_string_append(path, "[0]");
    }
    g_string_append_c(text, '7');
    for (int i = 0; i < JSON_MAX_DEPTH; i++)
        g_string_append_c(text, ']');
    g_string_append(path, ": expected a string, got 7");
    doc = parse(text->str);
    for (v = json_doc_root(doc, NULL, 0); json_is_array(v);)
        v = json_first(v);
    json_value_string(doc, v);
    assert_finishes(doc, path->str);
}

static void
test_the_first_error_stays(void)
{
    g_autoptr(JsonDoc) doc = parse("{\"a\":1,\"b\":2,\"zzzzzz\":3}");
    const JsonValue *root = json_doc_root(doc, NULL, 0);

    json_int64(doc, root, "b", 5, 9);
    json_string(doc, root, "a");
    g_assert_cmpint(json_enum_or(doc, root, "a", (const char *const[]){"x", NULL}, 3), ==, 3);
    json_fail(doc, root, "another");
    json_int64(doc, root, "missing", 0, 1);
    json_object_end(doc, root);
    assert_finishes(doc, "1:12: $.b: expected an integer from 5 to 9, got 2");
}

static void
test_callers_report_their_own(void)
{
    g_autoptr(JsonDoc) at_value = parse("{\"tp\":\n3}");
    g_autoptr(JsonDoc) at_document = parse("{}");
    g_autoptr(GError) error = NULL;
    const JsonValue *root = json_doc_root(at_value, NULL, 0);

    json_fail(at_value, json_member(at_value, root, "tp"), "%d does not divide %d heads\x1b", 3,
              64);
    assert_finishes(at_value, "2:1: $.tp: 3 does not divide 64 heads\\x1b");
    json_fail(at_document, NULL, "too %s", "small");
    g_assert_false(json_doc_finish(at_document, &error));
    g_assert_cmpstr(error->message, ==, "model.json: too small");
}

static void
test_elements_that_are_no_objects(void)
{
    g_autoptr(JsonDoc) doc = parse("{\"ops\":[3]}");
    const JsonValue *op = json_first(json_array(doc, json_doc_root(doc, NULL, 0), "ops"));

    g_assert_false(json_has(doc, op, "x"));
    g_assert_cmpint(json_int64(doc, op, "x", 2, 3), ==, 2);
    json_object_end(doc, op);
    assert_finishes(doc, "1:9: $.ops[0]: expected an object, got 3");
}

/* --- unknown keys --- */

static void
test_unknown_keys_suggest_what_was_asked_for(void)
{
    static const struct {
        const char *text;
        const char *expect;
    } cases[] = {
        {"{\"hidden\":1}", NULL},
        {"{\"hidden\":1,\"n_layers\":2}", NULL},
        {"{\"hidden\":1,\n  \"n_layer\":2}",
         "2:3: $.n_layer: unknown key; did you mean \"n_layers\"?"},
        {"{\"hidden\":1,\"N_LAYERS\":2}",
         "1:13: $.N_LAYERS: unknown key; did you mean \"n_layers\"?"},
        {"{\"hidden\":1,\"colour\":2}", "1:13: $.colour: unknown key"},
        {"{\"qqqqq\":1,\"hidden\":1,\"yyyyy\":2}", "1:2: $.qqqqq: unknown key"},
        /* the reason of a missing key is named instead of it */
        {"{\n  \"a_long_key\": 1, \"hiden\":1}",
         "2:20: $.hiden: unknown key; did you mean \"hidden\"?"},
        {"{\"x\":{},   \"hiden\":1}", "1:12: $.hiden: unknown key; did you mean \"hidden\"?"},
        {"{\"colour\":1}", "1:1: $.hidden: missing key"},
        {"{}", "1:1: $.hidden: missing key"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(JsonDoc) doc = parse(cases[i].text);
        const JsonValue *root = json_doc_root(doc, NULL, 0);

        json_int64(doc, root, "hidden", 1, 9);
        json_int64_or(doc, root, "n_layers", 1, 9, 1);
        json_object_or_null(doc, root, "x");
        json_object_end(doc, root);
        assert_finishes(doc, cases[i].expect);
    }
}

static void
test_objects_end_apart(void)
{
    g_autoptr(JsonDoc) doc = parse("{\"a\":{\"x\":1},\"b\":{\"x\":1}}");
    const JsonValue *root = json_doc_root(doc, NULL, 0);
    const JsonValue *a = json_object(doc, root, "a");
    const JsonValue *b = json_object(doc, root, "b");

    json_int64(doc, a, "x", 0, 9);
    json_object_end(doc, a);
    json_object_end(doc, root);
    assert_finishes(doc, NULL);
    json_object_end(doc, b);
    assert_finishes(doc, "1:19: $.b.x: unknown key");
}

static void
test_a_missing_key_elsewhere_is_not_explained_here(void)
{
    g_autoptr(JsonDoc) doc = parse("{\"a\":{},\"b\":{\"hiden\":1}}");
    const JsonValue *root = json_doc_root(doc, NULL, 0);
    const JsonValue *b = json_object(doc, root, "b");

    json_int64(doc, json_object(doc, root, "a"), "hidden", 0, 9);
    json_object_end(doc, b);
    assert_finishes(doc, "1:6: $.a.hidden: missing key");
}

/* --- the head of a file --- */

static void
test_checks_format_and_version(void)
{
    static const struct {
        const char *text;
        const char *format; /* as json_doc_format() sees it */
        const char *expect;
    } cases[] = {
        {"{\"format\":\"degas-model\",\"version\":1}", "degas-model", NULL},
        {"{\"version\":2,\"format\":\"degas-model\"}", "degas-model", NULL},
        {"{\"format\":\"degas-plan\",\"version\":1}", "degas-plan",
         "1:11: $.format: expected \"degas-model\", got \"degas-plan\""},
        {"{\"format\":3,\"version\":1}", NULL, "1:11: $.format: expected \"degas-model\", got 3"},
        {"{\"version\":1}", NULL, "1:1: $.format: missing key"},
        {"{\"fromat\":\"degas-model\",\"version\":1}", NULL,
         "1:2: $.fromat: unknown key; did you mean \"format\"?"},
        {"{\"format\":\"degas-model\"}", "degas-model", "1:1: $.version: missing key"},
        {"{\"format\":\"degas-model\",\"version\":3}", "degas-model",
         "1:35: $.version: version 3 is newer than this program, which reads up to 2"},
        {"{\"format\":\"degas-model\",\"version\":0}", "degas-model",
         "1:35: $.version: expected an integer >= 1, got 0"},
        {"[]", NULL, "1:1: $: expected an object, got an array"},
        {"7", NULL, "1:1: $: expected an object, got 7"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(JsonDoc) doc = parse(cases[i].text);
        const JsonValue *root;

        g_assert_cmpstr(json_doc_format(doc), ==, cases[i].format);
        root = json_doc_root(doc, "degas-model", 2);
        g_assert_true(json_is_object(root));
        json_object_end(doc, root);
        assert_finishes(doc, cases[i].expect);
    }
}

static void
test_foreign_files_may_be_anything(void)
{
    g_autoptr(JsonDoc) doc = parse("[1,2]");
    const JsonValue *root = json_doc_root(doc, NULL, 0);

    g_assert_true(json_is_array(root));
    g_assert_cmpuint(json_length(root), ==, 2);
    g_assert_null(json_next(root));
    assert_finishes(doc, NULL);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/base/json/messages-say-what-was-expected",
                    test_messages_say_what_was_expected);
    g_test_add_func("/base/json/places-are-exact", test_places_are_exact);
    g_test_add_func("/base/json/the-deepest-place-has-a-path", test_the_deepest_place_has_a_path);
    g_test_add_func("/base/json/the-first-error-stays", test_the_first_error_stays);
    g_test_add_func("/base/json/callers-report-their-own", test_callers_report_their_own);
    g_test_add_func("/base/json/elements-that-are-no-objects", test_elements_that_are_no_objects);
    g_test_add_func("/base/json/unknown-keys-suggest-what-was-asked-for",
                    test_unknown_keys_suggest_what_was_asked_for);
    g_test_add_func("/base/json/objects-end-apart", test_objects_end_apart);
    g_test_add_func("/base/json/a-missing-key-elsewhere-is-not-explained-here",
                    test_a_missing_key_elsewhere_is_not_explained_here);
    g_test_add_func("/base/json/checks-format-and-version", test_checks_format_and_version);
    g_test_add_func("/base/json/foreign-files-may-be-anything", test_foreign_files_may_be_anything);
    return g_test_run();
}
