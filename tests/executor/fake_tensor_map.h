/*
 * tests/executor/fake_tensor_map.h - what the stand-in of cuTensorMapEncodeTiled() makes of a
 * tensor, for the emulated copy engine (hopper_on_host.cc).
 */
#pragma once

#include <stdint.h>

#define FAKE_TENSOR_MAP_MAGIC UINT64_C(0x70616d2d726f7374)

/* Three dimensions of bf16, innermost first; all in the 128 bytes of a CUtensorMap. */
typedef struct {
    uint64_t magic;
    uint64_t memory;
    uint64_t size[3];
    uint64_t stride_bytes[2];
    uint32_t box[3];
    uint32_t swizzle_bytes; /* 0, 32, 64, 128 */
} FakeTensorMap;
