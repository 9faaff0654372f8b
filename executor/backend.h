/*
 * executor/backend.h - ExecBackendOps: what a device kind must do, as a table of named slots.
 *
 * A backend computes on tensors in its own memory; it knows no layers, ranks or schedules.  layer.c
 * composes layers from these slots, so every backend trains the same model; backend_reference.c
 * (plain loops, sums in double) is the oracle of every other.  One ExecBackend belongs to one rank
 * (thread).
 *
 * Tensors are fp32, row-major; lengths are in elements.  Rows of activations are in the order
 * [token, sequence]: the rows of a token slice are then consecutive in a buffer of the whole
 * sequence, whatever the number of sequences.
 *
 * Compute slots return nothing: a device that works asynchronously reports its errors in
 * synchronize(), which runs before a result leaves the backend's memory.
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
 * C[m,n] = A[m,k] B[k,n] (+ C) (+ bias on every row) (+ residual).
 * trans_a: A is stored [k,m]; trans_b: B is stored [n,k].  lda, ldb, ldc are row strides as stored.
 */
typedef struct {
    bool trans_a, trans_b;
    bool accumulate; /* add into C; not together with bias or residual */
    int64_t m, n, k;
    const float *a;
    int64_t lda;
    const float *b;
    int64_t ldb;
    float *c;
    int64_t ldc;
    const float *bias;     /* (nullable) [n] */
    const float *residual; /* (nullable) [m, n] with row stride ldc; may not overlap C */
} ExecGemm;

/*
 * Causal attention of a slice of tokens against its context, all sequences and heads at once.
 * Row i of the slice sees the keys of rows [0, context + i].  Head h reads K and V head
 * h / (n_heads / n_kv_heads).  Scores are not kept: backward recomputes them from @lse
 * [Dao et al. 2205.14135], so memory does not grow with the context.
 */
typedef struct {
    int64_t sequences, n_heads, n_kv_heads, head_dim;
    int64_t tokens, context;
    float scale;
    const float *q; /* [tokens, sequences, n_heads * head_dim] */
    /* K and V of row t of sequence b: k + (t * sequences + b) * kv_stride; context rows first. */
    const float *k, *v;
    int64_t kv_stride;
    float *out; /* as q; forward writes, backward reads */
    float *lse; /* [tokens, sequences, n_heads] log of the softmax' sum; as out */
} ExecAttention;

typedef struct {
    const float *dout; /* as q */
    float *dq;         /* as q; overwritten */
    float *dk, *dv;    /* strides as k and v; accumulated into rows [0, context + tokens) */
} ExecAttentionGradients;

/* Constants of one AdamW step [Loshchilov and Hutter 1711.05101]. */
typedef struct {
    float learning_rate, beta1, beta2, epsilon, weight_decay;
    int64_t step; /* >= 1, for the bias correction */
} ExecAdamw;

typedef struct {
    const char *name;

    /* --- memory: 64-byte aligned, uninitialised; NULL with EXEC_ERROR_MEMORY naming @what --- */
    void *(*alloc)(ExecBackend *backend, size_t n_bytes, const char *what, GError **error);
    void (*release)(ExecBackend *backend, void *memory);
    /* From and to host memory.  Ordered with the compute slots. */
    void (*upload)(ExecBackend *backend, size_t n_bytes, const void *host, void *device);
    void (*download)(ExecBackend *backend, size_t n_bytes, const void *device, void *host);
    /* Waits for all slots called so far; false with what went wrong in any of them. */
    bool (*synchronize)(ExecBackend *backend, GError **error);

    /* --- compute --- */
    void (*zero)(ExecBackend *backend, int64_t n, float *x);
    void (*copy)(ExecBackend *backend, int64_t n, const float *x, float *y);
    void (*add)(ExecBackend *backend, int64_t n, const float *x, float *y); /* y += x */
    void (*scale)(ExecBackend *backend, int64_t n, float factor, float *x);
    void (*gemm)(ExecBackend *backend, const ExecGemm *gemm);
    /* db += column sums of dy, whose rows are @stride apart */
    void (*bias_backward)(ExecBackend *backend, int64_t rows, int64_t cols, const float *dy,
                          int64_t stride, float *db);
    /* LayerNorm: y = (x - mean) * rstd * gain + shift, epsilon 1e-5; mean and rstd [rows] are kept.
     */
    void (*layernorm_forward)(ExecBackend *backend, int64_t rows, int64_t cols, const float *x,
                              const float *gain, const float *shift, float *y, float *mean,
                              float *rstd);
    /* dx += ...; dgain, dshift += ... */
    void (*layernorm_backward)(ExecBackend *backend, int64_t rows, int64_t cols, const float *x,
                               const float *gain, const float *mean, const float *rstd,
                               const float *dy, float *dx, float *dgain, float *dshift);
    /* GELU, tanh form (GPT-2). */
    void (*gelu_forward)(ExecBackend *backend, int64_t n, const float *x, float *y);
    /* dy becomes dx in place */
    void (*gelu_backward)(ExecBackend *backend, int64_t n, const float *x, float *dy);
    void (*attention_forward)(ExecBackend *backend, const ExecAttention *attention);
    void (*attention_backward)(ExecBackend *backend, const ExecAttention *attention,
                               const ExecAttentionGradients *gradients);
    /* x[row] = table[token[row]] + positions[first_position + row / sequences] */
    void (*embedding_forward)(ExecBackend *backend, int64_t rows, int64_t sequences,
                              int64_t first_position, int64_t cols, const int32_t *token,
                              const float *table, const float *positions, float *x);
    /* Adds in row order, so that equal tokens give equal bits every time. */
    void (*embedding_backward)(ExecBackend *backend, int64_t rows, int64_t sequences,
                               int64_t first_position, int64_t cols, const int32_t *token,
                               const float *dx, float *dtable, float *dpositions);
    /* Softmax cross-entropy of every row; logits are replaced by factor * (softmax - one_hot):
     * their gradient.  Returns the sum of the rows' losses, added in row order. */
    double (*cross_entropy)(ExecBackend *backend, int64_t rows, int64_t vocab,
                            const int32_t *target, float factor, float *logits);
    void (*adamw)(ExecBackend *backend, int64_t n, float *param, const float *grad, float *m,
                  float *v, const ExecAdamw *constants);

    /* --- lifecycle --- */
    char *(*describe)(const ExecBackend *backend);
    /* (optional) NULL: no scratch memory */
    int64_t (*workspace_bytes)(const ExecBackend *backend);
    void (*close)(ExecBackend *backend);
} ExecBackendOps;

struct ExecBackend {
    const ExecBackendOps *ops;
    void *state; /* (owned by the backend) */
};

/* @name "reference", "cpu" or "cuda"; @device number for cuda.  NULL on EXEC_ERROR_MISSING (or
 * EXEC_ERROR_UNSUPPORTED: no such name): one sentence. */
ExecBackend *exec_backend_open(const char *name, int device, GError **error);
void exec_backend_close(ExecBackend *backend);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecBackend, exec_backend_close)

/* Returns: (owned) what computes, for reports: "OpenBLAS 0.3.21 SkylakeX, 1 thread per rank". */
char *exec_backend_describe(const ExecBackend *backend);

/* Bytes of scratch memory the backend holds for itself (attention's score blocks). */
int64_t exec_backend_workspace_bytes(const ExecBackend *backend);

/* Constant of every LayerNorm (GPT-2). */
#define EXEC_LAYERNORM_EPSILON 1e-5f

G_END_DECLS

#endif /* EXECUTOR_BACKEND_H */
