#include "executor/cuda/tensor_map.h"

#include <cuda.h>

/* As in cuda_share.c, driver functions are asked for by name. */
typedef CUresult (*EncodeFunc)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                               const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                               const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                               CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* cuTensorMapEncodeTiled() came with CUDA 12.0. */
#define TENSOR_MAP_VERSION 12000

/* A GThreadFunc: (nullable) the driver's function; NULL where it has none. */
static gpointer
find_encode(gpointer unused)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *function = NULL;

    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, TENSOR_MAP_VERSION,
                                         cudaEnableDefault, &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
        return NULL;
    return function;
}

/* NULL where the driver has none. */
static EncodeFunc
encode_function(void)
{
    static GOnce once = G_ONCE_INIT;
    const gpointer function = g_once(&once, find_encode, NULL);
    EncodeFunc encode;

    memcpy(&encode, &function, sizeof encode);
    return encode;
}

cudaError_t
exec_cuda_tensor_map(const ExecCudaTensor *tensor, ExecCudaTensorMap *map)
{
    const EncodeFunc encode = encode_function();
    CUtensorMap encoded;
    const cuuint64_t size[3] = {(cuuint64_t)tensor->size[0], (cuuint64_t)tensor->size[1],
                                (cuuint64_t)tensor->size[2]};
    const cuuint64_t stride_bytes[2] = {(cuuint64_t)tensor->stride[0] * sizeof(uint16_t),
                                        (cuuint64_t)tensor->stride[1] * sizeof(uint16_t)};
    const cuuint32_t box[3] = {EXEC_CUDA_BOX_COLS, 1, (cuuint32_t)tensor->rows};
    const cuuint32_t every[3] = {1, 1, 1};

    G_STATIC_ASSERT(sizeof encoded == sizeof *map);
    if (encode == NULL)
        return cudaErrorNotSupported;
    if (encode(&encoded, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)tensor->memory, size,
               stride_bytes, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
        return cudaErrorInvalidValue;
    memcpy(map, &encoded, sizeof *map);
    return cudaSuccess;
}
