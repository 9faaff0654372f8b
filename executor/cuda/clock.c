#include "executor/device/clock.h"
#include "executor/cuda/cuda.h"

typedef struct {
    cudaEvent_t event;
    int64_t *ns;
} Stamp;

struct ExecCudaClock {
    GArray *stamps;     /* (owned) of Stamp, not read yet */
    GPtrArray *spare;   /* (owned) of cudaEvent_t */
    cudaEvent_t origin; /* (owned) happened at origin_ns */
    int64_t origin_ns;
};

static bool
set_origin(ExecCudaClock *clock, cudaStream_t stream, GError **error)
{
    TRY_CUDA(cudaEventCreate(&clock->origin), error);
    TRY_CUDA(cudaEventRecord(clock->origin, stream), error);
    TRY_CUDA(cudaStreamSynchronize(stream), error);
    clock->origin_ns = exec_now_ns();
    return true;
}

ExecCudaClock *
exec_cuda_clock_new(cudaStream_t stream, GError **error)
{
    g_autoptr(ExecCudaClock) clock = g_new0(ExecCudaClock, 1);

    clock->stamps = g_array_new(false, false, sizeof(Stamp));
    clock->spare = g_ptr_array_new();
    return set_origin(clock, stream, error) ? g_steal_pointer(&clock) : NULL;
}

void
exec_cuda_clock_free(ExecCudaClock *clock)
{
    if (clock == NULL)
        return;
    for (guint i = 0; i < clock->stamps->len; i++)
        cudaEventDestroy(g_array_index(clock->stamps, Stamp, i).event);
    for (guint i = 0; i < clock->spare->len; i++)
        cudaEventDestroy(clock->spare->pdata[i]);
    if (clock->origin != NULL)
        cudaEventDestroy(clock->origin);
    g_array_unref(clock->stamps);
    g_ptr_array_unref(clock->spare);
    g_free(clock);
}

bool
exec_cuda_clock_stamp(ExecCudaClock *clock, cudaStream_t stream, int64_t *ns, GError **error)
{
    Stamp stamp = {.ns = ns};

    *ns = exec_now_ns(); /* what remains should the device fail */
    if (clock->spare->len > 0)
        stamp.event = g_ptr_array_steal_index_fast(clock->spare, clock->spare->len - 1);
    else
        TRY_CUDA(cudaEventCreate(&stamp.event), error);
    g_array_append_val(clock->stamps, stamp);
    TRY_CUDA(cudaEventRecord(stamp.event, stream), error);
    return true;
}

bool
exec_cuda_clock_read(ExecCudaClock *clock, GError **error)
{
    Stamp last = {0};
    guint n_left = 0;

    for (guint i = 0; i < clock->stamps->len; i++) {
        const Stamp stamp = g_array_index(clock->stamps, Stamp, i);
        const cudaError_t status = cudaEventQuery(stamp.event);
        float ms = 0;
        if (status == cudaErrorNotReady) {
            g_array_index(clock->stamps, Stamp, n_left++) = stamp;
            continue;
        }
        TRY_CUDA(status, error);
        TRY_CUDA(cudaEventElapsedTime(&ms, clock->origin, stamp.event), error);
        *stamp.ns = clock->origin_ns + (int64_t)((double)ms * 1e6);
        if (last.event != NULL)
            g_ptr_array_add(clock->spare, last.event);
        last = stamp;
    }
    g_array_set_size(clock->stamps, n_left);
    if (last.event != NULL) { /* the origin moves on to it */
        g_ptr_array_add(clock->spare, clock->origin);
        clock->origin = last.event;
        clock->origin_ns = *last.ns;
    }
    return true;
}
