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
/* Parts of one launch: their table is in the kernel's arguments, which may have 4 KiB. */
#define ADAMW_PARTS 56

struct AdamwPart {
    float *master;
    Bf16 *weights; /* NULL: the master weights are the weights */
    float *grad, *m, *v;
    int64_t n;
    float decay;
    bool aligned;        /* 16 bytes of each array may be moved at once, and 8 of bf16 */
    unsigned first, end; /* of the launch's blocks */
};

struct Adamw {
    AdamwPart parts[ADAMW_PARTS];
    int n_parts;
    const float *factor;
    float rate, beta1, beta2, epsilon, correct1, correct2;
};

/* Elements [i, i + N). */
template <int N>
__device__ __forceinline__ void
adamw_few(const Adamw &c, const AdamwPart &part, float factor, int64_t i)
{
    typedef Pack<float, N> Floats;
    Floats p = *(Floats *)(part.master + i), m = *(Floats *)(part.m + i);
    Floats v = *(Floats *)(part.v + i), g = *(Floats *)(part.grad + i);
    Pack<Bf16, N> rounded;

#pragma unroll
    for (int j = 0; j < N; j++) {
        const float clipped = factor * g.v[j];
        m.v[j] = c.beta1 * m.v[j] + (1.0f - c.beta1) * clipped;
        v.v[j] = c.beta2 * v.v[j] + (1.0f - c.beta2) * clipped * clipped;
        const float step = m.v[j] / c.correct1 / (sqrtf(v.v[j] / c.correct2) + c.epsilon);
        p.v[j] = p.v[j] - c.rate * part.decay * p.v[j] - c.rate * step;
        rounded.v[j] = from_float<Bf16>(p.v[j]);
        g.v[j] = 0.0f;
    }
    *(Floats *)(part.master + i) = p;
    *(Floats *)(part.m + i) = m;
    *(Floats *)(part.v + i) = v;
    *(Floats *)(part.grad + i) = g;
    if (part.weights != NULL)
        *(Pack<Bf16, N> *)(part.weights + i) = rounded;
}

/* N elements for each thread; the last n % N by one. */
template <int N>
__device__ __forceinline__ void
adamw_block(const Adamw &c, const AdamwPart &part, float factor)
{
    int64_t i = ((int64_t)(blockIdx.x - part.first) * ADAMW_THREADS + threadIdx.x) * N;

    if (i + N <= part.n)
        adamw_few<N>(c, part, factor, i);
    else
        for (; i < part.n; i++)
            adamw_few<1>(c, part, factor, i);
}

/* A block belongs to one part, which it finds by halves. */
__global__ void
adamw(const __grid_constant__ Adamw c)
{
    const float factor = c.factor != NULL ? *c.factor : 1.0f;
    int low = 0, high = c.n_parts - 1;

    while (low < high) {
        const int middle = (low + high) / 2;
        if (blockIdx.x < c.parts[middle].end)
            high = middle;
        else
            low = middle + 1;
    }
    if (c.parts[low].aligned)
        adamw_block<4>(c, c.parts[low], factor);
    else
        adamw_block<1>(c, c.parts[low], factor);
}

/* The next parts from @part on of one launch, as many as there is room for. */
static const ExecAdamwPart *
add_parts(Adamw *c, const ExecAdamwPart *part, const ExecAdamwPart *end, float weight_decay)
{
    unsigned n_blocks = 0;

    for (c->n_parts = 0; part < end && c->n_parts < ADAMW_PARTS; part++) {
        const bool aligned = ((uintptr_t)part->master | (uintptr_t)part->grad | (uintptr_t)part->m |
                              (uintptr_t)part->v) %
                                     16 ==
                                 0 &&
                             (uintptr_t)part->weights % 8 == 0;
        const unsigned blocks = blocks_for(part->n, aligned ? 4 * ADAMW_THREADS : ADAMW_THREADS);
        if (part->n == 0)
            continue;
        c->parts[c->n_parts++] = AdamwPart{
            part->master,
            (Bf16 *)part->weights,
            part->grad,
            part->m,
            part->v,
            part->n,
            part->decays ? weight_decay : 0.0f,
            aligned,
            n_blocks,
            n_blocks + blocks,
        };
        n_blocks += blocks;
    }
    return part;
}

cudaError_t
kernels_adamw(int64_t n_parts, const ExecAdamwPart *parts, const ExecAdamw *constants,
              cudaStream_t stream)
{
    Adamw c = {
        {},
        0,
        constants->factor,
        constants->learning_rate,
        constants->beta1,
        constants->beta2,
        constants->epsilon,
        (float)(1.0 - pow((double)constants->beta1, (double)constants->step)),
        (float)(1.0 - pow((double)constants->beta2, (double)constants->step)),
    };
    cudaError_t status = cudaSuccess;

    for (const ExecAdamwPart *part = parts, *end = parts + n_parts;
         part < end && status == cudaSuccess;) {
        part = add_parts(&c, part, end, constants->weight_decay);
        if (c.n_parts > 0)
            status = launch(adamw, c.parts[c.n_parts - 1].end, ADAMW_THREADS, 0, stream, c);
    }
    return status;
}
