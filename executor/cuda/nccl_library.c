#include "executor/cuda/nccl_comm.h"

#include <dlfcn.h>
#include <string.h>

#define LIBRARY "libnccl.so.2"

char *
exec_nccl_version_text(int version)
{
    return g_strdup_printf("%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

/* False: @missing is one that the library has not. */
static bool
look_up(void *library, ExecNccl *nccl, const char **missing)
{
    const struct {
        const char *name;
        void *to;
    } functions[] = {
#define FUNCTION(f) {"nccl" #f, &nccl->f}
        FUNCTION(GetVersion),   FUNCTION(GetUniqueId),   FUNCTION(CommInitRankConfig),
        FUNCTION(CommFinalize), FUNCTION(CommDestroy),   FUNCTION(CommAbort),
        FUNCTION(AllReduce),    FUNCTION(AllGather),     FUNCTION(CommGetAsyncError),
        FUNCTION(Broadcast),    FUNCTION(Send),          FUNCTION(GetErrorString),
        FUNCTION(Recv),         FUNCTION(GroupStart),    FUNCTION(GetLastError),
        FUNCTION(GroupEnd),     FUNCTION(ReduceScatter),
#undef FUNCTION
    };

    for (size_t i = 0; i < G_N_ELEMENTS(functions); i++) {
        void *found = dlsym(library, functions[i].name);
        memcpy(functions[i].to, &found, sizeof found);
        if (found == NULL && *missing == NULL)
            *missing = functions[i].name;
    }
    return *missing == NULL;
}

static bool
open_library(ExecNccl *nccl, GError **error)
{
    const char *missing = NULL;
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

    if (library == NULL) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MISSING, "transport nccl: NCCL is not here (%s)",
                    dlerror());
        return false;
    }
    look_up(library, nccl, &missing);
    if (nccl->GetVersion == NULL || nccl->GetVersion(&nccl->version) != EXEC_NCCL_SUCCESS)
        nccl->version = 0;
    if (nccl->version < EXEC_NCCL_VERSION || missing != NULL) {
        g_autofree char *found = exec_nccl_version_text(nccl->version);
        g_autofree char *needed = exec_nccl_version_text(EXEC_NCCL_VERSION);
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MISSING,
                    "transport nccl: " LIBRARY " is NCCL %s, %s or newer is needed%s%s", found,
                    needed, missing != NULL ? "; it has no " : "", missing != NULL ? missing : "");
        dlclose(library);
        return false;
    }
    return true;
}

const ExecNccl *
exec_nccl_library(GError **error)
{
    static GMutex mutex;
    static ExecNccl nccl;
    static bool is_open;
    g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&mutex);

    is_open = is_open || open_library(&nccl, error);
    return is_open ? &nccl : NULL;
}
