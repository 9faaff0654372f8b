/* Memory of the CUDA backend: a pool per rank, copies, messages on the device, scratch. */
#include "executor/cuda/cuda.h"

/* --- memory --- */

static void
describe_memory_failure(const ExecCudaState *state, size_t n_bytes, const char *what,
                        GError **error)
{
    size_t n_free = 0, n_total = 0;
    g_autofree char *predicted =
        state->predicted_bytes == 0
            ? g_strdup("")
            : g_strdup_printf("; the predicted peak of this rank is %" G_GINT64_FORMAT " bytes",
                              state->predicted_bytes);

    cudaGetLastError(); /* out of memory is an answer, not a broken device */
    cudaMemGetInfo(&n_free, &n_total);
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_MEMORY,
                "device cuda:%d: no memory for %zu bytes of %s (%zu of %zu bytes are free%s)",
                state->device, n_bytes, what, n_free, n_total, predicted);
}

void *
exec_cuda_alloc_on(ExecBackend *backend, cudaStream_t stream, size_t n_bytes, const char *what,
                   GError **error)
{
    ExecCudaState *state = exec_cuda_state(backend);
    void *memory = NULL;
    const cudaError_t status =
        cudaMallocFromPoolAsync(&memory, MAX(n_bytes, 1), state->pool, stream);

    if (status == cudaErrorMemoryAllocation)
        describe_memory_failure(state, n_bytes, what, error);
    else if (status != cudaSuccess)
        exec_cuda_ok(status, "cudaMallocFromPoolAsync", __FILE__, __LINE__, error);
    return status == cudaSuccess ? memory : NULL;
}

void *
exec_cuda_alloc(ExecBackend *backend, size_t n_bytes, const char *what, GError **error)
{
    const ExecCudaGraphs *graphs = &exec_cuda_state(backend)->graphs;

    if (!graphs->captures)
        return exec_cuda_alloc_on(backend, exec_cuda_stream(backend), n_bytes, what, error);
    /* Not as a part of the graph, which would own it. */
    void *memory = exec_cuda_alloc_on(backend, graphs->side, n_bytes, what, error);
    QUEUE(backend, cudaStreamSynchronize(graphs->side));
    return memory;
}

void
exec_cuda_release(ExecBackend *backend, void *memory)
{
    const ExecCudaGraphs *graphs = &exec_cuda_state(backend)->graphs;

    if (graphs->captures)
        g_ptr_array_add(graphs->to_release, memory);
    else if (memory != NULL)
        QUEUE(backend, cudaFreeAsync(memory, exec_cuda_stream(backend)));
}

void
exec_cuda_upload(ExecBackend *backend, size_t n_bytes, const void *host, void *device)
{
    /* From pageable memory the call returns when the bytes have been copied aside. */
    QUEUE(backend, cudaMemcpyAsync(device, host, n_bytes, cudaMemcpyHostToDevice,
                                   exec_cuda_stream(backend)));
}

void
exec_cuda_download(ExecBackend *backend, size_t n_bytes, const void *device, void *host)
{
    QUEUE(backend, cudaMemcpyAsync(host, device, n_bytes, cudaMemcpyDeviceToHost,
                                   exec_cuda_stream(backend)));
}

void
exec_cuda_copy(ExecBackend *backend, size_t n_bytes, const void *x, void *y)
{
    QUEUE(backend,
          cudaMemcpyAsync(y, x, n_bytes, cudaMemcpyDeviceToDevice, exec_cuda_stream(backend)));
}

/* --- messages on the device --- */

bool
exec_cuda_post(ExecBackend *backend, const void *data, size_t n_bytes, ExecParcel *parcel,
               GError **error)
{
    cudaEvent_t ready = NULL;

    parcel->memory = exec_cuda_alloc(backend, n_bytes, "a message", error);
    if (parcel->memory == NULL)
        return false;
    exec_cuda_copy(backend, n_bytes, data, parcel->memory);
    TRY_CUDA(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming), error);
    QUEUE(backend, cudaEventRecord(ready, exec_cuda_stream(backend)));
    parcel->ready = ready;
    return true;
}

void
exec_cuda_fetch(ExecBackend *backend, const ExecParcel *parcel, size_t n_bytes, Dtype add, void *to)
{
    cudaStream_t stream = exec_cuda_stream(backend);

    QUEUE(backend, cudaStreamWaitEvent(stream, parcel->ready, 0));
    if (add == DTYPE_N)
        exec_cuda_copy(backend, n_bytes, parcel->memory, to);
    else if (n_bytes > 0)
        QUEUE(backend,
              kernels_add(add, (int64_t)n_bytes / dtype_bytes(add), parcel->memory, to, stream));
    exec_cuda_release(backend, parcel->memory);
    QUEUE(backend, cudaEventDestroy(parcel->ready));
}

/* Scratch for @n floats; earlier work may still use the old one, which the stream's order covers.
 */
float *
exec_cuda_scratch(ExecBackend *backend, int64_t n)
{
    ExecCudaState *state = exec_cuda_state(backend);
    GError *error = NULL;

    if (n <= state->n_scratch)
        return state->scratch;
    exec_cuda_release(backend, state->scratch);
    state->n_scratch = n + n / 4;
    state->scratch = exec_cuda_alloc(backend, (size_t)state->n_scratch * sizeof(float),
                                     "scratch of reductions", &error);
    if (state->scratch == NULL) {
        state->n_scratch = 0;
        exec_cuda_keep_error(state, error);
    }
    return state->scratch;
}

/* --- lifecycle --- */

/* Freed memory stays in the pool: giving back and taking again never reaches the driver. */
static bool
open_pool(ExecCudaState *state, GError **error)
{
    uint64_t keep_everything = UINT64_MAX;
    const struct cudaMemPoolProps properties = {
        .allocType = cudaMemAllocationTypePinned,
        .location = {.type = cudaMemLocationTypeDevice, .id = state->device},
    };

    TRY_CUDA(cudaMemPoolCreate(&state->pool, &properties), error);
    TRY_CUDA(
        cudaMemPoolSetAttribute(state->pool, cudaMemPoolAttrReleaseThreshold, &keep_everything),
        error);
    return true;
}

/* Takes the predicted peak once and gives it back to the pool, which keeps it: from then on no op
 * asks the driver for memory. */
static bool
reserve(ExecBackend *backend, GError **error)
{
    const int64_t n_bytes = exec_cuda_state(backend)->predicted_bytes;

    if (n_bytes <= 0)
        return true;
    void *arena = exec_cuda_alloc(backend, (size_t)n_bytes, "arena of the predicted peak", error);
    exec_cuda_release(backend, arena);
    return arena != NULL;
}

bool
exec_cuda_memory_open(ExecBackend *backend, GError **error)
{
    ExecCudaState *state = exec_cuda_state(backend);

    if (!open_pool(state, error) || !reserve(backend, error))
        return false;
    state->product_workspace =
        exec_cuda_alloc(backend, EXEC_CUDA_PRODUCT_BYTES, "workspace of products", error);
    return state->product_workspace != NULL;
}

void
exec_cuda_memory_close(ExecCudaState *state)
{
    if (state->scratch != NULL)
        cudaFreeAsync(state->scratch, state->share.stream);
    if (state->product_workspace != NULL)
        cudaFreeAsync(state->product_workspace, state->share.stream);
    cudaStreamSynchronize(state->share.stream);
    if (state->pool != NULL)
        cudaMemPoolDestroy(state->pool);
}
