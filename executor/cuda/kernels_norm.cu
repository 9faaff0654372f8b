/*
 * executor/cuda/kernels_norm.cu - LayerNorm and RMSNorm, and column sums.
 *
 * Sums over rows are deterministic: a fixed number of blocks each add their rows in order into
 * partial sums, and a second kernel adds those in order.
 */
#include "executor/cuda/kernels.cuh"

#define THREADS 256

/* --- forward: a block per row --- */

template <typename T, bool CENTERED>
__global__ void
norm_forward(ExecNorm norm, T *y)
{
    __shared__ float scratch[THREADS / WARP];
    const int64_t row = blockIdx.x, cols = norm.cols;
    const T *x = (const T *)norm.x + row * cols;
    const T *gain = (const T *)norm.gain, *shift = (const T *)norm.shift;
    float mean = 0.0f, squares = 0.0f;

    if (CENTERED) {
        for (int64_t j = threadIdx.x; j < cols; j += THREADS)
            mean += to_float(x[j]);
        mean = block_sum(mean, scratch) / (float)cols;
    }
    for (int64_t j = threadIdx.x; j < cols; j += THREADS) {
        const float z = to_float(x[j]) - mean;
        squares += z * z;
    }
    squares = block_sum(squares, scratch);
    const float rstd = 1.0f / sqrtf(squares / (float)cols + EXEC_NORM_EPSILON);
    for (int64_t j = threadIdx.x; j < cols; j += THREADS) {
        const float z = (to_float(x[j]) - mean) * rstd * to_float(gain[j]);
        y[row * cols + j] = from_float<T>(CENTERED ? z + to_float(shift[j]) : z);
    }
    if (threadIdx.x == 0) {
        norm.rstd[row] = rstd;
        if (CENTERED)
            norm.mean[row] = mean;
    }
}

/* --- backward --- */

/*
 * With z = (x - mean) rstd and g = dy gain: dx += rstd (g - mean(g) - z mean(g z)), without mean(g)
 * for RMSNorm.  Block b takes rows b, b + gridDim, ... and writes its sums of dy z (and of dy) to
 * row b of @partial [2, gridDim, cols]; each thread owns the same columns in every row.
 */
template <typename T, bool CENTERED>
__global__ void
norm_backward(ExecNorm norm, const T *dy, T *dx, float *partial)
{
    __shared__ float scratch[THREADS / WARP];
    const int64_t cols = norm.cols;
    float *sum_gain = (float *)launch_shared(), *sum_shift = sum_gain + cols;
    const T *gain = (const T *)norm.gain;

    for (int64_t j = threadIdx.x; j < cols; j += THREADS) {
        sum_gain[j] = 0.0f;
        if (CENTERED)
            sum_shift[j] = 0.0f;
    }
    for (int64_t row = blockIdx.x; row < norm.rows; row += gridDim.x) {
        const T *x = (const T *)norm.x + row * cols;
        const float mean = CENTERED ? norm.mean[row] : 0.0f, rstd = norm.rstd[row];
        float sum_g = 0.0f, sum_gz = 0.0f;
        for (int64_t j = threadIdx.x; j < cols; j += THREADS) {
            const float d = to_float(dy[row * cols + j]), z = (to_float(x[j]) - mean) * rstd;
            const float g = d * to_float(gain[j]);
            sum_g += g;
            sum_gz += g * z;
            sum_gain[j] += d * z;
            if (CENTERED)
                sum_shift[j] += d;
        }
        sum_g = CENTERED ? block_sum(sum_g, scratch) / (float)cols : 0.0f;
        sum_gz = block_sum(sum_gz, scratch) / (float)cols;
        for (int64_t j = threadIdx.x; j < cols; j += THREADS) {
            const float z = (to_float(x[j]) - mean) * rstd;
            const float g = to_float(dy[row * cols + j]) * to_float(gain[j]);
            T *to = dx + row * cols + j;
            *to = from_float<T>(to_float(*to) + rstd * (g - sum_g - z * sum_gz));
        }
    }
    for (int64_t j = threadIdx.x; j < cols; j += THREADS) {
        partial[blockIdx.x * cols + j] = sum_gain[j];
        if (CENTERED)
            partial[(gridDim.x + blockIdx.x) * cols + j] = sum_shift[j];
    }
}

/* sum[j] += partial[0][j] + partial[1][j] + ...; a thread per column. */
__global__ void
add_partials(int n_partials, int64_t cols, const float *partial, float *sum)
{
    const int64_t j = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (j >= cols)
        return;
    float total = 0.0f;
    for (int i = 0; i < n_partials; i++)
        total += partial[i * cols + j];
    sum[j] += total;
}

static cudaError_t
launch_add_partials(unsigned n_partials, int64_t cols, const float *partial, float *sum,
                    cudaStream_t stream)
{
    return launch(add_partials, blocks_for(cols, THREADS), THREADS, 0, stream, (int)n_partials,
                  cols, partial, sum);
}

template <typename T>
static cudaError_t
launch_norm_forward(const ExecNorm *norm, void *y, cudaStream_t stream)
{
    return launch(norm->shift != NULL ? norm_forward<T, true> : norm_forward<T, false>,
                  (unsigned)norm->rows, THREADS, 0, stream, *norm, (T *)y);
}

cudaError_t
kernels_norm_forward(Dtype storage, const ExecNorm *norm, void *y, cudaStream_t stream)
{
    return norm->rows == 0 ? cudaSuccess : DISPATCH(storage, launch_norm_forward, norm, y, stream);
}

template <typename T>
static cudaError_t
launch_norm_backward(const ExecNorm *norm, const void *dy, void *dx, float *dgain, float *dshift,
                     float *scratch, cudaStream_t stream)
{
    const bool centered = norm->shift != NULL;
    const unsigned n =
        norm->rows < KERNELS_PARTIALS ? (unsigned)norm->rows : (unsigned)KERNELS_PARTIALS;
    cudaError_t status = launch(centered ? norm_backward<T, true> : norm_backward<T, false>, n,
                                THREADS, (size_t)norm->cols * (centered ? 2 : 1) * sizeof(float),
                                stream, *norm, (const T *)dy, (T *)dx, scratch);

    if (status == cudaSuccess)
        status = launch_add_partials(n, norm->cols, scratch, dgain, stream);
    if (status == cudaSuccess && centered)
        status = launch_add_partials(n, norm->cols, scratch + n * norm->cols, dshift, stream);
    return status;
}

cudaError_t
kernels_norm_backward(Dtype storage, const ExecNorm *norm, const void *dy, void *dx, float *dgain,
                      float *dshift, float *scratch, cudaStream_t stream)
{
    if (norm->cols > KERNELS_NORM_MAX_COLS)
        return cudaErrorInvalidValue;
    return norm->rows == 0 ? cudaSuccess
                           : DISPATCH(storage, launch_norm_backward, norm, dy, dx, dgain, dshift,
                                      scratch, stream);
}

/* --- column sums: block (c, b) adds rows of chunk b of 32 columns, 8 rows at a time --- */

#define LINES (THREADS / WARP)

template <typename T>
__global__ void
column_sums(int64_t rows, int64_t cols, int64_t rows_per_block, const T *x, int64_t stride,
            float *partial)
{
    __shared__ float lines[LINES][WARP];
    const int64_t col = (int64_t)blockIdx.x * WARP + threadIdx.x % WARP;
    const unsigned line = threadIdx.x / WARP;
    const int64_t begin = (int64_t)blockIdx.y * rows_per_block;
    const int64_t end = begin + rows_per_block < rows ? begin + rows_per_block : rows;
    float sum = 0.0f;

    if (col < cols)
        for (int64_t row = begin + line; row < end; row += LINES)
            sum += to_float(x[row * stride + col]);
    lines[line][threadIdx.x % WARP] = sum;
    __syncthreads();
    if (line == 0 && col < cols) {
        sum = 0.0f;
        for (int i = 0; i < LINES; i++)
            sum += lines[i][threadIdx.x];
        partial[blockIdx.y * cols + col] = sum;
    }
}

template <typename T>
static cudaError_t
launch_column_sums(int64_t rows, int64_t cols, const void *x, int64_t stride, float *sum,
                   float *scratch, cudaStream_t stream)
{
    const int64_t per_block = (rows + KERNELS_PARTIALS - 1) / KERNELS_PARTIALS < 4 * LINES
                                  ? 4 * LINES
                                  : (rows + KERNELS_PARTIALS - 1) / KERNELS_PARTIALS;
    const unsigned n = blocks_for(rows, per_block);
    const cudaError_t status = launch(column_sums<T>, dim3(blocks_for(cols, WARP), n), THREADS, 0,
                                      stream, rows, cols, per_block, (const T *)x, stride, scratch);

    return status != cudaSuccess ? status : launch_add_partials(n, cols, scratch, sum, stream);
}

cudaError_t
kernels_bias_backward(Dtype storage, int64_t rows, int64_t cols, const void *dy, int64_t stride,
                      float *db, float *scratch, cudaStream_t stream)
{
    return rows == 0 || cols == 0
               ? cudaSuccess
               : DISPATCH(storage, launch_column_sums, rows, cols, dy, stride, db, scratch, stream);
}
