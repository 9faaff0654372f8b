/* The stand-in of cuTensorMapEncodeTiled(), which refuses what cuda.h (13.0) says the driver does:
 * addresses, sizes, strides, boxes; and what the emulated copy engine does not know. */
#include "tests/executor/fake_tensor_map.h"

#include <cuda.h>
#include <stdbool.h>
#include <string.h>

CUresult fake_tensor_map_encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                void *memory, const cuuint64_t *size, const cuuint64_t *stride,
                                const cuuint32_t *box, const cuuint32_t *every,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);

_Static_assert(sizeof(FakeTensorMap) <= sizeof(CUtensorMap), "fits");

static bool
fits(const cuuint64_t *size, const cuuint64_t *stride, const cuuint32_t *box,
     const cuuint32_t *every, uint32_t swizzle_bytes)
{
    for (int i = 0; i < 3; i++)
        if (size[i] == 0 || size[i] > UINT64_C(1) << 32 || box[i] == 0 || box[i] > 256 ||
            every[i] != 1)
            return false;
    for (int i = 0; i < 2; i++)
        if (stride[i] % 16 != 0 || stride[i] >= UINT64_C(1) << 40 || stride[i] < size[i] * 2)
            return false;
    const uint32_t row_bytes = box[0] * (uint32_t)sizeof(uint16_t);
    return row_bytes % 16 == 0 && (swizzle_bytes == 0 || row_bytes <= swizzle_bytes);
}

CUresult
fake_tensor_map_encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *memory,
                       const cuuint64_t *size, const cuuint64_t *stride, const cuuint32_t *box,
                       const cuuint32_t *every, CUtensorMapInterleave interleave,
                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                       CUtensorMapFloatOOBfill fill)
{
    static const uint32_t swizzles[] = {0, 32, 64, 128};
    FakeTensorMap encoded = {.magic = FAKE_TENSOR_MAP_MAGIC, .memory = (uintptr_t)memory};

    if ((uintptr_t)map % 64 != 0 || (uintptr_t)memory % 16 != 0 || rank != 3 ||
        type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
        (unsigned)swizzle > CU_TENSOR_MAP_SWIZZLE_128B || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
        return CUDA_ERROR_INVALID_VALUE;
    encoded.swizzle_bytes = swizzles[swizzle];
    if (!fits(size, stride, box, every, encoded.swizzle_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(encoded.size, size, sizeof encoded.size);
    memcpy(encoded.stride_bytes, stride, sizeof encoded.stride_bytes);
    memcpy(encoded.box, box, sizeof encoded.box);
    memset(map, 0, sizeof *map);
    memcpy(map, &encoded, sizeof encoded);
    return CUDA_SUCCESS;
}
