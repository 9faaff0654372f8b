/*
 * executor/cuda/kernels_heads.cu - slots that attention of more than plain queries, keys and values needs: norms
 * of heads and latents, blocks of columns, gates.  All are bound by memory; sums have a fixed order.
 */
#include "executor/cuda/kernels.cuh"

#define N_WARPS 8
#define THREADS (N_WARPS * WARP)

/* A thread for each of @n elements; kernels get @n as their first argument. */
template <typename... P, typename... A>
static cudaError_t
launch_each(void (*kernel)(P...), int64_t n, cudaStream_t stream, A... arguments)
{
    return n == 0 ? cudaSuccess
                  : launch(kernel, blocks_for(n, THREADS), THREADS, 0, stream, n, arguments...);
}

/* A warp for each of @n groups. */
template <typename... P, typename... A>
static cudaError_t
launch_warps(void (*kernel)(P...), int64_t n, cudaStream_t stream, A... arguments)
{
    return n == 0 ? cudaSuccess
                  : launch(kernel, blocks_for(n, N_WARPS), THREADS, 0, stream, n, arguments...);
}

__device__ __forceinline__ int64_t
warp_number(void)
{
    return (int64_t)blockIdx.x * N_WARPS + threadIdx.x / WARP;
}

/* --- norms of groups --- */

struct Moments {
    float mean, rstd;
};

/* Of group @i of all. */
__device__ __forceinline__ Moments
moments(const ExecGroupNorm &norm, int64_t i)
{
    const float n = (float)norm.n;
    Moments m;

    m.mean = norm.centred ? norm.sums[norm.rows * norm.groups + i] / n : 0.0f;
    m.rstd = 1.0f / sqrtf(fmaxf(norm.sums[i] / n - m.mean * m.mean, 0.0f) + norm.epsilon);
    return m;
}

template <typename T>
__device__ __forceinline__ float
gain_of(const ExecGroupNorm &norm, int64_t group, int64_t c)
{
    return norm.gain != NULL ? to_float(((const T *)norm.gain)[group * norm.gain_step + c]) : 1.0f;
}

template <typename T>
__device__ __forceinline__ const T *
group_at(const ExecGroupNorm &norm, int64_t i)
{
    return (const T *)norm.x + i / norm.groups * norm.x_stride + i % norm.groups * norm.cols;
}

template <typename T>
__global__ void
group_norm_sums(int64_t n, ExecGroupNorm norm)
{
    const int64_t i = warp_number();
    const int lane = (int)threadIdx.x % WARP;
    float squares = 0.0f, sum = 0.0f;

    if (i >= n)
        return;
    const T *x = group_at<T>(norm, i);
    for (int64_t c = lane; c < norm.cols; c += WARP) {
        const float v = to_float(x[c]);
        squares += v * v;
        sum += v;
    }
    squares = warp_sum(squares);
    sum = warp_sum(sum);
    if (lane != 0)
        return;
    norm.sums[i] = squares;
    if (norm.centred)
        norm.sums[n + i] = sum;
}

template <typename T>
__global__ void
group_norm_forward(int64_t n, ExecGroupNorm norm, T *y, int64_t y_stride)
{
    const int64_t i = warp_number();

    if (i >= n)
        return;
    const int64_t group = i % norm.groups;
    const T *x = group_at<T>(norm, i), *shift = (const T *)norm.shift;
    T *to = y + i / norm.groups * y_stride + group * norm.cols;
    const Moments m = moments(norm, i);
    for (int64_t c = threadIdx.x % WARP; c < norm.cols; c += WARP)
        to[c] = from_float<T>((to_float(x[c]) - m.mean) * m.rstd * gain_of<T>(norm, group, c) +
                              (shift != NULL ? to_float(shift[group * norm.gain_step + c]) : 0.0f));
}

template <typename T>
__global__ void
group_norm_backward_sums(int64_t n, ExecGroupNorm norm, const T *dy, int64_t dy_stride,
                         float *d_sums)
{
    const int64_t i = warp_number();
    const int lane = (int)threadIdx.x % WARP;
    float products = 0.0f, sum = 0.0f;

    if (i >= n)
        return;
    const int64_t group = i % norm.groups;
    const T *x = group_at<T>(norm, i), *d = dy + i / norm.groups * dy_stride + group * norm.cols;
    const Moments m = moments(norm, i);
    for (int64_t c = lane; c < norm.cols; c += WARP) {
        const float slope = to_float(d[c]) * gain_of<T>(norm, group, c);
        products += slope * (to_float(x[c]) - m.mean) * m.rstd;
        sum += slope;
    }
    products = warp_sum(products);
    sum = warp_sum(sum);
    if (lane != 0)
        return;
    d_sums[i] = products;
    if (norm.centred)
        d_sums[n + i] = sum;
}

/* Block b sums columns [32 b, 32 b + 32) of the gains and shifts: each warp some of the rows, whose sums are added
 * in the warps' order.  With gain_step 0 all groups of a row have the same gains. */
template <typename T>
__global__ void
group_norm_parameters(ExecGroupNorm norm, const T *dy, int64_t dy_stride, float *dgain,
                      float *dshift)
{
    __shared__ float gains[N_WARPS][WARP], shifts[N_WARPS][WARP];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t n_gains = norm.cols + (norm.groups - 1) * norm.gain_step;
    const int64_t col = (int64_t)blockIdx.x * WARP + lane;
    const int64_t first = norm.gain_step > 0 ? col / norm.cols : 0;
    const int64_t last = norm.gain_step > 0 ? first + 1 : norm.groups;
    float gain = 0.0f, shift = 0.0f;

    for (int64_t r = warp; r < norm.rows && col < n_gains; r += N_WARPS)
        for (int64_t group = first; group < last; group++) {
            const int64_t i = r * norm.groups + group, c = col - group * norm.gain_step;
            const Moments m = moments(norm, i);
            const float d = to_float(dy[r * dy_stride + group * norm.cols + c]);
            gain += d * (to_float(group_at<T>(norm, i)[c]) - m.mean) * m.rstd;
            shift += d;
        }
    gains[warp][lane] = gain;
    shifts[warp][lane] = shift;
    __syncthreads();
    if (warp > 0 || col >= n_gains)
        return;
    for (int w = 1; w < N_WARPS; w++) {
        gain += gains[w][lane];
        shift += shifts[w][lane];
    }
    if (dgain != NULL)
        dgain[col] += gain;
    if (dshift != NULL)
        dshift[col] += shift;
}

template <typename T>
__global__ void
group_norm_backward(int64_t n, ExecGroupNorm norm, const float *d_sums, T *d, int64_t d_stride)
{
    const int64_t i = warp_number();

    if (i >= n)
        return;
    const int64_t group = i % norm.groups;
    const T *x = group_at<T>(norm, i);
    T *to = d + i / norm.groups * d_stride + group * norm.cols;
    const Moments m = moments(norm, i);
    const float product = d_sums[i] / (float)norm.n;
    const float mean = norm.centred ? d_sums[n + i] / (float)norm.n : 0.0f;
    for (int64_t c = threadIdx.x % WARP; c < norm.cols; c += WARP) {
        const float z = (to_float(x[c]) - m.mean) * m.rstd;
        to[c] = from_float<T>(m.rstd *
                              (to_float(to[c]) * gain_of<T>(norm, group, c) - mean - z * product));
    }
}

cudaError_t
kernels_group_norm_sums(Dtype storage, const ExecGroupNorm *norm, cudaStream_t stream)
{
    return for_type(storage, [&](auto zero) {
        return launch_warps(group_norm_sums<decltype(zero)>, norm->rows * norm->groups, stream,
                            *norm);
    });
}

cudaError_t
kernels_group_norm_forward(Dtype storage, const ExecGroupNorm *norm, void *y, int64_t y_stride,
                           cudaStream_t stream)
{
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        return launch_warps(group_norm_forward<T>, norm->rows * norm->groups, stream, *norm, (T *)y,
                            y_stride);
    });
}

cudaError_t
kernels_group_norm_backward_sums(Dtype storage, const ExecGroupNorm *norm, const void *dy,
                                 int64_t dy_stride, float *d_sums, cudaStream_t stream)
{
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        return launch_warps(group_norm_backward_sums<T>, norm->rows * norm->groups, stream, *norm,
                            (const T *)dy, dy_stride, d_sums);
    });
}

cudaError_t
kernels_group_norm_backward(Dtype storage, const ExecGroupNorm *norm, const float *d_sums, void *d,
                            int64_t d_stride, float *dgain, float *dshift, cudaStream_t stream)
{
    const int64_t n_gains = norm->cols + (norm->groups - 1) * norm->gain_step;

    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        if (dgain != NULL || dshift != NULL)
            TRY(launch(group_norm_parameters<T>, blocks_for(n_gains, WARP), THREADS, 0, stream,
                       *norm, (const T *)d, d_stride, dgain, dshift));
        return launch_warps(group_norm_backward<T>, norm->rows * norm->groups, stream, *norm,
                            d_sums, (T *)d, d_stride);
    });
}

/* --- blocks of columns --- */

template <typename T>
__global__ void
copy_blocks(int64_t n, ExecBlocks b, const T *x, T *y)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i >= n)
        return;
    const int64_t c = i % b.cols, block = i / b.cols % b.blocks, row = i / b.cols / b.blocks;
    y[row * b.to_stride + block * b.to_step + c] = x[row * b.from_stride + block * b.from_step + c];
}

template <typename T>
__global__ void
sum_blocks(int64_t n, ExecBlocks b, const T *x, T *y)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float sum = 0.0f;

    if (i >= n)
        return;
    const int64_t c = i % b.cols, row = i / b.cols;
    for (int64_t block = 0; block < b.blocks; block++)
        sum += to_float(x[row * b.from_stride + block * b.from_step + c]);
    y[row * b.to_stride + c] = from_float<T>(sum);
}

cudaError_t
kernels_copy_blocks(Dtype storage, const ExecBlocks *b, const void *x, void *y, cudaStream_t stream)
{
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        return launch_each(copy_blocks<T>, b->rows * b->blocks * b->cols, stream, *b, (const T *)x,
                           (T *)y);
    });
}

cudaError_t
kernels_sum_blocks(Dtype storage, const ExecBlocks *b, const void *x, void *y, cudaStream_t stream)
{
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        return launch_each(sum_blocks<T>, b->rows * b->cols, stream, *b, (const T *)x, (T *)y);
    });
}

/* --- gates --- */

__device__ __forceinline__ float
sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

template <typename T>
__global__ void
gate_forward(int64_t n, ExecGate gate, T *y)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i >= n)
        return;
    const float z = to_float(((const T *)gate.gate)[gate.per_row ? i / gate.cols : i]);
    y[i] = from_float<T>(to_float(((const T *)gate.x)[i]) * sigmoid(z));
}

/* A warp for each row. */
template <typename T>
__global__ void
gate_backward(int64_t n, ExecGate gate, T *d, T *dgate)
{
    const int64_t row = warp_number();
    const int lane = (int)threadIdx.x % WARP;
    float sum = 0.0f;

    if (row >= n)
        return;
    for (int64_t c = lane; c < gate.cols; c += WARP) {
        const int64_t i = row * gate.cols + c;
        const float s = sigmoid(to_float(((const T *)gate.gate)[gate.per_row ? row : i]));
        const float dy = to_float(d[i]);
        const float slope = dy * to_float(((const T *)gate.x)[i]) * s * (1.0f - s);
        d[i] = from_float<T>(dy * s);
        sum += slope;
        if (!gate.per_row)
            dgate[i] = from_float<T>(slope);
    }
    sum = warp_sum(sum);
    if (gate.per_row && lane == 0)
        dgate[row] = from_float<T>(sum);
}

cudaError_t
kernels_gate_forward(Dtype storage, const ExecGate *gate, void *y, cudaStream_t stream)
{
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        return launch_each(gate_forward<T>, gate->rows * gate->cols, stream, *gate, (T *)y);
    });
}

cudaError_t
kernels_gate_backward(Dtype storage, const ExecGate *gate, void *d, void *dgate,
                      cudaStream_t stream)
{
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        return launch_warps(gate_backward<T>, gate->rows, stream, *gate, (T *)d, (T *)dgate);
    });
}
