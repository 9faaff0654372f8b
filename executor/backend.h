/*
 * executor/backend.h - ExecBackendOps: what a device kind must do, as a table of named slots.
 *
 * A backend computes on tensors in its own memory; it knows no layers, ranks or schedules.  layer.c
 * composes layers from these slots, so every backend trains the same model; backend_reference.c
 * (plain loops) is the oracle of every other.  Row-major throughout.  One ExecBackend belongs to
 * one rank (thread).
 *
 * Opened by name: "reference", "cpu" (OpenBLAS, loaded on demand), "cuda" (a plugin opened on
 * demand; absent here means a sentence, not a crash).
 *
 * Errors: EXEC_ERROR; status codes of libraries never leave this folder.
 */
#ifndef EXECUTOR_BACKEND_H
#define EXECUTOR_BACKEND_H

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

G_BEGIN_DECLS

#define EXEC_ERROR (exec_error_quark())
GQuark exec_error_quark(void);

typedef enum {
    EXEC_ERROR_MISSING,     /* a library, plugin or device is not there: exit status 6 */
    EXEC_ERROR_MEMORY,      /* device or host memory: 5 */
    EXEC_ERROR_UNSUPPORTED, /* the plan asks what this executor cannot do: 1, before the first step
                             */
    EXEC_ERROR_DATA,        /* training data: 3 or 4 */
    EXEC_ERROR_RANK_DIED,   /* 7 */
    EXEC_ERROR_RANK_HUNG,   /* 8 */
    EXEC_ERROR_VERIFY,      /* gradients differ: 1 */
    EXEC_ERROR_FAILED,
} ExecError;

typedef struct ExecBackend ExecBackend;

/*
 * Slots.  All tensors are fp32; [rows, cols] row-major; lengths in elements.  "accumulate" adds
 * into the output instead of overwriting it.
 */
typedef struct {
    const char *name;
    /* C[m,n] = A[m,k] B[k,n] (+ C); transposes say how A and B are stored: trans_a means A is
     * [k,m]; lda, ldb, ldc are row strides. */
    void (*gemm)(ExecBackend *backend, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
                 const float *a, int64_t lda, const float *b, int64_t ldb, bool accumulate,
                 float *c, int64_t ldc);
    /* y = x + bias on every row; bias gradient: db += column sums of dy. */
    void (*bias_add)(ExecBackend *backend, int64_t rows, int64_t cols, const float *bias, float *y);
    void (*bias_backward)(ExecBackend *backend, int64_t rows, int64_t cols, const float *dy,
                          float *db);
    /* LayerNorm: y = (x - mean) * rstd * gain + shift; mean and rstd of every row are kept. */
    void (*layernorm_forward)(ExecBackend *backend, int64_t rows, int64_t cols, const float *x,
                              const float *gain, const float *shift, float *y, float *mean,
                              float *rstd);
    /* dx += ...; dgain, dshift += ... */
    void (*layernorm_backward)(ExecBackend *backend, int64_t rows, int64_t cols, const float *x,
                               const float *gain, const float *mean, const float *rstd,
                               const float *dy, float *dx, float *dgain, float *dshift);
    /* GELU, tanh form (GPT-2). */
    void (*gelu_forward)(ExecBackend *backend, int64_t n, const float *x, float *y);
    void (*gelu_backward)(ExecBackend *backend, int64_t n, const float *x, const float *dy,
                          float *dx);
    /*
     * Causal attention of a slice against its context, one (sequence, head): q [tokens, d] with row
     * stride ldq; k, v [context + tokens, d] with row stride ldkv (rows of earlier slices first).
     * probs [tokens, context + tokens] is kept for backward; row i sees columns <= context + i.
     */
    void (*attention_forward)(ExecBackend *backend, int64_t tokens, int64_t context, int64_t d,
                              const float *q, int64_t ldq, const float *k, const float *v,
                              int64_t ldkv, float scale, float *probs, float *out, int64_t ldo);
    /* dq overwritten [tokens, d]; dk, dv accumulated into rows [0, context + tokens). */
    void (*attention_backward)(ExecBackend *backend, int64_t tokens, int64_t context, int64_t d,
                               const float *q, int64_t ldq, const float *k, const float *v,
                               int64_t ldkv, float scale, const float *probs, const float *dout,
                               int64_t ldo, float *dq, int64_t lddq, float *dk, float *dv,
                               int64_t lddkv);
    void (*add)(ExecBackend *backend, int64_t n, const float *x, float *y); /* y += x */
    void (*scale)(ExecBackend *backend, int64_t n, float factor, float *x);
    /* x[row] = table[token[row]] + positions[first_position + row % tokens] */
    void (*embedding_forward)(ExecBackend *backend, int64_t rows, int64_t tokens,
                              int64_t first_position, int64_t cols, const int32_t *token,
                              const float *table, const float *positions, float *x);
    void (*embedding_backward)(ExecBackend *backend, int64_t rows, int64_t tokens,
                               int64_t first_position, int64_t cols, const int32_t *token,
                               const float *dx, float *dtable, float *dpositions);
    /* Softmax cross-entropy of every row; logits are replaced by factor * (softmax - one_hot):
     * their gradient.  Returns the sum of the rows' losses. */
    double (*cross_entropy)(ExecBackend *backend, int64_t rows, int64_t vocab,
                            const int32_t *target, float factor, float *logits);
    /* One AdamW step over n elements [Loshchilov and Hutter 1711.05101]; bias correction by @step
     * >= 1. */
    void (*adamw)(ExecBackend *backend, int64_t n, float *param, const float *grad, float *m,
                  float *v, float learning_rate, float beta1, float beta2, float epsilon,
                  float weight_decay, int64_t step);
} ExecBackendOps;

struct ExecBackend {
    const ExecBackendOps *ops;
    void *state; /* (owned by the backend) */
};

/* @name "reference", "cpu" or "cuda"; @device number for cuda.  NULL on EXEC_ERROR_MISSING: one
 * sentence. */
ExecBackend *exec_backend_open(const char *name, int device, GError **error);
void exec_backend_close(ExecBackend *backend);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecBackend, exec_backend_close)

/* Returns: (owned) what computes, for reports: "OpenBLAS 0.3.21 SkylakeX, 1 thread per rank". */
char *exec_backend_describe(const ExecBackend *backend);

G_END_DECLS

#endif /* EXECUTOR_BACKEND_H */
