/*
 * executor/cuda/kernels.cuh - what the kernels share: number formats, reductions, asynchronous
 * copies and tensor-core instructions, each in one small function, so that the rest is plain C++.
 *
 * Storage tensors are fp32 or bf16 (template parameter T); all arithmetic is fp32, of sums of
 * squares double.
 *
 * The kernels also compile without nvcc, against an emulation of the execution model
 * (tests/executor/gpu_on_host.hh); hence no CUDA header, type or instruction is met outside this
 * file.
 *
 * Private to executor/cuda/kernels_*.cu.
 */
#pragma once

#include "executor/cuda/kernels.h"

#define WARP 32
#define FULL 0xffffffffu

#ifndef TESTS_EXECUTOR_GPU_ON_HOST_HH
#include <cuda_runtime.h>
#endif
#include <math.h>
#include <string.h>

/* An instruction of the device, and what the emulation does instead.  nvcc's host pass, which never
 * runs it, sees nothing. */
#ifdef __CUDA_ARCH__
#define INSTRUCTION(on_device, emulated) on_device
#elif defined(__CUDACC__)
#define INSTRUCTION(on_device, emulated) (void)0
#else
#define INSTRUCTION(on_device, emulated) emulated
#endif

struct alignas(2) Bf16 {
    uint16_t bits;
};

/* Elements that are moved in one transaction: 16 bytes of T, unless addresses allow only less. */
template <typename T, int ELEMENTS = 16 / (int)sizeof(T)>
struct alignas(ELEMENTS * sizeof(T)) Pack {
    static constexpr int N = ELEMENTS;
    T v[N];
};

__device__ __forceinline__ float
to_float(float x)
{
    return x;
}

__device__ __forceinline__ uint32_t
float_bits(float x)
{
#ifdef __CUDA_ARCH__
    return __float_as_uint(x);
#else
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
#endif
}

__device__ __forceinline__ float
bits_float(uint32_t bits)
{
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
#endif
}

__device__ __forceinline__ float
to_float(Bf16 x)
{
    return bits_float((uint32_t)x.bits << 16);
}

/* @low in bits 0..15, @high in 16..31, each rounded to nearest even; NaN stays NaN. */
__device__ __forceinline__ uint32_t
pack_bf16(float low, float high)
{
#ifdef __CUDA_ARCH__
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
#else
    const float both[2] = {low, high};
    uint32_t d = 0;
    for (int i = 0; i < 2; i++) {
        const uint32_t bits = float_bits(both[i]);
        const uint32_t rounded =
            both[i] != both[i] ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
        d |= rounded << (16 * i);
    }
    return d;
#endif
}

template <typename T> __device__ __forceinline__ T from_float(float x);

template <>
__device__ __forceinline__ float
from_float<float>(float x)
{
    return x;
}

template <>
__device__ __forceinline__ Bf16
from_float<Bf16>(float x)
{
    Bf16 y;
    y.bits = (uint16_t)pack_bf16(x, 0.0f);
    return y;
}

/* exp2(x), 2 ulp; log2(e) belongs into the argument. */
__device__ __forceinline__ float
exp2_fast(float x)
{
#ifdef __CUDA_ARCH__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

/* --- reductions: every thread gets the result, whose order of additions is fixed --- */

template <typename T>
__device__ __forceinline__ T
warp_sum(T x)
{
    for (unsigned bits = WARP / 2; bits > 0; bits /= 2)
        x += __shfl_xor_sync(FULL, x, bits);
    return x;
}

__device__ __forceinline__ float
warp_max(float x)
{
    for (unsigned bits = WARP / 2; bits > 0; bits /= 2)
        x = fmaxf(x, __shfl_xor_sync(FULL, x, bits));
    return x;
}

/* @scratch holds a number per warp of the block and may be used again after the call. */
template <typename T>
__device__ __forceinline__ T
block_sum(T x, T *scratch)
{
    const unsigned n_warps = blockDim.x / WARP;
    T sum = 0;

    x = warp_sum(x);
    if (threadIdx.x % WARP == 0)
        scratch[threadIdx.x / WARP] = x;
    __syncthreads();
    for (unsigned i = 0; i < n_warps; i++)
        sum += scratch[i];
    __syncthreads();
    return sum;
}

__device__ __forceinline__ float
block_max(float x, float *scratch)
{
    const unsigned n_warps = blockDim.x / WARP;

    x = warp_max(x);
    if (threadIdx.x % WARP == 0)
        scratch[threadIdx.x / WARP] = x;
    __syncthreads();
    for (unsigned i = 0; i < n_warps; i++)
        x = fmaxf(x, scratch[i]);
    __syncthreads();
    return x;
}

/* --- shared memory, asynchronous copies, tensor cores --- */

/* Bytes whose number the launch gives. */
__device__ __forceinline__ char *
launch_shared(void)
{
#ifdef __CUDA_ARCH__
    extern __shared__ __align__(1024) char memory[];
    return memory;
#elif defined(__CUDACC__)
    return nullptr; /* nvcc's host pass never runs it */
#else
    return gpu_on_host::dynamic_shared;
#endif
}

/* 16 bytes from global to shared memory, in the background; zeros unless @valid.  Compute
 * capability 8.0. */
__device__ __forceinline__ void
copy_async(void *shared, const void *global, bool valid)
{
#ifdef __CUDA_ARCH__
    const unsigned to = (unsigned)__cvta_generic_to_shared(shared);
    const int n = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(n));
#elif !defined(__CUDACC__)
    if (valid)
        memcpy(shared, global, 16);
    else
        memset(shared, 0, 16);
#endif
}

__device__ __forceinline__ void
copy_commit(void)
{
    INSTRUCTION(asm volatile("cp.async.commit_group;"), (void)0);
}

/* All but the latest @N groups of this thread have arrived. */
template <int N>
__device__ __forceinline__ void
copy_wait(void)
{
    INSTRUCTION(asm volatile("cp.async.wait_group %0;" ::"n"(N)), (void)0);
}

/*
 * Four 8 x 8 matrices of bf16; lane l gives the address of row l % 8 of matrix l / 8.  Lane l gets
 * of matrix i in d[i] the elements (l / 4, 2 (l % 4)) and the next one of the row; transposed:
 * (2 (l % 4), l / 4) and the next one of the column.
 */
template <bool TRANSPOSED>
__device__ __forceinline__ void
load_matrices(uint32_t (&d)[4], const Bf16 *row)
{
#ifdef __CUDA_ARCH__
    const unsigned from = (unsigned)__cvta_generic_to_shared(row);
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                     : "r"(from));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                     : "r"(from));
#elif !defined(__CUDACC__)
    gpu_on_host::load_matrices<TRANSPOSED>(d, row);
#endif
}

/*
 * C[16,8] += A[16,16] B[16,8] in fp32 from bf16.  With g = lane / 4 and t = lane % 4:
 *   a[0], a[1]: rows g, g + 8 of columns 2t, 2t + 1; a[2], a[3]: the same of columns + 8
 *   b0, b1:     column g of rows 2t, 2t + 1; rows + 8
 *   c[0..1]:    row g of columns 2t, 2t + 1; c[2..3]: row g + 8
 */
__device__ __forceinline__ void
multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    INSTRUCTION(asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                             "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)),
                gpu_on_host::multiply(c, a, b0, b1));
}

/* --- launching --- */

/* Returns the status of a call from the function that makes it, unless it is a success. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        const cudaError_t status_ = (call);                                                        \
        if (status_ != cudaSuccess)                                                                \
            return status_;                                                                        \
    } while (0)

template <typename... P, typename... A>
static inline cudaError_t
launch(void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared_bytes, cudaStream_t stream,
       A... arguments)
{
    /* Beyond 48 KiB, what the kernel itself declares included, it has to ask.  None of ours
     * declares as much as 8 KiB and gets more at its launch. */
    if (shared_bytes >= (40 << 10))
        TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)shared_bytes));
#ifdef __CUDACC__
    kernel<<<grid, threads, shared_bytes, stream>>>(arguments...);
    return cudaGetLastError();
#else
    return gpu_on_host::launch(kernel, grid, threads, shared_bytes, stream, arguments...);
#endif
}

/* Calls @f with a zero of @storage's type: float or Bf16. */
template <typename F>
static inline cudaError_t
for_type(Dtype storage, F f)
{
    return storage == DTYPE_FP32 ? f(0.0f) : f(Bf16{});
}

/* A number as a type. */
template <int N> struct Constant {
    static constexpr int value = N;
};

/* Calls @f with @n as a Constant; cudaErrorInvalidValue when @n is none of @NS. */
template <int... NS, typename F>
static inline cudaError_t
for_constant(int64_t n, F f)
{
    cudaError_t status = cudaErrorInvalidValue;

    (void)((n == NS && (status = f(Constant<NS>{}), true)) || ...);
    return status;
}

static inline unsigned
blocks_for(int64_t n, int64_t per_block)
{
    return (unsigned)((n + per_block - 1) / per_block);
}
