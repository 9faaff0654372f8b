/*
 * executor/cuda/backend_cuda.c - the slots of backend.h on an NVIDIA GPU: opening, closing,
 * waiting. Memory is in cuda_memory.c, computing in cuda_slots.c.
 *
 * Built into degas-cuda.so; see plugin.h and cuda.h.
 */
#include "executor/cuda/state.h"

#include <time.h>

#include "executor/device/clock.h"
#include "executor/device/plugin.h"

EXEC_PLUGIN_DEFINE_ABI

/* --- failures inside slots --- */

void
exec_cuda_keep_error(ExecCudaState *state, GError *error)
{
    if (state->error == NULL)
        state->error = error;
    else
        g_error_free(error);
}

void
exec_cuda_check(ExecCudaState *state, cudaError_t status, const char *call, const char *file,
                int line)
{
    GError *error = NULL;

    if (!exec_cuda_ok(status, call, file, line, &error))
        exec_cuda_keep_error(state, error);
}

/* --- waiting --- */

void
exec_cuda_stamp(ExecBackend *backend, int64_t *ns)
{
    ExecCudaState *state = exec_cuda_state(backend);
    GError *error = NULL;

    if (!exec_cuda_clock_stamp(state->clock, exec_cuda_stream(backend), ns, &error))
        exec_cuda_keep_error(state, error);
}

/* A long wait costs little of the core, a short one little time. */
#define SPIN_NS 50000
#define SLEEP_NS 20000

/* NULL: of the compute slots' queue. */
static cudaError_t
query(const ExecCudaState *state, cudaEvent_t event)
{
    return event != NULL ? cudaEventQuery(event) : cudaStreamQuery(state->share.stream);
}

/* With somebody who looks after something else in the meantime. */
static bool
wait_with(const ExecCudaState *state, cudaEvent_t event, GError **error)
{
    const ExecCudaWatch *watch = &state->watch;
    const struct timespec pause = {.tv_nsec = SLEEP_NS};
    const int64_t begin = exec_now_ns();
    cudaError_t status = query(state, event);
    bool ok = true;

    for (; ok && status == cudaErrorNotReady; status = query(state, event)) {
        ok = watch->look(watch->user_data, true, error);
        if (exec_now_ns() - begin > SPIN_NS)
            nanosleep(&pause, NULL);
    }
    watch->look(watch->user_data, false, NULL);
    if (ok)
        TRY_CUDA(status, error);
    return ok;
}

bool
exec_cuda_wait_event(const ExecCudaState *state, cudaEvent_t event, GError **error)
{
    if (state->watch.look != NULL)
        return wait_with(state, event, error);
    TRY_CUDA(cudaEventSynchronize(event), error);
    return true;
}

bool
exec_cuda_synchronize(ExecBackend *backend, GError **error)
{
    ExecCudaState *state = exec_cuda_state(backend);
    GError *interrupted = NULL, *unread = NULL;

    if (state->watch.look == NULL)
        QUEUE(backend, cudaStreamSynchronize(state->share.stream));
    else if (!wait_with(state, NULL, &interrupted)) {
        g_clear_error(&state->error); /* a consequence */
        state->error = interrupted;
    }
    if (interrupted == NULL && !exec_cuda_clock_read(state->clock, &unread))
        exec_cuda_keep_error(state, unread);
    if (state->error == NULL)
        return true;
    g_propagate_error(error, g_steal_pointer(&state->error));
    return false;
}

/* --- lifecycle --- */

char *
exec_cuda_describe(const ExecBackend *backend)
{
    const ExecCudaState *state = exec_cuda_state(backend);
    struct cudaDeviceProp properties;
    int driver = 0, runtime = 0;
    g_autoptr(GString) text = g_string_new(NULL);

    if (cudaGetDeviceProperties(&properties, state->device) != cudaSuccess)
        return g_strdup("cuda");
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    g_string_append_printf(text, "%s, CUDA %d.%d, driver for CUDA %d.%d", properties.name,
                           runtime / 1000, runtime % 1000 / 10, driver / 1000, driver % 1000 / 10);
    if (state->share.n_multiprocessors < state->share.n_on_device)
        g_string_append_printf(text, ", %d of %d multiprocessors per rank",
                               state->share.n_multiprocessors, state->share.n_on_device);
    else if (state->share.note != NULL)
        g_string_append_printf(text, ", all multiprocessors for every rank (%s)",
                               state->share.note);
    if (state->has_wgmma)
        g_string_append(text, ", attention by wgmma");
    return g_string_free(g_steal_pointer(&text), FALSE);
}

const char *
exec_cuda_attention_kernel(const ExecBackend *backend)
{
    return exec_cuda_state(backend)->has_wgmma ? "wgmma" : "mma";
}

int64_t
exec_cuda_workspace_bytes(const ExecBackend *backend)
{
    return EXEC_CUDA_PRODUCT_BYTES + exec_cuda_state(backend)->n_scratch * (int64_t)sizeof(float);
}

void
exec_cuda_close(ExecBackend *backend)
{
    ExecCudaState *state = backend->state;

    exec_cuda_graphs_clear(&state->graphs);
    exec_cuda_aside_close(&state->aside);
    if (state->share.stream != NULL)
        exec_cuda_memory_close(state);
    exec_cuda_clock_free(state->clock);
    exec_cuda_products_free(state->products);
    exec_cuda_share_close(&state->share);
    g_clear_error(&state->error);
    g_free(state);
    g_free(backend);
}

/* --- opening --- */

#define ATTENTION_VARIABLE "DEGAS_CUDA_ATTENTION"

/* "mma", also where it is not set, or "wgmma"; docs/gpu.md says why that order. */
static bool
choose_attention(ExecCudaState *state, GError **error)
{
    const char *text = g_getenv(ATTENTION_VARIABLE);
    int major = 0, minor = 0;

    if (text == NULL || g_str_equal(text, "mma"))
        return true;
    if (!g_str_equal(text, "wgmma")) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_FAILED,
                    ATTENTION_VARIABLE ": expected mma or wgmma, got \"%s\"", text);
        return false;
    }
    TRY_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, state->device),
             error);
    TRY_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, state->device),
             error);
    state->has_wgmma = major == 9 && minor == 0;
    if (!state->has_wgmma)
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MISSING,
                    ATTENTION_VARIABLE
                    "=wgmma: device cuda:%d has compute capability %d.%d; wgmma is of 9.0 only",
                    state->device, major, minor);
    return state->has_wgmma;
}

static bool
open_state(ExecBackend *backend, int index, int n, GError **error)
{
    ExecCudaState *state = exec_cuda_state(backend);
    const cudaError_t status = cudaSetDevice(state->device);

    if (status == cudaErrorDevicesUnavailable) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MISSING,
                    "device cuda:%d is in use by another process (exclusive mode)", state->device);
        return false;
    }
    TRY_CUDA(status, error);
    if (!choose_attention(state, error) ||
        !exec_cuda_share_open(state->device, index, n, &state->share, error) ||
        !exec_cuda_aside_open(&state->aside, error) || !exec_cuda_memory_open(backend, error))
        return false;
    state->clock = exec_cuda_clock_new(state->share.stream, error);
    if (state->clock == NULL)
        return false;
    const bool whole = state->share.n_multiprocessors == state->share.n_on_device;
    state->products = exec_cuda_products_new(backend->storage, state->product_workspace,
                                             whole ? 0 : state->share.n_multiprocessors,
                                             state->share.stream, error);
    return state->products != NULL;
}

static int32_t
count_devices(GError **error)
{
    int n = 0;

    return exec_cuda_check_device(0, error) && cudaGetDeviceCount(&n) == cudaSuccess ? n : -1;
}

static ExecBackend *
open_cuda(const ExecBackendOptions *options, GError **error)
{
    if (!exec_cuda_check_device(options->device, error))
        return NULL;
    ExecBackend *backend = g_new0(ExecBackend, 1);
    ExecCudaState *state = g_new0(ExecCudaState, 1);

    backend->ops = options->storage == DTYPE_BF16 ? &exec_cuda_bf16_ops : &exec_cuda_fp32_ops;
    backend->storage = options->storage;
    backend->state = state;
    state->device = options->device;
    state->predicted_bytes = options->predicted_bytes;
    if (!open_state(backend, options->share, MAX(options->n_shares, 1), error)) {
        exec_cuda_close(backend);
        return NULL;
    }
    return backend;
}

extern const ExecDevicePlugin exec_device_plugin;
const ExecDevicePlugin exec_device_plugin = {
    .open = open_cuda,
    .n_devices = count_devices,
    .info = exec_cuda_device_info,
};
