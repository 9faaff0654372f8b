/*
 * executor/cuda/kernels_flash_hopper_forward.cu - a block of 128 queries walks over the keys they see,
 * 128 at a time, two tiles of K and two of V on the way or in use.
 *
 * Three things overlap: a tile's scores are multiplied while the values of the tile before are; the
 * softmax runs beside the latter; and the two multiplying warpgroups take turns, so that one's
 * softmax runs beside the other's products.
 */
#include "executor/cuda/kernels_flash_hopper.cuh"

#define KEYS 128

template <int D> struct Shared {
    Panels<D, BLOCK_ROWS> q;
    Panels<D, KEYS> k[N_BUFFERS], v[N_BUFFERS];
    Mbarrier q_full;
    Buffer k_state[N_BUFFERS], v_state[N_BUFFERS];
};

/* Where a block works. */
struct Place {
    int head, sequence;
    int first;   /* query */
    int n_tiles; /* of keys */
};

/* grid (heads, sequences, query tiles): late tiles, which see most keys, begin first. */
__device__ __forceinline__ Place
block_place(const ExecAttention &a)
{
    const int first = (int)(gridDim.z - 1 - blockIdx.z) * BLOCK_ROWS;
    const int64_t end = first + BLOCK_ROWS < a.tokens ? first + BLOCK_ROWS : a.tokens;
    const int64_t n_keys = a.context + end;

    return Place{(int)blockIdx.x, (int)blockIdx.y, first, (int)((n_keys + KEYS - 1) / KEYS)};
}

/* --- the copying warpgroup: one thread of it --- */

template <int D, int ROWS>
__device__ __forceinline__ void
copy_tile(Panels<D, ROWS> *tile, const ExecCudaTensorMap *map, int head, int sequence, int row,
          Mbarrier *full)
{
    mbarrier_arrive_expecting(full, sizeof *tile);
    copy_rows(tile, map, head, sequence, row, full);
}

template <int D>
__device__ __forceinline__ void
copy_tiles(Shared<D> *shared, const Place &place, int kv_head, const ExecCudaTensorMap *q,
           const ExecCudaTensorMap *k, const ExecCudaTensorMap *v)
{
    copy_tile(&shared->q, q, place.head, place.sequence, place.first, &shared->q_full);
    for (int tile = 0; tile < place.n_tiles; tile++) {
        const int i = tile % N_BUFFERS, use = tile / N_BUFFERS;
        wait_empty(&shared->k_state[i], use);
        copy_tile(&shared->k[i], k, kv_head, place.sequence, tile * KEYS, &shared->k_state[i].full);
        wait_empty(&shared->v_state[i], use);
        copy_tile(&shared->v[i], v, kv_head, place.sequence, tile * KEYS, &shared->v_state[i].full);
    }
}

/* --- the multiplying warpgroups --- */

/* Turns of the two at the tensor cores; of @consumer, and to the other. */
__device__ __forceinline__ void
wait_turn(int consumer)
{
    named_wait(1 + consumer, N_CONSUMERS * WARPGROUP);
}

__device__ __forceinline__ void
pass_turn(int consumer)
{
    named_arrive(1 + (1 - consumer), N_CONSUMERS * WARPGROUP);
}

template <int D>
__device__ __forceinline__ void
attend(Shared<D> *shared, const ExecAttention &a, const Place &place, int consumer)
{
    const int own = consumer * ROWS_EACH;
    const int first_row = place.first + own + warp_in_group() * FRAGMENT;
    const int last_key = (int)a.context + first_row; /* that this warp's first row sees */
    const float scale_log2 = a.scale * LOG2E;
    float o[D / 8][4], s[KEYS / 8][4], factor[2];
    uint32_t p[KEYS / FRAGMENT][4];
    Softmax state = softmax_begin();

    clear(o);
    clear(s);
    if (consumer == 1 && place.n_tiles > 1)
        pass_turn(consumer);
    mbarrier_wait(&shared->q_full, 0);
    wait_full(&shared->k_state[0], 0);
    begin_rows<D>(s, shared->q, own, shared->k[0]);
    product_wait<0>();
    settle(s);
    release(&shared->k_state[0]);
    if (KEYS - 1 > last_key)
        mask_scores(s, last_key);
    softmax_step(state, s, factor, scale_log2);
    pack_left(p, s);
    for (int tile = 1; tile < place.n_tiles; tile++) {
        const int i = tile % N_BUFFERS, use = tile / N_BUFFERS;
        const int before = (tile - 1) % N_BUFFERS, use_before = (tile - 1) / N_BUFFERS;
        wait_full(&shared->k_state[i], use);
        wait_turn(consumer);
        begin_rows<D>(s, shared->q, own, shared->k[i]);
        wait_full(&shared->v_state[before], use_before);
        begin_columns<D>(o, p, shared->v[before]);
        if (consumer == 0 || tile + 1 < place.n_tiles)
            pass_turn(consumer);
        product_wait<1>();
        settle(s);
        release(&shared->k_state[i]);
        if (tile * KEYS + KEYS - 1 > last_key)
            mask_scores(s, last_key - tile * KEYS);
        softmax_step(state, s, factor, scale_log2);
        compute_first(state.sum[0] + state.sum[1]);
        product_wait<0>();
        settle(o);
        settle(p);
        release(&shared->v_state[before]);
        rescale(o, factor);
        pack_left(p, s);
    }
    const int i = (place.n_tiles - 1) % N_BUFFERS, use = (place.n_tiles - 1) / N_BUFFERS;
    wait_full(&shared->v_state[i], use);
    begin_columns<D>(o, p, shared->v[i]);
    product_wait<0>();
    settle(o);
    store_forward<D>(a, head_at(a, place.sequence, place.head), state, o, first_row);
}

template <int D>
__global__ void
__launch_bounds__(BLOCK_THREADS, 1)
    hopper_forward(ExecAttention a, const __grid_constant__ ExecCudaTensorMap q,
                   const __grid_constant__ ExecCudaTensorMap k,
                   const __grid_constant__ ExecCudaTensorMap v)
{
    Shared<D> *shared = block_shared<Shared<D>>();
    const Place place = block_place(a);
    const int warpgroup = warpgroup_index();

    if (threadIdx.x == 0) {
        mbarrier_init(&shared->q_full, 1);
        for (int i = 0; i < N_BUFFERS; i++) {
            buffer_init(&shared->k_state[i], 1);
            buffer_init(&shared->v_state[i], 1);
        }
        mbarrier_init_end();
    }
    __syncthreads();
    if (warpgroup == 0) {
        registers_shrink<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0)
            copy_tiles<D>(shared, place, place.head / (int)(a.n_heads / a.n_kv_heads), &q, &k, &v);
    } else {
        registers_grow<CONSUMER_REGISTERS>();
        attend<D>(shared, a, place, warpgroup - 1);
    }
}

/* --- launching --- */

template <int D>
static cudaError_t
forward(const ExecAttention &a, cudaStream_t stream)
{
    const dim3 grid((unsigned)a.n_heads, (unsigned)a.sequences, blocks_for(a.tokens, BLOCK_ROWS));
    ExecCudaTensorMap q, k, v;
    cudaError_t status = map_queries(a, a.q, BLOCK_ROWS, &q);

    if (status == cudaSuccess)
        status = map_keys(a, a.k, KEYS, &k);
    if (status == cudaSuccess)
        status = map_keys(a, a.v, KEYS, &v);
    if (status != cudaSuccess)
        return status;
    return launch(hopper_forward<D>, grid, BLOCK_THREADS, shared_bytes<Shared<D>>(), stream, a, q,
                  k, v);
}

bool
kernels_hopper_has(const ExecAttention *a)
{
    return kernels_flash_has(a) && (a->head_dim == 64 || a->head_dim == 128);
}

cudaError_t
kernels_hopper_forward(const ExecAttention *a, cudaStream_t stream)
{
    switch (a->head_dim) {
    case 64:
        return forward<64>(*a, stream);
    case 128:
        return forward<128>(*a, stream);
    default:
        return cudaErrorInvalidValue;
    }
}
