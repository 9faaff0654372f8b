#include "executor/device/backend.h"

#include "base/text.h"
#include "executor/device/backend_host.h"
#include "executor/device/clock.h"
#include "executor/device/plugin.h"

/* The plugin brings both number formats; the others are opened for fp32 first. */
static ExecBackend *
open_cuda(const ExecBackendOptions *options, GError **error)
{
    ExecBackend *(*open)(const ExecBackendOptions *, GError **) = NULL;

    *(void **)&open = exec_plugin_symbol("cuda", "exec_backend_cuda_open", "device cuda", error);
    return open == NULL ? NULL : open(options, error);
}

/* The fp32 backend in host memory of that name. */
static ExecBackend *
open_fp32(const char *name, int n_threads, GError **error)
{
    static const char *const names[] = {"reference", "cpu", "cuda", NULL};

    if (g_str_equal(name, "reference"))
        return exec_backend_reference_open(n_threads, error);
    if (g_str_equal(name, "cpu"))
        return exec_backend_cpu_open(error);
    g_autofree char *shown = text_escape(name, 64);
    g_autofree char *suggestion = text_suggestion(name, names);
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_UNSUPPORTED,
                "device \"%s\" is unknown%s (expected reference, cpu or cuda)", shown, suggestion);
    return NULL;
}

ExecBackend *
exec_backend_open_with(const char *name, const ExecBackendOptions *options, GError **error)
{
    const bool has_storage = options->storage == DTYPE_FP32 || options->storage == DTYPE_BF16;

    g_return_val_if_fail(name != NULL, NULL);
    if (has_storage && g_str_equal(name, "cuda"))
        return open_cuda(options, error);
    g_autoptr(ExecBackend) backend = open_fp32(name, options->n_threads, error);
    if (backend == NULL || options->storage == DTYPE_FP32)
        return g_steal_pointer(&backend);
    if (options->storage == DTYPE_BF16)
        return exec_backend_bf16_new(g_steal_pointer(&backend));
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_UNSUPPORTED,
                "device %s cannot store numbers as %s (only fp32 and bf16)", name,
                dtype_names[options->storage]);
    return NULL;
}

int32_t
exec_backend_n_devices(const char *name, GError **error)
{
    int32_t (*n_devices)(GError **) = NULL;

    if (!g_str_equal(name, "cuda"))
        return 1;
    *(void **)&n_devices =
        exec_plugin_symbol("cuda", "exec_backend_cuda_n_devices", "device cuda", error);
    return n_devices == NULL ? -1 : n_devices(error);
}

ExecBackend *
exec_backend_open(const char *name, int device, Dtype storage, GError **error)
{
    return exec_backend_open_with(name, &(ExecBackendOptions){.device = device, .storage = storage},
                                  error);
}

void
exec_backend_close(ExecBackend *backend)
{
    if (backend != NULL)
        backend->ops->close(backend);
}

char *
exec_backend_describe(const ExecBackend *backend)
{
    return backend->ops->describe(backend);
}

const char *
exec_backend_attention_kernel(const ExecBackend *backend)
{
    return backend->ops->attention_kernel != NULL ? backend->ops->attention_kernel(backend) : NULL;
}

int64_t
exec_backend_workspace_bytes(const ExecBackend *backend)
{
    return backend->ops->workspace_bytes != NULL ? backend->ops->workspace_bytes(backend) : 0;
}

void
exec_backend_stamp(ExecBackend *backend, int64_t *ns)
{
    if (backend->ops->stamp != NULL)
        backend->ops->stamp(backend, ns);
    else
        *ns = exec_now_ns();
}

/* Values at a time through host memory. */
#define PIECE 65536

bool
exec_sum_squares(ExecBackend *backend, int64_t n, const float *x, double *sum, GError **error)
{
    g_autofree float *piece = NULL;

    if (backend->ops->sum_squares != NULL)
        return backend->ops->sum_squares(backend, n, x, sum, error);
    piece = g_new(float, PIECE);
    *sum = 0;
    for (int64_t i = 0; i < n; i += PIECE) {
        const int64_t n_piece = MIN(PIECE, n - i);
        double squares;
        backend->ops->download(backend, (size_t)n_piece * sizeof *x, x + i, piece);
        if (!backend->ops->synchronize(backend, error) ||
            !exec_host_sum_squares(backend, n_piece, piece, &squares, error))
            return false;
        *sum += squares;
    }
    return true;
}

void
exec_gemm(ExecBackend *backend, const ExecGemm *gemm)
{
    const ExecBackendOps *ops = backend->ops;
    ExecGemm plain = *gemm;
    const int64_t n = gemm->m * gemm->n;

    g_assert((gemm->gelu == NULL && gemm->gelu_input == NULL) || gemm->ldc == gemm->n);
    if (!(ops->fuses & EXEC_FUSES_GELU))
        plain.gelu = NULL;
    if (!(ops->fuses & EXEC_FUSES_GELU_INPUT))
        plain.gelu_input = NULL;
    if (!(ops->fuses & EXEC_FUSES_BIAS_GRADIENT))
        plain.bias_gradient = NULL;
    ops->gemm(backend, &plain);
    if (plain.gelu != gemm->gelu)
        ops->gelu_forward(backend, n, gemm->c, gemm->gelu);
    if (plain.gelu_input != gemm->gelu_input)
        ops->gelu_backward(backend, n, gemm->gelu_input, gemm->c);
    if (plain.bias_gradient != gemm->bias_gradient)
        ops->bias_backward(backend, gemm->k, gemm->n, gemm->b, gemm->ldb, gemm->bias_gradient);
}
