#include "executor/backend_host.h"

#include <stdlib.h>
#include <string.h>

void *
exec_host_alloc(ExecBackend *backend, size_t n_bytes, const char *what, GError **error)
{
    size_t rounded = 0;
    void *memory = NULL;

    if (!__builtin_add_overflow(n_bytes, (size_t)63, &rounded))
        memory = aligned_alloc(64, MAX(rounded / 64 * 64, 64));
    if (memory == NULL)
        g_set_error(error, EXEC_ERROR, EXEC_ERROR_MEMORY,
                    "no memory for %" G_GSIZE_FORMAT " bytes of %s", n_bytes, what);
    return memory;
}

void
exec_host_release(ExecBackend *backend, void *memory)
{
    free(memory);
}

void
exec_host_move(ExecBackend *backend, size_t n_bytes, const void *from, void *to)
{
    if (n_bytes > 0)
        memcpy(to, from, n_bytes);
}

bool
exec_host_synchronize(ExecBackend *backend, GError **error)
{
    return true;
}

void
exec_host_zero(ExecBackend *backend, int64_t n, float *x)
{
    if (n > 0)
        memset(x, 0, (size_t)n * sizeof *x);
}

void
exec_host_copy(ExecBackend *backend, int64_t n, const float *x, float *y)
{
    exec_host_move(backend, (size_t)n * sizeof *x, x, y);
}

void
exec_host_embedding_forward(ExecBackend *backend, int64_t rows, int64_t sequences,
                            int64_t first_position, int64_t cols, const int32_t *token,
                            const float *table, const float *positions, float *x)
{
    for (int64_t row = 0; row < rows; row++) {
        const float *from = table + token[row] * cols;
        const float *position = positions + (first_position + row / sequences) * cols;
        for (int64_t i = 0; i < cols; i++)
            x[row * cols + i] = from[i] + position[i];
    }
}

void
exec_host_embedding_backward(ExecBackend *backend, int64_t rows, int64_t sequences,
                             int64_t first_position, int64_t cols, const int32_t *token,
                             const float *dx, float *dtable, float *dpositions)
{
    for (int64_t row = 0; row < rows; row++) {
        float *to = dtable + token[row] * cols;
        float *position = dpositions + (first_position + row / sequences) * cols;
        for (int64_t i = 0; i < cols; i++) {
            to[i] += dx[row * cols + i];
            position[i] += dx[row * cols + i];
        }
    }
}
