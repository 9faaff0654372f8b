/* Tests of base/json_yaml.h: what YAML becomes, where it stands, and what is refused. */
#include "base/json_yaml.h"

#include <string.h>

#include "base/json.h"

static void
test_is_the_json_that_it_says(void)
{
    static const struct {
        const char *yaml, *json;
    } cases[] = {
        {"a: 1", "{\"a\": 1}"},
        {"{\"a\": [1, true]}", "{\"a\": [1, true]}"}, /* JSON is YAML */
        {"a: 80 GiB", "{\"a\":\"80 GiB\"}"},
        {"a: [1, -2.5e3, 1.2.3, 007, .5, +1]",
         "{\"a\":[1,-2.5e3,\"1.2.3\",\"007\",\".5\",\"+1\"]}"},
        {"a: ~\nb:\nc: null\nd: no\ne: 'true'",
         "{\"a\":null,\"b\":null,\"c\":null,\"d\":\"no\",\"e\":\"true\"}"},
        {"# of lines\na:\n  - b: 1\n    c: \"x\\\"y\"\n  - 2\n",
         "{\"a\":[{\"b\":1,\"c\":\"x\\\"y\"},2]}"},
        {"1: 2", "{\"1\":2}"}, /* a key is a text */
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        size_t n;
        g_autofree char *json =
            json_yaml_convert("a.yaml", cases[i].yaml, strlen(cases[i].yaml), &n, &error);

        g_assert_no_error(error);
        g_assert_cmpuint(n, ==, strlen(json));
        g_auto(GStrv) got = g_strsplit_set(json, " \n", -1);
        g_auto(GStrv) want = g_strsplit_set(cases[i].json, " \n", -1);
        g_autofree char *got_text = g_strjoinv("", got), *want_text = g_strjoinv("", want);
        g_assert_cmpstr(got_text, ==, want_text);
    }
}

static void
test_messages_name_the_line_of_the_file(void)
{
    const char *yaml = "# comment\nfirst: 1\n\nlist:\n  - one\n  - 2\n";
    g_autoptr(GError) error = NULL;
    size_t n;
    g_autofree char *json = json_yaml_convert("a.yaml", yaml, strlen(yaml), &n, &error);
    g_autoptr(JsonDoc) doc = json_doc_parse("a.yaml", json, n, &error);

    g_assert_no_error(error);
    json_value_int64(doc, json_first(json_array(doc, json_doc_root(doc, NULL, 1), "list")), 0, 9);
    g_assert_false(json_doc_finish(doc, &error));
    g_assert_nonnull(strstr(error->message, "a.yaml:5:5: $.list[0]: "));
}

static void
test_refuses(void)
{
    static const struct {
        const char *yaml, *message;
    } cases[] = {
        {"a: [1", "no YAML"},
        {"a: 1\n b: 2", "no YAML"},
        {"a: &x 1\nb: *x", "a.yaml:2: anchors"},
        {"a: !!str 1", "a.yaml:1: tags"},
        {"a: !x {}", "a.yaml:1: tags"},
        {"? [1]\n: 2", "a.yaml:1: a key is a text"},
        {"a: 1\n---\nb: 2", "a second document"},
        {"a: \"\\0\"", "a NUL byte"},
        {"a: \xff\xfe", "no YAML"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autoptr(GError) error = NULL;
        size_t n;

        g_assert_null(
            json_yaml_convert("a.yaml", cases[i].yaml, strlen(cases[i].yaml), &n, &error));
        g_assert_error(error, JSON_ERROR, JSON_ERROR_INVALID);
        g_test_message("%s", error->message);
        g_assert_nonnull(strstr(error->message, cases[i].message));
    }
    g_autofree char *deep = g_strnfill(JSON_MAX_DEPTH + 1, '[');
    g_autoptr(GError) error = NULL;
    size_t n;
    g_assert_null(json_yaml_convert("a.yaml", deep, strlen(deep), &n, &error));
    g_assert_error(error, JSON_ERROR, JSON_ERROR_INVALID);
}

static void
test_is_known_by_its_name(void)
{
    g_assert_true(json_yaml_is_name("a.yaml") && json_yaml_is_name("/x/a.yml"));
    g_assert_false(json_yaml_is_name("a.json") || json_yaml_is_name("-"));
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/base/json-yaml/is-the-json-that-it-says", test_is_the_json_that_it_says);
    g_test_add_func("/base/json-yaml/messages-name-the-line-of-the-file",
                    test_messages_name_the_line_of_the_file);
    g_test_add_func("/base/json-yaml/refuses", test_refuses);
    g_test_add_func("/base/json-yaml/is-known-by-its-name", test_is_known_by_its_name);
    return g_test_run();
}
