/*
 * executor/device/backend_host.h - what backends in host memory share, and where they are opened.
 *
 * Private to executor/backend*.c.
 */
#ifndef EXECUTOR_DEVICE_BACKEND_HOST_H
#define EXECUTOR_DEVICE_BACKEND_HOST_H

#include "executor/device/backend.h"

G_BEGIN_DECLS

/* In fp32 storage. */
ExecBackend *exec_backend_reference_open(const ExecBackendOptions *options, GError **error);
ExecBackend *exec_backend_cpu_open(const ExecBackendOptions *options, GError **error);

/* The same in bf16 storage: @inner (taken) computes on fp32 copies of the operands. */
ExecBackend *exec_backend_bf16_new(ExecBackend *inner);

/* The memory slots and plain moves: backend_host.c. */
void *exec_host_alloc(ExecBackend *backend, size_t n_bytes, const char *what, GError **error);
void exec_host_release(ExecBackend *backend, void *memory);
void exec_host_move(ExecBackend *backend, size_t n_bytes, const void *from, void *to);
bool exec_host_synchronize(ExecBackend *backend, GError **error);
void exec_host_zero(ExecBackend *backend, size_t n_bytes, void *x);

/* In a table: the memory slots above. */
#define EXEC_HOST_MEMORY_SLOTS                                                                     \
    .alloc = exec_host_alloc, .release = exec_host_release, .upload = exec_host_move,              \
    .download = exec_host_move, .synchronize = exec_host_synchronize, .zero = exec_host_zero,      \
    .copy = exec_host_move, .sum_squares = exec_host_sum_squares

/* to_storage and from_storage of fp32. */
void exec_host_to_storage(ExecBackend *backend, int64_t n, const float *x, void *y);
void exec_host_from_storage(ExecBackend *backend, int64_t n, const void *x, float *y);

/* Memory-bound, the same for every host backend in fp32. */
void exec_host_rope(ExecBackend *backend, const ExecRope *rope, void *x);
void exec_host_embedding_forward(ExecBackend *backend, const ExecEmbedding *embedding,
                                 const void *table, const void *positions, void *x);
void exec_host_embedding_backward(ExecBackend *backend, const ExecEmbedding *embedding,
                                  const void *dx, float *dtable, float *dpositions);

/* The slots of experts: memory-bound, so that plain loops do. */
void exec_host_route(ExecBackend *backend, int64_t rows, int64_t n_experts, int64_t top_k,
                     const float *scores, int32_t *expert, float *weight);
void exec_host_route_backward(ExecBackend *backend, int64_t rows, int64_t n_experts, int64_t top_k,
                              const int32_t *expert, const float *weight, const float *d_weight,
                              void *d_scores);
void exec_host_gather_rows(ExecBackend *backend, int64_t rows, int64_t row_bytes,
                           const int32_t *from, const void *x, void *y);
void exec_host_sum_rows(ExecBackend *backend, int64_t rows, int64_t cols, int64_t n,
                        const int32_t *from, const void *x, void *y);
void exec_host_scale_rows(ExecBackend *backend, int64_t rows, int64_t cols, const float *factor,
                          void *x);
void exec_host_dot_rows(ExecBackend *backend, int64_t rows, int64_t cols, const void *x,
                        const void *y, float *dot);

/* In a table of fp32 storage: what is above but memory. */
#define EXEC_HOST_FP32_SLOTS                                                                       \
    .to_storage = exec_host_to_storage, .from_storage = exec_host_from_storage,                    \
    .rope = exec_host_rope, .embedding_forward = exec_host_embedding_forward,                      \
    .embedding_backward = exec_host_embedding_backward, .route = exec_host_route,                  \
    .route_backward = exec_host_route_backward, .gather_rows = exec_host_gather_rows,              \
    .sum_rows = exec_host_sum_rows, .scale_rows = exec_host_scale_rows,                            \
    .dot_rows = exec_host_dot_rows

/* What all parts' statistics of row @row say: the log of the softmax' sum, and the target's logit.
 */
void exec_host_merge_stats(const ExecCrossEntropy *entropy, int64_t row, double *lse,
                           double *target);
bool exec_host_sum_squares(ExecBackend *backend, int64_t n, const float *x, double *sum,
                           GError **error);

G_END_DECLS

#endif /* EXECUTOR_DEVICE_BACKEND_HOST_H */
