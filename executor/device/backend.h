/*
 * executor/device/backend.h - ExecBackendOps: what a device kind must do, as a table of named
 * slots.
 *
 * A backend computes on tensors in its own memory; it knows no layers, ranks or schedules.  layer.c
 * composes layers from these slots, so every backend trains the same model; backend_reference.c
 * (plain loops, sums in double) is the oracle of every other.  One ExecBackend belongs to one rank
 * (thread).
 *
 * Two number formats.  A backend is opened with a *storage* format, fp32 or bf16, that of
 * activations, their gradients and working weights: `void *` below, moved by exec_at().  Everything
 * that is summed over many ops is fp32 whatever the storage: gradients of weights, the optimizer's
 * state and master weights, statistics of rows, log-sum-exps: `float *`.  Sums inside a slot are
 * taken in fp32 or better; results are rounded once, to nearest even, NaN kept.
 *
 * Tensors are row-major; lengths are in elements unless named bytes.  Rows of activations are in
 * the order [token, sequence]: the rows of a token slice are then consecutive in a buffer of the
 * whole sequence, whatever the number of sequences.
 *
 * Compute slots return nothing and may return before the work is done: a device works in the order
 * of the calls and reports its errors in synchronize().  Nobody reads device memory but through
 * download().
 *
 * Opened by name: "reference", "cpu" (OpenBLAS, loaded on demand), "cuda" (a plugin opened on
 * demand; absent here means a sentence, not a crash).
 *
 * Errors: EXEC_ERROR; status codes of libraries never leave this folder.
 */
#ifndef EXECUTOR_DEVICE_BACKEND_H
#define EXECUTOR_DEVICE_BACKEND_H

#include "base/dtype.h"

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

G_BEGIN_DECLS

/* The domain of the executor's errors: one name, so that the plugins' errors are of it too. */
#define EXEC_ERROR g_quark_from_static_string("exec_error")

typedef enum {
    EXEC_ERROR_MISSING,     /* a library, plugin or device is not there: exit status 6 */
    EXEC_ERROR_MEMORY,      /* device or host memory: 5 */
    EXEC_ERROR_UNSUPPORTED, /* the plan asks what this executor cannot do: 1, before the first step
                             */
    EXEC_ERROR_DATA,        /* training data: 3 or 4 */
    EXEC_ERROR_RANK_DIED,   /* 7 */
    EXEC_ERROR_RANK_HUNG,   /* 8 */
    EXEC_ERROR_VERIFY,      /* gradients differ: 1 */
    EXEC_ERROR_IO,          /* a file cannot be written or read: 4 */
    EXEC_ERROR_INTERRUPTED, /* somebody asked the run to end: 9 */
    EXEC_ERROR_FAILED,
} ExecError;

/* Sets @error to @code with a message as of printf().  The value is false, for "return
 * EXEC_FAIL(...)". */
#define EXEC_FAIL(error, code, ...) (g_set_error(error, EXEC_ERROR, code, __VA_ARGS__), false)

typedef struct ExecBackend ExecBackend;

/*
 * C[m,n] = A[m,k] B[k,n] (+ C) (+ bias on every row) (+ residual).
 * trans_a: A is stored [k,m]; trans_b: B is stored [n,k].  lda, ldb, ldc are row strides as stored.
 *
 * The last three are what layers do right after a product.  A backend whose product does them too
 * says so in `fuses`; exec_gemm() runs the others as slots of their own.
 */
typedef struct {
    bool trans_a, trans_b;
    bool accumulate; /* add into C; not together with bias or residual */
    bool c_fp32;     /* C is fp32: a gradient of weights, or a router's scores; else storage */
    int64_t m, n, k;
    const void *a;
    int64_t lda;
    const void *b;
    int64_t ldb;
    void *c;
    int64_t ldc;
    const void *bias;       /* (nullable) [n] */
    const void *residual;   /* (nullable) [m, n] with row stride ldc; may not overlap C */
    void *gelu;             /* (nullable) [m, n]: becomes gelu(C); ldc == n */
    const void *gelu_input; /* (nullable) [m, n]: C is multiplied by gelu'(this); ldc == n */
    float *bias_gradient;   /* (nullable) [n]: column sums of B are added; not trans_b */
} ExecGemm;

/* Bits of ExecBackendOps.fuses. */
enum {
    EXEC_FUSES_GELU = 1,
    EXEC_FUSES_GELU_INPUT = 2,
    EXEC_FUSES_BIAS_GRADIENT = 4,
};

/*
 * LayerNorm: y = (x - mean) rstd gain + shift  [Ba et al. 1607.06450]; without shift and mean
 * RMSNorm: y = x rstd gain  [Zhang and Sennrich 1910.07467].  rstd = 1 / sqrt(variance or mean
 * square + EXEC_NORM_EPSILON).  Forward writes mean and rstd [rows], backward reads them.
 */
typedef struct {
    int64_t rows, cols;
    const void *x, *gain;
    const void *shift; /* NULL: RMSNorm */
    float *mean;       /* NULL: RMSNorm */
    float *rstd;
} ExecNorm;

/*
 * Rotary positions [Su et al. 2104.09864], halves convention: of every head, elements i and
 * i + head_dim / 2 are turned by the angle of column i.
 */
typedef struct {
    int64_t rows, sequences, n_heads, head_dim;
    int64_t stride; /* of x's rows */
    bool inverse;   /* backward */
    /* of the row's token: row r has position[r / sequences] */
    const int32_t *position;
    const float *turns; /* [position, head_dim]: head_dim / 2 cosines, then as many sines */
} ExecRope;

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
    const void *q; /* [tokens, sequences, n_heads * head_dim] */
    /* K and V of row t of sequence b: element (t * sequences + b) * kv_stride; context first. */
    const void *k, *v;
    int64_t kv_stride;
    void *out;  /* as q; forward writes, backward reads */
    float *lse; /* [tokens, sequences, n_heads] log of the softmax' sum; as out */
} ExecAttention;

typedef struct {
    const void *dout; /* as q */
    void *dq;         /* as q; overwritten */
    void *dk, *dv;    /* strides as k and v; accumulated into rows [0, context + tokens) */
} ExecAttentionGradients;

/* Rows of a table's part: tokens outside [first_token, first_token + n_tokens) give zeros. */
typedef struct {
    int64_t rows, sequences, cols;
    int64_t first_token, n_tokens;
    const int32_t *token;    /* [rows] */
    const int32_t *position; /* of the row's token: [rows / sequences] */
} ExecEmbedding;

/*
 * Softmax cross-entropy of every row over a vocabulary whose columns may be split over ranks: each
 * first computes its statistics, [3, rows] of fp32 (largest logit, sum of exp(logit - largest), the
 * target's logit or 0 if it is elsewhere); then, with those of all parts, the gradient.
 */
typedef struct {
    int64_t rows, vocab;   /* columns here; may be 0 */
    int64_t first;         /* vocabulary index of column 0 */
    const int32_t *target; /* [rows] vocabulary indices */
    float factor;          /* of the gradient */
    void *logits;          /* [rows, vocab]; become factor * (softmax - one_hot) */
    const float *stats;    /* [n_parts, 3, rows]; NULL: all columns are here */
    int64_t n_parts;
    double *loss; /* becomes the sum of the rows' losses, added in row order */
} ExecCrossEntropy;

/* A message between backends that share a device; meaningful to them only. */
typedef struct {
    void *memory, *ready;
} ExecParcel;

/* A point in a backend's queue; opaque. */
typedef struct ExecMark ExecMark;

/* Constants of one AdamW step [Loshchilov and Hutter 1711.05101]. */
typedef struct {
    float learning_rate, beta1, beta2, epsilon, weight_decay;
    int64_t step; /* >= 1, for the bias correction */
} ExecAdamw;

typedef struct {
    unsigned fuses; /* EXEC_FUSES_* */

    /* --- memory: 64-byte aligned, uninitialised; NULL with EXEC_ERROR_MEMORY naming @what --- */
    void *(*alloc)(ExecBackend *backend, size_t n_bytes, const char *what, GError **error);
    void (*release)(ExecBackend *backend, void *memory);
    /* From and to host memory.  Ordered with the compute slots.  upload may be called with host
     * memory that changes right afterwards; download's is there after synchronize(). */
    void (*upload)(ExecBackend *backend, size_t n_bytes, const void *host, void *device);
    void (*download)(ExecBackend *backend, size_t n_bytes, const void *device, void *host);
    /* Waits for all slots called so far; false with what went wrong in any of them. */
    bool (*synchronize)(ExecBackend *backend, GError **error);

    /* --- compute --- */
    void (*zero)(ExecBackend *backend, size_t n_bytes, void *x);
    void (*copy)(ExecBackend *backend, size_t n_bytes, const void *x, void *y);
    /* y = x between fp32 and storage */
    void (*to_storage)(ExecBackend *backend, int64_t n, const float *x, void *y);
    void (*from_storage)(ExecBackend *backend, int64_t n, const void *x, float *y);
    void (*add)(ExecBackend *backend, int64_t n, const void *x, void *y); /* y += x */
    void (*scale)(ExecBackend *backend, int64_t n, float factor, float *x);
    /* Without what `fuses` leaves out: call exec_gemm(). */
    void (*gemm)(ExecBackend *backend, const ExecGemm *gemm);
    /* db += column sums of dy, whose rows are @stride apart */
    void (*bias_backward)(ExecBackend *backend, int64_t rows, int64_t cols, const void *dy,
                          int64_t stride, float *db);
    void (*norm_forward)(ExecBackend *backend, const ExecNorm *norm, void *y);
    /* dx += ...; dgain, dshift += ... */
    void (*norm_backward)(ExecBackend *backend, const ExecNorm *norm, const void *dy, void *dx,
                          float *dgain, float *dshift);
    /* GELU, tanh form (GPT-2). */
    void (*gelu_forward)(ExecBackend *backend, int64_t n, const void *x, void *y);
    /* dy becomes dx in place */
    void (*gelu_backward)(ExecBackend *backend, int64_t n, const void *x, void *dy);
    /* SwiGLU [Shazeer 2002.05202]: x [rows, 2 width] holds gate and up columns,
     * y = gate / (1 + exp(-gate)) * up. */
    void (*swiglu_forward)(ExecBackend *backend, int64_t rows, int64_t width, const void *x,
                           void *y);
    void (*swiglu_backward)(ExecBackend *backend, int64_t rows, int64_t width, const void *x,
                            const void *dy, void *dx);
    void (*rope)(ExecBackend *backend, const ExecRope *rope, void *x); /* in place */
    void (*attention_forward)(ExecBackend *backend, const ExecAttention *attention);
    void (*attention_backward)(ExecBackend *backend, const ExecAttention *attention,
                               const ExecAttentionGradients *gradients);
    /* x[row] = table[token[row] - first_token] + positions[position of row] */
    void (*embedding_forward)(ExecBackend *backend, const ExecEmbedding *embedding,
                              const void *table, const void *positions, void *x);
    /* Adds in row order, so that equal tokens give equal bits every time.  @dpositions (nullable)
     */
    void (*embedding_backward)(ExecBackend *backend, const ExecEmbedding *embedding, const void *dx,
                               float *dtable, float *dpositions);
    void (*cross_entropy_stats)(ExecBackend *backend, const ExecCrossEntropy *entropy,
                                float *stats);
    void (*cross_entropy)(ExecBackend *backend, const ExecCrossEntropy *entropy);
    /* Updates @master, and writes it to @weights where the storage is not fp32 (then NULL). */
    void (*adamw)(ExecBackend *backend, int64_t n, float *master, void *weights, const float *grad,
                  float *m, float *v, const ExecAdamw *constants);

    /* (optional; NULL: values are downloaded) Sum of squares, in fp32 or better; waits for it. */
    bool (*sum_squares)(ExecBackend *backend, int64_t n, const float *x, double *sum,
                        GError **error);

    /* --- experts: (optional) all NULL: models with experts are refused on this device --- */
    /* The @top_k largest of every row's scores, the lower expert first of equal ones, and the
     * softmax over them. */
    void (*route)(ExecBackend *backend, int64_t rows, int64_t n_experts, int64_t top_k,
                  const float *scores, int32_t *expert, float *weight);
    /* d_scores [rows, n_experts], storage: w (dw - sum w dw) at the chosen, 0 elsewhere. */
    void (*route_backward)(ExecBackend *backend, int64_t rows, int64_t n_experts, int64_t top_k,
                           const int32_t *expert, const float *weight, const float *d_weight,
                           void *d_scores);
    /* y[i] = x[from[i]], rows of @row_bytes each. */
    void (*gather_rows)(ExecBackend *backend, int64_t rows, int64_t row_bytes, const int32_t *from,
                        const void *x, void *y);
    /* y[i] += x[from[i * n]] + ... + x[from[i * n + n - 1]], in this order. */
    void (*sum_rows)(ExecBackend *backend, int64_t rows, int64_t cols, int64_t n,
                     const int32_t *from, const void *x, void *y);
    void (*scale_rows)(ExecBackend *backend, int64_t rows, int64_t cols, const float *factor,
                       void *x);
    /* dot[i] = x[i] . y[i] */
    void (*dot_rows)(ExecBackend *backend, int64_t rows, int64_t cols, const void *x, const void *y,
                     float *dot);

    /* --- asynchronous devices (optional; NULL: work is done when a slot returns) --- */

    /* (optional) What the compute slots between them queue is given to the device at once, at the
     * end.  @key: equal for work of the same slots and shapes.  No other slots but alloc and
     * release in between. */
    void (*begin_graph)(ExecBackend *backend, int64_t key);
    void (*end_graph)(ExecBackend *backend);

    /* *ns becomes the time, on exec_now_ns()'s clock, at which all slots called so far were done;
     * it is there after the next synchronize(), until which @ns must stay. */
    void (*stamp)(ExecBackend *backend, int64_t *ns);
    /* A copy of @data for another backend of the same device in this process, who takes it by
     * fetch(), once, in the order of its own slots; neither waits on the host.  False on
     * EXEC_ERROR_MEMORY.  @add: DTYPE_N copies the parcel to @to, another type adds its elements,
     * bf16 sums rounded. */
    bool (*post)(ExecBackend *backend, const void *data, size_t n_bytes, ExecParcel *parcel,
                 GError **error);
    void (*fetch)(ExecBackend *backend, const ExecParcel *parcel, size_t n_bytes, Dtype add,
                  void *to);

    /* --- a queue beside that of the compute slots (optional; all NULL: there is none) --- */

    /* What upload, copy, post, fetch, stamp and a transport's collectives queue between the two
     * goes to a queue of its own, in order; it goes on when all that the compute slots have queued
     * by now is done.  *mark, NULL at first, comes to stand for its end, and is used again; the
     * caller's until forget(). */
    void (*begin_aside)(ExecBackend *backend);
    void (*end_aside)(ExecBackend *backend, ExecMark **mark);
    /* Compute slots called from now on wait for what the mark stands for; the host does not. */
    void (*join)(ExecBackend *backend, ExecMark *mark);
    /* The host does. */
    bool (*await)(ExecBackend *backend, ExecMark *mark, GError **error);
    void (*forget)(ExecBackend *backend, ExecMark *mark);
    /* Host memory that upload reads in its queue's order, so that it must not change before.  NULL:
     * there is none to be had. */
    void *(*alloc_host)(ExecBackend *backend, size_t n_bytes);
    void (*release_host)(ExecBackend *backend, void *memory);

    /* --- lifecycle --- */
    char *(*describe)(const ExecBackend *backend);
    /* (optional) Which of its attention kernels it uses: "mma"; NULL: it has one. */
    const char *(*attention_kernel)(const ExecBackend *backend);
    /* (optional) NULL: no scratch memory */
    int64_t (*workspace_bytes)(const ExecBackend *backend);
    void (*close)(ExecBackend *backend);
} ExecBackendOps;

/* In a table: the slots that every backend has functions of its own for, called as the slots. */
#define EXEC_OWN_SLOTS                                                                             \
    .add = add, .scale = scale, .gemm = gemm, .bias_backward = bias_backward,                      \
    .norm_forward = norm_forward, .norm_backward = norm_backward, .gelu_forward = gelu_forward,    \
    .gelu_backward = gelu_backward, .swiglu_forward = swiglu_forward,                              \
    .swiglu_backward = swiglu_backward, .attention_forward = attention_forward,                    \
    .attention_backward = attention_backward, .cross_entropy_stats = cross_entropy_stats,          \
    .cross_entropy = cross_entropy, .adamw = adamw

struct ExecBackend {
    const ExecBackendOps *ops;
    Dtype storage; /* DTYPE_FP32 or DTYPE_BF16 */
    void *state;   /* (owned by the backend) */
};

typedef struct {
    int device; /* its number, where there are several of its kind */
    Dtype storage;
    /* Ranks that share a GPU each compute on part @share of @n_shares of its multiprocessors; with
     * @n_shares 0 or 1 on all of them.  Backends in host memory ignore both. */
    int share, n_shares;
    /* The peak of this rank's memory that the simulator predicts, 0 if it is unknown.  Backends of
     * GPUs take that much when they are opened, and name it when memory runs out. */
    int64_t predicted_bytes;
    /* Threads that compute for this rank, on kinds that have threads; 0 is 1. */
    int n_threads;
} ExecBackendOptions;

/* A kind of device: one row of the table in backend.c, which says all that other parts of the
 * program have to know of it. */
typedef struct {
    const char *name;   /* as --device has it; NULL: there is no such kind */
    const char *plugin; /* (nullable) computes on it (plugin.h); NULL: @open does */
    /* Opens a backend that stores fp32 in host memory. */
    ExecBackend *(*open)(const ExecBackendOptions *options, GError **error);
    bool is_gpu;      /* has memory of its own, and every process takes another device */
    bool has_graphs;  /* can launch the work of a whole op at once */
    bool has_nccl;    /* NCCL carries its tensors */
    bool has_threads; /* several threads may compute for one rank */
} ExecDeviceKind;

/* Returns: (borrowed) the row of @name; for an unknown name one whose name is NULL and whose flags
 * are all false. */
const ExecDeviceKind *exec_device_kind(const char *name);

/* Returns: (borrowed) the names of all kinds, the usual one first, and NULL. */
const char *const *exec_device_names(void);

/*
 * Opens a device of the kind @name.  NULL, with a sentence, on EXEC_ERROR_MISSING (a library,
 * plugin or device is not there) or EXEC_ERROR_UNSUPPORTED (no such kind, or no such storage on
 * it).
 */
ExecBackend *exec_backend_open_with(const char *name, const ExecBackendOptions *options,
                                    GError **error);

/* How many devices of the kind this machine has; 1 for kinds in host memory.  -1 on
 * EXEC_ERROR_MISSING. */
int32_t exec_backend_n_devices(const char *name, GError **error);

/* What a GPU and its software say about themselves; 0 or an empty text where they do not say. */
typedef struct {
    char name[128];       /* "NVIDIA H200" */
    char driver_name[64]; /* "570.86.10" */
    int driver, runtime;  /* CUDA versions, 12040 is 12.4 */
    int64_t blas;         /* cuBLASLt's version, 130000 is 13.0.0 */
    int capability;       /* 90 is 9.0 */
    int n_devices;        /* on this machine */
    int n_multiprocessors;
    int64_t memory_bytes, l2_bytes;
    double clock_hz, memory_clock_hz; /* the highest */
    int memory_bus_bits;
    double clock_now_hz, memory_clock_now_hz; /* at the call, by the driver's management library */
} ExecDeviceInfo;

/* Asks device number @device of a kind that is_gpu.  False on EXEC_ERROR_MISSING. */
bool exec_device_info(const char *name, int device, ExecDeviceInfo *info, GError **error);

/* A whole device. */
ExecBackend *exec_backend_open(const char *name, int device, Dtype storage, GError **error);
void exec_backend_close(ExecBackend *backend);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecBackend, exec_backend_close)

/* Bytes of @n elements in storage, and the address @n elements on. */
static inline int64_t
exec_storage_bytes(const ExecBackend *backend, int64_t n)
{
    return n * dtype_bytes(backend->storage);
}

static inline void *
exec_at(const ExecBackend *backend, const void *x, int64_t n)
{
    return (char *)(uintptr_t)x + exec_storage_bytes(backend, n);
}

/* The product and all that follows it; see ExecGemm. */
void exec_gemm(ExecBackend *backend, const ExecGemm *gemm);

/* Sum of squares of @n values in the backend's memory: there when this returns. */
bool exec_sum_squares(ExecBackend *backend, int64_t n, const float *x, double *sum, GError **error);

/* Returns: (owned) what computes, for reports: "OpenBLAS 0.3.21 SkylakeX, 1 thread per rank". */
char *exec_backend_describe(const ExecBackend *backend);

/* Returns: (nullable) which of several attention kernels it uses, by the name that chooses it. */
const char *exec_backend_attention_kernel(const ExecBackend *backend);

/* stamp(), or now where work is done at once. */
void exec_backend_stamp(ExecBackend *backend, int64_t *ns);

/* Bytes of scratch memory the backend holds for itself (attention's score blocks). */
int64_t exec_backend_workspace_bytes(const ExecBackend *backend);

/* Constant of every norm (GPT-2, Llama 2). */
#define EXEC_NORM_EPSILON 1e-5f

G_END_DECLS

#endif /* EXECUTOR_DEVICE_BACKEND_H */
