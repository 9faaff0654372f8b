/*
 * Tests of base/json.h without memory: each allocation whose size depends on the input fails in
 * turn.
 *
 * The functions below stand before GLib's in the link order; cJSON has hooks.
 */
#include "base/json.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

/* How many allocations still succeed; negative: all. */
static int n_left = -1;

static bool
fails(void)
{
    if (n_left < 0)
        return false;
    if (n_left == 0)
        return true;
    n_left--;
    return false;
}

gpointer
g_try_malloc(gsize n_bytes)
{
    return fails() ? NULL : malloc(n_bytes > 0 ? n_bytes : 1);
}

gpointer
g_try_malloc_n(gsize n, gsize size)
{
    return fails() ? NULL : calloc(n > 0 ? n : 1, size);
}

gpointer
g_try_realloc_n(gpointer memory, gsize n, gsize size)
{
    return fails() ? NULL : reallocarray(memory, n, size);
}

static void *
hooked_malloc(size_t n_bytes)
{
    return fails() ? NULL : malloc(n_bytes);
}

static void
test_every_allocation_may_fail(void)
{
    cJSON_Hooks hooks = {.malloc_fn = hooked_malloc, .free_fn = free};
    g_autoptr(GString) text = g_string_new("{\"list\":[");
    int n_failures = 0;
    bool is_done = false;

    /* more than 64 values, a big object, a number too long for cJSON */
    for (int i = 0; i < 70; i++)
        g_string_append(text, "0,");
    g_string_append(text, "0.000000000000000000000000000000000000000000000000000000000000000001]");
    for (int i = 0; i < 20; i++)
        g_string_append_printf(text, ",\"k%d\":\"v\"", i);
    g_string_append_c(text, '}');
    cJSON_InitHooks(&hooks);
    while (!is_done) {
        g_autoptr(GError) error = NULL;
        g_autoptr(JsonDoc) doc = NULL;

        n_left = n_failures;
        doc = json_doc_parse("x.json", text->str, text->len, &error);
        n_left = -1;
        is_done = doc != NULL;
        if (is_done) {
            g_assert_no_error(error);
            g_assert_cmpstr(json_string(doc, json_doc_root(doc, NULL, 0), "k19"), ==, "v");
        } else {
            g_assert_error(error, JSON_ERROR, JSON_ERROR_MEMORY);
            g_assert_nonnull(strstr(error->message, "memory"));
            n_failures++;
        }
    }
    cJSON_InitHooks(NULL);
    /* the copy, values twice, the copy for cJSON, 92 nodes, 40 strings of keys and values, the
     * index */
    g_assert_cmpint(n_failures, >, 130);
}

int
main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/base/json-faults/every-allocation-may-fail", test_every_allocation_may_fail);
    return g_test_run();
}
