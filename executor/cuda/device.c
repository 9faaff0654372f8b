#include "executor/cuda/cuda.h"

#include <dlfcn.h>
#include <stdio.h>

/*
 * What the clocks are just now, which the runtime does not tell.  The management library comes with
 * the driver; its header does not come with the toolkit, so its stable interface is declared here
 * [NVML API reference: nvmlDeviceGetClockInfo, nvmlClockType_t].
 */
enum {
    NVML_SUCCESS = 0,
    NVML_CLOCK_SM = 1,
    NVML_CLOCK_MEM = 2,
};

typedef struct {
    int (*init)(void);
    int (*shutdown)(void);
    int (*driver_version)(char *, unsigned);
    int (*device_at)(const char *, void **);
    int (*clock)(void *, int, unsigned *);
} Management;

static bool
open_management(void *library, Management *m)
{
    const struct {
        const char *name;
        void *to;
    } functions[] = {
        {"nvmlInit_v2", &m->init},
        {"nvmlShutdown", &m->shutdown},
        {"nvmlSystemGetDriverVersion", &m->driver_version},
        {"nvmlDeviceGetHandleByPciBusId_v2", &m->device_at},
        {"nvmlDeviceGetClockInfo", &m->clock},
    };

    for (size_t i = 0; i < G_N_ELEMENTS(functions); i++) {
        *(void **)functions[i].to = dlsym(library, functions[i].name);
        if (*(void **)functions[i].to == NULL)
            return false;
    }
    return true;
}

static double
clock_now_hz(const Management *m, void *handle, int which)
{
    unsigned mhz = 0;

    return m->clock(handle, which, &mhz) == NVML_SUCCESS ? mhz * 1e6 : 0.0;
}

/* Leaves out what is not told: containers often lack the library. */
static void
ask_management(int device, ExecDeviceInfo *info)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    Management m;
    void *handle = NULL;
    char bus[32] = "";

    if (library == NULL)
        return;
    if (open_management(library, &m) && m.init() == NVML_SUCCESS) {
        if (m.driver_version(info->driver_name, sizeof info->driver_name) != NVML_SUCCESS)
            info->driver_name[0] = '\0';
        if (cudaDeviceGetPCIBusId(bus, sizeof bus, device) == cudaSuccess &&
            m.device_at(bus, &handle) == NVML_SUCCESS) {
            info->clock_now_hz = clock_now_hz(&m, handle, NVML_CLOCK_SM);
            info->memory_clock_now_hz = clock_now_hz(&m, handle, NVML_CLOCK_MEM);
        }
        m.shutdown();
    }
    dlclose(library);
}

static int64_t
attribute(int device, enum cudaDeviceAttr which)
{
    int value = 0;

    return cudaDeviceGetAttribute(&value, which, device) == cudaSuccess ? value : 0;
}

bool
exec_cuda_device_info(int device, ExecDeviceInfo *info, GError **error)
{
    struct cudaDeviceProp properties;
    size_t n_free = 0, n_total = 0;

    *info = (ExecDeviceInfo){0};
    if (!exec_cuda_check_device(device, error))
        return false;
    TRY_CUDA(cudaGetDeviceProperties(&properties, device), error);
    TRY_CUDA(cudaSetDevice(device), error);
    TRY_CUDA(cudaMemGetInfo(&n_free, &n_total), error);
    TRY_CUDA(cudaGetDeviceCount(&info->n_devices), error);
    TRY_CUDA(cudaDriverGetVersion(&info->driver), error);
    TRY_CUDA(cudaRuntimeGetVersion(&info->runtime), error);
    snprintf(info->name, sizeof info->name, "%.*s", (int)sizeof info->name - 1, properties.name);
    info->blas = (int64_t)cublasLtGetVersion();
    info->capability = (int)(attribute(device, cudaDevAttrComputeCapabilityMajor) * 10 +
                             attribute(device, cudaDevAttrComputeCapabilityMinor));
    info->n_multiprocessors = (int)attribute(device, cudaDevAttrMultiProcessorCount);
    info->memory_bytes = (int64_t)n_total;
    info->l2_bytes = attribute(device, cudaDevAttrL2CacheSize);
    info->clock_hz = (double)attribute(device, cudaDevAttrClockRate) * 1e3;
    info->memory_clock_hz = (double)attribute(device, cudaDevAttrMemoryClockRate) * 1e3;
    info->memory_bus_bits = (int)attribute(device, cudaDevAttrGlobalMemoryBusWidth);
    ask_management(device, info);
    return true;
}
