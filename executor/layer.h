/*
 * executor/layer.h - forward and backward of one GPT layer on a slice of tokens, in backend slots.
 *
 *   n1 = norm(x);  q, k, v = n1 Wqkv;  a = attention(q, k, v);  x2 = x + a Wproj
 *   n2 = norm(x2); u = n2 Wup;         g = gelu(u);             y  = x2 + g Wdown      (and biases)
 *
 * Token slices: K and V rows of a slice go into a buffer of the whole sequence, one per
 * (micro-batch, layer); queries see rows [0, end of slice).  Backward runs slices last to first;
 * each adds dK, dV into rows [0, end) of an accumulator of the same shape; its own rows are
 * complete at that moment, because all later slices were there before  [Li et al. 2102.07988
 * section 3.2].
 *
 * Backward in one go (B), or input gradients now and weight gradients later (I, W)
 * [Qi et al. 2401.10241]: then the gradients of the four products' outputs are kept in between.
 * The norms' parameters get their gradients with the input's, in both cases.
 *
 * Rows are [token, sequence].  The list of what is kept is model_ops()' saved bytes.
 */
#ifndef EXECUTOR_LAYER_H
#define EXECUTOR_LAYER_H

#include "executor/model.h"

G_BEGIN_DECLS

/* Which tokens of how many sequences. */
typedef struct {
    int64_t sequences, tokens, context;
} ExecSlice;

static inline int64_t
exec_slice_rows(const ExecSlice *slice)
{
    return slice->sequences * slice->tokens;
}

/* Kept from forward to backward. */
typedef struct {
    float *norm1, *mean1, *rstd1;
    float *q, *attention, *lse;
    float *x2;
    float *norm2, *mean2, *rstd2;
    float *up, *gelu;
} ExecLayerActivations;

/* Kept from I to W. */
typedef struct {
    float *d_q;    /* [rows, q_width] */
    float *d_proj; /* [rows, hidden] gradient of proj's output */
    float *d_up;   /* [rows, ffn_hidden] */
    float *d_down; /* [rows, hidden] */
} ExecLayerKept;

/* Lives inside one op. */
typedef struct {
    float *d_norm;      /* [rows, hidden] */
    float *d_attention; /* [rows, q_width] */
    ExecLayerKept kept; /* where nothing is kept: d_q and d_up */
} ExecLayerScratch;

/* Floats of the structs above, for @rows rows; and the views into a block of that size. */
int64_t exec_layer_activation_floats(const ExecWidths *widths, int64_t rows);
ExecLayerActivations exec_layer_activations(const ExecWidths *widths, int64_t rows, float *block);
int64_t exec_layer_kept_floats(const ExecWidths *widths, int64_t rows);
ExecLayerKept exec_layer_kept(const ExecWidths *widths, int64_t rows, float *block);
int64_t exec_layer_scratch_floats(const ExecWidths *widths, int64_t rows);
ExecLayerScratch exec_layer_scratch(const ExecWidths *widths, int64_t rows, float *block);

/* One layer's operands. */
typedef struct {
    const ExecWidths *widths;
    const ExecLayerTensors *weights;
    const ExecLayerTensors *gradients; /* backward */
    const float *x;                    /* input [rows, hidden] */
    ExecLayerActivations activations;
    float *kv;   /* [seq_len, sequences, 2 kv_width]: K columns, then V */
    float *d_kv; /* backward: its gradient, rows from this slice's end on are not touched */
} ExecLayer;

/* y [rows, hidden] may not overlap x. */
void exec_layer_forward(ExecBackend *backend, const ExecLayer *layer, const ExecSlice *slice,
                        float *y);

/*
 * @d  in: gradient of y; out: gradient of x.
 * @kept  NULL: B, weights get their gradients too.  Else I: what W needs is written there.
 */
void exec_layer_backward(ExecBackend *backend, const ExecLayer *layer, const ExecSlice *slice,
                         const ExecLayerScratch *scratch, const ExecLayerKept *kept, float *d);

/* W: adds the gradients of the four products' weights and biases. */
void exec_layer_backward_weight(ExecBackend *backend, const ExecLayer *layer,
                                const ExecSlice *slice, const ExecLayerKept *kept);

G_END_DECLS

#endif /* EXECUTOR_LAYER_H */
