#include "executor/cuda/cuda.h"

#include <cuda.h>

/* Green contexts are driver functions; linking libcuda would make a program that does not start
 * where there is no driver, so they are asked for by name. */
typedef struct {
    CUresult (*device_resource)(CUdevice, CUdevResource *, CUdevResourceType);
    CUresult (*split)(CUdevResource *, unsigned *, const CUdevResource *, CUdevResource *, unsigned,
                      unsigned);
    CUresult (*describe)(CUdevResourceDesc *, CUdevResource *, unsigned);
    CUresult (*context)(CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned);
    CUresult (*stream)(CUstream *, CUgreenCtx, unsigned, int);
    CUresult (*as_context)(CUcontext *, CUgreenCtx);
    CUresult (*set_current)(CUcontext);
} Driver;

/* Green contexts came with CUDA 12.4, their streams with 12.5. */
#define GREEN_CONTEXT_VERSION 12050

/* Devices of one machine whose shares are remembered; others are not cut. */
#define MAX_DEVICES 64
/* A share of Hopper has at least 8 of its 132 multiprocessors, so there are 16 at most. */
#define MAX_SHARES 16

/* One way to cut a device, made once and kept until the process ends. */
typedef struct {
    bool is_made;
    CUgreenCtx contexts[MAX_SHARES];
    int n_multiprocessors[MAX_SHARES];
    char *note; /* why there are none */
} Shares;

static bool
driver_function(const char *name, void *to)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;

    return cudaGetDriverEntryPointByVersion(name, to, GREEN_CONTEXT_VERSION, cudaEnableDefault,
                                            &found) == cudaSuccess &&
           found == cudaDriverEntryPointSuccess;
}

static bool
open_driver(Driver *driver)
{
    return driver_function("cuDeviceGetDevResource", &driver->device_resource) &&
           driver_function("cuDevSmResourceSplitByCount", &driver->split) &&
           driver_function("cuDevResourceGenerateDesc", &driver->describe) &&
           driver_function("cuGreenCtxCreate", &driver->context) &&
           driver_function("cuGreenCtxStreamCreate", &driver->stream) &&
           driver_function("cuCtxFromGreenCtx", &driver->as_context) &&
           driver_function("cuCtxSetCurrent", &driver->set_current);
}

/* Cuts the device into @n; false leaves the reason in shares->note. */
static bool
make_shares(const Driver *driver, int device, int n, Shares *shares)
{
    CUdevResource all = {0}, rest = {0}, parts[MAX_SHARES];
    unsigned n_parts = (unsigned)n;

    if (driver->device_resource(device, &all, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS) {
        shares->note = g_strdup("the driver does not say which multiprocessors there are");
        return false;
    }
    /* The driver rounds up to what the device can cut (8 on Hopper), which may leave fewer parts;
     * so ask for what is surely there. */
    const unsigned per_share = all.sm.smCount / (unsigned)n / 8 * 8;
    if (per_share == 0 ||
        driver->split(parts, &n_parts, &all, &rest, 0, per_share) != CUDA_SUCCESS ||
        n_parts < (unsigned)n) {
        shares->note =
            g_strdup_printf("%u multiprocessors cannot be cut into %d shares", all.sm.smCount, n);
        return false;
    }
    for (int i = 0; i < n; i++) {
        CUdevResourceDesc description;
        if (driver->describe(&description, &parts[i], 1) != CUDA_SUCCESS ||
            driver->context(&shares->contexts[i], description, device,
                            CU_GREEN_CTX_DEFAULT_STREAM) != CUDA_SUCCESS) {
            shares->note = g_strdup("the driver refuses a green context");
            return false;
        }
        shares->n_multiprocessors[i] = (int)parts[i].sm.smCount;
    }
    return true;
}

/* Whether @stream takes an event of the thread's present context, and the clock can read it. */
static bool
takes_events(cudaStream_t stream)
{
    cudaEvent_t event = NULL;
    float ms;
    const bool takes = cudaEventCreate(&event) == cudaSuccess &&
                       cudaEventRecord(event, stream) == cudaSuccess &&
                       cudaStreamSynchronize(stream) == cudaSuccess &&
                       cudaEventElapsedTime(&ms, event, event) == cudaSuccess;

    if (event != NULL)
        cudaEventDestroy(event);
    cudaGetLastError(); /* a refusal is an answer, not a broken device */
    return takes;
}

/*
 * Events are made in the context that is the thread's own.  That is the device's primary one, as
 * the runtime wants it; where the driver refuses such events on the stream of a green context, the
 * green context becomes the thread's own, and events and streams that the rank makes from then on
 * belong to it.  False: its own are refused, too.
 */
static bool
agree_on_events(const Driver *driver, CUgreenCtx green, ExecCudaShare *share)
{
    CUcontext context;

    if (takes_events(share->stream))
        return true;
    share->has_own_context = driver->as_context(&context, green) == CUDA_SUCCESS &&
                             driver->set_current(context) == CUDA_SUCCESS;
    return share->has_own_context && takes_events(share->stream);
}

/* A stream on share @index; false with the reason in @note. */
static bool
open_green_stream(int device, int index, int n, ExecCudaShare *share)
{
    static GMutex mutex;
    static Shares all[MAX_DEVICES][MAX_SHARES + 1];
    G_GNUC_UNUSED g_autoptr(GMutexLocker) locker = g_mutex_locker_new(&mutex);
    Driver driver = {0};

    share->device = device;
    if (device >= MAX_DEVICES || n > MAX_SHARES) {
        share->note = g_strdup_printf("at most %d shares are made", MAX_SHARES);
        return false;
    }
    Shares *shares = &all[device][n];
    if (!open_driver(&driver)) {
        share->note = g_strdup("this driver has no green contexts (they came with CUDA 12.4)");
        return false;
    }
    if (!shares->is_made) {
        shares->is_made = true;
        make_shares(&driver, device, n, shares);
    }
    if (shares->note != NULL) {
        share->note = g_strdup(shares->note);
        return false;
    }
    if (driver.stream((CUstream *)&share->stream, shares->contexts[index], CU_STREAM_NON_BLOCKING,
                      0) != CUDA_SUCCESS) {
        share->note = g_strdup("the driver refuses a stream of a green context");
        return false;
    }
    if (!agree_on_events(&driver, shares->contexts[index], share)) {
        exec_cuda_share_close(share);
        share->note = g_strdup("the driver refuses events on a stream of a green context");
        return false;
    }
    share->n_multiprocessors = shares->n_multiprocessors[index];
    return true;
}

bool
exec_cuda_share_open(int device, int index, int n, ExecCudaShare *share, GError **error)
{
    g_return_val_if_fail(index >= 0 && index < n, false);
    *share = (ExecCudaShare){0};
    const bool is_green = n > 1 && open_green_stream(device, index, n, share);
    TRY_CUDA(cudaDeviceGetAttribute(&share->n_on_device, cudaDevAttrMultiProcessorCount, device),
             error);
    if (is_green)
        return true;
    share->has_company = n > 1;
    share->n_multiprocessors = share->n_on_device;
    TRY_CUDA(cudaStreamCreateWithFlags(&share->stream, cudaStreamNonBlocking), error);
    return true;
}

void
exec_cuda_share_close(ExecCudaShare *share)
{
    if (share->stream != NULL)
        cudaStreamDestroy(share->stream);
    if (share->has_own_context)
        cudaSetDevice(share->device); /* the primary context is the thread's own again */
    g_free(share->note);
    *share = (ExecCudaShare){0};
}
