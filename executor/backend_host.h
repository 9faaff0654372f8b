/*
 * executor/backend_host.h - what backends in host memory share, and where they are opened.
 *
 * Private to executor/backend*.c.
 */
#ifndef EXECUTOR_BACKEND_HOST_H
#define EXECUTOR_BACKEND_HOST_H

#include "executor/backend.h"

G_BEGIN_DECLS

ExecBackend *exec_backend_reference_open(GError **error);
ExecBackend *exec_backend_cpu_open(GError **error);

/* The memory slots and plain moves: backend_host.c. */
void *exec_host_alloc(ExecBackend *backend, size_t n_bytes, const char *what, GError **error);
void exec_host_release(ExecBackend *backend, void *memory);
void exec_host_move(ExecBackend *backend, size_t n_bytes, const void *from, void *to);
bool exec_host_synchronize(ExecBackend *backend, GError **error);
void exec_host_zero(ExecBackend *backend, int64_t n, float *x);
void exec_host_copy(ExecBackend *backend, int64_t n, const float *x, float *y);

/* Gathers rows of the table; adds rows of gradients: memory-bound, the same for every host backend.
 */
void exec_host_embedding_forward(ExecBackend *backend, int64_t rows, int64_t sequences,
                                 int64_t first_position, int64_t cols, const int32_t *token,
                                 const float *table, const float *positions, float *x);
void exec_host_embedding_backward(ExecBackend *backend, int64_t rows, int64_t sequences,
                                  int64_t first_position, int64_t cols, const int32_t *token,
                                  const float *dx, float *dtable, float *dpositions);

G_END_DECLS

#endif /* EXECUTOR_BACKEND_HOST_H */
