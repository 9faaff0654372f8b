/*
 * tests/executor/emulated.h - the cuda backend on an emulated GPU, for tests.
 */
#pragma once

#include "executor/device/backend.h"
#include "executor/device/plugin.h"

/* From now on device cuda is the emulated one, or, where DEGAS_TEST_GPU is set (gpu_check.sh), the
 * real one; false, and the test is skipped, where the emulated one was not built. */
static inline bool
emulated_gpu_or_skip(void)
{
    if (g_getenv("DEGAS_TEST_GPU") != NULL)
        return true;
    g_autofree char *program = g_file_read_link("/proc/self/exe", NULL);
    g_autofree char *folder = g_path_get_dirname(program);
    g_autofree char *plugins = g_build_filename(folder, "..", "..", "emulated", NULL);
    g_autofree char *plugin = g_build_filename(plugins, "degas-cuda.so", NULL);

    if (!g_file_test(plugin, G_FILE_TEST_EXISTS)) {
        g_test_skip("the emulated GPU was not built: it needs the CUDA toolkit's headers and g++");
        return false;
    }
    g_setenv("DEGAS_PLUGIN_DIR", plugins, TRUE);
    return true;
}

/* What a counter of the emulated device says, fake_n_waits() or fake_n_downloads(); -1: it is a
 * real one. */
static inline int64_t
emulated_count(const char *counter)
{
    int64_t (*count)(void) = NULL;

    *(void **)&count = exec_plugin_symbol("cuda", counter, "a test", NULL);
    return count == NULL ? -1 : count();
}
