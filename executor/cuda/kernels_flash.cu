/*
 * executor/cuda/kernels_flash.cu - attention on tensor cores, bf16, compute capability 8.0 and
 * more: forward, dK and dV by tiles of keys, dQ by tiles of queries.
 */
#include "executor/cuda/kernels_flash.cuh"

/* --- forward: a block per tile of queries walks over the keys it sees --- */

/* Forward: each warp takes two fragments of rows, which halves the traffic of K and V out of shared
 * memory per product. */
#define FORWARD_FRAGMENTS 2
#define FORWARD_ROWS (N_WARPS * FORWARD_FRAGMENTS * FRAGMENT)

/* Of every kernel but flash_delta: 384 rows of tiles. */
static size_t
shared_bytes(int64_t head_dim)
{
    static_assert(FORWARD_ROWS + 4 * TILE == 6 * TILE, "as forward's tiles, so backward's");
    return 6 * TILE * (size_t)(head_dim + 8) * sizeof(Bf16);
}

/* grid (query tiles, heads, sequences); late tiles, which see most keys, begin first. */
template <int D>
__global__ void
__launch_bounds__(THREADS) flash_forward(ExecAttention a)
{
    constexpr int PITCH = D + 8;
    Bf16 *q_tile = (Bf16 *)launch_shared();
    Bf16 *const kv_tiles = q_tile + FORWARD_ROWS * PITCH; /* two buffers of K and V */
    const Head h = head_at(a, (int)blockIdx.z, (int)blockIdx.y);
    const int64_t first = (int64_t)(gridDim.x - 1 - blockIdx.x) * FORWARD_ROWS;
    const int64_t end = first + FORWARD_ROWS < a.tokens ? first + FORWARD_ROWS : a.tokens;
    const int64_t n_keys = a.context + end;
    const int n_tiles = (int)((n_keys + TILE - 1) / TILE);
    const int warp_row = (int)threadIdx.x / WARP * FORWARD_FRAGMENTS * FRAGMENT;
    const float scale_log2 = a.scale * LOG2E;
    float o[FORWARD_FRAGMENTS][D / 8][4];
    Softmax state[FORWARD_FRAGMENTS];

#pragma unroll
    for (int f = 0; f < FORWARD_FRAGMENTS; f++) {
        clear(o[f]);
        state[f] = softmax_begin();
    }
    load_tile<D, FORWARD_ROWS>(q_tile, h.q, h.q_row, first, a.tokens);
    load_tile<D, TILE>(kv_tiles, h.k, h.kv_row, 0, n_keys);
    load_tile<D, TILE>(kv_tiles + TILE * PITCH, h.v, h.kv_row, 0, n_keys);
    copy_commit();
    for (int tile = 0; tile < n_tiles; tile++) {
        const int64_t key = (int64_t)tile * TILE;
        const Bf16 *k_tile = kv_tiles + tile % 2 * 2 * TILE * PITCH;
        const Bf16 *v_tile = k_tile + TILE * PITCH;
        if (tile + 1 < n_tiles) {
            Bf16 *next = kv_tiles + (tile + 1) % 2 * 2 * TILE * PITCH;
            load_tile<D, TILE>(next, h.k, h.kv_row, key + TILE, n_keys);
            load_tile<D, TILE>(next + TILE * PITCH, h.v, h.kv_row, key + TILE, n_keys);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();

        float s[FORWARD_FRAGMENTS][TILE / 8][4];
#pragma unroll
        for (int f = 0; f < FORWARD_FRAGMENTS; f++)
            clear(s[f]);
#pragma unroll
        for (int col = 0; col < D; col += FRAGMENT)
#pragma unroll
            for (int f = 0; f < FORWARD_FRAGMENTS; f++) {
                uint32_t left[4];
                left_operand<D>(left, q_tile, warp_row + f * FRAGMENT, col);
                multiply_rows<D>(s[f], left, k_tile, col);
            }
#pragma unroll
        for (int f = 0; f < FORWARD_FRAGMENTS; f++) {
            const int64_t last_key = a.context + first + warp_row + f * FRAGMENT;
            if (key + TILE - 1 > last_key)
                mask_scores(s[f], (int)(last_key - key));
            float factor[2];
            softmax_step(state[f], s[f], factor, scale_log2);
            rescale(o[f], factor);
        }
#pragma unroll
        for (int row = 0; row < TILE; row += FRAGMENT)
#pragma unroll
            for (int f = 0; f < FORWARD_FRAGMENTS; f++) {
                uint32_t left[4];
                results_as_left(left, s[f][row / 8], s[f][row / 8 + 1]);
                multiply_columns<D>(o[f], left, v_tile, row);
            }
        __syncthreads();
    }
#pragma unroll
    for (int f = 0; f < FORWARD_FRAGMENTS; f++)
        store_forward<D>(a, h, state[f], o[f], first + warp_row + f * FRAGMENT);
}

template <int D>
static cudaError_t
forward(const ExecAttention &a, cudaStream_t stream)
{
    const dim3 grid(blocks_for(a.tokens, FORWARD_ROWS), (unsigned)a.n_heads, (unsigned)a.sequences);

    return launch(flash_forward<D>, grid, THREADS, shared_bytes(D), stream, a);
}

bool
kernels_flash_has(const ExecAttention *a, size_t max_shared_bytes)
{
    /* Rows are copied 16 bytes at a time. */
    return shared_bytes(a->head_dim) <= max_shared_bytes &&
           (a->head_dim == 32 || a->head_dim == 64 || a->head_dim == 96 || a->head_dim == 128) &&
           a->kv_stride % 8 == 0 && ((uintptr_t)a->q | (uintptr_t)a->k | (uintptr_t)a->v) % 16 == 0;
}

cudaError_t
kernels_flash_forward(const ExecAttention *a, cudaStream_t stream)
{
    return for_constant<32, 64, 96, 128>(
        a->head_dim, [&](auto d) { return forward<decltype(d)::value>(*a, stream); });
}

/* --- backward --- */

static_assert(N_WARPS * FRAGMENT == TILE, "a tile of backward is one fragment per warp");

/* grid (rows): delta = sum over the head of dO times O; a warp per (row, head). */
__global__ void
flash_delta(ExecAttention a, ExecAttentionGradients g, float *delta)
{
    const int64_t n = a.tokens * a.sequences * a.n_heads;
    const int64_t i = (int64_t)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    const int lane = (int)threadIdx.x % WARP;
    float sum = 0.0f;

    if (i < n)
        for (int64_t j = lane; j < a.head_dim; j += WARP)
            sum += to_float(((const Bf16 *)g.dout)[i * a.head_dim + j]) *
                   to_float(((const Bf16 *)a.out)[i * a.head_dim + j]);
    sum = warp_sum(sum);
    if (i < n && lane == 0)
        delta[i] = sum;
}

/* What a tile of queries brings to the key side. */
template <int D> struct QueryTile {
    Bf16 q[TILE * (D + 8)], dout[TILE * (D + 8)];
};

template <int D>
__device__ __forceinline__ void
load_query_tile(QueryTile<D> *tile, const Head &h, const Bf16 *dout, int64_t first, int64_t n)
{
    load_tile<D, TILE>(tile->q, h.q, h.q_row, first, n);
    load_tile<D, TILE>(tile->dout, dout, h.q_row, first, n);
}

/* Transposed scores and their gradients of 16 keys (rows) and 64 queries (columns), from raw dot
 * products: s becomes p = exp(scale s - lse), dp becomes ds = p (dp - delta); 0 where masked. */
__device__ __forceinline__ void
transposed_gradients(const ExecAttention &a, const Head &h, const float *delta,
                     float (&s)[TILE / 8][4], float (&dp)[TILE / 8][4], int64_t key_0,
                     int64_t query_0)
{
    const int lane = (int)threadIdx.x % WARP;

#pragma unroll
    for (int n = 0; n < TILE / 8; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int64_t query = query_0 + 8 * n + 2 * (lane % 4) + j;
            const bool exists = query < a.tokens;
            const int64_t at = exists ? query * h.stat_row + h.stat : h.stat;
            const float lse_log2 = a.lse[at] * LOG2E, sum = delta[at];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = 2 * half + j;
                const int64_t key = key_0 + lane / 4 + 8 * half;
                const bool sees = exists && key <= a.context + query;
                s[n][i] = sees ? exp2_fast(s[n][i] * a.scale * LOG2E - lse_log2) : 0.0f;
                dp[n][i] = s[n][i] * (dp[n][i] - sum);
            }
        }
}

/* grid (key tiles, K/V heads, sequences): dK and dV of a tile from all queries that see it, of all
 * heads that share it, in order. */
template <int D>
__global__ void
__launch_bounds__(THREADS)
    flash_backward_keys(ExecAttention a, ExecAttentionGradients g, const float *delta)
{
    constexpr int PITCH = D + 8;
    Bf16 *k_tile = (Bf16 *)launch_shared();
    Bf16 *v_tile = k_tile + TILE * PITCH;
    QueryTile<D> *tiles = (QueryTile<D> *)(v_tile + TILE * PITCH); /* two buffers */
    const int64_t first = (int64_t)blockIdx.x * TILE, n_keys = a.context + a.tokens;
    const int group = (int)(a.n_heads / a.n_kv_heads), head_0 = (int)blockIdx.y * group;
    const int64_t query_begin = first > a.context ? (first - a.context) / TILE * TILE : 0;
    const int per_head = (int)((a.tokens - query_begin + TILE - 1) / TILE);
    const int warp_row = (int)threadIdx.x / WARP * FRAGMENT;
    const Head kv = head_at(a, (int)blockIdx.z, head_0);
    float dk[D / 8][4], dv[D / 8][4];

    clear(dk);
    clear(dv);
    load_tile<D, TILE>(k_tile, kv.k, kv.kv_row, first, n_keys);
    load_tile<D, TILE>(v_tile, kv.v, kv.kv_row, first, n_keys);
    for (int step = -1; step < per_head * group; step++) {
        /* Steps walk over (head, query tile); the next one's tile is on its way. */
        const int next = step + 1;
        if (next < per_head * group) {
            const Head h = head_at(a, (int)blockIdx.z, head_0 + next / per_head);
            load_query_tile<D>(&tiles[next % 2], h,
                               (const Bf16 *)g.dout + (h.q - (const Bf16 *)a.q),
                               query_begin + (int64_t)(next % per_head) * TILE, a.tokens);
        }
        copy_commit();
        if (step < 0)
            continue;
        copy_wait<1>();
        __syncthreads();

        const Head h = head_at(a, (int)blockIdx.z, head_0 + step / per_head);
        const QueryTile<D> *tile = &tiles[step % 2];
        float s[TILE / 8][4], dp[TILE / 8][4];
        clear(s);
        clear(dp);
#pragma unroll
        for (int col = 0; col < D; col += FRAGMENT) {
            uint32_t left[4];
            left_operand<D>(left, k_tile, warp_row, col);
            multiply_rows<D>(s, left, tile->q, col);
            left_operand<D>(left, v_tile, warp_row, col);
            multiply_rows<D>(dp, left, tile->dout, col);
        }
        transposed_gradients(a, h, delta, s, dp, first + warp_row,
                             query_begin + (int64_t)(step % per_head) * TILE);
#pragma unroll
        for (int row = 0; row < TILE; row += FRAGMENT) {
            uint32_t left[4];
            results_as_left(left, s[row / 8], s[row / 8 + 1]);
            multiply_columns<D>(dv, left, tile->dout, row);
            results_as_left(left, dp[row / 8], dp[row / 8 + 1]);
            multiply_columns<D>(dk, left, tile->q, row);
        }
        __syncthreads();
    }
    store_keys<D>(a, g, kv, dk, dv, first + warp_row);
}

/* As transposed_gradients, rows are queries and columns keys. */
__device__ __forceinline__ void
score_gradients(const ExecAttention &a, const Head &h, const float *delta, float (&s)[TILE / 8][4],
                float (&dp)[TILE / 8][4], int64_t query_0, int64_t key_0)
{
    const int lane = (int)threadIdx.x % WARP;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t query = query_0 + lane / 4 + 8 * half;
        const bool exists = query < a.tokens;
        const int64_t at = exists ? query * h.stat_row + h.stat : h.stat;
        const float lse_log2 = a.lse[at] * LOG2E, sum = delta[at];
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int i = 2 * half + j;
                const int64_t key = key_0 + 8 * n + 2 * (lane % 4) + j;
                const bool sees = exists && key <= a.context + query;
                const float p = sees ? exp2_fast(s[n][i] * a.scale * LOG2E - lse_log2) : 0.0f;
                dp[n][i] = p * (dp[n][i] - sum);
            }
    }
}

/* grid (query tiles, heads, sequences): dQ of a tile from all keys that it sees. */
template <int D>
__global__ void
__launch_bounds__(THREADS)
    flash_backward_queries(ExecAttention a, ExecAttentionGradients g, const float *delta)
{
    constexpr int PITCH = D + 8;
    QueryTile<D> *tile = (QueryTile<D> *)launch_shared();
    Bf16 *const kv_tiles = (Bf16 *)(tile + 1); /* two buffers of K and V */
    const Head h = head_at(a, (int)blockIdx.z, (int)blockIdx.y);
    const int64_t first = (int64_t)(gridDim.x - 1 - blockIdx.x) * TILE;
    const int64_t end = first + TILE < a.tokens ? first + TILE : a.tokens;
    const int64_t n_keys = a.context + end;
    const int n_tiles = (int)((n_keys + TILE - 1) / TILE);
    const int warp_row = (int)threadIdx.x / WARP * FRAGMENT;
    const int64_t at = h.q - (const Bf16 *)a.q;
    float dq[D / 8][4];

    clear(dq);
    load_query_tile<D>(tile, h, (const Bf16 *)g.dout + at, first, a.tokens);
    load_tile<D, TILE>(kv_tiles, h.k, h.kv_row, 0, n_keys);
    load_tile<D, TILE>(kv_tiles + TILE * PITCH, h.v, h.kv_row, 0, n_keys);
    copy_commit();
    for (int i = 0; i < n_tiles; i++) {
        const int64_t key = (int64_t)i * TILE;
        const Bf16 *k_tile = kv_tiles + i % 2 * 2 * TILE * PITCH;
        if (i + 1 < n_tiles) {
            Bf16 *next = kv_tiles + (i + 1) % 2 * 2 * TILE * PITCH;
            load_tile<D, TILE>(next, h.k, h.kv_row, key + TILE, n_keys);
            load_tile<D, TILE>(next + TILE * PITCH, h.v, h.kv_row, key + TILE, n_keys);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();

        float s[TILE / 8][4], dp[TILE / 8][4];
        clear(s);
        clear(dp);
#pragma unroll
        for (int col = 0; col < D; col += FRAGMENT) {
            uint32_t left[4];
            left_operand<D>(left, tile->q, warp_row, col);
            multiply_rows<D>(s, left, k_tile, col);
            left_operand<D>(left, tile->dout, warp_row, col);
            multiply_rows<D>(dp, left, k_tile + TILE * PITCH, col);
        }
        score_gradients(a, h, delta, s, dp, first + warp_row, key);
#pragma unroll
        for (int row = 0; row < TILE; row += FRAGMENT) {
            uint32_t left[4];
            results_as_left(left, dp[row / 8], dp[row / 8 + 1]);
            multiply_columns<D>(dq, left, k_tile, row);
        }
        __syncthreads();
    }
    store_rows<D>((Bf16 *)g.dq + at, h.q_row, dq, a.scale, first + warp_row, a.tokens);
}

cudaError_t
kernels_flash_delta(const ExecAttention *a, const ExecAttentionGradients *g, float *delta,
                    cudaStream_t stream)
{
    return launch(flash_delta, blocks_for(a->tokens * a->sequences * a->n_heads, N_WARPS), THREADS,
                  0, stream, *a, *g, delta);
}

template <int D>
static cudaError_t
backward(const ExecAttention &a, const ExecAttentionGradients &g, float *delta, cudaStream_t stream)
{
    const size_t shared = shared_bytes(D);
    const unsigned sequences = (unsigned)a.sequences;

    TRY(kernels_flash_delta(&a, &g, delta, stream));
    TRY(launch(flash_backward_keys<D>,
               dim3(blocks_for(a.context + a.tokens, TILE), (unsigned)a.n_kv_heads, sequences),
               THREADS, shared, stream, a, g, (const float *)delta));
    return launch(flash_backward_queries<D>,
                  dim3(blocks_for(a.tokens, TILE), (unsigned)a.n_heads, sequences), THREADS, shared,
                  stream, a, g, (const float *)delta);
}

cudaError_t
kernels_flash_backward(const ExecAttention *a, const ExecAttentionGradients *g, float *delta,
                       cudaStream_t stream)
{
    return for_constant<32, 64, 96, 128>(
        a->head_dim, [&](auto d) { return backward<decltype(d)::value>(*a, *g, delta, stream); });
}
