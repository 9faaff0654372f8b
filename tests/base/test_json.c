/* Tests of the reading half of base/json.h: getters, files, numbers, big documents. */
#include "base/json.h"

#include <float.h>
#include <glib/gstdio.h>
#include <locale.h>
#include <math.h>
#include <string.h>

#include "tests/base/json_doc.h"

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
    g_test_add_func("/base/json/loads-files", test_loads_files);
    g_test_add_func("/base/json/doubles-are-exact", test_doubles_are_exact);
    g_test_add_func("/base/json/long-numbers-are-exact", test_long_numbers_are_exact);
    g_test_add_func("/base/json/ignores-the-locale", test_ignores_the_locale);
    g_test_add_func("/base/json/big-documents-are-linear", test_big_documents_are_linear);
    g_test_add_func("/base/json/big-objects-find-and-miss", test_big_objects_find_and_miss);
    return g_test_run();
}
