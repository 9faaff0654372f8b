/*
 * executor/model/random.h - random numbers by position: value i of a stream is a pure function of
 * the stream's key and i, so that initial values and synthetic data do not depend on degrees, ranks
 * or order.
 *
 * They are SplitMix64's output function [Steele, Lea, Flood 2014] of key + i * golden ratio, by
 * integer and exact float operations only: the same bits on every machine.
 */
#pragma once

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

/* The key of stream @name of @seed (FNV-1a hash of the name). */
static inline uint64_t
exec_random_key(uint64_t seed, const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (; *name != '\0'; name++)
        hash = (hash ^ (uint8_t)*name) * UINT64_C(0x100000001b3);
    return exec_random_mix(exec_random_mix(seed + UINT64_C(0x9e3779b97f4a7c15)) ^ hash);
}

/* Returns: a value of a near-normal distribution with mean 0 and variance 1, |x| < 3.47: the sum of
 * four 16-bit uniforms (Irwin-Hall), which is like a truncated normal and needs no function of
 * libm. */
static inline float
exec_random_normal(uint64_t key, uint64_t i)
{
    const uint64_t bits = exec_random_at(key, i);
    const int32_t sum = (int32_t)(bits & 0xffff) + (int32_t)(bits >> 16 & 0xffff) +
                        (int32_t)(bits >> 32 & 0xffff) + (int32_t)(bits >> 48);

    /* Each uniform has variance 65536^2 / 12: four have 65536^2 / 3. */
    return (float)(sum - 131070) * (1.7320508f / 65536.0f);
}
