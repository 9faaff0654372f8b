/* executor/cuda/kernels_elementwise.cu - what is bound by memory and needs no sums. */
#include "executor/cuda/kernels.cuh"

#define THREADS 256

/* A thread for each of @n elements; kernels get @n as their first argument. */
template <typename... P, typename... A>
static cudaError_t
launch_each(void (*kernel)(P...), int64_t n, cudaStream_t stream, A... arguments)
{
    return n == 0 ? cudaSuccess
                  : launch(kernel, blocks_for(n, THREADS), THREADS, 0, stream, n, arguments...);
}

/* sqrt(2/pi) of GELU's tanh form [Hendrycks and Gimpel 1606.08415]. */
#define GELU_C 0.7978845608028654f
#define GELU_CUBIC 0.044715f

/* --- one to one --- */

struct Add {
    __device__ float
    operator()(float x, float y) const
    {
        return x + y;
    }
};

struct Gelu {
    __device__ float
    operator()(float x, float) const
    {
        return 0.5f * x * (1.0f + tanhf(GELU_C * (x + GELU_CUBIC * x * x * x)));
    }
};

struct GeluBackward {
    __device__ float
    operator()(float x, float dy) const
    {
        const float t = tanhf(GELU_C * (x + GELU_CUBIC * x * x * x));
        const float slope = GELU_C * (1.0f + 3.0f * GELU_CUBIC * x * x);

        return dy * (0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * slope);
    }
};

/* y[i] = f(x[i], y[i]); N elements at a time, the last n % N by one thread. */
template <typename T, int N, typename F>
__global__ void
map(F f, int64_t n, const T *x, T *y)
{
    const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;

    if (i + N <= n) {
        const Pack<T, N> a = *(const Pack<T, N> *)(x + i);
        Pack<T, N> b = *(const Pack<T, N> *)(y + i);
#pragma unroll
        for (int j = 0; j < N; j++)
            b.v[j] = from_float<T>(f(to_float(a.v[j]), to_float(b.v[j])));
        *(Pack<T, N> *)(y + i) = b;
    } else {
        for (int64_t j = i; j < n; j++)
            y[j] = from_float<T>(f(to_float(x[j]), to_float(y[j])));
    }
}

template <typename F>
static cudaError_t
launch_map(Dtype storage, F f, int64_t n, const void *x, void *y, cudaStream_t stream)
{
    if (n == 0)
        return cudaSuccess;
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        constexpr int N = 16 / (int)sizeof(T);
        const bool aligned = ((uintptr_t)x | (uintptr_t)y) % 16 == 0;

        return launch(aligned ? map<T, N, F> : map<T, 1, F>,
                      blocks_for(n, aligned ? N * THREADS : THREADS), THREADS, 0, stream, f, n,
                      (const T *)x, (T *)y);
    });
}

cudaError_t
kernels_add(Dtype storage, int64_t n, const void *x, void *y, cudaStream_t stream)
{
    return launch_map(storage, Add{}, n, x, y, stream);
}

cudaError_t
kernels_gelu_forward(Dtype storage, int64_t n, const void *x, void *y, cudaStream_t stream)
{
    return launch_map(storage, Gelu{}, n, x, y, stream);
}

cudaError_t
kernels_gelu_backward(Dtype storage, int64_t n, const void *x, void *dy, cudaStream_t stream)
{
    return launch_map(storage, GeluBackward{}, n, x, dy, stream);
}

template <typename From, typename To>
__global__ void
convert(int64_t n, const From *x, To *y)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n)
        y[i] = from_float<To>(to_float(x[i]));
}

cudaError_t
kernels_convert(int64_t n, Dtype from, const void *x, Dtype to, void *y, cudaStream_t stream)
{
    return for_type(from, [&](auto from_zero) {
        return for_type(to, [&](auto to_zero) {
            using From = decltype(from_zero);
            using To = decltype(to_zero);

            return launch_each(convert<From, To>, n, stream, (const From *)x, (To *)y);
        });
    });
}

/* --- SwiGLU: a thread per element of y; gate and up columns lie @width apart --- */

__device__ __forceinline__ float
sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

template <typename T>
__global__ void
swiglu_forward(int64_t n, int64_t width, const T *x, T *y)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i >= n)
        return;
    const int64_t at = i / width * 2 * width + i % width;
    const float gate = to_float(x[at]), up = to_float(x[at + width]);
    y[i] = from_float<T>(gate * sigmoid(gate) * up);
}

template <typename T>
__global__ void
swiglu_backward(int64_t n, int64_t width, const T *x, const T *dy, T *dx)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i >= n)
        return;
    const int64_t at = i / width * 2 * width + i % width;
    const float gate = to_float(x[at]), up = to_float(x[at + width]), d = to_float(dy[i]);
    const float s = sigmoid(gate);
    dx[at] = from_float<T>(d * up * s * (1.0f + gate * (1.0f - s)));
    dx[at + width] = from_float<T>(d * gate * s);
}

cudaError_t
kernels_swiglu_forward(Dtype storage, int64_t rows, int64_t width, const void *x, void *y,
                       cudaStream_t stream)
{
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        return launch_each(swiglu_forward<T>, rows * width, stream, width, (const T *)x, (T *)y);
    });
}

cudaError_t
kernels_swiglu_backward(Dtype storage, int64_t rows, int64_t width, const void *x, const void *dy,
                        void *dx, cudaStream_t stream)
{
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        return launch_each(swiglu_backward<T>, rows * width, stream, width, (const T *)x,
                           (const T *)dy, (T *)dx);
    });
}

/* --- rotary positions: a thread per pair --- */

template <typename T>
__global__ void
rope_pairs(int64_t n, ExecRope r, T *x)
{
    const int64_t dim = r.rotary_dim > 0 ? r.rotary_dim : r.head_dim, half = dim / 2;
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i >= n)
        return;
    const int64_t j = i % half, head = i / half % r.n_heads, row = i / half / r.n_heads;
    const float *turn = r.turns + (int64_t)r.position[row / r.sequences] * dim;
    const float c = turn[j], s = r.inverse ? -turn[half + j] : turn[half + j];
    T *at = x + row * r.stride + head * r.head_dim + j;
    const float a = to_float(at[0]), b = to_float(at[half]);
    at[0] = from_float<T>(a * c - b * s);
    at[half] = from_float<T>(b * c + a * s);
}

cudaError_t
kernels_rope(Dtype storage, const ExecRope *rope, void *x, cudaStream_t stream)
{
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        return launch_each(rope_pairs<T>, rope->rows * rope->n_heads * (exec_rotary_dim(rope) / 2),
                           stream, *rope, (T *)x);
    });
}

/* --- rows plus bias plus residual --- */

template <typename T>
__global__ void
bias_residual(int64_t n, int64_t cols, const T *bias, const T *residual, T *y, int64_t stride)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i >= n)
        return;
    const int64_t at = i / cols * stride + i % cols;
    const float b = bias != NULL ? to_float(bias[i % cols]) : 0.0f;
    const float r = residual != NULL ? to_float(residual[at]) : 0.0f;
    y[at] = from_float<T>(to_float(y[at]) + b + r);
}

cudaError_t
kernels_bias_residual(Dtype storage, int64_t rows, int64_t cols, const void *bias,
                      const void *residual, void *y, int64_t stride, cudaStream_t stream)
{
    if (bias == NULL && residual == NULL)
        return cudaSuccess;
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        return launch_each(bias_residual<T>, rows * cols, stream, cols, (const T *)bias,
                           (const T *)residual, (T *)y, stride);
    });
}

/* --- time --- */

/* One thread.  The time in ns is the device's; should it not go on, cycles end it: no
 * multiprocessor has 4 of them in a ns. */
__global__ void
spin(int64_t ns)
{
#ifdef __CUDA_ARCH__
    const int64_t first_cycle = clock64();
    uint64_t begin, now;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begin < (uint64_t)ns && clock64() - first_cycle < 4 * ns);
#elif !defined(__CUDACC__)
    gpu_on_host::spin(ns);
#endif
}

cudaError_t
kernels_spin(int64_t ns, cudaStream_t stream)
{
    return launch(spin, dim3(1), 1, 0, stream, ns);
}
