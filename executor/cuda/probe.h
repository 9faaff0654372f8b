/*
 * executor/cuda/probe.h - what attention by wgmma assumes of a device, tried one by one.
 *
 * docs/gpu.md lists the assumptions.  Each probe is one small kernel that uses the functions which
 * the attention kernels use (kernels_hopper.cuh), and gives back what the device made of its input:
 * tests/executor/test_cuda_probe.c compares that with what is assumed.
 *
 * Included by that test, which looks the table up in the plugin.
 */
#pragma once

#include "executor/device/backend.h"

/* Of the box that is copied, and of the tensor that it is copied from, in elements of 16 bits. */
#define EXEC_PROBE_BOX_ROWS 64
#define EXEC_PROBE_BOX_COLS 64
#define EXEC_PROBE_TENSOR_COLS 128
#define EXEC_PROBE_TENSOR_SEQUENCES 2

/* Rows of C; rows of A in a product along k, and of B in one along n. */
#define EXEC_PROBE_ROWS 64

#define EXEC_PROBE_THREADS 384

/* Every function queues one kernel, of one block, in the order of the backend's slots; pointers are
 * device memory. */
typedef struct {
    /* The copy engine copies a box of a tensor [@n_rows, sequences, cols] to shared memory, from
     * row @row of sequence 1 on and from column @col.  @dump [BOX_ROWS * BOX_COLS] is what is there
     * when the box's barrier has ended, in the order of addresses; what nobody has written is
     * 0xeeee.  *ended becomes 1, or 0 when the barrier never ended. */
    void (*box)(ExecBackend *backend, const uint16_t *tensor, int64_t n_rows, int row, int col,
                uint16_t *dump, int32_t *ended);
    /* C [64, n] = A B.  Both operands in shared memory, their rows along m and n (columns along k,
     * of which there are 128): in panels of 64 columns, swizzled.  @n is 64 or 128. */
    void (*product_along_k)(ExecBackend *backend, int n, const void *a, const void *b, float *c);
    /* C [64, n] = A B.  A [64, 64] is row after row and comes by registers; B's rows lie along k,
     * of which there are 64 (columns along n): in panels of 64 columns, swizzled. */
    void (*product_along_n)(ExecBackend *backend, int n, const void *a, const void *b, float *c);
    /* A warpgroup gives registers away, two take them and use 192 of them for @n_rounds of
     * x[i] = 1664525 x[i] + i + round, from x[i] = thread + i on.  @sums [EXEC_PROBE_THREADS]: of
     * their x[i] (i + 1), modulo 2^32; the first warpgroup's are its thread numbers. */
    void (*registers)(ExecBackend *backend, int n_rounds, uint32_t *sums);
} ExecCudaProbes;

/* In each register probe's thread. */
#define EXEC_PROBE_REGISTERS 192

/* The plugin's table of this type. */
#define EXEC_CUDA_PROBES "exec_cuda_probes"
