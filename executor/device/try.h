/*
 * executor/device/try.h - status codes of the CUDA libraries become GErrors where they appear.
 *
 * TRY_X(call, error) returns false from the enclosing function when @call fails; the error names
 * the call, the library's own text and the line.  Running out of device memory is
 * EXEC_ERROR_MEMORY, a missing or busy device EXEC_ERROR_MISSING, the rest EXEC_ERROR_FAILED.
 *
 * Private to the CUDA plugin.
 */
#ifndef EXECUTOR_DEVICE_TRY_H
#define EXECUTOR_DEVICE_TRY_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "executor/device/backend.h"

G_BEGIN_DECLS

/* Each returns true on success; else sets @error (nullable) and returns false. */
bool exec_cuda_ok(cudaError_t status, const char *call, const char *file, int line, GError **error);
bool exec_cublas_ok(cublasStatus_t status, const char *call, const char *file, int line,
                    GError **error);

#define TRY_CUDA(call, error)                                                                      \
    do {                                                                                           \
        if (!exec_cuda_ok((call), #call, __FILE__, __LINE__, (error)))                             \
            return false;                                                                          \
    } while (0)

#define TRY_CUBLAS(call, error)                                                                    \
    do {                                                                                           \
        if (!exec_cublas_ok((call), #call, __FILE__, __LINE__, (error)))                           \
            return false;                                                                          \
    } while (0)

G_END_DECLS

#endif /* EXECUTOR_DEVICE_TRY_H */
