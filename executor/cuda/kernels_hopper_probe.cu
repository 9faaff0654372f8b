/*
 * executor/cuda/kernels_hopper_probe.cu - the assumptions of kernels_hopper.cu, one kernel for each
 * and by the same functions: what each shows is in probe.h.
 */
#include "executor/cuda/kernels_hopper.cuh"
#include "executor/cuda/probe.h"

/* --- a box --- */

#define BOX_BYTES (EXEC_PROBE_BOX_ROWS * EXEC_PROBE_BOX_COLS * (int)sizeof(uint16_t))
#define BOX_WORDS (BOX_BYTES / (int)sizeof(uint32_t))
static_assert(EXEC_PROBE_BOX_COLS == EXEC_CUDA_BOX_COLS, "a box's width is the map's");

/* The second place of a ring: not at the beginning of the block's memory. */
struct BoxShared {
    Panels<EXEC_PROBE_BOX_COLS, EXEC_PROBE_BOX_ROWS> before, box;
    Mbarrier full;
};

/* Looks some 0.1 s long whether the barrier's first phase has ended: a barrier that awaits what
 * never comes is to be told of, not to hang. */
__device__ __forceinline__ bool
ends(Mbarrier *barrier)
{
    uint32_t ended = 0;

    for (int i = 0; i < 4000000 && !ended; i++)
        INSTRUCTION(asm volatile("{\n"
                                 ".reg .pred ended;\n"
                                 "mbarrier.test_wait.parity.shared::cta.b64 ended, [%1], 0;\n"
                                 "selp.u32 %0, 1, 0, ended;\n"
                                 "}"
                                 : "=r"(ended)
                                 : "r"(shared_address(barrier))
                                 : "memory"),
                    (gpu_on_host::mbarrier_wait(&barrier->state, 0), ended = 1));
    return ended;
}

/* One block of a warpgroup. */
__global__ void
__launch_bounds__(WARPGROUP, 1) probe_box(const __grid_constant__ ExecCudaTensorMap map, int row,
                                          int col, uint32_t *dump, int32_t *ended)
{
    BoxShared *shared = block_shared<BoxShared>();
    uint32_t *words = (uint32_t *)shared->box.panel[0];

    for (int i = (int)threadIdx.x; i < BOX_WORDS; i += WARPGROUP)
        words[i] = 0xeeeeeeeeu;
    show_to_async();
    if (threadIdx.x == 0) {
        mbarrier_init(&shared->full, 1);
        mbarrier_init_end();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expecting(&shared->full, BOX_BYTES);
        copy_box(shared->box.panel[0], &map, col, 1, row, &shared->full);
    }
    const bool has_ended = ends(&shared->full);
    if (threadIdx.x == 0)
        *ended = has_ended;
    for (int i = (int)threadIdx.x; i < BOX_WORDS; i += WARPGROUP)
        dump[i] = words[i];
}

cudaError_t
kernels_probe_box(const uint16_t *tensor, int64_t n_rows, int row, int col, uint16_t *dump,
                  int32_t *ended, cudaStream_t stream)
{
    const int64_t cols = EXEC_PROBE_TENSOR_COLS, sequences = EXEC_PROBE_TENSOR_SEQUENCES;
    ExecCudaTensor from = {
        tensor, {cols, sequences, n_rows}, {cols, sequences * cols}, EXEC_PROBE_BOX_ROWS};
    ExecCudaTensorMap map;

    TRY(exec_cuda_tensor_map(&from, &map));
    return launch(probe_box, dim3(1), WARPGROUP, shared_bytes<BoxShared>(), stream, map, row, col,
                  (uint32_t *)dump, ended);
}

/* --- products --- */

/* Copies an operand as it is, and shows it to the tensor cores. */
template <int D, int ROWS>
__device__ __forceinline__ void
take_operand(Panels<D, ROWS> *to, const void *from)
{
    for (int i = (int)threadIdx.x; i < (int)sizeof *to / 4; i += WARPGROUP)
        ((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
    show_to_async();
}

/* As store_rows(), but fp32 and unscaled. */
template <int N>
__device__ __forceinline__ void
store_results(float *to, const float (&c)[N / 8][4])
{
    const int lane = (int)threadIdx.x % WARP, first = (int)threadIdx.x / WARP * FRAGMENT;

#pragma unroll
    for (int n = 0; n < N / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[(first + lane / 4 + 8 * (i / 2)) * N + 8 * n + lane % 4 * 2 + i % 2] = c[n][i];
}

template <int N> struct AlongK {
    Panels<128, EXEC_PROBE_ROWS> a;
    Panels<128, N> b;
};

/* One block of a warpgroup. */
template <int N>
__global__ void
__launch_bounds__(WARPGROUP, 1) probe_along_k(const char *a, const char *b, float *to)
{
    AlongK<N> *shared = block_shared<AlongK<N>>();
    float c[N / 8][4];

    take_operand(&shared->a, a);
    take_operand(&shared->b, b);
    __syncthreads();
    clear(c);
    begin_rows<128>(c, shared->a, 0, shared->b);
    product_wait<0>();
    settle(c);
    store_results<N>(to, c);
}

/* One block of a warpgroup. */
template <int N>
__global__ void
__launch_bounds__(WARPGROUP, 1) probe_along_n(const uint16_t *a, const char *b, float *to)
{
    auto *shared = block_shared<Panels<N, EXEC_PROBE_ROWS>>();
    const int lane = (int)threadIdx.x % WARP, first = (int)threadIdx.x / WARP * FRAGMENT;
    uint32_t left[EXEC_PROBE_ROWS / FRAGMENT][4];
    float c[N / 8][4];

    take_operand(shared, b);
    __syncthreads();
    /* As of multiply(). */
#pragma unroll
    for (int k = 0; k < EXEC_PROBE_ROWS / FRAGMENT; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = first + lane / 4 + 8 * (i % 2);
            const int col = k * FRAGMENT + lane % 4 * 2 + 8 * (i / 2);
            left[k][i] =
                a[row * EXEC_PROBE_ROWS + col] | (uint32_t)a[row * EXEC_PROBE_ROWS + col + 1] << 16;
        }
    clear(c);
    begin_columns<N>(c, left, *shared);
    product_wait<0>();
    settle(c);
    settle(left);
    store_results<N>(to, c);
}

cudaError_t
kernels_probe_along_k(int n, const void *a, const void *b, float *c, cudaStream_t stream)
{
    return for_constant<64, 128>(n, [&](auto constant) {
        constexpr int N = decltype(constant)::value;
        return launch(probe_along_k<N>, dim3(1), WARPGROUP, shared_bytes<AlongK<N>>(), stream,
                      (const char *)a, (const char *)b, c);
    });
}

cudaError_t
kernels_probe_along_n(int n, const void *a, const void *b, float *c, cudaStream_t stream)
{
    return for_constant<64, 128>(n, [&](auto constant) {
        constexpr int N = decltype(constant)::value;
        return launch(probe_along_n<N>, dim3(1), WARPGROUP,
                      shared_bytes<Panels<N, EXEC_PROBE_ROWS>>(), stream, (const uint16_t *)a,
                      (const char *)b, c);
    });
}

/* --- registers --- */

static_assert(EXEC_PROBE_THREADS == BLOCK_THREADS, "as a block of attention");

__global__ void
__launch_bounds__(BLOCK_THREADS, 1) probe_registers(int n_rounds, uint32_t *sums)
{
    const uint32_t thread = threadIdx.x;
    uint32_t x[EXEC_PROBE_REGISTERS], sum = 0;

    if (thread < WARPGROUP) {
        registers_shrink<PRODUCER_REGISTERS>();
        sums[thread] = thread;
        return;
    }
    registers_grow<CONSUMER_REGISTERS>();
#pragma unroll
    for (int i = 0; i < EXEC_PROBE_REGISTERS; i++)
        x[i] = thread + (uint32_t)i;
#pragma unroll 1
    for (int round = 0; round < n_rounds; round++)
#pragma unroll
        for (int i = 0; i < EXEC_PROBE_REGISTERS; i++)
            x[i] = 1664525u * x[i] + (uint32_t)(i + round);
#pragma unroll
    for (int i = 0; i < EXEC_PROBE_REGISTERS; i++)
        sum += x[i] * (uint32_t)(i + 1);
    sums[thread] = sum;
}

cudaError_t
kernels_probe_registers(int n_rounds, uint32_t *sums, cudaStream_t stream)
{
    return launch(probe_registers, dim3(1), BLOCK_THREADS, 0, stream, n_rounds, sums);
}
