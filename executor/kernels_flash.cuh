/*
 * executor/kernels_flash.cuh - attention of a slice against its context on tensor cores, bf16:
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
#ifndef EXECUTOR_KERNELS_FLASH_CUH
#define EXECUTOR_KERNELS_FLASH_CUH

#include "executor/kernels.cuh"

#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f

/* Keys per tile, and rows of queries or keys that a warp multiplies at once. */
#define TILE 64
#define FRAGMENT 16
#define N_WARPS 4
#define THREADS (N_WARPS * WARP)
/* One (sequence, head): where its rows lie. */
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

/* Rows [first, first + ROWS) of a matrix whose rows end at @n; zeros beyond. */
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

/* Rows [row, row + 16), columns [col, col + 16) as the left operand. */
template <int D>
__device__ __forceinline__ void
left_operand(uint32_t (&a)[4], const Bf16 *tile, int row, int col)
{
    const int lane = (int)threadIdx.x % WARP;

    load_matrices<false>(a, tile + (row + lane % 16) * (D + 8) + col + lane / 16 * 8);
}

/*
 * c[n] += A times the transpose of the tile's rows [0, 64), 16 columns from @col on: a dot product
 * of rows with rows.
 */
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

/* Over the four lanes that hold a row's columns. */
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

#endif /* EXECUTOR_KERNELS_FLASH_CUH */
