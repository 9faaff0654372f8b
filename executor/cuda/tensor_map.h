/*
 * executor/cuda/tensor_map.h - how a kernel tells Hopper's copy engine (TMA) which tensor to read,
 * and which box of it at a time: a map, which the driver makes and the kernel gets as an argument.
 *
 * Private to the CUDA plugin.
 */
#pragma once

#include "executor/cuda/kernels.h"

G_BEGIN_DECLS

/* CUtensorMap has this alignment in CUDA 13; the copy engine needs 64 bytes.  The emulation copies
 * arguments as bytes and cannot align them. */
#ifdef __CUDACC__
#define EXEC_CUDA_TENSOR_MAP_ALIGNED alignas(128)
#else
#define EXEC_CUDA_TENSOR_MAP_ALIGNED
#endif

typedef struct EXEC_CUDA_TENSOR_MAP_ALIGNED {
    uint64_t opaque[16];
} ExecCudaTensorMap;

/* A box has 64 elements of bf16, 128 bytes, of each of @rows rows along the last dimension.  In
 * shared memory it is swizzled: 16-byte chunk c of row r is at place c ^ r % 8. */
#define EXEC_CUDA_BOX_COLS 64

typedef struct {
    const void *memory; /* (borrowed) device memory, at a multiple of 16 bytes */
    int64_t size[3];    /* in elements of bf16, the innermost dimension first */
    int64_t stride[2];  /* in elements, of dimensions 1 and 2; multiples of 8 */
    int rows;           /* of a box; <= 256 */
} ExecCudaTensor;

/* Makes the map of @tensor, without a call of the device.  Returns cudaErrorNotSupported when the
 * driver has no such function, which came with CUDA 12.0, and cudaErrorInvalidValue when it refuses
 * the tensor. */
cudaError_t exec_cuda_tensor_map(const ExecCudaTensor *tensor, ExecCudaTensorMap *map);

G_END_DECLS
