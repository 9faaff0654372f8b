/*
 * tests/executor/hopper_on_host.hh - the asynchronous instructions of executor/cuda/kernels_hopper.cuh
 * on the CPU: made to go wrong wherever a GPU may.
 *
 * A copy poisons its destination (NaN) at once.  Every other one lands only when no thread of the
 * block can go on, in no particular order; the rest soon.  A product poisons its accumulators,
 * and reads its operands, shared memory and registers, as late as it may: in the wait for its
 * group.  What no memory of a GPU would say is an error with a message: a copy into what a product
 * under way reads or another copy writes, a product from what a copy still writes, products without
 * the fence before them, too many arrivals, and anything that is still under way when the block
 * ends.
 *
 * Layouts by the PTX ISA 9.0 manual, 9.7.15.5.1: fragments of m64nNk16 (each warp's 16 rows as of
 * mma.m16n8k16), descriptors, and the 128-byte swizzle: bits 4 to 6 of an address in shared memory
 * are exchanged by themselves xor bits 7 to 9, both for copies and for products.
 *
 * Included by gpu_on_host.hh.
 */
#ifndef TESTS_EXECUTOR_HOPPER_ON_HOST_HH
#define TESTS_EXECUTOR_HOPPER_ON_HOST_HH

#include <stdint.h>

namespace gpu_on_host
{

/* --- by the scheduler --- */

void hopper_begin_block(void);
/* Reports what is still under way. */
void hopper_end_block(void);
/* After every thread had its turn; @stuck: none of them could do anything.  Whether something has
 * happened. */
bool hopper_land(bool stuck);

/* --- by kernels --- */

uint32_t shared_address(const void *shared);

void mbarrier_init(uint64_t *barrier, uint32_t n_arrivals);
void mbarrier_arrive(uint64_t *barrier, int expected_bytes);
void mbarrier_wait(uint64_t *barrier, uint32_t parity);
void copy_box(void *shared, const void *map, int x, int y, int z, uint64_t *barrier);

void named_barrier(int id, int n_threads, bool waits);

void product_begin(void);
void product_commit(void);
void product_wait(int n_left);
/* @n columns, whose accumulators of this thread are at @c; the left operand is at @a_registers, or,
 * where that is NULL, what @a describes.  @rows_along_k is of B. */
void begin_product(float *c, int n, const uint32_t *a_registers, uint64_t a, uint64_t b,
                   bool rows_along_k, bool add);

template <int N>
inline void
product(float (&c)[N][4], const uint32_t *a_registers, uint64_t a, uint64_t b, bool rows_along_k,
        bool add)
{
    begin_product(c[0], 8 * N, a_registers, a, b, rows_along_k, add);
}

} // namespace gpu_on_host

#endif /* TESTS_EXECUTOR_HOPPER_ON_HOST_HH */
