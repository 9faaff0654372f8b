/* tests/schedule/files.h - a file for one test: written to a private folder, removed after. */
#pragma once

#include <glib.h>
#include <glib/gstdio.h>

/* (owned) path of a new file with @text. */
static inline char *
file_with(const char *text, gssize n_bytes)
{
    g_autoptr(GError) error = NULL;
    g_autofree char *path = NULL;
    const int fd = g_file_open_tmp("degas-test-XXXXXX.json", &path, &error);

    g_assert_no_error(error);
    g_close(fd, NULL);
    g_file_set_contents(path, text, n_bytes, &error);
    g_assert_no_error(error);
    return g_steal_pointer(&path);
}
