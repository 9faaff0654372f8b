/*
 * executor/cuda/kernels_hopper.cu - attention with Hopper's own instructions (kernels_hopper.cuh):
 * tiles by the copy engine, products by warpgroups  [Shah et al. 2407.08608].
 *
 * A block has three warpgroups.  One, with few registers, has tiles copied into a ring of buffers;
 * two multiply, each for 64 of the block's 128 rows.  Registers of a multiprocessor: the launch
 * gives every thread 168, then the copying warpgroup gives most of its own to the others.
 */
#include "executor/cuda/kernels_hopper.cuh"

#define N_BUFFERS 2

/* Of a place in a ring; its n-th use has parity n % 2. */
struct Buffer {
    Mbarrier full, empty;
};

/* From lane 0, so that the compiler sees that a warp stays together. */
__device__ __forceinline__ int
warpgroup_index(void)
{
    return __shfl_sync(FULL, (int)threadIdx.x / WARPGROUP, 0);
}

__device__ __forceinline__ int
warp_in_group(void)
{
    return __shfl_sync(FULL, (int)threadIdx.x % WARPGROUP / WARP, 0);
}

/* --- the ring --- */

/* @n_writers arrive when it is full. */
__device__ __forceinline__ void
buffer_init(Buffer *buffer, int n_writers)
{
    mbarrier_init(&buffer->full, (uint32_t)n_writers);
    mbarrier_init(&buffer->empty, N_CONSUMERS * WARPGROUP / WARP);
}

__device__ __forceinline__ void
wait_full(Buffer *buffer, int use)
{
    mbarrier_wait(&buffer->full, (uint32_t)use % 2);
}

/* Until the previous use's readers have left it. */
__device__ __forceinline__ void
wait_empty(Buffer *buffer, int use)
{
    mbarrier_wait(&buffer->empty, (uint32_t)(use + 1) % 2);
}

/* After this warp's products from it have ended. */
__device__ __forceinline__ void
release(Buffer *buffer)
{
    if (threadIdx.x % WARP == 0)
        mbarrier_arrive(&buffer->empty);
}

/* By one thread.  Rows [row, row + ROWS) of a head; @full awaits their bytes already. */
template <int D, int ROWS>
__device__ __forceinline__ void
copy_rows(Panels<D, ROWS> *tile, const ExecCudaTensorMap *map, int head, int sequence, int row,
          Mbarrier *full)
{
#pragma unroll
    for (int panel = 0; panel < Panels<D, ROWS>::N; panel++)
        copy_box(tile->panel[panel], map, head * D + panel * PANEL_COLS, sequence, row, full);
}

/* Results as the next product's left operand. */
template <int N>
__device__ __forceinline__ void
pack_left(uint32_t (&a)[N][4], const float (&c)[2 * N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
        results_as_left(a[n], c[2 * n], c[2 * n + 1]);
}

/* --- launching --- */

/* Of a tensor with a row per token, sequences beside each other: heads' columns, sequences, tokens;
 * @row elements from sequence to sequence. */
static inline cudaError_t
map_rows(const ExecAttention &a, const void *memory, int64_t n_heads, int64_t row, int64_t n_tokens,
         int box_rows, ExecCudaTensorMap *map)
{
    ExecCudaTensor tensor = {};

    tensor.memory = memory;
    tensor.size[0] = n_heads * a.head_dim;
    tensor.size[1] = a.sequences;
    tensor.size[2] = n_tokens;
    tensor.stride[0] = row;
    tensor.stride[1] = a.sequences * row;
    tensor.rows = box_rows;
    return exec_cuda_tensor_map(&tensor, map);
}

/* As q, and as k. */
static inline cudaError_t
map_queries(const ExecAttention &a, const void *memory, int box_rows, ExecCudaTensorMap *map)
{
    return map_rows(a, memory, a.n_heads, a.n_heads * a.head_dim, a.tokens, box_rows, map);
}

static inline cudaError_t
map_keys(const ExecAttention &a, const void *memory, int box_rows, ExecCudaTensorMap *map)
{
    return map_rows(a, memory, a.n_kv_heads, a.kv_stride, a.context + a.tokens, box_rows, map);
}

/*
 * --- forward ---
 *
 * A block of 128 queries walks over the keys they see, 128 at a time, two tiles of K and two of V
 * on the way or in use.
 *
 * Three things overlap: a tile's scores are multiplied while the values of the tile before are; the
 * softmax runs beside the latter; and the two multiplying warpgroups take turns, so that one's
 * softmax runs beside the other's products.
 */

/* Of a tile.  Two tiles of K and two of V and one of Q, of 128 rows each, take 160 KiB of a block's
 * 227 KiB at head size 128. */
#define KEYS 128

template <int D> struct ForwardShared {
    Panels<D, BLOCK_ROWS> q;
    Panels<D, KEYS> k[N_BUFFERS], v[N_BUFFERS];
    Mbarrier q_full;
    Buffer k_state[N_BUFFERS], v_state[N_BUFFERS];
};

/* Where a block works. */
struct QueryPlace {
    int head, sequence;
    int first;   /* query */
    int n_tiles; /* of keys */
};

/* grid (heads, sequences, query tiles): late tiles, which see most keys, begin first. */
__device__ __forceinline__ QueryPlace
block_place(const ExecAttention &a)
{
    const int first = (int)(gridDim.z - 1 - blockIdx.z) * BLOCK_ROWS;
    const int64_t end = first + BLOCK_ROWS < a.tokens ? first + BLOCK_ROWS : a.tokens;
    const int64_t n_keys = a.context + end;

    return QueryPlace{(int)blockIdx.x, (int)blockIdx.y, first, (int)((n_keys + KEYS - 1) / KEYS)};
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
copy_tiles(ForwardShared<D> *shared, const QueryPlace &place, int kv_head,
           const ExecCudaTensorMap *q, const ExecCudaTensorMap *k, const ExecCudaTensorMap *v)
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
attend(ForwardShared<D> *shared, const ExecAttention &a, const QueryPlace &place, int consumer)
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
    ForwardShared<D> *shared = block_shared<ForwardShared<D>>();
    const QueryPlace place = block_place(a);
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

    TRY(map_queries(a, a.q, BLOCK_ROWS, &q));
    TRY(map_keys(a, a.k, KEYS, &k));
    TRY(map_keys(a, a.v, KEYS, &v));
    return launch(hopper_forward<D>, grid, BLOCK_THREADS, shared_bytes<ForwardShared<D>>(), stream,
                  a, q, k, v);
}

bool
kernels_hopper_has(const ExecAttention *a)
{
    return kernels_flash_has(a, SIZE_MAX) && kernels_hopper_has_heads(a->head_dim);
}

cudaError_t
kernels_hopper_forward(const ExecAttention *a, cudaStream_t stream)
{
    return for_constant<64, 128>(a->head_dim,
                                 [&](auto d) { return forward<decltype(d)::value>(*a, stream); });
}

/*
 * --- backward ---
 *
 * dK and dV by tiles of 128 keys, dQ by tiles of 128 queries, as in kernels_flash.cu: no atomic
 * additions, so equal inputs give equal bits.  A block's own two tiles (K and V, or Q and dO) stay;
 * the other side's come 64 rows at a time.
 */

/* Of a tile of the other side: dK, dV, scores and their gradients take 192 of a thread's 240
 * registers at head size 128. */
#define OTHER_ROWS 64

/* The products' left operands that scores, and gradients of scores, become. */
typedef uint32_t Left[OTHER_ROWS / FRAGMENT][4];

template <int D> struct Pair {
    Panels<D, OTHER_ROWS> tile[2];
};

template <int D> struct BackwardShared {
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
__device__ __forceinline__ BackwardShared<D> *
begin_block(int n_writers)
{
    BackwardShared<D> *shared = block_shared<BackwardShared<D>>();

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
copy_own(BackwardShared<D> *shared, const Maps &maps, int head, int sequence, int row)
{
    mbarrier_arrive_expecting(&shared->own_full, sizeof shared->own);
    for (int i = 0; i < 2; i++)
        copy_rows(&shared->own[i], &maps.own[i], head, sequence, row, &shared->own_full);
}

/* The @step-th pair of the block, when its place is free. */
template <int D>
__device__ __forceinline__ void
copy_other(BackwardShared<D> *shared, const Maps &maps, int step, int head, int sequence, int row)
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
load_statistics(BackwardShared<D> *shared, const ExecAttention &a, const KeyPlace &place,
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
            s[n][i] = exp2_fast(s[n][i] * scale_log2 - lse_log2[8 * n + 2 * (lane % 4) + i % 2]);
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
multiply_keys(BackwardShared<D> *shared, const ExecAttention &a, const ExecAttentionGradients &g,
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
    store_keys<D>(a, g, head_at(a, place.sequence, place.head_0), dk, dv, key);
}

template <int D>
__global__ void
__launch_bounds__(BLOCK_THREADS, 1)
    hopper_backward_keys(ExecAttention a, ExecAttentionGradients g, const float *delta,
                         const __grid_constant__ Maps maps)
{
    BackwardShared<D> *shared = begin_block<D>(2);
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
multiply_queries(BackwardShared<D> *shared, const ExecAttention &a, const ExecAttentionGradients &g,
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
    store_rows<D>((Bf16 *)g.dq + (h.q - (const Bf16 *)a.q), h.q_row, dq, a.scale, query,
                         a.tokens);
}

/* grid (heads, sequences, query tiles): late tiles, which see most keys, begin first. */
template <int D>
__global__ void
__launch_bounds__(BLOCK_THREADS, 1)
    hopper_backward_queries(ExecAttention a, ExecAttentionGradients g, const float *delta,
                            const __grid_constant__ Maps maps)
{
    BackwardShared<D> *shared = begin_block<D>(1);
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
    TRY(map_keys(a, a.k, key_rows, &keys[0]));
    TRY(map_keys(a, a.v, key_rows, &keys[1]));
    TRY(map_queries(a, a.q, query_rows, &queries[0]));
    return map_queries(a, g.dout, query_rows, &queries[1]);
}

template <int D>
static cudaError_t
backward(const ExecAttention &a, const ExecAttentionGradients &g, float *delta, cudaStream_t stream)
{
    const unsigned sequences = (unsigned)a.sequences;
    Maps by_keys, by_queries;

    TRY(make_maps(a, g, BLOCK_ROWS, OTHER_ROWS, by_keys.own, by_keys.other));
    TRY(make_maps(a, g, OTHER_ROWS, BLOCK_ROWS, by_queries.other, by_queries.own));
    TRY(kernels_flash_delta(&a, &g, delta, stream));
    TRY(launch(hopper_backward_keys<D>,
               dim3((unsigned)a.n_kv_heads, sequences,
                    blocks_for(a.context + a.tokens, BLOCK_ROWS)),
               BLOCK_THREADS, shared_bytes<BackwardShared<D>>(), stream, a, g,
               (const float *)delta, by_keys));
    return launch(hopper_backward_queries<D>,
                  dim3((unsigned)a.n_heads, sequences, blocks_for(a.tokens, BLOCK_ROWS)),
                  BLOCK_THREADS, shared_bytes<BackwardShared<D>>(), stream, a, g,
                  (const float *)delta, by_queries);
}

cudaError_t
kernels_hopper_backward(const ExecAttention *a, const ExecAttentionGradients *g, float *delta,
                        cudaStream_t stream)
{
    return for_constant<64, 128>(
        a->head_dim, [&](auto d) { return backward<decltype(d)::value>(*a, *g, delta, stream); });
}
