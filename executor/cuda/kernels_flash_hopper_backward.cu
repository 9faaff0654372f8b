/*
 * executor/cuda/kernels_flash_hopper_backward.cu - dK and dV by tiles of 128 keys, dQ by tiles of 128
 * queries, as in kernels_flash_backward.cu: no atomic additions, so equal inputs give equal bits.
 *
 * A block's own two tiles (K and V, or Q and dO) stay; the other side's come 64 rows at a time.
 */
#include "executor/cuda/kernels_flash_hopper.cuh"

#define OTHER_ROWS 64

/* The products' left operands that scores, and gradients of scores, become. */
typedef uint32_t Left[OTHER_ROWS / FRAGMENT][4];

template <int D> struct Pair {
    Panels<D, OTHER_ROWS> tile[2];
};

template <int D> struct Shared {
    Panels<D, BLOCK_ROWS> own[2];
    Pair<D> other[N_BUFFERS];
    /* of the other side, where those are queries */
    float lse_log2[N_BUFFERS][OTHER_ROWS], delta[N_BUFFERS][OTHER_ROWS];
    Mbarrier own_full;
    Buffer state[N_BUFFERS];
};

struct Maps {
    ExecCudaTensorMap own[2], other[2];
};

template <int D>
__device__ __forceinline__ Shared<D> *
begin_block(int n_writers)
{
    Shared<D> *shared = block_shared<Shared<D>>();

    if (threadIdx.x == 0) {
        mbarrier_init(&shared->own_full, 1);
        for (int i = 0; i < N_BUFFERS; i++)
            buffer_init(&shared->state[i], n_writers);
        mbarrier_init_end();
    }
    __syncthreads();
    return shared;
}

template <int D>
__device__ __forceinline__ void
copy_own(Shared<D> *shared, const Maps &maps, int head, int sequence, int row)
{
    mbarrier_arrive_expecting(&shared->own_full, sizeof shared->own);
    for (int i = 0; i < 2; i++)
        copy_rows(&shared->own[i], &maps.own[i], head, sequence, row, &shared->own_full);
}

/* The @step-th pair of the block, when its place is free. */
template <int D>
__device__ __forceinline__ void
copy_other(Shared<D> *shared, const Maps &maps, int step, int head, int sequence, int row)
{
    const int i = step % N_BUFFERS;

    wait_empty(&shared->state[i], step / N_BUFFERS);
    mbarrier_arrive_expecting(&shared->state[i].full, sizeof shared->other[i]);
    for (int j = 0; j < 2; j++)
        copy_rows(&shared->other[i].tile[j], &maps.other[j], head, sequence, row,
                  &shared->state[i].full);
}

/* --- dK and dV --- */

/* Steps walk over the heads that share K and V, and over the tiles of queries that see a key. */
struct KeyPlace {
    int kv_head, sequence;
    int first; /* key */
    int head_0, query_begin, per_head, n_steps;
};

/* grid (K/V heads, sequences, key tiles): the first ones are seen by most. */
__device__ __forceinline__ KeyPlace
key_place(const ExecAttention &a)
{
    const int group = (int)(a.n_heads / a.n_kv_heads), first = (int)blockIdx.z * BLOCK_ROWS;
    const int hidden = first - (int)a.context; /* queries before do not see the tile */
    KeyPlace place;

    place.kv_head = (int)blockIdx.x;
    place.sequence = (int)blockIdx.y;
    place.first = first;
    place.head_0 = place.kv_head * group;
    place.query_begin = hidden > 0 ? hidden / OTHER_ROWS * OTHER_ROWS : 0;
    place.per_head = ((int)a.tokens - place.query_begin + OTHER_ROWS - 1) / OTHER_ROWS;
    place.n_steps = place.per_head * group;
    return place;
}

/* A warp beside the copying thread: the queries' statistics, zeros beyond the last. */
template <int D>
__device__ __forceinline__ void
load_statistics(Shared<D> *shared, const ExecAttention &a, const KeyPlace &place,
                const float *delta)
{
    for (int step = 0; step < place.n_steps; step++) {
        const int i = step % N_BUFFERS, head = place.head_0 + step / place.per_head;
        const int query = place.query_begin + step % place.per_head * OTHER_ROWS;
        const Head h = head_at(a, place.sequence, head);
        wait_empty(&shared->state[i], step / N_BUFFERS);
        for (int row = (int)threadIdx.x % WARP; row < OTHER_ROWS; row += WARP) {
            const bool exists = query + row < a.tokens;
            const int64_t at = exists ? (query + row) * h.stat_row + h.stat : h.stat;
            shared->lse_log2[i][row] = exists ? a.lse[at] * LOG2E : 0.0f;
            shared->delta[i][row] = exists ? delta[at] : 0.0f;
        }
        __syncwarp();
        if (threadIdx.x % WARP == 0)
            mbarrier_arrive(&shared->state[i].full);
    }
}

/* Row r of the fragment (a key) is seen by columns (queries) from @first + r on. */
__device__ __forceinline__ void
mask_transposed(float (&s)[OTHER_ROWS / 8][4], int first)
{
    const int lane = (int)threadIdx.x % WARP;

#pragma unroll
    for (int n = 0; n < OTHER_ROWS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = lane / 4 + 8 * (i / 2), col = 8 * n + 2 * (lane % 4) + i % 2;
            if (col < first + row)
                s[n][i] = -INFINITY;
        }
}

/* Transposed scores become probabilities; columns are queries. */
__device__ __forceinline__ void
transposed_probabilities(float (&s)[OTHER_ROWS / 8][4], const float *lse_log2, float scale_log2)
{
    const int lane = (int)threadIdx.x % WARP;

#pragma unroll
    for (int n = 0; n < OTHER_ROWS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] =
                exp2_fast(s[n][i] * scale_log2 - lse_log2[8 * n + 2 * (lane % 4) + i % 2]);
}

/* dP becomes the scores' gradients, less the scale; columns are queries. */
__device__ __forceinline__ void
transposed_score_gradients(float (&dp)[OTHER_ROWS / 8][4], const float (&p)[OTHER_ROWS / 8][4],
                           const float *delta)
{
    const int lane = (int)threadIdx.x % WARP;

#pragma unroll
    for (int n = 0; n < OTHER_ROWS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            dp[n][i] = p[n][i] * (dp[n][i] - delta[8 * n + 2 * (lane % 4) + i % 2]);
}

template <int D>
__device__ __forceinline__ void
multiply_keys(Shared<D> *shared, const ExecAttention &a, const ExecAttentionGradients &g,
              const KeyPlace &place, int consumer)
{
    const int own = consumer * ROWS_EACH;
    const int key = place.first + own + warp_in_group() * FRAGMENT;
    const float scale_log2 = a.scale * LOG2E;
    float dk[D / 8][4], dv[D / 8][4], s[OTHER_ROWS / 8][4], dp[OTHER_ROWS / 8][4];
    Left p, ds;

    clear(dk);
    clear(dv);
    mbarrier_wait(&shared->own_full, 0);
    for (int step = 0; step < place.n_steps; step++) {
        const int i = step % N_BUFFERS;
        const int query = place.query_begin + step % place.per_head * OTHER_ROWS;
        const Pair<D> &other = shared->other[i];
        wait_full(&shared->state[i], step / N_BUFFERS);
        begin_rows<D>(s, shared->own[0], own, other.tile[0]);
        begin_rows<D>(dp, shared->own[1], own, other.tile[1]);
        product_wait<1>();
        settle(s);
        const int first = key - (int)a.context - query; /* column that sees this warp's first key */
        if (first + FRAGMENT - 1 > 0)
            mask_transposed(s, first);
        transposed_probabilities(s, shared->lse_log2[i], scale_log2);
        pack_left(p, s);
        begin_columns<D>(dv, p, other.tile[1]);
        product_wait<1>();
        settle(dp);
        transposed_score_gradients(dp, s, shared->delta[i]);
        pack_left(ds, dp);
        begin_columns<D>(dk, ds, other.tile[0]);
        product_wait<0>();
        settle(dv);
        settle(dk);
        settle(p);
        settle(ds);
        release(&shared->state[i]);
    }
    const Head h = head_at(a, place.sequence, place.head_0);
    const int64_t at = h.k - (const Bf16 *)a.k, n_keys = a.context + a.tokens;
    add_rows<D>((Bf16 *)g.dk + at, h.kv_row, dk, a.scale, key, n_keys);
    add_rows<D>((Bf16 *)g.dv + at, h.kv_row, dv, 1.0f, key, n_keys);
}

template <int D>
__global__ void
__launch_bounds__(BLOCK_THREADS, 1)
    hopper_backward_keys(ExecAttention a, ExecAttentionGradients g, const float *delta,
                         const __grid_constant__ Maps maps)
{
    Shared<D> *shared = begin_block<D>(2);
    const KeyPlace place = key_place(a);
    const int warpgroup = warpgroup_index(), warp = warp_in_group();

    if (warpgroup > 0) {
        registers_grow<CONSUMER_REGISTERS>();
        multiply_keys<D>(shared, a, g, place, warpgroup - 1);
        return;
    }
    registers_shrink<PRODUCER_REGISTERS>();
    if (warp == 1)
        load_statistics<D>(shared, a, place, delta);
    if (threadIdx.x > 0)
        return;
    copy_own<D>(shared, maps, place.kv_head, place.sequence, place.first);
    for (int step = 0; step < place.n_steps; step++)
        copy_other<D>(shared, maps, step, place.head_0 + step / place.per_head, place.sequence,
                      place.query_begin + step % place.per_head * OTHER_ROWS);
}

/* --- dQ --- */

/* dP becomes the scores' gradients, less the scale; s are the scores, rows queries. */
__device__ __forceinline__ void
score_gradients(float (&dp)[OTHER_ROWS / 8][4], const float (&s)[OTHER_ROWS / 8][4],
                const float (&lse_log2)[2], const float (&delta)[2], float scale_log2)
{
#pragma unroll
    for (int n = 0; n < OTHER_ROWS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float p = exp2_fast(s[n][i] * scale_log2 - lse_log2[i / 2]);
            dp[n][i] = p * (dp[n][i] - delta[i / 2]);
        }
}

template <int D>
__device__ __forceinline__ void
multiply_queries(Shared<D> *shared, const ExecAttention &a, const ExecAttentionGradients &g,
                 const float *delta, int first, int n_steps, int consumer)
{
    const int own = consumer * ROWS_EACH, lane = (int)threadIdx.x % WARP;
    const int query = first + own + warp_in_group() * FRAGMENT;
    const int last_key = (int)a.context + query; /* that this warp's first row sees */
    const Head h = head_at(a, (int)blockIdx.y, (int)blockIdx.x);
    float dq[D / 8][4], s[OTHER_ROWS / 8][4], dp[OTHER_ROWS / 8][4];
    float lse_log2[2], sum[2];
    Left ds;

    for (int half = 0; half < 2; half++) {
        const int64_t row = query + lane / 4 + 8 * half;
        const int64_t at = (row < a.tokens ? row : 0) * h.stat_row + h.stat;
        lse_log2[half] = a.lse[at] * LOG2E;
        sum[half] = delta[at];
    }
    clear(dq);
    mbarrier_wait(&shared->own_full, 0);
    for (int step = 0; step < n_steps; step++) {
        const int i = step % N_BUFFERS, key = step * OTHER_ROWS;
        const Pair<D> &other = shared->other[i];
        wait_full(&shared->state[i], step / N_BUFFERS);
        begin_rows<D>(s, shared->own[0], own, other.tile[0]);
        begin_rows<D>(dp, shared->own[1], own, other.tile[1]);
        product_wait<0>();
        settle(s);
        settle(dp);
        if (key + OTHER_ROWS - 1 > last_key)
            mask_scores(s, last_key - key);
        score_gradients(dp, s, lse_log2, sum, a.scale * LOG2E);
        pack_left(ds, dp);
        begin_columns<D>(dq, ds, other.tile[0]);
        product_wait<0>();
        settle(dq);
        settle(ds);
        release(&shared->state[i]);
    }
    store_rows<D>((Bf16 *)g.dq + (h.q - (const Bf16 *)a.q), h.q_row, dq, a.scale, query, a.tokens);
}

/* grid (heads, sequences, query tiles): late tiles, which see most keys, begin first. */
template <int D>
__global__ void
__launch_bounds__(BLOCK_THREADS, 1)
    hopper_backward_queries(ExecAttention a, ExecAttentionGradients g, const float *delta,
                            const __grid_constant__ Maps maps)
{
    Shared<D> *shared = begin_block<D>(1);
    const int head = (int)blockIdx.x, sequence = (int)blockIdx.y, warpgroup = warpgroup_index();
    const int first = (int)(gridDim.z - 1 - blockIdx.z) * BLOCK_ROWS;
    const int64_t end = first + BLOCK_ROWS < a.tokens ? first + BLOCK_ROWS : a.tokens;
    const int n_steps = (int)((a.context + end + OTHER_ROWS - 1) / OTHER_ROWS);

    if (warpgroup > 0) {
        registers_grow<CONSUMER_REGISTERS>();
        multiply_queries<D>(shared, a, g, delta, first, n_steps, warpgroup - 1);
        return;
    }
    registers_shrink<PRODUCER_REGISTERS>();
    if (threadIdx.x > 0)
        return;
    copy_own<D>(shared, maps, head, sequence, first);
    for (int step = 0; step < n_steps; step++)
        copy_other<D>(shared, maps, step, head / (int)(a.n_heads / a.n_kv_heads), sequence,
                      step * OTHER_ROWS);
}

/* --- launching --- */

/* K and V in boxes of @key_rows, Q and dO in boxes of @query_rows. */
static cudaError_t
make_maps(const ExecAttention &a, const ExecAttentionGradients &g, int key_rows, int query_rows,
          ExecCudaTensorMap keys[2], ExecCudaTensorMap queries[2])
{
    cudaError_t status = map_keys(a, a.k, key_rows, &keys[0]);

    if (status == cudaSuccess)
        status = map_keys(a, a.v, key_rows, &keys[1]);
    if (status == cudaSuccess)
        status = map_queries(a, a.q, query_rows, &queries[0]);
    if (status == cudaSuccess)
        status = map_queries(a, g.dout, query_rows, &queries[1]);
    return status;
}

template <int D>
static cudaError_t
backward(const ExecAttention &a, const ExecAttentionGradients &g, float *delta, cudaStream_t stream)
{
    const unsigned sequences = (unsigned)a.sequences;
    Maps by_keys, by_queries;
    cudaError_t status = make_maps(a, g, BLOCK_ROWS, OTHER_ROWS, by_keys.own, by_keys.other);

    if (status == cudaSuccess)
        status = make_maps(a, g, OTHER_ROWS, BLOCK_ROWS, by_queries.other, by_queries.own);
    if (status == cudaSuccess)
        status = kernels_flash_delta(&a, &g, delta, stream);
    if (status == cudaSuccess)
        status = launch(hopper_backward_keys<D>,
                        dim3((unsigned)a.n_kv_heads, sequences,
                             blocks_for(a.context + a.tokens, BLOCK_ROWS)),
                        BLOCK_THREADS, shared_bytes<Shared<D>>(), stream, a, g,
                        (const float *)delta, by_keys);
    if (status == cudaSuccess)
        status = launch(hopper_backward_queries<D>,
                        dim3((unsigned)a.n_heads, sequences, blocks_for(a.tokens, BLOCK_ROWS)),
                        BLOCK_THREADS, shared_bytes<Shared<D>>(), stream, a, g,
                        (const float *)delta, by_queries);
    return status;
}

cudaError_t
kernels_hopper_backward(const ExecAttention *a, const ExecAttentionGradients *g, float *delta,
                        cudaStream_t stream)
{
    switch (a->head_dim) {
    case 64:
        return backward<64>(*a, *g, delta, stream);
    case 128:
        return backward<128>(*a, *g, delta, stream);
    default:
        return cudaErrorInvalidValue;
    }
}
