/*
 * executor/cuda/kernels_flash_hopper.cuh - attention with Hopper's own instructions, what forward and
 * backward share: tiles by the copy engine, products by warpgroups  [Shah et al. 2407.08608].
 *
 * A block has three warpgroups.  One, with few registers, has tiles copied into a ring of buffers;
 * two multiply, each for 64 of the block's 128 rows.  Registers of a multiprocessor: the launch
 * gives every thread 168, then the copying warpgroup gives most of its own to the others.
 */
#ifndef EXECUTOR_CUDA_KERNELS_FLASH_HOPPER_CUH
#define EXECUTOR_CUDA_KERNELS_FLASH_HOPPER_CUH

#include "executor/cuda/kernels_flash.cuh"
#include "executor/cuda/kernels_hopper.cuh"

#define ROWS_EACH 64 /* of a multiplying warpgroup: the m of its products */
#define N_CONSUMERS 2
#define BLOCK_ROWS (N_CONSUMERS * ROWS_EACH)
#define N_BUFFERS 2
#define BLOCK_THREADS ((1 + N_CONSUMERS) * WARPGROUP)

#define PRODUCER_REGISTERS 24
#define CONSUMER_REGISTERS 240
static_assert(WARPGROUP * (PRODUCER_REGISTERS + N_CONSUMERS * CONSUMER_REGISTERS) <= 65536,
              "registers of a multiprocessor");

#define PANEL_COLS EXEC_CUDA_BOX_COLS
#define ROW_BYTES (PANEL_COLS * (int)sizeof(Bf16))
#define ATOM_BYTES (8 * ROW_BYTES)

/* A tile's columns in panels of 64, as boxes arrive. */
template <int D, int ROWS> struct alignas(ATOM_BYTES) Panels {
    static constexpr int N = D / PANEL_COLS;
    static constexpr int PANEL_BYTES = ROWS * ROW_BYTES;
    char panel[N][PANEL_BYTES];
};

/* Of a place in a ring; its n-th use has parity n % 2. */
struct Buffer {
    Mbarrier full, empty;
};

/* The block's shared memory; the launch asks for shared_bytes<Shared>(), to begin at a multiple of
 * what the swizzle repeats after. */
template <typename Shared>
__device__ __forceinline__ Shared *
block_shared(void)
{
    char *memory = launch_shared();
    const uint32_t beyond = shared_address(memory) % ATOM_BYTES;

    return (Shared *)(memory + (beyond == 0 ? 0 : ATOM_BYTES - beyond));
}

template <typename Shared>
static constexpr size_t
shared_bytes(void)
{
    return sizeof(Shared) + ATOM_BYTES;
}

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

/* --- products --- */

/* C = rows [first, first + 64) of @a times all rows of @b, each with each; begins it. */
template <int D, int ROWS_A, int ROWS_B>
__device__ __forceinline__ void
begin_rows(float (&c)[ROWS_B / 8][4], const Panels<D, ROWS_A> &a, int first,
           const Panels<D, ROWS_B> &b)
{
    product_begin();
#pragma unroll
    for (int col = 0; col < D; col += FRAGMENT) {
        const int panel = col / PANEL_COLS, byte = col % PANEL_COLS * (int)sizeof(Bf16);
        product_rows(c, operand(a.panel[panel] + first * ROW_BYTES + byte, ATOM_BYTES, 0),
                     operand(b.panel[panel] + byte, ATOM_BYTES, 0), col == 0);
    }
    product_commit();
}

/* C += A times the rows of @b, all D columns; begins it. */
template <int D, int N>
__device__ __forceinline__ void
begin_columns(float (&c)[D / 8][4], const uint32_t (&a)[N][4],
              const Panels<D, N * FRAGMENT> &b)
{
    product_begin();
#pragma unroll
    for (int n = 0; n < N; n++)
        product_columns(c, a[n],
                        operand(b.panel[0] + n * FRAGMENT * ROW_BYTES, ATOM_BYTES,
                                Panels<D, N * FRAGMENT>::PANEL_BYTES));
    product_commit();
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

#endif /* EXECUTOR_CUDA_KERNELS_FLASH_HOPPER_CUH */
