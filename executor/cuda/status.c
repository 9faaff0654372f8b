#include "executor/cuda/cuda.h"

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
    g_set_error(error, EXEC_ERROR, error_code(status), "device cuda: %s (%s) from %s at %s:%d",
                cudaGetErrorString(status), cudaGetErrorName(status), call, file, line);
    return false;
}

bool
exec_cublas_ok(cublasStatus_t status, const char *call, const char *file, int line, GError **error)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return true;
    g_set_error(error, EXEC_ERROR,
                status == CUBLAS_STATUS_ALLOC_FAILED ? EXEC_ERROR_MEMORY : EXEC_ERROR_FAILED,
                "device cuda: %s from %s at %s:%d", cublasLtGetStatusName(status), call, file,
                line);
    return false;
}

/* cp.async, ldmatrix and bf16 products came with Ampere. */
#define LOWEST_CAPABILITY 80

bool
exec_cuda_check_device(int device, GError **error)
{
    int n_devices = 0, driver = 0, runtime = 0, major = 0, minor = 0;
    const cudaError_t status = cudaGetDeviceCount(&n_devices);

    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (driver == 0) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MISSING,
                    "device cuda: there is no NVIDIA driver on this machine; use --device cpu");
        return false;
    }
    if (status == cudaErrorInsufficientDriver) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MISSING,
                    "device cuda: the driver is for CUDA %d.%d, this build needs one for CUDA "
                    "%d.%d or newer",
                    driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
        return false;
    }
    if (status == cudaErrorNoDevice || (status == cudaSuccess && n_devices == 0)) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MISSING,
                    "device cuda: the driver finds no GPU (is CUDA_VISIBLE_DEVICES set?)");
        return false;
    }
    TRY_CUDA(status, error);
    if (device < 0 || device >= n_devices) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MISSING,
                    "device cuda:%d: there are %d GPUs, numbered from 0", device, n_devices);
        return false;
    }
    TRY_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), error);
    TRY_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), error);
    if (major * 10 + minor < LOWEST_CAPABILITY) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MISSING,
                    "device cuda:%d: compute capability %d.%d is too old (8.0 or newer is needed)",
                    device, major, minor);
        return false;
    }
    return true;
}
