/*
 * executor/cuda/kernels_rows.cu - sums and moves by rows: norms, column sums, embedding,
 * cross-entropy, and routing, moving and weighing rows of experts.
 *
 * Sums over rows are deterministic: a fixed number of blocks each add their rows in order into
 * partial sums, and a second kernel adds those in order.
 */
#include "executor/cuda/kernels.cuh"

#define THREADS 256

/* A block for each of @rows. */
template <typename... P, typename... A>
static cudaError_t
launch_rows(void (*kernel)(P...), int64_t rows, cudaStream_t stream, A... arguments)
{
    return rows == 0 ? cudaSuccess
                     : launch(kernel, (unsigned)rows, THREADS, 0, stream, arguments...);
}

/* --- LayerNorm and RMSNorm, forward: a block per row --- */

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

/* --- LayerNorm and RMSNorm, backward --- */

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

cudaError_t
kernels_norm_forward(Dtype storage, const ExecNorm *norm, void *y, cudaStream_t stream)
{
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        return launch_rows(norm->shift != NULL ? norm_forward<T, true> : norm_forward<T, false>,
                           norm->rows, stream, *norm, (T *)y);
    });
}

cudaError_t
kernels_norm_backward(Dtype storage, const ExecNorm *norm, const void *dy, void *dx, float *dgain,
                      float *dshift, float *scratch, cudaStream_t stream)
{
    if (norm->cols > KERNELS_NORM_MAX_COLS)
        return cudaErrorInvalidValue;
    if (norm->rows == 0)
        return cudaSuccess;
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        const bool centered = norm->shift != NULL;
        const unsigned n =
            norm->rows < KERNELS_PARTIALS ? (unsigned)norm->rows : (unsigned)KERNELS_PARTIALS;
        TRY(launch(centered ? norm_backward<T, true> : norm_backward<T, false>, n, THREADS,
                   (size_t)norm->cols * (centered ? 2 : 1) * sizeof(float), stream, *norm,
                   (const T *)dy, (T *)dx, scratch));
        TRY(launch_add_partials(n, norm->cols, scratch, dgain, stream));
        return centered
                   ? launch_add_partials(n, norm->cols, scratch + n * norm->cols, dshift, stream)
                   : cudaSuccess;
    });
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

cudaError_t
kernels_bias_backward(Dtype storage, int64_t rows, int64_t cols, const void *dy, int64_t stride,
                      float *db, float *scratch, cudaStream_t stream)
{
    if (rows == 0 || cols == 0)
        return cudaSuccess;
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        const int64_t per_block = (rows + KERNELS_PARTIALS - 1) / KERNELS_PARTIALS < 4 * LINES
                                      ? 4 * LINES
                                      : (rows + KERNELS_PARTIALS - 1) / KERNELS_PARTIALS;
        const unsigned n = blocks_for(rows, per_block);
        TRY(launch(column_sums<T>, dim3(blocks_for(cols, WARP), n), THREADS, 0, stream, rows, cols,
                   per_block, (const T *)dy, stride, scratch));
        return launch_add_partials(n, cols, scratch, db, stream);
    });
}

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
/* Groups of tokens: with 256 columns to a block, a row of 4096 gives 512 blocks, four for each of
 * an H100's 132 multiprocessors. */
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

cudaError_t
kernels_embedding_forward(Dtype storage, const ExecEmbedding *e, const void *table,
                          const void *positions, void *x, cudaStream_t stream)
{
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        return launch_rows(embedding_forward<T>, e->rows, stream, *e, (const T *)table,
                           (const T *)positions, (T *)x);
    });
}

cudaError_t
kernels_embedding_backward(Dtype storage, const ExecEmbedding *e, const void *dx, float *dtable,
                           float *dpositions, cudaStream_t stream)
{
    if (e->rows == 0)
        return cudaSuccess;
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        TRY(launch(embedding_backward_tokens<T>, dim3(blocks_for(e->cols, THREADS), TOKEN_GROUPS),
                   THREADS, 0, stream, *e, (const T *)dx, dtable));
        if (dpositions == NULL)
            return cudaSuccess;
        return launch(embedding_backward_positions<T>, (unsigned)(e->rows / e->sequences), THREADS,
                      0, stream, *e, (const T *)dx, dpositions);
    });
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

cudaError_t
kernels_cross_entropy_stats(Dtype storage, const ExecCrossEntropy *e, float *stats,
                            cudaStream_t stream)
{
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        return launch_rows(cross_entropy_stats<T>, e->rows, stream, *e, stats);
    });
}

cudaError_t
kernels_cross_entropy(Dtype storage, const ExecCrossEntropy *e, float *row_losses,
                      cudaStream_t stream)
{
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        TRY(launch_rows(cross_entropy<T>, e->rows, stream, *e, row_losses));
        return launch(sum_losses, 1, THREADS, 0, stream, e->rows, (const float *)row_losses,
                      e->loss);
    });
}

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

cudaError_t
kernels_route_backward(Dtype storage, int64_t rows, int64_t n_experts, int64_t top_k,
                       const int32_t *expert, const float *weight, const float *d_weight,
                       void *d_scores, cudaStream_t stream)
{
    if (rows == 0)
        return cudaSuccess;
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        return launch(route_backward<T>, blocks_for(rows, THREADS), THREADS, 0, stream, rows,
                      n_experts, top_k, expert, weight, d_weight, (T *)d_scores);
    });
}

/* --- rows of experts: a block each --- */

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

cudaError_t
kernels_sum_rows(Dtype storage, int64_t rows, int64_t cols, int64_t n, const int32_t *from,
                 const void *x, void *y, cudaStream_t stream)
{
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        return launch_rows(sum_rows<T>, rows, stream, cols, n, from, (const T *)x, (T *)y);
    });
}

cudaError_t
kernels_scale_rows(Dtype storage, int64_t rows, int64_t cols, const float *factor, void *x,
                   cudaStream_t stream)
{
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        return launch_rows(scale_rows<T>, rows, stream, cols, factor, (T *)x);
    });
}

cudaError_t
kernels_dot_rows(Dtype storage, int64_t rows, int64_t cols, const void *x, const void *y,
                 float *dot, cudaStream_t stream)
{
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        return launch_rows(dot_rows<T>, rows, stream, cols, (const T *)x, (const T *)y, dot);
    });
}
