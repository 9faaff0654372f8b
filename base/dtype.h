/*
 * base/dtype.h - number formats: names and sizes.
 */
#ifndef BASE_DTYPE_H
#define BASE_DTYPE_H

#include <stdint.h>

/* tf32 is computed by the device and stored as fp32. */
typedef enum {
    DTYPE_FP32,
    DTYPE_TF32,
    DTYPE_FP16,
    DTYPE_BF16,
    DTYPE_FP8,
    DTYPE_N,
} Dtype;

/* "fp32", "tf32", "fp16", "bf16", "fp8", NULL: in the enum's order, for json_enum() and options. */
extern const char *const dtype_names[DTYPE_N + 1];

static inline int64_t
dtype_bytes(Dtype dtype)
{
    return dtype == DTYPE_FP8 ? 1 : dtype == DTYPE_FP16 || dtype == DTYPE_BF16 ? 2 : 4;
}

#endif /* BASE_DTYPE_H */
