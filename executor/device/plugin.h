/*
 * executor/device/plugin.h - parts of degas that need a large library of their own, opened on
 * demand.
 *
 * degas-cuda.so (CUDA, cuBLAS, and NCCL where a run wants it) and degas-mpi.so are never linked
 * into the program: loading them costs 130 ms and 2 ms at every start, and where a driver or a
 * library is missing the program would not start at all.
 *
 * A plugin lies beside the program or, installed, in ../lib/degas from it; DEGAS_PLUGIN_DIR names
 * another folder.  It exports `degas_plugin_abi`, which must equal EXEC_PLUGIN_ABI: a plugin of
 * another build is refused, not called.
 *
 * Private to executor/.
 */
#ifndef EXECUTOR_DEVICE_PLUGIN_H
#define EXECUTOR_DEVICE_PLUGIN_H

#include "executor/device/backend.h"

G_BEGIN_DECLS

/* Raised when a struct that crosses the border changes. */
#define EXEC_PLUGIN_ABI 9

/* Every plugin defines this once. */
#define EXEC_PLUGIN_DEFINE_ABI                                                                     \
    extern const int degas_plugin_abi;                                                             \
    const int degas_plugin_abi = EXEC_PLUGIN_ABI;

/* What the plugin of a kind of device exports, for backend.c: its device, their number, their
 * facts; as the functions of backend.h. */
#define EXEC_DEVICE_PLUGIN "exec_device_plugin"
typedef struct {
    ExecBackend *(*open)(const ExecBackendOptions *options, GError **error);
    int32_t (*n_devices)(GError **error);
    bool (*info)(int device, ExecDeviceInfo *info, GError **error);
} ExecDevicePlugin;

/*
 * Opens plugin @name ("cuda", "mpi") unless it is open and looks @symbol up; it stays open until
 * the process ends.  @wanted_by begins the message: "device cuda", "transport mpi".
 * NULL on EXEC_ERROR_MISSING: one sentence says whether the plugin was not built, which library it
 * lacks, or that it belongs to another build.
 *
 * Threads: may be called from any.
 */
void *exec_plugin_symbol(const char *name, const char *symbol, const char *wanted_by,
                         GError **error);

G_END_DECLS

#endif /* EXECUTOR_DEVICE_PLUGIN_H */
