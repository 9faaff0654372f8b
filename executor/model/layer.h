/*
 * executor/model/layer.h - forward and backward of one layer on a slice of tokens, in backend slots and
 * collectives.
 *
 *   n1 = norm(x);  q, k, v = n1 Wq, n1 Wkv (k, q turned);  a = attention(q, k, v);  x2 = x + a
 * Wproj n2 = norm(x2); u = n2 Wup; g = gelu(u) or swiglu(u);  y = x2 + g Wdown       (and biases)
 *
 * or, in place of the last line, experts: moe.h.  The list of ops and of what is kept is that of
 * model_ops() in models/arch.h.
 *
 * Token slices: K and V rows of a slice go into a buffer of the whole sequence, one per
 * (micro-batch, layer); queries see rows [0, end of slice).  Backward runs slices last to first;
 * each adds dK, dV into rows [0, end) of an accumulator of the same shape; its own rows are
 * complete at that moment, because all later slices were there before  [Li et al. 2102.07988
 * section 3.2].
 *
 * Backward in one go (B), or input gradients now and weight gradients later (I, W)
 * [Qi et al. 2401.10241]: then the gradients of the products' outputs are kept in between.
 * The norms' parameters get their gradients with the input's, in both cases.
 *
 * Selective recompute [Korthikanti et al. 2205.05198 section 5]: what lies between q, k, v and
 * attention's output is computed again by backward.  Since no scores are kept in any case, all it
 * saves here is lse.  Full recompute is the caller's: exec_layer_forward() once more.
 *
 * Tensor parallelism (linear.h): columns of Wq, Wkv, Wup and rows of Wproj, Wdown are divided.
 * With sequence parallelism x, x2, y and the norms hold this rank's part of the rows
 * (exec_local_rows), which are gathered before and reduced after the products  [Korthikanti et al.
 * 2205.05198].
 *
 * Context parallelism (context_parallel.h): a rank holds some tokens of every slice and gathers the
 * K and V of the others for one layer at a time.
 *
 * Rows are [token, sequence].
 */
#ifndef EXECUTOR_MODEL_LAYER_H
#define EXECUTOR_MODEL_LAYER_H

#include "executor/transport/comm.h"
#include "executor/model/model.h"
#include "executor/model/moe.h"
#include "schedule/schedule.h"

G_BEGIN_DECLS

/* Which tokens of how many sequences. */
typedef struct {
    int64_t sequences;
    int64_t tokens, context;         /* of the sequence: the slice's, and those before it */
    int64_t own_tokens, own_context; /* of these on this rank: tokens / cp, context / cp */
    const int64_t *lengths;          /* (borrowed) tokens of every slice, this one at [index] */
    int32_t index;
} ExecSlice;

/* Rows of this rank, in products. */
static inline int64_t
exec_slice_rows(const ExecSlice *slice)
{
    return slice->sequences * slice->own_tokens;
}

/* Rows of this rank between products, of @rows in them. */
static inline int64_t
exec_local_rows(const ExecWidths *widths, int64_t rows)
{
    return widths->sequence_parallel ? rows / widths->tp : rows;
}

/* Kept from forward to backward: what only input gradients need, until B or I; the products' own
 * inputs (norm1, attention, norm2, active), which weight gradients need, until B or W. */
typedef struct {
    int64_t inputs, products;
} ExecLayerBytes;

typedef struct {
    void *norm1;
    float *mean1, *rstd1;
    void *q, *attention;
    float *lse;
    void *x2, *norm2;
    float *mean2, *rstd2;
    void *up, *active; /* of the MLP, or of the shared experts */
} ExecLayerActivations;

/* Kept from I to W: gradients of the products' outputs, as the products read them. */
typedef struct {
    void *d_q;    /* [rows, q_width] */
    void *d_proj; /* [rows, hidden] */
    void *d_up;   /* [rows, up_width] */
    void *d_down; /* [rows, hidden]; NULL of experts alone */
} ExecLayerKept;

/* Lives inside one op, as far as ops of its kind need it. */
typedef struct {
    void *rows;        /* [rows, hidden]: gathered; only with sequence parallelism */
    void *partial;     /* [rows, hidden]: to be reduced; the gradient of a norm's output */
    void *d_attention; /* [rows, q_width] */
    void *kv, *d_kv;   /* [seq_len, sequences, 2 kv_width] of all ranks; only with cp > 1 */
    void *ring;        /* as kv, on its way; only with cp > 1 */
    void *own_d_kv;    /* as the layer's kv */
    void *d_active;    /* [rows, ffn_hidden] if gated: where partial is */
    /* B: d_q and d_up; I: room for [local rows, hidden] as d_up, the output of a second forward. */
    ExecLayerKept kept;
} ExecLayerScratch;

/* Bytes of the structs above for @rows rows; and the views into a block of that size. @moe: the
 * layer has experts, whose own blocks are elsewhere.  @recompute: selective leaves out lse. */
ExecLayerBytes exec_layer_activation_bytes(const ExecWidths *widths, int64_t rows, bool moe,
                                           PlanRecompute recompute);
ExecLayerActivations exec_layer_activations(const ExecWidths *widths, int64_t rows, bool moe,
                                            PlanRecompute recompute, void *inputs, void *products);
/* Of a forward of which nothing is kept. */
int64_t exec_layer_passing_bytes(const ExecWidths *widths, int64_t rows, bool moe);
ExecLayerActivations exec_layer_passing(const ExecWidths *widths, int64_t rows, bool moe,
                                        void *block);
int64_t exec_layer_kept_bytes(const ExecWidths *widths, int64_t rows, bool moe);
ExecLayerKept exec_layer_kept(const ExecWidths *widths, int64_t rows, bool moe, void *block);
/* @sequences of the slice. */
int64_t exec_layer_scratch_bytes(const ExecWidths *widths, int64_t rows, int64_t sequences,
                                 ScheduleOpKind kind);
ExecLayerScratch exec_layer_scratch(const ExecWidths *widths, int64_t rows, int64_t sequences,
                                    ScheduleOpKind kind, void *block);

/* One layer's operands. */
typedef struct ExecLayer {
    ExecBackend *backend;
    ExecComm *comm;
    ExecPool *pool;
    const ExecWidths *widths;
    const ExecLayerTensors *tensors;
    const ExecLayerScratch *scratch;
    const float *turns;       /* of every position; NULL unless rotary */
    const int32_t *positions; /* of this rank's tokens of the slice */
    ExecSlice slice;
    const void *x; /* input [local rows, hidden] */
    ExecLayerActivations a;
    bool core_again;  /* backward runs the attention once more: a.lse was not kept */
    void *kv;         /* this rank's [seq_len / cp, sequences, 2 kv_width]: K columns, then V */
    void *d_kv;       /* backward: its gradient, rows from this slice's end on are not touched */
    bool d_kv_begins; /* this slice is the only one: backward zeroes d_kv */
    ExecMoe *moe;     /* NULL: dense */
} ExecLayer;

/* y [local rows, hidden] may not overlap x. */
void exec_layer_forward(const ExecLayer *layer, void *y);

/*
 * @d  in: gradient of y; out: gradient of x.
 * @kept  NULL: B, weights get their gradients too.  Else I: what W needs is written there.
 */
void exec_layer_backward(const ExecLayer *layer, const ExecLayerKept *kept, void *d);

/* W: adds the gradients of the products' weights and biases. */
void exec_layer_backward_weight(const ExecLayer *layer, const ExecLayerKept *kept);

/* --- halves: layer_attention.c and layer_mlp.c --- */

void exec_attention_forward(const ExecLayer *layer);
/* From the gradient of x2 (all rows, @dy) to that of norm1: (borrowed) [local rows, hidden]. */
const void *exec_attention_backward(const ExecLayer *layer, void *d_q, const void *dy);
/* @d_proj  all rows; may be scratch->rows. */
void exec_attention_weight(const ExecLayer *layer, const void *d_q, const void *d_proj);

void exec_mlp_forward(const ExecLayer *layer, void *y);
/* From the gradient of y (all rows, @dy) to that of norm2: (borrowed) [local rows, hidden]. */
void *exec_mlp_backward(const ExecLayer *layer, void *d_up, const void *dy);
/* @d_down  all rows; may be scratch->rows. */
void exec_mlp_weight(const ExecLayer *layer, const void *d_up, const void *d_down);

G_END_DECLS

#endif /* EXECUTOR_MODEL_LAYER_H */
