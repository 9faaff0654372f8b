/* executor/cuda/kernels_experts.cu - choosing experts, and moving and weighing rows between them. */
#include "executor/cuda/kernels.cuh"

#define THREADS 256

/* --- routing: a thread per row; scores are few beside the experts' work --- */

/* Whether @e is among the first @n chosen. */
__device__ __forceinline__ bool
is_chosen(const int32_t *chosen, int64_t n, int64_t e)
{
    for (int64_t i = 0; i < n; i++)
        if (chosen[i] == e)
            return true;
    return false;
}

__global__ void
route(int64_t rows, int64_t n_experts, int64_t top_k, const float *scores, int32_t *expert,
      float *weight)
{
    const int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (row >= rows)
        return;
    const float *s = scores + row * n_experts;
    int32_t *chosen = expert + row * top_k;
    float sum = 0.0f;
    for (int64_t k = 0; k < top_k; k++) {
        int64_t best = -1;
        for (int64_t e = 0; e < n_experts; e++)
            if (!is_chosen(chosen, k, e) && (best < 0 || s[e] > s[best]))
                best = e;
        chosen[k] = (int32_t)best;
        sum += expf(s[best] - s[chosen[0]]);
    }
    for (int64_t k = 0; k < top_k; k++)
        weight[row * top_k + k] = expf(s[chosen[k]] - s[chosen[0]]) / sum;
}

template <typename T>
__global__ void
route_backward(int64_t rows, int64_t n_experts, int64_t top_k, const int32_t *expert,
               const float *weight, const float *d_weight, T *d_scores)
{
    const int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (row >= rows)
        return;
    const float *w = weight + row * top_k, *dw = d_weight + row * top_k;
    T *d = d_scores + row * n_experts;
    float mean = 0.0f;
    for (int64_t e = 0; e < n_experts; e++)
        d[e] = from_float<T>(0.0f);
    for (int64_t k = 0; k < top_k; k++)
        mean += w[k] * dw[k];
    for (int64_t k = 0; k < top_k; k++)
        d[expert[row * top_k + k]] = from_float<T>(w[k] * (dw[k] - mean));
}

cudaError_t
kernels_route(int64_t rows, int64_t n_experts, int64_t top_k, const float *scores, int32_t *expert,
              float *weight, cudaStream_t stream)
{
    return rows == 0 ? cudaSuccess
                     : launch(route, blocks_for(rows, THREADS), THREADS, 0, stream, rows, n_experts,
                              top_k, scores, expert, weight);
}

template <typename T>
static cudaError_t
launch_route_backward(int64_t rows, int64_t n_experts, int64_t top_k, const int32_t *expert,
                      const float *weight, const float *d_weight, void *d_scores,
                      cudaStream_t stream)
{
    return launch(route_backward<T>, blocks_for(rows, THREADS), THREADS, 0, stream, rows, n_experts,
                  top_k, expert, weight, d_weight, (T *)d_scores);
}

cudaError_t
kernels_route_backward(Dtype storage, int64_t rows, int64_t n_experts, int64_t top_k,
                       const int32_t *expert, const float *weight, const float *d_weight,
                       void *d_scores, cudaStream_t stream)
{
    return rows == 0 ? cudaSuccess
                     : DISPATCH(storage, launch_route_backward, rows, n_experts, top_k, expert,
                                weight, d_weight, d_scores, stream);
}

/* --- rows: a block each --- */

/* Pieces of sizeof(U) bytes. */
template <typename U>
__global__ void
gather_rows(int64_t n_pieces, const int32_t *from, const U *x, U *y)
{
    const U *source = x + from[blockIdx.x] * n_pieces;

    for (int64_t i = threadIdx.x; i < n_pieces; i += THREADS)
        y[blockIdx.x * n_pieces + i] = source[i];
}

cudaError_t
kernels_gather_rows(int64_t rows, int64_t row_bytes, const int32_t *from, const void *x, void *y,
                    cudaStream_t stream)
{
    const bool wide = (((uintptr_t)x | (uintptr_t)y) + (uintptr_t)row_bytes) % 16 == 0 &&
                      ((uintptr_t)x | (uintptr_t)y) % 16 == 0;

    if (rows == 0 || row_bytes == 0)
        return cudaSuccess;
    if (wide)
        return launch(gather_rows<uint4>, (unsigned)rows, THREADS, 0, stream, row_bytes / 16, from,
                      (const uint4 *)x, (uint4 *)y);
    return launch(gather_rows<char>, (unsigned)rows, THREADS, 0, stream, row_bytes, from,
                  (const char *)x, (char *)y);
}

template <typename T>
__global__ void
sum_rows(int64_t cols, int64_t n, const int32_t *from, const T *x, T *y)
{
    const int64_t row = blockIdx.x;

    for (int64_t j = threadIdx.x; j < cols; j += THREADS) {
        float sum = to_float(y[row * cols + j]);
        for (int64_t i = 0; i < n; i++)
            sum += to_float(x[from[row * n + i] * cols + j]);
        y[row * cols + j] = from_float<T>(sum);
    }
}

template <typename T>
__global__ void
scale_rows(int64_t cols, const float *factor, T *x)
{
    T *row = x + blockIdx.x * cols;
    const float f = factor[blockIdx.x];

    for (int64_t j = threadIdx.x; j < cols; j += THREADS)
        row[j] = from_float<T>(f * to_float(row[j]));
}

template <typename T>
__global__ void
dot_rows(int64_t cols, const T *x, const T *y, float *dot)
{
    __shared__ float scratch[THREADS / WARP];
    const int64_t at = blockIdx.x * cols;
    float sum = 0.0f;

    for (int64_t j = threadIdx.x; j < cols; j += THREADS)
        sum += to_float(x[at + j]) * to_float(y[at + j]);
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0)
        dot[blockIdx.x] = sum;
}

template <typename T>
static cudaError_t
launch_sum_rows(int64_t rows, int64_t cols, int64_t n, const int32_t *from, const void *x, void *y,
                cudaStream_t stream)
{
    return launch(sum_rows<T>, (unsigned)rows, THREADS, 0, stream, cols, n, from, (const T *)x,
                  (T *)y);
}

template <typename T>
static cudaError_t
launch_scale_rows(int64_t rows, int64_t cols, const float *factor, void *x, cudaStream_t stream)
{
    return launch(scale_rows<T>, (unsigned)rows, THREADS, 0, stream, cols, factor, (T *)x);
}

template <typename T>
static cudaError_t
launch_dot_rows(int64_t rows, int64_t cols, const void *x, const void *y, float *dot,
                cudaStream_t stream)
{
    return launch(dot_rows<T>, (unsigned)rows, THREADS, 0, stream, cols, (const T *)x, (const T *)y,
                  dot);
}

cudaError_t
kernels_sum_rows(Dtype storage, int64_t rows, int64_t cols, int64_t n, const int32_t *from,
                 const void *x, void *y, cudaStream_t stream)
{
    return rows == 0 ? cudaSuccess
                     : DISPATCH(storage, launch_sum_rows, rows, cols, n, from, x, y, stream);
}

cudaError_t
kernels_scale_rows(Dtype storage, int64_t rows, int64_t cols, const float *factor, void *x,
                   cudaStream_t stream)
{
    return rows == 0 ? cudaSuccess
                     : DISPATCH(storage, launch_scale_rows, rows, cols, factor, x, stream);
}

cudaError_t
kernels_dot_rows(Dtype storage, int64_t rows, int64_t cols, const void *x, const void *y,
                 float *dot, cudaStream_t stream)
{
    return rows == 0 ? cudaSuccess
                     : DISPATCH(storage, launch_dot_rows, rows, cols, x, y, dot, stream);
}
