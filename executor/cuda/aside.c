/* A second queue of a rank: a stream of its own, forked from and joined to the compute slots'. */
#include "executor/cuda/state.h"

bool
exec_cuda_aside_open(ExecCudaAside *aside, GError **error)
{
    int least = 0, greatest = 0;

    /* Before the kernels of the layers, when both could begin: they are short, and waited for. */
    TRY_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest), error);
    TRY_CUDA(cudaStreamCreateWithPriority(&aside->stream, cudaStreamNonBlocking, greatest), error);
    TRY_CUDA(cudaEventCreateWithFlags(&aside->begin, cudaEventDisableTiming), error);
    return true;
}

void
exec_cuda_aside_close(ExecCudaAside *aside)
{
    if (aside->stream != NULL) {
        cudaStreamSynchronize(aside->stream);
        cudaStreamDestroy(aside->stream);
    }
    if (aside->begin != NULL)
        cudaEventDestroy(aside->begin);
    *aside = (ExecCudaAside){0};
}

void
exec_cuda_begin_aside(ExecBackend *backend)
{
    ExecCudaAside *aside = &exec_cuda_state(backend)->aside;

    g_assert(!aside->is_in);
    QUEUE(backend, cudaEventRecord(aside->begin, exec_cuda_stream(backend)));
    QUEUE(backend, cudaStreamWaitEvent(aside->stream, aside->begin, 0));
    aside->is_in = true;
}

/* A mark is an event. */
void
exec_cuda_end_aside(ExecBackend *backend, ExecMark **mark)
{
    ExecCudaAside *aside = &exec_cuda_state(backend)->aside;
    cudaEvent_t event = (cudaEvent_t)*mark;

    g_assert(aside->is_in);
    aside->is_in = false;
    if (event == NULL)
        QUEUE(backend, cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    QUEUE(backend, cudaEventRecord(event, aside->stream));
    *mark = (ExecMark *)event;
}

void
exec_cuda_join(ExecBackend *backend, ExecMark *mark)
{
    QUEUE(backend, cudaStreamWaitEvent(exec_cuda_stream(backend), (cudaEvent_t)mark, 0));
}

bool
exec_cuda_await(ExecBackend *backend, ExecMark *mark, GError **error)
{
    return exec_cuda_wait_event(exec_cuda_state(backend), (cudaEvent_t)mark, error);
}

void
exec_cuda_forget(ExecBackend *backend, ExecMark *mark)
{
    if (mark != NULL)
        QUEUE(backend, cudaEventDestroy((cudaEvent_t)mark));
}

void *
exec_cuda_alloc_host(ExecBackend *backend, size_t n_bytes)
{
    void *memory = NULL;

    if (cudaHostAlloc(&memory, MAX(n_bytes, 1), cudaHostAllocDefault) == cudaSuccess)
        return memory;
    cudaGetLastError(); /* no such memory is an answer, not a broken device */
    return NULL;
}

void
exec_cuda_release_host(ExecBackend *backend, void *memory)
{
    QUEUE(backend, cudaFreeHost(memory));
}
