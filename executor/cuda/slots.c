/* What the CUDA backend computes: products by cuda_product.c, the rest by our kernels. */
#include "executor/cuda/state.h"

/* --- moves --- */

static void
zero(ExecBackend *backend, size_t n_bytes, void *x)
{
    QUEUE(backend, cudaMemsetAsync(x, 0, n_bytes, exec_cuda_stream(backend)));
}

static void
to_storage(ExecBackend *backend, int64_t n, const float *x, void *y)
{
    QUEUE(backend,
          kernels_convert(n, DTYPE_FP32, x, backend->storage, y, exec_cuda_stream(backend)));
}

static void
from_storage(ExecBackend *backend, int64_t n, const void *x, float *y)
{
    QUEUE(backend,
          kernels_convert(n, backend->storage, x, DTYPE_FP32, y, exec_cuda_stream(backend)));
}

static void
add(ExecBackend *backend, int64_t n, const void *x, void *y)
{
    QUEUE(backend, kernels_add(backend->storage, n, x, y, exec_cuda_stream(backend)));
}

static void
scale(ExecBackend *backend, int64_t n, float factor, float *x)
{
    QUEUE(backend, kernels_scale(n, factor, x, exec_cuda_stream(backend)));
}

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
    float *partials = exec_cuda_scratch(backend, kernels_scratch_floats(cols));

    if (partials != NULL)
        QUEUE(backend, kernels_bias_backward(backend->storage, rows, cols, dy, stride, db, partials,
                                             exec_cuda_stream(backend)));
}

static void
norm_forward(ExecBackend *backend, const ExecNorm *norm, void *y)
{
    QUEUE(backend, kernels_norm_forward(backend->storage, norm, y, exec_cuda_stream(backend)));
}

static void
norm_backward(ExecBackend *backend, const ExecNorm *norm, const void *dy, void *dx, float *dgain,
              float *dshift)
{
    float *partials = exec_cuda_scratch(backend, kernels_scratch_floats(norm->cols));

    if (partials != NULL)
        QUEUE(backend, kernels_norm_backward(backend->storage, norm, dy, dx, dgain, dshift,
                                             partials, exec_cuda_stream(backend)));
}

static void
gelu_forward(ExecBackend *backend, int64_t n, const void *x, void *y)
{
    QUEUE(backend, kernels_gelu_forward(backend->storage, n, x, y, exec_cuda_stream(backend)));
}

static void
gelu_backward(ExecBackend *backend, int64_t n, const void *x, void *dy)
{
    QUEUE(backend, kernels_gelu_backward(backend->storage, n, x, dy, exec_cuda_stream(backend)));
}

static void
swiglu_forward(ExecBackend *backend, int64_t rows, int64_t width, const void *x, void *y)
{
    QUEUE(backend,
          kernels_swiglu_forward(backend->storage, rows, width, x, y, exec_cuda_stream(backend)));
}

static void
swiglu_backward(ExecBackend *backend, int64_t rows, int64_t width, const void *x, const void *dy,
                void *dx)
{
    QUEUE(backend, kernels_swiglu_backward(backend->storage, rows, width, x, dy, dx,
                                           exec_cuda_stream(backend)));
}

static void
rope(ExecBackend *backend, const ExecRope *r, void *x)
{
    QUEUE(backend, kernels_rope(backend->storage, r, x, exec_cuda_stream(backend)));
}

static bool
on_tensor_cores(const ExecBackend *backend, const ExecAttention *a)
{
    return backend->storage == DTYPE_BF16 && kernels_flash_has(a);
}

static bool
by_wgmma(const ExecBackend *backend, const ExecAttention *a)
{
    return backend->storage == DTYPE_BF16 && exec_cuda_state(backend)->has_wgmma &&
           kernels_hopper_has(a);
}

static void
attention_forward(ExecBackend *backend, const ExecAttention *a)
{
    if (by_wgmma(backend, a))
        QUEUE(backend, kernels_hopper_forward(a, exec_cuda_stream(backend)));
    else if (on_tensor_cores(backend, a))
        QUEUE(backend, kernels_flash_forward(a, exec_cuda_stream(backend)));
    else
        QUEUE(backend, kernels_attention_forward(backend->storage, a, exec_cuda_stream(backend)));
}

static void
attention_backward(ExecBackend *backend, const ExecAttention *a, const ExecAttentionGradients *g)
{
    float *delta = exec_cuda_scratch(backend, a->tokens * a->sequences * a->n_heads);

    if (delta == NULL)
        return;
    if (by_wgmma(backend, a))
        QUEUE(backend, kernels_hopper_backward(a, g, delta, exec_cuda_stream(backend)));
    else if (on_tensor_cores(backend, a))
        QUEUE(backend, kernels_flash_backward(a, g, delta, exec_cuda_stream(backend)));
    else
        QUEUE(backend,
              kernels_attention_backward(backend->storage, a, g, delta, exec_cuda_stream(backend)));
}

static void
embedding_forward(ExecBackend *backend, const ExecEmbedding *e, const void *table,
                  const void *positions, void *x)
{
    QUEUE(backend, kernels_embedding_forward(backend->storage, e, table, positions, x,
                                             exec_cuda_stream(backend)));
}

static void
embedding_backward(ExecBackend *backend, const ExecEmbedding *e, const void *dx, float *dtable,
                   float *dpositions)
{
    QUEUE(backend, kernels_embedding_backward(backend->storage, e, dx, dtable, dpositions,
                                              exec_cuda_stream(backend)));
}

static void
cross_entropy_stats(ExecBackend *backend, const ExecCrossEntropy *e, float *stats)
{
    QUEUE(backend,
          kernels_cross_entropy_stats(backend->storage, e, stats, exec_cuda_stream(backend)));
}

static void
cross_entropy(ExecBackend *backend, const ExecCrossEntropy *e)
{
    float *row_losses = exec_cuda_scratch(backend, e->rows);

    if (row_losses != NULL)
        QUEUE(backend,
              kernels_cross_entropy(backend->storage, e, row_losses, exec_cuda_stream(backend)));
}

static void
adamw(ExecBackend *backend, int64_t n, float *master, void *weights, const float *grad, float *m,
      float *v, const ExecAdamw *constants)
{
    QUEUE(backend, kernels_adamw(n, master, backend->storage, weights, grad, m, v, constants,
                                 exec_cuda_stream(backend)));
}

/* --- experts --- */

static void
route(ExecBackend *backend, int64_t rows, int64_t n_experts, int64_t top_k, const float *scores,
      int32_t *expert, float *weight)
{
    QUEUE(backend,
          kernels_route(rows, n_experts, top_k, scores, expert, weight, exec_cuda_stream(backend)));
}

static void
route_backward(ExecBackend *backend, int64_t rows, int64_t n_experts, int64_t top_k,
               const int32_t *expert, const float *weight, const float *d_weight, void *d_scores)
{
    QUEUE(backend, kernels_route_backward(backend->storage, rows, n_experts, top_k, expert, weight,
                                          d_weight, d_scores, exec_cuda_stream(backend)));
}

static void
gather_rows(ExecBackend *backend, int64_t rows, int64_t row_bytes, const int32_t *from,
            const void *x, void *y)
{
    QUEUE(backend, kernels_gather_rows(rows, row_bytes, from, x, y, exec_cuda_stream(backend)));
}

static void
sum_rows(ExecBackend *backend, int64_t rows, int64_t cols, int64_t n, const int32_t *from,
         const void *x, void *y)
{
    QUEUE(backend,
          kernels_sum_rows(backend->storage, rows, cols, n, from, x, y, exec_cuda_stream(backend)));
}

static void
scale_rows(ExecBackend *backend, int64_t rows, int64_t cols, const float *factor, void *x)
{
    QUEUE(backend,
          kernels_scale_rows(backend->storage, rows, cols, factor, x, exec_cuda_stream(backend)));
}

static void
dot_rows(ExecBackend *backend, int64_t rows, int64_t cols, const void *x, const void *y, float *dot)
{
    QUEUE(backend,
          kernels_dot_rows(backend->storage, rows, cols, x, y, dot, exec_cuda_stream(backend)));
}

/* --- tables --- */

#define OPS(f)                                                                                     \
    {                                                                                              \
        .fuses = (f), .alloc = exec_cuda_alloc, .release = exec_cuda_release,                      \
        .upload = exec_cuda_upload, .download = exec_cuda_download,                                \
        .synchronize = exec_cuda_synchronize, .zero = zero, .copy = exec_cuda_copy,                \
        .to_storage = to_storage, .from_storage = from_storage, EXEC_OWN_SLOTS, .rope = rope,      \
        .embedding_forward = embedding_forward, .embedding_backward = embedding_backward,          \
        .route = route, .route_backward = route_backward, .gather_rows = gather_rows,              \
        .sum_rows = sum_rows, .scale_rows = scale_rows, .dot_rows = dot_rows,                      \
        .begin_graph = exec_cuda_begin_graph, .end_graph = exec_cuda_end_graph,                    \
        .stamp = exec_cuda_stamp, .post = exec_cuda_post, .fetch = exec_cuda_fetch,                \
        .begin_aside = exec_cuda_begin_aside, .end_aside = exec_cuda_end_aside,                    \
        .join = exec_cuda_join, .await = exec_cuda_await, .forget = exec_cuda_forget,              \
        .alloc_host = exec_cuda_alloc_host, .release_host = exec_cuda_release_host,                \
        .describe = exec_cuda_describe, .attention_kernel = exec_cuda_attention_kernel,            \
        .workspace_bytes = exec_cuda_workspace_bytes, .close = exec_cuda_close,                    \
    }

const ExecBackendOps exec_cuda_fp32_ops = OPS(0);
const ExecBackendOps exec_cuda_bf16_ops = OPS(EXEC_CUDA_FUSES);
