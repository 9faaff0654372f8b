/*
 * executor/backend_cuda.c - the slots of backend.h on an NVIDIA GPU: memory, products
 * (cuda_product.c), the rest by our kernels.
 *
 * Built into degas-cuda.so; see plugin.h and cuda.h.
 */
#include "executor/cuda.h"

#include <string.h>

#include "executor/plugin.h"

EXEC_PLUGIN_DEFINE_ABI

typedef struct {
    int device;
    ExecCudaShare share;
    cudaMemPool_t pool;
    ExecCudaProducts *products; /* (owned) */
    void *product_workspace;    /* (owned) */
    float *scratch;             /* (owned) of reductions and attention */
    int64_t n_scratch;
    int64_t predicted_bytes; /* 0: unknown */
    GError *error;           /* (owned, nullable) the first failure since synchronize() */
    ExecCudaClock *clock;    /* (owned) */
} CudaState;

static inline CudaState *
state_of(const ExecBackend *backend)
{
    return backend->state;
}

/* --- failures inside slots --- */

static void
keep_error(CudaState *state, GError *error)
{
    if (state->error == NULL)
        state->error = error;
    else
        g_error_free(error);
}

static void
check(CudaState *state, cudaError_t status, const char *what)
{
    GError *error = NULL;

    if (!exec_cuda_ok(status, what, __FILE__, __LINE__, &error))
        keep_error(state, error);
}

/* In a slot: queues and keeps what went wrong. */
#define QUEUE(backend, call) check(state_of(backend), (call), #call)

static inline cudaStream_t
stream_of(const ExecBackend *backend)
{
    return state_of(backend)->share.stream;
}

/* --- memory --- */

static void
describe_memory_failure(const CudaState *state, size_t n_bytes, const char *what, GError **error)
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

static void *
cuda_alloc(ExecBackend *backend, size_t n_bytes, const char *what, GError **error)
{
    CudaState *state = state_of(backend);
    void *memory = NULL;
    const cudaError_t status =
        cudaMallocFromPoolAsync(&memory, MAX(n_bytes, 1), state->pool, state->share.stream);

    if (status == cudaErrorMemoryAllocation)
        describe_memory_failure(state, n_bytes, what, error);
    else if (status != cudaSuccess)
        exec_cuda_ok(status, "cudaMallocFromPoolAsync", __FILE__, __LINE__, error);
    return status == cudaSuccess ? memory : NULL;
}

static void
cuda_release(ExecBackend *backend, void *memory)
{
    if (memory != NULL)
        QUEUE(backend, cudaFreeAsync(memory, stream_of(backend)));
}

static void
upload(ExecBackend *backend, size_t n_bytes, const void *host, void *device)
{
    /* From pageable memory the call returns when the bytes have been copied aside. */
    QUEUE(backend,
          cudaMemcpyAsync(device, host, n_bytes, cudaMemcpyHostToDevice, stream_of(backend)));
}

static void
download(ExecBackend *backend, size_t n_bytes, const void *device, void *host)
{
    QUEUE(backend,
          cudaMemcpyAsync(host, device, n_bytes, cudaMemcpyDeviceToHost, stream_of(backend)));
}

static void
copy(ExecBackend *backend, size_t n_bytes, const void *x, void *y)
{
    QUEUE(backend, cudaMemcpyAsync(y, x, n_bytes, cudaMemcpyDeviceToDevice, stream_of(backend)));
}

static void
stamp(ExecBackend *backend, int64_t *ns)
{
    CudaState *state = state_of(backend);
    GError *error = NULL;

    if (!exec_cuda_clock_stamp(state->clock, ns, &error))
        keep_error(state, error);
}

/* --- messages on the device --- */

static bool
post(ExecBackend *backend, const void *data, size_t n_bytes, ExecParcel *parcel, GError **error)
{
    cudaEvent_t ready = NULL;

    parcel->memory = cuda_alloc(backend, n_bytes, "a message", error);
    if (parcel->memory == NULL)
        return false;
    copy(backend, n_bytes, data, parcel->memory);
    TRY_CUDA(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming), error);
    QUEUE(backend, cudaEventRecord(ready, stream_of(backend)));
    parcel->ready = ready;
    return true;
}

static void
fetch(ExecBackend *backend, const ExecParcel *parcel, size_t n_bytes, void *to)
{
    QUEUE(backend, cudaStreamWaitEvent(stream_of(backend), parcel->ready, 0));
    copy(backend, n_bytes, parcel->memory, to);
    cuda_release(backend, parcel->memory);
    QUEUE(backend, cudaEventDestroy(parcel->ready));
}

static bool
synchronize(ExecBackend *backend, GError **error)
{
    CudaState *state = state_of(backend);

    check(state, cudaStreamSynchronize(state->share.stream), "cudaStreamSynchronize");
    GError *unread = NULL;
    if (!exec_cuda_clock_read(state->clock, &unread))
        keep_error(state, unread);
    if (state->error == NULL)
        return true;
    g_propagate_error(error, g_steal_pointer(&state->error));
    return false;
}

/* Scratch for @n floats; earlier work may still use the old one, which the stream's order covers.
 */
static float *
scratch(ExecBackend *backend, int64_t n)
{
    CudaState *state = state_of(backend);
    GError *error = NULL;

    if (n <= state->n_scratch)
        return state->scratch;
    cuda_release(backend, state->scratch);
    state->n_scratch = n + n / 4;
    state->scratch = cuda_alloc(backend, (size_t)state->n_scratch * sizeof(float),
                                "scratch of reductions", &error);
    if (state->scratch == NULL) {
        state->n_scratch = 0;
        keep_error(state, error);
    }
    return state->scratch;
}

/* --- moves --- */

static void
zero(ExecBackend *backend, size_t n_bytes, void *x)
{
    QUEUE(backend, cudaMemsetAsync(x, 0, n_bytes, stream_of(backend)));
}

static void
to_storage(ExecBackend *backend, int64_t n, const float *x, void *y)
{
    QUEUE(backend, kernels_convert(n, DTYPE_FP32, x, backend->storage, y, stream_of(backend)));
}

static void
from_storage(ExecBackend *backend, int64_t n, const void *x, float *y)
{
    QUEUE(backend, kernels_convert(n, backend->storage, x, DTYPE_FP32, y, stream_of(backend)));
}

static void
add(ExecBackend *backend, int64_t n, const void *x, void *y)
{
    QUEUE(backend, kernels_add(backend->storage, n, x, y, stream_of(backend)));
}

static void
scale(ExecBackend *backend, int64_t n, float factor, float *x)
{
    QUEUE(backend, kernels_scale(n, factor, x, stream_of(backend)));
}

/* --- compute --- */

static void
gemm(ExecBackend *backend, const ExecGemm *g)
{
    CudaState *state = state_of(backend);
    GError *error = NULL;

    if (!exec_cuda_product(state->products, g, &error))
        keep_error(state, error);
}

static void
bias_backward(ExecBackend *backend, int64_t rows, int64_t cols, const void *dy, int64_t stride,
              float *db)
{
    float *partials = scratch(backend, kernels_scratch_floats(cols));

    if (partials != NULL)
        QUEUE(backend, kernels_bias_backward(backend->storage, rows, cols, dy, stride, db, partials,
                                             stream_of(backend)));
}

static void
norm_forward(ExecBackend *backend, const ExecNorm *norm, void *y)
{
    QUEUE(backend, kernels_norm_forward(backend->storage, norm, y, stream_of(backend)));
}

static void
norm_backward(ExecBackend *backend, const ExecNorm *norm, const void *dy, void *dx, float *dgain,
              float *dshift)
{
    float *partials = scratch(backend, kernels_scratch_floats(norm->cols));

    if (partials != NULL)
        QUEUE(backend, kernels_norm_backward(backend->storage, norm, dy, dx, dgain, dshift,
                                             partials, stream_of(backend)));
}

static void
gelu_forward(ExecBackend *backend, int64_t n, const void *x, void *y)
{
    QUEUE(backend, kernels_gelu_forward(backend->storage, n, x, y, stream_of(backend)));
}

static void
gelu_backward(ExecBackend *backend, int64_t n, const void *x, void *dy)
{
    QUEUE(backend, kernels_gelu_backward(backend->storage, n, x, dy, stream_of(backend)));
}

static void
swiglu_forward(ExecBackend *backend, int64_t rows, int64_t width, const void *x, void *y)
{
    QUEUE(backend, kernels_swiglu_forward(backend->storage, rows, width, x, y, stream_of(backend)));
}

static void
swiglu_backward(ExecBackend *backend, int64_t rows, int64_t width, const void *x, const void *dy,
                void *dx)
{
    QUEUE(backend,
          kernels_swiglu_backward(backend->storage, rows, width, x, dy, dx, stream_of(backend)));
}

static void
rope(ExecBackend *backend, const ExecRope *r, void *x)
{
    QUEUE(backend, kernels_rope(backend->storage, r, x, stream_of(backend)));
}

static bool
on_tensor_cores(const ExecBackend *backend, const ExecAttention *a)
{
    return backend->storage == DTYPE_BF16 && kernels_flash_has(a);
}

static void
attention_forward(ExecBackend *backend, const ExecAttention *a)
{
    if (on_tensor_cores(backend, a))
        QUEUE(backend, kernels_flash_forward(a, stream_of(backend)));
    else
        QUEUE(backend, kernels_attention_forward(backend->storage, a, stream_of(backend)));
}

static void
attention_backward(ExecBackend *backend, const ExecAttention *a, const ExecAttentionGradients *g)
{
    float *delta = scratch(backend, a->tokens * a->sequences * a->n_heads);

    if (delta == NULL)
        return;
    if (on_tensor_cores(backend, a))
        QUEUE(backend, kernels_flash_backward(a, g, delta, stream_of(backend)));
    else
        QUEUE(backend,
              kernels_attention_backward(backend->storage, a, g, delta, stream_of(backend)));
}

static void
embedding_forward(ExecBackend *backend, const ExecEmbedding *e, const void *table,
                  const void *positions, void *x)
{
    QUEUE(backend,
          kernels_embedding_forward(backend->storage, e, table, positions, x, stream_of(backend)));
}

static void
embedding_backward(ExecBackend *backend, const ExecEmbedding *e, const void *dx, float *dtable,
                   float *dpositions)
{
    QUEUE(backend, kernels_embedding_backward(backend->storage, e, dx, dtable, dpositions,
                                              stream_of(backend)));
}

static void
cross_entropy_stats(ExecBackend *backend, const ExecCrossEntropy *e, float *stats)
{
    QUEUE(backend, kernels_cross_entropy_stats(backend->storage, e, stats, stream_of(backend)));
}

static void
cross_entropy(ExecBackend *backend, const ExecCrossEntropy *e)
{
    float *row_losses = scratch(backend, e->rows);

    if (row_losses != NULL)
        QUEUE(backend, kernels_cross_entropy(backend->storage, e, row_losses, stream_of(backend)));
}

static void
adamw(ExecBackend *backend, int64_t n, float *master, void *weights, const float *grad, float *m,
      float *v, const ExecAdamw *constants)
{
    QUEUE(backend, kernels_adamw(n, master, backend->storage, weights, grad, m, v, constants,
                                 stream_of(backend)));
}

/* --- experts --- */

static void
route(ExecBackend *backend, int64_t rows, int64_t n_experts, int64_t top_k, const float *scores,
      int32_t *expert, float *weight)
{
    QUEUE(backend,
          kernels_route(rows, n_experts, top_k, scores, expert, weight, stream_of(backend)));
}

static void
route_backward(ExecBackend *backend, int64_t rows, int64_t n_experts, int64_t top_k,
               const int32_t *expert, const float *weight, const float *d_weight, void *d_scores)
{
    QUEUE(backend, kernels_route_backward(backend->storage, rows, n_experts, top_k, expert, weight,
                                          d_weight, d_scores, stream_of(backend)));
}

static void
gather_rows(ExecBackend *backend, int64_t rows, int64_t row_bytes, const int32_t *from,
            const void *x, void *y)
{
    QUEUE(backend, kernels_gather_rows(rows, row_bytes, from, x, y, stream_of(backend)));
}

static void
sum_rows(ExecBackend *backend, int64_t rows, int64_t cols, int64_t n, const int32_t *from,
         const void *x, void *y)
{
    QUEUE(backend,
          kernels_sum_rows(backend->storage, rows, cols, n, from, x, y, stream_of(backend)));
}

static void
scale_rows(ExecBackend *backend, int64_t rows, int64_t cols, const float *factor, void *x)
{
    QUEUE(backend, kernels_scale_rows(backend->storage, rows, cols, factor, x, stream_of(backend)));
}

static void
dot_rows(ExecBackend *backend, int64_t rows, int64_t cols, const void *x, const void *y, float *dot)
{
    QUEUE(backend, kernels_dot_rows(backend->storage, rows, cols, x, y, dot, stream_of(backend)));
}

/* --- lifecycle --- */

static char *
describe(const ExecBackend *backend)
{
    const CudaState *state = state_of(backend);
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
    return g_string_free(g_steal_pointer(&text), FALSE);
}

static int64_t
workspace_bytes(const ExecBackend *backend)
{
    return EXEC_CUDA_PRODUCT_BYTES + state_of(backend)->n_scratch * (int64_t)sizeof(float);
}

static void
close_cuda(ExecBackend *backend)
{
    CudaState *state = backend->state;

    if (state->share.stream != NULL) {
        cudaStreamSynchronize(state->share.stream);
        if (state->scratch != NULL)
            cudaFreeAsync(state->scratch, state->share.stream);
        if (state->product_workspace != NULL)
            cudaFreeAsync(state->product_workspace, state->share.stream);
        cudaStreamSynchronize(state->share.stream);
    }
    exec_cuda_clock_free(state->clock);
    exec_cuda_products_free(state->products);
    exec_cuda_share_close(&state->share);
    if (state->pool != NULL)
        cudaMemPoolDestroy(state->pool);
    g_clear_error(&state->error);
    g_free(state);
    g_free(backend);
}

#define OPS(n, f)                                                                                  \
    {                                                                                              \
        .name = (n), .fuses = (f), .alloc = cuda_alloc, .release = cuda_release, .upload = upload, \
        .download = download, .synchronize = synchronize, .zero = zero, .copy = copy,              \
        .to_storage = to_storage, .from_storage = from_storage, .add = add, .scale = scale,        \
        .gemm = gemm, .bias_backward = bias_backward, .norm_forward = norm_forward,                \
        .norm_backward = norm_backward, .gelu_forward = gelu_forward,                              \
        .gelu_backward = gelu_backward, .swiglu_forward = swiglu_forward,                          \
        .swiglu_backward = swiglu_backward, .rope = rope, .attention_forward = attention_forward,  \
        .attention_backward = attention_backward, .embedding_forward = embedding_forward,          \
        .embedding_backward = embedding_backward, .cross_entropy_stats = cross_entropy_stats,      \
        .cross_entropy = cross_entropy, .adamw = adamw, .route = route,                            \
        .route_backward = route_backward, .gather_rows = gather_rows, .sum_rows = sum_rows,        \
        .scale_rows = scale_rows, .dot_rows = dot_rows, .stamp = stamp, .post = post,              \
        .fetch = fetch, .describe = describe, .workspace_bytes = workspace_bytes,                  \
        .close = close_cuda,                                                                       \
    }

/* What products fuse depends on the number format. */
static const ExecBackendOps fp32_ops = OPS("cuda", 0);
static const ExecBackendOps bf16_ops = OPS("cuda", EXEC_CUDA_FUSES);

/* --- opening --- */

/* Freed memory stays in the pool: giving back and taking again never reaches the driver. */
static bool
open_pool(CudaState *state, GError **error)
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
    const int64_t n_bytes = state_of(backend)->predicted_bytes;

    if (n_bytes <= 0)
        return true;
    void *arena = cuda_alloc(backend, (size_t)n_bytes, "arena of the predicted peak", error);
    cuda_release(backend, arena);
    return arena != NULL;
}

static bool
open_state(ExecBackend *backend, int index, int n, GError **error)
{
    CudaState *state = state_of(backend);
    const cudaError_t status = cudaSetDevice(state->device);

    if (status == cudaErrorDevicesUnavailable) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MISSING,
                    "device cuda:%d is in use by another process (exclusive mode)", state->device);
        return false;
    }
    TRY_CUDA(status, error);
    if (!exec_cuda_share_open(state->device, index, n, &state->share, error) ||
        !open_pool(state, error))
        return false;
    state->clock = exec_cuda_clock_new(state->share.stream, error);
    if (state->clock == NULL)
        return false;
    state->product_workspace =
        cuda_alloc(backend, EXEC_CUDA_PRODUCT_BYTES, "workspace of products", error);
    if (state->product_workspace == NULL)
        return false;
    const bool whole = state->share.n_multiprocessors == state->share.n_on_device;
    state->products = exec_cuda_products_new(backend->storage, state->product_workspace,
                                             whole ? 0 : state->share.n_multiprocessors,
                                             state->share.stream, error);
    return state->products != NULL && reserve(backend, error);
}

ExecBackend *
exec_backend_cuda_open(const ExecBackendOptions *options, GError **error)
{
    if (!exec_cuda_check_device(options->device, error))
        return NULL;
    ExecBackend *backend = g_new0(ExecBackend, 1);
    CudaState *state = g_new0(CudaState, 1);

    backend->ops = options->storage == DTYPE_BF16 ? &bf16_ops : &fp32_ops;
    backend->storage = options->storage;
    backend->state = state;
    state->device = options->device;
    state->predicted_bytes = options->predicted_bytes;
    if (!open_state(backend, options->share, MAX(options->n_shares, 1), error)) {
        close_cuda(backend);
        return NULL;
    }
    return backend;
}
