/*
 * executor/cuda/kernels_hopper.cuh - what compute capability 9.0 adds, each instruction in one
 * small function: copies of whole boxes by the copy engine (TMA), barriers in shared memory that
 * count arrivals and bytes, products by a warpgroup whose operands stay in shared memory (wgmma),
 * named barriers and registers that move from one warpgroup to another.
 *
 * All of it is asynchronous.  A copy has landed when its barrier's phase has ended.  Between
 * product_begin() and the wait for its group, a product's accumulators and left operand belong to
 * the tensor cores: they may be neither read nor written.
 *
 * Facts from the PTX ISA 9.0 manual: 9.7.13.15 (mbarrier), 9.7.9.25 (cp.async.bulk.tensor) and
 * 9.7.15 (wgmma).  Needs sm_90a.  Private to kernels_hopper.cu and kernels_hopper_probe.cu, which
 * tries what this file takes for granted.
 */
#pragma once

#include "executor/cuda/tensor_map.h"
#include "executor/cuda/kernels_flash.cuh"

#define WARPGROUP 128

__device__ __forceinline__ uint32_t
shared_address(const void *shared)
{
#ifdef __CUDA_ARCH__
    return (uint32_t)__cvta_generic_to_shared(shared);
#elif defined(__CUDACC__)
    return 0;
#else
    return gpu_on_host::shared_address(shared);
#endif
}

/* --- barriers in shared memory ---
 *
 * A phase ends when as many have arrived as were announced, and all bytes that were to be awaited
 * have landed; phases have parity 0, 1, 0, ...  Waiting for a parity returns when the present phase
 * has the other one; so waiting for 1 on a new barrier returns at once. */

struct Mbarrier {
    uint64_t state;
};

__device__ __forceinline__ void
mbarrier_init(Mbarrier *barrier, uint32_t n_arrivals)
{
    INSTRUCTION(
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                     "r"(n_arrivals)
                     : "memory"),
        gpu_on_host::mbarrier_init(&barrier->state, n_arrivals));
}

/* What this thread has written to shared memory is seen by the copy engine and by products that
 * begin after a barrier of the block. */
__device__ __forceinline__ void
show_to_async(void)
{
    INSTRUCTION(asm volatile("fence.proxy.async.shared::cta;" ::: "memory"), (void)0);
}

/* By the thread that initialised them, before a barrier of the block: shows them to the copy
 * engine. */
__device__ __forceinline__ void
mbarrier_init_end(void)
{
    INSTRUCTION(asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"), (void)0);
    show_to_async();
}

__device__ __forceinline__ void
mbarrier_arrive(Mbarrier *barrier)
{
    INSTRUCTION(
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                     : "memory"),
        gpu_on_host::mbarrier_arrive(&barrier->state, 0));
}

/* Arrives; the phase also waits for @n_bytes of copies. */
__device__ __forceinline__ void
mbarrier_arrive_expecting(Mbarrier *barrier, uint32_t n_bytes)
{
    INSTRUCTION(asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                                 shared_address(barrier)),
                             "r"(n_bytes)
                             : "memory"),
                gpu_on_host::mbarrier_arrive(&barrier->state, (int)n_bytes));
}

__device__ __forceinline__ void
mbarrier_wait(Mbarrier *barrier, uint32_t parity)
{
    INSTRUCTION(asm volatile("{\n"
                             ".reg .pred ended;\n"
                             "again:\n"
                             "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
                             "@ended bra done;\n"
                             "bra again;\n"
                             "done:\n"
                             "}" ::"r"(shared_address(barrier)),
                             "r"(parity)
                             : "memory"),
                gpu_on_host::mbarrier_wait(&barrier->state, parity));
}

/* --- copies --- */

/* The map's box at element (x, y, z) to @shared, a multiple of 1024; @barrier gets its bytes.  What
 * is outside the tensor arrives as zeros. */
__device__ __forceinline__ void
copy_box(void *shared, const ExecCudaTensorMap *map, int x, int y, int z, Mbarrier *barrier)
{
    INSTRUCTION(
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(shared)),
                     "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
                     : "memory"),
        gpu_on_host::copy_box(shared, map->opaque, x, y, z, &barrier->state));
}

/* --- warpgroups --- */

/* Named barrier @id in [1, 16): of @n_threads, those that wait and those that only arrive. */
__device__ __forceinline__ void
named_wait(int id, int n_threads)
{
    INSTRUCTION(asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n_threads)
                             : "memory"),
                gpu_on_host::named_barrier(id, n_threads, true));
}

__device__ __forceinline__ void
named_arrive(int id, int n_threads)
{
    INSTRUCTION(asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n_threads)
                             : "memory"),
                gpu_on_host::named_barrier(id, n_threads, false));
}

/* Gives registers back, or waits for them; by all of a warpgroup. */
template <int N>
__device__ __forceinline__ void
registers_shrink(void)
{
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "what setmaxnreg takes");
    INSTRUCTION(asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)), (void)0);
}

template <int N>
__device__ __forceinline__ void
registers_grow(void)
{
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "what setmaxnreg takes");
    INSTRUCTION(asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)), (void)0);
}

/* --- products --- */

/*
 * A matrix of bf16 in shared memory as an operand, with the 128-byte swizzle: it consists of atoms
 * of 8 rows of 64 elements (1024 bytes, at a multiple of 1024), in which 16-byte chunk c of row r
 * lies at place c ^ r.  A map's box of 64 elements per row arrives like that.
 *
 * Rows along the product's m or n ("k-major"): @next_8 is the distance in bytes to the atom of the
 * next 8 rows; @next_64 is not used, a product is 16 elements wide.  Rows along k: @next_8 is the
 * distance to the next 8 of k, @next_64 to the next 64 of m or n.
 */
__device__ __forceinline__ uint64_t
operand(const void *shared, uint32_t next_8, uint32_t next_64)
{
    const uint64_t swizzle_128 = 1;

    return (uint64_t)((shared_address(shared) & 0x3ffff) >> 4) | (uint64_t)(next_64 >> 4) << 16 |
           (uint64_t)(next_8 >> 4) << 32 | swizzle_128 << 62;
}

/* Before the first product after accumulators or a left operand were touched. */
__device__ __forceinline__ void
product_begin(void)
{
    INSTRUCTION(asm volatile("wgmma.fence.sync.aligned;" ::
                                 : "memory"),
                gpu_on_host::product_begin());
}

/* Products since the last group become one. */
__device__ __forceinline__ void
product_commit(void)
{
    INSTRUCTION(asm volatile("wgmma.commit_group.sync.aligned;" ::
                                 : "memory"),
                gpu_on_host::product_commit());
}

/* Until at most the latest @N groups are under way. */
template <int N>
__device__ __forceinline__ void
product_wait(void)
{
    INSTRUCTION(asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N)
                             : "memory"),
                gpu_on_host::product_wait(N));
}

/* After the wait for them: what uses accumulators and left operands stays behind it. */
template <int N>
__device__ __forceinline__ void
settle(float (&x)[N][4])
{
#ifdef __CUDA_ARCH__
#pragma unroll
    for (int i = 0; i < 4 * N; i++)
        asm volatile("" : "+f"(x[i / 4][i % 4])::"memory");
#endif
}

template <int N>
__device__ __forceinline__ void
settle(uint32_t (&x)[N][4])
{
#ifdef __CUDA_ARCH__
#pragma unroll
    for (int i = 0; i < 4 * N; i++)
        asm volatile("" : "+r"(x[i / 4][i % 4])::"memory");
#endif
}

/* Before a wait for products beside which @x, >= 0 or NaN, is to be computed.  ptxas (13.0) moves
 * such a wait up to the one before, over all arithmetic that does not need it: the softmax then
 * began when the products had ended.  Over a barrier of the warp that depends on @x it does not. */
__device__ __forceinline__ void
compute_first(float x)
{
    INSTRUCTION(asm volatile("{\n"
                             ".reg .pred not_negative;\n"
                             ".reg .b32 lanes;\n"
                             "setp.geu.f32 not_negative, %0, 0f00000000;\n"
                             "vote.sync.ballot.b32 lanes, not_negative, 0xffffffff;\n"
                             "bar.warp.sync lanes;\n"
                             "}" ::"f"(x)
                             : "memory"),
                (void)0);
}

#define REGISTERS_4(c, n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define REGISTERS_16(c, n)                                                                         \
    REGISTERS_4(c, n), REGISTERS_4(c, n + 1), REGISTERS_4(c, n + 2), REGISTERS_4(c, n + 3)
#define NAMES_32                                                                                   \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"   \
    "%25,%26,%27,%28,%29,%30,%31"
#define NAMES_64                                                                                   \
    NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,"   \
             "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

/* C[64,N] = A[64,16] B[16,N], with C[64,N] added unless @first; in fp32 from bf16, in the
 * background.  Warp w of the group has rows [16 w, 16 w + 16) of C as in multiply(): c[n] is
 * columns [8 n, 8 n + 8).  A and B^T: operands with rows along m and n. */
__device__ __forceinline__ void
product_rows(float (&c)[16][4], uint64_t a, uint64_t b, bool first)
{
    INSTRUCTION(asm volatile("{\n"
                             ".reg .pred add;\n"
                             "setp.ne.b32 add, %66, 0;\n"
                             "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64
                             "}, %64, %65, add, 1, 1, 0, 0;\n"
                             "}"
                             : REGISTERS_16(c, 0), REGISTERS_16(c, 4), REGISTERS_16(c, 8),
                               REGISTERS_16(c, 12)
                             : "l"(a), "l"(b), "r"(first ? 0 : 1)),
                gpu_on_host::product(c, NULL, a, b, false, !first));
}

__device__ __forceinline__ void
product_rows(float (&c)[8][4], uint64_t a, uint64_t b, bool first)
{
    INSTRUCTION(asm volatile("{\n"
                             ".reg .pred add;\n"
                             "setp.ne.b32 add, %34, 0;\n"
                             "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32
                             "}, %32, %33, add, 1, 1, 0, 0;\n"
                             "}"
                             : REGISTERS_16(c, 0), REGISTERS_16(c, 4)
                             : "l"(a), "l"(b), "r"(first ? 0 : 1)),
                gpu_on_host::product(c, NULL, a, b, false, !first));
}

/* C += A B with A from registers, as of multiply(), and B's rows along k. */
__device__ __forceinline__ void
product_columns(float (&c)[16][4], const uint32_t (&a)[4], uint64_t b)
{
    INSTRUCTION(asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64
                             "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                             : REGISTERS_16(c, 0), REGISTERS_16(c, 4), REGISTERS_16(c, 8),
                               REGISTERS_16(c, 12)
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)),
                gpu_on_host::product(c, a, 0, b, true, true));
}

__device__ __forceinline__ void
product_columns(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b)
{
    INSTRUCTION(asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32
                             "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                             : REGISTERS_16(c, 0), REGISTERS_16(c, 4)
                             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)),
                gpu_on_host::product(c, a, 0, b, true, true));
}

/* --- a block of attention: its threads, and how operands lie in its shared memory --- */

#define ROWS_EACH 64 /* of a multiplying warpgroup: the m of its products */
#define N_CONSUMERS 2
#define BLOCK_ROWS (N_CONSUMERS * ROWS_EACH)
#define BLOCK_THREADS ((1 + N_CONSUMERS) * WARPGROUP)

/* Registers of a thread: the fewest that setmaxnreg takes for the copying warpgroup, and what is
 * left for each of the two others, in steps of 8 [PTX ISA 9.0, setmaxnreg]. */
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
begin_columns(float (&c)[D / 8][4], const uint32_t (&a)[N][4], const Panels<D, N * FRAGMENT> &b)
{
    product_begin();
#pragma unroll
    for (int n = 0; n < N; n++)
        product_columns(c, a[n],
                        operand(b.panel[0] + n * FRAGMENT * ROW_BYTES, ATOM_BYTES,
                                Panels<D, N * FRAGMENT>::PANEL_BYTES));
    product_commit();
}
