#include "base/dtype.h"

#include <stddef.h>

const char *const dtype_names[DTYPE_N + 1] = {"fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4", NULL};

Dtype
dtype_wider(Dtype dtype)
{
    static const Dtype wider[DTYPE_N] = {
        [DTYPE_NVFP4] = DTYPE_FP8, [DTYPE_FP8] = DTYPE_BF16,  [DTYPE_BF16] = DTYPE_FP16,
        [DTYPE_FP16] = DTYPE_TF32, [DTYPE_TF32] = DTYPE_FP32, [DTYPE_FP32] = DTYPE_FP32,
    };

    return wider[dtype];
}
