/* Tests of executor/device/plugin.h: a plugin that is absent, broken, foreign, or right. */
#include "executor/device/plugin.h"

#include <glib/gstdio.h>

/* Compiles @source into the plugin "test" of a fresh folder; false where there is no compiler. */
static bool
build_plugin(const char *folder, const char *source)
{
    g_autofree char *c = g_build_filename(folder, "plugin.c", NULL);
    g_autofree char *so = g_build_filename(folder, "degas-test.so", NULL);
    const char *argv[] = {"cc", "-shared", "-fPIC", "-o", so, c, NULL};
    int status = 0;

    g_assert_true(g_file_set_contents(c, source, -1, NULL));
    return g_spawn_sync(NULL, (char **)argv, NULL, G_SPAWN_SEARCH_PATH, NULL, NULL, NULL, NULL,
                        &status, NULL) &&
           status == 0;
}

static void
remove_folder(const char *folder)
{
    g_autofree char *c = g_build_filename(folder, "plugin.c", NULL);
    g_autofree char *so = g_build_filename(folder, "degas-test.so", NULL);

    g_unlink(c);
    g_unlink(so);
    g_rmdir(folder);
}

/* The message of looking up "answer" in plugin "test"; NULL when it is found and is 42. */
static char *
look_up(const char *folder)
{
    g_autoptr(GError) error = NULL;

    g_setenv("DEGAS_PLUGIN_DIR", folder, TRUE);
    const int *answer = exec_plugin_symbol("test", "answer", "device test", &error);
    if (answer != NULL) {
        g_assert_no_error(error);
        g_assert_cmpint(*answer, ==, 42);
        return NULL;
    }
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_MISSING);
    return g_strdup(error->message);
}

static void
test_says_what_is_wrong(void)
{
    static const struct {
        const char *source, *expect; /* NULL: no file; a pattern */
    } cases[] = {
        {NULL, "device test: the plugin degas-test.so is not built*"},
        {"extern int nobody_has_this(void); int f(void) { return nobody_has_this(); }",
         "device test: degas-test.so cannot be opened: *nobody_has_this*"},
        {"const int answer = 42;", "device test: degas-test.so belongs to another build*is 0,*"},
        {"const int answer = 42, degas_plugin_abi = -7;",
         "device test: degas-test.so belongs to another build*is -7,*"},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *folder = g_dir_make_tmp("degas-plugin-XXXXXX", NULL);
        if (cases[i].source != NULL && !build_plugin(folder, cases[i].source)) {
            g_test_skip("no C compiler at run time");
            return;
        }
        g_autofree char *message = look_up(folder);
        remove_folder(folder);
        g_assert_nonnull(message);
        g_assert_true(g_pattern_match_simple(cases[i].expect, message));
    }
}

static void
test_finds_and_keeps(void)
{
    g_autofree char *folder = g_dir_make_tmp("degas-plugin-XXXXXX", NULL);
    g_autofree char *source =
        g_strdup_printf("const int answer = 42, degas_plugin_abi = %d;", EXEC_PLUGIN_ABI);
    g_autoptr(GError) error = NULL;

    if (!build_plugin(folder, source)) {
        g_test_skip("no C compiler at run time");
        return;
    }
    g_assert_null(look_up(folder));
    g_assert_null(look_up("/nonexistent")); /* it is open already */
    remove_folder(folder);
    g_assert_null(exec_plugin_symbol("test", "question", "device test", &error));
    g_assert_error(error, EXEC_ERROR, EXEC_ERROR_MISSING);
    g_assert_true(g_pattern_match_simple("*has no question*", error->message));
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/executor/plugin/says-what-is-wrong", test_says_what_is_wrong);
    g_test_add_func("/executor/plugin/finds-and-keeps", test_finds_and_keeps);
    return g_test_run();
}
