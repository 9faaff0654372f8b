#include "executor/layer.h"

#include <math.h>

/* --- views into blocks --- */

/* Cuts pieces off a block; every piece begins at a multiple of 16 floats. */
typedef struct {
    float *block; /* NULL while only the size is asked for */
    int64_t n;
} Cutter;

static float *
cut(Cutter *cutter, int64_t n)
{
    float *piece = cutter->block == NULL ? NULL : cutter->block + cutter->n;

    cutter->n += (n + 15) / 16 * 16;
    return piece;
}

static ExecLayerActivations
cut_activations(Cutter *cutter, const ExecWidths *w, int64_t rows)
{
    return (ExecLayerActivations){
        .norm1 = cut(cutter, rows * w->hidden),
        .mean1 = cut(cutter, rows),
        .rstd1 = cut(cutter, rows),
        .q = cut(cutter, rows * w->q_width),
        .attention = cut(cutter, rows * w->q_width),
        .lse = cut(cutter, rows * w->n_heads),
        .x2 = cut(cutter, rows * w->hidden),
        .norm2 = cut(cutter, rows * w->hidden),
        .mean2 = cut(cutter, rows),
        .rstd2 = cut(cutter, rows),
        .up = cut(cutter, rows * w->ffn_hidden),
        .gelu = cut(cutter, rows * w->ffn_hidden),
    };
}

int64_t
exec_layer_activation_floats(const ExecWidths *widths, int64_t rows)
{
    Cutter cutter = {0};

    cut_activations(&cutter, widths, rows);
    return cutter.n;
}

ExecLayerActivations
exec_layer_activations(const ExecWidths *widths, int64_t rows, float *block)
{
    Cutter cutter = {.block = block};

    return cut_activations(&cutter, widths, rows);
}

static ExecLayerKept
cut_kept(Cutter *cutter, const ExecWidths *w, int64_t rows)
{
    return (ExecLayerKept){
        .d_q = cut(cutter, rows * w->q_width),
        .d_proj = cut(cutter, rows * w->hidden),
        .d_up = cut(cutter, rows * w->ffn_hidden),
        .d_down = cut(cutter, rows * w->hidden),
    };
}

int64_t
exec_layer_kept_floats(const ExecWidths *widths, int64_t rows)
{
    Cutter cutter = {0};

    cut_kept(&cutter, widths, rows);
    return cutter.n;
}

ExecLayerKept
exec_layer_kept(const ExecWidths *widths, int64_t rows, float *block)
{
    Cutter cutter = {.block = block};

    return cut_kept(&cutter, widths, rows);
}

static ExecLayerScratch
cut_scratch(Cutter *cutter, const ExecWidths *w, int64_t rows)
{
    return (ExecLayerScratch){
        .d_norm = cut(cutter, rows * w->hidden),
        .d_attention = cut(cutter, rows * w->q_width),
        .kept.d_q = cut(cutter, rows * w->q_width),
        .kept.d_up = cut(cutter, rows * w->ffn_hidden),
    };
}

int64_t
exec_layer_scratch_floats(const ExecWidths *widths, int64_t rows)
{
    Cutter cutter = {0};

    cut_scratch(&cutter, widths, rows);
    return cutter.n;
}

ExecLayerScratch
exec_layer_scratch(const ExecWidths *widths, int64_t rows, float *block)
{
    Cutter cutter = {.block = block};

    return cut_scratch(&cutter, widths, rows);
}

/* --- products --- */

/* y = x W + bias (+ residual); W is @cols columns of a matrix of row stride @ldw. */
static void
linear(ExecBackend *backend, int64_t rows, int64_t inputs, int64_t cols, const float *x,
       const float *weight, int64_t ldw, const float *bias, const float *residual, float *y,
       int64_t ldy)
{
    backend->ops->gemm(backend, &(ExecGemm){
                                    .m = rows,
                                    .n = cols,
                                    .k = inputs,
                                    .a = x,
                                    .lda = inputs,
                                    .b = weight,
                                    .ldb = ldw,
                                    .c = y,
                                    .ldc = ldy,
                                    .bias = bias,
                                    .residual = residual,
                                });
}

/* dx (+)= dy W^T */
static void
linear_backward(ExecBackend *backend, int64_t rows, int64_t inputs, int64_t cols, const float *dy,
                int64_t lddy, const float *weight, int64_t ldw, bool accumulate, float *dx)
{
    backend->ops->gemm(backend, &(ExecGemm){
                                    .trans_b = true,
                                    .accumulate = accumulate,
                                    .m = rows,
                                    .n = inputs,
                                    .k = cols,
                                    .a = dy,
                                    .lda = lddy,
                                    .b = weight,
                                    .ldb = ldw,
                                    .c = dx,
                                    .ldc = inputs,
                                });
}

/* dW += x^T dy, db += column sums of dy */
static void
linear_backward_weight(ExecBackend *backend, int64_t rows, int64_t inputs, int64_t cols,
                       const float *x, const float *dy, int64_t lddy, float *d_weight, int64_t ldw,
                       float *d_bias)
{
    backend->ops->gemm(backend, &(ExecGemm){
                                    .trans_a = true,
                                    .accumulate = true,
                                    .m = inputs,
                                    .n = cols,
                                    .k = rows,
                                    .a = x,
                                    .lda = inputs,
                                    .b = dy,
                                    .ldb = lddy,
                                    .c = d_weight,
                                    .ldc = ldw,
                                });
    backend->ops->bias_backward(backend, rows, cols, dy, lddy, d_bias);
}

/* --- the layer --- */

static ExecAttention
attention_of(const ExecLayer *layer, const ExecSlice *slice)
{
    const ExecWidths *w = layer->widths;

    return (ExecAttention){
        .sequences = slice->sequences,
        .n_heads = w->n_heads,
        .n_kv_heads = w->n_kv_heads,
        .head_dim = w->head_dim,
        .tokens = slice->tokens,
        .context = slice->context,
        .scale = 1.0f / sqrtf((float)w->head_dim),
        .q = layer->activations.q,
        .k = layer->kv,
        .v = layer->kv + w->kv_width,
        .kv_stride = 2 * w->kv_width,
        .out = layer->activations.attention,
        .lse = layer->activations.lse,
    };
}

static ExecNorm
norm1_of(const ExecLayer *layer, int64_t rows)
{
    return (ExecNorm){
        .rows = rows,
        .cols = layer->widths->hidden,
        .x = layer->x,
        .gain = layer->weights->norm1_gain,
        .shift = layer->weights->norm1_shift,
        .mean = layer->activations.mean1,
        .rstd = layer->activations.rstd1,
    };
}

static ExecNorm
norm2_of(const ExecLayer *layer, int64_t rows)
{
    return (ExecNorm){
        .rows = rows,
        .cols = layer->widths->hidden,
        .x = layer->activations.x2,
        .gain = layer->weights->norm2_gain,
        .shift = layer->weights->norm2_shift,
        .mean = layer->activations.mean2,
        .rstd = layer->activations.rstd2,
    };
}

/* Where this slice's rows begin in kv and d_kv. */
static inline int64_t
kv_offset(const ExecLayer *layer, const ExecSlice *slice)
{
    return slice->context * slice->sequences * 2 * layer->widths->kv_width;
}

void
exec_layer_forward(ExecBackend *backend, const ExecLayer *layer, const ExecSlice *slice, float *y)
{
    const ExecBackendOps *ops = backend->ops;
    const ExecWidths *w = layer->widths;
    const ExecLayerTensors *t = layer->weights;
    const ExecLayerActivations *a = &layer->activations;
    const int64_t rows = exec_slice_rows(slice);
    const ExecAttention attention = attention_of(layer, slice);
    const ExecNorm norm1 = norm1_of(layer, rows), norm2 = norm2_of(layer, rows);

    ops->norm_forward(backend, &norm1, a->norm1);
    linear(backend, rows, w->hidden, w->q_width, a->norm1, t->qkv_weight, w->qkv_width, t->qkv_bias,
           NULL, a->q, w->q_width);
    linear(backend, rows, w->hidden, 2 * w->kv_width, a->norm1, t->qkv_weight + w->q_width,
           w->qkv_width, t->qkv_bias + w->q_width, NULL, layer->kv + kv_offset(layer, slice),
           2 * w->kv_width);
    ops->attention_forward(backend, &attention);
    linear(backend, rows, w->q_width, w->hidden, a->attention, t->proj_weight, w->hidden,
           t->proj_bias, layer->x, a->x2, w->hidden);
    ops->norm_forward(backend, &norm2, a->norm2);
    linear(backend, rows, w->hidden, w->ffn_hidden, a->norm2, t->mlp_up_weight, w->ffn_hidden,
           t->mlp_up_bias, NULL, a->up, w->ffn_hidden);
    ops->gelu_forward(backend, rows * w->ffn_hidden, a->up, a->gelu);
    linear(backend, rows, w->ffn_hidden, w->hidden, a->gelu, t->mlp_down_weight, w->hidden,
           t->mlp_down_bias, a->x2, y, w->hidden);
}

/* From the gradient of y to that of x2; @d_down is where the gradient of y stays for W. */
static void
mlp_backward(ExecBackend *backend, const ExecLayer *layer, int64_t rows,
             const ExecLayerScratch *scratch, float *d_up, float *d)
{
    const ExecBackendOps *ops = backend->ops;
    const ExecWidths *w = layer->widths;
    const ExecLayerTensors *t = layer->weights;
    const ExecLayerActivations *a = &layer->activations;

    linear_backward(backend, rows, w->ffn_hidden, w->hidden, d, w->hidden, t->mlp_down_weight,
                    w->hidden, false, d_up);
    ops->gelu_backward(backend, rows * w->ffn_hidden, a->up, d_up);
    linear_backward(backend, rows, w->hidden, w->ffn_hidden, d_up, w->ffn_hidden, t->mlp_up_weight,
                    w->ffn_hidden, false, scratch->d_norm);
}

static void
mlp_weight(ExecBackend *backend, const ExecLayer *layer, int64_t rows, const float *d_up,
           const float *d_down)
{
    const ExecWidths *w = layer->widths;
    const ExecLayerActivations *a = &layer->activations;
    const ExecLayerTensors *g = layer->gradients;

    linear_backward_weight(backend, rows, w->ffn_hidden, w->hidden, a->gelu, d_down, w->hidden,
                           g->mlp_down_weight, w->hidden, g->mlp_down_bias);
    linear_backward_weight(backend, rows, w->hidden, w->ffn_hidden, a->norm2, d_up, w->ffn_hidden,
                           g->mlp_up_weight, w->ffn_hidden, g->mlp_up_bias);
}

/* From the gradient of x2 (in @d) to that of norm1 (in scratch->d_norm). */
static void
attention_backward(ExecBackend *backend, const ExecLayer *layer, const ExecSlice *slice,
                   const ExecLayerScratch *scratch, float *d_q, const float *d)
{
    const ExecWidths *w = layer->widths;
    const ExecLayerTensors *t = layer->weights;
    const int64_t rows = exec_slice_rows(slice);
    const ExecAttention attention = attention_of(layer, slice);

    linear_backward(backend, rows, w->q_width, w->hidden, d, w->hidden, t->proj_weight, w->hidden,
                    false, scratch->d_attention);
    backend->ops->attention_backward(backend, &attention,
                                     &(ExecAttentionGradients){
                                         .dout = scratch->d_attention,
                                         .dq = d_q,
                                         .dk = layer->d_kv,
                                         .dv = layer->d_kv + w->kv_width,
                                     });
    linear_backward(backend, rows, w->hidden, w->q_width, d_q, w->q_width, t->qkv_weight,
                    w->qkv_width, false, scratch->d_norm);
    linear_backward(backend, rows, w->hidden, 2 * w->kv_width,
                    layer->d_kv + kv_offset(layer, slice), 2 * w->kv_width,
                    t->qkv_weight + w->q_width, w->qkv_width, true, scratch->d_norm);
}

static void
attention_weight(ExecBackend *backend, const ExecLayer *layer, const ExecSlice *slice,
                 const float *d_q, const float *d_proj)
{
    const ExecWidths *w = layer->widths;
    const ExecLayerActivations *a = &layer->activations;
    const ExecLayerTensors *g = layer->gradients;
    const int64_t rows = exec_slice_rows(slice);

    linear_backward_weight(backend, rows, w->q_width, w->hidden, a->attention, d_proj, w->hidden,
                           g->proj_weight, w->hidden, g->proj_bias);
    linear_backward_weight(backend, rows, w->hidden, w->q_width, a->norm1, d_q, w->q_width,
                           g->qkv_weight, w->qkv_width, g->qkv_bias);
    linear_backward_weight(backend, rows, w->hidden, 2 * w->kv_width, a->norm1,
                           layer->d_kv + kv_offset(layer, slice), 2 * w->kv_width,
                           g->qkv_weight + w->q_width, w->qkv_width, g->qkv_bias + w->q_width);
}

void
exec_layer_backward(ExecBackend *backend, const ExecLayer *layer, const ExecSlice *slice,
                    const ExecLayerScratch *scratch, const ExecLayerKept *kept, float *d)
{
    const ExecBackendOps *ops = backend->ops;
    const ExecWidths *w = layer->widths;
    const ExecLayerTensors *g = layer->gradients;
    const int64_t rows = exec_slice_rows(slice);
    const ExecNorm norm1 = norm1_of(layer, rows), norm2 = norm2_of(layer, rows);
    const ExecLayerKept *to = kept != NULL ? kept : &scratch->kept;

    /* d changes from the gradient of y to that of x2 to that of x; each is read (B) or copied (I)
     * before the next norm adds to it. */
    if (kept != NULL)
        ops->copy(backend, (size_t)exec_storage_bytes(backend, rows * w->hidden), d, kept->d_down);
    mlp_backward(backend, layer, rows, scratch, to->d_up, d);
    if (kept == NULL)
        mlp_weight(backend, layer, rows, to->d_up, d);
    ops->norm_backward(backend, &norm2, scratch->d_norm, d, g->norm2_gain, g->norm2_shift);
    if (kept != NULL)
        ops->copy(backend, (size_t)exec_storage_bytes(backend, rows * w->hidden), d, kept->d_proj);
    attention_backward(backend, layer, slice, scratch, to->d_q, d);
    if (kept == NULL)
        attention_weight(backend, layer, slice, to->d_q, d);
    ops->norm_backward(backend, &norm1, scratch->d_norm, d, g->norm1_gain, g->norm1_shift);
}

void
exec_layer_backward_weight(ExecBackend *backend, const ExecLayer *layer, const ExecSlice *slice,
                           const ExecLayerKept *kept)
{
    mlp_weight(backend, layer, exec_slice_rows(slice), kept->d_up, kept->d_down);
    attention_weight(backend, layer, slice, kept->d_q, kept->d_proj);
}
