#include "executor/device/backend.h"

#include "base/text.h"
#include "executor/device/backend_host.h"
#include "executor/device/clock.h"
#include "executor/device/plugin.h"

/* --- kinds of devices --- */

static const ExecDeviceKind kinds[] = {
    {.name = "cpu", .open = exec_backend_cpu_open},
    {.name = "reference", .open = exec_backend_reference_open, .has_threads = true},
    {.name = "cuda",
     .plugin = "cuda",
     .is_gpu = true,
     .has_graphs = true,
     .has_nccl = true,
     .plain_only = true},
    {.name = NULL},
};

const ExecDeviceKind *
exec_device_kind(const char *name)
{
    const ExecDeviceKind *kind = kinds;

    while (kind->name != NULL && !g_str_equal(kind->name, name))
        kind++;
    return kind;
}

const char *const *
exec_device_names(void)
{
    static const char *const *names;

    return text_names(&names, &kinds[0].name, sizeof kinds[0], G_N_ELEMENTS(kinds) - 1);
}

/* The interface of the kind's plugin; NULL on EXEC_ERROR_MISSING. */
static const ExecDevicePlugin *
device_plugin(const ExecDeviceKind *kind, GError **error)
{
    g_autofree char *wanted_by = g_strconcat("device ", kind->name, NULL);

    return exec_plugin_symbol(kind->plugin, EXEC_DEVICE_PLUGIN, wanted_by, error);
}

int32_t
exec_backend_n_devices(const char *name, GError **error)
{
    const ExecDeviceKind *kind = exec_device_kind(name);

    if (kind->plugin == NULL)
        return 1;
    const ExecDevicePlugin *plugin = device_plugin(kind, error);
    return plugin == NULL ? -1 : plugin->n_devices(error);
}

bool
exec_device_info(const char *name, int device, ExecDeviceInfo *info, GError **error)
{
    const ExecDeviceKind *kind = exec_device_kind(name);

    g_return_val_if_fail(kind->is_gpu, false);
    const ExecDevicePlugin *plugin = device_plugin(kind, error);
    return plugin != NULL && plugin->info(device, info, error);
}

/* --- opening --- */

static bool
check_options(const char *name, const ExecBackendOptions *options, GError **error)
{
    if (exec_device_kind(name)->name == NULL) {
        g_autofree char *shown = text_escape(name, 64);
        g_autofree char *suggestion = text_suggestion(name, exec_device_names());
        return EXEC_FAIL(error, EXEC_ERROR_UNSUPPORTED,
                         "device \"%s\" is unknown%s (expected reference, cpu or cuda)", shown,
                         suggestion);
    }
    if (options->storage == DTYPE_FP32 || options->storage == DTYPE_BF16)
        return true;
    return EXEC_FAIL(error, EXEC_ERROR_UNSUPPORTED,
                     "device %s cannot store numbers as %s (only fp32 and bf16)", name,
                     dtype_names[options->storage]);
}

/* A plugin brings both number formats; in host memory bf16 is a layer above fp32. */
ExecBackend *
exec_backend_open_with(const char *name, const ExecBackendOptions *options, GError **error)
{
    g_return_val_if_fail(name != NULL, NULL);
    if (!check_options(name, options, error))
        return NULL;
    const ExecDeviceKind *kind = exec_device_kind(name);
    if (kind->plugin != NULL) {
        const ExecDevicePlugin *plugin = device_plugin(kind, error);
        return plugin == NULL ? NULL : plugin->open(options, error);
    }
    ExecBackend *backend = kind->open(options, error);
    return backend == NULL || options->storage == DTYPE_FP32 ? backend
                                                             : exec_backend_bf16_new(backend);
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
exec_backend_attention_kernel(const ExecBackend *backend, int64_t head_dim)
{
    return backend->ops->attention_kernel != NULL
               ? backend->ops->attention_kernel(backend, head_dim)
               : NULL;
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

void
exec_activate(ExecBackend *backend, ExecActivation activation, int64_t rows, int64_t width,
              const void *x, void *y)
{
    const ExecBackendOps *ops = backend->ops;

    if (activation == EXEC_ACTIVATION_SWIGLU)
        ops->swiglu_forward(backend, rows, width, x, y);
    else if (activation == EXEC_ACTIVATION_GELU)
        ops->gelu_forward(backend, rows * width, x, y);
    else
        ops->activate(backend, activation, rows, width, x, y);
}

void
exec_activate_backward(ExecBackend *backend, ExecActivation activation, int64_t rows, int64_t width,
                       const void *x, const void *dy, void *dx)
{
    const ExecBackendOps *ops = backend->ops;

    if (activation == EXEC_ACTIVATION_SWIGLU) {
        ops->swiglu_backward(backend, rows, width, x, dy, dx);
    } else if (activation == EXEC_ACTIVATION_GELU) {
        if (dx != dy)
            ops->copy(backend, (size_t)exec_storage_bytes(backend, rows * width), dy, dx);
        ops->gelu_backward(backend, rows * width, x, dx);
    } else {
        ops->activate_backward(backend, activation, rows, width, x, dy, dx);
    }
}
