/* executor/cuda/kernels_flash_forward.cu - a block per tile of queries walks over the keys it sees. */
#include "executor/cuda/kernels_flash.cuh"

/* Forward: each warp takes two fragments of rows, which halves the traffic of K and V out of shared
 * memory per product. */
#define FORWARD_FRAGMENTS 2
#define FORWARD_ROWS (N_WARPS * FORWARD_FRAGMENTS * FRAGMENT)

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

    return launch(flash_forward<D>, grid, THREADS,
                  (FORWARD_ROWS + 4 * TILE) * (D + 8) * sizeof(Bf16), stream, a);
}

bool
kernels_flash_has(const ExecAttention *a)
{
    /* Rows are copied 16 bytes at a time. */
    return (a->head_dim == 32 || a->head_dim == 64 || a->head_dim == 96 || a->head_dim == 128) &&
           a->kv_stride % 8 == 0 && ((uintptr_t)a->q | (uintptr_t)a->k | (uintptr_t)a->v) % 16 == 0;
}

cudaError_t
kernels_flash_forward(const ExecAttention *a, cudaStream_t stream)
{
    switch (a->head_dim) {
    case 32:
        return forward<32>(*a, stream);
    case 64:
        return forward<64>(*a, stream);
    case 96:
        return forward<96>(*a, stream);
    case 128:
        return forward<128>(*a, stream);
    default:
        return cudaErrorInvalidValue;
    }
}
