/*
 * executor/device/recurrence_host.h - the slots of recurrence.h for backends in host memory, and how
 * their loops read and write rows of either storage.
 *
 * Private to executor/device/.
 */
#pragma once

#include "executor/device/backend.h"

#include <string.h>

/* Defined in convolution.c, gates.c (gates and results) and scan.c. */
void exec_host_convolve_forward(ExecBackend *backend, const ExecConvolution *convolution);
void exec_host_convolve_backward(ExecBackend *backend, const ExecConvolution *convolution,
                                 const ExecConvolutionGradients *gradients);
void exec_host_gates_forward(ExecBackend *backend, const ExecGates *gates);
void exec_host_gates_backward(ExecBackend *backend, const ExecGates *gates,
                              const ExecGatesGradients *gradients);
void exec_host_scan_forward(ExecBackend *backend, const ExecScan *scan);
void exec_host_scan_backward(ExecBackend *backend, const ExecScan *scan,
                             const ExecScanGradients *gradients);
void exec_host_result_squares(ExecBackend *backend, const ExecResult *gate);
void exec_host_result_forward(ExecBackend *backend, const ExecResult *gate, void *y);
void exec_host_result_dots(ExecBackend *backend, const ExecResult *gate, const void *dy,
                           float *dots);
void exec_host_result_backward(ExecBackend *backend, const ExecResult *gate,
                               const ExecResultGradients *gradients);

/* In a table of slots: the functions above, which serve every storage. */
#define EXEC_HOST_RECURRENCE_SLOTS                                                                 \
    .convolve_forward = exec_host_convolve_forward,                                                \
    .convolve_backward = exec_host_convolve_backward, .gates_forward = exec_host_gates_forward,    \
    .gates_backward = exec_host_gates_backward, .scan_forward = exec_host_scan_forward,            \
    .scan_backward = exec_host_scan_backward, .result_squares = exec_host_result_squares,          \
    .result_forward = exec_host_result_forward, .result_dots = exec_host_result_dots,              \
    .result_backward = exec_host_result_backward

/* y = 1 / (1 + exp(-x)); defined in convolution.c.  @y may be @x. */
void exec_row_sigmoid(int64_t n, const float *x, float *y);

/* The scan with a_log; defined in scan_channels.c.  @gradients  NULL: forward. */
void exec_host_scan_channels(ExecBackend *backend, const ExecScan *scan,
                             const ExecScanGradients *gradients);

/* x[0 ... n) = storage[at ... at + n) */
static inline void
exec_row_load(Dtype storage, const void *from, int64_t at, int64_t n, float *x)
{
    if (storage == DTYPE_FP32)
        memcpy(x, (const float *)from + at, (size_t)n * sizeof *x);
    else
        for (int64_t i = 0; i < n; i++)
            x[i] = bf16_to_float(((const uint16_t *)from)[at + i]);
}

static inline void
exec_row_store(Dtype storage, const float *x, int64_t n, void *to, int64_t at)
{
    if (storage == DTYPE_FP32)
        memcpy((float *)to + at, x, (size_t)n * sizeof *x);
    else
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)to)[at + i] = bf16_from_float(x[i]);
}
