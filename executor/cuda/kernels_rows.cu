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

/* --- column sums --- */

/* Lanes of a block that lie side by side in a row: 128 bytes together. */
template <int N> constexpr int LANES = N == 1 ? WARP : 8;

/* Block (c, b, s) adds rows [b rows_per_block, (b + 1) rows_per_block) of LANES N columns of matrix
 * s of @x, one after the other, into row b of @first, or for s = 1 of @second.  Line l of the block
 * takes every LINES-th row; the lines are then added in order. */
template <typename T, int N>
__global__ void
column_sums(int64_t rows, int64_t cols, int64_t rows_per_block, const T *x, int64_t stride,
            bool adds, float *first, float *second)
{
    constexpr int COLS = LANES<N> * N, LINES = THREADS / LANES<N>;
    __shared__ float lines[LINES][COLS];
    const int line = (int)threadIdx.x / LANES<N>, lane = (int)threadIdx.x % LANES<N>;
    const int64_t col_0 = (int64_t)blockIdx.x * COLS, col = col_0 + lane * N;
    const int64_t begin = (int64_t)blockIdx.y * rows_per_block;
    const int64_t end = begin + rows_per_block < rows ? begin + rows_per_block : rows;
    float *const to = (blockIdx.z == 0 ? first : second) + blockIdx.y * cols;
    float sum[N] = {0.0f};

    x += blockIdx.z * rows * stride;
    if (col < cols)
#pragma unroll 4
        for (int64_t row = begin + line; row < end; row += LINES) {
            const Pack<T, N> pack = *(const Pack<T, N> *)(x + row * stride + col);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] += to_float(pack.v[i]);
        }
#pragma unroll
    for (int i = 0; i < N; i++)
        lines[line][lane * N + i] = sum[i];
    __syncthreads();
    if (threadIdx.x < COLS && col_0 + threadIdx.x < cols) {
        float total = adds ? to[col_0 + threadIdx.x] : 0.0f;
        for (int i = 0; i < LINES; i++)
            total += lines[i][threadIdx.x];
        to[col_0 + threadIdx.x] = total;
    }
}

/* Sums of the columns of one matrix, or with @second of two, as rows of @n_blocks sums each; added
 * to what is there if
 * @adds. */
template <typename T, int N>
static cudaError_t
launch_column_sums(int64_t rows, int64_t cols, int64_t n_blocks, const T *x, int64_t stride,
                   bool adds, float *first, float *second, cudaStream_t stream)
{
    return launch(column_sums<T, N>,
                  dim3(blocks_for(cols, LANES<N> * N), (unsigned)n_blocks, second == NULL ? 1 : 2),
                  THREADS, 0, stream, rows, cols, (rows + n_blocks - 1) / n_blocks, x, stride, adds,
                  first, second);
}

/* The last stage: adds the @n rows of @partial to @first, and the next @n to @second (nullable). */
static cudaError_t
add_partials(int64_t n, int64_t cols, const float *partial, float *first, float *second,
             cudaStream_t stream)
{
    return (cols % 4 == 0 ? launch_column_sums<float, 4>
                          : launch_column_sums<float, 1>)(n, cols, 1, partial, cols, true, first,
                                                          second, stream);
}

template <typename T, int N>
static cudaError_t
bias_backward(int64_t rows, int64_t cols, const T *dy, int64_t stride, float *db, float *scratch,
              cudaStream_t stream)
{
    /* Blocks beside each other, and as many below as fill the device, but for 64 rows at least. */
    const int64_t beside = blocks_for(cols, LANES<N> * N), most = KERNELS_BLOCKS / beside;
    const int64_t below = blocks_for(rows, 64), n = most < 1 ? 1 : most < below ? most : below;

    if (n == 1)
        return launch_column_sums<T, N>(rows, cols, 1, dy, stride, true, db, NULL, stream);
    TRY((launch_column_sums<T, N>(rows, cols, n, dy, stride, false, scratch, NULL, stream)));
    return add_partials(n, cols, scratch, db, NULL, stream);
}

cudaError_t
kernels_bias_backward(Dtype storage, int64_t rows, int64_t cols, const void *dy, int64_t stride,
                      float *db, float *scratch, cudaStream_t stream)
{
    if (rows == 0 || cols == 0)
        return cudaSuccess;
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        constexpr int N = Pack<T>::N;
        static_assert(LANES<N> * N <= 64, "KERNELS_BIAS_SCRATCH_FLOATS");
        const bool wide = ((uintptr_t)dy % 16 + (uint64_t)(cols | stride) % N) == 0;

        return (wide ? bias_backward<T, N> : bias_backward<T, 1>)(rows, cols, (const T *)dy, stride,
                                                                  db, scratch, stream);
    });
}

/* --- LayerNorm and RMSNorm: a block per row --- */

#define NORM_THREADS 512

/* Calls f(pack, column) for this thread's packs of N columns in a row: COLUMNS columns, the same
 * ones in every row. */
template <int N, int COLUMNS, typename F>
__device__ __forceinline__ void
each_pack(int64_t cols, F f)
{
#pragma unroll
    for (int p = 0; p < COLUMNS / N; p++) {
        const int64_t j = ((int64_t)p * blockDim.x + threadIdx.x) * N;
        if (j < cols)
            f(p, j);
    }
}

template <typename T, int N, int COLUMNS, bool CENTERED>
__global__ void
__launch_bounds__(NORM_THREADS) norm_forward(ExecNorm norm, T *y)
{
    typedef Pack<T, N> Few;
    __shared__ float scratch[NORM_THREADS / WARP];
    const int64_t row = blockIdx.x, cols = norm.cols;
    Few x[COLUMNS / N];
    float mean = 0.0f, squares = 0.0f;

    each_pack<N, COLUMNS>(cols, [&](int p, int64_t j) {
        x[p] = *(const Few *)((const T *)norm.x + row * cols + j);
#pragma unroll
        for (int i = 0; i < N; i++)
            mean += to_float(x[p].v[i]);
    });
    mean = CENTERED ? block_sum(mean, scratch) / (float)cols : 0.0f;
    each_pack<N, COLUMNS>(cols, [&](int p, int64_t) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float z = to_float(x[p].v[i]) - mean;
            squares += z * z;
        }
    });
    squares = block_sum(squares, scratch);
    const float rstd = 1.0f / sqrtf(squares / (float)cols + norm.epsilon);
    each_pack<N, COLUMNS>(cols, [&](int p, int64_t j) {
        const Few gain = *(const Few *)((const T *)norm.gain + j);
        Few shift = {};
        if (CENTERED)
            shift = *(const Few *)((const T *)norm.shift + j);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[p].v[i] = from_float<T>((to_float(x[p].v[i]) - mean) * rstd * to_float(gain.v[i]) +
                                      to_float(shift.v[i]));
        *(Few *)(y + row * cols + j) = x[p];
    });
    if (threadIdx.x == 0) {
        norm.rstd[row] = rstd;
        if (CENTERED)
            norm.mean[row] = mean;
    }
}

/* Both sums over the block.  @scratch, of two floats a warp, may be used again after the next
 * barrier. */
__device__ __forceinline__ void
block_sums(float &x, float &y, float (*scratch)[2])
{
    x = warp_sum(x);
    y = warp_sum(y);
    if (threadIdx.x % WARP == 0) {
        scratch[threadIdx.x / WARP][0] = x;
        scratch[threadIdx.x / WARP][1] = y;
    }
    __syncthreads();
    x = y = 0.0f;
    for (unsigned i = 0; i < blockDim.x / WARP; i++) {
        x += scratch[i][0];
        y += scratch[i][1];
    }
}

/* With z = (x - mean) rstd and g = dy gain: dx += rstd (g - mean(g) - z mean(g z)), without mean(g)
 * for RMSNorm.  Block b takes rows b, b + gridDim, ... and writes its sums of dy z (and of dy) to
 * row b of @partial [2, gridDim, cols]. */
template <typename T, int N, int COLUMNS, bool CENTERED>
__global__ void
__launch_bounds__(NORM_THREADS) norm_backward(ExecNorm norm, const T *dy, T *dx, float *partial)
{
    typedef Pack<T, N> Few;
    __shared__ float scratch[2][NORM_THREADS / WARP][2]; /* for one row after the other, in turns */
    const int64_t cols = norm.cols;
    float sum_gain[COLUMNS] = {0.0f}, sum_shift[COLUMNS] = {0.0f};
    int turn = 0;

    for (int64_t row = blockIdx.x; row < norm.rows; row += gridDim.x, turn ^= 1) {
        const float mean = CENTERED ? norm.mean[row] : 0.0f, rstd = norm.rstd[row];
        Few x[COLUMNS / N], d[COLUMNS / N];
        float sum_g = 0.0f, sum_gz = 0.0f;
        each_pack<N, COLUMNS>(cols, [&](int p, int64_t j) {
            x[p] = *(const Few *)((const T *)norm.x + row * cols + j);
            d[p] = *(const Few *)(dy + row * cols + j);
        });
        each_pack<N, COLUMNS>(cols, [&](int p, int64_t j) {
            const Few gain = *(const Few *)((const T *)norm.gain + j);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float z = (to_float(x[p].v[i]) - mean) * rstd, g = to_float(d[p].v[i]);
                sum_gain[p * N + i] += g * z;
                sum_shift[p * N + i] += g;
                sum_g += g * to_float(gain.v[i]);
                sum_gz += g * to_float(gain.v[i]) * z;
            }
        });
        block_sums(sum_g, sum_gz, scratch[turn]);
        const float mean_g = CENTERED ? sum_g / (float)cols : 0.0f, mean_gz = sum_gz / (float)cols;
        each_pack<N, COLUMNS>(cols, [&](int p, int64_t j) {
            const Few gain = *(const Few *)((const T *)norm.gain + j);
            Few *const to = (Few *)(dx + row * cols + j);
            Few sum = *to;
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float z = (to_float(x[p].v[i]) - mean) * rstd;
                const float g = to_float(d[p].v[i]) * to_float(gain.v[i]);
                sum.v[i] = from_float<T>(to_float(sum.v[i]) + rstd * (g - mean_g - z * mean_gz));
            }
            *to = sum;
        });
    }
    each_pack<N, COLUMNS>(cols, [&](int p, int64_t j) {
        float *const to = partial + blockIdx.x * cols + j;
#pragma unroll
        for (int i = 0; i < N; i++) {
            to[i] = sum_gain[p * N + i];
            if (CENTERED)
                to[gridDim.x * cols + i] = sum_shift[p * N + i];
        }
    });
}

/* Calls @f with N, COLUMNS and CENTERED as Constants, and with the threads of a block. */
template <typename T, typename F>
static cudaError_t
for_norm(const ExecNorm *norm, uintptr_t addresses, F f)
{
    const int64_t cols = norm->cols;
    const uintptr_t all =
        addresses | (uintptr_t)norm->x | (uintptr_t)norm->gain | (uintptr_t)norm->shift;
    const unsigned threads = cols <= 1024 ? 128 : cols <= 2048 ? 256 : NORM_THREADS;
    const int64_t columns = cols <= 8 * NORM_THREADS ? 8 : cols <= 16 * NORM_THREADS ? 16 : 32;

    if (cols > KERNELS_NORM_MAX_COLS)
        return cudaErrorInvalidValue;
    return for_constant<1, Pack<T>::N>(
        all % 16 == 0 && cols % Pack<T>::N == 0 ? Pack<T>::N : 1, [&](auto n) {
            return for_constant<8, 16, 32>(columns, [&](auto own) {
                return for_constant<0, 1>(norm->shift != NULL, [&](auto centered) {
                    return f(n, own, centered, threads);
                });
            });
        });
}

cudaError_t
kernels_norm_forward(Dtype storage, const ExecNorm *norm, void *y, cudaStream_t stream)
{
    if (norm->rows == 0)
        return cudaSuccess;
    return for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        return for_norm<T>(
            norm, (uintptr_t)y, [&](auto n, auto own, auto centered, unsigned threads) {
                return launch(norm_forward<T, decltype(n)::value, decltype(own)::value,
                                           decltype(centered)::value != 0>,
                              (unsigned)norm->rows, threads, 0, stream, *norm, (T *)y);
            });
    });
}

cudaError_t
kernels_norm_backward(Dtype storage, const ExecNorm *norm, const void *dy, void *dx, float *dgain,
                      float *dshift, float *scratch, cudaStream_t stream)
{
    const unsigned n_blocks = norm->rows < KERNELS_BLOCKS ? (unsigned)norm->rows : KERNELS_BLOCKS;

    if (norm->rows == 0)
        return cudaSuccess;
    TRY(for_type(storage, [&](auto zero) {
        using T = decltype(zero);
        return for_norm<T>(
            norm, (uintptr_t)dy | (uintptr_t)dx,
            [&](auto n, auto own, auto centered, unsigned threads) {
                return launch(norm_backward<T, decltype(n)::value, decltype(own)::value,
                                            decltype(centered)::value != 0>,
                              n_blocks, threads, 0, stream, *norm, (const T *)dy, (T *)dx, scratch);
            });
    }));
    return add_partials(n_blocks, norm->cols, scratch, dgain, norm->shift != NULL ? dshift : NULL,
                        stream);
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
        x[row * e.cols + j] = from_float<T>((here ? e.scale * to_float(from[j]) : 0.0f) +
                                            (place != NULL ? to_float(place[j]) : 0.0f));
}

/*
 * dtable[token of row] += dx[row].  Block (c, g) owns THREADS columns of the tokens that are g
 * modulo TOKEN_GROUPS and walks over all rows, so every element has one thread that adds to it, in
 * row order.  The addition does not wait for its result: one thread's additions to one address are
 * done in program order.
 */
/* Groups of tokens: with 256 columns to a block, a row of 4096 gives 512 blocks, four for each of
 * an H100's 132 multiprocessors. */
#define TOKEN_GROUPS 32

template <typename T>
__global__ void
embedding_backward_tokens(ExecEmbedding e, const T *dx, float *dtable)
{
    const int64_t col = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    /* A warp looks at the tokens of 32 rows at once. */
    for (int64_t first = 0; first < e.rows; first += WARP) {
        const int64_t row = first + threadIdx.x % WARP;
        const int64_t token = row < e.rows ? (int64_t)e.token[row] - e.first_token : -1;
        const bool mine =
            token >= 0 && token < e.n_tokens && (unsigned)token % TOKEN_GROUPS == blockIdx.y;
        for (unsigned left = __ballot_sync(FULL, mine); left != 0; left &= left - 1) {
            const int source = __ffs((int)left) - 1;
            const int64_t at = __shfl_sync(FULL, (int)token, (unsigned)source);
            if (col < e.cols)
                atomicAdd(&dtable[at * e.cols + col],
                          e.scale * to_float(dx[(first + source) * e.cols + col]));
        }
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
    const T *logits = (const T *)e.logits + row * e.stride;
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
    T *logits = (T *)e.logits + row * e.stride;
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
    for (int64_t j = threadIdx.x; j < e.stride; j += THREADS)
        logits[j] =
            from_float<T>(j >= e.vocab ? 0.0f
                                       : e.factor * (expf(to_float(logits[j]) - r.largest) / r.sum -
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
