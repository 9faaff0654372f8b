/* Tests of base/embedded.h: what the build packed is what lies in the source tree. */
#include "base/embedded.h"

#include <string.h>

#include "base/file.h"

static void
test_files_are_sorted_and_terminated(void)
{
    size_t n_files;
    const EmbeddedFile *files = embedded_files(&n_files);

    g_assert_cmpuint(n_files, >, 0);
    for (size_t i = 0; i < n_files; i++) {
        g_assert_cmpint(*files[i].end, ==, 0);
        g_assert_cmpuint(strlen(files[i].text), ==, (size_t)(files[i].end - files[i].text));
        g_assert_false(g_path_is_absolute(files[i].path));
        if (i > 0)
            g_assert_cmpstr(files[i - 1].path, <, files[i].path);
    }
}

static void
test_bytes_are_those_of_the_source(void)
{
    size_t n_files;
    const EmbeddedFile *files = embedded_files(&n_files);

    if (!g_file_test("base/embedded.h", G_FILE_TEST_EXISTS)) {
        g_test_skip("not run from the root of the source tree");
        return;
    }
    for (size_t i = 0; i < n_files; i++) {
        g_autoptr(GError) error = NULL;
        g_autofree char *text = NULL;
        size_t n_bytes;

        g_assert_true(file_read(files[i].path, &text, &n_bytes, &error));
        g_assert_no_error(error);
        g_assert_cmpuint(n_bytes, ==, (size_t)(files[i].end - files[i].text));
        g_assert_cmpint(memcmp(text, files[i].text, n_bytes), ==, 0);
    }
}

static void
test_finds_exact_paths_only(void)
{
    size_t n_files;
    const EmbeddedFile *files = embedded_files(&n_files);

    for (size_t i = 0; i < n_files; i++) {
        g_autofree char *cut = g_strndup(files[i].path, strlen(files[i].path) - 1);
        g_autofree char *dotted = g_strconcat("./", files[i].path, NULL);

        g_assert_true(embedded_find(files[i].path) == &files[i]);
        g_assert_null(embedded_find(cut));
        g_assert_null(embedded_find(dotted));
    }
    g_assert_null(embedded_find(""));
    g_assert_null(embedded_find("models/../models/none.json"));
}

static void
test_names_are_cut_at_both_ends(void)
{
    g_autoptr(GPtrArray) all = embedded_names("", "");
    g_autoptr(GPtrArray) models = embedded_names("models/", ".json");
    g_autoptr(GPtrArray) none = embedded_names("models/", ".none");
    size_t n_files;
    const EmbeddedFile *files = embedded_files(&n_files);
    size_t n_models = 0;

    g_assert_cmpuint(all->len, ==, n_files);
    g_assert_cmpuint(none->len, ==, 0);
    for (size_t i = 0; i < n_files; i++) {
        g_assert_cmpstr(all->pdata[i], ==, files[i].path);
        if (g_str_has_prefix(files[i].path, "models/") &&
            g_str_has_suffix(files[i].path, ".json")) {
            g_autofree char *path =
                g_strconcat("models/", (const char *)models->pdata[n_models++], ".json", NULL);

            g_assert_cmpstr(path, ==, files[i].path);
        }
    }
    g_assert_cmpuint(models->len, ==, n_models);
}

static void
test_prefix_and_suffix_must_not_overlap(void)
{
    size_t n_files;
    const EmbeddedFile *files = embedded_files(&n_files);

    /* both match the whole path, which is not long enough for the two together */
    for (size_t i = 0; i < n_files; i++) {
        g_autoptr(GPtrArray) none = embedded_names(files[i].path, files[i].path);
        g_autoptr(GPtrArray) empty = embedded_names(files[i].path, "");

        g_assert_cmpuint(none->len, ==, 0);
        g_assert_cmpuint(empty->len, ==, 1);
        g_assert_cmpstr(empty->pdata[0], ==, "");
    }
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/base/embedded/files-are-sorted-and-terminated",
                    test_files_are_sorted_and_terminated);
    g_test_add_func("/base/embedded/bytes-are-those-of-the-source",
                    test_bytes_are_those_of_the_source);
    g_test_add_func("/base/embedded/finds-exact-paths-only", test_finds_exact_paths_only);
    g_test_add_func("/base/embedded/names-are-cut-at-both-ends", test_names_are_cut_at_both_ends);
    g_test_add_func("/base/embedded/prefix-and-suffix-must-not-overlap",
                    test_prefix_and_suffix_must_not_overlap);
    return g_test_run();
}
