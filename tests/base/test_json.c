/* Tests of the reading half of base/json.h: getters, their messages, unknown keys, big documents.
 */
#include "base/json.h"

#include <float.h>
#include <glib/gstdio.h>
#include <locale.h>
#include <math.h>
#include <string.h>

static JsonDoc *
parse(const char *text)
{
    g_autoptr(GError) error = NULL;
    JsonDoc *doc = json_doc_parse("model.json", text, strlen(text), &error);

    g_assert_no_error(error);
    return doc;
}

/* Expects what went wrong in @doc, or NULL for nothing, with model.json in front. */
static void
assert_finishes(JsonDoc *doc, const char *expect)
{
    g_autoptr(GError) error = NULL;
    bool ok = json_doc_finish(doc, &error);

    g_assert_cmpint(json_doc_failed(doc), ==, !ok);
    if (expect == NULL) {
        g_assert_no_error(error);
        g_assert_true(ok);
        return;
    }
    g_assert_false(ok);
    g_assert_error(error, JSON_ERROR, JSON_ERROR_INVALID);
    g_assert_true(g_str_has_prefix(error->message, "model.json:"));
    g_assert_cmpstr(error->message + strlen("model.json:"), ==, expect);
    g_assert_false(json_doc_finish(doc, NULL)); /* stays so */
}

/* --- a whole parser --- */

static void
test_reads_every_kind(void)
{
    static const char *const dtypes[] = {"fp32", "bf16", NULL};
    g_autoptr(JsonDoc) doc =
        parse("{\"format\":\"f\",\"version\":1,\"i\":-3,\"d\":0.1,\"t\":true,\"f\":false,"
              "\"s\":\"h\\u00e4\",\"e\":\"bf16\",\"o\":{\"x\":1},\"a\":[1,[],\"z\"],\"n\":null,"
              "\"m\":7,\"ignored\":[{}]}");
    const JsonValue *root = json_doc_root(doc, "f", 1);
    const JsonValue *object;
    const JsonValue *array;
    const JsonValue *v;

    g_assert_cmpstr(json_doc_name(doc), ==, "model.json");
    g_assert_cmpstr(json_doc_format(doc), ==, "f");
    g_assert_cmpint(json_int64(doc, root, "i", -5, 5), ==, -3);
    g_assert_cmpfloat(json_double(doc, root, "d", 0, 1), ==, 0.1);
    g_assert_true(json_bool(doc, root, "t"));
    g_assert_false(json_bool(doc, root, "f"));
    g_assert_cmpstr(json_string(doc, root, "s"), ==, "h\xc3\xa4");
    g_assert_cmpint(json_enum(doc, root, "e", dtypes), ==, 1);
    object = json_object(doc, root, "o");
    g_assert_cmpint(json_int64(doc, object, "x", 1, 1), ==, 1);
    json_object_end(doc, object);
    array = json_array(doc, root, "a");
    g_assert_cmpuint(json_length(array), ==, 3);
    v = json_first(array);
    g_assert_cmpint(json_value_int64(doc, v, 0, 9), ==, 1);
    g_assert_null(json_key(v));
    v = json_next(v);
    g_assert_true(json_is_array(v));
    g_assert_null(json_first(v));
    v = json_next(v);
    g_assert_cmpstr(json_value_string(doc, v), ==, "z");
    g_assert_null(json_next(v));
    g_assert_null(json_object_or_null(doc, root, "n"));
    g_assert_true(json_is_null(json_member(doc, root, "n")));
    g_assert_cmpfloat(json_value_double(doc, json_member(doc, root, "m"), 0, 9), ==, 7);
    g_assert_true(json_has(doc, root, "ignored"));
    g_assert_false(json_has(doc, root, "absent"));
    json_ignore(doc, root, "ignored");
    json_ignore(doc, root, "absent");
    json_object_end(doc, root);
    assert_finishes(doc, NULL);
}

static void
test_fallbacks_are_for_absent_keys(void)
{
    static const char *const names[] = {"a", "b", NULL};
    g_autoptr(JsonDoc) doc =
        parse("{\"i\":1,\"d\":2,\"b\":true,\"s\":\"x\",\"e\":\"a\",\"o\":{},\"a\":[]}");
    const JsonValue *root = json_doc_root(doc, NULL, 0);

    g_assert_cmpint(json_int64_or(doc, root, "none", 1, 5, 99), ==, 99); /* not checked */
    g_assert_cmpint(json_int64_or(doc, root, "i", 1, 5, 99), ==, 1);
    g_assert_cmpfloat(json_double_or(doc, root, "none", 1, 5, NAN), !=, 0);
    g_assert_cmpfloat(json_double_or(doc, root, "d", 1, 5, 99), ==, 2);
    g_assert_true(json_bool_or(doc, root, "none", true));
    g_assert_false(json_bool_or(doc, root, "none", false));
    g_assert_true(json_bool_or(doc, root, "b", false));
    g_assert_null(json_string_or(doc, root, "none", NULL));
    g_assert_cmpstr(json_string_or(doc, root, "none", "f"), ==, "f");
    g_assert_cmpstr(json_string_or(doc, root, "s", "f"), ==, "x");
    g_assert_cmpint(json_enum_or(doc, root, "none", names, -1), ==, -1);
    g_assert_cmpint(json_enum_or(doc, root, "e", names, -1), ==, 0);
    g_assert_null(json_object_or_null(doc, root, "none"));
    g_assert_nonnull(json_object_or_null(doc, root, "o"));
    g_assert_null(json_array_or_null(doc, root, "none"));
    g_assert_nonnull(json_array_or_null(doc, root, "a"));
    g_assert_null(json_member(doc, root, "none"));
    assert_finishes(doc, NULL);
}

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

/* --- files --- */

static void
test_loads_files(void)
{
    g_autofree char *folder = g_dir_make_tmp("degas-XXXXXX", NULL);
    g_autofree char *path = g_build_filename(folder, "m.json", NULL);
    g_autofree char *expect = g_strconcat(path, ":2:1: $.a: expected a string, got 1", NULL);
    g_autoptr(GError) error = NULL;
    g_autoptr(GError) none = NULL;
    g_autoptr(GError) is_folder = NULL;
    g_autoptr(GError) endless = NULL;
    g_autoptr(JsonDoc) doc = NULL;

    g_assert_true(g_file_set_contents(path, "{\"a\":\n1}", -1, NULL));
    doc = json_doc_load(path, &error);
    g_assert_no_error(error);
    json_string(doc, json_doc_root(doc, NULL, 0), "a");
    g_assert_false(json_doc_finish(doc, &error));
    g_assert_cmpstr(error->message, ==, expect);
    g_remove(path);
    g_assert_null(json_doc_load(path, &none));
    g_assert_error(none, G_FILE_ERROR, G_FILE_ERROR_NOENT);
    g_assert_null(json_doc_load(folder, &is_folder));
    g_assert_error(is_folder, G_FILE_ERROR, G_FILE_ERROR_ISDIR);
    g_assert_null(json_doc_load("/dev/zero", &endless));
    g_assert_error(endless, G_FILE_ERROR, G_FILE_ERROR_FAILED);
    g_rmdir(folder);
}

/* --- numbers --- */

static void
test_doubles_are_exact(void)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(4);
    g_autoptr(GString) text = g_string_new("[0");
    g_autoptr(JsonDoc) doc = NULL;
    static const size_t n = 20000;
    g_autofree double *expect = g_new0(double, n + 1);
    size_t i = 0;

    for (size_t j = 1; j <= n; j++) {
        char digits[G_ASCII_DTOSTR_BUF_SIZE];

        expect[j] = ldexp(g_rand_double(random) - 0.5, g_rand_int_range(random, -1000, 1000));
        g_string_append_printf(text, ",%s",
                               g_ascii_formatd(digits, sizeof(digits), "%.17g", expect[j]));
    }
    g_string_append_c(text, ']');
    doc = parse(text->str);
    for (const JsonValue *v = json_first(json_doc_root(doc, NULL, 0)); v != NULL; v = json_next(v))
        g_assert_cmpfloat(json_value_double(doc, v, -DBL_MAX, DBL_MAX), ==, expect[i++]);
    g_assert_cmpuint(i, ==, n + 1);
    assert_finishes(doc, NULL);
}

/* cJSON reads at most 63 characters of a number. */
static void
test_long_numbers_are_exact(void)
{
    g_autoptr(JsonDoc) doc = parse(
        "{\"a\":[-0.000000000000000000000000000000000000000000000000000000000000000000000000000001,"
        "2],"
        "\"b\":0.1000000000000000055511151231257827021181583404541015625,"
        "\"c\":80000000000000000000000000000000000000000000000000000000000000000000000000000000,"
        "\"s\":"
        "\"80000000000000000000000000000000000000000000000000000000000000000000000000000000\","
        "\"d\":5.00000000000000000000000000000000000000000000000000000000000000000000000000}");
    const JsonValue *root = json_doc_root(doc, NULL, 0);
    const JsonValue *first = json_first(json_array(doc, root, "a"));

    g_assert_cmpfloat(json_value_double(doc, first, -1, 0), ==, -1e-78);
    g_assert_cmpint(json_value_int64(doc, json_next(first), 0, 9), ==, 2);
    g_assert_cmpfloat(json_double(doc, root, "b", 0, 1), ==, 0.1);
    g_assert_cmpfloat(json_double(doc, root, "c", 0, INFINITY), ==, 8e79);
    g_assert_cmpuint(strlen(json_string(doc, root, "s")), ==, 80);
    g_assert_cmpint(json_int64(doc, root, "d", 5, 5), ==, 5);
    json_object_end(doc, root);
    assert_finishes(doc, NULL);
}

static void
test_ignores_the_locale(void)
{
    g_autofree char *old = g_strdup(setlocale(LC_NUMERIC, NULL));
    g_autoptr(JsonDoc) doc = NULL;
    double value;

    if (setlocale(LC_NUMERIC, "de_DE.UTF-8") == NULL) {
        g_test_skip("the locale de_DE.UTF-8 is not installed");
        return;
    }
    doc = json_doc_parse("x", "[1.5]", 5, NULL);
    value = doc == NULL ? 0 : json_value_double(doc, json_first(json_doc_root(doc, NULL, 0)), 0, 9);
    setlocale(LC_NUMERIC, old);
    g_assert_cmpfloat(value, ==, 1.5);
}

/* --- big documents --- */

/* Quadratic, each of these would take minutes. */
static void
test_big_documents_are_linear(void)
{
    static const int n = 200000;
    g_autoptr(GString) text = g_string_new("{\"list\":[");
    g_autoptr(JsonDoc) doc = NULL;
    const JsonValue *root;
    const JsonValue *map;
    int64_t sum = 0;

    for (int i = 0; i < n; i++)
        g_string_append_printf(text, "%s{\"v\":%d}", i > 0 ? "," : "", i);
    g_string_append(text, "],\"map\":{");
    for (int i = 0; i < n; i++)
        g_string_append_printf(text, "%s\"k%d\":%d", i > 0 ? "," : "", (i * 7919) % n, i);
    g_string_append(text, "}}");
    doc = parse(text->str);
    root = json_doc_root(doc, NULL, 0);
    map = json_object(doc, root, "map");
    g_assert_cmpuint(json_length(map), ==, (size_t)n);
    for (const JsonValue *v = json_first(json_array(doc, root, "list")); v != NULL;
         v = json_next(v)) {
        sum += json_int64(doc, v, "v", 0, n);
        sum += json_int64_or(doc, v, "absent", 0, n, 0);
        json_object_end(doc, v);
    }
    for (int i = 0; i < n; i++) {
        char key[16];

        g_snprintf(key, sizeof(key), "k%d", i);
        sum -= json_int64(doc, map, key, 0, n);
    }
    g_assert_cmpint(sum, ==, 0);
    json_object_end(doc, map);
    json_object_end(doc, root);
    assert_finishes(doc, NULL);
}

static void
test_big_objects_find_and_miss(void)
{
    for (int n = 14; n <= 20; n++) { /* around the limit between searching and bisecting */
        g_autoptr(GString) text = g_string_new("{");
        g_autoptr(JsonDoc) doc = NULL;
        const JsonValue *root;

        for (int i = 0; i < n; i++)
            g_string_append_printf(text, "%s\"k%02d\":%d", i > 0 ? "," : "", (i * 3 + 1) % n, i);
        g_string_append_c(text, '}');
        /* 3 and n must be coprime for the keys to differ */
        if (n % 3 == 0)
            continue;
        doc = parse(text->str);
        root = json_doc_root(doc, NULL, 0);
        for (int i = 0; i < n; i++) {
            g_autofree char *key = g_strdup_printf("k%02d", (i * 3 + 1) % n);

            g_assert_cmpint(json_int64(doc, root, key, 0, n), ==, i);
        }
        g_assert_false(json_has(doc, root, "a"));
        g_assert_false(json_has(doc, root, "k"));
        g_assert_false(json_has(doc, root, "k001"));
        g_assert_false(json_has(doc, root, "z"));
        json_object_end(doc, root);
        assert_finishes(doc, NULL);
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/base/json/reads-every-kind", test_reads_every_kind);
    g_test_add_func("/base/json/fallbacks-are-for-absent-keys", test_fallbacks_are_for_absent_keys);
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
    g_test_add_func("/base/json/loads-files", test_loads_files);
    g_test_add_func("/base/json/doubles-are-exact", test_doubles_are_exact);
    g_test_add_func("/base/json/long-numbers-are-exact", test_long_numbers_are_exact);
    g_test_add_func("/base/json/ignores-the-locale", test_ignores_the_locale);
    g_test_add_func("/base/json/big-documents-are-linear", test_big_documents_are_linear);
    g_test_add_func("/base/json/big-objects-find-and-miss", test_big_objects_find_and_miss);
    return g_test_run();
}
