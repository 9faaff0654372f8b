#include "executor/cuda/probe.h"

#include "executor/cuda/cuda.h"

static void
box(ExecBackend *backend, const uint16_t *tensor, int64_t n_rows, int row, int col, uint16_t *dump,
    int32_t *ended)
{
    QUEUE(backend,
          kernels_probe_box(tensor, n_rows, row, col, dump, ended, exec_cuda_stream(backend)));
}

static void
product_along_k(ExecBackend *backend, int n, const void *a, const void *b, float *c)
{
    QUEUE(backend, kernels_probe_along_k(n, a, b, c, exec_cuda_stream(backend)));
}

static void
product_along_n(ExecBackend *backend, int n, const void *a, const void *b, float *c)
{
    QUEUE(backend, kernels_probe_along_n(n, a, b, c, exec_cuda_stream(backend)));
}

static void
registers(ExecBackend *backend, int n_rounds, uint32_t *sums)
{
    QUEUE(backend, kernels_probe_registers(n_rounds, sums, exec_cuda_stream(backend)));
}

extern const ExecCudaProbes exec_cuda_probes;
const ExecCudaProbes exec_cuda_probes = {
    .box = box,
    .product_along_k = product_along_k,
    .product_along_n = product_along_n,
    .registers = registers,
};
