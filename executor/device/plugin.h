/*
 * executor/device/plugin.h - plugins: parts of degas that need a large library, opened on demand.
 *
 * degas-cuda.so (CUDA, cuBLAS, and NCCL where a run wants it) and degas-mpi.so are never linked
 * into the program: loading them would cost 130 ms and 2 ms at every start, and where a driver or a
 * library is missing the program would not start at all.
 *
 * A plugin is looked for beside the program and then in ../lib/degas, where it is installed; or
 * only in the folder that DEGAS_PLUGIN_DIR names.  It exports `degas_plugin_abi`, which must equal
 * EXEC_PLUGIN_ABI: a plugin of another build is refused and not called.
 *
 * Private to executor/, but for exec_plugin_path().
 */
#pragma once

#include "executor/device/backend.h"

/* Raised whenever a struct changes that program and plugins exchange. */
#define EXEC_PLUGIN_ABI 12

/* Every plugin defines this once. */
#define EXEC_PLUGIN_DEFINE_ABI                                                                     \
    extern const int degas_plugin_abi;                                                             \
    const int degas_plugin_abi = EXEC_PLUGIN_ABI;

/* Returns: (owned) the path of the plugin degas-@name.so, which can be opened; NULL on
 * EXEC_ERROR_MISSING, as exec_plugin_symbol(). */
char *exec_plugin_path(const char *name, const char *wanted_by, GError **error);

/* What the plugin of a kind of device exports under this name; backend.c makes
 * exec_backend_open_with(), exec_backend_n_devices() and exec_device_info() of it. */
#define EXEC_DEVICE_PLUGIN "exec_device_plugin"
typedef struct {
    ExecBackend *(*open)(const ExecBackendOptions *options, GError **error);
    int32_t (*n_devices)(GError **error);
    bool (*info)(int device, ExecDeviceInfo *info, GError **error);
} ExecDevicePlugin;

/*
 * Opens the plugin degas-@name.so unless it is open, and looks @symbol up in it.  Returns:
 * (borrowed) the symbol's address; the plugin stays open until the process ends.  NULL on
 * EXEC_ERROR_MISSING: one sentence, which begins with @wanted_by ("device cuda", "transport mpi"),
 * says that the plugin was not built, which library it lacks, or that it belongs to another build.
 *
 * May be called from any thread.
 */
void *exec_plugin_symbol(const char *name, const char *symbol, const char *wanted_by,
                         GError **error);
