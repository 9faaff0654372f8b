#include "executor/device/plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include "base/text.h"

/* Returns: (owned, nullable) where the plugin's file is: beside the running program, or where it is
 * installed. */
static char *
find_plugin(const char *file)
{
    static const char *const folders[] = {"", "../lib/degas"};
    const char *forced = g_getenv("DEGAS_PLUGIN_DIR");
    g_autofree char *program = g_file_read_link("/proc/self/exe", NULL);
    g_autofree char *own = program == NULL ? g_strdup(".") : g_path_get_dirname(program);

    for (size_t i = 0; i < (forced != NULL ? 1 : G_N_ELEMENTS(folders)); i++) {
        g_autofree char *path =
            g_build_filename(forced != NULL ? forced : own, folders[i], file, NULL);
        if (access(path, F_OK) == 0)
            return g_steal_pointer(&path);
    }
    return NULL;
}

static void *
open_plugin(const char *name, const char *wanted_by, GError **error)
{
    g_autofree char *file = g_strdup_printf("degas-%s.so", name);
    g_autofree char *path = find_plugin(file);

    if (path == NULL)
        return EXEC_FAIL_NULL(error, EXEC_ERROR_MISSING,
                              "%s: the plugin %s is not built (make prints what it found)",
                              wanted_by, file);
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (plugin == NULL) {
        g_autofree char *why = text_escape(dlerror(), 200);
        return EXEC_FAIL_NULL(error, EXEC_ERROR_MISSING, "%s: %s cannot be opened: %s", wanted_by,
                              file, why);
    }
    const int *abi = dlsym(plugin, "degas_plugin_abi");
    if (abi == NULL || *abi != EXEC_PLUGIN_ABI) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MISSING,
                    "%s: %s belongs to another build of degas (its interface is %d, this "
                    "program's %d); run make",
                    wanted_by, file, abi != NULL ? *abi : 0, EXEC_PLUGIN_ABI);
        dlclose(plugin);
        return NULL;
    }
    return plugin;
}

char *
exec_plugin_path(const char *name, const char *wanted_by, GError **error)
{
    g_autofree char *file = g_strdup_printf("degas-%s.so", name);

    if (exec_plugin_symbol(name, "degas_plugin_abi", wanted_by, error) == NULL)
        return NULL;
    return find_plugin(file);
}

void *
exec_plugin_symbol(const char *name, const char *symbol, const char *wanted_by, GError **error)
{
    static GMutex mutex;
    static GHashTable *open; /* name -> handle; never freed: plugins are not closed */
    G_GNUC_UNUSED g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&mutex);

    if (open == NULL)
        open = g_hash_table_new(g_str_hash, g_str_equal);
    void *plugin = g_hash_table_lookup(open, name);
    if (plugin == NULL) {
        plugin = open_plugin(name, wanted_by, error);
        if (plugin == NULL)
            return NULL;
        g_hash_table_insert(open, g_strdup(name), plugin);
    }
    void *found = dlsym(plugin, symbol);
    if (found == NULL)
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MISSING,
                    "%s: degas-%s.so has no %s; it belongs to another build", wanted_by, name,
                    symbol);
    return found;
}
