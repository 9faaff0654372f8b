/*
 * executor/cuda/backend.c - the slots of backend.h on an NVIDIA GPU: waiting, the queue beside the
 * compute slots, graphs, what is computed, opening and closing.  Memory is in memory.c.
 *
 * The compute slots queue work: products by product.c, the rest by the kernels of kernels.h.
 */
#include "executor/cuda/cuda.h"

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

static void
stamp(ExecBackend *backend, int64_t *ns)
{
    ExecCudaState *state = exec_cuda_state(backend);
    GError *error = NULL;

    if (!exec_cuda_clock_stamp(state->clock, exec_cuda_stream(backend), ns, &error))
        exec_cuda_keep_error(state, error);
}

static void
occupy(ExecBackend *backend, int64_t ns)
{
    QUEUE(backend, kernels_spin(ns, exec_cuda_stream(backend)));
}

/* A wait with a watch spins for SPIN_NS, about what waking a sleeping thread costs (local.c), and
 * then looks every SLEEP_NS: a short wait costs little time, a long one little of the core. */
#define SPIN_NS 50000
#define SLEEP_NS 20000

static cudaError_t
query(cudaStream_t stream, cudaEvent_t event)
{
    return event != NULL ? cudaEventQuery(event) : cudaStreamQuery(stream);
}

bool
exec_cuda_wait_watched(const ExecCudaState *state, cudaStream_t stream, cudaEvent_t event,
                       GError **error)
{
    const ExecCudaWatch *watch = &state->watch;
    const struct timespec pause = {.tv_nsec = SLEEP_NS};
    const int64_t begin = exec_now_ns();
    cudaError_t status = query(stream, event);
    bool ok = true;

    for (; ok && status == cudaErrorNotReady; status = query(stream, event)) {
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
        return exec_cuda_wait_watched(state, NULL, event, error);
    TRY_CUDA(cudaEventSynchronize(event), error);
    return true;
}

static bool
synchronize(ExecBackend *backend, GError **error)
{
    ExecCudaState *state = exec_cuda_state(backend);
    GError *interrupted = NULL, *unread = NULL;

    if (state->watch.look == NULL)
        QUEUE(backend, cudaStreamSynchronize(state->share.stream));
    else if (!exec_cuda_wait_watched(state, state->share.stream, NULL, &interrupted)) {
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

/* --- the queue beside that of the compute slots: a stream forked from and joined to theirs --- */

bool
exec_cuda_open_urgent(cudaStream_t *stream, GError **error)
{
    int least = 0, greatest = 0;

    TRY_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest), error);
    TRY_CUDA(cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, greatest), error);
    return true;
}

static bool
open_aside(ExecCudaAside *aside, GError **error)
{
    if (!exec_cuda_open_urgent(&aside->stream, error))
        return false;
    TRY_CUDA(cudaEventCreateWithFlags(&aside->begin, cudaEventDisableTiming), error);
    return true;
}

static void
close_aside(ExecCudaAside *aside)
{
    if (aside->stream != NULL) {
        cudaStreamSynchronize(aside->stream);
        cudaStreamDestroy(aside->stream);
    }
    if (aside->begin != NULL)
        cudaEventDestroy(aside->begin);
    *aside = (ExecCudaAside){0};
}

static void
begin_aside(ExecBackend *backend)
{
    ExecCudaAside *aside = &exec_cuda_state(backend)->aside;

    g_assert(!aside->is_in);
    QUEUE(backend, cudaEventRecord(aside->begin, exec_cuda_stream(backend)));
    QUEUE(backend, cudaStreamWaitEvent(aside->stream, aside->begin, 0));
    aside->is_in = true;
}

/* A mark is an event. */
static void
end_aside(ExecBackend *backend, ExecMark **mark)
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

static void
join(ExecBackend *backend, ExecMark *mark)
{
    QUEUE(backend, cudaStreamWaitEvent(exec_cuda_stream(backend), (cudaEvent_t)mark, 0));
}

static bool
await(ExecBackend *backend, ExecMark *mark, GError **error)
{
    return exec_cuda_wait_event(exec_cuda_state(backend), (cudaEvent_t)mark, error);
}

static void
forget(ExecBackend *backend, ExecMark *mark)
{
    if (mark != NULL)
        QUEUE(backend, cudaEventDestroy((cudaEvent_t)mark));
}

static void *
alloc_host(ExecBackend *backend, size_t n_bytes)
{
    void *memory = NULL;

    if (cudaHostAlloc(&memory, MAX(n_bytes, 1), cudaHostAllocDefault) == cudaSuccess)
        return memory;
    cudaGetLastError(); /* no such memory is an answer, not a broken device */
    return NULL;
}

static void
release_host(ExecBackend *backend, void *memory)
{
    QUEUE(backend, cudaFreeHost(memory));
}

/*
 * --- graphs ---
 *
 * What the slots queue between begin_graph() and end_graph() is captured and launched in pieces, at
 * each cut and at the end.  A graph is kept per key and piece, and its arguments are changed where they
 * differ (another micro-batch's memory), which costs the host about as much as launching and saves the
 * device the gaps between short kernels.  Ranks that share a context launch their work as it comes: a
 * kernel that one of them loads waits for the whole context, and that ends the other's capture.
 */

/* Pieces of one op; what comes after the last cut of so many is one piece. */
#define MAX_PIECES 1024

static void
begin_piece(ExecBackend *backend)
{
    ExecCudaGraphs *graphs = &exec_cuda_state(backend)->graphs;
    /* Relaxed: other ranks' threads, and this one's memory, may call what a capture forbids. */
    const cudaError_t status =
        cudaStreamBeginCapture(exec_cuda_stream(backend), cudaStreamCaptureModeRelaxed);

    exec_cuda_check(exec_cuda_state(backend), status, "cudaStreamBeginCapture", __FILE__, __LINE__);
    graphs->captures = status == cudaSuccess;
}

static void
begin_graph(ExecBackend *backend, int64_t key)
{
    ExecCudaGraphs *graphs = &exec_cuda_state(backend)->graphs;

    if (exec_cuda_state(backend)->share.has_company)
        return;
    if (graphs->execs == NULL) {
        graphs->execs = g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
        graphs->to_release = g_ptr_array_new();
    }
    if (graphs->side == NULL)
        QUEUE(backend, cudaStreamCreateWithFlags(&graphs->side, cudaStreamNonBlocking));
    graphs->key = (int64_t)((uint64_t)key * MAX_PIECES);
    graphs->n_pieces = 1;
    begin_piece(backend);
}

/* The kept graph with new arguments, or a new one where work of this key has changed its shape. */
static cudaGraphExec_t
exec_of(ExecBackend *backend, cudaGraph_t graph)
{
    ExecCudaGraphs *graphs = &exec_cuda_state(backend)->graphs;
    cudaGraphExec_t exec = g_hash_table_lookup(graphs->execs, &graphs->key);
    cudaGraphExecUpdateResultInfo info = {0};

    if (exec != NULL && cudaGraphExecUpdate(exec, graph, &info) == cudaSuccess)
        return exec;
    cudaGetLastError(); /* the answer "not by an update" */
    if (exec != NULL)
        QUEUE(backend, cudaGraphExecDestroy(exec));
    exec = NULL;
    QUEUE(backend, cudaGraphInstantiate(&exec, graph, 0));
    if (exec != NULL)
        g_hash_table_insert(graphs->execs, g_memdup2(&graphs->key, sizeof graphs->key), exec);
    else
        g_hash_table_remove(graphs->execs, &graphs->key);
    return exec;
}

static void
end_piece(ExecBackend *backend)
{
    ExecCudaGraphs *graphs = &exec_cuda_state(backend)->graphs;
    cudaGraph_t graph = NULL;

    QUEUE(backend, cudaStreamEndCapture(exec_cuda_stream(backend), &graph));
    graphs->captures = false;
    if (graph != NULL) {
        cudaGraphExec_t exec = exec_of(backend, graph);
        if (exec != NULL)
            QUEUE(backend, cudaGraphLaunch(exec, exec_cuda_stream(backend)));
        QUEUE(backend, cudaGraphDestroy(graph));
    }
    for (guint i = 0; i < graphs->to_release->len; i++)
        exec_cuda_release(backend, graphs->to_release->pdata[i]);
    g_ptr_array_set_size(graphs->to_release, 0);
}

static void
cut_graph(ExecBackend *backend)
{
    ExecCudaGraphs *graphs = &exec_cuda_state(backend)->graphs;

    if (!graphs->captures || graphs->n_pieces == MAX_PIECES)
        return;
    end_piece(backend);
    graphs->key++;
    graphs->n_pieces++;
    begin_piece(backend);
}

static void
end_graph(ExecBackend *backend)
{
    if (exec_cuda_state(backend)->graphs.captures)
        end_piece(backend);
}

static void
clear_graphs(ExecCudaGraphs *graphs)
{
    GHashTableIter iter;
    gpointer exec;

    if (graphs->execs == NULL)
        return;
    g_hash_table_iter_init(&iter, graphs->execs); /* in any order: nothing is told of it */
    while (g_hash_table_iter_next(&iter, NULL, &exec))
        cudaGraphExecDestroy(exec);
    g_hash_table_unref(graphs->execs);
    g_ptr_array_unref(graphs->to_release);
    if (graphs->side != NULL)
        cudaStreamDestroy(graphs->side);
    *graphs = (ExecCudaGraphs){0};
}

/* Queues a kernel of kernels.h; the arguments are all but the stream. */
#define LAUNCH(backend, kernel, ...) QUEUE(backend, kernel(__VA_ARGS__, exec_cuda_stream(backend)))

/* A slot that is one kernel of its name: its parameters, and the kernel's arguments. */
#define SLOT(slot, parameters, ...)                                                                \
    static void slot parameters                                                                    \
    {                                                                                              \
        LAUNCH(backend, kernels_##slot, __VA_ARGS__);                                              \
    }

/* --- moves --- */

static void
zero(ExecBackend *backend, size_t n_bytes, void *x)
{
    QUEUE(backend, cudaMemsetAsync(x, 0, n_bytes, exec_cuda_stream(backend)));
}

static void
to_storage(ExecBackend *backend, int64_t n, const float *x, void *y)
{
    LAUNCH(backend, kernels_convert, n, DTYPE_FP32, x, backend->storage, y);
}

static void
from_storage(ExecBackend *backend, int64_t n, const void *x, float *y)
{
    LAUNCH(backend, kernels_convert, n, backend->storage, x, DTYPE_FP32, y);
}

SLOT(add, (ExecBackend * backend, int64_t n, const void *x, void *y), backend->storage, n, x, y)

/* --- compute --- */

static void
gemm(ExecBackend *backend, const ExecGemm *g)
{
    ExecCudaState *state = exec_cuda_state(backend);
    GError *error = NULL;

    if (!exec_cuda_product(state->products, g, &error))
        exec_cuda_keep_error(state, error);
}

static void
bias_backward(ExecBackend *backend, int64_t rows, int64_t cols, const void *dy, int64_t stride,
              float *db)
{
    float *partials = exec_cuda_scratch(backend, KERNELS_BIAS_SCRATCH_FLOATS);

    if (partials != NULL)
        LAUNCH(backend, kernels_bias_backward, backend->storage, rows, cols, dy, stride, db,
               partials);
}

/* Whether rows of a norm fit into a block's registers. */
static bool
norm_fits(ExecBackend *backend, const ExecNorm *norm)
{
    if (norm->cols > KERNELS_NORM_MAX_COLS)
        exec_cuda_keep_error(exec_cuda_state(backend),
                             g_error_new(EXEC_ERROR, EXEC_ERROR_UNSUPPORTED,
                                         "device cuda: a norm has %" G_GINT64_FORMAT
                                         " columns; its kernels have registers for %d",
                                         norm->cols, KERNELS_NORM_MAX_COLS));
    return norm->cols <= KERNELS_NORM_MAX_COLS;
}

static void
norm_forward(ExecBackend *backend, const ExecNorm *norm, void *y)
{
    if (norm_fits(backend, norm))
        LAUNCH(backend, kernels_norm_forward, backend->storage, norm, y);
}

static void
norm_backward(ExecBackend *backend, const ExecNorm *norm, const void *dy, void *dx, float *dgain,
              float *dshift)
{
    float *partials = norm_fits(backend, norm)
                          ? exec_cuda_scratch(backend, kernels_norm_scratch_floats(norm->cols))
                          : NULL;

    if (partials != NULL)
        LAUNCH(backend, kernels_norm_backward, backend->storage, norm, dy, dx, dgain, dshift,
               partials);
}

SLOT(gelu_forward, (ExecBackend * backend, int64_t n, const void *x, void *y), backend->storage, n,
     x, y)
SLOT(gelu_backward, (ExecBackend * backend, int64_t n, const void *x, void *dy), backend->storage,
     n, x, dy)
SLOT(swiglu_forward, (ExecBackend * backend, int64_t rows, int64_t width, const void *x, void *y),
     backend->storage, rows, width, x, y)
SLOT(swiglu_backward,
     (ExecBackend * backend, int64_t rows, int64_t width, const void *x, const void *dy, void *dx),
     backend->storage, rows, width, x, dy, dx)
SLOT(rope, (ExecBackend * backend, const ExecRope *r, void *x), backend->storage, r, x)

static bool
on_tensor_cores(const ExecBackend *backend, const ExecAttention *a)
{
    return backend->storage == DTYPE_BF16 && exec_attention_is_plain(a) &&
           kernels_flash_has(a, (size_t)exec_cuda_state(backend)->max_shared_bytes);
}

static bool
by_wgmma(const ExecBackend *backend, const ExecAttention *a)
{
    return backend->storage == DTYPE_BF16 && exec_cuda_state(backend)->has_wgmma &&
           exec_attention_is_plain(a) && kernels_hopper_has(a);
}

static void
attention_forward(ExecBackend *backend, const ExecAttention *a)
{
    if (by_wgmma(backend, a))
        LAUNCH(backend, kernels_hopper_forward, a);
    else if (on_tensor_cores(backend, a))
        LAUNCH(backend, kernels_flash_forward, a);
    else
        LAUNCH(backend, kernels_attention_forward, backend->storage, a);
}

static void
attention_backward(ExecBackend *backend, const ExecAttention *a, const ExecAttentionGradients *g)
{
    float *delta = exec_cuda_scratch(backend, a->tokens * a->sequences * a->n_heads);

    if (delta == NULL)
        return;
    if (by_wgmma(backend, a))
        LAUNCH(backend, kernels_hopper_backward, a, g, delta);
    else if (on_tensor_cores(backend, a))
        LAUNCH(backend, kernels_flash_backward, a, g, delta);
    else
        LAUNCH(backend, kernels_attention_backward, backend->storage, a, g, delta);
}

/* --- heads and latents --- */

SLOT(group_norm_sums, (ExecBackend * backend, const ExecGroupNorm *norm), backend->storage, norm)
SLOT(group_norm_forward,
     (ExecBackend * backend, const ExecGroupNorm *norm, void *y, int64_t y_stride),
     backend->storage, norm, y, y_stride)
SLOT(group_norm_backward_sums,
     (ExecBackend * backend, const ExecGroupNorm *norm, const void *dy, int64_t dy_stride,
      float *d_sums),
     backend->storage, norm, dy, dy_stride, d_sums)
SLOT(group_norm_backward,
     (ExecBackend * backend, const ExecGroupNorm *norm, const float *d_sums, void *d,
      int64_t d_stride, float *dgain, float *dshift),
     backend->storage, norm, d_sums, d, d_stride, dgain, dshift)
SLOT(copy_blocks, (ExecBackend * backend, const ExecBlocks *b, const void *x, void *y),
     backend->storage, b, x, y)
SLOT(sum_blocks, (ExecBackend * backend, const ExecBlocks *b, const void *x, void *y),
     backend->storage, b, x, y)
SLOT(gate_forward, (ExecBackend * backend, const ExecGate *gate, void *y), backend->storage, gate,
     y)
SLOT(gate_backward, (ExecBackend * backend, const ExecGate *gate, void *d, void *dgate),
     backend->storage, gate, d, dgate)

/* --- embedding and loss --- */

SLOT(embedding_forward,
     (ExecBackend * backend, const ExecEmbedding *e, const void *table, const void *positions,
      void *x),
     backend->storage, e, table, positions, x)
SLOT(embedding_backward,
     (ExecBackend * backend, const ExecEmbedding *e, const void *dx, float *dtable,
      float *dpositions),
     backend->storage, e, dx, dtable, dpositions)
SLOT(cross_entropy_stats, (ExecBackend * backend, const ExecCrossEntropy *e, float *stats),
     backend->storage, e, stats)

static void
cross_entropy(ExecBackend *backend, const ExecCrossEntropy *e)
{
    float *row_losses = exec_cuda_scratch(backend, e->rows);

    if (row_losses != NULL)
        LAUNCH(backend, kernels_cross_entropy, backend->storage, e, row_losses);
}

/* --- the end of a step --- */

SLOT(sum_squares, (ExecBackend * backend, int64_t n, const float *x, ExecClip *c), n, x, c)
SLOT(clip, (ExecBackend * backend, int64_t n, double limit, ExecClip *c), n, limit, c)
SLOT(adamw,
     (ExecBackend * backend, int64_t n_parts, const ExecAdamwPart *parts,
      const ExecAdamw *constants),
     n_parts, parts, constants)

/* --- experts --- */

SLOT(route,
     (ExecBackend * backend, int64_t rows, int64_t n_experts, int64_t top_k, const float *scores,
      int32_t *expert, float *weight),
     rows, n_experts, top_k, scores, expert, weight)
SLOT(route_backward,
     (ExecBackend * backend, int64_t rows, int64_t n_experts, int64_t top_k, const int32_t *expert,
      const float *weight, const float *d_weight, void *d_scores),
     backend->storage, rows, n_experts, top_k, expert, weight, d_weight, d_scores)
SLOT(gather_rows,
     (ExecBackend * backend, int64_t rows, int64_t row_bytes, const int32_t *from, const void *x,
      void *y),
     rows, row_bytes, from, x, y)
SLOT(sum_rows,
     (ExecBackend * backend, int64_t rows, int64_t cols, int64_t n, const int32_t *from,
      const void *x, void *y),
     backend->storage, rows, cols, n, from, x, y)
SLOT(scale_rows, (ExecBackend * backend, int64_t rows, int64_t cols, const float *factor, void *x),
     backend->storage, rows, cols, factor, x)
SLOT(dot_rows,
     (ExecBackend * backend, int64_t rows, int64_t cols, const void *x, const void *y, float *dot),
     backend->storage, rows, cols, x, y, dot)

/* --- lifecycle --- */

static char *
describe(const ExecBackend *backend)
{
    const ExecCudaState *state = exec_cuda_state(backend);
    struct cudaDeviceProp properties;
    int driver = 0, runtime = 0;
    g_autoptr(GString) text = g_string_new(NULL);

    if (cudaGetDeviceProperties(&properties, state->device) != cudaSuccess)
        return g_strdup("cuda");
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    g_string_append_printf(text, "%s, CUDA %d.%d (products by %s%s), driver for CUDA %d.%d",
                           properties.name, runtime / 1000, runtime % 1000 / 10,
                           exec_cuda_products_are_tuned(state->products)
                               ? "the fastest of 8 kernels"
                               : "cuBLASLt's choice",
                           state->has_wgmma && backend->storage == DTYPE_BF16
                               ? ", attention by wgmma where heads have 64 or 128"
                               : "",
                           driver / 1000, driver % 1000 / 10);
    if (state->share.n_multiprocessors < state->share.n_on_device)
        g_string_append_printf(text, ", %d of %d multiprocessors per rank%s",
                               state->share.n_multiprocessors, state->share.n_on_device,
                               state->share.has_own_context ? ", events of its green context" : "");
    else if (state->share.note != NULL)
        g_string_append_printf(text, ", all multiprocessors for every rank (%s)",
                               state->share.note);
    return g_string_free(g_steal_pointer(&text), FALSE);
}

static const char *
attention_kernel(const ExecBackend *backend, int64_t head_dim)
{
    return backend->storage == DTYPE_BF16 && exec_cuda_state(backend)->has_wgmma &&
                   kernels_hopper_has_heads(head_dim)
               ? "wgmma"
               : "mma";
}

static int64_t
workspace_bytes(const ExecBackend *backend)
{
    return EXEC_CUDA_PRODUCT_BYTES + exec_cuda_state(backend)->n_scratch * (int64_t)sizeof(float);
}

static void
close_cuda(ExecBackend *backend)
{
    ExecCudaState *state = backend->state;

    clear_graphs(&state->graphs);
    close_aside(&state->aside);
    if (state->share.stream != NULL)
        exec_cuda_memory_close(state);
    exec_cuda_clock_free(state->clock);
    exec_cuda_products_free(state->products);
    exec_cuda_share_close(&state->share);
    g_clear_error(&state->error);
    g_free(state);
    g_free(backend);
}

/* --- tables --- */

#define OPS(f)                                                                                     \
    {                                                                                              \
        .fuses = (f), .alloc = exec_cuda_alloc, .release = exec_cuda_release,                      \
        .upload = exec_cuda_upload, .download = exec_cuda_download, .synchronize = synchronize,    \
        .zero = zero, .copy = exec_cuda_copy, .to_storage = to_storage,                            \
        .from_storage = from_storage, EXEC_OWN_SLOTS, .sum_squares = sum_squares, .clip = clip,    \
        .rope = rope, .group_norm_sums = group_norm_sums,                                          \
        .group_norm_forward = group_norm_forward,                                                  \
        .group_norm_backward_sums = group_norm_backward_sums,                                      \
        .group_norm_backward = group_norm_backward, .copy_blocks = copy_blocks,                    \
        .sum_blocks = sum_blocks, .gate_forward = gate_forward, .gate_backward = gate_backward,    \
        .embedding_forward = embedding_forward, .embedding_backward = embedding_backward,          \
        .route = route, .route_backward = route_backward, .gather_rows = gather_rows,              \
        .sum_rows = sum_rows, .scale_rows = scale_rows, .dot_rows = dot_rows,                      \
        .begin_graph = begin_graph, .end_graph = end_graph, .cut_graph = cut_graph,                \
        .stamp = stamp, .occupy = occupy, .post = exec_cuda_post, .fetch = exec_cuda_fetch,        \
        .begin_aside = begin_aside, .end_aside = end_aside, .join = join, .await = await,          \
        .forget = forget, .alloc_host = alloc_host, .release_host = release_host,                  \
        .describe = describe, .attention_kernel = attention_kernel,                                \
        .workspace_bytes = workspace_bytes, .close = close_cuda,                                   \
    }

static const ExecBackendOps fp32_ops = OPS(0);
static const ExecBackendOps bf16_ops = OPS(EXEC_CUDA_FUSES);

/* --- opening --- */

#define ATTENTION_VARIABLE "DEGAS_CUDA_ATTENTION"

/* What the environment says, "mma" or "wgmma", else what was asked for, else wgmma; the last two if the
 * device has it. */
static bool
choose_attention(ExecCudaState *state, const char *wanted, GError **error)
{
    const char *forced = g_getenv(ATTENTION_VARIABLE), *text = forced != NULL ? forced : wanted;
    int capability = 0;

    if (g_strcmp0(text, "mma") == 0)
        return true;
    if (text != NULL && !g_str_equal(text, "wgmma"))
        return forced == NULL ||
               EXEC_FAIL(error, EXEC_ERROR_FAILED,
                         ATTENTION_VARIABLE ": expected mma or wgmma, got \"%s\"", text);
    if (!exec_cuda_capability(state->device, &capability, error))
        return false;
    state->has_wgmma = capability == 90;
    if (!state->has_wgmma && forced != NULL)
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MISSING,
                    ATTENTION_VARIABLE
                    "=wgmma: device cuda:%d has compute capability %d.%d; wgmma is of 9.0 only",
                    state->device, capability / 10, capability % 10);
    return state->has_wgmma || forced == NULL;
}

static bool
open_state(ExecBackend *backend, const ExecBackendOptions *options, GError **error)
{
    ExecCudaState *state = exec_cuda_state(backend);
    const cudaError_t status = cudaSetDevice(state->device);

    if (status == cudaErrorDevicesUnavailable)
        return EXEC_FAIL(error, EXEC_ERROR_MISSING,
                         "device cuda:%d is in use by another process (exclusive mode)",
                         state->device);
    TRY_CUDA(status, error);
    TRY_CUDA(cudaDeviceGetAttribute(&state->max_shared_bytes,
                                    cudaDevAttrMaxSharedMemoryPerBlockOptin, state->device),
             error);
    if (!choose_attention(state, options->attention, error) ||
        !exec_cuda_share_open(state->device, options->share, MAX(options->n_shares, 1),
                              &state->share, error) ||
        !open_aside(&state->aside, error) || !exec_cuda_memory_open(backend, error))
        return false;
    state->clock = exec_cuda_clock_new(state->share.stream, error);
    if (state->clock == NULL)
        return false;
    const bool whole = state->share.n_multiprocessors == state->share.n_on_device;
    state->products = exec_cuda_products_new(backend, whole ? 0 : state->share.n_multiprocessors,
                                             !options->deterministic, error);
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

    backend->ops = options->storage == DTYPE_BF16 ? &bf16_ops : &fp32_ops;
    backend->storage = options->storage;
    backend->state = state;
    state->device = options->device;
    state->predicted_bytes = options->predicted_bytes;
    if (!open_state(backend, options, error)) {
        close_cuda(backend);
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
