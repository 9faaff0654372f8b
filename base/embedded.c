#include "base/embedded.h"

#include <string.h>

/* Defined by the generated build/<configuration>/embedded_data.S; sorted by path. */
extern const EmbeddedFile embedded_data[];
extern const char embedded_data_end[];

const EmbeddedFile *
embedded_files(size_t *n_files)
{
    *n_files = (size_t)(embedded_data_end - (const char *)embedded_data) / sizeof(EmbeddedFile);
    return embedded_data;
}

const EmbeddedFile *
embedded_find(const char *path)
{
    size_t n_files;
    const EmbeddedFile *files = embedded_files(&n_files);

    g_return_val_if_fail(path != NULL, NULL);

    for (size_t i = 0; i < n_files; i++) {
        if (strcmp(files[i].path, path) == 0)
            return &files[i];
    }
    return NULL;
}

GPtrArray *
embedded_names(const char *prefix, const char *suffix)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    size_t n_files;
    const EmbeddedFile *files = embedded_files(&n_files);

    g_return_val_if_fail(prefix != NULL && suffix != NULL, NULL);

    for (size_t i = 0; i < n_files; i++) {
        size_t n_path = strlen(files[i].path);
        size_t n_cut = strlen(prefix) + strlen(suffix);

        if (n_path >= n_cut && g_str_has_prefix(files[i].path, prefix) &&
            g_str_has_suffix(files[i].path, suffix))
            g_ptr_array_add(names, g_strndup(files[i].path + strlen(prefix), n_path - n_cut));
    }
    return g_steal_pointer(&names);
}
