#include "executor/device/clock.h"
#include "executor/cuda/cuda.h"

typedef struct {
    cudaEvent_t event;
    int64_t *ns;   /* until it is read: when the host queued it */
    int64_t at_ns; /* by a clock that runs as the device's */
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

    *ns = exec_now_ns(); /* also what remains should the device fail */
    if (clock->spare->len > 0)
        stamp.event = g_ptr_array_steal_index_fast(clock->spare, clock->spare->len - 1);
    else
        TRY_CUDA(cudaEventCreate(&stamp.event), error);
    g_array_append_val(clock->stamps, stamp);
    TRY_CUDA(cudaEventRecord(stamp.event, stream), error);
    return true;
}

/* How far the device's clock has to be moved so that no event came before the host queued it; those
 * that have happened have not happened after now. */
static int64_t
drift_ns(const GArray *done, int64_t now_ns)
{
    int64_t least = INT64_MIN, most = INT64_MAX;

    for (guint i = 0; i < done->len; i++) {
        const Stamp *stamp = &g_array_index(done, Stamp, i);
        least = MAX(least, *stamp->ns - stamp->at_ns);
        most = MIN(most, now_ns - stamp->at_ns);
    }
    return CLAMP(0, least, MAX(least, most));
}

bool
exec_cuda_clock_read(ExecCudaClock *clock, GError **error)
{
    g_autoptr(GArray) done = g_array_new(false, false, sizeof(Stamp));
    guint n_left = 0;

    for (guint i = 0; i < clock->stamps->len; i++) {
        Stamp stamp = g_array_index(clock->stamps, Stamp, i);
        const cudaError_t status = cudaEventQuery(stamp.event);
        float ms = 0;
        if (status == cudaErrorNotReady) {
            g_array_index(clock->stamps, Stamp, n_left++) = stamp;
            continue;
        }
        TRY_CUDA(status, error);
        TRY_CUDA(cudaEventElapsedTime(&ms, clock->origin, stamp.event), error);
        stamp.at_ns = clock->origin_ns + (int64_t)((double)ms * 1e6);
        g_array_append_val(done, stamp);
    }
    g_array_set_size(clock->stamps, n_left);
    if (done->len == 0)
        return true;
    const int64_t drift = drift_ns(done, exec_now_ns());
    for (guint i = 0; i < done->len; i++) {
        const Stamp *stamp = &g_array_index(done, Stamp, i);
        *stamp->ns = stamp->at_ns + drift;
        if (i + 1 < done->len)
            g_ptr_array_add(clock->spare, stamp->event);
    }
    /* The origin moves on to the last. */
    const Stamp *last = &g_array_index(done, Stamp, done->len - 1);
    g_ptr_array_add(clock->spare, clock->origin);
    clock->origin = last->event;
    clock->origin_ns = *last->ns;
    return true;
}
