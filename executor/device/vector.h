/*
 * executor/device/vector.h - vectors of 16 floats, for the loops of backends in host memory.
 *
 * They are GCC's vector extension: a function marked EXEC_CLONES is compiled for AVX-512, AVX2 and
 * SSE, and the right one is chosen when the program starts, so that the build needs no flags of a
 * processor.  Vectors are passed through pointers, because those wider than the build's baseline
 * have no stable ABI.
 *
 * Private to executor/device/.
 */
#pragma once

#include <glib.h>
#include <stdint.h>
#include <string.h>

/* Compiles the function for several processors; for one only under the thread and address
 * sanitizers, whose run time must begin before the choice is made. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define EXEC_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EXEC_CLONES
#endif

/* For plain loops that GCC should vectorise, which it does not do at the build's -O2. */
#if defined(__GNUC__) && !defined(__clang__)
#define EXEC_VECTORIZE __attribute__((optimize("O3")))
#else
#define EXEC_VECTORIZE
#endif

/* Floats in a vector: 64 bytes, an AVX-512 register or a cache line. */
#define EXEC_LANES 16
#define EXEC_INLINE static inline __attribute__((always_inline))

typedef float ExecVec __attribute__((vector_size(64)));
typedef int32_t ExecIntVec __attribute__((vector_size(64)));
/* A vector in memory, at the address of any float. */
typedef float ExecVecMemory __attribute__((vector_size(64), aligned(4), may_alias));

/* Returns how many of @n floats are in whole vectors. */
EXEC_INLINE int64_t
exec_vec_whole(int64_t n)
{
    return n / EXEC_LANES * EXEC_LANES;
}

/* Loads the first @n < 16 floats; the other lanes become @fill. */
static inline void
exec_vec_load_part(ExecVec *x, const float *from, int64_t n, float fill)
{
    float lanes[EXEC_LANES];

    for (int64_t i = 0; i < EXEC_LANES; i++)
        lanes[i] = i < n ? from[i] : fill;
    memcpy(x, lanes, sizeof lanes);
}

/* Loads the first @n floats, 16 at most; lanes beyond become 0. */
EXEC_INLINE void
exec_vec_load(ExecVec *x, const float *from, int64_t n)
{
    if (n >= EXEC_LANES)
        *x = *(const ExecVecMemory *)from;
    else
        exec_vec_load_part(x, from, n, 0.0f);
}

EXEC_INLINE void
exec_vec_store(const ExecVec *x, float *to, int64_t n)
{
    if (n >= EXEC_LANES)
        *(ExecVecMemory *)to = *x;
    else
        memcpy(to, x, (size_t)n * sizeof *to);
}

EXEC_INLINE float
exec_vec_sum(const ExecVec *x)
{
    float lanes[EXEC_LANES];

    memcpy(lanes, x, sizeof lanes);
    for (int64_t width = EXEC_LANES / 2; width > 0; width /= 2)
        for (int64_t i = 0; i < width; i++)
            lanes[i] += lanes[i + width];
    return lanes[0];
}

EXEC_INLINE float
exec_vec_largest(const ExecVec *x)
{
    float lanes[EXEC_LANES];
    float largest;

    memcpy(lanes, x, sizeof lanes);
    largest = lanes[0];
    for (int64_t i = 1; i < EXEC_LANES; i++)
        largest = lanes[i] > largest ? lanes[i] : largest;
    return largest;
}

/* Every lane of @x becomes the larger of both (below: the smaller).  GCC 12 has no ?: for vectors
 * in C. */
EXEC_INLINE void
exec_vec_raise(ExecVec *x, const ExecVec *floor)
{
    const ExecIntVec mask = *x < *floor;

    *x = (ExecVec)(((ExecIntVec)*floor & mask) | ((ExecIntVec)*x & ~mask));
}

EXEC_INLINE void
exec_vec_lower(ExecVec *x, const ExecVec *ceiling)
{
    const ExecIntVec mask = *x > *ceiling;

    *x = (ExecVec)(((ExecIntVec)*ceiling & mask) | ((ExecIntVec)*x & ~mask));
}

/* x = exp(x), below 2 ulp on [-87, 88]; smaller arguments give 0 or a tiny number, larger ones are
 * cut at 88.  2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2, and the Taylor polynomial of
 * degree 7, whose remainder r^8/8! is below 6e-9. */
EXEC_INLINE void
exec_vec_exp(ExecVec *x)
{
    const float to_int = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    const ExecVec zero = {0};
    ExecVec v = *x;

    const ExecVec low = zero - 87.0f, high = zero + 88.0f;

    exec_vec_raise(&v, &low);
    exec_vec_lower(&v, &high);
    const ExecVec shifted = v * 1.44269504088896341f + to_int;
    const ExecVec n = shifted - to_int;
    /* ln 2 in two parts, the first exact in 15 bits [Cody and Waite]. */
    const ExecVec r = (v - n * 0.693359375f) - n * -2.12194440e-4f;
    ExecVec p = r * (1.0f / 5040) + (1.0f / 720);
    p = p * r + (1.0f / 120);
    p = p * r + (1.0f / 24);
    p = p * r + (1.0f / 6);
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    /* The integer is in the low bits of shifted: move it into the exponent. */
    const ExecIntVec power = ((ExecIntVec)shifted - 0x4B400000 + 127) << 23;
    v = p * (ExecVec)power;
    *x = v;
}
