/* executor/cuda/kernels_optimizer.cu - the end of a step: the gradient's norm, clipping, AdamW. */
#include "executor/cuda/kernels.cuh"

/* --- the norm --- */

/* As many threads as 128 multiprocessors hold, each with one load of 16 bytes under way, are enough
 * to wait for memory only. */
#define SUM_THREADS 512

/* Block b adds its squares to partial sum b. */
template <int N>
__global__ void
__launch_bounds__(SUM_THREADS) sum_squares(int64_t n, const float *x, ExecClip *clip)
{
    __shared__ double scratch[SUM_THREADS / WARP];
    const int64_t n_threads = (int64_t)gridDim.x * SUM_THREADS;
    const int64_t thread = (int64_t)blockIdx.x * SUM_THREADS + threadIdx.x;
    double sum = 0.0;

    for (int64_t i = thread * N; i + N <= n; i += n_threads * N) {
        const Pack<float, N> a = *(const Pack<float, N> *)(x + i);
#pragma unroll
        for (int j = 0; j < N; j++)
            sum += (double)a.v[j] * (double)a.v[j];
    }
    if (thread < n % N) {
        const double last = (double)x[n - 1 - thread];
        sum += last * last;
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0)
        clip->squares[blockIdx.x] += sum;
}

cudaError_t
kernels_sum_squares(int64_t n, const float *x, ExecClip *clip, cudaStream_t stream)
{
    const bool aligned = (uintptr_t)x % 16 == 0;
    const unsigned n_blocks = blocks_for(n, aligned ? 4 * SUM_THREADS : SUM_THREADS);

    if (n == 0)
        return cudaSuccess;
    return launch(aligned ? sum_squares<4> : sum_squares<1>,
                  n_blocks < EXEC_PARTIAL_SUMS ? n_blocks : EXEC_PARTIAL_SUMS, SUM_THREADS, 0,
                  stream, n, x, clip);
}

/* One block; a thread for each partial sum. */
__global__ void
__launch_bounds__(EXEC_PARTIAL_SUMS) join_sums(int64_t n, double limit, ExecClip *clip)
{
    __shared__ double scratch[EXEC_PARTIAL_SUMS / WARP];
    const double sum = block_sum(threadIdx.x < n ? clip->squares[threadIdx.x] : 0.0, scratch);

    if (threadIdx.x != 0)
        return;
    const double norm = sqrt(sum);
    clip->squares[0] = sum;
    clip->factor = norm > limit ? (float)(limit / norm) : 1.0f;
}

cudaError_t
kernels_clip(int64_t n, double limit, ExecClip *clip, cudaStream_t stream)
{
    return launch(join_sums, 1, EXEC_PARTIAL_SUMS, 0, stream, n, limit, clip);
}

/* --- AdamW: clipping, the step and zeroing in one pass --- */

#define ADAMW_THREADS 256

struct Adamw {
    float *master;
    Bf16 *weights; /* NULL: the master weights are the weights */
    float *grad, *m, *v;
    const float *factor;
    float rate, beta1, beta2, epsilon, decay, correct1, correct2;
};

/* Elements [i, i + N). */
template <int N>
__device__ __forceinline__ void
adamw_few(const Adamw &c, float factor, int64_t i)
{
    typedef Pack<float, N> Floats;
    Floats p = *(Floats *)(c.master + i), m = *(Floats *)(c.m + i), v = *(Floats *)(c.v + i);
    Floats g = *(Floats *)(c.grad + i);
    Pack<Bf16, N> rounded;

#pragma unroll
    for (int j = 0; j < N; j++) {
        const float clipped = factor * g.v[j];
        m.v[j] = c.beta1 * m.v[j] + (1.0f - c.beta1) * clipped;
        v.v[j] = c.beta2 * v.v[j] + (1.0f - c.beta2) * clipped * clipped;
        const float step = m.v[j] / c.correct1 / (sqrtf(v.v[j] / c.correct2) + c.epsilon);
        p.v[j] = p.v[j] - c.rate * c.decay * p.v[j] - c.rate * step;
        rounded.v[j] = from_float<Bf16>(p.v[j]);
        g.v[j] = 0.0f;
    }
    *(Floats *)(c.master + i) = p;
    *(Floats *)(c.m + i) = m;
    *(Floats *)(c.v + i) = v;
    *(Floats *)(c.grad + i) = g;
    if (c.weights != NULL)
        *(Pack<Bf16, N> *)(c.weights + i) = rounded;
}

/* N elements for each thread; the last n % N by one. */
template <int N>
__global__ void
adamw(int64_t n, Adamw c)
{
    const float factor = c.factor != NULL ? *c.factor : 1.0f;
    int64_t i = ((int64_t)blockIdx.x * ADAMW_THREADS + threadIdx.x) * N;

    if (i + N <= n)
        adamw_few<N>(c, factor, i);
    else
        for (; i < n; i++)
            adamw_few<1>(c, factor, i);
}

cudaError_t
kernels_adamw(int64_t n, float *master, Dtype storage, void *weights, float *grad, float *m,
              float *v, const ExecAdamw *constants, cudaStream_t stream)
{
    const Adamw c = {
        master,
        storage == DTYPE_FP32 ? (Bf16 *)NULL : (Bf16 *)weights,
        grad,
        m,
        v,
        constants->factor,
        constants->learning_rate,
        constants->beta1,
        constants->beta2,
        constants->epsilon,
        constants->weight_decay,
        (float)(1.0 - pow((double)constants->beta1, (double)constants->step)),
        (float)(1.0 - pow((double)constants->beta2, (double)constants->step)),
    };
    /* 16 bytes of each, and 8 of bf16. */
    const bool aligned =
        ((uintptr_t)master | (uintptr_t)grad | (uintptr_t)m | (uintptr_t)v) % 16 == 0 &&
        (uintptr_t)c.weights % 8 == 0;

    if (n == 0)
        return cudaSuccess;
    return launch(aligned ? adamw<4> : adamw<1>,
                  blocks_for(n, aligned ? 4 * ADAMW_THREADS : ADAMW_THREADS), ADAMW_THREADS, 0,
                  stream, n, c);
}
