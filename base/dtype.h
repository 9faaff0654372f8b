/*
 * base/dtype.h - number formats: their names, sizes, and what stands in for them.
 *
 * All that is true of a format whoever uses it is said here, so that a new one is a line in each
 * function.  What a framework calls a format is said in cli/export/.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* tf32 is computed by the device and stored as fp32. */
typedef enum {
    DTYPE_FP32,
    DTYPE_TF32,
    DTYPE_FP16,
    DTYPE_BF16,
    DTYPE_FP8,
    DTYPE_NVFP4,
    DTYPE_N,
} Dtype;

/* "fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4", NULL: in the enum's order, for json_enum() and options. */
extern const char *const dtype_names[DTYPE_N + 1];

/* Whether operands of products are quantised to @dtype from the format in which they are stored: fp8
 * [2209.05433], with one scale for a tensor or for a block (MXFP8); nvfp4, with one for 16 numbers
 * and one for the tensor [2509.25149]. */
static inline bool
dtype_is_quantised(Dtype dtype)
{
    return dtype == DTYPE_FP8 || dtype == DTYPE_NVFP4;
}

/* Bytes of one number; half of one is rounded up. */
static inline int64_t
dtype_bytes(Dtype dtype)
{
    return dtype_is_quantised(dtype) ? 1 : dtype == DTYPE_FP16 || dtype == DTYPE_BF16 ? 2 : 4;
}

/* The format in which attention scores are computed, and weights and activations are stored, where
 * products take operands of @dtype: quantised formats are of products alone. */
static inline Dtype
dtype_stored(Dtype dtype)
{
    return dtype_is_quantised(dtype) ? DTYPE_BF16 : dtype;
}

/* The format that a device computes in which has no rate for @dtype; of fp32, fp32. */
Dtype dtype_wider(Dtype dtype);

/* The nearest number that bf16 has; of two as near the even one.  NaN stays NaN: its top mantissa
 * bit is set, so that it does not become infinity. */
static inline uint16_t
bf16_from_float(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float
bf16_to_float(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}
