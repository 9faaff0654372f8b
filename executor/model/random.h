/*
 * executor/model/random.h - random numbers by position: value i of a stream is a pure function of
 * the stream's key and i, so that initial values and synthetic data do not depend on degrees, ranks
 * or order.  They need integer and exact float operations only: the same bits on every machine.
 */
#pragma once

#include "base/random.h"

/* The key of stream @name of @seed. */
static inline uint64_t
exec_random_key(uint64_t seed, const char *name)
{
    return random_mix(random_at(seed, 0) ^ random_hash(name));
}

/* Returns: a value of a near-normal distribution with mean 0 and variance 1, |x| < 3.47: the sum of
 * four 16-bit uniforms (Irwin-Hall), which is like a truncated normal and needs no function of
 * libm. */
static inline float
exec_random_normal(uint64_t key, uint64_t i)
{
    const uint64_t bits = random_at(key, i);
    const int32_t sum = (int32_t)(bits & 0xffff) + (int32_t)(bits >> 16 & 0xffff) +
                        (int32_t)(bits >> 32 & 0xffff) + (int32_t)(bits >> 48);

    /* Each uniform has variance 65536^2 / 12: four have 65536^2 / 3. */
    return (float)(sum - 131070) * (1.7320508f / 65536.0f);
}
