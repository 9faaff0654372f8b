/*
 * tests/executor/gpu_on_host.hh - runs CUDA kernels on the CPU, so that their arithmetic and their
 * indexing are tested where there is no GPU.
 *
 * Force-included before a kernels_*.cu that is compiled as C++ (no CUDA toolkit needed).  Blocks of
 * a grid run one after the other; the threads of a block are fibers that take turns, switching at
 * barriers, shuffles and matrix instructions only.  So races between barriers do not show, but
 * wrong sums, wrong indices, missing threads at a barrier (reported as a deadlock) and reads
 * outside an array (with the address sanitizer) do.
 *
 * Tensor-core instructions are computed from the fragments of all 32 lanes, by the layouts of the
 * PTX ISA 8.5 manual, 9.7.14.5.8 (mma.m16n8k16) and 9.7.14.5.15 (ldmatrix).  Hopper's are in
 * hopper_on_host.hh.
 */
#ifndef TESTS_EXECUTOR_GPU_ON_HOST_HH
#define TESTS_EXECUTOR_GPU_ON_HOST_HH

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <tuple>
#include <type_traits>

#include "tests/executor/fake_streams.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))

typedef int cudaError_t;
typedef void *cudaStream_t;
#define cudaSuccess 0
#define cudaErrorInvalidValue 1

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

struct float4 {
    float x, y, z, w;
} __attribute__((aligned(16)));
struct uint4 {
    uint32_t x, y, z, w;
} __attribute__((aligned(16)));

namespace gpu_on_host
{

constexpr unsigned MAX_THREADS = 1024;
constexpr size_t STACK_BYTES = 256 << 10;
constexpr size_t SHARED_BYTES = 227 << 10; /* that a block may ask for, on Hopper */
/* What a launch gets without asking, less what a kernel may have declared, which is not seen here.
 */
constexpr size_t UNASKED_BYTES = (48 << 10) - (8 << 10);

/* All of @n threads must arrive before any goes on. */
struct Barrier {
    unsigned n, arrived, generation;
};

struct Fiber {
    void *stack; /* where it stopped, unless the context says so */
    dim3 thread;
    unsigned rank; /* within the block */
    bool done;
    ucontext_t context;
};

struct Warp {
    Barrier barrier;
    uint32_t slot[32][16]; /* what each lane shows to the others */
};

struct Block {
    dim3 grid, block, index;
    unsigned n_threads;
    Barrier barrier;
    Warp warps[MAX_THREADS / 32];
    Fiber fibers[MAX_THREADS];
    ucontext_t scheduler;
    void (*body)(void *);
    void *arguments;
    uint64_t n_switches_without_progress;
    bool used_mma, used_wgmma; /* by the grid */
};

extern Block block;
extern Fiber *current;
extern char
    *dynamic_shared; /* what the launch asked for is filled with garbage before each block */

/* Ends the program. */
void fail(const char *what);
void yield(void);
/* True for the last one, who lets the others go on. */
bool arrive(Barrier *barrier);
void wait(Barrier *barrier);
/* Where streams are queues of their own: fake_streams.h. */
void spin(int64_t ns);
void run_grid(dim3 grid, dim3 threads, size_t shared_bytes, void (*body)(void *), void *arguments);

inline Warp &
warp(void)
{
    return block.warps[current->rank / 32];
}

inline unsigned
lane(void)
{
    return current->rank % 32;
}

/* Every lane shows a value, and may then look at all of them until it calls look_away(). */
template <typename T>
inline void
show(const T &value)
{
    static_assert(sizeof(T) <= sizeof warp().slot[0], "fits a slot");
    memcpy(warp().slot[lane()], &value, sizeof value);
    wait(&warp().barrier);
}

template <typename T>
inline T
shown_by(unsigned source)
{
    T value;

    memcpy(&value, warp().slot[source % 32], sizeof value);
    return value;
}

inline void
look_away(void)
{
    wait(&warp().barrier);
}

template <typename T>
inline T
exchange(const T &value, unsigned source)
{
    show(value);
    const T result = shown_by<T>(source);
    look_away();
    return result;
}

inline float
bf16_half(uint32_t pair, unsigned half)
{
    const uint32_t bits = (half ? pair >> 16 : pair & 0xffff) << 16;
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* mma.m16n8k16, row.col, bf16 into fp32. */
inline void
multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    struct Fragments {
        uint32_t a[4], b[2];
    } mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    const unsigned g = lane() / 4, t = lane() % 4;

    block.used_mma = true;
    show(mine);
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = g + 8 * (i / 2), col = 2 * t + i % 2;
        for (unsigned k = 0; k < 16; k++) {
            const Fragments of_a = shown_by<Fragments>(4 * (row % 8) + k % 8 / 2);
            const Fragments of_b = shown_by<Fragments>(4 * col + k % 8 / 2);
            c[i] +=
                bf16_half(of_a.a[row / 8 + 2 * (k / 8)], k % 2) * bf16_half(of_b.b[k / 8], k % 2);
        }
    }
    look_away();
}

/* ldmatrix.x4 (.trans); @Element is a struct of 16 bits. */
template <bool TRANSPOSED, typename Element>
inline void
load_matrices(uint32_t (&d)[4], const Element *row)
{
    const unsigned a = lane() / 4, b = 2 * (lane() % 4);

    show(row);
    for (unsigned i = 0; i < 4; i++) {
        d[i] = 0;
        for (unsigned half = 0; half < 2; half++) {
            const unsigned r = TRANSPOSED ? b + half : a, col = TRANSPOSED ? a : b + half;
            uint16_t bits;
            memcpy(&bits, shown_by<const Element *>(8 * i + r) + col, sizeof bits);
            d[i] |= (uint32_t)bits << (16 * half);
        }
    }
    look_away();
}

/* A launch; its bytes may be copied, as those of every kernel's arguments. */
template <typename... P> struct Job {
    void (*kernel)(P...);
    dim3 grid;
    unsigned threads;
    size_t shared_bytes;
    std::tuple<P...> arguments;
};

template <typename... P>
inline void
call(void *user_data)
{
    const auto *job = static_cast<Job<P...> *>(user_data);

    std::apply(job->kernel, job->arguments);
}

template <typename... P>
inline void
run_job(void *user_data)
{
    const auto *job = static_cast<Job<P...> *>(user_data);

    run_grid(job->grid, dim3(job->threads), job->shared_bytes, call<P...>, user_data);
}

/* As cudaFuncSetAttribute(), of cudaFuncAttributeMaxDynamicSharedMemorySize: how much @kernel may
 * be given at a launch. FAKE_CUDA=shared=N: the device has less. */
cudaError_t ask_for_shared(void (*kernel)(void), size_t n_bytes);
bool may_have_shared(void (*kernel)(void), size_t n_bytes);

template <typename... P, typename... A>
inline cudaError_t
launch(void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared_bytes, cudaStream_t stream,
       A... arguments)
{
    static_assert((std::is_trivially_copyable_v<P> && ...), "arguments are copied as bytes");
    if (!may_have_shared((void (*)(void))kernel, shared_bytes))
        return cudaErrorInvalidValue;
    const Job<P...> job{kernel, grid, threads, shared_bytes, std::tuple<P...>(arguments...)};

    fake_submit(stream, run_job<P...>, &job, sizeof job);
    return cudaSuccess;
}

} // namespace gpu_on_host

#define threadIdx (gpu_on_host::current->thread)
#define blockIdx (gpu_on_host::block.index)
#define blockDim (gpu_on_host::block.block)
#define gridDim (gpu_on_host::block.grid)

static inline void
__syncthreads(void)
{
    gpu_on_host::wait(&gpu_on_host::block.barrier);
}

static inline void
__syncwarp(unsigned mask = 0xffffffffu)
{
    gpu_on_host::wait(&gpu_on_host::warp().barrier);
}

template <typename T>
static inline T
__shfl_xor_sync(unsigned mask, T value, unsigned bits)
{
    return gpu_on_host::exchange(value, gpu_on_host::lane() ^ bits);
}

template <typename T>
static inline T
__shfl_sync(unsigned mask, T value, unsigned source)
{
    return gpu_on_host::exchange(value, source);
}

static inline unsigned
__ballot_sync(unsigned mask, bool value)
{
    unsigned ballot = 0;

    gpu_on_host::show(value);
    for (unsigned i = 0; i < 32; i++)
        ballot |= (unsigned)gpu_on_host::shown_by<bool>(i) << i;
    gpu_on_host::look_away();
    return ballot;
}

#define __ffs(x) __builtin_ffs(x)

#define cudaFuncAttributeMaxDynamicSharedMemorySize 8
template <typename... P>
static inline cudaError_t
cudaFuncSetAttribute(void (*kernel)(P...), int attribute, int value)
{
    return gpu_on_host::ask_for_shared((void (*)(void))kernel, (size_t)value);
}

/* Threads take turns, so a plain addition is atomic. */
static inline float
atomicAdd(float *to, float value)
{
    const float old = *to;

    *to = old + value;
    return old;
}

#define cudaGetLastError() cudaSuccess

#include "tests/executor/hopper_on_host.hh"

#endif /* TESTS_EXECUTOR_GPU_ON_HOST_HH */
