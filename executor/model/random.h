/*
 * executor/model/random.h - counter-based random numbers: value i of a stream is a pure function of the
 * stream's key and i, so that parameters and data do not depend on degrees, ranks or order.
 *
 * SplitMix64's output function [Steele, Lea, Flood 2014] over key + i * golden ratio.  Integers and
 * exact float operations only: the same bits on every machine.
 */
#ifndef EXECUTOR_MODEL_RANDOM_H
#define EXECUTOR_MODEL_RANDOM_H

#include <stdint.h>

static inline uint64_t
exec_random_mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static inline uint64_t
exec_random_at(uint64_t key, uint64_t i)
{
    return exec_random_mix(key + (i + 1) * UINT64_C(0x9e3779b97f4a7c15));
}

/* A stream's key: seed and a name (FNV-1a). */
static inline uint64_t
exec_random_key(uint64_t seed, const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (; *name != '\0'; name++)
        hash = (hash ^ (uint8_t)*name) * UINT64_C(0x100000001b3);
    return exec_random_mix(exec_random_mix(seed + UINT64_C(0x9e3779b97f4a7c15)) ^ hash);
}

/* Near-normal with mean 0 and variance 1, |x| < 3.47: four 16-bit uniforms added (Irwin-Hall), as
 * a truncated normal without a libm function. */
static inline float
exec_random_normal(uint64_t key, uint64_t i)
{
    const uint64_t bits = exec_random_at(key, i);
    const int32_t sum = (int32_t)(bits & 0xffff) + (int32_t)(bits >> 16 & 0xffff) +
                        (int32_t)(bits >> 32 & 0xffff) + (int32_t)(bits >> 48);

    /* Each uniform has variance 65536^2 / 12: four have 65536^2 / 3. */
    return (float)(sum - 131070) * (1.7320508f / 65536.0f);
}

#endif /* EXECUTOR_MODEL_RANDOM_H */
