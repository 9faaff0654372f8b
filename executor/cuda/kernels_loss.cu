/* executor/cuda/kernels_loss.cu - both ends of the model: embedding and cross-entropy. */
#include "executor/cuda/kernels.cuh"

#define THREADS 256

/* --- embedding: a block per row --- */

template <typename T>
__global__ void
embedding_forward(ExecEmbedding e, const T *table, const T *positions, T *x)
{
    const int64_t row = blockIdx.x, token = e.token[row] - e.first_token;
    const T *from = table + token * e.cols;
    const bool here = token >= 0 && token < e.n_tokens;
    const T *place =
        positions == NULL ? NULL : positions + (int64_t)e.position[row / e.sequences] * e.cols;

    for (int64_t j = threadIdx.x; j < e.cols; j += THREADS)
        x[row * e.cols + j] = from_float<T>((here ? to_float(from[j]) : 0.0f) +
                                            (place != NULL ? to_float(place[j]) : 0.0f));
}

/*
 * dtable[token of row] += dx[row].  Block (c, g) owns THREADS columns of the tokens that are g
 * modulo gridDim.y and walks over all rows, so every element has one thread that adds to it, in row
 * order.  The addition does not wait for its result: one thread's additions to one address are done
 * in program order.
 */
#define TOKEN_GROUPS 32

template <typename T>
__global__ void
embedding_backward_tokens(ExecEmbedding e, const T *dx, float *dtable)
{
    const int64_t col = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (col >= e.cols)
        return;
    for (int64_t row = 0; row < e.rows; row++) {
        const int64_t token = e.token[row] - e.first_token;
        if (token >= 0 && token < e.n_tokens && token % gridDim.y == blockIdx.y)
            atomicAdd(&dtable[token * e.cols + col], to_float(dx[row * e.cols + col]));
    }
}

/* Block t adds the rows of token t of all sequences; tokens have different positions. */
template <typename T>
__global__ void
embedding_backward_positions(ExecEmbedding e, const T *dx, float *dpositions)
{
    const int64_t t = blockIdx.x;
    float *to = dpositions + (int64_t)e.position[t] * e.cols;

    for (int64_t j = threadIdx.x; j < e.cols; j += THREADS) {
        float sum = to[j];
        for (int64_t row = t * e.sequences; row < (t + 1) * e.sequences; row++)
            sum += to_float(dx[row * e.cols + j]);
        to[j] = sum;
    }
}

template <typename T>
static cudaError_t
launch_embedding_forward(const ExecEmbedding *e, const void *table, const void *positions, void *x,
                         cudaStream_t stream)
{
    return launch(embedding_forward<T>, (unsigned)e->rows, THREADS, 0, stream, *e, (const T *)table,
                  (const T *)positions, (T *)x);
}

cudaError_t
kernels_embedding_forward(Dtype storage, const ExecEmbedding *e, const void *table,
                          const void *positions, void *x, cudaStream_t stream)
{
    return e->rows == 0
               ? cudaSuccess
               : DISPATCH(storage, launch_embedding_forward, e, table, positions, x, stream);
}

template <typename T>
static cudaError_t
launch_embedding_backward(const ExecEmbedding *e, const void *dx, float *dtable, float *dpositions,
                          cudaStream_t stream)
{
    const cudaError_t status =
        launch(embedding_backward_tokens<T>, dim3(blocks_for(e->cols, THREADS), TOKEN_GROUPS),
               THREADS, 0, stream, *e, (const T *)dx, dtable);

    if (status != cudaSuccess || dpositions == NULL)
        return status;
    return launch(embedding_backward_positions<T>, (unsigned)(e->rows / e->sequences), THREADS, 0,
                  stream, *e, (const T *)dx, dpositions);
}

cudaError_t
kernels_embedding_backward(Dtype storage, const ExecEmbedding *e, const void *dx, float *dtable,
                           float *dpositions, cudaStream_t stream)
{
    return e->rows == 0
               ? cudaSuccess
               : DISPATCH(storage, launch_embedding_backward, e, dx, dtable, dpositions, stream);
}

/* --- cross-entropy: a block per row --- */

/* Largest logit of a row and the sum of exp(logit - largest). */
struct RowSum {
    float largest, sum;
};

/* One pass: each thread rescales its sum when it meets a larger logit. */
template <typename T>
__device__ __forceinline__ RowSum
row_statistics(const T *logits, int64_t vocab, float *scratch)
{
    float largest = -INFINITY, sum = 0.0f;

    for (int64_t j = threadIdx.x; j < vocab; j += THREADS) {
        const float x = to_float(logits[j]);
        if (x > largest) {
            sum *= expf(largest - x);
            largest = x;
        }
        sum += expf(x - largest);
    }
    RowSum row;
    row.largest = block_max(largest, scratch);
    row.sum = block_sum(largest == -INFINITY ? 0.0f : sum * expf(largest - row.largest), scratch);
    return row;
}

template <typename T>
__global__ void
cross_entropy_stats(ExecCrossEntropy e, float *stats)
{
    __shared__ float scratch[THREADS / WARP];
    const int64_t row = blockIdx.x, target = e.target[row] - e.first;
    const T *logits = (const T *)e.logits + row * e.vocab;
    const RowSum r = row_statistics(logits, e.vocab, scratch);

    if (threadIdx.x == 0) {
        stats[row] = r.largest;
        stats[e.rows + row] = r.sum;
        stats[2 * e.rows + row] = target >= 0 && target < e.vocab ? to_float(logits[target]) : 0.0f;
    }
}

/* The statistics of all parts as those of the whole row; @target_logit likewise. */
__device__ __forceinline__ RowSum
joined_statistics(const ExecCrossEntropy &e, int64_t row, float *target_logit)
{
    RowSum r = {-INFINITY, 0.0f};

    *target_logit = 0.0f;
    for (int64_t part = 0; part < e.n_parts; part++)
        r.largest = fmaxf(r.largest, e.stats[3 * part * e.rows + row]);
    for (int64_t part = 0; part < e.n_parts; part++) {
        const float *stats = e.stats + 3 * part * e.rows + row;
        if (stats[e.rows] > 0.0f)
            r.sum += stats[e.rows] * expf(stats[0] - r.largest);
        *target_logit += stats[2 * e.rows];
    }
    return r;
}

template <typename T>
__global__ void
cross_entropy(ExecCrossEntropy e, float *row_losses)
{
    __shared__ float scratch[THREADS / WARP];
    const int64_t row = blockIdx.x, target = e.target[row] - e.first;
    T *logits = (T *)e.logits + row * e.vocab;
    float target_logit;
    RowSum r;

    if (e.stats != NULL) {
        r = joined_statistics(e, row, &target_logit);
    } else {
        r = row_statistics(logits, e.vocab, scratch);
        target_logit = to_float(logits[target]);
    }
    if (threadIdx.x == 0)
        row_losses[row] = r.largest + logf(r.sum) - target_logit;
    __syncthreads(); /* the target's logit has been read */
    for (int64_t j = threadIdx.x; j < e.vocab; j += THREADS)
        logits[j] = from_float<T>(e.factor * (expf(to_float(logits[j]) - r.largest) / r.sum -
                                              (j == target ? 1.0f : 0.0f)));
}

/* One block; thread i adds rows i, i + THREADS, ... in double, then thread 0 the threads' sums. */
__global__ void
sum_losses(int64_t rows, const float *row_losses, double *loss)
{
    __shared__ double sums[THREADS];
    double sum = 0.0;

    for (int64_t row = threadIdx.x; row < rows; row += THREADS)
        sum += (double)row_losses[row];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        sum = 0.0;
        for (int i = 0; i < THREADS; i++)
            sum += sums[i];
        *loss = sum;
    }
}

template <typename T>
static cudaError_t
launch_stats(const ExecCrossEntropy *e, float *stats, cudaStream_t stream)
{
    return launch(cross_entropy_stats<T>, (unsigned)e->rows, THREADS, 0, stream, *e, stats);
}

cudaError_t
kernels_cross_entropy_stats(Dtype storage, const ExecCrossEntropy *e, float *stats,
                            cudaStream_t stream)
{
    return e->rows == 0 ? cudaSuccess : DISPATCH(storage, launch_stats, e, stats, stream);
}

template <typename T>
static cudaError_t
launch_cross_entropy(const ExecCrossEntropy *e, float *row_losses, cudaStream_t stream)
{
    const cudaError_t status = e->rows == 0 ? cudaSuccess
                                            : launch(cross_entropy<T>, (unsigned)e->rows, THREADS,
                                                     0, stream, *e, row_losses);

    return status != cudaSuccess ? status
                                 : launch(sum_losses, 1, THREADS, 0, stream, e->rows,
                                          (const float *)row_losses, e->loss);
}

cudaError_t
kernels_cross_entropy(Dtype storage, const ExecCrossEntropy *e, float *row_losses,
                      cudaStream_t stream)
{
    return DISPATCH(storage, launch_cross_entropy, e, row_losses, stream);
}
