/*
 * executor/cuda/kernels_flash.cuh - attention of a slice against its context on tensor cores, bf16:
 * tiles and products that forward and backward share.
 *
 * Scores never reach memory [Dao et al. 2205.14135; Dao 2307.08691]: a block holds a tile of
 * queries (forward, dQ) or of keys (dK, dV) and walks over the other side's tiles, which arrive by
 * asynchronous copies while the previous ones are multiplied.  Tiles that the causal mask empties
 * are never visited.
 *
 * Backward is two kernels, one by key tiles and one by query tiles: 7 products instead of the 5 of
 * the single-kernel form, but no atomic additions, so equal inputs give equal bits.
 *
 * Rows of a tile in shared memory are D + 8 elements apart: eight rows of 16 bytes then lie in
 * different banks for every D that is a multiple of 16.
 */
#pragma once

#include "executor/cuda/kernels.cuh"

#define LOG2E 1.4426950408889634f

/* Keys per tile, rows of queries or keys that a warp multiplies at once (the m of mma), and warps
 * of a block. */
#define TILE 64
#define FRAGMENT 16
#define N_WARPS 4
#define THREADS (N_WARPS * WARP)

/* Where the rows of one head of one sequence are. */
struct Head {
    const Bf16 *q, *k, *v;
    int64_t q_row, kv_row;  /* elements between consecutive tokens */
    int64_t stat, stat_row; /* of lse and delta */
};

__device__ __forceinline__ Head
head_at(const ExecAttention &a, int sequence, int head)
{
    const int64_t q_at = ((int64_t)sequence * a.n_heads + head) * a.head_dim;
    const int64_t kv_at =
        sequence * a.kv_stride + (int64_t)(head / (a.n_heads / a.n_kv_heads)) * a.head_dim;
    Head h;

    h.q = (const Bf16 *)a.q + q_at;
    h.k = (const Bf16 *)a.k + kv_at;
    h.v = (const Bf16 *)a.v + kv_at;
    h.q_row = a.sequences * a.n_heads * a.head_dim;
    h.kv_row = a.sequences * a.kv_stride;
    h.stat = (int64_t)sequence * a.n_heads + head;
    h.stat_row = a.sequences * a.n_heads;
    return h;
}

/* Copies rows [first, first + ROWS) of a matrix that has @n rows; rows beyond become zeros. */
template <int D, int ROWS>
__device__ __forceinline__ void
load_tile(Bf16 *tile, const Bf16 *from, int64_t row_stride, int64_t first, int64_t n)
{
    constexpr int CHUNKS = D / 8;

    for (int i = (int)threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS, chunk = i % CHUNKS;
        const bool valid = first + row < n;
        copy_async(tile + row * (D + 8) + chunk * 8,
                   from + (valid ? first + row : 0) * row_stride + chunk * 8, valid);
    }
}

/* Loads rows [row, row + 16), columns [col, col + 16) as the left operand. */
template <int D>
__device__ __forceinline__ void
left_operand(uint32_t (&a)[4], const Bf16 *tile, int row, int col)
{
    const int lane = (int)threadIdx.x % WARP;

    load_matrices<false>(a, tile + (row + lane % 16) * (D + 8) + col + lane / 16 * 8);
}

/* c[n] += A times the transpose of the tile's rows [0, 64), 16 columns from @col on: a dot product
 * of rows with rows. */
template <int D>
__device__ __forceinline__ void
multiply_rows(float (&c)[TILE / 8][4], const uint32_t (&a)[4], const Bf16 *tile, int col)
{
    const int lane = (int)threadIdx.x % WARP;

#pragma unroll
    for (int n = 0; n < TILE / 8; n += 2) {
        uint32_t b[4];
        load_matrices<false>(b, tile + (8 * n + lane / 16 * 8 + lane % 8) * (D + 8) + col +
                                    lane / 8 % 2 * 8);
        multiply(c[n], a, b[0], b[1]);
        multiply(c[n + 1], a, b[2], b[3]);
    }
}

/* c[n] += A (16 x 16) times the tile's rows [row, row + 16), all D columns. */
template <int D>
__device__ __forceinline__ void
multiply_columns(float (&c)[D / 8][4], const uint32_t (&a)[4], const Bf16 *tile, int row)
{
    const int lane = (int)threadIdx.x % WARP;

#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
        uint32_t b[4];
        load_matrices<true>(b, tile + (row + lane % 16) * (D + 8) + 8 * n + lane / 16 * 8);
        multiply(c[n], a, b[0], b[1]);
        multiply(c[n + 1], a, b[2], b[3]);
    }
}

/* Two neighbouring tiles of results, 16 x 16, as the next product's left operand. */
__device__ __forceinline__ void
results_as_left(uint32_t (&a)[4], const float (&first)[4], const float (&second)[4])
{
    a[0] = pack_bf16(first[0], first[1]);
    a[1] = pack_bf16(first[2], first[3]);
    a[2] = pack_bf16(second[0], second[1]);
    a[3] = pack_bf16(second[2], second[3]);
}

/* The sum, and the maximum, over the four lanes that hold a row's columns. */
__device__ __forceinline__ float
row_sum(float x)
{
    x += __shfl_xor_sync(FULL, x, 1);
    return x + __shfl_xor_sync(FULL, x, 2);
}

__device__ __forceinline__ float
row_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(FULL, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL, x, 2));
}

template <int N>
__device__ __forceinline__ void
clear(float (&c)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[n][i] = 0.0f;
}

/* --- forward: the running softmax of a fragment's rows; [half] is rows g and g + 8 --- */

struct Softmax {
    float largest[2], sum[2]; /* of raw scores; of this lane's columns */
};

__device__ __forceinline__ Softmax
softmax_begin(void)
{
    return Softmax{{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
}

/* Scores become probabilities relative to the largest so far; @factor is what earlier sums of
 * probabilities have to be multiplied with.  A row's first tile must have a score that is not
 * masked. */
template <int N>
__device__ __forceinline__ void
softmax_step(Softmax &state, float (&s)[N][4], float (&factor)[2], float scale_log2)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float largest = state.largest[half];
#pragma unroll
        for (int n = 0; n < N; n++)
            largest = fmaxf(largest, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        largest = row_max(largest);
        factor[half] = exp2_fast((state.largest[half] - largest) * scale_log2);
        const float shift = largest * scale_log2; /* so that each score costs one multiply-add */
        float sum = state.sum[half] * factor[half];
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                s[n][i] = exp2_fast(s[n][i] * scale_log2 - shift);
                sum += s[n][i];
            }
        state.largest[half] = largest;
        state.sum[half] = sum;
    }
}

template <int N>
__device__ __forceinline__ void
rescale(float (&o)[N][4], const float (&factor)[2])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            o[n][i] *= factor[i / 2];
}

/* Row r of the fragment sees columns [0, last + r]. */
template <int N>
__device__ __forceinline__ void
mask_scores(float (&s)[N][4], int last)
{
    const int lane = (int)threadIdx.x % WARP;

#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = lane / 4 + 8 * (i / 2), col = 8 * n + 2 * (lane % 4) + i % 2;
            if (col > last + row)
                s[n][i] = -INFINITY;
        }
}

/* Stores rows [row_0, row_0 + 16) of the output, all D columns, and their statistics. */
template <int D>
__device__ __forceinline__ void
store_forward(const ExecAttention &a, const Head &h, const Softmax &state,
              const float (&o)[D / 8][4], int64_t row_0)
{
    const int lane = (int)threadIdx.x % WARP;
    Bf16 *out = (Bf16 *)a.out + (h.q - (const Bf16 *)a.q);

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t row = row_0 + lane / 4 + 8 * half;
        const float sum = row_sum(state.sum[half]);
        if (row >= a.tokens)
            continue;
        const float inverse = 1.0f / sum;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *(uint32_t *)(out + row * h.q_row + 8 * n + 2 * (lane % 4)) =
                pack_bf16(o[n][2 * half] * inverse, o[n][2 * half + 1] * inverse);
        if (lane % 4 == 0)
            a.lse[row * h.stat_row + h.stat] = state.largest[half] * a.scale + logf(sum);
    }
}

/* --- backward: a fragment's 16 rows of results, all D columns --- */

/* Stores factor * c into rows [row_0, row_0 + 16) of a matrix that has @n rows; into one of fp32 it
 * is added. */
template <int D, typename T>
__device__ __forceinline__ void
store_rows(T *to, int64_t row_stride, const float (&c)[D / 8][4], float factor, int64_t row_0,
           int64_t n)
{
    const int lane = (int)threadIdx.x % WARP;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t row = row_0 + lane / 4 + 8 * half;
        if (row >= n)
            continue;
#pragma unroll
        for (int col = 0; col < D / 8; col++) {
            Pack<T, 2> *at = (Pack<T, 2> *)(to + row * row_stride + 8 * col + 2 * (lane % 4));
            Pack<T, 2> pair = *at;
#pragma unroll
            for (int i = 0; i < 2; i++)
                pair.v[i] = from_float<T>((sizeof(T) == 4 ? to_float(pair.v[i]) : 0.0f) +
                                          factor * c[col][2 * half + i]);
            *at = pair;
        }
    }
}

/* Rows [row_0, row_0 + 16) of dK and dV of the head whose keys are those of @h. */
template <int D>
__device__ __forceinline__ void
store_keys(const ExecAttention &a, const ExecAttentionGradients &g, const Head &h,
           const float (&dk)[D / 8][4], const float (&dv)[D / 8][4], int64_t row_0)
{
    const int64_t at = h.k - (const Bf16 *)a.k, n = a.context + a.tokens;

    if (g.sums) {
        store_rows<D>((float *)g.dk + at, h.kv_row, dk, a.scale, row_0, n);
        store_rows<D>((float *)g.dv + at, h.kv_row, dv, 1.0f, row_0, n);
    } else {
        store_rows<D>((Bf16 *)g.dk + at, h.kv_row, dk, a.scale, row_0, n);
        store_rows<D>((Bf16 *)g.dv + at, h.kv_row, dv, 1.0f, row_0, n);
    }
}
