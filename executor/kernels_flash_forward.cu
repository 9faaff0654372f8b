/* executor/kernels_flash_forward.cu - a block per tile of queries walks over the keys it sees. */
#include "executor/kernels_flash.cuh"

/* Forward: each warp takes two fragments of rows, which halves the traffic of K and V out of shared
 * memory per product. */
#define FORWARD_FRAGMENTS 2
#define FORWARD_ROWS (N_WARPS * FORWARD_FRAGMENTS * FRAGMENT)

/* Running softmax of the rows of one fragment: [half] is rows g and g + 8. */
struct Softmax {
    float largest[2], sum[2]; /* of raw scores; of this lane's columns */
};

/* Scores become probabilities relative to the largest so far; @o is rescaled to it. */
template <int D>
__device__ __forceinline__ void
softmax_step(Softmax &state, float (&s)[TILE / 8][4], float (&o)[D / 8][4], float scale_log2)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float largest = state.largest[half];
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
            largest = fmaxf(largest, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        largest = row_max(largest);
        const float factor = exp2_fast((state.largest[half] - largest) * scale_log2);
        float sum = state.sum[half] * factor;
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                s[n][i] = exp2_fast((s[n][i] - largest) * scale_log2);
                sum += s[n][i];
            }
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            o[n][2 * half] *= factor;
            o[n][2 * half + 1] *= factor;
        }
        state.largest[half] = largest;
        state.sum[half] = sum;
    }
}

/* Row @row of the slice sees keys [0, context + row]; @key is that of column 0. */
__device__ __forceinline__ void
mask_scores(float (&s)[TILE / 8][4], int64_t last_key_of_row_0, int64_t key)
{
    const int lane = (int)threadIdx.x % WARP;

#pragma unroll
    for (int n = 0; n < TILE / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = lane / 4 + 8 * (i / 2), col = 8 * n + 2 * (lane % 4) + i % 2;
            if (key + col > last_key_of_row_0 + row)
                s[n][i] = -INFINITY;
        }
}

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
        for (int half = 0; half < 2; half++) {
            state[f].largest[half] = -INFINITY;
            state[f].sum[half] = 0.0f;
        }
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
                mask_scores(s[f], last_key, key);
            softmax_step<D>(state[f], s[f], o[f], scale_log2);
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
