#include "executor/cuda/cuda.h"

#include <dlfcn.h>
#include <stdio.h>

/* --- status codes --- */

static int
error_code(cudaError_t status)
{
    switch (status) {
    case cudaErrorMemoryAllocation:
        return EXEC_ERROR_MEMORY;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorNoKernelImageForDevice:
        return EXEC_ERROR_MISSING;
    default:
        return EXEC_ERROR_FAILED;
    }
}

bool
exec_cuda_ok(cudaError_t status, const char *call, const char *file, int line, GError **error)
{
    if (status == cudaSuccess)
        return true;
    return EXEC_FAIL(error, error_code(status), "device cuda: %s (%s) from %s at %s:%d",
                     cudaGetErrorString(status), cudaGetErrorName(status), call, file, line);
}

bool
exec_cublas_ok(cublasStatus_t status, const char *call, const char *file, int line, GError **error)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return true;
    return EXEC_FAIL(
        error, status == CUBLAS_STATUS_ALLOC_FAILED ? EXEC_ERROR_MEMORY : EXEC_ERROR_FAILED,
        "device cuda: %s from %s at %s:%d", cublasLtGetStatusName(status), call, file, line);
}

/* --- whether a device can be used --- */

/* cp.async, ldmatrix and bf16 products came with Ampere. */
#define LOWEST_CAPABILITY 80

bool
exec_cuda_capability(int device, int *capability, GError **error)
{
    int major = 0, minor = 0;

    TRY_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), error);
    TRY_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), error);
    *capability = major * 10 + minor;
    return true;
}

bool
exec_cuda_check_device(int device, GError **error)
{
    int n_devices = 0, driver = 0, runtime = 0, capability = 0;
    const cudaError_t status = cudaGetDeviceCount(&n_devices);

    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (driver == 0)
        return EXEC_FAIL(
            error, EXEC_ERROR_MISSING,
            "device cuda: there is no NVIDIA driver on this machine; use --device cpu");
    if (status == cudaErrorInsufficientDriver)
        return EXEC_FAIL(error, EXEC_ERROR_MISSING,
                         "device cuda: the driver is for CUDA %d.%d, this build needs one for CUDA "
                         "%d.%d or newer",
                         driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    if (status == cudaErrorNoDevice || (status == cudaSuccess && n_devices == 0))
        return EXEC_FAIL(error, EXEC_ERROR_MISSING,
                         "device cuda: the driver finds no GPU (is CUDA_VISIBLE_DEVICES set?)");
    TRY_CUDA(status, error);
    if (device < 0 || device >= n_devices)
        return EXEC_FAIL(error, EXEC_ERROR_MISSING,
                         "device cuda:%d: there are %d GPUs, numbered from 0", device, n_devices);
    if (!exec_cuda_capability(device, &capability, error))
        return false;
    if (capability < LOWEST_CAPABILITY)
        return EXEC_FAIL(
            error, EXEC_ERROR_MISSING,
            "device cuda:%d: compute capability %d.%d is too old (8.0 or newer is needed)", device,
            capability / 10, capability % 10);
    return true;
}

/* --- facts --- */

/* What the clocks are just now, which the runtime does not tell.  The management library comes with
 * the driver; its header does not come with the toolkit, so its stable interface is declared here
 * [NVML API reference: nvmlDeviceGetClockInfo, nvmlClockType_t]. */
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
    if (!exec_cuda_capability(device, &info->capability, error))
        return false;
    snprintf(info->name, sizeof info->name, "%.*s", (int)sizeof info->name - 1, properties.name);
    info->blas = (int64_t)cublasLtGetVersion();
    info->n_multiprocessors = (int)attribute(device, cudaDevAttrMultiProcessorCount);
    info->memory_bytes = (int64_t)n_total;
    info->l2_bytes = attribute(device, cudaDevAttrL2CacheSize);
    info->clock_hz = (double)attribute(device, cudaDevAttrClockRate) * 1e3;
    info->memory_clock_hz = (double)attribute(device, cudaDevAttrMemoryClockRate) * 1e3;
    info->memory_bus_bits = (int)attribute(device, cudaDevAttrGlobalMemoryBusWidth);
    ask_management(device, info);
    return true;
}
