/*
 * base/random.h - numbers that look random and are the same on every machine: SplitMix64
 * [Steele, Lea, Flood, OOPSLA 2014], by their position in a stream or one after the other.
 *
 * Thread-safety: all functions are pure.
 */
#pragma once

#include <stdint.h>

#define RANDOM_STEP UINT64_C(0x9e3779b97f4a7c15) /* 2^64 over the golden ratio */

/* The finaliser of SplitMix64. */
static inline uint64_t
random_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* The @i-th number of stream @key. */
static inline uint64_t
random_at(uint64_t key, uint64_t i)
{
    return random_mix(key + (i + 1) * RANDOM_STEP);
}

/* The next number of the stream whose @state begins as its key. */
static inline uint64_t
random_next(uint64_t *state)
{
    return random_mix(*state += RANDOM_STEP);
}

/* FNV-1a [Fowler, Noll, Vo]: makes a key of a name. */
static inline uint64_t
random_hash(const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (; *name != '\0'; name++)
        hash = (hash ^ (uint8_t)*name) * UINT64_C(0x100000001b3);
    return hash;
}
