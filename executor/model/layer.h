/*
 * executor/model/layer.h - forward and backward of one layer on a slice of tokens, as slots of the
 * backend and collectives.
 *
 *   n1 = norm(x);  q, k, v = n1 Wq, n1 Wkv (q and k rotated);  x2 = x + attention(q, k, v) Wproj
 *   n2 = norm(x2);  u = n2 Wup;  g = gelu(u) or swiglu(u);  y = x2 + g Wdown      (and biases)
 *
 * or, in place of the last line, experts (moe.h).  The ops, and what is kept of them, are those
 * that model_ops() lists (models/ops.h).
 *
 * Slices: the K and V rows of a slice are written into a buffer of the whole sequence, one for each
 * (micro-batch, layer); its queries see rows [0, end of the slice).  Backward runs the slices from
 * last to first.  Each adds dK and dV to rows [0, end) of a buffer of the same shape in fp32, in
 * which its own rows are then complete, because all later slices have been there  [Li et al.
 * 2102.07988 section 3.2]; they are rounded to the storage once.
 *
 * Backward is one op (B), or two: the gradient of the input now (I), and those of the weights later
 * (W)  [Qi et al. 2401.10241].  Then the gradients of the products' outputs are kept in between.
 * The parameters of norms get their gradients with the input's in both cases.
 *
 * Selective recompute [Korthikanti et al. 2205.05198 section 5]: what lies between q, k, v and
 * attention's output is computed again by backward.  Since scores are never kept, all that it saves
 * here is lse.  Full recompute is done by the caller, who calls exec_layer_forward() once more.
 *
 * Tensor parallelism (linear.h): the columns of Wq, Wkv and Wup and the rows of Wproj and Wdown are
 * split over tp.  With sequence parallelism x, x2, y and the norms hold this rank's local rows
 * (exec_local_rows()), which are gathered before the products and reduced after them.
 *
 * Context parallelism (attention.h): a rank has some tokens of every slice, and gathers the K and V
 * of the others for one layer at a time.
 *
 * Rows are ordered [token, sequence].
 */
#pragma once

#include "executor/model/model.h"
#include "executor/model/moe.h"
#include "executor/transport/comm.h"
#include "schedule/schedule.h"

/* --- tensors in a block --- */

/* Cuts tensors off a block of memory, one after the other; every tensor begins at a cache line.
 * Without a block it only counts: the same code that says where the tensors lie says how many bytes
 * a block for them needs. */
typedef struct {
    char *block;     /* (borrowed, nullable) NULL: tensors are NULL, and bytes are counted */
    int64_t n_bytes; /* cut so far, the padding included */
    Dtype storage;
} ExecCutter;

/* @n_bytes up to whole cache lines of 64 bytes. */
static inline int64_t
exec_padded_bytes(int64_t n_bytes)
{
    return (n_bytes + 63) / 64 * 64;
}

static inline void *
exec_cut_bytes(ExecCutter *cutter, int64_t n_bytes)
{
    void *tensor = cutter->block == NULL ? NULL : cutter->block + cutter->n_bytes;

    cutter->n_bytes += exec_padded_bytes(n_bytes);
    return tensor;
}

/* A tensor of @n elements of the storage. */
static inline void *
exec_cut(ExecCutter *cutter, int64_t n)
{
    return exec_cut_bytes(cutter, n * dtype_bytes(cutter->storage));
}

/* A tensor of @n values of four bytes: float or int32_t. */
static inline void *
exec_cut_words(ExecCutter *cutter, int64_t n)
{
    return exec_cut_bytes(cutter, 4 * n);
}

/* --- a layer --- */

/* One slice of a micro-batch. */
typedef struct {
    int64_t sequences;
    int64_t tokens, context;         /* tokens of the slice, and of the sequence before it */
    int64_t own_tokens, own_context; /* of these on this rank: tokens / cp, context / cp */
    const int64_t *lengths; /* (borrowed) tokens of every slice; this one's is at [index] */
    int32_t index;
} ExecSlice;

/* How many rows a product has on this rank. */
static inline int64_t
exec_slice_rows(const ExecSlice *slice)
{
    return slice->sequences * slice->own_tokens;
}

/* How many of @rows rows of a product this rank has between products. */
static inline int64_t
exec_local_rows(const ExecWidths *widths, int64_t rows)
{
    return widths->sequence_parallel ? rows / widths->tp : rows;
}

/* What is kept from forward to backward. */
typedef struct {
    void *norm1;
    float *mean1, *rstd1;
    void *q, *attention;
    float *lse;
    void *x2, *norm2;
    float *mean2, *rstd2;
    void *up, *active; /* u and g, of the MLP or of the shared experts */
} ExecLayerActivations;

/* What is kept from I to W: the gradients of the products' outputs. */
typedef struct {
    void *d_q;    /* [rows, q_width] */
    void *d_kv;   /* [rows, 2 kv_width] */
    void *d_proj; /* [rows, hidden] */
    void *d_up;   /* [rows, up_width] */
    void *d_down; /* [rows, hidden]; NULL where the layer has experts and none is shared */
} ExecLayerKept;

/* What lives during one op only, as far as ops of its kind need it. */
typedef struct {
    void *rows;        /* [rows, hidden] what was gathered; sequence parallelism only */
    void *partial;     /* [rows, hidden] what will be reduced; the gradient of a norm's output */
    void *d_attention; /* [rows, q_width] */
    void *kv;          /* [seq_len, sequences, 2 kv_width] of all ranks; cp > 1 only */
    float *d_kv;       /* its gradient */
    void *ring;        /* either in the order in which cp ranks exchange it */
    void *d_active;    /* [rows, ffn_hidden] where gated; it lies where partial does */
    /* B: d_q, d_kv and d_up.  I: d_up is [local rows, hidden] for the output of a second forward. */
    ExecLayerKept kept;
} ExecLayerScratch;

/* These cut what a layer of @rows rows needs off blocks, or count its bytes (ExecCutter).
 * @moe  the layer has experts, whose own blocks are in ExecMoe. */

/* @inputs is read by input gradients alone, until B or I; @products are the products' own inputs
 * (norm1, attention, norm2, active), which weight gradients read until B or W.  With recompute
 * selective there is no lse. */
ExecLayerActivations exec_layer_activations(const ExecWidths *widths, int64_t rows, bool moe,
                                            PlanRecompute recompute, ExecCutter *inputs,
                                            ExecCutter *products);
/* Of a forward of which nothing is kept: its halves use the same memory one after the other. */
ExecLayerActivations exec_layer_passing(const ExecWidths *widths, int64_t rows, bool moe,
                                        ExecCutter *cutter);
ExecLayerKept exec_layer_kept(const ExecWidths *widths, int64_t rows, bool moe, ExecCutter *cutter);
/* @sequences  of the slice. */
ExecLayerScratch exec_layer_scratch(const ExecWidths *widths, int64_t rows, int64_t sequences,
                                    ScheduleOpKind kind, ExecCutter *cutter);

/* One layer at work on one slice. */
typedef struct ExecLayer {
    ExecBackend *backend;
    ExecComm *comm;
    ExecPool *pool;
    const ExecWidths *widths;
    const ExecLayerTensors *tensors;
    const ExecLayerScratch *scratch;
    const float *turns;       /* rotations of every position; NULL unless rotary */
    const int32_t *positions; /* of this rank's tokens of the slice */
    ExecSlice slice;
    const void *x; /* input [local rows, hidden] */
    ExecLayerActivations a;
    bool core_again; /* a.lse was not kept: backward runs the core of attention once more */
    void *kv;        /* [seq_len / cp, sequences, 2 kv_width] this rank's K columns, then V */
    /* The sum of its gradient over slices; rows from this slice's end on are not touched.  NULL: there is one slice. */
    float *d_kv;
    ExecMoe *moe; /* NULL: the layer is dense */
} ExecLayer;

/* y [local rows, hidden] may not overlap x. */
void exec_layer_forward(const ExecLayer *layer, void *y);

/*
 * @d     in: the gradient of y; out: the gradient of x.
 * @kept  NULL: this is B, and weights get their gradients too.  Else it is I, which writes here
 * what W will need.
 */
void exec_layer_backward(const ExecLayer *layer, const ExecLayerKept *kept, void *d);

/* W: adds the gradients of the products' weights and biases. */
void exec_layer_backward_weight(const ExecLayer *layer, const ExecLayerKept *kept);

/* --- the MLP, or the shared experts as one --- */

/* y [local rows, hidden] = x2 + g Wdown. */
void exec_mlp_forward(const ExecLayer *layer, void *y);
/* From the gradient of y (@dy, all rows) to that of norm2.  Returns: (borrowed) [local rows,
 * hidden]. */
void *exec_mlp_backward(const ExecLayer *layer, void *d_up, const void *dy);
/* @d_down  all rows; may be scratch->rows. */
void exec_mlp_weight(const ExecLayer *layer, const void *d_up, const void *d_down);
