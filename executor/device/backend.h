/*
 * executor/device/backend.h - the contract of a device: what every backend can do, as a table of
 * named slots (ExecBackendOps), and how a backend is opened.
 *
 * This room, executor/device/, is what computes: the contract, the plain loops that are the oracle
 * of all backends (backend_reference.c), CPUs (backend_cpu.c), bf16 in host memory
 * (backend_bf16.c), and what everything above needs of a machine: clocks, cores, plugins, memory
 * pools.  All rooms of executor/ may come in; the room itself knows no layers, ranks or schedules.
 * layer.c composes layers from these slots, so every backend trains the same model.  One
 * ExecBackend belongs to one rank (thread).
 *
 * Two number formats.  A backend is opened with a *storage* format, fp32 or bf16: that of
 * activations, their gradients and the weights that layers read.  Such memory is `void *` below,
 * and exec_at() computes addresses in it.  Everything that is summed over many ops is fp32 whatever
 * the storage, and `float *` below: gradients of weights, the optimizer's state and master weights,
 * statistics of rows, log-sum-exps.  Sums inside a slot are taken in fp32 or better; results are
 * rounded once, to nearest even, and NaN stays NaN.
 *
 * Tensors are row-major; lengths are in elements unless their name says bytes.  Rows of activations
 * are in the order [token, sequence]: the rows of a slice of tokens are then consecutive in a
 * buffer of whole sequences, however many sequences there are.
 *
 * Compute slots return nothing and may return before the work is done.  A device works in the order
 * of the calls and reports its errors in synchronize().  The host reads device memory only through
 * download().
 *
 * Errors: EXEC_ERROR; status codes of libraries never leave their backend.
 */
#pragma once

#include "base/dtype.h"
#include "executor/device/indexer.h"
#include "executor/device/recurrence.h"

#include <glib.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The domain of the executor's errors: one name, so that the plugins' errors are of it too. */
#define EXEC_ERROR g_quark_from_static_string("exec_error")

typedef enum {
    EXEC_ERROR_MISSING,     /* a library, plugin or device is not there: exit status 6 */
    EXEC_ERROR_MEMORY,      /* there is not enough device or host memory: 5 */
    EXEC_ERROR_UNSUPPORTED, /* the plan needs what this executor cannot do; told before step 1: 1 */
    EXEC_ERROR_DATA,        /* the training data cannot be read or are not valid: 3 or 4 */
    EXEC_ERROR_RANK_DIED,   /* a rank has ended before its work: 7 */
    EXEC_ERROR_RANK_HUNG,   /* a rank makes no progress: 8 */
    EXEC_ERROR_VERIFY,      /* gradients differ from those of one device: 1 */
    EXEC_ERROR_IO,          /* a file cannot be written or read: 4 */
    EXEC_ERROR_INTERRUPTED, /* somebody asked the run to end: 9 */
    EXEC_ERROR_FAILED,      /* anything else */
} ExecError;

/* Sets @error to @code with a message as of printf().  The value, for "return EXEC_FAIL(...)", is
 * false or NULL. */
#define EXEC_FAIL(error, code, ...) (g_set_error(error, EXEC_ERROR, code, __VA_ARGS__), false)
#define EXEC_FAIL_NULL(error, code, ...) (g_set_error(error, EXEC_ERROR, code, __VA_ARGS__), NULL)

typedef struct ExecBackend ExecBackend;

/*
 * A matrix product: C[m,n] = A[m,k] B[k,n] (+ C) (+ bias on every row) (+ residual).
 * With trans_a, A is stored [k,m]; with trans_b, B is stored [n,k].  lda, ldb and ldc are the row
 * strides of the matrices as they are stored.
 *
 * The last three members are what layers do right after a product.  A backend whose product does
 * them in the same pass says so in `fuses`; exec_gemm() does the others by slots of their own.
 */
typedef struct {
    bool trans_a, trans_b;
    bool accumulate; /* the product is added to C; not together with bias or residual */
    bool c_fp32;     /* C is fp32 (gradients of weights, scores of a router); else it is storage */
    int64_t m, n, k;
    const void *a;
    int64_t lda;
    const void *b;
    int64_t ldb;
    void *c;
    int64_t ldc;
    const void *bias;       /* (nullable) [n] */
    const void *residual;   /* (nullable) [m, n] with row stride ldc; may not overlap C */
    void *gelu;             /* (nullable) [m, n]: gelu(C) is written here; needs ldc == n */
    const void *gelu_input; /* (nullable) [m, n]: C is multiplied by gelu'(this); needs ldc == n */
    float *bias_gradient;   /* (nullable) [n]: B's column sums are added; needs !trans_b */
} ExecGemm;

/* Bits of ExecBackendOps.fuses: members of ExecGemm that the backend's gemm slot honours. */
enum {
    EXEC_FUSES_GELU = 1,
    EXEC_FUSES_GELU_INPUT = 2,
    EXEC_FUSES_BIAS_GRADIENT = 4,
};

/*
 * LayerNorm, y = (x - mean) rstd gain + shift  [Ba et al. 1607.06450], or, with mean NULL, RMSNorm, y = x rstd gain  [Zhang and Sennrich 1910.07467].  rstd is 1 / sqrt(variance +
 * epsilon), of RMSNorm the mean square in place of the variance.  The forward slot writes
 * mean and rstd, [rows] each; the backward slot reads them.
 */
typedef struct {
    int64_t rows, cols;
    const void *x;
    const void *gain;  /* nullable where slots of unusual layers are there; NULL: 1 */
    const void *shift; /* NULL: 0 */
    float *mean;       /* NULL: RMSNorm */
    float *rstd;
    float epsilon;
} ExecNorm;

/* What an MLP does to the result u of its first product.  Those up to RELUGLU are gated: u [rows, 2
 * width] holds gate and up columns, and the result is f(gate) up  [Shazeer 2002.05202]. */
typedef enum {
    EXEC_ACTIVATION_SWIGLU,
    EXEC_ACTIVATION_GEGLU,
    EXEC_ACTIVATION_RELUGLU,
    EXEC_ACTIVATION_GELU,  /* tanh form (GPT-2), as in GEGLU */
    EXEC_ACTIVATION_RELU2, /* max(u, 0)^2  [So et al. 2109.08668] */
    EXEC_ACTIVATION_RELU,
    EXEC_ACTIVATION_SILU,
} ExecActivation;

static inline bool
exec_activation_is_gated(ExecActivation activation)
{
    return activation <= EXEC_ACTIVATION_RELUGLU;
}

/* Rotary positions [Su et al. 2104.09864], in the convention of halves: elements i and i + head_dim
 * / 2 of every head are a pair that is turned by the i-th angle of the row's position. */
typedef struct {
    int64_t rows, sequences, n_heads, head_dim;
    int64_t stride;          /* elements between rows of x */
    bool inverse;            /* turn back: the gradient */
    const int32_t *position; /* [rows / sequences]: row r has position[r / sequences] */
    const float *turns;      /* [position, n]: n / 2 cosines, then as many sines */
    /* n, the elements of a head, its first, that are turned: pairs are i and i + n / 2; 0: all head_dim. */
    int64_t rotary_dim;
} ExecRope;

static inline int64_t
exec_rotary_dim(const ExecRope *rope)
{
    return rope->rotary_dim > 0 ? rope->rotary_dim : rope->head_dim;
}

/*
 * Causal attention of a slice of tokens against its context, for all sequences and heads at once.
 * Row i of the slice sees the keys of rows [0, context + i].  Head h reads head
 * h / (n_heads / n_kv_heads) of K and V.  Scores are not kept: the backward slot computes them
 * again from @lse [Dao et al. 2205.14135], so memory does not grow with the context.
 *
 * The score of key j for query i is s = scale q . k, or cap tanh(s / cap) [Gemma 2 2408.00118],
 * plus slope (j - i) with the head's slope [ALiBi, Press et al. 2108.12409].  A window, or a chunk, bounds the keys, the
 * work and what is read of K and V.  A sink is a score of the head's own that takes part in the
 * softmax and has no value [gpt-oss 2508.10925].  Without the members that say so (zeros), none of
 * these is there.
 */
typedef struct {
    int64_t sequences, n_heads, n_kv_heads, head_dim;
    int64_t tokens, context;
    float scale;
    const void *q; /* [tokens, sequences, n_heads * head_dim] */
    /* K and V of token t of sequence b begin at element (t * sequences + b) * kv_stride; t counts
     * from the beginning of the context. */
    const void *k, *v;
    int64_t kv_stride;
    void *out;      /* [tokens, sequences, n_heads * v_dim]; written forward, read backward */
    float *lse;     /* [tokens, sequences, n_heads]: the log of the softmax' sum; used like out */
    int64_t v_dim;  /* elements of a head of V and of the result; 0: head_dim */
    int64_t window; /* a row sees so many keys, its own the last; 0: all */
    int64_t chunk;  /* a row sees the keys of its own chunk of so many tokens; 0: all */
    float cap;      /* 0: none */
    /* Heads of all ranks, of which these begin with number @first_head, where scores have slopes; 0:
     * they have none. */
    int64_t alibi_heads, first_head;
    const void *sink; /* (nullable) [n_heads], of the storage */
    /* (nullable) [tokens, sequences, n_chosen] The keys that a row sees of those that it might, in ascending
     * order, then -1: indexer.h. */
    const int32_t *chosen;
    int64_t n_chosen;
} ExecAttention;

/* Walks over the keys of a row that its indexer has not chosen: calls for every key, from the first that the row
 * might see on.  @next  0 at first; where in @chosen (NULL: all are) the next one is */
static inline bool
exec_attention_is_hidden(const int32_t *chosen, int64_t n_chosen, int64_t key, int64_t *next)
{
    if (chosen == NULL)
        return false;
    if (*next < n_chosen && chosen[*next] == key) {
        ++*next;
        return false;
    }
    return true;
}

/* The chosen keys of row @row of sequence @sequence; NULL: there are all. */
static inline const int32_t *
exec_attention_chosen(const ExecAttention *attention, int64_t row, int64_t sequence)
{
    return attention->chosen == NULL
               ? NULL
               : attention->chosen + (row * attention->sequences + sequence) * attention->n_chosen;
}

/* The slope of head @head of those here: powers of 2^(-8 / n) where n, the number of all heads, is a
 * power of two; of others those of the next smaller one, and then every second one of twice as many
 * [Press et al. 2108.12409, and their code].  0 where there are none. */
static inline double
exec_attention_slope(const ExecAttention *attention, int64_t head)
{
    const int64_t number = attention->first_head + head;
    int64_t n = 1;

    if (attention->alibi_heads == 0)
        return 0.0;
    while (2 * n <= attention->alibi_heads)
        n *= 2;
    return number < n ? pow(2.0, -8.0 * (double)(number + 1) / (double)n)
                      : pow(2.0, -4.0 * (double)(2 * (number - n) + 1) / (double)n);
}

static inline int64_t
exec_attention_v_dim(const ExecAttention *attention)
{
    return attention->v_dim > 0 ? attention->v_dim : attention->head_dim;
}

/* The first key that row @row of the slice sees; its last one is context + row. */
static inline int64_t
exec_attention_first_key(const ExecAttention *attention, int64_t row)
{
    const int64_t own = attention->context + row;
    int64_t first = 0;

    if (attention->window > 0)
        first = MAX(first, own - attention->window + 1);
    if (attention->chunk > 0)
        first = MAX(first, own - own % attention->chunk);
    return first;
}

/* Whether it is attention with all keys, whose heads of queries and values have one size: what
 * tensor cores have kernels for. */
static inline bool
exec_attention_is_plain(const ExecAttention *attention)
{
    return exec_attention_v_dim(attention) == attention->head_dim && attention->window == 0 &&
           attention->chunk == 0 && attention->cap == 0.0f && attention->alibi_heads == 0 &&
           attention->sink == NULL && attention->chosen == NULL;
}

typedef struct {
    const void *dout; /* shape of out */
    void *dq;         /* shape of q; overwritten */
    /* Strides of k and v, rows [0, context + tokens).  Of the storage and overwritten; or, with @sums, fp32 that is added
     * to: slices of a sequence add to the gradients of their context. */
    void *dk, *dv;
    bool sums;
    float *dsink; /* (nullable) [n_heads]; added to */
} ExecAttentionGradients;

/*
 * Norms of groups of columns, of queries, keys and latents: of @cols elements each, RMSNorm or,
 * with @centred, LayerNorm.  What a group has of its norm may be on several ranks,
 * so each way is two slots: sums of what is here, which the caller adds up over the ranks, and the
 * rest.  Variances are mean squares less squares of means.
 */
typedef struct {
    int64_t rows, groups, cols;
    int64_t n; /* elements that a group has on all ranks together */
    bool centred;
    float epsilon;
    const void *x;
    int64_t x_stride;  /* elements between rows of x; groups of a row lie together */
    const void *gain;  /* (nullable) of the storage; NULL: 1 */
    const void *shift; /* (nullable) likewise; NULL: 0 */
    int64_t gain_step; /* elements between the gains, or shifts, of two groups: 0 or @cols */
    float *sums;       /* [1 or, centred, 2][rows, groups]: of squares; of elements */
} ExecGroupNorm;

static inline int64_t
exec_group_norm_n_sums(const ExecGroupNorm *norm)
{
    return (norm->centred ? 2 : 1) * norm->rows * norm->groups;
}

/* Blocks of columns: element c of block b of row r is at r stride + b step + c. */
typedef struct {
    int64_t rows, blocks, cols;
    int64_t from_stride, from_step;
    int64_t to_stride, to_step;
} ExecBlocks;

/* The product with a sigmoid: y = x / (1 + exp(-gate)), of rows of @cols elements; @gate has as
 * many, or with @per_row one. */
typedef struct {
    int64_t rows, cols;
    bool per_row;
    const void *x, *gate;
} ExecGate;

/* Look-ups in the part of an embedding table that is here.  Tokens outside [first_token,
 * first_token + n_tokens) give zeros, and get no gradient here. */
typedef struct {
    int64_t rows, sequences, cols;
    int64_t first_token, n_tokens;
    const int32_t *token;    /* [rows] */
    const int32_t *position; /* [rows / sequences]: row r has position[r / sequences] */
    float scale;             /* of the rows of the table, not of positions */
} ExecEmbedding;

/*
 * Softmax cross-entropy of every row, over a vocabulary whose columns may be split over ranks. With
 * a split vocabulary every rank first computes statistics of its columns, [3, rows] of fp32: the
 * largest logit, the sum of exp(logit - largest), and the target's logit or 0 if another rank has
 * it.  Then, with the statistics of all ranks, it computes the gradient.
 */
typedef struct {
    int64_t rows, vocab;   /* @vocab columns are here; may be 0 */
    int64_t stride;        /* >= @vocab: columns in memory; those from @vocab on are padding */
    int64_t first;         /* vocabulary index of column 0 */
    const int32_t *target; /* [rows] vocabulary indices */
    float factor;          /* that gradients are multiplied by */
    /* [rows, stride]; become factor * (softmax - one_hot).  Padding is not read and becomes 0. */
    void *logits;
    const float *stats; /* [n_parts, 3, rows], of all ranks; NULL: all columns are here */
    int64_t n_parts;
    double *loss; /* becomes the sum of the rows' losses, added in the order of rows */
} ExecCrossEntropy;

/* How the scores of the chosen experts become the factors of their outputs. */
typedef enum {
    EXEC_ROUTER_SOFTMAX,     /* the softmax over the chosen */
    EXEC_ROUTER_SOFTMAX_ALL, /* the softmax over all */
    EXEC_ROUTER_SIGMOID,     /* sigmoids over the chosen ones' sum */
} ExecRouterScores;

typedef struct {
    int64_t rows, n_experts, top_k;
    ExecRouterScores kind;
    float scale;           /* of all factors */
    const float *scores;   /* [rows, n_experts] */
    const int32_t *expert; /* [rows, top_k] the chosen ones: ops->route */
    float *weight;         /* [rows, top_k] */
} ExecRoute;

/* A message between backends that share a device.  Only these backends know what is in it. */
typedef struct {
    void *memory, *ready;
} ExecParcel;

/* A point in a backend's queue of work.  Opaque. */
typedef struct ExecMark ExecMark;

/* Into so many sums a backend may divide a sum over all elements. */
#define EXEC_PARTIAL_SUMS 512

/* How a gradient is clipped by its norm; in the backend's memory. */
typedef struct {
    double squares[EXEC_PARTIAL_SUMS]; /* together the sum of the squares of its elements */
    float factor;                      /* that it is multiplied by */
} ExecClip;

/* The constants of one AdamW step [Loshchilov and Hutter 1711.05101]. */
typedef struct {
    float learning_rate, beta1, beta2, epsilon, weight_decay;
    int64_t step;        /* the number of the step, from 1, for the bias correction */
    const float *factor; /* (nullable) in the backend's memory; the gradient is multiplied by it */
} ExecAdamw;

/* Elements that one AdamW step updates, each array of @n. */
typedef struct {
    int64_t n;
    float *master; /* becomes the new weights */
    void *weights; /* (nullable) becomes @master, rounded; NULL where the storage is fp32 */
    float *grad;   /* becomes 0 */
    float *m, *v;  /* both moments */
    bool decays;   /* by the constants' weight_decay */
} ExecAdamwPart;

typedef struct {
    unsigned fuses; /* EXEC_FUSES_* */

    /* --- memory --- */

    /* Returns memory that is aligned to 64 bytes and not initialised; NULL with EXEC_ERROR_MEMORY,
     * whose message names @what. */
    void *(*alloc)(ExecBackend *backend, size_t n_bytes, const char *what, GError **error);
    void (*release)(ExecBackend *backend, void *memory);
    /* Copies from and to host memory, in the order of the compute slots.  The host may change what
     * it uploads right after the call; what it downloads is there after synchronize(). */
    void (*upload)(ExecBackend *backend, size_t n_bytes, const void *host, void *device);
    void (*download)(ExecBackend *backend, size_t n_bytes, const void *device, void *host);
    /* Waits until the work of all slots called so far is done; false with the first failure in any
     * of them. */
    bool (*synchronize)(ExecBackend *backend, GError **error);

    /* --- compute --- */
    void (*zero)(ExecBackend *backend, size_t n_bytes, void *x);
    void (*copy)(ExecBackend *backend, size_t n_bytes, const void *x, void *y);
    /* y = x, from fp32 to storage and back */
    void (*to_storage)(ExecBackend *backend, int64_t n, const float *x, void *y);
    void (*from_storage)(ExecBackend *backend, int64_t n, const void *x, float *y);
    void (*add)(ExecBackend *backend, int64_t n, const void *x, void *y); /* y += x */
    /* The product, without the members of ExecGemm that `fuses` leaves out.  Call exec_gemm(). */
    void (*gemm)(ExecBackend *backend, const ExecGemm *gemm);
    /* db += column sums of dy, whose rows are @stride apart */
    void (*bias_backward)(ExecBackend *backend, int64_t rows, int64_t cols, const void *dy,
                          int64_t stride, float *db);
    void (*norm_forward)(ExecBackend *backend, const ExecNorm *norm, void *y);
    /* dx += ...; dgain, dshift (nullable, as gain and shift are) += ... */
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
    /* x[row] = scale table[token[row] - first_token] + positions[position of row] */
    void (*embedding_forward)(ExecBackend *backend, const ExecEmbedding *embedding,
                              const void *table, const void *positions, void *x);
    /* Adds in the order of rows, so that the bits are the same every time.  @dpositions is
     * nullable. */
    void (*embedding_backward)(ExecBackend *backend, const ExecEmbedding *embedding, const void *dx,
                               float *dtable, float *dpositions);
    void (*cross_entropy_stats)(ExecBackend *backend, const ExecCrossEntropy *entropy,
                                float *stats);
    void (*cross_entropy)(ExecBackend *backend, const ExecCrossEntropy *entropy);

    /* --- of heads and latents --- */

    /* sums become those of x. */
    void (*group_norm_sums)(ExecBackend *backend, const ExecGroupNorm *norm);
    /* y, @y_stride elements between rows; may be x where the strides are the same. */
    void (*group_norm_forward)(ExecBackend *backend, const ExecGroupNorm *norm, void *y,
                               int64_t y_stride);
    /* @d_sums, of the shape of sums, become those of g z and, centred, g: g = dy gain, z the
     * normed x. */
    void (*group_norm_backward_sums)(ExecBackend *backend, const ExecGroupNorm *norm,
                                     const void *dy, int64_t dy_stride, float *d_sums);
    /* @d becomes the gradient of x, which was that of y; @d_sums those of all ranks; @dgain and
     * @dshift (nullable) += */
    void (*group_norm_backward)(ExecBackend *backend, const ExecGroupNorm *norm,
                                const float *d_sums, void *d, int64_t d_stride, float *dgain,
                                float *dshift);
    /* y's blocks become x's.  With from_step 0 every block is a copy of one. */
    void (*copy_blocks)(ExecBackend *backend, const ExecBlocks *blocks, const void *x, void *y);
    /* y's first block becomes the sum of x's. */
    void (*sum_blocks)(ExecBackend *backend, const ExecBlocks *blocks, const void *x, void *y);
    void (*gate_forward)(ExecBackend *backend, const ExecGate *gate, void *y);
    /* @d becomes the gradient of x, which was that of y. */
    void (*gate_backward)(ExecBackend *backend, const ExecGate *gate, void *d, void *dgate);

    /* --- of sparse attention (optional; all NULL: it is refused on this device): indexer.h --- */

    /* indexer->chosen becomes the keys of each row of @attention, whose windows and chunks bound the choice. */
    void (*index_choose)(ExecBackend *backend, const ExecAttention *attention,
                         const ExecIndexer *indexer);
    /* @share, [tokens, sequences, n_chosen], becomes of each chosen key the sum of the probabilities of this
     * rank's heads; attention->lse is read. */
    void (*attention_shares)(ExecBackend *backend, const ExecAttention *attention, float *share);
    void (*index_backward)(ExecBackend *backend, const ExecAttention *attention,
                           const ExecIndexer *indexer, const ExecIndexerGradients *gradients);

    /* --- the end of a step --- */

    /* Adds the squares of x to clip->squares, in double: which square to which of the sums is a
     * matter of the backend. */
    void (*sum_squares)(ExecBackend *backend, int64_t n, const float *x, ExecClip *clip);
    /* clip->squares[0] becomes the sum of the first @n of them, and clip->factor what makes the
     * norm of a gradient with this sum of squares @limit, or 1 if it is no longer than that. */
    void (*clip)(ExecBackend *backend, int64_t n, double limit, ExecClip *clip);
    /* Steps each of @parts, which do not overlap.  All come in one call, because a device takes longer
     * to launch a kernel than to step a small tensor. */
    void (*adamw)(ExecBackend *backend, int64_t n_parts, const ExecAdamwPart *parts,
                  const ExecAdamw *constants);

    /* --- experts (optional; all NULL: models with experts are refused on this device) --- */

    /* Chooses the experts with the @top_k largest scores of every row, of equal ones the one with
     * the lower number, and computes the softmax of their scores. */
    void (*route)(ExecBackend *backend, int64_t rows, int64_t n_experts, int64_t top_k,
                  const float *scores, int32_t *expert, float *weight);
    /* d_scores, [rows, n_experts] of storage, becomes w (dw - sum w dw) at the chosen experts and 0
     * elsewhere. */
    void (*route_backward)(ExecBackend *backend, int64_t rows, int64_t n_experts, int64_t top_k,
                           const int32_t *expert, const float *weight, const float *d_weight,
                           void *d_scores);
    /* y[i] = x[from[i]], for rows of @row_bytes each */
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

    /* --- of unusual layers (optional; all NULL: models that need them are refused on this device;
     * defined in backend_host_layers.c) --- */

    /* y [rows, width] = activation(x). */
    void (*activate)(ExecBackend *backend, ExecActivation activation, int64_t rows, int64_t width,
                     const void *x, void *y);
    /* dx, of x's shape; may be dy where the activation is not gated. */
    void (*activate_backward)(ExecBackend *backend, ExecActivation activation, int64_t rows,
                              int64_t width, const void *x, const void *dy, void *dx);
    void (*scale)(ExecBackend *backend, int64_t n, float factor, void *x); /* x *= factor */
    void (*cap)(ExecBackend *backend, int64_t n, float cap,
                void *x); /* x becomes cap tanh(x / cap) */
    /* d becomes the gradient of what has become @y, which was that of y. */
    void (*cap_backward)(ExecBackend *backend, int64_t n, float cap, const void *y, void *d);
    /* Sets route->weight of the chosen experts, and from its gradient d_scores, of the storage,
     * those of experts that have none to 0. */
    void (*route_factors)(ExecBackend *backend, const ExecRoute *route);
    void (*route_factors_backward)(ExecBackend *backend, const ExecRoute *route,
                                   const float *d_weight, void *d_scores);

    /* --- mixers with a state (optional; all NULL: they are refused on this device): recurrence.h --- */

    void (*convolve_forward)(ExecBackend *backend, const ExecConvolution *convolution);
    void (*convolve_backward)(ExecBackend *backend, const ExecConvolution *convolution,
                              const ExecConvolutionGradients *gradients);
    void (*gates_forward)(ExecBackend *backend, const ExecGates *gates);
    void (*gates_backward)(ExecBackend *backend, const ExecGates *gates,
                           const ExecGatesGradients *gradients);
    void (*scan_forward)(ExecBackend *backend, const ExecScan *scan);
    void (*scan_backward)(ExecBackend *backend, const ExecScan *scan,
                          const ExecScanGradients *gradients);
    /* result->squares becomes the sums over this rank's columns; whoever shares a group with others
     * adds theirs before the next slot reads it. */
    void (*result_squares)(ExecBackend *backend, const ExecResult *result);
    void (*result_forward)(ExecBackend *backend, const ExecResult *result, void *y);
    /* The same of the dot products of what is normed with its gain and gradient. */
    void (*result_dots)(ExecBackend *backend, const ExecResult *result, const void *dy,
                        float *dots);
    void (*result_backward)(ExecBackend *backend, const ExecResult *result,
                            const ExecResultGradients *gradients);

    /* --- asynchronous devices (optional; NULL: work is done when a slot returns) --- */

    /* (optional) What the compute slots called between the two queue is given to the device at
     * once, at the end.  Work of the same slots and shapes has the same @key.  Of the other slots
     * only alloc and release may be called in between. */
    void (*begin_graph)(ExecBackend *backend, int64_t key);
    void (*end_graph)(ExecBackend *backend);
    /* (with begin_graph) What has been queued since begin_graph(), or the cut before, is given to the
     * device now, so that it works while the host queues the rest.  Nothing between begin_graph() and
     * end_graph() only. */
    void (*cut_graph)(ExecBackend *backend);

    /* *ns becomes the time, on exec_now_ns()'s clock, at which the work of all slots called so far
     * was done.  It is there after the next synchronize(), so @ns must stay valid until then. */
    void (*stamp)(ExecBackend *backend, int64_t *ns);
    /* (optional) Keeps the device busy for @ns before what the slots called next queue: then a stamp
     * after it begins when their work is there, not when the host comes to queue it. */
    void (*occupy)(ExecBackend *backend, int64_t ns);
    /* post() makes @parcel a copy of @data for another backend of the same device in this process;
     * false on EXEC_ERROR_MEMORY.  That backend takes it once, by fetch(), in the order of its own
     * slots; neither of them waits on the host.  With @add == DTYPE_N fetch() copies the parcel to
     * @to; with another type it adds the parcel's elements of that type, and rounds sums in bf16.
     */
    bool (*post)(ExecBackend *backend, const void *data, size_t n_bytes, ExecParcel *parcel,
                 GError **error);
    void (*fetch)(ExecBackend *backend, const ExecParcel *parcel, size_t n_bytes, Dtype add,
                  void *to);

    /* --- a queue beside that of the compute slots (optional; all NULL: there is none) --- */

    /* What upload, copy, post, fetch, stamp and a transport's collectives queue between the two
     * goes, in order, to a second queue, which begins when all that the compute slots have queued
     * by now is done.  end_aside() makes *mark, which is NULL at first, stand for the end of that
     * work. A mark may be used again; it belongs to the caller until forget(). */
    void (*begin_aside)(ExecBackend *backend);
    void (*end_aside)(ExecBackend *backend, ExecMark **mark);
    /* Makes the work of compute slots called from now on wait for the mark; the host does not
     * wait. */
    void (*join)(ExecBackend *backend, ExecMark *mark);
    /* Makes the host wait for the mark. */
    bool (*await)(ExecBackend *backend, ExecMark *mark, GError **error);
    void (*forget)(ExecBackend *backend, ExecMark *mark);
    /* Returns host memory that upload reads when its turn in the queue comes, so that it must not
     * change before; NULL when there is none to be had. */
    void *(*alloc_host)(ExecBackend *backend, size_t n_bytes);
    void (*release_host)(ExecBackend *backend, void *memory);

    /* --- lifecycle --- */
    char *(*describe)(const ExecBackend *backend);
    /* (optional; NULL: it has one) See exec_backend_attention_kernel(). */
    const char *(*attention_kernel)(const ExecBackend *backend, int64_t head_dim);
    /* (optional; NULL: 0) See exec_backend_workspace_bytes(). */
    int64_t (*workspace_bytes)(const ExecBackend *backend);
    void (*close)(ExecBackend *backend);
} ExecBackendOps;

/* In a table of slots: those for which every backend has functions of its own, with the slots'
 * names. */
#define EXEC_OWN_SLOTS                                                                             \
    .add = add, .gemm = gemm, .bias_backward = bias_backward, .norm_forward = norm_forward,        \
    .norm_backward = norm_backward, .gelu_forward = gelu_forward, .gelu_backward = gelu_backward,  \
    .swiglu_forward = swiglu_forward, .swiglu_backward = swiglu_backward,                          \
    .attention_forward = attention_forward, .attention_backward = attention_backward,              \
    .cross_entropy_stats = cross_entropy_stats, .cross_entropy = cross_entropy, .adamw = adamw

struct ExecBackend {
    const ExecBackendOps *ops;
    Dtype storage; /* DTYPE_FP32 or DTYPE_BF16 */
    void *state;   /* (owned by the backend) */
    int n_threads; /* of backends in host memory: how many compute for the rank */
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
    /* (nullable) The attention kernels to use, by the name of exec_backend_attention_kernel(); NULL,
     * and where the device lacks them: the usual ones.  The environment may decide otherwise. */
    const char *attention;
    /* Each run gives the same bits: no algorithm is chosen by how fast it was. */
    bool deterministic;
} ExecBackendOptions;

/* A kind of device: one row of the table in backend.c, which says all that other parts of the
 * program have to know of it. */
typedef struct {
    const char *name;   /* as --device has it; NULL: there is no such kind */
    const char *plugin; /* (nullable) computes on it (plugin.h); NULL: @open does */
    /* Opens a backend that stores fp32 in host memory. */
    ExecBackend *(*open)(const ExecBackendOptions *options, GError **error);
    bool is_gpu;      /* has memory of its own, and every process takes another device */
    bool has_graphs;  /* can launch the work of a whole layer at once */
    bool has_nccl;    /* NCCL carries its tensors */
    bool has_threads; /* several threads may compute for one rank */
    bool plain_only;  /* lacks slots of unusual layers and of states: executor/model/lacks.h */
} ExecDeviceKind;

/* Returns: (borrowed) the row of @name; for an unknown name one whose name is NULL and whose flags
 * are all false. */
const ExecDeviceKind *exec_device_kind(const char *name);

/* Returns: (borrowed) the names of all kinds, the usual one first, and NULL. */
const char *const *exec_device_names(void);

/* Opens a device of the kind @name.  NULL, with a sentence, on EXEC_ERROR_MISSING (a library,
 * plugin or device is not there) or EXEC_ERROR_UNSUPPORTED (no such kind, or no such storage on
 * it). */
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

/* Opens a whole device. */
ExecBackend *exec_backend_open(const char *name, int device, Dtype storage, GError **error);
void exec_backend_close(ExecBackend *backend);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(ExecBackend, exec_backend_close)

/* Returns how many bytes @n elements of storage take. */
static inline int64_t
exec_storage_bytes(const ExecBackend *backend, int64_t n)
{
    return n * dtype_bytes(backend->storage);
}

/* Returns the address @n elements of storage after @x. */
static inline void *
exec_at(const ExecBackend *backend, const void *x, int64_t n)
{
    return (char *)(uintptr_t)x + exec_storage_bytes(backend, n);
}

/* Computes the product and all that follows it, by the gemm slot and those that it does not fuse.
 */
void exec_gemm(ExecBackend *backend, const ExecGemm *gemm);

/* An activation and its gradient, as the slots of these names say.  SwiGLU and GELU have slots that
 * every device has; these are called for them. */
void exec_activate(ExecBackend *backend, ExecActivation activation, int64_t rows, int64_t width,
                   const void *x, void *y);
void exec_activate_backward(ExecBackend *backend, ExecActivation activation, int64_t rows,
                            int64_t width, const void *x, const void *dy, void *dx);

/* Returns: (owned) what computes, in words for reports: "OpenBLAS 0.3.21 SkylakeX, 1 thread per
 * rank". */
char *exec_backend_describe(const ExecBackend *backend);

/* Returns: (nullable) the name of the attention kernels that the backend uses for heads of @head_dim,
 * such as "mma", where it has several to choose from. */
const char *exec_backend_attention_kernel(const ExecBackend *backend, int64_t head_dim);

/* Calls the stamp slot; *ns becomes now where the backend has none, because work is done at once.
 */
void exec_backend_stamp(ExecBackend *backend, int64_t *ns);

/* Returns how many bytes of scratch memory the backend holds for itself, such as attention's blocks
 * of scores. */
int64_t exec_backend_workspace_bytes(const ExecBackend *backend);
