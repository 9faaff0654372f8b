/*
 * executor/cuda/tensor_map.h - a tensor in device memory and the box of it that Hopper's copy
 * engine (TMA) moves at once, as the driver encodes them for a kernel's argument.
 *
 * Private to the CUDA plugin.
 */
#ifndef EXECUTOR_CUDA_TENSOR_MAP_H
#define EXECUTOR_CUDA_TENSOR_MAP_H

#include "executor/cuda/kernels.h"

G_BEGIN_DECLS

/* As CUtensorMap in CUDA 13; the engine wants 64 bytes.  (The emulation passes arguments as bytes.)
 */
#ifdef __CUDACC__
#define EXEC_CUDA_TENSOR_MAP_ALIGNED alignas(128)
#else
#define EXEC_CUDA_TENSOR_MAP_ALIGNED
#endif

typedef struct EXEC_CUDA_TENSOR_MAP_ALIGNED {
    uint64_t opaque[16];
} ExecCudaTensorMap;

/* A box is 64 elements of bf16 (128 bytes, swizzled: 16-byte chunk c of row r at place
 * c ^ r % 8) of each of @rows rows along the last dimension. */
#define EXEC_CUDA_BOX_COLS 64

typedef struct {
    const void *memory; /* (borrowed) device memory, at a multiple of 16 bytes */
    int64_t size[3];    /* elements of bf16, innermost first */
    int64_t stride[2];  /* elements between neighbours of dimensions 1 and 2; multiples of 8 */
    int rows;           /* <= 256 */
} ExecCudaTensor;

/*
 * Costs no call of the device.  cudaErrorNotSupported: the driver has no such function (it came
 * with CUDA 12.0); cudaErrorInvalidValue: it refuses.
 */
cudaError_t exec_cuda_tensor_map(const ExecCudaTensor *tensor, ExecCudaTensorMap *map);

G_END_DECLS

#endif /* EXECUTOR_CUDA_TENSOR_MAP_H */
