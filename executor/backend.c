#include "executor/backend.h"

#include "base/text.h"
#include "executor/backend_host.h"

G_DEFINE_QUARK(exec_error, exec_error)

ExecBackend *
exec_backend_open(const char *name, int device, GError **error)
{
    static const char *const names[] = {"reference", "cpu", "cuda", NULL};

    g_return_val_if_fail(name != NULL, NULL);
    if (g_str_equal(name, "reference"))
        return exec_backend_reference_open(error);
    if (g_str_equal(name, "cpu"))
        return exec_backend_cpu_open(error);
    if (g_str_equal(name, "cuda")) {
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MISSING,
                    "device cuda: the plugin degas-cuda.so is not built; use --device cpu");
        return NULL;
    }
    g_autofree char *shown = text_escape(name, 64);
    g_autofree char *suggestion = text_suggestion(name, names);
    g_set_error(error, EXEC_ERROR, EXEC_ERROR_UNSUPPORTED,
                "device \"%s\" is unknown%s (expected reference, cpu or cuda)", shown, suggestion);
    return NULL;
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

int64_t
exec_backend_workspace_bytes(const ExecBackend *backend)
{
    return backend->ops->workspace_bytes != NULL ? backend->ops->workspace_bytes(backend) : 0;
}
